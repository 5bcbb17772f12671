/* weight_gpt_oss.c: the experts of gpt-oss as HF stores them -> weights under canonical names.
 *
 *   experts.gate_up_proj_blocks, _scales  U8 [E, 2I, K/32, 16], [E, 2I, K/32]   mxfp4, low nibble
 *                                         first: the MLX layout byte for byte
 *   experts.down_proj_blocks, _scales     U8 [E, H, K/32, 16], [E, H, K/32]
 *   experts.gate_up_proj                  float [E, H, 2I]   not quantized: input by output
 *   experts.down_proj                     float [E, I, H]
 *   experts.gate_up_proj_bias             float [E, 2I]
 *   experts.down_proj_bias                float [E, H]
 *
 * Rows of gate and up alternate, gate first, so gate_proj and up_proj are every other row (or, not
 * quantized, every other column) of one tensor. No byte moves: row_step and strides say where the
 * elements are.
 */
#include <stdio.h>

#include "ckpt/checkpoint_priv.h"

#define EXPERTS ".mlp.experts."

enum kind { PACKED, SCALES, FLOAT, BIAS };

/* What a stored name ends with. */
static const struct ending {
    const char *text;
    enum kind kind;
    bool gate_up;
} endings[] = {
    {"gate_up_proj_blocks", PACKED, true}, {"gate_up_proj_scales", SCALES, true},
    {"gate_up_proj_bias", BIAS, true},     {"gate_up_proj", FLOAT, true},
    {"down_proj_blocks", PACKED, false},   {"down_proj_scales", SCALES, false},
    {"down_proj_bias", BIAS, false},       {"down_proj", FLOAT, false},
};

static const struct ending *find_ending(const char *name)
{
    const char *at = strstr(name, EXPERTS);
    for (size_t i = 0; at && i < ARRAY_LEN(endings); i++) {
        if (strcmp(at + strlen(EXPERTS), endings[i].text) == 0)
            return &endings[i];
    }
    return NULL;
}

bool weight_gpt_oss_takes(const char *name)
{
    return find_ending(name) != NULL;
}

static enum err_code bad_shape(const struct tensor *t, const char *expected, struct err *e)
{
    return err_set(e, ERR_INPUT, "tensor '%s': %s of %d dimensions, expected %s", t->name,
                   dtype_name(t->dtype), t->n_dim, expected);
}

/* The blocks' scales must be there and as many. */
static enum err_code check_packed(const struct tensor *t, const struct tensor *scales, bool even,
                                  struct err *e)
{
    if (t->dtype != DT_U8 || t->n_dim != 4 || t->dim[3] != 16 || (even && t->dim[1] % 2))
        return bad_shape(t, "U8 [experts, rows, blocks, 16]", e);
    if (!scales)
        return err_set(e, ERR_INPUT, "tensor '%s': its scales are missing", t->name);
    if (scales->dtype != DT_U8 || scales->n_dim != 3 ||
        memcmp(scales->dim, t->dim, 3 * sizeof *t->dim) != 0)
        return bad_shape(scales, "U8 [experts, rows, blocks] as its blocks have", e);
    return ERR_OK;
}

/* Part `part` of `parts` alternating rows. */
static void bind_packed(struct ckpt_weight *w, const struct tensor *t, const struct tensor *scales,
                        int part, int parts)
{
    const int64_t groups = t->dim[2];
    w->enc = CKPT_MX;
    w->q = QFORMAT_MXFP4;
    w->dtype = DT_UNKNOWN;
    w->n_dim = 3;
    w->dim[0] = t->dim[0];
    w->dim[1] = t->dim[1] / parts;
    w->dim[2] = groups * 32;
    w->data = t->data + part * groups * 16;
    w->scales = scales->data + part * groups;
    w->bytes = (t->bytes + scales->bytes) / (size_t)parts;
    w->row_step = parts > 1 ? parts : 0;
}

static enum err_code bind_strided(struct checkpoint *c, struct ckpt_weight *w,
                                  const struct tensor *t, struct ckpt_strides s, int parts,
                                  struct err *e)
{
    struct ckpt_strides *kept = arena_alloc(c->priv->arena, sizeof *kept);
    if (!kept)
        return arena_error(c->priv->arena, sizeof *kept, e);
    *kept = s;
    w->enc = CKPT_DENSE;
    w->dtype = t->dtype;
    w->data = t->data;
    w->strides = kept;
    w->bytes = t->bytes / (size_t)parts;
    return ERR_OK;
}

/* [E, in, out] as [E, out, in]. */
static enum err_code bind_float(struct checkpoint *c, struct ckpt_weight *w, const struct tensor *t,
                                int part, int parts, struct err *e)
{
    const int64_t in = t->dim[1], out = t->dim[2];
    struct ckpt_strides s = {out / parts, in * out, parts, out, part};
    w->n_dim = 3;
    w->dim[0] = t->dim[0];
    w->dim[1] = out / parts;
    w->dim[2] = in;
    return bind_strided(c, w, t, s, parts, e);
}

static enum err_code bind_bias(struct checkpoint *c, struct ckpt_weight *w, const struct tensor *t,
                               int part, int parts, struct err *e)
{
    struct ckpt_strides s = {t->dim[0], 0, t->dim[1], parts, part};
    w->n_dim = 2;
    w->dim[0] = t->dim[0];
    w->dim[1] = t->dim[1] / parts;
    return bind_strided(c, w, t, s, parts, e);
}

static enum err_code bind(struct checkpoint *c, struct ckpt_weight *w, const struct ending *end,
                          const struct tensor *t, const struct tensor *scales, int part,
                          struct err *e)
{
    int parts = end->gate_up ? 2 : 1;
    bool whole = t->n_dim > 0 && t->dim[t->n_dim - 1] % parts == 0 && dtype_is_float(t->dtype);
    enum err_code rc;
    switch (end->kind) {
    case PACKED:
        rc = check_packed(t, scales, end->gate_up, e);
        if (rc == ERR_OK)
            bind_packed(w, t, scales, part, parts);
        return rc;
    case FLOAT:
        if (t->n_dim != 3 || !whole)
            return bad_shape(t, "F32, F16 or BF16 [experts, in, out]", e);
        return bind_float(c, w, t, part, parts, e);
    default:
        if (t->n_dim != 2 || !whole)
            return bad_shape(t, "F32, F16 or BF16 [experts, rows]", e);
        return bind_bias(c, w, t, part, parts, e);
    }
}

enum err_code weight_gpt_oss_add(struct checkpoint *c, const char *name, const struct tensor *t,
                                 const struct tensor *scales, struct err *e)
{
    static const char *const halves[] = {"gate_proj", "up_proj"};
    const struct ending *end = find_ending(name);
    const int head = (int)(strstr(name, EXPERTS) - name + (ptrdiff_t)strlen(EXPERTS));
    enum err_code rc = ERR_OK;
    if (end->kind == SCALES)
        return ERR_OK; /* with its blocks */
    for (int part = 0; rc == ERR_OK && part < (end->gate_up ? 2 : 1); part++) {
        struct ckpt_weight *w = &c->weights[c->n_weights];
        char canonical[CKPT_NAME_MAX];
        int n = snprintf(canonical, sizeof canonical, "%.*s%s%s", head, name,
                         end->gate_up ? halves[part] : "down_proj",
                         end->kind == BIAS ? ".bias" : ".weight");
        *w = (struct ckpt_weight){.stored = t->name, .ggml = GGML_NONE, .role = ROLE_EXPERT};
        if (n >= (int)sizeof canonical)
            return err_set(e, ERR_INPUT, "tensor '%s': the name is too long", t->name);
        w->name = arena_strdup(c->priv->arena, canonical);
        if (!w->name)
            return arena_error(c->priv->arena, sizeof canonical, e);
        rc = bind(c, w, end, t, scales, part, e);
        c->n_weights += rc == ERR_OK;
    }
    return rc;
}
