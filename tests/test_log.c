/* test_log.c: levels, prefixes, the words of the progress line. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/check_main.h"

static const char *captured;

static void capture(void)
{
    captured = test_path(test_folder(), "stderr");
    int fd = open(captured, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    close(fd);
}

static void assert_said(const char *expected)
{
    char *text = test_slurp(captured, NULL);
    ck_assert_str_eq(text, expected);
    free(text);
}

static void say_all(void)
{
    log_error("e%d", 1);
    log_warn("w%d", 2);
    log_info("i%d", 3);
    log_debug("d%d", 4);
}

START_TEST(each_level_shows_itself_and_what_is_graver)
{
    static const char *const expected[] = {
        "assay x: error: e1\n", "assay x: error: e1\nassay x: warning: w2\n",
        "assay x: error: e1\nassay x: warning: w2\nassay x: i3\n",
        "assay x: error: e1\nassay x: warning: w2\nassay x: i3\nassay x: debug: d4\n"};
    capture();
    log_set_prog("assay x");
    log_set_level((enum log_level)_i);
    say_all();
    assert_said(expected[_i]);
}
END_TEST

START_TEST(progress_says_share_rate_and_time_left)
{
    char text[200];
    struct progress p = {.what = "quantize", .unit = "B", .total = 2000000000, .done = 500000000};
    progress_text(&p, 2500000000u, text, sizeof text);
    ck_assert_str_eq(text, "quantize 25%, 500.0 MB of 2.0 GB, 200.0 MB/s, 0:08 left");
    p = (struct progress){.what = "run", .unit = "prompts", .total = 10000, .done = 1};
    progress_text(&p, 1000000000u, text, sizeof text);
    ck_assert_str_eq(text, "run 0%, 1 prompts of 10000 prompts, 1.0 prompts/s, 2:46:39 left");
    p = (struct progress){.what = "read", .unit = "B", .done = 1000};
    progress_text(&p, 1000000000u, text, sizeof text);
    ck_assert_str_eq(text, "read 1.0 kB, 1.0 kB/s");
    p = (struct progress){.what = "read", .unit = "B", .total = 10, .done = 12};
    progress_text(&p, 0, text, sizeof text);
    ck_assert_str_eq(text, "read 100%, 12 B of 10 B, 0 B/s");
}
END_TEST

START_TEST(short_work_says_nothing_where_there_is_no_terminal)
{
    struct progress p;
    capture();
    progress_start(&p, "work", "B", 100);
    for (int i = 0; i < 100; i++)
        progress_add(&p, 1);
    progress_end(&p);
    assert_said("");
    ck_assert_uint_eq(p.done, 100);
}
END_TEST

START_TEST(the_clock_does_not_go_back)
{
    uint64_t last = clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_ns();
        ck_assert_uint_ge(now, last);
        last = now;
    }
}
END_TEST

START_TEST(times_are_written_in_utc)
{
    char buf[32];
    ck_assert_str_eq(clock_utc(buf, 0), "1970-01-01 00:00:00 UTC");
    ck_assert_str_eq(clock_utc(buf, 1709176620), "2024-02-29 03:17:00 UTC");
    ck_assert(clock_unix() > 1700000000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("log");
    TCase *t = tcase_create("log");
    tcase_add_loop_test(t, each_level_shows_itself_and_what_is_graver, 0, 4);
    tcase_add_test(t, progress_says_share_rate_and_time_left);
    tcase_add_test(t, short_work_says_nothing_where_there_is_no_terminal);
    tcase_add_test(t, the_clock_does_not_go_back);
    tcase_add_test(t, times_are_written_in_utc);
    suite_add_tcase(s, t);
    return s;
}
