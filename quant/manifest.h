/* manifest.h: assay.json, what a packed checkpoint says about its making.
 *
 * No clock, no path, no machine: equal sources and recipe give equal bytes. docs/formats.md has the
 * keys. Error figures are rounded to 6 digits; a figure that is infinite (SQNR of an exact tensor)
 * is null.
 */
#ifndef ASSAY_QUANT_MANIFEST_H
#define ASSAY_QUANT_MANIFEST_H

#include "quant/pack.h"

#define MANIFEST_NAME "assay.json"

struct manifest_facts {
    const char *command; /* "quantize", "convert" */
    const struct plan *plan;
    const struct pack_result *result;
    const struct pack_file *others; /* config.json and so on */
    size_t n_others;
    json_t *options; /* what shaped the bytes beside a recipe; NULL: nothing */
};

/* A new reference. */
MUST_USE enum err_code manifest_make(const struct manifest_facts *f, json_t **out, struct err *e);
MUST_USE enum err_code manifest_write(const struct manifest_facts *f, const char *dir,
                                      struct err *e);
/* {"relative_rms": ..., "max": ..., "sqnr_db": ..., "cosine": ...}; a new reference or NULL. */
json_t *manifest_figures(const struct errstat_figures *f);

#endif
