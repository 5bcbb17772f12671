/* test_junit.c: the whole text of a small suite. */
#include "common/junit.h"
#include "tests/check_main.h"

START_TEST(a_suite_is_counted_and_escaped)
{
    static const struct junit_case cases[] = {
        {"g", "good", JUNIT_PASSED, NULL, NULL},
        {"g", "b<a>d", JUNIT_FAILED, "1 & 2", "line\n\x01"},
        {"g", "hurt", JUNIT_ERROR, NULL, NULL},
        {"g", "left out", JUNIT_SKIPPED, "no data", NULL},
    };
    struct strbuf b = {0};
    junit_write(&b, "assay", cases, 4);
    ck_assert_str_eq(b.data, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                             "<testsuite name=\"assay\" tests=\"4\" failures=\"1\" errors=\"1\" "
                             "skipped=\"1\">\n"
                             "  <testcase classname=\"g\" name=\"good\"/>\n"
                             "  <testcase classname=\"g\" name=\"b&lt;a&gt;d\">\n"
                             "    <failure message=\"1 &amp; 2\">line\n\xe2\x90\x81</failure>\n"
                             "  </testcase>\n"
                             "  <testcase classname=\"g\" name=\"hurt\">\n"
                             "    <error></error>\n"
                             "  </testcase>\n"
                             "  <testcase classname=\"g\" name=\"left out\">\n"
                             "    <skipped message=\"no data\"></skipped>\n"
                             "  </testcase>\n"
                             "</testsuite>\n");
    strbuf_free(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("junit");
    TCase *t = tcase_create("junit");
    tcase_add_test(t, a_suite_is_counted_and_escaped);
    suite_add_tcase(s, t);
    return s;
}
