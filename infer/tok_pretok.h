/* tok_pretok.h: the pre-tokenizers of a tokenizer.json: where a text is cut before merging.
 *
 * Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit and sequences of
 * them. Every cut is a regular expression with one of the library's five behaviours. Anything else
 * is refused by name.
 */
#ifndef ASSAY_INFER_TOK_PRETOK_H
#define ASSAY_INFER_TOK_PRETOK_H

#include "infer/tok_regex.h"

struct tok_pretok {
    struct tok_pretok_op *ops;
    size_t n, cap;
};

struct tok_piece {
    size_t off, len;
    bool first; /* begins where the whole text begins */
};

/* Pieces of `text`, in order, none of them empty. */
struct tok_pieces {
    struct strbuf text;
    struct tok_piece *v;
    size_t n, cap;
};

/* One caller's work space; zero it before the first use. */
struct tok_pretok_scratch {
    struct tok_pieces a, b;
    struct tok_cut *cuts;
    size_t n_cuts, cuts_cap;
    struct tok_search search;
    struct strbuf text;
};

/* spec: the value of 'pre_tokenizer', null allowed. */
MUST_USE enum err_code tok_pretok_init(struct tok_pretok *p, const json_t *spec, struct err *e);
void tok_pretok_free(struct tok_pretok *p);
/* *out points into the scratch until the next call. */
MUST_USE enum err_code tok_pretok_run(const struct tok_pretok *p, struct tok_pretok_scratch *s,
                                      struct tok_text in, bool first, const struct tok_pieces **out,
                                      struct err *e);
void tok_pretok_scratch_free(struct tok_pretok_scratch *s);

#endif
