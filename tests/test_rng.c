/* test_rng.c: known answers, ranges, and moments that a biased draw would miss. */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "tests/check_main.h"

/* The philox4x32 10 rows of Random123's known-answer file. */
static const struct {
    uint32_t counter[4], key[2], out[4];
} answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

START_TEST(philox_gives_the_published_answers)
{
    uint32_t out[4];
    rng_philox(answers[_i].key, answers[_i].counter, out);
    ck_assert_mem_eq(out, answers[_i].out, sizeof out);
}
END_TEST

START_TEST(uniform_depends_on_seed_stream_and_position_only)
{
    uint8_t stream[16] = {1, 2, 3}, other[16] = {1, 2, 3, [15] = 1};
    float u = rng_uniform(7, stream, 1000);
    ck_assert(rng_uniform(7, stream, 1000) == u);
    ck_assert(rng_uniform(8, stream, 1000) != u);
    ck_assert(rng_uniform(7 + (1ull << 32), stream, 1000) != u);
    ck_assert(rng_uniform(7, other, 1000) != u);
    ck_assert(rng_uniform(7, stream, 1001) != u);
    ck_assert(rng_uniform(7, stream, 1000 + (1ull << 32)) != u);
}
END_TEST

START_TEST(uniform_fills_the_unit_interval_evenly)
{
    uint8_t stream[16] = {9};
    int counts[64] = {0}, n = 64000;
    for (int i = 0; i < n; i++) {
        float u = rng_uniform(1, stream, (uint64_t)i);
        ck_assert(u >= 0 && u < 1);
        counts[(int)(u * 64)]++;
    }
    double chi = 0;
    for (int i = 0; i < 64; i++)
        chi += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
    ck_assert(chi < 120); /* 63 degrees of freedom: beyond 120 once in 50,000 seeds; fixed here */
    ck_assert(chi > 25);
}
END_TEST

START_TEST(below_is_in_range_and_reaches_every_value)
{
    struct rng r = {.seed = 3};
    int counts[7] = {0};
    for (int i = 0; i < 7000; i++)
        counts[rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++)
        ck_assert(counts[i] > 850 && counts[i] < 1150);
    ck_assert_uint_eq(rng_below(&r, 1), 0);
    ck_assert_uint_eq(rng_below(&r, 0), 0);
    uint64_t high = 0, bound = 3ull << 62; /* a modulus without rejection would give 1/2 here */
    for (int i = 0; i < 3000; i++)
        high += rng_below(&r, bound) < 1ull << 62;
    ck_assert(high > 900 && high < 1100);
}
END_TEST

START_TEST(normal_has_the_moments_of_the_normal)
{
    struct rng r = {.seed = 11};
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int n = 200000, beyond_3 = 0;
    for (int i = 0; i < n; i++) {
        double x = rng_normal(&r);
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        beyond_3 += fabs(x) > 3;
    }
    ck_assert(fabs(m1 / n) < 0.01);
    ck_assert(fabs(m2 / n - 1) < 0.015);
    ck_assert(fabs(m3 / n) < 0.04);
    ck_assert(fabs(m4 / n - 3) < 0.1);
    ck_assert(beyond_3 > 450 && beyond_3 < 630); /* 540 expected */
}
END_TEST

START_TEST(equal_seeds_give_equal_numbers)
{
    struct rng a = {.seed = 5}, b = {.seed = 5}, c = {.seed = 6};
    int same = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t v = rng_next(&a);
        ck_assert_uint_eq(rng_next(&b), v);
        same += rng_next(&c) == v;
    }
    ck_assert_int_eq(same, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("rng");
    TCase *t = tcase_create("rng");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, philox_gives_the_published_answers, 0, 3);
    tcase_add_test(t, uniform_depends_on_seed_stream_and_position_only);
    tcase_add_test(t, uniform_fills_the_unit_interval_evenly);
    tcase_add_test(t, below_is_in_range_and_reaches_every_value);
    tcase_add_test(t, normal_has_the_moments_of_the_normal);
    tcase_add_test(t, equal_seeds_give_equal_numbers);
    suite_add_tcase(s, t);
    return s;
}
