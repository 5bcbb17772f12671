/* tok_decode.c: see tok_decode.h. */
#include "infer/tok_decode.h"

#include <stdlib.h>

#include "infer/tok_bytes.h"

#define STAGES_MAX  16
#define REPLACEMENT "\xef\xbf\xbd"

enum stage_kind {
    STAGE_REPLACE,
    STAGE_BYTE_FALLBACK,
    STAGE_STRIP,
    STAGE_METASPACE,
    STAGE_FUSE,
    STAGE_BYTES
};

struct tok_decode_stage {
    enum stage_kind kind;
    bool fused; /* STRIP: stands behind Fuse or ByteLevel, sees one text */
    char *pattern, *content;
    size_t pattern_len, content_len;
    struct tok_regex *regex; /* REPLACE with an expression, or with an empty text */
    int64_t start, stop;     /* STRIP */
    bool prepend;            /* METASPACE: the first token loses its marks */
};

struct stage_state {
    struct strbuf held; /* bytes that a later token may change, or work space */
    int64_t cut;        /* STRIP behind Fuse: copies cut so far, or -1: past the start */
    int64_t n_held;     /* STRIP behind Fuse: copies at the end that may have to go */
    size_t n_seen;      /* METASPACE: tokens so far */
};

struct tok_decode {
    struct stage_state stage[STAGES_MAX];
    struct tok_search search;
    bool begun;
};

/* ---- text that may be ill-formed ---------------------------------------------------------- */

/* How many bytes at s (n of them) are one character or the maximal part of one that ended early;
 * *ok says which. 0: the bytes end inside a character that is well-formed so far. */
static size_t take_character(const uint8_t *s, size_t n, bool *ok)
{
    static const uint8_t lead[][4] = {/* first byte from, to; second byte from, to */
                                      {0xc2, 0xdf, 0x80, 0xbf}, {0xe0, 0xe0, 0xa0, 0xbf},
                                      {0xe1, 0xec, 0x80, 0xbf}, {0xed, 0xed, 0x80, 0x9f},
                                      {0xee, 0xef, 0x80, 0xbf}, {0xf0, 0xf0, 0x90, 0xbf},
                                      {0xf1, 0xf3, 0x80, 0xbf}, {0xf4, 0xf4, 0x80, 0x8f}};
    *ok = s[0] < 0x80;
    if (*ok)
        return 1;
    for (size_t i = 0; i < ARRAY_LEN(lead); i++) {
        if (s[0] < lead[i][0] || s[0] > lead[i][1])
            continue;
        size_t want = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
        for (size_t k = 1; k < want; k++) {
            uint8_t lo = k == 1 ? lead[i][2] : 0x80, hi = k == 1 ? lead[i][3] : 0xbf;
            if (k >= n)
                return 0;
            if (s[k] < lo || s[k] > hi)
                return k;
        }
        *ok = true;
        return want;
    }
    return 1;
}

/* Moves what is certain from `held` to out, one U+FFFD for each ill-formed part. With `end` the
 * incomplete rest is one such part. */
static void take_text(struct strbuf *held, bool end, struct strbuf *out)
{
    size_t at = 0;
    while (at < held->len) {
        bool ok;
        size_t n = take_character((const uint8_t *)held->data + at, held->len - at, &ok);
        if (n == 0 && !end)
            break;
        if (n == 0)
            n = held->len - at;
        if (ok)
            strbuf_append(out, held->data + at, n);
        else
            strbuf_puts(out, REPLACEMENT);
        at += n;
    }
    if (at > 0 && at < held->len)
        memmove(held->data, held->data + at, held->len - at);
    if (at > 0) {
        held->len -= at;
        held->data[held->len] = '\0';
    }
}

/* "<0xHH>" as the library reads it: hex in either case, and its parser takes "+H" too. */
static bool is_byte_token(struct tok_text t, uint8_t *byte)
{
    if (t.len != 6 || memcmp(t.s, "<0x", 3) != 0 || t.s[5] != '>')
        return false;
    unsigned v = 0;
    for (int i = 3; i < 5; i++) {
        char c = t.s[i];
        if (c >= '0' && c <= '9')
            v = v * 16 + (unsigned)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v * 16 + (unsigned)((c | 0x20) - 'a' + 10);
        else if (c != '+' || i == 4)
            return false;
    }
    *byte = (uint8_t)v;
    return true;
}

/* ---- stages ------------------------------------------------------------------------------- */

struct run {
    const struct tok_decoder *d;
    struct tok_decode *s;
    struct strbuf *out;
    struct err *e;
};

static enum err_code push(const struct run *r, size_t k, struct tok_text t);

static enum err_code run_replace(const struct run *r, size_t k, struct tok_text t)
{
    const struct tok_decode_stage *st = &r->d->stages[k];
    struct strbuf *b = &r->s->stage[k].held;
    struct tok_search *s = &r->s->search;
    size_t done = 0;
    bool found = t.len > 0; /* an empty token has no match, not even an empty one */
    strbuf_clear(b);
    tok_regex_begin(s);
    while (found) {
        size_t start = t.len, end = t.len;
        if (st->regex) {
            enum err_code rc = tok_regex_next(st->regex, s, t.s, t.len, &found, r->e);
            if (rc != ERR_OK)
                return rc;
            start = found ? s->start : t.len;
            end = found ? s->end : t.len;
        } else {
            const char *hit = memmem(t.s + done, t.len - done, st->pattern, st->pattern_len);
            found = hit != NULL;
            start = hit ? (size_t)(hit - t.s) : t.len;
            end = hit ? start + st->pattern_len : t.len;
        }
        strbuf_append(b, t.s + done, start - done);
        if (found)
            strbuf_append(b, st->content, st->content_len);
        done = end;
        enum err_code rc = tok_util_growth(MIN2(t.len, 4096), b->len, r->e);
        if (rc != ERR_OK)
            return rc;
    }
    enum err_code rc = strbuf_ok(b, r->e);
    if (rc != ERR_OK)
        return rc;
    return push(r, k + 1, (struct tok_text){b->len ? b->data : "", b->len});
}

/* A run of byte tokens is one text if it is well-formed, else one U+FFFD a byte. */
static enum err_code end_bytes(const struct run *r, size_t k)
{
    struct strbuf *b = &r->s->stage[k].held;
    enum err_code rc = strbuf_ok(b, r->e);
    if (b->len == 0 || rc != ERR_OK)
        return rc;
    if (str_utf8_valid(b->data, b->len) == b->len) {
        rc = push(r, k + 1, (struct tok_text){b->data, b->len});
    } else {
        for (size_t i = 0; i < b->len && rc == ERR_OK; i++)
            rc = push(r, k + 1, (struct tok_text){REPLACEMENT, 3});
    }
    strbuf_clear(b);
    return rc;
}

static bool begins_with(struct tok_text t, const struct tok_decode_stage *st)
{
    return t.len >= st->content_len && memcmp(t.s, st->content, st->content_len) == 0;
}

static bool ends_with(struct tok_text t, const struct tok_decode_stage *st)
{
    return t.len >= st->content_len &&
           memcmp(t.s + t.len - st->content_len, st->content, st->content_len) == 0;
}

static enum err_code strip_token(const struct run *r, size_t k, struct tok_text t)
{
    const struct tok_decode_stage *st = &r->d->stages[k];
    for (int64_t i = 0; i < st->start && begins_with(t, st); i++) {
        t.s += st->content_len;
        t.len -= st->content_len;
    }
    for (int64_t i = 0; i < st->stop && ends_with(t, st); i++)
        t.len -= st->content_len;
    return push(r, k + 1, t);
}

static enum err_code put_held(const struct run *r, size_t k, int64_t n)
{
    const struct tok_decode_stage *st = &r->d->stages[k];
    enum err_code rc = ERR_OK;
    for (int64_t i = 0; i < n && rc == ERR_OK; i++)
        rc = push(r, k + 1, (struct tok_text){st->content, st->content_len});
    return rc;
}

static enum err_code strip_chunk(const struct run *r, size_t k, struct tok_text t)
{
    const struct tok_decode_stage *st = &r->d->stages[k];
    struct stage_state *s = &r->s->stage[k];
    while (s->cut >= 0 && t.len > 0) {
        if (s->cut < st->start && begins_with(t, st)) {
            s->cut++;
            t.s += st->content_len;
            t.len -= st->content_len;
        } else {
            s->cut = -1;
        }
    }
    int64_t tail = 0;
    while (st->stop > 0 && ends_with(t, st)) {
        tail++;
        t.len -= st->content_len;
    }
    enum err_code rc = ERR_OK;
    if (t.len > 0) {
        rc = put_held(r, k, s->n_held);
        s->n_held = 0;
        if (rc == ERR_OK)
            rc = push(r, k + 1, t);
    }
    s->n_held += tail;
    if (rc == ERR_OK && s->n_held > st->stop) {
        rc = put_held(r, k, s->n_held - st->stop);
        s->n_held = st->stop;
    }
    return rc;
}

static enum err_code run_metaspace(const struct run *r, size_t k, struct tok_text t)
{
    const struct tok_decode_stage *st = &r->d->stages[k];
    struct stage_state *s = &r->s->stage[k];
    bool drop = s->n_seen++ == 0 && st->prepend;
    strbuf_clear(&s->held);
    while (t.len > 0) {
        const char *hit = memmem(t.s, t.len, st->content, st->content_len);
        size_t n = hit ? (size_t)(hit - t.s) : t.len;
        strbuf_append(&s->held, t.s, n);
        if (hit && !drop)
            strbuf_putc(&s->held, ' ');
        n += hit ? st->content_len : 0;
        t.s += n;
        t.len -= n;
    }
    enum err_code rc = strbuf_ok(&s->held, r->e);
    if (rc != ERR_OK)
        return rc;
    return push(r, k + 1, (struct tok_text){s->held.len ? s->held.data : "", s->held.len});
}

static enum err_code run_bytes(const struct run *r, size_t k, struct tok_text t, bool end)
{
    struct strbuf *b = &r->s->stage[k].held, text = {0};
    tok_bytes_get(b, t.s, t.len);
    take_text(b, end, &text);
    enum err_code rc = strbuf_ok(b, r->e);
    if (rc == ERR_OK)
        rc = strbuf_ok(&text, r->e);
    if (rc == ERR_OK && text.len > 0)
        rc = push(r, k + 1, (struct tok_text){text.data, text.len});
    strbuf_free(&text);
    return rc;
}

static enum err_code push(const struct run *r, size_t k, struct tok_text t)
{
    if (k == r->d->n) {
        strbuf_append(r->out, t.s, t.len);
        return ERR_OK;
    }
    uint8_t byte;
    switch (r->d->stages[k].kind) {
    case STAGE_REPLACE:
        return run_replace(r, k, t);
    case STAGE_BYTE_FALLBACK:
        if (is_byte_token(t, &byte)) {
            strbuf_putc(&r->s->stage[k].held, (char)byte);
            return ERR_OK;
        }
        enum err_code rc = end_bytes(r, k);
        return rc == ERR_OK ? push(r, k + 1, t) : rc;
    case STAGE_STRIP:
        return r->d->stages[k].fused ? strip_chunk(r, k, t) : strip_token(r, k, t);
    case STAGE_METASPACE:
        return run_metaspace(r, k, t);
    case STAGE_FUSE:
        return push(r, k + 1, t);
    case STAGE_BYTES:
        return run_bytes(r, k, t, false);
    }
    return ERR_OK;
}

enum err_code tok_decode_push(const struct tok_decoder *d, struct tok_decode *s,
                              struct tok_text token, struct strbuf *out, struct err *e)
{
    struct run r = {d, s, out, e};
    if (d->none && s->begun)
        strbuf_putc(out, ' ');
    s->begun = true;
    enum err_code rc = push(&r, 0, token);
    return rc == ERR_OK ? strbuf_ok(out, e) : rc;
}

/* Stages end in order: what one gives up still runs through those behind it. */
enum err_code tok_decode_end(const struct tok_decoder *d, struct tok_decode *s, struct strbuf *out,
                             struct err *e)
{
    struct run r = {d, s, out, e};
    enum err_code rc = ERR_OK;
    for (size_t k = 0; k < d->n && rc == ERR_OK; k++) {
        if (d->stages[k].kind == STAGE_BYTE_FALLBACK)
            rc = end_bytes(&r, k);
        else if (d->stages[k].kind == STAGE_BYTES)
            rc = run_bytes(&r, k, (struct tok_text){"", 0}, true);
    }
    return rc == ERR_OK ? strbuf_ok(out, e) : rc;
}

enum err_code tok_decode_piece(const struct tok_decoder *d, struct tok_text token,
                               struct strbuf *out, struct err *e)
{
    struct tok_decoder tokens = *d;
    uint8_t byte;
    bool fallback = false;
    tokens.n = 0;
    for (size_t k = 0; k < d->n; k++) {
        enum stage_kind kind = d->stages[k].kind;
        if (kind == STAGE_BYTES) {
            tok_bytes_get(out, token.s, token.len);
            return strbuf_ok(out, e);
        }
        fallback = fallback || kind == STAGE_BYTE_FALLBACK;
        if (kind == STAGE_FUSE)
            break;
        tokens.n = k + 1;
    }
    if (fallback && is_byte_token(token, &byte)) {
        strbuf_putc(out, (char)byte);
        return strbuf_ok(out, e);
    }
    struct tok_decode *s = tok_decode_new(d);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t k = 0; k < d->n; k++)
        s->stage[k].n_seen = 1;
    enum err_code rc = tok_decode_push(&tokens, s, token, out, e);
    tok_decode_free(s);
    return rc;
}

struct tok_decode *tok_decode_new(const struct tok_decoder *d)
{
    (void)d;
    return calloc(1, sizeof(struct tok_decode));
}

void tok_decode_free(struct tok_decode *s)
{
    if (!s)
        return;
    for (size_t k = 0; k < STAGES_MAX; k++)
        strbuf_free(&s->stage[k].held);
    tok_regex_search_free(&s->search);
    free(s);
}

/* ---- reading ------------------------------------------------------------------------------ */

static enum err_code set_content(struct tok_decode_stage *st, struct tok_text t, struct err *e)
{
    st->content = tok_util_copy(t);
    st->content_len = t.len;
    return st->content ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code read_replace(struct tok_decode_stage *st, const json_t *spec, struct err *e)
{
    struct tok_text pattern = {"", 0}, content = {"", 0};
    bool regex = false;
    enum err_code rc = tok_util_pattern(spec, &pattern, &regex, e);
    if (rc == ERR_OK)
        rc = tok_util_string(spec, "content", &content, e);
    if (rc == ERR_OK && (regex || pattern.len == 0))
        rc = tok_regex_new(&st->regex, pattern, regex, e);
    if (rc == ERR_OK)
        rc = set_content(st, content, e);
    st->pattern = rc == ERR_OK ? tok_util_copy(pattern) : NULL;
    st->pattern_len = pattern.len;
    if (rc == ERR_OK && !st->pattern)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

/* One character, as Strip and Metaspace have it. */
static enum err_code read_character(struct tok_decode_stage *st, const json_t *spec,
                                    const char *key, struct err *e)
{
    struct tok_text t = {"", 0};
    enum err_code rc = tok_util_string(spec, key, &t, e);
    if (rc != ERR_OK)
        return rc;
    const char *p = t.s;
    if (t.len > 0)
        (void)str_utf8_next(&p);
    if (t.len == 0 || p != t.s + t.len)
        return err_set(e, ERR_INPUT, "%s: found '%.80s', expected one character", key, t.s);
    return set_content(st, t, e);
}

static enum err_code read_strip(struct tok_decode_stage *st, const json_t *spec, struct err *e)
{
    enum err_code rc = read_character(st, spec, "content", e);
    if (rc == ERR_OK)
        rc = json_get_int(spec, "start", JSON_REQUIRED, 0, INT32_MAX, &st->start, e);
    if (rc == ERR_OK)
        rc = json_get_int(spec, "stop", JSON_REQUIRED, 0, INT32_MAX, &st->stop, e);
    return rc;
}

static enum err_code read_metaspace(struct tok_decode_stage *st, const json_t *spec, struct err *e)
{
    const char *scheme = "always";
    enum err_code rc = read_character(st, spec, "replacement", e);
    if (rc == ERR_OK)
        rc = json_get_string(spec, "prepend_scheme", JSON_OPTIONAL, &scheme, e);
    st->prepend = strcmp(scheme, "never") != 0;
    return rc;
}

static enum err_code read_stage(struct tok_decoder *d, const json_t *spec, int depth,
                                struct err *e);

static enum err_code read_sequence(struct tok_decoder *d, const json_t *spec, int depth,
                                   struct err *e)
{
    const json_t *list = json_object_get(spec, "decoders");
    if (!json_is_array(list))
        return err_set(e, ERR_INPUT, "key 'decoders': expected an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum err_code rc = read_stage(d, json_array_get(list, i), depth + 1, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "decoders[%zu]", i);
    }
    return ERR_OK;
}

static enum err_code read_stage(struct tok_decoder *d, const json_t *spec, int depth, struct err *e)
{
    static const char *const names[] = {"Replace",   "ByteFallback", "Strip",
                                        "Metaspace", "Fuse",         "ByteLevel"};
    const char *type;
    enum err_code rc = tok_util_type(spec, &type, e);
    if (rc != ERR_OK)
        return rc;
    if (d->n >= STAGES_MAX || depth > STAGES_MAX)
        return err_set(e, ERR_INPUT, "found more than %d decoders", STAGES_MAX);
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(d, spec, depth, e);
    size_t kind = 0;
    while (kind < ARRAY_LEN(names) && strcmp(type, names[kind]) != 0)
        kind++;
    if (kind == ARRAY_LEN(names))
        return err_set(e, ERR_INPUT,
                       "type: found '%.80s', expected Replace, ByteFallback, Strip, "
                       "Metaspace, Fuse, ByteLevel or Sequence",
                       type);
    bool fused = d->n > 0 && (d->stages[d->n - 1].fused || d->stages[d->n - 1].kind >= STAGE_FUSE);
    if (fused && kind != STAGE_STRIP)
        return err_set(e, ERR_INPUT, "type: found '%s' behind Fuse or ByteLevel, expected Strip",
                       type);
    if (!tok_util_grow(&d->stages, &d->cap, d->n + 1, sizeof *d->stages))
        return err_set(e, ERR_NOMEM, "out of memory");
    struct tok_decode_stage *st = &d->stages[d->n++];
    memset(st, 0, sizeof *st);
    st->kind = (enum stage_kind)kind;
    st->fused = fused;
    if (kind == STAGE_REPLACE)
        return read_replace(st, spec, e);
    if (kind == STAGE_STRIP)
        return read_strip(st, spec, e);
    return kind == STAGE_METASPACE ? read_metaspace(st, spec, e) : ERR_OK;
}

enum err_code tok_decoder_init(struct tok_decoder *d, const json_t *spec, struct err *e)
{
    memset(d, 0, sizeof *d);
    d->none = !spec || json_is_null(spec);
    return d->none ? ERR_OK : err_wrap(e, read_stage(d, spec, 0, e), "decoder");
}

void tok_decoder_free(struct tok_decoder *d)
{
    for (size_t i = 0; i < d->n; i++) {
        free(d->stages[i].pattern);
        free(d->stages[i].content);
        tok_regex_free(d->stages[i].regex);
    }
    free(d->stages);
    memset(d, 0, sizeof *d);
}
