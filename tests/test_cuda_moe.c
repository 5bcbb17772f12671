/* test_cuda_moe.c: routing, products with experts and their combination on a CUDA device against
 * the CPU oracle, byte by byte.
 */
#include "tests/experts_rig.h"

/* ---- routing ------------------------------------------------------------------------------------
 */
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
} routes[] = {{1, 1, 1},     {1, 4, 2},    {3, 8, 8},    {5, 32, 4},   {33, 60, 4},  {7, 128, 8},
              {300, 128, 8}, {2, 257, 40}, {2000, 8, 2}, {64, 128, 8}, {65, 128, 8}, {32, 256, 32},
              {63, 33, 33},  {0, 128, 8},  {17, 32, 4},  {2, 200, 8}};

static void check_routes(struct rig *r, int n_tok, int n_expert, int n_used)
{
    for (int values = 0; values < 3; values++)
        for (int flags = 0; flags < 4; flags++) {
            struct route_args a = {.n_tok = n_tok,
                                   .n_expert = n_expert,
                                   .n_used = n_used,
                                   .softmax_first = flags & 1,
                                   .norm = flags & 2};
            size_t n = (size_t)(a.n_tok * a.n_used);
            float *x = draw_logits((size_t)(a.n_tok * a.n_expert), values);
            struct routed got[2];
            for (int s = 0; s < 2; s++)
                got[s] = route(r->side[s], x, &a);
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
}

START_TEST(routes_equal_oracle)
{
    struct rig r = rig_open();
    check_routes(&r, routes[_i].n_tok, routes[_i].n_expert, routes[_i].n_used);
    rig_close(&r);
}
END_TEST

START_TEST(routes_of_step_rows_equal_oracle)
{
    struct rig r = rig_open();
    for (int i = 0; i < RIG_COUNTS; i++)
        check_routes(&r, rig_counts[i], _i ? 200 : 16, _i ? 8 : 2);
    rig_close(&r);
}
END_TEST

/* ---- products -----------------------------------------------------------------------------------
 */
static void check_experts(struct rig *rig, struct fix_weight *f, const struct experts *x,
                          const char *what)
{
    (void)compare_experts(rig, f, x, &usual, KERN_FAULT_NONE, what);
}

static const struct experts products[] = {
    {1, 4, 2, 48, false, false, 0, SPREAD_ANY},  {1, 4, 2, 37, true, true, 0, SPREAD_ANY},
    {9, 3, 3, 16, true, false, 1, SPREAD_ANY},   {40, 5, 2, 50, false, true, 0, SPREAD_ANY},
    {130, 4, 2, 33, true, false, 3, SPREAD_ANY}, {3, 1, 1, 21, false, true, 2, SPREAD_ANY},
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

/* ---- the fast paths -----------------------------------------------------------------------------
 */
/* Both products on every path, one shape. */
static void check_fast(struct rig *r, struct fix_weight *a, struct fix_weight *b,
                       const struct experts *x, const char *what)
{
    static const enum act_kind acts[] = {ACT_SILU, ACT_GELU_TANH, ACT_GPTOSS};
    static int turn;
    (void)compare_experts(r, a, x, &each, KERN_FAULT_NONE, what);
    if (!x->second)
        (void)compare_gated(r, a, b, x, &each, acts[turn++ % 3], KERN_FAULT_NONE, what);
}

/* _i: which third of the rows of a step, of which format; the first with all numbers of slots. */
START_TEST(step_rows_equal_oracle)
{
    struct rig r = rig_open();
    const int format = _i / 3;
    struct fix_weight a = fast_weight(format, 16 * 32, 576), b = fast_weight(format, 16 * 32, 576);
    for (size_t i = (size_t)(_i % 3) * 10; i < (size_t)(_i % 3) * 10 + 10; i++)
        for (int used = 2; used <= (format ? 2 : 8); used *= 2) {
            int n = rig_counts[i];
            struct experts x = {n, 16, used, 32, n % 2 == 0, false, format % 3, SPREAD_FIRST};
            check_fast(&r, &a, &b, &x, "first experts");
            x.spread = SPREAD_ANY;
            x.second = used == 4;
            check_fast(&r, &a, &b, &x, "any experts");
        }
    fix_weight_free(&a);
    fix_weight_free(&b);
    rig_close(&r);
}
END_TEST

/* Items of one, four and eight rows, a warp a chunk and a warp a tile. */
START_TEST(few_rows_equal_oracle)
{
    struct rig r = rig_open();
    struct fix_weight a = fast_weight(0, 16 * 32, 576), b = fast_weight(0, 16 * 32, 576);
    for (int n = 1; n <= 36; n += 7) {
        struct experts x = {n, 16, 2, 32, true, false, 0, SPREAD_ANY};
        check_fast(&r, &a, &b, &x, "16 experts");
    }
    fix_weight_free(&a);
    fix_weight_free(&b);
    rig_close(&r);
}
END_TEST

/* _i: format. Lengths of one chunk and of several, whole and cut; rows of whole and half blocks. */
START_TEST(fast_formats_equal_oracle)
{
    static const int64_t lens[] = {128, 256, 320, 768, 1024, 1088, 2048, 2880, 4096};
    static const int64_t rows[] = {32, 96, 48, 160};
    static const int steps[] = {1, 6, 23, 80};
    struct rig r = rig_open();
    for (size_t l = 0; l < ARRAY_LEN(lens); l++)
        for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
            int64_t n_rows = rows[(l + s) % ARRAY_LEN(rows)];
            struct fix_weight a = fast_weight(_i, 5 * n_rows, lens[l]);
            struct fix_weight b = fast_weight(_i, 5 * n_rows, lens[l]);
            struct experts x = {steps[s],         5,         2, n_rows, l % 2 == 0, s % 2 == 1,
                                (int)(l + s) % 4, SPREAD_ANY};
            check_fast(&r, &a, &b, &x, qformat_mode(a.c.q));
            x.spread = SPREAD_ONE;
            x.second = false;
            check_fast(&r, &a, &b, &x, qformat_mode(a.c.q));
            fix_weight_free(&a);
            fix_weight_free(&b);
        }
    rig_close(&r);
}
END_TEST

/* More experts than a warp has lanes, few pairs for each: items of one row and of four. */
START_TEST(many_experts_equal_oracle)
{
    struct rig r = rig_open();
    static const int steps[] = {1, 2, 9, 33, 70};
    struct fix_weight a = fast_weight(0, 130 * 32, 1088), b = fast_weight(0, 130 * 32, 1088);
    for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
        struct experts x = {steps[s], 130, 8, 32, s % 2 == 0, false, 0, SPREAD_ANY};
        check_fast(&r, &a, &b, &x, "130 experts");
    }
    fix_weight_free(&a);
    fix_weight_free(&b);
    rig_close(&r);
}
END_TEST

/* Weights whose second 512 k are the first: 4 bits, groups of 64. */
static struct fix_weight repeated_weight(int64_t rows, int64_t k)
{
    struct fix_weight w = fast_weight(0, rows, k);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(w.data + r * k / 2 + 256, w.data + r * k / 2, 256);
        memcpy(w.scales + r * k / 32 + 16, w.scales + r * k / 32, 16);
        memcpy(w.biases + r * k / 32 + 16, w.biases + r * k / 32, 16);
    }
    return w;
}

/* More chunks than half of a block has warps: as many as it may have, and more. _i: groups. */
START_TEST(long_rows_equal_oracle)
{
    static const int formats[] = {0, 2, 4}, steps[] = {1, 2, 5, 9};
    static const int64_t lens[] = {4352, 8704, 14336, 14848};
    struct rig r = rig_open();
    for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
        struct fix_weight a = fast_weight(formats[_i], 3 * 96, lens[l]);
        for (size_t s = 0; s < ARRAY_LEN(steps); s++) {
            struct experts x = {steps[s], 3, 1, 96, s % 2 == 0, true, (int)s % 4, SPREAD_ANY};
            (void)compare_experts(&r, &a, &x, &each, KERN_FAULT_NONE, "long");
            x.spread = SPREAD_ONE;
            check_experts(&r, &a, &x, "long, of one expert");
        }
        fix_weight_free(&a);
    }
    rig_close(&r);
}
END_TEST

/* Chunk sums in the wrong order must show, through the activation's rounding too: the first two
 * cancel each other unless the small ones have been added before. */
START_TEST(planted_order_shows)
{
    struct rig r = rig_open();
    struct fix_weight a = repeated_weight(8 * 96, 2048), b = repeated_weight(8 * 96, 2048);
    for (int n = 1; n <= 32; n *= 4) {
        struct experts x = {n, 8, 2, 96, false, false, KIND_CANCEL, SPREAD_FIRST};
        ck_assert_int_lt(compare_experts(&r, &a, &x, &usual, KERN_FAULT_NONE, "cancelling"), 0);
        ck_assert_int_ge(compare_experts(&r, &a, &x, &usual, KERN_FAULT_CHUNK_ORDER, "planted"), 0);
        ck_assert_int_ge(
            compare_gated(&r, &a, &b, &x, &usual, ACT_SILU, KERN_FAULT_CHUNK_ORDER, "planted"), 0);
    }
    fix_weight_free(&a);
    fix_weight_free(&b);
    a = repeated_weight(8 * 96, 8704);
    struct experts x = {2, 8, 2, 96, false, true, KIND_CANCEL, SPREAD_FIRST};
    ck_assert_int_lt(compare_experts(&r, &a, &x, &usual, KERN_FAULT_NONE, "long"), 0);
    ck_assert_int_ge(compare_experts(&r, &a, &x, &usual, KERN_FAULT_CHUNK_ORDER, "planted"), 0);
    fix_weight_free(&a);
    rig_close(&r);
}
END_TEST

/* A route inside the gated product, then the second product with the lists it left: the results of
 * both sides after the whole chain, and of the device when it replays it as a graph. */
static const struct {
    int n_tok, n_expert, n_used;
} chains[] = {{1, 128, 8}, {2, 128, 8}, {7, 128, 8},  {8, 128, 4}, {9, 128, 8}, {3, 32, 4},
              {8, 8, 2},   {1, 200, 8}, {40, 128, 8}, {5, 16, 2},  {1, 16, 2},  {1, 100, 5}};

START_TEST(routed_chain_equals_oracle)
{
    enum { D = 576, FF = 64, TURNS = 4 };
    const int n_tok = chains[_i].n_tok, n_expert = chains[_i].n_expert, used = chains[_i].n_used;
    const size_t pairs = (size_t)(n_tok * used), n_out = (size_t)n_tok * D;
    struct rig rig = rig_open();
    struct fix_weight gate = fast_weight(0, n_expert * FF, D),
                      up = fast_weight(0, n_expert * FF, D);
    struct fix_weight down = fast_weight(0, n_expert * (int64_t)D, FF);
    float *logits = draw_logits((size_t)(n_tok * n_expert), 0), *expected = NULL;
    uint16_t *in = rig_inputs(&rng, n_out, 0);
    for (int s = 0; s < 2; s++) {
        struct kern *k = rig.side[s];
        struct kern_step step = {.n_tok = n_tok, .n_seq = 1, .n_out = 1, .keys_max = 64};
        struct err e = {.text = ""};
        struct route_args r = {.n_tok = n_tok, .n_expert = n_expert, .n_used = used};
        struct expert_gated_args g = {.route = &r, .n_pairs = (int)pairs, .n_expert = n_expert};
        struct expert_linear_args l = {.n_pairs = (int)pairs, .n_expert = n_expert, .x_div = 1};
        struct combine_args c = {.n_tok = n_tok, .n_used = used, .d = D};
        r.softmax_first = r.norm = true;
        r.logits = rig_put(k, logits, (size_t)(n_tok * n_expert) * 4);
        r.expert = rig_put(k, NULL, pairs * 4);
        r.weight = rig_put(k, NULL, pairs * 4);
        g.order = l.order = r.order = rig_put(k, NULL, pairs * 4);
        g.first = l.first = r.first = rig_put(k, NULL, ((size_t)n_expert + 1) * 4);
        g.x_div = used;
        g.x = rig_put(k, in, n_out * 2);
        g.gate = fix_load(k, &gate);
        g.up = fix_load(k, &up);
        g.rows = FF;
        g.act = ACT_SILU;
        g.room = rig_put(k, NULL, pairs * FF * 8);
        l.x = g.out = rig_put(k, NULL, pairs * FF * 2);
        l.w = fix_load(k, &down);
        l.rows = l.out_stride = D;
        c.y = l.out = rig_put(k, NULL, pairs * D * 4);
        c.weight = r.weight;
        c.out = rig_put(k, NULL, n_out * 4);
        for (int turn = 0; turn < (s ? TURNS : 1); turn++) {
            bool replayed = false;
            fix_ok(kern_fill(k, r.order, 0xff, pairs * 4, &e), &e);
            fix_ok(kern_fill(k, g.out, 0xff, pairs * FF * 2, &e), &e);
            fix_ok(kern_fill(k, l.out, 0xff, pairs * D * 4, &e), &e);
            if (s)
                fix_ok(kern_step_begin(k, &step, &replayed, &e), &e);
            if (!replayed) {
                fix_ok(kern_expert_gated(k, &g, &e), &e);
                fix_ok(kern_expert_linear(k, &l, &e), &e);
                fix_ok(kern_combine(k, &c, &e), &e);
            }
            if (s && !replayed)
                fix_ok(kern_step_end(k, false, &e), &e);
            float *got = rig_get(k, c.out, n_out * 4);
            if (s == 0) {
                expected = got;
                continue;
            }
            ck_assert_msg(rig_differ(expected, got, n_out, 4) < 0, "%d rows, %d of %d, turn %d",
                          n_tok, used, n_expert, turn);
            free(got);
        }
    }
    free(expected);
    free(logits);
    free(in);
    fix_weight_free(&gate);
    fix_weight_free(&up);
    fix_weight_free(&down);
    rig_close(&rig);
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

/* Every kernel of the route; products: test_cuda_small.c. */
static void add_small(TCase *c)
{
    tcase_add_loop_test(c, routes_equal_oracle, 4, 6);
    tcase_add_loop_test(c, routes_equal_oracle, 7, 8);
    tcase_add_loop_test(c, routes_equal_oracle, 11, 12);
    tcase_add_loop_test(c, routes_equal_oracle, 15, 16);
    tcase_add_loop_test(c, routed_chain_equals_oracle, 9, 10);
    tcase_add_test(c, combination_equals_oracle);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, routes_equal_oracle, 0, ARRAY_LEN(routes));
    tcase_add_loop_test(c, packed_experts_equal_oracle, 0, 6);
    tcase_add_loop_test(c, block_float_experts_equal_oracle, 0, FIX_BLOCKS);
    tcase_add_test(c, dense_experts_equal_oracle);
    tcase_add_test(c, few_rows_equal_oracle);
    tcase_add_loop_test(c, step_rows_equal_oracle, 0, 3 * FAST_FORMATS);
    tcase_add_loop_test(c, routes_of_step_rows_equal_oracle, 0, 2);
    tcase_add_loop_test(c, fast_formats_equal_oracle, 0, FAST_FORMATS);
    tcase_add_test(c, many_experts_equal_oracle);
    tcase_add_loop_test(c, long_rows_equal_oracle, 0, 3);
    tcase_add_test(c, planted_order_shows);
    tcase_add_loop_test(c, routed_chain_equals_oracle, 0, ARRAY_LEN(chains));
    tcase_add_test(c, combination_equals_oracle);
}

Suite *test_suite(void)
{
    return rig_suite("cuda moe", add_tests, add_small);
}
