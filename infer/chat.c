/* chat.c: compiling and rendering chat templates: the run, its bounds, request and result.
 *
 * Owns what goes in (JSON becomes marked values) and what comes out (spans by mark), and the
 * bounds that stop a hostile template: steps, depth, memory, output.
 */
#include "infer/chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "infer/chat_private.h"

#define CHUNK       ((size_t)64 << 10)
#define CHUNK_LARGE ((size_t)8 << 10) /* blocks from here on come straight from the arena */

void *chat_alloc(struct chat_run *r, size_t bytes)
{
    bytes = align_up(MAX2(bytes, (size_t)1), 16);
    if (bytes > CHAT_BYTES_MAX || r->bytes > CHAT_BYTES_MAX - bytes)
        return NULL;
    if (bytes >= CHUNK_LARGE) {
        r->bytes += bytes;
        return arena_alloc(r->arena, bytes);
    }
    if (r->free_left < bytes) {
        r->free_at = arena_alloc(r->arena, CHUNK);
        if (!r->free_at)
            return NULL;
        r->free_left = CHUNK;
        r->bytes += CHUNK;
    }
    char *p = r->free_at;
    r->free_at += bytes;
    r->free_left -= bytes;
    return p;
}

void *chat_array(struct chat_run *r, size_t n, size_t elem)
{
    size_t bytes;
    return checked_mul(n, elem, &bytes) && bytes <= CHAT_BYTES_MAX ? chat_alloc(r, bytes) : NULL;
}

enum err_code chat_nomem(struct chat_run *r)
{
    if (r->bytes > CHAT_BYTES_MAX / 2)
        return chat_fail(r, "template needs more than %zu bytes of memory", CHAT_BYTES_MAX);
    return err_set(r->e, ERR_NOMEM, "out of memory after %zu bytes", r->bytes);
}

enum err_code chat_fail(struct chat_run *r, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, ERR_INPUT, "%s", text);
}

enum err_code chat_step(struct chat_run *r, size_t bytes)
{
    r->steps += 1 + bytes / 64;
    if (r->steps <= CHAT_STEPS_MAX)
        return ERR_OK;
    return chat_fail(r, "template does not end within %llu steps",
                     (unsigned long long)CHAT_STEPS_MAX);
}

enum err_code chat_enter(struct chat_run *r)
{
    if (r->depth >= CHAT_DEPTH_MAX)
        return chat_fail(r, "recursion deeper than %d", CHAT_DEPTH_MAX);
    r->depth++;
    return ERR_OK;
}

void chat_leave(struct chat_run *r)
{
    r->depth--;
}

static enum err_code compile(struct chat_run *r, struct chat_template *t, const char *text,
                             size_t len)
{
    struct chat_token *tokens;
    size_t n;
    CHAT_TRY(chat_lex(r, text, len, &tokens, &n));
    CHAT_TRY(chat_parse(r, tokens, t));
    return chat_scope_resolve(r, t);
}

enum err_code chat_compile(struct chat_template **out, const char *text, size_t len, struct err *e)
{
    enum err_code rc;
    struct chat_template *t = calloc(1, sizeof *t);
    struct chat_run r = {.e = e, .t = t};
    *out = NULL;
    if (!t)
        return err_set(e, ERR_NOMEM, "out of memory");
    t->arena = r.arena = arena_new(4 * CHUNK);
    rc = t->arena ? compile(&r, t, text, len) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc != ERR_OK) {
        chat_free(t);
        return err_wrap(e, rc, "chat template: line %d", r.line ? r.line : 1);
    }
    *out = t;
    return ERR_OK;
}

void chat_free(struct chat_template *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}

static enum err_code import(struct chat_run *r, const json_t *j, uint8_t mark,
                            struct chat_value *out);

static enum err_code import_text(struct chat_run *r, const char *text, size_t len, uint8_t mark,
                                 struct chat_value *out)
{
    size_t bad = str_utf8_valid(text, len);
    if (bad != len)
        return chat_fail(r, "text is not UTF-8 at byte %zu", bad);
    return chat_str_new(r, text, len, mark, out);
}

/* The protocol's own words for who speaks. They are the model's, not the user's: templates build
 * control tokens from them ('<|' + role + '|>'), and none of them can forge another one. */
static bool is_known_role(const char *key, const json_t *value)
{
    static const char *const roles[] = {"system", "developer", "user",    "assistant",
                                        "tool",   "function",  "ipython", "model"};
    if (strcmp(key, "role") != 0 || !json_is_string(value))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(roles); i++) {
        if (strcmp(json_string_value(value), roles[i]) == 0)
            return true;
    }
    return false;
}

static enum err_code import_object(struct chat_run *r, const json_t *j, uint8_t mark,
                                   struct chat_value *out)
{
    json_t *obj = (json_t *)j; /* jansson's iterators take no const; nothing is changed */
    CHAT_TRY(chat_dict_new(r, out));
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
        struct chat_value k, v;
        CHAT_TRY(import_text(r, json_object_iter_key(it), json_object_iter_key_len(it), mark, &k));
        bool role = is_known_role(json_object_iter_key(it), json_object_iter_value(it));
        CHAT_TRY(import(r, json_object_iter_value(it), role ? 0 : mark, &v));
        CHAT_TRY(chat_dict_set(r, out->u.dict, k, v));
    }
    return ERR_OK;
}

static enum err_code import_array(struct chat_run *r, const json_t *j, uint8_t mark,
                                  struct chat_value *out)
{
    size_t n = json_array_size(j);
    CHAT_TRY(chat_list_new(r, n, out));
    for (size_t i = 0; i < n; i++) {
        struct chat_value v;
        CHAT_TRY(import(r, json_array_get(j, i), mark, &v));
        CHAT_TRY(chat_list_push(r, out->u.list, v));
    }
    return ERR_OK;
}

static enum err_code import(struct chat_run *r, const json_t *j, uint8_t mark,
                            struct chat_value *out)
{
    enum err_code rc;
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = chat_none();
        return ERR_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = chat_bool(json_is_true(j));
        return ERR_OK;
    case JSON_INTEGER:
        *out = chat_int(json_integer_value(j));
        return ERR_OK;
    case JSON_REAL:
        *out = chat_float(json_real_value(j));
        return ERR_OK;
    case JSON_STRING:
        return import_text(r, json_string_value(j), json_string_length(j), mark, out);
    default:
        break;
    }
    CHAT_TRY(chat_enter(r));
    rc = json_is_array(j) ? import_array(r, j, mark, out) : import_object(r, j, mark, out);
    chat_leave(r);
    return rc;
}

static enum err_code import_vars(struct chat_run *r, const json_t *vars, const char *const *trusted,
                                 size_t n_trusted)
{
    json_t *obj = (json_t *)vars;
    struct chat_value dict;
    if (!json_is_object(vars))
        return chat_fail(r, "variables: expected an object");
    CHAT_TRY(chat_dict_new(r, &dict));
    r->vars = dict.u.dict;
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        struct chat_value k, v;
        uint8_t mark = 1;
        for (size_t i = 0; i < n_trusted; i++) {
            if (strcmp(trusted[i], key) == 0)
                mark = 0;
        }
        if (strcmp(key, CHAT_NOW_KEY) == 0) {
            r->now = json_string_value(value);
            continue;
        }
        CHAT_TRY(import_text(r, key, json_object_iter_key_len(it), 0, &k));
        CHAT_TRY(import(r, value, mark, &v));
        CHAT_TRY(chat_dict_set(r, r->vars, k, v));
    }
    return ERR_OK;
}

/* Cuts the rendering where the mark changes. */
static enum err_code put_spans(struct chat_run *r, struct chat_spans *out)
{
    const struct chat_buf *b = r->out;
    size_t n = 0, len = b ? b->used : 0;
    strbuf_append(&out->text, b ? b->data : "", len);
    CHAT_TRY(strbuf_ok(&out->text, r->e));
    for (size_t i = 0; i < len; i++)
        n += i == 0 || b->marks[i] != b->marks[i - 1];
    out->spans = calloc(n + 1, sizeof *out->spans);
    if (!out->spans)
        return err_set(r->e, ERR_NOMEM, "out of memory: %zu spans", n);
    for (size_t i = 0; i < len; i++) {
        if (i == 0 || b->marks[i] != b->marks[i - 1])
            out->spans[out->n++] = (struct tok_span){out->text.data + i, 0, !b->marks[i]};
        out->spans[out->n - 1].len++;
    }
    return ERR_OK;
}

static enum err_code render(struct chat_run *r, const json_t *vars, const char *const *trusted,
                            size_t n_trusted)
{
    CHAT_TRY(import_vars(r, vars, trusted, n_trusted));
    CHAT_TRY(chat_scope_enter(r, r->t->root, NULL, &r->scope));
    CHAT_TRY(chat_scope_load(r, r->scope));
    return chat_exec(r, &r->t->body);
}

enum err_code chat_render(const struct chat_template *t, const json_t *vars,
                          const char *const *trusted, size_t n_trusted, struct chat_spans *out,
                          struct err *e)
{
    struct chat_run r = {.e = e, .t = t};
    *out = (struct chat_spans){0};
    r.arena = arena_new(4 * CHUNK);
    if (!r.arena)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = render(&r, vars, trusted, n_trusted);
    if (rc != ERR_OK)
        err_wrap(e, rc, "chat template: line %d", r.line ? r.line : 1);
    else
        rc = put_spans(&r, out);
    arena_free(r.arena);
    if (rc != ERR_OK)
        chat_spans_free(out);
    return rc;
}

void chat_spans_free(struct chat_spans *s)
{
    strbuf_free(&s->text);
    free(s->spans);
    *s = (struct chat_spans){0};
}
