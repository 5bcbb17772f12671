/* gguf_config.c: writes the keys of a GGUF in HF's spelling.
 *
 * What is no key is read off the tensors: vocabulary size, tied head, biases. Numbers that a GGUF
 * keeps in f32 are written with the fewest digits that give that f32 back, so 1e-05 stays 1e-05.
 * Llama 3.x rope has no keys, only a tensor of divisors. Where the published parameters give that
 * very tensor they are written, since every loader knows them; otherwise the divisors are kept as
 * rope type "factors".
 */
#include "ckpt/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/gguf.h"
#include "ckpt/gguf_keys.h"
#include "ckpt/names.h"
#include "common/str.h"

#define FACTORS_MAX 4096
#define LIST_MAX    4096

static double shortest_f32(double v)
{
    char text[40];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back;
        if (str_to_double(text, &back) && (float)back == (float)v)
            return back;
    }
    return v;
}

/* Keys below "<arch>." with their HF names. */
struct row {
    const char *gguf, *hf;
    bool real;
};

static const struct row rows[] = {
    {"embedding_length", "hidden_size", false},
    {"block_count", "num_hidden_layers", false},
    {"feed_forward_length", "intermediate_size", false},
    {"attention.head_count", "num_attention_heads", false},
    {"attention.head_count_kv", "num_key_value_heads", false},
    {"attention.key_length", "head_dim", false},
    {"context_length", "max_position_embeddings", false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true},
    {"rope.freq_base", "rope_theta", true},
    {"attention.sliding_window", "sliding_window", false},
    {"expert_count", "num_local_experts", false},
    {"expert_used_count", "num_experts_per_tok", false},
    {"expert_feed_forward_length", "moe_intermediate_size", false},
    {"final_logit_softcapping", "final_logit_softcapping", true},
    {"attn_logit_softcapping", "attn_logit_softcapping", true},
    {"rope.freq_base_swa", "rope_local_base_freq", true},
    {"attention.key_length_swa", "head_dim_swa", false},
    {"attention.shared_kv_layers", "num_kv_shared_layers", false},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", false},
};

static enum err_code put_key(json_t *o, const char *key, json_t *v, struct err *e)
{
    if (!v || json_object_set_new(o, key, v))
        return err_set(e, ERR_NOMEM, "out of memory");
    return ERR_OK;
}

static const struct tensor *find_tensor(struct container *const *files, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = container_find(files[i], name);
        if (t)
            return t;
    }
    return NULL;
}

/* One value per layer. */
static enum err_code put_list(json_t *o, const struct gguf_pair *p, const char *key,
                              const struct row *r, struct err *e)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (uint64_t i = 0; ok && i < p->n; i++) {
        double d = 0;
        int64_t whole = 0;
        if (p->n > LIST_MAX || !gguf_number(p, i, &d, &whole)) {
            json_decref(list);
            return err_set(e, ERR_INPUT, "key '%s': found %llu of %s, expected at most %d numbers",
                           key, (unsigned long long)p->n, gguf_type_name(p->elem), LIST_MAX);
        }
        ok = json_array_append_new(list, r->real ? json_real(d) : json_integer(whole)) == 0;
    }
    if (!ok) {
        json_decref(list);
        list = NULL;
    }
    return put_key(o, r->hf, list, e);
}

static enum err_code put_row(json_t *o, const struct gguf_meta *m, const char *arch,
                             const struct row *r, struct err *e)
{
    char key[128];
    double d = 0;
    int64_t v = 0;
    snprintf(key, sizeof key, "%.60s.%s", arch, r->gguf);
    const struct gguf_pair *p = gguf_find(m, key);
    if (!p)
        return ERR_OK;
    if (p->type == GGUF_ARRAY)
        return put_list(o, p, key, r, e);
    if (r->real) {
        enum err_code rc = gguf_get_double(m, key, GGUF_REQUIRED, &d, e);
        return rc != ERR_OK ? rc : put_key(o, r->hf, json_real(shortest_f32(d)), e);
    }
    enum err_code rc = gguf_get_int(m, key, GGUF_REQUIRED, 0, INT32_MAX, &v, e);
    return rc != ERR_OK ? rc : put_key(o, r->hf, json_integer(v), e);
}

/* What may be left out: as many heads of keys and values as of queries, sharing the width. The
 * defaults of HF's classes are those of one model. */
static enum err_code put_heads(json_t *o, struct err *e)
{
    const json_t *heads = json_object_get(o, "num_attention_heads");
    const int64_t n = json_integer_value(heads);
    const int64_t d = json_integer_value(json_object_get(o, "hidden_size"));
    enum err_code rc = ERR_OK;
    if (!json_object_get(o, "num_key_value_heads"))
        rc = put_key(o, "num_key_value_heads", json_deep_copy(heads), e);
    if (rc == ERR_OK && !json_object_get(o, "head_dim") && n > 0)
        rc = put_key(o, "head_dim", json_integer(d / n), e);
    return rc;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* The divisor that the converter writes for pair i. */
static float llama3_factor(double theta, int64_t i, int64_t head_dim, double factor)
{
    const double pi = 3.14159265358979323846, old = 8192, low = 1, high = 4;
    double wave = 2 * pi * pow(theta, 2 * (double)i / (double)head_dim);
    if (wave < old / high)
        return 1;
    if (wave > old / low)
        return (float)factor;
    double t = (old / wave - low) / (high - low);
    return (float)(1 / ((1 - t) / factor + t));
}

/* The converter computes in f32 or in double by version, hence the last places. */
static bool is_llama3(const float *f, int64_t n, double theta)
{
    double factor = (double)f[n - 1];
    bool between = false;
    for (int64_t i = 0; i < n; i++) {
        float want = llama3_factor(theta, i, 2 * n, factor);
        if (fabsf(f[i] - want) > 4e-6f * want)
            return false;
        between |= f[i] > 1 && f[i] < f[n - 1];
    }
    return between && factor > 1;
}

static enum err_code put_factors(json_t *o, const struct tensor *t, struct err *e)
{
    float *values;
    int64_t n = tensor_elems(t);
    double theta = 10000;
    if (t->dtype != DT_F32 || n < 1 || n > FACTORS_MAX)
        return err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight': %lld values of %s, expected F32",
                       (long long)n, dtype_name(t->dtype));
    values = malloc((size_t)n * sizeof *values);
    json_t *scaling = json_object();
    if (!values || !scaling) {
        free(values);
        json_decref(scaling);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    memcpy(values, t->data, (size_t)n * sizeof *values);
    const json_t *base = json_object_get(o, "rope_theta");
    if (base)
        theta = json_number_value(base);
    enum err_code rc;
    if (is_llama3(values, n, theta)) {
        rc = put_key(scaling, "rope_type", json_string("llama3"), e);
        if (rc == ERR_OK)
            rc = put_key(scaling, "factor", json_real(shortest_f32((double)values[n - 1])), e);
        if (rc == ERR_OK)
            rc = put_key(scaling, "low_freq_factor", json_real(1), e);
        if (rc == ERR_OK)
            rc = put_key(scaling, "high_freq_factor", json_real(4), e);
        if (rc == ERR_OK)
            rc = put_key(scaling, "original_max_position_embeddings", json_integer(8192), e);
    } else {
        json_t *list = json_array();
        rc = put_key(scaling, "rope_type", json_string("factors"), e);
        for (int64_t i = 0; rc == ERR_OK && list && i < n; i++) {
            if (!(values[i] > 0) || !isfinite(values[i]))
                rc = err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight': value %lld is %g",
                             (long long)i, (double)values[i]);
            else if (json_array_append_new(list, json_real((double)values[i])))
                rc = err_set(e, ERR_NOMEM, "out of memory");
        }
        if (rc == ERR_OK)
            rc = put_key(scaling, "factors", json_incref(list), e);
        json_decref(list);
    }
    free(values);
    if (rc != ERR_OK) {
        json_decref(scaling);
        return rc;
    }
    return put_key(o, "rope_scaling", scaling, e);
}

static enum err_code put_scaling(json_t *o, const struct gguf_meta *m, const char *arch,
                                 struct err *e)
{
    static const struct row keys[] = {
        {"factor", "factor", true},
        {"original_context_length", "original_max_position_embeddings", false},
        {"yarn_beta_fast", "beta_fast", true},
        {"yarn_beta_slow", "beta_slow", true},
    };
    char key[128], prefix[96];
    struct gguf_text type = {NULL, 0};
    snprintf(key, sizeof key, "%.60s.rope.scaling.type", arch);
    snprintf(prefix, sizeof prefix, "%.60s.rope.scaling", arch);
    enum err_code rc = gguf_get_text(m, key, GGUF_OPTIONAL, &type, e);
    if (rc != ERR_OK || !type.text || (type.len == 4 && memcmp(type.text, "none", 4) == 0))
        return rc;
    if (str_utf8_valid(type.text, type.len) != type.len)
        return err_set(e, ERR_INPUT, "key '%s': not well-formed UTF-8", key);
    json_t *scaling = json_object();
    if (!scaling)
        return err_set(e, ERR_NOMEM, "out of memory");
    rc = put_key(scaling, "rope_type", json_stringn(type.text, type.len), e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(keys); i++)
        rc = put_row(scaling, m, prefix, &keys[i], e);
    /* No key says it: what the published gpt-oss has. */
    if (rc == ERR_OK && strcmp(arch, "gpt-oss") == 0)
        rc = put_key(scaling, "truncate", json_false(), e);
    if (rc != ERR_OK) {
        json_decref(scaling);
        return rc;
    }
    return put_key(o, "rope_scaling", scaling, e);
}

static enum err_code put_rope(json_t *o, struct container *const *files, size_t n, const char *arch,
                              struct err *e)
{
    const struct tensor *t = find_tensor(files, n, "rope_freqs.weight");
    char key[128];
    int64_t dims = 0, head_dim = 0;
    enum err_code rc = t ? put_factors(o, t, e) : put_scaling(o, files[0]->gguf, arch, e);
    snprintf(key, sizeof key, "%.60s.rope.dimension_count", arch);
    if (rc == ERR_OK)
        rc = gguf_get_int(files[0]->gguf, key, GGUF_OPTIONAL, 2, 1 << 20, &dims, e);
    if (rc != ERR_OK || dims == 0)
        return rc;
    const json_t *heads = json_object_get(o, "num_attention_heads");
    head_dim = json_integer_value(json_object_get(o, "head_dim"));
    if (head_dim == 0 && json_integer_value(heads) > 0)
        head_dim =
            json_integer_value(json_object_get(o, "hidden_size")) / json_integer_value(heads);
    if (dims < head_dim)
        rc = put_key(o, "partial_rotary_factor", json_real((double)dims / (double)head_dim), e);
    return rc;
}

/* ---- tokens, family, and the rest ---------------------------------------------------------------
 */

static enum err_code put_tokens(json_t *o, const struct gguf_meta *m, struct err *e)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id = -1;
    enum err_code rc =
        gguf_get_int(m, "tokenizer.ggml.bos_token_id", GGUF_OPTIONAL, 0, INT32_MAX, &id, e);
    if (rc == ERR_OK && id >= 0)
        rc = put_key(o, "bos_token_id", json_integer(id), e);
    json_t *list = json_array();
    if (!list)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(ends); i++) {
        id = -1;
        rc = gguf_get_int(m, ends[i], GGUF_OPTIONAL, 0, INT32_MAX, &id, e);
        bool seen = id < 0;
        for (size_t j = 0; j < json_array_size(list); j++)
            seen |= json_integer_value(json_array_get(list, j)) == id;
        if (rc == ERR_OK && !seen && json_array_append_new(list, json_integer(id)))
            rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc == ERR_OK && json_array_size(list) == 1)
        rc = put_key(o, "eos_token_id", json_incref(json_array_get(list, 0)), e);
    else if (rc == ERR_OK && json_array_size(list) > 1)
        rc = put_key(o, "eos_token_id", json_incref(list), e);
    json_decref(list);
    return rc;
}

static enum err_code put_family(json_t *o, const char *family, struct err *e)
{
    static const struct {
        const char *family, *class;
    } classes[] = {{"llama", "LlamaForCausalLM"},        {"mixtral", "MixtralForCausalLM"},
                   {"qwen2", "Qwen2ForCausalLM"},        {"qwen3", "Qwen3ForCausalLM"},
                   {"qwen3_moe", "Qwen3MoeForCausalLM"}, {"gemma2", "Gemma2ForCausalLM"},
                   {"gemma3_text", "Gemma3ForCausalLM"}, {"gpt_oss", "GptOssForCausalLM"},
                   {"gemma4_text", "Gemma4ForCausalLM"}};
    enum err_code rc = put_key(o, "model_type", json_string(family), e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(classes); i++) {
        if (strcmp(classes[i].family, family) == 0)
            rc = put_key(o, "architectures", json_pack("[s]", classes[i].class), e);
    }
    const char *act = str_starts(family, "gemma") ? "hidden_activation" : "hidden_act";
    if (rc == ERR_OK)
        rc = put_key(o, act,
                     json_string(str_starts(family, "gemma") ? "gelu_pytorch_tanh" : "silu"), e);
    return rc;
}

/* ---- Gemma -------------------------------------------------------------------------------------
 */

/* Which layers slide: a period, or a bool for each layer. */
static enum err_code put_layer_types(json_t *o, const struct gguf_meta *m, const char *arch,
                                     struct err *e)
{
    char key[128];
    int64_t layers = json_integer_value(json_object_get(o, "num_hidden_layers")), period = 0;
    snprintf(key, sizeof key, "%.60s.attention.sliding_window_pattern", arch);
    const struct gguf_pair *p = gguf_find(m, key);
    if (!p || layers < 1 || layers > LIST_MAX)
        return ERR_OK;
    bool list = p->type == GGUF_ARRAY;
    enum err_code rc = list ? ERR_OK : gguf_get_int(m, key, GGUF_REQUIRED, 1, LIST_MAX, &period, e);
    if (rc == ERR_OK && list && (p->elem != GGUF_BOOL || p->n != (uint64_t)layers))
        rc = err_set(e, ERR_INPUT, "key '%s': found %llu of %s, expected %lld of bool", key,
                     (unsigned long long)p->n, gguf_type_name(p->elem), (long long)layers);
    if (rc != ERR_OK)
        return rc;
    json_t *types = json_array();
    for (int64_t i = 0; types && i < layers; i++) {
        bool slides = list ? p->data[i] != 0 : (i + 1) % period != 0;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    return put_key(o, "layer_types", types, e);
}

/* No key says query_pre_attn_scalar: it is the head's size but for the 27B models, which loaders
 * know by their number of layers. */
static enum err_code put_gemma(json_t *o, const struct gguf_meta *m, const char *arch,
                               struct err *e)
{
    char key[128];
    const int64_t layers = json_integer_value(json_object_get(o, "num_hidden_layers"));
    const int64_t heads = json_integer_value(json_object_get(o, "num_attention_heads"));
    const int64_t d = json_integer_value(json_object_get(o, "hidden_size"));
    double scalar = (double)json_integer_value(json_object_get(o, "head_dim")), scale = 0;
    if (layers == (strcmp(arch, "gemma2") == 0 ? 46 : 62) && heads > 0)
        scalar = (double)(d / heads);
    snprintf(key, sizeof key, "%.60s.attention.scale", arch);
    enum err_code rc = gguf_get_double(m, key, GGUF_OPTIONAL, &scale, e);
    if (rc == ERR_OK && scale > 0)
        scalar = 1 / (scale * scale);
    if (rc == ERR_OK && scalar > 0)
        rc = put_key(o, "query_pre_attn_scalar", json_real(scalar), e);
    return rc == ERR_OK ? put_layer_types(o, m, arch, e) : rc;
}

/* The first layer that does not slide; -1: none. */
static int64_t full_layer(const json_t *o)
{
    const json_t *types = json_object_get(o, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "full_attention") == 0)
            return (int64_t)i;
    }
    return -1;
}

/* Numbers of KV heads: one for all, or a list by layer. */
static enum err_code put_gemma4_heads(json_t *o, struct err *e)
{
    const json_t *kv = json_incref(json_object_get(o, "num_key_value_heads"));
    enum err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < json_array_size(kv); i++) {
        const char *type = json_string_value(json_array_get(json_object_get(o, "layer_types"), i));
        bool slides = type && strcmp(type, "sliding_attention") == 0;
        const char *key = slides ? "num_key_value_heads" : "num_global_key_value_heads";
        json_t *n = json_array_get(kv, i);
        const json_t *said = json_object_get(o, key);
        if (json_is_integer(said) && !json_equal(said, n))
            rc = err_set(e, ERR_INPUT,
                         "key 'attention.head_count_kv': layer %zu has %lld, expected "
                         "%lld as in layers like it",
                         i, (long long)json_integer_value(n), (long long)json_integer_value(said));
        else
            rc = put_key(o, key, json_incref(n), e);
    }
    if (rc == ERR_OK && json_is_array(json_object_get(o, "num_key_value_heads")))
        rc = err_set(e, ERR_INPUT, "key 'attention.head_count_kv': a list without sliding layers");
    json_decref((json_t *)kv);
    return rc;
}

/* Both tables; of a full layer as many pairs turn as rope_freqs has divisors of one. */
static enum err_code put_gemma4_rope(json_t *o, const struct tensor *freqs, struct err *e)
{
    const int64_t pairs = json_integer_value(json_object_get(o, "global_head_dim")) / 2;
    int64_t turning = pairs;
    if (freqs) {
        if (freqs->dtype != DT_F32 || tensor_elems(freqs) != pairs)
            return err_set(
                e, ERR_INPUT, "tensor 'rope_freqs.weight': %lld values of %s, expected %lld of F32",
                (long long)tensor_elems(freqs), dtype_name(freqs->dtype), (long long)pairs);
        for (turning = 0; turning < pairs; turning++) {
            float v;
            memcpy(&v, freqs->data + 4 * turning, sizeof v);
            if (v != 1)
                break;
        }
    }
    const json_t *theta = json_object_get(o, "rope_theta");
    const json_t *local = json_object_get(o, "rope_local_base_freq");
    json_t *rope =
        json_pack("{s:{s:s,s:f,s:f},s:{s:s,s:f}}", "full_attention", "rope_type", "proportional",
                  "rope_theta", theta ? json_number_value(theta) : 1e6, "partial_rotary_factor",
                  pairs ? (double)turning / (double)pairs : 1.0, "sliding_attention", "rope_type",
                  "default", "rope_theta", local ? json_number_value(local) : 1e4);
    json_object_del(o, "rope_theta");
    json_object_del(o, "rope_local_base_freq");
    return put_key(o, "rope_parameters", rope, e);
}

/* A list where layers that share keys and values have an MLP of twice the width. */
static enum err_code put_gemma4_widths(json_t *o, struct err *e)
{
    const json_t *list = json_object_get(o, "intermediate_size");
    if (!json_is_array(list))
        return ERR_OK;
    const int64_t layers = json_integer_value(json_object_get(o, "num_hidden_layers"));
    const int64_t shared = json_integer_value(json_object_get(o, "num_kv_shared_layers"));
    const int64_t ff = json_integer_value(json_array_get(list, 0));
    const int64_t last = json_integer_value(json_array_get(list, json_array_size(list) - 1));
    const bool wide = last != ff;
    if ((int64_t)json_array_size(list) != layers)
        return err_set(e, ERR_INPUT, "key 'feed_forward_length': %zu entries for %lld layers",
                       json_array_size(list), (long long)layers);
    for (int64_t i = 0; i < layers; i++) {
        const int64_t v = json_integer_value(json_array_get(list, (size_t)i));
        const int64_t want = wide && i >= layers - shared ? 2 * ff : ff;
        if (v != want)
            return err_set(e, ERR_INPUT,
                           "key 'feed_forward_length': layer %lld has %lld, expected %lld",
                           (long long)i, (long long)v, (long long)want);
    }
    enum err_code rc = put_key(o, "use_double_wide_mlp", json_boolean(wide), e);
    return rc == ERR_OK ? put_key(o, "intermediate_size", json_integer(ff), e) : rc;
}

/* HF's names of the keys of experts and of the inputs of each layer. */
static enum err_code put_gemma4_parts(json_t *o, const struct tensor *table, struct err *e)
{
    static const char *const keys[][2] = {{"num_local_experts", "num_experts"},
                                          {"num_experts_per_tok", "top_k_experts"}};
    enum err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(keys); i++) {
        json_t *v = json_object_get(o, keys[i][0]);
        if (v)
            rc = put_key(o, keys[i][1], json_incref(v), e);
        json_object_del(o, keys[i][0]);
    }
    if (rc == ERR_OK && json_object_get(o, "num_experts"))
        rc = put_key(o, "enable_moe_block", json_true(), e);
    if (rc == ERR_OK && !json_object_get(o, "hidden_size_per_layer_input"))
        rc = put_key(o, "hidden_size_per_layer_input", json_integer(0), e);
    if (rc == ERR_OK && table && table->n_dim == 2)
        rc = put_key(o, "vocab_size_per_layer_input", json_integer(table->dim[0]), e);
    return rc == ERR_OK ? put_gemma4_widths(o, e) : rc;
}

/* The plain key_length is that of full layers. */
static enum err_code put_gemma4(json_t *o, struct container *const *files, size_t n,
                                const char *arch, struct err *e)
{
    enum err_code rc = put_layer_types(o, files[0]->gguf, arch, e);
    const int64_t full = full_layer(o);
    json_t *swa = json_object_get(o, "head_dim_swa"), *dim = json_object_get(o, "head_dim");
    if (rc == ERR_OK && (!swa || !dim || full < 0))
        rc = err_set(e, ERR_INPUT, "key '%s.attention.%s' is missing", arch,
                     full < 0 ? "sliding_window_pattern"
                     : swa    ? "key_length"
                              : "key_length_swa");
    if (rc == ERR_OK)
        rc = put_key(o, "global_head_dim", json_incref(dim), e);
    if (rc == ERR_OK)
        rc = put_key(o, "head_dim", json_incref(swa), e);
    json_object_del(o, "head_dim_swa");
    if (rc == ERR_OK)
        rc = put_gemma4_heads(o, e);
    if (rc == ERR_OK)
        rc = put_gemma4_rope(o, find_tensor(files, n, "rope_freqs.weight"), e);
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.attn_v.weight", (long long)full);
    if (rc == ERR_OK)
        rc = put_key(o, "attention_k_eq_v", json_boolean(!find_tensor(files, n, name)), e);
    if (rc == ERR_OK)
        rc = put_gemma4_parts(o, find_tensor(files, n, "per_layer_token_embd.weight"), e);
    return rc;
}

static enum err_code put_tensor_facts(json_t *o, struct container *const *files, size_t n,
                                      struct err *e)
{
    const struct tensor *embed = find_tensor(files, n, "token_embd.weight");
    bool attn_bias = find_tensor(files, n, "blk.0.attn_q.bias") != NULL;
    bool mlp_bias = find_tensor(files, n, "blk.0.ffn_up.bias") != NULL;
    enum err_code rc =
        put_key(o, "tie_word_embeddings", json_boolean(!find_tensor(files, n, "output.weight")), e);
    if (rc == ERR_OK && embed && embed->n_dim == 2)
        rc = put_key(o, "vocab_size", json_integer(embed->dim[0]), e);
    if (rc == ERR_OK)
        rc = put_key(o, "attention_bias", json_boolean(attn_bias), e);
    if (rc == ERR_OK)
        rc = put_key(o, "mlp_bias", json_boolean(mlp_bias), e);
    return rc;
}

enum err_code gguf_config_make(struct container *const *files, size_t n_files, json_t **out,
                               struct err *e)
{
    const struct gguf_meta *m = files[0]->gguf;
    struct gguf_text text = {NULL, 0};
    char arch[61], key[128];
    int64_t experts = 0;
    json_t *o = json_object();
    *out = NULL;
    if (!o)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = gguf_get_text(m, "general.architecture", GGUF_REQUIRED, &text, e);
    if (rc != ERR_OK)
        goto out;
    if (text.len >= sizeof arch || str_utf8_valid(text.text, text.len) != text.len) {
        rc = err_set(e, ERR_INPUT, "key 'general.architecture': not a usable name");
        goto out;
    }
    snprintf(arch, sizeof arch, "%.*s", (int)text.len, text.text);
    snprintf(key, sizeof key, "%s.expert_count", arch);
    rc = gguf_get_int(m, key, GGUF_OPTIONAL, 0, 1 << 20, &experts, e);
    if (rc != ERR_OK)
        goto out;
    const char *family = names_family_of_arch(arch, experts > 0);
    rc = family ? gguf_keys_need(m, arch, family, e) : ERR_OK;
    if (rc == ERR_OK)
        rc = put_family(o, family ? family : arch, e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(rows); i++)
        rc = put_row(o, m, arch, &rows[i], e);
    if (rc == ERR_OK && family)
        rc = put_heads(o, e);
    if (rc == ERR_OK && (strcmp(arch, "gemma2") == 0 || strcmp(arch, "gemma3") == 0))
        rc = put_gemma(o, m, arch, e);
    /* No key says so: the architecture always makes the weights of the chosen sum to 1. */
    if (rc == ERR_OK && family && strcmp(family, "qwen3_moe") == 0)
        rc = put_key(o, "norm_topk_prob", json_true(), e);
    const bool gemma4 = strcmp(arch, "gemma4") == 0;
    if (rc == ERR_OK && gemma4)
        rc = put_gemma4(o, files, n_files, arch, e);
    else if (rc == ERR_OK)
        rc = put_rope(o, files, n_files, arch, e);
    if (rc == ERR_OK)
        rc = put_tensor_facts(o, files, n_files, e);
    if (rc == ERR_OK)
        rc = put_tokens(o, m, e);
out:
    if (rc != ERR_OK) {
        json_decref(o);
        return rc;
    }
    *out = o;
    return rc;
}
