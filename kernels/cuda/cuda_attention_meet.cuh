/* cuda_attention_meet.cuh: the splits of a row that are one cluster, and join what they have
 * without a kernel for it.
 *
 * Head h is joined by number h % n of the row's n splits, which has a record of every split for
 * each head of its own: [head / n][split] of DIMS + PARTIAL_EXTRA floats, written by the others.
 * Nobody writes to a block that has not begun, and nobody reads before all have written: two
 * barriers of the cluster. Blocks of splits without a key of the row have ended, and are not waited
 * for.
 *
 * Planted faults: from the last split; and the records are read before the second barrier.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_MEET_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_MEET_CUH

#include "kernels/cuda/cuda_attention_row.cuh"

__device__ static inline void meet_arrive(void)
{
    COPY_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void meet_wait(void)
{
    COPY_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int DIMS, int N>
__device__ static inline void send_row(const struct row_shared *sh, const struct row_view &v,
                                       const float *records, const float o[N][4], const float l[4])
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int head = lane % 4 * 2 + h, owner = head, at = v.split - v.split0;
        float m = -INFINITY, *to;
        if (head >= v.n_heads)
            break;
        for (int i = v.first; i <= v.last; i++)
            m = elem_max(sh->max[i][head], m);
        for (; owner >= v.n_splits; owner -= v.n_splits)
            at += v.n_splits;
        COPY_ASM("mapa.u64 %0, %1, %2;"
                 : "=l"(to)
                 : "l"(records + at * (DIMS + PARTIAL_EXTRA)), "r"(v.split0 + owner));
        if (warp == 0 && lane / 4 == 0) {
            to[DIMS] = l[h];
            to[DIMS + 1] = m;
        }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int dim = (warp + n * TILES) * 16 + lane / 4 + half * 8;
                if (dim < DIMS)
                    to[dim] = o[n][half * 2 + h];
            }
    }
}

/* The block's own heads. A lane is a split, for the factors that follow from the maxima; then a
 * thread is a dim and takes the splits one after the other. */
template <int DIMS>
__device__ static inline void join_row(const struct attention_args &a, const struct row_plan &p,
                                       const struct row_view &v, const float *records)
{
    int lane = (int)threadIdx.x % 32, n = v.n_splits;
#pragma unroll 1
    for (int head = v.split - v.split0; head < v.n_heads; head += n) {
        int step = DIMS + PARTIAL_EXTRA;
        const float *x = records;
        if (p.parts.descending) { /* planted */
            x += (n - 1) * step;
            step = -step;
        }
        float own = lane < n ? x[lane * step + DIMS + 1] : -INFINITY, most = own;
#pragma unroll
        for (int d = 1; d < MEET_MAX; d *= 2) {
            float other = __shfl_up_sync(ALL, most, d);
            most = lane < d ? most : elem_max(most, other);
        }
        float before = __shfl_up_sync(ALL, most, 1), m = __shfl_sync(ALL, most, n - 1);
        before = lane == 0 ? -INFINITY : before;
        most = elem_max(own, before);
        float f = elem_rescale(before, most, p.parts.c), g = elem_rescale(own, most, p.parts.c);
#pragma unroll 1
        for (int dim = (int)threadIdx.x; dim - lane < DIMS; dim += BLOCK) {
            float o = x[dim < DIMS ? dim : 0], l = x[DIMS];
#pragma unroll 1
            for (int i = 1; i < n; i++) {
                float fi = __shfl_sync(ALL, f, i), gi = __shfl_sync(ALL, g, i);
                o = fmaf(x[i * step + (dim < DIMS ? dim : 0)], gi, o * fi);
                l = fmaf(x[i * step + DIMS], gi, l * fi);
            }
            store_out(a, v.row, v.head0 + head, dim, o,
                      end_row(a, v.head0 + head, m, l, p.parts.c));
        }
        records += n * (DIMS + PARTIAL_EXTRA);
    }
}

#endif
