/* hparams_moe.h: what hparams.c reads of families with experts, once dims are known. */
#ifndef ASSAY_CKPT_HPARAMS_MOE_H
#define ASSAY_CKPT_HPARAMS_MOE_H

#include "ckpt/hparams.h"

MUST_USE enum err_code hparams_read_mixtral(struct hparams *hp, const json_t *o, struct err *e);
MUST_USE enum err_code hparams_read_qwen3_moe(struct hparams *hp, const json_t *o, struct err *e);
MUST_USE enum err_code hparams_read_gpt_oss(struct hparams *hp, const json_t *o, struct err *e);

#endif
