/* test_io_dir.c: a folder is made whole or not at all, whatever fails and whoever else runs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/check_main.h"

#define MARKER "assay.json"

static enum err_code put(const struct io_dir_out *d, const char *name, const char *text,
                         struct err *e)
{
    char *path = io_join(io_dir_out_path(d), name);
    if (!path)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = io_write_all(path, text, strlen(text), false, e);
    free(path);
    return rc;
}

/* A folder like a checkpoint with a folder inside. */
static enum err_code make(const char *path, bool replace, const char *text, struct err *e)
{
    struct io_dir_out *d;
    enum err_code rc = io_dir_out_open(&d, path, replace, MARKER, e);
    if (rc != ERR_OK)
        return rc;
    rc = put(d, MARKER, text, e);
    char *sub = io_join(io_dir_out_path(d), "sub");
    if (rc == ERR_OK && !sub)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        mkdir(sub, 0777);
    free(sub);
    if (rc == ERR_OK)
        rc = put(d, "sub/file", text, e);
    if (rc != ERR_OK) {
        io_dir_out_abort(d);
        return rc;
    }
    return io_dir_out_commit(d, e);
}

static void assert_whole(const char *dir, const char *name, const char *text)
{
    char inner[64];
    snprintf(inner, sizeof inner, "%s/" MARKER, name);
    char *a = test_slurp(test_path(dir, inner), NULL);
    snprintf(inner, sizeof inner, "%s/sub/file", name);
    char *b = test_slurp(test_path(dir, inner), NULL);
    ck_assert_str_eq(a, text);
    ck_assert_str_eq(b, text);
    free(a);
    free(b);
}

START_TEST(the_folder_appears_whole_at_the_commit)
{
    const char *dir = test_folder();
    struct io_dir_out *d;
    ck_assert_int_eq(io_dir_out_open(&d, test_path(dir, "out//"), false, MARKER, NULL), ERR_OK);
    ck_assert_int_eq(put(d, "a", "1", NULL), ERR_OK);
    ck_assert(!io_exists(test_path(dir, "out")));
    ck_assert_int_eq(io_dir_out_commit(d, NULL), ERR_OK);
    ck_assert_str_eq(test_names(dir), "out");
    ck_assert_str_eq(test_names(test_path(dir, "out")), "a");
}
END_TEST

START_TEST(an_abort_leaves_nothing)
{
    const char *dir = test_folder();
    struct io_dir_out *d;
    ck_assert_int_eq(io_dir_out_open(&d, test_path(dir, "out"), false, MARKER, NULL), ERR_OK);
    ck_assert_int_eq(put(d, "a", "1", NULL), ERR_OK);
    io_dir_out_abort(d);
    io_dir_out_abort(NULL);
    ck_assert_str_eq(test_names(dir), "");
}
END_TEST

START_TEST(only_what_holds_the_marker_is_replaced)
{
    const char *dir = test_folder(), *out = test_path(dir, "out");
    struct err e;
    ck_assert_int_eq(make(out, false, "one", &e), ERR_OK);
    ck_assert_int_eq(make(out, false, "two", &e), ERR_USAGE);
    assert_whole(dir, "out", "one");
    ck_assert_int_eq(make(out, true, "two", &e), ERR_OK);
    assert_whole(dir, "out", "two");
    ck_assert_int_eq(unlink(test_path(dir, "out/" MARKER)), 0);
    ck_assert_int_eq(make(out, true, "three", &e), ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, MARKER));
    test_spill(test_path(dir, "file"), "x", 1);
    ck_assert_int_eq(make(test_path(dir, "file"), true, "three", &e), ERR_USAGE);
    mkdir(test_path(dir, "empty"), 0777);
    ck_assert_int_eq(make(test_path(dir, "empty"), true, "three", &e), ERR_USAGE);
    ck_assert_int_eq(make(test_path(dir, "empty"), false, "three", &e), ERR_USAGE);
    ck_assert_str_eq(test_names(dir), "empty file out");
}
END_TEST

START_TEST(names_that_are_no_new_folder_are_refused)
{
    const char *dir = test_folder();
    static const char *const bad[] = {"", "/", ".", "..", "///"};
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ck_assert_int_eq(make(bad[i], true, "x", &e), ERR_USAGE);
    ck_assert_int_eq(make(test_path(dir, "."), true, "x", &e), ERR_USAGE);
    ck_assert_int_eq(make(test_path(dir, "none/out"), false, "x", &e), ERR_IO);
    ck_assert_str_eq(test_names(dir), "");
}
END_TEST

START_TEST(a_folder_that_appears_meanwhile_is_not_overwritten)
{
    const char *dir = test_folder();
    struct io_dir_out *d;
    struct err e;
    ck_assert_int_eq(io_dir_out_open(&d, test_path(dir, "out"), false, MARKER, &e), ERR_OK);
    mkdir(test_path(dir, "out"), 0777);
    ck_assert_int_eq(io_dir_out_commit(d, &e), ERR_USAGE);
    ck_assert_str_eq(test_names(dir), "out");
}
END_TEST

/* A run that has begun `out`, said so, and waits. */
static pid_t other_run(const char *path)
{
    int up[2];
    char c;
    ck_assert_int_eq(pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct io_dir_out *d;
        if (io_dir_out_open(&d, path, false, MARKER, NULL) != ERR_OK ||
            put(d, "half", "half", NULL) != ERR_OK || write(up[1], "x", 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(up[1]);
    ck_assert_int_eq((int)read(up[0], &c, 1), 1);
    close(up[0]);
    return pid;
}

START_TEST(a_live_run_is_respected_and_a_dead_one_cleaned_up)
{
    const char *dir = test_folder(), *out = test_path(dir, "out");
    struct err e;
    pid_t pid = other_run(out);
    ck_assert_int_eq(make(out, false, "mine", &e), ERR_BUSY);
    ck_assert_str_eq(test_names(dir), "out.assay-lock out.assay-tmp");
    ck_assert_str_eq(test_names(test_path(dir, "out.assay-tmp")), "half");
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(!io_exists(out));
    ck_assert_int_eq(make(out, false, "mine", &e), ERR_OK);
    ck_assert_str_eq(test_names(dir), "out");
    ck_assert_str_eq(test_names(out), MARKER " sub");
}
END_TEST

START_TEST(a_run_that_died_between_two_renames_is_undone)
{
    const char *dir = test_folder(), *out = test_path(dir, "out");
    struct err e;
    ck_assert_int_eq(make(out, false, "old", &e), ERR_OK);
    ck_assert_int_eq(rename(out, test_path(dir, "out.assay-old")), 0);
    ck_assert_int_eq(make(out, false, "new", &e), ERR_USAGE);
    ck_assert_str_eq(test_names(dir), "out");
    assert_whole(dir, "out", "old");
    ck_assert_int_eq(rename(out, test_path(dir, "out.assay-old")), 0);
    ck_assert_int_eq(make(out, true, "new", &e), ERR_OK);
    ck_assert_str_eq(test_names(dir), "out");
    assert_whole(dir, "out", "new");
}
END_TEST

/* Links inside are links: removing the folder does not follow them. */
START_TEST(what_links_lead_to_survives_a_replacement)
{
    const char *dir = test_folder(), *out = test_path(dir, "out");
    test_spill(test_path(dir, "precious"), "p", 1);
    ck_assert_int_eq(make(out, false, "old", NULL), ERR_OK);
    ck_assert_int_eq(symlink(dir, test_path(dir, "out/link")), 0);
    ck_assert_int_eq(make(out, true, "new", NULL), ERR_OK);
    ck_assert_str_eq(test_names(dir), "out precious");
    assert_whole(dir, "out", "new");
}
END_TEST

START_TEST(whatever_fails_the_old_or_the_new_folder_is_whole)
{
    const char *dir = test_folder();
    char out[256];
    snprintf(out, sizeof out, "%s/out", dir);
    enum io_fault kind = (enum io_fault)(_i % IO_FAULT_KINDS);
    bool replace = _i >= IO_FAULT_KINDS;
    int failed = 0, good = 0;
    for (int nth = 1; nth < 200 && good < 12; nth++) {
        struct err e = {.text = ""};
        if (replace)
            ck_assert_int_eq(make(out, io_exists(out), "old", &e), ERR_OK);
        io_fault_set(kind, nth);
        enum err_code rc = make(out, replace, "new", &e);
        io_fault_set(kind, 0);
        if (rc != ERR_OK) {
            failed++;
            ck_assert_int_eq(rc, kind == IO_FAULT_ALLOC ? ERR_NOMEM : ERR_IO);
            ck_assert_uint_gt(strlen(e.text), 0);
        }
        good += rc == ERR_OK;
        if (!replace && !io_exists(out)) {
            ck_assert_int_ne(rc, ERR_OK);
            ck_assert_str_eq(test_names(dir), "");
            continue;
        }
        char *now = test_slurp(test_path(out, MARKER), NULL);
        ck_assert(strcmp(now, "new") == 0 || (rc != ERR_OK && strcmp(now, "old") == 0));
        assert_whole(dir, "out", now);
        free(now);
        /* Tidying up after a good commit may fail; whatever is left, the next run takes it. */
        ck_assert_int_eq(make(out, true, "next", &e), ERR_OK);
        ck_assert_str_eq(test_names(dir), "out");
        assert_whole(dir, "out", "next");
        if (!replace)
            ck_assert_int_eq(rename(out, test_path(test_folder(), "away")), 0);
    }
    static const int least[IO_FAULT_KINDS] = {
        [IO_FAULT_READ] = 1, [IO_FAULT_WRITE] = 10, [IO_FAULT_ALLOC] = 10};
    ck_assert_int_ge(failed, least[kind]);
    ck_assert_int_ge(good, 12);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("io_dir");
    TCase *t = tcase_create("io_dir");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_folder_appears_whole_at_the_commit);
    tcase_add_test(t, an_abort_leaves_nothing);
    tcase_add_test(t, only_what_holds_the_marker_is_replaced);
    tcase_add_test(t, names_that_are_no_new_folder_are_refused);
    tcase_add_test(t, a_folder_that_appears_meanwhile_is_not_overwritten);
    tcase_add_test(t, a_live_run_is_respected_and_a_dead_one_cleaned_up);
    tcase_add_test(t, a_run_that_died_between_two_renames_is_undone);
    tcase_add_test(t, what_links_lead_to_survives_a_replacement);
    tcase_add_loop_test(t, whatever_fails_the_old_or_the_new_folder_is_whole, 0,
                        2 * IO_FAULT_KINDS);
    suite_add_tcase(s, t);
    return s;
}
