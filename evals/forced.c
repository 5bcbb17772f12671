/* forced.c: both models score the same tokens, in segments of bounded memory.
 *
 * A segment is at most SEGMENT positions of one record: the sequence is cut at its end and scored
 * from its start, by the reference and then by the variant, and row is measured against row, on all
 * threads. Pages of the part before are shared, so a segment costs its own tokens.
 */
#include "evals/forced.h"

#include <stdlib.h>

#include "common/par.h"
#include "infer/runner.h"

#define SEGMENT 64

struct side {
    struct lm *m;
    struct runner *runner;
};

struct forcer {
    struct side ref, var;
    int64_t n_vocab;
    float *rows[2];  /* [SEGMENT][n_vocab] of each side */
    double *scratch; /* [threads][2 n_vocab] */
    int threads;
    bool second; /* rows are the variant's now */
    bool prompts;
    int64_t base; /* position of the segment's first scored token */
    int32_t record, first_index;
    int64_t n_rows, n_got;
    const int32_t *tokens; /* the whole sequence */
    struct position *out;  /* of this segment */
};

static void on_row(void *user, void *req_user, const struct row_info *row)
{
    struct forcer *f = user;
    (void)req_user;
    int64_t i = row->pos - f->base;
    if (i < 0 || i >= f->n_rows || !row->logits)
        return;
    f->n_got++;
    memcpy(f->rows[f->second] + i * f->n_vocab, row->logits,
           (size_t)f->n_vocab * sizeof *row->logits);
}

static void measure_row(void *ctx, int64_t i, int thread)
{
    struct forcer *f = ctx;
    struct position *p = &f->out[i];
    int32_t token = f->tokens[f->base + i];
    measure_position(f->rows[0] + i * f->n_vocab, f->rows[1] + i * f->n_vocab, f->n_vocab, token,
                     f->scratch + 2 * f->n_vocab * thread, p);
    p->record = f->record;
    p->index = f->first_index + (int32_t)i;
    p->role = !f->prompts                                  ? ROLE_OF_ANSWER
              : tokenizer_is_special(f->ref.m->tok, token) ? ROLE_OF_TEMPLATE
                                                           : ROLE_OF_USER;
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *text,
                    size_t len)
{
    (void)user, (void)req_user, (void)why, (void)text, (void)len;
}

static enum err_code open_side(struct side *s, struct lm *m, struct forcer *f, struct err *e)
{
    struct runner_options ro = {.events = {.on_row = on_row, .on_done = on_done}, .user = f};
    s->m = m;
    return runner_new(&s->runner, m->engine, NULL, &ro, e);
}

/* Scores the positions [base, base + n_rows) of the sequence on one side. */
static enum err_code score(struct forcer *f, struct side *s, struct err *e)
{
    struct request q = {.prompt = f->tokens,
                        .n_prompt = f->base + f->n_rows,
                        .want_logits = true,
                        .score_from = f->base - 1};
    f->n_got = 0;
    enum err_code rc = runner_submit(s->runner, &q, NULL, e);
    for (bool busy = true; rc == ERR_OK && busy;)
        rc = runner_step(s->runner, &busy, e);
    if (rc == ERR_OK && f->n_got != f->n_rows)
        rc = err_set(e, ERR_INTERNAL, "%lld of %lld rows were scored", (long long)f->n_got,
                     (long long)f->n_rows);
    return rc;
}

/* Positions from, from + 1, ... of the sequence, `most` of them. */
static enum err_code force_record(struct forcer *f, const struct trace_record *r, int64_t from,
                                  int64_t most, struct position *out, struct err *e)
{
    size_t all = (size_t)r->n_prompt + r->n;
    int32_t *seq = malloc((all + 1) * sizeof *seq);
    if (!seq)
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(seq, r->prompt_ids, (size_t)r->n_prompt * sizeof *seq);
    for (size_t i = 0; i < r->n; i++)
        seq[(size_t)r->n_prompt + i] = r->tok[i].id;
    f->tokens = seq;
    enum err_code rc = ERR_OK;
    for (int64_t at = 0; at < most && rc == ERR_OK; at += SEGMENT) {
        f->base = from + at;
        f->first_index = (int32_t)at;
        f->n_rows = MIN2(SEGMENT, most - at);
        f->out = out + at;
        f->second = false;
        rc = score(f, &f->ref, e);
        f->second = true;
        if (rc == ERR_OK)
            rc = score(f, &f->var, e);
        if (rc == ERR_OK)
            par_for(f->threads, f->n_rows, measure_row, f);
    }
    free(seq);
    return rc;
}

static int64_t forced_tokens(const struct trace_record *r, const struct forced_options *o)
{
    int64_t n = o->prompts ? MAX2(r->n_prompt - 1, 0) : (int64_t)r->n;
    return o->max_per_record && n > o->max_per_record ? o->max_per_record : n;
}

static enum err_code force_all(struct forcer *f, const struct trace *t,
                               const struct forced_options *o, struct position *out, struct err *e)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_record *r = &t->records[i];
        int64_t most = forced_tokens(r, o);
        f->record = (int32_t)i;
        enum err_code rc = force_record(f, r, o->prompts ? 1 : r->n_prompt, most, out, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "forced along '%s'", r->custom_id);
        out += most;
        if (o->on_progress)
            o->on_progress(o->ctx, i + 1);
        if (o->interrupted && *o->interrupted)
            return err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    }
    return ERR_OK;
}

enum err_code forced_run(struct lm *ref, struct lm *var, const struct trace *t,
                         const struct forced_options *o, struct position **positions, size_t *n,
                         struct err *e)
{
    struct forcer f = {.n_vocab = engine_hparams(ref->engine)->n_vocab,
                       .threads = kern_threads(engine_kern(ref->engine)),
                       .prompts = o->prompts};
    size_t row = (size_t)f.n_vocab;
    *n = 0;
    *positions = NULL;
    if (f.n_vocab != engine_hparams(var->engine)->n_vocab)
        return err_set(e, ERR_MISMATCH, "vocabularies of %lld and %lld", (long long)f.n_vocab,
                       (long long)engine_hparams(var->engine)->n_vocab);
    for (size_t i = 0; i < t->n; i++)
        *n += (size_t)forced_tokens(&t->records[i], o);
    *positions = calloc(*n + 1, sizeof **positions);
    f.rows[0] = malloc(SEGMENT * row * sizeof(float));
    f.rows[1] = malloc(SEGMENT * row * sizeof(float));
    f.scratch = malloc((size_t)f.threads * 2 * row * sizeof *f.scratch);
    enum err_code rc = *positions && f.rows[0] && f.rows[1] && f.scratch
                           ? open_side(&f.ref, ref, &f, e)
                           : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = open_side(&f.var, var, &f, e);
    if (rc == ERR_OK)
        rc = force_all(&f, t, o, *positions, e);
    runner_free(f.ref.runner);
    runner_free(f.var.runner);
    free(f.rows[0]);
    free(f.rows[1]);
    free(f.scratch);
    return rc;
}
