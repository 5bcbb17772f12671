/* batch.c: which request runs when, until every line has its answer or the run is stopped.
 *
 * Requests are read in order, and so many run at a time that memory is bounded. What is done goes
 * to the store in any order (batch_store.h puts it in the order of the input); with a trace, which
 * has no store of its own, in the order of the input. Invariant: jobs[0..n_jobs) are the requests
 * that began and are not handed over, in the order in which they began.
 */
#include "infer/batch.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/log.h"
#include "infer/batch_crash.h"
#include "infer/batch_identity.h"
#include "infer/batch_job.h"
#include "infer/batch_status.h"
#include "infer/batch_store.h"

struct batch {
    const struct batch_options *o;
    const struct census *census;
    struct batch_result *res;
    struct batch_work work;
    struct io_lines *lines;
    struct batch_store *store;   /* NULL without an output */
    struct batch_status *status; /* NULL when there is nothing to do */
    struct trace_writer *trace;
    struct batch_job **jobs; /* [most] */
    size_t most, n_jobs;
    uint64_t next;             /* number of the request that is read next */
    struct batch_job *held;    /* read, and waits until it can run alone */
    bool at_end, alone;        /* alone: what runs has no company */
    uint64_t written, running; /* lines in OUT; requests begun and not answered */
    uint64_t stop_ns;          /* when the grace of a stop ends; 0: no stop */
    struct strbuf line;
};

/* ---- reading ----------------------------------------------------------------------------------
 */

/* The next line that is a request, checked against the census: what runs is what was counted. */
static enum err_code next_line(struct batch *b, const char **line, size_t *len, bool *too_long,
                               struct err *e)
{
    const struct census *c = b->census;
    *line = NULL;
    if (b->next == c->n_requests)
        return ERR_OK; /* what the file has more since then is for the next run */
    do {
        enum err_code rc = io_lines_next(b->lines, PROMPT_LINE_MAX, line, len, too_long, e);
        if (rc != ERR_OK)
            return rc;
        if (!*line)
            return err_set(
                e, ERR_INPUT, "%s changed under this run: it ends after request %llu of %llu",
                b->o->prompts, (unsigned long long)b->next, (unsigned long long)c->n_requests);
    } while (!*too_long && prompts_blank(*line, *len));
    if (census_sum(io_lines_number(b->lines), *line, *len) != c->sums[b->next])
        return err_set(e, ERR_INPUT,
                       "%s: line %llu changed under this run: it is not what it was when the run "
                       "began",
                       b->o->prompts, (unsigned long long)io_lines_number(b->lines));
    return ERR_OK;
}

/* The next request that has no answer yet; NULL at the end. */
static enum err_code read_job(struct batch *b, struct batch_job **out, enum batch_todo *todo,
                              struct err *e)
{
    *out = NULL;
    for (;;) {
        const char *line;
        size_t len;
        bool too_long;
        struct prompt_request *req;
        enum err_code rc = next_line(b, &line, &len, &too_long, e);
        if (rc != ERR_OK || !line)
            return rc;
        uint64_t n = b->next++;
        *todo = b->store ? batch_store_todo(b->store, n) : BATCH_TO_RUN;
        if (*todo == BATCH_ANSWERED)
            continue;
        rc =
            prompts_parse(line, len, io_lines_number(b->lines), too_long, &b->o->defaults, &req, e);
        return rc == ERR_OK ? batch_job_new(out, &b->work, n, req, e) : rc;
    }
}

/* An error line in place of an answer: the request has ended the process twice. */
static void set_aside(struct batch_job *j)
{
    j->set_aside = true;
    j->failed = ERR_INTERNAL;
    j->state = BATCH_JOB_DONE;
    snprintf(j->why, sizeof j->why,
             "set aside: the process ended twice while this request ran (--retry-failed runs it "
             "again)");
    log_warn("line %llu ('%.200s') is set aside: it ended the process twice",
             (unsigned long long)j->req->line, j->req->custom_id);
}

/* Fills the window. A request that is suspected of a crash runs alone: if the process ends again,
 * it is known by which. */
static enum err_code admit(struct batch *b, struct err *e)
{
    if (b->n_jobs == 0)
        b->alone = false;
    while (!b->stop_ns && !b->at_end && !b->alone && b->n_jobs < b->most) {
        enum batch_todo todo = BATCH_TO_RUN_ALONE;
        struct batch_job *j = b->held;
        b->held = NULL;
        if (!j) {
            enum err_code rc = read_job(b, &j, &todo, e);
            if (rc != ERR_OK)
                return rc;
            b->at_end = !j;
            if (!j)
                break;
        }
        if (todo == BATCH_TO_RUN_ALONE && b->n_jobs) {
            b->held = j;
            break;
        }
        b->alone = todo == BATCH_TO_RUN_ALONE;
        b->jobs[b->n_jobs++] = j;
        if (todo == BATCH_TO_SET_ASIDE)
            set_aside(j);
        if (b->store && j->state != BATCH_JOB_DONE) {
            enum err_code rc = batch_store_started(b->store, j->n, e);
            if (rc != ERR_OK)
                return rc;
        }
    }
    return ERR_OK;
}

static enum err_code start_ready(struct batch *b, struct err *e)
{
    for (size_t i = 0; i < b->n_jobs; i++) {
        struct batch_job *j = b->jobs[i];
        enum err_code rc = j->state == BATCH_JOB_READY ? batch_job_start(&b->work, j, e) : ERR_OK;
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* ---- handing over -----------------------------------------------------------------------------
 */

static enum err_code hand_over(struct batch *b, const struct batch_job *j, struct err *e)
{
    enum batch_outcome status = j->set_aside          ? BATCH_SET_ASIDE
                                : j->failed != ERR_OK ? BATCH_FAILED
                                                      : BATCH_OK;
    strbuf_clear(&b->line);
    enum err_code rc = batch_job_line(&b->work, j, &b->line, e);
    if (rc == ERR_OK && b->store)
        rc = batch_store_put(b->store, j->n, status, b->line.data, b->line.len, e);
    if (rc == ERR_OK && b->trace)
        rc = batch_job_trace(&b->work, j, b->trace, e);
    if (rc != ERR_OK)
        return rc;
    b->res->n_failed += status != BATCH_OK;
    b->res->n_ok += status == BATCH_OK;
    b->res->prompt_tokens = b->work.prompt_tokens;
    b->res->new_tokens = b->work.new_tokens;
    b->res->shared_tokens = runner_get_stats(b->work.runner).shared_tokens;
    if (b->o->on_progress)
        b->o->on_progress(b->o->ctx, b->res->n_ok + b->res->n_failed,
                          b->res->prompt_tokens + b->res->new_tokens);
    return ERR_OK;
}

static enum err_code finish_done(struct batch *b, struct err *e)
{
    enum err_code rc = ERR_OK;
    size_t kept = 0;
    for (size_t i = 0; i < b->n_jobs; i++) {
        struct batch_job *j = b->jobs[i];
        if (rc == ERR_OK && j->state == BATCH_JOB_DONE && !(b->trace && kept)) {
            rc = hand_over(b, j, e);
            batch_job_free(j);
        } else {
            b->jobs[kept++] = j;
        }
    }
    b->n_jobs = kept;
    if (rc == ERR_OK && b->o->max_failures >= 0 && b->res->n_failed > (uint64_t)b->o->max_failures)
        rc = err_set(e, ERR_PARTIAL,
                     "stopped: %llu requests failed, at most %lld may (--max-failures); --resume "
                     "goes on",
                     (unsigned long long)b->res->n_failed, (long long)b->o->max_failures);
    return rc;
}

/* ---- the loop ---------------------------------------------------------------------------------
 */

static void show_status(struct batch *b, const char *state)
{
    struct batch_counts c = {.requests = b->census->n_requests,
                             .ok = b->res->n_ok + b->res->n_kept - b->res->n_kept_failed,
                             .failed = b->res->n_failed + b->res->n_kept_failed,
                             .kept = b->res->n_kept,
                             .running = b->running,
                             .prompt_tokens = b->work.prompt_tokens,
                             .new_tokens = b->work.new_tokens};
    if (!b->status)
        return;
    c.written = b->written;
    batch_status_set(b->status, state, &c);
}

/* A signal: nothing new begins, and what runs has the time of the grace to end. */
static enum err_code check_stop(struct batch *b, struct err *e)
{
    if (!b->o->interrupted || !*b->o->interrupted)
        return ERR_OK;
    uint64_t now = clock_ns();
    if (!b->stop_ns) {
        b->stop_ns = now + (uint64_t)(MAX2(b->o->grace_s, 0) * 1e9) + 1;
        if (b->n_jobs && b->o->grace_s > 0)
            log_info("a signal: %zu running requests have %.0f s to end; another signal ends at "
                     "once",
                     b->n_jobs, b->o->grace_s);
    }
    if (b->n_jobs && now < b->stop_ns)
        return ERR_OK;
    if (b->n_jobs == 0 && b->at_end)
        return ERR_OK; /* there was nothing more to do */
    return err_set(e, ERR_INTERRUPTED,
                   "stopped by a signal: what is out is whole, --resume goes "
                   "on");
}

static enum err_code loop(struct batch *b, struct err *e)
{
    for (;;) {
        bool busy;
        enum err_code rc = admit(b, e);
        if (rc == ERR_OK)
            rc = finish_done(b, e);
        if (rc == ERR_OK && b->store)
            rc = batch_store_flush(b->store, &b->written, e); /* known before it runs */
        if (rc == ERR_OK)
            rc = start_ready(b, e);
        b->running = b->n_jobs;
        if (rc == ERR_OK)
            rc = check_stop(b, e);
        if (rc != ERR_OK)
            return rc;
        show_status(b, "running");
        if (b->at_end && b->n_jobs == 0)
            return ERR_OK;
        rc = runner_step(b->work.runner, &busy, e);
        if (rc == ERR_OK && b->work.broken != ERR_OK) {
            if (e)
                *e = b->work.broken_text;
            rc = b->work.broken;
        }
        if (rc != ERR_OK)
            return rc;
    }
}

/* ---- the run ----------------------------------------------------------------------------------
 */

enum err_code batch_check(const struct batch_options *o, struct census *census, struct err *e)
{
    struct batch_store_options so = {.out = o->out, .resume = o->resume, .force = o->force};
    bool stale;
    enum err_code rc = ERR_OK;
    *census = (struct census){.n_requests = 0};
    if (strcmp(o->prompts, "-") == 0)
        return err_set(e, ERR_USAGE, "--batch needs a file: it is read twice");
    if (o->out && io_exists(o->out) && io_same(o->prompts, o->out))
        return err_set(e, ERR_USAGE, "%s is both the input and the output", o->out);
    if (o->out)
        rc = batch_store_check(&so, e);
    if (rc == ERR_OK && o->out)
        rc = batch_status_check(o->out, &stale, e);
    return rc == ERR_OK ? census_take(census, o->prompts, e) : rc;
}

static enum err_code open_trace(struct batch *b, struct err *e)
{
    const struct batch_options *o = b->o;
    const struct lm *m = b->work.m;
    struct trace_header h = {.level = o->trace_level, .top_k = o->trace_top};
    snprintf(h.model, sizeof h.model, "%s", b->work.model.name);
    snprintf(h.arith, sizeof h.arith, "%s", b->work.model.arith);
    memcpy(h.fingerprint, m->fingerprint, sizeof h.fingerprint);
    memcpy(h.tokenizer, m->tokenizer_sha, sizeof h.tokenizer);
    memcpy(h.chat_template, m->template_sha, sizeof h.chat_template);
    memcpy(h.prompts, b->census->sha256, sizeof h.prompts);
    snprintf(h.build, sizeof h.build, "assay %s", ASSAY_VERSION);
    h.n_vocab = engine_hparams(m->engine)->n_vocab;
    enum err_code rc = batch_identity_settings(o, h.settings, e);
    if (rc != ERR_OK)
        return rc;
    return trace_writer_open(&b->trace, o->trace, &h, o->force, e);
}

static enum err_code open_store(struct batch *b, struct err *e)
{
    json_t *identity = batch_identity(b->work.m, b->o);
    struct batch_store_options so = {.out = b->o->out,
                                     .identity = identity,
                                     .census = b->census,
                                     .resume = b->o->resume,
                                     .force = b->o->force,
                                     .retry_failed = b->o->retry_failed};
    enum err_code rc =
        identity ? batch_store_open(&b->store, &so, e) : err_set(e, ERR_NOMEM, "out of memory");
    json_decref(identity);
    if (rc != ERR_OK)
        return rc;
    uint64_t ok;
    batch_store_kept(b->store, &ok, &b->res->n_kept_failed);
    b->res->n_kept = ok + b->res->n_kept_failed;
    bool stale; /* killed between its last line and its last word: that is made up for */
    rc = batch_status_check(b->o->out, &stale, e);
    if (rc == ERR_OK && (stale || !batch_store_idle(b->store)))
        rc = batch_status_new(&b->status, b->o->out, batch_store_fingerprint(b->store), e);
    batch_crash_arm(batch_store_journal_fd(b->store), batch_store_run(b->store));
    return rc;
}

static enum err_code open_all(struct batch *b, struct err *e)
{
    const struct batch_options *o = b->o;
    struct runner_options ro = {.chunk = o->chunk,
                                .no_prefix = o->no_prefix,
                                .events = batch_job_events(o),
                                .user = &b->work};
    if (ro.events.on_layer)
        ro.no_prefix = true; /* shared pages are not computed: their layers would be missing */
    b->jobs = calloc(b->most, sizeof(struct batch_job *));
    if (!b->jobs)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = io_lines_open(&b->lines, o->prompts, e);
    if (rc == ERR_OK && o->trace)
        rc = open_trace(b, e);
    if (rc == ERR_OK)
        rc = runner_new(&b->work.runner, b->work.m->engine, b->work.m->tok, &ro, e);
    return rc == ERR_OK && o->out ? open_store(b, e) : rc;
}

/* Closes everything; the first error stands, but for one of the files under a mere stop. */
static enum err_code close_all(struct batch *b, enum err_code rc, struct err *e)
{
    struct err e2 = {.text = ""};
    enum err_code rc2 = ERR_OK;
    runner_free(b->work.runner);
    for (size_t i = 0; i < b->n_jobs; i++)
        batch_job_free(b->jobs[i]);
    batch_job_free(b->held);
    free(b->jobs);
    io_lines_close(b->lines);
    strbuf_free(&b->line);
    batch_crash_disarm();
    rc2 = batch_store_close(b->store, rc, &b->written, &e2);
    if (rc2 != ERR_OK && (rc == ERR_OK || rc == ERR_INTERRUPTED || rc == ERR_PARTIAL)) {
        if (e)
            *e = e2;
        rc = rc2;
    }
    show_status(b, rc == ERR_OK                                 ? "done"
                   : rc == ERR_INTERRUPTED || rc == ERR_PARTIAL ? "stopped"
                                                                : "failed");
    batch_status_free(b->status);
    if (rc == ERR_OK && b->trace) {
        rc = trace_writer_close(b->trace, e);
        b->trace = NULL;
    }
    trace_writer_abort(b->trace);
    return rc;
}

enum err_code batch_run(struct lm *m, const struct batch_options *o, const struct census *census,
                        struct batch_result *res, struct err *e)
{
    struct batch b = {.o = o, .census = census, .res = res};
    *res = (struct batch_result){.n_ok = 0};
    b.work = (struct batch_work){.m = m, .o = o, .tracing = o->trace != NULL};
    b.work.model =
        (struct reply_model){.name = io_base(m->ckpt->path),
                             .fingerprint = m->fingerprint,
                             .arith = kern_arith_name(kern_arith(engine_kern(m->engine))),
                             .tok = m->tok};
    /* Hashes of every operation take some 10 KB a token: fewer jobs wait then. */
    b.most = (size_t)engine_get_plan(m->engine)->batch_seqs *
             (o->trace && o->trace_level == TRACE_LAYERS ? 1 : 4);
    enum err_code rc = open_all(&b, e);
    if (rc == ERR_OK)
        rc = loop(&b, e);
    rc = close_all(&b, rc, e);
    uint64_t failed = res->n_failed + res->n_kept_failed;
    if (rc == ERR_OK && failed)
        rc = err_set(e, ERR_PARTIAL, "%llu of %llu requests failed: see their error lines",
                     (unsigned long long)failed,
                     (unsigned long long)(res->n_failed + res->n_ok + res->n_kept));
    return rc;
}
