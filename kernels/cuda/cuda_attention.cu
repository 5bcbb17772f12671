/* cuda_attention.cu: who takes a step of attention, how its heads and rows are cut, the scratch for
 * splits, and their joining (cuda_splits.h). Owns no arithmetic but that of the join.
 *
 * A step goes to the first that takes it: single tokens to the row kernel; what has blocks for all
 * multiprocessors without splits of their own to the kernel of many rows; all else in items. The
 * choice is one of time: every kernel gives a row the same bits.
 *
 * The join reads every record once, AHEAD of them on their way at once: a block is one head of one
 * row, a thread a dim. Planted fault: records are added from the last.
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"

#define BLOCK        128 /* of the join */
#define SCRATCH_MAX  ((size_t)192 << 20)
#define SCRATCH_ROWS 64 /* more rows fill the device without splits of their own */

/* ---- joining ------------------------------------------------------------------------------------
 */
#define AHEAD 8 /* records on their way at once */

__global__ static void __launch_bounds__(BLOCK)
    join_splits(struct attention_args a, struct kern_rows rows, struct cuda_partials p, int skip)
{
    int row = (int)blockIdx.y, head = (int)blockIdx.x, end = rows.pos[row] + 1;
    int begin = a.window && end > a.window ? end - a.window : 0;
    int first = split_of(begin / KERN_TILE, p.late), last = split_of((end - 1) / KERN_TILE, p.late);
    launch_wait();
    launch_trigger();
    if (last - first < skip)
        return;
    for (int dim = (int)threadIdx.x; dim < a.head_dim; dim += BLOCK) {
        float o = 0.0f, l = 0.0f, m = -INFINITY;
        for (int split = first; split <= last; split += AHEAD) {
            float xo[AHEAD], xl[AHEAD], xm[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int at = p.descending ? first + last - split - i : split + i;
                const float *x = partial_of(p, row, a.n_head, head, at);
                bool there = split + i <= last;
                xo[i] = there ? x[dim] : 0.0f;
                xl[i] = there ? x[p.dims] : 0.0f;
                xm[i] = there ? x[p.dims + 1] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (split + i > last)
                    break;
                float joined = elem_max(xm[i], m);
                float f = elem_rescale(m, joined, p.c), g = elem_rescale(xm[i], joined, p.c);
                bool is_first = split + i == first;
                o = is_first ? xo[i] : fmaf(xo[i], g, o * f);
                l = is_first ? xl[i] : fmaf(xl[i], g, l * f);
                m = is_first ? xm[i] : joined;
            }
        }
        store_out(a, row, head, dim, o, end_row(a, head, m, l, p.c));
    }
}

extern "C" void cuda_attention_join(const struct cuda_kern *c, const struct attention_args *a,
                                    const struct cuda_partials *p, int skip)
{
    dim3 grid((unsigned)a->n_head, (unsigned)a->rows->n_tok);
    launch_early(join_splits, grid, BLOCK, 0, c->stream, *a, *a->rows, *p, skip);
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

/* Rope, where the arguments hold it, is an operation of its own unless the row kernel takes it. */
extern "C" enum err_code cuda_attention(struct kern *k, const struct attention_args *a,
                                        struct err *e)
{
    struct attention_args after = *a;
    if (a->rows->n_tok == 0)
        return ERR_OK;
    if (a->rope && takes_rows(cuda_of(k), a))
        return cuda_launched("attention", e);
    if (a->rope) {
        enum err_code rc = cuda_rope_kv(k, a->rope, e);
        if (rc != ERR_OK)
            return rc;
    }
    after.rope = NULL;
    attend(cuda_of(k), &after);
    return cuda_launched("attention", e);
}
