/* engine_buffers.h: every buffer of a step with its lifetime: what `infer --plan` prints.
 *
 * Found by a dry run of the forward pass at the plan's largest step, over addresses without memory
 * (kernels_record.h): no weight is read but the norms'. A value is what one operation writes; it
 * lives until its last reader, and its bytes may hold another value then.
 */
#ifndef ASSAY_INFER_ENGINE_BUFFERS_H
#define ASSAY_INFER_ENGINE_BUFFERS_H

#include "infer/engine.h"

struct engine_value {
    const char *block; /* "activations", "logits", "step outputs" */
    size_t offset, bytes;
    char write[32], last_read[32]; /* operations; last_read "host" for what a step gives out */
    int layer;                     /* of the first one; -1: outside the layers */
    int times;                     /* how many values of a step have this place and these two */
};

struct engine_buffers {
    struct engine_value *values; /* by block and offset, then in the order they are written */
    size_t n;
};

/* ERR_INTERNAL, with the operation, when one reads bytes that another value has taken: the family's
 * layout is wrong. */
MUST_USE enum err_code engine_buffers_find(struct engine_buffers *b, const struct checkpoint *c,
                                           const struct engine_options *o, struct err *e);
void engine_buffers_free(struct engine_buffers *b);

/* Tests only: activations are seen at their offset modulo `fold` (0: as they are), so that buffers
 * fall on each other. */
void engine_buffers_plant(size_t fold);

#endif
