/* reply.h: answers as they are collected, and the output lines made of them.
 *
 * An output line is an OpenAI batch response. There is no clock and no random id in it: `created`
 * is 0, ids are hashes of custom_id, fingerprint and output, so that equal runs give equal bytes.
 */
#ifndef ASSAY_INFER_REPLY_H
#define ASSAY_INFER_REPLY_H

#include "infer/lm.h"
#include "infer/prompts.h"
#include "infer/runner.h"

struct answer_token {
    int32_t id;
    float logprob, margin, lse;
    uint64_t hash;
    int n_top;
    int32_t top_id[PROMPT_TOP_MAX];
    float top_logprob[PROMPT_TOP_MAX];
    uint16_t *full; /* heap: the row's logits in f16, or NULL */
};

/* One turn's answer. Owns its arrays; answer_reset frees. */
struct answer {
    struct strbuf text;
    struct answer_token *tok;
    size_t n, cap;
    int64_t n_prompt;
    enum finish_reason why;
};
MUST_USE bool answer_push(struct answer *a, const struct row_info *row);
/* Keeps the whole row of the token last pushed. */
MUST_USE bool answer_keep_row(struct answer *a, const float *logits, int64_t n_vocab);
void answer_reset(struct answer *a);
const char *finish_name(enum finish_reason why); /* "stop", "length" */

struct reply_model {
    const char *name;        /* base name of the model's path */
    const char *fingerprint; /* lm's */
    const char *arith;
    const struct tokenizer *tok;
};

/* Appends one line with its end. One choice per answer: turn n is index n. */
MUST_USE enum err_code reply_line(struct strbuf *out, const struct reply_model *m,
                                  const struct prompt_request *r, const struct answer *answers,
                                  size_t n, struct err *e);
/* Appends the line of a scored prompt: {"custom_id", "score": {"ids", "logprobs", ...}}. Answer's
 * tokens are the prompt's own from the second on. */
MUST_USE enum err_code reply_score(struct strbuf *out, const struct reply_model *m,
                                   const struct prompt_request *r, const struct answer *a,
                                   struct err *e);
/* Appends the error line of a request that was refused. */
void reply_error(struct strbuf *out, const struct reply_model *m, const struct prompt_request *r,
                 enum err_code code, const char *text);

#endif
