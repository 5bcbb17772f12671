/* io.c: maps, whole reads and names of files. Making files is in io_out.c and io_dir.c, lines are
 * in io_lines.c. */
#include "common/io_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err_code open_regular(const char *path, int *fd, struct stat *st, struct err *e)
{
    enum err_code rc = io_open_read(path, fd, e);
    if (rc != ERR_OK)
        return rc;
    if (fstat(*fd, st) != 0)
        rc = err_errno(e, "%s: stat", path);
    else if (S_ISDIR(st->st_mode))
        rc = err_set(e, ERR_INPUT, "%s: is a folder, expected a file", path);
    if (rc != ERR_OK)
        close(*fd);
    return rc;
}

enum err_code io_map_open(struct io_map *m, const char *path, struct err *e)
{
    *m = (struct io_map){NULL, 0};
    int fd;
    struct stat st;
    enum err_code rc = open_regular(path, &fd, &st, e);
    if (rc != ERR_OK)
        return rc;
    if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_INPUT, "%s: is no regular file and cannot be mapped", path);
    } else if (st.st_size > 0) {
        size_t bytes = (size_t)st.st_size;
        void *p = io_fault_hit(IO_FAULT_READ) ? MAP_FAILED
                                              : mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = err_errno(e, "%s: map of %zu bytes", path, bytes);
        else
            *m = (struct io_map){p, bytes};
    }
    close(fd);
    return rc;
}

void io_map_close(struct io_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->bytes);
    *m = (struct io_map){NULL, 0};
}

void io_map_drop(const void *data, size_t bytes)
{
    /* Whole pages inside the range only: a page at its edge may be read again by a neighbour. */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) & ~(page - 1);
    uintptr_t to = ((uintptr_t)data + bytes) & ~(page - 1);
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static enum err_code read_fd(int fd, const char *path, size_t max_bytes, struct strbuf *out,
                             struct err *e)
{
    size_t start = out->len, got = 1;
    while (got) {
        if (!strbuf_reserve(out, 4096))
            return strbuf_ok(out, e);
        size_t room = out->cap - 1 - out->len;
        enum err_code rc = io_read_some(fd, out->data + out->len, room, &got, path, e);
        if (rc != ERR_OK)
            return rc;
        out->len += got;
        out->data[out->len] = 0;
        if (out->len - start > max_bytes)
            return err_set(e, ERR_INPUT, "%s: more than %zu bytes", path, max_bytes);
    }
    return ERR_OK;
}

enum err_code io_read_all(const char *path, size_t max_bytes, struct strbuf *out, struct err *e)
{
    int fd;
    struct stat st;
    enum err_code rc = open_regular(path, &fd, &st, e);
    if (rc != ERR_OK)
        return rc;
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > max_bytes) {
        rc = err_set(e, ERR_INPUT, "%s: %lld bytes, expected at most %zu", path,
                     (long long)st.st_size, max_bytes);
    } else {
        /* One reservation for the common case; a file in /proc has size 0 and grows the buffer. */
        if (S_ISREG(st.st_mode))
            strbuf_reserve(out, (size_t)st.st_size + 4096);
        rc = read_fd(fd, path, max_bytes, out, e);
    }
    close(fd);
    return rc;
}

bool io_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool io_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum err_code io_size(const char *path, uint64_t *bytes, struct err *e)
{
    struct stat st;
    if (io_fault_hit(IO_FAULT_READ) || stat(path, &st) != 0) {
        bool nowhere = errno == ENOENT || errno == ENOTDIR;
        enum err_code rc = err_errno(e, "%s", path);
        return nowhere ? ERR_INPUT : rc;
    }
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INPUT, "%s: is no regular file", path);
    *bytes = (uint64_t)st.st_size;
    return ERR_OK;
}

bool io_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum err_code push_name(char ***names, size_t *n, size_t *cap, const char *name,
                               struct err *e)
{
    if (*n == *cap) {
        size_t more = *cap ? *cap * 2 : 16;
        char **grown = io_fault_hit(IO_FAULT_ALLOC) ? NULL : realloc(*names, more * sizeof *grown);
        if (!grown)
            return io_nomem(more * sizeof *grown, e);
        *names = grown;
        *cap = more;
    }
    char *copy = io_alloc(strlen(name) + 1);
    if (!copy)
        return io_nomem(strlen(name) + 1, e);
    strcpy(copy, name);
    (*names)[(*n)++] = copy;
    return ERR_OK;
}

enum err_code io_list(const char *dir, char ***names, size_t *n, struct err *e)
{
    *names = NULL;
    *n = 0;
    int fd;
    enum err_code rc = io_open_read(dir, &fd, e);
    if (rc != ERR_OK)
        return rc;
    DIR *d = fdopendir(fd);
    if (!d) {
        rc = errno == ENOTDIR ? err_set(e, ERR_INPUT, "%s: is no folder", dir)
                              : err_errno(e, "%s", dir);
        close(fd);
        return rc;
    }
    size_t cap = 0;
    while (rc == ERR_OK) {
        errno = 0;
        struct dirent *entry = io_fault_hit(IO_FAULT_READ) ? NULL : readdir(d);
        if (!entry) {
            if (errno)
                rc = err_errno(e, "%s: list", dir);
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = push_name(names, n, &cap, entry->d_name, e);
    }
    closedir(d);
    if (rc != ERR_OK) {
        io_names_free(*names, *n);
        *names = NULL;
        *n = 0;
    } else if (*n) {
        qsort(*names, *n, sizeof **names, by_name);
    }
    return rc;
}

void io_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

char *io_join(const char *dir, const char *name)
{
    size_t a = strlen(dir), b = strlen(name);
    bool slash = a > 0 && dir[a - 1] != '/';
    char *path = io_alloc(a + slash + b + 1);
    if (!path)
        return NULL;
    memcpy(path, dir, a);
    if (slash)
        path[a] = '/';
    memcpy(path + a + slash, name, b);
    return path;
}

const char *io_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
