/* test_mma90_attention.c: rule 4 in mma90 against a plain reference built on mma90_step and elem.h,
 * and its invariances: chunks, decode, neighbours, threads, page tables.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/rng.h"
#include "kernels/cpu/cpu_mma_private.h"
#include "kernels/elem.h"
#include "tests/check_main.h"

static struct rng rng = {.seed = 4};

static void *get(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    ck_assert_ptr_nonnull(p);
    return p;
}

static enum cpu_isa best_isa(void)
{
    return cpu_isa_runs(CPU_AVX512) ? CPU_AVX512 : cpu_isa_runs(CPU_AVX2) ? CPU_AVX2 : CPU_C;
}

/* ---- a sequence -------------------------------------------------------------------------------
 */

/* n positions of one sequence: f32 projections as a linear layer gives them, the values that rope
 * and rounding make of them, and pages in a scrambled order. */
struct sequence {
    int n, n_head, n_kv, hd, rot, window;
    float scale, softcap;
    const float *sinks;
    float *x;       /* [n][(n_head + 2 n_kv) * hd]: q, k, v */
    float *cos_sin; /* [n][rot] */
    uint16_t *q, *k, *v;
    int pages_max;
    int32_t *pages;
    uint8_t *kv;
};

static int64_t stride_of(const struct sequence *s)
{
    return (int64_t)(s->n_head + 2 * s->n_kv) * s->hd;
}

static uint16_t rotated(const struct sequence *s, const float *head, const float *cs, int d)
{
    int half = s->rot / 2;
    if (d >= s->rot)
        return bf16_from_f32(head[d]);
    if (d < half)
        return bf16_from_f32(elem_rope_first(head[d], head[half + d], cs[d], cs[half + d]));
    d -= half;
    return bf16_from_f32(elem_rope_second(head[d], head[half + d], cs[d], cs[half + d]));
}

static void fill(struct sequence *s)
{
    int64_t stride = stride_of(s), nq = (int64_t)s->n_head * s->hd, nk = (int64_t)s->n_kv * s->hd;
    for (int64_t i = 0; i < s->n * stride; i++)
        s->x[i] = (float)rng_normal(&rng) * 2;
    for (int64_t i = 0; i < (int64_t)s->n * s->rot; i++)
        s->cos_sin[i] = (float)(2 * rng_double(&rng) - 1);
    for (int64_t t = 0; t < s->n; t++) {
        const float *row = s->x + t * stride, *cs = s->cos_sin + t * s->rot;
        for (int64_t i = 0; i < nq; i++)
            s->q[t * nq + i] = rotated(s, row + i / s->hd * s->hd, cs, (int)(i % s->hd));
        for (int64_t i = 0; i < nk; i++) {
            s->k[t * nk + i] = rotated(s, row + nq + i / s->hd * s->hd, cs, (int)(i % s->hd));
            s->v[t * nk + i] = bf16_from_f32(row[nq + nk + i]);
        }
    }
}

static struct cpu_kern make_kern(enum cpu_isa isa, int threads)
{
    struct cpu_kern k = {.base = {.arith = KERN_MMA90, .threads = threads}, .isa = isa};
    return k;
}

static size_t page_bytes(const struct sequence *s)
{
    return cpu_mma_page_bytes(NULL, s->n_kv, s->hd);
}

/* Geometry is set by the caller; memory and contents here. Page 0 stays unused. */
static void make_sequence(struct sequence *s)
{
    size_t n = (size_t)s->n, hd = (size_t)s->hd;
    s->pages_max = (s->n + KERN_PAGE - 1) / KERN_PAGE;
    s->x = get(n * (size_t)stride_of(s) * 4);
    s->cos_sin = get(n * (size_t)s->rot * 4);
    s->q = get(n * hd * (size_t)s->n_head * 2);
    s->k = get(n * hd * (size_t)s->n_kv * 2);
    s->v = get(n * hd * (size_t)s->n_kv * 2);
    s->pages = get((size_t)s->pages_max * 4);
    s->kv = get((size_t)(s->pages_max + 1) * page_bytes(s));
    for (int i = 0; i < s->pages_max; i++)
        s->pages[i] = i % 2 ? (i + 1) / 2 : s->pages_max - i / 2;
    fill(s);
}

static void free_sequence(struct sequence *s)
{
    free(s->x);
    free(s->cos_sin);
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->pages);
    free(s->kv);
}

/* Rows [t0, t0 + n) are written to the pages and then attend. Gives their outputs. */
static uint16_t *run_rows(const struct sequence *s, struct cpu_kern *kern, int t0, int n)
{
    size_t row = (size_t)s->n_head * (size_t)s->hd;
    int32_t *pos = get((size_t)n * 4), *seq = get((size_t)n * 4);
    uint16_t *q = get((size_t)n * row * 2), *out = get((size_t)n * row * 2);
    int64_t stride = stride_of(s);
    struct kern_rows rows = {.n_tok = n, .pos = pos, .seq = seq, .pages = s->pages};
    rows.n_seq = 1;
    rows.pages_max = s->pages_max;
    for (int i = 0; i < n; i++)
        pos[i] = t0 + i;
    const float *x = s->x + t0 * stride;
    struct rope_kv_args r = {.rows = &rows, .n_head = s->n_head, .n_kv = s->n_kv};
    r.head_dim = s->hd;
    r.rot_dim = s->rot;
    r.q = x;
    r.k = x + row;
    r.v = r.k + (size_t)s->n_kv * (size_t)s->hd;
    r.stride = stride;
    r.cos_sin = s->cos_sin;
    r.q_out = q;
    r.kv = s->kv;
    ck_assert_int_eq(cpu_mma_rope_kv(&kern->base, &r, NULL), ERR_OK);
    ck_assert_mem_eq(q, s->q + (size_t)t0 * row, (size_t)n * row * 2);
    /* Queries alone, as a layer turns them that looks at another one's pages. */
    memset(q, 0, (size_t)n * row * 2);
    r.n_kv = 0;
    r.k = r.v = r.kv = NULL;
    ck_assert_int_eq(cpu_mma_rope_kv(&kern->base, &r, NULL), ERR_OK);
    ck_assert_mem_eq(q, s->q + (size_t)t0 * row, (size_t)n * row * 2);
    struct attention_args a = {.rows = &rows, .n_head = s->n_head, .n_kv = s->n_kv};
    a.head_dim = s->hd;
    a.q = q;
    a.kv = s->kv;
    a.scale = s->scale;
    a.window = s->window;
    a.softcap = s->softcap;
    a.sinks = s->sinks;
    a.out = out;
    ck_assert_int_eq(cpu_mma_attention(&kern->base, &a, NULL), ERR_OK);
    free(pos);
    free(seq);
    free(q);
    return out;
}

/* The whole sequence, cut into pieces of at most `piece` rows. */
static uint16_t *run_all(const struct sequence *s, struct cpu_kern *kern, int piece)
{
    size_t row = (size_t)s->n_head * (size_t)s->hd;
    uint16_t *all = get((size_t)s->n * row * 2);
    memset(s->kv, 0, (size_t)(s->pages_max + 1) * page_bytes(s));
    for (int t = 0; t < s->n; t += piece) {
        int n = MIN2(piece, s->n - t);
        uint16_t *out = run_rows(s, kern, t, n);
        memcpy(all + (size_t)t * row, out, (size_t)n * row * 2);
        free(out);
    }
    return all;
}

/* ---- the reference ----------------------------------------------------------------------------
 */

struct plain {
    float m, l, o[KERN_HEAD_MAX];
};

static const uint16_t *kv_row(const struct sequence *s, const uint16_t *x, int key, int kv)
{
    return x + ((int64_t)key * s->n_kv + kv) * s->hd;
}

static float plain_score(const struct sequence *s, const uint16_t *q, const uint16_t *key)
{
    uint32_t acc = 0;
    for (int d = 0; d < s->hd; d += MMA90_K) {
        uint16_t a[MMA90_K] = {0}, b[MMA90_K] = {0};
        size_t n = (size_t)MIN2(s->hd - d, MMA90_K) * 2;
        memcpy(a, q + d, n);
        memcpy(b, key + d, n);
        acc = mma90_step(a, b, acc);
    }
    float v = f32_from_bits(acc);
    return s->softcap > 0 ? elem_softcap(s->scale * v, s->softcap) : v;
}

/* Four steps of P against one column (dim d of V, or ones for d < 0). */
static float plain_weigh(const struct sequence *s, const uint16_t *p, int tile, int kv, int d,
                         float from)
{
    uint32_t acc = f32_bits(from);
    for (int j = 0; j < KERN_TILE; j += MMA90_K) {
        uint16_t b[MMA90_K];
        for (int i = 0; i < MMA90_K; i++) {
            int key = tile * KERN_TILE + j + i;
            bool out = key >= s->n || p[j + i] == 0; /* V of a masked key counts as +0 */
            b[i] = d < 0 ? 0x3f80 : out ? 0 : kv_row(s, s->v, key, kv)[d];
        }
        acc = mma90_step(p + j, b, acc);
    }
    return f32_from_bits(acc);
}

static void plain_tile(const struct sequence *s, const uint16_t *q, int kv, int tile, int lo,
                       int hi, struct plain *st)
{
    float c = elem_score_factor(s->scale, s->softcap), score[KERN_TILE], m = st->m;
    uint16_t p[KERN_TILE] = {0};
    for (int j = 0; j < KERN_TILE; j++) {
        int key = tile * KERN_TILE + j;
        if (key < lo || key >= hi)
            continue;
        score[j] = plain_score(s, q, kv_row(s, s->k, key, kv));
        m = score[j] > m ? score[j] : m;
    }
    for (int j = 0; j < KERN_TILE; j++) {
        int key = tile * KERN_TILE + j;
        if (key >= lo && key < hi)
            p[j] = bf16_from_f32(elem_exp2_p(fmaf(score[j], c, -(m * c))));
    }
    float f = elem_exp2_full(c * (st->m - m));
    for (int d = 0; d < s->hd; d++)
        st->o[d] = plain_weigh(s, p, tile, kv, d, st->o[d] * f);
    st->l = plain_weigh(s, p, tile, kv, -1, st->l * f);
    st->m = m;
}

static void plain_head(const struct sequence *s, int t, int h, uint16_t *out)
{
    const uint16_t *q = s->q + ((int64_t)t * s->n_head + h) * s->hd;
    int kv = h / (s->n_head / s->n_kv), hi = t + 1;
    int lo = s->window ? MAX2(t - s->window + 1, 0) : 0;
    float c = elem_score_factor(s->scale, s->softcap);
    struct plain total = {.m = -INFINITY};
    for (int split = lo / KERN_SPLIT; split * KERN_SPLIT < hi; split++) {
        struct plain st = {.m = -INFINITY};
        int tile0 = MAX2(split * KERN_SPLIT, lo) / KERN_TILE;
        for (int tile = tile0; tile < (split + 1) * 4 && tile * KERN_TILE < hi; tile++)
            plain_tile(s, q, kv, tile, lo, hi, &st);
        float m = st.m > total.m ? st.m : total.m;
        float ft = elem_exp2_full(c * (total.m - m)), fs = elem_exp2_full(c * (st.m - m));
        for (int d = 0; d < s->hd; d++)
            total.o[d] = fmaf(st.o[d], fs, total.o[d] * ft);
        total.l = fmaf(st.l, fs, total.l * ft);
        total.m = m;
    }
    float scale = 1;
    if (s->sinks) {
        float m2 = total.m * c, s2 = s->sinks[h] * ELEM_LOG2E, top = s2 > m2 ? s2 : m2;
        scale = elem_exp2_full(m2 - top);
        total.l = fmaf(total.l, scale, elem_exp2_full(s2 - top));
    }
    float r = 1.0f / total.l;
    for (int d = 0; d < s->hd; d++)
        out[d] = bf16_from_f32(total.o[d] * scale * r);
}

/* Outputs of row t that differ from the reference. */
static int count_wrong(const struct sequence *s, int t, const uint16_t *row)
{
    int wrong = 0;
    for (int h = 0; h < s->n_head; h++) {
        uint16_t want[KERN_HEAD_MAX];
        plain_head(s, t, h, want);
        for (int d = 0; d < s->hd; d++)
            wrong += row[h * s->hd + d] != want[d];
    }
    return wrong;
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static const float some_sinks[] = {1.5f, -INFINITY, 30.0f, 0.0f, -4.0f, 2.0f};

static const struct sequence shapes[] = {
    {.n = 70, .n_head = 2, .n_kv = 2, .hd = 16, .rot = 16, .scale = 0.25f},
    {.n = 530, .n_head = 6, .n_kv = 2, .hd = 64, .rot = 64, .scale = 0.125f},
    {.n = 300, .n_head = 5, .n_kv = 1, .hd = 24, .rot = 8, .scale = 0.2f},
    {.n = 270, .n_head = 2, .n_kv = 1, .hd = 128, .rot = 128, .scale = 0.088f, .softcap = 30},
    {.n = 600, .n_head = 6, .n_kv = 3, .hd = 32, .rot = 32, .scale = 0.18f, .window = 100},
    {.n = 700, .n_head = 2, .n_kv = 2, .hd = 48, .rot = 0, .scale = 0.144f, .window = 257},
    {.n = 330, .n_head = 6, .n_kv = 2, .hd = 64, .rot = 64, .scale = 0.125f, .sinks = some_sinks},
    {.n = 130, .n_head = 1, .n_kv = 1, .hd = 512, .rot = 512, .scale = 0.044f},
};

START_TEST(shapes_equal_reference)
{
    static const int some[] = {0,   1,   14,  15,  16,  62,  63,  64,
                               100, 254, 255, 256, 257, 319, 511, 512};
    struct sequence s = shapes[_i];
    make_sequence(&s);
    for (int isa = CPU_C; isa < CPU_ISA_COUNT; isa++) {
        if (!cpu_isa_runs((enum cpu_isa)isa))
            continue;
        struct cpu_kern kern = make_kern((enum cpu_isa)isa, 2);
        uint16_t *out = run_all(&s, &kern, isa == CPU_C ? s.n : 97);
        int wrong = 0;
        for (size_t i = 0; i <= ARRAY_LEN(some); i++) {
            int t = i < ARRAY_LEN(some) ? some[i] : s.n - 1;
            if (t < s.n)
                wrong += count_wrong(&s, t, out + (size_t)t * (size_t)(s.n_head * s.hd));
        }
        ck_assert_msg(wrong == 0, "shape %d, %s: %d outputs differ", _i,
                      cpu_isa_name((enum cpu_isa)isa), wrong);
        free(out);
    }
    free_sequence(&s);
}
END_TEST

/* Prompts cut anywhere, and token by token: outputs and the bytes of the pages. */
START_TEST(chunks_change_nothing)
{
    static const int pieces[] = {1, 2, 7, 16, 63, 64, 65, 255, 256, 257, 512, 1023, 1024, 1025};
    struct sequence s = {.n = 1060, .n_head = 3, .n_kv = 1, .hd = 32, .rot = 32, .scale = 0.18f};
    struct cpu_kern kern = make_kern(best_isa(), 2);
    make_sequence(&s);
    size_t bytes = (size_t)s.n * 96 * 2, kv_bytes = (size_t)(s.pages_max + 1) * page_bytes(&s);
    uint16_t *whole = run_all(&s, &kern, s.n);
    uint8_t *kv = get(kv_bytes);
    memcpy(kv, s.kv, kv_bytes);
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        uint16_t *out = run_all(&s, &kern, pieces[i]);
        ck_assert_msg(memcmp(out, whole, bytes) == 0, "pieces of %d", pieces[i]);
        ck_assert_mem_eq(s.kv, kv, kv_bytes);
        free(out);
    }
    free(whole);
    free(kv);
    free_sequence(&s);
}
END_TEST

START_TEST(threads_change_nothing)
{
    struct sequence s = shapes[1];
    make_sequence(&s);
    struct cpu_kern one = make_kern(best_isa(), 1);
    uint16_t *want = run_all(&s, &one, s.n);
    for (int threads = 2; threads < 6; threads++) {
        struct cpu_kern kern = make_kern(best_isa(), threads);
        uint16_t *out = run_all(&s, &kern, threads == 5 ? 1 : 200);
        ck_assert_mem_eq(out, want, (size_t)s.n * (size_t)(s.n_head * s.hd) * 2);
        free(out);
    }
    free(want);
    free_sequence(&s);
}
END_TEST

/* A NaN in a later token of the very same tile leaves the rows before it as they were. */
START_TEST(later_tokens_do_not_leak)
{
    struct sequence s = shapes[1];
    make_sequence(&s);
    struct cpu_kern kern = make_kern(best_isa(), 2);
    uint16_t *want = run_all(&s, &kern, s.n);
    for (int64_t i = 0; i < stride_of(&s); i++)
        s.x[300 * stride_of(&s) + i] = NAN;
    size_t row = (size_t)(s.n_head * s.hd);
    for (size_t i = 0; i < row; i++)
        s.q[300 * row + i] = 0x7fc0;
    uint16_t *out = run_all(&s, &kern, s.n);
    ck_assert_mem_eq(out, want, 300 * row * 2);
    for (size_t i = 300 * row; i < (size_t)s.n * row; i++)
        ck_assert_uint_eq(out[i], 0x7fff); /* what may see it is a NaN, always the same one */
    free(want);
    free(out);
    free_sequence(&s);
}
END_TEST

/* Two sequences in one step, rows interleaved, one of them all NaN. */
START_TEST(neighbours_do_not_leak)
{
    struct sequence s = {.n = 80, .n_head = 2, .n_kv = 1, .hd = 32, .rot = 32, .scale = 0.18f};
    struct cpu_kern kern = make_kern(best_isa(), 2);
    make_sequence(&s);
    uint16_t *want = run_all(&s, &kern, s.n);
    size_t bytes = page_bytes(&s), row = 64;
    uint8_t *kv = get(8 * bytes);
    int32_t pages[] = {s.pages[0], s.pages[1], 5, 6}, pos[8], seq[8];
    uint16_t q[8 * 64], out[8 * 64];
    memcpy(kv, s.kv, 3 * bytes);
    memset(kv + 5 * bytes, 0x7f, 2 * bytes);
    for (int i = 0; i < 8; i++) {
        seq[i] = i % 2;
        pos[i] = 70 + i;
        memcpy(q + (size_t)i * row, s.q + (size_t)pos[i] * row, row * 2);
    }
    struct kern_rows rows = {.n_tok = 8, .pos = pos, .seq = seq, .pages = pages};
    rows.n_seq = 2;
    rows.pages_max = 2;
    struct attention_args a = {.rows = &rows, .n_head = 2, .n_kv = 1, .head_dim = 32};
    a.q = q;
    a.kv = kv;
    a.scale = s.scale;
    a.out = out;
    ck_assert_int_eq(cpu_mma_attention(&kern.base, &a, NULL), ERR_OK);
    for (size_t i = 0; i < 8; i += 2)
        ck_assert_mem_eq(out + i * row, want + (size_t)pos[i] * row, row * 2);
    for (size_t i = row; i < 2 * row; i++)
        ck_assert_uint_gt(out[i] & 0x7fffu, 0x7f00u);
    free(kv);
    free(want);
    free_sequence(&s);
}
END_TEST

START_TEST(planted_split_edge_shows)
{
    struct sequence s = shapes[1];
    make_sequence(&s);
    struct cpu_kern kern = make_kern(best_isa(), 2);
    uint16_t *want = run_all(&s, &kern, s.n);
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    uint16_t *out = run_all(&s, &kern, s.n), *decode = run_all(&s, &kern, 1);
    kern_plant(KERN_FAULT_NONE);
    size_t bytes = (size_t)s.n * (size_t)(s.n_head * s.hd) * 2;
    ck_assert_mem_ne(out, want, bytes);
    ck_assert_mem_eq(decode, want, bytes);
    free(want);
    free(out);
    free(decode);
    free_sequence(&s);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mma90_attention");
    TCase *c = tcase_create("attention");
    tcase_add_loop_test(c, shapes_equal_reference, 0, (int)ARRAY_LEN(shapes));
    tcase_add_test(c, chunks_change_nothing);
    tcase_add_test(c, threads_change_nothing);
    tcase_add_test(c, later_tokens_do_not_leak);
    tcase_add_test(c, neighbours_do_not_leak);
    tcase_add_test(c, planted_split_edge_shows);
    tcase_set_timeout(c, 300);
    suite_add_tcase(s, c);
    return s;
}
