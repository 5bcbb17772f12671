/* cuda_few.cuh: what the kernels of few rows share: 16 warps a block, pieces of weights by
 * asynchronous copies, x in the order of the B operand, the run of a piece, and the slots of chunk
 * sums.
 *
 * x stands in shared memory as [32 k][row][lane % 4][16 bytes]: one conflict-free load for two
 * steps. Slots are [tile of the batch][chunk][row][16] f32.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_FEW_CUH
#define ASSAY_KERNELS_CUDA_CUDA_FEW_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_product.h"

#define FEW_WARPS   16
#define FEW_THREADS (32 * FEW_WARPS)
#define FEW_ROWS    8 /* columns of the instruction */
#define GROUP_ANY   0 /* the length of a group is read, not compiled in */

/* Part and tile in it of a tile of the launch. */
__device__ static inline const struct cuda_product &part_of(const struct cuda_products &all,
                                                            int *tile)
{
    int i = 0;
    while (i + 1 < all.n_parts && *tile >= all.part[i].n_tiles)
        *tile -= all.part[i++].n_tiles;
    return all.part[i];
}

/* ---- copies -------------------------------------------------------------------------------------
 */
__device__ static void copy16(uint32_t to, const uint8_t *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

template <int BYTES> __device__ static void copy_piece(uint32_t to, const uint8_t *from)
{
    int at = (int)threadIdx.x % 32 * 16;
#pragma unroll
    for (int i = 0; i < BYTES; i += 512)
        if (i + 512 <= BYTES || at + i < BYTES)
            copy16(to + (uint32_t)(at + i), from + at + i);
}

__device__ static void close_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ static void wait_groups(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Bytes of a piece that the compiler may know; 0 where it does not. */
template <int BITS, enum cuda_scale SCALE, int GROUP>
__device__ static constexpr int piece_bytes_of(void)
{
    if (BITS == CUDA_DENSE)
        return CUDA_TILE_ROWS * CUDA_PIECE_K * 2;
    if (GROUP == GROUP_ANY)
        return 0;
    if (cuda_order_is_block(SCALE))
        return CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS +
               CUDA_PIECE_K / (GROUP ? GROUP : 1) * CUDA_TILE_ROWS +
               (SCALE == CUDA_SCALE_GLOBAL ? CUDA_TILE_ROWS * 4 : 0);
    return CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS + CUDA_PIECE_K / (GROUP ? GROUP : 1) *
                                                          CUDA_TILE_ROWS * 2 *
                                                          (SCALE == CUDA_SCALE_F32 ? 4 : 2);
}

/* ---- x ------------------------------------------------------------------------------------------
 */
/* Four lanes hold four words each: lane t's word j becomes lane j's word t. */
__device__ static void transpose4(uint32_t v[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? v[j] : v[j + 1], 1);
        v[j] = odd ? got : v[j];
        v[j + 1] = odd ? v[j + 1] : got;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t got = __shfl_xor_sync(0xffffffffu, high ? v[j] : v[j + 2], 2);
        v[j] = high ? got : v[j];
        v[j + 2] = high ? v[j + 2] : got;
    }
}

/* Rows of x can be loaded by 16 bytes. */
__host__ __device__ static inline bool is_aligned(const struct cuda_products &all)
{
    return all.x_stride % 8 == 0 && (uintptr_t)all.x % 16 == 0;
}

/* Puts x of `n_pieces` pieces from `piece` on into shared memory; +0 beyond K. Four lanes read 32 k
 * of a row and exchange, so that each stores 16 bytes of the B operand. All loads of a turn stand
 * before its first store: a turn is one way to memory and back. Groups of threads take rows beside
 * each other. ROWS: columns that x has room for, with rows that are 16-byte aligned and whole
 * pieces; or 0: n_tok, of any kind. */
template <int ROWS>
__device__ static void load_x(const struct cuda_products &all, int piece, int n_pieces, uint32_t *x)
{
    constexpr int ahead = ROWS > FEW_ROWS ? 16 : 8, groups = ROWS > FEW_ROWS ? 4 : 1;
    constexpr int width = FEW_THREADS / groups;
    int64_t k0 = (int64_t)piece * CUDA_PIECE_K, left = all.part[0].order.k - k0;
    int n = n_pieces * (CUDA_PIECE_K / 8), columns = ROWS ? ROWS : all.n_tok;
    int turns = columns / groups, items = (n + width - 1) / width * turns;
    int row0 = (int)threadIdx.x / width, at0 = (int)threadIdx.x % width;
    bool aligned = ROWS || is_aligned(all);
    for (int first = 0; first < items; first += ahead) {
        uint32_t v[ahead][4] = {};
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int row = (first + i) % turns * groups + row0, at = (first + i) / turns * width + at0;
            const uint16_t *from = all.x + row * all.x_stride + k0 + (int64_t)at * 8;
            if (row >= all.n_tok || at >= n)
                continue;
            if (ROWS || (aligned && at * 8 + 8 <= left)) {
                uint4 w = *(const uint4 *)(const void *)from;
                v[i][0] = w.x, v[i][1] = w.y, v[i][2] = w.z, v[i][3] = w.w;
            } else {
                for (int j = 0; j < 8; j++)
                    if (at * 8 + j < left)
                        v[i][j / 2] |= (uint32_t)from[j] << 16 * (j % 2);
            }
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int row = (first + i) % turns * groups + row0, at = (first + i) / turns * width + at0;
            transpose4(v[i]);
            if (row < all.n_tok && at < n)
                *(uint4 *)(void *)(x + (at / 4 * columns + row) * 16 + at % 4 * 4) =
                    make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]);
        }
    }
}

/* Or x as it stands, each row 16 bytes longer than its values, so that the eight rows of a load
 * fall into different banks. */
__host__ __device__ static inline int x_row_bytes(int n_pieces)
{
    return n_pieces * CUDA_PIECE_K * 2 + 16;
}

/* The first warp asks for it, a copy a row; `there` counts its bytes. */
__device__ static void ask_x(const struct cuda_products &all, int piece, int n_pieces, uint8_t *x,
                             uint64_t *there)
{
    int row = (int)threadIdx.x, bytes = n_pieces * CUDA_PIECE_K * 2;
    if (row >= 32)
        return;
    if (row == 0)
        copy_expect(there, bytes * all.n_tok);
    __syncwarp();
    if (row < all.n_tok)
        copy_bulk(x + row * x_row_bytes(n_pieces),
                  all.x + row * all.x_stride + (int64_t)piece * CUDA_PIECE_K, bytes, there);
}

/* The B operands of two steps, from rows as they stand: lane i names 16 bytes of row i % 8. */
__device__ static uint4 load_rows(const uint8_t *x)
{
    uint4 b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
                 : "r"((uint32_t)__cvta_generic_to_shared(x)));
    return b;
}

/* ---- a piece ------------------------------------------------------------------------------------
 */
/* x: this lane's 16 bytes of the piece's first 32 k, of the first 8 rows; `left` rows stand from
 * the lane's own on. SETS of 8 rows. AS_ROWS: what the lane names of them, those of the second set
 * x_step behind. */
template <int BITS, enum cuda_scale SCALE, int GROUP, int SETS, bool AS_ROWS = false>
__device__ static void run_piece(const uint8_t *piece, int group_shift, const uint8_t *x,
                                 int x_step, int left, float acc[SETS][4])
{
    constexpr int scales_at = CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * BITS;
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int block = 0; block < 2; block++) {
        frag_words<BITS> words;
        frag_load<BITS>(piece, block, lane, words);
        frag_scale sc;
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            uint4 b[SETS];
            uint32_t a[4];
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                b[s] = make_uint4(0, 0, 0, 0);
                if (AS_ROWS)
                    b[s] = load_rows(x + s * x_step + (block * 2 + pair) * 64);
                else if (s * FEW_ROWS < left)
                    b[s] = *(const uint4 *)(const void *)(x + (block * 2 + pair) * x_step +
                                                          s * FEW_ROWS * 64);
            }
            if constexpr (BITS != CUDA_DENSE) {
                if (GROUP == GROUP_ANY || GROUP <= 32 || pair == 0)
                    frag_load_scale<BITS, SCALE>(piece + scales_at,
                                                 (block * 2 + pair) >> group_shift, lane, sc);
            }
            frag_step<BITS, SCALE>(words, sc, pair * 2, a);
#pragma unroll
            for (int s = 0; s < SETS; s++)
                frag_mma(acc[s], a, b[s].x, b[s].y);
            frag_step<BITS, SCALE>(words, sc, pair * 2 + 1, a);
#pragma unroll
            for (int s = 0; s < SETS; s++)
                frag_mma(acc[s], a, b[s].z, b[s].w);
        }
    }
}

/* ---- slots --------------------------------------------------------------------------------------
 */
/* The sums of rows first_row to first_row + 7 of x. */
__device__ static void put_slot(int n_tok, int first_row, float *slot, const float acc[4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int t = first_row + lane % 4 * 2 + i % 2;
        if (t < n_tok)
            slot[t * CUDA_TILE_ROWS + lane / 4 + i / 2 * 8] = acc[i];
    }
}

#endif
