/* cuda_route.cu: which experts a row takes, with which weights, and the stable order of (row, slot)
 * pairs by expert.
 *
 * A warp a row (cuda_route.cuh). Steps of up to ROUTE_FEW rows are one block. Longer steps go to
 * order_pairs: a block an expert, which counts the pairs of lower experts and writes its own in
 * ascending order. Integers alone, so nothing depends on who comes first. More experts than the
 * lanes of a warp hold, or more slots than it has lanes, go to route_any.
 *
 * All kernels start early (cuda_launch.cuh).
 */

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_route.cuh"

#define WARPS     4
#define BLOCK     (32 * WARPS)
#define HELD_MOST 8 /* experts of a lane: 256 */

/* ---- rows ---------------------------------------------------------------------------------------
 */
template <int HELD> __global__ static void __launch_bounds__(BLOCK) route_rows(struct route_args a)
{
    __shared__ __align__(16) float room[WARPS][32 * HELD];
    int warp = (int)threadIdx.x / 32, t = (int)blockIdx.x * WARPS + warp;
    launch_wait();
    launch_trigger();
    if (t < a.n_tok)
        (void)route_held<HELD>(a, t, room[warp], true);
}

/* ---- steps of few rows --------------------------------------------------------------------------
 */
template <int HELD>
__global__ static void __launch_bounds__(32 * ROUTE_FEW) route_few(struct route_args a)
{
    __shared__ __align__(16) uint8_t room[route_room_bytes(ROUTE_FEW, HELD)];
    __shared__ int first[32 * HELD + 1], order[ROUTE_FEW * ROUTE_SLOTS];
    launch_wait();
    launch_trigger();
    route_block<HELD>(a, room, first, order, true);
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
    if (a->n_tok <= ROUTE_FEW)
        launch_early(route_few<HELD>, dim3(1), 32 * MAX2(a->n_tok, 1), 0, stream, *a);
    else
        launch_early(route_rows<HELD>, rows, BLOCK, 0, stream, *a);
}

extern "C" enum err_code cuda_route(struct kern *k, const struct route_args *a, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    bool held = a->n_expert <= 32 * HELD_MOST && a->n_used <= ROUTE_SLOTS;
    dim3 rows((unsigned)((a->n_tok + WARPS - 1) / WARPS));
    c->lists_stand = NULL;
    if (held && a->n_expert <= 128)
        launch_held<4>(a, rows, c->stream);
    else if (held)
        launch_held<HELD_MOST>(a, rows, c->stream);
    else if (a->n_tok > 0)
        launch_early(route_any, rows, BLOCK, 0, c->stream, *a);
    if (!held || a->n_tok > ROUTE_FEW)
        launch_early(order_pairs, dim3((unsigned)a->n_expert), ORDER_BLOCK, 0, c->stream, *a);
    return cuda_launched("route", e);
}
