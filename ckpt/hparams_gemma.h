/* hparams_gemma.h: what the Gemma families read beside the keys that all families have. */
#ifndef ASSAY_CKPT_HPARAMS_GEMMA_H
#define ASSAY_CKPT_HPARAMS_GEMMA_H

#include "ckpt/hparams.h"

MUST_USE enum err_code hparams_read_gemma2(struct hparams *hp, const json_t *o, struct err *e);
MUST_USE enum err_code hparams_read_gemma3(struct hparams *hp, const json_t *o, struct err *e);
/* Needs the layers that slide; makes the last one a full layer, as transformers does. */
MUST_USE enum err_code hparams_read_gemma4(struct hparams *hp, const json_t *o, struct err *e);

#endif
