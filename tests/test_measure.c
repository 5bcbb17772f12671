/* test_measure.c: divergences against values worked out by hand, and where answers part. */
#include <math.h>
#include <string.h>

#include "evals/measure.h"
#include "tests/check_main.h"

START_TEST(a_row_against_itself_is_nothing)
{
    float row[] = {1, -2, 0.5f, 3};
    double scratch[8];
    struct position p;
    measure_position(row, row, 4, 2, scratch, &p);
    ck_assert(p.finite && p.same_bits);
    ck_assert(p.kl == 0 && p.kl_rev == 0);
    ck_assert_int_eq(p.ref_best, 3);
    ck_assert_int_eq(p.rank, 0);
    ck_assert(p.ref_nll == p.var_nll);
    ck_assert(p.ref_margin == 2);
}
END_TEST

START_TEST(two_outcomes_match_the_formula)
{
    /* p = (3/4, 1/4), q = (1/2, 1/2) */
    float ref[] = {logf(3), 0}, var[] = {0, 0};
    double scratch[4];
    struct position p;
    measure_position(ref, var, 2, 1, scratch, &p);
    double kl = 0.75 * log(1.5) + 0.25 * log(0.5), rev = 0.5 * log(2.0 / 3) + 0.5 * log(2);
    ck_assert_double_eq_tol(p.kl, kl, 1e-7);
    ck_assert_double_eq_tol(p.kl_rev, rev, 1e-7);
    ck_assert_double_eq_tol(p.ref_nll, log(4), 1e-7);
    ck_assert_double_eq_tol(p.var_nll, log(2), 1e-12);
    ck_assert_int_eq(p.var_best, 0); /* ties go to the lower id */
    ck_assert(!p.same_bits);
}
END_TEST

START_TEST(rank_is_the_place_of_the_references_choice)
{
    float ref[] = {0, 9, 0, 0}, var[] = {5, 2, 4, 2};
    double scratch[8];
    struct position p;
    measure_position(ref, var, 4, 1, scratch, &p);
    ck_assert_int_eq(p.rank, 2);
    ck_assert_int_eq(p.var_best, 0);
}
END_TEST

START_TEST(rows_that_are_not_finite_have_no_figures)
{
    float ref[] = {0, 1}, nan_row[] = {NAN, 1}, inf_row[] = {0, INFINITY};
    double scratch[4];
    struct position p;
    measure_position(ref, nan_row, 2, 0, scratch, &p);
    ck_assert(!p.finite && p.kl == 0);
    measure_position(inf_row, ref, 2, 0, scratch, &p);
    ck_assert(!p.finite && p.var_nll == 0);
}
END_TEST

static struct trace_record answer(struct trace_token *tok, size_t n, const char *finish)
{
    struct trace_record r = {.tok = tok, .n = n};
    strcpy(r.finish, finish);
    return r;
}

START_TEST(partings_are_found_to_the_token)
{
    struct trace_token a[] = {{.id = 1, .hash = 1}, {.id = 2, .hash = 2, .margin = 0.5f}};
    struct trace_token b[] = {{.id = 1, .hash = 1}, {.id = 3, .hash = 2, .margin = 0.25f}};
    struct trace_record ra = answer(a, 2, "stop"), rb = answer(b, 2, "stop");
    struct parting p = measure_parting(&ra, &rb);
    ck_assert(!p.same_ids && p.common == 1 && p.ref_token == 2 && p.var_token == 3);
    ck_assert(p.ref_margin == 0.5f && p.var_margin == 0.25f);

    rb = answer(a, 1, "length"); /* a prefix */
    p = measure_parting(&ra, &rb);
    ck_assert(!p.same_ids && p.common == 1 && p.var_token == -1 && isnan(p.var_margin));

    rb = answer(a, 2, "length"); /* the same tokens, another end */
    p = measure_parting(&ra, &rb);
    ck_assert(!p.same_ids && p.common == 2);

    b[1] = a[1];
    rb = answer(b, 2, "stop");
    p = measure_parting(&ra, &rb);
    ck_assert(p.same_ids && p.same_bits);
    b[0].hash ^= 1; /* the same tokens from other logits */
    p = measure_parting(&ra, &rb);
    ck_assert(p.same_ids && !p.same_bits);
}
END_TEST

static struct trace_record tokens_of(struct trace_token *tok, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tok[i] = (struct trace_token){.id = ids[i]};
    return (struct trace_record){.tok = tok, .n = n};
}

START_TEST(edits_are_levenshteins)
{
    static const int kitten[] = {10, 8, 19, 19, 4, 13}, sitting[] = {18, 8, 19, 19, 8, 13, 6};
    struct trace_token a[8], b[8];
    struct trace_record x = tokens_of(a, kitten, 6), y = tokens_of(b, sitting, 7);
    int64_t edits;
    ck_assert_int_eq(measure_edits(&x, &y, &edits, NULL), ERR_OK);
    ck_assert_int_eq(edits, 3);
    ck_assert_int_eq(measure_edits(&x, &x, &edits, NULL), ERR_OK);
    ck_assert_int_eq(edits, 0);
    y.n = 0;
    ck_assert_int_eq(measure_edits(&x, &y, &edits, NULL), ERR_OK);
    ck_assert_int_eq(edits, 6);
}
END_TEST

START_TEST(a_loop_begins_where_its_first_block_does)
{
    struct trace_token t[40];
    int ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = i < 10 ? 100 + i : i % 3;
    struct trace_record r = tokens_of(t, ids, 40);
    ck_assert_uint_eq(measure_loop(&r), 10);
    ids[39] = 77; /* it ends in something else */
    r = tokens_of(t, ids, 40);
    ck_assert_uint_eq(measure_loop(&r), 40);
    ids[39] = 0;
    r = tokens_of(t, ids, 20); /* ten tokens are no loop yet */
    ck_assert_uint_eq(measure_loop(&r), 20);
}
END_TEST

START_TEST(divergence_of_disjoint_rows_is_ln_2)
{
    float ref[] = {0, -200, -200}, var[] = {-200, 0, -200};
    double scratch[6];
    struct position p;
    measure_position(ref, var, 3, 0, scratch, &p);
    ck_assert_double_eq_tol(p.js, log(2), 1e-12);
    ck_assert_int_eq(p.top_shared, 3);
    ck_assert(p.ref_margin == 200 && p.var_margin == 200);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("measure");
    TCase *t = tcase_create("measure");
    tcase_add_test(t, a_row_against_itself_is_nothing);
    tcase_add_test(t, two_outcomes_match_the_formula);
    tcase_add_test(t, rank_is_the_place_of_the_references_choice);
    tcase_add_test(t, rows_that_are_not_finite_have_no_figures);
    tcase_add_test(t, partings_are_found_to_the_token);
    tcase_add_test(t, edits_are_levenshteins);
    tcase_add_test(t, a_loop_begins_where_its_first_block_does);
    tcase_add_test(t, divergence_of_disjoint_rows_is_ln_2);
    suite_add_tcase(s, t);
    return s;
}
