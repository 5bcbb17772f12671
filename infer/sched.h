/* sched.h: what the next step runs. A pure function of the requests, the free pages and the limits
 * of a step; it knows neither device nor page numbers.
 *
 * Requests stand in order of age, the oldest first, and the running ones come before the waiting
 * ones. The order of a step: rows of decoding requests, oldest first; then prompt pieces of running
 * requests; then admissions, strictly in order, while pages for the whole known text and for what
 * the running ones still have before them are left. When a running request finds no page the
 * youngest running one is put back: it loses its pages and is computed again later, with the same
 * bits. So the oldest always goes on, and everything submitted ends as long as each request fits
 * the pool alone.
 */
#ifndef ASSAY_INFER_SCHED_H
#define ASSAY_INFER_SCHED_H

#include "common/base.h"

struct sched_seq {
    bool running;
    int64_t n_tok;    /* tokens known so far whose KV is needed */
    int64_t n_done;   /* tokens in pages; of a waiting one: what the prefix cache would give */
    int64_t out_from; /* rows from this token on give logits */
    int64_t n_pages;  /* pages that hold n_done, or would */
    int64_t n_idle;   /* of a waiting one: those of n_pages that count as free now */
};

struct sched_limits {
    int batch_tokens, batch_seqs, out_rows;
    int chunk; /* most tokens of one piece */
    int64_t free_pages;
};

struct sched_piece {
    int seq; /* index; a waiting one is admitted by its first piece */
    int n;   /* tokens from n_done on */
};

struct sched_plan {
    int put_back; /* >= 0: put this one back, take its pages, and plan again; no pieces then */
    int n_pieces;
    struct sched_piece *piece; /* caller's, room for batch_seqs */
};

void sched_plan_step(const struct sched_seq *seqs, int n_seqs, const struct sched_limits *l,
                     struct sched_plan *plan);

#endif
