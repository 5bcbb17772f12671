/* test_io_grow.c: a file that grows by whole writes, locked, cut and mended. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/check_main.h"

static void holds(const char *path, const char *text)
{
    char *data = test_slurp(path, NULL);
    ck_assert_str_eq(data, text);
    free(data);
}

START_TEST(it_gathers_writes_reads_and_cuts)
{
    const char *path = test_path(test_folder(), "f");
    struct io_grow *g;
    char got[8] = "";
    ck_assert_int_eq(io_grow_open(&g, path, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_put(g, "one ", 4, NULL), ERR_OK);
    holds(path, "");
    ck_assert_uint_eq(io_grow_bytes(g), 4);
    ck_assert_int_eq(io_grow_read(g, 0, got, 4, NULL), ERR_OK); /* not written yet */
    ck_assert_str_eq(got, "one ");
    ck_assert_int_eq(io_grow_write(g, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_put(g, "two ", 4, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_read(g, 0, got, 4, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_read(g, 4, got, 4, NULL), ERR_OK);
    ck_assert_str_eq(got, "two ");
    ck_assert_int_eq(io_grow_sync(g, NULL), ERR_OK);
    holds(path, "one two ");
    ck_assert_int_eq(io_grow_read(g, 6, got, 4, NULL), ERR_IO);
    ck_assert_int_eq(io_grow_overwrite(g, 1, "--", 2, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_overwrite(g, 7, "--", 2, NULL), ERR_INTERNAL);
    ck_assert_int_eq(io_grow_cut(g, 3, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_cut(g, 9, NULL), ERR_INTERNAL);
    ck_assert_int_eq(io_grow_put(g, "!", 1, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_write(g, NULL), ERR_OK);
    io_grow_close(g);
    holds(path, "o--!");
}
END_TEST

START_TEST(a_failed_write_leaves_whole_ones)
{
    const char *path = test_path(test_folder(), "f");
    struct io_grow *g;
    struct err e = {.text = ""};
    ck_assert_int_eq(io_grow_open(&g, path, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_put(g, "a\n", 2, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_write(g, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_put(g, "b\n", 2, NULL), ERR_OK);
    io_fault_set(IO_FAULT_WRITE, 1);
    ck_assert_int_eq(io_grow_write(g, &e), ERR_IO);
    io_fault_set(IO_FAULT_WRITE, 0);
    ck_assert_ptr_nonnull(strstr(e.text, "/f: "));
    holds(path, "a\n");
    ck_assert_uint_eq(io_grow_bytes(g), 2);
    io_fault_set(IO_FAULT_WRITE, 1);
    ck_assert_int_eq(io_grow_sync(g, &e), ERR_IO); /* nothing gathered: the fdatasync itself */
    io_fault_set(IO_FAULT_WRITE, 0);
    char *big = calloc(1, (size_t)3 << 20);
    io_fault_set(IO_FAULT_WRITE, 1);
    ck_assert_int_eq(io_grow_put(g, big, (size_t)3 << 20, &e), ERR_IO);
    io_fault_set(IO_FAULT_WRITE, 0);
    holds(path, "a\n");
    free(big);
    io_grow_close(g);
}
END_TEST

START_TEST(one_holder_at_a_time)
{
    const char *path = test_path(test_folder(), "f");
    struct io_grow *g, *second;
    struct err e = {.text = ""};
    int status;
    ck_assert_int_eq(io_grow_open(&g, path, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_open(&second, path, &e), ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(e.text, "locked by another run"));
    ck_assert_int_eq(io_remove(path, NULL), ERR_OK); /* by its holder: the next one is another */
    ck_assert_int_eq(io_grow_open(&second, path, &e), ERR_OK);
    io_grow_close(second);
    io_grow_close(g);
    pid_t pid = fork();
    if (pid == 0)
        _exit(io_grow_open(&g, path, NULL) != ERR_OK); /* dies with the lock */
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(io_grow_open(&g, path, &e), ERR_OK);
    io_grow_close(g);
    ck_assert_int_eq(io_remove(path, NULL), ERR_OK);
    ck_assert_int_eq(io_remove(path, NULL), ERR_OK);
    ck_assert_int_eq(io_grow_open(&g, test_folder(), &e), ERR_IO);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("io_grow");
    TCase *t = tcase_create("io_grow");
    tcase_add_test(t, it_gathers_writes_reads_and_cuts);
    tcase_add_test(t, a_failed_write_leaves_whole_ones);
    tcase_add_test(t, one_holder_at_a_time);
    suite_add_tcase(s, t);
    return s;
}
