/* test_elem.c: error bounds of the elementary functions over all exponents, their special values,
 * and that every instruction-set variant gives the bits of elem.h.
 *
 * The reference is the C library in long double, which is exact here to far below one ulp.
 */
#include <stdlib.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/elem.h"
#include "tests/check_main.h"

/* Distance of got from want in units of the last place of an f32 result of want's size. */
static double ulps(float got, long double want)
{
    if (isinf(got) && (double)want >= 0x1.ffffffp127)
        return 0;
    int e;
    frexpl(want, &e);
    long double unit = ldexpl(1.0L, MAX2(e - 24, -149));
    return (double)(fabsl((long double)got - want) / unit);
}

/* Every 977th float of both signs, so that all exponents are met 8,000 times over; the sanitizers
 * look for faults that do not hang on the value and take one in sixteen of them. */
#define FEWER (TEST_SANITIZED ? 16 : 1)
#define EACH_FLOAT(x)                                                                              \
    for (uint64_t bits_ = 0; bits_ < 0x100000000ull; bits_ += 977 * FEWER + FEWER - 1)             \
        for (float x = f32_from_bits((uint32_t)bits_), *once_ = &x; once_ && x == x; once_ = NULL)

START_TEST(exp2_full_is_within_one_ulp)
{
    double worst = 0;
    EACH_FLOAT(x)
    {
        if (x > -149 && x < 128)
            worst = fmax(worst, ulps(elem_exp2_full(x), exp2l((long double)x)));
    }
    ck_assert_double_le(worst, 1.0);
}
END_TEST

START_TEST(exp_is_within_one_ulp)
{
    double worst = 0;
    EACH_FLOAT(x)
    {
        if (x > -103 && x < 88.72f)
            worst = fmax(worst, ulps(elem_exp(x), expl((long double)x)));
    }
    ck_assert_double_le(worst, 1.0);
}
END_TEST

START_TEST(exp2_p_keeps_its_relative_error)
{
    double worst = 0;
    EACH_FLOAT(x)
    {
        if (x >= -126 && x <= 1) {
            long double want = exp2l((long double)x);
            worst = fmax(worst, (double)fabsl((elem_exp2_p(x) - want) / want));
        }
    }
    ck_assert_double_le(worst, 7.7e-5);
    ck_assert(elem_exp2_p(-1e30f) > 0 && elem_exp2_p(-1e30f) < 0x1.01p-126f);
}
END_TEST

START_TEST(log2_is_within_two_and_a_half_ulps)
{
    double worst = 0;
    EACH_FLOAT(x)
    {
        if (x > 0 && x < INFINITY)
            worst = fmax(worst, ulps(elem_log2(x), log2l((long double)x)));
    }
    for (int i = -4000; i <= 4000; i++) {
        float x = 1.0f + (float)i * 0x1p-23f;
        worst = fmax(worst, ulps(elem_log2(x), log2l((long double)x)));
    }
    ck_assert_double_le(worst, 2.5);
}
END_TEST

START_TEST(tanh_is_within_two_ulps)
{
    double worst = 0;
    EACH_FLOAT(x)
    {
        worst = fmax(worst, ulps(elem_tanh(x), tanhl((long double)x)));
    }
    ck_assert_double_le(worst, 2.0);
}
END_TEST

START_TEST(activations_keep_their_bounds)
{
    double silu = 0, sigmoid = 0, gelu = 0;
    EACH_FLOAT(x)
    {
        long double y = (long double)x;
        if (x > -85 && x < 1e30f) {
            silu = fmax(silu, ulps(elem_silu(x), y / (1 + expl(-y))));
            sigmoid = fmax(sigmoid, ulps(elem_sigmoid(x), 1 / (1 + expl(-y))));
        }
        if (x > -4 && x < 1e10f) {
            long double u =
                y * (1.5957691216057307117597842397375L + 0.07135481627260025185L * y * y);
            gelu = fmax(gelu, ulps(elem_gelu_tanh(x), y / (1 + expl(-u))));
        }
    }
    ck_assert_double_le(silu, 3.0);
    ck_assert_double_le(sigmoid, 3.0);
    ck_assert_double_le(gelu, 16.0); /* the argument's own rounding, times its size */
}
END_TEST

START_TEST(special_values_are_what_they_should_be)
{
    float inf = INFINITY, nan = NAN;
    ck_assert_float_eq(elem_exp2_full(inf), inf);
    ck_assert_float_eq(elem_exp2_full(-inf), 0);
    ck_assert_float_eq(elem_exp2_full(0), 1);
    ck_assert_float_eq(elem_exp2_full(-149), 0x1p-149f);
    ck_assert_float_eq(elem_exp(inf), inf);
    ck_assert_float_eq(elem_exp(-inf), 0);
    ck_assert_float_eq(elem_exp(0), 1);
    ck_assert_float_eq(elem_log2(0), -inf);
    ck_assert_float_eq(elem_log2(inf), inf);
    ck_assert_float_eq(elem_log2(1), 0);
    ck_assert_float_eq(elem_log2(0x1p-149f), -149);
    ck_assert_float_nan(elem_log2(-1));
    ck_assert_float_eq(elem_tanh(inf), 1);
    ck_assert_float_eq(elem_tanh(-inf), -1);
    ck_assert_uint_eq(elem_bits(elem_tanh(-0.0f)), 0x80000000u);
    ck_assert_float_eq(elem_silu(-200), 0);
    ck_assert_float_eq(elem_gelu_tanh(1e20f), 1e20f);
    ck_assert_float_eq(elem_gelu_tanh(-1e20f), 0);
    ck_assert_float_nan(elem_exp2_full(nan));
    ck_assert_float_nan(elem_exp2_p(nan));
    ck_assert_float_nan(elem_exp2_p(f32_from_bits(0x7fffffffu)));
    ck_assert_float_nan(elem_exp(f32_from_bits(0xffffffffu)));
    ck_assert_float_nan(elem_log2(nan));
    ck_assert_float_nan(elem_tanh(nan));
    ck_assert_float_nan(elem_silu(nan));
    ck_assert_float_nan(elem_gptoss_mul(nan, 1, 7, 1.702f));
    ck_assert_float_nan(elem_gptoss_mul(1, nan, 7, 1.702f));
}
END_TEST

START_TEST(order_keys_order_as_floats_do)
{
    static const float x[] = {-INFINITY, -1e30f, -1, -0x1p-149f, 0, 0x1p-149f, 1, INFINITY};
    for (size_t i = 0; i + 1 < ARRAY_LEN(x); i++)
        ck_assert_int_lt(elem_order_key(x[i]), elem_order_key(x[i + 1]));
    ck_assert_int_eq(elem_order_key(0.0f), elem_order_key(-0.0f));
    ck_assert_int_lt(elem_order_key(NAN), elem_order_key(-INFINITY));
    ck_assert_int_lt(elem_order_key(-NAN), elem_order_key(-INFINITY));
}
END_TEST

static float plain(enum cpu_elem f, float x)
{
    switch (f) {
    case CPU_ELEM_EXP2_FULL:
        return elem_exp2_full(x);
    case CPU_ELEM_EXP:
        return elem_exp(x);
    case CPU_ELEM_TANH:
        return elem_tanh(x);
    case CPU_ELEM_SILU:
        return elem_silu(x);
    case CPU_ELEM_GELU_TANH:
        return elem_gelu_tanh(x);
    case CPU_ELEM_GPTOSS:
        return elem_gptoss_mul(x, 1.0f, 7, 1.702f);
    case CPU_ELEM_SOFTCAP:
        return elem_softcap(x, 30.0f);
    default:
        return bf16_to_f32(bf16_from_f32(x));
    }
}

/* _i: variant * CPU_ELEM_COUNT + function. */
START_TEST(every_variant_has_the_bits_of_elem_h)
{
    static const struct cpu_isa_ops *const all[] = {&cpu_ops_c, &cpu_ops_avx2, &cpu_ops_avx512};
    int isa = _i / CPU_ELEM_COUNT;
    enum cpu_elem f = (enum cpu_elem)(_i % CPU_ELEM_COUNT);
    if (!cpu_isa_runs((enum cpu_isa)isa))
        return; /* named as skipped by test_suite */
    float x[1024], y[1024];
    for (uint64_t bits = 0; bits < 0x100000000ull;) {
        for (int i = 0; i < 1024; i++, bits += 3989 * FEWER + FEWER - 1)
            x[i] = f32_from_bits((uint32_t)bits);
        all[isa]->elem(f, x, y, 1024);
        for (int i = 0; i < 1024; i++) {
            float want = plain(f, x[i]);
            bool same = want != want ? y[i] != y[i] : f32_bits(want) == f32_bits(y[i]);
            ck_assert_msg(same, "%s, function %d of %a: %a, elem.h has %a",
                          cpu_isa_name((enum cpu_isa)isa), (int)f, (double)x[i], (double)y[i],
                          (double)want);
        }
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("elem");
    TCase *t = tcase_create("elem");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, exp2_full_is_within_one_ulp);
    tcase_add_test(t, exp_is_within_one_ulp);
    tcase_add_test(t, exp2_p_keeps_its_relative_error);
    tcase_add_test(t, log2_is_within_two_and_a_half_ulps);
    tcase_add_test(t, tanh_is_within_two_ulps);
    tcase_add_test(t, activations_keep_their_bounds);
    tcase_add_test(t, special_values_are_what_they_should_be);
    tcase_add_test(t, order_keys_order_as_floats_do);
    tcase_add_loop_test(t, every_variant_has_the_bits_of_elem_h, 0, CPU_ISA_COUNT * CPU_ELEM_COUNT);
    suite_add_tcase(s, t);
    for (int i = 0; i < CPU_ISA_COUNT; i++)
        if (!cpu_isa_runs((enum cpu_isa)i))
            test_skip(cpu_isa_name((enum cpu_isa)i));
    return s;
}
