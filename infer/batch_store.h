/* batch_store.h: the files of a batch run: OUT, OUT.journal, OUT.run, and what survives of them.
 *
 * OUT grows in the order of the input and holds output lines only. A line that comes early waits in
 * OUT.journal, which also says what stands in OUT (with checksums) and what was running. When all
 * is out, the journal shrinks to OUT.run. Whatever ended a run (a signal, SIGKILL, a full disk, a
 * power cut), opening it again keeps every line that a checksum vouches for and forgets the rest:
 * those requests run again. Answers do not depend on what ran beside them, so the bytes are those
 * of an uninterrupted run. Who has the journal locked owns all of them.
 */
#ifndef ASSAY_INFER_BATCH_STORE_H
#define ASSAY_INFER_BATCH_STORE_H

#include "infer/batch_journal.h"
#include "infer/census.h"

struct batch_store;

struct batch_store_options {
    const char *out;
    const json_t *identity;      /* object of strings: what decides the bytes; the first difference
                                  * is named, in this order */
    const struct census *census; /* borrowed while the store is open */
    bool resume, force;
    bool retry_failed; /* with resume: failed lines run again */
};

/* Before a model is loaded: may this output be made (ERR_USAGE: it is there, or not ours), and is
 * nobody at it (ERR_BUSY)? Makes and changes nothing. */
MUST_USE enum err_code batch_store_check(const struct batch_store_options *o, struct err *e);

/* ERR_USAGE, ERR_BUSY as above; ERR_INPUT when the run that is there has another identity (the
 * field is named), other prompts, or cannot be read. */
MUST_USE enum err_code batch_store_open(struct batch_store **s, const struct batch_store_options *o,
                                        struct err *e);

enum batch_todo {
    BATCH_ANSWERED,
    BATCH_TO_RUN,
    BATCH_TO_RUN_ALONE, /* the process ended once while it ran, among others */
    BATCH_TO_SET_ASIDE  /* and again while it ran alone */
};
enum batch_todo batch_store_todo(const struct batch_store *s, uint64_t n);
/* Answered requests, and those of them that failed. */
void batch_store_kept(const struct batch_store *s, uint64_t *ok, uint64_t *failed);

bool batch_store_idle(const struct batch_store *s); /* a finished run: nothing will be written */

/* Request n is about to run; known to the next run once batch_store_flush has been called. */
MUST_USE enum err_code batch_store_started(struct batch_store *s, uint64_t n, struct err *e);
/* The output line of request n, with its "\n", in any order. */
MUST_USE enum err_code batch_store_put(struct batch_store *s, uint64_t n, enum batch_outcome status,
                                       const char *line, size_t len, struct err *e);
/* Hands what there is to the system; to the disk about ten times a second.
 * *n_out: lines that stand in OUT then. */
MUST_USE enum err_code batch_store_flush(struct batch_store *s, uint64_t *n_out, struct err *e);

/* For the marks of a crash (batch_crash.h). */
int batch_store_journal_fd(const struct batch_store *s);
const char *batch_store_run(const struct batch_store *s);
const char *batch_store_fingerprint(const struct batch_store *s); /* 64 digits */

/* how: the error that ended the run, ERR_OK when every request is answered: the journal becomes
 * OUT.run. A broken promise or lack of memory is held against the requests that ran. Frees s. */
MUST_USE enum err_code batch_store_close(struct batch_store *s, enum err_code how, uint64_t *n_out,
                                         struct err *e);

#endif
