/* pack_run.c: the actions of a plan on a run of rows. */
#include "quant/pack_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "quant/block.h"

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
    return it->action == PLAN_COPY && ckpt_weight_in_order(it->w);
}

/* A group of a block float; codes of 4 bits by a table of their sixteen values. */
static void decode_block(int bits, const uint8_t *codes, int n, float s, float *out)
{
    float value[16];
    for (uint32_t c = 0; bits == 4 && c < 16; c++)
        value[c] = e2m1_to_f32(c) * s;
    for (int i = 0; bits == 4 && i < n; i += 2) {
        out[i] = value[codes[i / 2] & 15];
        out[i + 1] = value[codes[i / 2] >> 4];
    }
    for (int i = 0; bits == 8 && i < n; i++)
        out[i] = e4m3_to_f32(codes[i]) * s;
}

void pack_run_decode(const struct pack_rows *r, float *out)
{
    const struct qformat q = r->q;
    int64_t groups = r->k / q.group;
    for (int64_t row = 0; row < r->n; row++) {
        const uint8_t *c = r->codes + (size_t)row * qformat_row_bytes(q, r->k);
        float global = r->globals ? r->globals[row] : 1.0f, *to = out + row * r->k;
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = row * groups + g;
            float s = qformat_scale(r->scales, q.scale, at);
            if (qformat_is_block(q)) {
                const uint8_t *at_codes = c + g * q.group / 8 * q.bits;
                decode_block(q.bits, at_codes, q.group, s * global, to + g * q.group);
                continue;
            }
            float b = qformat_scale(r->biases, q.scale, at);
            for (int64_t i = g * q.group; i < (g + 1) * q.group; i++)
                to[i] = fmaf((float)qformat_code(c, q.bits, i), s, b);
        }
    }
}

/* Rows of a weight that do not lie in order: a GGUF's rope rows, parts of a stored tensor. */
static void copy_rows(const struct plan_item *it, int64_t row0, int64_t n,
                      const struct pack_dest *to)
{
    const struct ckpt_weight *w = it->w;
    size_t bytes = (size_t)it->code_bytes / (size_t)it->rows; /* dense rows are whole bytes */
    size_t scales = (size_t)it->scale_bytes / (size_t)it->rows;
    for (int64_t r = row0; r < row0 + n; r++) {
        struct ckpt_block at;
        size_t i = (size_t)(r - to->first);
        if (w->enc == CKPT_DENSE) {
            ckpt_weight_stored_row(w, r, to->codes + i * bytes);
            continue;
        }
        ckpt_weight_at(w, ckpt_weight_row(w, r), &at);
        memcpy(to->codes + i * bytes, at.data, bytes);
        if (at.scales)
            memcpy(to->scales + i * scales, at.scales, scales);
        if (at.biases)
            memcpy(to->biases + i * scales, at.biases, scales);
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

/* Rule 1 of docs/numerics.md for expanded weights: the bf16 form comes from code and scales at
 * once, never through a rounded f32. second: the bias, or the global scale. */
static uint16_t round_code(struct qformat q, uint32_t code, float s, float second)
{
    if (qformat_is_block(q))
        return qformat_block_bf16(qformat_element(q.bits, code), s, second);
    return qformat_bf16(code, s, second, q.scale);
}

static void round_packed_bf16(const struct pack_rows *r, uint8_t *out)
{
    const struct qformat q = r->q;
    int64_t groups = r->k / q.group;
    bool table = 1 << q.bits <= q.group; /* fewer points than elements */
    for (int64_t row = 0; row < r->n; row++) {
        const uint8_t *c = r->codes + (size_t)row * qformat_row_bytes(q, r->k);
        float second = r->globals ? r->globals[row] : 1.0f;
        for (int64_t g = 0; g < groups; g++) {
            float s = qformat_scale(r->scales, q.scale, row * groups + g);
            uint16_t value[256];
            if (!qformat_is_block(q))
                second = qformat_scale(r->biases, q.scale, row * groups + g);
            for (uint32_t code = 0; table && code < 1u << q.bits; code++)
                value[code] = round_code(q, code, s, second);
            for (int64_t i = g * q.group; i < (g + 1) * q.group; i++) {
                uint32_t code = qformat_code(c, q.bits, i);
                uint16_t v = table ? value[code] : round_code(q, code, s, second);
                store_u16(out + 2 * (row * r->k + i), v);
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

/* The packed form of a weight's rows, when it has one: its own bytes, or those brought into order
 * or repacked from GGML blocks in *owned. */
static enum err_code find_packed(const struct ckpt_weight *w, int64_t k, int64_t row0, int64_t n,
                                 struct pack_rows *a, uint8_t **owned, bool *found, struct err *e)
{
    *owned = NULL;
    *a = (struct pack_rows){.k = k, .n = n, .q = w->q};
    *found = ckpt_weight_packed(w) || (w->enc == CKPT_GGML && ggml_affine_format(w, &a->q));
    if (!*found)
        return ERR_OK;
    size_t code_row = qformat_row_bytes(a->q, k), scale_row = scale_row_bytes(a->q, k);
    if (w->enc == CKPT_AFFINE) {
        struct ckpt_block at;
        ckpt_weight_at(w, row0, &at);
        a->codes = at.data;
        a->scales = at.scales;
        a->biases = at.biases;
        return ERR_OK;
    }
    size_t codes = (size_t)n * code_row, scales = (size_t)n * scale_row;
    size_t globals = (size_t)n * sizeof(float);
    uint8_t *p = *owned = malloc(globals + codes + 2 * scales);
    if (!p)
        return err_set(e, ERR_NOMEM, "out of memory: %zu bytes of a run", codes + 2 * scales);
    float *global = (float *)(void *)p;
    a->codes = p + globals;
    a->scales = p + globals + codes;
    a->biases = p + globals + codes + scales;
    a->globals = global;
    if (w->enc == CKPT_GGML)
        ggml_affine_rows(w, a->q, row0, n, p + globals, p + globals + codes,
                         p + globals + codes + scales);
    for (int64_t r = 0; r < n; r++) {
        global[r] = ckpt_weight_global(w, row0 + r);
        if (w->enc == CKPT_GGML)
            continue;
        struct ckpt_block at;
        ckpt_weight_at(w, ckpt_weight_row(w, row0 + r), &at);
        memcpy(p + globals + (size_t)r * code_row, at.data, code_row);
        memcpy(p + globals + codes + (size_t)r * scale_row, at.scales, scale_row);
    }
    return ERR_OK;
}

static enum err_code expand_rows(const struct plan_item *it, int64_t row0, int64_t n,
                                 const struct pack_dest *to, struct pack_scratch *s,
                                 struct errstat *st, struct err *e)
{
    int64_t elems = n * it->k, first = row0 * it->k;
    size_t row_bytes = (size_t)it->k * (size_t)dtype_bits(it->dtype) / 8;
    uint8_t *out = to->codes + (size_t)(row0 - to->first) * row_bytes;
    struct pack_rows a;
    uint8_t *owned = NULL;
    bool packed;
    enum err_code rc = ckpt_weight_decode(it->w, row0, n, s->source, e);
    if (rc == ERR_OK)
        rc = finite_or_refuse(s->source, elems, first, e);
    if (rc == ERR_OK)
        rc = find_packed(it->w, it->k, row0, n, &a, &owned, &packed, e);
    if (rc != ERR_OK)
        return rc;
    if (packed && it->dtype == DT_BF16) {
        round_packed_bf16(&a, out);
    } else {
        if (packed)
            pack_run_decode(&a, s->decoded);
        round_values(packed ? s->decoded : s->source, elems, it->dtype, out);
    }
    free(owned);
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
    uint8_t *scales = to->scales + at * row_scales;
    uint8_t *biases = qformat_is_block(it->q) ? NULL : to->biases + at * row_scales;
    ggml_affine_rows(it->w, it->q, row0, n, codes, scales, biases);
    enum err_code rc = ckpt_weight_decode(it->w, row0, n, s->source, e);
    if (rc == ERR_OK)
        rc = finite_or_refuse(s->source, n * it->k, row0 * it->k, e);
    if (rc != ERR_OK)
        return rc;
    struct pack_rows rows = {it->q, it->k, n, codes, scales, biases, NULL};
    pack_run_decode(&rows, s->decoded);
    errstat_add(st, s->source, s->decoded, n * it->k, it->q.group);
    return ERR_OK;
}

static enum err_code at_element(enum err_code rc, const struct plan_item *it, int64_t row0,
                                int64_t bad, struct err *e)
{
    bad += row0 * it->k;
    return err_wrap(e, rc, "element %lld (row %lld, column %lld)", (long long)bad,
                    (long long)(bad / it->k), (long long)(bad % it->k));
}

/* A block float, from the decoded source. */
static enum err_code encode_blocks(const struct plan_item *it, int64_t row0, int64_t n,
                                   const struct pack_dest *to, struct pack_scratch *s,
                                   struct errstat *st, struct err *e)
{
    size_t at = (size_t)(row0 - to->first);
    struct block_run run = {.q = it->q, .data = s->source, .n_groups = n * (it->k / it->q.group)};
    run.codes = to->codes + at * qformat_row_bytes(it->q, it->k);
    run.scales = to->scales + at * scale_row_bytes(it->q, it->k);
    int64_t bad = 0;
    enum err_code rc = ckpt_weight_decode(it->w, row0, n, s->source, e);
    if (rc != ERR_OK)
        return rc;
    rc = block_encode(&run, &bad, e);
    if (rc != ERR_OK)
        return at_element(rc, it, row0, bad, e);
    struct pack_rows rows = {it->q, it->k, n, run.codes, run.scales, NULL, NULL};
    pack_run_decode(&rows, s->decoded);
    errstat_add(st, s->source, s->decoded, n * it->k, it->q.group);
    return ERR_OK;
}

/* The encoder reads the source's own rows. */
static bool reads_directly(const struct plan_item *it)
{
    const struct ckpt_weight *w = it->w;
    return it->action == PLAN_ENCODE && !qformat_is_block(it->q) && w->enc == CKPT_DENSE &&
           !w->rope_heads && !w->row_step && !w->strides && !w->minus_one;
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
    if (reads_directly(it)) {
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
    return at_element(rc, it, row0, bad, e);
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
    enum err_code rc = reads_directly(it) ? ERR_OK : reserve(s, (size_t)(n * it->k), e);
    if (rc != ERR_OK)
        return rc;
    switch (it->action) {
    case PLAN_REPACK:
        return repack_rows(it, row0, n, to, s, st, e);
    case PLAN_DENSE:
        return expand_rows(it, row0, n, to, s, st, e);
    default:
        if (qformat_is_block(it->q))
            return encode_blocks(it, row0, n, to, s, st, e);
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
