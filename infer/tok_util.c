/* tok_util.c: see tok_util.h. */
#include "infer/tok_util.h"

#include <stdlib.h>

static const char *name_kind(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "object";
    case JSON_ARRAY:
        return "array";
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "boolean";
    default:
        return v ? "null" : "nothing";
    }
}

enum err_code tok_util_string(const json_t *obj, const char *key, struct tok_text *out,
                              struct err *e)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_string(v))
        return err_set(e, ERR_INPUT, "key '%s': found %s, expected string", key, name_kind(v));
    out->s = json_string_value(v);
    out->len = json_string_length(v);
    return ERR_OK;
}

enum err_code tok_util_type(const json_t *obj, const char **type, struct err *e)
{
    struct tok_text t;
    if (!json_is_object(obj))
        return err_set(e, ERR_INPUT, "found %s, expected object", name_kind(obj));
    enum err_code rc = tok_util_string(obj, "type", &t, e);
    if (rc == ERR_OK)
        *type = t.s;
    return rc;
}

enum err_code tok_util_pattern(const json_t *obj, struct tok_text *out, bool *regex, struct err *e)
{
    const json_t *p = json_object_get(obj, "pattern");
    const char *key = json_object_get(p, "Regex") ? "Regex" : "String";
    if (!json_is_object(p) || json_object_size(p) != 1)
        return err_set(e, ERR_INPUT,
                       "key 'pattern': found %s, expected {\"String\"} or {\"Regex\"}",
                       name_kind(p));
    *regex = key[0] == 'R';
    enum err_code rc = tok_util_string(p, key, out, e);
    return err_wrap(e, rc, "pattern");
}

bool tok_util_grow(void *p, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return true;
    size_t n = *cap ? *cap : 16, bytes;
    while (n < need) {
        if (!checked_mul(n, 2, &n))
            return false;
    }
    if (!checked_mul(n, size, &bytes))
        return false;
    void *old, *grown;
    memcpy(&old, p, sizeof old);
    grown = realloc(old, bytes);
    if (!grown)
        return false;
    memcpy(p, &grown, sizeof grown);
    *cap = n;
    return true;
}

enum err_code tok_util_growth(size_t n, size_t grown, struct err *e)
{
    size_t limit;
    if (!checked_mul(n, 64, &limit) || !checked_add(limit, (size_t)1 << 20, &limit) ||
        grown <= limit)
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "the tokenizer's rules make more than %zu bytes out of a text of %zu", limit, n);
}

char *tok_util_copy(struct tok_text t)
{
    char *c = malloc(t.len + 1);
    if (!c)
        return NULL;
    if (t.len > 0)
        memcpy(c, t.s, t.len);
    c[t.len] = '\0';
    return c;
}
