/* convert.h: the plan of a conversion: containers into a packed folder, without a recipe.
 *
 * Quantized weights keep their values where the packed format holds them exactly (GGUF's Q4_0,
 * Q4_1, Q5_0, Q5_1, Q8_0, and with f32 scales Q4_K and Q5_K) and become `rest` where it does not;
 * A dense matrix that lies on a grid, as those of QAT checkpoints do, is packed on that grid; one
 * that does not is left alone unless `recipe` has a rule for it.
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
    bool grid;         /* look for grids under dense matrices (quant/qat_grid.h) */
    const struct recipe *recipe;     /* for matrices on no grid; NULL: they stay as they are */
    struct qat_formula formula;      /* for latent QAT weights; QAT_NONE: they stay as they are */
    int threads;                     /* of the search */
    const volatile int *interrupted; /* may be NULL */
};

/* Does the configuration say that the checkpoint was trained for quantization, while no matrix is
 * packed and, by the plan, none lies on a grid? Then its weights are latent. */
bool convert_is_latent(const struct plan *p);
MUST_USE enum err_code convert_plan(struct plan **p, const struct checkpoint *c,
                                    const struct convert_options *o, struct err *e);
/* What the manifest says of the options; a new reference. */
json_t *convert_options_json(const struct convert_options *o);
/* "bfloat16", "float16", "float32" for config.json, or NULL: as the source says. */
const char *convert_torch_dtype(const struct convert_options *o);

#endif
