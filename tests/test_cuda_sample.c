/* test_cuda_sample.c: penalties, filters and draws on a CUDA device choose the very token of the
 * CPU, for every mix of settings, size of vocabulary and kind of logits.
 */
#include <stdio.h>

#include "infer/sample.h"
#include "tests/cuda_rig.h"

#define HISTORY 300
#define BIAS    9

static struct rng rng = {.seed = 53};

/* Logits as models have them; a few values only, so that bins hold thousands; all equal; with NaN,
 * infinities and zeros of both signs; nothing but NaN; wide. */
enum kind { ORDINARY, TIES, EQUAL, SPECIAL, NONE, WIDE, KINDS };

static float draw_logit(enum kind kind)
{
    static const uint32_t special[] = {0x7f800000, 0xff800000, 0x7fc00000, 0,
                                       0x80000000, 1,          0x7f7fffff, 0xff7fffff};
    uint64_t v = rng_next(&rng);
    int64_t sum = (int64_t)((v & 0xffff) + (v >> 16 & 0xffff) + (v >> 32 & 0xffff) + (v >> 48));
    float x = (float)(sum - 131070) * 0x1p-14f; /* like a normal one of deviation 2.3 */
    if (kind == TIES)
        return (float)(v % 7) - 3;
    if (kind == EQUAL)
        return 1.25f;
    if (kind == NONE)
        return NAN;
    if (kind == WIDE)
        return ldexpf(x, (int)(v % 60) - 30);
    if (kind == SPECIAL && v % 3 == 0)
        return f32_from_bits(special[v / 3 % (1 + v / 64 % ARRAY_LEN(special))]);
    return x;
}

static struct sample_row draw_settings(int row, int64_t n_vocab, bool narrow)
{
    struct sampling p = sampling_default();
    uint8_t key[32] = {(uint8_t)row};
    p.temperature = rng_below(&rng, 6) ? ldexp(1 + rng_double(&rng), (int)rng_below(&rng, 4) - 2)
                                       : (double)rng_below(&rng, 2) * 1e-4;
    if (rng_below(&rng, 2) || narrow)
        p.top_k = (int64_t)rng_below(&rng, rng_below(&rng, 2) ? 64 : (uint64_t)n_vocab + 9);
    if (rng_below(&rng, 2))
        p.top_p = rng_below(&rng, 8) ? rng_double(&rng) : 0;
    if (rng_below(&rng, 2))
        p.min_p = rng_below(&rng, 8) ? rng_double(&rng) * rng_double(&rng) : 1.5;
    p.repetition_penalty = rng_below(&rng, 3) ? 1 : 0.5 + rng_double(&rng);
    p.seed = rng_next(&rng);
    struct sample_row r = sampling_row(&p, key, row);
    r.row = row;
    r.n_history = p.repetition_penalty != 1 ? (int32_t)rng_below(&rng, HISTORY + 1) : 0;
    r.n_bias = rng_below(&rng, 3) ? 0 : (int32_t)rng_below(&rng, BIAS + 1);
    return r;
}

/* History and bias of a row; some ids stand twice, some nowhere. */
static void fill_lists(int32_t *at, const struct sample_row *r, int64_t n_vocab)
{
    for (int i = 0; i < r->n_history + r->n_bias; i++, at++) {
        bool again = i > 0 && i != r->n_history && rng_below(&rng, 4) == 0;
        int32_t id = (int32_t)rng_below(&rng, (uint64_t)n_vocab + 2) - 1;
        int before = i < r->n_history ? 1 : 2;
        *at = again ? at[-before] : id;
        if (before == 2)
            *++at = (int32_t)f32_bits(fix_uniform(&rng, -8, 8));
    }
}

/* Rows that were sampled in another way than on the CPU. */
static int count_others(struct rig *rig, int n, int64_t n_vocab, enum kind kind)
{
    const size_t all = (size_t)n * (size_t)n_vocab, per = HISTORY + 2 * BIAS;
    float *x = malloc(all * sizeof *x), *logit[2];
    struct sample_row *rows = malloc((size_t)n * sizeof *rows);
    int32_t *lists = calloc((size_t)n * per, sizeof *lists), *id[2];
    struct err e = {.text = ""};
    int others = 0;
    ck_assert(x && rows && lists);
    for (size_t i = 0; i < all; i++)
        x[i] = draw_logit(kind);
    for (int i = 0; i < n; i++) {
        rows[i] = draw_settings(n - 1 - i, n_vocab, kind == EQUAL);
        rows[i].at = (int32_t)((size_t)i * per);
        fill_lists(lists + rows[i].at, &rows[i], n_vocab);
    }
    for (int s = 0; s < 2; s++) {
        struct kern *k = rig->side[s];
        struct sample_args a = {.n = n, .n_vocab = n_vocab};
        size_t room = kern_sample_room(n, n_vocab);
        a.logits = rig_put(k, x, all * sizeof *x);
        a.rows = rig_put(k, rows, (size_t)n * sizeof *rows);
        a.lists = rig_put(k, lists, (size_t)n * per * sizeof *lists);
        a.room = rig_put(k, NULL, room);
        a.id = rig_put(k, NULL, (size_t)n * sizeof *a.id);
        a.logit = rig_put(k, NULL, (size_t)n * sizeof *a.logit);
        fix_ok(kern_fill(k, a.room, 0xff, room, &e), &e);
        fix_ok(kern_sample(k, &a, &e), &e);
        id[s] = rig_get(k, a.id, (size_t)n * sizeof *a.id);
        logit[s] = rig_get(k, a.logit, (size_t)n * sizeof *a.logit);
        float *kept = rig_get(k, a.logits, all * sizeof *x);
        ck_assert_msg(memcmp(kept, x, all * sizeof *x) == 0, "logits have changed");
        free(kept);
        void *const blocks[] = {(void *)(uintptr_t)a.logits,
                                (void *)(uintptr_t)a.rows,
                                (void *)(uintptr_t)a.lists,
                                a.room,
                                a.id,
                                a.logit};
        for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
            kern_free(k, blocks[i]);
    }
    for (int i = 0; i < n; i++) {
        int r = rows[i].row;
        bool same = id[0][r] == id[1][r] && rig_differ(&logit[0][r], &logit[1][r], 1, 4) < 0;
        if (!same && others++ == 0 && kern_planted() == KERN_FAULT_NONE)
            printf("row %d of %d x %lld, kind %d: id %d, expected %d; T %g k %lld p %g min %g "
                   "penalty %g of %d, %d biases\n",
                   r, n, (long long)n_vocab, (int)kind, id[1][r], id[0][r], rows[i].temperature,
                   (long long)rows[i].top_k, rows[i].top_p, (double)rows[i].min_p,
                   (double)rows[i].penalty, rows[i].n_history, rows[i].n_bias);
    }
    for (int s = 0; s < 2; s++) {
        free(id[s]);
        free(logit[s]);
    }
    free(x);
    free(rows);
    free(lists);
    return others;
}

static const struct {
    int n;
    int64_t n_vocab;
    int times;
} shapes[] = {{3, 1, 4},      {5, 2, 8},      {64, 97, 8},    {7, 1023, 8},  {6, 4097, 4},
              {16, 32000, 2}, {12, 49155, 1}, {8, 151936, 1}, {2, 600001, 1}};

START_TEST(tokens_equal_oracle)
{
    struct rig r = rig_open();
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < shapes[_i].times; i++)
            ck_assert_int_eq(count_others(&r, shapes[_i].n, shapes[_i].n_vocab, (enum kind)kind),
                             0);
    rig_close(&r);
}
END_TEST

START_TEST(a_draw_that_goes_too_far_is_seen)
{
    struct rig r = rig_open();
    kern_plant(KERN_FAULT_SAMPLE);
    int others = count_others(&r, 64, 4097, ORDINARY);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_msg(others > 8, "%d of 64", others);
    rig_close(&r);
}
END_TEST

START_TEST(row_counts_equal_oracle)
{
    struct rig r = rig_open();
    for (int i = 0; rig_counts[i] <= 64; i++) /* more are refused */
        ck_assert_int_eq(count_others(&r, rig_counts[i], 97, (enum kind)(i % KINDS)), 0);
    rig_close(&r);
}
END_TEST

/* Every kernel, with bins of both sizes, for compute-sanitizer. */
START_TEST(few_tokens_equal_oracle)
{
    struct rig r = rig_open();
    ck_assert_int_eq(count_others(&r, 2, 1023, _i ? SPECIAL : ORDINARY), 0);
    ck_assert_int_eq(count_others(&r, 17, 97, TIES), 0);
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, few_tokens_equal_oracle, 0, 2);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, tokens_equal_oracle, 0, ARRAY_LEN(shapes));
    tcase_add_test(c, row_counts_equal_oracle);
    tcase_add_test(c, a_draw_that_goes_too_far_is_seen);
}

Suite *test_suite(void)
{
    return rig_suite("cuda sample", add_tests, add_small);
}
