/* str.c: string buffers, edit distance, UTF-8 and numbers in text. Globs are in str_glob.c. */
#include "common/str.h"

#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"

bool strbuf_reserve(struct strbuf *b, size_t more)
{
    size_t need;
    if (b->failed)
        return false;
    if (!checked_add(b->len, more, &need) || !checked_add(need, 1, &need) || need > SIZE_MAX / 2) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = MAX2(MAX2(need, 64), b->cap + b->cap / 2);
    char *data = io_fault_hit(IO_FAULT_ALLOC) ? NULL : realloc(b->data, cap);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return true;
}

void strbuf_append(struct strbuf *b, const void *bytes, size_t n)
{
    if (!strbuf_reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void strbuf_puts(struct strbuf *b, const char *s)
{
    strbuf_append(b, s, strlen(s));
}

void strbuf_putc(struct strbuf *b, char c)
{
    strbuf_append(b, &c, 1);
}

void strbuf_printf(struct strbuf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!strbuf_reserve(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void strbuf_put_number(struct strbuf *b, double v, int digits)
{
    char text[400];
    if (v - v != 0) {
        strbuf_puts(b, "n/a");
        return;
    }
    locale_t old = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    /* The exponent after rounding to the digits says how many of them stand behind the point. */
    snprintf(text, sizeof text, "%.*e", digits - 1, v);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (v == 0)
        strcpy(text, "0");
    else if (exponent < -4 || exponent >= 15)
        snprintf(text, sizeof text, "%.*g", digits, v);
    else
        snprintf(text, sizeof text, "%.*f", MAX2(digits - 1 - exponent, 0), v);
    uselocale(old);
    strbuf_puts(b, text);
}

void strbuf_clear(struct strbuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

void strbuf_free(struct strbuf *b)
{
    free(b->data);
    *b = (struct strbuf){0};
}

char *strbuf_take(struct strbuf *b)
{
    if (!strbuf_reserve(b, 0)) {
        strbuf_free(b);
        return NULL;
    }
    char *data = b->data;
    *b = (struct strbuf){0};
    return data;
}

enum err_code strbuf_ok(const struct strbuf *b, struct err *e)
{
    if (b->failed)
        return err_set(e, ERR_NOMEM, "out of memory: a text of more than %zu bytes", b->len);
    return ERR_OK;
}

#define NEAREST_MAX 128 /* longer names are never offered */

/* Edits (insert, delete, replace, swap of neighbours) from a to b, by rows of the usual table. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t rows[3][NEAREST_MAX + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = j;
    for (size_t i = 1; i <= na; i++) {
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = MIN2(d, last[j] + 1);
            d = MIN2(d, row[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = MIN2(d, before[j - 2] + 1);
            row[j] = d;
        }
        size_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[nb];
}

const char *str_nearest(const char *s, const char *const *names, size_t n)
{
    size_t len = strlen(s);
    if (len == 0 || len > NEAREST_MAX)
        return NULL;
    size_t best = MAX2(len / 3, 1) + 1;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t other = strlen(names[i]);
        if (other > NEAREST_MAX || other + best <= len || len + best <= other)
            continue;
        size_t d = edit_distance(s, len, names[i], other);
        if (d < best && d < other) {
            best = d;
            found = names[i];
        }
    }
    return found;
}

/* Length of the well-formed sequence at p, or 0. The second byte's range is what rules out
 * overlong forms, surrogates and values above U+10FFFF. */
static size_t utf8_len(const uint8_t *p, size_t n)
{
    uint8_t a = p[0];
    if (a < 0x80)
        return 1;
    if (a < 0xc2 || a > 0xf4)
        return 0;
    size_t len = a < 0xe0 ? 2 : a < 0xf0 ? 3 : 4;
    if (n < len)
        return 0;
    uint8_t lo = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return len;
}

size_t str_utf8_valid(const void *s, size_t n)
{
    const uint8_t *p = s;
    size_t i = 0;
    while (i < n) {
        size_t len = utf8_len(p + i, n - i);
        if (len == 0)
            return i;
        i += len;
    }
    return n;
}

uint32_t str_utf8_next(const char **s)
{
    const uint8_t *p = (const uint8_t *)*s;
    uint32_t cp = p[0];
    int more = cp < 0x80 ? 0 : cp < 0xe0 ? 1 : cp < 0xf0 ? 2 : 3;
    if (more)
        cp &= 0x3fu >> more;
    for (int i = 1; i <= more; i++)
        cp = cp << 6 | (p[i] & 0x3f);
    *s += more + 1;
    return cp;
}

int str_utf8_put(char out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int more = cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    for (int i = more; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)(lead[more] | cp);
    return more + 1;
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool str_to_i64(const char *s, int64_t lo, int64_t hi, int64_t *out)
{
    bool negative = *s == '-';
    s += *s == '-' || *s == '+';
    if (!*s)
        return false;
    int64_t v = 0;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        int64_t digit = negative ? '0' - *s : *s - '0';
        if (__builtin_mul_overflow(v, (int64_t)10, &v) || __builtin_add_overflow(v, digit, &v))
            return false;
    }
    if (v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

static const char *skip_digits(const char *s)
{
    while (*s >= '0' && *s <= '9')
        s++;
    return s;
}

/* [+-] digits [. digits] [e[+-] digits], with a digit on one side of the point at least. strtod
 * alone would take blanks, hexadecimal, "inf" and "nan". */
static bool looks_decimal(const char *s)
{
    s += *s == '-' || *s == '+';
    const char *whole = s;
    s = skip_digits(s);
    ptrdiff_t digits = s - whole;
    if (*s == '.') {
        const char *part = ++s;
        s = skip_digits(s);
        digits += s - part;
    }
    if (digits == 0)
        return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        const char *exponent = s;
        s = skip_digits(s);
        if (s == exponent)
            return false;
    }
    return *s == 0;
}

bool str_to_double(const char *s, double *out)
{
    if (!looks_decimal(s))
        return false;
    /* The C locale is a constant inside the C library: nothing is allocated here. */
    double v = strtod_l(s, NULL, newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (v - v != 0)
        return false;
    *out = v;
    return true;
}

const char *str_bytes(char buf[24], uint64_t bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(buf, 24, "%u B", (unsigned)bytes);
        return buf;
    }
    uint64_t unit = 1000;
    size_t i = 0;
    /* The next unit as soon as a tenth, rounded, would read 1000.0. */
    while (i + 1 < ARRAY_LEN(units) && bytes >= unit * 1000 - unit / 20) {
        unit *= 1000;
        i++;
    }
    uint64_t tenths = bytes / (unit / 10) + (bytes % (unit / 10) >= unit / 20);
    snprintf(buf, 24, "%u.%u %s", (unsigned)(tenths / 10), (unsigned)(tenths % 10), units[i]);
    return buf;
}
