/* cpu_shared.c: operations that both arithmetics share: norm, activation, add, routing, combining,
 * gathering, logits, hashes. `act` outputs are f32 or bf16 by the kern's arithmetic; everything
 * before that rounding is the same.
 */
#include "kernels/cpu/cpu_step.h"

#include "common/hash.h"
#include "common/par.h"
#include "kernels/elem.h"

/* ---- norm
 * ---------------------------------------------------------------------------------------- */
struct norm_ctx {
    const struct cpu_isa_ops *ops;
    const struct rms_norm_args *a;
    bool f32;
};

static void norm_item(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const struct norm_ctx *c = ctx;
    const struct rms_norm_args *a = c->a;
    int64_t in = r / a->inner * a->stride + r % a->inner * a->d;
    int64_t out = r / a->inner * a->out_stride + r % a->inner * a->d;
    size_t bytes = c->f32 ? 4 : 2;
    c->ops->norm_row(a, a->h + in, a->add ? a->add + in : NULL,
                     (uint8_t *)a->out + (size_t)out * bytes, c->f32);
}

enum err_code cpu_rms_norm(struct kern *k, const struct rms_norm_args *a, struct err *e)
{
    (void)e;
    struct norm_ctx c = {cpu_of(k)->ops, a, a->out_f32 || k->arith == KERN_F32};
    par_for(cpu_threads_for(k, a->n_rows * a->d), a->n_rows, norm_item, &c);
    return ERR_OK;
}

/* ---- a planted fault of rope --------------------------------------------------------------------
 */
static void round_row(const float *x, int64_t n)
{
    float *own = (float *)(uintptr_t)x; /* scratch of the step, const to operations only */
    for (int64_t i = 0; i < n; i++)
        own[i] = f32_from_bits(f32_bits(own[i]) & 0xfff00000u); /* 3 bits of significand */
}

void cpu_plant_kv8(const struct rope_kv_args *a)
{
    bool planted = kern_planted() == KERN_FAULT_KV8 && a->n_kv;
    for (int t = 0; planted && t < a->rows->n_tok; t++) {
        round_row(a->k + t * a->stride, (int64_t)a->n_kv * a->head_dim);
        round_row(a->v + t * a->stride, (int64_t)a->n_kv * a->head_dim);
    }
}

/* ---- activation, add, combine, gather
 * --------------------------------------------------------------- */
#define SPAN 512 /* elements of an item of an elementwise operation */

struct act_ctx {
    const struct cpu_isa_ops *ops;
    const struct act_mul_args *a;
    int64_t spans; /* of a row */
    bool f32;
};

/* Planted: where the output held a NaN before, it becomes one. */
static void plant_stale(const uint8_t *before, uint8_t *out, int64_t n, bool f32)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = f32 ? load_u32(before + 4 * i) : (uint32_t)load_u16(before + 2 * i) << 16;
        if (f32 && isnan(f32_from_bits(bits)))
            store_u32(out + 4 * i, bits);
        else if (isnan(f32_from_bits(bits)))
            store_u16(out + 2 * i, (uint16_t)(bits >> 16));
    }
}

static void act_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const struct act_ctx *c = ctx;
    const struct act_mul_args *a = c->a;
    int64_t row = item / c->spans, at = item % c->spans * SPAN, n = MIN2((int64_t)SPAN, a->d - at);
    int64_t in = row * a->stride + at, bytes = c->f32 ? 4 : 2;
    uint8_t *out = (uint8_t *)a->out + (row * a->d + at) * bytes, before[4 * SPAN];
    bool stale = kern_planted() == KERN_FAULT_STALE;
    if (stale)
        memcpy(before, out, (size_t)(n * bytes));
    c->ops->act_mul(a, a->gate + in, a->up + in, n, out, c->f32);
    if (stale)
        plant_stale(before, out, n, c->f32);
}

enum err_code cpu_act_mul(struct kern *k, const struct act_mul_args *a, struct err *e)
{
    (void)e;
    struct act_ctx c = {cpu_of(k)->ops, a, (a->d + SPAN - 1) / SPAN, k->arith == KERN_F32};
    par_for(cpu_threads_for(k, 8 * a->n_rows * a->d), a->n_rows * c.spans, act_item, &c);
    return ERR_OK;
}

struct add_ctx {
    const struct cpu_isa_ops *ops;
    const struct add_args *a;
    bool f32;
};

static void add_item(void *ctx, int64_t i, int thread)
{
    (void)thread;
    const struct add_ctx *c = ctx;
    int64_t at = i * SPAN, n = MIN2((int64_t)SPAN, c->a->n - at);
    float *h = c->a->h + at;
    if (c->a->x)
        c->ops->add(h, c->a->x + at, n);
    for (int64_t j = 0; c->a->scale != 0 && j < n; j++)
        h[j] *= c->a->scale;
    if (c->a->out && c->f32)
        memcpy((float *)c->a->out + at, h, (size_t)n * sizeof *h);
    for (int64_t j = 0; c->a->out && !c->f32 && j < n; j++)
        ((uint16_t *)c->a->out)[at + j] = bf16_from_f32(h[j]);
}

enum err_code cpu_add(struct kern *k, const struct add_args *a, struct err *e)
{
    (void)e;
    struct add_args args = *a;
    if (kern_planted() == KERN_FAULT_IDLE)
        args.out = NULL;
    struct add_ctx c = {cpu_of(k)->ops, &args, k->arith == KERN_F32};
    par_for(cpu_threads_for(k, a->n), (a->n + SPAN - 1) / SPAN, add_item, &c);
    return ERR_OK;
}

struct combine_ctx {
    const struct cpu_isa_ops *ops;
    const struct combine_args *a;
};

static void combine_item(void *ctx, int64_t t, int thread)
{
    (void)thread;
    const struct combine_ctx *c = ctx;
    const struct combine_args *a = c->a;
    c->ops->combine_row(a->y + t * a->n_used * a->d, a->weight + t * a->n_used, a->n_used, a->d,
                        a->out + t * a->d);
}

enum err_code cpu_combine(struct kern *k, const struct combine_args *a, struct err *e)
{
    (void)e;
    struct combine_ctx c = {cpu_of(k)->ops, a};
    par_for(cpu_threads_for(k, a->n_tok * a->n_used * a->d), a->n_tok, combine_item, &c);
    return ERR_OK;
}

enum err_code cpu_gather(struct kern *k, const struct gather_args *a, struct err *e)
{
    (void)k;
    (void)e;
    for (int64_t i = 0; i < a->n; i++)
        memmove(a->out + i * a->d, a->in + a->row[i] * a->d, (size_t)a->d * sizeof(float));
    return ERR_OK;
}

/* ---- routing
 * ---------------------------------------------------------------------------------------- */
struct route_ctx {
    const struct route_args *a;
};

/* The n_used experts with the greatest keys, ties to the lower index, in that order. */
static void route_choose(const struct route_args *a, const float *logits, int32_t *chosen)
{
    int n = 0;
    for (int32_t x = 0; x < a->n_expert; x++) {
        int32_t key = elem_order_key(logits[x]);
        int at = n;
        while (at > 0 && elem_order_key(logits[chosen[at - 1]]) < key)
            at--;
        if (at >= a->n_used)
            continue;
        n = MIN2(n + 1, a->n_used);
        for (int i = n - 1; i > at; i--)
            chosen[i] = chosen[i - 1];
        chosen[at] = x;
    }
}

static void route_row(void *ctx, int64_t t, int thread)
{
    (void)thread;
    const struct route_args *a = ((const struct route_ctx *)ctx)->a;
    const float *l = a->logits + t * a->n_expert;
    int32_t *chosen = a->expert + t * a->n_used;
    float *w = a->weight + t * a->n_used;
    route_choose(a, l, chosen);
    float max = l[chosen[0]], sum = 0.0f, all = 0.0f;
    for (int s = 0; s < a->n_used; s++) {
        w[s] = elem_exp(l[chosen[s]] - max);
        sum += w[s];
    }
    if (a->softmax_first) {
        for (int x = 0; x < a->n_expert; x++)
            all += elem_exp(l[x] - max);
        sum = 0.0f;
        for (int s = 0; s < a->n_used; s++) {
            w[s] /= all;
            sum += w[s];
        }
    }
    for (int s = 0; (!a->softmax_first || a->norm) && s < a->n_used; s++)
        w[s] /= sum;
}

enum err_code cpu_route(struct kern *k, const struct route_args *a, struct err *e)
{
    (void)e;
    struct route_ctx c = {a};
    par_for(cpu_threads_for(k, (int64_t)a->n_tok * a->n_expert * 8), a->n_tok, route_row, &c);
    int32_t n = a->n_tok * a->n_used;
    memset(a->first, 0, (size_t)(a->n_expert + 1) * sizeof *a->first);
    for (int32_t p = 0; p < n; p++)
        a->first[a->expert[p] + 1]++;
    for (int x = 0; x < a->n_expert; x++)
        a->first[x + 1] += a->first[x];
    /* first[x] serves as the place of x's next pair, and is moved back after. */
    for (int32_t p = 0; p < n; p++)
        a->order[a->first[a->expert[p]]++] = p;
    for (int x = a->n_expert; x > 0; x--)
        a->first[x] = a->first[x - 1];
    a->first[0] = 0;
    return ERR_OK;
}

enum err_code cpu_route_scale(struct kern *k, const struct route_scale_args *a, struct err *e)
{
    (void)k, (void)e;
    for (int p = 0; p < a->n_pairs && kern_planted() != KERN_FAULT_IDLE; p++)
        a->weight[p] *= a->scale[a->expert[p]];
    return ERR_OK;
}

/* ---- logits
 * ------------------------------------------------------------------------------------------ */
#define LOGITS_PARTS (ELEM_LSE_LANES / 256)

/* One row in LOGITS_PARTS pieces. */
struct logits_ctx {
    const struct cpu_isa_ops *ops;
    const struct logits_args *a;
    float *x;
    float max;
    float part_max[LOGITS_PARTS];
    uint64_t part_hash[LOGITS_PARTS];
    int n_top[LOGITS_PARTS];
    int32_t top[LOGITS_PARTS][LOGITS_TOP_MAX];
    float lanes[ELEM_LSE_LANES];
};

static int top_insert(const float *x, int32_t *top, int n, int k, int32_t id)
{
    int32_t key = elem_order_key(x[id]);
    int at = n;
    while (at > 0 && elem_order_key(x[top[at - 1]]) < key)
        at--;
    if (at >= k)
        return n;
    n = MIN2(n + 1, k);
    for (int i = n - 1; i > at; i--)
        top[i] = top[i - 1];
    top[at] = id;
    return n;
}

static void logits_scan(void *ctx, int64_t part, int thread)
{
    (void)thread;
    struct logits_ctx *c = ctx;
    const struct logits_args *a = c->a;
    int64_t from = a->n_vocab * part / LOGITS_PARTS, to = a->n_vocab * (part + 1) / LOGITS_PARTS;
    float *x = c->x;
    if (a->softcap > 0)
        c->ops->softcap(x + from, to - from, a->softcap);
    c->part_max[part] = c->ops->row_max(x + from, to - from);
    uint64_t hash = 0;
    int32_t *top = c->top[part], worst = INT32_MIN;
    int n = 0;
    for (int64_t i = from; i < to; i++) {
        hash += hash_row_word((uint64_t)i, elem_hash_bits32(elem_bits(x[i])));
        if (n < a->k || elem_order_key(x[i]) > worst) {
            n = top_insert(x, top, n, a->k, (int32_t)i);
            worst = elem_order_key(x[top[n - 1]]);
        }
    }
    c->n_top[part] = n;
    c->part_hash[part] = hash;
}

static void logits_sum(void *ctx, int64_t part, int thread)
{
    (void)thread;
    struct logits_ctx *c = ctx;
    c->ops->lse_lanes(c->x, c->a->n_vocab, c->max, (int)part * 256, c->lanes + part * 256);
}

static void logits_row(struct kern *k, struct logits_ctx *c, int64_t r)
{
    const struct logits_args *a = c->a;
    int32_t top[LOGITS_TOP_MAX];
    int n = 0, threads = cpu_threads_for(k, a->n_vocab * 8);
    c->x = a->logits + r * a->n_vocab;
    par_for(threads, LOGITS_PARTS, logits_scan, c);
    c->max = c->part_max[0];
    a->hash[r] = 0;
    for (int p = 0; p < LOGITS_PARTS; p++) {
        c->max = elem_max(c->part_max[p], c->max);
        a->hash[r] += c->part_hash[p];
        for (int i = 0; i < c->n_top[p]; i++)
            n = top_insert(c->x, top, n, a->k, c->top[p][i]);
    }
    for (int i = 0; i < a->k; i++) {
        a->top_id[r * a->k + i] = top[i];
        a->top[r * a->k + i] = c->x[top[i]];
    }
    par_for(threads, LOGITS_PARTS, logits_sum, c);
    for (int w = ELEM_LSE_LANES / 2; w >= 1; w /= 2)
        for (int j = 0; j < w; j++)
            c->lanes[j] += c->lanes[j + w];
    a->lse[r] = fmaf(elem_log2(c->lanes[0]), ELEM_LN2, c->max);
}

enum err_code cpu_logits(struct kern *k, const struct logits_args *a, struct err *e)
{
    (void)e;
    struct logits_ctx c = {.ops = cpu_of(k)->ops, .a = a};
    for (int64_t r = 0; r < a->n; r++)
        logits_row(k, &c, r);
    return ERR_OK;
}

/* ---- hashes
 * -------------------------------------------------------------------------------------------- */
static void hash_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const struct row_hash_args *a = ctx;
    uint64_t h = 0;
    if (a->word_bytes == 4) {
        const uint32_t *x = (const uint32_t *)a->x + r * a->stride;
        for (int64_t i = 0; i < a->d; i++)
            h += hash_row_word((uint64_t)i, elem_hash_bits32(x[i]));
    } else {
        const uint16_t *x = (const uint16_t *)a->x + r * a->stride;
        for (int64_t i = 0; i < a->d; i++)
            h += hash_row_word((uint64_t)i, elem_hash_bits16(x[i]));
    }
    a->hash[r] = h;
}

enum err_code cpu_row_hash(struct kern *k, const struct row_hash_args *a, struct err *e)
{
    (void)e;
    struct row_hash_args args = *a;
    par_for(cpu_threads_for(k, a->n_rows * a->d), a->n_rows, hash_row, &args);
    return ERR_OK;
}
