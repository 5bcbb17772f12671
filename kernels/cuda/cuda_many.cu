/* cuda_many.cu: linear layers of more than 8 rows, by warpgroup products (wgmma).
 *
 * Work: a block is two or four warpgroups of 64 weight rows each (a warp a tile of 16) by 32, 64 or
 * 128 rows of x, the columns. Blocks are as many as multiprocessors and walk a fixed list of items,
 * columns fastest, so that blocks which run together share weights and x in the second-level cache.
 * Bytes: weights once for every column tile, x once for every block of rows.
 *
 * Pipeline and order: cuda_many.cuh. Where items are too few to fill the device, an item is one
 * chunk: its sums go to their own slots in scratch, and a second kernel adds them ascending. Its
 * planted fault: the other direction.
 *
 * The kernel starts early (cuda_launch.cuh): the weights of its first stages are on their way when
 * it waits for the kernels before it.
 *
 * Shapes: x and its rows aligned to 16 bytes, and the formats listed in cuda_many_run. The plain
 * kernel takes what is left.
 *
 * Tried and lost: all threads copying with cp.async under one block barrier a stage: 400 TFLOP/s at
 * 128 columns, and 1300 cycles a stage at 32. Three warpgroups at 128 columns (192 rows, one
 * operand buffer): equal at 2048 rows, up to twice as slow where items are few. A warpgroup that
 * only copies: the others then have 168 registers, and setmaxnreg did not change what the compiler
 * gave them.
 */
#include "kernels/cuda/cuda_product.h"

#include "kernels/cuda/cuda_many.cuh"
#include "kernels/cuda/cuda_price.h"
#include "kernels/mma90.h"

struct many_plan {
    int n_row_blocks, n_column_tiles, n_chunks, chunk_pieces, n_items;
    int64_t all_rows; /* of all parts: a slot's row length */
    float *slots;     /* [chunk][row of x][row of the parts], or NULL: totals in registers */
    bool no_wait;     /* planted fault */
};

/* ---- items --------------------------------------------------------------------------------------
 */
struct many_item {
    int part, tile0;   /* first tile of the block in the part */
    int64_t row_first; /* of the part among all rows */
    int column;        /* first row of x */
    int chunk, end;    /* chunks [chunk, end) */
};

template <int BITS, int COLUMNS>
__device__ static struct many_item find_item(const struct cuda_products &all,
                                             const struct many_plan &p, int index)
{
    constexpr int warps = warps_for(BITS, COLUMNS);
    struct many_item it = {};
    int rest = index, block;
    if (p.slots) {
        it.chunk = rest % p.n_chunks;
        rest /= p.n_chunks;
        it.end = it.chunk + 1;
    } else {
        it.end = p.n_chunks;
    }
    it.column = rest % p.n_column_tiles * COLUMNS;
    block = rest / p.n_column_tiles;
    for (;;) {
        int blocks = (all.part[it.part].n_tiles + warps - 1) / warps;
        if (block < blocks)
            break;
        block -= blocks;
        it.row_first += all.part[it.part++].rows;
    }
    it.tile0 = block * warps;
    return it;
}

/* Writes what a lane holds of its tile, to the output or to a slot. */
template <int N>
__device__ static void store_sums(const struct cuda_products &all, const struct many_plan &p,
                                  const struct many_item &it, int chunk, const float (&sum)[N])
{
    const struct cuda_product &part = all.part[it.part];
    int lane = (int)threadIdx.x % 32, tile = it.tile0 + (int)threadIdx.x / 32;
    int64_t r0 = (int64_t)tile * CUDA_TILE_ROWS + lane / 4, stride = part.out_stride;
    float *out = part.out;
    if (p.slots) {
        stride = p.all_rows;
        out = p.slots + chunk * all.n_tok * stride + it.row_first;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t t = it.column + i / 4 * 8 + lane % 4 * 2 + i % 2, r = r0 + i % 4 / 2 * 8;
        if (t < all.n_tok && r < part.rows)
            out[t * stride + r] = part.bias && !p.slots ? sum[i] + part.bias[r] : sum[i];
    }
}

/* The parts of linear layers as work of run_items. */
template <int BITS, int COLUMNS> struct linear_work {
    typedef struct many_item item;
    const struct cuda_products &all;
    const struct many_plan &p;

    __device__ int n_items(void) const
    {
        return p.n_items;
    }
    __device__ int chunk_pieces(void) const
    {
        return p.chunk_pieces;
    }
    __device__ const struct cuda_order &order(void) const
    {
        return all.part[0].order;
    }
    __device__ bool apart(void) const
    {
        return p.slots != NULL;
    }
    __device__ item find(int index) const
    {
        return find_item<BITS, COLUMNS>(all, p, index);
    }
    __device__ const uint8_t *tile(const item &it) const
    {
        const struct cuda_product &part = all.part[it.part];
        return part.data +
               MIN2(it.tile0 + (int)threadIdx.x / 32, part.n_tiles - 1) * part.tile_bytes;
    }
    template <int N> __device__ void store(const item &it, int chunk, const float (&sum)[N]) const
    {
        store_sums(all, p, it, chunk, sum);
    }
};

template <int BITS, enum cuda_scale SCALE, int COLUMNS>
__global__ static void __launch_bounds__(threads_for(BITS, COLUMNS), 1)
    linear_many(const __grid_constant__ struct cuda_products all,
                const __grid_constant__ struct many_plan p, const __grid_constant__ CUtensorMap x)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    launch_trigger();
    run_items<BITS, SCALE, COLUMNS>(linear_work<BITS, COLUMNS>{all, p}, x, shared, !p.no_wait);
}

#define SLOTS_AHEAD 14 /* loads of a thread on their way at once */

/* Adds the slots of each output in ascending chunk order. */
__global__ static void add_slots(const __grid_constant__ struct cuda_products all,
                                 const __grid_constant__ struct many_plan p)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    int64_t step = all.n_tok * p.all_rows, r = at;
    int i = 0;
    launch_wait();
    launch_trigger();
    if (at >= p.all_rows)
        return;
    while (r >= all.part[i].rows)
        r -= all.part[i++].rows;
    const float *slot = p.slots + t * p.all_rows + at;
    if (all.descending) {
        slot += (p.n_chunks - 1) * step;
        step = -step;
    }
    float total = *slot, next[SLOTS_AHEAD];
    for (int first = 1; first < p.n_chunks; first += SLOTS_AHEAD) {
#pragma unroll
        for (int i = 0; i < SLOTS_AHEAD; i++)
            next[i] = first + i < p.n_chunks ? slot[(first + i) * step] : 0.0f;
#pragma unroll
        for (int i = 0; i < SLOTS_AHEAD; i++)
            total = first + i < p.n_chunks ? total + next[i] : total;
    }
    const struct cuda_product &part = all.part[i];
    part.out[t * part.out_stride + r] = part.bias ? total + part.bias[r] : total;
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
#define FILL_PERCENT                                                                               \
    75 /* fewer items than this share of the multiprocessors are split by chunks                   \
        */

static int columns_for(int n_tok)
{
    return n_tok <= 32 ? 32 : n_tok <= 64 ? 64 : 128;
}

static void make_plan(const struct cuda_kern *c, const struct cuda_products *all, int warps,
                      int columns, struct many_plan *p)
{
    const struct cuda_order *o = &all->part[0].order;
    *p = (struct many_plan){};
    for (int i = 0; i < all->n_parts; i++) {
        p->n_row_blocks += (all->part[i].n_tiles + warps - 1) / warps;
        p->all_rows += all->part[i].rows;
    }
    p->n_column_tiles = (all->n_tok + columns - 1) / columns;
    p->chunk_pieces = mma90_chunk(o->k) / CUDA_PIECE_K;
    p->n_chunks = (o->n_pieces + p->chunk_pieces - 1) / p->chunk_pieces;
    p->n_items = p->n_row_blocks * p->n_column_tiles;
    size_t need = (size_t)p->n_chunks * (size_t)all->n_tok * (size_t)p->all_rows * sizeof(float);
    bool few = p->n_items * 100 < c->n_sm * FILL_PERCENT;
    if ((few || all->descending) && p->n_chunks > 1 && need <= c->scratch_bytes.linear) {
        p->slots = (float *)c->scratch_linear;
        p->n_items *= p->n_chunks;
    }
    if (CUDA_PRICE && !p->slots) {
        p->chunk_pieces = o->n_pieces;
        p->n_chunks = 1;
    }
}

size_t cuda_many_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    size_t chunk = (size_t)mma90_chunk(l->k_max), n_chunks = ((size_t)l->k_max + chunk - 1) / chunk;
    size_t most = (size_t)c->n_sm * 128 * 128 * FILL_PERCENT / 100;
    size_t outputs = (size_t)l->n_tok * (size_t)l->rows_max;
    return n_chunks * MIN2(outputs, most) * sizeof(float);
}

template <int BITS, enum cuda_scale SCALE, int COLUMNS>
static bool launch(const struct cuda_kern *c, const struct cuda_products *all)
{
    static bool allowed;
    constexpr int shared = n_stages(BITS, COLUMNS) * stage_bytes(BITS, COLUMNS);
    struct many_plan p;
    CUtensorMap x;
    if (!cuda_tensor_map(&x, all->x, all->part[0].order.k, all->n_tok, all->x_stride, COLUMNS))
        return false;
    make_plan(c, all, warps_for(BITS, COLUMNS), COLUMNS, &p);
    if (!allowed) {
        (void)cudaFuncSetAttribute(linear_many<BITS, SCALE, COLUMNS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        allowed = true;
    }
    p.no_wait = c->plant_no_wait;
    launch_early(linear_many<BITS, SCALE, COLUMNS>, dim3((unsigned)MIN2(p.n_items, c->n_sm)),
                 threads_for(BITS, COLUMNS), shared, c->stream, *all, p, x);
    if (p.slots) {
        dim3 grid((unsigned)((p.all_rows + 255) / 256), (unsigned)all->n_tok);
        launch_early(add_slots, grid, 256, 0, c->stream, *all, p);
    }
    return true;
}

template <int BITS, enum cuda_scale SCALE>
static bool launch_columns(const struct cuda_kern *c, const struct cuda_products *all)
{
    switch (columns_for(all->n_tok)) {
    case 32:
        return launch<BITS, SCALE, 32>(c, all);
    case 64:
        return launch<BITS, SCALE, 64>(c, all);
    default:
        return launch<BITS, SCALE, 128>(c, all);
    }
}

bool cuda_many_run(const struct cuda_kern *c, const struct cuda_products *all)
{
    const struct cuda_order *o = &all->part[0].order;
    if (all->x_stride % 8 != 0 || (uintptr_t)all->x % 16 != 0)
        return false;
    if (o->bits == CUDA_DENSE)
        return launch_columns<CUDA_DENSE, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_columns<4, CUDA_SCALE_LOW>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<4, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_F16)
        return launch_columns<4, CUDA_SCALE_F16>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<8, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_F16)
        return launch_columns<8, CUDA_SCALE_F16>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_columns<4, CUDA_SCALE_E8M0_FAST>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_columns<8, CUDA_SCALE_E8M0_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E4M3)
        return launch_columns<4, CUDA_SCALE_E4M3>(c, all);
    if (o->bits == 6 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<6, CUDA_SCALE_FAST>(c, all);
    return false;
}
