/* cell.h: one cell of the grid, from its children to its evidence and verdicts.
 *
 * Everything that knows a model runs as `assay quantize`, `infer` and `compare` in processes of
 * their own; this folder sees their documented files and exit codes alone.
 */
#ifndef ASSAY_JOBS_CELL_H
#define ASSAY_JOBS_CELL_H

#include "jobs/baseline.h"
#include "jobs/child.h"
#include "jobs/sweep_dir.h"

/* What the cells of a run share. */
struct sweep_run {
    const struct sweep_file *file;
    const struct sweep_dir *dir;
    struct store *store;
    const struct baseline *base;
    const char *program; /* the assay that is judged; a path */
    char program_sha256[SHA256_HEX];
    char machine[256]; /* what the noise of times depends on */
    struct child_limits limits;
    const volatile int *interrupted;
};

/* A checkpoint to run: the model itself or a variant of it. */
struct cell_model {
    char *path;              /* heap */
    char sha256[SHA256_HEX]; /* of what it is made of */
};

/* Finds or quantizes the variant of a cell. What is wrong with it goes to r (MISSING or BROKEN)
 * and the return is ERR_OK; errors are our own: an interruption, a full disk, the store. */
MUST_USE enum err_code variant_prepare(const struct sweep_run *run, const struct grid_cell *cell,
                                       struct cell_model *m, struct cell_result *r, struct err *e);

/* Runs and judges a cell; `index` names its files in work/. Errors as above. */
MUST_USE enum err_code cell_run(const struct sweep_run *run, const struct grid_cell *cell,
                                size_t index, struct cell_result *r, struct err *e);

/* Marks a cell as broken by something that happened: the first reason stays. */
void cell_broken(struct cell_result *r, enum verdict v, enum err_code code, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Runs a child of a cell in `work`; false with *rc ERR_OK: it did not end with an allowed code
 * (`allowed` as text, "01") and the cell is broken. */
bool cell_child(const struct sweep_run *run, const struct child_args *argv, const char *out,
                const char *log, const char *allowed, struct cell_result *r, int *code,
                enum err_code *rc, struct err *e);

#endif
