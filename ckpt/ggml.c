/* ggml.c: the block types of GGML: names, sizes, and the reference's dequantization.
 *
 * Values are f32 in the reference's order of operations: the scale of a sub-block first, then the
 * code, then the minimum, each rounded by itself. Types without a decoder are listed, since the
 * offsets of a file need their sizes, and refused when they are used.
 */
#include "ckpt/container.h"

#include <math.h>

#include "ckpt/dtype.h"

/*        type number, name, elements, bytes of a block */
#define GGML_TYPES(X)                                                                              \
    X(GGML_F32, "F32", 1, 4)                                                                       \
    X(GGML_F16, "F16", 1, 2)                                                                       \
    X(GGML_Q4_0, "Q4_0", 32, 18)                                                                   \
    X(GGML_Q4_1, "Q4_1", 32, 20)                                                                   \
    X(GGML_Q5_0, "Q5_0", 32, 22)                                                                   \
    X(GGML_Q5_1, "Q5_1", 32, 24)                                                                   \
    X(GGML_Q8_0, "Q8_0", 32, 34)                                                                   \
    X(9, "Q8_1", 32, 36)                                                                           \
    X(GGML_Q2_K, "Q2_K", 256, 84)                                                                  \
    X(GGML_Q3_K, "Q3_K", 256, 110)                                                                 \
    X(GGML_Q4_K, "Q4_K", 256, 144)                                                                 \
    X(GGML_Q5_K, "Q5_K", 256, 176)                                                                 \
    X(GGML_Q6_K, "Q6_K", 256, 210)                                                                 \
    X(15, "Q8_K", 256, 292)                                                                        \
    X(16, "IQ2_XXS", 256, 66)                                                                      \
    X(17, "IQ2_XS", 256, 74)                                                                       \
    X(18, "IQ3_XXS", 256, 98)                                                                      \
    X(19, "IQ1_S", 256, 50)                                                                        \
    X(20, "IQ4_NL", 32, 18)                                                                        \
    X(21, "IQ3_S", 256, 110)                                                                       \
    X(22, "IQ2_S", 256, 82)                                                                        \
    X(23, "IQ4_XS", 256, 136)                                                                      \
    X(GGML_I8, "I8", 1, 1)                                                                         \
    X(GGML_I16, "I16", 1, 2)                                                                       \
    X(GGML_I32, "I32", 1, 4)                                                                       \
    X(GGML_I64, "I64", 1, 8)                                                                       \
    X(GGML_F64, "F64", 1, 8)                                                                       \
    X(29, "IQ1_M", 256, 56)                                                                        \
    X(GGML_BF16, "BF16", 1, 2)                                                                     \
    X(34, "TQ1_0", 256, 54)                                                                        \
    X(35, "TQ2_0", 256, 66)                                                                        \
    X(GGML_MXFP4, "MXFP4", 32, 17)                                                                 \
    X(GGML_NVFP4, "NVFP4", 64, 36)                                                                 \
    X(41, "Q1_0", 128, 18)                                                                         \
    X(42, "Q2_0", 64, 18)

static const struct {
    const char *name;
    int elems, bytes;
} types[] = {
#define X(number, text, n_elems, n_bytes) [number] = {text, n_elems, n_bytes},
    GGML_TYPES(X)
#undef X
};

const char *ggml_type_name(int type)
{
    return type >= 0 && (size_t)type < ARRAY_LEN(types) ? types[type].name : NULL;
}

bool ggml_type_block(int type, int *block_elems, int *block_bytes)
{
    if (!ggml_type_name(type))
        return false;
    *block_elems = types[type].elems;
    *block_bytes = types[type].bytes;
    return true;
}

static float load_f16(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

static void decode_q4(const uint8_t *b, float *out, bool has_min)
{
    float d = load_f16(b), m = has_min ? load_f16(b + 2) : 0;
    const uint8_t *qs = b + (has_min ? 4 : 2);
    for (int j = 0; j < 16; j++) {
        int lo = qs[j] & 15, hi = qs[j] >> 4;
        out[j] = has_min ? (float)lo * d + m : (float)(lo - 8) * d;
        out[j + 16] = has_min ? (float)hi * d + m : (float)(hi - 8) * d;
    }
}

static void decode_q5(const uint8_t *b, float *out, bool has_min)
{
    float d = load_f16(b), m = has_min ? load_f16(b + 2) : 0;
    const uint8_t *p = b + (has_min ? 4 : 2), *qs = p + 4;
    uint32_t high = load_u32(p);
    for (int j = 0; j < 16; j++) {
        int lo = (qs[j] & 15) | (int)(high >> j & 1) << 4;
        int hi = qs[j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
        out[j] = has_min ? (float)lo * d + m : (float)(lo - 16) * d;
        out[j + 16] = has_min ? (float)hi * d + m : (float)(hi - 16) * d;
    }
}

static void decode_q8_0(const uint8_t *b, float *out)
{
    float d = load_f16(b);
    for (int j = 0; j < 32; j++)
        out[j] = (float)(int8_t)b[2 + j] * d;
}

/* Twice the elements of e2m1. */
static const float e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void decode_mxfp4(const uint8_t *b, float *out)
{
    uint32_t e = b[0];
    /* Half of 2^(e-127), since the table holds twice the element. */
    float d = f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    if (e == 255)
        d = NAN;
    for (int j = 0; j < 16; j++) {
        out[j] = e2m1_twice[b[1 + j] & 15] * d;
        out[j + 16] = e2m1_twice[b[1 + j] >> 4] * d;
    }
}

/* Four scales, unsigned e4m3: their bit 7 is not read. Each has eight bytes of codes. */
static void decode_nvfp4(const uint8_t *b, float *out)
{
    for (int t = 0; t < 4; t++) {
        const uint8_t *qs = b + 4 + 8 * t;
        float d = 0.5f * e4m3_to_f32(b[t] & 0x7f);
        for (int j = 0; j < 8; j++)
            *out++ = e2m1_twice[qs[j] & 15] * d;
        for (int j = 0; j < 8; j++)
            *out++ = e2m1_twice[qs[j] >> 4] * d;
    }
}

static void decode_q2_k(const uint8_t *b, float *out)
{
    const uint8_t *scales = b, *qs = b + 16;
    float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (int t = 0; t < 16; t++) {
        float scale = d * (float)(scales[t] & 15), min = dmin * (float)(scales[t] >> 4);
        const uint8_t *p = qs + 32 * (t / 8) + 16 * (t % 2);
        int shift = t % 8 / 2 * 2;
        for (int l = 0; l < 16; l++)
            *out++ = scale * (float)(p[l] >> shift & 3) - min;
    }
}

static int scale_q3_k(const uint8_t *scales, int t)
{
    int low = t < 8 ? scales[t] & 15 : scales[t - 8] >> 4;
    int high = scales[8 + t % 4] >> (2 * (t / 4)) & 3;
    return (low | high << 4) - 32;
}

static void decode_q3_k(const uint8_t *b, float *out)
{
    const uint8_t *hmask = b, *qs = b + 32, *scales = b + 96;
    float d = load_f16(b + 108);
    for (int t = 0; t < 16; t++) {
        float scale = d * (float)scale_q3_k(scales, t);
        int first = 16 * (t % 2), shift = t % 8 / 2 * 2, bit = 4 * (t / 8) + shift / 2;
        const uint8_t *p = qs + 32 * (t / 8) + first;
        for (int l = 0; l < 16; l++) {
            int q = (p[l] >> shift & 3) - (hmask[first + l] >> bit & 1 ? 0 : 4);
            *out++ = scale * (float)q;
        }
    }
}

/* 6-bit scale and minimum of sub-block t of Q4_K and Q5_K. */
static void scale_q45_k(const uint8_t *s, int t, int *scale, int *min)
{
    if (t < 4) {
        *scale = s[t] & 63;
        *min = s[t + 4] & 63;
    } else {
        *scale = (s[t + 4] & 15) | s[t - 4] >> 6 << 4;
        *min = s[t + 4] >> 4 | s[t] >> 6 << 4;
    }
}

static void decode_q45_k(const uint8_t *b, float *out, bool five)
{
    float d = load_f16(b), dmin = load_f16(b + 2);
    const uint8_t *qh = b + 16, *qs = b + (five ? 48 : 16);
    for (int t = 0; t < 8; t++) {
        int sc, mn;
        scale_q45_k(b + 4, t, &sc, &mn);
        float scale = d * (float)sc, min = dmin * (float)mn;
        const uint8_t *p = qs + 32 * (t / 2);
        for (int l = 0; l < 32; l++) {
            int q = t % 2 ? p[l] >> 4 : p[l] & 15;
            if (five)
                q |= (qh[l] >> t & 1) << 4;
            *out++ = scale * (float)q - min;
        }
    }
}

static void decode_q6_k(const uint8_t *b, float *out)
{
    float d = load_f16(b + 208);
    for (int h = 0; h < 2; h++) {
        const uint8_t *ql = b + 64 * h, *qh = b + 128 + 32 * h, *sc = b + 192 + 8 * h;
        for (int part = 0; part < 4; part++) {
            for (int l = 0; l < 32; l++) {
                uint8_t low = ql[l + 32 * (part % 2)];
                int q = (part < 2 ? low & 15 : low >> 4) | (qh[l] >> (2 * part) & 3) << 4;
                float scale = d * (float)(int8_t)sc[2 * part + l / 16];
                *out++ = scale * (float)(q - 32);
            }
        }
    }
}

/* One block of a quantized type. */
static bool decode_block(int type, const uint8_t *b, float *out)
{
    switch (type) {
    case GGML_Q4_0:
    case GGML_Q4_1:
        decode_q4(b, out, type == GGML_Q4_1);
        return true;
    case GGML_Q5_0:
    case GGML_Q5_1:
        decode_q5(b, out, type == GGML_Q5_1);
        return true;
    case GGML_Q8_0:
        decode_q8_0(b, out);
        return true;
    case GGML_Q2_K:
        decode_q2_k(b, out);
        return true;
    case GGML_Q3_K:
        decode_q3_k(b, out);
        return true;
    case GGML_Q4_K:
    case GGML_Q5_K:
        decode_q45_k(b, out, type == GGML_Q5_K);
        return true;
    case GGML_Q6_K:
        decode_q6_k(b, out);
        return true;
    case GGML_MXFP4:
        decode_mxfp4(b, out);
        return true;
    case GGML_NVFP4:
        decode_nvfp4(b, out);
        return true;
    default:
        return false;
    }
}

bool ggml_type_decode(int type, const uint8_t *blocks, int64_t n, float *out)
{
    int elems, bytes;
    if (!ggml_type_block(type, &elems, &bytes) || n % elems)
        return false;
    for (int64_t i = 0; i < n; i += elems) {
        const uint8_t *b = blocks + i / elems * bytes;
        switch (type) {
        case GGML_F32:
            out[i] = load_f32(b);
            break;
        case GGML_F16:
            out[i] = load_f16(b);
            break;
        case GGML_BF16:
            out[i] = bf16_to_f32(load_u16(b));
            break;
        default:
            if (!decode_block(type, b, out + i))
                return false;
        }
    }
    return true;
}
