/* chat_args.c: arguments to parameters, for everything that is built in. */
#include "infer/chat_private.h"

static bool next_name(const char **spec, const char **name, size_t *len, bool *required)
{
    while (**spec == ' ')
        ++*spec;
    if (!**spec)
        return false;
    *name = *spec;
    *len = strcspn(*spec, " !");
    *spec += *len;
    *required = **spec == '!';
    *spec += *required;
    return true;
}

enum err_code chat_bind(struct chat_run *r, const struct chat_args *args, const char *what,
                        const char *spec, struct chat_value *out)
{
    const char *name, *at = spec;
    size_t len, n = 0, used = 0;
    bool required;
    while (next_name(&at, &name, &len, &required)) {
        out[n] = (struct chat_value){0};
        if (n < args->n)
            out[n] = args->v[n];
        for (size_t i = 0; i < args->n_kw && *name != '-'; i++) {
            const struct chat_str *kw = &args->kw[i].name.u.s;
            if (kw->len != len || memcmp(chat_text(kw), name, len) != 0)
                continue;
            if (n < args->n)
                return chat_fail(r, "%s: argument '%.*s' given twice", what, (int)len, name);
            out[n] = args->kw[i].value;
            used++;
        }
        if (required && out[n].type == CHAT_MISSING)
            return chat_fail(r, "%s: argument %zu is missing", what, n + 1);
        n++;
    }
    if (args->n > n)
        return chat_fail(r, "%s: %zu arguments, at most %zu", what, args->n, n);
    if (used < args->n_kw)
        return chat_fail(r, "%s: unknown keyword argument", what);
    return ERR_OK;
}

enum err_code chat_arg_int(struct chat_run *r, const struct chat_value *v, const char *what,
                           int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (v->type == CHAT_MISSING)
        return ERR_OK;
    if (v->type != CHAT_INT && v->type != CHAT_BOOL)
        return chat_fail(r, "%s: found a %s, expected an integer", what, chat_type_name(v));
    *out = v->type == CHAT_BOOL ? v->u.b : v->u.i;
    return ERR_OK;
}

enum err_code chat_arg_str(struct chat_run *r, const struct chat_value *v, const char *what,
                           struct chat_str *out)
{
    if (!chat_is_str(v))
        return chat_fail(r, "%s: found a %s, expected a string", what, chat_type_name(v));
    *out = v->u.s;
    return ERR_OK;
}
