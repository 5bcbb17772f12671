/* gguf_keys.h: the keys that a GGUF of a family must have. */
#ifndef ASSAY_CKPT_GGUF_KEYS_H
#define ASSAY_CKPT_GGUF_KEYS_H

#include "ckpt/gguf.h"

/* ERR_INPUT names the first that is missing, as the file would spell it. */
MUST_USE enum err_code gguf_keys_need(const struct gguf_meta *m, const char *arch,
                                      const char *family, struct err *e);

#endif
