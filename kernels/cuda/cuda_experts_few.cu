/* cuda_experts_few.cu: products with experts where each has few pairs, so that reading the weights
 * is all the work.
 *
 * Work: an item is up to ROWS pairs of one expert (cuda_experts.cuh), a bundle two tiles of its
 * rows: the same tile of gate and up, or two neighbours of one matrix. A block has a warp for each
 * chunk of each of the two tiles, and keeps that role; blocks are as many as fit at once and own
 * contiguous runs of bundles. Bytes: an expert's weights once for every ROWS of its pairs. Loads:
 * every warp has a ring of pieces of its own, filled by 16-byte asynchronous copies across bundles
 * and items. x of an item stands in shared memory while its bundles last.
 *
 * Order: a warp's chunk sum goes to its slot; behind the block's barrier the slots of an output are
 * added in ascending chunk order: rule 2. With gate and up the same lanes go on to the activation,
 * rounded where act_mul rounds. Two buffers of slots: one barrier a bundle. Planted fault: slots
 * added in descending order.
 *
 * The kernel starts early (cuda_launch.cuh). Blocks ask for equal shares of a multiprocessor's
 * memory, so that those of an early start cannot gather on a few.
 */
#include "kernels/cuda/cuda_experts.cuh"
#include "kernels/cuda/cuda_few.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/mma90.h"

#define WARPS_MAX      16          /* of a block */
#define WARPS_TOGETHER 32          /* of a multiprocessor: 64 registers a thread */
#define PAIRS_MAX      2048        /* their order is copied to shared memory */
#define MEMORY         (228 << 10) /* of a multiprocessor */
#define MEMORY_TAKEN   1024        /* of it by the system, for every block */

struct plan {
    int bundles;      /* of an expert */
    int n_tiles;      /* of an expert, in a matrix */
    int chunk_pieces; /* of a whole chunk */
    int n_chunks;
    int x_at, slots_at, lists_at; /* in shared memory, after the rings */
};

__host__ __device__ constexpr int places_for(int rows)
{
    return rows == 8 ? 3 : 4; /* of a ring: x of many rows takes the memory */
}

/* ---- a warp's weights ---------------------------------------------------------------------------
 */
/* The next piece that a warp copies. */
struct loader {
    const uint8_t *unit; /* its chunk of a tile */
    int piece;           /* of the unit */
    int item, in_item;   /* of the unit; bundles of the item from the unit's on */
    int left;            /* units from this one on */
};

__device__ static const uint8_t *unit_of(const struct cuda_experts &a, const struct plan &p,
                                         struct expert_lists l, int item, int bundle)
{
    int role = (int)threadIdx.x / 32 / p.n_chunks, chunk = (int)threadIdx.x / 32 % p.n_chunks;
    int64_t tile = (int64_t)expert_of_item(l, a.n_expert, item) * p.n_tiles;
    tile += a.n_matrices == 2 ? bundle : 2 * bundle + role;
    const uint8_t *data = a.n_matrices == 2 && role == 1 ? a.data[1] : a.data[0];
    return data + tile * a.tile_bytes + (int64_t)chunk * p.chunk_pieces * a.weight.piece_bytes;
}

/* Starts the copy of the next piece, and closes a group whether there was one or not. */
template <int BYTES>
__device__ static void load_next(const struct cuda_experts &a, const struct plan &p,
                                 struct expert_lists l, int n_pieces, struct loader *at,
                                 uint32_t to)
{
    if (at->left > 0) {
        copy_piece<BYTES>(to, at->unit + at->piece * BYTES);
        if (++at->piece == n_pieces) {
            at->piece = 0;
            at->left--;
            at->unit += a.tile_bytes * (a.n_matrices == 2 ? 1 : 2);
            if (--at->in_item == 0) {
                at->in_item = p.bundles;
                at->unit = unit_of(a, p, l, ++at->item, 0);
            }
        }
    }
    close_group();
}

/* ---- x ------------------------------------------------------------------------------------------
 */
#define X_TURN 4 /* rows that are on their way at once */

/* Rows of the n pairs of an item, in the order of the B operand: [32 k][row][lane % 4][16 bytes].
 * +0 beyond K. */
template <int ROWS>
__device__ static void load_rows(const struct cuda_experts &a, const int *pair, int n, uint32_t *x)
{
    constexpr int turn = ROWS < X_TURN ? ROWS : X_TURN;
    int per_row = a.weight.n_pieces * (CUDA_PIECE_K / 8), k = (int)a.weight.k;
    for (int base = 0; base < per_row; base += (int)blockDim.x) {
        int at = base + (int)threadIdx.x;
#pragma unroll
        for (int row0 = 0; row0 < ROWS; row0 += turn) {
            uint4 v[turn];
#pragma unroll
            for (int i = 0; i < turn; i++) {
                v[i] = make_uint4(0, 0, 0, 0);
                if (row0 + i < n && at * 8 < k)
                    v[i] = *(const uint4 *)(const void *)(a.x +
                                                          (int64_t)(pair[row0 + i] / a.x_div) * k +
                                                          at * 8);
            }
#pragma unroll
            for (int i = 0; i < turn; i++) {
                uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
                transpose4(w);
                if (row0 + i < n && at < per_row)
                    *(uint4 *)(void *)(x + (at / 4 * ROWS + row0 + i) * 16 + at % 4 * 4) =
                        make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }
}

/* ---- outputs ------------------------------------------------------------------------------------
 */
/* Adds the slots of a bundle and writes its outputs; a warp takes rows, a lane a row of a tile. */
template <int ROWS>
__device__ static void finish(const struct cuda_experts &a, const struct plan &p, int expert,
                              int bundle, const int *pair, int n, const float *slots)
{
    int lane = (int)threadIdx.x % 32, role = lane / CUDA_TILE_ROWS;
    int chunk0 = role * p.n_chunks, step = ROWS * CUDA_TILE_ROWS;
    int64_t r =
        (a.n_matrices == 2 ? bundle : 2 * bundle + role) * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
    const float *biases = a.n_matrices == 2 && role == 1 ? a.bias[1] : a.bias[0];
    float bias = biases ? biases[expert * a.rows + r] : 0.0f;
    for (int t = (int)threadIdx.x / 32; t < n; t += (int)blockDim.x / 32) {
        const float *slot = slots + chunk0 * step + t * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
        float total = slot[(a.descending ? p.n_chunks - 1 : 0) * step];
#pragma unroll 4
        for (int c = 1; c < p.n_chunks; c++)
            total += slot[(a.descending ? p.n_chunks - 1 - c : c) * step];
        total = biases ? total + bias : total;
        if (a.n_matrices == 1) {
            a.out[pair[t] * a.out_stride + r] = total;
            continue;
        }
        float up = __shfl_down_sync(0xffffffffu, total, CUDA_TILE_ROWS);
        if (role == 0)
            a.gated[pair[t] * a.rows + r] = expert_act(a, total, up);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS>
__global__ static void __launch_bounds__(32 * WARPS_MAX, WARPS_TOGETHER / WARPS_MAX)
    experts_few(const __grid_constant__ struct cuda_experts a,
                const __grid_constant__ struct plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int bytes = piece_bytes_of<BITS, SCALE, GROUP>(), x_step = ROWS * 64;
    constexpr int places = places_for(ROWS);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, chunk = warp % p.n_chunks;
    int n_pieces = MIN2(p.chunk_pieces, a.weight.n_pieces - chunk * p.chunk_pieces);
    const uint8_t *ring = shared + warp * places * bytes;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring), *x = (uint32_t *)(shared + p.x_at);
    float *slots = (float *)(shared + p.slots_at);
    struct expert_lists lists = {(int *)(shared + p.lists_at),
                                 (int *)(shared + p.lists_at) + a.n_expert + 1};
    int *order = lists.starts + a.n_expert + 1;
    if (!a.lists_stand)
        launch_wait();
    launch_trigger();
    for (int i = (int)threadIdx.x; i < a.n_pairs; i += (int)blockDim.x)
        order[i] = __ldcg(a.order + i);
    list_items(a.first, a.n_expert, ROWS, lists);
    int64_t all = (int64_t)lists.starts[a.n_expert] * p.bundles;
    int first = (int)(all * blockIdx.x / gridDim.x);
    int left = (int)(all * (blockIdx.x + 1) / gridDim.x) - first;
    int item = first / p.bundles, bundle = first % p.bundles, place = 0;
    struct loader load = {NULL, 0, item, p.bundles - bundle, left};
    if (left > 0)
        load.unit = unit_of(a, p, lists, item, bundle);
#pragma unroll
    for (int i = 0; i < places - 1; i++)
        load_next<bytes>(a, p, lists, n_pieces, &load, ring_at + i * bytes);
    if (a.lists_stand) /* weights are on their way; x may still be in the making */
        launch_wait();
    const uint8_t *x_lane = (const uint8_t *)x + lane * 16 + chunk * p.chunk_pieces * 4 * x_step;
    int expert = 0, n = 0, slots_of_bundle = 2 * p.n_chunks * ROWS * CUDA_TILE_ROWS;
    const int *pair = order;
    for (bool open = true; left > 0; left--) {
        if (open) {
            expert = expert_of_item(lists, a.n_expert, item);
            int from = lists.first[expert] + (item - lists.starts[expert]) * ROWS;
            pair = order + from;
            n = MIN2(ROWS, lists.first[expert + 1] - from);
            __syncthreads(); /* all have read the item before */
            load_rows<ROWS>(a, pair, n, x);
            __syncthreads();
        }
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int i = 0; i < n_pieces; i++) {
            int last = place == 0 ? places - 1 : place - 1;
            load_next<bytes>(a, p, lists, n_pieces, &load, ring_at + last * bytes);
            wait_groups<places - 1>();
            __syncwarp();
            run_piece<BITS, SCALE, GROUP>(ring + place * bytes, GROUP / 64, x_lane + i * 4 * x_step,
                                          x_step, lane / 4 < n, acc);
            __syncwarp();
            place = place + 1 == places ? 0 : place + 1;
        }
        put_slot(n, slots + warp * ROWS * CUDA_TILE_ROWS, acc);
        __syncthreads();
        finish<ROWS>(a, p, expert, bundle, pair, n, slots);
        slots = (float *)(shared + p.slots_at) +
                (slots == (float *)(shared + p.slots_at) ? slots_of_bundle : 0);
        open = ++bundle == p.bundles;
        if (open) {
            bundle = 0;
            item++;
        }
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS>
static bool launch(const struct cuda_kern *c, const struct cuda_experts *a)
{
    static bool allowed; /* as much shared memory as there is */
    const struct cuda_order *o = &a->weight;
    struct plan p = {};
    p.n_tiles = (int)(a->rows / CUDA_TILE_ROWS);
    p.bundles = a->n_matrices == 2 ? p.n_tiles : p.n_tiles / 2;
    p.chunk_pieces = (int)mma90_chunk(o->k) / CUDA_PIECE_K;
    p.n_chunks = (o->n_pieces + p.chunk_pieces - 1) / p.chunk_pieces;
    int warps = 2 * p.n_chunks;
    p.x_at = warps * places_for(ROWS) * o->piece_bytes;
    p.slots_at = p.x_at + ROWS * o->n_pieces * CUDA_PIECE_K * 2;
    p.lists_at = p.slots_at + 2 * warps * ROWS * CUDA_TILE_ROWS * 4;
    int need = p.lists_at + expert_lists_bytes(a->n_expert) + a->n_pairs * 4;
    int together = MIN2(WARPS_TOGETHER / warps, MEMORY / (need + MEMORY_TAKEN));
    if (together == 0 || need > (int)c->shared_max)
        return false;
    int64_t items = MIN2(a->n_pairs, a->n_expert + a->n_pairs / ROWS); /* at most */
    int64_t most = items * p.bundles;
    together = (int)MIN2((int64_t)together, (most + c->n_sm - 1) / c->n_sm);
    int share = MIN2(MEMORY / together - MEMORY_TAKEN, (int)c->shared_max) / 128 * 128;
    if (!allowed) {
        (void)cudaFuncSetAttribute(experts_few<BITS, SCALE, GROUP, ROWS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->shared_max);
        allowed = true;
    }
    launch_early(experts_few<BITS, SCALE, GROUP, ROWS>,
                 dim3((unsigned)MIN2((int64_t)together * c->n_sm, most)), 32 * warps,
                 (size_t)MAX2(need, share), c->stream, *a, p);
    return true;
}

/* Pairs of an item, by how many an expert has on average. */
template <int BITS, enum cuda_scale SCALE, int GROUP>
static bool launch_rows(const struct cuda_kern *c, const struct cuda_experts *a)
{
    if (a->n_pairs * 8 <= a->n_expert)
        return launch<BITS, SCALE, GROUP, 1>(c, a);
    if (a->n_pairs <= 2 * a->n_expert)
        return launch<BITS, SCALE, GROUP, 4>(c, a);
    return launch<BITS, SCALE, GROUP, 8>(c, a);
}

bool cuda_experts_few_run(const struct cuda_kern *c, const struct cuda_experts *a)
{
    const struct cuda_order *o = &a->weight;
    int chunk = (int)mma90_chunk(o->k), n_chunks = (int)((o->k + chunk - 1) / chunk);
    int whole = a->n_matrices == 2 ? CUDA_TILE_ROWS : 2 * CUDA_TILE_ROWS;
    if (a->n_pairs > PAIRS_MAX || 2 * n_chunks > WARPS_MAX || a->rows % whole != 0 ||
        o->k % 8 != 0 || (uintptr_t)a->x % 16 != 0)
        return false;
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW && o->group == 32)
        return launch_rows<4, CUDA_SCALE_LOW, 32>(c, a);
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW && o->group == 64)
        return launch_rows<4, CUDA_SCALE_LOW, 64>(c, a);
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW && o->group == 128)
        return launch_rows<4, CUDA_SCALE_LOW, 128>(c, a);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST && o->group == 32)
        return launch_rows<8, CUDA_SCALE_FAST, 32>(c, a);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST && o->group == 64)
        return launch_rows<8, CUDA_SCALE_FAST, 64>(c, a);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_rows<4, CUDA_SCALE_E8M0_FAST, 32>(c, a);
    return false;
}
