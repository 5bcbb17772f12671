/* cuda_attention_row.cu: rule 4 for steps of single tokens: a block is one split of one row and up
 * to 8 query heads of a kv head. With rope in front where the step asks for it.
 *
 * Work: four warps, a warp a tile of 64 keys for the scores, then a quarter of the dims for the
 * weighted sum. Bytes: K and V of the row's keys once for every 8 heads; each half of a page is one
 * bulk copy. The four K of a split are asked for at once, up to 128 dims; V takes the place of K
 * tile by tile. The latency of V is hidden by other blocks: three an SM with 128 dims. One fits
 * beside a block of a product (cuda_stream.cu), so that an early start brings K under that. With
 * more dims there are three places, so that two blocks of 256 dims fit, or one of 512.
 *
 * Operands stand the other way round than in cuda_attention_items.cu: keys (then dims of V) are the
 * 16 rows, heads the 8 columns. The instruction's sums do not know the difference.
 *
 * Order: tiles ascending. A tile's maximum counts in every later tile of the split, and a maximum
 * is exact in any order, so P of all four tiles is made at once; O and L then take the tiles one by
 * one. A tile without a seen key is left out. V of masked keys is cleared, since P = +0 is not
 * enough where V is not finite.
 *
 * Rope: every block rotates its queries; the block of the row's newest key rotates and rounds that
 * and its value, writes them to the page, and puts them in the tile that was copied. So nothing
 * that the blocks read from pages is written by a kernel that may still run, and the copies are
 * asked for before the wait of an early start (cuda_launch.cuh). The rows must be of different
 * sequences. q_out is not written. Without rope the kernel before this one writes pages, and the
 * copies come after the wait. Norms of the heads come before rope (cuda_attention_rotate.cuh).
 *
 * A row's splits leave records, or where a step has few they meet and join them at once
 * (cuda_attention_meet.cuh).
 */
#include "kernels/cuda/cuda_attention_meet.cuh"
#include "kernels/cuda/cuda_attention_rotate.cuh"
#include "kernels/cuda/cuda_frag.cuh"

/* Keys [lo, hi) of tile i of the split are seen. */
__device__ static inline void seen_of(const struct row_view &v, int i, int *lo, int *hi)
{
    int key0 = (v.split * TILES + i) * KERN_TILE;
    *lo = MAX2(v.begin - key0, 0);
    *hi = MIN2(v.end - key0, KERN_TILE);
}

/* Queries as the B operand: heads are columns. From rows of q, `stride` apart. */
template <int DIMS>
__device__ static inline void load_queries(const uint16_t *rows, int stride, int n_heads,
                                           uint32_t q[DIMS / 16][2])
{
    int lane = (int)threadIdx.x % 32, head = lane / 4;
    const uint16_t *from = rows + head * stride + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < DIMS / 16; s++) {
        q[s][0] = head < n_heads ? *(const uint32_t *)(const void *)(from + s * 16) : 0;
        q[s][1] = head < n_heads ? *(const uint32_t *)(const void *)(from + s * 16 + 8) : 0;
    }
}

/* Raw scores of a tile: s[m] are keys 16 m + g and + 8 against heads 2 t and 2 t + 1. */
template <int DIMS>
__device__ static inline void score_tile(const uint16_t *keys, const uint32_t q[DIMS / 16][2],
                                         float s[4][4])
{
    int lane = (int)threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8, dim = lane / 16 * 8;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        s[m][0] = s[m][1] = s[m][2] = s[m][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < DIMS / 16; step++) {
            uint32_t k[4];
            load_matrices(k, keys + cuda_page_at(DIMS, m * 16 + key, step * 16 + dim));
            frag_mma(s[m], k, q[step][0], q[step][1]);
        }
    }
}

/* Caps the scores of seen keys; the warp's maxima of heads 2 t and 2 t + 1 go to the block. */
template <bool CAPS>
__device__ static inline void find_maxima(const struct attention_args &a, struct row_shared *sh,
                                          int tile, int lo, int hi, float s[4][4])
{
    int lane = (int)threadIdx.x % 32;
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int key = i / 4 * 16 + lane / 4 + i % 4 / 2 * 8;
        float *x = &s[i / 4][i % 4];
        if (key < lo || key >= hi)
            continue;
        if (CAPS)
            *x = elem_softcap(a.scale * *x, a.softcap);
        max[i % 2] = elem_max(*x, max[i % 2]);
    }
#pragma unroll
    for (int n = 4; n <= 16; n *= 2) {
        max[0] = elem_max(__shfl_xor_sync(ALL, max[0], n), max[0]);
        max[1] = elem_max(__shfl_xor_sync(ALL, max[1], n), max[1]);
    }
    if (lane < 4) {
        sh->max[tile][lane * 2] = max[0];
        sh->max[tile][lane * 2 + 1] = max[1];
    }
}

/* P of a tile under the maximum of the tiles up to it, and what the sums so far are multiplied
 * by. */
__device__ static inline void soften_tile(struct row_shared *sh, const struct row_view &v, int tile,
                                          int lo, int hi, float c, const float s[4][4])
{
    int lane = (int)threadIdx.x % 32;
    float before[2] = {-INFINITY, -INFINITY}, m[2];
    for (int i = v.first; i < tile; i++) {
        before[0] = elem_max(sh->max[i][lane % 4 * 2], before[0]);
        before[1] = elem_max(sh->max[i][lane % 4 * 2 + 1], before[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        m[h] = elem_max(sh->max[tile][lane % 4 * 2 + h], before[h]);
        if (lane < 4)
            sh->rescale[tile][lane * 2 + h] = elem_rescale(before[h], m[h], c);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int key = i / 4 * 16 + lane / 4 + i % 4 / 2 * 8, h = i % 2;
        float x = elem_score_exponent(s[i / 4][i % 4], m[h], c);
        float p = key >= lo && key < hi ? elem_exp2_p(x) : 0.0f;
        sh->p[(lane % 4 * 2 + h) * P_STRIDE + tile * KERN_TILE + key] =
            (uint16_t)frag_pack(p, 0.0f);
    }
}

/* +0 for V of the keys of a tile that the row does not see. */
template <int DIMS> __device__ static inline void clear_masked(uint16_t *values, int lo, int hi)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < KERN_TILE * (DIMS / 8); i += BLOCK) {
        int key = i / (DIMS / 8), dim = i % (DIMS / 8) * 8;
        if (key < lo || key >= hi)
            *(uint4 *)(void *)(values + cuda_page_at(DIMS, key, dim)) = make_uint4(0, 0, 0, 0);
    }
}

/* O of 16 dims for every N-th 16 of them, and L, take one tile. */
template <int DIMS, int N>
__device__ static inline void weigh_tile(const struct row_shared *sh, const uint16_t *values,
                                         int tile, float o[N][4], float l[4])
{
    static const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int key = lane / 16 * 8 + lane % 8, dim = lane / 8 % 2 * 8;
    const uint16_t *p = sh->p + lane / 4 * P_STRIDE + tile * KERN_TILE + lane % 4 * 2;
    float f[2] = {sh->rescale[tile][lane % 4 * 2], sh->rescale[tile][lane % 4 * 2 + 1]};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        l[i] *= f[i % 2];
#pragma unroll
        for (int n = 0; n < N; n++)
            o[n][i] *= f[i % 2];
    }
#pragma unroll
    for (int step = 0; step < KERN_TILE / 16; step++) {
        uint32_t b0 = *(const uint32_t *)(const void *)(p + step * 16);
        uint32_t b1 = *(const uint32_t *)(const void *)(p + step * 16 + 8), v[4];
        frag_mma(l, ones, b0, b1);
#pragma unroll
        for (int n = 0; n < N; n++) {
            int block = warp + n * TILES;
            if (block * 16 >= DIMS)
                break;
            load_transposed(v, values + cuda_page_at(DIMS, step * 16 + key, block * 16 + dim));
            frag_mma(o[n], v, b0, b1);
        }
    }
}

/* A function by itself: it is called where a thread ends its heads, and its code is long. */
__device__ __noinline__ static struct attention_factors
end_apart(const struct attention_args &a, int head, float m, float l, float c)
{
    return end_row(a, head, m, l, c);
}

/* The record of the split, or the row's output where there is no other split. */
template <int DIMS, int N>
__device__ static inline void store_row(const struct attention_args &a, const struct row_plan &p,
                                        const struct row_shared *sh, const struct row_view &v,
                                        const float o[N][4], const float l[4])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int head = lane % 4 * 2 + h;
        float m = -INFINITY;
        if (head >= v.n_heads)
            break;
        for (int i = v.first; i <= v.last; i++)
            m = elem_max(sh->max[i][head], m);
        struct attention_factors f = {};
        float *to = NULL;
        if (v.alone) {
            f = end_apart(a, v.head0 + head, m, l[h], p.parts.c);
        } else {
            to = partial_of(p.parts, v.row, a.n_head, v.head0 + head, v.split);
            if (warp == 0 && lane / 4 == 0) {
                to[DIMS] = l[h];
                to[DIMS + 1] = m;
            }
        }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int dim = (warp + n * TILES) * 16 + lane / 4 + half * 8;
                if (dim >= DIMS)
                    break;
                if (v.alone)
                    store_out(a, v.row, v.head0 + head, dim, o[n][half * 2 + h], f);
                else
                    to[dim] = o[n][half * 2 + h];
            }
    }
}

/* False when the split holds no key of the row. *page: of the warp's tile, if it has one; it is
 * read beside the position, since each read here is a way to memory before the first copy. */
__device__ static inline bool find_row(const struct attention_args &a, const struct kern_rows &rows,
                                       const struct row_plan &p, struct row_view *v, int *page)
{
    int tile = MIN2((int)blockIdx.x * TILES + (int)threadIdx.x / 32, rows.pages_max - 1);
    int pos = rows.pos[blockIdx.z];
    *page = rows.pages[(int64_t)rows.seq[blockIdx.z] * rows.pages_max + tile];
    struct attention_heads h = heads_of(p.cut, (int)blockIdx.y);
    v->row = (int)blockIdx.z;
    v->kv = h.kv;
    v->head0 = h.head0;
    v->n_heads = h.heads;
    v->is_first = h.head0 == h.kv * p.cut.group;
    v->split = (int)blockIdx.x;
    v->end = pos + 1;
    v->begin = a.window && v->end > a.window ? v->end - a.window : 0;
    v->split0 = v->begin / KERN_SPLIT;
    v->n_splits = (v->end - 1) / KERN_SPLIT - v->split0 + 1;
    v->alone = v->n_splits == 1;
    v->first = MAX2(v->begin / KERN_TILE - v->split * TILES, 0);
    v->last = MIN2((v->end - 1) / KERN_TILE - v->split * TILES, TILES - 1);
    return v->first <= v->last;
}

/* Asks for half h of the block: K of its tiles, then V of them, each in the next place. Half h +
 * row_places may be asked for when h is done with. */
template <int DIMS>
__device__ static inline void ask(const struct attention_args &a, const struct row_plan &p,
                                  const struct row_view &v, struct row_shared *sh, uint16_t *places,
                                  int h)
{
    constexpr int half = KERN_TILE * DIMS;
    int n = v.last - v.first + 1, value = h >= n, tile = v.first + h - value * n;
    if (h >= 2 * n)
        return;
    uint64_t *barrier = value ? &sh->v_here[tile] : &sh->k_here[tile], policy = 0;
    copy_expect(barrier, half * 2);
    if (p.once)
        COPY_ASM("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else
        COPY_ASM("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    copy_bulk_by(policy, places + h % row_places<DIMS> * half,
                 (const uint16_t *)a.kv +
                     (((int64_t)sh->page[tile] * a.n_kv + v.kv) * 2 + value) * half,
                 half * 2, barrier);
}

/* CAPS: scores have a softcap. Its code is left out where they have none: a small step runs every
 * instruction of the kernel but once, from memory. */
template <int DIMS, bool CAPS, bool NORMS, bool MEETS>
__global__ static void __launch_bounds__(BLOCK)
    attend_row(const __grid_constant__ struct attention_args a,
               const __grid_constant__ struct rope_kv_args r,
               const __grid_constant__ struct row_norms norms,
               const __grid_constant__ struct kern_rows rows,
               const __grid_constant__ struct row_plan p)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ struct row_shared sh;
    __shared__ struct row_rotated<DIMS> rotated;
    constexpr int half = KERN_TILE * DIMS, n_blocks = (DIMS / 16 + TILES - 1) / TILES;
    struct row_view v;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, number;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            copy_init(&sh.k_here[i], 1);
            copy_init(&sh.v_here[i], 1);
        }
        copy_init_done();
    }
    if (!find_row(a, rows, p, &v, &number)) /* positions and pages are no kernel's work */
        return;
    if (MEETS) /* nobody writes to a block that has not begun */
        meet_arrive();
    uint16_t *places = (uint16_t *)dynamic;
    int n = v.last - v.first + 1, mine_at = warp - v.first; /* number of the warp's K */
    bool mine = warp >= v.first && warp <= v.last;
    /* The tile of this block that holds the newest key, or none. */
    int fresh = p.rotates && (v.end - 1) / KERN_SPLIT == v.split ? v.last : TILES;
    int fresh_key = (v.end - 1) % KERN_TILE;
    if (lane == 0)
        sh.page[warp] = number;
    __syncthreads();
    if (!p.rotates) {
        launch_wait();
        launch_trigger();
    }
    if (lane == 0 && warp < row_places<DIMS>)
        ask<DIMS>(a, p, v, &sh, places, warp);
    if (p.rotates) {
        if constexpr (NORMS)
            norm_and_rotate_row<DIMS, MEETS>(r, norms, p, v, fresh < TILES, &rotated);
        else
            rotate_row<DIMS, MEETS>(r, p, v, fresh < TILES, &rotated);
        __syncthreads();
    }
    uint32_t q[DIMS / 16][2];
    float s[4][4];
    int lo, hi;
    seen_of(v, warp, &lo, &hi);
    if (p.rotates)
        load_queries<DIMS>(rotated.q, Q_STRIDE(DIMS), v.n_heads, q);
    else
        load_queries<DIMS>((const uint16_t *)a.q + ((int64_t)v.row * a.n_head + v.head0) * DIMS,
                           DIMS, v.n_heads, q);
    if (mine) {
        uint16_t *keys = places + mine_at % row_places<DIMS> * half;
        copy_wait(&sh.k_here[warp], 0);
        if (warp == fresh) {
            uint16_t *page = (uint16_t *)a.kv + ((int64_t)number * a.n_kv + v.kv) * 2 * half;
            put_fresh<DIMS>(&rotated, 0, keys, fresh_key, lane, 32);
            if (v.is_first) {
                put_fresh<DIMS>(&rotated, 0, page, fresh_key, lane, 32);
                put_fresh<DIMS>(&rotated, 1, page + half, fresh_key, lane, 32);
            }
            copy_own_writes_done();
            __syncwarp();
        }
        score_tile<DIMS>(keys, q, s);
        __syncwarp();
        if (lane == 0)
            ask<DIMS>(a, p, v, &sh, places, mine_at + row_places<DIMS>);
        find_maxima<CAPS>(a, &sh, warp, lo, hi, s);
    }
    __syncthreads();
    if (mine)
        soften_tile(&sh, v, warp, lo, hi, p.parts.c, s);
    __syncthreads();
    float o[n_blocks][4] = {}, l[4] = {};
#pragma unroll 1
    for (int i = v.first; i <= v.last; i++) {
        int h = n + i - v.first;
        uint16_t *values = places + h % row_places<DIMS> * half;
        seen_of(v, i, &lo, &hi);
        copy_wait(&sh.v_here[i], 0);
        if (lo > 0 || hi < KERN_TILE || i == fresh) {
            clear_masked<DIMS>(values, lo, hi);
            if (i == fresh)
                put_fresh<DIMS>(&rotated, 1, values, fresh_key, (int)threadIdx.x, BLOCK);
            copy_own_writes_done();
            __syncthreads();
        }
        weigh_tile<DIMS, n_blocks>(&sh, values, i, o, l);
        if (row_places<DIMS> < TILES && h + row_places<DIMS> < 2 * n) {
            __syncthreads();
            if (threadIdx.x == 0)
                ask<DIMS>(a, p, v, &sh, places, h + row_places<DIMS>);
        }
    }
    if (!MEETS) {
        store_row<DIMS, n_blocks>(a, p, &sh, v, o, l);
        return;
    }
    float *records = (float *)(dynamic + row_places<DIMS> * half * 2);
    for (int ns = v.split > v.split0 ? p.delay_ns : 0; ns > 0; ns -= 1000)
        __nanosleep(1000);
    meet_wait();
    send_row<DIMS, n_blocks>(&sh, v, records, o, l);
    meet_arrive();
    if (!p.no_wait)
        meet_wait();
    join_row<DIMS>(a, p, v, records);
    if (p.no_wait) /* planted: too late, but before the block ends */
        meet_wait();
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
/* Bytes of a block's records where splits meet. */
template <int DIMS>
static constexpr int record_bytes = (HEADS + MEET_MAX) * (DIMS + PARTIAL_EXTRA) * 4;

template <int DIMS, bool CAPS, bool NORMS, bool MEETS>
static bool launch_as(const struct cuda_kern *c, const struct attention_args *a, struct row_plan p,
                      dim3 grid)
{
    static const struct rope_kv_args none = {};
    static bool allowed;
    constexpr int shared = row_places<DIMS> * KERN_TILE * DIMS * 2 + MEETS * record_bytes<DIMS>;
    constexpr size_t room = DIMS > 256   ? CUDA_SHARED_ATTENTION_ROW_512
                            : DIMS > 128 ? CUDA_SHARED_ATTENTION_ROW_256
                                         : CUDA_SHARED_ATTENTION_ROW;
    static_assert(shared + sizeof(struct row_shared) + sizeof(struct row_rotated<DIMS>) <= room);
    auto *kernel = attend_row<DIMS, CAPS, NORMS, MEETS>;
    struct row_norms norms = {};
    int n = p.parts.n_splits;
    if (NORMS)
        norms = {a->norm->q_norm, a->norm->k_norm, a->norm->v_norm, a->norm->eps,
                 a->norm->plus_one};
    if (!allowed) {
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        allowed = true;
    }
    launch_clusters(MEETS ? n : 1, kernel, grid, BLOCK, (size_t)shared, c->stream, *a,
                    a->rope ? *a->rope : none, norms, *a->rows, p);
    if (n > 1 && !MEETS)
        cuda_attention_join(c, a, &p.parts, 1);
    return true;
}

/* A row's splits meet where each block may have a multiprocessor to itself; with more blocks that
 * is slower than a kernel for the join (docs/speed-log.md). With more than 128 dims the records
 * would leave no room beside a block of a product. */
template <int DIMS, bool CAPS, bool NORMS>
static bool launch_norms(const struct cuda_kern *c, const struct attention_args *a,
                         struct row_plan p)
{
    int n = p.parts.n_splits;
    if (!cuda_takes(c, DIMS > 256   ? CUDA_KERNEL_ATTENTION_ROW_512
                       : DIMS > 128 ? CUDA_KERNEL_ATTENTION_ROW_256
                                    : CUDA_KERNEL_ATTENTION_ROW))
        return false;
    p.cut = cuda_attention_cut(a, HEADS);
    dim3 grid((unsigned)n, (unsigned)(a->n_kv * p.cut.pieces), (unsigned)a->rows->n_tok);
    if constexpr (!CAPS && (DIMS == 64 || DIMS == 128)) {
        if (n > 1 && n <= MEET_MAX && (int64_t)grid.x * grid.y * grid.z <= c->n_sm)
            return launch_as<DIMS, CAPS, NORMS, true>(c, a, p, grid);
    }
    return launch_as<DIMS, CAPS, NORMS, false>(c, a, p, grid);
}

/* Heads with norms of their own that the kernel makes: the pairs of rope lie in one thread. */
static bool takes_norms(const struct attention_args *a)
{
    return a->head_dim % 64 == 0 && a->head_dim <= 256 && a->rope->rot_dim == a->head_dim &&
           a->softcap == 0.0f && !(a->norm->v_norm && a->norm->v_of_k);
}

template <int DIMS>
static bool launch(const struct cuda_kern *c, const struct attention_args *a,
                   const struct row_plan &p)
{
    if constexpr (DIMS == 64 || DIMS == 128 || DIMS == 256) {
        if (a->norm && takes_norms(a))
            return launch_norms<DIMS, false, true>(c, a, p);
    }
    if (a->norm)
        return false;
    return a->softcap > 0.0f ? launch_norms<DIMS, true, false>(c, a, p)
                             : launch_norms<DIMS, false, false>(c, a, p);
}

extern "C" bool cuda_attention_rows_run(const struct cuda_kern *c, const struct attention_args *a)
{
    struct row_plan p = {};
    p.parts = cuda_attention_partials(c, a);
    p.parts.descending |= cuda_attention_late(a);
    p.once = (int64_t)a->rows->n_tok * a->n_head * p.parts.n_splits * p.parts.dims <= RECORDS_STAY;
    p.rotates = a->rope != NULL;
    p.no_wait = c->plant_no_wait;
    p.delay_ns = c->plant_delay_ns;
    if (p.parts.n_splits > 1 && !p.parts.data)
        return false;
    switch (a->head_dim) {
    case 64:
        return launch<64>(c, a, p);
    case 80:
        return launch<80>(c, a, p);
    case 96:
        return launch<96>(c, a, p);
    case 128:
        return launch<128>(c, a, p);
    case 256:
        return launch<256>(c, a, p);
    case 512:
        return launch<512>(c, a, p);
    default:
        return false;
    }
}
