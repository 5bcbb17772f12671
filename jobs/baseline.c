/* baseline.c: reading the latest, making the next. */
#include "jobs/baseline.h"

#include <math.h>
#include <stdlib.h>

#include "common/str.h"
#include "jobs/store_private.h"

enum err_code baseline_read(struct store *s, struct baseline *b, struct err *e)
{
    sqlite3_stmt *q;
    bool row = false;
    int64_t form = BASELINE_FORM;
    *b = (struct baseline){.id = 0};
    enum err_code rc = store_query(
        s, &q, e, "SELECT id, run, accepted, form, why FROM baselines ORDER BY id DESC LIMIT 1",
        "");
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, e);
    if (rc == ERR_OK && row) {
        b->id = sqlite3_column_int64(q, 0);
        b->run = sqlite3_column_int64(q, 1);
        b->accepted = sqlite3_column_int64(q, 2);
        form = sqlite3_column_int64(q, 3);
        store_text(q, 4, b->why, sizeof b->why);
    }
    sqlite3_finalize(q);
    if (rc == ERR_OK && form != BASELINE_FORM)
        rc = err_set(e, ERR_INPUT,
                     "%s: baseline %lld has form %lld, this program reads form %d: accept a run of "
                     "this program ('assay sweep accept')",
                     s->path, (long long)b->id, (long long)form, BASELINE_FORM);
    if (rc != ERR_OK || !b->id)
        return rc;
    return store_cells_by(
        s, "JOIN baseline_cells ON baseline_cells.cell = cells.id WHERE baseline = ?", b->id,
        &b->cells, &b->n, e);
}

void baseline_free(struct baseline *b)
{
    free(b->cells);
    *b = (struct baseline){.id = 0};
}

const struct store_cell *baseline_find(const struct baseline *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->cells[i].name, name) == 0)
            return &b->cells[i];
    return NULL;
}

/* ---- accepting ---------------------------------------------------------------------------------
 */

struct acceptance {
    struct store *s;
    int64_t id;
    const struct baseline *old;
    void (*on_change)(void *ctx, const struct baseline_change *c);
    void *ctx;
    struct err *e;
};

static enum err_code tell(const struct acceptance *a, const char *cell, const char *what,
                          const char *old, const char *now)
{
    const struct baseline_change c = {cell, what, old, now};
    if (a->on_change)
        a->on_change(a->ctx, &c);
    return store_do(a->s, a->e, "INSERT INTO baseline_changes VALUES(?, ?, ?, ?, ?)", "itttt",
                    a->id, cell, what, old, now);
}

static enum err_code tell_figure(const struct acceptance *a, const char *cell, const char *what,
                                 double old, double now)
{
    struct strbuf x = {0}, y = {0};
    strbuf_put_number(&x, old, 6);
    strbuf_put_number(&y, now, 6);
    enum err_code rc = strbuf_ok(&x, a->e);
    if (rc == ERR_OK)
        rc = strbuf_ok(&y, a->e);
    if (rc == ERR_OK && strcmp(x.data, y.data) != 0)
        rc = tell(a, cell, what, x.data, y.data);
    strbuf_free(&x);
    strbuf_free(&y);
    return rc;
}

static enum err_code tell_changes(const struct acceptance *a, const struct store_cell *old,
                                  const struct store_cell *now)
{
    const struct {
        const char *what, *old, *now;
    } hashes[] = {{"definition", old->definition, now->definition},
                  {"model", old->model, now->model},
                  {"trace", old->trace, now->trace},
                  {"program", old->program, now->program}};
    enum err_code rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(hashes); i++)
        if (strcmp(hashes[i].old, hashes[i].now) != 0)
            rc = tell(a, now->name, hashes[i].what, hashes[i].old, hashes[i].now);
    if (rc == ERR_OK)
        rc = tell_figure(a, now->name, "kl", old->kl.value, now->kl.value);
    if (rc == ERR_OK)
        rc = tell_figure(a, now->name, "agreement", old->agreement.value, now->agreement.value);
    if (rc == ERR_OK)
        rc = tell_figure(a, now->name, "log_perplexity_ratio", old->log_ppl_ratio.value,
                         now->log_ppl_ratio.value);
    if (rc == ERR_OK)
        rc = tell_figure(a, now->name, "tokens_per_second", old->tokens_per_second.value,
                         now->tokens_per_second.value);
    return rc;
}

static enum err_code keep(const struct acceptance *a, const char *name, int64_t cell)
{
    return store_do(a->s, a->e, "INSERT INTO baseline_cells VALUES(?, ?, ?)", "iti", a->id, name,
                    cell);
}

static bool may_be_accepted(const struct store_cell *c)
{
    return c->verdict != VERDICT_MISSING && c->verdict != VERDICT_BROKEN &&
           c->verdict != VERDICT_SKIPPED && c->verdict != VERDICT_NONDETERMINISTIC;
}

/* A cell without a definition is one that the baseline has and the sweep has lost. */
static enum err_code accept_cell(const struct acceptance *a, const struct store_cell *c,
                                 const char *glob, size_t *n)
{
    const struct store_cell *old = baseline_find(a->old, c->name);
    if (!str_glob(glob, c->name))
        return old ? keep(a, c->name, old->id) : ERR_OK;
    if (!c->definition[0]) {
        ++*n;
        return tell(a, c->name, "gone", old ? old->trace : "", "");
    }
    if (!may_be_accepted(c)) {
        enum err_code rc =
            tell(a, c->name, "left out", old ? old->trace : "", verdict_name(c->verdict));
        return rc == ERR_OK && old ? keep(a, c->name, old->id) : rc;
    }
    ++*n;
    enum err_code rc = keep(a, c->name, c->id);
    if (rc != ERR_OK)
        return rc;
    return old ? tell_changes(a, old, c) : tell(a, c->name, "new cell", "", c->trace);
}

static enum err_code accept_all(struct acceptance *a, const struct store_run *run, const char *glob,
                                const char *why, int64_t when)
{
    struct store_cell *cells = NULL;
    size_t n = 0, accepted = 0;
    enum err_code rc =
        store_do(a->s, a->e, "INSERT INTO baselines(form, accepted, run, why) VALUES(?, ?, ?, ?)",
                 "iiit", (int64_t)BASELINE_FORM, when, run->id, why);
    a->id = sqlite3_last_insert_rowid(a->s->db);
    if (rc == ERR_OK)
        rc = store_cells(a->s, run->id, &cells, &n, a->e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++)
        rc = accept_cell(a, &cells[i], glob, &accepted);
    free(cells);
    if (rc == ERR_OK && !accepted)
        rc = err_set(a->e, ERR_NEGATIVE, "run %lld: nothing in it can be accepted%s",
                     (long long)run->id, strcmp(glob, "*") == 0 ? "" : " under that name");
    return rc;
}

/* A baseline of another form stands in nobody's way here: accepting is what replaces it. */
static enum err_code read_old(struct store *s, struct baseline *old, struct err *e)
{
    struct err ignored = {.text = ""};
    enum err_code rc = baseline_read(s, old, &ignored);
    if (rc == ERR_INPUT) {
        *old = (struct baseline){.id = 0};
        return ERR_OK;
    }
    return rc == ERR_OK ? rc : err_set(e, rc, "%s", ignored.text);
}

enum err_code baseline_accept(struct store *s, const char *glob, const char *why, int64_t when,
                              void (*on_change)(void *ctx, const struct baseline_change *c),
                              void *ctx, struct err *e)
{
    struct store_run run;
    struct baseline old;
    enum err_code rc = store_run_read(s, 0, &run, e);
    if (rc == ERR_OK && !run.ended)
        rc = err_set(e, ERR_NEGATIVE, "run %lld did not come to its end: run the sweep first",
                     (long long)run.id);
    if (rc == ERR_OK)
        rc = read_old(s, &old, e);
    if (rc != ERR_OK)
        return rc;
    struct acceptance a = {.s = s, .old = &old, .on_change = on_change, .ctx = ctx, .e = e};
    rc = store_exec(s, "BEGIN IMMEDIATE", e);
    if (rc == ERR_OK) {
        rc = accept_all(&a, &run, glob, why, when);
        if (rc == ERR_OK)
            rc = store_exec(s, "COMMIT", e);
        if (rc != ERR_OK)
            (void)!store_exec(s, "ROLLBACK", NULL);
    }
    baseline_free(&old);
    return rc;
}
