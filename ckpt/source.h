/* source.h: where the files of a checkpoint lie.
 *
 * A folder, one file, a folder inside an archive, or one member of an archive, all as named byte
 * ranges. Names are relative to the folder. The source owns the bytes; they live until it is
 * closed.
 */
#ifndef ASSAY_CKPT_SOURCE_H
#define ASSAY_CKPT_SOURCE_H

#include "common/err.h"
#include "common/str.h"

enum source_kind { SOURCE_FOLDER, SOURCE_FILE };

struct source;

/* path: a folder; a file; an archive (the folder of its checkpoint, or its GGUF, is found);
 * "archive:member", where member is a file or a folder. */
MUST_USE enum err_code source_open(struct source **s, const char *path, struct err *e);
void source_close(struct source *s);

/* SOURCE_FILE: entry 0 is the file; its neighbours, if they are needed, are found by name. */
enum source_kind source_kind(const struct source *s);
size_t source_count(const struct source *s);
const char *source_name(const struct source *s, size_t i); /* sorted, except entry 0 of a file */
bool source_find(const struct source *s, const char *name, size_t *i);
/* The path of an entry as a user would write it, in the source's memory; out of memory it is the
 * bare name. */
const char *source_path(struct source *s, size_t i);
/* Entries are files of their own, mapped: no archive, whose members may be plain memory. */
bool source_maps(const struct source *s);
MUST_USE enum err_code source_data(struct source *s, size_t i, const uint8_t **data, size_t *bytes,
                                   struct err *e);

#endif
