/* family_check.c: the tensors of decoders as one table, filled in by the hyperparameters.
 *
 * The engine binds by these names and may rely on the shapes.
 */
#include "ckpt/family_check.h"

#include <stdio.h>

enum dim_name {
    DIM_NONE,
    DIM_ONE,
    DIM_MODEL,
    DIM_FF,
    DIM_Q,
    DIM_KV,
    DIM_HEAD,
    DIM_HEADS,
    DIM_VOCAB,
    DIM_EXPERTS,
    DIM_EXPERT_FF,
    DIM_INPUT,
    DIM_INPUTS,
    DIM_INPUT_VOCAB
};
enum when {
    ALWAYS,
    UNTIED,
    ATTN_BIAS,
    O_BIAS,
    MLP_BIAS,
    QK_NORM,
    POST_NORMS,
    OWN_V,
    OWN_V_BIAS,
    SCALAR,
    DENSE_MLP,
    SPARSE_MLP,
    SPARSE_BLOCK,
    SPARSE_GATE,
    SINKS,
    ROUTER_BIAS,
    EXPERT_BIAS,
    OWN_KV,
    OWN_KV_BIAS,
    K_NORM,
    INPUTS,
    BESIDE
};

struct expected {
    const char *name;     /* %d: the layer */
    enum dim_name dim[3]; /* DIM_NONE ends them */
    enum when when;
};

static const struct expected outside[] = {
    {"model.embed_tokens.weight", {DIM_VOCAB, DIM_MODEL}, ALWAYS},
    {"model.norm.weight", {DIM_MODEL, DIM_NONE}, ALWAYS},
    {"lm_head.weight", {DIM_VOCAB, DIM_MODEL}, UNTIED},
    {"model.embed_tokens_per_layer.weight", {DIM_INPUT_VOCAB, DIM_INPUTS}, INPUTS},
    {"model.per_layer_model_projection.weight", {DIM_INPUTS, DIM_MODEL}, INPUTS},
    {"model.per_layer_projection_norm.weight", {DIM_INPUT, DIM_NONE}, INPUTS},
};

static const struct expected inside[] = {
    {"model.layers.%d.input_layernorm.weight", {DIM_MODEL, DIM_NONE}, ALWAYS},
    {"model.layers.%d.post_attention_layernorm.weight", {DIM_MODEL, DIM_NONE}, ALWAYS},
    {"model.layers.%d.self_attn.q_proj.weight", {DIM_Q, DIM_MODEL}, ALWAYS},
    {"model.layers.%d.self_attn.k_proj.weight", {DIM_KV, DIM_MODEL}, OWN_KV},
    {"model.layers.%d.self_attn.v_proj.weight", {DIM_KV, DIM_MODEL}, OWN_V},
    {"model.layers.%d.self_attn.o_proj.weight", {DIM_MODEL, DIM_Q}, ALWAYS},
    {"model.layers.%d.self_attn.q_proj.bias", {DIM_Q, DIM_NONE}, ATTN_BIAS},
    {"model.layers.%d.self_attn.k_proj.bias", {DIM_KV, DIM_NONE}, OWN_KV_BIAS},
    {"model.layers.%d.self_attn.v_proj.bias", {DIM_KV, DIM_NONE}, OWN_V_BIAS},
    {"model.layers.%d.self_attn.o_proj.bias", {DIM_MODEL, DIM_NONE}, O_BIAS},
    {"model.layers.%d.self_attn.q_norm.weight", {DIM_HEAD, DIM_NONE}, QK_NORM},
    {"model.layers.%d.self_attn.k_norm.weight", {DIM_HEAD, DIM_NONE}, K_NORM},
    {"model.layers.%d.pre_feedforward_layernorm.weight", {DIM_MODEL, DIM_NONE}, POST_NORMS},
    {"model.layers.%d.post_feedforward_layernorm.weight", {DIM_MODEL, DIM_NONE}, POST_NORMS},
    {"model.layers.%d.layer_scalar", {DIM_ONE, DIM_NONE}, SCALAR},
    {"model.layers.%d.mlp.gate_proj.weight", {DIM_FF, DIM_MODEL}, DENSE_MLP},
    {"model.layers.%d.mlp.up_proj.weight", {DIM_FF, DIM_MODEL}, DENSE_MLP},
    {"model.layers.%d.mlp.down_proj.weight", {DIM_MODEL, DIM_FF}, DENSE_MLP},
    {"model.layers.%d.self_attn.sinks", {DIM_HEADS, DIM_NONE}, SINKS},
    {"model.layers.%d.mlp.gate.weight", {DIM_EXPERTS, DIM_MODEL}, SPARSE_GATE},
    {"model.layers.%d.mlp.router.weight", {DIM_EXPERTS, DIM_MODEL}, ROUTER_BIAS},
    {"model.layers.%d.mlp.router.bias", {DIM_EXPERTS, DIM_NONE}, ROUTER_BIAS},
    {"model.layers.%d.mlp.experts.gate_proj.bias", {DIM_EXPERTS, DIM_EXPERT_FF}, EXPERT_BIAS},
    {"model.layers.%d.mlp.experts.up_proj.bias", {DIM_EXPERTS, DIM_EXPERT_FF}, EXPERT_BIAS},
    {"model.layers.%d.mlp.experts.down_proj.bias", {DIM_EXPERTS, DIM_MODEL}, EXPERT_BIAS},
    {"model.layers.%d.mlp.experts.gate_proj.weight",
     {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL},
     SPARSE_MLP},
    {"model.layers.%d.mlp.experts.up_proj.weight",
     {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL},
     SPARSE_MLP},
    {"model.layers.%d.mlp.experts.down_proj.weight",
     {DIM_EXPERTS, DIM_MODEL, DIM_EXPERT_FF},
     SPARSE_MLP},
    {"model.layers.%d.block_sparse_moe.gate.weight", {DIM_EXPERTS, DIM_MODEL}, SPARSE_BLOCK},
    {"model.layers.%d.block_sparse_moe.experts.gate_proj.weight",
     {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL},
     SPARSE_BLOCK},
    {"model.layers.%d.block_sparse_moe.experts.up_proj.weight",
     {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL},
     SPARSE_BLOCK},
    {"model.layers.%d.block_sparse_moe.experts.down_proj.weight",
     {DIM_EXPERTS, DIM_MODEL, DIM_EXPERT_FF},
     SPARSE_BLOCK},
    {"model.layers.%d.post_feedforward_layernorm_1.weight", {DIM_MODEL, DIM_NONE}, BESIDE},
    {"model.layers.%d.pre_feedforward_layernorm_2.weight", {DIM_MODEL, DIM_NONE}, BESIDE},
    {"model.layers.%d.post_feedforward_layernorm_2.weight", {DIM_MODEL, DIM_NONE}, BESIDE},
    {"model.layers.%d.router.proj.weight", {DIM_EXPERTS, DIM_MODEL}, BESIDE},
    {"model.layers.%d.router.scale", {DIM_MODEL, DIM_NONE}, BESIDE},
    {"model.layers.%d.router.per_expert_scale", {DIM_EXPERTS, DIM_NONE}, BESIDE},
    {"model.layers.%d.experts.gate_proj.weight", {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL}, BESIDE},
    {"model.layers.%d.experts.up_proj.weight", {DIM_EXPERTS, DIM_EXPERT_FF, DIM_MODEL}, BESIDE},
    {"model.layers.%d.experts.down_proj.weight", {DIM_EXPERTS, DIM_MODEL, DIM_EXPERT_FF}, BESIDE},
    {"model.layers.%d.per_layer_input_gate.weight", {DIM_INPUT, DIM_MODEL}, INPUTS},
    {"model.layers.%d.per_layer_projection.weight", {DIM_MODEL, DIM_INPUT}, INPUTS},
    {"model.layers.%d.post_per_layer_input_norm.weight", {DIM_MODEL, DIM_NONE}, INPUTS},
    {"model.layers.%d.mlp.gate_proj.bias", {DIM_FF, DIM_NONE}, MLP_BIAS},
    {"model.layers.%d.mlp.up_proj.bias", {DIM_FF, DIM_NONE}, MLP_BIAS},
    {"model.layers.%d.mlp.down_proj.bias", {DIM_MODEL, DIM_NONE}, MLP_BIAS},
};

static int64_t dim_value(const struct hparams *hp, enum dim_name d, int layer)
{
    const bool slides = hp->sliding[layer];
    switch (d) {
    case DIM_MODEL:
        return hp->d_model;
    case DIM_FF:
        return hparams_d_ff(hp, layer);
    case DIM_Q:
        return (int64_t)hp->n_head * hparams_head_dim(hp, slides);
    case DIM_KV:
        return (int64_t)hparams_n_kv(hp, slides) * hparams_head_dim(hp, slides);
    case DIM_HEAD:
        return hparams_head_dim(hp, slides);
    case DIM_ONE:
        return 1;
    case DIM_HEADS:
        return hp->n_head;
    case DIM_VOCAB:
        return hp->n_vocab;
    case DIM_EXPERTS:
        return hp->n_expert;
    case DIM_EXPERT_FF:
        return hp->d_ff_expert;
    case DIM_INPUT:
        return hp->d_input;
    case DIM_INPUTS:
        return hp->n_layer * hp->d_input;
    case DIM_INPUT_VOCAB:
        return hp->n_vocab_input;
    default:
        return 0;
    }
}

/* layer: any outside the layers. */
static bool applies(const struct hparams *hp, enum when when, int layer)
{
    const bool block = strcmp(hp->family, "mixtral") == 0;
    switch (when) {
    case UNTIED:
        return !hp->tied;
    case ATTN_BIAS:
        return hp->attn_bias;
    case O_BIAS:
        return hp->o_bias;
    case MLP_BIAS:
        return hp->mlp_bias;
    case QK_NORM:
        return hp->qk_norm;
    case POST_NORMS:
        return hp->post_norms;
    case OWN_V:
        return hparams_has_v(hp, layer);
    case OWN_V_BIAS:
        return hp->attn_bias && hparams_has_v(hp, layer);
    case SCALAR:
        return hp->layer_scalar;
    case DENSE_MLP:
        return !hp->sparse[layer] || hp->mlp_beside;
    case SPARSE_MLP:
        return hp->sparse[layer] && !block && !hp->mlp_beside;
    case SPARSE_GATE:
        return hp->sparse[layer] && !block && !hp->router_bias && !hp->mlp_beside;
    case SINKS:
        return hp->sinks;
    case ROUTER_BIAS:
        return hp->router_bias;
    case EXPERT_BIAS:
        return hp->expert_bias;
    case OWN_KV:
        return hparams_has_kv(hp, layer);
    case OWN_KV_BIAS:
        return hp->attn_bias && hparams_has_kv(hp, layer);
    case K_NORM:
        return hp->qk_norm && hparams_has_kv(hp, layer);
    case INPUTS:
        return hp->d_input > 0;
    case BESIDE:
        return hp->sparse[layer] && hp->mlp_beside;
    case SPARSE_BLOCK:
        return hp->sparse[layer] && block;
    default:
        return true;
    }
}

static void put_name(char out[CKPT_NAME_MAX], const struct expected *x, int layer)
{
    /* The number takes less room than its place holder leaves. */
    const char *at = strstr(x->name, "%d");
    if (at)
        snprintf(out, CKPT_NAME_MAX, "%.*s%d%s", (int)(at - x->name), x->name, layer, at + 2);
    else
        snprintf(out, CKPT_NAME_MAX, "%s", x->name);
}

/* "[rows, k]" into text. */
static const char *shape_text(int n_dim, const int64_t *dim, char text[128])
{
    size_t len = 0;
    text[len++] = '[';
    for (int i = 0; i < n_dim && len < 128 - 26; i++)
        len += (size_t)snprintf(text + len, 128 - len, "%s%lld", i ? ", " : "", (long long)dim[i]);
    snprintf(text + len, 128 - len, "]");
    return text;
}

/* Logical dims of a tensor; how many there are. */
static int dims_of(const struct hparams *hp, const struct expected *x, int layer, int64_t *dim)
{
    int n = 0;
    for (; n < (int)ARRAY_LEN(x->dim) && x->dim[n] != DIM_NONE; n++)
        dim[n] = dim_value(hp, x->dim[n], layer);
    return n;
}

static enum err_code check_one(const struct checkpoint *c, const struct expected *x, int layer,
                               struct err *e)
{
    char name[CKPT_NAME_MAX], want[128], found[128];
    int64_t dim[ARRAY_LEN(x->dim)];
    const int n_dim = dims_of(&c->hp, x, layer, dim);
    shape_text(n_dim, dim, want);
    put_name(name, x, layer);
    const struct ckpt_weight *w = checkpoint_find(c, name);
    if (!w)
        return err_set(e, ERR_INPUT, "weight '%s' is missing, expected %s by family %s", name, want,
                       c->hp.family);
    if (w->n_dim == n_dim && memcmp(w->dim, dim, (size_t)n_dim * sizeof *dim) == 0)
        return ERR_OK;
    return err_set(e, ERR_INPUT, "weight '%s': shape %s, expected %s", name,
                   shape_text(w->n_dim, w->dim, found), want);
}

static bool is_expected(const struct hparams *hp, const struct ckpt_weight *w)
{
    char rest[CKPT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(outside); i++) {
        if (strcmp(outside[i].name, w->name) == 0)
            return applies(hp, outside[i].when, 0);
    }
    if (w->layer < 0 || w->layer >= hp->n_layer)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(inside); i++) {
        const char *at = strstr(inside[i].name, "%d");
        snprintf(rest, sizeof rest, "%.*s%d%s", (int)(at - inside[i].name), inside[i].name,
                 w->layer, at + 2);
        if (strcmp(rest, w->name) == 0)
            return applies(hp, inside[i].when, w->layer);
    }
    return false;
}

static void visit_one(const struct hparams *hp, const struct expected *x, int layer,
                      family_visit visit, void *ctx)
{
    char name[CKPT_NAME_MAX];
    int64_t dim[ARRAY_LEN(x->dim)];
    if (!applies(hp, x->when, layer))
        return;
    put_name(name, x, layer);
    visit(ctx, name, dims_of(hp, x, layer, dim), dim);
}

void family_list(const struct hparams *hp, family_visit visit, void *ctx)
{
    for (size_t i = 0; i < ARRAY_LEN(outside); i++)
        visit_one(hp, &outside[i], 0, visit, ctx);
    for (int layer = 0; layer < hp->n_layer; layer++) {
        for (size_t i = 0; i < ARRAY_LEN(inside); i++)
            visit_one(hp, &inside[i], layer, visit, ctx);
    }
}

enum err_code family_check_weights(const struct checkpoint *c, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(outside); i++) {
        if (applies(&c->hp, outside[i].when, 0))
            rc = check_one(c, &outside[i], 0, e);
    }
    for (int layer = 0; rc == ERR_OK && layer < c->hp.n_layer; layer++) {
        for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(inside); i++) {
            if (applies(&c->hp, inside[i].when, layer))
                rc = check_one(c, &inside[i], layer, e);
        }
    }
    for (size_t i = 0; rc == ERR_OK && i < c->n_weights; i++) {
        if (!is_expected(&c->hp, &c->weights[i]))
            rc = err_set(e, ERR_INPUT, "weight '%s' is none of family %s with these settings",
                         c->weights[i].name, c->hp.family);
    }
    return rc;
}
