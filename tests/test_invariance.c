/* test_invariance.c: the invariances of docs/numerics.md that one engine can show, in both
 * arithmetics, on a tiny model; each comparison is also shown to fail under a planted fault.
 *
 * 1 repeat, 2 neighbours, 3 chunks, 4 verify width, 6 threads, 8 packed against expanded; 11
 * (prefix cache) and 13 (preemption) need a runner and are in test_runner.c, with the same two
 * arithmetics. The planted faults are those of kernels_private.h. With -DASSAY_TEST_MODEL the last
 * test does 1, 2, 3, 4 and 6 on that model; sanitized builds leave that to the
 * others (minutes).
 */
#include <stdlib.h>

#include "kernels/kernels_private.h"
#include "tests/check_main.h"
#include "tests/engine_rig.h"

#define ARITHS 2 /* loop tests run once for each, */
#define WAYS   6 /* or for each of three families too: way % ARITHS is the arithmetic */
#define VOCAB  320
/* Llama at all lengths and widths, the families at some, and so everything under sanitizers. */
#define WHOLE(way) ((way) < ARITHS && !TEST_SANITIZED)
#define NAN_ID     319

/* Llama, Mixtral, Qwen3-MoE with a dense layer. */
static struct tiny_model model_for(int way)
{
    return way < ARITHS ? tiny_model_default() : tiny_model_experts(way >= 2 * ARITHS);
}

static struct rig_options options_for(int way)
{
    return (struct rig_options){.arith = way % ARITHS ? KERN_MMA90 : KERN_F32, .threads = 2};
}

static void open_tiny(struct rig *r, int way)
{
    struct tiny_model m = model_for(way);
    struct rig_options o = options_for(way);
    m.nan_token = NAN_ID;
    rig_open(r, &m, &o);
}

/* ---- 1 --------------------------------------------------------------------------------------- */

/* Two runs of a prompt and 20 decoded rows; the second one under the fault. */
static bool repeats(struct rig *r, enum kern_fault fault)
{
    int32_t *ids = rig_ids(1, 100, NAN_ID);
    struct rig_seq s[2];
    for (int i = 0; i < 2; i++) {
        kern_plant(i ? fault : KERN_FAULT_NONE);
        rig_seq_start(r, &s[i], ids, 100);
        int n = 80;
        struct rig_seq *p = &s[i];
        rig_step(r, &p, &n, 1);
        rig_feed(r, &s[i], 1);
    }
    kern_plant(KERN_FAULT_NONE);
    bool same = rig_same_rows(&s[0], &s[1]) && rig_same_pages(r, &s[0], r, &s[1]);
    rig_seq_end(&s[0]);
    rig_seq_end(&s[1]);
    free(ids);
    return same;
}

START_TEST(a_run_repeats_itself)
{
    struct rig r;
    open_tiny(&r, _i);
    for (int i = 0; i < (WHOLE(_i) ? 23 : 3); i++) {
        ck_assert(repeats(&r, KERN_FAULT_NONE));
        rig_clear(&r);
    }
    ck_assert(!repeats(&r, KERN_FAULT_CHUNK_ORDER));
    rig_close(&r);
}
END_TEST

/* ---- 2 --------------------------------------------------------------------------------------- */

enum { MATES = 6 };

/* Several sequences alone, then together in another order with a poisoned one among them. */
static bool holds_in_batch(struct rig *r, enum kern_fault fault)
{
    static const int lengths[MATES] = {1, 5, 64, 33, 17, 40};
    int32_t *ids[MATES], bad[20];
    struct rig_seq alone[MATES], together[MATES], poisoned;
    struct rig_seq *order[MATES + 1];
    int n[MATES + 1];
    bool same = true;
    for (int i = 0; i < 20; i++)
        bad[i] = NAN_ID;
    rig_seq_start(r, &poisoned, bad, 20);
    for (int i = 0; i < MATES; i++) {
        ids[i] = rig_ids(10 + (uint64_t)i, lengths[i] + 8, NAN_ID);
        rig_seq_start(r, &alone[i], ids[i], lengths[i] + 8);
        int first = lengths[i];
        struct rig_seq *p = &alone[i];
        rig_step(r, &p, &first, 1);
        rig_feed(r, &alone[i], 1);
        rig_seq_start(r, &together[i], ids[i], lengths[i] + 8);
    }
    kern_plant(fault);
    for (int step = 0; step < 9; step++) {
        for (int i = 0; i < MATES; i++) {
            int at = (i * 5 + step) % MATES; /* another order in every step */
            order[i + (i > 2)] = &together[at];
            n[i + (i > 2)] = step ? 1 : lengths[at];
        }
        order[3] = &poisoned;
        n[3] = 2;
        rig_step(r, order, n, MATES + 1);
    }
    kern_plant(KERN_FAULT_NONE);
    for (int i = 0; i < MATES; i++) {
        same = same && rig_same_rows(&alone[i], &together[i]) &&
               rig_same_pages(r, &alone[i], r, &together[i]);
        rig_seq_end(&alone[i]);
        rig_seq_end(&together[i]);
        free(ids[i]);
    }
    rig_seq_end(&poisoned);
    rig_clear(r);
    return same;
}

START_TEST(a_row_does_not_know_its_neighbours)
{
    struct rig r;
    open_tiny(&r, _i);
    ck_assert(holds_in_batch(&r, KERN_FAULT_NONE));
    ck_assert_msg(!holds_in_batch(&r, KERN_FAULT_NEIGHBOUR), "a planted leak is not seen");
    ck_assert_msg(!holds_in_batch(&r, KERN_FAULT_CHUNK_ORDER), "a planted order is not seen");
    rig_close(&r);
}
END_TEST

/* A decode row in steps of `rows` rows in all, at the front, in the middle and at the end. */
static bool holds_among(struct rig *r, int rows, const struct rig_seq *want, const int32_t *ids)
{
    int32_t *other = rig_ids(99, 512, NAN_ID);
    bool same = true;
    for (int place = 0; place < (rows > 1 ? 3 : 1); place++) {
        struct rig_seq s, before, after, *order[3];
        int n[3], n_seqs = 0, left = rows - 1,
                  front = place == 0   ? 0
                          : place == 1 ? left / 2
                                       : left;
        rig_clear(r);
        rig_seq_start(r, &s, ids, 41);
        rig_feed(r, &s, 40);
        rig_seq_start(r, &before, other, 512);
        rig_seq_start(r, &after, other, 512);
        s.done = 40; /* the last row is fed again, among others */
        if (front > 0) {
            order[n_seqs] = &before;
            n[n_seqs++] = front;
        }
        order[n_seqs] = &s;
        n[n_seqs++] = 1;
        if (left - front > 0) {
            order[n_seqs] = &after;
            n[n_seqs++] = left - front;
        }
        rig_step(r, order, n, n_seqs);
        same = same && rig_same_rows(want, &s);
        rig_seq_end(&s);
        rig_seq_end(&before);
        rig_seq_end(&after);
    }
    free(other);
    return same;
}

START_TEST(a_row_is_the_same_in_a_step_of_any_size)
{
    static const int sizes[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,  13,  14,  15,
                                16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512};
    struct rig r;
    struct rig_seq want;
    open_tiny(&r, _i);
    int32_t *ids = rig_ids(5, 41, NAN_ID);
    rig_seq_start(&r, &want, ids, 41);
    rig_feed(&r, &want, 40);
    for (size_t i = 0; i < ARRAY_LEN(sizes) && sizes[i] <= (WHOLE(_i) ? 512 : 33); i++)
        ck_assert_msg(holds_among(&r, sizes[i], &want, ids), "in a step of %d rows", sizes[i]);
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    ck_assert_msg(!holds_among(&r, 5, &want, ids), "a planted order is not seen");
    kern_plant(KERN_FAULT_NONE);
    rig_seq_end(&want);
    rig_close(&r);
    free(ids);
}
END_TEST

/* ---- 3 --------------------------------------------------------------------------------------- */

/* A prompt whole against the same prompt cut at `cut`, or in chunks of -cut. */
static bool holds_cut(struct rig *r, const struct rig_seq *whole, int cut, enum kern_fault fault)
{
    struct rig_seq s, *p = &s;
    int keep = whole->n_pages;
    r->pages_used = keep;
    rig_seq_start(r, &s, whole->ids, whole->n);
    kern_plant(fault);
    if (cut > 0)
        rig_step(r, &p, &cut, 1);
    rig_feed(r, &s, cut > 0 ? whole->n : -cut);
    kern_plant(KERN_FAULT_NONE);
    bool same = rig_same_rows(whole, &s) && rig_same_pages(r, whole, r, &s);
    rig_seq_end(&s);
    return same;
}

START_TEST(a_prompt_may_be_cut_anywhere)
{
    static const int cuts[] = {1, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025};
    static const int chunks[] = {-1, -7, -64, -100, -256, -511};
    struct tiny_model m = model_for(_i);
    const int n = WHOLE(_i) ? 1100 : 300;
    struct rig_options o = options_for(_i);
    struct rig r;
    struct rig_seq whole;
    o.batch_tokens = n;
    rig_open(&r, &m, &o);
    int32_t *ids = rig_ids(6, n, VOCAB);
    rig_seq_start(&r, &whole, ids, n);
    rig_feed(&r, &whole, n);
    for (size_t i = 0; i < ARRAY_LEN(cuts) && cuts[i] < n; i++)
        ck_assert_msg(holds_cut(&r, &whole, cuts[i], KERN_FAULT_NONE), "cut at %d", cuts[i]);
    for (size_t i = 0; i < ARRAY_LEN(chunks) && -chunks[i] < n; i++)
        ck_assert_msg(holds_cut(&r, &whole, chunks[i], KERN_FAULT_NONE), "chunks of %d",
                      -chunks[i]);
    ck_assert_msg(!holds_cut(&r, &whole, -1, KERN_FAULT_SPLIT_EDGE) ||
                      !holds_cut(&r, &whole, 256, KERN_FAULT_SPLIT_EDGE),
                  "a planted split is not seen");
    rig_seq_end(&whole);
    rig_close(&r);
    free(ids);
}
END_TEST

/* The window of a sliding layer must not depend on the piece either. */
START_TEST(a_windowed_prompt_may_be_cut_anywhere)
{
    static const int cuts[] = {1, 64, 99, 100, 101, 255, 256, 257, -1, -7, -64};
    struct tiny_model m = tiny_model_default();
    struct rig_options o = options_for(_i);
    struct rig r, unwindowed;
    struct rig_seq whole, other;
    m.window = 100;
    m.biases = false;
    rig_open(&r, &m, &o);
    m.window = 0;
    rig_open(&unwindowed, &m, &o);
    int32_t *ids = rig_ids(7, 400, VOCAB);
    rig_seq_start(&r, &whole, ids, 400);
    rig_feed(&r, &whole, 400);
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++)
        ck_assert_msg(holds_cut(&r, &whole, cuts[i], KERN_FAULT_NONE), "cut %d", cuts[i]);
    rig_seq_start(&unwindowed, &other, ids, 400);
    rig_feed(&unwindowed, &other, 400);
    ck_assert(memcmp(other.hash, whole.hash, 100 * sizeof *other.hash) == 0);
    ck_assert_msg(other.hash[100] != whole.hash[100], "the window does nothing");
    rig_seq_end(&whole);
    rig_seq_end(&other);
    rig_close(&r);
    rig_close(&unwindowed);
    free(ids);
}
END_TEST

/* ---- 4 --------------------------------------------------------------------------------------- */

static bool holds_width(struct rig *r, const struct rig_seq *plain, int width,
                        enum kern_fault fault)
{
    struct rig_seq s, *p = &s;
    int first = 250;
    r->pages_used = plain->n_pages;
    rig_seq_start(r, &s, plain->ids, plain->n);
    rig_step(r, &p, &first, 1);
    kern_plant(fault);
    rig_feed(r, &s, width);
    kern_plant(KERN_FAULT_NONE);
    bool same = rig_same_rows(plain, &s) && rig_same_pages(r, plain, r, &s);
    rig_seq_end(&s);
    return same;
}

START_TEST(a_verified_block_is_the_rows_decoded_one_by_one)
{
    struct rig r;
    struct rig_seq plain, *p = &plain;
    open_tiny(&r, _i);
    int32_t *ids = rig_ids(8, 300, NAN_ID);
    int first = 250;
    rig_seq_start(&r, &plain, ids, 300);
    rig_step(&r, &p, &first, 1);
    rig_feed(&r, &plain, 1);
    for (int width = 1; width <= 16; width += WHOLE(_i) ? 1 : 5)
        ck_assert_msg(holds_width(&r, &plain, width, KERN_FAULT_NONE), "width %d", width);
    ck_assert(!holds_width(&r, &plain, 8, KERN_FAULT_CHUNK_ORDER));
    ck_assert(!holds_width(&r, &plain, 8, KERN_FAULT_SPLIT_EDGE));
    rig_seq_end(&plain);
    rig_close(&r);
    free(ids);
}
END_TEST

/* ---- 6 --------------------------------------------------------------------------------------- */

static void run_threads(struct rig *r, int way, int threads, struct rig_seq *s, const int32_t *ids,
                        enum kern_fault fault)
{
    struct rig_options o = options_for(way);
    o.threads = threads;
    rig_reopen(r, &o);
    rig_seq_start(r, s, ids, 150);
    kern_plant(fault);
    int first = 140;
    rig_step(r, &s, &first, 1);
    rig_feed(r, s, 1);
    kern_plant(KERN_FAULT_NONE);
}

START_TEST(the_number_of_threads_does_not_matter)
{
    struct rig r;
    struct rig_seq one, many;
    open_tiny(&r, _i);
    int32_t *ids = rig_ids(9, 150, NAN_ID);
    run_threads(&r, _i, 1, &one, ids, KERN_FAULT_NONE);
    for (int threads = 2; threads <= 4; threads++) {
        run_threads(&r, _i, threads, &many, ids, KERN_FAULT_NONE);
        ck_assert_msg(rig_same_rows(&one, &many), "%d threads", threads);
        rig_seq_end(&many);
    }
    run_threads(&r, _i, 2, &many, ids, KERN_FAULT_THREAD_ORDER);
    ck_assert_msg(!rig_same_rows(&one, &many), "a planted order by thread is not seen");
    rig_seq_end(&one);
    rig_seq_end(&many);
    rig_close(&r);
    free(ids);
}
END_TEST

/* ---- 8 --------------------------------------------------------------------------------------- */

static bool packed_is(int way, int bits, int group, enum tiny_form form)
{
    struct tiny_model m = model_for(way);
    struct rig_options o = options_for(way);
    struct rig packed, expanded;
    struct rig_seq a, b;
    m.bits = bits;
    m.group = group;
    m.form = TINY_PACKED;
    rig_open(&packed, &m, &o);
    m.form = form;
    rig_open(&expanded, &m, &o);
    int32_t *ids = rig_ids(3, 60, VOCAB);
    rig_seq_start(&packed, &a, ids, 60);
    rig_seq_start(&expanded, &b, ids, 60);
    rig_feed(&packed, &a, 50);
    rig_feed(&expanded, &b, 50);
    bool same = rig_same_rows(&a, &b) && rig_same_pages(&packed, &a, &expanded, &b);
    rig_seq_end(&a);
    rig_seq_end(&b);
    rig_close(&packed);
    rig_close(&expanded);
    free(ids);
    return same;
}

START_TEST(packed_weights_are_their_expansion)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    const bool mma = _i % ARITHS;
    enum tiny_form form = mma ? TINY_EXPANDED_BF16 : TINY_EXPANDED_F32;
    for (size_t i = 0; i < ARRAY_LEN(bits); i++) {
        if (_i >= ARITHS && bits[i] != 4 && bits[i] != 8)
            continue; /* experts meet the same decoders */
        ck_assert_msg(packed_is(_i, bits[i], 64, form), "%d bits, group 64", bits[i]);
        ck_assert_msg(_i >= ARITHS || packed_is(_i, bits[i], 32, form), "%d bits, group 32",
                      bits[i]);
    }
    /* The fault: an expansion that rounds by the other arithmetic's rule. */
    ck_assert(!packed_is(_i, 8, 64, mma ? TINY_BF16 : TINY_EXPANDED_BF16));
}
END_TEST

/* ---- a real model ---------------------------------------------------------------------------- */

enum { REAL = 280 };

/* One prompt: `first` tokens at once, then pieces of `width`, beside another sequence or not.
 */
static void feed_real(struct rig *r, struct rig_seq *s, const int32_t *ids, int first, int width,
                      bool crowded)
{
    struct rig_seq other, *order[2] = {&other, s};
    rig_seq_start(r, s, ids, REAL);
    rig_seq_start(r, &other, ids + 7, 40);
    while (s->done < s->n) {
        int n[2] = {3, MIN2(s->done ? width : first, s->n - s->done)};
        bool both = crowded && other.done + 3 <= other.n;
        rig_step(r, both ? order : order + 1, both ? n : n + 1, both ? 2 : 1);
    }
    rig_seq_end(&other);
}

START_TEST(a_real_model_holds_them_too)
{
    static const struct {
        int first, width, threads;
        bool crowded;
    } ways[] = {{255, 16, 2, false}, {64, 100, 2, true}, {257, 5, 1, false}, {256, 1, 3, false}};
    struct rig_options o = options_for(_i);
    struct rig r;
    struct rig_seq want, got;
    o.batch_tokens = 320;
    o.out_rows = 320;
    o.ctx = 512;
    o.kv_tokens = 2048;
    rig_open_path(&r, TEST_MODEL, &o);
    int32_t *ids = rig_ids(12, REAL, (int)engine_hparams(r.en)->n_vocab);
    feed_real(&r, &want, ids, 257, 16, false);
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        if (o.threads != ways[i].threads) {
            o.threads = ways[i].threads;
            rig_reopen(&r, &o);
        }
        rig_clear(&r);
        feed_real(&r, &got, ids, ways[i].first, ways[i].width, ways[i].crowded);
        ck_assert_msg(rig_same_rows(&want, &got), "way %zu", i);
        rig_seq_end(&got);
    }
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    rig_clear(&r);
    feed_real(&r, &got, ids, REAL, REAL, false);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_msg(!rig_same_rows(&want, &got), "a planted order is not seen");
    rig_seq_end(&got);
    rig_seq_end(&want);
    rig_close(&r);
    free(ids);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("invariance");
    TCase *t = tcase_create("invariance");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_run_repeats_itself, 0, WAYS);
    tcase_add_loop_test(t, a_row_does_not_know_its_neighbours, 0, WAYS);
    tcase_add_loop_test(t, a_row_is_the_same_in_a_step_of_any_size, 0, WAYS);
    tcase_add_loop_test(t, a_prompt_may_be_cut_anywhere, 0, WAYS);
    tcase_add_loop_test(t, a_windowed_prompt_may_be_cut_anywhere, 0, ARITHS);
    tcase_add_loop_test(t, a_verified_block_is_the_rows_decoded_one_by_one, 0, WAYS);
    tcase_add_loop_test(t, the_number_of_threads_does_not_matter, 0, WAYS);
    tcase_add_loop_test(t, packed_weights_are_their_expansion, 0, WAYS);
    suite_add_tcase(s, t);
    TCase *real = tcase_create("model");
    tcase_set_timeout(real, 500);
    if (TEST_SANITIZED)
        (void)a_real_model_holds_them_too;
    else if (TEST_MODEL[0])
        tcase_add_loop_test(real, a_real_model_holds_them_too, 0, ARITHS);
    else
        test_skip("invariances of a real model: configure with -DASSAY_TEST_MODEL=MODEL");
    suite_add_tcase(s, real);
    return s;
}
