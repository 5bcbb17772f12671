/* variant.c: which checkpoint a cell runs.
 *
 * A variant that is there is used when its assay.json says: made by quantize of this version, from
 * this recipe (by hash) and from these source files (by hash), and when its own files still have
 * the hashes that it promises. It is looked for among the sweep's own and in the folders that the
 * sweep file names, which are never written to. Otherwise it is quantized into variants/.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/json.h"
#include "jobs/cell.h"

/* How a folder answers: it is the wanted variant, another one, or the wanted one and damaged. */
enum fit { FITS, OTHER, DAMAGED };

static const char *string_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* A name from a manifest must stay inside its folder. */
static bool plain_name(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/');
}

/* Are these entries {name, bytes, sha256} what lies in dir? `file`: the one file there is. */
static enum err_code entries_hold(struct store *s, const json_t *list, const char *dir,
                                  const char *file, bool *hold, char *which, size_t which_size,
                                  struct err *e)
{
    *hold = json_array_size(list) > 0;
    for (size_t i = 0; *hold && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = string_of(entry, "name");
        char sha256[SHA256_HEX];
        if (!plain_name(name) || (file && strcmp(name, io_base(file)) != 0)) {
            *hold = false;
            break;
        }
        char *path = file ? strdup(file) : io_join(dir, name);
        if (!path)
            return err_set(e, ERR_NOMEM, "out of memory");
        enum err_code rc =
            io_exists(path) && !io_is_dir(path) ? store_file_hash(s, path, sha256, e) : ERR_OK;
        *hold =
            io_exists(path) && !io_is_dir(path) && strcmp(sha256, string_of(entry, "sha256")) == 0;
        free(path);
        if (rc != ERR_OK)
            return rc;
        if (!*hold)
            snprintf(which, which_size, "%.100s", name);
    }
    return ERR_OK;
}

/* Tokenizer and template are carried over without being sources; they decide tokens too. */
static enum err_code carried_hold(struct store *s, const char *model, const char *variant,
                                  bool *hold, struct err *e)
{
    static const char *const names[] = {"tokenizer.json", "chat_template.jinja"};
    *hold = true;
    for (size_t i = 0; *hold && io_is_dir(model) && i < ARRAY_LEN(names); i++) {
        char a[SHA256_HEX] = "", b[SHA256_HEX] = "";
        char *from = io_join(model, names[i]), *to = io_join(variant, names[i]);
        enum err_code rc = from && to ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
        if (rc == ERR_OK && io_exists(from) && io_exists(to)) {
            rc = store_file_hash(s, from, a, e);
            if (rc == ERR_OK)
                rc = store_file_hash(s, to, b, e);
            *hold = strcmp(a, b) == 0;
        }
        free(from);
        free(to);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

static enum err_code fits(const struct sweep_run *run, const struct grid_cell *cell,
                          const char *dir, enum fit *fit, char *which, size_t which_size,
                          struct err *e)
{
    json_t *m = NULL;
    bool hold = false;
    char ignored[128];
    *fit = OTHER;
    char *manifest = io_join(dir, "assay.json");
    if (!manifest)
        return err_set(e, ERR_NOMEM, "out of memory");
    bool there = io_exists(manifest) && json_read(manifest, &m, NULL) == ERR_OK;
    free(manifest);
    if (!there)
        return ERR_OK;
    const json_t *recipe = json_object_get(m, "recipe");
    enum err_code rc = ERR_OK;
    if (strcmp(string_of(m, "assay"), ASSAY_VERSION) == 0 &&
        strcmp(string_of(m, "command"), "quantize") == 0 &&
        strcmp(string_of(recipe, "sha256"), cell->recipe->sha256) == 0) {
        const char *file = io_is_dir(cell->model->path) ? NULL : cell->model->path;
        rc = entries_hold(run->store, json_object_get(m, "sources"), cell->model->path, file, &hold,
                          ignored, sizeof ignored, e);
        if (rc == ERR_OK && hold)
            rc = carried_hold(run->store, cell->model->path, dir, &hold, e);
        if (rc == ERR_OK && hold) {
            *fit = FITS;
            rc = entries_hold(run->store, json_object_get(m, "files"), dir, NULL, &hold, which,
                              which_size, e);
            if (rc == ERR_OK && !hold)
                *fit = DAMAGED;
        }
    }
    json_decref(m);
    return rc;
}

/* Looks at a folder; *found is set to its path (heap) when it fits. */
static enum err_code try_folder(const struct sweep_run *run, const struct grid_cell *cell,
                                const char *dir, char **found, struct cell_result *r, struct err *e)
{
    enum fit fit;
    char which[128] = "";
    enum err_code rc = fits(run, cell, dir, &fit, which, sizeof which, e);
    if (rc != ERR_OK || fit == OTHER)
        return rc;
    if (fit == DAMAGED) {
        cell_broken(r, VERDICT_BROKEN, ERR_INPUT,
                    "%s: %s is not what its assay.json says: remove the folder", dir, which);
        return ERR_OK;
    }
    *found = strdup(dir);
    return *found ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code look_around(const struct sweep_run *run, const struct grid_cell *cell,
                                 char **found, struct cell_result *r, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (unsigned i = 0; rc == ERR_OK && !*found && i < run->file->n_variants; i++) {
        const char *parent = run->file->variants[i];
        char **names = NULL;
        size_t n = 0;
        if (!io_is_dir(parent))
            continue;
        rc = io_list(parent, &names, &n, e);
        for (size_t k = 0; rc == ERR_OK && !*found && r->verdict == VERDICT_PASS && k < n; k++) {
            char *dir = io_join(parent, names[k]);
            if (!dir)
                rc = err_set(e, ERR_NOMEM, "out of memory");
            else if (io_is_dir(dir))
                rc = try_folder(run, cell, dir, found, r, e);
            free(dir);
        }
        io_names_free(names, n);
    }
    return rc;
}

static char *own_folder(const struct sweep_run *run, const struct grid_cell *cell)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%s/variants/%s.%s", run->dir->path, cell->model->name, cell->recipe->name);
    return strbuf_take(&b);
}

static enum err_code quantize(const struct sweep_run *run, const struct grid_cell *cell,
                              const char *out, struct cell_result *r, struct err *e)
{
    struct child_args a = {.n = 0};
    char *log = sweep_dir_path(run->dir, "work/quantize.log");
    enum err_code rc = ERR_OK;
    int code;
    child_arg(&a, "%s", run->program);
    child_arg(&a, "quantize");
    child_arg(&a, "%s", cell->model->path);
    child_arg(&a, "-o");
    child_arg(&a, "%s", out);
    child_arg(&a, "--recipe");
    child_arg(&a, "%s", cell->recipe->path);
    if (io_exists(out))
        child_arg(&a, "--force"); /* it is below variants/, and assay looks for its manifest */
    if (!log)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    else
        (void)cell_child(run, &a, NULL, log, "0", r, &code, &rc, e);
    free(log);
    child_args_free(&a);
    return rc;
}

/* The identity of a checkpoint: of its manifest, or of the names and hashes of its files. */
static enum err_code identify(const struct sweep_run *run, struct cell_model *m, struct err *e)
{
    char **names = NULL;
    size_t n = 0;
    struct strbuf all = {0};
    uint8_t digest[32];
    if (!io_is_dir(m->path))
        return store_file_hash(run->store, m->path, m->sha256, e);
    enum err_code rc = io_list(m->path, &names, &n, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        char sha256[SHA256_HEX];
        char *path = io_join(m->path, names[i]);
        if (!path)
            rc = err_set(e, ERR_NOMEM, "out of memory");
        else if (names[i][0] != '.' && !io_is_dir(path)) {
            rc = store_file_hash(run->store, path, sha256, e);
            strbuf_printf(&all, "%s %s\n", sha256, names[i]);
        }
        free(path);
    }
    io_names_free(names, n);
    if (rc == ERR_OK)
        rc = strbuf_ok(&all, e);
    if (rc == ERR_OK) {
        sha256_of(all.data, all.len, digest);
        sha256_hex(digest, m->sha256);
    }
    strbuf_free(&all);
    return rc;
}

enum err_code variant_prepare(const struct sweep_run *run, const struct grid_cell *cell,
                              struct cell_model *m, struct cell_result *r, struct err *e)
{
    *m = (struct cell_model){.path = NULL};
    if (!io_exists(cell->model->path)) {
        cell_broken(r, VERDICT_MISSING, ERR_INPUT, "%s: no such model%s%s", cell->model->path,
                    cell->model->hint ? ": " : "", cell->model->hint ? cell->model->hint : "");
        return ERR_OK;
    }
    enum err_code rc = ERR_OK;
    if (!cell->recipe->path) {
        m->path = strdup(cell->model->path);
    } else {
        char *own = own_folder(run, cell);
        if (own)
            rc = try_folder(run, cell, own, &m->path, r, e);
        if (rc == ERR_OK && !m->path && r->verdict == VERDICT_PASS)
            rc = look_around(run, cell, &m->path, r, e);
        if (rc == ERR_OK && own && !m->path && r->verdict == VERDICT_PASS) {
            rc = quantize(run, cell, own, r, e);
            if (rc == ERR_OK && r->verdict == VERDICT_PASS) {
                m->path = own;
                own = NULL;
            }
        }
        free(own);
    }
    if (rc != ERR_OK || r->verdict != VERDICT_PASS)
        return rc;
    return m->path ? identify(run, m, e) : err_set(e, ERR_NOMEM, "out of memory");
}
