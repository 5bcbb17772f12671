/* io_out.c: one file, made whole or not at all.
 *
 * The bytes go to `<path>.assay-tmp.<pid>`, which its owner holds locked (flock). A temporary file
 * that can be locked belongs to a dead run and is removed. Small writes are gathered; everything
 * is written by offset, so sequential and placed writes mix.
 */
#include "common/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define GATHER_BYTES ((size_t)256 << 10)

struct io_out {
    int fd;
    bool replace;
    char *path, *tmp;
    uint8_t *gathered;
    size_t n_gathered;
    uint64_t off; /* of the next sequential byte, gathered ones counted */
};

static bool all_digits(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == 0;
}

static void remove_if_dead(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && io_still_named(fd, path))
        unlink(path);
    close(fd);
}

/* Removes what dead runs left beside path. Best effort: the output does not depend on it. */
static void remove_stale(const char *path)
{
    char *dir = io_parent(path), **names = NULL;
    size_t n = 0;
    if (dir && io_list(dir, &names, &n, NULL) == ERR_OK) {
        size_t base = strlen(io_base(path));
        for (size_t i = 0; i < n; i++) {
            if (strncmp(names[i], io_base(path), base) != 0 ||
                !str_starts(names[i] + base, IO_TMP ".") ||
                !all_digits(names[i] + base + strlen(IO_TMP ".")))
                continue;
            char *stale = io_join(dir, names[i]);
            if (stale)
                remove_if_dead(stale);
            free(stale);
        }
    }
    io_names_free(names, n);
    free(dir);
}

static enum err_code check_target(const char *path, bool replace, struct err *e)
{
    struct stat st;
    if (!*io_base(path))
        return err_set(e, ERR_USAGE, "'%s': expected the name of a file", path);
    if (lstat(path, &st) != 0)
        return ERR_OK;
    if (S_ISDIR(st.st_mode))
        return err_set(e, ERR_USAGE, "%s: is a folder, expected the name of a file", path);
    if (!replace)
        return err_set(e, ERR_USAGE, "%s: exists already; nothing was overwritten", path);
    return ERR_OK;
}

static enum err_code create(struct io_out *o, struct err *e)
{
    for (int tries = 0; tries < 16; tries++) {
        o->fd = io_fault_hit(IO_FAULT_WRITE)
                    ? -1
                    : open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (o->fd >= 0) {
            if (flock(o->fd, LOCK_EX | LOCK_NB) == 0 && io_still_named(o->fd, o->tmp))
                return ERR_OK;
            close(o->fd);
            o->fd = -1;
            continue;
        }
        if (errno != EEXIST && errno != EINTR)
            return err_errno(e, "%s: create", o->path);
        /* A number that an earlier, dead process had; or this process makes the file twice. */
        remove_if_dead(o->tmp);
    }
    return err_set(e, ERR_BUSY, "%s: is being written by another run", o->path);
}

static void free_out(struct io_out *o)
{
    if (o->fd >= 0)
        close(o->fd);
    free(o->gathered);
    free(o->path);
    free(o->tmp);
    free(o);
}

enum err_code io_out_open(struct io_out **out, const char *path, bool replace, struct err *e)
{
    *out = NULL;
    enum err_code rc = check_target(path, replace, e);
    if (rc != ERR_OK)
        return rc;
    struct io_out *o = io_alloc(sizeof *o);
    if (!o)
        return io_nomem(sizeof *o, e);
    o->fd = -1;
    o->replace = replace;
    struct strbuf tmp = {0}, copy = {0};
    strbuf_puts(&copy, path);
    strbuf_printf(&tmp, "%s" IO_TMP ".%ld", path, (long)getpid());
    o->path = strbuf_take(&copy);
    o->tmp = strbuf_take(&tmp);
    o->gathered = io_alloc(GATHER_BYTES);
    if (!o->path || !o->tmp || !o->gathered) {
        rc = io_nomem(GATHER_BYTES, e);
    } else {
        remove_stale(path);
        rc = create(o, e);
    }
    if (rc != ERR_OK)
        free_out(o);
    else
        *out = o;
    return rc;
}

static enum err_code flush(struct io_out *o, struct err *e)
{
    size_t n = o->n_gathered;
    o->n_gathered = 0;
    return n ? io_write_full(o->fd, o->off - n, o->gathered, n, o->path, e) : ERR_OK;
}

enum err_code io_out_write(struct io_out *o, const void *data, size_t bytes, struct err *e)
{
    if (bytes > UINT64_MAX - o->off)
        return err_set(e, ERR_INTERNAL, "%s: write past 2^64 bytes", o->path);
    if (o->n_gathered + bytes > GATHER_BYTES) {
        enum err_code rc = flush(o, e);
        if (rc != ERR_OK)
            return rc;
    }
    if (bytes >= GATHER_BYTES) {
        enum err_code rc = io_write_full(o->fd, o->off, data, bytes, o->path, e);
        if (rc != ERR_OK)
            return rc;
    } else if (bytes) {
        memcpy(o->gathered + o->n_gathered, data, bytes);
        o->n_gathered += bytes;
    }
    o->off += bytes;
    return ERR_OK;
}

enum err_code io_out_write_at(struct io_out *o, uint64_t off, const void *data, size_t bytes,
                              struct err *e)
{
    enum err_code rc = flush(o, e);
    return rc != ERR_OK ? rc : io_write_full(o->fd, off, data, bytes, o->path, e);
}

enum err_code io_out_commit(struct io_out *o, struct err *e)
{
    enum err_code rc = flush(o, e);
    if (rc == ERR_OK)
        rc = io_sync(o->fd, o->path, e);
    if (rc == ERR_OK)
        rc = io_rename(o->tmp, o->path, o->replace, e);
    if (rc != ERR_OK) {
        io_out_abort(o);
        return rc;
    }
    rc = io_sync_parent(o->path, e);
    free_out(o);
    return rc;
}

void io_out_abort(struct io_out *o)
{
    if (!o)
        return;
    unlink(o->tmp);
    free_out(o);
}

enum err_code io_write_all(const char *path, const void *data, size_t bytes, bool replace,
                           struct err *e)
{
    struct io_out *o;
    enum err_code rc = io_out_open(&o, path, replace, e);
    if (rc != ERR_OK)
        return rc;
    rc = io_out_write(o, data, bytes, e);
    if (rc != ERR_OK) {
        io_out_abort(o);
        return rc;
    }
    return io_out_commit(o, e);
}
