/* ckpt_weight.c: rows of one weight: where they are stored, and their exact values. */
#include <math.h>

#include "ckpt/checkpoint.h"
#include "ckpt/ct_layout.h"
#include "common/io.h"

int64_t ckpt_weight_rows(const struct ckpt_weight *w)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < w->n_dim; i++)
        rows *= w->dim[i];
    return rows;
}

/* Llama's rows in a GGUF: rope pairs (i, i + half) of a head lie side by side. */
static int64_t permuted(int64_t r, int64_t n, int heads)
{
    int64_t head_dim = n / heads, half = head_dim / 2;
    int64_t h = r / head_dim, in = r % head_dim;
    return h * head_dim + 2 * (in % half) + in / half;
}

#define GLOBAL_UNIT 2688.0f /* MLX stores global scales times this: 448 * 6 */

int64_t ckpt_weight_n_globals(const struct ckpt_weight *w)
{
    if (!w->globals && !(w->blocks && w->blocks[0].globals))
        return 0;
    return w->n_dim > 2 ? ckpt_weight_rows(w) / w->dim[w->n_dim - 2] : 1;
}

const uint8_t *ckpt_weight_stored_global(const struct ckpt_weight *w, int64_t r)
{
    int64_t matrix = w->n_dim > 2 ? r / w->dim[w->n_dim - 2] : 0;
    if (!w->blocks)
        return w->globals ? w->globals + 4 * matrix : NULL;
    return w->blocks[r / (ckpt_weight_rows(w) / w->dim[0])].globals;
}

float ckpt_weight_global(const struct ckpt_weight *w, int64_t r)
{
    const uint8_t *p = ckpt_weight_stored_global(w, r);
    return p ? load_f32(p) / GLOBAL_UNIT : 1;
}

int64_t ckpt_weight_row(const struct ckpt_weight *w, int64_t r)
{
    if (w->rope_heads == 0 || w->n_dim < 2)
        return r;
    return permuted(r, ckpt_weight_rows(w), w->rope_heads);
}

size_t ckpt_weight_row_bytes(const struct ckpt_weight *w)
{
    int64_t k = ckpt_weight_k(w);
    int elems, bytes;
    if (ckpt_weight_packed(w))
        return qformat_row_bytes(w->q, k);
    if (w->enc == CKPT_DENSE)
        return k * dtype_bits(w->dtype) % 8 ? 0 : (size_t)(k * dtype_bits(w->dtype) / 8);
    return ggml_type_block(w->ggml, &elems, &bytes) ? (size_t)(k / elems * bytes) : 0;
}

size_t ckpt_weight_scale_bytes(const struct ckpt_weight *w)
{
    if (!ckpt_weight_packed(w))
        return 0;
    return (size_t)(ckpt_weight_k(w) / w->q.group) * (size_t)qformat_scale_size(w->q.scale);
}

int64_t ckpt_weight_at(const struct ckpt_weight *w, int64_t r, struct ckpt_block *at)
{
    int64_t rows = ckpt_weight_rows(w), together;
    *at = (struct ckpt_block){w->data, w->scales, w->biases, w->globals};
    if (w->blocks) {
        rows /= w->dim[0];
        *at = w->blocks[r / rows];
        r %= rows;
    }
    together = w->row_step ? 1 : rows - r;
    r *= MAX2(w->row_step, 1);
    at->data += (size_t)r * ckpt_weight_row_bytes(w);
    if (at->scales)
        at->scales += (size_t)r * ckpt_weight_scale_bytes(w);
    if (at->biases)
        at->biases += (size_t)r * ckpt_weight_scale_bytes(w);
    return together;
}

void ckpt_weight_drop(const struct ckpt_weight *w, int64_t row0, int64_t n)
{
    const int64_t block = ckpt_weight_rows(w) / (w->blocks ? w->dim[0] : 1);
    const int64_t step = MAX2(w->row_step, 1);
    if (!w->mapped || w->strides || w->enc == CKPT_CT)
        return;
    for (int64_t some; n > 0; row0 += some, n -= some) {
        struct ckpt_block at;
        some = MIN2(n, block - row0 % block);
        size_t rows = (size_t)((some - 1) * step + 1);
        ckpt_weight_at(w, row0, &at);
        io_map_drop(at.data, rows * ckpt_weight_row_bytes(w));
        if (at.scales)
            io_map_drop(at.scales, rows * ckpt_weight_scale_bytes(w));
        if (at.biases)
            io_map_drop(at.biases, rows * ckpt_weight_scale_bytes(w));
    }
}

void ckpt_weight_stored_row(const struct ckpt_weight *w, int64_t r, void *out)
{
    size_t size = (size_t)dtype_bits(w->dtype) / 8, k = (size_t)ckpt_weight_k(w);
    const struct ckpt_strides *s = w->strides;
    if (!s) {
        struct ckpt_block at;
        ckpt_weight_at(w, ckpt_weight_row(w, r), &at);
        memcpy(out, at.data, k * size);
        return;
    }
    int64_t first = s->first + r / s->rows * s->matrix + r % s->rows * s->row;
    const uint8_t *from = w->data + (size_t)first * size;
    size_t step = (size_t)s->step * size;
    for (size_t i = 0; i < k; i++, from += step)
        memcpy((uint8_t *)out + i * size, from, size);
}

static void decode_dense(enum dtype type, const uint8_t *data, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        switch (type) {
        case DT_F32:
            out[i] = load_f32(data + 4 * i);
            break;
        case DT_F16:
            out[i] = f16_to_f32(load_u16(data + 2 * i));
            break;
        default:
            out[i] = bf16_to_f32(load_u16(data + 2 * i));
        }
    }
}

static void decode_affine(const struct ckpt_weight *w, int64_t row, int64_t k, float *out)
{
    struct ckpt_block at;
    ckpt_weight_at(w, row, &at);
    for (int64_t g = 0; g < k / w->q.group; g++) {
        float s = qformat_scale(at.scales, w->q.scale, g);
        float b = qformat_scale(at.biases, w->q.scale, g);
        for (int64_t i = g * w->q.group; i < (g + 1) * w->q.group; i++)
            out[i] = fmaf((float)qformat_code(at.data, w->q.bits, i), s, b);
    }
}

/* r: the canonical row. */
static void decode_mx(const struct ckpt_weight *w, int64_t r, int64_t k, float *out)
{
    struct ckpt_block at;
    ckpt_weight_at(w, ckpt_weight_row(w, r), &at);
    float global = ckpt_weight_global(w, r);
    for (int64_t g = 0; g < k / w->q.group; g++) {
        float s = qformat_scale(at.scales, w->q.scale, g) * global;
        for (int64_t i = g * w->q.group; i < (g + 1) * w->q.group; i++)
            out[i] = qformat_element(w->q.bits, qformat_code(at.data, w->q.bits, i)) * s;
    }
}

/* Elements of a part of a tensor are brought together at the end of `out`, where decoding does not
 * overtake them. */
static void decode_strided(const struct ckpt_weight *w, int64_t r, int64_t k, float *out)
{
    uint8_t *stored = (uint8_t *)(out + k) - k * (dtype_bits(w->dtype) / 8);
    ckpt_weight_stored_row(w, r, stored);
    decode_dense(w->dtype, stored, k, out);
}

/* r: the canonical row. */
static bool decode_row(const struct ckpt_weight *w, int64_t r, int64_t k, float *out)
{
    struct ckpt_block at;
    int64_t row = ckpt_weight_row(w, r);
    switch (w->enc) {
    case CKPT_MX:
        decode_mx(w, r, k, out);
        return true;
    case CKPT_AFFINE:
        decode_affine(w, row, k, out);
        return true;
    case CKPT_CT:
        ct_packed_decode(w, row, out);
        return true;
    case CKPT_DENSE:
        if (!dtype_is_float(w->dtype))
            return false;
        if (w->strides) {
            decode_strided(w, r, k, out);
            return true;
        }
        ckpt_weight_at(w, row, &at);
        decode_dense(w->dtype, at.data, k, out);
        return true;
    default:
        if (ckpt_weight_row_bytes(w) == 0)
            return false;
        ckpt_weight_at(w, row, &at);
        return ggml_type_decode(w->ggml, at.data, k, out);
    }
}

/* A permuted vector (the bias of q or k) is put in order by element. */
static void order_vector(const struct ckpt_weight *w, int64_t k, float *out)
{
    int64_t head_dim = k / w->rope_heads;
    float head[8192];
    for (int64_t h = 0; h < w->rope_heads; h++) {
        memcpy(head, out + h * head_dim, (size_t)head_dim * sizeof *out);
        for (int64_t i = 0; i < head_dim; i++)
            out[h * head_dim + i] = head[permuted(i, head_dim, 1)];
    }
}

enum err_code ckpt_weight_decode(const struct ckpt_weight *w, int64_t row0, int64_t n, float *out,
                                 struct err *e)
{
    int64_t k = ckpt_weight_k(w), rows = ckpt_weight_rows(w);
    if (row0 < 0 || n < 0 || row0 > rows || n > rows - row0) {
        return err_set(e, ERR_INTERNAL, "weight '%s': rows %lld to %lld of %lld", w->name,
                       (long long)row0, (long long)(row0 + n), (long long)rows);
    }
    for (int64_t r = 0; r < n; r++) {
        if (!decode_row(w, row0 + r, k, out + r * k)) {
            const char *type = w->enc == CKPT_GGML ? ggml_type_name(w->ggml) : dtype_name(w->dtype);
            return err_set(e, ERR_INPUT, "weight '%s': type %s cannot be decoded", w->name,
                           type ? type : "unknown");
        }
    }
    if (w->rope_heads && w->n_dim == 1 && n == 1)
        order_vector(w, k, out);
    for (int64_t i = 0; w->minus_one && i < n * k; i++)
        out[i] -= 1.0f;
    return ERR_OK;
}

bool ckpt_weight_packed_format(const struct ckpt_weight *w, struct qformat *q)
{
    switch (w->enc) {
    case CKPT_AFFINE:
    case CKPT_MX:
        *q = w->q;
        return true;
    case CKPT_GGML:
        return ggml_affine_format(w, q);
    case CKPT_CT:
        return ct_packed_affine_format(w, q);
    default:
        return false;
    }
}

void ckpt_weight_repack(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                        uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    if (w->enc == CKPT_CT)
        ct_packed_affine_rows(w, q, row0, n, codes, scales, biases);
    else
        ggml_affine_rows(w, q, row0, n, codes, scales, biases);
}
