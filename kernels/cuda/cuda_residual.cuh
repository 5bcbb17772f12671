/* cuda_residual.cuh: what the joined norms share: the tree of a norm's sum in a warp, and how they
 * begin.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_RESIDUAL_CUH
#define ASSAY_KERNELS_CUDA_CUDA_RESIDUAL_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_private.h"
#include "kernels/elem.h"

#define BLOCK      ELEM_NORM_LANES
#define WARPS      (BLOCK / 32)
#define WARP_LANES (ELEM_NORM_LANES / 32)
#define ALL_LANES  0xffffffffu

/* The sum of 256 lanes, whose lane j + 32 i is sum[i] of thread j; for every thread of the warp. */
template <int N> __device__ static float warp_sum(float (&sum)[N])
{
#pragma unroll
    for (int n = N / 2; n >= 1; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            sum[i] += sum[i + n];
    for (int n = 16; n >= 1; n /= 2)
        sum[0] += __shfl_down_sync(ALL_LANES, sum[0], (unsigned)n);
    return __shfl_sync(ALL_LANES, sum[0], 0);
}

/* Planted: work that lasts longer; a kernel that does not wait for the one before it, nor its
 * blocks for each other; and one that asks late for what it copies. */
struct residual_plant {
    int delay_ns;
    bool no_wait;
    enum cuda_plant_copy copy;
};

static struct residual_plant plant_of(const struct cuda_kern *c)
{
    return {c->plant_delay_ns, c->plant_no_wait, c->plant_copy};
}

__device__ static inline void begin(const struct residual_plant &plant)
{
    if (!plant.no_wait)
        launch_wait();
    launch_trigger();
    for (int ns = plant.delay_ns; ns > 0; ns -= 1000)
        __nanosleep(1000);
}

#endif
