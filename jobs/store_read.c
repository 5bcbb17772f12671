/* store_read.c: queries over the runs. */
#include <math.h>
#include <stdlib.h>

#include "common/str.h"
#include "jobs/store_private.h"

#define RUN_COLUMNS                                                                                \
    "id, began, ifnull(ended, 0), sweep, program, ifnull(exit_code, -1), ifnull(verdict, ''),"     \
    " (SELECT count(*) FROM cells WHERE run = runs.id), (SELECT count(*) FROM cells WHERE run ="   \
    " runs.id AND verdict IN ('PASS', 'IMPROVED'))"

static void take_run(sqlite3_stmt *q, struct store_run *r)
{
    r->id = sqlite3_column_int64(q, 0);
    r->began = sqlite3_column_int64(q, 1);
    r->ended = sqlite3_column_int64(q, 2);
    store_text(q, 3, r->sweep, sizeof r->sweep);
    store_text(q, 4, r->program, sizeof r->program);
    r->exit_code = sqlite3_column_int(q, 5);
    store_text(q, 6, r->verdict, sizeof r->verdict);
    r->n_cells = sqlite3_column_int64(q, 7);
    r->n_passed = sqlite3_column_int64(q, 8);
}

enum err_code store_runs(struct store *s, struct store_run *runs, size_t max, size_t *n,
                         struct err *e)
{
    sqlite3_stmt *q;
    bool row = true;
    *n = 0;
    enum err_code rc = store_query(
        s, &q, e, "SELECT " RUN_COLUMNS " FROM runs ORDER BY id DESC LIMIT ?", "i", (int64_t)max);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        if (rc == ERR_OK && row && *n < max)
            take_run(q, &runs[(*n)++]);
    }
    return rc;
}

enum err_code store_run_read(struct store *s, int64_t id, struct store_run *r, struct err *e)
{
    sqlite3_stmt *q;
    bool row = false;
    enum err_code rc = store_query(s, &q, e,
                                   "SELECT " RUN_COLUMNS
                                   " FROM runs WHERE id = ?1 OR ?1 = 0 ORDER BY id DESC LIMIT 1",
                                   "i", id);
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, e);
    if (rc == ERR_OK && row)
        take_run(q, r);
    sqlite3_finalize(q);
    if (rc == ERR_OK && !row)
        return err_set(e, ERR_INPUT, id ? "%s: no run %lld" : "%s: no run", s->path, (long long)id);
    return rc;
}

enum err_code store_last_success(struct store *s, int64_t *ended, struct err *e)
{
    sqlite3_stmt *q;
    bool row = false;
    *ended = 0;
    enum err_code rc =
        store_query(s, &q, e, "SELECT ifnull(max(ended), 0) FROM runs WHERE exit_code = 0", "");
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, e);
    if (rc == ERR_OK && row)
        *ended = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return rc;
}

enum err_code store_environment_each(struct store *s, int64_t run,
                                     void (*fn)(void *ctx, const char *key, const char *value),
                                     void *ctx, struct err *e)
{
    sqlite3_stmt *q;
    bool row = true;
    enum err_code rc = store_query(
        s, &q, e, "SELECT key, value FROM environment WHERE run = ? ORDER BY key", "i", run);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        if (rc == ERR_OK && row)
            fn(ctx, (const char *)sqlite3_column_text(q, 0),
               (const char *)sqlite3_column_text(q, 1));
    }
    return rc;
}

/* ---- cells -------------------------------------------------------------------------------------
 */

static enum err_code take_verdict(struct store *s, const char *name, enum verdict *v, struct err *e)
{
    return verdict_find(name, v)
               ? ERR_OK
               : err_set(e, ERR_INPUT, "%s: holds the unknown verdict '%s'", s->path, name);
}

static enum err_code read_gates(struct store *s, struct store_cell *c, struct err *e)
{
    sqlite3_stmt *q;
    bool row = true;
    enum err_code rc = store_query(
        s, &q, e, "SELECT gate, verdict, words, more FROM gates WHERE cell = ?", "i", c->id);
    while (rc == ERR_OK && row) {
        enum gate g;
        rc = store_step(s, &q, &row, e);
        if (rc != ERR_OK || !row || !gate_find((const char *)sqlite3_column_text(q, 0), &g))
            continue;
        c->gate[g].asked = true;
        rc = take_verdict(s, (const char *)sqlite3_column_text(q, 1), &c->gate[g].verdict, e);
        store_text(q, 2, c->gate[g].words, sizeof c->gate[g].words);
        store_text(q, 3, c->gate[g].more, sizeof c->gate[g].more);
    }
    sqlite3_finalize(q);
    return rc;
}

static enum err_code read_figures(struct store *s, struct store_cell *c, struct err *e)
{
    const struct stats_interval none = {(double)NAN, (double)NAN, (double)NAN};
    const struct {
        const char *name;
        struct stats_interval *v;
    } figures[] = {{"kl", &c->kl},
                   {"agreement", &c->agreement},
                   {"log_perplexity_ratio", &c->log_ppl_ratio},
                   {"tokens_per_second", &c->tokens_per_second}};
    sqlite3_stmt *q;
    bool row = true;
    for (size_t i = 0; i < ARRAY_LEN(figures); i++)
        *figures[i].v = none;
    enum err_code rc =
        store_query(s, &q, e, "SELECT name, value, lo, hi FROM figures WHERE cell = ?", "i", c->id);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        for (size_t i = 0; rc == ERR_OK && row && i < ARRAY_LEN(figures); i++)
            if (strcmp((const char *)sqlite3_column_text(q, 0), figures[i].name) == 0)
                *figures[i].v = (struct stats_interval){store_double(q, 1), store_double(q, 2),
                                                        store_double(q, 3)};
    }
    return rc;
}

static enum err_code take_cell(struct store *s, sqlite3_stmt *q, struct store_cell *c,
                               struct err *e)
{
    c->id = sqlite3_column_int64(q, 0);
    c->run = sqlite3_column_int64(q, 1);
    store_text(q, 2, c->name, sizeof c->name);
    store_text(q, 3, c->definition, sizeof c->definition);
    store_text(q, 5, c->words, sizeof c->words);
    store_text(q, 6, c->model, sizeof c->model);
    store_text(q, 7, c->trace, sizeof c->trace);
    store_text(q, 8, c->report, sizeof c->report);
    store_text(q, 9, c->program, sizeof c->program);
    enum err_code rc = take_verdict(s, (const char *)sqlite3_column_text(q, 4), &c->verdict, e);
    if (rc == ERR_OK)
        rc = read_gates(s, c, e);
    return rc == ERR_OK ? read_figures(s, c, e) : rc;
}

enum err_code store_cells_by(struct store *s, const char *where, int64_t id,
                             struct store_cell **cells, size_t *n, struct err *e)
{
    struct strbuf sql = {0};
    sqlite3_stmt *q = NULL;
    bool row = true;
    size_t room = 0;
    *cells = NULL;
    *n = 0;
    strbuf_printf(&sql,
                  "SELECT cells.id, cells.run, cells.name, definition, cells.verdict, words, model,"
                  " trace, report, program FROM cells JOIN runs ON runs.id = cells.run %s",
                  where);
    enum err_code rc = strbuf_ok(&sql, e);
    if (rc == ERR_OK)
        rc = store_query(s, &q, e, sql.data, "i", id);
    strbuf_free(&sql);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        if (rc != ERR_OK || !row)
            break;
        if (*n == room) {
            room = room ? 2 * room : 16;
            struct store_cell *more = realloc(*cells, room * sizeof *more);
            if (!more) {
                rc = err_set(e, ERR_NOMEM, "out of memory");
                break;
            }
            *cells = more;
        }
        (*cells)[*n] = (struct store_cell){.id = 0};
        rc = take_cell(s, q, &(*cells)[(*n)++], e);
    }
    sqlite3_finalize(q);
    if (rc != ERR_OK) {
        free(*cells);
        *cells = NULL;
        *n = 0;
    }
    return rc;
}

enum err_code store_cells(struct store *s, int64_t run, struct store_cell **cells, size_t *n,
                          struct err *e)
{
    return store_cells_by(s, "WHERE cells.run = ? ORDER BY cells.id", run, cells, n, e);
}

/* ---- series ------------------------------------------------------------------------------------
 */

enum err_code store_trend(struct store *s, const char *cell, const char *figure,
                          struct store_point *points, size_t max, size_t *n, struct err *e)
{
    sqlite3_stmt *q;
    bool row = true;
    *n = 0;
    enum err_code rc = store_query(
        s, &q, e,
        "SELECT run, value FROM (SELECT cells.run AS run, value FROM cells JOIN figures ON"
        " figures.cell = cells.id WHERE cells.name = ? AND figures.name = ? ORDER BY cells.run DESC"
        " LIMIT ?) ORDER BY run",
        "tti", cell, figure, (int64_t)max);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        if (rc == ERR_OK && row && *n < max)
            points[(*n)++] = (struct store_point){sqlite3_column_int64(q, 0), store_double(q, 1)};
    }
    return rc;
}

enum err_code store_past_rounds(struct store *s, const struct cell_result *c, const char *machine,
                                struct speed_round *rounds, size_t max, size_t *n_rounds, size_t *n,
                                size_t max_runs, size_t *n_runs, struct err *e)
{
    sqlite3_stmt *q;
    bool row = true;
    int64_t last = 0;
    enum err_code rc = store_query(
        s, &q, e,
        "SELECT cells.id, base, now, base_again FROM cells JOIN rounds ON rounds.cell = cells.id"
        " JOIN environment ON environment.run = cells.run AND environment.key = 'machine'"
        " WHERE cells.name = ? AND cells.definition = ? AND environment.value = ?"
        " ORDER BY cells.run DESC, rounds.n",
        "ttt", c->name, c->definition, machine);
    while (rc == ERR_OK && row) {
        rc = store_step(s, &q, &row, e);
        if (rc != ERR_OK || !row)
            break;
        int64_t cell = sqlite3_column_int64(q, 0);
        if (cell != last && (*n_runs == max_runs))
            break;
        if (*n_rounds == max)
            break;
        if (cell != last)
            n[(*n_runs)++] = 0;
        last = cell;
        rounds[(*n_rounds)++] =
            (struct speed_round){store_double(q, 1), store_double(q, 2), store_double(q, 3)};
        n[*n_runs - 1]++;
    }
    sqlite3_finalize(q);
    return rc;
}

bool store_uses(struct store *s, const char *sha256, int runs)
{
    sqlite3_stmt *q;
    bool row = false;
    enum err_code rc = store_query(
        s, &q, NULL,
        "WITH kept(id) AS (SELECT id FROM cells WHERE run > (SELECT max(id) FROM runs) - ?2"
        " UNION SELECT cell FROM baseline_cells)"
        " SELECT 1 FROM cells JOIN kept USING(id) JOIN runs ON runs.id = cells.run"
        " WHERE trace = ?1 OR report = ?1 OR program = ?1"
        " UNION SELECT 1 FROM runs WHERE program = ?1 AND id > (SELECT max(id) FROM runs) - ?2",
        "ti", sha256, (int64_t)runs);
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, NULL);
    sqlite3_finalize(q);
    return rc != ERR_OK || row; /* when in doubt it is kept */
}
