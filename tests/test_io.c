/* test_io.c: maps, whole reads, names of files. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/check_main.h"

START_TEST(a_map_shows_the_bytes_and_an_empty_file_is_no_fault)
{
    const char *dir = test_folder(), *full = test_path(dir, "full"), *empty = test_path(dir, "e");
    struct io_map m;
    test_spill(full, "a\0b", 3);
    test_spill(empty, "", 0);
    ck_assert_int_eq(io_map_open(&m, full, NULL), ERR_OK);
    ck_assert_uint_eq(m.bytes, 3);
    ck_assert_mem_eq(m.data, "a\0b", 3);
    io_map_drop(m.data, m.bytes);
    io_map_close(&m);
    io_map_close(&m);
    ck_assert_int_eq(io_map_open(&m, empty, NULL), ERR_OK);
    ck_assert_ptr_null(m.data);
    io_map_close(&m);
}
END_TEST

START_TEST(dropped_pages_of_a_map_read_the_same_again)
{
    const char *path = test_path(test_folder(), "f");
    size_t n = 1 << 20;
    uint8_t *data = malloc(n);
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 7 + i / 251);
    test_spill(path, data, n);
    struct io_map m;
    ck_assert_int_eq(io_map_open(&m, path, NULL), ERR_OK);
    ck_assert_mem_eq(m.data, data, n);
    io_map_drop(m.data + 5000, n - 9000);
    ck_assert_mem_eq(m.data, data, n);
    io_map_close(&m);
    free(data);
}
END_TEST

START_TEST(what_cannot_be_read_names_its_path_and_the_right_code)
{
    const char *dir = test_folder(), *file = test_path(dir, "f"), *none = test_path(dir, "none");
    const char *under = test_path(dir, "f/x");
    struct err e;
    struct io_map m;
    struct strbuf b = {0};
    uint64_t size;
    char **names;
    size_t n;
    test_spill(file, "x", 1);
    ck_assert_int_eq(io_map_open(&m, none, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, none));
    ck_assert_ptr_nonnull(strstr(e.text, "No such file"));
    ck_assert_int_eq(io_map_open(&m, under, &e), ERR_INPUT);
    ck_assert_int_eq(io_map_open(&m, dir, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "is a folder"));
    ck_assert_int_eq(io_map_open(&m, "/dev/null", &e), ERR_INPUT);
    ck_assert_int_eq(io_read_all(dir, 10, &b, &e), ERR_INPUT);
    ck_assert_int_eq(io_size(none, &size, &e), ERR_INPUT);
    ck_assert_int_eq(io_size(dir, &size, &e), ERR_INPUT);
    ck_assert_int_eq(io_list(file, &names, &n, &e), ERR_INPUT);
    ck_assert_int_eq(io_list(none, &names, &n, &e), ERR_INPUT);
    ck_assert_ptr_null(names);
    strbuf_free(&b);
}
END_TEST

START_TEST(a_whole_read_stops_at_its_limit)
{
    const char *path = test_path(test_folder(), "f");
    struct strbuf b = {0};
    struct err e;
    test_spill(path, "0123456789", 10);
    strbuf_puts(&b, "+");
    ck_assert_int_eq(io_read_all(path, 10, &b, &e), ERR_OK);
    ck_assert_str_eq(b.data, "+0123456789");
    ck_assert_int_eq(io_read_all(path, 9, &b, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "10 bytes, expected at most 9"));
    strbuf_clear(&b);
    /* Its size is said to be 0; only reading tells. */
    ck_assert_int_eq(io_read_all("/proc/self/status", 1 << 20, &b, &e), ERR_OK);
    ck_assert_uint_gt(b.len, 100);
    ck_assert_int_eq(io_read_all("/proc/self/status", 10, &b, &e), ERR_INPUT);
    strbuf_free(&b);
}
END_TEST

START_TEST(names_are_sorted_and_without_dots)
{
    const char *dir = test_folder();
    static const char *const made[] = {"b", "a10", "a9", ".hidden", "Z"};
    static const char *const sorted[] = {".hidden", "Z", "a10", "a9", "b"};
    for (size_t i = 0; i < ARRAY_LEN(made); i++)
        test_spill(test_path(dir, made[i]), "", 0);
    char **names;
    size_t n;
    ck_assert_int_eq(io_list(dir, &names, &n, NULL), ERR_OK);
    ck_assert_uint_eq(n, ARRAY_LEN(sorted));
    for (size_t i = 0; i < n; i++)
        ck_assert_str_eq(names[i], sorted[i]);
    io_names_free(names, n);
    io_names_free(NULL, 0);
}
END_TEST

START_TEST(one_file_under_two_names_is_the_same)
{
    const char *dir = test_folder(), *a = test_path(dir, "a"), *b = test_path(dir, "b");
    const char *c = test_path(dir, "c"), *dots = test_path(dir, "./a");
    test_spill(a, "", 0);
    test_spill(c, "", 0);
    ck_assert_int_eq(symlink(a, b), 0);
    ck_assert(io_same(a, b) && io_same(a, dots) && !io_same(a, c));
    ck_assert(!io_same(a, test_path(dir, "none")));
    ck_assert(io_exists(a) && io_exists(b) && !io_exists(test_path(dir, "none")));
    unlink(a);
    ck_assert(io_exists(b)); /* a link that leads nowhere is still in the way */
    ck_assert(io_is_dir(dir) && !io_is_dir(c));
}
END_TEST

START_TEST(paths_are_joined_and_split)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *path = io_join(cases[i][0], cases[i][1]);
        ck_assert_str_eq(path, cases[i][2]);
        free(path);
    }
    ck_assert_str_eq(io_base("a/b.c"), "b.c");
    ck_assert_str_eq(io_base("b"), "b");
    ck_assert_str_eq(io_base("a/"), "");
}
END_TEST

/* Fails the nth read and allocation of everything here until nothing fails any more. */
START_TEST(any_read_or_allocation_may_fail_and_nothing_is_lost)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    test_spill(path, "text", 4);
    enum io_fault kind = _i ? IO_FAULT_ALLOC : IO_FAULT_READ;
    int failed = 0;
    for (int nth = 1; nth < 100; nth++) {
        struct strbuf b = {0};
        struct io_map m = {0};
        struct err e = {.text = ""};
        char **names = NULL;
        size_t n = 0;
        uint64_t size;
        io_fault_set(kind, nth);
        enum err_code rc = io_map_open(&m, path, &e);
        if (rc == ERR_OK)
            rc = io_read_all(path, 100, &b, &e);
        if (rc == ERR_OK)
            rc = io_list(dir, &names, &n, &e);
        if (rc == ERR_OK)
            rc = io_size(path, &size, &e);
        io_fault_set(kind, 0);
        io_map_close(&m);
        strbuf_free(&b);
        io_names_free(names, n);
        if (rc == ERR_OK)
            break;
        failed++;
        ck_assert_int_eq(rc, kind == IO_FAULT_ALLOC ? ERR_NOMEM : ERR_IO);
        ck_assert_uint_gt(strlen(e.text), 0);
    }
    ck_assert_int_ge(failed, _i ? 3 : 7);
    ck_assert_int_lt(failed, 99);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("io");
    TCase *t = tcase_create("io");
    tcase_add_test(t, a_map_shows_the_bytes_and_an_empty_file_is_no_fault);
    tcase_add_test(t, dropped_pages_of_a_map_read_the_same_again);
    tcase_add_test(t, what_cannot_be_read_names_its_path_and_the_right_code);
    tcase_add_test(t, a_whole_read_stops_at_its_limit);
    tcase_add_test(t, names_are_sorted_and_without_dots);
    tcase_add_test(t, one_file_under_two_names_is_the_same);
    tcase_add_test(t, paths_are_joined_and_split);
    tcase_add_loop_test(t, any_read_or_allocation_may_fail_and_nothing_is_lost, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
