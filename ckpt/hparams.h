/* hparams.h: the hyperparameters of a model, from config.json or GGUF keys, in one struct.
 *
 * Names follow the dims used in code and docs. All numbers are checked: positive, bounded, heads
 * divide, products fit. What a family does not have is 0 or the neutral value.
 */
#ifndef ASSAY_CKPT_HPARAMS_H
#define ASSAY_CKPT_HPARAMS_H

#include "common/err.h"
#include "common/json.h"

#define HP_LAYERS_MAX 512
#define HP_EOS_MAX    16

enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_FACTORS,
    ROPE_PROPORTIONAL
};
enum act_kind { ACT_SILU, ACT_GELU_TANH, ACT_GPTOSS };

struct rope_params {
    enum rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor, original_ctx; /* llama3, yarn */
    double beta_fast, beta_slow, attention_factor;          /* yarn */
    bool truncate;
    int partial_dims;  /* rotated dims of a head; 0: all */
    int turning_pairs; /* ROPE_PROPORTIONAL: the first pairs of a head, the others stand still */
    /* ROPE_FACTORS: GGUF's rope_freqs tensor, the divisor of each frequency; NULL otherwise. */
    const float *factors; /* head_dim / 2, owned by the checkpoint */
};

struct hparams {
    char family[32]; /* "llama", "mistral", "qwen3": config.json's model_type */
    bool wrapped;    /* the text model of several parts: its keys stand under text_config */
    int n_layer, n_head, n_kv, head_dim;
    int64_t d_model, d_ff, n_vocab, ctx_max;
    double rms_eps;
    bool tied;                        /* head is the embedding */
    bool attn_bias, o_bias, mlp_bias; /* on q, k and v; on o; on gate, up and down */
    bool qk_norm;                     /* heads of q and k are normed before rope */
    bool post_norms;                  /* attention and MLP have a norm behind them, too */
    bool norm_plus_one;               /* norms multiply by 1 + w */
    /* Gemma 4. Full layers have heads of another size; k_eq_v: they have no v of their own, v is
     * what k is before its norm. v_norm: heads of v are normed without a weight. layer_scalar:
     * each layer ends with a multiplication. */
    int head_dim_full, n_kv_full; /* 0: as in sliding layers */
    bool k_eq_v, v_norm, layer_scalar;
    enum act_kind act;
    struct rope_params rope; /* of all layers, or of full ones only: */
    bool two_ropes;          /* sliding layers turn by rope_sliding */
    struct rope_params rope_sliding;
    int window;                  /* sliding window; 0: none */
    bool sliding[HP_LAYERS_MAX]; /* layers that use it */
    int n_expert, n_expert_used; /* 0: dense */
    int64_t d_ff_expert;
    bool sparse[HP_LAYERS_MAX]; /* layers that have experts */
    /* Gemma 4 with experts: they stand beside the dense MLP, not in its place, and the router reads
     * a norm of its own, and scales the weight of each expert. */
    bool mlp_beside;
    /* Gemma 4 E. The last n_kv_shared layers look at the keys and values of an earlier layer, and
     * have an MLP of d_ff_shared (0: d_ff). Each layer takes up an input of d_input (0: none), made
     * of the token's row in a table of n_vocab_input and of its embedding. */
    int n_kv_shared;
    int64_t d_ff_shared, d_input, n_vocab_input;
    float input_scale; /* multiplies the rows of that table */
    bool sinks;        /* heads have a logit without a key */
    bool router_bias, expert_bias;
    float act_limit, act_alpha; /* ACT_GPTOSS */
    bool softmax_all;           /* router: softmax over all experts, else over the chosen ones */
    bool norm_topk;             /* and then made to sum to 1 */
    float attn_softcap, logit_softcap; /* 0: none */
    float embed_scale, attn_scale;     /* 1 and head_dim^-0.5 unless the family says so */
    int64_t eos[HP_EOS_MAX];           /* config.json united with generation_config.json */
    int n_eos;
    int64_t bos; /* -1: none */
};

/* Heads of a layer that slides or not. */
static inline int hparams_head_dim(const struct hparams *hp, bool sliding)
{
    return hp->head_dim_full && !sliding ? hp->head_dim_full : hp->head_dim;
}
static inline int hparams_n_kv(const struct hparams *hp, bool sliding)
{
    return hp->n_kv_full && !sliding ? hp->n_kv_full : hp->n_kv;
}
/* Of a layer: does it make keys and values, and by a projection of v? */
static inline bool hparams_has_kv(const struct hparams *hp, int layer)
{
    return layer < hp->n_layer - hp->n_kv_shared;
}
static inline bool hparams_has_v(const struct hparams *hp, int layer)
{
    return hparams_has_kv(hp, layer) && (hp->sliding[layer] || !hp->k_eq_v);
}
/* The layer whose keys and values it looks at: itself, or the last one of its kind that makes some.
 */
static inline int hparams_kv_layer(const struct hparams *hp, int layer)
{
    int of = layer;
    while (!hparams_has_kv(hp, of) || hp->sliding[of] != hp->sliding[layer])
        of--;
    return of;
}
/* Does what follows a layer hang on its state alone? Not where later layers look at pages or inputs
 * that were made before it. */
static inline bool hparams_layers_apart(const struct hparams *hp)
{
    return hp->n_kv_shared == 0 && hp->d_input == 0;
}
static inline int64_t hparams_d_ff(const struct hparams *hp, int layer)
{
    return hp->d_ff_shared && !hparams_has_kv(hp, layer) ? hp->d_ff_shared : hp->d_ff;
}

/* What turns a layer that slides or not. */
static inline const struct rope_params *hparams_rope(const struct hparams *hp, bool sliding)
{
    return hp->two_ropes && sliding ? &hp->rope_sliding : &hp->rope;
}

/* From a config.json object (text_config inside is followed). generation may be NULL. */
MUST_USE enum err_code hparams_from_config(struct hparams *hp, const json_t *config,
                                           const json_t *generation, struct err *e);
#endif
