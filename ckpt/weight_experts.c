/* weight_experts.c: experts as they are stored -> one weight for all experts of a matrix.
 *
 *   <block>.experts.E.<rest>, E = 0 .. n-1         one tensor each       ->  <block>.experts.<rest>
 *   <block>.experts.gate_up_proj.weight            gate rows, then up    ->  gate_proj and up_proj
 *   <block>.experts.{gate,up,down}_proj.weight     stacked already           as they are
 *
 * No byte moves: the stacked weight lists where each expert lies (ckpt_weight_at). So whatever
 * reads weights sees the same names, shapes and rows in every storage. Owns no list of what a
 * family must have: that is family_check.c's.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/checkpoint_priv.h"
#include "ckpt/names.h"

#define PART      ".experts."
#define FUSED     "experts.gate_up_proj.weight"
#define DIGITS    5
#define GATE_NAME "gate_proj.weight"
#define UP_NAME   "up_proj.weight"

/* One of the weights "<head>.experts.<number>.<rest>". */
struct single {
    const struct ckpt_weight *w;
    size_t head; /* bytes of the name up to and with PART */
    const char *rest;
    int number;
};

/* ---- errors that keep the model from being run -------------------------------------------------
 */

static void refuse(struct checkpoint *c, const struct err *why)
{
    if (!c->hp_ok)
        return;
    c->hp_ok = false;
    c->hp_err = *why;
    err_wrap(&c->hp_err, ERR_INPUT, "%s", c->path);
}

static void refuse_gap(struct checkpoint *c, const struct single *s, int n, int found)
{
    struct err e = {.text = ""};
    err_set(&e, ERR_INPUT, "weight '%.*s%d.%s' is missing: experts are numbered up to %d",
            (int)s->head, s->w->name, n, s->rest, found);
    refuse(c, &e);
}

static void refuse_other(struct checkpoint *c, const struct ckpt_weight *a,
                         const struct ckpt_weight *b)
{
    struct err e = {.text = ""};
    err_set(&e, ERR_INPUT,
            "weights '%s' and '%s' differ in shape or format: experts of a matrix must be alike",
            a->name, b->name);
    refuse(c, &e);
}

/* ---- one tensor each ---------------------------------------------------------------------------
 */

static bool parse_single(const struct ckpt_weight *w, struct single *s)
{
    const char *at = strstr(w->name, PART);
    int digits = 0;
    if (!at || w->n_dim + 1 > CKPT_DIMS_MAX || w->n_dim < 1)
        return false;
    at += strlen(PART);
    *s = (struct single){.w = w, .head = (size_t)(at - w->name)};
    for (; *at >= '0' && *at <= '9' && digits <= DIGITS; at++, digits++)
        s->number = 10 * s->number + (*at - '0');
    s->rest = at + 1;
    return digits > 0 && digits <= DIGITS && *at == '.';
}

static int compare_matrix(const struct single *a, const struct single *b)
{
    int d =
        a->head != b->head ? (a->head < b->head ? -1 : 1) : memcmp(a->w->name, b->w->name, a->head);
    return d ? d : strcmp(a->rest, b->rest);
}

static int compare_singles(const void *x, const void *y)
{
    const struct single *a = x, *b = y;
    int d = compare_matrix(a, b);
    return d ? d : (a->number > b->number) - (a->number < b->number);
}

static bool is_alike(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    return a->enc == b->enc && a->dtype == b->dtype && a->ggml == b->ggml &&
           a->q.bits == b->q.bits && a->q.group == b->q.group && a->q.scale == b->q.scale &&
           a->n_dim == b->n_dim && memcmp(a->dim, b->dim, sizeof a->dim) == 0 &&
           !a->globals == !b->globals && ckpt_weight_row_bytes(a) > 0;
}

/* The n singles of one matrix as a weight behind the list; false when they do not fit together. */
static bool stack_singles(struct checkpoint *c, const struct single *s, int n, struct err *e,
                          enum err_code *rc)
{
    const struct ckpt_weight *first = s[0].w;
    for (int i = 0; i < n; i++) {
        if (s[i].number != i) {
            refuse_gap(c, &s[i], i, s[n - 1].number);
            return false;
        }
        if (!is_alike(first, s[i].w)) {
            refuse_other(c, first, s[i].w);
            return false;
        }
    }
    struct ckpt_block *blocks = arena_array(c->priv->arena, (size_t)n, sizeof *blocks);
    char name[CKPT_NAME_MAX];
    snprintf(name, sizeof name, "%.*s%s", (int)s[0].head, first->name, s[0].rest);
    const char *kept = arena_strdup(c->priv->arena, name);
    if (!blocks || !kept) {
        *rc = arena_error(c->priv->arena, (size_t)n * sizeof *blocks, e);
        return false;
    }
    struct ckpt_weight *w = &c->weights[c->n_weights++];
    *w = *first;
    w->name = kept;
    w->bytes = 0;
    for (int i = 0; i < n; i++) {
        const struct ckpt_weight *x = s[i].w;
        blocks[i] = (struct ckpt_block){x->data, x->scales, x->biases, x->globals};
        w->bytes += s[i].w->bytes;
    }
    w->blocks = blocks;
    w->data = w->scales = w->biases = w->globals = NULL;
    memmove(w->dim + 1, first->dim, (CKPT_DIMS_MAX - 1) * sizeof *w->dim);
    w->dim[0] = n;
    w->n_dim = first->n_dim + 1;
    return true;
}

/* ---- gate and up in one ------------------------------------------------------------------------
 */

static bool is_fused(const struct ckpt_weight *w)
{
    return str_ends(w->name, FUSED) && w->n_dim == 3 && w->dim[0] > 0 && w->dim[1] > 0 &&
           w->dim[1] % 2 == 0 && !w->blocks && ckpt_weight_row_bytes(w) > 0;
}

/* Half 0 is gate, half 1 up. */
static enum err_code add_half(struct checkpoint *c, const struct ckpt_weight *fused, int half,
                              struct err *e)
{
    const int64_t n = fused->dim[0], rows = fused->dim[1] / 2;
    struct ckpt_block *blocks = arena_array(c->priv->arena, (size_t)n, sizeof *blocks);
    char name[CKPT_NAME_MAX];
    size_t head = strlen(fused->name) - strlen(FUSED) + strlen("experts.");
    snprintf(name, sizeof name, "%.*s%s", (int)head, fused->name, half ? UP_NAME : GATE_NAME);
    const char *kept = arena_strdup(c->priv->arena, name);
    if (!blocks || !kept)
        return arena_error(c->priv->arena, (size_t)n * sizeof *blocks, e);
    for (int64_t i = 0; i < n; i++) {
        ckpt_weight_at(fused, (2 * i + half) * rows, &blocks[i]);
        blocks[i].globals = ckpt_weight_stored_global(fused, (2 * i + half) * rows);
    }
    struct ckpt_weight *w = &c->weights[c->n_weights++];
    *w = *fused;
    w->name = kept;
    w->blocks = blocks;
    w->data = w->scales = w->biases = w->globals = NULL;
    w->bytes = fused->bytes / 2;
    w->dim[1] = rows;
    return ERR_OK;
}

/* ---- the list ----------------------------------------------------------------------------------
 */

/* Weights whose name is NULL were stacked. */
static void drop_stacked(struct checkpoint *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->n_weights; i++) {
        if (c->weights[i].name)
            c->weights[kept++] = c->weights[i];
    }
    c->n_weights = kept;
}

static enum err_code stack_all(struct checkpoint *c, struct single *s, size_t n, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t at = 0, end; rc == ERR_OK && at < n; at = end) {
        for (end = at + 1; end < n && compare_matrix(&s[at], &s[end]) == 0;)
            end++;
        if (!stack_singles(c, s + at, (int)(end - at), e, &rc))
            continue;
        /* Names are compared above, so they go only when their group is done. */
        for (size_t i = at; i < end; i++)
            c->weights[s[i].w - c->weights].name = NULL;
    }
    return rc;
}

enum err_code weight_experts_stack(struct checkpoint *c, const char *family, struct err *e)
{
    const size_t n = c->n_weights;
    enum err_code rc = ERR_OK;
    size_t n_single = 0;
    struct single *s = malloc((n + 1) * sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory for %zu weights", n);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        struct ckpt_weight *w = &c->weights[i];
        if (parse_single(w, &s[n_single])) {
            n_single++;
        } else if (names_gate_then_up(family) && is_fused(w)) {
            rc = add_half(c, w, 0, e);
            if (rc == ERR_OK)
                rc = add_half(c, w, 1, e);
            w->name = NULL;
        }
    }
    qsort(s, n_single, sizeof *s, compare_singles);
    if (rc == ERR_OK)
        rc = stack_all(c, s, n_single, e);
    free(s);
    drop_stacked(c);
    return rc;
}
