/* kernels_fixture.h: random weights, inputs and kerns for the kernel tests, and the plain reference
 * of rule 2 in the f32 arithmetic, written from docs/numerics.md and sharing no code with kernels.
 */
#ifndef ASSAY_TESTS_KERNELS_FIXTURE_H
#define ASSAY_TESTS_KERNELS_FIXTURE_H

#include <stdlib.h>

#include "common/rng.h"
#include "kernels/kernels_private.h"
#include "tests/check_main.h"

#define FIX_FN static __attribute__((unused))

FIX_FN float fix_uniform(struct rng *r, float lo, float hi)
{
    return lo + (hi - lo) * (float)rng_double(r);
}

FIX_FN float *fix_floats(struct rng *r, size_t n, float lo, float hi)
{
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = fix_uniform(r, lo, hi);
    return x;
}

FIX_FN struct kern *fix_open(enum kern_arith arith, const char *isa, int threads)
{
    struct kern_options o = {.device = "cpu", .arith = arith, .threads = threads, .isa = isa};
    struct kern *k;
    struct err e = {.text = ""};
    ck_assert_msg(kern_open(&k, &o, &e) == ERR_OK, "%s", e.text);
    return k;
}

FIX_FN void fix_ok(enum err_code rc, const struct err *e)
{
    ck_assert_msg(rc == ERR_OK, "%s", e->text);
}

/* ---- weights -------------------------------------------------------------------------------- */
struct fix_weight {
    struct ckpt_weight c;
    uint8_t *data, *scales, *biases, *globals;
    float *value;   /* [rows][k] as the f32 arithmetic sees them */
    uint16_t *bf16; /* block floats: [rows][k] as mma90 sees them */
};

static void fix_put(uint8_t *p, enum dtype t, size_t i, float v, float *stored)
{
    if (t == DT_F32) {
        memcpy(p + 4 * i, &v, sizeof v);
        *stored = v;
        return;
    }
    uint16_t h = t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
    memcpy(p + 2 * i, &h, sizeof h);
    *stored = t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

FIX_FN struct fix_weight fix_dense(struct rng *r, int64_t rows, int64_t k, enum dtype t)
{
    struct fix_weight w = {0};
    size_t n = (size_t)(rows * k);
    w.data = malloc(n * 4);
    w.value = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        fix_put(w.data, t, i, fix_uniform(r, -1, 1), &w.value[i]);
    w.c = (struct ckpt_weight){.name = "dense",
                               .stored = "dense",
                               .enc = CKPT_DENSE,
                               .dtype = t,
                               .n_dim = 2,
                               .dim = {rows, k},
                               .data = w.data,
                               .layer = -1};
    return w;
}

/* scale: typical size of the scales. */
FIX_FN struct fix_weight fix_affine(struct rng *r, int64_t rows, int64_t k, struct qformat q,
                                    float scale)
{
    struct fix_weight w = {0};
    size_t row_bytes = (size_t)(k * q.bits / 8), groups = (size_t)(k / q.group);
    w.data = calloc((size_t)rows, row_bytes);
    w.scales = malloc((size_t)rows * groups * 4);
    w.biases = malloc((size_t)rows * groups * 4);
    w.value = malloc((size_t)(rows * k) * sizeof(float));
    for (int64_t row = 0; row < rows; row++) {
        uint8_t *bytes = w.data + (size_t)row * row_bytes;
        float s = 0, b = 0;
        for (int64_t i = 0; i < k; i++) {
            size_t g = (size_t)row * groups + (size_t)(i / q.group);
            if (i % q.group == 0) {
                float half = (float)(1 << (q.bits - 1));
                fix_put(w.scales, q.scale, g, scale * fix_uniform(r, -1, 1), &s);
                fix_put(w.biases, q.scale, g, -half * s * fix_uniform(r, 0.5f, 1.5f), &b);
            }
            uint32_t code = (uint32_t)rng_below(r, 1ull << q.bits);
            for (int bit = 0; bit < q.bits; bit++)
                if (code >> bit & 1) {
                    int64_t at = i * q.bits + bit;
                    bytes[at / 8] |= (uint8_t)(1 << at % 8);
                }
            w.value[row * k + i] = fmaf((float)code, s, b);
        }
    }
    w.c = (struct ckpt_weight){.name = "affine",
                               .stored = "affine",
                               .enc = CKPT_AFFINE,
                               .q = q,
                               .n_dim = 2,
                               .dim = {rows, k},
                               .data = w.data,
                               .scales = w.scales,
                               .biases = w.biases,
                               .layer = -1};
    return w;
}

/* What a block float's scale may be: like a quantizer's, any (infinite products too), or the first
 * with a global scale. */
enum fix_block { FIX_BLOCK_PLAIN, FIX_BLOCK_HOSTILE, FIX_BLOCK_GLOBAL, FIX_BLOCK_KINDS };

static const struct qformat fix_blocks[]
    __attribute__((unused)) = {{4, 32, DT_F8_E8M0}, {8, 32, DT_F8_E8M0}, {4, 16, DT_F8_E4M3}};
#define FIX_BLOCKS 3

/* An e4m3 by its definition. */
FIX_FN float fix_e4m3(uint32_t c)
{
    float m = (float)(c & 7), e = (float)(1 << (c >> 3 & 15));
    float v = c & 0x78 ? (8 + m) * e * 0x1p-10f : m * 0x1p-9f;
    return c & 0x80 ? -v : v;
}

FIX_FN float fix_block_scale(struct rng *r, struct qformat q, enum fix_block kind, uint8_t *stored)
{
    bool hostile = kind == FIX_BLOCK_HOSTILE && rng_below(r, 3) == 0;
    if (q.scale == DT_F8_E4M3) {
        *stored = (uint8_t)(hostile ? rng_below(r, 256) : 8 + rng_below(r, 32));
        *stored = (*stored & 0x7f) == 0x7f ? 0 : *stored;
        return fix_e4m3(*stored);
    }
    *stored = (uint8_t)(hostile ? rng_below(r, 2) ? rng_below(r, 255) : rng_below(r, 8)
                                : 118 + rng_below(r, 8));
    float s = 0x1p-127f;
    for (int i = 0; i < *stored; i++)
        s *= 2;
    return s;
}

FIX_FN struct fix_weight fix_mx(struct rng *r, int64_t rows, int64_t k, struct qformat q,
                                enum fix_block kind)
{
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    struct fix_weight w = {0};
    size_t row_bytes = (size_t)(k * q.bits / 8), groups = (size_t)(k / q.group);
    float stored = fix_uniform(r, 3, 9), global = 1, s = 0;
    w.data = malloc((size_t)rows * row_bytes);
    w.scales = malloc((size_t)rows * groups);
    w.value = malloc((size_t)(rows * k) * sizeof(float));
    w.bf16 = malloc((size_t)(rows * k) * sizeof *w.bf16);
    if (kind == FIX_BLOCK_GLOBAL) {
        w.globals = malloc(4);
        store_u32(w.globals, f32_bits(stored));
        global = stored / 2688;
    }
    for (int64_t i = 0; i < rows * k; i++) {
        size_t g = (size_t)(i / k) * groups + (size_t)(i % k / q.group);
        if (i % k % q.group == 0)
            s = fix_block_scale(r, q, kind, &w.scales[g]);
        uint32_t code = (uint32_t)rng_below(r, 1ull << q.bits);
        float el = 0;
        if (q.bits == 8) {
            code = (code & 0x7f) == 0x7f ? 0x80 : code;
            w.data[i] = (uint8_t)code;
            el = fix_e4m3(code);
        } else {
            uint8_t *at = &w.data[i / 2];
            *at = (uint8_t)(i % 2 ? *at | code << 4 : code);
            el = code & 8 ? -e2m1[code & 7] : e2m1[code];
        }
        w.value[i] = el * (s * global);
        w.bf16[i] = qformat_block_bf16(el, s, global);
    }
    w.c = (struct ckpt_weight){.name = "mx",
                               .stored = "mx",
                               .enc = CKPT_MX,
                               .q = q,
                               .n_dim = 2,
                               .dim = {rows, k},
                               .data = w.data,
                               .scales = w.scales,
                               .globals = w.globals,
                               .layer = -1};
    return w;
}

FIX_FN void fix_weight_free(struct fix_weight *w)
{
    free(w->globals);
    free(w->bf16);
    free(w->data);
    free(w->scales);
    free(w->biases);
    free(w->value);
}

FIX_FN struct kern_weight *fix_load(struct kern *k, const struct fix_weight *w)
{
    const struct ckpt_weight *part = &w->c;
    struct kern_weight *out;
    struct err e = {.text = ""};
    fix_ok(kern_weight_load(k, &part, 1, &out, &e), &e);
    return out;
}

/* ---- the reference -------------------------------------------------------------------------- */
/* Rule 2: chunks of 512 (256 when K <= 1024), a chain of fmaf in each, sums added ascending. */
FIX_FN float fix_dot(const float *w, const float *x, int64_t k)
{
    int64_t len = k <= 1024 ? 256 : 512;
    float total = 0;
    for (int64_t c = 0; c < k; c += len) {
        float s = 0;
        for (int64_t i = c; i < k && i < c + len; i++)
            s = fmaf(w[i], x[i], s);
        total = c == 0 ? s : total + s;
    }
    return total;
}

FIX_FN bool fix_same(float a, float b)
{
    return a != a ? b != b : f32_bits(a) == f32_bits(b);
}

/* The first of n floats in which two arrays differ, or -1. */
FIX_FN int64_t fix_diff(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!fix_same(a[i], b[i]))
            return (int64_t)i;
    return -1;
}

#endif
