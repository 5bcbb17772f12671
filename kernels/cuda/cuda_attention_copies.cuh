/* cuda_attention_copies.cuh: shared memory of cuda_attention_many.cu by head size, and the two
 * warps that fill it: queries and K by one, V by the other, so that a place of V that is given back
 * late does not hold up K.
 *
 * A place is full when its bytes have arrived, and empty when all computing warps gave it back.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_COPIES_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_COPIES_CUH

#include <cuda.h>

#include "kernels/cuda/cuda_attention_list.cuh"

#define WARPS       4 /* of a warpgroup */
#define CONSUMERS   2 /* warpgroups that compute */
#define GROUP_SLOTS 64
#define STAGES_MAX  3
#define ONES_BYTES  1024
#define ROUNDS_MAX  2048 /* items of a block, at most */

struct many_state {
    uint64_t k_full[STAGES_MAX], k_empty[STAGES_MAX], v_full[STAGES_MAX], v_empty[STAGES_MAX],
        q_full[2], q_empty[2];
    uint32_t apart[CONSUMERS * WARPS][ROUNDS_MAX / 32]; /* a bit an item: computed once more */
};

/* Who does what, and shared memory in its order. A place holds 64 keys: of K `k_dims`, as many
 * times as there are dims; of V the `v_dims` that the block sums. */
template <int DIMS> struct many_layout {
    static constexpr bool shares = DIMS > 128;         /* the warpgroups have the same slots */
    static constexpr int parts = (DIMS + 255) / 256,   /* blocks that share an item's dims */
        out = DIMS / parts / (shares ? CONSUMERS : 1), /* dims that a warpgroup sums */
        slots = shares ? GROUP_SLOTS : CONSUMERS * GROUP_SLOTS, chunks = parts, /* of K */
        k_stages = DIMS == 256 ? 2 : 3, v_stages = DIMS > 256 ? 1 : k_stages,
                         q_places = DIMS > 256 ? 1 : 2;
    static constexpr int chunk = KERN_TILE * DIMS * 2 / chunks, part = KERN_TILE * DIMS * 2 / parts;
    static constexpr int q_block = slots * 128; /* 64 dims */
    static constexpr int keys = 0, values = keys + k_stages * chunk, q = values + v_stages * part,
                         ones = q + q_places * DIMS / 64 * q_block, list = ones + ONES_BYTES,
                         state = list + LIST_MAX * (int)sizeof(struct many_rows),
                         bytes = state + (int)sizeof(struct many_state);
    static_assert(q >= LIST_MAX * (int)sizeof(struct many_rows),
                  "the list is made where K and V stand later");
    static_assert(bytes <= 225 << 10, "what a block may have");
};

struct many_ring {
    int stage, phase;
};

template <int STAGES> __device__ static inline void ring_next(struct many_ring &r)
{
    r.stage = r.stage + 1 == STAGES ? 0 : r.stage + 1;
    r.phase ^= r.stage == 0;
}

/* The work of one of the two warps. */
template <int DIMS, bool VALUES>
__device__ static void copy_items(const struct attention_args &a, const struct kern_rows &rows,
                                  const struct attention_many_plan &p, const CUtensorMap *q,
                                  uint8_t *shared, int n_list)
{
    using at = many_layout<DIMS>;
    constexpr int n = VALUES ? 1 : at::chunks, bytes = VALUES ? at::part : at::chunk;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    uint64_t *full = VALUES ? b->v_full : b->k_full, *empty = VALUES ? b->v_empty : b->k_empty;
    uint8_t *places = shared + (VALUES ? at::values : at::keys);
    int lane = (int)threadIdx.x % 32;
    struct many_ring ring = {};
    struct attention_many_item it;
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        const int32_t *pages = rows.pages + (int64_t)rows.seq[it.row] * rows.pages_max;
        int place = round % at::q_places;
        if (!VALUES && lane == 0) {
            uint8_t *to = shared + at::q + place * (DIMS / 64 * at::q_block);
            copy_wait(&b->q_empty[place], (round / at::q_places & 1) ^ 1);
            copy_expect(&b->q_full[place], p.cut.tokens * p.cut.heads * DIMS * 2);
            for (int i = 0; i < DIMS / 64; i++)
                copy_heads(to + i * at::q_block, q, i * 64, it.head0, it.row, &b->q_full[place]);
        }
        int page = 0;
        for (int tile = it.first; tile <= it.last; tile++) {
            int i = (tile - it.first) % 32;
            if (i == 0)
                page = tile + lane <= it.last ? pages[tile + lane] : 0;
            int64_t number = ((int64_t)__shfl_sync(ALL, page, i) * a.n_kv + it.kv) * 2 + VALUES;
            const uint8_t *from = (const uint8_t *)a.kv + number * (KERN_TILE * DIMS * 2);
            if (VALUES)
                from += it.part * at::part;
#pragma unroll
            for (int c = 0; c < n; c++) {
                if (lane == 0) {
                    copy_wait(&empty[ring.stage], ring.phase ^ 1);
                    copy_expect(&full[ring.stage], bytes);
                    copy_bulk(places + ring.stage * bytes, from + c * bytes, bytes,
                              &full[ring.stage]);
                }
                ring_next<VALUES ? at::v_stages : at::k_stages>(ring);
            }
            __syncwarp();
        }
    }
}

#endif
