/* report_html.c: the page. Verdict and evidence first, then the variants, the gates, the plots,
 * every figure, each pair with its answers, and how to reproduce it. One function a section.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/html.h"
#include "common/io.h"
#include "evals/report_page.h"

void report_page_interval(struct strbuf *b, struct stats_interval v, double scale, int digits)
{
    html_cell_raw_begin(b, "number");
    report_number(b, v.value * scale, digits);
    if (isfinite(v.lo) && isfinite(v.hi)) {
        strbuf_puts(b, " <small>(");
        report_number(b, v.lo * scale, digits - 1);
        strbuf_puts(b, " .. ");
        report_number(b, v.hi * scale, digits - 1);
        strbuf_puts(b, ")</small>");
    }
    html_cell_raw_end(b);
}

void report_page_verdict(struct strbuf *b, enum pair_verdict v)
{
    html_cell_raw_begin(b, v == VERDICT_SAME                                  ? "good"
                           : v == VERDICT_PATH || v >= VERDICT_NOT_COMPARABLE ? "bad"
                                                                              : "");
    html_text(b, pair_verdict_name(v));
    html_cell_raw_end(b);
}

/* ---- verdict -----------------------------------------------------------------------------------
 */

static void put_verdict(struct strbuf *b, const struct comparison *c)
{
    struct strbuf line = {0};
    html_heading(b, 2, "verdict", "Verdict");
    strbuf_printf(&line, "%s, against %s (%s arithmetic, %zu answers).",
                  c->verdict == COMPARE_SAME
                      ? c->has_gates ? "All gates hold" : "All variants give the same tokens"
                  : c->verdict == COMPARE_DIFFER && c->has_gates ? "A gate failed"
                  : c->verdict == COMPARE_DIFFER                 ? "Variants differ"
                  : c->verdict == COMPARE_NOT_COMPARABLE         ? "NOT COMPARABLE"
                                                                 : "A side does not repeat itself",
                  c->variants[0].name, c->variants[0].trace->head.arith, c->variants[0].trace->n);
    html_paragraph(b, line.data ? line.data : "");
    strbuf_puts(b, "<ul>");
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        const struct pair *p = &c->pairs[i];
        strbuf_clear(&line);
        report_sentence(p, &line);
        strbuf_puts(b, "<li>");
        html_text(b, line.data ? line.data : "");
        if (p->unchecked[0]) {
            strbuf_puts(b, " <span class=\"muted\">Not checked: ");
            html_text(b, p->unchecked);
            strbuf_puts(b, ".</span>");
        }
        strbuf_puts(b, "</li>\n");
    }
    strbuf_puts(b, "</ul>\n");
    b->failed |= line.failed;
    strbuf_free(&line);
}

/* ---- variants ----------------------------------------------------------------------------------
 */

static void put_speed(struct strbuf *b, const struct variant *v)
{
    html_cell_number(b, v->is_trace ? (double)NAN : (double)v->run.new_tokens / v->run_seconds, 4);
}

static void put_perplexity(struct strbuf *b, const struct figures *f)
{
    const struct stats_interval ppl = {f->var_ppl, exp(f->var_nll.lo), exp(f->var_nll.hi)};
    const struct stats_interval r = {f->var_ppl / f->ref_ppl, exp(f->ppl_log_ratio.lo),
                                     exp(f->ppl_log_ratio.hi)};
    report_page_interval(b, ppl, 1, 5);
    report_page_interval(b, r, 1, 5);
}

static void put_variant_row(struct strbuf *b, const struct comparison *c, const struct variant *v,
                            const struct pair *p)
{
    char same[48];
    bool there = p && p->partings, forced = p && p->forced;
    html_row_begin(b);
    html_cell(b, v->name);
    if (p)
        report_page_verdict(b, p->verdict);
    else
        html_cell(b, "reference");
    html_cell_number(b, v->is_trace ? NAN : (double)v->bytes * 1e-6, 5);
    html_cell_number(b, v->bits_per_weight, 4);
    if (c->with_speed)
        put_speed(b, v);
    snprintf(same, sizeof same, "%zu of %zu", there ? p->n_same : 0, there ? p->n_records : 0);
    html_cell(b, there ? same : "");
    if (forced) {
        report_page_interval(b, p->f.kl, 1, 4);
        report_page_interval(b, p->f.agreement, 100, 4);
        report_page_interval(b, p->f.agreement_decided, 100, 4);
        put_perplexity(b, &p->f);
    } else {
        for (int i = 0; i < 5; i++)
            html_cell(b, "");
    }
    html_row_end(b);
}

/* The reference against itself: the same columns, without weights and answers. */
static void put_floor_row(struct strbuf *b, const struct comparison *c)
{
    struct strbuf name = {0};
    strbuf_printf(&name, "noise floor: the reference in %s", c->floor_path);
    html_row_begin(b);
    html_cell(b, name.data ? name.data : "");
    for (int i = 0; i < 4 + c->with_speed; i++)
        html_cell(b, "");
    report_page_interval(b, c->floor.kl, 1, 4);
    report_page_interval(b, c->floor.agreement, 100, 4);
    report_page_interval(b, c->floor.agreement_decided, 100, 4);
    put_perplexity(b, &c->floor);
    html_row_end(b);
    b->failed |= name.failed;
    strbuf_free(&name);
}

static void put_variants(struct strbuf *b, const struct comparison *c)
{
    static const struct html_column all[] = {
        {"variant", NULL, false},
        {"verdict", "which of the faults that look alike", false},
        {"MB", "all weights", true},
        {"bits/weight", "over all weights", true},
        {"tokens/s", "new tokens of the run, measured", true},
        {"same answers", "free-running, token for token", false},
        {"KL", "of the reference against the variant, nats a position; 95 % by prompt", true},
        {"agreement %", "same best token", true},
        {"decided %", "the same, where the reference's margin is above its noise floor", true},
        {"perplexity", "on the reference's own answers", true},
        {"ratio", "to the reference's perplexity", true},
    };
    struct html_column columns[ARRAY_LEN(all)];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (c->with_speed || strcmp(all[i].name, "tokens/s") != 0)
            columns[n++] = all[i];
    html_heading(b, 2, "variants", "Variants");
    html_table_begin(b, NULL, columns, n);
    for (size_t i = 0; i < c->n_variants; i++)
        put_variant_row(b, c, &c->variants[i], i ? &c->pairs[i - 1] : NULL);
    if (c->has_floor)
        put_floor_row(b, c);
    html_table_end(b);
}

/* ---- gates -------------------------------------------------------------------------------------
 */

static void put_value(struct strbuf *b, double v)
{
    html_cell_raw_begin(b, "number");
    report_number(b, v, 5);
    html_cell_raw_end(b);
}

static void put_gate_row(struct strbuf *b, const struct pair *p,
                         const struct compare_gate_result *r)
{
    const struct compare_gate_kind *k = &compare_gate_kinds[r->gate];
    html_row_begin(b);
    html_cell(b, p->var->name);
    html_cell(b, k->figure);
    put_value(b, r->value);
    html_cell(b, k->at_most ? "at most" : "at least");
    put_value(b, r->bound);
    html_cell_raw_begin(b, r->passed ? "good" : "bad");
    html_text(b, r->passed ? "holds" : "failed");
    html_cell_raw_end(b);
    html_row_end(b);
}

static void put_gates(struct strbuf *b, const struct comparison *c)
{
    static const struct html_column columns[] = {
        {"variant", NULL, false},  {"figure", NULL, false}, {"value", NULL, true},
        {"expected", NULL, false}, {"bound", NULL, true},   {"gate", NULL, false}};
    if (!c->has_gates)
        return;
    html_heading(b, 2, "gates", "Gates");
    html_table_begin(b, NULL, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i + 1 < c->n_variants; i++)
        for (int k = 0; k < c->pairs[i].n_gates; k++)
            put_gate_row(b, &c->pairs[i], &c->pairs[i].gates[k]);
    html_table_end(b);
}

/* ---- pairs -------------------------------------------------------------------------------------
 */

static enum err_code put_pair(struct strbuf *b, const struct comparison *c, const struct pair *p,
                              struct err *e)
{
    html_heading(b, 2, NULL, p->var->name);
    if (!p->partings) {
        html_paragraph(b, "NOT COMPARABLE: no figures.");
        html_paragraph(b, p->not_comparable);
        return ERR_OK;
    }
    enum err_code rc = p->forced ? report_plots_margins(b, p, e) : ERR_OK;
    where_html(c, p, b);
    if (rc == ERR_OK)
        rc = report_answers(b, c, p, e);
    return rc;
}

static void put_arith(struct strbuf *b, const struct comparison *c)
{
    if (c->arith[0])
        strbuf_printf(b, " --arith %s", c->arith);
}

static void put_reproduce(struct strbuf *b, const struct comparison *c)
{
    html_heading(b, 2, "reproduce", "How to reproduce");
    strbuf_puts(b, "<pre>assay compare");
    for (size_t i = 0; i < c->n_variants; i++) {
        strbuf_putc(b, ' ');
        html_text(b, io_base(c->variants[i].path));
    }
    put_arith(b, c);
    html_text(b, c->how);
    strbuf_puts(b, " -o report\n");
    for (size_t i = 0; i < c->n_variants; i++) {
        if (c->variants[i].is_trace)
            continue;
        strbuf_puts(b, "assay compare ");
        html_text(b, io_base(c->variants[i].path));
        strbuf_puts(b, " --self");
        put_arith(b, c);
        html_text(b, c->how_self);
        strbuf_putc(b, '\n');
    }
    strbuf_printf(b,
                  "</pre>\n<p>Prompt file SHA-256 %s, tokenizer %s, template %s. assay %s.</p>\n",
                  c->variants[0].trace->head.prompts, c->variants[0].trace->head.tokenizer,
                  c->variants[0].trace->head.chat_template, ASSAY_VERSION);
}

enum err_code report_html(const struct comparison *c, struct strbuf *out, struct err *e)
{
    char title[256];
    snprintf(title, sizeof title, "assay: %s and %zu variant%s", c->variants[0].name,
             c->n_variants - 1, c->n_variants == 2 ? "" : "s");
    html_page_begin(out, title);
    put_verdict(out, c);
    put_variants(out, c);
    put_gates(out, c);
    enum err_code rc = report_plots_size(out, c, e);
    if (rc == ERR_OK)
        rc = report_plots_kl(out, c, e);
    report_figures_table(out, c);
    for (size_t i = 0; i + 1 < c->n_variants && rc == ERR_OK; i++)
        rc = put_pair(out, c, &c->pairs[i], e);
    put_reproduce(out, c);
    html_sort_script(out);
    html_page_end(out);
    return rc == ERR_OK ? strbuf_ok(out, e) : rc;
}
