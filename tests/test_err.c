/* test_err.c: texts, wrapping, the table of exit codes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "tests/check_main.h"

START_TEST(innermost_text_stays_behind_every_place)
{
    struct err e;
    enum err_code rc = err_set(&e, ERR_INPUT, "found %d, expected %d", 3, 4);
    rc = err_wrap(&e, rc, "tensor %s", "x");
    rc = err_wrap(&e, rc, "model.safetensors");
    ck_assert_int_eq(rc, ERR_INPUT);
    ck_assert_str_eq(e.text, "model.safetensors: tensor x: found 3, expected 4");
    ck_assert_str_eq(strrchr(e.file, '/') ? strrchr(e.file, '/') + 1 : e.file, "test_err.c");
}
END_TEST

START_TEST(long_texts_are_cut_with_dots_and_terminated)
{
    struct err e;
    char word[ERR_TEXT_MAX + 50];
    memset(word, 'w', sizeof word);
    word[sizeof word - 1] = 0;
    err_set(&e, ERR_INPUT, "%s", word);
    ck_assert_uint_eq(strlen(e.text), ERR_TEXT_MAX - 1);
    ck_assert_str_eq(e.text + ERR_TEXT_MAX - 4, "...");
    err_wrap(&e, ERR_INPUT, "%s", word);
    ck_assert_uint_eq(strlen(e.text), ERR_TEXT_MAX - 1);
    ck_assert_str_eq(e.text + ERR_TEXT_MAX - 4, "...");
    err_set(&e, ERR_INPUT, "short");
    err_wrap(&e, ERR_INPUT, "%.*s", ERR_TEXT_MAX - 4, word);
    ck_assert_uint_eq(strlen(e.text), ERR_TEXT_MAX - 1);
    ck_assert_str_eq(e.text + ERR_TEXT_MAX - 4, "...");
}
END_TEST

START_TEST(null_takes_no_text_and_gives_the_code)
{
    ck_assert_int_eq(err_set(NULL, ERR_BUSY, "x"), ERR_BUSY);
    ck_assert_int_eq(err_wrap(NULL, ERR_BUSY, "x"), ERR_BUSY);
    errno = ENOSPC;
    ck_assert_int_eq(err_errno(NULL, "x"), ERR_IO);
}
END_TEST

START_TEST(success_is_never_wrapped)
{
    struct err e;
    err_set(&e, ERR_INPUT, "old");
    ck_assert_int_eq(err_wrap(&e, ERR_OK, "place"), ERR_OK);
    ck_assert_str_eq(e.text, "old");
}
END_TEST

START_TEST(errno_is_named_and_memory_has_its_own_code)
{
    struct err e;
    errno = ENOSPC;
    ck_assert_int_eq(err_errno(&e, "%s", "out"), ERR_IO);
    ck_assert_str_eq(e.text, "out: No space left on device");
    errno = ENOMEM;
    ck_assert_int_eq(err_errno(&e, "out"), ERR_NOMEM);
}
END_TEST

START_TEST(exit_codes_are_the_documented_ones)
{
    static const struct {
        enum err_code code;
        int exit;
    } expected[] = {{ERR_OK, 0},         {ERR_NEGATIVE, 1},  {ERR_USAGE, 2},        {ERR_INPUT, 3},
                    {ERR_MISMATCH, 3},   {ERR_PARTIAL, 4},   {ERR_IO, 5},           {ERR_NOMEM, 5},
                    {ERR_DEVICE, 5},     {ERR_INTERNAL, 70}, {ERR_INTERRUPTED, 75}, {ERR_BUSY, 75},
                    {ERR_DETERMINISM, 6}};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++)
        ck_assert_int_eq(err_exit_code(expected[i].code), expected[i].exit);
    ck_assert_str_eq(err_name(ERR_MISMATCH), "ERR_MISMATCH");
    ck_assert_str_eq(err_meaning(ERR_USAGE), "bad usage");
    ck_assert_int_eq(err_exit_code((enum err_code)99), 70);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("err");
    TCase *t = tcase_create("err");
    tcase_add_test(t, innermost_text_stays_behind_every_place);
    tcase_add_test(t, long_texts_are_cut_with_dots_and_terminated);
    tcase_add_test(t, null_takes_no_text_and_gives_the_code);
    tcase_add_test(t, success_is_never_wrapped);
    tcase_add_test(t, errno_is_named_and_memory_has_its_own_code);
    tcase_add_test(t, exit_codes_are_the_documented_ones);
    suite_add_tcase(s, t);
    return s;
}
