/* test_affine.c: packing, edges, and the same bytes from every variant. */
#include "quant/affine.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/check_main.h"

static const int widths[] = {2, 3, 4, 5, 6, 8};
static const int groups[] = {32, 64, 128};
static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};

#define N_VALUES (128 * 129) /* 129 groups of 128: batches of 16 have a rest */

struct encoded {
    uint8_t codes[N_VALUES], scales[N_VALUES / 8], biases[N_VALUES / 8];
    struct errstat st;
};

/* One group of 128 after another of another kind, so that every group size sees all kinds. */
static void fill(float *w)
{
    struct rng r = {7, 0};
    for (int g = 0; g < N_VALUES / 128; g++) {
        for (int i = 0; i < 128; i++) {
            float v = (float)rng_normal(&r) * 0.03f;
            switch (g % 12) {
            case 1:
                v = 0.0f;
                break;
            case 2:
                v = 0.73f;
                break;
            case 3:
                v = -0.002f;
                break;
            case 4:
                v = fabsf(v);
                break;
            case 5:
                v = -fabsf(v) - 1.0f;
                break;
            case 6:
                v = i == 17 ? 9.5f : v;
                break;
            case 7:
                v *= 1e-6f;
                break;
            case 8:
                v = i & 1 ? -0.0f : 0.0f;
                break;
            case 9:
                v = i < 100 ? 0.0f : v;
                break;
            default:
                break;
            }
            w[g * 128 + i] = v;
        }
    }
}

static enum err_code encode_with(enum affine_isa isa, struct qformat q, enum dtype source,
                                 const void *data, int64_t n, struct encoded *out, int64_t *bad,
                                 struct err *e)
{
    memset(out, 0xa5, sizeof *out);
    memset(&out->st, 0, sizeof out->st);
    struct affine_run r = {q, source, data, n / q.group, out->codes, out->scales, out->biases};
    return affine_encode(isa, &r, &out->st, bad, e);
}

static float value_of(const struct encoded *o, struct qformat q, int64_t i)
{
    float s = qformat_scale(o->scales, q.scale, i / q.group);
    float b = qformat_scale(o->biases, q.scale, i / q.group);
    return fmaf((float)qformat_code(o->codes, q.bits, i), s, b);
}

/* The source in another type, at an odd address. */
static void *as_type(const float *w, enum dtype t, uint8_t **owned)
{
    *owned = malloc(4 * N_VALUES + 1);
    for (int64_t i = 0; i < N_VALUES; i++) {
        if (t == DT_F32)
            store_u32(*owned + 1 + 4 * i, f32_bits(w[i]));
        else
            store_u16(*owned + 1 + 2 * i, t == DT_BF16 ? bf16_from_f32(w[i]) : f16_from_f32(w[i]));
    }
    return *owned + 1;
}

START_TEST(every_variant_gives_the_same_bytes_and_sums)
{
    static float w[N_VALUES];
    static struct encoded a, b;
    int64_t bad;
    struct err e;
    fill(w);
    for (size_t t = 0; t < ARRAY_LEN(scales); t++) {
        uint8_t *owned;
        void *data = as_type(w, scales[t], &owned);
        for (size_t i = 0; i < ARRAY_LEN(widths) * ARRAY_LEN(groups) * ARRAY_LEN(scales); i++) {
            struct qformat q = {widths[i % 6], groups[i / 6 % 3], scales[i / 18]};
            ck_assert_int_eq(encode_with(AFFINE_C, q, scales[t], data, N_VALUES, &a, &bad, &e), 0);
            for (int isa = AFFINE_AVX2; isa < AFFINE_ISA_COUNT; isa++) {
                if (!affine_isa_here((enum affine_isa)isa))
                    continue;
                ck_assert_int_eq(
                    encode_with((enum affine_isa)isa, q, scales[t], data, N_VALUES, &b, &bad, &e),
                    0);
                ck_assert_mem_eq(&a, &b, sizeof a); /* the untouched rest included */
            }
        }
        free(owned);
    }
}
END_TEST

START_TEST(codes_are_the_nearest_points_of_the_stored_grid)
{
    static float w[N_VALUES];
    static struct encoded o;
    int64_t bad;
    fill(w);
    for (size_t i = 0; i < ARRAY_LEN(widths) * ARRAY_LEN(groups); i++) {
        struct qformat q = {widths[i % 6], groups[i / 6], DT_BF16};
        ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, N_VALUES, &o, &bad, NULL), 0);
        for (int64_t k = 0; k < N_VALUES; k++) {
            double s = (double)qformat_scale(o.scales, q.scale, k / q.group);
            double b = (double)qformat_scale(o.biases, q.scale, k / q.group);
            double code = qformat_code(o.codes, q.bits, k), top = (1 << q.bits) - 1;
            double mine = fabs((double)w[k] - (code * s + b)), slack = fabs(s) * 1e-5;
            if (code > 0)
                ck_assert(mine <= fabs((double)w[k] - ((code - 1) * s + b)) + slack);
            if (code < top)
                ck_assert(mine <= fabs((double)w[k] - ((code + 1) * s + b)) + slack);
        }
    }
}
END_TEST

START_TEST(groups_of_one_value_decode_to_it)
{
    static const float values[] = {0.0f, 0.75f, -0.75f, 1e-30f, 3.0e4f, -1.0f};
    static struct encoded o;
    int64_t bad;
    for (size_t v = 0; v < ARRAY_LEN(values); v++) {
        float w[128], want = bf16_to_f32(bf16_from_f32(values[v]));
        for (int i = 0; i < 128; i++)
            w[i] = values[v];
        for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
            struct qformat q = {widths[i], 32, DT_BF16};
            ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, 128, &o, &bad, NULL), 0);
            for (int k = 0; k < 128; k++)
                ck_assert(value_of(&o, q, k) == want);
            ck_assert_uint_eq(qformat_code(o.codes, q.bits, 5), 0);
        }
    }
}
END_TEST

START_TEST(values_that_lie_on_a_grid_come_back_exactly)
{
    static struct encoded o;
    int64_t bad;
    struct rng r = {3, 0};
    for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
        struct qformat q = {widths[i], 64, DT_BF16};
        float w[64 * 20];
        for (int g = 0; g < 20; g++) {
            /* Ends and steps with few bits: the grid's formulas are then exact in f32. */
            float s = ldexpf(1.0f, -(int)rng_below(&r, 12)) * (g & 1 ? -1.0f : 1.0f);
            float b = (float)(int)rng_below(&r, 8) * s;
            for (int k = 0; k < 64; k++)
                w[g * 64 + k] = (float)rng_below(&r, 1u << q.bits) * s + b;
            w[g * 64] = b;
            w[g * 64 + 1] = (float)((1 << q.bits) - 1) * s + b;
        }
        ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, 64 * 20, &o, &bad, NULL), 0);
        for (int k = 0; k < 64 * 20; k++)
            ck_assert_msg(value_of(&o, q, k) == w[k], "bits %d element %d", q.bits, k);
        struct errstat_figures f;
        errstat_figures(&o.st, &f);
        ck_assert(f.rel_rms == 0.0 && f.max == 0.0 && isinf(f.sqnr_db) && f.cosine == 1.0);
    }
}
END_TEST

/* MLX's encoder on the CPU: one edge, codes against the unrounded pair. */
static double mlx_error(const float *w, int group, int bits)
{
    float lo = w[0], hi = w[0], n = (float)((1 << bits) - 1);
    for (int i = 1; i < group; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    float s = fmaxf((hi - lo) / n, 1e-7f), edge = fabsf(lo) > fabsf(hi) ? lo : hi;
    s = fabsf(lo) > fabsf(hi) ? s : -s;
    float q0 = rintf(edge / s), b = 0.0f;
    if (q0 != 0.0f) {
        s = edge / q0;
        b = edge;
    }
    float sr = bf16_to_f32(bf16_from_f32(s)), br = bf16_to_f32(bf16_from_f32(b));
    double sum = 0.0;
    for (int i = 0; i < group; i++) {
        float q = fminf(fmaxf(rintf((w[i] - b) / s), 0.0f), n);
        double err = (double)w[i] - ((double)q * (double)sr + (double)br);
        sum += err * err;
    }
    return sum;
}

START_TEST(no_group_is_worse_than_mlx)
{
    static float w[N_VALUES];
    static struct encoded o;
    int64_t bad;
    fill(w);
    for (int64_t k = 0; k < N_VALUES; k++)
        w[k] = bf16_to_f32(bf16_from_f32(w[k]));
    for (size_t i = 0; i < ARRAY_LEN(widths) * ARRAY_LEN(groups); i++) {
        struct qformat q = {widths[i % 6], groups[i / 6], DT_BF16};
        ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, N_VALUES, &o, &bad, NULL), 0);
        for (int64_t g = 0; g < N_VALUES / q.group; g++) {
            double mine = 0.0, theirs = mlx_error(w + g * q.group, q.group, q.bits);
            for (int64_t k = g * q.group; k < (g + 1) * q.group; k++) {
                double err = (double)w[k] - (double)value_of(&o, q, k);
                mine += err * err;
            }
            ck_assert_msg(mine <= theirs * (1.0 + 1e-6) + 1e-30, "%d bits, group %d, %g > %g",
                          q.bits, q.group, mine, theirs);
        }
    }
}
END_TEST

START_TEST(more_bits_and_smaller_groups_never_cost_accuracy)
{
    static float w[N_VALUES];
    static struct encoded o;
    int64_t bad;
    struct rng r = {11, 0};
    struct errstat_figures f;
    for (int64_t k = 0; k < N_VALUES; k++)
        w[k] = (float)rng_normal(&r) * 0.02f;
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        double before = 1.0;
        for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
            struct qformat q = {widths[i], groups[g], DT_BF16};
            ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, N_VALUES, &o, &bad, NULL), 0);
            errstat_figures(&o.st, &f);
            ck_assert(f.rel_rms > 0.0 && f.rel_rms < before * 0.7);
            before = f.rel_rms;
        }
    }
    double before = 0.0;
    for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
        struct qformat q = {4, groups[g], DT_BF16};
        ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, N_VALUES, &o, &bad, NULL), 0);
        errstat_figures(&o.st, &f);
        ck_assert(f.rel_rms > before);
        before = f.rel_rms;
    }
}
END_TEST

START_TEST(a_value_that_is_not_finite_is_refused_with_its_index)
{
    static float w[N_VALUES];
    static struct encoded o;
    const float odd[] = {NAN, INFINITY, -INFINITY, -NAN};
    for (size_t v = 0; v < ARRAY_LEN(odd); v++) {
        for (int isa = 0; isa < AFFINE_ISA_COUNT; isa++) {
            if (!affine_isa_here((enum affine_isa)isa))
                continue;
            for (int64_t at = 1000; at < 1070; at += 3) {
                struct qformat q = {4, 64, DT_BF16};
                int64_t bad = -1;
                struct err e = {.text = ""};
                fill(w);
                w[at] = odd[v];
                w[at + 900] = NAN;
                ck_assert_int_eq(
                    encode_with((enum affine_isa)isa, q, DT_F32, w, N_VALUES, &o, &bad, &e),
                    ERR_INPUT);
                ck_assert_int_eq(bad, at);
                ck_assert_ptr_nonnull(strstr(e.text, v == 1 ? "+Inf" : v == 2 ? "-Inf" : "NaN"));
            }
        }
    }
}
END_TEST

START_TEST(a_scale_that_does_not_fit_is_refused)
{
    static struct encoded o;
    float w[64];
    int64_t bad = -1;
    struct err e;
    for (int i = 0; i < 64; i++)
        w[i] = (float)i * 4e4f;
    struct qformat q = {4, 64, DT_F16};
    for (int isa = 0; isa < AFFINE_ISA_COUNT; isa++) {
        if (!affine_isa_here((enum affine_isa)isa))
            continue;
        ck_assert_int_eq(encode_with((enum affine_isa)isa, q, DT_F32, w, 64, &o, &bad, &e),
                         ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(e.text, "F16"));
    }
    q.scale = DT_BF16;
    ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, 64, &o, &bad, &e), ERR_OK);
}
END_TEST

START_TEST(extreme_values_decode_to_finite_ones)
{
    static struct encoded a, b;
    float w[64 * 4];
    int64_t bad;
    struct rng r = {5, 0};
    for (int i = 0; i < 64 * 4; i++) {
        float unit = (float)(rng_double(&r) * 2.0 - 1.0);
        static const float sizes[] = {3e38f, 1e-38f, 1e-44f, 1e20f};
        w[i] = unit * sizes[i / 64];
    }
    for (size_t i = 0; i < ARRAY_LEN(widths); i++) {
        struct qformat q = {widths[i], 64, DT_F32};
        ck_assert_int_eq(encode_with(AFFINE_C, q, DT_F32, w, 64 * 4, &a, &bad, NULL), ERR_OK);
        for (int isa = AFFINE_AVX2; isa < AFFINE_ISA_COUNT; isa++) {
            if (!affine_isa_here((enum affine_isa)isa))
                continue;
            ck_assert_int_eq(
                encode_with((enum affine_isa)isa, q, DT_F32, w, 64 * 4, &b, &bad, NULL), ERR_OK);
            ck_assert_mem_eq(a.codes, b.codes, sizeof a.codes);
            ck_assert_mem_eq(a.scales, b.scales, sizeof a.scales);
            ck_assert_mem_eq(a.biases, b.biases, sizeof a.biases);
        }
        for (int k = 0; k < 64 * 4; k++)
            ck_assert(isfinite(value_of(&a, q, k)));
    }
}
END_TEST

START_TEST(a_run_and_its_pieces_have_the_same_bytes)
{
    static float w[N_VALUES];
    static struct encoded whole, part;
    int64_t bad;
    fill(w);
    struct qformat q = {5, 32, DT_F16};
    enum affine_isa isa = affine_isa_best();
    ck_assert_int_eq(encode_with(isa, q, DT_F32, w, N_VALUES, &whole, &bad, NULL), 0);
    for (int64_t n = 32; n <= 32 * 37; n += 32) {
        int64_t at = 32 * 21;
        ck_assert_int_eq(encode_with(isa, q, DT_F32, w + at, n, &part, &bad, NULL), 0);
        ck_assert_mem_eq(part.codes, whole.codes + at / 8 * 5, (size_t)n / 8 * 5);
        ck_assert_mem_eq(part.scales, whole.scales + at / 32 * 2, (size_t)n / 32 * 2);
        ck_assert_uint_eq(part.codes[n / 8 * 5], 0xa5); /* nothing behind the run */
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("affine");
    TCase *t = tcase_create("encoder");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, every_variant_gives_the_same_bytes_and_sums);
    tcase_add_test(t, codes_are_the_nearest_points_of_the_stored_grid);
    tcase_add_test(t, groups_of_one_value_decode_to_it);
    tcase_add_test(t, values_that_lie_on_a_grid_come_back_exactly);
    tcase_add_test(t, no_group_is_worse_than_mlx);
    tcase_add_test(t, more_bits_and_smaller_groups_never_cost_accuracy);
    tcase_add_test(t, a_value_that_is_not_finite_is_refused_with_its_index);
    tcase_add_test(t, a_scale_that_does_not_fit_is_refused);
    tcase_add_test(t, extreme_values_decode_to_finite_ones);
    tcase_add_test(t, a_run_and_its_pieces_have_the_same_bytes);
    suite_add_tcase(s, t);
    return s;
}
