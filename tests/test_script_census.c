/* test_script_census.c: scripts of texts, and the first fault of an answer. */
#include "evals/script_census.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "common/io.h"
#include "tests/check_main.h"
#include "tests/tiny_text.h"

static struct script_census *census(void)
{
    struct script_census *c;
    struct err e = {.text = ""};
    ck_assert_msg(script_census_new(&c, &e) == ERR_OK, "%s", e.text);
    return c;
}

static const char *names_of(script_census_set s)
{
    static char text[256];
    text[0] = 0;
    for (int i = 0; i < SCRIPT_CENSUS_SCRIPTS; i++)
        if (s >> i & 1)
            strcat(strcat(text, text[0] ? " " : ""), script_census_name(i));
    return text;
}

START_TEST(scripts_are_those_of_unicode)
{
    static const struct {
        const char *text, *scripts;
        int garbled; /* -1: none */
    } cases[] = {
        {"", "", -1},
        {"plain text, 42!", "Latin", -1},
        {"3 + 4 = 7 \xE2\x82\xAC", "", -1},
        {"Stra\xC3\x9F"
         "e",
         "Latin", -1},
        {"\xD0\xB4\xD0\xB0 yes", "Latin Cyrillic", -1},
        {"\xE4\xB8\xAD\xE3\x81\xAE\xED\x95\x9C", "Han Hiragana Hangul", -1},
        {"\xE0\xB8\x81 \xD7\x90 \xD8\xA7", "Arabic Hebrew Thai", -1},
        {"\xE1\xAC\x85", "Other", -1}, /* Balinese */
        {"ab\xEF\xBF\xBD", "Latin", 2},
        {"a\x01z", "Latin", 1},
        {"a\tb\n", "Latin", -1},
        {"ab\xFFz", "Latin", 2},
    };
    struct script_census *c = census();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n = strlen(cases[i].text), garbled;
        script_census_set s = script_census_text(c, cases[i].text, n, &garbled);
        ck_assert_str_eq(names_of(s), cases[i].scripts);
        ck_assert_uint_eq(garbled, cases[i].garbled < 0 ? n : (size_t)cases[i].garbled);
    }
    script_census_free(c);
}
END_TEST

/* An answer of the tiny tokenizer: ids 0..255 are bytes. */
static struct script_census_answer judge(const char *text, const char *allowed)
{
    struct strbuf json = {0};
    struct tokenizer *t;
    struct script_census *c = census();
    struct err e = {.text = ""};
    struct trace_record r = {.n = strlen(text)};
    struct script_census_answer a;
    size_t garbled;
    char *dir = io_join(test_folder(), "t"), *path = io_join(dir, "tokenizer.json");
    if (!io_exists(dir))
        ck_assert_int_eq(mkdir(dir, 0700), 0);
    ck_assert_int_eq(tiny_text_write(dir, &e), ERR_OK);
    ck_assert_int_eq(io_read_all(path, 1 << 20, &json, &e), ERR_OK);
    ck_assert_int_eq(tokenizer_new(&t, json.data, json.len, NULL, &e), ERR_OK);
    r.tok = calloc(r.n + 1, sizeof *r.tok);
    for (size_t i = 0; i < r.n; i++)
        r.tok[i].id = (uint8_t)text[i];
    script_census_set ok = script_census_text(c, allowed, strlen(allowed), &garbled);
    ck_assert_int_eq(script_census_answer(c, t, &r, ok, &a, &e), ERR_OK);
    free(r.tok);
    free(dir);
    free(path);
    strbuf_free(&json);
    tokenizer_free(t);
    script_census_free(c);
    return a;
}

START_TEST(an_answer_is_coherent_until_its_first_fault)
{
    struct script_census_answer a = judge("all is well", "x");
    ck_assert(a.coherent == 11 && a.fault[0] == 0 && a.loop == -1 && a.stray == 0);
    a = judge("so \xE4\xB8\xAD", "x");
    ck_assert_int_eq(a.coherent, 5); /* its last byte completes the character */
    ck_assert_str_eq(a.fault, "script");
    ck_assert_str_eq(names_of(a.stray), "Han");
    a = judge("so \xE4\xB8\xAD", "x \xE4\xB8\xAD"); /* the prompt has it */
    ck_assert(a.coherent == 6 && a.stray == 0);
    a = judge("a \xFF b", "x");
    ck_assert_str_eq(a.fault, "garble");
    a = judge("well, again again again again ", "x");
    ck_assert_str_eq(a.fault, "loop");
    ck_assert_int_eq(a.loop, 5);
    ck_assert_int_eq(a.coherent, 5);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("script_census");
    TCase *t = tcase_create("script_census");
    tcase_add_test(t, scripts_are_those_of_unicode);
    tcase_add_test(t, an_answer_is_coherent_until_its_first_fault);
    suite_add_tcase(s, t);
    return s;
}
