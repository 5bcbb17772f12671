/* test_cuda_residual.c: the joined norms of heads, and what follows a part of a layer in one
 * operation, on a CUDA device against the CPU oracle, which does their parts one after the other;
 * byte by byte.
 */
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 91};

static float *draw(size_t n)
{
    float *x = fix_floats(&rng, n, -2, 2);
    for (size_t i = 0; i < n; i++) {
        if (rng_below(&rng, 8) == 0)
            x[i] = ldexpf(x[i], (int)rng_below(&rng, 60) - 30);
    }
    return x;
}

/* ---- heads --------------------------------------------------------------------------------------
 */
enum heads_kind { HEADS_Q, HEADS_QK, HEADS_QKV, HEADS_V_OF_K, HEADS_KINDS };

/* The rows after the norms. */
static float *run_heads(struct kern *k, const float *x, const float *w, int n_tok, int hd,
                        enum heads_kind kind)
{
    enum { HEADS = 6, KV = 3 };
    const int64_t stride = (HEADS + 2 * KV) * hd + 5;
    const size_t bytes = (size_t)(n_tok * stride) * 4;
    struct norm_heads_args a = {.n_tok = n_tok, .n_head = HEADS, .n_kv = KV, .head_dim = hd};
    struct err e = {.text = ""};
    float *dw = rig_put(k, w, (size_t)hd * 12);
    a.q = rig_put(k, x, bytes);
    a.k = a.q + HEADS * hd;
    a.v = a.k + KV * hd;
    a.stride = stride;
    a.q_norm = dw;
    a.k_norm = kind == HEADS_Q ? NULL : dw + hd;
    a.v_norm = kind >= HEADS_QKV ? dw + 2 * (size_t)hd : NULL;
    a.v_of_k = kind == HEADS_V_OF_K;
    a.eps = 1e-6f;
    a.plus_one = hd % 3 == 0;
    fix_ok(kern_norm_heads(k, &a, &e), &e);
    return rig_get(k, a.q, bytes);
}

static const int head_dims[] = {16, 40, 64, 80, 96, 128, 200, 256, 320, 512};

START_TEST(heads_equal_oracle)
{
    static const int steps[] = {0, 1, 2, 9, 33};
    const int hd = head_dims[_i];
    struct rig r = rig_open();
    for (size_t s = 0; s < ARRAY_LEN(steps); s++)
        for (int kind = 0; kind < HEADS_KINDS; kind++) {
            size_t n = (size_t)steps[s] * (size_t)(12 * hd + 5);
            float *x = draw(n + 1), *w = draw((size_t)hd * 3), *got[2];
            for (int i = 0; i < 2; i++)
                got[i] = run_heads(r.side[i], x, w, steps[s], hd, (enum heads_kind)kind);
            ck_assert_msg(rig_differ(got[0], got[1], n, 4) < 0, "head_dim %d, %d rows, kind %d", hd,
                          steps[s], kind);
            for (int i = 0; i < 2; i++)
                free(got[i]);
            free(x);
            free(w);
        }
    rig_close(&r);
}
END_TEST

/* ---- rows ---------------------------------------------------------------------------------------
 */
#define EXPERTS 128

struct shape {
    int n, used; /* rows; slots, 0: none */
    bool apart, scaled, branch, delta, post, scalar;
    int n_norms;
    int64_t d;
};

/* Random inputs of one case; both sides take the same. */
struct inputs {
    float *h, *delta, *y, *weight, *scale, *norms;
    int32_t *expert;
};

static struct inputs draw_inputs(const struct shape *s)
{
    const size_t rows = (size_t)(s->n * s->d), pairs = (size_t)(s->n * s->used);
    struct inputs in = {.h = draw(rows + 1), .delta = draw(rows + 1)};
    in.y = draw(pairs * (size_t)s->d + 1);
    in.weight = fix_floats(&rng, pairs + 1, 0, 1);
    in.scale = draw(EXPERTS);
    in.norms = draw((size_t)s->d * 6);
    in.expert = malloc((pairs + 1) * 4);
    for (size_t i = 0; i < pairs; i++)
        in.expert[i] = (int32_t)rng_below(&rng, EXPERTS);
    return in;
}

static void free_inputs(struct inputs *in)
{
    free(in->h);
    free(in->delta);
    free(in->y);
    free(in->weight);
    free(in->scale);
    free(in->norms);
    free(in->expert);
}

/* The operation on one side, and the memory it works on. */
struct given {
    struct kern *k;
    struct residual_args a;
    struct combine_args c;
    struct route_scale_args scale;
};

static void put_case(struct given *g, struct kern *k, const struct shape *s,
                     const struct inputs *in)
{
    const size_t rows = (size_t)(s->n * s->d), pairs = (size_t)(s->n * s->used);
    float *norms = rig_put(k, in->norms, (size_t)s->d * 24);
    *g = (struct given){.k = k, .a = {.n_rows = s->n, .d = s->d}};
    g->a.h = rig_put(k, in->h, rows * 4);
    g->a.delta = rig_put(k, in->delta, rows * 4);
    g->a.eps = 1e-5f;
    g->a.plus_one = s->d % 3 == 0;
    g->a.post_norm = s->post ? norms : NULL;
    g->a.scalar = s->scalar ? 0.7f : 0;
    g->a.n_norms = s->n_norms;
    for (int i = 0; i < s->n_norms; i++) {
        g->a.norm[i] = norms + (1 + i) * s->d;
        g->a.x[i] = rig_put(k, NULL, rows * 2);
    }
    if (s->used == 0)
        return;
    g->a.branch_norm = s->branch ? norms + 4 * s->d : NULL;
    g->a.delta_norm = s->delta ? norms + 5 * s->d : NULL;
    g->c = (struct combine_args){.n_tok = s->n, .n_used = s->used, .d = s->d};
    g->c.y = rig_put(k, in->y, pairs * (size_t)s->d * 4);
    g->c.weight = rig_put(k, in->weight, pairs * 4);
    g->c.out = s->apart ? rig_put(k, NULL, rows * 4) : g->a.delta;
    g->scale = (struct route_scale_args){.n_pairs = (int)pairs, .n_expert = EXPERTS};
    g->scale.expert = rig_put(k, in->expert, pairs * 4);
    g->scale.scale = rig_put(k, in->scale, EXPERTS * 4);
    g->scale.weight = (float *)(uintptr_t)g->c.weight;
}

static void run_case(struct given *g, const struct shape *s)
{
    struct err e = {.text = ""};
    g->a.combine = s->used ? &g->c : NULL;
    g->a.scale = s->used && s->scaled ? &g->scale : NULL;
    fix_ok(kern_residual(g->k, &g->a, &e), &e);
}

/* h and every x: are they the same on both sides? */
static bool same_results(const struct given g[2], const struct shape *s)
{
    const size_t rows = (size_t)(s->n * s->d);
    bool same = true;
    for (int i = -1; i < s->n_norms; i++) {
        void *got[2];
        for (int j = 0; j < 2; j++)
            got[j] =
                rig_get(g[j].k, i < 0 ? (void *)g[j].a.h : g[j].a.x[i], rows * (i < 0 ? 4 : 2));
        same = same && rig_differ(got[0], got[1], rows, i < 0 ? 4 : 2) < 0;
        free(got[0]);
        free(got[1]);
    }
    return same;
}

static bool case_equals(const struct rig *r, const struct shape *s)
{
    struct inputs in = draw_inputs(s);
    struct given g[2];
    for (int i = 0; i < 2; i++) {
        put_case(&g[i], r->side[i], s, &in);
        run_case(&g[i], s);
    }
    free_inputs(&in);
    return same_results(g, s);
}

/* What the families ask for, and more. */
static const struct shape kinds[] = {
    {.used = 0, .n_norms = 1},
    {.used = 0, .post = true, .n_norms = 1},
    {.used = 0, .post = true, .n_norms = 3},
    {.used = 0, .post = true, .scalar = true, .n_norms = 0},
    {.used = 0, .scalar = true, .n_norms = 2},
    {.used = 8, .n_norms = 1},
    {.used = 4, .n_norms = 1, .post = true},
    {.used = 1, .n_norms = 0},
    {.used = 2, .scaled = true, .branch = true, .n_norms = 1},
    {.used = 8, .apart = true, .n_norms = 1},
    {.used = 9, .apart = true, .delta = true, .n_norms = 2},
    {.used = 8, true, true, true, true, true, true, .n_norms = 1},
    {.used = 13, true, true, true, true, true, false, .n_norms = 0},
    {.used = 40, .n_norms = 1},
};
static const int64_t lens[] = {16, 255, 320, 1000, 2048, 2816, 2880, 4096, 5376, 6200};

START_TEST(residual_equals_oracle)
{
    static const int rows[] = {1, 2, 7, 33};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct shape s = kinds[i];
        s.d = lens[_i];
        s.n = rows[(i + (size_t)_i) % ARRAY_LEN(rows)];
        ck_assert_msg(case_equals(&r, &s), "kind %zu, %d rows of %lld", i, s.n, (long long)s.d);
    }
    rig_close(&r);
}
END_TEST

START_TEST(steps_of_all_rows_equal_oracle)
{
    static const int rows[] = {0, 16, 64, 129, 300};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct shape s = {.n = rows[i], .used = 8, .n_norms = 1, .d = 2048};
        ck_assert_msg(case_equals(&r, &s), "%d rows", rows[i]);
    }
    rig_close(&r);
}
END_TEST

/* A row's NaN stays in that row. */
START_TEST(neighbours_do_not_matter)
{
    const struct shape s = {.n = 3, .used = 8, .apart = true, .post = true, .n_norms = 1, .d = 576};
    struct rig r = rig_open();
    struct inputs in = draw_inputs(&s);
    uint16_t *got[2];
    for (int i = 0; i < 2; i++) {
        struct given g;
        in.y[s.d * 8 + 3] = in.delta[2 * s.d] = i ? NAN : 1.0f;
        put_case(&g, r.side[1], &s, &in);
        run_case(&g, &s);
        got[i] = rig_get(g.k, g.a.x[0], (size_t)(s.n * s.d) * 2);
    }
    ck_assert_mem_eq(got[0], got[1], (size_t)s.d * 2);
    ck_assert_int_ge(rig_differ(got[0] + s.d, got[1] + s.d, (size_t)s.d, 2), 0);
    free(got[0]);
    free(got[1]);
    free_inputs(&in);
    rig_close(&r);
}
END_TEST

START_TEST(planted_order_shows)
{
    const struct shape s = {.n = 4, .used = 8, .n_norms = 1, .d = 2048};
    struct rig r = rig_open();
    ck_assert(case_equals(&r, &s));
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    ck_assert(!case_equals(&r, &s));
    kern_plant(KERN_FAULT_NONE);
    rig_close(&r);
}
END_TEST

/* ---- the router behind it -----------------------------------------------------------------------
 */
static struct fix_weight router_weight(int format, int64_t rows, int64_t d)
{
    static const struct qformat formats[] = {{8, 64, DT_BF16}, {4, 32, DT_BF16}, {8, 64, DT_F32}};
    if (format == 0)
        return fix_dense(&rng, rows, d, DT_BF16);
    return fix_affine(&rng, rows, d, formats[format - 1], format == 2 ? 0.02f : 0.002f);
}

/* Logits, and what the operation alone gives; false where the sides differ. `fault` is planted on
 * the device. */
static bool routed_equals(const struct rig *r, const struct shape *s, int format, int64_t rows,
                          enum kern_fault fault)
{
    struct inputs in = draw_inputs(s);
    struct fix_weight f = router_weight(format, rows, s->d);
    const size_t n = (size_t)(s->n * (rows + 5));
    float *bias = fix_floats(&rng, (size_t)rows, -1, 1), *got[2];
    struct given g[2];
    for (int i = 0; i < 2; i++) {
        struct linear_args a = {.n_tok = s->n, .x_stride = s->d, .n_parts = 1};
        put_case(&g[i], r->side[i], s, &in);
        a.x = g[i].a.x[s->n_norms - 1];
        a.part[0].w = fix_load(r->side[i], &f);
        a.part[0].bias = rows % 2 ? rig_put(r->side[i], bias, (size_t)rows * 4) : NULL;
        a.part[0].out = rig_put(r->side[i], NULL, n * 4);
        a.part[0].out_stride = rows + 5;
        g[i].a.router = &a;
        kern_plant(i ? fault : KERN_FAULT_NONE);
        run_case(&g[i], s);
        kern_plant(KERN_FAULT_NONE);
        got[i] = rig_get(r->side[i], a.part[0].out, n * 4);
    }
    bool same = rig_differ(got[0], got[1], n, 4) < 0 && same_results(g, s);
    free(got[0]);
    free(got[1]);
    free(bias);
    free_inputs(&in);
    fix_weight_free(&f);
    return same;
}

static const int64_t router_rows[] = {8, 16, 31, 64, 127, 128, 40, 300};

START_TEST(routers_equal_oracle)
{
    static const int64_t ds[] = {320, 2048, 2816, 2880, 4096};
    static const int steps[] = {1, 2, 8, 9, 40};
    struct rig r = rig_open();
    for (size_t i = 0; i < 20; i++) {
        struct shape s = {.n_norms = 1 + (int)i % 3, .post = i % 2, .scalar = i % 5 == 0};
        s.d = ds[i % ARRAY_LEN(ds)] / 64 * 64;
        s.n = steps[(i + i / 5) % ARRAY_LEN(steps)];
        if (i % 7 == 6)
            s.used = 2;
        ck_assert_msg(routed_equals(&r, &s, (int)i % 4, router_rows[_i], KERN_FAULT_NONE),
                      "case %zu: %d rows of %lld, %lld experts", i, s.n, (long long)s.d,
                      (long long)router_rows[_i]);
    }
    rig_close(&r);
}
END_TEST

START_TEST(row_counts_equal_oracle)
{
    struct rig r = rig_open();
    for (int i = 0; i < RIG_COUNTS; i++) {
        struct shape s = {.n = rig_counts[i], .used = i % 2 * 3, .n_norms = 1, .d = 320};
        ck_assert_msg(case_equals(&r, &s), "%d rows", s.n);
        s.used = 0;
        ck_assert_msg(routed_equals(&r, &s, i % 3, 16, KERN_FAULT_NONE), "router, %d rows", s.n);
    }
    rig_close(&r);
}
END_TEST

START_TEST(planted_order_shows_in_logits)
{
    const struct shape s = {.n = 4, .n_norms = 1, .d = 4096};
    struct rig r = rig_open();
    ck_assert(routed_equals(&r, &s, 1, 128, KERN_FAULT_NONE));
    ck_assert(!routed_equals(&r, &s, 1, 128, KERN_FAULT_CHUNK_ORDER));
    rig_close(&r);
}
END_TEST

/* The first block of a row writes h while the others take their time: it must wait until they have
 * read what h was, at the barrier of their cluster. Without that barrier the others begin with what
 * their own launch has written. */
START_TEST(blocks_of_a_row_meet)
{
    const struct shape s = {.n = 2, .n_norms = 1, .d = 2048};
    struct rig r = rig_open();
    struct cuda_kern *c = cuda_of(r.side[1]);
    ck_assert(routed_equals(&r, &s, 1, 128, KERN_FAULT_NONE));
    c->plant_delay_ns = 50000;
    ck_assert(routed_equals(&r, &s, 1, 128, KERN_FAULT_NONE));
    c->plant_no_wait = true;
    rig_saw_no_wait(!routed_equals(&r, &s, 1, 128, KERN_FAULT_NONE), "blocks of a row");
    rig_close(&r);
}
END_TEST

/* The router reads its weights when their copy has ended, however late it began. Each case has
 * other weights, so that what an earlier launch left in shared memory is not taken for them. */
START_TEST(a_copy_is_drained)
{
    const struct shape s = {.n = 2, .n_norms = 1, .d = 2048};
    struct rig r = rig_open();
    struct cuda_kern *c = cuda_of(r.side[1]);
    for (int format = 0; format < 3; format++) {
        c->plant_copy = CUDA_COPY_LATE;
        ck_assert_msg(routed_equals(&r, &s, format, 128, KERN_FAULT_NONE), "format %d", format);
        c->plant_copy = CUDA_COPY_UNDRAINED;
        ck_assert_msg(!routed_equals(&r, &s, format, 128, KERN_FAULT_NONE), "format %d", format);
    }
    rig_close(&r);
}
END_TEST

/* ---- early starts -------------------------------------------------------------------------------
 */
enum chain { CHAIN_ROWS, CHAIN_HEADS, CHAIN_ROUTER, CHAINS };

#define HEAD 64

/* A first operation that takes its time, then one that reads the h that it wrote: itself again,
 * with a router or without, or norms of heads of h. */
static void run_chain(struct given *g, const struct shape *s, enum chain kind,
                      const struct inputs *in, struct fix_weight *router, bool no_wait)
{
    struct cuda_kern *c = strcmp(kern_device(g->k), "cpu") != 0 ? cuda_of(g->k) : NULL;
    struct norm_heads_args heads = {.n_tok = s->n, .n_head = (int)(s->d / HEAD), .head_dim = HEAD};
    struct linear_args a = {.n_tok = s->n, .x = g->a.x[0], .x_stride = s->d, .n_parts = 1};
    struct err e = {.text = ""};
    heads.q = g->a.h;
    heads.stride = s->d;
    heads.q_norm = rig_put(g->k, in->norms, HEAD * 4);
    a.part[0].w = fix_load(g->k, router);
    a.part[0].out = rig_put(g->k, NULL, (size_t)s->n * 128 * 4);
    a.part[0].out_stride = 128;
    if (c)
        c->plant_delay_ns = 50000;
    run_case(g, s);
    g->a.router = kind == CHAIN_ROUTER ? &a : NULL;
    g->a.scalar = 0.7f; /* so that the two cannot change places */
    if (c)
        c->plant_delay_ns = 0;
    if (c)
        c->plant_no_wait = no_wait;
    if (kind == CHAIN_HEADS)
        fix_ok(kern_norm_heads(g->k, &heads, &e), &e);
    else
        run_case(g, s);
    if (c)
        c->plant_no_wait = false;
    g->a.router = NULL;
}

/* In how many of some runs do the results differ? */
static int chains_that_differ(const struct rig *r, const struct shape *s, enum chain kind,
                              bool no_wait)
{
    enum { RUNS = 8 };
    struct fix_weight router = router_weight(1, 128, s->d);
    int equal = 0;
    for (int run = 0; run < RUNS; run++) {
        struct inputs in = draw_inputs(s);
        struct given g[2];
        for (int i = 0; i < 2; i++) {
            put_case(&g[i], r->side[i], s, &in);
            run_chain(&g[i], s, kind, &in, &router, i && no_wait);
        }
        equal += same_results(g, s);
        free_inputs(&in);
    }
    fix_weight_free(&router);
    return RUNS - equal;
}

static const struct shape firsts[] = {{.n = 2, .n_norms = 1, .d = 2048},
                                      {.n = 2, .used = 4, .n_norms = 1, .d = 2048}};

START_TEST(each_waits_for_the_one_before_it)
{
    const struct shape *const s = &firsts[_i % 2];
    const enum chain kind = (enum chain)(_i / 2);
    struct rig r = rig_open();
    ck_assert_int_eq(chains_that_differ(&r, s, kind, false), 0);
    rig_saw_no_wait(chains_that_differ(&r, s, kind, true), "a chain");
    rig_close(&r);
}
END_TEST

/* Every kernel and length held in registers once, for compute-sanitizer. */
START_TEST(small_rows_equal_oracle)
{
    static const int64_t ds[] = {320, 2816, 4096, 5376};
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(ds); i++)
        for (int used = 0; used < 4; used += 3) {
            struct shape s = {.n = 2, .used = used, .post = true, .n_norms = 1, .d = ds[i]};
            s.apart = s.delta = used > 0;
            ck_assert_msg(case_equals(&r, &s), "%lld, %d slots", (long long)ds[i], used);
        }
    rig_close(&r);
}
END_TEST

START_TEST(small_routers_equal_oracle)
{
    static const int64_t ds[] = {320, 2816, 4096};
    struct rig r = rig_open();
    for (size_t i = 0; i < 3 * ARRAY_LEN(ds); i++) {
        struct shape s = {.n = 2, .n_norms = 1, .d = ds[i / 3]};
        ck_assert_msg(routed_equals(&r, &s, (int)i % 3, 31, KERN_FAULT_NONE), "case %zu", i);
    }
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, heads_equal_oracle, 5, 6);
    tcase_add_loop_test(c, heads_equal_oracle, 7, 8);
    tcase_add_loop_test(c, heads_equal_oracle, 9, 10);
    tcase_add_test(c, small_rows_equal_oracle);
    tcase_add_test(c, small_routers_equal_oracle);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, heads_equal_oracle, 0, ARRAY_LEN(head_dims));
    tcase_add_loop_test(c, residual_equals_oracle, 0, ARRAY_LEN(lens));
    tcase_add_test(c, steps_of_all_rows_equal_oracle);
    tcase_add_test(c, row_counts_equal_oracle);
    tcase_add_test(c, neighbours_do_not_matter);
    tcase_add_test(c, planted_order_shows);
    tcase_add_loop_test(c, routers_equal_oracle, 0, ARRAY_LEN(router_rows));
    tcase_add_test(c, planted_order_shows_in_logits);
    tcase_add_test(c, blocks_of_a_row_meet);
    tcase_add_test(c, a_copy_is_drained);
    tcase_add_loop_test(c, each_waits_for_the_one_before_it, 0, 2 * CHAINS);
}

Suite *test_suite(void)
{
    return rig_suite("cuda residual", add_tests, add_small);
}
