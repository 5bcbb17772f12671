/* where_search.c: the cheapest set of moves that brings the token back.
 *
 *   one     units that brought it back alone, cheapest first, until one does so as a recipe says it
 *   greedy  units by measured effect a byte, one after the other, each kept when the token's lead
 *           grows with it, until it is back
 *   drop    what is not needed goes, dearest first
 *   lower   each move to the fewest bits with which the token stays back; then drop once more
 *
 * so at every number of bits: few more bits for many parts may cost less than many for few. The
 * cheapest set wins; only where there is none, weights are kept at the reference's own precision.
 * Effects do not add up, so every set is run; no set counts that was not.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base.h"
#include "evals/where_private.h"

#define ALONE_TRIES 4  /* units that are tried alone, at a level */
#define STEP_TRIES  32 /* units that are tried behind others */

static const int levels[] = {3, 4, 5, 6, 8};

static enum where_fault planted;

void where_plant(enum where_fault f)
{
    planted = f;
}

bool where_planted(enum where_fault f)
{
    return planted == f;
}

struct set {
    struct where_move move[WHERE_MOVES_MAX];
    size_t n;
    uint64_t bytes;
    double lead;
    bool back;
};

struct search {
    const struct where_problem *p;
    size_t *by_worth, *by_cost; /* units that help, at a cost: best first */
    size_t n;
    struct err *e;
};

/* ---- orders ------------------------------------------------------------------------------------
 */

static double effect(const struct where_problem *p, size_t unit)
{
    double more = p->units[unit].margin - p->margin;
    return where_planted(WHERE_FAULT_SIGN) ? -more : more;
}

static double worth(const struct where_problem *p, size_t unit)
{
    double bytes = where_planted(WHERE_FAULT_COST) ? 1 : (double)p->units[unit].bytes;
    return effect(p, unit) / bytes;
}

/* Of equals the smaller part says more. */
static bool goes_before(const struct search *s, size_t a, size_t b, bool cost)
{
    const struct where_unit *x = &s->p->units[a], *y = &s->p->units[b];
    if (cost && x->bytes != y->bytes)
        return x->bytes < y->bytes;
    if (!cost && worth(s->p, a) != worth(s->p, b))
        return worth(s->p, a) > worth(s->p, b);
    return x->n_weights < y->n_weights;
}

/* Insertion sort, stable. */
static void sort_units(struct search *s, size_t *list, bool cost)
{
    for (size_t i = 1; i < s->n; i++)
        for (size_t j = i; j > 0 && goes_before(s, list[j], list[j - 1], cost); j--) {
            size_t other = list[j - 1];
            list[j - 1] = list[j];
            list[j] = other;
        }
}

/* ---- sets --------------------------------------------------------------------------------------
 */

static enum err_code price(const struct search *s, struct set *x)
{
    return s->p->cost(s->p->ctx, x->move, x->n, &x->bytes, s->e);
}

/* Without more bytes it is the variant itself. */
static enum err_code try_set(const struct search *s, struct set *x)
{
    x->back = false;
    enum err_code rc = price(s, x);
    if (rc != ERR_OK || x->bytes == UINT64_MAX || x->bytes == 0)
        return rc;
    rc = s->p->run(s->p->ctx, x->move, x->n, &x->lead, s->e);
    double least = where_planted(WHERE_FAULT_SAFETY) ? 0 : s->p->safety;
    x->back = rc == ERR_OK && x->lead >= least && x->lead > 0;
    return rc;
}

/* The cheapest unit that does it alone; best is not back when none does. */
static enum err_code find_one(const struct search *s, int level, struct set *best)
{
    int tries = 0;
    for (size_t i = 0; i < s->n && tries < ALONE_TRIES; i++) {
        struct set x = {.move = {{s->by_cost[i], level}}, .n = 1};
        if (s->p->units[s->by_cost[i]].lead < s->p->safety)
            continue;
        tries++;
        enum err_code rc = try_set(s, &x);
        if (rc != ERR_OK)
            return rc;
        if (x.back) {
            *best = x;
            return ERR_OK;
        }
    }
    return ERR_OK;
}

/* Units by worth, each kept when the lead grows with it, until the token is back. Sets whose bytes
 * reach the bound are passed over: a cheaper unit may still fit. */
static enum err_code find_greedy(const struct search *s, int level, uint64_t bound,
                                 struct set *best)
{
    int tries = 0;
    *best = (struct set){.lead = s->p->lead};
    for (size_t i = 0; i < s->n && best->n < WHERE_MOVES_MAX && tries < STEP_TRIES; i++) {
        struct set more = *best;
        more.move[more.n++] = (struct where_move){s->by_worth[i], level};
        enum err_code rc = price(s, &more);
        if (rc != ERR_OK)
            return rc;
        bool dear = more.bytes >= bound && !where_planted(WHERE_FAULT_COST);
        if (more.bytes == UINT64_MAX || more.bytes <= best->bytes || dear)
            continue;
        tries++;
        rc = try_set(s, &more);
        if (rc != ERR_OK)
            return rc;
        if (more.back || more.lead > best->lead)
            *best = more;
        if (more.back)
            break;
    }
    return ERR_OK;
}

/* ---- less --------------------------------------------------------------------------------------
 */

static struct set without(const struct set *x, size_t at)
{
    struct set less = *x;
    less.n--;
    memmove(less.move + at, less.move + at + 1, (less.n - at) * sizeof *less.move);
    return less;
}

/* Dearest first, each once. */
static enum err_code drop(const struct search *s, struct set *x)
{
    bool tried[WHERE_MOVES_MAX] = {false};
    while (x->n > 1 && !where_planted(WHERE_FAULT_NO_DROP)) {
        size_t at = x->n;
        for (size_t i = 0; i < x->n; i++)
            if (!tried[i] && (at == x->n || s->p->units[x->move[i].unit].bytes >
                                                s->p->units[x->move[at].unit].bytes))
                at = i;
        if (at == x->n)
            break;
        struct set less = without(x, at);
        enum err_code rc = try_set(s, &less);
        if (rc != ERR_OK)
            return rc;
        tried[at] = true;
        if (less.back && less.bytes <= x->bytes) {
            memmove(tried + at, tried + at + 1, (less.n - at) * sizeof *tried);
            *x = less;
        }
    }
    return ERR_OK;
}

/* Fewest bits first. A level that costs nothing is no move: that is for drop to try. */
static enum err_code lower(const struct search *s, struct set *x)
{
    for (size_t i = 0; i < x->n; i++) {
        struct set none = without(x, i);
        enum err_code rc = price(s, &none);
        if (rc != ERR_OK)
            return rc;
        for (size_t k = 0; k < ARRAY_LEN(levels) && levels[k] < x->move[i].level; k++) {
            struct set less = *x;
            less.move[i].level = levels[k];
            less.back = false;
            rc = price(s, &less);
            if (rc == ERR_OK && less.bytes < x->bytes && less.bytes > none.bytes)
                rc = try_set(s, &less);
            if (rc != ERR_OK)
                return rc;
            if (less.back) {
                *x = less;
                break;
            }
        }
    }
    return ERR_OK;
}

/* ---- all ---------------------------------------------------------------------------------------
 */

/* Makes *best cheaper where sets at this level allow it. */
static enum err_code search_level(const struct search *s, int level, struct set *best)
{
    struct set one = {.back = false}, greedy = {.back = false};
    enum err_code rc = find_one(s, level, &one);
    if (rc == ERR_OK && one.back && (!best->back || one.bytes < best->bytes))
        *best = one;
    if (rc == ERR_OK)
        rc = find_greedy(s, level, best->back ? best->bytes : UINT64_MAX, &greedy);
    if (rc == ERR_OK && greedy.back)
        rc = drop(s, &greedy);
    if (rc == ERR_OK && greedy.back && (!best->back || greedy.bytes < best->bytes))
        *best = greedy;
    return rc;
}

enum err_code where_search(const struct where_problem *p, struct where_remedy *r, struct err *e)
{
    struct search s = {.p = p, .e = e};
    struct set best = {.back = false};
    enum err_code rc = ERR_OK;
    s.by_worth = calloc(p->n_units + 1, sizeof *s.by_worth);
    s.by_cost = calloc(p->n_units + 1, sizeof *s.by_cost);
    if (!s.by_worth || !s.by_cost)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < p->n_units; i++)
        if (p->units[i].bytes != UINT64_MAX && effect(p, i) > 0)
            s.by_worth[s.n++] = i;
    if (rc == ERR_OK) {
        memcpy(s.by_cost, s.by_worth, s.n * sizeof *s.by_cost);
        sort_units(&s, s.by_worth, false);
        sort_units(&s, s.by_cost, true);
    }
    for (size_t k = 0; k < ARRAY_LEN(levels) && rc == ERR_OK; k++)
        rc = search_level(&s, levels[k], &best);
    if (rc == ERR_OK && !best.back)
        rc = search_level(&s, WHERE_KEEP, &best);
    if (rc == ERR_OK && best.back)
        rc = lower(&s, &best);
    if (rc == ERR_OK && best.back)
        rc = drop(&s, &best);
    free(s.by_worth);
    free(s.by_cost);
    r->found = best.back;
    r->n_moves = best.n;
    memcpy(r->move, best.move, sizeof r->move);
    r->bytes = best.bytes;
    r->lead = best.lead;
    if (rc == ERR_OK && !best.back)
        snprintf(r->why_not, sizeof r->why_not,
                 "no set of the %zu parts that help brings it back, not even at the reference's "
                 "precision",
                 s.n);
    return rc;
}
