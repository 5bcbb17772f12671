/* batch.c: reading ahead, running, and writing in order.
 *
 * A window of jobs is open at a time (bounded memory): lines are read in order, turned into tokens
 * and submitted; what is done at the head of the window is written. Invariant: jobs[head..tail) are
 * the lines after the last one written, in input order.
 */
#include "infer/batch.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "infer/ask.h"
#include "infer/batch_out.h"
#include "infer/batch_trace.h"

enum job_state { JOB_RUNNING, JOB_NEXT_TURN, JOB_DONE };

struct job {
    struct prompt_request *req;
    struct answer *answers; /* one per turn */
    size_t n_turns, turn;
    json_t *history;            /* messages so far, of turns */
    struct batch_trace *traces; /* one per turn, when there is a trace */
    struct token_list prompt;
    enum job_state state;
    enum err_code failed; /* why the line became an error line */
    char why[ERR_TEXT_MAX];
    struct batch *batch;
};

struct batch {
    struct lm *m;
    const struct batch_options *o;
    struct batch_result *res;
    struct runner *runner;
    struct io_lines *lines;
    struct batch_out *out;
    struct trace_writer *trace;
    struct reply_model model;
    struct job **jobs; /* ring of `window` */
    size_t window, head, count;
    bool at_end;
    enum err_code broken; /* an error inside a callback */
    struct err broken_text;
};

static void break_off(struct batch *b, enum err_code rc, const struct err *e)
{
    if (b->broken == ERR_OK && rc != ERR_OK) {
        b->broken = rc;
        b->broken_text = *e;
    }
}

static void job_free(struct job *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->n_turns; i++)
        answer_reset(&j->answers[i]);
    for (size_t i = 0; j->traces && i < j->n_turns; i++)
        batch_trace_free(&j->traces[i]);
    free(j->traces);
    free(j->answers);
    json_decref(j->history);
    token_list_free(&j->prompt);
    prompt_request_free(j->req);
    free(j);
}

/* ---- callbacks --------------------------------------------------------------------------------
 */

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    struct batch *b = user;
    struct job *j = req_user;
    struct answer *a = &j->answers[j->turn];
    if (!answer_push(a, row))
        a->text.failed = true;
    strbuf_append(&a->text, text, len);
    b->res->new_tokens++;
}

static void on_row(void *user, void *req_user, const struct row_info *row)
{
    struct batch *b = user;
    struct job *j = req_user;
    if (!answer_push(&j->answers[j->turn], row)) {
        struct err e = {.text = "out of memory"};
        break_off(b, ERR_NOMEM, &e);
    }
}

static void on_layer(void *user, void *req_user, int64_t pos, int layer, const char *op,
                     uint64_t hash)
{
    struct batch *b = user;
    struct job *j = req_user;
    if (!batch_trace_layer(&j->traces[j->turn], pos, layer, op, hash)) {
        struct err e = {.text = "out of memory"};
        break_off(b, ERR_NOMEM, &e);
    }
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    struct batch *b = user;
    struct job *j = req_user;
    struct answer *a = &j->answers[j->turn];
    strbuf_append(&a->text, tail, len);
    a->why = why;
    if (a->text.failed) {
        struct err e = {.text = "out of memory"};
        break_off(b, ERR_NOMEM, &e);
    }
    j->state = j->turn + 1 < j->n_turns ? JOB_NEXT_TURN : JOB_DONE;
}

/* ---- jobs -------------------------------------------------------------------------------------
 */

/* Adds the next user turn, and before it the answer to the one before. */
static enum err_code next_turn(struct job *j, struct err *e)
{
    const struct prompt_request *r = j->req;
    bool ok = true;
    if (!j->history) {
        j->history = json_array();
        ok = j->history != NULL;
        if (ok && r->system)
            ok = json_array_append_new(j->history, json_pack("{s:s, s:O}", "role", "system",
                                                             "content", r->system)) == 0;
    } else {
        const struct answer *a = &j->answers[j->turn++];
        ok = json_array_append_new(j->history,
                                   json_pack("{s:s, s:s%}", "role", "assistant", "content",
                                             a->text.len ? a->text.data : "", a->text.len)) == 0;
    }
    if (ok)
        ok = json_array_append_new(j->history, json_pack("{s:s, s:O}", "role", "user", "content",
                                                         json_array_get(r->turns, j->turn))) == 0;
    return ok ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

/* Starts a job or its next turn; a fault of the request makes it an error line. */
static enum err_code start(struct batch *b, struct job *j, struct err *e)
{
    struct err why = {.text = ""};
    enum err_code rc = ERR_OK;
    if (b->o->score && j->req->kind == PROMPT_TURNS)
        rc = err_set(&why, ERR_INPUT, "'turns' cannot be scored: give 'messages'");
    else if (b->o->score)
        json_object_set_new(j->req->template_vars, "add_generation_prompt", json_false());
    else if (j->req->kind == PROMPT_TURNS)
        rc = next_turn(j, &why);
    if (rc == ERR_OK)
        rc = ask_tokens(b->m, j->req, j->history, b->o->special, &j->prompt, &why);
    if (rc == ERR_OK) {
        j->answers[j->turn].n_prompt = (int64_t)j->prompt.n;
        b->res->prompt_tokens += j->prompt.n;
        if (j->traces && !batch_trace_prompt(&j->traces[j->turn], &j->prompt))
            return err_set(e, ERR_NOMEM, "out of memory");
        j->state = JOB_RUNNING;
        rc = ask_submit(b->m, b->runner, j->req, &j->prompt, b->trace ? b->o->trace_top : 0,
                        b->o->score, j, &why);
    }
    if (rc == ERR_OK)
        return ERR_OK;
    if (rc != ERR_INPUT) {
        if (e)
            *e = why;
        return err_wrap(e, rc, "line %llu", (unsigned long long)j->req->line);
    }
    j->failed = rc;
    memcpy(j->why, why.text, sizeof j->why);
    j->state = JOB_DONE;
    return ERR_OK;
}

static enum err_code add_job(struct batch *b, struct prompt_request *req, struct err *e)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        prompt_request_free(req);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    j->req = req;
    j->batch = b;
    j->n_turns = req->kind == PROMPT_TURNS && req->code == ERR_OK ? json_array_size(req->turns) : 1;
    j->answers = calloc(j->n_turns, sizeof *j->answers);
    j->traces = b->trace ? calloc(j->n_turns, sizeof *j->traces) : NULL;
    if (!j->answers || (b->trace && !j->traces)) {
        job_free(j);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    b->jobs[(b->head + b->count++) % b->window] = j;
    if (req->code == ERR_OK)
        return start(b, j, e);
    j->failed = req->code;
    strncpy(j->why, req->error, sizeof j->why - 1);
    j->state = JOB_DONE;
    return ERR_OK;
}

/* Reads the next line that is a request into *req; NULL at the end. */
static enum err_code read_request(struct batch *b, struct prompt_request **req, struct err *e)
{
    const char *line;
    size_t len;
    bool too_long;
    *req = NULL;
    for (;;) {
        enum err_code rc = io_lines_next(b->lines, PROMPT_LINE_MAX, &line, &len, &too_long, e);
        if (rc != ERR_OK || !line)
            return rc;
        if (too_long || !prompts_blank(line, len))
            return prompts_parse(line, len, io_lines_number(b->lines), too_long, &b->o->defaults,
                                 req, e);
    }
}

static enum err_code fill_window(struct batch *b, struct err *e)
{
    while (!b->at_end && b->count < b->window) {
        struct prompt_request *req;
        enum err_code rc = read_request(b, &req, e);
        if (rc != ERR_OK)
            return rc;
        b->at_end = !req;
        if (req)
            rc = add_job(b, req, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

static enum err_code write_head(struct batch *b, struct err *e)
{
    struct strbuf line = {0};
    enum err_code rc = ERR_OK;
    while (b->count && rc == ERR_OK) {
        struct job *j = b->jobs[b->head];
        if (j->state != JOB_DONE)
            break;
        strbuf_clear(&line);
        if (j->failed != ERR_OK)
            reply_error(&line, &b->model, j->req, j->failed, j->why);
        else if (b->o->score)
            rc = reply_score(&line, &b->model, j->req, &j->answers[0], e);
        else
            rc = reply_line(&line, &b->model, j->req, j->answers, j->n_turns, e);
        if (rc == ERR_OK)
            rc = strbuf_ok(&line, e);
        if (rc == ERR_OK && b->out)
            rc = batch_out_line(b->out, line.data, line.len, e);
        for (size_t i = 0; b->trace && j->failed == ERR_OK && i < j->n_turns && rc == ERR_OK; i++)
            rc = batch_trace_write(&j->traces[i], b->trace, j->req->custom_id, (int)i,
                                   &j->answers[i], b->o->trace_top, e);
        if (rc != ERR_OK)
            break;
        b->res->n_failed += j->failed != ERR_OK;
        b->res->n_ok += j->failed == ERR_OK;
        job_free(j);
        b->head = (b->head + 1) % b->window;
        b->count--;
        if (b->o->on_progress)
            b->o->on_progress(b->o->ctx, b->res->n_ok + b->res->n_failed,
                              b->res->prompt_tokens + b->res->new_tokens);
    }
    strbuf_free(&line);
    return rc;
}

static enum err_code start_turns(struct batch *b, struct err *e)
{
    for (size_t i = 0; i < b->count; i++) {
        struct job *j = b->jobs[(b->head + i) % b->window];
        enum err_code rc = j->state == JOB_NEXT_TURN ? start(b, j, e) : ERR_OK;
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

static enum err_code loop(struct batch *b, struct err *e)
{
    for (;;) {
        bool busy;
        enum err_code rc = fill_window(b, e);
        if (rc == ERR_OK)
            rc = start_turns(b, e);
        if (rc == ERR_OK)
            rc = write_head(b, e);
        if (rc != ERR_OK)
            return rc;
        if (b->o->interrupted && *b->o->interrupted)
            return err_set(e, ERR_INTERRUPTED,
                           "stopped by a signal: what is out is whole, "
                           "--resume goes on");
        if (b->at_end && b->count == 0)
            return ERR_OK;
        rc = runner_step(b->runner, &busy, e);
        if (rc == ERR_OK && b->broken != ERR_OK) {
            if (e)
                *e = b->broken_text;
            rc = b->broken;
        }
        if (rc != ERR_OK)
            return rc;
    }
}

/* ---- the run ----------------------------------------------------------------------------------
 */

enum err_code batch_check(const struct batch_options *o, struct prompt_census *census,
                          struct err *e)
{
    if (strcmp(o->prompts, "-") == 0)
        return err_set(e, ERR_USAGE, "--batch needs a file: it is read twice");
    if (o->out && io_exists(o->out)) {
        if (io_same(o->prompts, o->out))
            return err_set(e, ERR_USAGE, "%s is both the input and the output", o->out);
        if (!o->resume && !o->force)
            return err_set(e, ERR_USAGE, "%s exists (--resume goes on, --force replaces it)",
                           o->out);
    }
    return prompts_census(o->prompts, census, e);
}

/* The settings a request starts from, as canonical text: another value is another run. */
static char *settings_text(const struct batch_options *o)
{
    const struct prompt_settings *s = &o->defaults.set;
    struct strbuf b = {0};
    strbuf_printf(&b, "max_tokens %lld, temperature ", (long long)s->max_tokens);
    json_put_double(&b, s->sampling.temperature);
    strbuf_printf(&b, ", top_k %lld, top_p ", (long long)s->sampling.top_k);
    json_put_double(&b, s->sampling.top_p);
    strbuf_puts(&b, ", min_p ");
    json_put_double(&b, s->sampling.min_p);
    strbuf_puts(&b, ", repetition_penalty ");
    json_put_double(&b, s->sampling.repetition_penalty);
    strbuf_printf(&b,
                  ", seed %llu, logprobs %d/%lld, ignore_eos %d, chat %d, special %d, "
                  "score %d",
                  (unsigned long long)s->sampling.seed, s->logprobs, (long long)s->top_logprobs,
                  s->ignore_eos, o->defaults.chat, o->special, o->score);
    if (o->defaults.date)
        strbuf_printf(&b, ", date %s", o->defaults.date);
    for (int i = 0; i < s->n_stop; i++) {
        strbuf_puts(&b, ", stop ");
        json_put_string(&b, s->stop[i], strlen(s->stop[i]));
    }
    for (int i = 0; i < s->n_stop_ids; i++)
        strbuf_printf(&b, ", stop_id %d", s->stop_ids[i]);
    for (int i = 0; i < s->sampling.n_bias; i++) {
        strbuf_printf(&b, ", bias %d:", s->sampling.bias[i].id);
        json_put_double(&b, (double)s->sampling.bias[i].bias);
    }
    return strbuf_take(&b);
}

static json_t *make_identity(const struct batch *b, const struct prompt_census *census)
{
    char *settings = settings_text(b->o);
    json_t *id = settings ? json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "made_by",
                                      "assay " ASSAY_VERSION, "model", b->model.name, "arith",
                                      b->model.arith, "prompts", census->sha256, "settings",
                                      settings, "tokenizer", b->m->tokenizer_sha, "template",
                                      b->m->template_sha, "fingerprint", b->m->fingerprint)
                          : NULL;
    free(settings);
    return id;
}

/* Passes over the lines that an earlier run has answered; each must be the input's own. */
static enum err_code skip_kept(struct batch *b, uint64_t kept, struct err *e)
{
    for (uint64_t n = 0; n < kept; n++) {
        struct prompt_request *req;
        char *id;
        bool failed = false;
        enum err_code rc = read_request(b, &req, e);
        if (rc == ERR_OK && !req)
            rc = err_set(e, ERR_INPUT, "%s has %llu lines, the input only %llu", b->o->out,
                         (unsigned long long)kept, (unsigned long long)n);
        if (rc != ERR_OK)
            return rc;
        rc = batch_out_kept_id(b->out, n, &id, &failed, e);
        if (rc == ERR_OK && (!id || strcmp(id, req->custom_id) != 0))
            rc = err_set(e, ERR_INPUT, "%s: line %llu answers '%s', the input has '%s' there",
                         b->o->out, (unsigned long long)n + 1, id ? id : "", req->custom_id);
        b->res->n_kept_failed += failed;
        free(id);
        prompt_request_free(req);
        if (rc != ERR_OK)
            return rc;
    }
    b->res->n_kept = kept;
    return ERR_OK;
}

static enum err_code open_all(struct batch *b, const struct prompt_census *census, struct err *e)
{
    const struct batch_options *o = b->o;
    struct runner_options ro = {
        .chunk = o->chunk,
        .no_prefix = o->no_prefix,
        .events = {.on_token = on_token, .on_row = on_row, .on_done = on_done},
        .user = b};
    uint64_t kept = 0;
    enum err_code rc = io_lines_open(&b->lines, o->prompts, e);
    if (rc == ERR_OK && o->trace) {
        struct trace_header h = {.level = o->trace_level, .top_k = o->trace_top};
        snprintf(h.model, sizeof h.model, "%s", b->model.name);
        snprintf(h.arith, sizeof h.arith, "%s", b->model.arith);
        memcpy(h.fingerprint, b->m->fingerprint, sizeof h.fingerprint);
        memcpy(h.tokenizer, b->m->tokenizer_sha, sizeof h.tokenizer);
        memcpy(h.chat_template, b->m->template_sha, sizeof h.chat_template);
        memcpy(h.prompts, census->sha256, sizeof h.prompts);
        rc = trace_writer_open(&b->trace, o->trace, &h, o->force, e);
        if (o->trace_level == TRACE_LAYERS) {
            ro.events.on_layer = on_layer;
            ro.no_prefix = true; /* shared pages are not computed: their layers would be missing */
        }
    }
    if (rc == ERR_OK)
        rc = runner_new(&b->runner, b->m->engine, b->m->tok, &ro, e);
    if (rc == ERR_OK && o->out) {
        json_t *identity = make_identity(b, census);
        rc = identity ? batch_out_open(&b->out, o->out, identity, o->resume, o->force, &kept, e)
                      : err_set(e, ERR_NOMEM, "out of memory");
        json_decref(identity);
    }
    return rc == ERR_OK ? skip_kept(b, kept, e) : rc;
}

enum err_code batch_run(struct lm *m, const struct batch_options *o,
                        const struct prompt_census *census, struct batch_result *res, struct err *e)
{
    struct batch b = {.m = m, .o = o, .res = res};
    *res = (struct batch_result){.n_ok = 0};
    b.model = (struct reply_model){.name = io_base(m->ckpt->path),
                                   .fingerprint = m->fingerprint,
                                   .arith = kern_arith_name(kern_arith(engine_kern(m->engine))),
                                   .tok = m->tok};
    /* Hashes of every operation take some 10 KB a token: fewer jobs wait then. */
    b.window = (size_t)engine_get_plan(m->engine)->batch_seqs *
               (o->trace && o->trace_level == TRACE_LAYERS ? 1 : 4);
    b.jobs = calloc(b.window, sizeof(struct job *));
    enum err_code rc = b.jobs ? open_all(&b, census, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = loop(&b, e);
    runner_free(b.runner);
    for (size_t i = 0; i < b.count; i++)
        job_free(b.jobs[(b.head + i) % b.window]);
    free(b.jobs);
    io_lines_close(b.lines);
    struct err e2 = {.text = ""};
    enum err_code rc2 = batch_out_close(b.out, &e2);
    if (rc == ERR_OK && b.trace) {
        rc = trace_writer_close(b.trace, e);
        b.trace = NULL;
    }
    trace_writer_abort(b.trace);
    if (rc == ERR_OK && rc2 != ERR_OK) {
        if (e)
            *e = e2;
        rc = rc2;
    }
    uint64_t failed = res->n_failed + res->n_kept_failed;
    if (rc == ERR_OK && failed)
        rc = err_set(e, ERR_PARTIAL, "%llu of %llu requests failed: see their error lines",
                     (unsigned long long)failed,
                     (unsigned long long)(res->n_failed + res->n_ok + res->n_kept));
    return rc;
}
