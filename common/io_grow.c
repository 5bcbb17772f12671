/* io_grow.c: one file that grows in place.
 *
 * Bytes are gathered and go out in one write, so a reader mostly sees whole records; `written` is
 * where the last whole write ended. A write that fails is cut off again: what stands in the file
 * is only ever what a caller put there, in its order. Whether it is a whole record is the caller's
 * to know: a killed process may leave any part of its last write.
 */
#include "common/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROW_GATHER ((size_t)1 << 20)

struct io_grow {
    int fd;
    char *path;
    uint64_t written; /* bytes of the file */
    struct strbuf gathered;
};

/* A holder may remove the file between our open and our lock: then it is made anew. */
static enum err_code open_locked(struct io_grow *g, struct err *e)
{
    for (int tries = 0; tries < 100; tries++) {
        g->fd = io_fault_hit(IO_FAULT_WRITE)
                    ? -1
                    : open(g->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (g->fd < 0)
            return err_errno(e, "%s", g->path);
        if (flock(g->fd, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK
                       ? err_set(e, ERR_BUSY, "%s: is locked by another run", g->path)
                       : err_errno(e, "%s: lock", g->path);
        if (io_still_named(g->fd, g->path))
            return ERR_OK;
        close(g->fd);
        g->fd = -1;
    }
    return err_set(e, ERR_BUSY, "%s: its lock changes hands too quickly", g->path);
}

enum err_code io_grow_open(struct io_grow **out, const char *path, struct err *e)
{
    *out = NULL;
    struct io_grow *g = io_alloc(sizeof *g);
    if (!g)
        return io_nomem(sizeof *g, e);
    g->fd = -1;
    g->path = io_alloc(strlen(path) + 1);
    enum err_code rc = ERR_OK;
    if (g->path) {
        strcpy(g->path, path);
        rc = open_locked(g, e);
    } else {
        rc = io_nomem(strlen(path), e);
    }
    struct stat st;
    if (rc == ERR_OK && fstat(g->fd, &st) != 0)
        rc = err_errno(e, "%s: stat", path);
    else if (rc == ERR_OK && !S_ISREG(st.st_mode))
        rc = err_set(e, ERR_USAGE, "%s: is no regular file", path);
    if (rc == ERR_OK && st.st_size == 0)
        rc = io_sync_parent(path, e); /* it may have been made here: the name is to last */
    if (rc != ERR_OK) {
        io_grow_close(g);
        return rc;
    }
    g->written = (uint64_t)st.st_size;
    *out = g;
    return ERR_OK;
}

void io_grow_close(struct io_grow *g)
{
    if (!g)
        return;
    if (g->fd >= 0)
        close(g->fd);
    strbuf_free(&g->gathered);
    free(g->path);
    free(g);
}

uint64_t io_grow_bytes(const struct io_grow *g)
{
    return g->written + g->gathered.len;
}

int io_grow_fd(const struct io_grow *g)
{
    return g->fd;
}

static enum err_code write_out(struct io_grow *g, const void *data, size_t n, struct err *e)
{
    enum err_code rc = io_write_full(g->fd, g->written, data, n, g->path, e);
    if (rc == ERR_OK)
        g->written += n;
    else if (ftruncate(g->fd, (off_t)g->written) != 0)
        return err_wrap(e, rc, "%s: and it could not be cut back to %llu bytes", g->path,
                        (unsigned long long)g->written);
    return rc;
}

enum err_code io_grow_write(struct io_grow *g, struct err *e)
{
    if (!g->gathered.len)
        return ERR_OK;
    enum err_code rc = write_out(g, g->gathered.data, g->gathered.len, e);
    strbuf_clear(&g->gathered);
    return rc;
}

enum err_code io_grow_put(struct io_grow *g, const void *data, size_t n, struct err *e)
{
    enum err_code rc = ERR_OK;
    if (g->gathered.len && g->gathered.len + n > GROW_GATHER)
        rc = io_grow_write(g, e);
    if (rc != ERR_OK)
        return rc;
    if (n >= GROW_GATHER)
        return write_out(g, data, n, e);
    strbuf_append(&g->gathered, data, n);
    return strbuf_ok(&g->gathered, e);
}

enum err_code io_grow_sync(struct io_grow *g, struct err *e)
{
    enum err_code rc = io_grow_write(g, e);
    if (rc != ERR_OK)
        return rc;
    int r;
    do {
        r = io_fault_hit(IO_FAULT_WRITE) ? -1 : fdatasync(g->fd);
    } while (r < 0 && errno == EINTR);
    return r < 0 && errno != EINVAL ? err_errno(e, "%s: fdatasync", g->path) : ERR_OK;
}

enum err_code io_grow_read(struct io_grow *g, uint64_t at, void *data, size_t n, struct err *e)
{
    uint8_t *p = data;
    if (at >= g->written && n <= g->gathered.len && at - g->written <= g->gathered.len - n) {
        memcpy(p, g->gathered.data + (at - g->written), n);
        return ERR_OK;
    }
    while (n) {
        ssize_t r =
            io_fault_hit(IO_FAULT_READ) ? -1 : pread(g->fd, p, MIN2(n, (size_t)1 << 30), (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_errno(e, "%s: read at %llu", g->path, (unsigned long long)at);
        if (r == 0)
            return err_set(e, ERR_IO, "%s: ends before byte %llu", g->path,
                           (unsigned long long)(at + n));
        p += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return ERR_OK;
}

enum err_code io_grow_cut(struct io_grow *g, uint64_t bytes, struct err *e)
{
    enum err_code rc = io_grow_write(g, e);
    if (rc != ERR_OK)
        return rc;
    if (bytes > g->written)
        return err_set(e, ERR_INTERNAL, "%s: cut to %llu bytes, it has %llu", g->path,
                       (unsigned long long)bytes, (unsigned long long)g->written);
    if (io_fault_hit(IO_FAULT_WRITE) || ftruncate(g->fd, (off_t)bytes) != 0)
        return err_errno(e, "%s: cut to %llu bytes", g->path, (unsigned long long)bytes);
    g->written = bytes;
    return ERR_OK;
}

enum err_code io_grow_overwrite(struct io_grow *g, uint64_t at, const void *data, size_t n,
                                struct err *e)
{
    if (at > g->written || n > g->written - at)
        return err_set(e, ERR_INTERNAL, "%s: overwrites past its end", g->path);
    return io_write_full(g->fd, at, data, n, g->path, e);
}
