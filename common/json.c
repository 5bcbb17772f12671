/* json.c: strict reading and typed getters. Writing is in json_put.c.
 *
 * jansson parses; what it does differently from what model files need is undone here: an integer
 * beyond 64 bits (tokenizer configurations write 10^30 for "no limit") is read as a real.
 */
#include "common/json.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io_private.h"

#define FILE_MAX ((size_t)1 << 30)
#define FLAGS    (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY)

static bool number_byte(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Copies text with ".0" behind every integer outside of int64. False when there was none. */
static bool widen_integers(const char *text, size_t len, struct strbuf *out)
{
    bool any = false, in_string = false;
    size_t copied = 0;
    for (size_t i = 0; i < len;) {
        if (in_string) {
            in_string = text[i] != '"';
            i += text[i] == '\\' ? 2 : 1;
            continue;
        }
        if (text[i] == '"' || !number_byte(text[i])) {
            in_string = text[i] == '"';
            i++;
            continue;
        }
        size_t end = i;
        bool integer = true;
        for (; end < len && number_byte(text[end]); end++)
            integer &= text[end] != '.' && text[end] != 'e' && text[end] != 'E';
        char digits[24];
        int64_t value;
        if (integer && end - i < sizeof digits) {
            memcpy(digits, text + i, end - i);
            digits[end - i] = 0;
            integer = !str_to_i64(digits, INT64_MIN, INT64_MAX, &value);
        }
        if (integer) {
            strbuf_append(out, text + copied, end - copied);
            strbuf_puts(out, ".0");
            copied = end;
            any = true;
        }
        i = end;
    }
    strbuf_append(out, text + copied, len - copied);
    return any;
}

static enum err_code parse_error(const json_error_t *je, struct err *e)
{
    if (json_error_code(je) == json_error_out_of_memory)
        return err_set(e, ERR_NOMEM, "out of memory: parsing JSON");
    return err_set(e, ERR_INPUT, "line %d, column %d: %s", je->line, je->column, je->text);
}

enum err_code json_parse(const char *text, size_t len, json_t **out, struct err *e)
{
    json_error_t je;
    *out = NULL;
    if (io_fault_hit(IO_FAULT_ALLOC))
        return io_nomem(len, e);
    *out = json_loadb(len ? text : "", len, FLAGS, &je);
    if (!*out && json_error_code(&je) == json_error_numeric_overflow) {
        struct strbuf wide = {0};
        json_error_t again;
        if (widen_integers(text, len, &wide) && !wide.failed) {
            *out = json_loadb(wide.data, wide.len, FLAGS, &again);
            je = again;
        }
        bool failed = wide.failed;
        strbuf_free(&wide);
        if (failed)
            return io_nomem(len, e);
    }
    return *out ? ERR_OK : parse_error(&je, e);
}

enum err_code json_read(const char *path, json_t **out, struct err *e)
{
    struct strbuf text = {0};
    *out = NULL;
    enum err_code rc = io_read_all(path, FILE_MAX, &text, e);
    if (rc == ERR_OK) {
        rc = json_parse(text.data, text.len, out, e);
        if (rc != ERR_OK)
            err_wrap(e, rc, "%s", path);
    }
    strbuf_free(&text);
    return rc;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

/* The value of key, which may be a path "a.b.c" through objects; a key that has the dots in its
 * own name is found first. NULL for absent and null. */
static json_t *look_up(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    const char *dot;
    while (!v && json_is_object(obj) && (dot = strchr(key, '.'))) {
        obj = json_object_getn(obj, key, (size_t)(dot - key));
        key = dot + 1;
        v = json_object_get(obj, key);
    }
    return v && !json_is_null(v) ? v : NULL;
}

/* *v is NULL when the key is absent and may be. */
static enum err_code find(const json_t *obj, const char *key, enum json_need need, json_t **v,
                          struct err *e)
{
    *v = NULL;
    if (!json_is_object(obj))
        return err_set(e, ERR_INPUT, "key '%s': found %s around it, expected an object", key,
                       obj ? type_name(obj) : "nothing");
    *v = look_up(obj, key);
    if (!*v && need == JSON_REQUIRED)
        return err_set(e, ERR_INPUT, "key '%s' is missing", key);
    return ERR_OK;
}

static enum err_code wrong_type(const char *key, const json_t *v, const char *expected,
                                struct err *e)
{
    return err_set(e, ERR_INPUT, "key '%s': found %s, expected %s", key, type_name(v), expected);
}

enum err_code json_get_int(const json_t *obj, const char *key, enum json_need need, int64_t lo,
                           int64_t hi, int64_t *out, struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_integer(v))
        return wrong_type(key, v, "an integer", e);
    int64_t i = json_integer_value(v);
    if (i < lo || i > hi)
        return err_set(e, ERR_INPUT, "key '%s': found %lld, expected %lld to %lld", key,
                       (long long)i, (long long)lo, (long long)hi);
    *out = i;
    return ERR_OK;
}

enum err_code json_get_double(const json_t *obj, const char *key, enum json_need need, double lo,
                              double hi, double *out, struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_number(v))
        return wrong_type(key, v, "a number", e);
    double d = json_number_value(v);
    if (!(d >= lo && d <= hi))
        return err_set(e, ERR_INPUT, "key '%s': found %.17g, expected %.17g to %.17g", key, d, lo,
                       hi);
    *out = d;
    return ERR_OK;
}

enum err_code json_get_bool(const json_t *obj, const char *key, enum json_need need, bool *out,
                            struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_boolean(v))
        return wrong_type(key, v, "a boolean", e);
    *out = json_is_true(v);
    return ERR_OK;
}

enum err_code json_get_string(const json_t *obj, const char *key, enum json_need need,
                              const char **out, struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_string(v))
        return wrong_type(key, v, "a string", e);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return err_set(e, ERR_INPUT, "key '%s': found a string with a NUL byte in it", key);
    *out = json_string_value(v);
    return ERR_OK;
}

enum err_code json_get_object(const json_t *obj, const char *key, enum json_need need, json_t **out,
                              struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_object(v))
        return wrong_type(key, v, "an object", e);
    *out = v;
    return ERR_OK;
}

enum err_code json_get_array(const json_t *obj, const char *key, enum json_need need, json_t **out,
                             struct err *e)
{
    json_t *v;
    enum err_code rc = find(obj, key, need, &v, e);
    if (rc != ERR_OK || !v)
        return rc;
    if (!json_is_array(v))
        return wrong_type(key, v, "an array", e);
    *out = v;
    return ERR_OK;
}

/* Line of the first "key" that a colon follows; 0: not found (the key was written with escapes). */
static size_t find_line(const char *text, size_t len, const char *key, size_t key_len)
{
    size_t line = 1;
    for (size_t i = 0; i + key_len + 2 <= len; i++) {
        line += text[i] == '\n';
        if (text[i] != '"' || text[i + key_len + 1] != '"' ||
            memcmp(text + i + 1, key, key_len) != 0)
            continue;
        size_t j = i + key_len + 2;
        while (j < len && strchr(" \t\r\n", text[j]) && text[j])
            j++;
        if (j < len && text[j] == ':')
            return line;
    }
    return 0;
}

enum err_code json_only_keys(const json_t *obj, const char *const *known, size_t n,
                             const char *text, size_t len, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)obj, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < n && !found; i++)
            found = strcmp(key, known[i]) == 0;
        if (found)
            continue;
        char where[40] = "";
        size_t line = text ? find_line(text, len, key, strlen(key)) : 0;
        if (line)
            snprintf(where, sizeof where, " (line %zu)", line);
        const char *near = str_nearest(key, known, n);
        return err_set(e, ERR_INPUT, "unknown key '%s'%s%s%s%s", key, where,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return ERR_OK;
}
