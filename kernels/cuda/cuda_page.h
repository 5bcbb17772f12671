/* cuda_page.h: the order inside a page of K and V on the device. Seen by C and CUDA.
 *
 * A page: per kv head, K then V, each a half of 64 keys by `dims` bf16, dims = head_dim padded to
 * 16 with zeros. A half is cut into blocks of 64 dims (the last one may be 16, 32 or 48 wide):
 * [block][key][dim]. The 16-byte pieces (8 dims) of a key's row stand in an order that depends on
 * the key, so that eight keys' pieces of one number lie in different banks: ldmatrix reads without
 * conflicts from a half that was copied to shared memory as it is, and a half is one bulk copy.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_PAGE_H
#define ASSAY_KERNELS_CUDA_CUDA_PAGE_H

#include "common/base.h"

#ifdef __CUDACC__
#define CUDA_PAGE_FN static inline __host__ __device__
#else
#define CUDA_PAGE_FN static inline
#endif

#define CUDA_PAGE_KEYS  64 /* KERN_PAGE */
#define CUDA_PAGE_BLOCK 64 /* dims of a block */

CUDA_PAGE_FN int cuda_page_dims(int head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

/* Elements of one half. */
CUDA_PAGE_FN int cuda_page_half(int dims)
{
    return CUDA_PAGE_KEYS * dims;
}

/* Where piece `piece` of a key stands in a row of `width` dims. Rows of 64 dims are 128 bytes: all
 * keys begin in bank 0, so the low three bits of the key are mixed in. Narrower rows begin in
 * different banks by themselves, and the bits of the key that repeat are mixed in. */
CUDA_PAGE_FN int cuda_page_piece(int width, int key, int piece)
{
    if (width == 64)
        return piece ^ (key & 7);
    if (width == 32)
        return piece ^ (key >> 1 & 3);
    if (width == 16)
        return piece ^ (key >> 2 & 1);
    return piece;
}

/* Element (key, dim) of a half. */
CUDA_PAGE_FN int cuda_page_at(int dims, int key, int dim)
{
    int block = dim / CUDA_PAGE_BLOCK, first = block * CUDA_PAGE_BLOCK, in = dim - first;
    int width = dims - first < CUDA_PAGE_BLOCK ? dims - first : CUDA_PAGE_BLOCK;
    int piece = cuda_page_piece(width, key, in / 8);
    return CUDA_PAGE_KEYS * first + key * width + piece * 8 + in % 8;
}

#endif
