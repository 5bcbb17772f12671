/* affine_private.h: what affine.c and its variants share. */
#ifndef ASSAY_QUANT_AFFINE_PRIVATE_H
#define ASSAY_QUANT_AFFINE_PRIVATE_H

#include "quant/affine.h"

#define AFFINE_BATCH     16 /* groups whose grids are worked out together, one a lane */
#define AFFINE_GRIDS     3  /* low edge, high edge, full range */
#define AFFINE_GROUP_MAX 128
#define AFFINE_MAGIC     8388608.0f
#define AFFINE_AHEAD     4096

/* Grids of a batch, one column a group. A grid that does not fit has b = NaN: its error is NaN and
 * loses every comparison. */
struct affine_grids {
    float s[AFFINE_GRIDS][AFFINE_BATCH], b[AFFINE_GRIDS][AFFINE_BATCH];
    float inv[AFFINE_GRIDS][AFFINE_BATCH]; /* 1 / s, or 0 where s is 0 */
};

/* Groups on their way through the steps of the encoder. */
struct affine_batch {
    float w[AFFINE_BATCH * AFFINE_GROUP_MAX]; /* group after group */
    float lo[AFFINE_BATCH], hi[AFFINE_BATCH];
    struct affine_grids grids;
    float err[AFFINE_BATCH][4];                                /* by grid; the last is unused */
    float s[AFFINE_BATCH], b[AFFINE_BATCH], inv[AFFINE_BATCH]; /* of the grid chosen */
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

/* Chooses every group's grid; returns the first group that has none, or -1. */
static inline int affine_choose(struct affine_batch *t, int n)
{
    for (int i = 0; i < n; i++) {
        int grid = affine_pick(t->err[i]);
        if (grid < 0)
            return i;
        t->s[i] = t->grids.s[grid][i];
        t->b[i] = t->grids.b[grid][i];
        t->inv[i] = t->grids.inv[grid][i];
    }
    return -1;
}

/* The first group of a batch that holds a value that is not finite; one does. */
static inline int affine_not_finite(const struct affine_batch *t, int n, int group)
{
    for (int i = 0; i < n * group; i++)
        if ((f32_bits(t->w[i]) & 0x7f800000u) == 0x7f800000u)
            return i / group;
    return n - 1;
}

/* Asks for the n elements that come AFFINE_AHEAD bytes after element `at`: the processor's own
 * prefetch stops at the end of a page. */
static inline void affine_prefetch(const struct affine_run *r, int64_t at, int n)
{
    int64_t size = r->source == DT_F32 ? 4 : 2;
    uintptr_t p = (uintptr_t)r->data + (uintptr_t)(at * size) + AFFINE_AHEAD;
    for (int64_t line = 0; line < n * size; line += 64)
        __builtin_prefetch((const void *)(p + (uintptr_t)line)); /* may lie behind the end */
}

/* v are values of type t already. */
static inline void affine_store_scales(uint8_t *p, enum dtype t, int64_t first, const float *v,
                                       int n)
{
    for (int i = 0; i < n; i++) {
        if (t == DT_F32)
            store_u32(p + 4 * (first + i), f32_bits(v[i]));
        else if (t == DT_BF16)
            store_u16(p + 2 * (first + i), (uint16_t)(f32_bits(v[i]) >> 16));
        else
            store_u16(p + 2 * (first + i), f16_from_f32(v[i]));
    }
}

#endif
