/* shards.c: index files of safetensors, and the parts of a split GGUF.
 *
 *   model.safetensors.index.json   {"weight_map": {tensor: file}}
 *   model-00001-of-00007.safetensors, x-00001-of-00003.gguf
 */
#include "ckpt/shards.h"

#include <stdio.h>
#include <stdlib.h>

#include "ckpt/gguf.h"

#define INDEX_NAME "model.safetensors.index.json"
#define SPLIT_MAX  65535

void shards_free(struct shard_list *l)
{
    free(l->entries);
    json_decref(l->map);
    *l = (struct shard_list){0};
}

static enum err_code add_shard(struct shard_list *l, size_t entry, struct err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->entries[i] == entry)
            return ERR_OK;
    }
    size_t *p = realloc(l->entries, (l->n + 1) * sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->entries = p;
    p[l->n++] = entry;
    return ERR_OK;
}

static int compare_entries(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Follows the index; *found and *missing count its entries. A missing file is named in e. */
static enum err_code read_index(struct source *s, size_t entry, struct shard_list *l, size_t *found,
                                size_t *missing, struct err *e)
{
    const uint8_t *data;
    size_t bytes;
    json_t *root = NULL, *map = NULL, *file;
    const char *name;
    enum err_code rc = source_data(s, entry, &data, &bytes, e);
    if (rc == ERR_OK)
        rc = json_parse((const char *)data, bytes, &root, e);
    if (rc == ERR_OK)
        rc = json_get_object(root, "weight_map", JSON_REQUIRED, &map, e);
    if (rc != ERR_OK)
        goto out;
    struct err first = {0};
    json_object_foreach(map, name, file)
    {
        const char *shard = json_string_value(file);
        size_t i;
        if (!shard || strchr(shard, '/') || strstr(shard, "..") || !*shard) {
            rc = err_set(e, ERR_INPUT, "tensor '%.200s': '%.200s' is no name of a shard", name,
                         shard ? shard : "no string");
            goto out;
        }
        if (!source_find(s, shard, &i)) {
            if (++*missing == 1)
                err_set(&first, ERR_INPUT, "tensor '%.200s' lies in '%.200s', which is missing",
                        name, shard);
            continue;
        }
        ++*found;
        rc = add_shard(l, i, e);
        if (rc != ERR_OK)
            goto out;
    }
    if (*found && *missing)
        rc = err_set(e, ERR_INPUT, "%s", first.text);
    else if (*found)
        l->map = json_incref(map);
out:
    json_decref(root);
    return err_wrap(e, rc, "%s", source_path(s, entry));
}

/* "x-00002-of-00007.safetensors": every number of the set must be there. */
static enum err_code check_set(struct source *s, const char *name, struct err *e)
{
    static const char *const form =
        "*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors";
    char want[CKPT_NAME_MAX];
    if (!str_glob(form, name) || strlen(name) >= sizeof want)
        return ERR_OK;
    size_t tail = strlen(name) - strlen("00001-of-00007.safetensors");
    int n = atoi(name + tail + 9);
    memcpy(want, name, strlen(name) + 1);
    for (int i = 1; i <= n; i++) {
        char number[8];
        size_t at;
        snprintf(number, sizeof number, "%05d", i % 100000);
        memcpy(want + tail, number, 5);
        if (!source_find(s, want, &at))
            return err_set(e, ERR_INPUT, "shard '%s' is missing beside '%s'", want, name);
    }
    return ERR_OK;
}

enum err_code shards_of_folder(struct source *s, struct shard_list *out, struct err *e)
{
    size_t index, found = 0, missing = 0;
    enum err_code rc = ERR_OK;
    *out = (struct shard_list){0};
    if (source_find(s, INDEX_NAME, &index))
        rc = read_index(s, index, out, &found, &missing, e);
    for (size_t i = 0; rc == ERR_OK && !found && i < source_count(s); i++) {
        if (!str_glob("model*.safetensors", source_name(s, i)))
            continue;
        rc = check_set(s, source_name(s, i), e);
        if (rc == ERR_OK)
            rc = add_shard(out, i, e);
    }
    if (rc == ERR_OK && out->n == 0)
        rc = err_set(e, ERR_INPUT, "no file model*.safetensors%s",
                     missing ? ", nor any file that the index names" : "");
    if (rc != ERR_OK)
        shards_free(out);
    else
        qsort(out->entries, out->n, sizeof *out->entries, compare_entries);
    return rc;
}

enum err_code shards_check_map(const struct shard_list *l, struct source *s,
                               struct container *const *files, struct err *e)
{
    const char *name;
    json_t *file;
    if (!l->map)
        return ERR_OK;
    json_object_foreach(l->map, name, file)
    {
        for (size_t i = 0; i < l->n; i++) {
            if (strcmp(source_name(s, l->entries[i]), json_string_value(file)) == 0 &&
                !container_find(files[i], name)) {
                return err_set(e, ERR_INPUT, "%s: no tensor '%.200s', which the index expects here",
                               files[i]->path, name);
            }
        }
    }
    return ERR_OK;
}

enum err_code shards_check_gguf(const struct container *c, size_t i, size_t n, struct err *e)
{
    int64_t no = 0, count = 1;
    enum err_code rc = gguf_get_int(c->gguf, "split.count", GGUF_OPTIONAL, 0, SPLIT_MAX, &count, e);
    if (rc == ERR_OK)
        rc = gguf_get_int(c->gguf, "split.no", GGUF_OPTIONAL, 0, SPLIT_MAX, &no, e);
    if (rc == ERR_OK && (no != (int64_t)i || count != (int64_t)n)) {
        rc = err_set(e, ERR_INPUT, "part %lld of %lld, expected part %zu of %zu",
                     (long long)(no + 1), (long long)count, i + 1, n);
    }
    return err_wrap(e, rc, "%s", c->path);
}

enum err_code shards_of_gguf(struct source *s, size_t first, const struct container *c,
                             struct shard_list *out, struct err *e)
{
    int64_t count = 1, no = 0;
    *out = (struct shard_list){0};
    enum err_code rc = gguf_get_int(c->gguf, "split.count", GGUF_OPTIONAL, 0, SPLIT_MAX, &count, e);
    if (rc == ERR_OK)
        rc = gguf_get_int(c->gguf, "split.no", GGUF_OPTIONAL, 0, SPLIT_MAX, &no, e);
    if (rc == ERR_OK && no != 0)
        rc = err_set(e, ERR_INPUT, "part %lld of a split GGUF, expected the first part",
                     (long long)(no + 1));
    if (rc == ERR_OK)
        rc = add_shard(out, first, e);
    const char *name = source_name(s, first);
    size_t tail = strlen("00001-of-00001.gguf");
    char want[CKPT_NAME_MAX];
    if (rc == ERR_OK && count > 1 &&
        (!str_glob("*-00001-of-[0-9][0-9][0-9][0-9][0-9].gguf", name) ||
         strlen(name) >= sizeof want))
        rc = err_set(e, ERR_INPUT,
                     "first of %lld parts, but its name is not 'x-00001-of-%05lld"
                     ".gguf'",
                     (long long)count, (long long)count);
    for (int64_t i = 2; rc == ERR_OK && i <= count; i++) {
        size_t at;
        snprintf(want, sizeof want, "%.*s%05lld-of-%05lld.gguf", (int)(strlen(name) - tail), name,
                 (long long)i, (long long)count);
        if (!source_find(s, want, &at))
            rc = err_set(e, ERR_INPUT, "part '%s' is missing", want);
        else
            rc = add_shard(out, at, e);
    }
    if (rc != ERR_OK)
        shards_free(out);
    return err_wrap(e, rc, "%s", c->path);
}
