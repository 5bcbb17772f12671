/* cuda_frag.cuh: from packed weights to the tensor core's registers: rule 1 for a lane's part of a
 * tile, and the step itself. The order is that of cuda_order.h.
 *
 * A lane's words of 64 k (a block) are loaded once; frag_step makes the four registers of one step
 * of 16 k out of them. Every code passes through one rounding: with bf16 scales a fused multiply-
 * add in bf16 on the code read as a subnormal bf16, with f16 and f32 scales an fmaf in f32 and a
 * rounding to bf16. The bits of a small float, put where a bf16 has its exponent's lowest and its
 * mantissa's highest, are its value times 2^-126 (e2m1) or 2^-120 (e4m3), subnormals too: block
 * floats multiply that by a scale that makes up for it, or first make it up and then multiply. All
 * these products are exact but the last.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_FRAG_CUH
#define ASSAY_KERNELS_CUDA_CUDA_FRAG_CUH

#include "kernels/cuda/cuda_order.h"
#include "kernels/elem.h"

/* ---- instructions -----------------------------------------------------------------------------
 */
/* a * b + c on pairs of bf16, each rounded once; subnormals are kept. */
__device__ static inline uint32_t frag_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* a * b on pairs of bf16, each rounded once, the sign of a zero kept. */
__device__ static inline uint32_t frag_mul2(uint32_t a, uint32_t b)
{
    return frag_fma2(a, b, 0x80008000u);
}

/* Two f32 rounded to bf16, `low` in the lower half. */
__device__ static inline uint32_t frag_pack(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* acc += A (16 rows of weights) * B (8 columns), one step of 16 k. */
__device__ static inline void frag_mma(float acc[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* An integer below 2^23 as f32: a conversion takes four times as long. */
__device__ static inline float frag_float(uint32_t q)
{
    return elem_float(q | 0x4b000000u) - 8388608.0f;
}

/* One half of a word in both; as moves, which become modifiers of the multiply-add. */
__device__ static inline uint32_t frag_both(uint32_t w, bool high)
{
    uint32_t d;
    if (high)
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(w));
    else
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(w));
    return d;
}

/* ---- codes ------------------------------------------------------------------------------------
 */
/* A lane's words of one block of 64 k: plane 0's, then plane 1's; dense: 16. */
template <int BITS> struct frag_words {
    uint32_t w[BITS];
};

template <int PLANE>
__device__ static inline void frag_load_plane(const uint8_t *p, int block, int lane, uint32_t *w)
{
    if constexpr (PLANE == 8) {
        uint4 a = *(const uint4 *)(p + ((block * 2 + 0) * 32 + lane) * 16);
        uint4 b = *(const uint4 *)(p + ((block * 2 + 1) * 32 + lane) * 16);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else if constexpr (PLANE == 4) {
        uint4 a = *(const uint4 *)(p + (block * 32 + lane) * 16);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
    } else if constexpr (PLANE == 2) {
        uint2 a = *(const uint2 *)(p + (lane * 2 + block) * 8);
        w[0] = a.x, w[1] = a.y;
    } else if constexpr (PLANE == 1) {
        w[0] = *(const uint32_t *)(p + (lane * 2 + block) * 4);
    }
}

__host__ __device__ constexpr int frag_low_bits(int bits)
{
    return bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
}

template <int BITS>
__device__ static inline void frag_load(const uint8_t *piece, int block, int lane,
                                        frag_words<BITS> &f)
{
    if constexpr (BITS == CUDA_DENSE) {
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint4 a = *(const uint4 *)(piece + ((block * 4 + s) * 32 + lane) * 16);
            f.w[4 * s] = a.x, f.w[4 * s + 1] = a.y, f.w[4 * s + 2] = a.z, f.w[4 * s + 3] = a.w;
        }
    } else {
        constexpr int low = frag_low_bits(BITS), high = BITS - low;
        frag_load_plane<low>(piece, block, lane, f.w);
        if constexpr (high > 0)
            frag_load_plane<high>(piece + CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * low, block, lane,
                                  f.w + low);
    }
}

/* Bits [at, at + PLANE) of both halves of w, moved to bit `to`. */
template <int PLANE> __device__ static inline uint32_t frag_take(uint32_t w, int at, int to)
{
    uint32_t mask = ((1u << PLANE) - 1) << to;
    uint32_t v = at >= to ? w >> (at - to) : w << (to - at);
    return v & (mask | mask << 16);
}

/* The two codes of register r in step s, in both halves of a word, shifted left by LEFT. */
template <int BITS, int LEFT>
__device__ static inline uint32_t frag_codes(const frag_words<BITS> &f, int s, int r)
{
    constexpr int low = frag_low_bits(BITS), high = BITS - low;
    int i = s * 4 + r;
    uint32_t v = frag_take<low>(f.w[i / (16 / low)], i % (16 / low) * low, LEFT);
    if constexpr (high > 0)
        v |= frag_take<high>(f.w[low + i / (16 / high)], i % (16 / high) * high, LEFT + low);
    return v;
}

/* The two codes of register r in step s of a block float, as bf16 of their value times 2^-126 or
 * 2^-120. */
template <int BITS>
__device__ static inline uint32_t frag_element(const frag_words<BITS> &f, int s, int r)
{
    static_assert(BITS == 4 || BITS == 8, "the elements of block floats");
    if constexpr (BITS == 4) {
        uint32_t w = f.w[s], sign = r < 3 ? w << (12 - 4 * r) : w;
        uint32_t size = r < 2 ? w << (6 - 4 * r) : w >> (4 * r - 6);
        return (sign & 0x80008000u) | (size & 0x01c001c0u);
    } else {
        uint32_t w = f.w[2 * s + r / 2] >> (r % 2 * 8);
        return (w << 8 & 0x80008000u) | (w << 4 & 0x07f007f0u);
    }
}

/* ---- scales -----------------------------------------------------------------------------------
 */
#define FRAG_2_126 0x7e807e80u /* pairs of bf16 powers of two */
#define FRAG_2_120 0x7b807b80u

/* Scales and biases of a lane's two rows: pairs of equal bf16, or f32 bits. nvfp4, whose groups are
 * one step: the scales of the even step, and in b those of the odd one; g: global scales. */
struct frag_scale {
    uint32_t s[2], b[2];
    float g[2];
};

/* Groups of a block float's scales in 32 k. */
__host__ __device__ constexpr bool frag_step_groups(enum cuda_scale t)
{
    return t == CUDA_SCALE_E4M3 || t == CUDA_SCALE_GLOBAL;
}

/* The number that frag_load_scale takes for the 32 k number `unit` of a piece. */
template <enum cuda_scale SCALE> __device__ static inline int frag_group(int unit, int group)
{
    return frag_step_groups(SCALE) ? unit : unit * 32 / group;
}

/* Two scale bytes, of rows g and g + 8, one in each half. */
__device__ static inline uint32_t frag_scale_bytes(const uint8_t *scales, int group, int lane)
{
    uint32_t v = *(const uint16_t *)(scales + (group * 8 + lane / 4) * 2);
    return (v | v << 8) & 0x00ff00ffu;
}

/* The scales that nvfp4 has for 32 k. */
__device__ static inline void frag_load_e4m3(const uint8_t *scales, int unit, int lane,
                                             frag_scale &f)
{
    uint32_t v = frag_scale_bytes(scales, 2 * unit, lane);
    v = frag_mul2((v << 8 & 0x80008000u) | (v << 4 & 0x07f007f0u), FRAG_2_120);
    f.s[0] = frag_both(v, false), f.s[1] = frag_both(v, true);
    v = frag_scale_bytes(scales, 2 * unit + 1, lane);
    v = frag_mul2((v << 8 & 0x80008000u) | (v << 4 & 0x07f007f0u), FRAG_2_120);
    f.b[0] = frag_both(v, false), f.b[1] = frag_both(v, true);
}

/* Scales of e8m0 as bf16; FAST: times what the elements are too small by. */
template <int BITS, bool FAST>
__device__ static inline void frag_load_e8m0(const uint8_t *scales, int group, int lane,
                                             frag_scale &f)
{
    uint32_t v = frag_scale_bytes(scales, group, lane);
    if constexpr (FAST) {
        v = (v + (BITS == 4 ? 0x007e007eu : 0x00780078u)) << 7;
    } else {
        uint32_t zero = (v & 0xffffu ? 0u : 0x40u) | (v >> 16 ? 0u : 0x400000u);
        v = v << 7 | zero; /* 0 is 2^-127, a subnormal */
    }
    f.s[0] = frag_both(v, false), f.s[1] = frag_both(v, true);
}

/* e * g rounded once to bf16, e a pair of bf16 with few bits and g a normal f32 (QFORMAT_GLOBAL_*):
 * the product cut toward zero, made odd where something was cut off. */
__device__ static inline uint32_t frag_global(uint32_t e, float g)
{
    float low = elem_float(e << 16), high = elem_float(e & 0xffff0000u);
    float a = __fmul_rz(low, g), b = __fmul_rz(high, g);
    uint32_t odd_a = fmaf(low, g, -a) != 0.0f, odd_b = fmaf(high, g, -b) != 0.0f;
    return frag_pack(elem_float(elem_bits(a) | odd_a), elem_float(elem_bits(b) | odd_b));
}

/* Group `group` of the piece, as frag_group says. */
template <int BITS, enum cuda_scale SCALE>
__device__ static inline void frag_load_scale(const uint8_t *scales, int group, int lane,
                                              frag_scale &f)
{
    int at = (group * 8 + lane / 4) * 4;
    if constexpr (frag_step_groups(SCALE)) {
        frag_load_e4m3(scales, group, lane, f);
        if constexpr (SCALE == CUDA_SCALE_GLOBAL) {
            /* Behind the piece's eight groups. */
            float2 g = *(const float2 *)(scales + 8 * CUDA_TILE_ROWS + lane / 4 * 8);
            f.g[0] = g.x, f.g[1] = g.y;
        }
    } else if constexpr (cuda_order_is_block(SCALE)) {
        frag_load_e8m0<BITS, SCALE == CUDA_SCALE_E8M0_FAST>(scales, group, lane, f);
    } else if constexpr (SCALE == CUDA_SCALE_F32) {
        uint4 v = *(const uint4 *)(scales + at * 4);
        f.s[0] = v.x, f.s[1] = v.y, f.b[0] = v.z, f.b[1] = v.w;
    } else {
        uint2 v = *(const uint2 *)(scales + at * 2);
        if constexpr (SCALE == CUDA_SCALE_F16) {
            f.s[0] = elem_bits(f16_to_f32((uint16_t)v.x));
            f.s[1] = elem_bits(f16_to_f32((uint16_t)(v.x >> 16)));
            f.b[0] = elem_bits(f16_to_f32((uint16_t)v.y));
            f.b[1] = elem_bits(f16_to_f32((uint16_t)(v.y >> 16)));
        } else {
            f.s[0] = frag_both(v.x, false), f.s[1] = frag_both(v.x, true);
            f.b[0] = frag_both(v.y, false), f.b[1] = frag_both(v.y, true);
        }
    }
}

/* ---- a step -----------------------------------------------------------------------------------
 */
/* The registers of step s (0..3) of a block. */
template <int BITS, enum cuda_scale SCALE>
__device__ static inline void frag_step(const frag_words<BITS> &f, const frag_scale &sc, int s,
                                        uint32_t a[4])
{
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if constexpr (SCALE == CUDA_SCALE_LOW) {
            uint32_t w = r < 2 ? f.w[s] : f.w[s] >> 8;
            a[r] = frag_fma2(w & (r & 1 ? 0x00f000f0u : 0x000f000fu), sc.s[r & 1], sc.b[r & 1]);
        } else if constexpr (BITS == CUDA_DENSE) {
            a[r] = f.w[4 * s + r];
        } else if constexpr (SCALE == CUDA_SCALE_E8M0_FAST) {
            a[r] = frag_mul2(frag_element<BITS>(f, s, r), sc.s[r & 1]);
        } else if constexpr (cuda_order_is_block(SCALE)) {
            uint32_t e = frag_element<BITS>(f, s, r);
            e = frag_mul2(e, BITS == 4 ? FRAG_2_126 : FRAG_2_120);
            a[r] = frag_mul2(e, frag_step_groups(SCALE) && s % 2 ? sc.b[r & 1] : sc.s[r & 1]);
            if constexpr (SCALE == CUDA_SCALE_GLOBAL)
                a[r] = frag_global(a[r], sc.g[r & 1]);
        } else if constexpr (SCALE == CUDA_SCALE_FAST) {
            a[r] = frag_fma2(frag_codes<BITS, 8 - BITS>(f, s, r), sc.s[r & 1], sc.b[r & 1]);
        } else if constexpr (SCALE == CUDA_SCALE_BF16) {
            /* q * 2^-133 times 2^127 and 2^6: exact, since a code has 8 bits at most. */
            uint32_t q = frag_codes<BITS, 0>(f, s, r);
            q = frag_fma2(q, 0x7f007f00u, 0x80008000u);
            q = frag_fma2(q, 0x42804280u, 0x80008000u);
            a[r] = frag_fma2(q, sc.s[r & 1], sc.b[r & 1]);
        } else {
            uint32_t q = frag_codes<BITS, 0>(f, s, r);
            float scale = elem_float(sc.s[r & 1]), bias = elem_float(sc.b[r & 1]);
            a[r] = frag_pack(fmaf(frag_float(q & 0xffffu), scale, bias),
                             fmaf(frag_float(q >> 16), scale, bias));
        }
    }
}

#endif
