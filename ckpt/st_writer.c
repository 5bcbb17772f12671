/* st_writer.c: streams one safetensors file through io_out, hashing on the way.
 *
 *   u64 N; {"__metadata__":{"format":"mlx"},name:{...},...} and spaces up to a multiple of 64; data
 *
 * Nothing of the file depends on anything but declarations and bytes.
 */
#include "ckpt/st_writer.h"

#include <stdlib.h>

#include "common/arena.h"
#include "common/io.h"

#define DATA_ALIGN 64
#define HEADER_MAX 100000000u /* what readers accept */

struct st_writer {
    char *path;
    struct io_out *out;
    struct sha256 *sha;
    size_t hashed; /* bytes that will come and are hashed already */
    struct arena *arena;
    struct tensor *tensors; /* data is NULL; bytes is the declared size */
    size_t n, cap;
    bool begun;
    size_t next; /* tensor whose bytes come */
    size_t left; /* of them */
};

static void free_writer(struct st_writer *w)
{
    uint8_t digest[32];
    if (w->sha)
        sha256_final(w->sha, digest);
    arena_free(w->arena);
    free(w->tensors);
    free(w->path);
    free(w);
}

void st_writer_abort(struct st_writer *w)
{
    if (!w)
        return;
    io_out_abort(w->out);
    free_writer(w);
}

enum err_code st_writer_open(struct st_writer **out, const char *path, struct err *e)
{
    struct st_writer *w = calloc(1, sizeof *w);
    enum err_code rc;
    *out = NULL;
    if (!w)
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    w->path = strdup(path);
    w->arena = arena_new(0);
    w->sha = sha256_new();
    if (!w->path || !w->arena || !w->sha)
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
    else
        rc = io_out_open(&w->out, path, false, e);
    if (rc != ERR_OK)
        st_writer_abort(w);
    else
        *out = w;
    return rc;
}

static enum err_code fill_tensor(struct st_writer *w, struct tensor *t, const char *name,
                                 struct err *e)
{
    size_t bits = (size_t)dtype_bits(t->dtype);
    for (int i = 0; i < t->n_dim; i++) {
        if (t->dim[i] < 0 || !checked_mul(bits, (size_t)t->dim[i], &bits) || bits > INT64_MAX)
            return err_set(e, ERR_INTERNAL, "tensor '%s': its size overflows", name);
    }
    if (bits % 8)
        return err_set(e, ERR_INTERNAL, "tensor '%s': no whole number of bytes", name);
    t->bytes = bits / 8;
    t->name = arena_strdup(w->arena, name);
    return t->name ? ERR_OK : arena_error(w->arena, strlen(name), e);
}

enum err_code st_writer_declare(struct st_writer *w, const char *name, enum dtype dtype, int n_dim,
                                const int64_t *dim, struct err *e)
{
    if (w->begun || n_dim < 0 || n_dim > CKPT_DIMS_MAX || dtype >= DT_COUNT ||
        strlen(name) >= CKPT_NAME_MAX || strcmp(name, "__metadata__") == 0)
        return err_set(e, ERR_INTERNAL, "%s: tensor '%s' cannot be declared", w->path, name);
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 256;
        struct tensor *t = realloc(w->tensors, cap * sizeof *t);
        if (!t)
            return err_set(e, ERR_NOMEM, "%s: out of memory", w->path);
        w->tensors = t;
        w->cap = cap;
    }
    struct tensor *t = &w->tensors[w->n];
    *t = (struct tensor){.dtype = dtype, .ggml = GGML_NONE, .n_dim = n_dim};
    for (int i = 0; i < n_dim; i++)
        t->dim[i] = dim[i];
    enum err_code rc = fill_tensor(w, t, name, e);
    w->n += rc == ERR_OK;
    return err_wrap(e, rc, "%s", w->path);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static enum err_code put_header(const struct st_writer *w, struct strbuf *b, struct err *e)
{
    size_t off = 0;
    strbuf_puts(b, "{\"__metadata__\":{\"format\":\"mlx\"}");
    for (size_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->tensors[i];
        size_t begin = off;
        if (!checked_add(off, t->bytes, &off))
            return err_set(e, ERR_INTERNAL, "the size of all tensors overflows");
        strbuf_putc(b, ',');
        json_put_string(b, t->name, strlen(t->name));
        strbuf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t->dtype));
        for (int d = 0; d < t->n_dim; d++)
            strbuf_printf(b, "%s%lld", d ? "," : "", (long long)t->dim[d]);
        strbuf_printf(b, "],\"data_offsets\":[%zu,%zu]}", begin, off);
    }
    strbuf_putc(b, '}');
    while ((8 + b->len) % DATA_ALIGN && !b->failed)
        strbuf_putc(b, ' ');
    if (b->len > HEADER_MAX)
        return err_set(e, ERR_INPUT, "header of %zu bytes, at most %u are allowed", b->len,
                       HEADER_MAX);
    return strbuf_ok(b, e);
}

static void skip_done(struct st_writer *w)
{
    while (w->next < w->n && w->tensors[w->next].bytes == 0)
        w->next++;
    w->left = w->next < w->n ? w->tensors[w->next].bytes : 0;
}

static enum err_code write_bytes(struct st_writer *w, const void *data, size_t bytes, struct err *e)
{
    size_t n = MIN2(bytes, w->hashed);
    w->hashed -= n;
    sha256_update(w->sha, (const uint8_t *)data + n, bytes - n);
    return io_out_write(w->out, data, bytes, e);
}

enum err_code st_writer_begin(struct st_writer *w, struct err *e)
{
    struct strbuf b = {0};
    uint8_t length[8];
    enum err_code rc = ERR_OK;
    if (w->begun)
        return err_set(e, ERR_INTERNAL, "%s: begun twice", w->path);
    if (w->n)
        qsort(w->tensors, w->n, sizeof *w->tensors, compare_names);
    for (size_t i = 1; rc == ERR_OK && i < w->n; i++) {
        if (strcmp(w->tensors[i - 1].name, w->tensors[i].name) == 0)
            rc = err_set(e, ERR_INTERNAL, "tensor '%s' declared twice", w->tensors[i].name);
    }
    if (rc == ERR_OK)
        rc = put_header(w, &b, e);
    if (rc == ERR_OK) {
        store_u64(length, b.len);
        rc = write_bytes(w, length, sizeof length, e);
    }
    if (rc == ERR_OK)
        rc = write_bytes(w, b.data, b.len, e);
    strbuf_free(&b);
    w->begun = rc == ERR_OK;
    if (w->begun)
        skip_done(w);
    return err_wrap(e, rc, "%s", w->path);
}

const char *st_writer_next(const struct st_writer *w)
{
    return w->begun && w->next < w->n ? w->tensors[w->next].name : NULL;
}

void st_writer_hash(struct st_writer *w, const void *data, size_t bytes, struct sha256_piece *p)
{
    sha256_update_beside(w->sha, data, bytes, p);
    w->hashed += bytes;
}

enum err_code st_writer_data(struct st_writer *w, const char *name, const void *data, size_t bytes,
                             struct err *e)
{
    const char *next = st_writer_next(w);
    if (bytes == 0)
        return ERR_OK;
    if (!next || strcmp(next, name) != 0)
        return err_set(e, ERR_INTERNAL, "%s: bytes of '%s', expected those of '%s'", w->path, name,
                       next ? next : "none");
    if (bytes > w->left)
        return err_set(e, ERR_INTERNAL, "%s: tensor '%s': %zu bytes, %zu are left", w->path, name,
                       bytes, w->left);
    enum err_code rc = write_bytes(w, data, bytes, e);
    if (rc != ERR_OK)
        return rc;
    w->left -= bytes;
    if (w->left == 0) {
        w->next++;
        skip_done(w);
    }
    return ERR_OK;
}

enum err_code st_writer_finish(struct st_writer *w, char hex[65], struct err *e)
{
    const char *next = st_writer_next(w);
    uint8_t digest[32];
    enum err_code rc = ERR_OK;
    if (!w->begun || next) {
        rc = err_set(e, ERR_INTERNAL, "%s: %zu bytes of '%s' are missing", w->path, w->left,
                     next ? next : "the header");
        st_writer_abort(w);
        return rc;
    }
    rc = io_out_commit(w->out, e);
    sha256_final(w->sha, digest);
    w->sha = NULL;
    sha256_hex(digest, hex);
    free_writer(w);
    return rc;
}
