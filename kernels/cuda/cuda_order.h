/* cuda_order.h: the order in which weights stand on the device. Seen by C and CUDA.
 *
 * Rows are cut into tiles of 16, the 16-row operand of the tensor core; a tile's K into pieces of
 * 128. A tile is its pieces in ascending k, a piece is one contiguous run of bytes:
 *
 *   dense    bf16, [step of 16 k][lane][register][2]: 4096 bytes.
 *   packed   planes of codes, then the scales of the piece's groups.
 *
 * A lane of the tensor core holds, for each step of 16 k, four registers of two values: register r
 * has row g + 8 * (r & 1) and k = 2t + 8 * (r >> 1), and the k after it in its upper half, where g
 * = lane / 4 and t = lane % 4. Codes are cut into planes of 8, 4, 2 or 1 bit (8; 6 = 4 + 2; 5 = 4 +
 * 1; 4; 3 = 2 + 1; 2; the low bits first). In a plane of p bits the sixteen (step, register) pairs
 * of 64 k stand in ascending order, 16 / p in a 32-bit word: the even k's code at bit p * i of the
 * word, the odd one's at 16 + p * i, so that one mask takes two codes of a register to where a pair
 * of bf16 has them. A lane's words are adjacent, in loads of 16 bytes (8 in a plane of one bit).
 *
 * Scales of a group: for g = 0..7 the scale of row g, that of row g + 8, and the two biases. A code
 * that begins at bit i of a half is q * 2^(i - 133) when it is read as a (subnormal) bf16: with the
 * scale stored times 2^(133 - i), one fused multiply-add gives rule 1. The re-encoding is exact; it
 * is taken when no scale of the matrix becomes an infinity by it. CUDA_SCALE_FAST has codes that
 * end at bit 7 (scales below 2^(3 - bits)); CUDA_SCALE_LOW, for 4 bits, takes the codes of rows
 * g from bits 0..3 and of rows g + 8 from bits 4..7, where they are (scales below 2^-5).
 *
 * Block floats (qformat.h) have one plane of their 4 or 8 bits. A group's scales are bytes: for g =
 * 0..7 that of row g and that of row g + 8; with global scales a piece ends with sixteen f32, in
 * the same order of rows. CUDA_SCALE_E8M0_FAST: no scale of the matrix is so large that it becomes
 * an infinity when it makes up for elements that are read as bf16 with an exponent too small by 126
 * (e2m1) or 120 (e4m3).
 *
 * Nothing is lost: cuda_order_code and cuda_order_scale give back what the checkpoint holds. K
 * beyond the row's end and rows beyond the last have codes, scales, biases and values of zero.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ORDER_H
#define ASSAY_KERNELS_CUDA_CUDA_ORDER_H

#include "ckpt/qformat.h"

#ifdef __CUDACC__
#define CUDA_ORDER_FN    static inline __host__ __device__
#define CUDA_ORDER_CONST constexpr
#else
#define CUDA_ORDER_FN static inline
#define CUDA_ORDER_CONST
#endif

#define CUDA_TILE_ROWS 16
#define CUDA_PIECE_K   128
#define CUDA_DENSE     16 /* "bits" of bf16 values */

enum cuda_scale {
    CUDA_SCALE_NONE, /* dense */
    CUDA_SCALE_LOW,  /* bf16, re-encoded; 4 bits */
    CUDA_SCALE_FAST, /* bf16, re-encoded */
    CUDA_SCALE_BF16,
    CUDA_SCALE_F16,
    CUDA_SCALE_F32,
    CUDA_SCALE_E8M0_FAST, /* mxfp4, mxfp8 */
    CUDA_SCALE_E8M0,
    CUDA_SCALE_E4M3,   /* nvfp4 */
    CUDA_SCALE_GLOBAL, /* nvfp4 with global scales */
    CUDA_SCALE_COUNT
};

CUDA_ORDER_FN CUDA_ORDER_CONST bool cuda_order_is_block(enum cuda_scale t)
{
    return t >= CUDA_SCALE_E8M0_FAST;
}

struct cuda_order {
    int bits, group; /* CUDA_DENSE and 0 */
    enum cuda_scale scale;
    int64_t k;
    int n_pieces;
    int plane_bytes[2]; /* of a piece */
    int scales_at;      /* in a piece */
    int globals_at;     /* CUDA_SCALE_GLOBAL */
    int piece_bytes;
};

struct cuda_order cuda_order_dense(int64_t k);
struct cuda_order cuda_order_packed(struct qformat q, enum cuda_scale scale, int64_t k);

/* Bits of plane 0 or 1. */
CUDA_ORDER_FN int cuda_order_plane(int bits, int plane)
{
    int low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
    return plane ? bits - low : low;
}

/* Where the code of (row of the tile, k of the piece) stands in its plane. */
struct cuda_order_place {
    int word; /* byte offset of a 32-bit word */
    int bit;
};
CUDA_ORDER_FN struct cuda_order_place cuda_order_find(int plane_bits, int row, int k)
{
    struct cuda_order_place at;
    int lane = (row & 7) * 4 + (k & 7) / 2, r = (k >> 3 & 1) * 2 + (row >> 3);
    int step = k >> 4, block = step >> 2, i = (step & 3) * 4 + r, per = 16 / plane_bits;
    int word = i / per;
    at.bit = i % per * plane_bits + (k & 1) * 16;
    if (plane_bits == 8)
        at.word = ((block * 2 + word / 4) * 32 + lane) * 16 + word % 4 * 4;
    else if (plane_bits == 4)
        at.word = (block * 32 + lane) * 16 + word * 4;
    else
        at.word = (lane * 2 + block) * plane_bits * 4 + word * 4;
    return at;
}

/* Byte offset of a dense value in its piece. */
CUDA_ORDER_FN int cuda_order_value(int row, int k)
{
    int lane = (row & 7) * 4 + (k & 7) / 2, r = (k >> 3 & 1) * 2 + (row >> 3);
    return ((k >> 4) * 32 + lane) * 16 + r * 4 + (k & 1) * 2;
}

/* Index among the piece's scales of a row's scale in a group of the piece; its bias is two on. */
CUDA_ORDER_FN int cuda_order_scale_at(int group, int row)
{
    return (group * 8 + (row & 7)) * 4 + (row >> 3);
}

CUDA_ORDER_FN uint32_t cuda_order_word(const uint8_t *p)
{
    return *(const uint32_t *)(const void *)p;
}

/* Code of (row, k) of a piece. */
CUDA_ORDER_FN uint32_t cuda_order_code(const uint8_t *piece, int bits, int plane0_bytes, int row,
                                       int k)
{
    int low = cuda_order_plane(bits, 0), high = bits - low;
    struct cuda_order_place at = cuda_order_find(low, row, k);
    uint32_t q = cuda_order_word(piece + at.word) >> at.bit & ((1u << low) - 1);
    if (high) {
        at = cuda_order_find(high, row, k);
        q |= (cuda_order_word(piece + plane0_bytes + at.word) >> at.bit & ((1u << high) - 1))
             << low;
    }
    return q;
}

/* A scale is stored times 2^this. */
CUDA_ORDER_FN int cuda_order_power(enum cuda_scale t, int bits, int row)
{
    if (t == CUDA_SCALE_LOW)
        return row & 8 ? 129 : 133;
    return t == CUDA_SCALE_FAST ? 125 + bits : 0;
}

/* s * 2^power and s * 2^-power, in exact steps. */
CUDA_ORDER_FN float cuda_order_encode(float s, int power)
{
    return power ? s * 0x1p100f * (float)(1u << 20) * (float)(1u << (power - 120)) : s;
}

CUDA_ORDER_FN float cuda_order_decode(float s, int power)
{
    return power ? s / (float)(1u << (power - 120)) * 0x1p-20f * 0x1p-100f : s;
}

/* Scale (which 0) or bias (2) of a row in a group of the piece, as it is in the checkpoint. */
CUDA_ORDER_FN float cuda_order_scale(const uint8_t *scales, enum cuda_scale t, int bits, int group,
                                     int row, int which)
{
    int i = cuda_order_scale_at(group, row) + which;
    if (t == CUDA_SCALE_F32)
        return ((const float *)(const void *)scales)[i];
    uint16_t h = ((const uint16_t *)(const void *)scales)[i];
    if (t == CUDA_SCALE_F16)
        return f16_to_f32(h);
    float s = bf16_to_f32(h);
    return which == 0 ? cuda_order_decode(s, cuda_order_power(t, bits, row)) : s;
}

/* Byte offset among the piece's scales of a block float's scale, and index of a row's global. */
CUDA_ORDER_FN int cuda_order_block_at(int group, int row)
{
    return (group * 8 + (row & 7)) * 2 + (row >> 3);
}

CUDA_ORDER_FN float cuda_order_block_scale(const uint8_t *scales, enum cuda_scale t, int group,
                                           int row)
{
    uint8_t c = scales[cuda_order_block_at(group, row)];
    return t == CUDA_SCALE_E8M0 || t == CUDA_SCALE_E8M0_FAST ? e8m0_to_f32(c) : e4m3_to_f32(c);
}

CUDA_ORDER_FN float cuda_order_global(const struct cuda_order *o, const uint8_t *piece, int row)
{
    if (o->scale != CUDA_SCALE_GLOBAL)
        return 1.0f;
    return ((const float *)(const void *)(piece + o->globals_at))[cuda_order_block_at(0, row)];
}

/* One row in the checkpoint's order, as kern_source_packed_row gives it. */
struct cuda_order_row {
    const uint8_t *codes, *scales, *biases; /* affine: biases */
    enum dtype type;                        /* of scales and biases */
    float global;                           /* CUDA_SCALE_GLOBAL */
};
/* Puts it into a tile that was zero. */
void cuda_order_put(const struct cuda_order *o, uint8_t *tile, int row,
                    const struct cuda_order_row *from);
/* The same for k bf16 values. */
void cuda_order_put_values(const struct cuda_order *o, uint8_t *tile, int row,
                           const uint16_t *values);
/* The most that a scale byte of a matrix in CUDA_SCALE_E8M0_FAST is. */
CUDA_ORDER_FN int cuda_order_e8m0_fast(int bits)
{
    return bits == 4 ? 254 - 126 : 254 - 120;
}
/* How scales that are these n bf16 values can be stored: LOW, FAST or BF16, the first that holds.
 */
enum cuda_scale cuda_order_choose(const uint8_t *scales, int64_t n, int bits);

#endif
