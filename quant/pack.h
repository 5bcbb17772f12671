/* pack.h: writes a plan's tensors as safetensors, streaming.
 *
 * Workers take tasks from one list: hash the next piece of a source file, encode a run of rows,
 * hash a finished tensor, write the next part. Results go to slots by index, parts are written in
 * the order of their names, so the bytes never depend on the number of threads. In memory are the
 * tensors between encoding and writing, at most PACK_WINDOW bytes or the one that is needed next,
 * and a run's values per worker; pages of the source are dropped when they are done with.
 */
#ifndef ASSAY_QUANT_PACK_H
#define ASSAY_QUANT_PACK_H

#include "quant/affine.h"
#include "quant/plan.h"

#define PACK_WINDOW      ((uint64_t)96 << 20)
#define PACK_SHARD_BYTES ((uint64_t)5 << 30) /* MLX's own limit */

struct pack_options {
    int threads; /* 0: par_default_threads */
    enum affine_isa isa;
    uint64_t shard_bytes;            /* 0: PACK_SHARD_BYTES */
    const volatile int *interrupted; /* may be NULL */
    void (*progress)(void *ctx,
                     uint64_t more_bytes); /* of source weights; from the caller's thread */
    void *progress_ctx;
};

struct pack_tensor {
    char sha256[65]; /* of the parts one behind another: biases, global scales, scales, weight */
    bool exact;      /* every decoded value == the source's */
    bool copied;     /* the very bytes */
    struct errstat_figures figures;
};

struct pack_file {
    char name[64]; /* in the folder */
    uint64_t bytes;
    char sha256[65];
};

struct pack_result {
    struct pack_tensor *tensors; /* one a plan item */
    struct pack_file *files;
    size_t n_files;
    char (*source_sha256)[65]; /* one a file of the checkpoint */
};

/* Writes model.safetensors, or shards with their index, into the folder dir. */
MUST_USE enum err_code pack_write(const struct plan *p, const char *dir,
                                  const struct pack_options *o, struct pack_result *r,
                                  struct err *e);
void pack_result_free(struct pack_result *r);

/* The module that mlx-lm knows a packed weight by ("model.layers.0.mlp.up_proj"), or for a dense
 * weight its name. ERR_INPUT when it is too long. */
MUST_USE enum err_code pack_name(const struct plan *p, const struct plan_item *it,
                                 char out[CKPT_NAME_MAX], struct err *e);

#endif
