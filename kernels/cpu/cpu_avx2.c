/* cpu_avx2.c: the bodies of the CPU kernels compiled for AVX2 with FMA and F16C.
 *
 * The target is switched on for this file's functions alone; cpu.c calls them only where the
 * processor has it.
 */
#include "kernels/cpu/cpu_ops.h"

#if defined __x86_64__
#include <immintrin.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define CPU_VEC_AVX2
#include "kernels/cpu/cpu_vec.h"

#include "kernels/cpu/cpu_body_elem.h"
#include "kernels/cpu/cpu_body_rows.h"

#include "kernels/cpu/cpu_body_linear.h"

#include "kernels/cpu/cpu_body_attention.h"

const struct cpu_isa_ops cpu_ops_avx2 = CPU_BODY_OPS;

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
const struct cpu_isa_ops cpu_ops_avx2; /* never chosen on other processors */
#endif
