/* qwen3_moe.c: Qwen3 with experts: Qwen3's attention, and in most layers experts weighted by a
 * softmax over all of them; the layers that the config leaves dense have Llama's MLP.
 */
#include "infer/sparse.h"

static enum err_code bind(struct model *m, struct model_binder *b, struct err *e)
{
    static const struct sparse_names names = {"mlp.", "gate", ACT_SILU};
    return sparse_bind(m, b, &names, e);
}

const struct model_family model_qwen3_moe = SPARSE_FAMILY("qwen3_moe", bind);
