/* test_qat_grid.c: grids found, proven, and not found where there is none. The large counts are in
 * tests/reference/qat_grids.py. */
#include "quant/qat_private.h"

#include "tests/check_main.h"
#include "tests/qat_make.h"

static const struct grid_options quiet = {.threads = 2};

static void look(const struct ckpt_weight *w, bool sample, struct grid_report *r)
{
    struct grid_options o = quiet;
    struct err e = {.text = ""};
    o.sample = sample;
    ck_assert_msg(grid_look(w, &o, r, &e) == ERR_OK, "%s", e.text);
}

/* Encoded rows of a weight that lies on the form. */
struct encoded {
    struct qformat q;
    uint8_t *codes, *scales, *biases;
};

static struct encoded encode(const struct ckpt_weight *w, const struct grid_form *f)
{
    struct err e = {.text = ""};
    struct encoded x = {.q = grid_format(f, w->dim[1])};
    int64_t rows = w->dim[0], k = w->dim[1];
    size_t scales = (size_t)(rows * (k / x.q.group) * dtype_bits(x.q.scale) / 8);
    x.codes = malloc((size_t)rows * qformat_row_bytes(x.q, k));
    x.scales = malloc(2 * scales);
    ck_assert_ptr_nonnull(x.codes);
    ck_assert_ptr_nonnull(x.scales);
    x.biases = x.scales + scales;
    ck_assert_msg(grid_encode(w, f, 0, rows, x.codes, x.scales, x.biases, &e) == ERR_OK, "%s",
                  e.text);
    return x;
}

static void encoded_free(struct encoded *x)
{
    free(x->codes);
    free(x->scales);
}

/* Every value of every row, by rule 1 and one rounding; returns how many codes are the true ones.
 */
static int64_t prove(const struct grid_made *g, const struct grid_form *f)
{
    struct encoded x = encode(&g->w, f);
    int64_t rows = g->w.dim[0], k = g->w.dim[1], same = 0;
    int zero = f->kind == GRID_OFFSET ? 0 : 1 << (f->bits - 1);
    for (int64_t i = 0; i < rows * k; i++) {
        uint32_t u =
            qformat_code(x.codes + (size_t)(i / k) * qformat_row_bytes(x.q, k), x.q.bits, i % k);
        float s = qformat_scale(x.scales, x.q.scale, i / x.q.group);
        float b = qformat_scale(x.biases, x.q.scale, i / x.q.group);
        float v = g->w.dtype == DT_BF16 ? bf16_to_f32(qformat_bf16(u, s, b, x.q.scale))
                                        : round_to(g->w.dtype, (double)fmaf((float)u, s, b));
        ck_assert(v == qformat_scale(g->data, g->w.dtype, i));
        same += (int)u - zero == g->code[i];
    }
    encoded_free(&x);
    return same;
}

START_TEST(made_grids_come_back)
{
    static const struct grid_maker makers[] = {
        {.bits = 4, .group = 32, .scale = DT_BF16, .source = DT_BF16},
        {.bits = 4, .group = 64, .scale = DT_F16, .source = DT_BF16},
        {.bits = 4, .group = 128, .scale = DT_F32, .source = DT_BF16, .codes = CODES_UNUSED},
        {.bits = 4, .group = 32, .scale = DT_F16, .source = DT_F16, .codes = CODES_HEAVY},
        {.bits = 4, .group = 32, .scale = DT_BF16, .source = DT_F32},
        {.bits = 4, .group = 512, .scale = DT_BF16, .source = DT_BF16},
        {.bits = 5, .group = 32, .scale = DT_BF16, .source = DT_BF16, .codes = CODES_ENDS},
        {.bits = 8, .group = 32, .scale = DT_F16, .source = DT_BF16, .codes = CODES_ENDS},
        {.bits = 8, .group = 512, .scale = DT_BF16, .source = DT_BF16, .codes = CODES_ENDS},
        {.bits = 4,
         .group = 32,
         .scale = DT_F16,
         .source = DT_BF16,
         .offset = true,
         .codes = CODES_ENDS},
        {.bits = 5,
         .group = 64,
         .scale = DT_F16,
         .source = DT_F16,
         .offset = true,
         .codes = CODES_ENDS}};
    struct grid_maker m = makers[_i];
    struct grid_made g;
    struct grid_report r;
    m.rows = 24;
    m.k = 512;
    m.seed = (uint64_t)_i + 1;
    grid_make(&m, &g);
    look(&g.w, false, &r);
    ck_assert(grid_is_on(&r) && r.whole);
    ck_assert_int_eq(r.form.bits, m.bits);
    ck_assert_int_eq(r.form.group, m.group == 512 ? 0 : m.group);
    ck_assert_int_eq(r.form.kind, m.offset ? GRID_OFFSET : GRID_SYMMETRIC);
    int64_t same = prove(&g, &r.form), n = m.rows * m.k;
    if (m.offset ||
        (m.bits == 8 && m.group == 512)) /* both ends occur: nothing is left to choose */
        ck_assert_int_eq(same, n);
    if (m.scale == DT_BF16)
        ck_assert_int_eq(r.form.scale, DT_BF16);
    grid_unmake(&g);
}
END_TEST

/* In one of these units a code is open until the end: two codes round to one value there. */
START_TEST(a_unit_with_ties_comes_back)
{
    struct grid_maker m = {.rows = 32,
                           .k = 2048,
                           .group = 32,
                           .bits = 8,
                           .scale = DT_F16,
                           .source = DT_BF16,
                           .seed = 85};
    struct grid_made g;
    struct grid_report r;
    grid_make(&m, &g);
    look(&g.w, false, &r);
    ck_assert(grid_is_on(&r));
    prove(&g, &r.form);
    grid_unmake(&g);
}
END_TEST

START_TEST(a_zero_point_is_found)
{
    static const int bits[] = {4, 8};
    struct grid_maker m = {.rows = 16,
                           .k = 256,
                           .group = 64,
                           .bits = bits[_i],
                           .scale = DT_BF16,
                           .source = DT_BF16,
                           .codes = CODES_ENDS,
                           .seed = 9};
    struct grid_made g;
    struct grid_report r;
    int half = 1 << (m.bits - 1), z = half / 2 + 1;
    grid_make(&m, &g);
    for (int64_t i = 0; i < m.rows * m.k; i++) { /* codes are -half .. half - 1: move them */
        g.code[i] = (int16_t)(g.code[i] + half - z);
        put_value(g.data, DT_BF16, i, round_once(DT_BF16, (double)g.code[i] * g.scale[i / 64]));
    }
    look(&g.w, false, &r);
    ck_assert(grid_is_on(&r));
    ck_assert_int_eq(r.form.kind, GRID_ZERO_POINT);
    ck_assert_int_eq(r.form.bits, m.bits);
    prove(&g, &r.form);
    grid_unmake(&g);
}
END_TEST

START_TEST(one_unit_off_the_grid_is_told)
{
    struct grid_maker m = {.rows = 64,
                           .k = 512,
                           .group = 32,
                           .bits = 4,
                           .scale = DT_BF16,
                           .source = DT_BF16,
                           .seed = 3};
    struct grid_made g;
    struct grid_report r, sample;
    grid_make(&m, &g);
    int64_t at = 33 * 512 + 40; /* in a row that the sample does not see */
    struct rng rng = {6, 0};
    for (int64_t i = at; i < at + 20; i++)
        put_value(g.data, DT_BF16, i, round_to(DT_BF16, 0.01 * rng_normal(&rng)));
    look(&g.w, false, &r);
    look(&g.w, true, &sample);
    ck_assert(!grid_is_on(&r));
    ck_assert_int_eq(r.units, 64 * 16);
    ck_assert_int_eq(r.on, 64 * 16 - 1);
    ck_assert(grid_is_on(&sample) && !sample.whole);
    struct err e = {.text = ""};
    struct grid_form f = {GRID_SYMMETRIC, 4, 32, DT_BF16};
    uint8_t codes[256], scales[32], biases[32];
    ck_assert_int_eq(grid_encode(&g.w, &f, 33, 1, codes, scales, biases, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "row 33, columns from 32"));
    grid_unmake(&g);
}
END_TEST

START_TEST(values_that_are_on_no_grid)
{
    uint8_t data[4 * 2 * 64] = {0};
    struct rng rng = {5, 0};
    struct grid_report r;
    struct ckpt_weight w = {.name = "w.weight",
                            .enc = CKPT_DENSE,
                            .dtype = DT_BF16,
                            .n_dim = 2,
                            .dim = {4, 64},
                            .data = data,
                            .bytes = sizeof data};
    look(&w, false, &r); /* all zero: on every grid, and nothing to recover */
    ck_assert(!grid_is_on(&r));
    for (int i = 0; i < 4 * 64; i++)
        put_value(data, DT_BF16, i, (float)rng_normal(&rng));
    look(&w, false, &r);
    ck_assert_int_eq(r.form.kind, GRID_NONE);
    static const uint16_t odd[] = {0x7fc0, 0x7f80, 0xff80, 0xffc1, 0x7f7f, 0x0001, 0x8001};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        store_u16(data + 2 * (64 + i), odd[i]);
        look(&w, false, &r);
        ck_assert(!grid_is_on(&r));
    }
}
END_TEST

START_TEST(zero_rows_and_negative_zero_are_held)
{
    struct grid_maker m = {.rows = 8,
                           .k = 128,
                           .group = 32,
                           .bits = 4,
                           .scale = DT_BF16,
                           .source = DT_BF16,
                           .seed = 4};
    struct grid_made g;
    struct grid_report r;
    grid_make(&m, &g);
    memset(g.data + 2 * 128, 0, 2 * 128);
    for (int64_t i = 0; i < 128; i++)
        g.code[128 + i] = 0;
    for (int64_t i = 0; i < 8 * 128; i++)
        if (g.code[i] == 0)
            store_u16(g.data + 2 * i, 0x8000);
    look(&g.w, false, &r);
    ck_assert(grid_is_on(&r));
    ck_assert_int_eq(r.zero, 4);
    prove(&g, &r.form);
    grid_unmake(&g);
}
END_TEST

/* Code 20 of this grid is 2^-25.2 below zero, which is zero in f16: its place is not exact. */
START_TEST(a_value_that_rounds_to_zero_leaves_room)
{
    struct grid_maker m = {.rows = 1,
                           .k = 32,
                           .group = 32,
                           .bits = 5,
                           .offset = true,
                           .scale = DT_F32,
                           .source = DT_F16};
    struct grid_made g;
    struct grid_report r;
    grid_make(&m, &g);
    for (int i = 0; i < 32; i++) {
        g.code[i] = (int16_t)i;
        float v = round_once(DT_F16, i * (double)0x1.c15ae8p-12f + (double)-0x1.18d90ap-7f);
        put_value(g.data, DT_F16, i, v);
        ck_assert(v != 0 || i == 20);
    }
    look(&g.w, false, &r);
    ck_assert(grid_is_on(&r));
    ck_assert_int_eq(prove(&g, &r.form), 32);
    grid_unmake(&g);
}
END_TEST

/* The loops for AVX2 against those for any processor, unit by unit. */
START_TEST(instruction_sets_agree)
{
    if (grid_ops_best() == &grid_ops_c)
        return;
    for (int i = 0; i < 6; i++) {
        struct grid_maker m = {.rows = 8,
                               .k = 512,
                               .group = 32,
                               .bits = i < 2   ? 4
                                       : i < 4 ? 8
                                               : 5,
                               .scale = DT_F16,
                               .source = DT_BF16,
                               .offset = i >= 4,
                               .codes = i % 2 ? CODES_HEAVY : CODES_GAUSSIAN,
                               .seed = 20};
        enum grid_kind kind = m.offset ? GRID_OFFSET : GRID_SYMMETRIC;
        struct grid_made g;
        struct grid_unit a, b;
        struct err e = {.text = ""};
        grid_make(&m, &g);
        ck_assert_int_eq(grid_unit_new(&a, 32, 32, DT_BF16, &e), ERR_OK);
        ck_assert_int_eq(grid_unit_new(&b, 32, 32, DT_BF16, &e), ERR_OK);
        for (int64_t u = 0; u < m.rows * m.k / 32; u++) {
            struct grid_found x, y;
            uint8_t c[32], d[32];
            grid_ops_c.load(&a, g.data + 64 * u);
            grid_ops_best()->load(&b, g.data + 64 * u);
            ck_assert_mem_eq(a.lo, b.lo, 32 * sizeof(double));
            ck_assert_mem_eq(a.hi, b.hi, 32 * sizeof(double));
            ck_assert(grid_unit_find(&a, &grid_ops_c, kind, m.bits, 7, &x));
            ck_assert(grid_unit_find(&b, grid_ops_best(), kind, m.bits, 7, &y));
            grid_ops_c.codes(&a, x.zero, !m.offset, x.mirrored, c);
            grid_ops_best()->codes(&b, y.zero, !m.offset, y.mirrored, d);
            ck_assert(x.scale == y.scale && x.bias == y.bias && x.type == y.type);
            ck_assert_mem_eq(c, d, 32);
            float s = fabsf(y.scale);
            memcpy(b.q, b.best, 32 * sizeof *b.q);
            ck_assert(m.offset || grid_ops_best()->check_scaled(&b, s));
            ck_assert(m.offset || !grid_ops_best()->check_scaled(&b, s * 1.03125f));
            ck_assert(!m.offset || grid_ops_best()->check_offset(&b, s, y.bias));
            ck_assert(!m.offset || !grid_ops_best()->check_offset(&b, s * 1.03125f, y.bias));
        }
        grid_unit_free(&a);
        grid_unit_free(&b);
        grid_unmake(&g);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("qat_grid");
    TCase *t = tcase_create("grids");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, made_grids_come_back, 0, 11);
    tcase_add_test(t, a_unit_with_ties_comes_back);
    tcase_add_loop_test(t, a_zero_point_is_found, 0, 2);
    tcase_add_test(t, one_unit_off_the_grid_is_told);
    tcase_add_test(t, values_that_are_on_no_grid);
    tcase_add_test(t, zero_rows_and_negative_zero_are_held);
    tcase_add_test(t, a_value_that_rounds_to_zero_leaves_room);
    tcase_add_test(t, instruction_sets_agree);
    suite_add_tcase(s, t);
    return s;
}
