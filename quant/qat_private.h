/* qat_private.h: one unit of a grid search, and the loops that exist once per instruction set.
 *
 * A unit is what shares one scale: a group, or a whole row. Values enter as doubles too: [lo, hi]
 * is the preimage of |w|, the closed interval that rounds to it in the source's type (its ends
 * count or not by the parity of w; every result is checked anyway). All of it is exact in double.
 */
#ifndef ASSAY_QUANT_QAT_PRIVATE_H
#define ASSAY_QUANT_QAT_PRIVATE_H

#include "quant/qat_grid.h"

/* Codes of an offset grid, 5 bits at most, and room for a vector that starts at the last one. */
#define GRID_CODES 36

struct grid_unit {
    int64_t n; /* elements, a multiple of 32 */
    enum dtype source;
    float *w, *x;    /* values and magnitudes */
    double *lo, *hi; /* preimages of the magnitudes; [0, 0] of zero; [n]: all numbers */
    float *q;        /* codes of the grid at hand: of magnitudes (scaled), from 0 up (offset) */
    float *best;     /* codes of the best grid so far */
    float rel, abs;  /* half a unit of the last place is at most |w| * rel + abs */
    float max;       /* largest magnitude */
    uint8_t *row;    /* room for one row as it is stored */
    float low, high; /* least and largest value */
};

/* What the codes 0 to `largest` of an offset grid demand: low <= code * scale + bias <= high;
 * infinite for one that no element has. And the same from the largest code down, with three more
 * such. */
struct grid_codes {
    int largest;
    double low[GRID_CODES], high[GRID_CODES], low_down[GRID_CODES], high_down[GRID_CODES];
};

/* Loops over a unit. All operations are IEEE operations on lanes: the same bits everywhere. */
struct grid_ops {
    /* Values of one unit, from unaligned source bytes. */
    void (*load)(struct grid_unit *u, const uint8_t *data);
    /* Bit i: k + i may be the largest code (scaled), the span of codes (offset). */
    unsigned (*alive)(const struct grid_unit *u, bool offset, int k);
    /* Codes and the interval of scales, from the one that largest magnitude and code give. *open:
     * some codes were left to choice; places 0, 1 and 2 choose differently. */
    bool (*tighten)(struct grid_unit *u, int k, int place, double *scale_lo, double *scale_hi,
                    bool *open);
    /* Largest codes of positive and of negative values. */
    void (*widest)(const struct grid_unit *u, int *pos, int *neg);
    /* Does round(q * scale) give every magnitude; round(q * scale + bias) every value? The second
     * is for scales whose products with a code are exact in f32. */
    bool (*check_scaled)(const struct grid_unit *u, float scale);
    bool (*check_offset)(const struct grid_unit *u, float scale, float bias);
    /* Offset: the codes of a span of k, and an element of each code up to k (n: none has it). */
    void (*spread)(struct grid_unit *u, int k, int32_t where[GRID_CODES]);
    /* Offset: the interval of scales that the constraints of every two codes leave. */
    void (*pairs)(const struct grid_codes *g, double *scale_lo, double *scale_hi);
    /* Stored codes of the best grid: zero + code, with the sign of the value when by_sign. */
    void (*codes)(const struct grid_unit *u, int zero, bool by_sign, bool mirrored, uint8_t *out);
};
extern const struct grid_ops grid_ops_c, grid_ops_avx2;
const struct grid_ops *grid_ops_best(void);

/* A unit's grid: code u of the stored form has the value u * scale + bias. */
struct grid_found {
    enum dtype type; /* the least of those asked for that holds scale and bias */
    float scale, bias;
    int zero;      /* scaled: stored code of the value 0 */
    bool mirrored; /* scaled: codes are counted against the sign */
};

/* Types to look for, as bits in this order. */
enum { GRID_BF16 = 1, GRID_F16 = 2, GRID_F32 = 4 };

/* The preimage of a magnitude x in a type's rounding. */
static inline void grid_preimage(enum dtype t, float x, double *lo, double *hi)
{
    uint32_t bits = f32_bits(x);
    if (x == 0) {
        *lo = *hi = 0;
    } else if (t == DT_F32) {
        *lo = 0.5 * ((double)x + (double)f32_from_bits(bits - 1));
        *hi = 0.5 * ((double)x + (double)f32_from_bits(bits + 1));
    } else if (t == DT_F16 && x <= 0x1p-14f) { /* the step stops shrinking */
        *lo = (double)x - 0x1p-25;
        *hi = (double)x + 0x1p-25;
    } else {
        uint32_t half = t == DT_F16 ? 0x1000 : 0x8000;
        *lo = (double)f32_from_bits(bits - half);
        *hi = (double)f32_from_bits(bits + half);
    }
}

/* For units of n values out of rows of k. */
MUST_USE enum err_code grid_unit_new(struct grid_unit *u, int64_t n, int64_t k, enum dtype source,
                                     struct err *e);
void grid_unit_free(struct grid_unit *u);
/* The unit that was loaded, on a grid of that kind and bits; false when it is on none. */
bool grid_unit_find(struct grid_unit *u, const struct grid_ops *ops, enum grid_kind kind, int bits,
                    unsigned types, struct grid_found *f);

#endif
