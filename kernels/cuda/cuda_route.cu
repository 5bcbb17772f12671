/* cuda_route.cu: which experts a row takes, with which weights, and the stable order of (row, slot)
 * pairs by expert.
 *
 * A warp a row. The chosen are found one after the other as the greatest that is left, ties to the
 * lower index; exponentials are computed by all lanes, stand in shared memory and are added by
 * every lane in the order of the experts; slots likewise, from lane to lane.
 *
 * Steps of up to FEW_TOKENS rows are one block: a row takes an expert once at most, so a pair's
 * place among an expert's is the number of lower rows that took it, counted in a mask of bits.
 * Longer steps go to order_pairs: a block an expert, which counts the pairs of lower experts and
 * writes its own in ascending order. Integers alone, so nothing depends on who comes first.
 *
 * All kernels start early (cuda_launch.cuh).
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/elem.h"

#define WARPS      4
#define BLOCK      (32 * WARPS)
#define ALL_LANES  0xffffffffu
#define FEW_TOKENS 16 /* rows of a step that one block takes */
#define HELD_MOST  8  /* experts of a lane: 256 */

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

/* Row t with up to 32 * HELD experts, up to 32 of them used: lane s returns slot s's expert, and
 * writes it and its weight. room: 32 * HELD floats of the warp. */
template <int HELD> __device__ static int route_held(const struct route_args &a, int t, float *room)
{
    const float *l = a.logits + (int64_t)t * a.n_expert;
    int lane = (int)threadIdx.x % 32, mine = 0;
    float logit[HELD], weight = 0.0f, max = 0.0f;
    uint32_t key[HELD], left = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int x = lane + 32 * i;
        logit[i] = x < a.n_expert ? l[x] : 0.0f;
        left |= x < a.n_expert ? 1u << i : 0u;
        key[i] = (uint32_t)elem_order_key(logit[i]) ^ 0x80000000u;
        room[x] = logit[i];
    }
    __syncwarp();
    for (int s = 0; s < a.n_used; s++) {
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
        float chosen = room[index];
        if (s == 0)
            max = chosen;
        if (s == lane) {
            mine = (int)index;
            weight = elem_exp(chosen - max);
        }
    }
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

template <int HELD> __global__ static void __launch_bounds__(BLOCK) route_rows(struct route_args a)
{
    __shared__ __align__(16) float room[WARPS][32 * HELD];
    int warp = (int)threadIdx.x / 32, t = (int)blockIdx.x * WARPS + warp;
    launch_wait();
    launch_trigger();
    if (t < a.n_tok)
        (void)route_held<HELD>(a, t, room[warp]);
}

/* ---- steps of few rows --------------------------------------------------------------------------
 */
template <int HELD>
__global__ static void __launch_bounds__(32 * FEW_TOKENS) route_few(struct route_args a)
{
    __shared__ __align__(16) float room[FEW_TOKENS][32 * HELD];
    __shared__ uint32_t took[32 * HELD]; /* bit t: row t took the expert */
    __shared__ int first[32 * HELD];
    int t = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, x = 0;
    for (int i = (int)threadIdx.x; i < 32 * HELD; i += (int)blockDim.x)
        took[i] = 0;
    launch_wait();
    launch_trigger();
    __syncthreads();
    if (t < a.n_tok) {
        x = route_held<HELD>(a, t, room[t]);
        if (lane < a.n_used)
            atomicOr(&took[x], 1u << t);
    }
    __syncthreads();
    if (t == 0) {
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
            first[lane * HELD + i] = upto;
            upto += __popc(took[lane * HELD + i]);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i <= a.n_expert; i += (int)blockDim.x)
        a.first[i] = i < a.n_expert ? first[i] : a.n_tok * a.n_used;
    if (t < a.n_tok && lane < a.n_used)
        a.order[first[x] + __popc(took[x] & ((1u << t) - 1))] = t * a.n_used + lane;
}

/* ---- rows of any shape --------------------------------------------------------------------------
 */
/* Greater for a greater logit, then for a lower index; never 0. */
__device__ static inline uint64_t rank_of(float logit, int index)
{
    uint32_t key = (uint32_t)elem_order_key(logit) ^ 0x80000000u;
    return (uint64_t)key << 32 | (0xffffffffu - (uint32_t)index);
}

__device__ static inline uint64_t warp_max(uint64_t v)
{
    for (int n = 16; n >= 1; n /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, (unsigned long long)v, n);
        v = MAX2(v, other);
    }
    return v;
}

/* The slots' values as they stand in w, added ascending. */
__device__ static float add_slots(const float *w, int n_used)
{
    int lane = (int)threadIdx.x % 32;
    float sum = 0.0f;
    for (int s = 0; s < n_used; s += 32) {
        float v = s + lane < n_used ? w[s + lane] : 0.0f;
        sum = add_lanes(sum, v, MIN2(32, n_used - s));
    }
    return sum;
}

__global__ static void __launch_bounds__(BLOCK) route_any(struct route_args a)
{
    int t = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint64_t last = ~0ull;
    float max = 0.0f, sum;
    launch_wait();
    launch_trigger();
    if (t >= a.n_tok)
        return;
    const float *l = a.logits + (int64_t)t * a.n_expert;
    int32_t *expert = a.expert + (int64_t)t * a.n_used;
    float *w = a.weight + (int64_t)t * a.n_used;
    for (int s = 0; s < a.n_used; s++) {
        uint64_t best = 0;
        for (int x = lane; x < a.n_expert; x += 32) {
            uint64_t rank = rank_of(l[x], x);
            if (rank < last)
                best = MAX2(best, rank);
        }
        last = warp_max(best);
        int chosen = (int)(0xffffffffu - (uint32_t)last);
        float logit = l[chosen];
        if (s == 0)
            max = logit;
        if (lane == s % 32) {
            expert[s] = chosen;
            w[s] = elem_exp(logit - max);
        }
    }
    __syncwarp();
    if (a.softmax_first) {
        float all = 0.0f;
        for (int x = 0; x < a.n_expert; x += 32) {
            float v = x + lane < a.n_expert ? elem_exp(l[x + lane] - max) : 0.0f;
            all = add_lanes(all, v, MIN2(32, a.n_expert - x));
        }
        for (int s = lane; s < a.n_used; s += 32)
            w[s] /= all;
        __syncwarp();
    }
    if (a.softmax_first && !a.norm)
        return;
    sum = add_slots(w, a.n_used);
    for (int s = lane; s < a.n_used; s += 32)
        w[s] /= sum;
}

/* ---- the order of pairs -------------------------------------------------------------------------
 */
#define ORDER_BLOCK 512
#define ORDER_WARPS (ORDER_BLOCK / 32)

/* Sum of v over the block, for every thread. */
__device__ static int block_sum(int v, int *warps)
{
    for (int n = 16; n >= 1; n /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, n);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < ORDER_WARPS; i++)
        v += warps[i];
    __syncthreads();
    return v;
}

/* Block x: the pairs of expert x. */
__global__ static void __launch_bounds__(ORDER_BLOCK) order_pairs(struct route_args a)
{
    __shared__ int warps[ORDER_WARPS];
    int n = a.n_tok * a.n_used, x = (int)blockIdx.x, lower = 0;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    launch_wait();
    launch_trigger();
    for (int p = (int)threadIdx.x; p < n; p += ORDER_BLOCK)
        lower += a.expert[p] < x;
    int at = block_sum(lower, warps);
    if (threadIdx.x == 0) {
        a.first[x] = at;
        if (x == a.n_expert - 1)
            a.first[a.n_expert] = n;
    }
    for (int p0 = 0; p0 < n; p0 += ORDER_BLOCK) {
        int p = p0 + (int)threadIdx.x;
        bool mine = p < n && a.expert[p] == x;
        uint32_t lanes = __ballot_sync(ALL_LANES, mine);
        int before = 0, all = 0;
        if (lane == 0)
            warps[warp] = __popc(lanes);
        __syncthreads();
        for (int i = 0; i < ORDER_WARPS; i++) {
            before += i < warp ? warps[i] : 0;
            all += warps[i];
        }
        __syncthreads();
        if (mine)
            a.order[at + before + __popc(lanes & ((1u << lane) - 1))] = p;
        at += all;
    }
}

template <int HELD>
static void launch_held(const struct route_args *a, dim3 rows, cudaStream_t stream)
{
    if (a->n_tok <= FEW_TOKENS)
        launch_early(route_few<HELD>, dim3(1), 32 * MAX2(a->n_tok, 1), 0, stream, *a);
    else
        launch_early(route_rows<HELD>, rows, BLOCK, 0, stream, *a);
}

extern "C" enum err_code cuda_route(struct kern *k, const struct route_args *a, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    bool held = a->n_expert <= 32 * HELD_MOST && a->n_used <= 32;
    dim3 rows((unsigned)((a->n_tok + WARPS - 1) / WARPS));
    c->lists_stand = NULL;
    if (held && a->n_expert <= 128)
        launch_held<4>(a, rows, c->stream);
    else if (held)
        launch_held<HELD_MOST>(a, rows, c->stream);
    else if (a->n_tok > 0)
        launch_early(route_any, rows, BLOCK, 0, c->stream, *a);
    if (!held || a->n_tok > FEW_TOKENS)
        launch_early(order_pairs, dim3((unsigned)a->n_expert), ORDER_BLOCK, 0, c->stream, *a);
    return cuda_launched("route", e);
}
