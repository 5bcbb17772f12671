/* opt_help.c: the help text and the completion words of an option table. */
#include <stdio.h>

#include "common/opt.h"

#define HELP_COLUMN 28
#define HELP_WIDTH  96

/* Appends text broken at blanks, continuation lines indented; `column` is where the line stands. */
static void put_wrapped(struct strbuf *b, const char *text, size_t column, size_t indent)
{
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (column > indent && column + 1 + word > HELP_WIDTH) {
            strbuf_printf(b, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            strbuf_putc(b, ' ');
            column++;
        }
        strbuf_append(b, text, word);
        column += word;
        text += word;
        if (*text == '\n') {
            strbuf_printf(b, "\n%*s", (int)indent, "");
            column = indent;
        }
        text += *text != 0;
    }
    strbuf_putc(b, '\n');
}

static void put_range(struct strbuf *b, const struct opt *o)
{
    bool range = (o->type == OPT_INT || o->type == OPT_DOUBLE) && (o->lo != 0 || o->hi != 0);
    if (range && o->hi < 1e15)
        strbuf_printf(b, " (%.15g to %.15g)", o->lo, o->hi);
    else if (range)
        strbuf_printf(b, " (at least %.15g)", o->lo);
}

static void put_option(struct strbuf *b, const struct opt *o)
{
    size_t start = b->len;
    if (o->letter)
        strbuf_printf(b, "  -%c, ", o->letter);
    else
        strbuf_puts(b, "      ");
    strbuf_printf(b, "--%s", o->name);
    if (o->type == OPT_CHOICE) {
        for (size_t i = 0; o->choices[i]; i++)
            strbuf_printf(b, "%c%s", i ? '|' : ' ', o->choices[i]);
    } else if (o->type != OPT_FLAG) {
        strbuf_printf(b, " %s", o->arg ? o->arg : "VALUE");
    }
    size_t column = b->failed ? 0 : b->len - start;
    if (column + 2 > HELP_COLUMN)
        strbuf_printf(b, "\n%*s", HELP_COLUMN, "");
    else
        strbuf_printf(b, "%*s", (int)(HELP_COLUMN - column), "");
    struct strbuf text = {0};
    strbuf_puts(&text, o->help ? o->help : "");
    put_range(&text, o);
    if (o->type == OPT_LIST)
        strbuf_puts(&text, " May be given again.");
    if (text.failed)
        b->failed = true;
    else
        put_wrapped(b, text.data, HELP_COLUMN, HELP_COLUMN);
    strbuf_free(&text);
}

void opt_help(const struct opt_cmd *cmd, struct strbuf *out)
{
    strbuf_printf(out, "usage: assay %s %s\n\n", cmd->name, cmd->usage ? cmd->usage : "");
    if (cmd->about) {
        put_wrapped(out, cmd->about, 0, 0);
        strbuf_putc(out, '\n');
    }
    const struct opt *o = cmd->opts;
    if (o->type != OPT_GROUP)
        strbuf_puts(out, "options:\n");
    bool letter_h = false, name_help = false;
    for (; o->type != OPT_END; o++) {
        if (o->type == OPT_GROUP) {
            strbuf_printf(out, "%s%s:\n", o == cmd->opts ? "" : "\n", o->help);
            continue;
        }
        letter_h |= o->letter == 'h';
        name_help |= strcmp(o->name, "help") == 0;
        put_option(out, o);
    }
    if (!name_help) {
        static const struct opt help = {
            .type = OPT_FLAG, .letter = 'h', .name = "help", .help = "Print this and stop."};
        struct opt own = help;
        own.letter = letter_h ? 0 : 'h';
        put_option(out, &own);
    }
    if (cmd->examples)
        strbuf_printf(out, "\nexamples:\n%s%s", cmd->examples,
                      str_ends(cmd->examples, "\n") ? "" : "\n");
}

void opt_complete(const struct opt_cmd *cmd, struct strbuf *out)
{
    for (const struct opt *o = cmd->opts; o->type != OPT_END; o++) {
        if (o->type == OPT_GROUP)
            continue;
        strbuf_printf(out, "--%s\n", o->name);
        if (o->type == OPT_FLAG)
            strbuf_printf(out, "--no-%s\n", o->name);
        for (size_t i = 0; o->type == OPT_CHOICE && o->choices[i]; i++)
            strbuf_printf(out, "--%s=%s\n", o->name, o->choices[i]);
    }
    strbuf_puts(out, "--help\n");
}
