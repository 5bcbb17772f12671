/* shapes.h: published models by name, as the facts of their config.json, and checkpoints of those
 * shapes with synthetic weights.
 *
 * A synthetic checkpoint has every tensor that the family binds, in 4 bits with groups of 64 (the
 * router in 8; gpt-oss in 8 with experts in mxfp4), random codes and norms of one. Its matrices
 * share one stretch of random bytes that is mapped again and again, so a 30 B model takes some 100
 * MB of memory. For measuring only.
 */
#ifndef ASSAY_INFER_SHAPES_H
#define ASSAY_INFER_SHAPES_H

#include "ckpt/checkpoint.h"

/* The config of a shape, or of a file whose name ends in ".json"; a new reference. ERR_USAGE names
 * the shapes that there are. */
MUST_USE enum err_code shapes_config(const char *name, json_t **config, struct err *e);

/* To be freed with shapes_free, not checkpoint_close. */
MUST_USE enum err_code shapes_checkpoint(struct checkpoint **c, const char *name, struct err *e);
void shapes_free(struct checkpoint *c);

#endif
