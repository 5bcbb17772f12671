/* mixtral.c: Mixtral: Llama's attention, and experts in every layer, weighted by a softmax over the
 * chosen ones.
 */
#include "infer/sparse.h"

static enum err_code bind(struct model *m, struct model_binder *b, struct err *e)
{
    static const struct sparse_names names = {"block_sparse_moe.", "gate", ACT_SILU};
    return sparse_bind(m, b, &names, e);
}

const struct model_family model_mixtral = SPARSE_FAMILY("mixtral", bind);
