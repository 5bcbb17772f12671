/* self_prompts.c: the prompt file as tokens, before anything is compared. The turns of a
 * conversation become one prompt each, with the answers that the model gave, alone, in between. */
#include <stdlib.h>

#include "common/io.h"
#include "evals/self_private.h"
#include "infer/ask.h"
#include "infer/reply.h"

static struct self_prompt *add(struct self_prompts *p, struct prompt_request *req, int turn)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct self_prompt *more = realloc(p->list, cap * sizeof *more);
        if (!more)
            return NULL;
        p->list = more;
        p->cap = cap;
    }
    p->list[p->n] = (struct self_prompt){.req = req, .turn = turn};
    return &p->list[p->n++];
}

struct teller {
    struct answer a;
    bool failed;
};

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    struct teller *t = user;
    (void)req_user, (void)row;
    strbuf_append(&t->a.text, text, len);
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    struct teller *t = user;
    (void)req_user, (void)why;
    strbuf_append(&t->a.text, tail, len);
}

/* The text that the model answers to the prompt. */
static enum err_code answer(struct lm *m, const struct self_prompt *p, struct teller *t,
                            struct err *e)
{
    struct runner_options ro = {.events = {.on_token = on_token, .on_done = on_done}, .user = t};
    struct runner *r;
    enum err_code rc = runner_new(&r, m->engine, m->tok, &ro, e);
    if (rc != ERR_OK)
        return rc;
    rc = ask_submit(m, r, p->req, &p->tokens, 0, false, NULL, e);
    for (bool busy = true; rc == ERR_OK && busy;)
        rc = runner_step(r, &busy, e);
    runner_free(r);
    return rc == ERR_OK ? strbuf_ok(&t->a.text, e) : rc;
}

static bool say(json_t *history, const char *role, json_t *content)
{
    return json_array_append_new(history,
                                 json_pack("{s:s, s:o}", "role", role, "content", content)) == 0;
}

static enum err_code take_turns(struct self_prompts *p, struct lm *m, struct prompt_request *req,
                                bool special, struct err *e)
{
    json_t *history = json_array();
    bool ok = history && (!req->system || say(history, "system", json_incref(req->system)));
    enum err_code rc = ok ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < json_array_size(req->turns); i++) {
        struct teller t = {.failed = false};
        struct self_prompt *q = add(p, req, (int)i);
        if (!q || !say(history, "user", json_incref(json_array_get(req->turns, i))))
            rc = err_set(e, ERR_NOMEM, "out of memory");
        if (rc == ERR_OK)
            rc = ask_tokens(m, req, history, special, &q->tokens, e);
        if (rc == ERR_OK && i + 1 < json_array_size(req->turns)) {
            rc = answer(m, q, &t, e);
            const char *text = t.a.text.len ? t.a.text.data : "";
            if (rc == ERR_OK && !say(history, "assistant", json_stringn(text, t.a.text.len)))
                rc = err_set(e, ERR_NOMEM, "out of memory");
        }
        answer_reset(&t.a);
    }
    json_decref(history);
    return rc;
}

static enum err_code take_line(struct self_prompts *p, struct lm *m, struct prompt_request *req,
                               bool special, struct err *e)
{
    if (req->code != ERR_OK) {
        enum err_code rc = err_set(e, req->code, "%s", req->error);
        prompt_request_free(req);
        return rc;
    }
    if (req->kind == PROMPT_TURNS && json_array_size(req->turns) > 0)
        return take_turns(p, m, req, special, e);
    struct self_prompt *q = add(p, req, 0);
    if (!q) {
        prompt_request_free(req);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ask_tokens(m, req, NULL, special, &q->tokens, e);
}

enum err_code self_prompts_read(struct self_prompts *p, struct lm *m, const struct self_options *o,
                                struct err *e)
{
    struct io_lines *lines;
    *p = (struct self_prompts){.n = 0};
    enum err_code rc = io_lines_open(&lines, o->prompts, e);
    for (uint64_t taken = 0; rc == ERR_OK && (!o->max_lines || taken < o->max_lines);) {
        const char *line;
        size_t len;
        bool too_long;
        struct prompt_request *req = NULL;
        rc = io_lines_next(lines, PROMPT_LINE_MAX, &line, &len, &too_long, e);
        if (rc != ERR_OK || !line)
            break;
        if (!too_long && prompts_blank(line, len))
            continue;
        taken++;
        rc = prompts_parse(line, len, io_lines_number(lines), too_long, &o->defaults, &req, e);
        if (rc == ERR_OK)
            rc = err_wrap(e, take_line(p, m, req, o->special, e), "%s:%llu", o->prompts,
                          (unsigned long long)io_lines_number(lines));
    }
    for (size_t i = 0; i < p->n; i++)
        p->longest = MAX2(p->longest, (int64_t)p->list[i].tokens.n);
    io_lines_close(lines);
    return rc;
}

void self_prompts_free(struct self_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->list[i].turn == 0)
            prompt_request_free(p->list[i].req);
        token_list_free(&p->list[i].tokens);
    }
    free(p->list);
    *p = (struct self_prompts){.n = 0};
}
