/* report_page.h: the parts of the comparison's page, one writer a section; the page itself and its
 * order are report_html.c's. Each appends markup that common/html.h made.
 */
#ifndef ASSAY_EVALS_REPORT_PAGE_H
#define ASSAY_EVALS_REPORT_PAGE_H

#include "evals/report.h"

/* A table's cell "0.0312 (0.02 .. 0.04)", scaled. */
void report_page_interval(struct strbuf *b, struct stats_interval v, double scale, int digits);
/* A table's cell with a verdict in its colour. */
void report_page_verdict(struct strbuf *b, enum pair_verdict v);

/* Bytes of weights against KL; KL along the answer; margins with the flips of a pair. */
MUST_USE enum err_code report_plots_size(struct strbuf *b, const struct comparison *c,
                                         struct err *e);
MUST_USE enum err_code report_plots_kl(struct strbuf *b, const struct comparison *c, struct err *e);
MUST_USE enum err_code report_plots_margins(struct strbuf *b, const struct pair *p, struct err *e);

/* Every figure, a row each; a column a variant, the noise floor last. */
void report_figures_table(struct strbuf *b, const struct comparison *c);

/* The answers of a pair, worst first, and the token view of the worst. */
MUST_USE enum err_code report_answers(struct strbuf *b, const struct comparison *c,
                                      const struct pair *p, struct err *e);

#endif
