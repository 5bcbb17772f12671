/* chat_ops.c: operators, attributes, subscripts and slices, as Python and the sandbox have them.
 *
 * Integers are 64 bits wide where Python's grow: a result that does not fit is an error, never a
 * wrapped number.
 */
#include "infer/chat_private.h"

#include <math.h>
#include <stdio.h>

static enum err_code bad_operands(struct chat_run *r, int op, const struct chat_value *a,
                                  const struct chat_value *b)
{
    const char text[2] = {(char)op, '\0'};
    const char *name = op == OP_POW ? "**" : op == OP_FLOORDIV ? "//" : text;
    if (a->type == CHAT_UNDEF || b->type == CHAT_UNDEF)
        return chat_fail(r, "%s is undefined", a->type == CHAT_UNDEF ? a->u.hint : b->u.hint);
    return chat_fail(r, "'%s' of a %s and a %s", name, chat_type_name(a), chat_type_name(b));
}

static enum err_code overflow(struct chat_run *r)
{
    return chat_fail(r, "integer result does not fit in 64 bits");
}

static enum err_code int_pow(struct chat_run *r, int64_t base, int64_t exp, struct chat_value *out)
{
    int64_t v = 1;
    if (exp < 0) {
        if (base == 0)
            return chat_fail(r, "zero to a negative power");
        *out = chat_float(pow((double)base, (double)exp));
        return ERR_OK;
    }
    while (exp > 0) {
        if ((exp & 1) && __builtin_mul_overflow(v, base, &v))
            return overflow(r);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base))
            return overflow(r);
    }
    *out = chat_int(v);
    return ERR_OK;
}

static enum err_code int_binary(struct chat_run *r, int op, int64_t a, int64_t b,
                                struct chat_value *out)
{
    int64_t v = 0;
    bool wide = false;
    if (b == 0 && (op == '/' || op == OP_FLOORDIV || op == '%'))
        return chat_fail(r, "division by zero");
    switch (op) {
    case '+':
        wide = __builtin_add_overflow(a, b, &v);
        break;
    case '-':
        wide = __builtin_sub_overflow(a, b, &v);
        break;
    case '*':
        wide = __builtin_mul_overflow(a, b, &v);
        break;
    case '/':
        *out = chat_float((double)a / (double)b);
        return ERR_OK;
    case OP_FLOORDIV:
    case '%':
        if (b == -1) {
            wide = op == OP_FLOORDIV && __builtin_sub_overflow(0, a, &v);
            break;
        }
        v = op == '%' ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0))
            v += op == '%' ? b : -1;
        break;
    default:
        return int_pow(r, a, b, out);
    }
    if (wide)
        return overflow(r);
    *out = chat_int(v);
    return ERR_OK;
}

static enum err_code float_binary(struct chat_run *r, int op, double a, double b,
                                  struct chat_value *out)
{
    if (b == 0 && (op == '/' || op == OP_FLOORDIV || op == '%'))
        return chat_fail(r, "division by zero");
    double m = 0;
    if (op == OP_FLOORDIV || op == '%') {
        m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0))
            m += b;
        else if (m == 0)
            m = copysign(0.0, b);
    }
    switch (op) {
    case '+':
        *out = chat_float(a + b);
        return ERR_OK;
    case '-':
        *out = chat_float(a - b);
        return ERR_OK;
    case '*':
        *out = chat_float(a * b);
        return ERR_OK;
    case '/':
        *out = chat_float(a / b);
        return ERR_OK;
    case '%':
        *out = chat_float(m);
        return ERR_OK;
    case OP_FLOORDIV: {
        double q = (a - m) / b, whole = floor(q);
        *out = chat_float(q == 0 ? copysign(0.0, a / b) : q - whole > 0.5 ? whole + 1 : whole);
        return ERR_OK;
    }
    default:
        if (a == 0 && b < 0)
            return chat_fail(r, "zero to a negative power");
        if (a < 0 && isfinite(b) && floor(b) != b)
            return chat_fail(r, "power is not a real number");
        *out = chat_float(pow(a, b));
        if (isinf(out->u.f) && isfinite(a) && isfinite(b))
            return chat_fail(r, "power is too large");
        return ERR_OK;
    }
}

static enum err_code concat_lists(struct chat_run *r, const struct chat_value *a,
                                  const struct chat_value *b, struct chat_value *out)
{
    const struct chat_list *x = a->u.list, *y = b->u.list;
    CHAT_TRY(chat_step(r, (x->n + y->n) * sizeof *x->v));
    CHAT_TRY(chat_list_new(r, x->n + y->n, out));
    if (x->n)
        memcpy(out->u.list->v, x->v, x->n * sizeof *x->v);
    if (y->n)
        memcpy(out->u.list->v + x->n, y->v, y->n * sizeof *y->v);
    out->u.list->n = x->n + y->n;
    out->type = a->type;
    return ERR_OK;
}

/* `+` of two strings: one that is marked safe escapes the other. */
static enum err_code concat_text(struct chat_run *r, const struct chat_value *a,
                                 const struct chat_value *b, struct chat_value *out)
{
    struct chat_value x = *a, y = *b;
    struct chat_str s;
    bool safe = a->safe || b->safe;
    if (safe) {
        CHAT_TRY(chat_escape(r, a, &x));
        CHAT_TRY(chat_escape(r, b, &y));
    }
    CHAT_TRY(chat_join2(r, &x.u.s, &y.u.s, &s));
    *out = chat_str_value(s, safe);
    return ERR_OK;
}

static enum err_code repeat(struct chat_run *r, const struct chat_value *v, int64_t n,
                            struct chat_value *out)
{
    size_t len = chat_is_str(v) ? v->u.s.len : v->u.list->n, total;
    if (n <= 0 || len == 0)
        n = 0;
    if (!checked_mul(len, (size_t)n, &total) || total > CHAT_OUTPUT_MAX)
        return chat_fail(r, "repetition grows beyond %zu", CHAT_OUTPUT_MAX);
    if (chat_is_str(v)) {
        struct chat_buf *b = NULL;
        for (int64_t i = 0; i < n; i++)
            CHAT_TRY(chat_put_str(r, &b, &v->u.s));
        *out = chat_buf_value(b);
        out->safe = v->safe;
        return ERR_OK;
    }
    CHAT_TRY(chat_step(r, total * sizeof *v));
    CHAT_TRY(chat_list_new(r, total, out));
    for (int64_t i = 0; i < n; i++) {
        for (size_t k = 0; k < len; k++)
            CHAT_TRY(chat_list_push(r, out->u.list, v->u.list->v[k]));
    }
    out->type = v->type;
    return ERR_OK;
}

static bool is_sequence(const struct chat_value *v)
{
    return v->type == CHAT_STR || v->type == CHAT_LIST || v->type == CHAT_TUPLE;
}

enum err_code chat_binary(struct chat_run *r, int op, const struct chat_value *a,
                          const struct chat_value *b, struct chat_value *out)
{
    int64_t i, k;
    double f, g;
    bool fa, fb;
    bool na = chat_number(a, &i, &f, &fa), nb = chat_number(b, &k, &g, &fb);
    if (na && nb)
        return fa || fb ? float_binary(r, op, f, g, out) : int_binary(r, op, i, k, out);
    if (op == '+' && chat_is_str(a) && chat_is_str(b))
        return concat_text(r, a, b, out);
    if (op == '+' && a->type == b->type && is_sequence(a))
        return concat_lists(r, a, b, out);
    if (op == '*' && is_sequence(a) && nb && !fb)
        return repeat(r, a, k, out);
    if (op == '*' && is_sequence(b) && na && !fa)
        return repeat(r, b, i, out);
    if (op == '%' && chat_is_str(a))
        return chat_printf_format(r, a, b, out);
    return bad_operands(r, op, a, b);
}

enum err_code chat_negate(struct chat_run *r, const struct chat_value *a, bool minus,
                          struct chat_value *out)
{
    if (a->type == CHAT_FLOAT) {
        *out = chat_float(minus ? -a->u.f : a->u.f);
        return ERR_OK;
    }
    if (a->type != CHAT_INT && a->type != CHAT_BOOL) {
        if (a->type == CHAT_UNDEF)
            return chat_fail(r, "%s is undefined", a->u.hint);
        return chat_fail(r, "sign before a %s", chat_type_name(a));
    }
    int64_t v = a->type == CHAT_BOOL ? a->u.b : a->u.i;
    if (minus && __builtin_sub_overflow(0, v, &v))
        return overflow(r);
    *out = chat_int(v);
    return ERR_OK;
}

static enum err_code contains_item(struct chat_run *r, const struct chat_value *in,
                                   const struct chat_value *item, bool *out)
{
    struct chat_iter *it = NULL;
    struct chat_value v;
    *out = false;
    CHAT_TRY(chat_iter_open(r, in, &it));
    for (;;) {
        CHAT_TRY(chat_iter_next(r, it, &v));
        if (v.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_equal(r, &v, item, out));
        if (*out)
            return ERR_OK;
    }
}

static enum err_code contains(struct chat_run *r, const struct chat_value *in,
                              const struct chat_value *item, bool *out)
{
    const struct chat_value *hit;
    switch (in->type) {
    case CHAT_STR:
        if (!chat_is_str(item))
            return chat_fail(r, "'in' of a string wants a string, found a %s",
                             chat_type_name(item));
        CHAT_TRY(chat_step(r, in->u.s.len));
        *out = chat_find(&in->u.s, &item->u.s, 0) != SIZE_MAX;
        return ERR_OK;
    case CHAT_DICT:
        CHAT_TRY(chat_dict_get(r, in->u.dict, item, &hit));
        *out = hit != NULL;
        return ERR_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_RANGE:
    case CHAT_VIEW:
    case CHAT_ITER:
    case CHAT_UNDEF:
        return contains_item(r, in, item, out);
    default:
        return chat_fail(r, "'in' of a %s", chat_type_name(in));
    }
}

enum err_code chat_compare(struct chat_run *r, int op, const struct chat_value *a,
                           const struct chat_value *b, bool *out)
{
    int c;
    bool nan;
    switch (op) {
    case OP_EQ:
    case OP_NE:
        CHAT_TRY(chat_equal(r, a, b, out));
        *out = *out == (op == OP_EQ);
        return ERR_OK;
    case OP_IN:
    case OP_NOT_IN:
        CHAT_TRY(contains(r, b, a, out));
        *out = *out == (op == OP_IN);
        return ERR_OK;
    case '<':
        CHAT_TRY(chat_order(r, a, b, "<", &c, &nan));
        *out = !nan && c < 0;
        return ERR_OK;
    case OP_LE:
        CHAT_TRY(chat_order(r, a, b, "<=", &c, &nan));
        *out = !nan && c <= 0;
        return ERR_OK;
    case '>':
        CHAT_TRY(chat_order(r, a, b, ">", &c, &nan));
        *out = !nan && c > 0;
        return ERR_OK;
    default:
        CHAT_TRY(chat_order(r, a, b, ">=", &c, &nan));
        *out = !nan && c >= 0;
        return ERR_OK;
    }
}

/* Attributes that the type itself has; CHAT_MISSING: none, so that the key comes next. */
static enum err_code own_attr(struct chat_run *r, const struct chat_value *obj,
                              const struct chat_str *name, struct chat_value *out)
{
    const char *text = chat_text(name);
    struct chat_method m;
    *out = (struct chat_value){0};
    if (name->len > 4 && memcmp(text, "__", 2) == 0 && memcmp(text + name->len - 2, "__", 2) == 0) {
        *out = chat_undef("a private attribute");
        return ERR_OK;
    }
    if (obj->type == CHAT_SPACE) {
        const struct chat_value *hit, key = chat_str_value(*name, false);
        CHAT_TRY(chat_dict_get(r, obj->u.dict, &key, &hit));
        if (hit)
            *out = text[0] == '_' ? chat_undef("a private attribute") : *hit;
        return ERR_OK;
    }
    if (obj->type == CHAT_LOOP)
        return chat_loop_attr(r, obj, name, out);
    if (obj->type == CHAT_CYCLER && chat_str_is(name, "current")) {
        *out = obj->u.cycler->items->v[obj->u.cycler->pos];
        return ERR_OK;
    }
    if (obj->type == CHAT_MACRO && chat_str_is(name, "name"))
        return chat_str_new(r, obj->u.macro->name, strlen(obj->u.macro->name), 0, out);
    if (!chat_method_find(obj, name, &m))
        return ERR_OK;
    if (!m.fn) {
        *out = chat_undef("an attribute that changes its object");
        return ERR_OK;
    }
    struct chat_method *copy = chat_alloc(r, sizeof *copy);
    if (!copy)
        return chat_nomem(r);
    *copy = m;
    *out = (struct chat_value){.type = CHAT_METHOD, .u.method = copy};
    return ERR_OK;
}

static enum err_code undefined_object(struct chat_run *r, const struct chat_value *obj)
{
    return chat_fail(r, "%s is undefined", obj->u.hint);
}

enum err_code chat_getattr(struct chat_run *r, const struct chat_value *obj,
                           const struct chat_value *name, struct chat_value *out)
{
    const struct chat_value *hit = NULL;
    if (obj->type == CHAT_UNDEF)
        return undefined_object(r, obj);
    CHAT_TRY(own_attr(r, obj, &name->u.s, out));
    if (out->type != CHAT_MISSING)
        return ERR_OK;
    if (obj->type == CHAT_DICT)
        CHAT_TRY(chat_dict_get(r, obj->u.dict, name, &hit));
    if (!hit)
        return chat_undef_of(r, obj, name, out);
    *out = *hit;
    return ERR_OK;
}

static bool index_of(const struct chat_value *key, int64_t n, int64_t *at)
{
    if (key->type != CHAT_INT && key->type != CHAT_BOOL)
        return false;
    *at = key->type == CHAT_BOOL ? key->u.b : key->u.i;
    if (*at < 0)
        *at += n;
    return *at >= 0 && *at < n;
}

/* The character at an index, which may be negative; false: out of range. */
static bool char_at(const struct chat_str *s, int64_t index, struct chat_str *out)
{
    const char *text = chat_text(s);
    size_t w;
    if (index < 0) {
        size_t at = s->len;
        for (; index < 0; index++) {
            if (at == 0)
                return false;
            at -= chat_cp_back(text, text + at);
        }
        chat_cp_at(text + at, s->len - at, &w);
        *out = chat_sub(s, at, at + w);
        return true;
    }
    size_t at = (uint64_t)index > s->len ? s->len : chat_cp_offset(s, (size_t)index);
    if (at >= s->len)
        return false;
    chat_cp_at(text + at, s->len - at, &w);
    *out = chat_sub(s, at, at + w);
    return true;
}

static enum err_code item(struct chat_run *r, const struct chat_value *obj,
                          const struct chat_value *key, struct chat_value *out)
{
    int64_t at;
    const struct chat_value *hit = NULL;
    *out = (struct chat_value){0};
    switch (obj->type) {
    case CHAT_DICT:
        if (key->type != CHAT_LIST && key->type != CHAT_DICT)
            CHAT_TRY(chat_dict_get(r, obj->u.dict, key, &hit));
        if (hit)
            *out = *hit;
        return ERR_OK;
    case CHAT_LIST:
    case CHAT_TUPLE:
        if (index_of(key, (int64_t)obj->u.list->n, &at))
            *out = obj->u.list->v[at];
        return ERR_OK;
    case CHAT_RANGE:
        if (index_of(key, obj->u.range->n, &at))
            *out = chat_int(obj->u.range->start + at * obj->u.range->step);
        return ERR_OK;
    case CHAT_STR: {
        struct chat_str one;
        CHAT_TRY(chat_step(r, obj->u.s.len));
        at = key->type == CHAT_BOOL ? key->u.b : key->u.i;
        if ((key->type == CHAT_INT || key->type == CHAT_BOOL) && char_at(&obj->u.s, at, &one))
            *out = chat_str_value(one, obj->safe);
        return ERR_OK;
    }
    default:
        return ERR_OK;
    }
}

enum err_code chat_getitem(struct chat_run *r, const struct chat_value *obj,
                           const struct chat_value *key, struct chat_value *out)
{
    if (obj->type == CHAT_UNDEF)
        return undefined_object(r, obj);
    CHAT_TRY(item(r, obj, key, out));
    if (out->type == CHAT_MISSING && chat_is_str(key))
        CHAT_TRY(own_attr(r, obj, &key->u.s, out));
    if (out->type == CHAT_MISSING)
        return chat_undef_of(r, obj, key, out);
    return ERR_OK;
}

/* Python's slice.indices: clamps the bounds and counts the items. */
static enum err_code slice_range(struct chat_run *r, const struct chat_value b[3], int64_t n,
                                 struct chat_range *out)
{
    int64_t v[3] = {0, 0, 1};
    bool given[3];
    for (int i = 0; i < 3; i++) {
        given[i] = b[i].type != CHAT_NONE;
        if (b[i].type == CHAT_INT)
            v[i] = b[i].u.i;
        else if (b[i].type == CHAT_BOOL)
            v[i] = b[i].u.b;
        else if (given[i])
            return chat_fail(r, "a %s as bound of a slice", chat_type_name(&b[i]));
    }
    if (v[2] == 0)
        return chat_fail(r, "slice with step zero");
    bool down = v[2] < 0;
    int64_t lo = down ? -1 : 0, hi = down ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (!given[i]) {
            v[i] = (i == 0) == down ? hi : lo;
            continue;
        }
        if (v[i] < 0)
            v[i] = v[i] < -n ? lo : MAX2(v[i] + n, lo);
        else
            v[i] = MIN2(v[i], hi);
    }
    /* A step that leaves the sequence at once takes one item, however large it is. */
    int64_t step = MAX2(MIN2(v[2], n + 1), -n - 1);
    int64_t span = down ? v[0] - v[1] : v[1] - v[0], width = down ? -step : step;
    *out = (struct chat_range){v[0], step, span > 0 ? (span - 1) / width + 1 : 0};
    return ERR_OK;
}

static enum err_code slice_text(struct chat_run *r, const struct chat_value *obj,
                                const struct chat_range *g, struct chat_value *out)
{
    const struct chat_str *s = &obj->u.s;
    if (g->step == 1) {
        struct chat_str rest = *s;
        size_t from = chat_cp_offset(s, (size_t)g->start);
        rest = chat_sub(s, from, s->len);
        size_t to = from + chat_cp_offset(&rest, (size_t)g->n);
        *out = chat_str_value(chat_sub(s, from, to), obj->safe);
        return ERR_OK;
    }
    struct chat_value chars;
    struct chat_buf *b = NULL;
    CHAT_TRY(chat_iter_list(r, obj, &chars));
    for (int64_t i = 0; i < g->n; i++)
        CHAT_TRY(chat_put_str(r, &b, &chars.u.list->v[g->start + i * g->step].u.s));
    *out = chat_buf_value(b);
    out->safe = obj->safe;
    return ERR_OK;
}

enum err_code chat_slice(struct chat_run *r, const struct chat_value *obj,
                         const struct chat_value bounds[3], struct chat_value *out)
{
    struct chat_range g = {0};
    int64_t n;
    if (obj->type == CHAT_UNDEF)
        return undefined_object(r, obj);
    if (!is_sequence(obj) && obj->type != CHAT_RANGE)
        return chat_fail(r, "slice of a %s", chat_type_name(obj));
    CHAT_TRY(chat_len(r, obj, &n));
    CHAT_TRY(slice_range(r, bounds, n, &g));
    if (chat_is_str(obj))
        return slice_text(r, obj, &g, out);
    if (obj->type == CHAT_RANGE) {
        struct chat_range *v = chat_alloc(r, sizeof *v);
        if (!v)
            return chat_nomem(r);
        *v = (struct chat_range){obj->u.range->start + g.start * obj->u.range->step,
                                 g.step * obj->u.range->step, g.n};
        *out = (struct chat_value){.type = CHAT_RANGE, .u.range = v};
        return ERR_OK;
    }
    CHAT_TRY(chat_step(r, (size_t)g.n * sizeof *obj));
    CHAT_TRY(chat_list_new(r, (size_t)g.n, out));
    for (int64_t i = 0; i < g.n; i++)
        CHAT_TRY(chat_list_push(r, out->u.list, obj->u.list->v[g.start + i * g.step]));
    out->type = obj->type;
    return ERR_OK;
}
