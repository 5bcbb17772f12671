/* plan_text.c: plans written out. */
#include "quant/plan_text.h"

#include <stdio.h>

#include "quant/errstat.h"

static double item_bits(const struct plan_item *it)
{
    int64_t n = plan_item_elems(it);
    return n ? errstat_round6(8.0 * (double)plan_item_bytes(it) / (double)n) : 0.0;
}

static int name_width(const struct plan *p)
{
    size_t width = 6;
    for (size_t i = 0; i < p->n_items; i++)
        width = MAX2(width, strlen(p->items[i].w->name));
    return (int)MIN2(width, 60);
}

static void put_totals(const struct plan *p, struct strbuf *out)
{
    struct plan_totals t;
    char bytes[24];
    plan_totals(p, &t);
    strbuf_printf(out, "total: %zu tensors, %lld weights, %s (%llu bytes), %.3f bits per weight",
                  p->n_items, (long long)t.elems, str_bytes(bytes, t.bytes),
                  (unsigned long long)t.bytes, t.bits);
    if (t.packed_elems)
        strbuf_printf(out, "; packed matrices %.3f bits per weight", t.packed_bits);
    strbuf_putc(out, '\n');
}

void plan_text_put(const struct plan *p, struct strbuf *out)
{
    int width = name_width(p);
    strbuf_printf(out, "%-*s  %-10s  %-30s  %-30s  %5s  %12s  %6s\n", width, "tensor", "role",
                  "from", "to", "line", "bytes", "bits");
    for (size_t i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->items[i];
        char from[64], to[64], line[24] = "-";
        if (it->rule >= 0)
            snprintf(line, sizeof line, "%lld", (long long)p->recipe->rules[it->rule].line);
        strbuf_printf(out, "%-*s  %-10s  %-30s  %-30s  %5s  %12llu  %6.3f\n", width, it->w->name,
                      ckpt_role_name(it->w->role), plan_weight_format(it->w, from),
                      plan_item_format(it, to), line, (unsigned long long)plan_item_bytes(it),
                      item_bits(it));
        if (it->note[0])
            strbuf_printf(out, "%-*s  = %s\n", width, "", it->note);
    }
    put_totals(p, out);
}

static json_t *item_json(const struct plan *p, const struct plan_item *it)
{
    char from[64], to[64];
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:o,s:I,s:f}", "name", it->w->name, "role",
                  ckpt_role_name(it->w->role), "from", plan_weight_format(it->w, from), "format",
                  plan_item_format(it, to), "action", plan_action_name(it->action), "rule_line",
                  it->rule >= 0 ? json_integer(p->recipe->rules[it->rule].line) : json_null(),
                  "bytes", (json_int_t)plan_item_bytes(it), "bits_per_weight", item_bits(it));
    if (o && it->grid.units)
        json_object_set_new(o, "grid", grid_report_json(&it->grid));
    if (o && it->note[0])
        json_object_set_new(o, "note", json_string(it->note));
    return o;
}

json_t *plan_text_json(const struct plan *p)
{
    struct plan_totals t;
    json_t *list = json_array();
    plan_totals(p, &t);
    for (size_t i = 0; i < p->n_items; i++)
        json_array_append_new(list, item_json(p, &p->items[i]));
    return json_pack("{s:o*,s:o,s:{s:I,s:I,s:f,s:f}}", "recipe",
                     p->recipe ? json_pack("{s:s,s:s,s:s}", "name", p->recipe->name, "sha256",
                                           p->recipe->sha256, "why", p->recipe->why)
                               : NULL,
                     "tensors", list, "totals", "weights", (json_int_t)t.elems, "bytes",
                     (json_int_t)t.bytes, "bits_per_weight", errstat_round6(t.bits),
                     "packed_bits_per_weight", errstat_round6(t.packed_bits));
}
