/* kernels_joined.c: joined operations as their parts, one after the other, for a backend that has
 * no kernel of its own for them.
 */
#include "kernels/kernels_private.h"

enum err_code kern_gated_by_parts(struct kern *k, const struct expert_gated_args *a, struct err *e)
{
    struct expert_linear_args l = {.n_pairs = a->n_pairs, .n_expert = a->n_expert};
    struct act_mul_args m = {.n_rows = a->n_pairs, .d = a->rows, .stride = 2 * a->rows};
    l.x_div = a->x_div;
    l.order = a->order;
    l.first = a->first;
    l.x = a->x;
    l.w = a->gate;
    l.bias = a->gate_bias;
    l.out = a->room;
    l.rows = a->rows;
    l.out_stride = 2 * a->rows;
    enum err_code rc = a->route ? k->table->route(k, a->route, e) : ERR_OK;
    if (rc == ERR_OK)
        rc = k->table->expert_linear(k, &l, e);
    l.w = a->up;
    l.bias = a->up_bias;
    l.out = a->room + a->rows;
    if (rc == ERR_OK)
        rc = k->table->expert_linear(k, &l, e);
    m.act = a->act;
    m.gate = a->room;
    m.up = a->room + a->rows;
    m.out = a->out;
    m.limit = a->limit;
    m.alpha = a->alpha;
    return rc == ERR_OK ? k->table->act_mul(k, &m, e) : rc;
}
