/* child.c: fork, limits, waiting, the end of a group.
 *
 * Between fork and exec only async-signal-safe calls are made. A pipe that exec closes brings back
 * errno when there is no exec. The child asks the kernel to be killed with its parent, so a sweep
 * that is killed leaves nothing running.
 */
#include "jobs/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io.h"
#include "common/log.h"

#define GRACE_SECONDS 10
#define LOG_TAIL      4096
#define POLL_MS       200 /* how late an interruption is seen at most */

/* ---- command lines -----------------------------------------------------------------------------
 */

void child_arg(struct child_args *a, const char *fmt, ...)
{
    if (a->n == CHILD_ARGS_MAX) {
        a->failed = true;
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&a->items[a->n], fmt, ap) < 0) {
        a->items[a->n] = NULL;
        a->failed = true;
    } else {
        a->n++;
    }
    va_end(ap);
}

void child_args_free(struct child_args *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->items[i]);
    *a = (struct child_args){.n = 0};
}

void child_args_text(const struct child_args *a, struct strbuf *out)
{
    for (size_t i = 0; i < a->n; i++) {
        const char *s = a->items[i];
        if (i)
            strbuf_putc(out, ' ');
        if (*s && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                            "_-+=./:,@%") == strlen(s)) {
            strbuf_puts(out, s);
            continue;
        }
        strbuf_putc(out, '\'');
        for (; *s; s++) {
            if (*s == '\'')
                strbuf_puts(out, "'\\''");
            else
                strbuf_putc(out, *s);
        }
        strbuf_putc(out, '\'');
    }
}

/* ---- one attempt -------------------------------------------------------------------------------
 */

struct attempt {
    const struct child_args *argv;
    int in, out, log; /* files of the child */
    int failure[2];   /* pipe: errno of a failed exec */
    uint64_t memory;
    pid_t parent;
};

/* In the child. Never returns. */
static void become(const struct attempt *a)
{
    int number = 0;
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const struct rlimit core = {0, 0}, data = {a->memory, a->memory};
    if (getppid() != a->parent)
        number = ESRCH; /* the parent died before it could be watched */
    else if (setrlimit(RLIMIT_CORE, &core) || (a->memory && setrlimit(RLIMIT_DATA, &data)) ||
             dup2(a->in, 0) < 0 || dup2(a->out, 1) < 0 || dup2(a->log, 2) < 0 ||
             sigprocmask(SIG_SETMASK, &none, NULL) || signal(SIGPIPE, SIG_DFL) == SIG_ERR)
        number = errno;
    if (!number) {
        execv(a->argv->items[0], a->argv->items);
        number = errno;
    }
    (void)!write(a->failure[1], &number, sizeof number);
    _exit(127);
}

static enum err_code start(struct attempt *a, pid_t *pid, struct err *e)
{
    int number = 0;
    if (pipe2(a->failure, O_CLOEXEC))
        return err_errno(e, "pipe");
    a->parent = getpid();
    *pid = fork();
    if (*pid == 0)
        become(a);
    close(a->failure[1]);
    if (*pid < 0) {
        enum err_code rc = err_errno(e, "fork");
        close(a->failure[0]);
        return rc;
    }
    setpgid(*pid, *pid); /* whoever comes first; the child does it too */
    ssize_t got;
    do {
        got = read(a->failure[0], &number, sizeof number);
    } while (got < 0 && errno == EINTR);
    close(a->failure[0]);
    if (got != sizeof number)
        return ERR_OK;
    waitpid(*pid, NULL, 0);
    errno = number;
    enum err_code rc = err_errno(e, "%s", a->argv->items[0]);
    return number == ENOENT || number == EACCES || number == ENOEXEC ? ERR_INPUT : rc;
}

/* Waits until the process ends or the deadline (0: none) passes; true: it has ended. */
static bool wait_until(pid_t pid, int pidfd, uint64_t deadline, const volatile int *interrupted,
                       int *status)
{
    for (;;) {
        if (waitpid(pid, status, WNOHANG) == pid)
            return true;
        uint64_t now = clock_ns();
        if ((interrupted && *interrupted) || (deadline && now >= deadline))
            return false;
        uint64_t left = deadline ? (deadline - now) / 1000000 + 1 : POLL_MS;
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        poll(&p, pidfd >= 0, (int)MIN2(left, pidfd >= 0 ? POLL_MS : 5));
    }
}

static uint64_t seconds_from_now(double seconds)
{
    return seconds > 0 ? clock_ns() + (uint64_t)(seconds * 1e9) : 0;
}

static void run_to_end(pid_t pid, const struct child_limits *limits,
                       const volatile int *interrupted, struct child_result *r)
{
    uint64_t began = clock_ns();
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), status = 0;
    r->end = CHILD_EXITED;
    if (!wait_until(pid, pidfd, seconds_from_now(limits->seconds), interrupted, &status)) {
        r->end = CHILD_TIMED_OUT;
        kill(-pid, SIGTERM);
        if (!wait_until(pid, pidfd, seconds_from_now(GRACE_SECONDS), NULL, &status)) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
        }
    }
    kill(-pid, SIGKILL); /* what it started does not outlive it */
    if (pidfd >= 0)
        close(pidfd);
    r->wall = (double)(clock_ns() - began) * 1e-9;
    if (r->end == CHILD_EXITED && WIFSIGNALED(status))
        r->end = CHILD_SIGNALLED;
    r->code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static int open_new(const char *path)
{
    return open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
}

/* The last line that is not blank, without control characters. */
static void read_tail(int fd, char *said, size_t size)
{
    char tail[LOG_TAIL + 1];
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > LOG_TAIL ? end - LOG_TAIL : 0;
    ssize_t got = pread(fd, tail, LOG_TAIL, from);
    size_t n = got > 0 ? (size_t)got : 0;
    while (n && (tail[n - 1] == '\n' || tail[n - 1] == ' '))
        n--;
    tail[n] = 0;
    const char *line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    size_t keep = MIN2(strlen(line), size - 1);
    for (size_t i = 0; i < keep; i++)
        said[i] = (unsigned char)line[i] < 32 ? ' ' : line[i];
    said[keep] = 0;
    if (str_utf8_valid(said, keep) < keep)
        said[str_utf8_valid(said, keep)] = 0;
}

static enum err_code attempt_once(const struct child_args *argv, const char *out, const char *log,
                                  const struct child_limits *limits,
                                  const volatile int *interrupted, struct child_result *r,
                                  struct err *e)
{
    struct attempt a = {.argv = argv, .memory = limits->memory};
    pid_t pid = 0;
    enum err_code rc = ERR_OK;
    a.in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    a.log = open_new(log);
    a.out = out ? open_new(out) : a.log;
    if (a.in < 0 || a.log < 0 || a.out < 0)
        rc = err_errno(e, "%s", a.log < 0 || !out ? log : out);
    if (rc == ERR_OK)
        rc = start(&a, &pid, e);
    if (rc == ERR_OK) {
        run_to_end(pid, limits, interrupted, r);
        read_tail(a.log, r->said, sizeof r->said);
    }
    if (a.in >= 0)
        close(a.in);
    if (out && a.out >= 0)
        close(a.out);
    if (a.log >= 0)
        close(a.log);
    return rc;
}

static bool worth_retrying(const struct child_result *r)
{
    return r->end == CHILD_EXITED &&
           (r->code == err_exit_code(ERR_IO) || r->code == err_exit_code(ERR_BUSY));
}

static void pause_for(double seconds, const volatile int *interrupted)
{
    uint64_t end = seconds_from_now(seconds);
    while (end && clock_ns() < end && !(interrupted && *interrupted))
        poll(NULL, 0, (int)MIN2((end - clock_ns()) / 1000000 + 1, POLL_MS));
}

enum err_code child_run(const struct child_args *argv, const char *out, const char *log,
                        const struct child_limits *limits, const volatile int *interrupted,
                        struct child_result *r, struct err *e)
{
    double pause = limits->pause;
    *r = (struct child_result){.attempts = 0};
    if (argv->failed || argv->n == 0)
        return err_set(e, ERR_NOMEM, "a command line of more than %d words, or out of memory",
                       CHILD_ARGS_MAX);
    for (;;) {
        enum err_code rc = attempt_once(argv, out, log, limits, interrupted, r, e);
        if (rc != ERR_OK)
            return rc;
        r->attempts++;
        if (interrupted && *interrupted)
            return err_set(e, ERR_INTERRUPTED, "interrupted");
        if (r->attempts > limits->retries || !worth_retrying(r))
            return ERR_OK;
        pause_for(pause, interrupted);
        pause *= 2;
    }
}

void child_ending(const struct child_result *r, const struct child_limits *limits,
                  struct strbuf *out)
{
    if (r->end == CHILD_TIMED_OUT)
        strbuf_printf(out, "stopped at its limit of %g s", limits->seconds);
    else if (r->end == CHILD_SIGNALLED)
        strbuf_printf(out, "killed by signal %d (%s)", r->code, strsignal(r->code));
    else
        strbuf_printf(out, "exit code %d", r->code);
    if (r->attempts > 1)
        strbuf_printf(out, " after %d attempts", r->attempts);
    if (r->said[0])
        strbuf_printf(out, ": %s", r->said);
}

enum err_code child_error(const struct child_result *r)
{
    if (r->end == CHILD_TIMED_OUT)
        return ERR_IO;
    if (r->end == CHILD_SIGNALLED)
        return r->code == SIGKILL ? ERR_NOMEM : ERR_INTERNAL;
    switch (r->code) {
    case 0:
        return ERR_OK;
    case 1:
        return ERR_NEGATIVE;
    case 2:
    case 3:
        return ERR_INPUT;
    case 4:
        return ERR_PARTIAL;
    case 5:
        return ERR_IO;
    case 6:
        return ERR_DETERMINISM;
    case 75:
        return ERR_BUSY;
    default:
        return ERR_INTERNAL;
    }
}
