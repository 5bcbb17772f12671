/* chat_scope.c: which variable a name means.
 *
 * Owns the compile-time half of scoping: every for, macro, set block, filter block, call block and
 * with opens a frame; `if` does not. A frame is analysed as a whole before anything in it is
 * resolved, as jinja2 does, because the outcome shows: a name that is stored somewhere in a frame
 * belongs to it from its start, and how it starts depends on what comes first.
 *   PARAMETER  set by whoever enters the frame
 *   RESOLVE    read before any store, or stored on some paths only: starts as the caller's variable
 *   ALIAS      stored here and known outside: starts as a copy of the outer one
 *   UNDEFINED  stored here first: starts undefined
 * Also owns what else needs the finished tree: filters and tests by name.
 */
#include "infer/chat_private.h"

/* The symbols of one frame along one path; branches of an if copy and merge them. */
struct path {
    struct chat_run *r;
    struct chat_frame *f;
    struct chat_sym *syms;
    size_t n;
};

struct place {
    int up, slot;
};

static enum err_code resolve_list(struct chat_run *r, struct chat_frame *f, struct chat_nodes *l,
                                  bool soft);
static enum err_code resolve(struct chat_run *r, struct chat_frame *f, struct chat_node *n,
                             bool soft);
static enum err_code analyze(struct path *p, const struct chat_node *n);

static enum err_code frame_new(struct chat_run *r, struct chat_frame *parent,
                               struct chat_frame **out)
{
    struct chat_frame *f = chat_alloc(r, sizeof *f);
    if (!f)
        return chat_nomem(r);
    f->parent = parent;
    f->loop_slot = f->caller_slot = f->kwargs_slot = f->varargs_slot = -1;
    *out = f;
    return ERR_OK;
}

static bool find_in(const struct chat_frame *f, int name, int up, struct place *at)
{
    for (; f; f = f->parent, up++) {
        for (size_t i = 0; i < f->n; i++) {
            if (f->syms[i].name == name && f->syms[i].ref) {
                *at = (struct place){up, (int)i};
                return true;
            }
        }
    }
    return false;
}

/* The symbol of a name in this frame, made when it is new. */
static enum err_code sym_of(struct path *p, int name, struct chat_sym **out)
{
    size_t i = 0;
    CHAT_TRY(chat_step(p->r, p->n * 4));
    while (i < p->n && p->syms[i].name != name)
        i++;
    if (i == p->n) {
        /* Slots are numbered in the frame, so that they mean the same on every path. */
        size_t slot = 0;
        while (slot < p->f->n && p->f->syms[slot].name != name)
            slot++;
        size_t cap = MAX2(p->f->cap, (size_t)8);
        while (cap <= slot)
            cap *= 2;
        if (cap > p->f->cap) {
            struct chat_sym *more = chat_array(p->r, cap, sizeof *more);
            if (!more)
                return chat_nomem(p->r);
            if (p->f->n)
                memcpy(more, p->f->syms, p->f->n * sizeof *more);
            p->f->syms = more;
            p->f->cap = cap;
        }
        struct chat_sym *grown = chat_array(p->r, slot + 1, sizeof *grown);
        if (!grown)
            return chat_nomem(p->r);
        for (size_t k = 0; k <= slot; k++)
            grown[k] = k < p->n
                           ? p->syms[k]
                           : (struct chat_sym){.name = k < p->f->n ? p->f->syms[k].name : name};
        if (slot == p->f->n)
            p->f->syms[p->f->n++] = (struct chat_sym){.name = name};
        p->syms = grown;
        p->n = slot + 1;
        i = slot;
    }
    *out = &p->syms[i];
    return ERR_OK;
}

static enum err_code declare(struct path *p, int name, int *slot)
{
    struct chat_sym *s;
    CHAT_TRY(sym_of(p, name, &s));
    s->ref = s->store = true;
    s->load = LOAD_PARAMETER;
    if (slot)
        *slot = (int)(s - p->syms);
    return ERR_OK;
}

static enum err_code store(struct path *p, int name)
{
    struct chat_sym *s;
    struct place at;
    CHAT_TRY(sym_of(p, name, &s));
    s->store = true;
    if (s->ref)
        return ERR_OK;
    s->ref = true;
    s->load = LOAD_UNDEFINED;
    if (find_in(p->f->parent, name, 1, &at)) {
        s->load = LOAD_ALIAS;
        s->up = at.up;
        s->slot = at.slot;
    }
    return ERR_OK;
}

static enum err_code load(struct path *p, int name)
{
    struct place at;
    for (size_t i = 0; i < p->n; i++) {
        if (p->syms[i].name == name && p->syms[i].ref)
            return ERR_OK;
    }
    CHAT_TRY(chat_step(p->r, p->n * 4));
    if (find_in(p->f->parent, name, 1, &at))
        return ERR_OK;
    struct chat_sym *s;
    CHAT_TRY(sym_of(p, name, &s));
    s->ref = true;
    s->load = LOAD_RESOLVE;
    return ERR_OK;
}

static enum err_code analyze_list(struct path *p, const struct chat_nodes *l)
{
    for (size_t i = 0; i < l->n; i++)
        CHAT_TRY(analyze(p, l->v[i]));
    return ERR_OK;
}

static enum err_code branch(const struct path *p, const struct chat_nodes *l, struct path *out)
{
    *out = *p;
    out->syms = chat_array(p->r, p->n + 1, sizeof *out->syms);
    if (!out->syms)
        return chat_nomem(p->r);
    if (p->n)
        memcpy(out->syms, p->syms, p->n * sizeof *out->syms);
    return analyze_list(out, l);
}

/* What any branch stored and the path before it had not is stored on some paths only. */
static enum err_code merge(struct path *p, const struct path branches[3])
{
    size_t n = 0;
    for (int b = 0; b < 3; b++)
        n = MAX2(n, branches[b].n);
    CHAT_TRY(chat_step(p->r, n * 16));
    struct chat_sym *out = chat_array(p->r, n + 1, sizeof *out);
    if (!out)
        return chat_nomem(p->r);
    for (size_t i = 0; i < n; i++) {
        out[i] = i < p->n ? p->syms[i] : (struct chat_sym){.name = p->f->syms[i].name};
        bool before = out[i].store, stored = before;
        for (int b = 0; b < 3; b++) {
            if (i >= branches[b].n || !branches[b].syms[i].ref)
                continue;
            stored = stored || branches[b].syms[i].store;
            out[i] = branches[b].syms[i];
        }
        out[i].store = stored;
        if (!stored || before)
            continue;
        struct place at;
        out[i].load = LOAD_RESOLVE;
        if (find_in(p->f->parent, out[i].name, 1, &at)) {
            out[i].load = LOAD_ALIAS;
            out[i].up = at.up;
            out[i].slot = at.slot;
        }
    }
    p->syms = out;
    p->n = n;
    return ERR_OK;
}

static enum err_code analyze_if(struct path *p, const struct chat_node *n)
{
    struct path branches[3];
    CHAT_TRY(analyze(p, n->a));
    CHAT_TRY(branch(p, &n->list, &branches[0]));
    CHAT_TRY(branch(p, &n->list2, &branches[1]));
    CHAT_TRY(branch(p, &n->list3, &branches[2]));
    return merge(p, branches);
}

static enum err_code analyze_call(struct path *p, const struct chat_call *call)
{
    CHAT_TRY(analyze_list(p, &call->pos));
    CHAT_TRY(analyze_list(p, &call->kw));
    CHAT_TRY(call->star ? analyze(p, call->star) : ERR_OK);
    return call->star2 ? analyze(p, call->star2) : ERR_OK;
}

/* The names that a node of this frame uses; what opens a frame of its own is looked at by its
 * outer parts only. */
static enum err_code analyze(struct path *p, const struct chat_node *n)
{
    switch (n->kind) {
    case NODE_NAME:
        return n->store ? store(p, n->name) : load(p, n->name);
    case NODE_NSREF:
        return load(p, n->name);
    case NODE_IF:
        return analyze_if(p, n);
    case NODE_MACRO:
        return store(p, n->a->name);
    case NODE_SET:
        CHAT_TRY(analyze(p, n->b));
        return analyze(p, n->a);
    case NODE_FOR:
    case NODE_CALLER:
    case NODE_FILTERED:
        return analyze(p, n->b);
    case NODE_WITH:
        return analyze_list(p, &n->list2);
    case NODE_BLOCK:
        return analyze(p, n->a);
    case NODE_GENERATION:
        return ERR_OK;
    default:
        break;
    }
    const struct chat_node *kids[] = {n->a, n->b, n->c};
    for (size_t i = 0; i < ARRAY_LEN(kids); i++) {
        if (kids[i])
            CHAT_TRY(analyze(p, kids[i]));
    }
    CHAT_TRY(analyze_list(p, &n->list));
    CHAT_TRY(analyze_list(p, &n->list2));
    return n->call ? analyze_call(p, n->call) : ERR_OK;
}

static enum err_code declare_target(struct path *p, const struct chat_node *n)
{
    if (n->kind == NODE_NAME)
        return declare(p, n->name, NULL);
    for (size_t i = 0; i < n->list.n; i++)
        CHAT_TRY(declare_target(p, n->list.v[i]));
    return ERR_OK;
}

static void settle(struct path *p)
{
    p->f->syms = p->syms;
    p->f->n = p->f->cap = p->n;
}

static bool mentioned_in(const struct chat_nodes *l, int name);

/* Is the name read anywhere in here, inner frames included? */
static bool mentioned(const struct chat_node *n, int name)
{
    if (!n)
        return false;
    if (n->kind == NODE_NAME)
        return !n->store && n->name == name;
    if (n->call && (mentioned_in(&n->call->pos, name) || mentioned_in(&n->call->kw, name) ||
                    mentioned(n->call->star, name) || mentioned(n->call->star2, name)))
        return true;
    return mentioned(n->a, name) || mentioned(n->b, name) || mentioned(n->c, name) ||
           mentioned_in(&n->list, name) || mentioned_in(&n->list2, name) ||
           mentioned_in(&n->list3, name);
}

static bool mentioned_in(const struct chat_nodes *l, int name)
{
    for (size_t i = 0; i < l->n; i++) {
        if (mentioned(l->v[i], name))
            return true;
    }
    return false;
}

static int name_id(const struct chat_run *r, const char *name)
{
    const struct chat_list *names = &r->t->names;
    for (size_t i = 0; i < names->n; i++) {
        if (chat_str_is(&names->v[i].u.s, name))
            return (int)i;
    }
    return -1;
}

static enum err_code resolve_for(struct chat_run *r, struct chat_frame *f, struct chat_node *n,
                                 bool soft)
{
    int loop = name_id(r, "loop");
    CHAT_TRY(resolve(r, f, n->b, soft));
    CHAT_TRY(frame_new(r, f, &n->frame));
    struct path p = {.r = r, .f = n->frame};
    CHAT_TRY(declare_target(&p, n->a));
    if (loop >= 0 && mentioned_in(&n->list, loop))
        CHAT_TRY(declare(&p, loop, &n->frame->loop_slot));
    CHAT_TRY(analyze_list(&p, &n->list));
    settle(&p);
    CHAT_TRY(resolve(r, n->frame, n->a, false));
    CHAT_TRY(resolve_list(r, n->frame, &n->list, false));

    /* The condition has its own frame; the target's names have the same slots in both, since both
     * declare them first. */
    if (n->c) {
        CHAT_TRY(frame_new(r, f, &n->test_frame));
        p = (struct path){.r = r, .f = n->test_frame};
        CHAT_TRY(declare_target(&p, n->a));
        CHAT_TRY(analyze(&p, n->c));
        settle(&p);
        CHAT_TRY(resolve(r, n->test_frame, n->c, false));
    }
    CHAT_TRY(frame_new(r, f, &n->else_frame));
    p = (struct path){.r = r, .f = n->else_frame};
    CHAT_TRY(analyze_list(&p, &n->list2));
    settle(&p);
    return resolve_list(r, n->else_frame, &n->list2, false);
}

/* caller, kwargs and varargs exist in a macro when its body reads them. */
static enum err_code declare_special(struct path *p, const struct chat_node *n, const char *name,
                                     int *slot, bool *accepts)
{
    int id = name_id(p->r, name);
    if (id < 0 || !mentioned_in(&n->list3, id))
        return ERR_OK;
    for (size_t i = 0; i < n->list.n; i++) {
        if (n->list.v[i]->name == id) {
            p->r->line = n->line;
            if (slot == &p->f->caller_slot)
                return chat_fail(p->r, "a parameter named caller is not supported");
            return ERR_OK;
        }
    }
    *accepts = true;
    return declare(p, id, slot);
}

static enum err_code resolve_function(struct chat_run *r, struct chat_frame *f, struct chat_node *n)
{
    CHAT_TRY(frame_new(r, f, &n->frame));
    struct path p = {.r = r, .f = n->frame};
    for (size_t i = 0; i < n->list.n; i++)
        CHAT_TRY(declare(&p, n->list.v[i]->name, NULL));
    CHAT_TRY(analyze_list(&p, &n->list2));
    CHAT_TRY(analyze_list(&p, &n->list3));
    CHAT_TRY(declare_special(&p, n, "caller", &n->frame->caller_slot, &n->accepts_caller));
    CHAT_TRY(declare_special(&p, n, "kwargs", &n->frame->kwargs_slot, &n->accepts_kwargs));
    CHAT_TRY(declare_special(&p, n, "varargs", &n->frame->varargs_slot, &n->accepts_varargs));
    CHAT_TRY(analyze_list(&p, &n->list3));
    settle(&p);
    CHAT_TRY(resolve_list(r, n->frame, &n->list, false));
    CHAT_TRY(resolve_list(r, n->frame, &n->list2, false));
    return resolve_list(r, n->frame, &n->list3, false);
}

static enum err_code resolve_block(struct chat_run *r, struct chat_frame *f, struct chat_node *n,
                                   bool soft)
{
    CHAT_TRY(frame_new(r, f, &n->frame));
    struct path p = {.r = r, .f = n->frame};
    if (n->kind == NODE_WITH)
        CHAT_TRY(analyze_list(&p, &n->list));
    if (n->kind == NODE_FILTERED)
        CHAT_TRY(analyze(&p, n->b));
    CHAT_TRY(analyze_list(&p, n->kind == NODE_WITH ? &n->list3 : &n->list));
    settle(&p);
    if (n->kind == NODE_WITH) {
        CHAT_TRY(resolve_list(r, f, &n->list2, soft));
        CHAT_TRY(resolve_list(r, n->frame, &n->list, false));
        return resolve_list(r, n->frame, &n->list3, false);
    }
    if (n->kind == NODE_BLOCK)
        CHAT_TRY(resolve(r, f, n->a, soft));
    CHAT_TRY(n->b ? resolve(r, n->frame, n->b, false) : ERR_OK);
    return resolve_list(r, n->frame, &n->list, false);
}

static enum err_code resolve_name(struct chat_run *r, struct chat_frame *f, struct chat_node *n)
{
    struct place at;
    r->line = n->line;
    /* jinja2 does not look into the arguments of a set block's filter, so that a name that is read
     * only there has no frame; it refuses the template, and so does this. */
    if (!find_in(f, n->name, 0, &at))
        return chat_fail(r, "name in the filter of a set block that nothing around it mentions");
    n->up = at.up;
    n->slot = at.slot;
    return ERR_OK;
}

/* An unknown filter or test is an error at once, except under an if or an inline if: there it is
 * one only when it is reached (impl stays NULL). */
static enum err_code resolve_impl(struct chat_run *r, struct chat_node *n, bool soft)
{
    bool filter = n->kind == NODE_FILTER;
    const struct chat_str *name = &n->value.u.s;
    r->line = n->line;
    if (filter) {
        const struct chat_filter *impl = chat_filter_find(name);
        n->impl = impl;
        if (impl && !impl->fn)
            return chat_fail(r, "filter '%s' is not supported", impl->name);
    } else {
        n->impl = chat_test_find(name);
    }
    if (!n->impl && !soft)
        return chat_fail(r, "no %s named '%.*s'", filter ? "filter" : "test",
                         (int)MIN2(name->len, 60), chat_text(name));
    return ERR_OK;
}

static enum err_code resolve_call(struct chat_run *r, struct chat_frame *f, struct chat_call *call,
                                  bool soft)
{
    CHAT_TRY(resolve_list(r, f, &call->pos, soft));
    CHAT_TRY(resolve_list(r, f, &call->kw, soft));
    CHAT_TRY(call->star ? resolve(r, f, call->star, soft) : ERR_OK);
    return call->star2 ? resolve(r, f, call->star2, soft) : ERR_OK;
}

static enum err_code resolve(struct chat_run *r, struct chat_frame *f, struct chat_node *n,
                             bool soft)
{
    CHAT_TRY(chat_step(r, 0));
    switch (n->kind) {
    case NODE_NAME:
    case NODE_NSREF:
        return resolve_name(r, f, n);
    case NODE_FOR:
        return resolve_for(r, f, n, soft);
    case NODE_MACRO:
        CHAT_TRY(resolve_name(r, f, n->a));
        return resolve_function(r, f, n);
    case NODE_CALLER:
        CHAT_TRY(resolve(r, f, n->b, soft));
        return resolve_function(r, f, n);
    case NODE_GENERATION:
        return resolve_function(r, f, n);
    case NODE_BLOCK:
    case NODE_FILTERED:
    case NODE_WITH:
        return resolve_block(r, f, n, soft);
    case NODE_IF:
    case NODE_COND:
        soft = true;
        break;
    case NODE_FILTER:
    case NODE_TEST:
        CHAT_TRY(resolve_impl(r, n, soft));
        break;
    default:
        break;
    }
    struct chat_node *kids[] = {n->a, n->b, n->c};
    for (size_t i = 0; i < ARRAY_LEN(kids); i++) {
        if (kids[i])
            CHAT_TRY(resolve(r, f, kids[i], soft));
    }
    CHAT_TRY(resolve_list(r, f, &n->list, soft));
    CHAT_TRY(resolve_list(r, f, &n->list2, soft));
    CHAT_TRY(resolve_list(r, f, &n->list3, soft));
    return n->call ? resolve_call(r, f, n->call, soft) : ERR_OK;
}

static enum err_code resolve_list(struct chat_run *r, struct chat_frame *f, struct chat_nodes *l,
                                  bool soft)
{
    for (size_t i = 0; i < l->n; i++)
        CHAT_TRY(resolve(r, f, l->v[i], soft));
    return ERR_OK;
}

enum err_code chat_scope_resolve(struct chat_run *r, struct chat_template *t)
{
    CHAT_TRY(frame_new(r, NULL, &t->root));
    struct path p = {.r = r, .f = t->root};
    CHAT_TRY(analyze_list(&p, &t->body));
    settle(&p);
    return resolve_list(r, t->root, &t->body, false);
}
