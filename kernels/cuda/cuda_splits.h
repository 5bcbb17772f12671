/* cuda_splits.h: what the attention kernels share: how heads and rows are cut, the results of
 * splits, and who takes a step (cuda_attention.cu).
 *
 * cuda_attention_row.cu takes each row by itself, a split a block, which is what a step of single
 * tokens wants; cuda_attention_many.cu takes steps of many rows and common shapes;
 * cuda_attention_items.cu what is left, in items of up to 64 slots. The first and the last may
 * leave splits as records in scratch that cuda_attention_join adds in ascending order:
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
#define SPLIT_TILES   (KERN_SPLIT / KERN_TILE)

/* An item is up to `slots` slots, a slot being one query head of one row: neighbouring rows times
 * heads of one kv head. */
struct attention_cut {
    int group;         /* query heads of a kv head */
    int heads, pieces; /* heads of an item; items that a kv head's heads are cut into */
    int tokens;        /* rows of an item, at most */
};

struct cuda_partials {
    float *data; /* NULL: splits are not left apart */
    int n_splits, dims;
    float c;         /* factor of scores */
    int late;        /* planted fault: tiles by which splits begin late */
    bool descending; /* planted fault: records are added from the last */
};

#ifdef __cplusplus
extern "C" {
#endif

struct attention_cut cuda_attention_cut(const struct attention_args *a, int slots);
/* The planted fault of splits that begin a tile late, for this step. */
bool cuda_attention_late(const struct attention_args *a);
/* Scratch, or data NULL when the records of the step do not fit in it. */
struct cuda_partials cuda_attention_partials(const struct cuda_kern *c,
                                             const struct attention_args *a);
/* Adds the records of rows that have more than `skip` splits. */
void cuda_attention_join(const struct cuda_kern *c, const struct attention_args *a,
                         const struct cuda_partials *p, int skip);
/* What is left, any shape. apart: whether each split has a block of its own there. */
void cuda_attention_items_run(const struct cuda_kern *c, const struct attention_args *a);
bool cuda_attention_items_apart(const struct cuda_kern *c, const struct attention_args *a);
/* False when the shape is not for the row kernel, or for that of many rows. */
bool cuda_attention_rows_run(const struct cuda_kern *c, const struct attention_args *a);
bool cuda_attention_many_run(const struct cuda_kern *c, const struct attention_args *a);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
struct attention_heads {
    int kv, head0, heads;
};

/* The heads of item y of a group of rows. */
__device__ static inline struct attention_heads heads_of(const struct attention_cut &cut, int y)
{
    int kv = y / cut.pieces, first = y % cut.pieces * cut.heads;
    return {kv, kv * cut.group + first, MIN2(cut.heads, cut.group - first)};
}

/* The split that holds a tile. */
__device__ static inline int split_of(int tile, int late)
{
    return MAX2(tile - late, 0) / SPLIT_TILES;
}

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
