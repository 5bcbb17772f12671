/* chat_expr.c: expressions of a template, from tokens to the tree.
 *
 * Owns precedence, literals, calls, filters and tests, by the grammar of docs/formats.md (8.4):
 * inline if, or, and, not, comparisons, + -, ~, * / // %, **, then sign, primary, postfixes,
 * filters and tests. Two bounds: nesting (recursion here) and height (recursion later).
 */
#include "infer/chat_private.h"

static enum err_code parse_unary(struct chat_parser *p, bool filters, struct chat_node **out);
static enum err_code parse_primary(struct chat_parser *p, bool ns, struct chat_node **out);

static enum err_code nest(struct chat_parser *p)
{
    if (p->nest >= CHAT_NEST_MAX) {
        p->r->line = p->at->line;
        return chat_fail(p->r, "nested more than %d deep", CHAT_NEST_MAX);
    }
    p->nest++;
    return ERR_OK;
}

static enum err_code make(struct chat_parser *p, enum chat_kind kind, struct chat_node *a,
                          struct chat_node *b, struct chat_node **out)
{
    struct chat_node *n;
    CHAT_TRY(chat_node_new(p, kind, a ? a->line : p->at->line, &n));
    n->a = a;
    n->b = b;
    *out = n;
    return chat_node_close(p, n);
}

static enum err_code make_const(struct chat_parser *p, struct chat_value v, struct chat_node **out)
{
    CHAT_TRY(chat_node_new(p, NODE_CONST, p->at->line, out));
    (*out)->value = v;
    return ERR_OK;
}

/* A name, or one of the constants that look like one. */
enum err_code chat_parse_name_const(struct chat_parser *p, struct chat_node **out)
{
    static const struct {
        const char *name;
        struct chat_value value;
    } consts[] = {
        {"true", {.type = CHAT_BOOL, .u.b = true}},
        {"True", {.type = CHAT_BOOL, .u.b = true}},
        {"false", {.type = CHAT_BOOL}},
        {"False", {.type = CHAT_BOOL}},
        {"none", {.type = CHAT_NONE}},
        {"None", {.type = CHAT_NONE}},
    };
    for (size_t i = 0; i < ARRAY_LEN(consts); i++) {
        if (chat_at_name(p, consts[i].name)) {
            CHAT_TRY(make_const(p, consts[i].value, out));
            p->at++;
            return ERR_OK;
        }
    }
    CHAT_TRY(chat_node_new(p, NODE_NAME, p->at->line, out));
    CHAT_TRY(chat_intern(p, &p->at->value, &(*out)->name));
    p->at++;
    return ERR_OK;
}

static enum err_code parse_strings(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(make_const(p, p->at->value, out));
    p->at++;
    struct chat_buf *b = NULL;
    if (p->at->type != TOKEN_CONST_STR)
        return ERR_OK;
    CHAT_TRY(chat_put_str(p->r, &b, &(*out)->value.u.s));
    for (; p->at->type == TOKEN_CONST_STR; p->at++)
        CHAT_TRY(chat_put_str(p->r, &b, &p->at->value.u.s));
    if (b)
        b->cap = b->used;
    (*out)->value = chat_buf_value(b);
    return ERR_OK;
}

static enum err_code parse_list(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *item;
    CHAT_TRY(chat_node_new(p, NODE_LIST, p->at->line, out));
    p->at++;
    while (!chat_at_op(p, ']')) {
        if ((*out)->list.n)
            CHAT_TRY(chat_expect_op(p, ',', "','"));
        if (chat_at_op(p, ']'))
            break;
        CHAT_TRY(chat_parse_expr(p, true, &item));
        CHAT_TRY(chat_nodes_push(p->r, &(*out)->list, item));
    }
    p->at++;
    return chat_node_close(p, *out);
}

static enum err_code parse_dict(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *key, *value;
    CHAT_TRY(chat_node_new(p, NODE_DICT, p->at->line, out));
    p->at++;
    while (!chat_at_op(p, '}')) {
        if ((*out)->list.n)
            CHAT_TRY(chat_expect_op(p, ',', "','"));
        if (chat_at_op(p, '}'))
            break;
        CHAT_TRY(chat_parse_expr(p, true, &key));
        CHAT_TRY(chat_expect_op(p, ':', "':'"));
        CHAT_TRY(chat_parse_expr(p, true, &value));
        CHAT_TRY(chat_nodes_push(p->r, &(*out)->list, key));
        CHAT_TRY(chat_nodes_push(p->r, &(*out)->list2, value));
    }
    p->at++;
    return chat_node_close(p, *out);
}

static enum err_code parse_nsref(struct chat_parser *p, struct chat_node *n)
{
    p->at++;
    if (p->at->type != TOKEN_NAME)
        return chat_unexpected(p, "a name");
    n->kind = NODE_NSREF;
    n->value = p->at->value;
    p->at++;
    return ERR_OK;
}

static enum err_code parse_primary(struct chat_parser *p, bool ns, struct chat_node **out)
{
    switch (p->at->type) {
    case TOKEN_NAME:
        CHAT_TRY(chat_parse_name_const(p, out));
        if (ns && (*out)->kind == NODE_NAME && chat_at_op(p, '.'))
            return parse_nsref(p, *out);
        return ERR_OK;
    case TOKEN_CONST_STR:
        return parse_strings(p, out);
    case TOKEN_CONST_INT:
    case TOKEN_CONST_FLOAT:
        CHAT_TRY(make_const(p, p->at->value, out));
        p->at++;
        return ERR_OK;
    case TOKEN_OP:
        break;
    default:
        return chat_unexpected(p, "an expression");
    }
    CHAT_TRY(nest(p));
    if (chat_take_op(p, '(')) {
        CHAT_TRY(chat_parse_tuple(p, (struct chat_tuple_how){.cond = true, .parens = true}, out));
        CHAT_TRY(chat_expect_op(p, ')', "')'"));
    } else if (chat_at_op(p, '[')) {
        CHAT_TRY(parse_list(p, out));
    } else if (chat_at_op(p, '{')) {
        CHAT_TRY(parse_dict(p, out));
    } else {
        return chat_unexpected(p, "an expression");
    }
    p->nest--;
    return ERR_OK;
}

static bool at_tuple_end(const struct chat_parser *p, const char *stop)
{
    return p->at->type == TOKEN_VAR_END || p->at->type == TOKEN_BLOCK_END || chat_at_op(p, ')') ||
           (stop && chat_at_name(p, stop));
}

enum err_code chat_parse_tuple(struct chat_parser *p, struct chat_tuple_how how,
                               struct chat_node **out)
{
    struct chat_nodes items = {0};
    struct chat_node *item;
    bool tuple = false;
    int line = p->at->line;
    while (!at_tuple_end(p, how.stop)) {
        if (how.simple)
            CHAT_TRY(parse_primary(p, how.ns, &item));
        else
            CHAT_TRY(chat_parse_expr(p, how.cond, &item));
        CHAT_TRY(chat_nodes_push(p->r, &items, item));
        if (!chat_take_op(p, ','))
            break;
        tuple = true;
    }
    if (!tuple && items.n) {
        *out = items.v[0];
        return ERR_OK;
    }
    if (!tuple && !how.parens)
        return chat_unexpected(p, "an expression");
    CHAT_TRY(chat_node_new(p, NODE_TUPLE, line, out));
    (*out)->list = items;
    return chat_node_close(p, *out);
}

static enum err_code parse_keyword(struct chat_parser *p, struct chat_call *call)
{
    struct chat_node *value;
    for (size_t i = 0; i < call->names.n; i++) {
        if (chat_str_same(&call->names.v[i].u.s, &p->at->value.u.s))
            return chat_fail(p->r, "keyword argument repeated");
    }
    CHAT_TRY(chat_list_push(p->r, &call->names, p->at->value));
    p->at += 2;
    CHAT_TRY(chat_parse_expr(p, true, &value));
    return chat_nodes_push(p->r, &call->kw, value);
}

static enum err_code parse_argument(struct chat_parser *p, struct chat_call *call)
{
    struct chat_node *value;
    p->r->line = p->at->line;
    if (chat_take_op(p, '*')) {
        if (call->star || call->star2)
            return chat_fail(p->r, "invalid order of arguments");
        return chat_parse_expr(p, true, &call->star);
    }
    if (chat_take_op(p, OP_POW)) {
        if (call->star2)
            return chat_fail(p->r, "invalid order of arguments");
        return chat_parse_expr(p, true, &call->star2);
    }
    if (p->at->type == TOKEN_NAME && p->at[1].type == TOKEN_OP && p->at[1].op == '=') {
        if (call->star2)
            return chat_fail(p->r, "invalid order of arguments");
        return parse_keyword(p, call);
    }
    if (call->star || call->star2 || call->kw.n)
        return chat_fail(p->r, "positional argument after keyword arguments");
    CHAT_TRY(chat_parse_expr(p, true, &value));
    return chat_nodes_push(p->r, &call->pos, value);
}

/* At '('. */
static enum err_code parse_call_args(struct chat_parser *p, struct chat_call **out)
{
    struct chat_call *call = chat_alloc(p->r, sizeof *call);
    if (!call)
        return chat_nomem(p->r);
    CHAT_TRY(nest(p));
    p->at++;
    bool first = true;
    while (!chat_at_op(p, ')')) {
        if (!first)
            CHAT_TRY(chat_expect_op(p, ',', "','"));
        first = false;
        if (chat_at_op(p, ')'))
            break;
        CHAT_TRY(parse_argument(p, call));
    }
    p->at++;
    p->nest--;
    *out = call;
    return ERR_OK;
}

static enum err_code no_args(struct chat_parser *p, struct chat_call **out)
{
    *out = chat_alloc(p->r, sizeof **out);
    return *out ? ERR_OK : chat_nomem(p->r);
}

static enum err_code parse_call(struct chat_parser *p, struct chat_node **node)
{
    struct chat_node *n;
    CHAT_TRY(chat_node_new(p, NODE_CALL, p->at->line, &n));
    n->a = *node;
    CHAT_TRY(parse_call_args(p, &n->call));
    *node = n;
    return chat_node_close(p, n);
}

/* One item between brackets; sets a..c and says whether it was a slice. */
static enum err_code parse_bounds(struct chat_parser *p, struct chat_node *bounds[3], bool *slice)
{
    *slice = false;
    for (int i = 0; i < 3; i++) {
        if (!chat_at_op(p, ':') && !chat_at_op(p, ']') && !chat_at_op(p, ','))
            CHAT_TRY(chat_parse_expr(p, true, &bounds[i]));
        if (i == 2 || !chat_take_op(p, ':'))
            break;
        *slice = true;
    }
    return ERR_OK;
}

static enum err_code parse_brackets(struct chat_parser *p, struct chat_node **node)
{
    struct chat_node *n, *bounds[3] = {0};
    bool slice;
    CHAT_TRY(chat_node_new(p, NODE_ITEM, p->at->line, &n));
    CHAT_TRY(nest(p));
    p->at++;
    CHAT_TRY(parse_bounds(p, bounds, &slice));
    if (!slice && !bounds[0])
        return chat_unexpected(p, "a subscript");
    n->a = *node;
    n->b = bounds[0];
    if (slice) {
        n->kind = NODE_SLICE;
        CHAT_TRY(chat_nodes_push(p->r, &n->list, n->a));
        for (int i = 0; i < 3; i++) {
            if (!bounds[i])
                CHAT_TRY(make_const(p, chat_none(), &bounds[i]));
            CHAT_TRY(chat_nodes_push(p->r, &n->list, bounds[i]));
        }
        n->a = n->b = NULL;
    } else if (chat_at_op(p, ',')) {
        CHAT_TRY(chat_node_new(p, NODE_TUPLE, n->line, &n->b));
        CHAT_TRY(chat_nodes_push(p->r, &n->b->list, bounds[0]));
        while (chat_take_op(p, ',')) {
            struct chat_node *item;
            CHAT_TRY(chat_parse_expr(p, true, &item));
            CHAT_TRY(chat_nodes_push(p->r, &n->b->list, item));
        }
        CHAT_TRY(chat_node_close(p, n->b));
    }
    CHAT_TRY(chat_expect_op(p, ']', "']'"));
    p->nest--;
    *node = n;
    return chat_node_close(p, n);
}

static enum err_code parse_dot(struct chat_parser *p, struct chat_node **node)
{
    struct chat_node *n;
    CHAT_TRY(chat_node_new(p, NODE_ATTR, p->at->line, &n));
    p->at++;
    n->a = *node;
    if (p->at->type == TOKEN_NAME) {
        n->value = p->at->value;
    } else if (p->at->type == TOKEN_CONST_INT) {
        n->kind = NODE_ITEM;
        CHAT_TRY(make_const(p, p->at->value, &n->b));
    } else {
        return chat_unexpected(p, "a name or a number");
    }
    p->at++;
    *node = n;
    return chat_node_close(p, n);
}

static enum err_code parse_postfix(struct chat_parser *p, struct chat_node **node)
{
    for (;;) {
        if (chat_at_op(p, '.'))
            CHAT_TRY(parse_dot(p, node));
        else if (chat_at_op(p, '['))
            CHAT_TRY(parse_brackets(p, node));
        else if (chat_at_op(p, '('))
            CHAT_TRY(parse_call(p, node));
        else
            return ERR_OK;
    }
}

/* A dotted name of a filter or test. */
static enum err_code parse_dotted(struct chat_parser *p, struct chat_value *out)
{
    struct chat_buf *b = NULL;
    for (;;) {
        if (p->at->type != TOKEN_NAME)
            return chat_unexpected(p, "a name");
        CHAT_TRY(chat_put_str(p->r, &b, &p->at->value.u.s));
        p->at++;
        if (!chat_take_op(p, '.'))
            break;
        CHAT_TRY(chat_puts(p->r, &b, "."));
    }
    *out = chat_buf_value(b);
    return ERR_OK;
}

enum err_code chat_parse_filters(struct chat_parser *p, struct chat_node *in, bool inline_start,
                                 struct chat_node **out)
{
    while (inline_start || chat_at_op(p, '|')) {
        struct chat_node *n;
        p->at += !inline_start;
        inline_start = false;
        CHAT_TRY(chat_node_new(p, NODE_FILTER, p->at->line, &n));
        CHAT_TRY(parse_dotted(p, &n->value));
        n->a = in;
        if (chat_at_op(p, '('))
            CHAT_TRY(parse_call_args(p, &n->call));
        else
            CHAT_TRY(no_args(p, &n->call));
        CHAT_TRY(chat_node_close(p, n));
        in = n;
    }
    *out = in;
    return ERR_OK;
}

/* A test's one argument may stand without parentheses. */
static bool at_bare_argument(const struct chat_parser *p)
{
    switch (p->at->type) {
    case TOKEN_NAME:
        return !chat_at_name(p, "else") && !chat_at_name(p, "or") && !chat_at_name(p, "and");
    case TOKEN_CONST_STR:
    case TOKEN_CONST_INT:
    case TOKEN_CONST_FLOAT:
        return true;
    default:
        return chat_at_op(p, '[') || chat_at_op(p, '{');
    }
}

static enum err_code parse_test(struct chat_parser *p, struct chat_node **node)
{
    struct chat_node *n, *arg;
    p->at++;
    bool negated = chat_take_name(p, "not");
    CHAT_TRY(chat_node_new(p, NODE_TEST, p->at->line, &n));
    CHAT_TRY(parse_dotted(p, &n->value));
    n->a = *node;
    if (chat_at_op(p, '(')) {
        CHAT_TRY(parse_call_args(p, &n->call));
    } else {
        CHAT_TRY(no_args(p, &n->call));
        if (at_bare_argument(p)) {
            if (chat_at_name(p, "is"))
                return chat_fail(p->r, "tests cannot be chained with 'is'");
            CHAT_TRY(parse_primary(p, false, &arg));
            CHAT_TRY(parse_postfix(p, &arg));
            CHAT_TRY(chat_nodes_push(p->r, &n->call->pos, arg));
        }
    }
    CHAT_TRY(chat_node_close(p, n));
    *node = n;
    return negated ? make(p, NODE_NOT, n, NULL, node) : ERR_OK;
}

static enum err_code parse_filters_tests(struct chat_parser *p, struct chat_node **node)
{
    for (;;) {
        if (chat_at_op(p, '|'))
            CHAT_TRY(chat_parse_filters(p, *node, false, node));
        else if (chat_at_name(p, "is"))
            CHAT_TRY(parse_test(p, node));
        else if (chat_at_op(p, '('))
            CHAT_TRY(parse_call(p, node));
        else
            return ERR_OK;
    }
}

static enum err_code parse_unary(struct chat_parser *p, bool filters, struct chat_node **out)
{
    if (chat_at_op(p, '-') || chat_at_op(p, '+')) {
        enum chat_kind kind = chat_at_op(p, '-') ? NODE_NEG : NODE_POS;
        p->at++;
        CHAT_TRY(nest(p));
        CHAT_TRY(parse_unary(p, false, out));
        p->nest--;
        CHAT_TRY(make(p, kind, *out, NULL, out));
    } else {
        CHAT_TRY(parse_primary(p, false, out));
    }
    CHAT_TRY(parse_postfix(p, out));
    return filters ? parse_filters_tests(p, out) : ERR_OK;
}

static enum err_code parse_pow(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_unary(p, true, out));
    while (chat_take_op(p, OP_POW)) {
        struct chat_node *right;
        CHAT_TRY(parse_unary(p, true, &right));
        CHAT_TRY(make(p, NODE_BINARY, *out, right, out));
        (*out)->op = OP_POW;
    }
    return ERR_OK;
}

static enum err_code parse_product(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_pow(p, out));
    while (chat_at_op(p, '*') || chat_at_op(p, '/') || chat_at_op(p, OP_FLOORDIV) ||
           chat_at_op(p, '%')) {
        struct chat_node *right;
        int op = (p->at++)->op;
        CHAT_TRY(parse_pow(p, &right));
        CHAT_TRY(make(p, NODE_BINARY, *out, right, out));
        (*out)->op = op;
    }
    return ERR_OK;
}

static enum err_code parse_concat(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *n, *item;
    CHAT_TRY(parse_product(p, out));
    if (!chat_at_op(p, '~'))
        return ERR_OK;
    CHAT_TRY(chat_node_new(p, NODE_CONCAT, (*out)->line, &n));
    CHAT_TRY(chat_nodes_push(p->r, &n->list, *out));
    while (chat_take_op(p, '~')) {
        CHAT_TRY(parse_product(p, &item));
        CHAT_TRY(chat_nodes_push(p->r, &n->list, item));
    }
    *out = n;
    return chat_node_close(p, n);
}

static enum err_code parse_sum(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_concat(p, out));
    while (chat_at_op(p, '+') || chat_at_op(p, '-')) {
        struct chat_node *right;
        int op = (p->at++)->op;
        CHAT_TRY(parse_concat(p, &right));
        CHAT_TRY(make(p, NODE_BINARY, *out, right, out));
        (*out)->op = op;
    }
    return ERR_OK;
}

/* The comparison at the cursor, taken; 0: none. */
static int take_comparison(struct chat_parser *p)
{
    static const int ops[] = {OP_EQ, OP_NE, '<', OP_LE, '>', OP_GE};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        if (chat_take_op(p, ops[i]))
            return ops[i];
    }
    if (chat_take_name(p, "in"))
        return OP_IN;
    if (chat_at_name(p, "not") && p->at[1].type == TOKEN_NAME &&
        chat_str_is(&p->at[1].value.u.s, "in")) {
        p->at += 2;
        return OP_NOT_IN;
    }
    return 0;
}

static enum err_code parse_compare(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_sum(p, out));
    struct chat_node *n = NULL;
    for (int op; (op = take_comparison(p)) != 0;) {
        struct chat_node *right, *operand;
        if (!n) {
            CHAT_TRY(chat_node_new(p, NODE_COMPARE, (*out)->line, &n));
            n->a = *out;
        }
        CHAT_TRY(parse_sum(p, &right));
        CHAT_TRY(make(p, NODE_OPERAND, right, NULL, &operand));
        operand->op = op;
        CHAT_TRY(chat_nodes_push(p->r, &n->list, operand));
    }
    if (!n)
        return ERR_OK;
    *out = n;
    return chat_node_close(p, n);
}

static enum err_code parse_not(struct chat_parser *p, struct chat_node **out)
{
    if (!chat_take_name(p, "not"))
        return parse_compare(p, out);
    CHAT_TRY(nest(p));
    CHAT_TRY(parse_not(p, out));
    p->nest--;
    return make(p, NODE_NOT, *out, NULL, out);
}

static enum err_code parse_and(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_not(p, out));
    while (chat_take_name(p, "and")) {
        struct chat_node *right;
        CHAT_TRY(parse_not(p, &right));
        CHAT_TRY(make(p, NODE_AND, *out, right, out));
    }
    return ERR_OK;
}

static enum err_code parse_or(struct chat_parser *p, struct chat_node **out)
{
    CHAT_TRY(parse_and(p, out));
    while (chat_take_name(p, "or")) {
        struct chat_node *right;
        CHAT_TRY(parse_and(p, &right));
        CHAT_TRY(make(p, NODE_OR, *out, right, out));
    }
    return ERR_OK;
}

enum err_code chat_parse_expr(struct chat_parser *p, bool cond, struct chat_node **out)
{
    CHAT_TRY(nest(p));
    CHAT_TRY(parse_or(p, out));
    while (cond && chat_take_name(p, "if")) {
        struct chat_node *n;
        CHAT_TRY(chat_node_new(p, NODE_COND, (*out)->line, &n));
        n->b = *out;
        CHAT_TRY(parse_or(p, &n->a));
        if (chat_take_name(p, "else"))
            CHAT_TRY(chat_parse_expr(p, true, &n->c));
        CHAT_TRY(chat_node_close(p, n));
        *out = n;
    }
    p->nest--;
    return ERR_OK;
}
