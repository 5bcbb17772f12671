/* decoder_run.c: the forward pass of the parts of a decoder. */
#include "infer/decoder.h"

/* ---- pieces ---------------------------------------------------------------------------------- */

static float *f32_at(const struct decoder_pass *f, size_t offset)
{
    return (float *)(void *)(f->s->scratch + offset);
}

static struct rms_norm_args norm_args(const struct decoder_pass *f, int64_t n_rows, int64_t d,
                                      float *h, const float *w)
{
    struct rms_norm_args a = {.n_rows = n_rows, .inner = 1, .stride = d, .out_stride = d, .d = d};
    a.h = h;
    a.w = w;
    a.eps = (float)f->hp->rms_eps;
    a.plus_one = f->hp->norm_plus_one;
    return a;
}

/* Is delta, as it is, all that is pending? */
static bool is_plain(const struct decoder_pending *p)
{
    return !p->combine.y && !p->post_norm && p->scalar == 0;
}

/* Norm 0 goes to x; NULL: only what is pending is done. */
static enum err_code end_pending(struct decoder_pass *f, const float *w, struct err *e)
{
    const struct decoder_pending p = f->pending;
    struct residual_args a = {.n_rows = f->n, .d = f->d, .h = f->h, .delta = f->delta};
    a.combine = p.combine.y ? &p.combine : NULL;
    a.scale = p.scale.scale ? &p.scale : NULL;
    a.branch_norm = p.branch_norm;
    a.delta_norm = p.delta_norm;
    a.post_norm = p.post_norm;
    a.scalar = p.scalar;
    a.eps = (float)f->hp->rms_eps;
    a.plus_one = f->hp->norm_plus_one;
    a.norm[0] = w;
    a.x[0] = f->x;
    a.n_norms = w != NULL;
    for (size_t i = 0; w && i < ARRAY_LEN(f->also) && f->also[i]; i++) {
        a.norm[a.n_norms] = f->also[i];
        a.x[a.n_norms++] = f->also_x[i];
        f->also[i] = NULL;
    }
    const struct linear_args router = f->router;
    a.router = w && router.n_parts ? &router : NULL;
    f->router.n_parts = 0;
    f->pending = (struct decoder_pending){.any = false};
    return kern_residual(f->s->k, &a, e);
}

enum err_code decoder_norm(struct decoder_pass *f, const float *w, struct err *e)
{
    if (f->also[0] || f->router.n_parts || !is_plain(&f->pending))
        return end_pending(f, w, e);
    struct rms_norm_args a = norm_args(f, f->n, f->d, f->h, w);
    a.add = f->pending.any ? f->delta : NULL;
    a.out = f->x;
    f->pending.any = false;
    return kern_rms_norm(f->s->k, &a, e);
}

enum err_code decoder_settle(struct decoder_pass *f, struct err *e)
{
    return f->pending.any ? end_pending(f, NULL, e) : ERR_OK;
}

enum err_code decoder_leave_delta(struct decoder_pass *f, const float *post_norm, struct err *e)
{
    f->pending.any = true;
    if (!f->s->tap)
        f->pending.post_norm = post_norm;
    if (!post_norm || !f->s->tap)
        return ERR_OK;
    struct rms_norm_args a = norm_args(f, f->n, f->d, f->delta, post_norm);
    a.out_f32 = true;
    a.out = f->delta;
    return kern_rms_norm(f->s->k, &a, e);
}

struct linear_args decoder_product(const struct decoder_pass *f, const void *x, int64_t k,
                                   const struct decoder_linear *l, float *out)
{
    struct linear_args a = {.n_tok = (int)f->n, .x = x, .x_stride = k, .n_parts = 1};
    a.part[0] = (struct linear_part){l->w, l->bias, out, kern_weight_rows(l->w)};
    return a;
}

enum err_code decoder_linear(const struct decoder_pass *f, const void *x, int64_t k,
                             const struct decoder_linear *l, float *out, struct err *e)
{
    const struct linear_args a = decoder_product(f, x, k, l, out);
    return kern_linear(f->s->k, &a, e);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Rows of q, k and v lie behind each other in one row of qkv; of a layer that looks at another
 * one's keys and values, q stands alone, and n_kv is that of the pages. */
struct heads {
    int head_dim, n_kv;
    int64_t q, kv, stride; /* elements: of all query heads, of all KV heads, of a row of qkv */
    float *qkv;
    void *q_rot, *att;
};

static struct heads heads_of(const struct decoder_pass *f, int layer)
{
    const bool slides = f->hp->sliding[layer];
    struct heads t = {.head_dim = hparams_head_dim(f->hp, slides)};
    t.n_kv = hparams_n_kv(f->hp, slides);
    t.q = (int64_t)f->hp->n_head * t.head_dim;
    t.kv = (int64_t)t.n_kv * t.head_dim;
    t.stride = t.q + (hparams_has_kv(f->hp, layer) ? 2 * t.kv : 0);
    t.qkv = f32_at(f, f->p->qkv);
    t.q_rot = f->s->scratch + f->p->q_rot;
    t.att = f->s->scratch + f->p->att;
    return t;
}

static enum err_code project_qkv(const struct decoder_pass *f, const struct heads *t,
                                 const struct decoder_attention *l, struct err *e)
{
    struct linear_args a = {.n_tok = (int)f->n, .x = f->x, .x_stride = f->d};
    a.n_parts = l->v.w ? 3 : l->k.w ? 2 : 1;
    a.part[0] = (struct linear_part){l->q.w, l->q.bias, t->qkv, t->stride};
    a.part[1] = (struct linear_part){l->k.w, l->k.bias, t->qkv + t->q, t->stride};
    a.part[2] = (struct linear_part){l->v.w, l->v.bias, t->qkv + t->q + t->kv, t->stride};
    return kern_linear(f->s->k, &a, e);
}

static bool has_norms(const struct decoder_attention *l)
{
    return l->q_norm || l->k_norm || l->v_norm;
}

/* Heads feed no linear layer, so they stay f32. Without a projection of its own v is made of k. */
static struct norm_heads_args heads_args(const struct decoder_pass *f, const struct heads *t,
                                         const struct decoder_attention *l)
{
    struct norm_heads_args a = {.n_tok = (int)f->n, .n_head = f->hp->n_head, .n_kv = t->n_kv};
    a.head_dim = t->head_dim;
    a.q = t->qkv;
    a.k = a.q + t->q;
    a.v = a.k + t->kv;
    a.stride = t->stride;
    a.q_norm = l->q_norm;
    a.k_norm = l->k_norm;
    a.v_norm = l->v_norm;
    a.v_of_k = !l->v.w;
    a.eps = (float)f->hp->rms_eps;
    a.plus_one = f->hp->norm_plus_one;
    return a;
}

static struct rope_kv_args rope_args(const struct decoder_pass *f, const struct heads *t, int layer)
{
    struct rope_kv_args a = {.rows = &f->s->rows, .n_head = f->hp->n_head};
    const struct model_rope *rope = &f->s->rope[f->hp->sliding[layer]];
    a.head_dim = t->head_dim;
    a.rot_dim = rope->dims;
    a.q = t->qkv;
    a.stride = t->stride;
    a.cos_sin = rope->cos_sin;
    a.q_out = t->q_rot;
    if (hparams_has_kv(f->hp, layer)) {
        a.n_kv = t->n_kv;
        a.k = t->qkv + t->q;
        a.v = t->qkv + t->q + t->kv;
        a.kv = f->s->kv[layer];
    }
    return a;
}

/* rope: NULL where q and the pages are made; norm: NULL where they are of normed heads, or of heads
 * without norms. */
static enum err_code look_back(const struct decoder_pass *f, const struct heads *t, int layer,
                               const struct rope_kv_args *rope, const struct norm_heads_args *norm,
                               struct err *e)
{
    struct attention_args a = {.rows = &f->s->rows, .n_head = f->hp->n_head, .n_kv = t->n_kv};
    a.head_dim = t->head_dim;
    a.q = t->q_rot;
    a.kv = f->s->kv[layer];
    a.scale = f->hp->attn_scale;
    a.window = f->hp->sliding[layer] ? f->hp->window : 0;
    a.softcap = f->hp->attn_softcap;
    a.sinks = f->p->layers[layer].attn.sinks;
    a.out = t->att;
    a.rope = rope;
    a.norm = norm;
    return kern_attention(f->s->k, &a, e);
}

static enum err_code tap_state(const struct decoder_pass *f, int layer, int64_t n, const float *h,
                               struct err *e)
{
    const struct model_step *s = f->s;
    return s->state ? s->state(s->state_ctx, layer, (int)n, h, e) : ERR_OK;
}

enum err_code decoder_attend(struct decoder_pass *f, int i, struct err *e)
{
    const struct decoder_attention *l = &f->p->layers[i].attn;
    const struct model_step *s = f->s;
    const struct heads t = heads_of(f, i);
    const int64_t n = f->n;
    enum err_code rc = decoder_norm(f, l->norm, e);
    if (rc == ERR_OK)
        rc = tap_state(f, i, n, f->h, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "residual", n, f->h, f->d, f->d, sizeof(float), e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "attn_norm", n, f->x, f->d, f->d, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = project_qkv(f, &t, l, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "qkv", n, t.qkv, l->v.w || !l->k.w ? t.stride : t.q + t.kv, t.stride,
                       sizeof(float), e);
    const struct norm_heads_args norm = heads_args(f, &t, l);
    const struct rope_kv_args rope = rope_args(f, &t, i);
    /* A tap looks at all three operations; a layer without K and V of its own has no rope to join.
     */
    const bool joined = !s->tap && hparams_has_kv(f->hp, i);
    if (rc == ERR_OK && has_norms(l) && !joined)
        rc = kern_norm_heads(s->k, &norm, e);
    if (rc == ERR_OK && l->q_norm)
        rc = model_tap(s, i, "qk_norm", n, t.qkv, t.stride, t.stride, sizeof(float), e);
    if (rc == ERR_OK && !joined)
        rc = kern_rope_kv(s->k, &rope, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "rope", n, t.q_rot, t.q, t.q, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = look_back(f, &t, i, joined ? &rope : NULL, joined && has_norms(l) ? &norm : NULL, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "attention", n, t.att, t.q, t.q, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = decoder_linear(f, t.att, t.q, &l->o, f->delta, e);
    if (rc == ERR_OK)
        rc = decoder_leave_delta(f, l->post_norm, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "o", n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

/* ---- MLP ------------------------------------------------------------------------------------- */

enum err_code decoder_run_mlp(struct decoder_pass *f, int i, struct err *e)
{
    const struct decoder_mlp *l = &f->p->layers[i].mlp;
    const struct model_step *s = f->s;
    const int64_t n = f->n, ff = hparams_d_ff(f->hp, i);
    float *gate_up = f32_at(f, f->p->gate_up);
    void *act = s->scratch + f->p->act;
    enum err_code rc = decoder_norm(f, l->norm, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "ffn_norm", n, f->x, f->d, f->d, f->act_bytes, e);
    struct linear_args a = {.n_tok = (int)n, .x = f->x, .x_stride = f->d, .n_parts = 2};
    a.part[0] = (struct linear_part){l->gate.w, l->gate.bias, gate_up, 2 * ff};
    a.part[1] = (struct linear_part){l->up.w, l->up.bias, gate_up + ff, 2 * ff};
    if (!s->tap) /* a tap looks at both operations */
        a.gate = (struct linear_gate){.out = act, .act = f->hp->act};
    if (rc == ERR_OK)
        rc = kern_linear(s->k, &a, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "gate_up", n, gate_up, 2 * ff, 2 * ff, sizeof(float), e);
    struct act_mul_args m = {.n_rows = n, .d = ff, .stride = 2 * ff, .act = f->hp->act};
    m.gate = gate_up;
    m.up = gate_up + ff;
    m.out = act;
    if (rc == ERR_OK && s->tap)
        rc = kern_act_mul(s->k, &m, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "act", n, act, ff, ff, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = decoder_linear(f, act, ff, &l->down, f->delta, e);
    if (rc == ERR_OK)
        rc = decoder_leave_delta(f, l->post_norm, e);
    if (rc == ERR_OK)
        rc = model_tap(s, i, "down", n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

enum err_code decoder_end_layer(struct decoder_pass *f, int i, struct err *e)
{
    const float scalar = f->p->layers[i].scalar;
    if (scalar == 0)
        return ERR_OK;
    f->pending.scalar = scalar;
    return f->s->tap ? decoder_settle(f, e) : ERR_OK;
}

/* ---- from embedding to logits ---------------------------------------------------------------- */

enum err_code decoder_begin(struct decoder_pass *f, const struct model *m,
                            const struct model_step *s, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    *f = (struct decoder_pass){.hp = hp, .p = model_priv(m), .s = s, .d = hp->d_model};
    f->n = s->rows.n_tok;
    f->act_bytes = kern_act_bytes(s->k);
    f->h = f32_at(f, f->p->h);
    f->delta = f32_at(f, f->p->delta);
    f->x = s->scratch + f->p->x;
    if (s->from_layer > 0)
        return kern_upload(s->k, f->h, s->states, (size_t)(f->n * f->d) * sizeof(float), e);
    struct embed_args a = {.rows = &s->rows, .w = f->p->embed, .scale = hp->embed_scale};
    a.out = f->h;
    enum err_code rc = kern_embed(s->k, &a, e);
    if (rc == ERR_OK)
        rc = model_tap(s, -1, "embed", f->n, f->h, f->d, f->d, sizeof(float), e);
    return rc;
}

enum err_code decoder_finish(struct decoder_pass *f, struct err *e)
{
    const struct model_step *s = f->s;
    if (s->n_out == 0)
        return ERR_OK;
    float *h = s->out_row ? f32_at(f, f->p->out_h) : f->h;
    float *delta = s->out_row ? f32_at(f, f->p->out_delta) : f->delta;
    void *x = s->scratch + f->p->out_x;
    struct gather_args g = {.n = s->n_out, .d = f->d, .row = s->out_row, .in = f->h, .out = h};
    enum err_code rc = is_plain(&f->pending) ? ERR_OK : decoder_settle(f, e);
    if (rc == ERR_OK && s->out_row)
        rc = kern_gather(s->k, &g, e);
    g.in = f->delta;
    g.out = delta;
    if (rc == ERR_OK && f->pending.any && s->out_row)
        rc = kern_gather(s->k, &g, e);
    struct rms_norm_args norm = norm_args(f, s->n_out, f->d, h, f->p->norm);
    norm.add = f->pending.any ? delta : NULL;
    norm.out = x;
    if (rc == ERR_OK)
        rc = kern_rms_norm(s->k, &norm, e);
    if (rc == ERR_OK)
        rc = tap_state(f, f->hp->n_layer, s->n_out, h, e);
    if (rc == ERR_OK)
        rc = model_tap(s, -1, "final_norm", s->n_out, x, f->d, f->d, f->act_bytes, e);
    struct linear_args a = {.n_tok = s->n_out, .x = x, .x_stride = f->d, .n_parts = 1};
    const struct kern_weight *head = f->p->head ? f->p->head : f->p->embed;
    a.part[0] = (struct linear_part){head, NULL, s->logits, f->hp->n_vocab};
    if (rc == ERR_OK)
        rc = kern_linear(s->k, &a, e);
    return rc;
}

enum err_code decoder_forward(const struct model *m, const struct model_step *s, struct err *e)
{
    struct decoder_pass f;
    enum err_code rc = decoder_begin(&f, m, s, e);
    for (int i = s->from_layer; rc == ERR_OK && i < f.hp->n_layer; i++) {
        rc = decoder_attend(&f, i, e);
        if (rc == ERR_OK)
            rc = decoder_run_mlp(&f, i, e);
        if (rc == ERR_OK)
            rc = decoder_end_layer(&f, i, e);
        if (rc != ERR_OK)
            rc = err_wrap(e, rc, "layer %d", i);
    }
    return rc == ERR_OK ? decoder_finish(&f, e) : rc;
}
