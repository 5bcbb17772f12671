/* store.c: opening, migrations, writing. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/io.h"
#include "jobs/store_private.h"

#define APPLICATION_ID 0x61737379 /* "assy": tells our databases from others */
#define BUSY_MS        10000

/* migrations[i] makes version i + 1 of version i. Never changed once released. */
static const char *const migrations[STORE_VERSION] = {
    "CREATE TABLE runs(id INTEGER PRIMARY KEY, began INTEGER NOT NULL, ended INTEGER,"
    " sweep TEXT NOT NULL, program TEXT NOT NULL, exit_code INTEGER, verdict TEXT) STRICT;"
    "CREATE TABLE environment(run INTEGER NOT NULL REFERENCES runs(id), key TEXT NOT NULL,"
    " value TEXT NOT NULL, PRIMARY KEY(run, key)) STRICT;"
    "CREATE TABLE cells(id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id),"
    " name TEXT NOT NULL, definition TEXT NOT NULL, verdict TEXT NOT NULL, words TEXT NOT NULL,"
    " model TEXT NOT NULL, trace TEXT NOT NULL, report TEXT NOT NULL, UNIQUE(run, name)) STRICT;"
    "CREATE INDEX cells_by_name ON cells(name, run);"
    "CREATE TABLE gates(cell INTEGER NOT NULL REFERENCES cells(id), gate TEXT NOT NULL,"
    " verdict TEXT NOT NULL, words TEXT NOT NULL, more TEXT NOT NULL,"
    " PRIMARY KEY(cell, gate)) STRICT;"
    "CREATE TABLE figures(cell INTEGER NOT NULL REFERENCES cells(id), name TEXT NOT NULL,"
    " value REAL, lo REAL, hi REAL, PRIMARY KEY(cell, name)) STRICT;"
    "CREATE TABLE rounds(cell INTEGER NOT NULL REFERENCES cells(id), n INTEGER NOT NULL,"
    " base REAL NOT NULL, now REAL NOT NULL, base_again REAL NOT NULL,"
    " PRIMARY KEY(cell, n)) STRICT;"
    "CREATE TABLE baselines(id INTEGER PRIMARY KEY, form INTEGER NOT NULL,"
    " accepted INTEGER NOT NULL, run INTEGER NOT NULL REFERENCES runs(id), why TEXT NOT NULL)"
    " STRICT;"
    "CREATE TABLE baseline_cells(baseline INTEGER NOT NULL REFERENCES baselines(id),"
    " name TEXT NOT NULL, cell INTEGER NOT NULL REFERENCES cells(id),"
    " PRIMARY KEY(baseline, name)) STRICT;"
    "CREATE TABLE baseline_changes(baseline INTEGER NOT NULL REFERENCES baselines(id),"
    " name TEXT NOT NULL, what TEXT NOT NULL, old TEXT NOT NULL, new TEXT NOT NULL) STRICT;",

    "CREATE TABLE files(path TEXT PRIMARY KEY, bytes INTEGER NOT NULL, changed INTEGER NOT NULL,"
    " inode INTEGER NOT NULL, sha256 TEXT NOT NULL) STRICT;",
};

/* ---- SQLite with our errors --------------------------------------------------------------------
 */

enum err_code store_fault(struct store *s, struct err *e)
{
    int code = sqlite3_errcode(s->db) & 0xff;
    enum err_code rc = code == SQLITE_BUSY || code == SQLITE_LOCKED        ? ERR_BUSY
                       : code == SQLITE_NOTADB || code == SQLITE_CORRUPT   ? ERR_INPUT
                       : code == SQLITE_NOMEM                              ? ERR_NOMEM
                       : code == SQLITE_ERROR || code == SQLITE_CONSTRAINT ? ERR_INTERNAL
                                                                           : ERR_IO;
    return err_set(e, rc, "%s: %s", s->path, sqlite3_errmsg(s->db));
}

enum err_code store_exec(struct store *s, const char *sql, struct err *e)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? ERR_OK : store_fault(s, e);
}

static int bind_all(sqlite3_stmt *q, const char *kinds, va_list ap)
{
    for (int i = 1; kinds[i - 1]; i++) {
        int rc = SQLITE_OK;
        if (kinds[i - 1] == 'i') {
            rc = sqlite3_bind_int64(q, i, va_arg(ap, int64_t));
        } else if (kinds[i - 1] == 'd') {
            double v = va_arg(ap, double);
            rc = isnan(v) ? sqlite3_bind_null(q, i) : sqlite3_bind_double(q, i, v);
        } else {
            const char *text = va_arg(ap, const char *);
            rc = text ? sqlite3_bind_text(q, i, text, -1, SQLITE_TRANSIENT)
                      : sqlite3_bind_null(q, i);
        }
        if (rc != SQLITE_OK)
            return rc;
    }
    return SQLITE_OK;
}

static enum err_code query(struct store *s, sqlite3_stmt **q, struct err *e, const char *sql,
                           const char *kinds, va_list ap)
{
    *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, q, NULL) != SQLITE_OK ||
        bind_all(*q, kinds, ap) != SQLITE_OK) {
        enum err_code rc = store_fault(s, e);
        sqlite3_finalize(*q);
        *q = NULL;
        return rc;
    }
    return ERR_OK;
}

enum err_code store_query(struct store *s, sqlite3_stmt **q, struct err *e, const char *sql,
                          const char *kinds, ...)
{
    va_list ap;
    va_start(ap, kinds);
    enum err_code rc = query(s, q, e, sql, kinds, ap);
    va_end(ap);
    return rc;
}

enum err_code store_step(struct store *s, sqlite3_stmt **q, bool *row, struct err *e)
{
    int code = sqlite3_step(*q);
    *row = code == SQLITE_ROW;
    if (*row)
        return ERR_OK;
    enum err_code rc = code == SQLITE_DONE ? ERR_OK : store_fault(s, e);
    sqlite3_finalize(*q);
    *q = NULL;
    return rc;
}

enum err_code store_do_query(struct store *s, struct err *e, const char *sql, const char *kinds,
                             ...)
{
    sqlite3_stmt *q;
    bool row = true;
    va_list ap;
    va_start(ap, kinds);
    enum err_code rc = query(s, &q, e, sql, kinds, ap);
    va_end(ap);
    while (rc == ERR_OK && row)
        rc = store_step(s, &q, &row, e);
    return rc;
}

void store_text(sqlite3_stmt *q, int column, char *out, size_t size)
{
    const unsigned char *t = sqlite3_column_text(q, column);
    snprintf(out, size, "%s", t ? (const char *)t : "");
}

double store_double(sqlite3_stmt *q, int column)
{
    return sqlite3_column_type(q, column) == SQLITE_NULL ? (double)NAN
                                                         : sqlite3_column_double(q, column);
}

/* ---- versions ----------------------------------------------------------------------------------
 */

static enum err_code read_pragma(struct store *s, const char *sql, int64_t *v, struct err *e)
{
    sqlite3_stmt *q;
    bool row = false;
    *v = 0;
    enum err_code rc = store_query(s, &q, e, sql, "");
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, e);
    if (rc == ERR_OK && row)
        *v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return rc;
}

static enum err_code migrate(struct store *s, int64_t version, struct err *e)
{
    char pragmas[120];
    enum err_code rc = store_exec(s, "BEGIN IMMEDIATE", e);
    for (int64_t v = version; rc == ERR_OK && v < STORE_VERSION; v++)
        rc = store_exec(s, migrations[v], e);
    snprintf(pragmas, sizeof pragmas, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
             APPLICATION_ID, STORE_VERSION);
    return rc == ERR_OK ? store_exec(s, pragmas, e) : rc;
}

static enum err_code check_version(struct store *s, bool fresh, struct err *e)
{
    int64_t version = 0, id = 0;
    enum err_code rc = read_pragma(s, "PRAGMA user_version", &version, e);
    if (rc == ERR_OK)
        rc = read_pragma(s, "PRAGMA application_id", &id, e);
    if (rc != ERR_OK)
        return rc;
    if (!fresh && (id != APPLICATION_ID || version < 1))
        return err_set(e, ERR_INPUT, "%s: a database that no sweep made", s->path);
    if (version > STORE_VERSION)
        return err_set(e, ERR_INPUT,
                       "%s: a store of version %lld, this program knows versions up to %d: it was "
                       "written by a newer assay",
                       s->path, (long long)version, STORE_VERSION);
    return version < STORE_VERSION ? migrate(s, version, e) : ERR_OK;
}

enum err_code store_open(struct store **out, const char *path, bool create, struct err *e)
{
    struct stat st;
    *out = NULL;
    /* An empty file is a store that died before its first transaction. */
    bool fresh = stat(path, &st) != 0 || st.st_size == 0;
    if (fresh && !create)
        return err_set(e, ERR_INPUT, "%s: no such store: the sweep has not run yet", path);
    struct store *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    enum err_code rc = ERR_OK;
    int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
    if (sqlite3_open_v2(path, &s->db, flags, NULL) != SQLITE_OK)
        rc = store_fault(s, e);
    if (rc == ERR_OK) {
        sqlite3_busy_timeout(s->db, BUSY_MS);
        rc = store_exec(s, "PRAGMA foreign_keys=ON", e);
    }
    if (rc == ERR_OK)
        rc = check_version(s, fresh, e);
    if (rc != ERR_OK)
        store_close(s);
    else
        *out = s;
    return rc;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    sqlite3_close(s->db);
    free(s->path);
    free(s);
}

/* ---- writing a run ------------------------------------------------------------------------------
 */

enum err_code store_begin(struct store *s, struct store_run *r, struct err *e)
{
    enum err_code rc = store_do(s, e, "INSERT INTO runs(began, sweep, program) VALUES(?, ?, ?)",
                                "itt", r->began, r->sweep, r->program);
    r->id = sqlite3_last_insert_rowid(s->db);
    return rc;
}

enum err_code store_environment(struct store *s, int64_t run, const char *key, const char *value,
                                struct err *e)
{
    return store_do(s, e, "INSERT OR REPLACE INTO environment VALUES(?, ?, ?)", "itt", run, key,
                    value);
}

static enum err_code put_figure(struct store *s, int64_t cell, const char *name,
                                struct stats_interval v, struct err *e)
{
    if (!isfinite(v.value))
        return ERR_OK;
    return store_do(s, e, "INSERT INTO figures VALUES(?, ?, ?, ?, ?)", "itddd", cell, name, v.value,
                    v.lo, v.hi);
}

static enum err_code put_figures(struct store *s, int64_t cell, const struct evidence *ev,
                                 struct err *e)
{
    const struct stats_interval none = {(double)NAN, (double)NAN, (double)NAN};
    const struct quality *q = &ev->quality;
    enum err_code rc = put_figure(s, cell, "kl", q->n ? q->kl : none, e);
    if (rc == ERR_OK)
        rc = put_figure(s, cell, "agreement", q->n ? q->agreement : none, e);
    if (rc == ERR_OK)
        rc = put_figure(s, cell, "log_perplexity_ratio", q->n ? q->log_ppl_ratio : none, e);
    if (rc == ERR_OK)
        rc = put_figure(s, cell, "tokens_per_second",
                        (struct stats_interval){ev->tokens_per_second, ev->tps_lo, ev->tps_hi}, e);
    for (size_t i = 0; rc == ERR_OK && i < ev->n_rounds; i++)
        rc = store_do(s, e, "INSERT INTO rounds VALUES(?, ?, ?, ?, ?)", "iiddd", cell, (int64_t)i,
                      ev->rounds[i].base, ev->rounds[i].now, ev->rounds[i].base_again);
    return rc;
}

static enum err_code put_cell(struct store *s, int64_t run, const struct cell_result *c,
                              struct err *e)
{
    enum err_code rc =
        store_do(s, e,
                 "INSERT INTO cells(run, name, definition, verdict, words, model, trace, report)"
                 " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
                 "ittttttt", run, c->name, c->definition, verdict_name(c->verdict), c->words,
                 c->now.model, c->now.trace, c->now.report);
    int64_t id = sqlite3_last_insert_rowid(s->db);
    for (int g = 0; rc == ERR_OK && g < GATE_COUNT; g++)
        if (c->gate[g].asked)
            rc = store_do(s, e, "INSERT INTO gates VALUES(?, ?, ?, ?, ?)", "itttt", id,
                          gate_name((enum gate)g), verdict_name(c->gate[g].verdict),
                          c->gate[g].words, c->gate[g].more);
    return rc == ERR_OK ? put_figures(s, id, &c->now, e) : rc;
}

enum err_code store_cell(struct store *s, int64_t run, const struct cell_result *c, struct err *e)
{
    enum err_code rc = store_exec(s, "BEGIN IMMEDIATE", e);
    if (rc != ERR_OK)
        return rc;
    rc = put_cell(s, run, c, e);
    if (rc == ERR_OK)
        return store_exec(s, "COMMIT", e);
    (void)!store_exec(s, "ROLLBACK", NULL);
    return rc;
}

enum err_code store_end(struct store *s, const struct store_run *r, struct err *e)
{
    return store_do(s, e, "UPDATE runs SET ended=?, exit_code=?, verdict=? WHERE id=?", "iiti",
                    r->ended, (int64_t)r->exit_code, r->verdict, r->id);
}

/* ---- hashes of files ---------------------------------------------------------------------------
 */

enum err_code store_file_hash(struct store *s, const char *path, char sha256[SHA256_HEX],
                              struct err *e)
{
    struct stat st;
    sqlite3_stmt *q;
    bool row = false;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? err_set(e, ERR_INPUT, "%s: no such file", path)
                               : err_errno(e, "%s", path);
    int64_t changed = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    int64_t bytes = st.st_size, inode = (int64_t)st.st_ino;
    enum err_code rc = store_query(s, &q, e,
                                   "SELECT sha256 FROM files WHERE path=? AND bytes=? AND changed=?"
                                   " AND inode=?",
                                   "tiii", path, bytes, changed, inode);
    if (rc == ERR_OK)
        rc = store_step(s, &q, &row, e);
    if (rc == ERR_OK && row)
        store_text(q, 0, sha256, SHA256_HEX);
    sqlite3_finalize(q);
    if (rc != ERR_OK || row)
        return rc;
    rc = sha256_file(path, sha256, e);
    return rc != ERR_OK ? rc
                        : store_do(s, e, "INSERT OR REPLACE INTO files VALUES(?, ?, ?, ?, ?)",
                                   "tiiit", path, bytes, changed, inode, sha256);
}
