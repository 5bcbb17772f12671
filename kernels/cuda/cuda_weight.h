/* cuda_weight.h: a matrix on the device, as kernels see it. */
#ifndef ASSAY_KERNELS_CUDA_CUDA_WEIGHT_H
#define ASSAY_KERNELS_CUDA_CUDA_WEIGHT_H

#include "kernels/cuda/cuda_order.h"
#include "kernels/cuda/cuda_private.h"

struct cuda_weight {
    struct kern_weight base;
    struct cuda_order order;
    int64_t n_tiles;
    size_t tile_bytes;
    uint8_t *data; /* device, n_tiles * tile_bytes */
};

static inline const struct cuda_weight *cuda_weight_of(const struct kern_weight *w)
{
    return (const struct cuda_weight *)w;
}

#endif
