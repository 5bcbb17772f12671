/* cpu_ops.h: what one instruction-set variant gives: whole rows, tiles and attention items.
 *
 * The functions know nothing of threads or of struct kern: cpu.c cuts the work and calls them.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_OPS_H
#define ASSAY_KERNELS_CPU_CPU_OPS_H

#include "kernels/cpu/cpu_private.h"

#define CPU_JOB_ROWS 64 /* most rows of x in a tile job */

/* One tile of 32 weight rows against n rows of x. Matrix row r in [row0, row1) of the tile goes to
 * out[t][r - out_row0]. */
struct cpu_tile_job {
    const struct cpu_weight *w;
    int64_t tile, row0, row1, out_row0;
    const float *bias; /* of row out_row0; or NULL */
    const float *const *x;
    float *const *out;
    int n;
    bool descending; /* a planted fault: chunk sums in the wrong order */
};

/* n_q query heads (at most CPU_QUERIES) of one row that share a KV head. */
#define CPU_QUERIES 4

struct cpu_attention_job {
    const struct attention_args *a;
    int t, head; /* first query head */
    int n_q;
    int edge; /* a planted fault: splits begin this many keys early; else 0 */
};

/* Elementary functions that the tests drive through a variant. */
enum cpu_elem {
    CPU_ELEM_EXP2_FULL,
    CPU_ELEM_EXP,
    CPU_ELEM_TANH,
    CPU_ELEM_SILU,
    CPU_ELEM_GELU_TANH,
    CPU_ELEM_GPTOSS,  /* gate * up with up = 1, limit 7, alpha 1.702 */
    CPU_ELEM_SOFTCAP, /* cap 30 */
    CPU_ELEM_BF16,    /* rounded to bf16 and back */
    CPU_ELEM_COUNT
};

struct cpu_isa_ops {
    void (*linear_tile)(const struct cpu_tile_job *j);
    void (*attention)(const struct cpu_attention_job *j);
    /* h (+= add) and its norm over d elements; out is bf16, or f32 when out_f32. */
    void (*norm_row)(const struct rms_norm_args *a, float *h, const float *add, void *out,
                     bool out_f32);
    /* One head rotated by a row of the rope table. */
    void (*rope_head)(const float *x, int head_dim, int rot_dim, const float *cos_sin, float *out);
    /* n elements from gate, up and to out, which are in the rows of a. */
    void (*act_mul)(const struct act_mul_args *a, const float *gate, const float *up, int64_t n,
                    void *out, bool out_f32);
    void (*add)(float *h, const float *x, int64_t n);
    /* out = sum over slots ascending of weight[s] * y[s * stride ..]. */
    void (*combine_row)(const float *y, const float *weight, int n_used, int64_t d, float *out);
    void (*softcap)(float *x, int64_t n, float cap);
    float (*row_max)(const float *x, int64_t n);
    /* Lanes [lane0, lane0 + 256) of the log-sum-exp tree: e^(x - max) of their elements. */
    void (*lse_lanes)(const float *x, int64_t n, float max, int lane0, float *lanes);
    void (*elem)(enum cpu_elem f, const float *x, float *y, int64_t n);
    /* Sum of n floats, for the read bandwidth of the stream measurement only. */
    float (*stream)(const float *x, int64_t n);
};

extern const struct cpu_isa_ops cpu_ops_c, cpu_ops_avx2, cpu_ops_avx512;

#endif
