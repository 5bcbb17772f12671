/* tok_norm.h: the normalizers of a tokenizer.json: NFC, Replace, Prepend and sequences of them.
 *
 * Text may carry a map of trust, one byte a byte of text; what a normalizer makes out of several
 * bytes is trusted only when all of them were. Anything else is refused by name.
 */
#ifndef ASSAY_INFER_TOK_NORM_H
#define ASSAY_INFER_TOK_NORM_H

#include "infer/tok_regex.h"

/* Which bytes of a text may form control tokens: map[i] for byte i, or all alike. */
struct tok_trust {
    const char *map; /* NULL: `all` holds for every byte */
    bool all;
};

struct tok_norm {
    struct tok_norm_op *ops;
    size_t n, cap;
};

/* One caller's work space; zero it before the first use. */
struct tok_norm_scratch {
    struct strbuf text[2], trust[2];
    size_t n_in;  /* bytes of the text that came in */
    int32_t *cps; /* NFC */
    size_t n_cps, cps_cap;
    int32_t *sorted;
    size_t sorted_cap;
    struct tok_search search;
};

/* spec: the value of 'normalizer', null allowed. */
MUST_USE enum err_code tok_norm_init(struct tok_norm *n, const json_t *spec, struct err *e);
void tok_norm_free(struct tok_norm *n);
/* *out and *out_trust point into the scratch, or are the input where nothing was to do. */
MUST_USE enum err_code tok_norm_run(const struct tok_norm *n, struct tok_norm_scratch *s,
                                    struct tok_text in, struct tok_trust trust,
                                    struct tok_text *out, struct tok_trust *out_trust,
                                    struct err *e);
void tok_norm_scratch_free(struct tok_norm_scratch *s);

#endif
