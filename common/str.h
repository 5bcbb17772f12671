/* str.h: growable byte strings, globs, nearest names and UTF-8 checks.
 *
 * A strbuf owns its bytes and keeps them terminated. Running out of memory is sticky: `failed` is
 * set, later appends do nothing, and the owner checks once at the end with strbuf_ok.
 */
#ifndef ASSAY_COMMON_STR_H
#define ASSAY_COMMON_STR_H

#include "common/err.h"

struct strbuf {
    char *data; /* NULL until the first append; then data[len] == 0 */
    size_t len, cap;
    bool failed;
};

void strbuf_append(struct strbuf *b, const void *bytes, size_t n);
void strbuf_puts(struct strbuf *b, const char *s);
void strbuf_putc(struct strbuf *b, char c);
void strbuf_printf(struct strbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* With `digits` significant digits (1..17): plain from 0.0001 to below 10^15 (all digits before the
 * point are shown), else with an exponent; "0" for both zeros, "n/a" when not finite. Never locale
 * dependent. */
void strbuf_put_number(struct strbuf *b, double v, int digits);
bool strbuf_reserve(struct strbuf *b, size_t more);
void strbuf_clear(struct strbuf *b); /* keeps the memory */
void strbuf_free(struct strbuf *b);
char *strbuf_take(struct strbuf *b); /* caller frees; NULL only when failed; b is empty after it */
MUST_USE enum err_code strbuf_ok(const struct strbuf *b, struct err *e);

#define STR_GLOB_MAX 2048 /* a longer glob matches nothing */

/* '*' any run (dots included), '?' one byte, '[abc]', '[a-z]', '[!..]', '{a,b}' one of. Whole
 * string. Runs in time |glob| * |s|. */
bool str_glob(const char *glob, const char *s);

/* The name closest to `s` by edit distance, the first of equals, or NULL when none is within a
 * third of its length (one edit for short names). */
const char *str_nearest(const char *s, const char *const *names, size_t n);

/* Offset of the first byte that is not well-formed UTF-8 (RFC 3629), or n. */
size_t str_utf8_valid(const void *s, size_t n);

/* Decodes one code point of well-formed text and moves *s on. */
uint32_t str_utf8_next(const char **s);
/* Writes 1..4 bytes, returns how many. */
int str_utf8_put(char out[4], uint32_t cp);

bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* Whole string as a decimal number, in the stated range or finite; false otherwise. Blanks,
 * hexadecimal and words are no numbers. Never locale dependent. */
bool str_to_i64(const char *s, int64_t lo, int64_t hi, int64_t *out);
bool str_to_double(const char *s, double *out);

/* "12.3 MB" in decimal units, into buf. */
const char *str_bytes(char buf[24], uint64_t bytes);

#endif
