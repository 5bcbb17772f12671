/* sweep_report.h: a run of the store as a page, JSON, Markdown, JUnit and Prometheus text. Made
 * from the store alone, so a run of last month reads as it did then (its trends end today).
 */
#ifndef ASSAY_JOBS_SWEEP_REPORT_H
#define ASSAY_JOBS_SWEEP_REPORT_H

#include "jobs/baseline.h"
#include "jobs/sweep_dir.h"

#define SWEEP_REPORT_VERSION 1 /* of report.json */

struct sweep_report {
    char title[256]; /* base name of the sweep file */
    struct store *store;
    struct store_run run;
    struct store_cell *cells; /* worst first, then in the order of the run */
    size_t n;
    struct baseline base;
    int64_t last_success; /* seconds since 1970; 0: never */
};

/* run 0: the newest. */
MUST_USE enum err_code sweep_report_read(struct sweep_report *r, struct store *s, int64_t run,
                                         const char *title, struct err *e);
void sweep_report_free(struct sweep_report *r);

MUST_USE enum err_code sweep_report_json(const struct sweep_report *r, struct strbuf *out,
                                         struct err *e);
void sweep_report_markdown(const struct sweep_report *r, struct strbuf *out);
MUST_USE enum err_code sweep_report_junit(const struct sweep_report *r, struct strbuf *out,
                                          struct err *e);
void sweep_report_prometheus(const struct sweep_report *r, struct strbuf *out);
MUST_USE enum err_code sweep_report_html(const struct sweep_report *r, struct strbuf *out,
                                         struct err *e);

/* All of them: report/ in the folder, and the Prometheus text at `prom` (NULL: sweep.prom in the
 * folder). `page` gets the path of report.html. */
MUST_USE enum err_code sweep_report_write(struct store *s, const struct sweep_dir *dir, int64_t run,
                                          const char *title, const char *prom, char *page,
                                          size_t page_size, struct err *e);

#endif
