/* self_private.h: what the parts of the self-comparison share: prompts, ways, and what a run says.
 */
#ifndef ASSAY_EVALS_SELF_PRIVATE_H
#define ASSAY_EVALS_SELF_PRIVATE_H

#include "evals/self.h"

/* ---- self_prompts.c: one entry for each answer; later turns hold the model's own answers ------
 */
struct self_prompt {
    struct prompt_request *req; /* of all its turns; owned by turn 0 */
    int turn;
    struct token_list tokens;
};
struct self_prompts {
    struct self_prompt *list;
    size_t n, cap;
    int64_t longest; /* tokens of the longest prompt */
};
MUST_USE enum err_code self_prompts_read(struct self_prompts *p, struct lm *m,
                                         const struct self_options *o, struct err *e);
void self_prompts_free(struct self_prompts *p);

/* ---- self_log.c: every row of logits, and with `traced` every operation's output row ----------
 */
struct self_row {
    int32_t id; /* the token chosen */
    uint64_t hash;
};
struct self_op {
    int32_t pos, layer;
    const char *name;
    uint64_t hash;
};
struct self_record {
    struct self_row *row;
    struct self_op *op; /* in the order they ran */
    size_t n_rows, cap_rows, n_ops, cap_ops;
};
#define SELF_OPS_MAX ((size_t)1 << 24) /* operations that one log keeps: 400 MB */
struct self_log {
    struct self_record *record; /* one for each answer */
    size_t n, n_ops;
    bool failed; /* memory ran out */
};
MUST_USE enum err_code self_log_init(struct self_log *l, size_t n, struct err *e);
void self_log_free(struct self_log *l);
void self_log_row(struct self_log *l, size_t record, int32_t id, uint64_t hash);
void self_log_op(struct self_log *l, size_t record, int64_t pos, int layer, const char *name,
                 uint64_t hash);
/* The first row that differs, in order of the answers. False: all are the same. */
bool self_log_differ(const struct self_log *base, const struct self_log *other, size_t *record,
                     size_t *row);
/* The first operation that differs at the earliest position of a record, among those that both
 * have. Sorts the operations. False: none does. */
bool self_log_narrow(struct self_record *base, struct self_record *other,
                     const struct self_op **at);

/* ---- ways of running ------------------------------------------------------------------------- */
struct self_way {
    char name[48];
    struct engine_options engine;
    int batch, chunk, passes; /* as runner_options; passes over the prompts, 0: 1 */
    bool reverse, shuffle, share;
    int width; /* > 0: answers are fed in blocks of so many tokens, by hand */
    bool nan;  /* fed by hand between rows that are NaN */
    bool load; /* another kern of load_device works all the time */
    const char *load_device;
    bool poison; /* buffers are NaN before the run */
};

struct self_run_result {
    uint64_t shared_tokens;
};

/* self_run.c: through the runner, as infer does. */
MUST_USE enum err_code self_run_batch(struct lm *m, const struct self_prompts *p,
                                      const struct self_way *w, const struct self_options *o,
                                      bool traced, struct self_log *log,
                                      struct self_run_result *res, struct err *e);
/* self_feed.c: by hand, the base's own tokens, one answer after the other. */
MUST_USE enum err_code self_run_feed(struct lm *m, const struct self_prompts *p,
                                     const struct self_way *w, const struct self_options *o,
                                     const struct self_log *base, bool traced, struct self_log *log,
                                     struct err *e);

/* self_load.c: a second kern that works until it is told to stop. */
struct self_load;
MUST_USE enum err_code self_load_start(struct self_load **l, const char *device, struct err *e);
/* How many rounds it did; frees l. NULL is fine. */
MUST_USE enum err_code self_load_stop(struct self_load *l, uint64_t *rounds, struct err *e);

#endif
