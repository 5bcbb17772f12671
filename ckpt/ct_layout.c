/* ct_layout.c: the configuration of compressed-tensors, and a module's tensors against it. */
#include "ckpt/ct_layout.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

#define SCHEMES_MAX 1024
#define MATCH_LIMIT 100000

struct target {
    const char *text;  /* borrowed from the configuration */
    pcre2_code *regex; /* of "re:...", matched from the beginning of the name */
    size_t scheme;
};

struct ct_layout {
    struct ct_module *schemes;
    const char **names; /* of the groups */
    size_t n_schemes;
    struct target *targets;
    size_t n_targets;
    json_t *config; /* keeps the texts alive */
};

/* ---- the configuration -------------------------------------------------------------------------
 */

/* Keys that must be absent, null, or empty. */
static enum err_code refuse_keys(const json_t *o, const char *const *keys, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(o, keys[i]);
        bool empty = !v || json_is_null(v) || json_is_false(v) ||
                     (json_is_object(v) && json_object_size(v) == 0) ||
                     (json_is_array(v) && json_array_size(v) == 0);
        if (!empty)
            return err_set(e, ERR_INPUT, "key '%s' is set, which is not supported", keys[i]);
    }
    return ERR_OK;
}

static enum err_code expect_text(const json_t *o, const char *key, const char *wanted,
                                 bool required, struct err *e)
{
    const char *text = required ? NULL : wanted;
    enum err_code rc = json_get_string(o, key, required ? JSON_REQUIRED : JSON_OPTIONAL, &text, e);
    if (rc == ERR_OK && strcmp(text, wanted) != 0)
        return err_set(e, ERR_INPUT, "%s '%.64s' is not supported, only '%s'", key, text, wanted);
    return rc;
}

static enum err_code read_weights(const json_t *o, struct ct_module *m, struct err *e)
{
    static const char *const known[] = {
        "num_bits", "type",     "symmetric",   "strategy", "group_size", "block_structure",
        "dynamic",  "actorder", "scale_dtype", "zp_dtype", "observer",   "observer_kwargs"};
    static const char *const refused[] = {"block_structure", "dynamic"};
    const char *strategy = NULL, *order = "weight";
    int64_t bits = 0, group = 0;
    m->symmetric = true;
    enum err_code rc = json_only_keys(o, known, ARRAY_LEN(known), NULL, 0, e);
    if (rc == ERR_OK)
        rc = refuse_keys(o, refused, ARRAY_LEN(refused), e);
    if (rc == ERR_OK)
        rc = expect_text(o, "type", "int", false, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "num_bits", JSON_REQUIRED, 2, 8, &bits, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "symmetric", JSON_OPTIONAL, &m->symmetric, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "group_size", JSON_OPTIONAL, -1, 1 << 24, &group, e);
    if (rc == ERR_OK)
        rc = json_get_string(o, "strategy", JSON_OPTIONAL, &strategy, e);
    /* Whatever the order of quantization was: with it, only a g_idx moves columns. */
    if (rc == ERR_OK && !json_is_boolean(json_object_get(o, "actorder")))
        rc = json_get_string(o, "actorder", JSON_OPTIONAL, &order, e);
    if (rc == ERR_OK && strcmp(order, "weight") != 0 && strcmp(order, "group") != 0 &&
        strcmp(order, "static") != 0)
        return err_set(e, ERR_INPUT, "actorder '%.64s' is not supported", order);
    if (rc != ERR_OK)
        return rc;
    m->bits = (int)bits;
    if (!strategy)
        strategy = group > 0 ? "group" : group == -1 ? "channel" : "tensor";
    if (strcmp(strategy, "group") == 0 && group > 0)
        m->group = group;
    else if (strcmp(strategy, "channel") == 0 && group <= 0)
        m->group = 0;
    else if (strcmp(strategy, "tensor") == 0 && group <= 0 && m->symmetric)
        m->group = -1;
    else
        return err_set(e, ERR_INPUT,
                       "strategy '%.64s' with group_size %lld%s is not supported, only group, "
                       "channel, and symmetric tensor",
                       strategy, (long long)group, m->symmetric ? "" : ", asymmetric");
    return ERR_OK;
}

static enum err_code add_target(struct ct_layout *l, const json_t *v, struct err *e)
{
    struct target *t = &l->targets[l->n_targets];
    const char *text = json_string_value(v);
    if (!text)
        return err_set(e, ERR_INPUT, "targets: expected texts");
    *t = (struct target){.text = text, .scheme = l->n_schemes};
    if (str_starts(text, "re:")) {
        int code;
        PCRE2_SIZE at;
        t->regex = pcre2_compile((PCRE2_SPTR)text + 3, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code,
                                 &at, NULL);
        if (!t->regex)
            return err_set(e, ERR_INPUT, "target '%.100s': not a regular expression at byte %zu",
                           text, at + 3);
    }
    l->n_targets++;
    return ERR_OK;
}

static enum err_code add_scheme(struct ct_layout *l, const char *name, const json_t *o,
                                struct err *e)
{
    static const char *const known[] = {"targets", "weights", "input_activations",
                                        "output_activations", "format"};
    static const char *const refused[] = {"input_activations", "output_activations"};
    json_t *weights = NULL, *targets = NULL;
    enum err_code rc = json_only_keys(o, known, ARRAY_LEN(known), NULL, 0, e);
    if (rc == ERR_OK)
        rc = refuse_keys(o, refused, ARRAY_LEN(refused), e);
    if (rc == ERR_OK)
        rc = expect_text(o, "format", "pack-quantized", false, e);
    if (rc == ERR_OK)
        rc = json_get_object(o, "weights", JSON_REQUIRED, &weights, e);
    if (rc == ERR_OK)
        rc = json_get_array(o, "targets", JSON_REQUIRED, &targets, e);
    if (rc == ERR_OK)
        rc = err_wrap(e, read_weights(weights, &l->schemes[l->n_schemes], e), "weights");
    if (rc != ERR_OK)
        return rc;
    struct target *more =
        realloc(l->targets, (l->n_targets + json_array_size(targets) + 1) * sizeof *more);
    if (!more)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->targets = more;
    for (size_t i = 0; i < json_array_size(targets) && rc == ERR_OK; i++)
        rc = add_target(l, json_array_get(targets, i), e);
    l->names[l->n_schemes++] = name;
    return rc;
}

static enum err_code read_config(struct ct_layout *l, struct err *e)
{
    static const char *const known[] = {"quant_method",
                                        "format",
                                        "config_groups",
                                        "ignore",
                                        "quantization_status",
                                        "global_compression_ratio",
                                        "kv_cache_scheme",
                                        "sparsity_config",
                                        "moe_sparsity_config",
                                        "transform_config",
                                        "version"};
    static const char *const refused[] = {"kv_cache_scheme", "sparsity_config",
                                          "moe_sparsity_config", "transform_config"};
    json_t *groups = NULL, *g;
    const char *name;
    enum err_code rc = expect_text(l->config, "format", "pack-quantized", true, e);
    if (rc == ERR_OK)
        rc = json_only_keys(l->config, known, ARRAY_LEN(known), NULL, 0, e);
    if (rc == ERR_OK)
        rc = refuse_keys(l->config, refused, ARRAY_LEN(refused), e);
    if (rc == ERR_OK)
        rc = json_get_object(l->config, "config_groups", JSON_REQUIRED, &groups, e);
    if (rc != ERR_OK)
        return rc;
    size_t n = json_object_size(groups);
    if (n == 0 || n > SCHEMES_MAX)
        return err_set(e, ERR_INPUT, "config_groups: %zu groups, expected 1 to %d", n, SCHEMES_MAX);
    l->schemes = calloc(n, sizeof *l->schemes);
    l->names = calloc(n, sizeof *l->names);
    if (!l->schemes || !l->names)
        return err_set(e, ERR_NOMEM, "out of memory");
    json_object_foreach(groups, name, g)
    {
        rc = json_is_object(g) ? add_scheme(l, name, g, e)
                               : err_set(e, ERR_INPUT, "expected an object");
        if (rc != ERR_OK)
            return err_wrap(e, rc, "config_groups.%.64s", name);
    }
    return ERR_OK;
}

enum err_code ct_layout_open(struct ct_layout **out, const json_t *config, struct err *e)
{
    json_t *q = json_object_get(config, "quantization_config");
    if (!q)
        q = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    *out = NULL;
    if (!method || strcmp(method, "compressed-tensors") != 0)
        return ERR_OK;
    struct ct_layout *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->config = json_incref(q);
    enum err_code rc = read_config(l, e);
    if (rc != ERR_OK) {
        ct_layout_close(l);
        return err_wrap(e, rc, "quantization_config (compressed-tensors)");
    }
    *out = l;
    return ERR_OK;
}

void ct_layout_close(struct ct_layout *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n_targets; i++)
        pcre2_code_free(l->targets[i].regex);
    free(l->targets);
    free(l->schemes);
    free(l->names);
    json_decref(l->config);
    free(l);
}

/* ---- modules -----------------------------------------------------------------------------------
 */

static bool regex_matches(const pcre2_code *re, const char *name)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    bool hit = false;
    if (data && limits) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        hit = pcre2_match(re, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, limits) >= 0;
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    return hit;
}

/* A name goes before a pattern, a pattern before a class: as the library orders them. */
static int rank_of(const struct target *t, const char *module)
{
    if (t->regex)
        return regex_matches(t->regex, module) ? 2 : 0;
    if (strcmp(t->text, module) == 0)
        return 3;
    return strcmp(t->text, "Linear") == 0 ? 1 : 0;
}

enum err_code ct_layout_module(const struct ct_layout *l, const char *module, struct ct_module *m,
                               struct err *e)
{
    int best = 0;
    size_t scheme = 0;
    for (size_t i = 0; i < l->n_targets; i++) {
        int rank = rank_of(&l->targets[i], module);
        if (rank > best) {
            best = rank;
            scheme = l->targets[i].scheme;
        } else if (rank && rank == best && l->targets[i].scheme != scheme) {
            return err_set(e, ERR_INPUT, "groups '%.64s' and '%.64s' of config.json both match it",
                           l->names[scheme], l->names[l->targets[i].scheme]);
        }
    }
    if (!best)
        return err_set(e, ERR_INPUT, "packed, but no group of config.json matches it");
    *m = l->schemes[scheme];
    return ERR_OK;
}

static int64_t words_of(int64_t n, int bits, bool dense)
{
    return dense ? (n * bits + 31) / 32 : (n + 32 / bits - 1) / (32 / bits);
}

static enum err_code check_shape(const struct tensor *t, int64_t *out, int64_t *in, struct err *e)
{
    if (!t || t->dtype != DT_I64 || t->n_dim != 1 || t->dim[0] != 2)
        return err_set(e, ERR_INPUT, "weight_shape is missing or not two I64");
    *out = (int64_t)load_u64(t->data);
    *in = (int64_t)load_u64(t->data + 8);
    if (*out < 1 || *in < 1 || *out > INT32_MAX || *in > INT32_MAX)
        return err_set(e, ERR_INPUT, "weight_shape is %lld x %lld", (long long)*out,
                       (long long)*in);
    return ERR_OK;
}

static enum err_code check_scale(const struct tensor *t, const struct ct_module *m, int64_t out,
                                 int64_t in, struct ct_packed *p, struct err *e)
{
    if (!t || !dtype_is_float(t->dtype))
        return err_set(e, ERR_INPUT, "weight_scale is missing or not BF16, F16 or F32");
    p->group = m->group > 0 ? m->group : in;
    if (in % p->group)
        return err_set(e, ERR_INPUT, "groups of %lld do not cut rows of %lld", (long long)p->group,
                       (long long)in);
    p->groups = m->group < 0 ? 0 : in / p->group;
    bool whole = m->group < 0 && tensor_elems(t) == 1;
    bool rows = m->group >= 0 && t->n_dim == 2 && t->dim[0] == out && t->dim[1] == p->groups;
    if (!whole && !rows)
        return err_set(
            e, ERR_INPUT, "weight_scale has %lld x %lld numbers, config.json says %lld x %lld",
            (long long)(t->n_dim ? t->dim[0] : 1), (long long)(t->n_dim > 1 ? t->dim[1] : 1),
            (long long)out, (long long)p->groups);
    p->scale = t->dtype;
    p->scales = t->data;
    p->scale_bytes = t->bytes;
    return ERR_OK;
}

static enum err_code check_zero(const struct tensor *t, const struct ct_module *m, int64_t out,
                                struct ct_packed *p, struct err *e)
{
    if (m->symmetric != !t)
        return err_set(e, ERR_INPUT, "config.json says %s, but weight_zero_point is %s",
                       m->symmetric ? "symmetric" : "asymmetric", t ? "there" : "missing");
    if (!t)
        return ERR_OK;
    int64_t rows = words_of(out, m->bits, p->dense);
    if (t->dtype != DT_I32 || t->n_dim != 2 || t->dim[0] != rows || t->dim[1] != p->groups)
        return err_set(e, ERR_INPUT, "weight_zero_point is not I32 of %lld x %lld", (long long)rows,
                       (long long)p->groups);
    p->zeros = t->data;
    p->zero_bytes = t->bytes;
    return ERR_OK;
}

/* Activation order with its own columns a group cannot be told by an affine group. */
static enum err_code check_g_idx(const struct tensor *t, int64_t in, int64_t group, struct err *e)
{
    if (!t)
        return ERR_OK;
    if (t->dtype != DT_I32 || t->n_dim != 1 || t->dim[0] != in)
        return err_set(e, ERR_INPUT, "weight_g_idx is not I32 of %lld", (long long)in);
    for (int64_t k = 0; k < in; k++)
        if ((int64_t)(int32_t)load_u32(t->data + 4 * k) != k / group)
            return err_set(e, ERR_INPUT,
                           "weight_g_idx puts column %lld into group %d: activation order is not "
                           "supported",
                           (long long)k, (int)load_u32(t->data + 4 * k));
    return ERR_OK;
}

enum err_code ct_layout_bind(struct ckpt_weight *w, struct ct_packed *p, const struct ct_module *m,
                             const struct ct_tensors *t, struct err *e)
{
    int64_t out = 0, in = 0;
    const struct tensor *c = t->packed;
    enum err_code rc = check_shape(t->shape, &out, &in, e);
    if (rc != ERR_OK)
        return rc;
    if (c->dtype != DT_I32 || c->n_dim != 2 || c->dim[0] != out)
        return err_set(e, ERR_INPUT, "weight_packed is not I32 with the %lld rows of weight_shape",
                       (long long)out);
    *p = (struct ct_packed){.bits = m->bits, .symmetric = m->symmetric, .words = c->dim[1]};
    p->dense = p->words == words_of(in, m->bits, true);
    if (!p->dense && p->words != words_of(in, m->bits, false))
        return err_set(
            e, ERR_INPUT,
            "weight_packed has %lld words in a row, expected %lld (dense) or %lld (whole "
            "values) for %lld values of %d bits",
            (long long)p->words, (long long)words_of(in, m->bits, true),
            (long long)words_of(in, m->bits, false), (long long)in, m->bits);
    rc = check_scale(t->scale, m, out, in, p, e);
    if (rc == ERR_OK)
        rc = check_zero(t->zero, m, out, p, e);
    if (rc == ERR_OK)
        rc = check_g_idx(t->g_idx, in, p->group, e);
    if (rc != ERR_OK)
        return rc;
    p->data = c->data;
    p->data_bytes = c->bytes;
    w->enc = CKPT_CT;
    w->ct = p;
    w->dtype = DT_UNKNOWN;
    w->ggml = GGML_NONE;
    w->n_dim = 2;
    w->dim[0] = out;
    w->dim[1] = in;
    w->data = c->data;
    w->bytes = p->data_bytes + p->scale_bytes + p->zero_bytes;
    return ERR_OK;
}
