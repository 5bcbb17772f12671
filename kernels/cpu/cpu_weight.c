/* cpu_weight.c: matrices of the f32 arithmetic: from rows to tiles of 32 rows at load, and single
 * rows back for the embedding. The layout stands in cpu_private.h.
 */
#include "kernels/cpu/cpu_private.h"

#include <stdlib.h>

#include "common/par.h"

struct sizes {
    int64_t n_tiles;
    size_t tile, tile_scale, total;
    enum dtype scale;
};

/* Scales and biases of a lane and group. */
static size_t scales_of_group(struct qformat q)
{
    return qformat_is_block(q) ? 1 : 2;
}

static bool measure(const struct kern_source *s, struct sizes *z)
{
    z->n_tiles = (s->rows + CPU_TILE - 1) / CPU_TILE;
    z->tile_scale = 0;
    z->scale = !s->packed ? DT_UNKNOWN : s->globals ? DT_F32 : s->q.scale;
    bool fits;
    if (s->packed) {
        size_t scales = scales_of_group(s->q) * (size_t)qformat_scale_size(z->scale);
        z->tile = qformat_row_bytes(s->q, s->k) * CPU_TILE;
        fits = checked_mul((size_t)(s->k / s->q.group), CPU_TILE * scales, &z->tile_scale);
    } else {
        fits = checked_mul((size_t)s->k, CPU_TILE * (size_t)dtype_bits(s->dtype) / 8, &z->tile);
    }
    size_t sum;
    return fits && checked_add(z->tile, z->tile_scale, &sum) &&
           checked_mul((size_t)z->n_tiles, sum, &z->total);
}

size_t cpu_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    (void)k;
    struct kern_source s;
    struct sizes z;
    return kern_source_init(&s, parts, n, NULL) == ERR_OK && measure(&s, &z) ? z.total : 0;
}

/* ---- one tile -----------------------------------------------------------------------------------
 */
/* Widths of the planes of a code, low first; the second may be 0. */
static int plane_low(int bits)
{
    return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}

/* Puts the p-bit piece of element k of a lane into a plane of an eight-block. */
static void put_piece(uint8_t *plane, int p, int lane, int k, uint32_t piece)
{
    int per = 8 / p;
    plane[(k / per) * CPU_TILE + lane] |= (uint8_t)(piece << (k % per) * p);
}

static uint32_t get_piece(const uint8_t *plane, int p, int lane, int k)
{
    int per = 8 / p;
    return (uint32_t)plane[(k / per) * CPU_TILE + lane] >> (k % per) * p & ((1u << p) - 1u);
}

static void put_codes(uint8_t *tile, int bits, int64_t k, int lane, const uint8_t *row)
{
    int low = plane_low(bits), high = bits - low;
    if (!high) { /* one plane: its bytes are those of the row's bit stream */
        for (int64_t i = 0; i < k * bits / 8; i++)
            tile[i * CPU_TILE + lane] = row[i];
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        uint8_t *block = tile + i / 8 * bits * CPU_TILE;
        uint32_t q = qformat_code(row, bits, i);
        put_piece(block, low, lane, (int)(i % 8), q & ((1u << low) - 1u));
        put_piece(block + low * CPU_TILE, high, lane, (int)(i % 8), q >> low);
    }
}

static uint32_t get_code(const uint8_t *tile, int bits, int lane, int64_t i)
{
    int low = plane_low(bits), high = bits - low;
    const uint8_t *block = tile + i / 8 * bits * CPU_TILE;
    uint32_t q = get_piece(block, low, lane, (int)(i % 8));
    if (high)
        q |= get_piece(block + low * CPU_TILE, high, lane, (int)(i % 8)) << low;
    return q;
}

/* n elements of a row, `bytes` each, into column `lane` of a [n][32] block. */
static void put_column(uint8_t *block, size_t bytes, int64_t n, int64_t step, int lane,
                       const uint8_t *row)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(block + (size_t)(i * step + lane) * bytes, row + (size_t)i * bytes, bytes);
}

struct load {
    const struct kern_source *s;
    struct cpu_weight *w;
    uint8_t *rows; /* per thread: one row of codes, scales and biases, or of elements */
    size_t row_bytes;
    enum err_code *rc; /* per thread */
    struct err *err;
    bool *shiftable;
};

static bool exact_shift(float s)
{
    return (s * 0x1p-6f) * 0x1p6f == s || s != s;
}

/* A block float's scales into a tile; f32 ones are those of the row times its global scale. */
static void put_block_scales(const struct load *l, uint8_t *tile, int64_t r, int lane,
                             const uint8_t *scales)
{
    const struct kern_source *s = l->s;
    int64_t n = s->k / s->q.group;
    if (!s->globals) {
        put_column(tile, 1, n, CPU_TILE, lane, scales);
        return;
    }
    float global = kern_source_global(s, r);
    for (int64_t i = 0; i < n; i++)
        store_u32(tile + 4 * (i * CPU_TILE + lane),
                  f32_bits(qformat_scale(scales, s->q.scale, i) * global));
}

static enum err_code load_packed_row(const struct load *l, int64_t r, int thread, uint8_t *row)
{
    const struct kern_source *s = l->s;
    const struct cpu_weight *w = l->w;
    int64_t tile = r / CPU_TILE, n = s->k / s->q.group;
    int lane = (int)(r % CPU_TILE);
    size_t bytes = (size_t)qformat_scale_size(s->q.scale);
    uint8_t *scales = row + qformat_row_bytes(s->q, s->k);
    uint8_t *biases = scales + (size_t)n * bytes;
    uint8_t *to = w->scales + (size_t)tile * w->tile_scale_bytes;
    enum err_code rc = kern_source_packed_row(s, r, row, scales, biases, &l->err[thread]);
    if (rc != ERR_OK)
        return rc;
    put_codes(w->codes + (size_t)tile * w->tile_bytes, s->q.bits, s->k, lane, row);
    if (qformat_is_block(s->q)) {
        put_block_scales(l, to, r, lane, scales);
        return ERR_OK;
    }
    put_column(to, bytes, n, 2 * CPU_TILE, lane, scales);
    put_column(to + CPU_TILE * bytes, bytes, n, 2 * CPU_TILE, lane, biases);
    for (int64_t i = 0; i < n; i++)
        l->shiftable[thread] &= exact_shift(qformat_scale(scales, s->q.scale, i));
    return ERR_OK;
}

static void load_tile(void *ctx, int64_t tile, int thread)
{
    const struct load *l = ctx;
    const struct kern_source *s = l->s;
    struct cpu_weight *w = l->w;
    uint8_t *row = l->rows + (size_t)thread * l->row_bytes;
    uint8_t *codes = w->codes + (size_t)tile * w->tile_bytes;
    for (int lane = 0; lane < CPU_TILE && tile * CPU_TILE + lane < s->rows; lane++) {
        int64_t r = tile * CPU_TILE + lane;
        if (l->rc[thread] != ERR_OK)
            return;
        if (s->packed) {
            l->rc[thread] = load_packed_row(l, r, thread, row);
            continue;
        }
        l->rc[thread] = kern_source_dense_row(s, r, row, &l->err[thread]);
        put_column(codes, (size_t)dtype_bits(s->dtype) / 8, s->k, CPU_TILE, lane, row);
    }
}

static enum err_code fill(struct cpu_weight *w, const struct kern_source *s, int threads,
                          struct err *e)
{
    size_t n = (size_t)threads;
    size_t row_bytes =
        s->packed ? w->tile_bytes / CPU_TILE + w->tile_scale_bytes / CPU_TILE : (size_t)s->k * 4;
    struct load l = {.s = s, .w = w, .row_bytes = align_up(row_bytes, 64)};
    enum err_code rc = ERR_OK;
    l.rows = calloc(n, l.row_bytes);
    l.rc = calloc(n, sizeof *l.rc);
    l.err = calloc(n, sizeof *l.err);
    l.shiftable = malloc(n * sizeof *l.shiftable);
    if (!l.rows || !l.rc || !l.err || !l.shiftable) {
        rc = err_set(e, ERR_NOMEM, "out of memory: %zu bytes", n * l.row_bytes);
        goto out;
    }
    for (size_t i = 0; i < n; i++)
        l.shiftable[i] = true;
    par_for(threads, w->n_tiles, load_tile, &l);
    w->shiftable = true;
    for (size_t i = 0; i < n; i++) {
        w->shiftable &= l.shiftable[i];
        if (rc == ERR_OK && l.rc[i] != ERR_OK) {
            rc = l.rc[i];
            if (e)
                *e = l.err[i];
        }
    }
out:
    free(l.rows);
    free(l.rc);
    free(l.err);
    free(l.shiftable);
    return rc;
}

enum err_code cpu_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                              struct kern_weight **out, struct err *e)
{
    struct kern_source s;
    struct sizes z;
    enum err_code rc = kern_source_init(&s, parts, n, e);
    if (rc != ERR_OK)
        return rc;
    if (!measure(&s, &z))
        return err_set(e, ERR_INPUT, "%s: %lld rows of %lld do not fit into memory", parts[0]->name,
                       (long long)s.rows, (long long)s.k);
    struct cpu_weight *w = calloc(1, sizeof *w);
    if (w)
        w->codes = cpu_alloc_zeroed(z.total);
    if (!w || !w->codes) {
        free(w);
        return err_set(e, ERR_NOMEM, "%s: out of memory: %zu bytes", parts[0]->name, z.total);
    }
    w->base = (struct kern_weight){
        .rows = s.rows, .k = s.k, .packed = s.packed, .q = s.q, .dtype = s.dtype, .bytes = z.total};
    w->n_tiles = z.n_tiles;
    w->tile_bytes = z.tile;
    w->tile_scale_bytes = z.tile_scale;
    w->scale = z.scale;
    w->scales = w->codes + (size_t)z.n_tiles * z.tile;
    rc = fill(w, &s, k->threads, e);
    if (rc != ERR_OK) {
        cpu_weight_free(k, &w->base);
        return err_wrap(e, rc, "%s", parts[0]->name);
    }
    *out = &w->base;
    return ERR_OK;
}

void cpu_weight_free(struct kern *k, struct kern_weight *kw)
{
    (void)k;
    struct cpu_weight *w = (struct cpu_weight *)kw;
    if (w)
        free(w->codes);
    free(w);
}

void cpu_weight_row(const struct cpu_weight *w, int64_t r, float *out)
{
    int64_t tile = r / CPU_TILE;
    int lane = (int)(r % CPU_TILE);
    const uint8_t *codes = w->codes + (size_t)tile * w->tile_bytes;
    if (!w->base.packed) {
        for (int64_t i = 0; i < w->base.k; i++)
            out[i] = qformat_scale(codes, w->base.dtype, i * CPU_TILE + lane);
        return;
    }
    const struct qformat q = w->base.q;
    const uint8_t *scales = w->scales + (size_t)tile * w->tile_scale_bytes;
    for (int64_t g = 0; g < w->base.k / q.group && qformat_is_block(q); g++) {
        float s = qformat_scale(scales, w->scale, g * CPU_TILE + lane);
        for (int64_t i = g * q.group; i < (g + 1) * q.group; i++)
            out[i] = qformat_element(q.bits, get_code(codes, q.bits, lane, i)) * s;
    }
    for (int64_t g = 0; g < w->base.k / q.group && !qformat_is_block(q); g++) {
        float s = qformat_scale(scales, q.scale, g * 2 * CPU_TILE + lane);
        float b = qformat_scale(scales, q.scale, (g * 2 + 1) * CPU_TILE + lane);
        for (int64_t i = g * q.group; i < (g + 1) * q.group; i++)
            out[i] = fmaf((float)get_code(codes, q.bits, lane, i), s, b);
    }
}
