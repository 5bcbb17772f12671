/* batch_out.h: the output file of a batch run: locked, growing by whole lines, resumable.
 *
 * `<out>.run` is one JSON object: what decides the bytes. A resume compares it field by field. Any
 * failed write cuts the file back to its last whole line.
 */
#ifndef ASSAY_INFER_BATCH_OUT_H
#define ASSAY_INFER_BATCH_OUT_H

#include "common/json.h"

struct batch_out;

/* identity: object of strings, borrowed; in the order of interest (the first difference is
 * named). Without resume an existing path is ERR_USAGE, unless force and `<path>.run` is ours.
 * *kept is the number of whole lines that stay. ERR_BUSY when another run holds the file. */
MUST_USE enum err_code batch_out_open(struct batch_out **b, const char *path,
                                      const json_t *identity, bool resume, bool force,
                                      uint64_t *kept, struct err *e);
/* custom_id of kept line n, checked against the input by the caller; NULL past the end. */
MUST_USE enum err_code batch_out_kept_id(struct batch_out *b, uint64_t n, char **custom_id,
                                         bool *failed, struct err *e);
MUST_USE enum err_code batch_out_line(struct batch_out *b, const char *line, size_t len,
                                      struct err *e);
MUST_USE enum err_code batch_out_close(struct batch_out *b, struct err *e);

#endif
