/* report.h: a comparison as JSON, Markdown, CSV, JUnit, lines for a terminal and one HTML page.
 * Pure text makers: equal comparisons give equal bytes; no clock, no path but base names, no
 * measured time (those go to speed.json).
 */
#ifndef ASSAY_EVALS_REPORT_H
#define ASSAY_EVALS_REPORT_H

#include "evals/compare.h"

#define REPORT_VERSION 2

void report_json(const struct comparison *c, struct strbuf *out);     /* docs/formats.md */
void report_markdown(const struct comparison *c, struct strbuf *out); /* tables for a ticket */
MUST_USE enum err_code report_html(const struct comparison *c, struct strbuf *out, struct err *e);
void report_csv(const struct comparison *c, struct strbuf *out);         /* a line a variant */
void report_csv_answers(const struct comparison *c, struct strbuf *out); /* a line an answer */
MUST_USE enum err_code report_junit(const struct comparison *c, struct strbuf *out, struct err *e);
/* At most 25 lines for a terminal; dir: where the report is. */
void report_summary(const struct comparison *c, const char *dir, struct strbuf *out);
void report_speed(const struct comparison *c, struct strbuf *out); /* measured: never equal */

/* Shared by the writers. */
/* One sentence on a pair: "q4: other tokens in 14 of 20 answers; KL 0.0312 ..." */
void report_sentence(const struct pair *p, struct strbuf *out);
/* Numbers of the records of a pair, worst first: earliest parting relative to length, then by
 * order. heap; NULL when memory is out. */
size_t *report_worst(const struct pair *p);
/* Sums over the finite forced positions of one record; *at, its first position, moves past it. */
struct report_losses {
    size_t n, agree;
    double kl, nll_diff; /* nats; the variant's minus the reference's */
};
struct report_losses report_losses(const struct pair *p, size_t record, size_t *at);
/* A number with so many significant digits, "n/a" when it is not finite. */
void report_number(struct strbuf *out, double v, int digits);
/* ,"key":v with six digits: what libm's last bits cannot change; null when it is not finite. */
void report_json_figure(struct strbuf *out, const char *key, double v);

#endif
