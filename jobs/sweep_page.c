/* sweep_page.c: a run for people: the page and the Markdown table. Worst cells first; for each what
 * every gate says, the command that shows more, and its figures over the runs with what was
 * accepted as a band.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/html.h"
#include "common/log.h"
#include "common/svg.h"
#include "jobs/sweep_report.h"

#define TREND_RUNS  60
#define TRENDS_MAX  12 /* cells whose trends are drawn: the worst */
#define PLOT_WIDTH  520
#define PLOT_HEIGHT 220

/* ---- shared words ------------------------------------------------------------------------------
 */

static void put_figure(struct strbuf *out, double v, double factor, int digits)
{
    if (isfinite(v))
        strbuf_put_number(out, v * factor, digits);
    else
        strbuf_puts(out, "-");
}

static double ppl_ratio(const struct store_cell *c)
{
    return exp(c->log_ppl_ratio.value);
}

static void put_summary(const struct sweep_report *r, struct strbuf *out)
{
    char began[32], accepted[32];
    strbuf_printf(out, "Run %lld of %s", (long long)r->run.id, clock_utc(began, r->run.began));
    if (r->run.ended)
        strbuf_printf(out, ", %lld s: %s, exit code %d", (long long)(r->run.ended - r->run.began),
                      r->run.verdict, r->run.exit_code);
    else
        strbuf_puts(out, ": did not come to its end");
    size_t counts[VERDICT_COUNT] = {0};
    char words[200];
    for (size_t i = 0; i < r->n; i++)
        counts[r->cells[i].verdict]++;
    verdict_counts(counts, words, sizeof words);
    strbuf_printf(out, ". Cells: %s. ", words);
    if (r->base.id)
        strbuf_printf(out, "Baseline %lld, accepted %s from run %lld: %s", (long long)r->base.id,
                      clock_utc(accepted, r->base.accepted), (long long)r->base.run, r->base.why);
    else
        strbuf_puts(out, "No baseline: nothing was accepted yet.");
}

/* ---- Markdown ----------------------------------------------------------------------------------
 */

/* A cell of a table: no bar, no line end. */
static void put_md(struct strbuf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '|')
            strbuf_putc(out, '\\');
        strbuf_putc(out, *s == '\n' ? ' ' : *s);
    }
}

void sweep_report_markdown(const struct sweep_report *r, struct strbuf *out)
{
    strbuf_printf(out, "# Sweep %s: %s\n\n", r->title, r->run.verdict);
    put_summary(r, out);
    strbuf_puts(out, "\n\n| cell | verdict | KL | agreement % | perplexity x | tokens/s | words |\n"
                     "|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < r->n; i++) {
        const struct store_cell *c = &r->cells[i];
        strbuf_puts(out, "| ");
        put_md(out, c->name);
        strbuf_printf(out, " | %s | ", verdict_name(c->verdict));
        put_figure(out, c->kl.value, 1, 4);
        strbuf_puts(out, " | ");
        put_figure(out, c->agreement.value, 100, 4);
        strbuf_puts(out, " | ");
        put_figure(out, ppl_ratio(c), 1, 5);
        strbuf_puts(out, " | ");
        put_figure(out, c->tokens_per_second.value, 1, 4);
        strbuf_puts(out, " | ");
        put_md(out, c->words);
        strbuf_puts(out, " |\n");
    }
}

/* ---- the page ----------------------------------------------------------------------------------
 */

static const char *class_of(enum verdict v)
{
    if (verdict_passes(v))
        return "good";
    return v >= VERDICT_NOT_COMPARABLE ? "bad" : "muted";
}

static void put_verdict(struct strbuf *out, enum verdict v)
{
    html_cell_raw_begin(out, class_of(v));
    html_text(out, verdict_name(v));
    html_cell_raw_end(out);
}

static void put_number(struct strbuf *out, double v, int digits)
{
    if (isfinite(v))
        html_cell_number(out, v, digits);
    else
        html_cell(out, "");
}

static void put_cells(const struct sweep_report *r, struct strbuf *out)
{
    static const struct html_column columns[] = {
        {"cell", "model/recipe/prompts/setting", false},
        {"verdict", "the worst of its gates", false},
        {"repeat", "equal hashes over repeats", false},
        {"invariance", "equal hashes over batch and chunk sizes", false},
        {"tokens", "against the accepted trace", false},
        {"quality", "against the limits and the accepted figures", false},
        {"speed", "against the accepted program, in interleaved rounds", false},
        {"KL", "mean over tokens, nats, against the source", true},
        {"agreement %", "same best token", true},
        {"perplexity x", "of the variant over that of the source", true},
        {"tokens/s", "median over the repeats", true},
    };
    html_table_begin(out, "Worst first", columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < r->n; i++) {
        const struct store_cell *c = &r->cells[i];
        html_row_begin(out);
        html_cell(out, c->name);
        put_verdict(out, c->verdict);
        for (int g = 0; g < GATE_COUNT; g++) {
            if (c->gate[g].asked)
                put_verdict(out, c->gate[g].verdict);
            else
                html_cell(out, "");
        }
        put_number(out, c->kl.value, 4);
        put_number(out, c->agreement.value * 100, 4);
        put_number(out, ppl_ratio(c), 5);
        put_number(out, c->tokens_per_second.value, 4);
        html_row_end(out);
    }
    html_table_end(out);
}

static void put_gates(const struct store_cell *c, struct strbuf *out)
{
    for (int g = 0; g < GATE_COUNT; g++) {
        const struct judgement *j = &c->gate[g];
        if (!j->asked)
            continue;
        strbuf_printf(out, "<p><b>%s</b>: <span class=\"%s\">", gate_name((enum gate)g),
                      class_of(j->verdict));
        html_text(out, verdict_name(j->verdict));
        strbuf_puts(out, "</span>, ");
        html_text(out, j->words);
        strbuf_puts(out, "</p>\n");
        if (j->more[0] && !verdict_passes(j->verdict)) {
            strbuf_puts(out, "<pre>");
            html_text(out, j->more);
            strbuf_puts(out, "</pre>\n");
        }
    }
}

/* One point is no trend, but with a band it shows where it lies. */
static enum err_code put_trend(const struct sweep_report *r, const char *cell, const char *figure,
                               const char *title, const char *unit,
                               const struct stats_interval *accepted, struct strbuf *out,
                               struct err *e)
{
    struct store_point points[TREND_RUNS];
    double x[TREND_RUNS], y[TREND_RUNS];
    size_t n = 0;
    enum err_code rc = store_trend(r->store, cell, figure, points, TREND_RUNS, &n, e);
    if (rc != ERR_OK || n == 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        x[i] = (double)points[i].run;
        y[i] = points[i].value;
    }
    struct svg_band band = {.lo = 0};
    bool has_band = accepted && isfinite(accepted->value);
    if (has_band) {
        band.lo = isfinite(accepted->lo) ? accepted->lo : accepted->value;
        band.hi = isfinite(accepted->hi) ? accepted->hi : accepted->value;
    }
    const struct svg_plot plot = {.title = title,
                                  .x_label = "run",
                                  .y_label = unit,
                                  .width = PLOT_WIDTH,
                                  .height = PLOT_HEIGHT,
                                  .band = has_band ? &band : NULL};
    const struct svg_series series = {.x = x, .y = y, .n = n};
    if (n == 1)
        svg_scatter(out, &plot, &series, 1);
    else
        svg_lines(out, &plot, &series, 1);
    return ERR_OK;
}

static enum err_code put_cell(const struct sweep_report *r, const struct store_cell *c, bool trends,
                              struct strbuf *out, struct err *e)
{
    const struct store_cell *base = baseline_find(&r->base, c->name);
    enum err_code rc = ERR_OK;
    html_heading(out, 3, NULL, c->name);
    if (c->words[0] && !verdict_passes(c->verdict)) {
        strbuf_printf(out, "<p><span class=\"%s\">%s</span>: ", class_of(c->verdict),
                      verdict_name(c->verdict));
        html_text(out, c->words);
        strbuf_puts(out, "</p>\n");
    }
    html_fold_begin(out, "gates");
    put_gates(c, out);
    html_fold_end(out);
    if (!trends)
        return ERR_OK;
    rc = put_trend(r, c->name, "kl", "KL against the source", "nats", base ? &base->kl : NULL, out,
                   e);
    if (rc == ERR_OK)
        rc = put_trend(r, c->name, "tokens_per_second", "Speed", "tokens/s",
                       base ? &base->tokens_per_second : NULL, out, e);
    return rc;
}

static void put_environment(void *ctx, const char *key, const char *value)
{
    struct strbuf *out = ctx;
    html_row_begin(out);
    html_cell(out, key);
    html_cell(out, value);
    html_row_end(out);
}

enum err_code sweep_report_html(const struct sweep_report *r, struct strbuf *out, struct err *e)
{
    static const struct html_column columns[] = {{"what", NULL, false}, {"value", NULL, false}};
    char title[400];
    struct strbuf summary = {0};
    snprintf(title, sizeof title, "Sweep %s: %s", r->title, r->run.verdict);
    html_page_begin(out, title);
    put_summary(r, &summary);
    html_paragraph(out, summary.data ? summary.data : "");
    strbuf_free(&summary);
    put_cells(r, out);
    html_heading(out, 2, NULL, "Cells");
    html_paragraph(out, "A grey band in a plot is what was accepted.");
    enum err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < r->n; i++)
        rc = put_cell(r, &r->cells[i], i < TRENDS_MAX, out, e);
    html_heading(out, 2, NULL, "Environment");
    html_table_begin(out, NULL, columns, ARRAY_LEN(columns));
    if (rc == ERR_OK)
        rc = store_environment_each(r->store, r->run.id, put_environment, out, e);
    put_environment(out, "program", r->run.program);
    put_environment(out, "sweep file", r->run.sweep);
    html_table_end(out);
    html_page_end(out);
    return rc;
}
