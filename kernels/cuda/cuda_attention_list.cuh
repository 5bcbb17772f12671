/* cuda_attention_list.cuh: the work of cuda_attention_many.cu: which rows and heads make an item,
 * and which block takes it.
 *
 * A launch has up to LIST_MAX rows. They are cut into groups of neighbouring rows that stand at
 * neighbouring positions of one sequence and within one multiple of the item's rows; so a group's
 * positions follow from its first one. An item is a group times heads of one kv head. Every block
 * lists all groups, those with the most tiles first, and blocks deal the items among themselves to
 * and fro: the sums of their tiles are nearly equal, and no counter is shared.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_LIST_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_LIST_CUH

#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_splits.h"

#define LIST_MAX 2048 /* rows of a launch */
#define SORT_MAX 768  /* longer lists are long enough to be balanced unsorted */
#define ALL      0xffffffffu

/* A launch. */
struct attention_many_plan {
    int row0, n_rows; /* its rows */
    struct attention_cut cut;
    int parts; /* blocks that share an item, each some of its dims */
    float c, scale, cap, cap_inverse;
    int late; /* planted fault: tiles by which splits begin late */
};

/* Its slots: n_rows rows from `row` on, at positions from `pos` on, times `heads` heads. */
struct attention_many_item {
    int row, n_rows, pos, n_slots;
    int kv, head0, heads, part;
    int first, last; /* tiles */
};

/* Neighbouring rows of one sequence at neighbouring positions. */
struct many_rows {
    uint16_t row, n; /* first row, of the launch's; rows */
    int pos;         /* of the first */
};

__device__ static inline int tiles_of(const struct attention_args &a, const struct many_rows &r)
{
    int first = a.window && r.pos >= a.window ? (r.pos + 1 - a.window) / KERN_TILE : 0;
    return (r.pos + r.n - 1) / KERN_TILE - first + 1;
}

/* Lists the launch's rows in groups, those with the most tiles first; every block makes the same
 * list. How many. */
__device__ static int list_rows(const struct attention_args &a, const struct kern_rows &rows,
                                const struct attention_many_plan &p, struct many_rows *list,
                                struct many_rows *unsorted)
{
    __shared__ uint32_t begins[LIST_MAX / 32];
    const int32_t *pos = rows.pos + p.row0, *seq = rows.seq + p.row0;
    int words = (p.n_rows + 31) / 32, n = 0;
    for (int t = (int)threadIdx.x; t < words * 32; t += (int)blockDim.x) {
        bool begin = t < p.n_rows && (t == 0 || seq[t] != seq[t - 1] || pos[t] != pos[t - 1] + 1 ||
                                      pos[t] % p.cut.tokens == 0);
        uint32_t word = __ballot_sync(ALL, begin);
        if (t % 32 == 0)
            begins[t / 32] = word;
    }
    __syncthreads();
    for (int i = 0; i < words; i++)
        n += __popc(begins[i]);
    for (int t = (int)threadIdx.x; t < p.n_rows; t += (int)blockDim.x) {
        uint32_t below = begins[t / 32] & ((1u << t % 32) - 1), after = begins[t / 32] >> t % 32;
        int at = __popc(below), next = t / 32;
        if (!(after & 1))
            continue;
        for (int i = 0; i < t / 32; i++)
            at += __popc(begins[i]);
        after = begins[next] & ~(below | 1u << t % 32);
        while (!after && ++next < words)
            after = begins[next];
        int end = after ? next * 32 + __ffs((int)after) - 1 : p.n_rows;
        unsorted[at] = {(uint16_t)t, (uint16_t)(end - t), pos[t]};
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        int tiles = tiles_of(a, unsorted[i]), rank = n > SORT_MAX ? n - 1 - i : 0;
        for (int j = 0; j < n && n <= SORT_MAX; j++) {
            int other = tiles_of(a, unsorted[j]);
            rank += other > tiles || (other == tiles && j < i);
        }
        list[rank] = unsorted[i];
    }
    COPY_ASM("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return n;
}

/* Item number i of the launch: blocks take the list to and fro. False behind the last. */
__device__ static bool find_item(const struct attention_args &a,
                                 const struct attention_many_plan &p, const struct many_rows *list,
                                 int n_list, int round, struct attention_many_item *it)
{
    int per = a.n_kv * p.cut.pieces * p.parts, blocks = (int)gridDim.x, block = (int)blockIdx.x;
    int i = round * blocks + (round % 2 ? blocks - 1 - block : block);
    if (i >= n_list * per)
        return false;
    struct many_rows r = list[i / per];
    r.row = (uint16_t)__reduce_max_sync(ALL, r.row);
    r.n = (uint16_t)__reduce_max_sync(ALL, r.n);
    r.pos = __reduce_max_sync(ALL, r.pos);
    struct attention_heads h = heads_of(p.cut, i % per / p.parts);
    it->row = p.row0 + r.row;
    it->n_rows = r.n;
    it->pos = r.pos;
    it->part = i % per % p.parts;
    it->kv = h.kv;
    it->head0 = h.head0;
    it->heads = h.heads;
    it->n_slots = it->n_rows * it->heads;
    it->last = (r.pos + r.n - 1) / KERN_TILE;
    it->first = it->last + 1 - tiles_of(a, r);
    return true;
}

#endif
