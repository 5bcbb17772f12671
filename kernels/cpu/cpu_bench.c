/* cpu_bench.c: every kernel of the CPU, in bytes and operations per second.
 *
 * A figure is the best of several runs: what the machine can do, not what it did on average. Bytes
 * are those that the operation has to read and write once; operations are multiplications and
 * additions of its linear algebra.
 */
#include "kernels/cpu/cpu_bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/par.h"
#include "common/rng.h"
#include "kernels/cpu/cpu_ops.h"

struct bench {
    struct kern *k;
    double seconds; /* per figure */
    double stream;  /* bytes/s */
    struct rng rng;
    json_t *kernels;
    const volatile int *interrupted;
};

/* One call of what is measured. */
typedef enum err_code (*bench_fn)(struct bench *b, void *ctx, struct err *e);

/* Seconds of the fastest call; at least three calls, and at least b->seconds in all. */
static enum err_code best_of(struct bench *b, bench_fn fn, void *ctx, double *best, struct err *e)
{
    uint64_t start = clock_ns();
    *best = 1e30;
    for (int n = 0; n < 3 || (double)(clock_ns() - start) * 1e-9 < b->seconds; n++) {
        if (*b->interrupted)
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        uint64_t at = clock_ns();
        enum err_code rc = fn(b, ctx, e);
        if (rc != ERR_OK)
            return rc;
        double s = (double)(clock_ns() - at) * 1e-9;
        *best = s < *best ? s : *best;
    }
    return ERR_OK;
}

static enum err_code measure(struct bench *b, const char *name, const char *shape, double bytes,
                             double flop, bench_fn fn, void *ctx, struct err *e)
{
    double s;
    enum err_code rc = best_of(b, fn, ctx, &s, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s %s", name, shape);
    json_array_append_new(b->kernels,
                          json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "kernel", name, "shape",
                                    shape, "seconds", s, "bytes_per_s", bytes / s, "flop_per_s",
                                    flop / s, "stream_share", bytes / s / b->stream));
    return ERR_OK;
}

/* ---- memory ------------------------------------------------------------------------------------
 */
#define STREAM_BYTES ((size_t)1 << 30) /* twice the largest cache seen, 480 MiB */

struct stream {
    const struct cpu_isa_ops *ops;
    const float *x;
    int64_t n; /* floats of a piece; pieces are as many as threads */
    float *sums;
};

static void stream_piece(void *ctx, int64_t i, int thread)
{
    (void)thread;
    const struct stream *s = ctx;
    s->sums[i] = s->ops->stream(s->x + i * s->n, s->n);
}

static enum err_code stream_once(struct bench *b, void *ctx, struct err *e)
{
    (void)e;
    par_for(b->k->threads, b->k->threads, stream_piece, ctx);
    return ERR_OK;
}

static enum err_code measure_stream(struct bench *b, struct err *e)
{
    void *x = NULL;
    float *sums = calloc((size_t)b->k->threads, sizeof *sums);
    enum err_code rc = kern_alloc(b->k, STREAM_BYTES, &x, e);
    if (rc == ERR_OK && !sums)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK) {
        struct stream s = {cpu_of(b->k)->ops, x, (int64_t)(STREAM_BYTES / 4) / b->k->threads, sums};
        double seconds;
        memset(x, 1, STREAM_BYTES); /* fresh pages are all one page of zeroes until written */
        rc = best_of(b, stream_once, &s, &seconds, e);
        b->stream = (double)(s.n * 4 * b->k->threads) / seconds;
    }
    kern_free(b->k, x);
    free(sums);
    return rc;
}

/* ---- inputs ------------------------------------------------------------------------------------
 */
/* n elements of `act`, small and finite. */
static enum err_code make_act(struct bench *b, int64_t n, void **out, struct err *e)
{
    size_t size = kern_act_bytes(b->k);
    enum err_code rc = kern_alloc(b->k, (size_t)n * size, out, e);
    for (int64_t i = 0; rc == ERR_OK && i < n; i++) {
        float x = (float)rng_double(&b->rng) - 0.5f;
        if (size == 4)
            ((float *)*out)[i] = x;
        else
            ((uint16_t *)*out)[i] = bf16_from_f32(x);
    }
    return rc;
}

static enum err_code make_f32(struct bench *b, int64_t n, float **out, struct err *e)
{
    void *p;
    enum err_code rc = kern_alloc(b->k, (size_t)n * sizeof(float), &p, e);
    *out = rc == ERR_OK ? p : NULL;
    for (int64_t i = 0; rc == ERR_OK && i < n; i++)
        (*out)[i] = (float)rng_double(&b->rng) - 0.5f;
    return rc;
}

/* A random weight in groups of 64 with bf16 scales; bits 16: dense bf16. */
static enum err_code make_weight(struct bench *b, int64_t rows, int64_t k, int bits,
                                 struct kern_weight **w, struct err *e)
{
    struct qformat q = {bits, 64, DT_BF16};
    size_t bytes = (size_t)(rows * k * bits / 8), groups = (size_t)(rows * k / 64);
    uint8_t *data = malloc(bytes), *scales = malloc(groups * 2), *biases = malloc(groups * 2);
    struct ckpt_weight c = {.name = "bench",
                            .stored = "bench",
                            .enc = bits == 16 ? CKPT_DENSE : CKPT_AFFINE,
                            .dtype = DT_BF16,
                            .q = q,
                            .n_dim = 2,
                            .dim = {rows, k},
                            .data = data,
                            .scales = scales,
                            .biases = biases,
                            .layer = -1};
    const struct ckpt_weight *part = &c;
    enum err_code rc = ERR_NOMEM;
    if (!data || !scales || !biases) {
        err_set(e, rc, "out of memory: %zu bytes", bytes);
        goto out;
    }
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)rng_next(&b->rng);
    for (size_t i = 0; bits == 16 && i < bytes / 2; i++)
        store_u16(data + 2 * i, bf16_from_f32((float)(data[2 * i]) / 256.0f - 0.5f));
    for (size_t i = 0; i < groups; i++) {
        store_u16(scales + 2 * i, bf16_from_f32(0.01f));
        store_u16(biases + 2 * i, bf16_from_f32(-0.08f));
    }
    rc = kern_weight_load(b->k, &part, 1, w, e);
out:
    free(data);
    free(scales);
    free(biases);
    return rc;
}

/* ---- linear layers ------------------------------------------------------------------------------
 */
static enum err_code linear_once(struct bench *b, void *ctx, struct err *e)
{
    return kern_linear(b->k, ctx, e);
}

static enum err_code bench_linear(struct bench *b, int64_t rows, int64_t k, int bits,
                                  const int *n_all, struct err *e)
{
    struct kern_weight *w = NULL;
    void *x = NULL;
    float *y = NULL;
    int most = 0;
    for (const int *n = n_all; *n; n++)
        most = MAX2(most, *n);
    enum err_code rc = make_weight(b, rows, k, bits, &w, e);
    if (rc == ERR_OK)
        rc = make_act(b, most * k, &x, e);
    if (rc == ERR_OK)
        rc = make_f32(b, most * rows, &y, e);
    for (const int *n = n_all; rc == ERR_OK && *n; n++) {
        char shape[96];
        struct linear_args a = {
            .n_tok = *n, .x = x, .x_stride = k, .n_parts = 1, .part = {{w, NULL, y, rows}}};
        snprintf(shape, sizeof shape, "%d x %lld -> %lld, %d bits", *n, (long long)k,
                 (long long)rows, bits);
        double bytes = (double)w->bytes + (double)(*n * k) * (double)kern_act_bytes(b->k) +
                       (double)(*n * rows) * 4;
        rc = measure(b, "linear", shape, bytes, 2.0 * (double)(*n * k) * (double)rows, linear_once,
                     &a, e);
    }
    kern_weight_free(b->k, w);
    kern_free(b->k, x);
    kern_free(b->k, y);
    return rc;
}

/* ---- attention
 * ------------------------------------------------------------------------------------ */
static enum err_code rope_once(struct bench *b, void *ctx, struct err *e)
{
    return kern_rope_kv(b->k, ctx, e);
}

static enum err_code attention_once(struct bench *b, void *ctx, struct err *e)
{
    return kern_attention(b->k, ctx, e);
}

/* n rows that end at position ctx, of one sequence. */
static enum err_code bench_attention(struct bench *b, int n, int ctx, struct err *e)
{
    enum { HEADS = 9, KV = 3, HD = 64, STRIDE = (HEADS + 2 * KV) * HD };
    int n_pages = (ctx + KERN_PAGE - 1) / KERN_PAGE;
    float *qkv = NULL, *table = NULL;
    void *q = NULL, *out = NULL, *pages = NULL;
    int32_t *ids = calloc((size_t)(2 * n + n_pages), sizeof *ids);
    size_t page_bytes = kern_page_bytes(b->k, KV, HD);
    enum err_code rc = ids ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = make_f32(b, (int64_t)n * STRIDE, &qkv, e);
    if (rc == ERR_OK)
        rc = make_f32(b, (int64_t)ctx * HD, &table, e);
    if (rc == ERR_OK)
        rc = make_act(b, (int64_t)n * HEADS * HD, &q, e);
    if (rc == ERR_OK)
        rc = make_act(b, (int64_t)n * HEADS * HD, &out, e);
    if (rc == ERR_OK)
        rc = kern_alloc(b->k, page_bytes * (size_t)n_pages, &pages, e);
    if (rc == ERR_OK) {
        for (int i = 0; i < n; i++)
            ids[i] = ctx - n + i;
        for (int i = 0; i < n_pages; i++)
            ids[2 * n + i] = i;
        struct kern_rows rows = {.n_tok = n,
                                 .pos = ids,
                                 .seq = ids + n,
                                 .pages = ids + 2 * n,
                                 .n_seq = 1,
                                 .pages_max = n_pages};
        struct rope_kv_args ra = {.rows = &rows,
                                  .n_head = HEADS,
                                  .n_kv = KV,
                                  .head_dim = HD,
                                  .rot_dim = HD,
                                  .q = qkv,
                                  .k = qkv + HEADS * HD,
                                  .v = qkv + (HEADS + KV) * HD,
                                  .stride = STRIDE,
                                  .cos_sin = table,
                                  .q_out = q,
                                  .kv = pages};
        struct attention_args aa = {.rows = &rows,
                                    .n_head = HEADS,
                                    .n_kv = KV,
                                    .head_dim = HD,
                                    .q = q,
                                    .kv = pages,
                                    .scale = 0.125f,
                                    .out = out};
        char shape[96];
        double keys = (double)n * ((double)ctx - (double)(n - 1) / 2);
        snprintf(shape, sizeof shape, "%d rows, context %d, %d/%d heads of %d", n, ctx, HEADS, KV,
                 HD);
        rc = measure(b, "rope_kv", shape, (double)n * STRIDE * (4 + (double)kern_act_bytes(b->k)),
                     0, rope_once, &ra, e);
        if (rc == ERR_OK)
            rc = measure(b, "attention", shape, (double)page_bytes * (double)n_pages,
                         4.0 * keys * HEADS * HD, attention_once, &aa, e);
    }
    free(ids);
    kern_free(b->k, qkv);
    kern_free(b->k, table);
    kern_free(b->k, q);
    kern_free(b->k, out);
    kern_free(b->k, pages);
    return rc;
}

/* ---- operations over rows
 * -------------------------------------------------------------------------- */
struct rows_ctx {
    struct rms_norm_args norm;
    struct act_mul_args act;
    struct add_args add;
    struct logits_args logits;
    struct row_hash_args hash;
};

#define ONCE(op, field)                                                                            \
    static enum err_code op##_once(struct bench *b, void *ctx, struct err *e)                      \
    {                                                                                              \
        return kern_##op(b->k, &((struct rows_ctx *)ctx)->field, e);                               \
    }
ONCE(rms_norm, norm)
ONCE(act_mul, act)
ONCE(add, add)
ONCE(logits, logits)
ONCE(row_hash, hash)

static enum err_code bench_rows(struct bench *b, struct err *e)
{
    enum { N = 512, D = 576, FF = 1536, VOCAB = 49152 };
    float *x = NULL, *y = NULL, *z = NULL;
    static int32_t id[2];
    static float top[2], lse[1];
    static uint64_t hash[N];
    enum err_code rc = make_f32(b, N * FF, &x, e);
    if (rc == ERR_OK)
        rc = make_f32(b, N * FF, &y, e);
    if (rc == ERR_OK)
        rc = make_f32(b, N * FF, &z, e);
    struct rows_ctx c = {
        .norm = {N, 1, D, D, D, x, NULL, y, 1e-5f, false, false, z},
        .act = {.n_rows = N, .d = FF, .stride = FF, .act = ACT_SILU, .gate = x, .up = y, .out = z},
        .add = {.n = N * D, .h = x, .x = y},
        .logits = {1, VOCAB, 0, x, 2, id, top, lse, hash},
        .hash = {N, D, D, 4, x, hash},
    };
    double act = (double)kern_act_bytes(b->k);
    if (rc == ERR_OK)
        rc = measure(b, "rms_norm", "512 x 576", N * D * (4 + act), 0, rms_norm_once, &c, e);
    if (rc == ERR_OK)
        rc = measure(b, "act_mul", "512 x 1536, silu", N * FF * (8 + act), 0, act_mul_once, &c, e);
    if (rc == ERR_OK)
        rc = measure(b, "row_hash", "512 x 576", N * D * 4.0, 0, row_hash_once, &c, e);
    if (rc == ERR_OK)
        rc = measure(b, "logits", "1 x 49152", VOCAB * 4.0, 0, logits_once, &c, e);
    if (rc == ERR_OK)
        rc = measure(b, "add", "512 x 576", N * D * 12.0, 0, add_once, &c, e);
    kern_free(b->k, x);
    kern_free(b->k, y);
    kern_free(b->k, z);
    return rc;
}

static enum err_code bench_kernels(struct bench *b, struct err *e)
{
    static const int few[] = {1, 16, 512, 0}, head[] = {1, 16, 0};
    static const struct {
        int64_t rows, k;
        int bits;
        const int *n;
    } linear[] = {{960, 576, 4, few},    {3072, 576, 4, few},   {576, 1536, 4, few},
                  {576, 1536, 2, few},   {576, 1536, 3, few},   {576, 1536, 5, few},
                  {576, 1536, 6, few},   {576, 1536, 8, few},   {576, 1536, 16, few},
                  {49152, 576, 4, head}, {49152, 576, 8, head}, {4096, 4096, 4, head}};
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(linear) && rc == ERR_OK; i++)
        rc = bench_linear(b, linear[i].rows, linear[i].k, linear[i].bits, linear[i].n, e);
    if (rc == ERR_OK)
        rc = bench_attention(b, 1, 1024, e);
    if (rc == ERR_OK)
        rc = bench_attention(b, 512, 512, e);
    return rc == ERR_OK ? bench_rows(b, e) : rc;
}

enum err_code cpu_bench_run(struct kern *k, double seconds, const volatile int *interrupted,
                            json_t *out, struct err *e)
{
    struct bench b = {.k = k, .seconds = seconds, .rng = {.seed = 1}, .interrupted = interrupted};
    b.kernels = json_array();
    enum err_code rc = measure_stream(&b, e);
    if (rc == ERR_OK)
        rc = bench_kernels(&b, e);
    if (rc == ERR_OK) {
        json_object_set_new(out, "stream_bytes_per_s", json_real(b.stream));
        json_object_set(out, "kernels", b.kernels);
    }
    json_decref(b.kernels);
    return rc;
}
