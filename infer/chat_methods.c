/* chat_methods.c: methods of strings, mappings and lists.
 *
 * Owns what `x.name(...)` finds on a value of Python's types, and the text operations that filters
 * share with them; cutting text apart is chat_cut.c's. Methods that change their object are in the
 * table without a function: the sandbox reads them as undefined. A method of a string marked safe
 * gives strings marked safe and escapes what it inserts.
 */
#include "infer/chat_private.h"

/* A prefix or suffix, or a tuple of them, within [start, end). */
static enum err_code affix(struct chat_run *r, const struct chat_value *self,
                           const struct chat_args *args, bool suffix, struct chat_value *out)
{
    struct chat_value v[3], part = *self;
    CHAT_TRY(chat_bind(r, args, suffix ? "endswith" : "startswith", "-! - -", v));
    if (v[1].type != CHAT_MISSING) {
        struct chat_value bounds[3] = {v[1], v[2].type == CHAT_MISSING ? chat_none() : v[2],
                                       chat_none()};
        CHAT_TRY(chat_slice(r, self, bounds, &part));
    }
    size_t n = v[0].type == CHAT_TUPLE ? v[0].u.list->n : 1;
    bool hit = false;
    for (size_t i = 0; i < n && !hit; i++) {
        struct chat_str want;
        const struct chat_value *one = v[0].type == CHAT_TUPLE ? &v[0].u.list->v[i] : &v[0];
        CHAT_TRY(chat_arg_str(r, one, suffix ? "endswith" : "startswith", &want));
        size_t from = suffix && part.u.s.len >= want.len ? part.u.s.len - want.len : 0;
        hit = part.u.s.len >= want.len &&
              memcmp(chat_text(&part.u.s) + from, chat_text(&want), want.len) == 0;
    }
    *out = chat_bool(hit);
    return ERR_OK;
}

static enum err_code str_startswith(CHAT_METHOD_ARGS)
{
    return affix(r, self, args, false, out);
}

static enum err_code str_endswith(CHAT_METHOD_ARGS)
{
    return affix(r, self, args, true, out);
}

/* s[0] with s[1] replaced by s[2]; count < 0: everywhere. */
enum err_code chat_replace(struct chat_run *r, const struct chat_str s[3], int64_t count,
                           struct chat_value *out)
{
    struct chat_buf *b = NULL;
    size_t from = 0, hit = 0, w;
    CHAT_TRY(chat_step(r, s[0].len));
    if (s[1].len == 0) {
        for (; count != 0; count -= count > 0) {
            CHAT_TRY(chat_put_str(r, &b, &s[2]));
            if (hit >= s[0].len)
                break;
            chat_cp_at(chat_text(&s[0]) + hit, s[0].len - hit, &w);
            struct chat_str one = chat_sub(&s[0], hit, hit + w);
            CHAT_TRY(chat_put_str(r, &b, &one));
            hit += w;
        }
        from = hit;
    }
    while (s[1].len && count != 0 && (hit = chat_find(&s[0], &s[1], from)) != SIZE_MAX) {
        struct chat_str before = chat_sub(&s[0], from, hit);
        CHAT_TRY(chat_put_str(r, &b, &before));
        CHAT_TRY(chat_put_str(r, &b, &s[2]));
        from = hit + s[1].len;
        count -= count > 0;
    }
    struct chat_str rest = chat_sub(&s[0], from, s[0].len);
    CHAT_TRY(chat_put_str(r, &b, &rest));
    *out = chat_buf_value(b);
    return ERR_OK;
}

static enum err_code str_replace(CHAT_METHOD_ARGS)
{
    struct chat_value v[3];
    struct chat_str s[3] = {self->u.s};
    int64_t count;
    CHAT_TRY(chat_bind(r, args, "replace", "-! -! -", v));
    CHAT_TRY(chat_arg_str(r, &v[0], "replace", &s[1]));
    if (self->safe) {
        struct chat_value raw = v[1];
        CHAT_TRY(chat_escape(r, &raw, &v[1]));
    }
    CHAT_TRY(chat_arg_str(r, &v[1], "replace", &s[2]));
    CHAT_TRY(chat_arg_int(r, &v[2], "replace", -1, &count));
    CHAT_TRY(chat_replace(r, s, count, out));
    out->safe = self->safe;
    return ERR_OK;
}

static enum err_code change_case(struct chat_run *r, const struct chat_value *self,
                                 const struct chat_args *args, enum chat_case how,
                                 struct chat_value *out)
{
    CHAT_TRY(chat_bind(r, args, "case", "", NULL));
    CHAT_TRY(chat_case(r, &self->u.s, how, out));
    out->safe = self->safe;
    return ERR_OK;
}

static enum err_code str_upper(CHAT_METHOD_ARGS)
{
    return change_case(r, self, args, CASE_UPPER, out);
}

static enum err_code str_lower(CHAT_METHOD_ARGS)
{
    return change_case(r, self, args, CASE_LOWER, out);
}

static enum err_code str_title(CHAT_METHOD_ARGS)
{
    return change_case(r, self, args, CASE_TITLE, out);
}

static enum err_code str_capitalize(CHAT_METHOD_ARGS)
{
    return change_case(r, self, args, CASE_CAPITAL, out);
}

static enum err_code str_swapcase(CHAT_METHOD_ARGS)
{
    return change_case(r, self, args, CASE_SWAP, out);
}

enum err_code chat_str_join(struct chat_run *r, const struct chat_value *sep,
                            const struct chat_value *items, bool convert, struct chat_value *out)
{
    struct chat_buf *b = NULL;
    struct chat_iter *it = NULL;
    struct chat_value item, text;
    CHAT_TRY(chat_iter_open(r, items, &it));
    for (bool first = true;; first = false) {
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            break;
        if (!first)
            CHAT_TRY(chat_put_str(r, &b, &sep->u.s));
        if (!convert && !sep->safe && !chat_is_str(&item))
            return chat_fail(r, "join: found a %s, expected a string", chat_type_name(&item));
        CHAT_TRY(sep->safe && !convert ? chat_escape(r, &item, &text)
                                       : chat_to_str(r, &item, &text));
        CHAT_TRY(chat_put_str(r, &b, &text.u.s));
    }
    *out = chat_buf_value(b);
    out->safe = sep->safe && !convert;
    return ERR_OK;
}

static enum err_code str_join(CHAT_METHOD_ARGS)
{
    struct chat_value v[1];
    CHAT_TRY(chat_bind(r, args, "join", "-!", v));
    return chat_str_join(r, self, &v[0], false, out);
}

/* find, rfind, index, rindex and count share their arguments. */
static enum err_code search_args(struct chat_run *r, const struct chat_value *self,
                                 const struct chat_args *args, struct chat_value *part,
                                 struct chat_str *want, int64_t *base)
{
    struct chat_value v[3];
    CHAT_TRY(chat_bind(r, args, "find", "-! - -", v));
    CHAT_TRY(chat_arg_str(r, &v[0], "find", want));
    *part = *self;
    *base = 0;
    CHAT_TRY(chat_step(r, self->u.s.len));
    if (v[1].type == CHAT_MISSING)
        return ERR_OK;
    struct chat_value bounds[3] = {v[1], v[2].type == CHAT_MISSING ? chat_none() : v[2],
                                   chat_none()};
    CHAT_TRY(chat_slice(r, self, bounds, part));
    struct chat_str before = chat_sub(&self->u.s, 0, part->u.s.off - self->u.s.off);
    *base = (int64_t)chat_cp_count(&before);
    return ERR_OK;
}

static enum err_code search(struct chat_run *r, const struct chat_value *self,
                            const struct chat_args *args, bool right, struct chat_value *out)
{
    struct chat_value part;
    struct chat_str want;
    int64_t base;
    CHAT_TRY(search_args(r, self, args, &part, &want, &base));
    CHAT_TRY(right ? chat_step(r, part.u.s.len * want.len) : ERR_OK);
    size_t hit =
        right ? chat_rfind(&part.u.s, &want, part.u.s.len) : chat_find(&part.u.s, &want, 0);
    if (hit == SIZE_MAX) {
        *out = chat_int(-1);
        return ERR_OK;
    }
    struct chat_str before = chat_sub(&part.u.s, 0, hit);
    *out = chat_int(base + (int64_t)chat_cp_count(&before));
    return ERR_OK;
}

static enum err_code str_find(CHAT_METHOD_ARGS)
{
    return search(r, self, args, false, out);
}

static enum err_code str_rfind(CHAT_METHOD_ARGS)
{
    return search(r, self, args, true, out);
}

static enum err_code found(struct chat_run *r, const struct chat_value *out)
{
    return out->u.i < 0 ? chat_fail(r, "index: substring not found") : ERR_OK;
}

static enum err_code str_index(CHAT_METHOD_ARGS)
{
    CHAT_TRY(search(r, self, args, false, out));
    return found(r, out);
}

static enum err_code str_rindex(CHAT_METHOD_ARGS)
{
    CHAT_TRY(search(r, self, args, true, out));
    return found(r, out);
}

static enum err_code str_count(CHAT_METHOD_ARGS)
{
    struct chat_value part;
    struct chat_str want;
    int64_t base, n = 0;
    CHAT_TRY(search_args(r, self, args, &part, &want, &base));
    if (want.len == 0) {
        *out = chat_int((int64_t)chat_cp_count(&part.u.s) + 1);
        return ERR_OK;
    }
    for (size_t at = 0; (at = chat_find(&part.u.s, &want, at)) != SIZE_MAX; at += want.len)
        n++;
    *out = chat_int(n);
    return ERR_OK;
}

static enum err_code remove_affix(struct chat_run *r, const struct chat_value *self,
                                  const struct chat_args *args, bool suffix, struct chat_value *out)
{
    struct chat_value v[1];
    struct chat_str want, s = self->u.s;
    CHAT_TRY(chat_bind(r, args, "removeprefix", "-!", v));
    CHAT_TRY(chat_arg_str(r, &v[0], "removeprefix", &want));
    size_t from = s.len >= want.len && suffix ? s.len - want.len : 0;
    if (s.len >= want.len && memcmp(chat_text(&s) + from, chat_text(&want), want.len) == 0)
        s = suffix ? chat_sub(&s, 0, from) : chat_sub(&s, want.len, s.len);
    *out = chat_str_value(s, self->safe);
    return ERR_OK;
}

static enum err_code str_removeprefix(CHAT_METHOD_ARGS)
{
    return remove_affix(r, self, args, false, out);
}

static enum err_code str_removesuffix(CHAT_METHOD_ARGS)
{
    return remove_affix(r, self, args, true, out);
}

static enum err_code str_format(CHAT_METHOD_ARGS)
{
    return chat_format(r, self, args, out);
}

static enum err_code class_of(struct chat_run *r, const struct chat_value *self,
                              const struct chat_args *args, enum chat_class c,
                              struct chat_value *out)
{
    CHAT_TRY(chat_bind(r, args, "class", "", NULL));
    CHAT_TRY(chat_step(r, self->u.s.len));
    *out = chat_bool(chat_class(&self->u.s, c));
    return ERR_OK;
}

static enum err_code str_isalpha(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_ALPHA, out);
}

static enum err_code str_isdigit(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_DIGIT, out);
}

static enum err_code str_isalnum(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_ALNUM, out);
}

static enum err_code str_isspace(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_SPACE, out);
}

static enum err_code str_isupper(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_UPPER, out);
}

static enum err_code str_islower(CHAT_METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_LOWER, out);
}

/* Python has these; templates have not been seen to use them. */
static enum err_code unsupported(CHAT_METHOD_ARGS)
{
    (void)self;
    (void)args;
    (void)out;
    return chat_fail(r, "this method is not supported");
}

static enum err_code dict_get(CHAT_METHOD_ARGS)
{
    struct chat_value v[2];
    const struct chat_value *hit;
    CHAT_TRY(chat_bind(r, args, "get", "-! -", v));
    CHAT_TRY(chat_dict_get(r, self->u.dict, &v[0], &hit));
    *out = hit ? *hit : v[1].type == CHAT_MISSING ? chat_none() : v[1];
    return ERR_OK;
}

static enum err_code dict_view(struct chat_run *r, const struct chat_value *self,
                               const struct chat_args *args, enum chat_view_kind kind,
                               struct chat_value *out)
{
    CHAT_TRY(chat_bind(r, args, "items", "", NULL));
    struct chat_view *v = chat_alloc(r, sizeof *v);
    if (!v)
        return chat_nomem(r);
    *v = (struct chat_view){self->u.dict, kind};
    *out = (struct chat_value){.type = CHAT_VIEW, .u.view = v};
    return ERR_OK;
}

static enum err_code dict_keys(CHAT_METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_KEYS, out);
}

static enum err_code dict_values(CHAT_METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_VALUES, out);
}

static enum err_code dict_items(CHAT_METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_ITEMS, out);
}

static enum err_code copy_self(CHAT_METHOD_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "copy", "", NULL));
    *out = *self; /* nothing can change it */
    return ERR_OK;
}

static enum err_code list_count(CHAT_METHOD_ARGS)
{
    struct chat_value v[1];
    int64_t n = 0;
    CHAT_TRY(chat_bind(r, args, "count", "-!", v));
    for (size_t i = 0; i < self->u.list->n; i++) {
        bool same;
        CHAT_TRY(chat_equal(r, &self->u.list->v[i], &v[0], &same));
        n += same;
    }
    *out = chat_int(n);
    return ERR_OK;
}

static enum err_code list_index(CHAT_METHOD_ARGS)
{
    struct chat_value v[1];
    CHAT_TRY(chat_bind(r, args, "index", "-!", v));
    for (size_t i = 0; i < self->u.list->n; i++) {
        bool same;
        CHAT_TRY(chat_equal(r, &self->u.list->v[i], &v[0], &same));
        if (same) {
            *out = chat_int((int64_t)i);
            return ERR_OK;
        }
    }
    return chat_fail(r, "index: not in the list");
}

static enum err_code cycler_next(CHAT_METHOD_ARGS)
{
    struct chat_cycler *c = self->u.cycler;
    CHAT_TRY(chat_bind(r, args, "next", "", NULL));
    *out = c->items->v[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return ERR_OK;
}

static enum err_code cycler_reset(CHAT_METHOD_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "reset", "", NULL));
    self->u.cycler->pos = 0;
    *out = chat_none();
    return ERR_OK;
}

static const struct {
    enum chat_type type;
    const char *name;
    enum err_code (*fn)(CHAT_METHOD_ARGS);
} methods[] = {
    {CHAT_STR, "split", chat_str_split},
    {CHAT_STR, "strip", chat_str_strip},
    {CHAT_STR, "lstrip", chat_str_lstrip},
    {CHAT_STR, "rstrip", chat_str_rstrip},
    {CHAT_STR, "startswith", str_startswith},
    {CHAT_STR, "endswith", str_endswith},
    {CHAT_STR, "replace", str_replace},
    {CHAT_STR, "format", str_format},
    {CHAT_STR, "upper", str_upper},
    {CHAT_STR, "lower", str_lower},
    {CHAT_STR, "title", str_title},
    {CHAT_STR, "capitalize", str_capitalize},
    {CHAT_STR, "swapcase", str_swapcase},
    {CHAT_STR, "join", str_join},
    {CHAT_STR, "rsplit", chat_str_rsplit},
    {CHAT_STR, "splitlines", chat_str_splitlines},
    {CHAT_STR, "find", str_find},
    {CHAT_STR, "rfind", str_rfind},
    {CHAT_STR, "index", str_index},
    {CHAT_STR, "rindex", str_rindex},
    {CHAT_STR, "count", str_count},
    {CHAT_STR, "removeprefix", str_removeprefix},
    {CHAT_STR, "removesuffix", str_removesuffix},
    {CHAT_STR, "partition", chat_str_partition},
    {CHAT_STR, "rpartition", chat_str_rpartition},
    {CHAT_STR, "isalpha", str_isalpha},
    {CHAT_STR, "isdigit", str_isdigit},
    {CHAT_STR, "isalnum", str_isalnum},
    {CHAT_STR, "isspace", str_isspace},
    {CHAT_STR, "isupper", str_isupper},
    {CHAT_STR, "islower", str_islower},
    {CHAT_STR, "casefold", unsupported},
    {CHAT_STR, "center", unsupported},
    {CHAT_STR, "encode", unsupported},
    {CHAT_STR, "expandtabs", unsupported},
    {CHAT_STR, "format_map", unsupported},
    {CHAT_STR, "isascii", unsupported},
    {CHAT_STR, "isdecimal", unsupported},
    {CHAT_STR, "isidentifier", unsupported},
    {CHAT_STR, "isnumeric", unsupported},
    {CHAT_STR, "isprintable", unsupported},
    {CHAT_STR, "istitle", unsupported},
    {CHAT_STR, "ljust", unsupported},
    {CHAT_STR, "maketrans", unsupported},
    {CHAT_STR, "rjust", unsupported},
    {CHAT_STR, "translate", unsupported},
    {CHAT_STR, "zfill", unsupported},
    {CHAT_DICT, "get", dict_get},
    {CHAT_DICT, "items", dict_items},
    {CHAT_DICT, "keys", dict_keys},
    {CHAT_DICT, "values", dict_values},
    {CHAT_DICT, "copy", copy_self},
    {CHAT_DICT, "fromkeys", unsupported},
    {CHAT_DICT, "clear", NULL},
    {CHAT_DICT, "pop", NULL},
    {CHAT_DICT, "popitem", NULL},
    {CHAT_DICT, "setdefault", NULL},
    {CHAT_DICT, "update", NULL},
    {CHAT_LIST, "copy", copy_self},
    {CHAT_LIST, "count", list_count},
    {CHAT_LIST, "index", list_index},
    {CHAT_LIST, "append", NULL},
    {CHAT_LIST, "clear", NULL},
    {CHAT_LIST, "extend", NULL},
    {CHAT_LIST, "insert", NULL},
    {CHAT_LIST, "pop", NULL},
    {CHAT_LIST, "remove", NULL},
    {CHAT_LIST, "reverse", NULL},
    {CHAT_LIST, "sort", NULL},
    {CHAT_TUPLE, "count", list_count},
    {CHAT_TUPLE, "index", list_index},
    {CHAT_CYCLER, "next", cycler_next},
    {CHAT_CYCLER, "reset", cycler_reset},
};

bool chat_method_find(const struct chat_value *self, const struct chat_str *name,
                      struct chat_method *out)
{
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        if (methods[i].type != self->type || !chat_str_is(name, methods[i].name))
            continue;
        *out = (struct chat_method){*self, methods[i].name, methods[i].fn};
        return true;
    }
    return false;
}
