/* trace.h: the file that says what a run did, token by token.
 *
 * JSON lines, gzip when the name ends in .gz. The first line is the header: what decides the bits.
 * Then one line per answer with arrays over its tokens, and at level layers one line per token with
 * the hash of every operation's output. No clock, no path: equal runs give equal traces
 * (docs/formats.md).
 */
#ifndef ASSAY_CKPT_TRACE_H
#define ASSAY_CKPT_TRACE_H

#include "common/json.h"

#define TRACE_VERSION 1
#define TRACE_TOP_MAX 20

enum trace_level { TRACE_TOKENS, TRACE_LAYERS };

struct trace_header {
    char model[256]; /* base name */
    char arith[16];
    char fingerprint[65]; /* of all that decides an answer but its request */
    char tokenizer[65], chat_template[65], prompts[65]; /* SHA-256 hex */
    enum trace_level level;
    int top_k;
};

struct trace_token {
    int32_t id;
    float logprob, margin;
    uint64_t hash;
    int n_top;
    int32_t top_id[TRACE_TOP_MAX];
    float top_logprob[TRACE_TOP_MAX];
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

struct trace_writer;
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
/* Layer lines are checked and passed over. */
MUST_USE enum err_code trace_read(struct trace **t, const char *path, struct err *e);
void trace_free(struct trace *t);

#endif
