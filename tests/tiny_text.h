/* tiny_text.h: a byte-level tokenizer and a chat template for tiny models. */
#ifndef ASSAY_TESTS_TINY_TEXT_H
#define ASSAY_TESTS_TINY_TEXT_H

#include "common/err.h"

/* Writes tokenizer.json (ids 0..255 are the bytes, 256 "th", 257 "the"; special: 258 <|end|>,
 * 259 <|user|>, 260 <|assistant|>), tokenizer_config.json with the template, and
 * generation_config.json with stop id 258, into a model's folder. */
MUST_USE enum err_code tiny_text_write(const char *dir, struct err *e);

#endif
