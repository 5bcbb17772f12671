/* kernels_source.c: a stack of checkpoint weights read as one matrix, row by row, for the load of
 * every backend.
 *
 * Decides whether the matrix is affine or dense and of which type; backends order and convert.
 */
#include "kernels/kernels_private.h"

#include <math.h>
#include <stdlib.h>

/* The affine format of a part, or false when it is dense. */
static bool part_affine(const struct ckpt_weight *w, struct qformat *q)
{
    if (w->enc == CKPT_AFFINE) {
        *q = w->q;
        return true;
    }
    return w->enc == CKPT_GGML && ggml_affine_format(w, q);
}

static enum dtype part_dtype(const struct ckpt_weight *w)
{
    return w->enc == CKPT_DENSE ? w->dtype : DT_F32;
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
    return ERR_OK;
}

/* f16 scales may stand beside f32 ones (GGML blocks, tensor by tensor); bf16 scales may not, since
 * rule 1 of mma90 rounds them differently. */
static enum err_code join_affine(struct kern_source *s, const struct ckpt_weight *w,
                                 struct qformat q, struct err *e)
{
    struct qformat *t = &s->q;
    if (q.bits != t->bits || q.group != t->group ||
        (q.scale != t->scale && (q.scale == DT_BF16 || t->scale == DT_BF16)))
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
    s->affine = part_affine(parts[0], &s->q);
    s->dtype = part_dtype(parts[0]);
    for (int i = 0; i < n; i++) {
        const struct ckpt_weight *w = parts[i];
        struct qformat q;
        enum err_code rc = check_part(s, w, e);
        if (rc != ERR_OK)
            return rc;
        bool affine = part_affine(w, &q);
        if (affine != s->affine || (!affine && part_dtype(w) != s->dtype))
            return err_set(e, ERR_INPUT, "%s and %s are stored differently", parts[0]->name,
                           w->name);
        rc = affine ? join_affine(s, w, q, e) : ERR_OK;
        if (rc != ERR_OK)
            return rc;
        s->rows += ckpt_weight_rows(w);
    }
    if (s->affine && (!qformat_valid(s->q) || s->k % s->q.group != 0))
        return err_set(e, ERR_INPUT, "%s: %d bits in groups of %d do not cut rows of %lld",
                       parts[0]->name, s->q.bits, s->q.group, (long long)s->k);
    if (s->rows < 1 || s->k < 1)
        return err_set(e, ERR_INPUT, "%s: %lld rows of %lld", parts[0]->name, (long long)s->rows,
                       (long long)s->k);
    return ERR_OK;
}

/* ---- expansion --------------------------------------------------------------------------------
 */

/* One row of codes to bf16 by rule 1: from code, scale and bias at once, never through f32. */
static void expand_bf16(struct qformat q, int64_t k, const uint8_t *codes, const uint8_t *scales,
                        const uint8_t *biases, uint16_t *out)
{
    bool planted = kern_planted() == KERN_FAULT_EXPAND;
    for (int64_t g = 0; g < k / q.group; g++) {
        float s = qformat_scale(scales, q.scale, g), b = qformat_scale(biases, q.scale, g);
        for (int64_t i = g * q.group; i < (g + 1) * q.group; i++) {
            uint32_t code = qformat_code(codes, q.bits, i);
            out[i] = planted ? (uint16_t)(f32_bits(fmaf((float)code, s, b)) >> 16)
                             : qformat_bf16(code, s, b, q.scale);
        }
    }
}

static enum err_code expand_rows(const struct ckpt_weight *w, struct qformat q, enum dtype type,
                                 uint8_t *out, struct err *e)
{
    const struct ckpt_weight *parts[] = {w};
    struct kern_source s = {.parts = parts, .n = 1, .k = ckpt_weight_k(w), .affine = true, .q = q};
    const int64_t rows = ckpt_weight_rows(w);
    s.rows = rows;
    if (type == DT_F32) {
        enum err_code rc = ckpt_weight_decode(w, 0, rows, (float *)(void *)out, e);
        for (int64_t i = 0; kern_planted() == KERN_FAULT_EXPAND && i < rows * s.k; i++)
            ((float *)(void *)out)[i] =
                f32_from_bits(f32_bits(((float *)(void *)out)[i]) & ~0xffffu);
        return rc;
    }
    size_t scale_bytes = (size_t)(s.k / q.group) * (size_t)dtype_bits(q.scale) / 8;
    uint8_t *row = malloc(qformat_row_bytes(q, s.k) + 2 * scale_bytes);
    if (!row)
        return err_set(e, ERR_NOMEM, "out of memory for a row of %lld", (long long)s.k);
    uint8_t *scales = row + qformat_row_bytes(q, s.k), *biases = scales + scale_bytes;
    for (int64_t r = 0; r < rows; r++) {
        kern_source_affine_row(&s, r, row, scales, biases);
        expand_bf16(q, s.k, row, scales, biases, (uint16_t *)(void *)out + r * s.k);
    }
    free(row);
    return ERR_OK;
}

enum err_code kern_source_expand(const struct ckpt_weight *w, enum dtype type, bool shell,
                                 struct ckpt_weight *out, void **owned, struct err *e)
{
    struct qformat q;
    *out = *w;
    *owned = NULL;
    if (!part_affine(w, &q))
        return ERR_OK;
    size_t bytes = (size_t)ckpt_weight_rows(w) * (size_t)ckpt_weight_k(w) *
                   (type == DT_F32 ? sizeof(float) : sizeof(uint16_t));
    out->enc = CKPT_DENSE;
    out->dtype = type;
    out->scales = out->biases = NULL;
    out->data = NULL;
    out->bytes = bytes;
    out->rope_heads = 0; /* rows are in canonical order now */
    out->minus_one = false;
    if (shell)
        return ERR_OK;
    *owned = malloc(bytes);
    if (!*owned)
        return err_set(e, ERR_NOMEM, "%s: out of memory for %zu bytes", w->name, bytes);
    out->data = *owned;
    return expand_rows(w, q, type, *owned, e);
}

static const struct ckpt_weight *find_row(const struct kern_source *s, int64_t *r)
{
    int i = 0;
    while (*r >= ckpt_weight_rows(s->parts[i]))
        *r -= ckpt_weight_rows(s->parts[i++]);
    return s->parts[i];
}

void kern_source_affine_row(const struct kern_source *s, int64_t r, uint8_t *codes, uint8_t *scales,
                            uint8_t *biases)
{
    const struct ckpt_weight *w = find_row(s, &r);
    if (w->enc == CKPT_GGML) {
        ggml_affine_rows(w, s->q, r, 1, codes, scales, biases);
        return;
    }
    size_t code_bytes = qformat_row_bytes(s->q, s->k);
    size_t n = (size_t)(s->k / s->q.group), at = (size_t)ckpt_weight_row(w, r);
    size_t stored = (size_t)dtype_bits(w->q.scale) / 8;
    memcpy(codes, w->data + at * code_bytes, code_bytes);
    const uint8_t *sc = w->scales + at * n * stored, *bi = w->biases + at * n * stored;
    if (w->q.scale == s->q.scale) {
        memcpy(scales, sc, n * stored);
        memcpy(biases, bi, n * stored);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        store_u32(scales + 4 * i, f32_bits(qformat_scale(sc, w->q.scale, (int64_t)i)));
        store_u32(biases + 4 * i, f32_bits(qformat_scale(bi, w->q.scale, (int64_t)i)));
    }
}

enum err_code kern_source_dense_row(const struct kern_source *s, int64_t r, void *out,
                                    struct err *e)
{
    const struct ckpt_weight *w = find_row(s, &r);
    if (w->enc == CKPT_GGML)
        return ckpt_weight_decode(w, r, 1, out, e);
    size_t bytes = (size_t)s->k * (size_t)dtype_bits(s->dtype) / 8;
    memcpy(out, w->data + (size_t)ckpt_weight_row(w, r) * bytes, bytes);
    return ERR_OK;
}
