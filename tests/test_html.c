/* test_html.c: hostile text stays text; a page is well formed and fetches nothing. */
#include <stdlib.h>
#include <string.h>

#include "common/html.h"
#include "common/io.h"
#include "common/rng.h"
#include "tests/check_main.h"

static void assert_escaped(const char *text, size_t n, const char *expected)
{
    struct strbuf b = {0};
    html_escape(&b, text, n);
    ck_assert_str_eq(b.data ? b.data : "", expected);
    strbuf_free(&b);
}

START_TEST(markup_controls_and_broken_bytes_are_made_harmless)
{
    assert_escaped("<a href='x'>\"&", 14, "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
    assert_escaped("a\0b\x1b\r\x7f\t\n", 8,
                   "a\xe2\x90\x80"
                   "b\xe2\x90\x9b\xe2\x90\x8d\xe2\x90\xa1\t\n");
    assert_escaped("\xff\xc3(", 3, "\xef\xbf\xbd\xef\xbf\xbd(");
    assert_escaped("\xc3\xa9\xf0\x9f\x98\x80", 6, "\xc3\xa9\xf0\x9f\x98\x80");
    assert_escaped("\xc2\x85\xef\xbf\xbe", 5, "\xef\xbf\xbd\xef\xbf\xbd");
    assert_escaped("", 0, "");
}
END_TEST

START_TEST(whatever_the_bytes_the_result_is_utf8_without_markup)
{
    struct rng r = {.seed = 2};
    for (int i = 0; i < 20000; i++) {
        char text[32];
        size_t n = rng_below(&r, sizeof text);
        struct strbuf b = {0};
        for (size_t k = 0; k < n; k++)
            text[k] = (char)rng_below(&r, 256);
        html_escape(&b, text, n);
        if (b.len) {
            ck_assert_uint_eq(str_utf8_valid(b.data, b.len), b.len);
            ck_assert_uint_eq(strcspn(b.data, "<>\"'"), b.len);
        }
        strbuf_free(&b);
    }
}
END_TEST

static void make_page(struct strbuf *b)
{
    static const struct html_column columns[] = {{"prompt", NULL, false},
                                                 {"KL", "in <nats>", true}};
    html_page_begin(b, "q4 & <q8>");
    html_heading(b, 2, "a\"b", "Worst first");
    html_paragraph(b, "x < y");
    html_table_begin(b, "All", columns, 2);
    html_row_begin(b);
    html_cell(b, "<script>");
    html_cell_number(b, 0.00123456, 3);
    html_row_end(b);
    html_row_begin(b);
    html_cell_int(b, -5);
    html_cell_raw_begin(b, "bad");
    strbuf_puts(b, "<mark>x</mark>");
    html_cell_raw_end(b);
    html_row_end(b);
    html_table_end(b);
    html_fold_begin(b, "more");
    html_fold_end(b);
    html_page_end(b);
}

/* Opened elements are closed in order; void elements of the head are the exception. */
static void assert_balanced(const char *page)
{
    char stack[64][16];
    int depth = 0;
    for (const char *p = strchr(page, '<'); p; p = strchr(p + 1, '<')) {
        char name[16] = "";
        size_t n = strcspn(p + 1 + (p[1] == '/'), " >\n/");
        ck_assert_uint_lt(n, sizeof name);
        memcpy(name, p + 1 + (p[1] == '/'), n);
        if (name[0] == '!' || strcmp(name, "meta") == 0 || name[0] == '?')
            continue;
        if (p[1] == '/') {
            ck_assert_int_gt(depth, 0);
            ck_assert_str_eq(stack[--depth], name);
        } else if (strcspn(p, ">") > 0 && p[strcspn(p, ">") - 1] != '/') {
            ck_assert_int_lt(depth, 64);
            strcpy(stack[depth++], name);
        }
    }
    ck_assert_int_eq(depth, 0);
}

START_TEST(a_page_is_balanced_and_self_contained)
{
    static const char *const there[] = {"<title>q4 &amp; &lt;q8&gt;</title>",
                                        "id=\"a&quot;b\"",
                                        "prefers-color-scheme:dark",
                                        "name=\"viewport\"",
                                        "<td>&lt;script&gt;</td>",
                                        "<td class=\"number\">0.00123</td>",
                                        "<td class=\"number\">-5</td>",
                                        "title=\"in &lt;nats&gt;\"",
                                        "overflow-x:auto",
                                        "<mark>x</mark>"};
    static const char *const not_there[] = {
        "<script", "http:", "https:", "url(", "@import", "src="};
    struct strbuf a = {0}, b = {0};
    make_page(&a);
    make_page(&b);
    ck_assert_str_eq(a.data, b.data);
    assert_balanced(a.data);
    for (size_t i = 0; i < ARRAY_LEN(there); i++)
        ck_assert_msg(strstr(a.data, there[i]) != NULL, "%s", there[i]);
    for (size_t i = 0; i < ARRAY_LEN(not_there); i++)
        ck_assert_msg(strstr(a.data, not_there[i]) == NULL, "%s", not_there[i]);
    strbuf_free(&a);
    strbuf_free(&b);
}
END_TEST

START_TEST(no_memory_is_said_at_the_end)
{
    for (int nth = 1; nth < 10; nth++) {
        struct strbuf b = {0};
        io_fault_set(IO_FAULT_ALLOC, nth);
        make_page(&b);
        io_fault_set(IO_FAULT_ALLOC, 0);
        bool failed = b.failed;
        ck_assert(failed || nth > 2);
        ck_assert_int_eq(strbuf_ok(&b, NULL), failed ? ERR_NOMEM : ERR_OK);
        strbuf_free(&b);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("html");
    TCase *t = tcase_create("html");
    tcase_add_test(t, markup_controls_and_broken_bytes_are_made_harmless);
    tcase_add_test(t, whatever_the_bytes_the_result_is_utf8_without_markup);
    tcase_add_test(t, a_page_is_balanced_and_self_contained);
    tcase_add_test(t, no_memory_is_said_at_the_end);
    suite_add_tcase(s, t);
    return s;
}
