/* cpu_avx512.c: the bodies of the CPU kernels compiled for AVX-512 F, BW, DQ and VL.
 *
 * The target is switched on for this file's functions alone; cpu.c calls them only where the
 * processor has it.
 */
#include "kernels/cpu/cpu_ops.h"

#if defined __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),                   \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif

#define CPU_VEC_AVX512
#include "kernels/cpu/cpu_vec.h"

#include "kernels/cpu/cpu_body_elem.h"
#include "kernels/cpu/cpu_body_rows.h"

#include "kernels/cpu/cpu_body_linear.h"

#include "kernels/cpu/cpu_body_attention.h"

const struct cpu_isa_ops cpu_ops_avx512 = CPU_BODY_OPS;

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
const struct cpu_isa_ops cpu_ops_avx512; /* never chosen on other processors */
#endif
