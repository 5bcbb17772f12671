/* chat_json.c: the tojson filter: Python's json.dumps with the hub's defaults, marks kept.
 *
 * No HTML escaping; separators ", " and ": " (with indent "," at line ends); keys in their order;
 * text outside ASCII as it is. The text of a string or key keeps its marks, also where it had to be
 * escaped; quotes, brackets and numbers are the template's.
 */
#include "infer/chat_private.h"

#include <math.h>
#include <stdio.h>

struct dumper {
    struct chat_run *r;
    struct chat_buf *out;
    bool ascii, sort, lines;
    struct chat_str indent, item_sep, key_sep;
};

static enum err_code dump(struct dumper *d, const struct chat_value *v, int level);

static enum err_code dump_cp(struct dumper *d, uint32_t cp, const char *raw, size_t w, uint8_t mark)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    const char *hit = cp && cp < 128 ? strchr(from, (int)cp) : NULL;
    if (hit)
        snprintf(text, sizeof text, "\\%c", to[hit - from]);
    else if (cp < 0x20 || (d->ascii && cp >= 0x7f && cp < 0x10000))
        snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
    else if (d->ascii && cp >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((cp - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + ((cp - 0x10000) & 0x3FF)));
    else
        return chat_put(d->r, &d->out, raw, w, mark);
    return chat_put(d->r, &d->out, text, strlen(text), mark);
}

static enum err_code dump_str(struct dumper *d, const struct chat_str *s)
{
    const char *text = chat_text(s);
    size_t w;
    CHAT_TRY(chat_puts(d->r, &d->out, "\""));
    for (size_t i = 0; i < s->len; i += w) {
        /* Runs that need no escape and have one mark go as a whole. */
        uint8_t mark = s->buf->marks[s->off + i];
        size_t end = i;
        while (end < s->len && (unsigned char)text[end] >= 0x20 && text[end] != '"' &&
               text[end] != '\\' && (!d->ascii || (unsigned char)text[end] < 0x7f) &&
               s->buf->marks[s->off + end] == mark)
            end++;
        if (end > i) {
            w = end - i;
            CHAT_TRY(chat_put(d->r, &d->out, text + i, w, mark));
            continue;
        }
        uint32_t cp = chat_cp_at(text + i, s->len - i, &w);
        CHAT_TRY(dump_cp(d, cp, text + i, w, mark));
    }
    return chat_puts(d->r, &d->out, "\"");
}

static enum err_code newline(struct dumper *d, int level)
{
    if (!d->lines)
        return ERR_OK;
    CHAT_TRY(chat_puts(d->r, &d->out, "\n"));
    for (int i = 0; i < level; i++)
        CHAT_TRY(chat_put_str(d->r, &d->out, &d->indent));
    return ERR_OK;
}

static enum err_code dump_list(struct dumper *d, const struct chat_list *l, int level)
{
    if (l->n == 0)
        return chat_puts(d->r, &d->out, "[]");
    CHAT_TRY(chat_puts(d->r, &d->out, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            CHAT_TRY(chat_put_str(d->r, &d->out, &d->item_sep));
        CHAT_TRY(newline(d, level + 1));
        CHAT_TRY(dump(d, &l->v[i], level + 1));
    }
    CHAT_TRY(newline(d, level));
    return chat_puts(d->r, &d->out, "]");
}

static enum err_code dump_float(struct dumper *d, double f)
{
    char text[40];
    size_t n = chat_float_repr(f, text);
    if (!isfinite(f))
        return chat_puts(d->r, &d->out, f != f ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
    return chat_put(d->r, &d->out, text, n, 0);
}

static enum err_code dump_scalar(struct dumper *d, const struct chat_value *v)
{
    switch (v->type) {
    case CHAT_NONE:
        return chat_puts(d->r, &d->out, "null");
    case CHAT_BOOL:
        return chat_puts(d->r, &d->out, v->u.b ? "true" : "false");
    case CHAT_INT:
        return chat_put_repr(d->r, &d->out, v);
    case CHAT_FLOAT:
        return dump_float(d, v->u.f);
    case CHAT_UNDEF:
        return chat_fail(d->r, "tojson: %s is undefined", v->u.hint);
    default:
        return chat_fail(d->r, "tojson of a %s", chat_type_name(v));
    }
}

static enum err_code dump_key(struct dumper *d, const struct chat_value *k)
{
    if (chat_is_str(k))
        return dump_str(d, &k->u.s);
    if (k->type == CHAT_TUPLE)
        return chat_fail(d->r, "tojson: a tuple as key");
    CHAT_TRY(chat_puts(d->r, &d->out, "\""));
    CHAT_TRY(dump_scalar(d, k));
    return chat_puts(d->r, &d->out, "\"");
}

/* Insertion sort of the order: objects that are dumped sorted are small. */
static enum err_code sort_pairs(struct dumper *d, const struct chat_dict *o, size_t *order)
{
    for (size_t i = 0; i < o->n; i++) {
        size_t at = i;
        for (; at > 0; at--) {
            int c;
            bool nan;
            CHAT_TRY(chat_order(d->r, &o->p[i].k, &o->p[order[at - 1]].k, "<", &c, &nan));
            if (nan || c >= 0)
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return ERR_OK;
}

static enum err_code dump_dict(struct dumper *d, const struct chat_dict *o, int level)
{
    size_t *order = NULL;
    if (o->n == 0)
        return chat_puts(d->r, &d->out, "{}");
    if (d->sort) {
        order = chat_array(d->r, o->n, sizeof *order);
        if (!order)
            return chat_nomem(d->r);
        CHAT_TRY(sort_pairs(d, o, order));
    }
    CHAT_TRY(chat_puts(d->r, &d->out, "{"));
    for (size_t i = 0; i < o->n; i++) {
        const struct chat_pair *p = &o->p[order ? order[i] : i];
        if (i)
            CHAT_TRY(chat_put_str(d->r, &d->out, &d->item_sep));
        CHAT_TRY(newline(d, level + 1));
        CHAT_TRY(dump_key(d, &p->k));
        CHAT_TRY(chat_put_str(d->r, &d->out, &d->key_sep));
        CHAT_TRY(dump(d, &p->v, level + 1));
    }
    CHAT_TRY(newline(d, level));
    return chat_puts(d->r, &d->out, "}");
}

static enum err_code dump(struct dumper *d, const struct chat_value *v, int level)
{
    enum err_code rc;
    CHAT_TRY(chat_step(d->r, 0));
    CHAT_TRY(chat_enter(d->r));
    if (chat_is_str(v))
        rc = dump_str(d, &v->u.s);
    else if (v->type == CHAT_LIST || v->type == CHAT_TUPLE)
        rc = dump_list(d, v->u.list, level);
    else if (v->type == CHAT_DICT)
        rc = dump_dict(d, v->u.dict, level);
    else
        rc = dump_scalar(d, v);
    chat_leave(d->r);
    return rc;
}

static enum err_code set_indent(struct dumper *d, const struct chat_value *v)
{
    int64_t n;
    struct chat_buf *b = NULL;
    if (v->type == CHAT_MISSING || v->type == CHAT_NONE)
        return ERR_OK;
    d->lines = true;
    if (chat_is_str(v)) {
        d->indent = v->u.s;
        return ERR_OK;
    }
    CHAT_TRY(chat_arg_int(d->r, v, "tojson: indent", 0, &n));
    if (n > 1000)
        return chat_fail(d->r, "tojson: indent %lld", (long long)n);
    for (int64_t i = 0; i < n; i++)
        CHAT_TRY(chat_puts(d->r, &b, " "));
    d->indent = chat_buf_value(b).u.s;
    return ERR_OK;
}

static enum err_code set_separators(struct dumper *d, const struct chat_value *v)
{
    struct chat_value list, sep;
    if (v->type == CHAT_MISSING || v->type == CHAT_NONE) {
        CHAT_TRY(chat_str_new(d->r, ", ", d->lines ? 1 : 2, 0, &sep));
        d->item_sep = sep.u.s;
        CHAT_TRY(chat_str_new(d->r, ": ", 2, 0, &sep));
        d->key_sep = sep.u.s;
        return ERR_OK;
    }
    CHAT_TRY(chat_iter_list(d->r, v, &list));
    if (list.u.list->n != 2)
        return chat_fail(d->r, "tojson: %zu separators, expected 2", list.u.list->n);
    CHAT_TRY(chat_arg_str(d->r, &list.u.list->v[0], "tojson: separators", &d->item_sep));
    return chat_arg_str(d->r, &list.u.list->v[1], "tojson: separators", &d->key_sep);
}

enum err_code chat_tojson(struct chat_run *r, const struct chat_value *in,
                          const struct chat_args *args, struct chat_value *out)
{
    struct chat_value v[4];
    struct dumper d = {.r = r};
    CHAT_TRY(chat_bind(r, args, "tojson", "ensure_ascii indent separators sort_keys", v));
    CHAT_TRY(chat_truth(r, &v[0], &d.ascii));
    CHAT_TRY(chat_truth(r, &v[3], &d.sort));
    CHAT_TRY(set_indent(&d, &v[1]));
    CHAT_TRY(set_separators(&d, &v[2]));
    CHAT_TRY(dump(&d, in, 0));
    *out = chat_buf_value(d.out);
    return ERR_OK;
}
