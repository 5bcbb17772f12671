/* st_reader.c: reads safetensors, and refuses what is not exactly one.
 *
 *   u64 N; N bytes of JSON, one object {name: {"dtype", "shape", "data_offsets"}}; data.
 *
 * The data ranges, sorted, must cover the data section without overlap, hole or rest, so a file
 * has one meaning only. Stricter than the reference in three ways: any key given twice is refused,
 * a tensor must be an object, and dimensions stay below 2^63. Looser in one: an element type that
 * is not known refuses the use of its tensor, not the file.
 */
#include "ckpt/st_reader.h"

#include <stdlib.h>

#define HEADER_MAX 100000000u
#define DEPTH_MAX  128

/* What the JSON library lets pass and the format does not: deep nesting, and "-0" as an integer.
 * One pass over the text outside of strings. */
static enum err_code check_text(const char *text, size_t n, struct err *e)
{
    bool in_string = false;
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = text[i];
        if (in_string) {
            if (ch == '\\')
                i++;
            else if (ch == '"')
                in_string = false;
        } else if (ch == '"') {
            in_string = true;
        } else if (ch == '{' || ch == '[') {
            if (++depth > DEPTH_MAX)
                return err_set(e, ERR_INPUT, "header byte %zu: nested deeper than %d", i,
                               DEPTH_MAX);
        } else if (ch == '}' || ch == ']') {
            depth--;
        } else if (ch == '-' && i + 2 < n && text[i + 1] == '0' && !strchr(".eE", text[i + 2])) {
            return err_set(e, ERR_INPUT, "header byte %zu: a signed zero", i);
        }
    }
    return ERR_OK;
}

static enum err_code get_whole(const json_t *v, const char *what, int64_t *out, struct err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return err_set(e, ERR_INPUT, "%s: expected integers that are not negative", what);
    *out = json_integer_value(v);
    return ERR_OK;
}

static enum err_code read_shape(struct tensor *t, const json_t *shape, struct err *e)
{
    if (!json_is_array(shape))
        return err_set(e, ERR_INPUT, "shape: missing or no array");
    size_t n = json_array_size(shape);
    if (n > CKPT_DIMS_MAX)
        return err_set(e, ERR_INPUT, "shape: %zu dimensions, at most %d are supported", n,
                       CKPT_DIMS_MAX);
    size_t product = 1;
    for (size_t i = 0; i < n; i++) {
        enum err_code rc = get_whole(json_array_get(shape, i), "shape", &t->dim[i], e);
        if (rc != ERR_OK)
            return rc;
        if (!checked_mul(product, (size_t)t->dim[i], &product) || product > INT64_MAX)
            return err_set(e, ERR_INPUT, "shape: the product of its dimensions overflows");
    }
    t->n_dim = (int)n;
    return ERR_OK;
}

static enum err_code check_size(const struct tensor *t, uint64_t found, struct err *e)
{
    size_t bits;
    if (t->dtype == DT_UNKNOWN)
        return ERR_OK;
    if (!checked_mul((size_t)tensor_elems(t), (size_t)dtype_bits(t->dtype), &bits))
        return err_set(e, ERR_INPUT, "its size in bits overflows");
    if (bits % 8)
        return err_set(e, ERR_INPUT, "%zu bits are no whole number of bytes", bits);
    if (bits / 8 != found) {
        return err_set(e, ERR_INPUT, "data_offsets span %llu bytes, its shape and type need %zu",
                       (unsigned long long)found, bits / 8);
    }
    return ERR_OK;
}

static enum err_code read_tensor(struct tensor *t, const json_t *v, const uint8_t *data,
                                 size_t data_bytes, struct err *e)
{
    if (!json_is_object(v))
        return err_set(e, ERR_INPUT, "expected an object");
    const json_t *dtype = json_object_get(v, "dtype");
    const json_t *offsets = json_object_get(v, "data_offsets");
    if (!json_is_string(dtype))
        return err_set(e, ERR_INPUT, "dtype: missing or no string");
    t->dtype = dtype_find(json_string_value(dtype));
    t->ggml = GGML_NONE;
    enum err_code rc = read_shape(t, json_object_get(v, "shape"), e);
    if (rc != ERR_OK)
        return rc;
    int64_t begin = 0, end = 0;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return err_set(e, ERR_INPUT, "data_offsets: missing or no array of two");
    rc = get_whole(json_array_get(offsets, 0), "data_offsets", &begin, e);
    if (rc == ERR_OK)
        rc = get_whole(json_array_get(offsets, 1), "data_offsets", &end, e);
    if (rc != ERR_OK)
        return rc;
    if (begin > end || (uint64_t)end > data_bytes) {
        return err_set(e, ERR_INPUT, "data_offsets [%lld, %lld] in a data section of %zu bytes",
                       (long long)begin, (long long)end, data_bytes);
    }
    t->data = data + begin;
    t->bytes = (size_t)(end - begin);
    return check_size(t, t->bytes, e);
}

static int compare_places(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* The ranges, in order, cover [data, data + bytes) exactly. */
static enum err_code check_cover(struct container *c, const uint8_t *data, size_t data_bytes,
                                 struct err *e)
{
    size_t at = 0;
    qsort(c->tensors, c->n_tensors, sizeof *c->tensors, compare_places);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        size_t begin = (size_t)(t->data - data);
        if (begin != at) {
            return err_set(e, ERR_INPUT, "tensor '%s': data starts at %zu, expected %zu (%s)",
                           t->name, begin, at, begin < at ? "tensors overlap" : "a hole");
        }
        at += t->bytes;
    }
    if (at != data_bytes) {
        return err_set(e, ERR_INPUT, "the tensors end at byte %zu of a data section of %zu bytes",
                       at, data_bytes);
    }
    qsort(c->tensors, c->n_tensors, sizeof *c->tensors, compare_names);
    return ERR_OK;
}

static enum err_code read_metadata(struct container *c, json_t *v, struct err *e)
{
    const char *key;
    json_t *item;
    if (json_is_null(v))
        return ERR_OK;
    if (!json_is_object(v))
        return err_set(e, ERR_INPUT, "__metadata__: expected an object or null");
    json_object_foreach(v, key, item)
    {
        if (!json_is_string(item))
            return err_set(e, ERR_INPUT, "__metadata__: '%.64s' is no string", key);
    }
    c->metadata = json_incref(v);
    return ERR_OK;
}

static enum err_code read_object(struct container *c, struct arena *a, json_t *root,
                                 const uint8_t *data, struct err *e)
{
    size_t n = json_object_size(root), data_bytes = c->file_bytes - (size_t)(data - c->file_data);
    const char *name;
    json_t *v;
    c->tensors = arena_array(a, n + 1, sizeof *c->tensors);
    if (!c->tensors)
        return arena_error(a, n * sizeof *c->tensors, e);
    json_object_foreach(root, name, v)
    {
        enum err_code rc;
        if (strcmp(name, "__metadata__") == 0) {
            rc = read_metadata(c, v, e);
            if (rc != ERR_OK)
                return rc;
            continue;
        }
        struct tensor *t = &c->tensors[c->n_tensors];
        if (strlen(name) > CKPT_NAME_MAX - 1) {
            return err_set(e, ERR_INPUT, "a tensor name of %zu bytes, at most %d are supported",
                           strlen(name), CKPT_NAME_MAX - 1);
        }
        rc = read_tensor(t, v, data, data_bytes, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "tensor '%s'", name);
        t->name = arena_strdup(a, name);
        if (!t->name)
            return arena_error(a, strlen(name), e);
        c->n_tensors++;
    }
    return check_cover(c, data, data_bytes, e);
}

enum err_code st_reader_parse(struct container *c, struct arena *a, struct err *e)
{
    if (c->file_bytes < 8)
        return err_set(e, ERR_INPUT, "%zu bytes, a safetensors file has at least 8", c->file_bytes);
    uint64_t n = load_u64(c->file_data);
    if (n < 2 || n > HEADER_MAX)
        return err_set(e, ERR_INPUT, "header length %llu, expected 2 to %u", (unsigned long long)n,
                       HEADER_MAX);
    if (n > c->file_bytes - 8) {
        return err_set(e, ERR_INPUT, "header of %llu bytes in a file of %zu bytes",
                       (unsigned long long)n, c->file_bytes);
    }
    const char *text = (const char *)c->file_data + 8;
    json_t *root = NULL;
    enum err_code rc = check_text(text, (size_t)n, e);
    if (rc == ERR_OK)
        rc = json_parse(text, (size_t)n, &root, e);
    if (rc == ERR_OK && !json_is_object(root))
        rc = err_set(e, ERR_INPUT, "expected an object");
    if (rc == ERR_OK)
        rc = read_object(c, a, root, c->file_data + 8 + n, e);
    else
        rc = err_wrap(e, rc, "header");
    json_decref(root);
    return rc;
}
