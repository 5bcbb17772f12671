/* trace.c: writing and reading traces. Owns the form of the lines, nothing of what they mean. */
#include "ckpt/trace.h"

#include <math.h>
#include <stdlib.h>
#include <zlib.h>

#include "common/hash.h"
#include "common/io.h"

static const char *const level_names[] = {"tokens", "layers"};

void trace_record_free(struct trace_record *r)
{
    free(r->custom_id);
    free(r->text);
    free(r->prompt_ids);
    free(r->tok);
    *r = (struct trace_record){.n = 0};
}

void trace_prompt_hash(const int32_t *ids, size_t n, char hex[65])
{
    uint8_t digest[32];
    sha256_of(ids ? (const void *)ids : "", n * sizeof *ids, digest);
    sha256_hex(digest, hex);
}

/* ---- writer -----------------------------------------------------------------------------------
 */

struct trace_writer {
    struct io_out *out;
    bool gz;
    z_stream z;
    struct strbuf line;
};

static enum err_code flush_line(struct trace_writer *w, bool last, struct err *e)
{
    enum err_code rc = strbuf_ok(&w->line, e);
    if (rc != ERR_OK)
        return rc;
    if (!w->gz) {
        rc = io_out_write(w->out, w->line.data, w->line.len, e);
        strbuf_clear(&w->line);
        return rc;
    }
    uint8_t piece[1 << 14];
    w->z.next_in = (Bytef *)w->line.data;
    w->z.avail_in = (uInt)w->line.len;
    do {
        w->z.next_out = piece;
        w->z.avail_out = sizeof piece;
        deflate(&w->z, last ? Z_FINISH : Z_NO_FLUSH);
        rc = io_out_write(w->out, piece, sizeof piece - w->z.avail_out, e);
    } while (rc == ERR_OK && w->z.avail_out == 0);
    strbuf_clear(&w->line);
    return rc;
}

static void put_text(struct strbuf *b, const char *key, const char *value)
{
    strbuf_printf(b, ",\"%s\":", key);
    json_put_string(b, value, strlen(value));
}

static enum err_code put_header(struct trace_writer *w, const struct trace_header *h, struct err *e)
{
    strbuf_printf(&w->line, "{\"assay_trace\":%d", TRACE_VERSION);
    put_text(&w->line, "model", h->model);
    put_text(&w->line, "arith", h->arith);
    put_text(&w->line, "fingerprint", h->fingerprint);
    put_text(&w->line, "tokenizer", h->tokenizer);
    put_text(&w->line, "template", h->chat_template);
    put_text(&w->line, "prompts", h->prompts);
    put_text(&w->line, "level", level_names[h->level]);
    strbuf_printf(&w->line, ",\"top_k\":%d}\n", h->top_k);
    return flush_line(w, false, e);
}

enum err_code trace_writer_open(struct trace_writer **out, const char *path,
                                const struct trace_header *h, bool replace, struct err *e)
{
    *out = NULL;
    struct trace_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = ERR_OK;
    if (str_ends(path, ".gz")) {
        if (deflateInit2(&w->z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
            free(w);
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        w->gz = true;
    }
    rc = io_out_open(&w->out, path, replace, e);
    if (rc == ERR_OK)
        rc = put_header(w, h, e);
    if (rc != ERR_OK)
        trace_writer_abort(w);
    else
        *out = w;
    return rc;
}

static void put_number(struct strbuf *b, float v)
{
    json_put_double(b, (double)v);
}

enum err_code trace_writer_record(struct trace_writer *w, const struct trace_record *r,
                                  struct err *e)
{
    struct strbuf *b = &w->line;
    strbuf_puts(b, "{\"custom_id\":");
    json_put_string(b, r->custom_id, strlen(r->custom_id));
    strbuf_printf(b, ",\"turn\":%d,\"prompt\":\"%s\",\"finish\":\"%s\",\"text\":", r->turn,
                  r->prompt, r->finish);
    json_put_string(b, r->text ? r->text : "", r->text_len);
    strbuf_puts(b, ",\"prompt_ids\":[");
    for (int64_t i = 0; i < r->n_prompt; i++)
        strbuf_printf(b, "%s%d", i ? "," : "", r->prompt_ids[i]);
    strbuf_puts(b, "],\"ids\":[");
    for (size_t i = 0; i < r->n; i++)
        strbuf_printf(b, "%s%d", i ? "," : "", r->tok[i].id);
    strbuf_puts(b, "],\"logprob\":[");
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(b, i ? "," : "");
        put_number(b, r->tok[i].logprob);
    }
    strbuf_puts(b, "],\"margin\":[");
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(b, i ? "," : "");
        put_number(b, r->tok[i].margin);
    }
    strbuf_puts(b, "],\"hash\":[");
    for (size_t i = 0; i < r->n; i++)
        strbuf_printf(b, "%s\"%016llx\"", i ? "," : "", (unsigned long long)r->tok[i].hash);
    strbuf_puts(b, "],\"top\":[");
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(b, i ? ",[" : "[");
        for (int k = 0; k < r->tok[i].n_top; k++) {
            strbuf_printf(b, "%s[%d,", k ? "," : "", r->tok[i].top_id[k]);
            put_number(b, r->tok[i].top_logprob[k]);
            strbuf_putc(b, ']');
        }
        strbuf_putc(b, ']');
    }
    strbuf_puts(b, "]}\n");
    return flush_line(w, false, e);
}

enum err_code trace_writer_layers(struct trace_writer *w, const char *custom_id, int turn,
                                  int64_t pos, const struct trace_layer_op *ops, size_t n,
                                  struct err *e)
{
    struct strbuf *b = &w->line;
    strbuf_puts(b, "{\"layers_of\":");
    json_put_string(b, custom_id, strlen(custom_id));
    strbuf_printf(b, ",\"turn\":%d,\"pos\":%lld,\"ops\":[", turn, (long long)pos);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(b, "%s[%d,\"%s\",\"%016llx\"]", i ? "," : "", ops[i].layer, ops[i].op,
                      (unsigned long long)ops[i].hash);
    strbuf_puts(b, "]}\n");
    return flush_line(w, false, e);
}

enum err_code trace_writer_close(struct trace_writer *w, struct err *e)
{
    enum err_code rc = w->gz ? flush_line(w, true, e) : ERR_OK;
    if (rc != ERR_OK) {
        trace_writer_abort(w);
        return rc;
    }
    rc = io_out_commit(w->out, e);
    w->out = NULL;
    trace_writer_abort(w);
    return rc;
}

void trace_writer_abort(struct trace_writer *w)
{
    if (!w)
        return;
    io_out_abort(w->out);
    if (w->gz)
        deflateEnd(&w->z);
    strbuf_free(&w->line);
    free(w);
}

/* ---- reader -----------------------------------------------------------------------------------
 */

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
    if (rc != ERR_OK)
        return rc;
    h->top_k = (int)top_k;
    h->level = strcmp(level, level_names[TRACE_LAYERS]) == 0 ? TRACE_LAYERS : TRACE_TOKENS;
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
    return get_figure(json_array_get(json_object_get(o, "logprob"), i), &t->logprob) &&
           get_figure(json_array_get(json_object_get(o, "margin"), i), &t->margin) &&
           read_top(json_array_get(json_object_get(o, "top"), i), t);
}

static enum err_code read_prompt_ids(const json_t *o, struct trace_record *r, struct err *e)
{
    json_t *list = NULL;
    char hex[65];
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
    trace_prompt_hash(r->prompt_ids, (size_t)r->n_prompt, hex);
    if (strcmp(hex, r->prompt) != 0)
        return err_set(e, ERR_INPUT, "key 'prompt': the hash is not that of prompt_ids");
    return ERR_OK;
}

static enum err_code read_record(const json_t *o, struct trace_record *r, struct err *e)
{
    const char *id = NULL;
    const json_t *text =
        json_object_get(o, "text"); /* may hold NUL, which json_get_string refuses */
    json_t *ids = NULL;
    int64_t turn = 0;
    enum err_code rc = json_get_string(o, "custom_id", JSON_REQUIRED, &id, e);
    if (rc == ERR_OK && !json_is_string(text))
        rc = err_set(e, ERR_INPUT, "key 'text': expected a string");
    if (rc == ERR_OK)
        rc = json_get_int(o, "turn", JSON_REQUIRED, 0, INT32_MAX, &turn, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "prompt", r->prompt, e);
    if (rc == ERR_OK)
        rc = read_prompt_ids(o, r, e);
    if (rc == ERR_OK)
        rc = get_short(o, "finish", r->finish, sizeof r->finish, e);
    if (rc == ERR_OK)
        rc = json_get_array(o, "ids", JSON_REQUIRED, &ids, e);
    if (rc != ERR_OK)
        return rc;
    r->turn = (int)turn;
    r->n = json_array_size(ids);
    r->text_len = json_string_length(text);
    r->custom_id = strdup(id);
    r->text = malloc(r->text_len + 1);
    r->tok = calloc(r->n + 1, sizeof *r->tok);
    if (!r->custom_id || !r->text || !r->tok)
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(r->text, json_string_value(text), r->text_len + 1);
    for (size_t i = 0; i < r->n; i++)
        if (!read_token(o, i, &r->tok[i]))
            return err_set(e, ERR_INPUT,
                           "token %zu of '%s': expected id, logprob, margin, hash and top", i, id);
    return ERR_OK;
}

static enum err_code add_line(struct trace *t, size_t *cap, const json_t *o, bool first,
                              struct err *e)
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
    return read_record(o, &t->records[t->n++], e);
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
            rc = add_line(t, &cap, o, first, e);
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
