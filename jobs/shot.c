/* shot.c: one run of a cell's prompts: its command line, its files, its hash and its time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "jobs/cell_private.h"

/* ---- files -------------------------------------------------------------------------------------
 */

char *work_file(const struct work *w, const char *label, const char *ending)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%s/%s%s", w->dir, label, ending);
    for (size_t i = strlen(w->dir); b.data && i < b.len; i++)
        if (b.data[i] == ' ')
            b.data[i] = '-';
    return strbuf_take(&b);
}

enum err_code work_nomem(const struct work *w)
{
    return err_set(w->e, ERR_NOMEM, "out of memory");
}

void work_more(struct judgement *j, const struct child_args *a)
{
    struct strbuf b = {0};
    struct child_args shown = *a;
    char name[] = "assay";
    if (shown.n)
        shown.items[0] = name;
    child_args_text(&shown, &b);
    if (b.data && !b.failed && b.len < sizeof j->more)
        memcpy(j->more, b.data, b.len + 1);
    strbuf_free(&b);
}

void work_settings(struct child_args *a, const struct sweep_setting *s, const struct path *p)
{
    int max_batch = p->max_batch ? p->max_batch : s->max_batch;
    if (s->arith)
        child_arg(a, "--arith=%s", s->arith);
    if (s->device)
        child_arg(a, "--device=%s", s->device);
    if (s->threads)
        child_arg(a, "--threads=%d", s->threads);
    if (max_batch)
        child_arg(a, "--max-batch=%d", max_batch);
    if (s->batch_tokens)
        child_arg(a, "--batch-tokens=%d", s->batch_tokens);
    if (s->max_tokens)
        child_arg(a, "--max-tokens=%d", s->max_tokens);
    if (s->max_ctx)
        child_arg(a, "--max-ctx=%d", s->max_ctx);
    if (s->chat)
        child_arg(a, "--chat");
    if (p->chunk)
        child_arg(a, "--chunk=%d", p->chunk);
}

/* ---- infer -------------------------------------------------------------------------------------
 */

void shot_args(const struct work *w, const char *program, const struct path *p, const char *out,
               const char *trace, struct child_args *a)
{
    child_arg(a, "%s", program);
    child_arg(a, "infer");
    child_arg(a, "--batch");
    child_arg(a, "%s", w->cell->prompts->path);
    child_arg(a, "-m");
    child_arg(a, "%s", w->model.path);
    child_arg(a, "-o");
    child_arg(a, "%s", out);
    child_arg(a, "--trace");
    child_arg(a, "%s", trace);
    child_arg(a, "--json");
    work_settings(a, w->cell->setting, p);
}

static enum err_code read_shot(struct work *w, const char *out, const char *trace,
                               const char *summary, struct shot *s)
{
    char both[2 * SHA256_HEX] = "";
    uint8_t digest[32];
    json_t *o = NULL;
    double prompt = 0, fresh = 0;
    enum err_code rc = sha256_file(out, both, w->e);
    if (rc == ERR_OK)
        rc = sha256_file(trace, both + SHA256_HEX - 1, w->e);
    if (rc != ERR_OK)
        return rc;
    sha256_of(both, strlen(both), digest);
    sha256_hex(digest, s->hash.hash);
    rc = json_read(summary, &o, w->e);
    if (rc != ERR_OK)
        return rc;
    rc = json_get_double(o, "seconds", JSON_REQUIRED, 0, 1e12, &s->seconds, w->e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "prompt_tokens", JSON_REQUIRED, 0, 1e15, &prompt, w->e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "new_tokens", JSON_REQUIRED, 0, 1e15, &fresh, w->e);
    json_decref(o);
    s->tokens = prompt + fresh;
    return err_wrap(w->e, rc, "%s", summary);
}

enum err_code shot_run(struct work *w, const char *program, const struct path *p, const char *label,
                       struct shot *s)
{
    struct child_args a = {.n = 0};
    char *out = work_file(w, label, ".jsonl"), *trace = work_file(w, label, ".trace.jsonl.gz");
    char *log = work_file(w, label, ".log"), *summary = work_file(w, label, ".json");
    enum err_code rc = out && trace && log && summary ? ERR_OK : work_nomem(w);
    int code;
    *s = (struct shot){.seconds = NAN};
    snprintf(s->hash.label, sizeof s->hash.label, "%s", label);
    if (rc == ERR_OK) {
        shot_args(w, program, p, out, trace, &a);
        child_arg(&a, "--force"); /* what an attempt before this one left */
        if (cell_child(w->run, &a, summary, log, "0", w->r, &code, &rc, w->e)) {
            struct err why = {.text = ""};
            struct err *own = w->e;
            w->e = &why;
            enum err_code bad = read_shot(w, out, trace, summary, s);
            w->e = own;
            if (bad != ERR_OK)
                cell_broken(w->r, VERDICT_BROKEN, bad, "infer: %.380s", why.text);
        }
    }
    free(out);
    free(trace);
    free(log);
    free(summary);
    child_args_free(&a);
    return rc;
}
