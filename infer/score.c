/* score.c: windows of a text through the runner. */
#include "infer/score.h"

#include <math.h>
#include <stdlib.h>

#include "infer/runner.h"

struct scorer {
    struct score_result *res;
    int64_t done;
};

static void on_row(void *user, void *req_user, const struct row_info *row)
{
    (void)user;
    struct score_window *w = req_user;
    w->nll -= (double)row->logprob;
    w->n_scored++;
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *text,
                    size_t len)
{
    (void)req_user, (void)why, (void)text, (void)len;
    ((struct scorer *)user)->done++;
}

/* The plan of windows; w->nll and n_scored are filled by the run. from[i]: first row scored. */
static enum err_code plan(const struct score_options *o, int64_t n, struct score_result *res,
                          int64_t **from, struct err *e)
{
    int64_t stride = o->llama_windows || !o->stride ? o->ctx : o->stride;
    if (o->ctx < 2 || stride < 1 || stride > o->ctx)
        return err_set(e, ERR_USAGE,
                       "windows of %lld every %lld: expected 2 <= ctx and 1 <= "
                       "stride <= ctx",
                       (long long)o->ctx, (long long)stride);
    if (n < 2 || (o->llama_windows && n < o->ctx))
        return err_set(e, ERR_INPUT, "the text has %lld tokens, expected at least %lld",
                       (long long)n, (long long)(o->llama_windows ? o->ctx : 2));
    int64_t most = n / stride + 1, end = 1; /* end: first token that is not scored yet */
    res->windows = calloc((size_t)most, sizeof *res->windows);
    *from = calloc((size_t)most, sizeof **from);
    if (!res->windows || !*from)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int64_t at = 0; at < n && (o->llama_windows ? at + o->ctx <= n : end < n); at += stride) {
        struct score_window *w = &res->windows[res->n_windows];
        w->start = at;
        w->n = MIN2(o->ctx, n - at);
        (*from)[res->n_windows++] = o->llama_windows ? o->ctx / 2 : end - 1 - at;
        end = at + w->n;
    }
    return ERR_OK;
}

static enum err_code submit(struct runner *r, struct lm *m, const struct score_options *o,
                            const int32_t *ids, struct score_window *w, int64_t from, struct err *e)
{
    int32_t bos = tokenizer_bos(m->tok);
    int32_t *copy = malloc((size_t)w->n * sizeof *copy);
    if (!copy)
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(copy, ids + w->start, (size_t)w->n * sizeof *copy);
    struct token_list empty = {0};
    enum err_code rc = tokenizer_encode(m->tok, "", 0, TOK_ADD_SPECIAL, &empty, e);
    if (rc == ERR_OK && o->llama_windows && empty.n && bos >= 0 && empty.ids[0] == bos)
        copy[0] = bos;
    token_list_free(&empty);
    struct request q = {.prompt = copy, .n_prompt = w->n, .score_from = from};
    if (rc == ERR_OK)
        rc = runner_submit(r, &q, w, e);
    free(copy);
    return rc;
}

static enum err_code run(struct lm *m, const int32_t *ids, const struct score_options *o,
                         struct score_result *res, const int64_t *from, struct err *e)
{
    struct scorer s = {.res = res};
    struct runner_options ro = {.events = {.on_row = on_row, .on_done = on_done}, .user = &s};
    struct runner *r;
    enum err_code rc = runner_new(&r, m->engine, NULL, &ro, e);
    if (rc != ERR_OK)
        return rc;
    int64_t next = 0, shown = 0;
    bool busy = true;
    int most = engine_get_plan(m->engine)->batch_seqs * 2;
    while (rc == ERR_OK && (busy || next < res->n_windows)) {
        while (rc == ERR_OK && next < res->n_windows && runner_pending(r) < most) {
            rc = submit(r, m, o, ids, &res->windows[next], from[next], e);
            next++;
        }
        if (rc == ERR_OK)
            rc = runner_step(r, &busy, e);
        if (rc == ERR_OK && o->interrupted && *o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
        if (o->on_window && s.done != shown)
            o->on_window(o->ctx_user, shown = s.done, res->n_windows);
    }
    runner_free(r);
    return rc;
}

enum err_code score_ids(struct lm *m, const int32_t *ids, int64_t n, const struct score_options *o,
                        struct score_result *res, struct err *e)
{
    int64_t *from = NULL;
    *res = (struct score_result){.n_tokens = n};
    enum err_code rc = plan(o, n, res, &from, e);
    if (rc == ERR_OK)
        rc = run(m, ids, o, res, from, e);
    free(from);
    if (rc != ERR_OK) {
        score_free(res);
        return rc;
    }
    for (int64_t i = 0; i < res->n_windows; i++) {
        res->nll += res->windows[i].nll;
        res->n_scored += res->windows[i].n_scored;
    }
    res->perplexity = exp(res->nll / (double)res->n_scored);
    return ERR_OK;
}

void score_free(struct score_result *res)
{
    free(res->windows);
    res->windows = NULL;
}
