/* hparams_rope.h: what hparams.c reads of rope, once head sizes and windows are known. */
#ifndef ASSAY_CKPT_HPARAMS_ROPE_H
#define ASSAY_CKPT_HPARAMS_ROPE_H

#include "ckpt/hparams.h"

/* What a family takes where its config says nothing. */
struct rope_defaults {
    double theta;      /* 0: 10000 */
    bool two;          /* full layers turn by rope_theta, sliding ones by rope_local_base_freq */
    bool proportional; /* full layers: ROPE_PROPORTIONAL */
    const struct rope_params *unsaid; /* where neither rope key is there; NULL: no scaling */
};

/* Sets rope, rope_sliding and two_ropes. */
MUST_USE enum err_code hparams_read_rope(struct hparams *hp, const json_t *o,
                                         const struct rope_defaults *d, struct err *e);

#endif
