/* batch_status.h: OUT.status.json: how far a batch is, for people and monitors.
 *
 * Replaced by rename, at most once a second, and once at the end. Nothing reads it back: a status
 * that cannot be written is a warning and stops nothing.
 */
#ifndef ASSAY_INFER_BATCH_STATUS_H
#define ASSAY_INFER_BATCH_STATUS_H

#include "common/err.h"

struct batch_counts {
    uint64_t requests;                  /* of the input */
    uint64_t ok, failed;                /* answered so far, by this run or an earlier one */
    uint64_t kept;                      /* of them by an earlier run */
    uint64_t written;                   /* lines in OUT */
    uint64_t running;                   /* begun and not answered */
    uint64_t prompt_tokens, new_tokens; /* of this run */
};

struct batch_status;
/* ERR_USAGE when a file of that name is not a status. *stale: there is one, of a run that had not
 * said that it is done. */
MUST_USE enum err_code batch_status_check(const char *out, bool *stale, struct err *e);
MUST_USE enum err_code batch_status_new(struct batch_status **s, const char *out,
                                        const char *fingerprint, struct err *e);
/* state: "running", "done", "stopped", "failed"; every other one than running is written at once.
 */
void batch_status_set(struct batch_status *s, const char *state, const struct batch_counts *c);
void batch_status_free(struct batch_status *s);

/* Rates and the time left, from what was done in spans of time; pure. Zero it first. */
struct batch_pace {
    double requests, tokens, seconds; /* sums that halve in 20 s */
};
void batch_pace_add(struct batch_pace *p, double seconds, uint64_t requests, uint64_t tokens);
/* From the tokens a second, not the requests: long ones may lie together. Negative: not known. */
double batch_pace_left(const struct batch_pace *p, double tokens_per_request,
                       uint64_t requests_left);

#endif
