/* json_put.c: writing JSON with stable bytes.
 *
 * jansson's own dump always writes reals with a fixed number of digits; here a real gets the
 * fewest that read back as the same double, so that a file is short, stable and loses nothing.
 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io_private.h"
#include "common/json.h"

void json_put_string(struct strbuf *b, const char *s, size_t len)
{
    static const char short_form[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    size_t from = 0;
    strbuf_putc(b, '"');
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        strbuf_append(b, s + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\')
            strbuf_printf(b, "\\%c", c);
        else if (short_form[c])
            strbuf_printf(b, "\\%c", short_form[c]);
        else
            strbuf_printf(b, "\\u%04x", c);
    }
    strbuf_append(b, s + from, len - from);
    strbuf_putc(b, '"');
}

/* 15 digits always survive reading and writing, so a double with a short name is found there, its
 * zeros stripped by %g. Subnormals have fewer digits and start from one. */
static void format_shortest(char text[40], double v)
{
    int digits = fabs(v) < 0x1p-1022 ? 1 : 15;
    double back;
    do {
        snprintf(text, 40, "%.*g", digits++, v);
        back = strtod(text, NULL);
    } while (back != v && digits <= 17);
}

void json_put_double(struct strbuf *b, double v)
{
    if (!isfinite(v)) {
        strbuf_puts(b, "null");
        return;
    }
    char text[40];
    locale_t old = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    format_shortest(text, v);
    uselocale(old);
    strbuf_puts(b, text);
    if (!strpbrk(text, ".e"))
        strbuf_puts(b, ".0"); /* stays a real when it is read again */
}

static void put_newline(struct strbuf *b, size_t flags, int depth)
{
    int indent = (int)(flags & JSON_MAX_INDENT);
    if (indent)
        strbuf_printf(b, "\n%*s", indent * depth, "");
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void put_value(struct strbuf *b, const json_t *v, size_t flags, int depth);

static void put_member(struct strbuf *b, const char *key, const json_t *v, size_t flags, int depth)
{
    put_newline(b, flags, depth + 1);
    json_put_string(b, key, strlen(key));
    strbuf_puts(b, flags & JSON_MAX_INDENT ? ": " : ":");
    put_value(b, v, flags, depth + 1);
}

static void put_object(struct strbuf *b, const json_t *obj, size_t flags, int depth)
{
    size_t n = json_object_size(obj), i = 0;
    json_t *object = (json_t *)(uintptr_t)obj; /* the iterators of jansson take no const */
    const char *key, **keys = NULL;
    json_t *value;
    strbuf_putc(b, '{');
    if (flags & JSON_SORT_KEYS) {
        keys = io_alloc(n * sizeof *keys);
        if (!keys) {
            b->failed = true;
            return;
        }
    }
    json_object_foreach(object, key, value)
    {
        if (keys) {
            keys[i++] = key;
            continue;
        }
        if (i++)
            strbuf_putc(b, ',');
        put_member(b, key, value, flags, depth);
    }
    if (keys) {
        qsort(keys, n, sizeof *keys, by_key);
        for (i = 0; i < n; i++) {
            if (i)
                strbuf_putc(b, ',');
            put_member(b, keys[i], json_object_get(obj, keys[i]), flags, depth);
        }
    }
    free(keys);
    if (n)
        put_newline(b, flags, depth);
    strbuf_putc(b, '}');
}

static void put_array(struct strbuf *b, const json_t *v, size_t flags, int depth)
{
    size_t n = json_array_size(v);
    strbuf_putc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            strbuf_putc(b, ',');
        put_newline(b, flags, depth + 1);
        put_value(b, json_array_get(v, i), flags, depth + 1);
    }
    if (n)
        put_newline(b, flags, depth);
    strbuf_putc(b, ']');
}

static void put_value(struct strbuf *b, const json_t *v, size_t flags, int depth)
{
    if (b->failed)
        return;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        put_object(b, v, flags, depth);
        break;
    case JSON_ARRAY:
        put_array(b, v, flags, depth);
        break;
    case JSON_STRING:
        json_put_string(b, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        strbuf_printf(b, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        json_put_double(b, json_real_value(v));
        break;
    case JSON_TRUE:
        strbuf_puts(b, "true");
        break;
    case JSON_FALSE:
        strbuf_puts(b, "false");
        break;
    case JSON_NULL:
        strbuf_puts(b, "null");
        break;
    }
}

void json_put(struct strbuf *b, const json_t *v, size_t flags)
{
    put_value(b, v, flags, 0);
}
