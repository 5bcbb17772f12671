/* convert.h: the plan of a conversion: containers into a packed folder, without a recipe.
 *
 * Quantized weights keep their values where the packed format holds them exactly (GGUF's Q4_0,
 * Q4_1, Q5_0, Q5_1, Q8_0, and with f32 scales Q4_K and Q5_K) and become `rest` where it does not;
 * `expand` makes all of them dense instead. Dense tensors keep their type unless `dtype` says
 * otherwise. Writing is quantize.h's.
 */
#ifndef ASSAY_CONVERT_CONVERT_H
#define ASSAY_CONVERT_CONVERT_H

#include "quant/plan.h"

struct convert_options {
    enum dtype expand; /* DT_UNKNOWN: keep packed */
    enum dtype dtype;  /* of tensors that are dense in the source; DT_UNKNOWN: their own */
    enum dtype rest;   /* of quantized weights that have no exact affine form */
};

MUST_USE enum err_code convert_plan(struct plan **p, const struct checkpoint *c,
                                    const struct convert_options *o, struct err *e);
/* What the manifest says of the options; a new reference. */
json_t *convert_options_json(const struct convert_options *o);
/* "bfloat16", "float16", "float32" for config.json, or NULL: as the source says. */
const char *convert_torch_dtype(const struct convert_options *o);

#endif
