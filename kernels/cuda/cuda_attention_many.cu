/* cuda_attention_many.cu: rule 4 in mma90 for many query rows, by warpgroup products (wgmma).
 *
 * Work: a block is two warps that copy and two warpgroups that compute, which use the same K and V.
 * Up to 128 dims each has 64 slots of its own, a slot being one query head of one row. With 256
 * both have the same 64 slots, make the same scores, and sum half of the dims each: sums and totals
 * of 256 dims do not fit in registers. With 512 two blocks take 256 dims of an item each. Blocks
 * are as many as multiprocessors and take the items of cuda_attention_list.cuh. Bytes: K and V of
 * every tile once an item, each half of a page one bulk copy as it lies, since the order of
 * cuda_page.h is the hardware's 128-byte swizzle; queries by tensor copies, for the next item while
 * this one runs (with 512 dims after it).
 *
 * Shared memory: rings of K and V; places for queries, [64 dims][slot]; a kilobyte of ones, the
 * columns that give row sums; the list; barriers.
 * Registers: sums of the split and totals (a quarter of the dims of two slots), scores that become
 * P in place, P as the operand of the next product. With 64 dims the queries are there too; with
 * more they are read from shared memory, since the totals take their place.
 *
 * Pipeline: the scores of tile j + 1 and the sums of tile j are started together; the softmax of j
 * + 1 follows, then the sums are multiplied by its factor or, at a split's end, join the totals.
 * The warpgroups take turns in starting products.
 *
 * Order: tiles ascending inside a split, splits ascending, each slot by itself. A tile that some
 * slot of the warpgroup sees in part goes the masked way: scores of masked keys become -inf before
 * the maximum, and P +0 after the rounding; a slot that sees none keeps its sums, as a factor of 1
 * and sums of +0 leave them. V of masked keys is not cleared here: cuda_attention_apart.cuh.
 * Its planted fault: splits begin a tile late.
 *
 * Shapes: 64, 128, 256 or 512 dims, the middle two with a softcap or without, a positive scale; any
 * group of heads, windows, sinks, rows in any order. The kernel starts early (cuda_launch.cuh) and
 * makes its list before it waits.
 *
 * Tried and lost, 512 rows behind 7680: totals in shared memory and queries in registers 194 us
 * (with half of a multiprocessor's reads and writes at a split's end; this 188); no turns 202; half
 * of the queries in registers 201; a look at the barriers ahead of the wait 188; a function call
 * beside the products: the compiler serializes them all (C7520).
 */
#include "kernels/cuda/cuda_splits.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_attention_apart.cuh"
#include "kernels/cuda/cuda_attention_copies.cuh"
#include "kernels/cuda/cuda_attention_soften.cuh"
#include "kernels/cuda/cuda_copy.cuh"
#include "kernels/cuda/cuda_frag.cuh"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/cuda/cuda_price.h"
#include "kernels/cuda/cuda_product.h"
#include "kernels/cuda/cuda_wgmma.cuh"

#define BLOCK (32 * WARPS * (CONSUMERS + 1))

static_assert(GROUP_SLOTS == 64 && KERN_TILE == 64, "the shape of a product");

/* ---- turns ------------------------------------------------------------------------------------
 * The two warpgroups start their products in turn, so that those of one run under the softmax of
 * the other. */
__device__ static inline void turn_wait(int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * WARPS * CONSUMERS) : "memory");
}

__device__ static inline void turn_pass(int group)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(32 * WARPS * CONSUMERS) : "memory");
}

/* ---- a tile -------------------------------------------------------------------------------------
 */
/* The upper word is the same for all; the lower one is kept in a uniform register. */
__device__ static inline uint64_t descriptor(uint32_t low)
{
    return (uint64_t)0x40000040 << 32 | low;
}

__device__ static inline uint32_t uniform(uint32_t x)
{
    return __reduce_max_sync(ALL, x);
}

/* Descriptors of the queries and of the places of K; what lies further on is added to them in units
 * of 16 bytes. The first QREGS steps take the queries from registers. */
template <int DIMS, int QREGS>
__device__ static inline void start_scores(float (&s)[32], const uint32_t (*qr)[4], uint32_t q,
                                           const uint32_t (&keys)[many_layout<DIMS>::chunks])
{
    using at = many_layout<DIMS>;
    constexpr int steps = DIMS / 16 / at::chunks;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DIMS / 16; i++) {
        int in = i % steps;
        uint64_t k = descriptor(keys[i / steps] + (uint32_t)(in / 4 * KERN_TILE * 8 + in % 4 * 2));
        if (i < QREGS)
            wgmma_step(s, qr[i], k, i);
        else
            wgmma_step(s, descriptor(q + (uint32_t)(i / 4 * (at::q_block >> 4) + i % 4 * 2)), k, i);
    }
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
        wgmma_step<1>(o, p + 4 * i, descriptor(values + (uint32_t)(i * 128)), i == 0 ? add : 1);
        wgmma_step(l, p + 4 * i, descriptor(ones), i == 0 ? add : 1);
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

/* Writes OUT dims from dim0 on of the warp's slots; or sets the item's bit of `redo` where a value
 * is a NaN though the row sum is finite (P = +0 met a V that is not), or an exponent was odd. */
template <int DIMS, int OUT>
__device__ static inline void
store_slots(const struct attention_args &a, const struct attention_many_plan &p,
            const struct attention_many_item &it, int slot0, int dim0, const float (&o)[OUT / 2],
            const struct many_slots &st, uint32_t *redo, int round)
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
            there ? (uint16_t *)a.out + (row * a.n_head + head) * DIMS + dim0 + lane % 4 * 2 : NULL;
        bool finite = st.l_total[half] - st.l_total[half] == 0.0f;
        apart |= there && st.odd >> half & 1;
#pragma unroll
        for (int i = half * 2; i < OUT / 2; i += 4)
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
        for (int i = half * 2; i < OUT / 2; i += 4) {
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
    float o[many_layout<DIMS>::out / 2], total[many_layout<DIMS>::out / 2], l[4], s[32];
    uint32_t p[16], qr[QREGS + 1][4];
    uint32_t q; /* descriptor */
    struct many_slots st;
    struct many_ring k, v;
    int add, from_key;
};

/* P of a tile and its maxima, of the scores; f: what the sums before it are multiplied by. */
template <bool MASKED, bool CAPS, int DIMS, int QREGS>
__device__ static inline void soften_tile(struct many_group<DIMS, QREGS> &w,
                                          const struct attention_many_plan &p, int tile, bool fresh,
                                          float next[2], float f[2], uint32_t *seen)
{
    float m[2] = {fresh ? -INFINITY : w.st.m[0], fresh ? -INFINITY : w.st.m[1]};
    if (CAPS) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            w.s[i] = softcap_short(w.s[i] * p.scale, p.cap, p.cap_inverse);
    }
    if (MASKED) {
        *seen = seen_bits(w.st, tile * KERN_TILE);
#pragma unroll
        for (int i = 0; i < 32; i++)
            w.s[i] = *seen >> i & 1 ? w.s[i] : -INFINITY;
    }
    soften(w.s, p.c, m, next, f, &w.st.odd);
}

/* Waits for the places of K that hold a tile. */
template <int DIMS, int QREGS>
__device__ static inline void wait_keys(const struct many_group<DIMS, QREGS> &w,
                                        struct many_state *b, uint32_t keys,
                                        uint32_t (&places)[many_layout<DIMS>::chunks])
{
    using at = many_layout<DIMS>;
    struct many_ring r = w.k;
#pragma unroll
    for (int i = 0; i < at::chunks; i++) {
        copy_wait(&b->k_full[r.stage], r.phase);
        places[i] = uniform(keys + (uint32_t)(r.stage * (at::chunk >> 4)));
        ring_next<at::k_stages>(r);
    }
}

/* Gives them back. */
template <int DIMS, int QREGS>
__device__ static inline void pass_keys(struct many_group<DIMS, QREGS> &w, struct many_state *b,
                                        bool leader)
{
#pragma unroll
    for (int i = 0; i < many_layout<DIMS>::chunks; i++) {
        if (leader)
            copy_arrive(&b->k_empty[w.k.stage]);
        ring_next<many_layout<DIMS>::k_stages>(w.k);
    }
}

/* Scores of tile + 1 and sums of `tile` at once; then P of tile + 1. */
template <bool MASKED, bool CAPS, int DIMS, int QREGS>
__device__ static inline void advance(struct many_group<DIMS, QREGS> &w, struct many_state *b,
                                      const struct attention_many_plan &p, uint32_t keys,
                                      uint32_t values, uint32_t ones, int tile, int group,
                                      bool leader)
{
    using at = many_layout<DIMS>;
    float f[2], next[2];
    uint32_t seen, places[at::chunks];
    int v = w.v.stage;
    wait_keys(w, b, keys, places);
    uint32_t q = at::shares ? uniform(w.q) : w.q; /* or every step's sum is kept, and spilled */
    turn_wait(group);
    start_scores<DIMS, QREGS>(w.s, w.qr, q, places);
    copy_wait(&b->v_full[v], w.v.phase);
    start_sums(w.o, w.l, w.p, uniform(values + (uint32_t)(v * (at::part >> 4))), ones, w.add);
    turn_pass(group);
    wgmma_wait<1>();
    wgmma_hold(w.s);
    pass_keys(w, b, leader);
    ring_next<at::v_stages>(w.v);
    bool edge = !CUDA_PRICE && split_of(tile + 1, p.late) != split_of(tile, p.late);
    soften_tile<MASKED, CAPS>(w, p, tile + 1, edge, next, f, &seen);
    wgmma_wait<0>();
    wgmma_hold(w.o);
    wgmma_hold(w.l);
    if (leader)
        copy_arrive(&b->v_empty[v]);
    if (edge) {
        merge(w.o, w.l, w.total, w.st, p.c, w.from_key, (tile + 1) * KERN_TILE);
        w.from_key = (tile + 1) * KERN_TILE;
    } else {
#pragma unroll
        for (int i = 0; i < at::out / 2; i++)
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

template <int DIMS, int QREGS, bool CAPS>
__device__ static void attend_items(const struct attention_args &a, const struct kern_rows &rows,
                                    const struct attention_many_plan &p, uint8_t *shared,
                                    int n_list)
{
    using at = many_layout<DIMS>;
    struct many_state *b = (struct many_state *)(shared + at::state);
    const struct many_rows *list = (const struct many_rows *)(shared + at::list);
    const int lane = (int)threadIdx.x % 32,
              warp = __reduce_max_sync(ALL, ((int)threadIdx.x - 32 * WARPS) / 32),
              group = warp / WARPS, group0 = at::shares ? 0 : group * GROUP_SLOTS,
              slot0 = group0 + warp % WARPS * 16, dim0 = at::shares ? group * at::out : 0;
    const uint32_t base = copy_address(shared);
    const uint32_t keys = (uint32_t)wgmma_columns(base + at::keys),
                   ones = uniform((uint32_t)wgmma_columns(base + at::ones)),
                   values = (uint32_t)wgmma_turned(base + at::values, KERN_TILE * 128) +
                            (uint32_t)(dim0 * KERN_TILE * 2 >> 4);
    struct many_group<DIMS, QREGS> w;
    struct attention_many_item it;
    w.k = w.v = {};
    if (group == 1)
        turn_pass(group);
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++) {
        const int place = round % at::q_places, q_at = at::q + place * (DIMS / 64 * at::q_block);
        copy_wait(&b->q_full[place], round / at::q_places & 1);
        if (!at::shares && group0 >= it.n_slots) { /* no slots: the tiles pass by */
            for (int tile = it.first; tile <= it.last; tile++) {
                copy_wait(&b->k_full[w.k.stage], w.k.phase);
                copy_wait(&b->v_full[w.k.stage], w.k.phase);
                if (tile != it.first) {
                    turn_wait(group);
                    turn_pass(group);
                }
                if (lane == 0) {
                    copy_arrive(&b->k_empty[w.k.stage]);
                    copy_arrive(&b->v_empty[w.k.stage]);
                }
                ring_next<at::k_stages>(w.k);
            }
            w.v = w.k;
            __syncwarp();
            if (lane == 0)
                copy_arrive(&b->q_empty[place]);
            continue;
        }
        w.q = uniform((uint32_t)wgmma_columns(base + (uint32_t)(q_at + group0 * 128)));
#pragma unroll
        for (int i = 0; i < QREGS; i++) {
            int row = slot0 + lane / 4;
            const uint8_t *from = shared + q_at + i / 4 * at::q_block + row * 128 + lane % 4 * 4;
            int first = (i % 4 * 2 ^ (row & 7)) * 16, second = (i % 4 * 2 + 1 ^ (row & 7)) * 16;
            w.qr[i][0] = *(const uint32_t *)(from + first);
            w.qr[i][1] = *(const uint32_t *)(from + first + 8 * 128);
            w.qr[i][2] = *(const uint32_t *)(from + second);
            w.qr[i][3] = *(const uint32_t *)(from + second + 8 * 128);
        }
        find_slots(a, it, slot0, w.st);
#pragma unroll
        for (int i = 0; i < at::out / 2; i++)
            w.o[i] = w.total[i] = 0.0f;
        w.l[0] = w.l[1] = w.l[2] = w.l[3] = 0.0f;
        w.from_key = it.first * KERN_TILE;
        w.add = 0;
        /* Tiles of which every slot of the warpgroup sees every key. */
        int first_row = group0 / it.heads,
            last_row = (MIN2(it.n_slots, group0 + GROUP_SLOTS) - 1) / it.heads;
        int whole_end = (it.pos + first_row + 1) / KERN_TILE, whole = 0;
        if (a.window && it.pos + last_row + 1 > a.window)
            whole = (it.pos + last_row + 1 - a.window + KERN_TILE - 1) / KERN_TILE;
        float f[2], next[2];
        uint32_t seen, places[at::chunks];
        wait_keys(w, b, keys, places);
        start_scores<DIMS, QREGS>(w.s, w.qr, w.q, places);
        wgmma_wait<0>();
        wgmma_hold(w.s);
        pass_keys(w, b, lane == 0);
        soften_tile<true, CAPS>(w, p, it.first, true, next, f, &seen);
        w.st.m[0] = next[0];
        w.st.m[1] = next[1];
        pack_p<true>(w.s, seen, w.p);
        int tile = it.first;
        while (tile < it.last) {
            int stop = MIN2(it.last, whole_end - 1);
            if (tile + 1 >= whole)
                for (; tile < stop; tile++)
                    advance<false, CAPS>(w, b, p, keys, values, ones, tile, group, lane == 0);
            stop = tile + 1 < whole ? MIN2(it.last, whole - 1) : it.last;
            for (; tile < stop; tile++)
                advance<true, CAPS>(w, b, p, keys, values, ones, tile, group, lane == 0);
        }
        __syncwarp(); /* every lane has read its queries */
        if (lane == 0)
            copy_arrive(&b->q_empty[place]);
        copy_wait(&b->v_full[w.v.stage], w.v.phase);
        start_sums(w.o, w.l, w.p, uniform(values + (uint32_t)(w.v.stage * (at::part >> 4))), ones,
                   w.add);
        wgmma_wait<0>();
        wgmma_hold(w.o);
        wgmma_hold(w.l);
        if (lane == 0)
            copy_arrive(&b->v_empty[w.v.stage]);
        ring_next<at::v_stages>(w.v);
        merge(w.o, w.l, w.total, w.st, p.c, w.from_key, (it.last + 1) * KERN_TILE);
        store_slots<DIMS, at::out>(a, p, it, slot0, it.part * (DIMS / at::parts) + dim0, w.total,
                                   w.st, b->apart[warp], round);
    }
    __syncwarp();
    for (int round = 0; find_item(a, p, list, n_list, round, &it); round++)
        if (b->apart[warp][round / 32] >> round % 32 & 1)
            attend_apart<DIMS, CAPS>(a, rows, p, it, slot0, it.part * (DIMS / at::parts) + dim0,
                                     it.part * (DIMS / at::parts) + dim0 + at::out);
}

template <int DIMS, int QREGS, bool CAPS>
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
        for (int i = 0; i < STAGES_MAX; i++) {
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
    int n_list =
        list_rows(a, rows, p, (struct many_rows *)(shared + at::list), (struct many_rows *)shared);
    launch_wait();
    if (__reduce_max_sync(ALL, (int)threadIdx.x / 32) < WARPS) {
        WGMMA_ASM("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32)
            copy_items<DIMS, false>(a, rows, p, &q, shared, n_list);
        else if (threadIdx.x < 64)
            copy_items<DIMS, true>(a, rows, p, &q, shared, n_list);
    } else {
        WGMMA_ASM("setmaxnreg.inc.sync.aligned.u32 232;");
        attend_items<DIMS, QREGS, CAPS>(a, rows, p, shared, n_list);
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
template <int DIMS, int QREGS, bool CAPS>
static bool launch(const struct cuda_kern *c, const struct attention_args *a)
{
    using at = many_layout<DIMS>;
    static bool allowed;
    static_assert(at::bytes <= CUDA_SHARED_ATTENTION_MANY);
    struct attention_many_plan p = {};
    int n_tok = a->rows->n_tok;
    p.cut = cuda_attention_cut(a, at::slots);
    p.c = elem_score_factor(a->scale, a->softcap);
    p.scale = a->scale;
    p.cap = a->softcap;
    p.cap_inverse = 1.0f / a->softcap;
    p.late = cuda_attention_late(a);
    p.parts = at::parts;
    CUtensorMap q;
    if (a->n_kv * p.cut.pieces * p.parts > c->n_sm) /* a full list would exceed ROUNDS_MAX */
        return false;
    if (!cuda_tensor_heads(&q, a->q, DIMS, a->n_head, n_tok, p.cut.heads, p.cut.tokens))
        return false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(attend_many<DIMS, QREGS, CAPS>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, at::bytes);
        allowed = true;
    }
    for (int end = n_tok; end > 0; end = p.row0) { /* later rows first: they see more */
        p.row0 = (end - 1) / LIST_MAX * LIST_MAX;
        p.n_rows = end - p.row0;
        int64_t most = (int64_t)p.n_rows * a->n_kv * p.cut.pieces * p.parts;
        launch_early(attend_many<DIMS, QREGS, CAPS>, dim3((unsigned)MIN2(most, c->n_sm)), BLOCK,
                     at::bytes, c->stream, *a, *a->rows, p, q);
    }
    return true;
}

extern "C" bool cuda_attention_many_run(const struct cuda_kern *c, const struct attention_args *a)
{
    bool caps = a->softcap > 0.0f;
    if (!cuda_takes(c, CUDA_KERNEL_ATTENTION_MANY) || !(a->scale > 0.0f) ||
        (uintptr_t)a->q % 16 != 0 || (uintptr_t)a->out % 4 != 0 ||
        (caps && !(a->softcap >= SOFTCAP_LEAST && a->softcap <= SOFTCAP_MOST)))
        return false;
    switch (a->head_dim) {
    case 64:
        return !caps && launch<64, 4, false>(c, a);
    case 128:
        return caps ? launch<128, 0, true>(c, a) : launch<128, 0, false>(c, a);
    case 256:
        return caps ? launch<256, 0, true>(c, a) : launch<256, 0, false>(c, a);
    case 512:
        return !caps && launch<512, 0, false>(c, a);
    default:
        return false;
    }
}
