/* cuda_attention_rotate.cuh: the queries of a block of the row kernel, and the row's newest key and
 * value, from f32 heads: their norms, if they have some, rope, and the rounding to bf16, each as
 * its operation does it. The kernel waits for the one before it here.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_ROTATE_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_ROTATE_CUH

#include "kernels/cuda/cuda_attention_row.cuh"

/* The block's rotated queries, and the row's newest key and value, bf16. */
template <int DIMS> struct row_rotated {
    uint16_t q[HEADS * Q_STRIDE(DIMS)];
    __align__(16) uint16_t fresh[2][DIMS];
};

/* Two dims of a head that a thread makes: a pair of rope's, or two that are not rotated. */
struct row_pair {
    const float *from; /* NULL: nothing to do */
    uint16_t *to;
    int first, second;
    bool turns;
};

/* Item i of the block: heads of q, then with `fresh` the key and the value, DIMS / 2 pairs each. */
template <int DIMS>
__device__ static inline struct row_pair pair_of(const struct rope_kv_args &r,
                                                 const struct row_view &v, bool fresh, int i,
                                                 struct row_rotated<DIMS> *to)
{
    int head = i / (DIMS / 2), at = i % (DIMS / 2), half = r.rot_dim / 2;
    struct row_pair p = {};
    if (head >= v.n_heads + (fresh ? 2 : 0))
        return p;
    bool value = head == v.n_heads + 1;
    if (value)
        half = 0;
    p.turns = at < half;
    p.first = p.turns ? at : 2 * at;
    p.second = p.turns ? half + at : 2 * at + 1;
    if (head < v.n_heads) {
        p.from = r.q + v.row * r.stride + (int64_t)(v.head0 + head) * DIMS;
        p.to = to->q + head * Q_STRIDE(DIMS);
    } else {
        p.from = (value ? r.v : r.k) + v.row * r.stride + (int64_t)v.kv * DIMS;
        p.to = to->fresh[value];
    }
    return p;
}

/* Splits that meet are the last kernel before a product, whose weights may come under them. */
template <bool MEETS> __device__ static inline void begin(const struct row_plan &p)
{
    if (MEETS)
        launch_trigger();
    if (!p.no_wait)
        launch_wait();
    if (!MEETS)
        launch_trigger();
}

#define PAIRS_AHEAD 3 /* of a thread on their way at once: 4 heads of 128, key and value */

/* After it the block must meet. The table is no kernel's work: the first pairs' part of it is read
 * before the wait. */
template <int DIMS, bool MEETS>
__device__ static inline void rotate_row(const struct rope_kv_args &r, const struct row_plan &plan,
                                         const struct row_view &v, bool fresh,
                                         struct row_rotated<DIMS> *to)
{
    const float *table = r.cos_sin + (int64_t)(v.end - 1) * r.rot_dim;
    int n_pairs = (v.n_heads + (fresh ? 2 : 0)) * (DIMS / 2);
#pragma unroll 1
    for (int first = 0; first < n_pairs; first += PAIRS_AHEAD * BLOCK) {
        struct row_pair p[PAIRS_AHEAD];
        float c[PAIRS_AHEAD], s[PAIRS_AHEAD], a[PAIRS_AHEAD], b[PAIRS_AHEAD];
#pragma unroll
        for (int i = 0; i < PAIRS_AHEAD; i++) {
            p[i] = pair_of<DIMS>(r, v, fresh, first + i * BLOCK + (int)threadIdx.x, to);
            bool turned = p[i].from && p[i].turns;
            c[i] = turned ? table[p[i].first] : 0.0f;
            s[i] = turned ? table[p[i].second] : 0.0f;
        }
        if (first == 0)
            begin<MEETS>(plan);
#pragma unroll
        for (int i = 0; i < PAIRS_AHEAD; i++) {
            a[i] = p[i].from ? p[i].from[p[i].first] : 0.0f;
            b[i] = p[i].from ? p[i].from[p[i].second] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < PAIRS_AHEAD; i++) {
            if (!p[i].from)
                continue;
            float x = p[i].turns ? elem_rope_first(a[i], b[i], c[i], s[i]) : a[i];
            float y = p[i].turns ? elem_rope_second(a[i], b[i], c[i], s[i]) : b[i];
            p[i].to[p[i].first] = bf16_from_f32(x);
            p[i].to[p[i].second] = bf16_from_f32(y);
        }
    }
}

/* The same behind the norms of the heads: a warp a head, dims lane, lane + 32, ... in a thread, so
 * that it has both of a pair. Sums of squares go through the tree of elem.h, whose other lanes are
 * +0. Weights, too, are read before the wait. */
template <int DIMS, bool MEETS>
__device__ static inline void
norm_and_rotate_row(const struct rope_kv_args &r, const struct row_norms &norms,
                    const struct row_plan &plan, const struct row_view &v, bool fresh,
                    struct row_rotated<DIMS> *to)
{
    constexpr int held = DIMS / 32, ahead = DIMS > 128 ? 1 : 3;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_heads = v.n_heads + (fresh ? 2 : 0);
    const float *table = r.cos_sin + (int64_t)(v.end - 1) * DIMS + lane;
    float turn[held]; /* cosines, then sines, of the thread's pairs */
#pragma unroll
    for (int j = 0; j < held; j++)
        turn[j] = table[32 * j];
#pragma unroll 1
    for (int first = warp; first < n_heads; first += ahead * TILES) {
        float w[ahead][held], x[ahead][held], sum[ahead];
        const float *weight[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int head = first + i * TILES, at = head - v.n_heads;
            weight[i] = at < 0 ? norms.q : at == 0 ? norms.k : norms.v;
            if (head >= n_heads)
                weight[i] = NULL;
#pragma unroll
            for (int j = 0; j < held; j++)
                w[i][j] = weight[i] ? weight[i][lane + 32 * j] : 0.0f;
        }
        if (first == warp)
            begin<MEETS>(plan);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int head = first + i * TILES, at = head - v.n_heads;
            const float *from = (at < 0    ? r.q
                                 : at == 0 ? r.k
                                           : r.v) +
                                v.row * r.stride +
                                (int64_t)(at < 0 ? v.head0 + head : v.kv) * DIMS + lane;
#pragma unroll
            for (int j = 0; j < held; j++)
                x[i][j] = head < n_heads ? from[32 * j] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            float lanes[held];
#pragma unroll
            for (int j = 0; j < held; j++)
                lanes[j] = fmaf(x[i][j], x[i][j], 0.0f);
#pragma unroll
            for (int n = held / 2; n >= 1; n /= 2)
#pragma unroll
                for (int j = 0; j < n; j++)
                    lanes[j] += lanes[j + n];
            sum[i] = lanes[0];
        }
#pragma unroll
        for (int n = 16; n >= 1; n /= 2)
#pragma unroll
            for (int i = 0; i < ahead; i++)
                sum[i] += __shfl_down_sync(ALL, sum[i], (unsigned)n);
#pragma unroll
        for (int i = 0; i < ahead; i++)
            sum[i] = __shfl_sync(ALL, sum[i], 0);
        float mine = ahead == 1  ? sum[0]
                     : lane == 0 ? sum[0]
                     : lane == 1 ? sum[ahead > 1]
                                 : sum[ahead - 1];
        float factors = elem_norm_factor(mine, (float)DIMS, norms.eps); /* lane i: of head i */
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            int head = first + i * TILES, at = head - v.n_heads;
            float factor = __shfl_sync(ALL, factors, i);
            uint16_t *out = at < 0 ? to->q + head * Q_STRIDE(DIMS) : to->fresh[at > 0];
#pragma unroll
            for (int j = 0; j < held; j++)
                if (weight[i])
                    x[i][j] = elem_norm(x[i][j], factor, w[i][j], at > 0 || norms.plus_one);
            if (head >= n_heads)
                break;
#pragma unroll
            for (int j = 0; j < held / 2; j++) {
                float a = x[i][j], b = x[i][j + held / 2], c = turn[j], s = turn[j + held / 2];
                bool value = at > 0;
                out[lane + 32 * j] = bf16_from_f32(value ? a : elem_rope_first(a, b, c, s));
                out[lane + 32 * j + DIMS / 2] =
                    bf16_from_f32(value ? b : elem_rope_second(a, b, c, s));
            }
        }
    }
}

/* Puts the newest key (0) or value (1) into a half of 64 keys, a page or a tile; lane `at` of
 * `of`. */
template <int DIMS>
__device__ __noinline__ static void put_fresh(const struct row_rotated<DIMS> *rotated, int which,
                                              uint16_t *half, int key, int at, int of)
{
#pragma unroll 1
    for (int i = at; i < DIMS / 8; i += of)
        *(uint4 *)(void *)(half + cuda_page_at(DIMS, key, i * 8)) =
            *(const uint4 *)(const void *)(rotated->fresh[which] + i * 8);
}

#endif
