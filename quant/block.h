/* block.h: the encoder of block floats: groups of values to codes and scales of 8 bits (qformat.h).
 *
 * mxfp4, mxfp8: the scale is the least power of two for which no element is cut off, 2^e >= amax /
 * M with M = 6 or 448 (M * 2^e keeps 2^e, the next f32 above it takes 2^(e + 1)), within 2^-127 ..
 * 2^127; a group of zeros has 2^-127. nvfp4: the scale is e4m3(amax / 6), so at most 448; where it
 * is 0 the codes are.
 * Codes are the elements nearest to w / s, the quotient rounded to f32, ties to the even code, and
 * never a negative zero. That is the rule of MLX's kernels; its CPU fallback differs in ties.
 *
 * One body of plain C: every operation is exact or one IEEE operation an element.
 */
#ifndef ASSAY_QUANT_BLOCK_H
#define ASSAY_QUANT_BLOCK_H

#include "ckpt/qformat.h"
#include "common/err.h"

struct block_run {
    struct qformat q;
    const float *data; /* n_groups * q.group */
    int64_t n_groups;
    uint8_t *codes;  /* n_groups * q.group / 8 * q.bits bytes */
    uint8_t *scales; /* n_groups */
};

/* ERR_INPUT for a value that is not finite; *bad is its index in the run. */
MUST_USE enum err_code block_encode(const struct block_run *r, int64_t *bad, struct err *e);

#endif
