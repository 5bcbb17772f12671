/* test_errstat.c: the figures against plain double arithmetic, and their rounding. */
#include "quant/errstat.h"

#include <math.h>

#include "common/rng.h"
#include "tests/check_main.h"

START_TEST(log10_agrees_with_the_c_library)
{
    struct rng r = {1, 0};
    for (int i = 0; i < 100000; i++) {
        double x = ldexp(0.5 + rng_double(&r) / 2.0, (int)rng_below(&r, 400) - 200);
        double want = log10(x), got = errstat_log10(x);
        ck_assert_msg(fabs(got - want) <= 2e-15 * fmax(1.0, fabs(want)), "%.17g: %.17g, not %.17g",
                      x, got, want);
    }
    ck_assert(errstat_log10(1.0) == 0.0);
}
END_TEST

START_TEST(figures_agree_with_plain_sums)
{
    enum { N = 64 * 100 };
    static float w[N], d[N];
    struct rng r = {2, 0};
    double ww = 0, dd = 0, wd = 0, ee = 0, top = 0;
    for (int i = 0; i < N; i++) {
        w[i] = (float)rng_normal(&r);
        d[i] = w[i] + (float)rng_normal(&r) * 0.05f;
        double e = (double)w[i] - (double)d[i];
        ww += (double)w[i] * (double)w[i];
        dd += (double)d[i] * (double)d[i];
        wd += (double)w[i] * (double)d[i];
        ee += e * e;
        top = fmax(top, fabs(e));
    }
    struct errstat st = {{0}, {0}, {0}, {0}};
    struct errstat_figures f;
    errstat_add(&st, w, d, N, 64);
    errstat_figures(&st, &f);
    ck_assert_double_eq_tol(f.rel_rms, sqrt(ee / ww), 5e-6 * f.rel_rms);
    ck_assert_double_eq_tol(f.sqnr_db, 10 * log10(ww / ee), 5e-6 * f.sqnr_db);
    ck_assert_double_eq_tol(f.cosine, wd / sqrt(ww * dd), 5e-6);
    ck_assert_double_eq_tol(f.max, top, 5e-6 * top);
}
END_TEST

START_TEST(no_error_is_said_as_none)
{
    float w[64];
    struct errstat st = {{0}, {0}, {0}, {0}};
    struct errstat_figures f;
    for (int i = 0; i < 64; i++)
        w[i] = (float)i;
    errstat_add(&st, w, w, 64, 32);
    errstat_figures(&st, &f);
    ck_assert(f.rel_rms == 0.0 && f.max == 0.0 && f.cosine == 1.0);
    ck_assert(isinf(f.sqnr_db) && f.sqnr_db > 0);
}
END_TEST

START_TEST(six_digits_stay)
{
    ck_assert(errstat_round6(0.123456789) == 0.123457);
    ck_assert(errstat_round6(-1234567.0) == -1234570.0);
    ck_assert(errstat_round6(0.0) == 0.0);
    ck_assert(isinf(errstat_round6(INFINITY)));
}
END_TEST

START_TEST(runs_hold_a_quarter_million_elements)
{
    ck_assert_int_eq(errstat_run_rows(49152, 576), (1 << 18) / 576);
    ck_assert_int_eq(errstat_run_rows(3, 576), 3);
    ck_assert_int_eq(errstat_run_rows(10, (int64_t)1 << 30), 1);
    ck_assert_int_eq(errstat_run_rows(1, 1), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("errstat");
    TCase *t = tcase_create("figures");
    tcase_add_test(t, log10_agrees_with_the_c_library);
    tcase_add_test(t, figures_agree_with_plain_sums);
    tcase_add_test(t, no_error_is_said_as_none);
    tcase_add_test(t, six_digits_stay);
    tcase_add_test(t, runs_hold_a_quarter_million_elements);
    suite_add_tcase(s, t);
    return s;
}
