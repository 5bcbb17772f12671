/* cuda_slot.h: pinned slots of rows, and how they get into the device order. */
#ifndef ASSAY_KERNELS_CUDA_CUDA_SLOT_H
#define ASSAY_KERNELS_CUDA_CUDA_SLOT_H

#include "kernels/cuda/cuda_gather.h"
#include "kernels/cuda/cuda_private.h"

#define SLOT_STAGES 4
#define SLOT_BYTES  ((size_t)SLOT_STAGES * CUDA_STAGE_BYTES)

/* What a slot of some rows holds: offsets of its arrays, and its bytes. */
struct cuda_slot {
    size_t row_bytes, scales, biases, globals, bytes;
};

#ifdef __cplusplus
extern "C" {
#endif

/* The next slot, when the device has read what was in it. */
MUST_USE enum err_code cuda_load_slot(struct cuda_kern *c, uint8_t **slot, struct err *e);
/* Sends the slot given last; out: where the first row's tile stands on the device. `type`: of
 * scales and biases, or of dense values. */
MUST_USE enum err_code cuda_load_send(struct cuda_kern *c, const struct cuda_order *o,
                                      const struct cuda_slot *at, int64_t rows, enum dtype type,
                                      uint8_t *out, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
