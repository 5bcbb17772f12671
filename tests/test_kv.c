/* test_kv.c: page bookkeeping: nothing leaks, nothing is shared that differs. */
#include <stdlib.h>

#include "common/rng.h"
#include "infer/kv.h"
#include "tests/check_main.h"

#define SEQS      12
#define TOKENS    (KERN_PAGE * 8)
#define ALPHABETS 3

struct actor {
    struct kv_seq kv;
    int32_t page[8], ids[TOKENS];
    int64_t n_ids, n_done;
    bool live;
};

/* Token by token a shadow of what each page holds: page content is named by its whole prefix. */
struct world {
    struct kv *kv;
    struct actor a[SEQS];
    uint64_t content[64];
    struct rng r;
};

static uint64_t name_prefix(const int32_t *ids, int64_t n)
{
    uint64_t h = 1;
    for (int64_t i = 0; i < n; i++)
        h = h * 1000003 + (uint64_t)ids[i] + 7;
    return h;
}

static void start_actor(struct world *w, struct actor *a)
{
    int32_t idle;
    *a = (struct actor){.live = true, .n_ids = 1 + (int64_t)rng_below(&w->r, TOKENS)};
    a->kv.page = a->page;
    a->kv.page_max = 8;
    /* Few distinct pages, so that many prefixes agree and then part. */
    for (int64_t i = 0; i < a->n_ids; i += KERN_PAGE) {
        int32_t letter = (int32_t)rng_below(&w->r, ALPHABETS);
        for (int64_t j = i; j < MIN2(i + KERN_PAGE, a->n_ids); j++)
            a->ids[j] = letter;
    }
    int64_t found = kv_probe(w->kv, a->ids, a->n_ids - 1, &idle);
    int32_t before = kv_free_pages(w->kv);
    a->n_done = kv_attach(w->kv, &a->kv, a->ids, a->n_ids - 1);
    ck_assert_int_eq(a->n_done, found);
    ck_assert_int_eq(kv_free_pages(w->kv), before - idle);
    for (int i = 0; i < a->kv.n_pages; i++)
        ck_assert_msg(w->content[a->page[i]] == name_prefix(a->ids, (int64_t)(i + 1) * KERN_PAGE),
                      "a page is shared with another prefix");
}

static void run_actor(struct world *w, struct actor *a)
{
    int64_t n = a->n_done + 1 + (int64_t)rng_below(&w->r, 100);
    n = MIN2(n, a->n_ids);
    int old = a->kv.n_pages;
    int32_t before = kv_free_pages(w->kv);
    bool fits = kv_pages_for(n) - old <= before;
    bool got = kv_extend(w->kv, &a->kv, n);
    ck_assert(got == fits);
    if (!fits) {
        ck_assert(a->kv.n_pages == old && kv_free_pages(w->kv) == before);
        return;
    }
    for (int i = MAX2((int)(a->n_done / KERN_PAGE), 0); i < a->kv.n_pages; i++) {
        int64_t end = MIN2(n, (int64_t)(i + 1) * KERN_PAGE);
        w->content[a->page[i]] = name_prefix(a->ids, end);
    }
    a->n_done = n;
    kv_commit(w->kv, &a->kv, a->ids, n);
}

static bool check_world(const struct world *w)
{
    const struct kv_seq *seqs[SEQS];
    int n = 0;
    for (int i = 0; i < SEQS; i++) {
        if (w->a[i].live)
            seqs[n++] = &w->a[i].kv;
    }
    return kv_check(w->kv, seqs, n);
}

/* Runs random lives; false when an invariant broke. */
static bool run_world(uint64_t seed, bool share, enum kv_fault fault)
{
    struct world *w = calloc(1, sizeof *w);
    ck_assert(w != NULL);
    w->r.seed = seed;
    w->kv = kv_new(24, share);
    ck_assert(w->kv != NULL);
    kv_plant(w->kv, fault);
    bool ok = true;
    for (int i = 0; i < 3000 && ok; i++) {
        struct actor *a = &w->a[rng_below(&w->r, SEQS)];
        if (!a->live) {
            start_actor(w, a);
        } else if (a->n_done == a->n_ids || rng_below(&w->r, 8) == 0) {
            kv_release(w->kv, &a->kv);
            a->live = false;
        } else {
            run_actor(w, a);
        }
        ok = check_world(w);
    }
    for (int i = 0; i < SEQS; i++)
        kv_release(w->kv, &w->a[i].kv);
    ok = ok && kv_free_pages(w->kv) == kv_total_pages(w->kv);
    kv_free(w->kv);
    free(w);
    return ok;
}

START_TEST(random_lives_leak_no_page_and_share_only_equal_prefixes)
{
    for (uint64_t seed = 1; seed <= 20; seed++)
        ck_assert(run_world(seed, seed % 4 != 0, KV_FAULT_NONE));
}
END_TEST

START_TEST(a_planted_leak_is_seen)
{
    ck_assert(!run_world(1, true, KV_FAULT_LEAK));
}
END_TEST

START_TEST(a_planted_mix_up_of_prefixes_is_seen)
{
    struct kv *kv = kv_new(16, true);
    int32_t page[8], ids[64] = {0}, other[128] = {1}, idle;
    struct kv_seq a = {.page = page, .page_max = 8};
    memcpy(other + 64, ids, sizeof ids);
    ck_assert(kv_extend(kv, &a, 128));
    kv_plant(kv, KV_FAULT_PARENT);
    kv_commit(kv, &a, other, 128);
    ck_assert_int_eq(kv_probe(kv, ids, 64, &idle), 64); /* it stood after other tokens */
    kv_release(kv, &a);
    kv_free(kv);
}
END_TEST

static struct kv_seq make_seq(int32_t *page)
{
    return (struct kv_seq){.page = page, .page_max = 8};
}

static void fill_ids(int32_t *ids, int n, int32_t v)
{
    for (int i = 0; i < n; i++)
        ids[i] = v + i / KERN_PAGE;
}

START_TEST(only_full_pages_of_committed_tokens_are_shared)
{
    struct kv *kv = kv_new(16, true);
    int32_t pa[8], pb[8], ids[300], idle;
    struct kv_seq a = make_seq(pa), b = make_seq(pb);
    fill_ids(ids, 300, 5);
    ck_assert(kv_extend(kv, &a, 300));
    ck_assert_int_eq(kv_probe(kv, ids, 300, &idle), 0);
    kv_commit(kv, &a, ids, 200); /* three full pages of five */
    ck_assert_int_eq(kv_probe(kv, ids, 300, &idle), 192);
    ck_assert_int_eq(idle, 0);
    ck_assert_int_eq(kv_probe(kv, ids, 191, &idle), 128);
    ck_assert_int_eq(kv_attach(kv, &b, ids, 191), 128);
    ck_assert(pb[0] == pa[0] && pb[1] == pa[1]);
    kv_release(kv, &a);
    ck_assert_int_eq(kv_probe(kv, ids, 300, &idle), 192);
    ck_assert_int_eq(idle, 1); /* the third: b holds the other two */
    kv_release(kv, &b);
    ck_assert_int_eq(kv_free_pages(kv), 16);
    kv_free(kv);
}
END_TEST

START_TEST(the_same_page_after_another_prefix_is_another_page)
{
    struct kv *kv = kv_new(16, true);
    int32_t page[8], ids[128], idle;
    struct kv_seq a = make_seq(page);
    fill_ids(ids, 128, 5);
    ck_assert(kv_extend(kv, &a, 128));
    kv_commit(kv, &a, ids, 128);
    ids[3] = 99; /* the second page's own tokens stay */
    ck_assert_int_eq(kv_probe(kv, ids, 128, &idle), 0);
    ck_assert_int_eq(kv_probe(kv, ids + 64, 64, &idle), 0);
    kv_release(kv, &a);
    kv_free(kv);
}
END_TEST

START_TEST(idle_pages_leave_oldest_first_and_tails_before_heads)
{
    struct kv *kv = kv_new(4, true);
    int32_t pa[8], pb[8], ids_a[128], ids_b[128], idle;
    struct kv_seq a = make_seq(pa), b = make_seq(pb);
    fill_ids(ids_a, 128, 10);
    fill_ids(ids_b, 128, 20);
    ck_assert(kv_extend(kv, &a, 128));
    kv_commit(kv, &a, ids_a, 128);
    kv_release(kv, &a);
    ck_assert(kv_extend(kv, &b, 128));
    kv_commit(kv, &b, ids_b, 128);
    kv_release(kv, &b);
    ck_assert(kv_extend(kv, &a, 64)); /* takes the tail of a's old pages */
    ck_assert_int_eq(kv_probe(kv, ids_a, 128, &idle), 64);
    ck_assert_int_eq(kv_probe(kv, ids_b, 128, &idle), 128);
    ck_assert(kv_extend(kv, &a, 192));
    ck_assert_int_eq(kv_probe(kv, ids_a, 128, &idle), 0);
    ck_assert_int_eq(kv_probe(kv, ids_b, 128, &idle), 64);
    ck_assert(!kv_extend(kv, &a, 320));
    kv_release(kv, &a);
    kv_free(kv);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kv");
    TCase *t = tcase_create("kv");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, random_lives_leak_no_page_and_share_only_equal_prefixes);
    tcase_add_test(t, a_planted_leak_is_seen);
    tcase_add_test(t, a_planted_mix_up_of_prefixes_is_seen);
    tcase_add_test(t, only_full_pages_of_committed_tokens_are_shared);
    tcase_add_test(t, the_same_page_after_another_prefix_is_another_page);
    tcase_add_test(t, idle_pages_leave_oldest_first_and_tails_before_heads);
    suite_add_tcase(s, t);
    return s;
}
