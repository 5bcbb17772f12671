/* gguf.h: the key-value pairs of a GGUF file (version 2 and 3).
 *
 * Keys, strings and arrays are views of the file, checked once when it is opened; they die with
 * the container. Strings are not terminated.
 */
#ifndef ASSAY_CKPT_GGUF_H
#define ASSAY_CKPT_GGUF_H

#include "ckpt/container.h"
#include "common/arena.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

const char *gguf_type_name(int type); /* "u32"; "unknown" */

struct gguf_text {
    const char *text; /* not terminated */
    size_t len;
};

struct gguf_pair {
    struct gguf_text key;
    int type; /* GGUF_ARRAY: elem and n say of what and how many */
    int elem;
    uint64_t n;
    const uint8_t *data; /* the value; of a string its length first */
};

/* Fills tensors and pairs of a container whose file_data and file_bytes are set. */
MUST_USE enum err_code gguf_parse(struct container *c, struct arena *a, struct err *e);

size_t gguf_count(const struct gguf_meta *m);
const struct gguf_pair *gguf_pair(const struct gguf_meta *m, size_t i); /* sorted by key */
const struct gguf_pair *gguf_find(const struct gguf_meta *m, const char *key);

/* Typed getters: a missing key leaves *out as it was, unless required. Any integer type serves for
 * an integer, any number for a double. */
enum gguf_need { GGUF_OPTIONAL, GGUF_REQUIRED };
MUST_USE enum err_code gguf_get_int(const struct gguf_meta *m, const char *key, enum gguf_need need,
                                    int64_t lo, int64_t hi, int64_t *out, struct err *e);
MUST_USE enum err_code gguf_get_double(const struct gguf_meta *m, const char *key,
                                       enum gguf_need need, double *out, struct err *e);
MUST_USE enum err_code gguf_get_bool(const struct gguf_meta *m, const char *key,
                                     enum gguf_need need, bool *out, struct err *e);
MUST_USE enum err_code gguf_get_text(const struct gguf_meta *m, const char *key,
                                     enum gguf_need need, struct gguf_text *out, struct err *e);
/* An array of this element type (GGUF_I32 also takes u32); *out is NULL when the key is missing. */
MUST_USE enum err_code gguf_get_array(const struct gguf_meta *m, const char *key, int elem,
                                      enum gguf_need need, const struct gguf_pair **out,
                                      struct err *e);

/* Scalar or element i of a numeric array; false for other types. */
bool gguf_number(const struct gguf_pair *p, uint64_t i, double *d, int64_t *whole);
/* Strings of an array in turn: *at starts as NULL. */
struct gguf_text gguf_next_text(const struct gguf_pair *p, const uint8_t **at);

#endif
