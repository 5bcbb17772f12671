/* test_gates.c: a planted regression of each gate is found, and nothing that was not judged, or
 * whose judgement is open, ends as a pass.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/rng.h"
#include "jobs/gates.h"
#include "jobs/sweep.h"
#include "tests/check_main.h"

static struct hash_run hash_of(const char *label, const char *hash)
{
    struct hash_run h;
    snprintf(h.label, sizeof h.label, "%s", label);
    snprintf(h.hash, sizeof h.hash, "%s", hash);
    return h;
}

START_TEST(one_other_hash_is_nondeterminism)
{
    struct hash_run runs[20];
    struct judgement j = {.asked = false};
    for (int i = 0; i < 20; i++)
        runs[i] = hash_of("run", "aaaa");
    gate_repeat(runs, 20, &j);
    ck_assert(j.verdict == VERDICT_PASS && j.asked);
    runs[13] = hash_of("run 14", "bbbb");
    j = (struct judgement){.asked = false};
    gate_repeat(runs, 20, &j);
    ck_assert(j.verdict == VERDICT_NONDETERMINISTIC);
    ck_assert_ptr_nonnull(strstr(j.words, "20 runs gave 2 outputs"));
    ck_assert_ptr_nonnull(strstr(j.words, "run 14 bbbb"));
    j = (struct judgement){.asked = false};
    gate_repeat(runs, 1, &j);
    ck_assert(!verdict_passes(j.verdict));
}
END_TEST

START_TEST(another_path_with_other_bits_is_found)
{
    const struct hash_run first = hash_of("run 1", "aaaa");
    struct hash_run paths[] = {hash_of("max-batch 1", "aaaa"), hash_of("chunk 7", "aaaa")};
    struct judgement j = {.asked = false};
    gate_invariance(&first, paths, 2, &j);
    ck_assert(j.verdict == VERDICT_PASS);
    paths[1] = hash_of("chunk 7", "cccc");
    j = (struct judgement){.asked = false};
    gate_invariance(&first, paths, 2, &j);
    ck_assert(j.verdict == VERDICT_NONDETERMINISTIC);
    ck_assert_ptr_nonnull(strstr(j.words, "chunk 7 gave cccc, run 1 aaaa"));
    j = (struct judgement){.asked = false};
    gate_invariance(&first, NULL, 0, &j);
    ck_assert(!verdict_passes(j.verdict));
}
END_TEST

START_TEST(changed_tokens_are_found)
{
    struct tokens_diff d = {.same_bits = true, .same_ids = true, .answers = 3, .answers_same = 3};
    struct judgement j = {.asked = false};
    gate_tokens(&d, false, &j);
    ck_assert(j.verdict == VERDICT_PASS);
    d.same_bits = false;
    j = (struct judgement){.asked = false};
    gate_tokens(&d, false, &j);
    ck_assert(j.verdict == VERDICT_FAILED);
    j = (struct judgement){.asked = false};
    gate_tokens(&d, true, &j);
    ck_assert(j.verdict == VERDICT_PASS);
    d = (struct tokens_diff){.answers = 3,
                             .answers_same = 2,
                             .id = "x",
                             .token = 4,
                             .base_margin = 0.25,
                             .now_margin = 0.5};
    j = (struct judgement){.asked = false};
    gate_tokens(&d, true, &j);
    ck_assert(j.verdict == VERDICT_FAILED);
    ck_assert_ptr_nonnull(strstr(j.words, "1 of 3 answers; first 'x' at token 4"));
    j = (struct judgement){.asked = false};
    gate_tokens(NULL, true, &j);
    ck_assert(j.verdict == VERDICT_NO_BASELINE);
}
END_TEST

/* ---- quality -----------------------------------------------------------------------------------
 */

#define ANSWERS 20

/* Answers of 40 positions with a KL of about 0.02 a position, 38 of which agree. */
static void fill(struct quality *q, struct answer_loss *a, double kl, double agree, double noise)
{
    struct rng r = {.seed = 9};
    *q = (struct quality){.answers = a, .n = ANSWERS};
    for (int i = 0; i < ANSWERS; i++) {
        a[i] = (struct answer_loss){.positions = 40};
        snprintf(a[i].id, sizeof a[i].id, "a%d", i);
        a[i].kl = 40 * kl * (1 + 0.3 * rng_double(&r)) * (1 + noise * rng_normal(&r));
        a[i].agree = agree;
        a[i].nll_diff = a[i].kl / 2;
    }
    q->kl = (struct stats_interval){kl, kl * 0.9, kl * 1.1};
    q->agreement = (struct stats_interval){agree / 40, agree / 40 - 0.01, agree / 40 + 0.01};
    q->log_ppl_ratio = (struct stats_interval){kl / 2, kl * 0.4, kl * 0.6};
}

static enum verdict judge(const struct sweep_quality *limits, const struct quality *base,
                          const struct quality *now, struct judgement *j)
{
    struct err e = {.text = ""};
    *j = (struct judgement){.asked = false};
    ck_assert_msg(gate_quality(limits, base, now, j, &e) == ERR_OK, "%s", e.text);
    return j->verdict;
}

static const struct sweep_quality free_of_limits = {true, NAN, NAN, NAN, 0};

START_TEST(losses_of_quality_are_found)
{
    struct answer_loss a[ANSWERS], b[ANSWERS];
    struct quality base, now;
    struct judgement j;
    fill(&base, a, 0.02, 38, 0);
    fill(&now, b, 0.02, 38, 0);
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_PASS);
    fill(&now, b, 0.022, 38, 0.01);
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_FAILED);
    ck_assert_ptr_nonnull(strstr(j.words, "KL +"));
    fill(&now, b, 0.02, 37, 0);
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_FAILED);
    ck_assert_ptr_nonnull(strstr(j.words, "disagreement +"));
    fill(&now, b, 0.01, 39, 0.01);
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_IMPROVED);
    fill(&now, b, 0.02, 38, 0.2);
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_UNRESOLVED);
    ck_assert(judge(&free_of_limits, NULL, &now, &j) == VERDICT_NO_BASELINE);
    /* A rise that the file allows is a pass when it is surely no larger. */
    const struct sweep_quality ten = {true, NAN, NAN, NAN, 0.1};
    fill(&now, b, 0.0205, 38, 0.001);
    ck_assert(judge(&ten, &base, &now, &j) == VERDICT_PASS);
    now.not_finite = 1;
    ck_assert(judge(&ten, &base, &now, &j) == VERDICT_FAILED);
    ck_assert_ptr_nonnull(strstr(j.words, "NaN"));
}
END_TEST

START_TEST(limits_hold_without_a_baseline)
{
    struct answer_loss a[ANSWERS];
    struct quality now;
    struct judgement j;
    fill(&now, a, 0.02, 38, 0);
    struct sweep_quality l = free_of_limits;
    l.kl = 0.015;
    ck_assert(judge(&l, NULL, &now, &j) == VERDICT_FAILED);
    l.kl = 0.019; /* inside of the interval */
    ck_assert(judge(&l, &now, &now, &j) == VERDICT_UNRESOLVED);
    l.kl = 0.03;
    ck_assert(judge(&l, &now, &now, &j) == VERDICT_PASS);
    l.agreement = 0.99;
    ck_assert(judge(&l, NULL, &now, &j) == VERDICT_FAILED);
    l.agreement = 0.9;
    l.perplexity = 1.001;
    ck_assert(judge(&l, NULL, &now, &j) == VERDICT_FAILED);
}
END_TEST

START_TEST(another_prompt_file_is_not_comparable)
{
    struct answer_loss a[ANSWERS], b[ANSWERS];
    struct quality base, now;
    struct judgement j;
    fill(&base, a, 0.02, 38, 0);
    fill(&now, b, 0.02, 38, 0);
    for (int i = 0; i < ANSWERS; i++)
        b[i].id[0] = 'z';
    ck_assert(judge(&free_of_limits, &base, &now, &j) == VERDICT_NOT_COMPARABLE);
}
END_TEST

/* ---- speed -------------------------------------------------------------------------------------
 */

START_TEST(a_slower_program_is_found)
{
    struct speed_round r[7];
    const size_t n = 7;
    struct rng g = {.seed = 4};
    struct judgement j;
    for (int k = 0; k < 3; k++) {
        const double factor[] = {1, 1.2, 0.8};
        const enum verdict wanted[] = {VERDICT_UNRESOLVED, VERDICT_FAILED, VERDICT_IMPROVED};
        for (int i = 0; i < 7; i++)
            r[i] = (struct speed_round){1 + 0.01 * rng_normal(&g),
                                        factor[k] * (1 + 0.01 * rng_normal(&g)),
                                        1 + 0.01 * rng_normal(&g)};
        j = (struct judgement){.asked = false};
        ck_assert(gate_speed(r, &n, 1, &j, NULL) == ERR_OK);
        ck_assert_msg(j.verdict == wanted[k], "%s", j.words);
    }
}
END_TEST

/* ---- the run -----------------------------------------------------------------------------------
 */

static struct cell_result cell(enum verdict v, enum err_code error)
{
    return (struct cell_result){.verdict = v, .error = error};
}

START_TEST(a_run_is_as_bad_as_its_worst_cell)
{
    struct cell_result c[3] = {cell(VERDICT_PASS, ERR_OK), cell(VERDICT_IMPROVED, ERR_OK),
                               cell(VERDICT_UNRESOLVED, ERR_OK)};
    ck_assert(sweep_conclude(c, 3, false) == ERR_OK);
    ck_assert(sweep_conclude(c, 0, true) != ERR_OK);
    static const struct {
        enum verdict v;
        enum err_code error, wanted;
    } rows[] = {
        {VERDICT_NO_BASELINE, ERR_OK, ERR_NEGATIVE},
        {VERDICT_SKIPPED, ERR_IO, ERR_IO},
        {VERDICT_NOT_COMPARABLE, ERR_OK, ERR_MISMATCH},
        {VERDICT_MISSING, ERR_INPUT, ERR_INPUT},
        {VERDICT_BROKEN, ERR_INTERNAL, ERR_INTERNAL},
        {VERDICT_BROKEN, ERR_OK, ERR_INTERNAL},
        {VERDICT_FAILED, ERR_OK, ERR_NEGATIVE},
        {VERDICT_NONDETERMINISTIC, ERR_OK, ERR_DETERMINISM},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        c[1] = cell(rows[i].v, rows[i].error);
        ck_assert_msg(sweep_conclude(c, 3, false) == rows[i].wanted, "row %zu", i);
    }
    c[1] = cell(VERDICT_NO_BASELINE, ERR_OK);
    ck_assert(sweep_conclude(c, 3, true) == ERR_OK);
    c[0] = cell(VERDICT_BROKEN, ERR_INTERNAL);
    c[1] = cell(VERDICT_FAILED, ERR_OK);
    ck_assert(sweep_conclude(c, 3, true) == ERR_NEGATIVE);
    c[2] = cell(VERDICT_NONDETERMINISTIC, ERR_OK);
    ck_assert(sweep_conclude(c, 3, true) == ERR_DETERMINISM);
}
END_TEST

START_TEST(only_two_verdicts_pass)
{
    int passing = 0;
    for (int v = 0; v < VERDICT_COUNT; v++) {
        enum verdict back;
        passing += verdict_passes((enum verdict)v);
        ck_assert(verdict_find(verdict_name((enum verdict)v), &back) && back == (enum verdict)v);
    }
    ck_assert_int_eq(passing, 2);
    struct cell_result c = cell(VERDICT_PASS, ERR_OK);
    c.gate[GATE_REPEAT] = (struct judgement){true, VERDICT_PASS, "", ""};
    c.gate[GATE_SPEED] = (struct judgement){true, VERDICT_SKIPPED, "not reached", ""};
    cell_result_conclude(&c);
    ck_assert(c.verdict == VERDICT_SKIPPED);
    ck_assert_str_eq(c.words, "speed: not reached");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gates");
    TCase *t = tcase_create("gates");
    tcase_add_test(t, one_other_hash_is_nondeterminism);
    tcase_add_test(t, another_path_with_other_bits_is_found);
    tcase_add_test(t, changed_tokens_are_found);
    tcase_add_test(t, losses_of_quality_are_found);
    tcase_add_test(t, limits_hold_without_a_baseline);
    tcase_add_test(t, another_prompt_file_is_not_comparable);
    tcase_add_test(t, a_slower_program_is_found);
    tcase_add_test(t, a_run_is_as_bad_as_its_worst_cell);
    tcase_add_test(t, only_two_verdicts_pass);
    suite_add_tcase(s, t);
    return s;
}
