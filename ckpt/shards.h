/* shards.h: which files of a folder or of a split GGUF make up one checkpoint. */
#ifndef ASSAY_CKPT_SHARDS_H
#define ASSAY_CKPT_SHARDS_H

#include "ckpt/container.h"
#include "ckpt/source.h"

/* Entries of the source, in the order of their names; free(list.entries). */
struct shard_list {
    size_t *entries;
    size_t n;
    json_t *map; /* weight_map of the index that was followed, or NULL; json_decref */
};

/* The safetensors of a folder: by its index when every file of it is there, by name when none of
 * them is; part of them missing is an error. */
MUST_USE enum err_code shards_of_folder(struct source *s, struct shard_list *out, struct err *e);
/* Every tensor of the index lies in the file that the index says. */
MUST_USE enum err_code shards_check_map(const struct shard_list *l, struct source *s,
                                        struct container *const *files, struct err *e);
/* Entries of a split GGUF, given its first file and its header. */
MUST_USE enum err_code shards_of_gguf(struct source *s, size_t first, const struct container *c,
                                      struct shard_list *out, struct err *e);
/* Part i of n (from 0) says the same of itself. */
MUST_USE enum err_code shards_check_gguf(const struct container *c, size_t i, size_t n,
                                         struct err *e);
void shards_free(struct shard_list *l);

#endif
