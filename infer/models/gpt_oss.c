/* gpt_oss.c: gpt-oss: Llama's block with a sink for each head and a window on every other layer,
 * and experts in every layer: biases everywhere, a clamped gate, weights by a softmax over the
 * chosen.
 */
#include "infer/sparse.h"

static enum err_code bind(struct model *m, struct model_binder *b, struct err *e)
{
    static const struct sparse_names names = {"mlp.", "router", ACT_GPTOSS};
    return sparse_bind(m, b, &names, e);
}

const struct model_family model_gpt_oss = SPARSE_FAMILY("gpt_oss", bind);
