/* cuda_sample.cu: penalties, filters and the draw of a token from rows of logits.
 *
 * Five kernels a call, none for a row that does not need it:
 *     copy_rows    rows with bias or penalty are copied, and bins are cleared
 *     adjust_rows  a block a row: bias, then each id of the history once, by a bitmap
 *     find_best    parts of a row: its best candidate
 *     fill_bins    parts of a row: count and mass of the candidates of each bin, 1/32 octave of
 *                  weight, and the least and greatest rank in it; the best one that min_p drops
 *     pick         a block a row: the filters and the draw
 *
 * Bins follow the order of candidates, so that a filter or a draw ends in one bin, found by a scan
 * over bins; inside it the place is found by eight bits of the rank at a time, over a list of its
 * candidates where they fit in shared memory and over the row where they do not (many equal
 * logits). Sums are of integers and a rank is a total order (sample_rule.h): any order of work
 * gives the same token, and no row goes to the host. Bytes: logits twice, and once more for every
 * filter; bound by the launches and by one multiprocessor's way through a row.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_launch.cuh"
#include "kernels/sample_rule.h"

#define BLOCK    512        /* of the kernels over parts */
#define PER_PART 4096       /* logits of a part */
#define PER_BINS 8192       /* of fill_bins, whose blocks have bins of their own; many rows: 4x */
#define PICK     1024       /* threads of fill_bins and pick */
#define BINS     (2 * PICK) /* two a thread; 32 an octave, SAMPLE_SHIFT octaves */
#define LIST     4096       /* candidates of a bin that shared memory takes */
#define DIGITS   256
#define ALL      0xffffffffu

struct sample_bin {
    unsigned long long mass;
    uint32_t count, unused;
};

/* Of one row. */
struct sample_work {
    struct sample_bin bin[BINS];
    uint32_t low[BINS], high[BINS]; /* keys of a bin's candidates: the upper words of ranks */
    unsigned long long best, fail;  /* ranks: of all; of those that min_p drops. 0: none */
};

struct sample_plan {
    struct sample_args a;
    struct sample_work *work; /* [n] */
    float *copies;            /* [n][n_vocab] */
    int per_bins;             /* logits of a part of fill_bins */
    bool late;                /* planted fault */
};

__device__ static inline bool is_adjusted(const struct sample_row &r)
{
    return r.n_bias > 0 || (r.penalty != 1.0f && r.n_history > 0);
}

/* The row's logits as the filters see them. */
__device__ static inline const float *row_of(const struct sample_plan &p, int i)
{
    const struct sample_row &r = p.a.rows[i];
    return is_adjusted(r) ? p.copies + i * p.a.n_vocab : p.a.logits + r.row * p.a.n_vocab;
}

/* The logit of a rank; of both zeros, one. */
__device__ static inline float logit_of(uint64_t rank)
{
    int32_t key = (int32_t)((uint32_t)(rank >> 32) ^ 0x80000000u);
    return elem_float(key < 0 ? 0x80000000u - (uint32_t)key : (uint32_t)key);
}

__device__ static inline int bin_of(float octaves)
{
    return MIN2((int)(octaves * -32.0f), BINS - 1);
}

/* ---- over parts ---------------------------------------------------------------------------------
 */
__global__ static void __launch_bounds__(BLOCK) copy_rows(struct sample_plan p)
{
    int i = (int)blockIdx.y;
    struct sample_work *w = &p.work[i];
    launch_wait();
    launch_trigger();
    for (int b = (int)(blockIdx.x * BLOCK + threadIdx.x); b < BINS; b += (int)gridDim.x * BLOCK) {
        w->bin[b] = {};
        w->low[b] = 0xffffffffu;
        w->high[b] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        w->best = w->fail = 0;
    if (!is_adjusted(p.a.rows[i]))
        return;
    const float *from = p.a.logits + p.a.rows[i].row * p.a.n_vocab;
    for (int64_t at = blockIdx.x * BLOCK + threadIdx.x; at < p.a.n_vocab; at += gridDim.x * BLOCK)
        p.copies[i * p.a.n_vocab + at] = from[at];
}

/* An id that stands more than once is the first one's work, in the order of the list. */
__device__ static void add_bias(const int32_t *pairs, int n, int64_t n_vocab, float *x)
{
    for (int j = (int)threadIdx.x; j < n; j += PICK) {
        int32_t id = pairs[2 * j];
        bool first = id >= 0 && id < n_vocab;
        for (int k = 0; k < j && first; k++)
            first = pairs[2 * k] != id;
        for (int k = j; k < n && first; k++)
            if (pairs[2 * k] == id)
                x[id] += elem_float((uint32_t)pairs[2 * k + 1]);
    }
}

__global__ static void __launch_bounds__(PICK) adjust_rows(struct sample_plan p)
{
    extern __shared__ uint32_t seen[];
    const struct sample_row &r = p.a.rows[blockIdx.x];
    const int32_t *history = p.a.lists + r.at;
    float *x = p.copies + blockIdx.x * p.a.n_vocab;
    launch_wait();
    launch_trigger();
    if (!is_adjusted(r))
        return;
    for (int64_t j = threadIdx.x; j < (p.a.n_vocab + 31) / 32; j += PICK)
        seen[j] = 0;
    add_bias(history + r.n_history, r.n_bias, p.a.n_vocab, x);
    __syncthreads();
    for (int j = (int)threadIdx.x; j < r.n_history && r.penalty != 1.0f; j += PICK) {
        int32_t id = history[j];
        if (id < 0 || id >= p.a.n_vocab)
            continue;
        uint32_t bit = 1u << (id % 32);
        if (!(atomicOr(&seen[id / 32], bit) & bit))
            x[id] = sample_punish(x[id], r.penalty);
    }
}

__device__ static uint64_t greatest_of_warp(uint64_t v)
{
    for (int n = 16; n >= 1; n /= 2) {
        uint64_t other = __shfl_xor_sync(ALL, (unsigned long long)v, n);
        v = MAX2(v, other);
    }
    return v;
}

__global__ static void __launch_bounds__(BLOCK) find_best(struct sample_plan p)
{
    int i = (int)blockIdx.y;
    launch_wait();
    launch_trigger();
    const float *x = row_of(p, i);
    int64_t from = (int64_t)blockIdx.x * PER_PART, to = MIN2(from + PER_PART, p.a.n_vocab);
    uint64_t best = 0;
    for (int64_t at = from + threadIdx.x; at < to; at += BLOCK) {
        float l = x[at];
        uint64_t rank = l == l ? sample_rank(l, (uint32_t)at) : 0;
        best = MAX2(best, rank);
    }
    best = greatest_of_warp(best);
    if (threadIdx.x % 32 == 0 && best)
        atomicMax(&p.work[i].best, (unsigned long long)best);
}

/* Bins of a part in shared memory, then added to the row's. */
__global__ static void __launch_bounds__(PICK) fill_bins(struct sample_plan p)
{
    __shared__ unsigned long long mass[BINS];
    __shared__ uint32_t count[BINS], low[BINS], high[BINS];
    int i = (int)blockIdx.y;
    const struct sample_row &r = p.a.rows[i];
    struct sample_work *w = &p.work[i];
    for (int b = (int)threadIdx.x; b < BINS; b += PICK) {
        mass[b] = 0;
        count[b] = high[b] = 0;
        low[b] = 0xffffffffu;
    }
    __syncthreads();
    launch_wait();
    launch_trigger();
    if (r.temperature <= 0 || w->best == 0)
        return;
    const float *x = row_of(p, i), best = logit_of(w->best);
    int64_t from = (int64_t)blockIdx.x * p.per_bins, to = MIN2(from + p.per_bins, p.a.n_vocab);
    uint64_t fail = 0;
#pragma unroll 4
    for (int64_t at = from + threadIdx.x; at < to; at += PICK) {
        float l = x[at], octaves = sample_octaves(l, best, r.temperature);
        float weight = elem_exp2_full(octaves);
        uint64_t m = sample_mass(weight), rank = sample_rank(l, (uint32_t)at);
        if (m == 0)
            continue;
        int b = bin_of(octaves);
        atomicAdd(&mass[b], (unsigned long long)m);
        atomicAdd(&count[b], 1u);
        atomicMin(&low[b], (uint32_t)(rank >> 32));
        atomicMax(&high[b], (uint32_t)(rank >> 32));
        if (r.min_p > 0 && weight < r.min_p)
            fail = MAX2(fail, rank);
    }
    fail = greatest_of_warp(fail);
    if (threadIdx.x % 32 == 0 && fail)
        atomicMax(&w->fail, (unsigned long long)fail);
    __syncthreads();
    for (int b = (int)threadIdx.x; b < BINS; b += PICK) {
        if (count[b] == 0)
            continue;
        atomicAdd(&w->bin[b].mass, mass[b]);
        atomicAdd(&w->bin[b].count, count[b]);
        atomicMin(&w->low[b], low[b]);
        atomicMax(&w->high[b], high[b]);
    }
}

/* ---- a row --------------------------------------------------------------------------------------
 */
/* Candidates from the best on. */
struct sample_sum {
    uint64_t count, mass;
};

/* Where a run of candidates ends: at the first one, itself included, whose sum says so. */
enum sample_end { END_COUNT, END_SHARE, END_MARK };
struct sample_stop {
    enum sample_end kind;
    uint64_t count, mass; /* END_COUNT: so many. END_SHARE: of this sum. END_MARK: above this */
    double top_p;
};

__device__ static inline bool stops(const struct sample_stop &s, struct sample_sum sum)
{
    if (s.kind == END_COUNT)
        return sum.count >= s.count;
    if (s.kind == END_SHARE)
        return !sample_within(sum.mass, s.top_p, s.mass);
    return sum.mass > s.mass;
}

/* A run's last candidate and its sums. */
struct sample_run {
    uint64_t rank;
    struct sample_sum sum;
};

struct pick_shared {
    uint64_t list[LIST];
    unsigned long long digit_mass[DIGITS];
    uint32_t digit_count[DIGITS], n_list;
    struct sample_sum warp[PICK / 32];
    uint64_t prefix; /* found by one thread, for all */
    struct sample_sum before;
    int at;
};

struct picker {
    const struct sample_plan &p;
    struct pick_shared &sh;
    const struct sample_work &w;
    const float *x;
    float best;
    double temperature;
    /* Of the bin looked at. */
    uint32_t low, high;
    bool listed;
    struct sample_sum mine[2]; /* sums before this thread's two bins */
    struct sample_sum all;
};

__device__ static inline uint64_t mass_of(const struct picker &k, uint64_t rank)
{
    return sample_mass(elem_exp2_full(sample_octaves(logit_of(rank), k.best, k.temperature)));
}

__device__ static inline struct sample_sum plus(struct sample_sum a, struct sample_sum b)
{
    return {a.count + b.count, a.mass + b.mass};
}

/* The sums before each bin. */
__device__ static void scan_bins(struct picker &k)
{
    int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    const struct sample_bin *b = &k.w.bin[2 * t];
    struct sample_sum one = {b[0].count, b[0].mass}, both = plus(one, {b[1].count, b[1].mass});
    struct sample_sum to = both, before = {0, 0};
    for (int n = 1; n < 32; n *= 2) {
        uint64_t count = __shfl_up_sync(ALL, (unsigned long long)to.count, n);
        uint64_t mass = __shfl_up_sync(ALL, (unsigned long long)to.mass, n);
        if (lane >= n)
            to = plus(to, {count, mass});
    }
    if (lane == 31)
        k.sh.warp[warp] = to;
    __syncthreads();
    k.all = {0, 0};
    for (int i = 0; i < PICK / 32; i++) {
        before = i == warp ? k.all : before;
        k.all = plus(k.all, k.sh.warp[i]);
    }
    k.mine[0] = {before.count + to.count - both.count, before.mass + to.mass - both.mass};
    k.mine[1] = plus(k.mine[0], one);
    __syncthreads();
}

/* Calls f(rank) for this thread's share of a row; so many loads are on their way at once. */
template <typename F> __device__ static void each_of_row(const struct picker &k, F f)
{
    constexpr int ahead = 16;
    for (int64_t from = threadIdx.x; from < k.p.a.n_vocab; from += ahead * PICK) {
        float l[ahead];
#pragma unroll
        for (int j = 0; j < ahead; j++)
            l[j] = from + j * PICK < k.p.a.n_vocab ? k.x[from + j * PICK] : 0.0f;
#pragma unroll
        for (int j = 0; j < ahead; j++) {
            uint64_t rank = sample_rank(l[j], (uint32_t)(from + j * PICK));
            uint32_t key = (uint32_t)(rank >> 32);
            if (from + j * PICK < k.p.a.n_vocab && key >= k.low && key <= k.high)
                f(rank);
        }
    }
}

/* Takes up a bin: its candidates are listed, where they fit. */
__device__ static void open_bin(struct picker &k, int bin)
{
    k.low = k.w.low[bin];
    k.high = k.w.high[bin];
    k.listed = k.w.bin[bin].count <= LIST;
    __syncthreads();
    if (threadIdx.x == 0)
        k.sh.n_list = 0;
    __syncthreads();
    if (k.listed)
        each_of_row(k, [&](uint64_t rank) {
            if (mass_of(k, rank) > 0)
                k.sh.list[atomicAdd(&k.sh.n_list, 1u)] = rank;
        });
    __syncthreads();
}

/* Calls f(rank) for this thread's share of the bin's candidates. */
template <typename F> __device__ static void each_of_bin(const struct picker &k, F f)
{
    if (k.listed) {
        for (uint32_t i = threadIdx.x; i < k.sh.n_list; i += PICK)
            f(k.sh.list[i]);
        return;
    }
    each_of_row(k, [&](uint64_t rank) {
        if (mass_of(k, rank) > 0)
            f(rank);
    });
}

/* The bin in which a run ends, and the sums before it; some bin's sum stops. */
__device__ static int find_bin(struct picker &k, const struct sample_stop &s,
                               struct sample_sum *before)
{
    for (int i = 0; i < 2; i++) {
        const struct sample_bin &b = k.w.bin[2 * threadIdx.x + i];
        struct sample_sum to = plus(k.mine[i], {b.count, b.mass});
        if (b.count && stops(s, to) && (k.mine[i].count == 0 || !stops(s, k.mine[i]))) {
            k.sh.at = 2 * (int)threadIdx.x + i;
            k.sh.before = k.mine[i];
        }
    }
    __syncthreads();
    *before = k.sh.before;
    int bin = k.sh.at;
    __syncthreads();
    return bin;
}

/* The first digit, from the greatest down, whose sum stops; by one warp, eight digits a lane. */
__device__ static void find_digit(struct picker &k, const struct sample_stop &s, uint64_t prefix,
                                  struct sample_sum before)
{
    constexpr int per = DIGITS / 32;
    int lane = (int)threadIdx.x, top = DIGITS - 1 - lane * per;
    struct sample_sum mine = {0, 0};
    for (int i = 0; i < per; i++)
        mine = plus(mine, {k.sh.digit_count[top - i], k.sh.digit_mass[top - i]});
    struct sample_sum to = mine;
    for (int n = 1; n < 32; n *= 2) {
        uint64_t count = __shfl_up_sync(ALL, (unsigned long long)to.count, n);
        uint64_t mass = __shfl_up_sync(ALL, (unsigned long long)to.mass, n);
        if (lane >= n)
            to = plus(to, {count, mass});
    }
    to = plus(before, to);
    unsigned ends = __ballot_sync(ALL, mine.count && stops(s, to));
    if (lane != __ffs((int)ends) - 1)
        return;
    struct sample_sum sum = {to.count - mine.count, to.mass - mine.mass};
    for (int i = 0; i < per; i++) {
        struct sample_sum one = {k.sh.digit_count[top - i], k.sh.digit_mass[top - i]};
        if (one.count && stops(s, plus(sum, one))) {
            k.sh.prefix = prefix << 8 | (uint64_t)(top - i);
            k.sh.before = sum;
            k.sh.at = (int)one.count;
            return;
        }
        sum = plus(sum, one);
    }
}

/* Where a run ends: the bin, then eight bits of the rank at a time until one candidate is left. */
__device__ static struct sample_run find_end(struct picker &k, const struct sample_stop &s)
{
    struct sample_sum before;
    int shift = 64, left = 2;
    open_bin(k, find_bin(k, s, &before));
    while (shift > 32 && k.low >> (shift - 40) == k.high >> (shift - 40))
        shift -= 8; /* what all of the bin have in common */
    uint64_t prefix = shift == 64 ? 0 : (uint64_t)k.low << 32 >> shift;
    while (shift > 0 && left > 1) {
        shift -= 8;
        for (int d = (int)threadIdx.x; d < DIGITS; d += PICK) {
            k.sh.digit_mass[d] = 0;
            k.sh.digit_count[d] = 0;
        }
        __syncthreads();
        each_of_bin(k, [&](uint64_t rank) {
            if (shift < 56 && rank >> (shift + 8) != prefix)
                return;
            int d = (int)(rank >> shift & (DIGITS - 1));
            atomicAdd(&k.sh.digit_mass[d], (unsigned long long)mass_of(k, rank));
            atomicAdd(&k.sh.digit_count[d], 1u);
        });
        __syncthreads();
        if (threadIdx.x < 32)
            find_digit(k, s, prefix, before);
        __syncthreads();
        prefix = k.sh.prefix;
        before = k.sh.before;
        left = k.sh.at;
        __syncthreads();
    }
    each_of_bin(k, [&](uint64_t rank) {
        if (rank >> shift == prefix)
            k.sh.prefix = rank;
    });
    __syncthreads();
    uint64_t rank = k.sh.prefix;
    __syncthreads();
    return {rank, plus(before, {1, mass_of(k, rank)})};
}

/* The run of all candidates before one, but at least the best. */
__device__ static struct sample_run cut_before(struct picker &k, uint64_t rank)
{
    int bin = bin_of(sample_octaves(logit_of(rank), k.best, k.temperature));
    unsigned long long mass = 0;
    uint32_t count = 0;
    for (int i = 0; i < 2; i++)
        if (2 * (int)threadIdx.x + i == bin)
            k.sh.before = k.mine[i];
    open_bin(k, bin);
    if (threadIdx.x == 0) {
        k.sh.digit_mass[0] = k.sh.before.mass;
        k.sh.digit_count[0] = (uint32_t)k.sh.before.count;
    }
    __syncthreads();
    each_of_bin(k, [&](uint64_t other) {
        mass += other > rank ? mass_of(k, other) : 0;
        count += other > rank;
    });
    if (count) {
        atomicAdd(&k.sh.digit_mass[0], mass);
        atomicAdd(&k.sh.digit_count[0], count);
    }
    __syncthreads();
    struct sample_run run = {rank + 1, {k.sh.digit_count[0], k.sh.digit_mass[0]}};
    __syncthreads();
    if (run.sum.count == 0)
        run = {k.w.best, {1, mass_of(k, k.w.best)}};
    return run;
}

__device__ static uint64_t draw(struct picker &k, const struct sample_row &r)
{
    scan_bins(k);
    struct sample_run run = {0, k.all};
    if (r.top_k > 0 && (uint64_t)r.top_k < run.sum.count)
        run = find_end(k, {END_COUNT, (uint64_t)r.top_k, 0, 0});
    if (r.top_p < 1)
        run = find_end(k, {END_SHARE, 0, run.sum.mass, r.top_p});
    if (r.min_p > 0 && k.w.fail >= run.rank && k.w.fail)
        run = cut_before(k, k.w.fail);
    uint64_t mark = sample_mark(run.sum.mass, r.u);
    if (k.p.late)
        mark = MIN2(mark + run.sum.mass / 8, run.sum.mass - 1);
    return find_end(k, {END_MARK, 0, mark, 0}).rank;
}

__global__ static void __launch_bounds__(PICK) pick(struct sample_plan p)
{
    extern __shared__ __align__(16) uint8_t dynamic[];
    int i = (int)blockIdx.x;
    const struct sample_row &r = p.a.rows[i];
    launch_wait();
    launch_trigger();
    uint64_t rank = p.work[i].best;
    if (rank && r.temperature > 0) {
        struct picker k = {p,
                           *(struct pick_shared *)dynamic,
                           p.work[i],
                           row_of(p, i),
                           logit_of(rank),
                           r.temperature};
        rank = draw(k, r);
    }
    if (threadIdx.x == 0) {
        int32_t id = rank ? (int32_t)(0xffffffffu - (uint32_t)rank) : 0;
        p.a.id[r.row] = id;
        p.a.logit[r.row] = p.a.logits[r.row * p.a.n_vocab + id];
    }
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
extern "C" enum err_code cuda_sample(struct kern *k, const struct sample_args *a, struct err *e)
{
    const struct cuda_kern *c = cuda_of(k);
    static bool allowed;
    size_t bitmap = (size_t)(a->n_vocab + 31) / 32 * sizeof(uint32_t);
    struct sample_plan p = {};
    if (a->n == 0)
        return ERR_OK;
    if (bitmap > c->shared_max)
        return err_set(e, ERR_INPUT,
                       "%s: sampling from %lld ids takes %zu bytes of shared memory, "
                       "and a block has %zu",
                       c->base.device, (long long)a->n_vocab, bitmap, c->shared_max);
    p.a = *a;
    p.work = (struct sample_work *)a->room;
    p.copies = (float *)((uint8_t *)a->room + (size_t)a->n * sizeof(struct sample_work));
    p.per_bins = a->n < 16 ? PER_BINS : 4 * PER_BINS;
    p.late = kern_planted() == KERN_FAULT_SAMPLE;
    if (!allowed) {
        (void)cudaFuncSetAttribute(adjust_rows, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)MIN2((size_t)SAMPLE_VOCAB_MAX / 8, c->shared_max));
        (void)cudaFuncSetAttribute(pick, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)sizeof(struct pick_shared));
        allowed = true;
    }
    dim3 parts((unsigned)((a->n_vocab + PER_PART - 1) / PER_PART), (unsigned)a->n);
    dim3 rows((unsigned)a->n);
    launch_early(copy_rows, parts, BLOCK, 0, c->stream, p);
    launch_early(adjust_rows, rows, PICK, bitmap, c->stream, p);
    launch_early(find_best, parts, BLOCK, 0, c->stream, p);
    dim3 bins((unsigned)((a->n_vocab + p.per_bins - 1) / p.per_bins), (unsigned)a->n);
    launch_early(fill_bins, bins, PICK, 0, c->stream, p);
    launch_early(pick, rows, PICK, sizeof(struct pick_shared), c->stream, p);
    return cuda_launched("sample", e);
}
