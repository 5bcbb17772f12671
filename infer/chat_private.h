/* chat_private.h: what the files of the chat template engine share. Not for callers.
 *
 * Owns the shapes: syntax tree, variable frames, values, and the run that carries them. Everything
 * that lives during one call (compile or render) comes from that run's arena and is never freed
 * piece by piece; values are immutable once made, namespaces, iterators and cyclers excepted.
 *
 * Marks. A string is a view (buffer, offset, length); its buffer keeps beside every byte of text
 * one byte of mark: 1 = came from the request, 0 = the template's own. Copying text copies the
 * marks, so no operation has to think about them. Buffers grow at their end only and by one owner,
 * which makes repeated `s = s + t` linear.
 */
#ifndef ASSAY_INFER_CHAT_PRIVATE_H
#define ASSAY_INFER_CHAT_PRIVATE_H

#include "common/arena.h"
#include "common/err.h"

#define CHAT_SOURCE_MAX ((size_t)1 << 20)   /* bytes of a template */
#define CHAT_NEST_MAX   150                 /* nesting of the template's text */
#define CHAT_TREE_MAX   400                 /* height of an expression */
#define CHAT_DEPTH_MAX  1200                /* nested evaluations, macro calls included */
#define CHAT_NAMES_MAX  2000                /* distinct variable names */
#define CHAT_STEPS_MAX  ((uint64_t)1 << 26) /* evaluations, plus one a 64 bytes of text moved */
#define CHAT_BYTES_MAX  ((size_t)1 << 30)   /* memory of one call */
#define CHAT_OUTPUT_MAX ((size_t)1 << 26)   /* bytes of one string */
#define CHAT_RANGE_MAX  100000              /* the sandbox's limit of range() */

#define CHAT_TRY(call)                                                                             \
    do {                                                                                           \
        enum err_code try_rc_ = (call);                                                            \
        if (try_rc_ != ERR_OK)                                                                     \
            return try_rc_;                                                                        \
    } while (0)

struct chat_run;
struct chat_node;
struct chat_value;

/* ---- values ---- */

enum chat_type {
    CHAT_MISSING, /* no argument, no variable: never seen by templates */
    CHAT_UNDEF,   /* jinja's undefined; u.hint says of what, for messages */
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT, /* 64 bits; results outside are errors */
    CHAT_FLOAT,
    CHAT_STR,
    CHAT_LIST,
    CHAT_TUPLE,
    CHAT_DICT,
    CHAT_RANGE,
    CHAT_VIEW, /* keys(), values(), items() of a dict */
    CHAT_ITER, /* a generator: consumed once */
    CHAT_SPACE,
    CHAT_MACRO,
    CHAT_FUNC,
    CHAT_METHOD,
    CHAT_LOOP,
    CHAT_CYCLER,
    CHAT_JOINER
};

struct chat_buf {
    char *data;
    uint8_t *marks;
    size_t used, cap;
};

struct chat_str {
    struct chat_buf *buf; /* NULL when empty */
    size_t off, len;
};

struct chat_value {
    enum chat_type type;
    bool safe; /* a string that the safe filter marked as HTML */
    union {
        bool b;
        int64_t i;
        double f;
        struct chat_str s;
        struct chat_list *list;
        struct chat_dict *dict; /* also the attributes of a namespace */
        struct chat_range *range;
        struct chat_view *view;
        struct chat_iter *iter;
        struct chat_macro *macro;
        const struct chat_func *func;
        struct chat_method *method;
        struct chat_loop *loop;
        struct chat_cycler *cycler;
        const char *hint;
    } u;
};

struct chat_list {
    struct chat_value *v;
    size_t n, cap;
};

struct chat_pair {
    struct chat_value k, v;
    uint64_t hash;
};

/* Insertion order in p; index is open addressing over p, entries + 1, built when n > 8. */
struct chat_dict {
    struct chat_pair *p;
    size_t n, cap;
    uint32_t *index;
    size_t n_index;
};

struct chat_range {
    int64_t start, step, n;
};

enum chat_view_kind { CHAT_VIEW_KEYS, CHAT_VIEW_VALUES, CHAT_VIEW_ITEMS };
struct chat_view {
    const struct chat_dict *dict;
    enum chat_view_kind kind;
};

struct chat_kw {
    struct chat_value name, value;
};

struct chat_args {
    struct chat_value *v;
    size_t n;
    struct chat_kw *kw;
    size_t n_kw;
};

struct chat_cycler {
    struct chat_list *items; /* of a joiner: one, the separator */
    size_t pos;              /* of a joiner: 1 once used */
};

/* args->v[0] is the filtered or tested value. */
typedef enum err_code (*chat_filter_fn)(struct chat_run *r, const struct chat_value *in,
                                        const struct chat_args *args, struct chat_value *out);
typedef enum err_code (*chat_test_fn)(struct chat_run *r, const struct chat_value *in,
                                      const struct chat_args *args, bool *out);

struct chat_filter {
    const char *name;
    chat_filter_fn fn; /* NULL: jinja has it, this does not */
};

struct chat_test {
    const char *name;
    chat_test_fn fn;
};

struct chat_func {
    const char *name;
    enum err_code (*fn)(struct chat_run *r, const struct chat_args *args, struct chat_value *out);
};

struct chat_method {
    struct chat_value self;
    const char *name;
    enum err_code (*fn)(struct chat_run *r, const struct chat_value *self,
                        const struct chat_args *args, struct chat_value *out);
};

/* ---- syntax tree ---- */

enum chat_kind {
    NODE_CONST,
    NODE_NAME,
    NODE_NSREF, /* a target `ns.attr` */
    NODE_TUPLE,
    NODE_LIST,
    NODE_DICT, /* list: keys, list2: values */
    NODE_COND, /* a ? b : c, c may be NULL */
    NODE_AND,
    NODE_OR,
    NODE_NOT,
    NODE_NEG,
    NODE_POS,
    NODE_BINARY, /* op */
    NODE_CONCAT,
    NODE_COMPARE, /* a, then list of NODE_OPERAND (op, a) */
    NODE_OPERAND,
    NODE_ATTR, /* a.value */
    NODE_ITEM, /* a[b] */
    NODE_SLICE,
    NODE_CALL,
    NODE_FILTER, /* a may be NULL: the captured block */
    NODE_TEST,
    NODE_DATA,
    NODE_OUTPUT,
    NODE_IF,         /* a, list; list2: elif nodes, list3: else */
    NODE_FOR,        /* a target, b iterable, c condition, list body, list2 else */
    NODE_SET,        /* a = b */
    NODE_BLOCK,      /* set block: a target, b filter or NULL, list body */
    NODE_FILTERED,   /* filter block: b filter, list body */
    NODE_MACRO,      /* a name, list parameters, list2 defaults (of the last ones), list3 body */
    NODE_CALLER,     /* as macro, b the call */
    NODE_GENERATION, /* as macro without parameters, called at once */
    NODE_WITH,       /* list targets, list2 values, list3 body */
    NODE_BREAK,
    NODE_CONTINUE
};

/* Operators: single characters stand for themselves. */
enum chat_op { OP_POW = 256, OP_FLOORDIV, OP_EQ, OP_NE, OP_LE, OP_GE, OP_IN, OP_NOT_IN };

struct chat_nodes {
    struct chat_node **v;
    size_t n, cap;
};

struct chat_call {
    struct chat_nodes pos;
    struct chat_nodes kw; /* values; names in names */
    struct chat_list names;
    struct chat_node *star, *star2;
};

struct chat_node {
    enum chat_kind kind;
    int line, depth;
    int op;
    int name;     /* interned; NAME and NSREF */
    int up, slot; /* where the variable lives: frames outwards, index */
    bool store, accepts_caller, accepts_kwargs, accepts_varargs;
    struct chat_node *a, *b, *c;
    struct chat_nodes list, list2, list3;
    struct chat_call *call;
    struct chat_value value;
    const void *impl;                                   /* chat_filter or chat_test */
    struct chat_frame *frame, *test_frame, *else_frame; /* scopes that the node opens */
};

/* How a variable gets its value when its frame is entered. */
enum chat_load { LOAD_UNDEFINED, LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS };

struct chat_sym {
    int name;
    bool ref, store;
    enum chat_load load;
    int up, slot; /* of an alias */
};

/* The variables of one scope. */
struct chat_frame {
    struct chat_frame *parent;
    struct chat_sym *syms;
    size_t n, cap;
    int loop_slot, caller_slot, kwargs_slot, varargs_slot; /* -1: none */
};

struct chat_template {
    struct arena *arena;
    struct chat_nodes body;
    struct chat_frame *root;
    struct chat_list names; /* interned, by id */
};

/* ---- running ---- */

struct chat_scope {
    struct chat_scope *up;
    const struct chat_frame *frame;
    struct chat_value *v;
};

struct chat_macro {
    const struct chat_node *node;
    struct chat_scope *scope; /* where it was defined */
    const char *name;
};

struct chat_loop {
    struct chat_iter *iter;
    struct chat_value before, current, after; /* CHAT_MISSING: none */
    int64_t index0, length;                   /* length -1: not known yet */
    bool has_last_changed;
    struct chat_list *last_changed;
};

enum chat_flow { FLOW_NONE, FLOW_BREAK, FLOW_CONTINUE };

struct chat_run {
    struct arena *arena;
    struct err *e;
    char *free_at; /* the current small-block chunk */
    size_t free_left, bytes;
    uint64_t steps;
    int line, depth;
    enum chat_flow flow;
    const struct chat_template *t;
    struct chat_scope *scope;
    struct chat_buf *out;
    struct chat_dict *vars;
    const char *now; /* ISO date and time, NULL: not given */
};

/* chat.c */
void *chat_alloc(struct chat_run *r, size_t bytes); /* NULL: the error is set */
void *chat_array(struct chat_run *r, size_t n, size_t elem);
enum err_code chat_fail(struct chat_run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
enum err_code chat_nomem(struct chat_run *r);
enum err_code chat_step(struct chat_run *r, size_t bytes); /* counts one evaluation */
enum err_code chat_enter(struct chat_run *r);              /* depth; pair with chat_leave */
void chat_leave(struct chat_run *r);

/* chat_lex.c */
enum chat_token_type {
    TOKEN_DATA,
    TOKEN_VAR_BEGIN,
    TOKEN_VAR_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_CONST_STR,
    TOKEN_CONST_INT,
    TOKEN_CONST_FLOAT,
    TOKEN_OP,
    TOKEN_EOF
};
struct chat_token {
    enum chat_token_type type;
    int line, op;
    struct chat_value value; /* data, name and string: text */
};
enum err_code chat_lex(struct chat_run *r, const char *text, size_t len, struct chat_token **out,
                       size_t *n);

/* chat_parse.c, chat_expr.c */
struct chat_parser {
    struct chat_run *r;
    const struct chat_token *at; /* ends with TOKEN_EOF */
    int nest, loops, fors;
    struct chat_template *t;
    struct chat_dict *ids; /* name -> id */
};
enum err_code chat_parse(struct chat_run *r, const struct chat_token *tokens,
                         struct chat_template *t);
enum err_code chat_node_new(struct chat_parser *p, enum chat_kind kind, int line,
                            struct chat_node **out);
enum err_code chat_node_close(struct chat_parser *p, struct chat_node *n); /* bounds the height */
enum err_code chat_nodes_push(struct chat_run *r, struct chat_nodes *l, struct chat_node *n);
enum err_code chat_intern(struct chat_parser *p, const struct chat_value *name, int *id);
bool chat_at_name(const struct chat_parser *p, const char *name);
bool chat_at_op(const struct chat_parser *p, int op);
bool chat_take_op(struct chat_parser *p, int op);
bool chat_take_name(struct chat_parser *p, const char *name);
enum err_code chat_expect_op(struct chat_parser *p, int op, const char *what);
enum err_code chat_unexpected(struct chat_parser *p, const char *wanted);
enum err_code chat_parse_expr(struct chat_parser *p, bool cond, struct chat_node **out);

/* What parse_tuple of the grammar takes: `a`, `a, b`, and where it may stop. */
struct chat_tuple_how {
    bool simple;      /* primaries only: assignment targets */
    bool cond;        /* inline if allowed */
    bool parens;      /* inside parentheses: may be empty */
    bool ns;          /* `ns.attr` allowed */
    const char *stop; /* a name that ends it, or NULL */
};
enum err_code chat_parse_tuple(struct chat_parser *p, struct chat_tuple_how how,
                               struct chat_node **out);
enum err_code chat_parse_filters(struct chat_parser *p, struct chat_node *in, bool inline_start,
                                 struct chat_node **out);
enum err_code chat_parse_name_const(struct chat_parser *p, struct chat_node **out);

/* chat_scope.c */
enum err_code chat_scope_resolve(struct chat_run *r, struct chat_template *t);

/* chat_str.c */
static inline const char *chat_text(const struct chat_str *s)
{
    return s->buf ? s->buf->data + s->off : "";
}
bool chat_is_space(uint32_t cp);
uint32_t chat_cp_at(const char *p, size_t left, size_t *width); /* left > 0 */
size_t chat_cp_back(const char *start, const char *p);          /* width of the one before p */
size_t chat_cp_count(const struct chat_str *s);
size_t chat_cp_offset(const struct chat_str *s, size_t index); /* byte offset; len past the end */
struct chat_str chat_sub(const struct chat_str *s, size_t from, size_t to);
bool chat_str_is(const struct chat_str *s, const char *text);
bool chat_str_same(const struct chat_str *a, const struct chat_str *b);
int chat_str_order(const struct chat_str *a, const struct chat_str *b);
/* First occurrence at or after `from`; SIZE_MAX: none. */
size_t chat_find(const struct chat_str *s, const struct chat_str *what, size_t from);
size_t chat_rfind(const struct chat_str *s, const struct chat_str *what, size_t end);
enum err_code chat_buf_new(struct chat_run *r, size_t cap, struct chat_buf **out);
enum err_code chat_put(struct chat_run *r, struct chat_buf **b, const char *text, size_t n,
                       uint8_t mark);
enum err_code chat_puts(struct chat_run *r, struct chat_buf **b, const char *text);
enum err_code chat_put_str(struct chat_run *r, struct chat_buf **b, const struct chat_str *s);
enum err_code chat_put_cp(struct chat_run *r, struct chat_buf **b, uint32_t cp, uint8_t mark);
enum err_code chat_str_new(struct chat_run *r, const char *text, size_t n, uint8_t mark,
                           struct chat_value *out);
enum err_code chat_join2(struct chat_run *r, const struct chat_str *a, const struct chat_str *b,
                         struct chat_str *out);
enum err_code chat_escape(struct chat_run *r, const struct chat_value *v, struct chat_value *out);
enum err_code chat_str_reverse(struct chat_run *r, const struct chat_str *s,
                               struct chat_value *out);
struct chat_value chat_buf_value(struct chat_buf *b);
struct chat_value chat_str_value(struct chat_str s, bool safe);

/* chat_case.c */
enum chat_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_FILTER_TITLE, CASE_SWAP };
enum err_code chat_case(struct chat_run *r, const struct chat_str *s, enum chat_case how,
                        struct chat_value *out);
enum chat_class { CLASS_ALPHA, CLASS_DIGIT, CLASS_ALNUM, CLASS_SPACE, CLASS_UPPER, CLASS_LOWER };
bool chat_class(const struct chat_str *s, enum chat_class c);
bool chat_is_printable(uint32_t cp);

/* chat_value.c */
static inline struct chat_value chat_none(void)
{
    return (struct chat_value){.type = CHAT_NONE};
}
static inline struct chat_value chat_bool(bool b)
{
    return (struct chat_value){.type = CHAT_BOOL, .u.b = b};
}
static inline struct chat_value chat_int(int64_t i)
{
    return (struct chat_value){.type = CHAT_INT, .u.i = i};
}
static inline struct chat_value chat_float(double f)
{
    return (struct chat_value){.type = CHAT_FLOAT, .u.f = f};
}
static inline struct chat_value chat_undef(const char *hint)
{
    return (struct chat_value){.type = CHAT_UNDEF, .u.hint = hint};
}
static inline bool chat_is_str(const struct chat_value *v)
{
    return v->type == CHAT_STR;
}
const char *chat_type_name(const struct chat_value *v);
enum err_code chat_undef_of(struct chat_run *r, const struct chat_value *obj,
                            const struct chat_value *key, struct chat_value *out);
enum err_code chat_list_new(struct chat_run *r, size_t cap, struct chat_value *out);
enum err_code chat_list_push(struct chat_run *r, struct chat_list *l, struct chat_value v);
enum err_code chat_dict_new(struct chat_run *r, struct chat_value *out);
enum err_code chat_dict_set(struct chat_run *r, struct chat_dict *d, struct chat_value k,
                            struct chat_value v);
/* NULL in *out: no such key. An unhashable key is an error. */
enum err_code chat_dict_get(struct chat_run *r, const struct chat_dict *d,
                            const struct chat_value *k, const struct chat_value **out);
const struct chat_value *chat_dict_find(const struct chat_dict *d, const char *key);
enum err_code chat_truth(struct chat_run *r, const struct chat_value *v, bool *out);
enum err_code chat_len(struct chat_run *r, const struct chat_value *v, int64_t *out);
enum err_code chat_equal(struct chat_run *r, const struct chat_value *a, const struct chat_value *b,
                         bool *out);
/* Negative, zero, positive; an error where Python has no order. *nan: unordered. */
enum err_code chat_order(struct chat_run *r, const struct chat_value *a, const struct chat_value *b,
                         const char *op, int *out, bool *nan);
bool chat_number(const struct chat_value *v, int64_t *i, double *f, bool *is_float);

/* chat_repr.c */
enum err_code chat_put_value(struct chat_run *r, struct chat_buf **b, const struct chat_value *v);
enum err_code chat_put_repr(struct chat_run *r, struct chat_buf **b, const struct chat_value *v);
enum err_code chat_to_str(struct chat_run *r, const struct chat_value *v, struct chat_value *out);
size_t chat_float_repr(double f, char buf[40]);

/* chat_ops.c */
enum err_code chat_binary(struct chat_run *r, int op, const struct chat_value *a,
                          const struct chat_value *b, struct chat_value *out);
enum err_code chat_compare(struct chat_run *r, int op, const struct chat_value *a,
                           const struct chat_value *b, bool *out);
enum err_code chat_negate(struct chat_run *r, const struct chat_value *a, bool minus,
                          struct chat_value *out);
enum err_code chat_getattr(struct chat_run *r, const struct chat_value *obj,
                           const struct chat_value *name, struct chat_value *out);
enum err_code chat_getitem(struct chat_run *r, const struct chat_value *obj,
                           const struct chat_value *key, struct chat_value *out);
enum err_code chat_slice(struct chat_run *r, const struct chat_value *obj,
                         const struct chat_value bounds[3], struct chat_value *out);
enum err_code chat_printf_format(struct chat_run *r, const struct chat_value *fmt,
                                 const struct chat_value *arg, struct chat_value *out);

/* chat_iter.c */
enum err_code chat_iter_open(struct chat_run *r, const struct chat_value *v,
                             struct chat_iter **out);
/* CHAT_MISSING at the end. */
enum err_code chat_iter_next(struct chat_run *r, struct chat_iter *it, struct chat_value *out);
enum err_code chat_iter_list(struct chat_run *r, const struct chat_value *v,
                             struct chat_value *out); /* a fresh list */
bool chat_iterable(const struct chat_value *v);
enum err_code chat_iter_reversed(struct chat_run *r, const struct chat_value *v,
                                 struct chat_value *out);
enum chat_lazy { LAZY_SELECT, LAZY_REJECT, LAZY_SELECTATTR, LAZY_REJECTATTR, LAZY_MAP };
enum err_code chat_iter_lazy(struct chat_run *r, enum chat_lazy how, const struct chat_value *in,
                             const struct chat_args *args, struct chat_value *out);
enum err_code chat_iter_unique(struct chat_run *r, const struct chat_value *in,
                               const struct chat_value *attr, bool fold, struct chat_value *out);
enum err_code chat_iter_items(struct chat_run *r, const struct chat_value *in,
                              struct chat_value *out);
/* Items for which the condition of a for loop holds, evaluated as they are asked for. */
enum err_code chat_iter_where(struct chat_run *r, struct chat_iter *in,
                              const struct chat_node *loop, struct chat_iter **out);
/* The remaining items, which stay to be taken. */
enum err_code chat_iter_count(struct chat_run *r, struct chat_iter *it, int64_t *out);
/* jinja's attribute paths: "a.b.0". missing: used for undefined steps unless CHAT_MISSING. */
enum err_code chat_attr_path(struct chat_run *r, const struct chat_value *item,
                             const struct chat_value *path, const struct chat_value *missing,
                             struct chat_value *out);

/* chat_args.c */
#define CHAT_BIND_MAX 6
/* spec: names, a space between; '!' after one: required; '-' as name: by position only. Others
 * stay CHAT_MISSING. */
enum err_code chat_bind(struct chat_run *r, const struct chat_args *args, const char *what,
                        const char *spec, struct chat_value *out);
enum err_code chat_arg_int(struct chat_run *r, const struct chat_value *v, const char *what,
                           int64_t otherwise, int64_t *out);
enum err_code chat_arg_str(struct chat_run *r, const struct chat_value *v, const char *what,
                           struct chat_str *out);

/* chat_filters.c, chat_sequence.c, chat_tests.c, chat_methods.c, chat_globals.c */
extern const struct chat_filter chat_text_filters[], chat_sequence_filters[];
const struct chat_filter *chat_filter_find(const struct chat_str *name);
const struct chat_test *chat_test_find(const struct chat_str *name);
enum err_code chat_test_call(struct chat_run *r, const struct chat_test *t,
                             const struct chat_value *in, const struct chat_args *args, bool *out);
/* false: the type has no such method. */
bool chat_method_find(const struct chat_value *self, const struct chat_str *name,
                      struct chat_method *out);
enum err_code chat_str_join(struct chat_run *r, const struct chat_value *sep,
                            const struct chat_value *items, bool convert, struct chat_value *out);
enum err_code chat_replace(struct chat_run *r, const struct chat_str s[3], int64_t count,
                           struct chat_value *out);
enum chat_side { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };
struct chat_str chat_strip(const struct chat_str *s, const struct chat_str *chars,
                           enum chat_side side);
enum err_code chat_splitlines(struct chat_run *r, const struct chat_value *s, bool keep,
                              struct chat_value *out);
enum err_code chat_format(struct chat_run *r, const struct chat_value *fmt,
                          const struct chat_args *args, struct chat_value *out);
enum err_code chat_space_name(struct chat_run *r, const struct chat_value *name);
const struct chat_func *chat_global_find(const struct chat_str *name);
enum err_code chat_strftime(struct chat_run *r, const struct chat_value *fmt,
                            struct chat_value *out);
enum err_code chat_loop_attr(struct chat_run *r, const struct chat_value *loop,
                             const struct chat_str *name, struct chat_value *out);

/* chat_cut.c */
#define CHAT_METHOD_ARGS                                                                           \
    struct chat_run *r, const struct chat_value *self, const struct chat_args *args,               \
        struct chat_value *out
enum err_code chat_str_strip(CHAT_METHOD_ARGS);
enum err_code chat_str_lstrip(CHAT_METHOD_ARGS);
enum err_code chat_str_rstrip(CHAT_METHOD_ARGS);
enum err_code chat_str_split(CHAT_METHOD_ARGS);
enum err_code chat_str_rsplit(CHAT_METHOD_ARGS);
enum err_code chat_str_splitlines(CHAT_METHOD_ARGS);
enum err_code chat_str_partition(CHAT_METHOD_ARGS);
enum err_code chat_str_rpartition(CHAT_METHOD_ARGS);

/* chat_json.c */
enum err_code chat_tojson(struct chat_run *r, const struct chat_value *in,
                          const struct chat_args *args, struct chat_value *out);

/* chat_eval.c, chat_exec.c */
enum err_code chat_eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out);
enum err_code chat_call(struct chat_run *r, const struct chat_value *fn,
                        const struct chat_args *args, struct chat_value *out);
enum err_code chat_eval_args(struct chat_run *r, const struct chat_call *call,
                             const struct chat_value *caller, struct chat_args *out);
enum err_code chat_eval_filter(struct chat_run *r, const struct chat_node *n,
                               const struct chat_value *in, struct chat_value *out);
enum err_code chat_exec(struct chat_run *r, const struct chat_nodes *body);
enum err_code chat_macro_call(struct chat_run *r, const struct chat_macro *m,
                              const struct chat_args *args, struct chat_value *out);
enum err_code chat_scope_enter(struct chat_run *r, const struct chat_frame *f,
                               struct chat_scope *up, struct chat_scope **out);
enum err_code chat_scope_load(struct chat_run *r, struct chat_scope *s);
enum err_code chat_assign(struct chat_run *r, struct chat_scope *s, const struct chat_node *target,
                          const struct chat_value *v);

#endif
