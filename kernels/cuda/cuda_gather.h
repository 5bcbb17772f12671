/* cuda_gather.h: the device order of weights (cuda_order.h), word by word from rows that stand in
 * the checkpoint's order. Seen by C and CUDA.
 *
 * cuda_order.c takes a row and scatters what is in it; this is the other way round: each 32-bit
 * word of a tile is gathered from the rows, so that every word is written once, by one thread, and
 * those beyond the rows and beyond K are zero. Both give the same bytes, and the tests compare
 * them.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_GATHER_H
#define ASSAY_KERNELS_CUDA_CUDA_GATHER_H

#include "kernels/cuda/cuda_order.h"

/* Rows of one matrix, from a multiple of 16 on. */
struct cuda_staged {
    const uint8_t *codes;           /* [rows][row_bytes]: packed codes, or values of `type` */
    const uint8_t *scales, *biases; /* [rows][k / group] of `type`; block floats: no biases */
    const uint8_t *globals;         /* CUDA_SCALE_GLOBAL: [rows] f32 */
    enum dtype type;
    size_t row_bytes;
    int64_t rows;
};

CUDA_ORDER_FN uint32_t cuda_gather_u16(const uint8_t *p)
{
    return *(const uint16_t *)(const void *)p;
}

/* Word `word` of a plane of a piece: codes of two neighbouring k of a row in each half. */
CUDA_ORDER_FN uint32_t cuda_gather_codes(const struct cuda_order *o, const struct cuda_staged *s,
                                         int64_t row0, int64_t k0, int plane, int word)
{
    int bits = cuda_order_plane(o->bits, plane), per = 16 / bits;
    int shift = plane ? cuda_order_plane(o->bits, 0) : 0, lane, block, first;
    uint32_t mask = (1u << bits) - 1, out = 0;
    if (bits == 8) {
        lane = word / 4 % 32, block = word / 256;
        first = (word / 128 % 2 * 4 + word % 4) * per;
    } else if (bits == 4) {
        lane = word / 4 % 32, block = word / 128;
        first = word % 4 * per;
    } else {
        lane = word / bits / 2, block = word / bits % 2;
        first = word % bits * per;
    }
    for (int j = 0; j < per; j++) {
        int i = first + j; /* step and register of the lane in these 64 k */
        int64_t row = row0 + lane / 4 + (i & 1) * 8;
        int64_t k = k0 + block * 64 + i / 4 * 16 + (i >> 1 & 1) * 8 + lane % 4 * 2;
        if (row >= s->rows || k >= o->k)
            continue;
        const uint8_t *codes = s->codes + (size_t)row * s->row_bytes;
        uint32_t even = qformat_code(codes, o->bits, k) >> shift & mask;
        uint32_t odd = qformat_code(codes, o->bits, k + 1) >> shift & mask;
        out |= (even | odd << 16) << j * bits;
    }
    return out;
}

/* A row's scale (or bias) number i as it is stored, in the low bits. */
CUDA_ORDER_FN uint32_t cuda_gather_scale(const struct cuda_order *o, const struct cuda_staged *s,
                                         int64_t row, int64_t i, bool bias)
{
    const uint8_t *from = bias ? s->biases : s->scales;
    int power = bias ? 0 : cuda_order_power(o->scale, o->bits, (int)(row % CUDA_TILE_ROWS));
    i += row * (o->k / o->group);
    if (s->type == DT_F32)
        return cuda_order_word(from + 4 * i);
    if (power)
        return bf16_from_f32(cuda_order_encode(qformat_scale(from, s->type, i), power));
    return cuda_gather_u16(from + 2 * i);
}

/* The word at byte `at` of a piece's scales. */
CUDA_ORDER_FN uint32_t cuda_gather_scales(const struct cuda_order *o, const struct cuda_staged *s,
                                          int64_t row0, int64_t k0, int at)
{
    bool block = cuda_order_is_block(o->scale);
    int size = block ? 1 : o->scale == CUDA_SCALE_F32 ? 4 : 2;
    uint32_t out = 0;
    if (block && at >= o->globals_at - o->scales_at) {
        int i = (at - (o->globals_at - o->scales_at)) / 4;
        int64_t row = row0 + i / 2 + (i & 1) * 8;
        return row < s->rows ? cuda_order_word(s->globals + 4 * row) : 0;
    }
    for (int b = 0; b < 4; b += size) {
        int i = (at + b) / size, group = i / (block ? 16 : 32);
        int64_t row = row0 + (block ? i / 2 : i / 4) % 8 + (i & 1) * 8;
        int64_t k = k0 + group * o->group;
        if (row >= s->rows || k >= o->k)
            continue;
        uint32_t v = block ? s->scales[row * (o->k / o->group) + k / o->group]
                           : cuda_gather_scale(o, s, row, k / o->group, (i & 2) != 0);
        out |= v << 8 * b;
    }
    return out;
}

CUDA_ORDER_FN uint32_t cuda_gather_values(const struct cuda_order *o, const struct cuda_staged *s,
                                          int64_t row0, int64_t k0, int word)
{
    int lane = word / 4 % 32;
    int64_t row = row0 + lane / 4 + (word & 1) * 8;
    int64_t k = k0 + word / 128 * 16 + (word >> 1 & 1) * 8 + lane % 4 * 2;
    uint32_t out = 0;
    if (row >= s->rows)
        return 0;
    const uint8_t *values = s->codes + (size_t)row * s->row_bytes;
    for (int i = 0; i < 2 && k + i < o->k; i++) {
        uint32_t v = s->type == DT_BF16 ? cuda_gather_u16(values + 2 * (k + i))
                                        : bf16_from_f32(qformat_scale(values, s->type, k + i));
        out |= v << 16 * i;
    }
    return out;
}

/* Word `word` of a piece of a tile; tile 0 begins at the first of the rows. */
CUDA_ORDER_FN uint32_t cuda_gather_word(const struct cuda_order *o, const struct cuda_staged *s,
                                        int64_t tile, int piece, int word)
{
    int64_t row0 = tile * CUDA_TILE_ROWS, k0 = (int64_t)piece * CUDA_PIECE_K;
    int at = 4 * word;
    if (o->bits == CUDA_DENSE)
        return cuda_gather_values(o, s, row0, k0, word);
    if (at < o->plane_bytes[0])
        return cuda_gather_codes(o, s, row0, k0, 0, word);
    if (at < o->scales_at)
        return cuda_gather_codes(o, s, row0, k0, 1, (at - o->plane_bytes[0]) / 4);
    return cuda_gather_scales(o, s, row0, k0, at - o->scales_at);
}

#endif
