/* hparams_gemma.c: norms, scales, softcaps and, in Gemma 4, the two sizes of heads.
 *
 * Rope and windows are read with those of the other families (hparams.c).
 */
#include "ckpt/hparams_gemma.h"

#include <math.h>
#include <stdio.h>

#include "ckpt/dtype.h"

#define HEAD_MAX 4096

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

/* Parts that are not run. gemma4_unified has no such keys. */
static enum err_code check_plain(const struct hparams *hp, const json_t *o, struct err *e)
{
    bool unified = strcmp(hp->family, "gemma4_unified_text") == 0, moe = false, wide = false;
    int64_t per_layer = unified ? 0 : 256, shared = 0;
    enum err_code rc =
        json_get_int(o, "hidden_size_per_layer_input", JSON_OPTIONAL, 0, 1 << 20, &per_layer, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "num_kv_shared_layers", JSON_OPTIONAL, 0, 1 << 20, &shared, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "enable_moe_block", JSON_OPTIONAL, &moe, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "use_double_wide_mlp", JSON_OPTIONAL, &wide, e);
    if (rc == ERR_OK && per_layer > 0)
        rc = err_set(e, ERR_INPUT,
                     "hidden_size_per_layer_input is %lld, expected 0: inputs of "
                     "each layer are not supported",
                     (long long)per_layer);
    if (rc == ERR_OK && shared > 0)
        rc = err_set(e, ERR_INPUT,
                     "num_kv_shared_layers is %lld, expected 0: layers that share "
                     "keys and values are not supported",
                     (long long)shared);
    if (rc == ERR_OK && (moe || wide))
        rc = err_set(e, ERR_INPUT, "key '%s' is true, expected false: not supported",
                     moe ? "enable_moe_block" : "use_double_wide_mlp");
    return rc;
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
        rc = check_plain(hp, o, e);
    return rc == ERR_OK ? read_full_heads(hp, o, e) : rc;
}
