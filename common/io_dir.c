/* io_dir.c: one folder, made whole or not at all.
 *
 * Beside the target stand, while it is made, `<path>.assay-lock` (a file held by flock) and
 * `<path>.assay-tmp` (the folder). Who holds the lock owns the folder; a folder without a holder is
 * what a dead run left. The lock is no file inside the folder: it would have to go before the
 * rename, and in that moment the folder would look dead. Where two names cannot be exchanged, the
 * old folder waits as `<path>.assay-old`; a run that died between the two renames is undone by
 * the next one.
 */
#include "common/io_private.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define WALK_FDS 16

struct io_dir_out {
    char *path, *tmp, *old, *lock, *marker;
    bool replace;
    int lock_fd;
};

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

enum err_code io_remove_tree(const char *path, struct err *e)
{
    if (!io_exists(path))
        return ERR_OK;
    if (io_fault_hit(IO_FAULT_WRITE) || nftw(path, remove_entry, WALK_FDS, FTW_DEPTH | FTW_PHYS))
        return err_errno(e, "%s: remove", path);
    return ERR_OK;
}

static int sync_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (kind != FTW_F && kind != FTW_DP)
        return kind == FTW_DNR || kind == FTW_NS ? -1 : 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    enum err_code rc = io_sync(fd, path, NULL);
    int number = errno;
    close(fd);
    errno = number;
    return rc == ERR_OK ? 0 : -1;
}

/* Files first, each folder after what it holds. */
static enum err_code sync_tree(const struct io_dir_out *d, struct err *e)
{
    errno = 0;
    if (nftw(d->tmp, sync_entry, WALK_FDS, FTW_DEPTH | FTW_PHYS) != 0)
        return err_errno(e, "%s: fsync", d->path);
    return ERR_OK;
}

/* Locks the lock file; the name may have been removed by its last holder between open and lock,
 * then the file is made anew. */
static enum err_code take_lock(struct io_dir_out *d, struct err *e)
{
    for (int tries = 0; tries < 100; tries++) {
        int fd = io_fault_hit(IO_FAULT_WRITE)
                     ? -1
                     : open(d->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return err_errno(e, "%s: create", d->path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            enum err_code rc =
                errno == EWOULDBLOCK
                    ? err_set(e, ERR_BUSY, "%s: is being written by another run", d->path)
                    : err_errno(e, "%s: lock", d->path);
            close(fd);
            return rc;
        }
        if (io_still_named(fd, d->lock)) {
            d->lock_fd = fd;
            return ERR_OK;
        }
        close(fd);
    }
    return err_set(e, ERR_BUSY, "%s: its lock changes hands too quickly", d->path);
}

static enum err_code check_marker(const struct io_dir_out *d, struct err *e)
{
    char *file = d->marker ? io_join(d->path, d->marker) : NULL;
    if (d->marker && !file)
        return io_nomem(strlen(d->path), e);
    bool found = file && io_exists(file);
    free(file);
    if (found)
        return ERR_OK;
    return err_set(e, ERR_USAGE, "%s: holds no %s, so assay did not make it; it was left alone",
                   d->path, d->marker ? d->marker : "manifest");
}

static enum err_code check_target(const struct io_dir_out *d, struct err *e)
{
    if (!io_exists(d->path))
        return ERR_OK;
    if (!d->replace)
        return err_set(e, ERR_USAGE, "%s: exists already; nothing was overwritten", d->path);
    if (!io_is_dir(d->path))
        return err_set(e, ERR_USAGE, "%s: is a file, expected a folder; it was left alone",
                       d->path);
    return check_marker(d, e);
}

static void free_dir(struct io_dir_out *d)
{
    /* The name goes while the lock is held, so that nobody else's lock is removed. */
    if (d->lock_fd >= 0) {
        unlink(d->lock);
        close(d->lock_fd);
    }
    free(d->path);
    free(d->tmp);
    free(d->old);
    free(d->lock);
    free(d->marker);
    free(d);
}

static char *with_suffix(const char *path, size_t n, const char *suffix)
{
    struct strbuf b = {0};
    strbuf_append(&b, path, n);
    strbuf_puts(&b, suffix);
    return strbuf_take(&b);
}

static enum err_code make_tmp(struct io_dir_out *d, struct err *e)
{
    enum err_code rc = take_lock(d, e);
    if (rc != ERR_OK)
        return rc;
    if (io_exists(d->old)) {
        /* Only while the target is missing is the old folder the good one. */
        rc = io_exists(d->path) ? io_remove_tree(d->old, e) : io_rename(d->old, d->path, false, e);
        if (rc != ERR_OK)
            return rc;
    }
    rc = check_target(d, e);
    if (rc == ERR_OK)
        rc = io_remove_tree(d->tmp, e);
    if (rc == ERR_OK && (io_fault_hit(IO_FAULT_WRITE) || mkdir(d->tmp, 0777) != 0))
        rc = err_errno(e, "%s: create", d->path);
    return rc;
}

enum err_code io_dir_out_open(struct io_dir_out **out, const char *path, bool replace,
                              const char *marker, struct err *e)
{
    *out = NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || path[n - 1] == '/' || strcmp(io_base(path), ".") == 0 ||
        strcmp(io_base(path), "..") == 0)
        return err_set(e, ERR_USAGE, "'%s': expected the name of a folder to make", path);
    struct io_dir_out *d = io_alloc(sizeof *d);
    if (!d)
        return io_nomem(sizeof *d, e);
    d->lock_fd = -1;
    d->replace = replace;
    d->path = with_suffix(path, n, "");
    d->tmp = with_suffix(path, n, IO_TMP);
    d->old = with_suffix(path, n, ".assay-old");
    d->lock = with_suffix(path, n, ".assay-lock");
    d->marker = marker ? with_suffix(marker, strlen(marker), "") : NULL;
    enum err_code rc = ERR_OK;
    if (!d->path || !d->tmp || !d->old || !d->lock || (marker && !d->marker))
        rc = io_nomem(n, e);
    if (rc == ERR_OK)
        rc = make_tmp(d, e);
    if (rc != ERR_OK)
        free_dir(d);
    else
        *out = d;
    return rc;
}

const char *io_dir_out_path(const struct io_dir_out *d)
{
    return d->tmp;
}

/* The new folder takes the old one's place in one step, and the old one has the temporary name. */
static enum err_code swap_in(struct io_dir_out *d, struct err *e)
{
    if (io_fault_hit(IO_FAULT_WRITE))
        return err_errno(e, "%s: rename", d->path);
    if (renameat2(AT_FDCWD, d->tmp, AT_FDCWD, d->path, RENAME_EXCHANGE) == 0)
        return ERR_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return err_errno(e, "%s: rename", d->path);
    enum err_code rc = io_rename(d->path, d->old, false, e);
    if (rc != ERR_OK)
        return rc;
    rc = io_rename(d->tmp, d->path, false, e);
    if (rc != ERR_OK && rename(d->old, d->path) != 0)
        return err_wrap(e, rc, "the old folder is now %s", d->old);
    return rc;
}

enum err_code io_dir_out_commit(struct io_dir_out *d, struct err *e)
{
    enum err_code rc = sync_tree(d, e);
    if (rc == ERR_OK)
        rc = check_target(d, e);
    if (rc == ERR_OK)
        rc = io_exists(d->path) ? swap_in(d, e) : io_rename(d->tmp, d->path, false, e);
    if (rc != ERR_OK) {
        io_dir_out_abort(d);
        return rc;
    }
    rc = io_sync_parent(d->path, e);
    /* The new folder is in place and safe. What cannot be removed of the old one now is removed by
     * the next run, so it is no reason to call this one failed. */
    if (rc == ERR_OK) {
        (void)!io_remove_tree(d->tmp, NULL);
        (void)!io_remove_tree(d->old, NULL);
    }
    free_dir(d);
    return rc;
}

void io_dir_out_abort(struct io_dir_out *d)
{
    if (!d)
        return;
    (void)!io_remove_tree(d->tmp, NULL);
    free_dir(d);
}
