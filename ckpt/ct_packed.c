/* ct_packed.c: rows of a matrix packed by compressed-tensors (ct_layout.h).
 *
 * As affine groups: the stored code u, scale s, and bias -(2^(bits-1) + zero) * s, which the
 * scale's type holds when it is symmetric, and f32 holds otherwise unless s needs all of its bits.
 * Codes of 7 bits become codes of 8 on the same grid. Groups beyond 128, channels and tensors
 * repeat their scale.
 */
#include <math.h>

#include "ckpt/ct_layout.h"

/* Value number i of a bit stream or of words; at most two words are touched, both inside. */
static uint32_t code_at(const uint8_t *words, int64_t stride, int64_t i, int bits, bool dense)
{
    uint32_t mask = (1u << bits) - 1u;
    if (!dense) {
        int64_t per = 32 / bits;
        return load_u32(words + i / per * stride) >> (i % per * bits) & mask;
    }
    int64_t bit = i * bits, at = bit / 32;
    int shift = (int)(bit % 32);
    uint32_t v = load_u32(words + at * stride) >> shift;
    if (shift + bits > 32)
        v |= load_u32(words + (at + 1) * stride) << (32 - shift);
    return v & mask;
}

static uint32_t weight_code(const struct ct_packed *p, int64_t row, int64_t i)
{
    return code_at(p->data + row * p->words * 4, 4, i, p->bits, p->dense);
}

/* The stored code that stands for 0: 2^(bits-1) plus the zero point. */
static int zero_code(const struct ct_packed *p, int64_t row, int64_t group)
{
    if (!p->zeros)
        return 1 << (p->bits - 1);
    /* stored: zero + 2^(bits-1), packed along the rows */
    return (int)code_at(p->zeros + group * 4, p->groups * 4, row, p->bits, p->dense);
}

static float scale_at(const struct ct_packed *p, int64_t row, int64_t group)
{
    return qformat_scale(p->scales, p->scale, p->groups ? row * p->groups + group : 0);
}

void ct_packed_decode(const struct ckpt_weight *w, int64_t row, float *out)
{
    const struct ct_packed *p = w->ct;
    int64_t k = w->dim[1];
    for (int64_t i = 0; i < k; i++) {
        int64_t g = i / p->group;
        out[i] = (float)((int)weight_code(p, row, i) - zero_code(p, row, g)) * scale_at(p, row, g);
    }
}

static bool fits(enum dtype t, double v)
{
    float f = (float)v;
    if (!isfinite(f) || (double)f != v)
        return false;
    return t == DT_F32 ||
           (t == DT_BF16 ? bf16_to_f32(bf16_from_f32(f)) : f16_to_f32(f16_from_f32(f))) == f;
}

bool ct_packed_affine_format(const struct ckpt_weight *w, struct qformat *q)
{
    const struct ct_packed *p = w->ct;
    int64_t k = w->dim[1], rows = p->groups ? w->dim[0] : 1, groups = MAX2(p->groups, 1);
    int group = p->group % 128 == 0 ? 128 : p->group % 64 == 0 ? 64 : 32;
    *q = (struct qformat){p->bits == 7 ? 8 : p->bits, group, p->scale};
    if (p->group % 32 || k % 32 || !qformat_valid(*q))
        return false;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            int zero = zero_code(p, r, g) + (p->bits == 7 ? 64 : 0);
            double bias = -(double)zero * (double)scale_at(p, r, g);
            if (!fits(q->scale, bias))
                q->scale = DT_F32;
            if (!fits(DT_F32, bias))
                return false;
        }
    }
    return true;
}

static void store_scale(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v));
}

void ct_packed_affine_rows(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                           uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    const struct ct_packed *p = w->ct;
    int64_t k = w->dim[1], groups = k / q.group;
    uint32_t up = p->bits == 7 ? 64 : 0;
    for (int64_t r = 0; r < n; r++) {
        uint8_t *out = codes + (size_t)r * qformat_row_bytes(q, k);
        uint64_t bits = 0;
        int have = 0;
        for (int64_t i = 0; i < k; i++) {
            bits |= (uint64_t)(weight_code(p, row0 + r, i) + up) << have;
            for (have += q.bits; have >= 8; have -= 8, bits >>= 8)
                *out++ = (uint8_t)bits;
        }
        for (int64_t g = 0; g < groups; g++) {
            int64_t from = g * q.group / p->group;
            float s = scale_at(p, row0 + r, from);
            float zero = (float)(zero_code(p, row0 + r, from) + (int)up);
            store_scale(scales, q.scale, r * groups + g, s);
            store_scale(biases, q.scale, r * groups + g, -zero * s);
        }
    }
}
