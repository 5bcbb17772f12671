/* sweep_file.h: the sweep file: what a grid is made of and what it is judged by. recipes/sweeps and
 * docs/sweep.md have the schema. Paths in it are relative to its own folder.
 */
#ifndef ASSAY_JOBS_SWEEP_FILE_H
#define ASSAY_JOBS_SWEEP_FILE_H

#include "common/hash.h"

#define SWEEP_NAME_MAX  64 /* bytes of a name of the file */
#define SWEEP_AXIS_MAX  64 /* entries of an axis */
#define SWEEP_PATHS_MAX 4  /* values of an invariance axis */

struct sweep_model {
    char *name, *path;
    char *hint; /* said when the model is missing, or NULL */
};

struct sweep_recipe {
    char *name, *path; /* path NULL: the model as it is */
    char sha256[SHA256_HEX];
};

struct sweep_prompts {
    char *name, *path;
    char sha256[SHA256_HEX];
};

struct sweep_setting {
    char *name, *arith, *device; /* arith, device: NULL leaves it to the program */
    int threads, max_batch, batch_tokens, max_tokens, max_ctx; /* 0: the program's own */
    bool chat;
};

struct sweep_limits {
    int seconds, total_seconds; /* of a child, of a whole run; 0: none */
    int memory_mb;              /* of a child; 0: none */
    int retries;
    double pause;
};

struct sweep_quality {
    bool asked;
    double kl, agreement, perplexity; /* ceilings and floor of the figures; NaN: none */
    double rise; /* a change against the baseline below this share of it is not looked at */
};

struct sweep_gates {
    int repeat_runs;
    bool invariance;
    int max_batch[SWEEP_PATHS_MAX], chunk[SWEEP_PATHS_MAX];
    unsigned n_max_batch, n_chunk;
    bool tokens, tokens_ids_only;
    struct sweep_quality quality;
    int speed_rounds; /* 0: not asked */
};

struct sweep_file {
    char *path, *dir, *why, *out; /* out: the folder of the sweep */
    char sha256[SHA256_HEX];      /* of the file's bytes */
    bool first_run_records;
    struct sweep_model *models;
    struct sweep_recipe *recipes;
    struct sweep_prompts *prompts;
    struct sweep_setting *settings;
    unsigned n_models, n_recipes, n_prompts, n_settings;
    char **variants; /* folders whose subfolders may be variants that are there already */
    unsigned n_variants;
    struct sweep_limits limits;
    struct sweep_gates gates;
};

/* `path` gives names to errors and the folder to relative paths. Reads no other file. */
MUST_USE enum err_code sweep_file_parse(struct sweep_file **f, const char *text, size_t len,
                                        const char *path, struct err *e);
/* The same from a file; then the recipes and prompt files must be there, and their hashes are
 * filled. A missing model is no error here: its cells say so. */
MUST_USE enum err_code sweep_file_read(struct sweep_file **f, const char *path, struct err *e);
void sweep_file_free(struct sweep_file *f);

#endif
