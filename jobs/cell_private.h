/* cell_private.h: a cell while it runs: its files, and runs of its prompts. */
#ifndef ASSAY_JOBS_CELL_PRIVATE_H
#define ASSAY_JOBS_CELL_PRIVATE_H

#include "jobs/cell.h"
#include "jobs/gates.h"

struct work {
    const struct sweep_run *run;
    const struct grid_cell *cell;
    const struct store_cell *base; /* NULL: none */
    struct cell_model model;
    char *dir; /* work/<index> */
    struct cell_result *r;
    struct err *e;
};

/* One run of the prompts. */
struct shot {
    struct hash_run hash;
    double seconds, tokens;
};

/* What differs from the cell's own settings; 0: nothing. */
struct path {
    int max_batch, chunk;
};

/* "<dir>/<label><ending>" on the heap; blanks of the label become '-'. NULL: out of memory. */
char *work_file(const struct work *w, const char *label, const char *ending);
enum err_code work_nomem(const struct work *w);
/* The command as a person would type it; nothing when it does not fit. */
void work_more(struct judgement *j, const struct child_args *a);
/* The options of infer and compare that the cell's setting and the path ask for. */
void work_settings(struct child_args *a, const struct sweep_setting *s, const struct path *p);

/* The words of infer for the cell's prompts. */
void shot_args(const struct work *w, const char *program, const struct path *p, const char *out,
               const char *trace, struct child_args *a);
/* A run of the prompts; when it fails the cell is broken and the return is ERR_OK. */
MUST_USE enum err_code shot_run(struct work *w, const char *program, const struct path *p,
                                const char *label, struct shot *s);

#endif
