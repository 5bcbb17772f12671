/* cuda_copy.cuh: copies that run by themselves and report to a barrier in shared memory (mbarrier):
 * bulk copies of contiguous bytes, and tensor copies of a tile of x.
 *
 * A barrier counts arrivals and announced bytes; phases alternate, and a waiter names the parity of
 * the phase that it waits for. A waiter may be at most one phase behind, or it takes the phase
 * after next for its own: every user of a barrier here waits for each of its phases.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_COPY_CUH
#define ASSAY_KERNELS_CUDA_CUDA_COPY_CUH

#include <cuda.h>
#include <stdint.h>

/* Older devices have none of this, and no kernel that uses it runs there (cuda_paths.h). */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define COPY_ASM(...) asm volatile(__VA_ARGS__)
#else
#define COPY_ASM(...) __trap()
#endif

__device__ static inline uint32_t copy_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

__device__ static inline void copy_init(uint64_t *barrier, int arrivals)
{
    COPY_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(copy_address(barrier)), "r"(arrivals)
             : "memory");
}

/* After the last copy_init and before the block's barrier. */
__device__ static inline void copy_init_done(void)
{
    COPY_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
    COPY_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Arrives, and announces bytes that copies will bring. */
__device__ static inline void copy_expect(uint64_t *barrier, int bytes)
{
    COPY_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(copy_address(barrier)),
             "r"(bytes)
             : "memory");
}

__device__ static inline void copy_arrive(uint64_t *barrier)
{
    COPY_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(copy_address(barrier)) : "memory");
}

/* Where `who` is not 0; without a branch. */
__device__ static inline void copy_arrive_if(int who, uint32_t barrier)
{
    COPY_ASM("{.reg .pred p; setp.ne.b32 p, %1, 0;\n"
             "@p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(barrier),
             "r"(who)
             : "memory");
}

__device__ static inline void copy_wait(uint32_t barrier, int parity)
{
    COPY_ASM("{.reg .pred p;\n"
             "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
             "@!p bra again;}" ::"r"(barrier),
             "r"(parity)
             : "memory");
}

__device__ static inline void copy_wait(uint64_t *barrier, int parity)
{
    copy_wait(copy_address(barrier), parity);
}

/* This thread's writes to shared memory come before copies that are asked for later. */
__device__ static inline void copy_own_writes_done(void)
{
    COPY_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* bytes: a multiple of 16, as are both addresses. */
__device__ static inline void copy_bulk(void *to, const void *from, int bytes, uint64_t *barrier)
{
    COPY_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
             "[%0], [%1], %2, [%3];" ::"r"(copy_address(to)),
             "l"(from), "r"(bytes), "r"(copy_address(barrier))
             : "memory");
}

/* The same, with a policy of the second-level cache (createpolicy). */
__device__ static inline void copy_bulk_by(uint64_t policy, void *to, const void *from, int bytes,
                                           uint64_t *barrier)
{
    COPY_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
             "[%0], [%1], %2, [%3], %4;" ::"r"(copy_address(to)),
             "l"(from), "r"(bytes), "r"(copy_address(barrier)), "l"(policy)
             : "memory");
}

/* The box whose first element is (k, row) of a map; zeros outside the tensor. */
__device__ static inline void copy_tensor(void *to, const CUtensorMap *map, int k, int row,
                                          uint64_t *barrier)
{
    COPY_ASM("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
             "[%0], [%1, {%2, %3}], [%4];" ::"r"(copy_address(to)),
             "l"(map), "r"(k), "r"(row), "r"(copy_address(barrier))
             : "memory");
}

/* The same of a map of heads. */
__device__ static inline void copy_heads(void *to, const CUtensorMap *map, int k, int head, int row,
                                         uint64_t *barrier)
{
    COPY_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
             "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(copy_address(to)),
             "l"(map), "r"(k), "r"(head), "r"(row), "r"(copy_address(barrier))
             : "memory");
}

#endif
