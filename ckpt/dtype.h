/* dtype.h: element types of tensors and exact conversions. Seen by C and CUDA.
 *
 * Owns names, sizes and the scalar conversions between f32 and the 16-bit, 8-bit and 4-bit types,
 * each one rounding to nearest, ties to even; NaN stays NaN (quiet), subnormals are kept. The types
 * of 8 bits and less have no infinity: what is too large becomes the largest number.
 */
#ifndef ASSAY_CKPT_DTYPE_H
#define ASSAY_CKPT_DTYPE_H

#include "common/base.h"

#ifdef __CUDACC__
#define DTYPE_FN static inline __host__ __device__
#else
#define DTYPE_FN static inline
#endif

/*        name          safetensors    bits */
#define DTYPES(X)                                                                                  \
    X(DT_F32, "F32", 32)                                                                           \
    X(DT_F16, "F16", 16)                                                                           \
    X(DT_BF16, "BF16", 16)                                                                         \
    X(DT_F64, "F64", 64)                                                                           \
    X(DT_I8, "I8", 8)                                                                              \
    X(DT_U8, "U8", 8)                                                                              \
    X(DT_I16, "I16", 16)                                                                           \
    X(DT_U16, "U16", 16)                                                                           \
    X(DT_I32, "I32", 32)                                                                           \
    X(DT_U32, "U32", 32)                                                                           \
    X(DT_I64, "I64", 64)                                                                           \
    X(DT_U64, "U64", 64)                                                                           \
    X(DT_BOOL, "BOOL", 8)                                                                          \
    X(DT_C64, "C64", 64)                                                                           \
    X(DT_F8_E4M3, "F8_E4M3", 8)                                                                    \
    X(DT_F8_E5M2, "F8_E5M2", 8)                                                                    \
    X(DT_F8_E8M0, "F8_E8M0", 8)                                                                    \
    X(DT_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8)                                                            \
    X(DT_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8)                                                            \
    X(DT_F6_E2M3, "F6_E2M3", 6)                                                                    \
    X(DT_F6_E3M2, "F6_E3M2", 6)                                                                    \
    X(DT_F4, "F4", 4)

enum dtype {
#define X(name, text, bits) name,
    DTYPES(X)
#undef X
        DT_COUNT,
    DT_UNKNOWN = DT_COUNT /* a tensor of a type that this reader does not know: use is refused */
};

const char *dtype_name(enum dtype t); /* "BF16" */
int dtype_bits(enum dtype t);
bool dtype_is_float(enum dtype t);             /* F32, F16, BF16 */
enum dtype dtype_find(const char *name);       /* DT_UNKNOWN when there is none */
enum dtype dtype_find_short(const char *name); /* "bf16", "f16", "f32" as options say it */

DTYPE_FN float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

DTYPE_FN uint16_t bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

DTYPE_FN float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 0x1fu, man = h & 0x3ffu, u;
    if (exp == 0x1fu) {
        u = sign | 0x7f800000u | man << 13;
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else {
        float f = (float)man * 5.9604644775390625e-8f; /* 2^-24: exact */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

DTYPE_FN uint16_t f16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: subnormal, or zero */
        if (a < 0x33000000u)
            return (uint16_t)sign;
        uint32_t man = (a & 0x7fffffu) | 0x800000u, shift = 126u - (a >> 23);
        uint32_t half = 1u << (shift - 1), rest = man & ((1u << shift) - 1), q = man >> shift;
        q += rest > half || (rest == half && (q & 1u));
        return (uint16_t)(sign | q);
    }
    uint32_t r = a - 0x38000000u;
    return (uint16_t)(sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13);
}

/* e4m3fn: exponent of 4 bits biased by 7, mantissa of 3; 0x7f and 0xff are NaN, 448 is the most. */
#define E4M3_MAX 448.0f
DTYPE_FN bool e4m3_is_nan(uint32_t c)
{
    return (c & 0x7fu) == 0x7fu;
}

DTYPE_FN float e4m3_to_f32(uint32_t c)
{
    uint32_t sign = (c & 0x80u) << 24, exp = c >> 3 & 15u, man = c & 7u, u;
    if (e4m3_is_nan(c)) {
        u = sign | 0x7fc00000u;
    } else if (exp) {
        u = sign | (exp + 120) << 23 | man << 20;
    } else {
        float f = (float)man * 0.001953125f; /* 2^-9 */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

DTYPE_FN uint8_t e4m3_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e80000u) /* 464 and more: 448 */
        return (uint8_t)(sign | 0x7eu);
    if (a < 0x3c800000u) { /* below 2^-6: multiples of 2^-9 */
        float m, magic = 16384.0f;
        memcpy(&m, &a, sizeof m);
        m = (m + magic) - magic; /* the last place of 2^14 is 2^-9 */
        return (uint8_t)(sign | (uint32_t)(m * 512.0f));
    }
    uint32_t r = a - 0x3c000000u;
    return (uint8_t)(sign | (r + 0x7ffffu + (r >> 20 & 1u)) >> 20);
}

/* e8m0: a power of two, 2^(u - 127); 255 is NaN. */
DTYPE_FN float e8m0_to_f32(uint32_t c)
{
    uint32_t u = c == 0 ? 0x00400000u : c == 255 ? 0x7fc00000u : c << 23;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. */
#define E2M1_MAX 6.0f
DTYPE_FN float e2m1_to_f32(uint32_t c)
{
    uint32_t m = c & 7u, u = (c & 8u) << 28;
    u |= m < 2 ? m * 0x3f000000u : (m + 252u) << 22;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The nearest, ties to the even code; never the code of a negative zero. */
DTYPE_FN uint32_t e2m1_from_f32(float f)
{
    float a = f < 0 ? -f : f;
    uint32_t m = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                 (a >= 3.5f) + (a > 5.0f);
    return m | (f < 0 && m ? 8u : 0u);
}

#endif
