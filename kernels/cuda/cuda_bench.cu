/* cuda_bench.cu: recorded arms, the read limit, and the figures of every kernel that a dense model
 * runs, at the shapes of an 8B one. The figures' words stand in cuda_measure.h.
 *
 * Every launch of a product reads other weights, in all several times what the second-level cache
 * holds; bytes are those that an operation has to read and write once.
 */
#include "kernels/cuda/cuda_measure.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "common/rng.h"
#include "common/stats.h"
}
#include "kernels/cuda/cuda_weight.h"

#define FLUSH_BYTES  ((size_t)256 << 20)
#define STREAM_BYTES ((size_t)4 << 30)
#define COPIES_BYTES ((size_t)600 << 20) /* of weights that a graph reads */
#define TRY(call, doing)                                                                           \
    do {                                                                                           \
        enum err_code rc_ = cuda_checked(call, doing, e);                                          \
        if (rc_ != ERR_OK)                                                                         \
            return rc_;                                                                            \
    } while (0)

/* ---- arms ---------------------------------------------------------------------------------------
 */
__global__ static void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = p[i];
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static enum err_code read_once(void *ctx, struct kern *k, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    read_all<<<(unsigned)c->n_sm * 16, 256, 0, c->stream>>>((const uint4 *)ctx, STREAM_BYTES / 16,
                                                            (uint32_t *)ctx);
    return cuda_launched("reading", e);
}

static enum err_code record(struct kern *k, const struct measure_arm *a, cudaGraphExec_t *exec,
                            struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    cudaGraph_t graph = NULL;
    enum err_code rc =
        a->run(a->ctx, k, e); /* what is loaded at its first use may not be recorded */
    if (rc != ERR_OK)
        return rc;
    TRY(cudaStreamSynchronize(c->stream), "waiting for an operation");
    TRY(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "recording");
    rc = a->run(a->ctx, k, e);
    cudaError_t ended = cudaStreamEndCapture(c->stream, &graph);
    if (rc != ERR_OK)
        return rc;
    TRY(ended, "recording");
    ended = cudaGraphInstantiate(exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    return cuda_checked(ended, "recording", e);
}

static enum err_code replay(struct measure *m, cudaGraphExec_t exec, cudaEvent_t *at,
                            double *seconds, struct err *e)
{
    cudaStream_t stream = cuda_of(m->k)->stream;
    float ms = 0;
    if (*m->interrupted)
        return err_set(e, ERR_INTERRUPTED, "interrupted");
    TRY(cudaMemsetAsync(m->flush, 0, FLUSH_BYTES, stream), "flushing the cache");
    TRY(cudaEventRecord(at[0], stream), "event");
    TRY(cudaGraphLaunch(exec, stream), "replay");
    TRY(cudaEventRecord(at[1], stream), "event");
    TRY(cudaEventSynchronize(at[1]), "replay");
    TRY(cudaEventElapsedTime(&ms, at[0], at[1]), "event");
    *seconds = (double)ms * 1e-3;
    return ERR_OK;
}

static enum err_code run_arms(struct measure *m, struct measure_arm *arm, int n,
                              cudaGraphExec_t *exec, double *times, double *null, struct err *e)
{
    cudaEvent_t at[2] = {NULL, NULL};
    enum err_code rc = ERR_OK;
    for (int i = 0; i < 2; i++)
        TRY(cudaEventCreate(&at[i]), "event");
    for (int i = 0; i < n && rc == ERR_OK; i++)
        rc = record(m->k, &arm[i], &exec[i], e);
    for (int round = -1; round < m->rounds && rc == ERR_OK; round++)
        for (int j = 0; j <= n && rc == ERR_OK; j++) {
            int i = round % 2 ? j : n - j; /* whoever comes first finds another machine */
            rc = replay(m, exec[i % n], at, &times[i * m->rounds + MAX2(round, 0)], e);
        }
    for (int i = 0; i <= n && rc == ERR_OK; i++) {
        stats_sort(times + i * m->rounds, (size_t)m->rounds);
        double s = stats_quantile(times + i * m->rounds, (size_t)m->rounds, 0.5);
        *(i < n ? &arm[i].seconds : null) = s;
    }
    (void)cudaEventDestroy(at[0]);
    (void)cudaEventDestroy(at[1]);
    return rc;
}

extern "C" enum err_code measure_arms(struct measure *m, struct measure_arm *arm, int n,
                                      double *null, struct err *e)
{
    cudaGraphExec_t exec[MEASURE_ARMS] = {};
    double *times = (double *)calloc((size_t)(n + 1) * (size_t)m->rounds, sizeof *times);
    if (!times)
        return err_set(e, ERR_NOMEM, "out of memory for %d rounds", m->rounds);
    enum err_code rc = run_arms(m, arm, n, exec, times, null, e);
    for (int i = 0; i < n; i++)
        if (exec[i])
            (void)cudaGraphExecDestroy(exec[i]);
    free(times);
    return rc;
}

extern "C" enum err_code measure_alloc(struct measure *m, size_t bytes, uint8_t byte, void **p,
                                       struct err *e)
{
    if (m->n_blocks == MEASURE_BLOCKS)
        return err_set(e, ERR_INTERNAL, "more than %d blocks", MEASURE_BLOCKS);
    enum err_code rc = kern_alloc(m->k, bytes, p, e);
    if (rc != ERR_OK)
        return rc;
    m->block[m->n_blocks++] = *p;
    return kern_fill(m->k, *p, byte, bytes, e);
}

extern "C" void measure_keep(struct measure *m, int n)
{
    while (m->n_blocks > n)
        kern_free(m->k, m->block[--m->n_blocks]);
}

extern "C" void measure_close(struct measure *m)
{
    measure_keep(m, 0);
}

extern "C" enum err_code measure_open(struct measure *m, struct kern *k, int rounds,
                                      const volatile int *interrupted, struct err *e)
{
    void *p = NULL;
    double null = 0;
    *m = (struct measure){};
    m->k = k;
    m->rounds = MAX2(rounds, 1);
    m->interrupted = interrupted;
    enum err_code rc = measure_alloc(m, FLUSH_BYTES, 0, &m->flush, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, STREAM_BYTES, 1, &p, e);
    struct measure_arm arm = {read_once, p, 0};
    if (rc == ERR_OK)
        rc = measure_arms(m, &arm, 1, &null, e);
    if (rc == ERR_OK)
        m->stream = (double)STREAM_BYTES / MIN2(arm.seconds, null);
    measure_keep(m, rc == ERR_OK ? 1 : 0);
    return rc;
}

/* ---- weights ------------------------------------------------------------------------------------
 */
/* Codes and scales that repeat; the device's time does not depend on them. */
static bool fill_source(struct ckpt_weight *w, int64_t rows, int64_t k, int bits)
{
    const struct qformat q = {bits, 64, DT_BF16};
    const size_t codes = (size_t)rows * qformat_row_bytes(q, k), n = (size_t)(rows * (k / 64));
    uint8_t *p = (uint8_t *)malloc(codes + 4 * n);
    struct rng r = {1, 0};
    if (!p)
        return false;
    for (size_t i = 0; i < codes; i += 8) {
        uint64_t v = i < (1 << 20) ? rng_next(&r) : load_u64(p + i - (1 << 20));
        memcpy(p + i, &v, MIN2(codes - i, (size_t)8));
    }
    for (size_t i = 0; i < n; i++) {
        store_u16(p + codes + 2 * i, bf16_from_f32(0.015f));
        store_u16(p + codes + 2 * (n + i), bf16_from_f32(-0.11f));
    }
    *w = (struct ckpt_weight){};
    w->name = w->stored = "bench";
    w->enc = CKPT_AFFINE;
    w->q = q;
    w->n_dim = 2;
    w->dim[0] = rows;
    w->dim[1] = k;
    w->data = p;
    w->scales = p + codes;
    w->biases = p + codes + 2 * n;
    w->layer = -1;
    return true;
}

extern "C" enum err_code measure_weights(struct measure *m, int64_t rows, int64_t k, int bits,
                                         int copies, struct kern_weight **w, struct err *e)
{
    struct ckpt_weight source;
    const struct ckpt_weight *part = &source;
    if (!fill_source(&source, rows, k, bits))
        return err_set(e, ERR_NOMEM, "out of memory for a matrix of %lld x %lld", (long long)rows,
                       (long long)k);
    enum err_code rc = ERR_OK;
    for (int i = 0; i < copies && rc == ERR_OK; i++) {
        rc = kern_weight_load(m->k, &part, 1, &w[i], e);
    }
    free((void *)(uintptr_t)source.data);
    return rc;
}

extern "C" void measure_weights_free(struct kern *k, struct kern_weight **w, int copies)
{
    for (int i = 0; i < copies; i++)
        kern_weight_free(k, w[i]);
}

/* ---- figures ------------------------------------------------------------------------------------
 */
static enum err_code say(struct measure *m, const char *name, const char *shape, double launches,
                         double bytes, double flop, measure_fn run, void *ctx, struct err *e)
{
    struct measure_arm arm = {run, ctx, 0};
    double null = 0;
    enum err_code rc = measure_arms(m, &arm, 1, &null, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s %s", name, shape);
    double s = arm.seconds / launches;
    json_array_append_new(m->list,
                          json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "kernel", name, "shape",
                                    shape, "seconds", s, "bytes_per_s", bytes / s, "flop_per_s",
                                    flop / s, "stream_share", bytes / s / m->stream, "null_ratio",
                                    null / arm.seconds));
    return ERR_OK;
}

#define COPIES_MAX 80

struct products {
    struct linear_args a;
    struct kern_weight *w[COPIES_MAX];
    int n;
};

static enum err_code run_products(void *ctx, struct kern *k, struct err *e)
{
    struct products *p = (struct products *)ctx;
    enum err_code rc = ERR_OK;
    for (int i = 0; i < p->n && rc == ERR_OK; i++) {
        p->a.part[0].w = p->w[i];
        rc = kern_linear(k, &p->a, e);
    }
    return rc;
}

static enum err_code reserve(struct kern *k, int n_tok, int pages, int64_t k_max, int64_t rows_max,
                             struct err *e)
{
    struct kern_limits l = {};
    l.n_tok = n_tok;
    l.n_seq = MIN2(n_tok, 64);
    l.pages_max = pages;
    l.n_head = 32;
    l.head_dim = 128;
    l.k_max = k_max;
    l.rows_max = rows_max;
    return kern_reserve(k, &l, e);
}

static enum err_code measure_linear(struct measure *m, int64_t rows, int64_t k, int bits,
                                    const int *n_tok, int n, struct err *e)
{
    struct products p = {};
    const int most = n_tok[n - 1], kept = m->n_blocks;
    const double bytes = (double)rows * (double)k * (bits / 8.0 + 4.0 / 64);
    void *x, *out;
    p.n = MIN2((int)((double)COPIES_BYTES / bytes) + 1, COPIES_MAX);
    enum err_code rc = measure_weights(m, rows, k, bits, p.n, p.w, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)(most * k) * 2, 0x3c, &x, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)(most * rows) * 4, 0, &out, e);
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        char shape[80];
        p.a.n_tok = n_tok[i];
        p.a.x = x;
        p.a.x_stride = k;
        p.a.n_parts = 1;
        p.a.part[0].out = (float *)out;
        p.a.part[0].out_stride = rows;
        snprintf(shape, sizeof shape, "%lldx%lld %d bits, %d rows", (long long)rows, (long long)k,
                 bits, n_tok[i]);
        rc = say(m, "linear", shape, p.n, bytes + n_tok[i] * (2.0 * (double)k + 4.0 * (double)rows),
                 2.0 * n_tok[i] * (double)rows * (double)k, run_products, &p, e);
    }
    measure_weights_free(m->k, p.w, p.n);
    measure_keep(m, kept);
    return rc;
}

/* n_seq sequences of n_tok / n_seq rows each that end at `keys` keys. */
struct attending {
    struct kern_rows rows;
    struct attention_args a;
};

static enum err_code run_attention(void *ctx, struct kern *k, struct err *e)
{
    return kern_attention(k, &((struct attending *)ctx)->a, e);
}

static enum err_code measure_attention(struct measure *m, int n_seq, int per_seq, int keys,
                                       struct err *e)
{
    const int pages = (keys + KERN_PAGE - 1) / KERN_PAGE, n = n_seq * per_seq, kept = m->n_blocks;
    const size_t page = kern_page_bytes(m->k, 8, 128), words = (size_t)(3 * n + n_seq * pages);
    struct attending t = {};
    void *ids, *kv, *q, *out;
    char shape[80];
    int32_t *host = (int32_t *)calloc(words, sizeof *host);
    if (!host)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        host[n + i] = keys - per_seq + i % per_seq;
        host[2 * n + i] = i / per_seq;
    }
    for (int i = 0; i < n_seq * pages; i++)
        host[3 * n + i] = i;
    enum err_code rc = measure_alloc(m, words * 4, 0, &ids, e);
    if (rc == ERR_OK)
        rc = kern_upload(m->k, ids, host, words * 4, e);
    free(host);
    if (rc == ERR_OK)
        rc = measure_alloc(m, page * (size_t)(pages * n_seq), 0x3c, &kv, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)n * 4096 * 2, 0x3c, &q, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)n * 4096 * 2, 0, &out, e);
    if (rc == ERR_OK)
        rc = reserve(m->k, n, pages, 4096, 4096, e);
    if (rc == ERR_OK) {
        int32_t *at = (int32_t *)ids;
        double seen = 0;
        for (int i = 0; i < per_seq; i++)
            seen += (double)n_seq * (keys - per_seq + i + 1);
        t.rows = (struct kern_rows){n,          at,    at + n, at + 2 * n,
                                    at + 3 * n, n_seq, pages,  (int64_t)pages * KERN_PAGE};
        t.a.rows = &t.rows;
        t.a.n_head = 32;
        t.a.n_kv = 8;
        t.a.head_dim = 128;
        t.a.q = q;
        t.a.kv = kv;
        t.a.scale = 0.088f;
        t.a.out = out;
        snprintf(shape, sizeof shape, "%d x %d rows at %d keys, 32 heads to 8 of 128", n_seq,
                 per_seq, keys);
        rc = say(m, "attention", shape, 1,
                 (double)n_seq * keys * 8 * 2 * 128 * 2 + (double)n * 4096 * 4, seen * 4096 * 4,
                 run_attention, &t, e);
    }
    measure_keep(m, kept);
    return rc;
}

static enum err_code run_norm(void *ctx, struct kern *k, struct err *e)
{
    return kern_rms_norm(k, (const struct rms_norm_args *)ctx, e);
}

static enum err_code run_gate(void *ctx, struct kern *k, struct err *e)
{
    return kern_act_mul(k, (const struct act_mul_args *)ctx, e);
}

static enum err_code run_logits(void *ctx, struct kern *k, struct err *e)
{
    return kern_logits(k, (const struct logits_args *)ctx, e);
}

/* Norm, gate and the reduction of logits. */
static enum err_code measure_rows(struct measure *m, int n, struct err *e)
{
    const int kept = m->n_blocks, out_rows = MIN2(n, 64);
    const double d = 4096, f = 14336, v = 128256;
    void *wide, *out, *small;
    char shape[80];
    enum err_code rc = measure_alloc(m, (size_t)MAX2(n * f * 2, out_rows * v) * 4, 0x3c, &wide, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)(n * f) * 2, 0, &out, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)out_rows * 256, 0, &small, e);
    if (rc == ERR_OK)
        rc = reserve(m->k, n, 1, 14336, 128256, e);
    if (rc != ERR_OK) {
        measure_keep(m, kept);
        return rc;
    }
    struct rms_norm_args norm = {};
    norm.n_rows = n;
    norm.inner = 1;
    norm.stride = norm.out_stride = norm.d = 4096;
    norm.h = (float *)wide;
    norm.w = (const float *)wide;
    norm.eps = 1e-5f;
    norm.out = out;
    snprintf(shape, sizeof shape, "%d rows of 4096", n);
    rc = say(m, "rms_norm", shape, 1, n * d * 6, n * d * 3, run_norm, &norm, e);
    struct act_mul_args gate = {};
    gate.n_rows = n;
    gate.d = 14336;
    gate.stride = 2 * 14336;
    gate.gate = (const float *)wide;
    gate.up = gate.gate + 14336;
    gate.out = out;
    snprintf(shape, sizeof shape, "%d rows of 14336", n);
    if (rc == ERR_OK)
        rc = say(m, "act_mul", shape, 1, n * f * 10, n * f * 2, run_gate, &gate, e);
    struct logits_args top = {};
    uint8_t *at = (uint8_t *)small;
    top.n = out_rows;
    top.n_vocab = 128256;
    top.logits = (float *)wide;
    top.k = 2;
    top.hash = (uint64_t *)at;
    top.top = (float *)(at + 64 * out_rows);
    top.lse = (float *)(at + 128 * out_rows);
    top.top_id = (int32_t *)(at + 192 * out_rows);
    snprintf(shape, sizeof shape, "%d rows of 128256, top 2", out_rows);
    if (rc == ERR_OK && n <= 64)
        rc = say(m, "logits", shape, 1, out_rows * v * 4, out_rows * v, run_logits, &top, e);
    measure_keep(m, kept);
    return rc;
}

extern "C" enum err_code cuda_bench_run(struct kern *k, int rounds, const volatile int *interrupted,
                                        json_t *out, struct err *e)
{
    static const struct {
        int64_t rows, k;
        int bits;
    } shapes[] = {{6144, 4096, 4},  {4096, 4096, 4},   {28672, 4096, 4},
                  {4096, 14336, 4}, {128256, 4096, 4}, {28672, 4096, 8}};
    static const int n_tok[] = {1, 8, 64, 512, 2048};
    static const int attend[][3] = {
        {1, 1, 1024}, {64, 1, 1024}, {64, 1, 32768}, {1, 2048, 2048}, {1, 8192, 8192}};
    struct measure m;
    enum err_code rc = measure_open(&m, k, rounds, interrupted, e);
    m.list = json_array();
    if (rc == ERR_OK)
        rc = reserve(k, 2048, 1, 14336, 128256, e);
    for (size_t i = 0; i < ARRAY_LEN(shapes) && rc == ERR_OK; i++) {
        int n = shapes[i].rows > 100000 ? 3 : 5; /* logits are of few rows */
        rc = measure_linear(&m, shapes[i].rows, shapes[i].k, shapes[i].bits, n_tok, n, e);
    }
    for (size_t i = 0; i < ARRAY_LEN(attend) && rc == ERR_OK; i++)
        rc = measure_attention(&m, attend[i][0], attend[i][1], attend[i][2], e);
    for (size_t i = 0; i < ARRAY_LEN(n_tok) && rc == ERR_OK; i += 2)
        rc = measure_rows(&m, n_tok[i], e);
    json_object_set_new(out, "stream_bytes_per_s", json_real(m.stream));
    json_object_set_new(out, "kernels", m.list);
    measure_close(&m);
    return rc;
}
