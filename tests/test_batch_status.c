/* test_batch_status.c: the status file and its pace. */
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/json.h"
#include "infer/batch_status.h"
#include "tests/check_main.h"

START_TEST(the_pace_forgets_and_the_time_left_comes_from_tokens)
{
    struct batch_pace p = {0};
    ck_assert_double_lt(batch_pace_left(&p, 10, 5), 0);
    for (int i = 0; i < 100; i++)
        batch_pace_add(&p, 1, 2, 100);
    ck_assert_double_eq_tol(p.tokens / p.seconds, 100, 1e-9);
    ck_assert_double_eq_tol(batch_pace_left(&p, 50, 20), 10, 1e-9);
    for (int i = 0; i < 20; i++) /* one half-life at another rate */
        batch_pace_add(&p, 1, 2, 300);
    ck_assert_double_gt(p.tokens / p.seconds, 180);
    ck_assert_double_lt(p.tokens / p.seconds, 220);
    ck_assert_double_eq(batch_pace_left(&p, 50, 0), 0);
    batch_pace_add(&p, 0, 1000, 1000000); /* no time: no infinite rate */
    ck_assert(p.seconds > 0);
}
END_TEST

START_TEST(the_file_is_whole_and_ours)
{
    char *out = io_join(test_folder(), "o"), *path = NULL, fingerprint[65];
    struct strbuf name = {0};
    struct batch_status *s;
    struct batch_counts c = {.requests = 10, .ok = 3, .failed = 1, .kept = 2, .new_tokens = 40};
    json_t *v;
    int64_t n = 0;
    bool stale = true;
    memset(fingerprint, 'a', 64);
    fingerprint[64] = 0;
    strbuf_printf(&name, "%s.status.json", out);
    path = strbuf_take(&name);
    ck_assert_int_eq(batch_status_check(out, &stale, NULL), ERR_OK);
    ck_assert(!stale);
    ck_assert_int_eq(batch_status_new(&s, out, fingerprint, NULL), ERR_OK);
    batch_status_set(s, "running", &c);
    ck_assert_int_eq(json_read(path, &v, NULL), ERR_OK);
    ck_assert_int_eq(json_get_int(v, "done", JSON_REQUIRED, 4, 4, &n, NULL), ERR_OK);
    json_decref(v);
    ck_assert_int_eq(batch_status_check(out, &stale, NULL), ERR_OK);
    ck_assert(stale);
    c.ok = 9;
    batch_status_set(s, "running", &c); /* too soon after the first */
    ck_assert_int_eq(json_read(path, &v, NULL), ERR_OK);
    ck_assert_int_eq(json_get_int(v, "done", JSON_REQUIRED, 4, 4, &n, NULL), ERR_OK);
    json_decref(v);
    batch_status_set(s, "done", &c);
    ck_assert_int_eq(json_read(path, &v, NULL), ERR_OK);
    ck_assert_int_eq(json_get_int(v, "done", JSON_REQUIRED, 10, 10, &n, NULL), ERR_OK);
    ck_assert_str_eq(json_string_value(json_object_get(v, "state")), "done");
    ck_assert_double_eq(json_number_value(json_object_get(v, "seconds_left")), 0);
    json_decref(v);
    io_fault_set(IO_FAULT_WRITE, 1);
    batch_status_set(s, "failed", &c); /* a warning, and the old one stays */
    io_fault_set(IO_FAULT_WRITE, 0);
    batch_status_free(s);
    ck_assert_int_eq(batch_status_check(out, &stale, NULL), ERR_OK);
    ck_assert(!stale);
    test_spill(path, "precious", 8);
    ck_assert_int_eq(batch_status_check(out, &stale, NULL), ERR_USAGE);
    free(path);
    free(out);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_status");
    TCase *t = tcase_create("batch_status");
    tcase_add_test(t, the_pace_forgets_and_the_time_left_comes_from_tokens);
    tcase_add_test(t, the_file_is_whole_and_ours);
    suite_add_tcase(s, t);
    return s;
}
