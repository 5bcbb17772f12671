/* sweep.h: a run of a sweep: every cell, the store, the reports, the verdict as an exit code. */
#ifndef ASSAY_JOBS_SWEEP_H
#define ASSAY_JOBS_SWEEP_H

#include "jobs/evidence.h"

struct sweep_options {
    const char *file;    /* the sweep file */
    const char *program; /* NULL: this program itself */
    const char *out;     /* the sweep's folder; NULL: what the file says */
    const char *prom;    /* where the Prometheus text goes; NULL: sweep.prom in the folder */
    const volatile int *interrupted;
    void (*on_cell)(void *ctx, size_t done, size_t n, const char *name); /* before each cell */
    void *ctx;
};

struct sweep_summary {
    int64_t run;
    size_t n_cells;
    bool recorded;        /* without a baseline, and the file says first_run: record */
    enum verdict verdict; /* the worst of the cells */
    char counts[200];     /* "3 PASS, 1 FAILED" */
    char report[4096];    /* path of report.html; empty: none was written */
    /* The worst cells, at most SWEEP_WORST: name and words. */
#define SWEEP_WORST 8
    char worst[SWEEP_WORST][700];
    size_t n_worst;
};

/* ERR_OK: nothing with evidence failed, and nothing is missing. Otherwise what the worst cell means
 * (ERR_DETERMINISM before ERR_NEGATIVE before what broke), with a summary, or an error of our own
 * (ERR_BUSY: another run is at work; ERR_INPUT: the file). */
MUST_USE enum err_code sweep_run_file(const struct sweep_options *o, struct sweep_summary *s,
                                      struct err *e);

/* What a run comes to, from its cells. Pure. */
enum err_code sweep_conclude(const struct cell_result *cells, size_t n, bool may_record);

#endif
