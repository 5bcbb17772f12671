/* batch_place.c: runs of the batch store with answers that are made up. */
#include "tests/batch_place.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "common/rng.h"
#include "infer/batch_crash.h"
#include "tests/check_main.h"

void batch_place_write(struct batch_place *p)
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

struct batch_place batch_place_new(void)
{
    struct batch_place p = {.dir = test_folder(), .n = BATCH_PLACE_N, .changed = -1};
    p.prompts = io_join(p.dir, "p.jsonl");
    p.out = io_join(p.dir, "o");
    p.journal = io_join(p.dir, "o.journal");
    p.run = io_join(p.dir, "o.run");
    p.damaged = io_join(p.dir, "o.damaged");
    p.identity = json_pack("{s:s, s:s, s:s}", "build", "assay", "model", "m", "seed", "1");
    batch_place_write(&p);
    return p;
}

void batch_place_free(struct batch_place *p)
{
    free(p->prompts);
    free(p->out);
    free(p->journal);
    free(p->run);
    free(p->damaged);
    json_decref(p->identity);
    census_free(&p->census);
}

void batch_place_clear(struct batch_place *p)
{
    unlink(p->out);
    unlink(p->journal);
    unlink(p->run);
    unlink(p->damaged);
}

static enum batch_outcome answer(const struct batch_place *p, uint64_t n, struct strbuf *b)
{
    bool fails = p->some_fail && n % 7 == 3;
    strbuf_clear(b);
    strbuf_printf(b, "{\"custom_id\":\"line-%llu\",\"text\":\"", (unsigned long long)n + 1);
    for (uint64_t i = 0; i < n * 37 % 101; i++)
        strbuf_printf(b, "%c", (char)('a' + (n + i) % 26));
    strbuf_printf(b, "\",\"error\":%s}\n", fails ? "{}" : "null");
    return fails ? BATCH_FAILED : BATCH_OK;
}

void batch_place_expect(const struct batch_place *p)
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

enum err_code batch_place_open(struct batch_store **s, struct batch_place *p, int flags,
                               struct err *e)
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
static enum err_code work(struct batch_store *s, const struct batch_place *p, struct rng *r,
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
enum err_code batch_place_run(struct batch_place *p, int flags, uint64_t seed, struct err *e)
{
    struct batch_store *s;
    struct rng r = {seed, 0};
    uint64_t n_out;
    enum err_code rc = batch_place_open(&s, p, flags, e);
    if (rc != ERR_OK)
        return rc;
    rc = work(s, p, &r, UINT64_MAX, e);
    enum err_code rc2 = batch_store_close(s, rc, &n_out, rc == ERR_OK ? e : NULL);
    return rc == ERR_OK ? rc2 : rc;
}

void batch_place_must_run(struct batch_place *p, int flags, uint64_t seed)
{
    struct err e = {.text = ""};
    enum err_code rc = batch_place_run(p, flags, seed, &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", err_name(rc), e.text);
}

/* A process that answers some requests and is gone: by `signal`, or in order when it is 0. */
void batch_place_cut(struct batch_place *p, int flags, uint64_t seed, uint64_t most,
                     int signal_number)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct batch_store *s;
        struct rng r = {seed, 0};
        uint64_t n_out;
        if (batch_place_open(&s, p, flags, NULL) != ERR_OK || work(s, p, &r, most, NULL) != ERR_OK)
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
