/* test_io_out.c: a file is made whole or not at all, whatever fails and whoever else runs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/check_main.h"

static void assert_holds(const char *path, const char *text)
{
    char *data = test_slurp(path, NULL);
    ck_assert_str_eq(data, text);
    free(data);
}

START_TEST(nothing_appears_before_the_commit)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    struct io_out *o;
    ck_assert_int_eq(io_out_open(&o, path, false, NULL), ERR_OK);
    ck_assert_int_eq(io_out_write(o, "new", 3, NULL), ERR_OK);
    ck_assert(!io_exists(path));
    ck_assert_int_eq(io_out_commit(o, NULL), ERR_OK);
    ck_assert_str_eq(test_names(dir), "f");
    assert_holds(path, "new");
}
END_TEST

START_TEST(an_abort_leaves_nothing)
{
    const char *dir = test_folder();
    struct io_out *o;
    ck_assert_int_eq(io_out_open(&o, test_path(dir, "f"), false, NULL), ERR_OK);
    ck_assert_int_eq(io_out_write(o, "new", 3, NULL), ERR_OK);
    io_out_abort(o);
    io_out_abort(NULL);
    ck_assert_str_eq(test_names(dir), "");
}
END_TEST

START_TEST(an_existing_file_is_kept_unless_replaced)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    struct err e;
    test_spill(path, "old", 3);
    ck_assert_int_eq(io_write_all(path, "new", 3, false, &e), ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, "exists already"));
    assert_holds(path, "old");
    ck_assert_int_eq(io_write_all(path, "new", 3, true, &e), ERR_OK);
    assert_holds(path, "new");
    ck_assert_int_eq(io_write_all(dir, "new", 3, true, &e), ERR_USAGE);
    ck_assert_int_eq(io_write_all(test_path(dir, "x/"), "new", 3, true, &e), ERR_USAGE);
    ck_assert_int_eq(io_write_all(test_path(dir, "x/y"), "new", 3, true, &e), ERR_IO);
    ck_assert_str_eq(test_names(dir), "f");
}
END_TEST

START_TEST(a_file_that_appears_meanwhile_is_not_overwritten)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    struct io_out *o;
    struct err e;
    ck_assert_int_eq(io_out_open(&o, path, false, &e), ERR_OK);
    test_spill(path, "theirs", 6);
    ck_assert_int_eq(io_out_commit(o, &e), ERR_USAGE);
    assert_holds(path, "theirs");
    ck_assert_str_eq(test_names(dir), "f");
}
END_TEST

START_TEST(small_large_and_placed_writes_mix)
{
    const char *path = test_path(test_folder(), "f");
    size_t n = 3 << 20, at = 0;
    uint8_t *data = malloc(n);
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 31 + (i >> 9));
    struct io_out *o;
    ck_assert_int_eq(io_out_open(&o, path, false, NULL), ERR_OK);
    for (size_t step = 1; at < n; step = step * 3 + 1) {
        size_t piece = MIN2(step, n - at);
        ck_assert_int_eq(io_out_write(o, data + at, piece, NULL), ERR_OK);
        at += piece;
        ck_assert_int_eq(io_out_write(o, "", 0, NULL), ERR_OK);
        if (at > 100) {
            memcpy(data + 50, "PLACED", 6);
            ck_assert_int_eq(io_out_write_at(o, 50, "PLACED", 6, NULL), ERR_OK);
        }
    }
    ck_assert_int_eq(io_out_commit(o, NULL), ERR_OK);
    size_t got;
    char *back = test_slurp(path, &got);
    ck_assert_uint_eq(got, n);
    ck_assert_int_eq(memcmp(back, data, n), 0);
    free(back);
    free(data);
}
END_TEST

/* Opens f and dies, or stays until it is told by a byte to die. */
static pid_t other_run(const char *path, int *tell)
{
    int down[2], up[2];
    ck_assert_int_eq(pipe(down) | pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct io_out *o;
        char c;
        close(down[1]);
        if (io_out_open(&o, path, false, NULL) != ERR_OK ||
            io_out_write_at(o, 0, "half", 4, NULL) != ERR_OK || write(up[1], "x", 1) != 1 ||
            read(down[0], &c, 1) < 0)
            _exit(1);
        _exit(0);
    }
    char c;
    close(down[0]);
    close(up[1]);
    ck_assert_int_eq((int)read(up[0], &c, 1), 1);
    close(up[0]);
    *tell = down[1];
    return pid;
}

START_TEST(what_a_dead_run_left_is_removed_and_a_live_run_is_not_disturbed)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    int tell;
    char expected[100];
    pid_t pid = other_run(path, &tell);
    snprintf(expected, sizeof expected, "f.assay-tmp.%ld", (long)pid);
    ck_assert_str_eq(test_names(dir), expected);
    /* Alive: its temporary file stays. */
    ck_assert_int_eq(io_write_all(path, "mine", 4, false, NULL), ERR_OK);
    snprintf(expected, sizeof expected, "f f.assay-tmp.%ld", (long)pid);
    ck_assert_str_eq(test_names(dir), expected);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    close(tell);
    ck_assert_int_eq(io_write_all(path, "again", 5, true, NULL), ERR_OK);
    ck_assert_str_eq(test_names(dir), "f");
    assert_holds(path, "again");
}
END_TEST

START_TEST(names_that_only_look_like_ours_stay)
{
    const char *dir = test_folder();
    test_spill(test_path(dir, "f.assay-tmp.12x"), "", 0);
    test_spill(test_path(dir, "f.assay-tmp."), "", 0);
    test_spill(test_path(dir, "ff.assay-tmp.1"), "", 0);
    ck_assert_int_eq(io_write_all(test_path(dir, "f"), "", 0, false, NULL), ERR_OK);
    ck_assert_str_eq(test_names(dir), "f f.assay-tmp. f.assay-tmp.12x ff.assay-tmp.1");
}
END_TEST

START_TEST(two_writers_of_one_name_in_one_process_are_refused)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    struct io_out *a, *b;
    struct err e;
    ck_assert_int_eq(io_out_open(&a, path, false, &e), ERR_OK);
    ck_assert_int_eq(io_out_open(&b, path, false, &e), ERR_BUSY);
    ck_assert_int_eq(io_out_commit(a, &e), ERR_OK);
    ck_assert_str_eq(test_names(dir), "f");
}
END_TEST

/* The kernel itself refuses here, after a part was written. */
START_TEST(a_file_that_outgrows_what_the_system_allows_is_taken_back)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    struct rlimit limit = {1 << 20, 1 << 20};
    size_t n = 3 << 20;
    char *data = calloc(1, n);
    struct err e;
    test_spill(path, "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(io_write_all(path, data, n, true, &e), ERR_IO);
    ck_assert_ptr_nonnull(strstr(e.text, "File too large"));
    ck_assert_str_eq(test_names(dir), "f");
    assert_holds(path, "old");
    free(data);
}
END_TEST

/* Every write, fsync, rename, read and allocation fails in turn; after each the folder holds the
 * old file or the new one, whole, and nothing else. */
START_TEST(whatever_fails_the_old_or_the_new_file_is_whole)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    enum io_fault kind = (enum io_fault)_i;
    int failed = 0, kept = 0;
    for (int nth = 1; nth < 100; nth++) {
        struct err e = {.text = ""};
        struct io_out *o = NULL;
        test_spill(path, "old", 3);
        io_fault_set(kind, nth);
        enum err_code rc = io_out_open(&o, path, true, &e);
        if (rc == ERR_OK)
            rc = io_out_write(o, "new ", 4, &e);
        if (rc == ERR_OK)
            rc = io_out_write_at(o, 3, "!", 1, &e);
        if (rc != ERR_OK)
            io_out_abort(o);
        else
            rc = io_out_commit(o, &e);
        io_fault_set(kind, 0);
        ck_assert_str_eq(test_names(dir), "f");
        char *now = test_slurp(path, NULL);
        ck_assert(strcmp(now, "new!") == 0 || (strcmp(now, "old") == 0 && rc != ERR_OK));
        kept += strcmp(now, "old") == 0;
        free(now);
        if (rc == ERR_OK && nth > 12)
            break;
        if (rc == ERR_OK)
            continue; /* a fault in tidying up, which is allowed to fail */
        failed++;
        ck_assert_int_eq(rc, kind == IO_FAULT_ALLOC ? ERR_NOMEM : ERR_IO);
        ck_assert_uint_gt(strlen(e.text), 0);
    }
    static const int least[IO_FAULT_KINDS] = {
        [IO_FAULT_READ] = 1, [IO_FAULT_WRITE] = 5, [IO_FAULT_ALLOC] = 4};
    ck_assert_int_ge(failed, least[kind]);
    if (kind != IO_FAULT_READ)
        ck_assert_int_ge(kept, least[kind] - 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("io_out");
    TCase *t = tcase_create("io_out");
    tcase_add_test(t, nothing_appears_before_the_commit);
    tcase_add_test(t, an_abort_leaves_nothing);
    tcase_add_test(t, an_existing_file_is_kept_unless_replaced);
    tcase_add_test(t, a_file_that_appears_meanwhile_is_not_overwritten);
    tcase_add_test(t, small_large_and_placed_writes_mix);
    tcase_add_test(t, what_a_dead_run_left_is_removed_and_a_live_run_is_not_disturbed);
    tcase_add_test(t, names_that_only_look_like_ours_stay);
    tcase_add_test(t, two_writers_of_one_name_in_one_process_are_refused);
    tcase_add_test(t, a_file_that_outgrows_what_the_system_allows_is_taken_back);
    tcase_add_loop_test(t, whatever_fails_the_old_or_the_new_file_is_whole, 0, IO_FAULT_KINDS);
    suite_add_tcase(s, t);
    return s;
}
