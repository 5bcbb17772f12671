/* cuda_attention.cu: rule 4 over the pages of cuda_page.h. */
#include "kernels/cuda/cuda_private.h"

extern "C" size_t cuda_attention_scratch_bytes(const struct cuda_kern *c,
                                               const struct kern_limits *l)
{
    (void)c;
    (void)l;
    return 0;
}

extern "C" enum err_code cuda_attention(struct kern *k, const struct attention_args *a,
                                        struct err *e)
{
    (void)a;
    return err_set(e, ERR_INTERNAL, "%s has no attention", k->device);
}
