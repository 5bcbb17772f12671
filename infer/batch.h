/* batch.h: a prompt file through a model into an output file, line by line, in input order.
 *
 * OUT grows in place and holds output lines only, in the order of the input; what else a run needs
 * to survive lies beside it (batch_store.h). A line that cannot be answered becomes an error line
 * and the rest goes on. A run that was ended by anything and resumed gives the bytes of an
 * uninterrupted one, since an answer depends on its own line alone.
 */
#ifndef ASSAY_INFER_BATCH_H
#define ASSAY_INFER_BATCH_H

#include "ckpt/trace.h"
#include "infer/census.h"
#include "infer/lm.h"
#include "infer/prompts.h"

struct batch_options {
    const char *prompts, *out; /* out NULL: nothing is written (bench, traces) */
    struct prompt_defaults defaults;
    bool special; /* added tokens in raw text are parsed */
    bool score;   /* teacher-forced: log-probabilities of the prompts, nothing is made */
    bool resume, force;
    bool retry_failed;    /* with resume */
    int64_t max_failures; /* more in this run stop it; -1: any number */
    double grace_s;       /* after a signal, for what runs */
    bool no_prefix;
    int chunk;
    const char *trace; /* file, or NULL */
    enum trace_level trace_level;
    int trace_top;             /* top k of each token in the trace */
    const int64_t *trace_full; /* tokens of each answer whose logits are kept in full */
    size_t n_trace_full;
    const volatile int *interrupted; /* or NULL */
    void (*on_progress)(void *ctx, uint64_t requests_done, uint64_t tokens);
    void *ctx;
};

struct batch_result {
    uint64_t n_ok, n_failed;
    uint64_t n_kept, n_kept_failed; /* lines of an earlier run, and those that are errors */
    uint64_t prompt_tokens, new_tokens;
    uint64_t shared_tokens; /* of prompts, found in pages of earlier ones */
};

/* The part that needs no model, for errors before it loads: the file is there, ids are unique,
 * OUT is free to be made and is not the input. census_free is the caller's. */
MUST_USE enum err_code batch_check(const struct batch_options *o, struct census *census,
                                   struct err *e);
/* ERR_PARTIAL when some lines failed, ERR_INTERRUPTED after a signal (what is out is whole). */
MUST_USE enum err_code batch_run(struct lm *m, const struct batch_options *o,
                                 const struct census *census, struct batch_result *res,
                                 struct err *e);

#endif
