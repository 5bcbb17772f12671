/* family_check.h: the tensors that a family must have, with their shapes. */
#ifndef ASSAY_CKPT_FAMILY_CHECK_H
#define ASSAY_CKPT_FAMILY_CHECK_H

#include "ckpt/checkpoint.h"

/* ERR_INPUT naming the first weight that is missing, of another shape than the hyperparameters
 * say, or not the family's. Needs hyperparameters that could be read. */
MUST_USE enum err_code family_check_weights(const struct checkpoint *c, struct err *e);

#endif
