/* cuda_private.h: what the files of the CUDA backend share: the kern, its scratch, how a launch is
 * checked, how a kernel reports a wrong number, and the operations as the table takes them.
 *
 * Seen by C and CUDA. All work of a kern goes to its one stream, copies included, so that
 * operations need no other order than that in which they are called. An operation launches kernels
 * and returns; no operation allocates, waits or reads device memory from the host.
 *
 * A device fault found by CUDA is sticky (ERR_DEVICE, kept by kernels.c). A number that only the
 * device sees and that is out of range (a token id) is reported through cuda_fault and comes back
 * as ERR_INTERNAL with the next download.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_PRIVATE_H
#define ASSAY_KERNELS_CUDA_CUDA_PRIVATE_H

#include <math.h>
#include <stdlib.h>

#include "common/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/cuda_paths.h"
#include "kernels/kernels_private.h"

struct CUstream_st;
struct CUevent_st;

/* The first wrong number that a kernel met. */
enum cuda_fault_kind { CUDA_FAULT_NONE, CUDA_FAULT_TOKEN };
struct cuda_fault {
    int32_t kind, row, value, limit;
};

/* Recorded steps, those used last (cuda_graph.cu). */
#define CUDA_GRAPHS 64
struct CUgraphExec_st;
struct cuda_graph {
    struct kern_step shape;
    struct CUgraphExec_st *exec; /* NULL: seen once, not recorded */
    uint64_t used;               /* 0: free */
};

/* Which kernel attention takes, where the shape allows it. */
enum cuda_attention_kernel { CUDA_ATTENTION_AUTO, CUDA_ATTENTION_ITEMS, CUDA_ATTENTION_MANY };

/* Planted: when the router behind a norm asks for its weights, and whether it waits for them. */
enum cuda_plant_copy { CUDA_COPY_EARLY, CUDA_COPY_LATE, CUDA_COPY_UNDRAINED };

#define CUDA_STAGES      16        /* pinned pieces in flight */
#define CUDA_STAGE_BYTES (1 << 20) /* of one piece */

/* Scratch by operation: bytes that kern_reserve takes for the largest step. The regions belong to
 * one operation each, so that neighbours in the stream never meet in one. */
struct cuda_scratch {
    size_t linear;    /* chunk sums of linear layers and expert products */
    size_t attention; /* split results */
    size_t logits;    /* pieces of top k, sums and hashes */
    size_t moe;       /* rows of x in the order of their experts */
};

struct cuda_kern {
    struct kern base;
    int device, n_sm;
    size_t l2_bytes, shared_max, shared_sm; /* shared memory of a block, of a multiprocessor */
    unsigned kernels;                       /* that may run here (cuda_paths.h) */
    struct CUstream_st *stream;
    uint8_t *staging;        /* pinned, CUDA_STAGES pieces */
    uint8_t *staging_device; /* rows of weights before they are put in order (cuda_load.cu) */
    struct CUevent_st *staged[CUDA_STAGES];
    int next_stage;
    struct cuda_fault *fault, *fault_seen; /* on the device; its pinned copy */
    uint8_t *scratch;                      /* one block */
    struct cuda_scratch scratch_bytes;
    uint8_t *scratch_linear, *scratch_attention, *scratch_logits, *scratch_moe; /* in it */
    struct kern_limits limits; /* zero before kern_reserve */
    struct cuda_graph graph[CUDA_GRAPHS];
    struct cuda_graph *recording; /* NULL, or what the launches go to */
    uint64_t steps;
    /* The order of pairs that is there whenever the next kernel starts, early or not: that of the
     * last expert_gated, whose kernels waited for the route before they let others begin, or made
     * it themselves. */
    const int32_t *lists_stand;
    /* Planted by tests: the norm takes so much longer, and few-row products do not wait for it. */
    int plant_delay_ns;
    bool plant_no_wait;
    enum cuda_plant_copy plant_copy; /* by tests */
    bool plant_frees_early; /* by tests: stages are given back to copies before they are read */
    bool plant_descending;  /* by tests: attention adds the results of splits from the last */
    bool host_order;        /* tests and bench: weights are put in order on the host */
    int force_path; /* tests and bench: 0, or which path of cuda_linear.cu every product takes */
    enum cuda_attention_kernel force_attention; /* tests and bench */
};

static inline struct cuda_kern *cuda_of(struct kern *k)
{
    return (struct cuda_kern *)k;
}

/* May this kernel run on the device? */
static inline bool cuda_takes(const struct cuda_kern *c, enum cuda_kernel kernel)
{
    return (c->kernels >> kernel & 1) != 0;
}

enum err_code cuda_open(struct kern **k, const struct kern_options *o, struct err *e);
/* The arithmetic of a device, which is not opened. */
enum err_code cuda_arith(const char *device, enum kern_arith *a, struct err *e);

/* ERR_OK, or ERR_DEVICE: what the runtime found while doing something. */
MUST_USE enum err_code cuda_checked(int found, const char *doing, struct err *e);
/* ERR_OK, or ERR_DEVICE with what the launches before this call gave. */
MUST_USE enum err_code cuda_launched(const char *op, struct err *e);

/* Scratch bytes of each group of operations for the limits: a pure function of them and of the
 * device's shape. */
size_t cuda_linear_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l);
size_t cuda_attention_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l);
size_t cuda_logits_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l);
size_t cuda_moe_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l);

/* cuda_device.cu: from device memory to device memory. */
enum err_code cuda_move(struct kern *k, void *dst, const void *src, size_t bytes, struct err *e);

/* cuda_weight.c */
enum err_code cuda_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                               struct kern_weight **w, struct err *e);
enum err_code cuda_weight_copy(struct kern *k, const struct kern_weight *from,
                               struct kern_weight **w, struct err *e);
void cuda_weight_free(struct kern *k, struct kern_weight *w);
size_t cuda_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n);

/* cuda_rope.cu: KERN_FAULT_KV8, when it is planted; done twice it is the same. */
void cuda_plant_kv8(const struct cuda_kern *c, const struct rope_kv_args *a);

/* cuda_graph.cu */
enum err_code cuda_step_begin(struct kern *k, const struct kern_step *s, bool *replayed,
                              struct err *e);
enum err_code cuda_step_end(struct kern *k, bool failed, struct err *e);
void cuda_graphs_free(struct cuda_kern *c);

size_t cuda_page_bytes(const struct kern *k, int n_kv, int head_dim);

#define X(op) enum err_code cuda_##op(struct kern *, const struct op##_args *, struct err *);
KERN_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif

/* ---- for kernels only -------------------------------------------------------------------------
 */
#ifdef __CUDACC__
#include "kernels/elem.h"

/* Keeps the first fault. The caller goes on with a number that is in range. */
__device__ static inline void cuda_fault_set(struct cuda_fault *f, enum cuda_fault_kind kind,
                                             int row, int value, int limit)
{
    if (atomicCAS(&f->kind, 0, (int)kind) == 0) {
        f->row = row;
        f->value = value;
        f->limit = limit;
    }
}

/* The f32 value of an activation's output. */
__device__ static inline float cuda_gated(enum act_kind act, float gate, float up, float limit,
                                          float alpha)
{
    if (act == ACT_SILU)
        return elem_silu_mul(gate, up);
    if (act == ACT_GELU_TANH)
        return elem_gelu_tanh_mul(gate, up);
    return elem_gptoss_mul(gate, up, limit, alpha);
}

/* The page that holds position pos of row t's sequence. */
__device__ static inline int cuda_page(const struct kern_rows &r, int t, int pos)
{
    return r.pages[(int64_t)r.seq[t] * r.pages_max + pos / KERN_PAGE];
}
#endif

#endif
