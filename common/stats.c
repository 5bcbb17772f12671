/* stats.c: sums, quantiles, intervals, histograms. */
#include "common/stats.h"

#include <math.h>
#include <stdlib.h>

#include "common/io_private.h"
#include "common/rng.h"

#define ROUNDS_MAX 1000000

double stats_sum(const double *x, size_t n)
{
    double sum = 0, lost = 0;
    for (size_t i = 0; i < n; i++) {
        double next = sum + x[i];
        lost += fabs(sum) >= fabs(x[i]) ? (sum - next) + x[i] : (x[i] - next) + sum;
        sum = next;
    }
    /* After an infinity the correction is NaN and the sum is the answer. */
    return isfinite(sum) ? sum + lost : sum;
}

double stats_mean(const double *x, size_t n)
{
    return n ? stats_sum(x, n) / (double)n : (double)NAN;
}

double stats_stdev(const double *x, size_t n)
{
    if (n < 2)
        return (double)NAN;
    double mean = stats_mean(x, n), squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return sqrt(squares / (double)(n - 1));
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    if (isnan(x) || isnan(y))
        return (isnan(x) != 0) - (isnan(y) != 0);
    /* Zeros by sign, so that equal inputs in another order give equal bytes. */
    if (x == 0 && y == 0)
        return (signbit(x) == 0) - (signbit(y) == 0);
    return (x > y) - (x < y);
}

void stats_sort(double *x, size_t n)
{
    if (n)
        qsort(x, n, sizeof *x, ascending);
}

double stats_quantile(const double *sorted, size_t n, double q)
{
    if (n == 0 || !(q >= 0 && q <= 1))
        return (double)NAN;
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n)
        return sorted[n - 1];
    double part = at - (double)i;
    return part == 0 ? sorted[i] : sorted[i] + part * (sorted[i + 1] - sorted[i]);
}

struct stats_interval stats_wilson(uint64_t k, uint64_t n, double z)
{
    if (n == 0)
        return (struct stats_interval){(double)NAN, (double)NAN, (double)NAN};
    double total = (double)n, p = (double)k / total, zz = z * z / total;
    double middle = (p + zz / 2) / (1 + zz);
    double half = z * sqrt(p * (1 - p) / total + zz / (4 * total)) / (1 + zz);
    /* The ends are exact at 0 and n of n, where the formula leaves a rounding error. */
    return (struct stats_interval){p, k == 0 ? 0 : MAX2(middle - half, 0),
                                   k == n ? 1 : MIN2(middle + half, 1)};
}

static double ratio(double sum, double weight)
{
    return weight > 0 ? sum / weight : (double)NAN;
}

enum err_code stats_bootstrap(const struct stats_cluster *c, size_t n, double level, int rounds,
                              uint64_t seed, struct stats_interval *out, struct err *e)
{
    if (rounds < 1 || rounds > ROUNDS_MAX || !(level > 0 && level < 1))
        return err_set(e, ERR_INTERNAL, "bootstrap of %d rounds at level %g", rounds, level);
    double sum = 0, weight = 0;
    for (size_t i = 0; i < n; i++) {
        sum += c[i].sum;
        weight += c[i].weight;
    }
    *out = (struct stats_interval){ratio(sum, weight), (double)NAN, (double)NAN};
    if (n < 2)
        return ERR_OK;
    double *found = io_alloc((size_t)rounds * sizeof *found);
    if (!found)
        return io_nomem((size_t)rounds * sizeof *found, e);
    struct rng rng = {.seed = seed};
    size_t kept = 0;
    for (int round = 0; round < rounds; round++) {
        double s = 0, w = 0;
        for (size_t i = 0; i < n; i++) {
            const struct stats_cluster *drawn = &c[rng_below(&rng, n)];
            s += drawn->sum;
            w += drawn->weight;
        }
        /* Only clusters without weight were drawn: the ratio does not exist. */
        if (w > 0)
            found[kept++] = s / w;
    }
    stats_sort(found, kept);
    out->lo = stats_quantile(found, kept, (1 - level) / 2);
    out->hi = stats_quantile(found, kept, (1 + level) / 2);
    free(found);
    return ERR_OK;
}

size_t stats_histogram(const double *x, size_t n, double lo, double hi, uint64_t *counts,
                       size_t n_bins)
{
    size_t counted = 0;
    memset(counts, 0, n_bins * sizeof *counts);
    if (n_bins == 0 || !(hi > lo))
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] >= lo && x[i] <= hi))
            continue;
        size_t bin = (size_t)((x[i] - lo) / (hi - lo) * (double)n_bins);
        counts[MIN2(bin, n_bins - 1)]++;
        counted++;
    }
    return counted;
}
