/* test_io_lines.c: lines through plain and gzip files, cut at every byte and damaged. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "common/io.h"
#include "common/rng.h"
#include "tests/check_main.h"

/* All lines joined by '|', over-long ones in brackets; the reader's own code is the result. */
static enum err_code read_lines(const char *path, size_t max, struct strbuf *out, struct err *e)
{
    struct io_lines *l;
    const char *line;
    size_t len;
    bool too_long;
    enum err_code rc = io_lines_open(&l, path, e);
    if (rc != ERR_OK)
        return rc;
    while ((rc = io_lines_next(l, max, &line, &len, &too_long, e)) == ERR_OK && line) {
        ck_assert_uint_le(len, max);
        ck_assert_int_eq(line[len], 0);
        strbuf_puts(out, too_long ? "[" : "");
        strbuf_append(out, line, len);
        strbuf_puts(out, too_long ? "]|" : "|");
    }
    io_lines_close(l);
    return rc;
}

static void assert_lines(const char *text, size_t n, size_t max, const char *expected)
{
    const char *path = test_path(test_folder(), "f");
    struct strbuf b = {0};
    test_spill(path, text, n);
    ck_assert_int_eq(read_lines(path, max, &b, NULL), ERR_OK);
    ck_assert_str_eq(b.data ? b.data : "", expected);
    strbuf_free(&b);
}

/* One gzip member; the caller frees. */
static uint8_t *gzip(const void *data, size_t n, size_t *packed)
{
    z_stream z = {0};
    size_t room = n + n / 100 + 200;
    uint8_t *out = malloc(room);
    ck_assert_int_eq(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (unsigned)n;
    z.next_out = out;
    z.avail_out = (unsigned)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    *packed = room - z.avail_out;
    deflateEnd(&z);
    return out;
}

START_TEST(line_ends_and_last_lines)
{
    assert_lines("", 0, 10, "");
    assert_lines("\n", 1, 10, "|");
    assert_lines("a\nb", 3, 10, "a|b|");
    assert_lines("a\r\n\r\nb\r\n", 8, 10, "a||b|");
    assert_lines("a\rb\nc\r", 6, 10, "a\rb|c\r|");
}
END_TEST

START_TEST(lines_over_the_limit_are_skipped_and_said)
{
    assert_lines("12345\n123456\n1\n", 15, 5, "12345|[12345]|1|");
    assert_lines("12345\r\n123456\r\n", 15, 5, "12345|[12345]|");
    assert_lines("1234567", 7, 5, "[12345]|");
    assert_lines("ab\n", 3, 0, "[]|");
    assert_lines("\n", 1, 0, "|");
}
END_TEST

START_TEST(lines_longer_than_any_buffer_and_a_number_for_each)
{
    const char *path = test_path(test_folder(), "f");
    size_t n = 300000, len;
    char *text = malloc(3 * n);
    memset(text, 'x', 3 * n);
    text[n] = text[2 * n + 1] = '\n';
    test_spill(path, text, 2 * n + 2);
    struct io_lines *l;
    const char *line;
    bool too_long;
    ck_assert_int_eq(io_lines_open(&l, path, NULL), ERR_OK);
    ck_assert_uint_eq(io_lines_number(l), 0);
    for (uint64_t i = 1; i <= 2; i++) {
        ck_assert_int_eq(io_lines_next(l, n, &line, &len, &too_long, NULL), ERR_OK);
        ck_assert_uint_eq(len, n);
        ck_assert(!too_long);
        ck_assert_uint_eq(io_lines_number(l), i);
    }
    ck_assert_int_eq(io_lines_next(l, n, &line, &len, &too_long, NULL), ERR_OK);
    ck_assert_ptr_null(line);
    io_lines_close(l);
    io_lines_close(NULL);
    free(text);
}
END_TEST

START_TEST(gzip_is_told_by_content_and_members_follow_one_another)
{
    const char *path = test_path(test_folder(), "no-gz-in-the-name");
    size_t a, b;
    uint8_t *first = gzip("one\ntw", 6, &a), *second = gzip("o\nthree", 7, &b);
    uint8_t all[300];
    memcpy(all, first, a);
    memcpy(all + a, second, b);
    test_spill(path, all, a + b);
    struct strbuf out = {0};
    ck_assert_int_eq(read_lines(path, 100, &out, NULL), ERR_OK);
    ck_assert_str_eq(out.data, "one|two|three|");
    strbuf_free(&out);
    free(first);
    free(second);
}
END_TEST

/* A text that does not compress away, so that the file spans several buffers. */
static char *noisy_text(size_t n)
{
    char *text = malloc(n);
    struct rng r = {.seed = 1};
    for (size_t i = 0; i < n; i++)
        text[i] = rng_below(&r, 60) ? (char)('!' + rng_below(&r, 90)) : '\n';
    text[n - 1] = '\n';
    return text;
}

START_TEST(gzip_gives_the_lines_of_the_plain_file)
{
    const char *dir = test_folder(), *plain = test_path(dir, "p"), *packed = test_path(dir, "z");
    size_t n = 400000, m;
    char *text = noisy_text(n);
    uint8_t *z = gzip(text, n, &m);
    test_spill(plain, text, n);
    test_spill(packed, z, m);
    struct strbuf a = {0}, b = {0};
    ck_assert_int_eq(read_lines(plain, 1000, &a, NULL), ERR_OK);
    ck_assert_int_eq(read_lines(packed, 1000, &b, NULL), ERR_OK);
    ck_assert_uint_eq(a.len, b.len);
    ck_assert_int_eq(memcmp(a.data, b.data, a.len), 0);
    strbuf_free(&a);
    strbuf_free(&b);
    free(z);
    free(text);
}
END_TEST

/* Bytes between lines, in a file whose lines and bytes cross the reader's buffers. */
START_TEST(bytes_follow_a_line)
{
    const char *dir = test_folder(), *path = test_path(dir, _i ? "z" : "p");
    size_t n = 150000, m = 0;
    char *text = noisy_text(2 * n);
    memcpy(text, "head\n", 5);
    text[5 + n] = '\n';
    memcpy(text + 6 + n, "tail", 4);
    uint8_t *z = gzip(text, n + 10, &m);
    test_spill(path, _i ? (const void *)z : text, _i ? m : n + 10);
    struct io_lines *l;
    struct strbuf b = {0};
    struct err e = {.text = ""};
    const char *line;
    size_t len;
    bool too_long;
    ck_assert_int_eq(io_lines_open(&l, path, NULL), ERR_OK);
    ck_assert_int_eq(io_lines_next(l, 10, &line, &len, &too_long, NULL), ERR_OK);
    ck_assert_int_eq(io_lines_bytes(l, 0, &b, NULL), ERR_OK);
    ck_assert(b.data && b.len == 0);
    ck_assert_int_eq(io_lines_bytes(l, n + 1, &b, NULL), ERR_OK);
    ck_assert_uint_eq(b.len, n + 1);
    ck_assert_int_eq(memcmp(b.data, text + 5, n + 1), 0);
    ck_assert_int_eq(io_lines_next(l, 10, &line, &len, &too_long, NULL), ERR_OK);
    ck_assert_str_eq(line, "tail");
    ck_assert_int_eq(io_lines_bytes(l, 7, &b, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "7 bytes are missing") != NULL, "%s", e.text);
    io_lines_close(l);
    strbuf_free(&b);
    free(z);
    free(text);
}
END_TEST

START_TEST(gzip_cut_anywhere_is_an_error_with_the_line)
{
    const char *path = test_path(test_folder(), "f");
    size_t m;
    uint8_t *z = gzip("one\ntwo\nthree\n", 14, &m);
    for (size_t cut = 2; cut < m; cut++) {
        struct strbuf out = {0};
        struct err e;
        test_spill(path, z, cut);
        ck_assert_msg(read_lines(path, 100, &out, &e) == ERR_INPUT, "cut at %zu of %zu", cut, m);
        ck_assert_ptr_nonnull(strstr(e.text, "cut off after line"));
        strbuf_free(&out);
    }
    free(z);
}
END_TEST

START_TEST(gzip_damaged_in_its_sums_or_followed_by_rubbish_is_an_error)
{
    const char *path = test_path(test_folder(), "f");
    size_t m;
    uint8_t *z = gzip("one\ntwo\nthree\n", 14, &m);
    for (size_t at = m - 8; at < m; at++) {
        struct strbuf out = {0};
        struct err e;
        z[at] ^= 1;
        test_spill(path, z, m);
        z[at] ^= 1;
        ck_assert_msg(read_lines(path, 100, &out, &e) == ERR_INPUT, "byte %zu of %zu", at, m);
        ck_assert_ptr_nonnull(strstr(e.text, "line 3"));
        strbuf_free(&out);
    }
    static const char *const tails[] = {"x", "xyz", "\x1f", "\x1f\x8c"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        uint8_t all[200];
        struct strbuf out = {0};
        memcpy(all, z, m);
        memcpy(all + m, tails[i], strlen(tails[i]));
        test_spill(path, all, m + strlen(tails[i]));
        ck_assert_int_eq(read_lines(path, 100, &out, NULL), ERR_INPUT);
        strbuf_free(&out);
    }
    free(z);
}
END_TEST

START_TEST(a_dash_is_standard_input)
{
    const char *path = test_path(test_folder(), "f");
    struct strbuf out = {0};
    test_spill(path, "a\nb\n", 4);
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    ck_assert_int_eq(read_lines("-", 10, &out, NULL), ERR_OK);
    ck_assert_str_eq(out.data, "a|b|");
    ck_assert_int_ge(fcntl(STDIN_FILENO, F_GETFD), 0);
    strbuf_free(&out);
    close(fd);
}
END_TEST

START_TEST(any_read_or_allocation_may_fail)
{
    const char *dir = test_folder(), *path = test_path(dir, "f");
    enum io_fault kind = _i % 2 ? IO_FAULT_ALLOC : IO_FAULT_READ;
    size_t n = 200000, m;
    char *text = noisy_text(n);
    uint8_t *z = gzip(text, n, &m);
    test_spill(path, _i / 2 ? (char *)z : text, _i / 2 ? m : n);
    int failed = 0;
    for (int nth = 1; nth < 1000; nth++) {
        struct io_lines *l = NULL;
        struct err e = {.text = ""};
        const char *line = "";
        size_t len, lines = 0;
        bool too_long;
        io_fault_set(kind, nth);
        enum err_code rc = io_lines_open(&l, path, &e);
        for (; rc == ERR_OK && line; lines++)
            rc = io_lines_next(l, 1000, &line, &len, &too_long, &e);
        io_fault_set(kind, 0);
        io_lines_close(l);
        if (rc == ERR_OK) {
            ck_assert_uint_gt(lines, 3000);
            break;
        }
        failed++;
        ck_assert_int_eq(rc, kind == IO_FAULT_ALLOC ? ERR_NOMEM : ERR_IO);
        ck_assert_uint_gt(strlen(e.text), 0);
    }
    ck_assert_int_ge(failed, 4);
    ck_assert_int_lt(failed, 999);
    free(z);
    free(text);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("io_lines");
    TCase *t = tcase_create("io_lines");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, line_ends_and_last_lines);
    tcase_add_test(t, lines_over_the_limit_are_skipped_and_said);
    tcase_add_test(t, lines_longer_than_any_buffer_and_a_number_for_each);
    tcase_add_test(t, gzip_is_told_by_content_and_members_follow_one_another);
    tcase_add_test(t, gzip_gives_the_lines_of_the_plain_file);
    tcase_add_loop_test(t, bytes_follow_a_line, 0, 2);
    tcase_add_test(t, gzip_cut_anywhere_is_an_error_with_the_line);
    tcase_add_test(t, gzip_damaged_in_its_sums_or_followed_by_rubbish_is_an_error);
    tcase_add_test(t, a_dash_is_standard_input);
    tcase_add_loop_test(t, any_read_or_allocation_may_fail, 0, 4);
    suite_add_tcase(s, t);
    return s;
}
