/* cpu_mma_step_avx512.c: the step of sixteen outputs in one AVX-512 vector. cpu_mma_step.h says why
 * it is exact and when. */
#include "kernels/cpu/cpu_mma_step.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))),        \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#endif

#define INLINE static inline __attribute__((always_inline))

static void prepare(const uint16_t *x, int64_t n, struct cpu_mma_input out)
{
    const __m256i exps = _mm256_set1_epi16(0x7f80),
                  top = _mm256_set1_epi16((short)(CPU_MMA_WIDE - 1));
    for (int64_t i = 0; i < n; i += MMA90_K) {
        __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i e = _mm256_and_si256(h, exps);
        _mm512_storeu_si512(out.v + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        _mm256_storeu_si256((__m256i *)(void *)(out.e + i / 2), e);
        out.wide[i / MMA90_K] = _mm256_cmpgt_epi16_mask(e, top) != 0;
    }
}

/* Stores the values of k and k + 1 and their exponent fields; gives the fields. */
INLINE __m512i put_pair(struct cpu_mma_strip *out, int i, __m512i even, __m512i odd)
{
    __m512i e = _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
    e = _mm512_and_si512(e, _mm512_set1_epi32((int)CPU_MMA_EXPS));
    _mm512_store_si512(out->v[i], even);
    _mm512_store_si512(out->v[i + 1], odd);
    _mm512_store_si512(out->e[i / 2], e);
    return e;
}

static void expand_pairs(const uint32_t *pairs, int n, struct cpu_mma_strip *out)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 2) {
        __m512i p = _mm512_loadu_si512(pairs + i / 2 * CPU_MMA_LANES);
        top = _mm512_max_epi16(
            top, put_pair(out, i, _mm512_slli_epi32(p, 16), _mm512_and_si512(p, high)));
    }
    out->wide = _mm512_cmpgt_epi16_mask(top, _mm512_set1_epi16((short)(CPU_MMA_WIDE - 1))) != 0;
}

/* The value of a code, rounded to bf16 with ties to even: 1.5 * 2^16 times the power of two of v
 * has the unit of bf16(v) as its last place, so adding and subtracting it rounds v there. */
INLINE __m512i code_value(__m512i code, __m512 s, __m512 b)
{
    const __m512 magic = _mm512_set1_ps(98304.0f);
    __m512 v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), s, b);
    __m512 p = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7f800000)));
    return _mm512_castps_si512(_mm512_fnmadd_ps(p, magic, _mm512_fmadd_ps(p, magic, v)));
}

/* Thirty-two k of a tile whose codes lie whole in their words. */
INLINE void expand_whole(const uint32_t *w, const int bits, __m512 s, __m512 b,
                         struct cpu_mma_strip *out, int i)
{
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    for (int word = 0; word < bits; word++) {
        __m512i c = _mm512_load_si512(w + word * CPU_MMA_LANES);
        CPU_MMA_UNROLL
        for (int j = 0; j < 32 / bits; j += 2, i += 2) {
            __m512i even = code_value(_mm512_and_si512(c, mask), s, b);
            c = _mm512_srli_epi32(c, (unsigned)bits);
            __m512i odd = code_value(_mm512_and_si512(c, mask), s, b);
            c = _mm512_srli_epi32(c, (unsigned)bits);
            put_pair(out, i, even, odd);
        }
    }
}

/* Code j of thirty-two, with a piece of the next word above it that the mask removes. */
INLINE __m512i straddling_code(const uint32_t *w, const int bits, int j)
{
    int bit = j * bits, word = bit >> 5, next = MIN2(word + 1, bits - 1);
    __m512i lo = _mm512_load_si512(w + word * CPU_MMA_LANES);
    __m512i hi = _mm512_load_si512(w + next * CPU_MMA_LANES);
    lo = _mm512_srlv_epi32(lo, _mm512_set1_epi32(bit & 31));
    hi = _mm512_sllv_epi32(hi, _mm512_set1_epi32(32 - (bit & 31)));
    return _mm512_and_si512(_mm512_or_si512(lo, hi), _mm512_set1_epi32((1 << bits) - 1));
}

INLINE void expand_straddling(const uint32_t *w, const int bits, __m512 s, __m512 b,
                              struct cpu_mma_strip *out, int i)
{
    CPU_MMA_UNROLL
    for (int j = 0; j < 32; j += 2)
        put_pair(out, i + j, code_value(straddling_code(w, bits, j), s, b),
                 code_value(straddling_code(w, bits, j + 1), s, b));
}

INLINE __m512 load_scales(const uint8_t *p, enum dtype t)
{
    if (t == DT_F32)
        return _mm512_loadu_ps((const float *)(const void *)p);
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (t == DT_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* The low 4 or 8 bits of each lane as the value of a block float's code; e4m3 as in
 * cpu_body_linear.h. */
INLINE __m512 element(__m512i code, const int bits)
{
    if (bits == 4) {
        const __m512 table =
            _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
        return _mm512_permutexvar_ps(code, table);
    }
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    __m512i size = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x7f)), 20);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(sign, size)),
                         _mm512_set1_ps(0x1p120f));
}

INLINE __m512 load_block_scales(const uint8_t *p, enum dtype t)
{
    __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    if (t == DT_F8_E4M3)
        return element(c, 8);
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_slli_epi32(c, 23), _mm512_set1_epi32(0x00400000)));
}

/* Thirty-two k of a plain block float's tile: the products are bf16 numbers. */
INLINE void expand_block(const uint32_t *w, const uint8_t *scales, struct qformat q, const int bits,
                         struct cpu_mma_strip *out, int i)
{
    const int per = 32 / bits;
    for (int word = 0; word < bits; word++) {
        __m512 s = load_block_scales(scales + word * per / q.group * CPU_MMA_LANES, q.scale);
        __m512i c = _mm512_load_si512(w + word * CPU_MMA_LANES);
        CPU_MMA_UNROLL
        for (int j = 0; j < per; j += 2, i += 2) {
            __m512 even = _mm512_mul_ps(element(c, bits), s);
            __m512 odd = _mm512_mul_ps(element(_mm512_srli_epi32(c, (unsigned)bits), bits), s);
            put_pair(out, i, _mm512_castps_si512(even), _mm512_castps_si512(odd));
            c = _mm512_srli_epi32(c, 2 * (unsigned)bits);
        }
    }
}

static void expand_blocks(const struct cpu_mma_packed *p, int64_t k0, int n,
                          struct cpu_mma_strip *out)
{
    for (int i = 0; i < n; i += 32) {
        const uint8_t *at = p->scales + (k0 + i) / p->q.group * CPU_MMA_LANES;
        const uint32_t *w = p->codes + (k0 + i) / 32 * p->q.bits * CPU_MMA_LANES;
        if (p->q.bits == 4)
            expand_block(w, at, p->q, 4, out, i);
        else
            expand_block(w, at, p->q, 8, out, i);
    }
    out->wide = false;
}

static void expand_packed(const struct cpu_mma_packed *p, int64_t k0, int n,
                          struct cpu_mma_strip *out)
{
    size_t half = (size_t)CPU_MMA_LANES * (p->q.scale == DT_F32 ? 4 : 2);
    int bits = p->q.bits;
    if (!p->plain) {
        cpu_mma_step_expand(p, k0, n, out);
        return;
    }
    if (qformat_is_block(p->q)) {
        expand_blocks(p, k0, n, out);
        return;
    }
    for (int i = 0; i < n; i += 32) {
        const uint8_t *at = p->scales + (size_t)((k0 + i) / p->q.group) * 2 * half;
        const uint32_t *w = p->codes + (k0 + i) / 32 * bits * CPU_MMA_LANES;
        __m512 s = load_scales(at, p->q.scale), b = load_scales(at + half, p->q.scale);
        switch (bits) {
        case 2:
            expand_whole(w, 2, s, b, out, i);
            break;
        case 3:
            expand_straddling(w, 3, s, b, out, i);
            break;
        case 4:
            expand_whole(w, 4, s, b, out, i);
            break;
        case 5:
            expand_straddling(w, 5, s, b, out, i);
            break;
        case 6:
            expand_straddling(w, 6, s, b, out, i);
            break;
        default:
            expand_whole(w, 8, s, b, out, i);
            break;
        }
    }
    out->wide = false;
}

/* Largest exponent field of the sixteen products, biased by 254 and shifted by 7. */
INLINE __m512i step_exponent(const uint32_t (*we)[CPU_MMA_LANES], const uint32_t *xe)
{
    __m512i m = _mm512_setzero_si512();
    CPU_MMA_UNROLL
    for (int i = 0; i < MMA90_K / 2; i++)
        m = _mm512_max_epu16(
            m, _mm512_add_epi16(_mm512_load_si512(we[i]), _mm512_set1_epi32((int)xe[i])));
    return _mm512_max_epi32(_mm512_and_si512(m, _mm512_set1_epi32(0xffff)),
                            _mm512_srli_epi32(m, 16));
}

/* w * x in units of 2^(E-25), cut toward zero. */
INLINE __m512i step_term(const float *w, float x, __m512 scale)
{
    __m512 p = _mm512_mul_ps(_mm512_load_ps(w), _mm512_set1_ps(x));
    return _mm512_cvttps_epi32(_mm512_mul_ps(p, scale));
}

INLINE __m512 step(const float (*w)[CPU_MMA_LANES], const uint32_t (*we)[CPU_MMA_LANES],
                   const float *x, const uint32_t *xe, __m512 c)
{
    __m512i ce = _mm512_srli_epi32(_mm512_castps_si512(c), 16);
    ce = _mm512_add_epi32(_mm512_and_si512(ce, _mm512_set1_epi32(0x7f80)),
                          _mm512_set1_epi32(127 << 7));
    __m512i e = _mm512_max_epi32(step_exponent(we, xe), ce);
    __m512i field = _mm512_slli_epi32(e, 16);
    __m512 scale =
        _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32((int)CPU_MMA_SCALE), field));
    __m512i sum[4];
    CPU_MMA_UNROLL
    for (int j = 0; j < 4; j++) {
        sum[j] = _mm512_setzero_si512();
        CPU_MMA_UNROLL
        for (int i = 4 * j; i < 4 * j + 4; i++)
            sum[j] = _mm512_add_epi32(sum[j], step_term(w[i], x[i], scale));
    }
    __m512i products =
        _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
    __m512i total = _mm512_add_epi32(products, _mm512_cvttps_epi32(_mm512_mul_ps(c, scale)));
    __m512 d = _mm512_cvt_roundepi32_ps(total, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    d = _mm512_mul_ps(
        d, _mm512_castsi512_ps(_mm512_sub_epi32(field, _mm512_set1_epi32((int)CPU_MMA_UNSCALE))));
    __mmask16 bad =
        _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(e, _mm512_set1_epi32((int)CPU_MMA_E_MIN)),
                                _mm512_set1_epi32((int)(CPU_MMA_E_MAX - CPU_MMA_E_MIN)));
    bad |= _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(products), _mm512_set1_epi32(CPU_MMA_SUM_MAX));
    if (__builtin_expect(bad != 0, 0)) {
        _Alignas(64) float lanes[CPU_MMA_LANES];
        _mm512_store_ps(lanes, c);
        cpu_mma_step_lanes(w, x, bad, lanes);
        d = _mm512_mask_load_ps(d, bad, lanes);
    }
    return d;
}

static void chain(const struct cpu_mma_strip *w, struct cpu_mma_input x, int n_steps, float *acc)
{
    __m512 c = _mm512_loadu_ps(acc);
    for (int s = 0; s < n_steps; s++) {
        int i = s * MMA90_K;
        if (__builtin_expect(w->wide || x.wide[s], 0)) {
            _Alignas(64) float lanes[CPU_MMA_LANES];
            _mm512_store_ps(lanes, c);
            cpu_mma_step_lanes(w->v + i, x.v + i, 0xffff, lanes);
            c = _mm512_load_ps(lanes);
            continue;
        }
        c = step(w->v + i, w->e + i / 2, x.v + i, x.e + i / 2, c);
    }
    _mm512_storeu_ps(acc, c);
}

const struct cpu_mma_ops cpu_mma_ops_avx512 = {prepare, expand_pairs, expand_packed, chain};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
