/* tok_regex.h: the regular expressions of a tokenizer.json, matched by PCRE2.
 *
 * The file's dialect is Oniguruma's (Ruby). The part of it that split patterns use is rewritten for
 * PCRE2 so that every match is the same; what would mean something else there is refused by name
 * when the file is opened. A compiled expression is immutable; each caller brings match data.
 */
#ifndef ASSAY_INFER_TOK_REGEX_H
#define ASSAY_INFER_TOK_REGEX_H

#include "infer/tok_util.h"

struct tok_regex;

/* Where a search stands; zero it before the first match in a text, and free `data` in the end
 * with tok_regex_search_free. It may be used again for another text and expression. */
struct tok_search {
    size_t start, end; /* the match */
    size_t from;       /* where the next search begins */
    bool matched;      /* there was a match before, which ended at `end` */
    void *data;
};

/* is_regex false: the text itself is searched for. */
MUST_USE enum err_code tok_regex_new(struct tok_regex **r, struct tok_text pattern, bool is_regex,
                                     struct err *e);
/* A pattern that is PCRE2's already (from tok_classes.h). */
MUST_USE enum err_code tok_regex_new_pcre(struct tok_regex **r, const char *pattern, struct err *e);
void tok_regex_free(struct tok_regex *r);

void tok_regex_begin(struct tok_search *s);
/* The next match in well-formed text, in the library's order: an empty match right after another
 * match is passed over. *found says whether there was one. Work is bounded: ERR_INPUT when the
 * pattern backtracks without end. */
MUST_USE enum err_code tok_regex_next(const struct tok_regex *r, struct tok_search *s,
                                      const char *text, size_t len, bool *found, struct err *e);
void tok_regex_search_free(struct tok_search *s);

#endif
