/* cpu_mma_weight.c: weights of the mma90 arithmetic on the CPU: loading, sizes, expansion.
 *
 * Owns the tile form (cpu_mma_private.h). Weights keep their codes; the values of rule 1 are formed
 * while a tile is expanded. Dense f16 and f32 are rounded to bf16 once, at load.
 */
#include "kernels/cpu/cpu_mma_private.h"

#include <stdlib.h>

#include "common/par.h"
#include "kernels/cpu/cpu_interleave.h"

/* ---- which tiles the vector form of rule 1 may expand -----------------------------------------
 */

static int exponent_of(float v)
{
    return (int)(f32_bits(v) >> 23 & 0xff) - 127;
}

/* True when for every code fmaf(q, s, b) in f32 is zero or normal, below 2^63, and, with bf16
 * scales, exact: q*s and b are multiples of the smaller one's last place, and fewer than 24 bits
 * reach from there to the top of the sum. */
static bool group_is_plain(float s, float b, struct qformat q)
{
    int es = exponent_of(s), eb = exponent_of(b);
    int top = MAX2(s != 0 ? es + q.bits : -90, b != 0 ? eb : -90);
    if (top > 60 || (s != 0 && es < -90) || (b != 0 && eb < -90))
        return false;
    if (q.scale != DT_BF16 || s == 0 || b == 0)
        return true;
    return top - MIN2(es, eb) <= 15;
}

/* A block float's group of a lane: all products are bf16 numbers below 2^63. Multiples of 2^-133
 * with few bits are; below that only zeros are plain, as a group of zeros may have any scale. */
static bool block_is_plain(const struct cpu_mma_weight *w, const struct cpu_mma_packed *p,
                           int64_t group, int lane)
{
    struct qformat q = w->base.q;
    int scale = p->scales[group * CPU_MMA_LANES + lane];
    if (q.scale == DT_F8_E4M3)
        return true;
    if (scale >= 3 || q.bits == 4)
        return scale - 127 <= (q.bits == 4 ? 60 : 54);
    for (int64_t i = group * q.group; i < (group + 1) * q.group; i++) {
        if (cpu_mma_step_value(p, i, lane) & 0x7fffu)
            return false;
    }
    return true;
}

static bool tile_is_plain(const struct cpu_mma_weight *w, const struct cpu_mma_packed *p)
{
    const uint8_t *scales = p->scales;
    int64_t n_groups = w->base.k / w->base.q.group;
    if (qformat_is_block(w->base.q)) {
        for (int64_t i = 0; !w->globals && i < n_groups * CPU_MMA_LANES; i++) {
            if (!block_is_plain(w, p, i / CPU_MMA_LANES, (int)(i % CPU_MMA_LANES)))
                return false;
        }
        return !w->globals;
    }
    int64_t groups = w->base.k / w->base.q.group;
    for (int64_t i = 0; i < groups * CPU_MMA_LANES; i++) {
        int64_t at = i / CPU_MMA_LANES * 2 * CPU_MMA_LANES + i % CPU_MMA_LANES;
        float s = qformat_scale(scales, w->base.q.scale, at);
        float b = qformat_scale(scales, w->base.q.scale, at + CPU_MMA_LANES);
        if (!group_is_plain(s, b, w->base.q))
            return false;
    }
    return true;
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

struct layout {
    size_t codes, scales, plain, globals, bytes; /* offsets from the block's start, and its size */
};

static bool lay_out(const struct kern_source *s, struct cpu_mma_weight *w, struct layout *l)
{
    size_t n_tiles, words, scale_bytes = 0;
    w->base = (struct kern_weight){.rows = s->rows, .k = s->k, .packed = s->packed, .q = s->q};
    w->base.dtype = DT_BF16;
    w->n_tiles = (s->rows + CPU_MMA_LANES - 1) / CPU_MMA_LANES;
    w->k_pad = (s->k + MMA90_K - 1) / MMA90_K * MMA90_K;
    n_tiles = (size_t)w->n_tiles;
    words = (size_t)w->k_pad / 2;
    if (s->packed) {
        words = (size_t)s->k / 32 * (size_t)s->q.bits;
        scale_bytes = (size_t)(s->k / s->q.group) * (size_t)qformat_scale_size(s->q.scale) *
                      (qformat_is_block(s->q) ? 1 : 2);
    }
    w->tile_words = words * CPU_MMA_LANES;
    w->tile_scale_bytes = scale_bytes * CPU_MMA_LANES;
    *l = (struct layout){0};
    size_t part;
    if (!checked_mul(n_tiles, w->tile_words * sizeof(uint32_t), &l->scales) ||
        !checked_mul(n_tiles, w->tile_scale_bytes, &part) ||
        !checked_add(l->scales, part, &l->plain) || l->plain > SIZE_MAX / 2)
        return false;
    l->globals = align_up(l->plain + (s->packed ? n_tiles : 0), 64);
    l->bytes = align_up(l->globals + (s->globals ? n_tiles * CPU_MMA_LANES * 4 : 0), 64);
    return true;
}

size_t cpu_mma_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    struct kern_source s;
    struct cpu_mma_weight w;
    struct layout l;
    (void)k;
    if (kern_source_init(&s, parts, n, NULL) != ERR_OK || !lay_out(&s, &w, &l))
        return 0;
    return l.bytes;
}

/* ---- load -------------------------------------------------------------------------------------
 */

struct load {
    const struct kern_source *src;
    struct cpu_mma_weight *w;
    size_t stride; /* of a row in a thread's buffer: codes, scales and biases, or dense elements */
    uint8_t *rows; /* of each thread: a tile's */
    enum err_code *rc; /* of each thread */
    struct err *err;
};

static int64_t lane_row(const struct cpu_mma_weight *w, int64_t tile, int lane)
{
    return MIN2(tile * CPU_MMA_LANES + lane, w->base.rows - 1);
}

static struct cpu_mma_packed packed_tile(const struct cpu_mma_weight *w, int64_t tile)
{
    struct cpu_mma_packed p = {.codes = w->codes + (size_t)tile * w->tile_words,
                               .scales = w->scales + (size_t)tile * w->tile_scale_bytes,
                               .q = w->base.q,
                               .globals = w->globals ? w->globals + tile * CPU_MMA_LANES : NULL,
                               .plain = w->plain[tile] != 0};
    return p;
}

static enum err_code load_packed_tile(const struct load *l, int64_t tile, uint8_t *rows,
                                      struct err *e)
{
    struct cpu_mma_weight *w = l->w;
    const struct qformat q = w->base.q;
    const size_t code_bytes = qformat_row_bytes(q, w->base.k);
    const size_t bytes = (size_t)qformat_scale_size(q.scale), stride = l->stride;
    const int64_t groups = w->base.k / q.group, kinds = qformat_is_block(q) ? 1 : 2;
    const size_t scales_at = align_up(code_bytes, 8);
    const size_t biases_at = scales_at + (size_t)groups * bytes;
    uint8_t *codes = (uint8_t *)(w->codes + (size_t)tile * w->tile_words);
    uint8_t *at = w->scales + (size_t)tile * w->tile_scale_bytes;
    for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
        int64_t r = lane_row(w, tile, lane);
        uint8_t *row = rows + (size_t)lane * stride;
        enum err_code rc =
            kern_source_packed_row(l->src, r, row, row + scales_at, row + biases_at, e);
        if (rc != ERR_OK)
            return rc;
        if (w->globals)
            w->globals[tile * CPU_MMA_LANES + lane] = kern_source_global(l->src, r);
    }
    cpu_interleave(codes, CPU_MMA_LANES, rows, stride, 4, (int64_t)(code_bytes / 4), CPU_MMA_LANES);
    cpu_interleave(at, kinds * CPU_MMA_LANES, rows + scales_at, stride, bytes, groups,
                   CPU_MMA_LANES);
    if (kinds == 2)
        cpu_interleave(at + CPU_MMA_LANES * bytes, 2 * CPU_MMA_LANES, rows + biases_at, stride,
                       bytes, groups, CPU_MMA_LANES);
    struct cpu_mma_packed p = packed_tile(w, tile);
    w->plain[tile] = tile_is_plain(w, &p);
    return ERR_OK;
}

static uint16_t dense_bf16(const uint8_t *row, enum dtype t, int64_t i)
{
    if (t == DT_BF16)
        return load_u16(row + 2 * i);
    return bf16_from_f32(t == DT_F16 ? f16_to_f32(load_u16(row + 2 * i)) : load_f32(row + 4 * i));
}

static enum err_code load_dense_tile(const struct load *l, int64_t tile, uint8_t *rows,
                                     struct err *e)
{
    struct cpu_mma_weight *w = l->w;
    uint8_t *pairs = (uint8_t *)(w->codes + (size_t)tile * w->tile_words);
    for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
        uint8_t *row = rows + (size_t)lane * l->stride;
        enum err_code rc = kern_source_dense_row(l->src, lane_row(w, tile, lane), row, e);
        if (rc != ERR_OK)
            return rc;
        for (int64_t i = 0; l->src->dtype != DT_BF16 && i < w->base.k; i++)
            store_u16(row + 2 * i, dense_bf16(row, l->src->dtype, i)); /* never overtakes */
        memset(row + 2 * w->base.k, 0, (size_t)(w->k_pad - w->base.k) * 2);
    }
    cpu_interleave(pairs, CPU_MMA_LANES, rows, l->stride, 4, w->k_pad / 2, CPU_MMA_LANES);
    return ERR_OK;
}

static void load_tile(void *ctx, int64_t tile, int thread)
{
    struct load *l = ctx;
    uint8_t *row = l->rows + (size_t)thread * CPU_MMA_LANES * l->stride;
    int64_t row0 = tile * CPU_MMA_LANES;
    if (l->rc[thread] != ERR_OK)
        return;
    if (l->w->base.packed)
        l->rc[thread] = load_packed_tile(l, tile, row, &l->err[thread]);
    else
        l->rc[thread] = load_dense_tile(l, tile, row, &l->err[thread]);
    kern_source_passed(l->src, row0, MIN2((int64_t)CPU_MMA_LANES, l->w->base.rows - row0));
}

static enum err_code load_tiles(struct load *l, int threads, struct err *e)
{
    enum err_code rc = ERR_OK;
    size_t n = (size_t)threads;
    size_t row = (size_t)l->w->k_pad * (size_t)dtype_bits(l->src->dtype) / 8;
    if (l->src->packed)
        row = align_up(qformat_row_bytes(l->src->q, l->src->k), 8) +
              2 * (size_t)(l->src->k / l->src->q.group) * 4;
    l->stride = cpu_interleave_stride(row);
    l->rows = malloc(n * CPU_MMA_LANES * l->stride);
    l->rc = calloc(n, sizeof *l->rc);
    l->err = calloc(n, sizeof *l->err);
    if (!l->rows || !l->rc || !l->err) {
        rc = err_set(e, ERR_NOMEM, "no memory for %zu row buffers of %zu bytes", n * CPU_MMA_LANES,
                     l->stride);
        goto out;
    }
    par_for(threads, l->w->n_tiles, load_tile, l);
    kern_source_done(l->src);
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        rc = l->rc[i];
        if (rc != ERR_OK && e)
            *e = l->err[i];
    }
out:
    free(l->rows);
    free(l->rc);
    free(l->err);
    return rc;
}

enum err_code cpu_mma_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                                  struct kern_weight **w, struct err *e)
{
    struct kern_source src;
    struct layout l;
    struct cpu_mma_weight *m = NULL;
    uint8_t *block = NULL;
    *w = NULL;
    enum err_code rc = kern_source_init(&src, parts, n, e);
    if (rc != ERR_OK)
        return rc;
    m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a weight's %zu bytes", sizeof *m);
    if (!lay_out(&src, m, &l)) {
        rc = err_set(e, ERR_INPUT, "a matrix of %lld x %lld is too large", (long long)src.rows,
                     (long long)src.k);
        goto out;
    }
    block = cpu_alloc_weight(l.bytes);
    if (!block) {
        rc = err_set(e, ERR_NOMEM, "no memory for a weight of %zu bytes", l.bytes);
        goto out;
    }
    m->base.bytes = l.bytes;
    m->codes = (uint32_t *)(void *)(block + l.codes);
    m->scales = block + l.scales;
    m->plain = block + l.plain;
    m->globals = src.globals ? (float *)(void *)(block + l.globals) : NULL;
    rc = load_tiles(&(struct load){.src = &src, .w = m}, k->threads, e);
out:
    if (rc != ERR_OK) {
        free(block);
        free(m);
        return rc;
    }
    *w = &m->base;
    return ERR_OK;
}

void cpu_mma_weight_free(struct kern *k, struct kern_weight *w)
{
    (void)k;
    if (!w)
        return;
    free(((struct cpu_mma_weight *)w)->codes);
    free(w);
}

/* ---- expansion --------------------------------------------------------------------------------
 */

void cpu_mma_weight_expand(const struct cpu_mma_weight *w, const struct cpu_mma_ops *ops,
                           int64_t tile, int64_t k0, int n, struct cpu_mma_strip *out)
{
    if (w->base.packed) {
        struct cpu_mma_packed p = packed_tile(w, tile);
        ops->expand_packed(&p, k0, n, out);
        return;
    }
    const uint32_t *pairs = w->codes + (size_t)tile * w->tile_words;
    ops->expand_pairs(pairs + k0 / 2 * CPU_MMA_LANES, n, out);
}

void cpu_mma_weight_row(const struct cpu_mma_weight *w, int64_t r, int64_t k0, int n, uint16_t *out)
{
    int64_t tile = r / CPU_MMA_LANES;
    int lane = (int)(r % CPU_MMA_LANES);
    if (w->base.packed) {
        struct cpu_mma_packed p = packed_tile(w, tile);
        for (int i = 0; i < n; i++)
            out[i] = cpu_mma_step_value(&p, k0 + i, lane);
        return;
    }
    const uint32_t *pairs = w->codes + (size_t)tile * w->tile_words + lane;
    for (int64_t i = k0; i < k0 + n; i++)
        out[i - k0] = (uint16_t)(pairs[i / 2 * CPU_MMA_LANES] >> (i % 2 * 16));
}
