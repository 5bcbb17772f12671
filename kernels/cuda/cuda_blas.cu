/* cuda_blas.cu: the linear layers of an 8B model against cuBLAS, in turns, in one run.
 *
 * cuBLAS is looked for when it is asked for, by bench alone: no product of assay comes from it. It
 * has the same matrices in bf16 and gives bf16; ours are 4 bits in groups of 64 and give f32. Each
 * side walks all 32 layers, so that no weight is in a cache when its turn comes.
 */
#include "kernels/cuda/cuda_measure.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include "kernels/cuda/cuda_weight.h"

#define LAYERS     32
#define BLAS_SPACE ((size_t)64 << 20) /* its workspace: it may not allocate while recorded */

/* What is used of cuBLAS, in its numbers. */
#define BLAS_NO        0
#define BLAS_TRANSPOSE 1
#define BLAS_BF16      14
#define BLAS_F32       68 /* compute */
#define BLAS_DEFAULT   (-1)

struct blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, cudaStream_t);
    int (*set_workspace)(void *, void *, size_t);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
};

static enum err_code find_blas(struct blas *b, struct err *e)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    const struct {
        void **to;
        const char *name;
    } wanted[] = {{(void **)&b->create, "cublasCreate_v2"},
                  {(void **)&b->destroy, "cublasDestroy_v2"},
                  {(void **)&b->set_stream, "cublasSetStream_v2"},
                  {(void **)&b->set_workspace, "cublasSetWorkspace_v2"},
                  {(void **)&b->gemm, "cublasGemmEx"}};
    for (size_t i = 0; i < ARRAY_LEN(names) && !b->library; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->library)
        return err_set(e, ERR_DEVICE,
                       "no cuBLAS to compare with: neither %s nor %s can be opened "
                       "(LD_LIBRARY_PATH says where to look)",
                       names[0], names[1]);
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        *wanted[i].to = dlsym(b->library, wanted[i].name);
        if (!*wanted[i].to)
            return err_set(e, ERR_DEVICE, "cuBLAS has no %s", wanted[i].name);
    }
    return ERR_OK;
}

static enum err_code checked(int status, const char *doing, struct err *e)
{
    return status == 0 ? ERR_OK : err_set(e, ERR_DEVICE, "cuBLAS: %s: status %d", doing, status);
}

/* ---- both sides ---------------------------------------------------------------------------------
 */
/* Matrices of a layer: q, k, v; o; gate, up; down. cuBLAS takes those of one input as one. */
static const struct {
    int64_t rows, k;
    int first, parts;
} kinds[] = {{6144, 4096, 0, 3}, {4096, 4096, 3, 1}, {28672, 4096, 4, 2}, {4096, 14336, 6, 1}};
static const int64_t part_rows[] = {4096, 1024, 1024, 4096, 14336, 14336, 4096};
#define KINDS ARRAY_LEN(kinds)
#define PARTS ARRAY_LEN(part_rows)

struct pass {
    struct blas blas;
    int n_tok;
    struct kern_weight *w[PARTS][LAYERS];
    void *dense; /* bf16 of all layers */
    void *x, *out, *out_dense, *space;
};

static enum err_code run_ours(void *ctx, struct kern *k, struct err *e)
{
    struct pass *p = (struct pass *)ctx;
    enum err_code rc = ERR_OK;
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < KINDS && rc == ERR_OK; i++) {
            struct linear_args a = {};
            int64_t at = 0;
            a.n_tok = p->n_tok;
            a.x = p->x;
            a.x_stride = kinds[i].k;
            a.n_parts = kinds[i].parts;
            for (int j = 0; j < kinds[i].parts; j++) {
                a.part[j].w = p->w[kinds[i].first + j][layer];
                a.part[j].out = (float *)p->out + at;
                a.part[j].out_stride = kinds[i].rows;
                at += part_rows[kinds[i].first + j];
            }
            rc = kern_linear(k, &a, e);
        }
    return rc;
}

static enum err_code run_blas(void *ctx, struct kern *k, struct err *e)
{
    struct pass *p = (struct pass *)ctx;
    const float one = 1, zero = 0;
    const uint16_t *w = (const uint16_t *)p->dense;
    enum err_code rc = checked(p->blas.set_stream(p->blas.handle, cuda_of(k)->stream), "stream", e);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < KINDS && rc == ERR_OK; i++) {
            int rows = (int)kinds[i].rows, n = (int)kinds[i].k;
            rc = checked(p->blas.gemm(p->blas.handle, BLAS_TRANSPOSE, BLAS_NO, rows, p->n_tok, n,
                                      &one, w, BLAS_BF16, n, p->x, BLAS_BF16, n, &zero,
                                      p->out_dense, BLAS_BF16, rows, BLAS_F32, BLAS_DEFAULT),
                         "product", e);
            w += kinds[i].rows * kinds[i].k;
        }
    return rc;
}

/* Numbers like those of weights: small, of both signs. */
__global__ static void fill_dense(uint32_t *w, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t v = (uint32_t)i * 2654435761u;
        v ^= v >> 15;
        w[i] = (v & 0x807f807fu) | 0x3c003c00u;
    }
}

static enum err_code open_pass(struct measure *m, struct pass *p, int most, struct err *e)
{
    struct cuda_kern *c = cuda_of(m->k);
    struct kern_limits l = {};
    int64_t all = 0;
    enum err_code rc = find_blas(&p->blas, e);
    for (size_t i = 0; i < KINDS; i++)
        all += kinds[i].rows * kinds[i].k * LAYERS;
    for (size_t i = 0; i < PARTS && rc == ERR_OK; i++)
        rc = measure_weights(m, part_rows[i], i == PARTS - 1 ? 14336 : 4096, 4, LAYERS, p->w[i], e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)all * 2, 0, &p->dense, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)most * 14336 * 2, 0, &p->x, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)most * 28672 * 4, 0, &p->out, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, (size_t)most * 28672 * 2, 0, &p->out_dense, e);
    if (rc == ERR_OK)
        rc = measure_alloc(m, BLAS_SPACE, 0, &p->space, e);
    if (rc != ERR_OK)
        return rc;
    fill_dense<<<4096, 256, 0, c->stream>>>((uint32_t *)p->dense, (size_t)all / 2);
    fill_dense<<<256, 256, 0, c->stream>>>((uint32_t *)p->x, (size_t)most * 14336 / 2);
    rc = cuda_launched("filling matrices", e);
    l.n_tok = most;
    l.n_seq = 1;
    l.pages_max = 1;
    l.n_head = 1;
    l.head_dim = 64;
    l.k_max = 14336;
    l.rows_max = 28672;
    if (rc == ERR_OK)
        rc = kern_reserve(m->k, &l, e);
    if (rc == ERR_OK)
        rc = checked(p->blas.create(&p->blas.handle), "opening", e);
    if (rc == ERR_OK)
        rc = checked(p->blas.set_workspace(p->blas.handle, p->space, BLAS_SPACE), "workspace", e);
    return rc;
}

extern "C" enum err_code cuda_blas_run(struct kern *k, int rounds, const volatile int *interrupted,
                                       json_t *out, struct err *e)
{
    static const int rows[] = {64, 512, 2048, 4096};
    static struct pass p;
    struct measure m;
    json_t *list = json_array();
    p = (struct pass){};
    enum err_code rc = measure_open(&m, k, rounds, interrupted, e);
    if (rc == ERR_OK)
        rc = open_pass(&m, &p, rows[ARRAY_LEN(rows) - 1], e);
    for (size_t i = 0; i < ARRAY_LEN(rows) && rc == ERR_OK; i++) {
        struct measure_arm arm[2] = {{run_ours, &p, 0}, {run_blas, &p, 0}};
        double null = 0, flop = 0;
        p.n_tok = rows[i];
        rc = measure_arms(&m, arm, 2, &null, e);
        for (size_t j = 0; j < KINDS; j++)
            flop += 2.0 * LAYERS * rows[i] * (double)(kinds[j].rows * kinds[j].k);
        if (rc == ERR_OK)
            json_array_append_new(
                list,
                json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "rows", rows[i], "seconds",
                          arm[0].seconds, "flop_per_s", flop / arm[0].seconds, "blas_seconds",
                          arm[1].seconds, "blas_flop_per_s", flop / arm[1].seconds, "ratio",
                          arm[1].seconds / arm[0].seconds, "null_ratio", null / arm[0].seconds));
    }
    json_object_set_new(out, "linear_pass", list);
    if (p.blas.handle)
        (void)p.blas.destroy(p.blas.handle);
    for (size_t i = 0; i < PARTS; i++)
        measure_weights_free(k, p.w[i], LAYERS);
    measure_close(&m);
    return rc;
}
