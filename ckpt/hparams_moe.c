/* hparams_moe.c: the keys of models with experts: how many, how many run, which layers have them,
 * and how a router's logits become weights.
 */
#include "ckpt/hparams_moe.h"

#define EXPERTS_MAX 4096
#define FF_MAX      ((int64_t)1 << 24)

/* Two spellings: the second is what transformers 5 writes for every family. */
static enum err_code read_counts(struct hparams *hp, const json_t *o, int n_default,
                                 int used_default, struct err *e)
{
    int64_t n = n_default, used = used_default;
    const char *key = json_object_get(o, "num_experts") ? "num_experts" : "num_local_experts";
    enum err_code rc = json_get_int(o, key, JSON_OPTIONAL, 0, EXPERTS_MAX, &n, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "num_experts_per_tok", JSON_OPTIONAL, 1, EXPERTS_MAX, &used, e);
    if (rc == ERR_OK && n > 0 && used > n)
        rc = err_set(e, ERR_INPUT, "num_experts_per_tok %lld of %s %lld: too few experts",
                     (long long)used, key, (long long)n);
    hp->n_expert = (int)n;
    hp->n_expert_used = n > 0 ? (int)used : 0;
    return rc;
}

enum err_code hparams_read_mixtral(struct hparams *hp, const json_t *o, struct err *e)
{
    enum err_code rc = read_counts(hp, o, 8, 2, e);
    if (rc == ERR_OK && hp->n_expert == 0)
        rc = err_set(e, ERR_INPUT, "no experts, expected at least one");
    hp->d_ff_expert = hp->d_ff;
    for (int i = 0; i < hp->n_layer; i++)
        hp->sparse[i] = true;
    return rc;
}

/* Layers named in mlp_only_layers are dense. */
static enum err_code read_dense_layers(struct hparams *hp, const json_t *o, struct err *e)
{
    json_t *list = NULL;
    enum err_code rc = json_get_array(o, "mlp_only_layers", JSON_OPTIONAL, &list, e);
    for (size_t i = 0; rc == ERR_OK && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= INT32_MAX)
            rc = err_set(e, ERR_INPUT, "key 'mlp_only_layers': entry %zu is no layer number", i);
        else if (layer < hp->n_layer) /* others name no layer: HF ignores them */
            hp->sparse[layer] = false;
    }
    return rc;
}

enum err_code hparams_read_qwen3_moe(struct hparams *hp, const json_t *o, struct err *e)
{
    int64_t step = 1;
    hp->d_ff_expert = 768;
    hp->softmax_all = true;
    enum err_code rc = read_counts(hp, o, 128, 8, e);
    if (rc == ERR_OK)
        rc =
            json_get_int(o, "moe_intermediate_size", JSON_OPTIONAL, 1, FF_MAX, &hp->d_ff_expert, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "norm_topk_prob", JSON_OPTIONAL, &hp->norm_topk, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "decoder_sparse_step", JSON_OPTIONAL, 1, INT32_MAX, &step, e);
    for (int i = 0; i < hp->n_layer; i++)
        hp->sparse[i] = hp->n_expert > 0 && (i + 1) % step == 0;
    return rc == ERR_OK ? read_dense_layers(hp, o, e) : rc;
}

enum err_code hparams_read_gpt_oss(struct hparams *hp, const json_t *o, struct err *e)
{
    double limit = 7, alpha = 1.702;
    enum err_code rc = read_counts(hp, o, 128, 4, e);
    if (rc == ERR_OK && hp->n_expert == 0)
        rc = err_set(e, ERR_INPUT, "no experts, expected at least one");
    if (rc == ERR_OK)
        rc = json_get_double(o, "swiglu_limit", JSON_OPTIONAL, 1e-6, 1e6, &limit, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "swiglu_alpha", JSON_OPTIONAL, 1e-6, 1e6, &alpha, e);
    hp->d_ff_expert = hp->d_ff;
    hp->act = ACT_GPTOSS;
    hp->act_limit = (float)limit;
    hp->act_alpha = (float)alpha;
    hp->sinks = hp->router_bias = hp->expert_bias = true;
    for (int i = 0; i < hp->n_layer; i++)
        hp->sparse[i] = true;
    return rc;
}
