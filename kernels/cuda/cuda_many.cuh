/* cuda_many.cuh: warpgroup products (wgmma) of tiles of weights with columns of x, as the experts'
 * kernels have them: the pipeline of a block whose warps copy for themselves, whatever its items
 * are. Its lengths hold for cuda_wide.cuh too.
 *
 * A block is two or four warpgroups of 64 weight rows each (a warp a tile of 16) by 32, 64 or 128
 * rows of x, the columns. It walks the items of a list that a WORK knows:
 *
 *   item          its type: column (first row of x), chunks [chunk, end), and what WORK needs
 *   n_items()     of the whole grid; blocks take every gridDim.x-th
 *   find(i)       item i
 *   tile(item)    the calling warp's tile
 *   order()       the order of every matrix
 *   chunk_pieces()  pieces of a whole chunk
 *   apart()       sums of each chunk are stored by themselves, not added
 *   store(item, chunk, sums)  what a lane holds of its warp's tile, as wgmma_step says
 *
 * A stage is 128 k: x by two tensor copies, swizzled for the hardware, that the first warp starts,
 * and a piece of each tile by a bulk copy that its own warp starts. A full barrier a stage counts
 * bytes; an empty one the warps whose products have read its x. At step i the stage of step i - 2
 * is filled again, so that the first warp seldom waits for another; copies run ahead across items.
 * Weights become the registers of the A operand while the products of the 64 k before them run: two
 * register buffers, at most two groups of products in flight.
 *
 * Order: a chunk starts without the accumulator's old value and takes its steps ascending; at its
 * end the sums are added to totals in registers: rule 2.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_MANY_CUH
#define ASSAY_KERNELS_CUDA_CUDA_MANY_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_wgmma.cuh"

#define GROUP_WARPS  4           /* of a warpgroup */
#define SHARED_BYTES (216 << 10) /* what the stages may take together */
#define STAGES_MAX   8

/* Warpgroups of a block: few columns leave registers for four, and packed weights shared memory. */
__host__ __device__ constexpr int groups_for(int bits, int columns)
{
    return columns == 128 || bits == CUDA_DENSE ? 2 : 4;
}

__host__ __device__ constexpr int warps_for(int bits, int columns)
{
    return groups_for(bits, columns) * GROUP_WARPS;
}

__host__ __device__ constexpr int threads_for(int bits, int columns)
{
    return 32 * warps_for(bits, columns);
}

/* Register buffers for the A operand. Four warpgroups hide each other's waits, two do not; the
 * conversions of f16 scales the compiler does not let run beside products. */
__host__ __device__ constexpr int buffers_for(int bits, enum cuda_scale scale, int columns)
{
    return groups_for(bits, columns) == 2 && scale != CUDA_SCALE_F16 ? 2 : 1;
}

/* The longest piece of a format: groups of 32. */
__host__ __device__ constexpr int longest_piece(int bits)
{
    return bits == CUDA_DENSE ? 4096 : 256 * bits + 256;
}

__host__ __device__ constexpr int x_bytes(int columns)
{
    return columns * CUDA_PIECE_K * 2;
}

__host__ __device__ constexpr int stage_bytes(int bits, int columns)
{
    return x_bytes(columns) + (warps_for(bits, columns) * longest_piece(bits) + 1023) / 1024 * 1024;
}

__host__ __device__ constexpr int n_stages(int bits, int columns)
{
    return SHARED_BYTES / stage_bytes(bits, columns) < STAGES_MAX
               ? SHARED_BYTES / stage_bytes(bits, columns)
               : STAGES_MAX;
}

/* ---- copies -------------------------------------------------------------------------------------
 */
/* The next piece that a warp copies. */
struct many_loader {
    int index, piece, end; /* item of the list; piece, and where the item's pieces end */
    int column;
    const uint8_t *tile; /* the warp's */
};

template <class WORK> __device__ static void open_item(const WORK &work, struct many_loader *l)
{
    if (l->index >= work.n_items())
        return;
    typename WORK::item it = work.find(l->index);
    l->tile = work.tile(it);
    l->column = it.column;
    l->piece = it.chunk * work.chunk_pieces();
    l->end = MIN2(it.end * work.chunk_pieces(), work.order().n_pieces);
}

enum many_copies { COPY_WEIGHTS = 1, COPY_X = 2, COPY_BOTH = 3 };

/* Starts the warp's copies of the next stage, if there is one; the weights' announce x too. empty:
 * what the first warp waits for before x is overwritten, or NULL. */
template <int BITS, int COLUMNS, enum many_copies COPIES, class WORK>
__device__ static void load_stage(const WORK &work, const CUtensorMap *x, struct many_loader *l,
                                  uint8_t *to, uint64_t *full, uint64_t *empty, int parity)
{
    int warp = (int)threadIdx.x / 32, bytes = work.order().piece_bytes;
    if (l->index >= work.n_items())
        return;
    if (warp == 0 && empty)
        copy_wait(empty, parity);
    __syncwarp(); /* every lane has read the piece that is overwritten */
    if (threadIdx.x % 32 == 0) {
        if (COPIES & COPY_WEIGHTS) {
            copy_expect(full, warp == 0 ? bytes + x_bytes(COLUMNS) : bytes);
            copy_bulk(to + x_bytes(COLUMNS) + warp * longest_piece(BITS),
                      l->tile + (int64_t)l->piece * bytes, bytes, full);
        }
        if (COPIES & COPY_X && warp == 0) {
            copy_tensor(to, x, l->piece * CUDA_PIECE_K, l->column, full);
            copy_tensor(to + x_bytes(COLUMNS) / 2, x, l->piece * CUDA_PIECE_K + 64, l->column,
                        full);
        }
    }
    __syncwarp();
    if (++l->piece == l->end) {
        l->index += (int)gridDim.x;
        open_item(work, l);
    }
}

/* ---- products -----------------------------------------------------------------------------------
 */
template <int BITS, enum cuda_scale SCALE>
__device__ static void make_operand(const uint8_t *piece, int block, int group_shift,
                                    uint32_t a[16])
{
    constexpr int scales_at = CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS;
    int lane = (int)threadIdx.x % 32;
    frag_words<BITS> words;
    frag_scale sc;
    frag_load<BITS>(piece, block, lane, words);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if constexpr (BITS != CUDA_DENSE) {
            if (s % 2 == 0)
                frag_load_scale<BITS, SCALE>(piece + scales_at, (block * 2 + s / 2) >> group_shift,
                                             lane, sc);
        }
        frag_step<BITS, SCALE>(words, sc, s, a + 4 * s);
    }
}

/* The products of one block of 64 k; `add` 0 drops what the accumulator holds. */
template <int N>
__device__ static void run_block(float (&acc)[N], const uint32_t a[16], uint32_t columns, int add)
{
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_step(acc, a + 4 * s, wgmma_columns(columns + (uint32_t)(32 * s)), add | s);
    wgmma_commit();
}

/* The warp is done with a stage, if there was one: all of its lanes have read their weights there.
 */
__device__ static inline void many_free(uint64_t *empty, bool read)
{
    __syncwarp();
    if (read && threadIdx.x % 32 == 0)
        copy_arrive(empty);
}

/* ---- a block's way through its items ------------------------------------------------------------
 */
/* wait: for the kernels before this one, when the first weights are on their way. */
template <int BITS, enum cuda_scale SCALE, int COLUMNS, class WORK>
__device__ static void run_items(const WORK &work, const CUtensorMap &x, uint8_t *shared, bool wait)
{
    __shared__ __align__(8) uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    constexpr int stages = n_stages(BITS, COLUMNS), bytes = stage_bytes(BITS, COLUMNS);
    static_assert(stages >= 3, "the stage that is filled is not one that is read");
    constexpr int half = x_bytes(COLUMNS) / 2, sums = COLUMNS / 2,
                  buffers = buffers_for(BITS, SCALE, COLUMNS);
    int warp = (int)threadIdx.x / 32, stage = 0, phase = 0, step = 0;
    const int group_shift = work.order().group / 64;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            copy_init(&full[i], warps_for(BITS, COLUMNS));
            copy_init(&empty[i], warps_for(BITS, COLUMNS));
        }
        copy_init_done();
    }
    __syncthreads();
    struct many_loader load = {};
    load.index = (int)blockIdx.x;
    open_item(work, &load);
    struct many_loader ahead = load;
    for (int i = 0; i < stages; i++)
        load_stage<BITS, COLUMNS, COPY_WEIGHTS>(work, &x, &ahead, shared + i * bytes, &full[i],
                                                NULL, 0);
    if (wait) /* x, outputs and slots are other kernels' until here */
        launch_wait();
    for (int i = 0; i < stages; i++)
        load_stage<BITS, COLUMNS, COPY_X>(work, &x, &load, shared + i * bytes, &full[i], NULL, 0);
    float acc[sums], total[sums];
    uint32_t a[buffers][16];
    for (int index = (int)blockIdx.x; index < work.n_items(); index += (int)gridDim.x) {
        typename WORK::item it = work.find(index);
        for (int chunk = it.chunk; chunk < it.end; chunk++) {
            int n = MIN2(work.chunk_pieces(), work.order().n_pieces - chunk * work.chunk_pieces());
            for (int i = 0; i < n; i++, step++) {
                const uint8_t *piece =
                    shared + stage * bytes + x_bytes(COLUMNS) + warp * longest_piece(BITS);
                uint32_t columns = base + (uint32_t)(stage * bytes);
                int last = stage == 0 ? stages - 1 : stage - 1;
                int refill = last == 0 ? stages - 1 : last - 1;
                copy_wait(&full[stage], phase);
                /* Stage `refill` was of phase `phase`, or before a wrap of the one before. */
                if (step > 1)
                    load_stage<BITS, COLUMNS, COPY_BOTH>(work, &x, &load, shared + refill * bytes,
                                                         &full[refill], &empty[refill],
                                                         stage < 2 ? phase ^ 1 : phase);
                wgmma_wait<buffers - 1>();
                if (buffers == 1)
                    many_free(&empty[last], step > 0);
                make_operand<BITS, SCALE>(piece, 0, group_shift, a[0]);
                run_block(acc, a[0], columns, i);
                wgmma_wait<buffers - 1>();
                if (buffers == 2)
                    many_free(&empty[last], step > 0);
                make_operand<BITS, SCALE>(piece, 1, group_shift, a[buffers - 1]);
                run_block(acc, a[buffers - 1], columns + half, 1);
                stage = stage + 1 == stages ? 0 : stage + 1;
                phase ^= stage == 0;
            }
            wgmma_wait<0>();
            wgmma_hold(acc);
            if (work.apart()) {
                work.store(it, chunk, acc);
            } else {
#pragma unroll
                for (int i = 0; i < sums; i++)
                    total[i] = chunk == 0 ? acc[i] : total[i] + acc[i];
            }
        }
        if (!work.apart())
            work.store(it, 0, total);
    }
}

#endif
