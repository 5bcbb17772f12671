/* experts_rig.h: products with experts on the CPU oracle and a CUDA device side by side
 * (cuda_rig.h): random routes, inputs and weights of one shape, on any of the device's paths, and
 * their comparison byte by byte.
 */
#ifndef ASSAY_TESTS_EXPERTS_RIG_H
#define ASSAY_TESTS_EXPERTS_RIG_H

#include "kernels/cuda/cuda_product.h"
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 51};

/* Pairs by expert, and in a test of the route what else it gives. */
struct routed {
    int32_t *expert, *order, *first;
    float *weight;
};

FIX_FN void free_routed(struct routed *r)
{
    free(r->expert);
    free(r->order);
    free(r->first);
    free(r->weight);
}

#define KIND_CANCEL 4 /* the second 512 k are the first ones negated, both large */

enum spread {
    SPREAD_ANY,  /* the last expert has no pair */
    SPREAD_ONE,  /* all pairs are of one expert */
    SPREAD_FIRST /* a row's slots are the first experts */
};

struct experts {
    int n_tok, n_expert, n_used;
    int64_t rows;
    bool bias, second; /* second: one input row a pair */
    int kind;          /* of rig_inputs, or KIND_CANCEL */
    enum spread spread;
};

/* Pairs by expert. */
FIX_FN struct routed draw_routes(const struct experts *x)
{
    size_t n = (size_t)(x->n_tok * x->n_used), at = 0;
    struct routed r = {malloc(n * 4), malloc(n * 4), calloc((size_t)x->n_expert + 1, 4), NULL};
    for (size_t p = 0; p < n; p++) {
        r.expert[p] = (int32_t)rng_below(&rng, (uint64_t)MAX2(x->n_expert - 1, 1));
        if (x->spread == SPREAD_ONE)
            r.expert[p] = x->n_expert / 2;
        if (x->spread == SPREAD_FIRST)
            r.expert[p] = (int32_t)p % x->n_used;
    }
    for (int e = 0; e < x->n_expert; e++) {
        r.first[e] = (int32_t)at;
        for (size_t p = 0; p < n; p++)
            if (r.expert[p] == e)
                r.order[at++] = (int32_t)p;
    }
    r.first[x->n_expert] = (int32_t)at;
    return r;
}

FIX_FN uint16_t *draw_inputs(const struct experts *x, int n, int64_t k)
{
    uint16_t *in = rig_inputs(&rng, (size_t)(n * k), x->kind == KIND_CANCEL ? 0 : x->kind);
    for (int64_t t = 0; x->kind == KIND_CANCEL && t < n; t++)
        for (int64_t i = t * k; i < t * k + 512; i++) {
            in[i] = bf16_from_f32(65536 * bf16_to_f32(in[i]));
            in[i + 512] = in[i] ^ 0x8000;
        }
    return in;
}

/* What a product is given on one side. */
struct given {
    struct kern *k;
    struct routed r;
    const uint16_t *in;
    const float *bias;
    size_t n_in; /* words of `in` */
};

FIX_FN struct expert_linear_args linear_args(const struct experts *x, const struct given *g,
                                             const struct kern_weight *w)
{
    int n = x->n_tok * x->n_used;
    return (struct expert_linear_args){
        .n_pairs = n,
        .n_expert = x->n_expert,
        .x_div = x->second ? 1 : x->n_used,
        .order = rig_put(g->k, g->r.order, (size_t)n * 4),
        .first = rig_put(g->k, g->r.first, (size_t)(x->n_expert + 1) * 4),
        .x = rig_put(g->k, g->in, g->n_in * 2),
        .w = w,
        .bias = x->bias ? rig_put(g->k, g->bias, (size_t)(x->n_expert * x->rows) * 4) : NULL,
        .out = rig_put(g->k, NULL, (size_t)(n * (x->rows + 3)) * 4),
        .rows = x->rows,
        .out_stride = x->rows + 3};
}

/* Scratch for the paths that want some; a product's `out` is all NaN before it. */
FIX_FN void prepare(struct kern *k, const struct experts *x, int64_t len, void *out, size_t bytes)
{
    struct err e = {.text = ""};
    struct kern_limits l = {.n_tok = x->n_tok,
                            .n_used = x->n_used,
                            .n_head = 1,
                            .head_dim = 1,
                            .k_max = len,
                            .rows_max = 1};
    fix_ok(kern_reserve(k, &l, &e), &e);
    fix_ok(kern_poison(k, &e), &e);
    fix_ok(kern_fill(k, out, 0xff, bytes, &e), &e);
}

/* Ways that a product may take on the device, of cuda_path. */
struct ways {
    int n, way[4];
};

static const struct ways usual = {1, {CUDA_PATH_AUTO}};
static const struct ways each = {4,
                                 {CUDA_PATH_AUTO, CUDA_PATH_PLAIN, CUDA_PATH_FEW, CUDA_PATH_MANY}};

FIX_FN void free_linear(struct kern *k, const struct expert_linear_args *a)
{
    kern_free(k, (void *)a->x);
    kern_free(k, (void *)a->order);
    kern_free(k, (void *)a->first);
    kern_free(k, (void *)a->bias);
    kern_free(k, a->out);
}

/* The first word of the device's outputs in which a way differs from the oracle, or -1; `fault` is
 * planted on the device. */
FIX_FN int64_t compare_experts(struct rig *rig, struct fix_weight *f, const struct experts *x,
                               const struct ways *ways, enum kern_fault fault, const char *what)
{
    int n = x->n_tok * x->n_used, n_in = x->second ? n : x->n_tok;
    int64_t k = f->c.dim[1], stride = x->rows + 3, at = -1;
    size_t words = (size_t)(n * stride);
    struct given g = {.r = draw_routes(x), .n_in = (size_t)(n_in * k)};
    uint16_t *in = draw_inputs(x, n_in, k);
    float *bias = fix_floats(&rng, (size_t)(x->n_expert * x->rows), -1, 1), *expected = NULL;
    g.in = in;
    g.bias = bias;
    for (int s = 0; s < 2; s++) {
        struct kern_weight *w = fix_load(rig->side[s], f);
        struct err e = {.text = ""};
        g.k = rig->side[s];
        struct expert_linear_args a = linear_args(x, &g, w);
        for (int i = 0; i < (s ? ways->n : 1); i++) {
            if (s == 1) {
                prepare(g.k, x, k, a.out, words * 4);
                kern_plant(fault);
                cuda_of(g.k)->force_path = ways->way[i];
            }
            fix_ok(kern_expert_linear(g.k, &a, &e), &e);
            kern_plant(KERN_FAULT_NONE);
            float *got = rig_get(g.k, a.out, words * 4);
            if (s == 0) {
                expected = got;
                continue;
            }
            for (int p = 0; p < n; p++) /* nothing stands behind the rows */
                for (int64_t j = p * stride + x->rows; j < (p + 1) * stride; j++) {
                    ck_assert_uint_eq(f32_bits(got[j]), 0xffffffffu);
                    got[j] = expected[j];
                }
            at = rig_differ(expected, got, words, 4);
            if (fault == KERN_FAULT_NONE)
                ck_assert_msg(at < 0,
                              "%s, way %d, %d pairs, %d experts of %lld x %lld: pair %lld row "
                              "%lld: %08x, expected %08x",
                              what, ways->way[i], n, x->n_expert, (long long)x->rows, (long long)k,
                              (long long)(at / stride), (long long)(at % stride), f32_bits(got[at]),
                              f32_bits(expected[at]));
            free(got);
        }
        free_linear(g.k, &a);
        kern_weight_free(g.k, w);
    }
    free_routed(&g.r);
    free(in);
    free(bias);
    free(expected);
    return at;
}

/* The same for gate and up and their activation. */
FIX_FN int64_t compare_gated(struct rig *rig, struct fix_weight *gate, struct fix_weight *up,
                             const struct experts *x, const struct ways *ways, enum act_kind act,
                             enum kern_fault fault, const char *what)
{
    int n = x->n_tok * x->n_used;
    int64_t k = gate->c.dim[1], at = -1;
    size_t words = (size_t)(n * x->rows);
    struct given g = {.r = draw_routes(x), .n_in = (size_t)(x->n_tok * k)};
    uint16_t *in = draw_inputs(x, x->n_tok, k), *expected = NULL;
    float *bias = fix_floats(&rng, (size_t)(x->n_expert * x->rows), -1, 1);
    g.in = in;
    g.bias = bias;
    for (int s = 0; s < 2; s++) {
        struct kern_weight *w = fix_load(rig->side[s], gate), *v = fix_load(rig->side[s], up);
        struct err e = {.text = ""};
        g.k = rig->side[s];
        struct expert_linear_args l = linear_args(x, &g, w);
        struct expert_gated_args a = {.n_pairs = n, .n_expert = x->n_expert, .x_div = x->n_used};
        a.order = l.order;
        a.first = l.first;
        a.x = l.x;
        a.gate = w;
        a.up = v;
        a.gate_bias = l.bias;
        a.up_bias = l.bias;
        a.rows = x->rows;
        a.act = act;
        a.limit = 2.5f;
        a.alpha = 1.7f;
        a.room = rig_put(g.k, NULL, words * 8);
        a.out = rig_put(g.k, NULL, words * 2);
        for (int i = 0; i < (s ? ways->n : 1); i++) {
            if (s == 1) {
                prepare(g.k, x, k, a.out, words * 2);
                kern_plant(fault);
                cuda_of(g.k)->force_path = ways->way[i];
            }
            fix_ok(kern_expert_gated(g.k, &a, &e), &e);
            kern_plant(KERN_FAULT_NONE);
            uint16_t *got = rig_get(g.k, a.out, words * 2);
            if (s == 0) {
                expected = got;
                continue;
            }
            at = rig_differ(expected, got, words, 2);
            if (fault == KERN_FAULT_NONE)
                ck_assert_msg(at < 0,
                              "%s, gated, way %d, %d pairs, %d experts of %lld x %lld: pair %lld "
                              "row %lld: %04x, expected %04x",
                              what, ways->way[i], n, x->n_expert, (long long)x->rows, (long long)k,
                              (long long)(at / x->rows), (long long)(at % x->rows), got[at],
                              expected[at]);
            free(got);
        }
        free_linear(g.k, &l);
        kern_free(g.k, a.room);
        kern_free(g.k, a.out);
        kern_weight_free(g.k, w);
        kern_weight_free(g.k, v);
    }
    free_routed(&g.r);
    free(in);
    free(bias);
    free(expected);
    return at;
}

/* Formats that they take. */
FIX_FN struct fix_weight fast_weight(int format, int64_t rows, int64_t k)
{
    static const struct qformat affine[] = {
        {4, 64, DT_BF16}, {8, 64, DT_BF16}, {4, 32, DT_BF16}, {8, 32, DT_BF16}, {4, 128, DT_BF16}};
    if (format < (int)ARRAY_LEN(affine))
        return fix_affine(&rng, rows, k / affine[format].group * affine[format].group,
                          affine[format], affine[format].bits == 4 ? 0.02f : 0.002f);
    return fix_mx(&rng, rows, k, QFORMAT_MXFP4, FIX_BLOCK_PLAIN);
}

#define FAST_FORMATS 6

#endif
