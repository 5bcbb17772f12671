/* cuda_wide.cuh: warpgroup products (wgmma) of tiles of weights with columns of x: the pipeline of
 * a block with a warpgroup that only copies.
 *
 * A block is GROUPS warpgroups of 64 weight rows each (a warp a tile of 16) by COLUMNS rows of x,
 * and before them one whose warps copy, each every fourth tile. It walks the items of a list that a
 * WORK knows:
 *
 *   item                its type: column (first row of x), chunks [chunk, end), and what WORK needs
 *   place               its type: where an item's sums go, and its chunks [chunk, end)
 *   n_items()           of the whole grid; blocks take every gridDim.x-th
 *   item_tiles()        tiles of an item, one for each of the first warps
 *   find(i)             item i
 *   tile(item, i)       tile i of the item
 *   place_of(item)
 *   order()             the order of every matrix
 *   chunk_pieces()      pieces of a whole chunk
 *   from(chunk)         the chunk that is taken in place of this one: itself, or a planted fault's
 *   frees_early()       planted: warps give a stage back before they have read it
 *   store(place, thread, sums, first, n)   n from `first` on of what thread holds, of those that
 *                       multiply, as wgmma_step says
 *
 * A stage is 128 k: x by two tensor copies, swizzled for the hardware, and a piece of each tile by
 * a bulk copy. A full barrier a stage counts bytes, an empty one the warps whose products have
 * read it. A group is STEPS steps of 16 k: while the products of one run, its warps wait for those
 * of the group before it, free that one's stage, and make the weights of the group after it
 * registers of the A operand. That goes on across chunks and items: behind the last item comes a
 * stage with nothing. An item's totals are stored in parts beside the first products of the next
 * one, few enough at a time that the products go on. Where they go the warps that copy find out: a
 * division or two that would stand in the way of products.
 *
 * Registers: a chunk's sums and the totals, COLUMNS / 2 each, beside two groups of the A operand.
 *
 * Early start: only the warps that copy wait for the kernels before this one. Nothing is stored
 * before x has come, and x is asked for behind that wait.
 *
 * Order: a chunk starts without the accumulator's old value and takes its steps ascending; at its
 * end the sums are added to totals in registers: rule 2.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_WIDE_CUH
#define ASSAY_KERNELS_CUDA_CUDA_WIDE_CUH

#include "kernels/cuda/cuda_many.cuh"

template <int BITS, int N_GROUPS, int N_COLUMNS, int N_STEPS> struct wide {
    static constexpr int groups = N_GROUPS, columns = N_COLUMNS, steps = N_STEPS;
    static constexpr int tiles = groups * GROUP_WARPS;
    static constexpr int threads = 128 * (groups + 1);
    /* Registers of a thread, in units of 8: of 65536 a block of four warpgroups leaves enough for
     * one of the small kernels that follow, which then starts early. */
    static constexpr int at_launch = groups == 2 ? 168 : groups == 3 ? 128 : 88;
    static constexpr int copy_registers = groups == 2 ? 40 : groups == 3 ? 32 : 24;
    static constexpr int registers = groups == 2 ? 232 : groups == 3 ? 160 : 104;
    static_assert(128 * (groups * registers + copy_registers) <= threads * at_launch,
                  "what the warps ask for is there");
    static constexpr int piece_room = longest_piece(BITS);
    static constexpr int stage_bytes = x_bytes(columns) + (tiles * piece_room + 1023) / 1024 * 1024;
    static constexpr int stages =
        SHARED_BYTES / stage_bytes < STAGES_MAX ? SHARED_BYTES / stage_bytes : STAGES_MAX;
    static_assert(stages >= 3, "a stage is read while the next one arrives");
};

/* Places of items. The warps that copy are at most a block's stages, so as many items, before a
 * warp that stores the totals of the item before. */
#define WIDE_PLACES 16
static_assert(WIDE_PLACES >= STAGES_MAX + 2, "a place is read before another takes its room");

/* ---- the warps that copy ------------------------------------------------------------------------
 */
/* Where one stands: the next piece, and where its chunk and its item end. */
struct wide_at {
    int index, number; /* item of the list, and of the block */
    int chunk, chunk_end, piece, end;
    int column;
    const uint8_t *tile; /* the lane's */
};

/* places: written by one thread when an item is opened for the first time, or NULL. */
template <class W, class WORK>
__device__ static void wide_open(const WORK &work, struct wide_at *at, typename WORK::place *places)
{
    if (at->index >= work.n_items())
        return;
    typename WORK::item it = work.find(at->index);
    if (places && threadIdx.x == 0)
        places[at->number % WIDE_PLACES] = work.place_of(it);
    at->chunk = it.chunk;
    at->chunk_end = it.end;
    at->column = it.column;
    at->tile = work.tile(it, (int)threadIdx.x % 32 * GROUP_WARPS + (int)threadIdx.x / 32);
    at->piece = work.from(it.chunk) * work.chunk_pieces();
    at->end = MIN2(at->piece + work.chunk_pieces(), work.order().n_pieces);
}

template <class W, class WORK>
__device__ static void wide_next(const WORK &work, struct wide_at *at, typename WORK::place *places)
{
    if (++at->piece < at->end)
        return;
    if (++at->chunk < at->chunk_end) {
        at->piece = work.from(at->chunk) * work.chunk_pieces();
        at->end = MIN2(at->piece + work.chunk_pieces(), work.order().n_pieces);
        return;
    }
    at->index += (int)gridDim.x;
    at->number++;
    wide_open<W>(work, at, places);
}

/* Announces what the warp will bring to a stage and asks for its weights: those of every fourth
 * tile, since a warp starts copies one by one. */
template <class W>
__device__ static void wide_weights(const struct wide_at *at, int tiles, int bytes, uint8_t *to,
                                    uint64_t *full)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int n = (tiles - warp + GROUP_WARPS - 1) / GROUP_WARPS;
    if (lane == 0)
        copy_expect(full, n * bytes + (warp == 0 ? x_bytes(W::columns) : 0));
    __syncwarp();
    if (lane < n)
        copy_bulk(to + x_bytes(W::columns) + (lane * GROUP_WARPS + warp) * W::piece_room,
                  at->tile + (int64_t)at->piece * bytes, bytes, full);
}

/* wait: for the kernels before this one, when the first weights are on their way. */
template <class W, class WORK>
__device__ static void wide_copy(const WORK &work, const CUtensorMap *x, uint8_t *shared,
                                 uint64_t *full, uint64_t *empty, typename WORK::place *places,
                                 bool wait)
{
    int stage = 0, phase = 1, bytes = work.order().piece_bytes, tiles = work.item_tiles();
    int early = 0;
    struct wide_at at = {(int)blockIdx.x}, ahead;
    wide_open<W>(work, &at, places);
    for (ahead = at; early < W::stages && ahead.index < work.n_items(); early++) {
        wide_weights<W>(&ahead, tiles, bytes, shared + early * W::stage_bytes, &full[early]);
        wide_next<W>(work, &ahead, places);
    }
    if (wait) /* x, outputs and slots are other kernels' until here */
        launch_wait();
    for (int i = 0; at.index < work.n_items(); i++) {
        uint8_t *to = shared + stage * W::stage_bytes;
        if (i >= early) {
            copy_wait(&empty[stage], phase);
            wide_weights<W>(&at, tiles, bytes, to, &full[stage]);
        }
        if (threadIdx.x == 0) {
            copy_tensor(to, x, at.piece * CUDA_PIECE_K, at.column, &full[stage]);
            copy_tensor(to + x_bytes(W::columns) / 2, x, at.piece * CUDA_PIECE_K + 64, at.column,
                        &full[stage]);
        }
        __syncwarp();
        stage = stage + 1 == W::stages ? 0 : stage + 1;
        phase ^= stage == 0;
        wide_next<W>(work, &at, at.number >= ahead.number ? places : NULL);
    }
    copy_wait(&empty[stage], phase);
    if (threadIdx.x % 32 == 0)
        copy_arrive(&full[stage]);
}

/* ---- the warps that multiply --------------------------------------------------------------------
 */
/* What a lane has of a block of 64 k. */
template <int BITS> struct wide_block {
    frag_words<BITS> words;
    frag_scale scale[2];
};

/* Where a warp stands: addresses in shared memory, and the stage whose products are next. */
struct wide_now {
    uint32_t pieces, columns; /* the warp's piece in stage 0; describes the stage's x */
    uint32_t full, empty;     /* barriers of stage 0 */
    int group_shift;
    int stage, phase;
    int frees; /* 1 in the lane that gives stages back; 0 while there is none */
    bool early;
};

/* A value that the compiler does not make again out of what it came from. */
__device__ static inline uint32_t wide_kept(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Planted: longer than a copy takes. */
__device__ static inline void wide_dawdle(bool early)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0;\n@p nanosleep.u32 4000;}" ::"r"((int)early));
}

/* What the group that begins with `step` begins with. Offsets of groups are added to the piece's
 * address, not to the lane's: one for each would stay in a register of its own. */
template <int BITS, enum cuda_scale SCALE, int STEPS>
__device__ static inline void wide_load(uint32_t at, int step, int group_shift, wide_block<BITS> &b)
{
    constexpr int scales_at = CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS;
    int lane = (int)threadIdx.x % 32;
    const uint8_t *piece = (const uint8_t *)__cvta_shared_to_generic(at);
    if (step % 4 == 0)
        frag_load<BITS>(piece, step / 4, lane, b.words);
    if constexpr (BITS != CUDA_DENSE) {
#pragma unroll
        for (int s = step; s < step + STEPS; s++)
            if (s % 2 == 0)
                frag_load_scale<BITS, SCALE>(piece + scales_at, (s / 2) >> group_shift, lane,
                                             b.scale[s / 2 % 2]);
    }
}

/* Part `part` of the totals' parts. */
template <class W, class WORK, int N>
__device__ static inline void wide_store(const WORK &work, const typename WORK::place &place,
                                         const float (&total)[N], int part, int parts)
{
    unsigned thread; /* read anew: what comes of it is not kept in registers meanwhile */
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    work.store(place, thread - 32 * GROUP_WARPS, total, part * (N / parts), N / parts);
}

/* The products of piece i of a chunk, whose first operand is there, and the first operand of the
 * piece after it. STORES: beside them the totals go to their place. */
template <class W, int BITS, enum cuda_scale SCALE, bool STORES, class WORK, int N>
__device__ static inline void wide_piece(const WORK &work, struct wide_now &now, int i,
                                         float (&acc)[N], const float (&total)[N],
                                         uint32_t (&a)[2][4 * W::steps], wide_block<BITS> &block,
                                         const typename WORK::place *place)
{
    constexpr int steps = W::steps, groups = 8 / steps, half = x_bytes(W::columns) / 2;
    int last = now.stage == 0 ? W::stages - 1 : now.stage - 1;
    int next = now.stage + 1 == W::stages ? 0 : now.stage + 1;
    uint32_t columns = now.columns + (uint32_t)(now.stage * (W::stage_bytes >> 4));
    uint32_t piece = wide_kept(now.pieces + (uint32_t)(now.stage * W::stage_bytes));
#pragma unroll
    for (int g = 0; g < groups; g++) {
        int step = (g + 1) % groups * steps;
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < steps; s++) {
            int at = g * steps + s;
            uint32_t from = columns + (uint32_t)((at / 4 * half + at % 4 * 32) >> 4);
            wgmma_step(acc, a[g % 2] + 4 * s, WGMMA_COLUMNS_HIGH | from, i | at);
        }
        wgmma_commit();
        if (STORES)
            wide_store<W>(work, *place, total, g, groups);
        if (g == groups - 1) {
            piece = wide_kept(now.pieces + (uint32_t)(next * W::stage_bytes));
            copy_wait(now.full + 8 * (uint32_t)next, next == 0 ? now.phase ^ 1 : now.phase);
        }
        /* Values are the operand itself: its registers are not free before the wait. */
        if (BITS != CUDA_DENSE)
            wide_load<BITS, SCALE, steps>(piece, step, now.group_shift, block);
        wgmma_wait<1>();
        if (BITS == CUDA_DENSE)
            wide_load<BITS, SCALE, steps>(piece, step, now.group_shift, block);
        if (g == 0) {
            __syncwarp(); /* every lane has read the stage before this one */
            copy_arrive_if(now.frees, now.empty + 8 * (uint32_t)(now.early ? now.stage : last));
            wide_dawdle(now.early);
        }
#pragma unroll
        for (int s = 0; s < steps; s++)
            frag_step<BITS, SCALE>(block.words, block.scale[(step + s) / 2 % 2], (step + s) % 4,
                                   a[(g + 1) % 2] + 4 * s);
    }
    now.frees = threadIdx.x % 32 == 0;
    now.stage = next;
    now.phase ^= next == 0;
}

template <class W, int BITS, enum cuda_scale SCALE, class WORK>
__device__ static void wide_multiply(const WORK &work, uint8_t *shared, uint64_t *full,
                                     uint64_t *empty, const typename WORK::place *places)
{
    constexpr int sums = W::columns / 2, steps = W::steps;
    int warp = (int)threadIdx.x / 32 - GROUP_WARPS;
    uint32_t base = copy_address(shared);
    struct wide_now now = {};
    float acc[sums], total[sums];
    uint32_t a[2][4 * steps];
    wide_block<BITS> block;
    bool begins = true, pending = false; /* an item; stores */
    now.pieces = base + (uint32_t)(x_bytes(W::columns) + warp * W::piece_room);
    now.columns = wgmma_columns_low(base);
    now.full = wide_kept(copy_address(full));
    now.empty = wide_kept(copy_address(empty));
    now.group_shift = work.order().group / 64;
    now.early = work.frees_early();
    now.frees = now.early && threadIdx.x % 32 == 0;
    copy_wait(now.full, 0);
    wide_load<BITS, SCALE, steps>(now.pieces, 0, now.group_shift, block);
#pragma unroll
    for (int s = 0; s < steps; s++)
        frag_step<BITS, SCALE>(block.words, block.scale[s / 2], s, a[0] + 4 * s);
    int index = (int)blockIdx.x, number = 0, chunk = places[0].chunk, end = places[0].end;
    while (index < work.n_items()) {
        int i = 0, from = work.from(chunk) * work.chunk_pieces();
        int n = MIN2(work.chunk_pieces(), work.order().n_pieces - from);
        if (pending) {
            wide_piece<W, BITS, SCALE, true>(work, now, 0, acc, total, a, block,
                                             &places[(number - 1) % WIDE_PLACES]);
            pending = false;
            i = 1;
        }
        for (; i < n; i++)
            wide_piece<W, BITS, SCALE, false>(work, now, i, acc, total, a, block, NULL);
        bool ends = ++chunk == end;
        if (ends && (index += (int)gridDim.x) < work.n_items()) {
            chunk = places[(number + 1) % WIDE_PLACES].chunk;
            end = places[(number + 1) % WIDE_PLACES].end;
        }
        wgmma_wait<0>();
        wgmma_hold(acc);
        if (begins) { /* a choice for each sum takes as long as its addition */
#pragma unroll
            for (int i = 0; i < sums; i++)
                total[i] = acc[i];
            wgmma_hold(total);
        } else {
#pragma unroll
            for (int i = 0; i < sums; i++)
                total[i] += acc[i];
            wgmma_hold(total);
        }
        number += ends;
        begins = pending = ends;
    }
    wide_store<W>(work, places[(number - 1) % WIDE_PLACES], total, 0, 1);
}

/* ---- a block ------------------------------------------------------------------------------------
 */
template <class W, int BITS, enum cuda_scale SCALE, class WORK>
__device__ static void wide_run(const WORK &work, const CUtensorMap &x, uint8_t *shared, bool wait)
{
    __shared__ __align__(8) uint64_t full[STAGES_MAX], empty[STAGES_MAX];
    __shared__ typename WORK::place places[WIDE_PLACES];
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::stages; i++) {
            copy_init(&full[i], GROUP_WARPS);
            copy_init(&empty[i], W::tiles);
        }
        copy_init_done();
    }
    __syncthreads();
    if (__reduce_max_sync(0xffffffffu, (int)threadIdx.x / 32) < GROUP_WARPS) {
        WGMMA_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(W::copy_registers));
        wide_copy<W>(work, &x, shared, full, empty, places, wait);
    } else {
        WGMMA_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(W::registers));
        wide_multiply<W, BITS, SCALE>(work, shared, full, empty, places);
    }
}

#endif
