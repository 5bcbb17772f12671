/* test_batch_out.c: an output file that only ever holds whole lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "infer/batch_out.h"
#include "tests/check_main.h"

static json_t *identity(const char *model)
{
    return json_pack("{s:s, s:s}", "made_by", "assay", "model", model);
}

static enum err_code open_out(struct batch_out **b, const char *path, const char *model,
                              bool resume, bool force, uint64_t *kept, struct err *e)
{
    json_t *id = identity(model);
    enum err_code rc = batch_out_open(b, path, id, resume, force, kept, e);
    json_decref(id);
    return rc;
}

static void put(struct batch_out *b, const char *line)
{
    ck_assert_int_eq(batch_out_line(b, line, strlen(line), NULL), ERR_OK);
}

static void append_raw(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");
    fputs(text, f);
    fclose(f);
}

static void contents(const char *path, const char *expected)
{
    struct strbuf text = {0};
    ck_assert_int_eq(io_read_all(path, 1 << 20, &text, NULL), ERR_OK);
    ck_assert_str_eq(text.data ? text.data : "", expected);
    strbuf_free(&text);
}

#define A "{\"custom_id\":\"a\",\"error\":null}\n"
#define B "{\"custom_id\":\"b\",\"error\":{}}\n"

START_TEST(resume_keeps_whole_lines_and_cuts_a_torn_one)
{
    char *path = io_join(test_folder(), "out.jsonl"), *id;
    struct batch_out *b;
    uint64_t kept;
    bool failed;
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, NULL), ERR_OK);
    put(b, A);
    put(b, B);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    append_raw(path, "{\"custom_id\":\"c\",\"resp");
    ck_assert_int_eq(open_out(&b, path, "m", true, false, &kept, NULL), ERR_OK);
    ck_assert_uint_eq(kept, 2);
    ck_assert_int_eq(batch_out_kept_id(b, 0, &id, &failed, NULL), ERR_OK);
    ck_assert_str_eq(id, "a");
    ck_assert(!failed);
    free(id);
    ck_assert_int_eq(batch_out_kept_id(b, 1, &id, &failed, NULL), ERR_OK);
    ck_assert_str_eq(id, "b");
    ck_assert(failed);
    free(id);
    put(b, "c\n");
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    contents(path, A B "c\n");
    free(path);
}
END_TEST

START_TEST(another_identity_is_refused_by_field)
{
    char *path = io_join(test_folder(), "out.jsonl");
    struct batch_out *b;
    struct err e = {.text = ""};
    uint64_t kept;
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, NULL), ERR_OK);
    put(b, A);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    ck_assert_int_eq(open_out(&b, path, "other", true, false, &kept, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "model was 'm' and is 'other'") != NULL, "%s", e.text);
    contents(path, A);
    free(path);
}
END_TEST

START_TEST(existing_and_foreign_files_are_left_alone)
{
    char *path = io_join(test_folder(), "out.jsonl");
    struct batch_out *b;
    struct err e = {.text = ""};
    uint64_t kept;
    append_raw(path, "precious\n");
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, &e), ERR_USAGE);
    ck_assert_int_eq(open_out(&b, path, "m", false, true, &kept, &e), ERR_USAGE);
    ck_assert_int_eq(open_out(&b, path, "m", true, false, &kept, &e), ERR_USAGE);
    contents(path, "precious\n");
    free(path);
}
END_TEST

START_TEST(force_replaces_our_own)
{
    char *path = io_join(test_folder(), "out.jsonl");
    struct batch_out *b;
    uint64_t kept;
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, NULL), ERR_OK);
    put(b, A);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    ck_assert_int_eq(open_out(&b, path, "n", false, true, &kept, NULL), ERR_OK);
    ck_assert_uint_eq(kept, 0);
    put(b, B);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    contents(path, B);
    free(path);
}
END_TEST

START_TEST(a_second_run_finds_the_file_locked)
{
    char *path = io_join(test_folder(), "out.jsonl");
    struct batch_out *b, *second;
    struct err e = {.text = ""};
    uint64_t kept;
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, NULL), ERR_OK);
    ck_assert_int_eq(open_out(&second, path, "m", true, false, &kept, &e), ERR_BUSY);
    ck_assert_int_eq(open_out(&second, path, "m", false, true, &kept, &e), ERR_BUSY);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    free(path);
}
END_TEST

START_TEST(a_failed_write_cuts_back_to_whole_lines)
{
    char *path = io_join(test_folder(), "out.jsonl");
    struct batch_out *b;
    struct err e = {.text = ""};
    uint64_t kept;
    ck_assert_int_eq(open_out(&b, path, "m", false, false, &kept, NULL), ERR_OK);
    put(b, A);
    io_fault_set(IO_FAULT_WRITE, 1);
    ck_assert_int_eq(batch_out_line(b, B, strlen(B), &e), ERR_IO);
    io_fault_set(IO_FAULT_WRITE, 0);
    ck_assert_ptr_nonnull(strstr(e.text, "out.jsonl"));
    contents(path, A);
    put(b, B);
    ck_assert_int_eq(batch_out_close(b, NULL), ERR_OK);
    contents(path, A B);
    free(path);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_out");
    TCase *t = tcase_create("batch_out");
    tcase_add_test(t, resume_keeps_whole_lines_and_cuts_a_torn_one);
    tcase_add_test(t, another_identity_is_refused_by_field);
    tcase_add_test(t, existing_and_foreign_files_are_left_alone);
    tcase_add_test(t, force_replaces_our_own);
    tcase_add_test(t, a_second_run_finds_the_file_locked);
    tcase_add_test(t, a_failed_write_cuts_back_to_whole_lines);
    suite_add_tcase(s, t);
    return s;
}
