/* test_rope.c: own elementary functions against libm, and tables against their formulas. */
#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "infer/rope.h"
#include "tests/check_main.h"

static struct hparams base_params(void)
{
    struct hparams hp = {.head_dim = 64};
    hp.rope = (struct rope_params){.kind = ROPE_DEFAULT, .theta = 10000, .factor = 8};
    hp.rope.low_freq_factor = 1;
    hp.rope.high_freq_factor = 4;
    hp.rope.original_ctx = 8192;
    return hp;
}

/* Distance in units of the last place of f32 around the larger of |b| and 2^-26. */
static double ulps(double a, double b)
{
    float f = fmaxf(fabsf((float)b), 0x1p-26F);
    return fabs(a - b) / ((double)nextafterf(f, INFINITY) - (double)f);
}

START_TEST(sine_and_cosine_are_those_of_libm_to_one_ulp_of_f32)
{
    struct rng r = {1, 0};
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        double scale = i % 4 == 0 ? 1 : i % 4 == 1 ? 100 : i % 4 == 2 ? 131072 : 16777216;
        double x = (double)(float)(rng_double(&r) * scale), s, c;
        rope_sincos(x, &s, &c);
        worst = fmax(worst, fmax(fabs(s - sin(x)), fabs(c - cos(x))));
        ck_assert_msg(ulps(s, sin(x)) <= 0.01 && ulps(c, cos(x)) <= 0.01, "at %a", x);
    }
    ck_assert_msg(worst < 0x1p-50, "worst error %a", worst);
}
END_TEST

START_TEST(sine_holds_where_the_reduction_is_hardest)
{
    /* Near multiples of pi/2 the result is all rest. */
    for (int n = 1; n < 200000; n += 7) {
        double x = (double)(float)(n * 1.5707963267948966), s, c;
        rope_sincos(x, &s, &c);
        ck_assert_msg(ulps(s, sin(x)) <= 0.01 && ulps(c, cos(x)) <= 0.01, "at %a", x);
    }
}
END_TEST

START_TEST(log2_and_exp2_are_those_of_libm)
{
    struct rng r = {2, 0};
    for (int i = 0; i < 100000; i++) {
        double x = exp((rng_double(&r) - 0.5) * 80), y = (rng_double(&r) - 0.5) * 60;
        ck_assert(fabs(rope_log2(x) - log2(x)) <= 4e-15 * fmax(1, fabs(log2(x))));
        ck_assert(fabs(rope_exp2(y) / exp2(y) - 1) < 2e-15);
    }
    ck_assert(rope_log2(1) == 0 && rope_exp2(0) == 1 && rope_exp2(-3) == 0.125);
}
END_TEST

START_TEST(a_table_row_is_the_rotation_of_its_position)
{
    struct hparams hp = base_params();
    float freq[32], scale, *t = malloc(3000 * 64 * sizeof *t);
    ck_assert(t && rope_freqs(&hp.rope, hp.head_dim, freq, &scale, NULL) == ERR_OK && scale == 1);
    rope_fill(freq, scale, 64, 3000, t);
    for (int pos = 0; pos < 3000; pos += 13) {
        for (int i = 0; i < 32; i++) {
            float f = (float)pow(10000, -2.0 * i / 64), a = (float)pos * f;
            ck_assert(fabs((double)freq[i] / (double)f - 1) < 1e-7);
            ck_assert(fabs((double)t[pos * 64 + i] - cos((double)a)) < 1e-4 * 3);
            ck_assert(fabs((double)t[pos * 64 + 32 + i] - sin((double)a)) < 1e-4 * 3);
        }
    }
    ck_assert(t[0] == 1 && t[32] == 0);
    free(t);
}
END_TEST

START_TEST(llama3_scaling_keeps_short_waves_and_divides_long_ones)
{
    struct hparams hp = base_params();
    float plain[32], scaled[32], factors[32], scale;
    hp.rope.theta = 500000;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, plain, &scale, NULL) == ERR_OK);
    hp.rope.kind = ROPE_LLAMA3;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, scaled, &scale, NULL) == ERR_OK);
    int kept = 0, divided = 0, between = 0;
    for (int i = 0; i < 32; i++) {
        double wave = 6.283185307179586 / (double)plain[i], f = (double)plain[i], want;
        double t = (8192 / wave - 1) / 3;
        if (wave < 2048) {
            want = f;
            kept++;
        } else if (wave > 8192) {
            want = f / 8;
            divided++;
        } else {
            want = (1 - t) * f / 8 + t * f;
            between++;
        }
        ck_assert(fabs((double)scaled[i] / want - 1) < 3e-7);
        factors[i] = (float)(f / want);
    }
    ck_assert(kept > 5 && divided > 5 && between > 0);
    /* The same scaling given as factors, as a GGUF does. */
    hp.rope.kind = ROPE_FACTORS;
    hp.rope.factors = factors;
    float given[32];
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, given, &scale, NULL) == ERR_OK);
    for (int i = 0; i < 32; i++)
        ck_assert(fabs((double)given[i] / (double)scaled[i] - 1) < 3e-7);
}
END_TEST

START_TEST(yarn_keeps_fast_pairs_and_divides_slow_ones)
{
    struct hparams hp = base_params();
    float plain[32], scaled[32], scale;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, plain, &scale, NULL) == ERR_OK);
    hp.rope.kind = ROPE_YARN;
    hp.rope.truncate = true;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, scaled, &scale, NULL) == ERR_OK);
    ck_assert(scaled[0] == plain[0]);
    ck_assert(fabs((double)scaled[31] * 8 / (double)plain[31] - 1) < 1e-6);
    ck_assert(fabs((double)scale - (0.1 * log(8) + 1)) < 1e-7);
    hp.rope.attention_factor = 0.5;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, scaled, &scale, NULL) == ERR_OK && scale == 0.5F);
}
END_TEST

START_TEST(bad_parameters_are_named)
{
    struct err e;
    float freq[512], scale;
    struct hparams hp = base_params();
    hp.rope.theta = NAN;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, freq, &scale, &e) == ERR_INPUT &&
              strstr(e.text, "theta"));
    hp = base_params();
    hp.rope.kind = ROPE_LINEAR;
    hp.rope.factor = 0;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, freq, &scale, &e) == ERR_INPUT &&
              strstr(e.text, "factor"));
    hp = base_params();
    hp.rope.partial_dims = 63;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, freq, &scale, &e) == ERR_INPUT &&
              strstr(e.text, "63"));
    hp = base_params();
    hp.rope.kind = ROPE_FACTORS;
    ck_assert(rope_freqs(&hp.rope, hp.head_dim, freq, &scale, &e) == ERR_INPUT);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("rope");
    TCase *t = tcase_create("rope");
    tcase_add_test(t, sine_and_cosine_are_those_of_libm_to_one_ulp_of_f32);
    tcase_add_test(t, sine_holds_where_the_reduction_is_hardest);
    tcase_add_test(t, log2_and_exp2_are_those_of_libm);
    tcase_add_test(t, a_table_row_is_the_rotation_of_its_position);
    tcase_add_test(t, llama3_scaling_keeps_short_waves_and_divides_long_ones);
    tcase_add_test(t, yarn_keeps_fast_pairs_and_divides_slow_ones);
    tcase_add_test(t, bad_parameters_are_named);
    suite_add_tcase(s, t);
    return s;
}
