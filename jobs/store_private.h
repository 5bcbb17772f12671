/* store_private.h: SQLite with our errors, for the files behind store.h and baseline.h. */
#ifndef ASSAY_JOBS_STORE_PRIVATE_H
#define ASSAY_JOBS_STORE_PRIVATE_H

#include <sqlite3.h>

#include "jobs/store.h"

struct store {
    sqlite3 *db;
    char *path;
};

/* "<path>: <what SQLite says>"; ERR_BUSY when another process holds it, ERR_INPUT when the file is
 * no database. */
enum err_code store_fault(struct store *s, struct err *e);
MUST_USE enum err_code store_exec(struct store *s, const char *sql, struct err *e);

/* Binds by `kinds`: 'i' int64_t, 'd' double (NaN is null), 't' const char * (NULL is null). */
MUST_USE enum err_code store_query(struct store *s, sqlite3_stmt **q, struct err *e,
                                   const char *sql, const char *kinds, ...);
/* *row false: no more; then the query is finished and NULL. After an error too. */
MUST_USE enum err_code store_step(struct store *s, sqlite3_stmt **q, bool *row, struct err *e);
/* A statement without rows. */
#define store_do(s, e, ...) store_do_query((s), (e), __VA_ARGS__)
MUST_USE enum err_code store_do_query(struct store *s, struct err *e, const char *sql,
                                      const char *kinds, ...);

/* Cells joined with their runs, by an SQL condition with one parameter. Heap. */
MUST_USE enum err_code store_cells_by(struct store *s, const char *where, int64_t id,
                                      struct store_cell **cells, size_t *n, struct err *e);

void store_text(sqlite3_stmt *q, int column, char *out, size_t size);
double store_double(sqlite3_stmt *q, int column); /* null: NaN */

#endif
