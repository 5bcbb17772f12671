/* quantize.h: a plan made into a folder: tensors, config, tokenizer, manifest, then the rename.
 * quantize and convert both end here. */
#ifndef ASSAY_QUANT_QUANTIZE_H
#define ASSAY_QUANT_QUANTIZE_H

#include "quant/pack.h"

struct quantize_job {
    const struct plan *plan;
    const char *out;         /* folder; must not exist unless force */
    const char *command;     /* for the manifest */
    json_t *options;         /* for the manifest; borrowed; may be NULL */
    const char *torch_dtype; /* for config.json; NULL: the source's */
    bool force;              /* replace a folder that has our manifest */
    bool verify;             /* reopen and re-derive before the rename */
    struct pack_options pack;
};

struct quantize_summary {
    uint64_t bytes;            /* of the tensor files */
    size_t n_exact, n_tensors; /* weights whose every value equals the source's */
    size_t worst;              /* plan item with the largest relative RMS error */
    double worst_rel_rms;
};

/* On any error no folder of that name appears. */
MUST_USE enum err_code quantize_run(const struct quantize_job *j, struct quantize_summary *s,
                                    struct err *e);

#endif
