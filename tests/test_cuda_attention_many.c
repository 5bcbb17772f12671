/* test_cuda_attention_many.c: the attention kernel of many rows against the CPU oracle: pieces of
 * every length and begin are held to one run of the oracle over all tokens; and its short forms of
 * exp2 and softcap to the long ones over every float.
 */
#include "tests/attention_rig.h"
#include "tests/gpu/short_forms.h"

/* Groups of 1, 2, 4, 8 heads, and others that do not fill its 64 slots; windows of one tile, of a
 * split and across both; sinks. */
static const struct setup many[] = {
    {2, 2, 128, 0, 0, false, 2, 800, false},    {4, 2, 128, 0, 0, false, 2, 800, false},
    {4, 1, 128, 0, 0, true, 2, 800, false},     {8, 1, 128, 0, 0, false, 2, 800, false},
    {2, 2, 64, 0, 0, true, 2, 800, false},      {4, 2, 64, 0, 0, false, 2, 800, false},
    {4, 1, 64, 0, 0, false, 2, 800, false},     {8, 1, 64, 0, 0, false, 2, 800, false},
    {5, 1, 64, 0, 0, false, 2, 800, false},     {9, 3, 64, 0, 0, false, 2, 800, false},
    {14, 2, 128, 0, 0, false, 2, 800, false},   {130, 1, 64, 0, 0, true, 1, 300, false},
    {8, 1, 64, 128, 0, true, 2, 800, false},    {4, 1, 128, 64, 0, false, 2, 800, false},
    {4, 2, 128, 256, 0, true, 2, 800, false},   {2, 2, 128, 1, 0, false, 2, 800, false},
    {4, 1, 64, 100, 0, false, 2, 800, false},   {4, 1, 128, 321, 0, false, 2, 800, false},
    {4, 1, 128, 4096, 0, false, 2, 800, false}, {2, 2, 256, 0, 0, true, 1, 600, false},
    {4, 1, 256, 0, 0, false, 1, 600, false},    {8, 4, 256, 100, 0, false, 1, 600, false},
    {3, 1, 256, 0, 0, false, 1, 600, false},    {66, 1, 256, 256, 0, true, 1, 300, false},
    {4, 2, 256, 0, 50, false, 1, 600, false},   {8, 1, 256, 321, 30, true, 1, 600, false},
    {4, 1, 512, 0, 0, true, 1, 600, false},     {3, 3, 512, 100, 0, false, 1, 600, false},
    {4, 1, 128, 0, 50, false, 1, 600, false},   {4, 2, 128, 128, 5, true, 1, 600, false},
};

/* Pieces of tokens [from, from + n) of a sequence, one after the other: a step. */
struct pieces {
    int32_t tokens[4096];
    int n;
};

static void add_piece(struct pieces *p, const struct setup *s, int seq, int from, int n)
{
    for (int i = 0; i < n; i++)
        p->tokens[p->n++] = seq * s->len + from + i;
}

static void check_pieces(const struct setup *s, const struct side *d, const uint16_t *q,
                         const uint16_t *all, const struct pieces *p, const char *what)
{
    size_t row = (size_t)(s->n_head * s->hd);
    uint16_t *want = malloc((size_t)p->n * row * 2);
    uint16_t *got = attend_by(s, d, q, p->tokens, p->n, CUDA_ATTENTION_MANY);
    for (int i = 0; i < p->n; i++)
        memcpy(want + (size_t)i * row, all + (size_t)p->tokens[i] * row, row * 2);
    check_rows(s, want, got, p->tokens, p->n, what, CUDA_ATTENTION_MANY);
    free(want);
    free(got);
}

/* What the oracle has for every token, which must not depend on the step. */
static uint16_t *attend_all(const struct setup *s, const struct side *d, const uint16_t *q)
{
    static int32_t tokens[8192];
    for (int i = 0; i < s->n_seq * s->len; i++)
        tokens[i] = i;
    return attend(s, d, q, tokens, s->n_seq * s->len);
}

static void check_many(const struct setup *s, int kind, int spoiled, int step)
{
    static const int begins[] = {0, 1, 63, 64, 65, 127, 191, 192, 193, 255, 256, 257, 300};
    static const int longs[] = {255, 256, 257, 512};
    static struct pieces p;
    struct rig r;
    struct side side[2];
    open_sides(s, &r, side);
    float *x = draw_tokens(s, kind, spoiled);
    uint16_t *q = write_pages(s, side, x), *all = attend_all(s, &side[0], q);
    for (int n = 1; n <= 130; n += step) {
        p.n = 0;
        add_piece(&p, s, s->n_seq - 1, MIN2(begins[n % (int)ARRAY_LEN(begins)], s->len - n), n);
        check_pieces(s, &side[1], q, all, &p, "piece");
    }
    for (size_t i = 0; i < ARRAY_LEN(longs) && longs[i] <= s->len - 257; i++)
        for (int from = 0; from < 258; from += from == 1 ? 254 : 1) {
            p.n = 0;
            add_piece(&p, s, 0, from, longs[i]);
            check_pieces(s, &side[1], q, all, &p, "long piece");
        }
    for (int round = 0; round < 12; round++) { /* pieces and single tokens of all sequences */
        p.n = 0;
        for (int i = 0; i < 9; i++) {
            int n = i % 3 == 0 ? 1 : 1 + (int)rng_below(&rng, 100);
            add_piece(&p, s, (int)rng_below(&rng, (uint64_t)s->n_seq),
                      (int)rng_below(&rng, (uint64_t)(s->len - n)), n);
        }
        check_pieces(s, &side[1], q, all, &p, "mixed step");
    }
    rig_close(&r);
    free(x);
    free(q);
    free(all);
}

START_TEST(pieces_equal_oracle)
{
    check_many(&many[_i], 0, 0, 1);
    check_many(&many[_i], 2, 0, 11);
    check_many(&many[_i], 1, many[_i].len - many[_i].len / 3, 7);
}
END_TEST

/* A step of more rows than one launch takes. */
START_TEST(long_step_equals_oracle)
{
    static const struct setup s = {2, 1, 64, 0, 0, false, 2, 2300, false};
    static struct pieces p;
    struct rig r;
    struct side side[2];
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x), *all = attend_all(&s, &side[0], q);
    p.n = 0;
    add_piece(&p, &s, 1, 0, 2300);
    add_piece(&p, &s, 0, 700, 1);
    add_piece(&p, &s, 0, 600, 1600);
    check_pieces(&s, &side[1], q, all, &p, "long step");
    p.n = 0; /* each row by itself: a list of full length */
    for (int i = 0; i < 2100; i++)
        add_piece(&p, &s, i % 2, 2299 - i, 1);
    check_pieces(&s, &side[1], q, all, &p, "rows apart");
    rig_close(&r);
    free(x);
    free(q);
    free(all);
}
END_TEST

/* Splits that begin late show, as they do in the oracle. */
START_TEST(planted_split_edge_is_seen_in_pieces)
{
    struct setup s = {4, 2, 128, 0, 0, false, 1, 600, false};
    static struct pieces p;
    struct rig r;
    struct side side[2];
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x);
    p.n = 0;
    add_piece(&p, &s, 0, 300, 200);
    size_t bytes = (size_t)(200 * s.n_head * s.hd) * 2;
    uint16_t *right = attend_by(&s, &side[1], q, p.tokens, p.n, CUDA_ATTENTION_MANY);
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    uint16_t *wrong = attend_by(&s, &side[1], q, p.tokens, p.n, CUDA_ATTENTION_MANY);
    uint16_t *same = attend(&s, &side[0], q, p.tokens, p.n);
    kern_plant(KERN_FAULT_NONE);
    ck_assert(memcmp(right, wrong, bytes) != 0);
    ck_assert_mem_eq(same, wrong, bytes);
    free(right);
    free(wrong);
    free(same);
    free(q);
    free(x);
    rig_close(&r);
}
END_TEST

/* ---- short forms ------------------------------------------------------------------------------
 */
#ifdef ASSAY_HAVE_CUDA
/* Not rounded, and above its bound, exp2_short is another function: the counts can be seen. */
START_TEST(short_exp2_equals_long)
{
    ck_assert_int_eq(short_forms_differ(SHORT_EXP2, 0, 0), 0);
    ck_assert_int_gt(short_forms_differ(SHORT_EXP2_EXACT, 0, 0), 0);
    ck_assert_int_gt(short_forms_differ(SHORT_EXP2_ABOVE, 0, 0), 0);
}
END_TEST

START_TEST(short_softcap_equals_long)
{
    static const float caps[] = {50, 30, 5, 0x1p-10f, 0x1.fffffep19f, 0x1.555556p3f};
    ck_assert_int_eq(short_forms_differ(SHORT_SOFTCAP, caps[_i], 1 / caps[_i]), 0);
    ck_assert_int_gt(short_forms_differ(SHORT_SOFTCAP, caps[_i], 0.9f / caps[_i]), 0);
}
END_TEST
#endif

/* ---- for the sanitizers -----------------------------------------------------------------------
 */
/* Each instance of the kernel: a piece over the end of a split, and pieces beside single tokens. */
static const struct setup smalls[] = {
    {2, 1, 64, 100, 0, true, 2, 300, false},   {2, 1, 128, 0, 0, true, 2, 300, false},
    {2, 1, 128, 70, 30, false, 2, 300, false}, {2, 1, 256, 0, 0, false, 2, 300, false},
    {2, 1, 256, 0, 50, true, 2, 300, false},   {2, 1, 512, 0, 0, true, 2, 300, false},
};

START_TEST(small_pieces_equal_oracle)
{
    const struct setup *s = &smalls[_i];
    static struct pieces p;
    struct rig r;
    struct side side[2];
    open_sides(s, &r, side);
    float *x = draw_tokens(s, 1, s->len - 9);
    uint16_t *q = write_pages(s, side, x), *all = attend_all(s, &side[0], q);
    p.n = 0;
    add_piece(&p, s, 1, s->len - 70, 70);
    check_pieces(s, &side[1], q, all, &p, "piece");
    p.n = 0;
    add_piece(&p, s, 0, 250, 1);
    add_piece(&p, s, 1, 0, 33);
    add_piece(&p, s, 1, 270, 1);
    check_pieces(s, &side[1], q, all, &p, "mixed step");
    rig_close(&r);
    free(x);
    free(q);
    free(all);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, small_pieces_equal_oracle, 0, 3);
}

static void add_small_256(TCase *c)
{
    tcase_add_loop_test(c, small_pieces_equal_oracle, 3, 5);
}

static void add_small_512(TCase *c)
{
    tcase_add_loop_test(c, small_pieces_equal_oracle, 5, ARRAY_LEN(smalls));
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, pieces_equal_oracle, 0, ARRAY_LEN(many));
    tcase_add_test(c, long_step_equals_oracle);
    tcase_add_test(c, planted_split_edge_is_seen_in_pieces);
#ifdef ASSAY_HAVE_CUDA
    tcase_add_test(c, short_exp2_equals_long);
    tcase_add_loop_test(c, short_softcap_equals_long, 0, 6);
#endif
}

Suite *test_suite(void)
{
    static void (*const small[RIG_SMALLS])(TCase *) = {add_small, add_small_256, add_small_512};
    return rig_suite_of("cuda attention of many rows", add_tests, small);
}
