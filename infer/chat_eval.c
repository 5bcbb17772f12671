/* chat_eval.c: the value of an expression, and calls.
 *
 * Walks the tree; every step is counted and every nesting bounded (chat_step, chat_enter), so a
 * hostile template ends with an error.
 */
#include "infer/chat_private.h"

static enum err_code eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out);

static enum err_code eval_list(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    struct chat_value v;
    CHAT_TRY(chat_list_new(r, n->list.n, out));
    for (size_t i = 0; i < n->list.n; i++) {
        CHAT_TRY(chat_eval(r, n->list.v[i], &v));
        CHAT_TRY(chat_list_push(r, out->u.list, v));
    }
    out->type = n->kind == NODE_TUPLE ? CHAT_TUPLE : CHAT_LIST;
    return ERR_OK;
}

static enum err_code eval_dict(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    struct chat_value k, v;
    CHAT_TRY(chat_dict_new(r, out));
    for (size_t i = 0; i < n->list.n; i++) {
        CHAT_TRY(chat_eval(r, n->list.v[i], &k));
        CHAT_TRY(chat_eval(r, n->list2.v[i], &v));
        CHAT_TRY(chat_dict_set(r, out->u.dict, k, v));
    }
    return ERR_OK;
}

static enum err_code eval_name(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    const struct chat_scope *s = r->scope;
    for (int up = n->up; up > 0; up--)
        s = s->up;
    *out = s->v[n->slot];
    if (out->type == CHAT_MISSING)
        *out = chat_undef(chat_text(&r->t->names.v[n->name].u.s));
    return ERR_OK;
}

/* and, or give one of their operands. */
static enum err_code eval_logic(struct chat_run *r, const struct chat_node *n,
                                struct chat_value *out)
{
    bool t;
    CHAT_TRY(chat_eval(r, n->a, out));
    CHAT_TRY(chat_truth(r, out, &t));
    return t == (n->kind == NODE_AND) ? chat_eval(r, n->b, out) : ERR_OK;
}

static enum err_code eval_cond(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    bool t;
    CHAT_TRY(chat_eval(r, n->a, out));
    CHAT_TRY(chat_truth(r, out, &t));
    if (t)
        return chat_eval(r, n->b, out);
    if (n->c)
        return chat_eval(r, n->c, out);
    *out = chat_undef("the inline if without an else");
    return ERR_OK;
}

static enum err_code eval_compare(struct chat_run *r, const struct chat_node *n,
                                  struct chat_value *out)
{
    struct chat_value left, right;
    bool t = true;
    CHAT_TRY(chat_eval(r, n->a, &left));
    for (size_t i = 0; i < n->list.n && t; i++) {
        const struct chat_node *operand = n->list.v[i];
        CHAT_TRY(chat_eval(r, operand->a, &right));
        r->line = n->line;
        CHAT_TRY(chat_compare(r, operand->op, &left, &right, &t));
        left = right;
    }
    *out = chat_bool(t);
    return ERR_OK;
}

static enum err_code eval_concat(struct chat_run *r, const struct chat_node *n,
                                 struct chat_value *out)
{
    struct chat_str s = {0};
    struct chat_value v, text;
    for (size_t i = 0; i < n->list.n; i++) {
        CHAT_TRY(chat_eval(r, n->list.v[i], &v));
        CHAT_TRY(chat_to_str(r, &v, &text));
        CHAT_TRY(chat_join2(r, &s, &text.u.s, &s));
    }
    *out = chat_str_value(s, false);
    return ERR_OK;
}

static enum err_code eval_access(struct chat_run *r, const struct chat_node *n,
                                 struct chat_value *out)
{
    struct chat_value obj, key;
    CHAT_TRY(chat_eval(r, n->a, &obj));
    if (n->kind == NODE_ATTR) {
        r->line = n->line;
        return chat_getattr(r, &obj, &n->value, out);
    }
    CHAT_TRY(chat_eval(r, n->b, &key));
    r->line = n->line;
    return chat_getitem(r, &obj, &key, out);
}

static enum err_code eval_slice(struct chat_run *r, const struct chat_node *n,
                                struct chat_value *out)
{
    struct chat_value v[4];
    for (size_t i = 0; i < 4; i++)
        CHAT_TRY(chat_eval(r, n->list.v[i], &v[i]));
    r->line = n->line;
    return chat_slice(r, &v[0], v + 1, out);
}

static enum err_code push_star(struct chat_run *r, const struct chat_node *star,
                               struct chat_list *l)
{
    struct chat_value v, item;
    struct chat_iter *it = NULL;
    CHAT_TRY(chat_eval(r, star, &v));
    CHAT_TRY(chat_iter_open(r, &v, &it));
    for (;;) {
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_list_push(r, l, item));
    }
}

static enum err_code eval_keywords(struct chat_run *r, const struct chat_call *call,
                                   const struct chat_value *caller, struct chat_args *out)
{
    struct chat_value more = {0};
    size_t n = call->kw.n + 1;
    if (call->star2) {
        CHAT_TRY(chat_eval(r, call->star2, &more));
        if (more.type != CHAT_DICT)
            return chat_fail(r, "argument after ** is a %s", chat_type_name(&more));
        n += more.u.dict->n;
    }
    out->kw = chat_array(r, n, sizeof *out->kw);
    if (!out->kw)
        return chat_nomem(r);
    for (size_t i = 0; i < call->kw.n; i++) {
        struct chat_kw *kw = &out->kw[out->n_kw++];
        kw->name = call->names.v[i];
        CHAT_TRY(chat_eval(r, call->kw.v[i], &kw->value));
    }
    for (size_t i = 0; more.type == CHAT_DICT && i < more.u.dict->n; i++) {
        const struct chat_pair *p = &more.u.dict->p[i];
        if (!chat_is_str(&p->k))
            return chat_fail(r, "keyword that is not a string");
        for (size_t k = 0; k < call->kw.n; k++) {
            if (chat_str_same(&call->names.v[k].u.s, &p->k.u.s))
                return chat_fail(r, "keyword argument repeated");
        }
        out->kw[out->n_kw++] = (struct chat_kw){p->k, p->v};
    }
    if (caller) {
        struct chat_kw *kw = &out->kw[out->n_kw++];
        CHAT_TRY(chat_str_new(r, "caller", 6, 0, &kw->name));
        kw->value = *caller;
    }
    return ERR_OK;
}

enum err_code chat_eval_args(struct chat_run *r, const struct chat_call *call,
                             const struct chat_value *caller, struct chat_args *out)
{
    struct chat_list l = {0};
    struct chat_value v;
    *out = (struct chat_args){0};
    for (size_t i = 0; i < call->pos.n; i++) {
        CHAT_TRY(chat_eval(r, call->pos.v[i], &v));
        CHAT_TRY(chat_list_push(r, &l, v));
    }
    if (call->star)
        CHAT_TRY(push_star(r, call->star, &l));
    if (call->kw.n || call->star2 || caller)
        CHAT_TRY(eval_keywords(r, call, caller, out));
    out->v = l.v;
    out->n = l.n;
    return ERR_OK;
}

static enum err_code cycler_call(struct chat_run *r, const struct chat_value *fn,
                                 struct chat_value *out)
{
    struct chat_cycler *c = fn->u.cycler;
    if (fn->type != CHAT_JOINER)
        return chat_fail(r, "a cycler is not called");
    if (!c->pos) {
        c->pos = 1;
        return chat_str_new(r, "", 0, 0, out);
    }
    *out = c->items->v[0];
    return ERR_OK;
}

enum err_code chat_call(struct chat_run *r, const struct chat_value *fn,
                        const struct chat_args *args, struct chat_value *out)
{
    switch (fn->type) {
    case CHAT_FUNC:
        return fn->u.func->fn(r, args, out);
    case CHAT_METHOD:
        return fn->u.method->fn(r, &fn->u.method->self, args, out);
    case CHAT_MACRO:
        return chat_macro_call(r, fn->u.macro, args, out);
    case CHAT_JOINER:
    case CHAT_CYCLER:
        return cycler_call(r, fn, out);
    case CHAT_UNDEF:
        return chat_fail(r, "%s is undefined", fn->u.hint);
    default:
        return chat_fail(r, "a %s cannot be called", chat_type_name(fn));
    }
}

static enum err_code eval_call(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    struct chat_value fn;
    struct chat_args args;
    CHAT_TRY(chat_eval(r, n->a, &fn));
    CHAT_TRY(chat_eval_args(r, n->call, NULL, &args));
    r->line = n->line;
    return chat_call(r, &fn, &args, out);
}

enum err_code chat_eval_filter(struct chat_run *r, const struct chat_node *n,
                               const struct chat_value *in, struct chat_value *out)
{
    struct chat_value v;
    struct chat_args args;
    const struct chat_filter *f = n->impl;
    if (n->a && n->a->kind == NODE_FILTER) {
        CHAT_TRY(chat_enter(r));
        CHAT_TRY(chat_eval_filter(r, n->a, in, &v));
        chat_leave(r);
    } else if (n->a) {
        CHAT_TRY(chat_eval(r, n->a, &v));
    } else {
        v = *in;
    }
    r->line = n->line;
    if (!f)
        return chat_fail(r, "no filter named '%.*s'", (int)MIN2(n->value.u.s.len, 60),
                         chat_text(&n->value.u.s));
    CHAT_TRY(chat_eval_args(r, n->call, NULL, &args));
    r->line = n->line;
    return f->fn(r, &v, &args, out);
}

static enum err_code eval_test(struct chat_run *r, const struct chat_node *n,
                               struct chat_value *out)
{
    struct chat_value v;
    struct chat_args args;
    bool t;
    CHAT_TRY(chat_eval(r, n->a, &v));
    r->line = n->line;
    if (!n->impl)
        return chat_fail(r, "no test named '%.*s'", (int)MIN2(n->value.u.s.len, 60),
                         chat_text(&n->value.u.s));
    CHAT_TRY(chat_eval_args(r, n->call, NULL, &args));
    CHAT_TRY(chat_test_call(r, n->impl, &v, &args, &t));
    *out = chat_bool(t);
    return ERR_OK;
}

static enum err_code eval_unary(struct chat_run *r, const struct chat_node *n,
                                struct chat_value *out)
{
    struct chat_value v;
    bool t;
    CHAT_TRY(chat_eval(r, n->a, &v));
    if (n->kind != NODE_NOT)
        return chat_negate(r, &v, n->kind == NODE_NEG, out);
    CHAT_TRY(chat_truth(r, &v, &t));
    *out = chat_bool(!t);
    return ERR_OK;
}

static enum err_code eval_binary(struct chat_run *r, const struct chat_node *n,
                                 struct chat_value *out)
{
    struct chat_value a, b;
    CHAT_TRY(chat_eval(r, n->a, &a));
    CHAT_TRY(chat_eval(r, n->b, &b));
    r->line = n->line;
    return chat_binary(r, n->op, &a, &b, out);
}

static enum err_code eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out)
{
    switch (n->kind) {
    case NODE_CONST:
        *out = n->value;
        return ERR_OK;
    case NODE_NAME:
        return eval_name(r, n, out);
    case NODE_TUPLE:
    case NODE_LIST:
        return eval_list(r, n, out);
    case NODE_DICT:
        return eval_dict(r, n, out);
    case NODE_COND:
        return eval_cond(r, n, out);
    case NODE_AND:
    case NODE_OR:
        return eval_logic(r, n, out);
    case NODE_NOT:
    case NODE_NEG:
    case NODE_POS:
        return eval_unary(r, n, out);
    case NODE_BINARY:
        return eval_binary(r, n, out);
    case NODE_CONCAT:
        return eval_concat(r, n, out);
    case NODE_COMPARE:
        return eval_compare(r, n, out);
    case NODE_ATTR:
    case NODE_ITEM:
        return eval_access(r, n, out);
    case NODE_SLICE:
        return eval_slice(r, n, out);
    case NODE_CALL:
        return eval_call(r, n, out);
    case NODE_FILTER:
        return chat_eval_filter(r, n, NULL, out);
    case NODE_TEST:
        return eval_test(r, n, out);
    default:
        return chat_fail(r, "statement where a value is expected");
    }
}

enum err_code chat_eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out)
{
    r->line = n->line;
    CHAT_TRY(chat_step(r, 0));
    CHAT_TRY(chat_enter(r));
    enum err_code rc = eval(r, n, out);
    chat_leave(r);
    return rc;
}
