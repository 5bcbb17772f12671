/* qat_make.h: matrices that were quantized, expanded and rounded, for tests of the grid search.
 *
 * Written from the definitions alone: a code, a scale, a product in double, one rounding.
 */
#ifndef ASSAY_TESTS_QAT_MAKE_H
#define ASSAY_TESTS_QAT_MAKE_H

#include <math.h>
#include <stdlib.h>

#include "ckpt/checkpoint.h"
#include "common/rng.h"

#define GRID_FN __attribute__((unused)) static

enum codes_like {
    CODES_GAUSSIAN,
    CODES_HEAVY,  /* one in eight is five times as wide */
    CODES_UNUSED, /* the ends of the range do not occur */
    CODES_ENDS    /* both ends occur in every group */
};

struct grid_maker {
    int64_t rows, k;
    int group, bits;
    bool offset;       /* w = u * s + m, else q * s */
    enum dtype scale;  /* type of the true scale (and m) */
    enum dtype source; /* what the values are rounded to */
    enum codes_like codes;
    uint64_t seed;
};

struct grid_made {
    struct ckpt_weight w;
    uint8_t *data;
    int16_t *code;       /* q, or u of an offset grid */
    float *scale, *bias; /* one a group; bias 0 without offset */
};

GRID_FN float round_to(enum dtype t, double v)
{
    float f = (float)v;
    if (t == DT_F32)
        return f;
    if (t == DT_F16)
        return f16_to_f32(f16_from_f32(f));
    return bf16_to_f32(bf16_from_f32(f));
}

/* One rounding of a double that may not be an f32: the f32 is made odd first. */
GRID_FN float round_once(enum dtype t, double v)
{
    float f = (float)v;
    if (t == DT_F32 || (double)f == v)
        return round_to(t, v);
    uint32_t u = f32_bits(f);
    if (fabs((double)f) > fabs(v))
        u--;
    return round_to(t, (double)f32_from_bits(u | 1u));
}

GRID_FN int draw_code(const struct grid_maker *m, struct rng *r)
{
    int half = 1 << (m->bits - 1), lo = m->offset ? 0 : -half, hi = lo + 2 * half - 1;
    double width = half * 0.4, center = m->offset ? half - 0.5 : 0.0;
    if (m->codes == CODES_HEAVY)
        width = rng_below(r, 8) ? half * 0.12 : half * 0.6;
    int q = (int)rint(center + width * rng_normal(r));
    int cut = m->codes == CODES_UNUSED ? MAX2(1, half / 4) : 0;
    return MIN2(MAX2(q, lo + cut), hi - cut);
}

GRID_FN void put_value(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v));
}

GRID_FN void grid_make(const struct grid_maker *m, struct grid_made *g)
{
    struct rng r = {m->seed, 0};
    int64_t n = m->rows * m->k, n_groups = n / m->group;
    int half = 1 << (m->bits - 1);
    *g = (struct grid_made){.data = malloc((size_t)n * 4),
                            .code = malloc((size_t)n * sizeof(int16_t)),
                            .scale = malloc((size_t)n_groups * sizeof(float)),
                            .bias = malloc((size_t)n_groups * sizeof(float))};
    if (!g->data || !g->code || !g->scale || !g->bias)
        exit(5);
    for (int64_t i = 0; i < n_groups; i++) {
        double size = exp(-4.0 + 0.7 * rng_normal(&r));
        float s = round_to(m->scale, size / half);
        float b = m->offset ? round_to(m->scale, -size * (0.5 + rng_double(&r))) : 0.0f;
        if (!m->offset && rng_below(&r, 2))
            s = -s;
        g->scale[i] = s;
        g->bias[i] = b;
        for (int64_t j = i * m->group; j < (i + 1) * m->group; j++) {
            int q = draw_code(m, &r);
            if (m->codes == CODES_ENDS && j - i * m->group < 2)
                q = j % 2 ? (m->offset ? 0 : -half) : (m->offset ? 2 * half - 1 : half - 1);
            g->code[j] = (int16_t)q;
            put_value(g->data, m->source, j, round_once(m->source, (double)q * s + (double)b));
        }
    }
    g->w = (struct ckpt_weight){.name = "made.weight",
                                .stored = "made.weight",
                                .enc = CKPT_DENSE,
                                .dtype = m->source,
                                .ggml = GGML_NONE,
                                .n_dim = 2,
                                .dim = {m->rows, m->k},
                                .data = g->data,
                                .role = ROLE_MLP};
    g->w.bytes = (size_t)n * (size_t)dtype_bits(m->source) / 8;
}

GRID_FN void grid_unmake(struct grid_made *g)
{
    free(g->data);
    free(g->code);
    free(g->scale);
    free(g->bias);
}

#endif
