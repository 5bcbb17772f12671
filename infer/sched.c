/* sched.c: the three passes of a plan and their shared budget. */
#include "infer/sched.h"

#include <assert.h>

#include "infer/kv.h"

struct budget {
    int64_t tokens, rows, pages;
    int chunk;
};

enum grant { GRANT_PIECE, GRANT_NONE, GRANT_NO_PAGE };

/* The longest piece of s that the budget allows; takes it from the budget. */
static enum grant grant_piece(const struct sched_seq *s, struct budget *b, int *n_out)
{
    int64_t n = MIN2(s->n_tok - s->n_done, MIN2(b->chunk, b->tokens));
    int64_t first_row = MAX2(s->out_from, s->n_done);
    if (s->n_done + n - first_row > b->rows)
        n = first_row + b->rows - s->n_done;
    if (n <= 0)
        return GRANT_NONE;
    int64_t room = (s->n_pages + b->pages) * KERN_PAGE - s->n_done;
    n = MIN2(n, room);
    if (n <= 0)
        return GRANT_NO_PAGE;
    int64_t rows = s->n_done + n - first_row, pages = kv_pages_for(s->n_done + n) - s->n_pages;
    b->tokens -= n;
    b->rows -= MAX2(rows, 0);
    b->pages -= MAX2(pages, 0);
    *n_out = (int)n;
    return GRANT_PIECE;
}

/* Pages that s still needs for its known text and one token more. */
static int64_t pages_ahead(const struct sched_seq *s)
{
    return MAX2(kv_pages_for(s->n_tok + 1) - s->n_pages, 0);
}

static void admit(const struct sched_seq *seqs, int n_running, int n_seqs,
                  const struct sched_limits *l, struct budget *b, struct sched_plan *plan)
{
    int64_t unpromised = l->free_pages;
    for (int i = 0; i < n_running; i++)
        unpromised -= pages_ahead(&seqs[i]);
    for (int i = n_running; i < n_seqs && i < l->batch_seqs; i++) {
        const struct sched_seq *s = &seqs[i];
        int64_t need = pages_ahead(s) + s->n_idle;
        /* The first of an empty set goes ahead whatever is promised: it fits the pool alone. */
        if (i > 0 && need > unpromised)
            return;
        struct budget trial = *b;
        trial.pages -= s->n_idle;
        int n;
        if (trial.pages < 0 || grant_piece(s, &trial, &n) != GRANT_PIECE)
            return;
        *b = trial;
        unpromised -= need;
        plan->piece[plan->n_pieces++] = (struct sched_piece){i, n};
    }
}

void sched_plan_step(const struct sched_seq *seqs, int n_seqs, const struct sched_limits *l,
                     struct sched_plan *plan)
{
    struct budget b = {l->batch_tokens, l->out_rows, l->free_pages, l->chunk};
    int n_running = 0;
    while (n_running < n_seqs && seqs[n_running].running)
        n_running++;
    assert(n_running <= l->batch_seqs);
    plan->n_pieces = 0;
    plan->put_back = -1;
    for (int decode = 1; decode >= 0; decode--) {
        for (int i = 0; i < n_running; i++) {
            if ((seqs[i].n_tok - seqs[i].n_done == 1) != decode)
                continue;
            int n;
            enum grant g = grant_piece(&seqs[i], &b, &n);
            if (g == GRANT_PIECE)
                plan->piece[plan->n_pieces++] = (struct sched_piece){i, n};
            if (g == GRANT_NO_PAGE) {
                plan->put_back = n_running - 1;
                plan->n_pieces = 0;
                return;
            }
        }
    }
    admit(seqs, n_running, n_seqs, l, &b, plan);
}
