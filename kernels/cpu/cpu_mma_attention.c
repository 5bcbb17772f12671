/* cpu_mma_attention.c: rule 4 in mma90, over pages, and what writes the pages.
 *
 * Owns the scores, the online softmax, the splits and their merge; the formulas are those of
 * docs/numerics-mma90.md. A work item is one row's heads of one kv head (or one head, where there
 * are few rows), and it walks the keys in ascending order alone, so a row's bits depend on its own
 * query and on the keys up to its position.
 */
#include "kernels/cpu/cpu_mma_private.h"

#include "common/par.h"
#include "kernels/cpu/cpu_step.h"
#include "kernels/elem.h"

#define HEADS_MAX 4 /* heads of an item: they share expanded keys and values */

struct head {
    float o[KERN_HEAD_MAX], o_total[KERN_HEAD_MAX];
    float l[CPU_MMA_LANES]; /* the row sum, equal in all lanes */
    float m, m_total, l_total;
    float q[KERN_HEAD_MAX];
    uint32_t q_e[KERN_HEAD_MAX / 2];
    uint8_t q_wide[KERN_HEAD_MAX / MMA90_K];
    float s[KERN_TILE]; /* scores of the tile, then P */
    uint32_t p_e[KERN_TILE / 2];
    uint8_t p_wide[KERN_TILE / MMA90_K];
};

struct item {
    const struct attention_args *a;
    const struct cpu_mma_ops *ops;
    int t, kv, head0, n; /* row, kv head, first head, heads */
    int dims;            /* head_dim padded to 16 */
    float c;             /* raw score to log2 units */
    struct cpu_mma_strip strip, ones;
    struct head head[HEADS_MAX];
};

static int padded_dims(int head_dim)
{
    return (head_dim + MMA90_K - 1) / MMA90_K * MMA90_K;
}

size_t cpu_mma_page_bytes(const struct kern *k, int n_kv, int head_dim)
{
    (void)k;
    return (size_t)n_kv * 2 * KERN_PAGE * (size_t)padded_dims(head_dim) * sizeof(uint16_t);
}

/* K (which 0) or V (which 1) of the item's kv head in the page of position pos. */
static const uint32_t *page_half(const struct item *it, int32_t pos, int which)
{
    size_t half = (size_t)KERN_PAGE * (size_t)it->dims / 2; /* words */
    size_t page = half * 2 * (size_t)it->a->n_kv;
    const uint32_t *base = it->a->kv;
    size_t number = (size_t)cpu_page(it->a->rows, it->t, pos);
    return base + number * page + ((size_t)it->kv * 2 + (size_t)which) * half;
}

/* ---- one tile ---------------------------------------------------------------------------------
 */

/* Raw scores of keys [lo, hi) of the tile, one chain over the head's dims from +0. Blocks of
 * sixteen keys without one of them are left alone. */
static void score_tile(struct item *it, const uint32_t *keys, int lo, int hi)
{
    for (int b = lo / CPU_MMA_LANES * CPU_MMA_LANES; b < hi; b += CPU_MMA_LANES) {
        for (int h = 0; h < it->n; h++)
            memset(it->head[h].s + b, 0, CPU_MMA_LANES * sizeof(float));
        for (int d = 0; d < it->dims; d += CPU_MMA_STRIP) {
            int n = MIN2(it->dims - d, CPU_MMA_STRIP);
            it->ops->expand_pairs(keys + (size_t)b * (size_t)it->dims / 2 +
                                      (size_t)d / 2 * CPU_MMA_LANES,
                                  n, &it->strip);
            for (int h = 0; h < it->n; h++) {
                struct head *hd = &it->head[h];
                struct cpu_mma_input q = {hd->q, hd->q_e, hd->q_wide};
                it->ops->chain(&it->strip, cpu_mma_input_at(q, d), n / MMA90_K, hd->s + b);
            }
        }
    }
}

/* From scores to P, the new maximum, and the rescaled accumulators. */
static void soften_tile(const struct item *it, struct head *h, int lo, int hi)
{
    uint16_t p[KERN_TILE] = {0};
    float m = h->m, cap = it->a->softcap;
    for (int j = lo; j < hi; j++) {
        if (cap > 0)
            h->s[j] = elem_softcap(it->a->scale * h->s[j], cap);
        m = elem_max(h->s[j], m); /* passes over a NaN: the same in any order */
    }
    float f = elem_rescale(h->m, m, it->c);
    for (int j = lo; j < hi; j++)
        p[j] = bf16_from_f32(elem_exp2_p(elem_score_exponent(h->s[j], m, it->c)));
    for (int d = 0; d < it->dims; d++)
        h->o[d] *= f;
    for (int lane = 0; lane < CPU_MMA_LANES; lane++)
        h->l[lane] *= f;
    h->m = m;
    it->ops->prepare(p, KERN_TILE, (struct cpu_mma_input){h->s, h->p_e, h->p_wide});
}

/* V of a masked key counts as +0, so that what a later token wrote cannot reach an earlier row, not
 * even as zero times NaN. Exponent fields may stay: P of these keys is +0. */
static void clear_masked(struct cpu_mma_strip *s, int lo, int hi)
{
    memset(s->v[0], 0, (size_t)lo * sizeof s->v[0]);
    memset(s->v[hi], 0, (size_t)(KERN_TILE - hi) * sizeof s->v[0]);
}

/* O and L take the tile's four steps of P against V and against ones. */
static void weigh_tile(struct item *it, const uint32_t *values, int lo, int hi)
{
    int steps = KERN_TILE / MMA90_K;
    for (int d = 0; d < it->dims; d += CPU_MMA_LANES) {
        it->ops->expand_pairs(values + (size_t)d * KERN_TILE / 2, KERN_TILE, &it->strip);
        clear_masked(&it->strip, lo, hi);
        for (int h = 0; h < it->n; h++) {
            struct head *hd = &it->head[h];
            struct cpu_mma_input p = {hd->s, hd->p_e, hd->p_wide};
            it->ops->chain(&it->strip, p, steps, hd->o + d);
        }
    }
    for (int h = 0; h < it->n; h++) {
        struct head *hd = &it->head[h];
        struct cpu_mma_input p = {hd->s, hd->p_e, hd->p_wide};
        it->ops->chain(&it->ones, p, steps, hd->l);
    }
}

/* ---- splits -----------------------------------------------------------------------------------
 */

static void start_split(struct item *it)
{
    for (int h = 0; h < it->n; h++) {
        struct head *hd = &it->head[h];
        memset(hd->o, 0, sizeof hd->o);
        memset(hd->l, 0, sizeof hd->l);
        hd->m = -INFINITY;
    }
}

/* The first split is the total; each later one joins it under the common maximum. */
static void merge_split(struct item *it, bool first)
{
    for (int h = 0; h < it->n; h++) {
        struct head *hd = &it->head[h];
        if (first) {
            memcpy(hd->o_total, hd->o, sizeof hd->o);
            hd->l_total = hd->l[0];
            hd->m_total = hd->m;
            continue;
        }
        float m = elem_max(hd->m, hd->m_total);
        float f_total = elem_rescale(hd->m_total, m, it->c);
        float f_split = elem_rescale(hd->m, m, it->c);
        for (int d = 0; d < it->dims; d++)
            hd->o_total[d] = fmaf(hd->o[d], f_split, hd->o_total[d] * f_total);
        hd->l_total = fmaf(hd->l[0], f_split, hd->l_total * f_total);
        hd->m_total = m;
    }
}

/* Split of a tile; with the fault planted, edges come one tile late. */
static int32_t split_of(const struct item *it, int32_t tile)
{
    int32_t tiles = KERN_SPLIT / KERN_TILE;
    enum kern_fault f = kern_planted();
    if ((f == KERN_FAULT_SPLIT_EDGE && it->a->rows->n_tok > 1) ||
        (f == KERN_FAULT_SEQ_EDGE && it->a->rows->seq[it->t] > 0))
        return MAX2(tile - 1, 0) / tiles;
    return tile / tiles;
}

static void walk_keys(struct item *it)
{
    int32_t pos = it->a->rows->pos[it->t], end = pos + 1;
    int32_t begin = it->a->window && end > it->a->window ? end - it->a->window : 0;
    bool first = true;
    start_split(it);
    for (int32_t tile = begin / KERN_TILE; tile <= pos / KERN_TILE; tile++) {
        int32_t key = tile * KERN_TILE;
        int lo = MAX2(begin - key, 0), hi = MIN2(end - key, KERN_TILE);
        score_tile(it, page_half(it, key, 0), lo, hi);
        for (int h = 0; h < it->n; h++)
            soften_tile(it, &it->head[h], lo, hi);
        weigh_tile(it, page_half(it, key, 1), lo, hi);
        if (tile == pos / KERN_TILE || split_of(it, tile + 1) != split_of(it, tile)) {
            merge_split(it, first);
            start_split(it);
            first = false;
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------------
 */

/* The sink is one more key of weight exp(sink) and no value. */
static void add_sink(struct head *h, float c, float sink, int dims)
{
    float m2 = h->m_total * c, s2 = sink * ELEM_LOG2E, scale = elem_sink_scale(m2, s2);
    h->l_total = fmaf(h->l_total, scale, elem_sink_gain(m2, s2));
    for (int d = 0; d < dims; d++)
        h->o_total[d] *= scale;
}

static void load_queries(struct item *it)
{
    const struct attention_args *a = it->a;
    uint16_t row[KERN_HEAD_MAX] = {0};
    for (int h = 0; h < it->n; h++) {
        struct head *hd = &it->head[h];
        const uint16_t *q = a->q;
        q += ((int64_t)it->t * a->n_head + it->head0 + h) * a->head_dim;
        memcpy(row, q, (size_t)a->head_dim * sizeof *row);
        it->ops->prepare(row, it->dims, (struct cpu_mma_input){hd->q, hd->q_e, hd->q_wide});
    }
}

static void store_heads(struct item *it)
{
    const struct attention_args *a = it->a;
    for (int h = 0; h < it->n; h++) {
        struct head *hd = &it->head[h];
        uint16_t *out = a->out;
        out += ((int64_t)it->t * a->n_head + it->head0 + h) * a->head_dim;
        if (a->sinks)
            add_sink(hd, it->c, a->sinks[it->head0 + h], a->head_dim);
        float r = 1.0f / hd->l_total;
        for (int d = 0; d < a->head_dim; d++) {
            float v = hd->o_total[d] * r;
            out[d] = isnan(v) ? (uint16_t)(MMA90_NAN >> 16) : bf16_from_f32(v);
        }
    }
}

struct attention_ctx {
    const struct attention_args *a;
    const struct cpu_mma_ops *ops;
    int group;             /* heads of a kv head */
    int heads;             /* of an item, at most */
    int64_t items, pieces; /* all; of a kv head */
};

static void run_attention_item(void *ctx, int64_t i, int thread)
{
    const struct attention_ctx *c = ctx;
    const struct attention_args *a = c->a;
    struct item it;
    (void)thread;
    /* Later rows have more keys: items are taken from both ends in turn, so that the threads'
     * contiguous shares are alike. */
    int64_t n = i % 2 ? c->items - 1 - i / 2 : i / 2;
    int64_t piece = n % c->pieces, kv = n / c->pieces % a->n_kv;
    it.a = a;
    it.ops = c->ops;
    it.t = (int)(n / c->pieces / a->n_kv);
    it.kv = (int)kv;
    it.head0 = (int)(kv * c->group + piece * c->heads);
    it.n = (int)MIN2(c->heads, c->group - piece * c->heads);
    it.dims = padded_dims(a->head_dim);
    it.c = elem_score_factor(a->scale, a->softcap);
    uint32_t ones[KERN_TILE / 2 * CPU_MMA_LANES];
    for (size_t j = 0; j < ARRAY_LEN(ones); j++)
        ones[j] = 0x3f803f80u;
    c->ops->expand_pairs(ones, KERN_TILE, &it.ones);
    load_queries(&it);
    walk_keys(&it);
    store_heads(&it);
}

enum err_code cpu_mma_attention(struct kern *k, const struct attention_args *a, struct err *e)
{
    struct attention_ctx c = {.a = a, .ops = cpu_mma_ops_of(cpu_of(k)->isa)};
    (void)e;
    c.group = a->n_head / a->n_kv;
    c.heads =
        (int64_t)a->rows->n_tok * a->n_kv < 4 * (int64_t)k->threads ? 1 : MIN2(c.group, HEADS_MAX);
    c.pieces = (c.group + c.heads - 1) / c.heads;
    c.items = (int64_t)a->rows->n_tok * a->n_kv * c.pieces;
    int64_t keys = 0;
    for (int t = 0; t < a->rows->n_tok; t++)
        keys += a->rows->pos[t] + 1;
    int threads = cpu_threads_for(k, keys * a->n_head * a->head_dim);
    par_for(threads, c.items, run_attention_item, &c);
    return ERR_OK;
}

/* ---- rope and pages ---------------------------------------------------------------------------
 */

/* Rotates one head of f32 and rounds it to bf16. */
static void rotate_head(const struct rope_kv_args *a, const float *x, const float *cos_sin,
                        uint16_t *out)
{
    int half = a->rot_dim / 2;
    for (int i = 0; i < half; i++) {
        float c = cos_sin[i], s = cos_sin[half + i];
        out[i] = bf16_from_f32(elem_rope_first(x[i], x[half + i], c, s));
        out[half + i] = bf16_from_f32(elem_rope_second(x[i], x[half + i], c, s));
    }
    for (int i = a->rot_dim; i < a->head_dim; i++)
        out[i] = bf16_from_f32(x[i]);
}

/* Key `at` of a page's K half takes the head. */
static void put_key(uint16_t *keys, int dims, int at, const uint16_t *head, int n)
{
    size_t first = (size_t)(at / CPU_MMA_LANES) * (size_t)dims / 2,
           lane = (size_t)at % CPU_MMA_LANES;
    for (size_t d = 0; d < (size_t)n; d++)
        keys[((first + d / 2) * CPU_MMA_LANES + lane) * 2 + d % 2] = head[d];
}

/* Key `at` of a page's V half takes the head. */
static void put_value(uint16_t *values, int at, const float *v, int n)
{
    for (size_t d = 0; d < (size_t)n; d++) {
        size_t pair = d / CPU_MMA_LANES * (KERN_PAGE / 2) + (size_t)at / 2;
        values[(pair * CPU_MMA_LANES + d % CPU_MMA_LANES) * 2 + (size_t)at % 2] =
            bf16_from_f32(v[d]);
    }
}

static void rope_row(void *ctx, int64_t t, int thread)
{
    const struct rope_kv_args *a = ctx;
    int32_t pos = a->rows->pos[t];
    int dims = padded_dims(a->head_dim), at = pos % KERN_PAGE;
    const float *cos_sin = a->cos_sin + (int64_t)pos * a->rot_dim;
    size_t half = (size_t)KERN_PAGE * (size_t)dims; /* elements */
    uint16_t *page = a->kv, head[KERN_HEAD_MAX];
    uint16_t *q_out = (uint16_t *)a->q_out + t * a->n_head * a->head_dim;
    (void)thread;
    for (int h = 0; h < a->n_head; h++)
        rotate_head(a, a->q + t * a->stride + (int64_t)h * a->head_dim, cos_sin,
                    q_out + (size_t)h * (size_t)a->head_dim);
    if (!a->n_kv)
        return;
    page += (size_t)cpu_page(a->rows, (int)t, pos) * half * 2 * (size_t)a->n_kv;
    for (int h = 0; h < a->n_kv; h++) {
        int64_t from = t * a->stride + (int64_t)h * a->head_dim;
        rotate_head(a, a->k + from, cos_sin, head);
        put_key(page + (size_t)h * 2 * half, dims, at, head, a->head_dim);
        put_value(page + ((size_t)h * 2 + 1) * half, at, a->v + from, a->head_dim);
    }
}

enum err_code cpu_mma_rope_kv(struct kern *k, const struct rope_kv_args *a, struct err *e)
{
    struct rope_kv_args copy = *a;
    (void)e;
    cpu_plant_kv8(a);
    int64_t work = (int64_t)a->rows->n_tok * (a->n_head + 2 * a->n_kv) * a->head_dim;
    par_for(cpu_threads_for(k, work), a->rows->n_tok, rope_row, &copy);
    return ERR_OK;
}
