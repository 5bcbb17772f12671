/* report_html.c: the page. Verdict first, then the variants, the plots, and the answers, worst
 * first, with the token marked where they part.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/html.h"
#include "common/svg.h"
#include "evals/report.h"

#define WORST_SHOWN 5  /* answers in the token view of a pair */
#define AROUND      48 /* tokens shown before and after a parting */
#define KL_BINS     32 /* points of the plot along the answer */

static void put_verdict(struct strbuf *b, const struct comparison *c)
{
    struct strbuf line = {0};
    html_heading(b, 2, "verdict", "Verdict");
    strbuf_printf(&line, "%s, against %s (%s arithmetic, %zu answers).",
                  c->verdict == COMPARE_SAME
                      ? c->has_gates ? "All gates hold" : "All variants give the same tokens"
                  : c->verdict == COMPARE_DIFFER         ? "Variants differ"
                  : c->verdict == COMPARE_NOT_COMPARABLE ? "NOT COMPARABLE"
                                                         : "A side does not repeat itself",
                  c->variants[0].name, c->variants[0].trace->head.arith, c->variants[0].trace->n);
    html_paragraph(b, line.data ? line.data : "");
    strbuf_puts(b, "<ul>");
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        strbuf_clear(&line);
        report_sentence(&c->pairs[i], &line);
        strbuf_puts(b, "<li>");
        html_text(b, line.data ? line.data : "");
        strbuf_puts(b, "</li>");
    }
    strbuf_puts(b, "</ul>\n");
    b->failed |= line.failed;
    strbuf_free(&line);
}

static void put_interval(struct strbuf *b, struct stats_interval v, double scale, int digits)
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

static void put_variant_row(struct strbuf *b, const struct variant *v, const struct pair *p)
{
    struct strbuf line = {0};
    html_row_begin(b);
    html_cell(b, v->name);
    html_cell_number(b, v->is_trace ? NAN : (double)v->bytes * 1e-6, 5);
    html_cell_number(b, v->bits_per_weight, 4);
    if (!p) {
        html_cell(b, "reference");
    } else if (!p->partings) {
        html_cell(b, "NOT COMPARABLE");
    } else {
        strbuf_printf(&line, "%zu of %zu", p->n_same, p->n_records);
        html_cell(b, line.data ? line.data : "");
    }
    if (p && p->forced) {
        put_interval(b, p->f.kl, 1, 4);
        put_interval(b, p->f.kl_rev, 1, 4);
        put_interval(b, p->f.kl_quantile[2], 1, 4);
        put_interval(b, p->f.agreement, 100, 4);
        put_interval(b, p->f.agreement_decided, 100, 4);
        html_cell_number(b, p->f.var_ppl, 5);
    } else {
        for (int i = 0; i < 6; i++)
            html_cell(b, "");
    }
    html_row_end(b);
    b->failed |= line.failed;
    strbuf_free(&line);
}

/* The reference against itself: the same columns, without weights and answers. */
static void put_floor_row(struct strbuf *b, const struct comparison *c)
{
    struct strbuf name = {0};
    strbuf_printf(&name, "noise floor: the reference in %s", c->floor_path);
    html_row_begin(b);
    html_cell(b, name.data ? name.data : "");
    for (int i = 0; i < 3; i++)
        html_cell(b, "");
    put_interval(b, c->floor.kl, 1, 4);
    put_interval(b, c->floor.kl_rev, 1, 4);
    put_interval(b, c->floor.kl_quantile[2], 1, 4);
    put_interval(b, c->floor.agreement, 100, 4);
    put_interval(b, c->floor.agreement_decided, 100, 4);
    html_cell_number(b, c->floor.var_ppl, 5);
    html_row_end(b);
    b->failed |= name.failed;
    strbuf_free(&name);
}

static void put_variants(struct strbuf *b, const struct comparison *c)
{
    static const struct html_column columns[] = {
        {"variant", NULL, false},
        {"MB", "all weights", true},
        {"bits/weight", "over all weights", true},
        {"same answers", "free-running, token for token", false},
        {"KL", "of the reference against the variant, nats a position; 95 % by prompt", true},
        {"KL reverse", "of the variant against the reference", true},
        {"KL 99 %", "quantile over positions", true},
        {"agreement %", "same best token", true},
        {"decided %", "the same, where the reference's margin is above its noise floor", true},
        {"perplexity", "on the reference's own answers", true},
    };
    html_heading(b, 2, "variants", "Variants");
    html_table_begin(b, NULL, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < c->n_variants; i++)
        put_variant_row(b, &c->variants[i], i ? &c->pairs[i - 1] : NULL);
    if (c->has_floor)
        put_floor_row(b, c);
    html_table_end(b);
}

/* ---- plots -------------------------------------------------------------------------------------
 */

static enum err_code put_size_plot(struct strbuf *b, const struct comparison *c, struct err *e)
{
    double *x = calloc(c->n_variants, sizeof *x), *y = calloc(c->n_variants, sizeof *y);
    const char **labels = calloc(c->n_variants, sizeof *labels);
    size_t n = 0;
    if (!x || !y || !labels) {
        free(x);
        free(y);
        free((void *)labels);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 1; i < c->n_variants; i++) {
        if (!c->pairs[i - 1].forced)
            continue;
        x[n] = (double)c->variants[i].bytes * 1e-6;
        y[n] = c->pairs[i - 1].f.kl.value;
        labels[n++] = c->variants[i].name;
    }
    if (n) {
        const struct svg_plot plot = {.title = "Size against quality",
                                      .x_label = "MB of weights",
                                      .y_label = "mean KL, nats"};
        const struct svg_series s = {NULL, x, y, n, labels};
        svg_scatter(b, &plot, &s, 1);
    }
    free(x);
    free(y);
    free((void *)labels);
    return ERR_OK;
}

/* Mean KL in equal ranges of the answer's index, one line per pair. */
static enum err_code put_kl_plot(struct strbuf *b, const struct comparison *c, struct err *e)
{
    size_t n_pairs = c->n_variants - 1, used = 0;
    int32_t last = 0;
    double *x = calloc(n_pairs * KL_BINS, sizeof *x), *y = calloc(n_pairs * KL_BINS, sizeof *y);
    struct svg_series *s = calloc(n_pairs, sizeof *s);
    if (!x || !y || !s) {
        free(x);
        free(y);
        free(s);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n_pairs; i++)
        for (size_t k = 0; k < c->pairs[i].n_positions; k++)
            last = MAX2(last, c->pairs[i].positions[k].index);
    double width = (double)(last + 1) / KL_BINS;
    for (size_t i = 0; i < n_pairs; i++) {
        const struct pair *p = &c->pairs[i];
        double weight[KL_BINS] = {0}, *px = x + i * KL_BINS, *py = y + i * KL_BINS;
        if (!p->forced)
            continue;
        for (size_t k = 0; k < p->n_positions; k++) {
            int bin = (int)((double)p->positions[k].index / width);
            py[bin] += p->positions[k].kl;
            weight[bin] += p->positions[k].finite;
        }
        for (int k = 0; k < KL_BINS; k++) {
            px[k] = (k + 0.5) * width;
            py[k] /= weight[k]; /* NaN where there is none: a gap */
        }
        s[used++] = (struct svg_series){p->var->name, px, py, KL_BINS, NULL};
    }
    if (used) {
        const struct svg_plot plot = {.title = "KL along the answer",
                                      .x_label = "token of the answer",
                                      .y_label = "mean KL, nats"};
        svg_lines(b, &plot, s, used);
    }
    free(x);
    free(y);
    free(s);
    return ERR_OK;
}

static enum err_code put_flip_plot(struct strbuf *b, const struct pair *p, struct err *e)
{
    uint64_t counts[20];
    char title[192];
    double *margin = calloc(p->n_positions + 1, sizeof *margin);
    size_t n = 0;
    if (!margin)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n_positions; i++)
        if (p->positions[i].ref_best != p->positions[i].var_best)
            margin[n++] = fmin((double)p->positions[i].ref_margin, 5);
    stats_histogram(margin, n, 0, 5, counts, ARRAY_LEN(counts));
    snprintf(title, sizeof title, "%s: margins of %zu flips (5 and more in the last bar)",
             p->var->name, n);
    const struct svg_plot plot = {
        .title = title, .x_label = "margin of the reference, logits", .y_label = "positions"};
    svg_histogram(b, &plot, 0, 5, counts, ARRAY_LEN(counts));
    free(margin);
    return ERR_OK;
}

/* ---- answers -----------------------------------------------------------------------------------
 */

static double record_kl(const struct pair *p, size_t record)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < p->n_positions; i++) {
        if ((size_t)p->positions[i].record != record)
            continue;
        sum += p->positions[i].kl;
        n += p->positions[i].finite;
    }
    return sum / n;
}

static void put_prompts(struct strbuf *b, const struct pair *p, const size_t *order)
{
    static const struct html_column columns[] = {
        {"answer", NULL, false},
        {"tokens", "of the reference", true},
        {"tokens, variant", NULL, true},
        {"common", "equal tokens at the start", true},
        {"margin, reference", "logits, where they part", true},
        {"margin, variant", "logits, where they part", true},
        {"mean KL", "forced along the reference", true},
    };
    html_table_begin(b, NULL, columns, ARRAY_LEN(columns));
    for (size_t i = 0; i < p->n_records; i++) {
        size_t at = order[i];
        const struct parting *q = &p->partings[at];
        const struct trace_record *r = &p->ref->trace->records[at];
        char name[160];
        snprintf(name, sizeof name, r->turn ? "%.128s, turn %d" : "%.128s", r->custom_id, r->turn);
        html_row_begin(b);
        html_cell(b, name);
        html_cell_int(b, (int64_t)r->n);
        html_cell_int(b, (int64_t)p->var->trace->records[at].n);
        html_cell_int(b, q->common);
        html_cell_number(b, (double)q->ref_margin, 4);
        html_cell_number(b, (double)q->var_margin, 4);
        html_cell_number(b, p->forced ? record_kl(p, at) : NAN, 4);
        html_row_end(b);
    }
    html_table_end(b);
}

static void put_piece(struct strbuf *b, const struct tokenizer *t, int32_t id)
{
    struct strbuf piece = {0};
    if (t && tokenizer_piece(t, id, &piece, NULL) == ERR_OK)
        html_escape(b, piece.data ? piece.data : "", piece.len);
    else
        strbuf_printf(b, " [%d]", id);
    b->failed |= piece.failed;
    strbuf_free(&piece);
}

/* Tokens around the parting, the first other one marked. */
static void put_tokens(struct strbuf *b, const struct tokenizer *t, const char *who,
                       const struct trace_record *r, int64_t common)
{
    int64_t from = MAX2(common - AROUND, 0), to = MIN2(common + AROUND, (int64_t)r->n);
    strbuf_puts(b, "<p><b>");
    html_text(b, who);
    strbuf_puts(b, "</b></p>\n<pre style=\"white-space:pre-wrap\">");
    if (from > 0)
        strbuf_puts(b, "... ");
    for (int64_t i = from; i < to; i++) {
        if (i == common)
            strbuf_puts(b, "<mark>");
        put_piece(b, t, r->tok[i].id);
        if (i == common)
            strbuf_puts(b, "</mark>");
    }
    strbuf_puts(b, to < (int64_t)r->n ? " ..." : "");
    if (common >= (int64_t)r->n)
        strbuf_printf(b, "<mark>[end: %s]</mark>", r->finish);
    strbuf_puts(b, "</pre>\n");
}

static void put_tops(struct strbuf *b, const struct tokenizer *t, const char *who,
                     const struct trace_record *r, int64_t at)
{
    if (at >= (int64_t)r->n || r->tok[at].n_top == 0)
        return;
    strbuf_puts(b, "<p>");
    html_text(b, who);
    strbuf_puts(b, ":");
    for (int k = 0; k < r->tok[at].n_top; k++) {
        strbuf_puts(b, " <code>");
        put_piece(b, t, r->tok[at].top_id[k]);
        strbuf_puts(b, "</code> ");
        report_number(b, exp((double)r->tok[at].top_logprob[k]) * 100, 3);
        strbuf_puts(b, " %");
    }
    strbuf_puts(b, "</p>\n");
}

static void put_view(struct strbuf *b, const struct comparison *c, const struct pair *p, size_t at)
{
    const struct tokenizer *t = compare_tokenizer(c);
    const struct trace_record *x = &p->ref->trace->records[at], *y = &p->var->trace->records[at];
    const struct parting *q = &p->partings[at];
    struct strbuf line = {0};
    strbuf_printf(&line, "%s: %s, parting at token %lld", p->var->name, x->custom_id,
                  (long long)q->common);
    html_fold_begin(b, line.data ? line.data : "");
    put_tokens(b, t, p->ref->name, x, q->common);
    put_tokens(b, t, p->var->name, y, q->common);
    html_paragraph(b, "Best tokens at the parting:");
    put_tops(b, t, p->ref->name, x, q->common);
    put_tops(b, t, p->var->name, y, q->common);
    html_fold_end(b);
    b->failed |= line.failed;
    strbuf_free(&line);
}

static enum err_code put_pair(struct strbuf *b, const struct comparison *c, const struct pair *p,
                              struct err *e)
{
    html_heading(b, 2, NULL, p->var->name);
    if (!p->partings) {
        html_paragraph(b, "NOT COMPARABLE: no figures.");
        html_paragraph(b, p->not_comparable);
        return ERR_OK;
    }
    size_t *order = report_worst(p);
    if (!order)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = p->forced ? put_flip_plot(b, p, e) : ERR_OK;
    where_html(c, p, b);
    html_heading(b, 3, NULL, "Answers, worst first");
    put_prompts(b, p, order);
    for (size_t i = 0; i < p->n_records && i < WORST_SHOWN; i++)
        if (!p->partings[order[i]].same_ids)
            put_view(b, c, p, order[i]);
    free(order);
    return rc;
}

static void put_reproduce(struct strbuf *b, const struct comparison *c)
{
    html_heading(b, 2, "reproduce", "How to reproduce");
    strbuf_puts(b, "<pre>assay compare");
    for (size_t i = 0; i < c->n_variants; i++) {
        strbuf_putc(b, ' ');
        html_text(b, c->variants[i].name);
    }
    strbuf_printf(b, " --arith %s --prompts PROMPTS -o report</pre>\n", c->arith);
    strbuf_printf(b, "<p>Prompt file SHA-256 %s, tokenizer %s, template %s. assay %s.</p>\n",
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
    enum err_code rc = put_size_plot(out, c, e);
    if (rc == ERR_OK)
        rc = put_kl_plot(out, c, e);
    for (size_t i = 0; i + 1 < c->n_variants && rc == ERR_OK; i++)
        rc = put_pair(out, c, &c->pairs[i], e);
    put_reproduce(out, c);
    html_page_end(out);
    return rc == ERR_OK ? strbuf_ok(out, e) : rc;
}
