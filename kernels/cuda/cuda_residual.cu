/* cuda_residual.cu: norms of q, k and v in one launch; and what follows a part of a layer in one:
 * the sum over a row's slots, norms of it and of the part's output, h, and the norms of h that the
 * next parts read.
 *
 * Heads: a warp a head, elements lane, lane + 32, ... in a thread. A warp that makes v of k holds
 * what k was.
 *
 * Rows: a block a row, of as many threads as a norm has lanes; thread j holds elements j, j + 256,
 * ... of everything, so that what one stage leaves the next finds in registers. Every sum of
 * squares goes through the tree of elem.h, by the block; two that do not wait for each other go
 * together. All weights are loaded before the wait of an early start (cuda_launch.cuh): they come
 * from memory in every step. Bytes: slots, delta, h and x once.
 *
 * Planted faults: slots are added in descending order; what begin says.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/elem.h"

#define BLOCK      ELEM_NORM_LANES
#define WARPS      (BLOCK / 32)
#define WARP_LANES (ELEM_NORM_LANES / 32)
#define ALL_LANES  0xffffffffu

/* The sum of 256 lanes, whose lane j + 32 i is sum[i] of thread j; for every thread of the warp. */
template <int N> __device__ static float warp_sum(float (&sum)[N])
{
#pragma unroll
    for (int n = N / 2; n >= 1; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            sum[i] += sum[i + n];
    for (int n = 16; n >= 1; n /= 2)
        sum[0] += __shfl_down_sync(ALL_LANES, sum[0], (unsigned)n);
    return __shfl_sync(ALL_LANES, sum[0], 0);
}

/* Planted: work that lasts longer, and a kernel that does not wait for the one before it. */
struct residual_plant {
    int delay_ns;
    bool no_wait;
};

static struct residual_plant plant_of(const struct cuda_kern *c)
{
    return {c->plant_delay_ns, c->plant_no_wait};
}

__device__ static inline void begin(const struct residual_plant &plant)
{
    if (!plant.no_wait)
        launch_wait();
    launch_trigger();
    for (int ns = plant.delay_ns; ns > 0; ns -= 1000)
        __nanosleep(1000);
}

/* ---- heads --------------------------------------------------------------------------------------
 */
/* One head of HELD * 32 elements or fewer in a warp. */
template <int HELD> struct head {
    float x[HELD];

    __device__ void load(const float *from, int d)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int at = (int)threadIdx.x % 32 + 32 * i;
            x[i] = at < d ? from[at] : 0.0f;
        }
    }
};

template <int HELD>
__device__ static void norm_head(const struct head<HELD> &h, const struct head<HELD> &w, float *out,
                                 int d, float eps, bool plus_one)
{
    constexpr int lanes = HELD < WARP_LANES ? HELD : WARP_LANES; /* those above are +0 */
    float sum[lanes];
#pragma unroll
    for (int i = 0; i < lanes; i++)
        sum[i] = fmaf(h.x[i], h.x[i], 0.0f);
#pragma unroll
    for (int i = lanes; i < HELD; i++)
        sum[i % lanes] = fmaf(h.x[i], h.x[i], sum[i % lanes]);
    float factor = elem_norm_factor(warp_sum(sum), (float)d, eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = (int)threadIdx.x % 32 + 32 * i;
        if (at < d)
            out[at] = elem_norm(h.x[i], factor, w.x[i], plus_one);
    }
}

/* Heads of a row: q, k, v; those that have no weight are not there. */
template <int HELD>
__global__ static void __launch_bounds__(BLOCK)
    norm_row_heads(struct norm_heads_args a, struct residual_plant plant)
{
    int n_q = a.q_norm ? a.n_head : 0, n_k = a.k_norm || a.v_of_k ? a.n_kv : 0;
    int n_v = a.v_norm && !a.v_of_k ? a.n_kv : 0, n = n_q + n_k + n_v;
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t t = item / n;
    int at = (int)(item % n);
    bool is_q = at < n_q, is_k = !is_q && at < n_q + n_k;
    const float *weight = is_q ? a.q_norm : is_k ? a.k_norm : a.v_norm;
    struct head<HELD> h, w, w_v;
    if (weight)
        w.load(weight, a.head_dim);
    if (is_k && a.v_of_k)
        w_v.load(a.v_norm, a.head_dim);
    begin(plant);
    if (t >= a.n_tok)
        return;
    int number = is_q ? at : is_k ? at - n_q : at - n_q - n_k;
    float *x = (is_q ? a.q : is_k ? a.k : a.v) + t * a.stride + (int64_t)number * a.head_dim;
    h.load(x, a.head_dim);
    if (is_k && a.v_of_k)
        norm_head(h, w_v, a.v + t * a.stride + (int64_t)number * a.head_dim, a.head_dim, a.eps,
                  true);
    if (weight)
        norm_head(h, w, x, a.head_dim, a.eps, is_q || is_k ? a.plus_one : true);
}

template <int HELD>
static void launch_heads(const struct cuda_kern *c, const struct norm_heads_args *a)
{
    int n = (a->q_norm ? a->n_head : 0) + (a->k_norm || a->v_of_k ? a->n_kv : 0) +
            (a->v_norm && !a->v_of_k ? a->n_kv : 0);
    int64_t items = (int64_t)n * a->n_tok;
    launch_early(norm_row_heads<HELD>, dim3((unsigned)((items + WARPS - 1) / WARPS)), BLOCK, 0,
                 c->stream, *a, plant_of(c));
}

extern "C" enum err_code cuda_norm_heads(struct kern *k, const struct norm_heads_args *a,
                                         struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct norm_heads_args all = *a;
    all.v_of_k = a->v_of_k && a->v_norm;
    if (a->n_tok == 0 || (!a->q_norm && !a->k_norm && !a->v_norm))
        return ERR_OK;
    if (a->head_dim <= 128)
        launch_heads<4>(c, &all);
    else if (a->head_dim <= 256)
        launch_heads<8>(c, &all);
    else
        launch_heads<16>(c, &all);
    return cuda_launched("norm_heads", e);
}

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

/* Rows of up to 256 N elements, with a sum over slots or without. */
template <int N, bool SLOTS>
__global__ static void __launch_bounds__(BLOCK)
    residual_rows(const __grid_constant__ struct residual_work a)
{
    __shared__ struct residual_shared sh;
    int64_t row = blockIdx.x;
    float w_branch[N], w_delta[N], w_post[N], w_norm[RESIDUAL_NORMS_MAX][N];
    float h[N], v[N], sums[2];
    if (SLOTS) {
        load_row(a.branch_norm, a.d, w_branch);
        load_row(a.delta_norm, a.d, w_delta);
    }
    load_row(a.post_norm, a.d, w_post);
#pragma unroll
    for (int i = 0; i < RESIDUAL_NORMS_MAX; i++)
        load_row(i < a.n_norms ? a.norm[i] : NULL, a.d, w_norm[i]);
    for (int i = (int)threadIdx.x; SLOTS && a.scale && i < a.n_expert; i += BLOCK)
        sh.scale[i] = a.scale[i];
    __syncthreads();
    begin(a.plant);
    load_row(a.h + row * a.d, a.d, h);
    if constexpr (SLOTS)
        end_slots(a, &sh, row, w_branch, w_delta, v);
    else
        load_row(a.delta + row * a.d, a.d, v);
    if (a.post_norm) {
        block_sums(&sh, squares(v), 0.0f, false, sums);
        apply_norm(v, sums[0], w_post, a);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (int)threadIdx.x + BLOCK * n;
        h[n] += v[n];
        h[n] = a.scalar != 0 ? h[n] * a.scalar : h[n];
        if (i < a.d)
            a.h[row * a.d + i] = h[n];
    }
    if (a.n_norms == 0)
        return;
    block_sums(&sh, squares(h), 0.0f, false, sums);
    float factor = elem_norm_factor(sums[0], (float)a.d, a.eps);
#pragma unroll
    for (int k = 0; k < RESIDUAL_NORMS_MAX; k++) {
        if (k == a.n_norms)
            break;
#pragma unroll
        for (int n = 0; n < N; n++) {
            int i = (int)threadIdx.x + BLOCK * n;
            if (i < a.d)
                a.x[k][row * a.d + i] =
                    bf16_from_f32(elem_norm(h[n], factor, w_norm[k][n], a.plus_one));
        }
    }
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

extern "C" enum err_code cuda_residual(struct kern *k, const struct residual_args *a, struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct residual_work w = {};
    dim3 grid((unsigned)a->n_rows);
    if (!work_of(c, a, &w))
        return kern_residual_by_parts(k, a, e);
    if (a->n_rows == 0)
        return ERR_OK;
    if (a->d <= 8 * BLOCK)
        launch_rows<8>(c, w, grid);
    else if (a->d <= 12 * BLOCK)
        launch_rows<12>(c, w, grid);
    else if (a->d <= 16 * BLOCK)
        launch_rows<16>(c, w, grid);
    else
        launch_early(residual_rows<24, false>, grid, BLOCK, 0, c->stream, w);
    return cuda_launched("residual", e);
}
