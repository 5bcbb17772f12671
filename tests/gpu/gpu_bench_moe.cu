/* gpu_bench_moe.cu: time of the operations of a sparse layer by rows of the step, each by itself
 * and all in order: the experts of Qwen3-30B-A3B, 8 of 128 of 768 x 2048, 4 bits, groups of 64.
 *
 * A graph holds LAYERS launches of each, every one with other weights and other routes. Times are
 * of one layer: the median of replays.
 *
 *   gpu_bench_moe [PATH [FIRST [END]]]   rows number FIRST to END; PATH of cuda_product.h
 */
#include "tests/gpu/bench_rig.cuh"

#define LAYERS   6
#define EXPERTS  128
#define USED     8
#define D        2048
#define FF       768
#define ROWS_MAX 2048

struct moe {
    struct kern *k;
    struct cuda_weight gate[LAYERS], up[LAYERS], down[LAYERS];
    float *logits[LAYERS], *weight, *room, *y, *out;
    int32_t *expert, *order[LAYERS], *first[LAYERS];
    void *x, *act;
};

static void *device(struct moe *m, size_t bytes, const void *from)
{
    struct err e = {};
    void *p;
    need_ok(kern_alloc(m->k, bytes, &p, &e), &e);
    if (from)
        need_ok(kern_upload(m->k, p, from, bytes, &e), &e);
    return p;
}

/* LAYERS copies of one stack of experts. */
static void open_stack(struct moe *m, struct cuda_weight *w, int64_t rows, int64_t k)
{
    struct err e = {};
    struct ckpt_weight source = make_weight(rows * EXPERTS, k, 4, NULL);
    const struct ckpt_weight *part = &source;
    struct kern_weight *first;
    need_ok(kern_weight_load(m->k, &part, 1, &first, &e), &e);
    for (int l = 0; l < LAYERS; l++) {
        w[l] = *cuda_weight_of(first);
        w[l].data = (uint8_t *)device(m, first->bytes, NULL);
        cudaMemcpyAsync(w[l].data, cuda_weight_of(first)->data, first->bytes,
                        cudaMemcpyDeviceToDevice, cuda_of(m->k)->stream);
    }
}

static void open_moe(struct moe *m)
{
    struct err e = {};
    struct kern_limits limits = {};
    const size_t pairs = (size_t)ROWS_MAX * USED;
    uint32_t state = 7;
    open_stack(m, m->gate, FF, D);
    open_stack(m, m->up, FF, D);
    open_stack(m, m->down, D, FF);
    float *host = (float *)malloc((size_t)ROWS_MAX * EXPERTS * 4);
    for (int l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < (size_t)ROWS_MAX * EXPERTS; i++) {
            state = state * 1664525u + 1013904223u;
            host[i] = (float)(state >> 8) * 0x1p-22f;
        }
        m->logits[l] = (float *)device(m, (size_t)ROWS_MAX * EXPERTS * 4, host);
        m->order[l] = (int32_t *)device(m, pairs * 4, NULL);
        m->first[l] = (int32_t *)device(m, (EXPERTS + 1) * 4, NULL);
    }
    free(host);
    uint16_t *x = (uint16_t *)malloc(pairs * D * 2);
    fill(x, pairs * D * 2, 0xbf7fbf7fu);
    m->x = device(m, (size_t)ROWS_MAX * D * 2, x);
    m->act = device(m, pairs * FF * 2, x);
    free(x);
    m->expert = (int32_t *)device(m, pairs * 4, NULL);
    m->weight = (float *)device(m, pairs * 4, NULL);
    m->room = (float *)device(m, pairs * 2 * FF * 4, NULL);
    m->y = (float *)device(m, pairs * D * 4, NULL);
    m->out = (float *)device(m, (size_t)ROWS_MAX * D * 4, NULL);
    limits.n_tok = ROWS_MAX;
    limits.n_used = USED;
    limits.n_head = limits.n_seq = limits.pages_max = 1;
    limits.head_dim = 64;
    limits.k_max = limits.rows_max = D;
    need_ok(kern_reserve(m->k, &limits, &e), &e);
}

static struct route_args route_of(struct moe *m, int n, int l)
{
    struct route_args a = {};
    a.n_tok = n;
    a.n_expert = EXPERTS;
    a.n_used = USED;
    a.logits = m->logits[l];
    a.softmax_first = a.norm = true;
    a.expert = m->expert;
    a.weight = m->weight;
    a.order = m->order[l];
    a.first = m->first[l];
    return a;
}

static void route(struct moe *m, int n, int l)
{
    struct route_args a = route_of(m, n, l);
    struct err e = {};
    need_ok(kern_route(m->k, &a, &e), &e);
}

static void run_gated(struct moe *m, int n, int l, const struct route_args *r)
{
    struct expert_gated_args a = {};
    struct err e = {};
    a.route = r;
    a.n_pairs = n * USED;
    a.n_expert = EXPERTS;
    a.x_div = USED;
    a.order = m->order[l];
    a.first = m->first[l];
    a.x = m->x;
    a.gate = &m->gate[l].base;
    a.up = &m->up[l].base;
    a.rows = FF;
    a.act = ACT_SILU;
    a.room = m->room;
    a.out = m->act;
    need_ok(kern_expert_gated(m->k, &a, &e), &e);
}

static void gated(struct moe *m, int n, int l)
{
    run_gated(m, n, l, NULL);
}

static void routed(struct moe *m, int n, int l)
{
    struct route_args r = route_of(m, n, l);
    run_gated(m, n, l, &r);
}

static void down(struct moe *m, int n, int l)
{
    struct expert_linear_args a = {};
    struct err e = {};
    a.n_pairs = n * USED;
    a.n_expert = EXPERTS;
    a.x_div = 1;
    a.order = m->order[l];
    a.first = m->first[l];
    a.x = m->act;
    a.w = &m->down[l].base;
    a.out = m->y;
    a.rows = a.out_stride = D;
    need_ok(kern_expert_linear(m->k, &a, &e), &e);
}

static void combine(struct moe *m, int n, int l)
{
    struct combine_args a = {};
    struct err e = {};
    (void)l;
    a.n_tok = n;
    a.n_used = USED;
    a.d = D;
    a.y = m->y;
    a.weight = m->weight;
    a.out = m->out;
    need_ok(kern_combine(m->k, &a, &e), &e);
}

typedef void (*moe_op)(struct moe *, int, int);

static double time_ops(struct moe *m, int n, const moe_op *ops, int n_ops)
{
    cudaStream_t stream = cuda_of(m->k)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
         "capture");
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < n_ops; i++)
            ops[i](m, n, l);
    need(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "capture");
    need(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "graph");
    double us = time_graph(m->k, exec, LAYERS);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return us;
}

int main(int argc, char **argv)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048};
    static const moe_op all[] = {routed, down, combine}, single[] = {route, gated, down, combine};
    static struct moe m;
    struct kern_options o = {};
    struct err e = {};
    int path = argc > 1 ? atoi(argv[1]) : 0, first = argc > 2 ? atoi(argv[2]) : 0;
    int end = argc > 3 ? atoi(argv[3]) : (int)ARRAY_LEN(rows);
    o.device = "cuda:0";
    o.arith = KERN_MMA90;
    need_ok(kern_open(&m.k, &o, &e), &e);
    open_moe(&m);
    cuda_of(m.k)->force_path = path;
    for (int i = first; i < end; i++) {
        double us[4];
        for (int j = 0; j < 4; j++)
            us[j] = time_ops(&m, rows[i], single + j, 1);
        printf("%4d rows path %d: route %6.2f gated %7.2f down %7.2f combine %6.2f, all %8.2f us\n",
               rows[i], path, us[0], us[1], us[2], us[3], time_ops(&m, rows[i], all, 3));
        fflush(stdout);
    }
    kern_close(m.k);
    return 0;
}
