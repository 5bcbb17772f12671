/* attention_rig.h: attention on the CPU oracle and a CUDA device side by side (cuda_rig.h): a
 * model's shape, random tokens in the pages of both, the rows of one step by any of the device's
 * kernels, and their comparison byte by byte.
 */
#ifndef ASSAY_TESTS_ATTENTION_RIG_H
#define ASSAY_TESTS_ATTENTION_RIG_H

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
    uint8_t *room; /* for a step: positions and sequences, queries, outputs */
};

/* Rows of the largest step, a multiple of 8 so that all parts of the room are aligned. */
FIX_FN int room_rows(const struct setup *s)
{
    return (MAX2(s->n_seq * s->len, 1024) + 7) / 8 * 8;
}

FIX_FN int pages_max(const struct setup *s)
{
    return (s->len + KERN_PAGE - 1) / KERN_PAGE;
}

/* f32 projections of q, k, v with a few strong keys; kind 1 has values that are not finite from
 * token `spoiled` on, kind 2 any size. Of kind 3 the order of splits is seen in every output: all
 * scores are 0, and the sums of the first two splits cancel, beside which the others vanish. */
FIX_FN float *draw_tokens(const struct setup *s, int kind, int spoiled)
{
    size_t row = (size_t)((s->n_head + 2 * s->n_kv) * s->hd), n = (size_t)(s->n_seq * s->len);
    float *x = fix_floats(&rng, n * row, -2, 2);
    for (size_t i = 0; i < n * row; i++) {
        bool value = i % row >= (size_t)((s->n_head + s->n_kv) * s->hd);
        if (kind == 2)
            x[i] = ldexpf(x[i], (int)rng_below(&rng, 60) - 40);
        if (kind == 3) {
            int split = (int)(i / row % (size_t)s->len) / KERN_SPLIT;
            bool key = !value && i % row >= (size_t)(s->n_head * s->hd);
            x[i] = key ? 0.0f : !value ? x[i] : split > 1 ? 0x1p-9f : split ? -0x1p17f : 0x1p17f;
        }
        if (kind == 1 && (int)(i / row % (size_t)s->len) >= spoiled && rng_below(&rng, 8) == 0)
            x[i] = value && rng_below(&rng, 2) ? -INFINITY : NAN;
    }
    return x;
}

/* Writes tokens [0, len) of every sequence to both sides' pages. Queries are given back, bf16. */
FIX_FN uint16_t *write_pages(const struct setup *s, struct side side[2], const float *x)
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
FIX_FN uint16_t *attend(const struct setup *s, const struct side *d, const uint16_t *q,
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
    struct err e = {.text = ""};
    ck_assert_int_le(n, room_rows(s));
    uint8_t *at_seq = d->room + room_rows(s) * 4, *at_q = at_seq + room_rows(s) * 4,
            *at_out = at_q + (size_t)room_rows(s) * row * 2;
    fix_ok(kern_upload(d->k, d->room, pos, (size_t)n * 4, &e), &e);
    fix_ok(kern_upload(d->k, at_seq, seq, (size_t)n * 4, &e), &e);
    fix_ok(kern_upload(d->k, at_q, rows_q, bytes, &e), &e);
    fix_ok(kern_fill(d->k, at_out, 0xff, bytes, &e), &e);
    struct kern_rows rows = {.n_tok = n,
                             .pos = (const int32_t *)(void *)d->room,
                             .seq = (const int32_t *)(void *)at_seq,
                             .pages = d->pages,
                             .n_seq = s->n_seq,
                             .pages_max = pages_max(s),
                             .keys_max = s->reserve ? keys : 0};
    struct attention_args a = {.rows = &rows,
                               .n_head = s->n_head,
                               .n_kv = s->n_kv,
                               .head_dim = s->hd,
                               .q = at_q,
                               .kv = d->kv,
                               .scale = 1.0f / sqrtf((float)s->hd),
                               .window = s->window,
                               .softcap = s->softcap,
                               .sinks = d->sinks,
                               .out = at_out};
    fix_ok(kern_attention(d->k, &a, &e), &e);
    uint16_t *out = rig_get(d->k, a.out, bytes);
    free(pos);
    free(seq);
    free(rows_q);
    return out;
}

/* The same by one of the device's kernels, if it takes the shape. */
FIX_FN uint16_t *attend_by(const struct setup *s, const struct side *d, const uint16_t *q,
                           const int32_t *tokens, int n, enum cuda_attention_kernel kernel)
{
    cuda_of(d->k)->force_attention = kernel;
    uint16_t *out = attend(s, d, q, tokens, n);
    cuda_of(d->k)->force_attention = CUDA_ATTENTION_AUTO;
    return out;
}

/* Rows of a step against what the oracle has for them. */
FIX_FN void check_rows(const struct setup *s, const uint16_t *want, const uint16_t *got,
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

FIX_FN void open_sides(const struct setup *s, struct rig *r, struct side side[2])
{
    *r = rig_open();
    for (int i = 0; i < 2; i++) {
        side[i] = (struct side){.k = r->side[i]};
        side[i].room =
            rig_put(side[i].k, NULL, (size_t)room_rows(s) * (size_t)(8 + s->n_head * s->hd * 4));
    }
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

#endif
