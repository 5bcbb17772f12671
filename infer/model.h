/* model.h: a model family and the weights of one model, bound by name and shape.
 *
 * A family is one file in models/ and one row in model.c. It binds every tensor strictly: a missing
 * tensor, one of another shape, and one that nobody asked for are errors that name it. Binding
 * reads no weights; model_load does, into the device. The forward pass is a straight line of
 * kern_* calls over buffers at fixed offsets of one block.
 *
 * A model owns its device weights. It borrows the checkpoint from model_bind to model_load only.
 */
#ifndef ASSAY_INFER_MODEL_H
#define ASSAY_INFER_MODEL_H

#include "ckpt/checkpoint.h"
#include "infer/engine.h"
#include "kernels/kernels.h"

struct model;
struct model_binder;

/* Sizes that fix every buffer of a step. */
struct model_dims {
    int n_tok, out_rows;
    size_t act_bytes;
};

/* A table of rotary angles: dims / 2 cosines, then as many sines, of each position. */
struct model_rope {
    const float *cos_sin;
    int dims;
};

/* One step, as a family's forward pass sees it. All pointers are device memory. */
struct model_step {
    struct kern *k;
    struct kern_rows rows;
    int n_out;                 /* rows with logits; 0: none */
    const int32_t *out_row;    /* [n_out]; NULL: row r is output row r */
    uint8_t *scratch;          /* the family's scratch bytes */
    uint8_t *const *kv;        /* [n_layer] pages that each layer looks at */
    struct model_rope rope[2]; /* of full layers, of sliding layers: rope[hp.sliding[layer]] */
    float *logits;             /* [n_out, n_vocab]: what the forward pass makes */
    /* Trace level layers; NULL: off. hash_dev and hash have room for n_tok hashes. */
    engine_tap tap;
    void *tap_ctx;
    uint64_t *hash_dev, *hash;
    engine_state state; /* NULL: off */
    void *state_ctx;
    int from_layer; /* the first that is run; above 0, states (host) stand for the embeddings */
    const float *states;
};

struct model_family {
    const char *name;  /* hparams.family */
    size_t priv_bytes; /* the family's own struct, zeroed, in model_priv */
    enum err_code (*bind)(struct model *m, struct model_binder *b, struct err *e);
    /* Bytes of scratch for these sizes; lays out the buffers. */
    size_t (*plan)(struct model *m, const struct model_dims *d);
    void (*limits)(const struct model *m, struct kern_limits *l); /* k_max, rows_max */
    enum err_code (*forward)(const struct model *m, const struct model_step *s, struct err *e);
};

MUST_USE enum err_code model_bind(struct model **m, const struct checkpoint *c, struct err *e);
/* Device bytes of all weights, before loading. */
uint64_t model_weight_bytes(const struct model *m, const struct kern *k);
MUST_USE enum err_code model_load(struct model *m, struct kern *k, struct err *e);
/* engine_put_weight, on the device that the model was loaded to. */
MUST_USE enum err_code model_put(struct model *m, struct kern *k, const char *name,
                                 const struct ckpt_weight *w, struct err *e);
void model_free(struct model *m, struct kern *k); /* k: where it was loaded, or NULL */
const struct hparams *model_hparams(const struct model *m);
const struct model_family *model_family(const struct model *m);
void *model_priv(const struct model *m);
/* Host bytes that the bound model takes. */
size_t model_host_bytes(const struct model *m);

/* What a model of these hyperparameters binds: names and shapes, in the order of binding. */
struct model_tensor {
    char name[CKPT_NAME_MAX];
    int n_dim;
    int64_t dim[CKPT_DIMS_MAX];
};
/* A heap array; ERR_INPUT for a family that cannot be run. */
MUST_USE enum err_code model_list_tensors(const struct hparams *hp, struct model_tensor **list,
                                          size_t *n, struct err *e);

/* ---- for families ---------------------------------------------------------------------------- */

/* Memory with the model's lifetime; sets ERR_NOMEM. */
void *model_alloc(struct model_binder *b, size_t n, size_t elem_bytes);
/* Asks for one tensor by name. What is wrong is collected and said once, at the end. The pointer
 * is set when the model is loaded. */
void model_want_matrix(struct model_binder *b, struct kern_weight **w, int64_t rows, int64_t k,
                       const char *fmt, ...) PRINTF_LIKE(5, 6);
/* n_expert matrices of rows x k as one of n_expert * rows, for kern_expert_linear. */
void model_want_experts(struct model_binder *b, struct kern_weight **w, int n_expert, int64_t rows,
                        int64_t k, const char *fmt, ...) PRINTF_LIKE(6, 7);
void model_want_vector(struct model_binder *b, float **v, int64_t n, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Its values are multiplied by `factor` when they are loaded. */
void model_want_scaled(struct model_binder *b, float **v, int64_t n, float factor, const char *fmt,
                       ...) PRINTF_LIKE(5, 6);
/* A tensor of one element, read to the host. */
void model_want_scalar(struct model_binder *b, float *v, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A vector of n zeros, which no checkpoint holds: a norm of 1 + w without a weight. */
void model_want_zeros(struct model_binder *b, float **v, int64_t n);
/* n_vectors of n values each, one behind another: a bias for each expert. */
void model_want_vectors(struct model_binder *b, float **v, int n_vectors, int64_t n,
                        const char *fmt, ...) PRINTF_LIKE(5, 6);
/* The head of a tied model is the embedding; a separate head with other bytes is refused. */
void model_want_tied_head(struct model_binder *b, const char *head, const char *embedding);

/* Takes `bytes` of a block being laid out; gives the offset, a multiple of 64. */
size_t model_take(size_t *used, size_t bytes);

/* Hashes n_rows rows of d words and hands them to the tap; does nothing without one. */
MUST_USE enum err_code model_tap(const struct model_step *s, int layer, const char *op,
                                 int64_t n_rows, const void *x, int64_t d, int64_t stride,
                                 size_t word_bytes, struct err *e);

extern const struct model_family model_llama, model_mistral, model_qwen2, model_qwen3, model_gemma2,
    model_gemma3, model_gemma4, model_gemma4_unified, model_mixtral, model_qwen3_moe, model_gpt_oss;

#endif
