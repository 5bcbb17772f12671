/* err.h: the one error convention.
 *
 * A fallible function returns enum err_code (ERR_OK is 0) and takes a last parameter `struct err
 * *`, which may be NULL. The innermost site says what was found and what was expected, with
 * numbers; callers prepend where ("model.safetensors: tensor x: ..."). The table below is the only
 * map from codes to process exit codes (docs/exit-codes.md).
 */
#ifndef ASSAY_COMMON_ERR_H
#define ASSAY_COMMON_ERR_H

#include "common/base.h"

/*        code             exit  meaning */
#define ERR_CODES(X)                                                                               \
    X(ERR_OK, 0, "good")                                                                           \
    X(ERR_NEGATIVE, 1, "ran, and the answer is no")                                                \
    X(ERR_USAGE, 2, "bad usage")                                                                   \
    X(ERR_INPUT, 3, "bad input")                                                                   \
    X(ERR_MISMATCH, 3, "not comparable")                                                           \
    X(ERR_PARTIAL, 4, "some requests failed")                                                      \
    X(ERR_IO, 5, "input or output failed")                                                         \
    X(ERR_NOMEM, 5, "out of memory")                                                               \
    X(ERR_DEVICE, 5, "no usable device")                                                           \
    X(ERR_DETERMINISM, 6, "determinism violated")                                                  \
    X(ERR_INTERNAL, 70, "internal error")                                                          \
    X(ERR_INTERRUPTED, 75, "interrupted")                                                          \
    X(ERR_BUSY, 75, "locked by another run")

enum err_code {
#define X(code, exit, text) code,
    ERR_CODES(X)
#undef X
};

#define ERR_TEXT_MAX 1024

struct err {
    char text[ERR_TEXT_MAX]; /* always terminated; long texts end in "..." */
    const char *file;        /* source place of the innermost err_set */
    int line;
};

/* Sets the text and returns `code`, so that `return err_set(...)` reads well. */
#define err_set(e, code, ...) err_set_at((e), (code), __FILE__, __LINE__, __VA_ARGS__)
enum err_code err_set_at(struct err *e, enum err_code code, const char *file, int line,
                         const char *fmt, ...) PRINTF_LIKE(5, 6);

/* Prepends "<fmt>: " to the text and returns `code`. With code ERR_OK nothing changes. */
enum err_code err_wrap(struct err *e, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* "<what>: <strerror(errno)>" with ERR_IO (ERR_NOMEM for ENOMEM). */
#define err_errno(e, ...) err_errno_at((e), __FILE__, __LINE__, __VA_ARGS__)
enum err_code err_errno_at(struct err *e, const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

int err_exit_code(enum err_code code);
const char *err_name(enum err_code code);    /* "ERR_INPUT" */
const char *err_meaning(enum err_code code); /* "bad input" */

#endif
