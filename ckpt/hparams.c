/* hparams.c: config.json -> struct hparams, for the families that can be run.
 *
 * Keys and defaults are those of the HF configuration classes; what one group of families or one
 * subject alone reads stands in hparams_gemma.c, hparams_moe.c and hparams_rope.c. A GGUF comes
 * here too: gguf_config.c writes its keys as such an object first.
 */
#include "ckpt/hparams.h"

#include <math.h>

#include "ckpt/dtype.h"
#include "ckpt/hparams_gemma.h"
#include "ckpt/hparams_moe.h"
#include "ckpt/hparams_rope.h"
#include "common/str.h"

#define DIM_MAX  ((int64_t)1 << 24)
#define HEAD_MAX 4096

/* Which layers slide where `layer_types` does not say. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,      /* by sliding_window, null for none */
    WINDOW_QWEN,     /* where use_sliding_window: those from max_window_layers on */
    WINDOW_QWEN_MOE, /* where use_sliding_window: all, and layer_types is not read */
    WINDOW_PERIOD    /* all but every `period`-th */
};

/* A family's HF defaults where a key is missing, and which keys it has. */
struct family {
    const char *name;
    const char *wrapper; /* model_type of a config.json that has this family's under text_config */
    int64_t d_model, d_ff, n_vocab; /* 0: the key must be there */
    int n_layer, n_head;            /* likewise */
    int n_kv, head_dim;             /* 0: heads; hidden_size / heads */
    int64_t ctx, window;            /* window 0: none */
    enum window_rule rule;
    int period;                  /* WINDOW_PERIOD */
    const char *key_period;      /* the key that says otherwise; NULL: none */
    bool qkv_bias;               /* always on q, k and v, and on nothing else */
    bool key_attn, key_mlp_bias; /* reads attention_bias, mlp_bias */
    bool qk_norm;
    bool tied;
    enum act_kind act;
    /* The rest, after the layers that slide are known; NULL: nothing. */
    enum err_code (*more)(struct hparams *hp, const json_t *o, struct err *e);
    bool attn_bias; /* where key_attn is missing */
    double rms_eps; /* 0: 1e-6 */
    struct rope_defaults rope;
    /* Experts; NULL: none. */
    enum err_code (*experts)(struct hparams *hp, const json_t *o, struct err *e);
};

#define GEMMA4                                                                                     \
    .d_model = 2304, .d_ff = 9216, .n_vocab = 262144, .n_layer = 30, .n_head = 8, .n_kv = 4,       \
    .head_dim = 256, .rule = WINDOW_PERIOD, .period = 6, .key_attn = true, .qk_norm = true,        \
    .tied = true, .act = ACT_GELU_TANH, .rope = {.two = true, .proportional = true},               \
    .more = hparams_read_gemma4

static const struct rope_params gpt_oss_rope = {.kind = ROPE_YARN,
                                                .theta = 150000,
                                                .factor = 32,
                                                .original_ctx = 4096,
                                                .beta_fast = 32,
                                                .beta_slow = 1,
                                                .attention_factor = 0}; /* made of the factor */

static const struct family families[] = {
    {.name = "llama", .ctx = 2048, .key_attn = true, .key_mlp_bias = true},
    {.name = "mistral", .ctx = 131072, .window = 4096, .n_kv = 8, .rule = WINDOW_ALL},
    {.name = "qwen2",
     .ctx = 32768,
     .window = 4096,
     .n_kv = 32,
     .rule = WINDOW_QWEN,
     .qkv_bias = true},
    {.name = "qwen3",
     .ctx = 32768,
     .window = 4096,
     .n_kv = 32,
     .head_dim = 128,
     .rule = WINDOW_QWEN,
     .key_attn = true,
     .qk_norm = true},
    {.name = "gemma2",
     .d_model = 2304,
     .d_ff = 9216,
     .n_vocab = 256000,
     .n_layer = 26,
     .n_head = 8,
     .n_kv = 4,
     .head_dim = 256,
     .ctx = 8192,
     .window = 4096,
     .rule = WINDOW_PERIOD,
     .period = 2,
     .key_attn = true,
     .tied = true,
     .act = ACT_GELU_TANH,
     .more = hparams_read_gemma2},
    {.name = "gemma3_text",
     .wrapper = "gemma3",
     .d_model = 2304,
     .d_ff = 9216,
     .n_vocab = 262208,
     .n_layer = 26,
     .n_head = 8,
     .n_kv = 4,
     .head_dim = 256,
     .ctx = 131072,
     .window = 4096,
     .rule = WINDOW_PERIOD,
     .period = 6,
     .key_period = "sliding_window_pattern",
     .key_attn = true,
     .qk_norm = true,
     .tied = true,
     .act = ACT_GELU_TANH,
     .rope = {.two = true},
     .more = hparams_read_gemma3},
    {.name = "gemma4_text", .wrapper = "gemma4", .ctx = 131072, .window = 512, GEMMA4},
    {.name = "gemma4_unified_text",
     .wrapper = "gemma4_unified",
     .ctx = 262144,
     .window = 1024,
     GEMMA4},
    {.name = "mixtral",
     .ctx = 131072,
     .n_kv = 8,
     .rule = WINDOW_ALL,
     .rms_eps = 1e-5,
     .rope = {.theta = 1e6},
     .experts = hparams_read_mixtral},
    {.name = "qwen3_moe",
     .ctx = 32768,
     .window = 4096,
     .n_kv = 4,
     .rule = WINDOW_QWEN_MOE,
     .key_attn = true,
     .qk_norm = true,
     .experts = hparams_read_qwen3_moe},
    {.name = "gpt_oss",
     .ctx = 131072,
     .window = 128,
     .n_kv = 8,
     .head_dim = 64,
     .rule = WINDOW_PERIOD,
     .period = 2,
     .key_attn = true,
     .attn_bias = true,
     .rms_eps = 1e-5,
     .rope = {.theta = 150000, .unsaid = &gpt_oss_rope},
     .experts = hparams_read_gpt_oss},
};

static const struct family *find_family(const char *name, bool wrapped)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const struct family *f = &families[i];
        if (strcmp(f->name, name) == 0 || (wrapped && f->wrapper && strcmp(f->wrapper, name) == 0))
            return f;
    }
    return NULL;
}

static enum err_code unknown_family(const char *name, struct err *e)
{
    struct strbuf b = {0};
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        strbuf_printf(&b, "%s%s", i ? ", " : "", families[i].name);
    enum err_code rc = err_set(e, ERR_INPUT, "family '%.64s' is not supported; supported: %s", name,
                               b.failed ? "?" : b.data);
    strbuf_free(&b);
    return rc;
}

static enum err_code get_small(const json_t *o, const char *key, enum json_need need, int64_t hi,
                               int *out, struct err *e)
{
    int64_t v = *out;
    enum err_code rc = json_get_int(o, key, need, 1, hi, &v, e);
    *out = (int)v;
    return rc;
}

static enum err_code read_dims(struct hparams *hp, const json_t *o, const struct family *f,
                               struct err *e)
{
    const enum json_need need = f->d_model ? JSON_OPTIONAL : JSON_REQUIRED;
    hp->d_model = f->d_model;
    hp->d_ff = f->d_ff;
    hp->n_vocab = f->n_vocab;
    hp->n_layer = f->n_layer;
    hp->n_head = f->n_head;
    enum err_code rc = json_get_int(o, "hidden_size", need, 1, DIM_MAX, &hp->d_model, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "intermediate_size", need, 1, DIM_MAX, &hp->d_ff, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "vocab_size", need, 1, DIM_MAX, &hp->n_vocab, e);
    if (rc == ERR_OK)
        rc = get_small(o, "num_hidden_layers", need, HP_LAYERS_MAX, &hp->n_layer, e);
    if (rc == ERR_OK)
        rc = get_small(o, "num_attention_heads", need, HEAD_MAX, &hp->n_head, e);
    /* null is "as many as heads" in every family, missing is the default. */
    hp->n_kv = f->n_kv && !json_object_get(o, "num_key_value_heads") ? f->n_kv : hp->n_head;
    hp->head_dim = f->head_dim;
    if (rc == ERR_OK)
        rc = get_small(o, "num_key_value_heads", JSON_OPTIONAL, HEAD_MAX, &hp->n_kv, e);
    if (rc == ERR_OK)
        rc = get_small(o, "head_dim", JSON_OPTIONAL, HEAD_MAX, &hp->head_dim, e);
    if (rc != ERR_OK)
        return rc;
    if (hp->n_head % hp->n_kv) {
        return err_set(e, ERR_INPUT,
                       "num_attention_heads %d is no multiple of num_key_value_heads %d",
                       hp->n_head, hp->n_kv);
    }
    if (hp->head_dim == 0) {
        if (hp->d_model % hp->n_head || hp->d_model / hp->n_head > HEAD_MAX) {
            return err_set(e, ERR_INPUT,
                           "hidden_size %lld over %d heads gives no head_dim up to %d",
                           (long long)hp->d_model, hp->n_head, HEAD_MAX);
        }
        hp->head_dim = (int)(hp->d_model / hp->n_head);
    }
    if (hp->head_dim % 2)
        return err_set(e, ERR_INPUT, "head_dim %d, expected an even number", hp->head_dim);
    return ERR_OK;
}

static enum err_code check_act(const json_t *o, const struct family *f, struct err *e)
{
    const char *key = f->act == ACT_SILU ? "hidden_act" : "hidden_activation";
    const char *want = f->act == ACT_SILU ? "silu" : "gelu_pytorch_tanh", *act = want;
    enum err_code rc = json_get_string(o, key, JSON_OPTIONAL, &act, e);
    if (rc == ERR_OK && strcmp(act, want) != 0)
        rc = err_set(e, ERR_INPUT, "key '%s': found '%.64s', expected '%s'", key, act, want);
    return rc;
}

static enum err_code read_numbers(struct hparams *hp, const json_t *o, const struct family *f,
                                  struct err *e)
{
    hp->ctx_max = f->ctx;
    hp->rms_eps = f->rms_eps > 0 ? f->rms_eps : 1e-6;
    hp->tied = f->tied;
    enum err_code rc =
        json_get_int(o, "max_position_embeddings", JSON_OPTIONAL, 1, INT32_MAX, &hp->ctx_max, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "rms_norm_eps", JSON_OPTIONAL, 0, 1, &hp->rms_eps, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "tie_word_embeddings", JSON_OPTIONAL, &hp->tied, e);
    hp->attn_bias = f->attn_bias;
    if (rc == ERR_OK && f->key_attn)
        rc = json_get_bool(o, "attention_bias", JSON_OPTIONAL, &hp->attn_bias, e);
    hp->o_bias = hp->attn_bias;
    hp->attn_bias |= f->qkv_bias;
    hp->qk_norm = f->qk_norm;
    if (rc == ERR_OK && f->key_mlp_bias)
        rc = json_get_bool(o, "mlp_bias", JSON_OPTIONAL, &hp->mlp_bias, e);
    hp->act = f->act;
    hp->embed_scale = 1;
    hp->attn_scale = (float)(1 / sqrt((double)hp->head_dim));
    return rc == ERR_OK ? check_act(o, f, e) : rc;
}

/* use_sliding_window false means no window, whatever else is said. */
static enum err_code read_qwen_window(const struct hparams *hp, const json_t *o, int64_t *window,
                                      int64_t *first, struct err *e)
{
    bool use = false;
    int64_t max_layers = 28;
    enum err_code rc = json_get_bool(o, "use_sliding_window", JSON_OPTIONAL, &use, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "max_window_layers", JSON_OPTIONAL, 0, INT32_MAX, &max_layers, e);
    if (!use)
        *window = 0;
    *first = MIN2(max_layers, hp->n_layer);
    return rc;
}

/* An attention of another kind is named by every family, where the kinds are not read too. */
static enum err_code check_layer_types(const json_t *types, struct err *e)
{
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type ||
            (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)) {
            return err_set(e, ERR_INPUT,
                           "key 'layer_types': entry %zu is '%.64s', expected 'full_attention' or "
                           "'sliding_attention'",
                           i, type ? type : "no string");
        }
    }
    return ERR_OK;
}

static enum err_code read_window(struct hparams *hp, const json_t *o, const struct family *f,
                                 struct err *e)
{
    const json_t *key = json_object_get(o, "sliding_window");
    int64_t window = key ? 0 : f->window; /* null is "none", missing is the default */
    int64_t first = 0;
    json_t *types = NULL;
    enum err_code rc = json_get_int(o, "sliding_window", JSON_OPTIONAL, 1, INT32_MAX, &window, e);
    if (rc == ERR_OK)
        rc = json_get_array(o, "layer_types", JSON_OPTIONAL, &types, e);
    if (rc == ERR_OK)
        rc = check_layer_types(types, e);
    if (rc != ERR_OK)
        return rc;
    if (f->rule == WINDOW_QWEN || f->rule == WINDOW_QWEN_MOE)
        rc = read_qwen_window(hp, o, &window, &first, e);
    if (rc != ERR_OK)
        return rc;
    if (f->rule == WINDOW_QWEN_MOE) {
        first = 0;
        types = NULL;
    }
    int64_t period = f->period;
    if (f->key_period && !types)
        rc = json_get_int(o, f->key_period, JSON_OPTIONAL, 1, INT32_MAX, &period, e);
    if (rc != ERR_OK)
        return rc;
    if (!types) {
        hp->window = f->rule == WINDOW_NONE || first >= hp->n_layer ? 0 : (int)window;
        for (int i = 0; i < hp->n_layer; i++)
            hp->sliding[i] = hp->window > 0 && i >= first && (!period || (i + 1) % period);
        return ERR_OK;
    }
    if (json_array_size(types) != (size_t)hp->n_layer) {
        return err_set(e, ERR_INPUT, "key 'layer_types': %zu entries for %d layers",
                       json_array_size(types), hp->n_layer);
    }
    for (int i = 0; i < hp->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        hp->sliding[i] = strcmp(type, "sliding_attention") == 0;
        if (hp->sliding[i] && window == 0)
            return err_set(e, ERR_INPUT, "layer %d slides, but 'sliding_window' is not set", i);
        if (hp->sliding[i])
            hp->window = (int)window;
    }
    return ERR_OK;
}

/* ---- special tokens ------------------------------------------------------------------------- */

static enum err_code add_eos(struct hparams *hp, const json_t *v, struct err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= DIM_MAX)
        return err_set(e, ERR_INPUT, "key 'eos_token_id': expected a token id or a list of them");
    int64_t id = json_integer_value(v);
    for (int i = 0; i < hp->n_eos; i++) {
        if (hp->eos[i] == id)
            return ERR_OK;
    }
    if (hp->n_eos == HP_EOS_MAX)
        return err_set(e, ERR_INPUT, "key 'eos_token_id': more than %d ids", HP_EOS_MAX);
    hp->eos[hp->n_eos++] = id;
    return ERR_OK;
}

static enum err_code read_eos(struct hparams *hp, const json_t *o, struct err *e)
{
    const json_t *v = o ? json_object_get(o, "eos_token_id") : NULL;
    enum err_code rc = ERR_OK;
    if (!v || json_is_null(v))
        return ERR_OK;
    if (!json_is_array(v))
        return add_eos(hp, v, e);
    for (size_t i = 0; rc == ERR_OK && i < json_array_size(v); i++)
        rc = add_eos(hp, json_array_get(v, i), e);
    return rc;
}

static enum err_code read_tokens(struct hparams *hp, const json_t *outer, const json_t *o,
                                 const json_t *generation, struct err *e)
{
    hp->bos = -1;
    enum err_code rc = json_get_int(o, "bos_token_id", JSON_OPTIONAL, 0, DIM_MAX, &hp->bos, e);
    if (rc == ERR_OK)
        rc = read_eos(hp, o, e);
    if (rc == ERR_OK && outer != o)
        rc = read_eos(hp, outer, e);
    if (rc == ERR_OK)
        rc = err_wrap(e, read_eos(hp, generation, e), "generation_config.json");
    return rc;
}

enum err_code hparams_from_config(struct hparams *hp, const json_t *config,
                                  const json_t *generation, struct err *e)
{
    const char *name = NULL;
    json_t *inner = NULL;
    memset(hp, 0, sizeof *hp);
    if (!json_is_object(config))
        return err_set(e, ERR_INPUT, "expected an object");
    enum err_code rc = json_get_string(config, "model_type", JSON_REQUIRED, &name, e);
    if (rc == ERR_OK)
        rc = json_get_object(config, "text_config", JSON_OPTIONAL, &inner, e);
    if (rc == ERR_OK && inner)
        rc = json_get_string(inner, "model_type", JSON_OPTIONAL, &name, e);
    if (rc != ERR_OK)
        return rc;
    const json_t *o = inner ? inner : config;
    const struct family *f = find_family(name, inner != NULL);
    if (!f)
        return unknown_family(name, e);
    memcpy(hp->family, f->name, strlen(f->name) + 1);
    hp->wrapped = inner != NULL;
    rc = read_dims(hp, o, f, e);
    if (rc == ERR_OK)
        rc = read_numbers(hp, o, f, e);
    if (rc == ERR_OK)
        rc = read_window(hp, o, f, e);
    if (rc == ERR_OK && f->more)
        rc = f->more(hp, o, e);
    if (rc == ERR_OK)
        rc = hparams_read_rope(hp, o, &f->rope, e);
    if (rc == ERR_OK && f->experts)
        rc = f->experts(hp, o, e);
    if (rc == ERR_OK)
        rc = read_tokens(hp, config, o, generation, e);
    return rc;
}
