/* engine_rig.c: opening, feeding and comparing for tests of the engine. */
#include "tests/engine_rig.h"

#include <check.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/io.h"
#include "common/rng.h"
#include "infer/kv.h"

static void must(enum err_code rc, const struct err *e)
{
    ck_assert_msg(rc == ERR_OK, "%s: %s (%s:%d)", err_name(rc), e->text, e->file, e->line);
}

void rig_reopen(struct rig *r, const struct rig_options *o)
{
    static const struct rig_options defaults = {.ctx = 2048};
    struct err e = {.text = ""};
    o = o ? o : &defaults;
    struct engine_options eo = {.kern = {.device = "cpu", .isa = "auto"}};
    eo.kern.arith = o->arith;
    eo.kern.threads = o->threads;
    eo.batch_tokens = o->batch_tokens;
    eo.batch_seqs = o->batch_seqs;
    eo.out_rows = o->out_rows ? o->out_rows : o->batch_tokens ? o->batch_tokens : 512;
    eo.ctx = o->ctx ? o->ctx : 2048;
    eo.kv_tokens = o->kv_tokens;
    engine_free(r->en);
    r->en = NULL;
    r->pages_used = 0;
    must(engine_new(&r->en, r->c, &eo, &e), &e);
}

void rig_open_path(struct rig *r, const char *path, const struct rig_options *o)
{
    struct err e = {.text = ""};
    *r = (struct rig){0};
    must(checkpoint_open(&r->c, path, &e), &e);
    rig_reopen(r, o);
}

void rig_open(struct rig *r, const struct tiny_model *m, const struct rig_options *o)
{
    struct err e = {.text = ""};
    char *temp = tiny_temp_dir();
    ck_assert(temp != NULL);
    char *path = io_join(temp, "model");
    must(tiny_model_write(path, m, &e), &e);
    rig_open_path(r, path, o);
    free(path);
    r->temp = temp;
}

void rig_close(struct rig *r)
{
    engine_free(r->en);
    checkpoint_close(r->c);
    if (r->temp)
        tiny_remove(r->temp);
    free(r->temp);
    *r = (struct rig){0};
}

void rig_seq_start(struct rig *r, struct rig_seq *s, const int32_t *ids, int n)
{
    struct err e = {.text = ""};
    *s = (struct rig_seq){.ids = ids, .n = n, .n_pages = (int)kv_pages_for(n)};
    s->page = calloc((size_t)s->n_pages, sizeof *s->page);
    s->hash = calloc((size_t)n, sizeof *s->hash);
    ck_assert(s->page && s->hash);
    for (int i = 0; i < s->n_pages; i++) {
        s->page[i] = r->pages_used++;
        must(engine_zero_page(r->en, s->page[i], &e), &e);
    }
}

void rig_seq_end(struct rig_seq *s)
{
    free(s->page);
    free(s->hash);
}

void rig_clear(struct rig *r)
{
    r->pages_used = 0;
}

/* Every row of a rig's step gives logits, so all operations have the same rows. */
static void join_hashes(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash)
{
    uint64_t *all = ctx;
    (void)layer;
    (void)op;
    for (int i = 0; i < n_rows; i++)
        all[i] = hash_mix64(all[i] + 1) ^ hash[i];
}

void rig_step(struct rig *r, struct rig_seq *const *seqs, const int *n, int n_seqs)
{
    struct err e = {.text = ""};
    struct step_piece *p = calloc((size_t)n_seqs, sizeof *p);
    ck_assert(p != NULL);
    for (int i = 0; i < n_seqs; i++) {
        const struct rig_seq *s = seqs[i];
        p[i] = (struct step_piece){.ids = s->ids + s->done, .n = n[i], .pos = s->done};
        p[i].pages = s->page;
        p[i].n_pages = s->n_pages;
    }
    struct step step = {.pieces = p, .n_pieces = n_seqs};
    uint64_t *all = calloc((size_t)engine_get_plan(r->en)->batch_tokens, sizeof *all);
    ck_assert(all != NULL);
    if (!r->quiet)
        engine_set_tap(r->en, join_hashes, all);
    must(engine_step(r->en, &step, &e), &e);
    if (!r->quiet)
        engine_set_tap(r->en, NULL, NULL);
    for (int i = 0; i < step.n_rows; i++) {
        const struct step_row *row = &step.rows[i];
        struct rig_seq *s = seqs[row->piece];
        s->hash[s->done + row->index] = r->quiet ? row->hash : all[i];
    }
    for (int i = 0; i < n_seqs; i++)
        seqs[i]->done += n[i];
    free(all);
    free(p);
}

void rig_feed(struct rig *r, struct rig_seq *s, int chunk)
{
    while (s->done < s->n) {
        int n = MIN2(chunk, s->n - s->done);
        rig_step(r, &s, &n, 1);
    }
}

bool rig_same_rows(const struct rig_seq *a, const struct rig_seq *b)
{
    ck_assert(a->done == b->done && a->done > 0 && a->hash[0] != 0);
    return memcmp(a->hash, b->hash, (size_t)a->done * sizeof *a->hash) == 0;
}

bool rig_same_pages(struct rig *ra, const struct rig_seq *a, struct rig *rb,
                    const struct rig_seq *b)
{
    struct err e = {.text = ""};
    bool same = true;
    for (int l = 0; l < engine_hparams(ra->en)->n_layer; l++) {
        const size_t bytes = engine_page_bytes(ra->en, l);
        uint8_t *pa = malloc(bytes), *pb = malloc(bytes);
        ck_assert(pa && pb && a->n_pages == b->n_pages && engine_page_bytes(rb->en, l) == bytes);
        for (int i = 0; i < a->n_pages; i++) {
            must(engine_read_page(ra->en, l, a->page[i], pa, &e), &e);
            must(engine_read_page(rb->en, l, b->page[i], pb, &e), &e);
            same = same && memcmp(pa, pb, bytes) == 0;
        }
        free(pa);
        free(pb);
    }
    return same;
}

int32_t *rig_ids(uint64_t seed, int n, int n_vocab)
{
    struct rng r = {seed, 0};
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    ck_assert(ids != NULL);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(&r, (uint64_t)n_vocab);
    return ids;
}
