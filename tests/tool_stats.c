/* tool_stats.c: the statistics of evals over numbers from a file, for tests/reference.
 *
 * tool_stats rows FILE N: pairs of rows of N little-endian f32, each pair measured with token 0, a
 * line of JSON for each.
 * tool_stats clusters FILE: pairs (f64 value, f64 cluster): the mean's and the quantiles'
 * intervals.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/str.h"
#include "evals/figures.h"

static int rows(const struct strbuf *b, int64_t n)
{
    size_t pair = 2 * (size_t)n * sizeof(float);
    float *x = malloc(pair);
    double *scratch = malloc(2 * (size_t)n * sizeof *scratch);
    for (size_t at = 0; x && scratch && at + pair <= b->len; at += pair) {
        struct position p = {.record = 0};
        memcpy(x, b->data + at, pair);
        measure_position(x, x + n, n, 0, scratch, &p);
        printf("{\"kl\":%.17g,\"kl_rev\":%.17g,\"js\":%.17g,\"ref_nll\":%.17g,\"var_nll\":%.17g,"
               "\"rank\":%d,\"top\":%d,\"ref_margin\":%.9g,\"var_margin\":%.9g}\n",
               p.kl, p.kl_rev, p.js, p.ref_nll, p.var_nll, p.rank, p.top_shared,
               (double)p.ref_margin, (double)p.var_margin);
    }
    free(x);
    free(scratch);
    return 0;
}

static int clusters(const struct strbuf *b)
{
    size_t n = b->len / 16, n_clusters = 0;
    double *x = malloc((n + 1) * sizeof *x);
    int32_t *c = malloc((n + 1) * sizeof *c);
    struct stats_interval q[FIGURES_QUANTILES], mean;
    for (size_t i = 0; x && c && i < n; i++) {
        double number;
        memcpy(&x[i], b->data + 16 * i, 8);
        memcpy(&number, b->data + 16 * i + 8, 8);
        c[i] = (int32_t)number;
        n_clusters = MAX2(n_clusters, (size_t)c[i] + 1);
    }
    struct stats_cluster *sums = calloc(n_clusters + 1, sizeof *sums);
    for (size_t i = 0; x && c && sums && i < n; i++) {
        sums[c[i]].sum += x[i];
        sums[c[i]].weight++;
    }
    if (!x || !c || !sums || stats_bootstrap(sums, n_clusters, 0.95, 1000, 1, &mean, NULL) ||
        stats_bootstrap_quantiles(x, c, n, n_clusters, figures_quantile, FIGURES_QUANTILES, 0.95,
                                  1000, 1, q, NULL))
        return 5;
    printf("{\"mean\":[%.17g,%.17g,%.17g]", mean.value, mean.lo, mean.hi);
    for (int i = 0; i < FIGURES_QUANTILES; i++)
        printf(",\"q%d\":[%.17g,%.17g,%.17g]", i, q[i].value, q[i].lo, q[i].hi);
    printf("}\n");
    free(x);
    free(c);
    free(sums);
    return 0;
}

int main(int argc, char **argv)
{
    struct strbuf b = {0};
    struct err e = {.text = ""};
    int64_t n;
    if (argc < 3 || io_read_all(argv[2], (size_t)1 << 30, &b, &e) != ERR_OK) {
        fprintf(stderr, "usage: tool_stats rows FILE N | clusters FILE: %s\n", e.text);
        return 2;
    }
    int rc = 2;
    if (strcmp(argv[1], "rows") == 0 && argc == 4 && str_to_i64(argv[3], 2, 1 << 24, &n))
        rc = rows(&b, n);
    else if (strcmp(argv[1], "clusters") == 0)
        rc = clusters(&b);
    strbuf_free(&b);
    return rc;
}
