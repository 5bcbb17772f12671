/* recipe_text.c: writes rules in the keys of recipes/README.md; strings are quoted as in JSON,
 * whose escapes YAML shares. */
#include "quant/recipe_text.h"

#include "common/json.h"

static void put_string(struct strbuf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
    strbuf_putc(out, '\n');
}

/* The first key of an item stands behind its dash. */
static void put_key(struct strbuf *out, const char *key, bool *first)
{
    strbuf_printf(out, "%s%s: ", *first ? "  - " : "    ", key);
    *first = false;
}

static void put_roles(struct strbuf *out, unsigned roles)
{
    const char *comma = "";
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!(roles >> r & 1u))
            continue;
        strbuf_printf(out, "%s%s", comma, ckpt_role_name((enum ckpt_role)r));
        comma = ", ";
    }
    strbuf_putc(out, '\n');
}

static void put_layers(struct strbuf *out, const struct recipe_rule *r)
{
    strbuf_printf(out, "\"%s", r->edges ? "edges" : "");
    for (int i = 0; i < r->n_ranges; i++) {
        const struct recipe_range *x = &r->range[i];
        strbuf_puts(out, i || r->edges ? ", " : "");
        if (x->from == x->to)
            strbuf_printf(out, "%d", x->from);
        else
            strbuf_printf(out, "%d..%d", x->from, x->to);
    }
    strbuf_puts(out, "\"\n");
}

static void put_format(struct strbuf *out, const struct recipe_rule *r, bool *first)
{
    if (r->keep) {
        put_key(out, "keep", first);
        strbuf_puts(out, "true\n");
        return;
    }
    if (qformat_is_block(r->q)) {
        put_key(out, "format", first);
        strbuf_printf(out, "%s\n", qformat_mode(r->q));
        return;
    }
    put_key(out, "bits", first);
    strbuf_printf(out, "%d\n", r->q.bits);
    put_key(out, "group", first);
    strbuf_printf(out, "%d\n", r->q.group);
    if (r->q.scale == DT_BF16)
        return;
    put_key(out, "scale", first);
    strbuf_printf(out, "%s\n", r->q.scale == DT_F16 ? "f16" : "f32");
}

void recipe_text_head(struct strbuf *out, const char *why)
{
    strbuf_puts(out, "why: ");
    put_string(out, why);
    strbuf_puts(out, "rules:\n");
}

void recipe_text_rule(struct strbuf *out, const struct recipe_rule *r)
{
    bool first = true;
    if (r->match) {
        put_key(out, "match", &first);
        put_string(out, r->match);
    }
    if (r->roles) {
        put_key(out, "role", &first);
        put_roles(out, r->roles);
    }
    if (r->n_ranges || r->edges) {
        put_key(out, "layers", &first);
        put_layers(out, r);
    }
    put_format(out, r, &first);
    if (r->why) {
        put_key(out, "why", &first);
        put_string(out, r->why);
    }
}
