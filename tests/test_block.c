/* test_block.c: the encoder of block floats: scales at their thresholds, codes nearest, ties even,
 * and what is refused. Comparison with MLX is in tests/reference/mlx_block.py.
 */
#include "quant/block.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/check_main.h"

static const struct qformat formats[] = {
    {4, 32, DT_F8_E8M0}, {8, 32, DT_F8_E8M0}, {4, 16, DT_F8_E4M3}};

#define GROUPS 64
struct encoded {
    uint8_t codes[GROUPS * 32], scales[GROUPS];
};

static struct encoded encode(struct qformat q, const float *w, int64_t n_groups)
{
    struct encoded out;
    struct err e = {.text = ""};
    int64_t bad = -1;
    struct block_run r = {q, w, n_groups, out.codes, out.scales};
    memset(&out, 0xa5, sizeof out);
    ck_assert_msg(block_encode(&r, &bad, &e) == ERR_OK, "%s", e.text);
    return out;
}

static float decoded(struct qformat q, const struct encoded *e, int64_t i)
{
    return qformat_element(q.bits, qformat_code(e->codes, q.bits, i)) *
           qformat_scale(e->scales, q.scale, i / q.group);
}

/* Every value is the nearest of the group's grid. */
START_TEST(values_are_the_nearest_of_their_grid)
{
    struct qformat q = formats[_i];
    struct rng r = {.seed = 3};
    float w[GROUPS * 32] = {0};
    int64_t n = GROUPS * q.group;
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)rng_normal(&r) * ldexpf(0.02f, (int)(i / q.group) % 9 - 4);
    struct encoded e = encode(q, w, GROUPS);
    for (int64_t i = 0; i < n; i++) {
        double s = (double)qformat_scale(e.scales, q.scale, i / q.group), best = INFINITY;
        for (uint32_t c = 0; c < 1u << q.bits; c++) {
            if (q.bits == 8 && e4m3_is_nan(c))
                continue;
            best = fmin(best, fabs((double)w[i] - s * (double)qformat_element(q.bits, c)));
        }
        double d = fabs((double)w[i] - (double)decoded(q, &e, i));
        ck_assert_msg(d <= best * (1 + 1e-6), "%s: %a is %a off, the nearest %a", qformat_mode(q),
                      (double)w[i], d, best);
    }
}
END_TEST

/* e8m0: amax of M * 2^k keeps 2^k, the next number takes the next power; the ends are kept to. */
START_TEST(scales_are_rounded_up)
{
    for (int f = 0; f < 2; f++) {
        struct qformat q = formats[f];
        float most = f ? E4M3_MAX : E2M1_MAX;
        for (int k = -120; k <= 118; k++) {
            float w[32] = {0}, at = ldexpf(most, k);
            w[7] = -at;
            struct encoded e = encode(q, w, 1);
            ck_assert_int_eq(e.scales[0], k + 127);
            ck_assert_float_eq(decoded(q, &e, 7), -at);
            w[7] = nextafterf(at, INFINITY);
            e = encode(q, w, 1);
            ck_assert_int_eq(e.scales[0], k + 128);
        }
        float tiny[32] = {[3] = 0x1p-140f}, none[32] = {[3] = -0.0f};
        ck_assert_int_eq(encode(q, tiny, 1).scales[0], 0);
        ck_assert_int_eq(encode(q, none, 1).scales[0], 0);
        float huge[32] = {[3] = 3.4e38f};
        struct encoded e = encode(q, huge, 1);
        ck_assert_float_eq_tol(decoded(q, &e, 3) / 3.4e38f, 1, f ? 0.07f : 0.26f);
    }
}
END_TEST

START_TEST(nvfp4_scales_are_e4m3)
{
    struct qformat q = formats[2];
    float w[16] = {[2] = 6.0f}, tiny[16] = {[2] = 0.001f}, huge[16] = {[2] = -5000.0f};
    ck_assert_float_eq(decoded(q, &(struct encoded){0}, 0), 0);
    struct encoded e = encode(q, w, 1);
    ck_assert_int_eq(e.scales[0], e4m3_from_f32(1));
    ck_assert_float_eq(decoded(q, &e, 2), 6);
    e = encode(q, tiny, 1); /* 0.001 / 6 is below half of the least scale */
    ck_assert_int_eq(e.scales[0], 0);
    ck_assert_int_eq(e.codes[1], 0);
    e = encode(q, huge, 1); /* 5000 / 6 is more than 448: cut off at 6 * 448 */
    ck_assert_int_eq(e.scales[0], 0x7e);
    ck_assert_float_eq(decoded(q, &e, 2), -2688);
}
END_TEST

START_TEST(ties_go_to_the_even_code_and_zero_has_no_sign)
{
    float w[32] = {6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -0.2f, -0.0f};
    static const uint32_t want[] = {7, 0, 2, 2, 4, 4, 6, 6, 0, 10, 0, 0};
    struct encoded e = encode(formats[0], w, 1);
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        ck_assert_uint_eq(qformat_code(e.codes, 4, (int64_t)i), want[i]);
    float v[32] = {448, -0.0f, -0x1p-11f};
    e = encode(formats[1], v, 1);
    ck_assert_uint_eq(e.codes[1], 0);
    ck_assert_uint_eq(e.codes[2], 0);
}
END_TEST

START_TEST(what_is_not_finite_is_refused)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const words[] = {"NaN", "+Inf", "-Inf"};
    for (size_t i = 0; i < ARRAY_LEN(formats) * ARRAY_LEN(bad); i++) {
        struct qformat q = formats[i / 3];
        float w[64] = {1, 2};
        struct encoded out;
        struct err e = {.text = ""};
        int64_t at = -1, place = 64 - q.group + 5;
        struct block_run r = {q, w, 64 / q.group, out.codes, out.scales};
        w[place] = bad[i % 3];
        ck_assert_int_eq(block_encode(&r, &at, &e), ERR_INPUT);
        ck_assert_int_eq(at, place);
        ck_assert_ptr_nonnull(strstr(e.text, words[i % 3]));
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("block");
    TCase *t = tcase_create("encoder");
    tcase_add_loop_test(t, values_are_the_nearest_of_their_grid, 0, ARRAY_LEN(formats));
    tcase_add_test(t, scales_are_rounded_up);
    tcase_add_test(t, nvfp4_scales_are_e4m3);
    tcase_add_test(t, ties_go_to_the_even_code_and_zero_has_no_sign);
    tcase_add_test(t, what_is_not_finite_is_refused);
    suite_add_tcase(s, t);
    return s;
}
