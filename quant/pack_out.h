/* pack_out.h: the tensors of a plan as parts in the order of their names, cut into shards.
 *
 * A packed weight has three parts (biases, scales, weight; block floats have no biases, and maybe
 * global scales), a dense one has one. The order is that
 * of the files; tensors are encoded in the order in which their first part is needed.
 */
#ifndef ASSAY_QUANT_PACK_OUT_H
#define ASSAY_QUANT_PACK_OUT_H

#include "ckpt/st_writer.h"
#include "quant/pack.h"

enum pack_part_kind { PACK_BIASES, PACK_GLOBALS, PACK_SCALES, PACK_CODES, PACK_DENSE };

struct pack_part {
    char *name;
    size_t item;
    enum pack_part_kind kind;
    enum dtype dtype;
    int n_dim;
    int64_t dim[CKPT_DIMS_MAX];
    uint64_t bytes;
    size_t shard;
};

struct pack_out {
    char *dir;
    struct pack_part *parts; /* by name */
    size_t n_parts, n_shards;
    size_t *order; /* items by their first part */
    size_t n_items;
    struct st_writer *writer; /* of the shard being written */
    uint64_t shard_bytes;     /* written to it */
    struct pack_file *files;  /* one a shard */
};

MUST_USE enum err_code pack_out_open(struct pack_out *o, const struct plan *p, const char *dir,
                                     uint64_t shard_limit, struct err *e);
/* Writes part number `part`; parts come in order. Opens and finishes shards. */
MUST_USE enum err_code pack_out_write(struct pack_out *o, size_t part, const uint8_t *data,
                                      struct err *e);
/* May come before a part's write: hashes its bytes beside *piece. */
MUST_USE enum err_code pack_out_hash(struct pack_out *o, size_t part, const uint8_t *data,
                                     struct sha256_piece *piece, struct err *e);
/* The index of the shards, when there are several; gives the list of files away. */
MUST_USE enum err_code pack_out_finish(struct pack_out *o, struct pack_result *r, struct err *e);
void pack_out_close(struct pack_out *o);

#endif
