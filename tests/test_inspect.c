/* test_inspect.c: the facts of every kind of checkpoint, and of those that cannot be run. */
#include "convert/inspect.h"

#include "tests/check_main.h"
#include "tests/ckpt_make.h"

static char dir[64];

static void setup(void)
{
    ck_assert_ptr_nonnull(make_folder(dir));
}

static void teardown(void)
{
    remove_folder(dir);
}

static void put_folder(const char *config, bool packed)
{
    struct strbuf b = {0};
    tiny_st(&b, packed);
    write_file(dir, "model.safetensors", b.data, b.len);
    write_text(dir, "config.json", config);
    strbuf_free(&b);
}

static json_t *facts_of(const char *path, bool hash)
{
    struct checkpoint *c = NULL;
    json_t *facts = NULL;
    struct err e = {.text = ""};
    ck_assert_msg(checkpoint_open(&c, path, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(inspect_checkpoint(c, &(struct inspect_options){.hashes = hash}, &facts, &e) ==
                      ERR_OK,
                  "%s", e.text);
    checkpoint_close(c);
    return facts;
}

static const char *text_at(const json_t *facts, const char *key)
{
    const char *s = json_string_value(json_object_get(facts, key));
    return s ? s : "";
}

static long long int_at(const json_t *facts, const char *key)
{
    return (long long)json_integer_value(json_object_get(facts, key));
}

START_TEST(each_container_is_named_with_its_family)
{
    struct strbuf b = {0};
    char path[128];
    put_folder(TINY_CONFIG "}", false);
    json_t *f = facts_of(dir, false);
    ck_assert_str_eq(text_at(f, "container"), "hf");
    ck_assert_str_eq(text_at(f, "family"), "llama");
    ck_assert(json_is_true(json_object_get(f, "runs")));
    ck_assert_int_eq(int_at(json_object_get(f, "hyperparameters"), "layers"), 2);
    json_decref(f);
    put_folder(TINY_CONFIG TINY_QUANT "}", true);
    f = facts_of(dir, false);
    ck_assert_str_eq(text_at(f, "container"), "mlx");
    json_decref(f);
    tiny_gguf(&b);
    write_file(dir, "t.gguf", b.data, b.len);
    strbuf_free(&b);
    snprintf(path, sizeof path, "%s/t.gguf", dir);
    f = facts_of(path, false);
    ck_assert_str_eq(text_at(f, "container"), "gguf");
    ck_assert(json_is_true(json_object_get(f, "tokenizer")));
    json_decref(f);
}
END_TEST

START_TEST(bytes_by_role_add_up_to_the_total)
{
    static const char *const lists[] = {"roles", "formats"};
    put_folder(TINY_CONFIG TINY_QUANT "}", true);
    json_t *f = facts_of(dir, false), *o;
    const json_t *t = json_object_get(f, "totals");
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
        long long bytes = 0, tensors = 0;
        size_t i;
        json_array_foreach(json_object_get(f, lists[l]), i, o)
        {
            bytes += int_at(o, "bytes");
            tensors += int_at(o, "tensors");
        }
        ck_assert_int_eq(bytes, int_at(t, "bytes"));
        ck_assert_int_eq(tensors, int_at(t, "tensors"));
    }
    /* 4 bits and, a group of 32, two bf16 numbers */
    ck_assert_double_eq_tol(json_real_value(json_object_get(t, "matrix_bits_per_weight")), 5.0,
                            1e-9);
    json_decref(f);
}
END_TEST

START_TEST(a_family_that_cannot_be_run_is_listed_with_the_reason)
{
    put_folder("{\"model_type\":\"unheard_of\",\"hidden_size\":64}", false);
    json_t *f = facts_of(dir, true);
    ck_assert(json_is_false(json_object_get(f, "runs")));
    ck_assert_str_eq(text_at(f, "family"), "unheard_of");
    ck_assert_str_ne(text_at(f, "why_not"), "");
    ck_assert_uint_gt(json_array_size(json_object_get(f, "tensors")), 10);
    const json_t *file = json_array_get(json_object_get(f, "files"), 0);
    ck_assert_uint_eq(strlen(text_at(file, "sha256")), 64);
    struct strbuf text = {0};
    inspect_text(f, &text);
    ck_assert_ptr_nonnull(strstr(text.data, "cannot be run"));
    strbuf_free(&text);
    json_decref(f);
}
END_TEST

START_TEST(a_lone_file_is_shown_as_its_tensors)
{
    struct container *c = NULL;
    json_t *f = NULL;
    struct err e = {.text = ""};
    char path[128];
    put_folder(TINY_CONFIG TINY_QUANT "}", true);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_msg(container_open(&c, path, &e) == ERR_OK, "%s", e.text);
    ck_assert_int_eq(inspect_container(c, "because", true, &f, &e), ERR_OK);
    ck_assert_uint_eq(json_array_size(json_object_get(f, "tensors")), c->n_tensors);
    ck_assert_str_eq(text_at(f, "why_not"), "because");
    struct strbuf text = {0};
    inspect_text(f, &text);
    ck_assert_ptr_nonnull(strstr(text.data, "model.embed_tokens.scales"));
    ck_assert_ptr_null(strstr(text.data, "matrices"));
    strbuf_free(&text);
    json_decref(f);
    container_close(c);
}
END_TEST

START_TEST(a_config_alone_says_what_its_model_has)
{
    json_t *f = NULL;
    struct err e = {.text = ""};
    struct strbuf text = {0};
    ck_assert_msg(inspect_config(TEST_GOLDEN "/configs/gemma-4-e2b.json", &f, &e) == ERR_OK, "%s",
                  e.text);
    const json_t *hp = json_object_get(f, "hyperparameters");
    const json_t *kv = json_object_get(hp, "layer_kv"), *all = json_object_get(f, "totals");
    ck_assert_str_eq(text_at(f, "container"), "config");
    ck_assert(json_integer_value(json_object_get(all, "weights")) == 4628569379);
    ck_assert(json_integer_value(json_object_get(all, "bytes")) == 2 * 4628569379);
    ck_assert_uint_eq(json_array_size(kv), 35);
    ck_assert_int_eq(json_integer_value(json_array_get(kv, 34)), 14);
    ck_assert_int_eq(json_integer_value(json_object_get(hp, "kv_values_per_token")), 9216);
    ck_assert_int_eq(json_integer_value(json_object_get(hp, "layer_input")), 256);
    ck_assert_int_eq(json_integer_value(json_object_get(hp, "d_ff_sharing")), 12288);
    inspect_text(f, &text);
    ck_assert_ptr_nonnull(strstr(text.data, "model.embed_tokens_per_layer.weight"));
    ck_assert_ptr_null(strstr(text.data, "model.layers.15.self_attn.k_proj.weight"));
    strbuf_free(&text);
    json_decref(f);
    ck_assert(inspect_config(TEST_GOLDEN "/configs/gemma-4-26b-a4b.json", &f, &e) == ERR_OK);
    hp = json_object_get(f, "hyperparameters");
    ck_assert(json_is_true(json_object_get(hp, "experts_beside_mlp")));
    ck_assert_int_eq(json_integer_value(json_object_get(hp, "d_ff_expert")), 704);
    json_decref(f);
    write_text(dir, "c.json", "{\"model_type\":\"unheard_of\"}");
    const char *path = test_path(dir, "c.json");
    ck_assert_int_eq(inspect_config(path, &f, &e), ERR_INPUT);
    ck_assert(!f && strstr(e.text, path) && strstr(e.text, "'unheard_of'"));
    ck_assert_int_ne(inspect_config(test_path(dir, "none.json"), &f, &e), ERR_OK);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("inspect");
    TCase *t = tcase_create("facts");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, each_container_is_named_with_its_family);
    tcase_add_test(t, bytes_by_role_add_up_to_the_total);
    tcase_add_test(t, a_family_that_cannot_be_run_is_listed_with_the_reason);
    tcase_add_test(t, a_lone_file_is_shown_as_its_tensors);
    tcase_add_test(t, a_config_alone_says_what_its_model_has);
    suite_add_tcase(s, t);
    return s;
}
