/* gates.h: evidence into verdicts. Pure: each gate sees what was measured, says what it comes to
 * and in which words. The order of judging and what runs at all is cell.c's.
 */
#ifndef ASSAY_JOBS_GATES_H
#define ASSAY_JOBS_GATES_H

#include "jobs/evidence.h"

/* What one run of a cell wrote, as one hash over answers and trace. */
struct hash_run {
    char label[48]; /* "run 2", "max-batch 1" */
    char hash[SHA256_HEX];
};

/* Runs that must be equal: any other hash is NONDETERMINISTIC, however many agree. */
void gate_repeat(const struct hash_run *runs, size_t n, struct judgement *j);
/* Other paths against the first run. */
void gate_invariance(const struct hash_run *first, const struct hash_run *paths, size_t n,
                     struct judgement *j);

/* Two traces as compare sees them. */
struct tokens_diff {
    bool same_bits, same_ids;
    int64_t answers, answers_same;
    char id[128]; /* the earliest parting of ids */
    int64_t token;
    double base_margin, now_margin; /* logits, NaN where an answer had ended */
};
MUST_USE enum err_code tokens_diff_read(struct tokens_diff *d, const char *report, struct err *e);

/* d NULL: no baseline. */
void gate_tokens(const struct tokens_diff *d, bool ids_only, struct judgement *j);

/* base NULL: no baseline; the figures are held against the limits of the file alone. */
MUST_USE enum err_code gate_quality(const struct sweep_quality *limits, const struct quality *base,
                                    const struct quality *now, struct judgement *j, struct err *e);

/* rounds and n as paired_speed takes them. */
MUST_USE enum err_code gate_speed(const struct speed_round *rounds, const size_t *n, size_t n_runs,
                                  struct judgement *j, struct err *e);

#endif
