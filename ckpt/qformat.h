/* qformat.h: the packed formats, once, for C and CUDA.
 *
 * Affine (MLX layout): groups of `group` consecutive elements along a row share a scale and a bias;
 * element i of a row is the unsigned code in bits [i*bits, (i+1)*bits) of the row's little-endian
 * bit stream. K is a multiple of 32, so a row is a whole number of 32-bit words. A weight's value
 * is rule 1 of docs/numerics.md:
 *     exact f32 form  fmaf(q, s, b)
 *     bf16 form       scales in bf16: one rounding of the exact q*s + b; in f16 or f32:
 *                     RN_bf16(fmaf(q, s, b))
 *
 * Block floats (the same bit stream): codes are small floats, a group has a scale of 8 bits and no
 * bias. The type of the scale and the bits name the format:
 *
 *     mxfp4   e2m1 elements, groups of 32, scales e8m0
 *     mxfp8   e4m3 elements, groups of 32, scales e8m0
 *     nvfp4   e2m1 elements, groups of 16, scales e4m3; a matrix may have one more scale, global
 *
 *     exact f32 form  element * s, one rounding; s is the scale, times global with one rounding
 *     bf16 form       one rounding of the exact product of element, scale and global
 */
#ifndef ASSAY_CKPT_QFORMAT_H
#define ASSAY_CKPT_QFORMAT_H

#include <math.h>

#include "ckpt/dtype.h"

struct qformat {
    int bits;         /* affine: 2, 3, 4, 5, 6, 8 */
    int group;        /* affine: 32, 64, 128 */
    enum dtype scale; /* affine: DT_BF16, DT_F16 or DT_F32; biases have the same type */
};

static const struct qformat QFORMAT_MXFP4 = {4, 32, DT_F8_E8M0};
static const struct qformat QFORMAT_MXFP8 = {8, 32, DT_F8_E8M0};
static const struct qformat QFORMAT_NVFP4 = {4, 16, DT_F8_E4M3};

/* A block float, without biases; else affine. */
DTYPE_FN bool qformat_is_block(struct qformat q)
{
    return q.scale == DT_F8_E8M0 || q.scale == DT_F8_E4M3;
}

static inline bool qformat_same(struct qformat a, struct qformat b)
{
    return a.bits == b.bits && a.group == b.group && a.scale == b.scale;
}

static inline bool qformat_valid(struct qformat q)
{
    bool bits = q.bits >= 2 && q.bits <= 8 && q.bits != 7;
    bool group = q.group == 32 || q.group == 64 || q.group == 128;
    if (qformat_is_block(q))
        return qformat_same(q, QFORMAT_MXFP4) || qformat_same(q, QFORMAT_MXFP8) ||
               qformat_same(q, QFORMAT_NVFP4);
    return bits && group && (q.scale == DT_BF16 || q.scale == DT_F16 || q.scale == DT_F32);
}

/* MLX's name of the mode: "affine", "mxfp4", "mxfp8", "nvfp4". */
const char *qformat_mode(struct qformat q);
/* The block float of that name; false for any other. */
bool qformat_find_block(const char *mode, struct qformat *q);

/* Bytes of one scale. */
DTYPE_FN int qformat_scale_size(enum dtype t)
{
    return t == DT_F32 ? 4 : t == DT_BF16 || t == DT_F16 ? 2 : 1;
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
    if (t == DT_F8_E8M0)
        return e8m0_to_f32(p[i]);
    if (t == DT_F8_E4M3)
        return e4m3_to_f32(p[i]);
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* The value of a block float's code. */
DTYPE_FN float qformat_element(int bits, uint32_t code)
{
    return bits == 4 ? e2m1_to_f32(code) : e4m3_to_f32(code);
}

/* Global scales are kept to powers between these, so that no product of a value leaves the normal
 * numbers of f32. */
#define QFORMAT_GLOBAL_MIN 0x1p-100f
#define QFORMAT_GLOBAL_MAX 0x1p100f

/* RN_bf16 of the exact q*s + b with s and b in bf16 and 0 <= q < 256: q*s has at most 16
 * significant bits, so it is exact in f32; the sum is taken with a sticky bit (round to odd) and
 * then rounded once. */
uint16_t qformat_bf16_exact(uint32_t q, float s, float b);

/* Rule 1 for any affine scale type, as bf16 bits. */
uint16_t qformat_bf16(uint32_t q, float s, float b, enum dtype scale);

/* Rule 1 for block floats: RN_bf16 of the exact product, as bf16 bits. */
uint16_t qformat_block_bf16(float element, float s, float global);

#endif
