/* measure.h: what two rows of logits, and two answers, say about each other. Pure.
 *
 * All sums are in double, in ascending order of the vocabulary, so that they repeat exactly.
 */
#ifndef ASSAY_EVALS_MEASURE_H
#define ASSAY_EVALS_MEASURE_H

#include "ckpt/trace.h"

#define MEASURE_TOP 5

/* What the token of a position is: control tokens of a prompt are its template's. */
enum position_role { ROLE_OF_ANSWER, ROLE_OF_USER, ROLE_OF_TEMPLATE, ROLE_OF_KINDS };

/* One teacher-forced position: both models saw the same tokens before it. */
struct position {
    int32_t record; /* of the reference's trace */
    int32_t index;  /* token of the answer */
    int32_t token;  /* what the reference chose */
    int32_t ref_best, var_best;
    float ref_margin, var_margin; /* best minus second logit */
    double kl, kl_rev;            /* KL(ref || var), KL(var || ref), in nats; >= 0 */
    double js;                    /* Jensen-Shannon divergence, in nats: 0 .. ln 2 */
    double ref_nll, var_nll;      /* of token */
    int32_t rank;                 /* of the reference's best in the variant, from 0 */
    int32_t top_shared; /* of the reference's MEASURE_TOP best, how many the variant has */
    enum position_role role;
    bool finite;    /* no NaN or Inf in either row; figures are 0 otherwise */
    bool same_bits; /* every logit has the same bits */
};

/* ref, var: [n] logits. scratch: 2 * n doubles. Fills all but record and index. */
void measure_position(const float *ref, const float *var, int64_t n, int32_t token, double *scratch,
                      struct position *p);

/* Free-running: where do two answers to one prompt part? */
struct parting {
    int64_t common;               /* equal tokens at the start */
    bool same_ids;                /* to the end, both ended alike */
    bool same_bits;               /* and every logit hash is equal */
    int32_t ref_token, var_token; /* at the parting; -1: that answer had ended */
    float ref_margin, var_margin; /* there; NaN where the answer had ended */
};
/* Insertions, deletions and replacements of tokens that make one answer of the other; -1 when it
 * would take more than 2^28 steps to say. Needs memory. */
MUST_USE enum err_code measure_edits(const struct trace_record *ref, const struct trace_record *var,
                                     int64_t *edits, struct err *e);
/* Where the answer's end begins to repeat a block of at most 64 tokens, three times or more and 16
 * tokens or more in all; n: it does not. */
size_t measure_loop(const struct trace_record *r);
struct parting measure_parting(const struct trace_record *ref, const struct trace_record *var);

#endif
