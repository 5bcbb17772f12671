/* test_census.c: counting a prompt file, its checksums, and ids that stand twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/io.h"
#include "common/rng.h"
#include "infer/census.h"
#include "tests/check_main.h"

static char *write_file(const char *name, const char *text, size_t len)
{
    char *path = io_join(test_folder(), name);
    ck_assert_int_eq(io_write_all(path, text, len, true, NULL), ERR_OK);
    return path;
}

START_TEST(census_counts_and_names_both_lines_of_a_duplicate)
{
    struct census c;
    struct err e = {.text = ""};
    const char *good =
        "{\"prompt\": \"a\"}\n\n  \n{\"custom_id\": \"x\", \"prompt\": \"b\"}\nnot json\n";
    char *path = write_file("good.jsonl", good, strlen(good));
    ck_assert_int_eq(census_take(&c, path, &e), ERR_OK);
    ck_assert_uint_eq(c.n_requests, 3);
    census_free(&c);
    free(path);
    const char *twice = "{\"custom_id\": \"x\"}\n{\"prompt\": \"a\"}\n{\"custom_id\": \"x\"}\n";
    path = write_file("twice.jsonl", twice, strlen(twice));
    ck_assert_int_eq(census_take(&c, path, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "line 1 and again on line 3"));
    free(path);
    const char *hidden = "{\"custom_id\": \"line-2\"}\n{\"prompt\": \"a\"}\n";
    path = write_file("hidden.jsonl", hidden, strlen(hidden));
    ck_assert_int_eq(census_take(&c, path, &e), ERR_INPUT);
    free(path);
    path = write_file("empty.jsonl", "\n \n", 3);
    ck_assert_int_eq(census_take(&c, path, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "empty"));
    free(path);
}
END_TEST

START_TEST(truncated_gzip_is_bad_input)
{
    struct census c;
    struct err e = {.text = ""};
    struct strbuf text = {0};
    char *path = io_join(test_folder(), "p.jsonl.gz");
    for (int i = 0; i < 2000; i++)
        strbuf_printf(&text, "{\"prompt\": \"number %d and %d\"}\n", i, i * 7919 % 1000);
    gzFile f = gzopen(path, "wb");
    ck_assert_int_eq(gzwrite(f, text.data, (unsigned)text.len), (int)text.len);
    gzclose(f);
    ck_assert_int_eq(census_take(&c, path, &e), ERR_OK);
    ck_assert_uint_eq(c.n_requests, 2000);
    census_free(&c);
    struct strbuf raw = {0};
    ck_assert_int_eq(io_read_all(path, 1 << 20, &raw, &e), ERR_OK);
    char *cut = write_file("cut.gz", raw.data, raw.len / 2);
    ck_assert_int_eq(census_take(&c, cut, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "cut.gz"));
    free(cut);
    free(path);
    strbuf_free(&raw);
    strbuf_free(&text);
}
END_TEST

START_TEST(a_duplicate_is_found_wherever_it_stands)
{
    enum { N = 5000 };
    struct rng r = {7, 0};
    for (int round = 0; round < 12; round++) {
        int a = (int)rng_below(&r, N), b = (int)rng_below(&r, N);
        struct strbuf text = {0};
        char both[128];
        struct census c;
        struct err e = {.text = ""};
        if (a == b)
            continue;
        for (int i = 0; i < N; i++)
            strbuf_printf(&text, "{\"custom_id\":\"id %d\",\"prompt\":\"x\"}\n", i == b ? a : i);
        char *path = write_file("many.jsonl", text.data, text.len);
        ck_assert_int_eq(census_take(&c, path, &e), ERR_INPUT);
        snprintf(both, sizeof both, "'id %d' stands on line %d and again on line %d", a,
                 MIN2(a, b) + 1, MAX2(a, b) + 1);
        ck_assert_msg(strstr(e.text, both) != NULL, "%s, expected %s", e.text, both);
        free(path);
        strbuf_free(&text);
    }
}
END_TEST

START_TEST(sums_see_every_change_and_growth_keeps_them)
{
    struct census a, b;
    char one[65], two[65];
    char *path = write_file("p.jsonl", "{\"prompt\":1}\n{\"prompt\":2}\n", 26);
    ck_assert_int_eq(census_take(&a, path, NULL), ERR_OK);
    test_spill(path, "{\"prompt\":1}\n{\"prompt\":2}\n{}\n", 29);
    ck_assert_int_eq(census_take(&b, path, NULL), ERR_OK);
    ck_assert_uint_eq(b.n_requests, 3);
    census_prefix(&a, 2, one);
    census_prefix(&b, 2, two);
    ck_assert_str_eq(one, two);
    ck_assert_str_ne(a.sha256, b.sha256);
    census_free(&b);
    /* A blank line moves the numbers, and with them the ids that lines get. */
    test_spill(path, "{\"prompt\":1}\n\n{\"prompt\":2}\n", 27);
    ck_assert_int_eq(census_take(&b, path, NULL), ERR_OK);
    ck_assert_uint_eq(a.sums[0], b.sums[0]);
    ck_assert_uint_ne(a.sums[1], b.sums[1]);
    census_free(&a);
    census_free(&b);
    free(path);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("census");
    TCase *t = tcase_create("census");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, census_counts_and_names_both_lines_of_a_duplicate);
    tcase_add_test(t, truncated_gzip_is_bad_input);
    tcase_add_test(t, a_duplicate_is_found_wherever_it_stands);
    tcase_add_test(t, sums_see_every_change_and_growth_keeps_them);
    suite_add_tcase(s, t);
    return s;
}
