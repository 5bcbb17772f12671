/* cuda_moe.cu: routing, products with experts, and their combination.
 *
 * route: a warp a row. The chosen are found one after the other as the greatest below the last, by
 * key and then lower index; exponentials are computed by all lanes and added by every lane in the
 * order of the experts or slots. order_pairs: a block an expert, which counts the pairs of lower
 * experts and writes its own in ascending order; integers alone.
 *
 * expert_linear: a block is one tile of 16 weight rows for one expert and loops over the expert's
 * pairs, 32 at a time; its four warps take a chunk of K each, and the sums of four chunks at a time
 * are added in ascending order through shared memory: rule 2 as it is written. Bytes: the expert's
 * weights once for every 32 pairs; experts without a pair are not read. An expert's rows may begin
 * inside a tile: neighbours compute it both and write their own rows.
 *
 * combine: a thread an element, slots ascending.
 */
#include "kernels/cuda/cuda_product.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/mma90.h"

#define WARPS     4
#define BLOCK     (32 * WARPS)
#define ALL_LANES 0xffffffffu

/* Nothing is kept between launches. */
extern "C" size_t cuda_moe_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    (void)c;
    (void)l;
    return 0;
}

/* ---- routing ------------------------------------------------------------------------------------
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

/* sum + the first n of the lanes' values, ascending. */
__device__ static inline float add_lanes(float sum, float v, int n)
{
    for (int i = 0; i < n; i++)
        sum += __shfl_sync(ALL_LANES, v, i);
    return sum;
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

__global__ static void __launch_bounds__(BLOCK) route_rows(struct route_args a)
{
    int t = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint64_t last = ~0ull;
    float max = 0.0f, sum;
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

extern "C" enum err_code cuda_route(struct kern *k, const struct route_args *a, struct err *e)
{
    cudaStream_t stream = cuda_of(k)->stream;
    if (a->n_tok > 0)
        route_rows<<<(unsigned)((a->n_tok + WARPS - 1) / WARPS), BLOCK, 0, stream>>>(*a);
    order_pairs<<<(unsigned)a->n_expert, ORDER_BLOCK, 0, stream>>>(*a);
    return cuda_launched("route", e);
}

/* ---- products with experts ----------------------------------------------------------------------
 */
#define COLUMNS    8 /* pairs that one instruction takes */
#define GROUPS     4 /* groups of columns of a pass */
#define PASS       (COLUMNS * GROUPS)
#define OUTPUTS    (CUDA_TILE_ROWS * PASS)
#define PER_THREAD (OUTPUTS / BLOCK)

struct expert_product {
    struct expert_linear_args a;
    struct cuda_order order;
    const uint8_t *data;
    int64_t tile_bytes;
    bool aligned; /* pairs of k can be loaded as words */
};

/* Two neighbouring k of a row, +0 beyond the row's end and where there is no row. */
__device__ static inline uint32_t load_two(const uint16_t *x, int64_t k, int64_t k_end,
                                           bool aligned)
{
    if (!x || k >= k_end)
        return 0;
    if (aligned)
        return *(const uint32_t *)(x + k);
    uint32_t high = k + 1 < k_end ? x[k + 1] : 0;
    return x[k] | high << 16;
}

/* The sums of one chunk. x: this lane's row of each group of columns, or NULL. */
template <int BITS, enum cuda_scale SCALE>
__device__ static inline void sum_chunk(const struct expert_product &p, const uint8_t *tile,
                                        int64_t k0, int64_t k1, const uint16_t *const x[GROUPS],
                                        int n_groups, float acc[GROUPS][4])
{
    int lane = (int)threadIdx.x % 32, t = lane % 4;
    for (int64_t k = k0; k < k1; k += 64) {
        const uint8_t *piece = tile + k / CUDA_PIECE_K * p.order.piece_bytes;
        int block = (int)(k / 64 % 2);
        frag_words<BITS> words;
        frag_scale sc;
        frag_load<BITS>(piece, block, lane, words);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t w[4];
            if constexpr (BITS != CUDA_DENSE) {
                if (s % 2 == 0)
                    frag_load_scale<BITS, SCALE>(
                        piece + p.order.scales_at,
                        frag_group<SCALE>(block * 2 + s / 2, p.order.group), lane, sc);
            }
            frag_step<BITS, SCALE>(words, sc, s, w);
            int64_t at = k + 16 * s + 2 * t;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                if (g >= n_groups)
                    break;
                uint32_t b0 = load_two(x[g], at, p.order.k, p.aligned);
                uint32_t b1 = load_two(x[g], at + 8, p.order.k, p.aligned);
                frag_mma(acc[g], w, b0, b1);
            }
        }
    }
}

/* Places of sums of a chunk in shared memory: [column][row]. */
__device__ static inline int sum_place(int lane, int g, int i)
{
    int column = g * COLUMNS + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 * 8;
    return column * CUDA_TILE_ROWS + row;
}

/* Pairs [i0, i0 + n) of the order times the tile. */
template <int BITS, enum cuda_scale SCALE>
__device__ static void run_pass(const struct expert_product &p, int64_t tile, int i0, int n,
                                int expert, float sums[WARPS][OUTPUTS])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t chunk = mma90_chunk(p.order.k), n_chunks = (p.order.k + chunk - 1) / chunk;
    const uint16_t *x[GROUPS];
    float total[PER_THREAD];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int column = g * COLUMNS + lane / 4;
        x[g] = column < n ? (const uint16_t *)p.a.x +
                                (int64_t)(p.a.order[i0 + column] / p.a.x_div) * p.order.k
                          : NULL;
    }
    for (int64_t c0 = 0; c0 < n_chunks; c0 += WARPS) {
        int64_t k0 = (c0 + warp) * chunk, k1 = MIN2(k0 + chunk, p.order.k);
        float acc[GROUPS][4] = {};
        sum_chunk<BITS, SCALE>(p, p.data + tile * p.tile_bytes, k0, k1, x,
                               (n + COLUMNS - 1) / COLUMNS, acc);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[warp][sum_place(lane, g, i)] = acc[g][i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            int at = (int)threadIdx.x + i * BLOCK;
            for (int64_t c = c0; c < c0 + WARPS && c < n_chunks; c++)
                total[i] = c == 0 ? sums[0][at] : total[i] + sums[c - c0][at];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int at = (int)threadIdx.x + i * BLOCK, column = at / CUDA_TILE_ROWS;
        int64_t r = tile * CUDA_TILE_ROWS + at % CUDA_TILE_ROWS - expert * p.a.rows;
        if (column < n && r >= 0 && r < p.a.rows) {
            float bias = p.a.bias ? p.a.bias[expert * p.a.rows + r] : 0.0f;
            p.a.out[p.a.order[i0 + column] * p.a.out_stride + r] =
                p.a.bias ? total[i] + bias : total[i];
        }
    }
}

template <int BITS, enum cuda_scale SCALE>
__global__ static void __launch_bounds__(BLOCK) expert_tiles(struct expert_product p)
{
    __shared__ float sums[WARPS][OUTPUTS];
    int expert = (int)blockIdx.y, from = p.a.first[expert], to = p.a.first[expert + 1];
    int64_t row0 = expert * p.a.rows;
    int64_t tile = row0 / CUDA_TILE_ROWS + blockIdx.x;
    if (from == to || tile * CUDA_TILE_ROWS >= row0 + p.a.rows)
        return;
    for (int i = from; i < to; i += PASS)
        run_pass<BITS, SCALE>(p, tile, i, MIN2(PASS, to - i), expert, sums);
}

template <int BITS, enum cuda_scale SCALE>
static void launch(const struct expert_product *p, cudaStream_t stream)
{
    /* An expert's rows begin inside its first tile at worst in the last row. */
    int64_t tiles = (p->a.rows + CUDA_TILE_ROWS - 2) / CUDA_TILE_ROWS + 1;
    if (p->a.rows % CUDA_TILE_ROWS == 0)
        tiles = p->a.rows / CUDA_TILE_ROWS;
    dim3 grid((unsigned)tiles, (unsigned)p->a.n_expert);
    expert_tiles<BITS, SCALE><<<grid, BLOCK, 0, stream>>>(*p);
}

template <int BITS> static void launch_bits(const struct expert_product *p, cudaStream_t stream)
{
    switch (p->order.scale) {
    case CUDA_SCALE_LOW:
        launch<4, CUDA_SCALE_LOW>(p, stream);
        break;
    case CUDA_SCALE_NONE:
    case CUDA_SCALE_FAST:
        launch<BITS, CUDA_SCALE_FAST>(p, stream);
        break;
    case CUDA_SCALE_BF16:
        launch<BITS, CUDA_SCALE_BF16>(p, stream);
        break;
    case CUDA_SCALE_F16:
        launch<BITS, CUDA_SCALE_F16>(p, stream);
        break;
    case CUDA_SCALE_F32:
        launch<BITS, CUDA_SCALE_F32>(p, stream);
        break;
    case CUDA_SCALE_E8M0_FAST:
        launch<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0_FAST>(p, stream);
        break;
    case CUDA_SCALE_E8M0:
        launch<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0>(p, stream);
        break;
    case CUDA_SCALE_E4M3:
        launch<4, CUDA_SCALE_E4M3>(p, stream);
        break;
    case CUDA_SCALE_GLOBAL:
        launch<4, CUDA_SCALE_GLOBAL>(p, stream);
        break;
    case CUDA_SCALE_COUNT:
        break;
    }
}

extern "C" enum err_code cuda_expert_linear(struct kern *k, const struct expert_linear_args *a,
                                            struct err *e)
{
    const struct cuda_weight *w = cuda_weight_of(a->w);
    cudaStream_t stream = cuda_of(k)->stream;
    struct expert_product p = {};
    if (a->n_pairs == 0)
        return ERR_OK;
    p.a = *a;
    p.order = w->order;
    p.data = w->data;
    p.tile_bytes = (int64_t)w->tile_bytes;
    p.aligned = w->order.k % 2 == 0 && (uintptr_t)a->x % 4 == 0;
    switch (w->order.bits) {
    case 2:
        launch_bits<2>(&p, stream);
        break;
    case 3:
        launch_bits<3>(&p, stream);
        break;
    case 4:
        launch_bits<4>(&p, stream);
        break;
    case 5:
        launch_bits<5>(&p, stream);
        break;
    case 6:
        launch_bits<6>(&p, stream);
        break;
    case 8:
        launch_bits<8>(&p, stream);
        break;
    default:
        launch<CUDA_DENSE, CUDA_SCALE_FAST>(&p, stream);
        break;
    }
    return cuda_launched("expert_linear", e);
}

/* ---- combining ----------------------------------------------------------------------------------
 */
#define COMBINE_BLOCK 256

__global__ static void __launch_bounds__(COMBINE_BLOCK) combine_elements(struct combine_args a)
{
    int64_t i = (int64_t)blockIdx.x * COMBINE_BLOCK + threadIdx.x;
    if (i >= a.n_tok * a.d)
        return;
    int64_t t = i / a.d, at = i % a.d;
    const float *w = a.weight + t * a.n_used, *y = a.y + t * a.n_used * a.d + at;
    float sum = w[0] * y[0];
    for (int s = 1; s < a.n_used; s++)
        sum = fmaf(w[s], y[s * a.d], sum);
    a.out[i] = sum;
}

extern "C" enum err_code cuda_combine(struct kern *k, const struct combine_args *a, struct err *e)
{
    int64_t n = a->n_tok * a->d;
    if (n > 0)
        combine_elements<<<(unsigned)((n + COMBINE_BLOCK - 1) / COMBINE_BLOCK), COMBINE_BLOCK, 0,
                           cuda_of(k)->stream>>>(*a);
    return cuda_launched("combine", e);
}
