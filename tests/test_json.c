/* test_json.c: what is refused, what the getters say, and bytes that come back the same. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/json.h"
#include "common/rng.h"
#include "tests/check_main.h"

static json_t *parse(const char *text)
{
    json_t *v;
    struct err e = {.text = ""};
    enum err_code rc = json_parse(text, strlen(text), &v, &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", text, e.text);
    return v;
}

static const struct {
    const char *text, *said;
} bad[] = {
    {"", "line 1"},
    {"{\"a\":1,\"a\":2}", "duplicate"},
    {"[1] x", "line 1, column 5"},
    {"[1,\n2,\n]", "line 3, column 1"},
    {"{\"a\":\"\xff\"}", "decode byte 0xff"},
    {"{\"a\":\"\\ud800\"}", ""},
    {"{\"a\\u0000b\":1}", ""},
    {"[1e999]", "overflow"},
    {"[01]", ""},
    {"[NaN]", ""},
    {"[--99999999999999999999]", ""},
};

START_TEST(what_is_no_strict_json_is_refused_with_its_place)
{
    struct err e;
    json_t *v;
    ck_assert_int_eq(json_parse(bad[_i].text, strlen(bad[_i].text), &v, &e), ERR_INPUT);
    ck_assert_ptr_null(v);
    ck_assert_ptr_nonnull(strstr(e.text, "column"));
    ck_assert_msg(strstr(e.text, bad[_i].said) != NULL, "%s", e.text);
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
    struct err e;
    json_t *v;
    char *text = malloc(1 << 20);
    memset(text, '[', 1 << 20);
    ck_assert_int_eq(json_parse(text, 1 << 20, &v, &e), ERR_INPUT);
    free(text);
}
END_TEST

START_TEST(integers_beyond_64_bits_become_reals_and_others_stay)
{
    json_t *v =
        parse("{\"n\": 1000000000000000019884624838656, \"s\": \"99999999999999999999\\\"\","
              " \"i\": [9223372036854775807, -9223372036854775808, -9223372036854775809]}");
    ck_assert(json_is_real(json_object_get(v, "n")));
    ck_assert(json_real_value(json_object_get(v, "n")) == 1000000000000000019884624838656.0);
    ck_assert_str_eq(json_string_value(json_object_get(v, "s")), "99999999999999999999\"");
    json_t *i = json_object_get(v, "i");
    ck_assert(json_integer_value(json_array_get(i, 0)) == INT64_MAX);
    ck_assert(json_integer_value(json_array_get(i, 1)) == INT64_MIN);
    ck_assert(json_is_real(json_array_get(i, 2)));
    json_decref(v);
}
END_TEST

START_TEST(getters_find_values_and_leave_defaults)
{
    json_t *v = parse("{\"i\":5,\"d\":0.5,\"b\":true,\"s\":\"x\",\"o\":{\"p\":{\"q\":7}},\"a\":[1],"
                      "\"null\":null,\"x.y\":1,\"x\":{\"y\":2}}");
    int64_t i = -1;
    double d = -1;
    bool b = false;
    const char *s = NULL;
    json_t *o = NULL, *a = NULL;
    ck_assert_int_eq(json_get_int(v, "i", JSON_REQUIRED, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(json_get_double(v, "d", JSON_REQUIRED, 0, 1, &d, NULL), ERR_OK);
    ck_assert(i == 5 && d == 0.5);
    ck_assert_int_eq(json_get_double(v, "i", JSON_REQUIRED, 0, 9, &d, NULL), ERR_OK);
    ck_assert_int_eq(json_get_bool(v, "b", JSON_REQUIRED, &b, NULL), ERR_OK);
    ck_assert_int_eq(json_get_string(v, "s", JSON_REQUIRED, &s, NULL), ERR_OK);
    ck_assert_int_eq(json_get_object(v, "o", JSON_REQUIRED, &o, NULL), ERR_OK);
    ck_assert_int_eq(json_get_array(v, "a", JSON_REQUIRED, &a, NULL), ERR_OK);
    ck_assert(d == 5 && b && o && a && json_array_size(a) == 1);
    ck_assert_str_eq(s, "x");
    ck_assert_int_eq(json_get_int(v, "o.p.q", JSON_REQUIRED, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(i, 7);
    ck_assert_int_eq(json_get_int(v, "x.y", JSON_REQUIRED, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(i, 1); /* the key with the dot in it comes first */
    ck_assert_int_eq(json_get_int(v, "none", JSON_OPTIONAL, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(json_get_int(v, "null", JSON_OPTIONAL, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(json_get_int(v, "o.none.q", JSON_OPTIONAL, 0, 9, &i, NULL), ERR_OK);
    ck_assert_int_eq(i, 1);
    json_decref(v);
}
END_TEST

START_TEST(getters_say_what_was_found_and_expected)
{
    json_t *v = parse("{\"i\":5,\"d\":0.5,\"s\":\"x\",\"z\":\"a\\u0000b\",\"o\":{\"p\":[]},"
                      "\"null\":null}");
    struct err e;
    int64_t i;
    double d;
    const char *s;
    ck_assert_int_eq(json_get_int(v, "s", JSON_OPTIONAL, 0, 9, &i, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 's': found a string, expected an integer");
    ck_assert_int_eq(json_get_int(v, "d", JSON_OPTIONAL, 0, 9, &i, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'd': found a real number, expected an integer");
    ck_assert_int_eq(json_get_int(v, "i", JSON_OPTIONAL, 6, 9, &i, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'i': found 5, expected 6 to 9");
    ck_assert_int_eq(json_get_double(v, "d", JSON_OPTIONAL, 0, 0.25, &d, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'd': found 0.5, expected 0 to 0.25");
    ck_assert_int_eq(json_get_string(v, "o.p", JSON_OPTIONAL, &s, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'o.p': found an array, expected a string");
    ck_assert_int_eq(json_get_string(v, "z", JSON_OPTIONAL, &s, &e), ERR_INPUT);
    ck_assert_int_eq(json_get_string(v, "null", JSON_REQUIRED, &s, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'null' is missing");
    ck_assert_int_eq(json_get_string(NULL, "k", JSON_OPTIONAL, &s, &e), ERR_INPUT);
    json_decref(v);
}
END_TEST

START_TEST(unknown_keys_are_named_with_line_and_neighbour)
{
    static const char *const known[] = {"temperature", "seed"};
    const char *text = "{\"seed\": \"tmperature\",\n\n \"tmperature\" : 1}";
    json_t *v = parse(text);
    struct err e;
    ck_assert_int_eq(json_only_keys(v, known, 2, text, strlen(text), &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "unknown key 'tmperature' (line 3); did you mean 'temperature'?");
    json_object_del(v, "tmperature");
    ck_assert_int_eq(json_only_keys(v, known, 2, text, strlen(text), &e), ERR_OK);
    json_decref(v);
}
END_TEST

static void assert_put(const char *text, size_t flags, const char *expected)
{
    struct strbuf b = {0};
    json_t *v = parse(text);
    json_put(&b, v, flags);
    ck_assert_str_eq(b.data, expected);
    json_decref(v);
    strbuf_free(&b);
}

START_TEST(writing_keeps_order_or_sorts_and_escapes_what_must_be)
{
    assert_put("{ \"b\" : [ 1 , {} , [] ] , \"a\" : null }", 0, "{\"b\":[1,{},[]],\"a\":null}");
    assert_put("{\"b\":1,\"a\":{\"d\":2,\"c\":[true,false]}}", JSON_SORT_KEYS,
               "{\"a\":{\"c\":[true,false],\"d\":2},\"b\":1}");
    assert_put("{\"a\":[1,{}]}", JSON_INDENT(2), "{\n  \"a\": [\n    1,\n    {}\n  ]\n}");
    assert_put("\"\\u0000\\u001f\\n\\\"\\\\/\\u00e9\\ud83d\\ude00\\u007f\"", 0,
               "\"\\u0000\\u001f\\n\\\"\\\\/\xc3\xa9\xf0\x9f\x98\x80\x7f\"");
}
END_TEST

static const struct {
    double v;
    const char *text;
} doubles[] = {{0, "0.0"},
               {-0.0, "-0.0"},
               {1, "1.0"},
               {0.1, "0.1"},
               {1.0 / 3, "0.3333333333333333"},
               {0.1 + 0.2, "0.30000000000000004"},
               {1e22, "1e+22"},
               {123456789012345680.0, "1.2345678901234568e+17"},
               {5e-324, "5e-324"},
               {2.2250738585072014e-308, "2.2250738585072014e-308"},
               {1.7976931348623157e308, "1.7976931348623157e+308"},
               {(double)NAN, "null"},
               {-(double)INFINITY, "null"}};

START_TEST(doubles_have_the_shortest_digits_and_a_point)
{
    struct strbuf b = {0};
    json_put_double(&b, doubles[_i].v);
    ck_assert_str_eq(b.data, doubles[_i].text);
    strbuf_free(&b);
}
END_TEST

START_TEST(every_double_comes_back_with_its_bits)
{
    struct rng r = {.seed = 1};
    for (int i = 0; i < 100000; i++) {
        struct strbuf b = {0};
        uint64_t bits = rng_next(&r);
        double v, back;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v))
            continue;
        json_put_double(&b, v);
        ck_assert(str_to_double(b.data, &back));
        ck_assert_mem_eq(&back, &v, sizeof v);
        strbuf_free(&b);
    }
}
END_TEST

START_TEST(mutated_texts_are_refused_or_written_and_read_back_the_same)
{
    static const char seed[] = "{\"a\":1e5,\"b\":[1,-2.5,true,null,\"\\u00e9\\ud83d\\ude00\"],"
                               "\"c\":{\"d\":99999999999999999999}}";
    uint64_t state = 1;
    int parsed = 0;
    for (int i = 0; i < 20000; i++) {
        char changed[sizeof seed + 8];
        memcpy(changed, seed, sizeof seed - 1);
        size_t n = test_mutate(changed, sizeof seed - 1, sizeof changed, &state);
        char *text = malloc(n + !n);
        memcpy(text, changed, n);
        json_t *v, *again;
        struct strbuf a = {0}, b = {0};
        struct err e = {.text = ""};
        enum err_code rc = json_parse(text, n, &v, &e);
        ck_assert_msg(rc == ERR_OK || (rc == ERR_INPUT && e.text[0]), "%d: %s", i, e.text);
        if (rc == ERR_OK) {
            parsed++;
            json_put(&a, v, 0);
            ck_assert_int_eq(json_parse(a.data, a.len, &again, &e), ERR_OK);
            json_put(&b, again, 0);
            ck_assert_uint_eq(a.len, b.len);
            ck_assert_mem_eq(a.data, b.data, a.len);
            json_decref(again);
        }
        json_decref(v);
        strbuf_free(&a);
        strbuf_free(&b);
        free(text);
    }
    ck_assert(parsed > 200 && parsed < 18000);
}
END_TEST

START_TEST(a_file_fault_names_the_file)
{
    const char *path = test_path(test_folder(), "c.json");
    struct err e;
    json_t *v;
    test_spill(path, "{\n\"a\": }", 8);
    ck_assert_int_eq(json_read(path, &v, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "c.json: line 2, column"));
    test_spill(path, "[1]", 3);
    ck_assert_int_eq(json_read(path, &v, &e), ERR_OK);
    json_decref(v);
    enum err_code rc = ERR_NOMEM;
    for (int nth = 1; rc != ERR_OK; nth++) {
        io_fault_set(IO_FAULT_ALLOC, nth);
        rc = json_read(path, &v, &e);
        io_fault_set(IO_FAULT_ALLOC, 0);
        ck_assert(rc == ERR_OK || rc == ERR_NOMEM);
        ck_assert_int_lt(nth, 10);
        json_decref(v);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("json");
    TCase *t = tcase_create("json");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, what_is_no_strict_json_is_refused_with_its_place, 0, ARRAY_LEN(bad));
    tcase_add_test(t, deep_nesting_is_refused);
    tcase_add_test(t, integers_beyond_64_bits_become_reals_and_others_stay);
    tcase_add_test(t, getters_find_values_and_leave_defaults);
    tcase_add_test(t, getters_say_what_was_found_and_expected);
    tcase_add_test(t, unknown_keys_are_named_with_line_and_neighbour);
    tcase_add_test(t, writing_keeps_order_or_sorts_and_escapes_what_must_be);
    tcase_add_loop_test(t, doubles_have_the_shortest_digits_and_a_point, 0, ARRAY_LEN(doubles));
    tcase_add_test(t, every_double_comes_back_with_its_bits);
    tcase_add_test(t, mutated_texts_are_refused_or_written_and_read_back_the_same);
    tcase_add_test(t, a_file_fault_names_the_file);
    suite_add_tcase(s, t);
    return s;
}
