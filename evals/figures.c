/* figures.c: ratios of sums, quantiles and their intervals over positions. */
#include "evals/figures.h"

#include <math.h>
#include <stdlib.h>

#define LEVEL  0.95
#define ROUNDS 1000
#define SEED   20240229u

const double figures_quantile[FIGURES_QUANTILES] = {0.5, 0.9, 0.99, 0.999};
const int figures_bin[FIGURES_BINS + 1] = {0, 8, 32, 128, 512, INT32_MAX};

/* ---- ratios of sums -----------------------------------------------------------------------------
 */

struct ratio_of {
    float decided;
    int bin; /* of figures_bin */
    enum position_role role;
};

/* What a position adds: its value and its weight (0: it does not count). */
typedef void (*position_value)(const struct ratio_of *r, const struct position *p, double *value,
                               double *weight);

static void value_kl(const struct ratio_of *r, const struct position *p, double *value,
                     double *weight)
{
    (void)r;
    *value = p->kl;
    *weight = p->finite;
}

static void value_kl_rev(const struct ratio_of *r, const struct position *p, double *value,
                         double *weight)
{
    (void)r;
    *value = p->kl_rev;
    *weight = p->finite;
}

static void value_js(const struct ratio_of *r, const struct position *p, double *value,
                     double *weight)
{
    (void)r;
    *value = p->js;
    *weight = p->finite;
}

static void value_agree(const struct ratio_of *r, const struct position *p, double *value,
                        double *weight)
{
    (void)r;
    *value = p->ref_best == p->var_best;
    *weight = 1;
}

static void value_agree_decided(const struct ratio_of *r, const struct position *p, double *value,
                                double *weight)
{
    *weight = p->ref_margin > r->decided;
    *value = *weight > 0 && p->ref_best == p->var_best;
}

static void value_top(const struct ratio_of *r, const struct position *p, double *value,
                      double *weight)
{
    (void)r;
    *value = p->top_shared;
    *weight = MEASURE_TOP;
}

static void value_rank(const struct ratio_of *r, const struct position *p, double *value,
                       double *weight)
{
    (void)r;
    *value = p->rank;
    *weight = 1;
}

static void value_nll_diff(const struct ratio_of *r, const struct position *p, double *value,
                           double *weight)
{
    (void)r;
    *value = p->finite ? p->var_nll - p->ref_nll : 0;
    *weight = p->finite;
}

static void value_ref_nll(const struct ratio_of *r, const struct position *p, double *value,
                          double *weight)
{
    (void)r;
    *value = p->ref_nll;
    *weight = p->finite;
}

static void value_var_nll(const struct ratio_of *r, const struct position *p, double *value,
                          double *weight)
{
    (void)r;
    *value = p->var_nll;
    *weight = p->finite;
}

static void value_kl_bin(const struct ratio_of *r, const struct position *p, double *value,
                         double *weight)
{
    *weight = p->finite && p->index >= figures_bin[r->bin] && p->index < figures_bin[r->bin + 1];
    *value = *weight > 0 ? p->kl : 0;
}

static void value_kl_role(const struct ratio_of *r, const struct position *p, double *value,
                          double *weight)
{
    *weight = p->finite && p->role == r->role;
    *value = *weight > 0 ? p->kl : 0;
}

static void value_agree_role(const struct ratio_of *r, const struct position *p, double *value,
                             double *weight)
{
    *weight = p->role == r->role;
    *value = *weight > 0 && p->ref_best == p->var_best;
}

struct summing {
    const struct position *p;
    size_t n;
    const int32_t *cluster;
    size_t n_clusters;
    struct stats_cluster *sums;
    enum err_code rc; /* the first failure */
    struct err *e;
};

static void sum_ratio(struct summing *s, position_value f, struct ratio_of r,
                      struct stats_interval *out)
{
    if (s->rc != ERR_OK)
        return;
    memset(s->sums, 0, s->n_clusters * sizeof *s->sums);
    for (size_t i = 0; i < s->n; i++) {
        double value, weight;
        struct stats_cluster *c = &s->sums[s->cluster[s->p[i].record]];
        f(&r, &s->p[i], &value, &weight);
        c->sum += value;
        c->weight += weight;
    }
    s->rc = stats_bootstrap(s->sums, s->n_clusters, LEVEL, ROUNDS, SEED, out, s->e);
}

/* ---- counts and quantiles -----------------------------------------------------------------------
 */

static void count(const struct summing *s, float decided, struct figures *out)
{
    double ref = 0, var = 0;
    size_t n = 0;
    out->n = s->n;
    out->kl_max = NAN;
    for (size_t i = 0; i < s->n; i++) {
        const struct position *p = &s->p[i];
        out->n_decided += p->ref_margin > decided;
        out->n_not_finite += !p->finite;
        if (p->ref_best != p->var_best) {
            out->flips_lost += p->token == p->ref_best;
            out->flips_gained += p->token == p->var_best;
            out->flips_moved += p->token != p->ref_best && p->token != p->var_best;
        }
        if (!p->finite)
            continue;
        out->kl_max = n++ ? fmax(out->kl_max, p->kl) : p->kl;
        ref += p->ref_nll;
        var += p->var_nll;
    }
    out->ref_ppl = n ? exp(ref / (double)n) : NAN;
    out->var_ppl = n ? exp(var / (double)n) : NAN;
}

static enum err_code quantiles(const struct summing *s, struct figures *out, struct err *e)
{
    double *kl = malloc((s->n + 1) * sizeof *kl);
    int32_t *cluster = malloc((s->n + 1) * sizeof *cluster);
    enum err_code rc = kl && cluster ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    size_t n = 0;
    for (size_t i = 0; rc == ERR_OK && i < s->n; i++) {
        if (!s->p[i].finite)
            continue;
        kl[n] = s->p[i].kl;
        cluster[n++] = s->cluster[s->p[i].record];
    }
    if (rc == ERR_OK)
        rc = stats_bootstrap_quantiles(kl, cluster, n, s->n_clusters, figures_quantile,
                                       FIGURES_QUANTILES, LEVEL, ROUNDS, SEED, out->kl_quantile, e);
    free(kl);
    free(cluster);
    return rc;
}

enum err_code figures_sum(const struct position *p, size_t n, const int32_t *cluster,
                          size_t n_clusters, float decided, struct figures *out, struct err *e)
{
    const struct ratio_of r = {.decided = decided};
    struct summing s = {p, n, cluster, n_clusters, NULL, ERR_OK, e};
    memset(out, 0, sizeof *out);
    s.sums = calloc(n_clusters + 1, sizeof *s.sums);
    if (!s.sums)
        return err_set(e, ERR_NOMEM, "out of memory");
    count(&s, decided, out);
    sum_ratio(&s, value_kl, r, &out->kl);
    sum_ratio(&s, value_kl_rev, r, &out->kl_rev);
    sum_ratio(&s, value_js, r, &out->js);
    sum_ratio(&s, value_agree, r, &out->agreement);
    sum_ratio(&s, value_agree_decided, r, &out->agreement_decided);
    sum_ratio(&s, value_top, r, &out->top_shared);
    sum_ratio(&s, value_rank, r, &out->rank);
    sum_ratio(&s, value_nll_diff, r, &out->ppl_log_ratio);
    sum_ratio(&s, value_ref_nll, r, &out->ref_nll);
    sum_ratio(&s, value_var_nll, r, &out->var_nll);
    for (int i = 0; i < FIGURES_BINS; i++)
        sum_ratio(&s, value_kl_bin, (struct ratio_of){.bin = i}, &out->kl_bin[i]);
    enum err_code rc = s.rc == ERR_OK ? quantiles(&s, out, e) : s.rc;
    free(s.sums);
    return rc;
}

enum err_code figures_by_role(const struct position *p, size_t n, const int32_t *cluster,
                              size_t n_clusters, struct figures_role out[ROLE_OF_KINDS],
                              struct err *e)
{
    struct summing s = {p, n, cluster, n_clusters, NULL, ERR_OK, e};
    memset(out, 0, ROLE_OF_KINDS * sizeof *out);
    s.sums = calloc(n_clusters + 1, sizeof *s.sums);
    if (!s.sums)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        out[p[i].role].n++;
    for (int i = 0; i < ROLE_OF_KINDS; i++) {
        const struct ratio_of r = {.role = (enum position_role)i};
        sum_ratio(&s, value_kl_role, r, &out[i].kl);
        sum_ratio(&s, value_agree_role, r, &out[i].agreement);
    }
    free(s.sums);
    return s.rc;
}

enum err_code figures_margin_floor(const struct position *p, size_t n, float *floor, struct err *e)
{
    double *moved = malloc((n + 1) * sizeof *moved);
    if (!moved)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        double a = (double)p[i].ref_margin, b = (double)p[i].var_margin;
        moved[i] = p[i].ref_best == p[i].var_best ? fabs(a - b) : a + b;
    }
    stats_sort(moved, n);
    *floor = (float)stats_quantile(moved, n, 0.999);
    free(moved);
    return ERR_OK;
}
