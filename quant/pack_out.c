/* pack_out.c: parts, shards and their index. */
#include "quant/pack_out.h"

#include <stdio.h>
#include <stdlib.h>

#include "ckpt/names.h"
#include "common/io.h"

/* Small enough that what the hash has read is still in the cache for the copy to the kernel. */
#define WRITE_BYTES ((uint64_t)256 << 10)

enum err_code pack_name(const struct plan *p, const struct plan_item *it, char out[CKPT_NAME_MAX],
                        struct err *e)
{
    if (!names_to_mlx(p->ckpt->hp.family, p->ckpt->hp.wrapped, it->w->name, out))
        return err_set(e, ERR_INPUT, "tensor %s: name is longer than %d bytes", it->w->name,
                       CKPT_NAME_MAX - 1);
    if (it->packed && str_ends(out, ".weight"))
        out[strlen(out) - strlen(".weight")] = 0;
    return ERR_OK;
}

static const char *const suffixes[] = {".biases", ".global_scale", ".scales", ".weight", ""};

static enum err_code add_part(struct pack_out *o, const struct plan *p, size_t item,
                              enum pack_part_kind kind, struct err *e)
{
    const struct plan_item *it = &p->items[item];
    struct pack_part *part = &o->parts[o->n_parts];
    char name[CKPT_NAME_MAX];
    enum err_code rc = pack_name(p, it, name, e);
    if (rc != ERR_OK)
        return rc;
    size_t size = strlen(name) + strlen(suffixes[kind]) + 1;
    *part = (struct pack_part){.item = item, .kind = kind, .n_dim = it->w->n_dim};
    part->name = malloc(size);
    if (!part->name)
        return err_set(e, ERR_NOMEM, "out of memory");
    o->n_parts++;
    snprintf(part->name, size, "%s%s", name, suffixes[kind]);
    memcpy(part->dim, it->w->dim, sizeof part->dim);
    int64_t *last = &part->dim[MAX2(part->n_dim, 1) - 1];
    part->dtype = !it->packed ? it->dtype : qformat_is_block(it->q) ? DT_U8 : it->q.scale;
    part->bytes = it->scale_bytes;
    if (kind == PACK_CODES) {
        part->dtype = DT_U32;
        *last = it->k * it->q.bits / 32;
        part->bytes = it->code_bytes;
    } else if (kind == PACK_DENSE) {
        part->bytes = it->code_bytes;
    } else if (kind == PACK_GLOBALS) {
        part->dtype = DT_F32;
        part->bytes = it->global_bytes;
        part->n_dim = MAX2(part->n_dim - 2, 1); /* [experts], or one */
        part->dim[0] = part->dim[0] * (it->w->n_dim > 2) + (it->w->n_dim <= 2);
    } else {
        *last = it->k / it->q.group;
    }
    if (part->dtype == DT_UNKNOWN)
        return err_set(e, ERR_INPUT, "tensor %s: its type cannot be written", it->w->name);
    return ERR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct pack_part *)a)->name, ((const struct pack_part *)b)->name);
}

static enum err_code order_items(struct pack_out *o, size_t n_items, struct err *e)
{
    bool *seen = calloc(MAX2(n_items, 1), sizeof *seen);
    o->order = calloc(MAX2(n_items, 1), sizeof *o->order);
    if (!seen || !o->order) {
        free(seen);
        return err_set(e, ERR_NOMEM, "out of memory: %zu tensors", n_items);
    }
    for (size_t i = 0; i < o->n_parts; i++) {
        if (!seen[o->parts[i].item])
            o->order[o->n_items++] = o->parts[i].item;
        seen[o->parts[i].item] = true;
    }
    free(seen);
    return ERR_OK;
}

static enum err_code cut_shards(struct pack_out *o, uint64_t limit, struct err *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < o->n_parts; i++) {
        if (bytes && bytes + o->parts[i].bytes > limit) {
            o->n_shards++;
            bytes = 0;
        }
        bytes += o->parts[i].bytes;
        o->parts[i].shard = o->n_shards;
        if (i && strcmp(o->parts[i].name, o->parts[i - 1].name) == 0)
            return err_set(e, ERR_INPUT, "tensor name '%s' comes twice", o->parts[i].name);
    }
    o->n_shards++;
    o->files = calloc(o->n_shards, sizeof *o->files);
    if (!o->files)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t s = 0; s < o->n_shards; s++) {
        if (o->n_shards == 1)
            snprintf(o->files[s].name, sizeof o->files[s].name, "model.safetensors");
        else
            snprintf(o->files[s].name, sizeof o->files[s].name, "model-%05zu-of-%05zu.safetensors",
                     s + 1, o->n_shards);
    }
    return ERR_OK;
}

enum err_code pack_out_open(struct pack_out *o, const struct plan *p, const char *dir,
                            uint64_t shard_limit, struct err *e)
{
    memset(o, 0, sizeof *o);
    enum err_code rc = ERR_OK;
    o->dir = strdup(dir);
    o->parts = calloc(4 * MAX2(p->n_items, 1), sizeof *o->parts);
    if (!o->dir || !o->parts)
        rc = err_set(e, ERR_NOMEM, "out of memory: %zu tensors", p->n_items);
    if (rc == ERR_OK && p->n_items == 0)
        rc = err_set(e, ERR_INPUT, "the checkpoint has no tensors");
    for (size_t i = 0; i < p->n_items && rc == ERR_OK; i++) {
        if (!p->items[i].packed) {
            rc = add_part(o, p, i, PACK_DENSE, e);
            continue;
        }
        const struct plan_item *it = &p->items[i];
        for (int kind = PACK_BIASES; kind <= PACK_CODES && rc == ERR_OK; kind++) {
            if ((kind != PACK_BIASES || it->bias_bytes) &&
                (kind != PACK_GLOBALS || it->global_bytes))
                rc = add_part(o, p, i, (enum pack_part_kind)kind, e);
        }
    }
    if (rc == ERR_OK) {
        qsort(o->parts, o->n_parts, sizeof *o->parts, by_name);
        rc = order_items(o, p->n_items, e);
    }
    if (rc == ERR_OK)
        rc = cut_shards(o, shard_limit, e);
    if (rc != ERR_OK)
        pack_out_close(o);
    return rc;
}

static enum err_code open_shard(struct pack_out *o, size_t first, struct err *e)
{
    size_t shard = o->parts[first].shard;
    char *path = io_join(o->dir, o->files[shard].name);
    if (!path)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = st_writer_open(&o->writer, path, e);
    for (size_t i = first; i < o->n_parts && o->parts[i].shard == shard && rc == ERR_OK; i++)
        rc = st_writer_declare(o->writer, o->parts[i].name, o->parts[i].dtype, o->parts[i].n_dim,
                               o->parts[i].dim, e);
    if (rc == ERR_OK)
        rc = st_writer_begin(o->writer, e);
    free(path);
    return rc;
}

static enum err_code finish_shard(struct pack_out *o, size_t shard, struct err *e)
{
    struct pack_file *f = &o->files[shard];
    struct st_writer *w = o->writer;
    o->writer = NULL;
    enum err_code rc = st_writer_finish(w, f->sha256, e);
    char *path = rc == ERR_OK ? io_join(o->dir, f->name) : NULL;
    if (rc == ERR_OK)
        rc = path ? io_size(path, &f->bytes, e) : err_set(e, ERR_NOMEM, "out of memory");
    free(path);
    return rc;
}

static enum err_code begin_part(struct pack_out *o, size_t part, struct err *e)
{
    bool first = part == 0 || o->parts[part - 1].shard != o->parts[part].shard;
    return first && !o->writer ? open_shard(o, part, e) : ERR_OK;
}

enum err_code pack_out_hash(struct pack_out *o, size_t part, const uint8_t *data,
                            struct sha256_piece *piece, struct err *e)
{
    enum err_code rc = begin_part(o, part, e);
    if (rc == ERR_OK)
        st_writer_hash(o->writer, data, (size_t)o->parts[part].bytes, piece);
    return rc;
}

enum err_code pack_out_write(struct pack_out *o, size_t part, const uint8_t *data, struct err *e)
{
    const struct pack_part *p = &o->parts[part];
    enum err_code rc = begin_part(o, part, e);
    for (uint64_t off = 0; off < p->bytes && rc == ERR_OK; off += WRITE_BYTES) {
        size_t n = (size_t)MIN2(WRITE_BYTES, p->bytes - off);
        rc = st_writer_data(o->writer, p->name, data + off, n, e);
    }
    if (rc == ERR_OK && (part + 1 == o->n_parts || o->parts[part + 1].shard != p->shard))
        rc = finish_shard(o, p->shard, e);
    return rc;
}

static enum err_code write_index(const struct pack_out *o, struct err *e)
{
    uint64_t total = 0;
    json_t *map = json_object();
    for (size_t i = 0; i < o->n_parts; i++) {
        total += o->parts[i].bytes;
        json_object_set_new(map, o->parts[i].name, json_string(o->files[o->parts[i].shard].name));
    }
    json_t *root =
        json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    struct strbuf text = {0};
    char *path = io_join(o->dir, "model.safetensors.index.json");
    enum err_code rc = ERR_OK;
    if (!root || !path)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK) {
        json_put(&text, root, JSON_INDENT(2));
        strbuf_putc(&text, '\n');
        rc = strbuf_ok(&text, e);
    }
    if (rc == ERR_OK)
        rc = io_write_all(path, text.data, text.len, false, e);
    json_decref(root);
    strbuf_free(&text);
    free(path);
    return rc;
}

enum err_code pack_out_finish(struct pack_out *o, struct pack_result *r, struct err *e)
{
    enum err_code rc = o->n_shards > 1 ? write_index(o, e) : ERR_OK;
    if (rc == ERR_OK) {
        r->files = o->files;
        r->n_files = o->n_shards;
        o->files = NULL;
    }
    return rc;
}

void pack_out_close(struct pack_out *o)
{
    if (o->writer)
        st_writer_abort(o->writer);
    for (size_t i = 0; i < o->n_parts; i++)
        free(o->parts[i].name);
    free(o->parts);
    free(o->order);
    free(o->files);
    free(o->dir);
    memset(o, 0, sizeof *o);
}
