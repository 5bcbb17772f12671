/* cuda_splits.h: what the attention kernels share: the results of splits, and who takes a step.
 *
 * cuda_attention_row.cu takes each row by itself, a split a block, which is what a step of single
 * tokens wants; cuda_attention_many.cu takes steps of many rows and common shapes;
 * cuda_attention.cu what is left, in items of up to 64 slots. The first and the last may leave
 * splits as records in scratch that join_splits adds in ascending order:
 *
 *     [row][head][split][dims + PARTIAL_EXTRA] f32: O, then L and m
 *
 * A split that holds no key of its row has no record, and nobody reads one.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_SPLITS_H
#define ASSAY_KERNELS_CUDA_CUDA_SPLITS_H

#include "kernels/cuda/cuda_page.h"
#include "kernels/cuda/cuda_private.h"
#include "kernels/elem.h"
#include "kernels/mma90.h"

#define PARTIAL_EXTRA 4 /* floats of a record after its dims: L, m, and two to align */

struct cuda_partials {
    float *data; /* NULL: splits are not left apart */
    int n_splits, dims;
    float c;         /* factor of scores */
    bool descending; /* planted fault: records are added from the last */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Splits that a row of the step may reach: rows->keys_max, or all pages where that is unknown. */
int cuda_attention_splits(const struct kern_rows *rows);
/* Scratch, or data NULL when the records of the step do not fit in it. */
struct cuda_partials cuda_attention_partials(const struct cuda_kern *c,
                                             const struct attention_args *a);
/* Adds the records of rows that have more than `skip` splits. */
void cuda_attention_join(const struct cuda_kern *c, const struct attention_args *a,
                         const struct cuda_partials *p, int skip);
/* False when the shape is not for the row kernel, or for that of many rows. */
bool cuda_attention_rows_run(const struct cuda_kern *c, const struct attention_args *a);
bool cuda_attention_many_run(const struct cuda_kern *c, const struct attention_args *a);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
__device__ static inline void load_matrices(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void load_transposed(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline float *partial_of(const struct cuda_partials &p, int64_t row, int n_head,
                                           int head, int split)
{
    return p.data + ((row * n_head + head) * p.n_splits + split) * (p.dims + PARTIAL_EXTRA);
}

/* What every total is multiplied by: first the sink's factor, then one over the row sum. */
struct attention_factors {
    float scale, inverse;
};

__device__ static inline struct attention_factors end_row(const struct attention_args &a, int head,
                                                          float m, float l, float c)
{
    struct attention_factors f = {1.0f, 0.0f};
    if (a.sinks) {
        float m2 = m * c, s2 = a.sinks[head] * ELEM_LOG2E;
        f.scale = elem_sink_scale(m2, s2);
        l = fmaf(l, f.scale, elem_sink_gain(m2, s2));
    }
    f.inverse = 1.0f / l;
    return f;
}

__device__ static inline void store_out(const struct attention_args &a, int64_t row, int head,
                                        int dim, float total, struct attention_factors f)
{
    uint16_t *out = (uint16_t *)a.out + (row * a.n_head + head) * a.head_dim;
    float v = (a.sinks ? total * f.scale : total) * f.inverse;
    if (dim < a.head_dim)
        out[dim] = v != v ? (uint16_t)(MMA90_NAN >> 16) : bf16_from_f32(v);
}
#endif

#endif
