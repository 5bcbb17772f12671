/* self.h: one model held against itself, switch by switch (docs/compare.md).
 *
 * A base run answers the prompts cold, all together, in the backend's usual way. Each cell then
 * turns one switch of docs/numerics.md's invariances and compares every row of logits with the
 * base's, and the output rows of every operation by the hashes of trace level layers: what differs
 * is narrowed to the first operation that does. On a device the hashes make each operation wait, so
 * every way also runs without them. What this device cannot do is NOT RUN with the reason, and is
 * never a pass.
 */
#ifndef ASSAY_EVALS_SELF_H
#define ASSAY_EVALS_SELF_H

#include "infer/lm.h"
#include "infer/prompts.h"
#include "infer/runner.h"

enum self_state { SELF_SAME, SELF_DIFFERS, SELF_NOT_RUN };

/* Where a cell first differs. */
struct self_place {
    char custom_id[96];
    int turn;
    int64_t token; /* of the answer: the first whose row of logits differs; -1: none does */
    bool narrowed; /* the rest is known; else the difference did not come back under the trace */
    int64_t pos;   /* token of the sequence */
    int layer;     /* -1: outside the layers */
    char op[32];
};

struct self_cell {
    const char *name; /* "repeat", "batch", ... */
    char ways[160];   /* what was run: "1, 2 and 5 requests a step" */
    enum self_state state;
    char why[200]; /* SELF_NOT_RUN */
    char way[48];  /* SELF_DIFFERS: which of them */
    struct self_place at;
};

#define SELF_CELLS 16
struct self_report {
    char model[128], arith[16], device[32], fingerprint[65], prompts[65];
    uint64_t n_answers, n_rows, n_ops; /* rows of logits; output rows of operations */
    bool ops_cut; /* the memory for operations was spent: later ones are not compared */
    struct self_cell cell[SELF_CELLS];
    int n_cells, n_same, n_differ, n_not_run;
};

struct self_options {
    const char *path, *prompts;
    struct engine_options engine;
    struct prompt_defaults defaults;
    bool special;
    int repeats;        /* of the base; 0: 3 */
    const char *cells;  /* "batch,chunk": those alone; NULL: all */
    uint64_t max_lines; /* of the prompt file; 0: all */
    const volatile int *interrupted;
    lm_on_plan on_plan;
    void (*on_cell)(void *ctx, const char *cell, const char *way);
    void *ctx;
    /* Tests: plant faults. Before each run of a way; with each runner, before it runs. */
    void (*before_way)(void *ctx, const char *cell);
    void (*on_runner)(void *ctx, struct runner *r);
};

/* ERR_OK whatever the cells say. ERR_INPUT when a prompt cannot be answered, ERR_USAGE for a cell
 * that there is not. */
MUST_USE enum err_code self_run(struct self_report *r, const struct self_options *o, struct err *e);

void self_table(const struct self_report *r, struct strbuf *out); /* for people */
void self_json(const struct self_report *r, struct strbuf *out);  /* docs/formats.md */

#endif
