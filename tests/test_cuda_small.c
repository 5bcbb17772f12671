/* test_cuda_small.c: every instance of the product kernels once, at the least shapes that select
 * it, against the CPU oracle: for compute-sanitizer, which pays for every access to shared memory.
 * tests/gpu/run lists what this and the small cases of the other programs leave out. And the
 * formats of experts at every count of rows.
 */
#include "tests/experts_rig.h"
#include "tests/linear_rig.h"

/* ---- formats ------------------------------------------------------------------------------------
 */
/* One for each order in which weights stand on the device; `scale` selects among those of bf16
 * scales (cuda_order.h). Blocks: the format, and what its scales may be. */
static const struct format {
    struct qformat q;
    float scale;
    int block;
} formats[] = {
    {{4, 32, DT_BF16}, 0.02f, -1},
    {{4, 64, DT_BF16}, 0.02f, -1},
    {{4, 128, DT_BF16}, 0.02f, -1},
    {{8, 32, DT_BF16}, 0.002f, -1},
    {{8, 64, DT_BF16}, 0.002f, -1},
    {{8, 128, DT_BF16}, 0.002f, -1},
    {{CUDA_DENSE, 64, DT_BF16}, 0, -1},
    {{4, 64, DT_BF16}, 0.3f, -1},
    {{4, 64, DT_F16}, 0.02f, -1},
    {{8, 64, DT_F16}, 0.02f, -1},
    {{6, 64, DT_BF16}, 0.02f, -1},
    {{4, 32, DT_F8_E8M0}, 0, FIX_BLOCK_PLAIN},
    {{8, 32, DT_F8_E8M0}, 0, FIX_BLOCK_PLAIN},
    {{4, 16, DT_F8_E4M3}, 0, FIX_BLOCK_PLAIN},
    /* from here on: not for many rows */
    {{4, 16, DT_F8_E4M3}, 0, FIX_BLOCK_GLOBAL},
    {{4, 32, DT_F8_E8M0}, 0, FIX_BLOCK_HOSTILE},
    {{8, 32, DT_F8_E8M0}, 0, FIX_BLOCK_HOSTILE},
    {{4, 64, DT_BF16}, 30, -1},
    {{4, 64, DT_F32}, 0.02f, -1},
    {{8, 64, DT_BF16}, 30, -1},
    {{8, 64, DT_F32}, 0.02f, -1},
    {{2, 64, DT_BF16}, 0.02f, -1},
    {{2, 64, DT_BF16}, 30, -1},
    {{2, 64, DT_F16}, 0.02f, -1},
    {{2, 64, DT_F32}, 0.02f, -1},
    {{3, 64, DT_BF16}, 0.02f, -1},
    {{3, 64, DT_BF16}, 30, -1},
    {{3, 64, DT_F16}, 0.02f, -1},
    {{3, 64, DT_F32}, 0.02f, -1},
    {{5, 64, DT_BF16}, 0.02f, -1},
    {{5, 64, DT_BF16}, 30, -1},
    {{5, 64, DT_F16}, 0.02f, -1},
    {{5, 64, DT_F32}, 0.02f, -1},
    {{6, 64, DT_BF16}, 30, -1},
    {{6, 64, DT_F16}, 0.02f, -1},
    {{6, 64, DT_F32}, 0.02f, -1},
};

#define FORMATS      ((int)ARRAY_LEN(formats))
#define FORMATS_MANY 14 /* the first ones: those of the kernels of many rows, */
#define FORMATS_BEST 6  /* and of the streams */

static struct fix_weight weight_of(const struct format *f, int64_t rows, int64_t k)
{
    if (f->q.bits == CUDA_DENSE)
        return fix_dense(&rng, rows, k, DT_BF16);
    if (f->block >= 0)
        return fix_mx(&rng, rows, k, f->q, (enum fix_block)f->block);
    return fix_affine(&rng, rows, k, f->q, f->scale);
}

#define LONG 1152 /* K of nine pieces */

/* ---- linear layers ------------------------------------------------------------------------------
 */
static void check_path(struct rig *r, const struct format *f, enum cuda_path path, int64_t rows,
                       int64_t k, const int *counts, size_t n_counts)
{
    struct fix_weight w = weight_of(f, rows, k);
    cuda_of(r->side[1])->force_path = (int)path;
    check_counts(r, &w, counts, n_counts, 0, true, "small");
    cuda_of(r->side[1])->force_path = CUDA_PATH_AUTO;
    fix_weight_free(&w);
}

START_TEST(plain_and_few_rows_equal_oracle)
{
    static const int counts[] = {3};
    struct rig r = rig_open();
    for (int i = 0; i < FORMATS; i++) {
        check_path(&r, &formats[i], CUDA_PATH_PLAIN, 20, 384, counts, 1);
        check_path(&r, &formats[i], CUDA_PATH_FEW, 20, 384, counts, 1);
    }
    rig_close(&r);
}
END_TEST

/* Of one, four and eight rows; of a long K, whose chunks two blocks share. */
START_TEST(streams_equal_oracle)
{
    static const int counts[] = {1, 3, 8}, pairs[] = {3, 8};
    struct rig r = rig_open();
    for (int i = 0; i < FORMATS_BEST; i++) {
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 20, 1536, counts, 3);
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 20, 8704, pairs, 2);
    }
    rig_close(&r);
}
END_TEST

/* Of 9 to 16 rows: a warp a tile, a warp a chunk, and the chunks shared by two and four blocks. */
START_TEST(streams_of_more_rows_equal_oracle)
{
    static const int counts[] = {9};
    struct rig r = rig_open();
    int n_sm = cuda_of(r.side[1])->n_sm;
    for (int i = 0; i < 3; i++) { /* 4 bits */
        cuda_of(r.side[1])->n_sm = 1;
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 240, 1536, counts, 1);
        cuda_of(r.side[1])->n_sm = n_sm;
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 20, 1536, counts, 1);
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 20, 5120, counts, 1);
        check_path(&r, &formats[i], CUDA_PATH_STREAM, 20, 14336, counts, 1);
    }
    rig_close(&r);
}
END_TEST

/* Column tiles of 32, 64 and 128; chunks as items of their own. K of more pieces than a block has
 * places for, so that places are used again. */
START_TEST(many_rows_equal_oracle)
{
    static const int counts[] = {20, 40, 70}, split[] = {20};
    struct rig r = rig_open();
    for (int i = 0; i < FORMATS_MANY; i++)
        check_path(&r, &formats[i], CUDA_PATH_MANY, 40, LONG, counts, 3);
    check_path(&r, &formats[1], CUDA_PATH_MANY, 40, 2048, split, 1);
    rig_close(&r);
}
END_TEST

/* The other shapes of a block, of 12 tiles and of 192 columns: what one multiprocessor ends first.
 */
START_TEST(large_blocks_equal_oracle)
{
    static const int taken[] = {1, 4, 7}, tall[] = {70}, wide[] = {140};
    struct rig r = rig_open();
    cuda_of(r.side[1])->n_sm = 1;
    for (int i = 0; i < (int)ARRAY_LEN(taken); i++) {
        check_path(&r, &formats[taken[i]], CUDA_PATH_MANY, 192, LONG, tall, 1);
        check_path(&r, &formats[taken[i]], CUDA_PATH_MANY, 128, LONG, wide, 1);
    }
    rig_close(&r);
}
END_TEST

/* ---- experts ------------------------------------------------------------------------------------
 */
static const struct ways plain = {1, {CUDA_PATH_PLAIN}};
static const struct ways few = {1, {CUDA_PATH_FEW}};
static const struct ways many = {1, {CUDA_PATH_MANY}};

START_TEST(experts_of_each_format_equal_oracle)
{
    static const struct experts x = {5, 3, 2, 21, true, false, 0, SPREAD_ANY};
    struct rig r = rig_open();
    for (int i = 0; i < FORMATS; i++) {
        struct fix_weight w = weight_of(&formats[i], 3 * 21, 384);
        (void)compare_experts(&r, &w, &x, &plain, KERN_FAULT_NONE, "small");
        fix_weight_free(&w);
    }
    rig_close(&r);
}
END_TEST

/* Items of one, four and eight rows; the form of eight that a planted order takes; one row and
 * four of a long K. */
START_TEST(experts_of_few_rows_equal_oracle)
{
    static const struct experts sizes[] = {{1, 16, 2, 32, true, false, 0, SPREAD_ANY},
                                           {8, 16, 2, 32, true, false, 0, SPREAD_ANY},
                                           {20, 16, 2, 32, true, false, 0, SPREAD_ANY}};
    static const struct experts longs[] = {{2, 3, 1, 32, true, true, 0, SPREAD_ANY},
                                           {4, 3, 1, 32, true, true, 0, SPREAD_ANY}};
    struct rig r = rig_open();
    for (int f = 0; f < FAST_FORMATS; f++) {
        struct fix_weight a = fast_weight(f, 16 * 32, 384), b = fast_weight(f, 16 * 32, 384);
        for (int i = 0; i < 3; i++)
            (void)compare_experts(&r, &a, &sizes[i], &few, KERN_FAULT_NONE, "small");
        (void)compare_gated(&r, &a, &b, &sizes[1], &few, ACT_SILU, KERN_FAULT_NONE, "small");
        (void)compare_experts(&r, &a, &sizes[2], &few, KERN_FAULT_CHUNK_ORDER, "small");
        fix_weight_free(&a);
        fix_weight_free(&b);
    }
    for (int f = 0; f < FAST_FORMATS - 1; f++) {
        struct fix_weight a = fast_weight(f, 3 * 32, 4608);
        for (int i = 0; i < 2 && a.c.q.bits == 4; i++)
            (void)compare_experts(&r, &a, &longs[i], &few, KERN_FAULT_NONE, "small");
        fix_weight_free(&a);
    }
    rig_close(&r);
}
END_TEST

/* Column tiles of 32, 64 and 128 of an expert's pairs. */
START_TEST(experts_of_many_rows_equal_oracle)
{
    static const int formats_of[] = {0, 1, 5}, rows[] = {10, 30, 100};
    struct rig r = rig_open();
    for (int i = 0; i < 3; i++) {
        struct fix_weight a = fast_weight(formats_of[i], 2 * 32, LONG);
        struct fix_weight b = fast_weight(formats_of[i], 2 * 32, LONG);
        for (int n = 0; n < 3; n++) {
            struct experts x = {rows[n], 2, 2, 32, true, false, 0, SPREAD_FIRST};
            (void)compare_experts(&r, &a, &x, &many, KERN_FAULT_NONE, "small");
        }
        struct experts x = {10, 2, 2, 32, true, false, 0, SPREAD_FIRST};
        (void)compare_gated(&r, &a, &b, &x, &many, ACT_SILU, KERN_FAULT_NONE, "small");
        fix_weight_free(&a);
        fix_weight_free(&b);
    }
    rig_close(&r);
}
END_TEST

/* ---- cases --------------------------------------------------------------------------------------
 */
static void add_few(TCase *c)
{
    tcase_add_test(c, plain_and_few_rows_equal_oracle);
}

static void add_streams(TCase *c)
{
    tcase_add_test(c, streams_equal_oracle);
}

static void add_more_rows(TCase *c)
{
    tcase_add_test(c, streams_of_more_rows_equal_oracle);
}

static void add_many(TCase *c)
{
    tcase_add_test(c, many_rows_equal_oracle);
}

static void add_large(TCase *c)
{
    tcase_add_test(c, large_blocks_equal_oracle);
}

static void add_experts(TCase *c)
{
    tcase_add_test(c, experts_of_each_format_equal_oracle);
}

static void add_experts_few(TCase *c)
{
    tcase_add_test(c, experts_of_few_rows_equal_oracle);
}

static void add_experts_many(TCase *c)
{
    tcase_add_test(c, experts_of_many_rows_equal_oracle);
}

/* The same formats at every count of rows. */
START_TEST(experts_of_row_counts_equal_oracle)
{
    struct rig r = rig_open();
    struct fix_weight w = weight_of(&formats[_i], 3 * 21, 384);
    for (int i = 0; i < RIG_COUNTS; i++) {
        struct experts x = {rig_counts[i], 3, 2, 21, true, false, i % 3, SPREAD_ANY};
        (void)compare_experts(&r, &w, &x, &plain, KERN_FAULT_NONE, "a format");
    }
    fix_weight_free(&w);
    rig_close(&r);
}
END_TEST

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, experts_of_row_counts_equal_oracle, 0, FORMATS);
}

Suite *test_suite(void)
{
    static void (*const small[RIG_SMALLS])(TCase *) = {
        add_few,   add_streams, add_more_rows,   add_many,
        add_large, add_experts, add_experts_few, add_experts_many};
    return rig_suite_of("cuda small", add_tests, small);
}
