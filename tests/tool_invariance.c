/* tool_invariance.c: tool_invariance MODEL: the invariances of docs/numerics.md on a given model.
 *
 * A prompt of 300 tokens is fed in many ways, in both arithmetics: again, in pieces of several
 * sizes, row by row after a prefix, beside another sequence, with other numbers of threads. Rows
 * (a hash over every operation) and pages must be those of the first way. Then under planted
 * faults, which must be seen: so the model needs sums of more than one chunk (an input of more than
 * 256) and a context of 512. For the models of tests/families.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels_private.h"
#include "tests/check_main.h"
#include "tests/engine_rig.h"

enum { LEN = 300 };

static const char *model;

struct way {
    int first, width, threads;
    bool crowded;
};

static void feed(struct rig *r, struct rig_seq *s, const int32_t *ids, const struct way *w)
{
    struct rig_seq other, *order[2] = {&other, s};
    rig_seq_start(r, s, ids, LEN);
    rig_seq_start(r, &other, ids + 7, 100);
    while (s->done < s->n) {
        int n[2] = {3, MIN2(s->done ? w->width : w->first, s->n - s->done)};
        bool both = w->crowded && other.done + 3 <= other.n;
        rig_step(r, both ? order : order + 1, both ? n : n + 1, both ? 2 : 1);
    }
    rig_seq_end(&other);
}

START_TEST(rows_and_pages_do_not_know_how_they_were_fed)
{
    static const struct way ways[] = {{LEN, LEN, 2, false}, {64, 64, 2, false}, {63, 7, 2, false},
                                      {100, 1, 2, false},   {1, 39, 2, true},   {41, 16, 1, true},
                                      {65, 100, 3, true},   {40, 5, 4, false}};
    struct rig_options o = {.arith = _i ? KERN_MMA90 : KERN_F32, .threads = 2, .ctx = 512};
    struct rig r;
    struct rig_seq want, got;
    o.batch_tokens = 512;
    o.out_rows = 512;
    o.kv_tokens = 2048;
    rig_open_path(&r, model, &o);
    int32_t *ids = rig_ids(12, LEN, (int)engine_hparams(r.en)->n_vocab);
    feed(&r, &want, ids, &ways[0]);
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        if (o.threads != ways[i].threads) {
            o.threads = ways[i].threads;
            rig_reopen(&r, &o);
        }
        rig_clear(&r);
        feed(&r, &got, ids, &ways[i]);
        ck_assert_msg(rig_same_rows(&want, &got), "rows, way %zu", i);
        rig_seq_end(&got);
    }
    static const enum kern_fault faults[] = {KERN_FAULT_CHUNK_ORDER, KERN_FAULT_SPLIT_EDGE};
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        kern_plant(faults[i]);
        rig_clear(&r);
        feed(&r, &got, ids, &ways[0]);
        kern_plant(KERN_FAULT_NONE);
        ck_assert_msg(!rig_same_rows(&want, &got), "planted fault %zu is not seen", i);
        rig_seq_end(&got);
    }
    rig_seq_end(&want);
    free(ids);
    rig_close(&r);
}
END_TEST

/* Pages of two ways in one engine. */
START_TEST(pages_are_the_same)
{
    static const struct way ways[] = {{LEN, LEN, 2, false}, {63, 7, 2, true}};
    struct rig_options o = {.arith = _i ? KERN_MMA90 : KERN_F32, .threads = 2, .ctx = 512};
    struct rig r;
    struct rig_seq a, b;
    o.batch_tokens = 512;
    o.out_rows = 512;
    o.kv_tokens = 2048;
    rig_open_path(&r, model, &o);
    int32_t *ids = rig_ids(13, LEN, (int)engine_hparams(r.en)->n_vocab);
    feed(&r, &a, ids, &ways[0]);
    feed(&r, &b, ids, &ways[1]);
    ck_assert(rig_same_rows(&a, &b) && rig_same_pages(&r, &a, &r, &b));
    rig_seq_end(&a);
    rig_seq_end(&b);
    free(ids);
    rig_close(&r);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: tool_invariance MODEL\n");
        return 2;
    }
    model = argv[1];
    Suite *s = suite_create("invariance");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, rows_and_pages_do_not_know_how_they_were_fed, 0, 2);
    tcase_add_loop_test(t, pages_are_the_same, 0, 2);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
