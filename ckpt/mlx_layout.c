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
    const char *method = json_string_value(json_object_get(block, "quant_method"));
    struct qformat q;
    if (method && qformat_find_block(method, &q))
        return block;
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
    const char *method = "affine";
    struct qformat q = {4, 64, DT_BF16};
    enum err_code rc = json_get_string(o, "quant_method", JSON_OPTIONAL, &method, e);
    m->mode = method;
    if (rc == ERR_OK)
        rc = json_get_string(o, "mode", JSON_OPTIONAL, &m->mode, e);
    m->block = qformat_find_block(m->mode, &q);
    m->known = m->block || strcmp(m->mode, "affine") == 0;
    int64_t bits = q.bits, group = q.group; /* the mode's own unless they are said */
    if (rc == ERR_OK)
        rc = json_get_int(o, "bits", JSON_OPTIONAL, 1, 16, &bits, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "group_size", JSON_OPTIONAL, 1, 1 << 20, &group, e);
    m->bits = (int)bits;
    m->group = (int)group;
    struct qformat said = {m->bits, m->group, q.scale};
    if (rc != ERR_OK || qformat_valid(said) || !m->known)
        return rc;
    if (m->block)
        rc = err_set(e, ERR_INPUT, "%d bits in groups of %d, expected %d bits in groups of %d: %s",
                     m->bits, m->group, q.bits, q.group, m->mode);
    else
        rc = err_set(e, ERR_INPUT,
                     "%d bits in groups of %d, expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, "
                     "64 or 128",
                     m->bits, m->group);
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

static enum err_code check_affine(const struct tensor *scales, const struct tensor *biases,
                                  struct err *e)
{
    if (!dtype_is_float(scales->dtype))
        return err_set(e, ERR_INPUT, "scales are %s, expected BF16, F16 or F32",
                       dtype_name(scales->dtype));
    if (!biases)
        return err_set(e, ERR_INPUT, "biases are missing");
    if (biases->dtype != scales->dtype || biases->n_dim != scales->n_dim ||
        !same_dims(biases, scales, scales->n_dim))
        return err_set(e, ERR_INPUT, "biases differ from scales in type or shape");
    return ERR_OK;
}

/* nvfp4's scales of whole matrices: one, or one an expert. */
static enum err_code check_globals(const struct tensor *weight, const struct tensor *globals,
                                   struct err *e)
{
    int64_t n = 1;
    for (int i = 0; i + 2 < weight->n_dim; i++)
        n *= weight->dim[i]; /* fewer than the weight's elements: no overflow */
    if (globals->dtype != DT_F32 || tensor_elems(globals) != n)
        return err_set(e, ERR_INPUT, "global scales are %lld of %s, expected %lld of F32",
                       (long long)tensor_elems(globals), dtype_name(globals->dtype), (long long)n);
    for (int64_t i = 0; i < n; i++) {
        float g = load_f32(globals->data + 4 * i);
        if (!(g >= QFORMAT_GLOBAL_MIN && g <= QFORMAT_GLOBAL_MAX))
            return err_set(e, ERR_INPUT, "global scale %lld is %g, expected a number from %g to %g",
                           (long long)i, (double)g, (double)QFORMAT_GLOBAL_MIN,
                           (double)QFORMAT_GLOBAL_MAX);
    }
    return ERR_OK;
}

static enum err_code check_block(const struct mlx_module *m, const struct mlx_parts *p,
                                 struct err *e)
{
    if (p->scales->dtype != DT_U8)
        return err_set(e, ERR_INPUT, "scales are %s, expected U8 by mode %s",
                       dtype_name(p->scales->dtype), m->mode);
    if (p->biases)
        return err_set(e, ERR_INPUT, "biases are there, but mode %s has none", m->mode);
    if (p->globals && m->group != 16)
        return err_set(e, ERR_INPUT, "a global scale is there, but mode %s has none", m->mode);
    return p->globals ? check_globals(p->weight, p->globals, e) : ERR_OK;
}

static enum err_code check_tensors(const struct mlx_module *m, const struct mlx_parts *p,
                                   struct err *e)
{
    const struct tensor *weight = p->weight, *scales = p->scales;
    if (weight->dtype != DT_U32)
        return err_set(e, ERR_INPUT, "weight is %s, expected U32 for a packed module",
                       dtype_name(weight->dtype));
    enum err_code rc = m->block ? check_block(m, p, e) : check_affine(scales, p->biases, e);
    if (rc != ERR_OK)
        return rc;
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
                              const struct mlx_parts *p, struct err *e)
{
    const struct tensor *weight = p->weight, *scales = p->scales;
    enum err_code rc = check_tensors(m, p, e);
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
    w->enc = m->block ? CKPT_MX : CKPT_AFFINE;
    w->q = (struct qformat){m->bits, m->group, scales->dtype};
    if (m->block)
        (void)qformat_find_block(m->mode, &w->q);
    w->dtype = DT_UNKNOWN;
    w->ggml = GGML_NONE;
    w->n_dim = weight->n_dim;
    memcpy(w->dim, weight->dim, sizeof w->dim);
    w->dim[w->n_dim - 1] = groups * m->group;
    w->data = weight->data;
    w->scales = scales->data;
    w->biases = p->biases ? p->biases->data : NULL;
    w->globals = p->globals ? p->globals->data : NULL;
    w->bytes = weight->bytes + scales->bytes + (p->biases ? p->biases->bytes : 0) +
               (p->globals ? p->globals->bytes : 0);
    return ERR_OK;
}
