/* test_cuda_attention.c: rule 4 on a CUDA device against the CPU oracle, byte by byte: head sizes,
 * groups of heads, windows, softcaps, sinks; decode, chunks and mixed steps; what later tokens
 * hold. Every step is run by the kernel that the backend chooses and by each that takes its shape;
 * pieces of every length and begin are held to one run of the oracle over all tokens.
 */
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 31};

/* A model's attention and the pages of some sequences, whose lengths are what was written. */
struct setup {
    int n_head, n_kv, hd, window;
    float softcap;
    bool sinks;
    int n_seq, len; /* sequences of len tokens */
    bool reserve;   /* scratch for splits of their own */
};

struct side {
    struct kern *k;
    int32_t *pages;
    void *kv;
    float *sinks;
};

static int pages_max(const struct setup *s)
{
    return (s->len + KERN_PAGE - 1) / KERN_PAGE;
}

/* f32 projections of q, k, v with a few strong keys; kind 1 has values that are not finite from
 * token `spoiled` on, kind 2 any size. */
static float *draw_tokens(const struct setup *s, int kind, int spoiled)
{
    size_t row = (size_t)((s->n_head + 2 * s->n_kv) * s->hd), n = (size_t)(s->n_seq * s->len);
    float *x = fix_floats(&rng, n * row, -2, 2);
    for (size_t i = 0; i < n * row; i++) {
        bool value = i % row >= (size_t)((s->n_head + s->n_kv) * s->hd);
        if (kind == 2)
            x[i] = ldexpf(x[i], (int)rng_below(&rng, 60) - 40);
        if (kind == 1 && (int)(i / row % (size_t)s->len) >= spoiled && rng_below(&rng, 8) == 0)
            x[i] = value && rng_below(&rng, 2) ? -INFINITY : NAN;
    }
    return x;
}

/* Writes tokens [0, len) of every sequence to both sides' pages. Queries are given back, bf16. */
static uint16_t *write_pages(const struct setup *s, struct side side[2], const float *x)
{
    int n = s->n_seq * s->len, np = pages_max(s);
    int64_t stride = (s->n_head + 2 * s->n_kv) * s->hd;
    int32_t *pos = malloc((size_t)n * 4), *seq = malloc((size_t)n * 4);
    int32_t *pages = malloc((size_t)(s->n_seq * np) * 4);
    float *cos_sin = fix_floats(&rng, (size_t)(s->len * s->hd), -1, 1);
    float *sinks = fix_floats(&rng, (size_t)s->n_head, -3, 3);
    uint16_t *q = NULL;
    for (int i = 0; i < n; i++) {
        seq[i] = i / s->len;
        pos[i] = i % s->len;
    }
    for (int i = 0; i < s->n_seq * np; i++)
        pages[i] = (i * 7 + 3) % (s->n_seq * np);
    if (s->n_seq * np % 7 == 0)
        for (int i = 0; i < s->n_seq * np; i++)
            pages[i] = s->n_seq * np - 1 - i;
    for (int i = 0; i < 2; i++) {
        struct side *d = &side[i];
        struct kern *k = d->k;
        size_t q_bytes = (size_t)(n * s->n_head * s->hd) * 2;
        float *dx = rig_put(k, x, (size_t)(n * stride) * 4);
        void *dcs = rig_put(k, cos_sin, (size_t)(s->len * s->hd) * 4);
        d->pages = rig_put(k, pages, (size_t)(s->n_seq * np) * 4);
        d->kv = rig_put(k, NULL, kern_page_bytes(k, s->n_kv, s->hd) * (size_t)(s->n_seq * np));
        d->sinks = s->sinks ? rig_put(k, sinks, (size_t)s->n_head * 4) : NULL;
        struct kern_rows rows = {.n_tok = n,
                                 .pos = rig_put(k, pos, (size_t)n * 4),
                                 .seq = rig_put(k, seq, (size_t)n * 4),
                                 .pages = d->pages,
                                 .n_seq = s->n_seq,
                                 .pages_max = np};
        struct rope_kv_args a = {.rows = &rows,
                                 .n_head = s->n_head,
                                 .n_kv = s->n_kv,
                                 .head_dim = s->hd,
                                 .rot_dim = s->hd / 2 * 2,
                                 .q = dx,
                                 .k = dx + s->n_head * s->hd,
                                 .v = dx + (s->n_head + s->n_kv) * s->hd,
                                 .stride = stride,
                                 .cos_sin = dcs,
                                 .q_out = rig_put(k, NULL, q_bytes),
                                 .kv = d->kv};
        struct err e = {.text = ""};
        fix_ok(kern_rope_kv(k, &a, &e), &e);
        free(q);
        q = rig_get(k, a.q_out, q_bytes);
        kern_free(k, dx);
        kern_free(k, dcs);
        kern_free(k, a.q_out);
        kern_free(k, (void *)rows.pos);
        kern_free(k, (void *)rows.seq);
    }
    free(pos);
    free(seq);
    free(pages);
    free(cos_sin);
    free(sinks);
    return q;
}

/* Rows of one step: token numbers, seq * len + pos. Its outputs on one side. */
static uint16_t *attend(const struct setup *s, const struct side *d, const uint16_t *q,
                        const int32_t *tokens, int n)
{
    size_t row = (size_t)(s->n_head * s->hd), bytes = (size_t)n * row * 2;
    int32_t *pos = malloc((size_t)n * 4), *seq = malloc((size_t)n * 4);
    uint16_t *rows_q = malloc(bytes);
    int64_t keys = 0;
    for (int i = 0; i < n; i++) {
        pos[i] = tokens[i] % s->len;
        keys = MAX2(keys, pos[i] + 1);
        seq[i] = tokens[i] / s->len;
        memcpy(rows_q + (size_t)i * row, q + (size_t)tokens[i] * row, row * 2);
    }
    struct kern_rows rows = {.n_tok = n,
                             .pos = rig_put(d->k, pos, (size_t)n * 4),
                             .seq = rig_put(d->k, seq, (size_t)n * 4),
                             .pages = d->pages,
                             .n_seq = s->n_seq,
                             .pages_max = pages_max(s),
                             .keys_max = s->reserve ? keys : 0};
    struct attention_args a = {.rows = &rows,
                               .n_head = s->n_head,
                               .n_kv = s->n_kv,
                               .head_dim = s->hd,
                               .q = rig_put(d->k, rows_q, bytes),
                               .kv = d->kv,
                               .scale = 1.0f / sqrtf((float)s->hd),
                               .window = s->window,
                               .softcap = s->softcap,
                               .sinks = d->sinks,
                               .out = rig_put(d->k, NULL, bytes)};
    struct err e = {.text = ""};
    fix_ok(kern_attention(d->k, &a, &e), &e);
    uint16_t *out = rig_get(d->k, a.out, bytes);
    kern_free(d->k, (void *)a.q);
    kern_free(d->k, a.out);
    kern_free(d->k, (void *)rows.pos);
    kern_free(d->k, (void *)rows.seq);
    free(pos);
    free(seq);
    free(rows_q);
    return out;
}

/* The same by one of the device's kernels, if it takes the shape. */
static uint16_t *attend_by(const struct setup *s, const struct side *d, const uint16_t *q,
                           const int32_t *tokens, int n, enum cuda_attention_kernel kernel)
{
    cuda_of(d->k)->force_attention = kernel;
    uint16_t *out = attend(s, d, q, tokens, n);
    cuda_of(d->k)->force_attention = CUDA_ATTENTION_AUTO;
    return out;
}

/* Rows of a step against what the oracle has for them. */
static void check_rows(const struct setup *s, const uint16_t *want, const uint16_t *got,
                       const int32_t *tokens, int n, const char *what, int kernel)
{
    size_t row = (size_t)(s->n_head * s->hd);
    int64_t at = rig_differ(want, got, (size_t)n * row, 2);
    ck_assert_msg(at < 0,
                  "%s, kernel %d, %d rows from token %d, %d/%d heads of %d, window %d, cap %g, "
                  "sinks %d: row %lld (token %d) value %lld: %04x, expected %04x",
                  what, kernel, n, tokens[0], s->n_head, s->n_kv, s->hd, s->window,
                  (double)s->softcap, s->sinks, (long long)(at / (int64_t)row),
                  tokens[at / (int64_t)row], (long long)(at % (int64_t)row), got[at], want[at]);
}

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

static void open_sides(const struct setup *s, struct rig *r, struct side side[2])
{
    *r = rig_open();
    for (int i = 0; i < 2; i++)
        side[i] = (struct side){.k = r->side[i]};
    struct kern_limits l = {.n_tok = 64,
                            .n_seq = s->n_seq,
                            .pages_max = pages_max(s),
                            .n_head = s->n_head,
                            .head_dim = s->hd,
                            .k_max = 64,
                            .rows_max = 64};
    struct err e = {.text = ""};
    if (s->reserve)
        fix_ok(kern_reserve(r->side[1], &l, &e), &e);
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

/* ---- the kernel of many rows ------------------------------------------------------------------
 */
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
    {4, 1, 128, 4096, 0, false, 2, 800, false},
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

START_TEST(small_pieces_equal_oracle)
{
    static const struct setup setups_small[] = {{4, 1, 128, 0, 0, true, 2, 150, false},
                                                {4, 2, 64, 70, 0, false, 2, 150, false}};
    static struct pieces p;
    const struct setup *s = &setups_small[_i];
    struct rig r;
    struct side side[2];
    open_sides(s, &r, side);
    float *x = draw_tokens(s, 1, 140);
    uint16_t *q = write_pages(s, side, x), *all = attend_all(s, &side[0], q);
    p.n = 0;
    add_piece(&p, s, 1, 3, 147);
    add_piece(&p, s, 0, 100, 1);
    add_piece(&p, s, 0, 40, 30);
    check_pieces(s, &side[1], q, all, &p, "small step");
    rig_close(&r);
    free(x);
    free(q);
    free(all);
}
END_TEST

/* ---- planted faults ---------------------------------------------------------------------------
 */
/* The same in the kernel of many rows. */
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

/* A planted fault of the splits shows, as it does in the oracle. */
START_TEST(planted_split_edge_is_seen)
{
    struct setup s = {4, 2, 64, 0, 0, false, 1, 600, true};
    struct rig r;
    struct side side[2];
    int32_t tokens[2] = {500, 599};
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x);
    uint16_t *right = attend(&s, &side[1], q, tokens, 2);
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    uint16_t *wrong = attend(&s, &side[1], q, tokens, 2);
    uint16_t *same = attend(&s, &side[0], q, tokens, 2);
    kern_plant(KERN_FAULT_NONE);
    ck_assert(memcmp(right, wrong, (size_t)(2 * s.n_head * s.hd) * 2) != 0);
    ck_assert_mem_eq(same, wrong, (size_t)(2 * s.n_head * s.hd) * 2);
    free(right);
    free(wrong);
    free(same);
    free(q);
    free(x);
    rig_close(&r);
}
END_TEST

/* The same in a step of single tokens, whose splits stand apart and are joined. */
START_TEST(planted_join_order_is_seen)
{
    struct setup s = {8, 2, 128, 0, 0, false, 2, 900, true};
    struct rig r;
    struct side side[2];
    int32_t tokens[2] = {899, 1799};
    open_sides(&s, &r, side);
    float *x = draw_tokens(&s, 0, 0);
    uint16_t *q = write_pages(&s, side, x);
    uint16_t *right = attend(&s, &side[1], q, tokens, 2);
    kern_plant(KERN_FAULT_SPLIT_EDGE);
    uint16_t *wrong = attend(&s, &side[1], q, tokens, 2);
    kern_plant(KERN_FAULT_NONE);
    ck_assert(memcmp(right, wrong, (size_t)(2 * s.n_head * s.hd) * 2) != 0);
    free(right);
    free(wrong);
    free(q);
    free(x);
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, values_not_finite_equal_oracle, 3, 4);
    tcase_add_loop_test(c, values_not_finite_equal_oracle, 16, 17);
    tcase_add_loop_test(c, every_geometry_equals_oracle, 9, 10);
    tcase_add_loop_test(c, every_geometry_equals_oracle, 20, 22);
    tcase_add_loop_test(c, values_not_finite_equal_oracle, 21, 22);
    tcase_add_loop_test(c, small_pieces_equal_oracle, 0, 2);
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, every_geometry_equals_oracle, 0, ARRAY_LEN(setups));
    tcase_add_loop_test(c, values_not_finite_equal_oracle, 0, ARRAY_LEN(setups));
    tcase_add_test(c, later_tokens_do_not_reach_earlier_rows);
    tcase_add_test(c, rows_do_not_depend_on_step);
    tcase_add_loop_test(c, pieces_equal_oracle, 0, ARRAY_LEN(many));
    tcase_add_test(c, long_step_equals_oracle);
    tcase_add_test(c, planted_split_edge_is_seen);
    tcase_add_test(c, planted_split_edge_is_seen_in_pieces);
    tcase_add_test(c, planted_join_order_is_seen);
}

Suite *test_suite(void)
{
    return rig_suite("cuda attention", add_tests, add_small);
}
