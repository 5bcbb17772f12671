/* batch_table.h: what is known of every request of a run: 16 bytes each. Pure.
 *
 * Records are applied in the order of the journal; the last word on a request wins. With the sums
 * of the input (census.h) that makes 20 bytes a request, 200 MB for ten million.
 */
#ifndef ASSAY_INFER_BATCH_TABLE_H
#define ASSAY_INFER_BATCH_TABLE_H

#include "infer/batch_journal.h"
#include "infer/census.h"

enum batch_place {
    BATCH_NOWHERE, /* not answered */
    BATCH_EARLY,   /* its output line waits in the journal */
    BATCH_IN_OUT
};

#define BATCH_DEATHS_MAX 2 /* then a request is set aside */

struct batch_line {
    uint64_t at : 48;    /* where its output line begins, in OUT or in the journal */
    uint64_t place : 2;  /* enum batch_place */
    uint64_t status : 2; /* enum batch_outcome */
    uint64_t deaths : 2; /* how often the process ended by it, at most BATCH_DEATHS_MAX */
    uint32_t len, sum;   /* of the output line with its "\n" */
};

struct batch_table {
    const struct census *in;
    struct batch_line *line; /* [in->n_requests] */
    /* Requests that began in the open session, some of them done since. */
    uint64_t *started;
    size_t n_started, cap_started;
};

MUST_USE enum err_code batch_table_new(struct batch_table *t, const struct census *in,
                                       struct err *e);
void batch_table_free(struct batch_table *t);

/* base: where the record's line begins in its file. ERR_INPUT when it is not about this input:
 * the request is said. HEAD changes nothing. */
MUST_USE enum err_code batch_table_apply(struct batch_table *t, const struct batch_rec *r,
                                         uint64_t base, struct err *e);
#endif
