/* qat_formula.c: the trainers' quantizers, operation by operation. */
#include "quant/qat_formula.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[] = {
    [QAT_Q4_0] = "q4_0",
    [QAT_CT] = "ct",
    [QAT_TORCHAO] = "torchao",
    [QAT_TORCHAO_NO_CLIP] = "torchao-no-clip",
};

static bool read_number(const char **at, int *out)
{
    char *end;
    if (**at != ':')
        return **at == 0;
    long v = strtol(*at + 1, &end, 10);
    if (end == *at + 1 || v < 0 || v > 1024)
        return false;
    *out = (int)v;
    *at = end;
    return true;
}

enum err_code qat_formula_parse(struct qat_formula *f, const char *text, struct err *e)
{
    size_t n = strcspn(text, ":");
    const char *at = text + n;
    *f = (struct qat_formula){QAT_NONE, 4, 32};
    for (size_t i = 1; i < ARRAY_LEN(names); i++)
        if (strlen(names[i]) == n && memcmp(names[i], text, n) == 0)
            f->kind = (enum qat_kind)i;
    bool good = f->kind != QAT_NONE && read_number(&at, &f->bits) && read_number(&at, &f->group) &&
                *at == 0 && qformat_valid((struct qformat){f->bits, f->group, DT_F32}) &&
                (f->kind != QAT_Q4_0 || (f->bits == 4 && f->group == 32));
    if (good)
        return ERR_OK;
    return err_set(e, ERR_USAGE,
                   "--qat-formula: found '%.64s', expected q4_0, or ct, torchao or torchao-no-clip "
                   "with :BITS:GROUP",
                   text);
}

const char *qat_formula_text(const struct qat_formula *f, char buf[48])
{
    if (f->kind == QAT_Q4_0)
        snprintf(buf, 48, "q4_0");
    else
        snprintf(buf, 48, "%s:%d:%d", f->kind == QAT_NONE ? "none" : names[f->kind], f->bits,
                 f->group);
    return buf;
}

struct qformat qat_formula_format(const struct qat_formula *f, enum dtype weight)
{
    enum dtype scale = f->kind == QAT_Q4_0 ? DT_F16 : f->kind == QAT_CT ? weight : DT_F32;
    return (struct qformat){f->bits, f->group, scale};
}

static float in_type(enum dtype t, float v)
{
    return t == DT_BF16  ? bf16_to_f32(bf16_from_f32(v))
           : t == DT_F16 ? f16_to_f32(f16_from_f32(v))
                         : v;
}

static void store(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v));
}

/* The scale that codes are counted with. */
static float choose_scale(const struct qat_formula *f, enum dtype weight, const float *w)
{
    float lo = 0, hi = 0, extreme = 0, half = (float)(1 << (f->bits - 1));
    for (int i = 0; i < f->group; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
        extreme = fabsf(w[i]) > fabsf(extreme) ? w[i] : extreme;
    }
    float amax = fmaxf(-lo, hi);
    switch (f->kind) {
    case QAT_Q4_0:
        return extreme / -8.0f;
    case QAT_CT:
        return in_type(weight, amax / (half - 0.5f));
    case QAT_TORCHAO:
        return fmaxf(amax / (half - 0.5f), 0x1p-23f);
    default:
        return fmaxf(fmaxf(-lo / half, hi / (half - 1.0f)), 0x1p-23f);
    }
}

static int choose_code(const struct qat_formula *f, enum dtype weight, float w, float s)
{
    float half = (float)(1 << (f->bits - 1));
    if (s == 0)
        return (int)half;
    if (f->kind == QAT_Q4_0) {
        int q = (int)(w * (1.0f / s) + 8.5f);
        return MIN2(MAX2(q, 0), 15);
    }
    float r = f->kind == QAT_CT ? in_type(weight, w / s) : w * (1.0f / s);
    return (int)(fminf(fmaxf(rintf(r), -half), half - 1.0f) + half);
}

bool qat_formula_encode(const struct qat_formula *f, enum dtype weight, const float *w,
                        int64_t n_groups, uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    struct qformat q = qat_formula_format(f, weight);
    float half = (float)(1 << (f->bits - 1));
    for (int64_t g = 0; g < n_groups; g++, w += f->group) {
        float s = choose_scale(f, weight, w), stored = in_type(q.scale, s);
        if (!isfinite(stored) || in_type(q.scale, -half * stored) != -half * stored)
            return false;
        store(scales, q.scale, g, stored);
        store(biases, q.scale, g, -half * stored);
        uint64_t bits = 0;
        int have = 0;
        for (int i = 0; i < f->group; i++) {
            bits |= (uint64_t)choose_code(f, weight, w[i], s) << have;
            for (have += q.bits; have >= 8; have -= 8, bits >>= 8)
                *codes++ = (uint8_t)bits;
        }
    }
    return true;
}
