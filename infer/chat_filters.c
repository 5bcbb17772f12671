/* chat_filters.c: filters of text and single values, and the table of all filters.
 *
 * Names without a function are jinja2's own that this engine does not have: using one is an error
 * that says so, instead of an unknown name. Filters of sequences are in chat_sequence.c.
 */
#include "infer/chat_private.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FILTER_ARGS                                                                                \
    struct chat_run *r, const struct chat_value *in, const struct chat_args *args,                 \
        struct chat_value *out

static enum err_code none_of(struct chat_run *r, const struct chat_args *args, const char *what)
{
    return chat_bind(r, args, what, "", NULL);
}

static enum err_code f_trim(FILTER_ARGS)
{
    struct chat_value v[1], text;
    struct chat_str chars;
    CHAT_TRY(chat_bind(r, args, "trim", "chars", v));
    CHAT_TRY(chat_to_str(r, in, &text));
    bool given = v[0].type != CHAT_MISSING && v[0].type != CHAT_NONE;
    if (given)
        CHAT_TRY(chat_arg_str(r, &v[0], "trim", &chars));
    CHAT_TRY(chat_step(r, text.u.s.len * (given ? MAX2(chars.len, (size_t)1) : 1)));
    *out = chat_str_value(chat_strip(&text.u.s, given ? &chars : NULL, SIDE_BOTH), text.safe);
    return ERR_OK;
}

static enum err_code cased(struct chat_run *r, const struct chat_value *in,
                           const struct chat_args *args, enum chat_case how, struct chat_value *out)
{
    struct chat_value text;
    CHAT_TRY(none_of(r, args, "case"));
    CHAT_TRY(chat_to_str(r, in, &text));
    CHAT_TRY(chat_case(r, &text.u.s, how, out));
    out->safe = text.safe && how != CASE_FILTER_TITLE;
    return ERR_OK;
}

static enum err_code f_upper(FILTER_ARGS)
{
    return cased(r, in, args, CASE_UPPER, out);
}

static enum err_code f_lower(FILTER_ARGS)
{
    return cased(r, in, args, CASE_LOWER, out);
}

static enum err_code f_capitalize(FILTER_ARGS)
{
    return cased(r, in, args, CASE_CAPITAL, out);
}

static enum err_code f_title(FILTER_ARGS)
{
    return cased(r, in, args, CASE_FILTER_TITLE, out);
}

static enum err_code f_string(FILTER_ARGS)
{
    CHAT_TRY(none_of(r, args, "string"));
    return chat_to_str(r, in, out);
}

static enum err_code f_safe(FILTER_ARGS)
{
    CHAT_TRY(none_of(r, args, "safe"));
    CHAT_TRY(chat_to_str(r, in, out));
    out->safe = true;
    return ERR_OK;
}

static enum err_code f_escape(FILTER_ARGS)
{
    CHAT_TRY(none_of(r, args, "escape"));
    return chat_escape(r, in, out);
}

static enum err_code f_forceescape(FILTER_ARGS)
{
    struct chat_value text;
    CHAT_TRY(none_of(r, args, "forceescape"));
    CHAT_TRY(chat_to_str(r, in, &text));
    text.safe = false;
    return chat_escape(r, &text, out);
}

static enum err_code f_replace(FILTER_ARGS)
{
    struct chat_value v[3], text;
    struct chat_str s[3];
    int64_t count;
    CHAT_TRY(chat_bind(r, args, "replace", "old! new! count", v));
    CHAT_TRY(chat_to_str(r, in, &text));
    s[0] = text.u.s;
    for (int i = 0; i < 2; i++) {
        CHAT_TRY(chat_to_str(r, &v[i], &text));
        s[i + 1] = text.u.s;
    }
    if (v[2].type == CHAT_NONE)
        v[2].type = CHAT_MISSING;
    CHAT_TRY(chat_arg_int(r, &v[2], "replace", -1, &count));
    return chat_replace(r, s, count, out);
}

static enum err_code f_default(FILTER_ARGS)
{
    struct chat_value v[2];
    bool use = in->type == CHAT_UNDEF, falsy = false, truth = true;
    CHAT_TRY(chat_bind(r, args, "default", "default_value boolean", v));
    CHAT_TRY(chat_truth(r, &v[1], &falsy));
    if (falsy)
        CHAT_TRY(chat_truth(r, in, &truth));
    *out = *in;
    if (!use && truth)
        return ERR_OK;
    if (v[0].type == CHAT_MISSING)
        return chat_str_new(r, "", 0, 0, out);
    *out = v[0];
    return ERR_OK;
}

/* The text of a number in Python's spelling: white space around, single underscores inside. */
static bool number_text(const struct chat_str *s, char *out, size_t cap)
{
    struct chat_str t = chat_strip(s, NULL, SIDE_BOTH);
    const char *p = chat_text(&t);
    size_t n = 0;
    for (size_t i = 0; i < t.len; i++) {
        bool digit = i > 0 && i + 1 < t.len && p[i - 1] >= '0' && p[i - 1] <= '9' &&
                     p[i + 1] >= '0' && p[i + 1] <= '9';
        if (p[i] == '_' && digit)
            continue;
        if (p[i] == '_' || p[i] == '\0' || p[i] == '(' || n + 1 >= cap ||
            chat_is_space((unsigned char)p[i]))
            return false;
        out[n++] = p[i];
    }
    out[n] = '\0';
    return n > 0;
}

static bool text_to_double(const struct chat_str *s, double *out)
{
    char text[512], *end;
    if (!number_text(s, text, sizeof text) || strpbrk(text, "xX"))
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

/* Whether the text is an integer of the base; *wide: it is, but not in 64 bits. */
static bool text_to_int(const struct chat_str *s, int base, int64_t *out, bool *wide)
{
    char text[512], *end;
    *wide = false;
    if (!number_text(s, text, sizeof text))
        return false;
    /* A prefix counts where it names the base; strtoll knows only that of 16. */
    size_t sign = text[0] == '-' || text[0] == '+';
    char prefix = base == 8 ? 'o' : base == 2 ? 'b' : '\0';
    if (prefix && text[sign] == '0' && (text[sign + 1] | 0x20) == prefix)
        memmove(text + sign, text + sign + 2, strlen(text + sign + 2) + 1);
    errno = 0;
    *out = strtoll(text, &end, base);
    *wide = errno == ERANGE;
    return *end == '\0' && end != text && errno != EINVAL;
}

static enum err_code double_to_int(struct chat_run *r, double f, const struct chat_value *other,
                                   struct chat_value *out)
{
    if (!isfinite(f)) {
        *out = other->type == CHAT_MISSING ? chat_int(0) : *other;
        return ERR_OK;
    }
    f = trunc(f);
    if (f < -9.2233720368547748e18 || f > 9.2233720368547748e18)
        return chat_fail(r, "int: %g does not fit in 64 bits", f);
    *out = chat_int((int64_t)f);
    return ERR_OK;
}

static enum err_code f_int(FILTER_ARGS)
{
    struct chat_value v[2];
    int64_t base, i;
    double f;
    bool wide;
    CHAT_TRY(chat_bind(r, args, "int", "default base", v));
    CHAT_TRY(chat_arg_int(r, &v[1], "int", 10, &base));
    if (base < 2 || base > 36)
        return chat_fail(r, "int: base %lld", (long long)base);
    switch (in->type) {
    case CHAT_UNDEF:
        return chat_fail(r, "%s is undefined", in->u.hint);
    case CHAT_INT:
        *out = *in;
        return ERR_OK;
    case CHAT_BOOL:
        *out = chat_int(in->u.b);
        return ERR_OK;
    case CHAT_FLOAT:
        return double_to_int(r, in->u.f, &v[0], out);
    case CHAT_STR:
        if (text_to_int(&in->u.s, (int)base, &i, &wide)) {
            *out = chat_int(i);
            return wide ? chat_fail(r, "int: does not fit in 64 bits") : ERR_OK;
        }
        if (text_to_double(&in->u.s, &f))
            return double_to_int(r, f, &v[0], out);
        break;
    default:
        break;
    }
    *out = v[0].type == CHAT_MISSING ? chat_int(0) : v[0];
    return ERR_OK;
}

static enum err_code f_float(FILTER_ARGS)
{
    struct chat_value v[1];
    int64_t i;
    double f;
    bool real;
    CHAT_TRY(chat_bind(r, args, "float", "default", v));
    if (in->type == CHAT_UNDEF)
        return chat_fail(r, "%s is undefined", in->u.hint);
    if (chat_number(in, &i, &f, &real) || (chat_is_str(in) && text_to_double(&in->u.s, &f)))
        *out = chat_float(f);
    else
        *out = v[0].type == CHAT_MISSING ? chat_float(0) : v[0];
    return ERR_OK;
}

static enum err_code f_abs(FILTER_ARGS)
{
    CHAT_TRY(none_of(r, args, "abs"));
    bool minus =
        (in->type == CHAT_INT && in->u.i < 0) || (in->type == CHAT_FLOAT && signbit(in->u.f));
    return chat_negate(r, in, minus, out);
}

/* Python's round: half to even, on the exact decimal value of the double. */
static enum err_code round_common(struct chat_run *r, const struct chat_value *in, int64_t digits,
                                  struct chat_value *out)
{
    char text[400];
    if (in->type != CHAT_FLOAT) {
        if (digits < 0)
            return chat_fail(r, "round: negative precision of an integer is not supported");
        return chat_negate(r, in, false, out);
    }
    if (!isfinite(in->u.f) || digits > 20) {
        *out = *in;
        return ERR_OK;
    }
    if (digits < 0)
        return chat_fail(r, "round: negative precision is not supported");
    snprintf(text, sizeof text, "%.*f", (int)digits, in->u.f);
    *out = chat_float(strtod(text, NULL));
    return ERR_OK;
}

static enum err_code f_round(FILTER_ARGS)
{
    struct chat_value v[2];
    int64_t digits, i;
    double f;
    bool real;
    CHAT_TRY(chat_bind(r, args, "round", "precision method", v));
    CHAT_TRY(chat_arg_int(r, &v[0], "round", 0, &digits));
    if (!chat_number(in, &i, &f, &real))
        return chat_fail(r, "round of a %s", chat_type_name(in));
    if (v[1].type == CHAT_MISSING || (chat_is_str(&v[1]) && chat_str_is(&v[1].u.s, "common")))
        return round_common(r, in, digits, out);
    bool up = chat_is_str(&v[1]) && chat_str_is(&v[1].u.s, "ceil");
    if (!up && !(chat_is_str(&v[1]) && chat_str_is(&v[1].u.s, "floor")))
        return chat_fail(r, "round: method must be common, ceil or floor");
    double scale = pow(10, (double)digits);
    *out = chat_float((up ? ceil(f * scale) : floor(f * scale)) / scale);
    return ERR_OK;
}

/* What to put before a line: a number of spaces or a string. */
static enum err_code indent_of(struct chat_run *r, const struct chat_value *width, bool safe,
                               struct chat_value *out)
{
    int64_t n;
    struct chat_buf *b = NULL;
    if (chat_is_str(width)) {
        *out = *width;
    } else {
        CHAT_TRY(chat_arg_int(r, width, "indent", 4, &n));
        for (int64_t i = 0; i < n; i++)
            CHAT_TRY(chat_puts(r, &b, " "));
        *out = chat_buf_value(b);
    }
    out->safe = safe;
    return ERR_OK;
}

static enum err_code f_indent(FILTER_ARGS)
{
    struct chat_value v[3], text, pad, lines;
    bool first = false, blank = false;
    struct chat_buf *b = NULL;
    CHAT_TRY(chat_bind(r, args, "indent", "width first blank", v));
    CHAT_TRY(chat_truth(r, &v[1], &first));
    CHAT_TRY(chat_truth(r, &v[2], &blank));
    if (!chat_is_str(in))
        return chat_fail(r, "indent of a %s", chat_type_name(in));
    CHAT_TRY(indent_of(r, &v[0], in->safe, &pad));
    struct chat_value newline = {0};
    CHAT_TRY(chat_str_new(r, "\n", 1, 0, &newline));
    text = *in;
    CHAT_TRY(chat_join2(r, &in->u.s, &newline.u.s, &text.u.s));
    CHAT_TRY(chat_splitlines(r, &text, false, &lines));
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const struct chat_str *line = &lines.u.list->v[i].u.s;
        if (i)
            CHAT_TRY(chat_puts(r, &b, "\n"));
        if (i ? blank || line->len : first)
            CHAT_TRY(chat_put_str(r, &b, &pad.u.s));
        CHAT_TRY(chat_put_str(r, &b, line));
    }
    *out = chat_buf_value(b);
    out->safe = in->safe;
    return ERR_OK;
}

static enum err_code f_center(FILTER_ARGS)
{
    struct chat_value v[1], text;
    struct chat_buf *b = NULL;
    int64_t width;
    CHAT_TRY(chat_bind(r, args, "center", "width", v));
    CHAT_TRY(chat_arg_int(r, &v[0], "center", 80, &width));
    CHAT_TRY(chat_to_str(r, in, &text));
    int64_t n = (int64_t)chat_cp_count(&text.u.s), fill = width > n ? width - n : 0;
    if (fill > (int64_t)CHAT_OUTPUT_MAX)
        return chat_fail(r, "center: width %lld", (long long)width);
    int64_t left = fill / 2 + (fill & width & 1);
    for (int64_t i = 0; i < left; i++)
        CHAT_TRY(chat_puts(r, &b, " "));
    CHAT_TRY(chat_put_str(r, &b, &text.u.s));
    for (int64_t i = left; i < fill; i++)
        CHAT_TRY(chat_puts(r, &b, " "));
    *out = chat_buf_value(b);
    out->safe = text.safe;
    return ERR_OK;
}

static enum err_code f_truncate(FILTER_ARGS)
{
    struct chat_value v[4];
    struct chat_str end, head, space;
    int64_t length, leeway;
    bool kill = false;
    CHAT_TRY(chat_bind(r, args, "truncate", "length killwords end leeway", v));
    CHAT_TRY(chat_arg_int(r, &v[0], "truncate", 255, &length));
    CHAT_TRY(chat_truth(r, &v[1], &kill));
    if (v[2].type == CHAT_MISSING)
        CHAT_TRY(chat_str_new(r, "...", 3, 0, &v[2]));
    CHAT_TRY(chat_arg_str(r, &v[2], "truncate", &end));
    if (v[3].type == CHAT_NONE)
        v[3].type = CHAT_MISSING;
    CHAT_TRY(chat_arg_int(r, &v[3], "truncate", 5, &leeway));
    int64_t n, n_end = (int64_t)chat_cp_count(&end);
    CHAT_TRY(chat_len(r, in, &n));
    if (length < n_end || leeway < 0)
        return chat_fail(r, "truncate: length %lld, leeway %lld", (long long)length,
                         (long long)leeway);
    *out = *in;
    if (n <= leeway || n - leeway <= length)
        return ERR_OK;
    CHAT_TRY(chat_arg_str(r, in, "truncate", &head));
    head = chat_sub(&head, 0, chat_cp_offset(&head, (size_t)(length - n_end)));
    struct chat_value blank;
    CHAT_TRY(chat_str_new(r, " ", 1, 0, &blank));
    space = blank.u.s;
    size_t cut = kill ? SIZE_MAX : chat_rfind(&head, &space, head.len);
    if (cut != SIZE_MAX)
        head = chat_sub(&head, 0, cut);
    struct chat_value a = chat_str_value(head, in->safe);
    return chat_binary(r, '+', &a, &v[2], out);
}

static enum err_code f_attr(FILTER_ARGS)
{
    struct chat_value v[1];
    CHAT_TRY(chat_bind(r, args, "attr", "name!", v));
    if (!chat_is_str(&v[0]))
        return chat_fail(r, "attr: the name is a string");
    if (in->type == CHAT_DICT) {
        struct chat_method m;
        if (!chat_method_find(in, &v[0].u.s, &m))
            return chat_undef_of(r, in, &v[0], out);
    }
    return chat_getattr(r, in, &v[0], out);
}

static enum err_code f_format(FILTER_ARGS)
{
    struct chat_value text, tuple;
    CHAT_TRY(chat_to_str(r, in, &text));
    if (args->n_kw)
        return chat_fail(r, "format: keyword arguments are not supported");
    CHAT_TRY(chat_list_new(r, args->n, &tuple));
    for (size_t i = 0; i < args->n; i++)
        CHAT_TRY(chat_list_push(r, tuple.u.list, args->v[i]));
    tuple.type = CHAT_TUPLE;
    return chat_printf_format(r, &text, &tuple, out);
}

static enum err_code f_wordcount(FILTER_ARGS)
{
    struct chat_value text;
    int64_t words = 0;
    bool inside = false;
    size_t w;
    CHAT_TRY(none_of(r, args, "wordcount"));
    CHAT_TRY(chat_to_str(r, in, &text));
    for (size_t at = 0; at < text.u.s.len; at += w) {
        uint32_t cp = chat_cp_at(chat_text(&text.u.s) + at, text.u.s.len - at, &w);
        struct chat_str one = chat_sub(&text.u.s, at, at + w);
        bool word = cp == '_' || chat_class(&one, CLASS_ALNUM);
        words += word && !inside;
        inside = word;
    }
    *out = chat_int(words);
    return ERR_OK;
}

const struct chat_filter chat_text_filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"d", f_default},
    {"default", f_default},
    {"e", f_escape},
    {"escape", f_escape},
    {"float", f_float},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"indent", f_indent},
    {"int", f_int},
    {"lower", f_lower},
    {"replace", f_replace},
    {"round", f_round},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", chat_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"upper", f_upper},
    {"wordcount", f_wordcount},
    {"filesizeformat", NULL},
    {"groupby", NULL},
    {"pprint", NULL},
    {"random", NULL},
    {"slice", NULL},
    {"striptags", NULL},
    {"urlencode", NULL},
    {"urlize", NULL},
    {"wordwrap", NULL},
    {"xmlattr", NULL},
    {NULL, NULL},
};

const struct chat_filter *chat_filter_find(const struct chat_str *name)
{
    const struct chat_filter *const tables[] = {chat_text_filters, chat_sequence_filters};
    for (size_t t = 0; t < ARRAY_LEN(tables); t++) {
        for (const struct chat_filter *f = tables[t]; f->name; f++) {
            if (chat_str_is(name, f->name))
                return f;
        }
    }
    return NULL;
}
