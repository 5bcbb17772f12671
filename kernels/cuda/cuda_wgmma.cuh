/* cuda_wgmma.cuh: the instructions of a warpgroup's asynchronous product: 64 rows in registers
 * times 8, 32, 64 or 128 columns in shared memory, one step of 16 k.
 *
 * Columns stand as rows of 64 k (128 bytes), the 16-byte pieces of row n at piece ^ (n & 7): the
 * hardware's 128-byte swizzle. A tile begins at a multiple of 1024 bytes. Or, TURNED, the other way
 * round: rows of 64 columns, one for each k, in the same swizzle.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_WGMMA_CUH
#define ASSAY_KERNELS_CUDA_CUDA_WGMMA_CUH

#include <stdint.h>

/* Only code for compute capability 9.0 has these instructions; elsewhere no kernel that uses them
 * runs (cuda_paths.h). */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA_ASM(...) __trap()
#endif

/* Describes a tile of columns: groups of 8 columns are 1024 bytes apart. */
__device__ static inline uint64_t wgmma_columns(uint32_t shared)
{
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* The same in its parts: the upper word is one for all, and the lower one counts units of 16 bytes,
 * so that a tile that lies further on is an addition away. */
#define WGMMA_COLUMNS_HIGH ((uint64_t)0x40000040 << 32)
__device__ static inline uint32_t wgmma_columns_low(uint32_t shared)
{
    return (shared >> 4 & 0x3fff) | 1u << 16;
}

/* Describes a turned tile: groups of 8 k are 1024 bytes apart, groups of 64 columns `next`. */
__device__ static inline uint64_t wgmma_turned(uint32_t shared, uint32_t next)
{
    return (uint64_t)(shared >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ static inline void wgmma_fence(void)
{
    WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void wgmma_commit(void)
{
    WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ static inline void wgmma_wait(void)
{
    WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Ties an accumulator to this place of the program: what is read after a wait stays after it. */
template <int N> __device__ static inline void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

#define WGMMA_D4(i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D16(i)  WGMMA_D4(i), WGMMA_D4(i + 4), WGMMA_D4(i + 8), WGMMA_D4(i + 12)
#define WGMMA_REGS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGS_32                                                                              \
    WGMMA_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "  \
                  "%31"
#define WGMMA_REGS_64                                                                              \
    WGMMA_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "  \
                  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "    \
                  "%62, %63"

#define WGMMA_REGS_96                                                                              \
    WGMMA_REGS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "  \
                  "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "    \
                  "%94, %95"

/* d = d + A * B, or A * B when `add` is 0. d: column 8j + 2t (+1) of row g in d[4j] (d[4j + 1]), of
 * row g + 8 in d[4j + 2] (d[4j + 3]). */
template <int TURNED = 0>
__device__ static inline void wgmma_step(float (&d)[4], const uint32_t *a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %9, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
              "{%4, %5, %6, %7}, %8, p, 1, 1, %10;}"
              : WGMMA_D4(0)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

template <int TURNED = 0>
__device__ static inline void wgmma_step(float (&d)[16], const uint32_t *a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_REGS_16 "}, "
              "{%16, %17, %18, %19}, %20, p, 1, 1, %22;}"
              : WGMMA_D16(0)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

template <int TURNED = 0>
__device__ static inline void wgmma_step(float (&d)[32], const uint32_t *a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_REGS_32 "}, "
              "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
              : WGMMA_D16(0), WGMMA_D16(16)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

template <int TURNED = 0>
__device__ static inline void wgmma_step(float (&d)[64], const uint32_t *a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_REGS_64 "}, "
              "{%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
              : WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

template <int TURNED = 0>
__device__ static inline void wgmma_step(float (&d)[96], const uint32_t *a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %101, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" WGMMA_REGS_96 "}, "
              "{%96, %97, %98, %99}, %100, p, 1, 1, %102;}"
              : WGMMA_D16(0), WGMMA_D16(16), WGMMA_D16(32), WGMMA_D16(48), WGMMA_D16(64),
                WGMMA_D16(80)
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}

/* The same with the 64 rows in shared memory, as columns stand. */
__device__ static inline void wgmma_step(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    WGMMA_ASM("{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
              "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_REGS_32 "}, "
              "%32, %33, p, 1, 1, 0, 0;}"
              : WGMMA_D16(0), WGMMA_D16(16)
              : "l"(a), "l"(b), "r"(add));
}

#endif
