/* family_check.h: the tensors that a family must have, with their shapes. */
#ifndef ASSAY_CKPT_FAMILY_CHECK_H
#define ASSAY_CKPT_FAMILY_CHECK_H

#include "ckpt/checkpoint.h"

/* ERR_INPUT naming the first weight that is missing, of another shape than the hyperparameters
 * say, or not the family's. Needs hyperparameters that could be read. */
MUST_USE enum err_code family_check_weights(const struct checkpoint *c, struct err *e);

/* Calls visit for every tensor that a model with these hyperparameters has, before there is one. */
typedef void (*family_visit)(void *ctx, const char *name, int n_dim, const int64_t *dim);
void family_list(const struct hparams *hp, family_visit visit, void *ctx);

#endif
