/* cuda_many.cu: linear layers of more than 8 rows, by warpgroup products (wgmma).
 *
 * Work: a block is two or four warpgroups of 64 weight rows each (a warp a tile of 16) by 32, 64 or
 * 128 rows of x, the columns. Blocks are as many as multiprocessors and walk a fixed list of items,
 * columns fastest, so that blocks which run together share weights and x in the second-level cache.
 * Bytes: weights once for every column tile, x once for every block of rows.
 *
 * Pipeline: a stage is 128 k: x by two tensor copies, swizzled for the hardware, that the first
 * warp starts, and a piece of each tile by a bulk copy that its own warp starts. A full barrier a
 * stage counts bytes; an empty one the warps whose products have read its x. At step i the stage of
 * step i - 2 is filled again, so that the first warp seldom waits for another; copies run ahead
 * across items. Weights become the registers of the A operand while the products of the 64 k before
 * them run: two register buffers, at most two groups of products in flight.
 *
 * Order: a chunk starts without the accumulator's old value and takes its steps ascending; at its
 * end the sums are added to totals in registers: rule 2. Where items are too few to fill the
 * device, an item is one chunk: its sums go to their own slots in scratch, and a second kernel adds
 * them ascending. Its planted fault: the other direction.
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

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_wgmma.cuh"
#include "kernels/mma90.h"

#define GROUP_WARPS  4           /* of a warpgroup */
#define SHARED_BYTES (216 << 10) /* what the stages may take together */
#define STAGES_MAX   8

struct many_plan {
    int n_row_blocks, n_column_tiles, n_chunks, chunk_pieces, n_items;
    int64_t all_rows; /* of all parts: a slot's row length */
    float *slots;     /* [chunk][row of x][row of the parts], or NULL: totals in registers */
    bool no_wait;     /* planted fault */
};

/* Warpgroups of a block: few columns leave registers for four, and packed weights shared memory. */
__host__ __device__ constexpr int groups_for(int bits, int columns)
{
    return columns == 128 || bits == CUDA_DENSE ? 2 : 4;
}

__host__ __device__ constexpr int warps_for(int bits, int columns)
{
    return groups_for(bits, columns) * GROUP_WARPS;
}

__host__ __device__ constexpr int threads_for(int bits, int columns)
{
    return 32 * warps_for(bits, columns);
}

/* Register buffers for the A operand. Four warpgroups hide each other's waits, two do not; the
 * conversions of f16 scales the compiler does not let run beside products. */
__host__ __device__ constexpr int buffers_for(int bits, enum cuda_scale scale, int columns)
{
    return groups_for(bits, columns) == 2 && scale != CUDA_SCALE_F16 ? 2 : 1;
}

/* The longest piece of a format: groups of 32. */
__host__ __device__ constexpr int longest_piece(int bits)
{
    return bits == CUDA_DENSE ? 4096 : 256 * bits + 256;
}

__host__ __device__ constexpr int x_bytes(int columns)
{
    return columns * CUDA_PIECE_K * 2;
}

__host__ __device__ constexpr int stage_bytes(int bits, int columns)
{
    return x_bytes(columns) + (warps_for(bits, columns) * longest_piece(bits) + 1023) / 1024 * 1024;
}

__host__ __device__ constexpr int n_stages(int bits, int columns)
{
    return SHARED_BYTES / stage_bytes(bits, columns) < STAGES_MAX
               ? SHARED_BYTES / stage_bytes(bits, columns)
               : STAGES_MAX;
}

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

/* ---- copies -------------------------------------------------------------------------------------
 */
/* The next piece that a warp copies. */
struct many_loader {
    int index, piece, end; /* item of the list; piece, and where the item's pieces end */
    int column;
    const uint8_t *tile; /* the warp's */
};

template <int BITS, int COLUMNS>
__device__ static void open_item(const struct cuda_products &all, const struct many_plan &p,
                                 struct many_loader *l)
{
    if (l->index >= p.n_items)
        return;
    struct many_item it = find_item<BITS, COLUMNS>(all, p, l->index);
    const struct cuda_product &part = all.part[it.part];
    int tile = MIN2(it.tile0 + (int)threadIdx.x / 32, part.n_tiles - 1);
    l->tile = part.data + tile * part.tile_bytes;
    l->column = it.column;
    l->piece = it.chunk * p.chunk_pieces;
    l->end = MIN2(it.end * p.chunk_pieces, part.order.n_pieces);
}

enum many_copies { COPY_WEIGHTS = 1, COPY_X = 2, COPY_BOTH = 3 };

/* Starts the warp's copies of the next stage, if there is one; the weights' announce x too. empty:
 * what the first warp waits for before x is overwritten, or NULL. */
template <int BITS, int COLUMNS, enum many_copies COPIES>
__device__ static void load_stage(const struct cuda_products &all, const struct many_plan &p,
                                  const CUtensorMap *x, struct many_loader *l, uint8_t *to,
                                  uint64_t *full, uint64_t *empty, int parity)
{
    int warp = (int)threadIdx.x / 32, bytes = all.part[0].order.piece_bytes;
    if (l->index >= p.n_items)
        return;
    if (warp == 0 && empty)
        copy_wait(empty, parity);
    __syncwarp(); /* every lane has read the piece that is overwritten */
    if (threadIdx.x % 32 == 0) {
        if (COPIES & COPY_WEIGHTS) {
            copy_expect(full, warp == 0 ? bytes + x_bytes(COLUMNS) : bytes);
            copy_bulk(to + x_bytes(COLUMNS) + warp * longest_piece(BITS),
                      l->tile + (int64_t)l->piece * bytes, bytes, full);
        }
        if (COPIES & COPY_X && warp == 0) {
            copy_tensor(to, x, l->piece * CUDA_PIECE_K, l->column, full);
            copy_tensor(to + x_bytes(COLUMNS) / 2, x, l->piece * CUDA_PIECE_K + 64, l->column,
                        full);
        }
    }
    __syncwarp();
    if (++l->piece == l->end) {
        l->index += (int)gridDim.x;
        open_item<BITS, COLUMNS>(all, p, l);
    }
}

/* ---- products -----------------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE>
__device__ static void make_operand(const uint8_t *piece, int block, int group_shift,
                                    uint32_t a[16])
{
    constexpr int scales_at = CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS;
    int lane = (int)threadIdx.x % 32;
    frag_words<BITS> words;
    frag_scale sc;
    frag_load<BITS>(piece, block, lane, words);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if constexpr (BITS != CUDA_DENSE) {
            if (s % 2 == 0)
                frag_load_scale<BITS, SCALE>(piece + scales_at, (block * 2 + s / 2) >> group_shift,
                                             lane, sc);
        }
        frag_step<BITS, SCALE>(words, sc, s, a + 4 * s);
    }
}

/* The products of one block of 64 k; `add` 0 drops what the accumulator holds. */
template <int N>
__device__ static void run_block(float (&acc)[N], const uint32_t a[16], uint32_t columns, int add)
{
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_step(acc, a + 4 * s, wgmma_columns(columns + (uint32_t)(32 * s)), add | s);
    wgmma_commit();
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

template <int BITS, enum cuda_scale SCALE, int COLUMNS>
__global__ static void __launch_bounds__(threads_for(BITS, COLUMNS), 1)
    linear_many(const __grid_constant__ struct cuda_products all,
                const __grid_constant__ struct many_plan p, const __grid_constant__ CUtensorMap x)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ __align__(8) uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    constexpr int stages = n_stages(BITS, COLUMNS), bytes = stage_bytes(BITS, COLUMNS);
    static_assert(stages >= 3, "the stage that is filled is not one that is read");
    constexpr int half = x_bytes(COLUMNS) / 2, sums = COLUMNS / 2,
                  buffers = buffers_for(BITS, SCALE, COLUMNS);
    int warp = (int)threadIdx.x / 32, stage = 0, phase = 0, step = 0;
    const int group_shift = all.part[0].order.group / 64;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    launch_trigger();
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            copy_init(&full[i], warps_for(BITS, COLUMNS));
            copy_init(&empty[i], warps_for(BITS, COLUMNS));
        }
        copy_init_done();
    }
    __syncthreads();
    struct many_loader load = {};
    load.index = (int)blockIdx.x;
    open_item<BITS, COLUMNS>(all, p, &load);
    struct many_loader ahead = load;
    for (int i = 0; i < stages; i++)
        load_stage<BITS, COLUMNS, COPY_WEIGHTS>(all, p, &x, &ahead, shared + i * bytes, &full[i],
                                                NULL, 0);
    if (!p.no_wait) /* x, outputs and slots are other kernels' until here */
        launch_wait();
    for (int i = 0; i < stages; i++)
        load_stage<BITS, COLUMNS, COPY_X>(all, p, &x, &load, shared + i * bytes, &full[i], NULL, 0);
    float acc[sums], total[sums];
    uint32_t a[buffers][16];
    for (int index = (int)blockIdx.x; index < p.n_items; index += (int)gridDim.x) {
        struct many_item it = find_item<BITS, COLUMNS>(all, p, index);
        for (int chunk = it.chunk; chunk < it.end; chunk++) {
            int n = MIN2(p.chunk_pieces, all.part[0].order.n_pieces - chunk * p.chunk_pieces);
            for (int i = 0; i < n; i++, step++) {
                const uint8_t *piece =
                    shared + stage * bytes + x_bytes(COLUMNS) + warp * longest_piece(BITS);
                uint32_t columns = base + (uint32_t)(stage * bytes);
                int last = stage == 0 ? stages - 1 : stage - 1;
                int refill = last == 0 ? stages - 1 : last - 1;
                copy_wait(&full[stage], phase);
                /* Stage `refill` was of phase `phase`, or before a wrap of the one before. */
                if (step > 1)
                    load_stage<BITS, COLUMNS, COPY_BOTH>(all, p, &x, &load, shared + refill * bytes,
                                                         &full[refill], &empty[refill],
                                                         stage < 2 ? phase ^ 1 : phase);
                wgmma_wait<buffers - 1>();
                if (buffers == 1 && step > 0 && threadIdx.x % 32 == 0)
                    copy_arrive(&empty[last]);
                make_operand<BITS, SCALE>(piece, 0, group_shift, a[0]);
                run_block(acc, a[0], columns, i);
                wgmma_wait<buffers - 1>();
                if (buffers == 2 && step > 0 && threadIdx.x % 32 == 0)
                    copy_arrive(&empty[last]);
                make_operand<BITS, SCALE>(piece, 1, group_shift, a[buffers - 1]);
                run_block(acc, a[buffers - 1], columns + half, 1);
                stage = stage + 1 == stages ? 0 : stage + 1;
                phase ^= stage == 0;
            }
            wgmma_wait<0>();
            wgmma_hold(acc);
            if (p.slots) {
                store_sums(all, p, it, chunk, acc);
            } else {
#pragma unroll
                for (int i = 0; i < sums; i++)
                    total[i] = chunk == 0 ? acc[i] : total[i] + acc[i];
            }
        }
        if (!p.slots)
            store_sums(all, p, it, 0, total);
    }
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
