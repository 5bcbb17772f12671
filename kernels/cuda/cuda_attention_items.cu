/* cuda_attention_items.cu: rule 4 in mma90 for any shape, by items of up to 64 slots.
 *
 * Work: a block of four warps is an item: up to 16 * MT slots, a slot being one query head of one
 * row; the rows of an item are neighbours in the step and of one sequence, the heads belong to one
 * kv head. A row begins an item when it stands at a multiple of the item's rows or when the row
 * before it is of another sequence; blocks of other rows end at once. The four warps share a tile:
 * each has the scores of 16 keys and then the weighted sum of a quarter of the dims.
 * Bytes: K and V of every tile once an item, by cp.async; K of the next tile arrives under the
 * softmax and the weighted sum, V under the scores. TURNS: for long heads on cards whose blocks
 * have little shared memory, K and V take turns in one place, and nobody copies ahead. Layout:
 * halves of pages as they are; ldmatrix reads them, the queries and P without bank conflicts (rows
 * of an odd number of 16-byte pieces). Order: tiles ascending inside a split, splits ascending; a
 * slot that sees no key of a tile is left as it is. Where a step has few items, each split of an
 * item has a block of its own, and cuda_attention_join adds the results in the same order. Planted
 * fault: splits begin a tile late, in either form. Shapes: head_dim 1..512, any group of heads, any
 * window; rows in any order.
 *
 * A slot's masked keys have P = +0, which is not enough where V is not finite. Tiles that some slot
 * sees in part are looked through while they lie in shared memory; where one holds a value that is
 * not finite, each row's slots take their sums by themselves, with V of their masked keys cleared.
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"

#define WARPS     4
#define BLOCK     (32 * WARPS)
#define SLOTS_MAX 64
#define P_STRIDE  (KERN_TILE + 8)

#define Q_STRIDE(dims) ((dims) + 8) /* elements of a query in shared memory */

struct attention_plan {
    struct attention_cut cut;
    int dims; /* head_dim padded to 16 */
    struct cuda_partials parts;
};

struct attention_item {
    int row, n_rows, n_slots, n_mt;
    int kv, head0, heads;
    int begin_min, begin_max, end_min, end_max; /* of its rows' keys */
};

struct attention_shared {
    int begin[SLOTS_MAX], end[SLOTS_MAX]; /* keys that a slot sees; none: both 0 */
    float max[WARPS][SLOTS_MAX];
    float sum[SLOTS_MAX];
    uint16_t p[SLOTS_MAX * P_STRIDE];
};

/* Registers of a thread. Of every 16 slots it has those of its lane's two rows, g and g + 8. */
template <int NT, int MT> struct attention_state {
    float o[MT][NT][4], o_total[MT][NT][4];
    float l[4], l_total[4]; /* warp i has the sums of the i-th 16 slots */
    float m[MT][2], m_total[MT][2];
    uint32_t seen, have; /* bit 2 * mt + half: in this split; in an earlier one */
};

/* Begins the copy of n elements, a multiple of 8, as one group. */
__device__ static void copy_begin(uint16_t *to, const uint16_t *from, int n)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    for (int i = (int)threadIdx.x * 8; i < n; i += BLOCK * 8)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + 2 * (uint32_t)i),
                     "l"(from + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of the groups begun last are on their way. */
template <int N> __device__ static inline void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- items --------------------------------------------------------------------------------------
 */
/* False when row t of piece y begins no item. */
__device__ static bool find_item(const struct kern_rows &rows, const struct attention_plan &p,
                                 int t, int y, struct attention_item *it)
{
    int seq = rows.seq[t], tokens = p.cut.tokens;
    int limit = MIN2((t / tokens + 1) * tokens, rows.n_tok);
    if (t % tokens != 0 && rows.seq[t - 1] == seq)
        return false;
    it->row = t;
    it->n_rows = 1;
    while (t + it->n_rows < limit && rows.seq[t + it->n_rows] == seq)
        it->n_rows++;
    struct attention_heads h = heads_of(p.cut, y);
    it->kv = h.kv, it->head0 = h.head0, it->heads = h.heads;
    it->n_slots = it->n_rows * it->heads;
    it->n_mt = (it->n_slots + 15) / 16;
    return true;
}

/* Which keys the slots see, and their queries, zeros beyond the slots and dims. */
__device__ static void load_slots(const struct attention_args &a, const struct kern_rows &rows,
                                  const struct attention_plan &p, struct attention_item *it,
                                  struct attention_shared *sh, uint16_t *q)
{
    const uint16_t *from = (const uint16_t *)a.q;
    for (int s = (int)threadIdx.x; s < SLOTS_MAX; s += BLOCK) {
        int end = s < it->n_slots ? rows.pos[it->row + s / it->heads] + 1 : 0;
        sh->end[s] = end;
        sh->begin[s] = a.window && end > a.window ? end - a.window : 0;
    }
    for (int i = (int)threadIdx.x; i < it->n_mt * 16 * p.dims; i += BLOCK) {
        int s = i / p.dims, d = i % p.dims;
        int64_t head = (int64_t)(it->row + s / it->heads) * a.n_head + it->head0 + s % it->heads;
        bool there = s < it->n_slots && d < a.head_dim;
        q[s * Q_STRIDE(p.dims) + d] = there ? from[head * a.head_dim + d] : (uint16_t)0;
    }
    __syncthreads();
    it->begin_min = it->begin_max = sh->begin[0];
    it->end_min = it->end_max = sh->end[0];
    for (int s = it->heads; s < it->n_slots; s += it->heads) {
        it->begin_min = MIN2(it->begin_min, sh->begin[s]);
        it->begin_max = MAX2(it->begin_max, sh->begin[s]);
        it->end_min = MIN2(it->end_min, sh->end[s]);
        it->end_max = MAX2(it->end_max, sh->end[s]);
    }
}

/* K (0) or V (1) of a tile in its page. */
__device__ static const uint16_t *tile_half(const struct attention_args &a,
                                            const struct kern_rows &rows,
                                            const struct attention_plan &p,
                                            const struct attention_item &it, int tile, int which)
{
    int64_t page = cuda_page(rows, it.row, tile * KERN_TILE);
    int64_t number = (page * a.n_kv + it.kv) * 2 + which;
    return (const uint16_t *)a.kv + number * cuda_page_half(p.dims);
}

/* ---- one tile -----------------------------------------------------------------------------------
 */
/* Raw scores of the warp's 16 keys, s[mt][key / 8], one chain over the dims from +0. */
template <int MT>
__device__ static inline void score_tile(const uint16_t *keys, const uint16_t *q,
                                         const struct attention_plan &p, int n_mt,
                                         float s[MT][2][4])
{
    int lane = (int)threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    int key = (int)threadIdx.x / 32 * 16 + matrix / 2 * 8 + row;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            s[mt][i / 4][i % 4] = 0.0f;
    for (int d = 0; d < p.dims; d += 16) {
        uint32_t k[4], x[4];
        load_matrices(k, keys + cuda_page_at(p.dims, key, d + matrix % 2 * 8));
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            if (mt >= n_mt)
                break;
            int slot = mt * 16 + matrix % 2 * 8 + row;
            load_matrices(x, q + slot * Q_STRIDE(p.dims) + d + matrix / 2 * 8);
            frag_mma(s[mt][0], x, k[0], k[1]);
            frag_mma(s[mt][1], x, k[2], k[3]);
        }
    }
}

/* Caps the scores of seen keys and gives the warp's maximum of each slot to the block. */
template <int MT>
__device__ static inline void find_maxima(const struct attention_args &a,
                                          struct attention_shared *sh, int n_mt, int key0,
                                          float s[MT][2][4])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        if (mt >= n_mt)
            break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int slot = mt * 16 + lane / 4 + half * 8;
            int lo = sh->begin[slot] - key0, hi = sh->end[slot] - key0;
            float m = -INFINITY;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int key = warp * 16 + i / 2 * 8 + lane % 4 * 2 + i % 2;
                float *x = &s[mt][i / 2][half * 2 + i % 2];
                if (key < lo || key >= hi)
                    continue;
                if (a.softcap > 0.0f)
                    *x = elem_softcap(a.scale * *x, a.softcap);
                m = elem_max(*x, m);
            }
            m = elem_max(__shfl_xor_sync(0xffffffffu, m, 1), m);
            m = elem_max(__shfl_xor_sync(0xffffffffu, m, 2), m);
            if (lane % 4 == 0)
                sh->max[warp][slot] = m;
        }
    }
}

/* P of the warp's keys, the new maxima, and the sums under them. */
template <int NT, int MT>
__device__ static inline void soften_tile(struct attention_state<NT, MT> &st,
                                          struct attention_shared *sh, int n_mt, int key0, float c,
                                          float s[MT][2][4])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        if (mt >= n_mt)
            break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int slot = mt * 16 + lane / 4 + half * 8;
            int lo = MAX2(sh->begin[slot] - key0, 0), hi = MIN2(sh->end[slot] - key0, KERN_TILE);
            float m = st.m[mt][half], f = 1.0f;
            for (int w = 0; w < WARPS; w++)
                m = elem_max(sh->max[w][slot], m);
            if (lo < hi) {
                f = elem_rescale(st.m[mt][half], m, c);
                st.seen |= 1u << (mt * 2 + half);
            }
            st.m[mt][half] = m;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int key = warp * 16 + j * 8 + lane % 4 * 2;
                float p[2];
                for (int i = 0; i < 2; i++) {
                    float x = elem_score_exponent(s[mt][j][half * 2 + i], m, c);
                    p[i] = key + i >= lo && key + i < hi ? elem_exp2_p(x) : 0.0f;
                }
                *(uint32_t *)(sh->p + slot * P_STRIDE + key) = frag_pack(p[0], p[1]);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                st.o[mt][n][half * 2] *= f;
                st.o[mt][n][half * 2 + 1] *= f;
            }
            if (mt == warp) {
                st.l[half * 2] *= f;
                st.l[half * 2 + 1] *= f;
            }
        }
    }
}

__device__ static inline void load_p(const struct attention_shared *sh, int mt, int step,
                                     uint32_t p[4])
{
    int lane = (int)threadIdx.x % 32, slot = mt * 16 + lane / 8 % 2 * 8 + lane % 8;
    load_matrices(p, sh->p + slot * P_STRIDE + step * 16 + lane / 16 * 8);
}

/* V of 16 keys and 16 dims as two columns of eight dims: v[0..1] and v[2..3]. */
__device__ static inline void load_v(const uint16_t *values, int dims, int step, int dim,
                                     uint32_t v[4])
{
    int lane = (int)threadIdx.x % 32, key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
    load_transposed(v, values + cuda_page_at(dims, key, dim + lane / 16 * 8));
}

/* O takes the tile's four steps of P against V. */
template <int NT, int MT>
__device__ static inline void weigh_tile(struct attention_state<NT, MT> &st,
                                         const struct attention_shared *sh, const uint16_t *values,
                                         int dims, int n_mt)
{
    int dim0 = (int)threadIdx.x / 32 * NT * 8;
#pragma unroll
    for (int step = 0; step < KERN_TILE / 16; step++) {
        uint32_t p[MT][4], v[4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            if (mt < n_mt)
                load_p(sh, mt, step, p[mt]);
        }
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            if (dim0 + n * 8 >= dims)
                break;
            load_v(values, dims, step, dim0 + n * 8, v);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                if (mt >= n_mt)
                    break;
                frag_mma(st.o[mt][n], p[mt], v[0], v[1]);
                frag_mma(st.o[mt][n + 1], p[mt], v[2], v[3]);
            }
        }
    }
}

/* Two keys of V, those outside [lo, hi) as +0. */
__device__ static inline uint32_t clear_masked(uint32_t v, int key, int lo, int hi)
{
    uint32_t low = key >= lo && key < hi ? 0xffffu : 0;
    uint32_t high = key + 1 >= lo && key + 1 < hi ? 0xffff0000u : 0;
    return v & (low | high);
}

/* The same where V is not finite: the slots of each row by themselves. */
template <int NT, int MT>
__device__ static inline void
weigh_apart(struct attention_state<NT, MT> &st, const struct attention_shared *sh,
            const struct attention_item &it, const uint16_t *values, int dims, int key0)
{
    int lane = (int)threadIdx.x % 32, dim0 = (int)threadIdx.x / 32 * NT * 8;
    for (int first = 0; first < it.n_slots; first += it.heads) {
        int lo = MAX2(sh->begin[first] - key0, 0), hi = MIN2(sh->end[first] - key0, KERN_TILE);
        if (lo >= hi)
            continue;
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            if (mt * 16 >= first + it.heads || mt * 16 + 16 <= first)
                continue;
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                float o[2][4];
                if (dim0 + n * 8 >= dims)
                    break;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    o[i / 4][i % 4] = st.o[mt][n + i / 4][i % 4];
                for (int step = 0; step < KERN_TILE / 16; step++) {
                    uint32_t p[4], v[4];
                    load_p(sh, mt, step, p);
                    load_v(values, dims, step, dim0 + n * 8, v);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        v[i] = clear_masked(v[i], step * 16 + i % 2 * 8 + lane % 4 * 2, lo, hi);
                    frag_mma(o[0], p, v[0], v[1]);
                    frag_mma(o[1], p, v[2], v[3]);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int slot = mt * 16 + lane / 4 + i % 4 / 2 * 8;
                    if (slot >= first && slot < first + it.heads)
                        st.o[mt][n + i / 4][i % 4] = o[i / 4][i % 4];
                }
            }
        }
    }
}

/* L takes four steps of P against ones. */
__device__ static inline void weigh_ones(const struct attention_shared *sh, int n_mt, float l[4])
{
    int mt = (int)threadIdx.x / 32;
#pragma unroll
    for (int step = 0; mt < n_mt && step < KERN_TILE / 16; step++) {
        uint32_t p[4];
        load_p(sh, mt, step, p);
        frag_mma(l, p, 0x3f803f80u, 0x3f803f80u);
    }
}

/* Whether any of what this thread copied of a half is an infinity or a NaN. */
__device__ static bool has_infinite(const uint16_t *half, int n)
{
    uint32_t found = 0;
    for (int i = (int)threadIdx.x * 8; i < n; i += BLOCK * 8) {
        uint4 v = *(const uint4 *)(half + i);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            found |= ((w[j] & 0x7f80u) == 0x7f80u) | ((w[j] & 0x7f800000u) == 0x7f800000u);
    }
    return found != 0;
}

/* ---- splits -------------------------------------------------------------------------------------
 */
template <int NT, int MT>
__device__ static inline void start_split(struct attention_state<NT, MT> &st)
{
    st.seen = 0;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        st.m[mt][0] = st.m[mt][1] = -INFINITY;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.o[mt][n][i] = 0.0f;
    }
    st.l[0] = st.l[1] = st.l[2] = st.l[3] = 0.0f;
}

/* What a split has joins the total; each slot's first one is the total. */
template <int NT, int MT>
__device__ static inline void merge_split(struct attention_state<NT, MT> &st, float c)
{
    int warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t bit = 1u << (mt * 2 + half);
            bool first = !(st.have & bit);
            if (!(st.seen & bit))
                continue;
            float m = first ? st.m[mt][half] : elem_max(st.m[mt][half], st.m_total[mt][half]);
            float f = elem_rescale(st.m_total[mt][half], m, c);
            float g = elem_rescale(st.m[mt][half], m, c);
            st.m_total[mt][half] = m;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) {
                    float joined = fmaf(st.o[mt][n][i], g, st.o_total[mt][n][i] * f);
                    st.o_total[mt][n][i] = first ? st.o[mt][n][i] : joined;
                }
            if (mt == warp) {
                float joined = fmaf(st.l[half * 2], g, st.l_total[half * 2] * f);
                st.l_total[half * 2] = first ? st.l[half * 2] : joined;
            }
        }
    st.have |= st.seen;
}

/* Writes a split's results for cuda_attention_join. */
template <int NT, int MT>
__device__ static inline void
store_split(const struct attention_state<NT, MT> &st, const struct attention_args &a,
            const struct attention_plan &p, const struct attention_item &it, int split)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, dim0 = warp * NT * 8;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int slot = mt * 16 + lane / 4 + half * 8;
            if (!(st.seen >> (mt * 2 + half) & 1))
                continue;
            int64_t row = it.row + slot / it.heads, head = it.head0 + slot % it.heads;
            float *to = partial_of(p.parts, row, a.n_head, (int)head, split);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                int dim = dim0 + n * 8 + lane % 4 * 2;
                if (dim < p.dims)
                    *(float2 *)(to + dim) =
                        make_float2(st.o[mt][n][half * 2], st.o[mt][n][half * 2 + 1]);
            }
            if (mt == warp && lane % 4 == 0) {
                to[p.dims] = st.l[half * 2];
                to[p.dims + 1] = st.m[mt][half];
            }
        }
}

template <int NT, int MT>
__device__ static inline void
store_item(const struct attention_state<NT, MT> &st, const struct attention_args &a,
           const struct attention_plan &p, const struct attention_item &it,
           struct attention_shared *sh)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, dim0 = warp * NT * 8;
    if (warp < it.n_mt && lane % 4 == 0) {
        sh->sum[warp * 16 + lane / 4] = st.l_total[0];
        sh->sum[warp * 16 + lane / 4 + 8] = st.l_total[2];
    }
    __syncthreads();
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int slot = mt * 16 + lane / 4 + half * 8;
            if (slot >= it.n_slots)
                continue;
            int row = it.row + slot / it.heads, head = it.head0 + slot % it.heads;
            float m = st.m_total[mt][half];
            struct attention_factors f = end_row(a, head, m, sh->sum[slot], p.parts.c);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    store_out(a, row, head, dim0 + n * 8 + lane % 4 * 2 + i,
                              st.o_total[mt][n][half * 2 + i], f);
        }
}

/* ---- kernels ------------------------------------------------------------------------------------
 */
template <int NT, int MT, bool TURNS>
__global__ static void __launch_bounds__(BLOCK)
    attend(struct attention_args a, struct kern_rows rows, struct attention_plan p)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ struct attention_shared sh;
    struct attention_item it;
    struct attention_state<NT, MT> st;
    int half = cuda_page_half(p.dims);
    uint16_t *keys = (uint16_t *)dynamic, *values = TURNS ? keys : keys + half, *q = values + half;
    if (!find_item(rows, p, rows.n_tok - 1 - (int)blockIdx.x, (int)blockIdx.y, &it))
        return;
    load_slots(a, rows, p, &it, &sh, q);
    int tile = it.begin_min / KERN_TILE, last = (it.end_max - 1) / KERN_TILE;
    if (p.parts.data) {
        int first = (int)blockIdx.z * SPLIT_TILES;
        tile = MAX2(tile, first ? first + p.parts.late : 0);
        last = MIN2(last, first + SPLIT_TILES - 1 + p.parts.late);
        if (tile > last)
            return;
    }
    st.have = 0;
    start_split(st);
    copy_begin(keys, tile_half(a, rows, p, it, tile, 0), half);
    for (; tile <= last; tile++) {
        int key0 = tile * KERN_TILE;
        bool whole = it.begin_max <= key0 && it.end_min >= key0 + KERN_TILE;
        float s[MT][2][4];
        copy_wait<0>();
        __syncthreads();
        if (!TURNS)
            copy_begin(values, tile_half(a, rows, p, it, tile, 1), half);
        score_tile<MT>(keys, q, p, it.n_mt, s);
        find_maxima<MT>(a, &sh, it.n_mt, key0, s);
        __syncthreads();
        if (TURNS)
            copy_begin(values, tile_half(a, rows, p, it, tile, 1), half);
        else
            copy_begin(keys, tile < last ? tile_half(a, rows, p, it, tile + 1, 0) : NULL,
                       tile < last ? half : 0);
        soften_tile(st, &sh, it.n_mt, key0, p.parts.c, s);
        copy_wait<TURNS ? 0 : 1>();
        if (__syncthreads_or(!whole && has_infinite(values, half)))
            weigh_apart(st, &sh, it, values, p.dims, key0);
        else
            weigh_tile(st, &sh, values, p.dims, it.n_mt);
        weigh_ones(&sh, it.n_mt, st.l);
        bool edge = split_of(tile + 1, p.parts.late) != split_of(tile, p.parts.late);
        if (!p.parts.data && (tile == last || edge)) {
            merge_split(st, p.parts.c);
            start_split(st);
        }
        if (TURNS) { /* all have read V, or P of it */
            __syncthreads();
            copy_begin(keys, tile < last ? tile_half(a, rows, p, it, tile + 1, 0) : NULL,
                       tile < last ? half : 0);
        }
    }
    if (p.parts.data)
        store_split(st, a, p, it, (int)blockIdx.z);
    else
        store_item(st, a, p, it, &sh);
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
static struct attention_plan make_plan(const struct cuda_kern *c, const struct attention_args *a,
                                       int slots)
{
    struct attention_plan p = {};
    int n_tok = a->rows->n_tok;
    p.cut = cuda_attention_cut(a, slots);
    p.dims = cuda_page_dims(a->head_dim);
    p.parts = cuda_attention_partials(c, a);
    p.parts.late = cuda_attention_late(a);
    if (p.parts.n_splits < 2 || (int64_t)n_tok * a->n_kv * p.cut.pieces >= 2 * (int64_t)c->n_sm)
        p.parts.data = NULL;
    return p;
}

extern "C" bool cuda_attention_items_apart(const struct cuda_kern *c,
                                           const struct attention_args *a)
{
    return make_plan(c, a, SLOTS_MAX).parts.data != NULL;
}

/* Of a block besides struct attention_shared: K and V of a tile, in one place or two, and the
 * queries. */
static constexpr int shared_bytes(int dims, int slots, int places)
{
    return (places * CUDA_PAGE_KEYS * dims + slots * Q_STRIDE(dims)) * (int)sizeof(uint16_t);
}

template <int NT, int MT, bool TURNS = false>
static void launch(const struct cuda_kern *c, const struct attention_args *a)
{
    static bool allowed;
    constexpr int places = TURNS ? 1 : 2, most = shared_bytes(NT * 8 * WARPS, 16 * MT, places);
    constexpr size_t room = TURNS    ? CUDA_SHARED_ATTENTION_TURNS_512
                            : NT > 8 ? CUDA_SHARED_ATTENTION_ITEMS_512
                                     : CUDA_SHARED_ATTENTION_ITEMS;
    static_assert(most + sizeof(struct attention_shared) <= room);
    struct attention_plan p = make_plan(c, a, 16 * MT);
    dim3 grid((unsigned)a->rows->n_tok, (unsigned)(a->n_kv * p.cut.pieces),
              p.parts.data ? (unsigned)p.parts.n_splits : 1u);
    if (!allowed) {
        (void)cudaFuncSetAttribute(attend<NT, MT, TURNS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, most);
        allowed = true;
    }
    attend<NT, MT, TURNS>
        <<<grid, BLOCK, (size_t)shared_bytes(p.dims, 16 * MT, places), c->stream>>>(*a, *a->rows,
                                                                                    p);
    if (p.parts.data)
        cuda_attention_join(c, a, &p.parts, 0);
}

extern "C" void cuda_attention_items_run(const struct cuda_kern *c, const struct attention_args *a)
{
    int dims = cuda_page_dims(a->head_dim);
    if (dims <= 64)
        launch<2, 4>(c, a);
    else if (dims <= 128)
        launch<4, 4>(c, a);
    else if (dims <= 256)
        launch<8, 2>(c, a);
    else if (cuda_takes(c, CUDA_KERNEL_ATTENTION_ITEMS_512))
        launch<16, 1>(c, a);
    else
        launch<16, 1, true>(c, a);
}
