/* cuda_experts.h: products of routed rows with their experts' matrices, as cuda_moe.cu hands them
 * to the kernels that take them. Seen by CUDA alone.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_EXPERTS_H
#define ASSAY_KERNELS_CUDA_CUDA_EXPERTS_H

#include "kernels/cuda/cuda_weight.h"

/* One matrix a expert, or two (gate and up) of one format whose products become an activation. */
struct cuda_experts {
    int n_pairs, n_expert, x_div;
    const int32_t *order, *first;
    const uint16_t *x;
    int n_matrices;
    struct cuda_order weight; /* of each matrix */
    const uint8_t *data[2];
    const float *bias[2]; /* or NULL */
    int64_t tile_bytes;
    int64_t rows;            /* of an expert, in each matrix */
    bool descending;         /* planted fault: chunk sums in the wrong order */
    bool lists_stand;        /* order and first are there whenever a kernel starts, early or not */
    struct route_args route; /* to be done by the kernel itself; logits NULL: none */
    float *out;              /* one matrix: rows [n_pairs] of out_stride elements */
    int64_t out_stride;
    enum act_kind act; /* two: [n_pairs, rows] in `gated` */
    float limit, alpha;
    uint16_t *gated;
};

/* Can cuda_experts_few_run take a route too? */
bool cuda_experts_few_routes(const struct route_args *r);
/* False when the path does not take the shape; then nothing is launched. */
bool cuda_experts_few_run(const struct cuda_kern *c, const struct cuda_experts *a);
bool cuda_experts_many_run(const struct cuda_kern *c, const struct cuda_experts *a);
size_t cuda_experts_many_scratch_bytes(const struct kern_limits *l);

#endif
