/* decoder.c: binding, room and limits of the parts of a decoder; decoder_run.c runs them. */
#include "infer/decoder.h"

/* ---- binding --------------------------------------------------------------------------------- */

void decoder_want_linear(struct model_binder *b, struct decoder_linear *l, int64_t rows, int64_t k,
                         bool has_bias, int layer, const char *name)
{
    model_want_matrix(b, &l->w, rows, k, "model.layers.%d.%s.weight", layer, name);
    if (has_bias)
        model_want_vector(b, &l->bias, rows, "model.layers.%d.%s.bias", layer, name);
}

static void want_norm(struct model_binder *b, float **w, int64_t d, int layer, const char *name)
{
    model_want_vector(b, w, d, "model.layers.%d.%s.weight", layer, name);
}

void decoder_bind_attention(struct model_binder *b, const struct hparams *hp,
                            struct decoder_attention *a, int layer)
{
    const bool slides = hp->sliding[layer];
    const int64_t d = hp->d_model, hd = hparams_head_dim(hp, slides);
    const int64_t q = hp->n_head * hd, kv = hparams_n_kv(hp, slides) * hd;
    want_norm(b, &a->norm, d, layer, "input_layernorm");
    decoder_want_linear(b, &a->q, q, d, hp->attn_bias, layer, "self_attn.q_proj");
    const bool has_kv = hparams_has_kv(hp, layer);
    if (has_kv)
        decoder_want_linear(b, &a->k, kv, d, hp->attn_bias, layer, "self_attn.k_proj");
    if (hparams_has_v(hp, layer))
        decoder_want_linear(b, &a->v, kv, d, hp->attn_bias, layer, "self_attn.v_proj");
    decoder_want_linear(b, &a->o, d, q, hp->o_bias, layer, "self_attn.o_proj");
    if (hp->qk_norm) {
        want_norm(b, &a->q_norm, hd, layer, "self_attn.q_norm");
        if (has_kv)
            want_norm(b, &a->k_norm, hd, layer, "self_attn.k_norm");
    }
    if (hp->v_norm && has_kv)
        model_want_zeros(b, &a->v_norm, hd);
    if (hp->post_norms)
        want_norm(b, &a->post_norm, d, layer, "post_attention_layernorm");
    if (hp->sinks)
        model_want_vector(b, &a->sinks, hp->n_head, "model.layers.%d.self_attn.sinks", layer);
}

void decoder_bind_mlp(struct model_binder *b, const struct hparams *hp, struct decoder_mlp *p,
                      int layer)
{
    const int64_t d = hp->d_model, ff = hparams_d_ff(hp, layer);
    want_norm(b, &p->norm, d, layer,
              hp->post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    if (hp->post_norms)
        want_norm(b, &p->post_norm, d, layer,
                  hp->mlp_beside ? "post_feedforward_layernorm_1" : "post_feedforward_layernorm");
    decoder_want_linear(b, &p->gate, ff, d, hp->mlp_bias, layer, "mlp.gate_proj");
    decoder_want_linear(b, &p->up, ff, d, hp->mlp_bias, layer, "mlp.up_proj");
    decoder_want_linear(b, &p->down, d, ff, hp->mlp_bias, layer, "mlp.down_proj");
}

enum err_code decoder_bind_common(struct model *m, struct model_binder *b, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    struct decoder *p = model_priv(m);
    p->layers = model_alloc(b, (size_t)hp->n_layer, sizeof *p->layers);
    if (!p->layers)
        return err_set(e, ERR_NOMEM, "out of memory for %d layers", hp->n_layer);
    model_want_matrix(b, &p->embed, hp->n_vocab, hp->d_model, "model.embed_tokens.weight");
    model_want_vector(b, &p->norm, hp->d_model, "model.norm.weight");
    if (hp->tied)
        model_want_tied_head(b, "lm_head.weight", "model.embed_tokens.weight");
    else
        model_want_matrix(b, &p->head, hp->n_vocab, hp->d_model, "lm_head.weight");
    return ERR_OK;
}

enum err_code decoder_bind(struct model *m, struct model_binder *b, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    struct decoder *p = model_priv(m);
    if (hp->n_expert)
        return err_set(e, ERR_INPUT, "%s model with %d experts; expected none", hp->family,
                       hp->n_expert);
    enum err_code rc = decoder_bind_common(m, b, e);
    for (int i = 0; rc == ERR_OK && i < hp->n_layer; i++) {
        decoder_bind_attention(b, hp, &p->layers[i].attn, i);
        decoder_bind_mlp(b, hp, &p->layers[i].mlp, i);
        if (hp->layer_scalar)
            model_want_scalar(b, &p->layers[i].scalar, "model.layers.%d.layer_scalar", i);
    }
    return rc;
}

/* ---- buffers --------------------------------------------------------------------------------- */

void decoder_plan_common(struct model *m, const struct model_dims *dims, size_t *used)
{
    struct decoder *p = model_priv(m);
    const size_t d = (size_t)model_hparams(m)->d_model, act = dims->act_bytes;
    const size_t n = (size_t)dims->n_tok, r = (size_t)dims->out_rows;
    p->h = model_take(used, n * d * sizeof(float));
    p->delta = model_take(used, n * d * sizeof(float));
    p->x = model_take(used, n * d * act);
    p->out_h = model_take(used, r * d * sizeof(float));
    p->out_delta = model_take(used, r * d * sizeof(float));
    p->out_x = model_take(used, r * d * act);
}

void decoder_plan_attention(struct model *m, const struct model_dims *dims, size_t *used)
{
    const struct hparams *hp = model_hparams(m);
    struct decoder *p = model_priv(m);
    const size_t n = (size_t)dims->n_tok;
    size_t q = 0, kv = 0;
    for (int slides = 0; slides < 2; slides++) {
        size_t hd = (size_t)hparams_head_dim(hp, slides);
        q = MAX2(q, (size_t)hp->n_head * hd);
        kv = MAX2(kv, (size_t)hparams_n_kv(hp, slides) * hd);
    }
    p->qkv = model_take(used, n * (q + 2 * kv) * sizeof(float));
    p->q_rot = model_take(used, n * q * dims->act_bytes);
    p->att = model_take(used, n * q * dims->act_bytes);
}

void decoder_plan_mlp(struct model *m, const struct model_dims *dims, size_t *used)
{
    struct decoder *p = model_priv(m);
    const struct hparams *hp = model_hparams(m);
    const size_t n = (size_t)dims->n_tok, ff = (size_t)MAX2(hp->d_ff, hp->d_ff_shared);
    p->gate_up = model_take(used, n * 2 * ff * sizeof(float));
    p->act = model_take(used, n * ff * dims->act_bytes);
}

size_t decoder_plan(struct model *m, const struct model_dims *dims)
{
    size_t used = 0;
    decoder_plan_common(m, dims, &used);
    size_t attention = used, mlp = used;
    decoder_plan_attention(m, dims, &attention);
    decoder_plan_mlp(m, dims, &mlp);
    return MAX2(attention, mlp);
}

void decoder_limits(const struct model *m, struct kern_limits *l)
{
    const struct hparams *hp = model_hparams(m);
    l->n_head = hp->n_head;
    l->head_dim = MAX2(hp->head_dim, hp->head_dim_full);
    int64_t q = (int64_t)l->n_head * l->head_dim, ff = MAX2(hp->d_ff, hp->d_ff_shared);
    l->k_max = MAX2(MAX2(hp->d_model, ff), q);
    l->rows_max = MAX2(MAX2(hp->n_vocab, ff), MAX2(hp->d_model, q));
}
