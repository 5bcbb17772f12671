/* chat_methods.c: methods of strings, mappings and lists.
 *
 * Owns what `x.name(...)` finds on a value of Python's types, and the text operations that filters
 * share with them. Methods that change their object are in the table without a function: the
 * sandbox reads them as undefined. A method of a string marked safe gives strings marked safe and
 * escapes what it inserts.
 */
#include "infer/chat_private.h"

#define METHOD_ARGS                                                                                \
    struct chat_run *r, const struct chat_value *self, const struct chat_args *args,               \
        struct chat_value *out

static bool in_set(const struct chat_str *chars, uint32_t cp)
{
    size_t w;
    for (size_t i = 0; i < chars->len; i += w) {
        if (chat_cp_at(chat_text(chars) + i, chars->len - i, &w) == cp)
            return true;
    }
    return false;
}

/* chars NULL: white space. */
struct chat_str chat_strip(const struct chat_str *s, const struct chat_str *chars,
                           enum chat_side side)
{
    const char *text = chat_text(s);
    size_t from = 0, to = s->len, w;
    while ((side & SIDE_LEFT) && from < to) {
        uint32_t cp = chat_cp_at(text + from, to - from, &w);
        if (chars ? !in_set(chars, cp) : !chat_is_space(cp))
            break;
        from += w;
    }
    while ((side & SIDE_RIGHT) && to > from) {
        size_t back = chat_cp_back(text + from, text + to);
        uint32_t cp = chat_cp_at(text + to - back, back, &w);
        if (chars ? !in_set(chars, cp) : !chat_is_space(cp))
            break;
        to -= back;
    }
    return chat_sub(s, from, to);
}

static enum err_code strip_side(struct chat_run *r, const struct chat_value *self,
                                const struct chat_args *args, enum chat_side side,
                                struct chat_value *out)
{
    struct chat_value v[1];
    struct chat_str chars;
    CHAT_TRY(chat_bind(r, args, "strip", "-", v));
    bool given = v[0].type != CHAT_MISSING && v[0].type != CHAT_NONE;
    if (given)
        CHAT_TRY(chat_arg_str(r, &v[0], "strip", &chars));
    CHAT_TRY(chat_step(r, self->u.s.len * (given ? MAX2(chars.len, (size_t)1) : 1)));
    *out = chat_str_value(chat_strip(&self->u.s, given ? &chars : NULL, side), self->safe);
    return ERR_OK;
}

static enum err_code str_strip(METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_BOTH, out);
}

static enum err_code str_lstrip(METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_LEFT, out);
}

static enum err_code str_rstrip(METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_RIGHT, out);
}

static enum err_code push_piece(struct chat_run *r, const struct chat_value *self, size_t from,
                                size_t to, struct chat_value *list)
{
    return chat_list_push(r, list->u.list,
                          chat_str_value(chat_sub(&self->u.s, from, to), self->safe));
}

static enum err_code split_space(struct chat_run *r, const struct chat_value *self, int64_t max,
                                 struct chat_value *out)
{
    const struct chat_str *s = &self->u.s;
    const char *text = chat_text(s);
    size_t at = 0, w;
    for (;;) {
        while (at < s->len && chat_is_space(chat_cp_at(text + at, s->len - at, &w)))
            at += w;
        if (at >= s->len)
            return ERR_OK;
        if (max == 0)
            return push_piece(r, self, at, s->len, out);
        max -= max > 0;
        size_t from = at;
        while (at < s->len && !chat_is_space(chat_cp_at(text + at, s->len - at, &w)))
            at += w;
        CHAT_TRY(push_piece(r, self, from, at, out));
    }
}

static enum err_code rsplit_space(struct chat_run *r, const struct chat_value *self, int64_t max,
                                  struct chat_value *out)
{
    const struct chat_str *s = &self->u.s;
    const char *text = chat_text(s);
    size_t at = s->len, w;
    for (;;) {
        struct chat_str head = chat_sub(s, 0, at);
        at = chat_strip(&head, NULL, SIDE_RIGHT).len;
        if (at == 0)
            return ERR_OK;
        if (max == 0)
            return push_piece(r, self, 0, at, out);
        max -= max > 0;
        size_t to = at;
        while (at > 0) {
            size_t back = chat_cp_back(text, text + at);
            if (chat_is_space(chat_cp_at(text + at - back, back, &w)))
                break;
            at -= back;
        }
        CHAT_TRY(push_piece(r, self, at, to, out));
    }
}

static void turn_around(struct chat_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct chat_value v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static enum err_code split_at(struct chat_run *r, const struct chat_value *self,
                              const struct chat_str *sep, int64_t max, struct chat_value *out)
{
    size_t from = 0, hit;
    while (max != 0 && (hit = chat_find(&self->u.s, sep, from)) != SIZE_MAX) {
        CHAT_TRY(push_piece(r, self, from, hit, out));
        from = hit + sep->len;
        max -= max > 0;
    }
    return push_piece(r, self, from, self->u.s.len, out);
}

static enum err_code rsplit_at(struct chat_run *r, const struct chat_value *self,
                               const struct chat_str *sep, int64_t max, struct chat_value *out)
{
    size_t to = self->u.s.len, hit;
    while (max != 0 && (hit = chat_rfind(&self->u.s, sep, to)) != SIZE_MAX) {
        CHAT_TRY(push_piece(r, self, hit + sep->len, to, out));
        to = hit;
        max -= max > 0;
    }
    return push_piece(r, self, 0, to, out);
}

static enum err_code split(struct chat_run *r, const struct chat_value *self,
                           const struct chat_args *args, bool right, struct chat_value *out)
{
    struct chat_value v[2];
    struct chat_str sep;
    int64_t max;
    CHAT_TRY(chat_bind(r, args, "split", "sep maxsplit", v));
    CHAT_TRY(chat_arg_int(r, &v[1], "split", -1, &max));
    CHAT_TRY(chat_list_new(r, 0, out));
    CHAT_TRY(chat_step(r, self->u.s.len));
    if (v[0].type == CHAT_MISSING || v[0].type == CHAT_NONE) {
        CHAT_TRY(right ? rsplit_space(r, self, max, out) : split_space(r, self, max, out));
    } else {
        CHAT_TRY(chat_arg_str(r, &v[0], "split", &sep));
        if (sep.len == 0)
            return chat_fail(r, "split: empty separator");
        CHAT_TRY(right ? rsplit_at(r, self, &sep, max, out) : split_at(r, self, &sep, max, out));
    }
    if (right)
        turn_around(out->u.list);
    return ERR_OK;
}

static enum err_code str_split(METHOD_ARGS)
{
    return split(r, self, args, false, out);
}

static enum err_code str_rsplit(METHOD_ARGS)
{
    return split(r, self, args, true, out);
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

enum err_code chat_splitlines(struct chat_run *r, const struct chat_value *s, bool keep,
                              struct chat_value *out)
{
    const char *text = chat_text(&s->u.s);
    size_t len = s->u.s.len, from = 0, at = 0, w;
    CHAT_TRY(chat_step(r, len));
    CHAT_TRY(chat_list_new(r, 0, out));
    while (at < len) {
        uint32_t cp = chat_cp_at(text + at, len - at, &w);
        size_t end = at;
        at += w;
        if (!is_line_end(cp))
            continue;
        if (cp == '\r' && at < len && text[at] == '\n')
            at++;
        CHAT_TRY(push_piece(r, s, from, keep ? at : end, out));
        from = at;
    }
    return from < len ? push_piece(r, s, from, len, out) : ERR_OK;
}

static enum err_code str_splitlines(METHOD_ARGS)
{
    struct chat_value v[1];
    bool keep = false;
    CHAT_TRY(chat_bind(r, args, "splitlines", "keepends", v));
    CHAT_TRY(chat_truth(r, &v[0], &keep));
    return chat_splitlines(r, self, keep, out);
}

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

static enum err_code str_startswith(METHOD_ARGS)
{
    return affix(r, self, args, false, out);
}

static enum err_code str_endswith(METHOD_ARGS)
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

static enum err_code str_replace(METHOD_ARGS)
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

static enum err_code str_upper(METHOD_ARGS)
{
    return change_case(r, self, args, CASE_UPPER, out);
}

static enum err_code str_lower(METHOD_ARGS)
{
    return change_case(r, self, args, CASE_LOWER, out);
}

static enum err_code str_title(METHOD_ARGS)
{
    return change_case(r, self, args, CASE_TITLE, out);
}

static enum err_code str_capitalize(METHOD_ARGS)
{
    return change_case(r, self, args, CASE_CAPITAL, out);
}

static enum err_code str_swapcase(METHOD_ARGS)
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

static enum err_code str_join(METHOD_ARGS)
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

static enum err_code str_find(METHOD_ARGS)
{
    return search(r, self, args, false, out);
}

static enum err_code str_rfind(METHOD_ARGS)
{
    return search(r, self, args, true, out);
}

static enum err_code found(struct chat_run *r, const struct chat_value *out)
{
    return out->u.i < 0 ? chat_fail(r, "index: substring not found") : ERR_OK;
}

static enum err_code str_index(METHOD_ARGS)
{
    CHAT_TRY(search(r, self, args, false, out));
    return found(r, out);
}

static enum err_code str_rindex(METHOD_ARGS)
{
    CHAT_TRY(search(r, self, args, true, out));
    return found(r, out);
}

static enum err_code str_count(METHOD_ARGS)
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

static enum err_code str_removeprefix(METHOD_ARGS)
{
    return remove_affix(r, self, args, false, out);
}

static enum err_code str_removesuffix(METHOD_ARGS)
{
    return remove_affix(r, self, args, true, out);
}

static enum err_code partition(struct chat_run *r, const struct chat_value *self,
                               const struct chat_args *args, bool right, struct chat_value *out)
{
    struct chat_value v[1];
    struct chat_str sep;
    const struct chat_str *s = &self->u.s;
    CHAT_TRY(chat_bind(r, args, "partition", "-!", v));
    CHAT_TRY(chat_arg_str(r, &v[0], "partition", &sep));
    if (sep.len == 0)
        return chat_fail(r, "partition: empty separator");
    size_t hit = right ? chat_rfind(s, &sep, s->len) : chat_find(s, &sep, 0);
    bool none = hit == SIZE_MAX;
    size_t a = none ? (right ? 0 : s->len) : hit, b = none ? a : hit + sep.len;
    CHAT_TRY(chat_list_new(r, 3, out));
    CHAT_TRY(push_piece(r, self, 0, a, out));
    CHAT_TRY(push_piece(r, self, a, b, out));
    CHAT_TRY(push_piece(r, self, b, s->len, out));
    out->type = CHAT_TUPLE;
    return ERR_OK;
}

static enum err_code str_partition(METHOD_ARGS)
{
    return partition(r, self, args, false, out);
}

static enum err_code str_rpartition(METHOD_ARGS)
{
    return partition(r, self, args, true, out);
}

static enum err_code str_format(METHOD_ARGS)
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

static enum err_code str_isalpha(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_ALPHA, out);
}

static enum err_code str_isdigit(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_DIGIT, out);
}

static enum err_code str_isalnum(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_ALNUM, out);
}

static enum err_code str_isspace(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_SPACE, out);
}

static enum err_code str_isupper(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_UPPER, out);
}

static enum err_code str_islower(METHOD_ARGS)
{
    return class_of(r, self, args, CLASS_LOWER, out);
}

/* Python has these; templates have not been seen to use them. */
static enum err_code unsupported(METHOD_ARGS)
{
    (void)self;
    (void)args;
    (void)out;
    return chat_fail(r, "this method is not supported");
}

static enum err_code dict_get(METHOD_ARGS)
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

static enum err_code dict_keys(METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_KEYS, out);
}

static enum err_code dict_values(METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_VALUES, out);
}

static enum err_code dict_items(METHOD_ARGS)
{
    return dict_view(r, self, args, CHAT_VIEW_ITEMS, out);
}

static enum err_code copy_self(METHOD_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "copy", "", NULL));
    *out = *self; /* nothing can change it */
    return ERR_OK;
}

static enum err_code list_count(METHOD_ARGS)
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

static enum err_code list_index(METHOD_ARGS)
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

static enum err_code cycler_next(METHOD_ARGS)
{
    struct chat_cycler *c = self->u.cycler;
    CHAT_TRY(chat_bind(r, args, "next", "", NULL));
    *out = c->items->v[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return ERR_OK;
}

static enum err_code cycler_reset(METHOD_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "reset", "", NULL));
    self->u.cycler->pos = 0;
    *out = chat_none();
    return ERR_OK;
}

static const struct {
    enum chat_type type;
    const char *name;
    enum err_code (*fn)(METHOD_ARGS);
} methods[] = {
    {CHAT_STR, "split", str_split},
    {CHAT_STR, "strip", str_strip},
    {CHAT_STR, "lstrip", str_lstrip},
    {CHAT_STR, "rstrip", str_rstrip},
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
    {CHAT_STR, "rsplit", str_rsplit},
    {CHAT_STR, "splitlines", str_splitlines},
    {CHAT_STR, "find", str_find},
    {CHAT_STR, "rfind", str_rfind},
    {CHAT_STR, "index", str_index},
    {CHAT_STR, "rindex", str_rindex},
    {CHAT_STR, "count", str_count},
    {CHAT_STR, "removeprefix", str_removeprefix},
    {CHAT_STR, "removesuffix", str_removesuffix},
    {CHAT_STR, "partition", str_partition},
    {CHAT_STR, "rpartition", str_rpartition},
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
