/* block.c: scales and codes of block floats. */
#include "quant/block.h"

#include <math.h>

#define GROUP_MAX 32

/* Magnitudes are in the order of their bits; NaN lies above infinity. */
static uint32_t largest_bits(const float *w, int n)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = f32_bits(w[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return most;
}

/* The least u with 2^(u - 127) >= x, in 0..254. */
static uint8_t e8m0_above(float x)
{
    uint32_t u = f32_bits(x), exp = u >> 23, rest = u & 0x7fffffu;
    if (exp == 0) /* 2^-127 is the subnormal 0x400000 */
        return rest > 0x400000u;
    return (uint8_t)MIN2(exp + (rest != 0), 254u);
}

static uint8_t group_scale(struct qformat q, float most)
{
    if (q.scale == DT_F8_E4M3)
        return e4m3_from_f32(most / E2M1_MAX);
    return e8m0_above(most / (q.bits == 4 ? E2M1_MAX : E4M3_MAX));
}

/* The code, or the one below where its value would be infinite (amax next to FLT_MAX). */
static uint8_t finite_code(uint8_t c, int bits, float s)
{
    while (isinf(qformat_element(bits, c) * s))
        c--;
    return c;
}

/* Codes of a group; two of four bits share a byte. */
static void put_codes(const float *w, int n, int bits, float s, uint8_t *codes)
{
    uint8_t code[GROUP_MAX];
    for (int i = 0; bits == 4 && i < n; i++)
        code[i] = (uint8_t)e2m1_from_f32(w[i] / s);
    for (int i = 0; bits == 8 && i < n; i++) {
        code[i] = e4m3_from_f32(w[i] / s);
        code[i] = code[i] == 0x80 ? 0 : code[i];
    }
    for (int i = 0; s >= 0x1p118f && i < n; i++)
        code[i] = finite_code(code[i], bits, s);
    for (int i = 0; bits == 8 && i < n; i++)
        codes[i] = code[i];
    for (int i = 0; bits == 4 && i < n; i += 2)
        codes[i / 2] = (uint8_t)(code[i] | code[i + 1] << 4);
}

static int64_t first_not_finite(const float *w, int n)
{
    int i = 0;
    while (i + 1 < n && isfinite(w[i]))
        i++;
    return i;
}

enum err_code block_encode(const struct block_run *r, int64_t *bad, struct err *e)
{
    int n = r->q.group;
    size_t bytes = (size_t)n / 8 * (size_t)r->q.bits;
    for (int64_t g = 0; g < r->n_groups; g++) {
        const float *w = r->data + g * n;
        uint8_t *codes = r->codes + (size_t)g * bytes;
        uint32_t most = largest_bits(w, n);
        if (most >= 0x7f800000u) {
            int64_t i = first_not_finite(w, n);
            *bad = g * n + i;
            return err_set(e, ERR_INPUT, "found %s, expected a finite value",
                           isnan(w[i]) ? "NaN"
                           : w[i] > 0  ? "+Inf"
                                       : "-Inf");
        }
        r->scales[g] = group_scale(r->q, f32_from_bits(most));
        float s = qformat_scale(r->scales, r->q.scale, g);
        if (s == 0)
            memset(codes, 0, bytes);
        else
            put_codes(w, n, r->q.bits, s, codes);
    }
    return ERR_OK;
}
