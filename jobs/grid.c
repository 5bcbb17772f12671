/* grid.c: expansion, and the faults of axes. */
#include "jobs/grid.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/str.h"

/* One axis as names, whatever its entries are. */
struct axis {
    const char *key;
    const char *const *first; /* the name of entry 0 */
    size_t stride;            /* bytes from one entry to the next */
    unsigned n;
};

static const char *axis_name(const struct axis *a, unsigned i)
{
    return *(const char *const *)(const void *)((const char *)a->first + i * a->stride);
}

static enum err_code check_axis(const struct axis *a, struct err *e)
{
    if (a->n == 0)
        return err_set(e, ERR_INPUT, "%s: is empty, so the grid has no cells", a->key);
    for (unsigned i = 0; i < a->n; i++)
        for (unsigned k = 0; k < i; k++)
            if (strcmp(axis_name(a, i), axis_name(a, k)) == 0)
                return err_set(e, ERR_INPUT,
                               "%s: entries %u and %u are both '%s', so two cells have one name",
                               a->key, k + 1, i + 1, axis_name(a, i));
    return ERR_OK;
}

static enum err_code define(struct grid_cell *c, struct err *e)
{
    struct strbuf b = {0};
    uint8_t digest[32];
    const struct sweep_setting *s = c->setting;
    strbuf_printf(&b, "prompts %s\narith %s\ndevice %s\nmax_tokens %d\nmax_ctx %d\nchat %d\n",
                  c->prompts->sha256, s->arith ? s->arith : "auto", s->device ? s->device : "auto",
                  s->max_tokens, s->max_ctx, s->chat);
    enum err_code rc = strbuf_ok(&b, e);
    if (rc == ERR_OK) {
        sha256_of(b.data, b.len, digest);
        sha256_hex(digest, c->definition);
    }
    strbuf_free(&b);
    return rc;
}

enum err_code grid_expand(struct grid *g, const struct sweep_file *f, struct err *e)
{
    *g = (struct grid){.n = 0};
    const struct axis axes[] = {
        {"models", (const char *const *)&f->models[0].name, sizeof *f->models, f->n_models},
        {"recipes", (const char *const *)&f->recipes[0].name, sizeof *f->recipes, f->n_recipes},
        {"prompts", (const char *const *)&f->prompts[0].name, sizeof *f->prompts, f->n_prompts},
        {"settings", (const char *const *)&f->settings[0].name, sizeof *f->settings, f->n_settings},
    };
    size_t n = 1;
    for (size_t i = 0; i < ARRAY_LEN(axes); i++) {
        enum err_code rc = check_axis(&axes[i], e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "%s", f->path);
        n *= axes[i].n; /* at most SWEEP_AXIS_MAX ^ 4 */
    }
    if (n > GRID_CELLS_MAX)
        return err_set(e, ERR_INPUT, "%s: %zu cells, expected at most %d", f->path, n,
                       GRID_CELLS_MAX);
    g->cells = calloc(n, sizeof *g->cells);
    if (!g->cells)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        struct grid_cell *c = &g->cells[i];
        size_t at = i;
        c->setting = &f->settings[at % f->n_settings];
        at /= f->n_settings;
        c->prompts = &f->prompts[at % f->n_prompts];
        at /= f->n_prompts;
        c->recipe = &f->recipes[at % f->n_recipes];
        c->model = &f->models[at / f->n_recipes];
        snprintf(c->name, sizeof c->name, "%s/%s/%s/%s", c->model->name, c->recipe->name,
                 c->prompts->name, c->setting->name);
        enum err_code rc = define(c, e);
        if (rc != ERR_OK) {
            grid_free(g);
            return rc;
        }
    }
    g->n = n;
    return ERR_OK;
}

void grid_free(struct grid *g)
{
    free(g->cells);
    *g = (struct grid){.n = 0};
}
