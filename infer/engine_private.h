/* engine_private.h: what engine.c and engine_plan.c share: sizes and offsets of every buffer. */
#ifndef ASSAY_INFER_ENGINE_PRIVATE_H
#define ASSAY_INFER_ENGINE_PRIVATE_H

#include "infer/engine.h"
#include "infer/model.h"
#include "infer/rope.h"

/* Offsets in 32-bit words of the input block. */
struct engine_inputs {
    size_t id, pos, seq, out_row, pages, words;
};

/* Offsets in bytes of the output block; all rows at their place, so one copy brings them. */
struct engine_outputs {
    size_t hash, top_id, top, lse, id, logit, bytes;
};

/* What sampling of a step's rows needs, in pieces of so many rows: their settings and then lists in
 * one block, and room to work. */
struct engine_draws {
    int rows;
    int64_t lists; /* words */
    size_t bytes, room;
};

struct engine_sizes {
    struct engine_inputs in;
    struct engine_outputs out;
    struct engine_draws draws;
    struct kern_limits limits;
    /* Bytes. All but rows are device blocks; rope: of full and of sliding layers. */
    size_t model_scratch, inputs, outputs, logits, hashes, rope[2], kv, rows;
    size_t page_bytes[2]; /* of a full and of a sliding layer */
};

/* One table serves all layers unless sliding layers turn by parameters of their own. */
static inline int engine_n_rope(const struct hparams *hp)
{
    return hp->two_ropes ? 2 : 1;
}

/* Resolves the defaults of o and sizes everything; also lays out the model's scratch. */
MUST_USE enum err_code engine_plan_sizes(struct model *m, const struct kern *k,
                                         const struct engine_options *o, struct engine_plan *plan,
                                         struct engine_sizes *z, struct err *e);

MUST_USE enum err_code engine_hash_weights(const struct checkpoint *c, const struct hparams *hp,
                                           const struct kern *k, char hex[65], struct err *e);

#endif
