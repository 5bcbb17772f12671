/* cuda_tensor.cu: describes rows of bf16 to the tensor copies.
 *
 * The driver encodes the description; its function is found through the runtime, so that the
 * program does not need the driver's library to start.
 */
#include "kernels/cuda/cuda_product.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_function find_encode(void)
{
    static encode_function found;
    void *p = NULL;
    cudaDriverEntryPointQueryResult result;
    if (!found &&
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault,
                                         &result) == cudaSuccess &&
        result == cudaDriverEntryPointSuccess)
        found = (encode_function)p;
    return found;
}

static bool describe(struct CUtensorMap_st *map, const void *x, int rank, const cuuint64_t *dims,
                     const cuuint64_t *strides, const cuuint32_t *box)
{
    encode_function encode = find_encode();
    const cuuint32_t steps[3] = {1, 1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)x,
                            dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool cuda_tensor_map(struct CUtensorMap_st *map, const void *x, int64_t k, int n_rows,
                     int64_t stride, int box_rows)
{
    const cuuint64_t dims[2] = {(cuuint64_t)k, (cuuint64_t)n_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return describe(map, x, 2, dims, strides, box);
}

bool cuda_tensor_heads(struct CUtensorMap_st *map, const void *x, int head_dim, int n_head,
                       int n_rows, int box_heads, int box_rows)
{
    const cuuint64_t dims[3] = {(cuuint64_t)head_dim, (cuuint64_t)n_head, (cuuint64_t)n_rows};
    const cuuint64_t head = (cuuint64_t)head_dim * 2,
                     strides[2] = {head, head * (cuuint64_t)n_head};
    const cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows};
    return describe(map, x, 3, dims, strides, box);
}
