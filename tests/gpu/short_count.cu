/* short_count.cu: the short forms of cuda_attention_soften.cuh against elem.h for every float that
 * they take. For test_cuda_attention_many.c, which holds the counts to zero.
 *
 * A count is over the device's answers for all 2^32 patterns; -1: no answer.
 */
#include "tests/gpu/short_forms.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention_soften.cuh"

struct short_forms {
    enum short_form form;
    float cap, inverse;
};

__device__ static bool same(float x, float y)
{
    return x != x ? y != y : elem_bits(x) == elem_bits(y);
}

__device__ static bool differs(const struct short_forms &f, float x)
{
    if (f.form == SHORT_SOFTCAP)
        return !(elem_float(elem_bits(x) & 0x7fffffffu) < 0x1p-60f) &&
               !same(elem_softcap(x, f.cap), softcap_short(x, f.cap, f.inverse));
    if (x != x) /* an infinity, once rounded */
        return f.form != SHORT_EXP2_ABOVE && (frag_pack(exp2_short(x), 0.0f) & 0xffff) != 0x7f80;
    if (x <= 0.5f ? f.form == SHORT_EXP2_ABOVE : f.form != SHORT_EXP2_ABOVE)
        return false;
    float want = elem_exp2_p(x), got = exp2_short(x);
    return f.form == SHORT_EXP2_EXACT ? !same(want, got)
                                      : frag_pack(want, 0.0f) != frag_pack(got, 0.0f);
}

__global__ static void test_count(struct short_forms f, unsigned long long *n)
{
    unsigned long long found = 0;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (uint64_t)1 << 32;
         i += step)
        found += differs(f, elem_float((uint32_t)i));
    if (found)
        atomicAdd(n, found);
}

extern "C" int64_t short_forms_differ(enum short_form form, float cap, float inverse)
{
    const struct short_forms f = {form, cap, inverse};
    unsigned long long *n, found = 0;
    if (cudaMalloc((void **)&n, sizeof *n) != cudaSuccess)
        return -1;
    (void)cudaMemset(n, 0, sizeof *n);
    test_count<<<2048, 256>>>(f, n);
    cudaError_t rc = cudaMemcpy(&found, n, sizeof found, cudaMemcpyDeviceToHost);
    (void)cudaFree(n);
    return rc == cudaSuccess ? (int64_t)found : -1;
}
