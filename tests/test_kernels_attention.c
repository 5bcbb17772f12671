/* test_kernels_attention.c: rule 4 in the f32 arithmetic against a plain reference written from
 * docs/numerics.md: windows, shared KV heads, softcap, sinks; prefill cut anywhere and decode give
 * equal bits in outputs and pages; what stands in slots that a row may not see cannot reach it.
 */
#include <math.h>

#include "kernels/elem.h"
#include "tests/kernels_fixture.h"

struct shape {
    int n_head, n_kv, hd, rot, window;
    float softcap;
    bool sinks;
};

static const struct shape shapes[] = {
    {9, 3, 64, 64, 0, 0, false},  {4, 4, 32, 32, 0, 0, false},    {8, 2, 80, 40, 100, 0, false},
    {5, 1, 12, 12, 0, 30, false}, {6, 3, 128, 128, 300, 0, true}, {2, 1, 256, 64, 1, 20, true},
    {7, 1, 16, 0, 64, 0, true},
};

/* One sequence of n positions: what the linear layers would give, and tables. */
struct sequence {
    const struct shape *s;
    int n;
    int64_t stride;
    float *qkv;     /* [n][stride]: q, k, v */
    float *cos_sin; /* [n][rot] */
    float *sinks;
    int32_t *pages; /* page numbers, not in order */
    int n_pages;
    float scale;
};

static void sequence_init(struct sequence *q, const struct shape *s, int n, uint64_t seed)
{
    struct rng r = {.seed = seed};
    *q = (struct sequence){.s = s, .n = n, .n_pages = (n + KERN_PAGE - 1) / KERN_PAGE};
    q->stride = (int64_t)(s->n_head + 2 * s->n_kv) * s->hd;
    q->qkv = fix_floats(&r, (size_t)n * (size_t)q->stride, -2, 2);
    q->cos_sin = fix_floats(&r, (size_t)n * (size_t)s->rot + 1, -1, 1);
    q->sinks = fix_floats(&r, (size_t)s->n_head, -1, 3);
    q->pages = malloc((size_t)q->n_pages * sizeof *q->pages);
    for (int i = 0; i < q->n_pages; i++)
        q->pages[i] = (i * 7 + 3) % q->n_pages; /* a permutation unless 7 divides n_pages */
    if (q->n_pages % 7 == 0)
        for (int i = 0; i < q->n_pages; i++)
            q->pages[i] = q->n_pages - 1 - i;
    q->scale = 1.0f / sqrtf((float)s->hd);
}

static void sequence_free(struct sequence *q)
{
    free(q->qkv);
    free(q->cos_sin);
    free(q->sinks);
    free(q->pages);
}

/* ---- the reference ------------------------------------------------------------------------------
 */
static void rotate(const struct sequence *q, int pos, const float *x, float *out)
{
    int half = q->s->rot / 2;
    const float *c = q->cos_sin + (int64_t)pos * q->s->rot, *s = c + half;
    memcpy(out, x, (size_t)q->s->hd * sizeof *x);
    for (int i = 0; i < half; i++) {
        out[i] = fmaf(x[i], c[i], -(x[half + i] * s[i]));
        out[half + i] = fmaf(x[half + i], c[i], x[i] * s[i]);
    }
}

struct sums {
    float m, l, o[KERN_HEAD_MAX];
};

/* Keys [k0, k1) of one tile of 64 join the split's sums. kr and v: rotated keys and values. */
static void ref_tile(const struct sequence *q, struct sums *s, const float *query, const float *kr,
                     const float *v, int k0, int k1)
{
    int hd = q->s->hd;
    float c = q->s->softcap > 0 ? ELEM_LOG2E : q->scale * ELEM_LOG2E;
    float score[KERN_TILE], lane[16] = {0}, m = s->m;
    for (int k = k0; k < k1; k++) {
        float x = 0;
        for (int i = 0; i < hd; i++)
            x = fmaf(query[i], kr[(int64_t)k * hd + i], x);
        if (q->s->softcap > 0)
            x = elem_softcap(q->scale * x, q->s->softcap);
        score[k - k0] = x;
        m = x > m ? x : m;
    }
    float f = elem_exp2_full(c * (s->m - m));
    for (int i = 0; i < hd; i++)
        s->o[i] *= f;
    for (int k = k0; k < k1; k++) {
        float p = elem_exp2_full(fmaf(score[k - k0], c, -(m * c)));
        lane[k % 16] += p;
        for (int i = 0; i < hd; i++)
            s->o[i] = fmaf(p, v[(int64_t)k * hd + i], s->o[i]);
    }
    for (int n = 8; n; n /= 2)
        for (int j = 0; j < n; j++)
            lane[j] += lane[j + n];
    s->l = fmaf(s->l, f, lane[0]);
    s->m = m;
}

static void ref_merge(struct sums *t, const struct sums *s, int hd, float c)
{
    float m = s->m > t->m ? s->m : t->m;
    float ft = elem_exp2_full(c * (t->m - m)), fs = elem_exp2_full(c * (s->m - m));
    t->l = fmaf(s->l, fs, t->l * ft);
    for (int i = 0; i < hd; i++)
        t->o[i] = fmaf(s->o[i], fs, t->o[i] * ft);
    t->m = m;
}

/* Output of one head at position pos. */
static void ref_head(const struct sequence *q, int pos, int head, const float *kr, const float *v,
                     float *out)
{
    int hd = q->s->hd, lo = q->s->window && pos >= q->s->window ? pos - q->s->window + 1 : 0;
    float query[KERN_HEAD_MAX];
    float c = q->s->softcap > 0 ? ELEM_LOG2E : q->scale * ELEM_LOG2E;
    static struct sums total, split;
    rotate(q, pos, q->qkv + pos * q->stride + head * hd, query);
    total = (struct sums){.m = -INFINITY};
    for (int s0 = lo / 256 * 256; s0 <= pos; s0 += 256) {
        split = (struct sums){.m = -INFINITY};
        for (int t0 = s0; t0 < s0 + 256; t0 += 64) {
            int k0 = t0 > lo ? t0 : lo, k1 = t0 + 64 < pos + 1 ? t0 + 64 : pos + 1;
            if (k0 < k1)
                ref_tile(q, &split, query, kr, v, k0, k1);
        }
        ref_merge(&total, &split, hd, c);
    }
    float a = 1;
    if (q->s->sinks) {
        float m2 = total.m * c, s2 = q->sinks[head] * ELEM_LOG2E, t = m2 > s2 ? m2 : s2;
        a = elem_exp2_full(m2 - t);
        total.l = fmaf(total.l, a, elem_exp2_full(s2 - t));
    }
    float inv = 1.0f / total.l;
    for (int i = 0; i < hd; i++)
        out[i] = (total.o[i] * a) * inv;
}

/* Rows `first`, first + step, ... of [n][n_head * hd]. */
static void ref_rows(const struct sequence *q, int first, int step, float *out)
{
    int hd = q->s->hd, rep = q->s->n_head / q->s->n_kv;
    float *kr = malloc((size_t)q->n * (size_t)hd * sizeof *kr);
    float *v = malloc((size_t)q->n * (size_t)hd * sizeof *v);
    for (int kv = 0; kv < q->s->n_kv; kv++) {
        for (int p = 0; p < q->n; p++) {
            const float *row = q->qkv + p * q->stride + q->s->n_head * hd;
            rotate(q, p, row + kv * hd, kr + (int64_t)p * hd);
            memcpy(v + (int64_t)p * hd, row + (q->s->n_kv + kv) * hd, (size_t)hd * sizeof *v);
        }
        for (int p = first; p < q->n; p += step)
            for (int h = kv * rep; h < (kv + 1) * rep; h++)
                ref_head(q, p, h, kr, v, out + ((int64_t)p * q->s->n_head + h) * hd);
    }
    free(kr);
    free(v);
}

/* ---- the kernels
 * ---------------------------------------------------------------------------------- */
static void run_step(struct kern *k, const struct sequence *q, int from, int to, void *kv,
                     float *q_rot, float *out)
{
    int n = to - from;
    int32_t *pos = malloc((size_t)n * sizeof *pos), *seq = calloc((size_t)n, sizeof *seq);
    for (int i = 0; i < n; i++)
        pos[i] = from + i;
    struct kern_rows rows = {
        .n_tok = n, .pos = pos, .seq = seq, .pages = q->pages, .n_seq = 1, .pages_max = q->n_pages};
    const float *at = q->qkv + from * q->stride;
    int64_t width = (int64_t)q->s->n_head * q->s->hd;
    struct err e = {.text = ""};
    struct rope_kv_args ra = {.rows = &rows,
                              .n_head = q->s->n_head,
                              .n_kv = q->s->n_kv,
                              .head_dim = q->s->hd,
                              .rot_dim = q->s->rot,
                              .q = at,
                              .k = at + width,
                              .v = at + width + q->s->n_kv * q->s->hd,
                              .stride = q->stride,
                              .cos_sin = q->cos_sin,
                              .q_out = q_rot,
                              .kv = kv};
    fix_ok(kern_rope_kv(k, &ra, &e), &e);
    /* Queries alone, as a layer turns them that looks at another one's pages. */
    float *alone = calloc((size_t)(n * width), sizeof *alone);
    struct rope_kv_args qa = ra;
    qa.n_kv = 0;
    qa.k = qa.v = qa.kv = NULL;
    qa.q_out = alone;
    fix_ok(kern_rope_kv(k, &qa, &e), &e);
    ck_assert_int_eq(fix_diff(alone, q_rot, (size_t)(n * width)), -1);
    free(alone);
    struct attention_args aa = {.rows = &rows,
                                .n_head = q->s->n_head,
                                .n_kv = q->s->n_kv,
                                .head_dim = q->s->hd,
                                .q = q_rot,
                                .kv = kv,
                                .scale = q->scale,
                                .window = q->s->window,
                                .softcap = q->s->softcap,
                                .sinks = q->s->sinks ? q->sinks : NULL,
                                .out = out + from * width};
    fix_ok(kern_attention(k, &aa, &e), &e);
    free(pos);
    free(seq);
}

/* Runs the sequence in steps of the given lengths (the last repeats); gives outputs and pages. */
struct result {
    float *out;
    float *kv;
    size_t n_out, n_kv;
};

static struct result run_cuts(const struct sequence *q, const char *isa, int threads,
                              const int *cuts, int n_cuts)
{
    struct kern *k = fix_open(KERN_F32, isa, threads);
    struct err e = {.text = ""};
    size_t page = kern_page_bytes(k, q->s->n_kv, q->s->hd), bytes = page * (size_t)q->n_pages;
    struct result r = {.n_out = (size_t)(q->n * q->s->n_head * q->s->hd), .n_kv = bytes / 4};
    void *kv;
    fix_ok(kern_alloc(k, bytes, &kv, &e), &e);
    r.out = calloc(r.n_out, sizeof(float));
    float *q_rot = calloc(r.n_out, sizeof(float));
    for (int at = 0, i = 0; at < q->n; i++) {
        int len = cuts[MIN2(i, n_cuts - 1)];
        int to = MIN2(q->n, at + len);
        run_step(k, q, at, to, kv, q_rot, r.out);
        at = to;
    }
    r.kv = malloc(bytes);
    fix_ok(kern_download(k, r.kv, kv, bytes, &e), &e);
    kern_free(k, kv);
    kern_close(k);
    free(q_rot);
    return r;
}

static void result_free(struct result *r)
{
    free(r->out);
    free(r->kv);
}

START_TEST(attention_equals_the_reference)
{
    const struct shape *s = &shapes[_i];
    struct sequence q;
    sequence_init(&q, s, 530, (uint64_t)_i + 3);
    float *want = calloc((size_t)(q.n * s->n_head * s->hd), sizeof(float));
    int step = 13, whole[] = {1024};
    ref_rows(&q, 3, step, want);
    for (const char *const *isa = kern_isa_list(); *isa; isa++) {
        struct result r = run_cuts(&q, *isa, 2, whole, 1);
        int64_t width = (int64_t)s->n_head * s->hd;
        for (int p = 3; p < q.n; p += step) {
            int64_t at = fix_diff(want + p * width, r.out + p * width, (size_t)width);
            ck_assert_msg(at < 0, "%s: position %d, element %lld: %a, expected %a", *isa, p,
                          (long long)at, (double)r.out[p * width + at],
                          (double)want[p * width + at]);
        }
        result_free(&r);
    }
    free(want);
    sequence_free(&q);
}
END_TEST

static const int cut_whole[] = {2048}, cut_one[] = {1}, cut_255[] = {255, 1, 1, 2048},
                 cut_256[] = {256, 2048}, cut_257[] = {257, 2048}, cut_1023[] = {1023, 1, 1},
                 cut_1025[] = {1025, 2048}, cut_17[] = {17};

/* How many outputs and page words differ between one prefill and other ways to cut it. */
static int64_t count_cut_differences(const struct shape *s, const char *isa)
{
    static const struct {
        const int *cuts;
        int n;
    } ways[] = {{cut_one, 1},  {cut_255, 4},  {cut_256, 2}, {cut_257, 2},
                {cut_1023, 3}, {cut_1025, 2}, {cut_17, 1}};
    struct sequence q;
    sequence_init(&q, s, 1030, 77);
    struct result whole = run_cuts(&q, isa, 1, cut_whole, 1);
    int64_t n_diff = 0;
    for (size_t w = 0; w < ARRAY_LEN(ways); w++) {
        struct result r = run_cuts(&q, isa, w % 2 ? 2 : 1, ways[w].cuts, ways[w].n);
        for (size_t i = 0; i < r.n_out; i++)
            n_diff += !fix_same(r.out[i], whole.out[i]);
        for (size_t i = 0; i < r.n_kv; i++)
            n_diff += !fix_same(r.kv[i], whole.kv[i]);
        result_free(&r);
    }
    result_free(&whole);
    sequence_free(&q);
    return n_diff;
}

START_TEST(a_prompt_may_be_cut_anywhere)
{
    for (const char *const *isa = kern_isa_list(); *isa; isa++)
        if (isa[1] == NULL || _i == 3) /* every variant on the smallest, the best on all */
            ck_assert_int_eq(count_cut_differences(&shapes[_i], *isa), 0);
}
END_TEST

START_TEST(a_moved_split_edge_is_seen)
{
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    ck_assert_int_gt(count_cut_differences(&shapes[3], "auto"), 0);
    kern_plant(KERN_FAULT_NONE);
}
END_TEST

START_TEST(variants_give_the_same_bits_and_pages)
{
    struct sequence q;
    sequence_init(&q, &shapes[_i], 300, 5);
    struct result c = run_cuts(&q, "c", 1, cut_whole, 1);
    for (const char *const *isa = kern_isa_list(); *isa; isa++)
        for (int threads = 1; threads <= 3; threads++) {
            struct result r = run_cuts(&q, *isa, threads, cut_17, 1);
            ck_assert_int_eq(fix_diff(c.out, r.out, c.n_out), -1);
            ck_assert_int_eq(fix_diff(c.kv, r.kv, c.n_kv), -1);
            result_free(&r);
        }
    result_free(&c);
    sequence_free(&q);
}
END_TEST

/* NaN in later positions of the same page, and in keys that the window has passed, stay there. */
START_TEST(what_a_row_may_not_see_cannot_reach_it)
{
    struct shape s = {4, 2, 64, 64, 50, 0, false};
    struct sequence clean, dirty;
    sequence_init(&clean, &s, 200, 9);
    sequence_init(&dirty, &s, 200, 9);
    for (int64_t i = 0; i < dirty.stride; i++) {
        dirty.qkv[10 * dirty.stride + i] = NAN;  /* left behind by the window from 60 on */
        dirty.qkv[150 * dirty.stride + i] = NAN; /* ahead of everything before it */
    }
    for (const char *const *isa = kern_isa_list(); *isa; isa++) {
        struct result a = run_cuts(&clean, *isa, 2, cut_whole, 1);
        struct result b = run_cuts(&dirty, *isa, 2, cut_whole, 1);
        size_t width = (size_t)s.n_head * (size_t)s.hd;
        ck_assert_int_eq(fix_diff(a.out, b.out, 10 * width), -1);
        ck_assert_int_eq(fix_diff(a.out + 60 * width, b.out + 60 * width, 90 * width), -1);
        ck_assert_float_nan(b.out[30 * width]);
        ck_assert_float_nan(b.out[160 * width + 5]);
        result_free(&a);
        result_free(&b);
    }
    sequence_free(&clean);
    sequence_free(&dirty);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels_attention");
    TCase *t = tcase_create("attention");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, attention_equals_the_reference, 0, (int)ARRAY_LEN(shapes));
    tcase_add_loop_test(t, a_prompt_may_be_cut_anywhere, 0, 4);
    tcase_add_test(t, a_moved_split_edge_is_seen);
    tcase_add_loop_test(t, variants_give_the_same_bits_and_pages, 0, (int)ARRAY_LEN(shapes));
    tcase_add_test(t, what_a_row_may_not_see_cannot_reach_it);
    suite_add_tcase(s, t);
    return s;
}
