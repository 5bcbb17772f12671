/* test_batch_recover.c: the files of a batch stopped, cut, altered and out of room at any point. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "common/rng.h"
#include "infer/batch_crash.h"
#include "tests/batch_place.h"
#include "tests/check_main.h"

START_TEST(killed_at_any_point_and_resumed)
{
    struct batch_place p = batch_place_new();
    struct rng r = {11, 0};
    for (int round = 0; round < 20; round++) {
        batch_place_clear(&p);
        int kills = 1 + (int)rng_below(&r, 3);
        for (int k = 0; k < kills; k++)
            batch_place_cut(&p, k ? RESUME : 0, rng_next(&r), rng_below(&r, BATCH_PLACE_N / 2),
                            rng_below(&r, 4) ? SIGKILL : 0);
        batch_place_must_run(&p, RESUME, rng_next(&r));
        batch_place_expect(&p);
        ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    }
    batch_place_free(&p);
}
END_TEST

/* Changes one file: a byte, a bit, a cut, a hole, a doubled or a lost piece. */
static void damage(const char *path, struct rng *r)
{
    size_t bytes;
    char *text = test_slurp(path, &bytes);
    size_t at = bytes ? (size_t)rng_below(r, bytes) : 0, n = 1 + (size_t)rng_below(r, 300);
    n = MIN2(n, bytes - at);
    struct strbuf b = {0};
    strbuf_append(&b, text, at);
    switch (rng_below(r, 6)) {
    case 0:
        break; /* cut */
    case 1:
        strbuf_putc(&b, (char)rng_next(r));
        strbuf_append(&b, text + at + (n ? 1 : 0), bytes - at - (n ? 1 : 0));
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            strbuf_putc(&b, 0);
        strbuf_append(&b, text + at + n, bytes - at - n);
        break;
    case 3: /* lost */
        strbuf_append(&b, text + at + n, bytes - at - n);
        break;
    case 4: /* doubled */
        strbuf_append(&b, text + at, n);
        strbuf_append(&b, text + at, bytes - at);
        break;
    default: /* rubbish behind the end */
        strbuf_append(&b, text + at, bytes - at);
        for (size_t i = 0; i < n; i++)
            strbuf_putc(&b, (char)rng_next(r));
    }
    test_spill(path, b.data ? b.data : "", b.len);
    strbuf_free(&b);
    free(text);
}

START_TEST(altered_files_never_pass_for_whole_ones)
{
    struct batch_place p = batch_place_new();
    struct rng r = {(uint64_t)_i + 1, 0};
    int refused = 0, mended = 0;
    for (int round = 0; round < 40; round++) {
        struct err e = {.text = ""};
        batch_place_clear(&p);
        p.n = BATCH_PLACE_N - 20;
        batch_place_write(&p);
        /* A finished run, half of the time taken up again for an input that has grown. */
        if (rng_below(&r, 2))
            batch_place_must_run(&p, 0, rng_next(&r));
        p.n = BATCH_PLACE_N;
        batch_place_write(&p);
        if (rng_below(&r, 3) || !io_exists(p.out))
            batch_place_cut(&p, RESUME, rng_next(&r), rng_below(&r, 25), SIGKILL);
        const char *victims[] = {p.out, p.journal, p.run};
        const char *victim = victims[rng_below(&r, 3)];
        if (!io_exists(victim))
            continue;
        damage(victim, &r);
        enum err_code rc = batch_place_run(&p, RESUME, rng_next(&r), &e);
        if (rc == ERR_OK) {
            mended++;
            batch_place_expect(&p);
        } else {
            refused++;
            ck_assert_msg(rc == ERR_INPUT || rc == ERR_USAGE, "%s: %s", err_name(rc), e.text);
            ck_assert_ptr_nonnull(strstr(e.text, "/o"));
        }
    }
    ck_assert_int_gt(mended, refused);
    batch_place_free(&p);
}
END_TEST

START_TEST(damage_in_the_middle_is_kept_and_redone)
{
    struct batch_place p = batch_place_new();
    batch_place_must_run(&p, 0, 1);
    size_t bytes;
    char *text = test_slurp(p.out, &bytes);
    text[bytes / 2] ^= 1;
    test_spill(p.out, text, bytes);
    batch_place_must_run(&p, RESUME, 2);
    batch_place_expect(&p);
    char *kept = test_slurp(p.damaged, NULL);
    ck_assert(str_starts(kept, "# assay: damaged bytes "));
    ck_assert_ptr_nonnull(strstr(kept, "of o\n{\"custom_id\":"));
    free(kept);
    free(text);
    /* A record of the journal: what it spoke of runs again, the others are kept. */
    batch_place_clear(&p);
    batch_place_cut(&p, 0, 3, 40, 0);
    text = test_slurp(p.journal, &bytes);
    char *done = strstr(text, "\"done\":{");
    ck_assert_ptr_nonnull(done);
    done[9] ^= 1;
    test_spill(p.journal, text, bytes);
    batch_place_must_run(&p, RESUME, 4);
    batch_place_expect(&p);
    kept = test_slurp(p.damaged, NULL);
    ck_assert_ptr_nonnull(strstr(kept, "of o.journal\n"));
    free(kept);
    free(text);
    batch_place_free(&p);
}
END_TEST

START_TEST(any_write_may_fail)
{
    struct batch_place p = batch_place_new();
    int failed = 0;
    for (int nth = 1; nth < 400; nth++) {
        struct err e = {.text = ""};
        batch_place_clear(&p);
        io_fault_set(IO_FAULT_WRITE, nth);
        enum err_code rc = batch_place_run(&p, 0, 5, &e);
        io_fault_set(IO_FAULT_WRITE, 0);
        if (rc == ERR_OK && failed > 20 && nth % 50 == 0)
            break; /* the run has fewer writes */
        if (rc != ERR_OK) {
            failed++;
            ck_assert_msg(rc == ERR_IO, "%s: %s", err_name(rc), e.text);
            ck_assert_ptr_nonnull(strstr(e.text, p.dir));
        }
        batch_place_must_run(&p, RESUME, 6);
        batch_place_expect(&p);
    }
    ck_assert_int_gt(failed, 20);
    batch_place_free(&p);
}
END_TEST

static int count_todo(struct batch_place *p, enum batch_todo todo, uint64_t *which)
{
    struct batch_store *s;
    int n = 0;
    uint64_t n_out;
    ck_assert_int_eq(batch_place_open(&s, p, RESUME, NULL), ERR_OK);
    for (uint64_t i = 0; i < p->n; i++) {
        if (batch_store_todo(s, i) == todo) {
            n++;
            *which = i;
        }
    }
    ck_assert_int_eq(batch_store_close(s, ERR_INTERRUPTED, &n_out, NULL), ERR_OK);
    return n;
}

START_TEST(a_crash_is_held_against_what_ran_and_a_kill_is_not)
{
    struct batch_place p = batch_place_new();
    uint64_t which = 0;
    batch_place_cut(&p, 0, 1, 12, SIGKILL);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    batch_place_cut(&p, RESUME, 2, 3, 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    batch_place_cut(&p, RESUME, 3, 4, SIGSEGV);
    int suspects = count_todo(&p, BATCH_TO_RUN_ALONE, &which);
    ck_assert_int_gt(suspects, 0);
    ck_assert_int_lt(suspects, 10);
    /* One of them runs alone, and the process ends again. */
    pid_t pid = fork();
    if (pid == 0) {
        struct batch_store *s;
        uint64_t n_out;
        if (batch_place_open(&s, &p, RESUME, NULL) != ERR_OK ||
            batch_store_started(s, which, NULL) != ERR_OK ||
            batch_store_flush(s, &n_out, NULL) != ERR_OK)
            _exit(9);
        batch_crash_arm(batch_store_journal_fd(s), batch_store_run(s));
        raise(SIGABRT);
    }
    int status;
    waitpid(pid, &status, 0);
    ck_assert_int_eq(WIFSIGNALED(status) ? WTERMSIG(status) : -1, SIGABRT);
    uint64_t aside = 0;
    ck_assert_int_eq(count_todo(&p, BATCH_TO_SET_ASIDE, &aside), 1);
    ck_assert_uint_eq(aside, which);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), suspects - 1);
    /* What --retry-failed forgets stays forgotten. */
    batch_place_cut(&p, RETRY, 5, 0, 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_SET_ASIDE, &aside), 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    batch_place_must_run(&p, RESUME, 6);
    batch_place_expect(&p);
    batch_place_free(&p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_recover");
    TCase *t = tcase_create("batch_recover");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, killed_at_any_point_and_resumed);
    tcase_add_loop_test(t, altered_files_never_pass_for_whole_ones, 0, 2);
    tcase_add_test(t, damage_in_the_middle_is_kept_and_redone);
    tcase_add_test(t, any_write_may_fail);
    tcase_add_test(t, a_crash_is_held_against_what_ran_and_a_kill_is_not);
    suite_add_tcase(s, t);
    return s;
}
