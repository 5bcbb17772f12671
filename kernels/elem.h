/* elem.h: every elementary function and every piece of a formula that is not a linear layer, once,
 * for C and CUDA: rule 6 of docs/numerics.md.
 *
 * Everything here is fmaf, one-rounding IEEE operations (+ - * / sqrtf), comparisons and integer
 * work on bits, without branches on values: the same bits from any compiler that keeps one rounding
 * per operation (-ffp-contract=off, --fmad=false). The vector code of the CPU backend repeats these
 * lines over vectors and is held to them bit by bit. Bounds are errors against the exact function,
 * in units of the last place (ulp) of the result, over all inputs unless a range is given. A NaN
 * goes in and a NaN comes out; which NaN is not promised.
 */
#ifndef ASSAY_KERNELS_ELEM_H
#define ASSAY_KERNELS_ELEM_H

#include <math.h>

#include "ckpt/dtype.h"

#ifdef __CUDACC__
#define ELEM_FN static inline __host__ __device__
#else
#define ELEM_FN static inline
#endif

#define ELEM_LOG2E  0x1.715476p+0f
#define ELEM_LN2    0x1.62e43p-1f
#define ELEM_LN2_LO -0x1.05c61p-29f /* ln 2 = ELEM_LN2 + ELEM_LN2_LO */
#define ELEM_ROUND  12582912.0f     /* 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer */

/* Lanes of the two reduction trees. Element i of a row goes to lane i % lanes, ascending; then
 * lane j takes lane j + n for n = lanes/2, lanes/4, ... 1. Lanes that no element reached hold +0.
 */
#define ELEM_NORM_LANES 256  /* sum of squares of a norm */
#define ELEM_LSE_LANES  1024 /* log-sum-exp of logits */
#define ELEM_TILE_LANES 16   /* row sum over a 64-key tile of f32 attention */

ELEM_FN uint32_t elem_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ELEM_FN float elem_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The second operand when one is a NaN or both are equal. */
ELEM_FN float elem_max(float a, float b)
{
    return a > b ? a : b;
}

ELEM_FN float elem_min(float a, float b)
{
    return a < b ? a : b;
}

/* p * 2^n with one rounding at most, p in [0.5, 2), |n| <= 252. rounded is n + ELEM_ROUND. */
ELEM_FN float elem_scale2(float p, float rounded)
{
    int32_t n = (int32_t)(elem_bits(rounded) - 0x4b400000u);
    int32_t half = n >> 1;
    p *= elem_float((uint32_t)(half + 127) << 23);
    return p * elem_float((uint32_t)(n - half + 127) << 23);
}

/* The build that states the contract's price (cuda_price.h) takes 2^x from the hardware. */
#if defined(ASSAY_CONTRACT_PRICE) && defined(__CUDA_ARCH__)
#define ELEM_HARDWARE true
ELEM_FN float elem_hardware_exp2(float x)
{
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
#else
#define ELEM_HARDWARE         false
#define elem_hardware_exp2(x) (x)
#endif

/* 2^x: 1 ulp; gradual underflow, +inf above 128, 0 below -150. */
ELEM_FN float elem_exp2_full(float x)
{
    if (ELEM_HARDWARE)
        return elem_hardware_exp2(x);
    x = elem_min(192.0f, x);
    x = elem_max(-192.0f, x);
    float rounded = x + ELEM_ROUND;
    float f = x - (rounded - ELEM_ROUND);
    float p = 0x1.41fbbcp-13f;
    p = fmaf(p, f, 0x1.5f3e54p-10f);
    p = fmaf(p, f, 0x1.3b2d4cp-7f);
    p = fmaf(p, f, 0x1.c6aee8p-5f);
    p = fmaf(p, f, 0x1.ebfbdcp-3f);
    p = fmaf(p, f, 0x1.62e43p-1f);
    p = fmaf(p, f, 1.0f);
    return elem_scale2(p, rounded);
}

/* 2^x for P of mma90 attention: relative error 7.6e-5 for x in [-126, 1]; below that 2^-126 (the
 * caller clears masked keys), x above 1 is not used. */
ELEM_FN float elem_exp2_p(float x)
{
    if (ELEM_HARDWARE)
        return elem_hardware_exp2(x);
    x = elem_max(-126.0f, x);
    float rounded = x + (ELEM_ROUND + 127.0f);
    float f = x - (rounded - (ELEM_ROUND + 127.0f));
    float p = 0x1.c3f76p-5f;
    p = fmaf(p, f, 0x1.f0de1ap-3f);
    p = fmaf(p, f, 0x1.62f31ap-1f);
    p = fmaf(p, f, 0x1.fff692p-1f);
    return p * elem_float(elem_bits(rounded) << 23);
}

/* e^x: 1 ulp; gradual underflow. */
ELEM_FN float elem_exp(float x)
{
    if (ELEM_HARDWARE)
        return elem_hardware_exp2(x * ELEM_LOG2E);
    x = elem_min(100.0f, x);
    x = elem_max(-120.0f, x);
    float rounded = fmaf(x, ELEM_LOG2E, ELEM_ROUND);
    float n = rounded - ELEM_ROUND;
    float f = fmaf(n, -ELEM_LN2, x);
    f = fmaf(n, -ELEM_LN2_LO, f);
    float p = 0x1.6a244cp-10f;
    p = fmaf(p, f, 0x1.1239d4p-7f);
    p = fmaf(p, f, 0x1.5558f2p-5f);
    p = fmaf(p, f, 0x1.555492p-3f);
    p = fmaf(p, f, 0x1.fffffcp-2f);
    p = fmaf(p, f, 1.0f);
    p = fmaf(p, f, 1.0f);
    return elem_scale2(p, rounded);
}

/* log2 x: 2.5 ulp; -inf at 0, NaN below, +inf at +inf. */
ELEM_FN float elem_log2(float x)
{
    bool small = x < 0x1p-126f;
    float y = small ? x * 0x1p24f : x;
    /* m in [sqrt 1/2, sqrt 2), y = m * 2^e */
    uint32_t u = elem_bits(y) - 0x3f3504f3u;
    int32_t e = (int32_t)u >> 23;
    float m = elem_float((u & 0x7fffffu) + 0x3f3504f3u);
    float f = m - 1.0f;
    float s = f / (2.0f + f);
    float z = s * s;
    float p = 0x1.5c5faep-2f;
    p = fmaf(p, z, 0x1.a5967ep-2f);
    p = fmaf(p, z, 0x1.277768p-1f);
    p = fmaf(p, z, 0x1.ec709ep-1f);
    float lo = fmaf(s * z, p, s * 0x1.4ae0cp-25f);
    float r = fmaf(s, 0x1.715476p+1f, lo);
    r = r + (float)(small ? e - 24 : e);
    r = x > 0x1.fffffep127f ? x : r;
    r = x == 0.0f ? -elem_float(0x7f800000u) : r;
    return x < 0.0f || x != x ? elem_float(0x7fc00000u) : r;
}

/* tanh x: 2 ulp. */
ELEM_FN float elem_tanh(float x)
{
    float a = elem_float(elem_bits(x) & 0x7fffffffu);
    float t = elem_exp(-2.0f * a);
    float big = (1.0f - t) / (1.0f + t);
    float z = x * x;
    float p = -0x1.75e1c4p-8f;
    p = fmaf(p, z, 0x1.52269ap-6f);
    p = fmaf(p, z, -0x1.b83c5ap-5f);
    p = fmaf(p, z, 0x1.110726p-3f);
    p = fmaf(p, z, -0x1.555532p-2f);
    float small = fmaf(x * z, p, x);
    float r = a < 0.625f ? small : big;
    return elem_float(elem_bits(r) | (elem_bits(x) & 0x80000000u));
}

/* 1 / sqrt x, each of the two operations rounded. */
ELEM_FN float elem_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

/* 1 / (1 + e^-x): 3 ulp. */
ELEM_FN float elem_sigmoid(float x)
{
    return 1.0f / (1.0f + elem_exp(-x));
}

/* x * sigmoid(x): 3 ulp. */
ELEM_FN float elem_silu(float x)
{
    return x / (1.0f + elem_exp(-x));
}

/* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which is x * sigmoid of twice that argument:
 * 16 ulp above -4, where the result is not yet small. */
ELEM_FN float elem_gelu_tanh(float x)
{
    float u = x * fmaf(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f);
    return x / (1.0f + elem_exp(-u));
}

/* Activation of a gated layer: f(gate) * up. */
ELEM_FN float elem_silu_mul(float gate, float up)
{
    return elem_silu(gate) * up;
}

ELEM_FN float elem_gelu_tanh_mul(float gate, float up)
{
    return elem_gelu_tanh(gate) * up;
}

/* gate capped at limit, up within limit of zero: (up + 1) * gate * sigmoid(alpha gate). */
ELEM_FN float elem_gptoss_mul(float gate, float up, float limit, float alpha)
{
    float g = elem_min(limit, gate);
    float u = elem_max(-limit, elem_min(limit, up));
    return (g / (1.0f + elem_exp(-alpha * g))) * (u + 1.0f);
}

/* cap * tanh(x / cap). */
ELEM_FN float elem_softcap(float x, float cap)
{
    return cap * elem_tanh(x / cap);
}

/* ---- norm and rope ----------------------------------------------------------------------------
 */
/* Factor of a row whose squares sum to sum; d < 2^24. */
ELEM_FN float elem_norm_factor(float sum, float d, float eps)
{
    return elem_rsqrt(sum / d + eps);
}

ELEM_FN float elem_norm(float h, float factor, float w, bool plus_one)
{
    return (h * factor) * (plus_one ? 1.0f + w : w);
}

/* First and second half of a rotated pair (a, b). */
ELEM_FN float elem_rope_first(float a, float b, float c, float s)
{
    return fmaf(a, c, -(b * s));
}

ELEM_FN float elem_rope_second(float a, float b, float c, float s)
{
    return fmaf(b, c, a * s);
}

/* ---- attention: the scalar pieces of the online softmax ---------------------------------------
 */
/* Scores become powers of two by this factor. With a softcap the score is first made
 * elem_softcap(scale * score, cap), and the factor is log2 e alone. */
ELEM_FN float elem_score_factor(float scale, float softcap)
{
    return softcap > 0.0f ? ELEM_LOG2E : scale * ELEM_LOG2E;
}

/* Exponent of P for score s when the maximum is m: c * (s - m) with one rounding of m * c. */
ELEM_FN float elem_score_exponent(float s, float m, float c)
{
    return fmaf(s, c, -(m * c));
}

/* What multiplies sums made under maximum `from` when the maximum becomes `to`; 0 from -inf. */
ELEM_FN float elem_rescale(float from, float to, float c)
{
    return elem_exp2_full(c * (from - to));
}

/* A sink joins the row after all splits: with m2 = m * c and s2 = sink * log2 e,
 * t = max(m2, s2), the sums are multiplied by a = 2^(m2 - t) and the row sum gains 2^(s2 - t):
 * L = fma(L, a, g). */
ELEM_FN float elem_sink_scale(float m2, float s2)
{
    return elem_exp2_full(m2 - elem_max(m2, s2));
}

ELEM_FN float elem_sink_gain(float m2, float s2)
{
    return elem_exp2_full(s2 - elem_max(m2, s2));
}

/* ---- order of logits ---------------------------------------------------------------------------
 */
/* Greater key, greater logit; NaN is below everything, both zeros are equal. Ties go to the lower
 * index. */
ELEM_FN int32_t elem_order_key(float x)
{
    int32_t u = (int32_t)elem_bits(x);
    int32_t key = u < 0 ? (int32_t)(0x80000000u - (uint32_t)u) : u;
    return x != x ? INT32_MIN : key;
}

/* Bits of a word for row hashes: every NaN is one. */
ELEM_FN uint32_t elem_hash_bits32(uint32_t u)
{
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : u;
}

ELEM_FN uint32_t elem_hash_bits16(uint16_t u) /* bf16 */
{
    return (u & 0x7fffu) > 0x7f80u ? 0x7fffu : u;
}

#endif
