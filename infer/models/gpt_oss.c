/* gpt_oss.c: gpt-oss: Llama's block with a sink for each head and a window on every other layer,
 * and experts in every layer: biases everywhere, a clamped gate, weights by a softmax over the
 * chosen.
 */
#include "infer/experts.h"

struct gpt_oss {
    struct decoder decoder;  /* first: the parts of decoder.h see this alone */
    struct experts *experts; /* [n_layer] */
    struct experts_room room;
};

static enum err_code bind(struct model *m, struct model_binder *b, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    struct gpt_oss *p = model_priv(m);
    if (hp->n_expert < 1 || hp->act != ACT_GPTOSS)
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
        experts_bind(b, hp, &p->experts[i], i, "mlp", "router");
    }
    return ERR_OK;
}

static size_t plan(struct model *m, const struct model_dims *d)
{
    struct gpt_oss *p = model_priv(m);
    size_t used = 0;
    decoder_plan_common(m, d, &used);
    size_t attention = used, sparse = used;
    decoder_plan_attention(m, d, &attention);
    experts_plan(model_hparams(m), d, &p->room, &sparse);
    return MAX2(attention, sparse);
}

static void limits(const struct model *m, struct kern_limits *l)
{
    decoder_limits(m, l);
    experts_limits(model_hparams(m), l);
}

static enum err_code forward(const struct model *m, const struct model_step *s, struct err *e)
{
    const struct gpt_oss *p = model_priv(m);
    struct decoder_pass f;
    enum err_code rc = decoder_begin(&f, m, s, e);
    for (int i = 0; rc == ERR_OK && i < f.hp->n_layer; i++) {
        rc = decoder_attend(&f, i, e);
        if (rc == ERR_OK)
            rc = experts_run(&f, &p->experts[i], &p->room, i, e);
        if (rc != ERR_OK)
            rc = err_wrap(e, rc, "layer %d", i);
    }
    return rc == ERR_OK ? decoder_finish(&f, e) : rc;
}

const struct model_family model_gpt_oss = {
    .name = "gpt_oss",
    .priv_bytes = sizeof(struct gpt_oss),
    .bind = bind,
    .plan = plan,
    .limits = limits,
    .forward = forward,
};
