/* zip_index.c: end record -> (zip64 end record) -> central directory -> local headers.
 *
 * Everything is little-endian. The end record is the last one whose comment reaches the end of
 * the file exactly. A file that is split over disks or encrypted is refused.
 */
#include "ckpt/zip_index.h"

#define END_SIG       0x06054b50u
#define END_BYTES     22u
#define END64_SIG     0x06064b50u
#define END64_BYTES   56u
#define LOCATOR_SIG   0x07064b50u
#define LOCATOR_BYTES 20u
#define ENTRY_SIG     0x02014b50u
#define ENTRY_BYTES   46u
#define LOCAL_SIG     0x04034b50u
#define LOCAL_BYTES   30u

static const uint8_t *find_end(const uint8_t *data, size_t bytes)
{
    if (bytes < END_BYTES)
        return NULL;
    size_t last = bytes - END_BYTES, first = last > 0xffff ? last - 0xffff : 0;
    for (size_t at = last + 1; at-- > first;) {
        if (load_u32(data + at) == END_SIG && load_u16(data + at + 20) == last - at)
            return data + at;
    }
    return NULL;
}

bool zip_index_is(const uint8_t *data, size_t bytes)
{
    return bytes >= END_BYTES && (load_u32(data) == LOCAL_SIG || load_u32(data) == END_SIG);
}

struct directory {
    uint64_t off, bytes, n;
};

static enum err_code find_directory(const uint8_t *data, size_t bytes, struct directory *d,
                                    struct err *e)
{
    const uint8_t *end = find_end(data, bytes);
    if (!end)
        return err_set(e, ERR_INPUT, "no end record: a truncated zip?");
    d->n = load_u16(end + 10);
    d->bytes = load_u32(end + 12);
    d->off = load_u32(end + 16);
    size_t at = (size_t)(end - data);
    if (at >= LOCATOR_BYTES && load_u32(end - LOCATOR_BYTES) == LOCATOR_SIG) {
        uint64_t off64 = load_u64(end - LOCATOR_BYTES + 8);
        if (off64 > at || at - off64 < END64_BYTES || load_u32(data + off64) != END64_SIG)
            return err_set(e, ERR_INPUT, "no zip64 end record at byte %llu",
                           (unsigned long long)off64);
        d->n = load_u64(data + off64 + 32);
        d->bytes = load_u64(data + off64 + 40);
        d->off = load_u64(data + off64 + 48);
    }
    if (d->off > at || d->bytes > at - d->off) {
        return err_set(e, ERR_INPUT, "directory of %llu bytes at %llu in a file of %zu bytes",
                       (unsigned long long)d->bytes, (unsigned long long)d->off, bytes);
    }
    if (d->n > d->bytes / ENTRY_BYTES) {
        return err_set(e, ERR_INPUT, "directory of %llu entries in %llu bytes",
                       (unsigned long long)d->n, (unsigned long long)d->bytes);
    }
    return ERR_OK;
}

/* Sizes and offset that do not fit 32 bits stand in extra field 1, in this order, each only when
 * its 32-bit place holds all ones. */
static enum err_code read_extra64(const uint8_t *extra, size_t n, struct zip_entry *z,
                                  struct err *e)
{
    uint64_t *fields[3] = {&z->bytes, &z->packed_bytes, &z->header_off};
    size_t wanted = 0;
    for (int i = 0; i < 3; i++)
        wanted += *fields[i] == UINT32_MAX;
    if (wanted == 0)
        return ERR_OK;
    for (size_t at = 0; at + 4 <= n;) {
        size_t id = load_u16(extra + at), len = load_u16(extra + at + 2);
        at += 4;
        if (len > n - at)
            break;
        if (id == 1 && len >= 8 * wanted) {
            for (int i = 0; i < 3; i++) {
                if (*fields[i] == UINT32_MAX) {
                    *fields[i] = load_u64(extra + at);
                    at += 8;
                }
            }
            return ERR_OK;
        }
        at += len;
    }
    return err_set(e, ERR_INPUT, "its zip64 field is missing");
}

static enum err_code read_entry(const uint8_t *p, size_t room, struct zip_entry *z, size_t *used,
                                struct err *e)
{
    if (room < ENTRY_BYTES || load_u32(p) != ENTRY_SIG)
        return err_set(e, ERR_INPUT, "no directory entry where one is expected");
    size_t name_len = load_u16(p + 28), extra_len = load_u16(p + 30), note_len = load_u16(p + 32);
    *used = ENTRY_BYTES + name_len + extra_len + note_len;
    if (*used > room)
        return err_set(e, ERR_INPUT, "an entry of %zu bytes, the directory has %zu left", *used,
                       room);
    if (load_u16(p + 8) & 1)
        return err_set(e, ERR_INPUT, "encrypted, which is not supported");
    z->stored = load_u16(p + 10) == 0;
    z->crc = load_u32(p + 16);
    z->packed_bytes = load_u32(p + 20);
    z->bytes = load_u32(p + 24);
    z->header_off = load_u32(p + 42);
    enum err_code rc = read_extra64(p + ENTRY_BYTES + name_len, extra_len, z, e);
    if (rc == ERR_OK && z->stored && z->bytes != z->packed_bytes)
        rc = err_set(e, ERR_INPUT, "stored, but its two sizes differ");
    return rc;
}

enum err_code zip_index_read(const uint8_t *data, size_t bytes, struct arena *a,
                             struct zip_entry **entries, size_t *n, struct err *e)
{
    struct directory d = {0};
    enum err_code rc = find_directory(data, bytes, &d, e);
    if (rc != ERR_OK)
        return rc;
    const uint8_t *p = data + d.off;
    size_t room = (size_t)d.bytes;
    *n = 0;
    *entries = arena_array(a, (size_t)d.n + 1, sizeof **entries);
    if (!*entries)
        return arena_error(a, (size_t)d.n, e);
    for (uint64_t i = 0; i < d.n; i++) {
        struct zip_entry *z = &(*entries)[*n];
        size_t used = 0;
        rc = read_entry(p, room, z, &used, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "zip entry %llu", (unsigned long long)(i + 1));
        size_t len = load_u16(p + 28);
        const char *name = (const char *)p + ENTRY_BYTES;
        if (len == 0 || memchr(name, 0, len))
            return err_set(e, ERR_INPUT, "zip entry %llu: no usable name",
                           (unsigned long long)(i + 1));
        if (name[len - 1] != '/') {
            z->name = arena_strndup(a, name, len);
            if (!z->name)
                return arena_error(a, len, e);
            (*n)++;
        }
        p += used;
        room -= used;
    }
    return ERR_OK;
}

enum err_code zip_index_stored(const uint8_t *data, size_t bytes, const struct zip_entry *z,
                               const uint8_t **out, struct err *e)
{
    if (z->header_off > bytes || bytes - z->header_off < LOCAL_BYTES ||
        load_u32(data + z->header_off) != LOCAL_SIG)
        return err_set(e, ERR_INPUT, "no local header at byte %llu",
                       (unsigned long long)z->header_off);
    const uint8_t *p = data + z->header_off;
    size_t head = LOCAL_BYTES + load_u16(p + 26) + load_u16(p + 28);
    size_t room = bytes - (size_t)z->header_off;
    if (load_u16(p + 8) != 0)
        return err_set(e, ERR_INPUT, "stored by the directory, compressed by its header");
    if (head > room || z->bytes > room - head) {
        return err_set(e, ERR_INPUT, "%llu bytes from byte %llu, the file ends at %zu",
                       (unsigned long long)z->bytes, (unsigned long long)(z->header_off + head),
                       bytes);
    }
    *out = p + head;
    return ERR_OK;
}
