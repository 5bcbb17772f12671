/* verify.h: opens a folder that quantize or convert wrote, as any reader would, and derives all of
 * it again from the source: every byte of codes, scales, biases and dense values, every hash, every
 * error figure (from the decoded output, not from the encoder). */
#ifndef ASSAY_QUANT_VERIFY_H
#define ASSAY_QUANT_VERIFY_H

#include "quant/pack.h"

/* ERR_NEGATIVE with the first difference, by tensor; ERR_INPUT when the folder does not open. */
MUST_USE enum err_code verify_folder(const struct plan *p, const char *dir,
                                     const struct pack_options *o, struct err *e);

#endif
