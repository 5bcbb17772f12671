/* errstat.c: sums of errors, and the figures made from them. */
#include "quant/errstat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define RUN_ELEMS ((int64_t)1 << 18)

void errstat_add(struct errstat *st, const float *w, const float *d, int64_t n, int group)
{
    for (int64_t g0 = 0; g0 < n; g0 += group) {
        float ww[ERRSTAT_LANES] = {0}, we[ERRSTAT_LANES] = {0}, ee[ERRSTAT_LANES] = {0};
        int64_t end = MIN2(n, g0 + group);
        for (int64_t i = g0; i < end; i++) {
            int l = (int)((i - g0) % ERRSTAT_LANES);
            float e = w[i] - d[i];
            ww[l] = fmaf(w[i], w[i], ww[l]);
            we[l] = fmaf(w[i], e, we[l]);
            ee[l] = fmaf(e, e, ee[l]);
            st->e_max[l] = fabsf(e) > st->e_max[l] ? fabsf(e) : st->e_max[l];
        }
        for (int l = 0; l < ERRSTAT_LANES; l++) {
            st->ww[l] += (double)ww[l];
            st->we[l] += (double)we[l];
            st->ee[l] += (double)ee[l];
        }
    }
}

void errstat_merge(struct errstat *into, const struct errstat *from)
{
    for (int l = 0; l < ERRSTAT_LANES; l++) {
        into->ww[l] += from->ww[l];
        into->we[l] += from->we[l];
        into->ee[l] += from->ee[l];
        into->e_max[l] = MAX2(into->e_max[l], from->e_max[l]);
    }
}

int64_t errstat_run_rows(int64_t rows, int64_t k)
{
    int64_t n = k > 0 ? RUN_ELEMS / k : rows;
    return MAX2(1, MIN2(rows, n));
}

/* ln x = 2 atanh((m - 1) / (m + 1)) + e ln 2 with m in [sqrt 1/2, sqrt 2): the series' argument is
 * below 0.172, so 12 terms leave less than 1e-18. */
double errstat_log10(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    double z = (m - 1.0) / (m + 1.0), z2 = z * z, sum = 0.0;
    for (int i = 23; i >= 1; i -= 2)
        sum = sum * z2 + 1.0 / (double)i;
    double ln = 2.0 * z * sum + (double)e * 0.69314718055994531;
    return ln * 0.43429448190325183;
}

double errstat_round6(double x)
{
    char text[40];
    if (!isfinite(x))
        return x;
    snprintf(text, sizeof text, "%.6g", x);
    return strtod(text, NULL);
}

static double fold(const double lanes[ERRSTAT_LANES])
{
    double sum = 0.0;
    for (int l = 0; l < ERRSTAT_LANES; l++)
        sum += lanes[l];
    return sum;
}

void errstat_figures(const struct errstat *st, struct errstat_figures *f)
{
    double ww = fold(st->ww), we = fold(st->we), ee = fold(st->ee);
    float e_max = 0.0f;
    for (int l = 0; l < ERRSTAT_LANES; l++)
        e_max = MAX2(e_max, st->e_max[l]);
    double dd = ww - 2.0 * we + ee;
    f->max = errstat_round6((double)e_max);
    if (ee == 0.0) {
        f->rel_rms = 0.0;
        f->sqnr_db = INFINITY;
        f->cosine = 1.0;
        return;
    }
    f->rel_rms = errstat_round6(sqrt(ee / ww));
    f->sqnr_db = ww > 0.0 ? errstat_round6(10.0 * errstat_log10(ww / ee)) : -INFINITY;
    f->cosine = ww > 0.0 && dd > 0.0 ? errstat_round6((ww - we) / sqrt(ww * dd)) : 0.0;
}
