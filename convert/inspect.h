/* inspect.h: what a checkpoint is, as facts: kind, family, hyperparameters, files, tensors with
 * their formats, bytes by role, where it came from. Works on what cannot be run, too. */
#ifndef ASSAY_CONVERT_INSPECT_H
#define ASSAY_CONVERT_INSPECT_H

#include "ckpt/checkpoint.h"

struct inspect_options {
    bool hashes;                     /* SHA-256 of every file */
    bool grids;                      /* all of every float matrix for its grid, not some rows */
    const volatile int *interrupted; /* may be NULL */
};
/* A new reference. */
MUST_USE enum err_code inspect_checkpoint(const struct checkpoint *c,
                                          const struct inspect_options *o, json_t **out,
                                          struct err *e);
/* A file of tensors that is no checkpoint by itself; why: what stood against it. A new reference.
 */
MUST_USE enum err_code inspect_container(const struct container *c, const char *why,
                                         bool with_hashes, json_t **out, struct err *e);
/* A config.json by itself: the tensors that a model of it would have, as bf16. A new reference;
 * ERR_INPUT where the family or a key of it cannot be run. */
MUST_USE enum err_code inspect_config(const char *path, json_t **out, struct err *e);
/* The same facts for people. */
void inspect_text(const json_t *facts, struct strbuf *out);

#endif
