/* stub_engine.c: an engine without arithmetic, linked in place of infer/engine.c.
 *
 * With it the program `assay-stub` is all of assay but the model: reader, scheduler, pages, text
 * and writer are the real ones. The next token is a letter that depends on the last token and its
 * position, so answers do not depend on the batch. Some bytes of a prompt make its step misbehave:
 * '~' crashes (SIGSEGV), '^' is an abort, '`' an internal error, '|' takes 20 ms, '!' is SIGKILL.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/hash.h"
#include "infer/engine.h"
#include "infer/model.h"

struct engine {
    struct hparams hp;
    struct kern *k;
    struct engine_plan plan;
    struct step_row *rows; /* [out_rows] */
    int32_t *top_id;       /* [out_rows * top_k] */
    float *top;
};

enum err_code engine_new(struct engine **out, const struct checkpoint *c,
                         const struct engine_options *o, struct err *e)
{
    struct engine *en = calloc(1, sizeof *en);
    enum err_code rc = en ? engine_plan(c, o, &en->plan, e) : err_set(e, ERR_NOMEM, "no memory");
    if (rc == ERR_OK)
        rc = kern_open(&en->k, &o->kern, e);
    *out = en;
    if (rc != ERR_OK)
        return rc;
    const size_t n = (size_t)en->plan.out_rows, k = (size_t)en->plan.top_k;
    en->hp = c->hp;
    en->rows = calloc(n, sizeof *en->rows);
    en->top_id = calloc(n * k, sizeof *en->top_id);
    en->top = calloc(n * k, sizeof *en->top);
    return en->rows && en->top_id && en->top ? ERR_OK : err_set(e, ERR_NOMEM, "no memory");
}

void engine_free(struct engine *en)
{
    if (!en)
        return;
    kern_close(en->k);
    free(en->rows);
    free(en->top_id);
    free(en->top);
    free(en);
}

const struct engine_plan *engine_get_plan(const struct engine *en)
{
    return &en->plan;
}

const struct hparams *engine_hparams(const struct engine *en)
{
    return &en->hp;
}

struct kern *engine_kern(const struct engine *en)
{
    return en->k;
}

const struct engine_times *engine_get_times(const struct engine *en)
{
    static const struct engine_times none;
    (void)en;
    return &none;
}

const char *engine_fingerprint(const struct engine *en)
{
    (void)en;
    return "57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab57ab";
}

void engine_set_tap(struct engine *en, engine_tap tap, void *ctx)
{
    (void)en;
    (void)tap;
    (void)ctx;
}

bool engine_op_of_output(int layer, const char *op)
{
    (void)layer;
    (void)op;
    return false; /* it has no operations */
}

void engine_set_state(struct engine *en, engine_state fn, void *ctx)
{
    (void)en;
    (void)fn;
    (void)ctx;
}

enum err_code engine_put_weight(struct engine *en, const char *name, const struct ckpt_weight *w,
                                struct err *e)
{
    (void)en;
    (void)w;
    return err_set(e, ERR_INTERNAL, "the stub has no weights (%s)", name);
}

size_t engine_page_bytes(const struct engine *en, int layer)
{
    (void)en;
    (void)layer;
    return 0;
}

enum err_code engine_read_page(struct engine *en, int layer, int32_t page, void *out, struct err *e)
{
    (void)en;
    (void)layer;
    (void)page;
    (void)out;
    return err_set(e, ERR_INTERNAL, "the stub has no pages");
}

enum err_code engine_zero_page(struct engine *en, int32_t page, struct err *e)
{
    (void)en;
    (void)page;
    (void)e;
    return ERR_OK;
}

enum err_code engine_poison_page(struct engine *en, int32_t page, struct err *e)
{
    return engine_zero_page(en, page, e);
}

enum err_code engine_poison(struct engine *en, struct err *e)
{
    (void)en;
    (void)e;
    return ERR_OK;
}

static enum err_code misbehave(int32_t id, struct err *e)
{
    switch (id) {
    case '~':
        raise(SIGSEGV);
        break;
    case '^':
        abort();
    case '!':
        raise(SIGKILL);
        break;
    case '`':
        return err_set(e, ERR_INTERNAL, "the stub was asked for an internal error");
    case '|':
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        break;
    default:
        break;
    }
    return ERR_OK;
}

enum err_code engine_step(struct engine *en, struct step *s, struct err *e)
{
    int n = 0, k = en->plan.top_k;
    for (int i = 0; i < s->n_pieces; i++) {
        const struct step_piece *p = &s->pieces[i];
        for (int j = 0; j < p->n; j++) {
            enum err_code rc = p->ids[j] < 128 ? misbehave(p->ids[j], e) : ERR_OK;
            if (rc != ERR_OK)
                return rc;
            if (j < p->out_from)
                continue;
            struct step_row *row = &en->rows[n];
            uint64_t h = hash_mix64((uint64_t)(p->pos + j) << 32 | (uint32_t)p->ids[j]);
            *row = (struct step_row){.piece = i,
                                     .index = j,
                                     .top_id = en->top_id + (ptrdiff_t)n * k,
                                     .top = en->top + (ptrdiff_t)n * k,
                                     .lse = 1,
                                     .hash = h};
            for (int t = 0; t < k; t++) {
                en->top_id[n * k + t] = 'a' + (int32_t)((h + (uint64_t)t) % 26);
                en->top[n * k + t] = (float)-t;
            }
            row->id = row->top_id[0];
            row->logit = row->top[0];
            n++;
        }
    }
    s->rows = en->rows;
    s->n_rows = n;
    return ERR_OK;
}
