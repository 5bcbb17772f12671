/* paired.h: the statistics behind the verdicts on speed and quality. Pure.
 *
 * Both ask one question: is a difference between the accepted state and this one larger than what
 * chance makes of no difference? The rules and how often they err are in docs/sweep.md; the test
 * test_paired.c holds them to it on constructed histories.
 */
#ifndef ASSAY_JOBS_PAIRED_H
#define ASSAY_JOBS_PAIRED_H

#include "jobs/evidence.h"

/* The change of a run's time, as the logarithm of the ratio. */
struct paired_speed {
    double change; /* > 0: slower */
    double spread; /* of the null arm, scaled to the change: inside of it nothing can be said */
    size_t kept;   /* rounds that were not set aside as outliers */
};

/* The newest history first: rounds[0 .. n[0]) are this run's, then n[1] of the run before, ...;
 * earlier runs tell how noisy the cell is, nothing else. n[0] >= 3. Needs memory. */
MUST_USE enum err_code paired_speed(const struct speed_round *rounds, const size_t *n,
                                    size_t n_runs, struct paired_speed *out, struct err *e);

enum paired_loss { PAIRED_KL, PAIRED_DISAGREE, PAIRED_NLL };

/* Mean loss a position now minus then, over the answers in which the same text was forced; *n is
 * how many those are. The interval is clustered by answer; its lower end lies above 0 in less than
 * 1 of 300 comparisons without a change. With few answers its ends are NaN. Needs memory. */
MUST_USE enum err_code paired_quality(const struct quality *base, const struct quality *now,
                                      enum paired_loss what, struct stats_interval *out, size_t *n,
                                      struct err *e);

#endif
