/* tok_added.h: added tokens: texts that become their id before anything else happens.
 *
 * Two sets: those matched in the raw text and those (normalized) matched in the normalized text,
 * their own text normalized likewise. Matching is leftmost, then longest. Control tokens (special
 * ones, and those that tok_added_guard names) are formed by trusted text only.
 */
#ifndef ASSAY_INFER_TOK_ADDED_H
#define ASSAY_INFER_TOK_ADDED_H

#include "infer/tok_norm.h"
#include "infer/tok_vocab.h"

#define TOK_ADDED_BYTES_MAX 4096 /* of one added token: a search at one place is bounded by it */

struct tok_added_token {
    size_t off, len; /* what is looked for, in blob */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special, guarded;
};

struct tok_added_set {
    struct tok_added_entry *v; /* sorted by bytes */
    size_t n;
    size_t first[257]; /* entries whose first byte is b: from first[b] to first[b + 1] */
};

struct tok_added {
    struct tok_added_token *tokens; /* in the file's order */
    size_t n, cap;
    struct strbuf blob;
    struct tok_added_set raw, normalized;
    int32_t *by_id; /* index of the token with this id, or -1; n_ids long */
    int32_t n_ids;
    struct tok_regex *word; /* one word character; NULL: no token asks */
};

/* A walk over one text. */
struct tok_added_walk {
    struct tok_text text;
    struct tok_trust trust;
    size_t pos;  /* where the search goes on */
    size_t done; /* what the matches so far have used up */
};

struct tok_added_match {
    size_t start, end; /* with the white space that it swallows; start may lie before the last
                          match's end, then nothing lies between */
    int32_t id;
};

/* spec: the array 'added_tokens', null allowed. Names the ids in v. */
MUST_USE enum err_code tok_added_init(struct tok_added *a, const json_t *spec, struct tok_vocab *v,
                                      const struct tok_norm *norm, struct err *e);
void tok_added_free(struct tok_added *a);
/* Makes control tokens of the non-blank added tokens that occur in text. */
void tok_added_guard(struct tok_added *a, const struct tok_vocab *v, struct tok_text text);
bool tok_added_is_special(const struct tok_added *a, int32_t id);
/* Is it an added token that only trusted text may form? */
bool tok_added_is_control(const struct tok_added *a, int32_t id);
/* What the id decodes to: for a token that is matched in normalized text that text, as in the
 * library, else its own. s is NULL when there is no such id. */
struct tok_text tok_added_text(const struct tok_added *a, const struct tok_vocab *v, int32_t id);
/* Id of the added token with this text, or -1. */
int32_t tok_added_find(const struct tok_added *a, const struct tok_vocab *v, const char *s,
                       size_t len);
/* The next match of a set; false: none is left. */
MUST_USE enum err_code tok_added_next(const struct tok_added *a, const struct tok_added_set *set,
                                      struct tok_added_walk *w, struct tok_search *search,
                                      struct tok_added_match *m, bool *found, struct err *e);

#endif
