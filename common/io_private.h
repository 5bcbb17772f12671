/* io_private.h: what the files behind io.h share. Every call that touches the system passes here,
 * and with it the fault hooks. */
#ifndef ASSAY_COMMON_IO_PRIVATE_H
#define ASSAY_COMMON_IO_PRIVATE_H

#include <sys/types.h>

#include "common/io.h"

#define IO_TMP ".assay-tmp"

/* Zeroed heap memory that the allocation fault can fail. NULL: out of memory. */
void *io_alloc(size_t bytes);
enum err_code io_nomem(size_t bytes, struct err *e);

/* Opens for reading. A name that leads nowhere is ERR_INPUT, everything else ERR_IO. */
MUST_USE enum err_code io_open_read(const char *path, int *fd, struct err *e);
/* At most n bytes; 0 at the end; interruptions are retried. `path` is for the text. */
MUST_USE enum err_code io_read_some(int fd, void *data, size_t n, size_t *got, const char *path,
                                    struct err *e);
/* All bytes at off, or an error. */
MUST_USE enum err_code io_write_full(int fd, uint64_t off, const void *data, size_t n,
                                     const char *path, struct err *e);
MUST_USE enum err_code io_sync(int fd, const char *path, struct err *e);
/* fsync of the folder that holds path. */
MUST_USE enum err_code io_sync_parent(const char *path, struct err *e);
/* rename; never over an existing name unless replace. */
MUST_USE enum err_code io_rename(const char *from, const char *to, bool replace, struct err *e);
/* True when fd is still the file called path: another run may have removed or replaced it between
 * an open and a lock. */
bool io_still_named(int fd, const char *path);
/* The folder of path: "." when it names none. Heap; NULL: out of memory. */
char *io_parent(const char *path);

#endif
