/* cuda_attention_many.cu: rule 4 in mma90 for many query rows, by warpgroup products (wgmma).
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention_apart.cuh"
#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_product.h"
#include "kernels/cuda/cuda_wgmma.cuh"

#define WARPS       4 /* of a warpgroup */
#define CONSUMERS   2 /* warpgroups that compute */
#define GROUP_SLOTS 64
#define SLOTS       (CONSUMERS * GROUP_SLOTS)
#define BLOCK       (32 * WARPS * (CONSUMERS + 1))
#define STAGES      3
#define LIST_MAX    2048 /* rows of a launch */
#define SORT_MAX    768  /* longer lists are long enough to be balanced unsorted */
#define TILES       (KERN_SPLIT / KERN_TILE)
#define ONES_BYTES  1024
#define ROUNDS_MAX  2048 /* items of a block */
#define ALL         0xffffffffu
__device__ static inline void named_sync(int id)
{
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}
__device__ static inline void named_arrive(int id)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
}

static_assert(GROUP_SLOTS == 64 && KERN_TILE == 64, "the shape of a product");

/* Neighbouring rows of one sequence at neighbouring positions. */
struct many_rows {
    uint16_t row, n; /* first row, of the launch's; rows */
    int pos;         /* of the first */
};

struct many_state {
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], q_full[2], q_empty[2];
    uint32_t apart[CONSUMERS * WARPS][ROUNDS_MAX / 32]; /* a bit an item: computed once more */
};

/* Shared memory, in this order. */
template <int DIMS> struct many_layout {
    static constexpr int half = KERN_TILE * DIMS * 2;
    static constexpr int q_block = SLOTS * 128; /* 64 dims */
    static constexpr int keys = 0, values = keys + STAGES * half, q = values + STAGES * half,
                         ones = q + 2 * DIMS / 64 * q_block, list = ones + ONES_BYTES,
                         state = list + LIST_MAX * (int)sizeof(struct many_rows),
                         bytes = state + (int)sizeof(struct many_state);
    static_assert(2 * STAGES * half >= LIST_MAX * (int)sizeof(struct many_rows),
                  "the list is made where K and V stand later");
};

/* ---- items --------------------------------------------------------------------------------------
 */
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
    for (int t = (int)threadIdx.x; t < words * 32; t += BLOCK) {
        bool begin = t < p.n_rows && (t == 0 || seq[t] != seq[t - 1] || pos[t] != pos[t - 1] + 1 ||
                                      pos[t] % p.tokens == 0);
        uint32_t word = __ballot_sync(ALL, begin);
        if (t % 32 == 0)
            begins[t / 32] = word;
    }
    __syncthreads();
    for (int i = 0; i < words; i++)
        n += __popc(begins[i]);
    for (int t = (int)threadIdx.x; t < p.n_rows; t += BLOCK) {
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
    for (int i = (int)threadIdx.x; i < n; i += BLOCK) {
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
    int per = a.n_kv * p.pieces, blocks = (int)gridDim.x, block = (int)blockIdx.x;
    int i = round * blocks + (round % 2 ? blocks - 1 - block : block);
    if (i >= n_list * per)
        return false;
    struct many_rows r = list[i / per];
    r.row = (uint16_t)__shfl_sync(ALL, r.row, 0);
    r.n = (uint16_t)__shfl_sync(ALL, r.n, 0);
    r.pos = __shfl_sync(ALL, r.pos, 0);
    int y = i % per, piece = y % p.pieces;
    it->row = p.row0 + r.row;
    it->n_rows = r.n;
    it->pos = r.pos;
    it->kv = y / p.pieces;
    it->head0 = it->kv * p.group + piece * p.heads;
    it->heads = MIN2(p.heads, p.group - piece * p.heads);
    it->n_slots = it->n_rows * it->heads;
    it->last = (r.pos + r.n - 1) / KERN_TILE;
    it->first = it->last + 1 - tiles_of(a, r);
    return true;
}

/* ---- the copying warp ---------------------------------------------------------------------------
 */
struct many_ring {
    int stage, phase;
};

__device__ static inline void ring_next(struct many_ring &r)
{
    r.stage = r.stage + 1 == STAGES ? 0 : r.stage + 1;
    r.phase ^= r.stage == 0;
}

template <int DIMS>
__device__ static void copy_items(const struct attention_args &a, const struct kern_rows &rows,
                                  const struct attention_many_plan &p, const CUtensorMap *q, uint8_t *shared,
                                  int n_list)
{
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    int lane = (int)threadIdx.x % 32;
    struct many_ring ring = {};
    struct attention_many_item it;
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        const int32_t *pages = rows.pages + (int64_t)rows.seq[it.row] * rows.pages_max;
        uint64_t *q_full = &b->q_full[round % 2];
        if (lane == 0) {
            uint8_t *to = shared + at::q + round % 2 * (DIMS / 64 * at::q_block);
            copy_wait(&b->q_empty[round % 2], (round / 2 & 1) ^ 1);
            copy_expect(q_full, p.tokens * p.heads * DIMS * 2);
            for (int i = 0; i < DIMS / 64; i++)
                copy_heads(to + i * at::q_block, q, i * 64, it.head0, it.row, q_full);
        }
        int page = 0;
        for (int tile = it.first; tile <= it.last; tile++) {
            int i = (tile - it.first) % 32;
            if (i == 0)
                page = tile + lane <= it.last ? pages[tile + lane] : 0;
            int64_t number = ((int64_t)__shfl_sync(ALL, page, i) * a.n_kv + it.kv) * 2;
            const uint8_t *from = (const uint8_t *)a.kv + number * at::half;
            if (lane == 0) {
                copy_wait(&b->k_empty[ring.stage], ring.phase ^ 1);
                copy_expect(&b->k_full[ring.stage], at::half);
                copy_bulk(shared + at::keys + ring.stage * at::half, from, at::half,
                          &b->k_full[ring.stage]);
                copy_wait(&b->v_empty[ring.stage], ring.phase ^ 1);
                copy_expect(&b->v_full[ring.stage], at::half);
                copy_bulk(shared + at::values + ring.stage * at::half, from + at::half, at::half,
                          &b->v_full[ring.stage]);
            }
            __syncwarp();
            ring_next(ring);
        }
    }
}

/* ---- a tile -------------------------------------------------------------------------------------
 */
/* What a thread knows of its two slots: of every 16 slots of its warp those of lane / 4 and + 8. */
struct many_slots {
    int begin[2], end[2];   /* keys that they see; none: both 0 */
    float m[2], m_total[2], l_total[2];
    uint32_t have; /* bit: the slot has a total */
    uint32_t odd;  /* bit: it met an exponent above what the short form of exp2 holds for */
};

/* Twice the bits of elem_exp2_p(x) for x in [-126, 1], and below; infinite for a NaN: half the
 * polynomial, and n + 1 added to its exponent. Rounded to bf16, as P is, that is the same in
 * subnormals too. */
__device__ static inline float exp2_short(float x)
{
    asm("max.NaN.f32 %0, %0, 0fC2FC0000;" : "+f"(x)); /* -126 */
    float rounded = x + (ELEM_ROUND + 1.0f);
    float f = x - (rounded - (ELEM_ROUND + 1.0f));
    float p = 0x1.c3f76p-6f;
    p = fmaf(p, f, 0x1.f0de1ap-4f);
    p = fmaf(p, f, 0x1.62f31ap-2f);
    p = fmaf(p, f, 0x1.fff692p-2f);
    return elem_float(elem_bits(rounded) * 0x800000u + elem_bits(p));
}

/* Bit i: element i of the scores is of a key that its slot sees. */
__device__ static inline uint32_t seen_bits(const struct many_slots &st, int key0)
{
    int at = key0 + (int)threadIdx.x % 4 * 2;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int key = at + i / 4 * 8 + i % 2, half = i % 4 / 2;
        bits |= key >= st.begin[half] && key < st.end[half] ? 1u << i : 0;
    }
    return bits;
}

/* From scores to P, not yet rounded; the maxima under which it stands; what the sums under the
 * maxima m are multiplied by. */
__device__ static inline void soften(float (&s)[32], float c, const float m[2], float next[2],
                                     float f[2], uint32_t *odd)
{
    float scaled[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4] = {m[half], -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i % 4] = fmaxf(x[i % 4], s[i / 2 * 4 + half * 2 + i % 2]);
        next[half] = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        next[half] = fmaxf(next[half], __shfl_xor_sync(ALL, next[half], 1));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        next[half] = fmaxf(next[half], __shfl_xor_sync(ALL, next[half], 2));
        scaled[half] = next[half] * c;
        *odd |= fmaf(next[half], c, -scaled[half]) > 0.5f ? 1u << half : 0;
    }
#pragma unroll
    for (int i = 0; i < 32; i++)
        s[i] = exp2_short(fmaf(s[i], c, -scaled[i % 4 / 2]));
#pragma unroll
    for (int half = 0; half < 2; half++)
        f[half] = elem_exp2_full(c * (m[half] == next[half] ? 0.0f : m[half] - next[half]));
}

template <bool MASKED>
__device__ static inline void pack_p(const float (&s)[32], uint32_t seen, uint32_t (&p)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        p[i] = frag_pack(s[2 * i], s[2 * i + 1]);
        if (MASKED)
            p[i] &= (seen >> 2 * i & 1 ? 0xffffu : 0) | (seen >> (2 * i + 1) & 1 ? 0xffff0000u : 0);
    }
}

/* Descriptors of a tile; what lies further on is added to them in units of 16 bytes. The first
 * QREGS steps take the queries from registers. */
template <int DIMS, int QREGS>
__device__ static inline void start_scores(float (&s)[32], const uint32_t (*qr)[4], uint64_t q,
                                           uint64_t keys)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIMS / 16; i++) {
        uint64_t k = keys + (uint64_t)(i / 4 * KERN_TILE * 8 + i % 4 * 2);
        if (i < QREGS)
            wgmma_step(s, qr[i], k, i);
        else
            wgmma_step(s, q + (uint64_t)(i / 4 * SLOTS * 8 + i % 4 * 2), k, i);
    }
    wgmma_commit();
}

/* O and L take four steps; `add` 0: they begin. */
template <int N>
__device__ static inline void start_sums(float (&o)[N], float (&l)[4], const uint32_t (&p)[16],
                                         uint64_t values, uint64_t ones, int add)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KERN_TILE / 16; i++) {
        wgmma_step<1>(o, p + 4 * i, values + (uint64_t)(i * 128), i == 0 ? add : 1);
        wgmma_step(l, p + 4 * i, ones, i == 0 ? add : 1);
    }
    wgmma_commit();
}

/* ---- splits -------------------------------------------------------------------------------------
 */
/* What the split of keys [from, to) holds joins the totals. A slot that saw none of its keys keeps
 * what it has, since fma(0, -0, x) is x. */
template <int N>
__device__ static inline void merge(const float (&o)[N], const float (&l)[4], float (&total)[N],
                                    struct many_slots &st, float c, int from, int to)
{
    float f[2], g[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool seen = st.begin[half] < to && st.end[half] > from, first = !(st.have >> half & 1);
        float m = first ? st.m[half] : fmaxf(st.m[half], st.m_total[half]);
        float x = elem_exp2_full(c * (st.m_total[half] - m));
        float y = elem_exp2_full(c * (st.m[half] - m));
        f[half] = seen ? first ? 0.0f : x : 1.0f;
        g[half] = seen ? first ? 1.0f : y : -0.0f;
        st.m_total[half] = seen ? m : st.m_total[half];
        st.have |= seen ? 1u << half : 0;
        st.l_total[half] = fmaf(l[2 * half], g[half], st.l_total[half] * f[half]);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        total[i] = fmaf(o[i], g[i % 4 / 2], total[i] * f[i % 4 / 2]);
}

/* Writes the warp's slots, or sets *apart where a value is a NaN though the row sum is none: P = +0
 * met a V that is not finite. */
template <int DIMS>
__device__ static inline void store_slots(const struct attention_args &a,
                                          const struct attention_many_plan &p,
                                          const struct attention_many_item &it, int slot0,
                                          const float (&o)[DIMS / 2], const struct many_slots &st,
                                          uint32_t *redo, int round)
{
    int lane = (int)threadIdx.x % 32;
    bool apart = false;
    struct attention_factors f[2];
    uint16_t *out[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int slot = slot0 + lane / 4 + half * 8;
        bool there = slot < it.n_slots;
        int head = it.head0 + (there ? slot % it.heads : 0);
        int64_t row = it.row + (there ? slot / it.heads : 0);
        f[half] = end_row(a, head, st.m_total[half], st.l_total[half], p.c);
        out[half] =
            there ? (uint16_t *)a.out + (row * a.n_head + head) * DIMS + lane % 4 * 2 : NULL;
        bool finite = st.l_total[half] - st.l_total[half] == 0.0f;
        apart |= there && st.odd >> half & 1;
#pragma unroll
        for (int i = half * 2; i < DIMS / 2; i += 4)
            apart |= there && finite && (o[i] != o[i] || o[i + 1] != o[i + 1]);
    }
    if (__any_sync(ALL, apart)) {
        if (lane == 0)
            redo[round / 32] |= 1u << round % 32;
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = half * 2; i < DIMS / 2; i += 4) {
            float x = a.sinks ? o[i] * f[half].scale : o[i];
            float y = a.sinks ? o[i + 1] * f[half].scale : o[i + 1];
            if (out[half])
                *(uint32_t *)(void *)(out[half] + i / 4 * 8) =
                    frag_pack(x * f[half].inverse, y * f[half].inverse);
        }
    }
}

/* ---- the computing warpgroups -------------------------------------------------------------------
 */
__device__ static inline void find_slots(const struct attention_args &a,
                                         const struct attention_many_item &it, int slot0,
                                         struct many_slots &st)
{
    st = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int slot = slot0 + (int)threadIdx.x % 32 / 4 + half * 8;
        st.m[half] = st.m_total[half] = -INFINITY;
        if (slot < it.n_slots) {
            st.end[half] = it.pos + slot / it.heads + 1;
            st.begin[half] = a.window && st.end[half] > a.window ? st.end[half] - a.window : 0;
        }
    }
}

/* A warpgroup at work on an item. */
template <int DIMS, int QREGS> struct many_group {
    float o[DIMS / 2], total[DIMS / 2], l[4], s[32];
    uint32_t p[16], qr[QREGS + 1][4];
    uint64_t q; /* descriptor */
    struct many_slots st;
    struct many_ring k, v;
    int add, from_key;
};

/* P of a tile and its maxima, of the scores; f: what the sums before it are multiplied by. */
template <bool MASKED, int DIMS, int QREGS>
__device__ static inline void soften_tile(struct many_group<DIMS, QREGS> &w, float c, int tile,
                                          bool fresh, float next[2], float f[2], uint32_t *seen)
{
    float m[2] = {fresh ? -INFINITY : w.st.m[0], fresh ? -INFINITY : w.st.m[1]};
    if (MASKED) {
        *seen = seen_bits(w.st, tile * KERN_TILE);
#pragma unroll
        for (int i = 0; i < 32; i++)
            w.s[i] = *seen >> i & 1 ? w.s[i] : -INFINITY;
    }
    soften(w.s, c, m, next, f, &w.st.odd);
}

/* Scores of tile + 1 and sums of `tile` at once; then P of tile + 1. */
template <bool MASKED, int V, int DIMS, int QREGS>
__device__ static inline void advance(struct many_group<DIMS, QREGS> &w, struct many_state *b,
                                      const struct attention_many_plan &p, uint64_t keys,
                                      uint64_t values, uint64_t ones, int tile, int group)
{
    constexpr int half = many_layout<DIMS>::half >> 4;
    float f[2], next[2];
    uint32_t seen;
    copy_wait(&b->k_full[w.k.stage], w.k.phase);
    if (V & 4)
        named_sync(1 + group);
    start_scores<DIMS, QREGS>(w.s, w.qr, w.q, keys + (uint64_t)(w.k.stage * half));
    copy_wait(&b->v_full[w.v.stage], w.v.phase);
    start_sums(w.o, w.l, w.p, values + (uint64_t)(w.v.stage * half), ones, w.add);
    if (V & 4)
        named_arrive(1 + (group ^ 1));
    wgmma_wait<1>();
    wgmma_hold(w.s);
    if (threadIdx.x % 32 == 0)
        copy_arrive(&b->k_empty[w.k.stage]);
    ring_next(w.k);
    bool edge = (tile + 1 - p.late) % TILES == 0 && tile + 1 > p.late;
    soften_tile<MASKED>(w, p.c, tile + 1, edge, next, f, &seen);
    if (V & 1)
        wgmma_hold(w.s);
    wgmma_wait<0>();
    wgmma_hold(w.o);
    wgmma_hold(w.l);
    if (threadIdx.x % 32 == 0)
        copy_arrive(&b->v_empty[w.v.stage]);
    ring_next(w.v);
    if (edge) {
        merge(w.o, w.l, w.total, w.st, p.c, w.from_key, (tile + 1) * KERN_TILE);
        w.from_key = (tile + 1) * KERN_TILE;
    } else {
#pragma unroll
        for (int i = 0; i < DIMS / 2; i++)
            w.o[i] *= f[i % 4 / 2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.l[i] *= f[i / 2];
    }
    w.add = !edge;
    w.st.m[0] = next[0];
    w.st.m[1] = next[1];
    pack_p<MASKED>(w.s, seen, w.p);
}

template <int DIMS, int QREGS, int V>
__device__ static void attend_items(const struct attention_args &a, const struct kern_rows &rows,
                                    const struct attention_many_plan &p, uint8_t *shared,
                                    int n_list)
{
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    const int lane = (int)threadIdx.x % 32,
              warp = __shfl_sync(ALL, ((int)threadIdx.x - 32 * WARPS) / 32, 0), slot0 = warp * 16,
              group = warp / WARPS;
    const uint32_t base = copy_address(shared);
    const uint64_t keys = wgmma_columns(base + at::keys), ones = wgmma_columns(base + at::ones);
    const uint64_t values = wgmma_turned(base + at::values, KERN_TILE * 128);
    struct many_group<DIMS, QREGS> w;
    struct attention_many_item it;
    w.k = w.v = {};
    if (V & 4 && group == 1)
        named_arrive(1);
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        const int q_at = at::q + round % 2 * (DIMS / 64 * at::q_block);
        copy_wait(&b->q_full[round % 2], round / 2 & 1);
        if (group * GROUP_SLOTS >= it.n_slots) { /* no slots: the tiles pass by */
            for (int tile = it.first; tile <= it.last; tile++) {
                copy_wait(&b->k_full[w.k.stage], w.k.phase);
                copy_wait(&b->v_full[w.k.stage], w.k.phase);
                if (V & 4 && tile != it.first) {
                    named_sync(1 + group);
                    named_arrive(1 + (group ^ 1));
                }
                if (lane == 0) {
                    copy_arrive(&b->k_empty[w.k.stage]);
                    copy_arrive(&b->v_empty[w.k.stage]);
                }
                ring_next(w.k);
            }
            w.v = w.k;
            __syncwarp();
            if (lane == 0)
                copy_arrive(&b->q_empty[round % 2]);
            continue;
        }
        w.q = wgmma_columns(base + (uint32_t)(q_at + group * GROUP_SLOTS * 128));
#pragma unroll
        for (int i = 0; i < QREGS; i++) {
            int row = slot0 + lane / 4;
            const uint8_t *from =
                shared + q_at + i / 4 * at::q_block + row * 128 + lane % 4 * 4;
            int first = (i % 4 * 2 ^ (row & 7)) * 16, second = (i % 4 * 2 + 1 ^ (row & 7)) * 16;
            w.qr[i][0] = *(const uint32_t *)(from + first);
            w.qr[i][1] = *(const uint32_t *)(from + first + 8 * 128);
            w.qr[i][2] = *(const uint32_t *)(from + second);
            w.qr[i][3] = *(const uint32_t *)(from + second + 8 * 128);
        }
        find_slots(a, it, slot0, w.st);
#pragma unroll
        for (int i = 0; i < DIMS / 2; i++)
            w.o[i] = w.total[i] = 0.0f;
        w.l[0] = w.l[1] = w.l[2] = w.l[3] = 0.0f;
        w.from_key = it.first * KERN_TILE;
        w.add = 0;
        /* Tiles of which every slot of the warpgroup sees every key. */
        int first_row = group * GROUP_SLOTS / it.heads,
            last_row = (MIN2(it.n_slots, (group + 1) * GROUP_SLOTS) - 1) / it.heads;
        int whole_end = (it.pos + first_row + 1) / KERN_TILE, whole = 0;
        if (a.window && it.pos + last_row + 1 > a.window)
            whole = (it.pos + last_row + 1 - a.window + KERN_TILE - 1) / KERN_TILE;
        float f[2], next[2];
        uint32_t seen;
        copy_wait(&b->k_full[w.k.stage], w.k.phase);
        start_scores<DIMS, QREGS>(w.s, w.qr, w.q, keys + (uint64_t)(w.k.stage * (at::half >> 4)));
        wgmma_wait<0>();
        wgmma_hold(w.s);
        if (lane == 0)
            copy_arrive(&b->k_empty[w.k.stage]);
        ring_next(w.k);
        soften_tile<true>(w, p.c, it.first, true, next, f, &seen);
        w.st.m[0] = next[0];
        w.st.m[1] = next[1];
        pack_p<true>(w.s, seen, w.p);
        int tile = it.first;
        while (tile < it.last) {
            int stop = MIN2(it.last, whole_end - 1);
            if (tile + 1 >= whole)
                for (; tile < stop; tile++)
                    advance<false, V>(w, b, p, keys, values, ones, tile, group);
            stop = tile + 1 < whole ? MIN2(it.last, whole - 1) : it.last;
            for (; tile < stop; tile++)
                advance<true, V>(w, b, p, keys, values, ones, tile, group);
        }
        if (lane == 0)
            copy_arrive(&b->q_empty[round % 2]);
        copy_wait(&b->v_full[w.v.stage], w.v.phase);
        start_sums(w.o, w.l, w.p, values + (uint64_t)(w.v.stage * (at::half >> 4)), ones, w.add);
        wgmma_wait<0>();
        wgmma_hold(w.o);
        wgmma_hold(w.l);
        if (lane == 0)
            copy_arrive(&b->v_empty[w.v.stage]);
        ring_next(w.v);
        merge(w.o, w.l, w.total, w.st, p.c, w.from_key, (it.last + 1) * KERN_TILE);
        store_slots<DIMS>(a, p, it, slot0, w.total, w.st, b->apart[warp], round);
    }
    __syncwarp();
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++)
        if (b->apart[warp][round / 32] >> round % 32 & 1)
            attend_apart<DIMS>(a, rows, p, it, slot0);
}

template <int DIMS, int QREGS, int V>
__global__ static void __launch_bounds__(BLOCK, 1)
    attend_many(const __grid_constant__ struct attention_args a,
                const __grid_constant__ struct kern_rows rows,
                const __grid_constant__ struct attention_many_plan p,
                const __grid_constant__ CUtensorMap q)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    launch_trigger();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            copy_init(&b->k_full[i], 1);
            copy_init(&b->v_full[i], 1);
            copy_init(&b->k_empty[i], WARPS * CONSUMERS);
            copy_init(&b->v_empty[i], WARPS * CONSUMERS);
        }
        for (int i = 0; i < 2; i++) {
            copy_init(&b->q_full[i], 1);
            copy_init(&b->q_empty[i], WARPS * CONSUMERS);
        }
        copy_init_done();
    }
    for (int i = (int)threadIdx.x; i < CONSUMERS * WARPS * ROUNDS_MAX / 32; i += BLOCK)
        b->apart[0][i] = 0;
    for (int i = (int)threadIdx.x; i < ONES_BYTES / 4; i += BLOCK)
        ((uint32_t *)(shared + at::ones))[i] = 0x3f803f80u;
    /* Positions and pages are no kernel's work. */
    int n_list = list_rows(a, rows, p, (struct many_rows *)(shared + at::list),
                           (struct many_rows *)shared);
    launch_wait();
    if (__shfl_sync(ALL, (int)threadIdx.x / 32, 0) < WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32)
            copy_items<DIMS>(a, rows, p, &q, shared, n_list);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        attend_items<DIMS, QREGS, V>(a, rows, p, shared, n_list);
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int DIMS, int QREGS, int V>
static bool launch(const struct cuda_kern *c, const struct attention_args *a)
{
    static bool allowed;
    struct attention_many_plan p = {};
    int n_tok = a->rows->n_tok;
    p.group = a->n_head / a->n_kv;
    p.heads = MIN2(p.group, SLOTS);
    p.pieces = (p.group + p.heads - 1) / p.heads;
    p.tokens = SLOTS / p.heads;
    p.c = elem_score_factor(a->scale, 0.0f);
    CUtensorMap q;
    if (!cuda_tensor_heads(&q, a->q, DIMS, a->n_head, n_tok, p.heads, p.tokens))
        return false;
    p.late = kern_planted() == KERN_FAULT_SPLIT_EDGE && n_tok > 1;
    if (!allowed) {
        (void)cudaFuncSetAttribute(attend_many<DIMS, QREGS, V>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   many_layout<DIMS>::bytes);
        allowed = true;
    }
    for (int end = n_tok; end > 0; end = p.row0) { /* later rows first: they see more */
        p.row0 = (end - 1) / LIST_MAX * LIST_MAX;
        p.n_rows = end - p.row0;
        int64_t most = (int64_t)p.n_rows * a->n_kv * p.pieces;
        launch_early(attend_many<DIMS, QREGS, V>, dim3((unsigned)MIN2(most, c->n_sm)), BLOCK,
                     many_layout<DIMS>::bytes, c->stream, *a, *a->rows, p, q);
    }
    return true;
}

extern "C" bool cuda_attention_many_run(const struct cuda_kern *c, const struct attention_args *a)
{
    if (a->softcap > 0.0f || !(a->scale > 0.0f) || (uintptr_t)a->q % 16 != 0 ||
        (uintptr_t)a->out % 4 != 0)
        return false;
    const char *v = getenv("ATT_V");
    int variant = v ? atoi(v) : 0;
    if (a->head_dim == 64)
        return variant & 4 ? launch<64, 4, 4>(c, a) : launch<64, 4, 0>(c, a);
    if (a->head_dim != 128)
        return false;
#define CASE(x, y)                                                                                 \
    case x * 10 + y:                                                                               \
        return launch<128, x, y>(c, a);
    switch (variant) {
        CASE(0, 0) CASE(0, 1) CASE(0, 4) CASE(0, 5) CASE(2, 4) CASE(4, 4) CASE(4, 0)
    }
    return false;
}
