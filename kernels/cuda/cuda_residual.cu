/* cuda_residual.cu: what follows a part of a layer in one launch: the sum over a row's slots, norms
 * of it and of the part's output, h, the norms of h that the next parts read, and the router's
 * product of one of them.
 *
 * A block a row, of as many threads as a norm has lanes; thread j holds elements j, j + 256, ... of
 * everything, so that what one stage leaves the next finds in registers. Every sum of squares goes
 * through the tree of elem.h, by the block; two that do not wait for each other go together. All
 * weights are loaded before the wait of an early start (cuda_launch.cuh): they come from memory in
 * every step. Bytes: slots, delta, h and x once.
 *
 * Planted faults: slots, and chunks of the router, are added in descending order; what begin says.
 */
#include "kernels/cuda/cuda_few.cuh"
#include "kernels/cuda/cuda_residual.cuh"
#include "kernels/mma90.h"

/* ---- rows ---------------------------------------------------------------------------------------
 */
#define SLOTS_MAX   32
#define EXPERTS_MAX 256 /* scales that are there before the wait */

struct residual_work {
    float *h, *delta;
    const float *y, *weight; /* slots; y NULL: none */
    const int32_t *expert;
    const float *scale; /* of experts; NULL: none */
    int d, n_used, n_expert;
    bool apart; /* the sum of slots is added to delta */
    const float *branch_norm, *delta_norm, *post_norm;
    float scalar, eps;
    bool plus_one, descending;
    int n_norms;
    struct residual_plant plant;
    const float *norm[RESIDUAL_NORMS_MAX];
    uint16_t *x[RESIDUAL_NORMS_MAX];
};

struct residual_shared {
    float lanes[2][BLOCK], sum[2];
    float scale[EXPERTS_MAX], weight[SLOTS_MAX];
};

/* Elements j, j + 256, ... of a row; +0 beyond its end, or without a row. */
template <int N> __device__ static inline void load_row(const float *from, int d, float (&v)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (int)threadIdx.x + BLOCK * n;
        v[n] = from && i < d ? from[i] : 0.0f;
    }
}

template <int N> __device__ static inline float squares(const float (&v)[N])
{
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++)
        sum = fmaf(v[n], v[n], sum);
    return sum;
}

/* Sums of the lanes of one row or of two, for every thread. By the whole block. */
__device__ static void block_sums(struct residual_shared *sh, float first, float second, bool both,
                                  float sum[2])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    sh->lanes[0][threadIdx.x] = first;
    if (both)
        sh->lanes[1][threadIdx.x] = second;
    __syncthreads();
    if (warp < (both ? 2 : 1)) {
        float v[WARP_LANES];
#pragma unroll
        for (int i = 0; i < WARP_LANES; i++)
            v[i] = sh->lanes[warp][lane + 32 * i];
        float all = warp_sum(v);
        if (lane == 0)
            sh->sum[warp] = all;
    }
    __syncthreads();
    sum[0] = sh->sum[0];
    sum[1] = sh->sum[1];
}

template <int N>
__device__ static inline void apply_norm(float (&v)[N], float sum, const float (&w)[N],
                                         const struct residual_work &a)
{
    float factor = elem_norm_factor(sum, (float)a.d, a.eps);
#pragma unroll
    for (int n = 0; n < N; n++)
        v[n] = elem_norm(v[n], factor, w[n], a.plus_one);
}

/* Slots that are on their way at once. */
__host__ __device__ constexpr int slots_ahead(int n)
{
    return n <= 8 ? 8 : 4;
}

/* The sum over the row's slots, ascending, as combine makes it. The first slots are on their way
 * before their weights are known. */
template <int N>
__device__ static void sum_slots(const struct residual_work &a, struct residual_shared *sh,
                                 int64_t row, float (&sum)[N])
{
    constexpr int ahead = slots_ahead(N);
    const float *y = a.y + row * a.n_used * a.d;
    for (int s0 = 0; s0 < a.n_used; s0 += ahead) {
        float v[ahead][N];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int s = a.descending ? a.n_used - 1 - s0 - i : s0 + i;
            load_row(s0 + i < a.n_used ? y + (int64_t)s * a.d : NULL, a.d, v[i]);
        }
        if (s0 == 0) {
            int s = (int)threadIdx.x;
            if (s < a.n_used) {
                float w = a.weight[row * a.n_used + s];
                sh->weight[s] = a.scale ? w * sh->scale[a.expert[row * a.n_used + s]] : w;
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (s0 + i >= a.n_used)
                break;
            float w = sh->weight[a.descending ? a.n_used - 1 - s0 - i : s0 + i];
#pragma unroll
            for (int n = 0; n < N; n++)
                sum[n] = s0 + i == 0 ? w * v[i][n] : fmaf(w, v[i][n], sum[n]);
        }
    }
}

/* v: what is added to h but for the last norm. */
template <int N>
__device__ static void end_slots(const struct residual_work &a, struct residual_shared *sh,
                                 int64_t row, const float (&w_branch)[N], const float (&w_delta)[N],
                                 float (&v)[N])
{
    float sums[2], delta[N];
    load_row(a.apart ? a.delta + row * a.d : NULL, a.d, delta);
    sum_slots(a, sh, row, v);
    if (a.branch_norm || a.delta_norm) {
        block_sums(sh, squares(v), squares(delta), a.delta_norm != NULL, sums);
        if (a.branch_norm)
            apply_norm(v, sums[0], w_branch, a);
        if (a.delta_norm)
            apply_norm(delta, sums[1], w_delta, a);
    }
#pragma unroll
    for (int n = 0; a.apart && n < N; n++)
        v[n] = delta[n] + v[n];
}

/* The weights of the last stages, from before the wait. */
template <int N> struct end_weights {
    float post[N], norm[RESIDUAL_NORMS_MAX][N];

    __device__ void load(const struct residual_work &a)
    {
        load_row(a.post_norm, a.d, post);
#pragma unroll
        for (int i = 0; i < RESIDUAL_NORMS_MAX; i++)
            load_row(i < a.n_norms ? a.norm[i] : NULL, a.d, norm[i]);
    }
};

/* h, from what it was and what is added to it; and the factor of its norms, if there are some. */
template <int N>
__device__ static inline float add_to_h(const struct residual_work &a, struct residual_shared *sh,
                                        const end_weights<N> &w, float (&v)[N], float (&h)[N])
{
    float sums[2];
    if (a.post_norm) {
        block_sums(sh, squares(v), 0.0f, false, sums);
        apply_norm(v, sums[0], w.post, a);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        h[n] += v[n];
        h[n] = a.scalar != 0 ? h[n] * a.scalar : h[n];
    }
    if (a.n_norms == 0)
        return 0.0f;
    block_sums(sh, squares(h), 0.0f, false, sums);
    return elem_norm_factor(sums[0], (float)a.d, a.eps);
}

template <int N>
__device__ static inline void store_h(const struct residual_work &a, int64_t row,
                                      const float (&h)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (int)threadIdx.x + BLOCK * n;
        if (i < a.d)
            a.h[row * a.d + i] = h[n];
    }
}

/* The norms of h, and a copy of number `kept` in shared memory. */
template <int N>
__device__ static inline void
store_norms(const struct residual_work &a, int64_t row, const end_weights<N> &w, float factor,
            const float (&h)[N], bool writes, int kept, uint16_t *copy)
{
#pragma unroll
    for (int k = 0; k < RESIDUAL_NORMS_MAX; k++) {
        if (k >= a.n_norms || (!writes && k != kept))
            continue;
#pragma unroll
        for (int n = 0; n < N; n++) {
            int i = (int)threadIdx.x + BLOCK * n;
            uint16_t x = bf16_from_f32(elem_norm(h[n], factor, w.norm[k][n], a.plus_one));
            if (writes && i < a.d)
                a.x[k][row * a.d + i] = x;
            if (k == kept && i < a.d)
                copy[i] = x;
        }
    }
}

/* Rows of up to 256 N elements, with a sum over slots or without. */
template <int N, bool SLOTS>
__global__ static void __launch_bounds__(BLOCK)
    residual_rows(const __grid_constant__ struct residual_work a)
{
    __shared__ struct residual_shared sh;
    int64_t row = blockIdx.x;
    float w_branch[N], w_delta[N], h[N], v[N];
    end_weights<N> w;
    if (SLOTS) {
        load_row(a.branch_norm, a.d, w_branch);
        load_row(a.delta_norm, a.d, w_delta);
    }
    w.load(a);
    for (int i = (int)threadIdx.x; SLOTS && a.scale && i < a.n_expert; i += BLOCK)
        sh.scale[i] = a.scale[i];
    __syncthreads();
    begin(a.plant);
    load_row(a.h + row * a.d, a.d, h);
    if constexpr (SLOTS)
        end_slots(a, &sh, row, w_branch, w_delta, v);
    else
        load_row(a.delta + row * a.d, a.d, v);
    float factor = add_to_h(a, &sh, w, v, h);
    store_h(a, row, h);
    store_norms(a, row, w, factor, h, true, -1, NULL);
}

/* ---- rows with the router behind them -----------------------------------------------------------
 *
 * A cluster a row, a block of it a tile of the router, whose bytes are on their way before the
 * wait. All blocks of a cluster make the same h and the same x; the first one writes them. It
 * writes h when all have read what h was. A warp takes chunks of K; a chunk's sum goes to its slot,
 * and the slots are added in ascending order: rule 2.
 */
#define ROUTER_ROWS 8 /* of a step, at most */

struct router_work {
    const uint8_t *data;
    struct cuda_order order;
    int tile_bytes, n_tiles; /* a tile a block */
    int64_t rows;
    const float *bias; /* or NULL */
    float *out;
    int64_t out_stride;
    int input; /* number of the norm that it reads */
    int chunk, n_chunks;
    bool descending; /* planted */
};

__device__ static inline void cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ static inline void cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* The sum of chunk c of the tile's rows with x, column 0 of the instruction. */
template <int BITS, enum cuda_scale SCALE>
__device__ static void sum_chunk(const struct router_work &r, const uint8_t *tile,
                                 const uint16_t *x, int c, float acc[4])
{
    int lane = (int)threadIdx.x % 32, end = MIN2((c + 1) * r.chunk, (int)r.order.k);
    for (int k = c * r.chunk; k < end; k += 64) {
        const uint8_t *piece = tile + k / CUDA_PIECE_K * r.order.piece_bytes;
        int block = k / 64 % 2;
        frag_words<BITS> words;
        frag_scale sc;
        frag_load<BITS>(piece, block, lane, words);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t w[4], b[2] = {0, 0};
            if constexpr (BITS != CUDA_DENSE) {
                if (s % 2 == 0)
                    frag_load_scale<BITS, SCALE>(
                        piece + r.order.scales_at,
                        frag_group<SCALE>(block * 2 + s / 2, r.order.group), lane, sc);
            }
            frag_step<BITS, SCALE>(words, sc, s, w);
            if (lane < 4) {
                const uint16_t *from = x + k + 16 * s + 2 * lane;
                b[0] = *(const uint32_t *)(const void *)from;
                b[1] = *(const uint32_t *)(const void *)(from + 8);
            }
            frag_mma(acc, w, b[0], b[1]);
        }
    }
}

/* Asks for a tile of the router. By the whole block. */
__device__ static inline void copy_tile(uint8_t *tile, const uint8_t *from, int bytes)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(tile);
    for (int i = (int)threadIdx.x * 16; i < bytes; i += BLOCK * 16)
        copy16(to + (uint32_t)i, from + i);
    close_group();
}

template <int N, int BITS, enum cuda_scale SCALE>
__global__ static void __launch_bounds__(BLOCK)
    residual_router(const __grid_constant__ struct residual_work a,
                    const __grid_constant__ struct router_work r)
{
    extern __shared__ __align__(128) uint8_t tile[]; /* then x, then slots */
    __shared__ struct residual_shared sh;
    const int row = (int)blockIdx.x / r.n_tiles, number = (int)blockIdx.x % r.n_tiles;
    const int k_room = r.order.n_pieces * CUDA_PIECE_K, at = (int)threadIdx.x;
    uint16_t *x = (uint16_t *)(tile + r.tile_bytes);
    float *slots = (float *)(x + k_room), h[N], v[N];
    const uint8_t *from = r.data + (int64_t)number * r.tile_bytes;
    if (a.plant.copy == CUDA_COPY_EARLY)
        copy_tile(tile, from, r.tile_bytes);
    int64_t out_row = number * CUDA_TILE_ROWS + at;
    bool mine = at < CUDA_TILE_ROWS && out_row < r.rows;
    float bias = mine && r.bias ? r.bias[out_row] : 0.0f;
    end_weights<N> w;
    w.load(a);
    begin(a.plant);
    for (int ns = number > 0 ? a.plant.delay_ns : 0; ns > 0; ns -= 1000)
        __nanosleep(1000);
    load_row(a.h + (int64_t)row * a.d, a.d, h);
    load_row(a.delta + (int64_t)row * a.d, a.d, v);
    float before = 0.0f; /* the loads have come when this is known */
#pragma unroll
    for (int n = 0; n < N; n++)
        before += h[n];
    asm volatile("" ::"f"(before) : "memory");
    if (!a.plant.no_wait)
        cluster_arrive();
    float factor = add_to_h(a, &sh, w, v, h);
    if (!a.plant.no_wait)
        cluster_wait();
    if (number == 0)
        store_h(a, row, h);
    store_norms(a, row, w, factor, h, number == 0, r.input, x);
    for (int i = a.d + at; i < k_room; i += BLOCK)
        x[i] = 0;
    if (a.plant.copy != CUDA_COPY_EARLY)
        copy_tile(tile, from, r.tile_bytes);
    if (a.plant.copy != CUDA_COPY_UNDRAINED)
        wait_groups<0>();
    __syncthreads();
    for (int c = at / 32; c < r.n_chunks; c += WARPS) {
        float acc[4] = {};
        sum_chunk<BITS, SCALE>(r, tile, x, c, acc);
        if (at % 4 == 0) {
            slots[c * CUDA_TILE_ROWS + at % 32 / 4] = acc[0];
            slots[c * CUDA_TILE_ROWS + at % 32 / 4 + 8] = acc[2];
        }
    }
    __syncthreads();
    if (!mine)
        return;
    float total = slots[(r.descending ? r.n_chunks - 1 : 0) * CUDA_TILE_ROWS + at];
    for (int c = 1; c < r.n_chunks; c++)
        total += slots[(r.descending ? r.n_chunks - 1 - c : c) * CUDA_TILE_ROWS + at];
    r.out[row * r.out_stride + out_row] = r.bias ? total + bias : total;
}

/* False where the kernel does not take the shape. */
static bool work_of(const struct cuda_kern *c, const struct residual_args *a,
                    struct residual_work *w)
{
    const struct combine_args *s = a->combine;
    if (a->d > 24 * BLOCK || (s && (a->d > 16 * BLOCK || s->n_used > SLOTS_MAX)) ||
        (a->scale && a->scale->n_expert > EXPERTS_MAX))
        return false;
    w->h = a->h;
    w->delta = a->delta;
    w->d = (int)a->d;
    if (s) {
        w->y = s->y;
        w->weight = s->weight;
        w->n_used = s->n_used;
        w->apart = s->out != a->delta;
    }
    if (a->scale) {
        w->expert = a->scale->expert;
        w->scale = a->scale->scale;
        w->n_expert = a->scale->n_expert;
    }
    w->branch_norm = a->branch_norm;
    w->delta_norm = a->delta_norm;
    w->post_norm = a->post_norm;
    w->scalar = a->scalar;
    w->eps = a->eps;
    w->plus_one = a->plus_one;
    w->descending = kern_planted() == KERN_FAULT_CHUNK_ORDER && a->n_rows > 1;
    w->plant = plant_of(c);
    w->n_norms = a->n_norms;
    for (int i = 0; i < a->n_norms; i++) {
        w->norm[i] = a->norm[i];
        w->x[i] = (uint16_t *)a->x[i];
    }
    return true;
}

template <int N>
static void launch_rows(const struct cuda_kern *c, const struct residual_work &w, dim3 grid)
{
    if (w.y)
        launch_early(residual_rows<N, true>, grid, BLOCK, 0, c->stream, w);
    else
        launch_early(residual_rows<N, false>, grid, BLOCK, 0, c->stream, w);
}

/* False where the joined kernel does not take the router. */
static bool router_of(const struct cuda_kern *c, const struct residual_args *a,
                      struct router_work *r)
{
    const struct linear_part *part = &a->router->part[0];
    const struct cuda_weight *w = cuda_weight_of(part->w);
    const enum kern_fault fault = kern_planted();
    if (!cuda_takes(c, CUDA_KERNEL_RESIDUAL_ROUTER) || a->n_rows > ROUTER_ROWS || a->combine ||
        a->d > 16 * BLOCK ||
        (w->n_tiles != 1 && w->n_tiles != 2 && w->n_tiles != 4 && w->n_tiles != 8) ||
        (fault != KERN_FAULT_NONE && fault != KERN_FAULT_CHUNK_ORDER) ||
        c->force_path != CUDA_PATH_AUTO)
        return false;
    r->data = w->data;
    r->order = w->order;
    r->tile_bytes = (int)w->tile_bytes;
    r->n_tiles = (int)w->n_tiles;
    r->rows = w->base.rows;
    r->bias = part->bias;
    r->out = part->out;
    r->out_stride = part->out_stride;
    while (a->x[r->input] != a->router->x)
        r->input++;
    r->chunk = (int)mma90_chunk(w->order.k);
    r->n_chunks = (int)((w->order.k + r->chunk - 1) / r->chunk);
    r->descending = fault == KERN_FAULT_CHUNK_ORDER && a->n_rows > 1;
    return true;
}

template <int N, int BITS, enum cuda_scale SCALE>
static bool launch_router(const struct cuda_kern *c, const struct residual_work &w,
                          const struct router_work &r, int n_rows)
{
    static bool allowed;
    size_t bytes = (size_t)r.tile_bytes + (size_t)(r.order.n_pieces * CUDA_PIECE_K * 2) +
                   (size_t)(r.n_chunks * CUDA_TILE_ROWS * 4);
    size_t own = sizeof(struct residual_shared);
    if (bytes + own > c->shared_max)
        return false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(residual_router<N, BITS, SCALE>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)(c->shared_max - align_up(own, 128)));
        allowed = true;
    }
    launch_clusters(r.n_tiles, residual_router<N, BITS, SCALE>,
                    dim3((unsigned)(n_rows * r.n_tiles)), BLOCK, bytes, c->stream, w, r);
    return true;
}

template <int N>
static bool launch_format(const struct cuda_kern *c, const struct residual_work &w,
                          const struct router_work &r, int n_rows)
{
    const struct cuda_order *o = &r.order;
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_router<N, 8, CUDA_SCALE_FAST>(c, w, r, n_rows);
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_router<N, 4, CUDA_SCALE_LOW>(c, w, r, n_rows);
    if (o->bits == CUDA_DENSE)
        return launch_router<N, CUDA_DENSE, CUDA_SCALE_FAST>(c, w, r, n_rows);
    return false;
}

/* False when the router is a product of its own. */
static bool run_router(const struct cuda_kern *c, const struct residual_args *a,
                       const struct residual_work &w)
{
    struct router_work r = {};
    if (!router_of(c, a, &r))
        return false;
    if (a->d <= 8 * BLOCK)
        return launch_format<8>(c, w, r, (int)a->n_rows);
    if (a->d <= 12 * BLOCK)
        return launch_format<12>(c, w, r, (int)a->n_rows);
    return launch_format<16>(c, w, r, (int)a->n_rows);
}

extern "C" enum err_code cuda_residual(struct kern *k, const struct residual_args *a, struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct residual_work w = {};
    dim3 grid((unsigned)a->n_rows);
    if (!work_of(c, a, &w))
        return kern_residual_by_parts(k, a, e);
    if (a->n_rows == 0)
        return ERR_OK;
    if (a->router && run_router(c, a, w))
        return cuda_launched("residual", e);
    if (a->d <= 8 * BLOCK)
        launch_rows<8>(c, w, grid);
    else if (a->d <= 12 * BLOCK)
        launch_rows<12>(c, w, grid);
    else if (a->d <= 16 * BLOCK)
        launch_rows<16>(c, w, grid);
    else
        launch_early(residual_rows<24, false>, grid, BLOCK, 0, c->stream, w);
    enum err_code rc = cuda_launched("residual", e);
    return rc == ERR_OK && a->router ? cuda_linear(k, a->router, e) : rc;
}
