/* plan_text.h: a plan for people and for programs: every tensor's decision, and the totals. */
#ifndef ASSAY_QUANT_PLAN_TEXT_H
#define ASSAY_QUANT_PLAN_TEXT_H

#include "quant/plan.h"

/* A table: name, source, target, rule's line, bytes, bits per weight; notes under their tensor. */
void plan_text_put(const struct plan *p, struct strbuf *out);
/* The same facts as one object; a new reference, NULL: out of memory. */
json_t *plan_text_json(const struct plan *p);

#endif
