/* cuda_stream.cu: linear layers of up to 8 rows, and of 4 bits up to 16, in the shapes that models
 * have: K a multiple of 512 above 1024, x of all K in shared memory, formats with compiled lengths.
 *
 * Work: one block of 16 warps a multiprocessor owns a contiguous run of tiles. A unit is one chunk
 * of one tile, four pieces, and units of a part follow each other in memory: a warp takes every
 * 16th unit of the block's run, whatever tile it is of. Bytes: each weight once. Loads: every warp
 * has a ring of four pieces, so that piece i of any unit has place i, filled by 16-byte
 * asynchronous copies; it waits for nobody while it streams. x of 5 to 16 rows stands as its rows
 * do, a bulk copy each; of fewer in the order of the operand, which takes fewer loads. Where x of a
 * long K would take most of the shared memory, the blocks of a cluster (2 or 4) share their tiles,
 * each with its share of the chunks.
 *
 * Order: a unit's chunk sum goes to its slot; when a batch of tiles is through, threads add each
 * output's slots in ascending chunk order: rule 2. All tiles are one batch where the slots fit;
 * else two buffers of slots let warps run on into the next batch. With more than 8 rows x leaves
 * little room for slots: where a block has tiles enough, a warp takes whole tiles instead, with the
 * totals in registers.
 *
 * A gate: tiles of gate and up are numbered in turn (cuda_product.h), and whoever adds the slots
 * of a pair, or two warps that have its tiles, make the activation of it.
 *
 * The kernel starts early (cuda_launch.cuh). A block takes more than half of a multiprocessor's
 * shared memory, needed or not: where two could stand on one, those of an early start gathered on
 * the multiprocessors that the small kernels between products left free, and a step of an 8B model
 * took 2476 us instead of 1933. Planted fault: slots added in descending order.
 */
#include "kernels/cuda/cuda_few.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/mma90.h"

#define PIECES       4           /* of a unit, and places of a warp's ring */
#define SHARED_LEAST (116 << 10) /* so that two blocks never fit */
#define PAIRS_ABOVE  8192        /* longer K are halved between two blocks, but for one row */
#define MORE_ROWS    16          /* of the forms with two sets of rows */

struct stream_plan {
    int n_tiles, n_chunks;
    int batch_tiles;
    bool no_wait;                    /* planted fault */
    int x_at, slots_at, slots_bytes; /* in shared memory, after the rings */
    int shared_bytes;
};

/* ---- blocks that share tiles --------------------------------------------------------------------
 */
/* Chunks [first, end) of a row belong to block `rank` of a cluster. */
template <int SHARE> __device__ static int first_chunk(int n_chunks, int rank)
{
    return n_chunks * rank / SHARE;
}

template <int SHARE> __device__ static int rank_of_block(void)
{
    int rank = 0;
    if (SHARE > 1)
        COPY_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

template <int SHARE> __device__ static void sync_blocks(void)
{
    if (SHARE == 1) {
        __syncthreads();
        return;
    }
    COPY_ASM("barrier.cluster.arrive.release.aligned;\n"
             "barrier.cluster.wait.acquire.aligned;" ::
                 : "memory");
}

/* A float of the shared memory of block `rank`, at the place of `mine` in this one's. */
__device__ static float load_other(const float *mine, int rank)
{
    float v = 0.0f;
    COPY_ASM("{.reg .b32 there;\n"
             "mapa.shared::cluster.u32 there, %1, %2;\n"
             "ld.shared::cluster.f32 %0, [there];}"
             : "=f"(v)
             : "r"((uint32_t)__cvta_generic_to_shared(mine)), "r"(rank)
             : "memory");
    return v;
}

/* ---- outputs ------------------------------------------------------------------------------------
 */
__device__ static void put_plain(const struct cuda_products &all, int tile, int row, int t,
                                 float total)
{
    const struct cuda_product &part = part_of(all, &tile);
    int64_t r = (int64_t)tile * CUDA_TILE_ROWS + row;
    if (r < part.rows)
        part.out[t * part.out_stride + r] = part.bias ? total + part.bias[r] : total;
}

/* tile: of the gate. A function by itself: what a small step runs but once comes from memory, so
 * the code that every launch passes is kept short. */
__device__ __noinline__ static void put_gated(const struct cuda_products &all, int tile, int row,
                                              int t, float gate, float up)
{
    const struct cuda_product &g = all.part[0], &u = all.part[1];
    int64_t r = (int64_t)tile * CUDA_TILE_ROWS + row;
    if (r >= g.rows)
        return;
    gate = g.bias ? gate + g.bias[r] : gate;
    up = u.bias ? up + u.bias[r] : up;
    ((uint16_t *)all.gate.out)[t * g.rows + r] =
        bf16_from_f32(cuda_gated(all.gate.act, gate, up, all.gate.limit, all.gate.alpha));
}

/* The slots of output `at` of tile `tile` of the batch, in ascending chunk order. */
template <int SHARE>
__device__ static float total_of(const struct cuda_products &all, int n_chunks, const float *slots,
                                 int tile, int at)
{
    int slot = all.n_tok * CUDA_TILE_ROWS;
    float total = 0.0f;
    if constexpr (SHARE == 1) {
        int step = all.descending ? -slot : slot;
        const float *from = slots + tile * n_chunks * slot + at;
        from += all.descending ? (n_chunks - 1) * slot : 0;
        total = *from;
#pragma unroll 7
        for (int c = 1; c < n_chunks; c++)
            total += from[c * step];
    } else {
        for (int i = 0; i < SHARE; i++) {
            int owner = all.descending ? SHARE - 1 - i : i;
            int first = first_chunk<SHARE>(n_chunks, owner);
            int n = first_chunk<SHARE>(n_chunks, owner + 1) - first;
#pragma unroll 7
            for (int j = 0; j < n; j++) {
                int c = all.descending ? n - 1 - j : j;
                float v = load_other(slots + (tile * n + c) * slot + at, owner);
                total = i + j == 0 ? v : total + v;
            }
        }
    }
    return total;
}

/* Adds the slots of a batch of tiles and writes its outputs. A tile (of a gate: a pair of them) is
 * one warp's, or where tiles are few the warps of the cluster share its rows of x. */
template <int SHARE>
__device__ static void add_slots(const struct cuda_products &all, int n_chunks, int batch,
                                 int n_tiles, const float *slots, int rank)
{
    int lane = (int)threadIdx.x % 32, row = lane % CUDA_TILE_ROWS;
    int gated = all.gate.out != NULL, n = gated ? n_tiles / 2 : n_tiles, shift = 0;
    int me = (int)threadIdx.x / 32 * SHARE + rank;
    while (n << (shift + 1) <= FEW_WARPS * SHARE && 2 << shift < all.n_tok)
        shift++;
    for (int i = me >> shift; i < n; i += FEW_WARPS * SHARE >> shift) {
        int t = (me & ((1 << shift) - 1)) * 2 + lane / CUDA_TILE_ROWS, tile = batch + i;
        if (gated) {
            for (; t < all.n_tok; t += 2 << shift) {
                float total[2] = {};
#pragma unroll 1
                for (int half = 0; half < 2; half++) {
                    total[0] = total[1];
                    total[1] = total_of<SHARE>(all, n_chunks, slots, 2 * i + half,
                                               t * CUDA_TILE_ROWS + row);
                }
                put_gated(all, batch / 2 + i, row, t, total[0], total[1]);
            }
            continue;
        }
        const struct cuda_product &part = part_of(all, &tile);
        int64_t r = (int64_t)tile * CUDA_TILE_ROWS + row;
        bool inside = r < part.rows;
        float bias = inside && part.bias ? part.bias[r] : 0.0f;
        for (; t < all.n_tok; t += 2 << shift) {
            float total = total_of<SHARE>(all, n_chunks, slots, i, t * CUDA_TILE_ROWS + row);
            if (inside)
                part.out[t * part.out_stride + r] = part.bias ? total + bias : total;
        }
    }
}

/* The totals of a warp's tile. Those of a pair's two tiles meet in the pair's slot: the warp of the
 * up tile leaves its own there. */
template <int SETS>
__device__ static void put_totals(const struct cuda_products &all, int tile, float *slots,
                                  const float total[SETS][4])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    bool gated = all.gate.out != NULL, is_up = gated && warp % 2;
    float *slot = slots + warp / 2 * (SETS * FEW_ROWS * CUDA_TILE_ROWS);
    if (is_up)
#pragma unroll
        for (int s = 0; s < SETS; s++)
            put_slot(all.n_tok, s * FEW_ROWS, slot, total[s]);
    if (gated)
        asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
#pragma unroll
    for (int i = 0; i < SETS * 4 && !is_up; i++) {
        int t = i / 4 * FEW_ROWS + lane % 4 * 2 + i % 2, row = lane / 4 + i % 4 / 2 * 8;
        if (t >= all.n_tok)
            continue;
        if (gated)
            put_gated(all, tile / 2, row, t, total[i / 4][i % 4], slot[t * CUDA_TILE_ROWS + row]);
        else
            put_plain(all, tile, row, t, total[i / 4][i % 4]);
    }
    if (gated) /* the slot is free */
        asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
}

/* ---- a warp's units -----------------------------------------------------------------------------
 */
/* First piece of a chunk of a tile of the launch. */
__device__ static const uint8_t *unit_of(const struct cuda_products &all, int tile, int chunk,
                                         int unit_bytes)
{
    const uint8_t *data = all.part[0].data;
    if (all.gate.out)
        return all.part[tile & 1].data + (tile >> 1) * all.part[0].tile_bytes + chunk * unit_bytes;
#pragma unroll
    for (int i = 0; i + 1 < LINEAR_PARTS_MAX; i++) {
        if (i + 1 >= all.n_parts || tile < all.part[i].n_tiles)
            break;
        tile -= all.part[i].n_tiles;
        data = all.part[i + 1].data;
    }
    return data + tile * all.part[0].tile_bytes + chunk * unit_bytes;
}

/* Where a warp stands in the run of its block, and how far the unit 16 warps later is. */
struct stream_unit {
    int tile, chunk, turn_tiles, turn_chunks;
};

/* The unit that comes 16 warps later; of whole tiles, the next chunk. */
template <bool WHOLE> __device__ static void advance(int n_chunks, struct stream_unit *u)
{
    if (WHOLE) {
        if (++u->chunk == n_chunks) {
            u->chunk = 0;
            u->tile += FEW_WARPS;
        }
        return;
    }
    u->tile += u->turn_tiles;
    u->chunk += u->turn_chunks;
    if (u->chunk >= n_chunks) {
        u->chunk -= n_chunks;
        u->tile++;
    }
}

/* ROWS: columns that x has room for, at least n_tok. SHARE: blocks of a cluster, which have the
 * same tiles and a share of the chunks each. WHOLE: a warp has all chunks of a tile. */
template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, int SHARE, bool WHOLE>
__global__ static void __launch_bounds__(FEW_THREADS, 1)
    linear_stream(const __grid_constant__ struct cuda_products all,
                  const __grid_constant__ struct stream_plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr bool as_rows = ROWS >= FEW_ROWS;
    constexpr int bytes = piece_bytes_of<BITS, SCALE, GROUP>(), k32 = as_rows ? 64 : ROWS * 64;
    constexpr int sets = (ROWS + FEW_ROWS - 1) / FEW_ROWS;
    launch_trigger();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, rank = rank_of_block<SHARE>();
    int run = (int)blockIdx.x / SHARE, n_runs = (int)gridDim.x / SHARE;
    int per = all.gate.out ? 2 : 1, n = p.n_tiles / per; /* tiles that stay together */
    int first = (int)((int64_t)n * run / n_runs) * per;
    int end = (int)((int64_t)n * (run + 1) / n_runs) * per;
    int chunk0 = first_chunk<SHARE>(p.n_chunks, rank);
    int n_chunks = first_chunk<SHARE>(p.n_chunks, rank + 1) - chunk0;
    struct stream_unit at = {first + warp / n_chunks, warp % n_chunks, FEW_WARPS / n_chunks,
                             FEW_WARPS % n_chunks};
    const uint8_t *ring = shared + warp * PIECES * bytes, *from = NULL;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint32_t *x = (uint32_t *)(shared + p.x_at);
    bool backwards = WHOLE && all.descending; /* planted fault */
    if (WHOLE)
        at = {first + warp, 0, 0, 0};
    if (at.tile < end)
        from = unit_of(all, at.tile, backwards ? n_chunks - 1 : chunk0 + at.chunk, PIECES * bytes);
#pragma unroll
    for (int i = 0; i < PIECES - 1; i++) {
        if (from)
            copy_piece<bytes>(ring_at + i * bytes, from + i * bytes);
        close_group();
    }
    uint64_t *x_there = (uint64_t *)(void *)(x + n_chunks * (PIECES * CUDA_PIECE_K / 2));
    if (as_rows) { /* behind the first row */
        if (threadIdx.x == 0) {
            copy_init(x_there, 1);
            copy_init_done();
        }
        __syncthreads();
    }
    if (!p.no_wait) /* weights are on their way; x may still be in the making */
        launch_wait();
    const uint8_t *x_lane = (const uint8_t *)x + lane * 16;
    int buffer = 0, slot = all.n_tok * CUDA_TILE_ROWS, left = all.n_tok - lane / 4, x_step = k32;
    if constexpr (as_rows) {
        int row = x_row_bytes(n_chunks * PIECES), mine = MIN2(lane % 8, all.n_tok - 1);
        x_lane = (const uint8_t *)x + mine * row + lane / 8 * 16;
        x_step = (MIN2(lane % 8 + FEW_ROWS, all.n_tok - 1) - mine) * row;
        ask_x(all, chunk0 * PIECES, n_chunks * PIECES, (uint8_t *)x, x_there);
        copy_wait(x_there, 0);
    } else {
        load_x<ROWS>(all, chunk0 * PIECES, n_chunks * PIECES, x);
        __syncthreads();
    }
    float total[sets][4] = {};
    for (int batch = first; batch < end; batch += p.batch_tiles) {
        int stop = MIN2(batch + p.batch_tiles, end);
        float *slots = (float *)(shared + p.slots_at + buffer * p.slots_bytes);
        while (at.tile < stop) {
            float acc[sets][4] = {};
            int tile = at.tile, chunk = at.chunk;
            const uint8_t *next = NULL, *x_unit = x_lane;
            x_unit += (backwards ? n_chunks - 1 - chunk : chunk) * (PIECES * 4 * k32);
            advance<WHOLE>(n_chunks, &at);
            if (at.tile < end)
                next =
                    unit_of(all, at.tile, backwards ? n_chunks - 1 - at.chunk : chunk0 + at.chunk,
                            PIECES * bytes);
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                constexpr int last = PIECES - 1;
                if (i == 0)
                    copy_piece<bytes>(ring_at + last * bytes, from + last * bytes);
                else if (next)
                    copy_piece<bytes>(ring_at + (i - 1) * bytes, next + (i - 1) * bytes);
                close_group();
                wait_groups<PIECES - 1>();
                __syncwarp();
                run_piece<BITS, SCALE, GROUP, sets, as_rows>(
                    ring + i * bytes, GROUP / 64, x_unit + i * 4 * k32, x_step, left, acc);
                __syncwarp();
            }
            from = next;
            if constexpr (WHOLE) {
#pragma unroll
                for (int i = 0; i < sets * 4; i++)
                    total[i / 4][i % 4] =
                        chunk == 0 ? acc[i / 4][i % 4] : total[i / 4][i % 4] + acc[i / 4][i % 4];
                if (chunk == n_chunks - 1)
                    put_totals<sets>(all, tile, slots, total);
            } else {
                float *to = slots + ((tile - batch) * n_chunks + chunk) * slot;
#pragma unroll
                for (int s = 0; s < sets; s++)
                    put_slot(all.n_tok, s * FEW_ROWS, to, acc[s]);
            }
        }
        if (WHOLE)
            break;
        sync_blocks<SHARE>();
        add_slots<SHARE>(all, p.n_chunks, batch, stop - batch, slots, rank);
        buffer ^= p.batch_tiles < end - first;
    }
    if (SHARE > 1) /* another block may still read this one's slots */
        sync_blocks<SHARE>();
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
/* Tiles of a batch: all of a block's `most`, or as many as fit in `room` twice; 0: not one. */
static int plan_batch(int most, int tile_slots, int room, int per)
{
    return most * tile_slots <= room ? most : room / 2 / tile_slots / per * per;
}

/* Whole tiles leave no more than a quarter of the warps without one. */
static bool fills_warps(int most)
{
    return 4 * most >= 3 * ((most + FEW_WARPS - 1) / FEW_WARPS * FEW_WARPS);
}

static bool make_plan(const struct cuda_kern *c, const struct cuda_products *all, int rows,
                      int share, bool whole, int most_blocks, struct stream_plan *p, int *n_blocks)
{
    const struct cuda_order *o = &all->part[0].order;
    int per = all->gate.out ? 2 : 1;
    *p = (struct stream_plan){};
    for (int i = 0; i < all->n_parts; i++)
        p->n_tiles += all->part[i].n_tiles;
    p->n_chunks = o->n_pieces / PIECES;
    int runs = MIN2(most_blocks / share, p->n_tiles / per);
    int most = (p->n_tiles / per + runs - 1) / runs * per;
    int n_chunks = (p->n_chunks + share - 1) / share; /* of a block, at most */
    int tile_slots = n_chunks * all->n_tok * CUDA_TILE_ROWS * 4;
    int pair_slots = per == 2 ? FEW_WARPS / 2 * rows * CUDA_TILE_ROWS * 4 : 0;
    int shared = (int)c->shared_max, batch = 0;
    *n_blocks = runs * share;
    p->x_at = FEW_WARPS * PIECES * o->piece_bytes;
    p->slots_at = p->x_at + (rows >= FEW_ROWS ? x_row_bytes(n_chunks * PIECES)
                                              : n_chunks * PIECES * CUDA_PIECE_K * 2) *
                                rows;
    if (whole && p->slots_at + pair_slots <= shared && fills_warps(most))
        batch = most;
    else if (!whole && p->slots_at < shared)
        batch = plan_batch(most, tile_slots, shared - p->slots_at, per);
    /* With so many rows several batches pay only where nothing else takes the K. */
    if (rows > FEW_ROWS && batch < most && (share == 1 || o->k <= PAIRS_ABOVE))
        return false;
    if (batch == 0 || p->n_chunks < share)
        return false;
    p->batch_tiles = batch;
    p->slots_bytes = whole ? pair_slots : batch * tile_slots;
    p->shared_bytes =
        MAX2(p->slots_at + p->slots_bytes * (batch < most ? 2 : 1), MIN2(SHARED_LEAST, shared));
    return true;
}

template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, int SHARE, bool WHOLE>
static bool launch(const struct cuda_kern *c, const struct cuda_products *all)
{
    static int in_clusters; /* blocks on the device at once, of clusters of 4; 0: not asked yet */
    struct stream_plan p;
    int n_blocks, most_blocks = c->n_sm;
    auto *kernel = linear_stream<BITS, SCALE, GROUP, ROWS, SHARE, WHOLE>;
    if (in_clusters == 0) {
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)c->shared_max);
        in_clusters = SHARE <= 2
                          ? c->n_sm
                          : launch_most_blocks(SHARE, kernel, FEW_THREADS, c->shared_max, c->n_sm);
    }
    if (SHARE > 2)
        most_blocks = MIN2(most_blocks, in_clusters);
    if (!make_plan(c, all, ROWS, SHARE, WHOLE, most_blocks, &p, &n_blocks))
        return false;
    p.no_wait = c->plant_no_wait;
    launch_clusters(SHARE, kernel, dim3((unsigned)n_blocks), FEW_THREADS, (size_t)p.shared_bytes,
                    c->stream, *all, p);
    return true;
}

/* 9 to 16 rows. */
template <int BITS, enum cuda_scale SCALE, int GROUP>
static bool launch_more_rows(const struct cuda_kern *c, const struct cuda_products *all)
{
    int n_tiles = 0;
    for (int i = 0; i < all->n_parts; i++)
        n_tiles += all->part[i].n_tiles;
    /* Two tiles a block do not pay for its x; of a long K the blocks of a cluster share it. */
    if (all->part[0].order.k <= PAIRS_ABOVE && n_tiles <= 2 * c->n_sm &&
        c->force_path != CUDA_PATH_STREAM)
        return false;
    return launch<BITS, SCALE, GROUP, MORE_ROWS, 1, true>(c, all) ||
           launch<BITS, SCALE, GROUP, MORE_ROWS, 1, false>(c, all) ||
           launch<BITS, SCALE, GROUP, MORE_ROWS, 2, false>(c, all) ||
           launch<BITS, SCALE, GROUP, MORE_ROWS, 4, false>(c, all);
}

template <int BITS, enum cuda_scale SCALE, int GROUP>
static bool launch_rows(const struct cuda_kern *c, const struct cuda_products *all)
{
    bool pair = all->part[0].order.k > PAIRS_ABOVE;
    if (all->n_tok == 1)
        return launch<BITS, SCALE, GROUP, 1, 1, false>(c, all);
    if (all->n_tok <= 4)
        return pair ? launch<BITS, SCALE, GROUP, 4, 2, false>(c, all)
                    : launch<BITS, SCALE, GROUP, 4, 1, false>(c, all);
    if (all->n_tok <= FEW_ROWS)
        return pair ? launch<BITS, SCALE, GROUP, FEW_ROWS, 2, false>(c, all)
                    : launch<BITS, SCALE, GROUP, FEW_ROWS, 1, false>(c, all);
    if constexpr (BITS == 4)
        return launch_more_rows<BITS, SCALE, GROUP>(c, all);
    return false;
}

template <int BITS, enum cuda_scale SCALE>
static bool launch_group(const struct cuda_kern *c, const struct cuda_products *all)
{
    switch (all->part[0].order.group) {
    case 32:
        return launch_rows<BITS, SCALE, 32>(c, all);
    case 64:
        return launch_rows<BITS, SCALE, 64>(c, all);
    default:
        return launch_rows<BITS, SCALE, 128>(c, all);
    }
}

bool cuda_stream_run(const struct cuda_kern *c, const struct cuda_products *all)
{
    const struct cuda_order *o = &all->part[0].order;
    if (!cuda_takes(c, CUDA_KERNEL_LINEAR_STREAM) || all->n_tok > MORE_ROWS || o->k <= 1024 ||
        o->k % (PIECES * CUDA_PIECE_K) || !is_aligned(*all))
        return false; /* chunks of other lengths, x of another kind */
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_group<4, CUDA_SCALE_LOW>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_group<8, CUDA_SCALE_FAST>(c, all);
    return false; /* dense: a block's rings would be larger than shared memory */
}
