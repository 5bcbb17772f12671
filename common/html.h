/* html.h: self-contained report pages.
 *
 * A page is one file: inline style, nothing fetched, at most the script of html_sort_script. It
 * follows the reader's light or dark setting and a phone's width. Text given here is escaped;
 * functions named ..._raw say where markup may pass. Colours are the variables --s0 .. --s7
 * (series), --good, --bad, --muted,
 * --line, --fg, --bg, which inline SVG uses too.
 */
#ifndef ASSAY_COMMON_HTML_H
#define ASSAY_COMMON_HTML_H

#include "common/str.h"

/* Appends text for HTML and XML, in content and in quoted attributes. Bytes that are no UTF-8
 * become U+FFFD; control characters other than tab and line feed are shown as their pictures
 * (U+2400 and up), so that hostile text can neither break the page nor hide in it. */
void html_escape(struct strbuf *b, const char *s, size_t len);
void html_text(struct strbuf *b, const char *s); /* html_escape of a whole string */

void html_page_begin(struct strbuf *b, const char *title);
void html_page_end(struct strbuf *b);
/* Before html_page_end: every table sorts by a column whose head is pressed. Without scripts the
 * page reads the same. */
void html_sort_script(struct strbuf *b);
void html_heading(struct strbuf *b, int level, const char *id, const char *text); /* id or NULL */
void html_paragraph(struct strbuf *b, const char *text);
/* A fold that is closed at first; end it with html_fold_end. */
void html_fold_begin(struct strbuf *b, const char *summary);
void html_fold_end(struct strbuf *b);

struct html_column {
    const char *name, *help; /* help: shown on hover, or NULL */
    bool number;             /* right aligned, digits of equal width */
};

void html_table_begin(struct strbuf *b, const char *caption, const struct html_column *columns,
                      size_t n); /* caption or NULL */
void html_row_begin(struct strbuf *b);
void html_cell(struct strbuf *b, const char *text);
void html_cell_number(struct strbuf *b, double v, int digits);
void html_cell_int(struct strbuf *b, int64_t v);
/* A cell with markup of the caller's; class is "", "number", "good" or "bad". */
void html_cell_raw_begin(struct strbuf *b, const char *class_name);
void html_cell_raw_end(struct strbuf *b);
void html_row_end(struct strbuf *b);
void html_table_end(struct strbuf *b);

#endif
