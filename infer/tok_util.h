/* tok_util.h: what the tokenizer's files share: strings of a JSON value with their length, and
 * arrays that grow. */
#ifndef ASSAY_INFER_TOK_UTIL_H
#define ASSAY_INFER_TOK_UTIL_H

#include "common/err.h"
#include "common/json.h"
#include "common/str.h"

/* Bytes that belong to somebody else; may hold zeros. */
struct tok_text {
    const char *s;
    size_t len;
};

/* obj[key] as a string; ERR_INPUT names the key when it is missing or of another type. */
MUST_USE enum err_code tok_util_string(const json_t *obj, const char *key, struct tok_text *out,
                                       struct err *e);
/* obj["type"], terminated. */
MUST_USE enum err_code tok_util_type(const json_t *obj, const char **type, struct err *e);
/* {"String": x} or {"Regex": x}. */
MUST_USE enum err_code tok_util_pattern(const json_t *obj, struct tok_text *out, bool *regex,
                                        struct err *e);

/* Makes room for `need` elements of `size` bytes; the array at *p and *cap grow by doubling. */
MUST_USE bool tok_util_grow(void *p, size_t *cap, size_t need, size_t size);
/* ERR_INPUT when a text of n bytes has grown to more than a file's rules may make of it: rules that
 * feed each other must not eat the memory. */
MUST_USE enum err_code tok_util_growth(size_t n, size_t grown, struct err *e);
/* Heap copy with an end; NULL when memory is out. */
char *tok_util_copy(struct tok_text t);

#endif
