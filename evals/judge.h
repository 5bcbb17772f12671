/* judge.h: the verdict on a pair: which of the three faults that look alike it is.
 *
 * The procedure (docs/compare.md): a side that does not repeat itself is nondeterministic; a side
 * whose bits move with batch, chunk or expansion, or a pair of equal weights that answers
 * otherwise, is a path; other weights, all else in order, are quantization. What was found and what
 * was not looked at is said in words.
 */
#ifndef ASSAY_EVALS_JUDGE_H
#define ASSAY_EVALS_JUDGE_H

#include "evals/compare.h"

/* Why two models cannot be compared by their hyperparameters, the field named; empty: they can. */
void judge_fields(const struct checkpoint *ref, const struct checkpoint *var, char *why,
                  size_t size);
/* The same by what was asked: tokenizer, template, prompts, and each record's own tokens. */
void judge_traces(const struct trace *ref, const struct trace *var, char *why, size_t size);

/* Sets verdict, evidence and unchecked of the pair from what is known of both sides. */
void judge_pair(const struct comparison *c, struct pair *p);

#endif
