/* self_feed.c: what the scheduler does not do by itself: answers in blocks of a verify's width, and
 * rows between neighbours that are NaN. The base's own tokens are fed, one answer at a time, and
 * each row's hash is held against the base's.
 *
 * A NaN neighbour is a sequence that goes on from pages of NaN bytes: its attention, and with it
 * every later operation of its rows, is NaN. Two of them stand around the rows that are looked at.
 */
#include <stdlib.h>

#include "evals/self_private.h"
#include "infer/kv.h"

enum { MATES = 2, MATE_TOKENS = 2, MATE_PAGES = 2 };

struct feed {
    struct lm *m;
    const struct self_way *w;
    struct self_log *log;
    bool traced;
    int32_t *seq; /* prompt and answer */
    int64_t n;
    int32_t *pages; /* the sequence's, then the neighbours' */
    int n_pages;
    size_t record;
    /* The step in flight: rows [first, first + piece) are the sequence's, from position pos on. */
    int64_t pos;
    int first, first_out, piece, n_out;
};

static void tap(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash)
{
    const struct feed *f = ctx;
    bool of_output = engine_op_of_output(layer, op);
    int from = of_output ? f->first_out : f->first, n = of_output ? f->n_out : f->piece;
    int64_t pos = of_output ? f->pos + f->piece - f->n_out : f->pos;
    for (int i = 0; i < n && from + i < n_rows; i++)
        self_log_op(f->log, f->record, pos + i, layer, op, hash[from + i]);
}

/* A neighbour's piece: goes on after a page of NaN. */
static struct step_piece mate_piece(const struct feed *f, int i)
{
    static const int32_t ids[MATE_TOKENS] = {0, 0};
    return (struct step_piece){.ids = ids,
                               .n = MATE_TOKENS,
                               .pos = KERN_PAGE,
                               .pages = f->pages + f->n_pages + (ptrdiff_t)i * MATE_PAGES,
                               .n_pages = MATE_PAGES};
}

/* Tokens [from, from + n) of the sequence; the last n_out of them give logits. */
static enum err_code feed_step(struct feed *f, int64_t from, int n, int n_out, struct err *e)
{
    struct step_piece piece[1 + MATES];
    struct step step = {.pieces = piece};
    f->first = f->first_out = 0;
    if (f->w->nan) {
        piece[step.n_pieces++] = mate_piece(f, 0);
        f->first = f->first_out = MATE_TOKENS;
    }
    int mine = step.n_pieces;
    piece[step.n_pieces++] = (struct step_piece){.ids = f->seq + from,
                                                 .n = n,
                                                 .pos = from,
                                                 .pages = f->pages,
                                                 .n_pages = f->n_pages,
                                                 .out_from = n - n_out};
    if (f->w->nan)
        piece[step.n_pieces++] = mate_piece(f, 1);
    f->pos = from;
    f->piece = n;
    f->n_out = n_out;
    engine_set_tap(f->m->engine, f->traced ? tap : NULL, f);
    enum err_code rc = engine_step(f->m->engine, &step, e);
    engine_set_tap(f->m->engine, NULL, NULL);
    for (int i = 0; rc == ERR_OK && i < step.n_rows; i++)
        if (step.rows[i].piece == mine)
            self_log_row(f->log, f->record, f->seq[from + step.rows[i].index + 1],
                         step.rows[i].hash);
    return rc;
}

static enum err_code start_pages(struct feed *f, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int i = 0; i < f->n_pages && rc == ERR_OK; i++)
        rc = engine_zero_page(f->m->engine, f->pages[i], e);
    for (int i = 0; f->w->nan && i < MATES * MATE_PAGES && rc == ERR_OK; i++)
        rc = engine_poison_page(f->m->engine, f->pages[f->n_pages + i], e);
    return rc;
}

static enum err_code feed_record(struct feed *f, int64_t n_prompt, struct err *e)
{
    const struct engine_plan *plan = engine_get_plan(f->m->engine);
    const int64_t room = plan->batch_tokens - (f->w->nan ? MATES * MATE_TOKENS : 0);
    const int64_t width = MAX2(f->w->width, 1);
    enum err_code rc = start_pages(f, e);
    for (int64_t at = 0; at < n_prompt && rc == ERR_OK;) {
        int64_t n = MIN2(room, n_prompt - at);
        rc = feed_step(f, at, (int)n, at + n == n_prompt, e);
        at += n;
    }
    /* The last token of an answer is not fed: nothing follows it. */
    for (int64_t at = n_prompt; at < f->n - 1 && rc == ERR_OK;) {
        int64_t n = MIN2(width, f->n - 1 - at);
        rc = feed_step(f, at, (int)n, (int)n, e);
        at += n;
    }
    return rc;
}

static enum err_code feed_one(struct feed *f, const struct self_prompt *q,
                              const struct self_record *base, struct err *e)
{
    const int64_t n_prompt = (int64_t)q->tokens.n;
    f->n = n_prompt + (int64_t)base->n_rows;
    f->n_pages = (int)kv_pages_for(f->n);
    int all = f->n_pages + MATES * MATE_PAGES;
    if (all > engine_get_plan(f->m->engine)->pages)
        return err_set(e, ERR_INPUT, "%d KV pages are needed, the pool has %lld", all,
                       (long long)engine_get_plan(f->m->engine)->pages);
    f->seq = malloc((size_t)f->n * sizeof *f->seq);
    f->pages = malloc((size_t)all * sizeof *f->pages);
    enum err_code rc = f->seq && f->pages ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; rc == ERR_OK && i < all; i++)
        f->pages[i] = i;
    if (rc == ERR_OK) {
        memcpy(f->seq, q->tokens.ids, q->tokens.n * sizeof *f->seq);
        for (size_t i = 0; i < base->n_rows; i++)
            f->seq[q->tokens.n + i] = base->row[i].id;
        rc = feed_record(f, n_prompt, e);
    }
    free(f->seq);
    free(f->pages);
    return err_wrap(e, rc, "'%s'", q->req->custom_id);
}

enum err_code self_run_feed(struct lm *m, const struct self_prompts *p, const struct self_way *w,
                            const struct self_options *o, const struct self_log *base, bool traced,
                            struct self_log *log, struct err *e)
{
    struct feed f = {.m = m, .w = w, .log = log, .traced = traced};
    enum err_code rc = self_log_init(log, p->n, e);
    for (size_t i = 0; i < p->n && rc == ERR_OK; i++) {
        f.record = i;
        if (base->record[i].n_rows)
            rc = feed_one(&f, &p->list[i], &base->record[i], e);
        if (rc == ERR_OK && o->interrupted && *o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    }
    if (rc == ERR_OK && log->failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for what a run said");
    return rc;
}
