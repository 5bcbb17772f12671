/* cuda_many.cu: linear layers of more than 8 rows, by warpgroup products (wgmma).
 *
 * Work: a block is two warpgroups: 128 weight rows (8 tiles, a warp a tile) by 32, 64 or 128 rows
 * of x, the columns. Blocks are as many as multiprocessors and walk a fixed list of items, columns
 * fastest, so that blocks which run together share weights and x in the second-level cache. Bytes:
 * weights once for every column tile, x once for every 128 weight rows.
 *
 * Pipeline: a stage is 128 k: each warp copies the piece of its own tile, all threads copy x,
 * swizzled for the hardware. Copies run STAGES - 2 stages ahead, across items; the stage that is
 * filled at step i was last read by products of step i - 2, which the waits at step i - 1 have
 * seen end. Weights become the registers of the A operand while the products of the 64 k before
 * them run: two register buffers, at most two groups of products in flight.
 *
 * Order: a chunk starts without the accumulator's old value and takes its steps ascending; at its
 * end the sums are added to totals in registers: rule 2. Where items are too few to fill the
 * device, an item is one chunk: its sums go to their own slots in scratch, and a second kernel adds
 * them ascending. Its planted fault: the other direction.
 *
 * Shapes: K a multiple of 8 and x aligned to 16 bytes; the formats listed in cuda_many_run. The
 * plain kernel takes what is left.
 */
#include "kernels/cuda/cuda_linear.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_wgmma.cuh"
#include "kernels/mma90.h"

#define WARPS        8
#define THREADS      (32 * WARPS)
#define BLOCK_ROWS   (WARPS * CUDA_TILE_ROWS)
#define SHARED_BYTES (220 << 10) /* what the stages may take together */
#define STAGES_MAX   8

struct many_plan {
    int n_row_blocks, n_column_tiles, n_chunks, chunk_pieces, n_items;
    int64_t all_rows; /* of all parts: a slot's row length */
    float *slots;     /* [chunk][row of x][row of the parts], or NULL: totals in registers */
};

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
    return x_bytes(columns) + (WARPS * longest_piece(bits) + 1023) / 1024 * 1024;
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

__device__ static struct many_item find_item(const struct cuda_products &all,
                                             const struct many_plan &p, int index, int columns)
{
    struct many_item it = {};
    int rest = index, block;
    if (p.slots) {
        it.chunk = rest % p.n_chunks;
        rest /= p.n_chunks;
        it.end = it.chunk + 1;
    } else {
        it.end = p.n_chunks;
    }
    it.column = rest % p.n_column_tiles * columns;
    block = rest / p.n_column_tiles;
    for (;;) {
        int blocks = (all.part[it.part].n_tiles + WARPS - 1) / WARPS;
        if (block < blocks)
            break;
        block -= blocks;
        it.row_first += all.part[it.part++].rows;
    }
    it.tile0 = block * WARPS;
    return it;
}

/* ---- copies -------------------------------------------------------------------------------------
 */
/* 16 bytes, or zeros when `bytes` is 0. */
__device__ static void copy16(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

struct many_loader {
    struct many_item item;
    int index, piece, end; /* item of the list; next piece, and where the item's pieces end */
    const uint8_t *tile;   /* this warp's */
};

__device__ static void open_item(const struct cuda_products &all, const struct many_plan &p,
                                 int columns, struct many_loader *l)
{
    if (l->index >= p.n_items)
        return;
    l->item = find_item(all, p, l->index, columns);
    const struct cuda_product &part = all.part[l->item.part];
    int tile = MIN2(l->item.tile0 + (int)threadIdx.x / 32, part.n_tiles - 1);
    l->tile = part.data + tile * part.tile_bytes;
    l->piece = l->item.chunk * p.chunk_pieces;
    l->end = MIN2(l->item.end * p.chunk_pieces, part.order.n_pieces);
}

/* Starts the copies of one stage and closes their group, also when nothing is left. */
template <int BITS, int COLUMNS>
__device__ static void load_stage(const struct cuda_products &all, const struct many_plan &p,
                                  struct many_loader *l, uint32_t stage)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (l->index < p.n_items) {
        int bytes = all.part[0].order.piece_bytes;
        uint32_t to = stage + (uint32_t)(x_bytes(COLUMNS) + warp * longest_piece(BITS));
        const uint8_t *from = l->tile + (int64_t)l->piece * bytes;
        for (int i = lane * 16; i < bytes; i += 512)
            copy16(to + (uint32_t)i, from + i, 16);
        /* x: 16 pieces a row; eight of them are a row of one half of the stage. */
        int64_t k0 = (int64_t)l->piece * CUDA_PIECE_K, k_end = all.part[0].order.k;
#pragma unroll
        for (int i = 0; i < COLUMNS * 16 / THREADS; i++) {
            int at = i * THREADS + (int)threadIdx.x, row = at / 16, piece = at % 16;
            bool inside = l->item.column + row < all.n_tok && k0 + piece * 8 < k_end;
            const uint16_t *x = all.x;
            if (inside)
                x += (l->item.column + row) * all.x_stride + k0 + piece * 8;
            copy16(stage + (uint32_t)(piece / 8 * (x_bytes(COLUMNS) / 2) + row * 128 +
                                      (piece % 8 ^ (row & 7)) * 16),
                   x, inside ? 16 : 0);
        }
        if (++l->piece == l->end) {
            l->index += (int)gridDim.x;
            open_item(all, p, COLUMNS, l);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
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
                frag_load_scale<SCALE>(piece + scales_at, (block * 2 + s / 2) >> group_shift, lane,
                                       sc);
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
__global__ static void __launch_bounds__(THREADS, 1)
    linear_many(const __grid_constant__ struct cuda_products all,
                const __grid_constant__ struct many_plan p)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    constexpr int stages = n_stages(BITS, COLUMNS), bytes = stage_bytes(BITS, COLUMNS);
    constexpr int half = x_bytes(COLUMNS) / 2, sums = COLUMNS / 2;
    int warp = (int)threadIdx.x / 32, stage = 0;
    const int group_shift = all.part[0].order.group / 64;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    struct many_loader load = {};
    load.index = (int)blockIdx.x;
    open_item(all, p, COLUMNS, &load);
    for (int s = 0; s < stages - 2; s++)
        load_stage<BITS, COLUMNS>(all, p, &load, base + (uint32_t)(s * bytes));
    float acc[sums], total[sums];
    uint32_t a0[16], a1[16];
    for (int index = (int)blockIdx.x; index < p.n_items; index += (int)gridDim.x) {
        struct many_item it = find_item(all, p, index, COLUMNS);
        for (int chunk = it.chunk; chunk < it.end; chunk++) {
            int n = MIN2(p.chunk_pieces, all.part[0].order.n_pieces - chunk * p.chunk_pieces);
            for (int i = 0; i < n; i++) {
                const uint8_t *here = shared + stage * bytes;
                const uint8_t *piece = here + x_bytes(COLUMNS) + warp * longest_piece(BITS);
                uint32_t columns = base + (uint32_t)(stage * bytes);
                int next = stage < 2 ? stage + stages - 2 : stage - 2;
                asm volatile("cp.async.wait_group %0;" ::"n"(stages - 3) : "memory");
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncthreads();
                load_stage<BITS, COLUMNS>(all, p, &load, base + (uint32_t)(next * bytes));
                wgmma_wait<1>();
                make_operand<BITS, SCALE>(piece, 0, group_shift, a0);
                run_block(acc, a0, columns, i);
                wgmma_wait<1>();
                make_operand<BITS, SCALE>(piece, 1, group_shift, a1);
                run_block(acc, a1, columns + half, 1);
                stage = stage + 1 == stages ? 0 : stage + 1;
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

/* Adds the slots of each output in ascending chunk order. */
__global__ static void add_slots(const __grid_constant__ struct cuda_products all,
                                 const __grid_constant__ struct many_plan p)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    int64_t step = all.n_tok * p.all_rows, r = at;
    int i = 0;
    if (at >= p.all_rows)
        return;
    while (r >= all.part[i].rows)
        r -= all.part[i++].rows;
    const float *slot = p.slots + t * p.all_rows + at;
    if (all.descending) {
        slot += (p.n_chunks - 1) * step;
        step = -step;
    }
    float total = *slot;
#pragma unroll 4
    for (int c = 1; c < p.n_chunks; c++)
        total += slot[c * step];
    const struct cuda_product &part = all.part[i];
    part.out[t * part.out_stride + r] = part.bias ? total + part.bias[r] : total;
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
#define FILL_PERCENT 75 /* fewer items than this share of the multiprocessors are split by chunks  \
                         */

static int columns_for(int n_tok)
{
    return n_tok <= 32 ? 32 : n_tok <= 64 ? 64 : 128;
}

static void make_plan(const struct cuda_kern *c, const struct cuda_products *all, int columns,
                      struct many_plan *p)
{
    const struct cuda_order *o = &all->part[0].order;
    *p = (struct many_plan){};
    for (int i = 0; i < all->n_parts; i++) {
        p->n_row_blocks += (all->part[i].n_tiles + WARPS - 1) / WARPS;
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
    size_t most = (size_t)c->n_sm * BLOCK_ROWS * 128 * FILL_PERCENT / 100;
    size_t outputs = (size_t)l->n_tok * (size_t)l->rows_max;
    return n_chunks * MIN2(outputs, most) * sizeof(float);
}

template <int BITS, enum cuda_scale SCALE, int COLUMNS>
static void launch(const struct cuda_kern *c, const struct cuda_products *all)
{
    static bool allowed;
    constexpr int shared = n_stages(BITS, COLUMNS) * stage_bytes(BITS, COLUMNS);
    struct many_plan p;
    make_plan(c, all, COLUMNS, &p);
    if (!allowed) {
        (void)cudaFuncSetAttribute(linear_many<BITS, SCALE, COLUMNS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        allowed = true;
    }
    linear_many<BITS, SCALE, COLUMNS>
        <<<(unsigned)MIN2(p.n_items, c->n_sm), THREADS, shared, c->stream>>>(*all, p);
    if (p.slots) {
        dim3 grid((unsigned)((p.all_rows + 255) / 256), (unsigned)all->n_tok);
        add_slots<<<grid, 256, 0, c->stream>>>(*all, p);
    }
}

template <int BITS, enum cuda_scale SCALE>
static bool launch_columns(const struct cuda_kern *c, const struct cuda_products *all)
{
    switch (columns_for(all->n_tok)) {
    case 32:
        launch<BITS, SCALE, 32>(c, all);
        break;
    case 64:
        launch<BITS, SCALE, 64>(c, all);
        break;
    default:
        launch<BITS, SCALE, 128>(c, all);
        break;
    }
    return true;
}

bool cuda_many_run(const struct cuda_kern *c, const struct cuda_products *all)
{
    const struct cuda_order *o = &all->part[0].order;
    if (o->k % 8 != 0 || all->x_stride % 8 != 0 || (uintptr_t)all->x % 16 != 0)
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
    if (o->bits == 6 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<6, CUDA_SCALE_FAST>(c, all);
    return false;
}
