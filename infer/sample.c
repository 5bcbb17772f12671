/* sample.c: adjust, rank lazily, draw.
 *
 * Candidates are ranked by logit, descending, ties to the lower id. The rank is made lazily by a
 * heap: filters and the draw only look at as many candidates as they need. Every sum is in double,
 * in ascending id when it is over all and in rank order otherwise, so the bits are fixed.
 */
#include "infer/sample.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "kernels/elem.h"

#define LOG2E 1.4426950408889634

struct sampler {
    int64_t n_vocab;
    float *logit;  /* adjusted */
    float *weight; /* exp of the scaled distance to the largest */
    int32_t *heap; /* candidates, the best at the root */
    int32_t *rank; /* candidates already taken out, in order */
    uint8_t *seen; /* ids met in the history */
    int64_t n_heap;
};

struct sampling sampling_default(void)
{
    return (struct sampling){.top_p = 1, .repetition_penalty = 1};
}

bool sampling_is_plain(const struct sampling *s)
{
    return s->temperature <= 0 && s->n_bias == 0 && s->repetition_penalty == 1;
}

struct sampler *sampler_new(int64_t n_vocab)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    size_t n = (size_t)n_vocab;
    s->n_vocab = n_vocab;
    s->logit = calloc(n, sizeof *s->logit);
    s->weight = calloc(n, sizeof *s->weight);
    s->heap = calloc(n, sizeof *s->heap);
    s->rank = calloc(n, sizeof *s->rank);
    s->seen = calloc(n, 1);
    if (!s->logit || !s->weight || !s->heap || !s->rank || !s->seen) {
        sampler_free(s);
        return NULL;
    }
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->logit);
    free(s->weight);
    free(s->heap);
    free(s->rank);
    free(s->seen);
    free(s);
}

size_t sampler_bytes(int64_t n_vocab)
{
    return sizeof(struct sampler) + (size_t)n_vocab * 17;
}

/* ---- adjust ---------------------------------------------------------------------------------- */

static void apply_bias(struct sampler *s, const struct sampling *p)
{
    for (int i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id >= 0 && p->bias[i].id < s->n_vocab)
            s->logit[p->bias[i].id] += p->bias[i].bias;
    }
}

/* Each id of the history once: positive logits are divided, others multiplied. */
static void apply_penalty(struct sampler *s, double penalty, const int32_t *ids, int64_t n)
{
    float f = (float)penalty;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_vocab || s->seen[ids[i]])
            continue;
        s->seen[ids[i]] = 1;
        float *l = &s->logit[ids[i]];
        *l = *l < 0 ? *l * f : *l / f;
    }
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && ids[i] < s->n_vocab)
            s->seen[ids[i]] = 0;
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

/* Every candidate that can be drawn; gives the sum of their weights. */
static double fill_heap(struct sampler *s, const struct sampling *p, int32_t best)
{
    double sum = 0, top = (double)s->logit[best];
    s->n_heap = 0;
    for (int64_t i = 0; i < s->n_vocab; i++) {
        double d = (double)s->logit[i] - top;
        /* An infinite best leaves only its equals; NaN is never a candidate. */
        float w = s->logit[i] == s->logit[best] ? 1.0F : 0.0F;
        if (d < 0 && isfinite(d))
            w = elem_exp2_full((float)(d / p->temperature * LOG2E));
        s->weight[i] = w;
        if (w > 0) {
            sum += (double)w;
            s->heap[s->n_heap++] = (int32_t)i;
        }
    }
    for (int64_t i = s->n_heap / 2 - 1; i >= 0; i--)
        sift_down(s, i);
    return sum;
}

static int32_t take_best(struct sampler *s)
{
    int32_t id = s->heap[0];
    s->heap[0] = s->heap[--s->n_heap];
    if (s->n_heap > 0)
        sift_down(s, 0);
    return id;
}

/* Moves the next candidate from the heap to the rank when it has not that many yet. */
static int32_t rank_at(struct sampler *s, int64_t i, int64_t *n_rank)
{
    if (i >= *n_rank)
        s->rank[(*n_rank)++] = take_best(s);
    return s->rank[i];
}

static int32_t draw(struct sampler *s, const struct sampling *p, int32_t best, float u)
{
    double sum = fill_heap(s, p, best);
    int64_t n = s->n_heap, n_rank = 0;
    float min_weight = (float)p->min_p;
    if (n == 0)
        return best;
    if (p->top_k > 0 && p->top_k < n) {
        n = p->top_k;
        sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)s->weight[rank_at(s, i, &n_rank)];
    }
    if (p->top_p < 1) {
        double before = 0;
        int64_t kept = 0;
        while (kept < n && (kept == 0 || before < p->top_p * sum))
            before += (double)s->weight[rank_at(s, kept++, &n_rank)];
        n = kept;
        sum = before;
    }
    if (p->min_p > 0) {
        sum = 0;
        int64_t kept = 0;
        while (kept < n && (kept == 0 || s->weight[rank_at(s, kept, &n_rank)] >= min_weight))
            sum += (double)s->weight[rank_at(s, kept++, &n_rank)];
        n = kept;
    }
    double mark = (double)u * sum, seen = 0;
    for (int64_t i = 0; i < n - 1; i++) {
        int32_t id = rank_at(s, i, &n_rank);
        seen += (double)s->weight[id];
        if (seen > mark)
            return id;
    }
    return rank_at(s, n - 1, &n_rank);
}

int32_t sampler_pick(struct sampler *s, const struct sampling *p, const float *logits,
                     const int32_t *history, int64_t n_history, const uint8_t stream_key[32],
                     int64_t pos)
{
    memcpy(s->logit, logits, (size_t)s->n_vocab * sizeof *logits);
    apply_bias(s, p);
    if (p->repetition_penalty != 1)
        apply_penalty(s, p->repetition_penalty, history, n_history);
    int32_t best = find_best(s);
    if (p->temperature <= 0)
        return best;
    return draw(s, p, best, rng_uniform(p->seed, stream_key, (uint64_t)pos));
}
