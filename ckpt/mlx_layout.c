/* mlx_layout.c: the quantization block, and the shapes it promises.
 *
 * Shapes alone cannot tell bits from group (4 bits with groups of 64 look like 8 with 32), so the
 * block decides and the shapes must agree.
 */
#include "ckpt/mlx_layout.h"

const json_t *mlx_layout_block(const json_t *config)
{
    const json_t *block = json_object_get(config, "quantization");
    if (json_is_object(block))
        return block;
    block = json_object_get(config, "quantization_config");
    if (json_is_object(block) && !json_object_get(block, "quant_method") &&
        json_object_get(block, "bits") && json_object_get(block, "group_size"))
        return block;
    return NULL;
}

const char *mlx_layout_foreign(const json_t *config)
{
    if (mlx_layout_block(config))
        return NULL;
    const json_t *outer = json_object_get(config, "quantization_config");
    const json_t *inner =
        json_object_get(json_object_get(config, "text_config"), "quantization_config");
    const json_t *method = json_object_get(json_is_object(outer) ? outer : inner, "quant_method");
    return json_string_value(method);
}

static enum err_code read_params(const json_t *o, struct mlx_module *m, struct err *e)
{
    int64_t bits = 4, group = 64;
    m->mode = "affine";
    enum err_code rc = json_get_string(o, "mode", JSON_OPTIONAL, &m->mode, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "bits", JSON_OPTIONAL, 1, 16, &bits, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "group_size", JSON_OPTIONAL, 1, 1 << 20, &group, e);
    m->affine = strcmp(m->mode, "affine") == 0;
    m->bits = (int)bits;
    m->group = (int)group;
    struct qformat q = {m->bits, m->group, DT_BF16};
    if (rc == ERR_OK && m->affine && !qformat_valid(q)) {
        rc = err_set(e, ERR_INPUT,
                     "%d bits in groups of %d, expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, "
                     "64 or 128",
                     m->bits, m->group);
    }
    return rc;
}

enum err_code mlx_layout_module(const json_t *block, const char *module, bool has_scales,
                                struct mlx_module *m, struct err *e)
{
    const json_t *own = block ? json_object_get(block, module) : NULL;
    enum err_code rc = ERR_OK;
    memset(m, 0, sizeof *m);
    if (!block) {
        if (has_scales)
            return err_set(e, ERR_INPUT,
                           "module '%s': packed, but config.json has no 'quantization' block",
                           module);
        return ERR_OK;
    }
    if (own && !json_is_object(own) && !json_is_boolean(own)) {
        return err_set(e, ERR_INPUT,
                       "quantization of module '%s': expected an object, true or false", module);
    }
    if (json_is_false(own)) {
        if (has_scales)
            return err_set(e, ERR_INPUT,
                           "module '%s': config.json says not quantized, but its scales are there",
                           module);
        return ERR_OK;
    }
    if (own && !has_scales) {
        return err_set(e, ERR_INPUT,
                       "module '%s': config.json says quantized, but '%s.scales' is missing",
                       module, module);
    }
    if (!has_scales)
        return ERR_OK;
    m->quantized = true;
    rc = read_params(json_is_object(own) ? own : block, m, e);
    return err_wrap(e, rc, "quantization of module '%s'", module);
}

static bool same_dims(const struct tensor *a, const struct tensor *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (a->dim[i] != b->dim[i])
            return false;
    }
    return true;
}

static enum err_code check_tensors(const struct tensor *weight, const struct tensor *scales,
                                   const struct tensor *biases, struct err *e)
{
    if (weight->dtype != DT_U32)
        return err_set(e, ERR_INPUT, "weight is %s, expected U32 for a packed module",
                       dtype_name(weight->dtype));
    if (!dtype_is_float(scales->dtype))
        return err_set(e, ERR_INPUT, "scales are %s, expected BF16, F16 or F32",
                       dtype_name(scales->dtype));
    if (!biases)
        return err_set(e, ERR_INPUT, "biases are missing");
    if (biases->dtype != scales->dtype || biases->n_dim != scales->n_dim ||
        !same_dims(biases, scales, scales->n_dim))
        return err_set(e, ERR_INPUT, "biases differ from scales in type or shape");
    int n = weight->n_dim;
    if (n < 2 || scales->n_dim != n || !same_dims(weight, scales, n - 1)) {
        return err_set(e, ERR_INPUT,
                       "weight has %d dimensions and %lld rows, scales have %d and %lld", n,
                       (long long)(n ? weight->dim[0] : 0), scales->n_dim,
                       (long long)(scales->n_dim ? scales->dim[0] : 0));
    }
    return ERR_OK;
}

enum err_code mlx_layout_bind(struct ckpt_weight *w, const struct mlx_module *m,
                              const struct tensor *weight, const struct tensor *scales,
                              const struct tensor *biases, struct err *e)
{
    enum err_code rc = check_tensors(weight, scales, biases, e);
    if (rc != ERR_OK)
        return rc;
    /* Both were checked against the file's size: neither product can overflow. */
    int64_t bits = weight->dim[weight->n_dim - 1] * 32;
    int64_t groups = scales->dim[scales->n_dim - 1];
    if (bits % m->bits || bits / m->bits != groups * m->group) {
        return err_set(e, ERR_INPUT,
                       "%lld words and %lld groups in a row, but config.json says %d bits in "
                       "groups of %d: %lld words would need %lld groups",
                       (long long)(bits / 32), (long long)groups, m->bits, m->group,
                       (long long)(bits / 32), (long long)(bits / m->bits / m->group));
    }
    w->enc = CKPT_AFFINE;
    w->q = (struct qformat){m->bits, m->group, scales->dtype};
    w->dtype = DT_UNKNOWN;
    w->ggml = GGML_NONE;
    w->n_dim = weight->n_dim;
    memcpy(w->dim, weight->dim, sizeof w->dim);
    w->dim[w->n_dim - 1] = groups * m->group;
    w->data = weight->data;
    w->scales = scales->data;
    w->biases = biases->data;
    w->bytes = weight->bytes + scales->bytes + biases->bytes;
    return ERR_OK;
}
