/* convert.c: what a conversion does to each weight. */
#include "convert/convert.h"

#include <stdio.h>

#include "common/io.h"

static void set_quantized(struct plan_item *it, const struct convert_options *o)
{
    if (o->expand != DT_UNKNOWN) {
        plan_set_dense(it, o->expand);
        it->note[0] = 0;
    } else if (!it->packed) {
        plan_set_dense(it, o->rest);
        plan_note_no_packed(it);
    }
}

/* Pages of a file that is mapped as it is may be dropped; members of archives may be memory. */
static bool may_drop(const struct checkpoint *c, const struct ckpt_weight *w)
{
    for (size_t i = 0; i < c->n_files; i++) {
        const struct container *f = c->files[i];
        uint64_t size;
        if (w->data >= f->file_data && w->data < f->file_data + f->file_bytes)
            return io_exists(f->path) && io_size(f->path, &size, NULL) == ERR_OK &&
                   size == f->file_bytes;
    }
    return false;
}

/* A grid goes before a rule: it keeps every value. */
static enum err_code look_for_grid(struct plan_item *it, const struct checkpoint *c,
                                   const struct convert_options *o, struct err *e)
{
    struct grid_options g = {
        .threads = o->threads, .interrupted = o->interrupted, .drop = may_drop(c, it->w)};
    enum err_code rc = grid_look(it->w, &g, &it->grid, e);
    if (rc == ERR_OK && grid_is_on(&it->grid))
        plan_set_grid(it);
    return rc;
}

bool convert_is_latent(const struct plan *p)
{
    const json_t *config = p->ckpt->config;
    const json_t *inner = json_object_get(config, "text_config");
    bool says = json_is_object(json_object_get(config, "quantization_config")) ||
                json_is_object(json_object_get(inner, "quantization_config"));
    bool looked = false;
    for (size_t i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->items[i];
        looked |= it->grid.units > 0;
        if (it->w->enc != CKPT_DENSE || it->action == PLAN_GRID)
            return false;
    }
    return says && looked;
}

/* The matrices that trainers quantize; a recipe's own decisions stay. */
static enum err_code apply_formula(struct plan *p, const struct qat_formula *f, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_items; i++) {
        struct plan_item *it = &p->items[i];
        enum ckpt_role role = it->w->role;
        bool linear = role == ROLE_ATTENTION || role == ROLE_MLP || role == ROLE_EXPERT;
        if (it->action == PLAN_GRID || it->w->enc != CKPT_DENSE)
            return err_set(e, ERR_INPUT,
                           "tensor %s %s: --qat-formula is for latent weights, and would fit these "
                           "anew",
                           it->w->name,
                           it->action == PLAN_GRID ? "lies on a grid" : "is quantized already");
        if (!linear || !plan_can_pack(it->w) || it->rule >= 0)
            continue;
        if (it->k % f->group)
            return err_set(e, ERR_INPUT, "tensor %s: groups of %d do not cut rows of %lld",
                           it->w->name, f->group, (long long)it->k);
        plan_set_formula(it, f);
        n++;
    }
    return n ? ERR_OK : err_set(e, ERR_INPUT, "--qat-formula: no matrix to quantize");
}

enum err_code convert_plan(struct plan **p, const struct checkpoint *c,
                           const struct convert_options *o, struct err *e)
{
    enum err_code rc = o->recipe ? plan_from_recipe(p, c, o->recipe, e) : plan_keep_all(p, c, e);
    for (size_t i = 0; rc == ERR_OK && i < (*p)->n_items; i++) {
        struct plan_item *it = &(*p)->items[i];
        bool look = o->grid && o->expand == DT_UNKNOWN && plan_can_pack(it->w);
        if (look && grid_can_look(it->w))
            rc = look_for_grid(it, c, o, e);
        if (it->action == PLAN_GRID || it->action == PLAN_ENCODE)
            continue;
        if (it->w->enc != CKPT_DENSE)
            set_quantized(it, o);
        else if (o->dtype != DT_UNKNOWN && dtype_is_float(it->w->dtype))
            plan_set_dense(it, o->dtype);
    }
    if (rc == ERR_OK && o->formula.kind != QAT_NONE)
        rc = apply_formula(*p, &o->formula, e);
    if (rc != ERR_OK) {
        plan_free(*p);
        *p = NULL;
    }
    return rc;
}

json_t *convert_options_json(const struct convert_options *o)
{
    json_t *v = json_object();
    if (o->expand != DT_UNKNOWN)
        json_object_set_new(v, "expand", json_string(dtype_name(o->expand)));
    else
        json_object_set_new(v, "rest", json_string(dtype_name(o->rest)));
    if (o->dtype != DT_UNKNOWN)
        json_object_set_new(v, "dtype", json_string(dtype_name(o->dtype)));
    char text[48];
    if (o->formula.kind != QAT_NONE)
        json_object_set_new(v, "qat_formula", json_string(qat_formula_text(&o->formula, text)));
    if (!o->grid)
        json_object_set_new(v, "grid", json_false());
    return v;
}

const char *convert_torch_dtype(const struct convert_options *o)
{
    switch (o->expand != DT_UNKNOWN ? o->expand : o->dtype) {
    case DT_BF16:
        return "bfloat16";
    case DT_F16:
        return "float16";
    case DT_F32:
        return "float32";
    default:
        return NULL;
    }
}
