/* where.c: picks the flips of a pair and takes each through lens, attribution, search and the run
 * of what the recipe makes. */
#include "evals/where.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "evals/compare.h"
#include "evals/where_private.h"
#include "quant/pack_one.h"

#define TENSOR_CELLS 4 /* cells whose tensors are measured one by one */

/* One flip at work. */
struct work {
    const struct comparison *c;
    const struct pair *p;
    struct lm *ref;
    struct where_swap swap;
    struct where_recipe recipe;
    bool has_recipe;
    char no_recipe[256];
    struct where_flip *f;
    struct where_result variant; /* the variant as it is */
    char why[320];               /* first line of the remedy */
};

/* ---- which -------------------------------------------------------------------------------------
 */

static bool is_flip(const struct position *q)
{
    return q->finite && q->ref_best != q->var_best;
}

/* Greater margins overturned come first, then greater KL; equals in the order of positions. */
static bool is_worse(const struct position *a, const struct position *b)
{
    if (a->ref_margin != b->ref_margin)
        return a->ref_margin > b->ref_margin;
    return a->kl > b->kl;
}

static enum err_code pick(struct where *w, const struct comparison *c, const struct pair *p,
                          size_t most, struct err *e)
{
    w->flips = calloc(most + 1, sizeof *w->flips);
    if (!w->flips)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n_positions; i++) {
        const struct position *q = &p->positions[i];
        if (!is_flip(q))
            continue;
        w->n_all++;
        if (!(q->ref_margin > c->decided))
            continue;
        w->n_decided++;
        size_t at = w->n_flips;
        while (at > 0 && is_worse(q, &p->positions[w->flips[at - 1].position]))
            at--;
        if (at == most)
            continue;
        w->n_flips = MIN2(w->n_flips + 1, most);
        memmove(w->flips + at + 1, w->flips + at, (w->n_flips - at - 1) * sizeof *w->flips);
        w->flips[at] = (struct where_flip){.position = i};
    }
    return ERR_OK;
}

/* Prompt and answer before the flip. */
static int32_t *prefix_of(const struct pair *p, const struct position *q, int64_t *n)
{
    const struct trace_record *r = &p->ref->trace->records[q->record];
    int32_t *ids = malloc(((size_t)r->n_prompt + r->n + 1) * sizeof *ids);
    *n = r->n_prompt + q->index;
    if (!ids)
        return NULL;
    memcpy(ids, r->prompt_ids, (size_t)r->n_prompt * sizeof *ids);
    for (size_t i = 0; i < r->n; i++)
        ids[r->n_prompt + (int64_t)i] = r->tok[i].id;
    return ids;
}

/* ---- the lens ----------------------------------------------------------------------------------
 */

static enum err_code see_reference(struct work *w, const int32_t *ids, float *last,
                                   struct where_result *r, struct err *e)
{
    struct engine *en = w->ref->engine;
    const int64_t n_vocab = engine_hparams(en)->n_vocab;
    int32_t *pages;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    enum err_code rc = where_pages(en, w->f->n_prefix, &pages, e);
    struct where_pass p = {
        .en = en, .ids = ids, .n_ids = w->f->n_prefix, .pages = pages, .last = last, .stride = 1};
    if (rc == ERR_OK)
        rc = logits ? where_pass(&p, logits, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        where_measure(logits, n_vocab, w->swap.good, w->swap.bad, r);
    free(pages);
    free(logits);
    return rc;
}

static enum err_code look(struct work *w, const int32_t *ids, struct err *e)
{
    struct where_flip *f = w->f;
    const struct position *q = &w->p->positions[f->position];
    const struct checkpoint *ref = w->ref->ckpt;
    const size_t n = (size_t)(ref->hp.n_layer + 1) * (size_t)ref->hp.d_model;
    struct where_lens of_ref = {.norm = NULL}, of_var = {.norm = NULL};
    struct where_result reference;
    float *states = calloc(2 * n, sizeof *states);
    f->n_layer = ref->hp.n_layer;
    f->layers = calloc((size_t)f->n_layer + 1, sizeof *f->layers);
    enum err_code rc = states && f->layers
                           ? where_lens_open(&of_ref, ref, q->ref_best, q->var_best, e)
                           : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = where_lens_open(&of_var, w->swap.var->ckpt, q->ref_best, q->var_best, e);
    if (rc == ERR_OK)
        rc = where_swap_start(&w->swap, ids, f->n_prefix, q->ref_best, q->var_best, states + n,
                              &w->variant, e);
    if (rc == ERR_OK)
        rc = see_reference(w, ids, states, &reference, e);
    if (rc == ERR_OK) {
        f->ref_margin = reference.margin;
        f->var_margin = w->variant.margin;
        f->safety = fmin((double)w->c->decided, reference.lead / 2);
        where_lens_layers(f, &of_ref, &of_var, states, states + n);
    }
    where_lens_close(&of_ref);
    where_lens_close(&of_var);
    free(states);
    return rc;
}

/* ---- attribution -------------------------------------------------------------------------------
 */

/* Adds a unit when something of it is changed; gives how many weights are. */
static size_t add_unit(struct work *w, struct where_unit u)
{
    for (size_t i = 0; i < w->swap.n; i++)
        u.n_weights += w->swap.changed[i] && where_unit_has(&u, &w->swap.ref->weights[i]);
    u.bytes = UINT64_MAX;
    if (u.n_weights)
        w->f->units[w->f->n_units++] = u;
    return u.n_weights;
}

static enum err_code measure(struct work *w, struct where_unit *u, struct err *e)
{
    struct where_result r;
    where_swap_reset(&w->swap);
    for (size_t i = 0; i < w->swap.n; i++)
        if (w->swap.changed[i] && where_unit_has(u, &w->swap.ref->weights[i]))
            w->swap.want[i].source = WHERE_OF_REFERENCE;
    enum err_code rc = where_swap_run(&w->swap, NULL, &r, e);
    u->margin = r.margin;
    u->lead = r.lead;
    return rc;
}

/* Roles, layers and cells, each measured. A cell that is all of its layer is not run twice. */
static enum err_code measure_all(struct work *w, struct err *e)
{
    struct where_flip *f = w->f;
    enum err_code rc = ERR_OK;
    for (int r = 0; r < ROLE_COUNT && rc == ERR_OK; r++)
        if (add_unit(w, (struct where_unit){WHERE_ROLE, (enum ckpt_role)r, -1, NULL, 0, 0, 0, 0}))
            rc = measure(w, &f->units[f->n_units - 1], e);
    for (int l = 0; l < f->n_layer && rc == ERR_OK; l++) {
        if (!add_unit(w, (struct where_unit){WHERE_LAYER, ROLE_COUNT, l, NULL, 0, 0, 0, 0}))
            continue;
        const size_t layer = f->n_units - 1;
        rc = measure(w, &f->units[layer], e);
        for (int r = 0; r < ROLE_COUNT && rc == ERR_OK; r++) {
            if (!add_unit(w,
                          (struct where_unit){WHERE_CELL, (enum ckpt_role)r, l, NULL, 0, 0, 0, 0}))
                continue;
            struct where_unit *cell = &f->units[f->n_units - 1];
            if (cell->n_weights < f->units[layer].n_weights) {
                rc = measure(w, cell, e);
            } else {
                cell->margin = f->units[layer].margin;
                cell->lead = f->units[layer].lead;
            }
        }
    }
    return rc;
}

/* A cell, or a role that has no layers. */
static bool is_place(const struct work *w, const struct where_unit *u)
{
    bool outside = u->kind == WHERE_ROLE;
    for (size_t i = 0; outside && i < w->swap.n; i++)
        if (w->swap.changed[i] && where_unit_has(u, &w->swap.ref->weights[i]))
            outside = w->swap.ref->weights[i].layer < 0;
    return outside || u->kind == WHERE_CELL;
}

/* The tensors of the cells with the greatest effects, one by one. */
static enum err_code measure_tensors(struct work *w, struct err *e)
{
    struct where_flip *f = w->f;
    const size_t n_units = f->n_units;
    bool *done = calloc(n_units + 1, sizeof *done);
    enum err_code rc = done ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    for (int k = 0; k < TENSOR_CELLS && rc == ERR_OK; k++) {
        size_t at = n_units;
        for (size_t i = 0; i < n_units; i++)
            if (!done[i] && f->units[i].kind == WHERE_CELL &&
                (at == n_units || f->units[i].margin > f->units[at].margin))
                at = i;
        if (at == n_units)
            break;
        done[at] = true;
        const struct where_unit *cell = &f->units[at];
        for (size_t i = 0; cell->n_weights > 1 && i < w->swap.n && rc == ERR_OK; i++) {
            const struct ckpt_weight *t = &w->swap.ref->weights[i];
            if (!w->swap.changed[i] || !where_unit_has(cell, t))
                continue;
            struct where_unit u = {WHERE_TENSOR, t->role, t->layer, t->name, 0, 0, 0, 0};
            add_unit(w, u);
            rc = measure(w, &f->units[f->n_units - 1], e);
        }
    }
    free(done);
    return rc;
}

/* The place with the greatest effect, or the tensor in it that has half of that or more. */
static void find_culprit(struct work *w)
{
    struct where_flip *f = w->f;
    size_t at = f->n_units;
    for (size_t i = 0; i < f->n_units; i++)
        if (is_place(w, &f->units[i]) &&
            (at == f->n_units || f->units[i].margin > f->units[at].margin))
            at = i;
    if (at == f->n_units)
        return;
    const struct where_unit place = f->units[at];
    double least = (place.margin + f->var_margin) / 2;
    for (size_t i = 0; i < f->n_units; i++) {
        const struct where_unit *u = &f->units[i];
        if (u->kind == WHERE_TENSOR && u->role == place.role && u->layer == place.layer &&
            u->margin >= least) {
            least = u->margin;
            at = i;
        }
    }
    f->culprit = at;
}

static enum err_code attribute(struct work *w, struct err *e)
{
    const size_t n = (size_t)ROLE_COUNT + (size_t)w->f->n_layer * (ROLE_COUNT + 1) + w->swap.n;
    w->f->units = calloc(n + 1, sizeof *w->f->units);
    if (!w->f->units)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = measure_all(w, e);
    if (rc == ERR_OK)
        rc = measure_tensors(w, e);
    if (rc == ERR_OK)
        find_culprit(w);
    return rc;
}

/* ---- the search --------------------------------------------------------------------------------
 */

static enum err_code plan_moves(struct work *w, const struct where_move *m, size_t n,
                                struct recipe **recipe, struct plan **plan, uint64_t *bytes,
                                struct err *e)
{
    return where_recipe_plan(&w->recipe, w->f->units, m, n, w->why, recipe, plan, bytes, e);
}

static enum err_code cost_of(void *ctx, const struct where_move *m, size_t n, uint64_t *bytes,
                             struct err *e)
{
    struct recipe *recipe;
    struct plan *plan;
    enum err_code rc = plan_moves(ctx, m, n, &recipe, &plan, bytes, e);
    if (rc == ERR_INPUT) {
        *bytes = UINT64_MAX;
        rc = ERR_OK;
    }
    plan_free(plan);
    recipe_free(recipe);
    return rc;
}

static bool same_item(const struct plan_item *a, const struct plan_item *b)
{
    return a->packed == b->packed && a->action == b->action &&
           (a->packed ? qformat_same(a->q, b->q) : a->dtype == b->dtype);
}

/* What the plan gives other bytes than the base recipe does; the rest is the base's. */
static void want_plan(struct work *w, const struct plan *plan)
{
    where_swap_reset(&w->swap);
    for (size_t i = 0; i < w->swap.n; i++) {
        const struct plan_item *it = &plan->items[i];
        if (!same_item(it, &w->recipe.plan->items[i]))
            w->swap.want[i] = (struct where_form){WHERE_OF_PLAN, it->packed, it->q, it->dtype};
    }
}

static enum err_code lead_of(void *ctx, const struct where_move *m, size_t n, double *lead,
                             struct err *e)
{
    struct work *w = ctx;
    struct recipe *recipe;
    struct plan *plan;
    struct where_result r = {.lead = 0};
    uint64_t bytes;
    enum err_code rc = plan_moves(w, m, n, &recipe, &plan, &bytes, e);
    if (rc != ERR_OK)
        return rc;
    want_plan(w, plan);
    rc = where_swap_run(&w->swap, plan, &r, e);
    *lead = r.lead;
    plan_free(plan);
    recipe_free(recipe);
    return rc;
}

/* Every weight as quantize makes it by the base: what is not the variant's already is put in. */
static enum err_code want_base(struct work *w, size_t *n_refit, struct err *e)
{
    const int threads = kern_threads(engine_kern(w->swap.var->engine));
    enum err_code rc = ERR_OK;
    where_swap_reset(&w->swap);
    *n_refit = 0;
    for (size_t i = 0; i < w->swap.n && rc == ERR_OK; i++) {
        struct pack_one one;
        const struct plan_item *it = &w->recipe.plan->items[i];
        if (!w->swap.of[i])
            continue;
        rc = pack_one(&one, it, threads, e);
        if (rc == ERR_OK && !pack_one_same(&one.w, w->swap.of[i])) {
            w->swap.want[i] = (struct where_form){WHERE_OF_PLAN, it->packed, it->q, it->dtype};
            ++*n_refit;
        }
        pack_one_free(&one);
        if (rc == ERR_OK && w->swap.o->interrupted && *w->swap.o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    }
    return rc;
}

/* A variant that is not what quantize makes of the reference by its recipe: what is gives the
 * search its base. Is the token back in it? Then no more bits are needed. */
static enum err_code try_base(struct work *w, double *lead, struct err *e)
{
    struct where_remedy *m = &w->f->remedy;
    struct where_result r = w->variant;
    enum err_code rc = want_base(w, &m->n_refit, e);
    if (rc == ERR_OK && m->n_refit)
        rc = where_swap_rebase(&w->swap, w->recipe.plan, NULL, &r, e);
    m->found = rc == ERR_OK && m->n_refit && r.lead > 0 && r.lead >= w->f->safety;
    *lead = r.lead;
    return rc;
}

/* The model that the recipe makes, forced to the flip and then free from the answer's start. */
static enum err_code verify(struct work *w, const int32_t *ids, struct err *e)
{
    struct where_remedy *m = &w->f->remedy;
    const struct position *q = &w->p->positions[w->f->position];
    const struct trace_record *rec = &w->p->ref->trace->records[q->record];
    struct recipe *recipe;
    struct plan *plan;
    struct where_result r = {.lead = 0};
    enum err_code rc = plan_moves(w, m->move, m->n_moves, &recipe, &plan, &m->bytes, e);
    if (rc != ERR_OK)
        return rc;
    want_plan(w, plan);
    rc = where_swap_run(&w->swap, plan, &r, e);
    struct where_pass start = {
        .en = w->swap.var->engine, .ids = ids, .n_ids = rec->n_prompt, .stride = 1};
    if (rc == ERR_OK)
        rc = where_follow(&start, ids + rec->n_prompt, (int64_t)rec->n, &m->free_common, e);
    m->lead = r.lead;
    m->verified = rc == ERR_OK && r.best == q->ref_best && r.lead >= w->f->safety;
    m->recipe = strdup(recipe->text);
    if (rc == ERR_OK && !m->recipe)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    plan_free(plan);
    recipe_free(recipe);
    return rc;
}

static enum err_code remedy(struct work *w, const int32_t *ids, struct err *e)
{
    struct where_flip *f = w->f;
    struct where_problem problem = {.units = f->units,
                                    .n_units = f->n_units,
                                    .margin = f->var_margin,
                                    .safety = f->safety,
                                    .cost = cost_of,
                                    .run = lead_of,
                                    .ctx = w};
    if (!w->has_recipe) {
        snprintf(f->remedy.why_not, sizeof f->remedy.why_not, "%s", w->no_recipe);
        return ERR_OK;
    }
    snprintf(f->remedy.base, sizeof f->remedy.base, "%s", w->recipe.from);
    enum err_code rc = try_base(w, &problem.lead, e);
    for (size_t i = 0; i < f->n_units && rc == ERR_OK; i++) {
        struct where_move m = {i, 8};
        rc = cost_of(w, &m, 1, &f->units[i].bytes, e);
        m.level = WHERE_KEEP; /* it has 8 bits already */
        if (rc == ERR_OK && f->units[i].bytes == 0)
            rc = cost_of(w, &m, 1, &f->units[i].bytes, e);
        if (f->units[i].bytes == 0)
            f->units[i].bytes = UINT64_MAX;
    }
    if (rc == ERR_OK && !f->remedy.found)
        rc = where_search(&problem, &f->remedy, e);
    return rc == ERR_OK && f->remedy.found ? verify(w, ids, e) : rc;
}

/* ---- all ---------------------------------------------------------------------------------------
 */

static void set_why(struct work *w)
{
    const struct position *q = &w->p->positions[w->f->position];
    const struct trace_record *r = &w->p->ref->trace->records[q->record];
    const char *base = w->has_recipe ? w->recipe.base->why : "";
    size_t n = MIN2(strlen(base), (size_t)140);
    while (n && (base[n - 1] == '.' || base[n - 1] == ' '))
        n--;
    snprintf(w->why, sizeof w->why, "%.*s; and what brings back token %d of %.100s, turn %d",
             (int)n, base, q->index, r->custom_id, r->turn);
    for (char *s = w->why; *s; s++)
        if ((unsigned char)*s < ' ')
            *s = '?';
}

static enum err_code explain(struct work *w, bool with_remedy, struct err *e)
{
    const struct position *q = &w->p->positions[w->f->position];
    int32_t *ids = prefix_of(w->p, q, &w->f->n_prefix);
    const size_t before = w->swap.n_runs;
    enum err_code rc = ids ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    set_why(w);
    w->swap.good = q->ref_best;
    w->swap.bad = q->var_best;
    if (rc == ERR_OK)
        rc = look(w, ids, e);
    if (rc == ERR_OK && with_remedy)
        rc = attribute(w, e);
    if (rc == ERR_OK && with_remedy)
        rc = remedy(w, ids, e);
    w->f->remedy.n_runs = w->swap.n_runs - before;
    free(ids);
    return rc;
}

/* The recipe that the moves go behind; without one there is attribution, and no remedy. */
static enum err_code open_recipe(struct work *w, struct err *e)
{
    struct err why = {.text = ""};
    enum err_code rc =
        where_recipe_open(&w->recipe, w->ref->ckpt, w->swap.var->ckpt, w->swap.changed, &why);
    w->has_recipe = rc == ERR_OK;
    snprintf(w->no_recipe, sizeof w->no_recipe, "%.255s", why.text);
    if (rc == ERR_OK || rc == ERR_INPUT)
        return ERR_OK;
    if (e)
        *e = why;
    return rc;
}

/* Tokens that the longest of the flips' sequences has, its answer to the end. */
static int64_t longest(const struct where *w, const struct pair *p)
{
    int64_t most = 1;
    for (size_t i = 0; i < w->n_flips; i++) {
        const struct position *q = &p->positions[w->flips[i].position];
        const struct trace_record *r = &p->ref->trace->records[q->record];
        most = MAX2(most, r->n_prompt + (int64_t)r->n);
    }
    return most;
}

enum err_code where_run(struct where **out, const struct comparison *c, const struct pair *p,
                        struct lm *ref, const struct compare_options *o, size_t n, bool with_remedy,
                        struct err *e)
{
    struct work w = {.c = c, .p = p, .ref = ref};
    struct lm *var = NULL;
    struct engine_options how = o->engine;
    struct where *all = calloc(1, sizeof *all);
    how.batch_seqs = 1;
    *out = NULL;
    enum err_code rc = all ? pick(all, c, p, n, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && all->n_flips) {
        how.kv_tokens = longest(all, p);
        rc = lm_open(&var, p->var->path, &how, NULL, NULL, e);
        if (rc == ERR_OK)
            rc = where_swap_open(&w.swap, var, ref->ckpt, p, e);
        w.swap.o = o;
        if (rc == ERR_OK && with_remedy)
            rc = open_recipe(&w, e);
        for (size_t i = 0; i < all->n_flips && rc == ERR_OK; i++) {
            w.f = &all->flips[i];
            rc = explain(&w, with_remedy, e);
        }
        where_recipe_close(&w.recipe);
        where_swap_close(&w.swap);
        lm_close(var);
    }
    if (rc != ERR_OK)
        where_free(all);
    else
        *out = all;
    return err_wrap(e, rc, "where %s differs", p->var->name);
}

void where_free(struct where *w)
{
    for (size_t i = 0; w && i < w->n_flips; i++) {
        free(w->flips[i].layers);
        free(w->flips[i].units);
        free(w->flips[i].remedy.recipe);
    }
    if (w)
        free(w->flips);
    free(w);
}
