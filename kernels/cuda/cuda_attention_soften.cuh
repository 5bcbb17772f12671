/* cuda_attention_soften.cuh: from the scores of a tile to P in cuda_attention_many.cu.
 *
 * A thread has two slots of its warp's 16, lane / 4 and 8 more, and of each the keys 8 j + 2 (lane
 * mod 4) and the next: element 4 j + 2 half + i of the scores, as a product leaves them. Pairs of
 * them, rounded, are the operand of the next product.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_SOFTEN_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_SOFTEN_CUH

#include "kernels/cuda/cuda_attention_list.cuh"
#include "kernels/cuda/cuda_frag.cuh"

/* What a thread knows of its two slots. */
struct many_slots {
    int begin[2], end[2]; /* keys that they see; none: both 0 */
    float m[2], m_total[2], l_total[2];
    uint32_t have; /* bit: the slot has a total */
    uint32_t odd;  /* bit: it met an exponent that exp2_short does not take */
};

/* elem_exp2_p for x up to 1/2, the same once rounded to bf16 (tests/gpu/short_count.cu looks at
 * all 3,196,059,650 such x), and infinite for a NaN: half the polynomial, and n + 1 is added to its
 * exponent by an integer. The only subnormal results stand for n = -126 just below 2^-126, and
 * round to it either way. An infinite P makes the row sum infinite or a NaN, and every output of
 * the row a NaN. */
__device__ static inline float exp2_short(float x)
{
    if (ELEM_HARDWARE)
        return elem_hardware_exp2(x);
    asm("max.NaN.f32 %0, %0, 0fC2FC0000;" : "+f"(x)); /* -126 */
    float rounded = x + (ELEM_ROUND + 1.0f);
    float f = x - (rounded - (ELEM_ROUND + 1.0f));
    float p = 0x1.c3f76p-6f;
    p = fmaf(p, f, 0x1.f0de1ap-4f);
    p = fmaf(p, f, 0x1.62f31ap-2f);
    p = fmaf(p, f, 0x1.fff692p-2f);
    return elem_float(elem_bits(rounded) * 0x800000u + elem_bits(p));
}

/* n / d by the steps of the compiler's own division, from 1 / d, without its way out for extreme
 * numbers: that is a function call, beside which products do not run (C7520). */
__device__ static inline float divide_short(float n, float d, float inverse)
{
    float q = n * inverse;
    q = fmaf(fmaf(-d, q, n), inverse, q);
    return fmaf(fmaf(-d, q, n), inverse, q);
}

/* Caps that softcap_short takes. */
#define SOFTCAP_LEAST 0x1p-10f
#define SOFTCAP_MOST  0x1p20f

/* elem_softcap: the same bits for |x| from 2^-60 on and a NaN; smaller ones may be rounded another
 * way, and no P, maximum or factor that is not 2^0 sees it. From 20 caps on tanh is 1, so that its
 * e^-2a is never small: n is added to the exponent of the polynomial. */
__device__ static inline float softcap_short(float x, float cap, float inverse)
{
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(20.0f * cap));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-20.0f * cap));
    x = divide_short(x, cap, inverse);
    float a = elem_float(elem_bits(x) & 0x7fffffffu), b = -2.0f * a, y, z = x * x;
    float rounded = fmaf(b, ELEM_LOG2E, ELEM_ROUND), n = rounded - ELEM_ROUND;
    float f = fmaf(n, -ELEM_LN2_LO, fmaf(n, -ELEM_LN2, b));
    float t = 0x1.6a244cp-10f;
    t = fmaf(t, f, 0x1.1239d4p-7f);
    t = fmaf(t, f, 0x1.5558f2p-5f);
    t = fmaf(t, f, 0x1.555492p-3f);
    t = fmaf(t, f, 0x1.fffffcp-2f);
    t = fmaf(t, f, 1.0f);
    t = fmaf(t, f, 1.0f);
    t = elem_float(elem_bits(rounded) * 0x800000u + elem_bits(t));
    float d = 1.0f + t;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    float big = divide_short(1.0f - t, d, fmaf(fmaf(-d, y, 1.0f), y, y));
    float p = -0x1.75e1c4p-8f;
    p = fmaf(p, z, 0x1.52269ap-6f);
    p = fmaf(p, z, -0x1.b83c5ap-5f);
    p = fmaf(p, z, 0x1.110726p-3f);
    p = fmaf(p, z, -0x1.555532p-2f);
    float r = a >= 0.625f ? big : fmaf(x * z, p, x); /* a NaN has no other way through */
    return cap * elem_float(elem_bits(r) | (elem_bits(x) & 0x80000000u));
}

/* Bit i: element i of the scores is of a key that its slot sees. */
__device__ static inline uint32_t seen_bits(const struct many_slots &st, int key0)
{
    int at = key0 + (int)threadIdx.x % 4 * 2;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int key = at + i / 4 * 8 + i % 2, half = i % 4 / 2;
        bits |= key >= st.begin[half] && key < st.end[half] ? 1u << i : 0;
    }
    return bits;
}

/* From scores to P, not yet rounded; the maxima under which it stands; what the sums under the
 * maxima m are multiplied by. */
__device__ static inline void soften(float (&s)[32], float c, const float m[2], float next[2],
                                     float f[2], uint32_t *odd)
{
    float scaled[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4] = {m[half], -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i % 4] = fmaxf(x[i % 4], s[i / 2 * 4 + half * 2 + i % 2]);
        next[half] = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        next[half] = fmaxf(next[half], __shfl_xor_sync(ALL, next[half], 1));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        next[half] = fmaxf(next[half], __shfl_xor_sync(ALL, next[half], 2));
        scaled[half] = next[half] * c;
        *odd |= fmaf(next[half], c, -scaled[half]) > 0.5f ? 1u << half : 0;
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = exp2_short(fmaf(s[i], c, -scaled[i % 4 / 2]));
#pragma unroll
    for (int half = 0; half < 2; half++)
        f[half] = elem_exp2_full(c * (m[half] == next[half] ? 0.0f : m[half] - next[half]));
}

template <bool MASKED>
__device__ static inline void pack_p(const float (&s)[32], uint32_t seen, uint32_t (&p)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        p[i] = frag_pack(s[2 * i], s[2 * i + 1]);
        if (MASKED)
            p[i] &= (seen >> 2 * i & 1 ? 0xffffu : 0) | (seen >> (2 * i + 1) & 1 ? 0xffff0000u : 0);
    }
}

#endif
