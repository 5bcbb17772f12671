/* kernels.h: the contract between models and devices.
 *
 * One list of operations, one argument struct each; every backend fills the same table
 * (kernels_private.h). docs/numerics.md states each formula: an operation's result is fixed to the
 * bit by the arithmetic's name, whatever the backend, batch, threads or instruction set.
 *
 * Pointers in argument structs are device pointers of the kern they are given to. Shapes are
 * row-major, rows are contiguous unless a stride (in elements) is given. `act` is the type of
 * inputs of linear layers, of K, V and of attention's output: f32 in the f32 arithmetic, else bf16
 * (kern_act_bytes). Everything marked f32 is f32 in both. n_tok = rows of the step.
 *
 * No operation allocates. Errors are sticky: after a device error each later call returns it.
 */
#ifndef ASSAY_KERNELS_KERNELS_H
#define ASSAY_KERNELS_KERNELS_H

#include "ckpt/checkpoint.h"
#include "common/err.h"

/* f32, and one for each family of tensor cores: the rules of mma90 with that family's own step.
 * Options list the names in this order. */
enum kern_arith {
    KERN_F32,
    KERN_MMA90,
    KERN_MMA80,
    KERN_MMA86,
    KERN_MMA89,
    KERN_MMA100,
    KERN_MMA120,
    KERN_ARITHS
};
const char *kern_arith_name(enum kern_arith a); /* "f32", "mma90" */
bool kern_arith_find(const char *name, enum kern_arith *a);
/* Is there an oracle: was the step measured on a card, and does the CPU compute it? */
bool kern_arith_measured(enum kern_arith a);
/* What a device computes but for f32: the step of a card's tensor cores; mma90 of the CPU, and of
 * "auto" where no card answers. */
MUST_USE enum err_code kern_device_arith(const char *device, enum kern_arith *a, struct err *e);

struct kern;        /* one device and one arithmetic */
struct kern_weight; /* a matrix in the backend's own order, still packed */

/* How the operations of a step reach the device; the bits are the same. */
enum kern_launch {
    KERN_LAUNCH_USUAL,    /* the backend's own choice */
    KERN_LAUNCH_EAGER,    /* one after the other, no graph */
    KERN_LAUNCH_BLOCKING, /* each operation has ended before the next is launched */
    KERN_LAUNCH_GRAPH,    /* replayed from a captured graph */
    KERN_LAUNCH_KINDS
};

struct kern_options {
    const char *device; /* "cpu", "cuda:0", "auto" */
    enum kern_arith arith;
    int threads;     /* CPU; 0: par_default_threads */
    const char *isa; /* CPU: "auto", "c", "avx2", "avx512"; a name this machine lacks is an error */
    enum kern_launch launch; /* ERR_DEVICE where the backend has no such way */
    int path;                /* 0, or one of kern_paths: every product takes that one; CUDA */
    bool expand; /* packed matrices are held as the dense values of rule 1; the bits are the same */
};

MUST_USE enum err_code kern_open(struct kern **k, const struct kern_options *o, struct err *e);
void kern_close(struct kern *k);
enum kern_arith kern_arith(const struct kern *k);
size_t kern_act_bytes(const struct kern *k);   /* 4 or 2 */
const char *kern_device(const struct kern *k); /* "cpu" */
const char *kern_isa(const struct kern *k);    /* "avx2" */
int kern_threads(const struct kern *k);
/* Names of the instruction-set variants that run here, "c" first; NULL-ended. */
const char *const *kern_isa_list(void);
bool kern_launches(const struct kern *k, enum kern_launch way); /* can it launch so? */
/* Names of the kernels that options.path may force, number 1 first; NULL-ended, or empty. */
const char *const *kern_paths(const struct kern *k);

/* ---- memory: 64-byte aligned, zeroed -------------------------------------------------------- */
MUST_USE enum err_code kern_alloc(struct kern *k, size_t bytes, void **p, struct err *e);
void kern_free(struct kern *k, void *p);
MUST_USE enum err_code kern_upload(struct kern *k, void *dst, const void *src, size_t bytes,
                                   struct err *e);
MUST_USE enum err_code kern_download(struct kern *k, void *dst, const void *src, size_t bytes,
                                     struct err *e);
/* Every byte becomes `byte`: 0xff makes a NaN of every word of either type. */
MUST_USE enum err_code kern_fill(struct kern *k, void *dst, uint8_t byte, size_t bytes,
                                 struct err *e);
/* Fills the backend's own scratch with NaN: no operation may read what it has not written. */
MUST_USE enum err_code kern_poison(struct kern *k, struct err *e);

/* ---- weights --------------------------------------------------------------------------------- */
/* Stacks the rows of n parts (same K, same encoding and format) into one matrix. GGML blocks with
 * an exact packed form are taken as that; other GGML types and dense f16/f32 are dense. A block
 * float (mxfp4, mxfp8, nvfp4) that holds a NaN, as scale or as element, is ERR_INPUT. */
MUST_USE enum err_code kern_weight_load(struct kern *k, const struct ckpt_weight *const *parts,
                                        int n, struct kern_weight **w, struct err *e);
/* Another weight of the same values as one that is loaded; *w stays NULL where the backend has no
 * quicker way than a load. */
MUST_USE enum err_code kern_weight_copy(struct kern *k, const struct kern_weight *from,
                                        struct kern_weight **w, struct err *e);
void kern_weight_free(struct kern *k, struct kern_weight *w);
/* Device bytes that the load will take: the memory plan. */
size_t kern_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n);
int64_t kern_weight_rows(const struct kern_weight *w);
int64_t kern_weight_k(const struct kern_weight *w);

/* ---- paged KV ---------------------------------------------------------------------------------
 */
#define KERN_PAGE 64 /* tokens of a page */
/* Bytes of one page of one layer, K and V together. The order inside is the backend's own; a page
 * is a pure function of the tokens written to it (and zero where none was), so pages with equal
 * tokens can be compared bytewise. */
size_t kern_page_bytes(const struct kern *k, int n_kv, int head_dim);

/* Where each row of a step stands. All arrays are device memory. */
struct kern_rows {
    int n_tok;
    const int32_t *id;    /* [n_tok] token */
    const int32_t *pos;   /* [n_tok] absolute position, from 0 */
    const int32_t *seq;   /* [n_tok] row of the page table */
    const int32_t *pages; /* [n_seq][pages_max] page numbers in ascending position */
    int n_seq, pages_max;
    int64_t keys_max; /* no row stands at this position or beyond; 0: pages_max decides */
};

/* ---- recorded steps ---------------------------------------------------------------------------
 * A backend may record the operations of a step and replay them all with one call, which saves the
 * launches of a small step. Between kern_step_begin and kern_step_end stand operations alone, no
 * copies, and calls under one shape have the same arguments, device pointers included; what differs
 * from step to step is read from device memory. */
struct kern_step {
    int32_t n_tok, n_seq, n_out; /* rows, sequences, rows that give logits */
    int64_t keys_max;            /* as in kern_rows */
};
/* replayed: the step of this shape is on its way; the caller calls no operation and no end. */
MUST_USE enum err_code kern_step_begin(struct kern *k, const struct kern_step *s, bool *replayed,
                                       struct err *e);
/* failed: an operation gave an error, and what was recorded is dropped. */
MUST_USE enum err_code kern_step_end(struct kern *k, bool failed, struct err *e);

/* ---- operations -------------------------------------------------------------------------------
 */

/* out[t] = scale * weight row id[t], f32 [n_tok, K]. mma90: the row's rule-1 bf16 values. */
struct embed_args {
    const struct kern_rows *rows;
    const struct kern_weight *w;
    float scale;
    float *out;
};

/* out_p[t, :] = x[t, :] * W_p^T + bias_p for up to three matrices that share the input; f32. */
#define LINEAR_PARTS_MAX 3
/* act_mul of part 0 (the gate) and part 1 (up), which are all parts and have as many rows: the same
 * bits as the two operations after each other. The parts' own outputs are scratch then: nobody
 * knows what they hold afterwards. */
struct linear_gate {
    void *out; /* act [n_tok, rows]; NULL: none of this */
    enum act_kind act;
    float limit, alpha;
};
struct linear_part {
    const struct kern_weight *w;
    const float *bias; /* [rows] or NULL */
    float *out;        /* rows [n_tok] of out_stride elements */
    int64_t out_stride;
};
struct linear_args {
    int n_tok;
    const void *x; /* act [n_tok, K], rows of x_stride elements */
    int64_t x_stride;
    int n_parts;
    struct linear_part part[LINEAR_PARTS_MAX];
    struct linear_gate gate;
};

/* If add: h[t] += add[t] (one rounding), written back to h. Then out = act(h * rsqrt(mean(h^2) +
 * eps) * w), or f32 with out_f32. Rows may be heads of a wider row: row r of n_rows starts at
 * (r / inner) * stride + (r % inner) * d in h, and likewise with out_stride in out. */
struct rms_norm_args {
    int64_t n_rows, inner, stride, out_stride;
    int64_t d;
    float *h;
    const float *add; /* as h, or NULL */
    const float *w;   /* [d] */
    float eps;
    bool plus_one; /* weight is 1 + w, formed in f32 */
    bool out_f32;
    void *out; /* may be h itself with out_f32 */
};

/* Norms heads of every row in place, f32: those of q, k and v, whichever have a weight. The bits
 * are those of rms_norm, v first; v's weight is 1 + v_norm. */
struct norm_heads_args {
    int n_tok, n_head, n_kv, head_dim;
    float *q, *k, *v; /* rows of `stride` elements */
    int64_t stride;
    const float *q_norm, *k_norm, *v_norm; /* [head_dim] or NULL */
    bool v_of_k;                           /* v is made of what k was before its norm */
    float eps;
    bool plus_one; /* of q and k */
};

/* Rotates q and k by the table and stores k and v in the pages of their positions. n_kv 0: q alone,
 * for a layer that looks at another one's pages; k, v and kv are NULL then. */
struct rope_kv_args {
    const struct kern_rows *rows;
    int n_head, n_kv, head_dim, rot_dim; /* first rot_dim dims rotate, halves paired */
    const float *q, *k, *v;              /* f32, rows of `stride` elements */
    int64_t stride;
    const float *cos_sin; /* [positions][rot_dim] : rot_dim/2 cosines, then sines */
    void *q_out;          /* act [n_tok, n_head * head_dim] */
    void *kv;             /* the layer's pages */
};

/* Causal attention of each row over the pages of its sequence, positions 0..pos[t]. */
struct attention_args {
    const struct kern_rows *rows;
    int n_head, n_kv, head_dim;
    const void *q; /* act [n_tok, n_head * head_dim] */
    const void *kv;
    float scale;
    int window;         /* 0: all; W: only 0 <= pos - key < W */
    float softcap;      /* 0: none */
    const float *sinks; /* [n_head] or NULL */
    void *out;          /* act [n_tok, n_head * head_dim] */
    /* NULL, or what is rotated and stored before: the same bits as the two operations after each
     * other. Its q_out is q, its kv is kv; what q holds afterwards nobody knows. A step of no more
     * rows than sequences has one row of each. */
    const struct rope_kv_args *rope;
    /* NULL, or norms of what rope reads, before that: likewise, and what its q, k and v hold
     * afterwards nobody knows. */
    const struct norm_heads_args *norm;
};

/* out = act(f(gate) * up), [n_rows, d] from two f32 inputs with a common stride. */
struct act_mul_args {
    int64_t n_rows, d, stride;
    enum act_kind act;
    const float *gate, *up;
    void *out;          /* act [n_rows, d] */
    float limit, alpha; /* ACT_GPTOSS: gate and up are clamped at it; the sigmoid's factor */
};

/* h[i] += x[i], one rounding; then h[i] *= scale, another one; then out[i] = act(h[i]); n elements.
 */
struct add_args {
    int64_t n;
    float *h;
    const float *x; /* NULL: h stays as it is, and there are an out and no scale */
    float scale;    /* 0: no multiplication */
    void *out;      /* act [n] or NULL */
};

/* Top experts of each row: logits f32 [n_tok, n_expert], ties to the lower index, weights by
 * softmax over the chosen (after_topk) or over all, then renormalised when norm says so. Also the
 * stable order of (token, slot) pairs by expert. */
struct route_args {
    int n_tok, n_expert, n_used;
    const float *logits;
    bool softmax_first, norm;
    int32_t *expert; /* [n_tok, n_used] */
    float *weight;   /* [n_tok, n_used] */
    int32_t *order;  /* [n_tok * n_used] pair numbers t * n_used + slot, sorted by expert */
    int32_t *first;  /* [n_expert + 1] where each expert's pairs start in order */
};

/* weight[p] *= scale[expert[p]], one rounding, of all pairs. */
struct route_scale_args {
    int n_pairs, n_expert;
    const int32_t *expert; /* [n_pairs] */
    const float *scale;    /* [n_expert] */
    float *weight;         /* [n_pairs] */
};

/* out[pair] = x[pair / x_div] * W_expert^T + bias_expert, f32 [n_pairs, rows]. The matrix stacks
 * n_expert matrices of `rows` rows. x_div = n_used for the first product, 1 for the second. */
struct expert_linear_args {
    int n_pairs, n_expert, x_div;
    const int32_t *order, *first;
    const void *x; /* act */
    const struct kern_weight *w;
    const float *bias; /* [n_expert, rows] or NULL */
    float *out;
    int64_t rows, out_stride;
};

/* out[pair] = act(f(gate) * up), where gate and up are expert_linear with one matrix each, and f is
 * that of act_mul. With a route, whose order and first are those of the products, that comes first.
 * The bits are those of the operations one after the other. */
struct expert_gated_args {
    const struct route_args *route; /* or NULL */
    int n_pairs, n_expert, x_div;
    const int32_t *order, *first;
    const void *x; /* act */
    const struct kern_weight *gate, *up;
    const float *gate_bias, *up_bias; /* [n_expert, rows] or NULL */
    int64_t rows;
    enum act_kind act;
    float limit, alpha; /* ACT_GPTOSS */
    float *room;        /* [n_pairs, 2 * rows]; holds anything afterwards */
    void *out;          /* act [n_pairs, rows] */
};

/* out[t] = sum over slots, ascending, of weight * y[pair]; f32 [n_tok, d]. */
struct combine_args {
    int n_tok, n_used;
    int64_t d;
    const float *y, *weight;
    float *out;
};

/* What parts of a layer leave becomes part of h, and norms of h follow:
 *
 *     sum = branch_norm(combine), whose weights route_scale scales before
 *     delta = delta_norm(delta) + sum, where the sum lies apart; else the sum, or delta as it is
 *     h = (h + post_norm(delta)) * scalar
 *     x[i] = norm[i](h), then a product of one of them, the router's
 *
 * Norms and factors are left out where they are NULL or 0. The bits are those of the operations one
 * after the other (kern_residual_by_parts); delta, the sum and the weights hold anything
 * afterwards. */
#define RESIDUAL_NORMS_MAX 3
struct residual_args {
    int64_t n_rows, d;
    float *h, *delta;
    const struct combine_args *combine;   /* or NULL; its out is delta, or lies apart */
    const struct route_scale_args *scale; /* or NULL */
    const float *branch_norm, *delta_norm, *post_norm;
    float scalar, eps;
    bool plus_one; /* as in rms_norm, of all norms */
    int n_norms;
    const float *norm[RESIDUAL_NORMS_MAX];
    void *x[RESIDUAL_NORMS_MAX];      /* act [n_rows, d] */
    const struct linear_args *router; /* or NULL: one part, no gate */
};

/* out[i] = in[row[i]], f32 [n, d]. */
struct gather_args {
    int n;
    int64_t d;
    const int32_t *row;
    const float *in;
    float *out;
};

/* Softcap in place (0: none), then per row of logits f32 [n, n_vocab]: the k largest in order
 * (ties to the lower id), log-sum-exp, and the row hash of the bits (common/hash.h). */
#define LOGITS_TOP_MAX 64
struct logits_args {
    int n;
    int64_t n_vocab;
    float softcap;
    float *logits;
    int k;           /* 2..LOGITS_TOP_MAX: the margin needs two */
    int32_t *top_id; /* [n, k] */
    float *top;      /* [n, k] logits */
    float *lse;      /* [n] */
    uint64_t *hash;  /* [n] */
};

/* How the token after a row of logits is chosen: docs/numerics.md, section 8. */
struct sample_row {
    int32_t row;               /* of logits, and of what is written */
    int32_t n_history, n_bias; /* entries of `lists` from `at` on: history, then bias */
    int32_t at;
    int64_t top_k;      /* 0: off */
    double temperature; /* 0: the best */
    double top_p;       /* 1: off */
    float min_p;        /* 0: off */
    float penalty;      /* of repetition; 1: off */
    float u;            /* the uniform number drawn, a multiple of 2^-24 below 1 */
    int32_t unused;
};

/* Tokens of n rows of logits f32 [.., n_vocab], which stay as they are. History: token ids, each
 * penalised once; entries out of range count as absent. Bias: pairs of id and float, by bits, added
 * in order. NaN is never chosen; with nothing else it is id 0. */
#define SAMPLE_ROWS_MAX 64 /* of one call */
struct sample_args {
    int n;
    int64_t n_vocab;
    const float *logits;
    const struct sample_row *rows; /* [n] */
    const int32_t *lists;
    void *room;   /* kern_sample_room(n, n_vocab); holds anything afterwards */
    int32_t *id;  /* [.. row ..] */
    float *logit; /* the id's, as it stands in logits */
};
/* Bytes of the room of n rows, of every backend. */
static inline size_t kern_sample_room(int n, int64_t n_vocab)
{
    return (size_t)n * (4 * (size_t)n_vocab + 65536) + 24 * (size_t)n_vocab;
}

/* hash[r] of `bytes_per` 4- or 2-byte words of each row: trace level layers. */
struct row_hash_args {
    int64_t n_rows, d, stride;
    int word_bytes; /* 4 or 2 */
    const void *x;
    uint64_t *hash; /* [n_rows] */
};

/*      name            argument struct */
#define KERN_OPS(X)                                                                                \
    X(embed)                                                                                       \
    X(linear)                                                                                      \
    X(rms_norm)                                                                                    \
    X(norm_heads)                                                                                  \
    X(rope_kv)                                                                                     \
    X(attention)                                                                                   \
    X(act_mul)                                                                                     \
    X(add)                                                                                         \
    X(route)                                                                                       \
    X(route_scale)                                                                                 \
    X(expert_linear)                                                                               \
    X(expert_gated)                                                                                \
    X(combine)                                                                                     \
    X(residual)                                                                                    \
    X(gather)                                                                                      \
    X(logits)                                                                                      \
    X(sample)                                                                                      \
    X(row_hash)

/* kern_embed(k, &args, e) and so on: arguments are validated once, for all backends. */
#define X(op)                                                                                      \
    MUST_USE enum err_code kern_##op(struct kern *k, const struct op##_args *a, struct err *e);
KERN_OPS(X)
#undef X

/* Bytes of scratch that the operations need for steps of at most n_tok rows; taken at open of an
 * engine through kern_reserve, so that no step allocates. */
struct kern_limits {
    int n_tok, n_seq, pages_max, n_head, head_dim;
    int n_used;    /* experts of a row; 0: none */
    int64_t k_max; /* longest input row of any linear */
    int64_t rows_max;
};
size_t kern_scratch_bytes(const struct kern *k, const struct kern_limits *l);
MUST_USE enum err_code kern_reserve(struct kern *k, const struct kern_limits *l, struct err *e);

#endif
