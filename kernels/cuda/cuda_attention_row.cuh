/* cuda_attention_row.cuh: what the parts of the row kernel share: the sizes of its blocks, its
 * plan, and what a block knows of its row.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_ROW_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_ROW_CUH

#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_launch.cuh"

#define TILES          SPLIT_TILES
#define BLOCK          (32 * TILES)
#define HEADS          8
#define P_STRIDE       (KERN_SPLIT + 8)
#define ALL            0xffffffffu
#define MEET_MAX       8         /* splits of a cluster */
#define RECORDS_STAY   (4 << 20) /* floats of records that the second-level cache keeps */
#define Q_STRIDE(dims) ((dims) + 8)

/* Places of shared memory for halves of 64 keys: one for each K, or as many as leave room for a
 * second block, or fit. */
template <int DIMS> constexpr int row_places = DIMS > 128 ? 3 : TILES;

struct row_plan {
    struct cuda_partials parts;
    struct attention_cut cut;
    bool rotates; /* rope is part of it */
    bool once;    /* K and V leave the second-level cache first, so that the records stay */
    bool no_wait; /* planted fault */
    int delay_ns; /* planted: splits but the first take so much longer, where they meet */
};

/* Norms of the heads that rope reads, whose rotation is of all dims; v's weight is 1 + v. */
struct row_norms {
    const float *q, *k, *v; /* or NULL */
    float eps;
    bool plus_one;
};

struct row_shared {
    uint64_t k_here[TILES], v_here[TILES];
    int page[TILES]; /* of each tile */
    float max[TILES][HEADS], rescale[TILES][HEADS];
    uint16_t p[HEADS * P_STRIDE];
};

/* What the block knows of its row. */
struct row_view {
    int row, kv, head0, n_heads;
    int split, begin, end; /* keys that the row sees */
    int first, last;       /* tiles of the split that hold one */
    bool alone;            /* the row's only split */
    bool is_first;         /* of the blocks of the same keys */
    int split0, n_splits;  /* those of the row */
};

#endif
