/* gpu_bench.cu: time of the linear kernels by shape and rows, and the read limit in the same run.
 *
 * Launches go into a CUDA graph as a step's do; every launch reads other weights, in all more than
 * the second-level cache holds several times over. Times are of one launch: the median of replays
 * over the launches of the graph. Bytes are the weights' as they are stored, codes and scales.
 *
 *   gpu_bench [PATH [FIRST [END [N]]]]   the first N shapes by rows number FIRST to END; PATH of
 *                                        cuda_product.h
 *   gpu_bench -1                         the chain of an 8B model's linear layers
 *   gpu_bench -2 [KEYS [OMIT [BITS]]]    its whole decode step, every row at KEYS (1024) keys, less
 *                                        the parts in OMIT: n(orm), g(ate), r(ope), a(ttention),
 *                                        t(op)
 *   gpu_bench -3 [N]                     the products of its layers alone, by the first N numbers
 *                                        of rows, one graph after the other: the card is warm
 */
#include "tests/gpu/bench_rig.cuh"

struct shape {
    int64_t rows, k;
    int bits;
    const char *mode;
};

static void bench_shape(struct kern *k, const struct shape *s, const int *rows, int n_rows,
                        int path)
{
    struct cuda_kern *c = cuda_of(k);
    struct err e = {};
    struct ckpt_weight source = make_weight(s->rows, s->k, s->bits, s->mode);
    const struct ckpt_weight *part = &source;
    struct kern_weight *first;
    need_ok(kern_weight_load(k, &part, 1, &first, &e), &e);
    size_t bytes = first->bytes;
    int n = (int)(600000000 / bytes) + 1;
    struct cuda_weight *w = (struct cuda_weight *)calloc((size_t)n, sizeof *w);
    for (int i = 0; i < n; i++) {
        void *p;
        w[i] = *cuda_weight_of(first);
        need_ok(kern_alloc(k, bytes, &p, &e), &e);
        w[i].data = (uint8_t *)p;
        cudaMemcpyAsync(p, cuda_weight_of(first)->data, bytes, cudaMemcpyDeviceToDevice, c->stream);
    }
    int most = rows[n_rows - 1];
    void *x, *out;
    need_ok(kern_alloc(k, (size_t)(most * s->k) * 2, &x, &e), &e);
    need_ok(kern_alloc(k, (size_t)(most * s->rows) * 4, &out, &e), &e);
    struct kern_limits limits = {};
    limits.n_tok = most;
    limits.n_seq = most;
    limits.pages_max = 1;
    limits.n_head = 1;
    limits.head_dim = 64;
    limits.k_max = s->k;
    limits.rows_max = s->rows;
    need_ok(kern_reserve(k, &limits, &e), &e);
    uint16_t *host = (uint16_t *)malloc((size_t)(most * s->k) * 2);
    fill(host, (size_t)(most * s->k) * 2, 0xbf7fbf7fu);
    need_ok(kern_upload(k, x, host, (size_t)(most * s->k) * 2, &e), &e);
    c->force_path = path;
    for (int i = 0; i < n_rows; i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        need(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
             "capture");
        for (int j = 0; j < n; j++) {
            struct linear_args a = {};
            a.n_tok = rows[i];
            a.x = x;
            a.x_stride = s->k;
            a.n_parts = 1;
            a.part[0].w = &w[j].base;
            a.part[0].out = (float *)out;
            a.part[0].out_stride = s->rows;
            need_ok(kern_linear(k, &a, &e), &e);
        }
        need(cudaStreamEndCapture(c->stream, &graph) == cudaSuccess, "capture");
        need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
        double us = time_graph(k, exec, n);
        printf("%6lld x %5lld %2d bits %s %4d rows path %d: %8.2f us %7.1f GB/s %7.1f TFLOP/s\n",
               (long long)s->rows, (long long)s->k, s->bits, s->mode ? s->mode : "-", rows[i], path,
               us, (double)bytes / us * 1e-3,
               2.0 * (double)s->rows * (double)s->k * rows[i] / us * 1e-6);
        fflush(stdout);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
    c->force_path = 0;
    for (int i = 0; i < n; i++)
        kern_free(k, w[i].data);
    kern_free(k, x);
    kern_free(k, out);
    kern_weight_free(k, first);
    free(w);
    free(host);
}

/* ---- the linear layers of an 8B model, one after the other --------------------------------------
 */
#define LAYERS 32
#define CHAIN  5 /* qkv, o, gate and up, down; head */

struct chain {
    struct kern *k;
    int keys; /* 0: no attention and no reduction of the logits */
    const char *omit;
    struct kern_rows rows;
    uint8_t *kv;
    float *cos_sin;
    void *q;
    uint8_t *reduced;
    struct cuda_weight w[LAYERS][CHAIN];
    float *h, *wide, *weight;
    void *act, *gated; /* inputs of products; of the last one of a layer */
    size_t bytes;
};

#define CHAIN_ROWS  64
#define CHAIN_HEADS 32
#define CHAIN_KV    8
#define CHAIN_DIM   128

/* Positions and pages of 64 sequences, and what attention needs besides. */
static void chain_sequences(struct chain *c, int keys)
{
    struct err e = {};
    int pages = (keys + KERN_PAGE - 1) / KERN_PAGE;
    size_t page = kern_page_bytes(c->k, CHAIN_KV, CHAIN_DIM);
    int32_t *host = (int32_t *)calloc((size_t)CHAIN_ROWS * (size_t)(pages + 3), sizeof *host), *dev;
    for (int i = 0; i < CHAIN_ROWS; i++) {
        host[CHAIN_ROWS + i] = keys - 1;
        host[2 * CHAIN_ROWS + i] = i;
        for (int j = 0; j < pages; j++)
            host[3 * CHAIN_ROWS + i * pages + j] = i * pages + j;
    }
    size_t bytes = (size_t)CHAIN_ROWS * (size_t)(pages + 3) * sizeof *host;
    need_ok(kern_alloc(c->k, bytes, (void **)&dev, &e), &e);
    need_ok(kern_upload(c->k, dev, host, bytes, &e), &e);
    c->keys = keys;
    c->rows.id = dev;
    c->rows.pos = dev + CHAIN_ROWS;
    c->rows.seq = dev + 2 * CHAIN_ROWS;
    c->rows.pages = dev + 3 * CHAIN_ROWS;
    c->rows.pages_max = pages;
    c->rows.keys_max = keys;
    need_ok(kern_alloc(c->k, page * (size_t)pages * CHAIN_ROWS * LAYERS, (void **)&c->kv, &e), &e);
    need_ok(kern_alloc(c->k, (size_t)keys * CHAIN_DIM * 4, (void **)&c->cos_sin, &e), &e);
    need_ok(kern_alloc(c->k, CHAIN_ROWS * 4096 * 2, &c->q, &e), &e);
    need_ok(kern_alloc(c->k, CHAIN_ROWS * 64, (void **)&c->reduced, &e), &e);
    free(host);
}

static void chain_attend(struct chain *c, int n, int layer)
{
    struct err e = {};
    struct kern_rows rows = c->rows;
    uint8_t *kv = c->kv + kern_page_bytes(c->k, CHAIN_KV, CHAIN_DIM) * (size_t)rows.pages_max *
                              CHAIN_ROWS * (size_t)layer;
    struct rope_kv_args r = {};
    struct attention_args a = {};
    rows.n_tok = rows.n_seq = n;
    r.rows = &rows;
    r.n_head = CHAIN_HEADS;
    r.n_kv = CHAIN_KV;
    r.head_dim = r.rot_dim = CHAIN_DIM;
    r.q = c->wide;
    r.k = c->wide + CHAIN_HEADS * CHAIN_DIM;
    r.v = r.k + CHAIN_KV * CHAIN_DIM;
    r.stride = 6144;
    r.cos_sin = c->cos_sin;
    r.q_out = c->q;
    r.kv = kv;
    if (!strchr(c->omit, 'r'))
        a.rope = &r;
    a.rows = &rows;
    a.n_head = CHAIN_HEADS;
    a.n_kv = CHAIN_KV;
    a.head_dim = CHAIN_DIM;
    a.q = c->q;
    a.kv = kv;
    a.scale = 0.088f;
    a.out = c->act;
    if (!strchr(c->omit, 'a'))
        need_ok(kern_attention(c->k, &a, &e), &e);
}

static void chain_reduce(struct chain *c, int n)
{
    struct err e = {};
    struct logits_args a = {};
    a.n = n;
    a.n_vocab = 128256;
    a.logits = c->wide;
    a.k = 2;
    a.hash = (uint64_t *)(void *)c->reduced;
    a.top_id = (int32_t *)(void *)(c->reduced + 8 * CHAIN_ROWS);
    a.top = (float *)(void *)(c->reduced + 16 * CHAIN_ROWS);
    a.lse = (float *)(void *)(c->reduced + 24 * CHAIN_ROWS);
    need_ok(kern_logits(c->k, &a, &e), &e);
}

static void chain_open(struct chain *c, struct kern *k, int keys, const char *omit, int bits)
{
    static const int64_t shapes[CHAIN][2] = {
        {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}};
    struct err e = {};
    c->k = k;
    c->omit = omit;
    for (int i = 0; i < CHAIN; i++) {
        struct ckpt_weight source = make_weight(shapes[i][0], shapes[i][1], bits, NULL);
        const struct ckpt_weight *part = &source;
        struct kern_weight *first;
        need_ok(kern_weight_load(k, &part, 1, &first, &e), &e);
        for (int l = 0; l < (i == CHAIN - 1 ? 1 : LAYERS); l++) {
            void *p;
            need_ok(kern_alloc(k, first->bytes, &p, &e), &e);
            c->w[l][i] = *cuda_weight_of(first);
            c->w[l][i].data = (uint8_t *)p;
            cudaMemcpyAsync(p, cuda_weight_of(first)->data, first->bytes, cudaMemcpyDeviceToDevice,
                            cuda_of(k)->stream);
            c->bytes += first->bytes;
        }
    }
    need_ok(kern_alloc(k, 64 * 4096 * 4, (void **)&c->h, &e), &e);
    need_ok(kern_alloc(k, (size_t)64 * 128256 * 4, (void **)&c->wide, &e), &e);
    need_ok(kern_alloc(k, 4096 * 4, (void **)&c->weight, &e), &e);
    need_ok(kern_alloc(k, 64 * 14336 * 2, &c->act, &e), &e);
    need_ok(kern_alloc(k, 64 * 14336 * 2, &c->gated, &e), &e);
    struct kern_limits limits = {};
    limits.n_tok = limits.n_seq = CHAIN_ROWS;
    limits.n_head = CHAIN_HEADS;
    limits.head_dim = CHAIN_DIM;
    limits.pages_max = MAX2((keys + KERN_PAGE - 1) / KERN_PAGE, 1);
    limits.k_max = 14336;
    limits.rows_max = 128256;
    need_ok(kern_reserve(k, &limits, &e), &e);
    if (keys)
        chain_sequences(c, keys);
}

static bool chain_has(const struct chain *c, char part)
{
    return !strchr(c->omit, part);
}

static void chain_norm(struct chain *c, int n, bool add)
{
    struct rms_norm_args a = {};
    struct err e = {};
    if (!chain_has(c, 'n'))
        return;
    a.n_rows = n;
    a.inner = 1;
    a.stride = a.out_stride = a.d = 4096;
    a.h = c->h;
    a.add = add ? c->wide : NULL;
    a.w = c->weight;
    a.eps = 1e-5f;
    a.out = c->act;
    need_ok(kern_rms_norm(c->k, &a, &e), &e);
}

static void chain_linear(struct chain *c, int n, int layer, int which)
{
    struct linear_args a = {};
    struct err e = {};
    a.n_tok = n;
    a.x = which == 3 ? c->gated : c->act;
    a.x_stride = c->w[layer][which].base.k;
    a.n_parts = 1;
    a.part[0].w = &c->w[layer][which].base;
    a.part[0].out = c->wide;
    a.part[0].out_stride = c->w[layer][which].base.rows;
    need_ok(kern_linear(c->k, &a, &e), &e);
}

/* Gate and up as the parts of one product. */
static void chain_gate_up(struct chain *c, int n, int layer)
{
    struct linear_args a = {};
    struct cuda_weight half[2] = {c->w[layer][2], c->w[layer][2]};
    struct err e = {};
    a.n_tok = n;
    a.x = c->act;
    a.x_stride = 4096;
    a.n_parts = 2;
    for (int i = 0; i < 2; i++) {
        half[i].base.rows = 14336;
        half[i].n_tiles /= 2;
        half[i].data += (size_t)(half[i].n_tiles * i) * half[i].tile_bytes;
        a.part[i].w = &half[i].base;
        a.part[i].out = c->wide + 14336 * i;
        a.part[i].out_stride = 28672;
    }
    a.gate.act = ACT_SILU;
    if (chain_has(c, 'g'))
        a.gate.out = c->gated;
    need_ok(kern_linear(c->k, &a, &e), &e);
}

static void chain_run(struct chain *c, int n)
{
    for (int l = 0; l < LAYERS; l++) {
        chain_norm(c, n, l > 0);
        chain_linear(c, n, l, 0);
        if (c->keys)
            chain_attend(c, n, l);
        chain_linear(c, n, l, 1);
        chain_norm(c, n, true);
        chain_gate_up(c, n, l);
        chain_linear(c, n, l, 3);
    }
    chain_norm(c, n, true);
    chain_linear(c, n, 0, 4);
    if (c->keys && chain_has(c, 't'))
        chain_reduce(c, n);
}

static void bench_chain(struct kern *k, int keys, const char *omit, int bits)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64};
    static struct chain c;
    chain_open(&c, k, keys, omit, bits);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        need(cudaStreamBeginCapture(cuda_of(k)->stream, cudaStreamCaptureModeThreadLocal) ==
                 cudaSuccess,
             "capture");
        chain_run(&c, rows[i]);
        need(cudaStreamEndCapture(cuda_of(k)->stream, &graph) == cudaSuccess, "capture");
        need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
        double us = time_graph(k, exec, 1);
        printf("8B %s, %2d rows: %8.1f us %7.1f GB/s of weights %8.0f rows/s\n",
               keys ? "decode step" : "linear layers, norms and activations", rows[i], us,
               (double)c.bytes / us * 1e-3, rows[i] / us * 1e6);
        fflush(stdout);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    }
}

/* ---- the products of all layers, by many rows ---------------------------------------------------
 */
static void bench_pass(struct kern *k, const int *rows, int n_rows)
{
    static struct chain c;
    struct kern_limits limits = {};
    struct err e = {};
    int most = 0;
    chain_open(&c, k, 0, "", 4);
    for (int i = 0; i < n_rows; i++)
        most = MAX2(most, rows[i]);
    limits.n_tok = most;
    limits.n_seq = limits.pages_max = limits.n_head = 1;
    limits.head_dim = 64;
    limits.k_max = 14336;
    limits.rows_max = 28672;
    need_ok(kern_reserve(k, &limits, &e), &e);
    need_ok(kern_alloc(k, (size_t)most * 28672 * 4, (void **)&c.wide, &e), &e);
    need_ok(kern_alloc(k, (size_t)most * 14336 * 2, &c.act, &e), &e);
    uint16_t *host = (uint16_t *)malloc((size_t)most * 14336 * 2);
    fill(host, (size_t)most * 14336 * 2, 0xbf7fbf7fu);
    need_ok(kern_upload(k, c.act, host, (size_t)most * 14336 * 2, &e), &e);
    c.gated = c.act;
    for (int i = 0; i < n_rows; i++) {
        double us[CHAIN] = {};
        for (int j = 0; j < CHAIN; j++) { /* each matrix by itself, then all */
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            need(cudaStreamBeginCapture(cuda_of(k)->stream, cudaStreamCaptureModeThreadLocal) ==
                     cudaSuccess,
                 "capture");
            for (int l = 0; l < LAYERS * (CHAIN - 1); l++)
                if (j == CHAIN - 1 || l % (CHAIN - 1) == j)
                    chain_linear(&c, rows[i], l / (CHAIN - 1), l % (CHAIN - 1));
            need(cudaStreamEndCapture(cuda_of(k)->stream, &graph) == cudaSuccess, "capture");
            need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
            us[j] = time_graph(k, exec, j == CHAIN - 1 ? 1 : LAYERS);
            cudaGraphExecDestroy(exec);
            cudaGraphDestroy(graph);
        }
        printf("%4d rows: us %7.1f %7.1f %7.1f %7.1f, all layers %8.2f ms %6.1f TFLOP/s\n", rows[i],
               us[0], us[1], us[2], us[3], us[4] * 1e-3,
               2.0 * 32 * 218103808 * rows[i] / us[4] * 1e-6);
        fflush(stdout);
    }
    free(host);
}

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

static void bench_read(struct kern *k)
{
    struct err e = {};
    size_t bytes = (size_t)4 << 30;
    void *p;
    cudaEvent_t from, to;
    need_ok(kern_alloc(k, bytes, &p, &e), &e);
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    float best = 1e9f;
    for (int i = 0; i < 6; i++) {
        float ms = 0;
        cudaEventRecord(from, cuda_of(k)->stream);
        read_all<<<132 * 16, 256, 0, cuda_of(k)->stream>>>((const uint4 *)p, bytes / 16,
                                                           (uint32_t *)p);
        cudaEventRecord(to, cuda_of(k)->stream);
        need(cudaEventSynchronize(to) == cudaSuccess, "reading failed");
        cudaEventElapsedTime(&ms, from, to);
        best = ms < best ? ms : best;
    }
    printf("read limit: %.0f GB/s\n", (double)bytes / best * 1e-6);
    kern_free(k, p);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {{6144, 4096, 4, NULL},     {4096, 4096, 4, NULL},
                                          {28672, 4096, 4, NULL},    {4096, 14336, 4, NULL},
                                          {128256, 4096, 4, NULL},   {28672, 4096, 8, NULL},
                                          {4096, 4096, 16, NULL},    {28672, 4096, 4, "mxfp4"},
                                          {28672, 4096, 8, "mxfp8"}, {28672, 4096, 4, "nvfp4"}};
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
    static const int pass_rows[] = {32, 64, 128, 512, 2048, 4096};
    struct kern_options o = {};
    struct kern *k;
    struct err e = {};
    int path = argc > 1 ? atoi(argv[1]) : 0, first = argc > 2 ? atoi(argv[2]) : 0;
    int n = argc > 3 ? atoi(argv[3]) : 10;
    o.device = "cuda:0";
    o.arith = KERN_MMA90;
    need_ok(kern_open(&k, &o, &e), &e);
    bench_read(k);
    if (path == -3) {
        bench_pass(k, pass_rows, argc > 2 ? atoi(argv[2]) : (int)ARRAY_LEN(pass_rows));
        kern_close(k);
        return 0;
    }
    if (path < 0) {
        bench_chain(k,
                    path == -1 ? 0
                    : argc > 2 ? atoi(argv[2])
                               : 1024,
                    argc > 3 ? argv[3] : "", argc > 4 ? atoi(argv[4]) : 4);
        kern_close(k);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(shapes) && (argc <= 4 || (int)i < atoi(argv[4])); i++)
        bench_shape(k, &shapes[i], rows + first, n - first, path);
    kern_close(k);
    return 0;
}
