/* chat_format.c: Python's two ways of putting values into text: str.format and %.
 *
 * Of format: {}, {0}, {name}, doubled braces and the conversions !s and !r. Of %: s r d i x f with
 * width, precision, '-' and '0'. Anything else is refused by name. Inserted text keeps its marks;
 * into a string marked safe everything is inserted escaped.
 */
#include "infer/chat_private.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct formatter {
    struct chat_run *r;
    const struct chat_args *args;
    struct chat_buf *out;
    bool safe;
    size_t next;         /* of {} */
    bool counted, named; /* {} and {0} do not mix */
};

static enum err_code put_inserted(struct formatter *f, const struct chat_value *v, bool repr)
{
    struct chat_value text = *v;
    if (repr) {
        struct chat_buf *b = NULL;
        CHAT_TRY(chat_put_repr(f->r, &b, v));
        text = chat_buf_value(b);
    }
    if (f->safe) {
        struct chat_value raw = text;
        CHAT_TRY(chat_escape(f->r, &raw, &text));
    }
    return chat_put_value(f->r, &f->out, &text);
}

static enum err_code field_value(struct formatter *f, const char *name, size_t n,
                                 struct chat_value *out)
{
    size_t index = 0;
    bool number = n > 0 && n < 9;
    for (size_t i = 0; i < n; i++) {
        number = number && name[i] >= '0' && name[i] <= '9';
        index = number ? index * 10 + (size_t)(name[i] - '0') : 0;
    }
    if (n == 0 || number) {
        f->counted = f->counted || n == 0;
        f->named = f->named || n > 0;
        if (f->counted && f->named)
            return chat_fail(f->r, "format: numbered and unnumbered fields mixed");
        if (n == 0)
            index = f->next++;
        if (index >= f->args->n)
            return chat_fail(f->r, "format: field %zu, but %zu arguments", index, f->args->n);
        *out = f->args->v[index];
        return ERR_OK;
    }
    for (size_t i = 0; i < f->args->n_kw; i++) {
        const struct chat_str *kw = &f->args->kw[i].name.u.s;
        if (kw->len == n && memcmp(chat_text(kw), name, n) == 0) {
            *out = f->args->kw[i].value;
            return ERR_OK;
        }
    }
    return chat_fail(f->r, "format: no argument named '%.*s'", (int)MIN2(n, (size_t)60), name);
}

/* The inside of one pair of braces. */
static enum err_code put_field(struct formatter *f, const char *text, size_t n)
{
    struct chat_value v;
    bool repr = false;
    if (memchr(text, ':', n) || memchr(text, '.', n) || memchr(text, '[', n) ||
        memchr(text, '{', n))
        return chat_fail(f->r, "format: '{%.*s}' is not supported", (int)MIN2(n, (size_t)60), text);
    if (n >= 2 && text[n - 2] == '!') {
        repr = text[n - 1] == 'r';
        if (!repr && text[n - 1] != 's')
            return chat_fail(f->r, "format: conversion '!%c' is not supported", text[n - 1]);
        n -= 2;
    }
    CHAT_TRY(field_value(f, text, n, &v));
    return put_inserted(f, &v, repr);
}

enum err_code chat_format(struct chat_run *r, const struct chat_value *fmt,
                          const struct chat_args *args, struct chat_value *out)
{
    struct formatter f = {.r = r, .args = args, .safe = fmt->safe};
    const struct chat_str *s = &fmt->u.s;
    const char *text = chat_text(s);
    for (size_t at = 0; at < s->len;) {
        char c = text[at];
        if (c != '{' && c != '}') {
            size_t from = at;
            while (at < s->len && text[at] != '{' && text[at] != '}')
                at++;
            struct chat_str plain = chat_sub(s, from, at);
            CHAT_TRY(chat_put_str(r, &f.out, &plain));
            continue;
        }
        if (at + 1 < s->len && text[at + 1] == c) {
            struct chat_str brace = chat_sub(s, at, at + 1);
            CHAT_TRY(chat_put_str(r, &f.out, &brace));
            at += 2;
            continue;
        }
        const char *end = memchr(text + at, '}', s->len - at);
        if (c == '}' || !end)
            return chat_fail(r, "format: single '%c'", c);
        CHAT_TRY(put_field(&f, text + at + 1, (size_t)(end - text) - at - 1));
        at = (size_t)(end - text) + 1;
    }
    *out = chat_buf_value(f.out);
    out->safe = fmt->safe;
    return ERR_OK;
}

struct spec {
    bool left, zero;
    int width, precision; /* precision -1: none */
    char kind;
};

static bool parse_spec(const char *text, size_t n, size_t *at, struct spec *p)
{
    *p = (struct spec){.precision = -1};
    for (; *at < n && (text[*at] == '-' || text[*at] == '0'); ++*at) {
        p->left = p->left || text[*at] == '-';
        p->zero = p->zero || text[*at] == '0';
    }
    for (; *at < n && text[*at] >= '0' && text[*at] <= '9' && p->width < 1000; ++*at)
        p->width = p->width * 10 + (text[*at] - '0');
    if (*at < n && text[*at] == '.') {
        ++*at;
        for (p->precision = 0; *at < n && text[*at] >= '0' && text[*at] <= '9'; ++*at)
            p->precision = MIN2(p->precision * 10 + (text[*at] - '0'), 1000);
    }
    if (*at >= n || p->width >= 1000 || p->precision > 100)
        return false;
    p->kind = text[(*at)++];
    return true;
}

static enum err_code number_piece(struct chat_run *r, const struct spec *p,
                                  const struct chat_value *v, struct chat_value *out)
{
    char text[512];
    int64_t i;
    double f;
    bool real;
    if (!chat_number(v, &i, &f, &real))
        return chat_fail(r, "%%%c of a %s", p->kind, chat_type_name(v));
    if (p->kind == 'f') {
        snprintf(text, sizeof text, "%.*f", p->precision < 0 ? 6 : p->precision, f);
    } else if (p->precision >= 0 || (real && (p->kind == 'x' || !isfinite(f) || fabs(f) > 9e18))) {
        return chat_fail(r, "%%%c of this number is not supported", p->kind);
    } else {
        i = real ? (int64_t)f : i;
        if (p->kind == 'x')
            snprintf(text, sizeof text, "%s%" PRIx64, i < 0 ? "-" : "",
                     i < 0 ? 0 - (uint64_t)i : (uint64_t)i);
        else
            snprintf(text, sizeof text, "%" PRId64, i);
    }
    size_t n = strlen(text), minus = text[0] == '-';
    if (p->zero && !p->left && n < (size_t)p->width && n < sizeof text - 1) {
        size_t fill = MIN2((size_t)p->width, sizeof text - 1) - n;
        memmove(text + minus + fill, text + minus, n - minus + 1);
        memset(text + minus, '0', fill);
        n += fill;
    }
    return chat_str_new(r, text, n, 0, out);
}

static enum err_code put_piece(struct formatter *f, const struct spec *p,
                               const struct chat_value *v)
{
    struct chat_value text = *v;
    struct chat_buf *b = NULL;
    if (p->kind == 's' || p->kind == 'r') {
        CHAT_TRY(p->kind == 's' ? chat_to_str(f->r, v, &text) : chat_put_repr(f->r, &b, v));
        if (p->kind == 'r')
            text = chat_buf_value(b);
        if (f->safe) {
            struct chat_value raw = text;
            CHAT_TRY(chat_escape(f->r, &raw, &text));
        }
        if (p->precision >= 0)
            text.u.s = chat_sub(&text.u.s, 0, chat_cp_offset(&text.u.s, (size_t)p->precision));
    } else if (p->kind == 'd' || p->kind == 'i' || p->kind == 'x' || p->kind == 'f') {
        CHAT_TRY(number_piece(f->r, p, v, &text));
    } else {
        return chat_fail(f->r, "%%%c is not supported", p->kind);
    }
    size_t n = chat_cp_count(&text.u.s), fill = (size_t)p->width > n ? (size_t)p->width - n : 0;
    for (size_t i = 0; i < fill && !p->left; i++)
        CHAT_TRY(chat_puts(f->r, &f->out, " "));
    CHAT_TRY(chat_put_str(f->r, &f->out, &text.u.s));
    for (size_t i = 0; i < fill && p->left; i++)
        CHAT_TRY(chat_puts(f->r, &f->out, " "));
    return ERR_OK;
}

enum err_code chat_printf_format(struct chat_run *r, const struct chat_value *fmt,
                                 const struct chat_value *arg, struct chat_value *out)
{
    struct formatter f = {.r = r, .safe = fmt->safe};
    const struct chat_str *s = &fmt->u.s;
    const char *text = chat_text(s);
    bool tuple = arg->type == CHAT_TUPLE;
    size_t n = tuple ? arg->u.list->n : 1, used = 0;
    for (size_t at = 0; at < s->len;) {
        size_t from = at;
        while (at < s->len && text[at] != '%')
            at++;
        struct chat_str plain = chat_sub(s, from, at);
        CHAT_TRY(chat_put_str(r, &f.out, &plain));
        if (at++ >= s->len)
            break;
        struct spec p;
        if (!parse_spec(text, s->len, &at, &p))
            return chat_fail(r, "%% format is incomplete or not supported");
        if (p.kind == '%') {
            CHAT_TRY(chat_puts(r, &f.out, "%"));
            continue;
        }
        if (used >= n)
            return chat_fail(r, "%% format wants more than %zu values", n);
        CHAT_TRY(put_piece(&f, &p, tuple ? &arg->u.list->v[used] : arg));
        used++;
    }
    /* What has items by key or index may stay untaken in Python, unless it is a tuple or text. */
    bool spare = arg->type == CHAT_DICT || arg->type == CHAT_LIST || arg->type == CHAT_RANGE ||
                 arg->type == CHAT_UNDEF;
    if (used < n && !spare)
        return chat_fail(r, "%% format takes %zu values, found %zu", used, n);
    *out = chat_buf_value(f.out);
    out->safe = fmt->safe;
    return ERR_OK;
}
