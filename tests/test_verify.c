/* test_verify.c: a folder that is what it says passes; one changed byte or figure does not. */
#include "quant/verify.h"

#include "quant/manifest.h"
#include "tests/quant_make.h"

#define RULES                                                                                      \
    "- bits: 4\n- match: \"*.v_proj.weight\"\n  bits: 3\n  group: 32\n  scale: f32\n"              \
    "- match: \"*.down_proj.weight\"\n  format: mxfp4\n"                                           \
    "- match: \"*.gate_proj.weight\"\n  format: nvfp4\n"                                           \
    "- match: \"*.o_proj.weight\"\n  format: mxfp8\n"

static void make(struct quant_bed *b)
{
    struct err e = {.text = ""};
    bed_model(b);
    bed_open(b);
    bed_plan(b, RULES);
    ck_assert_msg(bed_run(b, b->out, 2, &e) == ERR_OK, "%s", e.text);
}

static enum err_code verify(const struct quant_bed *b, struct err *e)
{
    struct pack_options o = {.threads = 2, .isa = affine_isa_best()};
    return verify_folder(b->p, b->out, &o, e);
}

static void patch(const char *dir, const char *name, size_t at, char flip)
{
    struct strbuf text = bed_file(dir, name);
    char *path = io_join(dir, name);
    ck_assert_uint_lt(at, text.len);
    text.data[at] = (char)(text.data[at] ^ flip);
    ck_assert_int_eq(io_write_all(path, text.data, text.len, true, NULL), ERR_OK);
    strbuf_free(&text);
    free(path);
}

START_TEST(what_was_written_is_derived_again)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    make(&b);
    ck_assert_msg(verify(&b, &e) == ERR_OK, "%s", e.text);
    bed_close(&b);
}
END_TEST

START_TEST(any_changed_byte_of_a_tensor_is_found)
{
    struct quant_bed b;
    make(&b);
    struct strbuf file = bed_file(b.out, "model.safetensors");
    size_t begin = (size_t)load_u64(file.data) + 8, len = file.len;
    strbuf_free(&file);
    for (size_t at = begin; at < len; at += (len - begin) / 13) {
        struct err e = {.text = ""};
        patch(b.out, "model.safetensors", at, 1);
        ck_assert_int_eq(verify(&b, &e), ERR_NEGATIVE);
        ck_assert_ptr_nonnull(strstr(e.text, "model.safetensors"));
        patch(b.out, "model.safetensors", at, 1);
    }
    bed_close(&b);
}
END_TEST

/* Hashes made to fit the change do not help: the values are derived from the source. */
START_TEST(a_change_with_its_hashes_made_to_fit_is_found)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    make(&b);
    for (size_t i = 0; i < b.p->n_items; i++) {
        struct plan_item *it = &b.p->items[i];
        if (strcmp(it->w->name, "model.layers.1.mlp.up_proj.weight") == 0)
            plan_set_packed(it, PLAN_ENCODE, (struct qformat){4, 32, DT_BF16});
    }
    ck_assert_int_eq(verify(&b, &e), ERR_NEGATIVE);
    ck_assert_ptr_nonnull(strstr(e.text, "model.layers.1.mlp.up_proj.weight"));
    bed_close(&b);
}
END_TEST

START_TEST(a_changed_figure_of_the_manifest_is_found)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    make(&b);
    struct strbuf text = bed_file(b.out, MANIFEST_NAME);
    char *at = strstr(text.data, "\"relative_rms\": 0.0");
    ck_assert_ptr_nonnull(at);
    patch(b.out, MANIFEST_NAME, (size_t)(at - text.data) + strlen("\"relative_rms\": 0.0"), 1);
    ck_assert_int_eq(verify(&b, &e), ERR_NEGATIVE);
    ck_assert_ptr_nonnull(strstr(e.text, "relative RMS"));
    strbuf_free(&text);
    bed_close(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("verify");
    TCase *t = tcase_create("verify");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, what_was_written_is_derived_again);
    tcase_add_test(t, any_changed_byte_of_a_tensor_is_found);
    tcase_add_test(t, a_change_with_its_hashes_made_to_fit_is_found);
    tcase_add_test(t, a_changed_figure_of_the_manifest_is_found);
    suite_add_tcase(s, t);
    return s;
}
