/* batch_trace.c: collecting and writing one answer's part of a trace. */
#include "infer/batch_trace.h"

#include <stdio.h>
#include <stdlib.h>

bool batch_trace_prompt(struct batch_trace *t, const struct token_list *prompt)
{
    t->prompt.n = 0;
    for (size_t i = 0; i < prompt->n; i++)
        if (!token_list_push(&t->prompt, prompt->ids[i]))
            return false;
    return true;
}

bool batch_trace_layer(struct batch_trace *t, int64_t pos, int layer, const char *op, uint64_t hash)
{
    if (t->n_ops == t->cap_ops) {
        size_t cap = t->cap_ops ? t->cap_ops * 2 : 1024;
        struct batch_trace_op *more = realloc(t->ops, cap * sizeof *more);
        if (!more)
            return false;
        t->ops = more;
        t->cap_ops = cap;
    }
    t->ops[t->n_ops++] = (struct batch_trace_op){pos, {layer, op, hash}};
    return true;
}

/* Operations come layer by layer for all tokens of a step; the file has them token by token, each
 * token's in the order they ran: a counting sort by position. */
static enum err_code write_layers(const struct batch_trace *t, struct trace_writer *w,
                                  const char *custom_id, int turn, struct err *e)
{
    int64_t n_pos = 0;
    for (size_t i = 0; i < t->n_ops; i++)
        n_pos = MAX2(n_pos, t->ops[i].pos + 1);
    size_t *end = calloc((size_t)n_pos + 1, sizeof *end);
    struct trace_layer_op *sorted = calloc(t->n_ops + 1, sizeof *sorted);
    enum err_code rc = end && sorted ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < t->n_ops && rc == ERR_OK; i++)
        end[t->ops[i].pos + 1]++;
    for (int64_t p = 0; p < n_pos && rc == ERR_OK; p++)
        end[p + 1] += end[p];
    for (size_t i = 0; i < t->n_ops && rc == ERR_OK; i++)
        sorted[end[t->ops[i].pos]++] = t->ops[i].op;
    /* end[p] is now where the operations of p end, and those of p + 1 begin. */
    for (int64_t p = 0; p < n_pos && rc == ERR_OK; p++) {
        size_t from = p ? end[p - 1] : 0;
        if (end[p] > from)
            rc = trace_writer_layers(w, custom_id, turn, p, sorted + from, end[p] - from, e);
    }
    free(end);
    free(sorted);
    return rc;
}

enum err_code batch_trace_write(const struct batch_trace *t, struct trace_writer *w,
                                const char *custom_id, int turn, const struct answer *a, int top,
                                struct err *e)
{
    enum err_code rc = write_layers(t, w, custom_id, turn, e);
    if (rc != ERR_OK)
        return rc;
    struct trace_record r = {.custom_id = (char *)(uintptr_t)custom_id,
                             .turn = turn,
                             .prompt_ids = t->prompt.ids,
                             .n_prompt = (int64_t)t->prompt.n,
                             .text = a->text.len ? a->text.data : (char *)(uintptr_t) "",
                             .text_len = a->text.len,
                             .tok = calloc(a->n + 1, sizeof *r.tok),
                             .n = a->n};
    if (!r.tok)
        return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(r.finish, sizeof r.finish, "%s", finish_name(a->why));
    trace_prompt_hash(t->prompt.ids, t->prompt.n, r.prompt);
    for (size_t i = 0; i < a->n; i++) {
        const struct answer_token *from = &a->tok[i];
        struct trace_token *to = &r.tok[i];
        to->id = from->id;
        to->logprob = from->logprob;
        to->margin = from->margin;
        to->lse = from->lse;
        to->full = from->full; /* borrowed */
        to->hash = from->hash;
        to->n_top = MIN2(from->n_top, top);
        memcpy(to->top_id, from->top_id, sizeof to->top_id);
        memcpy(to->top_logprob, from->top_logprob, sizeof to->top_logprob);
    }
    rc = trace_writer_record(w, &r, e);
    free(r.tok);
    return rc;
}

void batch_trace_free(struct batch_trace *t)
{
    token_list_free(&t->prompt);
    free(t->ops);
    *t = (struct batch_trace){.n_ops = 0};
}
