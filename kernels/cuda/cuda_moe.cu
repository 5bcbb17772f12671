/* cuda_moe.cu: routing, expert products and their combination. */
#include "kernels/cuda/cuda_private.h"

extern "C" size_t cuda_moe_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    (void)c;
    (void)l;
    return 0;
}

extern "C" enum err_code cuda_route(struct kern *k, const struct route_args *a, struct err *e)
{
    (void)a;
    return err_set(e, ERR_INTERNAL, "%s has no routing", k->device);
}

extern "C" enum err_code cuda_expert_linear(struct kern *k, const struct expert_linear_args *a,
                                            struct err *e)
{
    (void)a;
    return err_set(e, ERR_INTERNAL, "%s has no expert products", k->device);
}

extern "C" enum err_code cuda_combine(struct kern *k, const struct combine_args *a, struct err *e)
{
    (void)a;
    return err_set(e, ERR_INTERNAL, "%s has no combination of experts", k->device);
}
