/* ggml_affine.c: GGML blocks in the MLX layout, as groups of 32, without changing a value.
 *
 *   Q4_0: code, d, -8d      Q4_1: code, d, m      Q5_0: code, d, -16d      Q5_1: code, d, m
 *   Q8_0: code + 128, d, -128d                    Q4_K, Q5_K: code, d*sc, -(dmin*mn)
 *
 * f16 scales hold d and m as they are, and the multiples of d unless they overflow; the K types
 * need f32, which holds every product of an f16 and a 6-bit number. MXFP4 is mxfp4 and
 * NVFP4 nvfp4: codes and scale bytes are the same, but that GGML's e4m3 has no sign. GGML packs
 * element j beside j + 16 (NVFP4: j + 8 of its 16), MLX beside its neighbour, so codes are unpacked
 * and packed again.
 */
#include <math.h>

#include "ckpt/checkpoint.h"

#define GROUP 32

/* One group of 32: codes, and the exact scale and bias in f32. */
struct group {
    uint8_t code[GROUP];
    float scale, bias;
};

struct shape {
    int bits, elems, bytes;
};

static bool find_shape(int type, struct shape *s)
{
    switch (type) {
    case GGML_Q4_0:
    case GGML_Q4_1:
    case GGML_Q4_K:
    case GGML_MXFP4:
    case GGML_NVFP4:
        s->bits = 4;
        break;
    case GGML_Q5_0:
    case GGML_Q5_1:
    case GGML_Q5_K:
        s->bits = 5;
        break;
    case GGML_Q8_0:
        s->bits = 8;
        break;
    default:
        return false;
    }
    return ggml_type_block(type, &s->elems, &s->bytes);
}

static float load_f16(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

static void read_small(int type, const uint8_t *b, struct group *g)
{
    bool five = type == GGML_Q5_0 || type == GGML_Q5_1;
    bool has_min = type == GGML_Q4_1 || type == GGML_Q5_1;
    const uint8_t *p = b + (has_min ? 4 : 2);
    uint32_t high = five ? load_u32(p) : 0;
    const uint8_t *qs = five ? p + 4 : p;
    g->scale = load_f16(b);
    if (type == GGML_Q8_0) {
        g->bias = -128.0f * g->scale;
        for (int j = 0; j < GROUP; j++)
            g->code[j] = b[2 + j] ^ 0x80;
        return;
    }
    g->bias = has_min ? load_f16(b + 2) : (five ? -16.0f : -8.0f) * g->scale;
    for (int j = 0; j < 16; j++) {
        g->code[j] = (uint8_t)((qs[j] & 15) | (high >> j & 1) << 4);
        g->code[j + 16] = (uint8_t)(qs[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

static void read_mxfp4(const uint8_t *b, uint8_t code[GROUP])
{
    for (int j = 0; j < 16; j++) {
        code[j] = b[1 + j] & 15;
        code[j + 16] = b[1 + j] >> 4;
    }
}

/* Groups 2 * half and 2 * half + 1 of a block's four: 32 codes, and a scale byte each. */
static void read_nvfp4(const uint8_t *b, int half, uint8_t code[GROUP], uint8_t scale[2])
{
    for (int t = 0; t < 2; t++) {
        const uint8_t *qs = b + 4 + 8 * (2 * half + t);
        scale[t] = b[2 * half + t] & 0x7f;
        for (int j = 0; j < 8; j++) {
            code[16 * t + j] = qs[j] & 15;
            code[16 * t + j + 8] = qs[j] >> 4;
        }
    }
}

/* Sub-block t of a Q4_K or Q5_K block; its scale and minimum are six bits each. */
static void read_k(int type, const uint8_t *b, int t, struct group *g)
{
    const uint8_t *s = b + 4, *qh = b + 16, *qs = b + (type == GGML_Q5_K ? 48 : 16) + 32 * (t / 2);
    int sc = t < 4 ? s[t] & 63 : (s[t + 4] & 15) | s[t - 4] >> 6 << 4;
    int mn = t < 4 ? s[t + 4] & 63 : s[t + 4] >> 4 | s[t] >> 6 << 4;
    g->scale = load_f16(b) * (float)sc;
    g->bias = -(load_f16(b + 2) * (float)mn);
    for (int l = 0; l < GROUP; l++) {
        int code = t % 2 ? qs[l] >> 4 : qs[l] & 15;
        if (type == GGML_Q5_K)
            code |= (qh[l] >> t & 1) << 4;
        g->code[l] = (uint8_t)code;
    }
}

static void read_group(const struct ckpt_weight *w, struct shape s, const uint8_t *row, int64_t i,
                       struct group *g)
{
    int64_t per_block = s.elems / GROUP;
    const uint8_t *b = row + i / per_block * s.bytes;
    if (per_block > 1)
        read_k(w->ggml, b, (int)(i % per_block), g);
    else
        read_small(w->ggml, b, g);
}

/* The least scale type so far that holds v exactly: DT_F16, DT_F32, or DT_UNKNOWN for neither. */
static enum dtype scale_for(float v, enum dtype so_far)
{
    if (!isfinite(v))
        return DT_UNKNOWN;
    if (so_far == DT_F16 && f16_to_f32(f16_from_f32(v)) != v)
        return DT_F32;
    return so_far;
}

bool ggml_affine_format(const struct ckpt_weight *w, struct qformat *q)
{
    struct shape s;
    struct group g;
    int64_t k = ckpt_weight_k(w), rows = ckpt_weight_rows(w);
    if (w->enc != CKPT_GGML || w->n_dim < 2 || !find_shape(w->ggml, &s))
        return false;
    if (w->ggml == GGML_MXFP4 || w->ggml == GGML_NVFP4) {
        *q = w->ggml == GGML_MXFP4 ? QFORMAT_MXFP4 : QFORMAT_NVFP4;
        return true;
    }
    bool k_type = s.elems > GROUP;
    *q = (struct qformat){s.bits, GROUP, k_type ? DT_F32 : DT_F16};
    for (int64_t r = 0, n; r < rows; r += n) {
        struct ckpt_block at;
        n = ckpt_weight_at(w, r, &at);
        /* These rows follow each other without a gap. */
        for (int64_t i = 0; i < n * (k / GROUP) && q->scale != DT_UNKNOWN; i++) {
            read_group(w, s, at.data, i, &g);
            q->scale = scale_for(g.bias, q->scale);
            if (q->scale != DT_UNKNOWN)
                q->scale = scale_for(g.scale, q->scale);
        }
    }
    return q->scale != DT_UNKNOWN;
}

static void store_scale(uint8_t *p, enum dtype type, int64_t i, float v)
{
    if (type == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, f16_from_f32(v));
}

void ggml_affine_rows(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                      uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    struct shape s;
    struct group g;
    int64_t k = ckpt_weight_k(w), groups = k / GROUP;
    if (!find_shape(w->ggml, &s))
        return;
    for (int64_t r = 0; r < n; r++) {
        struct ckpt_block at;
        ckpt_weight_at(w, ckpt_weight_row(w, row0 + r), &at);
        uint8_t *out = codes + (size_t)r * qformat_row_bytes(q, k);
        for (int64_t i = 0; i < groups; i++) {
            if (w->ggml == GGML_MXFP4)
                read_mxfp4(at.data + i * s.bytes, g.code);
            else if (w->ggml == GGML_NVFP4)
                read_nvfp4(at.data + i / 2 * s.bytes, (int)(i % 2), g.code,
                           scales + 2 * (r * groups + i));
            else
                read_group(w, s, at.data, i, &g);
            /* 32 codes are a whole number of bytes, so groups are packed one by one. */
            uint64_t bits = 0;
            int have = 0;
            for (int j = 0; j < GROUP; j++) {
                bits |= (uint64_t)g.code[j] << have;
                for (have += q.bits; have >= 8; have -= 8, bits >>= 8)
                    *out++ = (uint8_t)bits;
            }
            if (w->ggml == GGML_MXFP4)
                scales[r * groups + i] = at.data[i * s.bytes];
            if (w->ggml == GGML_MXFP4 || w->ggml == GGML_NVFP4)
                continue;
            store_scale(scales, q.scale, r * groups + i, g.scale);
            store_scale(biases, q.scale, r * groups + i, g.bias);
        }
    }
}
