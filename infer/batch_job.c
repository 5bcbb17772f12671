/* batch_job.c: the turns of a request, and what its callbacks collect. Owns no file and no order.
 */
#include "infer/batch_job.h"

#include <stdio.h>
#include <stdlib.h>

#include "infer/ask.h"

static void break_off(struct batch_work *w, enum err_code rc, const char *text)
{
    if (w->broken != ERR_OK)
        return;
    w->broken = rc;
    w->broken_text = (struct err){.text = ""};
    snprintf(w->broken_text.text, sizeof w->broken_text.text, "%s", text);
}

void batch_job_free(struct batch_job *j)
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

static bool wants_row(const struct batch_options *o, size_t token)
{
    for (size_t i = 0; i < o->n_trace_full; i++)
        if (o->trace_full[i] == (int64_t)token)
            return true;
    return false;
}

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    struct batch_work *w = user;
    struct batch_job *j = req_user;
    struct answer *a = &j->answers[j->turn];
    if (!answer_push(a, row))
        a->text.failed = true;
    else if (row->logits && wants_row(w->o, a->n - 1) &&
             !answer_keep_row(a, row->logits, engine_hparams(w->m->engine)->n_vocab))
        a->text.failed = true;
    strbuf_append(&a->text, text, len);
    w->new_tokens++;
}

static void on_row(void *user, void *req_user, const struct row_info *row)
{
    struct batch_work *w = user;
    struct batch_job *j = req_user;
    if (!answer_push(&j->answers[j->turn], row))
        break_off(w, ERR_NOMEM, "out of memory");
}

static void on_layer(void *user, void *req_user, int64_t pos, int layer, const char *op,
                     uint64_t hash)
{
    struct batch_work *w = user;
    struct batch_job *j = req_user;
    if (!batch_trace_layer(&j->traces[j->turn], pos, layer, op, hash))
        break_off(w, ERR_NOMEM, "out of memory");
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    struct batch_work *w = user;
    struct batch_job *j = req_user;
    struct answer *a = &j->answers[j->turn];
    strbuf_append(&a->text, tail, len);
    a->why = why;
    if (a->text.failed)
        break_off(w, ERR_NOMEM, "out of memory");
    j->state = j->turn + 1 < j->n_turns ? BATCH_JOB_READY : BATCH_JOB_DONE;
}

struct runner_events batch_job_events(const struct batch_options *o)
{
    struct runner_events ev = {.on_token = on_token, .on_row = on_row, .on_done = on_done};
    if (o->trace && o->trace_level == TRACE_LAYERS)
        ev.on_layer = on_layer;
    return ev;
}

/* ---- jobs -------------------------------------------------------------------------------------
 */

/* Adds the next user turn, and before it the answer to the one before. */
static enum err_code next_turn(struct batch_job *j, struct err *e)
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

enum err_code batch_job_start(struct batch_work *w, struct batch_job *j, struct err *e)
{
    struct err why = {.text = ""};
    enum err_code rc = ERR_OK;
    if (w->o->score && j->req->kind == PROMPT_TURNS)
        rc = err_set(&why, ERR_INPUT, "'turns' cannot be scored: give 'messages'");
    else if (w->o->score)
        json_object_set_new(j->req->template_vars, "add_generation_prompt", json_false());
    else if (j->req->kind == PROMPT_TURNS)
        rc = next_turn(j, &why);
    if (rc == ERR_OK)
        rc = ask_tokens(w->m, j->req, j->history, w->o->special, &j->prompt, &why);
    if (rc == ERR_OK) {
        j->answers[j->turn].n_prompt = (int64_t)j->prompt.n;
        w->prompt_tokens += j->prompt.n;
        if (j->traces && !batch_trace_prompt(&j->traces[j->turn], &j->prompt))
            return err_set(e, ERR_NOMEM, "out of memory");
        j->state = BATCH_JOB_RUNNING;
        int top = w->tracing ? w->o->trace_top : 0;
        if (w->tracing && w->o->n_trace_full)
            rc = ask_submit_rows(w->m, w->runner, j->req, &j->prompt, top, j, &why);
        else
            rc = ask_submit(w->m, w->runner, j->req, &j->prompt, top, w->o->score, j, &why);
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
    j->state = BATCH_JOB_DONE;
    return ERR_OK;
}

enum err_code batch_job_new(struct batch_job **out, struct batch_work *w, uint64_t n,
                            struct prompt_request *req, struct err *e)
{
    *out = NULL;
    struct batch_job *j = calloc(1, sizeof *j);
    if (!j) {
        prompt_request_free(req);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    j->n = n;
    j->req = req;
    j->n_turns = req->kind == PROMPT_TURNS && req->code == ERR_OK ? json_array_size(req->turns) : 1;
    j->answers = calloc(j->n_turns, sizeof *j->answers);
    j->traces = w->tracing ? calloc(j->n_turns, sizeof *j->traces) : NULL;
    if (!j->answers || (w->tracing && !j->traces)) {
        batch_job_free(j);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *out = j;
    if (req->code == ERR_OK)
        return ERR_OK;
    j->failed = req->code;
    snprintf(j->why, sizeof j->why, "%s", req->error);
    j->state = BATCH_JOB_DONE;
    return ERR_OK;
}

enum err_code batch_job_line(const struct batch_work *w, const struct batch_job *j,
                             struct strbuf *line, struct err *e)
{
    enum err_code rc = ERR_OK;
    if (j->failed != ERR_OK)
        reply_error(line, &w->model, j->req, j->failed, j->why);
    else if (w->o->score)
        rc = reply_score(line, &w->model, j->req, &j->answers[0], e);
    else
        rc = reply_line(line, &w->model, j->req, j->answers, j->n_turns, e);
    return rc == ERR_OK ? strbuf_ok(line, e) : rc;
}

enum err_code batch_job_trace(const struct batch_work *w, const struct batch_job *j,
                              struct trace_writer *t, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0; j->failed == ERR_OK && i < j->n_turns && rc == ERR_OK; i++)
        rc = batch_trace_write(&j->traces[i], t, j->req->custom_id, (int)i, &j->answers[i],
                               w->o->trace_top, e);
    return rc;
}
