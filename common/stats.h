/* stats.h: plain statistics with stated rules and repeatable bytes.
 *
 * Sums run in index order, random draws come from a seed, and no function of the maths library
 * but sqrt and floor is called: the same input gives the same bits everywhere. A figure that does
 * not exist (mean of nothing, interval of one cluster) is NaN, which writers show as "n/a" or null.
 */
#ifndef ASSAY_COMMON_STATS_H
#define ASSAY_COMMON_STATS_H

#include "common/err.h"

struct stats_interval {
    double value, lo, hi;
};

double stats_sum(const double *x, size_t n); /* with Neumaier's correction */
double stats_mean(const double *x, size_t n);
double stats_stdev(const double *x, size_t n); /* of a sample: over n - 1 */

void stats_sort(double *x, size_t n); /* ascending, NaN last */
/* q in [0, 1] of ascending x: linear between the neighbours of (n - 1) q. */
double stats_quantile(const double *sorted, size_t n, double q);

/* Share k of n with Wilson's score interval; z = 1.96 for 95 %. */
struct stats_interval stats_wilson(uint64_t k, uint64_t n, double z);

/* One group of dependent observations, such as the positions of one prompt: their sum and how many
 * they are (or any weight >= 0). */
struct stats_cluster {
    double sum, weight;
};

/* The ratio of sums, with the percentile interval of `rounds` resamplings of whole clusters,
 * widened for the number of clusters (as for 95 %) within the ratios of single ones: it holds the
 * truth as often as it says down to some dozens of unequal clusters. Paired comparisons give
 * differences as sums. Needs memory for the rounds. */
MUST_USE enum err_code stats_bootstrap(const struct stats_cluster *c, size_t n, double level,
                                       int rounds, uint64_t seed, struct stats_interval *out,
                                       struct err *e);

/* Quantiles of n values that come in clusters, each with the interval of `rounds` resamplings of
 * whole clusters. cluster[i] < n_clusters; a value counts as often as its cluster is drawn. */
MUST_USE enum err_code stats_bootstrap_quantiles(const double *x, const int32_t *cluster, size_t n,
                                                 size_t n_clusters, const double *q, size_t n_q,
                                                 double level, int rounds, uint64_t seed,
                                                 struct stats_interval *out, struct err *e);

/* Counts of values in n_bins equal bins of [lo, hi]; hi belongs to the last bin. Values outside and
 * NaN are not counted; returns how many were. */
size_t stats_histogram(const double *x, size_t n, double lo, double hi, uint64_t *counts,
                       size_t n_bins);

#endif
