/* opt.c: parsing of command lines by a table. The help and completion texts are in opt_help.c. */
#include "common/opt.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io_private.h"

#define NAMES_MAX 256

struct parser {
    const struct opt_cmd *cmd;
    int argc, next; /* next argument to look at */
    char **argv;
    bool *given, *help;
    struct err *e;
};

static size_t count_opts(const struct opt *opts)
{
    size_t n = 0;
    while (opts[n].type != OPT_END)
        n++;
    return n;
}

static const struct opt *find_name(const struct opt *opts, const char *name, size_t len)
{
    for (const struct opt *o = opts; o->type != OPT_END; o++) {
        if (o->type != OPT_GROUP && o->name && strlen(o->name) == len &&
            memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

static const struct opt *find_letter(const struct opt *opts, char letter)
{
    for (const struct opt *o = opts; o->type != OPT_END; o++) {
        if (o->type != OPT_GROUP && o->letter == letter)
            return o;
    }
    return NULL;
}

static enum err_code unknown_name(const struct parser *p, const char *name, size_t len)
{
    const char *names[NAMES_MAX];
    char asked[128];
    size_t n = 0;
    snprintf(asked, sizeof asked, "%.*s", (int)MIN2(len, sizeof asked - 1), name);
    names[n++] = "help";
    for (const struct opt *o = p->cmd->opts; o->type != OPT_END && n < NAMES_MAX; o++) {
        if (o->type != OPT_GROUP && o->name)
            names[n++] = o->name;
    }
    const char *near = str_nearest(asked, names, n), *no = "";
    /* "--no-verbos" is near to "--no-verbose" through the name behind "no-". */
    if (!near && str_starts(asked, "no-")) {
        near = str_nearest(asked + 3, names, n);
        const struct opt *flag = near ? find_name(p->cmd->opts, near, strlen(near)) : NULL;
        near = flag && flag->type == OPT_FLAG ? near : NULL;
        no = "no-";
    }
    if (near)
        return err_set(p->e, ERR_USAGE, "unknown option '--%s'; did you mean '--%s%s'?", asked, no,
                       near);
    return err_set(p->e, ERR_USAGE, "unknown option '--%s'; 'assay %s --help' lists the options",
                   asked, p->cmd->name);
}

static enum err_code push_item(struct opt_list *l, const char *item, struct err *e)
{
    /* Room for powers of two; the count says when it is used up. */
    if ((l->n & (l->n - 1)) == 0) {
        size_t bytes = MAX2(l->n * 2, 1) * sizeof *l->items;
        const char **items = io_fault_hit(IO_FAULT_ALLOC) ? NULL : realloc(l->items, bytes);
        if (!items)
            return io_nomem(bytes, e);
        l->items = items;
    }
    l->items[l->n++] = item;
    return ERR_OK;
}

void opt_list_free(struct opt_list *l)
{
    free(l->items);
    *l = (struct opt_list){0};
}

static bool has_range(const struct opt *o)
{
    return o->lo != 0 || o->hi != 0;
}

static enum err_code out_of_range(const struct opt *o, const char *text, struct err *e)
{
    const char *kind = o->type == OPT_INT ? "an integer" : "a number";
    if (!has_range(o))
        return err_set(e, ERR_USAGE, "option '--%s': found '%s', expected %s", o->name, text, kind);
    return err_set(e, ERR_USAGE, "option '--%s': found '%s', expected %s from %.17g to %.17g",
                   o->name, text, kind, o->lo, o->hi);
}

static enum err_code set_choice(const struct opt *o, const char *text, struct err *e)
{
    struct strbuf all = {0};
    size_t n = 0;
    for (; o->choices[n]; n++) {
        if (strcmp(o->choices[n], text) == 0) {
            *(int *)o->out = (int)n;
            strbuf_free(&all);
            return ERR_OK;
        }
        strbuf_printf(&all, "%s%s", n ? ", " : "", o->choices[n]);
    }
    const char *near = str_nearest(text, o->choices, n);
    enum err_code rc = strbuf_ok(&all, e);
    if (rc == ERR_OK)
        rc = err_set(e, ERR_USAGE, "option '--%s': found '%s', expected one of %s%s%s%s", o->name,
                     text, all.data ? all.data : "", near ? "; did you mean '" : "",
                     near ? near : "", near ? "'?" : "");
    strbuf_free(&all);
    return rc;
}

static enum err_code set_value(const struct opt *o, const char *text, struct err *e)
{
    int64_t i;
    double d;
    switch (o->type) {
    case OPT_STRING:
        *(const char **)o->out = text;
        return ERR_OK;
    case OPT_LIST:
        return push_item(o->out, text, e);
    case OPT_CHOICE:
        return set_choice(o, text, e);
    case OPT_INT:
        if (!str_to_i64(text, INT64_MIN, INT64_MAX, &i) ||
            (has_range(o) && ((double)i < o->lo || (double)i > o->hi)))
            return out_of_range(o, text, e);
        *(int64_t *)o->out = i;
        return ERR_OK;
    case OPT_DOUBLE:
        if (!str_to_double(text, &d) || (has_range(o) && (d < o->lo || d > o->hi)))
            return out_of_range(o, text, e);
        *(double *)o->out = d;
        return ERR_OK;
    case OPT_FLAG:
    case OPT_GROUP:
    case OPT_END:
        break;
    }
    return err_set(e, ERR_INTERNAL, "option '--%s' takes no value", o->name);
}

static void mark_given(const struct parser *p, const struct opt *o)
{
    if (p->given)
        p->given[o - p->cmd->opts] = true;
}

/* The argument after the option. A known option in its place means that the value was forgotten;
 * other words that start with dashes may be values. */
static enum err_code take_value(struct parser *p, const struct opt *o, const char **text)
{
    const char *next = p->next < p->argc ? p->argv[p->next] : NULL;
    bool option = next && str_starts(next, "--") &&
                  (!next[2] || find_name(p->cmd->opts, next + 2, strcspn(next + 2, "=")));
    if (!next || option)
        return err_set(p->e, ERR_USAGE, "option '--%s' needs a value: --%s %s", o->name, o->name,
                       o->arg ? o->arg : "VALUE");
    *text = next;
    p->next++;
    return ERR_OK;
}

static enum err_code parse_long(struct parser *p, const char *word)
{
    size_t len = strcspn(word, "=");
    const char *text = word[len] ? word + len + 1 : NULL;
    const struct opt *o = find_name(p->cmd->opts, word, len);
    bool on = true;
    if (!o && len > 3 && str_starts(word, "no-")) {
        o = find_name(p->cmd->opts, word + 3, len - 3);
        on = false;
        if (o && o->type != OPT_FLAG)
            o = NULL;
    }
    if (!o && len == 4 && str_starts(word, "help")) {
        *p->help = true;
        return ERR_OK;
    }
    if (!o)
        return unknown_name(p, word, len);
    mark_given(p, o);
    if (o->type == OPT_FLAG) {
        if (text)
            return err_set(p->e, ERR_USAGE, "option '--%.*s' takes no value, found '%s'", (int)len,
                           word, text);
        *(bool *)o->out = on;
        return ERR_OK;
    }
    enum err_code rc = text ? ERR_OK : take_value(p, o, &text);
    return rc == ERR_OK ? set_value(o, text, p->e) : rc;
}

/* "-vn4": flags, then at most one option with a value, which takes the rest or the next word. */
static enum err_code parse_letters(struct parser *p, const char *letters)
{
    for (const char *c = letters; *c; c++) {
        const struct opt *o = find_letter(p->cmd->opts, *c);
        if (!o && *c == 'h') {
            *p->help = true;
            continue;
        }
        if (!o)
            return err_set(p->e, ERR_USAGE,
                           "unknown option '-%c' in '-%s'; 'assay %s --help' "
                           "lists the options",
                           *c, letters, p->cmd->name);
        mark_given(p, o);
        if (o->type == OPT_FLAG) {
            *(bool *)o->out = true;
            continue;
        }
        const char *text = c[1] ? c + 1 : NULL;
        enum err_code rc = text ? ERR_OK : take_value(p, o, &text);
        return rc == ERR_OK ? set_value(o, text, p->e) : rc;
    }
    return ERR_OK;
}

static enum err_code check_count(const struct parser *p, size_t n)
{
    const struct opt_cmd *c = p->cmd;
    if (n < (size_t)c->args_min)
        return err_set(p->e, ERR_USAGE, "%zu argument%s, expected %s%d; usage: assay %s %s", n,
                       n == 1 ? "" : "s", c->args_max == c->args_min ? "" : "at least ",
                       c->args_min, c->name, c->usage ? c->usage : "");
    if (c->args_max >= 0 && n > (size_t)c->args_max)
        return err_set(p->e, ERR_USAGE, "%zu argument%s, expected %s%d; usage: assay %s %s", n,
                       n == 1 ? "" : "s", c->args_max == c->args_min ? "" : "at most ", c->args_max,
                       c->name, c->usage ? c->usage : "");
    return ERR_OK;
}

enum err_code opt_parse(const struct opt_cmd *cmd, int argc, char **argv, struct opt_list *args,
                        bool *help, bool *given, struct err *e)
{
    struct parser p = {cmd, argc, 1, argv, given, help, e};
    enum err_code rc = ERR_OK;
    bool only_args = false;
    *args = (struct opt_list){0};
    *help = false;
    if (given)
        memset(given, 0, count_opts(cmd->opts) * sizeof *given);
    while (rc == ERR_OK && p.next < argc) {
        const char *word = argv[p.next++];
        if (only_args || word[0] != '-' || !word[1])
            rc = push_item(args, word, e);
        else if (word[1] != '-')
            rc = parse_letters(&p, word + 1);
        else if (!word[2])
            only_args = true;
        else
            rc = parse_long(&p, word + 2);
    }
    if (rc == ERR_OK && !*help)
        rc = check_count(&p, args->n);
    if (rc != ERR_OK)
        opt_list_free(args);
    return rc;
}
