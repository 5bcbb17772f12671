/* cuda_dawdle.cuh: planted races: a wait of 0 to `cycles` (a power of two less one) as the clock of
 * the multiprocessor says when it begins, so that no two runs are alike and nothing counts them.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_DAWDLE_CUH
#define ASSAY_KERNELS_CUDA_CUDA_DAWDLE_CUH

__device__ static inline void cuda_dawdle(long long cycles)
{
    long long from = clock64();
    long long n = (long long)((unsigned long long)from * 0x9e3779b97f4a7c15ull >> 40) & cycles;
    while (clock64() - from < n)
        ;
}

#endif
