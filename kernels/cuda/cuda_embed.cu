/* cuda_embed.cu: rows of a packed matrix as f32: scale times the bf16 value of rule 1.
 *
 * A thread is one element of one row; it finds its code in the device order and forms the value as
 * the linear kernels do. A token outside the matrix is reported and gives row 0.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_weight.h"

#define BLOCK 256

__device__ static uint16_t value_at(const struct cuda_order &o, const uint8_t *tile, int row,
                                    int64_t k)
{
    const uint8_t *piece = tile + k / CUDA_PIECE_K * o.piece_bytes;
    int in = (int)(k % CUDA_PIECE_K);
    if (o.bits == CUDA_DENSE)
        return *(const uint16_t *)(piece + cuda_order_value(row, in));
    uint32_t q = cuda_order_code(piece, o.bits, o.plane_bytes[0], row, in);
    const uint8_t *scales = piece + o.scales_at;
    int group = in / o.group;
    if (cuda_order_is_block(o.scale)) {
        float v = qformat_element(o.bits, q) * cuda_order_block_scale(scales, o.scale, group, row);
        if (o.scale != CUDA_SCALE_GLOBAL)
            return bf16_from_f32(v); /* the product was exact */
        uint32_t pair = frag_global(elem_bits(v) >> 16, cuda_order_global(&o, piece, row));
        return (uint16_t)pair;
    }
    float s = cuda_order_scale(scales, o.scale, o.bits, group, row, 0);
    float b = cuda_order_scale(scales, o.scale, o.bits, group, row, 2);
    if (o.scale == CUDA_SCALE_F16 || o.scale == CUDA_SCALE_F32)
        return bf16_from_f32(fmaf((float)q, s, b));
    uint32_t v = frag_fma2(bf16_from_f32((float)q), bf16_from_f32(s), bf16_from_f32(b));
    return (uint16_t)v;
}

__global__ static void __launch_bounds__(BLOCK)
    embed_rows(struct cuda_order o, const uint8_t *data, int64_t n_rows, const int32_t *id,
               float scale, float *out, struct cuda_fault *fault)
{
    int t = (int)blockIdx.y, row = id[t];
    int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (row < 0 || row >= n_rows) {
        cuda_fault_set(fault, CUDA_FAULT_TOKEN, t, row, (int)n_rows);
        row = 0;
    }
    if (k >= o.k)
        return;
    const uint8_t *tile = data + (int64_t)(row / CUDA_TILE_ROWS) * o.n_pieces * o.piece_bytes;
    out[t * o.k + k] = scale * bf16_to_f32(value_at(o, tile, row % CUDA_TILE_ROWS, k));
}

extern "C" enum err_code cuda_embed(struct kern *k, const struct embed_args *a, struct err *e)
{
    const struct cuda_weight *w = cuda_weight_of(a->w);
    struct cuda_kern *c = cuda_of(k);
    if (a->rows->n_tok == 0)
        return ERR_OK;
    dim3 grid((unsigned)((w->order.k + BLOCK - 1) / BLOCK), (unsigned)a->rows->n_tok);
    embed_rows<<<grid, BLOCK, 0, c->stream>>>(w->order, w->data, w->base.rows, a->rows->id,
                                              a->scale, a->out, c->fault);
    return cuda_launched("embed", e);
}
