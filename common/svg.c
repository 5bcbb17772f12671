/* svg.c: axes, ticks and marks.
 *
 * All arithmetic is correctly rounded (the logarithm is made here from such operations), because a
 * plot's bytes are part of a report that must not differ between machines.
 */
#include "common/svg.h"

#include <locale.h>
#include <math.h>

#include "common/html.h"

#define WIDTH     640
#define HEIGHT    320
#define LEFT      72
#define RIGHT     16
#define TOP       36
#define BOTTOM    48
#define LEGEND    20 /* height of a legend's row */
#define TICKS     6  /* about as many on an axis */
#define TICKS_MAX 24
#define SERIES    8     /* colours */
#define DRAWN_MAX 1e290 /* beyond, the differences of coordinates would overflow */

struct axis {
    double lo, hi;   /* of the data, logarithms on a logarithmic axis */
    double from, to; /* pixels of lo and hi */
    double ticks[TICKS_MAX];
    size_t n_ticks;
    double step; /* between ticks; says how many decimals they need */
    bool log;
};

struct frame {
    const struct svg_plot *plot;
    int width, height;
    double bottom; /* pixel of the x axis */
    struct axis x, y;
};

/* log10 from exact halvings and the series of atanh, which converges quickly on [1/sqrt 2, sqrt 2].
 */
static double log10_of(double v)
{
    int exponent;
    double m = frexp(v, &exponent);
    if (m < 0.70710678118654752) {
        m *= 2;
        exponent--;
    }
    double z = (m - 1) / (m + 1), zz = z * z, power = z, sum = 0;
    for (int k = 1; k < 40; k += 2) {
        sum += power / k;
        power *= zz;
    }
    return (2 * sum + exponent * 0.69314718055994531) / 2.3025850929940457;
}

/* The value on the axis; NaN for what cannot be drawn. */
static double scaled(const struct axis *a, double v)
{
    if (!(fabs(v) <= DRAWN_MAX) || (a->log && v <= 0))
        return (double)NAN;
    return a->log ? log10_of(v) : v;
}

/* Of a number on the axis, such as a tick. */
static double place(const struct axis *a, double v)
{
    return a->from + (v - a->lo) / (a->hi - a->lo) * (a->to - a->from);
}

/* Of a value of the data. */
static double to_pixel(const struct axis *a, double v)
{
    return place(a, scaled(a, v));
}

/* Hundredths of a pixel, from integers: the C library's locale has no say. */
static void put_coord(struct strbuf *b, double v)
{
    long long h = llround(v * 100), a = h < 0 ? -h : h;
    strbuf_printf(b, "%s%lld", h < 0 ? "-" : "", a / 100);
    if (a % 100)
        strbuf_printf(b, a % 10 ? ".%02lld" : ".%lld", a % 10 ? a % 100 : a % 100 / 10);
}

static void put_attr(struct strbuf *b, const char *name, double v)
{
    strbuf_printf(b, " %s=\"", name);
    put_coord(b, v);
    strbuf_putc(b, '"');
}

static void put_line(struct strbuf *b, double x1, double y1, double x2, double y2,
                     const char *colour)
{
    strbuf_puts(b, "<line");
    put_attr(b, "x1", x1);
    put_attr(b, "y1", y1);
    put_attr(b, "x2", x2);
    put_attr(b, "y2", y2);
    strbuf_printf(b, " stroke=\"%s\"/>\n", colour);
}

static void put_text(struct strbuf *b, double x, double y, const char *anchor, const char *text)
{
    strbuf_puts(b, "<text");
    put_attr(b, "x", x);
    put_attr(b, "y", y);
    strbuf_printf(b, " text-anchor=\"%s\">", anchor);
    html_text(b, text);
    strbuf_puts(b, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, at least v. */
static double round_step(double v)
{
    double ten = 1;
    while (ten * 10 <= v)
        ten *= 10;
    while (ten > v)
        ten /= 10;
    return v <= ten ? ten : v <= 2 * ten ? 2 * ten : v <= 5 * ten ? 5 * ten : 10 * ten;
}

static void add_tick(struct axis *a, double v)
{
    if (a->n_ticks < TICKS_MAX)
        a->ticks[a->n_ticks++] = v;
}

/* Sets the ticks and widens the range to whole ticks. A range that doubles can hardly divide is
 * treated as one value, so that counting by steps always arrives. */
static void set_ticks(struct axis *a)
{
    double size = MAX2(fabs(a->lo), fabs(a->hi));
    if (!(a->hi - a->lo > 1e-12 * size) || !(a->hi - a->lo > 1e-290)) {
        double middle = isfinite(a->lo) ? a->lo : 0;
        double half = size > 1e-280 ? size / 2 : 1;
        a->lo = middle - half;
        a->hi = middle + half;
    }
    a->step = round_step((a->hi - a->lo) / TICKS);
    if (a->log && a->step < 1)
        a->step = 1;
    double first = floor(a->lo / a->step), last = ceil(a->hi / a->step);
    a->lo = first * a->step;
    a->hi = last * a->step;
    for (double k = first; k <= last; k++)
        add_tick(a, k * a->step);
}

static void put_tick_label(struct strbuf *b, const struct axis *a, double v)
{
    if (a->log) {
        strbuf_printf(b, "1e%d", (int)v);
        return;
    }
    double size = MAX2(fabs(a->lo), fabs(a->hi));
    locale_t old = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (fabs(v) < a->step / 2) {
        strbuf_putc(b, '0');
    } else if (size >= 1e6 || size < 1e-3) {
        /* Multiples of the step carry few digits; what rounding left at the end is cut. */
        strbuf_printf(b, "%.4g", v);
    } else {
        int decimals = 0;
        for (double s = a->step; s < 0.999 && decimals < 9; s *= 10)
            decimals++;
        strbuf_printf(b, "%.*f", decimals, v);
    }
    uselocale(old);
}

static void extend(struct axis *a, double v)
{
    v = scaled(a, v);
    if (!isfinite(v))
        return;
    if (!(a->lo <= v))
        a->lo = v;
    if (!(a->hi >= v))
        a->hi = v;
}

static void begin(struct strbuf *b, struct frame *f, const struct svg_plot *p, size_t legend_rows)
{
    int width = p->width > 0 ? p->width : WIDTH, height = p->height > 0 ? p->height : HEIGHT;
    *f = (struct frame){.plot = p, .width = width, .height = height + (int)legend_rows * LEGEND};
    f->bottom = height - BOTTOM;
    f->x = (struct axis){.lo = NAN, .hi = NAN, .from = LEFT, .to = width - RIGHT};
    f->y = (struct axis){.lo = NAN, .hi = NAN, .from = f->bottom, .to = TOP, .log = p->y_log};
    strbuf_printf(b,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\" font-family=\"system-ui,sans-serif\" "
                  "font-size=\"12\" fill=\"currentColor\">\n<title>",
                  f->width, f->height, f->width, f->height);
    html_text(b, p->title ? p->title : "");
    strbuf_puts(b, "</title>\n<desc>");
    html_text(b, p->y_label ? p->y_label : "");
    strbuf_puts(b, " by ");
    html_text(b, p->x_label ? p->x_label : "");
    strbuf_puts(b, "</desc>\n");
    put_text(b, LEFT, 18, "start", p->title ? p->title : "");
}

static void put_y_axis(struct strbuf *b, const struct frame *f)
{
    for (size_t i = 0; i < f->y.n_ticks; i++) {
        double v = f->y.ticks[i], at = place(&f->y, v);
        struct strbuf label = {0};
        put_line(b, LEFT, at, f->width - RIGHT, at, "var(--line,#ccc)");
        put_tick_label(&label, &f->y, v);
        put_text(b, LEFT - 6, at + 4, "end", label.data ? label.data : "");
        strbuf_free(&label);
    }
    if (f->plot->y_label)
        put_text(b, f->width - RIGHT, 18, "end", f->plot->y_label);
}

static void put_x_label(struct strbuf *b, const struct frame *f)
{
    put_line(b, LEFT, f->bottom, f->width - RIGHT, f->bottom, "currentColor");
    if (f->plot->x_label)
        put_text(b, (LEFT + f->width - RIGHT) / 2.0, f->bottom + 36, "middle", f->plot->x_label);
}

static void put_x_axis(struct strbuf *b, const struct frame *f)
{
    for (size_t i = 0; i < f->x.n_ticks; i++) {
        double v = f->x.ticks[i], at = place(&f->x, v);
        if (at > f->width - RIGHT + 1 || at < LEFT - 1)
            continue;
        struct strbuf label = {0};
        put_line(b, at, f->bottom, at, f->bottom + 4, "currentColor");
        put_tick_label(&label, &f->x, v);
        put_text(b, at, f->bottom + 17, "middle", label.data ? label.data : "");
        strbuf_free(&label);
    }
    put_x_label(b, f);
}

static void put_legend(struct strbuf *b, const struct frame *f, const struct svg_series *series,
                       size_t n)
{
    for (size_t i = 0; n > 1 && i < n; i++) {
        double y = f->height - (double)LEGEND * (double)(n - i) + 10;
        strbuf_puts(b, "<rect");
        put_attr(b, "x", LEFT);
        put_attr(b, "y", y - 9);
        strbuf_printf(b, " width=\"10\" height=\"10\" fill=\"var(--s%zu,currentColor)\"/>\n",
                      i % SERIES);
        put_text(b, LEFT + 16, y, "start", series[i].name ? series[i].name : "");
    }
}

/* At least two pixels high, so that a single value can be seen. */
static void put_band(struct strbuf *b, const struct frame *f)
{
    const struct svg_band *band = f->plot->band;
    double top = band ? to_pixel(&f->y, band->hi) : (double)NAN;
    double bottom = band ? to_pixel(&f->y, band->lo) : (double)NAN;
    if (!isfinite(top) || !isfinite(bottom) || bottom < top)
        return;
    double height = MAX2(bottom - top, 2.0);
    strbuf_puts(b, "<rect");
    put_attr(b, "x", LEFT);
    put_attr(b, "y", (top + bottom - height) / 2);
    put_attr(b, "width", f->width - LEFT - RIGHT);
    put_attr(b, "height", height);
    strbuf_puts(b, " fill=\"var(--muted,#888)\" fill-opacity=\"0.2\"/>\n");
}

/* Frame, axes, band and legend of plots with two number axes. */
static void begin_xy(struct strbuf *b, struct frame *f, const struct svg_plot *p,
                     const struct svg_series *series, size_t n)
{
    begin(b, f, p, n > 1 ? n : 0);
    for (size_t s = 0; s < n; s++) {
        for (size_t i = 0; i < series[s].n; i++) {
            if (!isfinite(scaled(&f->x, series[s].x[i])) ||
                !isfinite(scaled(&f->y, series[s].y[i])))
                continue;
            extend(&f->x, series[s].x[i]);
            extend(&f->y, series[s].y[i]);
        }
    }
    if (p->band) {
        extend(&f->y, p->band->lo);
        extend(&f->y, p->band->hi);
    }
    set_ticks(&f->x);
    set_ticks(&f->y);
    put_band(b, f);
    put_y_axis(b, f);
    put_x_axis(b, f);
    put_legend(b, f, series, n);
}

void svg_lines(struct strbuf *b, const struct svg_plot *p, const struct svg_series *series,
               size_t n)
{
    struct frame f;
    begin_xy(b, &f, p, series, n);
    for (size_t s = 0; s < n; s++) {
        strbuf_printf(b,
                      "<path fill=\"none\" stroke=\"var(--s%zu,currentColor)\" "
                      "stroke-width=\"1.5\" d=\"",
                      s % SERIES);
        bool pen_down = false;
        for (size_t i = 0; i < series[s].n; i++) {
            double x = to_pixel(&f.x, series[s].x[i]), y = to_pixel(&f.y, series[s].y[i]);
            if (!isfinite(x) || !isfinite(y)) {
                pen_down = false;
                continue;
            }
            strbuf_putc(b, pen_down ? 'L' : 'M');
            put_coord(b, x);
            strbuf_putc(b, ' ');
            put_coord(b, y);
            pen_down = true;
        }
        strbuf_puts(b, "\"/>\n");
    }
    strbuf_puts(b, "</svg>\n");
}

/* ---- words at points ---------------------------------------------------------------------------
 *
 * Letters are taken to be WORD_WIDTH wide, more than they are on the whole. A word stands beside
 * its point, above or below, further up or down when another word is there already. Of a long name
 * both ends are shown.
 */
#define WORD_WIDTH  7.0
#define WORD_HEIGHT 14.0
#define WORD_MOST   28 /* letters */
#define WORDS_MAX   64 /* later ones may meet */

struct word {
    double left, right, y; /* y: base line */
};

static bool is_free(const struct frame *f, const struct word *w, const struct word *taken, size_t n)
{
    if (w->left < LEFT || w->right > f->width - RIGHT || w->y < TOP + 2 || w->y > f->bottom - 2)
        return false;
    for (size_t i = 0; i < n; i++)
        if (w->left < taken[i].right && taken[i].left < w->right &&
            fabs(w->y - taken[i].y) < WORD_HEIGHT)
            return false;
    return true;
}

/* Letters of valid text. */
static size_t letters(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static void shorten(const char *s, struct strbuf *out)
{
    size_t n = letters(s), at = 0;
    for (const char *from = s; *from; at++) {
        const char *next = from + 1;
        while (((unsigned char)*next & 0xc0) == 0x80)
            next++;
        if (n <= WORD_MOST || at < WORD_MOST / 2 - 2 || at >= n - WORD_MOST / 2)
            strbuf_append(out, from, (size_t)(next - from));
        else if (at == WORD_MOST / 2 - 2)
            strbuf_puts(out, "..");
        from = next;
    }
}

static void put_word(struct strbuf *b, const struct frame *f, double x, double y, const char *label,
                     struct word *taken, size_t *n)
{
    struct strbuf text = {0};
    shorten(label, &text);
    double width = WORD_WIDTH * (double)letters(text.data ? text.data : "");
    /* Words of points on the right half stand to the left, inside the plot. */
    bool first_left = x > (LEFT + f->width - RIGHT) / 2.0, left = first_left;
    struct word w = {.y = 0};
    for (int i = 0; i < 40; i++) {
        double off = WORD_HEIGHT * (double)(i / 4);
        left = (i % 2 == 0) == first_left;
        w.left = left ? x - 6 - width : x + 6;
        w.right = w.left + width;
        w.y = i / 2 % 2 == 0 ? y - 5 - off : y + 13 + off;
        if (is_free(f, &w, taken, *n))
            break;
    }
    if (*n < WORDS_MAX)
        taken[(*n)++] = w;
    put_text(b, left ? w.right : w.left, w.y, left ? "end" : "start", text.data ? text.data : "");
    b->failed |= text.failed;
    strbuf_free(&text);
}

void svg_scatter(struct strbuf *b, const struct svg_plot *p, const struct svg_series *series,
                 size_t n)
{
    struct frame f;
    struct word taken[WORDS_MAX];
    size_t n_taken = 0;
    begin_xy(b, &f, p, series, n);
    for (size_t s = 0; s < n; s++) {
        for (size_t i = 0; i < series[s].n; i++) {
            double x = to_pixel(&f.x, series[s].x[i]), y = to_pixel(&f.y, series[s].y[i]);
            if (!isfinite(x) || !isfinite(y))
                continue;
            strbuf_puts(b, "<circle");
            put_attr(b, "cx", x);
            put_attr(b, "cy", y);
            strbuf_printf(b, " r=\"3\" fill=\"var(--s%zu,currentColor)\"/>\n", s % SERIES);
            if (series[s].labels && series[s].labels[i])
                put_word(b, &f, x, y, series[s].labels[i], taken, &n_taken);
        }
    }
    strbuf_puts(b, "</svg>\n");
}

static void put_bar(struct strbuf *b, const struct frame *f, double x, double width, double value,
                    int colour)
{
    double zero = to_pixel(&f->y, 0), top = to_pixel(&f->y, value);
    strbuf_puts(b, "<rect");
    put_attr(b, "x", x);
    put_attr(b, "y", MIN2(zero, top));
    put_attr(b, "width", width);
    put_attr(b, "height", fabs(zero - top));
    strbuf_printf(b, " fill=\"var(--s%d,currentColor)\"/>\n", colour);
}

void svg_bars(struct strbuf *b, const struct svg_plot *p, const char *const *names,
              const double *values, size_t n)
{
    struct frame f;
    begin(b, &f, p, 0);
    f.y.log = false; /* a bar's length means nothing without its zero */
    extend(&f.y, 0);
    for (size_t i = 0; i < n; i++)
        extend(&f.y, values[i]);
    set_ticks(&f.y);
    put_y_axis(b, &f);
    put_x_label(b, &f);
    double slot = (f.width - LEFT - RIGHT) / (double)MAX2(n, 1);
    for (size_t i = 0; i < n; i++) {
        double x = LEFT + slot * (double)i;
        if (isfinite(scaled(&f.y, values[i])))
            put_bar(b, &f, x + slot * 0.15, slot * 0.7, values[i], 0);
        put_text(b, x + slot / 2, f.bottom + 17, "middle", names[i]);
    }
    strbuf_puts(b, "</svg>\n");
}

static void put_bins(struct strbuf *b, const struct frame *f, double lo, double hi,
                     const uint64_t *counts, size_t n_bins, int colour)
{
    double bin = (hi - lo) / (double)MAX2(n_bins, 1);
    for (size_t i = 0; i < n_bins; i++) {
        double x = to_pixel(&f->x, lo + bin * (double)i);
        double end = to_pixel(&f->x, lo + bin * (double)(i + 1));
        if (counts[i])
            put_bar(b, f, x, MAX2(end - x - 1, 1.0), (double)counts[i], colour);
    }
}

/* series: for the legend alone; NULL: none. */
static void begin_histogram(struct strbuf *b, struct frame *f, const struct svg_plot *p, double lo,
                            double hi, const uint64_t *counts, size_t n_bins,
                            const struct svg_series *series, size_t n_series)
{
    begin(b, f, p, n_series);
    f->y.log = false;
    extend(&f->y, 0);
    for (size_t i = 0; i < n_bins; i++)
        extend(&f->y, (double)counts[i]);
    f->x.lo = lo;
    f->x.hi = hi;
    set_ticks(&f->x);
    set_ticks(&f->y);
    put_y_axis(b, f);
    put_x_axis(b, f);
    put_legend(b, f, series, n_series);
}

void svg_histogram(struct strbuf *b, const struct svg_plot *p, double lo, double hi,
                   const uint64_t *counts, size_t n_bins)
{
    struct frame f;
    begin_histogram(b, &f, p, lo, hi, counts, n_bins, NULL, 0);
    put_bins(b, &f, lo, hi, counts, n_bins, 0);
    strbuf_puts(b, "</svg>\n");
}

void svg_histogram_parts(struct strbuf *b, const struct svg_plot *p, double lo, double hi,
                         const uint64_t *counts, const char *name, const uint64_t *part,
                         const char *part_name, size_t n_bins)
{
    const struct svg_series names[] = {{.name = name}, {.name = part_name}};
    struct frame f;
    begin_histogram(b, &f, p, lo, hi, counts, n_bins, names, ARRAY_LEN(names));
    put_bins(b, &f, lo, hi, counts, n_bins, 0);
    put_bins(b, &f, lo, hi, part, n_bins, 1);
    strbuf_puts(b, "</svg>\n");
}
