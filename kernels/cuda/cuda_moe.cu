/* cuda_moe.cu: products with experts: which kernel takes them, and the plain one that takes any;
 * and the combination of a row's slots.
 *
 * The plain kernel: a block is one tile of 16 weight rows for one expert and loops over the
 * expert's pairs, 32 at a time; its four warps take a chunk of K each, and the sums of four chunks
 * at a time are added in ascending order through shared memory: rule 2 as it is written. Bytes: the
 * expert's weights once for every 32 pairs; experts without a pair are not read. An expert's rows
 * may begin inside a tile: neighbours compute it both and write their own rows. It is what the
 * faster kernels must equal, and what takes the shapes that they do not.
 *
 * combine: a thread four elements, or one, slots ascending.
 */
#include "kernels/cuda/cuda_product.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_experts.h"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/mma90.h"

#define WARPS     4
#define BLOCK     (32 * WARPS)
#define ALL_LANES 0xffffffffu

extern "C" size_t cuda_moe_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    (void)c;
    return cuda_experts_many_scratch_bytes(l);
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

static void run_plain(const struct expert_linear_args *a, cudaStream_t stream)
{
    const struct cuda_weight *w = cuda_weight_of(a->w);
    struct expert_product p = {};
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
}

/* ---- choosing -----------------------------------------------------------------------------------
 */
#define FEW_PAIRS 8 /* of an expert on average: up to here its weights' bytes are the work */

static bool few_wanted(const struct cuda_kern *c, const struct cuda_experts *x)
{
    if (c->force_path != CUDA_PATH_AUTO)
        return c->force_path == CUDA_PATH_FEW || c->force_path == CUDA_PATH_STREAM;
    return x->n_pairs <= FEW_PAIRS * x->n_expert;
}

static bool many_wanted(const struct cuda_kern *c)
{
    return c->force_path == CUDA_PATH_AUTO || c->force_path == CUDA_PATH_MANY;
}

static bool same_format(const struct cuda_order *a, const struct cuda_order *b)
{
    return a->bits == b->bits && a->group == b->group && a->scale == b->scale;
}

static struct cuda_experts experts_of(const struct cuda_kern *c, const struct kern_weight *weight,
                                      int n_pairs, const int32_t *order)
{
    const struct cuda_weight *w = cuda_weight_of(weight);
    struct cuda_experts x = {};
    x.n_pairs = n_pairs;
    x.order = order;
    x.n_matrices = 1;
    x.weight = w->order;
    x.data[0] = w->data;
    x.tile_bytes = (int64_t)w->tile_bytes;
    x.descending = kern_planted() == KERN_FAULT_CHUNK_ORDER && n_pairs > 1;
    x.lists_stand = c->lists_stand == order;
    return x;
}

extern "C" enum err_code cuda_expert_linear(struct kern *k, const struct expert_linear_args *a,
                                            struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct cuda_experts x = experts_of(c, a->w, a->n_pairs, a->order);
    x.n_expert = a->n_expert;
    x.x_div = a->x_div;
    x.first = a->first;
    x.x = (const uint16_t *)a->x;
    x.bias[0] = a->bias;
    x.rows = a->rows;
    x.out = a->out;
    x.out_stride = a->out_stride;
    if (a->n_pairs == 0)
        return ERR_OK;
    if (!(few_wanted(c, &x) && cuda_experts_few_run(c, &x)) &&
        !(many_wanted(c) && cuda_experts_many_run(c, &x)))
        run_plain(a, c->stream);
    return cuda_launched("expert_linear", e);
}

extern "C" enum err_code cuda_expert_gated(struct kern *k, const struct expert_gated_args *a,
                                           struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    struct cuda_experts x = experts_of(c, a->gate, a->n_pairs, a->order);
    x.n_expert = a->n_expert;
    x.x_div = a->x_div;
    x.first = a->first;
    x.x = (const uint16_t *)a->x;
    x.n_matrices = 2;
    x.data[1] = cuda_weight_of(a->up)->data;
    x.bias[0] = a->gate_bias;
    x.bias[1] = a->up_bias;
    x.rows = a->rows;
    x.out = a->room;
    x.out_stride = 2 * a->rows;
    x.act = a->act;
    x.limit = a->limit;
    x.alpha = a->alpha;
    x.gated = (uint16_t *)a->out;
    bool pair = same_format(&x.weight, &cuda_weight_of(a->up)->order) &&
                (a->gate_bias != NULL) == (a->up_bias != NULL);
    bool few = pair && a->n_pairs > 0 && few_wanted(c, &x);
    struct expert_gated_args routed = *a;
    if (a->route && few && cuda_experts_few_routes(a->route)) {
        x.route = *a->route;
        x.lists_stand = false;
        if (cuda_experts_few_run(c, &x)) {
            c->lists_stand = a->order;
            return cuda_launched("expert_gated", e);
        }
        x.route = (struct route_args){};
    }
    if (a->route) {
        enum err_code rc = cuda_route(k, a->route, e);
        routed.route = NULL;
        x.lists_stand = false;
        if (rc != ERR_OK)
            return rc;
    }
    if (a->n_pairs == 0)
        return ERR_OK;
    if (!(few && cuda_experts_few_run(c, &x)) &&
        !(pair && many_wanted(c) && cuda_experts_many_run(c, &x)))
        return kern_gated_by_parts(k, &routed, e);
    c->lists_stand = a->order;
    return cuda_launched("expert_gated", e);
}

/* ---- combining ----------------------------------------------------------------------------------
 */
#define COMBINE_BLOCK 128

__device__ static inline float times(float w, float y)
{
    return w * y;
}

__device__ static inline float4 times(float w, float4 y)
{
    return make_float4(w * y.x, w * y.y, w * y.z, w * y.w);
}

__device__ static inline float plus_times(float w, float y, float sum)
{
    return fmaf(w, y, sum);
}

__device__ static inline float4 plus_times(float w, float4 y, float4 sum)
{
    return make_float4(fmaf(w, y.x, sum.x), fmaf(w, y.y, sum.y), fmaf(w, y.z, sum.z),
                       fmaf(w, y.w, sum.w));
}

/* d: of a row, in elements of V. */
template <typename V>
__global__ static void __launch_bounds__(COMBINE_BLOCK)
    combine_elements(struct combine_args a, int64_t d)
{
    int64_t i = (int64_t)blockIdx.x * COMBINE_BLOCK + threadIdx.x;
    launch_wait();
    launch_trigger();
    if (i >= a.n_tok * d)
        return;
    int64_t t = i / d, at = i % d;
    const float *w = a.weight + t * a.n_used;
    const V *y = (const V *)(const void *)a.y + t * a.n_used * d + at;
    V sum = times(w[0], y[0]);
#pragma unroll 8
    for (int s = 1; s < a.n_used; s++)
        sum = plus_times(w[s], y[s * d], sum);
    ((V *)(void *)a.out)[i] = sum;
}

extern "C" enum err_code cuda_combine(struct kern *k, const struct combine_args *a, struct err *e)
{
    bool four = a->d % 4 == 0 && ((uintptr_t)a->y | (uintptr_t)a->out) % 16 == 0;
    int64_t d = four ? a->d / 4 : a->d, n = a->n_tok * d;
    dim3 grid((unsigned)((n + COMBINE_BLOCK - 1) / COMBINE_BLOCK));
    if (n > 0 && four)
        launch_early(combine_elements<float4>, grid, COMBINE_BLOCK, 0, cuda_of(k)->stream, *a, d);
    else if (n > 0)
        launch_early(combine_elements<float>, grid, COMBINE_BLOCK, 0, cuda_of(k)->stream, *a, d);
    return cuda_launched("combine", e);
}
