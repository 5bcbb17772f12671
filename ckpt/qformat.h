/* qformat.h: the packed formats, once, for C and CUDA.
 *
 * Affine (MLX layout): groups of `group` consecutive elements along a row share a scale and a bias;
 * element i of a row is the unsigned code in bits [i*bits, (i+1)*bits) of the row's little-endian
 * bit stream. K is a multiple of 32, so a row is a whole number of 32-bit words. A weight's value
 * is rule 1 of docs/numerics.md:
 *     exact f32 form  fmaf(q, s, b)
 *     bf16 form       scales in bf16: one rounding of the exact q*s + b; in f16 or f32:
 *                     RN_bf16(fmaf(q, s, b))
 */
#ifndef ASSAY_CKPT_QFORMAT_H
#define ASSAY_CKPT_QFORMAT_H

#include <math.h>

#include "ckpt/dtype.h"

struct qformat {
    int bits;         /* 2, 3, 4, 5, 6, 8 */
    int group;        /* 32, 64, 128 */
    enum dtype scale; /* DT_BF16, DT_F16 or DT_F32; biases have the same type */
};

static inline bool qformat_valid(struct qformat q)
{
    bool bits = q.bits >= 2 && q.bits <= 8 && q.bits != 7;
    bool group = q.group == 32 || q.group == 64 || q.group == 128;
    return bits && group && (q.scale == DT_BF16 || q.scale == DT_F16 || q.scale == DT_F32);
}

/* Bytes of one packed row of k elements; k % 32 == 0. */
static inline size_t qformat_row_bytes(struct qformat q, int64_t k)
{
    return (size_t)k / 8 * (size_t)q.bits;
}

/* Code of element i of a packed row. Reads at most two bytes, both inside the row. */
DTYPE_FN uint32_t qformat_code(const uint8_t *row, int bits, int64_t i)
{
    int64_t bit = i * bits;
    uint32_t v = row[bit >> 3];
    if ((int)(bit & 7) + bits > 8)
        v |= (uint32_t)row[(bit >> 3) + 1] << 8;
    return v >> (bit & 7) & ((1u << bits) - 1u);
}

/* Scale or bias number i of a row of them; p may be unaligned. */
DTYPE_FN float qformat_scale(const uint8_t *p, enum dtype t, int64_t i)
{
    if (t == DT_F32) {
        float f;
        memcpy(&f, p + 4 * i, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* RN_bf16 of the exact q*s + b with s and b in bf16 and 0 <= q < 256: q*s has at most 16
 * significant bits, so it is exact in f32; the sum is taken with a sticky bit (round to odd) and
 * then rounded once. */
uint16_t qformat_bf16_exact(uint32_t q, float s, float b);

/* Rule 1 for any scale type, as bf16 bits. */
uint16_t qformat_bf16(uint32_t q, float s, float b, enum dtype scale);

#endif
