/* test_sched.c: random queues run to their end under every promise of a plan. */
#include <stdlib.h>

#include "common/rng.h"
#include "infer/kv.h"
#include "infer/sched.h"
#include "tests/check_main.h"

#define REQS 40

struct req {
    int64_t n_prompt, n_total, n_tok, n_done, out_from, pages, ended_at;
    bool running, score;
};

/* A pool without sharing, so its count is exact; the plan must fit it to the page. */
struct world {
    struct req req[REQS];
    int order[REQS], n; /* those not done, by age */
    struct sched_limits l;
    int64_t pool;
    int64_t steps, put_back;
    uint64_t log;
    struct rng r;
};

static void make_world(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->r.seed = seed;
    w->pool = 8 + (int64_t)rng_below(&w->r, 40);
    w->l.batch_tokens = 1 + (int)rng_below(&w->r, 300);
    w->l.batch_seqs = 1 + (int)rng_below(&w->r, (uint64_t)MIN2(w->l.batch_tokens, 12));
    w->l.out_rows = 1 + (int)rng_below(&w->r, 20);
    w->l.chunk = 1 + (int)rng_below(&w->r, 200);
    w->n = REQS;
    for (int i = 0; i < REQS; i++) {
        struct req *q = &w->req[i];
        q->n_prompt = 1 + (int64_t)rng_below(&w->r, 250);
        q->score = rng_below(&w->r, 4) == 0;
        q->n_total = q->n_prompt + (q->score ? 0 : 1 + (int64_t)rng_below(&w->r, 200));
        q->n_total = MIN2(q->n_total, w->pool * KERN_PAGE);
        q->n_tok = q->n_prompt;
        q->out_from = q->score ? (int64_t)rng_below(&w->r, (uint64_t)q->n_prompt) : 0;
        w->order[i] = i;
    }
}

static int64_t free_pages(const struct world *w)
{
    int64_t used = 0;
    for (int i = 0; i < REQS; i++)
        used += w->req[i].pages;
    return w->pool - used;
}

static void view_world(const struct world *w, struct sched_seq *v)
{
    for (int i = 0; i < w->n; i++) {
        const struct req *q = &w->req[w->order[i]];
        v[i] = (struct sched_seq){.running = q->running, .n_tok = q->n_tok, .n_done = q->n_done};
        v[i].out_from = q->score ? q->out_from : q->n_tok - 1;
        v[i].n_pages = q->pages;
    }
}

/* Applies a plan after checking each promise that it makes. */
static void apply_plan(struct world *w, const struct sched_plan *p, const struct sched_seq *v)
{
    int64_t tokens = 0, rows = 0, need = 0;
    bool seen[REQS] = {false}, decode_over = false, waiting_over = false;
    int last_admitted = -1, running = 0;
    for (int i = 0; i < p->n_pieces; i++) {
        int at = p->piece[i].seq, n = p->piece[i].n;
        const struct sched_seq *s = &v[at];
        ck_assert(at >= 0 && at < w->n && !seen[at] && n >= 1 && n <= w->l.chunk);
        ck_assert(n <= s->n_tok - s->n_done);
        seen[at] = true;
        bool decode = s->running && s->n_tok - s->n_done == 1;
        ck_assert_msg(!(decode && decode_over), "decode rows come first");
        decode_over |= !decode;
        ck_assert_msg(!(s->running && waiting_over), "admissions come last");
        if (!s->running) {
            waiting_over = true;
            ck_assert_msg(at > last_admitted, "admission in order");
            ck_assert_msg(at == 0 || v[at - 1].running || seen[at - 1], "nobody is passed over");
            last_admitted = at;
        }
        tokens += n;
        rows += MAX2(s->n_done + n - MAX2(s->out_from, s->n_done), 0);
        need += MAX2(kv_pages_for(s->n_done + n) - s->n_pages, 0);
    }
    for (int i = 0; i < w->n; i++)
        running += v[i].running || seen[i];
    ck_assert_msg(tokens <= w->l.batch_tokens && rows <= w->l.out_rows, "budget");
    ck_assert(running <= w->l.batch_seqs && need <= free_pages(w));
    for (int i = 0; i < p->n_pieces; i++) {
        struct req *q = &w->req[w->order[p->piece[i].seq]];
        q->running = true;
        q->n_done += p->piece[i].n;
        q->pages = MAX2(q->pages, kv_pages_for(q->n_done));
        if (!q->score && q->n_done == q->n_tok)
            q->n_tok++;
        w->log = w->log * 31 + (uint64_t)(p->piece[i].seq * 7 + p->piece[i].n);
    }
}

static void sweep_world(struct world *w)
{
    int kept = 0;
    for (int i = 0; i < w->n; i++) {
        struct req *q = &w->req[w->order[i]];
        if (q->score ? q->n_done == q->n_tok
                     : q->n_tok == q->n_total + 1 || q->n_tok > q->n_total) {
            q->pages = 0;
            q->running = false;
            q->ended_at = w->steps;
        } else {
            w->order[kept++] = w->order[i];
        }
    }
    w->n = kept;
}

static void run_world(struct world *w)
{
    struct sched_seq v[REQS];
    struct sched_piece piece[16];
    while (w->n > 0) {
        struct sched_plan p = {.piece = piece};
        view_world(w, v);
        w->l.free_pages = free_pages(w);
        sched_plan_step(v, w->n, &w->l, &p);
        if (p.put_back >= 0) {
            int youngest = 0;
            while (youngest + 1 < w->n && v[youngest + 1].running)
                youngest++;
            ck_assert_msg(p.put_back == youngest && youngest > 0, "the youngest, never the oldest");
            struct req *q = &w->req[w->order[youngest]];
            q->running = false;
            q->pages = q->n_done = 0;
            w->put_back++;
            continue;
        }
        ck_assert_msg(p.n_pieces > 0, "no progress");
        apply_plan(w, &p, v);
        w->steps++;
        sweep_world(w);
        ck_assert_msg(w->steps < 100000, "starved");
    }
}

START_TEST(random_queues_end_within_every_budget)
{
    int64_t put_back = 0;
    struct world *w = malloc(sizeof *w);
    ck_assert(w != NULL);
    for (uint64_t seed = 1; seed <= 300; seed++) {
        make_world(w, seed);
        run_world(w);
        ck_assert_int_eq(free_pages(w), w->pool);
        put_back += w->put_back;
    }
    ck_assert_msg(put_back > 100, "the pools were never tight");
    free(w);
}
END_TEST

START_TEST(the_same_queue_gives_the_same_plans)
{
    struct world *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    ck_assert(a && b);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        make_world(a, seed);
        make_world(b, seed);
        run_world(a);
        run_world(b);
        ck_assert(a->log == b->log && a->steps == b->steps);
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(a_shared_prefix_shortens_the_first_piece)
{
    struct sched_seq v = {.n_tok = 200, .n_done = 128, .out_from = 199, .n_pages = 2, .n_idle = 2};
    struct sched_limits l = {512, 4, 4, 512, 4};
    struct sched_piece piece[4];
    struct sched_plan p = {.piece = piece};
    sched_plan_step(&v, 1, &l, &p);
    ck_assert(p.n_pieces == 1 && piece[0].n == 72);
    l.free_pages = 3; /* two are the idle ones themselves: one page of room */
    sched_plan_step(&v, 1, &l, &p);
    ck_assert(p.n_pieces == 1 && piece[0].n == 64);
}
END_TEST

START_TEST(nobody_is_admitted_into_pages_that_others_will_need)
{
    struct sched_seq v[2] = {
        {.running = true, .n_tok = 640, .n_done = 64, .out_from = 639, .n_pages = 1},
        {.n_tok = 64, .out_from = 63},
    };
    struct sched_limits l = {128, 4, 4, 64, 10};
    struct sched_piece piece[4];
    struct sched_plan p = {.piece = piece};
    sched_plan_step(v, 2, &l, &p);
    ck_assert(p.n_pieces == 1 && piece[0].seq == 0);
    l.free_pages = 12; /* ten for the first (640 tokens and one), two for the second */
    sched_plan_step(v, 2, &l, &p);
    ck_assert(p.n_pieces == 2);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("sched");
    TCase *t = tcase_create("sched");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, random_queues_end_within_every_budget);
    tcase_add_test(t, the_same_queue_gives_the_same_plans);
    tcase_add_test(t, a_shared_prefix_shortens_the_first_piece);
    tcase_add_test(t, nobody_is_admitted_into_pages_that_others_will_need);
    suite_add_tcase(s, t);
    return s;
}
