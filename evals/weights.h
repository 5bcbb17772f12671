/* weights.h: how far each tensor of a variant stands from the reference's. */
#ifndef ASSAY_EVALS_WEIGHTS_H
#define ASSAY_EVALS_WEIGHTS_H

#include "ckpt/checkpoint.h"

struct weight_error {
    char name[CKPT_NAME_MAX];
    enum ckpt_role role;
    int layer;
    uint64_t bytes;      /* of the variant's */
    double relative_rms; /* rms of the difference over the rms of the reference */
    double sqnr;         /* in dB: -20 log10 of it; infinite where they are equal */
};

/* Every tensor of the reference whose name and shape the variant has too, in the order of names.
 * *list is on the heap. */
MUST_USE enum err_code weights_compare(const struct checkpoint *ref, const struct checkpoint *var,
                                       int threads, struct weight_error **list, size_t *n,
                                       struct err *e);

#endif
