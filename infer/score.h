/* score.h: teacher-forced log-probabilities of a text, and its perplexity.
 *
 * Windows: of `ctx` tokens every `stride` tokens; a window scores the tokens that no window before
 * it has scored, so each token but the first is scored once, with as much context as its window
 * has. llama_windows cuts as llama.cpp's perplexity does: disjoint windows of ctx, the rest of the
 * text left out, the first token replaced by BOS where the tokenizer adds one, and only the second
 * half scored (rows ctx/2 .. ctx-2).
 */
#ifndef ASSAY_INFER_SCORE_H
#define ASSAY_INFER_SCORE_H

#include "infer/lm.h"

struct score_options {
    int64_t ctx, stride; /* stride 0: ctx */
    bool llama_windows;
    const volatile int *interrupted;
    void (*on_window)(void *ctx, int64_t done, int64_t all); /* or NULL */
    void *ctx_user;
};

struct score_window {
    int64_t start, n, n_scored;
    double nll; /* natural log, summed in order of position */
};

struct score_result {
    struct score_window *windows; /* score_free */
    int64_t n_windows, n_tokens, n_scored;
    double nll, perplexity; /* exp(nll / n_scored) */
};

/* ids: the whole text with BOS if the tokenizer adds one. */
MUST_USE enum err_code score_ids(struct lm *m, const int32_t *ids, int64_t n,
                                 const struct score_options *o, struct score_result *res,
                                 struct err *e);
void score_free(struct score_result *res);

#endif
