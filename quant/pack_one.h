/* pack_one.h: one item of a plan in memory: the bytes that quantize would write for it, as a weight
 * that an engine loads. */
#ifndef ASSAY_QUANT_PACK_ONE_H
#define ASSAY_QUANT_PACK_ONE_H

#include "quant/plan.h"

struct pack_one {
    /* Under the source's name and shape; of an item that is a plain copy, the source itself. */
    struct ckpt_weight w;
    uint8_t *mem; /* heap; NULL for such a copy */
};

/* threads 0: par_default_threads. The bytes do not depend on them. */
MUST_USE enum err_code pack_one(struct pack_one *one, const struct plan_item *it, int threads,
                                struct err *e);
void pack_one_free(struct pack_one *one);

/* True when both hold the same bytes in the same format, and lie in one piece each. */
bool pack_one_same(const struct ckpt_weight *a, const struct ckpt_weight *b);

#endif
