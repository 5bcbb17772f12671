/* cpu_interleave.h: rows that lie one behind another, put side by side: what a load does to every
 * weight of the CPU. */
#ifndef ASSAY_KERNELS_CPU_CPU_INTERLEAVE_H
#define ASSAY_KERNELS_CPU_CPU_INTERLEAVE_H

#include "common/base.h"

/* Element i of row `lane` goes from from[lane * stride + i * size] to element i * step + lane of
 * `to`; n elements of 1, 2 or 4 bytes of each of `lanes` rows, a multiple of 16. */
void cpu_interleave(uint8_t *to, int64_t step, const uint8_t *from, size_t stride, size_t size,
                    int64_t n, int lanes);

/* Bytes between rows for rows of so many bytes: those of a tile share no set of the first cache. */
static inline size_t cpu_interleave_stride(size_t row_bytes)
{
    size_t lines = (row_bytes + 63) / 64;
    return (lines | 1) * 64;
}

#endif
