/* cuda_stream.cu: linear layers of up to 8 rows in the shapes that models have: K a multiple of 512
 * above 1024, x of all K in shared memory, formats with compiled lengths.
 *
 * Work: one block of 16 warps a multiprocessor owns a contiguous run of tiles. A unit is one chunk
 * of one tile, four pieces, and units of a part follow each other in memory: a warp takes every
 * 16th unit of the block's run, whatever tile it is of. Bytes: each weight once. Loads: every warp
 * has a ring of four pieces, so that piece i of any unit has place i, filled by 16-byte
 * asynchronous copies; it waits for nobody while it streams. Where x of a long K would take most of
 * the shared memory, two blocks of a cluster share their tiles, each with half of the chunks.
 *
 * Order: a unit's chunk sum goes to its slot; when a batch of tiles is through, threads add each
 * output's slots in ascending chunk order: rule 2. All tiles are one batch where the slots fit;
 * else two buffers of slots let warps run on into the next batch.
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

struct stream_plan {
    int n_tiles, n_chunks;
    int batch_tiles;
    bool no_wait;                    /* planted fault */
    int x_at, slots_at, slots_bytes; /* in shared memory, after the rings */
    int shared_bytes;
};

/* ---- blocks that share tiles --------------------------------------------------------------------
 */
template <int PAIR> __device__ static int rank_of_block(void)
{
    int rank = 0;
    if (PAIR > 1)
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

template <int PAIR> __device__ static void sync_blocks(void)
{
    if (PAIR == 1) {
        __syncthreads();
        return;
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* A float of the shared memory of block `rank`, at the place of `mine` in this one's. */
__device__ static float load_other(const float *mine, int rank)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(mine), there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}

/* add_slots for a pair: each block adds every other tile, block 0's chunks first. */
__device__ static void add_slots_of_pair(const struct cuda_products &all, int n_chunks, int batch,
                                         int n_tiles, const float *slots, int rank)
{
    int per_tile = all.n_tok * CUDA_TILE_ROWS, lane = (int)threadIdx.x % 32;
    for (int i = (int)threadIdx.x / 32 * 2 + rank; i < n_tiles; i += FEW_WARPS * 2) {
        int tile = batch + i;
        const struct cuda_product &part = part_of(all, &tile);
        int64_t r = (int64_t)tile * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
        float bias = r < part.rows && part.bias ? part.bias[r] : 0.0f;
        for (int t = lane / CUDA_TILE_ROWS; t < all.n_tok; t += 2) {
            float total = 0.0f;
            int at = t * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
#pragma unroll 7
            for (int c = 0; c < n_chunks; c++) {
                int chunk = all.descending ? n_chunks - 1 - c : c, half = n_chunks / 2;
                int owner = chunk >= half, n = owner ? n_chunks - half : half;
                const float *slot = slots + (i * n + chunk - owner * half) * per_tile + at;
                float v = load_other(slot, owner);
                total = c == 0 ? v : total + v;
            }
            if (r < part.rows)
                part.out[t * part.out_stride + r] = part.bias ? total + bias : total;
        }
    }
}

/* ---- a warp's units -----------------------------------------------------------------------------
 */
/* First piece of a chunk of a tile of the launch. */
__device__ static const uint8_t *unit_of(const struct cuda_products &all, int tile, int chunk,
                                         int unit_bytes)
{
    const uint8_t *data = all.part[0].data;
#pragma unroll
    for (int i = 0; i + 1 < LINEAR_PARTS_MAX; i++) {
        if (i + 1 >= all.n_parts || tile < all.part[i].n_tiles)
            break;
        tile -= all.part[i].n_tiles;
        data = all.part[i + 1].data;
    }
    return data + tile * all.part[0].tile_bytes + chunk * unit_bytes;
}

/* ROWS: columns that x has room for, at least n_tok. PAIR 2: the two blocks of a cluster have the
 * same tiles and half of the chunks each. */
template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, int PAIR>
__global__ static void __launch_bounds__(FEW_THREADS, 1)
    linear_stream(const __grid_constant__ struct cuda_products all,
                  const __grid_constant__ struct stream_plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int bytes = piece_bytes_of<BITS, SCALE, GROUP>(), x_step = ROWS * 64;
    launch_trigger();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, rank = rank_of_block<PAIR>();
    int run = (int)blockIdx.x / PAIR, n_runs = (int)gridDim.x / PAIR, half = p.n_chunks / PAIR;
    int first = (int)((int64_t)p.n_tiles * run / n_runs);
    int end = (int)((int64_t)p.n_tiles * (run + 1) / n_runs);
    int chunk0 = rank * half, n_chunks = rank == PAIR - 1 ? p.n_chunks - chunk0 : half;
    int tile = first + warp / n_chunks, chunk = warp % n_chunks;
    int turn_tiles = FEW_WARPS / n_chunks, turn_chunks = FEW_WARPS % n_chunks;
    const uint8_t *ring = shared + warp * PIECES * bytes, *from = NULL;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint32_t *x = (uint32_t *)(shared + p.x_at);
    if (tile < end)
        from = unit_of(all, tile, chunk0 + chunk, PIECES * bytes);
#pragma unroll
    for (int i = 0; i < PIECES - 1; i++) {
        if (from)
            copy_piece<bytes>(ring_at + i * bytes, from + i * bytes);
        close_group();
    }
    if (!p.no_wait) /* weights are on their way; x may still be in the making */
        launch_wait();
    load_x<ROWS>(all, chunk0 * PIECES, n_chunks * PIECES, x);
    __syncthreads();
    const uint8_t *x_lane = (const uint8_t *)x + lane * 16;
    bool live = lane / 4 < all.n_tok;
    int buffer = 0, slot = all.n_tok * CUDA_TILE_ROWS;
    for (int batch = first; batch < end; batch += p.batch_tiles) {
        int stop = MIN2(batch + p.batch_tiles, end);
        float *slots = (float *)(shared + p.slots_at + buffer * p.slots_bytes);
        while (tile < stop) {
            float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            const uint8_t *x_unit = x_lane + chunk * (PIECES * 4 * x_step), *next = NULL;
            float *to = slots + ((tile - batch) * n_chunks + chunk) * slot;
            tile += turn_tiles;
            chunk += turn_chunks;
            if (chunk >= n_chunks) {
                chunk -= n_chunks;
                tile++;
            }
            if (tile < end)
                next = unit_of(all, tile, chunk0 + chunk, PIECES * bytes);
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
                run_piece<BITS, SCALE, GROUP>(ring + i * bytes, GROUP / 64, x_unit + i * 4 * x_step,
                                              x_step, live, acc);
                __syncwarp();
            }
            put_slot(all.n_tok, to, acc);
            from = next;
        }
        sync_blocks<PAIR>();
        if (PAIR == 1)
            add_slots(all, n_chunks, batch, stop - batch, slots);
        else
            add_slots_of_pair(all, p.n_chunks, batch, stop - batch, slots, rank);
        buffer ^= p.batch_tiles < end - first;
    }
    if (PAIR > 1) /* the other block may still read this one's slots */
        sync_blocks<PAIR>();
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
/* Tiles of a batch: all of a block's `most`, or as many as fit in `room` twice; 0: not one. */
static int plan_batch(int most, int tile_slots, int room)
{
    return most * tile_slots <= room ? most : room / 2 / tile_slots;
}

static bool make_plan(const struct cuda_kern *c, const struct cuda_products *all, int rows,
                      int pair, struct stream_plan *p, int *n_blocks)
{
    const struct cuda_order *o = &all->part[0].order;
    *p = (struct stream_plan){};
    for (int i = 0; i < all->n_parts; i++)
        p->n_tiles += all->part[i].n_tiles;
    p->n_chunks = o->n_pieces / PIECES;
    int runs = MIN2(c->n_sm / pair, p->n_tiles), most = (p->n_tiles + runs - 1) / runs;
    int n_chunks = (p->n_chunks + pair - 1) / pair; /* of a block, at most */
    int tile_slots = n_chunks * all->n_tok * CUDA_TILE_ROWS * 4;
    int shared = (int)c->shared_max, batch = 0;
    *n_blocks = runs * pair;
    p->x_at = FEW_WARPS * PIECES * o->piece_bytes;
    p->slots_at = p->x_at + n_chunks * PIECES * CUDA_PIECE_K * 2 * rows;
    if (p->slots_at < shared)
        batch = plan_batch(most, tile_slots, shared - p->slots_at);
    if (batch == 0 || p->n_chunks < pair)
        return false;
    p->batch_tiles = batch;
    p->slots_bytes = batch * tile_slots;
    p->shared_bytes =
        MAX2(p->slots_at + p->slots_bytes * (batch < most ? 2 : 1), MIN2(SHARED_LEAST, shared));
    return true;
}

template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, int PAIR>
static bool launch(const struct cuda_kern *c, const struct cuda_products *all)
{
    static bool allowed; /* as much shared memory as there is */
    struct stream_plan p;
    int n_blocks;
    if (!make_plan(c, all, ROWS, PAIR, &p, &n_blocks))
        return false;
    p.no_wait = c->plant_no_wait;
    if (!allowed) {
        (void)cudaFuncSetAttribute(linear_stream<BITS, SCALE, GROUP, ROWS, PAIR>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->shared_max);
        allowed = true;
    }
    launch_clusters(PAIR, linear_stream<BITS, SCALE, GROUP, ROWS, PAIR>, dim3((unsigned)n_blocks),
                    FEW_THREADS, (size_t)p.shared_bytes, c->stream, *all, p);
    return true;
}

template <int BITS, enum cuda_scale SCALE, int GROUP>
static bool launch_rows(const struct cuda_kern *c, const struct cuda_products *all)
{
    bool pair = all->part[0].order.k > PAIRS_ABOVE;
    if (all->n_tok == 1)
        return launch<BITS, SCALE, GROUP, 1, 1>(c, all);
    if (all->n_tok <= 4)
        return pair ? launch<BITS, SCALE, GROUP, 4, 2>(c, all)
                    : launch<BITS, SCALE, GROUP, 4, 1>(c, all);
    return pair ? launch<BITS, SCALE, GROUP, FEW_ROWS, 2>(c, all)
                : launch<BITS, SCALE, GROUP, FEW_ROWS, 1>(c, all);
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
    if (all->n_tok > FEW_ROWS || o->k <= 1024 || o->k % (PIECES * CUDA_PIECE_K))
        return false; /* chunks of other lengths */
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_group<4, CUDA_SCALE_LOW>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_group<8, CUDA_SCALE_FAST>(c, all);
    if (o->bits == CUDA_DENSE)
        return launch_rows<CUDA_DENSE, CUDA_SCALE_NONE, GROUP_ANY>(c, all);
    return false;
}
