/* forced.h: a variant forced along the reference's answers, row against row. */
#ifndef ASSAY_EVALS_FORCED_H
#define ASSAY_EVALS_FORCED_H

#include "evals/compare.h"

struct forced_options {
    int64_t max_per_record; /* 0: all */
    bool prompts;           /* the tokens of the prompts from the second on, not of the answers */
    const volatile int *interrupted;
    void (*on_progress)(void *ctx, uint64_t records_done);
    void *ctx;
};

/* Gives one position per token of every record of `t`; index counts from its first one. Both models
 * have room for its longest sequence. */
MUST_USE enum err_code forced_run(struct lm *ref, struct lm *var, const struct trace *t,
                                  const struct forced_options *o, struct position **positions,
                                  size_t *n, struct err *e);

#endif
