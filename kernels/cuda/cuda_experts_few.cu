/* cuda_experts_few.cu: products with experts where each has few pairs, so that reading the weights
 * is all the work.
 *
 * An item is up to ROWS pairs of one expert (cuda_expert_items.cuh); a bundle is two tiles of its
 * rows, the same tile of gate and up or two neighbours of one matrix. Blocks are as many as fit at
 * once and own runs of bundles. Bytes: an expert's weights once for every ROWS of its
 * pairs. Loads: every warp has a ring of pieces of its own, filled by 16-byte asynchronous copies
 * across tiles and items. x of an item stands in shared memory while its bundles last.
 *
 * Two ways to share out a block's work:
 *
 *   experts_shared  a warp for each chunk of each of the two tiles, which keeps that role. A
 *                   chunk's sum goes to its slot; behind the block's barrier the slots of an output
 *                   are added in ascending chunk order. Two buffers of slots: one barrier a bundle.
 *                   For steps of few rows, whose work is small pieces of many experts. Planted
 *                   fault: slots added in descending order.
 *                   A K of more chunks than half of the block's warps makes a bundle one tile, and
 *                   the block as many warps as it has chunks.
 *   experts_whole   a warp takes whole bundles, with their totals in registers; warps meet at the
 *                   ends of items alone.
 *
 * Either way a chunk's steps are ascending and its sum is added to those before it: rule 2. With
 * gate and up the lanes go on to the activation, rounded where act_mul rounds.
 *
 * The kernels start early (cuda_launch.cuh). Blocks ask for equal shares of a multiprocessor's
 * memory, so that those of an early start cannot gather on a few.
 */
#include "kernels/cuda/cuda_expert_items.cuh"
#include "kernels/cuda/cuda_few.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_route.cuh"
#include "kernels/mma90.h"

#define WARPS_MAX      16   /* of a block */
#define WARPS_TOGETHER 32   /* of a multiprocessor: 64 registers a thread */
#define WHOLE_WARPS    8    /* of a block of experts_whole */
#define PAIRS_MAX      2048 /* their order is copied to shared memory */
#define MEMORY_TAKEN   1024 /* of a multiprocessor by the system, for every block */

struct experts_plan {
    int bundles;      /* of an expert */
    int n_tiles;      /* of an expert, in a matrix */
    int chunk_pieces; /* of a whole chunk */
    int n_chunks;
    int x_at, slots_at, items_at, order_at; /* in shared memory, after the rings */
    int workers;                            /* blocks; with a route one more, which writes it */
};

#define LONG_PAIRS 4  /* of an expert on average, at most, with a K for long blocks */
#define LONG_WARPS 28 /* of a block whose bundles are one tile */

/* Tiles of a bundle, and so warps for a chunk. */
__host__ __device__ constexpr int roles_for(bool is_long)
{
    return is_long ? 1 : 2;
}

/* Places of a ring. One row: all of a unit is on its way before x is there; eight, or four of a
 * long K: x takes the memory. */
__host__ __device__ constexpr int places_for(int rows, bool is_long)
{
    return rows == 1 ? 5 : rows == 8 || is_long ? 3 : 4;
}

/* ---- what both do -------------------------------------------------------------------------------
 */
struct experts_lists {
    struct expert_items items;
    int n_items;
    const int *order;
};

#define ROUTE_ROWS 8 /* of a step whose route every block makes for itself */
#define ROUTE_HELD 4 /* experts of a lane there */

/* The items of a single row, in the order of its slots instead of its experts: to know the row's
 * experts is enough to ask for their weights. By the whole block, whose barrier it ends with. */
__device__ static void pick_items(const struct cuda_experts &a, const struct expert_items *items,
                                  int *order)
{
    if (threadIdx.x < 32) {
        float logit[ROUTE_HELD];
        int greatest, slot = (int)threadIdx.x;
        int expert = pick_held(a.route.logits, a.n_expert, a.n_pairs, logit, &greatest);
        if (slot < a.n_pairs) {
            items->expert[slot] = (uint16_t)expert;
            order[slot] = slot;
        }
    }
    __syncthreads();
}

/* Waits for the kernels before this one, unless the lists stand already. A route is made by every
 * block for itself; one that has nothing else to do writes it, weights and all. What it wrote is
 * seen by kernels that start early: it lets them begin behind a fence. */
template <int ROWS>
__device__ static struct experts_lists open_lists(const struct cuda_experts &a,
                                                  const struct experts_plan &p, uint8_t *shared)
{
    struct experts_lists r;
    int *order = (int *)(shared + p.order_at);
    r.items = expert_items_at(shared + p.items_at, a.n_expert);
    r.order = order;
    if (!a.lists_stand)
        launch_wait();
    bool writes = (int)blockIdx.x == p.workers;
    if (ROWS == 1 && a.route.logits && a.route.n_tok == 1 && !writes) {
        pick_items(a, &r.items, order);
        launch_trigger();
        r.n_items = a.n_pairs;
        return r;
    }
    if (ROWS < 8 && a.route.logits) {
        route_block<ROUTE_HELD>(a.route, shared, r.items.first, order, writes);
        if (writes)
            __threadfence();
        __syncthreads();
        launch_trigger();
        number_items<ROWS>(a.n_expert, &r.items);
        r.n_items = r.items.starts[a.n_expert];
        return r;
    }
    launch_trigger();
    for (int i = (int)threadIdx.x; i < a.n_pairs; i += (int)blockDim.x)
        order[i] = __ldcg(a.order + i);
    list_items<ROWS>(a.first, a.n_expert, &r.items);
    r.n_items = r.items.starts[a.n_expert];
    return r;
}

/* The pairs of an item. */
struct experts_rows {
    int expert, n;
    const int *pair; /* [n] */
};

template <int ROWS>
__device__ static struct experts_rows rows_of(const struct experts_lists &r, int item)
{
    int expert = r.items.expert[item];
    if (ROWS == 1) /* an item a pair */
        return {expert, 1, r.order + item};
    int from = r.items.first[expert] + (item - r.items.starts[expert]) * ROWS;
    return {expert, MIN2(ROWS, r.items.first[expert + 1] - from), r.order + from};
}

#define X_TURN 4 /* rows that are on their way at once */

/* x of an item, in the order of the B operand: [32 k][row][lane % 4][16 bytes]. +0 beyond K. */
template <int ROWS>
__device__ static void load_rows(const struct cuda_experts &a, const struct experts_rows &rows,
                                 uint32_t *x)
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
                if (row0 + i < rows.n && at * 8 < k)
                    v[i] = *(const uint4 *)(const void *)(a.x +
                                                          (int64_t)(rows.pair[row0 + i] / a.x_div) *
                                                              k +
                                                          at * 8);
            }
#pragma unroll
            for (int i = 0; i < turn; i++) {
                uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
                transpose4(w);
                if (row0 + i < rows.n && at < per_row)
                    *(uint4 *)(void *)(x + (at / 4 * ROWS + row0 + i) * 16 + at % 4 * 4) =
                        make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }
}

/* ---- a warp a chunk -----------------------------------------------------------------------------
 */
/* The next piece that a warp copies. */
struct shared_loader {
    const uint8_t *unit; /* its chunk of a tile */
    int piece;           /* of the unit */
    int item, in_item;   /* of the unit; bundles of the item from the unit's on */
    int left;            /* units from this one on */
};

template <int ROLES>
__device__ static const uint8_t *unit_of(const struct cuda_experts &a, const struct experts_plan &p,
                                         int expert, int bundle)
{
    int role = (int)threadIdx.x / 32 / p.n_chunks, chunk = (int)threadIdx.x / 32 % p.n_chunks;
    int64_t tile = expert * p.n_tiles + (a.n_matrices == 2 ? bundle : ROLES * bundle + role);
    const uint8_t *data = a.n_matrices == 2 && role == 1 ? a.data[1] : a.data[0];
    return data + tile * a.tile_bytes + (int64_t)chunk * p.chunk_pieces * a.weight.piece_bytes;
}

/* Starts the copy of the next piece, and closes a group whether there was one or not. */
template <int BYTES, int ROLES>
__device__ static void load_shared(const struct cuda_experts &a, const struct experts_plan &p,
                                   const struct experts_lists &r, int n_pieces,
                                   struct shared_loader *at, uint32_t to)
{
    if (at->left > 0) {
        copy_piece<BYTES>(to, at->unit + at->piece * BYTES);
        if (++at->piece == n_pieces) {
            at->piece = 0;
            at->unit += a.tile_bytes * (a.n_matrices == 2 ? 1 : ROLES);
            if (--at->left > 0 && --at->in_item == 0) {
                at->in_item = p.bundles;
                at->unit = unit_of<ROLES>(a, p, r.items.expert[++at->item], 0);
            }
        }
    }
    close_group();
}

/* Adds the slots of a bundle and writes its outputs; a warp takes rows, a lane a row of a tile. */
template <int ROWS, int ROLES>
__device__ static void finish(const struct cuda_experts &a, const struct experts_plan &p,
                              const struct experts_rows &rows, int bundle, const float *slots)
{
    int lane = (int)threadIdx.x % 32, role = lane / CUDA_TILE_ROWS;
    int chunk0 = role * p.n_chunks, step = ROWS * CUDA_TILE_ROWS;
    int64_t r = (a.n_matrices == 2 ? bundle : ROLES * bundle + role) * CUDA_TILE_ROWS +
                lane % CUDA_TILE_ROWS;
    if (role >= ROLES)
        return;
    const float *biases = a.n_matrices == 2 && role == 1 ? a.bias[1] : a.bias[0];
    float bias = biases ? biases[rows.expert * a.rows + r] : 0.0f;
    for (int t = (int)threadIdx.x / 32; t < rows.n; t += (int)blockDim.x / 32) {
        const float *slot = slots + chunk0 * step + t * CUDA_TILE_ROWS + lane % CUDA_TILE_ROWS;
        float total = slot[(a.descending ? p.n_chunks - 1 : 0) * step];
#pragma unroll 4
        for (int c = 1; c < p.n_chunks; c++)
            total += slot[(a.descending ? p.n_chunks - 1 - c : c) * step];
        total = biases ? total + bias : total;
        if (a.n_matrices == 1) {
            a.out[rows.pair[t] * a.out_stride + r] = total;
            continue;
        }
        float up = __shfl_down_sync(0xffffffffu, total, CUDA_TILE_ROWS);
        if (role == 0)
            a.gated[rows.pair[t] * a.rows + r] = expert_act(a, total, up);
    }
}

template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, bool LONG>
__global__ static void __launch_bounds__(32 * (LONG ? LONG_WARPS : WARPS_MAX),
                                         LONG ? 1 : WARPS_TOGETHER / WARPS_MAX)
    experts_shared(const __grid_constant__ struct cuda_experts a,
                   const __grid_constant__ struct experts_plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int bytes = piece_bytes_of<BITS, SCALE, GROUP>(), x_step = ROWS * 64;
    constexpr int places = places_for(ROWS, LONG), roles = roles_for(LONG);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, chunk = warp % p.n_chunks;
    int n_pieces = MIN2(p.chunk_pieces, a.weight.n_pieces - chunk * p.chunk_pieces), place = 0;
    const uint8_t *ring = shared + warp * places * bytes;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring), *x = (uint32_t *)(shared + p.x_at);
    const struct experts_lists r = open_lists<ROWS>(a, p, shared);
    uint32_t all = (uint32_t)(r.n_items * p.bundles);
    uint32_t number = blockIdx.x, workers = (uint32_t)p.workers;
    if (number == workers)
        return;
    int first = (int)(all * number / workers), buffer = 0;
    int left = (int)(all * (number + 1) / workers) - first;
    int item = first / p.bundles, bundle = first % p.bundles;
    struct shared_loader load = {NULL, 0, item, p.bundles - bundle, left};
    if (left > 0)
        load.unit = unit_of<roles>(a, p, r.items.expert[item], bundle);
#pragma unroll
    for (int i = 0; i < places - 1; i++)
        load_shared<bytes, roles>(a, p, r, n_pieces, &load, ring_at + i * bytes);
    if (a.lists_stand) /* weights are on their way; x may still be in the making */
        launch_wait();
    const uint8_t *x_lane = (const uint8_t *)x + lane * 16 + chunk * p.chunk_pieces * 4 * x_step;
    struct experts_rows rows = {};
    bool open = true;
    for (; left > 0; left--) {
        if (open) {
            rows = rows_of<ROWS>(r, item);
            __syncthreads(); /* all have read the item before */
            load_rows<ROWS>(a, rows, x);
            __syncthreads();
        }
        float acc[1][4] = {};
        float *slots =
            (float *)(shared + p.slots_at) + buffer * (roles * p.n_chunks * ROWS * CUDA_TILE_ROWS);
        for (int i = 0; i < n_pieces; i++) {
            int last = place == 0 ? places - 1 : place - 1;
            load_shared<bytes, roles>(a, p, r, n_pieces, &load, ring_at + last * bytes);
            wait_groups<places - 1>();
            __syncwarp();
            run_piece<BITS, SCALE, GROUP, 1>(ring + place * bytes, GROUP / 64,
                                             x_lane + i * 4 * x_step, x_step, rows.n - lane / 4,
                                             acc);
            __syncwarp();
            place = place + 1 == places ? 0 : place + 1;
        }
        put_slot(rows.n, 0, slots + warp * ROWS * CUDA_TILE_ROWS, acc[0]);
        __syncthreads();
        finish<ROWS, roles>(a, p, rows, bundle, slots);
        buffer ^= 1;
        open = ++bundle == p.bundles;
        if (open) {
            bundle = 0;
            item++;
        }
    }
}

/* ---- a warp a bundle ----------------------------------------------------------------------------
 */
/* A task is a run of an item's bundles; a block takes every gridDim.x-th task, a warp every
 * WHOLE_WARPS-th bundle of it. Runs are as long as it takes for a block to have one task, if the
 * items' ends allow. */
struct whole_tasks {
    int n, per_item, bundles; /* tasks in all and of an item, bundles of a task */
};

__device__ static struct whole_tasks list_tasks(const struct experts_plan &p, int n_items)
{
    int round = (int)gridDim.x * WHOLE_WARPS;
    struct whole_tasks t;
    t.bundles = WHOLE_WARPS * ((n_items * p.bundles + round - 1) / round);
    t.per_item = t.bundles ? (p.bundles + t.bundles - 1) / t.bundles : 1;
    t.n = n_items * t.per_item;
    return t;
}

/* A warp's way through the block's tasks. */
struct whole_cursor {
    int task, item, at, stop; /* bundles [at, stop) of the item */
};

__device__ static void open_task(const struct experts_plan &p, const struct whole_tasks &t,
                                 int task, struct whole_cursor *c)
{
    c->task = task;
    c->item = task / t.per_item;
    c->at = (task - c->item * t.per_item) * t.bundles;
    c->stop = MIN2(c->at + t.bundles, p.bundles);
    c->at += (int)threadIdx.x / 32;
}

/* The next piece that a warp copies. */
struct whole_loader {
    struct whole_cursor c;
    const uint8_t *tile;
    int piece, half; /* piece of the tile, tile of the bundle */
};

__device__ static const uint8_t *tile_of(const struct cuda_experts &a, const struct experts_plan &p,
                                         const struct experts_lists &r,
                                         const struct whole_cursor &c, int half)
{
    int64_t tile = r.items.expert[c.item] * p.n_tiles;
    tile += a.n_matrices == 2 ? c.at : 2 * c.at + half;
    return (a.n_matrices == 2 && half ? a.data[1] : a.data[0]) + tile * a.tile_bytes;
}

/* Starts the copy of the next piece, and closes a group whether there was one or not. */
template <int BYTES>
__device__ static void load_whole(const struct cuda_experts &a, const struct experts_plan &p,
                                  const struct experts_lists &r, const struct whole_tasks &t,
                                  struct whole_loader *l, uint32_t to)
{
    if (l->c.task < t.n) {
        copy_piece<BYTES>(to, l->tile + l->piece * BYTES);
        if (++l->piece == a.weight.n_pieces) {
            l->piece = 0;
            l->half ^= 1;
            if (l->half == 0)
                l->c.at += WHOLE_WARPS;
            while (l->c.at >= l->c.stop && l->c.task < t.n)
                open_task(p, t, l->c.task + (int)gridDim.x, &l->c);
            if (l->c.task < t.n)
                l->tile = tile_of(a, p, r, l->c, l->half);
        }
    }
    close_group();
}

/* Writes what a lane holds of a tile, or of gate's and up's. */
__device__ static void store_tile(const struct cuda_experts &a, const struct experts_rows &rows,
                                  int64_t tile, const float first[4], const float second[4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int t = lane % 4 * 2 + i % 2;
        int64_t r = tile * CUDA_TILE_ROWS + lane / 4 + i / 2 * 8, b = rows.expert * a.rows + r;
        if (t >= rows.n)
            continue;
        float v = a.bias[0] ? first[i] + a.bias[0][b] : first[i];
        if (second)
            a.gated[rows.pair[t] * a.rows + r] =
                expert_act(a, v, a.bias[1] ? second[i] + a.bias[1][b] : second[i]);
        else
            a.out[rows.pair[t] * a.out_stride + r] = v;
    }
}

template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS>
__global__ static void __launch_bounds__(32 * WHOLE_WARPS, WARPS_TOGETHER / WHOLE_WARPS)
    experts_whole(const __grid_constant__ struct cuda_experts a,
                  const __grid_constant__ struct experts_plan p)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int bytes = piece_bytes_of<BITS, SCALE, GROUP>(), x_step = ROWS * 64;
    constexpr int places = places_for(ROWS, false);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, place = 0;
    const uint8_t *ring = shared + warp * places * bytes;
    uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring), *x = (uint32_t *)(shared + p.x_at);
    const struct experts_lists r = open_lists<ROWS>(a, p, shared);
    const struct whole_tasks t = list_tasks(p, r.n_items);
    struct whole_loader load = {};
    open_task(p, t, (int)blockIdx.x, &load.c);
    while (load.c.at >= load.c.stop && load.c.task < t.n)
        open_task(p, t, load.c.task + (int)gridDim.x, &load.c);
    if (load.c.task < t.n)
        load.tile = tile_of(a, p, r, load.c, 0);
#pragma unroll
    for (int i = 0; i < places - 1; i++)
        load_whole<bytes>(a, p, r, t, &load, ring_at + i * bytes);
    if (a.lists_stand) /* weights are on their way; x may still be in the making */
        launch_wait();
    for (int task = (int)blockIdx.x; task < t.n; task += (int)gridDim.x) {
        struct whole_cursor c;
        open_task(p, t, task, &c);
        struct experts_rows rows = rows_of<ROWS>(r, c.item);
        __syncthreads(); /* all have read the item before */
        load_rows<ROWS>(a, rows, x);
        __syncthreads();
        for (; c.at < c.stop; c.at += WHOLE_WARPS) {
            float total[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *x_piece = (const uint8_t *)x + lane * 16;
                for (int j = 0; j < p.n_chunks; j++) {
                    float acc[1][4] = {};
                    int n = MIN2(p.chunk_pieces, a.weight.n_pieces - j * p.chunk_pieces);
                    for (int i = 0; i < n; i++) {
                        int last = place == 0 ? places - 1 : place - 1;
                        load_whole<bytes>(a, p, r, t, &load, ring_at + last * bytes);
                        wait_groups<places - 1>();
                        __syncwarp();
                        run_piece<BITS, SCALE, GROUP, 1>(ring + place * bytes, GROUP / 64, x_piece,
                                                         x_step, rows.n - lane / 4, acc);
                        __syncwarp();
                        x_piece += 4 * x_step;
                        place = place + 1 == places ? 0 : place + 1;
                    }
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        total[half][i] = j == 0 ? acc[0][i] : total[half][i] + acc[0][i];
                }
            }
            if (a.n_matrices == 2) {
                store_tile(a, rows, c.at, total[0], total[1]);
            } else {
                store_tile(a, rows, 2 * c.at, total[0], NULL);
                store_tile(a, rows, 2 * c.at + 1, total[1], NULL);
            }
        }
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE, int GROUP, int ROWS, bool WHOLE, bool LONG>
static bool launch(const struct cuda_kern *c, const struct cuda_experts *a)
{
    static bool allowed; /* as much shared memory as there is */
    const struct cuda_order *o = &a->weight;
    struct experts_plan p = {};
    void (*kernel)(struct cuda_experts, struct experts_plan);
    if constexpr (WHOLE)
        kernel = experts_whole<BITS, SCALE, GROUP, ROWS>;
    else
        kernel = experts_shared<BITS, SCALE, GROUP, ROWS, LONG>;
    p.n_tiles = (int)(a->rows / CUDA_TILE_ROWS);
    p.bundles = a->n_matrices == 2 ? p.n_tiles : p.n_tiles / roles_for(LONG);
    p.chunk_pieces = (int)mma90_chunk(o->k) / CUDA_PIECE_K;
    p.n_chunks = (o->n_pieces + p.chunk_pieces - 1) / p.chunk_pieces;
    int warps = WHOLE ? WHOLE_WARPS : roles_for(LONG) * p.n_chunks;
    p.x_at = warps * places_for(ROWS, LONG) * o->piece_bytes;
    p.slots_at = p.x_at + ROWS * o->n_pieces * CUDA_PIECE_K * 2;
    p.items_at = p.slots_at + (WHOLE ? 0 : 2 * warps * ROWS * CUDA_TILE_ROWS * 4);
    p.order_at = p.items_at + expert_items_bytes(a->n_expert, a->n_pairs, ROWS);
    int need = p.order_at + a->n_pairs * 4;
    if (a->route.logits && (ROWS == 8 || route_room_bytes(a->route.n_tok, ROUTE_HELD) > p.items_at))
        return false; /* it works where rings, x and slots will be */
    int memory = (int)c->shared_sm;
    int together = MIN2(WARPS_TOGETHER / warps, memory / (need + MEMORY_TAKEN));
    int64_t most = (int64_t)expert_items_most(a->n_expert, a->n_pairs, ROWS) * p.bundles;
    if (together == 0 || need > (int)c->shared_max || most > UINT32_MAX / (together * c->n_sm + 1))
        return false;
    together = (int)MIN2((int64_t)together, (most + c->n_sm - 1) / c->n_sm);
    int share = MIN2(memory / together - MEMORY_TAKEN, (int)c->shared_max) / 128 * 128;
    if (!allowed) {
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)c->shared_max);
        allowed = true;
    }
    int writers = a->route.logits ? 1 : 0;
    p.workers = (int)MIN2((int64_t)together * c->n_sm - writers, most);
    launch_early(kernel, dim3((unsigned)(p.workers + writers)), 32 * warps,
                 (size_t)MAX2(need, share), c->stream, *a, p);
    return true;
}

/* Pairs of an item by how many an expert has on average, measured on an H200 (docs/speed-log.md).
 */
template <int BITS, enum cuda_scale SCALE, int GROUP>
static bool launch_rows(const struct cuda_kern *c, const struct cuda_experts *a)
{
    if (a->n_pairs * 8 <= a->n_expert)
        return launch<BITS, SCALE, GROUP, 1, false, false>(c, a);
    if (a->n_pairs * 2 <= 3 * a->n_expert)
        return launch<BITS, SCALE, GROUP, 4, false, false>(c, a);
    if (a->descending)
        return launch<BITS, SCALE, GROUP, 8, false, false>(c, a);
    return launch<BITS, SCALE, GROUP, 8, true, false>(c, a);
}

/* A K of up to LONG_WARPS chunks. Two pairs are most likely of two experts. */
template <int GROUP>
static bool launch_long(const struct cuda_kern *c, const struct cuda_experts *a)
{
    if (a->n_pairs <= 2)
        return launch<4, CUDA_SCALE_LOW, GROUP, 1, false, true>(c, a);
    return launch<4, CUDA_SCALE_LOW, GROUP, 4, false, true>(c, a);
}

bool cuda_experts_few_routes(const struct route_args *r)
{
    return r->n_tok <= ROUTE_ROWS && r->n_expert <= 32 * ROUTE_HELD && r->n_used <= ROUTE_SLOTS;
}

bool cuda_experts_few_run(const struct cuda_kern *c, const struct cuda_experts *a)
{
    const struct cuda_order *o = &a->weight;
    int chunk = (int)mma90_chunk(o->k), n_chunks = (int)((o->k + chunk - 1) / chunk);
    int whole = a->n_matrices == 2 ? CUDA_TILE_ROWS : 2 * CUDA_TILE_ROWS;
    bool is_long = 2 * n_chunks > WARPS_MAX, low = o->bits == 4 && o->scale == CUDA_SCALE_LOW;
    if (!cuda_takes(c, CUDA_KERNEL_EXPERTS_FEW) || a->n_pairs > PAIRS_MAX || a->rows % whole != 0 ||
        o->k % 8 != 0 || (uintptr_t)a->x % 16 != 0)
        return false;
    if (is_long && (n_chunks > LONG_WARPS || a->n_pairs > LONG_PAIRS * a->n_expert ||
                    a->n_matrices == 2 || a->route.logits || !low))
        return false;
    if (is_long)
        return o->group == 32   ? launch_long<32>(c, a)
               : o->group == 64 ? launch_long<64>(c, a)
                                : launch_long<128>(c, a);
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
