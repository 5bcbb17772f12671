/* cuda_load.cu: rows of a checkpoint on their way to the device: pinned slots that the host fills,
 * the copy, and the kernel that puts them into the device order (cuda_gather.h).
 *
 * A slot is SLOT_STAGES of the kern's pinned pieces. Its rows go to one block of device memory,
 * from where the kernel takes them; copy and kernel of a slot stand in the kern's stream, so that
 * one block is enough, while the host fills the next slots.
 *
 * The kernel. Work: a block is a piece of a tile, a thread a word of it at a time. Bytes: the rows
 * once and the piece once; it waits for no more than the copy over the bus takes.
 */
#include "kernels/cuda/cuda_slot.h"

#include <cuda_runtime.h>

#define BLOCK 128

__global__ static void __launch_bounds__(BLOCK)
    gather_pieces(const struct cuda_order o, const struct cuda_staged s, uint8_t *out)
{
    int64_t tile = blockIdx.x / (unsigned)o.n_pieces;
    int piece = (int)(blockIdx.x % (unsigned)o.n_pieces);
    uint32_t *to = (uint32_t *)(void *)(out + (size_t)blockIdx.x * (size_t)o.piece_bytes);
    for (int w = (int)threadIdx.x; w < o.piece_bytes / 4; w += BLOCK)
        to[w] = cuda_gather_word(&o, &s, tile, piece, w);
}

extern "C" enum err_code cuda_load_slot(struct cuda_kern *c, uint8_t **slot, struct err *e)
{
    int first = (c->next_stage + SLOT_STAGES - 1) / SLOT_STAGES * SLOT_STAGES % CUDA_STAGES;
    for (int i = 0; i < SLOT_STAGES; i++) {
        enum err_code rc = cuda_checked(cudaEventSynchronize(c->staged[first + i]), "load", e);
        if (rc != ERR_OK)
            return rc;
    }
    c->next_stage = first;
    *slot = c->staging + (size_t)first * CUDA_STAGE_BYTES;
    return ERR_OK;
}

extern "C" enum err_code cuda_load_send(struct cuda_kern *c, const struct cuda_order *o,
                                        const struct cuda_slot *at, int64_t rows, enum dtype type,
                                        uint8_t *out, struct err *e)
{
    int first = c->next_stage;
    struct cuda_staged s = {};
    int64_t n_tiles = (rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
    s.codes = c->staging_device;
    s.scales = c->staging_device + at->scales;
    s.biases = c->staging_device + at->biases;
    s.globals = c->staging_device + at->globals;
    s.type = type;
    s.row_bytes = at->row_bytes;
    s.rows = rows;
    if (kern_planted() == KERN_FAULT_ORDER)
        s.codes += s.row_bytes;
    int found = cudaMemcpyAsync(c->staging_device, c->staging + (size_t)first * CUDA_STAGE_BYTES,
                                at->bytes, cudaMemcpyHostToDevice, c->stream);
    if (found == cudaSuccess) {
        gather_pieces<<<(unsigned)(n_tiles * o->n_pieces), BLOCK, 0, c->stream>>>(*o, s, out);
        found = cudaGetLastError();
    }
    for (int i = 0; i < SLOT_STAGES && found == cudaSuccess; i++)
        found = cudaEventRecord(c->staged[first + i], c->stream);
    c->next_stage = (first + SLOT_STAGES) % CUDA_STAGES;
    return cuda_checked(found, "load", e);
}
