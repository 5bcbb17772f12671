/* chat_sequence.c: filters of sequences: select, map, sort, join and their kin. */
#include "infer/chat_private.h"

#define FILTER_ARGS                                                                                \
    struct chat_run *r, const struct chat_value *in, const struct chat_args *args,                 \
        struct chat_value *out

static enum err_code f_length(FILTER_ARGS)
{
    int64_t n;
    CHAT_TRY(chat_bind(r, args, "length", "", NULL));
    CHAT_TRY(chat_len(r, in, &n));
    *out = chat_int(n);
    return ERR_OK;
}

static enum err_code f_list(FILTER_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "list", "", NULL));
    return chat_iter_list(r, in, out);
}

static enum err_code f_items(FILTER_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "items", "", NULL));
    return chat_iter_items(r, in, out);
}

static enum err_code f_first(FILTER_ARGS)
{
    struct chat_iter *it = NULL;
    CHAT_TRY(chat_bind(r, args, "first", "", NULL));
    CHAT_TRY(chat_iter_open(r, in, &it));
    CHAT_TRY(chat_iter_next(r, it, out));
    if (out->type == CHAT_MISSING)
        *out = chat_undef("the first item of an empty sequence");
    return ERR_OK;
}

static enum err_code f_last(FILTER_ARGS)
{
    struct chat_value list;
    CHAT_TRY(chat_bind(r, args, "last", "", NULL));
    if (in->type == CHAT_ITER)
        return chat_fail(r, "last of a generator");
    CHAT_TRY(chat_iter_list(r, in, &list));
    *out = list.u.list->n ? list.u.list->v[list.u.list->n - 1]
                          : chat_undef("the last item of an empty sequence");
    return ERR_OK;
}

static enum err_code f_reverse(FILTER_ARGS)
{
    CHAT_TRY(chat_bind(r, args, "reverse", "", NULL));
    if (chat_is_str(in))
        return chat_str_reverse(r, &in->u.s, out);
    CHAT_TRY(chat_iter_reversed(r, in, out));
    return ERR_OK;
}

static enum err_code f_select(FILTER_ARGS)
{
    return chat_iter_lazy(r, LAZY_SELECT, in, args, out);
}

static enum err_code f_reject(FILTER_ARGS)
{
    return chat_iter_lazy(r, LAZY_REJECT, in, args, out);
}

static enum err_code f_selectattr(FILTER_ARGS)
{
    return chat_iter_lazy(r, LAZY_SELECTATTR, in, args, out);
}

static enum err_code f_rejectattr(FILTER_ARGS)
{
    return chat_iter_lazy(r, LAZY_REJECTATTR, in, args, out);
}

static enum err_code f_map(FILTER_ARGS)
{
    return chat_iter_lazy(r, LAZY_MAP, in, args, out);
}

static enum err_code f_unique(FILTER_ARGS)
{
    struct chat_value v[2];
    bool sensitive = false;
    CHAT_TRY(chat_bind(r, args, "unique", "case_sensitive attribute", v));
    CHAT_TRY(chat_truth(r, &v[0], &sensitive));
    return chat_iter_unique(r, in, &v[1], !sensitive, out);
}

static enum err_code f_join(FILTER_ARGS)
{
    struct chat_value v[2], sep, items = *in;
    CHAT_TRY(chat_bind(r, args, "join", "d attribute", v));
    if (v[0].type == CHAT_MISSING)
        CHAT_TRY(chat_str_new(r, "", 0, 0, &v[0]));
    CHAT_TRY(chat_to_str(r, &v[0], &sep));
    if (v[1].type != CHAT_MISSING && v[1].type != CHAT_NONE) {
        CHAT_TRY(chat_iter_list(r, in, &items));
        for (size_t i = 0; i < items.u.list->n; i++) {
            struct chat_value item = items.u.list->v[i];
            CHAT_TRY(chat_attr_path(r, &item, &v[1], NULL, &items.u.list->v[i]));
        }
    }
    sep.safe = false;
    return chat_str_join(r, &sep, &items, true, out);
}

struct keyed {
    struct chat_value key, item;
};

static enum err_code fold(struct chat_run *r, struct chat_value *key)
{
    struct chat_str s = key->u.s;
    return chat_is_str(key) ? chat_case(r, &s, CASE_LOWER, key) : ERR_OK;
}

/* Stable merge sort of [lo, hi); `down` keeps equal items in their order too. */
static enum err_code merge_sort(struct chat_run *r, struct keyed *v, struct keyed *tmp, size_t lo,
                                size_t hi, bool down)
{
    if (hi - lo < 2)
        return ERR_OK;
    size_t mid = lo + (hi - lo) / 2, a = lo, b = mid;
    CHAT_TRY(merge_sort(r, v, tmp, lo, mid, down));
    CHAT_TRY(merge_sort(r, v, tmp, mid, hi, down));
    for (size_t k = lo; k < hi; k++) {
        bool second = a >= mid;
        if (!second && b < hi) {
            int c;
            bool nan;
            if (down)
                CHAT_TRY(chat_order(r, &v[a].key, &v[b].key, "<", &c, &nan));
            else
                CHAT_TRY(chat_order(r, &v[b].key, &v[a].key, "<", &c, &nan));
            second = !nan && c < 0;
        }
        tmp[k] = second ? v[b++] : v[a++];
    }
    memcpy(v + lo, tmp + lo, (hi - lo) * sizeof *v);
    return ERR_OK;
}

static enum err_code sort_keyed(struct chat_run *r, struct keyed *v, size_t n, bool down,
                                struct chat_value *out)
{
    struct keyed *tmp = chat_array(r, n + 1, sizeof *tmp);
    if (!tmp)
        return chat_nomem(r);
    CHAT_TRY(merge_sort(r, v, tmp, 0, n, down));
    CHAT_TRY(chat_list_new(r, n, out));
    for (size_t i = 0; i < n; i++)
        CHAT_TRY(chat_list_push(r, out->u.list, v[i].item));
    return ERR_OK;
}

/* The value or values that one item is sorted by: several paths make a list. */
static enum err_code sort_key(struct chat_run *r, const struct chat_value *item,
                              const struct chat_value *attr, bool sensitive, struct chat_value *out)
{
    if (!chat_is_str(attr) || !memchr(chat_text(&attr->u.s), ',', attr->u.s.len)) {
        CHAT_TRY(chat_attr_path(r, item, attr, NULL, out));
        return sensitive ? ERR_OK : fold(r, out);
    }
    CHAT_TRY(chat_list_new(r, 0, out));
    const char *text = chat_text(&attr->u.s);
    for (size_t at = 0; at <= attr->u.s.len;) {
        const char *comma = memchr(text + at, ',', attr->u.s.len - at);
        size_t end = comma ? (size_t)(comma - text) : attr->u.s.len;
        struct chat_value path = chat_str_value(chat_sub(&attr->u.s, at, end), false), key;
        CHAT_TRY(chat_attr_path(r, item, &path, NULL, &key));
        CHAT_TRY(sensitive ? ERR_OK : fold(r, &key));
        CHAT_TRY(chat_list_push(r, out->u.list, key));
        at = end + 1;
    }
    return ERR_OK;
}

static enum err_code f_sort(FILTER_ARGS)
{
    struct chat_value v[3], list;
    bool down = false, sensitive = false;
    CHAT_TRY(chat_bind(r, args, "sort", "reverse case_sensitive attribute", v));
    CHAT_TRY(chat_truth(r, &v[0], &down));
    CHAT_TRY(chat_truth(r, &v[1], &sensitive));
    CHAT_TRY(chat_iter_list(r, in, &list));
    size_t n = list.u.list->n;
    struct keyed *k = chat_array(r, n + 1, sizeof *k);
    if (!k)
        return chat_nomem(r);
    for (size_t i = 0; i < n; i++) {
        k[i].item = list.u.list->v[i];
        CHAT_TRY(sort_key(r, &k[i].item, &v[2], sensitive, &k[i].key));
    }
    return sort_keyed(r, k, n, down, out);
}

static enum err_code f_dictsort(FILTER_ARGS)
{
    struct chat_value v[3], view = {.type = CHAT_VIEW}, list;
    bool sensitive = false, down = false;
    CHAT_TRY(chat_bind(r, args, "dictsort", "case_sensitive by reverse", v));
    CHAT_TRY(chat_truth(r, &v[0], &sensitive));
    CHAT_TRY(chat_truth(r, &v[2], &down));
    bool by_value = chat_is_str(&v[1]) && chat_str_is(&v[1].u.s, "value");
    if (!by_value && v[1].type != CHAT_MISSING &&
        !(chat_is_str(&v[1]) && chat_str_is(&v[1].u.s, "key")))
        return chat_fail(r, "dictsort: by is 'key' or 'value'");
    if (in->type != CHAT_DICT)
        return chat_fail(r, "dictsort of a %s", chat_type_name(in));
    struct chat_view items = {in->u.dict, CHAT_VIEW_ITEMS};
    view.u.view = &items;
    CHAT_TRY(chat_iter_list(r, &view, &list));
    size_t n = list.u.list->n;
    struct keyed *k = chat_array(r, n + 1, sizeof *k);
    if (!k)
        return chat_nomem(r);
    for (size_t i = 0; i < n; i++) {
        k[i].item = list.u.list->v[i];
        k[i].key = k[i].item.u.list->v[by_value];
        CHAT_TRY(sensitive ? ERR_OK : fold(r, &k[i].key));
    }
    return sort_keyed(r, k, n, down, out);
}

static enum err_code extreme(struct chat_run *r, const struct chat_value *in,
                             const struct chat_args *args, bool most, struct chat_value *out)
{
    struct chat_value v[2], item, key, best;
    struct chat_iter *it = NULL;
    bool sensitive = false;
    CHAT_TRY(chat_bind(r, args, "min", "case_sensitive attribute", v));
    CHAT_TRY(chat_truth(r, &v[0], &sensitive));
    CHAT_TRY(chat_iter_open(r, in, &it));
    *out = chat_undef("an item of an empty sequence");
    for (bool first = true;; first = false) {
        int c = 0;
        bool nan = false;
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_attr_path(r, &item, &v[1], NULL, &key));
        CHAT_TRY(sensitive ? ERR_OK : fold(r, &key));
        if (!first)
            CHAT_TRY(chat_order(r, &key, &best, most ? ">" : "<", &c, &nan));
        if (first || (!nan && (most ? c > 0 : c < 0))) {
            best = key;
            *out = item;
        }
    }
}

static enum err_code f_min(FILTER_ARGS)
{
    return extreme(r, in, args, false, out);
}

static enum err_code f_max(FILTER_ARGS)
{
    return extreme(r, in, args, true, out);
}

static enum err_code f_sum(FILTER_ARGS)
{
    struct chat_value v[2], item, one;
    struct chat_iter *it = NULL;
    CHAT_TRY(chat_bind(r, args, "sum", "attribute start", v));
    CHAT_TRY(chat_iter_open(r, in, &it));
    *out = v[1].type == CHAT_MISSING ? chat_int(0) : v[1];
    if (chat_is_str(out))
        return chat_fail(r, "sum of strings");
    for (;;) {
        struct chat_value so_far = *out;
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_attr_path(r, &item, &v[0], NULL, &one));
        CHAT_TRY(chat_binary(r, '+', &so_far, &one, out));
    }
}

/* A list of lists; jinja2 makes them one by one. */
static enum err_code f_batch(FILTER_ARGS)
{
    struct chat_value v[2], list, row, rows;
    int64_t width;
    CHAT_TRY(chat_bind(r, args, "batch", "linecount! fill_with", v));
    CHAT_TRY(chat_arg_int(r, &v[0], "batch", 1, &width));
    if (width < 1)
        return chat_fail(r, "batch: %lld items a line", (long long)width);
    CHAT_TRY(chat_iter_list(r, in, &list));
    CHAT_TRY(chat_list_new(r, 0, &rows));
    for (size_t i = 0; i < list.u.list->n; i++) {
        if (i % (size_t)width == 0) {
            CHAT_TRY(chat_list_new(r, 0, &row));
            CHAT_TRY(chat_list_push(r, rows.u.list, row));
        }
        CHAT_TRY(chat_list_push(r, row.u.list, list.u.list->v[i]));
    }
    bool fill = v[1].type != CHAT_MISSING && v[1].type != CHAT_NONE && rows.u.list->n;
    while (fill && row.u.list->n < (size_t)width)
        CHAT_TRY(chat_list_push(r, row.u.list, v[1]));
    const struct chat_args none = {0};
    struct chat_value truth;
    CHAT_TRY(chat_iter_lazy(r, LAZY_SELECT, &rows, &none, &truth));
    *out = truth; /* rows are never empty: all of them, once */
    return ERR_OK;
}

const struct chat_filter chat_sequence_filters[] = {
    {"batch", f_batch},
    {"count", f_length},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"reverse", f_reverse},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"sum", f_sum},
    {"unique", f_unique},
    {NULL, NULL},
};
