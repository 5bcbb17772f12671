/* figures.h: what the teacher-forced positions of a pair come to, each figure with a 95 % interval
 * from resampled clusters (the positions of one line of the prompt file, all its turns). Pure.
 */
#ifndef ASSAY_EVALS_FIGURES_H
#define ASSAY_EVALS_FIGURES_H

#include "common/stats.h"
#include "evals/measure.h"

#define FIGURES_QUANTILES 4
#define FIGURES_BINS      5
extern const double figures_quantile[FIGURES_QUANTILES]; /* 0.5, 0.9, 0.99, 0.999 */
/* Tokens of the answer from figures_bin[i] on, below figures_bin[i + 1]. */
extern const int figures_bin[FIGURES_BINS + 1];

struct figures {
    size_t n, n_not_finite, n_decided;
    struct stats_interval kl, kl_rev, js;                           /* nats a position */
    struct stats_interval agreement, agreement_decided, top_shared; /* shares */
    struct stats_interval rank;                                     /* mean, from 0 */
    struct stats_interval ppl_log_ratio;                            /* ln(var_ppl / ref_ppl) */
    struct stats_interval kl_quantile[FIGURES_QUANTILES], kl_bin[FIGURES_BINS];
    struct stats_interval ref_nll, var_nll; /* nats a position: ln of the perplexities */
    double kl_max, ref_ppl, var_ppl;
    /* Positions where the best tokens differ: the reference's was the token that stands there, the
     * variant's is, neither is. */
    size_t flips_lost, flips_gained, flips_moved;
};

/* cluster[record]: below n_clusters. decided: the margin from which on a position counts as
 * decided.
 */
MUST_USE enum err_code figures_sum(const struct position *p, size_t n, const int32_t *cluster,
                                   size_t n_clusters, float decided, struct figures *out,
                                   struct err *e);

/* KL and agreement of the positions of each role, both NaN where there are none. */
struct figures_role {
    size_t n;
    struct stats_interval kl, agreement;
};
MUST_USE enum err_code figures_by_role(const struct position *p, size_t n, const int32_t *cluster,
                                       size_t n_clusters, struct figures_role out[ROLE_OF_KINDS],
                                       struct err *e);

/* The margin that a change of path moves: the 99.9 % quantile over the positions of how far the
 * margin of the reference's best token moves, both margins together where it is another token. */
MUST_USE enum err_code figures_margin_floor(const struct position *p, size_t n, float *floor,
                                            struct err *e);

#endif
