/* report_plots.c: the plots of the page. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/svg.h"
#include "evals/report_page.h"

#define KL_BINS     32 /* points of the plot along the answer */
#define MARGIN_MOST 5  /* logits; greater margins are counted in words */
#define MARGIN_BINS 20

enum err_code report_plots_size(struct strbuf *b, const struct comparison *c, struct err *e)
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
enum err_code report_plots_kl(struct strbuf *b, const struct comparison *c, struct err *e)
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

enum err_code report_plots_margins(struct strbuf *b, const struct pair *p, struct err *e)
{
    uint64_t all[MARGIN_BINS], flips[MARGIN_BINS];
    char title[256];
    double *margin = calloc(p->n_positions + 1, sizeof *margin);
    size_t n = 0;
    if (!margin)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n_positions; i++)
        if (p->positions[i].ref_best != p->positions[i].var_best)
            margin[n++] = (double)p->positions[i].ref_margin;
    size_t flips_beyond = stats_histogram(margin, n, 0, MARGIN_MOST, flips, MARGIN_BINS);
    flips_beyond = n - flips_beyond;
    for (size_t i = 0; i < p->n_positions; i++)
        margin[i] = (double)p->positions[i].ref_margin;
    size_t beyond =
        p->n_positions - stats_histogram(margin, p->n_positions, 0, MARGIN_MOST, all, MARGIN_BINS);
    snprintf(title, sizeof title, "Margins and %zu flips; beyond %d: %zu, %zu of them flips", n,
             MARGIN_MOST, beyond, flips_beyond);
    const struct svg_plot plot = {
        .title = title, .x_label = "margin of the reference, logits", .y_label = "positions"};
    svg_histogram_parts(b, &plot, 0, MARGIN_MOST, all, "all positions", flips, "another best token",
                        MARGIN_BINS);
    free(margin);
    return ERR_OK;
}
