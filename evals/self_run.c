/* self_run.c: one pass over the prompts through the runner, in one way. */
#include <stdlib.h>

#include "evals/self_private.h"
#include "infer/ask.h"

struct entry {
    struct self_log *log;
    size_t record;
};

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    const struct entry *en = req_user;
    (void)user, (void)text, (void)len;
    self_log_row(en->log, en->record, row->id, row->hash);
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    (void)user, (void)req_user, (void)why, (void)tail, (void)len;
}

static void on_layer(void *user, void *req_user, int64_t pos, int layer, const char *op,
                     uint64_t hash)
{
    const struct entry *en = req_user;
    (void)user;
    self_log_op(en->log, en->record, pos, layer, op, hash);
}

static enum err_code run_pass(struct lm *m, struct runner *r, const struct self_prompts *p,
                              const struct self_way *w, struct entry *entries,
                              const struct self_options *o, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < p->n && rc == ERR_OK; i++) {
        size_t at = w->reverse ? p->n - 1 - i : i;
        const struct self_prompt *q = &p->list[at];
        rc = ask_submit(m, r, q->req, &q->tokens, 0, false, &entries[at], e);
        rc = err_wrap(e, rc, "'%s'", q->req->custom_id);
    }
    for (bool busy = true; rc == ERR_OK && busy;) {
        rc = runner_step(r, &busy, e);
        if (rc == ERR_OK && o->interrupted && *o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    }
    return rc;
}

/* With more than one pass the log is that of the last: the ones before fill the prefix cache. */
enum err_code self_run_batch(struct lm *m, const struct self_prompts *p, const struct self_way *w,
                             const struct self_options *o, bool traced, struct self_log *log,
                             struct self_run_result *res, struct err *e)
{
    struct runner_options ro = {.chunk = w->chunk,
                                .batch = w->batch,
                                .no_prefix = !w->share,
                                .shuffle = w->shuffle,
                                .events = {.on_token = on_token, .on_done = on_done}};
    struct runner *r = NULL;
    struct entry *entries = calloc(p->n + 1, sizeof *entries);
    if (traced)
        ro.events.on_layer = on_layer;
    enum err_code rc = entries ? runner_new(&r, m->engine, m->tok, &ro, e)
                               : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && o->on_runner)
        o->on_runner(o->ctx, r);
    *log = (struct self_log){.n = 0};
    for (int pass = 0; rc == ERR_OK && pass < MAX2(w->passes, 1); pass++) {
        self_log_free(log);
        rc = self_log_init(log, p->n, e);
        for (size_t i = 0; i < p->n; i++)
            entries[i] = (struct entry){log, i};
        if (rc == ERR_OK)
            rc = run_pass(m, r, p, w, entries, o, e);
        if (rc == ERR_OK && log->failed)
            rc = err_set(e, ERR_NOMEM, "out of memory for what a run said");
    }
    if (r)
        res->shared_tokens = runner_get_stats(r).shared_tokens;
    runner_free(r);
    free(entries);
    return rc;
}
