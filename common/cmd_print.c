/* cmd_print.c: what every command does alike: options, help, text and JSON on standard output. */
#include <stdio.h>

#include "common/cmd.h"

enum err_code cmd_options(const struct opt_cmd *cmd, int argc, char **argv, struct opt_list *args,
                          bool *help, struct err *e)
{
    struct strbuf text = {0};
    *help = argc == 2 && strcmp(argv[1], "--complete") == 0;
    if (*help) {
        opt_complete(cmd, &text);
        return cmd_print(&text, e);
    }
    enum err_code rc = opt_parse(cmd, argc, argv, args, help, NULL, e);
    if (rc != ERR_OK || !*help)
        return rc;
    opt_help(cmd, &text);
    return cmd_print(&text, e);
}

enum err_code cmd_print(struct strbuf *text, struct err *e)
{
    enum err_code rc = strbuf_ok(text, e);
    if (rc == ERR_OK && text->len && fwrite(text->data, 1, text->len, stdout) != text->len)
        rc = err_errno(e, "standard output");
    strbuf_free(text);
    return rc;
}

enum err_code cmd_print_json(json_t *v, struct err *e)
{
    struct strbuf text = {0};
    if (!v)
        return err_set(e, ERR_NOMEM, "out of memory");
    json_put(&text, v, JSON_INDENT(1));
    strbuf_putc(&text, '\n');
    json_decref(v);
    return cmd_print(&text, e);
}
