/* json.h: strict JSON over jansson: bounded reads, typed getters that name the path, canonical
 * and ordered writing. Values are borrowed from their root; roots are freed with json_decref.
 */
#ifndef ASSAY_COMMON_JSON_H
#define ASSAY_COMMON_JSON_H

#include <jansson.h>

#include "common/err.h"
#include "common/str.h"

/* Parses text: duplicate keys refused, \u0000 allowed in strings, depth at most 2048, trailing text
 * refused, an integer outside of int64 becomes a real. The error carries line and column. *out is
 * a new reference. */
MUST_USE enum err_code json_parse(const char *text, size_t len, json_t **out, struct err *e);
/* A file of at most 1 GiB. */
MUST_USE enum err_code json_read(const char *path, json_t **out, struct err *e);

/* Typed getters: ERR_INPUT "key 'x.y': found a string, expected an integer". A missing or null key
 * leaves *out as it was and is fine, unless required. "x.y" is the key of that name or else the
 * key y of the object x. */
enum json_need { JSON_OPTIONAL, JSON_REQUIRED };
MUST_USE enum err_code json_get_int(const json_t *obj, const char *key, enum json_need need,
                                    int64_t lo, int64_t hi, int64_t *out, struct err *e);
MUST_USE enum err_code json_get_double(const json_t *obj, const char *key, enum json_need need,
                                       double lo, double hi, double *out, struct err *e);
MUST_USE enum err_code json_get_bool(const json_t *obj, const char *key, enum json_need need,
                                     bool *out, struct err *e);
MUST_USE enum err_code json_get_string(const json_t *obj, const char *key, enum json_need need,
                                       const char **out, struct err *e);
MUST_USE enum err_code json_get_object(const json_t *obj, const char *key, enum json_need need,
                                       json_t **out, struct err *e);
MUST_USE enum err_code json_get_array(const json_t *obj, const char *key, enum json_need need,
                                      json_t **out, struct err *e);

/* ERR_INPUT "unknown key 'tmperature' (line 3); did you mean 'temperature'?" when obj has a key
 * that is not in `known`. text/len (may be NULL) is the source, to find the line in. */
MUST_USE enum err_code json_only_keys(const json_t *obj, const char *const *known, size_t n,
                                      const char *text, size_t len, struct err *e);

/* Appends the value as compact JSON, keys in insertion order, doubles with the shortest digits that
 * round-trip. Flags are jansson's: JSON_SORT_KEYS (by bytes) and JSON_INDENT(n). */
void json_put(struct strbuf *b, const json_t *v, size_t flags);
void json_put_string(struct strbuf *b, const char *s, size_t len); /* quoted and escaped */
void json_put_double(struct strbuf *b, double v); /* null when not finite; "1.0", never "1" */

#endif
