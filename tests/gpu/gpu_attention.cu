/* gpu_attention.cu: time of attention by shape. Of prefill: for both kernels that take it, and
 * whether their bytes are equal. Of steps of single tokens: rope and its join with it, and the
 * share of the rate at which this card reads in this run.
 *
 * Queries, K and V are random and finite; pages stand in reverse order. Prefill: launches run back
 * to back on the same data; a time is the median of rounds of several launches after a pause, so
 * that the clock is that of a card which was idle. Operations are those of the keys that are seen:
 * 4 a key, dim and query head. Single tokens: graphs of launches, each on other pages, in all more
 * than the second-level cache holds several times over; bytes are those of K and V of seen keys.
 *
 *   gpu_attention [SHAPE]   all shapes, or that number; -1: those of single tokens
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda_page.h"
#include "kernels/cuda/cuda_private.h"

#define ROUNDS 5

/* n_seq pieces of n rows each, behind `before` keys. */
struct shape {
    const char *name;
    int n_head, n_kv, head_dim, n_seq, n, before, window;
    float cap;
};

static const struct shape shapes[] = {
    {"2k", 32, 8, 128, 1, 2048, 0, 0, 0},
    {"8 of 2k", 32, 8, 128, 8, 2048, 0, 0, 0},
    {"8k", 32, 8, 128, 1, 8192, 0, 0, 0},
    {"512 of the first", 32, 8, 128, 1, 512, 0, 0, 0},
    {"512 behind 1536", 32, 8, 128, 1, 512, 1536, 0, 0},
    {"512 behind 7680", 32, 8, 128, 1, 512, 7680, 0, 0},
    {"8k, window 1024", 32, 8, 128, 1, 8192, 0, 1024, 0},
    {"8k, 40/40 heads", 40, 40, 128, 1, 8192, 0, 0, 0},
    {"8k of 64", 32, 8, 64, 1, 8192, 0, 0, 0},
    {"512 of 64 behind 1536, 64/8", 64, 8, 64, 1, 512, 1536, 0, 0},
    {"512 of 64 behind 1536, 9/3", 9, 3, 64, 1, 512, 1536, 0, 0},
    {"128 behind 2k", 32, 8, 128, 1, 128, 2048, 0, 0},
    {"64 behind 2k", 32, 8, 128, 1, 64, 2048, 0, 0},
    {"64 behind 8k", 32, 8, 128, 1, 64, 8192, 0, 0},
    {"32 behind 2k", 32, 8, 128, 1, 32, 2048, 0, 0},
    {"32 behind 8k", 32, 8, 128, 1, 32, 8192, 0, 0},
    {"16 pieces of 8 behind 2k", 32, 8, 128, 16, 8, 2048, 0, 0},
    {"2k of 256, 16/8", 16, 8, 256, 1, 2048, 0, 0, 0},
    {"8k of 256, 16/8", 16, 8, 256, 1, 8192, 0, 0, 0},
    {"512 of 256 behind 7680, 8/4", 8, 4, 256, 1, 512, 7680, 0, 0},
    {"8k of 256, 16/8, window 1024", 16, 8, 256, 1, 8192, 0, 1024, 0},
    {"8k of 256, 16/8, cap 50", 16, 8, 256, 1, 8192, 0, 0, 50},
    {"8k of 512, 16/2", 16, 2, 512, 1, 8192, 0, 0, 0},
    {"512 of 512 behind 7680, 16/2", 16, 2, 512, 1, 512, 7680, 0, 0},
    {"8k, cap 50", 32, 8, 128, 1, 8192, 0, 0, 50},
};

/* A step of n rows, each of a sequence of its own and the last of `keys`. */
static const struct step {
    int n_head, n_kv, head_dim, n, keys;
} steps[] = {
    {32, 8, 128, 1, 1024},  {32, 8, 128, 1, 8192},  {32, 8, 128, 1, 32768},  {32, 8, 128, 8, 1024},
    {32, 8, 128, 64, 1024}, {32, 8, 128, 64, 8192}, {32, 8, 128, 64, 32768}, {16, 8, 256, 64, 1024},
    {32, 4, 128, 64, 1024}, {64, 8, 64, 64, 1024},  {16, 2, 512, 64, 1024},  {16, 8, 256, 1, 1024},
};

#define POOL ((size_t)8 << 30) /* bytes of K and V for steps; as many are read for the rate */

static void need(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "gpu_attention: %s\n", what);
        exit(1);
    }
}

static void need_ok(enum err_code rc, const struct err *e)
{
    need(rc == ERR_OK, e->text);
}

/* bf16 of both signs in [2^-7, 2), more of the greater. */
__global__ static void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x = (x ^ x >> 15) * 2246822519u;
        x = (x ^ x >> 13) * 3266489917u;
        x ^= x >> 16;
        uint32_t exponent = 127 - (uint32_t)__clz((int)(x >> 8 | 1u << 17)) % 8;
        p[i] = (uint16_t)((x & 1) << 15 | exponent << 7 | (x >> 1 & 127));
    }
}

static void *take(struct kern *k, const void *data, size_t bytes)
{
    struct err e = {};
    void *p;
    need_ok(kern_alloc(k, bytes, &p, &e), &e);
    if (data)
        need_ok(kern_upload(k, p, data, bytes, &e), &e);
    return p;
}

static double run(struct kern *k, const struct attention_args *a)
{
    cudaStream_t stream = cuda_of(k)->stream;
    cudaEvent_t from, to;
    double us[ROUNDS];
    struct err e = {};
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i < ROUNDS; i++) {
        float ms = 0;
        int n = i == 0 ? 1 : MIN2(20, (int)(5e3 / us[0]) + 2);
        usleep(100000);
        need_ok(kern_attention(k, a, &e), &e);
        cudaEventRecord(from, stream);
        for (int j = 0; j < n; j++)
            need_ok(kern_attention(k, a, &e), &e);
        cudaEventRecord(to, stream);
        need(cudaEventSynchronize(to) == cudaSuccess, "a launch failed");
        cudaEventElapsedTime(&ms, from, to);
        us[i] = (double)ms * 1e3 / n;
    }
    for (int i = 1; i < ROUNDS; i++)
        for (int j = i; j > 0 && us[j] < us[j - 1]; j--) {
            double t = us[j];
            us[j] = us[j - 1];
            us[j - 1] = t;
        }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return us[ROUNDS / 2];
}

static void bench(struct kern *k, const struct shape *s)
{
    struct err e = {};
    int n_tok = s->n_seq * s->n, pages = (s->before + s->n + KERN_PAGE - 1) / KERN_PAGE;
    size_t n_out = (size_t)n_tok * (size_t)(s->n_head * s->head_dim),
           n_pages = (size_t)(s->n_seq * pages);
    size_t n_kv = n_pages * (size_t)(s->n_kv * 2 * cuda_page_half(s->head_dim));
    int32_t *host = (int32_t *)calloc((size_t)n_tok * 2 + n_pages, 4);
    double ops = 0, us[2];
    for (int i = 0; i < n_tok; i++) {
        int keys = s->before + i % s->n + 1;
        host[i] = keys - 1;
        host[n_tok + i] = i / s->n;
        ops += 4.0 * s->n_head * s->head_dim * (s->window ? MIN2(keys, s->window) : keys);
    }
    for (size_t i = 0; i < n_pages; i++)
        host[(size_t)n_tok * 2 + i] = (int32_t)(n_pages - 1 - i);
    int32_t *dev = (int32_t *)take(k, host, ((size_t)n_tok * 2 + n_pages) * 4);
    struct kern_rows rows = {};
    rows.n_tok = n_tok;
    rows.pos = dev;
    rows.seq = dev + n_tok;
    rows.pages = dev + 2 * n_tok;
    rows.n_seq = s->n_seq;
    rows.pages_max = pages;
    rows.keys_max = s->before + s->n;
    struct attention_args a = {};
    a.rows = &rows;
    a.n_head = s->n_head;
    a.n_kv = s->n_kv;
    a.head_dim = s->head_dim;
    a.scale = 0.0625f;
    a.window = s->window;
    a.softcap = s->cap;
    uint16_t *q = (uint16_t *)take(k, NULL, n_out * 2), *kv = (uint16_t *)take(k, NULL, n_kv * 2);
    fill<<<1024, 256, 0, cuda_of(k)->stream>>>(q, n_out, 1);
    fill<<<1024, 256, 0, cuda_of(k)->stream>>>(kv, n_kv, 2);
    a.q = q;
    a.kv = kv;
    uint16_t *out[2];
    for (int i = 0; i < 2; i++) {
        a.out = take(k, NULL, n_out * 2);
        cuda_of(k)->force_attention = i == 0 ? CUDA_ATTENTION_ITEMS : CUDA_ATTENTION_MANY;
        us[i] = run(k, &a);
        out[i] = (uint16_t *)malloc(n_out * 2);
        need_ok(kern_download(k, out[i], a.out, n_out * 2, &e), &e);
        kern_free(k, a.out);
    }
    size_t differ = 0;
    for (size_t i = 0; i < n_out; i++)
        differ += out[0][i] != out[1][i];
    printf("%-28s items %8.1f us %6.1f TFLOP/s   many %8.1f us %6.1f TFLOP/s   %zu of %zu differ\n",
           s->name, us[0], ops / us[0] * 1e-6, us[1], ops / us[1] * 1e-6, differ, n_out);
    fflush(stdout);
    kern_free(k, dev);
    kern_free(k, q);
    kern_free(k, kv);
    free(out[0]);
    free(out[1]);
    free(host);
}

/* ---- single tokens ------------------------------------------------------------------------------
 */
/* Reads everything once and writes nothing that is not there by then. */
__global__ static void stream(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t found = 0;
    size_t step = (size_t)gridDim.x * blockDim.x * 8;
    for (size_t i = (size_t)blockIdx.x * blockDim.x * 8 + threadIdx.x; i < n; i += step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(p + i + (size_t)j * blockDim.x);
#pragma unroll
        for (int j = 0; j < 8; j++)
            found |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (found == 0x12345678u)
        *out = found;
}

/* Median of replays, us. */
static double replay(struct kern *k, cudaGraphExec_t graph)
{
    cudaStream_t s = cuda_of(k)->stream;
    cudaEvent_t from, to;
    double us[ROUNDS + 1];
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i <= ROUNDS; i++) {
        float ms = 0;
        cudaEventRecord(from, s);
        cudaGraphLaunch(graph, s);
        cudaEventRecord(to, s);
        need(cudaEventSynchronize(to) == cudaSuccess, "a replay failed");
        cudaEventElapsedTime(&ms, from, to);
        us[i] = (double)ms * 1e3;
    }
    qsort(us + 1, ROUNDS, sizeof *us, [](const void *x, const void *y) {
        return *(const double *)x < *(const double *)y ? -1 : 1;
    });
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return us[1 + ROUNDS / 2];
}

static cudaGraphExec_t end_graph(struct kern *k)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    need(cudaStreamEndCapture(cuda_of(k)->stream, &graph) == cudaSuccess, "capture");
    need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    cudaGraphDestroy(graph);
    return exec;
}

static void begin_graph(struct kern *k)
{
    need(cudaStreamBeginCapture(cuda_of(k)->stream, cudaStreamCaptureModeThreadLocal) ==
             cudaSuccess,
         "capture");
}

static void bench_step(struct kern *k, const struct step *s, uint16_t *pool, double rate)
{
    struct err e = {};
    int pages = (s->keys + KERN_PAGE - 1) / KERN_PAGE;
    size_t page = (size_t)(s->n_kv * 2 * cuda_page_half(s->head_dim)) * 2;
    size_t set = page * (size_t)(s->n * pages), n_sets = MIN2(POOL / set, (size_t)64);
    size_t launches = MIN2(MAX2(n_sets, (size_t)8), (size_t)64);
    size_t n_pages = n_sets * (size_t)(s->n * pages), heads = (size_t)(s->n_head + 2 * s->n_kv);
    size_t row = heads * (size_t)s->head_dim, n_out = (size_t)(s->n * s->n_head * s->head_dim);
    int32_t *host = (int32_t *)calloc((size_t)s->n * 2 + n_pages, 4);
    for (int i = 0; i < s->n; i++) {
        host[i] = s->keys - 1;
        host[s->n + i] = i;
    }
    for (size_t i = 0; i < n_pages; i++)
        host[(size_t)s->n * 2 + i] = (int32_t)(n_pages - 1 - i);
    int32_t *dev = (int32_t *)take(k, host, ((size_t)s->n * 2 + n_pages) * 4);
    float *x = (float *)take(k, NULL, (size_t)s->n * row * 4);
    float *table = (float *)take(k, NULL, (size_t)(s->keys * s->head_dim) * 4);
    void *q = take(k, NULL, n_out * 2), *out = take(k, NULL, n_out * 2);
    fill<<<1024, 256, 0, cuda_of(k)->stream>>>((uint16_t *)x, (size_t)s->n * row * 2, 3);
    fill<<<1024, 256, 0, cuda_of(k)->stream>>>((uint16_t *)table,
                                               (size_t)(s->keys * s->head_dim) * 2, 4);
    begin_graph(k);
    for (size_t i = 0; i < launches; i++) {
        struct kern_rows rows = {};
        rows.n_tok = rows.n_seq = s->n;
        rows.pos = dev;
        rows.seq = dev + s->n;
        rows.pages = dev + 2 * s->n + i % n_sets * (size_t)(s->n * pages);
        rows.pages_max = pages;
        rows.keys_max = s->keys;
        struct rope_kv_args r = {};
        r.rows = &rows;
        r.n_head = s->n_head;
        r.n_kv = s->n_kv;
        r.head_dim = r.rot_dim = s->head_dim;
        r.q = x;
        r.k = x + s->n_head * s->head_dim;
        r.v = r.k + s->n_kv * s->head_dim;
        r.stride = (int64_t)row;
        r.cos_sin = table;
        r.q_out = q;
        r.kv = pool;
        struct attention_args a = {};
        a.rows = &rows;
        a.n_head = s->n_head;
        a.n_kv = s->n_kv;
        a.head_dim = s->head_dim;
        a.q = q;
        a.kv = pool;
        a.scale = 0.0625f;
        a.out = out;
        a.rope = &r;
        need_ok(kern_attention(k, &a, &e), &e);
    }
    cudaGraphExec_t exec = end_graph(k);
    double us = replay(k, exec) / (double)launches;
    double bytes = 4.0 * s->n * s->keys * s->n_kv * s->head_dim;
    printf("%2d rows at %5d keys, %d/%d of %3d: %8.2f us %6.0f GB/s, %4.1f %% of the rate\n", s->n,
           s->keys, s->n_head, s->n_kv, s->head_dim, us, bytes / us * 1e-3,
           bytes / us / rate * 1e-4);
    fflush(stdout);
    cudaGraphExecDestroy(exec);
    kern_free(k, dev);
    kern_free(k, x);
    kern_free(k, table);
    kern_free(k, q);
    kern_free(k, out);
    free(host);
}

static void bench_steps(struct kern *k)
{
    uint16_t *pool = (uint16_t *)take(k, NULL, POOL);
    uint32_t *out = (uint32_t *)take(k, NULL, 4);
    fill<<<1024, 256, 0, cuda_of(k)->stream>>>(pool, POOL / 2, 2);
    begin_graph(k);
    stream<<<cuda_of(k)->n_sm * 8, 256, 0, cuda_of(k)->stream>>>((uint4 *)pool, POOL / 16, out);
    cudaGraphExec_t exec = end_graph(k);
    double rate = (double)POOL / replay(k, exec) * 1e-6; /* TB/s */
    printf("read: %.0f GB/s\n", rate * 1e3);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        bench_step(k, &steps[i], pool, rate);
    cudaGraphExecDestroy(exec);
    kern_free(k, pool);
    kern_free(k, out);
}

int main(int argc, char **argv)
{
    struct kern_options o = {};
    struct kern_limits limits = {};
    struct kern *k;
    struct err e = {};
    o.device = "cuda:0";
    o.arith = KERN_MMA90;
    need_ok(kern_open(&k, &o, &e), &e);
    limits.n_tok = 64;
    limits.n_seq = 64;
    limits.pages_max = 512;
    limits.n_head = 64;
    limits.head_dim = 128;
    limits.k_max = limits.rows_max = 64;
    need_ok(kern_reserve(k, &limits, &e), &e);
    if (argc < 2 || atoi(argv[1]) < 0)
        bench_steps(k);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (argc < 2 || atoi(argv[1]) == (int)i)
            bench(k, &shapes[i]);
    kern_close(k);
    return 0;
}
