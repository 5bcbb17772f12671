/* chat_value.c: lists, dictionaries, truth, equality and order, as Python has them.
 *
 * Owns the containers and every comparison of values; printing is chat_repr.c's. Equal numbers of
 * different types are one key (1, 1.0 and true), keys keep their first spelling and place.
 */
#include "infer/chat_private.h"

#include <math.h>

#define INDEX_FROM 8 /* smaller dictionaries are searched in order */

const char *chat_type_name(const struct chat_value *v)
{
    static const char *const names[] = {
        "missing", "undefined", "none",    "boolean", "integer", "float",     "string",
        "list",    "tuple",     "mapping", "range",   "view",    "generator", "namespace",
        "macro",   "function",  "method",  "loop",    "cycler",  "joiner"};
    return names[v->type];
}

enum err_code chat_undef_of(struct chat_run *r, const struct chat_value *obj,
                            const struct chat_value *key, struct chat_value *out)
{
    const char *hint = "attribute";
    if (chat_is_str(key)) {
        char *text = chat_alloc(r, key->u.s.len + 64);
        if (!text)
            return chat_nomem(r);
        size_t n = MIN2(key->u.s.len, (size_t)200);
        char *end = stpcpy(stpcpy(text, chat_type_name(obj)), "'s '");
        memcpy(end, chat_text(&key->u.s), n);
        memcpy(end + n, "'", 2);
        hint = text;
    }
    *out = chat_undef(hint);
    return ERR_OK;
}

enum err_code chat_list_new(struct chat_run *r, size_t cap, struct chat_value *out)
{
    struct chat_list *l = chat_alloc(r, sizeof *l);
    if (!l)
        return chat_nomem(r);
    if (cap) {
        l->v = chat_array(r, cap, sizeof *l->v);
        if (!l->v)
            return chat_nomem(r);
    }
    l->cap = cap;
    *out = (struct chat_value){.type = CHAT_LIST, .u.list = l};
    return ERR_OK;
}

enum err_code chat_list_push(struct chat_run *r, struct chat_list *l, struct chat_value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct chat_value *more = chat_array(r, cap, sizeof *more);
        if (!more)
            return chat_nomem(r);
        if (l->n)
            memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return ERR_OK;
}

enum err_code chat_dict_new(struct chat_run *r, struct chat_value *out)
{
    struct chat_dict *d = chat_alloc(r, sizeof *d);
    if (!d)
        return chat_nomem(r);
    *out = (struct chat_value){.type = CHAT_DICT, .u.dict = d};
    return ERR_OK;
}

bool chat_number(const struct chat_value *v, int64_t *i, double *f, bool *is_float)
{
    *is_float = v->type == CHAT_FLOAT;
    switch (v->type) {
    case CHAT_BOOL:
        *i = v->u.b;
        *f = v->u.b;
        return true;
    case CHAT_INT:
        *i = v->u.i;
        *f = (double)v->u.i;
        return true;
    case CHAT_FLOAT:
        *i = 0;
        *f = v->u.f;
        return true;
    default:
        return false;
    }
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ULL;
    return h ^ h >> 33;
}

static uint64_t hash_text(const struct chat_str *s)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    const unsigned char *p = (const unsigned char *)chat_text(s);
    for (size_t i = 0; i < s->len; i++)
        h = (h ^ p[i]) * 0x100000001b3ULL;
    return mix(h);
}

static enum err_code hash_value(struct chat_run *r, const struct chat_value *k, uint64_t *out)
{
    switch (k->type) {
    case CHAT_STR:
        *out = hash_text(&k->u.s);
        return ERR_OK;
    case CHAT_BOOL:
        *out = mix(k->u.b);
        return ERR_OK;
    case CHAT_INT:
        *out = mix((uint64_t)k->u.i);
        return ERR_OK;
    case CHAT_FLOAT:
        if (k->u.f >= -9e18 && k->u.f <= 9e18 && floor(k->u.f) == k->u.f) {
            *out = mix((uint64_t)(int64_t)k->u.f);
        } else {
            uint64_t bits;
            memcpy(&bits, &k->u.f, sizeof bits);
            *out = mix(bits + 1);
        }
        return ERR_OK;
    case CHAT_TUPLE:
        *out = 0x345678;
        for (size_t i = 0; i < k->u.list->n; i++) {
            uint64_t h;
            CHAT_TRY(chat_enter(r));
            CHAT_TRY(hash_value(r, &k->u.list->v[i], &h));
            chat_leave(r);
            *out = mix(*out ^ h);
        }
        return ERR_OK;
    case CHAT_LIST:
    case CHAT_DICT:
        return chat_fail(r, "a %s cannot be the key of a mapping", chat_type_name(k));
    default:
        *out = mix((uint64_t)k->type << 32);
        return ERR_OK;
    }
}

static enum err_code dict_slot(struct chat_run *r, const struct chat_dict *d,
                               const struct chat_value *k, uint64_t hash, size_t *found)
{
    bool same;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->p[i].hash != hash)
                continue;
            CHAT_TRY(chat_equal(r, &d->p[i].k, k, &same));
            if (same) {
                *found = i;
                return ERR_OK;
            }
        }
        *found = SIZE_MAX;
        return ERR_OK;
    }
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        size_t i = d->index[at] - 1;
        if (d->p[i].hash != hash)
            continue;
        CHAT_TRY(chat_equal(r, &d->p[i].k, k, &same));
        if (same) {
            *found = i;
            return ERR_OK;
        }
    }
    *found = SIZE_MAX;
    return ERR_OK;
}

static void index_put(struct chat_dict *d, size_t i)
{
    size_t at = d->p[i].hash & (d->n_index - 1);
    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)(i + 1);
}

static enum err_code dict_grow(struct chat_run *r, struct chat_dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    if (cap > UINT32_MAX / 4)
        return chat_fail(r, "mapping with more than %zu keys", d->n);
    struct chat_pair *more = chat_array(r, cap, sizeof *more);
    if (!more)
        return chat_nomem(r);
    if (d->n)
        memcpy(more, d->p, d->n * sizeof *more);
    d->p = more;
    d->cap = cap;
    if (cap <= INDEX_FROM)
        return ERR_OK;
    d->n_index = cap * 2;
    d->index = chat_array(r, d->n_index, sizeof *d->index);
    if (!d->index)
        return chat_nomem(r);
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
    return ERR_OK;
}

enum err_code chat_dict_set(struct chat_run *r, struct chat_dict *d, struct chat_value k,
                            struct chat_value v)
{
    uint64_t hash;
    size_t at;
    CHAT_TRY(hash_value(r, &k, &hash));
    CHAT_TRY(dict_slot(r, d, &k, hash, &at));
    if (at != SIZE_MAX) {
        d->p[at].v = v;
        return ERR_OK;
    }
    if (d->n == d->cap)
        CHAT_TRY(dict_grow(r, d));
    d->p[d->n++] = (struct chat_pair){k, v, hash};
    if (d->index)
        index_put(d, d->n - 1);
    return ERR_OK;
}

enum err_code chat_dict_get(struct chat_run *r, const struct chat_dict *d,
                            const struct chat_value *k, const struct chat_value **out)
{
    uint64_t hash;
    size_t at;
    CHAT_TRY(hash_value(r, k, &hash));
    CHAT_TRY(dict_slot(r, d, k, hash, &at));
    *out = at == SIZE_MAX ? NULL : &d->p[at].v;
    return ERR_OK;
}

const struct chat_value *chat_dict_find(const struct chat_dict *d, const char *key)
{
    for (size_t i = 0; i < d->n; i++) {
        if (chat_is_str(&d->p[i].k) && chat_str_is(&d->p[i].k.u.s, key))
            return &d->p[i].v;
    }
    return NULL;
}

enum err_code chat_truth(struct chat_run *r, const struct chat_value *v, bool *out)
{
    (void)r;
    switch (v->type) {
    case CHAT_MISSING:
    case CHAT_UNDEF:
    case CHAT_NONE:
        *out = false;
        break;
    case CHAT_BOOL:
        *out = v->u.b;
        break;
    case CHAT_INT:
        *out = v->u.i != 0;
        break;
    case CHAT_FLOAT:
        *out = v->u.f != 0;
        break;
    case CHAT_STR:
        *out = v->u.s.len != 0;
        break;
    case CHAT_LIST:
    case CHAT_TUPLE:
        *out = v->u.list->n != 0;
        break;
    case CHAT_DICT:
        *out = v->u.dict->n != 0;
        break;
    case CHAT_RANGE:
        *out = v->u.range->n != 0;
        break;
    case CHAT_VIEW:
        *out = v->u.view->dict->n != 0;
        break;
    case CHAT_LOOP: /* it has a length, which is not zero inside its loop */
    default:
        *out = true;
    }
    return ERR_OK;
}

enum err_code chat_len(struct chat_run *r, const struct chat_value *v, int64_t *out)
{
    switch (v->type) {
    case CHAT_UNDEF:
        *out = 0;
        return ERR_OK;
    case CHAT_STR:
        CHAT_TRY(chat_step(r, v->u.s.len));
        *out = (int64_t)chat_cp_count(&v->u.s);
        return ERR_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
        *out = (int64_t)v->u.list->n;
        return ERR_OK;
    case CHAT_DICT:
        *out = (int64_t)v->u.dict->n;
        return ERR_OK;
    case CHAT_RANGE:
        *out = v->u.range->n;
        return ERR_OK;
    case CHAT_VIEW:
        *out = (int64_t)v->u.view->dict->n;
        return ERR_OK;
    default:
        return chat_fail(r, "a %s has no length", chat_type_name(v));
    }
}

static enum err_code equal_lists(struct chat_run *r, const struct chat_list *a,
                                 const struct chat_list *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        CHAT_TRY(chat_equal(r, &a->v[i], &b->v[i], out));
    return ERR_OK;
}

static enum err_code equal_dicts(struct chat_run *r, const struct chat_dict *a,
                                 const struct chat_dict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        size_t at;
        CHAT_TRY(dict_slot(r, b, &a->p[i].k, a->p[i].hash, &at));
        *out = at != SIZE_MAX;
        if (*out)
            CHAT_TRY(chat_equal(r, &a->p[i].v, &b->p[at].v, out));
    }
    return ERR_OK;
}

/* An integer against a float: exact, also where the integer has more digits than a double. */
static bool equal_numbers(const struct chat_value *a, const struct chat_value *b)
{
    int64_t i, k;
    double f, g;
    bool fa, fb;
    chat_number(a, &i, &f, &fa);
    chat_number(b, &k, &g, &fb);
    if (!fa && !fb)
        return i == k;
    if (fa && fb)
        return f == g;
    double real = fa ? f : g;
    int64_t whole = fa ? k : i;
    return real >= -9.2e18 && real <= 9.2e18 && floor(real) == real && (int64_t)real == whole;
}

static bool is_number(const struct chat_value *v)
{
    return v->type == CHAT_BOOL || v->type == CHAT_INT || v->type == CHAT_FLOAT;
}

enum err_code chat_equal(struct chat_run *r, const struct chat_value *a, const struct chat_value *b,
                         bool *out)
{
    *out = false;
    CHAT_TRY(chat_step(r, 0));
    if (is_number(a) && is_number(b)) {
        *out = equal_numbers(a, b);
        return ERR_OK;
    }
    if (a->type != b->type)
        return ERR_OK;
    enum err_code rc = ERR_OK;
    switch (a->type) {
    case CHAT_MISSING:
    case CHAT_UNDEF:
    case CHAT_NONE:
        *out = true;
        return ERR_OK;
    case CHAT_STR:
        *out = chat_str_same(&a->u.s, &b->u.s);
        return chat_step(r, *out ? a->u.s.len : 0);
    case CHAT_LIST:
    case CHAT_TUPLE:
        CHAT_TRY(chat_enter(r));
        rc = equal_lists(r, a->u.list, b->u.list, out);
        chat_leave(r);
        return rc;
    case CHAT_DICT:
        CHAT_TRY(chat_enter(r));
        rc = equal_dicts(r, a->u.dict, b->u.dict, out);
        chat_leave(r);
        return rc;
    case CHAT_RANGE:
        *out =
            a->u.range->n == b->u.range->n &&
            (a->u.range->n == 0 || (a->u.range->start == b->u.range->start &&
                                    (a->u.range->n == 1 || a->u.range->step == b->u.range->step)));
        return ERR_OK;
    case CHAT_METHOD:
        *out = a->u.method == b->u.method;
        return ERR_OK;
    default:
        *out = a->u.list == b->u.list; /* the same object: all of these are one pointer */
        return ERR_OK;
    }
}

static enum err_code order_lists(struct chat_run *r, const struct chat_list *a,
                                 const struct chat_list *b, const char *op, int *out, bool *nan)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        CHAT_TRY(chat_equal(r, &a->v[i], &b->v[i], &same));
        if (!same)
            return chat_order(r, &a->v[i], &b->v[i], op, out, nan);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return ERR_OK;
}

enum err_code chat_order(struct chat_run *r, const struct chat_value *a, const struct chat_value *b,
                         const char *op, int *out, bool *nan)
{
    int64_t i, k;
    double f, g;
    bool fa, fb;
    CHAT_TRY(chat_step(r, 0));
    *nan = false;
    if (chat_number(a, &i, &f, &fa) && chat_number(b, &k, &g, &fb)) {
        *nan = f != f || g != g;
        *out = fa || fb ? (f > g) - (f < g) : (i > k) - (i < k);
        return ERR_OK;
    }
    if (chat_is_str(a) && chat_is_str(b)) {
        *out = chat_str_order(&a->u.s, &b->u.s);
        return chat_step(r, MIN2(a->u.s.len, b->u.s.len));
    }
    if ((a->type == CHAT_LIST || a->type == CHAT_TUPLE) && a->type == b->type) {
        CHAT_TRY(chat_enter(r));
        enum err_code rc = order_lists(r, a->u.list, b->u.list, op, out, nan);
        chat_leave(r);
        return rc;
    }
    if (a->type == CHAT_UNDEF || b->type == CHAT_UNDEF)
        return chat_fail(r, "%s is undefined", a->type == CHAT_UNDEF ? a->u.hint : b->u.hint);
    return chat_fail(r, "'%s' between a %s and a %s", op, chat_type_name(a), chat_type_name(b));
}
