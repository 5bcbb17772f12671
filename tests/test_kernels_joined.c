/* test_kernels_joined.c: an operation that holds another one (the gate of a product, the rope of an
 * attention) gives the bits of the two after each other, in both arithmetics; and what does not fit
 * together is refused.
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

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels joined");
    TCase *c = tcase_create("joined");
    tcase_add_loop_test(c, a_gate_equals_its_operation, 0, 2);
    tcase_add_loop_test(c, a_rope_equals_its_operation, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
