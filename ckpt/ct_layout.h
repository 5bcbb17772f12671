/* ct_layout.h: matrices packed by compressed-tensors ("pack-quantized" integers): what config.json
 * says of a module, held against its tensors; rows as values and as affine groups.
 *
 *   weight_packed      I32 [out, words]   q + 2^(bits-1), unsigned, in one of two layouts: dense,
 *                      a bit stream a row (since 0.18), or whole values in each word (before)
 *   weight_scale       float [out, in/group] ([out, 1] a channel, [1] a tensor)
 *   weight_zero_point  I32 [words, in/group], packed alike along the first dimension; asymmetric
 *   weight_shape       I64 [2]            (out, in)
 *   weight_g_idx       I32 [in]           read only when it changes nothing
 *
 * The value is (q - zero) * scale. All that the configuration can say is read, or refused by name.
 */
#ifndef ASSAY_CKPT_CT_LAYOUT_H
#define ASSAY_CKPT_CT_LAYOUT_H

#include "ckpt/checkpoint.h"

struct ct_layout; /* the checked configuration */

/* *l is NULL when config.json names another method or none. ERR_INPUT says what is not read. */
MUST_USE enum err_code ct_layout_open(struct ct_layout **l, const json_t *config, struct err *e);
void ct_layout_close(struct ct_layout *l);

/* What the configuration promises of a module. */
struct ct_module {
    int bits;
    int64_t group; /* 0: a channel; -1: the whole tensor */
    bool symmetric;
};
MUST_USE enum err_code ct_layout_module(const struct ct_layout *l, const char *module,
                                        struct ct_module *m, struct err *e);

/* The tensors of a module; any but the first may be missing. */
struct ct_tensors {
    const struct tensor *packed, *scale, *zero, *shape, *g_idx;
};
/* How a bound module lies in memory. */
struct ct_packed {
    int bits;
    bool dense, symmetric;
    int64_t group, groups,
        words; /* of a row: elements a scale, scales, words; groups 0: one scale */
    const uint8_t *data, *scales, *zeros;
    size_t data_bytes, scale_bytes, zero_bytes;
    enum dtype scale;
};
/* Checks the tensors and fills encoding, dims and data of w; *p becomes w->ct. */
MUST_USE enum err_code ct_layout_bind(struct ckpt_weight *w, struct ct_packed *p,
                                      const struct ct_module *m, const struct ct_tensors *t,
                                      struct err *e);

/* One row: exact products, rounded once to f32. */
void ct_packed_decode(const struct ckpt_weight *w, int64_t row, float *out);
/* See ckpt_weight_packed_format and ckpt_weight_repack. */
bool ct_packed_affine_format(const struct ckpt_weight *w, struct qformat *q);
void ct_packed_affine_rows(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                           uint8_t *codes, uint8_t *scales, uint8_t *biases);

#endif
