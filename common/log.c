/* log.c: lines on stderr and the progress line. The only reader of a clock in the library. */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/str.h"

#define REDRAW_NS ((uint64_t)100 * 1000 * 1000)
#define PLAIN_NS  ((uint64_t)10 * 1000 * 1000 * 1000)

static enum log_level level = LOG_INFO;
static const char *prog = "assay";
static struct progress *shown; /* the one whose line stands on the terminal */

void log_set_level(enum log_level l)
{
    level = l;
}

void log_set_prog(const char *name)
{
    prog = name;
}

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int64_t clock_unix(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}

const char *clock_utc(char buf[32], int64_t unix_seconds)
{
    time_t t = (time_t)unix_seconds;
    struct tm tm;
    if (!gmtime_r(&t, &tm) || !strftime(buf, 32, "%Y-%m-%d %H:%M:%S UTC", &tm))
        snprintf(buf, 32, "%lld", (long long)unix_seconds);
    return buf;
}

/* One line in one piece, whoever else writes; the progress line makes room and is redrawn later. */
static void say(const char *kind, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);
static void say(const char *kind, const char *fmt, va_list ap)
{
    flockfile(stderr);
    if (shown && shown->drawn) {
        fputs("\r\033[K", stderr);
        shown->drawn = false;
        shown->shown_ns = 0;
    }
    fprintf(stderr, "%s: %s", prog, kind);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    fflush(stderr);
    funlockfile(stderr);
}

void log_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say("error: ", fmt, ap);
    va_end(ap);
}

void log_warn(const char *fmt, ...)
{
    if (level < LOG_WARN)
        return;
    va_list ap;
    va_start(ap, fmt);
    say("warning: ", fmt, ap);
    va_end(ap);
}

void log_info(const char *fmt, ...)
{
    if (level < LOG_INFO)
        return;
    va_list ap;
    va_start(ap, fmt);
    say("", fmt, ap);
    va_end(ap);
}

void log_debug(const char *fmt, ...)
{
    if (level < LOG_DEBUG)
        return;
    va_list ap;
    va_start(ap, fmt);
    say("debug: ", fmt, ap);
    va_end(ap);
}

static const char *amount(char buf[48], const char *unit, uint64_t n)
{
    if (strcmp(unit, "B") == 0)
        return str_bytes(buf, n);
    snprintf(buf, 48, "%llu %s", (unsigned long long)n, unit);
    return buf;
}

static const char *duration(char buf[32], double seconds)
{
    unsigned long long s = (unsigned long long)(seconds + 0.5);
    if (s < 3600)
        snprintf(buf, 32, "%llu:%02llu", s / 60, s % 60);
    else
        snprintf(buf, 32, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
    return buf;
}

void progress_text(const struct progress *p, uint64_t elapsed_ns, char *buf, size_t size)
{
    char done[48], total[48], rate[48], left[32];
    double seconds = (double)elapsed_ns * 1e-9;
    double per_second = seconds > 0 ? (double)p->done / seconds : 0;
    amount(done, p->unit, p->done);
    if (strcmp(p->unit, "B") == 0)
        str_bytes(rate, (uint64_t)per_second);
    else
        snprintf(rate, sizeof rate, "%.1f %s", per_second, p->unit);
    if (p->total == 0) {
        snprintf(buf, size, "%s %s, %s/s", p->what, done, rate);
        return;
    }
    uint64_t done_at_most = MIN2(p->done, p->total);
    double share = (double)done_at_most / (double)p->total;
    int n = snprintf(buf, size, "%s %d%%, %s of %s, %s/s", p->what, (int)(share * 100), done,
                     amount(total, p->unit, p->total), rate);
    if (p->done > 0 && p->done < p->total && n > 0 && (size_t)n < size)
        snprintf(buf + n, size - (size_t)n, ", %s left",
                 duration(left, (double)(p->total - p->done) / per_second));
}

static void draw(struct progress *p, uint64_t now)
{
    char text[256];
    progress_text(p, now - p->start_ns, text, sizeof text);
    flockfile(stderr);
    if (p->tty)
        fprintf(stderr, "\r%.120s\033[K", text);
    else
        fprintf(stderr, "%s: %s\n", prog, text);
    fflush(stderr);
    funlockfile(stderr);
    p->drawn = p->tty;
    p->shown_ns = now;
}

void progress_start(struct progress *p, const char *what, const char *unit, uint64_t total)
{
    *p = (struct progress){.what = what, .unit = unit, .total = total};
    p->start_ns = clock_ns();
    p->tty = isatty(STDERR_FILENO);
    /* The first plain line comes after its interval: short work says nothing in between. */
    p->shown_ns = p->tty ? 0 : p->start_ns;
    shown = p;
}

void progress_add(struct progress *p, uint64_t more)
{
    p->done += more;
    if (level < LOG_INFO)
        return;
    uint64_t now = clock_ns();
    if (now - p->shown_ns >= (p->tty ? REDRAW_NS : PLAIN_NS))
        draw(p, now);
}

void progress_end(struct progress *p)
{
    if (shown == p)
        shown = NULL;
    if (level < LOG_INFO)
        return;
    uint64_t now = clock_ns();
    if (p->tty) {
        draw(p, now);
        fputc('\n', stderr);
        p->drawn = false;
    } else if (p->shown_ns != p->start_ns) {
        draw(p, now); /* lines were shown, so the last one says how it ended */
    }
}
