/* experts.c: binding, room and forward pass of the sparse part. */
#include "infer/experts.h"

void experts_bind(struct model_binder *b, const struct hparams *hp, struct experts *x, int layer,
                  const struct experts_names *names)
{
    const int64_t d = hp->d_model, ff = hp->d_ff_expert;
    const struct {
        struct kern_weight **w;
        float **bias;
        int64_t rows, k;
        const char *name;
    } stacks[] = {{&x->gate, &x->gate_bias, ff, d, "gate"},
                  {&x->up, &x->up_bias, ff, d, "up"},
                  {&x->down, &x->down_bias, d, ff, "down"}};
    const char *block = names->block, *router = names->router;
    model_want_vector(b, &x->norm, d, "model.layers.%d.%s.weight", layer, names->norm);
    model_want_matrix(b, &x->router, hp->n_expert, d, "model.layers.%d.%s%s.weight", layer, block,
                      router);
    if (hp->router_bias)
        model_want_vector(b, &x->router_bias, hp->n_expert, "model.layers.%d.%s%s.bias", layer,
                          block, router);
    for (size_t i = 0; i < ARRAY_LEN(stacks); i++) {
        model_want_experts(b, stacks[i].w, hp->n_expert, stacks[i].rows, stacks[i].k,
                           "model.layers.%d.%sexperts.%s_proj.weight", layer, block,
                           stacks[i].name);
        if (hp->expert_bias)
            model_want_vectors(b, stacks[i].bias, hp->n_expert, stacks[i].rows,
                               "model.layers.%d.%sexperts.%s_proj.bias", layer, block,
                               stacks[i].name);
    }
}

void experts_plan(const struct hparams *hp, const struct model_dims *dims, struct experts_room *r,
                  size_t *used)
{
    const size_t n = (size_t)dims->n_tok, n_expert = (size_t)hp->n_expert;
    const size_t pairs = n * (size_t)hp->n_expert_used, ff = (size_t)hp->d_ff_expert;
    r->expert = model_take(used, pairs * sizeof(int32_t));
    r->weight = model_take(used, pairs * sizeof(float));
    r->order = model_take(used, pairs * sizeof(int32_t));
    r->first = model_take(used, (n_expert + 1) * sizeof(int32_t));
    r->gate_up = model_take(used, pairs * 2 * ff * sizeof(float));
    r->act = model_take(used, pairs * ff * dims->act_bytes);
    r->y = model_take(used, pairs * (size_t)hp->d_model * sizeof(float));
}

void experts_plan_inputs(const struct hparams *hp, const struct model_dims *dims, bool apart,
                         struct experts_room *r, size_t *used)
{
    const size_t n = (size_t)dims->n_tok;
    const size_t bytes = apart ? n * (size_t)hp->d_model * dims->act_bytes : 0;
    r->logits = model_take(used, n * (size_t)hp->n_expert * sizeof(float));
    r->router_x = model_take(used, bytes);
    r->x = model_take(used, bytes);
}

void experts_limits(const struct hparams *hp, struct kern_limits *l)
{
    l->k_max = MAX2(l->k_max, hp->d_ff_expert);
    l->rows_max = MAX2(l->rows_max, MAX2(hp->d_ff_expert, (int64_t)hp->n_expert));
    l->n_used = hp->n_expert_used;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The buffers as pointers. */
struct buffers {
    float *logits, *weight, *gate_up, *y;
    int32_t *expert, *order, *first;
    void *act;
    int n_pairs;
};

static struct buffers buffers_of(const struct decoder_pass *f, const struct experts_room *r)
{
    uint8_t *s = f->s->scratch;
    struct buffers t = {.logits = (float *)(void *)(s + r->logits)};
    t.expert = (int32_t *)(void *)(s + r->expert);
    t.weight = (float *)(void *)(s + r->weight);
    t.order = (int32_t *)(void *)(s + r->order);
    t.first = (int32_t *)(void *)(s + r->first);
    t.gate_up = (float *)(void *)(s + r->gate_up);
    t.act = s + r->act;
    t.y = (float *)(void *)(s + r->y);
    t.n_pairs = (int)f->n * f->hp->n_expert_used;
    return t;
}

static struct route_scale_args scale_of(const struct decoder_pass *f, const struct experts *x,
                                        const struct buffers *t)
{
    return (struct route_scale_args){t->n_pairs, f->hp->n_expert, t->expert, x->router_scale,
                                     t->weight};
}

/* The router's choice, then gate and up of the chosen, and their product in act. Only the sum of
 * the slots reads the weights, so they may be scaled last, or with it. */
static enum err_code run_gated(const struct decoder_pass *f, const struct experts *x,
                               const struct buffers *t, const void *in, struct err *e)
{
    struct route_args r = {.n_tok = (int)f->n, .n_expert = f->hp->n_expert};
    struct expert_gated_args a = {.route = &r, .n_pairs = t->n_pairs, .n_expert = r.n_expert};
    r.n_used = f->hp->n_expert_used;
    r.logits = t->logits;
    r.softmax_first = f->hp->softmax_all;
    r.norm = f->hp->norm_topk;
    r.expert = t->expert;
    r.weight = t->weight;
    r.order = t->order;
    r.first = t->first;
    a.x_div = r.n_used;
    a.order = t->order;
    a.first = t->first;
    a.x = in;
    a.gate = x->gate;
    a.up = x->up;
    a.gate_bias = x->gate_bias;
    a.up_bias = x->up_bias;
    a.rows = f->hp->d_ff_expert;
    a.act = f->hp->act;
    a.limit = f->hp->act_limit;
    a.alpha = f->hp->act_alpha;
    a.room = t->gate_up;
    a.out = t->act;
    const struct route_scale_args scale = scale_of(f, x, t);
    enum err_code rc = kern_expert_gated(f->s->k, &a, e);
    return rc == ERR_OK && x->router_scale && f->s->tap ? kern_route_scale(f->s->k, &scale, e) : rc;
}

/* Products of all pairs' activations with their experts' rows of down. */
static enum err_code run_down(const struct decoder_pass *f, const struct experts *x,
                              const struct buffers *t, struct err *e)
{
    struct expert_linear_args a = {.n_pairs = t->n_pairs, .n_expert = f->hp->n_expert, .x_div = 1};
    a.order = t->order;
    a.first = t->first;
    a.x = t->act;
    a.w = x->down;
    a.bias = x->down_bias;
    a.out = t->y;
    a.rows = a.out_stride = f->d;
    return kern_expert_linear(f->s->k, &a, e);
}

static struct linear_args router_of(const struct decoder_pass *f, const struct experts *x,
                                    const struct experts_room *r, const void *in)
{
    const struct decoder_linear router = {x->router, x->router_bias};
    return decoder_product(f, in, f->d, &router, (float *)(void *)(f->s->scratch + r->logits));
}

void experts_want_norms(struct decoder_pass *f, const struct experts *x,
                        const struct experts_room *r)
{
    if (f->s->tap)
        return;
    f->also[0] = x->router_norm;
    f->also_x[0] = f->s->scratch + r->router_x;
    f->also[1] = x->norm;
    f->also_x[1] = f->s->scratch + r->x;
    f->router = router_of(f, x, r, f->also_x[0]);
}

/* The sum over the slots, which waits for the next norm where no tap looks at it. */
static enum err_code sum_slots(struct decoder_pass *f, const struct experts *x,
                               const struct buffers *t, float *out, struct err *e)
{
    struct combine_args c = {.n_tok = (int)f->n, .n_used = f->hp->n_expert_used, .d = f->d};
    c.y = t->y;
    c.weight = t->weight;
    c.out = out;
    if (f->s->tap)
        return kern_combine(f->s->k, &c, e);
    f->pending.combine = c;
    if (x->router_scale)
        f->pending.scale = scale_of(f, x, t);
    return ERR_OK;
}

/* Norms and router by themselves, for a tap. */
static enum err_code run_router(struct decoder_pass *f, const struct experts *x,
                                const struct experts_room *r, int layer, struct err *e)
{
    const int64_t n_expert = f->hp->n_expert;
    const bool apart = x->router_norm != NULL;
    float *logits = (float *)(void *)(f->s->scratch + r->logits);
    enum err_code rc = decoder_norm(f, apart ? x->router_norm : x->norm, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, layer, apart ? "router_norm" : "ffn_norm", f->n, f->x, f->d, f->d,
                       f->act_bytes, e);
    const struct linear_args router = router_of(f, x, r, f->x);
    if (rc == ERR_OK)
        rc = kern_linear(f->s->k, &router, e);
    if (rc == ERR_OK)
        rc = model_tap(f->s, layer, "router", f->n, logits, n_expert, n_expert, sizeof(float), e);
    if (rc == ERR_OK && apart)
        rc = decoder_norm(f, x->norm, e);
    if (rc == ERR_OK && apart)
        rc = model_tap(f->s, layer, "expert_norm", f->n, f->x, f->d, f->d, f->act_bytes, e);
    return rc;
}

/* Logits, and what the experts read, which with a router_norm the norm before the MLP has made. */
static enum err_code make_logits(struct decoder_pass *f, const struct experts *x,
                                 const struct experts_room *r, int layer, const void **in,
                                 struct err *e)
{
    *in = x->router_norm && !f->s->tap ? (const void *)(f->s->scratch + r->x) : f->x;
    if (f->s->tap)
        return run_router(f, x, r, layer, e);
    if (x->router_norm)
        return ERR_OK;
    f->router = router_of(f, x, r, f->x);
    return decoder_norm(f, x->norm, e);
}

enum err_code experts_run(struct decoder_pass *f, const struct experts *x,
                          const struct experts_room *r, int layer, float *out, struct err *e)
{
    const struct model_step *s = f->s;
    const struct buffers t = buffers_of(f, r);
    const int used = f->hp->n_expert_used;
    const int64_t ff = f->hp->d_ff_expert;
    const void *in;
    enum err_code rc = make_logits(f, x, r, layer, &in, e);
    if (rc == ERR_OK)
        rc = run_gated(f, x, &t, in, e);
    if (rc == ERR_OK)
        rc = model_tap(s, layer, "route", f->n, t.weight, used, used, sizeof(float), e);
    /* The rows of a token's pairs follow each other: hashed as one. */
    if (rc == ERR_OK)
        rc = model_tap(s, layer, "act", f->n, t.act, used * ff, used * ff, f->act_bytes, e);
    if (rc == ERR_OK)
        rc = run_down(f, x, &t, e);
    if (rc == ERR_OK)
        rc = sum_slots(f, x, &t, out, e);
    if (rc == ERR_OK)
        rc = model_tap(s, layer, x->router_norm ? "experts" : "down", f->n, out, f->d, f->d,
                       sizeof(float), e);
    return rc;
}
