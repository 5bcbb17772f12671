/* archive.h: members of tar and zip archives as bytes in memory.
 *
 * A member that lies uncompressed in a tar or a zip is a view of the mapped archive. Others are
 * expanded into memory, at most ARCHIVE_MEMORY_MAX bytes together. All that is checkable is
 * checked: CRC-32 of zip and gzip, whatever zstd and xz carry. Member names that are absolute or
 * hold ".." are refused. The archive owns all bytes.
 */
#ifndef ASSAY_CKPT_ARCHIVE_H
#define ASSAY_CKPT_ARCHIVE_H

#include "common/err.h"

#define ARCHIVE_MEMORY_MAX ((uint64_t)64 << 30)

struct archive_map;

/* True when the bytes look like an archive that can be read. */
bool archive_map_is(const char *path, const uint8_t *data, size_t bytes);
/* `want` says which members of a compressed tar are worth their memory; NULL: all. Members of the
 * same name: the last one counts, as in tar. */
MUST_USE enum err_code archive_map_open(struct archive_map **a, const char *path,
                                        bool (*want)(const void *ctx, const char *name),
                                        const void *ctx, struct err *e);
void archive_map_close(struct archive_map *a);
size_t archive_map_count(const struct archive_map *a);
const char *archive_map_name(const struct archive_map *a, size_t i); /* sorted */
/* True when the member is read where it lies. */
bool archive_map_in_place(const struct archive_map *a, size_t i);
MUST_USE enum err_code archive_map_data(struct archive_map *a, size_t i, const uint8_t **data,
                                        size_t *bytes, struct err *e);

#endif
