/* once.c: a runner with one request in it. */
#include "infer/once.h"

#include "infer/ask.h"

struct listener {
    const struct once_options *o;
    struct answer *a;
    bool failed;
};

static void give(struct listener *l, const char *text, size_t len)
{
    strbuf_append(&l->a->text, text, len);
    if (len && l->o->on_text)
        l->o->on_text(l->o->ctx, text, len);
}

static void on_token(void *user, void *req_user, const struct row_info *row, const char *text,
                     size_t len)
{
    struct listener *l = user;
    (void)req_user;
    l->failed |= !answer_push(l->a, row);
    give(l, text, len);
}

static void on_done(void *user, void *req_user, enum finish_reason why, const char *tail,
                    size_t len)
{
    struct listener *l = user;
    (void)req_user;
    l->a->why = why;
    give(l, tail, len);
}

enum err_code once_run(struct lm *m, const struct prompt_request *r, const struct once_options *o,
                       struct answer *a, struct err *e)
{
    struct listener l = {.o = o, .a = a};
    struct runner_options ro = {.events = {.on_token = on_token, .on_done = on_done}, .user = &l};
    struct runner *runner = NULL;
    struct token_list prompt = {0};
    *a = (struct answer){.n = 0};
    enum err_code rc = ask_tokens(m, r, NULL, o->special, &prompt, e);
    if (rc == ERR_OK)
        rc = runner_new(&runner, m->engine, m->tok, &ro, e);
    if (rc == ERR_OK)
        rc = ask_submit(m, runner, r, &prompt, 0, false, NULL, e);
    a->n_prompt = (int64_t)prompt.n;
    for (bool busy = true; rc == ERR_OK && busy;) {
        rc = runner_step(runner, &busy, e);
        if (rc == ERR_OK && (l.failed || a->text.failed))
            rc = err_set(e, ERR_NOMEM, "out of memory");
        if (rc == ERR_OK && o->interrupted && *o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "stopped by a signal");
    }
    runner_free(runner);
    token_list_free(&prompt);
    return rc;
}
