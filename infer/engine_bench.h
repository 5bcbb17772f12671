/* engine_bench.h: speed of a whole engine: decode at several row counts, prefill at several
 * lengths, and both in one step.
 *
 * Every figure is measured twice in every round, by two arms that do the very same (the second is
 * the null arm), one behind the other, in turns; rounds go over all figures, so that a machine that
 * warms up or is disturbed meets each of them. The figure is the median over the rounds, and what
 * the arms differ by is what the measurement cannot resolve.
 */
#ifndef ASSAY_INFER_ENGINE_BENCH_H
#define ASSAY_INFER_ENGINE_BENCH_H

#include "common/json.h"
#include "infer/engine.h"

#define ENGINE_BENCH_MAX 16 /* figures of a kind */

struct engine_bench {
    int64_t rows[ENGINE_BENCH_MAX];   /* decode: sequences of a step */
    int64_t prompt[ENGINE_BENCH_MAX]; /* prefill: tokens */
    /* mixed: sequences that decode beside a piece of a prompt, which fills the step */
    int64_t mixed[ENGINE_BENCH_MAX];
    int n_rows, n_prompt, n_mixed;
    int64_t context; /* tokens before a decoded one */
    int rounds;
    double seconds;                  /* of one arm of one figure, at least */
    const volatile int *interrupted; /* may be NULL */
};

/* The engine's options for these figures: pages, context, sequences; batch_tokens stays. */
void engine_bench_options(const struct engine_bench *b, struct engine_options *o);
/* [{"what": "decode", "rows": n, "context": n, "tok_per_s": x, "seconds": x, "null_seconds": x,
 *   "null_ratio": x, "low_seconds": x, "high_seconds": x, "rounds": n, "steps": n}, ...]; prefill
 * has "tokens" in place of rows and context, mixed all three, tokens being those of the piece; its
 * tok_per_s counts both. Seconds are those of a step, or of a prompt. A new
 * reference. */
MUST_USE enum err_code engine_bench_run(struct engine *en, const struct engine_bench *b,
                                        json_t **out, struct err *e);

#endif
