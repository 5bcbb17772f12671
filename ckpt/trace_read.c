/* trace_read.c: reading traces of both forms, from assay and from others; every fault is named with
 * its line.
 */
#include <math.h>
#include <stdlib.h>

#include "ckpt/dtype.h"
#include "ckpt/trace_private.h"
#include "common/io.h"

static enum err_code get_hex(const json_t *o, const char *key, char out[65], struct err *e)
{
    const char *s = NULL;
    enum err_code rc = json_get_string(o, key, JSON_REQUIRED, &s, e);
    if (rc != ERR_OK)
        return rc;
    if (strlen(s) != 64 || strspn(s, "0123456789abcdef") != 64)
        return err_set(e, ERR_INPUT, "key '%s': expected 64 hexadecimal digits", key);
    memcpy(out, s, 65);
    return ERR_OK;
}

static enum err_code get_short(const json_t *o, const char *key, char *out, size_t cap,
                               struct err *e)
{
    const char *s = NULL;
    enum err_code rc = json_get_string(o, key, JSON_REQUIRED, &s, e);
    if (rc != ERR_OK)
        return rc;
    if (strlen(s) >= cap)
        return err_set(e, ERR_INPUT, "key '%s': longer than %zu bytes", key, cap - 1);
    memcpy(out, s, strlen(s) + 1);
    return ERR_OK;
}

/* A SHA-256 or nothing. */
static enum err_code get_settings(const json_t *o, char out[65], struct err *e)
{
    const char *s = NULL;
    enum err_code rc = json_get_string(o, "settings", JSON_OPTIONAL, &s, e);
    out[0] = 0;
    return rc == ERR_OK && s && s[0] ? get_hex(o, "settings", out, e) : rc;
}

static enum err_code read_header(const json_t *o, struct trace_header *h, struct err *e)
{
    int64_t version = 0, top_k = 0;
    char level[16] = "";
    enum err_code rc = json_get_int(o, "assay_trace", JSON_REQUIRED, 1, TRACE_VERSION, &version, e);
    if (rc == ERR_OK)
        rc = get_short(o, "model", h->model, sizeof h->model, e);
    if (rc == ERR_OK)
        rc = get_short(o, "arith", h->arith, sizeof h->arith, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "fingerprint", h->fingerprint, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "tokenizer", h->tokenizer, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "template", h->chat_template, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "prompts", h->prompts, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "top_k", JSON_REQUIRED, 0, TRACE_TOP_MAX, &top_k, e);
    if (rc == ERR_OK)
        rc = get_short(o, "level", level, sizeof level, e);
    if (rc == ERR_OK)
        rc = get_settings(o, h->settings, e);
    if (rc == ERR_OK && json_object_get(o, "build"))
        rc = get_short(o, "build", h->build, sizeof h->build, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "n_vocab", JSON_OPTIONAL, 0, INT32_MAX, &h->n_vocab, e);
    if (rc != ERR_OK)
        return rc;
    h->top_k = (int)top_k;
    h->level = strcmp(level, trace_level_names[TRACE_LAYERS]) == 0 ? TRACE_LAYERS : TRACE_TOKENS;
    return ERR_OK;
}

/* A figure: a number, or null for one that was not finite. */
static bool get_figure(const json_t *v, float *out)
{
    if (json_is_null(v)) {
        *out = NAN;
        return true;
    }
    *out = (float)json_number_value(v);
    return json_is_number(v);
}

static bool read_top(const json_t *list, struct trace_token *t)
{
    if (!json_is_array(list) || json_array_size(list) > TRACE_TOP_MAX)
        return false;
    t->n_top = (int)json_array_size(list);
    for (int k = 0; k < t->n_top; k++) {
        const json_t *pair = json_array_get(list, (size_t)k);
        const json_t *id = json_array_get(pair, 0);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX ||
            !get_figure(json_array_get(pair, 1), &t->top_logprob[k]))
            return false;
        t->top_id[k] = (int32_t)json_integer_value(id);
    }
    return true;
}

static bool read_token(const json_t *o, size_t i, struct trace_token *t)
{
    const json_t *id = json_array_get(json_object_get(o, "ids"), i);
    const json_t *hash = json_array_get(json_object_get(o, "hash"), i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return false;
    const char *hex = json_string_value(hash);
    if (!hex || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
        return false;
    t->id = (int32_t)json_integer_value(id);
    t->hash = strtoull(hex, NULL, 16);
    t->lse = NAN; /* version 1 has none */
    const json_t *lse = json_object_get(o, "lse");
    return (!lse || get_figure(json_array_get(lse, i), &t->lse)) &&
           get_figure(json_array_get(json_object_get(o, "logprob"), i), &t->logprob) &&
           get_figure(json_array_get(json_object_get(o, "margin"), i), &t->margin) &&
           read_top(json_array_get(json_object_get(o, "top"), i), t);
}

static enum err_code check_prompt(const struct trace_record *r, struct err *e)
{
    char hex[65];
    trace_prompt_hash(r->prompt_ids, (size_t)r->n_prompt, hex);
    return strcmp(hex, r->prompt) == 0
               ? ERR_OK
               : err_set(e, ERR_INPUT, "key 'prompt': the hash is not that of prompt_ids");
}

static enum err_code read_prompt_ids(const json_t *o, struct trace_record *r, struct err *e)
{
    json_t *list = NULL;
    enum err_code rc = json_get_array(o, "prompt_ids", JSON_REQUIRED, &list, e);
    if (rc != ERR_OK)
        return rc;
    r->n_prompt = (int64_t)json_array_size(list);
    r->prompt_ids = calloc((size_t)r->n_prompt + 1, sizeof *r->prompt_ids);
    if (!r->prompt_ids)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int64_t i = 0; i < r->n_prompt; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return err_set(e, ERR_INPUT, "key 'prompt_ids'[%lld]: expected a token id",
                           (long long)i);
        r->prompt_ids[i] = (int32_t)json_integer_value(v);
    }
    return check_prompt(r, e);
}

/* Rows in full, as numbers. */
static enum err_code read_full(const json_t *o, int64_t n_vocab, struct trace_record *r,
                               struct err *e)
{
    const json_t *list = json_object_get(o, "full");
    for (size_t f = 0; f < json_array_size(list); f++) {
        const json_t *at = json_array_get(json_array_get(list, f), 0);
        const json_t *row = json_array_get(json_array_get(list, f), 1);
        json_int_t i = json_integer_value(at);
        if (!json_is_integer(at) || i < 0 || i >= (json_int_t)r->n || r->tok[i].full ||
            n_vocab == 0 || (int64_t)json_array_size(row) != n_vocab)
            return err_set(e, ERR_INPUT,
                           "key 'full'[%zu]: expected [token, [%lld logits]], each token once", f,
                           (long long)n_vocab);
        uint16_t *full = r->tok[i].full = malloc((size_t)n_vocab * sizeof *full);
        if (!full)
            return err_set(e, ERR_NOMEM, "out of memory");
        for (int64_t k = 0; k < n_vocab; k++) {
            float v = NAN;
            if (!get_figure(json_array_get(row, (size_t)k), &v))
                return err_set(e, ERR_INPUT, "key 'full'[%zu]: logit %lld is no number", f,
                               (long long)k);
            full[k] = f16_from_f32(v);
        }
    }
    return ERR_OK;
}

static enum err_code read_arrays(const json_t *o, int64_t n_vocab, struct trace_record *r,
                                 struct err *e)
{
    json_t *ids = NULL;
    enum err_code rc = read_prompt_ids(o, r, e);
    if (rc == ERR_OK)
        rc = json_get_array(o, "ids", JSON_REQUIRED, &ids, e);
    if (rc != ERR_OK)
        return rc;
    r->tok = calloc(json_array_size(ids) + 1, sizeof *r->tok);
    if (!r->tok)
        return err_set(e, ERR_NOMEM, "out of memory");
    r->n = json_array_size(ids);
    for (size_t i = 0; i < r->n; i++)
        if (!read_token(o, i, &r->tok[i]))
            return err_set(e, ERR_INPUT,
                           "token %zu of '%s': expected id, logprob, margin, hash and top", i,
                           r->custom_id);
    return read_full(o, n_vocab, r, e);
}

/* The block behind the line, and its line end. */
static enum err_code read_block(const json_t *o, struct io_lines *lines, int64_t n_vocab,
                                struct trace_record *r, struct err *e)
{
    struct trace_block_size s = {.n = 0};
    struct strbuf block = {0};
    size_t bytes = 0;
    enum err_code rc =
        json_get_int(o, "prompt_tokens", JSON_REQUIRED, 0, INT32_MAX, &s.n_prompt, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "tokens", JSON_REQUIRED, 0, INT32_MAX, &s.n, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "tops", JSON_REQUIRED, 0, INT32_MAX, &s.tops, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "full", JSON_REQUIRED, 0, n_vocab ? s.n : 0, &s.full, e);
    if (rc == ERR_OK && !trace_block_bytes(&s, n_vocab, &bytes))
        rc = err_set(e, ERR_INPUT, "a block of more bytes than can be");
    if (rc == ERR_OK)
        rc = io_lines_bytes(lines, bytes, &block, e);
    if (rc == ERR_OK)
        rc = trace_block_get((const uint8_t *)block.data, &s, n_vocab, r, e);
    strbuf_clear(&block);
    if (rc == ERR_OK)
        rc = io_lines_bytes(lines, 1, &block, e);
    if (rc == ERR_OK && block.data[0] != '\n')
        rc = err_set(e, ERR_INPUT, "no line end behind the block");
    strbuf_free(&block);
    return rc == ERR_OK ? check_prompt(r, e) : rc;
}

static enum err_code read_record(const json_t *o, struct io_lines *lines,
                                 const struct trace_header *h, struct trace_record *r,
                                 struct err *e)
{
    const char *id = NULL;
    const json_t *text =
        json_object_get(o, "text"); /* may hold NUL, which json_get_string refuses */
    int64_t turn = 0;
    enum err_code rc = json_get_string(o, "custom_id", JSON_REQUIRED, &id, e);
    if (rc == ERR_OK && !json_is_string(text))
        rc = err_set(e, ERR_INPUT, "key 'text': expected a string");
    if (rc == ERR_OK)
        rc = json_get_int(o, "turn", JSON_REQUIRED, 0, INT32_MAX, &turn, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "prompt", r->prompt, e);
    if (rc == ERR_OK)
        rc = get_short(o, "finish", r->finish, sizeof r->finish, e);
    if (rc != ERR_OK)
        return rc;
    r->turn = (int)turn;
    r->text_len = json_string_length(text);
    r->custom_id = strdup(id);
    r->text = malloc(r->text_len + 1);
    if (!r->custom_id || !r->text)
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(r->text, json_string_value(text), r->text_len + 1);
    return json_object_get(o, "tokens") ? read_block(o, lines, h->n_vocab, r, e)
                                        : read_arrays(o, h->n_vocab, r, e);
}

static enum err_code add_line(struct trace *t, size_t *cap, const json_t *o, struct io_lines *lines,
                              bool first, struct err *e)
{
    if (first)
        return read_header(o, &t->head, e);
    if (json_object_get(o, "layers_of"))
        return ERR_OK;
    if (t->n == *cap) {
        size_t more = *cap ? *cap * 2 : 64;
        struct trace_record *grown = realloc(t->records, more * sizeof *grown);
        if (!grown)
            return err_set(e, ERR_NOMEM, "out of memory");
        t->records = grown;
        *cap = more;
    }
    t->records[t->n] = (struct trace_record){.n = 0};
    return read_record(o, lines, &t->head, &t->records[t->n++], e);
}

bool trace_is(const char *path)
{
    struct io_lines *lines = NULL;
    json_t *o = NULL;
    const char *line = NULL;
    size_t len;
    bool too_long = true, is = false;
    if (io_is_dir(path) || io_lines_open(&lines, path, NULL) != ERR_OK)
        return false;
    if (io_lines_next(lines, 4096, &line, &len, &too_long, NULL) == ERR_OK && line && !too_long &&
        json_parse(line, len, &o, NULL) == ERR_OK)
        is = json_object_get(o, "assay_trace") != NULL;
    json_decref(o);
    io_lines_close(lines);
    return is;
}

#define TRACE_LINE_MAX ((size_t)1 << 30)

enum err_code trace_read(struct trace **out, const char *path, struct err *e)
{
    *out = NULL;
    struct io_lines *lines = NULL;
    struct trace *t = calloc(1, sizeof *t);
    size_t cap = 0;
    bool first = true, too_long;
    enum err_code rc = t ? io_lines_open(&lines, path, e) : err_set(e, ERR_NOMEM, "out of memory");
    while (rc == ERR_OK) {
        const char *line;
        size_t len;
        json_t *o = NULL;
        rc = io_lines_next(lines, TRACE_LINE_MAX, &line, &len, &too_long, e);
        if (rc != ERR_OK || !line)
            break;
        rc =
            too_long ? err_set(e, ERR_INPUT, "the line is too long") : json_parse(line, len, &o, e);
        if (rc == ERR_OK)
            rc = add_line(t, &cap, o, lines, first, e);
        json_decref(o);
        first = false;
        if (rc != ERR_OK)
            rc = err_wrap(e, rc, "%s: line %llu", path, (unsigned long long)io_lines_number(lines));
    }
    if (rc == ERR_OK && first)
        rc = err_set(e, ERR_INPUT, "%s: empty, expected a trace header", path);
    io_lines_close(lines);
    if (rc != ERR_OK)
        trace_free(t);
    else
        *out = t;
    return rc;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        trace_record_free(&t->records[i]);
    free(t->records);
    free(t);
}
