/* cpu_weight.c: matrices of the f32 arithmetic: from rows to tiles of 32 rows at load, and single
 * rows back for the embedding. The layout stands in cpu_private.h.
 */
#include "kernels/cpu/cpu_private.h"

#include <stdlib.h>

#include "common/par.h"
#include "kernels/cpu/cpu_interleave.h"

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

static uint32_t get_piece(const uint8_t *plane, int p, int lane, int k)
{
    int per = 8 / p;
    return (uint32_t)plane[(k / per) * CPU_TILE + lane] >> (k % per) * p & ((1u << p) - 1u);
}

/* Keeps the low p of each of eight fields of w bits, one behind another: neighbours close up in
 * pairs, in fours, in eights. */
static uint64_t close_up(uint64_t v, int w, int p)
{
    for (int n = 1; n < 8; n *= 2) {
        uint64_t field = ((uint64_t)1 << n * p) - 1, even = 0;
        for (int i = 0; i < 8 / n; i += 2)
            even |= field << i * n * w;
        v = (v & even) | (v >> n * (w - p) & even << n * p);
    }
    return v;
}

/* A row of codes of two planes, eight codes at a time: the bytes of the low one, then those of the
 * high one. A row of one plane is its bit stream. */
static void cut_planes(uint8_t *row, int bits, int64_t k)
{
    const int low = plane_low(bits), high = bits - low;
    for (int64_t i = 0; high && i < k / 8; i++, row += bits) {
        uint64_t v = 0, highs = 0, lows = 0;
        for (int b = 0; b < bits; b++)
            v |= (uint64_t)row[b] << 8 * b;
        for (int c = 0; c < 8; c++)
            highs |= ((uint64_t)0xff >> (8 - high)) << c * bits;
        lows = v & ~(highs << low);
        lows = close_up(lows, bits, low) | close_up(v >> low & highs, bits, high) << 8 * low;
        for (int b = 0; b < bits; b++)
            row[b] = (uint8_t)(lows >> 8 * b);
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

struct load {
    const struct kern_source *s;
    struct cpu_weight *w;
    uint8_t *rows;     /* per thread: the rows of a tile (struct rows) */
    size_t row_bytes;  /* of a thread's */
    enum err_code *rc; /* per thread */
    struct err *err;
    bool *shiftable;
};

static bool exact_shift(float s)
{
    return (s * 0x1p-6f) * 0x1p6f == s || s != s;
}

/* The rows of a tile as they stand in a thread's buffer: one array of each kind, rows of `stride`
 * bytes; those beyond the last are zero. */
struct rows {
    uint8_t *codes, *scales, *biases;
    size_t stride, scale_stride;
};

static struct rows rows_of(const struct kern_source *s, uint8_t *buffer)
{
    struct rows r = {.codes = buffer};
    if (!s->packed) {
        r.stride = cpu_interleave_stride((size_t)s->k * (size_t)dtype_bits(s->dtype) / 8);
        return r;
    }
    size_t scales = (size_t)(s->k / s->q.group) * 4; /* f32 is the longest type */
    r.stride = cpu_interleave_stride(qformat_row_bytes(s->q, s->k));
    r.scale_stride = cpu_interleave_stride(scales);
    if (buffer) {
        r.scales = r.codes + CPU_TILE * r.stride;
        r.biases = r.scales + CPU_TILE * r.scale_stride;
    }
    return r;
}

static size_t buffer_bytes(const struct kern_source *s)
{
    struct rows r = rows_of(s, NULL);
    return CPU_TILE * (r.stride + 2 * r.scale_stride);
}

/* A block float's scales of a row, times its global one, are f32. */
static void multiply_scales(const struct kern_source *s, int64_t r, uint8_t *scales)
{
    float global = kern_source_global(s, r);
    for (int64_t i = s->k / s->q.group - 1; i >= 0; i--) /* they grow in place */
        store_u32(scales + 4 * i, f32_bits(qformat_scale(scales, s->q.scale, i) * global));
}

static enum err_code read_row(const struct load *l, const struct rows *at, int lane, int64_t r,
                              int thread)
{
    const struct kern_source *s = l->s;
    uint8_t *codes = at->codes + (size_t)lane * at->stride;
    if (!s->packed)
        return kern_source_dense_row(s, r, codes, &l->err[thread]);
    uint8_t *scales = at->scales + (size_t)lane * at->scale_stride;
    enum err_code rc = kern_source_packed_row(
        s, r, codes, scales, at->biases + (size_t)lane * at->scale_stride, &l->err[thread]);
    if (rc != ERR_OK)
        return rc;
    cut_planes(codes, s->q.bits, s->k);
    if (s->globals)
        multiply_scales(s, r, scales);
    for (int64_t i = 0; !qformat_is_block(s->q) && i < s->k / s->q.group; i++)
        l->shiftable[thread] &= exact_shift(qformat_scale(scales, s->q.scale, i));
    return ERR_OK;
}

static void put_tile(const struct load *l, const struct rows *at, int64_t tile)
{
    const struct kern_source *s = l->s;
    struct cpu_weight *w = l->w;
    uint8_t *codes = w->codes + (size_t)tile * w->tile_bytes;
    if (!s->packed) {
        cpu_interleave(codes, CPU_TILE, at->codes, at->stride, (size_t)dtype_bits(s->dtype) / 8,
                       s->k, CPU_TILE);
        return;
    }
    uint8_t *scales = w->scales + (size_t)tile * w->tile_scale_bytes;
    const int64_t n = s->k / s->q.group, kinds = (int64_t)scales_of_group(s->q);
    const size_t bytes = (size_t)qformat_scale_size(w->scale);
    cpu_interleave(codes, CPU_TILE, at->codes, at->stride, 1, s->k / 8 * s->q.bits, CPU_TILE);
    cpu_interleave(scales, kinds * CPU_TILE, at->scales, at->scale_stride, bytes, n, CPU_TILE);
    if (kinds == 2)
        cpu_interleave(scales + CPU_TILE * bytes, 2 * CPU_TILE, at->biases, at->scale_stride, bytes,
                       n, CPU_TILE);
}

static void load_tile(void *ctx, int64_t tile, int thread)
{
    const struct load *l = ctx;
    struct rows at = rows_of(l->s, l->rows + (size_t)thread * l->row_bytes);
    int64_t row0 = tile * CPU_TILE, n = MIN2((int64_t)CPU_TILE, l->s->rows - row0);
    if (n < CPU_TILE)
        memset(at.codes, 0, l->row_bytes);
    for (int64_t i = 0; i < n; i++) {
        if (l->rc[thread] == ERR_OK)
            l->rc[thread] = read_row(l, &at, (int)i, row0 + i, thread);
    }
    if (l->rc[thread] != ERR_OK)
        return;
    put_tile(l, &at, tile);
    kern_source_passed(l->s, row0, n);
}

static enum err_code fill(struct cpu_weight *w, const struct kern_source *s, int threads,
                          struct err *e)
{
    size_t n = (size_t)threads;
    struct load l = {.s = s, .w = w};
    enum err_code rc = ERR_OK;
    l.row_bytes = buffer_bytes(s);
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
    kern_source_done(s);
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
        w->codes = cpu_alloc_weight(z.total);
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
