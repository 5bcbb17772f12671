/* engine.h: loaded weights and the step.
 *
 * An engine is immutable after engine_new, but for its KV pages and scratch: one step at a time. A
 * step is a list of pieces (a sequence's pages and some of its tokens: prefill, decode or verify),
 * run as one batch; a row's bits do not depend on the rest of the batch. Nothing allocates in a
 * step. The engine borrows the checkpoint only while it is being made.
 */
#ifndef ASSAY_INFER_ENGINE_H
#define ASSAY_INFER_ENGINE_H

#include "ckpt/checkpoint.h"
#include "infer/sample.h"
#include "kernels/kernels.h"

struct engine;

struct engine_options {
    struct kern_options kern;
    int batch_tokens; /* most rows of a step; 0: 512 */
    int batch_seqs;   /* most sequences of a step; 0: 64 */
    /* Pages for this many tokens in all; 0: batch_seqs * ctx, but at most 1 GiB and half of the
     * memory that is left, and at least one sequence of ctx. */
    int64_t kv_tokens;
    int64_t ctx;  /* longest sequence; 0: the model's own, at most 8192 */
    int top_k;    /* top logits kept of each output row, 2 .. LOGITS_TOP_MAX; 0: 2 */
    int out_rows; /* most rows with logits in a step; 0: batch_seqs */
};

/* Bytes before anything is loaded: weights, kv and scratch on the device; host is staging, host
 * copies of logits and the bookkeeping of pages. */
struct engine_plan {
    uint64_t weights, kv, scratch, host;
    int64_t pages;
    int64_t ctx;
    int batch_tokens, batch_seqs, out_rows, top_k;
};
/* Resolves the defaults and adds up; ERR_INPUT when the family or a tensor does not fit (strict:
 * missing, extra and misshapen tensors are named), ERR_NOMEM saying by how much it does not fit. */
MUST_USE enum err_code engine_plan(const struct checkpoint *c, const struct engine_options *o,
                                   struct engine_plan *plan, struct err *e);
MUST_USE enum err_code engine_new(struct engine **en, const struct checkpoint *c,
                                  const struct engine_options *o, struct err *e);
void engine_free(struct engine *en);
const struct engine_plan *engine_get_plan(const struct engine *en);
const struct hparams *engine_hparams(const struct engine *en);
/* What making it took: reading all weights for the fingerprint, and bringing them to the device. */
struct engine_times {
    double hash, weights; /* seconds */
};
const struct engine_times *engine_get_times(const struct engine *en);
struct kern *engine_kern(const struct engine *en);
/* SHA-256 hex of what decides bits: weights' hashes, hyperparameters, arithmetic; 64 digits. */
const char *engine_fingerprint(const struct engine *en);

struct step_piece {
    const int32_t *ids; /* [n] */
    int n;
    int64_t pos;          /* position of ids[0]; earlier positions are in the pages */
    const int32_t *pages; /* enough pages for pos + n tokens */
    int n_pages;
    int out_from; /* rows out_from .. n-1 give logits; n: none */
    /* How the token after the last row is chosen; NULL: the first of top_id. The history is every
     * token of the sequence so far, and its length the position of the token chosen. */
    const struct sampling *sampling;
    const uint8_t *stream_key; /* [32] */
    const int32_t *history;
    int64_t n_history;
};

/* One output row; pointers live until the next step. */
struct step_row {
    int piece, index;    /* ids[index] of that piece: the logits predict position pos + index + 1 */
    const float *logits; /* [n_vocab], NULL unless want_logits */
    const int32_t *top_id; /* [k] */
    const float *top;      /* [k] logits */
    int32_t id;            /* the token chosen */
    float logit;           /* its logit */
    float lse;
    uint64_t hash;
};

struct step {
    const struct step_piece *pieces;
    int n_pieces;
    bool want_logits; /* bring whole rows to the host */
    /* from_layer > 0: layers before it are not run (n_layer: none is). What enters it is given:
     * residual states on the host, [rows of all pieces, d_model], in place of the embeddings. Only
     * for a model whose layers stand apart (hparams_layers_apart). */
    int from_layer;
    const float *states;
    /* Out: rows in the order of pieces and indices. */
    const struct step_row *rows;
    int n_rows;
};
MUST_USE enum err_code engine_step(struct engine *en, struct step *s, struct err *e);

/* Called after every operation of a step with the hash of each row of its output: trace level
 * layers. NULL turns it off. layer -1 is outside the layers. There is a row for each token, in the
 * order of pieces, or of operations "of output" one for each output row.
 */
typedef void (*engine_tap)(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash);
void engine_set_tap(struct engine *en, engine_tap tap, void *ctx);
bool engine_op_of_output(int layer, const char *op);

/* Called with the residual state that enters each layer, f32 [n_rows, d_model] in device memory,
 * which lives until the call ends: a row for each token, and for layer n_layer (what the final norm
 * gets) a row for each output row. NULL turns it off. */
typedef enum err_code (*engine_state)(void *ctx, int layer, int n_rows, const float *h,
                                      struct err *e);
void engine_set_state(struct engine *en, engine_state fn, void *ctx);

/* Puts another matrix of the same shape in the place of the one of that name: an engine of mixed
 * weights. The checkpoint that the engine was made from must still be open; w is not needed after
 * the call. The fingerprint stays that of the checkpoint. ERR_INPUT when there is no such matrix.
 */
MUST_USE enum err_code engine_put_weight(struct engine *en, const char *name,
                                         const struct ckpt_weight *w, struct err *e);

/* Bytes of a page of a layer; layers may differ. */
size_t engine_page_bytes(const struct engine *en, int layer);
/* Copies one page of one layer to host memory: tests of invariance. */
MUST_USE enum err_code engine_read_page(struct engine *en, int layer, int32_t page, void *out,
                                        struct err *e);
MUST_USE enum err_code engine_zero_page(struct engine *en, int32_t page, struct err *e);
/* Every byte 0xff: K and V of the page are NaN. Tests of invariance. */
MUST_USE enum err_code engine_poison_page(struct engine *en, int32_t page, struct err *e);
/* Fills everything that a step makes anew (activations, outputs, logits, the backend's scratch)
 * with NaN: what a step does not write it must not read. Pages stay. */
MUST_USE enum err_code engine_poison(struct engine *en, struct err *e);

#endif
