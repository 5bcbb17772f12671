/* decoder.h: the parts that decoder families are made of: embedding, attention, gated MLP, head.
 *
 *     h += [post_norm] o(attention(rope([norm] q), rope([norm] k), v)) of norm(h)
 *     h += [post_norm] down(f(gate) * up) of norm(h)
 *     [h *= scalar]
 *
 * What stands in brackets, biases, windows and rope tables are facts of the hyperparameters, so
 * one set of parts serves Llama, Mistral, Qwen and Gemma. A family whose layers are just these
 * gives decoder_bind and its fellows in its table row. One with other layers (experts in place of
 * the MLP) begins its own struct with a struct decoder, and calls the parts one by one.
 *
 * The residual h is f32. The output of a part waits in `delta` and is added by the norm that comes
 * next, and with it waits what is to be done with it before: one operation does all of that, unless
 * a tap looks at its parts. Buffers of attention and of the part after it are never alive together,
 * so they share room.
 */
#ifndef ASSAY_INFER_DECODER_H
#define ASSAY_INFER_DECODER_H

#include "infer/model.h"

struct decoder_linear {
    struct kern_weight *w;
    float *bias; /* NULL: none */
};

struct decoder_attention {
    float *norm, *q_norm, *k_norm, *post_norm, *sinks; /* NULL where the family has none */
    float *v_norm;                                     /* zeros */
    struct decoder_linear q, k, v, o; /* k, v: none where the layer looks at another one's */
};

struct decoder_mlp {
    float *norm, *post_norm;
    struct decoder_linear gate, up, down;
};

struct decoder_layer {
    struct decoder_attention attn;
    struct decoder_mlp mlp;
    float scalar; /* h is multiplied by it at the end; 0: not */
};

struct decoder {
    struct kern_weight *embed, *head; /* head is NULL when tied */
    float *norm;
    struct decoder_layer *layers;
    /* Offsets in the scratch block: decoder_plan_common, _attention, _mlp. */
    size_t h, delta, x, out_h, out_delta, out_x, qkv, q_rot, att, gate_up, act;
};

/* ---- binding --------------------------------------------------------------------------------- */

/* Embedding, final norm, head and the array of layers. */
MUST_USE enum err_code decoder_bind_common(struct model *m, struct model_binder *b, struct err *e);
void decoder_bind_attention(struct model_binder *b, const struct hparams *hp,
                            struct decoder_attention *a, int layer);
void decoder_bind_mlp(struct model_binder *b, const struct hparams *hp, struct decoder_mlp *p,
                      int layer);
/* A matrix and, where has_bias says so, its bias: "model.layers.<layer>.<name>.weight". */
void decoder_want_linear(struct model_binder *b, struct decoder_linear *l, int64_t rows, int64_t k,
                         bool has_bias, int layer, const char *name);
/* All of a dense model; ERR_INPUT where there are experts. */
MUST_USE enum err_code decoder_bind(struct model *m, struct model_binder *b, struct err *e);

/* ---- buffers --------------------------------------------------------------------------------- */

/* Take room behind *used; attention and what follows it start at the same place. */
void decoder_plan_common(struct model *m, const struct model_dims *d, size_t *used);
void decoder_plan_attention(struct model *m, const struct model_dims *d, size_t *used);
void decoder_plan_mlp(struct model *m, const struct model_dims *d, size_t *used);
size_t decoder_plan(struct model *m, const struct model_dims *d);
void decoder_limits(const struct model *m, struct kern_limits *l);

/* ---- forward --------------------------------------------------------------------------------- */

/* What the next norm does before it: residual_args of kernels.h. */
struct decoder_pending {
    bool any; /* delta is still to be added to h */
    struct combine_args combine;
    struct route_scale_args scale;
    const float *branch_norm, *delta_norm, *post_norm;
    float scalar;
};

/* One pass: the step, the model and the buffers as pointers. */
struct decoder_pass {
    const struct hparams *hp;
    const struct decoder *p;
    const struct model_step *s;
    int64_t n, d; /* rows of the step, d_model */
    float *h, *delta;
    void *x; /* act [n, d]: what a norm made of h */
    size_t act_bytes;
    struct decoder_pending pending;
    /* Norms of h that the next one makes beside its own, of those that are there. */
    const float *also[RESIDUAL_NORMS_MAX - 1];
    void *also_x[RESIDUAL_NORMS_MAX - 1];
    struct linear_args router; /* a product that it makes of one of them; n_parts 0: none */
};

/* h: the embeddings, or the states that the step was given. */
MUST_USE enum err_code decoder_begin(struct decoder_pass *f, const struct model *m,
                                     const struct model_step *s, struct err *e);
MUST_USE enum err_code decoder_attend(struct decoder_pass *f, int layer, struct err *e);
MUST_USE enum err_code decoder_run_mlp(struct decoder_pass *f, int layer, struct err *e);
/* What a layer ends with; decoder_forward calls it behind the MLP. */
MUST_USE enum err_code decoder_end_layer(struct decoder_pass *f, int layer, struct err *e);
/* Final norm and logits of the rows that give some. */
MUST_USE enum err_code decoder_finish(struct decoder_pass *f, struct err *e);
MUST_USE enum err_code decoder_forward(const struct model *m, const struct model_step *s,
                                       struct err *e);

/* The table row of a family that is made of these parts and no others. */
#define DECODER_FAMILY(text)                                                                       \
    {                                                                                              \
        .name = (text), .priv_bytes = sizeof(struct decoder), .bind = decoder_bind,                \
        .plan = decoder_plan, .limits = decoder_limits, .forward = decoder_forward                 \
    }

/* x = norm(h), after what is pending. */
MUST_USE enum err_code decoder_norm(struct decoder_pass *f, const float *w, struct err *e);
/* Does what is pending. */
MUST_USE enum err_code decoder_settle(struct decoder_pass *f, struct err *e);
/* Leaves delta pending, behind a norm of it when there is one. */
MUST_USE enum err_code decoder_leave_delta(struct decoder_pass *f, const float *post_norm,
                                           struct err *e);
/* out[n, rows] = x * W^T + bias for act rows of k elements. */
struct linear_args decoder_product(const struct decoder_pass *f, const void *x, int64_t k,
                                   const struct decoder_linear *l, float *out);
MUST_USE enum err_code decoder_linear(const struct decoder_pass *f, const void *x, int64_t k,
                                      const struct decoder_linear *l, float *out, struct err *e);

#endif
