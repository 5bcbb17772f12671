/* cuda_attention.cu: who takes a step of attention, how its heads and rows are cut, the scratch for
 * splits, and their joining (cuda_splits.h). Owns no arithmetic but that of the join.
 *
 * A step goes to the first that takes it: single tokens to the row kernel; what has blocks for all
 * multiprocessors without splits of their own to the kernel of many rows; all else in items. The
 * choice is one of time: every kernel gives a row the same bits.
 *
 * The join of many splits: a block is one head of one row. First a thread is a record: what it and
 * the sums before it are multiplied by follows from the maxima alone. Then a thread is a dim and
 * takes the records one after the other, AHEAD of them on their way at once. Few splits have a
 * kernel of their own. Planted fault: from the last.
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"

#define ALL          0xffffffffu
#define BLOCK        128 /* of the join */
#define SCRATCH_MAX  ((size_t)192 << 20)
#define SCRATCH_ROWS 64 /* more rows fill the device without splits of their own */

/* ---- joining ------------------------------------------------------------------------------------
 */
#define FEW   16 /* splits */
#define AHEAD 16 /* records on their way at once */

/* Splits of a row that joins with others: none where it has not more than `skip`. */
struct join_view {
    int row, first, n;
    int64_t step; /* floats to the next record; the planted fault goes back from the last */
};

__device__ static inline struct join_view find_join(const struct attention_args &a,
                                                    const struct kern_rows &rows,
                                                    const struct cuda_partials &p, int skip)
{
    int row = (int)blockIdx.y, end = rows.pos[row] + 1, step = p.dims + PARTIAL_EXTRA;
    int begin = a.window && end > a.window ? end - a.window : 0;
    int first = split_of(begin / KERN_TILE, p.late), last = split_of((end - 1) / KERN_TILE, p.late);
    int n = last - first < skip ? 0 : last - first + 1;
    return {row, p.descending ? last : first, n, p.descending ? -step : step};
}

/* Few splits: a warp is a head, a lane four dims of every 128. */
__global__ static void __launch_bounds__(BLOCK)
    join_few(struct attention_args a, struct kern_rows rows, struct cuda_partials p, int skip)
{
    struct join_view v = find_join(a, rows, p, skip);
    int head = (int)blockIdx.x * (BLOCK / 32) + (int)threadIdx.x / 32;
    launch_wait();
    launch_trigger();
    if (v.n == 0 || head >= a.n_head)
        return;
    const float *x = partial_of(p, v.row, a.n_head, head, v.first);
    for (int dim = (int)threadIdx.x % 32 * 4; dim < a.head_dim; dim += 128) {
        float o[4], l = 0.0f, m = -INFINITY;
        for (int from = 0; from < v.n; from += FEW / 2) {
            float4 xo[FEW / 2];
            float2 xe[FEW / 2]; /* L and m */
#pragma unroll
            for (int i = 0; i < FEW / 2; i++) {
                const float *r = x + (from + i) * v.step;
                if (from + i < v.n) {
                    xo[i] = *(const float4 *)(const void *)(r + dim);
                    xe[i] = *(const float2 *)(const void *)(r + p.dims);
                }
            }
#pragma unroll
            for (int i = 0; i < FEW / 2; i++) {
                if (from + i >= v.n)
                    break;
                const float own[4] = {xo[i].x, xo[i].y, xo[i].z, xo[i].w};
                float joined = elem_max(xe[i].y, m);
                float f = elem_rescale(m, joined, p.c), g = elem_rescale(xe[i].y, joined, p.c);
                bool is_first = from + i == 0;
                for (int j = 0; j < 4; j++)
                    o[j] = is_first ? own[j] : fmaf(own[j], g, o[j] * f);
                l = is_first ? xe[i].x : fmaf(xe[i].x, g, l * f);
                m = joined;
            }
        }
        struct attention_factors f = end_row(a, head, m, l, p.c);
        for (int j = 0; j < 4; j++)
            store_out(a, v.row, head, dim + j, o[j], f);
    }
}

/* Many splits. What joins a record to those before it: o = fma(record, own, o * before). */
struct join_shared {
    float before[BLOCK], own[BLOCK], sum[BLOCK], max[BLOCK / 32];
};

/* Factors and row sums of n records from x on, `step` floats apart, under the maximum m of those
 * before: thread i makes the i-th. m becomes that of all; a maximum is exact in any order. */
__device__ static inline void find_factors(const struct cuda_partials &p, const float *x,
                                           int64_t step, int n, struct join_shared *sh, float *m)
{
    int i = (int)threadIdx.x, lane = i % 32;
    float own = i < n ? x[i * step + p.dims + 1] : -INFINITY, most = own;
    sh->sum[i] = i < n ? x[i * step + p.dims] : 0.0f;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        float other = __shfl_up_sync(ALL, most, d);
        most = lane < d ? most : elem_max(most, other);
    }
    if (lane == 31)
        sh->max[i / 32] = most;
    __syncthreads();
    float lower = *m, before = __shfl_up_sync(ALL, most, 1);
    for (int w = 0; w < BLOCK / 32; w++) {
        lower = w < i / 32 ? elem_max(sh->max[w], lower) : lower;
        *m = elem_max(sh->max[w], *m);
    }
    before = lane == 0 ? lower : elem_max(before, lower);
    most = elem_max(own, before);
    sh->before[i] = elem_rescale(before, most, p.c);
    sh->own[i] = elem_rescale(own, most, p.c);
    __syncthreads();
}

__device__ static inline void load_ahead(float (&to)[AHEAD], const float *x, int64_t step, int n)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        to[i] = i < n ? x[i * step] : 0.0f;
}

__global__ static void __launch_bounds__(BLOCK)
    join_splits(struct attention_args a, struct kern_rows rows, struct cuda_partials p, int skip)
{
    __shared__ struct join_shared sh;
    struct join_view v = find_join(a, rows, p, skip);
    int head = (int)blockIdx.x;
    launch_wait();
    launch_trigger();
    if (v.n == 0)
        return;
    const float *records = partial_of(p, v.row, a.n_head, head, v.first);
    for (int dim0 = 0; dim0 < a.head_dim; dim0 += BLOCK) {
        int dim = dim0 + (int)threadIdx.x, mine = MIN2(dim, p.dims - 1);
        float o = 0.0f, l = 0.0f, m = -INFINITY;
        for (int from = 0; from < v.n; from += BLOCK) {
            const float *x = records + from * v.step;
            int n = MIN2(v.n - from, BLOCK);
            float next[AHEAD];
            load_ahead(next, x + mine, v.step, n);
            find_factors(p, x, v.step, n, &sh, &m);
#pragma unroll 1
            for (int i = 0; i < n; i += AHEAD) {
                float now[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    now[j] = next[j];
                load_ahead(next, x + (i + AHEAD) * v.step + mine, v.step, n - i - AHEAD);
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    if (i + j >= n)
                        break;
                    float f = sh.before[i + j], g = sh.own[i + j];
                    bool is_first = from + i + j == 0;
                    o = is_first ? now[j] : fmaf(now[j], g, o * f);
                    l = is_first ? sh.sum[0] : fmaf(sh.sum[i + j], g, l * f);
                }
            }
            __syncthreads();
        }
        store_out(a, v.row, head, dim, o, end_row(a, head, m, l, p.c));
    }
}

extern "C" void cuda_attention_join(const struct cuda_kern *c, const struct attention_args *a,
                                    const struct cuda_partials *p, int skip)
{
    bool few = p->n_splits <= FEW;
    unsigned blocks = (unsigned)(few ? (a->n_head + BLOCK / 32 - 1) / (BLOCK / 32) : a->n_head);
    launch_early(few ? join_few : join_splits, dim3(blocks, (unsigned)a->rows->n_tok), BLOCK, 0,
                 c->stream, *a, *a->rows, *p, skip);
}

/* ---- cuts and scratch ---------------------------------------------------------------------------
 */
extern "C" struct attention_cut cuda_attention_cut(const struct attention_args *a, int slots)
{
    struct attention_cut c = {};
    c.group = a->n_head / a->n_kv;
    c.heads = MIN2(c.group, slots);
    c.pieces = (c.group + c.heads - 1) / c.heads;
    c.tokens = slots / c.heads;
    return c;
}

extern "C" bool cuda_attention_late(const struct attention_args *a)
{
    return kern_planted() == KERN_FAULT_SPLIT_EDGE && a->rows->n_tok > 1;
}

static size_t partial_bytes(int64_t n_tok, int64_t n_head, int64_t n_splits, int head_dim)
{
    size_t one = (size_t)(cuda_page_dims(head_dim) + PARTIAL_EXTRA) * sizeof(float);
    return (size_t)(n_tok * n_head * n_splits) * one;
}

extern "C" size_t cuda_attention_scratch_bytes(const struct cuda_kern *c,
                                               const struct kern_limits *l)
{
    size_t bytes = partial_bytes(MIN2(l->n_tok, SCRATCH_ROWS), l->n_head,
                                 (l->pages_max + SPLIT_TILES - 1) / SPLIT_TILES, l->head_dim);
    (void)c;
    return MIN2(bytes, SCRATCH_MAX);
}

/* Splits that a row of the step may reach: rows->keys_max, or all pages where that is unknown. */
static int most_splits(const struct kern_rows *rows)
{
    int64_t keys = (int64_t)rows->pages_max * KERN_PAGE;
    if (rows->keys_max > 0)
        keys = MIN2(keys, rows->keys_max);
    return (int)((keys + KERN_SPLIT - 1) / KERN_SPLIT);
}

extern "C" struct cuda_partials cuda_attention_partials(const struct cuda_kern *c,
                                                        const struct attention_args *a)
{
    struct cuda_partials p = {};
    p.n_splits = most_splits(a->rows);
    p.dims = cuda_page_dims(a->head_dim);
    p.c = elem_score_factor(a->scale, a->softcap);
    p.descending = c->plant_descending;
    if (partial_bytes(a->rows->n_tok, a->n_head, p.n_splits, a->head_dim) <=
        c->scratch_bytes.attention)
        p.data = (float *)c->scratch_attention;
    return p;
}

/* ---- who takes a step ---------------------------------------------------------------------------
 */
static bool takes_rows(const struct cuda_kern *c, const struct attention_args *a)
{
    return a->rows->n_tok <= a->rows->n_seq && cuda_attention_rows_run(c, a);
}

static void attend(const struct cuda_kern *c, const struct attention_args *a)
{
    if (c->force_attention == CUDA_ATTENTION_MANY && cuda_attention_many_run(c, a))
        return;
    if (c->force_attention != CUDA_ATTENTION_ITEMS &&
        (takes_rows(c, a) || (!cuda_attention_items_apart(c, a) && cuda_attention_many_run(c, a))))
        return;
    cuda_attention_items_run(c, a);
}

/* Norms of heads and rope, where the arguments hold them, are operations of their own unless the
 * row kernel takes them. */
extern "C" enum err_code cuda_attention(struct kern *k, const struct attention_args *a,
                                        struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct attention_args left = *a;
    enum err_code rc = ERR_OK;
    if (a->rows->n_tok == 0)
        return ERR_OK;
    /* The fault is one of what the norms give. */
    if (a->norm && kern_planted() != KERN_FAULT_KV8 && takes_rows(c, a))
        return cuda_launched("attention", e);
    if (a->norm)
        rc = cuda_norm_heads(k, a->norm, e);
    left.norm = NULL;
    if (rc == ERR_OK && a->rope) {
        cuda_plant_kv8(c, a->rope);
        if (takes_rows(c, &left))
            return cuda_launched("attention", e);
        rc = cuda_rope_kv(k, a->rope, e);
    }
    if (rc != ERR_OK)
        return rc;
    left.rope = NULL;
    attend(c, &left);
    return cuda_launched("attention", e);
}
