/* tool_chat.c: chat templates on standard input, for comparison with jinja2.
 *
 *   tool_chat TEMPLATE VARS.JSON [--spans] [--trusted KEY]...   one rendering, to stdout
 *   tool_chat --serve [--request]                               many, as a reference drives it
 *
 * --spans prints one line a span: "t" or "u" and its text as JSON. Served, a request is u32 length
 * of the template, u32 length of the variables, and both; bos_token, eos_token and their kin are
 * trusted. The answer is u8 status, u32 length of the text and the text (an error's, unless status
 * is 0), then u32 count of spans and for each u8 trusted and u32 length. With --request the
 * messages are made ready first, as those of a request are.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "infer/chat.h"

static const char *const special[] = {"bos_token", "eos_token", "pad_token", "unk_token"};

static bool as_request;

static enum err_code make_ready(json_t *vars, struct err *e)
{
    json_t *normal = NULL;
    enum err_code rc = chat_messages_normalize(json_object_get(vars, "messages"), &normal, e);
    if (rc == ERR_OK && json_object_set_new(vars, "messages", normal) != 0)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

static enum err_code render(const char *text, size_t len, const char *vars, size_t n_vars,
                            const char *const *trusted, size_t n_trusted, struct chat_spans *out,
                            struct err *e)
{
    struct chat_template *t = NULL;
    json_t *json = NULL;
    enum err_code rc = json_parse(vars, n_vars, &json, e);
    if (rc == ERR_OK && as_request)
        rc = make_ready(json, e);
    if (rc == ERR_OK)
        rc = chat_compile(&t, text, len, e);
    if (rc == ERR_OK)
        rc = chat_render(t, json, trusted, n_trusted, out, e);
    chat_free(t);
    json_decref(json);
    return rc;
}

static bool put(const void *p, size_t n)
{
    return fwrite(p, 1, n, stdout) == n;
}

static bool put_u32(size_t n)
{
    uint32_t v = (uint32_t)n;
    return put(&v, sizeof v);
}

static bool answer(const char *request, size_t n_template, size_t n_vars)
{
    struct chat_spans s = {0};
    struct err e = {0};
    enum err_code rc = render(request, n_template, request + n_template, n_vars, special,
                              ARRAY_LEN(special), &s, &e);
    uint8_t status = rc != ERR_OK;
    const char *text = rc == ERR_OK ? s.text.data : e.text;
    size_t len = rc == ERR_OK ? s.text.len : strlen(e.text);
    bool ok = put(&status, 1) && put_u32(len) && put(text ? text : "", len) && put_u32(s.n);
    for (size_t i = 0; i < s.n && ok; i++) {
        uint8_t trusted = s.spans[i].trusted;
        ok = put(&trusted, 1) && put_u32(s.spans[i].len);
    }
    chat_spans_free(&s);
    return ok && fflush(stdout) == 0;
}

static int serve(void)
{
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        size_t n = (size_t)head[0] + head[1];
        char *request = malloc(n + 1);
        bool ok = request && fread(request, 1, n, stdin) == n && answer(request, head[0], head[1]);
        free(request);
        if (!ok)
            return 1;
    }
    return 0;
}

static void print_spans(const struct chat_spans *s)
{
    for (size_t i = 0; i < s->n; i++) {
        struct strbuf line = {0};
        strbuf_puts(&line, s->spans[i].trusted ? "t " : "u ");
        json_put_string(&line, s->spans[i].text, s->spans[i].len);
        puts(line.data ? line.data : "");
        strbuf_free(&line);
    }
}

static int usage(void)
{
    fprintf(stderr, "usage: tool_chat TEMPLATE VARS.JSON [--spans] [--trusted KEY]...\n");
    return 2;
}

static bool read_file(const char *path, struct strbuf *out)
{
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        strbuf_append(out, chunk, n);
    bool ok = !ferror(f);
    fclose(f);
    return ok;
}

int main(int argc, char **argv)
{
    const char *trusted[32];
    size_t n_trusted = 0;
    bool spans = false;
    as_request = argc == 3 && strcmp(argv[2], "--request") == 0;
    if ((argc == 2 || as_request) && strcmp(argv[1], "--serve") == 0)
        return serve();
    if (argc < 3)
        return usage();
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--spans") == 0)
            spans = true;
        else if (strcmp(argv[i], "--trusted") == 0 && i + 1 < argc &&
                 n_trusted < ARRAY_LEN(trusted))
            trusted[n_trusted++] = argv[++i];
        else
            return usage();
    }
    struct strbuf text = {0}, vars = {0};
    struct chat_spans s = {0};
    struct err e = {0};
    int rc = 3;
    if (!read_file(argv[1], &text) || !read_file(argv[2], &vars)) {
        fprintf(stderr, "cannot read %s or %s\n", argv[1], argv[2]);
    } else if (render(text.data ? text.data : "", text.len, vars.data ? vars.data : "", vars.len,
                      trusted, n_trusted, &s, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
    } else {
        if (spans)
            print_spans(&s);
        else
            fwrite(s.text.data, 1, s.text.len, stdout);
        rc = 0;
    }
    chat_spans_free(&s);
    strbuf_free(&text);
    strbuf_free(&vars);
    return rc;
}
