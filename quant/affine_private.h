/* affine_private.h: what affine.c and its variants share. */
#ifndef ASSAY_QUANT_AFFINE_PRIVATE_H
#define ASSAY_QUANT_AFFINE_PRIVATE_H

#include "quant/affine.h"

#define AFFINE_BATCH     16 /* groups whose grids are worked out together, one a lane */
#define AFFINE_GRIDS     3  /* low edge, high edge, full range */
#define AFFINE_GROUP_MAX 128

/* Grids of a batch, one column a group. A grid that does not fit has b = NaN: its error is NaN and
 * loses every comparison. */
struct affine_grids {
    float s[AFFINE_GRIDS][AFFINE_BATCH], b[AFFINE_GRIDS][AFFINE_BATCH];
    float inv[AFFINE_GRIDS][AFFINE_BATCH]; /* 1 / s, or 0 where s is 0 */
};

/* Encodes r; returns the index of the first group that cannot be encoded, or -1. */
typedef int64_t (*affine_fn)(const struct affine_run *r, struct errstat *st);

int64_t affine_encode_c(const struct affine_run *r, struct errstat *st);
int64_t affine_encode_avx2(const struct affine_run *r, struct errstat *st);
int64_t affine_encode_avx512(const struct affine_run *r, struct errstat *st);

/* Grid with the smallest error, the first of equals; -1: none can be stored. Errors are sums of
 * squares or NaN, so their bits are in the order of their values with NaN above infinity. Without
 * branches, which would be guessed wrong for most groups. */
static inline int affine_pick(const float err[AFFINE_GRIDS])
{
    uint32_t a = f32_bits(err[0]), b = f32_bits(err[1]), c = f32_bits(err[2]);
    uint32_t ab = b < a ? b : a, least = c < ab ? c : ab;
    int best = c < ab ? 2 : b < a;
    return least > 0x7f800000u ? -1 : best;
}

static inline void affine_store_scale(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v));
}

#endif
