/* test_batch_store.c: the files of a batch, stopped, cut, altered and out of room at any point.
 *
 * Answers are made up from the request's number, so thousands of runs cost little; what is compared
 * is always the whole of OUT, byte for byte, with that of a run that nothing happened to.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "common/rng.h"
#include "infer/batch_crash.h"
#include "infer/batch_store.h"
#include "tests/check_main.h"

#define N 60

/* A run in a folder of its own. */
struct place {
    const char *dir;
    char *prompts, *out, *journal, *run, *damaged;
    struct census census;
    json_t *identity;
    uint64_t n;    /* requests of the input */
    int changed;   /* this request has another text; -1: none */
    bool all_fail; /* answers are error lines where n % 7 == 3 */
};

static void write_prompts(struct place *p)
{
    struct strbuf b = {0};
    for (uint64_t i = 0; i < p->n; i++)
        strbuf_printf(&b, "{\"prompt\":\"%s %llu\"}\n", (int)i == p->changed ? "other" : "number",
                      (unsigned long long)i);
    test_spill(p->prompts, b.data, b.len);
    strbuf_free(&b);
    census_free(&p->census);
    ck_assert_int_eq(census_take(&p->census, p->prompts, NULL), ERR_OK);
}

static struct place place_new(void)
{
    struct place p = {.dir = test_folder(), .n = N, .changed = -1};
    p.prompts = io_join(p.dir, "p.jsonl");
    p.out = io_join(p.dir, "o");
    p.journal = io_join(p.dir, "o.journal");
    p.run = io_join(p.dir, "o.run");
    p.damaged = io_join(p.dir, "o.damaged");
    p.identity = json_pack("{s:s, s:s, s:s}", "build", "assay", "model", "m", "seed", "1");
    write_prompts(&p);
    return p;
}

static void place_free(struct place *p)
{
    free(p->prompts);
    free(p->out);
    free(p->journal);
    free(p->run);
    free(p->damaged);
    json_decref(p->identity);
    census_free(&p->census);
}

static void place_clear(struct place *p)
{
    unlink(p->out);
    unlink(p->journal);
    unlink(p->run);
    unlink(p->damaged);
}

static enum batch_outcome answer(const struct place *p, uint64_t n, struct strbuf *b)
{
    bool fails = p->all_fail && n % 7 == 3;
    strbuf_clear(b);
    strbuf_printf(b, "{\"custom_id\":\"line-%llu\",\"text\":\"", (unsigned long long)n + 1);
    for (uint64_t i = 0; i < n * 37 % 101; i++)
        strbuf_printf(b, "%c", (char)('a' + (n + i) % 26));
    strbuf_printf(b, "\",\"error\":%s}\n", fails ? "{}" : "null");
    return fails ? BATCH_FAILED : BATCH_OK;
}

static void expect_out(const struct place *p)
{
    struct strbuf all = {0}, one = {0};
    for (uint64_t i = 0; i < p->n; i++) {
        answer(p, i, &one);
        strbuf_append(&all, one.data, one.len);
    }
    size_t bytes;
    char *text = test_slurp(p->out, &bytes);
    ck_assert_uint_eq(bytes, all.len);
    ck_assert(memcmp(text, all.data, bytes) == 0);
    free(text);
    strbuf_free(&all);
    strbuf_free(&one);
}

enum { RESUME = 1, FORCE = 2, RETRY = 4 };

static enum err_code open_store(struct batch_store **s, struct place *p, int flags, struct err *e)
{
    struct batch_store_options o = {.out = p->out,
                                    .identity = p->identity,
                                    .census = &p->census,
                                    .resume = flags & (RESUME | RETRY),
                                    .force = flags & FORCE,
                                    .retry_failed = flags & RETRY};
    enum err_code rc = batch_store_check(&o, e);
    return rc == ERR_OK ? batch_store_open(s, &o, e) : rc;
}

/* Answers up to `most` requests, in an order that a window of 9 mixes. */
static enum err_code work(struct batch_store *s, const struct place *p, struct rng *r,
                          uint64_t most, struct err *e)
{
    uint64_t window[9], n_window = 0, next = 0, n_out, done = 0;
    struct strbuf line = {0};
    enum err_code rc = ERR_OK;
    while (rc == ERR_OK && done < most) {
        for (; next < p->n && n_window < ARRAY_LEN(window) && rc == ERR_OK; next++) {
            if (batch_store_todo(s, next) == BATCH_ANSWERED)
                continue;
            rc = batch_store_started(s, next, e);
            window[n_window++] = next;
        }
        if (!n_window)
            break;
        if (rc == ERR_OK && rng_below(r, 3) == 0)
            rc = batch_store_flush(s, &n_out, e);
        size_t pick = (size_t)rng_below(r, n_window);
        enum batch_outcome how = answer(p, window[pick], &line);
        if (rc == ERR_OK)
            rc = batch_store_put(s, window[pick], how, line.data, line.len, e);
        window[pick] = window[--n_window];
        done++;
    }
    strbuf_free(&line);
    return rc;
}

/* A run to the end, or to its first error. */
static enum err_code whole_run(struct place *p, int flags, uint64_t seed, struct err *e)
{
    struct batch_store *s;
    struct rng r = {seed, 0};
    uint64_t n_out;
    enum err_code rc = open_store(&s, p, flags, e);
    if (rc != ERR_OK)
        return rc;
    rc = work(s, p, &r, UINT64_MAX, e);
    enum err_code rc2 = batch_store_close(s, rc, &n_out, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? rc2 : rc;
}

static void must_run(struct place *p, int flags, uint64_t seed)
{
    struct err e = {.text = ""};
    enum err_code rc = whole_run(p, flags, seed, &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", err_name(rc), e.text);
}

/* A process that answers some requests and is gone: by `signal`, or in order when it is 0. */
static void cut_run(struct place *p, int flags, uint64_t seed, uint64_t most, int signal_number)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct batch_store *s;
        struct rng r = {seed, 0};
        uint64_t n_out;
        if (open_store(&s, p, flags, NULL) != ERR_OK || work(s, p, &r, most, NULL) != ERR_OK)
            _exit(9);
        if (signal_number == SIGKILL)
            kill(getpid(), SIGKILL);
        batch_crash_arm(batch_store_journal_fd(s), batch_store_run(s));
        if (batch_store_flush(s, &n_out, NULL) != ERR_OK)
            _exit(9);
        if (signal_number)
            raise(signal_number);
        batch_crash_disarm();
        _exit(batch_store_close(s, ERR_INTERRUPTED, &n_out, NULL) != ERR_OK);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (signal_number)
        ck_assert_int_eq(WIFSIGNALED(status) ? WTERMSIG(status) : -1, signal_number);
    else
        ck_assert_int_eq(status, 0);
}

START_TEST(out_is_in_order_whatever_ends_first)
{
    struct place p = place_new();
    size_t first_bytes, bytes;
    must_run(&p, 0, 1);
    expect_out(&p);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    char *first = test_slurp(p.run, &first_bytes);
    place_clear(&p);
    must_run(&p, RESUME, 2); /* nothing there: a fresh start */
    expect_out(&p);
    char *again = test_slurp(p.run, &bytes);
    ck_assert_uint_eq(bytes, first_bytes);
    ck_assert(memcmp(first, again, bytes) == 0);
    free(first);
    free(again);
    place_free(&p);
}
END_TEST

START_TEST(a_finished_run_is_left_as_it_is)
{
    struct place p = place_new();
    must_run(&p, 0, 1);
    char *run = test_slurp(p.run, NULL);
    struct batch_store *s;
    uint64_t ok, failed;
    ck_assert_int_eq(open_store(&s, &p, RESUME, NULL), ERR_OK);
    ck_assert(batch_store_idle(s));
    batch_store_kept(s, &ok, &failed);
    ck_assert_uint_eq(ok, N);
    ck_assert_int_eq(batch_store_close(s, ERR_OK, &ok, NULL), ERR_OK);
    expect_out(&p);
    char *after = test_slurp(p.run, NULL);
    ck_assert_str_eq(run, after);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    free(run);
    free(after);
    place_free(&p);
}
END_TEST

START_TEST(killed_at_any_point_and_resumed)
{
    struct place p = place_new();
    struct rng r = {11, 0};
    for (int round = 0; round < 40; round++) {
        place_clear(&p);
        int kills = 1 + (int)rng_below(&r, 3);
        for (int k = 0; k < kills; k++)
            cut_run(&p, k ? RESUME : 0, rng_next(&r), rng_below(&r, N / 2),
                    rng_below(&r, 4) ? SIGKILL : 0);
        must_run(&p, RESUME, rng_next(&r));
        expect_out(&p);
        ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    }
    place_free(&p);
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
    struct place p = place_new();
    struct rng r = {(uint64_t)_i + 1, 0};
    int refused = 0, mended = 0;
    for (int round = 0; round < 60; round++) {
        struct err e = {.text = ""};
        place_clear(&p);
        p.n = N - 20;
        write_prompts(&p);
        /* A finished run, half of the time taken up again for an input that has grown. */
        if (rng_below(&r, 2))
            must_run(&p, 0, rng_next(&r));
        p.n = N;
        write_prompts(&p);
        if (rng_below(&r, 3) || !io_exists(p.out))
            cut_run(&p, RESUME, rng_next(&r), rng_below(&r, 25), SIGKILL);
        const char *victims[] = {p.out, p.journal, p.run};
        const char *victim = victims[rng_below(&r, 3)];
        if (!io_exists(victim))
            continue;
        damage(victim, &r);
        enum err_code rc = whole_run(&p, RESUME, rng_next(&r), &e);
        if (rc == ERR_OK) {
            mended++;
            expect_out(&p);
        } else {
            refused++;
            ck_assert_msg(rc == ERR_INPUT || rc == ERR_USAGE, "%s: %s", err_name(rc), e.text);
            ck_assert_ptr_nonnull(strstr(e.text, "/o"));
        }
    }
    ck_assert_int_gt(mended, refused);
    place_free(&p);
}
END_TEST

START_TEST(damage_in_the_middle_is_kept_and_redone)
{
    struct place p = place_new();
    must_run(&p, 0, 1);
    size_t bytes;
    char *text = test_slurp(p.out, &bytes);
    text[bytes / 2] ^= 1;
    test_spill(p.out, text, bytes);
    must_run(&p, RESUME, 2);
    expect_out(&p);
    char *kept = test_slurp(p.damaged, NULL);
    ck_assert(str_starts(kept, "# assay: damaged bytes "));
    ck_assert_ptr_nonnull(strstr(kept, "of o\n{\"custom_id\":"));
    free(kept);
    free(text);
    /* A record of the journal: what it spoke of runs again, the others are kept. */
    place_clear(&p);
    cut_run(&p, 0, 3, 40, 0);
    text = test_slurp(p.journal, &bytes);
    char *done = strstr(text, "\"done\":{");
    ck_assert_ptr_nonnull(done);
    done[9] ^= 1;
    test_spill(p.journal, text, bytes);
    must_run(&p, RESUME, 4);
    expect_out(&p);
    kept = test_slurp(p.damaged, NULL);
    ck_assert_ptr_nonnull(strstr(kept, "of o.journal\n"));
    free(kept);
    free(text);
    place_free(&p);
}
END_TEST

START_TEST(any_write_may_fail)
{
    struct place p = place_new();
    int failed = 0;
    for (int nth = 1; nth < 400; nth++) {
        struct err e = {.text = ""};
        place_clear(&p);
        io_fault_set(IO_FAULT_WRITE, nth);
        enum err_code rc = whole_run(&p, 0, 5, &e);
        io_fault_set(IO_FAULT_WRITE, 0);
        if (rc == ERR_OK && failed > 20 && nth % 50 == 0)
            break; /* the run has fewer writes */
        if (rc != ERR_OK) {
            failed++;
            ck_assert_msg(rc == ERR_IO, "%s: %s", err_name(rc), e.text);
            ck_assert_ptr_nonnull(strstr(e.text, p.dir));
        }
        must_run(&p, RESUME, 6);
        expect_out(&p);
    }
    ck_assert_int_gt(failed, 20);
    place_free(&p);
}
END_TEST

START_TEST(another_identity_is_refused_by_field)
{
    struct place p = place_new();
    struct err e = {.text = ""};
    for (int finished = 0; finished < 2; finished++) {
        place_clear(&p);
        if (finished)
            must_run(&p, 0, 1);
        else
            cut_run(&p, 0, 1, 20, 0);
        json_t *mine = p.identity;
        p.identity = json_pack("{s:s, s:s, s:s}", "build", "assay", "model", "m", "seed", "2");
        ck_assert_int_eq(whole_run(&p, RESUME, 2, &e), ERR_INPUT);
        ck_assert_msg(strstr(e.text, "seed was '1' and is '2'") != NULL, "%s", e.text);
        json_decref(p.identity);
        p.identity = mine;
        must_run(&p, RESUME, 3);
        expect_out(&p);
    }
    place_free(&p);
}
END_TEST

START_TEST(the_input_may_grow_and_not_change)
{
    struct place p = place_new();
    struct err e = {.text = ""};
    cut_run(&p, 0, 1, 30, 0);
    p.changed = 2;
    write_prompts(&p);
    ck_assert_int_eq(whole_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "the prompt file has changed: request 3 ") != NULL, "%s", e.text);
    p.changed = N - 1; /* not answered, and still another run */
    write_prompts(&p);
    ck_assert_int_eq(whole_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "the prompt file has changed: its first 60 ") != NULL, "%s",
                  e.text);
    p.changed = -1;
    p.n = N - 5;
    write_prompts(&p);
    ck_assert_int_eq(whole_run(&p, RESUME, 2, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "it has 55 requests, and had 60") != NULL, "%s", e.text);
    p.n = N + 9;
    write_prompts(&p);
    must_run(&p, RESUME, 2);
    expect_out(&p);
    p.n = N + 30; /* and again, from a finished run */
    write_prompts(&p);
    cut_run(&p, RESUME, 3, 10, SIGKILL);
    must_run(&p, RESUME, 4);
    expect_out(&p);
    ck_assert_str_eq(test_names(p.dir), "o o.run p.jsonl");
    place_free(&p);
}
END_TEST

START_TEST(failed_requests_are_retried_on_request)
{
    struct place p = place_new();
    uint64_t ok, failed;
    for (int round = 0; round < 6; round++) {
        struct batch_store *s;
        place_clear(&p);
        p.all_fail = true;
        if (round % 2)
            cut_run(&p, 0, (uint64_t)round, 45, SIGKILL);
        else
            must_run(&p, 0, (uint64_t)round);
        p.all_fail = false;
        if (round > 1) /* a retry that is killed itself, and goes on without being asked again */
            cut_run(&p, RETRY, (uint64_t)round, (uint64_t)round / 2, SIGKILL);
        else
            must_run(&p, RETRY, 9);
        if (round > 3)
            must_run(&p, RETRY, 10);
        must_run(&p, RESUME, 11);
        ck_assert_int_eq(open_store(&s, &p, RESUME, NULL), ERR_OK);
        batch_store_kept(s, &ok, &failed);
        ck_assert_uint_eq(ok + failed, N);
        ck_assert_int_eq(batch_store_close(s, ERR_OK, &ok, NULL), ERR_OK);
        if (round != 3) /* in the third, what failed in the killed run's journal may stand */
            expect_out(&p);
        ck_assert_uint_eq(failed, 0);
    }
    place_free(&p);
}
END_TEST

static int count_todo(struct place *p, enum batch_todo todo, uint64_t *which)
{
    struct batch_store *s;
    int n = 0;
    uint64_t n_out;
    ck_assert_int_eq(open_store(&s, p, RESUME, NULL), ERR_OK);
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
    struct place p = place_new();
    uint64_t which = 0;
    cut_run(&p, 0, 1, 12, SIGKILL);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    cut_run(&p, RESUME, 2, 3, 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    cut_run(&p, RESUME, 3, 4, SIGSEGV);
    int suspects = count_todo(&p, BATCH_TO_RUN_ALONE, &which);
    ck_assert_int_gt(suspects, 0);
    ck_assert_int_lt(suspects, 10);
    /* One of them runs alone, and the process ends again. */
    pid_t pid = fork();
    if (pid == 0) {
        struct batch_store *s;
        uint64_t n_out;
        if (open_store(&s, &p, RESUME, NULL) != ERR_OK ||
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
    cut_run(&p, RETRY, 5, 0, 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_SET_ASIDE, &aside), 0);
    ck_assert_int_eq(count_todo(&p, BATCH_TO_RUN_ALONE, &which), 0);
    must_run(&p, RESUME, 6);
    expect_out(&p);
    place_free(&p);
}
END_TEST

START_TEST(what_is_not_ours_is_left_alone)
{
    struct place p = place_new();
    static const int flags[] = {0, RESUME, FORCE, RETRY};
    const char *names[] = {p.out, p.journal, p.run};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (size_t k = 0; k < ARRAY_LEN(flags); k++) {
            struct err e = {.text = ""};
            place_clear(&p);
            test_spill(names[i], "precious\n", 9);
            ck_assert_int_eq(whole_run(&p, flags[k], 1, &e), ERR_USAGE);
            ck_assert_ptr_nonnull(strstr(e.text, p.out));
            char *text = test_slurp(names[i], NULL);
            ck_assert_str_eq(text, "precious\n");
            free(text);
        }
    }
    place_clear(&p);
    must_run(&p, 0, 1);
    ck_assert_int_eq(whole_run(&p, 0, 1, NULL), ERR_USAGE); /* ours, and there */
    test_spill(p.damaged, "precious\n", 9);
    size_t bytes;
    char *text = test_slurp(p.out, &bytes);
    text[7] ^= 1;
    test_spill(p.out, text, bytes);
    free(text);
    ck_assert_int_eq(whole_run(&p, RESUME, 1, NULL), ERR_USAGE);
    ck_assert_int_eq(whole_run(&p, FORCE, 1, NULL), ERR_OK);
    expect_out(&p);
    place_free(&p);
}
END_TEST

START_TEST(a_journal_of_another_run_is_refused)
{
    struct place p = place_new();
    struct err e = {.text = ""};
    cut_run(&p, 0, 1, 20, 0);
    char *other = io_join(p.dir, "other");
    ck_assert_int_eq(rename(p.journal, other), 0);
    unlink(p.out);
    must_run(&p, RESUME, 2);
    p.n += 5;
    write_prompts(&p);
    cut_run(&p, RESUME, 3, 2, 0);
    p.n += 5;
    write_prompts(&p);
    must_run(&p, RESUME, 3); /* OUT.run is the second generation now */
    ck_assert_int_eq(rename(other, p.journal), 0);
    ck_assert_int_eq(whole_run(&p, RESUME, 4, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "a journal of another run") != NULL, "%s", e.text);
    expect_out(&p);
    free(other);
    place_free(&p);
}
END_TEST

START_TEST(a_second_run_finds_it_locked)
{
    struct place p = place_new();
    struct batch_store *s, *second;
    struct err e = {.text = ""};
    uint64_t n_out;
    ck_assert_int_eq(open_store(&s, &p, 0, NULL), ERR_OK);
    ck_assert_int_eq(open_store(&second, &p, RESUME, &e), ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(e.text, "locked by another run"));
    ck_assert_int_eq(open_store(&second, &p, FORCE, &e), ERR_BUSY);
    ck_assert_int_eq(batch_store_close(s, ERR_INTERRUPTED, &n_out, NULL), ERR_OK);
    must_run(&p, RESUME, 1);
    expect_out(&p);
    place_free(&p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_store");
    TCase *t = tcase_create("batch_store");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, out_is_in_order_whatever_ends_first);
    tcase_add_test(t, a_finished_run_is_left_as_it_is);
    tcase_add_test(t, killed_at_any_point_and_resumed);
    tcase_add_loop_test(t, altered_files_never_pass_for_whole_ones, 0, 2);
    tcase_add_test(t, damage_in_the_middle_is_kept_and_redone);
    tcase_add_test(t, any_write_may_fail);
    tcase_add_test(t, another_identity_is_refused_by_field);
    tcase_add_test(t, the_input_may_grow_and_not_change);
    tcase_add_test(t, failed_requests_are_retried_on_request);
    tcase_add_test(t, a_crash_is_held_against_what_ran_and_a_kill_is_not);
    tcase_add_test(t, what_is_not_ours_is_left_alone);
    tcase_add_test(t, a_journal_of_another_run_is_refused);
    tcase_add_test(t, a_second_run_finds_it_locked);
    suite_add_tcase(s, t);
    return s;
}
