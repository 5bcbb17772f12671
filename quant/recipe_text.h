/* recipe_text.h: a recipe back to YAML: what a tool proposes must be what quantize reads. */
#ifndef ASSAY_QUANT_RECIPE_TEXT_H
#define ASSAY_QUANT_RECIPE_TEXT_H

#include "quant/recipe.h"

/* "why: ..." and "rules:"; why is one line. */
void recipe_text_head(struct strbuf *out, const char *why);
/* One item of the rules. Parsing it again gives the same rule but for its line. */
void recipe_text_rule(struct strbuf *out, const struct recipe_rule *r);

#endif
