/* bench_rig.cuh: what the timing programs of the CUDA backend share: random weights, and the time
 * of a recorded graph.
 */
#ifndef ASSAY_TESTS_GPU_BENCH_RIG_CUH
#define ASSAY_TESTS_GPU_BENCH_RIG_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_product.h"

#define REPLAYS 7

static void need(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench: %s\n", what);
        exit(1);
    }
}

static void need_ok(enum err_code rc, const struct err *e)
{
    need(rc == ERR_OK, e->text);
}

static void fill(void *p, size_t bytes, uint32_t mask)
{
    uint32_t state = 1, *w = (uint32_t *)p;
    for (size_t i = 0; i < bytes / 4; i++) {
        state = state * 1664525u + 1013904223u;
        w[i] = (state >> 3 ^ state << 7) & mask;
    }
}

/* A matrix of random codes with small scales, as a checkpoint holds it; stacked n times. mode: a
 * block float; NULL: affine, or dense. */
static __attribute__((unused)) struct ckpt_weight make_weight(int64_t rows, int64_t k, int bits,
                                                              const char *mode)
{
    struct ckpt_weight w = {};
    w.name = w.stored = "bench";
    w.n_dim = 2;
    w.dim[0] = rows;
    w.dim[1] = k;
    w.layer = -1;
    if (bits == CUDA_DENSE) {
        w.enc = CKPT_DENSE;
        w.dtype = DT_BF16;
        w.data = (uint8_t *)malloc((size_t)(rows * k) * 2);
        fill((void *)w.data, (size_t)(rows * k) * 2, 0xbf7fbf7fu);
        return w;
    }
    struct qformat q = {bits, 64, DT_BF16};
    bool block = mode != NULL;
    if (block)
        q = mode[0] == 'n' ? QFORMAT_NVFP4 : bits == 8 ? QFORMAT_MXFP8 : QFORMAT_MXFP4;
    size_t codes = qformat_row_bytes(q, k) * (size_t)rows, n = (size_t)(rows * (k / q.group));
    w.enc = block ? CKPT_MX : CKPT_AFFINE;
    w.q = q;
    w.data = (uint8_t *)malloc(codes);
    fill((void *)w.data, codes, block ? 0xefefefefu : 0xffffffffu); /* no e4m3 is a NaN */
    if (block) {
        uint8_t *bytes = (uint8_t *)malloc(n);
        memset(bytes, q.scale == DT_F8_E8M0 ? 120 : 0x20, n);
        w.scales = bytes;
        return w;
    }
    uint16_t *s = (uint16_t *)malloc(n * 2), *b = (uint16_t *)malloc(n * 2);
    for (size_t i = 0; i < n; i++) {
        s[i] = bf16_from_f32(0.3f / (float)(1 << bits));
        b[i] = bf16_from_f32(-0.25f);
    }
    w.scales = (uint8_t *)s;
    w.biases = (uint8_t *)b;
    return w;
}

static double time_graph(struct kern *k, cudaGraphExec_t graph, int launches)
{
    cudaStream_t stream = cuda_of(k)->stream;
    cudaEvent_t from, to;
    double us[REPLAYS];
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i < REPLAYS + 2; i++) {
        float ms = 0;
        cudaEventRecord(from, stream);
        cudaGraphLaunch(graph, stream);
        cudaEventRecord(to, stream);
        need(cudaEventSynchronize(to) == cudaSuccess, "a replay failed");
        cudaEventElapsedTime(&ms, from, to);
        if (i >= 2)
            us[i - 2] = (double)ms * 1e3 / launches;
    }
    for (int i = 0; i < REPLAYS; i++)
        for (int j = i + 1; j < REPLAYS; j++)
            if (us[j] < us[i]) {
                double t = us[i];
                us[i] = us[j];
                us[j] = t;
            }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return us[REPLAYS / 2];
}

#endif
