/* weight_list.c: stored tensors -> weights under canonical names, with role, layer and encoding.
 *
 * A packed MLX module is bound from three tensors and checked; every other tensor is a weight by
 * itself; experts are stacked in the end (weight_experts.c). What is no weight is left out: rope
 * tables, a head beside a tied embedding, projections of layers that share keys and values.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/checkpoint_priv.h"
#include "ckpt/ct_layout.h"
#include "ckpt/mlx_layout.h"
#include "ckpt/names.h"
#include "ckpt/gguf.h"
#include "ckpt/source.h"

/* A tensor and the file that it came from. */
struct item {
    const struct tensor *t;
    const struct container *file;
};

struct items {
    struct item *item; /* sorted by stored name */
    size_t n;
};

const char *weight_list_family(const struct checkpoint *c)
{
    const json_t *inner = json_object_get(c->config, "text_config");
    const char *name = json_string_value(json_object_get(inner, "model_type"));
    return name ? name : json_string_value(json_object_get(c->config, "model_type"));
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int d = strcmp(x->t->name, y->t->name);
    return d ? d : strcmp(x->file->path, y->file->path);
}

static bool same_tensor(const struct tensor *a, const struct tensor *b)
{
    return a->dtype == b->dtype && a->ggml == b->ggml && a->n_dim == b->n_dim &&
           memcmp(a->dim, b->dim, sizeof a->dim) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* All tensors of all files; one that occurs twice must be the same. */
static enum err_code collect(struct checkpoint *c, struct items *out, struct err *e)
{
    size_t n = 0, kept = 0;
    for (size_t f = 0; f < c->n_files; f++)
        n += c->files[f]->n_tensors;
    struct item *item = arena_array(c->priv->arena, n + 1, sizeof *item);
    if (!item)
        return arena_error(c->priv->arena, n, e);
    n = 0;
    for (size_t f = 0; f < c->n_files; f++) {
        for (size_t i = 0; i < c->files[f]->n_tensors; i++)
            item[n++] = (struct item){&c->files[f]->tensors[i], c->files[f]};
    }
    qsort(item, n, sizeof *item, compare_items);
    for (size_t i = 0; i < n; i++) {
        if (kept && strcmp(item[kept - 1].t->name, item[i].t->name) == 0) {
            if (!same_tensor(item[kept - 1].t, item[i].t))
                return err_set(e, ERR_INPUT, "tensor '%s' differs between %s and %s",
                               item[i].t->name, item[kept - 1].file->path, item[i].file->path);
            continue;
        }
        item[kept++] = item[i];
    }
    *out = (struct items){item, kept};
    return ERR_OK;
}

static int compare_key(const void *key, const void *item)
{
    return strcmp(key, ((const struct item *)item)->t->name);
}

/* "<module><end>", or NULL. */
static const struct tensor *find_part(const struct items *all, const char *module, const char *end)
{
    char name[CKPT_NAME_MAX + 16];
    snprintf(name, sizeof name, "%s%s", module, end);
    const struct item *found = bsearch(name, all->item, all->n, sizeof *all->item, compare_key);
    return found ? found->t : NULL;
}

static void bind_plain(struct ckpt_weight *w, const struct tensor *t)
{
    w->enc = t->ggml == GGML_NONE ? CKPT_DENSE : CKPT_GGML;
    w->dtype = t->dtype;
    w->ggml = t->ggml;
    w->n_dim = t->n_dim;
    memcpy(w->dim, t->dim, sizeof w->dim);
    w->data = t->data;
    w->bytes = t->bytes;
}

static void forbid(struct checkpoint *c, const char *module, const char *mode)
{
    if (c->hp_ok)
        err_set(&c->hp_err, ERR_INPUT, "module '%s': quantization mode '%.32s' is not supported",
                module, mode);
    c->hp_ok = false;
}

/* One stored tensor of a folder. *skip: it belongs to a packed module. */
static enum err_code bind_folder(struct checkpoint *c, const struct items *all,
                                 const struct tensor *t, struct ckpt_weight *w, bool *skip,
                                 struct err *e)
{
    static const char *const ends[] = {".weight", ".scales", ".biases", ".global_scale"};
    const json_t *block = mlx_layout_block(c->config);
    char module[CKPT_NAME_MAX] = "";
    int part = -1;
    for (int i = 0; i < (int)ARRAY_LEN(ends); i++) {
        if (str_ends(t->name, ends[i])) {
            size_t n = strlen(t->name) - strlen(ends[i]);
            memcpy(module, t->name, n);
            module[n] = 0;
            part = i;
        }
    }
    bind_plain(w, t);
    if (part < 0)
        return ERR_OK;
    const struct tensor *weight = find_part(all, module, ".weight");
    const struct tensor *scales = find_part(all, module, ".scales");
    if (part > 0 && !weight)
        return err_set(e, ERR_INPUT, "tensor '%s': module '%s' has no weight", t->name, module);
    bool packed = weight && weight->dtype == DT_U32 && scales;
    if (!packed && !block)
        return ERR_OK; /* whatever it is, it is not the MLX layout */
    struct mlx_module m;
    enum err_code rc = mlx_layout_module(block, module, scales != NULL, &m, e);
    if (rc != ERR_OK)
        return rc;
    if (m.quantized && !m.known)
        forbid(c, module, m.mode);
    if (!m.quantized || !m.known)
        return part == 2 && !scales
                   ? err_set(e, ERR_INPUT, "module '%s': biases without scales", module)
                   : ERR_OK;
    *skip = part > 0;
    if (*skip)
        return ERR_OK;
    struct mlx_parts parts = {t, scales, find_part(all, module, ".biases"),
                              find_part(all, module, ".global_scale")};
    rc = mlx_layout_bind(w, &m, &parts, e);
    return err_wrap(e, rc, "module '%s'", module);
}

/* Parts of a module that compressed-tensors packed; the first one stands for it. */
static const char *const ct_ends[] = {".weight_packed", ".weight_scale", ".weight_zero_point",
                                      ".weight_shape", ".weight_g_idx"};

/* The module that a stored tensor is part of; -1: it is no such part. */
static int ct_part(const struct checkpoint *c, const struct items *all, const struct tensor *t,
                   char module[CKPT_NAME_MAX])
{
    for (int i = 0; c->priv->ct && i < (int)ARRAY_LEN(ct_ends); i++) {
        if (!str_ends(t->name, ct_ends[i]))
            continue;
        size_t n = strlen(t->name) - strlen(ct_ends[i]);
        memcpy(module, t->name, n);
        module[n] = 0;
        return find_part(all, module, ct_ends[0]) ? i : -1;
    }
    return -1;
}

static enum err_code bind_ct(struct checkpoint *c, const struct items *all, const char *module,
                             struct ckpt_weight *w, struct err *e)
{
    struct ct_tensors t = {find_part(all, module, ct_ends[0]), find_part(all, module, ct_ends[1]),
                           find_part(all, module, ct_ends[2]), find_part(all, module, ct_ends[3]),
                           find_part(all, module, ct_ends[4])};
    struct ct_packed *p = arena_alloc(c->priv->arena, sizeof *p);
    struct ct_module m;
    if (!p)
        return arena_error(c->priv->arena, sizeof *p, e);
    enum err_code rc = ct_layout_module(c->priv->ct, module, &m, e);
    if (rc == ERR_OK)
        rc = ct_layout_bind(w, p, &m, &t, e);
    return err_wrap(e, rc, "module '%s'", module);
}

/* Llama's q and k in a GGUF have permuted rows. */
static enum err_code mark_rope(struct checkpoint *c, struct ckpt_weight *w, struct err *e)
{
    struct gguf_text arch = {NULL, 0};
    enum err_code rc =
        gguf_get_text(c->files[0]->gguf, "general.architecture", GGUF_OPTIONAL, &arch, e);
    bool q = strstr(w->name, ".self_attn.q_proj.") != NULL;
    if (rc != ERR_OK || arch.len != 5 || memcmp(arch.text, "llama", 5) != 0)
        return rc;
    if (!q && !strstr(w->name, ".self_attn.k_proj."))
        return ERR_OK;
    const char *key = q ? "num_attention_heads" : "num_key_value_heads";
    const json_t *heads = json_object_get(c->config, key);
    if (!heads)
        heads = json_object_get(c->config, "num_attention_heads");
    int64_t n = json_integer_value(heads), rows = w->n_dim ? w->dim[0] : 0;
    if (n < 1 || n > 4096 || w->n_dim > 2 || rows % (2 * n) || rows / n > 8192 || rows == 0) {
        return err_set(e, ERR_INPUT, "weight '%s': %lld rows do not split into %lld rope heads",
                       w->stored, (long long)rows, (long long)n);
    }
    w->rope_heads = (int)n;
    return ERR_OK;
}

/* What multiplies a matrix of NVFP4 as a whole: passed over, every value would be wrong. */
static enum err_code refuse_scale(const char *stored, const char *name, struct err *e)
{
    if ((!str_ends(name, ".scale") && !str_ends(name, ".input_scale")) ||
        str_ends(name, ".router.scale"))
        return ERR_OK;
    return err_set(e, ERR_INPUT, "weight '%s': a scale of a whole matrix (NVFP4) is not read",
                   stored);
}

/* gpt-oss's experts in a folder of HF's. */
static enum err_code add_gpt_oss(struct checkpoint *c, const struct items *all,
                                 const struct item *it, struct err *e)
{
    char module[CKPT_NAME_MAX] = "";
    size_t first = c->n_weights;
    if (str_ends(it->t->name, "_blocks"))
        snprintf(module, sizeof module, "%.*s", (int)(strlen(it->t->name) - strlen("_blocks")),
                 it->t->name);
    const struct tensor *scales = find_part(all, module, "_scales");
    enum err_code rc = weight_gpt_oss_add(c, it->t->name, it->t, scales, e);
    for (size_t i = first; i < c->n_weights; i++)
        c->weights[i].layer = names_layer(c->weights[i].name);
    return err_wrap(e, rc, "%s", it->file->path);
}

/* Published files have keys and values of layers that look at another one's, unused. */
static bool is_unused_kv(const struct checkpoint *c, const char *name)
{
    const int layer = names_layer(name);
    return c->hp_ok && layer >= 0 && layer < c->hp.n_layer && !hparams_has_kv(&c->hp, layer) &&
           (strstr(name, ".self_attn.k_proj.") || strstr(name, ".self_attn.v_proj.") ||
            strstr(name, ".self_attn.k_norm."));
}

static enum err_code add_weight(struct checkpoint *c, const struct items *all,
                                const struct item *it, const char *family, struct err *e)
{
    char name[CKPT_NAME_MAX], module[CKPT_NAME_MAX];
    struct ckpt_weight *w = &c->weights[c->n_weights];
    bool gguf = it->file->kind == CONTAINER_GGUF, skip = false;
    int part = ct_part(c, all, it->t, module);
    if (part > 0)
        return ERR_OK;
    const char *stored = it->t->name;
    if (part == 0) {
        strcat(module, ".weight"); /* shorter than what was cut off */
        stored = module;
    }
    *w = (struct ckpt_weight){.stored = it->t->name, .ggml = GGML_NONE};
    if (!gguf && family && strcmp(family, "gpt_oss") == 0 && weight_gpt_oss_takes(it->t->name))
        return add_gpt_oss(c, all, it, e);
    enum names_match match =
        gguf ? names_from_gguf(family, stored, name) : names_from_folder(family, stored, name);
    if (match == NAMES_ASIDE) {
        c->asides[c->n_asides++] =
            (struct ckpt_aside){it->t->name, it->t->bytes, tensor_elems(it->t)};
        return ERR_OK;
    }
    if (match == NAMES_DROPPED || is_unused_kv(c, name) ||
        (c->hp_ok && c->hp.tied && str_starts(name, "lm_head.")))
        return ERR_OK;
    w->name = arena_strdup(c->priv->arena, name);
    if (!w->name)
        return arena_error(c->priv->arena, sizeof name, e);
    enum err_code rc = ERR_OK;
    if (part == 0) {
        module[strlen(module) - strlen(".weight")] = 0;
        rc = bind_ct(c, all, module, w, e);
    } else if (gguf) {
        bind_plain(w, it->t);
        w->minus_one = names_gguf_plus_one(family, name);
        rc = refuse_scale(stored, name, e);
        if (rc == ERR_OK)
            rc = mark_rope(c, w, e);
    } else {
        rc = bind_folder(c, all, it->t, w, &skip, e);
    }
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s", it->file->path);
    w->role = names_role(name);
    w->layer = names_layer(name);
    c->n_weights += !skip;
    return ERR_OK;
}

static int compare_weights(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_weight *)a)->name, ((const struct ckpt_weight *)b)->name);
}

static bool in_file(const struct checkpoint *c, const uint8_t *p)
{
    for (size_t i = 0; p && i < c->n_files; i++) {
        if (p >= c->files[i]->file_data && p < c->files[i]->file_data + c->files[i]->file_bytes)
            return true;
    }
    return !p;
}

/* Some weights are made by the reader and lie in its memory. */
static void note_maps(struct checkpoint *c)
{
    for (size_t i = 0; source_maps(c->priv->source) && i < c->n_weights; i++) {
        struct ckpt_weight *w = &c->weights[i];
        const struct ckpt_block whole = {w->data, w->scales, w->biases, w->globals};
        const struct ckpt_block *blocks = w->blocks ? w->blocks : &whole;
        w->mapped = true;
        for (int64_t b = 0; b < (w->blocks ? w->dim[0] : 1); b++)
            w->mapped &= in_file(c, blocks[b].data) && in_file(c, blocks[b].scales) &&
                         in_file(c, blocks[b].biases);
    }
}

enum err_code weight_list_build(struct checkpoint *c, struct err *e)
{
    struct items all = {NULL, 0};
    const char *family = weight_list_family(c);
    enum err_code rc = collect(c, &all, e);
    if (rc != ERR_OK)
        return rc;
    /* Room for stacked experts beside their parts, gate and up in one being two. */
    c->weights = arena_array(c->priv->arena, 3 * all.n + 1, sizeof *c->weights);
    c->asides = arena_array(c->priv->arena, all.n + 1, sizeof *c->asides);
    if (!c->weights || !c->asides)
        return arena_error(c->priv->arena, all.n, e);
    for (size_t i = 0; i < all.n; i++) {
        rc = add_weight(c, &all, &all.item[i], family, e);
        if (rc != ERR_OK)
            return rc;
    }
    qsort(c->weights, c->n_weights, sizeof *c->weights, compare_weights);
    rc = weight_experts_stack(c, family, e);
    if (rc != ERR_OK)
        return rc;
    qsort(c->weights, c->n_weights, sizeof *c->weights, compare_weights);
    for (size_t i = 1; i < c->n_weights; i++) {
        if (strcmp(c->weights[i - 1].name, c->weights[i].name) == 0)
            return err_set(e, ERR_INPUT, "tensors '%s' and '%s' are both '%s'",
                           c->weights[i - 1].stored, c->weights[i].stored, c->weights[i].name);
    }
    note_maps(c);
    return ERR_OK;
}
