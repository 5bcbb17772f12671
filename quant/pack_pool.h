/* pack_pool.h: buffers that go round among tensors. Fresh memory costs a fault and a cleared page
 * for every 4 KiB; tensors come in few sizes, so a buffer that was written out mostly fits the next
 * one. Not safe for several threads at once: the caller holds its lock. */
#ifndef ASSAY_QUANT_PACK_POOL_H
#define ASSAY_QUANT_PACK_POOL_H

#include "common/base.h"

#define PACK_POOL_MAX 16

struct pack_pool {
    struct pack_buffer {
        uint8_t *mem;
        uint64_t bytes;
    } spare[PACK_POOL_MAX];
    size_t n;
    uint64_t bytes; /* of all that are spare */
};

/* A buffer of `bytes` or somewhat more; NULL: out of memory. Spare ones are freed as far as more
 * than `room` bytes would be held. */
struct pack_buffer pack_pool_take(struct pack_pool *p, uint64_t bytes, uint64_t room);
void pack_pool_give(struct pack_pool *p, struct pack_buffer b);
void pack_pool_free(struct pack_pool *p);

#endif
