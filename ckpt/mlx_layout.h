/* mlx_layout.h: packed modules of the MLX layout: what config.json says of a module, held against
 * the shapes of its tensors (docs/formats.md, 2.2 and 2.4).
 */
#ifndef ASSAY_CKPT_MLX_LAYOUT_H
#define ASSAY_CKPT_MLX_LAYOUT_H

#include "ckpt/checkpoint.h"

struct mlx_module {
    bool quantized;
    bool known; /* false: a mode that is not supported; `mode` names it */
    bool block; /* a block float; else affine */
    const char *mode;
    int bits, group;
};

/* The quantization block of a config.json: `quantization`, or `quantization_config` when that is
 * its copy or names a method that is one of the modes (mxfp4, mxfp8). NULL: none. */
const json_t *mlx_layout_block(const json_t *config);
/* The method of a checkpoint that was packed by something else ("gptq"), or NULL. */
const char *mlx_layout_foreign(const json_t *config);
/* What the block says of a module whose scales are (not) there. */
MUST_USE enum err_code mlx_layout_module(const json_t *block, const char *module, bool has_scales,
                                         struct mlx_module *m, struct err *e);
/* The tensors of a packed module; those that are not there are NULL. */
struct mlx_parts {
    const struct tensor *weight, *scales, *biases, *globals;
};
/* Checks the tensors against the module's parameters and fills encoding, format, logical dims and
 * data of w. */
MUST_USE enum err_code mlx_layout_bind(struct ckpt_weight *w, const struct mlx_module *m,
                                       const struct mlx_parts *p, struct err *e);

#endif
