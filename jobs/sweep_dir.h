/* sweep_dir.h: the folder of a sweep: its mark, its lock, its objects.
 *
 *   assay-sweep.json   the mark: this folder is a sweep's, and whose
 *   sweep.lock         held by flock while a run or an accept works; empty, never removed
 *   sweep.db           the store (store.h)
 *   objects/           traces, reports and programs by SHA-256, for baselines and history
 *   variants/          checkpoints that the sweep quantized
 *   work/              files of the run, made anew by each
 *   report/            report.html, .json, .md, junit.xml; sweep.prom stands beside it
 *
 * Nothing is written, let alone removed, in a folder without the mark.
 */
#ifndef ASSAY_JOBS_SWEEP_DIR_H
#define ASSAY_JOBS_SWEEP_DIR_H

#include "common/hash.h"
#include "common/str.h"

struct sweep_dir {
    char *path;
    int lock_fd; /* -1: not locked */
};

enum sweep_dir_use { SWEEP_DIR_READ, SWEEP_DIR_CHANGE, SWEEP_DIR_MAKE };

/* READ: it must be there; CHANGE: also takes the lock (ERR_BUSY when another run holds it); MAKE:
 * is made with its mark when there is none. A folder without the mark: ERR_USAGE; no folder:
 * ERR_INPUT. */
MUST_USE enum err_code sweep_dir_open(struct sweep_dir *d, const char *path, enum sweep_dir_use use,
                                      struct err *e);
void sweep_dir_close(struct sweep_dir *d);

/* "<folder>/<name>" on the heap; NULL: out of memory. */
char *sweep_dir_path(const struct sweep_dir *d, const char *name);
/* Empties work/ and makes it. */
MUST_USE enum err_code sweep_dir_work(const struct sweep_dir *d, struct err *e);
/* Keeps a copy of a file under its hash and `ending` (".jsonl.gz"); executable when it is. */
MUST_USE enum err_code sweep_dir_keep(const struct sweep_dir *d, const char *file,
                                      const char *ending, char sha256[SHA256_HEX], struct err *e);
/* The path of a kept file on the heap; NULL: out of memory. */
char *sweep_dir_object(const struct sweep_dir *d, const char *sha256, const char *ending);
/* Removes the objects that `used` does not know. */
MUST_USE enum err_code sweep_dir_prune(const struct sweep_dir *d,
                                       bool (*used)(void *ctx, const char *sha256), void *ctx,
                                       struct err *e);

#endif
