/* test_manifest.c: what assay.json says, and what it never says. */
#include "quant/manifest.h"

#include "common/hash.h"
#include "tests/quant_make.h"

static json_t *manifest_of(const struct quant_bed *b, const char *dir)
{
    json_t *m = NULL;
    struct err e = {.text = ""};
    char *path = io_join(dir, MANIFEST_NAME);
    (void)b;
    ck_assert_msg(json_read(path, &m, &e) == ERR_OK, "%s", e.text);
    free(path);
    return m;
}

START_TEST(every_tensor_has_format_bytes_hash_and_errors)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n- role: embedding\n  keep: true\n");
    ck_assert_int_eq(bed_run(&b, b.out, 2, NULL), ERR_OK);
    json_t *m = manifest_of(&b, b.out), *t;
    size_t i, exact = 0;
    ck_assert_uint_eq(json_array_size(json_object_get(m, "tensors")), b.c->n_weights);
    json_array_foreach(json_object_get(m, "tensors"), i, t)
    {
        const json_t *err = json_object_get(t, "error");
        const struct plan_item *it = &b.p->items[i];
        ck_assert_uint_eq(strlen(json_string_value(json_object_get(t, "sha256"))), 64);
        ck_assert_uint_eq((uint64_t)json_integer_value(json_object_get(t, "bytes")),
                          plan_item_bytes(it));
        double rel = json_number_value(json_object_get(err, "relative_rms"));
        bool same = json_is_true(json_object_get(t, "exact"));
        exact += same;
        ck_assert(same == !it->packed && same == (rel == 0.0));
        ck_assert(same == json_is_null(json_object_get(err, "sqnr_db")));
        if (!same) {
            ck_assert(rel > 0.05 && rel < 0.15);
            ck_assert(json_real_value(json_object_get(err, "cosine")) > 0.98);
            ck_assert(json_integer_value(json_object_get(t, "rule_line")) == 3);
        }
    }
    ck_assert_uint_gt(exact, 0);
    json_decref(m);
    bed_close(&b);
}
END_TEST

START_TEST(the_recipe_and_every_file_are_in_it_by_hash)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n");
    ck_assert_int_eq(bed_run(&b, b.out, 2, NULL), ERR_OK);
    json_t *m = manifest_of(&b, b.out), *f;
    const json_t *recipe = json_object_get(m, "recipe");
    ck_assert_str_eq(json_string_value(json_object_get(recipe, "text")), b.r->text);
    ck_assert_str_eq(json_string_value(json_object_get(recipe, "sha256")), b.r->sha256);
    static const char *const lists[] = {"sources", "files"};
    for (size_t l = 0; l < 2; l++) {
        size_t i;
        ck_assert_uint_gt(json_array_size(json_object_get(m, lists[l])), 0);
        json_array_foreach(json_object_get(m, lists[l]), i, f)
        {
            char hex[SHA256_HEX];
            char *path =
                io_join(l ? b.out : b.source, json_string_value(json_object_get(f, "name")));
            ck_assert_int_eq(sha256_file(path, hex, NULL), ERR_OK);
            ck_assert_str_eq(hex, json_string_value(json_object_get(f, "sha256")));
            free(path);
        }
    }
    json_decref(m);
    bed_close(&b);
}
END_TEST

START_TEST(no_path_and_no_place_of_the_run_is_in_it)
{
    struct quant_bed a, b;
    bed_model(&a);
    bed_model(&b);
    bed_open(&a);
    bed_open(&b);
    bed_plan(&a, "- bits: 4\n");
    bed_plan(&b, "- bits: 4\n");
    ck_assert_str_ne(a.dir, b.dir);
    ck_assert_int_eq(bed_run(&a, a.out, 1, NULL), ERR_OK);
    ck_assert_int_eq(bed_run(&b, b.out, 3, NULL), ERR_OK);
    bed_same_file(a.out, b.out, MANIFEST_NAME);
    struct strbuf text = bed_file(a.out, MANIFEST_NAME);
    ck_assert_ptr_null(strstr(text.data, a.dir));
    ck_assert_ptr_null(strstr(text.data, "/"));
    strbuf_free(&text);
    bed_close(&a);
    bed_close(&b);
}
END_TEST

START_TEST(the_source_s_own_manifest_becomes_the_origin)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    char again[700];
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 8\n");
    ck_assert_int_eq(bed_run(&b, b.out, 1, NULL), ERR_OK);
    char first[SHA256_HEX];
    memcpy(first, b.r->sha256, sizeof first);
    checkpoint_close(b.c);
    ck_assert_msg(checkpoint_open(&b.c, b.out, &e) == ERR_OK, "%s", e.text);
    bed_plan(&b, "- bits: 4\n");
    snprintf(again, sizeof again, "%s/again", b.dir);
    ck_assert_int_eq(bed_run(&b, again, 1, NULL), ERR_OK);
    json_t *m = manifest_of(&b, again);
    const json_t *origin = json_object_get(m, "origin");
    ck_assert_str_eq(json_string_value(json_object_get(origin, "recipe_sha256")), first);
    json_decref(m);
    bed_close(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("manifest");
    TCase *t = tcase_create("manifest");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, every_tensor_has_format_bytes_hash_and_errors);
    tcase_add_test(t, the_recipe_and_every_file_are_in_it_by_hash);
    tcase_add_test(t, no_path_and_no_place_of_the_run_is_in_it);
    tcase_add_test(t, the_source_s_own_manifest_becomes_the_origin);
    suite_add_tcase(s, t);
    return s;
}
