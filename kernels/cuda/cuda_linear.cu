/* cuda_linear.cu: linear layers: which kernel takes a product, and the plain one that takes any.
 *
 * The plain kernel. Work: a warp is one tile of 16 weight rows by up to 64 rows of x (eight columns
 * at a time), a block four warps with neighbouring tiles. Bytes: weights once for every 64 rows of
 * x; x through the caches by every warp. Order: chunks in ascending k, a chunk's steps ascending
 * from +0, chunk sums added in registers: rule 2 as it is written, for every format and shape. It
 * is what the faster kernels must equal, and what takes the shapes that they do not.
 */
#include "kernels/cuda/cuda_product.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_dawdle.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/mma90.h"

#define WARPS   4
#define COLUMNS 8 /* rows of x that one instruction takes */
#define GROUPS  8 /* groups of columns of a warp, at most */

/* Two neighbouring k of a row, +0 beyond the row's end and for rows that are not there. */
__device__ static uint32_t load_pair(const uint16_t *x, int64_t k, int64_t k_end, bool aligned)
{
    if (!x || k >= k_end)
        return 0;
    if (aligned && k + 1 < k_end)
        return *(const uint32_t *)(x + k);
    uint32_t high = k + 1 < k_end ? x[k + 1] : 0;
    return x[k] | high << 16;
}

__host__ __device__ static int64_t chunks_of(int64_t k)
{
    return (k + mma90_chunk(k) - 1) / mma90_chunk(k);
}

/* What a warp knows of its rows of x. */
struct columns {
    const uint16_t *x[GROUPS]; /* this lane's row of each group, or NULL */
    int n_groups;
    bool aligned; /* pairs of k can be loaded as words */
};

template <int BITS, enum cuda_scale SCALE>
__device__ static void run_chunk(const struct cuda_product &p, const uint8_t *tile, int64_t k0,
                                 int64_t k1, const struct columns &in, float acc[GROUPS][4])
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
            uint32_t a[4];
            if constexpr (BITS != CUDA_DENSE) {
                if (s % 2 == 0)
                    frag_load_scale<BITS, SCALE>(
                        piece + p.order.scales_at,
                        frag_group<SCALE>(block * 2 + s / 2, p.order.group), lane, sc);
            }
            frag_step<BITS, SCALE>(words, sc, s, a);
            int64_t at = k + 16 * s + 2 * t;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                if (g >= in.n_groups)
                    break;
                uint32_t b0 = load_pair(in.x[g], at, p.order.k, in.aligned);
                uint32_t b1 = load_pair(in.x[g], at + 8, p.order.k, in.aligned);
                frag_mma(acc[g], a, b0, b1);
            }
        }
    }
}

template <int BITS, enum cuda_scale SCALE>
__global__ static void __launch_bounds__(32 * WARPS) linear_plain(struct cuda_products all)
{
    const struct cuda_product &p = all.part[blockIdx.z];
    int tile = (int)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, t0 = (int)blockIdx.y * GROUPS * COLUMNS;
    int64_t chunk = mma90_chunk(p.order.k), n_chunks = chunks_of(p.order.k);
    int64_t first = 0, end = n_chunks;
    struct columns in;
    float total[GROUPS][4];
    if (tile >= p.n_tiles)
        return;
    if (all.arrival) { /* planted: rows in turn, each with a block for every chunk */
        first = (int64_t)blockIdx.y % n_chunks;
        end = first + 1;
        t0 = (int)((int64_t)blockIdx.y / n_chunks) * GROUPS * COLUMNS;
        cuda_dawdle(8191);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int t = t0 + g * COLUMNS + lane / 4;
        in.x[g] = t < all.n_tok ? all.x + t * all.x_stride : NULL;
    }
    in.n_groups = MIN2(GROUPS, (all.n_tok - t0 + COLUMNS - 1) / COLUMNS);
    in.aligned = all.x_stride % 2 == 0 && (uintptr_t)all.x % 4 == 0;
    for (int64_t c = first; c < end; c++) {
        int64_t k0 = (all.descending ? n_chunks - 1 - c : c) * chunk;
        int64_t k1 = k0 + chunk < p.order.k ? k0 + chunk : p.order.k;
        float acc[GROUPS][4] = {};
        run_chunk<BITS, SCALE>(p, p.data + tile * p.tile_bytes, k0, k1, in, acc);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                total[g][i] = c == first ? acc[g][i] : total[g][i] + acc[g][i];
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int t = t0 + g * COLUMNS + lane % 4 * 2 + i % 2;
            int64_t r = (int64_t)tile * CUDA_TILE_ROWS + lane / 4 + i / 2 * 8;
            if (all.arrival && t < all.n_tok && r < p.rows)
                atomicAdd(&p.out[t * p.out_stride + r],
                          total[g][i] + (p.bias && first == 0 ? p.bias[r] : 0.0f));
            else if (t < all.n_tok && r < p.rows)
                p.out[t * p.out_stride + r] = total[g][i] + (p.bias ? p.bias[r] : 0.0f);
        }
}

template <int BITS, enum cuda_scale SCALE>
static void launch_plain(const struct cuda_products *all, cudaStream_t stream)
{
    int tiles = 0, per = GROUPS * COLUMNS;
    for (int i = 0; i < all->n_parts; i++)
        tiles = MAX2(tiles, all->part[i].n_tiles);
    dim3 grid((unsigned)((tiles + WARPS - 1) / WARPS), (unsigned)((all->n_tok + per - 1) / per),
              (unsigned)all->n_parts);
    if (all->arrival)
        grid.y *= (unsigned)chunks_of(all->part[0].order.k);
    linear_plain<BITS, SCALE><<<grid, 32 * WARPS, 0, stream>>>(*all);
}

template <int BITS>
static void launch_plain_bits(const struct cuda_products *all, cudaStream_t stream)
{
    switch (all->part[0].order.scale) {
    case CUDA_SCALE_LOW:
        launch_plain<4, CUDA_SCALE_LOW>(all, stream);
        break;
    case CUDA_SCALE_NONE:
    case CUDA_SCALE_FAST:
        launch_plain<BITS, CUDA_SCALE_FAST>(all, stream);
        break;
    case CUDA_SCALE_BF16:
        launch_plain<BITS, CUDA_SCALE_BF16>(all, stream);
        break;
    case CUDA_SCALE_F16:
        launch_plain<BITS, CUDA_SCALE_F16>(all, stream);
        break;
    case CUDA_SCALE_F32:
        launch_plain<BITS, CUDA_SCALE_F32>(all, stream);
        break;
    case CUDA_SCALE_E8M0_FAST:
        launch_plain<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0_FAST>(all, stream);
        break;
    case CUDA_SCALE_E8M0:
        launch_plain<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0>(all, stream);
        break;
    case CUDA_SCALE_E4M3:
        launch_plain<4, CUDA_SCALE_E4M3>(all, stream);
        break;
    case CUDA_SCALE_GLOBAL:
        launch_plain<4, CUDA_SCALE_GLOBAL>(all, stream);
        break;
    case CUDA_SCALE_COUNT:
        break;
    }
}

static void run_plain(const struct cuda_products *all, cudaStream_t stream)
{
    switch (all->part[0].order.bits) {
    case 2:
        launch_plain_bits<2>(all, stream);
        break;
    case 3:
        launch_plain_bits<3>(all, stream);
        break;
    case 4:
        launch_plain_bits<4>(all, stream);
        break;
    case 5:
        launch_plain_bits<5>(all, stream);
        break;
    case 6:
        launch_plain_bits<6>(all, stream);
        break;
    case 8:
        launch_plain_bits<8>(all, stream);
        break;
    default:
        launch_plain<CUDA_DENSE, CUDA_SCALE_FAST>(all, stream);
        break;
    }
}

/* ---- choosing -----------------------------------------------------------------------------------
 */
static struct cuda_product product_of(const struct linear_part *part)
{
    const struct cuda_weight *w = cuda_weight_of(part->w);
    struct cuda_product p = {};
    p.order = w->order;
    p.data = w->data;
    p.rows = w->base.rows;
    p.tile_bytes = (int64_t)w->tile_bytes;
    p.n_tiles = (int)w->n_tiles;
    p.bias = part->bias;
    p.out = part->out;
    p.out_stride = part->out_stride;
    return p;
}

static bool same_format(const struct cuda_order *a, const struct cuda_order *b)
{
    return a->bits == b->bits && a->group == b->group && a->scale == b->scale;
}

/* Planted: every row takes up zero times the row before it, which shows when that one holds a NaN
 * or an infinity. */
__global__ static void plant_neighbour(struct cuda_product p, int n_tok)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int t = n_tok - 1; t > 0 && r < p.rows; t--)
        p.out[t * p.out_stride + r] += 0.0f * p.out[(t - 1) * p.out_stride + r];
}

/* Planted: what atomics add to. */
__global__ static void plant_zero(struct cuda_product p, int n_tok)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int t = 0; t < n_tok && r < p.rows; t++)
        p.out[t * p.out_stride + r] = 0.0f;
}

static void run_arrival(struct cuda_products all, cudaStream_t stream)
{
    all.arrival = true;
    for (int i = 0; i < all.n_parts; i++)
        plant_zero<<<(unsigned)((all.part[i].rows + 255) / 256), 256, 0, stream>>>(all.part[i],
                                                                                   all.n_tok);
    run_plain(&all, stream);
}

/* Measured on an H200 (docs/speed-log.md): up to 8 rows the stream wins; of what it does not take,
 * the few-row kernel is better but where the bytes of a weight or the windows of a long K leave it
 * little to hide behind. */
static bool prefers_many(const struct cuda_products *all)
{
    const struct cuda_order *o = &all->part[0].order;
    return all->n_tok > 8 || (o->bits >= 8 && all->n_tok > 4) || (o->k > 8192 && all->n_tok > 6);
}

/* True when the gate is done too, where there is one. */
static bool run_products(const struct cuda_kern *c, const struct cuda_products *all)
{
    int path = c->force_path;
    if (kern_planted() == KERN_FAULT_ARRIVAL) {
        run_arrival(*all, c->stream);
        return false;
    }
    if ((path == CUDA_PATH_AUTO || path == CUDA_PATH_STREAM) && cuda_stream_run(c, all))
        return true;
    if (path == CUDA_PATH_AUTO)
        path = prefers_many(all) ? CUDA_PATH_MANY : CUDA_PATH_FEW;
    if (path == CUDA_PATH_MANY && cuda_many_run(c, all))
        return false;
    if (path == CUDA_PATH_PLAIN || !cuda_few_run(c, all))
        run_plain(all, c->stream);
    return false;
}

static bool planted_order(const struct cuda_kern *c, int n_tok, int64_t k)
{
    enum kern_fault f = kern_planted();
    return (f == KERN_FAULT_CHUNK_ORDER && n_tok > 1) || f == KERN_FAULT_DEVICE ||
           (f == KERN_FAULT_LAUNCH && c->base.launch != KERN_LAUNCH_USUAL) ||
           (f == KERN_FAULT_GRAPH && c->recording) ||
           (f == KERN_FAULT_PLAIN_C && c->force_path == CUDA_PATH_PLAIN) ||
           kern_planted_order(0, k);
}

/* Parts of one format go in one launch. */
extern "C" enum err_code cuda_linear(struct kern *k, const struct linear_args *a, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    enum kern_fault fault = kern_planted();
    bool gated = false, no_wait = c->plant_no_wait;
    if (a->n_tok == 0)
        return ERR_OK;
    c->plant_no_wait |= fault == KERN_FAULT_EARLY;
    for (int i = 0; i < a->n_parts;) {
        struct cuda_products all = {};
        all.n_tok = a->n_tok;
        all.x = (const uint16_t *)a->x;
        all.x_stride = a->x_stride;
        all.descending = planted_order(c, a->n_tok, a->part[i].w->k);
        do
            all.part[all.n_parts++] = product_of(&a->part[i++]);
        while (i < a->n_parts &&
               same_format(&all.part[0].order, &cuda_weight_of(a->part[i].w)->order));
        if (all.n_parts == a->n_parts && fault != KERN_FAULT_NEIGHBOUR)
            all.gate = a->gate;
        gated = run_products(c, &all) && all.gate.out;
        for (int j = 0; fault == KERN_FAULT_NEIGHBOUR && j < all.n_parts; j++)
            plant_neighbour<<<(unsigned)((all.part[j].rows + 255) / 256), 256, 0, c->stream>>>(
                all.part[j], a->n_tok);
    }
    c->plant_no_wait = no_wait;
    if (a->gate.out && !gated) {
        struct act_mul_args gate = kern_gate_args(a);
        return cuda_act_mul(k, &gate, e);
    }
    return cuda_launched("linear", e);
}

extern "C" size_t cuda_linear_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    return cuda_many_scratch_bytes(c, l);
}
