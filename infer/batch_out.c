/* batch_out.c: the file under a batch run. Owns descriptors, the lock and the torn end; knows
 * nothing of answers.
 */
#include "infer/batch_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "common/log.h"

struct batch_out {
    char *path, *run_path;
    int fd;
    off_t good;            /* bytes of whole lines */
    struct io_lines *kept; /* reader over the lines that stay */
};

static void release(struct batch_out *b)
{
    if (!b)
        return;
    io_lines_close(b->kept);
    if (b->fd >= 0)
        close(b->fd);
    free(b->path);
    free(b->run_path);
    free(b);
}

static enum err_code compare_identity(const char *run_path, const json_t *mine, struct err *e)
{
    json_t *theirs = NULL;
    enum err_code rc = json_read(run_path, &theirs, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "resume");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)mine, key, value)
    {
        const json_t *old = json_object_get(theirs, key);
        if (json_equal(old, value))
            continue;
        const char *was = json_string_value(old);
        rc = err_set(e, ERR_INPUT, "%s: cannot resume: %s was '%s' and is '%s'", run_path, key,
                     was ? was : "(absent)", json_string_value(value));
        break;
    }
    json_decref(theirs);
    return rc;
}

/* Whole lines stay; what follows the last line end is a torn write and goes. */
static enum err_code keep_whole_lines(struct batch_out *b, uint64_t *kept, struct err *e)
{
    struct io_map map = {0};
    enum err_code rc = io_map_open(&map, b->path, e);
    if (rc != ERR_OK)
        return rc;
    size_t end = map.bytes;
    while (end && map.data[end - 1] != '\n')
        end--;
    *kept = 0;
    for (size_t i = 0; i < end; i++)
        *kept += map.data[i] == '\n';
    bool torn = end != map.bytes;
    io_map_close(&map);
    b->good = (off_t)end;
    if (torn) {
        log_warn("%s: a torn last line is cut off", b->path);
        if (ftruncate(b->fd, b->good) != 0)
            return err_errno(e, "%s: cut back to %lld bytes", b->path, (long long)b->good);
    }
    return *kept ? io_lines_open(&b->kept, b->path, e) : ERR_OK;
}

static enum err_code write_identity(struct batch_out *b, const json_t *identity, struct err *e)
{
    struct strbuf text = {0};
    json_put(&text, identity, 0);
    strbuf_putc(&text, '\n');
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = io_write_all(b->run_path, text.data, text.len, true, e);
    strbuf_free(&text);
    return rc;
}

static enum err_code open_file(struct batch_out *b, const json_t *identity, bool resume, bool force,
                               uint64_t *kept, struct err *e)
{
    bool there = io_exists(b->path), ours = io_exists(b->run_path);
    *kept = 0;
    if (there && !resume && !force)
        return err_set(e, ERR_USAGE, "%s exists (--resume goes on, --force replaces it)", b->path);
    if (there && !ours)
        return err_set(e, ERR_USAGE,
                       "%s exists and %s does not: not an output of assay, "
                       "it is left alone",
                       b->path, b->run_path);
    bool fresh = !there || !resume;
    b->fd = open(b->path, O_WRONLY | O_APPEND | O_CLOEXEC | O_CREAT, 0666);
    if (b->fd < 0)
        return err_errno(e, "%s", b->path);
    if (flock(b->fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(e, ERR_BUSY, "%s is locked by another run", b->path);
    if (!fresh) {
        enum err_code rc = compare_identity(b->run_path, identity, e);
        return rc == ERR_OK ? keep_whole_lines(b, kept, e) : rc;
    }
    if (ftruncate(b->fd, 0) != 0)
        return err_errno(e, "%s", b->path);
    return write_identity(b, identity, e);
}

enum err_code batch_out_open(struct batch_out **out, const char *path, const json_t *identity,
                             bool resume, bool force, uint64_t *kept, struct err *e)
{
    *out = NULL;
    struct batch_out *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_NOMEM, "out of memory");
    struct strbuf run = {0};
    b->fd = -1;
    strbuf_printf(&run, "%s.run", path);
    b->run_path = strbuf_take(&run);
    b->path = strdup(path);
    enum err_code rc = b->path && b->run_path ? open_file(b, identity, resume, force, kept, e)
                                              : err_set(e, ERR_NOMEM, "out of memory");
    if (rc != ERR_OK)
        release(b);
    else
        *out = b;
    return rc;
}

enum err_code batch_out_kept_id(struct batch_out *b, uint64_t n, char **custom_id, bool *failed,
                                struct err *e)
{
    const char *line;
    size_t len;
    bool too_long;
    json_t *o = NULL;
    *custom_id = NULL;
    enum err_code rc = io_lines_next(b->kept, SIZE_MAX / 2, &line, &len, &too_long, e);
    if (rc != ERR_OK || !line)
        return rc;
    rc = json_parse(line, len, &o, e);
    const char *id = json_string_value(json_object_get(o, "custom_id"));
    if (rc == ERR_OK && !id)
        rc = err_set(e, ERR_INPUT, "expected a custom_id");
    if (rc == ERR_OK) {
        *failed = !json_is_null(json_object_get(o, "error"));
        *custom_id = strdup(id);
        if (!*custom_id)
            rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    json_decref(o);
    return err_wrap(e, rc, "%s: line %llu", b->path, (unsigned long long)n + 1);
}

enum err_code batch_out_line(struct batch_out *b, const char *line, size_t len, struct err *e)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = -1;
        if (io_fault_hit(IO_FAULT_WRITE))
            errno = EIO;
        else
            n = write(b->fd, line + done, len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            enum err_code rc = err_errno(e, "%s: line write", b->path);
            if (ftruncate(b->fd, b->good) != 0)
                return err_wrap(e, rc, "%s: and it could not be cut back", b->path);
            return rc;
        }
        done += (size_t)n;
    }
    b->good += (off_t)len;
    return ERR_OK;
}

enum err_code batch_out_close(struct batch_out *b, struct err *e)
{
    if (!b)
        return ERR_OK;
    enum err_code rc = ERR_OK;
    if (fdatasync(b->fd) != 0 && errno != EINVAL)
        rc = err_errno(e, "%s: sync", b->path);
    release(b);
    return rc;
}
