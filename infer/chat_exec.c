/* chat_exec.c: statements: output, assignment, loops, macros and blocks.
 *
 * Output goes to the run's current buffer; macros and blocks put one of their own in its place
 * while their body runs. A scope holds the values of one frame; functions defined inside keep it.
 */
#include "infer/chat_private.h"

enum err_code chat_scope_enter(struct chat_run *r, const struct chat_frame *f,
                               struct chat_scope *up, struct chat_scope **out)
{
    struct chat_scope *s = chat_alloc(r, sizeof *s);
    if (!s)
        return chat_nomem(r);
    s->v = chat_array(r, f->n + 1, sizeof *s->v);
    if (!s->v)
        return chat_nomem(r);
    s->up = up;
    s->frame = f;
    *out = s;
    return ERR_OK;
}

static enum err_code lookup(struct chat_run *r, int name, struct chat_value *out)
{
    const struct chat_value *key = &r->t->names.v[name], *hit;
    CHAT_TRY(chat_dict_get(r, r->vars, key, &hit));
    if (hit) {
        *out = *hit;
        return ERR_OK;
    }
    const struct chat_func *f = chat_global_find(&key->u.s);
    *out = f ? (struct chat_value){.type = CHAT_FUNC, .u.func = f} : (struct chat_value){0};
    return ERR_OK;
}

/* Gives the variables that nobody sets their start. */
enum err_code chat_scope_load(struct chat_run *r, struct chat_scope *s)
{
    for (size_t i = 0; i < s->frame->n; i++) {
        const struct chat_sym *sym = &s->frame->syms[i];
        const struct chat_scope *from = s;
        if (!sym->ref)
            continue;
        switch (sym->load) {
        case LOAD_PARAMETER:
            break;
        case LOAD_UNDEFINED:
            s->v[i] = (struct chat_value){0};
            break;
        case LOAD_RESOLVE:
            CHAT_TRY(lookup(r, sym->name, &s->v[i]));
            break;
        case LOAD_ALIAS:
            for (int up = sym->up; up > 0; up--)
                from = from->up;
            s->v[i] = from->v[sym->slot];
            break;
        }
    }
    return chat_step(r, s->frame->n * 8);
}

static struct chat_value *variable(struct chat_scope *s, const struct chat_node *n)
{
    for (int up = n->up; up > 0; up--)
        s = s->up;
    return &s->v[n->slot];
}

static enum err_code unpack(struct chat_run *r, struct chat_scope *s,
                            const struct chat_node *target, const struct chat_value *v)
{
    struct chat_iter *it = NULL;
    struct chat_value item, extra;
    struct chat_value list;
    CHAT_TRY(chat_list_new(r, target->list.n, &list));
    CHAT_TRY(chat_iter_open(r, v, &it));
    for (size_t i = 0; i < target->list.n; i++) {
        CHAT_TRY(chat_iter_next(r, it, &item));
        if (item.type == CHAT_MISSING)
            return chat_fail(r, "%zu values for %zu names", i, target->list.n);
        CHAT_TRY(chat_list_push(r, list.u.list, item));
    }
    CHAT_TRY(chat_iter_next(r, it, &extra));
    if (extra.type != CHAT_MISSING)
        return chat_fail(r, "more values than the %zu names", target->list.n);
    for (size_t i = 0; i < target->list.n; i++)
        CHAT_TRY(chat_assign(r, s, target->list.v[i], &list.u.list->v[i]));
    return ERR_OK;
}

enum err_code chat_assign(struct chat_run *r, struct chat_scope *s, const struct chat_node *target,
                          const struct chat_value *v)
{
    r->line = target->line;
    switch (target->kind) {
    case NODE_NAME:
        *variable(s, target) = *v;
        return ERR_OK;
    case NODE_NSREF: {
        const struct chat_value *ns = variable(s, target);
        if (ns->type != CHAT_SPACE)
            return chat_fail(r, "attribute '%.*s' set on something that is no namespace",
                             (int)MIN2(target->value.u.s.len, 60), chat_text(&target->value.u.s));
        CHAT_TRY(chat_space_name(r, &target->value));
        return chat_dict_set(r, ns->u.dict, target->value, *v);
    }
    default:
        return unpack(r, s, target, v);
    }
}

/* Runs a body in a scope with an output buffer of its own. */
static enum err_code capture(struct chat_run *r, const struct chat_nodes *body,
                             struct chat_scope *scope, struct chat_value *out)
{
    struct chat_buf *outer = r->out;
    struct chat_scope *back = r->scope;
    r->out = NULL;
    r->scope = scope;
    CHAT_TRY(chat_exec(r, body));
    *out = chat_buf_value(r->out);
    r->out = outer;
    r->scope = back;
    return ERR_OK;
}

static enum err_code exec_in(struct chat_run *r, const struct chat_nodes *body,
                             struct chat_scope *scope)
{
    struct chat_scope *back = r->scope;
    r->scope = scope;
    CHAT_TRY(chat_exec(r, body));
    r->scope = back;
    return ERR_OK;
}

static enum err_code loop_new(struct chat_run *r, struct chat_iter *it, struct chat_value *out)
{
    struct chat_loop *l = chat_alloc(r, sizeof *l);
    if (!l)
        return chat_nomem(r);
    l->iter = it;
    l->index0 = -1;
    l->length = -1;
    *out = (struct chat_value){.type = CHAT_LOOP, .u.loop = l};
    return ERR_OK;
}

static enum err_code loop_next(struct chat_run *r, struct chat_loop *l, struct chat_value *out)
{
    if (l->after.type != CHAT_MISSING) {
        *out = l->after;
        l->after = (struct chat_value){0};
    } else {
        CHAT_TRY(chat_iter_next(r, l->iter, out));
        if (out->type == CHAT_MISSING)
            return ERR_OK;
    }
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return ERR_OK;
}

static enum err_code loop_body(struct chat_run *r, const struct chat_node *n, struct chat_scope *s,
                               const struct chat_value *loop, bool *none)
{
    struct chat_value item;
    for (;;) {
        CHAT_TRY(loop_next(r, loop->u.loop, &item));
        if (item.type == CHAT_MISSING)
            return ERR_OK;
        CHAT_TRY(chat_assign(r, s, n->a, &item));
        if (n->frame->loop_slot >= 0)
            s->v[n->frame->loop_slot] = *loop;
        CHAT_TRY(chat_scope_load(r, s));
        CHAT_TRY(exec_in(r, &n->list, s));
        enum chat_flow flow = r->flow;
        r->flow = FLOW_NONE;
        if (flow == FLOW_BREAK)
            return ERR_OK;
        /* Only an iteration that reached its end counts against the else branch. */
        if (flow == FLOW_NONE)
            *none = false;
    }
}

static enum err_code exec_for(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value over, loop;
    struct chat_iter *it = NULL;
    struct chat_scope *s;
    bool none = true;
    CHAT_TRY(chat_eval(r, n->b, &over));
    r->line = n->line;
    CHAT_TRY(chat_iter_open(r, &over, &it));
    if (n->c)
        CHAT_TRY(chat_iter_where(r, it, n, &it));
    CHAT_TRY(loop_new(r, it, &loop));
    switch (over.type) {
    case CHAT_ITER:
        break;
    default:
        if (!n->c)
            CHAT_TRY(chat_len(r, &over, &loop.u.loop->length));
    }
    CHAT_TRY(chat_scope_enter(r, n->frame, r->scope, &s));
    CHAT_TRY(loop_body(r, n, s, &loop, &none));
    if (!none || !n->list2.n)
        return ERR_OK;
    CHAT_TRY(chat_scope_enter(r, n->else_frame, r->scope, &s));
    CHAT_TRY(chat_scope_load(r, s));
    return exec_in(r, &n->list2, s);
}

static enum err_code exec_if(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    bool t;
    CHAT_TRY(chat_eval(r, n->a, &v));
    CHAT_TRY(chat_truth(r, &v, &t));
    if (t)
        return chat_exec(r, &n->list);
    for (size_t i = 0; i < n->list2.n; i++) {
        CHAT_TRY(chat_eval(r, n->list2.v[i]->a, &v));
        CHAT_TRY(chat_truth(r, &v, &t));
        if (t)
            return chat_exec(r, &n->list2.v[i]->list);
    }
    return chat_exec(r, &n->list3);
}

static enum err_code check_targets(struct chat_run *r, const struct chat_node *target)
{
    if (target->kind == NODE_NSREF && variable(r->scope, target)->type != CHAT_SPACE)
        return chat_fail(r, "attribute '%.*s' set on something that is no namespace",
                         (int)MIN2(target->value.u.s.len, 60), chat_text(&target->value.u.s));
    for (size_t i = 0; target->kind == NODE_TUPLE && i < target->list.n; i++)
        CHAT_TRY(check_targets(r, target->list.v[i]));
    return ERR_OK;
}

static enum err_code exec_set(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    r->line = n->line;
    CHAT_TRY(check_targets(r, n->a));
    CHAT_TRY(chat_eval(r, n->b, &v));
    return chat_assign(r, r->scope, n->a, &v);
}

/* set and filter blocks. */
static enum err_code exec_block(struct chat_run *r, const struct chat_node *n)
{
    struct chat_scope *s, *back = r->scope;
    struct chat_value v;
    CHAT_TRY(chat_scope_enter(r, n->frame, r->scope, &s));
    CHAT_TRY(chat_scope_load(r, s));
    CHAT_TRY(capture(r, &n->list, s, &v));
    if (r->flow != FLOW_NONE)
        return ERR_OK;
    if (n->b) {
        struct chat_value raw = v;
        r->scope = s;
        CHAT_TRY(chat_eval_filter(r, n->b, &raw, &v));
        r->scope = back;
    }
    return n->kind == NODE_BLOCK ? chat_assign(r, r->scope, n->a, &v)
                                 : chat_put_value(r, &r->out, &v);
}

static enum err_code exec_with(struct chat_run *r, const struct chat_node *n)
{
    struct chat_scope *s;
    struct chat_value v;
    CHAT_TRY(chat_scope_enter(r, n->frame, r->scope, &s));
    CHAT_TRY(chat_scope_load(r, s));
    for (size_t i = 0; i < n->list.n; i++) {
        CHAT_TRY(chat_eval(r, n->list2.v[i], &v));
        CHAT_TRY(chat_assign(r, s, n->list.v[i], &v));
    }
    return exec_in(r, &n->list3, s);
}

static enum err_code macro_new(struct chat_run *r, const struct chat_node *n, const char *name,
                               struct chat_value *out)
{
    struct chat_macro *m = chat_alloc(r, sizeof *m);
    if (!m)
        return chat_nomem(r);
    *m = (struct chat_macro){n, r->scope, name};
    *out = (struct chat_value){.type = CHAT_MACRO, .u.macro = m};
    return ERR_OK;
}

static enum err_code exec_macro(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    CHAT_TRY(macro_new(r, n, chat_text(&r->t->names.v[n->a->name].u.s), &v));
    return chat_assign(r, r->scope, n->a, &v);
}

static enum err_code exec_caller(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value caller, fn, v;
    struct chat_args args;
    CHAT_TRY(macro_new(r, n, "caller", &caller));
    CHAT_TRY(chat_eval(r, n->b->a, &fn));
    CHAT_TRY(chat_eval_args(r, n->b->call, &caller, &args));
    r->line = n->line;
    CHAT_TRY(chat_call(r, &fn, &args, &v));
    return chat_put_value(r, &r->out, &v);
}

static enum err_code exec_generation(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value fn = {0}, v;
    const struct chat_args args = {0};
    CHAT_TRY(macro_new(r, n, "generation", &fn));
    CHAT_TRY(chat_macro_call(r, fn.u.macro, &args, &v));
    return chat_put_value(r, &r->out, &v);
}

static enum err_code exec_one(struct chat_run *r, const struct chat_node *n)
{
    struct chat_value v;
    switch (n->kind) {
    case NODE_DATA:
        return chat_put_str(r, &r->out, &n->value.u.s);
    case NODE_OUTPUT:
        CHAT_TRY(chat_eval(r, n->a, &v));
        return chat_put_value(r, &r->out, &v);
    case NODE_IF:
        return exec_if(r, n);
    case NODE_FOR:
        return exec_for(r, n);
    case NODE_SET:
        return exec_set(r, n);
    case NODE_BLOCK:
    case NODE_FILTERED:
        return exec_block(r, n);
    case NODE_MACRO:
        return exec_macro(r, n);
    case NODE_CALLER:
        return exec_caller(r, n);
    case NODE_GENERATION:
        return exec_generation(r, n);
    case NODE_WITH:
        return exec_with(r, n);
    case NODE_BREAK:
        r->flow = FLOW_BREAK;
        return ERR_OK;
    case NODE_CONTINUE:
        r->flow = FLOW_CONTINUE;
        return ERR_OK;
    default:
        return chat_fail(r, "value where a statement is expected");
    }
}

enum err_code chat_exec(struct chat_run *r, const struct chat_nodes *body)
{
    for (size_t i = 0; i < body->n && r->flow == FLOW_NONE; i++) {
        r->line = body->v[i]->line;
        CHAT_TRY(chat_step(r, 0));
        CHAT_TRY(chat_enter(r));
        CHAT_TRY(exec_one(r, body->v[i]));
        chat_leave(r);
    }
    return ERR_OK;
}

/* Takes a keyword argument away; NULL: not there. */
static const struct chat_value *take_keyword(const struct chat_args *args, bool *used,
                                             const struct chat_str *name)
{
    for (size_t i = 0; i < args->n_kw; i++) {
        if (!used[i] && chat_str_same(&args->kw[i].name.u.s, name)) {
            used[i] = true;
            return &args->kw[i].value;
        }
    }
    return NULL;
}

static enum err_code bind_rest(struct chat_run *r, const struct chat_macro *m,
                               const struct chat_args *args, bool *used, struct chat_scope *s)
{
    const struct chat_node *n = m->node;
    const struct chat_frame *f = n->frame;
    struct chat_value rest;
    if (n->accepts_caller) {
        struct chat_value key;
        CHAT_TRY(chat_str_new(r, "caller", 6, 0, &key));
        const struct chat_value *caller = take_keyword(args, used, &key.u.s);
        s->v[f->caller_slot] = caller ? *caller : chat_undef("caller");
    }
    CHAT_TRY(chat_dict_new(r, &rest));
    for (size_t i = 0; i < args->n_kw; i++) {
        if (used[i])
            continue;
        if (!n->accepts_kwargs)
            return chat_fail(r, "macro '%s' takes no keyword argument '%.*s'", m->name,
                             (int)MIN2(args->kw[i].name.u.s.len, 60),
                             chat_text(&args->kw[i].name.u.s));
        CHAT_TRY(chat_dict_set(r, rest.u.dict, args->kw[i].name, args->kw[i].value));
    }
    if (n->accepts_kwargs)
        s->v[f->kwargs_slot] = rest;
    if (!n->accepts_varargs && args->n > n->list.n)
        return chat_fail(r, "macro '%s' takes at most %zu arguments, found %zu", m->name, n->list.n,
                         args->n);
    if (!n->accepts_varargs)
        return ERR_OK;
    CHAT_TRY(chat_list_new(r, 0, &rest));
    for (size_t i = n->list.n; i < args->n; i++)
        CHAT_TRY(chat_list_push(r, rest.u.list, args->v[i]));
    rest.type = CHAT_TUPLE;
    s->v[f->varargs_slot] = rest;
    return ERR_OK;
}

static enum err_code bind_macro(struct chat_run *r, const struct chat_macro *m,
                                const struct chat_args *args, struct chat_scope *s)
{
    const struct chat_node *n = m->node;
    bool *used = chat_alloc(r, args->n_kw + 1);
    if (!used)
        return chat_nomem(r);
    for (size_t i = 0; i < n->list.n; i++) {
        const struct chat_node *p = n->list.v[i];
        s->v[p->slot] = (struct chat_value){0};
        if (i < args->n) {
            s->v[p->slot] = args->v[i];
            continue;
        }
        const struct chat_value *v = take_keyword(args, used, &r->t->names.v[p->name].u.s);
        if (v)
            s->v[p->slot] = *v;
    }
    CHAT_TRY(bind_rest(r, m, args, used, s));
    CHAT_TRY(chat_scope_load(r, s));
    size_t plain = n->list.n - n->list2.n;
    for (size_t i = 0; i < n->list.n; i++) {
        struct chat_value *v = &s->v[n->list.v[i]->slot];
        if (v->type != CHAT_MISSING)
            continue;
        if (i < plain)
            *v = chat_undef(chat_text(&r->t->names.v[n->list.v[i]->name].u.s));
        else
            CHAT_TRY(chat_eval(r, n->list2.v[i - plain], v));
    }
    return ERR_OK;
}

enum err_code chat_macro_call(struct chat_run *r, const struct chat_macro *m,
                              const struct chat_args *args, struct chat_value *out)
{
    struct chat_scope *s, *back = r->scope;
    CHAT_TRY(chat_enter(r));
    CHAT_TRY(chat_scope_enter(r, m->node->frame, m->scope, &s));
    r->scope = s;
    CHAT_TRY(bind_macro(r, m, args, s));
    CHAT_TRY(capture(r, &m->node->list3, s, out));
    r->scope = back;
    chat_leave(r);
    return ERR_OK;
}

static enum err_code loop_length(struct chat_run *r, struct chat_loop *l, int64_t *out)
{
    if (l->length < 0) {
        int64_t rest;
        CHAT_TRY(chat_iter_count(r, l->iter, &rest));
        l->length = rest + l->index0 + 1 + (l->after.type != CHAT_MISSING);
    }
    *out = l->length;
    return ERR_OK;
}

static enum err_code loop_peek(struct chat_run *r, struct chat_loop *l, struct chat_value *out)
{
    if (l->after.type == CHAT_MISSING)
        CHAT_TRY(chat_iter_next(r, l->iter, &l->after));
    *out = l->after;
    return ERR_OK;
}

static enum err_code loop_cycle(struct chat_run *r, const struct chat_value *self,
                                const struct chat_args *args, struct chat_value *out)
{
    if (args->n == 0 || args->n_kw)
        return chat_fail(r, "cycle: nothing to cycle through");
    *out = args->v[(size_t)self->u.loop->index0 % args->n];
    return ERR_OK;
}

static enum err_code loop_changed(struct chat_run *r, const struct chat_value *self,
                                  const struct chat_args *args, struct chat_value *out)
{
    struct chat_loop *l = self->u.loop;
    struct chat_value now, last = {.type = CHAT_LIST, .u.list = l->last_changed};
    bool same = false;
    CHAT_TRY(chat_list_new(r, args->n, &now));
    for (size_t i = 0; i < args->n; i++)
        CHAT_TRY(chat_list_push(r, now.u.list, args->v[i]));
    if (l->has_last_changed)
        CHAT_TRY(chat_equal(r, &last, &now, &same));
    l->has_last_changed = true;
    l->last_changed = now.u.list;
    *out = chat_bool(!same);
    return ERR_OK;
}

static enum err_code loop_neighbour(struct chat_value v, const char *hint, struct chat_value *out)
{
    *out = v.type == CHAT_MISSING ? chat_undef(hint) : v;
    return ERR_OK;
}

enum err_code chat_loop_attr(struct chat_run *r, const struct chat_value *loop,
                             const struct chat_str *name, struct chat_value *out)
{
    struct chat_loop *l = loop->u.loop;
    struct chat_method m = {.self = *loop, .name = "loop"};
    struct chat_value v;
    int64_t n;
    if (chat_str_is(name, "index0") || chat_str_is(name, "index")) {
        *out = chat_int(l->index0 + chat_str_is(name, "index"));
    } else if (chat_str_is(name, "first")) {
        *out = chat_bool(l->index0 == 0);
    } else if (chat_str_is(name, "last")) {
        CHAT_TRY(loop_peek(r, l, &v));
        *out = chat_bool(v.type == CHAT_MISSING);
    } else if (chat_str_is(name, "length")) {
        CHAT_TRY(loop_length(r, l, &n));
        *out = chat_int(n);
    } else if (chat_str_is(name, "revindex") || chat_str_is(name, "revindex0")) {
        CHAT_TRY(loop_length(r, l, &n));
        *out = chat_int(n - l->index0 - chat_str_is(name, "revindex0"));
    } else if (chat_str_is(name, "previtem")) {
        return loop_neighbour(l->before, "there is no previous item", out);
    } else if (chat_str_is(name, "nextitem")) {
        CHAT_TRY(loop_peek(r, l, &v));
        return loop_neighbour(v, "there is no next item", out);
    } else if (chat_str_is(name, "depth") || chat_str_is(name, "depth0")) {
        *out = chat_int(chat_str_is(name, "depth"));
    } else if (chat_str_is(name, "cycle") || chat_str_is(name, "changed")) {
        m.fn = chat_str_is(name, "cycle") ? loop_cycle : loop_changed;
        struct chat_method *copy = chat_alloc(r, sizeof *copy);
        if (!copy)
            return chat_nomem(r);
        *copy = m;
        *out = (struct chat_value){.type = CHAT_METHOD, .u.method = copy};
    }
    return ERR_OK;
}
