/* reply.c: the text of output lines. Owns no file and no order. */
#include "infer/reply.h"

#include <stdlib.h>

#include "ckpt/dtype.h"
#include "common/hash.h"

bool answer_push(struct answer *a, const struct row_info *row)
{
    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct answer_token *more = realloc(a->tok, cap * sizeof *more);
        if (!more)
            return false;
        a->tok = more;
        a->cap = cap;
    }
    struct answer_token *t = &a->tok[a->n++];
    *t = (struct answer_token){.id = row->id,
                               .logprob = row->logprob,
                               .margin = row->margin,
                               .lse = row->lse,
                               .hash = row->hash,
                               .n_top = MIN2(row->n_top, PROMPT_TOP_MAX)};
    for (int i = 0; i < t->n_top; i++) {
        t->top_id[i] = row->top_id[i];
        t->top_logprob[i] = row->top_logprob[i];
    }
    return true;
}

bool answer_keep_row(struct answer *a, const float *logits, int64_t n_vocab)
{
    uint16_t *full = malloc((size_t)n_vocab * sizeof *full);
    for (int64_t i = 0; full && i < n_vocab; i++)
        full[i] = f16_from_f32(logits[i]);
    a->tok[a->n - 1].full = full;
    return full != NULL;
}

void answer_reset(struct answer *a)
{
    strbuf_free(&a->text);
    for (size_t i = 0; i < a->n; i++)
        free(a->tok[i].full);
    free(a->tok);
    *a = (struct answer){.n = 0};
}

const char *finish_name(enum finish_reason why)
{
    return why == FINISH_STOP ? "stop" : why == FINISH_LENGTH ? "length" : "none";
}

/* A token's own bytes, and as text with U+FFFD for what is not UTF-8. */
static enum err_code put_token(struct strbuf *out, const struct reply_model *m, int32_t id,
                               float logprob, struct err *e)
{
    struct strbuf piece = {0}, text = {0};
    enum err_code rc = tokenizer_piece(m->tok, id, &piece, e);
    if (rc != ERR_OK)
        goto out;
    for (size_t at = 0; at < piece.len;) {
        size_t good = str_utf8_valid(piece.data + at, piece.len - at);
        strbuf_append(&text, piece.data + at, good);
        at += good;
        if (at < piece.len) {
            strbuf_puts(&text, "\xef\xbf\xbd");
            at++;
        }
    }
    strbuf_puts(out, "{\"token\":");
    json_put_string(out, text.len ? text.data : "", text.len);
    strbuf_puts(out, ",\"logprob\":");
    json_put_double(out, (double)logprob);
    strbuf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < piece.len; i++)
        strbuf_printf(out, "%s%u", i ? "," : "", (unsigned)(uint8_t)piece.data[i]);
    strbuf_putc(out, ']');
    rc = strbuf_ok(&text, e);
out:
    strbuf_free(&piece);
    strbuf_free(&text);
    return rc;
}

static enum err_code put_logprobs(struct strbuf *out, const struct reply_model *m,
                                  const struct answer *a, int64_t n_top, struct err *e)
{
    strbuf_puts(out, "{\"content\":[");
    for (size_t i = 0; i < a->n; i++) {
        const struct answer_token *t = &a->tok[i];
        if (i)
            strbuf_putc(out, ',');
        enum err_code rc = put_token(out, m, t->id, t->logprob, e);
        if (rc != ERR_OK)
            return rc;
        strbuf_puts(out, ",\"top_logprobs\":[");
        for (int k = 0; k < t->n_top && k < n_top; k++) {
            if (k)
                strbuf_putc(out, ',');
            rc = put_token(out, m, t->top_id[k], t->top_logprob[k], e);
            if (rc != ERR_OK)
                return rc;
            strbuf_putc(out, '}');
        }
        strbuf_puts(out, "]}");
    }
    strbuf_puts(out, "]}");
    return ERR_OK;
}

static enum err_code put_choice(struct strbuf *out, const struct reply_model *m,
                                const struct prompt_request *r, const struct answer *a,
                                size_t index, struct err *e)
{
    strbuf_printf(out, "{\"index\":%zu,", index);
    strbuf_puts(out,
                r->completions ? "\"text\":" : "\"message\":{\"role\":\"assistant\",\"content\":");
    json_put_string(out, a->text.len ? a->text.data : "", a->text.len);
    strbuf_puts(out, r->completions ? ",\"logprobs\":" : "},\"logprobs\":");
    if (r->set.logprobs) {
        enum err_code rc = put_logprobs(out, m, a, r->set.top_logprobs, e);
        if (rc != ERR_OK)
            return rc;
    } else {
        strbuf_puts(out, "null");
    }
    strbuf_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(a->why));
    return ERR_OK;
}

/* First 24 hex digits of SHA-256 over the parts, each with its length in front. */
static void short_id(char hex[65], const char *const *parts, const size_t *lens, size_t n)
{
    struct strbuf b = {0};
    for (size_t i = 0; i < n; i++) {
        strbuf_printf(&b, "%zu:", lens[i]);
        strbuf_append(&b, parts[i], lens[i]);
    }
    uint8_t digest[32];
    sha256_of(b.data ? b.data : "", b.len, digest);
    sha256_hex(digest, hex);
    hex[24] = 0;
    strbuf_free(&b);
}

static void put_head(struct strbuf *out, const struct reply_model *m,
                     const struct prompt_request *r, const struct strbuf *content, char id[65])
{
    const char *parts[] = {r->custom_id, m->fingerprint, content->data ? content->data : ""};
    size_t lens[] = {strlen(r->custom_id), strlen(m->fingerprint), content->len};
    short_id(id, parts, lens, ARRAY_LEN(parts));
    strbuf_printf(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", id);
    json_put_string(out, r->custom_id, strlen(r->custom_id));
}

enum err_code reply_line(struct strbuf *out, const struct reply_model *m,
                         const struct prompt_request *r, const struct answer *answers, size_t n,
                         struct err *e)
{
    struct strbuf choices = {0};
    int64_t n_prompt = 0, n_new = 0;
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        if (i)
            strbuf_putc(&choices, ',');
        rc = put_choice(&choices, m, r, &answers[i], i, e);
        n_prompt += answers[i].n_prompt;
        n_new += (int64_t)answers[i].n;
    }
    if (rc == ERR_OK)
        rc = strbuf_ok(&choices, e);
    if (rc != ERR_OK)
        goto out;
    char id[65];
    put_head(out, m, r, &choices, id);
    strbuf_printf(out,
                  ",\"response\":{\"status_code\":200,\"request_id\":\"req_%s\",\"body\":{\"id\":"
                  "\"%s-%s\",\"object\":\"%s\",\"created\":0,\"model\":",
                  id, r->completions ? "cmpl" : "chatcmpl", id,
                  r->completions ? "text_completion" : "chat.completion");
    json_put_string(out, m->name, strlen(m->name));
    strbuf_puts(out, ",\"choices\":[");
    strbuf_append(out, choices.data, choices.len);
    strbuf_printf(out,
                  "],\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
                  "\"total_tokens\":%lld},\"system_fingerprint\":\"assay-%s-%.16s\"}},"
                  "\"error\":null}\n",
                  (long long)n_prompt, (long long)n_new, (long long)(n_prompt + n_new), m->arith,
                  m->fingerprint);
    rc = strbuf_ok(out, e);
out:
    strbuf_free(&choices);
    return rc;
}

enum err_code reply_score(struct strbuf *out, const struct reply_model *m,
                          const struct prompt_request *r, const struct answer *a, struct err *e)
{
    double sum = 0;
    struct strbuf ids = {0}, logprobs = {0};
    for (size_t i = 0; i < a->n; i++) {
        sum += (double)a->tok[i].logprob;
        strbuf_printf(&ids, "%s%d", i ? "," : "", a->tok[i].id);
        strbuf_puts(&logprobs, i ? "," : "");
        json_put_double(&logprobs, (double)a->tok[i].logprob);
    }
    strbuf_puts(out, "{\"custom_id\":");
    json_put_string(out, r->custom_id, strlen(r->custom_id));
    strbuf_puts(out, ",\"model\":");
    json_put_string(out, m->name, strlen(m->name));
    strbuf_printf(out,
                  ",\"system_fingerprint\":\"assay-%s-%.16s\",\"score\":{\"n_scored\":%zu,"
                  "\"logprob\":",
                  m->arith, m->fingerprint, a->n);
    json_put_double(out, sum);
    strbuf_puts(out, ",\"ids\":[");
    strbuf_append(out, ids.data ? ids.data : "", ids.len);
    strbuf_puts(out, "],\"logprobs\":[");
    strbuf_append(out, logprobs.data ? logprobs.data : "", logprobs.len);
    strbuf_puts(out, "]},\"error\":null}\n");
    out->failed |= ids.failed || logprobs.failed;
    strbuf_free(&ids);
    strbuf_free(&logprobs);
    return strbuf_ok(out, e);
}

void reply_error(struct strbuf *out, const struct reply_model *m, const struct prompt_request *r,
                 enum err_code code, const char *text)
{
    struct strbuf message = {0};
    char id[65];
    strbuf_printf(&message, "line %llu: %s", (unsigned long long)r->line, text);
    put_head(out, m, r, &message, id);
    strbuf_printf(out, ",\"response\":null,\"error\":{\"code\":\"%s\",\"line\":%llu,\"message\":",
                  code == ERR_INPUT ? "invalid_request" : "failed", (unsigned long long)r->line);
    json_put_string(out, message.data ? message.data : "", message.len);
    strbuf_puts(out, "}}\n");
    if (message.failed)
        out->failed = true;
    strbuf_free(&message);
}
