/* plan_recipe.c: a recipe's decisions over a checkpoint (rules of plan.h), and what is wrong with
 * them. */
#include <stdio.h>
#include <stdlib.h>

#include "quant/plan.h"

#define EMBEDDING_NAME "model.embed_tokens.weight"
#define HEAD_NAME      "lm_head.weight"

struct deciding {
    struct plan *p;
    const struct recipe *r;
    bool *matched; /* rule: any weight */
    bool *packs;   /* rule: a weight that can be packed */
    struct err *e;
};

static int decide(struct deciding *d, const struct ckpt_weight *w, const char *name,
                  enum ckpt_role role)
{
    struct recipe_subject s = {name, role, w->layer, d->p->ckpt->hp.n_layer};
    for (int i = 0; i < d->r->n_rules; i++) {
        bool hit = recipe_rule_matches(&d->r->rules[i], &s);
        d->matched[i] |= hit;
        d->packs[i] |= hit && plan_can_pack(w);
    }
    return recipe_decide(d->r, &s);
}

/* Gemma 4 E has another table with the role of an embedding. */
static bool is_tied(const struct checkpoint *c, const struct ckpt_weight *w)
{
    return c->hp.tied && strcmp(w->name, EMBEDDING_NAME) == 0 && w->n_dim == 2 &&
           !checkpoint_find(c, HEAD_NAME);
}

/* Rank of a decision: bits, and kept is more than any. */
static int rank(const struct recipe_rule *rule)
{
    return rule->keep ? 64 : rule->q.bits;
}

static enum err_code merge_tied(struct deciding *d, struct plan_item *it, int as_embedding,
                                int as_head, int *rule)
{
    const struct recipe_rule *rules = d->r->rules;
    char a[160], b[160];
    if (as_embedding < 0 || as_head < 0) {
        *rule = MAX2(as_embedding, as_head);
        return ERR_OK;
    }
    const struct recipe_rule *x = &rules[as_embedding], *y = &rules[as_head];
    bool same_grid = x->q.group == y->q.group && x->q.scale == y->q.scale;
    if (!x->keep && !y->keep && !same_grid) {
        char f[64], g[64];
        return err_set(
            d->e, ERR_INPUT,
            "%s is embedding and head in one (tied), and its rules disagree: %s says %s, "
            "%s says %s; expected the same group and scale type",
            it->w->name, recipe_rule_place(d->r, as_embedding, a), plan_qformat_text(x->q, f),
            recipe_rule_place(d->r, as_head, b), plan_qformat_text(y->q, g));
    }
    bool head = rank(y) > rank(x);
    *rule = head ? as_head : as_embedding;
    if (as_embedding != as_head)
        snprintf(it->note, sizeof it->note,
                 "tied: as head by line %lld, as embedding by line %lld; %s has more bits",
                 (long long)y->line, (long long)x->line,
                 rank(x) == rank(y) ? "neither"
                 : head             ? "the head"
                                    : "the embedding");
    else
        snprintf(it->note, sizeof it->note, "tied: embedding and head in one");
    return ERR_OK;
}

static void set_format(struct plan_item *it, struct qformat q)
{
    const struct ckpt_weight *w = it->w;
    struct qformat has;
    bool same = ckpt_weight_packed(w) && qformat_same(w->q, q);
    bool exact = !same && ckpt_weight_packed_format(w, &has) && qformat_same(has, q);
    plan_set_packed(it, same ? PLAN_COPY : exact ? PLAN_REPACK : PLAN_ENCODE, q);
    if (same)
        snprintf(it->note, sizeof it->note, "is in this format already: copied");
}

/* Eight bits, affine: what mlx-lm gives a router beside experts in mxfp4. */
static void raise_router(struct qformat *q, int64_t k)
{
    if (qformat_is_block(*q))
        *q = (struct qformat){8, k % 64 ? 32 : 64, DT_BF16};
    q->bits = 8;
}

static enum err_code decide_item(struct deciding *d, struct plan_item *it)
{
    const struct ckpt_weight *w = it->w;
    int rule = decide(d, w, w->name, w->role);
    if (is_tied(d->p->ckpt, w)) {
        int as_head = decide(d, w, HEAD_NAME, ROLE_HEAD);
        enum err_code rc = merge_tied(d, it, rule, as_head, &rule);
        if (rc != ERR_OK)
            return rc;
    }
    it->rule = rule;
    if (rule < 0 || d->r->rules[rule].keep || !plan_can_pack(w))
        return ERR_OK;
    const struct recipe_rule *by = &d->r->rules[rule];
    struct qformat q = by->q;
    bool named = by->exact || by->roles >> ROLE_ROUTER & 1u;
    bool raised = w->role == ROLE_ROUTER && q.bits < 8 && !named;
    if (raised)
        raise_router(&q, it->k);
    if (it->k % q.group != 0 || it->k % 32 != 0) /* said for all of them by check_groups */
        it->q = q;
    else
        set_format(it, q);
    if (raised)
        snprintf(it->note, sizeof it->note,
                 "router: 8 bits instead of %d (a rule for role router may say less)", by->q.bits);
    it->packed = true;
    return ERR_OK;
}

/* Lists every tensor whose K the group does not divide, by rule. */
static enum err_code check_groups(const struct deciding *d)
{
    for (int rule = 0; rule < d->r->n_rules; rule++) {
        if (d->r->rules[rule].keep)
            continue;
        const struct plan_item *first = NULL;
        size_t n = 0;
        int group = MAX2(d->r->rules[rule].q.group, 32); /* a row is whole words */
        bool by64 = true, by32 = true;
        char place[160], names[500] = "";
        for (size_t i = 0; i < d->p->n_items; i++) {
            const struct plan_item *it = &d->p->items[i];
            if (!it->packed || it->rule != rule || it->k % group == 0)
                continue;
            first = first ? first : it;
            n++;
            by64 &= it->k % 64 == 0;
            by32 &= it->k % 32 == 0;
            size_t used = strlen(names);
            if (n <= 5)
                snprintf(names + used, sizeof names - used, "%s%.80s", n > 1 ? ", " : "",
                         it->w->name);
        }
        if (!n)
            continue;
        if (n > 5)
            snprintf(names + strlen(names), sizeof names - strlen(names), " and %zu more", n - 5);
        return err_set(d->e, ERR_INPUT,
                       "%s: group %d does not divide K of %zu tensors (K = %lld first): %s; %s",
                       recipe_rule_place(d->r, rule, place), group, n, (long long)first->k, names,
                       by64 && group > 64   ? "group 64 and 32 divide them"
                       : by32 && group > 32 ? "group 32 divides them"
                                            : "no group divides them: keep them");
    }
    return ERR_OK;
}

/* "272 tensors: embedding 1, attention 120, ...; layers 0..29" */
static void describe(const struct checkpoint *c, char *buf, size_t size)
{
    size_t of[ROLE_COUNT] = {0};
    for (size_t i = 0; i < c->n_weights; i++)
        of[c->weights[i].role]++;
    snprintf(buf, size, "%zu tensors:", c->n_weights);
    for (int r = 0; r < ROLE_COUNT; r++)
        if (of[r])
            snprintf(buf + strlen(buf), size - strlen(buf), " %s %zu,",
                     ckpt_role_name((enum ckpt_role)r), of[r]);
    snprintf(buf + strlen(buf), size - strlen(buf), " layers 0..%d", c->hp.n_layer - 1);
}

static enum err_code unmatched(const struct deciding *d, int rule)
{
    const struct checkpoint *c = d->p->ckpt;
    const struct recipe_rule *by = &d->r->rules[rule];
    char place[160], has[300];
    const char *near = NULL;
    describe(c, has, sizeof has);
    if (by->match && c->n_weights) {
        const char **names = malloc(c->n_weights * sizeof *names);
        if (!names)
            return err_set(d->e, ERR_NOMEM, "out of memory");
        for (size_t i = 0; i < c->n_weights; i++)
            names[i] = c->weights[i].name;
        near = str_nearest(by->match, names, c->n_weights);
        free(names);
    }
    return err_set(d->e, ERR_INPUT, "%s: matches no tensor%s%s%s; the checkpoint has %s%s%s",
                   recipe_rule_place(d->r, rule, place), by->match ? " ('" : "",
                   by->match ? by->match : "", by->match ? "')" : "", has,
                   near ? "; the nearest name is " : "", near ? near : "");
}

static enum err_code check_rules(const struct deciding *d)
{
    char place[160];
    for (int i = 0; i < d->r->n_rules; i++) {
        if (!d->matched[i])
            return unmatched(d, i);
        if (!d->packs[i] && !d->r->rules[i].keep)
            return err_set(d->e, ERR_INPUT,
                           "%s: asks for %d bits, but matches only tensors that are always kept "
                           "(norms, biases, one dimension)",
                           recipe_rule_place(d->r, i, place), d->r->rules[i].q.bits);
    }
    return ERR_OK;
}

enum err_code plan_from_recipe(struct plan **out, const struct checkpoint *c,
                               const struct recipe *r, struct err *e)
{
    struct plan *p = NULL;
    bool *flags = calloc((size_t)r->n_rules, 2 * sizeof *flags);
    enum err_code rc = flags ? plan_keep_all(&p, c, e) : err_set(e, ERR_NOMEM, "out of memory");
    *out = NULL;
    if (rc != ERR_OK)
        goto out;
    struct deciding d = {p, r, flags, flags + r->n_rules, e};
    p->recipe = r;
    for (size_t i = 0; i < p->n_items && rc == ERR_OK; i++)
        rc = decide_item(&d, &p->items[i]);
    if (rc == ERR_OK)
        rc = check_rules(&d);
    if (rc == ERR_OK)
        rc = check_groups(&d);
out:
    free(flags);
    if (rc != ERR_OK)
        plan_free(p);
    else
        *out = p;
    return rc;
}
