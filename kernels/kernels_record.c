/* kernels_record.c: the table of the recording kern: the extents of every operation's arguments. */
#include "kernels/kernels_record.h"

#include <stdlib.h>

#include "kernels/kernels_private.h"

struct recorder {
    struct kern base;
    kern_on_access fn;
    void *ctx;
};

/* ---- spans ------------------------------------------------------------------------------------
 */

static uintptr_t end_of(struct kern_span s)
{
    return (uintptr_t)s.at + s.bytes;
}

/* Adds a span; those that overlap (the parts of one row) become one, neighbours do not. */
static void add_span(struct kern_span *list, int *n, const void *at, int64_t bytes)
{
    if (!at || bytes <= 0)
        return;
    struct kern_span s = {.at = at, .bytes = (size_t)bytes};
    for (int i = 0; i < *n;) {
        struct kern_span o = list[i];
        if ((uintptr_t)s.at >= end_of(o) || (uintptr_t)o.at >= end_of(s)) {
            i++;
            continue;
        }
        uintptr_t from = MIN2((uintptr_t)s.at, (uintptr_t)o.at);
        uintptr_t to = MAX2(end_of(s), end_of(o));
        s.at = from == (uintptr_t)s.at ? s.at : o.at;
        s.bytes = to - from;
        list[i] = list[--*n];
        i = 0;
    }
    if (*n < KERN_SPANS_MAX)
        list[(*n)++] = s;
}

static void reads(struct kern_access *a, const void *at, int64_t bytes)
{
    add_span(a->read, &a->n_read, at, bytes);
}

static void writes(struct kern_access *a, const void *at, int64_t bytes)
{
    add_span(a->write, &a->n_write, at, bytes);
}

/* Bytes from the first element of n rows to the last of the last one. */
static int64_t extent(int64_t n, int64_t stride, int64_t d, size_t word)
{
    return n > 0 ? ((n - 1) * stride + d) * (int64_t)word : 0;
}

static int64_t word_of(const struct kern *k)
{
    return (int64_t)kern_act_bytes(k);
}

/* ---- operations: one function each, by name ----------------------------------------------------
 */
#define F32 ((int64_t)sizeof(float))
#define I32 ((int64_t)sizeof(int32_t))

/* The only span written is n rows, `stride` bytes apart. */
static void set_rows(struct kern_access *x, int64_t n, int64_t stride)
{
    if (x->n_write != 1 || n < 1)
        return;
    x->write[0].stride = (size_t)stride;
    x->write[0].row = x->write[0].bytes - (size_t)((n - 1) * stride);
}

static void span_embed(const struct kern *k, const struct embed_args *a, struct kern_access *x)
{
    (void)k;
    reads(x, a->rows->id, a->rows->n_tok * I32);
    writes(x, a->out, a->rows->n_tok * a->w->k * F32);
}

static void span_linear(const struct kern *k, const struct linear_args *a, struct kern_access *x)
{
    reads(x, a->x, extent(a->n_tok, a->x_stride, a->part[0].w->k, kern_act_bytes(k)));
    for (int i = 0; i < a->n_parts; i++)
        writes(x, a->part[i].out,
               extent(a->n_tok, a->part[i].out_stride, a->part[i].w->rows, sizeof(float)));
    if (a->gate.out)
        writes(x, a->gate.out, a->n_tok * a->part[0].w->rows * word_of(k));
    set_rows(x, a->n_tok, a->part[0].out_stride * F32);
}

static void span_rms_norm(const struct kern *k, const struct rms_norm_args *a,
                          struct kern_access *x)
{
    int64_t groups = a->n_rows / a->inner, width = a->inner * a->d;
    int64_t in = extent(groups, a->stride, width, sizeof(float));
    reads(x, a->h, in);
    reads(x, a->add, in);
    if (a->add)
        writes(x, a->h, in);
    writes(x, a->out,
           extent(groups, a->out_stride, width, a->out_f32 ? sizeof(float) : kern_act_bytes(k)));
    if (a->out_f32 && !a->add)
        set_rows(x, groups, a->out_stride * F32);
}

/* What is changed in place counts as read alone, where v is made: spans of one row would be one. */
static void span_norm_heads(const struct kern *k, const struct norm_heads_args *a,
                            struct kern_access *x)
{
    int64_t q = extent(a->n_tok, a->stride, (int64_t)a->n_head * a->head_dim, sizeof(float));
    int64_t kv = extent(a->n_tok, a->stride, (int64_t)a->n_kv * a->head_dim, sizeof(float));
    const bool makes_v = a->v_norm && a->v_of_k;
    (void)k;
    reads(x, a->q_norm ? a->q : NULL, q);
    reads(x, a->k_norm || makes_v ? a->k : NULL, kv);
    reads(x, a->v_norm && !makes_v ? a->v : NULL, kv);
    writes(x, makes_v || a->v_norm ? a->v : NULL, kv);
    if (makes_v) {
        set_rows(x, a->n_tok, a->stride * F32);
        return;
    }
    writes(x, a->q_norm ? a->q : NULL, q);
    writes(x, a->k_norm ? a->k : NULL, kv);
}

static void span_rope_kv(const struct kern *k, const struct rope_kv_args *a, struct kern_access *x)
{
    int64_t n = a->rows->n_tok, q = (int64_t)a->n_head * a->head_dim;
    int64_t kv = (int64_t)a->n_kv * a->head_dim;
    reads(x, a->q, extent(n, a->stride, q, sizeof(float)));
    reads(x, a->k, extent(n, a->stride, kv, sizeof(float)));
    reads(x, a->v, extent(n, a->stride, kv, sizeof(float)));
    writes(x, a->q_out, n * q * word_of(k));
    writes(x, a->kv, 1); /* pages are picked by number */
}

static void span_attention(const struct kern *k, const struct attention_args *a,
                           struct kern_access *x)
{
    int64_t bytes = (int64_t)a->rows->n_tok * a->n_head * a->head_dim * word_of(k);
    if (a->norm)
        span_norm_heads(k, a->norm, x);
    if (a->rope)
        span_rope_kv(k, a->rope, x);
    reads(x, a->q, bytes);
    reads(x, a->kv, 1);
    writes(x, a->out, bytes);
}

static void span_act_mul(const struct kern *k, const struct act_mul_args *a, struct kern_access *x)
{
    reads(x, a->gate, extent(a->n_rows, a->stride, a->d, sizeof(float)));
    reads(x, a->up, extent(a->n_rows, a->stride, a->d, sizeof(float)));
    writes(x, a->out, a->n_rows * a->d * word_of(k));
}

static void span_add(const struct kern *k, const struct add_args *a, struct kern_access *x)
{
    reads(x, a->h, a->n * F32);
    reads(x, a->x, a->n * F32);
    if (a->x)
        writes(x, a->h, a->n * F32);
    writes(x, a->out, a->n * word_of(k));
}

static void span_route(const struct kern *k, const struct route_args *a, struct kern_access *x)
{
    int64_t pairs = (int64_t)a->n_tok * a->n_used;
    (void)k;
    reads(x, a->logits, (int64_t)a->n_tok * a->n_expert * F32);
    writes(x, a->expert, pairs * I32);
    writes(x, a->weight, pairs * F32);
    writes(x, a->order, pairs * I32);
    writes(x, a->first, (a->n_expert + 1) * I32);
}

static void span_route_scale(const struct kern *k, const struct route_scale_args *a,
                             struct kern_access *x)
{
    (void)k;
    reads(x, a->expert, a->n_pairs * I32);
    reads(x, a->weight, a->n_pairs * F32);
    writes(x, a->weight, a->n_pairs * F32);
}

static void span_expert_linear(const struct kern *k, const struct expert_linear_args *a,
                               struct kern_access *x)
{
    reads(x, a->x, a->n_pairs / a->x_div * a->w->k * word_of(k));
    reads(x, a->order, a->n_pairs * I32);
    reads(x, a->first, (a->n_expert + 1) * I32);
    writes(x, a->out, extent(a->n_pairs, a->out_stride, a->rows, sizeof(float)));
    set_rows(x, a->n_pairs, a->out_stride * F32);
}

static void span_expert_gated(const struct kern *k, const struct expert_gated_args *a,
                              struct kern_access *x)
{
    int64_t out = a->n_pairs * a->rows;
    if (a->route)
        span_route(k, a->route, x);
    reads(x, a->x, a->n_pairs / a->x_div * a->gate->k * word_of(k));
    if (!a->route) {
        reads(x, a->order, a->n_pairs * I32);
        reads(x, a->first, (a->n_expert + 1) * I32);
    }
    writes(x, a->room, 2 * out * F32);
    writes(x, a->out, out * word_of(k));
}

static void span_combine(const struct kern *k, const struct combine_args *a, struct kern_access *x)
{
    int64_t pairs = (int64_t)a->n_tok * a->n_used;
    (void)k;
    reads(x, a->y, pairs * a->d * F32);
    reads(x, a->weight, pairs * F32);
    writes(x, a->out, a->n_tok * a->d * F32);
}

static void span_residual(const struct kern *k, const struct residual_args *a,
                          struct kern_access *x)
{
    int64_t bytes = a->n_rows * a->d * F32;
    if (a->scale)
        span_route_scale(k, a->scale, x);
    if (a->combine)
        span_combine(k, a->combine, x);
    if (!a->combine || a->combine->out != a->delta)
        reads(x, a->delta, bytes);
    reads(x, a->h, bytes);
    writes(x, a->h, bytes);
    writes(x, a->delta, bytes);
    for (int i = 0; i < a->n_norms; i++)
        writes(x, a->x[i], a->n_rows * a->d * word_of(k));
    if (a->router)
        writes(x, a->router->part[0].out,
               extent(a->n_rows, a->router->part[0].out_stride, a->router->part[0].w->rows,
                      sizeof(float)));
}

static void span_gather(const struct kern *k, const struct gather_args *a, struct kern_access *x)
{
    (void)k;
    reads(x, a->row, a->n * I32);
    reads(x, a->in, a->n * a->d * F32);
    writes(x, a->out, a->n * a->d * F32);
}

static void span_logits(const struct kern *k, const struct logits_args *a, struct kern_access *x)
{
    (void)k;
    reads(x, a->logits, a->n * a->n_vocab * F32);
    writes(x, a->top_id, (int64_t)a->n * a->k * I32);
    writes(x, a->top, (int64_t)a->n * a->k * F32);
    writes(x, a->lse, a->n * F32);
    writes(x, a->hash, a->n * (int64_t)sizeof(uint64_t));
}

static void span_sample(const struct kern *k, const struct sample_args *a, struct kern_access *x)
{
    (void)k;
    reads(x, a->logits, a->n * a->n_vocab * F32);
    writes(x, a->id, a->n * I32);
    writes(x, a->logit, a->n * F32);
}

static void span_row_hash(const struct kern *k, const struct row_hash_args *a,
                          struct kern_access *x)
{
    (void)k;
    reads(x, a->x, extent(a->n_rows, a->stride, a->d, (size_t)a->word_bytes));
}

#define X(op_)                                                                                     \
    static enum err_code record_##op_(struct kern *k, const struct op_##_args *a, struct err *e)   \
    {                                                                                              \
        struct recorder *r = (struct recorder *)k;                                                 \
        struct kern_access x = {.op = #op_};                                                       \
        (void)e;                                                                                   \
        span_##op_(k, a, &x);                                                                      \
        r->fn(r->ctx, &x);                                                                         \
        return ERR_OK;                                                                             \
    }
KERN_OPS(X)
#undef X

/* ---- everything else does nothing ---------------------------------------------------------------
 */

static enum err_code no_alloc(struct kern *k, size_t bytes, void **p, struct err *e)
{
    (void)k;
    *p = malloc(MAX2(bytes, (size_t)1));
    return *p ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory: %zu bytes", bytes);
}

static void no_free(struct kern *k, void *p)
{
    (void)k;
    free(p);
}

static enum err_code no_copy(struct kern *k, void *dst, const void *src, size_t bytes,
                             struct err *e)
{
    (void)k, (void)dst, (void)src, (void)bytes, (void)e;
    return ERR_OK;
}

static enum err_code no_weight(struct kern *k, const struct ckpt_weight *const *parts, int n,
                               struct kern_weight **w, struct err *e)
{
    struct kern_source s;
    (void)k;
    enum err_code rc = kern_source_init(&s, parts, n, e);
    if (rc != ERR_OK)
        return rc;
    *w = calloc(1, sizeof **w);
    if (!*w)
        return err_set(e, ERR_NOMEM, "out of memory");
    **w = (struct kern_weight){.rows = s.rows, .k = s.k, .packed = s.packed, .q = s.q};
    return ERR_OK;
}

static void no_weight_free(struct kern *k, struct kern_weight *w)
{
    (void)k;
    free(w);
}

static const struct kern_table table = {.alloc = no_alloc,
                                        .free = no_free,
                                        .upload = no_copy,
                                        .download = no_copy,
                                        .weight_load = no_weight,
                                        .weight_free = no_weight_free,
#define X(op) .op = record_##op,
                                        KERN_OPS(X)
#undef X
};

enum err_code kern_record_open(struct kern **k, enum kern_arith arith, kern_on_access fn, void *ctx,
                               struct err *e)
{
    struct recorder *r = calloc(1, sizeof *r);
    *k = NULL;
    if (!r)
        return err_set(e, ERR_NOMEM, "out of memory");
    r->base = (struct kern){
        .table = &table, .arith = arith, .threads = 1, .isa = "none", .device = "record"};
    r->fn = fn;
    r->ctx = ctx;
    *k = &r->base;
    return ERR_OK;
}

void kern_record_close(struct kern *k)
{
    free(k);
}
