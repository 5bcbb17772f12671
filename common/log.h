/* log.h: words for people, on stderr. Data goes to stdout and is never logged. A line is written in
 * one piece from any thread; the progress line belongs to one thread. */
#ifndef ASSAY_COMMON_LOG_H
#define ASSAY_COMMON_LOG_H

#include "common/base.h"

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
void log_set_prog(const char *prog); /* "assay quantize": the prefix of every line; borrowed */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_debug(const char *fmt, ...) PRINTF_LIKE(1, 2);
void log_error(const char *fmt, ...) PRINTF_LIKE(1, 2); /* shown at every level */

/* Progress: one line that is redrawn on a terminal (10 Hz), a plain line every 10 s elsewhere.
 * Rate and time left come from the units done. One at a time. */
struct progress {
    const char *what, *unit; /* "quantize", "B": B prints decimal bytes */
    uint64_t total, done;    /* total 0: unknown */
    uint64_t start_ns, shown_ns;
    bool tty, drawn;
};
void progress_start(struct progress *p, const char *what, const char *unit, uint64_t total);
void progress_add(struct progress *p, uint64_t more);
void progress_end(struct progress *p);
/* The words of the line after elapsed_ns: "quantize 45%, 1.2 GB of 2.7 GB, 310.0 MB/s, 0:05 left".
 */
void progress_text(const struct progress *p, uint64_t elapsed_ns, char *buf, size_t size);

uint64_t clock_ns(void); /* monotonic; for rates and benchmarks, never for data */
/* Seconds since 1970, for when a run of a sweep took place; and as "2024-02-29 03:17:00 UTC". */
int64_t clock_unix(void);
const char *clock_utc(char buf[32], int64_t unix_seconds);

#endif
