/* affine_avx512.c: the encoder's lanes in one 512-bit register. Owns no arithmetic of its own. */
#include "quant/affine_private.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")))
#define LANE   TARGET static inline __attribute__((always_inline))

typedef __m512 vf;
typedef struct {
    __m512d low, high;
} vd;

LANE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

LANE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

LANE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

LANE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

LANE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

LANE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

LANE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

LANE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

LANE vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

LANE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

LANE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

LANE vf vf_max_abs(vf a, vf m)
{
    return _mm512_range_ps(a, m, 0x0b); /* the larger size, without sign */
}

LANE vf vf_rint(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LANE vf vf_where_lt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

LANE float vf_min_all(vf a)
{
    return _mm512_reduce_min_ps(a);
}

LANE float vf_max_all(vf a)
{
    return _mm512_reduce_max_ps(a);
}

LANE bool vf_any_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}

/* The bit arithmetic of bf16_from_f32 for numbers that are not NaN. */
LANE vf round_bf16(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
}

LANE vf vf_scale(vf v, enum dtype t)
{
    if (t == DT_BF16)
        return round_bf16(v);
    if (t == DT_F16)
        return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return v;
}

LANE vf vf_source(enum dtype t, const void *p, int64_t i)
{
    if (t == DT_F32)
        return _mm512_loadu_ps((const char *)p + 4 * i);
    __m256i h = _mm256_loadu_si256((const void *)((const char *)p + 2 * i));
    if (t == DT_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

LANE __m128 fold4(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

LANE void vf_sum3(vf a, vf b, vf c, float out[4])
{
    __m128 x = _mm_hadd_ps(fold4(a), fold4(b)), y = fold4(c);
    _mm_storeu_ps(out, _mm_hadd_ps(x, _mm_hadd_ps(y, y)));
}

LANE void vf_codes(vf v, uint8_t *p)
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(v)));
}

LANE vd vd_load(const double *p)
{
    return (vd){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)};
}

LANE void vd_store(double *p, vd v)
{
    _mm512_storeu_pd(p, v.low);
    _mm512_storeu_pd(p + 8, v.high);
}

LANE vd vd_add_vf(vd t, vf v)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    return (vd){_mm512_add_pd(t.low, low), _mm512_add_pd(t.high, high)};
}

#include "quant/affine_pext.h"
#include "quant/affine_body.h"

TARGET int64_t affine_encode_avx512(const struct affine_run *r, struct errstat *st)
{
    return encode_run(r, st);
}

#endif
