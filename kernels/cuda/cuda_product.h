/* cuda_product.h: products of packed weights with rows, as the files of linear layers and experts
 * share them. Seen by CUDA alone.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_PRODUCT_H
#define ASSAY_KERNELS_CUDA_CUDA_PRODUCT_H

#include "kernels/cuda/cuda_weight.h"

/* One matrix times n rows. Row t of the product reads x + t * x_stride and writes out + t *
 * out_stride. */
struct cuda_product {
    struct cuda_order order;
    const uint8_t *data;
    int64_t rows, tile_bytes;
    int n_tiles;
    const float *bias; /* or NULL */
    float *out;
    int64_t out_stride;
};

struct cuda_products {
    int n_tok, n_parts;
    const uint16_t *x;
    int64_t x_stride;
    bool descending; /* planted fault: chunk sums in the wrong order */
    bool arrival;    /* planted fault: the plain path's blocks add their chunk to out by atomics */
    struct cuda_product part[LINEAR_PARTS_MAX];
    /* Of both parts; the stream alone heeds it. Its tiles are then numbered in turn: tile i of the
     * gate is 2 i, that of up 2 i + 1, so that whoever has one has the other. */
    struct linear_gate gate;
};

/* Which kernel computes a product. All give the same bits. Those that few cards have come last. */
enum cuda_path {
    CUDA_PATH_AUTO,
    CUDA_PATH_PLAIN,  /* one warp a tile, everything in order */
    CUDA_PATH_FEW,    /* up to 8 rows */
    CUDA_PATH_STREAM, /* up to 8 rows, or 16, common shapes and formats: from 9.0 on */
    CUDA_PATH_MANY    /* more than 8 rows, or any: wgmma, 9.0 alone */
};

/* False when the path does not take the shape; then nothing is launched. */
bool cuda_stream_run(const struct cuda_kern *c, const struct cuda_products *all);
bool cuda_few_run(const struct cuda_kern *c, const struct cuda_products *all);
bool cuda_many_run(const struct cuda_kern *c, const struct cuda_products *all);
size_t cuda_many_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l);

struct CUtensorMap_st;
/* Describes n_rows rows of k bf16 for tensor copies of 64 k by box_rows rows with the 128-byte
 * swizzle; zeros beyond. x and the stride in bytes are multiples of 16. False: the driver cannot.
 */
bool cuda_tensor_map(struct CUtensorMap_st *map, const void *x, int64_t k, int n_rows,
                     int64_t stride, int box_rows);
/* The same for rows of n_head heads of head_dim, by box_heads of box_rows rows. */
bool cuda_tensor_heads(struct CUtensorMap_st *map, const void *x, int head_dim, int n_head,
                       int n_rows, int box_heads, int box_rows);

#endif
