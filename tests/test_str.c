/* test_str.c: buffers, nearest names, UTF-8, numbers in text. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/str.h"
#include "tests/check_main.h"

START_TEST(appends_add_up_and_stay_terminated)
{
    struct strbuf b = {0};
    for (int i = 0; i < 1000; i++) {
        strbuf_printf(&b, "%d", i % 10);
        ck_assert_uint_eq(strlen(b.data), b.len);
    }
    strbuf_puts(&b, "end");
    strbuf_putc(&b, '!');
    strbuf_append(&b, "\0z", 2);
    ck_assert_uint_eq(b.len, 1006);
    ck_assert_int_eq(memcmp(b.data + 995, "56789end!\0z", 12), 0);
    ck_assert_int_eq(strbuf_ok(&b, NULL), ERR_OK);
    char *taken = strbuf_take(&b);
    ck_assert_ptr_null(b.data);
    free(taken);
    taken = strbuf_take(&b);
    ck_assert_str_eq(taken, "");
    free(taken);
}
END_TEST

START_TEST(running_out_of_memory_is_sticky_and_reported_once)
{
    struct strbuf b = {0};
    struct err e;
    strbuf_puts(&b, "good");
    io_fault_set(IO_FAULT_ALLOC, 1);
    char big[1000];
    memset(big, 'x', sizeof big);
    strbuf_append(&b, big, sizeof big);
    strbuf_puts(&b, "later");
    ck_assert_str_eq(b.data, "good");
    ck_assert_int_eq(strbuf_ok(&b, &e), ERR_NOMEM);
    ck_assert_ptr_null(strbuf_take(&b));
    ck_assert(!strbuf_reserve(&(struct strbuf){.len = 10}, SIZE_MAX - 5));
}
END_TEST

START_TEST(nearest_finds_slips_and_nothing_far)
{
    static const char *const names[] = {"recipe", "threads", "dry-run", "o"};
    ck_assert_str_eq(str_nearest("recpe", names, 4), "recipe");
    ck_assert_str_eq(str_nearest("recieps", names, 4), "recipe");
    ck_assert_str_eq(str_nearest("thraeds", names, 4), "threads");
    ck_assert_str_eq(str_nearest("dryrun", names, 4), "dry-run");
    ck_assert_ptr_null(str_nearest("model", names, 4));
    ck_assert_ptr_null(str_nearest("x", names, 4));
    ck_assert_ptr_null(str_nearest("", names, 4));
    ck_assert_ptr_null(str_nearest("recipe", names, 0));
}
END_TEST

/* The well-formed sequences are exactly the encodings of the scalar values. */
START_TEST(utf8_accepts_every_scalar_value_and_nothing_else)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char bytes[4];
        int n = str_utf8_put(bytes, cp);
        bool surrogate = cp >= 0xd800 && cp < 0xe000;
        ck_assert_uint_eq(str_utf8_valid(bytes, (size_t)n), surrogate ? 0 : (size_t)n);
        if (n > 1)
            ck_assert_uint_eq(str_utf8_valid(bytes, (size_t)n - 1), 0);
        const char *at = bytes;
        if (!surrogate) {
            ck_assert_uint_eq(str_utf8_next(&at), cp);
            ck_assert_ptr_eq(at, bytes + n);
        }
    }
}
END_TEST

START_TEST(utf8_faults_are_found_at_their_byte)
{
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xe2\x82",
                                      "\xf0\x9f\x98",
                                      "\xc3("};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char text[16];
        snprintf(text, sizeof text, "ok\xc3\xa9%s", bad[i]);
        ck_assert_msg(str_utf8_valid(text, strlen(text)) == 4, "case %zu", i);
    }
}
END_TEST

START_TEST(integers_are_whole_strings_in_range)
{
    int64_t v = 7;
    static const char *const bad[] = {"",
                                      "-",
                                      "+",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "0x1",
                                      "1e3",
                                      "--1",
                                      "9223372036854775808",
                                      "-9223372036854775809"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(!str_to_i64(bad[i], INT64_MIN, INT64_MAX, &v), "'%s'", bad[i]);
    ck_assert_int_eq(v, 7);
    ck_assert(str_to_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v) && v == INT64_MAX);
    ck_assert(str_to_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v) && v == INT64_MIN);
    ck_assert(str_to_i64("+10", 0, 10, &v) && v == 10);
    ck_assert(!str_to_i64("11", 0, 10, &v) && !str_to_i64("-1", 0, 10, &v));
}
END_TEST

START_TEST(doubles_are_decimal_and_finite)
{
    double v = 7;
    static const char *const bad[] = {"",    ".",   "-",  "e5", "1e",  "1e+",  "0x1p3",
                                      "inf", "nan", " 1", "1 ", "1,5", "1.5x", "1e999"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_msg(!str_to_double(bad[i], &v), "'%s'", bad[i]);
    ck_assert(v == 7);
    ck_assert(str_to_double("-1.5e-3", &v) && v == -1.5e-3);
    ck_assert(str_to_double(".5", &v) && v == 0.5);
    ck_assert(str_to_double("5.", &v) && v == 5);
    ck_assert(str_to_double("0.1", &v) && v == 0.1);
}
END_TEST

START_TEST(sizes_have_one_decimal_in_decimal_units)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {999, "999 B"},
                 {1000, "1.0 kB"},
                 {1049, "1.0 kB"},
                 {1050, "1.1 kB"},
                 {999949, "999.9 kB"},
                 {999950, "1.0 MB"},
                 {12345678, "12.3 MB"},
                 {999999999, "1.0 GB"},
                 {UINT64_MAX, "18.4 EB"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char buf[24];
        ck_assert_str_eq(str_bytes(buf, cases[i].bytes), cases[i].text);
    }
}
END_TEST

START_TEST(numbers_show_the_digits_asked_for)
{
    static const struct {
        double v;
        int digits;
        const char *text;
    } cases[] = {{0.0, 3, "0"},
                 {-0.0, 3, "0"},
                 {1, 3, "1.00"},
                 {9.999, 3, "10.0"},
                 {123456, 3, "123456"},
                 {0.00012345, 3, "0.000123"},
                 {1.5e-7, 3, "1.5e-07"},
                 {-2.5, 2, "-2.5"},
                 {2e20, 3, "2e+20"},
                 {(double)NAN, 3, "n/a"},
                 {(double)INFINITY, 3, "n/a"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = {0};
        strbuf_put_number(&b, cases[i].v, cases[i].digits);
        ck_assert_str_eq(b.data, cases[i].text);
        strbuf_free(&b);
    }
}
END_TEST

START_TEST(starts_and_ends)
{
    ck_assert(str_starts("model.safetensors", "model") && !str_starts("mod", "model"));
    ck_assert(str_ends("a.gz", ".gz") && !str_ends("gz", ".gz") && str_ends("x", ""));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("str");
    TCase *t = tcase_create("str");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, appends_add_up_and_stay_terminated);
    tcase_add_test(t, running_out_of_memory_is_sticky_and_reported_once);
    tcase_add_test(t, nearest_finds_slips_and_nothing_far);
    tcase_add_test(t, utf8_accepts_every_scalar_value_and_nothing_else);
    tcase_add_test(t, utf8_faults_are_found_at_their_byte);
    tcase_add_test(t, integers_are_whole_strings_in_range);
    tcase_add_test(t, doubles_are_decimal_and_finite);
    tcase_add_test(t, sizes_have_one_decimal_in_decimal_units);
    tcase_add_test(t, numbers_show_the_digits_asked_for);
    tcase_add_test(t, starts_and_ends);
    suite_add_tcase(s, t);
    return s;
}
