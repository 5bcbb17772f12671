/* cuda_experts.cuh: which pairs a block works on: the items of a step, found by every block from
 * the places where the experts' pairs begin.
 *
 * An item is up to `per` neighbouring pairs of one expert. Items are numbered in the order of the
 * experts; an expert without a pair has none.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_EXPERTS_CUH
#define ASSAY_KERNELS_CUDA_CUDA_EXPERTS_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_experts.h"
#include "kernels/elem.h"

struct expert_lists {
    int *first;  /* [n_expert + 1] in shared memory, as in route_args */
    int *starts; /* [n_expert + 1]: items of lower experts */
};

__host__ __device__ constexpr int expert_lists_bytes(int n_expert)
{
    return (n_expert + 1) * 2 * 4;
}

/* By the whole block, whose barrier it ends with. */
__device__ static void list_items(const int32_t *first, int n_expert, int per,
                                  struct expert_lists l)
{
    for (int i = (int)threadIdx.x; i <= n_expert; i += (int)blockDim.x)
        l.first[i] = __ldcg(first + i);
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = (int)threadIdx.x, each = (n_expert + 31) / 32, at = lane * each, mine = 0;
        int end = MIN2(at + each, n_expert);
        for (int i = at; i < end; i++)
            mine += (l.first[i + 1] - l.first[i] + per - 1) / per;
        int upto = mine;
        for (int n = 1; n < 32; n *= 2) {
            int lower = __shfl_up_sync(0xffffffffu, upto, n);
            upto += lane >= n ? lower : 0;
        }
        if (lane == 31)
            l.starts[n_expert] = upto;
        upto -= mine;
        for (int i = at; i < end; i++) {
            l.starts[i] = upto;
            upto += (l.first[i + 1] - l.first[i] + per - 1) / per;
        }
    }
    __syncthreads();
}

/* The expert of an item; any expert for one that is not there. */
__device__ static int expert_of_item(struct expert_lists l, int n_expert, int item)
{
    int low = 0, high = n_expert;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (l.starts[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The activation of a pair's row: act_mul's. */
__device__ static inline uint16_t expert_act(const struct cuda_experts &a, float gate, float up)
{
    float y;
    if (a.act == ACT_SILU)
        y = elem_silu_mul(gate, up);
    else if (a.act == ACT_GELU_TANH)
        y = elem_gelu_tanh_mul(gate, up);
    else
        y = elem_gptoss_mul(gate, up, a.limit, a.alpha);
    return bf16_from_f32(y);
}

#endif
