/* kernels_record.h: a kern that computes nothing: it says which bytes each operation reads and
 * writes. A dry run of a forward pass over made-up addresses gives the lifetime of every buffer.
 */
#ifndef ASSAY_KERNELS_KERNELS_RECORD_H
#define ASSAY_KERNELS_KERNELS_RECORD_H

#include "kernels/kernels.h"

struct kern_span {
    const void *at; /* never dereferenced */
    size_t bytes;   /* a lower bound where rows are picked by number */
};

#define KERN_SPANS_MAX 8
struct kern_access {
    const char *op; /* "linear"; "row_hash" too, which is no part of a step */
    struct kern_span read[KERN_SPANS_MAX], write[KERN_SPANS_MAX];
    int n_read, n_write; /* spans that overlap are one */
};

typedef void (*kern_on_access)(void *ctx, const struct kern_access *a);

/* Weights are loaded as shapes alone; copies and fills do nothing. kern_record_close ends it. */
MUST_USE enum err_code kern_record_open(struct kern **k, enum kern_arith arith, kern_on_access fn,
                                        void *ctx, struct err *e);
void kern_record_close(struct kern *k);

#endif
