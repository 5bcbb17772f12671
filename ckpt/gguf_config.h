/* gguf_config.h: the keys of a GGUF as the config.json that its model would have. */
#ifndef ASSAY_CKPT_GGUF_CONFIG_H
#define ASSAY_CKPT_GGUF_CONFIG_H

#include "ckpt/container.h"

/* files: all parts; the first holds the keys. *out is a new reference. */
MUST_USE enum err_code gguf_config_make(struct container *const *files, size_t n_files,
                                        json_t **out, struct err *e);

#endif
