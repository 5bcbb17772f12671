/* cpu_vec.h: one set of vector operations over plain C, AVX2 or AVX-512.
 *
 * Included by cpu_c.c, cpu_avx2.c and cpu_avx512.c after they have defined CPU_VEC_C, CPU_VEC_AVX2
 * or CPU_VEC_AVX512 and switched the compiler's target. V_WIDTH lanes of f32 (vf), of 32-bit
 * integers (vi), of truth (vm). Every operation is lane by lane and rounds once, so a body written
 * over them has the same bits in all three. Loads and stores need no alignment.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_VEC_H
#define ASSAY_KERNELS_CPU_CPU_VEC_H

#include <math.h>

#include "ckpt/dtype.h"

#define VFN static inline __attribute__((always_inline, unused))

#if defined CPU_VEC_C
#define V_UNROLL /* loops stay loops: see the end of this file */
#elif defined __clang__
#define V_UNROLL _Pragma("unroll")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined CPU_VEC_C
/* ---- plain C -----------------------------------------------------------------------------------
 */
#define V_WIDTH  8
#define V_TOKENS 4 /* most rows of a block of the multiply kernel */

typedef struct {
    float f[V_WIDTH];
} vf;
typedef struct {
    uint32_t i[V_WIDTH];
} vi;
typedef struct {
    bool m[V_WIDTH];
} vm;

#define V_EACH(type, expr)                                                                         \
    type r;                                                                                        \
    for (int j = 0; j < V_WIDTH; j++)                                                              \
        expr;                                                                                      \
    return r

VFN vf v_set(float x)
{
    V_EACH(vf, r.f[j] = x);
}
VFN vf v_load(const float *p)
{
    V_EACH(vf, r.f[j] = p[j]);
}
VFN void v_store(float *p, vf a)
{
    memcpy(p, a.f, sizeof a.f);
}
VFN vf v_fma(vf a, vf b, vf c)
{
    V_EACH(vf, r.f[j] = fmaf(a.f[j], b.f[j], c.f[j]));
}
VFN vf v_add(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] + b.f[j]);
}
VFN vf v_sub(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] - b.f[j]);
}
VFN vf v_mul(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] * b.f[j]);
}
VFN vf v_div(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] / b.f[j]);
}
VFN vf v_max(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] > b.f[j] ? a.f[j] : b.f[j]);
}
VFN vf v_min(vf a, vf b)
{
    V_EACH(vf, r.f[j] = a.f[j] < b.f[j] ? a.f[j] : b.f[j]);
}
VFN vm v_less(vf a, vf b)
{
    V_EACH(vm, r.m[j] = a.f[j] < b.f[j]);
}
VFN vf v_select(vm m, vf a, vf b)
{
    V_EACH(vf, r.f[j] = m.m[j] ? a.f[j] : b.f[j]);
}
VFN vi vi_set(uint32_t x)
{
    V_EACH(vi, r.i[j] = x);
}
VFN vi vi_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}
VFN vf v_bits(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
VFN vf v_convert(vi a) /* signed */
{
    V_EACH(vf, r.f[j] = (float)(int32_t)a.i[j]);
}
VFN vi vi_add(vi a, vi b)
{
    V_EACH(vi, r.i[j] = a.i[j] + b.i[j]);
}
VFN vi vi_sub(vi a, vi b)
{
    V_EACH(vi, r.i[j] = a.i[j] - b.i[j]);
}
VFN vi vi_and(vi a, vi b)
{
    V_EACH(vi, r.i[j] = a.i[j] & b.i[j]);
}
VFN vi vi_or(vi a, vi b)
{
    V_EACH(vi, r.i[j] = a.i[j] | b.i[j]);
}
VFN vi vi_srl(vi a, int n)
{
    V_EACH(vi, r.i[j] = a.i[j] >> n);
}
VFN vi vi_sra(vi a, int n)
{
    V_EACH(vi, r.i[j] = (uint32_t)((int32_t)a.i[j] >> n));
}
VFN vi vi_sll(vi a, int n)
{
    V_EACH(vi, r.i[j] = a.i[j] << n);
}
VFN vi vi_load_u8(const uint8_t *p)
{
    V_EACH(vi, r.i[j] = p[j]);
}
VFN vi vi_load_u16(const uint8_t *p)
{
    V_EACH(vi, r.i[j] = load_u16(p + 2 * j));
}
VFN void vi_store_u16(uint16_t *p, vi a)
{
    for (int j = 0; j < V_WIDTH; j++)
        p[j] = (uint16_t)a.i[j];
}
VFN vf v_load_f16(const uint8_t *p)
{
    V_EACH(vf, r.f[j] = f16_to_f32(load_u16(p + 2 * j)));
}
/* The low four bits of each lane as e2m1; the others are ignored. */
VFN vf v_e2m1(vi code)
{
    V_EACH(vf, r.f[j] = e2m1_to_f32(code.i[j] & 15u));
}
#undef V_EACH

#elif defined CPU_VEC_AVX2
/* ---- AVX2, FMA and F16C ------------------------------------------------------------------------
 */
#define V_WIDTH  8
#define V_TOKENS 6

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

VFN vf v_set(float x)
{
    return _mm256_set1_ps(x);
}
VFN vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VFN void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}
VFN vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
VFN vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VFN vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VFN vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VFN vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VFN vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VFN vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VFN vm v_less(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VFN vf v_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, m);
}
VFN vi vi_set(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
VFN vi vi_bits(vf a)
{
    return _mm256_castps_si256(a);
}
VFN vf v_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
VFN vf v_convert(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
VFN vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
VFN vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
VFN vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
VFN vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
VFN vi vi_srl(vi a, int n)
{
    return _mm256_srli_epi32(a, n);
}
VFN vi vi_sra(vi a, int n)
{
    return _mm256_srai_epi32(a, n);
}
VFN vi vi_sll(vi a, int n)
{
    return _mm256_slli_epi32(a, n);
}
VFN vi vi_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
VFN vi vi_load_u16(const uint8_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
VFN void vi_store_u16(uint16_t *p, vi a)
{
    __m128i lo = _mm256_castsi256_si128(a), hi = _mm256_extracti128_si256(a, 1);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(lo, hi));
}
VFN vf v_load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
VFN vf v_e2m1(vi code)
{
    const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}

#elif defined CPU_VEC_AVX512
/* ---- AVX-512 F, BW, DQ and VL ------------------------------------------------------------------
 */
#define V_WIDTH  16
#define V_TOKENS 12

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

VFN vf v_set(float x)
{
    return _mm512_set1_ps(x);
}
VFN vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VFN void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
VFN vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VFN vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VFN vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VFN vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VFN vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VFN vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VFN vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VFN vm v_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VFN vf v_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
VFN vi vi_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
VFN vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}
VFN vf v_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
VFN vf v_convert(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
VFN vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VFN vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
VFN vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
VFN vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
VFN vi vi_srl(vi a, int n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
}
VFN vi vi_sra(vi a, int n)
{
    return _mm512_sra_epi32(a, _mm_cvtsi32_si128(n));
}
VFN vi vi_sll(vi a, int n)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n));
}
VFN vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
VFN vi vi_load_u16(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VFN void vi_store_u16(uint16_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}
VFN vf v_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VFN vf v_e2m1(vi code)
{
    const __m512 table =
        _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(code, table);
}
#endif

/* ---- over the operations above -----------------------------------------------------------------
 */
VFN vf v_zero(void)
{
    return v_set(0.0f);
}
VFN vf v_load_bf16(const uint8_t *p)
{
    return v_bits(vi_sll(vi_load_u16(p), 16));
}
/* bf16_from_f32 of every lane. */
VFN void v_store_bf16(uint16_t *p, vf a)
{
    vi u = vi_bits(a);
    vi odd = vi_and(vi_srl(u, 16), vi_set(1));
    vi rounded = vi_srl(vi_add(vi_add(u, vi_set(0x7fff)), odd), 16);
    /* A NaN keeps its upper half, made quiet: it is the one that is not equal to itself, and adding
     * the rounding to it could carry into the sign. */
    vi quiet = vi_or(vi_srl(u, 16), vi_set(0x40));
    vf abs = v_bits(vi_and(u, vi_set(0x7fffffff)));
    vm number = v_less(abs, v_bits(vi_set(0x7f800000)));
    vm inf = v_less(v_bits(vi_set(0x7f7fffff)), abs);
    vf r = v_select(inf, v_bits(rounded), v_bits(quiet));
    vi_store_u16(p, vi_bits(v_select(number, v_bits(rounded), r)));
}

/* The bodies over plain C are ordinary functions: a copy of each for every bit width and block of
 * rows, unrolled over arrays of lanes, takes a compiler minutes and gains nothing that matters. */
#if defined CPU_VEC_C
#undef VFN
#define VFN static __attribute__((unused))
#endif

#endif
