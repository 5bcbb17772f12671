/* zip_index.h: the central directory of a zip, and where the data of a member lies.
 *
 * Only what reading in place needs: names, sizes, methods, checksums, offsets, zip64 included. A
 * compressed member is expanded by libarchive and held against this index.
 */
#ifndef ASSAY_CKPT_ZIP_INDEX_H
#define ASSAY_CKPT_ZIP_INDEX_H

#include "common/arena.h"
#include "common/err.h"

struct zip_entry {
    const char *name; /* in the arena */
    bool stored;
    uint32_t crc;
    uint64_t bytes, packed_bytes;
    uint64_t header_off; /* of the local header */
};

/* True when the bytes start or end as a zip does. */
bool zip_index_is(const uint8_t *data, size_t bytes);
/* All members but folders, in the order of the directory. */
MUST_USE enum err_code zip_index_read(const uint8_t *data, size_t bytes, struct arena *a,
                                      struct zip_entry **entries, size_t *n, struct err *e);
/* The data of a stored member, after its local header has been checked against the directory. */
MUST_USE enum err_code zip_index_stored(const uint8_t *data, size_t bytes,
                                        const struct zip_entry *z, const uint8_t **out,
                                        struct err *e);

#endif
