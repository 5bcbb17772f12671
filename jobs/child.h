/* child.h: one program run as a child in its own process group, with limits and retries.
 *
 * What a child says is its exit code and the files it was asked to write; nothing is read out of
 * its words, which are kept in a log for people. A child that outlives its time, or the sweep, is
 * killed with everything it started.
 */
#ifndef ASSAY_JOBS_CHILD_H
#define ASSAY_JOBS_CHILD_H

#include "common/str.h"

#define CHILD_ARGS_MAX 48

/* A command line under construction; items are on the heap. */
struct child_args {
    char *items[CHILD_ARGS_MAX + 1]; /* NULL at the end */
    size_t n;
    bool failed; /* out of memory or of places: child_run says so */
};
void child_arg(struct child_args *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
void child_args_free(struct child_args *a);
void child_args_text(const struct child_args *a, struct strbuf *out); /* quoted for a shell */

struct child_limits {
    double seconds;  /* of wall time; 0: none */
    uint64_t memory; /* bytes of private memory (RLIMIT_DATA); 0: none */
    int retries;     /* more attempts after exit code 5 or 75, never after anything else */
    double pause;    /* seconds before the first retry, doubled for each later one */
};

enum child_end { CHILD_EXITED, CHILD_SIGNALLED, CHILD_TIMED_OUT };

struct child_result {
    enum child_end end;
    int code;       /* exit code, or the signal's number */
    int attempts;   /* 1: at once */
    double wall;    /* seconds of the last attempt */
    char said[300]; /* last line of its log; empty: silent */
};

/* Runs argv[0] (a path) with standard input empty, standard output to the file `out` (NULL: the
 * log) and standard error to the file `log`; both are replaced at each attempt. Environment and
 * folder are ours. *interrupted (may be NULL) not 0: the group gets SIGTERM, ten seconds later
 * SIGKILL, and the answer is ERR_INTERRUPTED. Other errors mean that nothing could be started: a
 * child that ran and failed is ERR_OK and a result. */
MUST_USE enum err_code child_run(const struct child_args *argv, const char *out, const char *log,
                                 const struct child_limits *limits, const volatile int *interrupted,
                                 struct child_result *r, struct err *e);

/* "exit code 3", "killed by signal 11 (Segmentation fault)", "stopped after 300 s". */
void child_ending(const struct child_result *r, const struct child_limits *limits,
                  struct strbuf *out);
/* What that ending means for us: its own code's class, ERR_INTERNAL for a crash, ERR_IO for a time
 * limit. */
enum err_code child_error(const struct child_result *r);

#endif
