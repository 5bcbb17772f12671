/* kernels_residual.c: norms of heads and what follows a part of a layer, as operations one after
 * the other of the same backend: what their joined kernels must equal, and what takes the shapes
 * that those do not.
 */
#include "kernels/kernels_private.h"

/* Heads of every row, from x to out. */
static enum err_code norm_part(struct kern *k, const struct norm_heads_args *a, int n_head,
                               float *x, float *out, const float *w, bool plus_one, struct err *e)
{
    struct rms_norm_args n = {.n_rows = (int64_t)a->n_tok * n_head, .inner = n_head};
    n.stride = n.out_stride = a->stride;
    n.d = a->head_dim;
    n.h = x;
    n.w = w;
    n.eps = a->eps;
    n.plus_one = plus_one;
    n.out_f32 = true;
    n.out = out;
    return k->table->rms_norm(k, &n, e);
}

enum err_code kern_heads_by_parts(struct kern *k, const struct norm_heads_args *a, struct err *e)
{
    enum err_code rc = ERR_OK;
    if (a->v_norm)
        rc = norm_part(k, a, a->n_kv, a->v_of_k ? a->k : a->v, a->v, a->v_norm, true, e);
    if (rc == ERR_OK && a->q_norm)
        rc = norm_part(k, a, a->n_head, a->q, a->q, a->q_norm, a->plus_one, e);
    if (rc == ERR_OK && a->k_norm)
        rc = norm_part(k, a, a->n_kv, a->k, a->k, a->k_norm, a->plus_one, e);
    return rc;
}

/* h += add; out = norm of h. */
static enum err_code norm_rows(struct kern *k, const struct residual_args *a, float *h,
                               const float *add, const float *w, bool out_f32, void *out,
                               struct err *e)
{
    struct rms_norm_args n = {.n_rows = a->n_rows, .inner = 1, .d = a->d};
    n.stride = n.out_stride = a->d;
    n.h = h;
    n.add = add;
    n.w = w;
    n.eps = a->eps;
    n.plus_one = a->plus_one;
    n.out_f32 = out_f32;
    n.out = out;
    return k->table->rms_norm(k, &n, e);
}

static enum err_code add_rows(struct kern *k, const struct residual_args *a, float *h,
                              const float *x, float scale, struct err *e)
{
    struct add_args s = {.n = a->n_rows * a->d, .h = h, .x = x, .scale = scale};
    return k->table->add(k, &s, e);
}

/* delta becomes what is added to h. */
static enum err_code end_part(struct kern *k, const struct residual_args *a, struct err *e)
{
    float *sum = a->combine ? a->combine->out : a->delta;
    const bool apart = sum != a->delta;
    enum err_code rc = a->scale ? k->table->route_scale(k, a->scale, e) : ERR_OK;
    if (rc == ERR_OK && a->combine)
        rc = k->table->combine(k, a->combine, e);
    if (rc == ERR_OK && a->branch_norm)
        rc = norm_rows(k, a, sum, NULL, a->branch_norm, true, sum, e);
    if (rc == ERR_OK && a->delta_norm)
        rc = norm_rows(k, a, a->delta, NULL, a->delta_norm, true, a->delta, e);
    if (rc == ERR_OK && a->post_norm)
        rc = norm_rows(k, a, a->delta, apart ? sum : NULL, a->post_norm, true, a->delta, e);
    else if (rc == ERR_OK && apart)
        rc = add_rows(k, a, a->delta, sum, 0, e);
    return rc;
}

enum err_code kern_residual_by_parts(struct kern *k, const struct residual_args *a, struct err *e)
{
    const bool own = a->scalar != 0 || a->n_norms == 0; /* else a norm adds */
    enum err_code rc = end_part(k, a, e);
    if (rc == ERR_OK && own)
        rc = add_rows(k, a, a->h, a->delta, a->scalar, e);
    for (int i = 0; rc == ERR_OK && i < a->n_norms; i++)
        rc = norm_rows(k, a, a->h, i == 0 && !own ? a->delta : NULL, a->norm[i], false, a->x[i], e);
    return rc == ERR_OK && a->router ? k->table->linear(k, a->router, e) : rc;
}
