/* container.c: opens one file of tensors and tells its kind by its first bytes.
 *
 * Owns lifetime only; what the bytes mean is known by gguf.c and st_reader.c, where they lie by
 * source.c.
 */
#include "ckpt/container_open.h"

#include <stdlib.h>

#include "ckpt/gguf.h"
#include "ckpt/st_reader.h"
#include "common/arena.h"

struct container_private {
    struct arena *arena;
    struct source *source; /* NULL when the bytes are borrowed */
};

int64_t tensor_elems(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        n *= t->dim[i]; /* checked when the file was opened */
    return n;
}

enum err_code container_view(struct container **out, const char *path, const uint8_t *data,
                             size_t bytes, struct err *e)
{
    enum err_code rc = ERR_OK;
    struct container *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->priv = calloc(1, sizeof *c->priv)) || !(c->path = strdup(path)) ||
        !(c->priv->arena = arena_new(0))) {
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
        goto out;
    }
    c->file_data = data;
    c->file_bytes = bytes;
    bool gguf = bytes >= 4 && memcmp(data, "GGUF", 4) == 0;
    if (gguf || str_ends(path, ".gguf")) {
        c->kind = CONTAINER_GGUF;
        rc = gguf_parse(c, c->priv->arena, e);
    } else if (bytes >= 10 && load_u64(data) >= (uint64_t)1 << 32 &&
               !str_ends(path, ".safetensors")) {
        /* No header is this long; say what the file should have been. */
        rc = err_set(e, ERR_INPUT, "magic %02x %02x %02x %02x, expected a GGUF or safetensors file",
                     data[0], data[1], data[2], data[3]);
    } else {
        c->kind = CONTAINER_SAFETENSORS;
        rc = st_reader_parse(c, c->priv->arena, e);
    }
    rc = err_wrap(e, rc, "%s", path);
out:
    if (rc != ERR_OK) {
        container_close(c);
        return rc;
    }
    *out = c;
    return rc;
}

enum err_code container_open(struct container **c, const char *path, struct err *e)
{
    struct source *s = NULL;
    const uint8_t *data;
    size_t bytes;
    *c = NULL;
    enum err_code rc = source_open(&s, path, e);
    if (rc != ERR_OK)
        return rc;
    if (source_kind(s) != SOURCE_FILE)
        rc = err_set(e, ERR_INPUT, "%s: expected one file of tensors, found a folder", path);
    if (rc == ERR_OK)
        rc = source_data(s, 0, &data, &bytes, e);
    if (rc == ERR_OK)
        rc = container_view(c, path, data, bytes, e);
    if (rc != ERR_OK)
        source_close(s);
    else
        (*c)->priv->source = s;
    return rc;
}

void container_close(struct container *c)
{
    if (!c)
        return;
    json_decref(c->metadata);
    if (c->priv) {
        arena_free(c->priv->arena);
        source_close(c->priv->source);
    }
    free(c->priv);
    free(c->path);
    free(c);
}

static int compare_name(const void *key, const void *t)
{
    return strcmp(key, ((const struct tensor *)t)->name);
}

const struct tensor *container_find(const struct container *c, const char *name)
{
    if (c->n_tensors == 0)
        return NULL;
    return bsearch(name, c->tensors, c->n_tensors, sizeof *c->tensors, compare_name);
}
