/* junit.c: one suite of cases as XML. */
#include "common/junit.h"

#include "common/html.h"

static void put_attribute(struct strbuf *b, const char *name, const char *value)
{
    strbuf_printf(b, " %s=\"", name);
    html_text(b, value);
    strbuf_putc(b, '"');
}

static void put_case(struct strbuf *b, const struct junit_case *c)
{
    static const char *const elements[] = {NULL, "failure", "error", "skipped"};
    const char *element = elements[c->result];
    strbuf_puts(b, "  <testcase");
    put_attribute(b, "classname", c->group);
    put_attribute(b, "name", c->name);
    if (!element) {
        strbuf_puts(b, "/>\n");
        return;
    }
    strbuf_printf(b, ">\n    <%s", element);
    if (c->message)
        put_attribute(b, "message", c->message);
    strbuf_putc(b, '>');
    if (c->detail)
        html_text(b, c->detail);
    strbuf_printf(b, "</%s>\n  </testcase>\n", element);
}

void junit_write(struct strbuf *b, const char *suite, const struct junit_case *cases, size_t n)
{
    size_t counts[4] = {0};
    for (size_t i = 0; i < n; i++)
        counts[cases[i].result]++;
    strbuf_puts(b, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite");
    put_attribute(b, "name", suite);
    strbuf_printf(b, " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\">\n", n,
                  counts[JUNIT_FAILED], counts[JUNIT_ERROR], counts[JUNIT_SKIPPED]);
    for (size_t i = 0; i < n; i++)
        put_case(b, &cases[i]);
    strbuf_puts(b, "</testsuite>\n");
}
