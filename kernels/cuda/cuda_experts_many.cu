/* cuda_experts_many.cu: products with experts where each has many pairs, by warpgroup products
 * (cuda_many.cuh).
 *
 * Work: rows of x are first gathered in the order of the experts, a copy in scratch; a column tile
 * is then up to COLUMNS neighbouring rows of one expert (cuda_expert_items.cuh), and an item a
 * column tile by a block's rows of one of the matrices, rows fastest, so that blocks which run
 * together share x and an expert's weights in the second-level cache. Columns behind an expert's
 * last pair hold the next one's rows; they are computed and not stored. How many items there are is
 * known on the device alone.
 *
 * With gate and up the sums go to `room`, and a kernel of its own makes the activation.
 */
#include "kernels/cuda/cuda_expert_items.cuh"
#include "kernels/cuda/cuda_many.cuh"
#include "kernels/cuda/cuda_product.h"
#include "kernels/mma90.h"

#define GATHER_BLOCK 256

struct grouped_plan {
    int n_tiles, n_row_blocks; /* of an expert, in a matrix */
    int chunk_pieces, n_chunks;
    bool no_wait; /* planted fault */
};

/* ---- x in the order of the experts --------------------------------------------------------------
 */
__global__ static void __launch_bounds__(GATHER_BLOCK)
    gather_rows(const __grid_constant__ struct cuda_experts a, uint4 *sorted)
{
    launch_wait();
    launch_trigger();
    int per_row = (int)(a.weight.k / 8);
    int64_t i = (int64_t)blockIdx.x * GATHER_BLOCK + threadIdx.x;
    if (i >= (int64_t)a.n_pairs * per_row)
        return;
    int64_t row = a.order[i / per_row] / a.x_div;
    sorted[i] = ((const uint4 *)(const void *)a.x)[row * per_row + i % per_row];
}

/* ---- work of a block ----------------------------------------------------------------------------
 */
struct expert_item {
    int matrix, expert;
    int tile0;        /* first tile of the block in the expert's matrix */
    int column, stop; /* sorted pairs of the item */
    int chunk, end;
};

template <int BITS, int COLUMNS> struct expert_work {
    typedef struct expert_item item;
    const struct cuda_experts &a;
    const struct grouped_plan &p;
    struct expert_items items;

    __device__ int n_items(void) const
    {
        return items.starts[a.n_expert] * p.n_row_blocks * a.n_matrices;
    }
    __device__ int chunk_pieces(void) const
    {
        return p.chunk_pieces;
    }
    __device__ const struct cuda_order &order(void) const
    {
        return a.weight;
    }
    __device__ bool apart(void) const
    {
        return false;
    }
    __device__ item find(int index) const
    {
        item it;
        int columns = index / (p.n_row_blocks * a.n_matrices), rest = index;
        rest -= columns * p.n_row_blocks * a.n_matrices;
        it.matrix = rest >= p.n_row_blocks;
        it.tile0 = (it.matrix ? rest - p.n_row_blocks : rest) * warps_for(BITS, COLUMNS);
        it.expert = items.expert[columns];
        it.column = items.first[it.expert] + (columns - items.starts[it.expert]) * COLUMNS;
        it.stop = MIN2(it.column + COLUMNS, items.first[it.expert + 1]);
        it.chunk = 0;
        it.end = p.n_chunks;
        return it;
    }
    __device__ const uint8_t *tile(const item &it) const
    {
        int tile = MIN2(it.tile0 + (int)threadIdx.x / 32, p.n_tiles - 1);
        return (it.matrix ? a.data[1] : a.data[0]) +
               ((int64_t)it.expert * p.n_tiles + tile) * a.tile_bytes;
    }
    /* One matrix: to the rows of the pairs; two: to room, in the order of the experts. */
    template <int N> __device__ void store(const item &it, int, const float (&sum)[N]) const
    {
        int lane = (int)threadIdx.x % 32, tile = it.tile0 + (int)threadIdx.x / 32;
        int64_t r0 = (int64_t)tile * CUDA_TILE_ROWS + lane / 4;
        const float *bias = it.matrix ? a.bias[1] : a.bias[0];
        float add[2] = {0.0f, 0.0f};
        int row[N / 2]; /* all loads stand before the first store, which may alias */
        if (tile >= p.n_tiles)
            return;
        if (bias) {
            add[0] = bias[it.expert * a.rows + r0];
            add[1] = bias[it.expert * a.rows + r0 + 8];
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int at = it.column + i / 2 * 8 + lane % 4 * 2 + i % 2;
            row[i] = at >= it.stop ? -1 : a.n_matrices == 2 ? at : a.order[at];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            int to = row[i / 4 * 2 + i % 2];
            float *out = a.out + to * a.out_stride + it.matrix * a.rows + r0;
            if (to >= 0)
                out[i % 4 / 2 * 8] = bias ? sum[i] + add[i % 4 / 2] : sum[i];
        }
    }
};

/* The activation of room's rows, to the rows of their pairs; four neighbours a thread. */
__global__ static void __launch_bounds__(GATHER_BLOCK)
    act_rows(const __grid_constant__ struct cuda_experts a)
{
    launch_wait();
    launch_trigger();
    int per_row = (int)(a.rows / 4), at = (int)(blockIdx.y * GATHER_BLOCK + threadIdx.x);
    if (at >= per_row)
        return;
    const float4 *room = (const float4 *)(const void *)a.out + (int64_t)blockIdx.x * 2 * per_row;
    float4 g = room[at], u = room[per_row + at];
    uint32_t low = expert_act(a, g.x, u.x) | (uint32_t)expert_act(a, g.y, u.y) << 16;
    uint32_t high = expert_act(a, g.z, u.z) | (uint32_t)expert_act(a, g.w, u.w) << 16;
    ((uint2 *)(void *)a.gated)[(int64_t)a.order[blockIdx.x] * per_row + at] = make_uint2(low, high);
}

template <int BITS, enum cuda_scale SCALE, int COLUMNS>
__global__ static void __launch_bounds__(threads_for(BITS, COLUMNS), 1)
    experts_many(const __grid_constant__ struct cuda_experts a,
                 const __grid_constant__ struct grouped_plan p,
                 const __grid_constant__ CUtensorMap x)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *behind = shared + n_stages(BITS, COLUMNS) * stage_bytes(BITS, COLUMNS);
    struct expert_work<BITS, COLUMNS> work = {
        a, p, expert_items_at(behind, a.n_expert)
    };
    if (!p.no_wait)
        launch_wait();
    launch_trigger();
    list_items<COLUMNS>(a.first, a.n_expert, &work.items);
    run_items<BITS, SCALE, COLUMNS>(work, x, shared, false);
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE, int COLUMNS>
static bool launch(const struct cuda_kern *c, const struct cuda_experts *a)
{
    static bool allowed;
    constexpr int stages = n_stages(BITS, COLUMNS) * stage_bytes(BITS, COLUMNS);
    const struct cuda_order *o = &a->weight;
    int shared = stages + expert_items_bytes(a->n_expert, a->n_pairs, COLUMNS);
    int most = (int)c->shared_max - 1024; /* the stages' alignment behind the barriers */
    int64_t words = a->n_pairs * (o->k / 8);
    struct grouped_plan p = {};
    CUtensorMap x;
    if (shared > most || !cuda_tensor_map(&x, c->scratch_moe, o->k, a->n_pairs, o->k, COLUMNS))
        return false;
    p.n_tiles = (int)(a->rows / CUDA_TILE_ROWS);
    p.n_row_blocks = (p.n_tiles + warps_for(BITS, COLUMNS) - 1) / warps_for(BITS, COLUMNS);
    p.chunk_pieces = (int)mma90_chunk(o->k) / CUDA_PIECE_K;
    p.n_chunks = (o->n_pieces + p.chunk_pieces - 1) / p.chunk_pieces;
    p.no_wait = c->plant_no_wait;
    if (!allowed) {
        (void)cudaFuncSetAttribute(experts_many<BITS, SCALE, COLUMNS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, most);
        allowed = true;
    }
    launch_early(gather_rows, dim3((unsigned)((words + GATHER_BLOCK - 1) / GATHER_BLOCK)),
                 GATHER_BLOCK, 0, c->stream, *a, (uint4 *)(void *)c->scratch_moe);
    launch_early(experts_many<BITS, SCALE, COLUMNS>, dim3((unsigned)c->n_sm),
                 threads_for(BITS, COLUMNS), (size_t)shared, c->stream, *a, p, x);
    if (a->n_matrices == 2) {
        unsigned blocks = (unsigned)((a->rows / 4 + GATHER_BLOCK - 1) / GATHER_BLOCK);
        launch_early(act_rows, dim3((unsigned)a->n_pairs, blocks), GATHER_BLOCK, 0, c->stream, *a);
    }
    return true;
}

/* Column tiles by how many pairs an expert has on average. */
template <int BITS, enum cuda_scale SCALE>
static bool launch_columns(const struct cuda_kern *c, const struct cuda_experts *a)
{
    if (a->n_pairs <= 20 * a->n_expert)
        return launch<BITS, SCALE, 32>(c, a);
    if (a->n_pairs <= 96 * a->n_expert)
        return launch<BITS, SCALE, 64>(c, a);
    return launch<BITS, SCALE, 128>(c, a);
}

bool cuda_experts_many_run(const struct cuda_kern *c, const struct cuda_experts *a)
{
    const struct cuda_order *o = &a->weight;
    if (!cuda_takes(c, CUDA_KERNEL_EXPERTS_MANY) || a->descending ||
        a->rows % CUDA_TILE_ROWS != 0 || o->k % 8 != 0 || (uintptr_t)a->x % 16 != 0 ||
        (uintptr_t)a->gated % 8 != 0 || (a->n_matrices == 2 && (uintptr_t)a->out % 16 != 0) ||
        (size_t)a->n_pairs * (size_t)o->k * 2 > c->scratch_bytes.moe)
        return false;
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_columns<4, CUDA_SCALE_LOW>(c, a);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<8, CUDA_SCALE_FAST>(c, a);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_columns<4, CUDA_SCALE_E8M0_FAST>(c, a);
    return false;
}

size_t cuda_experts_many_scratch_bytes(const struct kern_limits *l)
{
    return (size_t)l->n_tok * (size_t)l->n_used * (size_t)l->k_max * 2;
}
