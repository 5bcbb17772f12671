/* io_lines.c: lines of a plain or gzip file, in constant memory.
 *
 * gzip is told by its first two bytes, not by the name. Members may follow one another; every
 * member must be whole and its checksum right, and nothing else may follow: a cut file is an error
 * and never a short file. (zlib's own gz functions skip rubbish after a member in silence, so
 * inflate is driven here.)
 */
#include "common/io_private.h"

#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#define CHUNK ((size_t)64 << 10)

struct io_lines {
    int fd;
    bool gzip, in_member, at_end;
    const char *fault; /* of the gzip data, said when the bytes before it are used up */
    const char *name;
    char *path;
    z_stream z;
    uint8_t *raw, *plain;      /* CHUNK bytes each; plain is unused without gzip */
    const uint8_t *from, *end; /* decoded bytes that no line has taken yet */
    struct strbuf line;
    uint64_t number;
};

static void *z_alloc(void *opaque, unsigned n, unsigned size)
{
    (void)opaque;
    size_t bytes;
    return checked_mul(n, size, &bytes) ? io_alloc(bytes) : NULL;
}

static void z_free(void *opaque, void *p)
{
    (void)opaque;
    free(p);
}

static enum err_code read_raw(struct io_lines *l, size_t keep, size_t *got, struct err *e)
{
    enum err_code rc = io_read_some(l->fd, l->raw + keep, CHUNK - keep, got, l->name, e);
    l->z.next_in = l->raw;
    l->z.avail_in = (unsigned)(keep + *got);
    return rc;
}

/* Reads the first bytes and decides. */
static enum err_code sniff(struct io_lines *l, struct err *e)
{
    size_t n = 0, got = 1;
    while (n < 2 && got) {
        enum err_code rc = read_raw(l, n, &got, e);
        if (rc != ERR_OK)
            return rc;
        n += got;
    }
    l->gzip = n >= 2 && l->raw[0] == 0x1f && l->raw[1] == 0x8b;
    if (!l->gzip) {
        l->from = l->raw;
        l->end = l->raw + n;
        return ERR_OK;
    }
    l->plain = io_alloc(CHUNK);
    if (!l->plain)
        return io_nomem(CHUNK, e);
    l->z.zalloc = z_alloc;
    l->z.zfree = z_free;
    if (inflateInit2(&l->z, 15 + 16) != Z_OK) {
        l->gzip = false;
        return err_set(e, ERR_NOMEM, "out of memory: the state of a gzip reader");
    }
    l->in_member = true;
    return ERR_OK;
}

enum err_code io_lines_open(struct io_lines **out, const char *path, struct err *e)
{
    *out = NULL;
    struct io_lines *l = io_alloc(sizeof *l);
    if (!l)
        return io_nomem(sizeof *l, e);
    l->fd = -1;
    bool standard = strcmp(path, "-") == 0;
    l->path = io_alloc(strlen(path) + 1);
    l->raw = io_alloc(CHUNK);
    enum err_code rc = ERR_OK;
    if (!l->path || !l->raw) {
        rc = io_nomem(CHUNK, e);
    } else {
        strcpy(l->path, path);
        l->name = standard ? "standard input" : l->path;
        if (standard)
            l->fd = STDIN_FILENO;
        else
            rc = io_open_read(path, &l->fd, e);
    }
    if (rc == ERR_OK)
        rc = sniff(l, e);
    if (rc != ERR_OK)
        io_lines_close(l);
    else
        *out = l;
    return rc;
}

static enum err_code damaged(const struct io_lines *l, const char *how, struct err *e)
{
    return err_set(e, ERR_INPUT, "%s: %s after line %llu", l->name, how,
                   (unsigned long long)l->number);
}

/* Between members: the file may end here, or the next member starts. */
static enum err_code next_member(struct io_lines *l, struct err *e)
{
    while (l->z.avail_in < 2) {
        size_t keep = l->z.avail_in, got;
        memmove(l->raw, l->z.next_in, keep);
        enum err_code rc = read_raw(l, keep, &got, e);
        if (rc != ERR_OK)
            return rc;
        if (got == 0)
            break;
    }
    if (l->z.avail_in == 0) {
        l->at_end = true;
        return ERR_OK;
    }
    if (l->z.avail_in < 2 || l->z.next_in[0] != 0x1f || l->z.next_in[1] != 0x8b)
        return damaged(l, "bytes that are no gzip data follow the end of gzip data", e);
    if (inflateReset(&l->z) != Z_OK)
        return err_set(e, ERR_INTERNAL, "%s: gzip reader does not restart", l->name);
    l->in_member = true;
    return ERR_OK;
}

static enum err_code fill_gzip(struct io_lines *l, struct err *e)
{
    l->from = l->end = l->plain;
    while (l->from == l->end && !l->at_end) {
        enum err_code rc = ERR_OK;
        size_t got = 1;
        if (l->fault)
            return damaged(l, l->fault, e);
        if (!l->in_member) {
            rc = next_member(l, e);
            if (rc != ERR_OK)
                return rc;
            continue;
        }
        if (l->z.avail_in == 0)
            rc = read_raw(l, 0, &got, e);
        if (rc != ERR_OK)
            return rc;
        if (got == 0)
            return damaged(l, "gzip data is cut off", e);
        l->z.next_out = l->plain;
        l->z.avail_out = (unsigned)CHUNK;
        int z = inflate(&l->z, Z_NO_FLUSH);
        l->end = l->plain + (CHUNK - l->z.avail_out);
        if (z == Z_STREAM_END)
            l->in_member = false;
        else if (z == Z_MEM_ERROR)
            return err_set(e, ERR_NOMEM, "out of memory: the window of a gzip reader");
        else if (z != Z_OK && z != Z_BUF_ERROR)
            l->fault = l->z.msg ? l->z.msg : "gzip data is damaged";
    }
    return ERR_OK;
}

/* More decoded bytes, or at_end. */
static enum err_code fill(struct io_lines *l, struct err *e)
{
    if (l->gzip)
        return fill_gzip(l, e);
    size_t got;
    enum err_code rc = io_read_some(l->fd, l->raw, CHUNK, &got, l->name, e);
    l->from = l->raw;
    l->end = l->raw + got;
    l->at_end = got == 0;
    return rc;
}

/* Adds a piece of the line. One byte more than allowed is kept, because it may be the "\r". */
static void take(struct io_lines *l, size_t n, size_t max_bytes, bool *too_long)
{
    size_t room = max_bytes < SIZE_MAX ? max_bytes + 1 - l->line.len : n;
    if (n > room) {
        *too_long = true;
        strbuf_append(&l->line, l->from, room);
    } else if (!*too_long) {
        strbuf_append(&l->line, l->from, n);
    }
    l->from += n;
}

enum err_code io_lines_next(struct io_lines *l, size_t max_bytes, const char **line, size_t *len,
                            bool *too_long, struct err *e)
{
    strbuf_clear(&l->line);
    *line = NULL;
    *len = 0;
    *too_long = false;
    bool any = false, ended = false;
    while (!ended) {
        if (l->from == l->end && !l->at_end) {
            enum err_code rc = fill(l, e);
            if (rc != ERR_OK)
                return rc;
        }
        if (l->from == l->end)
            break;
        any = true;
        size_t n = (size_t)(l->end - l->from);
        const uint8_t *newline = memchr(l->from, '\n', n);
        ended = newline != NULL;
        take(l, ended ? (size_t)(newline - l->from) : n, max_bytes, too_long);
        l->from += ended;
    }
    if (!any)
        return ERR_OK;
    if (!l->line.failed)
        strbuf_reserve(&l->line, 0); /* an empty line has bytes too: an empty text */
    if (l->line.failed)
        return strbuf_ok(&l->line, e);
    l->number++;
    if (ended && !*too_long && l->line.len && l->line.data[l->line.len - 1] == '\r')
        l->line.data[--l->line.len] = 0;
    if (l->line.len > max_bytes) {
        *too_long = true;
        l->line.data[l->line.len = max_bytes] = 0;
    }
    *line = l->line.data;
    *len = l->line.len;
    return ERR_OK;
}

enum err_code io_lines_bytes(struct io_lines *l, size_t n, struct strbuf *out, struct err *e)
{
    for (size_t got = 0; got < n;) {
        if (l->from == l->end && !l->at_end) {
            enum err_code rc = fill(l, e);
            if (rc != ERR_OK)
                return rc;
        }
        size_t piece = MIN2((size_t)(l->end - l->from), n - got);
        if (piece == 0)
            return err_set(e, ERR_INPUT, "%s: %zu bytes are missing at the end", l->name, n - got);
        strbuf_append(out, l->from, piece);
        l->from += piece;
        got += piece;
    }
    if (!out->failed)
        strbuf_reserve(out, 0); /* no bytes are bytes too: an empty text */
    return strbuf_ok(out, e);
}

uint64_t io_lines_number(const struct io_lines *l)
{
    return l->number;
}

void io_lines_close(struct io_lines *l)
{
    if (!l)
        return;
    if (l->gzip)
        inflateEnd(&l->z);
    if (l->fd >= 0 && l->name == l->path)
        close(l->fd);
    strbuf_free(&l->line);
    free(l->raw);
    free(l->plain);
    free(l->path);
    free(l);
}
