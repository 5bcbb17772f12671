/* chat_iter.c: iteration, lazy as Python's.
 *
 * Owns one-shot generators: map, select and their kin do nothing before their first item is asked
 * for, which decides when an error appears and what a second pass sees (nothing). Lists and other
 * containers are read in place.
 */
#include "infer/chat_private.h"

enum iter_kind {
    ITER_EMPTY,
    ITER_LIST,
    ITER_BACKWARD,
    ITER_CHARS,
    ITER_DICT,
    ITER_RANGE,
    ITER_LAZY,
    ITER_UNIQUE,
    ITER_WHERE,
    ITER_ITEMS
};

struct chat_iter {
    enum iter_kind kind;
    struct chat_value src;
    size_t pos;
    enum chat_view_kind view;
    struct chat_iter *in; /* of a lazy one, opened with the first item */
    bool started;
    enum chat_lazy how;
    struct chat_args args;
    struct chat_value attr, missing;
    const void *impl; /* chat_test or chat_filter, or NULL: truth, attribute */
    bool fold;
    struct chat_dict *seen;
    const struct chat_node *loop;
    struct chat_scope *scope, *up;
};

static enum err_code iter_new(struct chat_run *r, enum iter_kind kind, const struct chat_value *v,
                              struct chat_iter **out)
{
    struct chat_iter *it = chat_alloc(r, sizeof *it);
    if (!it)
        return chat_nomem(r);
    it->kind = kind;
    if (v)
        it->src = *v;
    *out = it;
    return ERR_OK;
}

bool chat_iterable(const struct chat_value *v)
{
    switch (v->type) {
    case CHAT_UNDEF:
    case CHAT_STR:
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
    case CHAT_RANGE:
    case CHAT_VIEW:
    case CHAT_ITER:
    case CHAT_LOOP:
        return true;
    default:
        return false;
    }
}

enum err_code chat_iter_open(struct chat_run *r, const struct chat_value *v, struct chat_iter **out)
{
    switch (v->type) {
    case CHAT_UNDEF:
        return iter_new(r, ITER_EMPTY, v, out);
    case CHAT_STR:
        return iter_new(r, ITER_CHARS, v, out);
    case CHAT_LIST:
    case CHAT_TUPLE:
        return iter_new(r, ITER_LIST, v, out);
    case CHAT_RANGE:
        return iter_new(r, ITER_RANGE, v, out);
    case CHAT_DICT:
    case CHAT_VIEW:
        CHAT_TRY(iter_new(r, ITER_DICT, v, out));
        if (v->type == CHAT_VIEW) {
            (*out)->view = v->u.view->kind;
            (*out)->src.u.dict = (struct chat_dict *)v->u.view->dict;
        }
        return ERR_OK;
    case CHAT_ITER:
        *out = v->u.iter;
        return ERR_OK;
    default:
        return chat_fail(r, "a %s cannot be iterated", chat_type_name(v));
    }
}

static enum err_code pair_tuple(struct chat_run *r, const struct chat_pair *p,
                                struct chat_value *out)
{
    CHAT_TRY(chat_list_new(r, 2, out));
    out->type = CHAT_TUPLE;
    CHAT_TRY(chat_list_push(r, out->u.list, p->k));
    return chat_list_push(r, out->u.list, p->v);
}

static enum err_code next_pair(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    const struct chat_pair *p = &it->src.u.dict->p[it->pos++];
    switch (it->view) {
    case CHAT_VIEW_KEYS:
        *out = p->k;
        return ERR_OK;
    case CHAT_VIEW_VALUES:
        *out = p->v;
        return ERR_OK;
    default:
        return pair_tuple(r, p, out);
    }
}

static bool all_digits(const struct chat_str *s)
{
    for (size_t i = 0; i < s->len; i++) {
        if (chat_text(s)[i] < '0' || chat_text(s)[i] > '9')
            return false;
    }
    return s->len > 0 && s->len < 18;
}

enum err_code chat_attr_path(struct chat_run *r, const struct chat_value *item,
                             const struct chat_value *path, const struct chat_value *missing,
                             struct chat_value *out)
{
    *out = *item;
    if (path->type == CHAT_NONE || path->type == CHAT_MISSING)
        return ERR_OK;
    if (!chat_is_str(path)) {
        struct chat_value obj = *out;
        CHAT_TRY(chat_getitem(r, &obj, path, out));
    }
    for (size_t at = 0; chat_is_str(path) && at <= path->u.s.len;) {
        const char *text = chat_text(&path->u.s);
        const char *dot = memchr(text + at, '.', path->u.s.len - at);
        size_t end = dot ? (size_t)(dot - text) : path->u.s.len;
        struct chat_value key = chat_str_value(chat_sub(&path->u.s, at, end), false), obj = *out;
        if (all_digits(&key.u.s)) {
            int64_t n = 0;
            for (size_t i = at; i < end; i++)
                n = n * 10 + (text[i] - '0');
            key = chat_int(n);
        }
        CHAT_TRY(chat_getitem(r, &obj, &key, out));
        if (out->type == CHAT_UNDEF && missing && missing->type != CHAT_MISSING &&
            missing->type != CHAT_NONE)
            *out = *missing;
        at = end + 1;
    }
    if (!chat_is_str(path) && out->type == CHAT_UNDEF && missing && missing->type != CHAT_MISSING &&
        missing->type != CHAT_NONE)
        *out = *missing;
    return ERR_OK;
}

/* The first n arguments are used up. */
static void drop_args(struct chat_args *a, size_t n)
{
    a->v += n;
    a->n -= n;
}

static enum err_code start_map(struct chat_run *r, struct chat_iter *it)
{
    if (it->args.n == 0) {
        struct chat_value v[2];
        CHAT_TRY(chat_bind(r, &it->args, "map", "attribute default", v));
        if (v[0].type == CHAT_MISSING)
            return chat_fail(r, "map needs the name of a filter or an attribute");
        it->attr = v[0];
        it->missing = v[1];
        return ERR_OK;
    }
    if (!chat_is_str(&it->args.v[0]))
        return chat_fail(r, "the name of a filter is a string");
    const struct chat_filter *f = chat_filter_find(&it->args.v[0].u.s);
    if (!f || !f->fn)
        return chat_fail(r, "no filter named '%.*s'", (int)MIN2(it->args.v[0].u.s.len, 60),
                         chat_text(&it->args.v[0].u.s));
    it->impl = f;
    drop_args(&it->args, 1);
    return ERR_OK;
}

static enum err_code start_select(struct chat_run *r, struct chat_iter *it)
{
    if (it->how == LAZY_SELECTATTR || it->how == LAZY_REJECTATTR) {
        if (it->args.n == 0)
            return chat_fail(r, "the name of an attribute is missing");
        it->attr = it->args.v[0];
        drop_args(&it->args, 1);
    }
    if (it->args.n == 0)
        return ERR_OK;
    const struct chat_value *name = &it->args.v[0];
    it->impl = chat_is_str(name) ? chat_test_find(&name->u.s) : NULL;
    if (!it->impl)
        return chat_fail(r, "no test named '%.*s'",
                         chat_is_str(name) ? (int)MIN2(name->u.s.len, 60) : 1,
                         chat_is_str(name) ? chat_text(&name->u.s) : "?");
    drop_args(&it->args, 1);
    return ERR_OK;
}

/* What a generator does before its first item: nothing at all for an empty input. */
static enum err_code start_lazy(struct chat_run *r, struct chat_iter *it)
{
    bool any;
    it->started = true;
    CHAT_TRY(chat_truth(r, &it->src, &any));
    if (!any) {
        it->kind = ITER_EMPTY;
        return ERR_OK;
    }
    CHAT_TRY(it->how == LAZY_MAP ? start_map(r, it) : start_select(r, it));
    return chat_iter_open(r, &it->src, &it->in);
}

static enum err_code keeps(struct chat_run *r, struct chat_iter *it, const struct chat_value *v,
                           bool *out)
{
    struct chat_value subject;
    CHAT_TRY(chat_attr_path(r, v, &it->attr, NULL, &subject));
    if (it->impl)
        CHAT_TRY(chat_test_call(r, it->impl, &subject, &it->args, out));
    else
        CHAT_TRY(chat_truth(r, &subject, out));
    if (it->how == LAZY_REJECT || it->how == LAZY_REJECTATTR)
        *out = !*out;
    return ERR_OK;
}

static enum err_code next_lazy(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    if (!it->started)
        CHAT_TRY(start_lazy(r, it));
    if (it->kind == ITER_EMPTY) {
        *out = (struct chat_value){0};
        return ERR_OK;
    }
    for (;;) {
        struct chat_value v;
        bool keep = true;
        CHAT_TRY(chat_iter_next(r, it->in, &v));
        *out = v;
        if (v.type == CHAT_MISSING)
            return ERR_OK;
        if (it->how == LAZY_MAP) {
            if (it->impl)
                return ((const struct chat_filter *)it->impl)->fn(r, &v, &it->args, out);
            return chat_attr_path(r, &v, &it->attr, &it->missing, out);
        }
        CHAT_TRY(keeps(r, it, &v, &keep));
        if (keep)
            return ERR_OK;
    }
}

static enum err_code next_unique(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    if (!it->started) {
        struct chat_value seen;
        it->started = true;
        CHAT_TRY(chat_dict_new(r, &seen));
        it->seen = seen.u.dict;
        CHAT_TRY(chat_iter_open(r, &it->src, &it->in));
    }
    for (;;) {
        struct chat_value key;
        const struct chat_value *hit;
        CHAT_TRY(chat_iter_next(r, it->in, out));
        if (out->type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_attr_path(r, out, &it->attr, NULL, &key));
        if (it->fold && chat_is_str(&key)) {
            struct chat_str s = key.u.s;
            CHAT_TRY(chat_case(r, &s, CASE_LOWER, &key));
        }
        CHAT_TRY(chat_dict_get(r, it->seen, &key, &hit));
        if (hit)
            continue;
        return chat_dict_set(r, it->seen, key, chat_none());
    }
}

static enum err_code next_where(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    struct chat_scope *outside = r->scope;
    for (;;) {
        struct chat_value test;
        bool keep;
        CHAT_TRY(chat_iter_next(r, it->in, out));
        if (out->type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_assign(r, it->scope, it->loop->a, out));
        r->scope = it->scope;
        CHAT_TRY(chat_eval(r, it->loop->c, &test));
        r->scope = outside;
        CHAT_TRY(chat_truth(r, &test, &keep));
        if (keep)
            return ERR_OK;
    }
}

static enum err_code next_items(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    *out = (struct chat_value){0};
    if (it->src.type == CHAT_UNDEF)
        return ERR_OK;
    if (it->src.type != CHAT_DICT)
        return chat_fail(r, "items of a %s", chat_type_name(&it->src));
    if (it->pos >= it->src.u.dict->n)
        return ERR_OK;
    return pair_tuple(r, &it->src.u.dict->p[it->pos++], out);
}

static enum err_code next_char(struct chat_iter *it, struct chat_value *out)
{
    const struct chat_str *s = &it->src.u.s;
    size_t w;
    if (it->pos >= s->len)
        return ERR_OK;
    chat_cp_at(chat_text(s) + it->pos, s->len - it->pos, &w);
    *out = chat_str_value(chat_sub(s, it->pos, it->pos + w), false);
    it->pos += w;
    return ERR_OK;
}

static enum err_code next_of(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    switch (it->kind) {
    case ITER_LIST:
        if (it->pos < it->src.u.list->n)
            *out = it->src.u.list->v[it->pos++];
        return ERR_OK;
    case ITER_BACKWARD:
        if (it->pos < it->src.u.list->n)
            *out = it->src.u.list->v[it->src.u.list->n - ++it->pos];
        return ERR_OK;
    case ITER_CHARS:
        return next_char(it, out);
    case ITER_DICT:
        return it->pos < it->src.u.dict->n ? next_pair(r, it, out) : ERR_OK;
    case ITER_RANGE:
        if ((int64_t)it->pos < it->src.u.range->n)
            *out = chat_int(it->src.u.range->start + (int64_t)it->pos++ * it->src.u.range->step);
        return ERR_OK;
    case ITER_LAZY:
        return next_lazy(r, it, out);
    case ITER_UNIQUE:
        return next_unique(r, it, out);
    case ITER_WHERE:
        return next_where(r, it, out);
    case ITER_ITEMS:
        return next_items(r, it, out);
    default:
        return ERR_OK;
    }
}

enum err_code chat_iter_next(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    *out = (struct chat_value){0};
    CHAT_TRY(chat_step(r, 0));
    CHAT_TRY(chat_enter(r));
    enum err_code rc = next_of(r, it, out);
    chat_leave(r);
    return rc;
}

enum err_code chat_iter_list(struct chat_run *r, const struct chat_value *v, struct chat_value *out)
{
    struct chat_iter *it = NULL;
    struct chat_value item;
    CHAT_TRY(chat_iter_open(r, v, &it));
    CHAT_TRY(chat_list_new(r, 0, out));
    for (;;) {
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_list_push(r, out->u.list, item));
    }
}

enum err_code chat_iter_reversed(struct chat_run *r, const struct chat_value *v,
                                 struct chat_value *out)
{
    struct chat_value list = *v;
    struct chat_iter *it = NULL;
    if (v->type != CHAT_LIST && v->type != CHAT_TUPLE)
        CHAT_TRY(chat_iter_list(r, v, &list));
    CHAT_TRY(iter_new(r, ITER_BACKWARD, &list, &it));
    *out = (struct chat_value){.type = CHAT_ITER, .u.iter = it};
    if (v->type == CHAT_ITER) {
        /* reversed() does not take a generator; jinja falls back to a list. */
        struct chat_value flat = *out;
        return chat_iter_list(r, &flat, out);
    }
    return ERR_OK;
}

enum err_code chat_iter_lazy(struct chat_run *r, enum chat_lazy how, const struct chat_value *in,
                             const struct chat_args *args, struct chat_value *out)
{
    struct chat_iter *it = NULL;
    CHAT_TRY(iter_new(r, ITER_LAZY, in, &it));
    it->how = how;
    it->args = *args;
    *out = (struct chat_value){.type = CHAT_ITER, .u.iter = it};
    return ERR_OK;
}

enum err_code chat_iter_unique(struct chat_run *r, const struct chat_value *in,
                               const struct chat_value *attr, bool fold, struct chat_value *out)
{
    struct chat_iter *it = NULL;
    CHAT_TRY(iter_new(r, ITER_UNIQUE, in, &it));
    it->attr = *attr;
    it->fold = fold;
    *out = (struct chat_value){.type = CHAT_ITER, .u.iter = it};
    return ERR_OK;
}

enum err_code chat_iter_items(struct chat_run *r, const struct chat_value *in,
                              struct chat_value *out)
{
    struct chat_iter *it = NULL;
    CHAT_TRY(iter_new(r, ITER_ITEMS, in, &it));
    *out = (struct chat_value){.type = CHAT_ITER, .u.iter = it};
    return ERR_OK;
}

enum err_code chat_iter_where(struct chat_run *r, struct chat_iter *in,
                              const struct chat_node *loop, struct chat_iter **out)
{
    CHAT_TRY(iter_new(r, ITER_WHERE, NULL, out));
    (*out)->in = in;
    (*out)->loop = loop;
    CHAT_TRY(chat_scope_enter(r, loop->test_frame, r->scope, &(*out)->scope));
    return chat_scope_load(r, (*out)->scope);
}

enum err_code chat_iter_count(struct chat_run *r, struct chat_iter *it, int64_t *out)
{
    struct chat_value rest, self = {.type = CHAT_ITER, .u.iter = it};
    CHAT_TRY(chat_iter_list(r, &self, &rest));
    *it = (struct chat_iter){.kind = ITER_LIST, .src = rest};
    *out = (int64_t)rest.u.list->n;
    return ERR_OK;
}
