/* llama.c: Llama 2 and 3.x, SmolLM2, and Mistral (the same block with a window on every layer).
 *
 *     h += o(attention(rope(q), rope(k), v)) of norm(h)
 *     h += down(silu(gate) * up) of norm(h)
 *
 * The residual h is f32. The output of o and of down waits in `delta` and is added by the norm that
 * comes next. Buffers of attention and of the feed-forward part are never alive together, so they
 * share room (the second ones start where the first ones do).
 */
#include "infer/model.h"

struct llama_layer {
    float *attn_norm, *ffn_norm;
    struct kern_weight *q, *k, *v, *o, *gate, *up, *down;
    float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;
};

struct llama {
    struct kern_weight *embed, *head; /* head is NULL when tied */
    float *norm;
    struct llama_layer *layers;
    /* Offsets in the scratch block, see plan_buffers. */
    size_t h, delta, x, qkv, q_rot, att, gate_up, act, out_h, out_delta, out_x;
};

/* ---- binding --------------------------------------------------------------------------------- */

static void bind_layer(struct model_binder *b, const struct hparams *hp, struct llama_layer *l,
                       int i)
{
    const int64_t d = hp->d_model, ff = hp->d_ff;
    const int64_t q_rows = (int64_t)hp->n_head * hp->head_dim;
    const int64_t kv_rows = (int64_t)hp->n_kv * hp->head_dim;
    const struct {
        struct kern_weight **w;
        float **bias;
        int64_t rows, k;
        const char *name;
        bool has_bias;
    } linears[] = {
        {&l->q, &l->q_bias, q_rows, d, "self_attn.q_proj", hp->attn_bias},
        {&l->k, &l->k_bias, kv_rows, d, "self_attn.k_proj", hp->attn_bias},
        {&l->v, &l->v_bias, kv_rows, d, "self_attn.v_proj", hp->attn_bias},
        {&l->o, &l->o_bias, d, q_rows, "self_attn.o_proj", hp->attn_bias},
        {&l->gate, &l->gate_bias, ff, d, "mlp.gate_proj", hp->mlp_bias},
        {&l->up, &l->up_bias, ff, d, "mlp.up_proj", hp->mlp_bias},
        {&l->down, &l->down_bias, d, ff, "mlp.down_proj", hp->mlp_bias},
    };
    for (size_t j = 0; j < ARRAY_LEN(linears); j++) {
        model_want_matrix(b, linears[j].w, linears[j].rows, linears[j].k,
                          "model.layers.%d.%s.weight", i, linears[j].name);
        if (linears[j].has_bias)
            model_want_vector(b, linears[j].bias, linears[j].rows, "model.layers.%d.%s.bias", i,
                              linears[j].name);
    }
    model_want_vector(b, &l->attn_norm, d, "model.layers.%d.input_layernorm.weight", i);
    model_want_vector(b, &l->ffn_norm, d, "model.layers.%d.post_attention_layernorm.weight", i);
}

static enum err_code bind_llama(struct model *m, struct model_binder *b, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    struct llama *p = model_priv(m);
    if (hp->n_expert)
        return err_set(e, ERR_INPUT, "%s model with %d experts; expected none", hp->family,
                       hp->n_expert);
    if (hp->act != ACT_SILU)
        return err_set(e, ERR_INPUT, "%s model with another activation than silu", hp->family);
    p->layers = model_alloc(b, (size_t)hp->n_layer, sizeof *p->layers);
    if (!p->layers)
        return err_set(e, ERR_NOMEM, "out of memory for %d layers", hp->n_layer);
    model_want_matrix(b, &p->embed, hp->n_vocab, hp->d_model, "model.embed_tokens.weight");
    for (int i = 0; i < hp->n_layer; i++)
        bind_layer(b, hp, &p->layers[i], i);
    model_want_vector(b, &p->norm, hp->d_model, "model.norm.weight");
    if (hp->tied)
        model_want_tied_head(b, "lm_head.weight", "model.embed_tokens.weight");
    else
        model_want_matrix(b, &p->head, hp->n_vocab, hp->d_model, "lm_head.weight");
    return ERR_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static size_t plan_buffers(struct model *m, const struct model_dims *dims)
{
    const struct hparams *hp = model_hparams(m);
    struct llama *p = model_priv(m);
    const size_t n = (size_t)dims->n_tok, r = (size_t)dims->out_rows, act = dims->act_bytes;
    const size_t d = (size_t)hp->d_model, ff = (size_t)hp->d_ff, hd = (size_t)hp->head_dim;
    const size_t q = (size_t)hp->n_head * hd, kv = (size_t)hp->n_kv * hd;
    size_t used = 0;
    p->h = model_take(&used, n * d * sizeof(float));
    p->delta = model_take(&used, n * d * sizeof(float));
    p->x = model_take(&used, n * d * act);
    p->out_h = model_take(&used, r * d * sizeof(float));
    p->out_delta = model_take(&used, r * d * sizeof(float));
    p->out_x = model_take(&used, r * d * act);
    size_t attention = used, ffn = used;
    p->qkv = model_take(&attention, n * (q + 2 * kv) * sizeof(float));
    p->q_rot = model_take(&attention, n * q * act);
    p->att = model_take(&attention, n * q * act);
    p->gate_up = model_take(&ffn, n * 2 * ff * sizeof(float));
    p->act = model_take(&ffn, n * ff * act);
    return MAX2(attention, ffn);
}

static void fill_limits(const struct model *m, struct kern_limits *l)
{
    const struct hparams *hp = model_hparams(m);
    int64_t q = (int64_t)hp->n_head * hp->head_dim;
    l->n_head = hp->n_head;
    l->head_dim = hp->head_dim;
    l->k_max = MAX2(MAX2(hp->d_model, hp->d_ff), q);
    l->rows_max = MAX2(MAX2(hp->n_vocab, hp->d_ff), MAX2(hp->d_model, q));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* One pass: the step, the model and the buffers as pointers. */
struct pass {
    const struct hparams *hp;
    const struct llama *p;
    const struct model_step *s;
    int64_t d, ff, q_rows, kv_rows, qkv_stride;
    float *h, *delta, *qkv, *gate_up;
    void *x, *q_rot, *att, *act;
    size_t act_bytes;
};

static enum err_code norm_rows(const struct pass *f, int64_t n, float *h, const float *add,
                               const float *w, void *out, struct err *e)
{
    struct rms_norm_args a = {.n_rows = n, .inner = 1, .stride = f->d, .out_stride = f->d};
    a.d = f->d;
    a.h = h;
    a.add = add;
    a.w = w;
    a.eps = (float)f->hp->rms_eps;
    a.out = out;
    return kern_rms_norm(f->s->k, &a, e);
}

/* One product of x with one matrix. */
static enum err_code linear_one(const struct pass *f, const void *x, int64_t k,
                                struct linear_part part, struct err *e)
{
    struct linear_args a = {.n_tok = f->s->rows.n_tok, .x = x, .x_stride = k, .n_parts = 1};
    a.part[0] = part;
    return kern_linear(f->s->k, &a, e);
}

static enum err_code project_qkv(const struct pass *f, const struct llama_layer *l, struct err *e)
{
    struct linear_args a = {.n_tok = f->s->rows.n_tok, .x = f->x, .x_stride = f->d, .n_parts = 3};
    a.part[0] = (struct linear_part){l->q, l->q_bias, f->qkv, f->qkv_stride};
    a.part[1] = (struct linear_part){l->k, l->k_bias, f->qkv + f->q_rows, f->qkv_stride};
    a.part[2] =
        (struct linear_part){l->v, l->v_bias, f->qkv + f->q_rows + f->kv_rows, f->qkv_stride};
    return kern_linear(f->s->k, &a, e);
}

static enum err_code rotate(const struct pass *f, void *kv, struct err *e)
{
    struct rope_kv_args a = {.rows = &f->s->rows, .n_head = f->hp->n_head, .n_kv = f->hp->n_kv};
    a.head_dim = f->hp->head_dim;
    a.rot_dim = f->s->rot_dim;
    a.q = f->qkv;
    a.k = f->qkv + f->q_rows;
    a.v = f->qkv + f->q_rows + f->kv_rows;
    a.stride = f->qkv_stride;
    a.cos_sin = f->s->cos_sin;
    a.q_out = f->q_rot;
    a.kv = kv;
    return kern_rope_kv(f->s->k, &a, e);
}

static enum err_code attend(const struct pass *f, int layer, const void *kv, struct err *e)
{
    struct attention_args a = {.rows = &f->s->rows, .n_head = f->hp->n_head, .n_kv = f->hp->n_kv};
    a.head_dim = f->hp->head_dim;
    a.q = f->q_rot;
    a.kv = kv;
    a.scale = f->hp->attn_scale;
    a.window = f->hp->sliding[layer] ? f->hp->window : 0;
    a.softcap = f->hp->attn_softcap;
    a.out = f->att;
    return kern_attention(f->s->k, &a, e);
}

static enum err_code run_attention(const struct pass *f, int i, bool first, struct err *e)
{
    const struct llama_layer *l = &f->p->layers[i];
    const struct model_step *s = f->s;
    const int64_t n = s->rows.n_tok;
    void *kv = s->kv + (size_t)i * s->kv_layer_bytes;
    enum err_code rc = norm_rows(f, n, f->h, first ? NULL : f->delta, l->attn_norm, f->x, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "residual", n, f->h, f->d, f->d, sizeof(float), e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "attn_norm", n, f->x, f->d, f->d, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = project_qkv(f, l, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "qkv", n, f->qkv, f->qkv_stride, f->qkv_stride, sizeof(float), e);
    if (rc == ERR_OK)
        rc = rotate(f, kv, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "rope", n, f->q_rot, f->q_rows, f->q_rows, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = attend(f, i, kv, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "attention", n, f->att, f->q_rows, f->q_rows, f->act_bytes, e);
    struct linear_part o = {l->o, l->o_bias, f->delta, f->d};
    if (rc == ERR_OK)
        rc = linear_one(f, f->att, f->q_rows, o, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "o", n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

static enum err_code run_ffn(const struct pass *f, int i, struct err *e)
{
    const struct llama_layer *l = &f->p->layers[i];
    const struct model_step *s = f->s;
    const int64_t n = s->rows.n_tok, ff = f->ff;
    enum err_code rc = norm_rows(f, n, f->h, f->delta, l->ffn_norm, f->x, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "ffn_norm", n, f->x, f->d, f->d, f->act_bytes, e);
    struct linear_args a = {.n_tok = (int)n, .x = f->x, .x_stride = f->d, .n_parts = 2};
    a.part[0] = (struct linear_part){l->gate, l->gate_bias, f->gate_up, 2 * ff};
    a.part[1] = (struct linear_part){l->up, l->up_bias, f->gate_up + ff, 2 * ff};
    if (rc == ERR_OK)
        rc = kern_linear(s->k, &a, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "gate_up", n, f->gate_up, 2 * ff, 2 * ff, sizeof(float), e);
    struct act_mul_args m = {.n_rows = n, .d = ff, .stride = 2 * ff, .act = f->hp->act};
    m.gate = f->gate_up;
    m.up = f->gate_up + ff;
    m.out = f->act;
    if (rc == ERR_OK)
        rc = kern_act_mul(s->k, &m, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "act", n, f->act, ff, ff, f->act_bytes, e);
    struct linear_part down = {l->down, l->down_bias, f->delta, f->d};
    if (rc == ERR_OK)
        rc = linear_one(f, f->act, ff, down, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "down", n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

/* Only rows that give logits pass the final norm and the head. */
static enum err_code run_head(const struct pass *f, struct err *e)
{
    const struct model_step *s = f->s;
    float *h = (float *)(void *)(s->scratch + f->p->out_h);
    float *delta = (float *)(void *)(s->scratch + f->p->out_delta);
    void *x = s->scratch + f->p->out_x;
    struct gather_args g = {.n = s->n_out, .d = f->d, .row = s->out_row, .in = f->h, .out = h};
    enum err_code rc = kern_gather(s->k, &g, e);
    g.in = f->delta;
    g.out = delta;
    if (rc == ERR_OK)
        rc = kern_gather(s->k, &g, e);
    if (rc == ERR_OK)
        rc = norm_rows(f, s->n_out, h, delta, f->p->norm, x, e);
    if (rc == ERR_OK)
        rc = model_tap(s, -1, "final_norm", s->n_out, x, f->d, f->d, f->act_bytes, e);
    struct linear_args a = {.n_tok = s->n_out, .x = x, .x_stride = f->d, .n_parts = 1};
    const struct kern_weight *head = f->p->head ? f->p->head : f->p->embed;
    a.part[0] = (struct linear_part){head, NULL, s->logits, f->hp->n_vocab};
    if (rc == ERR_OK)
        rc = kern_linear(s->k, &a, e);
    return rc;
}

static enum err_code forward(const struct model *m, const struct model_step *s, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    const struct llama *p = model_priv(m);
    struct pass f = {.hp = hp, .p = p, .s = s, .d = hp->d_model, .ff = hp->d_ff};
    f.q_rows = (int64_t)hp->n_head * hp->head_dim;
    f.kv_rows = (int64_t)hp->n_kv * hp->head_dim;
    f.qkv_stride = f.q_rows + 2 * f.kv_rows;
    f.act_bytes = kern_act_bytes(s->k);
    f.h = (float *)(void *)(s->scratch + p->h);
    f.delta = (float *)(void *)(s->scratch + p->delta);
    f.qkv = (float *)(void *)(s->scratch + p->qkv);
    f.gate_up = (float *)(void *)(s->scratch + p->gate_up);
    f.x = s->scratch + p->x;
    f.q_rot = s->scratch + p->q_rot;
    f.att = s->scratch + p->att;
    f.act = s->scratch + p->act;
    struct embed_args embed = {.rows = &s->rows, .w = p->embed, .scale = hp->embed_scale};
    embed.out = f.h;
    enum err_code rc = kern_embed(s->k, &embed, e);
    if (rc == ERR_OK)
        rc = model_tap(s, -1, "embed", s->rows.n_tok, f.h, f.d, f.d, sizeof(float), e);
    for (int i = 0; rc == ERR_OK && i < hp->n_layer; i++) {
        rc = run_attention(&f, i, i == 0, e);
        if (rc == ERR_OK)
            rc = run_ffn(&f, i, e);
        if (rc != ERR_OK)
            rc = err_wrap(e, rc, "layer %d", i);
    }
    if (rc == ERR_OK && s->n_out > 0)
        rc = run_head(&f, e);
    return rc;
}

const struct model_family model_llama = {
    .name = "llama",
    .priv_bytes = sizeof(struct llama),
    .bind = bind_llama,
    .plan = plan_buffers,
    .limits = fill_limits,
    .forward = forward,
};

const struct model_family model_mistral = {
    .name = "mistral",
    .priv_bytes = sizeof(struct llama),
    .bind = bind_llama,
    .plan = plan_buffers,
    .limits = fill_limits,
    .forward = forward,
};
