/* test_cuda_linear.c: linear layers and the embedding on a CUDA device against the CPU oracle, byte
 * by byte: every format, every path, both sides of each boundary of rows.
 */
#include "evals/self_private.h"
#include "tests/linear_rig.h"

START_TEST(packed_formats_equal_oracle)
{
    static const int all_bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    static const int counts[] = {1, 3, 8, 9, 40, 70};
    struct rig r = rig_open();
    struct rng rng = {.seed = 11};
    int bits = all_bits[_i];
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (size_t s = 0; s < ARRAY_LEN(scales); s++)
            for (int hostile = 0; hostile < 2; hostile++) {
                struct qformat q = {bits, groups[g], scales[s]};
                const int64_t lens[] = {groups[g], 5 * groups[g], 576 + groups[g] * 3, 1664};
                for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
                    char what[64];
                    int64_t k = lens[l] / groups[g] * groups[g], rows = 37 + 16 * (int64_t)l;
                    struct fix_weight f = fix_affine(&rng, rows, k, q, 0.02f);
                    if (hostile)
                        make_hostile(&rng, &f, rows * (k / q.group));
                    snprintf(what, sizeof what, "%d bits, groups of %d, %s%s", bits, groups[g],
                             dtype_name(scales[s]), hostile ? ", hostile" : "");
                    check_counts(&r, &f, counts, ARRAY_LEN(counts), hostile ? 3 : 0, l % 2, what);
                    fix_weight_free(&f);
                }
            }
    rig_close(&r);
}
END_TEST

/* _i: format * kinds + kind. Plain scales take the fast forms, hostile ones the others. */
START_TEST(block_floats_equal_oracle)
{
    static const int counts[] = {1, 3, 8, 9, 40, 70, 130};
    static const int64_t lens[] = {32, 160, 672, 1664, 2880, 4096};
    static const enum cuda_path paths[] = {CUDA_PATH_AUTO, CUDA_PATH_PLAIN, CUDA_PATH_FEW,
                                           CUDA_PATH_MANY};
    struct qformat q = fix_blocks[_i / FIX_BLOCK_KINDS];
    enum fix_block kind = (enum fix_block)(_i % FIX_BLOCK_KINDS);
    struct rng rng = {.seed = 30 + (uint64_t)_i};
    if (kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
        return;
    struct rig r = rig_open();
    for (size_t i = 0; i < ARRAY_LEN(lens) * ARRAY_LEN(paths); i++) {
        int64_t rows = 37 + 16 * (int64_t)(i % 6);
        struct fix_weight f = fix_mx(&rng, rows, lens[i % ARRAY_LEN(lens)], q, kind);
        cuda_of(r.side[1])->force_path = (int)paths[i / ARRAY_LEN(lens)];
        check_counts(&r, &f, counts, ARRAY_LEN(counts), kind == FIX_BLOCK_HOSTILE ? 3 : (int)i % 3,
                     i % 2, qformat_mode(q));
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

/* Packed block floats and the same values in bf16: invariance 8 on the device. */
START_TEST(block_floats_equal_their_expansion)
{
    static const int counts[] = {1, 8, 65};
    struct rig r = rig_open();
    struct rng rng = {.seed = 40};
    struct kern *k = r.side[1];
    struct fix_weight f = fix_mx(&rng, 150, 1664, fix_blocks[_i], FIX_BLOCK_PLAIN);
    struct fix_weight d = fix_dense(&rng, 150, 1664, DT_BF16);
    memcpy(d.data, f.bf16, 150 * 1664 * 2);
    struct kern_weight *w[2] = {fix_load(k, &f), fix_load(k, &d)};
    reserve(&r, 65, 1664, 150);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        uint16_t *x = rig_inputs(&rng, (size_t)counts[i] * 1664, 0);
        float *a = product(k, w[0], x, counts[i], NULL), *b = product(k, w[1], x, counts[i], NULL);
        ck_assert_int_lt(rig_differ(a, b, (size_t)counts[i] * 150, 4), 0);
        free(a);
        free(b);
        free(x);
    }
    fix_weight_free(&f);
    fix_weight_free(&d);
    rig_close(&r);
}
END_TEST

START_TEST(dense_equals_oracle)
{
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    static const int counts[] = {1, 3, 8, 9, 40, 70};
    static const int64_t lens[] = {1, 7, 40, 128, 576, 1025, 2056};
    struct rig r = rig_open();
    struct rng rng = {.seed = 12};
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
            struct fix_weight f = fix_dense(&rng, 53, lens[l], types[t]);
            check_counts(&r, &f, counts, ARRAY_LEN(counts), (int)l % 4, l % 2, "dense");
            fix_weight_free(&f);
        }
    rig_close(&r);
}
END_TEST

/* Widths of the real models, every count of rows, each kind of input. */
START_TEST(row_counts_equal_oracle)
{
    static const int64_t lens[] = {576, 1536, 2048, 4096, 14336};
    struct rig r = rig_open();
    struct rng rng = {.seed = 13};
    for (size_t l = 0; l < ARRAY_LEN(lens); l++)
        for (int kind = 0; kind < 4; kind++) {
            struct qformat q = {_i == 0 ? 4 : 8, 64, DT_BF16};
            struct fix_weight f = _i < 2 ? fix_affine(&rng, 144, lens[l], q, 0.02f)
                                         : fix_dense(&rng, 144, lens[l], DT_BF16);
            check_counts(&r, &f, rig_counts, RIG_COUNTS, kind, false,
                         _i == 0   ? "4 bits"
                         : _i == 1 ? "8 bits"
                                   : "dense");
            fix_weight_free(&f);
        }
    rig_close(&r);
}
END_TEST

/* Every format at every count of rows: wide exponents, subnormals, and rows beside which others
 * hold what is not finite. _i: six bits of three groups, then block floats, then dense. */
START_TEST(formats_at_row_counts_equal_oracle)
{
    static const int all_bits[] = {2, 3, 4, 5, 6, 8}, kinds[] = {1, 2, KIND_BESIDE};
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    const int blocks = (int)ARRAY_LEN(all_bits) * 3, dense = blocks + FIX_BLOCKS;
    struct rig r = rig_open();
    struct rng rng = {.seed = 25 + (uint64_t)_i};
    for (size_t i = 0; i < ARRAY_LEN(kinds) * ARRAY_LEN(types); i++) {
        const enum dtype type = types[i % 3];
        const int64_t k = (i / 3 + (size_t)_i) % 2 ? 1152 : 1536; /* the stream takes the latter */
        struct fix_weight f;
        if (_i >= dense)
            f = fix_dense(&rng, 24, k, type);
        else if (_i >= blocks)
            f = fix_mx(&rng, 24, k, fix_blocks[_i - blocks],
                       type == DT_BF16                      ? FIX_BLOCK_PLAIN
                       : type == DT_F16 || _i - blocks != 2 ? FIX_BLOCK_HOSTILE
                                                            : FIX_BLOCK_GLOBAL);
        else
            f = fix_affine(&rng, 24, k, (struct qformat){all_bits[_i / 3], 32 << _i % 3, type},
                           0.02f);
        check_counts(&r, &f, rig_counts, RIG_COUNTS, kinds[i / 3], i % 2, "a format");
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

/* Tall matrices: more tiles than multiprocessors. */
START_TEST(tall_matrices_equal_oracle)
{
    static const int counts[] = {1, 2, 8, 16, 33, 64, 128, 200};
    struct rig r = rig_open();
    struct rng rng = {.seed = 14};
    for (int i = 0; i < 6; i++) {
        static const int64_t rows[] = {6144, 6184, 6224, 40000, 4096, 4200};
        static const int64_t lens[] = {1024, 1024, 2048, 1536, 9728, 9216};
        struct qformat q = {i % 3 == 1 ? 8 : 4, 32 << (i + 1) % 3, DT_BF16};
        struct fix_weight f = fix_affine(&rng, rows[i], lens[i], q, 0.02f);
        check_counts(&r, &f, counts, ARRAY_LEN(counts), 0, true, "tall");
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

static const struct {
    int64_t rows, k;
    int bits, group;
} many_shapes[] = {{600, 2560, 4, 64}, {450, 1664, 4, 32},  {530, 2048, 4, 128},
                   {410, 1536, 8, 64}, {390, 1536, 16, 64}, {300, 1088, 6, 64}};

/* With four multiprocessors a block has several items with all their chunks; with all of them the
 * chunks are items. */
START_TEST(items_of_many_rows_equal_oracle)
{
    static const int counts[] = {17, 32, 33, 64, 65, 128, 129, 192, 193, 200};
    struct rig r = rig_open();
    struct rng rng = {.seed = 23};
    int64_t rows = many_shapes[_i].rows, k = many_shapes[_i].k;
    struct qformat q = {many_shapes[_i].bits, many_shapes[_i].group, DT_BF16};
    struct fix_weight f = q.bits == CUDA_DENSE ? fix_dense(&rng, rows, k, DT_BF16)
                                               : fix_affine(&rng, rows, k, q, 0.02f);
    int n_sm[] = {4, 7, cuda_of(r.side[1])->n_sm};
    for (int i = 0; i < 3; i++) {
        cuda_of(r.side[1])->n_sm = n_sm[i];
        check_counts(&r, &f, counts, ARRAY_LEN(counts), i, i % 2, "items of many rows");
    }
    fix_weight_free(&f);
    rig_close(&r);
}
END_TEST

START_TEST(a_planted_order_shows_in_items_of_many_rows)
{
    static const int counts[] = {32, 64, 128, 200};
    struct rig r = rig_open();
    struct rng rng = {.seed = 24};
    int64_t rows = many_shapes[_i].rows, k = many_shapes[_i].k;
    struct qformat q = {many_shapes[_i].bits, many_shapes[_i].group, DT_BF16};
    struct fix_weight f = q.bits == CUDA_DENSE ? fix_dense(&rng, rows, k, DT_BF16)
                                               : fix_affine(&rng, rows, k, q, 0.02f);
    struct kern_weight *w = fix_load(r.side[1], &f);
    uint16_t *x = rig_inputs(&rng, (size_t)(200 * k), 0);
    reserve(&r, 200, k, rows);
    for (size_t i = 0; i < 2 * ARRAY_LEN(counts); i++) {
        size_t n = (size_t)(counts[i / 2] * rows);
        if (i % 2)
            cuda_of(r.side[1])->n_sm = 4;
        float *want = product(r.side[1], w, x, counts[i / 2], NULL);
        kern_plant(KERN_FAULT_CHUNK_ORDER);
        float *got = product(r.side[1], w, x, counts[i / 2], NULL);
        kern_plant(KERN_FAULT_NONE);
        ck_assert_msg(rig_differ(want, got, n, 4) >= 0, "%d rows, %zu", counts[i / 2], i % 2);
        free(want);
        free(got);
    }
    free(x);
    kern_weight_free(r.side[1], w);
    fix_weight_free(&f);
    rig_close(&r);
}
END_TEST

/* Whichever kernel takes a product, at counts of rows that it would not be chosen for too. */
START_TEST(every_path_equals_oracle)
{
    static const enum cuda_path paths[] = {CUDA_PATH_PLAIN, CUDA_PATH_STREAM, CUDA_PATH_FEW,
                                           CUDA_PATH_MANY};
    static const int counts[] = {1, 5, 8, 9, 16, 33, 64, 65, 130};
    struct rig r = rig_open();
    struct rng rng = {.seed = 22};
    for (size_t i = 0; i < 9 * ARRAY_LEN(paths); i++) {
        static const int64_t lens[] = {1664, 2560, 8704};
        int64_t k = lens[i / 3 % 3];
        struct qformat q = {i % 3 == 0 ? 4 : 8, 64, DT_BF16};
        struct fix_weight f =
            i % 3 == 2 ? fix_dense(&rng, 150, k, DT_BF16) : fix_affine(&rng, 150, k, q, 0.02f);
        cuda_of(r.side[1])->force_path = (int)paths[i / 9];
        check_counts(&r, &f, counts, ARRAY_LEN(counts), (int)i % 4, i % 2, "a forced path");
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

START_TEST(parts_equal_single_products)
{
    static const int counts[] = {1, 4, 7, 8, 12, 24, 64, 100};
    const int64_t len = _i == 0 ? 1088 : _i == 1 ? 2048 : 8704;
    struct rig r = rig_open();
    struct rng rng = {.seed = 15};
    struct qformat q = {4, 64, DT_BF16}, q8 = {8, 64, DT_BF16};
    struct fix_weight f[3] = {fix_affine(&rng, 208, len, q, 0.02f),
                              fix_affine(&rng, 72, len, q, 0.02f),
                              fix_affine(&rng, 40, len, q8, 0.02f)};
    struct kern *k = r.side[1];
    reserve(&r, 128, len, 208);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        int n = counts[i];
        struct linear_args a = {.n_tok = n, .x_stride = (len + 2), .n_parts = 3};
        struct err e = {.text = ""};
        uint16_t *x = rig_inputs(&rng, (size_t)(n * (len + 2)), 0);
        float *want[3];
        a.x = rig_put(k, x, (size_t)(n * (len + 2)) * 2);
        for (int j = 0; j < 3; j++) {
            struct linear_args one = {.n_tok = n, .x_stride = (len + 2), .n_parts = 1};
            struct kern_weight *w = fix_load(r.side[0], &f[j]);
            int64_t rows = kern_weight_rows(w);
            one.x = x;
            one.part[0] = (struct linear_part){w, NULL, malloc((size_t)(n * rows) * 4), rows};
            fix_ok(kern_linear(r.side[0], &one, &e), &e);
            want[j] = one.part[0].out;
            kern_weight_free(r.side[0], w);
            a.part[j] = (struct linear_part){fix_load(k, &f[j]), NULL,
                                             rig_put(k, NULL, (size_t)(n * 512) * 4), 512};
        }
        fix_ok(kern_linear(k, &a, &e), &e);
        for (int j = 0; j < 3; j++) {
            int64_t rows = kern_weight_rows(a.part[j].w);
            float *got = rig_get(k, a.part[j].out, (size_t)(n * 512) * 4);
            for (int t = 0; t < n; t++)
                ck_assert_msg(rig_differ(want[j] + t * rows, got + t * 512, (size_t)rows, 4) < 0,
                              "%d rows, part %d, row %d", n, j, t);
            free(got);
            free(want[j]);
            kern_free(k, a.part[j].out);
            kern_weight_free(k, (struct kern_weight *)(uintptr_t)a.part[j].w);
        }
        kern_free(k, (void *)(uintptr_t)a.x);
        free(x);
    }
    for (int j = 0; j < 3; j++)
        fix_weight_free(&f[j]);
    rig_close(&r);
}
END_TEST

START_TEST(embedding_equals_oracle)
{
    static const int all_bits[] = {2, 3, 4, 5, 6, 8, 16};
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    struct rig r = rig_open();
    struct rng rng = {.seed = 16};
    const size_t n_plain = ARRAY_LEN(all_bits) * 6, n_block = FIX_BLOCKS * FIX_BLOCK_KINDS;
    for (size_t i = 0; i < n_plain + n_block; i++) {
        bool block = i >= n_plain;
        int bits = block ? 0 : all_bits[i / 6], kind = (int)((i - n_plain) % FIX_BLOCK_KINDS);
        struct qformat q = {bits, 32 << i % 3, scales[i / 2 % 3]};
        int64_t rows = 70, k = 384;
        if (block)
            q = fix_blocks[(i - n_plain) / FIX_BLOCK_KINDS];
        if (block && kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
            continue;
        struct fix_weight f = block        ? fix_mx(&rng, rows, k, q, (enum fix_block)kind)
                              : bits == 16 ? fix_dense(&rng, rows, k, scales[i / 2 % 3])
                                           : fix_affine(&rng, rows, k, q, 0.02f);
        if (!block && bits < 16 && i % 2)
            make_hostile(&rng, &f, rows * (k / q.group));
        int32_t ids[70];
        float *out[2];
        for (int t = 0; t < 70; t++)
            ids[t] = (t * 31) % 70;
        for (int s = 0; s < 2; s++) {
            struct kern *side = r.side[s];
            struct kern_weight *w = fix_load(side, &f);
            struct kern_rows rows_of = {.n_tok = 70, .id = rig_put(side, ids, sizeof ids)};
            struct embed_args a = {&rows_of, w, 1.5f, rig_put(side, NULL, 70 * 384 * 4)};
            struct err e = {.text = ""};
            fix_ok(kern_embed(side, &a, &e), &e);
            out[s] = rig_get(side, a.out, 70 * 384 * 4);
            kern_weight_free(side, w);
        }
        ck_assert_msg(rig_differ(out[0], out[1], 70 * 384, 4) < 0, "%d bits, case %zu", bits, i);
        free(out[0]);
        free(out[1]);
        fix_weight_free(&f);
    }
    rig_close(&r);
}
END_TEST

START_TEST(a_token_outside_is_reported_and_not_sticky)
{
    struct rig r = rig_open();
    struct rng rng = {.seed = 17};
    struct fix_weight f = fix_dense(&rng, 16, 32, DT_BF16);
    struct kern *k = r.side[1];
    struct kern_weight *w = fix_load(k, &f);
    int32_t ids[2] = {3, 16};
    float out[64];
    struct kern_rows rows = {.n_tok = 2, .id = rig_put(k, ids, sizeof ids)};
    struct embed_args a = {&rows, w, 1.0f, rig_put(k, NULL, sizeof out)};
    struct err e = {.text = ""};
    fix_ok(kern_embed(k, &a, &e), &e);
    ck_assert_int_eq(kern_download(k, out, a.out, sizeof out, &e), ERR_INTERNAL);
    ck_assert_str_eq(e.text, "row 1: token 16 of 16");
    ck_assert_int_eq(kern_download(k, out, a.out, sizeof out, &e), ERR_OK);
    rig_close(&r);
}
END_TEST

/* Each fault must be seen by the comparison with the oracle. */
START_TEST(planted_faults_show)
{
    static const int counts[] = {3, 8, 16, 64, 128};
    struct rig r = rig_open();
    struct rng rng = {.seed = 18};
    struct qformat q = {4, 64, DT_BF16};
    struct fix_weight f = _i ? fix_mx(&rng, 48, 4096, fix_blocks[_i - 1], FIX_BLOCK_PLAIN)
                             : fix_affine(&rng, 48, 4096, q, 0.02f);
    struct kern_weight *w[2] = {fix_load(r.side[0], &f), fix_load(r.side[1], &f)};
    reserve(&r, 128, 4096, 48);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        uint16_t *x = rig_inputs(&rng, (size_t)counts[i] * 4096, 0);
        float *want = product(r.side[0], w[0], x, counts[i], NULL);
        kern_plant(KERN_FAULT_CHUNK_ORDER);
        float *got = product(r.side[1], w[1], x, counts[i], NULL);
        kern_plant(KERN_FAULT_NONE);
        ck_assert_msg(rig_differ(want, got, (size_t)counts[i] * 48, 4) >= 0, "%d rows", counts[i]);
        free(x);
        free(want);
        free(got);
    }
    rig_close(&r);
}
END_TEST

/* A norm and the product of what it gives, again and again with other rows: the product starts
 * while the norm still runs. Returns how many of the products differ from the oracle's. */
static int chained(struct rig *r, struct kern_weight *const w[2], int n, int repeats)
{
    const int d = (int)kern_weight_k(w[0]);
    struct rng rng = {.seed = 20};
    int64_t rows = kern_weight_rows(w[0]);
    size_t bytes = (size_t)(n * rows) * 4, in = (size_t)(n * d);
    int differ = 0;
    float *weight = fix_floats(&rng, (size_t)d, 0.5f, 1.5f), *h = malloc(in * 4);
    void *dh[2], *dw[2], *dx[2], *out[2];
    for (int s = 0; s < 2; s++) {
        dh[s] = rig_put(r->side[s], NULL, in * 4);
        dw[s] = rig_put(r->side[s], weight, (size_t)d * 4);
        dx[s] = rig_put(r->side[s], NULL, in * 2);
        out[s] = rig_put(r->side[s], NULL, bytes);
    }
    for (int i = 0; i < repeats; i++) {
        float *got[2];
        for (size_t j = 0; j < in; j++)
            h[j] = fix_uniform(&rng, -1, 1);
        for (int s = 0; s < 2; s++) {
            struct kern *k = r->side[s];
            struct rms_norm_args norm = {.n_rows = n,
                                         .inner = 1,
                                         .stride = d,
                                         .out_stride = d,
                                         .d = d,
                                         .h = dh[s],
                                         .w = dw[s],
                                         .eps = 1e-5f,
                                         .out = dx[s]};
            struct linear_args a = {.n_tok = n, .x = dx[s], .x_stride = d, .n_parts = 1};
            struct err e = {.text = ""};
            a.part[0] = (struct linear_part){w[s], NULL, out[s], rows};
            fix_ok(kern_upload(k, dh[s], h, in * 4, &e), &e);
            fix_ok(kern_rms_norm(k, &norm, &e), &e);
            fix_ok(kern_linear(k, &a, &e), &e);
            got[s] = rig_get(k, out[s], bytes);
        }
        differ += rig_differ(got[0], got[1], bytes / 4, 4) >= 0;
        free(got[0]);
        free(got[1]);
    }
    free(weight);
    free(h);
    return differ;
}

START_TEST(an_early_start_waits_for_its_input)
{
    static const int counts[] = {1, 3, 8, 12, 24, 100};
    struct rig r = rig_open();
    struct rng rng = {.seed = 21};
    struct qformat q = {4, 64, DT_BF16};
    struct fix_weight f = fix_affine(&rng, 2112, _i == 0 ? 1024 : _i == 1 ? 2048 : 9216, q, 0.02f);
    struct kern_weight *w[2] = {fix_load(r.side[0], &f), fix_load(r.side[1], &f)};
    struct cuda_kern *c = cuda_of(r.side[1]);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        c->plant_delay_ns = 0;
        ck_assert_int_eq(chained(&r, w, counts[i], 20), 0);
        c->plant_delay_ns = 50000;
        ck_assert_int_eq(chained(&r, w, counts[i], 10), 0);
        c->plant_no_wait = true;
        rig_saw_no_wait(chained(&r, w, counts[i], 10), "a product");
        c->plant_no_wait = false;
    }
    rig_close(&r);
}
END_TEST

/* Copies that run by themselves overwrite stages that warps have read. How many of the products of
 * one input differ from the first, which must be the oracle's, beside a kern that works too. */
static int repeated(struct rig *r, struct kern_weight *const w[2], const uint16_t *x, int n,
                    int repeats)
{
    size_t words = (size_t)(n * kern_weight_rows(w[0]));
    float *want = product(r->side[0], w[0], x, n, NULL);
    int differ = 0;
    for (int i = 0; i < repeats; i++) {
        float *got = product(r->side[1], w[1], x, n, NULL);
        differ += rig_differ(want, got, words, 4) >= 0;
        free(got);
    }
    free(want);
    return differ;
}

START_TEST(stages_are_read_before_they_are_overwritten)
{
    static const int counts[] = {24, 60, 128, 192, 384};
    struct rig r = rig_open();
    struct rng rng = {.seed = 25};
    struct qformat q = {_i ? 8 : 4, 64, DT_BF16};
    struct fix_weight f = fix_affine(&rng, 1100, 2560, q, 0.02f);
    struct kern_weight *w[2] = {fix_load(r.side[0], &f), fix_load(r.side[1], &f)};
    struct cuda_kern *c = cuda_of(r.side[1]);
    uint16_t *x = rig_inputs(&rng, 384 * 2560, 0);
    struct self_load *load;
    struct err e = {.text = ""};
    uint64_t rounds = 0;
    int differ = 0;
    reserve(&r, 384, 2560, 1100);
    c->n_sm = 6;
    fix_ok(self_load_start(&load, "cuda:0", &e), &e);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        ck_assert_msg(repeated(&r, w, x, counts[i], 60) == 0, "%d rows", counts[i]);
    c->plant_frees_early = true;
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        differ += repeated(&r, w, x, counts[i], 5);
    c->plant_frees_early = false;
    fix_ok(self_load_stop(load, &rounds, &e), &e);
    ck_assert_uint_gt(rounds, 0);
    ck_assert_int_gt(differ, 0);
    free(x);
    fix_weight_free(&f);
    rig_close(&r);
}
END_TEST

/* Products: test_cuda_small.c. */
static void add_small(TCase *c)
{
    tcase_add_test(c, embedding_equals_oracle);
    tcase_add_test(c, a_token_outside_is_reported_and_not_sticky);
}

static void add(TCase *c)
{
    tcase_add_loop_test(c, packed_formats_equal_oracle, 0, 6);
    tcase_add_loop_test(c, block_floats_equal_oracle, 0, FIX_BLOCKS * FIX_BLOCK_KINDS);
    tcase_add_loop_test(c, block_floats_equal_their_expansion, 0, FIX_BLOCKS);
    tcase_add_test(c, dense_equals_oracle);
    tcase_add_loop_test(c, row_counts_equal_oracle, 0, 3);
    tcase_add_loop_test(c, formats_at_row_counts_equal_oracle, 0, 6 * 3 + FIX_BLOCKS + 1);
    tcase_add_test(c, tall_matrices_equal_oracle);
    tcase_add_loop_test(c, items_of_many_rows_equal_oracle, 0, (int)ARRAY_LEN(many_shapes));
    tcase_add_loop_test(c, a_planted_order_shows_in_items_of_many_rows, 0,
                        (int)ARRAY_LEN(many_shapes));
    tcase_add_test(c, every_path_equals_oracle);
    tcase_add_loop_test(c, parts_equal_single_products, 0, 3);
    tcase_add_loop_test(c, planted_faults_show, 0, 1 + FIX_BLOCKS);
    tcase_add_loop_test(c, an_early_start_waits_for_its_input, 0, 3);
    tcase_add_loop_test(c, stages_are_read_before_they_are_overwritten, 0, 2);
}

Suite *test_suite(void)
{
    return rig_suite("cuda linear", add, add_small);
}
