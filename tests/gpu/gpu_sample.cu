/* gpu_sample.cu: time of choosing the tokens of a step's rows by sampling: on the device, and by
 * the rows' way to the host and the CPU's sampling there, which is what it replaces.
 *
 *   gpu_sample
 *
 * Logits are normal with a deviation of 3, of 151,936 ids; histories have 1,024 tokens. Device: the
 * median of replays of a graph of 20 calls. Host: the median of 3 downloads and of 3 calls.
 */
#include "tests/gpu/bench_rig.cuh"

extern "C" {
#include "common/log.h"
#include "common/rng.h"
#include "infer/sample.h"
}

#define VOCAB   151936
#define ROWS    64
#define HISTORY 1024
#define CALLS   20
#define TIMES   3

struct way {
    const char *name;
    double temperature, top_p, min_p, penalty;
    int64_t top_k;
};

static const struct way ways[] = {{"temperature", 1, 1, 0, 1, 0},
                                  {"top_p 0.95", 0.8, 0.95, 0, 1, 0},
                                  {"top_k 50", 1, 1, 0, 1, 50},
                                  {"min_p 0.05", 1, 1, 0.05, 1, 0},
                                  {"top_k 40, top_p 0.9, penalty", 0.7, 0.9, 0, 1.1, 40},
                                  {"penalty alone", 0, 1, 0, 1.1, 0}};

struct bench {
    struct kern *k, *cpu;
    float *host;           /* logits */
    struct sample_args on; /* the device */
    struct sample_row rows[ROWS];
    int32_t lists[ROWS * HISTORY];
};

static void *put(struct kern *k, const void *from, size_t bytes)
{
    struct err e;
    void *p;
    need_ok(kern_alloc(k, bytes, &p, &e), &e);
    if (from)
        need_ok(kern_upload(k, p, from, bytes, &e), &e);
    return p;
}

static void set_rows(struct bench *b, const struct way *w)
{
    struct err e;
    for (int i = 0; i < ROWS; i++) {
        struct sampling s = sampling_default();
        uint8_t key[32] = {(uint8_t)i};
        s.temperature = w->temperature;
        s.top_k = w->top_k;
        s.top_p = w->top_p;
        s.min_p = w->min_p;
        s.repetition_penalty = w->penalty;
        b->rows[i] = sampling_row(&s, key, i);
        b->rows[i].row = i;
        b->rows[i].at = i * HISTORY;
        b->rows[i].n_history = w->penalty != 1 ? HISTORY : 0;
    }
    need_ok(kern_upload(b->k, (void *)b->on.rows, b->rows, sizeof b->rows, &e), &e);
}

static double time_device(struct bench *b, int n)
{
    struct err e;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t stream = cuda_of(b->k)->stream;
    b->on.n = n;
    need_ok(kern_sample(b->k, &b->on, &e), &e);
    need_ok(kern_download(b->k, b->host, b->on.id, 4, &e), &e);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < CALLS; i++)
        need_ok(kern_sample(b->k, &b->on, &e), &e);
    need(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "capture");
    need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    double us = time_graph(b->k, exec, CALLS);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return us;
}

static double median(double *v)
{
    for (int i = 0; i < TIMES; i++)
        for (int j = i + 1; j < TIMES; j++)
            if (v[j] < v[i]) {
                double t = v[i];
                v[i] = v[j];
                v[j] = t;
            }
    return v[TIMES / 2];
}

/* Microseconds of the copy, and of the CPU's work; the same tokens, or it says so. */
static double time_host(struct bench *b, int n, double *copy)
{
    static int32_t id[ROWS], want[ROWS];
    static float logit[ROWS];
    double us[TIMES], copies[TIMES];
    struct err e;
    struct sample_args a = b->on;
    a.logits = b->host;
    a.rows = b->rows;
    a.lists = b->lists;
    a.id = want;
    a.logit = logit;
    a.room = malloc(kern_sample_room(n, VOCAB));
    need_ok(kern_download(b->k, id, b->on.id, (size_t)n * 4, &e), &e);
    for (int i = 0; i < TIMES; i++) {
        uint64_t t0 = clock_ns();
        need_ok(kern_download(b->k, b->host, b->on.logits, (size_t)n * VOCAB * 4, &e), &e);
        uint64_t t1 = clock_ns();
        need_ok(kern_sample(b->cpu, &a, &e), &e);
        copies[i] = (double)(t1 - t0) / 1e3;
        us[i] = (double)(clock_ns() - t1) / 1e3;
    }
    need(memcmp(id, want, (size_t)n * 4) == 0, "other tokens than on the CPU");
    free(a.room);
    *copy = median(copies);
    return median(us);
}

int main(void)
{
    static struct bench b;
    static const int rows[] = {1, 8, ROWS};
    struct kern_options o = {}, host = {};
    struct rng r = {7, 0};
    struct err e;
    size_t all = (size_t)ROWS * VOCAB;
    o.device = "cuda:0";
    host.device = "cpu";
    o.arith = host.arith = KERN_MMA90;
    need_ok(kern_open(&b.k, &o, &e), &e);
    need_ok(kern_open(&b.cpu, &host, &e), &e);
    b.host = (float *)malloc(all * sizeof *b.host);
    for (size_t i = 0; i < all; i++)
        b.host[i] = (float)rng_normal(&r) * 3;
    for (int i = 0; i < ROWS * HISTORY; i++)
        b.lists[i] = (int32_t)rng_below(&r, VOCAB);
    b.on.n_vocab = VOCAB;
    b.on.logits = (float *)put(b.k, b.host, all * sizeof *b.host);
    b.on.rows = (struct sample_row *)put(b.k, NULL, sizeof b.rows);
    b.on.lists = (int32_t *)put(b.k, b.lists, sizeof b.lists);
    b.on.room = put(b.k, NULL, kern_sample_room(ROWS, VOCAB));
    b.on.id = (int32_t *)put(b.k, NULL, ROWS * 4);
    b.on.logit = (float *)put(b.k, NULL, ROWS * 4);
    printf("%-30s %5s %10s %10s %10s\n", "settings", "rows", "device us", "copy us", "CPU us");
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        set_rows(&b, &ways[i]);
        for (size_t j = 0; j < ARRAY_LEN(rows); j++) {
            double copy, device = time_device(&b, rows[j]), cpu = time_host(&b, rows[j], &copy);
            fflush(stdout);
            printf("%-30s %5d %10.1f %10.1f %10.1f\n", ways[i].name, rows[j], device, copy, cpu);
        }
    }
    kern_close(b.k);
    kern_close(b.cpu);
    return 0;
}
