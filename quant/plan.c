/* plan.c: actions and sizes of a plan, and plans that keep everything. */
#include "quant/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const action_names[] = {"copy", "repack", "dense", "encode"};

const char *plan_action_name(enum plan_action a)
{
    return action_names[a];
}

bool plan_can_pack(const struct ckpt_weight *w)
{
    bool decodes = w->enc != CKPT_DENSE || dtype_is_float(w->dtype);
    return w->n_dim >= 2 && w->role != ROLE_NORM && decodes && str_ends(w->name, ".weight");
}

static uint64_t dtype_bytes(enum dtype t, int64_t n)
{
    return ((uint64_t)n * (uint64_t)dtype_bits(t) + 7) / 8;
}

void plan_set_dense(struct plan_item *it, enum dtype dtype)
{
    const struct ckpt_weight *w = it->w;
    bool same = w->enc == CKPT_DENSE && w->dtype == dtype && !w->minus_one;
    same &= !w->rope_heads || w->n_dim >= 2; /* a permuted vector is put in order by decoding */
    same &= !w->strides || dtype_is_float(dtype);
    it->action = same ? PLAN_COPY : PLAN_DENSE;
    it->packed = false;
    it->dtype = dtype;
    it->code_bytes =
        same && dtype == DT_UNKNOWN ? it->w->bytes : dtype_bytes(dtype, plan_item_elems(it));
    it->scale_bytes = it->bias_bytes = it->global_bytes = 0;
}

void plan_set_packed(struct plan_item *it, enum plan_action action, struct qformat q)
{
    it->action = action;
    it->packed = true;
    it->q = q;
    it->code_bytes = (uint64_t)it->rows * qformat_row_bytes(q, it->k);
    it->scale_bytes = dtype_bytes(q.scale, it->rows * (it->k / q.group));
    it->bias_bytes = qformat_is_block(q) ? 0 : it->scale_bytes;
    it->global_bytes = action == PLAN_COPY ? 4 * (uint64_t)ckpt_weight_n_globals(it->w) : 0;
}

/* What the container has, as exactly as the packed checkpoint can hold it. */
static void keep(struct plan_item *it)
{
    const struct ckpt_weight *w = it->w;
    struct qformat q;
    if (ckpt_weight_packed(w)) {
        plan_set_packed(it, PLAN_COPY, w->q);
    } else if (w->enc == CKPT_DENSE) {
        plan_set_dense(it, w->dtype);
    } else if (plan_can_pack(w) && ggml_affine_format(w, &q)) {
        plan_set_packed(it, PLAN_REPACK, q);
    } else {
        plan_set_dense(it, DT_BF16);
        snprintf(it->note, sizeof it->note, "%s has no packed form: rounded to BF16",
                 ggml_type_name(w->ggml));
    }
}

enum err_code plan_keep_all(struct plan **out, const struct checkpoint *c, struct err *e)
{
    *out = NULL;
    if (!c->hp_ok) {
        if (e)
            *e = c->hp_err;
        return ERR_INPUT;
    }
    struct plan *p = calloc(1, sizeof *p);
    if (p)
        p->items = calloc(MAX2(c->n_weights, 1), sizeof *p->items);
    if (!p || !p->items) {
        free(p);
        return err_set(e, ERR_NOMEM, "out of memory: plan of %zu weights", c->n_weights);
    }
    p->ckpt = c;
    p->n_items = c->n_weights;
    for (size_t i = 0; i < p->n_items; i++) {
        struct plan_item *it = &p->items[i];
        it->w = &c->weights[i];
        it->rule = -1;
        it->k = ckpt_weight_k(it->w);
        it->rows = ckpt_weight_rows(it->w);
        keep(it);
    }
    *out = p;
    return ERR_OK;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    free(p->items);
    free(p);
}

uint64_t plan_item_bytes(const struct plan_item *it)
{
    return it->code_bytes + it->scale_bytes + it->bias_bytes + it->global_bytes;
}

int64_t plan_item_elems(const struct plan_item *it)
{
    return it->rows * it->k;
}

const char *plan_qformat_text(struct qformat q, char buf[64])
{
    if (qformat_is_block(q))
        snprintf(buf, 64, "%s", qformat_mode(q));
    else
        snprintf(buf, 64, "affine %d bits, group %d, %s", q.bits, q.group, dtype_name(q.scale));
    return buf;
}

const char *plan_item_format(const struct plan_item *it, char buf[64])
{
    if (it->packed)
        return plan_qformat_text(it->q, buf);
    snprintf(buf, 64, "%s", it->dtype < DT_COUNT ? dtype_name(it->dtype) : "unknown");
    return buf;
}

const char *plan_weight_format(const struct ckpt_weight *w, char buf[64])
{
    if (ckpt_weight_packed(w))
        return plan_qformat_text(w->q, buf);
    const char *ggml = w->enc == CKPT_GGML ? ggml_type_name(w->ggml) : NULL;
    const char *dense = w->dtype < DT_COUNT ? dtype_name(w->dtype) : "unknown";
    snprintf(buf, 64, "%s", w->enc == CKPT_GGML ? ggml ? ggml : "unknown" : dense);
    return buf;
}

void plan_totals(const struct plan *p, struct plan_totals *t)
{
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->items[i];
        t->bytes += plan_item_bytes(it);
        t->elems += plan_item_elems(it);
        if (it->packed) {
            t->packed_bytes += plan_item_bytes(it);
            t->packed_elems += plan_item_elems(it);
        }
    }
    t->bits = t->elems ? 8.0 * (double)t->bytes / (double)t->elems : 0.0;
    t->packed_bits =
        t->packed_elems ? 8.0 * (double)t->packed_bytes / (double)t->packed_elems : 0.0;
}

bool plan_root_format(const struct plan *p, struct qformat *q)
{
    int64_t best = 0;
    for (size_t i = 0; i < p->n_items; i++) {
        if (!p->items[i].packed)
            continue;
        int64_t sum = 0;
        struct qformat a = p->items[i].q;
        for (size_t j = 0; j < p->n_items; j++) {
            const struct plan_item *o = &p->items[j];
            bool same_mode = qformat_mode(o->q) == qformat_mode(a); /* names are one object */
            if (o->packed && same_mode && o->q.bits == a.bits && o->q.group == a.group)
                sum += plan_item_elems(o);
        }
        if (sum > best) {
            best = sum;
            *q = a;
        }
    }
    return best > 0;
}
