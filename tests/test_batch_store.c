/* test_batch_store.c: the files of a batch: order, whose they are, inputs that grow, retries. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/batch_place.h"
#include "tests/check_main.h"

START_TEST(out_is_in_order_whatever_ends_first)
{
    struct batch_place p = batch_place_new();
    size_t first_bytes, bytes;
    batch_place_must_run(&p, 0, 1);
    batch_place_expect(&p);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    char *first = test_slurp(p.run, &first_bytes);
    batch_place_clear(&p);
    batch_place_must_run(&p, RESUME, 2); /* nothing there: a fresh start */
    batch_place_expect(&p);
    char *again = test_slurp(p.run, &bytes);
    ck_assert_uint_eq(bytes, first_bytes);
    ck_assert(memcmp(first, again, bytes) == 0);
    free(first);
    free(again);
    batch_place_free(&p);
}
END_TEST

START_TEST(a_finished_run_is_left_as_it_is)
{
    struct batch_place p = batch_place_new();
    batch_place_must_run(&p, 0, 1);
    char *run = test_slurp(p.run, NULL);
    struct batch_store *s;
    uint64_t ok, failed;
    ck_assert_int_eq(batch_place_open(&s, &p, RESUME, NULL), ERR_OK);
    ck_assert(batch_store_idle(s));
    batch_store_kept(s, &ok, &failed);
    ck_assert_uint_eq(ok, BATCH_PLACE_N);
    ck_assert_int_eq(batch_store_close(s, ERR_OK, &ok, NULL), ERR_OK);
    batch_place_expect(&p);
    char *after = test_slurp(p.run, NULL);
    ck_assert_str_eq(run, after);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    free(run);
    free(after);
    batch_place_free(&p);
}
END_TEST

START_TEST(another_identity_is_refused_by_field)
{
    struct batch_place p = batch_place_new();
    struct err e = {.text = ""};
    for (int finished = 0; finished < 2; finished++) {
        batch_place_clear(&p);
        if (finished)
            batch_place_must_run(&p, 0, 1);
        else
            batch_place_cut(&p, 0, 1, 20, 0);
        json_t *mine = p.identity;
        p.identity = json_pack("{s:s, s:s, s:s}", "build", "assay", "model", "m", "seed", "2");
        ck_assert_int_eq(batch_place_run(&p, RESUME, 2, &e), ERR_INPUT);
        ck_assert_msg(strstr(e.text, "seed was '1' and is '2'") != NULL, "%s", e.text);
        json_decref(p.identity);
        p.identity = mine;
        batch_place_must_run(&p, RESUME, 3);
        batch_place_expect(&p);
    }
    batch_place_free(&p);
}
END_TEST

START_TEST(the_input_may_grow_and_not_change)
{
    struct batch_place p = batch_place_new();
    struct err e = {.text = ""};
    batch_place_cut(&p, 0, 1, 30, 0);
    p.changed = 2;
    batch_place_write(&p);
    ck_assert_int_eq(batch_place_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "the prompt file has changed: request 3 ") != NULL, "%s", e.text);
    p.changed = BATCH_PLACE_N - 1; /* not answered, and still another run */
    batch_place_write(&p);
    ck_assert_int_eq(batch_place_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "the prompt file has changed: its first 60 ") != NULL, "%s",
                  e.text);
    p.changed = -1;
    p.n = BATCH_PLACE_N - 5;
    batch_place_write(&p);
    ck_assert_int_eq(batch_place_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "it has 55 requests, and had 60") != NULL, "%s", e.text);
    p.n = BATCH_PLACE_N + 9;
    batch_place_write(&p);
    batch_place_must_run(&p, RESUME, 2);
    batch_place_expect(&p);
    p.n = BATCH_PLACE_N + 30; /* and again, from a finished run */
    batch_place_write(&p);
    batch_place_cut(&p, RESUME, 3, 10, SIGKILL);
    batch_place_must_run(&p, RESUME, 4);
    batch_place_expect(&p);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    batch_place_free(&p);
}
END_TEST

START_TEST(failed_requests_are_retried_on_request)
{
    struct batch_place p = batch_place_new();
    uint64_t ok, failed;
    for (int round = 0; round < 6; round++) {
        struct batch_store *s;
        batch_place_clear(&p);
        p.some_fail = true;
        if (round % 2)
            batch_place_cut(&p, 0, (uint64_t)round, 45, SIGKILL);
        else
            batch_place_must_run(&p, 0, (uint64_t)round);
        p.some_fail = false;
        if (round > 1) /* a retry that is killed itself, and goes on without being asked again */
            batch_place_cut(&p, RETRY, (uint64_t)round, (uint64_t)round / 2, SIGKILL);
        else
            batch_place_must_run(&p, RETRY, 9);
        if (round > 3)
            batch_place_must_run(&p, RETRY, 10);
        batch_place_must_run(&p, RESUME, 11);
        ck_assert_int_eq(batch_place_open(&s, &p, RESUME, NULL), ERR_OK);
        batch_store_kept(s, &ok, &failed);
        ck_assert_uint_eq(ok + failed, BATCH_PLACE_N);
        ck_assert_int_eq(batch_store_close(s, ERR_OK, &ok, NULL), ERR_OK);
        if (round != 3) /* in the third, what failed in the killed run's journal may stand */
            batch_place_expect(&p);
        ck_assert_uint_eq(failed, 0);
    }
    batch_place_free(&p);
}
END_TEST

START_TEST(what_is_not_ours_is_left_alone)
{
    struct batch_place p = batch_place_new();
    static const int flags[] = {0, RESUME, FORCE, RETRY};
    const char *names[] = {p.out, p.journal, p.run};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (size_t k = 0; k < ARRAY_LEN(flags); k++) {
            struct err e = {.text = ""};
            batch_place_clear(&p);
            test_spill(names[i], "precious\n", 9);
            ck_assert_int_eq(batch_place_run(&p, flags[k], 1, &e), ERR_USAGE);
            ck_assert_ptr_nonnull(strstr(e.text, p.out));
            char *text = test_slurp(names[i], NULL);
            ck_assert_str_eq(text, "precious\n");
            free(text);
        }
    }
    batch_place_clear(&p);
    batch_place_must_run(&p, 0, 1);
    ck_assert_int_eq(batch_place_run(&p, 0, 1, NULL), ERR_USAGE); /* ours, and there */
    test_spill(p.damaged, "precious\n", 9);
    size_t bytes;
    char *text = test_slurp(p.out, &bytes);
    text[7] ^= 1;
    test_spill(p.out, text, bytes);
    free(text);
    ck_assert_int_eq(batch_place_run(&p, RESUME, 1, NULL), ERR_USAGE);
    ck_assert_int_eq(batch_place_run(&p, FORCE, 1, NULL), ERR_OK);
    batch_place_expect(&p);
    batch_place_free(&p);
}
END_TEST

START_TEST(a_journal_of_another_run_is_refused)
{
    struct batch_place p = batch_place_new();
    struct err e = {.text = ""};
    batch_place_cut(&p, 0, 1, 20, 0);
    char *other = io_join(p.dir, "other");
    ck_assert_int_eq(rename(p.journal, other), 0);
    unlink(p.out);
    batch_place_must_run(&p, RESUME, 2);
    p.n += 5;
    batch_place_write(&p);
    batch_place_cut(&p, RESUME, 3, 2, 0);
    p.n += 5;
    batch_place_write(&p);
    batch_place_must_run(&p, RESUME, 3); /* OUT.run is the second generation now */
    ck_assert_int_eq(rename(other, p.journal), 0);
    ck_assert_int_eq(batch_place_run(&p, RESUME, 4, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "a journal of another run") != NULL, "%s", e.text);
    batch_place_expect(&p);
    free(other);
    batch_place_free(&p);
}
END_TEST

START_TEST(a_second_run_finds_it_locked)
{
    struct batch_place p = batch_place_new();
    struct batch_store *s, *second;
    struct err e = {.text = ""};
    uint64_t n_out;
    ck_assert_int_eq(batch_place_open(&s, &p, 0, NULL), ERR_OK);
    ck_assert_int_eq(batch_place_open(&second, &p, RESUME, &e), ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(e.text, "locked by another run"));
    ck_assert_int_eq(batch_place_open(&second, &p, FORCE, &e), ERR_BUSY);
    ck_assert_int_eq(batch_store_close(s, ERR_INTERRUPTED, &n_out, NULL), ERR_OK);
    batch_place_must_run(&p, RESUME, 1);
    batch_place_expect(&p);
    batch_place_free(&p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_store");
    TCase *t = tcase_create("batch_store");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, out_is_in_order_whatever_ends_first);
    tcase_add_test(t, a_finished_run_is_left_as_it_is);
    tcase_add_test(t, another_identity_is_refused_by_field);
    tcase_add_test(t, the_input_may_grow_and_not_change);
    tcase_add_test(t, failed_requests_are_retried_on_request);
    tcase_add_test(t, what_is_not_ours_is_left_alone);
    tcase_add_test(t, a_journal_of_another_run_is_refused);
    tcase_add_test(t, a_second_run_finds_it_locked);
    suite_add_tcase(s, t);
    return s;
}
