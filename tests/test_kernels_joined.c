/* test_kernels_joined.c: an operation that holds another one (the gate of a product, the rope of an
 * attention, norms of what it rotates) gives the bits of the two after each other, in both
 * arithmetics; and what does not fit together is refused.
 */
#include "tests/kernels_fixture.h"

static struct rng rng = {.seed = 55};

static void *zeros(struct kern *k, size_t bytes)
{
    struct err e = {.text = ""};
    void *p;
    fix_ok(kern_alloc(k, bytes, &p, &e), &e);
    return p;
}

START_TEST(a_gate_equals_its_operation)
{
    enum { N = 3, K = 640, ROWS = 90 };
    struct kern *k = fix_open((enum kern_arith)_i, "auto", 2);
    struct qformat q = {4, 64, DT_BF16};
    struct fix_weight f[2] = {fix_affine(&rng, ROWS, K, q, 0.02f),
                              fix_affine(&rng, ROWS, K, q, 0.02f)};
    float *x = fix_floats(&rng, N * K, -1, 1);
    struct linear_args a = {.n_tok = N, .x_stride = K, .n_parts = 2};
    size_t act = kern_act_bytes(k);
    void *in = zeros(k, N * K * 4), *out[2] = {zeros(k, N * ROWS * act), zeros(k, N * ROWS * act)};
    float *both = zeros(k, 4 * 2 * N * ROWS);
    struct err e = {.text = ""};
    for (int i = 0; i < N * K; i++) {
        if (act == 4)
            ((float *)in)[i] = x[i];
        else
            ((uint16_t *)in)[i] = bf16_from_f32(x[i]);
    }
    a.x = in;
    for (int i = 0; i < 2; i++)
        a.part[i] = (struct linear_part){fix_load(k, &f[i]), NULL, both + i * ROWS, 2 * ROWS};
    for (int kind = ACT_SILU; kind <= ACT_GPTOSS; kind++) {
        struct act_mul_args m = {N,      ROWS, 2 * ROWS, (enum act_kind)kind, both, both + ROWS,
                                 out[0], 5.5f, 1.3f};
        a.gate.out = NULL;
        fix_ok(kern_linear(k, &a, &e), &e);
        fix_ok(kern_act_mul(k, &m, &e), &e);
        a.gate = (struct linear_gate){out[1], (enum act_kind)kind, 5.5f, 1.3f};
        fix_ok(kern_linear(k, &a, &e), &e);
        ck_assert_mem_eq(out[0], out[1], N * ROWS * act);
    }
    a.n_parts = 1;
    ck_assert_int_eq(kern_linear(k, &a, &e), ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(e.text, "a gate takes two"));
    a.n_parts = 2;
    a.gate.limit = 0;
    ck_assert_int_eq(kern_linear(k, &a, &e), ERR_INTERNAL);
    for (int i = 0; i < 2; i++) {
        kern_weight_free(k, (struct kern_weight *)(uintptr_t)a.part[i].w);
        kern_free(k, out[i]);
        fix_weight_free(&f[i]);
    }
    kern_free(k, in);
    kern_free(k, both);
    free(x);
    kern_close(k);
}
END_TEST

START_TEST(a_rope_equals_its_operation)
{
    enum { HEADS = 4, KV = 2, HD = 32, ROW = (HEADS + 2 * KV) * HD, TOKENS = 3 };
    struct kern *k = fix_open((enum kern_arith)_i, "auto", 2);
    size_t act = kern_act_bytes(k), page = kern_page_bytes(k, KV, HD);
    size_t bytes = TOKENS * HEADS * HD * act;
    int32_t pos[TOKENS] = {0, 1, 0}, seq[TOKENS] = {0, 0, 1}, pages[2] = {1, 0};
    struct kern_rows rows = {TOKENS, NULL, pos, seq, pages, 2, 1, 2};
    float *x = fix_floats(&rng, TOKENS * ROW, -2, 2), *table = fix_floats(&rng, 2 * HD, -1, 1);
    void *kv[2], *q[2], *out[2];
    for (int joined = 0; joined < 2; joined++) {
        struct err e = {.text = ""};
        kv[joined] = zeros(k, 2 * page);
        q[joined] = zeros(k, bytes);
        out[joined] = zeros(k, bytes);
        struct rope_kv_args r = {
            &rows, HEADS, KV,        HD,        HD, x, x + HEADS * HD, x + (HEADS + KV) * HD,
            ROW,   table, q[joined], kv[joined]};
        struct attention_args a = {.rows = &rows, .n_head = HEADS, .n_kv = KV, .head_dim = HD};
        a.q = q[joined];
        a.kv = kv[joined];
        a.scale = 0.2f;
        a.out = out[joined];
        if (!joined)
            fix_ok(kern_rope_kv(k, &r, &e), &e);
        a.rope = joined ? &r : NULL;
        fix_ok(kern_attention(k, &a, &e), &e);
        r.n_kv = 1;
        ck_assert_int_eq(kern_attention(k, &a, &e), joined ? ERR_INTERNAL : ERR_OK);
    }
    ck_assert_mem_eq(out[0], out[1], bytes);
    ck_assert_mem_eq(kv[0], kv[1], 2 * page);
    for (int i = 0; i < 2; i++) {
        kern_free(k, kv[i]);
        kern_free(k, q[i]);
        kern_free(k, out[i]);
    }
    free(x);
    free(table);
    kern_close(k);
}
END_TEST

/* Attention of two tokens with rope and norms of its heads: of q and k (0), of v too (1), or where
 * v is made of k (2). */
START_TEST(norms_of_heads_equal_their_operation)
{
    enum { HEADS = 4, KV = 2, HD = 32, ROW = (HEADS + 2 * KV) * HD, TOKENS = 2 };
    struct kern *k = fix_open((enum kern_arith)(_i % 2), "auto", 2);
    const int kind = _i / 2;
    size_t act = kern_act_bytes(k), page = kern_page_bytes(k, KV, HD);
    size_t bytes = TOKENS * HEADS * HD * act;
    int32_t pos[TOKENS] = {0, 1}, seq[TOKENS] = {0, 0}, pages[1] = {0};
    struct kern_rows rows = {TOKENS, NULL, pos, seq, pages, 1, 1, 2};
    float *drawn = fix_floats(&rng, TOKENS * ROW, -2, 2), *table = fix_floats(&rng, 2 * HD, -1, 1);
    float *w = fix_floats(&rng, 3 * HD, -1, 1), *x[2];
    void *kv[2], *q[2], *out[2];
    for (int joined = 0; joined < 2; joined++) {
        struct err e = {.text = ""};
        kv[joined] = zeros(k, page);
        q[joined] = zeros(k, bytes);
        out[joined] = zeros(k, bytes);
        x[joined] = zeros(k, TOKENS * ROW * 4);
        memcpy(x[joined], drawn, TOKENS * ROW * 4);
        float *keys = x[joined] + HEADS * HD, *values = keys + KV * HD;
        struct norm_heads_args n = {TOKENS, HEADS, KV,     HD,   x[joined], keys,  values,
                                    ROW,    w,     w + HD, NULL, kind == 2, 1e-6f, true};
        struct rope_kv_args r = {&rows, HEADS,  KV,  HD,    HD,        x[joined],
                                 keys,  values, ROW, table, q[joined], kv[joined]};
        struct attention_args a = {.rows = &rows, .n_head = HEADS, .n_kv = KV, .head_dim = HD};
        n.v_norm = kind ? w + 2 * (ptrdiff_t)HD : NULL;
        a.q = q[joined];
        a.kv = kv[joined];
        a.scale = 0.2f;
        a.out = out[joined];
        a.rope = &r;
        if (joined)
            a.norm = &n;
        else
            fix_ok(kern_norm_heads(k, &n, &e), &e);
        fix_ok(kern_attention(k, &a, &e), &e);
    }
    ck_assert_mem_eq(out[0], out[1], bytes);
    ck_assert_mem_eq(kv[0], kv[1], page);
    for (int i = 0; i < 2; i++) {
        kern_free(k, kv[i]);
        kern_free(k, q[i]);
        kern_free(k, out[i]);
        kern_free(k, x[i]);
    }
    free(drawn);
    free(table);
    free(w);
    kern_close(k);
}
END_TEST

START_TEST(norms_that_do_not_fit_are_refused)
{
    enum { HEADS = 4, KV = 2, HD = 32, ROW = (HEADS + 2 * KV) * HD };
    static float x[ROW + 1], w[HD], table[HD], out[HEADS * HD];
    static const struct {
        const char *why;
        int what;
    } cases[] = {{"without their rope", 0},    {"not those of its rope", 1},
                 {"not those of its rope", 2}, {"not those of its rope", 3},
                 {"other heads", 4},           {"other heads", 5}};
    struct kern *k = fix_open(KERN_F32, "auto", 1);
    int32_t at[2] = {0, 0};
    struct kern_rows rows = {1, NULL, at, at, at, 1, 1, 1};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        void *kv = zeros(k, kern_page_bytes(k, KV, HD));
        struct norm_heads_args n = {
            1,   HEADS, KV, HD,   x,     x + HEADS * HD, x + (HEADS + KV) * HD,
            ROW, w,     w,  NULL, false, 1e-6f,          false};
        struct rope_kv_args r = {&rows, HEADS, KV, HD, HD, x, n.k, n.v, ROW, table, out, kv};
        struct attention_args a = {.rows = &rows, .n_head = HEADS, .n_kv = KV, .head_dim = HD};
        struct err e = {.text = ""};
        a.q = out;
        a.kv = kv;
        a.scale = 1;
        a.out = out;
        a.rope = cases[i].what == 0 ? NULL : &r;
        a.norm = &n;
        n.n_tok += cases[i].what == 1;
        n.n_head *= cases[i].what == 2 ? 2 : 1;
        n.stride += cases[i].what == 3;
        n.q += cases[i].what == 4;
        n.v += cases[i].what == 5;
        ck_assert_int_eq(kern_attention(k, &a, &e), ERR_INTERNAL);
        ck_assert_msg(strstr(e.text, cases[i].why) != NULL, "case %zu: %s", i, e.text);
        kern_free(k, kv);
    }
    kern_close(k);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels joined");
    TCase *c = tcase_create("joined");
    tcase_add_loop_test(c, a_gate_equals_its_operation, 0, 2);
    tcase_add_loop_test(c, a_rope_equals_its_operation, 0, 2);
    tcase_add_loop_test(c, norms_of_heads_equal_their_operation, 0, 6);
    tcase_add_test(c, norms_that_do_not_fit_are_refused);
    suite_add_tcase(s, c);
    return s;
}
