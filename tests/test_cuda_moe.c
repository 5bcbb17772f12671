/* test_cuda_moe.c: routing, products with experts and their combination on a CUDA device against
 * the CPU oracle, byte by byte.
 */
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 51};

/* ---- routing ------------------------------------------------------------------------------------
 */
struct routed {
    int32_t *expert, *order, *first;
    float *weight;
};

static struct routed route(struct kern *k, const float *logits, const struct route_args *shape)
{
    struct route_args a = *shape;
    size_t n = (size_t)(a.n_tok * a.n_used), x = (size_t)a.n_expert + 1;
    struct err e = {.text = ""};
    a.logits = rig_put(k, logits, (size_t)(a.n_tok * a.n_expert) * 4);
    a.expert = rig_put(k, NULL, n * 4);
    a.weight = rig_put(k, NULL, n * 4);
    a.order = rig_put(k, NULL, n * 4);
    a.first = rig_put(k, NULL, x * 4);
    fix_ok(kern_route(k, &a, &e), &e);
    return (struct routed){rig_get(k, a.expert, n * 4), rig_get(k, a.order, n * 4),
                           rig_get(k, a.first, x * 4), rig_get(k, a.weight, n * 4)};
}

static void free_routed(struct routed *r)
{
    free(r->expert);
    free(r->order);
    free(r->first);
    free(r->weight);
}

/* values: 0 ordinary, 1 few different ones, 2 NaN and infinities among them. */
static float *draw_logits(size_t n, int values)
{
    float *x = fix_floats(&rng, n, -5, 5);
    for (size_t i = 0; i < n; i++) {
        if (values == 1)
            x[i] = (float)(int)rng_below(&rng, 3);
        if (values == 2 && rng_below(&rng, 9) == 0)
            x[i] = rng_below(&rng, 2) ? NAN : -INFINITY;
    }
    return x;
}

static const struct {
    int n_tok, n_expert, n_used;
} routes[] = {{1, 1, 1},   {1, 4, 2},     {3, 8, 8},    {5, 32, 4},  {33, 60, 4},
              {7, 128, 8}, {300, 128, 8}, {2, 257, 40}, {2000, 8, 2}};

START_TEST(routes_equal_oracle)
{
    struct rig r = rig_open();
    for (int values = 0; values < 3; values++)
        for (int flags = 0; flags < 4; flags++) {
            struct route_args a = {.n_tok = routes[_i].n_tok,
                                   .n_expert = routes[_i].n_expert,
                                   .n_used = routes[_i].n_used,
                                   .softmax_first = flags & 1,
                                   .norm = flags & 2};
            size_t n = (size_t)(a.n_tok * a.n_used);
            float *x = draw_logits((size_t)(a.n_tok * a.n_expert), values);
            struct routed got[2];
            for (int s = 0; s < 2; s++)
                got[s] = route(r.side[s], x, &a);
            ck_assert_msg(memcmp(got[0].expert, got[1].expert, n * 4) == 0,
                          "experts of %d rows, %d of %d", a.n_tok, a.n_used, a.n_expert);
            ck_assert_msg(rig_differ(got[0].weight, got[1].weight, n, 4) < 0,
                          "weights of %d rows, %d of %d, flags %d", a.n_tok, a.n_used, a.n_expert,
                          flags);
            ck_assert_mem_eq(got[0].order, got[1].order, n * 4);
            ck_assert_mem_eq(got[0].first, got[1].first, ((size_t)a.n_expert + 1) * 4);
            free_routed(&got[0]);
            free_routed(&got[1]);
            free(x);
        }
    rig_close(&r);
}
END_TEST

/* ---- products -----------------------------------------------------------------------------------
 */
struct experts {
    int n_tok, n_expert, n_used;
    int64_t rows;
    bool bias, second; /* second: one input row a pair */
    int kind;          /* of rig_inputs */
};

/* Pairs by expert; the last expert has none. */
static struct routed draw_routes(const struct experts *x)
{
    size_t n = (size_t)(x->n_tok * x->n_used), at = 0;
    struct routed r = {malloc(n * 4), malloc(n * 4), calloc((size_t)x->n_expert + 1, 4), NULL};
    for (size_t p = 0; p < n; p++)
        r.expert[p] = (int32_t)rng_below(&rng, (uint64_t)MAX2(x->n_expert - 1, 1));
    for (int e = 0; e < x->n_expert; e++) {
        r.first[e] = (int32_t)at;
        for (size_t p = 0; p < n; p++)
            if (r.expert[p] == e)
                r.order[at++] = (int32_t)p;
    }
    r.first[x->n_expert] = (int32_t)at;
    return r;
}

static void check_experts(struct rig *rig, struct fix_weight *f, const struct experts *x,
                          const char *what)
{
    int n = x->n_tok * x->n_used, n_in = x->second ? n : x->n_tok;
    int64_t k = f->c.dim[1], stride = x->rows + 3;
    struct routed r = draw_routes(x);
    uint16_t *in = rig_inputs(&rng, (size_t)(n_in * k), x->kind);
    float *bias = fix_floats(&rng, (size_t)(x->n_expert * x->rows), -1, 1), *got[2];
    for (int s = 0; s < 2; s++) {
        struct kern *kern = rig->side[s];
        struct kern_weight *w = fix_load(kern, f);
        struct err e = {.text = ""};
        struct expert_linear_args a = {
            .n_pairs = n,
            .n_expert = x->n_expert,
            .x_div = x->second ? 1 : x->n_used,
            .order = rig_put(kern, r.order, (size_t)n * 4),
            .first = rig_put(kern, r.first, (size_t)(x->n_expert + 1) * 4),
            .x = rig_put(kern, in, (size_t)(n_in * k) * 2),
            .w = w,
            .bias = x->bias ? rig_put(kern, bias, (size_t)(x->n_expert * x->rows) * 4) : NULL,
            .out = rig_put(kern, NULL, (size_t)(n * stride) * 4),
            .rows = x->rows,
            .out_stride = stride};
        fix_ok(kern_expert_linear(kern, &a, &e), &e);
        got[s] = rig_get(kern, a.out, (size_t)(n * stride) * 4);
        kern_free(kern, a.out);
        kern_free(kern, (void *)a.x);
        kern_weight_free(kern, w);
    }
    int64_t at = rig_differ(got[0], got[1], (size_t)(n * stride), 4);
    ck_assert_msg(
        at < 0, "%s, %d pairs, %d experts of %lld x %lld: pair %lld row %lld: %08x, expected %08x",
        what, n, x->n_expert, (long long)x->rows, (long long)k, (long long)(at / stride),
        (long long)(at % stride), f32_bits(got[1][at]), f32_bits(got[0][at]));
    free_routed(&r);
    free(in);
    free(bias);
    free(got[0]);
    free(got[1]);
}

static const struct experts products[] = {
    {1, 4, 2, 48, false, false, 0}, {1, 4, 2, 37, true, true, 0},    {9, 3, 3, 16, true, false, 1},
    {40, 5, 2, 50, false, true, 0}, {130, 4, 2, 33, true, false, 3}, {3, 1, 1, 21, false, true, 2},
};

START_TEST(packed_experts_equal_oracle)
{
    static const int all_bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    static const float sizes[] = {0.02f, 3.0f};
    struct rig r = rig_open();
    int bits = all_bits[_i], at = 0;
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (size_t s = 0; s < ARRAY_LEN(scales); s++)
            for (size_t z = 0; z < ARRAY_LEN(sizes); z++)
                for (int64_t k = groups[g]; k < 4000; k = k * 5 + 64 * groups[g] / 32) {
                    const struct experts *x = &products[at++ % (int)ARRAY_LEN(products)];
                    struct qformat q = {bits, groups[g], scales[s]};
                    int64_t len = k / groups[g] * groups[g];
                    char what[64];
                    struct fix_weight f = fix_affine(&rng, x->rows * x->n_expert, len, q, sizes[z]);
                    snprintf(what, sizeof what, "%d bits, groups of %d, %s", bits, groups[g],
                             dtype_name(scales[s]));
                    check_experts(&r, &f, x, what);
                    fix_weight_free(&f);
                }
    rig_close(&r);
}
END_TEST

/* _i: format. */
START_TEST(block_float_experts_equal_oracle)
{
    static const int64_t lens[] = {32, 256, 288, 768, 1056, 2880};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(products) * ARRAY_LEN(lens) * FIX_BLOCK_KINDS; i++) {
        const struct experts *x = &products[i % ARRAY_LEN(products)];
        enum fix_block kind = (enum fix_block)(i / ARRAY_LEN(products) / ARRAY_LEN(lens));
        struct qformat q = fix_blocks[_i];
        if (kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
            continue;
        struct fix_weight f = fix_mx(&rng, x->rows * x->n_expert,
                                     lens[i / ARRAY_LEN(products) % ARRAY_LEN(lens)], q, kind);
        check_experts(&r, &f, x, qformat_mode(q));
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

START_TEST(dense_experts_equal_oracle)
{
    static const int64_t lens[] = {1, 7, 40, 256, 257, 768, 1025, 2056};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(products); i++)
        for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
            const struct experts *x = &products[i];
            struct fix_weight f = fix_dense(&rng, x->rows * x->n_expert, lens[l], DT_BF16);
            check_experts(&r, &f, x, "dense");
            fix_weight_free(&f);
        }
    rig_close(&r);
}
END_TEST

START_TEST(combination_equals_oracle)
{
    struct rig r = rig_open();
    for (int used = 1; used <= 9; used += 4) {
        enum { TOKENS = 7, D = 1003 };
        float *y = fix_floats(&rng, (size_t)(TOKENS * used * D), -9, 9), *got[2];
        float *w = fix_floats(&rng, (size_t)(TOKENS * used), 0, 1);
        y[5] = NAN;
        for (int s = 0; s < 2; s++) {
            struct kern *k = r.side[s];
            struct err e = {.text = ""};
            struct combine_args a = {TOKENS,
                                     used,
                                     D,
                                     rig_put(k, y, (size_t)(TOKENS * used * D) * 4),
                                     rig_put(k, w, (size_t)(TOKENS * used) * 4),
                                     rig_put(k, NULL, (size_t)(TOKENS * D) * 4)};
            fix_ok(kern_combine(k, &a, &e), &e);
            got[s] = rig_get(k, a.out, (size_t)(TOKENS * D) * 4);
        }
        ck_assert_msg(rig_differ(got[0], got[1], (size_t)(TOKENS * D), 4) < 0, "%d slots", used);
        free(y);
        free(w);
        free(got[0]);
        free(got[1]);
    }
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, routes_equal_oracle, 3, 6);
    tcase_add_loop_test(c, packed_experts_equal_oracle, 2, 4);
    tcase_add_loop_test(c, block_float_experts_equal_oracle, 0, 1);
    tcase_add_test(c, combination_equals_oracle);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, routes_equal_oracle, 0, ARRAY_LEN(routes));
    tcase_add_loop_test(c, packed_experts_equal_oracle, 0, 6);
    tcase_add_loop_test(c, block_float_experts_equal_oracle, 0, FIX_BLOCKS);
    tcase_add_test(c, dense_experts_equal_oracle);
    tcase_add_test(c, combination_equals_oracle);
}

Suite *test_suite(void)
{
    return rig_suite("cuda moe", add_tests, add_small);
}
