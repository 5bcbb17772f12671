/* test_ggml_affine.c: every value of every mapped type, exactly. */
#include <math.h>

#include "ckpt/checkpoint.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

#define ROWS 6

static const int mapped[] = {GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1,
                             GGML_Q8_0, GGML_Q4_K, GGML_Q5_K};

/* Random blocks of ROWS x k; scales are finite f16 of every size below `exp_max`. */
static struct ckpt_weight random_weight(int type, int64_t k, struct rng *r, uint32_t exp_max)
{
    int elems, bytes;
    ck_assert(ggml_type_block(type, &elems, &bytes));
    struct ckpt_weight w = {.name = "w", .enc = CKPT_GGML, .ggml = type, .n_dim = 2};
    w.dim[0] = ROWS;
    w.dim[1] = k;
    w.bytes = (size_t)(ROWS * k / elems * bytes);
    uint8_t *data = malloc(w.bytes);
    ck_assert_ptr_nonnull(data);
    bool two = type == GGML_Q4_1 || type == GGML_Q5_1 || elems == 256;
    for (size_t i = 0; i < w.bytes; i++)
        data[i] = (uint8_t)rng_next(r);
    for (size_t b = 0; b < w.bytes; b += (size_t)bytes) {
        for (size_t at = 1; at < (two ? 5 : 3); at += 2)
            data[b + at] = (uint8_t)((data[b + at] & 0x83) | (uint8_t)(rng_below(r, exp_max) << 2));
    }
    w.data = data;
    return w;
}

/* The packed rows decode to the block's values: bit-equal where GGML's own arithmetic is exact,
 * and as real numbers for the K types, whose product GGML rounds. */
static void check_weight(const struct ckpt_weight *w, enum dtype scale)
{
    struct qformat q;
    int64_t k = w->dim[1];
    ck_assert(ggml_affine_format(w, &q));
    ck_assert_int_eq(q.scale, scale);
    ck_assert_int_eq(q.group, 32);
    struct ckpt_weight p = *w;
    size_t row = qformat_row_bytes(q, k), per_scale = scale == DT_F32 ? 4 : 2;
    uint8_t *codes = malloc(ROWS * row);
    uint8_t *scales = malloc((size_t)(ROWS * k / 32) * per_scale);
    uint8_t *biases = malloc((size_t)(ROWS * k / 32) * per_scale);
    float *a = malloc((size_t)k * sizeof *a), *b = malloc((size_t)k * sizeof *b);
    ck_assert(codes && scales && biases && a && b);
    ggml_affine_rows(w, q, 0, ROWS, codes, scales, biases);
    p.enc = CKPT_AFFINE;
    p.q = q;
    p.rope_heads = 0;
    p.data = codes;
    p.scales = scales;
    p.biases = biases;
    for (int64_t r = 0; r < ROWS; r++) {
        ck_assert_int_eq(ckpt_weight_decode(w, r, 1, a, NULL), ERR_OK);
        ck_assert_int_eq(ckpt_weight_decode(&p, r, 1, b, NULL), ERR_OK);
        for (int64_t i = 0; i < k; i++) {
            double s = (double)qformat_scale(scales, q.scale, r * k / 32 + i / 32);
            double m = (double)qformat_scale(biases, q.scale, r * k / 32 + i / 32);
            double exact = (double)qformat_code(codes + (size_t)r * row, q.bits, i) * s + m;
            if (w->ggml == GGML_Q4_K || w->ggml == GGML_Q5_K) {
                double near = fabs(exact) + fabs(m);
                ck_assert(fabs((double)a[i] - exact) <= near * 0x1p-22);
                ck_assert(b[i] == (float)exact);
            } else {
                ck_assert(a[i] == b[i]);
                ck_assert(b[i] == (float)exact);
            }
        }
    }
    free(codes);
    free(scales);
    free(biases);
    free(a);
    free(b);
}

START_TEST(every_value_is_kept)
{
    struct rng r = {1, (uint64_t)_i};
    int type = mapped[_i];
    bool k_type = type == GGML_Q4_K || type == GGML_Q5_K;
    for (int turn = 0; turn < 50; turn++) {
        struct ckpt_weight w = random_weight(type, 512, &r, 20); /* below 2^5 */
        check_weight(&w, k_type ? DT_F32 : DT_F16);
        free((void *)(uintptr_t)w.data);
    }
}
END_TEST

START_TEST(scales_that_overflow_f16_fall_back_to_f32)
{
    static const int types[] = {GGML_Q4_0, GGML_Q5_0, GGML_Q8_0};
    static const uint16_t last_good[] = {0x6fff, 0x6bff,
                                         0x5fff}; /* largest d: 8188, 4094, 511.75 */
    struct rng r = {2, 0};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct ckpt_weight w = random_weight(types[i], 64, &r, 20);
        uint8_t *d = (uint8_t *)(uintptr_t)w.data;
        store_u16(d, last_good[i]);
        check_weight(&w, DT_F16);
        store_u16(d, (uint16_t)(last_good[i] + 1));
        check_weight(&w, DT_F32);
        free(d);
    }
}
END_TEST

START_TEST(infinite_and_nan_scales_have_no_form)
{
    struct rng r = {3, 0};
    for (size_t i = 0; i < ARRAY_LEN(mapped); i++) {
        struct qformat q;
        struct ckpt_weight w = random_weight(mapped[i], 512, &r, 20);
        store_u16((uint8_t *)(uintptr_t)w.data, i % 2 ? 0x7c00 : 0x7e00);
        ck_assert(!ggml_affine_format(&w, &q));
        free((void *)(uintptr_t)w.data);
    }
}
END_TEST

/* Codes and scale bytes are the file's, and so are the values, signs of zero apart. */
START_TEST(mxfp4_stays_mxfp4)
{
    struct rng r = {6, 0};
    struct ckpt_weight w = random_weight(GGML_MXFP4, 512, &r, 20);
    uint8_t codes[ROWS * 256], scales[ROWS * 16];
    float got[ROWS * 512], want[ROWS * 512];
    struct err e = {.text = ""};
    struct qformat q;
    for (int64_t i = 0; i < ROWS * 16; i++)
        if (w.data[17 * i] == 255)
            ((uint8_t *)(uintptr_t)w.data)[17 * i] = 254;
    ck_assert(ggml_affine_format(&w, &q) && qformat_same(q, QFORMAT_MXFP4));
    ggml_affine_rows(&w, q, 0, ROWS, codes, scales, NULL);
    struct ckpt_weight p = {.name = "p", .enc = CKPT_MX, .q = q, .n_dim = 2, .dim = {ROWS, 512}};
    p.data = codes;
    p.scales = scales;
    ck_assert_int_eq(ckpt_weight_decode(&p, 0, ROWS, got, &e), ERR_OK);
    ck_assert_int_eq(ckpt_weight_decode(&w, 0, ROWS, want, &e), ERR_OK);
    for (int i = 0; i < ROWS * 512; i++) {
        uint8_t byte = w.data[i / 32 * 17 + 1 + i % 16];
        ck_assert_uint_eq(qformat_code(codes, 4, i), i % 32 < 16 ? byte & 15 : byte >> 4);
        ck_assert(got[i] == want[i]);
    }
    for (int i = 0; i < ROWS * 16; i++)
        ck_assert_uint_eq(scales[i], w.data[17 * i]);
    free((void *)(uintptr_t)w.data);
}
END_TEST

/* The same; GGML's scales have no sign. Element j of 16 stands beside j + 8. */
START_TEST(nvfp4_stays_nvfp4)
{
    struct rng r = {7, 0};
    struct ckpt_weight w = random_weight(GGML_NVFP4, 512, &r, 20);
    uint8_t codes[ROWS * 256], scales[ROWS * 32];
    float got[ROWS * 512], want[ROWS * 512];
    struct err e = {.text = ""};
    struct qformat q;
    for (int64_t i = 0; i < ROWS * 8 * 36; i++)
        if (i % 36 < 4 && (w.data[i] & 0x7f) == 0x7f)
            ((uint8_t *)(uintptr_t)w.data)[i] = 0x7e;
    ck_assert(ggml_affine_format(&w, &q) && qformat_same(q, QFORMAT_NVFP4));
    ggml_affine_rows(&w, q, 0, ROWS, codes, scales, NULL);
    struct ckpt_weight p = {.name = "p", .enc = CKPT_MX, .q = q, .n_dim = 2, .dim = {ROWS, 512}};
    p.data = codes;
    p.scales = scales;
    ck_assert_int_eq(ckpt_weight_decode(&p, 0, ROWS, got, &e), ERR_OK);
    ck_assert_int_eq(ckpt_weight_decode(&w, 0, ROWS, want, &e), ERR_OK);
    for (int i = 0; i < ROWS * 512; i++) {
        const uint8_t *block = w.data + i / 64 * 36;
        uint8_t byte = block[4 + i % 64 / 16 * 8 + i % 8];
        ck_assert_uint_eq(qformat_code(codes, 4, i), i % 16 < 8 ? byte & 15 : byte >> 4);
        ck_assert_uint_eq(scales[i / 16], block[i % 64 / 16] & 0x7f);
        ck_assert(got[i] == want[i]);
    }
    free((void *)(uintptr_t)w.data);
}
END_TEST

START_TEST(other_types_have_no_form)
{
    static const int types[] = {GGML_Q2_K, GGML_Q3_K, GGML_Q6_K, GGML_F16};
    struct rng r = {4, 0};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct qformat q;
        struct ckpt_weight w = random_weight(types[i], 512, &r, 20);
        ck_assert(!ggml_affine_format(&w, &q));
        free((void *)(uintptr_t)w.data);
    }
}
END_TEST

START_TEST(permuted_rows_are_put_in_order)
{
    struct rng r = {5, 0};
    struct ckpt_weight w = random_weight(GGML_Q4_1, 64, &r, 20);
    w.rope_heads = 1;
    static const int64_t stored[ROWS] = {0, 2, 4, 1, 3, 5};
    for (int64_t i = 0; i < ROWS; i++)
        ck_assert_int_eq(ckpt_weight_row(&w, i), stored[i]);
    check_weight(&w, DT_F16);
    free((void *)(uintptr_t)w.data);
}
END_TEST

START_TEST(forbidden_mxfp4_exponent_is_nan)
{
    uint8_t block[17] = {255, 1, 2, 3};
    float out[32];
    ck_assert(ggml_type_decode(GGML_MXFP4, block, 32, out));
    for (int i = 0; i < 32; i++)
        ck_assert(isnan(out[i]));
}
END_TEST

START_TEST(forbidden_nvfp4_scale_is_nan)
{
    uint8_t block[36] = {0x38, 0x7f, 0xff, 0x38, 1};
    float out[64];
    ck_assert(ggml_type_decode(GGML_NVFP4, block, 64, out));
    for (int i = 0; i < 64; i++)
        ck_assert((isnan(out[i]) != 0) == (i / 16 == 1 || i / 16 == 2));
    ck_assert(out[0] == 0.5f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("ggml_affine");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_value_is_kept, 0, ARRAY_LEN(mapped));
    tcase_add_test(t, scales_that_overflow_f16_fall_back_to_f32);
    tcase_add_test(t, infinite_and_nan_scales_have_no_form);
    tcase_add_test(t, mxfp4_stays_mxfp4);
    tcase_add_test(t, nvfp4_stays_nvfp4);
    tcase_add_test(t, other_types_have_no_form);
    tcase_add_test(t, permuted_rows_are_put_in_order);
    tcase_add_test(t, forbidden_mxfp4_exponent_is_nan);
    tcase_add_test(t, forbidden_nvfp4_scale_is_nan);
    suite_add_tcase(s, t);
    return s;
}
