/* cuda_heads.cu: norms of the heads of q, k and v in one launch.
 *
 * A warp a head, elements lane, lane + 32, ... in a thread. A warp that makes v of k holds what k
 * was. Weights are loaded before the wait of an early start (cuda_launch.cuh).
 */
#include "kernels/cuda/cuda_residual.cuh"

/* One head of HELD * 32 elements or fewer in a warp. */
template <int HELD> struct head {
    float x[HELD];

    __device__ void load(const float *from, int d)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int at = (int)threadIdx.x % 32 + 32 * i;
            x[i] = at < d ? from[at] : 0.0f;
        }
    }
};

template <int HELD>
__device__ static void norm_head(const struct head<HELD> &h, const struct head<HELD> &w, float *out,
                                 int d, float eps, bool plus_one)
{
    constexpr int lanes = HELD < WARP_LANES ? HELD : WARP_LANES; /* those above are +0 */
    float sum[lanes];
#pragma unroll
    for (int i = 0; i < lanes; i++)
        sum[i] = fmaf(h.x[i], h.x[i], 0.0f);
#pragma unroll
    for (int i = lanes; i < HELD; i++)
        sum[i % lanes] = fmaf(h.x[i], h.x[i], sum[i % lanes]);
    float factor = elem_norm_factor(warp_sum(sum), (float)d, eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int at = (int)threadIdx.x % 32 + 32 * i;
        if (at < d)
            out[at] = elem_norm(h.x[i], factor, w.x[i], plus_one);
    }
}

/* Heads of a row: q, k, v; those that have no weight are not there. */
template <int HELD>
__global__ static void __launch_bounds__(BLOCK)
    norm_row_heads(struct norm_heads_args a, struct residual_plant plant)
{
    int n_q = a.q_norm ? a.n_head : 0, n_k = a.k_norm || a.v_of_k ? a.n_kv : 0;
    int n_v = a.v_norm && !a.v_of_k ? a.n_kv : 0, n = n_q + n_k + n_v;
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t t = item / n;
    int at = (int)(item % n);
    bool is_q = at < n_q, is_k = !is_q && at < n_q + n_k;
    const float *weight = is_q ? a.q_norm : is_k ? a.k_norm : a.v_norm;
    struct head<HELD> h, w, w_v;
    if (weight)
        w.load(weight, a.head_dim);
    if (is_k && a.v_of_k)
        w_v.load(a.v_norm, a.head_dim);
    begin(plant);
    if (t >= a.n_tok)
        return;
    int number = is_q ? at : is_k ? at - n_q : at - n_q - n_k;
    float *x = (is_q ? a.q : is_k ? a.k : a.v) + t * a.stride + (int64_t)number * a.head_dim;
    h.load(x, a.head_dim);
    if (is_k && a.v_of_k)
        norm_head(h, w_v, a.v + t * a.stride + (int64_t)number * a.head_dim, a.head_dim, a.eps,
                  true);
    if (weight)
        norm_head(h, w, x, a.head_dim, a.eps, is_q || is_k ? a.plus_one : true);
}

template <int HELD>
static void launch_heads(const struct cuda_kern *c, const struct norm_heads_args *a)
{
    int n = (a->q_norm ? a->n_head : 0) + (a->k_norm || a->v_of_k ? a->n_kv : 0) +
            (a->v_norm && !a->v_of_k ? a->n_kv : 0);
    int64_t items = (int64_t)n * a->n_tok;
    launch_early(norm_row_heads<HELD>, dim3((unsigned)((items + WARPS - 1) / WARPS)), BLOCK, 0,
                 c->stream, *a, plant_of(c));
}

extern "C" enum err_code cuda_norm_heads(struct kern *k, const struct norm_heads_args *a,
                                         struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    struct norm_heads_args all = *a;
    all.v_of_k = a->v_of_k && a->v_norm;
    if (a->n_tok == 0 || (!a->q_norm && !a->k_norm && !a->v_norm))
        return ERR_OK;
    if (a->head_dim <= 128)
        launch_heads<4>(c, &all);
    else if (a->head_dim <= 256)
        launch_heads<8>(c, &all);
    else
        launch_heads<16>(c, &all);
    return cuda_launched("norm_heads", e);
}
