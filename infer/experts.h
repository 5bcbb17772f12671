/* experts.h: the sparse part of a decoder layer: a router, and the MLPs of the experts that it
 * chose.
 *
 *     h += sum over the chosen of weight * down(f(gate) * up)  of norm(h)
 *
 * Takes the place of the dense MLP of infer/decoder.h. How logits become weights is a fact of the
 * hyperparameters (softmax_all, norm_topk). Each (token, slot) has rows of its own in every buffer,
 * so a token's result depends on that token alone, whoever shares its experts.
 */
#ifndef ASSAY_INFER_EXPERTS_H
#define ASSAY_INFER_EXPERTS_H

#include "infer/decoder.h"

/* One layer's. gate, up and down stack the matrices of all experts. */
struct experts {
    float *norm;
    float *router_norm;  /* what the router reads; NULL: what the experts read */
    float *router_scale; /* [n_expert] of the weights; NULL: none */
    struct kern_weight *router, *gate, *up, *down;
    /* [n_expert]; [n_expert, rows]; NULL where the family has none. */
    float *router_bias, *gate_bias, *up_bias, *down_bias;
};

/* Offsets in the scratch block, from where the dense MLP's would begin. */
struct experts_room {
    size_t logits, router_x, x; /* the inputs with a router_norm alone */
    size_t expert, weight, order, first, gate_up, act, y;
};

/* "model.layers.<layer>.<norm>.weight", "model.layers.<layer>.<block><router>.weight" and
 * "....experts.{gate,up,down}_proj.weight", and their biases where the hyperparameters say so. A
 * block ends with a point, or is empty. */
struct experts_names {
    const char *norm, *block, *router;
};
void experts_bind(struct model_binder *b, const struct hparams *hp, struct experts *x, int layer,
                  const struct experts_names *names);
void experts_plan(const struct hparams *hp, const struct model_dims *d, struct experts_room *r,
                  size_t *used);
void experts_limits(const struct hparams *hp, struct kern_limits *l);
/* Before experts_plan: logits, and with a router_norm (apart) the inputs. They must live through a
 * dense MLP beside. */
void experts_plan_inputs(const struct hparams *hp, const struct model_dims *d, bool apart,
                         struct experts_room *r, size_t *used);
/* Of a layer whose router has a norm of its own: the next norm of h makes those of experts_run, and
 * the logits. */
void experts_want_norms(struct decoder_pass *f, const struct experts *x,
                        const struct experts_room *r);
/* out: f32 [n, d_model], the sum over the chosen; without a tap it is only made with what is
 * pending, and the caller says what becomes of it. */
MUST_USE enum err_code experts_run(struct decoder_pass *f, const struct experts *x,
                                   const struct experts_room *r, int layer, float *out,
                                   struct err *e);

#endif
