/* test_tok_regex.c: the Oniguruma dialect on PCRE2: what matches, and what is refused. */
#include <stdlib.h>

#include "infer/tok_regex.h"
#include "tests/check_main.h"

static struct err err;

static enum err_code open_regex(struct tok_regex **r, const char *pattern)
{
    return tok_regex_new(r, (struct tok_text){pattern, strlen(pattern)}, true, &err);
}

/* All matches as "0-2 3-4". */
static char *find_all(const char *pattern, const char *text)
{
    struct tok_regex *r = NULL;
    struct tok_search s = {0};
    struct strbuf b = {0};
    bool found = true;
    ck_assert_msg(open_regex(&r, pattern) == ERR_OK, "%s", err.text);
    strbuf_puts(&b, "");
    tok_regex_begin(&s);
    while (found) {
        ck_assert(tok_regex_next(r, &s, text, strlen(text), &found, &err) == ERR_OK);
        if (found)
            strbuf_printf(&b, "%s%zu-%zu", b.len ? " " : "", s.start, s.end);
    }
    tok_regex_search_free(&s);
    tok_regex_free(r);
    return strbuf_take(&b);
}

static const struct {
    const char *pattern, *text, *want;
} matches[] = {
    {"a+", "aabaa", "0-2 3-5"},
    {"a*", "aab", "0-2 3-3"},                       /* none right behind a match */
    {"\\s", "a\xe1\xa0\x8e \xc2\xa0", "4-5 5-7"},   /* U+180E is no white space */
    {"[\\s]", "a\xe1\xa0\x8e \xc2\x85", "4-5 5-7"}, /* in a class too */
    {"\\S", "\xe1\xa0\x8e ", "0-3"},
    {"[^\\s]", "\xe1\xa0\x8e ", "0-3"},
    {"[\\S]", "\xe1\xa0\x8e\t", "0-3"},
    {"\\p{Lu}", "\xe1\xb2\x89", "0-3"}, /* U+1C89 came with Unicode 16 */
    {"\\P{L}", "\xe1\xb2\x89.", "3-4"},
    {"\\p{^L}", "a.", "1-2"},
    {"[^\\p{L}]", "\xe1\xb2\x89.", "3-4"},
    {"\\p{Han}", "\xe3\x80\x85\xe3\x80\x81", "0-3"}, /* the script, not its extensions */
    {"(?i:'s)", "'s'S'\xc5\xbf", "0-2 2-4 4-7"},
    {"[\\s-]", "a-b", "1-2"},
    {"[\\s-x]", "-xy", "0-1 1-2"},
    {"\\x41|\\u00e9|\\x{e8}", "A\xc3\xa9\xc3\xa8", "0-1 1-3 3-5"},
    {"\\v", "\x0b\x0c", "0-1"},
    {"^b|a$", "a\nb", "0-1 2-3"},
    {".", "a\n\r", "0-1 2-3"},
    {"a{2}", "aaaa", "0-2 2-4"},
    {"", "ab", "0-0 1-1 2-2"},
};

START_TEST(matches_are_those_of_the_library)
{
    char *got = find_all(matches[_i].pattern, matches[_i].text);
    ck_assert_str_eq(got, matches[_i].want);
    free(got);
}
END_TEST

static const char *const refused[] = {
    "\\w",         "\\h",       "\\R",      "\\b",       "\\X",   "\\1",     "\\K",
    "[a[b]]",      "[[:a:]]",   "[a&&b]",   "[]a]",      "[a",    "[a-\\s]", "[\\D]",
    "[\\P{L}]",    "\\p{Mn}",   "\\p{IsL}", "\\pL",      "\\p{L", "\\",      "\\x4",
    "\\x{110000}", "\\x{d800}", "\\xe9",    "a{,2}",     "a{2}+", "a{2}?",   "{",
    "(?m:a)",      "(?<n>a)",   "a(?i)b",   "(*ACCEPT)", "(a",    "a)",      "*a",
    "(?#c)",       "(?R)",      "(?1)",     "(?(1)a)",   "(?C)",  "(?s)a",
};

START_TEST(what_would_mean_something_else_is_refused)
{
    struct tok_regex *r = NULL;
    err.text[0] = '\0';
    ck_assert_msg(open_regex(&r, refused[_i]) == ERR_INPUT, "'%s' was taken", refused[_i]);
    ck_assert_ptr_null(r);
    ck_assert_msg(str_starts(err.text, "regex: "), "%s", err.text);
}
END_TEST

START_TEST(plain_text_is_no_pattern)
{
    struct tok_regex *r = NULL;
    struct tok_search s = {0};
    bool found;
    ck_assert(tok_regex_new(&r, (struct tok_text){"a.(", 3}, false, &err) == ERR_OK);
    ck_assert(tok_regex_next(r, &s, "aba.(", 5, &found, &err) == ERR_OK);
    ck_assert(found && s.start == 2 && s.end == 5);
    tok_regex_search_free(&s);
    tok_regex_free(r);
}
END_TEST

START_TEST(a_pattern_beyond_the_bound_is_refused)
{
    size_t n = 70000;
    char *p = malloc(n);
    struct tok_regex *r = NULL;
    ck_assert_ptr_nonnull(p);
    memset(p, 'a', n);
    ck_assert(tok_regex_new(&r, (struct tok_text){p, n}, true, &err) == ERR_INPUT);
    memset(p, '(', n);
    ck_assert(tok_regex_new(&r, (struct tok_text){p, 60000}, true, &err) == ERR_INPUT);
    free(p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tok_regex");
    TCase *c = tcase_create("dialect");
    tcase_add_loop_test(c, matches_are_those_of_the_library, 0, (int)ARRAY_LEN(matches));
    tcase_add_loop_test(c, what_would_mean_something_else_is_refused, 0, (int)ARRAY_LEN(refused));
    tcase_add_test(c, plain_text_is_no_pattern);
    tcase_add_test(c, a_pattern_beyond_the_bound_is_refused);
    suite_add_tcase(s, c);
    return s;
}
