/* test_cuda_rows.c: norm, rope and pages, activation, add, gather and hash on a CUDA device against
 * the CPU oracle, byte by byte.
 */
#include "kernels/cuda/cuda_page.h"
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 21};

static float *draw(size_t n)
{
    float *x = fix_floats(&rng, n, -2, 2);
    for (size_t i = 0; i < n; i++) {
        if (rng_below(&rng, 8) == 0)
            x[i] = ldexpf(x[i], (int)rng_below(&rng, 60) - 30);
    }
    return x;
}

static void check_norm(struct rig *r, int64_t n, int64_t d, int64_t inner, bool add, bool f32,
                       bool in_place)
{
    int64_t stride = inner * d + 3, out_stride = inner * d + (in_place ? 3 : 0);
    int64_t outer = (n + inner - 1) / inner;
    size_t all = (size_t)(outer * stride), all_out = (size_t)(outer * out_stride);
    float *h = draw(all), *x = draw(all), *w = draw((size_t)d);
    void *got[2], *left[2];
    for (int s = 0; s < 2; s++) {
        struct kern *k = r->side[s];
        struct rms_norm_args a = {.n_rows = n,
                                  .inner = inner,
                                  .stride = stride,
                                  .out_stride = out_stride,
                                  .d = d,
                                  .h = rig_put(k, h, all * 4),
                                  .add = add ? rig_put(k, x, all * 4) : NULL,
                                  .w = rig_put(k, w, (size_t)d * 4),
                                  .eps = 1e-5f,
                                  .plus_one = d % 2 == 0,
                                  .out_f32 = f32};
        struct err e = {.text = ""};
        a.out = in_place ? a.h : rig_put(k, NULL, all_out * 4);
        fix_ok(kern_rms_norm(k, &a, &e), &e);
        got[s] = rig_get(k, a.out, all_out * (f32 ? 4 : 2));
        left[s] = rig_get(k, a.h, all * 4);
    }
    ck_assert_msg(rig_differ(got[0], got[1], all_out, f32 ? 4 : 2) < 0, "%lld rows of %lld",
                  (long long)n, (long long)d);
    ck_assert_msg(rig_differ(left[0], left[1], all, 4) < 0, "input, %lld rows of %lld",
                  (long long)n, (long long)d);
    for (int s = 0; s < 2; s++) {
        free(got[s]);
        free(left[s]);
    }
    free(h);
    free(x);
    free(w);
}

static const int64_t norm_lens[] = {1,   17,  64,   100,  128,  255,  256,   257,
                                    576, 768, 2048, 4096, 8192, 8193, 16384, 20000};

START_TEST(norms_equal_oracle)
{
    int64_t d = norm_lens[_i];
    struct rig r = rig_open();
    for (int flags = 0; flags < 4; flags++)
        check_norm(&r, 5, d, 1, flags & 1, flags & 2, false);
    check_norm(&r, 6, d, 3, false, true, true);
    check_norm(&r, 6, d, 2, true, true, true);
    rig_close(&r);
}
END_TEST

static void check_act(struct rig *r, int64_t n, int64_t d, int64_t stride, enum act_kind kind)
{
    size_t all = (size_t)(n * stride);
    float *gate = draw(all), *up = draw(all);
    uint16_t *got[2];
    for (int s = 0; s < 2; s++) {
        struct kern *k = r->side[s];
        struct act_mul_args a = {.n_rows = n,
                                 .d = d,
                                 .stride = stride,
                                 .act = kind,
                                 .gate = rig_put(k, gate, all * 4),
                                 .up = rig_put(k, up, all * 4),
                                 .out = rig_put(k, NULL, (size_t)(n * d) * 2),
                                 .limit = 5.5f,
                                 .alpha = 1.3f};
        struct err e = {.text = ""};
        fix_ok(kern_act_mul(k, &a, &e), &e);
        got[s] = rig_get(k, a.out, (size_t)(n * d) * 2);
    }
    ck_assert_msg(rig_differ(got[0], got[1], (size_t)(n * d), 2) < 0, "activation %d, %lld rows",
                  (int)kind, (long long)n);
    free(got[0]);
    free(got[1]);
    free(gate);
    free(up);
}

START_TEST(row_counts_equal_oracle)
{
    struct rig r = rig_open();
    for (int i = 0; i < RIG_COUNTS; i++) {
        check_norm(&r, rig_counts[i], i % 2 ? 64 : 576, 1, i % 3 == 0, i % 2, false);
        check_act(&r, rig_counts[i], i % 2 ? 96 : 97, 200, (enum act_kind)(i % 3));
    }
    rig_close(&r);
}
END_TEST

START_TEST(activations_equal_oracle)
{
    static const enum act_kind kinds[] = {ACT_SILU, ACT_GELU_TANH, ACT_GPTOSS};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        check_act(&r, 7, 1537, 3100, kinds[i]);
    rig_close(&r);
}
END_TEST

START_TEST(add_gather_and_hash_equal_oracle)
{
    static const int32_t take[] = {4, 0, 4, 2};
    struct rig r = rig_open();
    int64_t n = 5, d = 1003;
    size_t all = (size_t)(n * d);
    float *h = draw(all), *x = draw(all), *got[2], *rows[2];
    uint64_t *hash[2], *half[2];
    uint16_t *cast[2], *alone[2];
    for (int s = 0; s < 2; s++) {
        struct kern *k = r.side[s];
        struct err e = {.text = ""};
        struct add_args add = {.n = (int64_t)all, .h = rig_put(k, h, all * 4)};
        add.x = rig_put(k, x, all * 4);
        fix_ok(kern_add(k, &add, &e), &e);
        add.scale = 0.7F;
        fix_ok(kern_add(k, &add, &e), &e);
        got[s] = rig_get(k, add.h, all * 4);
        add.out = rig_put(k, NULL, all * 2);
        fix_ok(kern_add(k, &add, &e), &e);
        cast[s] = rig_get(k, add.out, all * 2);
        add = (struct add_args){.n = (int64_t)all, .h = add.h, .out = rig_put(k, NULL, all * 2)};
        fix_ok(kern_add(k, &add, &e), &e);
        alone[s] = rig_get(k, add.out, all * 2);
        struct gather_args g = {4, d, rig_put(k, take, sizeof take), add.h,
                                rig_put(k, NULL, (size_t)(4 * d) * 4)};
        fix_ok(kern_gather(k, &g, &e), &e);
        rows[s] = rig_get(k, g.out, (size_t)(4 * d) * 4);
        struct row_hash_args a = {n, d - 3, d, 4, add.h, rig_put(k, NULL, 64)};
        fix_ok(kern_row_hash(k, &a, &e), &e);
        hash[s] = rig_get(k, a.hash, 40);
        a = (struct row_hash_args){n, 2 * d - 3, 2 * d, 2, add.h, rig_put(k, NULL, 64)};
        fix_ok(kern_row_hash(k, &a, &e), &e);
        half[s] = rig_get(k, a.hash, 40);
    }
    ck_assert(rig_differ(got[0], got[1], all, 4) < 0);
    ck_assert(rig_differ(rows[0], rows[1], (size_t)(4 * d), 4) < 0);
    ck_assert(rig_differ(cast[0], cast[1], all, 2) < 0);
    ck_assert(rig_differ(alone[0], alone[1], all, 2) < 0);
    ck_assert(memcmp(cast[0], alone[0], all * 2) == 0); /* h was not changed again */
    ck_assert_mem_eq(hash[0], hash[1], 40);
    ck_assert_mem_eq(half[0], half[1], 40);
    rig_close(&r);
}
END_TEST

/* The hash of the wrong row. */
START_TEST(a_planted_hash_shows)
{
    enum { ROWS = 3, D = 65 };
    struct rig r = rig_open();
    struct kern *k = r.side[1];
    float *x = draw(ROWS * D);
    struct row_hash_args a = {ROWS, D, D, 4, rig_put(k, x, ROWS * D * 4), rig_put(k, NULL, 64)};
    struct err e = {.text = ""};
    uint64_t *hash[2];
    for (int i = 0; i < 2; i++) {
        kern_plant(i ? KERN_FAULT_HASH : KERN_FAULT_NONE);
        fix_ok(kern_row_hash(k, &a, &e), &e);
        kern_plant(KERN_FAULT_NONE);
        hash[i] = rig_get(k, a.hash, ROWS * sizeof **hash);
    }
    for (int i = 0; i < ROWS; i++) {
        ck_assert_uint_ne(hash[0][i], hash[1][i]);
        ck_assert_uint_eq(hash[0][(i + 1) % ROWS], hash[1][i]);
    }
    free(hash[0]);
    free(hash[1]);
    free(x);
    rig_close(&r);
}
END_TEST

START_TEST(scales_of_experts_equal_oracle)
{
    enum { EXPERTS = 128 };
    static const int pairs[] = {1, 8, 256, 257, 4096};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        int n = pairs[i];
        float *scale = draw(EXPERTS), *weight = draw((size_t)n), *got[2];
        int32_t *expert = malloc((size_t)n * sizeof *expert);
        for (int p = 0; p < n; p++)
            expert[p] = p * 37 % EXPERTS;
        for (int s = 0; s < 2; s++) {
            struct kern *k = r.side[s];
            struct err e = {.text = ""};
            struct route_scale_args a = {n, EXPERTS, rig_put(k, expert, (size_t)n * 4),
                                         rig_put(k, scale, EXPERTS * 4),
                                         rig_put(k, weight, (size_t)n * 4)};
            fix_ok(kern_route_scale(k, &a, &e), &e);
            got[s] = rig_get(k, a.weight, (size_t)n * 4);
        }
        ck_assert_msg(rig_differ(got[0], got[1], (size_t)n, 4) < 0, "%d pairs", n);
        free(got[0]);
        free(got[1]);
        free(expert);
        free(scale);
        free(weight);
    }
    rig_close(&r);
}
END_TEST

/* Page values are compared dim by dim: each side has its own order. The CPU's is K as [key / 16]
 * [dim / 2][key % 16][dim % 2], V as [dim / 16][key / 2][dim % 16][key % 2]. */
static uint16_t page_value(int side, const uint16_t *half, int dims, bool value, int key, int dim)
{
    if (side == 1)
        return half[cuda_page_at(dims, key, dim)];
    if (value)
        return half[((dim / 16 * 32 + key / 2) * 16 + dim % 16) * 2 + key % 2];
    return half[((key / 16 * (dims / 2) + dim / 2) * 16 + key % 16) * 2 + dim % 2];
}

static void check_pages(const uint16_t *const pages[2], int n_pages, int n_kv, int head_dim)
{
    int dims = cuda_page_dims(head_dim);
    for (int h = 0; h < n_pages * n_kv * 2; h++)
        for (int key = 0; key < 64; key++)
            for (int dim = 0; dim < dims; dim++) {
                uint16_t v[2];
                for (int s = 0; s < 2; s++)
                    v[s] = page_value(s, pages[s] + (size_t)h * 64 * (size_t)dims, dims, h % 2, key,
                                      dim);
                ck_assert_msg(v[0] == v[1], "head_dim %d, half %d, key %d, dim %d: %04x, not %04x",
                              head_dim, h, key, dim, v[1], v[0]);
            }
}

static const int head_dims[] = {16, 40, 64, 80, 96, 112, 128, 256, 512};

START_TEST(rope_and_pages_equal_oracle)
{
    enum { TOKENS = 9, HEADS = 4, KV = 2, PAGES = 6, POSITIONS = 200 };
    static const int32_t pos[TOKENS] = {0, 1, 63, 64, 65, 127, 128, 5, 70};
    static const int32_t seq[TOKENS] = {0, 0, 0, 0, 0, 0, 0, 1, 1};
    static const int32_t table[6] = {3, 0, 5, 1, 4, 2};
    int hd = head_dims[_i / 2], rot = _i % 2 ? hd / 4 * 2 : hd;
    int64_t stride = (HEADS + 2 * KV) * hd;
    struct rig r = rig_open();
    float *x = draw((size_t)(TOKENS * stride)), *cos_sin = draw((size_t)(POSITIONS * rot + 1));
    uint16_t *q[2], *pages[2], *alone[2];
    for (int s = 0; s < 2; s++) {
        struct kern *k = r.side[s];
        size_t page = kern_page_bytes(k, KV, hd), q_bytes = (size_t)(TOKENS * HEADS * hd) * 2;
        float *dx = rig_put(k, x, (size_t)(TOKENS * stride) * 4);
        struct kern_rows rows = {.n_tok = TOKENS,
                                 .pos = rig_put(k, pos, sizeof pos),
                                 .seq = rig_put(k, seq, sizeof seq),
                                 .pages = rig_put(k, table, sizeof table),
                                 .n_seq = 2,
                                 .pages_max = 3};
        struct rope_kv_args a = {.rows = &rows,
                                 .n_head = HEADS,
                                 .n_kv = KV,
                                 .head_dim = hd,
                                 .rot_dim = rot,
                                 .q = dx,
                                 .k = dx + HEADS * hd,
                                 .v = dx + (HEADS + KV) * hd,
                                 .stride = stride,
                                 .cos_sin = rig_put(k, cos_sin, (size_t)(POSITIONS * rot) * 4),
                                 .q_out = rig_put(k, NULL, q_bytes),
                                 .kv = rig_put(k, NULL, page * PAGES)};
        struct err e = {.text = ""};
        fix_ok(kern_rope_kv(k, &a, &e), &e);
        q[s] = rig_get(k, a.q_out, q_bytes);
        pages[s] = rig_get(k, a.kv, page * PAGES);
        /* Queries alone, as a layer turns them that looks at another one's pages. */
        a.n_kv = 0;
        a.k = a.v = NULL;
        a.kv = NULL;
        a.q_out = rig_put(k, NULL, q_bytes);
        fix_ok(kern_rope_kv(k, &a, &e), &e);
        alone[s] = rig_get(k, a.q_out, q_bytes);
    }
    ck_assert_msg(rig_differ(q[0], q[1], TOKENS * HEADS * (size_t)hd, 2) < 0, "head_dim %d", hd);
    for (int s = 0; s < 2; s++)
        ck_assert_msg(rig_differ(q[0], alone[s], TOKENS * HEADS * (size_t)hd, 2) < 0,
                      "queries alone, head_dim %d", hd);
    check_pages((const uint16_t *const *)pages, PAGES, KV, hd);
    for (int s = 0; s < 2; s++) {
        free(q[s]);
        free(alone[s]);
        free(pages[s]);
    }
    free(x);
    free(cos_sin);
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_test(c, activations_equal_oracle);
    tcase_add_test(c, add_gather_and_hash_equal_oracle);
    tcase_add_test(c, scales_of_experts_equal_oracle);
    tcase_add_loop_test(c, norms_equal_oracle, 3, 4);
    tcase_add_loop_test(c, norms_equal_oracle, 7, 8);
    tcase_add_loop_test(c, rope_and_pages_equal_oracle, 3, 5);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, norms_equal_oracle, 0, ARRAY_LEN(norm_lens));
    tcase_add_test(c, row_counts_equal_oracle);
    tcase_add_test(c, a_planted_hash_shows);
    tcase_add_loop_test(c, rope_and_pages_equal_oracle, 0, 2 * ARRAY_LEN(head_dims));
}

Suite *test_suite(void)
{
    return rig_suite("cuda rows", add_tests, add_small);
}
