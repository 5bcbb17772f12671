/* qat_formula.h: the quantizers that QAT trainers fit weights to, for checkpoints that were saved
 * before the last step: latent weights, which lie on no grid. Symmetric, one scale a group.
 *
 *   q4_0             scale = w of largest magnitude / -8, stored in f16; codes by the f32 scale
 *   ct               scale = 2 amax / (2^bits - 1) in the type of the weight (compressed-tensors)
 *   torchao          scale = amax / ((2^bits - 1) / 2) in f32
 *   torchao-no-clip  scale = max(-min / 2^(bits-1), max / (2^(bits-1) - 1)) in f32
 *
 * Codes are rint(w / scale), clamped (q4_0: trunc(w / scale + 8.5), as GGML does). Unlike a grid
 * (qat_grid.h) this changes values.
 */
#ifndef ASSAY_QUANT_QAT_FORMULA_H
#define ASSAY_QUANT_QAT_FORMULA_H

#include "ckpt/checkpoint.h"

enum qat_kind { QAT_NONE, QAT_Q4_0, QAT_CT, QAT_TORCHAO, QAT_TORCHAO_NO_CLIP };

struct qat_formula {
    enum qat_kind kind;
    int bits, group;
};

/* "NAME[:BITS[:GROUP]]"; bits 4 and group 32 unless said. ERR_USAGE. */
MUST_USE enum err_code qat_formula_parse(struct qat_formula *f, const char *text, struct err *e);
const char *qat_formula_text(const struct qat_formula *f, char buf[48]); /* "torchao:4:32" */
/* Format for weights of a type. */
struct qformat qat_formula_format(const struct qat_formula *f, enum dtype weight);
/* n_groups groups of finite values, one behind another. False: a scale does not fit its type. */
bool qat_formula_encode(const struct qat_formula *f, enum dtype weight, const float *w,
                        int64_t n_groups, uint8_t *codes, uint8_t *scales, uint8_t *biases);

#endif
