/* cuda_attention_apart.cuh: the slots of one warp of cuda_attention_many.cu once more, by the plain
 * forms and with each row's own mask on V.
 *
 * Two things send slots here: P = +0 of a masked key met a V that is not finite, which another row
 * of the item may have seen; or an exponent of P above 1/2, which scores of 2^24 and more give by
 * their rounding and the short form of exp2 does not hold for. Both are rare, so this is slow: for
 * each row of the warp and each 32 dims all scores again, operands straight from global memory,
 * by mma.sync.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_ATTENTION_APART_CUH
#define ASSAY_KERNELS_CUDA_CUDA_ATTENTION_APART_CUH

#include "kernels/cuda/cuda_attention_list.cuh"
#include "kernels/cuda/cuda_frag.cuh"

/* Two keys' bf16 of one dim, +0 where masked. */
__device__ static inline uint32_t apart_values(const uint16_t *half, int dims, int key, int dim,
                                               int lo, int hi)
{
    uint32_t low = key >= lo && key < hi ? half[cuda_page_at(dims, key, dim)] : 0;
    uint32_t high = key + 1 >= lo && key + 1 < hi ? half[cuda_page_at(dims, key + 1, dim)] : 0;
    return low | high << 16;
}

/* 32 dims of the warp's 16 slots from slot0 on, under the mask of the row at end - 1. The total of
 * 16 slots by 32 dims, and their maxima and row sums. */
struct apart_total {
    float o[4][4], l[2], m[2];
};

template <int DIMS, bool CAPS>
__device__ static void apart_dims(const struct attention_args &a, const struct kern_rows &rows,
                                  const struct attention_many_plan &p,
                                  const struct attention_many_item &it, int slot0, int end,
                                  int dim0, struct apart_total *total)
{
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
    int begin = a.window && end > a.window ? end - a.window : 0;
    const uint32_t *q[2];
    float o[4][4] = {}, l[4] = {}, m[2] = {-INFINITY, -INFINITY};
    bool first = true;
    for (int half = 0; half < 2; half++) {
        int slot = MIN2(slot0 + g + half * 8, it.n_slots - 1);
        int64_t head = (int64_t)(it.row + slot / it.heads) * a.n_head + it.head0 + slot % it.heads;
        q[half] = (const uint32_t *)(const void *)((const uint16_t *)a.q + head * DIMS + t);
    }
    for (int tile = begin / KERN_TILE; tile <= (end - 1) / KERN_TILE; tile++) {
        int key0 = tile * KERN_TILE, lo = MAX2(begin - key0, 0), hi = MIN2(end - key0, KERN_TILE);
        int64_t page = cuda_page(rows, it.row, key0);
        const uint16_t *keys =
            (const uint16_t *)a.kv + (page * a.n_kv + it.kv) * 2 * cuda_page_half(DIMS);
        const uint16_t *values = keys + cuda_page_half(DIMS);
        float s[8][4], f[2];
        uint32_t pr[16];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll 1
            for (int d = 0; d < DIMS; d += 16) {
                const uint32_t x[4] = {q[0][d / 2], q[1][d / 2], q[0][d / 2 + 4], q[1][d / 2 + 4]};
                const uint16_t *k = keys + cuda_page_at(DIMS, n * 8 + g, d + t);
                const uint16_t *k8 = keys + cuda_page_at(DIMS, n * 8 + g, d + 8 + t);
                frag_mma(s[n], x, *(const uint32_t *)(const void *)k,
                         *(const uint32_t *)(const void *)k8);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = m[half];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int key = i / 2 * 8 + t + i % 2;
                float *x = &s[i / 2][half * 2 + i % 2];
                if (CAPS)
                    *x = elem_softcap(a.scale * *x, a.softcap);
                if (key >= lo && key < hi)
                    most = elem_max(*x, most);
            }
            most = elem_max(__shfl_xor_sync(0xffffffffu, most, 1), most);
            most = elem_max(__shfl_xor_sync(0xffffffffu, most, 2), most);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                int key = i / 2 * 8 + t + i % 2;
                float *x = &s[i / 2][half * 2 + i % 2];
                float v = elem_exp2_p(elem_score_exponent(*x, most, p.c));
                *x = key >= lo && key < hi ? v : 0.0f;
            }
            f[half] = elem_rescale(m[half], most, p.c);
            m[half] = most;
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            pr[i] = frag_pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            l[i] *= f[i / 2];
            for (int n = 0; n < 4; n++)
                o[n][i] *= f[i / 2];
        }
#pragma unroll
        for (int step = 0; step < KERN_TILE / 16; step++) {
            frag_mma(l, pr + 4 * step, 0x3f803f80u, 0x3f803f80u);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int dim = dim0 + n * 8 + g, key = step * 16 + t;
                frag_mma(o[n], pr + 4 * step, apart_values(values, DIMS, key, dim, lo, hi),
                         apart_values(values, DIMS, key + 8, dim, lo, hi));
            }
        }
        if (split_of(tile + 1, p.late) == split_of(tile, p.late) && tile != (end - 1) / KERN_TILE)
            continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float joined = first ? m[half] : elem_max(m[half], total->m[half]);
            float x = elem_rescale(total->m[half], joined, p.c);
            float y = elem_rescale(m[half], joined, p.c);
            total->m[half] = joined;
            total->l[half] = first ? l[2 * half] : fmaf(l[2 * half], y, total->l[half] * x);
            for (int i = 0; i < 8; i++) {
                float *sum = &total->o[i / 2][half * 2 + i % 2];
                float *v = &o[i / 2][half * 2 + i % 2];
                *sum = first ? *v : fmaf(*v, y, *sum * x);
                *v = 0.0f;
            }
            l[2 * half] = l[2 * half + 1] = 0.0f;
            m[half] = -INFINITY;
        }
        first = false;
    }
}

/* Computes and writes dims [from, to) of the 16 slots of a warp from slot0 on. */
template <int DIMS, bool CAPS>
__device__ static __noinline__ void
attend_apart(const struct attention_args &a, const struct kern_rows &rows,
             const struct attention_many_plan &p, const struct attention_many_item &it, int slot0,
             int from, int to)
{
    int lane = (int)threadIdx.x % 32, end = MIN2(slot0 + 16, it.n_slots);
    for (int token = slot0 / it.heads; token * it.heads < end; token++) {
        for (int dim0 = from; dim0 < to; dim0 += 32) {
            struct apart_total total = {};
            apart_dims<DIMS, CAPS>(a, rows, p, it, slot0, it.pos + token + 1, dim0, &total);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int slot = slot0 + lane / 4 + half * 8, head = it.head0 + slot % it.heads;
                if (slot >= end || slot / it.heads != token)
                    continue;
                struct attention_factors f = end_row(a, head, total.m[half], total.l[half], p.c);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    store_out(a, it.row + token, head, dim0 + i / 2 * 8 + lane % 4 * 2 + i % 2,
                              total.o[i / 2][half * 2 + i % 2], f);
            }
        }
    }
}

#endif
