/* grid.h: the cells of a sweep: every model with every recipe, prompt file and setting. Pure. */
#ifndef ASSAY_JOBS_GRID_H
#define ASSAY_JOBS_GRID_H

#include "jobs/sweep_file.h"

#define GRID_CELLS_MAX 10000
#define CELL_NAME_MAX  (4 * SWEEP_NAME_MAX + 4)

struct grid_cell {
    char name[CELL_NAME_MAX]; /* "model/recipe/prompts/setting" */
    /* SHA-256 of what is asked of a cell (prompts, settings), not of what answers (model, recipe,
     * program): results of another definition are not comparable. */
    char definition[SHA256_HEX];
    const struct sweep_model *model;
    const struct sweep_recipe *recipe;
    const struct sweep_prompts *prompts;
    const struct sweep_setting *setting;
};

struct grid {
    struct grid_cell *cells; /* in the order of the file, the last axis fastest */
    size_t n;
};

/* An axis without entries, two entries of one name and more than GRID_CELLS_MAX cells are
 * ERR_INPUT. The cells borrow from the file. */
MUST_USE enum err_code grid_expand(struct grid *g, const struct sweep_file *f, struct err *e);
void grid_free(struct grid *g);

#endif
