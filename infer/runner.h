/* runner.h: requests in, tokens out: continuous batching over one engine.
 *
 * Joins the pure parts (sched, kv, sample) with the engine. The caller submits requests, calls
 * runner_step until it says that nothing is left, and gets callbacks; callbacks of one request come
 * in order. What a request gets does not depend on the others.
 */
#ifndef ASSAY_INFER_RUNNER_H
#define ASSAY_INFER_RUNNER_H

#include "infer/engine.h"
#include "infer/sample.h"
#include "infer/tokenizer.h"

struct runner;

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };

struct request {
    const int32_t *prompt; /* copied */
    int64_t n_prompt;
    int64_t max_tokens;
    struct sampling sampling;
    uint8_t stream_key[32];  /* SHA-256 of custom_id */
    const int32_t *stop_ids; /* copied; a stop id ends the answer and is not part of its text */
    int n_stop_ids;
    const char *const *stop; /* copied; the answer ends before the first of these strings */
    int n_stop;
    int top_k;        /* top log-probabilities to report, 0..engine top_k */
    bool want_logits; /* on_row gets whole rows */
    /* Teacher-forced: every row from score_from on is given to on_row, nothing is sampled.
     * -1: off. Row i predicts prompt[i + 1]. */
    int64_t score_from;
};

/* One row of logits that was used: a sampled token, or a scored position. */
struct row_info {
    int64_t pos;   /* position of the token chosen or scored */
    int32_t id;    /* that token */
    float logprob; /* of id, natural log, from the raw logits */
    float margin;  /* best minus second logit, raw */
    float lse;     /* log-sum-exp of the row */
    int32_t best;  /* raw argmax */
    uint64_t hash;
    int n_top;
    const int32_t *top_id;
    const float *top_logprob;
    const float *logits; /* or NULL */
};

struct runner_events {
    /* text: bytes of the answer that are now certain (may be empty). A stop id is given too, with
     * no text of its own. Callbacks may submit requests. */
    void (*on_token)(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len);
    void (*on_row)(void *user, void *req_user, const struct row_info *row); /* scoring */
    void (*on_done)(void *user, void *req_user, enum finish_reason why, const char *tail_text,
                    size_t len);
    /* When set: the hash of every operation's output row for the token at `pos` (trace level
     * layers), in the order of the operations; layer -1 is outside the layers. Tokens whose pages
     * are shared are not computed, and not given. */
    void (*on_layer)(void *user, void *req_user, int64_t pos, int layer, const char *op,
                     uint64_t hash);
};

struct runner_options {
    int chunk;      /* most prompt tokens of one piece; 0: the engine's batch_tokens */
    int batch;      /* most requests of a step; 0: the engine's batch_seqs */
    bool no_prefix; /* do not share prefixes */
    bool shuffle;   /* pieces of a step in another order: invariance */
    struct runner_events events;
    void *user;
};

/* tok may be NULL when no text is wanted (no stop strings, empty texts). */
MUST_USE enum err_code runner_new(struct runner **r, struct engine *en, const struct tokenizer *tok,
                                  const struct runner_options *o, struct err *e);
void runner_free(struct runner *r);
/* ERR_INPUT when prompt and answer cannot fit the context (both numbers are said). */
MUST_USE enum err_code runner_submit(struct runner *r, const struct request *req, void *req_user,
                                     struct err *e);
/* Runs one step. *busy is false when nothing is left. */
MUST_USE enum err_code runner_step(struct runner *r, bool *busy, struct err *e);
/* Requests submitted and not done: the caller keeps a window of them, so memory is bounded. */
int runner_pending(const struct runner *r);

struct runner_stats {
    uint64_t steps, prompt_tokens, shared_tokens, new_tokens, preempted;
};
struct runner_stats runner_get_stats(const struct runner *r);

#endif
