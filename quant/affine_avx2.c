/* affine_avx2.c: the encoder's lanes in two 256-bit registers. Owns no arithmetic of its own. */
#include "quant/affine_private.h"

#ifdef __x86_64__

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma,f16c,bmi2")))
#define LANE   TARGET static inline __attribute__((always_inline))

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256d q[4];
} vd;

LANE vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

LANE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

LANE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

LANE vf vf_add(vf x, vf y)
{
    return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

LANE vf vf_sub(vf x, vf y)
{
    return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

LANE vf vf_mul(vf x, vf y)
{
    return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

LANE vf vf_div(vf x, vf y)
{
    return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

LANE vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

LANE vf vf_abs(vf x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

LANE vf vf_min(vf x, vf y)
{
    return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}

LANE vf vf_max(vf x, vf y)
{
    return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

LANE vf vf_max_abs(vf x, vf m)
{
    return vf_max(vf_abs(x), m);
}

LANE vf vf_rint(vf x)
{
    return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

LANE vf vf_where_lt(vf a, vf b, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}

LANE float vf_min_all(vf x)
{
    __m256 h = _mm256_min_ps(x.a, x.b);
    __m128 q = _mm_min_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_min_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_min_ss(q, _mm_movehdup_ps(q)));
}

LANE float vf_max_all(vf x)
{
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

LANE bool vf_any_nan(vf x)
{
    __m256 m = _mm256_cmp_ps(x.a, x.b, _CMP_UNORD_Q);
    return _mm256_movemask_ps(m) != 0;
}

/* The bit arithmetic of bf16_from_f32 for numbers that are not NaN. */
LANE __m256 round_bf16(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    return _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000)));
}

LANE __m256 round_f16(__m256 v)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

LANE vf vf_scale(vf v, enum dtype t)
{
    if (t == DT_BF16)
        return (vf){round_bf16(v.a), round_bf16(v.b)};
    if (t == DT_F16)
        return (vf){round_f16(v.a), round_f16(v.b)};
    return v;
}

LANE __m256 widen_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

LANE vf vf_source(enum dtype t, const void *p, int64_t i)
{
    if (t == DT_F32)
        return vf_load((const float *)((const void *)((const char *)p + 4 * i)));
    __m128i low = _mm_loadu_si128((const void *)((const char *)p + 2 * i));
    __m128i high = _mm_loadu_si128((const void *)((const char *)p + 2 * i + 16));
    if (t == DT_F16)
        return (vf){_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
    return (vf){widen_bf16(low), widen_bf16(high)};
}

LANE __m128 fold4(vf x)
{
    __m256 h = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

LANE void vf_sum3(vf a, vf b, vf c, float out[4])
{
    __m128 x = _mm_hadd_ps(fold4(a), fold4(b)), y = fold4(c);
    _mm_storeu_ps(out, _mm_hadd_ps(x, _mm_hadd_ps(y, y)));
}

LANE void vf_codes(vf v, uint8_t *p)
{
    const __m256i low = _mm256_set1_epi32(0xff);
    __m256i w = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(v.a), low),
                                    _mm256_and_si256(_mm256_castps_si256(v.b), low));
    w = _mm256_permute4x64_epi64(w, 0xd8); /* the pack works inside halves */
    __m128i c = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((void *)p, c);
}

LANE vd vd_load(const double *p)
{
    return (vd){{_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8),
                 _mm256_loadu_pd(p + 12)}};
}

LANE void vd_store(double *p, vd v)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(p + 4 * i, v.q[i]);
}

LANE vd vd_add_vf(vd t, vf v)
{
    t.q[0] = _mm256_add_pd(t.q[0], _mm256_cvtps_pd(_mm256_castps256_ps128(v.a)));
    t.q[1] = _mm256_add_pd(t.q[1], _mm256_cvtps_pd(_mm256_extractf128_ps(v.a, 1)));
    t.q[2] = _mm256_add_pd(t.q[2], _mm256_cvtps_pd(_mm256_castps256_ps128(v.b)));
    t.q[3] = _mm256_add_pd(t.q[3], _mm256_cvtps_pd(_mm256_extractf128_ps(v.b, 1)));
    return t;
}

#include "quant/affine_pext.h"
#include "quant/affine_body.h"

TARGET int64_t affine_encode_avx2(const struct affine_run *r, struct errstat *st)
{
    return encode_run(r, st);
}

#endif
