/* test_child.c: ends of children: codes, signals, limits, retries, groups, interruptions. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/str.h"
#include "jobs/child.h"
#include "tests/check_main.h"

static const char *folder;

static enum err_code sh(const char *script, const struct child_limits *limits,
                        const volatile int *interrupted, struct child_result *r)
{
    struct child_args a = {.n = 0};
    struct err e = {.text = ""};
    child_arg(&a, "/bin/sh");
    child_arg(&a, "-c");
    child_arg(&a, "%s", script);
    child_arg(&a, "sh");
    child_arg(&a, "%s", folder);
    enum err_code rc = child_run(&a, test_path(folder, "out"), test_path(folder, "log"), limits,
                                 interrupted, r, &e);
    child_args_free(&a);
    return rc;
}

static char *slurp(const char *name)
{
    size_t n;
    return test_slurp(test_path(folder, name), &n);
}

START_TEST(an_end_is_a_code_or_a_signal)
{
    const struct child_limits none = {.seconds = 0};
    struct child_result r;
    folder = test_folder();
    ck_assert(sh("echo data; echo first >&2; echo 'last words' >&2; exit 3", &none, NULL, &r) ==
              ERR_OK);
    ck_assert_int_eq(r.end, CHILD_EXITED);
    ck_assert_int_eq(r.code, 3);
    ck_assert_str_eq(r.said, "last words");
    ck_assert(child_error(&r) == ERR_INPUT);
    char *out = slurp("out");
    ck_assert_str_eq(out, "data\n");
    free(out);
    ck_assert(sh("kill -SEGV $$", &none, NULL, &r) == ERR_OK);
    ck_assert_int_eq(r.end, CHILD_SIGNALLED);
    ck_assert_int_eq(r.code, SIGSEGV);
    ck_assert(child_error(&r) == ERR_INTERNAL);
    ck_assert(sh("read x; [ -z \"$x\" ]", &none, NULL, &r) == ERR_OK);
    ck_assert_int_eq(r.code, 0);
}
END_TEST

START_TEST(what_cannot_start_is_an_error)
{
    const struct child_limits none = {.seconds = 0};
    struct child_args a = {.n = 0};
    struct child_result r;
    struct err e = {.text = ""};
    folder = test_folder();
    child_arg(&a, "%s/no-such-program", folder);
    ck_assert(child_run(&a, NULL, test_path(folder, "log"), &none, NULL, &r, &e) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "no-such-program"));
    child_args_free(&a);
}
END_TEST

START_TEST(codes_5_and_75_are_retried_and_nothing_else)
{
    static const struct {
        const char *script;
        int code, attempts;
    } cases[] = {{"exit 5", 5, 3},
                 {"exit 75", 75, 3},
                 {"exit 3", 3, 1},
                 {"exit 70", 70, 1},
                 {"exit 1", 1, 1},
                 {"kill -KILL $$", SIGKILL, 1},
                 {"[ -e $1/again ] || { : >$1/again; exit 75; }", 0, 2}};
    const struct child_limits limits = {.retries = 2, .pause = 0.01};
    folder = test_folder();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct child_result r;
        ck_assert(sh(cases[i].script, &limits, NULL, &r) == ERR_OK);
        ck_assert_int_eq(r.code, cases[i].code);
        ck_assert_msg(r.attempts == cases[i].attempts, "%s: %d attempts", cases[i].script,
                      r.attempts);
    }
}
END_TEST

/* No process of that number, or one that only waits to be collected. */
static bool dead(int64_t pid)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    bool zombie = !f || !fgets(text, sizeof text, f) || strstr(text, ") Z ");
    if (f)
        fclose(f);
    return zombie;
}

static bool gone(const char *name)
{
    char *text = slurp(name);
    int64_t pid = 0;
    text[strcspn(text, "\n")] = 0;
    ck_assert(str_to_i64(text, 1, INT32_MAX, &pid));
    free(text);
    for (int i = 0; i < 100 && !dead(pid); i++)
        usleep(10000);
    return dead(pid);
}

START_TEST(a_child_that_hangs_is_stopped_with_its_own_children)
{
    const struct child_limits limits = {.seconds = 0.3, .retries = 5};
    struct child_result r;
    folder = test_folder();
    uint64_t began = clock_ns();
    ck_assert(sh("sleep 100 & echo $! >$1/pid; wait", &limits, NULL, &r) == ERR_OK);
    ck_assert_int_eq(r.end, CHILD_TIMED_OUT);
    ck_assert_int_eq(r.attempts, 1);
    ck_assert((double)(clock_ns() - began) < 5e9);
    ck_assert(gone("pid"));
    ck_assert(child_error(&r) == ERR_IO);
    struct strbuf b = {0};
    child_ending(&r, &limits, &b);
    ck_assert_str_eq(b.data, "stopped at its limit of 0.3 s");
    strbuf_free(&b);
}
END_TEST

START_TEST(what_a_child_leaves_behind_ends_with_it)
{
    const struct child_limits none = {.seconds = 0};
    struct child_result r;
    folder = test_folder();
    ck_assert(sh("sleep 100 & echo $! >$1/pid", &none, NULL, &r) == ERR_OK);
    ck_assert_int_eq(r.code, 0);
    ck_assert(gone("pid"));
}
END_TEST

START_TEST(memory_is_limited)
{
    struct child_limits limits = {.memory = 64000000};
    const char *eat = "exec python3 -c 'x = bytearray(200 << 20)'";
    struct child_result r;
    folder = test_folder();
    ck_assert(sh(eat, &limits, NULL, &r) == ERR_OK);
    ck_assert_int_ne(r.code, 0);
    limits.memory = 0;
    ck_assert(sh(eat, &limits, NULL, &r) == ERR_OK);
    ck_assert_int_eq(r.code, 0);
}
END_TEST

static volatile int interrupted;

static void on_alarm(int number)
{
    interrupted = number;
}

START_TEST(an_interruption_ends_the_child)
{
    const struct child_limits none = {.seconds = 0};
    struct child_result r;
    folder = test_folder();
    interrupted = 0;
    signal(SIGUSR1, on_alarm);
    pid_t self = getpid();
    char script[200];
    snprintf(script, sizeof script, "echo $$ >$1/pid; kill -USR1 %d; sleep 100", (int)self);
    uint64_t began = clock_ns();
    ck_assert(sh(script, &none, &interrupted, &r) == ERR_INTERRUPTED);
    ck_assert((double)(clock_ns() - began) < 5e9);
    ck_assert(gone("pid"));
}
END_TEST

START_TEST(command_lines_are_quoted)
{
    struct child_args a = {.n = 0};
    struct strbuf b = {0};
    child_arg(&a, "assay");
    child_arg(&a, "--x=%d", 3);
    child_arg(&a, "it's here");
    child_arg(&a, "%s", "");
    child_args_text(&a, &b);
    ck_assert_str_eq(b.data, "assay --x=3 'it'\\''s here' ''");
    for (int i = 0; i < CHILD_ARGS_MAX; i++)
        child_arg(&a, "x");
    ck_assert(a.failed);
    strbuf_free(&b);
    child_args_free(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("child");
    TCase *t = tcase_create("child");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, an_end_is_a_code_or_a_signal);
    tcase_add_test(t, what_cannot_start_is_an_error);
    tcase_add_test(t, codes_5_and_75_are_retried_and_nothing_else);
    tcase_add_test(t, a_child_that_hangs_is_stopped_with_its_own_children);
    tcase_add_test(t, what_a_child_leaves_behind_ends_with_it);
    tcase_add_test(t, memory_is_limited);
    tcase_add_test(t, an_interruption_ends_the_child);
    tcase_add_test(t, command_lines_are_quoted);
    suite_add_tcase(s, t);
    return s;
}
