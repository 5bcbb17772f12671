/* cpu_mma_linear.c: rule 2 in mma90: products of bf16 rows with a matrix, plain and by experts, and
 * the embedding.
 *
 * A work item is a run of tiles. For sixteen rows at a time and chunk by chunk it prepares the
 * inputs once, then expands each tile in strips that stay in L1 and chains the sixteen rows over
 * each strip. An output's chain never leaves its lane, and its chunk sums are added into its place
 * in ascending order, so nothing depends on the number of rows, threads or items.
 */
#include "kernels/cpu/cpu_mma_private.h"

#include "common/par.h"
#include "kernels/cpu/cpu_step.h"

#define BLOCK     16  /* input rows that share an expanded strip */
#define CHUNK_MAX 512 /* longest chunk of rule 2 */

/* out[i, r - row0] = x[i, :] * W[r, :]^T + bias for rows r in [row0, row0 + rows). */
struct product {
    const struct cpu_mma_weight *w;
    const struct cpu_mma_ops *ops;
    const uint16_t *x;
    int64_t x_stride;
    int n;               /* input rows */
    const int32_t *pair; /* their numbers, or NULL: 0, 1, ... */
    int x_div;           /* input row number / x_div = row of x */
    const float *bias;
    float *out; /* row number = input row's */
    int64_t out_stride, row0, rows;
};

/* The chunk's inputs of up to BLOCK rows. */
struct block {
    _Alignas(64) float v[BLOCK][CHUNK_MAX];
    _Alignas(64) uint32_t e[BLOCK][CHUNK_MAX / 2];
    uint8_t wide[BLOCK][CHUNK_MAX / MMA90_K];
};

static struct cpu_mma_input block_row(struct block *b, int i)
{
    struct cpu_mma_input x = {b->v[i], b->e[i], b->wide[i]};
    return x;
}

static int64_t row_number(const struct product *p, int i)
{
    return p->pair ? p->pair[i] : i;
}

static const uint16_t *input_row(const struct product *p, int i)
{
    return p->x + row_number(p, i) / p->x_div * p->x_stride;
}

static bool is_nan_bf16(uint16_t h)
{
    return (h & 0x7fffu) > 0x7f80u;
}

/* Prepares k in [k0, k0 + n) of rows [i0, i0 + count); what lies past the row's end is +0. */
static void prepare_block(const struct product *p, int i0, int count, int64_t k0, int n,
                          struct block *b)
{
    uint16_t copy[CHUNK_MAX];
    bool leak = kern_planted() == KERN_FAULT_NEIGHBOUR;
    int whole = (n + MMA90_K - 1) / MMA90_K * MMA90_K;
    for (int i = 0; i < count; i++) {
        const uint16_t *x = input_row(p, i0 + i) + k0;
        if (whole != n || leak) {
            memset(copy, 0, sizeof copy);
            memcpy(copy, x, (size_t)n * sizeof *x);
            for (int j = 0; leak && i0 + i > 0 && j < n; j++) {
                if (is_nan_bf16(input_row(p, i0 + i - 1)[k0 + j]))
                    copy[j] = 0x7fffu;
            }
            x = copy;
        }
        p->ops->prepare(x, whole, block_row(b, i));
    }
}

/* Lanes of a tile that are outputs of the product: [*lo, *hi). */
static void tile_lanes(const struct product *p, int64_t tile, int *lo, int *hi)
{
    int64_t first = tile * CPU_MMA_LANES, end = p->row0 + p->rows;
    *lo = (int)MAX2(p->row0 - first, 0);
    *hi = (int)MIN2(end - first, CPU_MMA_LANES);
}

static float *output_at(const struct product *p, int i, int64_t tile, int lane)
{
    return p->out + row_number(p, i) * p->out_stride + tile * CPU_MMA_LANES + lane - p->row0;
}

/* One tile, one chunk, a block of rows: chains from +0, then the chunk sums join the outputs. */
static void run_chunk(const struct product *p, int64_t tile, int64_t k0, int n, int i0, int count,
                      bool first, struct block *b)
{
    struct cpu_mma_strip strip;
    _Alignas(64) float acc[BLOCK][CPU_MMA_LANES];
    int lo, hi, whole = (n + MMA90_K - 1) / MMA90_K * MMA90_K;
    memset(acc, 0, (size_t)count * sizeof acc[0]);
    for (int at = 0; at < whole; at += CPU_MMA_STRIP) {
        int len = MIN2(whole - at, CPU_MMA_STRIP);
        cpu_mma_weight_expand(p->w, p->ops, tile, k0 + at, len, &strip);
        for (int i = 0; i < count; i++)
            p->ops->chain(&strip, cpu_mma_input_at(block_row(b, i), at), len / MMA90_K, acc[i]);
    }
    tile_lanes(p, tile, &lo, &hi);
    for (int i = 0; i < count; i++) {
        float *out = output_at(p, i0 + i, tile, lo);
        for (int lane = lo; lane < hi; lane++)
            out[lane - lo] = first ? acc[i][lane] : out[lane - lo] + acc[i][lane];
    }
}

/* Bias, and the one bit pattern of a NaN. */
static void finish_tile(const struct product *p, int64_t tile, int i0, int count)
{
    int lo, hi;
    tile_lanes(p, tile, &lo, &hi);
    for (int i = 0; i < count; i++) {
        float *out = output_at(p, i0 + i, tile, lo);
        const float *bias = p->bias ? p->bias + (tile * CPU_MMA_LANES + lo - p->row0) : NULL;
        for (int lane = 0; lane < hi - lo; lane++) {
            float v = bias ? out[lane] + bias[lane] : out[lane];
            out[lane] = isnan(v) ? f32_from_bits(MMA90_NAN) : v;
        }
    }
}

/* Planted faults of the order of chunk sums. */
static bool order_is_reversed(const struct product *p, int thread)
{
    enum kern_fault f = kern_planted();
    return (f == KERN_FAULT_CHUNK_ORDER && p->n > 1) ||
           (f == KERN_FAULT_THREAD_ORDER && thread != 0) ||
           (f == KERN_FAULT_PLAIN_C && p->ops == &cpu_mma_ops_c) ||
           kern_planted_order(thread, p->w->base.k);
}

static void run_product(const struct product *p, int64_t tile0, int64_t tile1, int thread)
{
    struct block b;
    int64_t k = p->w->base.k, chunk = mma90_chunk(k), n_chunks = (k + chunk - 1) / chunk;
    bool reversed = order_is_reversed(p, thread);
    for (int i0 = 0; i0 < p->n; i0 += BLOCK) {
        int count = MIN2(p->n - i0, BLOCK);
        for (int64_t c = 0; c < n_chunks; c++) {
            int64_t k0 = (reversed ? n_chunks - 1 - c : c) * chunk;
            int n = (int)MIN2(k - k0, chunk);
            prepare_block(p, i0, count, k0, n, &b);
            for (int64_t tile = tile0; tile < tile1; tile++)
                run_chunk(p, tile, k0, n, i0, count, c == 0, &b);
        }
        for (int64_t tile = tile0; tile < tile1; tile++)
            finish_tile(p, tile, i0, count);
    }
}

/* Tiles of a work item: few enough that threads end together, enough to pay for the inputs. */
static int64_t item_tiles(int64_t n_tiles, int threads)
{
    int64_t n = n_tiles / ((int64_t)threads * 4);
    return n < 1 ? 1 : MIN2(n, 16);
}

/* ---- linear -----------------------------------------------------------------------------------
 */

struct linear_ctx {
    struct product part[LINEAR_PARTS_MAX];
    int64_t first[LINEAR_PARTS_MAX + 1]; /* items before each part */
    int n_parts;
    int64_t tiles; /* of an item */
};

static void run_linear_item(void *ctx, int64_t i, int thread)
{
    const struct linear_ctx *l = ctx;
    int part = 0;
    while (i >= l->first[part + 1])
        part++;
    int64_t tile0 = (i - l->first[part]) * l->tiles;
    int64_t tile1 = MIN2(tile0 + l->tiles, l->part[part].w->n_tiles);
    run_product(&l->part[part], tile0, tile1, thread);
}

enum err_code cpu_mma_linear(struct kern *k, const struct linear_args *a, struct err *e)
{
    struct linear_ctx l = {.n_parts = a->n_parts};
    const struct cpu_mma_ops *ops = cpu_mma_ops_of(cpu_of(k)->isa);
    int64_t n_tiles = 0;
    (void)e;
    for (int i = 0; i < a->n_parts; i++) {
        const struct linear_part *part = &a->part[i];
        const struct cpu_mma_weight *w = cpu_mma_weight_of(part->w);
        l.part[i] = (struct product){.w = w,
                                     .ops = ops,
                                     .x = a->x,
                                     .x_stride = a->x_stride,
                                     .n = a->n_tok,
                                     .x_div = 1,
                                     .bias = part->bias,
                                     .out = part->out,
                                     .out_stride = part->out_stride,
                                     .rows = w->base.rows};
        n_tiles += w->n_tiles;
    }
    l.tiles = item_tiles(n_tiles, k->threads);
    for (int i = 0; i < a->n_parts; i++)
        l.first[i + 1] = l.first[i] + (l.part[i].w->n_tiles + l.tiles - 1) / l.tiles;
    int threads = cpu_threads_for(k, n_tiles * CPU_MMA_LANES * a->part[0].w->k);
    par_for(a->n_tok > 0 ? threads : 1, l.first[a->n_parts], run_linear_item, &l);
    return ERR_OK;
}

/* ---- experts ----------------------------------------------------------------------------------
 */

struct expert_ctx {
    const struct expert_linear_args *a;
    const struct cpu_mma_ops *ops;
    int64_t tiles, items; /* tiles of an item, items of an expert */
};

static void run_expert_item(void *ctx, int64_t i, int thread)
{
    const struct expert_ctx *c = ctx;
    const struct expert_linear_args *a = c->a;
    int64_t expert = i / c->items, row0 = expert * a->rows;
    int32_t from = a->first[expert], to = a->first[expert + 1];
    struct product p = {.w = cpu_mma_weight_of(a->w),
                        .ops = c->ops,
                        .x = a->x,
                        .x_stride = a->w->k,
                        .n = to - from,
                        .pair = a->order + from,
                        .x_div = a->x_div,
                        .bias = a->bias ? a->bias + row0 : NULL,
                        .out = a->out,
                        .out_stride = a->out_stride,
                        .row0 = row0,
                        .rows = a->rows};
    /* An expert's rows may start inside a tile: neighbours compute it twice and write their own. */
    int64_t first = row0 / CPU_MMA_LANES;
    int64_t end = (row0 + a->rows + CPU_MMA_LANES - 1) / CPU_MMA_LANES;
    int64_t tile0 = first + i % c->items * c->tiles, tile1 = MIN2(tile0 + c->tiles, end);
    if (p.n > 0 && tile0 < tile1)
        run_product(&p, tile0, tile1, thread);
}

enum err_code cpu_mma_expert_linear(struct kern *k, const struct expert_linear_args *a,
                                    struct err *e)
{
    struct expert_ctx c = {.a = a, .ops = cpu_mma_ops_of(cpu_of(k)->isa)};
    int64_t tiles = a->rows / CPU_MMA_LANES + 2; /* at most */
    (void)e;
    c.tiles = item_tiles(tiles, k->threads);
    c.items = (tiles + c.tiles - 1) / c.tiles;
    int threads = cpu_threads_for(k, a->n_pairs * a->rows * a->w->k);
    par_for(threads, c.items * a->n_expert, run_expert_item, &c);
    return ERR_OK;
}

/* ---- embedding --------------------------------------------------------------------------------
 */

static void run_embed_row(void *ctx, int64_t t, int thread)
{
    const struct embed_args *a = ctx;
    const struct cpu_mma_weight *w = cpu_mma_weight_of(a->w);
    uint16_t piece[CHUNK_MAX];
    float *out = a->out + t * w->base.k;
    (void)thread;
    for (int64_t k0 = 0; k0 < w->base.k; k0 += CHUNK_MAX) {
        int n = (int)MIN2(w->base.k - k0, CHUNK_MAX);
        cpu_mma_weight_row(w, a->rows->id[t], k0, n, piece);
        for (int i = 0; i < n; i++)
            out[k0 + i] = a->scale * bf16_to_f32(piece[i]);
    }
}

enum err_code cpu_mma_embed(struct kern *k, const struct embed_args *a, struct err *e)
{
    struct embed_args copy = *a;
    for (int t = 0; t < a->rows->n_tok; t++) {
        if (a->rows->id[t] < 0 || a->rows->id[t] >= a->w->rows)
            return err_set(e, ERR_INTERNAL, "row %d: token %d of %lld", t, a->rows->id[t],
                           (long long)a->w->rows);
    }
    par_for(cpu_threads_for(k, a->rows->n_tok * a->w->k), a->rows->n_tok, run_embed_row, &copy);
    return ERR_OK;
}
