/* batch_trace.h: what a batch remembers of one answer for its trace, until its line is written.
 *
 * Answers end in any order; traces are in the order of the input, so that runs with other batches
 * give the same file.
 */
#ifndef ASSAY_INFER_BATCH_TRACE_H
#define ASSAY_INFER_BATCH_TRACE_H

#include "ckpt/trace.h"
#include "infer/reply.h"

struct batch_trace_op {
    int64_t pos;
    struct trace_layer_op op;
};

/* Zero it first; batch_trace_free ends it. */
struct batch_trace {
    struct token_list prompt;
    struct batch_trace_op *ops; /* level layers, in the order they ran */
    size_t n_ops, cap_ops;
};

MUST_USE bool batch_trace_prompt(struct batch_trace *t, const struct token_list *prompt);
MUST_USE bool batch_trace_layer(struct batch_trace *t, int64_t pos, int layer, const char *op,
                                uint64_t hash);
/* The lines of the answer's operations, then the answer's own. top: best tokens of each row. */
MUST_USE enum err_code batch_trace_write(const struct batch_trace *t, struct trace_writer *w,
                                         const char *custom_id, int turn, const struct answer *a,
                                         int top, struct err *e);
void batch_trace_free(struct batch_trace *t);

#endif
