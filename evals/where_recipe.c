/* where_recipe.c: the recipe that a variant came from, and moves of the search as rules behind its
 * own. */
#include <stdio.h>
#include <stdlib.h>

#include "evals/where_private.h"
#include "quant/recipe_text.h"

#define HEAD_NAME "lm_head.weight"

/* ---- the base ----------------------------------------------------------------------------------
 */

static bool same_kind(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    if (ckpt_weight_packed(a) != ckpt_weight_packed(b))
        return false;
    return !ckpt_weight_packed(a) || qformat_same(a->q, b->q);
}

/* A matrix of the variant that quantize could have written: packed, or dense and kept. */
static bool can_say(const struct ckpt_weight *w)
{
    return ckpt_weight_packed(w) || w->enc == CKPT_DENSE;
}

static struct recipe_rule rule_of(const struct ckpt_weight *w)
{
    return (struct recipe_rule){.keep = !ckpt_weight_packed(w), .q = w->q};
}

/* Do all weights of a role have one kind? */
static bool uniform(const struct checkpoint *c, enum ckpt_role role)
{
    const struct ckpt_weight *first = NULL;
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        if (w->role != role || !plan_can_pack(w))
            continue;
        if (first && !same_kind(first, w))
            return false;
        first = w;
    }
    return true;
}

/* The packed weight whose format most elements have; NULL: nothing is packed. */
static const struct ckpt_weight *commonest(const struct checkpoint *c)
{
    const struct ckpt_weight *best = NULL;
    int64_t most = 0;
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *a = &c->weights[i];
        int64_t sum = 0;
        if (!ckpt_weight_packed(a) || !plan_can_pack(a))
            continue;
        for (size_t j = 0; j < c->n_weights; j++)
            if (ckpt_weight_packed(&c->weights[j]) && qformat_same(c->weights[j].q, a->q))
                sum += ckpt_weight_rows(&c->weights[j]) * ckpt_weight_k(&c->weights[j]);
        if (sum > most)
            best = a;
        most = MAX2(most, sum);
    }
    return best;
}

/* One rule for most, then a rule for each role or matrix that is otherwise. */
static enum err_code derive(const struct checkpoint *c, struct recipe **out, struct err *e)
{
    const struct ckpt_weight *most = commonest(c);
    struct strbuf text = {0};
    unsigned done = 0;
    if (!most)
        return err_set(e, ERR_INPUT, "the variant has no packed matrix that quantize would make");
    recipe_text_head(&text, "the formats of the variant's own tensors");
    struct recipe_rule all = rule_of(most);
    recipe_text_rule(&text, &all);
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        if (!plan_can_pack(w) || (can_say(w) && same_kind(w, most)))
            continue;
        if (!can_say(w)) {
            strbuf_free(&text);
            return err_set(e, ERR_INPUT, "no recipe gives %s its format", w->name);
        }
        struct recipe_rule rule = rule_of(w);
        if (uniform(c, w->role)) {
            if (done >> w->role & 1u)
                continue;
            done |= 1u << w->role;
            rule.roles = 1u << w->role;
            if (w->role == ROLE_EMBEDDING && c->hp.tied)
                rule.roles |= 1u << ROLE_HEAD;
        } else {
            rule.match = (char *)(uintptr_t)w->name;
        }
        recipe_text_rule(&text, &rule);
    }
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = recipe_parse(out, text.data, text.len, "derived", e);
    strbuf_free(&text);
    return rc;
}

enum err_code where_recipe_open(struct where_recipe *r, const struct checkpoint *ref,
                                const struct checkpoint *var, const bool *changed, struct err *e)
{
    json_t *own = json_object_get(var->manifest, "recipe");
    const char *text = json_string_value(json_object_get(own, "text"));
    const char *name = json_string_value(json_object_get(own, "name"));
    *r = (struct where_recipe){.ref = ref, .changed = changed};
    enum err_code rc = text ? recipe_parse(&r->base, text, strlen(text), name ? name : "recipe", e)
                            : derive(var, &r->base, e);
    if (text)
        snprintf(r->from, sizeof r->from, "%.100s, the variant's own", name ? name : "recipe");
    else
        snprintf(r->from, sizeof r->from, "the formats of the variant's tensors");
    return rc == ERR_OK ? plan_from_recipe(&r->plan, ref, r->base, e) : rc;
}

void where_recipe_close(struct where_recipe *r)
{
    plan_free(r->plan);
    recipe_free(r->base);
    *r = (struct where_recipe){.base = NULL};
}

/* ---- moves -------------------------------------------------------------------------------------
 */

bool where_unit_has(const struct where_unit *u, const struct ckpt_weight *w)
{
    if (u->kind == WHERE_TENSOR)
        return strcmp(u->name, w->name) == 0;
    return (u->kind == WHERE_LAYER || w->role == u->role) &&
           (u->kind == WHERE_ROLE || w->layer == u->layer);
}

static int rank(const struct plan_item *it)
{
    return it->packed ? it->q.bits : WHERE_KEEP;
}

/* The group and the scale type that the base gives a unit's weights; block floats have none of
 * their own. */
static struct qformat grid_of(const struct where_recipe *r, const struct where_unit *u, int bits)
{
    struct qformat q = {bits, 0, DT_BF16};
    bool by64 = true;
    for (size_t i = 0; i < r->plan->n_items; i++) {
        const struct plan_item *it = &r->plan->items[i];
        if (!r->changed[i] || !where_unit_has(u, it->w))
            continue;
        by64 &= it->k % 64 == 0;
        if (it->packed && !qformat_is_block(it->q) && (!q.group || it->q.group < q.group)) {
            q.group = it->q.group;
            q.scale = it->q.scale;
        }
    }
    if (!q.group)
        q.group = by64 ? 64 : 32;
    return q;
}

/* A rule by role and layer would take bits from a weight that has as many or more. */
static bool would_lower(const struct where_recipe *r, const struct where_unit *u, int level)
{
    for (size_t i = 0; i < r->plan->n_items; i++) {
        const struct plan_item *it = &r->plan->items[i];
        if (plan_can_pack(it->w) && where_unit_has(u, it->w) &&
            (rank(it) >= level || !r->changed[i]))
            return true;
    }
    return false;
}

static void put_unit_rule(struct strbuf *text, const struct where_recipe *r,
                          const struct where_unit *u, int level, const int *layers, int n_layers)
{
    struct recipe_rule rule = {.keep = level == WHERE_KEEP};
    if (u->kind == WHERE_ROLE || u->kind == WHERE_CELL)
        rule.roles = 1u << u->role;
    if (u->role == ROLE_EMBEDDING && r->ref->hp.tied)
        rule.roles |= 1u << ROLE_HEAD;
    for (int i = 0; i < n_layers; i++)
        rule.range[rule.n_ranges++] = (struct recipe_range){layers[i], layers[i]};
    if (!rule.keep)
        rule.q = grid_of(r, u, level);
    recipe_text_rule(text, &rule);
}

/* Weight by weight, those that get more bits by it. */
static void put_name_rules(struct strbuf *text, const struct where_recipe *r,
                           const struct where_unit *u, int level)
{
    for (size_t i = 0; i < r->plan->n_items; i++) {
        const struct plan_item *it = &r->plan->items[i];
        if (!r->changed[i] || !where_unit_has(u, it->w) || rank(it) >= level)
            continue;
        struct where_unit one = {.kind = WHERE_TENSOR, .name = it->w->name};
        struct recipe_rule rule = {.keep = level == WHERE_KEEP};
        rule.match = (char *)(uintptr_t)it->w->name;
        if (!rule.keep)
            rule.q = grid_of(r, &one, level);
        recipe_text_rule(text, &rule);
        if (it->w->role == ROLE_EMBEDDING && r->ref->hp.tied) {
            rule.match = (char *)(uintptr_t) "" HEAD_NAME;
            recipe_text_rule(text, &rule);
        }
    }
}

static bool by_rule(const struct where_recipe *r, const struct where_unit *u, int level)
{
    return u->kind != WHERE_TENSOR && !would_lower(r, u, level);
}

/* Cells of one role become one rule with their layers. */
static bool joins(const struct where_recipe *r, const struct where_unit *a,
                  const struct where_unit *b, int level)
{
    struct qformat x = grid_of(r, a, level), y = grid_of(r, b, level);
    return a->kind == b->kind && (a->kind == WHERE_CELL || a->kind == WHERE_LAYER) &&
           a->role == b->role && by_rule(r, b, level) &&
           (level == WHERE_KEEP || qformat_same(x, y));
}

static void put_moves(struct strbuf *text, const struct where_recipe *r,
                      const struct where_unit *units, const struct where_move *m, size_t n,
                      int level)
{
    bool said[WHERE_MOVES_MAX] = {false};
    for (size_t i = 0; i < n; i++) {
        const struct where_unit *u = &units[m[i].unit];
        int layers[RECIPE_RANGES_MAX], n_layers = 0;
        if (said[i] || m[i].level != level)
            continue;
        if (!by_rule(r, u, level)) {
            put_name_rules(text, r, u, level);
            continue;
        }
        for (size_t j = i; j < n && n_layers < RECIPE_RANGES_MAX && u->layer >= 0; j++) {
            const struct where_unit *v = &units[m[j].unit];
            if (m[j].level != level || said[j] || (j > i && !joins(r, u, v, level)))
                continue;
            said[j] = true;
            layers[n_layers++] = v->layer;
        }
        for (int a = 1; a < n_layers; a++) /* in order of the layers */
            for (int b = a; b > 0 && layers[b] < layers[b - 1]; b--) {
                int low = layers[b];
                layers[b] = layers[b - 1];
                layers[b - 1] = low;
            }
        put_unit_rule(text, r, u, level, layers, n_layers);
    }
}

enum err_code where_recipe_plan(const struct where_recipe *r, const struct where_unit *units,
                                const struct where_move *moves, size_t n, const char *why,
                                struct recipe **recipe, struct plan **plan, uint64_t *added,
                                struct err *e)
{
    /* The last rule that matches decides: more bits come later. */
    static const int levels[] = {2, 3, 4, 5, 6, 8, WHERE_KEEP};
    struct strbuf text = {0};
    struct plan_totals before, after;
    *recipe = NULL;
    *plan = NULL;
    recipe_text_head(&text, why);
    for (int i = 0; i < r->base->n_rules; i++)
        recipe_text_rule(&text, &r->base->rules[i]);
    for (size_t i = 0; i < ARRAY_LEN(levels); i++)
        put_moves(&text, r, units, moves, n, levels[i]);
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = recipe_parse(recipe, text.data, text.len, "remedy", e);
    if (rc == ERR_OK)
        rc = plan_from_recipe(plan, r->ref, *recipe, e);
    strbuf_free(&text);
    if (rc != ERR_OK) {
        recipe_free(*recipe);
        *recipe = NULL;
        return rc;
    }
    plan_totals(r->plan, &before);
    plan_totals(*plan, &after);
    *added = after.bytes > before.bytes ? after.bytes - before.bytes : 0;
    return ERR_OK;
}
