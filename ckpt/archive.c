/* archive.c: tar (plain, gzip, zstd, xz) and zip over libarchive.
 *
 * The archive is mapped. A plain tar is walked once and its members are views of the map. A
 * compressed tar is expanded once, from first to last byte: only the end tells whether it is
 * whole. gzip is expanded by zlib below libarchive, because libarchive does not check its CRC. Zip
 * members are found by zip_index.c; compressed ones are expanded by libarchive on first use, read
 * to the end of the entry and held against size and CRC of the directory.
 */
#include "ckpt/archive.h"

#include <errno.h>
#include <stdlib.h>

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include "ckpt/zip_index.h"
#include "common/arena.h"
#include "common/io.h"
#include "common/str.h"

#define CHUNK      ((size_t)1 << 18)
#define FIRST_GROW ((size_t)1 << 20)

struct member {
    const char *name;
    const uint8_t *data; /* NULL: not there yet */
    uint8_t *heap;       /* expanded bytes */
    size_t bytes, order;
    bool skipped; /* of a compressed tar, and not wanted */
    bool checked;
    struct zip_entry *zip;
};

struct archive_map {
    char *path;
    struct io_map map;
    struct arena *arena;
    struct member *members; /* sorted by name */
    size_t n, cap;
    uint64_t expanded; /* bytes in heap blocks */
    bool plain;        /* a tar without a filter */
};

/* ---- gzip below libarchive --------------------------------------------------------------------
 */

struct gzip_feed {
    z_stream z;
    const uint8_t *data;
    size_t bytes, at;
    uint8_t *chunk;
    bool ended; /* a whole gzip member has been read */
    const char *fault;
};

/* Hands as much input to zlib as its counter can hold. */
static void refill(struct gzip_feed *g)
{
    size_t n = MIN2(g->bytes - g->at, (size_t)1 << 30);
    g->z.next_in = (Bytef *)(uintptr_t)(g->data + g->at);
    g->z.avail_in = (uInt)n;
    g->at += n;
}

static la_ssize_t read_gzip(struct archive *a, void *ctx, const void **out)
{
    struct gzip_feed *g = ctx;
    g->z.next_out = g->chunk;
    g->z.avail_out = CHUNK;
    while (g->z.avail_out == CHUNK) {
        if (g->z.avail_in == 0)
            refill(g);
        if (g->ended) {
            /* Another member may follow; anything else after the first is not gzip's. */
            if (g->z.avail_in == 0)
                break;
            if (inflateReset(&g->z) != Z_OK)
                return -1;
            g->ended = false;
        }
        if (g->z.avail_in == 0) {
            g->fault = "gzip: truncated";
        } else {
            int rc = inflate(&g->z, Z_NO_FLUSH);
            if (rc == Z_STREAM_END)
                g->ended = true;
            else if (rc != Z_OK)
                g->fault = "gzip: damaged data or checksum";
        }
        if (g->fault) {
            archive_set_error(a, EINVAL, "%s", g->fault);
            return -1;
        }
    }
    *out = g->chunk;
    return (la_ssize_t)(CHUNK - g->z.avail_out);
}

/* ---- tar ------------------------------------------------------------------------------------- */

bool archive_map_is(const char *path, const uint8_t *data, size_t bytes)
{
    static const struct {
        uint8_t magic[6];
        size_t n;
    } filters[] = {
        {{0x1f, 0x8b}, 2}, {{0x28, 0xb5, 0x2f, 0xfd}, 4}, {{0xfd, '7', 'z', 'X', 'Z', 0}, 6}};
    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        if (bytes >= filters[i].n && memcmp(data, filters[i].magic, filters[i].n) == 0)
            return true;
    }
    if (bytes >= 512 && memcmp(data + 257, "ustar", 5) == 0)
        return true;
    return zip_index_is(data, bytes) || (bytes && str_ends(path, ".tar"));
}

static bool name_is_safe(const char *name)
{
    if (name[0] == '/')
        return false;
    for (const char *p = name; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == 0))
            return false;
    }
    return true;
}

static enum err_code add_member(struct archive_map *a, const char *name, struct member **out,
                                struct err *e)
{
    if (!name_is_safe(name))
        return err_set(e, ERR_INPUT, "member '%.200s': absolute or with '..', refused", name);
    while (name[0] == '.' && name[1] == '/')
        name += 2;
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        struct member *m = realloc(a->members, cap * sizeof *m);
        if (!m)
            return err_set(e, ERR_NOMEM, "out of memory");
        a->members = m;
        a->cap = cap;
    }
    struct member *m = &a->members[a->n];
    *m = (struct member){.name = arena_strdup(a->arena, name), .order = a->n};
    if (!m->name)
        return arena_error(a->arena, strlen(name), e);
    a->n++;
    *out = m;
    return ERR_OK;
}

static enum err_code archive_fault(struct archive *in, const char *what, struct err *e)
{
    const char *text = archive_error_string(in);
    return err_set(e, ERR_INPUT, "%s: %s", what, text ? text : "damaged archive");
}

/* Reads an entry to its end. Memory grows with what really comes, not with what a header says. */
static enum err_code expand(struct archive_map *a, struct archive *in, struct member *m,
                            struct err *e)
{
    size_t cap = 0, len = 0;
    for (;;) {
        if (cap - len < CHUNK) {
            size_t more = cap ? 2 * cap : FIRST_GROW;
            uint8_t *p = realloc(m->heap, more);
            if (!p)
                return err_set(e, ERR_NOMEM, "member '%s': out of memory at %zu bytes", m->name,
                               more);
            m->heap = p;
            cap = more;
        }
        la_ssize_t got = archive_read_data(in, m->heap + len, cap - len);
        if (got < 0) {
            enum err_code rc = archive_fault(in, "damaged or truncated", e);
            return err_wrap(e, rc, "member '%s'", m->name);
        }
        if (got == 0)
            break;
        len += (size_t)got;
        a->expanded += (uint64_t)got;
        if (a->expanded > ARCHIVE_MEMORY_MAX) {
            return err_set(e, ERR_INPUT, "member '%s': more than %llu bytes expanded", m->name,
                           (unsigned long long)ARCHIVE_MEMORY_MAX);
        }
    }
    m->data = m->heap;
    m->bytes = len;
    return ERR_OK;
}

static enum err_code read_tar_entry(struct archive_map *a, struct archive *in,
                                    struct archive_entry *entry, bool wanted, struct err *e)
{
    struct member *m;
    const char *name = archive_entry_pathname(entry);
    if (!name)
        return err_set(e, ERR_INPUT, "a member without a readable name");
    enum err_code rc = add_member(a, name, &m, e);
    if (rc != ERR_OK)
        return rc;
    int64_t bytes = archive_entry_size(entry);
    if (a->plain && archive_entry_sparse_count(entry) == 0) {
        int64_t at = archive_filter_bytes(in, -1);
        if (at < 0 || bytes < 0 || (uint64_t)at > a->map.bytes ||
            (uint64_t)bytes > a->map.bytes - (uint64_t)at) {
            return err_set(e, ERR_INPUT,
                           "member '%s': %lld bytes at byte %lld, the file ends at %zu", m->name,
                           (long long)bytes, (long long)at, a->map.bytes);
        }
        m->data = a->map.data + at;
        m->bytes = (size_t)bytes;
        m->checked = true;
        return ERR_OK;
    }
    if (!wanted) {
        m->skipped = true;
        return ERR_OK;
    }
    m->checked = true;
    return expand(a, in, m, e);
}

static enum err_code walk_tar(struct archive_map *a, struct archive *in,
                              bool (*want)(const void *ctx, const char *name), const void *ctx,
                              struct err *e)
{
    for (;;) {
        struct archive_entry *entry;
        int got = archive_read_next_header(in, &entry);
        if (got == ARCHIVE_EOF)
            return ERR_OK;
        if (got != ARCHIVE_OK && got != ARCHIVE_WARN)
            return archive_fault(in, "tar", e);
        if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry))
            continue;
        const char *name = archive_entry_pathname(entry);
        while (name && name[0] == '.' && name[1] == '/')
            name += 2;
        enum err_code rc = read_tar_entry(a, in, entry, !want || (name && want(ctx, name)), e);
        if (rc != ERR_OK)
            return rc;
    }
}

/* What follows the tar's end inside the gzip stream, up to the checksum. */
static enum err_code drain_gzip(struct archive *in, struct gzip_feed *g, struct err *e)
{
    const void *skip;
    la_ssize_t got;
    do {
        got = read_gzip(in, g, &skip);
    } while (got > 0);
    if (got < 0)
        return err_set(e, ERR_INPUT, "%s", g->fault ? g->fault : "gzip: damaged");
    return ERR_OK;
}

static enum err_code read_tar(struct archive_map *a,
                              bool (*want)(const void *ctx, const char *name), const void *ctx,
                              struct err *e)
{
    struct gzip_feed g = {.data = a->map.data, .bytes = a->map.bytes};
    bool gzip = a->map.bytes > 2 && a->map.data[0] == 0x1f && a->map.data[1] == 0x8b;
    enum err_code rc = ERR_OK;
    struct archive *in = archive_read_new();
    if (!in)
        return err_set(e, ERR_NOMEM, "out of memory");
    archive_read_support_format_tar(in);
    int got;
    if (gzip) {
        g.chunk = malloc(CHUNK);
        if (!g.chunk || inflateInit2(&g.z, 31) != Z_OK) {
            rc = err_set(e, ERR_NOMEM, "out of memory");
            goto out;
        }
        got = archive_read_open(in, &g, NULL, read_gzip, NULL);
    } else {
        archive_read_support_filter_zstd(in);
        archive_read_support_filter_xz(in);
        got = archive_read_open_memory(in, a->map.data, a->map.bytes);
    }
    a->plain = !gzip && archive_filter_code(in, 0) == ARCHIVE_FILTER_NONE;
    rc = got == ARCHIVE_OK ? walk_tar(a, in, want, ctx, e) : archive_fault(in, "tar", e);
    if (rc == ERR_OK && gzip)
        rc = drain_gzip(in, &g, e);
out:
    archive_read_free(in);
    if (gzip && g.chunk)
        inflateEnd(&g.z);
    free(g.chunk);
    return rc;
}

/* ---- zip ------------------------------------------------------------------------------------- */

static enum err_code read_zip(struct archive_map *a, struct err *e)
{
    struct zip_entry *entries;
    size_t n;
    enum err_code rc = zip_index_read(a->map.data, a->map.bytes, a->arena, &entries, &n, e);
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        struct member *m;
        rc = add_member(a, entries[i].name, &m, e);
        if (rc == ERR_OK)
            m->zip = &entries[i];
    }
    return rc;
}

static enum err_code check_crc(const struct member *m, struct err *e)
{
    uint32_t crc = (uint32_t)crc32_z(0, m->data, m->bytes);
    if (m->bytes != m->zip->bytes) {
        return err_set(e, ERR_INPUT, "member '%s': %zu bytes, the directory says %llu", m->name,
                       m->bytes, (unsigned long long)m->zip->bytes);
    }
    if (crc != m->zip->crc) {
        return err_set(e, ERR_INPUT, "member '%s': CRC-32 %08x, the directory says %08x", m->name,
                       crc, m->zip->crc);
    }
    return ERR_OK;
}

static enum err_code expand_zip(struct archive_map *a, struct member *m, struct err *e)
{
    struct archive *in = archive_read_new();
    struct archive_entry *entry;
    enum err_code rc = ERR_OK;
    if (!in)
        return err_set(e, ERR_NOMEM, "out of memory");
    archive_read_support_format_zip_seekable(in);
    if (archive_read_open_memory(in, a->map.data, a->map.bytes) != ARCHIVE_OK)
        rc = archive_fault(in, "zip", e);
    while (rc == ERR_OK && !m->data) {
        int got = archive_read_next_header(in, &entry);
        if (got == ARCHIVE_EOF) {
            rc = err_set(e, ERR_INPUT, "member '%s': not found again", m->name);
        } else if (got != ARCHIVE_OK && got != ARCHIVE_WARN) {
            rc = archive_fault(in, "zip", e);
        } else {
            const char *name = archive_entry_pathname(entry);
            if (name && strcmp(name, m->zip->name) == 0)
                rc = expand(a, in, m, e);
        }
    }
    archive_read_free(in);
    return rc;
}

/* ---- the archive ------------------------------------------------------------------------------
 */

static int compare_members(const void *x, const void *y)
{
    const struct member *a = x, *b = y;
    int d = strcmp(a->name, b->name);
    return d ? d : (a->order > b->order) - (a->order < b->order);
}

/* Sorts, and keeps the last of equal names. */
static void sort_members(struct archive_map *a)
{
    size_t kept = 0;
    if (a->n)
        qsort(a->members, a->n, sizeof *a->members, compare_members);
    for (size_t i = 0; i < a->n; i++) {
        if (i + 1 < a->n && strcmp(a->members[i].name, a->members[i + 1].name) == 0)
            free(a->members[i].heap);
        else
            a->members[kept++] = a->members[i];
    }
    a->n = kept;
}

enum err_code archive_map_open(struct archive_map **out, const char *path,
                               bool (*want)(const void *ctx, const char *name), const void *ctx,
                               struct err *e)
{
    struct archive_map *a = calloc(1, sizeof *a);
    enum err_code rc = ERR_OK;
    *out = NULL;
    if (!a || !(a->path = strdup(path)) || !(a->arena = arena_new(0))) {
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
        goto out;
    }
    rc = io_map_open(&a->map, path, e);
    if (rc != ERR_OK)
        goto out;
    if (zip_index_is(a->map.data, a->map.bytes))
        rc = read_zip(a, e);
    else if (a->map.bytes == 0)
        rc = err_set(e, ERR_INPUT, "empty, expected an archive");
    else
        rc = read_tar(a, want, ctx, e);
    rc = err_wrap(e, rc, "%s", path);
    if (rc == ERR_OK)
        sort_members(a);
out:
    if (rc != ERR_OK)
        archive_map_close(a);
    else
        *out = a;
    return rc;
}

void archive_map_close(struct archive_map *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->n; i++)
        free(a->members[i].heap);
    free(a->members);
    arena_free(a->arena);
    io_map_close(&a->map);
    free(a->path);
    free(a);
}

size_t archive_map_count(const struct archive_map *a)
{
    return a->n;
}

const char *archive_map_name(const struct archive_map *a, size_t i)
{
    return a->members[i].name;
}

bool archive_map_in_place(const struct archive_map *a, size_t i)
{
    const struct member *m = &a->members[i];
    return m->zip ? m->zip->stored : m->data && !m->heap;
}

enum err_code archive_map_data(struct archive_map *a, size_t i, const uint8_t **data, size_t *bytes,
                               struct err *e)
{
    struct member *m = &a->members[i];
    enum err_code rc = ERR_OK;
    if (m->skipped)
        rc = err_set(e, ERR_INTERNAL, "member '%s' was not asked for", m->name);
    if (rc == ERR_OK && m->zip && !m->checked) {
        if (m->zip->stored) {
            rc = zip_index_stored(a->map.data, a->map.bytes, m->zip, &m->data, e);
            m->bytes = (size_t)m->zip->bytes;
            rc = err_wrap(e, rc, "member '%s'", m->name);
        } else if (!m->data) {
            rc = expand_zip(a, m, e);
        }
        if (rc == ERR_OK)
            rc = check_crc(m, e);
        m->checked = rc == ERR_OK;
    }
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s", a->path);
    *data = m->data;
    *bytes = m->bytes;
    return ERR_OK;
}
