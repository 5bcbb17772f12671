/* cpu_mma_step_avx2.c: the step of sixteen outputs in two AVX2 vectors. cpu_mma_step.h says why it
 * is exact and when. The two halves of a tile are independent chains. */
#include "kernels/cpu/cpu_mma_step.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#define INLINE static inline __attribute__((always_inline))
#define HALF   8 /* lanes of a vector */

INLINE __m256i load_words(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void store_words(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

/* Some 16-bit exponent field is that of 2^63 or more. */
INLINE bool any_wide(__m256i fields)
{
    __m256i top = _mm256_set1_epi16((short)(CPU_MMA_WIDE - 1));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(fields, top)) != 0;
}

static void prepare(const uint16_t *x, int64_t n, struct cpu_mma_input out)
{
    for (int64_t i = 0; i < n; i += MMA90_K) {
        __m256i h = load_words(x + i), e = _mm256_and_si256(h, _mm256_set1_epi16(0x7f80));
        __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(h));
        __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1));
        store_words(out.v + i, _mm256_slli_epi32(lo, 16));
        store_words(out.v + i + HALF, _mm256_slli_epi32(hi, 16));
        store_words(out.e + i / 2, e);
        out.wide[i / MMA90_K] = any_wide(e);
    }
}

/* Stores the values of k and k + 1 and their exponent fields; gives the fields. */
INLINE __m256i put_pair(struct cpu_mma_strip *out, int i, int lane, __m256i even, __m256i odd)
{
    __m256i e = _mm256_or_si256(_mm256_srli_epi32(even, 16), odd);
    e = _mm256_and_si256(e, _mm256_set1_epi32((int)CPU_MMA_EXPS));
    store_words(out->v[i] + lane, even);
    store_words(out->v[i + 1] + lane, odd);
    store_words(out->e[i / 2] + lane, e);
    return e;
}

static void expand_pairs(const uint32_t *pairs, int n, struct cpu_mma_strip *out)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 2) {
        for (int lane = 0; lane < CPU_MMA_LANES; lane += HALF) {
            __m256i p = load_words(pairs + i / 2 * CPU_MMA_LANES + lane);
            top = _mm256_max_epi16(
                top, put_pair(out, i, lane, _mm256_slli_epi32(p, 16), _mm256_and_si256(p, high)));
        }
    }
    out->wide = any_wide(top);
}

/* The value of a code, rounded to bf16 with ties to even: 1.5 * 2^16 times the power of two of v
 * has the unit of bf16(v) as its last place, so adding and subtracting it rounds v there. */
INLINE __m256i code_value(__m256i code, __m256 s, __m256 b)
{
    const __m256 magic = _mm256_set1_ps(98304.0f);
    __m256 v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), s, b);
    __m256 p = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
    return _mm256_castps_si256(_mm256_fnmadd_ps(p, magic, _mm256_fmadd_ps(p, magic, v)));
}

struct scales {
    __m256 s, b;
    int lane;
};

/* Thirty-two k of eight lanes whose codes lie whole in their words. */
INLINE void expand_whole(const uint32_t *w, const int bits, struct scales t,
                         struct cpu_mma_strip *out, int i)
{
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    for (int word = 0; word < bits; word++) {
        __m256i c = load_words(w + word * CPU_MMA_LANES + t.lane);
        CPU_MMA_UNROLL
        for (int j = 0; j < 32 / bits; j += 2, i += 2) {
            __m256i even = code_value(_mm256_and_si256(c, mask), t.s, t.b);
            c = _mm256_srli_epi32(c, bits);
            __m256i odd = code_value(_mm256_and_si256(c, mask), t.s, t.b);
            c = _mm256_srli_epi32(c, bits);
            put_pair(out, i, t.lane, even, odd);
        }
    }
}

/* Code j of thirty-two, with a piece of the next word above it that the mask removes. */
INLINE __m256i straddling_code(const uint32_t *w, const int bits, int lane, int j)
{
    int bit = j * bits, word = bit >> 5, next = MIN2(word + 1, bits - 1);
    __m256i lo = load_words(w + word * CPU_MMA_LANES + lane);
    __m256i hi = load_words(w + next * CPU_MMA_LANES + lane);
    lo = _mm256_srlv_epi32(lo, _mm256_set1_epi32(bit & 31));
    hi = _mm256_sllv_epi32(hi, _mm256_set1_epi32(32 - (bit & 31)));
    return _mm256_and_si256(_mm256_or_si256(lo, hi), _mm256_set1_epi32((1 << bits) - 1));
}

INLINE void expand_straddling(const uint32_t *w, const int bits, struct scales t,
                              struct cpu_mma_strip *out, int i)
{
    CPU_MMA_UNROLL
    for (int j = 0; j < 32; j += 2)
        put_pair(out, i + j, t.lane, code_value(straddling_code(w, bits, t.lane, j), t.s, t.b),
                 code_value(straddling_code(w, bits, t.lane, j + 1), t.s, t.b));
}

INLINE __m256 load_scales(const uint8_t *p, enum dtype t, int lane)
{
    if (t == DT_F32)
        return _mm256_loadu_ps((const float *)(const void *)p + lane);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * lane));
    if (t == DT_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static void expand_unit(const uint32_t *w, int bits, struct scales t, struct cpu_mma_strip *out,
                        int i)
{
    switch (bits) {
    case 2:
        expand_whole(w, 2, t, out, i);
        break;
    case 3:
        expand_straddling(w, 3, t, out, i);
        break;
    case 4:
        expand_whole(w, 4, t, out, i);
        break;
    case 5:
        expand_straddling(w, 5, t, out, i);
        break;
    case 6:
        expand_straddling(w, 6, t, out, i);
        break;
    default:
        expand_whole(w, 8, t, out, i);
        break;
    }
}

/* The low 4 or 8 bits of each lane as the value of a block float's code; e4m3 as in
 * cpu_body_linear.h. */
INLINE __m256 element(__m256i code, const int bits)
{
    if (bits == 4) {
        const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
        __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
        return _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
    }
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
    __m256i size = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x7f)), 20);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(sign, size)),
                         _mm256_set1_ps(0x1p120f));
}

INLINE __m256 load_block_scales(const uint8_t *p, enum dtype t)
{
    __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    if (t == DT_F8_E4M3)
        return element(c, 8);
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(c, 23), _mm256_set1_epi32(0x00400000)));
}

/* Thirty-two k of eight lanes of a plain block float: the products are bf16 numbers. */
INLINE void expand_block(const uint32_t *w, const uint8_t *scales, struct qformat q, const int bits,
                         int lane, struct cpu_mma_strip *out, int i)
{
    const int per = 32 / bits;
    for (int word = 0; word < bits; word++) {
        const uint8_t *at = scales + word * per / q.group * CPU_MMA_LANES + lane;
        __m256 s = load_block_scales(at, q.scale);
        __m256i c = load_words(w + word * CPU_MMA_LANES + lane);
        CPU_MMA_UNROLL
        for (int j = 0; j < per; j += 2, i += 2) {
            __m256 even = _mm256_mul_ps(element(c, bits), s);
            __m256 odd = _mm256_mul_ps(element(_mm256_srli_epi32(c, bits), bits), s);
            put_pair(out, i, lane, _mm256_castps_si256(even), _mm256_castps_si256(odd));
            c = _mm256_srli_epi32(c, 2 * bits);
        }
    }
}

static void expand_blocks(const struct cpu_mma_packed *p, int64_t k0, int n,
                          struct cpu_mma_strip *out)
{
    for (int i = 0; i < n; i += 32) {
        const uint8_t *at = p->scales + (k0 + i) / p->q.group * CPU_MMA_LANES;
        const uint32_t *w = p->codes + (k0 + i) / 32 * p->q.bits * CPU_MMA_LANES;
        for (int lane = 0; lane < CPU_MMA_LANES; lane += HALF) {
            if (p->q.bits == 4)
                expand_block(w, at, p->q, 4, lane, out, i);
            else
                expand_block(w, at, p->q, 8, lane, out, i);
        }
    }
    out->wide = false;
}

static void expand_packed(const struct cpu_mma_packed *p, int64_t k0, int n,
                          struct cpu_mma_strip *out)
{
    size_t half = (size_t)CPU_MMA_LANES * (p->q.scale == DT_F32 ? 4 : 2);
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
        const uint32_t *w = p->codes + (k0 + i) / 32 * p->q.bits * CPU_MMA_LANES;
        for (int lane = 0; lane < CPU_MMA_LANES; lane += HALF) {
            struct scales t = {load_scales(at, p->q.scale, lane),
                               load_scales(at + half, p->q.scale, lane), lane};
            expand_unit(w, p->q.bits, t, out, i);
        }
    }
    out->wide = false;
}

/* Largest exponent field of the sixteen products, biased by 254 and shifted by 7. */
INLINE __m256i step_exponent(const uint32_t *we, const uint32_t *xe)
{
    __m256i m = _mm256_setzero_si256();
    CPU_MMA_UNROLL
    for (int i = 0; i < MMA90_K / 2; i++) {
        __m256i e =
            _mm256_add_epi16(load_words(we + i * CPU_MMA_LANES), _mm256_set1_epi32((int)xe[i]));
        m = _mm256_max_epu16(m, e);
    }
    return _mm256_max_epi32(_mm256_and_si256(m, _mm256_set1_epi32(0xffff)),
                            _mm256_srli_epi32(m, 16));
}

/* w * x in units of 2^(E-25), cut toward zero. */
INLINE __m256i step_term(const float *w, const float *x, __m256 scale)
{
    __m256 p = _mm256_mul_ps(_mm256_loadu_ps(w), _mm256_broadcast_ss(x));
    return _mm256_cvttps_epi32(_mm256_mul_ps(p, scale));
}

/* The integer as f32, cut toward zero: rounded to nearest by the machine, then one unit in the last
 * place down where that went up. */
INLINE __m256 cut_to_f32(__m256i v)
{
    __m256i mag = _mm256_abs_epi32(v);
    __m256 f = _mm256_cvtepi32_ps(mag);
    __m256i up = _mm256_cmpgt_epi32(_mm256_cvttps_epi32(f), mag);
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(f), up);
    __m256i sign = _mm256_and_si256(v, _mm256_set1_epi32(INT32_MIN));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

/* One step of eight lanes. *bad gets the lanes whose result does not hold. */
INLINE __m256 step_half(const float *w, const uint32_t *we, const float *x, const uint32_t *xe,
                        __m256 c, uint32_t *bad)
{
    __m256i ce = _mm256_srli_epi32(_mm256_castps_si256(c), 16);
    ce = _mm256_add_epi32(_mm256_and_si256(ce, _mm256_set1_epi32(0x7f80)),
                          _mm256_set1_epi32(127 << 7));
    __m256i e = _mm256_max_epi32(step_exponent(we, xe), ce);
    __m256i field = _mm256_slli_epi32(e, 16);
    __m256 scale =
        _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32((int)CPU_MMA_SCALE), field));
    __m256i sum[4];
    CPU_MMA_UNROLL
    for (int j = 0; j < 4; j++) {
        sum[j] = _mm256_setzero_si256();
        CPU_MMA_UNROLL
        for (int i = 4 * j; i < 4 * j + 4; i++)
            sum[j] = _mm256_add_epi32(sum[j], step_term(w + i * CPU_MMA_LANES, x + i, scale));
    }
    __m256i products =
        _mm256_add_epi32(_mm256_add_epi32(sum[0], sum[1]), _mm256_add_epi32(sum[2], sum[3]));
    __m256i total = _mm256_add_epi32(products, _mm256_cvttps_epi32(_mm256_mul_ps(c, scale)));
    __m256 unscale =
        _mm256_castsi256_ps(_mm256_sub_epi32(field, _mm256_set1_epi32((int)CPU_MMA_UNSCALE)));
    __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)CPU_MMA_E_MIN), e);
    __m256i high = _mm256_cmpgt_epi32(e, _mm256_set1_epi32((int)CPU_MMA_E_MAX));
    __m256i full =
        _mm256_cmpgt_epi32(_mm256_abs_epi32(products), _mm256_set1_epi32(CPU_MMA_SUM_MAX));
    __m256i any = _mm256_or_si256(_mm256_or_si256(low, high), full);
    *bad = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(any));
    return _mm256_mul_ps(cut_to_f32(total), unscale);
}

/* Gives the bad lanes their results by the definition; c is what the step started from. */
static void redo_lanes(const float (*w)[CPU_MMA_LANES], const float *x, uint32_t bad, __m256 *c,
                       __m256 *d)
{
    float from[CPU_MMA_LANES], to[CPU_MMA_LANES];
    for (int h = 0; h < 2; h++) {
        _mm256_storeu_ps(from + HALF * h, c[h]);
        _mm256_storeu_ps(to + HALF * h, d[h]);
    }
    cpu_mma_step_lanes(w, x, bad, from);
    for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
        if (bad >> lane & 1)
            to[lane] = from[lane];
    }
    for (int h = 0; h < 2; h++)
        d[h] = _mm256_loadu_ps(to + HALF * h);
}

static void chain(const struct cpu_mma_strip *w, struct cpu_mma_input x, int n_steps, float *acc)
{
    __m256 c[2] = {_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + HALF)};
    for (int s = 0; s < n_steps; s++) {
        int i = s * MMA90_K;
        uint32_t bad[2] = {0xff, 0xff};
        __m256 d[2] = {c[0], c[1]};
        if (__builtin_expect(!(w->wide || x.wide[s]), 1)) {
            d[0] = step_half(w->v[i], w->e[i / 2], x.v + i, x.e + i / 2, c[0], &bad[0]);
            d[1] =
                step_half(w->v[i] + HALF, w->e[i / 2] + HALF, x.v + i, x.e + i / 2, c[1], &bad[1]);
        }
        if (__builtin_expect((bad[0] | bad[1]) != 0, 0))
            redo_lanes(w->v + i, x.v + i, bad[0] | bad[1] << HALF, c, d);
        c[0] = d[0];
        c[1] = d[1];
    }
    _mm256_storeu_ps(acc, c[0]);
    _mm256_storeu_ps(acc + HALF, c[1]);
}

const struct cpu_mma_ops cpu_mma_ops_avx2 = {prepare, expand_pairs, expand_packed, chain};

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
