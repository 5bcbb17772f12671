/* test_kernels_residual.c: norms of heads, and what follows a part of a layer, give the bits of
 * their parts one after the other, in both arithmetics; and what does not fit together is refused.
 */
#include "tests/kernels_fixture.h"

#define N    3
#define D    576
#define USED 4
#define ALL  ((size_t)N * D)

static struct rng rng = {.seed = 56};

static void *copy_of(struct kern *k, const void *from, size_t bytes)
{
    struct err e = {.text = ""};
    void *p;
    fix_ok(kern_alloc(k, bytes, &p, &e), &e);
    if (from)
        fix_ok(kern_upload(k, p, from, bytes, &e), &e);
    return p;
}

static void norm(struct kern *k, float *h, const float *add, const float *w, bool f32, void *out)
{
    struct rms_norm_args a = {
        .n_rows = N, .inner = 1, .stride = D, .out_stride = D, .d = D, .h = h, .add = add};
    struct err e = {.text = ""};
    a.w = w;
    a.eps = 1e-5f;
    a.out_f32 = f32;
    a.out = out;
    fix_ok(kern_rms_norm(k, &a, &e), &e);
}

/* One case: inputs that both ways start from, and the memory of each. */
struct way {
    float *h, *delta, *sum, *weight;
    void *x;
    struct combine_args c;
    struct route_scale_args scale;
};

static struct way open_way(struct kern *k, const float *h, const float *y, const float *weight,
                           const float *scale, const int32_t *expert)
{
    struct way w = {.h = copy_of(k, h, ALL * 4), .delta = copy_of(k, h + ALL, ALL * 4)};
    w.sum = copy_of(k, NULL, ALL * 4);
    w.weight = copy_of(k, weight, N * USED * 4);
    w.x = copy_of(k, NULL, 2 * ALL * kern_act_bytes(k));
    w.c = (struct combine_args){N, USED, D, y, w.weight, w.sum};
    w.scale = (struct route_scale_args){N * USED, 8, expert, scale, w.weight};
    return w;
}

static void close_way(struct kern *k, struct way *w)
{
    kern_free(k, w->h);
    kern_free(k, w->delta);
    kern_free(k, w->sum);
    kern_free(k, w->weight);
    kern_free(k, w->x);
}

/* All stages, as Gemma 4's layer with experts ends: planted, the parts that are left undone show.
 */
START_TEST(a_residual_equals_its_parts)
{
    struct kern *k = fix_open((enum kern_arith)(_i % 2), "auto", 2);
    const size_t act = kern_act_bytes(k);
    float *h = fix_floats(&rng, 2 * ALL, -2, 2), *y = fix_floats(&rng, ALL * USED, -2, 2);
    float *weight = fix_floats(&rng, N * USED, 0, 1), *scale = fix_floats(&rng, 8, 0.5f, 2);
    float *norms = fix_floats(&rng, (size_t)5 * D, 0.5f, 2);
    int32_t expert[N * USED] = {0, 3, 7, 1, 2, 5, 6, 4, 7, 0, 1, 2};
    struct way parts = open_way(k, h, y, weight, scale, expert);
    struct way joined = open_way(k, h, y, weight, scale, expert);
    struct add_args add = {.n = (int64_t)ALL, .h = parts.h, .x = parts.delta, .scale = 0.7f};
    struct residual_args a = {.n_rows = N, .d = D, .h = joined.h, .delta = joined.delta};
    struct err e = {.text = ""};
    fix_ok(kern_route_scale(k, &parts.scale, &e), &e);
    fix_ok(kern_combine(k, &parts.c, &e), &e);
    norm(k, parts.sum, NULL, norms, true, parts.sum);
    norm(k, parts.delta, NULL, norms + D, true, parts.delta);
    norm(k, parts.delta, parts.sum, norms + (size_t)2 * D, true, parts.delta);
    fix_ok(kern_add(k, &add, &e), &e);
    for (int i = 0; i < 2; i++)
        norm(k, parts.h, NULL, norms + (size_t)(3 + i) * D, false,
             (uint8_t *)parts.x + (size_t)i * ALL * act);
    a.combine = &joined.c;
    a.scale = &joined.scale;
    a.branch_norm = norms;
    a.delta_norm = norms + D;
    a.post_norm = norms + (size_t)2 * D;
    a.scalar = 0.7f;
    a.eps = 1e-5f;
    a.n_norms = 2;
    for (int i = 0; i < 2; i++) {
        a.norm[i] = norms + (size_t)(3 + i) * D;
        a.x[i] = (uint8_t *)joined.x + (size_t)i * ALL * act;
    }
    kern_plant(_i < 2 ? KERN_FAULT_NONE : KERN_FAULT_IDLE);
    fix_ok(kern_residual(k, &a, &e), &e);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_int_eq(memcmp(parts.h, joined.h, ALL * 4) == 0, _i < 2);
    ck_assert_int_eq(memcmp(parts.x, joined.x, 2 * ALL * act) == 0, _i < 2);
    close_way(k, &parts);
    close_way(k, &joined);
    free(h);
    free(y);
    free(weight);
    free(scale);
    free(norms);
    kern_close(k);
}
END_TEST

/* A norm that adds, which is what a plain layer does. */
START_TEST(a_plain_residual_is_a_norm)
{
    struct kern *k = fix_open((enum kern_arith)_i, "auto", 2);
    const size_t act = kern_act_bytes(k);
    float *h = fix_floats(&rng, 2 * ALL, -2, 2), *w = fix_floats(&rng, D, 0.5f, 2);
    struct way parts = open_way(k, h, NULL, NULL, NULL, NULL);
    struct way joined = open_way(k, h, NULL, NULL, NULL, NULL);
    struct residual_args a = {.n_rows = N, .d = D, .h = joined.h, .delta = joined.delta};
    struct err e = {.text = ""};
    norm(k, parts.h, parts.delta, w, false, parts.x);
    a.eps = 1e-5f;
    a.n_norms = 1;
    a.norm[0] = w;
    a.x[0] = joined.x;
    fix_ok(kern_residual(k, &a, &e), &e);
    ck_assert_mem_eq(parts.h, joined.h, ALL * 4);
    ck_assert_mem_eq(parts.x, joined.x, ALL * act);
    close_way(k, &parts);
    close_way(k, &joined);
    free(h);
    free(w);
    kern_close(k);
}
END_TEST

/* v made of k, before k's own norm. */
START_TEST(norms_of_heads_equal_norms)
{
    enum { HEADS = 4, KV = 2, HD = 48, ROW = (HEADS + 2 * KV) * HD };
    struct kern *k = fix_open((enum kern_arith)(_i % 2), "auto", 2);
    float *x = fix_floats(&rng, N * ROW, -2, 2), *w = fix_floats(&rng, 3 * HD, 0.5f, 2);
    float *got[2] = {copy_of(k, x, N * ROW * 4), copy_of(k, x, N * ROW * 4)};
    struct norm_heads_args a = {.n_tok = N, .n_head = HEADS, .n_kv = KV, .head_dim = HD};
    const struct {
        int n, from, to;
    } parts[] = {{KV, HEADS + (_i < 2 ? 0 : KV), HEADS + KV}, {HEADS, 0, 0}, {KV, HEADS, HEADS}};
    struct err e = {.text = ""};
    a.q = got[1];
    a.k = a.q + HEADS * HD;
    a.v = a.k + KV * HD;
    a.stride = ROW;
    a.q_norm = w;
    a.k_norm = w + HD;
    a.v_norm = w + (size_t)2 * HD;
    a.v_of_k = _i < 2;
    a.eps = 1e-5f;
    for (int i = 0; i < 3; i++) {
        struct rms_norm_args n = {.n_rows = (int64_t)N * parts[i].n, .inner = parts[i].n, .d = HD};
        n.stride = n.out_stride = ROW;
        n.h = got[0] + (size_t)parts[i].from * HD;
        n.w = i == 0 ? a.v_norm : i == 1 ? a.q_norm : a.k_norm;
        n.eps = a.eps;
        n.plus_one = i == 0;
        n.out_f32 = true;
        n.out = got[0] + (size_t)parts[i].to * HD;
        fix_ok(kern_rms_norm(k, &n, &e), &e);
    }
    fix_ok(kern_norm_heads(k, &a, &e), &e);
    ck_assert_mem_eq(got[0], got[1], N * ROW * 4);
    a.k_norm = NULL;
    a.k = NULL;
    ck_assert_int_eq(kern_norm_heads(k, &a, &e), _i < 2 ? ERR_INTERNAL : ERR_OK);
    kern_free(k, got[0]);
    kern_free(k, got[1]);
    free(x);
    free(w);
    kern_close(k);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    struct kern *k = fix_open(KERN_MMA90, "auto", 1);
    float h[16] = {0}, delta[16] = {0}, y[16] = {0}, w[16] = {0};
    struct combine_args c = {1, 1, 16, y, w, delta};
    struct residual_args a = {.n_rows = 1, .d = 16, .h = h, .delta = delta, .n_norms = 4};
    struct err e = {.text = ""};
    ck_assert_int_eq(kern_residual(k, &a, &e), ERR_INTERNAL);
    a.n_norms = 1;
    ck_assert_int_eq(kern_residual(k, &a, &e), ERR_INTERNAL);
    a.n_norms = 0;
    a.branch_norm = w;
    ck_assert_int_eq(kern_residual(k, &a, &e), ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(e.text, "of no sum"));
    a.combine = &c;
    fix_ok(kern_residual(k, &a, &e), &e);
    a.delta_norm = w;
    ck_assert_int_eq(kern_residual(k, &a, &e), ERR_INTERNAL);
    a.delta_norm = NULL;
    c.d = 8;
    ck_assert_int_eq(kern_residual(k, &a, &e), ERR_INTERNAL);
    kern_close(k);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels residual");
    TCase *c = tcase_create("residual");
    tcase_add_loop_test(c, a_residual_equals_its_parts, 0, 4);
    tcase_add_loop_test(c, a_plain_residual_is_a_norm, 0, 2);
    tcase_add_loop_test(c, norms_of_heads_equal_norms, 0, 4);
    tcase_add_test(c, what_does_not_fit_is_refused);
    suite_add_tcase(s, c);
    return s;
}
