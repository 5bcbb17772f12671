/* cuda_rope.cu: rotates queries and keys, rounds them and the values to bf16, and writes the pages.
 *
 * A block is one head of one row: query heads, then K and V of each kv head; a thread takes whole
 * pairs. Rows of a step have different positions, so no two blocks write one element. Dims beyond
 * head_dim are never written: pages are zero when they are taken.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_page.h"
#include "kernels/elem.h"

#define BLOCK 64

/* Where a head's bf16 values go: a row of q_out, or a key's row in a page. */
struct target {
    uint16_t *base;
    int dims, key; /* dims 0: plain */
};

__device__ static void put(const struct target &to, int dim, float v)
{
    int at = to.dims ? cuda_page_at(to.dims, to.key, dim) : dim;
    to.base[at] = bf16_from_f32(v);
}

__global__ static void __launch_bounds__(BLOCK)
    rope_heads(struct rope_kv_args a, struct kern_rows rows)
{
    int head = (int)blockIdx.x, t = (int)blockIdx.y, pos = rows.pos[t];
    int half = a.rot_dim / 2, dims = cuda_page_dims(a.head_dim);
    const float *cos_sin = a.cos_sin + (int64_t)pos * a.rot_dim, *x;
    struct target to = {(uint16_t *)a.q_out, 0, 0};
    bool value = head >= a.n_head + a.n_kv;
    launch_wait();
    launch_trigger();
    if (head < a.n_head) {
        x = a.q + t * a.stride + (int64_t)head * a.head_dim;
        to.base += ((int64_t)t * a.n_head + head) * a.head_dim;
    } else {
        int kv = (head - a.n_head) % a.n_kv;
        int64_t page = cuda_page(rows, t, pos), size = cuda_page_half(dims);
        x = (value ? a.v : a.k) + t * a.stride + (int64_t)kv * a.head_dim;
        to.base = (uint16_t *)a.kv + ((page * a.n_kv + kv) * 2 + (value ? 1 : 0)) * size;
        to.dims = dims;
        to.key = pos % KERN_PAGE;
    }
    int rotated = value ? 0 : a.rot_dim;
    for (int i = (int)threadIdx.x; i < rotated / 2; i += BLOCK) {
        float p = x[i], q = x[half + i], c = cos_sin[i], s = cos_sin[half + i];
        put(to, i, elem_rope_first(p, q, c, s));
        put(to, half + i, elem_rope_second(p, q, c, s));
    }
    for (int i = rotated + (int)threadIdx.x; i < a.head_dim; i += BLOCK)
        put(to, i, x[i]);
}

/* Planted: 3 bits of significand, as on the CPU (cpu_shared.c). */
__global__ static void plant_rows(float *x, int64_t stride, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += BLOCK)
        x[blockIdx.x * stride + i] =
            elem_float(elem_bits(x[blockIdx.x * stride + i]) & 0xfff00000u);
}

extern "C" void cuda_plant_kv8(const struct cuda_kern *c, const struct rope_kv_args *a)
{
    const float *x[] = {a->k, a->v};
    for (int i = 0; i < 2 && a->n_kv && kern_planted() == KERN_FAULT_KV8; i++)
        plant_rows<<<(unsigned)a->rows->n_tok, BLOCK, 0, c->stream>>>(
            (float *)(uintptr_t)x[i], a->stride, a->n_kv * a->head_dim);
}

extern "C" enum err_code cuda_rope_kv(struct kern *k, const struct rope_kv_args *a, struct err *e)
{
    int n = a->rows->n_tok;
    if (n == 0)
        return ERR_OK;
    cuda_plant_kv8(cuda_of(k), a);
    dim3 grid((unsigned)(a->n_head + 2 * a->n_kv), (unsigned)n);
    launch_early(rope_heads, grid, BLOCK, 0, cuda_of(k)->stream, *a, *a->rows);
    return cuda_launched("rope_kv", e);
}
