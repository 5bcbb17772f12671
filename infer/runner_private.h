/* runner_private.h: one request inside the runner, its text, and the layers of a step. Tests may
 * include it for the faults.
 */
#ifndef ASSAY_INFER_RUNNER_PRIVATE_H
#define ASSAY_INFER_RUNNER_PRIVATE_H

#include "infer/kv.h"
#include "infer/runner.h"

struct run_seq {
    void *user;
    int32_t *ids; /* [n_prompt + max_tokens] */
    int64_t n_prompt, max_tokens;
    int64_t n_tok;    /* known and needed in the KV: of a scored one, all but the last */
    int64_t n_done;   /* tokens whose KV is in the pages */
    int64_t n_traced; /* positions whose layers were given */
    int64_t score_from;
    bool running, want_logits;
    bool cut; /* a stop string ended the text */
    enum finish_reason why;
    struct sampling sampling; /* bias is its own */
    uint8_t stream_key[32];
    int32_t *stop_ids;
    int n_stop_ids, n_stop, top_k;
    char **stop;
    size_t stop_max; /* longest stop string */
    struct kv_seq kv;
    struct tok_stream stream;
    struct strbuf text; /* answer so far; [given, given + ready) goes out next */
    size_t given, ready;
};

struct run_seq *run_seq_new(const struct request *q, void *user); /* NULL: out of memory */
void run_seq_free(struct run_seq *s);

/* How many leading tokens may come from known pages: prompt tokens before the first row wanted. */
int64_t run_seq_shareable(const struct run_seq *s);
/* True when a row must come to the host whole. */
bool run_seq_wants_logits(const struct run_seq *s);

/* The token joins the text; sets why on a stop id or a stop string. */
MUST_USE enum err_code run_seq_push_text(struct run_seq *s, const struct tokenizer *tok, int32_t id,
                                         struct err *e);
/* Text that has become certain since the last call; lives until the next push. */
const char *run_seq_take_text(struct run_seq *s, size_t *len);
/* What is left when the answer has ended. */
MUST_USE enum err_code run_seq_end_text(struct run_seq *s, const struct tokenizer *tok,
                                        const char **text, size_t *len, struct err *e);

/* Hashes of every operation of one step, kept to be given token by token. */
struct run_trace_op {
    int layer, n_rows;
    const char *op;
    size_t first; /* in hashes */
};
struct run_trace {
    struct run_trace_op *ops;
    uint64_t *hashes;
    size_t n_ops, cap_ops, n_hashes, cap_hashes;
    bool failed;
};
void run_trace_start(struct run_trace *t);
void run_trace_tap(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash);
/* All operations of token row `row` and, when out_row >= 0, of that output row. */
void run_trace_emit(const struct run_trace *t, int row, int out_row, const struct runner_options *o,
                    void *req_user, int64_t pos);
void run_trace_free(struct run_trace *t);

/* Tests only. */
enum runner_fault {
    RUNNER_FAULT_NONE,
    RUNNER_FAULT_STALE /* a request that was put back goes on as if its pages were still there */
};
void runner_plant(struct runner *r, enum runner_fault f);
struct kv *runner_kv(struct runner *r);

#endif
