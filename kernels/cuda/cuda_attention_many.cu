/* cuda_attention_many.cu: rule 4 in mma90 for many query rows, by warpgroup products (wgmma).
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention_apart.cuh"
#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
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

static_assert(GROUP_SLOTS == 64 && KERN_TILE == 64, "the shape of a product");

/* Neighbouring rows of one sequence at neighbouring positions. */
struct many_rows {
    uint16_t row, n; /* first row, of the launch's; rows */
    int pos;         /* of the first */
};

struct many_state {
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES], q_full, q_empty;
    uint32_t apart[CONSUMERS * WARPS][ROUNDS_MAX / 32]; /* a bit an item: computed once more */
};

/* Shared memory, in this order. */
template <int DIMS> struct many_layout {
    static constexpr int half = KERN_TILE * DIMS * 2;
    static constexpr int keys = 0, values = keys + STAGES * half, ones = values + STAGES * half,
                         totals = ones + ONES_BYTES;
    static constexpr int q_stride = DIMS * 2 + 16;
    static constexpr int q = totals + SLOTS * DIMS * 4, list = q + SLOTS * q_stride,
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
                                  const struct attention_many_plan &p, uint8_t *shared, int n_list)
{
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    int lane = (int)threadIdx.x % 32;
    struct many_ring ring = {};
    struct attention_many_item it;
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        const int32_t *pages = rows.pages + (int64_t)rows.seq[it.row] * rows.pages_max;
        copy_wait(&b->q_empty, (round & 1) ^ 1);
        if (lane == 0)
            copy_expect(&b->q_full, it.n_slots * DIMS * 2);
        __syncwarp();
        for (int s = lane; s < it.n_slots; s += 32) {
            int64_t head = (int64_t)(it.row + s / it.heads) * a.n_head + it.head0 + s % it.heads;
            copy_bulk(shared + at::q + s * at::q_stride, (const uint16_t *)a.q + head * DIMS,
                      DIMS * 2, &b->q_full);
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
    int begin_max, end_min; /* of the warp's slots */
    float m[2], m_total[2], l_total[2];
    uint32_t have; /* bit: the slot has a total */
    bool odd;      /* an exponent above what the short form of exp2 holds for */
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
                                     float f[2], bool *odd)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x[4] = {m[half], -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i % 4] = fmaxf(x[i % 4], s[i / 2 * 4 + half * 2 + i % 2]);
        float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
        next[half] = most;
        float scaled = most * c;
        *odd |= fmaf(most, c, -scaled) > 0.5f;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float *v = &s[i / 2 * 4 + half * 2 + i % 2];
            *v = exp2_short(fmaf(*v, c, -scaled));
        }
        f[half] = m[half] == most ? 1.0f : elem_rescale(m[half], most, c);
    }
}

__device__ static inline void pack_p(const float (&s)[32], bool whole, uint32_t seen,
                                     uint32_t (&p)[16])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i] = frag_pack(s[2 * i], s[2 * i + 1]);
    if (!whole) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            p[i] &= (seen >> 2 * i & 1 ? 0xffffu : 0) | (seen >> (2 * i + 1) & 1 ? 0xffff0000u : 0);
    }
}

template <int DIMS>
__device__ static inline void start_scores(float (&s)[32], const uint32_t (&q)[DIMS / 16][4],
                                           uint32_t keys)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIMS / 16; i++)
        wgmma_step(s, q[i],
                   wgmma_columns(keys + (uint32_t)(i / 4 * KERN_TILE * 128 + i % 4 * 32)), i);
    wgmma_commit();
}

/* O and L take four steps; `add` 0: they begin. */
template <int N>
__device__ static inline void start_sums(float (&o)[N], float (&l)[4], const uint32_t (&p)[16],
                                         uint32_t values, uint32_t ones, int add)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KERN_TILE / 16; i++) {
        wgmma_step<1>(o, p + 4 * i,
                      wgmma_turned(values + (uint32_t)(i * 2048), KERN_TILE * 128), add | i);
        wgmma_step(l, p + 4 * i, wgmma_columns(ones), add | i);
    }
    wgmma_commit();
}

/* ---- splits -------------------------------------------------------------------------------------
 */
/* What the split of keys [from, to) holds joins the totals, which stay in `o` where it is the last.
 * A slot that saw none of its keys keeps what it has, since fma(0, -0, x) is x. */
template <bool LAST, int N>
__device__ static inline void merge(float (&o)[N], const float (&l)[4], struct many_slots &st,
                                    float4 *totals, float c, int from, int to)
{
    float f[2], g[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool seen = st.begin[half] < to && st.end[half] > from, first = !(st.have >> half & 1);
        float m = st.m_total[half];
        f[half] = 1.0f;
        g[half] = -0.0f;
        if (seen) {
            m = first ? st.m[half] : fmaxf(st.m[half], st.m_total[half]);
            f[half] = first ? 0.0f : elem_rescale(st.m_total[half], m, c);
            g[half] = first ? 1.0f : elem_rescale(st.m[half], m, c);
            st.have |= 1u << half;
        }
        st.m_total[half] = m;
        st.l_total[half] = fmaf(l[2 * half], g[half], st.l_total[half] * f[half]);
    }
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 t = totals[i / 4 * 32 * WARPS];
        t.x = fmaf(o[i], g[0], t.x * f[0]);
        t.y = fmaf(o[i + 1], g[0], t.y * f[0]);
        t.z = fmaf(o[i + 2], g[1], t.z * f[1]);
        t.w = fmaf(o[i + 3], g[1], t.w * f[1]);
        if (LAST)
            o[i] = t.x, o[i + 1] = t.y, o[i + 2] = t.z, o[i + 3] = t.w;
        else
            totals[i / 4 * 32 * WARPS] = t;
    }
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
    bool apart = st.odd;
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
    st.end_min = INT32_MAX;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int slot = slot0 + (int)threadIdx.x % 32 / 4 + half * 8;
        st.m[half] = st.m_total[half] = -INFINITY;
        if (slot < it.n_slots) {
            st.end[half] = it.pos + slot / it.heads + 1;
            st.begin[half] = a.window && st.end[half] > a.window ? st.end[half] - a.window : 0;
            st.begin_max = MAX2(st.begin_max, st.begin[half]);
            st.end_min = MIN2(st.end_min, st.end[half]);
        }
    }
    st.begin_max = __reduce_max_sync(ALL, st.begin_max);
    st.end_min = __reduce_min_sync(ALL, st.end_min);
}

template <int DIMS>
__device__ static void attend_items(const struct attention_args &a, const struct kern_rows &rows,
                                    const struct attention_many_plan &p, uint8_t *shared,
                                    int n_list)
{
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    const int thread = (int)threadIdx.x - 32 * WARPS, lane = thread % 32;
    const int warp = __shfl_sync(ALL, thread / 32, 0), slot0 = warp * 16, group = warp / WARPS;
    const uint32_t base = copy_address(shared), ones = base + at::ones;
    float4 *totals = (float4 *)(shared + at::totals + group * GROUP_SLOTS * DIMS * 4) +
                     thread % (32 * WARPS);
    struct many_ring kr = {}, vr = {};
    struct attention_many_item it;
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        struct many_slots st;
        float o[DIMS / 2], l[4], s[32];
        uint32_t q[DIMS / 16][4], pr[16];
        copy_wait(&b->q_full, round & 1);
        const uint8_t *from = shared + at::q + (slot0 + lane / 4) * at::q_stride + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < DIMS / 16; i++) {
            q[i][0] = *(const uint32_t *)(from + i * 32);
            q[i][1] = *(const uint32_t *)(from + i * 32 + 8 * at::q_stride);
            q[i][2] = *(const uint32_t *)(from + i * 32 + 16);
            q[i][3] = *(const uint32_t *)(from + i * 32 + 16 + 8 * at::q_stride);
        }
        __syncwarp();
        if (lane == 0)
            copy_arrive(&b->q_empty);
        if (group * GROUP_SLOTS >= it.n_slots) { /* no slots: the tiles pass by */
            for (int tile = it.first; tile <= it.last; tile++) {
                copy_wait(&b->k_full[kr.stage], kr.phase);
                copy_wait(&b->v_full[kr.stage], kr.phase);
                if (lane == 0) {
                    copy_arrive(&b->k_empty[kr.stage]);
                    copy_arrive(&b->v_empty[kr.stage]);
                }
                ring_next(kr);
            }
            vr = kr;
            continue;
        }
        find_slots(a, it, slot0, st);
#pragma unroll
        for (int i = 0; i < DIMS / 2; i += 4)
            totals[i / 4 * 32 * WARPS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < DIMS / 2; i++)
            o[i] = 0.0f;
        l[0] = l[1] = l[2] = l[3] = 0.0f;
        int tile = it.first, from_key = tile * KERN_TILE, add = 0;
        float f[2], next[2];
        uint32_t seen = ALL;
        bool whole = true;

        copy_wait(&b->k_full[kr.stage], kr.phase);
        start_scores<DIMS>(s, q, base + (uint32_t)(at::keys + kr.stage * at::half));
        wgmma_wait<0>();
        wgmma_hold(s);
        if (lane == 0)
            copy_arrive(&b->k_empty[kr.stage]);
        ring_next(kr);
        whole = st.begin_max <= tile * KERN_TILE && st.end_min >= (tile + 1) * KERN_TILE;
        if (!whole) {
            seen = seen_bits(st, tile * KERN_TILE);
#pragma unroll
            for (int i = 0; i < 32; i++)
                s[i] = seen >> i & 1 ? s[i] : -INFINITY;
        }
        soften(s, p.c, st.m, next, f, &st.odd);
        st.m[0] = next[0];
        st.m[1] = next[1];
        pack_p(s, whole, seen, pr);
        for (; tile < it.last; tile++) {
            copy_wait(&b->k_full[kr.stage], kr.phase);
            start_scores<DIMS>(s, q, base + (uint32_t)(at::keys + kr.stage * at::half));
            copy_wait(&b->v_full[vr.stage], vr.phase);
            start_sums(o, l, pr, base + (uint32_t)(at::values + vr.stage * at::half), ones, add);
            wgmma_wait<1>();
            wgmma_hold(s);
            if (lane == 0)
                copy_arrive(&b->k_empty[kr.stage]);
            ring_next(kr);
            bool edge = (tile + 1 - p.late) % TILES == 0 && tile + 1 > p.late;
            float m[2] = {edge ? -INFINITY : st.m[0], edge ? -INFINITY : st.m[1]};
            int key0 = (tile + 1) * KERN_TILE;
            whole = st.begin_max <= key0 && st.end_min >= key0 + KERN_TILE;
            if (!whole) {
                seen = seen_bits(st, key0);
#pragma unroll
                for (int i = 0; i < 32; i++)
                    s[i] = seen >> i & 1 ? s[i] : -INFINITY;
            }
            soften(s, p.c, m, next, f, &st.odd);
            wgmma_wait<0>();
            wgmma_hold(o);
            wgmma_hold(l);
            if (lane == 0)
                copy_arrive(&b->v_empty[vr.stage]);
            ring_next(vr);
            if (edge) {
                merge<false>(o, l, st, totals, p.c, from_key, key0);
                from_key = key0;
            } else {
#pragma unroll
                for (int i = 0; i < DIMS / 2; i++)
                    o[i] *= f[i % 4 / 2];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    l[i] *= f[i / 2];
            }
            add = !edge;
            st.m[0] = next[0];
            st.m[1] = next[1];
            pack_p(s, whole, seen, pr);
        }
        copy_wait(&b->v_full[vr.stage], vr.phase);
        start_sums(o, l, pr, base + (uint32_t)(at::values + vr.stage * at::half), ones, add);
        wgmma_wait<0>();
        wgmma_hold(o);
        wgmma_hold(l);
        if (lane == 0)
            copy_arrive(&b->v_empty[vr.stage]);
        ring_next(vr);
        merge<true>(o, l, st, totals, p.c, from_key, (it.last + 1) * KERN_TILE);
        store_slots<DIMS>(a, p, it, slot0, o, st, b->apart[warp], round);
    }
    __syncwarp();
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++)
        if (b->apart[warp][round / 32] >> round % 32 & 1)
            attend_apart<DIMS>(a, rows, p, it, slot0);
}

template <int DIMS>
__global__ static void __launch_bounds__(BLOCK, 1)
    attend_many(const __grid_constant__ struct attention_args a,
                const __grid_constant__ struct kern_rows rows,
                const __grid_constant__ struct attention_many_plan p)
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
        copy_init(&b->q_full, 1);
        copy_init(&b->q_empty, WARPS * CONSUMERS);
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
            copy_items<DIMS>(a, rows, p, shared, n_list);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        attend_items<DIMS>(a, rows, p, shared, n_list);
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int DIMS>
static void launch(const struct cuda_kern *c, const struct attention_args *a)
{
    static bool allowed;
    struct attention_many_plan p = {};
    int n_tok = a->rows->n_tok;
    p.group = a->n_head / a->n_kv;
    p.heads = MIN2(p.group, SLOTS);
    p.pieces = (p.group + p.heads - 1) / p.heads;
    p.tokens = SLOTS / p.heads;
    p.c = elem_score_factor(a->scale, 0.0f);
    p.late = kern_planted() == KERN_FAULT_SPLIT_EDGE && n_tok > 1;
    if (!allowed) {
        (void)cudaFuncSetAttribute(attend_many<DIMS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   many_layout<DIMS>::bytes);
        allowed = true;
    }
    for (int end = n_tok; end > 0; end = p.row0) { /* later rows first: they see more */
        p.row0 = (end - 1) / LIST_MAX * LIST_MAX;
        p.n_rows = end - p.row0;
        int64_t most = (int64_t)p.n_rows * a->n_kv * p.pieces;
        launch_early(attend_many<DIMS>, dim3((unsigned)MIN2(most, c->n_sm)), BLOCK,
                     many_layout<DIMS>::bytes, c->stream, *a, *a->rows, p);
    }
}

extern "C" bool cuda_attention_many_run(const struct cuda_kern *c, const struct attention_args *a)
{
    if (a->softcap > 0.0f || !(a->scale > 0.0f) || (uintptr_t)a->q % 16 != 0 ||
        (uintptr_t)a->out % 4 != 0)
        return false;
    switch (a->head_dim) {
    case 64:
        launch<64>(c, a);
        return true;
    case 128:
        launch<128>(c, a);
        return true;
    default:
        return false;
    }
}
