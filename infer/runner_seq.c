/* runner_seq.c: what a request owns, its text and stop strings, and the layers of a step.
 *
 * Text is held back while it could still be the beginning of a stop string; the rest goes out as
 * soon as it is certain. A stop string ends the answer at its first place in the text, whatever
 * tokens it came in; of two that begin at one place either gives the same text.
 */
#include <stdlib.h>

#include "infer/runner_private.h"

static char **copy_strings(const char *const *s, int n)
{
    char **out = calloc((size_t)n + 1, sizeof *out);
    for (int i = 0; out && i < n; i++) {
        out[i] = strdup(s[i]);
        if (!out[i]) {
            while (i > 0)
                free(out[--i]);
            free(out);
            return NULL;
        }
    }
    return out;
}

static bool copy_request(struct run_seq *s, const struct request *q)
{
    const size_t n_ids = (size_t)(s->n_prompt + s->max_tokens);
    s->kv.page_max = (int)kv_pages_for((int64_t)n_ids);
    s->ids = malloc(n_ids * sizeof *s->ids);
    s->kv.page = malloc((size_t)s->kv.page_max * sizeof *s->kv.page);
    s->stop_ids = calloc((size_t)q->n_stop_ids + 1, sizeof *s->stop_ids);
    s->stop = copy_strings(q->stop, q->n_stop);
    struct logit_bias *bias = calloc((size_t)q->sampling.n_bias + 1, sizeof *bias);
    s->sampling.bias = bias;
    if (!s->ids || !s->kv.page || !s->stop_ids || !s->stop || !bias)
        return false;
    s->n_stop = q->n_stop;
    s->n_stop_ids = q->n_stop_ids;
    memcpy(s->ids, q->prompt, (size_t)q->n_prompt * sizeof *s->ids);
    if (q->n_stop_ids)
        memcpy(s->stop_ids, q->stop_ids, (size_t)q->n_stop_ids * sizeof *s->stop_ids);
    if (q->sampling.n_bias)
        memcpy(bias, q->sampling.bias, (size_t)q->sampling.n_bias * sizeof *bias);
    for (int i = 0; i < s->n_stop; i++)
        s->stop_max = MAX2(s->stop_max, strlen(s->stop[i]));
    return true;
}

struct run_seq *run_seq_new(const struct request *q, void *user)
{
    struct run_seq *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    const bool score = q->score_from >= 0;
    s->user = user;
    s->n_prompt = q->n_prompt;
    s->max_tokens = score ? 0 : q->max_tokens;
    s->score_from = score ? q->score_from : -1;
    s->n_tok = score ? q->n_prompt - 1 : q->n_prompt;
    s->want_logits = q->want_logits;
    s->top_k = q->top_k;
    s->stream.skip_special = true; /* an answer's text is what a reader sees */
    s->sampling = q->sampling;
    memcpy(s->stream_key, q->stream_key, sizeof s->stream_key);
    if (score ? s->n_tok == 0 || q->score_from >= s->n_tok : s->max_tokens == 0)
        s->why = FINISH_LENGTH;
    if (!copy_request(s, q)) {
        run_seq_free(s);
        return NULL;
    }
    return s;
}

void run_seq_free(struct run_seq *s)
{
    if (!s)
        return;
    free(s->ids);
    free(s->kv.page);
    free(s->stop_ids);
    for (int i = 0; s->stop && i < s->n_stop; i++)
        free(s->stop[i]);
    free(s->stop);
    free((void *)(uintptr_t)s->sampling.bias);
    tok_stream_free(&s->stream);
    strbuf_free(&s->text);
    free(s);
}

int64_t run_seq_shareable(const struct run_seq *s)
{
    int64_t first_row = s->score_from >= 0 ? s->score_from : s->n_tok - 1;
    return MIN2(first_row, s->n_prompt);
}

bool run_seq_wants_logits(const struct run_seq *s)
{
    return s->want_logits || s->score_from >= 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The first place from `from` on where a stop string stands; text.len when there is none. */
static size_t find_stop(const struct run_seq *s, size_t from)
{
    size_t best = s->text.len;
    for (int i = 0; i < s->n_stop; i++) {
        size_t n = strlen(s->stop[i]);
        const char *at = n ? memmem(s->text.data + from, s->text.len - from, s->stop[i], n) : NULL;
        if (at)
            best = MIN2(best, (size_t)(at - s->text.data));
    }
    return best;
}

/* How many bytes at the end are the beginning of a stop string. */
static size_t held_bytes(const struct run_seq *s)
{
    size_t most = MIN2(s->stop_max ? s->stop_max - 1 : 0, s->text.len - s->given);
    for (size_t n = most; n > 0; n--) {
        for (int i = 0; i < s->n_stop; i++) {
            if (strlen(s->stop[i]) > n &&
                memcmp(s->text.data + s->text.len - n, s->stop[i], n) == 0)
                return n;
        }
    }
    return 0;
}

/* After new text: ends the answer at a stop string, else says how much is certain. A stop string
 * that is complete begins at most stop_max - 1 bytes before the new text, and never before what
 * was given out. */
static void settle_text(struct run_seq *s)
{
    s->ready = 0;
    if (!s->text.data)
        return;
    size_t at = s->n_stop ? find_stop(s, s->given) : s->text.len;
    if (at < s->text.len) {
        s->text.len = at;
        s->why = FINISH_STOP;
        s->cut = true;
        s->ready = at - s->given;
        return;
    }
    s->ready = s->text.len - s->given - held_bytes(s);
}

enum err_code run_seq_push_text(struct run_seq *s, const struct tokenizer *tok, int32_t id,
                                struct err *e)
{
    s->ready = 0;
    for (int i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id) {
            s->why = FINISH_STOP;
            return ERR_OK;
        }
    }
    if (!tok)
        return ERR_OK;
    enum err_code rc = tok_stream_push(tok, &s->stream, id, &s->text, e);
    if (rc == ERR_OK)
        rc = strbuf_ok(&s->text, e);
    if (rc == ERR_OK)
        settle_text(s);
    return rc;
}

const char *run_seq_take_text(struct run_seq *s, size_t *len)
{
    *len = s->ready;
    const char *text = s->ready ? s->text.data + s->given : "";
    s->given += s->ready;
    s->ready = 0;
    return text;
}

enum err_code run_seq_end_text(struct run_seq *s, const struct tokenizer *tok, const char **text,
                               size_t *len, struct err *e)
{
    if (tok && !s->cut) {
        enum err_code rc = tok_stream_end(tok, &s->stream, &s->text, e);
        if (rc == ERR_OK)
            rc = strbuf_ok(&s->text, e);
        if (rc != ERR_OK)
            return rc;
        settle_text(s);
    }
    *len = s->text.len - s->given;
    *text = *len ? s->text.data + s->given : "";
    return ERR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

void run_trace_start(struct run_trace *t)
{
    t->n_ops = t->n_hashes = 0;
}

void run_trace_tap(void *ctx, int layer, const char *op, int n_rows, const uint64_t *hash)
{
    struct run_trace *t = ctx;
    if (t->n_ops == t->cap_ops) {
        size_t cap = t->cap_ops ? t->cap_ops * 2 : 512;
        struct run_trace_op *more = realloc(t->ops, cap * sizeof *more);
        t->failed |= !more;
        if (!more)
            return;
        t->ops = more;
        t->cap_ops = cap;
    }
    size_t need = t->n_hashes + (size_t)n_rows;
    if (need > t->cap_hashes) {
        size_t cap = MAX2(need, t->cap_hashes * 2);
        uint64_t *more = realloc(t->hashes, cap * sizeof *more);
        t->failed |= !more;
        if (!more)
            return;
        t->hashes = more;
        t->cap_hashes = cap;
    }
    t->ops[t->n_ops++] = (struct run_trace_op){layer, n_rows, op, t->n_hashes};
    memcpy(t->hashes + t->n_hashes, hash, (size_t)n_rows * sizeof *hash);
    t->n_hashes = need;
}

void run_trace_emit(const struct run_trace *t, int row, int out_row, const struct runner_options *o,
                    void *req_user, int64_t pos)
{
    for (size_t i = 0; i < t->n_ops; i++) {
        const struct run_trace_op *op = &t->ops[i];
        bool of_output = engine_op_of_output(op->layer, op->op);
        int at = of_output ? out_row : row;
        if (at >= 0 && at < op->n_rows)
            o->events.on_layer(o->user, req_user, pos, op->layer, op->op,
                               t->hashes[op->first + (size_t)at]);
    }
}

void run_trace_free(struct run_trace *t)
{
    free(t->ops);
    free(t->hashes);
}
