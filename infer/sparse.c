/* sparse.c: the decoder whose layers have experts in place of the MLP, all of them or some. */
#include "infer/sparse.h"

enum err_code sparse_bind(struct model *m, struct model_binder *b, const struct sparse_names *names,
                          struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    struct sparse *p = model_priv(m);
    const struct experts_names experts = {"post_attention_layernorm", names->block, names->router};
    bool none = hp->sparse[0] && hp->n_expert < 1; /* a family whose layers all need some */
    if (none || hp->act != names->act)
        return err_set(e, ERR_INPUT, "%s model with %d experts, or another activation than its own",
                       hp->family, hp->n_expert);
    enum err_code rc = decoder_bind_common(m, b, e);
    if (rc != ERR_OK)
        return rc;
    p->experts = model_alloc(b, (size_t)hp->n_layer, sizeof *p->experts);
    if (!p->experts)
        return err_set(e, ERR_NOMEM, "out of memory for %d layers", hp->n_layer);
    for (int i = 0; i < hp->n_layer; i++) {
        decoder_bind_attention(b, hp, &p->decoder.layers[i].attn, i);
        if (hp->sparse[i])
            experts_bind(b, hp, &p->experts[i], i, &experts);
        else
            decoder_bind_mlp(b, hp, &p->decoder.layers[i].mlp, i);
    }
    return ERR_OK;
}

/* Attention, dense and sparse parts are never alive together. */
size_t sparse_plan(struct model *m, const struct model_dims *d)
{
    const struct hparams *hp = model_hparams(m);
    struct sparse *p = model_priv(m);
    bool any_sparse = false, any_dense = false;
    size_t used = 0;
    for (int i = 0; i < hp->n_layer; i++) {
        any_sparse |= hp->sparse[i];
        any_dense |= !hp->sparse[i];
    }
    decoder_plan_common(m, d, &used);
    size_t attention = used, sparse = used, dense = used;
    decoder_plan_attention(m, d, &attention);
    if (any_sparse) {
        experts_plan_inputs(hp, d, false, &p->room, &sparse);
        experts_plan(hp, d, &p->room, &sparse);
    }
    if (any_dense)
        decoder_plan_mlp(m, d, &dense);
    return MAX2(attention, MAX2(sparse, dense));
}

void sparse_limits(const struct model *m, struct kern_limits *l)
{
    decoder_limits(m, l);
    experts_limits(model_hparams(m), l);
}

enum err_code sparse_forward(const struct model *m, const struct model_step *s, struct err *e)
{
    const struct sparse *p = model_priv(m);
    struct decoder_pass f;
    enum err_code rc = decoder_begin(&f, m, s, e);
    for (int i = s->from_layer; rc == ERR_OK && i < f.hp->n_layer; i++) {
        rc = decoder_attend(&f, i, e);
        if (rc == ERR_OK && f.hp->sparse[i])
            rc = experts_run(&f, &p->experts[i], &p->room, i, f.delta, e);
        else if (rc == ERR_OK)
            rc = decoder_run_mlp(&f, i, e);
        if (rc == ERR_OK && f.hp->sparse[i])
            rc = decoder_leave_delta(&f, NULL, e);
        if (rc != ERR_OK)
            rc = err_wrap(e, rc, "layer %d", i);
    }
    return rc == ERR_OK ? decoder_finish(&f, e) : rc;
}
