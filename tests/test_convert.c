/* test_convert.c: repacking without loss, expansion by rule 1, dense types. */
#include "convert/convert.h"

#include <math.h>

#include "quant/quantize.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"
#include "common/io.h"

static char dir[64];

/* The tiny Llama with one type of block a matrix. MXFP4's exponents are set, since 255 is
 * forbidden. */
static void put_gguf(struct strbuf *out)
{
    static const struct {
        const char *name;
        int64_t rows, k;
        int type;
    } parts[] = {{"attn_norm", 0, 64, GGML_F32},     {"attn_q", 64, 64, GGML_Q4_0},
                 {"attn_k", 32, 64, GGML_Q4_1},      {"attn_v", 32, 64, GGML_Q5_0},
                 {"attn_output", 64, 64, GGML_Q5_1}, {"ffn_norm", 0, 64, GGML_F32},
                 {"ffn_gate", 96, 64, GGML_Q8_0},    {"ffn_up", 96, 64, GGML_F16}};
    struct gguf_maker m = {.rng = {1, 0}};
    uint8_t mx[64 * 3 * 17];
    char name[64];
    for (size_t i = 0; i < sizeof mx; i++)
        mx[i] = i % 17 ? (uint8_t)rng_next(&m.rng) : 122;
    tiny_gguf_keys(&m);
    tiny_gguf_vocab(&m);
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, TINY_VOCAB, 64, NULL);
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].name);
            gguf_tensor(&m, name, parts[i].type, parts[i].rows, parts[i].k, NULL);
        }
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        gguf_tensor(&m, name, GGML_MXFP4, 64, 96, mx);
    }
    gguf_tensor(&m, "output_norm.weight", GGML_F32, 0, 64, NULL);
    gguf_finish(&m, out);
}

static void setup(void)
{
    struct strbuf b = {0};
    ck_assert_ptr_nonnull(make_folder(dir));
    put_gguf(&b);
    write_file(dir, "tiny.gguf", b.data, b.len);
    strbuf_free(&b);
}

static void teardown(void)
{
    remove_folder(dir);
}

static const char *in(const char *name)
{
    static char paths[4][128];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", dir, name);
    return paths[next];
}

static struct checkpoint *opened(const char *name)
{
    struct checkpoint *c = NULL;
    struct err e = {.text = ""};
    ck_assert_msg(checkpoint_open(&c, in(name), &e) == ERR_OK, "%s", e.text);
    return c;
}

static enum err_code convert(const char *from, const char *to, struct convert_options o,
                             struct quantize_summary *s, struct err *e)
{
    struct checkpoint *c = opened(from);
    struct plan *p = NULL;
    enum err_code rc = convert_plan(&p, c, &o, e);
    json_t *options = convert_options_json(&o);
    struct quantize_job j = {.plan = p,
                             .out = in(to),
                             .command = "convert",
                             .options = options,
                             .torch_dtype = convert_torch_dtype(&o),
                             .verify = true};
    j.pack.threads = 2;
    if (rc == ERR_OK)
        rc = quantize_run(&j, s, e);
    json_decref(options);
    plan_free(p);
    checkpoint_close(c);
    return rc;
}

static const struct convert_options as_is = {DT_UNKNOWN, DT_UNKNOWN, DT_BF16};

static float *values(const struct ckpt_weight *w, int64_t *n)
{
    *n = ckpt_weight_rows(w) * ckpt_weight_k(w);
    float *v = malloc((size_t)*n * sizeof *v);
    ck_assert_int_eq(ckpt_weight_decode(w, 0, ckpt_weight_rows(w), v, NULL), ERR_OK);
    return v;
}

START_TEST(blocks_with_a_packed_form_keep_every_value)
{
    struct quantize_summary s;
    struct err e = {.text = ""};
    ck_assert_msg(convert("tiny.gguf", "packed", as_is, &s, &e) == ERR_OK, "%s", e.text);
    struct checkpoint *a = opened("tiny.gguf"), *b = opened("packed");
    ck_assert_uint_eq(a->n_weights, b->n_weights);
    size_t repacked = 0;
    for (size_t i = 0; i < a->n_weights; i++) {
        const struct ckpt_weight *x = &a->weights[i], *y = &b->weights[i];
        int64_t n;
        ck_assert_str_eq(x->name, y->name);
        float *v = values(x, &n), *w = values(y, &n);
        bool rounded = x->enc == CKPT_GGML && y->enc == CKPT_DENSE;
        for (int64_t k = 0; k < n; k++)
            ck_assert(rounded ? w[k] == bf16_to_f32(bf16_from_f32(v[k])) : w[k] == v[k]);
        repacked += x->enc == CKPT_GGML && ckpt_weight_packed(y);
        if (x->enc == CKPT_GGML && x->ggml == GGML_MXFP4)
            ck_assert(y->enc == CKPT_MX && qformat_same(y->q, QFORMAT_MXFP4));
        free(v);
        free(w);
    }
    ck_assert_uint_eq(repacked, 13); /* all matrices but F16 */
    ck_assert_ptr_nonnull(b->tokenizer_json);
    ck_assert_ptr_nonnull(b->chat_template);
    checkpoint_close(a);
    checkpoint_close(b);
}
END_TEST

START_TEST(expansion_is_one_rounding_of_the_packed_value)
{
    struct quantize_summary s;
    struct err e = {.text = ""};
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    static const char *const names[] = {"bf16", "f16", "f32"};
    ck_assert_int_eq(convert("tiny.gguf", "packed", as_is, &s, &e), ERR_OK);
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct convert_options o = {types[t], DT_UNKNOWN, DT_BF16};
        ck_assert_msg(convert("packed", names[t], o, &s, &e) == ERR_OK, "%s", e.text);
        struct checkpoint *a = opened("packed"), *b = opened(names[t]);
        for (size_t i = 0; i < a->n_weights; i++) {
            const struct ckpt_weight *x = &a->weights[i], *y = &b->weights[i];
            ck_assert_int_eq(y->enc, CKPT_DENSE);
            ck_assert_int_eq(y->dtype, ckpt_weight_packed(x) ? types[t] : x->dtype);
            if (!ckpt_weight_packed(x))
                continue;
            int64_t n, k = ckpt_weight_k(x), g = k / x->q.group;
            float *w = values(y, &n);
            for (int64_t j = 0; j < n; j++) {
                const uint8_t *row = x->data + (size_t)(j / k) * qformat_row_bytes(x->q, k);
                uint32_t q = qformat_code(row, x->q.bits, j % k);
                int64_t at = j / k * g + j % k / x->q.group;
                float sc = qformat_scale(x->scales, x->q.scale, at);
                bool mx = x->enc == CKPT_MX; /* e2m1 times a power of two: exact in bf16 */
                float bi = mx ? 0 : qformat_scale(x->biases, x->q.scale, at);
                float exact = mx ? e2m1_to_f32(q) * sc : fmaf((float)q, sc, bi);
                float want = types[t] == DT_F32   ? exact
                             : types[t] == DT_F16 ? f16_to_f32(f16_from_f32(exact))
                             : mx                 ? bf16_to_f32(bf16_from_f32(exact))
                                  : bf16_to_f32(qformat_bf16(q, sc, bi, x->q.scale));
                ck_assert(w[j] == want);
            }
            free(w);
        }
        checkpoint_close(a);
        checkpoint_close(b);
    }
}
END_TEST

START_TEST(packed_and_blocks_expand_to_the_same_bytes)
{
    struct quantize_summary s;
    struct err e = {.text = ""};
    struct convert_options o = {DT_BF16, DT_UNKNOWN, DT_BF16};
    ck_assert_int_eq(convert("tiny.gguf", "packed", as_is, &s, &e), ERR_OK);
    ck_assert_int_eq(convert("tiny.gguf", "direct", o, &s, &e), ERR_OK);
    ck_assert_int_eq(convert("packed", "twostep", o, &s, &e), ERR_OK);
    struct checkpoint *a = opened("direct"), *b = opened("twostep");
    for (size_t i = 0; i < a->n_weights; i++) {
        ck_assert_uint_eq(a->weights[i].bytes, b->weights[i].bytes);
        ck_assert_msg(memcmp(a->weights[i].data, b->weights[i].data, a->weights[i].bytes) == 0,
                      "%s", a->weights[i].name);
    }
    checkpoint_close(a);
    checkpoint_close(b);
}
END_TEST

START_TEST(dense_tensors_keep_their_type_unless_told)
{
    struct quantize_summary s;
    struct err e = {.text = ""};
    struct convert_options o = {DT_UNKNOWN, DT_BF16, DT_F32};
    ck_assert_int_eq(convert("tiny.gguf", "typed", o, &s, &e), ERR_OK);
    ck_assert_uint_lt(s.n_exact, s.n_tensors);
    struct checkpoint *a = opened("tiny.gguf"), *b = opened("typed");
    for (size_t i = 0; i < a->n_weights; i++) {
        const struct ckpt_weight *x = &a->weights[i], *y = &b->weights[i];
        if (x->enc == CKPT_DENSE)
            ck_assert_int_eq(y->dtype, DT_BF16);
        else if (y->enc == CKPT_DENSE) /* --rest */
            ck_assert_int_eq(y->dtype, DT_F32);
    }
    checkpoint_close(a);
    checkpoint_close(b);
}
END_TEST

START_TEST(output_equal_to_input_is_refused)
{
    struct quantize_summary s;
    struct err e = {.text = ""};
    ck_assert_int_eq(convert("tiny.gguf", "packed", as_is, &s, &e), ERR_OK);
    ck_assert_int_eq(convert("packed", "packed", as_is, &s, &e), ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, "same"));
    ck_assert_int_eq(convert("tiny.gguf", ".", as_is, &s, &e), ERR_USAGE);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("convert");
    TCase *t = tcase_create("conversions");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, blocks_with_a_packed_form_keep_every_value);
    tcase_add_test(t, expansion_is_one_rounding_of_the_packed_value);
    tcase_add_test(t, packed_and_blocks_expand_to_the_same_bytes);
    tcase_add_test(t, dense_tensors_keep_their_type_unless_told);
    tcase_add_test(t, output_equal_to_input_is_refused);
    suite_add_tcase(s, t);
    return s;
}
