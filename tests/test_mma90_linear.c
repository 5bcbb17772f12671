/* test_mma90_linear.c: rule 2 in mma90 against a plain reference built on mma90_step and
 * qformat_bf16: every format, variant, row count and thread count gives the same bits.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu_mma_private.h"
#include "tests/kernels_fixture.h"

static struct rng rng = {.seed = 90};

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)rng_below(&rng, bound);
}

static void *get(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    ck_assert_ptr_nonnull(p);
    return p;
}

static struct cpu_kern make_kern(enum cpu_isa isa, int threads)
{
    struct cpu_kern k = {.base = {.arith = KERN_MMA90, .threads = threads}, .isa = isa};
    return k;
}

/* ---- a matrix and its bf16 values -------------------------------------------------------------
 */

struct matrix {
    struct ckpt_weight w;
    uint8_t *data, *scales, *biases;
    uint16_t *value; /* [rows, k] by rule 1 */
};

static void put_float(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_F16 ? f16_from_f32(v) : bf16_from_f32(v));
}

/* Scales and biases as a quantizer makes them, or (hostile) anything that bits can say. */
static void draw_scales(struct matrix *m, int64_t n, bool hostile)
{
    enum dtype t = m->w.q.scale;
    for (int64_t i = 0; i < n; i++) {
        float s = (float)(0.01 + 0.01 * rng_double(&rng)) * (draw(2) ? 1.0f : -1.0f);
        float b = -s * (float)(1 << (m->w.q.bits - 1)) * (draw(3) ? 1.0f : 1.07f);
        put_float(m->scales, t, i, s);
        put_float(m->biases, t, i, b);
        if (!hostile || draw(4))
            continue;
        for (int j = 0; j < (t == DT_F32 ? 4 : 2); j++) {
            m->scales[i * (t == DT_F32 ? 4 : 2) + j] = (uint8_t)draw(256);
            m->biases[i * (t == DT_F32 ? 4 : 2) + j] = (uint8_t)draw(256);
        }
    }
}

static struct matrix make_affine(int64_t rows, int64_t k, struct qformat q, bool hostile)
{
    struct matrix m = {.w = {.name = "w", .stored = "w", .enc = CKPT_AFFINE, .q = q, .n_dim = 2}};
    int64_t groups = rows * (k / q.group);
    size_t row_bytes = qformat_row_bytes(q, k), bytes = (size_t)rows * row_bytes;
    size_t scale_bytes = (size_t)groups * (q.scale == DT_F32 ? 4 : 2);
    m.w.dim[0] = rows;
    m.w.dim[1] = k;
    m.w.data = m.data = get(bytes);
    m.w.scales = m.scales = get(scale_bytes);
    m.w.biases = m.biases = get(scale_bytes);
    m.w.bytes = bytes + 2 * scale_bytes;
    for (size_t i = 0; i < bytes; i++)
        m.data[i] = (uint8_t)draw(256);
    draw_scales(&m, groups, hostile);
    m.value = get((size_t)(rows * k) * 2);
    for (int64_t i = 0; i < rows * k; i++) {
        int64_t g = i / k * (k / q.group) + i % k / q.group;
        m.value[i] = qformat_bf16(qformat_code(m.data + (size_t)(i / k) * row_bytes, q.bits, i % k),
                                  qformat_scale(m.scales, q.scale, g),
                                  qformat_scale(m.biases, q.scale, g), q.scale);
    }
    return m;
}

/* Block floats: plain scales, any that are no NaN, or plain ones and a global scale. */
static struct matrix make_block(int64_t rows, int64_t k, struct qformat q, enum fix_block kind)
{
    struct matrix m = {.w = {.name = "w"}};
    struct fix_weight f = fix_mx(&rng, rows, k, q, kind);
    m.w = f.c;
    m.data = f.data;
    m.scales = f.scales;
    m.biases = f.globals;
    m.value = f.bf16;
    free(f.value);
    return m;
}

static struct matrix make_dense(int64_t rows, int64_t k, enum dtype t)
{
    struct matrix m = {
        .w = {.name = "w", .stored = "w", .enc = CKPT_DENSE, .dtype = t, .n_dim = 2}};
    size_t bytes = (size_t)(rows * k) * (size_t)dtype_bits(t) / 8;
    m.w.dim[0] = rows;
    m.w.dim[1] = k;
    m.w.data = m.data = get(bytes);
    m.w.bytes = bytes;
    m.value = get((size_t)(rows * k) * 2);
    for (int64_t i = 0; i < rows * k; i++) {
        float v = (float)rng_normal(&rng) * 0.05f;
        put_float(m.data, t, i, v);
        v = t == DT_F16 ? f16_to_f32(f16_from_f32(v)) : v;
        m.value[i] = bf16_from_f32(v);
    }
    return m;
}

static void free_matrix(struct matrix *m)
{
    free(m->data);
    free(m->scales);
    free(m->biases);
    free(m->value);
}

static uint16_t *make_inputs(int n, int64_t k)
{
    uint16_t *x = get((size_t)n * (size_t)k * 2);
    for (int64_t i = 0; i < n * k; i++)
        x[i] = bf16_from_f32((float)rng_normal(&rng));
    return x;
}

/* ---- reference and runs -----------------------------------------------------------------------
 */

static float reference(const uint16_t *w, const uint16_t *x, int64_t k, const float *bias)
{
    int64_t chunk = mma90_chunk(k);
    float total = 0;
    for (int64_t k0 = 0; k0 < k; k0 += chunk) {
        uint32_t acc = 0;
        for (int64_t i = k0; i < MIN2(k0 + chunk, k); i += MMA90_K) {
            uint16_t a[MMA90_K] = {0}, b[MMA90_K] = {0};
            size_t n = (size_t)MIN2(k - i, MMA90_K) * 2;
            memcpy(a, w + i, n);
            memcpy(b, x + i, n);
            acc = mma90_step(a, b, acc);
        }
        total = k0 ? total + f32_from_bits(acc) : f32_from_bits(acc);
    }
    total = bias ? total + *bias : total;
    return isnan(total) ? f32_from_bits(MMA90_NAN) : total;
}

static struct kern_weight *load(struct cpu_kern *k, const struct matrix *m)
{
    struct kern_weight *w;
    struct err e;
    const struct ckpt_weight *part = &m->w;
    enum err_code rc = cpu_mma_weight_load(&k->base, &part, 1, &w, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.text);
    ck_assert_uint_eq(w->bytes, cpu_mma_weight_bytes(&k->base, &part, 1));
    return w;
}

struct run {
    enum cpu_isa isa;
    int threads, n;
    const float *bias;
};

static float *run_linear(struct run r, const struct matrix *m, const uint16_t *x)
{
    int64_t rows = m->w.dim[0], k = m->w.dim[1];
    struct cpu_kern kern = make_kern(r.isa, r.threads);
    struct kern_weight *w = load(&kern, m);
    float *out = get((size_t)r.n * (size_t)rows * 4);
    struct linear_args a = {.n_tok = r.n, .x = x, .x_stride = k, .n_parts = 1};
    a.part[0] = (struct linear_part){.w = w, .bias = r.bias, .out = out, .out_stride = rows};
    ck_assert_int_eq(cpu_mma_linear(&kern.base, &a, NULL), ERR_OK);
    cpu_mma_weight_free(&kern.base, w);
    return out;
}

/* Outputs of a run that differ from the reference. */
static int count_wrong(struct run r, const struct matrix *m, const uint16_t *x)
{
    int64_t rows = m->w.dim[0], k = m->w.dim[1];
    float *out = run_linear(r, m, x);
    int wrong = 0;
    for (int64_t i = 0; i < r.n * rows; i++) {
        const float *bias = r.bias ? r.bias + i % rows : NULL;
        float want = reference(m->value + i % rows * k, x + i / rows * k, k, bias);
        wrong += f32_bits(out[i]) != f32_bits(want);
    }
    free(out);
    return wrong;
}

static enum cpu_isa best_isa(void)
{
    return cpu_isa_runs(CPU_AVX512) ? CPU_AVX512 : cpu_isa_runs(CPU_AVX2) ? CPU_AVX2 : CPU_C;
}

static void check_isas(const struct matrix *m, int n, const char *what)
{
    uint16_t *x = make_inputs(n, m->w.dim[1]);
    float *bias = get((size_t)m->w.dim[0] * 4);
    for (int64_t i = 0; i < m->w.dim[0]; i++)
        bias[i] = (float)rng_normal(&rng);
    for (int isa = CPU_C; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_runs((enum cpu_isa)isa))
            continue;
        struct run r = {(enum cpu_isa)isa, 2, n, isa % 2 ? bias : NULL};
        int wrong = count_wrong(r, m, x);
        ck_assert_msg(wrong == 0, "%s, %s: %d outputs differ", what, cpu_isa_name(r.isa), wrong);
    }
    free(bias);
    free(x);
}

static void check_formats(bool hostile)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    for (size_t i = 0; i < ARRAY_LEN(bits) * 9; i++) {
        struct qformat q = {bits[i / 9], groups[i / 3 % 3], scales[i % 3]};
        struct matrix m = make_affine(37, 384, q, hostile);
        char what[64];
        snprintf(what, sizeof what, "%d bits, group %d, %s", q.bits, q.group, dtype_name(q.scale));
        check_isas(&m, 3, what);
        free_matrix(&m);
    }
}

START_TEST(packed_formats_equal_reference)
{
    check_formats(false);
}
END_TEST

/* Infinities, NaN, subnormals, biases far above their scales. */
START_TEST(hostile_scales_equal_reference)
{
    check_formats(true);
}
END_TEST

/* _i: format. Packed equals expanded too. */
START_TEST(block_floats_equal_reference)
{
    struct qformat q = fix_blocks[_i];
    for (int kind = 0; kind < FIX_BLOCK_KINDS; kind++) {
        if (kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
            continue;
        struct matrix m = make_block(37, 1056, q, (enum fix_block)kind);
        check_isas(&m, 3, qformat_mode(q));
        struct matrix d = make_dense(37, 1056, DT_BF16);
        uint16_t *x = make_inputs(17, 1056);
        memcpy(d.data, m.value, 37 * 1056 * 2);
        float *a = run_linear((struct run){best_isa(), 2, 17, NULL}, &m, x);
        float *b = run_linear((struct run){best_isa(), 2, 17, NULL}, &d, x);
        ck_assert_mem_eq(a, b, 17 * 37 * 4);
        free(a);
        free(b);
        free(x);
        free_matrix(&m);
        free_matrix(&d);
    }
}
END_TEST

/* A group of zeros takes the smallest scale; a tile with one is expanded as fast as any. */
START_TEST(zero_groups_are_plain)
{
    for (size_t i = 0; i < 2; i++) {
        struct matrix m = make_block(32, 64, fix_blocks[i], FIX_BLOCK_PLAIN);
        struct cpu_kern kern = make_kern(best_isa(), 1);
        memset(m.data + 3 * (64 * fix_blocks[i].bits / 8), 0, (size_t)(4 * fix_blocks[i].bits));
        m.scales[3 * 2] = 0;
        struct kern_weight *w = load(&kern, &m);
        ck_assert_int_eq(cpu_mma_weight_of(w)->plain[0], 1);
        cpu_mma_weight_free(&kern.base, w);
        m.scales[20 * 2] = 254;
        w = load(&kern, &m);
        ck_assert_int_eq(cpu_mma_weight_of(w)->plain[1], 0);
        cpu_mma_weight_free(&kern.base, w);
        free_matrix(&m);
    }
}
END_TEST

START_TEST(dense_equals_reference)
{
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    static const int64_t lengths[] = {1, 15, 16, 255, 256, 272, 600, 1024, 1030, 1536};
    for (size_t i = 0; i < ARRAY_LEN(types) * ARRAY_LEN(lengths); i++) {
        struct matrix m = make_dense(19, lengths[i / 3], types[i % 3]);
        check_isas(&m, 2, dtype_name(types[i % 3]));
        free_matrix(&m);
    }
}
END_TEST

/* ---- rows alone -------------------------------------------------------------------------------
 */

static const struct qformat q4 = {4, 64, DT_BF16};

START_TEST(row_count_changes_nothing)
{
    static const int counts[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,  13,  14,  15,
                                 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512};
    struct matrix m = make_affine(40, 1536, q4, false);
    uint16_t *x = make_inputs(512, 1536);
    ck_assert_int_eq(count_wrong((struct run){best_isa(), 1, 40, NULL}, &m, x), 0);
    float *all = run_linear((struct run){best_isa(), 1, 512, NULL}, &m, x);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        int from = counts[i] < 512 ? 512 - counts[i] - (int)draw(2) : 0;
        from = MAX2(from, 0);
        float *out = run_linear((struct run){best_isa(), 2, counts[i], NULL}, &m, x + from * 1536);
        ck_assert_mem_eq(out, all + from * 40, (size_t)counts[i] * 40 * 4);
        free(out);
    }
    free(all);
    free(x);
    free_matrix(&m);
}
END_TEST

START_TEST(threads_change_nothing)
{
    struct matrix m = make_affine(200, 2048, q4, false);
    uint16_t *x = make_inputs(5, 2048);
    float *one = run_linear((struct run){best_isa(), 1, 5, NULL}, &m, x);
    for (int threads = 2; threads < 8; threads++) {
        float *out = run_linear((struct run){best_isa(), threads, 5, NULL}, &m, x);
        ck_assert_mem_eq(out, one, 5 * 200 * 4);
        free(out);
    }
    free(one);
    free(x);
    free_matrix(&m);
}
END_TEST

/* Rows that differ from the same rows run alone, when every other one is NaN. */
static int count_leaks(const struct matrix *m)
{
    int64_t rows = m->w.dim[0], k = m->w.dim[1];
    uint16_t *x = make_inputs(9, k);
    int leaks = 0;
    for (int i = 0; i < 9; i += 2) {
        for (int64_t j = 0; j < k; j++)
            x[i * k + j] = 0x7fc0;
    }
    float *out = run_linear((struct run){best_isa(), 2, 9, NULL}, m, x);
    for (int i = 1; i < 9; i += 2) {
        float *alone = run_linear((struct run){best_isa(), 2, 1, NULL}, m, x + i * k);
        leaks += memcmp(alone, out + i * rows, (size_t)rows * 4) != 0;
        free(alone);
    }
    free(out);
    free(x);
    return leaks;
}

START_TEST(neighbours_do_not_leak)
{
    struct matrix m = make_affine(33, 1088, q4, false);
    ck_assert_int_eq(count_leaks(&m), 0);
    free_matrix(&m);
}
END_TEST

START_TEST(packed_equals_expanded)
{
    struct matrix m = make_affine(70, 1600, q4, true), d = make_dense(70, 1600, DT_BF16);
    uint16_t *x = make_inputs(4, 1600);
    memcpy(d.data, m.value, 70 * 1600 * 2);
    float *a = run_linear((struct run){best_isa(), 2, 4, NULL}, &m, x);
    float *b = run_linear((struct run){best_isa(), 2, 4, NULL}, &d, x);
    ck_assert_mem_eq(a, b, 4 * 70 * 4);
    free(a);
    free(b);
    free(x);
    free_matrix(&m);
    free_matrix(&d);
}
END_TEST

/* ---- experts and embedding --------------------------------------------------------------------
 */

START_TEST(experts_equal_reference)
{
    enum { experts = 5, rows = 24, used = 2, n_tok = 9, k = 320, pairs = n_tok * used };
    struct matrix m = _i ? make_block(experts * rows, k, fix_blocks[_i - 1], FIX_BLOCK_PLAIN)
                         : make_affine(experts * rows, k, q4, false);
    struct cpu_kern kern = make_kern(best_isa(), 2);
    struct kern_weight *w = load(&kern, &m);
    uint16_t *x = make_inputs(n_tok, k);
    int32_t expert[pairs], order[pairs], first[experts + 1] = {0};
    float bias[experts * rows], out[pairs * rows];
    int n = 0;
    for (int i = 0; i < experts * rows; i++)
        bias[i] = (float)i;
    for (int i = 0; i < pairs; i++)
        expert[i] = (int32_t)draw(experts - 1); /* the last one gets nothing */
    for (int32_t e = 0; e < experts; e++) {
        first[e] = n;
        for (int32_t i = 0; i < pairs; i++) {
            if (expert[i] == e)
                order[n++] = i;
        }
    }
    first[experts] = n;
    struct expert_linear_args a = {.n_pairs = pairs, .n_expert = experts, .x_div = used};
    a.order = order;
    a.first = first;
    a.x = x;
    a.w = w;
    a.bias = bias;
    a.out = out;
    a.rows = a.out_stride = rows;
    ck_assert_int_eq(cpu_mma_expert_linear(&kern.base, &a, NULL), ERR_OK);
    for (int i = 0; i < pairs * rows; i++) {
        int row = expert[i / rows] * rows + i % rows;
        float want = reference(m.value + row * k, x + i / rows / used * k, k, &bias[row]);
        ck_assert_uint_eq(f32_bits(out[i]), f32_bits(want));
    }
    cpu_mma_weight_free(&kern.base, w);
    free(x);
    free_matrix(&m);
}
END_TEST

START_TEST(embedding_gives_rule_one)
{
    int32_t id[] = {0, 36, 17, 17};
    for (int form = 0; form < 5; form++) {
        struct matrix m = form > 1 ? make_block(37, 576, fix_blocks[form - 2], FIX_BLOCK_HOSTILE)
                          : form   ? make_dense(37, 576, DT_F32)
                                   : make_affine(37, 576, (struct qformat){3, 32, DT_F16}, true);
        struct cpu_kern kern = make_kern(best_isa(), 2);
        struct kern_weight *w = load(&kern, &m);
        struct kern_rows rows = {.n_tok = 4, .id = id};
        float out[4 * 576];
        struct embed_args a = {.rows = &rows, .w = w, .scale = 1.5f, .out = out};
        ck_assert_int_eq(cpu_mma_embed(&kern.base, &a, NULL), ERR_OK);
        for (int i = 0; i < 4 * 576; i++) {
            float want = 1.5f * bf16_to_f32(m.value[id[i / 576] * 576 + i % 576]);
            ck_assert(f32_bits(out[i]) == f32_bits(want) || (isnan(out[i]) && isnan(want)));
        }
        id[1] = 37;
        struct err e;
        ck_assert_int_eq(cpu_mma_embed(&kern.base, &a, &e), ERR_INTERNAL);
        id[1] = 36;
        cpu_mma_weight_free(&kern.base, w);
        free_matrix(&m);
    }
}
END_TEST

/* ---- the tests can fail -----------------------------------------------------------------------
 */

START_TEST(planted_faults_show)
{
    struct matrix m = _i ? make_block(64, 2048, fix_blocks[_i - 1], FIX_BLOCK_PLAIN)
                         : make_affine(64, 2048, q4, false);
    uint16_t *x = make_inputs(2, 2048);
    kern_plant(KERN_FAULT_CHUNK_ORDER);
    ck_assert_int_gt(count_wrong((struct run){best_isa(), 1, 2, NULL}, &m, x), 0);
    ck_assert_int_eq(count_wrong((struct run){best_isa(), 1, 1, NULL}, &m, x), 0);
    kern_plant(KERN_FAULT_THREAD_ORDER);
    ck_assert_int_gt(count_wrong((struct run){best_isa(), 2, 2, NULL}, &m, x), 0);
    kern_plant(KERN_FAULT_NEIGHBOUR);
    ck_assert_int_gt(count_leaks(&m), 0);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_int_eq(count_wrong((struct run){best_isa(), 2, 2, NULL}, &m, x), 0);
    free(x);
    free_matrix(&m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mma90_linear");
    TCase *c = tcase_create("linear");
    tcase_add_test(c, packed_formats_equal_reference);
    tcase_add_test(c, hostile_scales_equal_reference);
    tcase_add_test(c, dense_equals_reference);
    tcase_add_test(c, row_count_changes_nothing);
    tcase_add_test(c, threads_change_nothing);
    tcase_add_test(c, neighbours_do_not_leak);
    tcase_add_test(c, packed_equals_expanded);
    tcase_add_loop_test(c, block_floats_equal_reference, 0, FIX_BLOCKS);
    tcase_add_test(c, zero_groups_are_plain);
    tcase_add_loop_test(c, experts_equal_reference, 0, 1 + FIX_BLOCKS);
    tcase_add_test(c, embedding_gives_rule_one);
    tcase_add_loop_test(c, planted_faults_show, 0, 1 + FIX_BLOCKS);
    tcase_set_timeout(c, 300);
    suite_add_tcase(s, c);
    return s;
}
