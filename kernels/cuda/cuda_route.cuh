/* cuda_route.cuh: which experts a row takes, with which weights, by one warp; and the choices of a
 * step of few rows with their order, by one block.
 *
 * The chosen are found one after the other as the greatest that is left, ties to the lower index;
 * exponentials are computed by all lanes, stand in shared memory and are added by every lane in the
 * order of the experts; slots likewise, from lane to lane. A row takes an expert once at most, so a
 * pair's place among an expert's is the number of lower rows that took it, counted in a mask of
 * bits.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ROUTE_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ROUTE_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_private.h"
#include "kernels/elem.h"

#define ALL_LANES   0xffffffffu
#define ROUTE_FEW   16 /* rows of a step that one block takes */
#define ROUTE_SLOTS 32 /* experts of a row, at most */

/* ---- rows ---------------------------------------------------------------------------------------
 */
/* sum + the first n of the lanes' values, ascending. */
__device__ static inline float add_lanes(float sum, float v, int n)
{
    for (int i = 0; i < n; i++)
        sum += __shfl_sync(ALL_LANES, v, i);
    return sum;
}

/* Ascending; n is the same for all lanes. */
__device__ static float add_shared(const float *v, int n)
{
    float sum = 0.0f;
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float4 w = *(const float4 *)(const void *)(v + i);
        sum += w.x;
        sum += w.y;
        sum += w.z;
        sum += w.w;
    }
    for (; i < n; i++)
        sum += v[i];
    return sum;
}

/* The n_used greatest of a row of n_expert logits, ties to the lower index: lane s returns the
 * s-th. *first: the greatest. logit: those of the lane. */
template <int HELD>
__device__ static inline int pick_held(const float *l, int n_expert, int n_used,
                                       float (&logit)[HELD], int *first)
{
    int lane = (int)threadIdx.x % 32, mine = 0;
    uint32_t key[HELD], left = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int x = lane + 32 * i;
        logit[i] = x < n_expert ? l[x] : 0.0f;
        left |= x < n_expert ? 1u << i : 0u;
        key[i] = (uint32_t)elem_order_key(logit[i]) ^ 0x80000000u;
    }
    for (int s = 0; s < n_used; s++) {
        uint32_t best = 0, at = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (left >> i & 1 && (at == 0xffffffffu || key[i] > best)) {
                best = key[i];
                at = (uint32_t)i;
            }
        uint32_t index = at == 0xffffffffu ? at : at * 32 + (uint32_t)lane;
        uint32_t greatest = __reduce_max_sync(ALL_LANES, best);
        index = __reduce_min_sync(ALL_LANES, best == greatest ? index : 0xffffffffu);
        if (index % 32 == (uint32_t)lane)
            left &= ~(1u << index / 32);
        if (s == 0)
            *first = (int)index;
        if (s == lane)
            mine = (int)index;
    }
    return mine;
}

/* Row t with up to 32 * HELD experts, up to 32 of them used: lane s returns slot s's expert, and,
 * if it is to write, writes it and its weight. room: 32 * HELD floats of the warp. */
template <int HELD>
__device__ static int route_held(const struct route_args &a, int t, float *room, bool write)
{
    int lane = (int)threadIdx.x % 32, first = 0;
    float logit[HELD], weight = 0.0f;
    int mine = pick_held(a.logits + (int64_t)t * a.n_expert, a.n_expert, a.n_used, logit, &first);
    if (!write)
        return mine;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        room[lane + 32 * i] = logit[i];
    __syncwarp();
    float max = room[first];
    weight = lane < a.n_used ? elem_exp(room[mine] - max) : 0.0f;
    if (a.softmax_first) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < HELD; i++)
            room[lane + 32 * i] = elem_exp(logit[i] - max);
        __syncwarp();
        weight /= add_shared(room, a.n_expert);
    }
    if (!a.softmax_first || a.norm)
        weight /= add_lanes(0.0f, weight, a.n_used);
    if (lane < a.n_used) {
        a.expert[(int64_t)t * a.n_used + lane] = mine;
        a.weight[(int64_t)t * a.n_used + lane] = weight;
    }
    return mine;
}

/* ---- steps of few rows --------------------------------------------------------------------------
 */
/* Shared memory that route_block works in. */
__host__ __device__ constexpr int route_room_bytes(int n_tok, int held)
{
    return (n_tok + 1) * 32 * held * 4 + n_tok * ROUTE_SLOTS;
}

/* All rows of a step of up to ROUTE_FEW: first and order as in route_args, in shared memory, and if
 * it is to write, all results in global memory. By the whole block, whose barrier it ends with. */
template <int HELD>
__device__ static void route_block(const struct route_args &a, void *room, int *first, int *order,
                                   bool write)
{
    uint32_t *took = (uint32_t *)room; /* bit t: row t took the expert */
    float *rows = (float *)room + 32 * HELD;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n_warps = (int)blockDim.x / 32;
    uint8_t *chosen = (uint8_t *)(rows + a.n_tok * 32 * HELD);
    for (int i = (int)threadIdx.x; i < 32 * HELD; i += (int)blockDim.x)
        took[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int t = warp; t < a.n_tok; t += n_warps) {
        int x = route_held<HELD>(a, t, rows + t * 32 * HELD, write);
        if (lane < a.n_used) {
            atomicOr(&took[x], 1u << t);
            chosen[t * ROUTE_SLOTS + lane] = (uint8_t)x;
        }
    }
    __syncthreads();
    if (warp == 0) {
        int mine = 0;
        for (int i = 0; i < HELD; i++)
            mine += __popc(took[lane * HELD + i]);
        int upto = mine;
        for (int n = 1; n < 32; n *= 2) {
            int lower = __shfl_up_sync(ALL_LANES, upto, n);
            upto += lane >= n ? lower : 0;
        }
        upto -= mine;
        for (int i = 0; i < HELD; i++) {
            if (lane * HELD + i < a.n_expert)
                first[lane * HELD + i] = upto;
            upto += __popc(took[lane * HELD + i]);
        }
        if (lane == 31)
            first[a.n_expert] = upto;
    }
    __syncthreads();
    for (int t = warp; t < a.n_tok; t += n_warps)
        if (lane < a.n_used) {
            int x = chosen[t * ROUTE_SLOTS + lane];
            order[first[x] + __popc(took[x] & ((1u << t) - 1))] = t * a.n_used + lane;
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; write && i <= a.n_expert; i += (int)blockDim.x)
        a.first[i] = first[i];
    for (int i = (int)threadIdx.x; write && i < a.n_tok * a.n_used; i += (int)blockDim.x)
        a.order[i] = order[i];
}

#endif
