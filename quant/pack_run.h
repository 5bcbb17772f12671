/* pack_run.h: one run of rows of one weight: source rows in, bytes of the packed checkpoint and
 * error sums out. Owns the meaning of the plan's actions; knows no files and no threads. */
#ifndef ASSAY_QUANT_PACK_RUN_H
#define ASSAY_QUANT_PACK_RUN_H

#include "quant/affine.h"
#include "quant/plan.h"

/* Where a weight's bytes go; the buffers begin with row `first`. Dense: codes only. */
struct pack_dest {
    uint8_t *codes, *scales, *biases;
    int64_t first;
};

struct pack_scratch {
    float *source, *decoded; /* of one run; grown when needed */
    size_t elems;
};
void pack_scratch_free(struct pack_scratch *s);

/* True when the bytes to write are w->data (and scales, biases) as they lie. */
bool pack_run_is_plain_copy(const struct plan_item *it);

/* Rows [row0, row0 + n). */
MUST_USE enum err_code pack_run(const struct plan_item *it, enum affine_isa isa, int64_t row0,
                                int64_t n, const struct pack_dest *to, struct pack_scratch *s,
                                struct errstat *st, struct err *e);

/* Rows of packed bytes; each pointer is to the first of them. */
struct pack_rows {
    struct qformat q;
    int64_t k, n;
    const uint8_t *codes, *scales, *biases; /* biases: affine */
    const float *globals;                   /* [n]; NULL: 1 */
};
/* Their f32 values: fmaf(q, s, b), or element * s. */
void pack_run_decode(const struct pack_rows *r, float *out);

#endif
