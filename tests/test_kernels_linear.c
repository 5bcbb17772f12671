/* test_kernels_linear.c: rule 2 in the f32 arithmetic: every format, instruction set, row count and
 * thread count against the plain reference, bit by bit; rows know nothing of each other; and each
 * of these comparisons is seen to fail under a planted fault.
 */
#include <math.h>
#include <stdio.h>

#include "tests/kernels_fixture.h"

static const int bits_all[] = {2, 3, 4, 5, 6, 8};
static const int group_all[] = {32, 64, 128};
static const enum dtype type_all[] = {DT_BF16, DT_F16, DT_F32};
static const int m_all[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,  13,  14, 15,
                            16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};

static void run(struct kern *k, const struct kern_weight *w, const float *x, int n, float *out,
                const float *bias)
{
    struct err e = {.text = ""};
    int64_t rows = kern_weight_rows(w), cols = kern_weight_k(w);
    struct linear_args a = {
        .n_tok = n, .x = x, .x_stride = cols, .n_parts = 1, .part = {{w, bias, out, rows}}};
    fix_ok(kern_linear(k, &a, &e), &e);
}

/* n rows against the reference; the text says where. */
static void expect_reference(const char *isa, int threads, const struct fix_weight *w, int n,
                             const char *what)
{
    int64_t rows = w->c.dim[0], cols = w->c.dim[1];
    struct rng r = {.seed = 11};
    struct kern *k = fix_open(KERN_F32, isa, threads);
    struct kern_weight *kw = fix_load(k, w);
    float *x = fix_floats(&r, (size_t)(n * cols), -2, 2);
    float *bias = fix_floats(&r, (size_t)rows, -1, 1);
    float *out = fix_floats(&r, (size_t)(n * rows), 0, 0);
    run(k, kw, x, n, out, bias);
    for (int t = 0; t < n; t++)
        for (int64_t i = 0; i < rows; i++) {
            float want = fix_dot(w->value + i * cols, x + t * cols, cols) + bias[i];
            float got = out[t * rows + i];
            ck_assert_msg(fix_same(want, got),
                          "%s, %s, %d rows, K %lld: row %d, output %lld: %a, "
                          "expected %a",
                          isa, what, n, (long long)cols, t, (long long)i, (double)got,
                          (double)want);
        }
    const struct ckpt_weight *part = &w->c;
    ck_assert_uint_eq(kern_weight_bytes(k, &part, 1), kw->bytes);
    free(x);
    free(bias);
    free(out);
    kern_weight_free(k, kw);
    kern_close(k);
}

/* _i: bits * 3 + scale type. */
START_TEST(every_format_and_variant_equals_the_reference)
{
    static const int64_t k_all[] = {128, 384, 1152, 2176};
    int bits = bits_all[_i / 3];
    enum dtype type = type_all[_i % 3];
    struct rng r = {.seed = (uint64_t)_i + 1};
    for (size_t g = 0; g < ARRAY_LEN(group_all); g++)
        for (size_t s = 0; s < ARRAY_LEN(k_all); s++) {
            struct qformat q = {bits, group_all[g], type};
            struct fix_weight w = fix_affine(&r, s == 1 ? 67 : 7, k_all[s], q, 0.1f);
            char what[64];
            snprintf(what, sizeof what, "%d bits, group %d, %s", bits, q.group, dtype_name(type));
            /* Plain C calls fmaf in the library: two lengths are enough for it. */
            bool any = kern_isa_list()[1] != NULL;
            for (const char *const *isa = kern_isa_list() + (any && s >= 2); *isa; isa++) {
                expect_reference(*isa, 1, &w, 1, what);
                expect_reference(*isa, 2, &w, 5, what);
            }
            fix_weight_free(&w);
        }
}
END_TEST

/* _i: format * kinds + kind. */
START_TEST(block_floats_equal_the_reference)
{
    static const int64_t k_all[] = {32, 96, 384, 1056, 2176};
    struct qformat q = fix_blocks[_i / FIX_BLOCK_KINDS];
    enum fix_block kind = (enum fix_block)(_i % FIX_BLOCK_KINDS);
    struct rng r = {.seed = (uint64_t)_i + 60};
    if (kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
        return;
    for (size_t s = 0; s < ARRAY_LEN(k_all); s++) {
        struct fix_weight w = fix_mx(&r, s == 2 ? 67 : 7, k_all[s], q, kind);
        for (const char *const *isa = kern_isa_list(); *isa; isa++) {
            expect_reference(*isa, 1, &w, 1, qformat_mode(q));
            expect_reference(*isa, 2, &w, 5, qformat_mode(q));
        }
        fix_weight_free(&w);
    }
}
END_TEST

START_TEST(block_floats_with_a_nan_are_refused)
{
    struct rng r = {.seed = 71};
    for (int i = 0; i < 6; i++) {
        struct qformat q = i < 2 ? QFORMAT_MXFP4 : i < 4 ? QFORMAT_MXFP8 : QFORMAT_NVFP4;
        struct fix_weight w = fix_mx(&r, 40, 64, q, FIX_BLOCK_PLAIN);
        const struct ckpt_weight *part = &w.c;
        bool element = i == 3;
        if (element)
            w.data[39 * 64 + 5] = 0xff;
        else
            w.scales[39 * (64 / q.group)] = i == 5 ? 0x7f : 0xff;
        for (int arith = KERN_F32; arith <= KERN_MMA90; arith++) {
            struct kern *k = fix_open((enum kern_arith)arith, "auto", 2);
            struct kern_weight *kw = NULL;
            struct err e = {.text = ""};
            ck_assert_int_eq(kern_weight_load(k, &part, 1, &kw, &e), ERR_INPUT);
            const char *words = element ? "row 39: element 5 is a NaN" : "row 39: scale 0 is a NaN";
            ck_assert_msg(strstr(e.text, words) != NULL, "%s", e.text);
            kern_close(k);
        }
        fix_weight_free(&w);
    }
}
END_TEST

START_TEST(dense_weights_equal_the_reference)
{
    static const int64_t k_all[] = {32, 96, 577, 1536, 4128};
    struct rng r = {.seed = 5};
    for (size_t s = 0; s < ARRAY_LEN(k_all); s++) {
        struct fix_weight w = fix_dense(&r, 37, k_all[s], type_all[_i]);
        for (const char *const *isa = kern_isa_list(); *isa; isa++) {
            expect_reference(*isa, 1, &w, 1, dtype_name(type_all[_i]));
            expect_reference(*isa, 2, &w, 7, dtype_name(type_all[_i]));
        }
        fix_weight_free(&w);
    }
}
END_TEST

START_TEST(lengths_at_the_edges_of_chunks_equal_the_reference)
{
    static const int64_t k_all[] = {32,   96,   224,  256,  288,  576,  992, 1024,
                                    1056, 1504, 1536, 1568, 4096, 4128, 5152};
    struct rng r = {.seed = 6};
    for (size_t s = 0; s < ARRAY_LEN(k_all); s++) {
        struct fix_weight w = fix_affine(&r, 32, k_all[s], (struct qformat){4, 32, DT_BF16}, 0.1f);
        for (const char *const *isa = kern_isa_list(); *isa; isa++) {
            expect_reference(*isa, 1, &w, 1, "4 bits");
            expect_reference(*isa, 1, &w, 3, "4 bits");
        }
        fix_weight_free(&w);
    }
}
END_TEST

/* Scales so small that a scale over 64 is no float: the shifted form has to be used. */
START_TEST(tiny_scales_equal_the_reference)
{
    struct rng r = {.seed = 7};
    for (size_t b = 0; b < ARRAY_LEN(bits_all); b++) {
        struct qformat q = {bits_all[b], 32, DT_F32};
        struct fix_weight w = fix_affine(&r, 32, 96, q, 0x1p-126f);
        for (const char *const *isa = kern_isa_list(); *isa; isa++) {
            expect_reference(*isa, 1, &w, 1, "tiny scales");
            expect_reference(*isa, 1, &w, 4, "tiny scales");
        }
        fix_weight_free(&w);
    }
}
END_TEST

/* ---- invariances ------------------------------------------------------------------------------
 */
/* Runs rows one by one and in every count of m_all, on a variant and threads; gives the number of
 * outputs that differ. */
static int64_t count_differences(const char *isa, int threads, bool nan_neighbours,
                                 struct qformat q)
{
    enum { ROWS = 40, K = 1056, M_MAX = 257 };
    struct rng r = {.seed = 21};
    struct fix_weight w = qformat_is_block(q) ? fix_mx(&r, ROWS, K, q, FIX_BLOCK_PLAIN)
                                              : fix_affine(&r, ROWS, K, q, 0.1f);
    struct kern *one = fix_open(KERN_F32, isa, 1), *k = fix_open(KERN_F32, isa, threads);
    struct kern_weight *w_one = fix_load(one, &w), *kw = fix_load(k, &w);
    float *x = fix_floats(&r, (size_t)M_MAX * K, -1, 1);
    float *alone = fix_floats(&r, (size_t)M_MAX * ROWS, 0, 0);
    float *out = fix_floats(&r, (size_t)M_MAX * ROWS, 0, 0);
    int64_t n_diff = 0;
    for (int t = 0; nan_neighbours && t < M_MAX; t += 3)
        x[t * K + t % K] = NAN;
    for (int t = 0; t < M_MAX; t++)
        run(one, w_one, x + t * K, 1, alone + t * ROWS, NULL);
    for (size_t i = 0; i < ARRAY_LEN(m_all); i++) {
        int n = m_all[i], first = (int)i % 3 * (M_MAX - n) / 2;
        run(k, kw, x + first * K, n, out, NULL);
        for (int j = 0; j < n * ROWS; j++)
            n_diff += !fix_same(out[j], alone[first * ROWS + j]);
    }
    kern_weight_free(one, w_one);
    kern_weight_free(k, kw);
    kern_close(one);
    kern_close(k);
    free(x);
    free(alone);
    free(out);
    fix_weight_free(&w);
    return n_diff;
}

static int64_t count_batch_differences(const char *isa, int threads, bool nan_neighbours)
{
    return count_differences(isa, threads, nan_neighbours, (struct qformat){4, 32, DT_BF16});
}

START_TEST(a_row_of_block_floats_does_not_depend_on_the_batch)
{
    for (const char *const *isa = kern_isa_list() + 1; *isa; isa++)
        ck_assert_int_eq(count_differences(*isa, 2, true, fix_blocks[_i]), 0);
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    ck_assert_int_gt(count_differences("auto", 1, false, fix_blocks[_i]), 0);
    kern_plant(KERN_FAULT_THREAD_ORDER);
    ck_assert_int_gt(count_differences("auto", 2, false, fix_blocks[_i]), 0);
    kern_plant(KERN_FAULT_NONE);
}
END_TEST

START_TEST(a_row_does_not_depend_on_the_batch)
{
    for (const char *const *isa = kern_isa_list() + 1; *isa; isa++)
        for (int threads = 1; threads <= 3; threads++)
            ck_assert_int_eq(count_batch_differences(*isa, threads, false), 0);
    ck_assert_int_eq(count_batch_differences("c", 2, false), 0);
}
END_TEST

START_TEST(a_row_does_not_see_a_nan_beside_it)
{
    for (const char *const *isa = kern_isa_list(); *isa; isa++)
        ck_assert_int_eq(count_batch_differences(*isa, 2, true), 0);
}
END_TEST

START_TEST(planted_faults_are_seen)
{
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    ck_assert_int_gt(count_batch_differences("auto", 1, false), 0);
    kern_plant(KERN_FAULT_NEIGHBOUR);
    ck_assert_int_gt(count_batch_differences("auto", 1, true), 0);
    kern_plant(KERN_FAULT_THREAD_ORDER);
    ck_assert_int_eq(count_batch_differences("auto", 1, false), 0);
    ck_assert_int_gt(count_batch_differences("auto", 2, false), 0);
    kern_plant(KERN_FAULT_NONE);
}
END_TEST

/* ---- shapes of the call ------------------------------------------------------------------------
 */
START_TEST(parts_strides_and_stacks_change_nothing)
{
    enum { K = 192, N = 9, PAD = 5 };
    struct rng r = {.seed = 31};
    struct qformat q = {6, 64, DT_F16};
    struct fix_weight w[3] = {fix_affine(&r, 40, K, q, 0.2f), fix_affine(&r, 33, K, q, 0.2f),
                              fix_affine(&r, 7, K, q, 0.2f)};
    struct kern *k = fix_open(KERN_F32, "auto", 2);
    struct err e = {.text = ""};
    float *x = fix_floats(&r, N * (K + PAD), -1, 1), *bias = fix_floats(&r, 40, -1, 1);
    float *out[3], *stacked = fix_floats(&r, N * 80, 0, 0);
    struct linear_args a = {.n_tok = N, .x = x, .x_stride = K + PAD, .n_parts = 3};
    for (int p = 0; p < 3; p++) {
        out[p] = fix_floats(&r, N * 50, 7, 7);
        a.part[p] = (struct linear_part){fix_load(k, &w[p]), p ? NULL : bias, out[p], 50};
    }
    fix_ok(kern_linear(k, &a, &e), &e);
    const struct ckpt_weight *parts[3] = {&w[0].c, &w[1].c, &w[2].c};
    struct kern_weight *all;
    fix_ok(kern_weight_load(k, parts, 3, &all, &e), &e);
    ck_assert_int_eq(kern_weight_rows(all), 80);
    struct linear_args b = {
        .n_tok = N, .x = x, .x_stride = K + PAD, .n_parts = 1, .part = {{all, NULL, stacked, 80}}};
    fix_ok(kern_linear(k, &b, &e), &e);
    for (int t = 0; t < N; t++) {
        int64_t at = 0;
        for (int p = 0; p < 3; p++) {
            int64_t rows = w[p].c.dim[0];
            for (int64_t i = 0; i < rows; i++, at++) {
                float dot = fix_dot(w[p].value + i * K, x + t * (K + PAD), K);
                ck_assert(fix_same(out[p][t * 50 + i], p ? dot : dot + bias[i]));
                ck_assert(fix_same(stacked[t * 80 + at], dot));
            }
            for (int64_t i = rows; i < 50; i++)
                ck_assert_float_eq(out[p][t * 50 + i], 7); /* nothing beyond the rows */
        }
    }
    for (int p = 0; p < 3; p++) {
        kern_weight_free(k, (struct kern_weight *)(uintptr_t)a.part[p].w);
        free(out[p]);
        fix_weight_free(&w[p]);
    }
    kern_weight_free(k, all);
    kern_close(k);
    free(x);
    free(bias);
    free(stacked);
}
END_TEST

START_TEST(expert_products_equal_the_reference)
{
    enum { K = 160, ROWS = 45, EXPERTS = 5, TOKENS = 70, USED = 2, PAIRS = TOKENS * USED };
    struct rng r = {.seed = 41};
    struct fix_weight w =
        _i ? fix_mx(&r, ROWS * EXPERTS, K, QFORMAT_MXFP4, FIX_BLOCK_PLAIN)
           : fix_affine(&r, ROWS * EXPERTS, K, (struct qformat){4, 32, DT_BF16}, 0.2f);
    float *x = fix_floats(&r, TOKENS * K, -1, 1), *out = fix_floats(&r, PAIRS * ROWS, 0, 0);
    float *bias = fix_floats(&r, EXPERTS * ROWS, -1, 1);
    float *logits = fix_floats(&r, TOKENS * EXPERTS, -1, 1);
    int32_t expert[PAIRS], order[PAIRS], first[EXPERTS + 1];
    float weight[PAIRS];
    for (int t = 0; t < TOKENS; t++)
        logits[t * EXPERTS + 3] = -100; /* an expert that nobody takes */
    for (const char *const *isa = kern_isa_list(); *isa; isa++) {
        struct kern *k = fix_open(KERN_F32, *isa, 2);
        struct kern_weight *kw = fix_load(k, &w);
        struct err e = {.text = ""};
        struct route_args ra = {.n_tok = TOKENS,
                                .n_expert = EXPERTS,
                                .n_used = USED,
                                .logits = logits,
                                .expert = expert,
                                .weight = weight,
                                .order = order,
                                .first = first};
        fix_ok(kern_route(k, &ra, &e), &e);
        ck_assert_int_eq(first[3], first[4]);
        struct expert_linear_args a = {.n_pairs = PAIRS,
                                       .n_expert = EXPERTS,
                                       .x_div = USED,
                                       .order = order,
                                       .first = first,
                                       .x = x,
                                       .w = kw,
                                       .bias = bias,
                                       .out = out,
                                       .rows = ROWS,
                                       .out_stride = ROWS};
        fix_ok(kern_expert_linear(k, &a, &e), &e);
        for (int p = 0; p < PAIRS; p++)
            for (int i = 0; i < ROWS; i++) {
                int64_t row = expert[p] * ROWS + i;
                float want = fix_dot(w.value + row * K, x + p / USED * K, K) + bias[row];
                ck_assert(fix_same(out[p * ROWS + i], want));
            }
        kern_weight_free(k, kw);
        kern_close(k);
    }
    free(x);
    free(out);
    free(bias);
    free(logits);
    fix_weight_free(&w);
}
END_TEST

START_TEST(weights_that_do_not_fit_together_are_refused)
{
    struct rng r = {.seed = 51};
    struct fix_weight a = fix_affine(&r, 4, 64, (struct qformat){4, 32, DT_BF16}, 0.1f);
    struct fix_weight b = fix_affine(&r, 4, 64, (struct qformat){8, 32, DT_BF16}, 0.1f);
    struct fix_weight c = fix_dense(&r, 4, 64, DT_BF16), d = fix_dense(&r, 4, 32, DT_BF16);
    struct kern *k = fix_open(KERN_F32, "auto", 1);
    const struct ckpt_weight *pairs[][2] = {{&a.c, &b.c}, {&a.c, &c.c}, {&c.c, &d.c}};
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        struct kern_weight *w;
        struct err e = {.text = ""};
        ck_assert_int_eq(kern_weight_load(k, pairs[i], 2, &w, &e), ERR_INPUT);
        ck_assert_ptr_null(w);
        ck_assert_uint_gt(strlen(e.text), 10);
    }
    kern_close(k);
    fix_weight_free(&a);
    fix_weight_free(&b);
    fix_weight_free(&c);
    fix_weight_free(&d);
}
END_TEST

START_TEST(wrong_arguments_and_names_are_refused)
{
    struct kern *k = fix_open(KERN_F32, "c", 1);
    struct err e = {.text = ""};
    ck_assert_int_eq(kern_linear(k, &(struct linear_args){.n_tok = 1}, &e), ERR_INTERNAL);
    ck_assert_int_eq(kern_add(k, &(struct add_args){.n = -1}, &e), ERR_INTERNAL);
    float h[4] = {0};
    ck_assert_int_eq(kern_add(k, &(struct add_args){.n = 4, .h = h}, &e), ERR_INTERNAL);
    struct add_args scaled = {.n = 4, .h = h, .scale = 2, .out = h};
    ck_assert_int_eq(kern_add(k, &scaled, &e), ERR_INTERNAL);
    ck_assert_int_eq(kern_route_scale(k, &(struct route_scale_args){.n_pairs = 1}, &e),
                     ERR_INTERNAL);
    struct kern_rows rows = {.n_tok = 1};
    struct rope_kv_args rope = {.rows = &rows, .n_head = 1, .head_dim = 4, .rot_dim = 4};
    rope.q = rope.k = rope.cos_sin = h;
    rope.q_out = h;
    ck_assert_int_eq(kern_rope_kv(k, &rope, &e), ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(e.text, "0 KV heads"));
    kern_close(k);
    struct kern_options o = {.device = "tpu"};
    ck_assert_int_eq(kern_open(&k, &o, &e), ERR_USAGE);
    o = (struct kern_options){.device = "cpu", .isa = "sse9"};
    ck_assert_int_eq(kern_open(&k, &o, &e), ERR_USAGE);
    ck_assert_ptr_null(k);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels_linear");
    TCase *t = tcase_create("linear");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, every_format_and_variant_equals_the_reference, 0, 18);
    tcase_add_loop_test(t, block_floats_equal_the_reference, 0, 3 * FIX_BLOCK_KINDS);
    tcase_add_test(t, block_floats_with_a_nan_are_refused);
    tcase_add_loop_test(t, a_row_of_block_floats_does_not_depend_on_the_batch, 0, 3);
    tcase_add_loop_test(t, dense_weights_equal_the_reference, 0, 3);
    tcase_add_test(t, lengths_at_the_edges_of_chunks_equal_the_reference);
    tcase_add_test(t, tiny_scales_equal_the_reference);
    tcase_add_test(t, a_row_does_not_depend_on_the_batch);
    tcase_add_test(t, a_row_does_not_see_a_nan_beside_it);
    tcase_add_test(t, planted_faults_are_seen);
    tcase_add_test(t, parts_strides_and_stacks_change_nothing);
    tcase_add_test(t, expert_products_equal_the_reference);
    tcase_add_test(t, weights_that_do_not_fit_together_are_refused);
    tcase_add_test(t, wrong_arguments_and_names_are_refused);
    suite_add_tcase(s, t);
    return s;
}
