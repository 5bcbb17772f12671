/* cpu_sample.c: adjust, rank lazily, draw: the definition of sampling for every backend.
 *
 * Candidates are ranked by logit, descending, ties to the lower id. The rank is made lazily by a
 * heap: filters and the draw only look at as many candidates as they need. Sums are of integers
 * (sample_rule.h), so their order does not matter.
 */
#include <math.h>

#include "kernels/cpu/cpu_step.h"
#include "kernels/sample_rule.h"

/* One row at work, in the room of the call. */
struct sampler {
    int64_t n_vocab;
    uint64_t *mass;
    float *logit; /* adjusted */
    float *weight;
    int32_t *heap; /* candidates, the best at the root */
    int32_t *rank; /* candidates already taken out, in order */
    uint8_t *seen; /* ids met in the history */
    int64_t n_heap, n_rank;
};

static struct sampler sampler_in(const struct sample_args *a)
{
    size_t n = (size_t)a->n_vocab;
    struct sampler s = {.n_vocab = a->n_vocab, .mass = a->room};
    s.logit = (float *)(void *)(s.mass + n);
    s.weight = s.logit + n;
    s.heap = (int32_t *)(void *)(s.weight + n);
    s.rank = s.heap + n;
    s.seen = (uint8_t *)(s.rank + n);
    return s;
}

/* ---- adjust ---------------------------------------------------------------------------------- */

static bool inside(const struct sampler *s, int32_t id)
{
    return id >= 0 && id < s->n_vocab;
}

static void apply_bias(struct sampler *s, const int32_t *pairs, int n)
{
    for (int i = 0; i < n; i++)
        if (inside(s, pairs[2 * i]))
            s->logit[pairs[2 * i]] += elem_float((uint32_t)pairs[2 * i + 1]);
}

/* Each id of the history once. */
static void apply_penalty(struct sampler *s, float penalty, const int32_t *ids, int n)
{
    memset(s->seen, 0, (size_t)s->n_vocab);
    for (int i = 0; i < n; i++) {
        if (!inside(s, ids[i]) || s->seen[ids[i]])
            continue;
        s->seen[ids[i]] = 1;
        s->logit[ids[i]] = sample_punish(s->logit[ids[i]], penalty);
    }
}

/* The best of all; NaN never wins. */
static int32_t find_best(const struct sampler *s)
{
    int32_t best = -1;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        if (s->logit[i] == s->logit[i] && (best < 0 || s->logit[i] > s->logit[best]))
            best = (int32_t)i;
    }
    return best < 0 ? 0 : best;
}

/* ---- rank ------------------------------------------------------------------------------------ */

static bool is_before(const struct sampler *s, int32_t a, int32_t b)
{
    return s->logit[a] > s->logit[b] || (s->logit[a] == s->logit[b] && a < b);
}

static void sift_down(struct sampler *s, int64_t i)
{
    int32_t id = s->heap[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && is_before(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!is_before(s, s->heap[child], id))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = id;
}

/* Every candidate that can be drawn; gives the sum of their masses. */
static uint64_t fill_heap(struct sampler *s, double temperature, int32_t best)
{
    uint64_t sum = 0;
    s->n_heap = s->n_rank = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        float x = sample_octaves(s->logit[i], s->logit[best], temperature);
        s->weight[i] = elem_exp2_full(x);
        s->mass[i] = sample_mass(s->weight[i]);
        sum += s->mass[i];
        if (s->mass[i] > 0)
            s->heap[s->n_heap++] = (int32_t)i;
    }
    for (int64_t i = s->n_heap / 2 - 1; i >= 0; i--)
        sift_down(s, i);
    return sum;
}

/* Candidate i of the order, of which all before it have been asked for. */
static int32_t rank_at(struct sampler *s, int64_t i)
{
    if (i >= s->n_rank) {
        s->rank[s->n_rank++] = s->heap[0];
        s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap > 0)
            sift_down(s, 0);
    }
    return s->rank[i];
}

static int32_t draw(struct sampler *s, const struct sample_row *p, int32_t best)
{
    uint64_t sum = fill_heap(s, p->temperature, best);
    int64_t n = s->n_heap;
    if (n == 0)
        return best;
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
        sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += s->mass[rank_at(s, i)];
    }
    if (p->top_p < 1) {
        uint64_t before = 0;
        int64_t kept = 0;
        while (kept < n && (kept == 0 || sample_within(before, p->top_p, sum)))
            before += s->mass[rank_at(s, kept++)];
        n = kept;
        sum = before;
    }
    if (p->min_p > 0) {
        int64_t kept = 0;
        sum = 0;
        while (kept < n && (kept == 0 || s->weight[rank_at(s, kept)] >= p->min_p))
            sum += s->mass[rank_at(s, kept++)];
        n = kept;
    }
    uint64_t mark = sample_mark(sum, p->u), seen = 0;
    for (int64_t i = 0; i < n - 1; i++) {
        seen += s->mass[rank_at(s, i)];
        if (seen > mark)
            return s->rank[i];
    }
    return rank_at(s, n - 1);
}

enum err_code cpu_sample(struct kern *k, const struct sample_args *a, struct err *e)
{
    struct sampler s = sampler_in(a);
    (void)k, (void)e;
    for (int i = 0; i < a->n; i++) {
        const struct sample_row *p = &a->rows[i];
        const int32_t *history = a->lists + p->at;
        const float *logits = a->logits + p->row * a->n_vocab;
        memcpy(s.logit, logits, (size_t)a->n_vocab * sizeof *logits);
        apply_bias(&s, history + p->n_history, p->n_bias);
        if (p->penalty != 1)
            apply_penalty(&s, p->penalty, history, p->n_history);
        int32_t id = find_best(&s);
        if (p->temperature > 0)
            id = draw(&s, p, id);
        a->id[p->row] = id;
        a->logit[p->row] = logits[id];
    }
    return ERR_OK;
}
