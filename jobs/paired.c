/* paired.c: rounds of three and answers in pairs. */
#include "jobs/paired.h"

#include <math.h>
#include <stdlib.h>

/* ---- speed -------------------------------------------------------------------------------------
 *
 * A round gives two differences of logarithms: the null one, again - base, and the judged one,
 * now - (base + again) / 2, in which a steady drift cancels since `now` ran between the others.
 * With s the noise of a judged difference, a null one has s * sqrt(4/3). What lies further than
 * OUTLIER spreads from the middle is set aside: a disturbance only ever makes a run slower, so in
 * a null difference the slower arm is dropped, in a judged one the round. The spread s is pooled
 * over earlier runs, because 7 rounds alone tell it too poorly to find 5 % among 2 %; the factor
 * on it falls as it becomes better known. Two builds of equal speed may differ by what their layout
 * happens to be, steadily and without meaning, so nothing below LEAST is called a change.
 */
#define OUTLIER     4.0
#define FACTOR      2.7                 /* of the standard error, when s is well known */
#define FACTOR_FEW  9.0                 /* over the degrees of freedom, is added to it */
#define NULL_TO_S   0.86602540378443865 /* sqrt(3/4) */
#define MAD_TO_S    1.4826022185056018
#define Z           2.807 /* tail 0.0025: three losses are looked at, 1 % is allowed in all */
#define ANSWERS_MIN 5     /* with fewer there is no interval */
#define FLOOR       1e-4  /* of the spread: when all runs are equal */
#define LEAST       0.02

static double judged(const struct speed_round *r)
{
    return log(r->now) - (log(r->base) + log(r->base_again)) / 2;
}

static double null_of(const struct speed_round *r)
{
    return log(r->base_again) - log(r->base);
}

/* x is sorted by it. */
static double median(double *x, size_t n)
{
    stats_sort(x, n);
    return stats_quantile(x, n, 0.5);
}

/* Middles of one run's differences. */
struct middle {
    double judged, null;
};

static struct middle middle_of(const struct speed_round *r, size_t n, double *scratch)
{
    struct middle m;
    for (size_t i = 0; i < n; i++)
        scratch[i] = judged(&r[i]);
    m.judged = median(scratch, n);
    for (size_t i = 0; i < n; i++)
        scratch[i] = null_of(&r[i]);
    m.null = median(scratch, n);
    return m;
}

/* What a run says after its outliers are gone. */
struct cleaned {
    double mean;    /* of the judged differences kept */
    size_t kept;    /* of them */
    double squares; /* about the means, both kinds, at the scale of judged ones */
    double freedom;
};

static struct cleaned clean(const struct speed_round *r, size_t n, struct middle m, double limit,
                            double *scratch)
{
    struct cleaned c = {.mean = 0};
    double nulls = 0;
    size_t n_null = 0, n_judged = 0;
    for (size_t i = 0; i < n; i++) {
        double null = null_of(&r[i]), base = log(r[i].base), again = log(r[i].base_again);
        bool odd = fabs(null - m.null) * NULL_TO_S > limit;
        double d = log(r[i].now) - (odd ? MIN2(base, again) : (base + again) / 2);
        if (!odd) {
            nulls += null;
            n_null++;
        }
        if (fabs(d - m.judged) <= limit)
            scratch[n_judged++] = d;
    }
    c.kept = n_judged;
    c.mean = stats_mean(scratch, n_judged);
    for (size_t i = 0; i < n_judged; i++)
        c.squares += (scratch[i] - c.mean) * (scratch[i] - c.mean);
    for (size_t i = 0; n_null && i < n; i++) {
        double off = (null_of(&r[i]) - nulls / (double)n_null) * NULL_TO_S;
        if (fabs(null_of(&r[i]) - m.null) * NULL_TO_S <= limit)
            c.squares += off * off;
    }
    c.freedom = (n_judged ? (double)n_judged - 1 : 0) + (n_null ? (double)n_null - 1 : 0);
    return c;
}

enum err_code paired_speed(const struct speed_round *rounds, const size_t *n, size_t n_runs,
                           struct paired_speed *out, struct err *e)
{
    size_t all = 0, at = 0;
    for (size_t i = 0; i < n_runs; i++)
        all += n[i];
    double *scratch = calloc(3 * all + 1, sizeof *scratch);
    struct middle *m = calloc(n_runs + 1, sizeof *m);
    if (!scratch || !m) {
        free(scratch);
        free(m);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    double *off = scratch + all;
    size_t n_off = 0;
    for (size_t i = 0; i < n_runs; at += n[i++]) {
        m[i] = middle_of(rounds + at, n[i], scratch);
        for (size_t k = 0; k < n[i]; k++) {
            off[n_off++] = fabs(judged(&rounds[at + k]) - m[i].judged);
            off[n_off++] = fabs(null_of(&rounds[at + k]) - m[i].null) * NULL_TO_S;
        }
    }
    double limit = OUTLIER * MAX2(MAD_TO_S * median(off, n_off), FLOOR);
    double squares = 0, freedom = 0;
    struct cleaned own = {.mean = NAN};
    at = 0;
    for (size_t i = 0; i < n_runs; at += n[i++]) {
        struct cleaned c = clean(rounds + at, n[i], m[i], limit, scratch);
        squares += c.squares;
        freedom += c.freedom;
        if (i == 0)
            own = c;
    }
    free(scratch);
    free(m);
    double s = freedom > 0 ? MAX2(sqrt(squares / freedom), FLOOR) : (double)INFINITY;
    *out = (struct paired_speed){.change = own.mean,
                                 .spread = (FACTOR + FACTOR_FEW / freedom) * s /
                                           sqrt((double)MAX2(own.kept, 1)),
                                 .kept = own.kept};
    return ERR_OK;
}

/* ---- quality -----------------------------------------------------------------------------------
 */

static double loss(const struct answer_loss *a, enum paired_loss what)
{
    switch (what) {
    case PAIRED_KL:
        return a->kl;
    case PAIRED_DISAGREE:
        return a->positions - a->agree;
    default:
        return a->nll_diff;
    }
}

static bool same_question(const struct answer_loss *a, const struct answer_loss *b)
{
    return strcmp(a->id, b->id) == 0 && strcmp(a->text, b->text) == 0;
}

static const struct answer_loss *find(const struct quality *q, const struct answer_loss *a,
                                      size_t hint)
{
    if (hint < q->n && same_question(&q->answers[hint], a))
        return &q->answers[hint];
    for (size_t i = 0; i < q->n; i++)
        if (same_question(&q->answers[i], a))
            return &q->answers[i];
    return NULL;
}

/* Quantile of Student's t whose upper tail is that of Z: Fisher's expansion, within 2 % from 4
 * degrees of freedom on. */
static double t_quantile(double freedom)
{
    double z = Z, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * freedom) + (5 * z5 + 16 * z3 + 3 * z) / (96 * freedom * freedom) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * freedom * freedom * freedom);
}

/* The ratio of sums with its t interval over clusters: positions of one answer are not independent,
 * answers are. (A bootstrap of ten answers is too narrow: it erred three times as often.) */
static struct stats_interval mean_of(const struct stats_cluster *c, size_t n)
{
    double sum = 0, weight = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += c[i].sum;
        weight += c[i].weight;
    }
    struct stats_interval v = {sum / weight, (double)NAN, (double)NAN};
    if (n < ANSWERS_MIN)
        return v;
    for (size_t i = 0; i < n; i++) {
        double off = c[i].sum - v.value * c[i].weight;
        squares += off * off;
    }
    double half = t_quantile((double)n - 1) * sqrt(squares * (double)n / (double)(n - 1)) / weight;
    v.lo = v.value - half;
    v.hi = v.value + half;
    return v;
}

/* Where the reference itself answers otherwise than it did, other text was forced, and losses over
 * other text say nothing about a change: such answers are left out (the tokens gate shows them). */
enum err_code paired_quality(const struct quality *base, const struct quality *now,
                             enum paired_loss what, struct stats_interval *out, size_t *n,
                             struct err *e)
{
    struct stats_cluster *c = calloc(now->n + 1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory");
    *n = 0;
    for (size_t i = 0; i < now->n; i++) {
        const struct answer_loss *a = &now->answers[i], *b = find(base, a, i);
        if (!b || a->positions <= 0 || b->positions <= 0)
            continue;
        c[*n].weight = a->positions;
        /* In this order equal answers differ by exactly 0. */
        c[(*n)++].sum =
            (loss(a, what) / a->positions - loss(b, what) / b->positions) * a->positions;
    }
    *out = mean_of(c, *n);
    free(c);
    return ERR_OK;
}
