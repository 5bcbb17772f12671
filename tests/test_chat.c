/* test_chat.c: chat templates: values, scopes, white space, marks, errors, bounds.
 *
 * What jinja2 itself says is tests/reference/chat_diff.py's; here stands what must hold without it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "infer/chat.h"
#include "tests/check_main.h"

static const char vars_text[] =
    "{\"a\": [1, 2, 3], \"s\": \"user\", \"d\": {\"k\": \"v\", \"n\": null}, \"bos\": \"<s>\","
    " \"odd\": \"h\\u00e9 <|end|> \\\"q\\\"\\n\", \"__now\": \"2024-07-26T13:05:09\"}";

static enum err_code run(const char *text, struct chat_spans *out, struct err *e)
{
    static const char *const trusted[] = {"bos"};
    struct chat_template *t = NULL;
    json_t *vars = NULL;
    *out = (struct chat_spans){0};
    ck_assert_int_eq(json_parse(vars_text, sizeof vars_text - 1, &vars, e), ERR_OK);
    enum err_code rc = chat_compile(&t, text, strlen(text), e);
    if (rc == ERR_OK)
        rc = chat_render(t, vars, trusted, 1, out, e);
    chat_free(t);
    json_decref(vars);
    return rc;
}

static void expect(const char *text, const char *want)
{
    struct chat_spans s;
    struct err e = {0};
    enum err_code rc = run(text, &s, &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", text, e.text);
    ck_assert_str_eq(s.text.data ? s.text.data : "", want);
    ck_assert_uint_eq(s.text.len, strlen(want));
    chat_spans_free(&s);
}

/* The rendering with what is untrusted in brackets. */
static void expect_marks(const char *text, const char *want)
{
    struct chat_spans s;
    struct strbuf b = {0};
    struct err e = {0};
    enum err_code rc = run(text, &s, &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", text, e.text);
    for (size_t i = 0; i < s.n; i++) {
        ck_assert_uint_gt(s.spans[i].len, 0);
        ck_assert(i == 0 || s.spans[i].trusted != s.spans[i - 1].trusted);
        strbuf_puts(&b, s.spans[i].trusted ? "" : "\x01");
        strbuf_append(&b, s.spans[i].text, s.spans[i].len);
        strbuf_puts(&b, s.spans[i].trusted ? "" : "\x02");
    }
    struct strbuf w = {0};
    for (const char *p = want; *p; p++)
        strbuf_putc(&w, *p == '[' ? '\x01' : *p == ']' ? '\x02' : *p);
    ck_assert_str_eq(b.data, w.data);
    strbuf_free(&b);
    strbuf_free(&w);
    chat_spans_free(&s);
}

static void refuse(const char *text, int line, const char *because)
{
    struct chat_spans s;
    struct err e = {0};
    char where[64];
    enum err_code rc = run(text, &s, &e);
    ck_assert_msg(rc == ERR_INPUT, "%s: code %d", text, rc);
    ck_assert_ptr_null(s.spans);
    snprintf(where, sizeof where, "chat template: line %d: ", line);
    ck_assert_msg(str_starts(e.text, where), "%s: '%s' at line %d", text, e.text, line);
    ck_assert_msg(strstr(e.text, because) != NULL, "%s: '%s' without '%s'", text, e.text, because);
}

START_TEST(values_print_as_python_prints_them)
{
    expect("{{ [1, 1.0, true, none, 'it\\'s', (1,), {'k': []}] }}",
           "[1, 1.0, True, None, \"it's\", (1,), {'k': []}]");
    expect("{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 1e-5 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }}",
           "1e+16 1000000000000000.0 0.0001 1e-05 3.5 -4 2");
    expect("{{ a }}{{ d.missing }}{{ d }}", "[1, 2, 3]{'k': 'v', 'n': None}");
}
END_TEST

START_TEST(sets_in_a_loop_stay_there_and_in_an_if_do_not)
{
    expect("{% set x = 0 %}{% for i in a %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "1230");
    expect("{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1");
    expect("{% set ns = namespace(x=0) %}{% for i in a %}{% set ns.x = ns.x + i %}{% endfor %}"
           "{{ ns.x }}",
           "6");
    expect("{% macro m(x, y=x) %}{{ x }}{{ y }}{{ i }}{% endmacro %}{% for i in a %}{{ m(i) }}"
           "{% endfor %}",
           "112233");
}
END_TEST

START_TEST(white_space_follows_trim_and_lstrip_blocks)
{
    expect("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny");
    expect("a\n {%- if true -%}\n x \n{%- endif +%}\nb", "ax\nb");
    expect("  {%+ if true %}x{% endif %}{# c #}\n  {{ 1 }}\n", "  x  1");
    expect("a\r\nb\rc", "a\nb\nc");
}
END_TEST

START_TEST(request_text_is_untrusted_wherever_it_goes)
{
    expect_marks("x{{ s }}y", "x[user]y");
    expect_marks("{{ bos }}{{ bos ~ s ~ bos }}", "<s><s>[user]<s>");
    expect_marks("{{ ('<' + s + '>')[1:-2] }}", "[use]");
    expect_marks("{{ ('<' + s + '>')|upper|trim('<') }}", "[USER]>");
    expect_marks("{{ s.replace('s', '-') }}{{ 'a-b'.replace('-', s) }}", "[u]-[er]a[user]b");
    expect_marks("{{ [s, 'x', s]|join(', ') }}", "[user], x, [user]");
    expect_marks("{% set t %}<{{ s }}>{% endset %}{{ t }}", "<[user]>");
    expect_marks("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s) + m('y') }}", "<[user]><y>");
    expect_marks("{{ '<{}>'.format(s) }}{{ '(%s)' % s }}", "<[user]>([user])");
    expect_marks("{{ 'a b'.split()[0] ~ s.split('s')[1] }}", "a[er]");
    expect_marks("{% for c in s %}{{ c }}-{% endfor %}", "[u]-[s]-[e]-[r]-");
    expect_marks("{{ s|reverse }}{{ s[::-2] }}", "[resurs]");
    expect_marks("{{ ('<' + s)|safe + '&' }}{{ s|e }}", "<[user]&amp;[user]");
    expect_marks("{{ '<x>\n'|indent(1) }}{{ (s ~ '\n' ~ s)|indent(1) }}", "<x>\n[user]\n [user]");
}
END_TEST

START_TEST(tojson_and_printed_values_keep_marks_and_escapes)
{
    expect_marks("{{ s|tojson }}{{ d|tojson }}", "\"[user]\"{\"[k]\": \"[v]\", \"[n]\": null}");
    expect_marks("{{ odd|tojson }}", "\"[h\u00e9 <|end|> \\\"q\\\"\\n]\"");
    expect_marks("{{ (s, 'x') }}", "('[user]', 'x')");
}
END_TEST

START_TEST(a_string_grows_without_touching_the_one_it_grew_from)
{
    expect(
        "{% set p = 'ab' ~ s %}{% set q = p ~ '1' %}{% set r = p ~ '2' %}{{ p }} {{ q }} {{ r }}",
        "abuser abuser1 abuser2");
    expect("{% set p = 'lit' %}{% for i in a %}{{ p ~ i }}{% endfor %}{{ p }}", "lit1lit2lit3lit");
}
END_TEST

START_TEST(errors_name_the_line_and_the_cause)
{
    refuse("a\n{{ nope.x }}", 2, "nope is undefined");
    refuse("a\n\n{% if %}", 3, "expected an expression");
    refuse("{{ 1 }}\n{% for x in a %}\n", 2, "'endfor'");
    refuse("{{ 'a'\n + 1 }}", 1, "string and a integer");
    refuse("\n{{ raise_exception('no ' ~ s) }}", 2, "no user");
    refuse("{{ a.append(1) }}", 1, "undefined");
    refuse("{{ s|nofilter }}", 1, "no filter named 'nofilter'");
    refuse("{% include 'x' %}", 1, "tag 'include'");
    refuse("{{ s|pprint }}", 1, "filter 'pprint' is not supported");
    refuse("{{ 9223372036854775807 + 1 }}", 1, "64 bits");
    refuse("{# never", 1, "comment");
    refuse("{{ 'never }}", 1, "string without an end");
}
END_TEST

START_TEST(the_date_comes_from_the_caller_only)
{
    struct chat_template *t = NULL;
    struct chat_spans s = {0};
    struct err e = {0};
    static const char text[] = "{{ strftime_now('%d %b %Y') }}{{ __now is defined }}";
    expect(text, "26 Jul 2024False");
    ck_assert_int_eq(chat_compile(&t, text, sizeof text - 1, &e), ERR_OK);
    json_t *vars = json_object();
    ck_assert_int_eq(chat_render(t, vars, NULL, 0, &s, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "no clock"));
    json_object_set_new(vars, CHAT_NOW_KEY, json_string("2024-02-30"));
    ck_assert_int_eq(chat_render(t, vars, NULL, 0, &s, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "2024-02-30"));
    json_decref(vars);
    chat_free(t);
}
END_TEST

START_TEST(hostile_templates_end_with_an_error)
{
    refuse("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 1, "recursion");
    refuse("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", 1,
           "steps");
    refuse("{{ 'x' * 99999999999 }}", 1, "grows beyond");
    refuse(
        "{% set ns = namespace(s='0123456789') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s "
        "%}{% endfor %}",
        1, "grows beyond");
    refuse("{% set ns = namespace(l=[1, 2]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}"
           "{% endfor %}",
           1, "");
    refuse("{{ range(100001) }}", 1, "100000");
    refuse("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", 1, "recursion");
    refuse("{{ 'abc'|center(999999999999) }}", 1, "width");
    refuse("{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = s.rfind('a' * 999 ~ "
           "'b') %}{% endfor %}",
           1, "steps");
}
END_TEST

/* n times `head`, then `tail`. */
static void refuse_repeated(const char *head, size_t n, const char *tail)
{
    struct strbuf b = {0};
    struct chat_spans s;
    struct err e = {0};
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&b, head);
    strbuf_puts(&b, tail);
    ck_assert_msg(run(b.data, &s, &e) == ERR_INPUT, "%s", head);
    strbuf_free(&b);
}

START_TEST(deep_templates_are_refused_not_followed)
{
    refuse_repeated("{{ ", 1, "((((((((((((((((((((");
    refuse_repeated("{% if a %}", 10000, "");
    refuse_repeated("{{ (", 1, "x");
    refuse_repeated("{{ 1 + (", 1, "");
    struct strbuf b = {0};
    static const char *const heads[] = {"(", "[", "{1:", "-", "not ", "a[", "f(", "1 if ", "x|f("};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        strbuf_clear(&b);
        strbuf_puts(&b, "{{ ");
        for (int k = 0; k < 50000; k++)
            strbuf_puts(&b, heads[i]);
        refuse_repeated(b.data, 1, "1 }}");
    }
    static const char *const tails[] = {" + 1",   ".x",      "[0]", "|e",
                                        " and 1", " is odd", "()",  " ** 2"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        strbuf_clear(&b);
        strbuf_puts(&b, "{{ 1");
        for (int k = 0; k < 50000; k++)
            strbuf_puts(&b, tails[i]);
        refuse_repeated(b.data, 1, " }}");
    }
    strbuf_free(&b);
}
END_TEST

START_TEST(text_that_is_not_utf8_is_refused)
{
    struct chat_template *t = NULL;
    struct err e = {0};
    ck_assert_int_eq(chat_compile(&t, "a\xff", 2, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "byte 1"));
    ck_assert_ptr_null(t);
}
END_TEST

START_TEST(one_template_renders_many_times_the_same)
{
    static const char text[] =
        "{% set x = 'a' 'b' %}{% for i in range(3) %}{% set x = x ~ i %}{{ x }}"
        "{% endfor %}{{ x ~ s }}";
    struct chat_template *t = NULL;
    struct err e = {0};
    json_t *vars = json_pack("{s:s}", "s", "!");
    ck_assert_int_eq(chat_compile(&t, text, sizeof text - 1, &e), ERR_OK);
    for (int i = 0; i < 3; i++) {
        struct chat_spans s;
        ck_assert_int_eq(chat_render(t, vars, NULL, 0, &s, &e), ERR_OK);
        ck_assert_str_eq(s.text.data, "ab0ab1ab2ab!");
        ck_assert_uint_eq(s.n, 2);
        chat_spans_free(&s);
    }
    json_decref(vars);
    chat_free(t);
}
END_TEST

static void expect_normal(const char *in, const char *want)
{
    json_t *messages = NULL, *out = NULL;
    struct strbuf b = {0};
    struct err e = {0};
    ck_assert_int_eq(json_parse(in, strlen(in), &messages, &e), ERR_OK);
    enum err_code rc = chat_messages_normalize(messages, &out, &e);
    if (want) {
        ck_assert_int_eq(rc, ERR_OK);
        json_put(&b, out, 0);
        ck_assert_str_eq(b.data, want);
    } else {
        ck_assert_int_eq(rc, ERR_INPUT);
        ck_assert_ptr_null(out);
    }
    strbuf_free(&b);
    json_decref(out);
    json_decref(messages);
}

START_TEST(messages_lose_nulls_and_find_their_reasoning)
{
    expect_normal("[{\"role\":\"a\",\"content\":null,\"x\":{\"y\":null}}]",
                  "[{\"role\":\"a\",\"x\":{\"y\":null}}]");
    expect_normal("[{\"reasoning_content\":null,\"role\":\"a\",\"reasoning\":\"r\"}]",
                  "[{\"thinking\":\"r\",\"role\":\"a\",\"reasoning\":\"r\","
                  "\"reasoning_content\":\"r\"}]");
    expect_normal("[{\"reasoning_content\":\"c\",\"thinking\":\"t\"}]",
                  "[{\"thinking\":\"t\",\"reasoning_content\":\"c\"}]");
    expect_normal("[]", NULL);
    expect_normal("{}", NULL);
    expect_normal("[1]", NULL);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("chat");
    TCase *c = tcase_create("chat");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, values_print_as_python_prints_them);
    tcase_add_test(c, sets_in_a_loop_stay_there_and_in_an_if_do_not);
    tcase_add_test(c, white_space_follows_trim_and_lstrip_blocks);
    tcase_add_test(c, request_text_is_untrusted_wherever_it_goes);
    tcase_add_test(c, tojson_and_printed_values_keep_marks_and_escapes);
    tcase_add_test(c, a_string_grows_without_touching_the_one_it_grew_from);
    tcase_add_test(c, errors_name_the_line_and_the_cause);
    tcase_add_test(c, the_date_comes_from_the_caller_only);
    tcase_add_test(c, hostile_templates_end_with_an_error);
    tcase_add_test(c, deep_templates_are_refused_not_followed);
    tcase_add_test(c, text_that_is_not_utf8_is_refused);
    tcase_add_test(c, one_template_renders_many_times_the_same);
    tcase_add_test(c, messages_lose_nulls_and_find_their_reasoning);
    suite_add_tcase(s, c);
    return s;
}
