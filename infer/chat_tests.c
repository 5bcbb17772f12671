/* chat_tests.c: what may stand behind `is`. */
#include "infer/chat_private.h"

#define TEST_ARGS                                                                                  \
    struct chat_run *r, const struct chat_value *in, const struct chat_args *args, bool *out

/* The tests of a type need no argument and cannot fail: a bit for each. */
static bool is_type(const char *name, const struct chat_value *v)
{
    static const struct {
        const char *name;
        uint32_t types;
    } sets[] = {
        {"defined", ~(1u << CHAT_UNDEF)},
        {"undefined", 1u << CHAT_UNDEF},
        {"none", 1u << CHAT_NONE},
        {"boolean", 1u << CHAT_BOOL},
        {"integer", 1u << CHAT_INT},
        {"float", 1u << CHAT_FLOAT},
        {"number", 1u << CHAT_BOOL | 1u << CHAT_INT | 1u << CHAT_FLOAT},
        {"string", 1u << CHAT_STR},
        {"mapping", 1u << CHAT_DICT},
        {"sequence", 1u << CHAT_UNDEF | 1u << CHAT_STR | 1u << CHAT_LIST | 1u << CHAT_TUPLE |
                         1u << CHAT_DICT | 1u << CHAT_RANGE},
        {"callable", 1u << CHAT_UNDEF | 1u << CHAT_MACRO | 1u << CHAT_FUNC | 1u << CHAT_METHOD |
                         1u << CHAT_JOINER},
    };
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        if (strcmp(sets[i].name, name) == 0)
            return (sets[i].types >> v->type) & 1;
    }
    return false;
}

static enum err_code t_true(TEST_ARGS)
{
    (void)args;
    (void)r;
    *out = in->type == CHAT_BOOL && in->u.b;
    return ERR_OK;
}

static enum err_code t_false(TEST_ARGS)
{
    (void)args;
    (void)r;
    *out = in->type == CHAT_BOOL && !in->u.b;
    return ERR_OK;
}

static enum err_code t_iterable(TEST_ARGS)
{
    (void)args;
    (void)r;
    *out = chat_iterable(in);
    return ERR_OK;
}

static enum err_code t_escaped(TEST_ARGS)
{
    (void)args;
    (void)r;
    *out = chat_is_str(in) && in->safe;
    return ERR_OK;
}

static enum err_code remainder_is(struct chat_run *r, const struct chat_value *in,
                                  const struct chat_value *by, int64_t want, bool *out)
{
    struct chat_value rest, expected = chat_int(want);
    CHAT_TRY(chat_binary(r, '%', in, by, &rest));
    return chat_equal(r, &rest, &expected, out);
}

static enum err_code t_odd(TEST_ARGS)
{
    struct chat_value two = chat_int(2);
    (void)args;
    return remainder_is(r, in, &two, 1, out);
}

static enum err_code t_even(TEST_ARGS)
{
    struct chat_value two = chat_int(2);
    (void)args;
    return remainder_is(r, in, &two, 0, out);
}

static enum err_code t_divisibleby(TEST_ARGS)
{
    return remainder_is(r, in, &args->v[0], 0, out);
}

static enum err_code class_is(struct chat_run *r, const struct chat_value *in, enum chat_class c,
                              bool *out)
{
    struct chat_value text;
    CHAT_TRY(chat_to_str(r, in, &text));
    CHAT_TRY(chat_step(r, text.u.s.len));
    *out = chat_class(&text.u.s, c);
    return ERR_OK;
}

static enum err_code t_lower(TEST_ARGS)
{
    (void)args;
    return class_is(r, in, CLASS_LOWER, out);
}

static enum err_code t_upper(TEST_ARGS)
{
    (void)args;
    return class_is(r, in, CLASS_UPPER, out);
}

/* Identity: of objects the object's, of small values their equality within one type. */
static enum err_code t_sameas(TEST_ARGS)
{
    const struct chat_value *other = &args->v[0];
    *out = false;
    if (in->type != other->type)
        return ERR_OK;
    switch (in->type) {
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
        *out = in->u.list == other->u.list;
        return ERR_OK;
    case CHAT_UNDEF:
        return ERR_OK;
    default:
        return chat_equal(r, in, other, out);
    }
}

static enum err_code t_in(TEST_ARGS)
{
    return chat_compare(r, OP_IN, in, &args->v[0], out);
}

static enum err_code t_eq(TEST_ARGS)
{
    return chat_compare(r, OP_EQ, in, &args->v[0], out);
}

static enum err_code t_ne(TEST_ARGS)
{
    return chat_compare(r, OP_NE, in, &args->v[0], out);
}

static enum err_code t_lt(TEST_ARGS)
{
    return chat_compare(r, '<', in, &args->v[0], out);
}

static enum err_code t_le(TEST_ARGS)
{
    return chat_compare(r, OP_LE, in, &args->v[0], out);
}

static enum err_code t_gt(TEST_ARGS)
{
    return chat_compare(r, '>', in, &args->v[0], out);
}

static enum err_code t_ge(TEST_ARGS)
{
    return chat_compare(r, OP_GE, in, &args->v[0], out);
}

static enum err_code t_filter(TEST_ARGS)
{
    (void)args;
    if (in->type == CHAT_LIST || in->type == CHAT_DICT)
        return chat_fail(r, "a %s is no name of a filter", chat_type_name(in));
    *out = chat_is_str(in) && chat_filter_find(&in->u.s);
    return ERR_OK;
}

static enum err_code t_test(TEST_ARGS)
{
    (void)args;
    if (in->type == CHAT_LIST || in->type == CHAT_DICT)
        return chat_fail(r, "a %s is no name of a test", chat_type_name(in));
    *out = chat_is_str(in) && chat_test_find(&in->u.s);
    return ERR_OK;
}

/* fn NULL: one of is_type. The others take one argument from `first_with_arg` on. */
static const struct chat_test tests[] = {
    {"defined", NULL},
    {"undefined", NULL},
    {"none", NULL},
    {"boolean", NULL},
    {"integer", NULL},
    {"float", NULL},
    {"number", NULL},
    {"string", NULL},
    {"mapping", NULL},
    {"sequence", NULL},
    {"callable", NULL},
    {"true", t_true},
    {"false", t_false},
    {"iterable", t_iterable},
    {"escaped", t_escaped},
    {"odd", t_odd},
    {"even", t_even},
    {"lower", t_lower},
    {"upper", t_upper},
    {"filter", t_filter},
    {"test", t_test},
    {"divisibleby", t_divisibleby},
    {"sameas", t_sameas},
    {"in", t_in},
    {"==", t_eq},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"!=", t_ne},
    {"ne", t_ne},
    {"<", t_lt},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"<=", t_le},
    {"le", t_le},
    {">", t_gt},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {">=", t_ge},
    {"ge", t_ge},
};

const struct chat_test *chat_test_find(const struct chat_str *name)
{
    for (size_t i = 0; i < ARRAY_LEN(tests); i++) {
        if (chat_str_is(name, tests[i].name))
            return &tests[i];
    }
    return NULL;
}

static bool wants_argument(const struct chat_test *t)
{
    const struct chat_test *first = tests;
    while (first->fn != t_divisibleby)
        first++;
    return t >= first;
}

enum err_code chat_test_call(struct chat_run *r, const struct chat_test *t,
                             const struct chat_value *in, const struct chat_args *args, bool *out)
{
    size_t want = wants_argument(t);
    if (args->n != want || args->n_kw)
        return chat_fail(r, "test '%s': %zu arguments, expected %zu", t->name, args->n + args->n_kw,
                         want);
    if (t->fn)
        return t->fn(r, in, args, out);
    *out = is_type(t->name, in);
    return ERR_OK;
}
