/* chat_parse.c: statements of a template, from tokens to the tree.
 *
 * Owns tags and blocks; expressions are chat_expr.c's. Nesting is bounded by CHAT_NEST_MAX, so the
 * recursion here and in every later pass is bounded too. Tags that need other templates (include,
 * import, extends, block) and recursive loops are refused by name.
 */
#include "infer/chat_private.h"

static enum err_code parse_body(struct chat_parser *p, const char *const *ends,
                                struct chat_nodes *out);

enum err_code chat_node_new(struct chat_parser *p, enum chat_kind kind, int line,
                            struct chat_node **out)
{
    struct chat_node *n = chat_alloc(p->r, sizeof *n);
    if (!n)
        return chat_nomem(p->r);
    n->kind = kind;
    n->line = line;
    *out = n;
    return ERR_OK;
}

static int highest(const struct chat_nodes *l, int h)
{
    for (size_t i = 0; i < l->n; i++)
        h = MAX2(h, l->v[i]->depth);
    return h;
}

enum err_code chat_node_close(struct chat_parser *p, struct chat_node *n)
{
    int h = 0;
    const struct chat_node *kids[] = {n->a, n->b, n->c, n->call ? n->call->star : NULL,
                                      n->call ? n->call->star2 : NULL};
    for (size_t i = 0; i < ARRAY_LEN(kids); i++) {
        if (kids[i])
            h = MAX2(h, kids[i]->depth);
    }
    h = highest(&n->list, h);
    h = highest(&n->list2, h);
    h = highest(&n->list3, h);
    if (n->call) {
        h = highest(&n->call->pos, h);
        h = highest(&n->call->kw, h);
    }
    n->depth = h + 1;
    if (n->depth > CHAT_TREE_MAX) {
        p->r->line = n->line;
        return chat_fail(p->r, "expression is more than %d operations deep", CHAT_TREE_MAX);
    }
    return ERR_OK;
}

enum err_code chat_nodes_push(struct chat_run *r, struct chat_nodes *l, struct chat_node *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct chat_node **more = chat_array(r, cap, sizeof *more);
        if (!more)
            return chat_nomem(r);
        if (l->n)
            memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return ERR_OK;
}

enum err_code chat_intern(struct chat_parser *p, const struct chat_value *name, int *id)
{
    const struct chat_value *hit;
    CHAT_TRY(chat_dict_get(p->r, p->ids, name, &hit));
    if (hit) {
        *id = (int)hit->u.i;
        return ERR_OK;
    }
    if (p->t->names.n == CHAT_NAMES_MAX)
        return chat_fail(p->r, "more than %d variable names", CHAT_NAMES_MAX);
    *id = (int)p->t->names.n;
    CHAT_TRY(chat_list_push(p->r, &p->t->names, *name));
    return chat_dict_set(p->r, p->ids, *name, chat_int(*id));
}

bool chat_at_name(const struct chat_parser *p, const char *name)
{
    return p->at->type == TOKEN_NAME && chat_str_is(&p->at->value.u.s, name);
}

bool chat_at_op(const struct chat_parser *p, int op)
{
    return p->at->type == TOKEN_OP && p->at->op == op;
}

bool chat_take_op(struct chat_parser *p, int op)
{
    bool is = chat_at_op(p, op);
    p->at += is;
    return is;
}

bool chat_take_name(struct chat_parser *p, const char *name)
{
    bool is = chat_at_name(p, name);
    p->at += is;
    return is;
}

static const char *op_text(int op, char one[2])
{
    switch (op) {
    case OP_POW:
        return "**";
    case OP_FLOORDIV:
        return "//";
    case OP_EQ:
        return "==";
    case OP_NE:
        return "!=";
    case OP_LE:
        return "<=";
    case OP_GE:
        return ">=";
    default:
        one[0] = (char)op;
        one[1] = '\0';
        return one;
    }
}

enum err_code chat_unexpected(struct chat_parser *p, const char *wanted)
{
    char one[2];
    const struct chat_token *t = p->at;
    p->r->line = t->line;
    switch (t->type) {
    case TOKEN_EOF:
        return chat_fail(p->r, "template ends where %s is expected", wanted);
    case TOKEN_NAME:
    case TOKEN_CONST_STR:
        return chat_fail(p->r, "found '%.*s', expected %s", (int)MIN2(t->value.u.s.len, 60),
                         chat_text(&t->value.u.s), wanted);
    case TOKEN_OP:
        return chat_fail(p->r, "found '%s', expected %s", op_text(t->op, one), wanted);
    case TOKEN_VAR_END:
        return chat_fail(p->r, "found '}}', expected %s", wanted);
    case TOKEN_BLOCK_END:
        return chat_fail(p->r, "found '%%}', expected %s", wanted);
    default:
        return chat_fail(p->r, "expected %s", wanted);
    }
}

enum err_code chat_expect_op(struct chat_parser *p, int op, const char *what)
{
    return chat_take_op(p, op) ? ERR_OK : chat_unexpected(p, what);
}

static enum err_code expect_block_end(struct chat_parser *p)
{
    if (p->at->type != TOKEN_BLOCK_END)
        return chat_unexpected(p, "'%}'");
    p->at++;
    return ERR_OK;
}

/* Checks and marks a target. */
static enum err_code make_target(struct chat_parser *p, struct chat_node *n)
{
    p->r->line = n->line;
    switch (n->kind) {
    case NODE_NSREF:
        return ERR_OK;
    case NODE_TUPLE:
        for (size_t i = 0; i < n->list.n; i++)
            CHAT_TRY(make_target(p, n->list.v[i]));
        return ERR_OK;
    case NODE_NAME:
        n->store = true;
        if (p->fors && chat_str_is(&p->t->names.v[n->name].u.s, "loop"))
            return chat_fail(p->r, "can't assign to the special loop variable");
        return ERR_OK;
    default:
        return chat_fail(p->r, "can't assign to this expression");
    }
}

static enum err_code parse_target(struct chat_parser *p, bool ns, const char *stop,
                                  struct chat_node **out)
{
    CHAT_TRY(
        chat_parse_tuple(p, (struct chat_tuple_how){.simple = true, .ns = ns, .stop = stop}, out));
    return make_target(p, *out);
}

static enum err_code parse_param_name(struct chat_parser *p, struct chat_node **out)
{
    if (p->at->type != TOKEN_NAME)
        return chat_unexpected(p, "a name");
    CHAT_TRY(chat_parse_name_const(p, out));
    if ((*out)->kind != NODE_NAME)
        return chat_fail(p->r, "can't assign to a constant");
    (*out)->store = true;
    return ERR_OK;
}

static enum err_code parse_for(struct chat_parser *p, struct chat_node *n)
{
    static const char *const body_ends[] = {"endfor", "else", NULL};
    static const char *const else_ends[] = {"endfor", NULL};
    p->fors++;
    CHAT_TRY(parse_target(p, false, "in", &n->a));
    if (!chat_take_name(p, "in"))
        return chat_unexpected(p, "'in'");
    CHAT_TRY(chat_parse_tuple(p, (struct chat_tuple_how){.stop = "recursive"}, &n->b));
    if (chat_take_name(p, "if"))
        CHAT_TRY(chat_parse_expr(p, true, &n->c));
    if (chat_at_name(p, "recursive"))
        return chat_fail(p->r, "recursive loops are not supported");
    p->loops++;
    CHAT_TRY(parse_body(p, body_ends, &n->list));
    p->loops--;
    if (chat_take_name(p, "else"))
        CHAT_TRY(parse_body(p, else_ends, &n->list2));
    p->at++;
    p->fors--;
    return ERR_OK;
}

static enum err_code parse_if(struct chat_parser *p, struct chat_node *first)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    struct chat_node *n = first;
    for (;;) {
        CHAT_TRY(chat_parse_tuple(p, (struct chat_tuple_how){0}, &n->a));
        CHAT_TRY(parse_body(p, ends, &n->list));
        if (!chat_take_name(p, "elif"))
            break;
        CHAT_TRY(chat_node_close(p, n));
        CHAT_TRY(chat_node_new(p, NODE_IF, p->at->line, &n));
        CHAT_TRY(chat_nodes_push(p->r, &first->list2, n));
    }
    if (n != first)
        CHAT_TRY(chat_node_close(p, n));
    if (chat_take_name(p, "else"))
        CHAT_TRY(parse_body(p, last, &first->list3));
    p->at++;
    return ERR_OK;
}

static enum err_code parse_set(struct chat_parser *p, struct chat_node *n)
{
    static const char *const ends[] = {"endset", NULL};
    CHAT_TRY(parse_target(p, true, NULL, &n->a));
    if (chat_take_op(p, '='))
        return chat_parse_tuple(p, (struct chat_tuple_how){.cond = true}, &n->b);
    n->kind = NODE_BLOCK;
    CHAT_TRY(chat_parse_filters(p, NULL, false, &n->b));
    CHAT_TRY(parse_body(p, ends, &n->list));
    p->at++;
    return ERR_OK;
}

/* The parameters of a macro or call block, at '('. */
static enum err_code parse_signature(struct chat_parser *p, struct chat_node *n)
{
    CHAT_TRY(chat_expect_op(p, '(', "'('"));
    while (!chat_at_op(p, ')')) {
        struct chat_node *name, *value;
        if (n->list.n)
            CHAT_TRY(chat_expect_op(p, ',', "','"));
        CHAT_TRY(parse_param_name(p, &name));
        for (size_t i = 0; i < n->list.n; i++) {
            if (n->list.v[i]->name == name->name)
                return chat_fail(p->r, "duplicate parameter");
        }
        if (chat_take_op(p, '=')) {
            CHAT_TRY(chat_parse_expr(p, true, &value));
            CHAT_TRY(chat_nodes_push(p->r, &n->list2, value));
        } else if (n->list2.n) {
            return chat_fail(p->r, "parameter without a default after one with a default");
        }
        CHAT_TRY(chat_nodes_push(p->r, &n->list, name));
    }
    p->at++;
    return ERR_OK;
}

/* A body that becomes a function of its own: break and continue cannot leave it. */
static enum err_code parse_function_body(struct chat_parser *p, const char *end,
                                         struct chat_node *n)
{
    const char *const ends[] = {end, NULL};
    int loops = p->loops;
    p->loops = 0;
    CHAT_TRY(parse_body(p, ends, &n->list3));
    p->loops = loops;
    p->at++;
    return ERR_OK;
}

static enum err_code parse_macro(struct chat_parser *p, struct chat_node *n)
{
    CHAT_TRY(parse_param_name(p, &n->a));
    CHAT_TRY(parse_signature(p, n));
    return parse_function_body(p, "endmacro", n);
}

static enum err_code parse_call_block(struct chat_parser *p, struct chat_node *n)
{
    if (chat_at_op(p, '('))
        CHAT_TRY(parse_signature(p, n));
    CHAT_TRY(chat_parse_expr(p, true, &n->b));
    if (n->b->kind != NODE_CALL)
        return chat_fail(p->r, "call block without a call");
    return parse_function_body(p, "endcall", n);
}

static enum err_code parse_filter_block(struct chat_parser *p, struct chat_node *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    CHAT_TRY(chat_parse_filters(p, NULL, true, &n->b));
    CHAT_TRY(parse_body(p, ends, &n->list));
    p->at++;
    return ERR_OK;
}

static enum err_code parse_with(struct chat_parser *p, struct chat_node *n)
{
    static const char *const ends[] = {"endwith", NULL};
    while (p->at->type != TOKEN_BLOCK_END) {
        struct chat_node *target, *value;
        if (n->list.n)
            CHAT_TRY(chat_expect_op(p, ',', "','"));
        CHAT_TRY(parse_target(p, false, NULL, &target));
        CHAT_TRY(chat_expect_op(p, '=', "'='"));
        CHAT_TRY(chat_parse_expr(p, true, &value));
        CHAT_TRY(chat_nodes_push(p->r, &n->list, target));
        CHAT_TRY(chat_nodes_push(p->r, &n->list2, value));
    }
    CHAT_TRY(parse_body(p, ends, &n->list3));
    p->at++;
    return ERR_OK;
}

static enum err_code parse_generation(struct chat_parser *p, struct chat_node *n)
{
    return parse_function_body(p, "endgeneration", n);
}

static enum err_code parse_jump(struct chat_parser *p, struct chat_node *n)
{
    if (p->loops)
        return ERR_OK;
    p->r->line = n->line;
    return chat_fail(p->r, "%s outside a loop", n->kind == NODE_BREAK ? "break" : "continue");
}

static enum err_code parse_print(struct chat_parser *p, struct chat_node *n)
{
    return chat_parse_tuple(p, (struct chat_tuple_how){.cond = true}, &n->a);
}

static const struct {
    const char *tag;
    enum chat_kind kind;
    enum err_code (*parse)(struct chat_parser *p, struct chat_node *n);
} tags[] = {
    {"for", NODE_FOR, parse_for},
    {"if", NODE_IF, parse_if},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALLER, parse_call_block},
    {"filter", NODE_FILTERED, parse_filter_block},
    {"with", NODE_WITH, parse_with},
    {"generation", NODE_GENERATION, parse_generation},
    {"break", NODE_BREAK, parse_jump},
    {"continue", NODE_CONTINUE, parse_jump},
    {"print", NODE_OUTPUT, parse_print},
};

static enum err_code parse_tag(struct chat_parser *p, struct chat_node **out)
{
    if (p->at->type != TOKEN_NAME)
        return chat_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) {
        if (!chat_at_name(p, tags[i].tag))
            continue;
        CHAT_TRY(chat_node_new(p, tags[i].kind, p->at->line, out));
        p->at++;
        CHAT_TRY(tags[i].parse(p, *out));
        CHAT_TRY(chat_node_close(p, *out));
        return expect_block_end(p);
    }
    p->r->line = p->at->line;
    return chat_fail(p->r, "unknown or unsupported tag '%.*s'", (int)MIN2(p->at->value.u.s.len, 60),
                     chat_text(&p->at->value.u.s));
}

static enum err_code parse_item(struct chat_parser *p, struct chat_node **out)
{
    int line = p->at->line;
    switch (p->at->type) {
    case TOKEN_DATA:
        CHAT_TRY(chat_node_new(p, NODE_DATA, line, out));
        (*out)->value = p->at->value;
        p->at++;
        return ERR_OK;
    case TOKEN_VAR_BEGIN:
        p->at++;
        CHAT_TRY(chat_node_new(p, NODE_OUTPUT, line, out));
        CHAT_TRY(chat_parse_tuple(p, (struct chat_tuple_how){.cond = true}, &(*out)->a));
        if (p->at->type != TOKEN_VAR_END)
            return chat_unexpected(p, "'}}'");
        p->at++;
        return chat_node_close(p, *out);
    default:
        return chat_unexpected(p, "text or a tag");
    }
}

/* Statements up to one of `ends` (NULL: the end of the template), which stays the next token. */
static enum err_code parse_list(struct chat_parser *p, const char *const *ends,
                                struct chat_nodes *out)
{
    while (p->at->type != TOKEN_EOF) {
        struct chat_node *n;
        if (p->at->type != TOKEN_BLOCK_BEGIN) {
            CHAT_TRY(parse_item(p, &n));
        } else {
            p->at++;
            for (size_t i = 0; ends && ends[i]; i++) {
                if (chat_at_name(p, ends[i]))
                    return ERR_OK;
            }
            CHAT_TRY(parse_tag(p, &n));
        }
        CHAT_TRY(chat_nodes_push(p->r, out, n));
    }
    if (!ends)
        return ERR_OK;
    p->r->line = p->at->line;
    return chat_fail(p->r, "template ends where '%s' is expected", ends[0]);
}

static enum err_code parse_body(struct chat_parser *p, const char *const *ends,
                                struct chat_nodes *out)
{
    chat_take_op(p, ':');
    CHAT_TRY(expect_block_end(p));
    if (p->nest >= CHAT_NEST_MAX)
        return chat_fail(p->r, "blocks nested more than %d deep", CHAT_NEST_MAX);
    p->nest++;
    CHAT_TRY(parse_list(p, ends, out));
    p->nest--;
    return ERR_OK;
}

enum err_code chat_parse(struct chat_run *r, const struct chat_token *tokens,
                         struct chat_template *t)
{
    struct chat_value ids;
    CHAT_TRY(chat_dict_new(r, &ids));
    struct chat_parser p = {.r = r, .at = tokens, .t = t, .ids = ids.u.dict};
    return parse_list(&p, NULL, &t->body);
}
