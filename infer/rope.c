/* rope.c: frequencies of each rope kind, and elementary functions with fixed bits.
 *
 * Series are summed by Horner's rule from the smallest term; the reduced arguments are at most
 * pi/4 (sine, cosine), ln(2)/2 (exp2) and 0.172 (log2), so the first term left out is below 2^-60.
 */
#include "infer/rope.h"

#include <math.h>

#define LN2    0x1.62e42fefa39efp-1
#define LOG2E  0x1.71547652b82fep+0
#define TWO_PI 0x1.921fb54442d18p+2

/* pi/2 in three pieces of at most 28 bits and a rest: n * piece is exact for n < 2^25. */
#define PIO2_1 0x1.921fb54p+0
#define PIO2_2 0x1.10b461p-30
#define PIO2_3 0x1.a62633p-58
#define PIO2_4 0x1.45c06e0e68948p-86

double rope_log2(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int exp = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exp++;
    }
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int k = 25; k >= 1; k -= 2)
        sum = sum * t2 + 1.0 / k;
    return exp + 2 * t * sum * LOG2E;
}

double rope_exp2(double x)
{
    double n = floor(x + 0.5), r = (x - n) * LN2, sum = 1;
    for (int k = 18; k >= 1; k--)
        sum = 1 + sum * r / k;
    uint64_t u = (uint64_t)(1023 + (int64_t)n) << 52;
    double p;
    memcpy(&p, &u, sizeof p);
    return sum * p;
}

void rope_sincos(double x, double *sine, double *cosine)
{
    double n = floor(x * (2 / 0x1.921fb54442d18p+1) + 0.5);
    double r = x - n * PIO2_1;
    r -= n * PIO2_2;
    r -= n * PIO2_3;
    r -= n * PIO2_4;
    double r2 = r * r, s = 1, c = 1;
    for (int k = 20; k >= 2; k -= 2) {
        s = 1 - s * r2 / (k * (k + 1));
        c = 1 - c * r2 / (k * (k - 1));
    }
    s *= r;
    switch ((int64_t)n & 3) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}

int rope_dims(const struct rope_params *p, int head_dim)
{
    return p->partial_dims > 0 ? p->partial_dims : head_dim;
}

/* Long wavelengths are divided by the factor, short ones stay, between them a linear blend. */
static double scale_llama3(const struct rope_params *p, double f)
{
    double wave = TWO_PI / f;
    if (wave < p->original_ctx / p->high_freq_factor)
        return f;
    if (wave > p->original_ctx / p->low_freq_factor)
        return f / p->factor;
    double t =
        (p->original_ctx / wave - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1 - t) * f / p->factor + t * f;
}

/* The pair whose wavelength makes `turns` turns in the original context. */
static double yarn_pair(const struct rope_params *p, int n_dims, double turns)
{
    return n_dims * rope_log2(p->original_ctx / (TWO_PI * turns)) / (2 * rope_log2(p->theta));
}

struct yarn_ramp {
    double lo, hi;
};

static struct yarn_ramp yarn_bounds(const struct rope_params *p, int n_dims)
{
    struct yarn_ramp r = {yarn_pair(p, n_dims, p->beta_fast > 0 ? p->beta_fast : 32),
                          yarn_pair(p, n_dims, p->beta_slow > 0 ? p->beta_slow : 1)};
    if (p->truncate) {
        r.lo = floor(r.lo);
        r.hi = ceil(r.hi);
    }
    r.lo = MAX2(r.lo, 0);
    r.hi = MIN2(r.hi, n_dims - 1);
    if (r.lo == r.hi)
        r.hi += 0.001;
    return r;
}

static double scale_yarn(const struct rope_params *p, struct yarn_ramp r, int i, double f)
{
    double t = (i - r.lo) / (r.hi - r.lo);
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return f / p->factor * t + f * (1 - t);
}

static enum err_code check_params(const struct rope_params *p, int head_dim, struct err *e)
{
    int n_dims = rope_dims(p, head_dim);
    if (n_dims < 2 || n_dims % 2 || n_dims > head_dim || n_dims > ROPE_DIMS_MAX)
        return err_set(e, ERR_INPUT,
                       "rope: %d rotated dims of a head of %d; expected an even "
                       "number, at most %d",
                       n_dims, head_dim, ROPE_DIMS_MAX);
    if (!(p->theta > 1 && p->theta < 1e30))
        return err_set(e, ERR_INPUT, "rope: theta is %g, expected a number above 1", p->theta);
    bool scaled = p->kind == ROPE_LINEAR || p->kind == ROPE_LLAMA3 || p->kind == ROPE_YARN ||
                  p->kind == ROPE_PROPORTIONAL;
    if (scaled && !(p->factor > 0 && p->factor < 1e30))
        return err_set(e, ERR_INPUT, "rope: factor is %g, expected a positive number", p->factor);
    if ((p->kind == ROPE_LLAMA3 || p->kind == ROPE_YARN) && !(p->original_ctx >= 1))
        return err_set(e, ERR_INPUT, "rope: original context is %g, expected at least 1",
                       p->original_ctx);
    if (p->kind == ROPE_LLAMA3 &&
        !(p->low_freq_factor > 0 && p->high_freq_factor > p->low_freq_factor))
        return err_set(e, ERR_INPUT,
                       "rope: low and high frequency factors are %g and %g, expected "
                       "0 < low < high",
                       p->low_freq_factor, p->high_freq_factor);
    if (p->kind == ROPE_FACTORS && (!p->factors || n_dims != head_dim))
        return err_set(e, ERR_INPUT, "rope: frequency factors need %d values for all %d dims",
                       head_dim / 2, head_dim);
    return ERR_OK;
}

enum err_code rope_freqs(const struct rope_params *p, int head_dim, float *freq, float *scale,
                         struct err *e)
{
    enum err_code rc = check_params(p, head_dim, e);
    if (rc != ERR_OK)
        return rc;
    int n_dims = rope_dims(p, head_dim);
    double log_theta = rope_log2(p->theta);
    struct yarn_ramp ramp = {0, 0};
    *scale = 1;
    if (p->kind == ROPE_YARN) {
        ramp = yarn_bounds(p, n_dims);
        double m = p->factor > 1 ? 0.1 * rope_log2(p->factor) * LN2 + 1 : 1;
        *scale = (float)(p->attention_factor > 0 ? p->attention_factor : m);
    }
    for (int i = 0; i < n_dims / 2; i++) {
        double f = rope_exp2(-2.0 * i / n_dims * log_theta);
        if (p->kind == ROPE_LINEAR)
            f /= p->factor;
        else if (p->kind == ROPE_LLAMA3)
            f = scale_llama3(p, f);
        else if (p->kind == ROPE_YARN)
            f = scale_yarn(p, ramp, i, f);
        else if (p->kind == ROPE_FACTORS)
            f /= (double)p->factors[i];
        else if (p->kind == ROPE_PROPORTIONAL)
            f = i < p->turning_pairs ? f / p->factor : 0;
        freq[i] = (float)f;
        if (!(freq[i] >= 0 && freq[i] <= 1))
            return err_set(e, ERR_INPUT, "rope: frequency of pair %d is %g, expected 0..1", i, f);
    }
    return ERR_OK;
}

void rope_fill(const float *freq, float scale, int n_dims, int64_t n_pos, float *out)
{
    int half = n_dims / 2;
    for (int64_t pos = 0; pos < n_pos; pos++) {
        float *row = out + pos * n_dims;
        for (int i = 0; i < half; i++) {
            double s, c;
            rope_sincos((double)((float)pos * freq[i]), &s, &c);
            row[i] = (float)c * scale;
            row[half + i] = (float)s * scale;
        }
    }
}
