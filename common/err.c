/* err.c: texts of errors. Owns no state. */
#include "common/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static void fit(char *text, int would_be)
{
    if (would_be >= ERR_TEXT_MAX)
        memcpy(text + ERR_TEXT_MAX - 4, "...", 4);
}

enum err_code err_set_at(struct err *e, enum err_code code, const char *file, int line,
                         const char *fmt, ...)
{
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    fit(e->text, n);
    e->file = file;
    e->line = line;
    return code;
}

enum err_code err_wrap(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (!e || code == ERR_OK)
        return code;
    char old[ERR_TEXT_MAX];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= ERR_TEXT_MAX)
        n = ERR_TEXT_MAX - 1;
    int m = snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", old);
    fit(e->text, n + m);
    return code;
}

enum err_code err_errno_at(struct err *e, const char *file, int line, const char *fmt, ...)
{
    int number = errno;
    enum err_code code = number == ENOMEM ? ERR_NOMEM : ERR_IO;
    if (!e)
        return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= ERR_TEXT_MAX)
        n = ERR_TEXT_MAX - 1;
    int m = snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", strerror(number));
    fit(e->text, n + m);
    e->file = file;
    e->line = line;
    return code;
}

int err_exit_code(enum err_code code)
{
    switch (code) {
#define X(c, exit, text)                                                                           \
    case c:                                                                                        \
        return exit;
        ERR_CODES(X)
#undef X
    }
    return 70;
}

const char *err_name(enum err_code code)
{
    switch (code) {
#define X(c, exit, text)                                                                           \
    case c:                                                                                        \
        return #c;
        ERR_CODES(X)
#undef X
    }
    return "ERR_UNKNOWN";
}

const char *err_meaning(enum err_code code)
{
    switch (code) {
#define X(c, exit, text)                                                                           \
    case c:                                                                                        \
        return text;
        ERR_CODES(X)
#undef X
    }
    return "unknown";
}
