/* test_cuda_attention.c: rule 4 on a CUDA device against the CPU oracle, byte by byte: head sizes,
 * groups of heads, windows, softcaps, sinks; decode, chunks and mixed steps; what later tokens
 * hold. Every step is run by the kernel that the backend chooses and by each that takes its shape.
 */
#include "tests/attention_rig.h"

static void check_step(const struct setup *s, struct side side[2], const uint16_t *q,
                       const int32_t *tokens, int n, const char *what)
{
    uint16_t *want = attend(s, &side[0], q, tokens, n);
    for (int kernel = CUDA_ATTENTION_AUTO; kernel <= CUDA_ATTENTION_MANY; kernel++) {
        uint16_t *got = attend_by(s, &side[1], q, tokens, n, (enum cuda_attention_kernel)kernel);
        check_rows(s, want, got, tokens, n, what, kernel);
        free(got);
    }
    free(want);
}

/* One decode row, one of each sequence, a chunk, a mixed step and rows in no order. */
static void check_setup(const struct setup *s, int kind, int spoiled)
{
    struct rig r;
    struct side side[2];
    int n = MIN2(s->len, 150), total = s->n_seq * s->len;
    int32_t *tokens = malloc((size_t)(n + 64) * 4);
    open_sides(s, &r, side);
    float *x = draw_tokens(s, kind, spoiled);
    uint16_t *q = write_pages(s, side, x);
    tokens[0] = total - 1;
    check_step(s, side, q, tokens, 1, "decode");
    for (int last = s->len - 1; last >= 0; last -= s->len / 5 + 1) {
        for (int i = 0; i < s->n_seq; i++)
            tokens[i] = i * s->len + MAX2(last - 3 * i, 0);
        check_step(s, side, q, tokens, s->n_seq, "single tokens");
    }
    for (int i = 0; i < n; i++)
        tokens[i] = total - n + i;
    check_step(s, side, q, tokens, n, "chunk");
    for (int i = 0; i < 37; i++)
        tokens[i] = (int32_t)rng_below(&rng, (uint64_t)total);
    check_step(s, side, q, tokens, 37, "no order");
    for (int i = 0; i < 40; i++)
        tokens[i] = i < s->n_seq ? i * s->len + s->len / 2 + i : s->len / 3 + i;
    check_step(s, side, q, tokens, 40, "mixed");
    for (int i = 0; i < 5; i++)
        tokens[i] = MIN2(s->len - 1, 62) + i - 2;
    check_step(s, side, q, tokens, s->len >= 70 ? 5 : 1, "page edge");
    rig_close(&r);
    free(tokens);
    free(x);
    free(q);
}

static const struct setup setups[] = {
    /* heads, kv, dim, window, cap, sinks, sequences, len, splits */
    {8, 2, 64, 0, 0, false, 3, 600, true},     {8, 2, 64, 0, 0, false, 3, 600, false},
    {6, 2, 80, 0, 0, false, 2, 300, true},     {4, 4, 96, 0, 0, true, 2, 333, true},
    {8, 2, 128, 0, 0, false, 3, 700, true},    {8, 2, 128, 0, 0, false, 3, 700, false},
    {14, 2, 128, 0, 0, true, 2, 520, true},    {8, 4, 256, 0, 50, false, 2, 530, true},
    {8, 4, 256, 100, 30, false, 2, 530, true}, {4, 2, 512, 0, 0, false, 2, 330, true},
    {32, 1, 512, 70, 0, true, 1, 300, true},   {64, 8, 64, 128, 0, true, 2, 600, true},
    {64, 8, 64, 128, 0, true, 2, 600, false},  {80, 1, 64, 0, 0, false, 1, 280, true},
    {5, 5, 8, 0, 0, false, 2, 200, true},      {6, 3, 40, 1, 0, false, 2, 200, true},
    {4, 2, 17, 63, 5, true, 2, 200, false},    {2, 1, 112, 257, 0, true, 2, 900, true},
    {16, 2, 128, 4096, 0, false, 1, 64, true}, {4, 2, 16, 0, 0, true, 3, 129, true},
    {4, 1, 192, 0, 20, false, 2, 400, true},   {9, 3, 64, 0, 0, false, 4, 80, true},
    {32, 8, 128, 0, 0, false, 2, 2600, true},  {20, 2, 64, 0, 0, true, 1, 5000, true},
    {4, 2, 96, 1000, 0, false, 2, 2100, true}, {18, 2, 80, 0, 30, true, 3, 1030, true},
    {1, 1, 64, 0, 0, true, 1, 33500, true}, /* more splits than a block of their join has threads */
};

START_TEST(every_geometry_equals_oracle)
{
    check_setup(&setups[_i], 0, 0);
    check_setup(&setups[_i], 2, 0);
}
END_TEST

START_TEST(values_not_finite_equal_oracle)
{
    check_setup(&setups[_i], 1, setups[_i].len - setups[_i].len / 4);
    check_setup(&setups[_i], 1, setups[_i].len - 5);
}
END_TEST

/* Steps of every count of rows, in no order, some beside tokens that are not finite. */
START_TEST(row_counts_equal_oracle)
{
    static const int dims[] = {64, 80, 96, 128, 256, 512};
    const struct setup s = {4, 2, dims[_i], 0, 0, true, 2, 330, true};
    struct rig r;
    struct side side[2];
    int32_t tokens[RIG_COUNT_MOST];
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 1, 250);
    uint16_t *q = write_pages(&s, side, x);
    for (int c = 0; c < RIG_COUNTS; c++) {
        for (int i = 0; i < rig_counts[c]; i++)
            tokens[i] = (int32_t)rng_below(&rng, (uint64_t)(s.n_seq * s.len));
        check_step(&s, side, q, tokens, rig_counts[c], "a count of rows");
    }
    rig_close(&r);
    free(x);
    free(q);
}
END_TEST

/* Rows before the first token that is not finite answer as if that were not there. */
START_TEST(later_tokens_do_not_reach_earlier_rows)
{
    static const struct setup s = {8, 2, 64, 0, 0, false, 1, 200, false};
    struct rig r;
    struct side side[2];
    int32_t tokens[100];
    uint16_t *out[2];
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    struct rng kept = rng;
    for (int spoil = 0; spoil < 2; spoil++) {
        size_t row = (size_t)((s.n_head + 2 * s.n_kv) * s.hd);
        rng = kept;
        for (size_t i = (size_t)150 * row; spoil && i < (size_t)s.len * row; i++)
            x[i] = NAN;
        uint16_t *q = write_pages(&s, side, x);
        for (int i = 0; i < 100; i++)
            tokens[i] = 60 + i;
        out[spoil] = attend(&s, &side[1], q, tokens, 100);
        free(q);
    }
    ck_assert_mem_eq(out[0], out[1], (size_t)(90 * s.n_head * s.hd) * 2);
    ck_assert(out[0][90 * s.n_head * s.hd] != out[1][90 * s.n_head * s.hd]);
    free(out[0]);
    free(out[1]);
    free(x);
    rig_close(&r);
}
END_TEST

/* A row's bytes do not depend on the step that holds it. */
START_TEST(rows_do_not_depend_on_step)
{
    static const struct setup s = {8, 2, 128, 300, 0, true, 2, 700, true};
    struct rig r;
    struct side side[2];
    enum { N = 700 };
    static int32_t tokens[N];
    size_t row = (size_t)(s.n_head * s.hd);
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x);
    for (int i = 0; i < N; i++)
        tokens[i] = i;
    uint16_t *all = attend(&s, &side[1], q, tokens, N);
    for (int size = 1; size <= 64; size = size * 3 + 1) {
        for (int t = 0; t + size <= N; t += size * 7) {
            uint16_t *some = attend(&s, &side[1], q, tokens + t, size);
            ck_assert_msg(memcmp(some, all + (size_t)t * row, (size_t)size * row * 2) == 0,
                          "%d rows from %d", size, t);
            free(some);
        }
    }
    free(all);
    free(q);
    free(x);
    rig_close(&r);
}
END_TEST

/* ---- planted faults ---------------------------------------------------------------------------
 */
/* A planted fault of the splits shows in items, as it does in the oracle; their splits are joined
 * in registers (0) or have blocks of their own (1). */
START_TEST(planted_split_edge_is_seen)
{
    struct setup s = {4, 2, 64, 0, 0, false, 1, 600, _i == 1};
    struct rig r;
    struct side side[2];
    int32_t tokens[2] = {500, 599};
    size_t bytes = (size_t)(2 * s.n_head * s.hd) * 2;
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x);
    uint16_t *right = attend_by(&s, &side[1], q, tokens, 2, CUDA_ATTENTION_ITEMS);
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    uint16_t *wrong = attend_by(&s, &side[1], q, tokens, 2, CUDA_ATTENTION_ITEMS);
    uint16_t *same = attend(&s, &side[0], q, tokens, 2);
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

/* Splits that stand apart are joined in ascending order, where those of the row kernel meet (0, and
 * 1 by the fault that all kernels know), after items (2) and after the row kernel where nothing
 * meets (3): joined from the last, every value is wrong. Where a card has no row kernel, that fault
 * is a split that begins late, which shows in some. */
START_TEST(planted_join_order_is_seen)
{
    struct setup s = {8, 2, 128, 0, 0, false, 2, 900, true};
    enum cuda_attention_kernel kernel = _i == 2 ? CUDA_ATTENTION_ITEMS : CUDA_ATTENTION_AUTO;
    struct rig r;
    struct side side[2];
    int32_t tokens[2] = {899, 1799};
    size_t n = (size_t)(2 * s.n_head * s.hd);
    open_sides(&s, &r, side);
    if (_i == 3)
        cuda_of(r.side[1])->n_sm = 1;
    float *x = draw_tokens(&s, 3, 0);
    uint16_t *q = write_pages(&s, side, x);
    uint16_t *want = attend(&s, &side[0], q, tokens, 2);
    uint16_t *right = attend_by(&s, &side[1], q, tokens, 2, kernel);
    if (_i == 1)
        kern_plant(KERN_FAULT_SPLIT_EDGE);
    else
        cuda_of(r.side[1])->plant_descending = true;
    uint16_t *wrong = attend_by(&s, &side[1], q, tokens, 2, kernel);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_mem_eq(right, want, n * 2);
    bool late = _i == 1 && !cuda_takes(cuda_of(r.side[1]), CUDA_KERNEL_ATTENTION_ROW);
    ck_assert(memcmp(right, wrong, n * 2) != 0);
    for (size_t i = 0; i < n && !late; i++)
        ck_assert_msg(right[i] != 0 && wrong[i] == 0, "value %zu: %04x, planted %04x", i, right[i],
                      wrong[i]);
    free(want);
    free(right);
    free(wrong);
    free(q);
    free(x);
    rig_close(&r);
}
END_TEST

/* ---- for the sanitizers -----------------------------------------------------------------------
 */
/* Every kernel and size of tile once: a single token and a piece that begins in one split and ends
 * in the next, its last values not finite. */
static const struct setup smalls[] = {
    /* heads, kv, dim, window, cap, sinks, sequences, len, splits */
    {2, 1, 64, 0, 0, true, 1, 280, true},    {2, 1, 64, 0, 30, false, 1, 280, true},
    {2, 1, 80, 0, 0, false, 1, 280, true},   {2, 1, 80, 0, 30, true, 1, 280, true},
    {2, 1, 96, 0, 0, false, 1, 280, true},   {2, 1, 96, 0, 30, false, 1, 280, true},
    {2, 1, 128, 100, 0, true, 1, 280, true}, {2, 1, 128, 0, 30, false, 1, 280, false},
    {2, 1, 256, 0, 0, false, 1, 280, true},  {2, 1, 256, 90, 50, true, 1, 280, false},
    {1, 1, 512, 0, 0, false, 1, 280, true},  {1, 1, 512, 0, 30, false, 1, 280, true},
    {2, 1, 128, 0, 30, false, 1, 280, true}, {2, 1, 256, 0, 50, true, 1, 280, true},
    {1, 1, 64, 0, 0, false, 1, 4200, true}, /* splits for the longer of the two joins */
};

static void check_small(const struct setup *s)
{
    struct rig r;
    struct side side[2];
    int32_t tokens[33];
    open_sides(s, &r, side);
    float *x = draw_tokens(s, 1, s->len - 3);
    uint16_t *q = write_pages(s, side, x);
    for (int i = 0; i < 33; i++)
        tokens[i] = s->len - 33 + i;
    check_step(s, side, q, tokens + 32, 1, "single token");
    check_step(s, side, q, tokens, 33, "piece");
    rig_close(&r);
    free(x);
    free(q);
}

START_TEST(small_steps_equal_oracle)
{
    check_small(&smalls[_i]);
}
END_TEST

/* 512 dims where a block has 99 KiB of shared memory: K and V in turns. */
START_TEST(small_blocks_equal_oracle)
{
    int before = cuda_planted_capability();
    cuda_plant_capability(120);
    check_small(&smalls[10 + _i]);
    cuda_plant_capability(before);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, small_steps_equal_oracle, 0, 6);
}

static void add_small_more(TCase *c)
{
    tcase_add_loop_test(c, small_steps_equal_oracle, 6, 10);
}

static void add_small_long(TCase *c)
{
    tcase_add_loop_test(c, small_steps_equal_oracle, 10, ARRAY_LEN(smalls));
    tcase_add_loop_test(c, small_blocks_equal_oracle, 0, 2);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, every_geometry_equals_oracle, 0, ARRAY_LEN(setups));
    tcase_add_loop_test(c, values_not_finite_equal_oracle, 0, ARRAY_LEN(setups));
    tcase_add_loop_test(c, row_counts_equal_oracle, 0, 6);
    tcase_add_test(c, later_tokens_do_not_reach_earlier_rows);
    tcase_add_test(c, rows_do_not_depend_on_step);
    tcase_add_loop_test(c, planted_split_edge_is_seen, 0, 2);
    tcase_add_loop_test(c, planted_join_order_is_seen, 0, 4);
}

Suite *test_suite(void)
{
    static void (*const small[RIG_SMALLS])(TCase *) = {add_small, add_small_more, add_small_long};
    return rig_suite_of("cuda attention", add_tests, small);
}
