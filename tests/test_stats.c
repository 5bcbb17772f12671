/* test_stats.c: known figures, coverage, repeatable bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/rng.h"
#include "common/stats.h"
#include "tests/check_main.h"

START_TEST(sums_keep_what_plain_addition_loses)
{
    double x[] = {1, 1e100, 1, -1e100};
    ck_assert(stats_sum(x, 4) == 2);
    double y[] = {1, (double)INFINITY};
    ck_assert(isinf(stats_sum(y, 2)));
    ck_assert(stats_sum(NULL, 0) == 0);
    double tenths[10];
    for (int i = 0; i < 10; i++)
        tenths[i] = 0.1;
    ck_assert(stats_sum(tenths, 10) == 1);
}
END_TEST

START_TEST(mean_deviation_and_quantiles_of_known_data)
{
    double x[] = {2, 4, 4, 4, 5, 5, 7, 9};
    ck_assert(stats_mean(x, 8) == 5);
    ck_assert(stats_stdev(x, 8) == sqrt(32.0 / 7));
    ck_assert(isnan(stats_mean(x, 0)) && isnan(stats_stdev(x, 1)));
    ck_assert(stats_quantile(x, 8, 0) == 2 && stats_quantile(x, 8, 1) == 9);
    ck_assert(stats_quantile(x, 8, 0.5) == 4.5);
    ck_assert(stats_quantile(x, 4, 0.1) == 2.6); /* 0.3 of the way from 2 to 4 */
    ck_assert(stats_quantile(x, 1, 0.3) == 2);
    ck_assert(isnan(stats_quantile(x, 0, 0.5)) && isnan(stats_quantile(x, 8, 1.5)));
    ck_assert(isnan(stats_quantile(x, 8, (double)NAN)));
}
END_TEST

START_TEST(sorting_is_by_value_then_sign_and_nan_is_last)
{
    double x[] = {(double)NAN, 0.0, 3, -0.0, -(double)INFINITY, 1};
    stats_sort(x, 6);
    ck_assert(isinf(x[0]) && x[1] == 0 && signbit(x[1]) && x[2] == 0 && !signbit(x[2]));
    ck_assert(x[3] == 1 && x[4] == 3 && isnan(x[5]));
    stats_sort(NULL, 0);
}
END_TEST

static void assert_near(double found, double expected)
{
    ck_assert_msg(fabs(found - expected) < 5e-5, "%.9g, expected %.9g", found, expected);
}

/* Values of R's binom::binom.confint(..., methods = "wilson") with z = qnorm(0.975). */
START_TEST(wilson_gives_the_published_interval)
{
    struct stats_interval i = stats_wilson(8, 10, 1.959963985);
    assert_near(i.value, 0.8);
    assert_near(i.lo, 0.49016247);
    assert_near(i.hi, 0.94331785);
    i = stats_wilson(0, 20, 1.959963985);
    ck_assert(i.lo == 0);
    assert_near(i.hi, 0.16112516);
    i = stats_wilson(20, 20, 1.959963985);
    ck_assert(i.hi == 1);
    assert_near(i.lo, 0.83887484);
    ck_assert(isnan(stats_wilson(0, 0, 1.96).value));
}
END_TEST

START_TEST(bootstrap_repeats_its_bytes_and_depends_on_the_seed)
{
    struct stats_cluster c[30];
    struct stats_interval a, b, d;
    for (int i = 0; i < 30; i++)
        c[i] = (struct stats_cluster){i * 0.37 - 3, 1 + i % 4};
    ck_assert_int_eq(stats_bootstrap(c, 30, 0.95, 500, 1, &a, NULL), ERR_OK);
    ck_assert_int_eq(stats_bootstrap(c, 30, 0.95, 500, 1, &b, NULL), ERR_OK);
    ck_assert_int_eq(stats_bootstrap(c, 30, 0.95, 500, 2, &d, NULL), ERR_OK);
    ck_assert_mem_eq(&a, &b, sizeof a);
    ck_assert(a.lo != d.lo && a.value == d.value);
    ck_assert(a.lo < a.value && a.value < a.hi);
}
END_TEST

/* With all positions of a cluster equal, resampling positions instead of clusters would give
 * intervals five times too narrow, and they would miss the truth most of the time. */
START_TEST(clustered_intervals_cover_the_truth)
{
    struct rng r = {.seed = 4};
    int covered = 0, runs = 200;
    for (int run = 0; run < runs; run++) {
        struct stats_cluster c[40];
        struct stats_interval i;
        for (int k = 0; k < 40; k++)
            c[k] = (struct stats_cluster){25 * rng_normal(&r), 25};
        ck_assert_int_eq(stats_bootstrap(c, 40, 0.95, 300, (uint64_t)run, &i, NULL), ERR_OK);
        covered += i.lo <= 0 && 0 <= i.hi;
    }
    ck_assert_msg(covered >= 176 && covered < 200, "%d of 200", covered);
}
END_TEST

/* 100 prompts of skewed lengths, positions of one prompt alike: the interval of the ratio of sums
 * holds the truth in 93 to 97 of 100 simulations. */
START_TEST(skewed_clusters_are_covered)
{
    struct rng r = {.seed = 11};
    int covered = 0, runs = 2000;
    for (int run = 0; run < runs; run++) {
        struct stats_cluster c[100];
        struct stats_interval i;
        for (int k = 0; k < 100; k++) {
            double n = floor(8 * exp(rng_normal(&r))) + 1, own = rng_normal(&r);
            c[k] = (struct stats_cluster){n * (3 + own) + sqrt(n) * rng_normal(&r), n};
        }
        ck_assert_int_eq(stats_bootstrap(c, 100, 0.95, 400, (uint64_t)run, &i, NULL), ERR_OK);
        covered += i.lo <= 3 && 3 <= i.hi;
    }
    ck_assert_msg(covered >= 1860 && covered <= 1940, "%d of 2000", covered);
}
END_TEST

START_TEST(quantiles_of_clusters_have_intervals)
{
    static const double q[] = {0, 0.5, 1};
    double x[] = {5, 1, 4, 2, 3};
    int32_t own[] = {0, 1, 2, 3, 4}, one[5] = {0};
    struct stats_interval i[3], again[3];
    ck_assert_int_eq(stats_bootstrap_quantiles(x, own, 5, 5, q, 3, 0.95, 500, 3, i, NULL), ERR_OK);
    ck_assert(i[0].value == 1 && i[1].value == 3 && i[2].value == 5);
    ck_assert(i[1].lo >= 1 && i[1].lo < 3 && i[1].hi > 3 && i[1].hi <= 5);
    ck_assert_int_eq(stats_bootstrap_quantiles(x, own, 5, 5, q, 3, 0.95, 500, 3, again, NULL),
                     ERR_OK);
    ck_assert(memcmp(i, again, sizeof i) == 0);
    ck_assert_int_eq(stats_bootstrap_quantiles(x, one, 5, 1, q, 3, 0.95, 500, 3, i, NULL), ERR_OK);
    ck_assert(i[1].value == 3 && isnan(i[1].lo) && isnan(i[1].hi));
}
END_TEST

START_TEST(bootstrap_of_too_little_has_no_interval)
{
    struct stats_cluster c[2] = {{3, 2}, {0, 0}};
    struct stats_interval i;
    ck_assert_int_eq(stats_bootstrap(c, 1, 0.95, 100, 1, &i, NULL), ERR_OK);
    ck_assert(i.value == 1.5 && isnan(i.lo) && isnan(i.hi));
    ck_assert_int_eq(stats_bootstrap(c, 0, 0.95, 100, 1, &i, NULL), ERR_OK);
    ck_assert(isnan(i.value));
    ck_assert_int_eq(stats_bootstrap(c, 2, 0.95, 100, 1, &i, NULL), ERR_OK);
    ck_assert(i.lo == 1.5 && i.hi == 1.5); /* draws without weight do not count */
    ck_assert_int_eq(stats_bootstrap(c, 2, 0.95, 0, 1, &i, NULL), ERR_INTERNAL);
    io_fault_set(IO_FAULT_ALLOC, 1);
    ck_assert_int_eq(stats_bootstrap(c, 2, 0.95, 10, 1, &i, NULL), ERR_NOMEM);
}
END_TEST

START_TEST(histograms_count_each_value_once)
{
    double x[] = {0, 0.5, 1, 1.5, 2, -1, 3, (double)NAN};
    uint64_t counts[2];
    ck_assert_uint_eq(stats_histogram(x, 8, 0, 2, counts, 2), 5);
    ck_assert(counts[0] == 2 && counts[1] == 3);
    ck_assert_uint_eq(stats_histogram(x, 8, 2, 2, counts, 2), 0);
    ck_assert(counts[0] == 0 && counts[1] == 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("stats");
    TCase *t = tcase_create("stats");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, sums_keep_what_plain_addition_loses);
    tcase_add_test(t, mean_deviation_and_quantiles_of_known_data);
    tcase_add_test(t, sorting_is_by_value_then_sign_and_nan_is_last);
    tcase_add_test(t, wilson_gives_the_published_interval);
    tcase_add_test(t, bootstrap_repeats_its_bytes_and_depends_on_the_seed);
    tcase_add_test(t, clustered_intervals_cover_the_truth);
    tcase_add_test(t, skewed_clusters_are_covered);
    tcase_add_test(t, quantiles_of_clusters_have_intervals);
    tcase_add_test(t, bootstrap_of_too_little_has_no_interval);
    tcase_add_test(t, histograms_count_each_value_once);
    suite_add_tcase(s, t);
    return s;
}
