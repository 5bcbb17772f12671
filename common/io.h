/* io.h: files. Maps, atomic replacement, whole reads, lines through gzip, fault hooks.
 *
 * Every path in an error is the one the caller gave. A file or folder that is being made lives
 * under a temporary name beside its target and appears by rename, after its bytes and its folder
 * have been synced; a killed run leaves only the temporary name, which the next run removes.
 */
#ifndef ASSAY_COMMON_IO_H
#define ASSAY_COMMON_IO_H

#include "common/err.h"
#include "common/str.h"

/* ---- read-only maps ------------------------------------------------------------------------ */
struct io_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
};

MUST_USE enum err_code io_map_open(struct io_map *m, const char *path, struct err *e);
void io_map_close(struct io_map *m);
/* Tells the kernel that these bytes of a map are not needed any more (streaming readers). */
void io_map_drop(const void *data, size_t bytes);

/* Appends the whole file to a terminated buffer; ERR_INPUT when it is larger than max_bytes. */
MUST_USE enum err_code io_read_all(const char *path, size_t max_bytes, struct strbuf *out,
                                   struct err *e);
bool io_exists(const char *path); /* also a link that leads nowhere */
bool io_is_dir(const char *path);
MUST_USE enum err_code io_size(const char *path, uint64_t *bytes, struct err *e);
/* True when both names lead to the same file or folder. */
bool io_same(const char *a, const char *b);
/* Names in a folder, sorted, without . and ..; free each and the array with io_names_free. */
MUST_USE enum err_code io_list(const char *dir, char ***names, size_t *n, struct err *e);
void io_names_free(char **names, size_t n);
char *io_join(const char *dir, const char *name); /* heap; NULL: out of memory */
const char *io_base(const char *path);            /* borrowed: the part after the last slash */

/* ---- one file, made whole or not at all ------------------------------------------------------ */
struct io_out;
/* Opens `<path>.assay-tmp.<pid>`, after removing such files of dead runs. Existing path: ERR_USAGE
 * unless replace. */
MUST_USE enum err_code io_out_open(struct io_out **o, const char *path, bool replace,
                                   struct err *e);
MUST_USE enum err_code io_out_write(struct io_out *o, const void *data, size_t bytes,
                                    struct err *e);
MUST_USE enum err_code io_out_write_at(struct io_out *o, uint64_t off, const void *data,
                                       size_t bytes, struct err *e);
/* fsync, rename, fsync of the folder. On any error the temporary file is removed. Frees o. */
MUST_USE enum err_code io_out_commit(struct io_out *o, struct err *e);
void io_out_abort(struct io_out *o); /* removes the temporary file; frees o; NULL is fine */
/* The three steps in one. */
MUST_USE enum err_code io_write_all(const char *path, const void *data, size_t bytes, bool replace,
                                    struct err *e);

/* Removes a file and syncs its folder; none there is fine. */
MUST_USE enum err_code io_remove(const char *path, struct err *e);

/* ---- one file that grows in place ------------------------------------------------------------ */
struct io_grow;
/* Opens or makes the file and locks it until io_grow_close: ERR_BUSY when another process has it.
 */
MUST_USE enum err_code io_grow_open(struct io_grow **g, const char *path, struct err *e);
uint64_t io_grow_bytes(const struct io_grow *g); /* with what is gathered */
int io_grow_fd(const struct io_grow *g);
/* Gathers; a full mebibyte goes out. A failed write loses what was gathered and leaves the file as
 * it was before. */
MUST_USE enum err_code io_grow_put(struct io_grow *g, const void *data, size_t n, struct err *e);
MUST_USE enum err_code io_grow_write(struct io_grow *g, struct err *e); /* what is gathered */
MUST_USE enum err_code io_grow_sync(struct io_grow *g, struct err *e);  /* and to the disk */
/* Bytes that were put in one io_grow_put, gathered or written, or bytes of the file. */
MUST_USE enum err_code io_grow_read(struct io_grow *g, uint64_t at, void *data, size_t n,
                                    struct err *e);
MUST_USE enum err_code io_grow_cut(struct io_grow *g, uint64_t bytes, struct err *e);
MUST_USE enum err_code io_grow_overwrite(struct io_grow *g, uint64_t at, const void *data, size_t n,
                                         struct err *e);
void io_grow_close(struct io_grow *g); /* unlocks; what is gathered and not written is lost */

/* ---- one folder, made whole or not at all --------------------------------------------------- */
struct io_dir_out;
/* Makes `<path>.assay-tmp`, after removing one that a dead run left (a live one holds
 * `<path>.assay-lock`: ERR_BUSY). `marker` is a file name: with replace, an existing folder is
 * replaced only if it holds that file, else ERR_USAGE. */
MUST_USE enum err_code io_dir_out_open(struct io_dir_out **d, const char *path, bool replace,
                                       const char *marker, struct err *e);
const char *io_dir_out_path(const struct io_dir_out *d); /* where to write; borrowed */
MUST_USE enum err_code io_dir_out_commit(struct io_dir_out *d, struct err *e);
void io_dir_out_abort(struct io_dir_out *d);
/* Removes a file, or a folder with all it holds; links are removed, not followed. Not being there
 * is fine. */
MUST_USE enum err_code io_remove_tree(const char *path, struct err *e);

/* ---- lines ---------------------------------------------------------------------------------- */
struct io_lines;
/* Plain or gzip, by content; "-" is standard input. */
MUST_USE enum err_code io_lines_open(struct io_lines **l, const char *path, struct err *e);
/* The next line without its end ("\n" or "\r\n"); *line is NULL at the end. A line longer than
 * max_bytes is skipped to its end and given, cut to max_bytes, with *too_long. Truncated or damaged
 * gzip: ERR_INPUT with the line reached. The bytes live until the next call. */
MUST_USE enum err_code io_lines_next(struct io_lines *l, size_t max_bytes, const char **line,
                                     size_t *len, bool *too_long, struct err *e);
/* Appends the next n bytes, whatever they are: what follows a line that says how many. The file
 * ends before: ERR_INPUT. */
MUST_USE enum err_code io_lines_bytes(struct io_lines *l, size_t n, struct strbuf *out,
                                      struct err *e);
uint64_t io_lines_number(const struct io_lines *l); /* of the line last given, from 1 */
void io_lines_close(struct io_lines *l);

/* ---- faults for tests ------------------------------------------------------------------------ */
enum io_fault { IO_FAULT_READ, IO_FAULT_WRITE, IO_FAULT_ALLOC, IO_FAULT_KINDS };
/* The nth call (from 1) of that kind fails from now on once; 0 turns it off. Tests only. */
void io_fault_set(enum io_fault kind, int64_t nth);
/* True, with errno set, when this call is to fail. Asked before every read, write, fsync, rename
 * and allocation of this folder; one relaxed load while it is off. */
bool io_fault_hit(enum io_fault kind);

#endif
