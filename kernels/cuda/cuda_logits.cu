/* cuda_logits.cu: softcap, top k, log-sum-exp and hash of rows of logits.
 *
 * Three kernels a row. scan_parts: up to 256 parts of a row, a block each: softcap in place, the
 * hash and the maximum of the part, and its top k: taken one by one up to 8 of them, else batches
 * of 1984 ranks are sorted together with the best 64 so far (a bitonic network in shared memory).
 * add_lanes: the 1024 lanes of elem.h, a thread a lane, ascending. end_row: the tree of the lanes,
 * and one warp that takes the greatest head of the parts' sorted lists k times. A rank is a logit's
 * order key over the complement of its index, so that its order is total and any order of work
 * gives the same top k; a maximum and a wrapping sum are the same in any order. Bytes: logits twice
 * (three times with a softcap), the second time from the L2 cache; bound by the sort and the
 * launches at one row.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "common/hash.h"
#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/elem.h"

#define PARTS_MAX  256
#define SORT       2048                    /* ranks sorted at once */
#define BATCH      (SORT - LOGITS_TOP_MAX) /* new ones among them */
#define BLOCK      512                     /* of scan_parts */
#define LANES      128                     /* of add_lanes */
#define HEADS      (PARTS_MAX / 32)        /* lists of a lane of end_row */
#define ROWS_MAX   64                      /* rows of a launch, as scratch has them */
#define ALL_LANES  0xffffffffu
#define SELECT_MAX 8 /* top k that are taken one by one instead of by a sort */

/* A part's result. */
struct logits_part {
    uint64_t top[LOGITS_TOP_MAX]; /* ranks, descending; 0 after the last */
    uint64_t hash;
    float max;
    int32_t unused;
};

/* Of one row. */
struct logits_row {
    struct logits_part part[PARTS_MAX];
    float lanes[ELEM_LSE_LANES];
};

struct logits_plan {
    struct logits_row *row; /* of each row of the launch */
    int64_t first;          /* row of the first */
    int n_parts;
    unsigned after; /* planted: a row has the hash of the row so many after it */
};

__device__ static inline uint64_t rank_of(float logit, int64_t index)
{
    uint32_t key = (uint32_t)elem_order_key(logit) ^ 0x80000000u;
    return (uint64_t)key << 32 | (0xffffffffu - (uint32_t)index);
}

__device__ static inline int64_t rank_index(uint64_t rank)
{
    return 0xffffffffu - (uint32_t)rank;
}

/* ---- parts --------------------------------------------------------------------------------------
 */
/* Descending. */
__device__ static void sort_ranks(uint64_t *r)
{
    for (int size = 2; size <= SORT; size *= 2)
        for (int step = size / 2; step >= 1; step /= 2) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < SORT / 2; i += BLOCK) {
                int low = i / step * 2 * step + i % step, high = low + step;
                uint64_t a = r[low], b = r[high];
                bool descending = (low & size) == 0;
                if ((a < b) == descending) {
                    r[low] = b;
                    r[high] = a;
                }
            }
        }
    __syncthreads();
}

/* The k greatest of all threads' ranks, one a round, to top. */
__device__ static void select_ranks(uint64_t (&mine)[BATCH / BLOCK + 1], int k, uint64_t *top)
{
    __shared__ uint64_t warp_best[2][BLOCK / 32];
    for (int s = 0; s < k; s++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < BATCH / BLOCK + 1; i++)
            best = MAX2(best, mine[i]);
        for (int n = 16; n >= 1; n /= 2) {
            uint64_t other = __shfl_xor_sync(ALL_LANES, (unsigned long long)best, n);
            best = MAX2(best, other);
        }
        if (threadIdx.x % 32 == 0)
            warp_best[s % 2][threadIdx.x / 32] = best;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < BLOCK / 32; w++)
            best = MAX2(best, warp_best[s % 2][w]);
#pragma unroll
        for (int i = 0; i < BATCH / BLOCK + 1; i++)
            mine[i] = mine[i] == best ? 0 : mine[i];
        if (threadIdx.x == 0)
            top[s] = best;
    }
}

/* One logit of a part: capped, counted in hash and maximum. Its rank. */
__device__ static uint64_t scan_logit(const struct logits_args &a, float *x, int64_t i, float *max,
                                      unsigned long long *hash)
{
    float v = x[i];
    if (a.softcap > 0.0f) {
        v = elem_softcap(v, a.softcap);
        x[i] = v;
    }
    *max = elem_max(v, *max);
    *hash += hash_row_word((uint64_t)i, elem_hash_bits32(elem_bits(v)));
    return rank_of(v, i);
}

/* Batches of BATCH ranks sorted together with the best so far; any k and length of part. */
__device__ static void scan_sorted(const struct logits_args &a, float *x, int64_t from, int64_t to,
                                   float *max, unsigned long long *hash, uint64_t *top)
{
    __shared__ uint64_t ranks[SORT];
    for (int i = (int)threadIdx.x; i < LOGITS_TOP_MAX; i += BLOCK)
        ranks[i] = 0;
    for (int64_t at = from; at < to; at += BATCH) {
        for (int j = (int)threadIdx.x; j < BATCH; j += BLOCK)
            ranks[LOGITS_TOP_MAX + j] = at + j < to ? scan_logit(a, x, at + j, max, hash) : 0;
        sort_ranks(ranks);
    }
    if (threadIdx.x < LOGITS_TOP_MAX)
        top[threadIdx.x] = ranks[threadIdx.x];
}

__global__ static void __launch_bounds__(BLOCK)
    scan_parts(struct logits_args a, struct logits_plan p)
{
    __shared__ unsigned long long warp_hash[BLOCK / 32];
    __shared__ float warp_max[BLOCK / 32];
    int part = (int)blockIdx.x;
    int64_t from = a.n_vocab * part / p.n_parts, to = a.n_vocab * (part + 1) / p.n_parts;
    float *x = a.logits + (p.first + blockIdx.y) * a.n_vocab, max = -INFINITY;
    struct logits_part *out = &p.row[blockIdx.y].part[part];
    unsigned long long hash = 0;
    launch_wait();
    launch_trigger();
    if (a.k <= SELECT_MAX && to - from <= BATCH) {
        uint64_t mine[BATCH / BLOCK + 1];
#pragma unroll
        for (int j = 0; j < BATCH / BLOCK + 1; j++) {
            int64_t i = from + j * BLOCK + (int)threadIdx.x;
            mine[j] = i < to ? scan_logit(a, x, i, &max, &hash) : 0;
        }
        select_ranks(mine, a.k, out->top);
    } else {
        scan_sorted(a, x, from, to, &max, &hash, out->top);
    }
    for (int n = 16; n >= 1; n /= 2) {
        hash += __shfl_xor_sync(ALL_LANES, hash, n);
        max = elem_max(__shfl_xor_sync(ALL_LANES, max, n), max);
    }
    if (threadIdx.x % 32 == 0) {
        warp_hash[threadIdx.x / 32] = hash;
        warp_max[threadIdx.x / 32] = max;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < BLOCK / 32; w++) {
            hash += warp_hash[w];
            max = elem_max(warp_max[w], max);
        }
        out->hash = hash;
        out->max = max;
    }
}

/* ---- log-sum-exp --------------------------------------------------------------------------------
 */
/* The row's maximum, for each thread of a warp. */
__device__ static float row_max(const struct logits_row *r, int n_parts)
{
    float max = -INFINITY;
    for (int i = (int)threadIdx.x % 32; i < n_parts; i += 32)
        max = elem_max(r->part[i].max, max);
    for (int n = 16; n >= 1; n /= 2)
        max = elem_max(__shfl_xor_sync(ALL_LANES, max, n), max);
    return max;
}

__global__ static void __launch_bounds__(LANES)
    add_lanes(struct logits_args a, struct logits_plan p)
{
    int lane = (int)blockIdx.x * LANES + (int)threadIdx.x;
    const float *x = a.logits + (p.first + blockIdx.y) * a.n_vocab;
    struct logits_row *r = &p.row[blockIdx.y];
    launch_wait();
    launch_trigger();
    float max = row_max(r, p.n_parts), sum = 0.0f;
#pragma unroll 16
    for (int64_t i = lane; i < a.n_vocab; i += ELEM_LSE_LANES)
        sum += elem_exp(x[i] - max);
    r->lanes[lane] = sum;
}

/* ---- the end of a row ---------------------------------------------------------------------------
 */
/* Warp 0: the k greatest of the parts' lists. */
__device__ static void merge_tops(const struct logits_args &a, const struct logits_row *r,
                                  int n_parts, int64_t row)
{
    int lane = (int)threadIdx.x, next[HEADS];
    uint64_t head[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int part = lane + 32 * h;
        head[h] = part < n_parts ? r->part[part].top[0] : 0;
        next[h] = 1;
    }
    for (int s = 0; s < a.k; s++) {
        uint64_t best = 0;
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            best = MAX2(best, head[h]);
        for (int n = 16; n >= 1; n /= 2) {
            uint64_t other = __shfl_xor_sync(ALL_LANES, (unsigned long long)best, n);
            best = MAX2(best, other);
        }
        int64_t id = rank_index(best);
        if (lane == 0) {
            a.top_id[row * a.k + s] = (int32_t)id;
            a.top[row * a.k + s] = a.logits[row * a.n_vocab + id];
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (head[h] == best) {
                head[h] = next[h] < a.k ? r->part[lane + 32 * h].top[next[h]] : 0;
                next[h]++;
            }
        }
    }
}

__global__ static void __launch_bounds__(ELEM_LSE_LANES)
    end_row(struct logits_args a, struct logits_plan p)
{
    __shared__ float lanes[ELEM_LSE_LANES];
    const struct logits_row *r = &p.row[blockIdx.x];
    int64_t row = p.first + blockIdx.x;
    int j = (int)threadIdx.x;
    launch_wait();
    launch_trigger();
    lanes[j] = r->lanes[j];
    for (int n = ELEM_LSE_LANES / 2; n >= 1; n /= 2) {
        __syncthreads();
        if (j < n)
            lanes[j] += lanes[j + n];
    }
    __syncthreads();
    if (j < 32)
        merge_tops(a, r, p.n_parts, row);
    if (j < 32 || j >= 64)
        return;
    float max = row_max(r, p.n_parts);
    unsigned long long hash = 0;
    const struct logits_row *hashed = &p.row[(blockIdx.x + p.after) % gridDim.x];
    for (int i = j - 32; i < p.n_parts; i += 32)
        hash += hashed->part[i].hash;
    for (int n = 16; n >= 1; n /= 2)
        hash += __shfl_xor_sync(ALL_LANES, hash, n);
    if (j == 32) {
        a.hash[row] = hash;
        a.lse[row] = fmaf(elem_log2(lanes[0]), ELEM_LN2, max);
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
extern "C" size_t cuda_logits_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    (void)c;
    return sizeof(struct logits_row) * (size_t)MAX2(MIN2(l->n_tok, ROWS_MAX), 1);
}

/* Rows beyond those that scratch holds go in further launches. */
extern "C" enum err_code cuda_logits(struct kern *k, const struct logits_args *a, struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    int most = (int)MIN2(c->scratch_bytes.logits / sizeof(struct logits_row), (size_t)ROWS_MAX);
    struct logits_plan p = {};
    if (most == 0)
        return err_set(e, ERR_INTERNAL, "logits before kern_reserve");
    p.row = (struct logits_row *)c->scratch_logits;
    p.after = kern_planted() == KERN_FAULT_HASH;
    p.n_parts = (int)MIN2((a->n_vocab + BATCH - 1) / BATCH, (int64_t)PARTS_MAX);
    for (p.first = 0; p.first < a->n; p.first += most) {
        unsigned n = (unsigned)MIN2(a->n - p.first, (int64_t)most);
        launch_early(scan_parts, dim3((unsigned)p.n_parts, n), BLOCK, 0, c->stream, *a, p);
        launch_early(add_lanes, dim3(ELEM_LSE_LANES / LANES, n), LANES, 0, c->stream, *a, p);
        launch_early(end_row, dim3(n), ELEM_LSE_LANES, 0, c->stream, *a, p);
    }
    return cuda_launched("logits", e);
}
