/* pack_run.c: the actions of a plan on a run of rows. */
#include "quant/pack_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void pack_scratch_free(struct pack_scratch *s)
{
    free(s->source);
    free(s->decoded);
    memset(s, 0, sizeof *s);
}

static enum err_code reserve(struct pack_scratch *s, size_t elems, struct err *e)
{
    if (elems <= s->elems)
        return ERR_OK;
    pack_scratch_free(s);
    s->source = malloc(elems * sizeof(float));
    s->decoded = malloc(elems * sizeof(float));
    if (!s->source || !s->decoded)
        return err_set(e, ERR_NOMEM, "out of memory: %zu values of a run", elems);
    s->elems = elems;
    return ERR_OK;
}

bool pack_run_is_plain_copy(const struct plan_item *it)
{
    return it->action == PLAN_COPY && it->w->rope_heads == 0 && !it->w->blocks;
}

void pack_run_decode(struct qformat q, int64_t k, int64_t n, const uint8_t *codes,
                     const uint8_t *scales, const uint8_t *biases, float *out)
{
    int64_t groups = k / q.group;
    for (int64_t row = 0; row < n; row++) {
        const uint8_t *c = codes + (size_t)row * qformat_row_bytes(q, k);
        for (int64_t g = 0; g < groups; g++) {
            float s = qformat_scale(scales, q.scale, row * groups + g);
            float b = qformat_scale(biases, q.scale, row * groups + g);
            for (int64_t i = g * q.group; i < (g + 1) * q.group; i++)
                out[row * k + i] = fmaf((float)qformat_code(c, q.bits, i), s, b);
        }
    }
}

static void copy_rows(const struct plan_item *it, int64_t row0, int64_t n,
                      const struct pack_dest *to)
{
    size_t bytes = (size_t)it->code_bytes / (size_t)it->rows; /* dense rows are whole bytes */
    size_t scales = (size_t)it->scale_bytes / (size_t)it->rows;
    for (int64_t r = row0; r < row0 + n; r++) {
        struct ckpt_block at;
        size_t i = (size_t)(r - to->first);
        ckpt_weight_at(it->w, ckpt_weight_row(it->w, r), &at);
        memcpy(to->codes + i * bytes, at.data, bytes);
        if (scales) {
            memcpy(to->scales + i * scales, at.scales, scales);
            memcpy(to->biases + i * scales, at.biases, scales);
        }
    }
}

static enum err_code finite_or_refuse(const float *v, int64_t n, int64_t first, struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(e, ERR_INPUT, "element %lld: found %s, expected a finite value",
                           (long long)(first + i),
                           isnan(v[i]) ? "NaN"
                           : v[i] > 0  ? "+Inf"
                                       : "-Inf");
    return ERR_OK;
}

/* Bytes of a packed row's scales. */
static size_t scale_row_bytes(struct qformat q, int64_t k)
{
    return (size_t)(k / q.group) * (size_t)dtype_bits(q.scale) / 8;
}

/* Rule 1 of docs/numerics.md for expanded weights: the bf16 form comes from code, scale and bias
 * at once, never through a rounded f32. */
static void round_affine_bf16(struct qformat q, int64_t k, int64_t n, const uint8_t *codes,
                              const uint8_t *scales, const uint8_t *biases, uint8_t *out)
{
    int64_t groups = k / q.group;
    for (int64_t row = 0; row < n; row++) {
        const uint8_t *c = codes + (size_t)row * qformat_row_bytes(q, k);
        for (int64_t g = 0; g < groups; g++) {
            float s = qformat_scale(scales, q.scale, row * groups + g);
            float b = qformat_scale(biases, q.scale, row * groups + g);
            uint16_t value[256];
            bool table = 1 << q.bits <= q.group; /* fewer points than elements */
            for (uint32_t code = 0; table && code < 1u << q.bits; code++)
                value[code] = qformat_bf16(code, s, b, q.scale);
            for (int64_t i = g * q.group; i < (g + 1) * q.group; i++) {
                uint32_t code = qformat_code(c, q.bits, i);
                uint16_t v = table ? value[code] : qformat_bf16(code, s, b, q.scale);
                store_u16(out + 2 * (row * k + i), v);
            }
        }
    }
}

static void round_values(const float *v, int64_t n, enum dtype t, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        if (t == DT_F32)
            store_u32(out + 4 * i, f32_bits(v[i]));
        else
            store_u16(out + 2 * i, t == DT_BF16 ? bf16_from_f32(v[i]) : f16_from_f32(v[i]));
    }
}

/* The affine form of a weight's rows, when it has one: its own bytes, or those of the GGML blocks
 * repacked into *owned. */
struct affine_rows {
    struct qformat q;
    const uint8_t *codes, *scales, *biases;
    uint8_t *owned;
};

static enum err_code find_affine(const struct ckpt_weight *w, int64_t k, int64_t row0, int64_t n,
                                 struct affine_rows *a, bool *found, struct err *e)
{
    memset(a, 0, sizeof *a);
    *found = w->enc == CKPT_AFFINE || (w->enc == CKPT_GGML && ggml_affine_format(w, &a->q));
    if (!*found)
        return ERR_OK;
    if (w->enc == CKPT_AFFINE) {
        struct ckpt_block at;
        ckpt_weight_at(w, row0, &at);
        a->q = w->q;
        a->codes = at.data;
        a->scales = at.scales;
        a->biases = at.biases;
        return ERR_OK;
    }
    size_t codes = (size_t)n * qformat_row_bytes(a->q, k);
    size_t scales = (size_t)n * scale_row_bytes(a->q, k);
    a->owned = malloc(codes + 2 * scales);
    if (!a->owned)
        return err_set(e, ERR_NOMEM, "out of memory: %zu bytes of a run", codes + 2 * scales);
    ggml_affine_rows(w, a->q, row0, n, a->owned, a->owned + codes, a->owned + codes + scales);
    a->codes = a->owned;
    a->scales = a->owned + codes;
    a->biases = a->owned + codes + scales;
    return ERR_OK;
}

static enum err_code expand_rows(const struct plan_item *it, int64_t row0, int64_t n,
                                 const struct pack_dest *to, struct pack_scratch *s,
                                 struct errstat *st, struct err *e)
{
    int64_t elems = n * it->k, first = row0 * it->k;
    size_t row_bytes = (size_t)it->k * (size_t)dtype_bits(it->dtype) / 8;
    uint8_t *out = to->codes + (size_t)(row0 - to->first) * row_bytes;
    struct affine_rows a;
    bool affine;
    enum err_code rc = ckpt_weight_decode(it->w, row0, n, s->source, e);
    if (rc == ERR_OK)
        rc = finite_or_refuse(s->source, elems, first, e);
    if (rc == ERR_OK)
        rc = find_affine(it->w, it->k, row0, n, &a, &affine, e);
    if (rc != ERR_OK)
        return rc;
    if (affine && it->dtype == DT_BF16) {
        round_affine_bf16(a.q, it->k, n, a.codes, a.scales, a.biases, out);
    } else {
        if (affine)
            pack_run_decode(a.q, it->k, n, a.codes, a.scales, a.biases, s->decoded);
        round_values(affine ? s->decoded : s->source, elems, it->dtype, out);
    }
    free(a.owned);
    for (int64_t i = 0; i < elems; i++)
        s->decoded[i] = qformat_scale(out, it->dtype, i);
    for (int64_t i = 0; i < elems; i++)
        if (!isfinite(s->decoded[i]))
            return err_set(e, ERR_INPUT, "element %lld: %g does not fit %s", (long long)(first + i),
                           (double)s->source[i], dtype_name(it->dtype));
    errstat_add(st, s->source, s->decoded, elems, 64);
    return ERR_OK;
}

static enum err_code repack_rows(const struct plan_item *it, int64_t row0, int64_t n,
                                 const struct pack_dest *to, struct pack_scratch *s,
                                 struct errstat *st, struct err *e)
{
    size_t row_scales = scale_row_bytes(it->q, it->k);
    size_t at = (size_t)(row0 - to->first);
    uint8_t *codes = to->codes + at * qformat_row_bytes(it->q, it->k);
    uint8_t *scales = to->scales + at * row_scales, *biases = to->biases + at * row_scales;
    ggml_affine_rows(it->w, it->q, row0, n, codes, scales, biases);
    enum err_code rc = ckpt_weight_decode(it->w, row0, n, s->source, e);
    if (rc == ERR_OK)
        rc = finite_or_refuse(s->source, n * it->k, row0 * it->k, e);
    if (rc != ERR_OK)
        return rc;
    pack_run_decode(it->q, it->k, n, codes, scales, biases, s->decoded);
    errstat_add(st, s->source, s->decoded, n * it->k, it->q.group);
    return ERR_OK;
}

static enum err_code encode_rows(const struct plan_item *it, enum affine_isa isa, int64_t row0,
                                 int64_t n, const struct pack_dest *to, struct pack_scratch *s,
                                 struct errstat *st, struct err *e)
{
    const struct ckpt_weight *w = it->w;
    size_t row_scales = scale_row_bytes(it->q, it->k), at = (size_t)(row0 - to->first);
    struct affine_run run = {.q = it->q,
                             .source = DT_F32,
                             .data = s->source,
                             .n_groups = n * (it->k / it->q.group),
                             .codes = to->codes + at * qformat_row_bytes(it->q, it->k),
                             .scales = to->scales + at * row_scales,
                             .biases = to->biases + at * row_scales};
    enum err_code rc = ERR_OK;
    if (w->enc == CKPT_DENSE && !w->rope_heads && !w->minus_one) {
        struct ckpt_block from;
        ckpt_weight_at(w, row0, &from);
        run.source = w->dtype;
        run.data = from.data;
    } else {
        rc = ckpt_weight_decode(w, row0, n, s->source, e);
    }
    if (rc != ERR_OK)
        return rc;
    int64_t bad = 0;
    rc = affine_encode(isa, &run, st, &bad, e);
    bad += row0 * it->k;
    return err_wrap(e, rc, "element %lld (row %lld, column %lld)", (long long)bad,
                    (long long)(bad / it->k), (long long)(bad % it->k));
}

/* Rows that lie together. */
static enum err_code run_together(const struct plan_item *it, enum affine_isa isa, int64_t row0,
                                  int64_t n, const struct pack_dest *to, struct pack_scratch *s,
                                  struct errstat *st, struct err *e)
{
    if (it->action == PLAN_COPY) {
        copy_rows(it, row0, n, to);
        return ERR_OK;
    }
    bool direct = it->action == PLAN_ENCODE && it->w->enc == CKPT_DENSE && !it->w->rope_heads &&
                  !it->w->minus_one;
    enum err_code rc = direct ? ERR_OK : reserve(s, (size_t)(n * it->k), e);
    if (rc != ERR_OK)
        return rc;
    switch (it->action) {
    case PLAN_REPACK:
        return repack_rows(it, row0, n, to, s, st, e);
    case PLAN_DENSE:
        return expand_rows(it, row0, n, to, s, st, e);
    default:
        return encode_rows(it, isa, row0, n, to, s, st, e);
    }
}

enum err_code pack_run(const struct plan_item *it, enum affine_isa isa, int64_t row0, int64_t n,
                       const struct pack_dest *to, struct pack_scratch *s, struct errstat *st,
                       struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int64_t at = row0, some; rc == ERR_OK && at < row0 + n; at += some) {
        struct ckpt_block unused;
        some = it->w->blocks ? ckpt_weight_at(it->w, at, &unused) : n;
        some = MIN2(some, row0 + n - at);
        rc = run_together(it, isa, at, some, to, s, st, e);
    }
    return rc;
}
