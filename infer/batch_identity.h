/* batch_identity.h: what decides the bytes of a batch's output but its prompt file, field by field.
 */
#ifndef ASSAY_INFER_BATCH_IDENTITY_H
#define ASSAY_INFER_BATCH_IDENTITY_H

#include "infer/batch.h"

/* An object of strings: build, model, arith, tokenizer, template, each setting, weights; runs whose
 * objects are equal answer a line with the same bytes. NULL: out of memory. */
json_t *batch_identity(const struct lm *m, const struct batch_options *o);
/* SHA-256 hex of the settings alone, for traces. */
MUST_USE enum err_code batch_identity_settings(const struct batch_options *o, char hex[65],
                                               struct err *e);

#endif
