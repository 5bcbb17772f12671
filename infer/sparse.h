/* sparse.h: a family whose layers are attention (infer/decoder.h) and experts (infer/experts.h), or
 * the dense MLP in the layers that are not sparse. Its file says what its tensors are called.
 */
#ifndef ASSAY_INFER_SPARSE_H
#define ASSAY_INFER_SPARSE_H

#include "infer/experts.h"

struct sparse {
    struct decoder decoder;  /* first: the parts of decoder.h see this alone */
    struct experts *experts; /* [n_layer], unused where the layer is dense */
    struct experts_room room;
};

struct sparse_names {
    const char *block, *router; /* as in struct experts_names */
    enum act_kind act;          /* the family's only one */
};

/* ERR_INPUT where sparse layers have no experts, or with another activation. */
MUST_USE enum err_code sparse_bind(struct model *m, struct model_binder *b,
                                   const struct sparse_names *names, struct err *e);
size_t sparse_plan(struct model *m, const struct model_dims *d);
void sparse_limits(const struct model *m, struct kern_limits *l);
MUST_USE enum err_code sparse_forward(const struct model *m, const struct model_step *s,
                                      struct err *e);

/* The table row of a family; `bind` calls sparse_bind. */
#define SPARSE_FAMILY(text, bind_names)                                                            \
    {                                                                                              \
        .name = (text), .priv_bytes = sizeof(struct sparse), .bind = (bind_names),                 \
        .plan = sparse_plan, .limits = sparse_limits, .forward = sparse_forward                    \
    }

#endif
