/* tok_classes.h: character classes as the tokenizers library has them, written for PCRE2.
 *
 * The library's regular expressions follow newer Unicode tables than PCRE2's, so a class is PCRE2's
 * own plus the code points that it lacks. Exact for PCRE2 10.42 and tokenizers 0.23.
 */
#ifndef ASSAY_INFER_TOK_CLASSES_H
#define ASSAY_INFER_TOK_CLASSES_H

#include "common/str.h"

/* Appends what stands between [ and ] for \p{name}; false: a class that is not known exactly. */
bool tok_classes_put(struct strbuf *out, const char *name, size_t len);
/* True when PCRE2 has the very members, so that \P{name} can stand in a class too. */
bool tok_classes_same(const char *name, size_t len);
/* \s, or \S, as members. PCRE2's own \s has U+180E, which is no white space. */
void tok_classes_put_spaces(struct strbuf *out, bool complement);
void tok_classes_put_digits(struct strbuf *out); /* members: what Digits splits at */
void tok_classes_put_word(struct strbuf *out);   /* members: \w of added tokens and Whitespace */
void tok_classes_put_punct(struct strbuf *out);  /* a pattern for one character of Punctuation */

#endif
