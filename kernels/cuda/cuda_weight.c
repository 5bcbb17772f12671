/* cuda_weight.c: weights of the CUDA backend: sizes, and the load.
 *
 * Host code alone. Rows go from where the checkpoint has them into pinned slots, by all threads,
 * and from there to the device, which puts them in order (cuda_load.cu); so a load holds no more
 * host memory than the slots. Rows of which sixteen are longer than a slot are put in order here, a
 * batch of tiles at a time.
 */
#include "kernels/cuda/cuda_weight.h"

#include "common/par.h"
#include "kernels/cuda/cuda_slot.h"

#define BATCH_BYTES  (32u << 20) /* of tiles put in order on the host */
#define SCAN_THREADS 64

static int load_threads(void)
{
    return par_default_threads();
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

/* Rows of a part that a thread looks at. */
#define SCAN_ROWS 256

struct scan {
    const struct kern_source *src;
    const struct ckpt_weight *w;
    int *most; /* of each thread */
};

/* The largest scale byte of a block float's rows [r, end); how the affine ones' scales can be
 * stored. */
static int scan_rows(const struct kern_source *s, const struct ckpt_weight *w, int64_t r,
                     int64_t end)
{
    bool ggml = w->enc == CKPT_GGML; /* MXFP4: a block is the scale, then its sixteen bytes */
    int most = 0;
    for (int64_t n; r < end; r += n) {
        struct ckpt_block at;
        n = MIN2(ckpt_weight_at(w, r, &at), end - r);
        int64_t groups = n * (s->k / s->q.group);
        if (!qformat_is_block(s->q))
            most = MAX2(most, (int)cuda_order_choose(at.scales, groups, s->q.bits));
        for (int64_t i = 0; qformat_is_block(s->q) && i < groups; i++)
            most = MAX2(most, ggml ? at.data[17 * i] : at.scales[i]);
    }
    return most;
}

static void scan_some(void *ctx, int64_t i, int thread)
{
    const struct scan *c = ctx;
    int64_t end = MIN2((i + 1) * SCAN_ROWS, ckpt_weight_rows(c->w));
    c->most[thread] = MAX2(c->most[thread], scan_rows(c->src, c->w, i * SCAN_ROWS, end));
}

static int scan_part(const struct kern_source *s, const struct ckpt_weight *w)
{
    int most[SCAN_THREADS] = {0}, all = 0;
    struct scan c = {s, w, most};
    par_for(MIN2(load_threads(), SCAN_THREADS), (ckpt_weight_rows(w) + SCAN_ROWS - 1) / SCAN_ROWS,
            scan_some, &c);
    for (int i = 0; i < SCAN_THREADS; i++)
        all = MAX2(all, most[i]);
    return all;
}

static enum cuda_scale choose_block(const struct kern_source *s)
{
    if (s->q.scale == DT_F8_E4M3)
        return s->globals ? CUDA_SCALE_GLOBAL : CUDA_SCALE_E4M3;
    int most = 0;
    for (int i = 0; i < s->n; i++)
        most = MAX2(most, scan_part(s, s->parts[i]));
    return most <= cuda_order_e8m0_fast(s->q.bits) ? CUDA_SCALE_E8M0_FAST : CUDA_SCALE_E8M0;
}

/* bf16 scales occur in affine parts only, whose arrays can be looked at as they are. */
static enum cuda_scale choose_scale(const struct kern_source *s)
{
    if (!s->packed)
        return CUDA_SCALE_NONE;
    if (qformat_is_block(s->q))
        return choose_block(s);
    if (s->q.scale == DT_F32)
        return CUDA_SCALE_F32;
    if (s->q.scale == DT_F16)
        return CUDA_SCALE_F16;
    enum cuda_scale all = CUDA_SCALE_LOW;
    for (int i = 0; i < s->n; i++) {
        if (s->parts[i]->enc != CKPT_AFFINE)
            return CUDA_SCALE_BF16;
        all = MAX2(all, (enum cuda_scale)scan_part(s, s->parts[i]));
    }
    return all;
}

static bool lay_out(const struct kern_source *s, enum cuda_scale scale, struct cuda_weight *w)
{
    size_t bytes;
    if (s->k > INT32_MAX || s->rows > INT64_MAX / 2)
        return false;
    w->base.rows = s->rows;
    w->base.k = s->k;
    w->base.packed = s->packed;
    w->base.q = s->q;
    w->base.dtype = DT_BF16;
    w->order = s->packed ? cuda_order_packed(s->q, scale, s->k) : cuda_order_dense(s->k);
    w->n_tiles = (s->rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
    if (!checked_mul((size_t)w->order.n_pieces, (size_t)w->order.piece_bytes, &w->tile_bytes) ||
        !checked_mul((size_t)w->n_tiles, w->tile_bytes, &bytes) || bytes > SIZE_MAX / 2)
        return false;
    w->base.bytes = bytes;
    return true;
}

size_t cuda_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    struct kern_source s;
    struct cuda_weight w;
    (void)k;
    /* All encodings of bf16 scales have one size, and both of e8m0. */
    enum cuda_scale guess = CUDA_SCALE_BF16;
    if (kern_source_init(&s, parts, n, NULL) != ERR_OK)
        return 0;
    if (s.packed && s.q.scale == DT_F32)
        guess = CUDA_SCALE_F32;
    if (s.packed && qformat_is_block(s.q))
        guess = s.globals ? CUDA_SCALE_GLOBAL : CUDA_SCALE_E8M0;
    return lay_out(&s, guess, &w) ? w.base.bytes : 0;
}

/* ---- load -------------------------------------------------------------------------------------
 */

struct load {
    const struct kern_source *src;
    const struct cuda_weight *w;
    int64_t tile0;  /* first of the batch */
    uint8_t *batch; /* tiles, or a slot */
    struct cuda_slot slot;
    size_t row_bytes; /* of a thread's buffers */
    uint8_t *rows;
    enum err_code *rc; /* of each thread */
    struct err *err;
};

static enum err_code first_error(const struct load *l, int threads, struct err *e)
{
    for (int i = 0; i < threads; i++) {
        if (l->rc[i] == ERR_OK)
            continue;
        if (e)
            *e = l->err[i];
        return l->rc[i];
    }
    return ERR_OK;
}

/* ---- rows put in order on the device ---------------------------------------------------------
 */

/* Arrays of `rows` rows in a slot. */
static struct cuda_slot slot_of(const struct kern_source *s, int64_t rows)
{
    struct cuda_slot at = {0};
    size_t n = (size_t)rows, scale_bytes = 0;
    if (s->packed) {
        at.row_bytes = qformat_row_bytes(s->q, s->k);
        scale_bytes = (size_t)(s->k / s->q.group) * (size_t)qformat_scale_size(s->q.scale);
    } else {
        at.row_bytes = (size_t)s->k * (size_t)dtype_bits(s->dtype) / 8;
    }
    at.scales = align_up(n * at.row_bytes, 16);
    at.biases = at.scales + align_up(n * scale_bytes, 16);
    at.globals = at.biases + (qformat_is_block(s->q) ? 0 : align_up(n * scale_bytes, 16));
    at.bytes = at.globals + (s->globals ? n * 4 : 0);
    return at;
}

/* Rows of a slot, a multiple of a tile's; 0: too long for it. */
static int64_t rows_of_slot(const struct kern_source *s)
{
    size_t tile = slot_of(s, CUDA_TILE_ROWS).bytes;
    return s->k > INT32_MAX / 8 ? 0 : (int64_t)(SLOT_BYTES / tile) * CUDA_TILE_ROWS;
}

static void stage_row(void *ctx, int64_t i, int thread)
{
    const struct load *l = ctx;
    const struct kern_source *s = l->src;
    int64_t r = l->tile0 * CUDA_TILE_ROWS + i;
    uint8_t *row = l->batch + (size_t)i * l->slot.row_bytes;
    if (l->rc[thread] != ERR_OK)
        return;
    if (!s->packed) {
        l->rc[thread] = kern_source_dense_row(s, r, row, &l->err[thread]);
        return;
    }
    size_t scale_bytes =
        (size_t)(s->k / s->q.group) * (size_t)qformat_scale_size(s->q.scale) * (size_t)i;
    l->rc[thread] =
        kern_source_packed_row(s, r, row, l->batch + l->slot.scales + scale_bytes,
                               l->batch + l->slot.biases + scale_bytes, &l->err[thread]);
    if (s->globals)
        store_u32(l->batch + l->slot.globals + 4 * i, f32_bits(kern_source_global(s, r)));
}

static enum err_code send_rows(struct kern *k, struct load *l, int threads, struct err *e)
{
    const struct kern_source *s = l->src;
    const int64_t most = rows_of_slot(s);
    enum err_code rc = ERR_OK;
    for (int64_t r = 0; r < s->rows && rc == ERR_OK; r += most) {
        int64_t n = MIN2(most, s->rows - r);
        l->tile0 = r / CUDA_TILE_ROWS;
        l->slot = slot_of(s, n);
        rc = cuda_load_slot(cuda_of(k), &l->batch, e);
        if (rc != ERR_OK)
            break;
        par_for(threads, n, stage_row, l);
        rc = first_error(l, threads, e);
        if (rc == ERR_OK)
            rc = cuda_load_send(cuda_of(k), &l->w->order, &l->slot, n,
                                s->packed ? s->q.scale : s->dtype,
                                l->w->data + (size_t)l->tile0 * l->w->tile_bytes, e);
        kern_source_passed(s, r, n);
    }
    return rc;
}

/* ---- tiles put in order on the host ------------------------------------------------------------
 */

static enum err_code put_packed_row(const struct load *l, uint8_t *tile, int row, int64_t r,
                                    uint8_t *buf, struct err *e)
{
    const struct kern_source *s = l->src;
    size_t code_bytes = align_up(qformat_row_bytes(s->q, s->k), 8);
    size_t scale_bytes = (size_t)(s->k / s->q.group) * (size_t)qformat_scale_size(s->q.scale);
    uint8_t *scales = buf + code_bytes, *biases = scales + align_up(scale_bytes, 8);
    struct cuda_order_row from = {buf, scales, biases, s->q.scale, 1.0f};
    enum err_code rc = kern_source_packed_row(s, r, buf, scales, biases, e);
    if (rc != ERR_OK)
        return rc;
    if (s->globals)
        from.global = kern_source_global(s, r);
    cuda_order_put(&l->w->order, tile, row, &from);
    return ERR_OK;
}

static enum err_code put_dense_row(const struct load *l, uint8_t *tile, int row, int64_t r,
                                   uint8_t *buf, struct err *e)
{
    const struct kern_source *s = l->src;
    enum err_code rc = kern_source_dense_row(s, r, buf, e);
    uint16_t *values = (uint16_t *)(void *)(buf + align_up((size_t)s->k * 4, 8));
    if (rc != ERR_OK)
        return rc;
    for (int64_t i = 0; i < s->k; i++) {
        if (s->dtype == DT_BF16)
            values[i] = load_u16(buf + 2 * i);
        else if (s->dtype == DT_F16)
            values[i] = bf16_from_f32(f16_to_f32(load_u16(buf + 2 * i)));
        else
            values[i] = bf16_from_f32(load_f32(buf + 4 * i));
    }
    cuda_order_put_values(&l->w->order, tile, row, values);
    return ERR_OK;
}

static void load_tile(void *ctx, int64_t i, int thread)
{
    const struct load *l = ctx;
    uint8_t *tile = l->batch + (size_t)i * l->w->tile_bytes;
    uint8_t *buf = l->rows + (size_t)thread * l->row_bytes;
    memset(tile, 0, l->w->tile_bytes);
    for (int row = 0; row < CUDA_TILE_ROWS; row++) {
        int64_t r = (l->tile0 + i) * CUDA_TILE_ROWS + row;
        if (r >= l->src->rows || l->rc[thread] != ERR_OK)
            return;
        if (l->src->packed)
            l->rc[thread] = put_packed_row(l, tile, row, r, buf, &l->err[thread]);
        else
            l->rc[thread] = put_dense_row(l, tile, row, r, buf, &l->err[thread]);
    }
}

static enum err_code load_batches(struct kern *k, struct load *l, int64_t per_batch, int threads,
                                  struct err *e)
{
    enum err_code rc = ERR_OK;
    for (l->tile0 = 0; l->tile0 < l->w->n_tiles && rc == ERR_OK; l->tile0 += per_batch) {
        int64_t n = MIN2(per_batch, l->w->n_tiles - l->tile0);
        par_for(threads, n, load_tile, l);
        rc = first_error(l, threads, e);
        if (rc == ERR_OK)
            rc = k->table->upload(k, l->w->data + (size_t)l->tile0 * l->w->tile_bytes, l->batch,
                                  (size_t)n * l->w->tile_bytes, e);
    }
    return rc;
}

static enum err_code load_batched(struct kern *k, struct load *l, int threads, struct err *e)
{
    const struct cuda_weight *w = l->w;
    int64_t per_batch = MAX2((int64_t)(BATCH_BYTES / w->tile_bytes), (int64_t)1);
    per_batch = MIN2(per_batch, w->n_tiles);
    l->row_bytes = align_up((size_t)l->src->k * 8 + 64, 64); /* longer than any encoding of a row */
    l->batch = malloc((size_t)per_batch * w->tile_bytes);
    l->rows = malloc((size_t)threads * l->row_bytes);
    enum err_code rc = ERR_OK;
    if (!l->batch || !l->rows)
        rc = err_set(e, ERR_NOMEM, "no memory for a batch of %lld tiles of %zu bytes",
                     (long long)per_batch, w->tile_bytes);
    if (rc == ERR_OK)
        rc = load_batches(k, l, per_batch, threads, e);
    free(l->batch);
    free(l->rows);
    return rc;
}

static enum err_code load_tiles(struct kern *k, const struct kern_source *s,
                                const struct cuda_weight *w, struct err *e)
{
    int threads = load_threads();
    struct load l = {.src = s, .w = w};
    enum err_code rc = ERR_OK;
    l.rc = calloc((size_t)threads, sizeof *l.rc);
    l.err = calloc((size_t)threads, sizeof *l.err);
    if (!l.rc || !l.err)
        rc = err_set(e, ERR_NOMEM, "no memory for %d threads", threads);
    else if (cuda_of(k)->host_order || rows_of_slot(s) == 0)
        rc = load_batched(k, &l, threads, e);
    else
        rc = send_rows(k, &l, threads, e);
    kern_source_done(s);
    free(l.rc);
    free(l.err);
    return rc;
}

enum err_code cuda_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                               struct kern_weight **w, struct err *e)
{
    struct kern_source s;
    *w = NULL;
    enum err_code rc = kern_source_init(&s, parts, n, e);
    if (rc != ERR_OK)
        return rc;
    struct cuda_weight *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a weight's %zu bytes", sizeof *m);
    void *data = NULL;
    if (!lay_out(&s, choose_scale(&s), m))
        rc = err_set(e, ERR_INPUT, "a matrix of %lld x %lld is too large", (long long)s.rows,
                     (long long)s.k);
    if (rc == ERR_OK)
        rc = k->table->alloc(k, m->base.bytes, &data, e);
    m->data = data;
    if (rc == ERR_OK)
        rc = load_tiles(k, &s, m, e);
    if (rc != ERR_OK) {
        cuda_weight_free(k, &m->base);
        return rc;
    }
    *w = &m->base;
    return ERR_OK;
}

enum err_code cuda_weight_copy(struct kern *k, const struct kern_weight *from,
                               struct kern_weight **w, struct err *e)
{
    struct cuda_weight *m = malloc(sizeof *m);
    void *data = NULL;
    *w = NULL;
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a weight's %zu bytes", sizeof *m);
    *m = *(const struct cuda_weight *)from;
    enum err_code rc = k->table->alloc(k, m->base.bytes, &data, e);
    if (rc == ERR_OK)
        rc = cuda_move(k, data, m->data, m->base.bytes, e);
    m->data = data;
    if (rc != ERR_OK) {
        cuda_weight_free(k, &m->base);
        return rc;
    }
    *w = &m->base;
    return ERR_OK;
}

void cuda_weight_free(struct kern *k, struct kern_weight *w)
{
    if (!w)
        return;
    k->table->free(k, ((struct cuda_weight *)w)->data);
    free(w);
}
