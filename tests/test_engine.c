/* test_engine.c: the plan, the fingerprint, the step's checks, and that a step allocates nothing.
 *
 * This program's own malloc counts calls and passes them on to glibc's; under a sanitizer, which
 * brings its own, that one test has nothing to count and is left out.
 */
#include <malloc.h>
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "infer/kv.h"
#include "infer/shapes.h"
#include "tests/check_main.h"
#include "tests/engine_rig.h"

#define COUNTS !TEST_SANITIZED

static volatile long allocations; /* the compiler knows strdup, and that it changes nothing */

#if COUNTS
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    (void)__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    (void)__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    (void)__atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, n);
}
#endif

static const struct rig_options small = {.threads = 2, .batch_tokens = 64, .batch_seqs = 4};

START_TEST(a_step_allocates_nothing)
{
    struct rig r;
    struct rig_options o = small;
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    o.arith = _i ? KERN_MMA90 : KERN_F32;
    rig_open(&r, &m, &o);
    int32_t *ids = rig_ids(1, 200, 320), pages[4] = {0, 1, 2, 3};
    long counted = 0;
    for (int at = 0; at < 200; at += 40) {
        struct step_piece p = {.ids = ids + at, .n = 40, .pos = at, .pages = pages, .n_pages = 4};
        struct step s = {.pieces = &p, .n_pieces = 1, .want_logits = true};
        long before = allocations;
        enum err_code rc = engine_zero_page(r.en, pages[3], &e);
        if (rc == ERR_OK)
            rc = engine_step(r.en, &s, &e);
        if (at > 0) /* the first step starts the threads */
            counted += allocations - before;
        ck_assert(rc == ERR_OK); /* outside the count: Check itself allocates */
    }
    ck_assert_int_eq(counted, 0);
    long before = allocations;
    char *volatile counts = strdup("the counter counts");
    ck_assert(allocations > before);
    free(counts);
    free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(memory_in_use_is_the_plan_within_five_percent)
{
    struct tiny_model m = tiny_model_default();
    struct rig_options o = {.threads = 1, .batch_tokens = 128, .batch_seqs = 8, .ctx = 1024};
    struct rig r;
    o.arith = _i ? KERN_MMA90 : KERN_F32;
    o.kv_tokens = 4096;
    m.d_model = 256; /* large enough that a page more or less does not matter */
    m.head_dim = 64;
    m.d_ff = 1536;
    m.n_layer = 6;
    m.n_vocab = 4096;
    rig_open(&r, &m, &o);
    engine_free(r.en);
    r.en = NULL;
    struct mallinfo2 before = mallinfo2();
    rig_reopen(&r, &o);
    struct mallinfo2 after = mallinfo2();
    const struct engine_plan *p = engine_get_plan(r.en);
    double used =
        (double)(after.uordblks + after.hblkhd) - (double)(before.uordblks + before.hblkhd);
    double plan = (double)(p->weights + p->kv + p->scratch + p->host);
    /* The sampler and the pages' bookkeeping are the runner's, planned here. */
    ck_assert_msg(used < plan * 1.05 && used > plan * 0.95, "%.0f used, %.0f planned", used, plan);
    rig_close(&r);
}
END_TEST

START_TEST(the_plan_says_the_same_before_and_after)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    struct engine_plan p;
    rig_open(&r, &m, &small);
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto", .threads = 2}};
    o.batch_tokens = o.out_rows = 64;
    o.batch_seqs = 4;
    o.ctx = 2048;
    ck_assert(engine_plan(r.c, &o, &p, NULL) == ERR_OK);
    ck_assert(memcmp(&p, engine_get_plan(r.en), sizeof p) == 0);
    ck_assert(p.pages == 4 * 32 && p.ctx == 2048 && p.top_k == 2);
    ck_assert_uint_eq(p.kv, (uint64_t)p.pages * 2 * engine_page_bytes(r.en, 0));
    rig_close(&r);
}
END_TEST

/* Three of five layers make keys and values: heads of 32, 64 and 32 dims. */
START_TEST(layers_that_share_own_no_pages)
{
    struct err e = {.text = ""};
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto", .threads = 1}};
    struct engine *en;
    struct checkpoint *c;
    uint8_t *page = NULL;
    o.batch_tokens = 8;
    o.ctx = 512;
    ck_assert_msg(shapes_checkpoint(&c, "tiny-gemma4-e", &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(engine_new(&en, c, &o, &e) == ERR_OK, "%s", e.text);
    const struct engine_plan *p = engine_get_plan(en);
    const size_t one = (size_t)KERN_PAGE * 2 * 32 * 4;
    static const size_t sizes[] = {1, 2, 1, 0, 0};
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(engine_page_bytes(en, i), sizes[i] * one);
    ck_assert_uint_eq(p->kv, (uint64_t)p->pages * 4 * one);
    page = malloc(2 * one);
    ck_assert(engine_poison_page(en, 0, &e) == ERR_OK);
    ck_assert(engine_read_page(en, 1, 0, page, &e) == ERR_OK && page[2 * one - 1] == 0xff);
    ck_assert(engine_read_page(en, 3, 0, page, &e) == ERR_OK); /* nothing to read */
    free(page);
    engine_free(en);
    shapes_free(c);
}
END_TEST

START_TEST(what_does_not_fit_says_by_how_much)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    struct engine_plan p;
    struct err e = {.text = ""};
    rig_open(&r, &m, &small);
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto"}};
    o.kv_tokens = (int64_t)1 << 34;
    ck_assert_int_eq(engine_plan(r.c, &o, &p, &e), ERR_NOMEM);
    ck_assert_msg(strstr(e.text, "does not fit by") && strstr(e.text, "MB"), "%s", e.text);
    o.kv_tokens = 0;
    o.ctx = 5000;
    ck_assert_int_eq(engine_plan(r.c, &o, &p, &e), ERR_USAGE);
    ck_assert(strstr(e.text, "5000") && strstr(e.text, "4096"));
    rig_close(&r);
}
END_TEST

static void print_of(const struct tiny_model *m, const struct rig_options *o, char out[65])
{
    struct rig r;
    rig_open(&r, m, o);
    strcpy(out, engine_fingerprint(r.en));
    ck_assert_uint_eq(strlen(out), 64);
    rig_close(&r);
}

START_TEST(the_fingerprint_is_of_what_decides_bits)
{
    struct tiny_model m = tiny_model_default();
    struct rig_options o = small;
    char base[65], same[65], other[65];
    print_of(&m, &o, base);
    o.threads = 1;
    o.batch_tokens = 32;
    o.ctx = 512;
    print_of(&m, &o, same);
    ck_assert_str_eq(base, same);
    o.arith = KERN_MMA90;
    print_of(&m, &o, other);
    ck_assert_str_ne(base, other);
    o = small;
    m.seed = 2;
    print_of(&m, &o, other);
    ck_assert_str_ne(base, other);
    m.seed = 1;
    m.window = 4000; /* another family and window, the same weights */
    print_of(&m, &o, other);
    ck_assert_str_ne(base, other);
}
END_TEST

START_TEST(a_step_that_breaks_its_bounds_is_refused)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    struct err e = {.text = ""};
    rig_open(&r, &m, &small);
    int32_t ids[70] = {0}, pages[2] = {0, 1}, bad_page[2] = {0, 100000};
    const struct step_piece good = {.ids = ids, .n = 10, .pages = pages, .n_pages = 2};
    struct step_piece p[5] = {good, good, good, good, good};
    struct step s = {.pieces = p, .n_pieces = 1};
    ck_assert(engine_step(r.en, &s, &e) == ERR_OK && s.n_rows == 10 && !s.rows[0].logits);
    s.n_pieces = 5;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INTERNAL && s.n_rows == 0);
    s.n_pieces = 1;
    p[0].n = 65;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INTERNAL && strstr(e.text, "64"));
    p[0] = good;
    p[0].pos = 2045;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INTERNAL && strstr(e.text, "2048"));
    p[0].pos = 120;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INTERNAL && strstr(e.text, "3"));
    p[0] = good;
    p[0].pos = 60;
    p[0].pages = bad_page;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INTERNAL && strstr(e.text, "100000"));
    p[0] = good;
    ids[3] = 320;
    ck_assert(engine_step(r.en, &s, &e) == ERR_INPUT && strstr(e.text, "320"));
    ids[3] = 0;
    p[0].out_from = 8;
    s.want_logits = true;
    ck_assert(engine_step(r.en, &s, &e) == ERR_OK && s.n_rows == 2);
    ck_assert(s.rows[0].index == 8 && s.rows[1].index == 9 && s.rows[1].logits);
    rig_close(&r);
}
END_TEST

START_TEST(top_lse_and_hash_are_of_the_logits)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    rig_open(&r, &m, &small);
    int32_t *ids = rig_ids(4, 30, 320), page = 0;
    struct step_piece p = {.ids = ids, .n = 30, .pages = &page, .n_pages = 1};
    struct step s = {.pieces = &p, .n_pieces = 1, .want_logits = true};
    ck_assert(engine_step(r.en, &s, NULL) == ERR_OK && s.n_rows == 30);
    for (int i = 0; i < 30; i++) {
        const struct step_row *row = &s.rows[i];
        double sum = 0;
        uint64_t hash = 0;
        int best = 0;
        for (int j = 0; j < 320; j++) {
            best = row->logits[j] > row->logits[best] ? j : best;
            sum += exp((double)row->logits[j]);
            hash += hash_row_word((uint64_t)j, f32_bits(row->logits[j]));
        }
        ck_assert(row->top_id[0] == best && row->top[0] == row->logits[best]);
        ck_assert(row->top[1] <= row->top[0] && row->top[1] == row->logits[row->top_id[1]]);
        ck_assert(fabs((double)row->lse - log(sum)) < 1e-5);
        ck_assert(row->hash == hash);
    }
    free(ids);
    rig_close(&r);
}
END_TEST

struct tapped {
    int n, rows;
    uint64_t sum, last;
};

static void count_tap(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash)
{
    struct tapped *t = ctx;
    (void)layer;
    t->n++;
    t->rows += n_rows;
    for (int i = 0; i < n_rows; i++)
        t->sum = t->sum * 31 + hash[i];
    if (strcmp(op, "logits") == 0)
        t->last = hash[n_rows - 1];
}

START_TEST(the_tap_sees_every_operation_and_changes_none)
{
    struct tiny_model m = tiny_model_default();
    struct rig r;
    struct tapped a = {0}, b = {0};
    struct rig_seq s, quiet;
    rig_open(&r, &m, &small);
    r.quiet = true;
    int32_t *ids = rig_ids(4, 30, 320);
    rig_seq_start(&r, &quiet, ids, 30);
    rig_feed(&r, &quiet, 30);
    engine_set_tap(r.en, count_tap, &a);
    rig_seq_start(&r, &s, ids, 30);
    rig_feed(&r, &s, 30);
    ck_assert(rig_same_rows(&quiet, &s) && a.last == s.hash[29]);
    ck_assert_int_eq(a.n, 1 + 2 * 10 + 2);
    ck_assert_int_eq(a.rows, 30 * a.n);
    rig_seq_end(&s);
    engine_set_tap(r.en, count_tap, &b);
    rig_seq_start(&r, &s, ids, 30);
    rig_feed(&r, &s, 30);
    ck_assert(a.sum == b.sum);
    rig_seq_end(&s);
    rig_seq_end(&quiet);
    free(ids);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 120);
    if (COUNTS) {
        tcase_add_loop_test(t, a_step_allocates_nothing, 0, 2);
        tcase_add_loop_test(t, memory_in_use_is_the_plan_within_five_percent, 0, 2);
    }
    tcase_add_test(t, the_plan_says_the_same_before_and_after);
    tcase_add_test(t, layers_that_share_own_no_pages);
    tcase_add_test(t, what_does_not_fit_says_by_how_much);
    tcase_add_test(t, the_fingerprint_is_of_what_decides_bits);
    tcase_add_test(t, a_step_that_breaks_its_bounds_is_refused);
    tcase_add_test(t, top_lse_and_hash_are_of_the_logits);
    tcase_add_test(t, the_tap_sees_every_operation_and_changes_none);
    suite_add_tcase(s, t);
    return s;
}
