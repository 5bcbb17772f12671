/* self_text.c: the self-comparison as a table and as JSON. Equal reports give equal bytes. */
#include "common/json.h"
#include "evals/self.h"

static const char *const states[] = {"same", "differs", "not run"};

static void put_place(struct strbuf *out, const struct self_cell *c)
{
    const struct self_place *at = &c->at;
    strbuf_printf(out, "with %s: '%s'", c->way, at->custom_id);
    if (at->turn)
        strbuf_printf(out, " turn %d", at->turn + 1);
    if (at->token >= 0)
        strbuf_printf(out, ", token %lld of the answer; ", (long long)at->token + 1);
    else
        strbuf_puts(out, ", the same logits; ");
    if (!at->narrowed)
        strbuf_puts(out, "it did not come back in 3 traced runs");
    else if (at->layer < 0)
        strbuf_printf(out, "first at position %lld: %s", (long long)at->pos, at->op);
    else
        strbuf_printf(out, "first at position %lld: layer %d, %s", (long long)at->pos, at->layer,
                      at->op);
}

void self_table(const struct self_report *r, struct strbuf *out)
{
    strbuf_printf(out, "%s, %s on %s: %llu answers, %llu rows of logits, %llu of operations%s\n\n",
                  r->model, r->arith, r->device, (unsigned long long)r->n_answers,
                  (unsigned long long)r->n_rows, (unsigned long long)r->n_ops,
                  r->ops_cut ? " (the first; memory for more was spent)" : "");
    for (int i = 0; i < r->n_cells; i++) {
        const struct self_cell *c = &r->cell[i];
        strbuf_printf(out, "%-10s %-8s ", c->name,
                      c->state == SELF_DIFFERS ? "DIFFERS" : states[c->state]);
        if (c->state == SELF_SAME)
            strbuf_puts(out, c->ways);
        else if (c->state == SELF_NOT_RUN)
            strbuf_printf(out, "%s", c->why);
        else
            put_place(out, c);
        strbuf_putc(out, '\n');
    }
    strbuf_printf(out, "\n%d same, %d differ, %d not run\n", r->n_same, r->n_differ, r->n_not_run);
}

static void put_text(struct strbuf *out, const char *key, const char *value)
{
    strbuf_printf(out, ",\"%s\":", key);
    json_put_string(out, value, strlen(value));
}

void self_json(const struct self_report *r, struct strbuf *out)
{
    strbuf_puts(out, "{\"assay_self\":1");
    put_text(out, "tool", "assay " ASSAY_VERSION);
    put_text(out, "model", r->model);
    put_text(out, "arith", r->arith);
    put_text(out, "device", r->device);
    put_text(out, "fingerprint", r->fingerprint);
    put_text(out, "prompts", r->prompts);
    strbuf_printf(out,
                  ",\"answers\":%llu,\"rows\":%llu,\"ops\":%llu,\"ops_cut\":%s,\"same\":%d,"
                  "\"differ\":%d,\"not_run\":%d",
                  (unsigned long long)r->n_answers, (unsigned long long)r->n_rows,
                  (unsigned long long)r->n_ops, r->ops_cut ? "true" : "false", r->n_same,
                  r->n_differ, r->n_not_run);
    strbuf_puts(out, ",\"cells\":[");
    for (int i = 0; i < r->n_cells; i++) {
        const struct self_cell *c = &r->cell[i];
        strbuf_printf(out, "%s{\"cell\":\"%s\",\"state\":\"%s\"", i ? "," : "", c->name,
                      states[c->state]);
        if (c->state == SELF_NOT_RUN)
            put_text(out, "why", c->why);
        else
            put_text(out, "ways", c->ways);
        if (c->state == SELF_DIFFERS) {
            put_text(out, "way", c->way);
            put_text(out, "custom_id", c->at.custom_id);
            strbuf_printf(out, ",\"turn\":%d,\"token\":%lld,\"first\":", c->at.turn,
                          (long long)c->at.token);
            if (c->at.narrowed) {
                strbuf_printf(out, "{\"pos\":%lld,\"layer\":%d", (long long)c->at.pos, c->at.layer);
                put_text(out, "op", c->at.op);
                strbuf_putc(out, '}');
            } else {
                strbuf_puts(out, "null");
            }
        }
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}\n");
}
