/* chat_repr.c: values as Python prints them: str() and repr(), marks kept.
 *
 * Text keeps its marks, also inside a printed list; brackets, quotes and numbers are the
 * template's.
 */
#include "infer/chat_private.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Shortest digits that read back as the same double, in Python's layout: exponents below -4 and
 * from 16 on. */
size_t chat_float_repr(double f, char buf[40])
{
    if (!isfinite(f))
        return (size_t)snprintf(buf, 40, "%s", f != f ? "nan" : f > 0 ? "inf" : "-inf");
    char digits[40];
    for (int p = 0; p <= 16; p++) {
        snprintf(digits, sizeof digits, "%.*e", p, f);
        if (strtod(digits, NULL) == f)
            break;
    }
    char *e = strchr(digits, 'e');
    int exp = atoi(e + 1);
    *e = '\0';
    char plain[24];
    size_t n = 0;
    bool minus = digits[0] == '-';
    for (const char *d = digits + minus; *d; d++) {
        if (*d != '.')
            plain[n++] = *d;
    }
    while (n > 1 && plain[n - 1] == '0')
        n--;
    plain[n] = '\0';
    const char *sign = minus ? "-" : "";
    if (exp < -4 || exp >= 16)
        return (size_t)snprintf(buf, 40, "%s%c%s%se%c%02d", sign, plain[0], n > 1 ? "." : "",
                                plain + 1, exp < 0 ? '-' : '+', abs(exp));
    if (exp < 0)
        return (size_t)snprintf(buf, 40, "%s0.%.*s%s", sign, -exp - 1, "0000", plain);
    if ((size_t)exp + 1 >= n)
        return (size_t)snprintf(buf, 40, "%s%s%.*s.0", sign, plain, exp + 1 - (int)n,
                                "0000000000000000");
    return (size_t)snprintf(buf, 40, "%s%.*s.%s", sign, exp + 1, plain, plain + exp + 1);
}

static enum err_code put_escaped(struct chat_run *r, struct chat_buf **b, uint32_t cp, char quote,
                                 uint8_t mark)
{
    char text[16];
    if (cp == '\\' || cp == (uint32_t)quote)
        snprintf(text, sizeof text, "\\%c", (int)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", (unsigned)cp);
    else
        snprintf(text, sizeof text, cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    return chat_put(r, b, text, strlen(text), mark);
}

static enum err_code repr_str(struct chat_run *r, struct chat_buf **b, const struct chat_str *s)
{
    const char *text = chat_text(s);
    char quote = memchr(text, '\'', s->len) && !memchr(text, '"', s->len) ? '"' : '\'';
    size_t w;
    CHAT_TRY(chat_put(r, b, &quote, 1, 0));
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = chat_cp_at(text + i, s->len - i, &w);
        uint8_t mark = s->buf->marks[s->off + i];
        if (cp == '\\' || cp == (uint32_t)quote || !chat_is_printable(cp))
            CHAT_TRY(put_escaped(r, b, cp, quote, mark));
        else
            CHAT_TRY(chat_put(r, b, text + i, w, mark));
    }
    return chat_put(r, b, &quote, 1, 0);
}

static enum err_code repr_list(struct chat_run *r, struct chat_buf **b, const struct chat_list *l,
                               bool tuple)
{
    CHAT_TRY(chat_puts(r, b, tuple ? "(" : "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            CHAT_TRY(chat_puts(r, b, ", "));
        CHAT_TRY(chat_put_repr(r, b, &l->v[i]));
    }
    return chat_puts(r, b, tuple ? (l->n == 1 ? ",)" : ")") : "]");
}

static enum err_code repr_dict(struct chat_run *r, struct chat_buf **b, const struct chat_dict *d)
{
    CHAT_TRY(chat_puts(r, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            CHAT_TRY(chat_puts(r, b, ", "));
        CHAT_TRY(chat_put_repr(r, b, &d->p[i].k));
        CHAT_TRY(chat_puts(r, b, ": "));
        CHAT_TRY(chat_put_repr(r, b, &d->p[i].v));
    }
    return chat_puts(r, b, "}");
}

static enum err_code repr_view(struct chat_run *r, struct chat_buf **b, const struct chat_view *v)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    CHAT_TRY(chat_puts(r, b, names[v->kind]));
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct chat_pair *p = &v->dict->p[i];
        CHAT_TRY(chat_puts(r, b, i ? ", " : ""));
        if (v->kind == CHAT_VIEW_ITEMS)
            CHAT_TRY(chat_puts(r, b, "("));
        if (v->kind != CHAT_VIEW_VALUES)
            CHAT_TRY(chat_put_repr(r, b, &p->k));
        if (v->kind == CHAT_VIEW_ITEMS)
            CHAT_TRY(chat_puts(r, b, ", "));
        if (v->kind != CHAT_VIEW_KEYS)
            CHAT_TRY(chat_put_repr(r, b, &p->v));
        if (v->kind == CHAT_VIEW_ITEMS)
            CHAT_TRY(chat_puts(r, b, ")"));
    }
    return chat_puts(r, b, "])");
}

static enum err_code repr_range(struct chat_run *r, struct chat_buf **b, const struct chat_range *v,
                                int64_t stop)
{
    char text[96];
    if (v->step == 1)
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", v->start, stop);
    else
        snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")", v->start, stop,
                 v->step);
    return chat_puts(r, b, text);
}

static enum err_code put_scalar(struct chat_run *r, struct chat_buf **b, const struct chat_value *v)
{
    char text[40];
    switch (v->type) {
    case CHAT_NONE:
        return chat_puts(r, b, "None");
    case CHAT_BOOL:
        return chat_puts(r, b, v->u.b ? "True" : "False");
    case CHAT_INT:
        snprintf(text, sizeof text, "%" PRId64, v->u.i);
        return chat_puts(r, b, text);
    case CHAT_FLOAT:
        return chat_put(r, b, text, chat_float_repr(v->u.f, text), 0);
    default:
        /* What Python prints here holds an address. */
        return chat_fail(r, "printing a %s", chat_type_name(v));
    }
}

enum err_code chat_put_repr(struct chat_run *r, struct chat_buf **b, const struct chat_value *v)
{
    CHAT_TRY(chat_enter(r));
    enum err_code rc;
    switch (v->type) {
    case CHAT_STR:
        rc = v->safe ? chat_puts(r, b, "Markup(") : ERR_OK;
        if (rc == ERR_OK)
            rc = repr_str(r, b, &v->u.s);
        if (rc == ERR_OK && v->safe)
            rc = chat_puts(r, b, ")");
        break;
    case CHAT_LIST:
    case CHAT_TUPLE:
        rc = repr_list(r, b, v->u.list, v->type == CHAT_TUPLE);
        break;
    case CHAT_DICT:
        rc = repr_dict(r, b, v->u.dict);
        break;
    case CHAT_SPACE:
        rc = chat_puts(r, b, "<Namespace ");
        if (rc == ERR_OK)
            rc = repr_dict(r, b, v->u.dict);
        if (rc == ERR_OK)
            rc = chat_puts(r, b, ">");
        break;
    case CHAT_VIEW:
        rc = repr_view(r, b, v->u.view);
        break;
    case CHAT_RANGE:
        rc = repr_range(r, b, v->u.range, v->u.range->start + v->u.range->step * v->u.range->n);
        break;
    case CHAT_UNDEF:
        rc = chat_puts(r, b, "Undefined");
        break;
    default:
        rc = put_scalar(r, b, v);
    }
    chat_leave(r);
    return rc;
}

enum err_code chat_put_value(struct chat_run *r, struct chat_buf **b, const struct chat_value *v)
{
    if (chat_is_str(v))
        return chat_put_str(r, b, &v->u.s);
    return v->type == CHAT_UNDEF ? ERR_OK : chat_put_repr(r, b, v);
}

/* str(v): a string stays itself, its safe mark too; callers that lose it clear it. */
enum err_code chat_to_str(struct chat_run *r, const struct chat_value *v, struct chat_value *out)
{
    struct chat_buf *b = NULL;
    if (chat_is_str(v)) {
        *out = *v;
        return ERR_OK;
    }
    CHAT_TRY(chat_put_value(r, &b, v));
    *out = chat_buf_value(b);
    return ERR_OK;
}
