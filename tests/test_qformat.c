/* test_qformat.c: the one rounding of packed weights, against wide integers; codes and layout. */
#include <stdlib.h>

#include "ckpt/qformat.h"
#include "common/rng.h"
#include "tests/check_main.h"

/* A number as sign and 384 bits in units of 2^-133, the last place of the smallest bf16. */
#define WORDS 6
struct wide {
    bool negative;
    uint64_t w[WORDS]; /* least first */
};

static void wide_shift_in(struct wide *v, uint64_t m, int shift)
{
    memset(v->w, 0, sizeof v->w);
    v->w[shift / 64] = m << (shift % 64);
    if (shift % 64 && shift / 64 + 1 < WORDS)
        v->w[shift / 64 + 1] = m >> (64 - shift % 64);
}

static struct wide wide_of(uint32_t q, float f)
{
    uint32_t u = f32_bits(f) >> 16;
    uint32_t exp = u >> 7 & 0xff, man = (u & 0x7f) | (exp ? 0x80 : 0);
    struct wide v = {.negative = u >> 15 != 0};
    wide_shift_in(&v, (uint64_t)q * man, exp ? (int)exp - 1 : 0);
    return v;
}

static int wide_compare(const struct wide *a, const struct wide *b)
{
    for (int i = WORDS - 1; i >= 0; i--) {
        if (a->w[i] != b->w[i])
            return a->w[i] < b->w[i] ? -1 : 1;
    }
    return 0;
}

static struct wide wide_add(struct wide a, struct wide b)
{
    if (a.negative != b.negative && wide_compare(&a, &b) < 0) {
        struct wide t = a;
        a = b;
        b = t;
    }
    bool carry = false, borrow = false;
    for (int i = 0; i < WORDS; i++) {
        if (a.negative == b.negative) {
            bool over = __builtin_add_overflow(a.w[i], b.w[i], &a.w[i]);
            carry = __builtin_add_overflow(a.w[i], (uint64_t)carry, &a.w[i]) || over;
        } else {
            uint64_t d = a.w[i] - b.w[i] - borrow;
            borrow = a.w[i] < b.w[i] || (a.w[i] == b.w[i] && borrow);
            a.w[i] = d;
        }
    }
    return a;
}

static bool wide_bit(const struct wide *v, int i)
{
    return i >= 0 && (v->w[i / 64] >> (i % 64) & 1);
}

/* To nearest, ties to even; the sign of an exact zero is left to the caller. */
static uint16_t wide_round(const struct wide *v)
{
    int top = 64 * WORDS - 1;
    while (top >= 0 && !wide_bit(v, top))
        top--;
    int last = top > 7 ? top - 7 : 0;
    uint32_t man = 0;
    for (int i = last + 7; i >= last; i--)
        man = man << 1 | wide_bit(v, i);
    bool half = wide_bit(v, last - 1), rest = false;
    for (int i = 0; i < last - 1; i++)
        rest |= wide_bit(v, i);
    man += half && (rest || (man & 1));
    /* A normal number whose last place is `last` has exponent field last + 1. */
    uint32_t bits = top >= 7 ? ((uint32_t)last << 7) + man : man;
    if (bits > 0x7f80)
        bits = 0x7f80;
    return (uint16_t)(bits | (v->negative ? 0x8000u : 0));
}

static void check_one(uint32_t q, float s, float b)
{
    struct wide sum = wide_add(wide_of(q, s), wide_of(1, b));
    uint16_t got = qformat_bf16_exact(q, s, b), want = wide_round(&sum);
    if ((got & 0x7fff) == 0 && (want & 0x7fff) == 0)
        return;
    if (got != want)
        ck_abort_msg("q %u s %a b %a: got %04x, want %04x", q, (double)s, (double)b, got, want);
}

START_TEST(one_rounding_for_all_codes_scales_and_distances)
{
    static const uint16_t mantissas[] = {0, 1, 0x3f, 0x55, 0x7f};
    for (int far = -22; far <= 22; far++) {
        for (uint32_t m = 0; m < 128; m++) {
            float s = bf16_to_f32((uint16_t)(120u << 7 | m));
            for (size_t i = 0; i < ARRAY_LEN(mantissas) * 2; i++) {
                uint32_t sign = i % 2 ? 0x8000u : 0;
                float b =
                    bf16_to_f32((uint16_t)(sign | (uint32_t)(120 + far) << 7 | mantissas[i / 2]));
                for (uint32_t q = 0; q < 256; q++)
                    check_one(q, s, b);
            }
        }
    }
}
END_TEST

START_TEST(one_rounding_for_random_bits_subnormal_and_huge_ones_too)
{
    struct rng r = {7, 0};
    for (int i = 0; i < 2000000; i++) {
        uint64_t v = rng_next(&r);
        uint16_t s = (uint16_t)v, b = (uint16_t)(v >> 16);
        if (i % 4 == 0) /* both near the bottom */
            s &= 0x81ff, b &= 0x81ff;
        if (i % 4 == 1) /* both near the top */
            s |= 0x7c00, b |= 0x7c00;
        if (i % 4 == 2) /* exponents near each other, opposite signs */
            b = (uint16_t)(((s ^ 0x8000) & 0xff80) + ((b >> 7) % 9 << 7) + (b & 0x7f));
        if ((s & 0x7f80) == 0x7f80 || (b & 0x7f80) == 0x7f80)
            continue;
        check_one((uint32_t)(v >> 32) & 0xff, bf16_to_f32(s), bf16_to_f32(b));
    }
}
END_TEST

START_TEST(special_values_follow_the_hardware)
{
    float inf = INFINITY;
    ck_assert_uint_eq(qformat_bf16_exact(1, inf, 0), 0x7f80);
    ck_assert_uint_eq(qformat_bf16_exact(1, 0, -inf), 0xff80);
    ck_assert_uint_eq(qformat_bf16_exact(0, inf, 0), 0x7fff);
    ck_assert_uint_eq(qformat_bf16_exact(1, inf, -inf), 0x7fff);
    ck_assert_uint_eq(qformat_bf16_exact(1, NAN, 0), 0x7fff);
    ck_assert_uint_eq(qformat_bf16_exact(0, -1, 0), 0x0000);
    ck_assert_uint_eq(qformat_bf16_exact(0, -1, -0.0f), 0x8000);
    /* The product overflows f32, the sum does not. */
    ck_assert_uint_eq(qformat_bf16_exact(2, 0x1.8p127f, -0x1.fcp127f), 0x7f02);
    ck_assert_uint_eq(qformat_bf16_exact(2, 0x1.0p127f, -0x1.0p127f), 0x7f00);
}
END_TEST

START_TEST(two_roundings_would_differ)
{
    /* Guards the test itself: rounding through f32 must not give the same everywhere. */
    int differ = 0;
    struct rng r = {3, 0};
    for (int i = 0; i < 100000; i++) {
        uint64_t v = rng_next(&r);
        float s = bf16_to_f32((uint16_t)(120u << 7 | (v & 0x7f)));
        float b = bf16_to_f32((uint16_t)((v & 0x8000) | (90 + v % 23) << 7 | (v >> 20 & 0x7f)));
        uint32_t q = (uint32_t)(v >> 32) & 0xff;
        differ += qformat_bf16_exact(q, s, b) != bf16_from_f32(fmaf((float)q, s, b));
    }
    ck_assert_int_gt(differ, 0);
}
END_TEST

START_TEST(other_scale_types_round_the_fma)
{
    struct rng r = {5, 0};
    for (int i = 0; i < 100000; i++) {
        float s = (float)rng_normal(&r), b = (float)rng_normal(&r);
        uint32_t q = (uint32_t)rng_below(&r, 256);
        ck_assert_uint_eq(qformat_bf16(q, s, b, DT_F32), bf16_from_f32(fmaf((float)q, s, b)));
        ck_assert_uint_eq(qformat_bf16(q, s, b, DT_F16), bf16_from_f32(fmaf((float)q, s, b)));
    }
}
END_TEST

START_TEST(codes_are_a_bit_stream_for_every_width)
{
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    struct rng r = {9, 0};
    for (size_t b = 0; b < ARRAY_LEN(widths); b++) {
        int bits = widths[b];
        struct qformat q = {bits, 32, DT_BF16};
        size_t n = qformat_row_bytes(q, 96);
        ck_assert_uint_eq(n, (size_t)(96 * bits / 8));
        uint8_t *row = malloc(n); /* exact, so that a read past the row is seen */
        ck_assert_ptr_nonnull(row);
        for (size_t i = 0; i < n; i++)
            row[i] = (uint8_t)rng_next(&r);
        for (int i = 0; i < 96; i++) {
            uint32_t want = 0;
            for (int bit = 0; bit < bits; bit++) {
                int at = i * bits + bit;
                want |= (uint32_t)(row[at / 8] >> (at % 8) & 1) << bit;
            }
            ck_assert_uint_eq(qformat_code(row, bits, i), want);
        }
        free(row);
    }
}
END_TEST

START_TEST(only_the_stated_formats_are_valid)
{
    int valid = 0;
    for (int bits = 0; bits < 20; bits++) {
        for (int group = 0; group < 300; group++)
            valid += qformat_valid((struct qformat){bits, group, DT_F16});
    }
    ck_assert_int_eq(valid, 18);
    ck_assert(!qformat_valid((struct qformat){4, 64, DT_U32}));
}
END_TEST

START_TEST(every_16_bit_number_survives_f32)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float b = bf16_to_f32((uint16_t)h), f = f16_to_f32((uint16_t)h);
        if (!isnan(b))
            ck_assert_uint_eq(bf16_from_f32(b), h);
        if (!isnan(f))
            ck_assert_uint_eq(f16_from_f32(f), h);
        ck_assert(!isnan(b) || isnan(bf16_to_f32(bf16_from_f32(b))));
        ck_assert(!isnan(f) || isnan(f16_to_f32(f16_from_f32(f))));
    }
}
END_TEST

/* Nearest of the two neighbours, by distance in double; ties to the even one. */
static void check_f16(float v)
{
    uint16_t got = f16_from_f32(v);
    if (isinf(f16_to_f32(got)) || isnan(v)) {
        ck_assert(isnan(v) || fabs((double)v) >= 65520);
        return;
    }
    double d = fabs((double)v - (double)f16_to_f32(got));
    for (int step = -1; step <= 1; step += 2) {
        uint16_t other = (uint16_t)(got + step);
        if ((got & 0x7fff) == 0 && step < 0)
            continue;
        double there = fabs((double)v - (double)f16_to_f32(other));
        if (!(d < there || (d == there && !(got & 1))))
            ck_abort_msg("%a -> %04x", (double)v, got);
    }
}

START_TEST(f16_rounds_to_nearest_even)
{
    struct rng r = {11, 0};
    for (int i = 0; i < 1000000; i++) {
        float v = f32_from_bits((uint32_t)rng_next(&r));
        if (fabs((double)v) < 70000)
            check_f16(v);
    }
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float mid = (f16_to_f32((uint16_t)h) + f16_to_f32((uint16_t)(h + 1))) / 2;
        check_f16(mid);
        check_f16(nextafterf(mid, 0));
        check_f16(nextafterf(mid, 1e9f));
    }
    ck_assert_uint_eq(f16_from_f32(65520.0f), 0x7c00);
    ck_assert_uint_eq(f16_from_f32(65519.996f), 0x7bff);
}
END_TEST

/* ---- block floats -----------------------------------------------------------------------------
 */

START_TEST(small_floats_are_what_their_bits_say)
{
    static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t c = 0; c < 16; c++) {
        ck_assert_float_eq(e2m1_to_f32(c), c & 8 ? -e2m1[c & 7] : e2m1[c & 7]);
        ck_assert_int_eq(signbit(e2m1_to_f32(c)) != 0, c >> 3);
        ck_assert_uint_eq(e2m1_from_f32(e2m1_to_f32(c)), c == 8 ? 0 : c);
    }
    for (uint32_t c = 0; c < 256; c++) {
        int exp = (int)(c >> 3 & 15);
        double want = ldexp(exp ? 8 + (c & 7) : c & 7, exp ? exp - 10 : -9);
        float got = e4m3_to_f32(c);
        ck_assert_int_eq(isnan(got) != 0, (c & 0x7f) == 0x7f);
        ck_assert_int_eq(e4m3_is_nan(c), (c & 0x7f) == 0x7f);
        ck_assert_int_eq(signbit(got) != 0, c >> 7);
        if (!isnan(got))
            ck_assert_double_eq(fabs((double)got), want);
        ck_assert_uint_eq(e4m3_from_f32(got), c);
        if (c < 255)
            ck_assert_double_eq((double)e8m0_to_f32(c), ldexp(1, (int)c - 127));
    }
    ck_assert_float_nan(e8m0_to_f32(255));
}
END_TEST

/* The nearest of all codes, ties to the even one; what is too large becomes the largest. */
START_TEST(small_floats_round_to_nearest_even)
{
    struct rng r = {13, 0};
    for (int i = 0; i < 200000; i++) {
        uint32_t a = (uint32_t)rng_below(&r, 126), b = (uint32_t)rng_below(&r, 7);
        float mid = (e4m3_to_f32(a) + e4m3_to_f32(a + 1)) / 2;
        float mid4 = (e2m1_to_f32(b) + e2m1_to_f32(b + 1)) / 2;
        float v = i % 3 == 0 ? mid : nextafterf(mid, i % 3 == 1 ? 0 : 1e9f);
        float v4 = i % 3 == 0 ? mid4 : nextafterf(mid4, i % 3 == 1 ? 0 : 1e9f);
        uint32_t up = i % 3 == 2 || (i % 3 == 0 && (a & 1)),
                 up4 = i % 3 == 2 || (i % 3 == 0 && b & 1);
        ck_assert_uint_eq(e4m3_from_f32(v), a + up);
        ck_assert_uint_eq(e4m3_from_f32(-v), (a + up) | 0x80);
        ck_assert_uint_eq(e2m1_from_f32(v4), b + up4);
        ck_assert_uint_eq(e2m1_from_f32(-v4), b + up4 ? (b + up4) | 8 : 0);
    }
    ck_assert_uint_eq(e4m3_from_f32(464), 0x7e);
    ck_assert_uint_eq(e4m3_from_f32(-INFINITY), 0xfe);
    ck_assert_uint_eq(e2m1_from_f32(1e30f), 7);
}
END_TEST

/* RN_bf16 of m * 2^exp by integers. */
static uint16_t round_product(uint64_t m, int exp, bool negative)
{
    uint16_t sign = negative ? 0x8000 : 0;
    if (m == 0)
        return sign;
    int top = 63 - __builtin_clzll(m), last = MAX2(top + exp - 7, -133); /* exponent of a unit */
    uint64_t q;
    if (last <= exp) {
        q = m << (exp - last); /* at most 8 bits: exact */
    } else if (last - exp > 63) {
        q = 0;
    } else {
        uint64_t half = 1ull << (last - exp - 1), rest = m & (2 * half - 1);
        q = m >> (last - exp);
        q += rest > half || (rest == half && (q & 1));
    }
    uint64_t bits = q >= 128 ? ((uint64_t)(last + 133) << 7) + q : q;
    return (uint16_t)(sign | (bits >= 0x7f80 ? 0x7f80 : bits));
}

/* A float as m * 2^exp. */
static uint64_t split(float f, int *exp)
{
    uint32_t u = f32_bits(f) & 0x7fffffff;
    *exp = (int)(u >> 23 ? u >> 23 : 1) - 150;
    return (u & 0x7fffff) | (u >> 23 ? 0x800000 : 0);
}

START_TEST(block_floats_round_once)
{
    struct rng r = {17, 0};
    for (int i = 0; i < 500000; i++) {
        uint32_t c = (uint32_t)rng_below(&r, 256), s = (uint32_t)rng_below(&r, 255);
        bool mx8 = i % 3 == 0, nv = i % 3 == 2;
        float el = mx8 ? e4m3_to_f32((c & 0x7f) == 0x7f ? 0 : c) : e2m1_to_f32(c & 15);
        float by = nv ? e4m3_to_f32((s & 0x7f) == 0x7f ? 0x11 : s) : e8m0_to_f32(s);
        int power = (int)rng_below(&r, 200) - 100;
        float global = nv ? (float)ldexp(1 + rng_double(&r), power) : 1;
        int e[3];
        uint64_t m[3] = {split(el, &e[0]), split(by, &e[1]), split(global, &e[2])};
        for (int j = 0; j < 3; j++) /* so that the product fits 64 bits */
            for (; m[j] && !(m[j] & 1); e[j]++)
                m[j] >>= 1;
        uint16_t want = round_product(m[0] * m[1] * m[2], e[0] + e[1] + e[2],
                                      (signbit(el) != 0) != (signbit(by) != 0));
        uint16_t got = qformat_block_bf16(el, by, global);
        ck_assert_msg(got == want, "%a * %a * %a: got %04x, want %04x", (double)el, (double)by,
                      (double)global, got, want);
    }
}
END_TEST

/* Guards the test: 6 * global just above a tie of bf16, on it when it is rounded to f32 first. */
START_TEST(rounding_through_f32_would_differ)
{
    int differ = 0;
    for (uint32_t even = 128; even < 192; even += 2) {
        uint32_t above = (even << 18) + (1u << 17) + 1;
        float global = (float)(above / 3) * 0x1p-30f;
        if (above % 3)
            continue;
        ck_assert_uint_eq(qformat_block_bf16(6, 1, global), bf16_from_f32(6 * global) + 1);
        differ++;
    }
    ck_assert_int_gt(differ, 5);
}
END_TEST

START_TEST(block_formats_have_names)
{
    static const char *const names[] = {"mxfp4", "mxfp8", "nvfp4"};
    int valid = 0;
    for (int bits = 0; bits < 20; bits++)
        for (int group = 0; group < 300; group++)
            for (int t = 0; t < DT_COUNT; t++) {
                struct qformat q = {bits, group, (enum dtype)t};
                valid += qformat_is_block(q) && qformat_valid(q);
            }
    ck_assert_int_eq(valid, 3);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct qformat q;
        ck_assert(qformat_find_block(names[i], &q) && qformat_valid(q));
        ck_assert_str_eq(qformat_mode(q), names[i]);
    }
    struct qformat q;
    ck_assert(!qformat_find_block("affine", &q));
    ck_assert_str_eq(qformat_mode((struct qformat){4, 32, DT_BF16}), "affine");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("qformat");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, one_rounding_for_all_codes_scales_and_distances);
    tcase_add_test(t, one_rounding_for_random_bits_subnormal_and_huge_ones_too);
    tcase_add_test(t, special_values_follow_the_hardware);
    tcase_add_test(t, two_roundings_would_differ);
    tcase_add_test(t, other_scale_types_round_the_fma);
    tcase_add_test(t, codes_are_a_bit_stream_for_every_width);
    tcase_add_test(t, only_the_stated_formats_are_valid);
    tcase_add_test(t, every_16_bit_number_survives_f32);
    tcase_add_test(t, f16_rounds_to_nearest_even);
    tcase_add_test(t, small_floats_are_what_their_bits_say);
    tcase_add_test(t, small_floats_round_to_nearest_even);
    tcase_add_test(t, block_floats_round_once);
    tcase_add_test(t, rounding_through_f32_would_differ);
    tcase_add_test(t, block_formats_have_names);
    suite_add_tcase(s, t);
    return s;
}
