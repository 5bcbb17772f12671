/* trace.h: the file that says what a run did, token by token.
 *
 * The first line is the header: what decides the bits. Then one line of JSON per answer, and at
 * level layers one line per token with the hash of every operation's output. The arrays over an
 * answer's tokens stand in its line (a name that ends in .jsonl or .jsonl.gz) or in a block of
 * binary behind it (any other name, such as .trace.gz): a fifth of the bytes and of the time to
 * read. gzip when the name ends in .gz. No clock, no path: equal runs give equal traces
 * (docs/formats.md). Readers tell both forms by their content.
 */
#ifndef ASSAY_CKPT_TRACE_H
#define ASSAY_CKPT_TRACE_H

#include "common/json.h"

#define TRACE_VERSION 2
#define TRACE_TOP_MAX 20

enum trace_level { TRACE_TOKENS, TRACE_LAYERS };

struct trace_header {
    char model[256]; /* base name */
    char arith[16];
    char fingerprint[65]; /* of all that decides an answer but its request */
    char tokenizer[65], chat_template[65], prompts[65]; /* SHA-256 hex */
    char settings[65]; /* of what requests start from; empty: not said */
    char build[32];    /* program and version that ran it; empty: not said */
    int64_t n_vocab;   /* logits of a row; 0: not said, and no full rows */
    enum trace_level level;
    int top_k;
};

struct trace_token {
    int32_t id;
    float logprob, margin, lse; /* lse: log-sum-exp of the row; NaN: not known */
    uint64_t hash;
    int n_top;
    int32_t top_id[TRACE_TOP_MAX];
    float top_logprob[TRACE_TOP_MAX];
    uint16_t *full; /* heap: the row's n_vocab logits, f16; or NULL */
};

struct trace_record {
    char *custom_id;
    int turn;
    char prompt[65]; /* SHA-256 hex of the prompt's ids, little-endian i32 */
    int32_t *prompt_ids;
    int64_t n_prompt;
    char finish[8];
    char *text;
    size_t text_len;
    struct trace_token *tok;
    size_t n;
};
void trace_record_free(struct trace_record *r);

/* SHA-256 hex of a prompt's ids, as records carry it. */
void trace_prompt_hash(const int32_t *ids, size_t n, char hex[65]);

struct trace_writer; /* the form is told by the path's name */
/* Existing path: ERR_USAGE unless replace. Appears whole on close, by rename. */
MUST_USE enum err_code trace_writer_open(struct trace_writer **w, const char *path,
                                         const struct trace_header *h, bool replace, struct err *e);
MUST_USE enum err_code trace_writer_record(struct trace_writer *w, const struct trace_record *r,
                                           struct err *e);
/* One token's operations: names and hashes in the order they ran. */
struct trace_layer_op {
    int layer;
    const char *op;
    uint64_t hash;
};
MUST_USE enum err_code trace_writer_layers(struct trace_writer *w, const char *custom_id, int turn,
                                           int64_t pos, const struct trace_layer_op *ops, size_t n,
                                           struct err *e);
MUST_USE enum err_code trace_writer_close(struct trace_writer *w, struct err *e);
void trace_writer_abort(struct trace_writer *w);

struct trace {
    struct trace_header head;
    struct trace_record *records; /* in the order of the file */
    size_t n;
};
/* True when the file's first line is that of a trace. */
bool trace_is(const char *path);
/* Layer lines are checked and passed over. */
MUST_USE enum err_code trace_read(struct trace **t, const char *path, struct err *e);
void trace_free(struct trace *t);

#endif
