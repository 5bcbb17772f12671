/* inspect_trace.h: what a trace holds, as facts: its header, and of each answer how long it is, how
 * it ended, how likely its tokens were and how near the nearest other choice was. */
#ifndef ASSAY_CONVERT_INSPECT_TRACE_H
#define ASSAY_CONVERT_INSPECT_TRACE_H

#include "ckpt/trace.h"

/* A new reference; name: for people, a base name. */
MUST_USE enum err_code inspect_trace(const struct trace *t, const char *name, json_t **out,
                                     struct err *e);
void inspect_trace_text(const json_t *facts, struct strbuf *out);

#endif
