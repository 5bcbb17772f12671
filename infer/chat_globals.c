/* chat_globals.c: functions that every template sees.
 *
 * strftime_now has no clock: the caller gives the time as the variable `__now` (docs in chat.h);
 * without it the call is an error that says so, because a rendering must not depend on the day.
 */
#include "infer/chat_private.h"

#include <locale.h>
#include <stdio.h>
#include <time.h>

#define FUNC_ARGS struct chat_run *r, const struct chat_args *args, struct chat_value *out

static enum err_code g_raise(FUNC_ARGS)
{
    struct chat_value v[1], text;
    CHAT_TRY(chat_bind(r, args, "raise_exception", "message!", v));
    CHAT_TRY(chat_to_str(r, &v[0], &text));
    (void)out;
    return chat_fail(r, "the template refuses: %.*s", (int)MIN2(text.u.s.len, (size_t)800),
                     chat_text(&text.u.s));
}

static enum err_code g_range(FUNC_ARGS)
{
    struct chat_value v[3];
    int64_t i[3];
    CHAT_TRY(chat_bind(r, args, "range", "-! - -", v));
    for (int k = 0; k < 3; k++)
        CHAT_TRY(chat_arg_int(r, &v[k], "range", k == 2, &i[k]));
    int64_t start = args->n == 1 ? 0 : i[0], stop = args->n == 1 ? i[0] : i[1], step = i[2];
    if (step == 0)
        return chat_fail(r, "range with step zero");
    /* Unsigned, so that no pair of bounds wraps. */
    uint64_t span = 0, width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 ? stop > start : stop < start)
        span = step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t n = span ? (span - 1) / width + 1 : 0;
    if (n > CHAT_RANGE_MAX)
        return chat_fail(r, "range of more than %d items", CHAT_RANGE_MAX);
    struct chat_range *g = chat_alloc(r, sizeof *g);
    if (!g)
        return chat_nomem(r);
    *g = (struct chat_range){start, n ? step : 1, (int64_t)n};
    *out = (struct chat_value){.type = CHAT_RANGE, .u.range = g};
    return ERR_OK;
}

static enum err_code pairs_into(struct chat_run *r, const struct chat_value *from,
                                struct chat_dict *d)
{
    struct chat_value list = *from, pair;
    if (from->type == CHAT_DICT) {
        for (size_t i = 0; i < from->u.dict->n; i++)
            CHAT_TRY(chat_dict_set(r, d, from->u.dict->p[i].k, from->u.dict->p[i].v));
        return ERR_OK;
    }
    CHAT_TRY(chat_iter_list(r, from, &list));
    for (size_t i = 0; i < list.u.list->n; i++) {
        CHAT_TRY(chat_iter_list(r, &list.u.list->v[i], &pair));
        if (pair.u.list->n != 2)
            return chat_fail(r, "dict: item %zu has %zu values, expected 2", i, pair.u.list->n);
        CHAT_TRY(chat_dict_set(r, d, pair.u.list->v[0], pair.u.list->v[1]));
    }
    return ERR_OK;
}

static enum err_code g_dict(FUNC_ARGS)
{
    CHAT_TRY(chat_dict_new(r, out));
    if (args->n > 1)
        return chat_fail(r, "dict: %zu arguments, at most 1", args->n);
    if (args->n)
        CHAT_TRY(pairs_into(r, &args->v[0], out->u.dict));
    for (size_t i = 0; i < args->n_kw; i++)
        CHAT_TRY(chat_dict_set(r, out->u.dict, args->kw[i].name, args->kw[i].value));
    return ERR_OK;
}

/* The hub's namespaces take no private names. */
enum err_code chat_space_name(struct chat_run *r, const struct chat_value *name)
{
    if (chat_is_str(name) && name->u.s.len && chat_text(&name->u.s)[0] == '_')
        return chat_fail(r, "namespace attribute '%.*s' starts with '_'",
                         (int)MIN2(name->u.s.len, (size_t)60), chat_text(&name->u.s));
    return ERR_OK;
}

static enum err_code g_namespace(FUNC_ARGS)
{
    CHAT_TRY(g_dict(r, args, out));
    out->type = CHAT_SPACE;
    for (size_t i = 0; i < out->u.dict->n; i++)
        CHAT_TRY(chat_space_name(r, &out->u.dict->p[i].k));
    return ERR_OK;
}

static enum err_code cycler_new(struct chat_run *r, const struct chat_value *v, size_t n,
                                enum chat_type type, struct chat_value *out)
{
    struct chat_value items;
    struct chat_cycler *c = chat_alloc(r, sizeof *c);
    if (!c)
        return chat_nomem(r);
    CHAT_TRY(chat_list_new(r, n, &items));
    for (size_t i = 0; i < n; i++)
        CHAT_TRY(chat_list_push(r, items.u.list, v[i]));
    c->items = items.u.list;
    *out = (struct chat_value){.type = type, .u.cycler = c};
    return ERR_OK;
}

static enum err_code g_cycler(FUNC_ARGS)
{
    if (args->n == 0 || args->n_kw)
        return chat_fail(r, "cycler: nothing to cycle through");
    return cycler_new(r, args->v, args->n, CHAT_CYCLER, out);
}

static enum err_code g_joiner(FUNC_ARGS)
{
    struct chat_value v[1];
    CHAT_TRY(chat_bind(r, args, "joiner", "sep", v));
    if (v[0].type == CHAT_MISSING)
        CHAT_TRY(chat_str_new(r, ", ", 2, 0, &v[0]));
    return cycler_new(r, v, 1, CHAT_JOINER, out);
}

static enum err_code g_lipsum(FUNC_ARGS)
{
    (void)args;
    (void)out;
    return chat_fail(r, "lipsum makes random text, which is not supported");
}

static enum err_code g_strftime(FUNC_ARGS)
{
    struct chat_value v[1];
    CHAT_TRY(chat_bind(r, args, "strftime_now", "format!", v));
    if (!chat_is_str(&v[0]))
        return chat_fail(r, "strftime_now: the format is a %s", chat_type_name(&v[0]));
    return chat_strftime(r, &v[0], out);
}

/* "YYYY-MM-DD", then nothing or "THH:MM" or "THH:MM:SS" (a space instead of T is fine). */
static bool parse_now(const char *text, struct tm *out)
{
    int y, mo, d, h = 0, mi = 0, s = 0, n = 0, m = 0, k = 0;
    if (sscanf(text, "%4d-%2d-%2d%n", &y, &mo, &d, &n) != 3 || n != 10)
        return false;
    const char *rest = text + n;
    if (*rest == 'T' || *rest == ' ') {
        if (sscanf(rest + 1, "%2d:%2d%n", &h, &mi, &m) != 2 || m != 5)
            return false;
        rest += 1 + m;
        if (*rest == ':') {
            if (sscanf(rest + 1, "%2d%n", &s, &k) != 1 || k != 2)
                return false;
            rest += 1 + k;
        }
    }
    if (*rest || y < 1000 || mo < 1 || mo > 12 || d < 1 || d > 31 || h < 0 || h > 23 || mi < 0 ||
        mi > 59 || s < 0 || s > 59)
        return false;
    *out = (struct tm){.tm_year = y - 1900,
                       .tm_mon = mo - 1,
                       .tm_mday = d,
                       .tm_hour = h,
                       .tm_min = mi,
                       .tm_sec = s};
    struct tm check = *out;
    timegm(&check); /* fills in the day of the week and of the year; moves a 31 June */
    bool same = check.tm_mday == d;
    *out = check;
    return same;
}

/* The time has neither microseconds nor a zone: %f is zero, %z and %Z are empty. */
static enum err_code plain_format(struct chat_run *r, const struct chat_str *s, struct chat_buf **b)
{
    const char *text = chat_text(s);
    for (size_t i = 0; i < s->len; i++) {
        char next = i + 1 < s->len ? text[i + 1] : '\0';
        if (text[i] == '\0')
            return chat_fail(r, "strftime_now: zero byte in the format");
        if (text[i] != '%' || !next) {
            CHAT_TRY(chat_put(r, b, text + i, 1, 0));
            continue;
        }
        i++;
        if (next == 'f')
            CHAT_TRY(chat_puts(r, b, "000000"));
        else if (next != 'z' && next != 'Z')
            CHAT_TRY(chat_put(r, b, text + i - 1, 2, 0));
    }
    return chat_put(r, b, "|", 2, 0); /* a last character, so that an empty result is a failure */
}

enum err_code chat_strftime(struct chat_run *r, const struct chat_value *fmt,
                            struct chat_value *out)
{
    char text[1024];
    struct tm tm;
    struct chat_buf *b = NULL;
    const struct chat_str *s = &fmt->u.s;
    if (!r->now)
        return chat_fail(r, "the template asks for the date (strftime_now); set one: there is no "
                            "clock in rendering");
    if (!parse_now(r->now, &tm))
        return chat_fail(r, "date '%.40s': expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS", r->now);
    if (s->len > 200)
        return chat_fail(r, "strftime_now: format of %zu bytes, at most 200", s->len);
    CHAT_TRY(plain_format(r, s, &b));
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return chat_nomem(r);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime_l(text, sizeof text, b->data, &tm, c);
#pragma GCC diagnostic pop
    freelocale(c);
    if (n == 0)
        return chat_fail(r, "strftime_now: the date does not fit in %zu bytes", sizeof text);
    uint8_t mark = 0;
    for (size_t i = 0; i < s->len; i++)
        mark |= s->buf->marks[s->off + i];
    return chat_str_new(r, text, n - 1, mark, out);
}

const struct chat_func *chat_global_find(const struct chat_str *name)
{
    static const struct chat_func globals[] = {
        {"raise_exception", g_raise}, {"range", g_range},           {"dict", g_dict},
        {"namespace", g_namespace},   {"cycler", g_cycler},         {"joiner", g_joiner},
        {"lipsum", g_lipsum},         {"strftime_now", g_strftime},
    };
    for (size_t i = 0; i < ARRAY_LEN(globals); i++) {
        if (chat_str_is(name, globals[i].name))
            return &globals[i];
    }
    return NULL;
}
