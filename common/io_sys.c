/* io_sys.c: the few system calls under io.h, with retries and fault hooks. */
#include "common/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Calls left until the failing one; 0 is off, so that the cost is one relaxed load. */
static _Atomic int64_t faults[IO_FAULT_KINDS];

void io_fault_set(enum io_fault kind, int64_t nth)
{
    atomic_store(&faults[kind], nth);
}

bool io_fault_hit(enum io_fault kind)
{
    static const int numbers[IO_FAULT_KINDS] = {
        [IO_FAULT_READ] = EIO, [IO_FAULT_WRITE] = ENOSPC, [IO_FAULT_ALLOC] = ENOMEM};
    if (atomic_load_explicit(&faults[kind], memory_order_relaxed) <= 0)
        return false;
    if (atomic_fetch_sub(&faults[kind], 1) != 1)
        return false;
    errno = numbers[kind];
    return true;
}

void *io_alloc(size_t bytes)
{
    return io_fault_hit(IO_FAULT_ALLOC) ? NULL : calloc(1, MAX2(bytes, 1));
}

enum err_code io_nomem(size_t bytes, struct err *e)
{
    return err_set(e, ERR_NOMEM, "out of memory: %zu bytes", bytes);
}

enum err_code io_open_read(const char *path, int *fd, struct err *e)
{
    do {
        *fd = io_fault_hit(IO_FAULT_READ) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    } while (*fd < 0 && errno == EINTR);
    if (*fd >= 0)
        return ERR_OK;
    int number = errno;
    enum err_code rc = err_errno(e, "%s", path);
    bool nowhere =
        number == ENOENT || number == ENOTDIR || number == ELOOP || number == ENAMETOOLONG;
    return nowhere ? ERR_INPUT : rc;
}

enum err_code io_read_some(int fd, void *data, size_t n, size_t *got, const char *path,
                           struct err *e)
{
    ssize_t r;
    do {
        r = io_fault_hit(IO_FAULT_READ) ? -1 : read(fd, data, MIN2(n, (size_t)1 << 30));
    } while (r < 0 && errno == EINTR);
    *got = r < 0 ? 0 : (size_t)r;
    if (r >= 0)
        return ERR_OK;
    return errno == EISDIR ? err_set(e, ERR_INPUT, "%s: is a folder, expected a file", path)
                           : err_errno(e, "%s: read", path);
}

enum err_code io_write_full(int fd, uint64_t off, const void *data, size_t n, const char *path,
                            struct err *e)
{
    const uint8_t *p = data;
    if (off > INT64_MAX || n > INT64_MAX - off)
        return err_set(e, ERR_INTERNAL, "%s: write past 2^63 bytes", path);
    while (n) {
        size_t piece = MIN2(n, (size_t)1 << 30);
        ssize_t w = io_fault_hit(IO_FAULT_WRITE) ? -1 : pwrite(fd, p, piece, (off_t)off);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            errno = w == 0 ? ENOSPC : errno;
            return err_errno(e, "%s: write of %zu bytes at %llu", path, n, (unsigned long long)off);
        }
        p += w;
        n -= (size_t)w;
        off += (uint64_t)w;
    }
    return ERR_OK;
}

enum err_code io_sync(int fd, const char *path, struct err *e)
{
    int r;
    do {
        r = io_fault_hit(IO_FAULT_WRITE) ? -1 : fsync(fd);
    } while (r < 0 && errno == EINTR);
    /* Some file systems cannot sync a folder and say so; there is nothing more to do then. */
    if (r < 0 && errno != EINVAL && errno != EROFS)
        return err_errno(e, "%s: fsync", path);
    return ERR_OK;
}

bool io_still_named(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

enum err_code io_remove(const char *path, struct err *e)
{
    if (io_fault_hit(IO_FAULT_WRITE) || unlink(path) != 0)
        return errno == ENOENT ? ERR_OK : err_errno(e, "%s: remove", path);
    return io_sync_parent(path, e);
}

char *io_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    char *dir = io_alloc(n + 2);
    if (!dir)
        return NULL;
    memcpy(dir, slash ? path : ".", slash ? n : 1);
    return dir;
}

enum err_code io_sync_parent(const char *path, struct err *e)
{
    char *dir = io_parent(path);
    if (!dir)
        return io_nomem(strlen(path), e);
    int fd;
    enum err_code rc = io_open_read(dir, &fd, e);
    if (rc == ERR_OK) {
        rc = io_sync(fd, dir, e);
        close(fd);
    }
    free(dir);
    return rc;
}

enum err_code io_rename(const char *from, const char *to, bool replace, struct err *e)
{
    int r;
    if (io_fault_hit(IO_FAULT_WRITE)) {
        r = -1;
    } else if (replace) {
        r = rename(from, to);
    } else {
        r = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
        /* Without kernel or file system support: a look and a rename, which leaves a short gap. */
        if (r < 0 && (errno == EINVAL || errno == ENOSYS)) {
            struct stat st;
            if (lstat(to, &st) == 0) {
                errno = EEXIST;
            } else {
                r = rename(from, to);
            }
        }
    }
    if (r == 0)
        return ERR_OK;
    if (!replace && errno == EEXIST)
        return err_set(e, ERR_USAGE, "%s: exists already; nothing was overwritten", to);
    return err_errno(e, "%s: rename", to);
}
