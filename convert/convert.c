/* convert.c: what a conversion does to each weight. */
#include "convert/convert.h"

#include <stdio.h>

static void set_quantized(struct plan_item *it, const struct convert_options *o)
{
    if (o->expand != DT_UNKNOWN) {
        plan_set_dense(it, o->expand);
        it->note[0] = 0;
    } else if (!it->packed) {
        plan_set_dense(it, o->rest);
        snprintf(it->note, sizeof it->note, "%s has no packed form: rounded to %s",
                 ggml_type_name(it->w->ggml), dtype_name(o->rest));
    }
}

enum err_code convert_plan(struct plan **p, const struct checkpoint *c,
                           const struct convert_options *o, struct err *e)
{
    enum err_code rc = plan_keep_all(p, c, e);
    for (size_t i = 0; rc == ERR_OK && i < (*p)->n_items; i++) {
        struct plan_item *it = &(*p)->items[i];
        if (it->w->enc != CKPT_DENSE)
            set_quantized(it, o);
        else if (o->dtype != DT_UNKNOWN && dtype_is_float(it->w->dtype))
            plan_set_dense(it, o->dtype);
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
