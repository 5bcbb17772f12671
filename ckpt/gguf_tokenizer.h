/* gguf_tokenizer.h: the vocabulary of a GGUF as tokenizer.json and tokenizer_config.json. */
#ifndef ASSAY_CKPT_GGUF_TOKENIZER_H
#define ASSAY_CKPT_GGUF_TOKENIZER_H

#include "ckpt/gguf.h"
#include "common/str.h"

/* Appends the text of a tokenizer.json and gives the tokenizer_config (a new reference). Without a
 * vocabulary nothing is appended and *config is NULL. */
MUST_USE enum err_code gguf_tokenizer_make(const struct gguf_meta *m, struct strbuf *out,
                                           json_t **config, struct err *e);

#endif
