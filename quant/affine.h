/* affine.h: the affine encoder: groups of values to codes, scales and biases in MLX's layout.
 *
 * A group of g consecutive values gets a scale s and a bias b, both rounded to the scale's type
 * FIRST; the codes are then the nearest points of the grid that will really be stored:
 * q = clamp(rint((w - b) / s), 0, 2^bits - 1), the value fmaf(q, s, b). Three grids are tried, with
 * lo and hi the group's true ends and step = (hi - lo) / (2^bits - 1):
 *
 *     low edge    b = lo, s = lo / rint(lo / step)      zero is a grid point before s is rounded
 *     high edge   b = hi, s = hi / rint(hi / -step)     the same from the other side, s < 0
 *     full range  b = lo, s = step                      no point is spent on zero
 *
 * and the one with the smallest squared error is kept, the first of equals. The first two hold the
 * choice that MLX makes, so no group is worse than MLX's. A group of one value (all-zero too) has
 * s = 0, b = that value, codes 0; so has one whose scale would be below FLT_MIN.
 *
 * Arithmetic is fixed: every operation is one IEEE operation on one of 16 lanes (element i belongs
 * to lane i % 16), so plain C, AVX2 and AVX-512 give the same bytes and the same error sums.
 */
#ifndef ASSAY_QUANT_AFFINE_H
#define ASSAY_QUANT_AFFINE_H

#include "ckpt/qformat.h"
#include "common/err.h"
#include "quant/errstat.h"

enum affine_isa { AFFINE_C, AFFINE_AVX2, AFFINE_AVX512, AFFINE_ISA_COUNT };

const char *affine_isa_name(enum affine_isa isa); /* "c", "avx2", "avx512" */
bool affine_isa_find(const char *name, enum affine_isa *isa);
bool affine_isa_here(enum affine_isa isa); /* this processor runs it */
enum affine_isa affine_isa_best(void);

/* Rows lie one behind another and the group divides a row, so a run of rows is a run of groups. */
struct affine_run {
    struct qformat q;
    enum dtype source; /* DT_F32, DT_F16 or DT_BF16 */
    const void *data;  /* n_groups * q.group elements, maybe unaligned */
    int64_t n_groups;
    uint8_t *codes;           /* n_groups * q.group / 8 * q.bits bytes */
    uint8_t *scales, *biases; /* n_groups of q.scale each */
};

/* Encodes a run and adds its errors to *st. ERR_INPUT for a value that is not finite or whose
 * group's scale or bias does not fit the scale's type; *bad is then its index in the run. */
MUST_USE enum err_code affine_encode(enum affine_isa isa, const struct affine_run *r,
                                     struct errstat *st, int64_t *bad, struct err *e);

#endif
