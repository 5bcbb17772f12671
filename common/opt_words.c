/* opt_words.c: parsed options as words of a command line. */
#include <stdio.h>

#include "common/io.h"
#include "common/opt.h"

/* As a shell takes it. */
static void put_word(struct strbuf *out, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+.,:/=@%";
    if (*s && strspn(s, plain) == strlen(s)) {
        strbuf_puts(out, s);
        return;
    }
    strbuf_putc(out, '\'');
    for (; *s; s++) {
        if (*s == '\'')
            strbuf_puts(out, "'\\'");
        strbuf_putc(out, *s);
    }
    strbuf_putc(out, '\'');
}

static void put_text(const struct opt *o, const char *value, struct strbuf *out)
{
    bool path = o->arg && (strcmp(o->arg, "FILE") == 0 || strcmp(o->arg, "DIR") == 0);
    strbuf_printf(out, " --%s ", o->name);
    put_word(out, path ? io_base(value) : value);
}

static void put_words(const struct opt *o, const struct opt *from, struct strbuf *out)
{
    switch (o->type) {
    case OPT_FLAG: {
        bool value = *(const bool *)o->out;
        if (value != *(const bool *)from->out)
            strbuf_printf(out, " --%s%s", value ? "" : "no-", o->name);
        break;
    }
    case OPT_STRING: {
        const char *value = *(const char *const *)o->out, *was = *(const char *const *)from->out;
        if (value && (!was || strcmp(value, was) != 0))
            put_text(o, value, out);
        break;
    }
    case OPT_INT: {
        int64_t value = *(const int64_t *)o->out;
        if (value != *(const int64_t *)from->out)
            strbuf_printf(out, " --%s %lld", o->name, (long long)value);
        break;
    }
    case OPT_DOUBLE: {
        double value = *(const double *)o->out, was = *(const double *)from->out;
        if (value == was || value != value)
            break;
        strbuf_printf(out, " --%s %.9g", o->name, value);
        break;
    }
    case OPT_CHOICE: {
        int value = *(const int *)o->out;
        if (value != *(const int *)from->out)
            put_text(o, o->choices[value], out);
        break;
    }
    case OPT_LIST: {
        const struct opt_list *l = o->out;
        for (size_t i = 0; i < l->n; i++)
            put_text(o, l->items[i], out);
        break;
    }
    case OPT_GROUP:
    case OPT_END:
        break;
    }
}

void opt_words(const struct opt *opts, const struct opt *defaults, const char *const *skip,
               struct strbuf *out)
{
    for (; opts->type != OPT_END; opts++, defaults++) {
        bool skipped = false;
        for (size_t i = 0; opts->name && skip[i]; i++)
            skipped |= strcmp(opts->name, skip[i]) == 0;
        if (!skipped)
            put_words(opts, defaults, out);
    }
}
