/* test_paired.c: how often the rules on speed and quality err, on constructed histories.
 *
 * Speed: 7 rounds a night, log-normal noise of 2 % a run, 2 % of the runs 30 % slower, and 1 %
 * drift from run to run (steady, or a step of either sign); the nights before are of the same
 * kind. Quality: the noise is what SmolLM2's per-prompt KL changes by when the arithmetic changes
 * and nothing else (golden/sweep_kl.txt), resampled with random sign.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "jobs/gates.h"
#include "jobs/paired.h"
#include "tests/check_main.h"

#define ROUNDS    7
#define NIGHTS    5 /* the judged one and those before */
#define HISTORIES 1000

enum drift { DRIFT_NONE, DRIFT_STEADY, DRIFT_STEPS, DRIFT_KINDS };

/* The next run's time of a machine whose level moves. */
static double next_run(struct rng *r, enum drift kind, double *level)
{
    if (kind == DRIFT_STEADY)
        *level += 0.01;
    if (kind == DRIFT_STEPS)
        *level += rng_below(r, 2) ? 0.01 : -0.01;
    double t = exp(*level + 0.02 * rng_normal(r));
    return rng_double(r) < 0.02 ? t * 1.3 : t;
}

static void night(struct rng *r, enum drift kind, double factor, struct speed_round *rounds)
{
    double level = 0;
    for (int i = 0; i < ROUNDS; i++) {
        rounds[i].base = next_run(r, kind, &level);
        rounds[i].now = next_run(r, kind, &level) * factor;
        rounds[i].base_again = next_run(r, kind, &level);
    }
}

/* Of HISTORIES, how many call the last night slower (or, sign -1, quicker). */
static int found(uint64_t seed, enum drift kind, double factor, size_t nights, int sign)
{
    struct rng r = {.seed = seed};
    struct err e = {.text = ""};
    int n = 0;
    for (int h = 0; h < HISTORIES; h++) {
        struct speed_round rounds[NIGHTS * ROUNDS];
        size_t counts[NIGHTS];
        struct paired_speed p;
        for (size_t i = 0; i < nights; i++) {
            night(&r, kind, i ? 1 : factor, rounds + i * ROUNDS);
            counts[i] = ROUNDS;
        }
        ck_assert_msg(paired_speed(rounds, counts, nights, &p, &e) == ERR_OK, "%s", e.text);
        n += sign * p.change > p.spread;
    }
    return n;
}

START_TEST(noise_alone_is_seldom_a_slowdown)
{
    enum drift kind = (enum drift)_i;
    int alone = found(1, kind, 1, 1, 1), known = found(2, kind, 1, NIGHTS, 1);
    printf("drift %d: of %d noise-only histories %d called slower with one night, %d with %d\n", _i,
           HISTORIES, alone, known, NIGHTS);
    ck_assert_int_le(alone, HISTORIES / 100);
    ck_assert_int_le(known, HISTORIES / 100);
}
END_TEST

START_TEST(five_percent_are_found)
{
    enum drift kind = (enum drift)_i;
    int slower = found(3, kind, 1.05, NIGHTS, 1), quicker = found(4, kind, 1 / 1.05, NIGHTS, -1);
    printf("drift %d: of %d slowdowns of 5 %% %d found, of gains %d\n", _i, HISTORIES, slower,
           quicker);
    ck_assert_int_ge(slower, HISTORIES * 95 / 100);
    ck_assert_int_ge(quicker, HISTORIES * 95 / 100);
}
END_TEST

START_TEST(equal_runs_and_lone_outliers_are_no_change)
{
    struct speed_round rounds[ROUNDS];
    const size_t n = ROUNDS;
    struct paired_speed p;
    for (int i = 0; i < ROUNDS; i++)
        rounds[i] = (struct speed_round){2, 2, 2};
    ck_assert(paired_speed(rounds, &n, 1, &p, NULL) == ERR_OK);
    ck_assert(p.change == 0);
    ck_assert(p.spread > 0);
    rounds[3].now = 4;
    rounds[5].base_again = 4;
    ck_assert(paired_speed(rounds, &n, 1, &p, NULL) == ERR_OK);
    ck_assert_uint_eq(p.kept, ROUNDS - 1);
    ck_assert(fabs(p.change) <= p.spread);
}
END_TEST

/* ---- quality -----------------------------------------------------------------------------------
 */

/* One answer in f32 and in mma90: sums over its positions. */
struct measured {
    double positions, kl[2], agree[2], nll[2];
};

static size_t read_measured(struct measured *m, size_t max)
{
    size_t bytes, n = 0;
    char *text = test_slurp(TEST_GOLDEN "/sweep_kl.txt", &bytes), *at = text;
    while (*at && n < max) {
        struct measured *v = &m[n];
        n += *at != '#' &&
             sscanf(at, "%lf %lf %lf %lf %lf %lf %lf", &v->positions, &v->kl[0], &v->kl[1],
                    &v->agree[0], &v->agree[1], &v->nll[0], &v->nll[1]) == 7;
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    free(text);
    return n;
}

/* A night of n answers: the base is a measured answer, now the same one with the changes of another
 * answer between the two arithmetics (of KL: relative), in random direction; KL times `factor`. */
static void draw(struct rng *r, const struct measured *m, size_t n, double factor,
                 struct answer_loss *base, struct answer_loss *now)
{
    for (size_t i = 0; i < n; i++) {
        const struct measured *a = &m[rng_below(r, n)], *b = &m[rng_below(r, n)];
        int from = (int)rng_below(r, 2), to = 1 - from;
        base[i] = (struct answer_loss){
            .positions = a->positions, .kl = a->kl[0], .agree = a->agree[0], .nll_diff = a->nll[0]};
        snprintf(base[i].id, sizeof base[i].id, "%zu", i);
        now[i] = base[i];
        now[i].kl *= b->kl[to] / b->kl[from] * factor;
        now[i].agree += b->agree[to] - b->agree[from];
        now[i].nll_diff += b->nll[to] - b->nll[from];
    }
}

/* Of the histories, how many the whole gate calls FAILED. */
static int worse(uint64_t seed, double factor, int histories)
{
    static const struct sweep_quality free_of_limits = {true, NAN, NAN, NAN, 0};
    struct measured m[64];
    struct answer_loss base[64], now[64];
    struct rng r = {.seed = seed};
    struct err e = {.text = ""};
    size_t n = read_measured(m, 64);
    int count = 0;
    ck_assert_uint_ge(n, 10);
    for (int h = 0; h < histories; h++) {
        struct judgement j = {.asked = false};
        draw(&r, m, n, factor, base, now);
        struct quality q = {.answers = base, .n = n}, p = {.answers = now, .n = n};
        p.kl.value = 0.4;
        ck_assert_msg(gate_quality(&free_of_limits, &q, &p, &j, &e) == ERR_OK, "%s", e.text);
        count += j.verdict == VERDICT_FAILED;
    }
    return count;
}

START_TEST(noise_of_arithmetic_is_no_loss_of_quality)
{
    int n = worse(5, 1, HISTORIES);
    printf("quality: %d of %d noise-only histories called worse\n", n, HISTORIES);
    ck_assert_int_le(n, HISTORIES / 100);
}
END_TEST

START_TEST(a_rise_of_a_tenth_is_found)
{
    int n = worse(6, 1.1, 200);
    printf("quality: %d of 200 rises of KL by 10 %% found\n", n);
    ck_assert_int_ge(n, 190);
}
END_TEST

START_TEST(answers_are_paired_by_name_and_text)
{
    struct answer_loss base[] = {
        {"a", "", 10, 1, 9, 0.5}, {"b", "", 20, 4, 18, 1}, {"c", "", 5, 1, 5, 0}};
    struct answer_loss now[] = {
        {"b", "", 20, 4, 18, 1}, {"d", "", 5, 9, 1, 9}, {"a", "", 10, 1, 8, 0.5}};
    const struct quality q = {.answers = base, .n = 3}, p = {.answers = now, .n = 3};
    struct stats_interval v;
    size_t n;
    ck_assert(paired_quality(&q, &p, PAIRED_KL, &v, &n, NULL) == ERR_OK);
    ck_assert_uint_eq(n, 2);
    ck_assert(v.value == 0);
    ck_assert(paired_quality(&q, &p, PAIRED_DISAGREE, &v, &n, NULL) == ERR_OK);
    ck_assert(fabs(v.value - 1.0 / 30) < 1e-12);
    snprintf(now[2].text, sizeof now[2].text, "%s", "other text");
    ck_assert(paired_quality(&q, &p, PAIRED_DISAGREE, &v, &n, NULL) == ERR_OK);
    ck_assert_uint_eq(n, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("paired");
    TCase *t = tcase_create("paired");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, noise_alone_is_seldom_a_slowdown, 0, DRIFT_KINDS);
    tcase_add_loop_test(t, five_percent_are_found, 0, DRIFT_KINDS);
    tcase_add_test(t, equal_runs_and_lone_outliers_are_no_change);
    tcase_add_test(t, noise_of_arithmetic_is_no_loss_of_quality);
    tcase_add_test(t, a_rise_of_a_tenth_is_found);
    tcase_add_test(t, answers_are_paired_by_name_and_text);
    suite_add_tcase(s, t);
    return s;
}
