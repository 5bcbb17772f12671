/* batch_table.c: applying records to the table of requests. Owns no file. */
#include "infer/batch_table.h"

#include <stdlib.h>

#define STARTED_PRUNE 4096

enum err_code batch_table_new(struct batch_table *t, const struct census *in, struct err *e)
{
    *t = (struct batch_table){.in = in};
    t->line = calloc((size_t)in->n_requests + 1, sizeof *t->line);
    return t->line ? ERR_OK
                   : err_set(e, ERR_NOMEM, "out of memory for %llu requests",
                             (unsigned long long)in->n_requests);
}

void batch_table_free(struct batch_table *t)
{
    free(t->line);
    free(t->started);
    *t = (struct batch_table){.in = NULL};
}

static enum err_code check_range(const struct batch_table *t, uint64_t n, uint64_t count,
                                 struct err *e)
{
    if (n <= t->in->n_requests && count <= t->in->n_requests - n)
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "the prompt file has changed: it has %llu requests, and request %llu had begun",
                   (unsigned long long)t->in->n_requests, (unsigned long long)(n + count));
}

static enum err_code check_sum(const struct batch_table *t, uint64_t n, uint32_t in, struct err *e)
{
    if (t->in->sums[n] == in)
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "the prompt file has changed: request %llu is another than the one that was "
                   "answered (sum %08x, now %08x)",
                   (unsigned long long)n + 1, in, t->in->sums[n]);
}

/* The input begins with what the run was asked for. */
static enum err_code check_input(const struct batch_table *t, const struct batch_rec_input *was,
                                 struct err *e)
{
    char sums[65];
    if (was->requests > t->in->n_requests)
        return err_set(e, ERR_INPUT,
                       "the prompt file has changed: it has %llu requests, and had %llu",
                       (unsigned long long)t->in->n_requests, (unsigned long long)was->requests);
    census_prefix(t->in, was->requests, sums);
    if (strcmp(sums, was->sums) != 0)
        return err_set(e, ERR_INPUT,
                       "the prompt file has changed: its first %llu requests are not those of "
                       "the run (it may grow at its end)",
                       (unsigned long long)was->requests);
    return ERR_OK;
}

static void set_line(struct batch_line *l, enum batch_place place, uint64_t at,
                     const struct batch_rec_line *r)
{
    l->place = place;
    l->at = at & ((1ull << 48) - 1);
    l->status = r->status;
    l->len = r->len;
    l->sum = r->sum;
}

static enum err_code start(struct batch_table *t, uint64_t n, uint64_t count, struct err *e)
{
    if (t->n_started >= STARTED_PRUNE) {
        size_t kept = 0;
        for (size_t i = 0; i < t->n_started; i++)
            if (t->line[t->started[i]].place == BATCH_NOWHERE)
                t->started[kept++] = t->started[i];
        t->n_started = kept;
    }
    if (count > t->cap_started - t->n_started) {
        size_t cap = (t->n_started + (size_t)count) * 2 + STARTED_PRUNE;
        uint64_t *more = realloc(t->started, cap * sizeof *more);
        if (!more)
            return err_set(e, ERR_NOMEM, "out of memory for %zu requests", cap);
        t->started = more;
        t->cap_started = cap;
    }
    for (uint64_t i = 0; i < count; i++)
        t->started[t->n_started++] = n + i;
    return ERR_OK;
}

/* Everything that had begun and is not answered is held responsible. */
static void died(struct batch_table *t)
{
    for (size_t i = 0; i < t->n_started; i++) {
        struct batch_line *l = &t->line[t->started[i]];
        if (l->place == BATCH_NOWHERE && l->deaths < BATCH_DEATHS_MAX)
            l->deaths = (l->deaths + 1u) & 3u;
    }
    t->n_started = 0;
}

static enum err_code apply_out(struct batch_table *t, const struct batch_rec *r, struct err *e)
{
    uint64_t at = r->at;
    enum err_code rc = check_range(t, r->n, r->count, e);
    for (uint64_t i = 0; i < r->count && rc == ERR_OK; i++) {
        rc = check_sum(t, r->n + i, r->lines[i].in, e);
        if (rc == ERR_OK)
            set_line(&t->line[r->n + i], BATCH_IN_OUT, at, &r->lines[i]);
        at += r->lines[i].len;
    }
    return rc;
}

enum err_code batch_table_apply(struct batch_table *t, const struct batch_rec *r, uint64_t base,
                                struct err *e)
{
    enum err_code rc = ERR_OK;
    switch (r->kind) {
    case BATCH_REC_OPEN:
        t->n_started = 0;
        for (uint64_t n = 0; r->retry && n < t->in->n_requests; n++)
            t->line[n].deaths = 0;
        return check_input(t, &r->input, e);
    case BATCH_REC_START:
        rc = check_range(t, r->n, r->count, e);
        return rc == ERR_OK ? start(t, r->n, r->count, e) : rc;
    case BATCH_REC_DONE:
        rc = check_range(t, r->n, 1, e);
        if (rc == ERR_OK)
            rc = check_sum(t, r->n, r->one.in, e);
        if (rc == ERR_OK)
            set_line(&t->line[r->n], BATCH_EARLY, base + r->reply_at, &r->one);
        return rc;
    case BATCH_REC_OUT:
        return apply_out(t, r, e);
    case BATCH_REC_CUT:
        for (uint64_t n = r->n; n < t->in->n_requests; n++)
            if (t->line[n].place == BATCH_IN_OUT)
                t->line[n].place = BATCH_NOWHERE;
        return ERR_OK;
    case BATCH_REC_DIED:
        died(t);
        return ERR_OK;
    case BATCH_REC_STOP:
        t->n_started = 0;
        return ERR_OK;
    case BATCH_REC_END:
        return check_input(t, &r->input, e);
    case BATCH_REC_HEAD:
    case BATCH_REC_KINDS:
        break;
    }
    return ERR_OK;
}
