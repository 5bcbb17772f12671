/* svg.h: plots as inline SVG for html.h's pages.
 *
 * No script; a title and a description for readers that cannot see it; lines and text in
 * currentColor, series in the page's variables --s0 .. --s7. Points that are not finite (or not
 * positive on a logarithmic axis) leave a gap. Coordinates are rounded to hundredths, so equal data
 * gives equal bytes.
 */
#ifndef ASSAY_COMMON_SVG_H
#define ASSAY_COMMON_SVG_H

#include "common/str.h"

/* A range of y that is shaded over the whole width, such as what was accepted. */
struct svg_band {
    double lo, hi;
};

struct svg_plot {
    const char *title, *x_label, *y_label;
    int width, height;           /* 0: 640 x 320 */
    bool y_log;                  /* decades; lines and scatter only */
    const struct svg_band *band; /* NULL: none; lines and scatter only */
};

struct svg_series {
    const char *name; /* for the legend, which appears from two series on; or NULL */
    const double *x, *y;
    size_t n;
    const char *const *labels; /* scatter: a word at each point, or NULL */
};

void svg_lines(struct strbuf *b, const struct svg_plot *p, const struct svg_series *series,
               size_t n);
void svg_scatter(struct strbuf *b, const struct svg_plot *p, const struct svg_series *series,
                 size_t n);
/* One bar per name, from zero. */
void svg_bars(struct strbuf *b, const struct svg_plot *p, const char *const *names,
              const double *values, size_t n);
/* Equal bins over [lo, hi]. */
void svg_histogram(struct strbuf *b, const struct svg_plot *p, double lo, double hi,
                   const uint64_t *counts, size_t n_bins);
/* The same with a part of each bin drawn over it; the legend names both. */
void svg_histogram_parts(struct strbuf *b, const struct svg_plot *p, double lo, double hi,
                         const uint64_t *counts, const char *name, const uint64_t *part,
                         const char *part_name, size_t n_bins);

#endif
