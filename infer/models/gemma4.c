/* gemma4.c: Gemma 4, text: Gemma 3's block with plain norms, scores as they are, heads of another
 * size in full layers, where v may be what k is before its norm, and a scalar behind each layer.
 *
 *     26B-A4B:  h += norm(norm1(mlp(h)) + norm2(experts(h)))   in place of the MLP's line
 *     E2B, E4B: h += norm(project(gelu(gate(h)) * input))      behind it
 *
 * Experts and MLP read h through norms of their own, and so does the router. The inputs of all
 * layers of a row are made once, before the first one:
 *
 *     input = (row of the table + norm(projection of the embedding)) / sqrt(2)
 *
 * The projection is divided by the root of d_model; the norm cancels that but for its eps, so eps
 * is multiplied by d_model and the division left out. Layers that share keys and values are the
 * decoder's (infer/decoder.h). Since they make none, only rows that give logits go through them;
 * all rows do when a step's operations or states are listened to.
 */
#include <math.h>

#include "infer/experts.h"

struct gemma4_layer {
    struct experts experts;
    float *experts_norm, *sum_norm; /* behind the experts; behind both branches */
    struct decoder_linear gate, project;
    float *input_norm; /* behind project */
};

struct gemma4 {
    struct decoder decoder; /* first: the parts of decoder.h see this alone */
    struct gemma4_layer *layers;
    struct kern_weight *table, *project;
    float *project_norm;
    struct experts_room room;
    /* Offsets: [n, n_layer, d_input] of f32 twice, what a row takes up and where gates go; of a
     * branch; and the gated input of one layer. Of the rows that go through the last layers: h,
     * inputs, positions and sequences. */
    size_t inputs, gates, branch, gated;
    size_t late_h, late_inputs, late_pos, late_seq;
};

/* One pass: what changes when the other rows are left behind. */
struct pass {
    struct decoder_pass d; /* first: the parts of decoder.h see this alone */
    const struct gemma4 *p;
    float *inputs;
    struct model_step late; /* the step of the rows that are left */
};

/* ---- binding --------------------------------------------------------------------------------- */

static void want_norm(struct model_binder *b, float **w, int64_t d, int layer, const char *name)
{
    model_want_vector(b, w, d, "model.layers.%d.%s.weight", layer, name);
}

static void bind_experts(struct model_binder *b, const struct hparams *hp, struct gemma4_layer *l,
                         int layer)
{
    static const struct experts_names names = {"pre_feedforward_layernorm_2", "", "router.proj"};
    const float root = (float)(1 / sqrt((double)hp->d_model));
    experts_bind(b, hp, &l->experts, layer, &names);
    model_want_scaled(b, &l->experts.router_norm, hp->d_model, root, "model.layers.%d.router.scale",
                      layer);
    model_want_vector(b, &l->experts.router_scale, hp->n_expert,
                      "model.layers.%d.router.per_expert_scale", layer);
    want_norm(b, &l->experts_norm, hp->d_model, layer, "post_feedforward_layernorm_2");
    want_norm(b, &l->sum_norm, hp->d_model, layer, "post_feedforward_layernorm");
}

static void bind_input(struct model_binder *b, const struct hparams *hp, struct gemma4_layer *l,
                       int layer)
{
    const int64_t d = hp->d_model;
    decoder_want_linear(b, &l->gate, hp->d_input, d, false, layer, "per_layer_input_gate");
    decoder_want_linear(b, &l->project, d, hp->d_input, false, layer, "per_layer_projection");
    want_norm(b, &l->input_norm, d, layer, "post_per_layer_input_norm");
}

static enum err_code bind(struct model *m, struct model_binder *b, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    const int64_t all = hp->n_layer * hp->d_input;
    struct gemma4 *p = model_priv(m);
    enum err_code rc = decoder_bind_common(m, b, e);
    if (rc != ERR_OK)
        return rc;
    p->layers = model_alloc(b, (size_t)hp->n_layer, sizeof *p->layers);
    if (!p->layers)
        return err_set(e, ERR_NOMEM, "out of memory for %d layers", hp->n_layer);
    if (hp->d_input) {
        model_want_matrix(b, &p->table, hp->n_vocab_input, all,
                          "model.embed_tokens_per_layer.weight");
        model_want_matrix(b, &p->project, all, hp->d_model,
                          "model.per_layer_model_projection.weight");
        model_want_vector(b, &p->project_norm, hp->d_input,
                          "model.per_layer_projection_norm.weight");
    }
    for (int i = 0; i < hp->n_layer; i++) {
        decoder_bind_attention(b, hp, &p->decoder.layers[i].attn, i);
        decoder_bind_mlp(b, hp, &p->decoder.layers[i].mlp, i);
        if (hp->sparse[i])
            bind_experts(b, hp, &p->layers[i], i);
        if (hp->d_input)
            bind_input(b, hp, &p->layers[i], i);
        model_want_scalar(b, &p->decoder.layers[i].scalar, "model.layers.%d.layer_scalar", i);
    }
    return ERR_OK;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Inputs live through all layers. Attention, MLP, experts and input of a layer follow each other,
 * but the experts' branch waits beside what they leave. */
static size_t plan(struct model *m, const struct model_dims *dims)
{
    const struct hparams *hp = model_hparams(m);
    struct gemma4 *p = model_priv(m);
    const size_t n = (size_t)dims->n_tok, d_input = (size_t)hp->d_input;
    const size_t all = n * (size_t)hp->n_layer * d_input * sizeof(float);
    size_t used = 0;
    decoder_plan_common(m, dims, &used);
    p->inputs = model_take(&used, all);
    p->gates = model_take(&used, all);
    if (hp->n_kv_shared) {
        const size_t r = (size_t)dims->out_rows;
        p->late_h = model_take(&used, r * (size_t)hp->d_model * sizeof(float));
        p->late_inputs = model_take(&used, r * (size_t)hp->n_layer * d_input * sizeof(float));
        p->late_pos = model_take(&used, r * sizeof(int32_t));
        p->late_seq = model_take(&used, r * sizeof(int32_t));
    }
    if (hp->n_expert)
        experts_plan_inputs(hp, dims, true, &p->room, &used);
    size_t attention = used, mlp = used, experts = used, input = used;
    decoder_plan_attention(m, dims, &attention);
    decoder_plan_mlp(m, dims, &mlp);
    if (hp->n_expert) {
        experts_plan(hp, dims, &p->room, &experts);
        p->branch = model_take(&experts, n * (size_t)hp->d_model * sizeof(float));
    }
    p->gated = model_take(&input, n * d_input * dims->act_bytes);
    return MAX2(MAX2(attention, mlp), MAX2(experts, input));
}

static void limits(const struct model *m, struct kern_limits *l)
{
    const struct hparams *hp = model_hparams(m);
    decoder_limits(m, l);
    if (hp->n_expert)
        experts_limits(hp, l);
    l->k_max = MAX2(l->k_max, hp->d_input);
    l->rows_max = MAX2(l->rows_max, hp->n_layer * hp->d_input);
}

/* ---- forward --------------------------------------------------------------------------------- */

static float *f32_at(const struct decoder_pass *f, size_t offset)
{
    return (float *)(void *)(f->s->scratch + offset);
}

/* Norms n_rows rows of d in place, after adding `add` to them where there is some. */
static enum err_code norm_rows(const struct decoder_pass *f, int64_t n_rows, int64_t d, float *x,
                               const float *add, const float *w, double eps, struct err *e)
{
    struct rms_norm_args a = {.n_rows = n_rows, .inner = 1, .stride = d, .out_stride = d, .d = d};
    a.h = x;
    a.add = add;
    a.w = w;
    a.eps = (float)eps;
    a.out_f32 = true;
    a.out = x;
    return kern_rms_norm(f->s->k, &a, e);
}

/* h as act into x, after what is pending. */
static enum err_code cast_h(struct decoder_pass *f, struct err *e)
{
    struct add_args a = {.n = f->n * f->d, .h = f->h, .out = f->x};
    enum err_code rc = decoder_settle(f, e);
    return rc == ERR_OK ? kern_add(f->s->k, &a, e) : rc;
}

static enum err_code make_inputs(struct pass *pass, struct err *e)
{
    struct decoder_pass *f = &pass->d;
    const struct gemma4 *p = pass->p;
    const struct hparams *hp = f->hp;
    const int64_t all = hp->n_layer * hp->d_input;
    const struct decoder_linear project = {p->project, NULL};
    float *inputs = pass->inputs, *projected = f32_at(f, p->gates);
    struct embed_args a = {&f->s->rows, p->table, hp->input_scale, inputs};
    enum err_code rc = kern_embed(f->s->k, &a, e);
    if (rc == ERR_OK)
        rc = cast_h(f, e);
    if (rc == ERR_OK)
        rc = decoder_linear(f, f->x, f->d, &project, projected, e);
    if (rc == ERR_OK)
        rc = norm_rows(f, f->n * hp->n_layer, hp->d_input, projected, NULL, p->project_norm,
                       hp->rms_eps * (double)hp->d_model, e);
    struct add_args sum = {.n = f->n * all, .h = inputs, .x = projected, .scale = 0x1.6a09e6p-1F};
    if (rc == ERR_OK)
        rc = kern_add(f->s->k, &sum, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, -1, "layer_inputs", f->n, inputs, all, all, sizeof(float), e);
    return rc;
}

/* Both branches read h; their sum, normed, stays pending. */
static enum err_code run_beside(struct pass *pass, int i, struct err *e)
{
    struct decoder_pass *f = &pass->d;
    const struct gemma4 *p = pass->p;
    const struct gemma4_layer *l = &p->layers[i];
    const double eps = f->hp->rms_eps;
    float *branch = f32_at(f, p->branch);
    const float *mlp_norm = f->pending.post_norm;
    f->pending = (struct decoder_pending){.any = false}; /* delta is the MLP's, not what h lacks */
    enum err_code rc = experts_run(f, &l->experts, &p->room, i, branch, e);
    f->pending.any = true;
    if (!f->s->tap) {
        f->pending.branch_norm = l->experts_norm;
        f->pending.delta_norm = mlp_norm;
        f->pending.post_norm = l->sum_norm;
        return rc;
    }
    if (rc == ERR_OK)
        rc = norm_rows(f, f->n, f->d, branch, NULL, l->experts_norm, eps, e);
    if (rc == ERR_OK)
        rc = norm_rows(f, f->n, f->d, f->delta, branch, l->sum_norm, eps, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, i, "branches", f->n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

/* Gates go where a row's inputs go in their buffer, since both operands have one stride. */
static enum err_code take_input(struct pass *pass, int i, struct err *e)
{
    struct decoder_pass *f = &pass->d;
    const struct gemma4 *p = pass->p;
    const struct gemma4_layer *l = &p->layers[i];
    const int64_t d = f->hp->d_input, all = f->hp->n_layer * d;
    float *gates = f32_at(f, p->gates);
    void *gated = f->s->scratch + p->gated;
    enum err_code rc = cast_h(f, e);
    struct linear_args a = {.n_tok = (int)f->n, .x = f->x, .x_stride = f->d, .n_parts = 1};
    a.part[0] = (struct linear_part){l->gate.w, NULL, gates, all};
    if (rc == ERR_OK)
        rc = kern_linear(f->s->k, &a, e);
    struct act_mul_args m = {.n_rows = f->n, .d = d, .stride = all, .act = f->hp->act};
    m.gate = gates;
    m.up = pass->inputs + i * d;
    m.out = gated;
    if (rc == ERR_OK)
        rc = kern_act_mul(f->s->k, &m, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, i, "input_act", f->n, gated, d, d, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = decoder_linear(f, gated, d, &l->project, f->delta, e);
    if (rc == ERR_OK)
        rc = decoder_leave_delta(f, l->input_norm, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, i, "input", f->n, f->delta, f->d, f->d, sizeof(float), e);
    return rc;
}

/* Brings the rows that give logits together. Positions and sequences are moved as words. */
static enum err_code leave_rows_behind(struct pass *pass, struct err *e)
{
    struct decoder_pass *f = &pass->d;
    const struct model_step *s = f->s;
    const struct gemma4 *p = pass->p;
    const int64_t all = f->hp->n_layer * f->hp->d_input;
    enum err_code rc = decoder_settle(f, e);
    const struct {
        const void *from;
        size_t to;
        int64_t d;
    } moves[] = {{f->h, p->late_h, f->d},
                 {s->rows.pos, p->late_pos, 1},
                 {s->rows.seq, p->late_seq, 1},
                 {pass->inputs, p->late_inputs, all}};
    for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
        struct gather_args a = {.n = s->n_out, .d = moves[i].d, .row = s->out_row};
        a.in = moves[i].from;
        a.out = f32_at(f, moves[i].to);
        if (rc == ERR_OK && a.d)
            rc = kern_gather(s->k, &a, e);
    }
    if (rc != ERR_OK)
        return rc;
    pass->late = *s;
    pass->late.rows.n_tok = s->n_out;
    pass->late.rows.id = NULL;
    pass->late.rows.pos = (const int32_t *)(const void *)(s->scratch + p->late_pos);
    pass->late.rows.seq = (const int32_t *)(const void *)(s->scratch + p->late_seq);
    pass->late.out_row = NULL; /* row r gives the logits of row r */
    pass->inputs = f32_at(f, p->late_inputs);
    f->h = f32_at(f, p->late_h);
    f->n = s->n_out;
    f->s = &pass->late;
    return ERR_OK;
}

static enum err_code run_layer(struct pass *pass, int i, struct err *e)
{
    struct decoder_pass *f = &pass->d;
    const struct hparams *hp = f->hp;
    const bool first_late = i > 0 && hparams_has_kv(hp, i - 1) && !hparams_has_kv(hp, i);
    enum err_code rc = ERR_OK;
    if (first_late && f->s->n_out < f->n && !f->s->tap && !f->s->state)
        rc = leave_rows_behind(pass, e);
    if (rc == ERR_OK)
        rc = decoder_attend(f, i, e);
    if (rc == ERR_OK && hp->sparse[i])
        experts_want_norms(f, &pass->p->layers[i].experts, &pass->p->room);
    if (rc == ERR_OK)
        rc = decoder_run_mlp(f, i, e);
    if (rc == ERR_OK && hp->sparse[i])
        rc = run_beside(pass, i, e);
    if (rc == ERR_OK && hp->d_input)
        rc = take_input(pass, i, e);
    return rc == ERR_OK ? decoder_end_layer(f, i, e) : rc;
}

static enum err_code forward(const struct model *m, const struct model_step *s, struct err *e)
{
    struct pass pass = {.p = model_priv(m)};
    const struct hparams *hp = model_hparams(m);
    enum err_code rc = decoder_begin(&pass.d, m, s, e);
    pass.inputs = f32_at(&pass.d, pass.p->inputs);
    if (rc == ERR_OK && hp->d_input)
        rc = make_inputs(&pass, e);
    /* Without rows that give logits nobody reads what the last layers make. */
    const int n_layer =
        s->n_out || s->tap || s->state ? hp->n_layer : hp->n_layer - hp->n_kv_shared;
    for (int i = s->from_layer; rc == ERR_OK && i < n_layer; i++)
        rc = err_wrap(e, run_layer(&pass, i, e), "layer %d", i);
    return rc == ERR_OK ? decoder_finish(&pass.d, e) : rc;
}

#define GEMMA4(text)                                                                               \
    {                                                                                              \
        .name = (text), .priv_bytes = sizeof(struct gemma4), .bind = bind, .plan = plan,           \
        .limits = limits, .forward = forward                                                       \
    }

const struct model_family model_gemma4 = GEMMA4("gemma4_text");
const struct model_family model_gemma4_unified = GEMMA4("gemma4_unified_text");
