/* hparams_gemma.c: norms, scales, softcaps and, in Gemma 4, the two sizes of heads, experts, inputs
 * of each layer, and layers that share keys and values.
 *
 * Rope and windows are read with those of the other families (hparams.c).
 */
#include "ckpt/hparams_gemma.h"

#include <math.h>
#include <stdio.h>

#include "ckpt/dtype.h"

#define HEAD_MAX    4096
#define EXPERTS_MAX 4096

/* The root of d_model is rounded as the published weights are, whatever this file's are stored in:
 * so packed weights and their expansion have one embedding (docs/families.md). */
static float embedding_scale(int64_t d_model)
{
    return bf16_to_f32(bf16_from_f32((float)sqrt((double)d_model)));
}

/* A number that may be null; `missing` where the key is not there. */
static enum err_code get_softcap(const json_t *o, const char *key, double missing, float *out,
                                 struct err *e)
{
    double v = json_object_get(o, key) ? 0 : missing;
    enum err_code rc = json_get_double(o, key, JSON_OPTIONAL, 1e-6, 1e6, &v, e);
    *out = (float)v;
    return rc;
}

static enum err_code read_attn_scale(struct hparams *hp, const json_t *o, struct err *e)
{
    double scalar = 256;
    enum err_code rc =
        json_get_double(o, "query_pre_attn_scalar", JSON_OPTIONAL, 1e-6, 1e9, &scalar, e);
    hp->attn_scale = (float)(1 / sqrt(scalar));
    return rc;
}

/* true, or "all", would let tokens see later ones. */
static enum err_code check_causal(const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "use_bidirectional_attention");
    const char *text = json_string_value(v);
    if (!v || json_is_null(v) || json_is_false(v) || (text && strcmp(text, "vision") == 0))
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "key 'use_bidirectional_attention': found %s, expected causal attention of text",
                   text ? text : "another value");
}

static enum err_code read_common(struct hparams *hp, const json_t *o, double logit_softcap,
                                 struct err *e)
{
    hp->post_norms = true;
    hp->embed_scale = embedding_scale(hp->d_model);
    enum err_code rc =
        get_softcap(o, "final_logit_softcapping", logit_softcap, &hp->logit_softcap, e);
    return rc == ERR_OK ? check_causal(o, e) : rc;
}

enum err_code hparams_read_gemma2(struct hparams *hp, const json_t *o, struct err *e)
{
    hp->norm_plus_one = true;
    enum err_code rc = read_common(hp, o, 30, e);
    if (rc == ERR_OK)
        rc = get_softcap(o, "attn_logit_softcapping", 50, &hp->attn_softcap, e);
    return rc == ERR_OK ? read_attn_scale(hp, o, e) : rc;
}

enum err_code hparams_read_gemma3(struct hparams *hp, const json_t *o, struct err *e)
{
    float cap = 0;
    hp->norm_plus_one = true;
    enum err_code rc = read_common(hp, o, 0, e);
    if (rc == ERR_OK)
        rc = get_softcap(o, "attn_logit_softcapping", 0, &cap, e);
    /* transformers ignores the key here: what a file with it means is not known. */
    if (rc == ERR_OK && cap > 0)
        rc = err_set(e, ERR_INPUT, "key 'attn_logit_softcapping': found %g, expected null for %s",
                     (double)cap, hp->family);
    return rc == ERR_OK ? read_attn_scale(hp, o, e) : rc;
}

/* ---- Gemma 4 -----------------------------------------------------------------------------------
 */

static enum err_code get_heads(const json_t *o, const char *key, int *out, struct err *e)
{
    int64_t v = *out;
    enum err_code rc = json_get_int(o, key, JSON_OPTIONAL, 1, HEAD_MAX, &v, e);
    *out = (int)v;
    return rc;
}

/* The newer spelling: an object for each full layer, all of them alike. */
static enum err_code read_per_layer(struct hparams *hp, const json_t *all, struct err *e)
{
    bool first = true;
    for (int i = 0; i < hp->n_layer; i++) {
        char key[16];
        int head_dim = hp->head_dim, n_kv = hp->n_kv;
        snprintf(key, sizeof key, "%d", i);
        const json_t *one = json_object_get(all, key);
        if (hp->sliding[i] && one)
            return err_set(e, ERR_INPUT, "per_layer_config of layer %d, which slides", i);
        if (hp->sliding[i])
            continue;
        enum err_code rc = one ? get_heads(one, "head_dim", &head_dim, e) : ERR_OK;
        if (rc == ERR_OK && one)
            rc = get_heads(one, "num_key_value_heads", &n_kv, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "per_layer_config of layer %d", i);
        if (!first && (head_dim != hp->head_dim_full || n_kv != hp->n_kv_full))
            return err_set(
                e, ERR_INPUT,
                "per_layer_config: layer %d has %d KV heads of %d, the full layer before "
                "it %d of %d",
                i, n_kv, head_dim, hp->n_kv_full, hp->head_dim_full);
        first = false;
        hp->head_dim_full = head_dim;
        hp->n_kv_full = n_kv;
    }
    return ERR_OK;
}

static enum err_code read_full_heads(struct hparams *hp, const json_t *o, struct err *e)
{
    json_t *per_layer = NULL;
    enum err_code rc = json_get_object(o, "per_layer_config", JSON_OPTIONAL, &per_layer, e);
    hp->head_dim_full = 512;
    hp->n_kv_full = hp->n_kv;
    if (rc == ERR_OK && per_layer) {
        rc = read_per_layer(hp, per_layer, e);
    } else if (rc == ERR_OK) {
        rc = get_heads(o, "global_head_dim", &hp->head_dim_full, e);
        if (rc == ERR_OK && hp->k_eq_v)
            rc = get_heads(o, "num_global_key_value_heads", &hp->n_kv_full, e);
    }
    if (rc == ERR_OK && (hp->head_dim_full % 2 || hp->n_head % hp->n_kv_full))
        rc = err_set(e, ERR_INPUT,
                     "full layers have %d KV heads of %d dims, expected a divisor of %d heads and "
                     "an even number",
                     hp->n_kv_full, hp->head_dim_full, hp->n_head);
    return rc;
}

/* Inputs of each layer: a missing key means 256, but gemma4_unified has no such keys. */
static enum err_code read_inputs(struct hparams *hp, const json_t *o, struct err *e)
{
    const bool unified = strcmp(hp->family, "gemma4_unified_text") == 0;
    hp->d_input = unified ? 0 : 256;
    hp->n_vocab_input = 262144;
    enum err_code rc =
        json_get_int(o, "hidden_size_per_layer_input", JSON_OPTIONAL, 0, 1 << 20, &hp->d_input, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "vocab_size_per_layer_input", JSON_OPTIONAL, 0, 1 << 24,
                          &hp->n_vocab_input, e);
    if (rc == ERR_OK && hp->d_input && hp->n_vocab_input < hp->n_vocab)
        rc = err_set(e, ERR_INPUT,
                     "vocab_size_per_layer_input is %lld, expected at least vocab_size %lld",
                     (long long)hp->n_vocab_input, (long long)hp->n_vocab);
    if (rc == ERR_OK && unified && hp->d_input)
        rc = err_set(e, ERR_INPUT, "hidden_size_per_layer_input is %lld, expected 0 for %s",
                     (long long)hp->d_input, hp->family);
    hp->n_vocab_input = hp->d_input ? hp->n_vocab_input : 0;
    hp->input_scale = hp->d_input ? embedding_scale(hp->d_input) : 0;
    return rc;
}

/* Every kind of layer that shares needs one that does not. */
static enum err_code check_sources(const struct hparams *hp, struct err *e)
{
    bool has[2] = {false, false};
    for (int i = 0; i < hp->n_layer; i++) {
        has[hp->sliding[i]] |= hparams_has_kv(hp, i);
        if (!has[hp->sliding[i]])
            return err_set(e, ERR_INPUT,
                           "num_kv_shared_layers is %d: layer %d has no %s layer before it that "
                           "makes keys and values",
                           hp->n_kv_shared, i,
                           hp->sliding[i] ? "sliding_attention" : "full_attention");
    }
    return ERR_OK;
}

static enum err_code read_shared(struct hparams *hp, const json_t *o, struct err *e)
{
    int64_t shared = 0;
    bool wide = false;
    enum err_code rc =
        json_get_int(o, "num_kv_shared_layers", JSON_OPTIONAL, 0, hp->n_layer - 1, &shared, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "use_double_wide_mlp", JSON_OPTIONAL, &wide, e);
    if (rc != ERR_OK)
        return rc;
    hp->n_kv_shared = (int)shared;
    hp->d_ff_shared = wide && shared ? 2 * hp->d_ff : 0;
    return check_sources(hp, e);
}

static enum err_code read_experts(struct hparams *hp, const json_t *o, struct err *e)
{
    bool moe = false;
    int64_t n = 0, used = 0;
    enum err_code rc = json_get_bool(o, "enable_moe_block", JSON_OPTIONAL, &moe, e);
    if (rc != ERR_OK || !moe)
        return rc;
    if (strcmp(hp->family, "gemma4_unified_text") == 0)
        return err_set(e, ERR_INPUT, "key 'enable_moe_block' is true, expected false for %s",
                       hp->family);
    rc = json_get_int(o, "num_experts", JSON_REQUIRED, 1, EXPERTS_MAX, &n, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "top_k_experts", JSON_REQUIRED, 1, n, &used, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "moe_intermediate_size", JSON_REQUIRED, 1, 1 << 24, &hp->d_ff_expert,
                          e);
    hp->n_expert = (int)n;
    hp->n_expert_used = (int)used;
    hp->softmax_all = hp->norm_topk = hp->mlp_beside = true;
    for (int i = 0; i < hp->n_layer; i++)
        hp->sparse[i] = true;
    return rc;
}

/* A key of Gemma 3n: parts of the gate would be cut off. */
static enum err_code check_dense_gate(const json_t *o, struct err *e)
{
    const json_t *v = json_object_get(o, "activation_sparsity_pattern");
    if (!v || json_is_null(v))
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "key 'activation_sparsity_pattern': sparse activations are not of Gemma 4");
}

enum err_code hparams_read_gemma4(struct hparams *hp, const json_t *o, struct err *e)
{
    hp->attn_scale = 1;
    hp->v_norm = hp->layer_scalar = true;
    hp->sliding[hp->n_layer - 1] = false;
    enum err_code rc = read_common(hp, o, 0, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "attention_k_eq_v", JSON_OPTIONAL, &hp->k_eq_v, e);
    if (rc == ERR_OK)
        rc = check_dense_gate(o, e);
    if (rc == ERR_OK)
        rc = read_inputs(hp, o, e);
    if (rc == ERR_OK)
        rc = read_shared(hp, o, e);
    if (rc == ERR_OK)
        rc = read_experts(hp, o, e);
    return rc == ERR_OK ? read_full_heads(hp, o, e) : rc;
}
