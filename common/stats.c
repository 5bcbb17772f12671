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

/* What percentiles of resamplings lack in width: sums of n clusters vary by (n - 1) / n too little,
 * and their spread is itself an estimate, as in Student's t (two terms of its expansion at 1.96). n
 * is the number of equal clusters that would do: unequal ones count for less. */
static double widening(const struct stats_cluster *c, size_t n)
{
    const double zz = 3.8415;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += c[i].weight;
        squares += c[i].weight * c[i].weight;
    }
    double spare = MAX2(squares > 0 ? sum * sum / squares - 1 : 1, 1);
    double student =
        1 + (zz + 1) / (4 * spare) + (5 * zz * zz + 16 * zz + 3) / (96 * spare * spare);
    return sqrt((spare + 1) / spare) * student;
}

/* Widens [lo, hi] about the value, but not beyond what single clusters have. */
static void widen(const struct stats_cluster *c, size_t n, struct stats_interval *out)
{
    double by = widening(c, n), least = (double)INFINITY, most = -(double)INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!(c[i].weight > 0))
            continue;
        least = MIN2(least, c[i].sum / c[i].weight);
        most = MAX2(most, c[i].sum / c[i].weight);
    }
    out->lo = MIN2(MAX2(out->value - (out->value - out->lo) * by, least), out->lo);
    out->hi = MAX2(MIN2(out->value + (out->hi - out->value) * by, most), out->hi);
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
    if (kept)
        widen(c, n, out);
    free(found);
    return ERR_OK;
}

/* ---- quantiles of clustered values -------------------------------------------------------------
 */

struct clustered {
    double x;
    int32_t cluster;
};

static int by_value(const void *a, const void *b)
{
    const struct clustered *x = a, *y = b;
    int order = ascending(&x->x, &y->x);
    return order ? order : (x->cluster > y->cluster) - (x->cluster < y->cluster);
}

/* The quantiles of the sorted values, each taken as often as its cluster was drawn. */
static void drawn_quantiles(const struct clustered *s, size_t n, const uint32_t *times,
                            const double *q, size_t n_q, double *out)
{
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += times[s[i].cluster];
    for (size_t j = 0; j < n_q; j++) {
        double at = q[j] * (total - 1), seen = 0, low = (double)NAN;
        out[j] = (double)NAN;
        for (size_t i = 0; i < n && total > 0; i++) {
            if (!times[s[i].cluster])
                continue;
            double whole = floor(at), part = at - whole, next = seen + times[s[i].cluster];
            if (isnan(low) && whole < next)
                low = s[i].x;
            if (!isnan(low) && (part == 0 || whole + 1 < next)) {
                out[j] = part == 0 ? low : low + part * (s[i].x - low);
                break;
            }
            seen = next;
        }
    }
}

enum err_code stats_bootstrap_quantiles(const double *x, const int32_t *cluster, size_t n,
                                        size_t n_clusters, const double *q, size_t n_q,
                                        double level, int rounds, uint64_t seed,
                                        struct stats_interval *out, struct err *e)
{
    if (rounds < 1 || rounds > ROUNDS_MAX || !(level > 0 && level < 1))
        return err_set(e, ERR_INTERNAL, "bootstrap of %d rounds at level %g", rounds, level);
    size_t all = n_q * (size_t)(rounds + 1);
    struct clustered *s = io_alloc((n + 1) * sizeof *s);
    uint32_t *times = io_alloc((n_clusters + 1) * sizeof *times);
    double *found = io_alloc((all + 1) * sizeof *found);
    struct rng rng = {.seed = seed};
    enum err_code rc = s && times && found ? ERR_OK : io_nomem(all * sizeof *found, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++)
        s[i] = (struct clustered){x[i], cluster[i]};
    if (rc == ERR_OK && n)
        qsort(s, n, sizeof *s, by_value);
    for (int round = 0; rc == ERR_OK && round <= rounds; round++) {
        for (size_t i = 0; i < n_clusters; i++)
            times[i] = round == rounds; /* the last one is the data itself */
        for (size_t i = 0; i < n_clusters && round < rounds; i++)
            times[rng_below(&rng, n_clusters)]++;
        drawn_quantiles(s, n, times, q, n_q, found + (size_t)round * n_q);
    }
    for (size_t j = 0; rc == ERR_OK && j < n_q; j++) {
        double *column = io_alloc(((size_t)rounds + 1) * sizeof *column);
        if (!column) {
            rc = io_nomem((size_t)rounds * sizeof *column, e);
            break;
        }
        size_t kept = 0;
        for (int round = 0; round < rounds; round++)
            if (!isnan(found[(size_t)round * n_q + j]))
                column[kept++] = found[(size_t)round * n_q + j];
        stats_sort(column, kept);
        bool few = n_clusters < 2;
        out[j].value = found[(size_t)rounds * n_q + j];
        out[j].lo = few ? (double)NAN : stats_quantile(column, kept, (1 - level) / 2);
        out[j].hi = few ? (double)NAN : stats_quantile(column, kept, (1 + level) / 2);
        free(column);
    }
    free(s);
    free(times);
    free(found);
    return rc;
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
