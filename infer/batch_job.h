/* batch_job.h: one request of a batch from its line to its output line.
 *
 * Owns the request, its turns and what is collected of the answers. Submitting goes through the
 * batch's runner; order, files and counting are batch.c's.
 */
#ifndef ASSAY_INFER_BATCH_JOB_H
#define ASSAY_INFER_BATCH_JOB_H

#include "infer/batch.h"
#include "infer/batch_trace.h"

enum batch_job_state {
    BATCH_JOB_READY, /* its next turn is to be started */
    BATCH_JOB_RUNNING,
    BATCH_JOB_DONE
};

struct batch_job {
    uint64_t n; /* number of the request in the input, from 0 */
    struct prompt_request *req;
    struct answer *answers; /* one per turn */
    size_t n_turns, turn;
    json_t *history;            /* messages so far, of turns */
    struct batch_trace *traces; /* one per turn, when there is a trace */
    struct token_list prompt;
    enum batch_job_state state;
    enum err_code failed; /* why the line became an error line */
    char why[ERR_TEXT_MAX];
    bool set_aside; /* never run again: it ended the process twice */
};

/* What jobs share, and where their callbacks put what they find. */
struct batch_work {
    struct lm *m;
    const struct batch_options *o;
    struct runner *runner;
    struct reply_model model;
    bool tracing;
    uint64_t prompt_tokens, new_tokens;
    enum err_code broken; /* an error inside a callback */
    struct err broken_text;
};

/* Callbacks for the runner; user is the batch_work. */
struct runner_events batch_job_events(const struct batch_options *o);

/* Takes req, whatever happens. A fault of the request makes the job an error line. */
MUST_USE enum err_code batch_job_new(struct batch_job **j, struct batch_work *w, uint64_t n,
                                     struct prompt_request *req, struct err *e);
void batch_job_free(struct batch_job *j);
/* Submits the job or its next turn. */
MUST_USE enum err_code batch_job_start(struct batch_work *w, struct batch_job *j, struct err *e);
/* Appends its output line. */
MUST_USE enum err_code batch_job_line(const struct batch_work *w, const struct batch_job *j,
                                      struct strbuf *line, struct err *e);
MUST_USE enum err_code batch_job_trace(const struct batch_work *w, const struct batch_job *j,
                                       struct trace_writer *t, struct err *e);

#endif
