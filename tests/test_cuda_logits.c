/* test_cuda_logits.c: softcap, top k, log-sum-exp and hash of rows of logits on a CUDA device
 * against the CPU oracle, byte by byte.
 */
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 41};

enum kind { ORDINARY, TIES, WIDE, SPECIAL, KINDS };

static float draw(enum kind kind)
{
    static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fc00000, 0,
                                       0x80000000, 1,          0x7f7fffff, 0xff7fffff};
    float x = fix_uniform(&rng, -20, 20);
    if (kind == TIES)
        return (float)(int)rng_below(&rng, 7) - 3;
    if (kind == WIDE)
        return ldexpf(x, (int)rng_below(&rng, 200) - 100);
    if (kind == SPECIAL && rng_below(&rng, 3) == 0)
        return f32_from_bits(special[rng_below(&rng, ARRAY_LEN(special))]);
    return x;
}

/* Everything that the operation gives, of one side. */
struct result {
    float *logits, *top, *lse;
    int32_t *id;
    uint64_t *hash;
};

static struct result run(struct kern *k, const float *x, const struct logits_args *shape)
{
    size_t n = (size_t)shape->n, all = n * (size_t)shape->n_vocab, tops = n * (size_t)shape->k;
    struct logits_args a = *shape;
    struct err e = {.text = ""};
    struct kern_limits l = {.n_tok = 5, .n_head = 1, .head_dim = 1, .k_max = 1, .rows_max = 1};
    fix_ok(kern_reserve(k, &l, &e), &e);
    a.logits = rig_put(k, x, all * 4);
    a.top_id = rig_put(k, NULL, tops * 4);
    a.top = rig_put(k, NULL, tops * 4);
    a.lse = rig_put(k, NULL, n * 4);
    a.hash = rig_put(k, NULL, n * 8);
    fix_ok(kern_logits(k, &a, &e), &e);
    struct result r = {rig_get(k, a.logits, all * 4), rig_get(k, a.top, tops * 4),
                       rig_get(k, a.lse, n * 4), rig_get(k, a.top_id, tops * 4),
                       rig_get(k, a.hash, n * 8)};
    kern_free(k, a.logits);
    return r;
}

static void check_shape(struct rig *rig, int n, int64_t n_vocab, int k, enum kind kind, float cap)
{
    size_t all = (size_t)(n * n_vocab);
    float *x = calloc(all, 4);
    struct logits_args shape = {.n = n, .n_vocab = n_vocab, .softcap = cap, .k = k};
    struct result r[2];
    for (size_t i = 0; i < all; i++)
        x[i] = draw(kind);
    for (int s = 0; s < 2; s++)
        r[s] = run(rig->side[s], x, &shape);
    bool same = rig_differ(r[0].logits, r[1].logits, all, 4) < 0 &&
                rig_differ(r[0].top, r[1].top, (size_t)(n * k), 4) < 0 &&
                memcmp(r[0].id, r[1].id, (size_t)(n * k) * 4) == 0;
    ck_assert_msg(same, "logits or top %d of %d rows of %lld, values %d, cap %g", k, n,
                  (long long)n_vocab, (int)kind, (double)cap);
    ck_assert_msg(rig_differ(r[0].lse, r[1].lse, (size_t)n, 4) < 0,
                  "log-sum-exp of %d rows of %lld, values %d: %08x, expected %08x", n,
                  (long long)n_vocab, (int)kind, f32_bits(r[1].lse[0]), f32_bits(r[0].lse[0]));
    ck_assert_msg(memcmp(r[0].hash, r[1].hash, (size_t)n * 8) == 0, "hash of %d rows of %lld", n,
                  (long long)n_vocab);
    for (int s = 0; s < 2; s++) {
        free(r[s].logits);
        free(r[s].top);
        free(r[s].lse);
        free(r[s].id);
        free(r[s].hash);
    }
    free(x);
}

static const struct {
    int n, k;
    int64_t n_vocab;
} shapes[] = {{1, 2, 2},    {3, 2, 5},      {2, 64, 64},    {7, 5, 1023},    {2, 64, 1985},
              {6, 8, 4096}, {1, 64, 32000}, {12, 2, 49155}, {3, 20, 151936}, {1, 64, 600001}};

START_TEST(logits_equal_oracle)
{
    struct rig r = rig_open();
    for (int kind = 0; kind < KINDS; kind++)
        for (int cap = 0; cap < 2; cap++)
            check_shape(&r, shapes[_i].n, shapes[_i].n_vocab, shapes[_i].k, (enum kind)kind,
                        cap ? 30.0f : 0.0f);
    rig_close(&r);
}
END_TEST

START_TEST(row_counts_equal_oracle)
{
    struct rig r = rig_open();
    for (int i = 0; i < RIG_COUNTS; i++)
        check_shape(&r, rig_counts[i], 97 + 2000 * (i % 2), 5, (enum kind)(i % KINDS), 0);
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, logits_equal_oracle, 2, 4);
}

static void add_small_more(TCase *c)
{
    tcase_add_loop_test(c, logits_equal_oracle, 4, 6);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, logits_equal_oracle, 0, ARRAY_LEN(shapes));
    tcase_add_test(c, row_counts_equal_oracle);
}

Suite *test_suite(void)
{
    static void (*const small[RIG_SMALLS])(TCase *) = {add_small, add_small_more};
    return rig_suite_of("cuda logits", add_tests, small);
}
