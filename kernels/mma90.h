/* mma90.h: one step of a Hopper tensor core, as integers. This is the definition of `mma90`.
 *
 * The step is one output of mma.sync m16n8k16 (equally of one k16 of wgmma): sixteen products of
 * bf16 pairs and an fp32 accumulator C give an fp32 D. In words:
 *
 *   - A product's significand is not normalised: it lies in [1, 4) under the exponent e(a) + e(b).
 *   - E is the largest exponent among the non-zero products and a non-zero C, and at least -133.
 *   - Each product and C is cut toward zero to a multiple of 2^(E-25).
 *   - What is left is added exactly and cut toward zero to 24 significant bits, or to a multiple
 *     of 2^-149 where the result is subnormal.
 *
 * Corners: a subnormal operand counts with exponent -126 and its leading zeros are not normalised
 * away; a zero result is +0 whatever the signs; overflow gives the infinity of its sign; a NaN,
 * Inf times zero or Inf minus Inf gives 0x7fffffff. The order of the sixteen products is
 * irrelevant.
 *
 * tests/golden/mma90 holds answers of the hardware that this function reproduces to the bit. Fast
 * forms of it are in kernels/cpu/cpu_mma_step.h; this one is written to be read. Seen by C and
 * CUDA.
 */
#ifndef ASSAY_KERNELS_MMA90_H
#define ASSAY_KERNELS_MMA90_H

#include "common/base.h"

#ifdef __CUDACC__
#define MMA90_FN static inline __host__ __device__
#else
#define MMA90_FN static inline
#endif

#define MMA90_K     16     /* products of one step */
#define MMA90_CUT   25     /* bits kept below the largest exponent */
#define MMA90_E_MIN (-133) /* the largest exponent is this at least */
#define MMA90_NAN   0x7fffffffu
#define MMA90_INF   0x7f800000u

/* K elements of one chunk of a linear layer (rule 2): a function of K alone. */
MMA90_FN int mma90_chunk(int64_t k)
{
    return k <= 1024 ? 256 : 512;
}

/* |sig| * 2^(exp - frac) with `frac` fraction bits, cut toward zero to a multiple of 2^(E-25) and
 * given in that unit. `below` is E - exp, never negative. */
MMA90_FN int64_t mma90_cut(uint32_t sig, int frac, int below)
{
    int shift = MMA90_CUT - frac - below;
    if (shift >= 0)
        return (int64_t)((uint64_t)sig << shift);
    return shift > -32 ? (int64_t)(sig >> -shift) : 0;
}

/* sum * 2^(e - 25) as fp32 bits, cut toward zero. |sum| < 2^33. */
MMA90_FN uint32_t mma90_pack(int64_t sum, int e)
{
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t mag = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int top = 0; /* position of the leading one */
    if (mag == 0)
        return 0;
    while (mag >> (top + 1))
        top++;
    if (top + e - MMA90_CUT > 127)
        return sign | MMA90_INF;
    /* The unit of the result: 2^lsb holds 24 bits, or what a subnormal has. */
    int lsb = MAX2(top + e - MMA90_CUT - 23, -149);
    int drop = lsb - (e - MMA90_CUT);
    if (drop > 63)
        return 0;
    mag = drop >= 0 ? mag >> drop : mag << -drop;
    if (mag == 0)
        return 0;
    /* A leading one at bit 23 carries into the exponent field; a subnormal has none. */
    return sign | (((uint32_t)(lsb + 149) << 23) + (uint32_t)mag);
}

/* D = C + sum of a[i] * b[i]; a and b are bf16 bits, c and the result fp32 bits. */
MMA90_FN uint32_t mma90_step(const uint16_t *a, const uint16_t *b, uint32_t c)
{
    uint32_t sig[MMA90_K];
    int exp[MMA90_K], e = -1000;
    bool nan = false, inf[2] = {false, false};
    for (int i = 0; i < MMA90_K; i++) {
        int ea = a[i] >> 7 & 0xff, eb = b[i] >> 7 & 0xff;
        uint32_t ma = (a[i] & 0x7fu) | (ea ? 0x80u : 0), mb = (b[i] & 0x7fu) | (eb ? 0x80u : 0);
        sig[i] = ma * mb;
        exp[i] = MAX2(ea, 1) + MAX2(eb, 1) - 254;
        if (ea == 0xff || eb == 0xff) {
            nan = nan || (ea == 0xff && ma != 0x80u) || (eb == 0xff && mb != 0x80u) || !sig[i];
            inf[(a[i] ^ b[i]) >> 15 & 1] = true;
        }
        if (sig[i])
            e = MAX2(e, exp[i]);
    }
    int field = (int)(c >> 23 & 0xffu), ec = MAX2(field, 1) - 127;
    uint32_t mc = (c & 0x7fffffu) | (field ? 0x800000u : 0);
    if (field == 0xff) {
        nan = nan || mc != 0x800000u;
        inf[c >> 31] = true;
    }
    if (nan || (inf[0] && inf[1]))
        return MMA90_NAN;
    if (inf[0] || inf[1])
        return MMA90_INF | (inf[1] ? 0x80000000u : 0);
    if (mc)
        e = MAX2(e, ec);
    e = MAX2(e, MMA90_E_MIN);
    int64_t sum = 0;
    for (int i = 0; i < MMA90_K; i++) {
        int64_t v = sig[i] ? mma90_cut(sig[i], 14, e - exp[i]) : 0;
        sum += (a[i] ^ b[i]) >> 15 & 1 ? -v : v;
    }
    int64_t v = mc ? mma90_cut(mc, 23, e - ec) : 0;
    return mma90_pack(sum + (c >> 31 ? -v : v), e);
}

#endif
