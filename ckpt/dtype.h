/* dtype.h: element types of tensors and exact conversions. Seen by C and CUDA.
 *
 * Owns names, sizes and the scalar conversions between f32 and the 16-bit types, each one rounding
 * to nearest, ties to even; NaN stays NaN (quiet), subnormals are kept.
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

#endif
