/* test_runner.c: what a request gets does not depend on the batch, the pool, the cache or the
 * order of work (invariances 2, 3, 11 and 13 of docs/numerics.md at the level of requests).
 */
#include <math.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/rng.h"
#include "infer/kv.h"
#include "infer/runner_private.h"
#include "tests/check_main.h"
#include "tests/engine_rig.h"
#include "tests/tiny_text.h"

#define ARITHS 2
#define REQS   10
#define NEW    24
#define VOCAB  320

/* What one request got. */
struct got {
    uint64_t hash[600];
    int32_t id[600];
    int n;
    enum finish_reason why;
    int done;
};

struct wish {
    int32_t *prompt;
    int n_prompt, n_new;
    double temperature;
    int64_t score_from;
};

struct setup {
    int arith, batch_seqs, batch_tokens, chunk;
    int64_t kv_tokens;
    bool shuffle, no_prefix;
    int window; /* requests submitted at once; 0: all */
    enum kv_fault kv_fault;
    enum runner_fault fault;
};

static void on_row(void *user, void *req_user, const struct row_info *row)
{
    struct got *g = req_user;
    (void)user;
    ck_assert(g->n < 600 && !g->done);
    ck_assert(row->margin >= 0 && row->logprob <= 0);
    g->hash[g->n] = row->hash;
    g->id[g->n++] = row->id;
}

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    (void)text;
    ck_assert(len == 0);
    on_row(user, req_user, row);
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    struct got *g = req_user;
    (void)user;
    (void)tail;
    ck_assert(len == 0);
    g->why = why;
    g->done++;
}

static struct runner *start(struct rig *r, const struct setup *s)
{
    struct rig_options o = {.arith = s->arith ? KERN_MMA90 : KERN_F32, .threads = 2};
    struct runner_options ro = {.chunk = s->chunk, .shuffle = s->shuffle};
    struct runner *run = NULL;
    o.batch_seqs = s->batch_seqs;
    o.batch_tokens = s->batch_tokens;
    o.kv_tokens = s->kv_tokens;
    o.out_rows = MAX2(s->batch_seqs, 8);
    o.ctx = 1024;
    ro.no_prefix = s->no_prefix;
    ro.events.on_row = on_row;
    ro.events.on_token = on_token;
    ro.events.on_done = on_done;
    rig_reopen(r, &o);
    ck_assert(runner_new(&run, r->en, NULL, &ro, NULL) == ERR_OK);
    kv_plant(runner_kv(run), s->kv_fault);
    runner_plant(run, s->fault);
    return run;
}

static void submit(struct runner *run, const struct wish *w, struct got *g, int number)
{
    struct request q = {.prompt = w->prompt, .n_prompt = w->n_prompt, .max_tokens = w->n_new};
    struct err e = {.text = ""};
    q.sampling = sampling_default();
    q.sampling.temperature = w->temperature;
    q.sampling.seed = 3;
    q.stream_key[0] = (uint8_t)number;
    q.score_from = w->score_from;
    ck_assert_msg(runner_submit(run, &q, g, &e) == ERR_OK, "%s", e.text);
}

/* Runs all wishes; false when the runner itself gave up (only a planted fault may do that). */
static bool run_all(struct rig *r, const struct setup *s, const struct wish *w, int n,
                    struct got *out, struct runner_stats *stats)
{
    struct runner *run = start(r, s);
    struct err e = {.text = ""};
    int next = 0;
    bool busy = true;
    enum err_code rc = ERR_OK;
    memset(out, 0, (size_t)n * sizeof *out);
    while (rc == ERR_OK && (busy || next < n)) {
        while (next < n && (!s->window || runner_pending(run) < s->window)) {
            submit(run, &w[next], &out[next], next);
            next++;
        }
        rc = runner_step(run, &busy, &e);
    }
    ck_assert_msg(rc == ERR_OK || s->fault || s->kv_fault, "%s", e.text);
    for (int i = 0; rc == ERR_OK && i < n; i++)
        ck_assert(out[i].done == 1);
    if (rc == ERR_OK && !s->kv_fault)
        ck_assert(kv_check(runner_kv(run), NULL, 0));
    if (stats)
        *stats = runner_get_stats(run);
    runner_free(run);
    return rc == ERR_OK;
}

static bool same_all(const struct got *a, const struct got *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (a[i].n != b[i].n || a[i].why != b[i].why ||
            memcmp(a[i].hash, b[i].hash, sizeof a[i].hash) != 0 ||
            memcmp(a[i].id, b[i].id, sizeof a[i].id) != 0)
            return false;
    }
    return true;
}

/* Prompts of all lengths; every third shares its first 130 tokens; some drawn, some scored. */
static void make_wishes(struct wish *w, int n)
{
    struct rng rng = {17, 0};
    int32_t *shared = rig_ids(50, 130, VOCAB);
    for (int i = 0; i < n; i++) {
        w[i] = (struct wish){.n_prompt = 1 + (int)rng_below(&rng, 250), .n_new = NEW};
        w[i].score_from = -1;
        if (i % 3 == 0)
            w[i].n_prompt += 130;
        w[i].prompt = rig_ids(60 + (uint64_t)i, w[i].n_prompt, VOCAB);
        if (i % 3 == 0)
            memcpy(w[i].prompt, shared, 130 * sizeof *shared);
        w[i].temperature = i % 2 ? 0.9 : 0;
        if (i % 5 == 4)
            w[i].score_from = w[i].n_prompt / 3;
    }
    free(shared);
}

static void free_wishes(struct wish *w, int n)
{
    for (int i = 0; i < n; i++)
        free(w[i].prompt);
}

static struct setup roomy(int arith)
{
    return (struct setup){.arith = arith, .batch_seqs = 16, .batch_tokens = 512, .no_prefix = true};
}

static void open_tiny(struct rig *r)
{
    struct tiny_model m = tiny_model_default();
    rig_open(r, &m, NULL);
}

START_TEST(answers_do_not_depend_on_batch_chunk_or_order)
{
    struct rig r;
    struct wish w[REQS];
    static struct got want[REQS], got[REQS];
    open_tiny(&r);
    make_wishes(w, REQS);
    struct setup s = roomy(_i);
    ck_assert(run_all(&r, &s, w, REQS, want, NULL));
    const struct setup others[] = {
        {.arith = _i, .batch_seqs = 1, .batch_tokens = 512},
        {.arith = _i, .batch_seqs = 3, .batch_tokens = 50, .shuffle = true},
        {.arith = _i, .batch_seqs = 16, .batch_tokens = 512, .chunk = 7, .shuffle = true},
        {.arith = _i, .batch_seqs = 8, .batch_tokens = 200, .chunk = 65, .window = 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        ck_assert(run_all(&r, &others[i], w, REQS, got, NULL));
        ck_assert_msg(same_all(want, got, REQS), "setup %zu", i);
    }
    free_wishes(w, REQS);
    rig_close(&r);
}
END_TEST

START_TEST(a_tiny_pool_gives_the_bytes_of_a_roomy_one)
{
    struct rig r;
    struct wish w[REQS];
    struct runner_stats stats;
    static struct got want[REQS], got[REQS];
    open_tiny(&r);
    make_wishes(w, REQS);
    for (int i = 0; i < REQS; i++)
        w[i].n_new = 80; /* so that pages run out while decoding */
    struct setup s = roomy(_i);
    ck_assert(run_all(&r, &s, w, REQS, want, NULL));
    s.kv_tokens = 640;
    ck_assert(run_all(&r, &s, w, REQS, got, &stats));
    ck_assert_msg(stats.preempted > 0, "nobody was put back");
    ck_assert(same_all(want, got, REQS));
    s.no_prefix = false;
    ck_assert(run_all(&r, &s, w, REQS, got, &stats));
    ck_assert(same_all(want, got, REQS));
    s.fault = RUNNER_FAULT_STALE;
    s.no_prefix = true;
    bool ran = run_all(&r, &s, w, REQS, got, NULL);
    ck_assert_msg(!ran || !same_all(want, got, REQS), "a planted stale resume is not seen");
    free_wishes(w, REQS);
    rig_close(&r);
}
END_TEST

START_TEST(a_prefix_from_the_cache_is_the_prefix_computed_cold)
{
    enum { N = 6 };
    struct rig r;
    struct wish w[N];
    struct runner_stats stats;
    static struct got want[N], got[N];
    open_tiny(&r);
    /* Two prompts with a common head; then their tail alone, which is known only after others. */
    int32_t *head = rig_ids(70, 192, VOCAB);
    static const int lengths[N] = {260, 250, 192, 193, 130, 200};
    for (int i = 0; i < N; i++) {
        w[i] = (struct wish){.n_prompt = lengths[i], .n_new = NEW, .score_from = -1};
        w[i].prompt = rig_ids(80 + (uint64_t)i, lengths[i], VOCAB);
        memcpy(w[i].prompt, head, (size_t)MIN2(lengths[i], 192) * sizeof *head);
    }
    memcpy(w[4].prompt, head + 64, 64 * sizeof *head);
    w[5].score_from = 150;
    struct setup s = roomy(_i);
    ck_assert(run_all(&r, &s, w, N, want, &stats));
    ck_assert(stats.shared_tokens == 0);
    s.no_prefix = false;
    s.window = 1; /* one after the other, so that each finds what came before */
    ck_assert(run_all(&r, &s, w, N, got, &stats));
    /* 192 of the second, 128 of the third (its last row is wanted), 192, none, 128 of the scored */
    ck_assert_uint_eq(stats.shared_tokens, 192 + 128 + 192 + 128);
    ck_assert(same_all(want, got, N));
    s.kv_fault = KV_FAULT_PARENT;
    ck_assert(run_all(&r, &s, w, N, got, NULL));
    ck_assert_msg(!same_all(want, got, N), "a planted mix-up of prefixes is not seen");
    free(head);
    free_wishes(w, N);
    rig_close(&r);
}
END_TEST

/* A prompt that holds another one and its answer finds the pages of both. */
START_TEST(an_answer_is_a_prefix_too)
{
    enum { FIRST = 100, MADE = 100, TAIL = 30, ALL = FIRST + MADE + TAIL };
    struct rig r;
    struct wish w[2] = {{.n_prompt = FIRST, .n_new = MADE, .score_from = -1},
                        {.n_prompt = ALL, .n_new = NEW, .score_from = -1}};
    struct runner_stats stats;
    static struct got want[2], got[2];
    open_tiny(&r);
    w[0].prompt = rig_ids(90, FIRST, VOCAB);
    w[1].prompt = rig_ids(91, ALL, VOCAB);
    struct setup s = roomy(_i);
    ck_assert(run_all(&r, &s, w, 1, want, NULL));
    ck_assert_int_eq(want[0].n, MADE);
    memcpy(w[1].prompt, w[0].prompt, FIRST * sizeof *w[0].prompt);
    memcpy(w[1].prompt + FIRST, want[0].id, MADE * sizeof *want[0].id);
    ck_assert(run_all(&r, &s, w, 2, want, &stats));
    ck_assert(stats.shared_tokens == 0);
    s.no_prefix = false;
    s.window = 1;
    ck_assert(run_all(&r, &s, w, 2, got, &stats));
    ck_assert_uint_eq(stats.shared_tokens, 192); /* of 199 tokens that were run */
    ck_assert(same_all(want, got, 2));
    free_wishes(w, 2);
    rig_close(&r);
}
END_TEST

START_TEST(what_cannot_fit_is_refused_with_both_numbers)
{
    struct rig r;
    struct err e = {.text = ""};
    open_tiny(&r);
    struct setup s = roomy(0);
    s.kv_tokens = 256;
    struct runner *run = start(&r, &s);
    int32_t *ids = rig_ids(1, 1024, VOCAB);
    struct request q = {.prompt = ids, .n_prompt = 1000, .max_tokens = 25, .score_from = -1};
    ck_assert_int_eq(runner_submit(run, &q, NULL, &e), ERR_INPUT);
    ck_assert(strstr(e.text, "1000") && strstr(e.text, "25") && strstr(e.text, "1024"));
    q.n_prompt = 300;
    ck_assert_int_eq(runner_submit(run, &q, NULL, &e), ERR_INPUT);
    ck_assert(strstr(e.text, "6 KV pages") && strstr(e.text, "4"));
    q.n_prompt = 0;
    ck_assert_int_eq(runner_submit(run, &q, NULL, &e), ERR_INPUT);
    q.n_prompt = 3;
    ids[1] = VOCAB;
    ck_assert_int_eq(runner_submit(run, &q, NULL, &e), ERR_INPUT);
    ck_assert(strstr(e.text, "320") && strstr(e.text, "319"));
    ck_assert_int_eq(runner_pending(run), 0);
    runner_free(run);
    free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(scored_rows_are_the_tokens_that_follow)
{
    struct rig r;
    static struct got g[4];
    open_tiny(&r);
    int32_t *ids = rig_ids(2, 100, VOCAB);
    struct wish w[4] = {
        {ids, 100, 0, 0, 0}, {ids, 100, 0, 0, 97}, {ids, 1, 0, 0, 0}, {ids, 50, 0, 0, -1}};
    struct setup s = roomy(0);
    s.batch_tokens = 64;
    ck_assert(run_all(&r, &s, w, 4, g, NULL));
    ck_assert(g[0].n == 99 && g[1].n == 2 && g[2].n == 0 && g[3].n == 0);
    for (int i = 0; i < 99; i++)
        ck_assert_int_eq(g[0].id[i], ids[i + 1]);
    ck_assert(g[1].hash[0] == g[0].hash[97] && g[1].hash[1] == g[0].hash[98]);
    for (int i = 0; i < 4; i++)
        ck_assert(g[i].why == FINISH_LENGTH);
    free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(a_stop_id_ends_the_answer)
{
    struct rig r;
    static struct got free_run, stopped;
    open_tiny(&r);
    int32_t *ids = rig_ids(3, 20, VOCAB);
    struct wish w = {ids, 20, 30, 0.8, -1};
    struct setup s = roomy(0);
    ck_assert(run_all(&r, &s, &w, 1, &free_run, NULL));
    ck_assert(free_run.n == 30 && free_run.why == FINISH_LENGTH);
    int at = 0; /* where the id of the tenth token stands first */
    while (free_run.id[at] != free_run.id[10])
        at++;
    struct runner *run = start(&r, &s);
    struct request q = {.prompt = ids, .n_prompt = 20, .max_tokens = 30, .score_from = -1};
    q.sampling = sampling_default();
    q.sampling.temperature = 0.8;
    q.sampling.seed = 3;
    q.stop_ids = &free_run.id[at];
    q.n_stop_ids = 1;
    bool busy = true;
    ck_assert(runner_submit(run, &q, &stopped, NULL) == ERR_OK);
    while (busy)
        ck_assert(runner_step(run, &busy, NULL) == ERR_OK);
    ck_assert(stopped.n == at + 1 && stopped.why == FINISH_STOP);
    runner_free(run);
    free(ids);
    rig_close(&r);
}
END_TEST

/* ---- text ------------------------------------------------------------------------------------ */

struct told {
    struct strbuf text;
    int n_tokens, pieces;
    enum finish_reason why;
};

static void tell_token(void *user, void *req_user, const struct row_info *row, const char *text,
                       size_t len)
{
    struct told *t = req_user;
    (void)user;
    (void)row;
    strbuf_append(&t->text, text, len);
    t->n_tokens++;
    t->pieces += len > 0;
}

static void tell_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                      size_t len)
{
    struct told *t = req_user;
    (void)user;
    strbuf_append(&t->text, tail, len);
    t->why = why;
}

static struct tokenizer *open_text(struct rig *r)
{
    struct err e = {.text = ""};
    struct strbuf json = {0};
    struct tokenizer *tok = NULL;
    char *path = io_join(r->temp, "tokenizer.json");
    ck_assert_msg(tiny_text_write(r->temp, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(io_read_all(path, 1 << 20, &json, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(tokenizer_new(&tok, json.data, json.len, NULL, &e) == ERR_OK, "%s", e.text);
    strbuf_free(&json);
    free(path);
    return tok;
}

static void tell(struct runner *run, const int32_t *ids, const char *const *stop, int n_stop,
                 struct told *t)
{
    struct request q = {.prompt = ids, .n_prompt = 20, .max_tokens = 60, .score_from = -1};
    bool busy = true;
    *t = (struct told){0};
    q.sampling = sampling_default();
    q.sampling.temperature = 1.5;
    q.stop = stop;
    q.n_stop = n_stop;
    ck_assert(runner_submit(run, &q, t, NULL) == ERR_OK);
    while (busy)
        ck_assert(runner_step(run, &busy, NULL) == ERR_OK);
}

START_TEST(a_stop_string_ends_the_text_at_its_first_place)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    struct runner *run = NULL;
    m.n_vocab = 258; /* bytes and two merges: no special tokens in the text */
    rig_open(&r, &m, NULL);
    struct tokenizer *tok = open_text(&r);
    struct runner_options ro = {.events = {.on_token = tell_token, .on_done = tell_done}};
    ck_assert(runner_new(&run, r.en, tok, &ro, NULL) == ERR_OK);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        int32_t *ids = rig_ids(seed, 20, 258);
        struct told whole, cut;
        tell(run, ids, NULL, 0, &whole);
        ck_assert(whole.why == FINISH_LENGTH && whole.n_tokens == 60 && whole.pieces > 20);
        for (size_t at = 0; at + 3 < whole.text.len; at += 5) {
            char stop[5] = {0}, never[8] = "\x7f~~~~";
            const char *stops[2] = {never, stop};
            memcpy(stop, whole.text.data + at, 1 + at % 3);
            if (!stop[0] || strlen(stop) != 1 + at % 3)
                continue; /* stop strings end at a zero byte */
            tell(run, ids, stops, 2, &cut);
            const char *first = memmem(whole.text.data, whole.text.len, stop, strlen(stop));
            ck_assert(cut.why == FINISH_STOP);
            ck_assert_uint_eq(cut.text.len, (size_t)(first - whole.text.data));
            ck_assert(memcmp(cut.text.data ? cut.text.data : "", whole.text.data, cut.text.len) ==
                      0);
            strbuf_free(&cut.text);
        }
        strbuf_free(&whole.text);
        free(ids);
    }
    runner_free(run);
    tokenizer_free(tok);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("runner");
    TCase *t = tcase_create("runner");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, answers_do_not_depend_on_batch_chunk_or_order, 0, ARITHS);
    tcase_add_loop_test(t, a_tiny_pool_gives_the_bytes_of_a_roomy_one, 0, ARITHS);
    tcase_add_loop_test(t, a_prefix_from_the_cache_is_the_prefix_computed_cold, 0, ARITHS);
    tcase_add_loop_test(t, an_answer_is_a_prefix_too, 0, ARITHS);
    tcase_add_test(t, what_cannot_fit_is_refused_with_both_numbers);
    tcase_add_test(t, scored_rows_are_the_tokens_that_follow);
    tcase_add_test(t, a_stop_id_ends_the_answer);
    tcase_add_test(t, a_stop_string_ends_the_text_at_its_first_place);
    suite_add_tcase(s, t);
    return s;
}
