/* batch_store_private.h: the open store, shared by the files that write it and that recover it. */
#ifndef ASSAY_INFER_BATCH_STORE_PRIVATE_H
#define ASSAY_INFER_BATCH_STORE_PRIVATE_H

#include "common/io.h"
#include "infer/batch_store.h"
#include "infer/batch_table.h"

#define BATCH_GROUP 256 /* most lines of an OUT record */

struct batch_paths {
    char *out, *journal, *run, *damaged;
};
MUST_USE enum err_code batch_paths_make(struct batch_paths *p, const char *out, struct err *e);
void batch_paths_free(struct batch_paths *p);

/* What stands under a name: nothing (or no byte), a file that begins as ours do, another. */
enum batch_owner { BATCH_NOBODY, BATCH_OURS, BATCH_FOREIGN };
MUST_USE enum err_code batch_owner_of(const char *path, enum batch_owner *who, struct err *e);

struct batch_store {
    struct batch_paths path;
    struct io_grow *out, *journal;
    struct batch_table table;
    const json_t *identity; /* borrowed while it opens */
    char fingerprint[65], run[BATCH_RUN_HEX];
    uint64_t generation; /* of the journal: 1, and one more each time OUT.run is taken up again */
    bool in_session;     /* the journal has its head and this process's OPEN */
    uint64_t n_out;      /* requests 0 .. n_out - 1 stand in OUT */
    uint64_t n_ok, n_failed;
    uint64_t start_n, start_count; /* begun and not yet in the journal */
    struct batch_rec_line
        group[BATCH_GROUP]; /* the last n_group lines of OUT, not in the journal */
    size_t n_group;
    uint64_t group_at;
    struct strbuf text;
    uint64_t synced_ns, pause_ns, unsynced; /* the last sync; how long to wait; bytes since */
};

/* Head (when the journal is empty) and OPEN; once. */
MUST_USE enum err_code batch_store_begin(struct batch_store *s, bool retry, struct err *e);
/* A record from s->text goes to the journal; s->text is empty after it. */
MUST_USE enum err_code batch_store_record(struct batch_store *s, struct err *e);
/* The DONE record of a line that waits. */
MUST_USE enum err_code batch_store_wait(struct batch_store *s, uint64_t n,
                                        enum batch_outcome status, const char *line, size_t len,
                                        struct err *e);

/* Takes up what is there: table, n_out; the files hold only what is vouched for after it. */
MUST_USE enum err_code batch_recover(struct batch_store *s, bool retry_failed, struct err *e);

#endif
