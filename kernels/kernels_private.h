/* kernels_private.h: what backends share: the function table, the heads of a kern and of a weight,
 * the reader of weight sources, and the faults that tests plant.
 *
 * kernels.c validates the arguments of every operation and keeps the sticky error; a backend's
 * function may rely on both. A backend embeds struct kern and struct kern_weight as the first
 * member of its own structs and casts.
 */
#ifndef ASSAY_KERNELS_KERNELS_PRIVATE_H
#define ASSAY_KERNELS_KERNELS_PRIVATE_H

#include "kernels/kernels.h"

/* ---- geometry fixed by the arithmetic (docs/numerics.md) ------------------------------------- */
#define KERN_SPLIT    256 /* keys of an attention split, at absolute multiples */
#define KERN_TILE     64  /* keys of an online-softmax tile; equals KERN_PAGE */
#define KERN_HEAD_MAX 512 /* longest head_dim */

/* Length of a chunk of rule 2; the last of a row may be shorter. */
static inline int64_t kern_chunk(int64_t k)
{
    return k <= 1024 ? 256 : 512;
}

/* ---- the table --------------------------------------------------------------------------------
 */
struct kern_table {
    void (*close)(struct kern *k);
    enum err_code (*alloc)(struct kern *k, size_t bytes, void **p, struct err *e);
    void (*free)(struct kern *k, void *p);
    enum err_code (*upload)(struct kern *k, void *dst, const void *src, size_t bytes,
                            struct err *e);
    enum err_code (*download)(struct kern *k, void *dst, const void *src, size_t bytes,
                              struct err *e);
    enum err_code (*fill)(struct kern *k, void *dst, uint8_t byte, size_t bytes, struct err *e);
    enum err_code (*poison)(struct kern *k, struct err *e);
    enum err_code (*wait)(struct kern *k,
                          struct err *e); /* until all that was launched has ended */
    enum err_code (*weight_load)(struct kern *k, const struct ckpt_weight *const *parts, int n,
                                 struct kern_weight **w, struct err *e);
    /* NULL where a load is as quick. */
    enum err_code (*weight_copy)(struct kern *k, const struct kern_weight *from,
                                 struct kern_weight **w, struct err *e);
    void (*weight_free)(struct kern *k, struct kern_weight *w);
    size_t (*weight_bytes)(const struct kern *k, const struct ckpt_weight *const *parts, int n);
    size_t (*page_bytes)(const struct kern *k, int n_kv, int head_dim);
    size_t (*scratch_bytes)(const struct kern *k, const struct kern_limits *l);
    enum err_code (*reserve)(struct kern *k, const struct kern_limits *l, struct err *e);
    /* NULL where nothing is recorded. */
    enum err_code (*step_begin)(struct kern *k, const struct kern_step *s, bool *replayed,
                                struct err *e);
    enum err_code (*step_end)(struct kern *k, bool failed, struct err *e);
#define X(op) enum err_code (*op)(struct kern *, const struct op##_args *, struct err *);
    KERN_OPS(X)
#undef X
};

struct kern {
    const struct kern_table *table;
    enum kern_arith arith;
    int threads;
    const char *isa; /* static text */
    char device[16];
    bool records; /* steps are recorded */
    enum kern_launch launch;
    unsigned launches;        /* bit 1 << way of each that the backend has */
    const char *const *paths; /* kern_paths */
    bool expand;
    enum err_code failed; /* ERR_OK, or what every later call returns with `failure` */
    struct err failure;
};

/* Backends open themselves by these; o->device has been matched already. */
enum err_code cpu_open(struct kern **k, const struct kern_options *o, struct err *e);
const char *const *cpu_isa_list(void);

/* ERR_INTERNAL for arguments that no backend must see (kernels_check.c). */
#define X(op) MUST_USE enum err_code kern_check_##op(const struct op##_args *a, struct err *e);
KERN_OPS(X)
#undef X

/* expert_gated as a route, if there is one, two expert_linear and an act_mul of the same backend.
 */
enum err_code kern_gated_by_parts(struct kern *k, const struct expert_gated_args *a, struct err *e);
/* The same for norms of heads and for what follows a part (kernels_residual.c). */
enum err_code kern_heads_by_parts(struct kern *k, const struct norm_heads_args *a, struct err *e);
enum err_code kern_residual_by_parts(struct kern *k, const struct residual_args *a, struct err *e);

/* ---- weights ----------------------------------------------------------------------------------
 */
struct kern_weight {
    int64_t rows, k;
    bool packed;      /* else dense */
    struct qformat q; /* packed */
    enum dtype dtype; /* dense: DT_BF16, DT_F16, DT_F32 as it is in memory */
    size_t bytes;     /* device bytes, as kern_weight_bytes promised */
};

/* A stack of checkpoint weights seen as one matrix with one format. */
struct kern_source {
    const struct ckpt_weight *const *parts;
    int n;
    int64_t rows, k;
    bool packed;
    struct qformat q; /* f16 and f32 scales mixed become f32: the values are the same */
    bool globals;     /* nvfp4: a part has global scales */
    enum dtype dtype; /* dense: the stored type; f32 for GGML types without a packed form */
};

/* Fails with found and expected when the parts do not fit together or cannot be decoded. */
MUST_USE enum err_code kern_source_init(struct kern_source *s,
                                        const struct ckpt_weight *const *parts, int n,
                                        struct err *e);
/* Row r of a packed source in MLX order: codes qformat_row_bytes(q, k), scales and biases k /
 * group values of q.scale each; a block float has no biases. ERR_INPUT for a block float that holds
 * a NaN. */
MUST_USE enum err_code kern_source_packed_row(const struct kern_source *s, int64_t r,
                                              uint8_t *codes, uint8_t *scales, uint8_t *biases,
                                              struct err *e);
/* Rows [r, r + n) are not needed any more: what of a mapped file held them leaves this process's
 * memory, a run of rows at a time, when the last of a run is passed. */
void kern_source_passed(const struct kern_source *s, int64_t r, int64_t n);
/* None is: pages at the edges of runs too, and those that came back beside others. */
void kern_source_done(const struct kern_source *s);
/* The global scale of row r; 1 where there is none. */
float kern_source_global(const struct kern_source *s, int64_t r);
/* The values of a packed weight as a dense one of `type` (rule 1: f32, or bf16 for mma90); its
 * data is on the heap. A dense weight is copied as a view, and *owned is NULL. shell: no data is
 * made, for the memory plan. */
MUST_USE enum err_code kern_source_expand(const struct ckpt_weight *w, enum dtype type, bool shell,
                                          struct ckpt_weight *out, void **owned, struct err *e);
/* Row r of a dense source as it is stored (s->dtype), k elements. */
MUST_USE enum err_code kern_source_dense_row(const struct kern_source *s, int64_t r, void *out,
                                             struct err *e);

/* ---- operations that hold another one --------------------------------------------------------
 */
/* The gate of a product as an operation, for backends and shapes without a kernel for both. */
static inline struct act_mul_args kern_gate_args(const struct linear_args *a)
{
    struct act_mul_args m = {a->n_tok,    a->part[0].w->rows, a->part[0].out_stride,
                             a->gate.act, a->part[0].out,     a->part[1].out,
                             a->gate.out, a->gate.limit,      a->gate.alpha};
    return m;
}

/* ---- faults for tests -------------------------------------------------------------------------
 */
/* Each breaks one promise of the contract on purpose, so that the tests of the promise can be seen
 * to fail. Never set outside tests. */
enum kern_fault {
    KERN_FAULT_NONE,
    KERN_FAULT_CHUNK_ORDER, /* chunk sums added descending when a step has more than one row */
    KERN_FAULT_SPLIT_EDGE,  /* attention splits begin a tile early when a step has more than one row
                             */
    KERN_FAULT_NEIGHBOUR,   /* a row takes up zero times the row before it */
    KERN_FAULT_THREAD_ORDER, /* threads other than the first add chunk sums descending */
    KERN_FAULT_RACE,         /* the order of chunk sums changes from product to product */
    KERN_FAULT_THREADS,      /* the order of chunk sums is a race between threads */
    KERN_FAULT_COMPANY,      /* chunk sums added descending while another kern is open */
    KERN_FAULT_SEQ_EDGE,     /* splits begin a tile early but for a step's first sequence */
    KERN_FAULT_STALE,        /* the gate adds zero times what its output held before */
    KERN_FAULT_PLAIN_C, /* the variant "c", on CUDA the path "plain", adds chunk sums descending */
    KERN_FAULT_EXPAND,  /* expanded weights are rounded by another rule */
    KERN_FAULT_KV8,     /* K and V are rounded to 8 bits before rope */
    KERN_FAULT_IDLE,    /* add writes no out, and experts are not scaled */
    KERN_FAULT_DEVICE,  /* a CUDA device adds chunk sums descending */
    KERN_FAULT_LAUNCH,  /* the same, unless it launches in its usual way */
    KERN_FAULT_GRAPH,   /* the same in recorded steps */
    KERN_FAULT_TRAP,    /* the device fails in the next step that may be recorded */
    KERN_FAULT_SAMPLE,  /* a CUDA device draws an eighth of the sum too far down */
    KERN_FAULT_HASH,    /* a CUDA device gives a row the hash of the one after it */
    KERN_FAULT_ORDER,   /* a CUDA load takes the codes of the row after */
    /* Races on a CUDA device: nothing but timing decides. */
    KERN_FAULT_ARRIVAL, /* the plain path; atomics add chunk sums as blocks arrive */
    KERN_FAULT_EARLY /* products read x without a wait for the norm that makes it, which dawdles */
};
void kern_plant(enum kern_fault f);
enum kern_fault kern_planted(void);
/* What RACE, THREADS and COMPANY say of a product over k of this thread; other faults say no. */
bool kern_planted_order(int thread, int64_t k);

#endif
