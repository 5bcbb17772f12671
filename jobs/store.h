/* store.h: what the sweep knows of its runs: SQLite in sweep.db (schema in docs/formats.md).
 *
 * The store has a version; an older one is migrated in one transaction, a newer one and a database
 * that is none of ours are ERR_INPUT and left as they are. Rows of a run are written as it goes,
 * so a run that died is in the history without an end.
 */
#ifndef ASSAY_JOBS_STORE_H
#define ASSAY_JOBS_STORE_H

#include "jobs/evidence.h"

#define STORE_VERSION 2

struct store;
/* create: made when it is not there; otherwise that is ERR_INPUT. */
MUST_USE enum err_code store_open(struct store **s, const char *path, bool create, struct err *e);
void store_close(struct store *s);

/* ---- writing a run ------------------------------------------------------------------------------
 */
struct store_run {
    int64_t id, began, ended; /* seconds since 1970; ended 0: it died or is at work */
    char sweep[SHA256_HEX], program[SHA256_HEX];
    int exit_code;
    char verdict[32];
    int64_t n_cells, n_passed;
};

MUST_USE enum err_code store_begin(struct store *s, struct store_run *r, struct err *e);
MUST_USE enum err_code store_environment(struct store *s, int64_t run, const char *key,
                                         const char *value, struct err *e);
MUST_USE enum err_code store_cell(struct store *s, int64_t run, const struct cell_result *c,
                                  struct err *e);
MUST_USE enum err_code store_end(struct store *s, const struct store_run *r, struct err *e);

/* ---- reading ------------------------------------------------------------------------------------
 */
/* Newest first, at most max; *n gets how many. */
MUST_USE enum err_code store_runs(struct store *s, struct store_run *runs, size_t max, size_t *n,
                                  struct err *e);
/* id 0: the newest. No such run: ERR_INPUT. */
MUST_USE enum err_code store_run_read(struct store *s, int64_t id, struct store_run *r,
                                      struct err *e);
/* 0: never. */
MUST_USE enum err_code store_last_success(struct store *s, int64_t *ended, struct err *e);
MUST_USE enum err_code store_environment_each(struct store *s, int64_t run,
                                              void (*fn)(void *ctx, const char *key,
                                                         const char *value),
                                              void *ctx, struct err *e);

/* A cell of the past, as rows have it. */
struct store_cell {
    int64_t id, run;
    char name[CELL_NAME_MAX], definition[SHA256_HEX];
    enum verdict verdict;
    char words[400];
    char model[SHA256_HEX], trace[SHA256_HEX], report[SHA256_HEX], program[SHA256_HEX];
    struct judgement gate[GATE_COUNT];
    struct stats_interval kl, agreement, log_ppl_ratio, tokens_per_second; /* NaN: none */
};
/* In the order of the run; heap, free(). */
MUST_USE enum err_code store_cells(struct store *s, int64_t run, struct store_cell **cells,
                                   size_t *n, struct err *e);

/* A figure over the runs, oldest first. */
struct store_point {
    int64_t run;
    double value;
};
MUST_USE enum err_code store_trend(struct store *s, const char *cell, const char *figure,
                                   struct store_point *points, size_t max, size_t *n,
                                   struct err *e);
/* Rounds of earlier runs of this cell on this machine, newest run first, for paired_speed:
 * appended at rounds[*n_rounds] and n[*n_runs]. */
MUST_USE enum err_code store_past_rounds(struct store *s, const struct cell_result *c,
                                         const char *machine, struct speed_round *rounds,
                                         size_t max, size_t *n_rounds, size_t *n, size_t max_runs,
                                         size_t *n_runs, struct err *e);

/* ---- the hash of a file that has not changed ----------------------------------------------------
 */
/* SHA-256 of a file: of the store when size, time of change and inode are what they were. */
MUST_USE enum err_code store_file_hash(struct store *s, const char *path, char sha256[SHA256_HEX],
                                       struct err *e);

/* True when a baseline or one of the last `runs` runs refers to this object. */
bool store_uses(struct store *s, const char *sha256, int runs);

#endif
