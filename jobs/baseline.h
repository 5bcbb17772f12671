/* baseline.h: what somebody accepted, cell by cell. Nothing accepts itself: a baseline is made by
 * `sweep accept` alone, with a reason, and remembers what it changed.
 */
#ifndef ASSAY_JOBS_BASELINE_H
#define ASSAY_JOBS_BASELINE_H

#include "jobs/store.h"

#define BASELINE_FORM 1 /* of what a baseline's rows and objects mean */

struct baseline {
    int64_t id, run, accepted; /* id 0: none yet */
    char why[1000];
    struct store_cell *cells; /* heap */
    size_t n;
};

/* The latest. One of another form is ERR_INPUT. */
MUST_USE enum err_code baseline_read(struct store *s, struct baseline *b, struct err *e);
void baseline_free(struct baseline *b);
const struct store_cell *baseline_find(const struct baseline *b, const char *name);

struct baseline_change {
    const char *cell;
    const char *what;      /* "trace", "kl", "new cell", "gone", or "left out" */
    const char *old, *now; /* "left out": why in now */
};

/* Accepts the cells of the newest run whose names match `glob`; the others stay as they were
 * accepted before. A cell that is broken, missing, skipped or does not repeat is left out, and
 * when that leaves nothing the answer is ERR_NEGATIVE. `on_change` is told everything that becomes
 * of it, in the order of the run. */
MUST_USE enum err_code
baseline_accept(struct store *s, const char *glob, const char *why, int64_t when,
                void (*on_change)(void *ctx, const struct baseline_change *c), void *ctx,
                struct err *e);

#endif
