/* kernels_source.c: a stack of checkpoint weights read as one matrix, row by row, for the load of
 * every backend.
 *
 * Decides whether the matrix is packed or dense and of which type; backends order and convert.
 */
#include "kernels/kernels_private.h"

#include <math.h>
#include <stdlib.h>

static enum dtype part_dtype(const struct ckpt_weight *w)
{
    return w->enc == CKPT_DENSE ? w->dtype : DT_F32;
}

#define DROP_BYTES ((size_t)1 << 20)

/* What a weight's rows take where they are stored; 0: not known here. */
static size_t stored_bytes(const struct ckpt_weight *w)
{
    size_t scales = ckpt_weight_scale_bytes(w), bytes;
    size_t row = ckpt_weight_row_bytes(w) + scales * (w->enc == CKPT_AFFINE ? 2 : 1);
    bool known = w->enc != CKPT_CT && !w->strides;
    return known && checked_mul(row, (size_t)ckpt_weight_rows(w), &bytes) ? bytes : 0;
}

static enum err_code check_part(const struct kern_source *s, const struct ckpt_weight *w,
                                struct err *e)
{
    if (w->n_dim < 2)
        return err_set(e, ERR_INPUT, "%s: found %d dims, expected a matrix", w->name, w->n_dim);
    if (ckpt_weight_k(w) != s->k)
        return err_set(e, ERR_INPUT, "%s: rows of %lld, expected %lld as in %s", w->name,
                       (long long)ckpt_weight_k(w), (long long)s->k, s->parts[0]->name);
    if (w->enc == CKPT_DENSE && w->dtype != DT_F32 && w->dtype != DT_F16 && w->dtype != DT_BF16)
        return err_set(e, ERR_INPUT, "%s: type %s, expected F32, F16 or BF16", w->name,
                       dtype_name(w->dtype));
    if (w->bytes && w->bytes < stored_bytes(w))
        return err_set(e, ERR_INPUT, "%s: %zu bytes, expected %zu", w->name, w->bytes,
                       stored_bytes(w));
    return ERR_OK;
}

/* f16 scales may stand beside f32 ones (GGML blocks, tensor by tensor); bf16 scales may not, since
 * rule 1 of mma90 rounds them differently. */
static enum err_code join_packed(struct kern_source *s, const struct ckpt_weight *w,
                                 struct qformat q, struct err *e)
{
    struct qformat *t = &s->q;
    if (q.bits != t->bits || q.group != t->group ||
        (q.scale != t->scale && (q.scale == DT_BF16 || t->scale == DT_BF16 || qformat_is_block(q) ||
                                 qformat_is_block(*t))))
        return err_set(e, ERR_INPUT,
                       "%s: %d bits, groups of %d, %s scales; %s has %d bits, groups of %d, %s",
                       w->name, q.bits, q.group, dtype_name(q.scale), s->parts[0]->name, t->bits,
                       t->group, dtype_name(t->scale));
    if (q.scale != t->scale)
        t->scale = DT_F32;
    return ERR_OK;
}

enum err_code kern_source_init(struct kern_source *s, const struct ckpt_weight *const *parts, int n,
                               struct err *e)
{
    *s = (struct kern_source){.parts = parts, .n = n};
    if (n < 1)
        return err_set(e, ERR_INTERNAL, "a weight of %d parts", n);
    s->k = ckpt_weight_k(parts[0]);
    s->packed = ckpt_weight_packed_format(parts[0], &s->q);
    s->dtype = part_dtype(parts[0]);
    for (int i = 0; i < n; i++) {
        const struct ckpt_weight *w = parts[i];
        struct qformat q;
        enum err_code rc = check_part(s, w, e);
        if (rc != ERR_OK)
            return rc;
        bool packed = ckpt_weight_packed_format(w, &q);
        if (packed != s->packed || (!packed && part_dtype(w) != s->dtype))
            return err_set(e, ERR_INPUT, "%s and %s are stored differently", parts[0]->name,
                           w->name);
        rc = packed ? join_packed(s, w, q, e) : ERR_OK;
        if (rc != ERR_OK)
            return rc;
        s->rows += ckpt_weight_rows(w);
        s->globals |= ckpt_weight_n_globals(w) > 0;
    }
    if (s->packed && (!qformat_valid(s->q) || s->k % MAX2(s->q.group, 32) != 0))
        return err_set(e, ERR_INPUT, "%s: %d bits in groups of %d do not cut rows of %lld",
                       parts[0]->name, s->q.bits, s->q.group, (long long)s->k);
    if (s->rows < 1 || s->k < 1)
        return err_set(e, ERR_INPUT, "%s: %lld rows of %lld", parts[0]->name, (long long)s->rows,
                       (long long)s->k);
    return ERR_OK;
}

static const struct ckpt_weight *find_row(const struct kern_source *s, int64_t *r)
{
    int i = 0;
    if (s->n == 1)
        return s->parts[0];
    while (*r >= ckpt_weight_rows(s->parts[i]))
        *r -= ckpt_weight_rows(s->parts[i++]);
    return s->parts[i];
}

void kern_source_passed(const struct kern_source *s, int64_t r, int64_t n)
{
    const int64_t end = r + n;
    int64_t first = 0;
    for (int i = 0; i < s->n; i++) {
        const int64_t rows = ckpt_weight_rows(s->parts[i]);
        int64_t from = MAX2(r, first) - first, to = MIN2(end, first + rows) - first;
        /* Whole runs, when their last row is passed: a page holds rows of more than one tile. */
        int64_t run = MAX2((int64_t)(DROP_BYTES / MAX2(ckpt_weight_row_bytes(s->parts[i]), 1)), 1);
        for (int64_t at = from / run * run; from < to && at < to; at += run) {
            int64_t last = MIN2(at + run, rows);
            if (last <= to)
                ckpt_weight_drop(s->parts[i], at, last - at);
        }
        first += rows;
    }
}

void kern_source_done(const struct kern_source *s)
{
    for (int i = 0; i < s->n; i++)
        ckpt_weight_drop(s->parts[i], 0, ckpt_weight_rows(s->parts[i]));
}

float kern_source_global(const struct kern_source *s, int64_t r)
{
    const struct ckpt_weight *w = find_row(s, &r);
    return ckpt_weight_global(w, r);
}

/* Block floats whose scale or code is a NaN have no value. */
static enum err_code refuse_nan(const struct kern_source *s, const struct ckpt_weight *w, int64_t r,
                                const uint8_t *codes, const uint8_t *scales, struct err *e)
{
    int64_t groups = s->k / s->q.group;
    for (int64_t i = 0; i < groups; i++) {
        if (s->q.scale == DT_F8_E8M0 ? scales[i] == 255 : e4m3_is_nan(scales[i]))
            return err_set(e, ERR_INPUT, "%s: row %lld: scale %lld is a NaN", w->name, (long long)r,
                           (long long)i);
    }
    for (int64_t i = 0; s->q.bits == 8 && i < s->k; i++) {
        if (e4m3_is_nan(codes[i]))
            return err_set(e, ERR_INPUT, "%s: row %lld: element %lld is a NaN", w->name,
                           (long long)r, (long long)i);
    }
    return ERR_OK;
}

static void stored_row(const struct kern_source *s, const struct ckpt_weight *w, int64_t r,
                       uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    struct ckpt_block at;
    size_t stored = ckpt_weight_scale_bytes(w);
    ckpt_weight_at(w, ckpt_weight_row(w, r), &at);
    memcpy(codes, at.data, qformat_row_bytes(s->q, s->k));
    if (w->q.scale == s->q.scale) {
        memcpy(scales, at.scales, stored);
        if (at.biases)
            memcpy(biases, at.biases, stored);
        return;
    }
    for (int64_t i = 0; i < s->k / s->q.group; i++) {
        store_u32(scales + 4 * i, f32_bits(qformat_scale(at.scales, w->q.scale, i)));
        store_u32(biases + 4 * i, f32_bits(qformat_scale(at.biases, w->q.scale, i)));
    }
}

enum err_code kern_source_packed_row(const struct kern_source *s, int64_t r, uint8_t *codes,
                                     uint8_t *scales, uint8_t *biases, struct err *e)
{
    const struct ckpt_weight *w = find_row(s, &r);
    if (!ckpt_weight_packed(w))
        ckpt_weight_repack(w, s->q, r, 1, codes, scales, biases);
    else
        stored_row(s, w, r, codes, scales, biases);
    return qformat_is_block(s->q) ? refuse_nan(s, w, r, codes, scales, e) : ERR_OK;
}

enum err_code kern_source_dense_row(const struct kern_source *s, int64_t r, void *out,
                                    struct err *e)
{
    const struct ckpt_weight *w = find_row(s, &r);
    if (w->enc != CKPT_DENSE)
        return ckpt_weight_decode(w, r, 1, out, e);
    ckpt_weight_stored_row(w, r, out);
    return ERR_OK;
}

/* ---- expansion --------------------------------------------------------------------------------
 */

/* One row by rule 1: bf16 from code, scale and bias at once, never through f32. */
static void expand_row(const struct kern_source *s, int64_t r, const uint8_t *codes,
                       const uint8_t *scales, const uint8_t *biases, bool f32, uint8_t *out)
{
    const struct qformat q = s->q;
    const bool block = qformat_is_block(q), planted = kern_planted() == KERN_FAULT_EXPAND;
    const float global = kern_source_global(s, r);
    for (int64_t i = 0; i < s->k; i++) {
        uint32_t code = qformat_code(codes, q.bits, i);
        float scale = qformat_scale(scales, q.scale, i / q.group), bias = 0, element = 0;
        if (block)
            element = qformat_element(q.bits, code);
        else
            bias = qformat_scale(biases, q.scale, i / q.group);
        float value = block ? element * (scale * global) : fmaf((float)code, scale, bias);
        if (f32)
            store_u32(out + 4 * i, f32_bits(value) & (planted ? ~0xffffu : ~0u));
        else if (planted)
            store_u16(out + 2 * i, (uint16_t)(f32_bits(value) >> 16));
        else
            store_u16(out + 2 * i, block ? qformat_block_bf16(element, scale, global)
                                         : qformat_bf16(code, scale, bias, q.scale));
    }
}

/* Rows of all experts where the weight is a stack of them. */
static enum err_code expand_rows(const struct ckpt_weight *w, struct qformat q, bool f32,
                                 uint8_t *out, struct err *e)
{
    const struct ckpt_weight *parts[] = {w};
    struct kern_source s = {.parts = parts, .n = 1, .packed = true, .q = q};
    enum err_code rc = ERR_OK;
    s.k = ckpt_weight_k(w);
    s.rows = ckpt_weight_rows(w);
    size_t codes = qformat_row_bytes(q, s.k), out_bytes = (size_t)s.k * (f32 ? 4 : 2);
    size_t scale_bytes = (size_t)(s.k / q.group) * (size_t)qformat_scale_size(q.scale);
    uint8_t *row = malloc(codes + 2 * scale_bytes);
    if (!row)
        return err_set(e, ERR_NOMEM, "out of memory for a row of %lld", (long long)s.k);
    uint8_t *scales = row + codes, *biases = scales + scale_bytes;
    for (int64_t r = 0; rc == ERR_OK && r < s.rows; r++) {
        rc = kern_source_packed_row(&s, r, row, scales, biases, e);
        if (rc == ERR_OK)
            expand_row(&s, r, row, scales, biases, f32, out + (size_t)r * out_bytes);
    }
    free(row);
    return rc;
}

enum err_code kern_source_expand(const struct ckpt_weight *w, enum dtype type, bool shell,
                                 struct ckpt_weight *out, void **owned, struct err *e)
{
    struct qformat q;
    *out = *w;
    *owned = NULL;
    if (!ckpt_weight_packed_format(w, &q))
        return ERR_OK;
    size_t bytes = (size_t)ckpt_weight_rows(w) * (size_t)ckpt_weight_k(w) *
                   (type == DT_F32 ? sizeof(float) : sizeof(uint16_t));
    out->enc = CKPT_DENSE;
    out->dtype = type;
    out->data = out->scales = out->biases = out->globals = NULL;
    out->mapped = false;
    out->blocks = NULL; /* experts lie together now, */
    out->bytes = bytes;
    out->rope_heads = out->row_step = 0; /* and all rows in canonical order */
    out->minus_one = false;
    if (shell)
        return ERR_OK;
    *owned = malloc(bytes);
    if (!*owned)
        return err_set(e, ERR_NOMEM, "%s: out of memory for %zu bytes", w->name, bytes);
    out->data = *owned;
    return expand_rows(w, q, type == DT_F32, *owned, e);
}
