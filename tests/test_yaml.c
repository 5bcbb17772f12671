/* test_yaml.c: a recipe-like schema, and every fault with its line. */
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/yaml.h"
#include "tests/check_main.h"

enum scale { SCALE_BF16, SCALE_F32 };

struct rule {
    char *match;
    int bits;
    enum scale scale;
};

struct recipe {
    char *name;
    struct rule *rules;
    unsigned n_rules;
};

static const cyaml_strval_t scales[] = {{"bf16", SCALE_BF16}, {"f32", SCALE_F32}};
static const cyaml_schema_field_t rule_fields[] = {
    CYAML_FIELD_STRING_PTR("match", CYAML_FLAG_POINTER, struct rule, match, 0, CYAML_UNLIMITED),
    CYAML_FIELD_INT("bits", CYAML_FLAG_OPTIONAL, struct rule, bits),
    CYAML_FIELD_ENUM("scale", CYAML_FLAG_OPTIONAL | CYAML_FLAG_STRICT, struct rule, scale, scales,
                     2),
    CYAML_FIELD_END};
static const cyaml_schema_value_t rule_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct rule, rule_fields)};
static const cyaml_schema_field_t recipe_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct recipe, name, 0, CYAML_UNLIMITED),
    CYAML_FIELD_SEQUENCE_COUNT("rules", CYAML_FLAG_POINTER, struct recipe, rules, n_rules,
                               &rule_schema, 0, CYAML_UNLIMITED),
    CYAML_FIELD_END};
static const cyaml_schema_value_t schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct recipe, recipe_fields)};

static const char good[] = "# a comment\n"
                           "name: 'mixed'\n"
                           "rules:\n"
                           "  - match: '*.q_proj'\n"
                           "    bits: 4\n"
                           "\n"
                           "  - {match: x, scale: f32}\n";

START_TEST(a_good_text_fills_the_structs_and_tells_its_lines)
{
    void *data;
    int64_t lines[2] = {0};
    size_t n;
    struct err e = {.text = ""};
    ck_assert_int_eq(yaml_load(good, strlen(good), "r.yaml", &schema, &data, &e), ERR_OK);
    const struct recipe *r = data;
    ck_assert_str_eq(r->name, "mixed");
    ck_assert_uint_eq(r->n_rules, 2);
    ck_assert_str_eq(r->rules[0].match, "*.q_proj");
    ck_assert_int_eq(r->rules[0].bits, 4);
    ck_assert_int_eq(r->rules[1].scale, SCALE_F32);
    yaml_release(&schema, data);
    yaml_release(&schema, NULL);
    ck_assert_int_eq(yaml_item_lines(good, strlen(good), "r", "rules", lines, 2, &n, &e), ERR_OK);
    ck_assert(n == 2 && lines[0] == 4 && lines[1] == 7);
    lines[1] = -1;
    ck_assert_int_eq(yaml_item_lines(good, strlen(good), "r", "rules", lines, 1, &n, &e), ERR_OK);
    ck_assert(n == 2 && lines[1] == -1);
    ck_assert_int_eq(yaml_item_lines(good, strlen(good), "r", "name", lines, 1, &n, &e), ERR_OK);
    ck_assert_uint_eq(n, 0);
}
END_TEST

static const struct {
    const char *text, *said;
} faults[] = {
    {"name: x\nrules:\n - match: a\n   bitz: 4\n",
     "r.yaml: line 4, column 4: unknown key 'bitz'; did you mean 'bits'?"},
    {"name: x\nrules: []\nmodel: y\n",
     "r.yaml: line 3, column 1: unknown key 'model'; known are name, rules"},
    {"name: x\nrules:\n - match: a\n   scale: f23\n",
     "r.yaml: line 4, column 11: found 'f23', expected one of bf16, f32; did you mean 'f32'?"},
    {"name: x\nrules: []\nname: y\n",
     "r.yaml: line 3, column 1: key 'name' again, first on line 1"},
    {"name: x\nrules:\n - match: a\n   bits: 4x\n",
     "r.yaml: line 4, column 10: found '4x', expected an integer of 32 bits"},
    {"name: x\nrules:\n - match: a\n   bits: 2147483648\n", "line 4, column 10: found"},
    {"name: x\nrules:\n - match: a\n   bits: 0x4\n", "line 4, column 10: found"},
    {"name: x\nrules:\n - match: a\n   bits:\n", "line 4"},
    {"name: x\nrules:\n - match: a\n   bits: [4]\n", "line 4"},
    {"rules: []\n", "Missing required mapping field: name"},
    {"name: x\nrules: 3\n", "line 2"},
    {"name: x\nrules: []\n---\nname: y\n", "line 3, column 1: a second document"},
    {"name: &a x\nrules: []\n", "line 1, column 7: anchors"},
    {"name: x\nrules: *a\n", "line 2, column 8: anchors"},
    {"- a\n", "Expecting MAPPING"},
    {"{[a]: b}", "a key that is no plain word"},
    {"", "r.yaml: is empty"},
    {"# only\n", "r.yaml: is empty"},
    {"name: [x\nrules: 3\n", "line 2, column 6"},
    {"\tname: x\n", "line 1, column 1"},
    {"name: \xff\n", "byte 6"},
};

START_TEST(every_fault_says_where_and_what)
{
    void *data;
    struct err e;
    const char *text = faults[_i].text;
    ck_assert_int_eq(yaml_load(text, strlen(text), "r.yaml", &schema, &data, &e), ERR_INPUT);
    ck_assert_ptr_null(data);
    ck_assert_msg(strstr(e.text, faults[_i].said) != NULL, "%s", e.text);
    ck_assert(strncmp(e.text, "r.yaml: ", 8) == 0);
}
END_TEST

static void assert_bounded(const char *text, size_t n, const char *said)
{
    void *data;
    struct err e;
    ck_assert_int_eq(yaml_load(text, n, "r", &schema, &data, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, said) != NULL, "%s", e.text);
}

START_TEST(depth_size_and_counts_are_bounded)
{
    size_t n = YAML_BYTES_MAX + 1;
    char *text = malloc(n);
    memset(text, '[', n);
    assert_bounded(text, n, "expected at most 1048576");
    assert_bounded(text, n - 1, "nested deeper than 32");
    memset(text, '-', n - 1);
    for (size_t i = 0; i + 2 < n; i += 3)
        memcpy(text + i, "- \n", 3);
    assert_bounded(text, n - 1 - (n - 1) % 3, "more than 100000 values");
    free(text);
}
END_TEST

START_TEST(mutated_texts_load_or_are_refused_with_words)
{
    uint64_t state = 1;
    int loaded = 0;
    for (int i = 0; i < 10000; i++) {
        /* A block of just the text's size, so that a sanitizer sees a read behind it. */
        char changed[sizeof good + 8];
        memcpy(changed, good, sizeof good - 1);
        size_t n = test_mutate(changed, sizeof good - 1, sizeof changed, &state);
        char *text = malloc(n + !n);
        memcpy(text, changed, n);
        void *data;
        int64_t lines[4];
        size_t n_lines;
        struct err e = {.text = ""};
        enum err_code rc = yaml_load(text, n, "r", &schema, &data, &e);
        ck_assert_msg(rc == ERR_OK || (rc == ERR_INPUT && e.text[0]), "%d: %s", i, e.text);
        enum err_code tree = yaml_item_lines(text, n, "r", "rules", lines, 4, &n_lines, &e);
        ck_assert(rc != ERR_OK || tree == ERR_OK);
        loaded += rc == ERR_OK;
        yaml_release(&schema, data);
        free(text);
    }
    ck_assert(loaded > 100 && loaded < 9000);
}
END_TEST

START_TEST(any_allocation_may_fail_and_nothing_is_lost)
{
    const char *path = test_path(test_folder(), "r.yaml");
    test_spill(path, good, strlen(good));
    int failed = 0;
    for (int nth = 1; nth < 100; nth++) {
        void *data;
        struct err e = {.text = ""};
        io_fault_set(IO_FAULT_ALLOC, nth);
        enum err_code rc = yaml_read(path, &schema, &data, &e);
        io_fault_set(IO_FAULT_ALLOC, 0);
        yaml_release(&schema, data);
        if (rc == ERR_OK)
            break;
        failed++;
        ck_assert_msg(rc == ERR_NOMEM, "%d: %s", nth, e.text);
    }
    ck_assert_int_ge(failed, 6);
    ck_assert_int_lt(failed, 99);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("yaml");
    TCase *t = tcase_create("yaml");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, a_good_text_fills_the_structs_and_tells_its_lines);
    tcase_add_loop_test(t, every_fault_says_where_and_what, 0, ARRAY_LEN(faults));
    tcase_add_test(t, depth_size_and_counts_are_bounded);
    tcase_add_test(t, mutated_texts_load_or_are_refused_with_words);
    tcase_add_test(t, any_allocation_may_fail_and_nothing_is_lost);
    suite_add_tcase(s, t);
    return s;
}
