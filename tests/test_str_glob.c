/* test_str_glob.c: what globs match, and that no pattern is slow. */
#include <stdlib.h>
#include <string.h>

#include "common/str.h"
#include "tests/check_main.h"

static const struct {
    const char *glob, *text;
    bool match;
} cases[] = {
    {"", "", true},
    {"", "a", false},
    {"*", "", true},
    {"*", "a.b.c", true},
    {"a*c", "abcbc", true},
    {"a*c", "abcb", false},
    {"?", "", false},
    {"?", "x", true},
    {"**a**", "xax", true},
    {"model.layers.*.mlp.*", "model.layers.12.mlp.up_proj.weight", true},
    {"*.{q,k,v}_proj.weight", "l.1.k_proj.weight", true},
    {"*.{q,k,v}_proj.weight", "l.1.o_proj.weight", false},
    {"{a,b{c,d},}x", "x", true},
    {"{a,b{c,d},}x", "bdx", true},
    {"{a,b{c,d},}x", "bx", false},
    {"{a*,b}c", "axyc", true},
    {"{a,b", "{a,b", true},
    {"{a,b", "a", false},
    {"a,b}", "a,b}", true},
    {"a{}b", "ab", true},
    {"[abc]", "b", true},
    {"[abc]", "d", false},
    {"[a-cx]", "x", true},
    {"[!a-c]", "d", true},
    {"[!a-c]", "b", false},
    {"[]a]", "]", true},
    {"[!]a]", "]", false},
    {"[a-]", "-", true},
    {"[", "[", true},
    {"[a", "[a", true},
    {"[{]}", "{}", true},
    {"layers.[0-9].w", "layers.10.w", false},
    {"layers.{[0-9],1[0-5]}.w", "layers.14.w", true},
    {"layers.{[0-9],1[0-5]}.w", "layers.16.w", false},
};

START_TEST(globs_match_the_whole_text)
{
    ck_assert_msg(str_glob(cases[_i].glob, cases[_i].text) == cases[_i].match, "'%s' on '%s'",
                  cases[_i].glob, cases[_i].text);
}
END_TEST

/* A matcher that backtracks would not end within the life of the machine. */
START_TEST(hostile_patterns_take_no_time)
{
    char glob[STR_GLOB_MAX], text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    size_t n = 0;
    while (n + 8 < sizeof glob) {
        memcpy(glob + n, n % 3 ? "*a" : "{a*,*}", n % 3 ? 2 : 6);
        n += n % 3 ? 2 : 6;
    }
    glob[n++] = 'b';
    glob[n] = 0;
    ck_assert(!str_glob(glob, text));
    memset(glob, '{', sizeof glob - 1);
    glob[sizeof glob - 1] = 0;
    ck_assert(!str_glob(glob, text));
    ck_assert(str_glob(glob, glob));
}
END_TEST

START_TEST(a_glob_beyond_the_limit_matches_nothing)
{
    char glob[STR_GLOB_MAX + 1];
    memset(glob, '*', sizeof glob);
    glob[STR_GLOB_MAX] = 0;
    ck_assert(!str_glob(glob, "a"));
    ck_assert(str_glob(glob + 1, "a"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("str_glob");
    TCase *t = tcase_create("str_glob");
    tcase_set_timeout(t, 30);
    tcase_add_loop_test(t, globs_match_the_whole_text, 0, ARRAY_LEN(cases));
    tcase_add_test(t, hostile_patterns_take_no_time);
    tcase_add_test(t, a_glob_beyond_the_limit_matches_nothing);
    suite_add_tcase(s, t);
    return s;
}
