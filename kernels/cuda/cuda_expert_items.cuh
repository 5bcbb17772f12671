/* cuda_expert_items.cuh: which pairs a block works on: the items of a step, found by every block
 * from the places where the experts' pairs begin; and the activation of a pair.
 *
 * An item is up to PER neighbouring pairs of one expert. Items are numbered in the order of the
 * experts; an expert without a pair has none.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_EXPERT_ITEMS_CUH
#define ASSAY_KERNELS_CUDA_CUDA_EXPERT_ITEMS_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_experts.h"
#include "kernels/elem.h"

/* In shared memory. */
struct expert_items {
    int *first;       /* [n_expert + 1], as in route_args */
    int *starts;      /* [n_expert + 1]: items of lower experts */
    uint16_t *expert; /* of an item */
};

/* Items that n_pairs may make, at most. */
__host__ __device__ static inline int expert_items_most(int n_expert, int n_pairs, int per)
{
    return MIN2(n_pairs, n_expert + n_pairs / per);
}

__host__ __device__ static inline int expert_items_bytes(int n_expert, int n_pairs, int per)
{
    return (n_expert + 1) * 2 * 4 + (expert_items_most(n_expert, n_pairs, per) * 2 + 3) / 4 * 4;
}

__device__ static struct expert_items expert_items_at(void *shared, int n_expert)
{
    int *first = (int *)shared;
    return {first, first + n_expert + 1, (uint16_t *)(first + 2 * (n_expert + 1))};
}

/* Numbers the items that l->first gives. By the whole block, whose barrier it ends with. */
template <int PER> __device__ static void number_items(int n_expert, struct expert_items *l)
{
    if (PER == 1) {
        l->starts = l->first;
        for (int e = (int)threadIdx.x; e < n_expert; e += (int)blockDim.x)
            for (int i = l->first[e]; i < l->first[e + 1]; i++)
                l->expert[i] = (uint16_t)e;
    } else if (threadIdx.x < 32) {
        int lane = (int)threadIdx.x, each = (n_expert + 31) / 32, at = lane * each, mine = 0;
        int end = MIN2(at + each, n_expert);
        for (int e = at; e < end; e++)
            mine += (l->first[e + 1] - l->first[e] + PER - 1) / PER;
        int upto = mine;
        for (int n = 1; n < 32; n *= 2) {
            int lower = __shfl_up_sync(0xffffffffu, upto, n);
            upto += lane >= n ? lower : 0;
        }
        if (lane == 31)
            l->starts[n_expert] = upto;
        upto -= mine;
        for (int e = at; e < end; e++) {
            l->starts[e] = upto;
            for (int i = l->first[e]; i < l->first[e + 1]; i += PER)
                l->expert[upto++] = (uint16_t)e;
        }
    }
    __syncthreads();
}

template <int PER>
__device__ static void list_items(const int32_t *first, int n_expert, struct expert_items *l)
{
    for (int i = (int)threadIdx.x; i <= n_expert; i += (int)blockDim.x)
        l->first[i] = __ldcg(first + i);
    __syncthreads();
    number_items<PER>(n_expert, l);
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
