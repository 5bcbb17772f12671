/* cuda_few.cu: linear layers of up to 8 rows, where reading the weights is all the work: any shape
 * and format. What models mostly have goes to cuda_stream.cu, which does the same with less.
 *
 * Work: one block of 16 warps a multiprocessor owns a contiguous run of tiles, so a contiguous run
 * of bytes. A unit is one chunk of one tile; units go to the block's warps in turn. Bytes: each
 * weight once. Loads: every warp has its own ring of pieces (128 k of a tile) filled by 16-byte
 * asynchronous copies, and waits for nobody while it streams.
 *
 * Order: a unit's chunk sum goes to its own slot in shared memory; when all units of a batch of
 * tiles are there, threads add each output's slots in ascending chunk order: rule 2. Two buffers of
 * slots let warps run on into the next batch while others still add.
 *
 * Where x does not fit, K is taken in windows of chunks: all units of a window, then x of the next
 * one. A batch is then several phases, (batch, window); a warp's ring runs across phases.
 *
 * The kernel starts early (cuda_launch.cuh): its first weights are on their way when it waits for
 * the kernels before it.
 *
 * Shapes: any K and N, every format. Its planted fault: slots added in descending order.
 */
#include "kernels/cuda/cuda_few.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/mma90.h"

#define WARPS       FEW_WARPS
#define THREADS     FEW_THREADS
#define SLOTS_BYTES (28 << 10) /* of one buffer, if a tile's units fit */

struct few_plan {
    int n_tiles, n_chunks, chunk_pieces; /* of the launch; pieces of a whole chunk */
    int batch_tiles;                     /* tiles of a batch */
    int window;                          /* chunks whose x is in shared memory */
    bool no_wait;                        /* planted fault */
    int x_at, slots_at, slots_bytes;     /* in shared memory, after the ring */
    int shared_bytes;
};

/* ---- a warp's way through its units -------------------------------------------------------------
 */
/* Where a warp stands: a unit of a phase. Phases are windows inside batches. */
struct few_cursor {
    int batch, window; /* first tile and first chunk of the phase */
    int n_tiles, n_chunks;
    int tile, chunk; /* of the unit, from the phase's first */
    bool done;
};

struct few_range {
    int first, end; /* tiles of the block */
};

__device__ static void start_phase(const struct few_plan &p, const struct few_range &r, int warp,
                                   struct few_cursor *c)
{
    while (c->batch < r.end) {
        c->n_tiles = MIN2(p.batch_tiles, r.end - c->batch);
        c->n_chunks = MIN2(p.window, p.n_chunks - c->window);
        if (warp < c->n_tiles * c->n_chunks) {
            c->tile = warp / c->n_chunks;
            c->chunk = warp % c->n_chunks;
            return;
        }
        c->window += p.window;
        if (c->window >= p.n_chunks) {
            c->window = 0;
            c->batch += p.batch_tiles;
        }
    }
    c->done = true;
}

/* The warp's next unit; whole = WARPS / n_chunks and rest = WARPS % n_chunks are not divided out
 * again while a phase lasts. */
__device__ static void advance(const struct few_plan &p, const struct few_range &r, int warp,
                               struct few_cursor *c)
{
    c->chunk += WARPS;
    while (c->chunk >= c->n_chunks) {
        c->chunk -= c->n_chunks;
        c->tile++;
    }
    if (c->tile < c->n_tiles)
        return;
    c->window += p.window;
    if (c->window >= p.n_chunks) {
        c->window = 0;
        c->batch += p.batch_tiles;
    }
    start_phase(p, r, warp, c);
}

__device__ static const uint8_t *unit_data(const struct cuda_products &all,
                                           const struct few_plan &p, const struct few_cursor &c,
                                           int *n_pieces)
{
    int tile = c.batch + c.tile, first = (c.window + c.chunk) * p.chunk_pieces;
    const struct cuda_product &part = part_of(all, &tile);
    *n_pieces = MIN2(p.chunk_pieces, part.order.n_pieces - first);
    return part.data + tile * part.tile_bytes + (int64_t)first * part.order.piece_bytes;
}

/* ---- the ring -----------------------------------------------------------------------------------
 */
/* Stages of a warp's ring, for the longest piece of the format. */
__host__ __device__ constexpr int ring_stages(int bits)
{
    return bits <= 3 ? 6 : bits <= 4 ? 4 : bits <= 8 ? 3 : 2;
}

struct few_loader {
    struct few_cursor at;
    const uint8_t *data; /* next piece */
    int left;            /* pieces of the unit that are still to be loaded */
};

/* Starts the copy of the next piece, and closes a group whether there was one or not. */
__device__ static void load_piece(const struct cuda_products &all, const struct few_plan &p,
                                  const struct few_range &r, int bytes, struct few_loader *l,
                                  uint32_t stage)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (l->left > 0) {
#pragma unroll
        for (int i = 0; i < bytes; i += 512)
            if (lane * 16 + i < bytes)
                copy16(stage + (uint32_t)(lane * 16 + i), l->data + lane * 16 + i);
        l->data += bytes;
        if (--l->left == 0) {
            advance(p, r, warp, &l->at);
            if (!l->at.done)
                l->data = unit_data(all, p, l->at, &l->left);
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* ---- the kernel ---------------------------------------------------------------------------------
 */
/* Adds the slots of a batch of tiles and writes its outputs; a warp takes a tile. */
__device__ static void add_slots(const struct cuda_products &all, int n_chunks, int batch,
                                 int n_tiles, const float *slots)
{
    int per_tile = all.n_tok * CUDA_TILE_ROWS, lane = (int)threadIdx.x % 32;
    int first = all.descending ? n_chunks - 1 : 0, step = all.descending ? -per_tile : per_tile;
    for (int i = (int)threadIdx.x / 32; i < n_tiles; i += FEW_WARPS) {
        int tile = batch + i;
        const struct cuda_product &part = part_of(all, &tile);
        int64_t r = (int64_t)tile * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
        bool inside = r < part.rows;
        float bias = inside && part.bias ? part.bias[r] : 0.0f;
        for (int t = lane / CUDA_TILE_ROWS; t < all.n_tok; t += 2) {
            const float *slot = slots + (i * n_chunks + first) * per_tile + t * CUDA_TILE_ROWS +
                                lane % CUDA_TILE_ROWS;
            float total = *slot;
#pragma unroll 7
            for (int c = 1; c < n_chunks; c++)
                total += slot[c * step];
            if (inside)
                part.out[t * part.out_stride + r] = part.bias ? total + bias : total;
        }
    }
}

template <int BITS, enum cuda_scale SCALE, int GROUP>
__global__ static void __launch_bounds__(THREADS, 1)
    linear_few(const __grid_constant__ struct cuda_products all,
               const __grid_constant__ struct few_plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    launch_trigger();
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    constexpr int stages = ring_stages(BITS), known = piece_bytes_of<BITS, SCALE, GROUP>();
    const int piece_bytes = known ? known : all.part[0].order.piece_bytes;
    /* 16 (whose scales come two at a time) and 32: 0, 64: 1, 128: 2 */
    const int group_shift = (GROUP == GROUP_ANY ? all.part[0].order.group : GROUP) / 64;
    int stage = 0, n_tok = all.n_tok, buffer = 0;
    uint8_t *ring = shared + warp * stages * piece_bytes;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint32_t *x = (uint32_t *)(shared + p.x_at);
    struct few_range range = {(int)((int64_t)p.n_tiles * blockIdx.x / gridDim.x),
                              (int)((int64_t)p.n_tiles * (blockIdx.x + 1) / gridDim.x)};
    struct few_loader load = {};
    load.at.batch = range.first;
    start_phase(p, range, warp, &load.at);
    struct few_cursor at = load.at;
    if (!load.at.done)
        load.data = unit_data(all, p, load.at, &load.left);
    for (int s = 0; s < stages - 1; s++)
        load_piece(all, p, range, piece_bytes, &load, ring_at + (uint32_t)(s * piece_bytes));
    if (!p.no_wait) /* weights are on their way; x may still be in the making */
        launch_wait();
    const uint8_t *x_lane = (const uint8_t *)x + (lane / 4 * 4 + lane % 4) * 16;
    int left = n_tok - lane / 4;
    for (int batch = range.first; batch < range.end; batch += p.batch_tiles) {
        int n_tiles = MIN2(p.batch_tiles, range.end - batch);
        float *slots = (float *)(shared + p.slots_at + buffer * p.slots_bytes);
        for (int window = 0; window < p.n_chunks; window += p.window) {
            if (batch == range.first || p.window < p.n_chunks) {
                __syncthreads();
                load_x<0>(all, window * p.chunk_pieces,
                          MIN2(p.window * p.chunk_pieces,
                               all.part[0].order.n_pieces - window * p.chunk_pieces),
                          x);
                __syncthreads();
            }
            while (!at.done && at.batch == batch && at.window == window) {
                float acc[1][4] = {};
                int n_pieces, x_step = n_tok * 64;
                (void)unit_data(all, p, at, &n_pieces);
                const uint8_t *x_unit = x_lane + at.chunk * p.chunk_pieces * 4 * x_step;
                for (int i = 0; i < n_pieces; i++) {
                    int next = stage == 0 ? stages - 1 : stage - 1;
                    load_piece(all, p, range, piece_bytes, &load,
                               ring_at + (uint32_t)(next * piece_bytes));
                    wait_groups<stages - 1>();
                    __syncwarp();
                    run_piece<BITS, SCALE, GROUP, 1>(ring + stage * piece_bytes, group_shift,
                                                     x_unit + i * 4 * x_step, x_step, left, acc);
                    __syncwarp();
                    stage = stage + 1 == stages ? 0 : stage + 1;
                }
                put_slot(n_tok, 0,
                         slots +
                             (at.tile * p.n_chunks + window + at.chunk) * n_tok * CUDA_TILE_ROWS,
                         acc[0]);
                advance(p, range, warp, &at);
            }
        }
        __syncthreads();
        add_slots(all, p.n_chunks, batch, n_tiles, slots);
        buffer ^= p.slots_bytes > 0 && p.batch_tiles < range.end - range.first;
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
/* False when the shape does not fit: then the plain kernel takes it. */
static bool make_plan(const struct cuda_kern *c, const struct cuda_products *all,
                      struct few_plan *p, int *n_blocks)
{
    const struct cuda_order *o = &all->part[0].order;
    int slot = all->n_tok * CUDA_TILE_ROWS * 4, x_chunk, room = (int)c->shared_max;
    *p = (struct few_plan){};
    for (int i = 0; i < all->n_parts; i++)
        p->n_tiles += all->part[i].n_tiles;
    p->chunk_pieces = mma90_chunk(o->k) / CUDA_PIECE_K;
    p->n_chunks = (o->n_pieces + p->chunk_pieces - 1) / p->chunk_pieces;
    x_chunk = p->chunk_pieces * CUDA_PIECE_K * 2 * all->n_tok;
    *n_blocks = MIN2(c->n_sm, p->n_tiles);
    int most = (p->n_tiles + *n_blocks - 1) / *n_blocks;
    p->batch_tiles = MAX2(SLOTS_BYTES / (p->n_chunks * slot), 1);
    while (p->batch_tiles > 1 && p->batch_tiles < most && p->batch_tiles * p->n_chunks % WARPS &&
           p->batch_tiles * p->n_chunks > WARPS)
        p->batch_tiles--;
    p->batch_tiles = MIN2(MAX2(p->batch_tiles, 1), most);
    p->slots_bytes = p->batch_tiles * p->n_chunks * slot;
    p->x_at = WARPS * ring_stages(o->bits) * o->piece_bytes;
    room -= p->x_at + p->slots_bytes * (p->batch_tiles < most ? 2 : 1);
    p->window = MIN2(room / x_chunk, p->n_chunks);
    if (p->window < 1)
        return false;
    int n_windows = (p->n_chunks + p->window - 1) / p->window;
    p->window = (p->n_chunks + n_windows - 1) / n_windows;
    p->slots_at = p->x_at + p->window * x_chunk;
    p->shared_bytes = p->slots_at + p->slots_bytes * (p->batch_tiles < most ? 2 : 1);
    return true;
}

template <int BITS, enum cuda_scale SCALE, int GROUP>
static void launch(const struct cuda_kern *c, const struct cuda_products *all,
                   const struct few_plan *p, int n_blocks)
{
    static bool allowed; /* as much shared memory as there is */
    if (!allowed) {
        (void)cudaFuncSetAttribute(linear_few<BITS, SCALE, GROUP>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->shared_max);
        allowed = true;
    }
    launch_early(linear_few<BITS, SCALE, GROUP>, dim3((unsigned)n_blocks), THREADS,
                 (size_t)p->shared_bytes, c->stream, *all, *p);
}

/* Formats that models are stored in have their lengths compiled in. */
template <int BITS, enum cuda_scale SCALE>
static void launch_group(const struct cuda_kern *c, const struct cuda_products *all,
                         const struct few_plan *p, int n_blocks)
{
    if (all->part[0].order.group == 64)
        launch<BITS, SCALE, 64>(c, all, p, n_blocks);
    else if (all->part[0].order.group == 32)
        launch<BITS, SCALE, 32>(c, all, p, n_blocks);
    else
        launch<BITS, SCALE, 128>(c, all, p, n_blocks);
}

template <int BITS>
static void launch_bits(const struct cuda_kern *c, const struct cuda_products *all,
                        const struct few_plan *p, int n_blocks)
{
    switch (all->part[0].order.scale) {
    case CUDA_SCALE_LOW:
        launch_group<4, CUDA_SCALE_LOW>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_NONE:
    case CUDA_SCALE_FAST:
        if constexpr (BITS == 8)
            launch_group<8, CUDA_SCALE_FAST>(c, all, p, n_blocks);
        else
            launch<BITS, CUDA_SCALE_FAST, GROUP_ANY>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_BF16:
        launch<BITS, CUDA_SCALE_BF16, GROUP_ANY>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_F16:
        launch<BITS, CUDA_SCALE_F16, GROUP_ANY>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_F32:
        launch<BITS, CUDA_SCALE_F32, GROUP_ANY>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_E8M0_FAST:
        launch<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0_FAST, 32>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_E8M0:
        launch<BITS == 8 ? 8 : 4, CUDA_SCALE_E8M0, 32>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_E4M3:
        launch<4, CUDA_SCALE_E4M3, 16>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_GLOBAL:
        launch<4, CUDA_SCALE_GLOBAL, 16>(c, all, p, n_blocks);
        break;
    case CUDA_SCALE_COUNT:
        break;
    }
}

bool cuda_few_run(const struct cuda_kern *c, const struct cuda_products *all)
{
    struct few_plan p;
    int n_blocks;
    if (!cuda_takes(c, CUDA_KERNEL_LINEAR_FEW) || all->n_tok > FEW_ROWS ||
        !make_plan(c, all, &p, &n_blocks))
        return false;
    p.no_wait = c->plant_no_wait;
    switch (all->part[0].order.bits) {
    case 2:
        launch_bits<2>(c, all, &p, n_blocks);
        break;
    case 3:
        launch_bits<3>(c, all, &p, n_blocks);
        break;
    case 4:
        launch_bits<4>(c, all, &p, n_blocks);
        break;
    case 5:
        launch_bits<5>(c, all, &p, n_blocks);
        break;
    case 6:
        launch_bits<6>(c, all, &p, n_blocks);
        break;
    case 8:
        launch_bits<8>(c, all, &p, n_blocks);
        break;
    default:
        launch<CUDA_DENSE, CUDA_SCALE_FAST, GROUP_ANY>(c, all, &p, n_blocks);
        break;
    }
    return true;
}
