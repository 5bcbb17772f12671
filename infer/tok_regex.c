/* tok_regex.c: see tok_regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "infer/tok_regex.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>

#include "infer/tok_classes.h"

#define PATTERN_MAX   65536
#define MATCH_LIMIT   10000000u
#define HEAP_LIMIT_KB (64u * 1024)

struct tok_regex {
    pcre2_code *code;
    pcre2_match_context *limits;
};

/* ---- from Oniguruma to PCRE2 ---------------------------------------------------------------- */

struct rewrite {
    const char *p, *end, *begin;
    struct strbuf *out;
    struct err *e;
};

static enum err_code refuse(const struct rewrite *r, const char *at, const char *what)
{
    return err_set(r->e, ERR_INPUT, "regex: found %s at offset %zu ('%.*s'), not supported", what,
                   (size_t)(at - r->begin), (int)MIN2(r->end - at, 16), at);
}

/* \p{Name} at r->p (behind the letter). Outside a class it makes one. */
static enum err_code rewrite_property(struct rewrite *r, bool negated, bool in_class)
{
    const char *at = r->p - 2, *name, *close;
    if (r->p >= r->end || *r->p != '{')
        return refuse(r, at, "a property without braces");
    name = ++r->p;
    close = memchr(name, '}', (size_t)(r->end - name));
    if (!close)
        return refuse(r, at, "a property without its closing brace");
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    size_t len = (size_t)(close - name);
    r->p = close + 1;
    if (in_class && negated) {
        if (!tok_classes_same(name, len))
            return refuse(r, at, "a negated property in a class");
        strbuf_printf(r->out, "\\P{%.*s}", (int)len, name);
        return ERR_OK;
    }
    if (!in_class)
        strbuf_puts(r->out, negated ? "[^" : "[");
    if (!tok_classes_put(r->out, name, len))
        return refuse(r, at, "an unknown property");
    if (!in_class)
        strbuf_putc(r->out, ']');
    return ERR_OK;
}

/* \xHH, \x{H...} and \uHHHH. */
static enum err_code rewrite_code(struct rewrite *r, char letter)
{
    const char *at = r->p - 2;
    size_t digits = letter == 'u' ? 4 : 2;
    bool braces = letter == 'x' && r->p < r->end && *r->p == '{';
    if (braces)
        r->p++;
    char *stop;
    char hex[9] = {0};
    size_t n = 0;
    while (n < 8 && r->p + n < r->end && isxdigit((unsigned char)r->p[n])) {
        hex[n] = r->p[n];
        n++;
        if (!braces && n == digits)
            break;
    }
    unsigned long cp = strtoul(hex, &stop, 16);
    r->p += n;
    if (n == 0 || (!braces && n != digits) || (braces && (r->p >= r->end || *r->p != '}')))
        return refuse(r, at, "an incomplete code point");
    if (braces)
        r->p++;
    /* Without braces \xHH is a byte, which above 7F is no character. */
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) || (letter == 'x' && !braces && cp > 0x7f))
        return refuse(r, at, "a code point out of range");
    strbuf_printf(r->out, "\\x{%lx}", cp);
    return ERR_OK;
}

/* What follows a backslash. *many: it stands for several characters. */
static enum err_code rewrite_escape(struct rewrite *r, bool in_class, bool *many)
{
    const char *at = r->p;
    *many = false;
    if (r->end - r->p < 2)
        return refuse(r, at, "a lone backslash");
    char c = r->p[1];
    r->p += 2;
    switch (c) {
    case 's':
    case 'S':
        *many = true;
        if (in_class) {
            tok_classes_put_spaces(r->out, c == 'S');
            return ERR_OK;
        }
        strbuf_puts(r->out, c == 'S' ? "[^" : "[");
        tok_classes_put_spaces(r->out, false);
        strbuf_putc(r->out, ']');
        return ERR_OK;
    case 'd':
    case 'D':
        *many = true;
        if (in_class && c == 'D')
            return refuse(r, at, "\\D in a class");
        if (!in_class)
            strbuf_puts(r->out, c == 'D' ? "[^" : "[");
        tok_classes_put(r->out, "Nd", 2);
        if (!in_class)
            strbuf_putc(r->out, ']');
        return ERR_OK;
    case 'p':
    case 'P':
        *many = true;
        return rewrite_property(r, c == 'P', in_class);
    case 'x':
    case 'u':
        return rewrite_code(r, c);
    case 'v':
        strbuf_puts(r->out, "\\x{b}");
        return ERR_OK;
    case 'r':
    case 'n':
    case 't':
    case 'f':
        strbuf_append(r->out, at, 2);
        return ERR_OK;
    case 'A':
    case 'z':
        if (in_class)
            return refuse(r, at, "an anchor in a class");
        strbuf_append(r->out, at, 2);
        return ERR_OK;
    default:
        if (isalnum((unsigned char)c) || (unsigned char)c >= 0x80)
            return refuse(r, at, "an escape");
        strbuf_append(r->out, at, 2);
        return ERR_OK;
    }
}

static enum err_code rewrite_class(struct rewrite *r)
{
    const char *at = r->p;
    bool many = false, range = false; /* the last item; a '-' that opens a range came last */
    strbuf_putc(r->out, '[');
    r->p++;
    if (r->p < r->end && *r->p == '^') {
        strbuf_putc(r->out, '^');
        r->p++;
    }
    const char *first = r->p;
    while (r->p < r->end) {
        char c = *r->p;
        if (c == ']' && r->p > first) {
            strbuf_putc(r->out, ']');
            r->p++;
            return ERR_OK;
        }
        if (c == ']' || c == '[' || (c == '&' && r->p + 1 < r->end && r->p[1] == '&'))
            return refuse(r, r->p, "a class in a class");
        if (c == '\\') {
            const char *item = r->p;
            enum err_code rc = rewrite_escape(r, true, &many);
            if (rc != ERR_OK)
                return rc;
            if (many && range)
                return refuse(r, item, "a range that ends in a class");
            range = false;
            continue;
        }
        /* Behind a class a '-' is itself, and what was written out must not become a range. */
        if (c == '-' && many)
            strbuf_putc(r->out, '\\');
        range = c == '-' && !many && !range && r->p > first;
        many = false;
        strbuf_putc(r->out, c);
        r->p++;
    }
    return refuse(r, at, "a class without its end");
}

static enum err_code rewrite_group(struct rewrite *r)
{
    static const char *const kinds[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    const char *at = r->p;
    size_t left = (size_t)(r->end - at), n = 1;
    if (left > 1 && at[1] == '?') {
        n = 0;
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            if (left >= strlen(kinds[i]) && memcmp(at, kinds[i], strlen(kinds[i])) == 0)
                n = strlen(kinds[i]);
        }
        /* In the middle of a pattern "(?i)" binds differently in the two dialects. */
        if (at == r->begin && left >= 4 && memcmp(at, "(?i)", 4) == 0)
            n = 4;
    }
    if (n == 0 || (left > 1 && at[1] == '*'))
        return refuse(r, at, "a group");
    strbuf_append(r->out, at, n);
    r->p += n;
    return ERR_OK;
}

/* {n}, {n,} and {n,m}: in Ruby's syntax a '+' behind them repeats and a '?' behind {n} makes it
 * optional, in PCRE2 neither does. */
static enum err_code rewrite_interval(struct rewrite *r)
{
    const char *at = r->p, *p = at + 1;
    size_t digits = 0, commas = 0;
    while (p < r->end && (isdigit((unsigned char)*p) || (*p == ',' && digits && !commas))) {
        commas += *p == ',';
        digits += *p++ != ',';
    }
    if (p >= r->end || *p != '}' || digits == 0)
        return refuse(r, at, "a brace that is no interval");
    p++;
    if (p < r->end && (*p == '+' || *p == '*' || (*p == '?' && !commas)))
        return refuse(r, at, "an interval that is repeated");
    strbuf_append(r->out, at, (size_t)(p - at));
    r->p = p;
    return ERR_OK;
}

static enum err_code rewrite_pattern(struct tok_text pattern, struct strbuf *out, struct err *e)
{
    struct rewrite r = {pattern.s, pattern.s + pattern.len, pattern.s, out, e};
    enum err_code rc = ERR_OK;
    bool many;
    while (r.p < r.end && rc == ERR_OK) {
        switch (*r.p) {
        case '\\':
            rc = rewrite_escape(&r, false, &many);
            break;
        case '[':
            rc = rewrite_class(&r);
            break;
        case '(':
            rc = rewrite_group(&r);
            break;
        case '{':
            rc = rewrite_interval(&r);
            break;
        default:
            strbuf_putc(out, *r.p++);
        }
    }
    return rc == ERR_OK ? strbuf_ok(out, e) : rc;
}

/* ---- compiling and matching --------------------------------------------------------------- */

static enum err_code compile(struct tok_regex **out, const char *pattern, size_t len,
                             uint32_t options, struct err *e)
{
    int code;
    PCRE2_SIZE at;
    enum err_code rc = ERR_OK;
    struct tok_regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    if (!r || !ctx) {
        rc = err_set(e, ERR_NOMEM, "regex: out of memory");
        goto out;
    }
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(ctx, 100);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &code, &at, ctx);
    if (!r->code) {
        char text[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        rc = err_set(e, ERR_INPUT, "regex: %s at offset %zu of '%.200s'", text, at, pattern);
        goto out;
    }
    r->limits = pcre2_match_context_create(NULL);
    if (!r->limits) {
        rc = err_set(e, ERR_NOMEM, "regex: out of memory");
        goto out;
    }
    pcre2_set_match_limit(r->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(r->limits, HEAP_LIMIT_KB);
    /* Where code may not be generated the interpreter gives the same matches, slower. */
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
out:
    pcre2_compile_context_free(ctx);
    if (rc != ERR_OK) {
        tok_regex_free(r);
        r = NULL;
    }
    *out = r;
    return rc;
}

enum err_code tok_regex_new(struct tok_regex **r, struct tok_text pattern, bool is_regex,
                            struct err *e)
{
    *r = NULL;
    if (pattern.len > PATTERN_MAX)
        return err_set(e, ERR_INPUT, "regex: found %zu bytes, at most %d are allowed", pattern.len,
                       PATTERN_MAX);
    if (!is_regex)
        return compile(r, pattern.s, pattern.len, PCRE2_UTF | PCRE2_LITERAL, e);
    struct strbuf text = {0};
    strbuf_puts(&text, "");
    enum err_code rc = rewrite_pattern(pattern, &text, e);
    if (rc == ERR_OK)
        rc = compile(r, text.data, text.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, e);
    strbuf_free(&text);
    return rc;
}

enum err_code tok_regex_new_pcre(struct tok_regex **r, const char *pattern, struct err *e)
{
    return compile(r, pattern, strlen(pattern), PCRE2_UTF | PCRE2_UCP, e);
}

void tok_regex_free(struct tok_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    pcre2_match_context_free(r->limits);
    free(r);
}

void tok_regex_begin(struct tok_search *s)
{
    s->start = s->end = s->from = 0;
    s->matched = false;
}

static enum err_code match_error(int code, size_t at, struct err *e)
{
    char text[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return err_set(e, code == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_INPUT,
                   "the tokenizer's split pattern failed at offset %zu of a text: %s", at, text);
}

enum err_code tok_regex_next(const struct tok_regex *r, struct tok_search *s, const char *text,
                             size_t len, bool *found, struct err *e)
{
    *found = false;
    if (!s->data)
        s->data = pcre2_match_data_create(1, NULL);
    if (!s->data)
        return err_set(e, ERR_NOMEM, "regex: out of memory");
    while (s->from <= len) {
        PCRE2_SPTR subject = (PCRE2_SPTR)text;
        int n = pcre2_match(r->code, subject, len, s->from, PCRE2_NO_UTF_CHECK, s->data, r->limits);
        if (n == PCRE2_ERROR_JIT_STACKLIMIT)
            n = pcre2_match(r->code, subject, len, s->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            s->data, r->limits);
        if (n == PCRE2_ERROR_NOMATCH) {
            s->from = len + 1;
            return ERR_OK;
        }
        if (n < 0)
            return match_error(n, s->from, e);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(s->data);
        if (o[0] == o[1] && s->matched && o[1] == s->end) {
            do
                s->from++;
            while (s->from < len && ((uint8_t)text[s->from] & 0xc0) == 0x80);
            continue;
        }
        s->start = o[0];
        s->end = s->from = o[1];
        s->matched = *found = true;
        return ERR_OK;
    }
    return ERR_OK;
}

void tok_regex_search_free(struct tok_search *s)
{
    pcre2_match_data_free(s->data);
    s->data = NULL;
}
