/* cpu_mma_attention.c: rule 4 in mma90, over pages.
 *
 * Owns the scores, the online softmax, the splits and their merge; the formulas are those of
 * docs/numerics-mma90.md. A work item is one row's heads of one kv head (or one head, where there
 * are few rows), and it walks the keys in ascending order alone, so a row's bits depend on its own
 * query and on the keys up to its position.
 */
#include "kernels/cpu/cpu_mma_private.h"

#include "common/par.h"
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

/* ---- one tile --------------------------------------------------------------------------------- */

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
        if (cap != 0)
            h->s[j] = elem_softcap(h->s[j] * it->a->scale, cap);
        m = h->s[j] > m ? h->s[j] : m;
    }
    float mc = m * it->c, f = elem_exp2_full(it->c * (h->m - m));
    for (int j = lo; j < hi; j++)
        p[j] = bf16_from_f32(elem_exp2_p(fmaf(h->s[j], it->c, -mc)));
    for (int d = 0; d < it->dims; d++)
        h->o[d] *= f;
    for (int lane = 0; lane < CPU_MMA_LANES; lane++)
        h->l[lane] *= f;
    h->m = m;
    it->ops->prepare(p, KERN_TILE, (struct cpu_mma_input){h->s, h->p_e, h->p_wide});
}

/* O and L take the tile's four steps of P against V and against ones. */
static void weigh_tile(struct item *it, const uint32_t *values)
{
    int steps = KERN_TILE / MMA90_K;
    for (int d = 0; d < it->dims; d += CPU_MMA_LANES) {
        it->ops->expand_pairs(values + (size_t)d * KERN_TILE / 2, KERN_TILE, &it->strip);
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

/* ---- splits ----------------------------------------------------------------------------------- */

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
        float m = hd->m > hd->m_total ? hd->m : hd->m_total;
        float f_total = elem_exp2_full(it->c * (hd->m_total - m));
        float f_split = elem_exp2_full(it->c * (hd->m - m));
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
    if (kern_planted() == KERN_FAULT_SPLIT_EDGE && it->a->rows->n_tok > 1)
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
        weigh_tile(it, page_half(it, key, 1));
        if (tile == pos / KERN_TILE || split_of(it, tile + 1) != split_of(it, tile)) {
            merge_split(it, first);
            start_split(it);
            first = false;
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* The sink is one more key of weight exp(sink) and no value. */
static void add_sink(struct head *h, float c, float sink, int dims)
{
    float mc = h->m_total * c, s = sink * ELEM_LOG2E, top = s > mc ? s : mc;
    float f = elem_exp2_full(mc - top);
    h->l_total = fmaf(h->l_total, f, elem_exp2_full(s - top));
    for (int d = 0; d < dims; d++)
        h->o_total[d] *= f;
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
    int group;           /* heads of a kv head */
    int heads;           /* of an item, at most */
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
    it.c = a->softcap != 0 ? ELEM_LOG2E : a->scale * ELEM_LOG2E;
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
    c.heads = (int64_t)a->rows->n_tok * a->n_kv < 4 * (int64_t)k->threads
                  ? 1
                  : MIN2(c.group, HEADS_MAX);
    c.pieces = (c.group + c.heads - 1) / c.heads;
    c.items = (int64_t)a->rows->n_tok * a->n_kv * c.pieces;
    par_for(k->threads, c.items, run_attention_item, &c);
    return ERR_OK;
}

/* ---- rope and pages --------------------------------------------------------------------------- */

/* Key `at` of a page's K half takes dim d. */
static void put_key(uint16_t *keys, int dims, int at, int d, uint16_t v)
{
    size_t pair = (size_t)(at / CPU_MMA_LANES) * (size_t)dims / 2 + (size_t)d / 2;
    keys[(pair * CPU_MMA_LANES + (size_t)(at % CPU_MMA_LANES)) * 2 + (size_t)(d % 2)] = v;
}

static void put_value(uint16_t *values, int at, int d, uint16_t v)
{
    size_t pair = (size_t)(d / CPU_MMA_LANES) * (KERN_PAGE / 2) + (size_t)at / 2;
    values[(pair * CPU_MMA_LANES + (size_t)(d % CPU_MMA_LANES)) * 2 + (size_t)(at % 2)] = v;
}
