/* sweep_dir.c: mark, lock, objects. */
#include "jobs/sweep_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"

#define MARK      "assay-sweep.json"
#define MARK_TEXT "{\"assay_sweep_folder\":1}\n"

char *sweep_dir_path(const struct sweep_dir *d, const char *name)
{
    return io_join(d->path, name);
}

static enum err_code make_folder(const char *path, struct err *e)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return err_errno(e, "%s: create", path);
    return ERR_OK;
}

/* A folder below ours. */
static enum err_code make_below(const struct sweep_dir *d, const char *name, struct err *e)
{
    char *path = sweep_dir_path(d, name);
    if (!path)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = make_folder(path, e);
    free(path);
    return rc;
}

/* A folder with nothing but a half-written mark is as good as none: its run died there. */
static enum err_code make_marked(const struct sweep_dir *d, const char *mark, struct err *e)
{
    char **names = NULL;
    size_t n = 0;
    enum err_code rc = make_folder(d->path, e);
    if (rc == ERR_OK)
        rc = io_list(d->path, &names, &n, e);
    size_t foreign = 0;
    for (size_t i = 0; i < n; i++)
        foreign += !str_starts(names[i], MARK);
    if (rc == ERR_OK && foreign)
        rc = err_set(e, ERR_USAGE, "%s: holds no " MARK ", so no sweep made it; it was left alone",
                     d->path);
    io_names_free(names, n);
    if (rc == ERR_OK)
        rc = io_write_all(mark, MARK_TEXT, strlen(MARK_TEXT), false, e);
    if (rc == ERR_OK)
        rc = make_below(d, "objects", e);
    return rc == ERR_OK ? make_below(d, "variants", e) : rc;
}

static enum err_code check_mark(const struct sweep_dir *d, enum sweep_dir_use use, struct err *e)
{
    char *mark = sweep_dir_path(d, MARK);
    enum err_code rc = ERR_OK;
    if (!mark)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (io_exists(d->path) && !io_is_dir(d->path))
        rc = err_set(e, ERR_USAGE, "%s: is a file, expected the folder of a sweep", d->path);
    else if (!io_exists(mark) && use == SWEEP_DIR_MAKE)
        rc = make_marked(d, mark, e);
    else if (!io_exists(d->path))
        rc = err_set(e, ERR_INPUT, "%s: no such folder: the sweep has not run yet", d->path);
    else if (!io_exists(mark))
        rc = err_set(e, ERR_USAGE, "%s: holds no " MARK ", so no sweep made it; it was left alone",
                     d->path);
    free(mark);
    return rc;
}

static enum err_code take_lock(struct sweep_dir *d, struct err *e)
{
    char *lock = sweep_dir_path(d, "sweep.lock");
    enum err_code rc = ERR_OK;
    if (!lock)
        return err_set(e, ERR_NOMEM, "out of memory");
    d->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (d->lock_fd < 0)
        rc = err_errno(e, "%s", lock);
    else if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0)
        rc = errno == EWOULDBLOCK ? err_set(e, ERR_BUSY, "%s: another run is at work", d->path)
                                  : err_errno(e, "%s: lock", lock);
    free(lock);
    return rc;
}

enum err_code sweep_dir_open(struct sweep_dir *d, const char *path, enum sweep_dir_use use,
                             struct err *e)
{
    *d = (struct sweep_dir){.path = strdup(path), .lock_fd = -1};
    if (!d->path)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = check_mark(d, use, e);
    if (rc == ERR_OK && use != SWEEP_DIR_READ)
        rc = take_lock(d, e);
    if (rc != ERR_OK)
        sweep_dir_close(d);
    return rc;
}

void sweep_dir_close(struct sweep_dir *d)
{
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    free(d->path);
    *d = (struct sweep_dir){.lock_fd = -1};
}

enum err_code sweep_dir_work(const struct sweep_dir *d, struct err *e)
{
    char *work = sweep_dir_path(d, "work");
    if (!work)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = io_remove_tree(work, e);
    free(work);
    return rc == ERR_OK ? make_below(d, "work", e) : rc;
}

char *sweep_dir_object(const struct sweep_dir *d, const char *sha256, const char *ending)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%s/objects/%s%s", d->path, sha256, ending);
    return strbuf_take(&b);
}

static enum err_code copy_file(const char *from, const char *to, struct err *e)
{
    struct io_map m;
    struct stat st;
    enum err_code rc = io_map_open(&m, from, e);
    if (rc != ERR_OK)
        return rc;
    rc = io_write_all(to, m.data, m.bytes, true, e);
    if (rc == ERR_OK && stat(from, &st) == 0 && (st.st_mode & S_IXUSR) && chmod(to, 0755) != 0)
        rc = err_errno(e, "%s: chmod", to);
    io_map_close(&m);
    return rc;
}

enum err_code sweep_dir_keep(const struct sweep_dir *d, const char *file, const char *ending,
                             char sha256[SHA256_HEX], struct err *e)
{
    enum err_code rc = sha256_file(file, sha256, e);
    if (rc != ERR_OK)
        return rc;
    char *to = sweep_dir_object(d, sha256, ending);
    if (!to)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (!io_exists(to))
        rc = copy_file(file, to, e);
    free(to);
    return rc;
}

/* A name that sweep_dir_keep gives: 64 digits and an ending. */
static bool is_object(const char *name)
{
    return strspn(name, "0123456789abcdef") == SHA256_HEX - 1 &&
           (name[SHA256_HEX - 1] == 0 || name[SHA256_HEX - 1] == '.');
}

enum err_code sweep_dir_prune(const struct sweep_dir *d,
                              bool (*used)(void *ctx, const char *sha256), void *ctx, struct err *e)
{
    char *objects = sweep_dir_path(d, "objects"), **names = NULL;
    size_t n = 0;
    if (!objects)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = io_list(objects, &names, &n, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        char sha256[SHA256_HEX];
        if (!is_object(names[i]))
            continue;
        memcpy(sha256, names[i], SHA256_HEX - 1);
        sha256[SHA256_HEX - 1] = 0;
        if (used(ctx, sha256))
            continue;
        char *path = io_join(objects, names[i]);
        rc = path ? io_remove_tree(path, e) : err_set(e, ERR_NOMEM, "out of memory");
        free(path);
    }
    io_names_free(names, n);
    free(objects);
    return rc;
}
