/* cuda_rows.cu: the operations that go over rows one by one: norm, activation, add, scales of
 * experts, gather, hash.
 *
 * Norm: a row's sum of squares goes through the 256 lanes of elem.h, whatever computes it: rows of
 * up to 256 elements take a warp (lane j, j + 32, ... of the tree in one thread), longer ones a
 * block of 256 threads, a thread a lane. Both add lane j + n to lane j for n = 128 ... 1. The
 * others compute each element by itself; a hash is a wrapping sum, equal in any order. All are
 * bound by their bytes or by their launch.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "common/hash.h"
#include "kernels/cuda/cuda_dawdle.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/elem.h"

#define BLOCK      256
#define WARPS      (BLOCK / 32)
#define WARP_LANES (ELEM_NORM_LANES / 32)

static unsigned blocks_for(int64_t n, int64_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

/* Every kernel here starts early; before the wait only a norm's weight is read. */
__device__ static void begin(void)
{
    launch_wait();
    launch_trigger();
}

/* ---- norm ---------------------------------------------------------------------------------------
 */
/* Elements first, first + step, ... of a row, +0 beyond its end: all loads stand before the first
 * store, since the compiler may not move one over the other. */
template <int N>
__device__ static void load_row(const struct rms_norm_args &a, int64_t in, int first, int step,
                                float (&h)[N])
{
    float more[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        h[n] = first + step * n < a.d ? a.h[in + first + step * n] : 0.0f;
    if (!a.add)
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
        more[n] = first + step * n < a.d ? a.add[in + first + step * n] : 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++) {
        h[n] += more[n];
        if (first + step * n < a.d)
            a.h[in + first + step * n] = h[n];
    }
}

template <int N>
__device__ static void load_weight(const struct rms_norm_args &a, int first, int step,
                                   float (&w)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        w[n] = first + step * n < a.d ? a.w[first + step * n] : 0.0f;
}

template <int N>
__device__ static void store_row(const struct rms_norm_args &a, int64_t out, int first, int step,
                                 float factor, const float (&w)[N], const float (&h)[N])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        int64_t i = first + step * n;
        float y = elem_norm(h[n], factor, w[n], a.plus_one);
        if (i >= a.d)
            break;
        if (a.out_f32)
            ((float *)a.out)[out + i] = y;
        else
            ((uint16_t *)a.out)[out + i] = bf16_from_f32(y);
    }
}

__device__ static float warp_tree(float v)
{
    for (int n = 16; n >= 1; n /= 2)
        v += __shfl_down_sync(0xffffffffu, v, (unsigned)n);
    return v;
}

/* Planted: so long, or where it is negative as long as the clock says. */
__device__ static void delay(int ns)
{
    for (; ns > 0; ns -= 1000)
        __nanosleep(1000);
    if (ns < 0)
        cuda_dawdle(8191);
}

/* One warp a row of at most 256 elements. */
__global__ static void __launch_bounds__(BLOCK) norm_short(struct rms_norm_args a, int delay_ns)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32;
    float h[WARP_LANES], w[WARP_LANES], sum[WARP_LANES];
    load_weight(a, lane, 32, w);
    begin();
    delay(delay_ns);
    if (r >= a.n_rows)
        return;
    int64_t in = r / a.inner * a.stride + r % a.inner * a.d;
    int64_t out = r / a.inner * a.out_stride + r % a.inner * a.d;
    load_row(a, in, lane, 32, h);
#pragma unroll
    for (int j = 0; j < WARP_LANES; j++)
        sum[j] = fmaf(h[j], h[j], 0.0f);
#pragma unroll
    for (int n = WARP_LANES / 2; n >= 1; n /= 2)
#pragma unroll
        for (int j = 0; j < n; j++)
            sum[j] += sum[j + n];
    float all = __shfl_sync(0xffffffffu, warp_tree(sum[0]), 0);
    store_row(a, out, lane, 32, elem_norm_factor(all, (float)a.d, a.eps), w, h);
}

#define HELD 16 /* elements of a row that a thread loads at once, and of the first it keeps */

/* One block a row, in runs of BLOCK * HELD elements. */
__global__ static void __launch_bounds__(BLOCK) norm_long(struct rms_norm_args a, int delay_ns)
{
    __shared__ float lanes[BLOCK];
    __shared__ float factor_shared;
    int64_t r = blockIdx.x;
    int j = (int)threadIdx.x;
    float w[HELD];
    load_weight(a, j, BLOCK, w);
    begin();
    delay(delay_ns);
    int64_t in = r / a.inner * a.stride + r % a.inner * a.d;
    int64_t out = r / a.inner * a.out_stride + r % a.inner * a.d;
    float held[HELD], later[HELD], sum = 0.0f;
    load_row(a, in, j, BLOCK, held);
#pragma unroll
    for (int n = 0; n < HELD; n++)
        sum = fmaf(held[n], held[n], sum);
    for (int i = j + BLOCK * HELD; i < a.d; i += BLOCK * HELD) {
        load_row(a, in, i, BLOCK, later);
#pragma unroll
        for (int n = 0; n < HELD; n++)
            sum = fmaf(later[n], later[n], sum);
    }
    lanes[j] = sum;
    __syncthreads();
    if (j < 32) {
        float v[WARP_LANES];
#pragma unroll
        for (int n = 0; n < WARP_LANES; n++)
            v[n] = lanes[j + 32 * n];
#pragma unroll
        for (int n = WARP_LANES / 2; n >= 1; n /= 2)
#pragma unroll
            for (int i = 0; i < n; i++)
                v[i] += v[i + n];
        float all = warp_tree(v[0]);
        if (j == 0)
            factor_shared = elem_norm_factor(all, (float)a.d, a.eps);
    }
    __syncthreads();
    store_row(a, out, j, BLOCK, factor_shared, w, held);
    a.add = NULL; /* h holds the sums */
    for (int i = j + BLOCK * HELD; i < a.d; i += BLOCK * HELD) {
        load_row(a, in, i, BLOCK, later);
        load_weight(a, i, BLOCK, w);
        store_row(a, out, i, BLOCK, factor_shared, w, later);
    }
}

extern "C" enum err_code cuda_rms_norm(struct kern *k, const struct rms_norm_args *a, struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    const int delay_ns = kern_planted() == KERN_FAULT_EARLY ? -1 : c->plant_delay_ns;
    if (a->n_rows == 0)
        return ERR_OK;
    if (a->d <= ELEM_NORM_LANES)
        launch_early(norm_short, blocks_for(a->n_rows, WARPS), BLOCK, 0, c->stream, *a, delay_ns);
    else
        launch_early(norm_long, dim3((unsigned)a->n_rows), BLOCK, 0, c->stream, *a, delay_ns);
    return cuda_launched("rms_norm", e);
}

/* ---- activation, add, gather --------------------------------------------------------------------
 */
#define ACT_WIDTH 4 /* elements of a thread, neighbours in a row */

__device__ static uint16_t act_element(const struct act_mul_args &a, float gate, float up,
                                       uint16_t before, bool stale)
{
    float y = cuda_gated(a.act, gate, up, a.limit, a.alpha);
    return stale && isnan(bf16_to_f32(before)) ? before : bf16_from_f32(y);
}

/* stale: planted, what was a NaN stays one. */
__global__ static void __launch_bounds__(BLOCK)
    act_mul_elements(const __grid_constant__ struct act_mul_args a, bool stale)
{
    begin();
    int64_t i = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * ACT_WIDTH;
    uint16_t *out = (uint16_t *)a.out + i;
    if (i >= a.n_rows * a.d)
        return;
    if (a.d % ACT_WIDTH == 0 && a.stride % ACT_WIDTH == 0 && (uintptr_t)a.gate % 16 == 0 &&
        (uintptr_t)a.up % 16 == 0 && (uintptr_t)a.out % 8 == 0) {
        int64_t in = i / a.d * a.stride + i % a.d;
        float4 g = *(const float4 *)(const void *)(a.gate + in);
        float4 u = *(const float4 *)(const void *)(a.up + in);
        ushort4 b = stale ? *(const ushort4 *)(const void *)out : make_ushort4(0, 0, 0, 0);
        *(ushort4 *)(void *)out = make_ushort4(
            act_element(a, g.x, u.x, b.x, stale), act_element(a, g.y, u.y, b.y, stale),
            act_element(a, g.z, u.z, b.z, stale), act_element(a, g.w, u.w, b.w, stale));
        return;
    }
    for (int64_t j = i; j < MIN2(i + ACT_WIDTH, a.n_rows * a.d); j++, out++) {
        int64_t in = j / a.d * a.stride + j % a.d;
        *out = act_element(a, a.gate[in], a.up[in], *out, stale);
    }
}

extern "C" enum err_code cuda_act_mul(struct kern *k, const struct act_mul_args *a, struct err *e)
{
    if (a->n_rows == 0)
        return ERR_OK;
    launch_early(act_mul_elements, blocks_for(a->n_rows * a->d, BLOCK * ACT_WIDTH), BLOCK, 0,
                 cuda_of(k)->stream, *a, kern_planted() == KERN_FAULT_STALE);
    return cuda_launched("act_mul", e);
}

__global__ static void __launch_bounds__(BLOCK) add_elements(struct add_args a)
{
    begin();
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.n)
        return;
    float v = a.h[i];
    if (a.x) {
        v += a.x[i];
        v = a.scale != 0 ? v * a.scale : v;
        a.h[i] = v;
    }
    if (a.out)
        ((uint16_t *)a.out)[i] = bf16_from_f32(v);
}

extern "C" enum err_code cuda_add(struct kern *k, const struct add_args *a, struct err *e)
{
    if (a->n == 0)
        return ERR_OK;
    launch_early(add_elements, blocks_for(a->n, BLOCK), BLOCK, 0, cuda_of(k)->stream, *a);
    return cuda_launched("add", e);
}

__global__ static void __launch_bounds__(BLOCK) scale_pairs(struct route_scale_args a)
{
    begin();
    int p = (int)blockIdx.x * BLOCK + (int)threadIdx.x;
    if (p < a.n_pairs)
        a.weight[p] *= a.scale[a.expert[p]];
}

extern "C" enum err_code cuda_route_scale(struct kern *k, const struct route_scale_args *a,
                                          struct err *e)
{
    if (a->n_pairs == 0)
        return ERR_OK;
    launch_early(scale_pairs, blocks_for(a->n_pairs, BLOCK), BLOCK, 0, cuda_of(k)->stream, *a);
    return cuda_launched("route_scale", e);
}

__global__ static void __launch_bounds__(BLOCK) gather_elements(struct gather_args a)
{
    begin();
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < a.n * a.d)
        a.out[i] = a.in[a.row[i / a.d] * a.d + i % a.d];
}

extern "C" enum err_code cuda_gather(struct kern *k, const struct gather_args *a, struct err *e)
{
    if (a->n == 0)
        return ERR_OK;
    launch_early(gather_elements, blocks_for(a->n * a->d, BLOCK), BLOCK, 0, cuda_of(k)->stream, *a);
    return cuda_launched("gather", e);
}

/* ---- hashes -------------------------------------------------------------------------------------
 */
/* after: planted, each row has the hash of the row so many after it. */
__global__ static void __launch_bounds__(BLOCK) hash_rows(struct row_hash_args a, unsigned after)
{
    __shared__ unsigned long long warp_sum[WARPS];
    int64_t at = (int64_t)((blockIdx.x + after) % gridDim.x) * a.stride;
    unsigned long long h = 0;
    for (int64_t i = threadIdx.x; i < a.d; i += BLOCK) {
        uint32_t bits = a.word_bytes == 4 ? elem_hash_bits32(((const uint32_t *)a.x)[at + i])
                                          : elem_hash_bits16(((const uint16_t *)a.x)[at + i]);
        h += hash_row_word((uint64_t)i, bits);
    }
    for (unsigned n = 16; n >= 1; n /= 2)
        h += __shfl_down_sync(0xffffffffu, h, n);
    if (threadIdx.x % 32 == 0)
        warp_sum[threadIdx.x / 32] = h;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++)
            h += warp_sum[w];
        a.hash[blockIdx.x] = h;
    }
}

extern "C" enum err_code cuda_row_hash(struct kern *k, const struct row_hash_args *a, struct err *e)
{
    if (a->n_rows == 0)
        return ERR_OK;
    hash_rows<<<(unsigned)a->n_rows, BLOCK, 0, cuda_of(k)->stream>>>(*a, kern_planted() ==
                                                                             KERN_FAULT_HASH);
    return cuda_launched("row_hash", e);
}
