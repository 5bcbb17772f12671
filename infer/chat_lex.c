/* chat_lex.c: template text to tokens, white space rules included.
 *
 * Owns newline normalisation, trim_blocks, lstrip_blocks, the `-` and `+` signs, raw blocks,
 * comments and literals; knows no grammar. The rules are those of docs/formats.md (8.2): the first
 * newline after a block or comment is dropped, white space before one is dropped when it starts
 * the line, a sign decides over both.
 */
#include "infer/chat_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "common/str.h"

#define BRACES_MAX 512

struct lexer {
    struct chat_run *r;
    const char *src;
    size_t len, pos;
    int line;
    bool line_start; /* what was consumed last ended with a newline */
    struct chat_token *tokens;
    size_t n, cap;
    char braces[BRACES_MAX]; /* the closers that are due */
    size_t n_braces;
};

static enum err_code push(struct lexer *x, enum chat_token_type type, int op,
                          struct chat_value value)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct chat_token *more = chat_array(x->r, cap, sizeof *more);
        if (!more)
            return chat_nomem(x->r);
        if (x->n)
            memcpy(more, x->tokens, x->n * sizeof *more);
        x->tokens = more;
        x->cap = cap;
    }
    x->tokens[x->n++] = (struct chat_token){type, x->line, op, value};
    return ERR_OK;
}

static enum err_code push_text(struct lexer *x, enum chat_token_type type, size_t from, size_t to)
{
    struct chat_value v;
    CHAT_TRY(chat_str_new(x->r, x->src + from, to - from, 0, &v));
    return push(x, type, 0, v);
}

static enum err_code lex_fail(struct lexer *x, const char *text)
{
    x->r->line = x->line;
    return chat_fail(x->r, "%s", text);
}

static char peek(const struct lexer *x, size_t at)
{
    return at < x->len ? x->src[at] : '\0';
}

static bool at_text(const struct lexer *x, size_t at, const char *text)
{
    size_t n = strlen(text);
    return at <= x->len && x->len - at >= n && memcmp(x->src + at, text, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->len) {
        size_t w;
        if (!chat_is_space(chat_cp_at(x->src + at, x->len - at, &w)))
            break;
        at += w;
    }
    return at;
}

static void advance(struct lexer *x, size_t to)
{
    for (size_t i = x->pos; i < to; i++)
        x->line += x->src[i] == '\n';
    if (to > x->pos)
        x->line_start = x->src[to - 1] == '\n';
    x->pos = to;
}

/* The end of data [from, to) that a tag with this sign leaves. */
static size_t data_end(const struct lexer *x, size_t from, size_t to, char sign, bool block)
{
    if (sign == '-') {
        while (to > from) {
            size_t w = chat_cp_back(x->src + from, x->src + to), got;
            if (!chat_is_space(chat_cp_at(x->src + to - w, w, &got)))
                break;
            to -= w;
        }
        return to;
    }
    if (sign == '+' || !block)
        return to;
    size_t bol = to;
    while (bol > from && x->src[bol - 1] != '\n')
        bol--;
    if (bol == from && !x->line_start)
        return to;
    return skip_space(x, bol) >= to ? bol : to;
}

/* At a closing delimiter of a block ("%}") or comment ("#}"): where it ends, else 0. */
static size_t close_at(const struct lexer *x, size_t at, const char *delim)
{
    if (at_text(x, at, delim))
        return at + 2 + (peek(x, at + 2) == '\n');
    if (peek(x, at) == '-' && at_text(x, at + 1, delim))
        return skip_space(x, at + 3);
    if (peek(x, at) == '+' && at_text(x, at + 1, delim))
        return at + 3;
    return 0;
}

static size_t close_variable(const struct lexer *x, size_t at)
{
    if (at_text(x, at, "}}"))
        return at + 2;
    if (at_text(x, at, "-}}"))
        return skip_space(x, at + 3);
    return 0;
}

static char sign_at(const struct lexer *x, size_t at)
{
    char c = peek(x, at);
    return c == '-' || c == '+' ? c : '\0';
}

static bool word_char(uint32_t cp)
{
    if (cp < 128)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || (cp >= '0' && cp <= '9') ||
               cp == '_';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NO;
}

static bool is_digit(char c, int base)
{
    if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')))
        return true;
    return c >= '0' && c < '0' + MIN2(base, 10);
}

/* Digits with single underscores between them; returns the end, or `at` when there are none. */
static size_t digits(const struct lexer *x, size_t at, int base)
{
    if (!is_digit(peek(x, at), base))
        return at;
    while (is_digit(peek(x, at), base) || (peek(x, at) == '_' && is_digit(peek(x, at + 1), base)))
        at++;
    return at;
}

/* Without underscores, terminated; the caller's buffer is large enough or the error is set. */
static enum err_code number_text(struct lexer *x, size_t from, size_t to, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        if (x->src[i] == '_')
            continue;
        if (n + 1 >= cap)
            return lex_fail(x, "number too long");
        out[n++] = x->src[i];
    }
    out[n] = '\0';
    return ERR_OK;
}

static enum err_code lex_number(struct lexer *x)
{
    char text[400];
    size_t start = x->pos, end = digits(x, start, 10);
    bool real = false;
    if (start == 0 || x->src[start - 1] != '.') {
        size_t at = end;
        if (peek(x, at) == '.' && digits(x, at + 1, 10) > at + 1) {
            at = digits(x, at + 1, 10);
            real = true;
        }
        size_t mantissa = at;
        if (peek(x, at) == 'e' || peek(x, at) == 'E') {
            at++;
            if (peek(x, at) == '+' || peek(x, at) == '-')
                at++;
            if (digits(x, at, 10) > at) {
                mantissa = digits(x, at, 10);
                real = true;
            }
        }
        if (real)
            end = mantissa;
    }
    if (real) {
        CHAT_TRY(number_text(x, start, end, text, sizeof text));
        CHAT_TRY(push(x, TOKEN_CONST_FLOAT, 0, chat_float(strtod(text, NULL))));
        advance(x, end);
        return ERR_OK;
    }
    int base = 10;
    char kind = (char)(peek(x, start + 1) | 0x20);
    if (peek(x, start) == '0') {
        int other = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
        size_t skip = start + 2 + (peek(x, start + 2) == '_');
        if (other && digits(x, skip, other) > skip) {
            base = other;
            end = digits(x, skip, other);
            start = skip;
        } else {
            end = start;
            while (peek(x, end) == '0' || (peek(x, end) == '_' && peek(x, end + 1) == '0'))
                end++;
        }
    }
    CHAT_TRY(number_text(x, start, end, text, sizeof text));
    errno = 0;
    long long v = strtoll(text, NULL, base);
    if (errno == ERANGE)
        return lex_fail(x, "integer does not fit in 64 bits");
    CHAT_TRY(push(x, TOKEN_CONST_INT, 0, chat_int(v)));
    advance(x, end);
    return ERR_OK;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xHH, \uHHHH, \UHHHHHHHH: n digits at `at`. */
static enum err_code hex_escape(struct lexer *x, struct chat_buf **b, size_t at, size_t n)
{
    uint32_t cp = 0;
    for (size_t i = 0; i < n; i++) {
        int d = hex_value(peek(x, at + i));
        if (d < 0)
            return lex_fail(x, "truncated escape in a string");
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        return lex_fail(x, "escape in a string is no character");
    return chat_put_cp(x->r, b, cp, 0);
}

/* A backslash before a character outside ASCII: that character's own escape is spelled out, as
 * Python's two-step decoding does. */
static enum err_code spelled_escape(struct lexer *x, struct chat_buf **b, uint32_t cp)
{
    char text[16];
    int n = snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     (unsigned)cp);
    return chat_put(x->r, b, text, (size_t)n, 0);
}

/* One escape; *at is behind the backslash and moves on. */
static enum err_code lex_escape(struct lexer *x, struct chat_buf **b, size_t *at)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = peek(x, *at);
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        ++*at;
        return chat_put(x->r, b, to + (hit - from), 1, 0);
    }
    if (c == '\n') {
        ++*at;
        return ERR_OK;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        CHAT_TRY(hex_escape(x, b, *at + 1, n));
        *at += 1 + n;
        return ERR_OK;
    }
    if (c >= '0' && c <= '7') {
        uint32_t cp = 0;
        for (int i = 0; i < 3 && peek(x, *at) >= '0' && peek(x, *at) <= '7'; i++)
            cp = cp * 8 + (uint32_t)(x->src[(*at)++] - '0');
        return chat_put_cp(x->r, b, cp, 0);
    }
    if (c == 'N')
        return lex_fail(x, "\\N{name} in a string is not supported");
    if ((unsigned char)c >= 0x80) {
        size_t w;
        uint32_t cp = chat_cp_at(x->src + *at, x->len - *at, &w);
        *at += w;
        return spelled_escape(x, b, cp);
    }
    return chat_put(x->r, b, "\\", 1, 0);
}

static enum err_code lex_string(struct lexer *x)
{
    struct chat_buf *b = NULL;
    char quote = x->src[x->pos];
    size_t at = x->pos + 1;
    while (at < x->len && x->src[at] != quote) {
        if (x->src[at] == '\\' && at + 1 < x->len) {
            at++;
            CHAT_TRY(lex_escape(x, &b, &at));
            continue;
        }
        size_t from = at;
        while (at < x->len && x->src[at] != quote && x->src[at] != '\\')
            at++;
        if (at == from)
            break;
        CHAT_TRY(chat_put(x->r, &b, x->src + from, at - from, 0));
    }
    if (peek(x, at) != quote)
        return lex_fail(x, "string without an end");
    if (b)
        b->cap = b->used; /* constants are shared between renderings: nothing may grow in them */
    CHAT_TRY(push(x, TOKEN_CONST_STR, 0, chat_buf_value(b)));
    advance(x, at + 1);
    return ERR_OK;
}

static enum err_code lex_operator(struct lexer *x)
{
    static const struct {
        const char *text;
        int op;
    } two[] = {{"**", OP_POW}, {"//", OP_FLOORDIV}, {"==", OP_EQ},
               {"!=", OP_NE},  {">=", OP_GE},       {"<=", OP_LE}};
    char c = x->src[x->pos];
    for (size_t i = 0; i < ARRAY_LEN(two); i++) {
        if (!at_text(x, x->pos, two[i].text))
            continue;
        CHAT_TRY(push(x, TOKEN_OP, two[i].op, chat_none()));
        advance(x, x->pos + 2);
        return ERR_OK;
    }
    if (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        x->r->line = x->line;
        return chat_fail(x->r, "unexpected character '%.1s'", (unsigned char)c < 0x80 ? &c : "?");
    }
    if (strchr("([{", c)) {
        if (x->n_braces == BRACES_MAX)
            return lex_fail(x, "brackets nested too deeply");
        x->braces[x->n_braces++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (x->n_braces == 0 || x->braces[x->n_braces - 1] != c) {
            x->r->line = x->line;
            return chat_fail(x->r, "unexpected '%c'", c);
        }
        x->n_braces--;
    }
    CHAT_TRY(push(x, TOKEN_OP, (unsigned char)c, chat_none()));
    advance(x, x->pos + 1);
    return ERR_OK;
}

/* The inside of {% %} or {{ }} up to and with its end. */
static enum err_code lex_inside(struct lexer *x, bool block)
{
    x->n_braces = 0;
    while (x->pos < x->len) {
        size_t end = 0;
        if (x->n_braces == 0)
            end = block ? close_at(x, x->pos, "%}") : close_variable(x, x->pos);
        if (end) {
            CHAT_TRY(push(x, block ? TOKEN_BLOCK_END : TOKEN_VAR_END, 0, chat_none()));
            advance(x, end);
            return ERR_OK;
        }
        size_t w;
        uint32_t cp = chat_cp_at(x->src + x->pos, x->len - x->pos, &w);
        if (chat_is_space(cp)) {
            advance(x, skip_space(x, x->pos));
        } else if (cp >= '0' && cp <= '9') {
            CHAT_TRY(lex_number(x));
        } else if (cp == '"' || cp == '\'') {
            CHAT_TRY(lex_string(x));
        } else if (word_char(cp)) {
            size_t at = x->pos;
            while (at < x->len && word_char(chat_cp_at(x->src + at, x->len - at, &w)))
                at += w;
            CHAT_TRY(push_text(x, TOKEN_NAME, x->pos, at));
            advance(x, at);
        } else {
            CHAT_TRY(lex_operator(x));
        }
    }
    return ERR_OK;
}

/* Behind `{% raw %}`: plain text up to endraw. */
static enum err_code lex_raw(struct lexer *x)
{
    for (size_t at = x->pos; at < x->len; at++) {
        if (!at_text(x, at, "{%"))
            continue;
        char sign = sign_at(x, at + 2);
        size_t word = skip_space(x, at + 2 + (sign != '\0'));
        if (!at_text(x, word, "endraw"))
            continue;
        size_t end = close_at(x, skip_space(x, word + 6), "%}");
        if (!end)
            continue;
        size_t stop = data_end(x, x->pos, at, sign, true);
        if (stop > x->pos)
            CHAT_TRY(push_text(x, TOKEN_DATA, x->pos, stop));
        advance(x, end);
        return ERR_OK;
    }
    return lex_fail(x, "raw block without its end");
}

/* At "{%": where a raw block's text starts, else 0. */
static size_t raw_at(const struct lexer *x, size_t at)
{
    size_t word = skip_space(x, at + 2 + (sign_at(x, at + 2) != '\0'));
    if (!at_text(x, word, "raw"))
        return 0;
    size_t end = skip_space(x, word + 3);
    if (at_text(x, end, "%}"))
        return end + 2;
    return at_text(x, end, "-%}") ? skip_space(x, end + 3) : 0;
}

static enum err_code lex_comment(struct lexer *x)
{
    for (size_t at = x->pos; at < x->len; at++) {
        size_t end = close_at(x, at, "#}");
        if (end) {
            advance(x, end);
            return ERR_OK;
        }
    }
    return lex_fail(x, "comment without its end");
}

static enum err_code lex_tag(struct lexer *x, size_t at)
{
    char kind = x->src[at + 1], sign = sign_at(x, at + 2);
    size_t stop = data_end(x, x->pos, at, sign, kind != '{');
    if (stop > x->pos)
        CHAT_TRY(push_text(x, TOKEN_DATA, x->pos, stop));
    size_t raw = kind == '%' ? raw_at(x, at) : 0;
    advance(x, raw ? raw : at + 2 + (sign != '\0'));
    if (raw)
        return lex_raw(x);
    if (kind == '#')
        return lex_comment(x);
    CHAT_TRY(push(x, kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_VAR_BEGIN, 0, chat_none()));
    return lex_inside(x, kind == '%');
}

/* \r\n and \r become \n, one trailing newline goes. */
static enum err_code normalize(struct lexer *x, const char *text, size_t len)
{
    char *copy = chat_alloc(x->r, len + 1);
    if (!copy)
        return chat_nomem(x->r);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && copy[n - 1] == '\n')
        n--;
    x->src = copy;
    x->len = n;
    return ERR_OK;
}

enum err_code chat_lex(struct chat_run *r, const char *text, size_t len, struct chat_token **out,
                       size_t *n)
{
    struct lexer x = {.r = r, .line = 1, .line_start = true};
    if (len > CHAT_SOURCE_MAX)
        return chat_fail(r, "template of %zu bytes; at most %zu", len, CHAT_SOURCE_MAX);
    size_t bad = str_utf8_valid(text, len);
    if (bad != len)
        return chat_fail(r, "template is not UTF-8 at byte %zu", bad);
    CHAT_TRY(normalize(&x, text, len));
    while (x.pos < x.len) {
        size_t at = x.pos;
        while (at < x.len &&
               !(x.src[at] == '{' && peek(&x, at + 1) && strchr("%{#", peek(&x, at + 1))))
            at++;
        if (at == x.len) {
            CHAT_TRY(push_text(&x, TOKEN_DATA, x.pos, at));
            advance(&x, at);
            break;
        }
        CHAT_TRY(lex_tag(&x, at));
    }
    CHAT_TRY(push(&x, TOKEN_EOF, 0, chat_none()));
    *out = x.tokens;
    *n = x.n;
    return ERR_OK;
}
