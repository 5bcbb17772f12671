/* where_swap.c: passes over the tokens up to a flip, of a model and of the variant with some of its
 * weights replaced.
 *
 * A pass begins at the first layer that has another weight than the base (the variant itself, as a
 * rule): the states that enter it are those of the base's own pass, kept every stride layers so
 * that they take STATE_BYTES at most. Layers before it are not run, and what a pass reads of the
 * pages it has written itself.
 */
#include <math.h>
#include <stdlib.h>

#include "evals/compare.h"
#include "evals/where_private.h"
#include "infer/kv.h"
#include "quant/pack_one.h"

#define STATE_BYTES ((size_t)256 << 20)

/* ---- one pass ----------------------------------------------------------------------------------
 */

/* Where the states of one step go. */
struct taken {
    const struct where_pass *p;
    int64_t first; /* token of the step's first row */
    int n;
    int64_t d;
    int n_layer;
};

static enum err_code take_state(void *ctx, int layer, int n_rows, const float *h, struct err *e)
{
    const struct taken *t = ctx;
    const struct where_pass *p = t->p;
    struct kern *k = engine_kern(p->en);
    const size_t row = (size_t)t->d * sizeof(float);
    enum err_code rc = ERR_OK;
    if (p->keep && layer < t->n_layer && layer % p->stride == 0) {
        float *to = p->keep + (layer / p->stride * p->n_ids + t->first) * t->d;
        rc = kern_download(k, to, h, (size_t)n_rows * row, e);
    }
    bool ends = t->first + t->n == p->n_ids;
    if (rc == ERR_OK && p->last && ends)
        rc = kern_download(k, p->last + layer * t->d, h + (n_rows - 1) * t->d, row, e);
    return rc;
}

enum err_code where_pages(struct engine *en, int64_t n_ids, int32_t **pages, struct err *e)
{
    const struct engine_plan *plan = engine_get_plan(en);
    int64_t n = kv_pages_for(n_ids);
    *pages = NULL;
    if (n_ids > plan->ctx || n > plan->pages)
        return err_set(e, ERR_INPUT, "%lld tokens do not fit a context of %lld and %lld pages",
                       (long long)n_ids, (long long)plan->ctx, (long long)plan->pages);
    *pages = malloc((size_t)(n + 1) * sizeof **pages);
    if (!*pages)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int64_t i = 0; i < n; i++)
        (*pages)[i] = (int32_t)i;
    return ERR_OK;
}

static enum err_code zero_pages(struct engine *en, const int32_t *pages, int64_t n, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int64_t i = 0; i < n && rc == ERR_OK; i++)
        rc = engine_zero_page(en, pages[i], e);
    return rc;
}

enum err_code where_pass(const struct where_pass *p, float *logits, struct err *e)
{
    const struct hparams *hp = engine_hparams(p->en);
    const int chunk = engine_get_plan(p->en)->batch_tokens;
    struct taken t = {.p = p, .d = hp->d_model, .n_layer = hp->n_layer};
    enum err_code rc = zero_pages(p->en, p->pages, kv_pages_for(p->n_ids), e);
    if (p->last || p->keep)
        engine_set_state(p->en, take_state, &t);
    for (int64_t at = 0; at < p->n_ids && rc == ERR_OK; at += t.n) {
        t.first = at;
        t.n = (int)MIN2((int64_t)chunk, p->n_ids - at);
        bool ends = at + t.n == p->n_ids;
        struct step_piece piece = {.ids = p->ids + at,
                                   .n = t.n,
                                   .pos = at,
                                   .pages = p->pages,
                                   .n_pages = (int)kv_pages_for(p->n_ids),
                                   .out_from = ends ? t.n - 1 : t.n};
        struct step s = {.pieces = &piece, .n_pieces = 1, .want_logits = true};
        s.from_layer = p->from_layer;
        s.states = p->from_layer > 0 ? p->states + at * t.d : NULL;
        rc = engine_step(p->en, &s, e);
        if (rc == ERR_OK && ends)
            memcpy(logits, s.rows[0].logits, (size_t)hp->n_vocab * sizeof *logits);
    }
    engine_set_state(p->en, NULL, NULL);
    return rc;
}

enum err_code where_follow(const struct where_pass *p, const int32_t *answer, int64_t n,
                           int64_t *common, struct err *e)
{
    int32_t *pages;
    const int64_t n_vocab = engine_hparams(p->en)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    struct where_pass whole = *p;
    enum err_code rc = where_pages(p->en, p->n_ids + n, &pages, e);
    if (rc == ERR_OK && !logits)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    *common = 0;
    whole.pages = pages;
    if (rc == ERR_OK)
        rc = zero_pages(p->en, pages, kv_pages_for(p->n_ids + n), e);
    if (rc == ERR_OK)
        rc = where_pass(&whole, logits, e);
    while (rc == ERR_OK) {
        struct where_result r;
        int64_t pos = p->n_ids + *common;
        where_measure(logits, n_vocab, 0, 0, &r);
        if (*common == n || r.best != answer[*common])
            break;
        if (++*common == n)
            break;
        struct step_piece piece = {.ids = answer + *common - 1, .n = 1, .pos = pos, .pages = pages};
        piece.n_pages = (int)kv_pages_for(pos + 1);
        struct step s = {.pieces = &piece, .n_pieces = 1, .want_logits = true};
        rc = engine_step(p->en, &s, e);
        if (rc == ERR_OK)
            memcpy(logits, s.rows[0].logits, (size_t)n_vocab * sizeof *logits);
    }
    free(pages);
    free(logits);
    return rc;
}

void where_measure(const float *logits, int64_t n_vocab, int32_t good, int32_t bad,
                   struct where_result *r)
{
    float other = -INFINITY; /* the best but good */
    r->best = 0;
    for (int64_t i = 0; i < n_vocab; i++) {
        if (logits[i] > logits[r->best])
            r->best = (int32_t)i;
        if (i != good && logits[i] > other)
            other = logits[i];
    }
    r->margin = (double)logits[good] - (double)logits[bad];
    r->lead = (double)logits[good] - (double)other;
}

/* ---- the mixed variant -------------------------------------------------------------------------
 */

static bool is_matrix(const struct ckpt_weight *w)
{
    return w->n_dim >= 2 && str_ends(w->name, ".weight");
}

/* A copy of the embedding that a tied checkpoint calls its head is bound to nothing. */
static bool is_bound(const struct checkpoint *c, const struct ckpt_weight *w)
{
    return is_matrix(w) && !(c->hp.tied && strcmp(w->name, "lm_head.weight") == 0);
}

enum err_code where_swap_open(struct where_swap *s, struct lm *var, const struct checkpoint *ref,
                              const struct pair *p, struct err *e)
{
    *s = (struct where_swap){.var = var, .ref = ref, .n = ref->n_weights};
    s->of = calloc(s->n + 1, sizeof *s->of);
    s->changed = calloc(s->n + 1, sizeof *s->changed);
    s->base = calloc(s->n + 1, sizeof *s->base);
    s->now = calloc(s->n + 1, sizeof *s->now);
    s->want = calloc(s->n + 1, sizeof *s->want);
    if (!s->of || !s->changed || !s->base || !s->now || !s->want)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < s->n; i++)
        if (is_bound(ref, &ref->weights[i]))
            s->of[i] = checkpoint_find(var->ckpt, ref->weights[i].name);
    for (size_t i = 0; i < p->n_weights; i++) {
        const struct ckpt_weight *w = checkpoint_find(ref, p->weights[i].name);
        if (w && s->of[w - ref->weights] && p->weights[i].relative_rms != 0)
            s->changed[w - ref->weights] = true;
    }
    return ERR_OK;
}

void where_swap_close(struct where_swap *s)
{
    free(s->of);
    free(s->changed);
    free(s->base);
    free(s->now);
    free(s->want);
    free(s->pages);
    free(s->states);
    *s = (struct where_swap){.n = 0};
}

void where_swap_reset(struct where_swap *s)
{
    memcpy(s->want, s->base, s->n * sizeof *s->want);
}

static bool same_form(const struct where_form *a, const struct where_form *b)
{
    if (a->source != b->source || a->source != WHERE_OF_PLAN)
        return a->source == b->source;
    return a->packed == b->packed && (a->packed ? qformat_same(a->q, b->q) : a->dtype == b->dtype);
}

enum err_code where_swap_apply(struct where_swap *s, const struct plan *plan, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < s->n && rc == ERR_OK; i++) {
        const struct ckpt_weight *w = s->of[i];
        struct pack_one one = {.mem = NULL};
        if (!w || same_form(&s->now[i], &s->want[i]))
            continue;
        if (where_planted(WHERE_FAULT_STALE_SWAP) && s->want[i].source == WHERE_OF_VARIANT)
            continue;
        if (s->want[i].source == WHERE_OF_REFERENCE)
            w = &s->ref->weights[i];
        if (s->want[i].source == WHERE_OF_PLAN) {
            rc = pack_one(&one, &plan->items[i], kern_threads(engine_kern(s->var->engine)), e);
            w = &one.w;
        }
        if (rc == ERR_OK)
            rc = engine_put_weight(s->var->engine, s->ref->weights[i].name, w, e);
        pack_one_free(&one);
        s->now[i] = s->want[i];
    }
    return rc;
}

/* The first layer whose result is not the base's: 0 for the embedding, n_layer for a head. */
static int first_layer(const struct where_swap *s)
{
    int first = s->ref->hp.n_layer;
    for (size_t i = 0; i < s->n; i++) {
        const struct ckpt_weight *w = &s->ref->weights[i];
        if (!s->of[i] || same_form(&s->now[i], &s->base[i]))
            continue;
        if (w->layer >= 0)
            first = MIN2(first, w->layer);
        else if (w->role != ROLE_HEAD)
            first = 0;
    }
    return first;
}

static enum err_code run(struct where_swap *s, const struct where_pass *p, struct where_result *r,
                         struct err *e)
{
    const int64_t n_vocab = engine_hparams(p->en)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    enum err_code rc =
        logits ? where_pass(p, logits, e) : err_set(e, ERR_NOMEM, "out of memory for logits");
    if (rc == ERR_OK)
        where_measure(logits, n_vocab, s->good, s->bad, r);
    free(logits);
    s->n_runs++;
    if (s->o && s->o->on_progress)
        s->o->on_progress(s->o->ctx, s->n_runs);
    if (rc == ERR_OK && s->o && s->o->interrupted && *s->o->interrupted)
        rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    return rc;
}

enum err_code where_swap_start(struct where_swap *s, const int32_t *ids, int64_t n_ids,
                               int32_t good, int32_t bad, float *last, struct where_result *r,
                               struct err *e)
{
    const struct hparams *hp = engine_hparams(s->var->engine);
    const size_t layer = (size_t)n_ids * (size_t)hp->d_model * sizeof(float);
    free(s->pages);
    free(s->states);
    s->states = NULL;
    s->ids = ids;
    s->n_ids = n_ids;
    s->good = good;
    s->bad = bad;
    s->stride = 1;
    while (layer * (size_t)((hp->n_layer + s->stride - 1) / s->stride) > STATE_BYTES &&
           s->stride < hp->n_layer)
        s->stride++;
    enum err_code rc = where_pages(s->var->engine, n_ids, &s->pages, e);
    if (rc == ERR_OK)
        s->states = malloc(layer * (size_t)((hp->n_layer + s->stride - 1) / s->stride));
    if (rc == ERR_OK && !s->states)
        rc = err_set(e, ERR_NOMEM, "out of memory for states");
    memset(s->want, 0, s->n * sizeof *s->want); /* the variant's */
    return rc == ERR_OK ? where_swap_rebase(s, NULL, last, r, e) : rc;
}

enum err_code where_swap_rebase(struct where_swap *s, const struct plan *plan, float *last,
                                struct where_result *r, struct err *e)
{
    enum err_code rc = where_swap_apply(s, plan, e);
    memcpy(s->base, s->want, s->n * sizeof *s->base);
    struct where_pass p = {.en = s->var->engine,
                           .ids = s->ids,
                           .n_ids = s->n_ids,
                           .pages = s->pages,
                           .last = last,
                           .keep = s->states,
                           .stride = s->stride};
    return rc == ERR_OK ? run(s, &p, r, e) : rc;
}

enum err_code where_swap_run(struct where_swap *s, const struct plan *plan, struct where_result *r,
                             struct err *e)
{
    enum err_code rc = where_swap_apply(s, plan, e);
    if (rc != ERR_OK)
        return rc;
    const struct hparams *hp = engine_hparams(s->var->engine);
    int first = hparams_layers_apart(hp) ? MIN2(first_layer(s), hp->n_layer - 1) : 0;
    int kept = first / s->stride;
    struct where_pass p = {.en = s->var->engine,
                           .ids = s->ids,
                           .n_ids = s->n_ids,
                           .pages = s->pages,
                           .from_layer = kept * s->stride};
    p.states = s->states + (size_t)kept * (size_t)s->n_ids * (size_t)hp->d_model;
    return run(s, &p, r, e);
}
