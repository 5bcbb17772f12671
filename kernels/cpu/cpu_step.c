/* cpu_step.c: operations of the f32 arithmetic that know weights and pages: embed, linear, expert
 * products, rope and attention. Cuts the work by index and calls the variant's functions.
 */
#include "kernels/cpu/cpu_step.h"

#include "common/par.h"

/* ---- embed
 * --------------------------------------------------------------------------------------- */
struct embed_ctx {
    const struct embed_args *a;
    const struct cpu_weight *w;
};

static void embed_row(void *ctx, int64_t t, int thread)
{
    (void)thread;
    const struct embed_ctx *c = ctx;
    float *out = c->a->out + t * c->w->base.k;
    cpu_weight_row(c->w, c->a->rows->id[t], out);
    for (int64_t i = 0; c->a->scale != 1.0f && i < c->w->base.k; i++)
        out[i] *= c->a->scale;
}

enum err_code cpu_embed(struct kern *k, const struct embed_args *a, struct err *e)
{
    struct embed_ctx c = {a, cpu_weight_of(a->w)};
    for (int t = 0; t < a->rows->n_tok; t++)
        if (a->rows->id[t] < 0 || a->rows->id[t] >= a->w->rows)
            return err_set(e, ERR_INTERNAL, "row %d: token %d of %lld", t, a->rows->id[t],
                           (long long)a->w->rows);
    par_for(cpu_threads_for(k, a->rows->n_tok * a->w->k), a->rows->n_tok, embed_row, &c);
    return ERR_OK;
}

/* ---- linear
 * -------------------------------------------------------------------------------------- */
/* After the fact: every row takes up zero times the row before it, which shows when that one holds
 * a NaN or an infinity. */
static void plant_neighbour(const struct cpu_tile_job *j)
{
    int64_t r0 = MAX2(j->row0, j->tile * CPU_TILE), r1 = MIN2(j->row1, (j->tile + 1) * CPU_TILE);
    for (int t = j->n - 1; t > 0; t--)
        for (int64_t r = r0; r < r1; r++)
            j->out[t][r - j->out_row0] += 0.0f * j->out[t - 1][r - j->out_row0];
}

static void run_job(const struct cpu_isa_ops *ops, struct cpu_tile_job *j, int n_all, int thread)
{
    enum kern_fault fault = kern_planted();
    j->descending = (fault == KERN_FAULT_CHUNK_ORDER && n_all > 1) ||
                    (fault == KERN_FAULT_THREAD_ORDER && thread > 0) ||
                    (fault == KERN_FAULT_PLAIN_C && ops == &cpu_ops_c) ||
                    kern_planted_order(thread, j->w->base.k);
    ops->linear_tile(j);
    if (fault == KERN_FAULT_NEIGHBOUR)
        plant_neighbour(j);
}

struct linear_ctx {
    const struct cpu_isa_ops *ops;
    const struct linear_args *a;
};

static void linear_item(void *ctx, int64_t item, int thread)
{
    const struct linear_ctx *c = ctx;
    const struct linear_args *a = c->a;
    const struct linear_part *p = a->part;
    while (item >= cpu_weight_of(p->w)->n_tiles)
        item -= cpu_weight_of(p++->w)->n_tiles;
    const float *x[CPU_JOB_ROWS];
    float *out[CPU_JOB_ROWS];
    struct cpu_tile_job j = {.w = cpu_weight_of(p->w),
                             .tile = item,
                             .row1 = p->w->rows,
                             .bias = p->bias,
                             .x = x,
                             .out = out};
    for (int t0 = 0; t0 < a->n_tok; t0 += CPU_JOB_ROWS) {
        j.n = MIN2(CPU_JOB_ROWS, a->n_tok - t0);
        for (int t = 0; t < j.n; t++) {
            x[t] = (const float *)a->x + (t0 + t) * a->x_stride;
            out[t] = p->out + (t0 + t) * p->out_stride;
        }
        run_job(c->ops, &j, a->n_tok, thread);
    }
}

enum err_code cpu_linear(struct kern *k, const struct linear_args *a, struct err *e)
{
    (void)e;
    struct linear_ctx c = {cpu_of(k)->ops, a};
    int64_t tiles = 0;
    for (int i = 0; i < a->n_parts; i++)
        tiles += cpu_weight_of(a->part[i].w)->n_tiles;
    if (a->n_tok > 0)
        par_for(cpu_threads_for(k, tiles * CPU_TILE * a->part[0].w->k), tiles, linear_item, &c);
    return ERR_OK;
}

/* ---- expert products
 * ------------------------------------------------------------------------------ */
struct expert_ctx {
    const struct cpu_isa_ops *ops;
    const struct expert_linear_args *a;
    int64_t tiles; /* of an expert, counting those that it shares with a neighbour */
};

static void expert_item(void *ctx, int64_t item, int thread)
{
    const struct expert_ctx *c = ctx;
    const struct expert_linear_args *a = c->a;
    int64_t expert = item / c->tiles, row0 = expert * a->rows;
    int64_t tile = row0 / CPU_TILE + item % c->tiles;
    if (tile * CPU_TILE >= row0 + a->rows)
        return;
    const float *x[CPU_JOB_ROWS];
    float *out[CPU_JOB_ROWS];
    struct cpu_tile_job j = {.w = cpu_weight_of(a->w),
                             .tile = tile,
                             .row0 = row0,
                             .row1 = row0 + a->rows,
                             .out_row0 = row0,
                             .bias = a->bias ? a->bias + row0 : NULL,
                             .x = x,
                             .out = out};
    for (int32_t i = a->first[expert]; i < a->first[expert + 1]; i += CPU_JOB_ROWS) {
        j.n = MIN2(CPU_JOB_ROWS, a->first[expert + 1] - i);
        for (int t = 0; t < j.n; t++) {
            int64_t pair = a->order[i + t];
            x[t] = (const float *)a->x + pair / a->x_div * a->w->k;
            out[t] = a->out + pair * a->out_stride;
        }
        run_job(c->ops, &j, a->n_pairs, thread);
    }
}

enum err_code cpu_expert_linear(struct kern *k, const struct expert_linear_args *a, struct err *e)
{
    (void)e;
    struct expert_ctx c = {cpu_of(k)->ops, a, (a->rows + CPU_TILE - 1) / CPU_TILE + 1};
    par_for(cpu_threads_for(k, a->n_pairs * a->rows * a->w->k), a->n_expert * c.tiles, expert_item,
            &c);
    return ERR_OK;
}

/* ---- rope and pages
 * ------------------------------------------------------------------------------ */
struct rope_ctx {
    const struct cpu_isa_ops *ops;
    const struct rope_kv_args *a;
};

static void rope_row(void *ctx, int64_t t, int thread)
{
    (void)thread;
    const struct rope_ctx *c = ctx;
    const struct rope_kv_args *a = c->a;
    int hd = a->head_dim, pos = a->rows->pos[t], slot = pos % KERN_PAGE;
    const float *cos_sin = a->cos_sin + (int64_t)pos * a->rot_dim;
    float *q_out = (float *)a->q_out + t * a->n_head * hd;
    for (int h = 0; h < a->n_head; h++)
        c->ops->rope_head(a->q + t * a->stride + h * hd, hd, a->rot_dim, cos_sin, q_out + h * hd);
    if (!a->n_kv)
        return;
    size_t head = (size_t)2 * KERN_PAGE * (size_t)hd;
    float *page = (float *)a->kv + (size_t)cpu_page(a->rows, (int)t, pos) * head * (size_t)a->n_kv;
    for (int h = 0; h < a->n_kv; h++) {
        float row[KERN_HEAD_MAX], *k = page + (size_t)h * head;
        c->ops->rope_head(a->k + t * a->stride + h * hd, hd, a->rot_dim, cos_sin, row);
        for (int i = 0; i < hd; i++)
            k[i * KERN_PAGE + slot] = row[i];
        memcpy(k + (KERN_PAGE + slot) * hd, a->v + t * a->stride + h * hd,
               (size_t)hd * sizeof(float));
    }
}

enum err_code cpu_rope_kv(struct kern *k, const struct rope_kv_args *a, struct err *e)
{
    (void)e;
    cpu_plant_kv8(a);
    struct rope_ctx c = {cpu_of(k)->ops, a};
    int64_t work = (int64_t)a->rows->n_tok * (a->n_head + 2 * a->n_kv) * a->head_dim;
    par_for(cpu_threads_for(k, work), a->rows->n_tok, rope_row, &c);
    return ERR_OK;
}

/* ---- attention
 * ------------------------------------------------------------------------------------ */
struct attention_ctx {
    const struct cpu_isa_ops *ops;
    const struct attention_args *a;
    int heads; /* query heads of an item; they share a KV head */
    int64_t items;
    int strands;
};

/* Later rows of a prefill see more keys, so neighbouring items go to different threads. */
static void attention_strand(void *ctx, int64_t strand, int thread)
{
    (void)thread;
    const struct attention_ctx *c = ctx;
    int per_row = c->a->n_head / c->heads;
    enum kern_fault fault = kern_planted();
    for (int64_t i = strand; i < c->items; i += c->strands) {
        int head = (int)(i % per_row) * c->heads, end = head + c->heads;
        struct cpu_attention_job j = {.a = c->a, .t = (int)(i / per_row)};
        if ((fault == KERN_FAULT_SPLIT_EDGE && c->a->rows->n_tok > 1) ||
            (fault == KERN_FAULT_SEQ_EDGE && c->a->rows->seq[j.t] > 0))
            j.edge = KERN_TILE;
        for (; head < end; head += j.n_q) {
            j.head = head;
            j.n_q = MIN2(CPU_QUERIES, end - head);
            c->ops->attention(&j);
        }
    }
}

enum err_code cpu_attention(struct kern *k, const struct attention_args *a, struct err *e)
{
    (void)e;
    struct attention_ctx c = {.ops = cpu_of(k)->ops, .a = a, .heads = a->n_head / a->n_kv};
    int64_t keys = 0, n_tok = a->rows->n_tok;
    for (int64_t t = 0; t < n_tok; t++)
        keys += a->rows->pos[t] + 1;
    int threads = cpu_threads_for(k, keys * a->n_head * a->head_dim);
    /* Few rows: an item is a head, or the threads could not share evenly. */
    if (n_tok * a->n_kv < 8 * threads)
        c.heads = 1;
    c.items = n_tok * (a->n_head / c.heads);
    c.strands = (int)MIN2((int64_t)threads, c.items);
    par_for(threads, c.strands, attention_strand, &c);
    return ERR_OK;
}
