/* test_sample.c: each step of sampling, as the CPU does it, against a plain version that sorts
 * everything.
 */
#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "infer/sample.h"
#include "kernels/elem.h"
#include "tests/kernels_fixture.h"

#define N 97

/* A kern with room for one row. */
struct sampler {
    struct kern *k;
    int64_t n_vocab;
    void *room;
};

static struct sampler *sampler_new(int64_t n_vocab)
{
    struct sampler *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    s->k = fix_open(KERN_F32, "auto", 1);
    s->n_vocab = n_vocab;
    s->room = malloc(kern_sample_room(1, n_vocab));
    ck_assert_ptr_nonnull(s->room);
    return s;
}

static void sampler_free(struct sampler *s)
{
    kern_close(s->k);
    free(s->room);
    free(s);
}

static int32_t sampler_pick(struct sampler *s, const struct sampling *p, const float *logits,
                            const int32_t *history, int64_t n_history, const uint8_t key[32],
                            int64_t pos)
{
    struct sample_row row = sampling_row(p, key, pos);
    int32_t lists[64], id;
    float logit;
    struct err e = {.text = ""};
    ck_assert(n_history + 2 * p->n_bias <= 64);
    row.n_history = (int32_t)n_history;
    row.n_bias = p->n_bias;
    if (n_history)
        memcpy(lists, history, (size_t)n_history * sizeof *lists);
    for (int i = 0; i < p->n_bias; i++) {
        lists[n_history + 2 * i] = p->bias[i].id;
        lists[n_history + 2 * i + 1] = (int32_t)f32_bits(p->bias[i].bias);
    }
    const struct sample_args a = {.n = 1,
                                  .n_vocab = s->n_vocab,
                                  .logits = logits,
                                  .rows = &row,
                                  .lists = lists,
                                  .room = s->room,
                                  .id = &id,
                                  .logit = &logit};
    fix_ok(kern_sample(s->k, &a, &e), &e);
    ck_assert(f32_bits(logit) == f32_bits(logits[id]));
    return id;
}

static const float *sort_logits;

static int compare_rank(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_logits[x] != sort_logits[y])
        return sort_logits[x] > sort_logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The definition, step by step over a full sort. */
static int32_t pick_plainly(const struct sampling *p, const float *logits, const int32_t *history,
                            int64_t n_history, const uint8_t key[32], int64_t pos)
{
    float l[N];
    int32_t rank[N];
    double w[N], sum = 0, before = 0;
    memcpy(l, logits, sizeof l);
    for (int i = 0; i < p->n_bias; i++)
        l[p->bias[i].id] += p->bias[i].bias;
    for (int id = 0; id < N; id++) {
        bool met = false;
        for (int64_t i = 0; i < n_history; i++)
            met |= history[i] == id;
        float f = (float)p->repetition_penalty;
        if (met)
            l[id] = l[id] > 0 ? l[id] / f : l[id] * f;
        rank[id] = id;
    }
    sort_logits = l;
    qsort(rank, N, sizeof *rank, compare_rank);
    if (p->temperature <= 0)
        return rank[0];
    int64_t n = N;
    for (int i = 0; i < N; i++) {
        double d = (double)l[rank[i]] - (double)l[rank[0]];
        w[i] = (double)elem_exp2_full((float)(d / p->temperature * 1.4426950408889634));
        n = w[i] > 0 ? n : MIN2(n, i);
    }
    n = p->top_k > 0 ? MIN2(n, p->top_k) : n;
    for (int i = 0; i < n; i++)
        sum += w[i];
    int64_t kept = 0;
    for (int i = 0; i < n && (i == 0 || before < p->top_p * sum || p->top_p >= 1); i++) {
        before += w[i];
        kept++;
    }
    n = kept;
    while (n > 1 && w[n - 1] < (double)(float)p->min_p)
        n--;
    sum = 0;
    for (int i = 0; i < n; i++)
        sum += w[i];
    double mark = (double)rng_uniform(p->seed, key, (uint64_t)pos) * sum, seen = 0;
    for (int i = 0; i < n; i++) {
        seen += w[i];
        if (seen > mark)
            return rank[i];
    }
    return rank[n - 1];
}

static void random_logits(struct rng *r, float *l)
{
    for (int i = 0; i < N; i++)
        l[i] = rng_below(r, 4) ? (float)(rng_normal(r) * 3) : 1.5F; /* ties too */
}

START_TEST(every_mix_of_settings_agrees_with_a_full_sort)
{
    struct rng r = {7, 0};
    struct sampler *s = sampler_new(N);
    ck_assert(s != NULL);
    int differ_from_best = 0;
    for (int i = 0; i < 20000; i++) {
        float l[N];
        int32_t history[20];
        uint8_t key[32];
        struct logit_bias bias[2] = {{(int32_t)rng_below(&r, N), 3.5F},
                                     {(int32_t)rng_below(&r, N), -100}};
        struct sampling p = sampling_default();
        random_logits(&r, l);
        for (int j = 0; j < 20; j++)
            history[j] = (int32_t)rng_below(&r, N);
        for (int j = 0; j < 32; j++)
            key[j] = (uint8_t)rng_next(&r);
        p.temperature = (double)rng_below(&r, 4) * 0.6;
        p.top_k = rng_below(&r, 2) ? (int64_t)rng_below(&r, 12) : 0;
        p.top_p = rng_below(&r, 2) ? rng_double(&r) : 1;
        p.min_p = rng_below(&r, 2) ? rng_double(&r) * 0.3 : 0;
        p.repetition_penalty = rng_below(&r, 2) ? 1.3 : 1;
        p.seed = rng_next(&r);
        p.bias = bias;
        p.n_bias = (int)rng_below(&r, 3);
        int32_t want = pick_plainly(&p, l, history, 20, key, i);
        int32_t got = sampler_pick(s, &p, l, history, 20, key, i);
        /* Sums in another order may part at the very edge of a draw; here they never do. */
        ck_assert_int_eq(got, want);
        struct sampling greedy = sampling_default();
        differ_from_best += got != sampler_pick(s, &greedy, l, history, 20, key, i);
    }
    ck_assert(differ_from_best > 2000);
    sampler_free(s);
}
END_TEST

START_TEST(greedy_top_k_one_and_a_tiny_temperature_are_one_token)
{
    struct rng r = {8, 0};
    struct sampler *s = sampler_new(N);
    uint8_t key[32] = {1};
    for (int i = 0; i < 500; i++) {
        float l[N];
        random_logits(&r, l);
        struct sampling g = sampling_default(), k = g, t = g, p = g;
        k.temperature = 1;
        k.top_k = 1;
        p.temperature = 1;
        p.top_p = 0;
        int32_t id = sampler_pick(s, &g, l, NULL, 0, key, i);
        ck_assert_int_eq(sampler_pick(s, &k, l, NULL, 0, key, i), id);
        ck_assert_int_eq(sampler_pick(s, &p, l, NULL, 0, key, i), id);
        l[id] += 0.1F;
        t.temperature = 1e-4;
        ck_assert_int_eq(sampler_pick(s, &t, l, NULL, 0, key, i), id);
    }
    sampler_free(s);
}
END_TEST

START_TEST(draws_follow_the_probabilities)
{
    struct sampler *s = sampler_new(4);
    float l[4] = {logf(0.5F), logf(0.25F), logf(0.2F), logf(0.05F)};
    double want[4] = {0.5, 0.25, 0.2, 0.05};
    int count[4] = {0}, n = 40000;
    struct sampling p = sampling_default();
    p.temperature = 1;
    uint8_t key[32] = {3};
    for (int i = 0; i < n; i++)
        count[sampler_pick(s, &p, l, NULL, 0, key, i)]++;
    for (int i = 0; i < 4; i++)
        ck_assert(fabs((double)count[i] / n - want[i]) < 5 * sqrt(want[i] / n));
    sampler_free(s);
}
END_TEST

START_TEST(a_draw_depends_on_seed_stream_and_position_alone)
{
    struct sampler *s = sampler_new(N);
    struct rng r = {9, 0};
    float l[N] = {0};
    struct sampling p = sampling_default();
    p.temperature = 1;
    uint8_t a[32] = {1}, b[32] = {2};
    int same_key = 0, same_pos = 0, same_seed = 0;
    for (int i = 0; i < 300; i++) {
        p.seed = rng_next(&r);
        int32_t id = sampler_pick(s, &p, l, NULL, 0, a, i);
        ck_assert_int_eq(id, sampler_pick(s, &p, l, NULL, 0, a, i));
        same_key += id == sampler_pick(s, &p, l, NULL, 0, b, i);
        same_pos += id == sampler_pick(s, &p, l, NULL, 0, a, i + 1);
        p.seed++;
        same_seed += id == sampler_pick(s, &p, l, NULL, 0, a, i);
    }
    ck_assert(same_key < 30 && same_pos < 30 && same_seed < 30);
    sampler_free(s);
}
END_TEST

START_TEST(what_is_not_a_number_is_never_chosen)
{
    struct sampler *s = sampler_new(4);
    struct sampling p = sampling_default();
    uint8_t key[32] = {0};
    float l[4] = {NAN, 1, NAN, 2}, all[4] = {NAN, NAN, NAN, NAN};
    float inf[4] = {0, INFINITY, 5, INFINITY}, low[4] = {-INFINITY, -INFINITY, 0, -INFINITY};
    for (int t = 0; t < 2; t++) {
        p.temperature = t;
        for (int i = 0; i < 200; i++) {
            int32_t id = sampler_pick(s, &p, l, NULL, 0, key, i);
            ck_assert(id == 3 || (t && id == 1));
            ck_assert_int_eq(sampler_pick(s, &p, all, NULL, 0, key, i), 0);
            id = sampler_pick(s, &p, inf, NULL, 0, key, i);
            ck_assert(id == 1 || (t && id == 3));
            ck_assert_int_eq(sampler_pick(s, &p, low, NULL, 0, key, i), 2);
        }
    }
    sampler_free(s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("sample");
    TCase *t = tcase_create("sample");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_mix_of_settings_agrees_with_a_full_sort);
    tcase_add_test(t, greedy_top_k_one_and_a_tiny_temperature_are_one_token);
    tcase_add_test(t, draws_follow_the_probabilities);
    tcase_add_test(t, a_draw_depends_on_seed_stream_and_position_alone);
    tcase_add_test(t, what_is_not_a_number_is_never_chosen);
    suite_add_tcase(s, t);
    return s;
}
