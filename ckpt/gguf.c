/* gguf.c: reads GGUF version 2 and 3.
 *
 *   "GGUF", u32 version, i64 tensors, i64 pairs; the pairs; one record per tensor (name, dims with
 *   the fastest first, type, offset); padding to general.alignment; data.
 *
 * Counts are believed only after a walk over all records has shown that the file holds them, so a
 * hostile header costs no memory. Offsets are the running sum of padded sizes, as every writer
 * lays them and the reference demands: that excludes overlaps and holes. Bytes after the last
 * tensor are allowed, as is a missing final padding.
 */
#include "ckpt/gguf.h"

#include <stdlib.h>

#define TEXT_MAX        ((uint64_t)1 << 30) /* the reference's limits */
#define ARRAY_MAX       ((uint64_t)1 << 30)
#define TENSOR_NAME_MAX 64
#define DIMS_MAX        4

struct gguf_meta {
    struct gguf_pair *pairs; /* sorted by key */
    size_t n;
};

static const struct {
    const char *name;
    size_t bytes; /* 0: not of fixed size */
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(int type)
{
    return type >= 0 && type < GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

/* A reading position; every read is checked against the end of the file. */
struct cursor {
    const uint8_t *data;
    size_t bytes, at;
};

static enum err_code take(struct cursor *c, uint64_t n, const uint8_t **out, const char *what,
                          struct err *e)
{
    if (n > c->bytes - c->at) {
        return err_set(e, ERR_INPUT, "%s at byte %zu: needs %llu bytes, the file has %zu left",
                       what, c->at, (unsigned long long)n, c->bytes - c->at);
    }
    *out = c->data + c->at;
    c->at += (size_t)n;
    return ERR_OK;
}

static enum err_code take_u32(struct cursor *c, uint32_t *out, const char *what, struct err *e)
{
    const uint8_t *p = NULL;
    enum err_code rc = take(c, 4, &p, what, e);
    if (rc == ERR_OK)
        *out = load_u32(p);
    return rc;
}

static enum err_code take_u64(struct cursor *c, uint64_t *out, const char *what, struct err *e)
{
    const uint8_t *p = NULL;
    enum err_code rc = take(c, 8, &p, what, e);
    if (rc == ERR_OK)
        *out = load_u64(p);
    return rc;
}

static enum err_code take_text(struct cursor *c, struct gguf_text *out, const char *what,
                               struct err *e)
{
    uint64_t len;
    const uint8_t *p = NULL;
    enum err_code rc = take_u64(c, &len, what, e);
    if (rc != ERR_OK)
        return rc;
    if (len > TEXT_MAX) {
        return err_set(e, ERR_INPUT, "%s at byte %zu: length %llu, at most %llu is allowed", what,
                       c->at - 8, (unsigned long long)len, (unsigned long long)TEXT_MAX);
    }
    rc = take(c, len, &p, what, e);
    if (rc == ERR_OK)
        *out = (struct gguf_text){(const char *)p, (size_t)len};
    return rc;
}

/* Printable head of a key or name for messages. */
static const char *show_text(char buf[80], struct gguf_text t)
{
    size_t n = MIN2(t.len, (size_t)76);
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)t.text[i];
        buf[i] = ch < 0x20 || ch >= 0x7f ? '?' : (char)ch;
    }
    memcpy(buf + n, t.len > n ? "..." : "", t.len > n ? 4 : 1);
    return buf;
}

static enum err_code walk_array(struct cursor *c, struct gguf_pair *p, struct err *e)
{
    uint32_t elem = 0;
    const uint8_t *skip = NULL;
    enum err_code rc = take_u32(c, &elem, "array type", e);
    if (rc != ERR_OK || (rc = take_u64(c, &p->n, "array length", e)) != ERR_OK)
        return rc;
    if (elem >= GGUF_TYPE_COUNT || elem == GGUF_ARRAY)
        return err_set(e, ERR_INPUT, "array element type %u is not allowed", elem);
    if (p->n > ARRAY_MAX) {
        return err_set(e, ERR_INPUT, "array of %llu elements, at most %llu are allowed",
                       (unsigned long long)p->n, (unsigned long long)ARRAY_MAX);
    }
    p->elem = (int)elem;
    p->data = c->data + c->at;
    if (elem != GGUF_STRING)
        return take(c, p->n * types[elem].bytes, &skip, "array", e);
    if (p->n > (c->bytes - c->at) / 8) {
        return err_set(e, ERR_INPUT, "array of %llu strings in the %zu bytes left",
                       (unsigned long long)p->n, c->bytes - c->at);
    }
    for (uint64_t i = 0; i < p->n; i++) {
        struct gguf_text text;
        rc = take_text(c, &text, "string of an array", e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

static enum err_code walk_pair(struct cursor *c, struct gguf_pair *p, struct err *e)
{
    char shown[80];
    uint32_t type = 0;
    *p = (struct gguf_pair){.elem = -1, .n = 1};
    enum err_code rc = take_text(c, &p->key, "key", e);
    if (rc != ERR_OK)
        return rc;
    if (p->key.len == 0)
        return err_set(e, ERR_INPUT, "empty key at byte %zu", c->at - 8);
    rc = take_u32(c, &type, "type", e);
    if (rc == ERR_OK && type >= GGUF_TYPE_COUNT)
        rc = err_set(e, ERR_INPUT, "value type %u, expected 0 to %d", type, GGUF_TYPE_COUNT - 1);
    if (rc == ERR_OK) {
        p->type = (int)type;
        p->data = c->data + c->at;
        if (type == GGUF_ARRAY) {
            rc = walk_array(c, p, e);
        } else if (type == GGUF_STRING) {
            struct gguf_text text;
            rc = take_text(c, &text, "string", e);
        } else {
            rc = take(c, types[type].bytes, &p->data, "value", e);
        }
    }
    return err_wrap(e, rc, "key '%s'", show_text(shown, p->key));
}

static int compare_text(struct gguf_text a, struct gguf_text b)
{
    size_t n = MIN2(a.len, b.len);
    int d = n ? memcmp(a.text, b.text, n) : 0;
    return d ? d : (a.len > b.len) - (a.len < b.len);
}

static int compare_pairs(const void *a, const void *b)
{
    return compare_text(((const struct gguf_pair *)a)->key, ((const struct gguf_pair *)b)->key);
}

static enum err_code read_pairs(struct container *c, struct arena *a, struct cursor *cur,
                                uint64_t n_pairs, struct err *e)
{
    struct cursor walk = *cur;
    struct gguf_pair p;
    char shown[80];
    for (uint64_t i = 0; i < n_pairs; i++) {
        enum err_code rc = walk_pair(&walk, &p, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "pair %llu of %llu", (unsigned long long)(i + 1),
                            (unsigned long long)n_pairs);
    }
    struct gguf_meta *m = arena_alloc(a, sizeof *m);
    size_t n = (size_t)n_pairs;
    if (!m || !(m->pairs = arena_array(a, n + 1, sizeof *m->pairs)))
        return arena_error(a, n, e);
    for (size_t i = 0; i < n; i++) {
        enum err_code rc = walk_pair(cur, &m->pairs[i], e);
        if (rc != ERR_OK)
            return rc;
    }
    m->n = n;
    qsort(m->pairs, n, sizeof *m->pairs, compare_pairs);
    for (size_t i = 1; i < n; i++) {
        if (compare_pairs(&m->pairs[i - 1], &m->pairs[i]) == 0)
            return err_set(e, ERR_INPUT, "key '%s' occurs twice",
                           show_text(shown, m->pairs[i].key));
    }
    c->gguf = m;
    return ERR_OK;
}

/* One tensor record; offset is relative to the data section. */
struct record {
    struct gguf_text name;
    int n_dim, type;
    int64_t ne[DIMS_MAX];
    uint64_t off, bytes;
};

static enum err_code check_record(struct record *r, struct err *e)
{
    int elems, block;
    if (!ggml_type_block(r->type, &elems, &block))
        return err_set(e, ERR_INPUT, "tensor type %d is not known", r->type);
    if (r->n_dim > 0 && r->ne[0] % elems) {
        return err_set(e, ERR_INPUT, "row length %lld, expected a multiple of %d for %s",
                       (long long)r->ne[0], elems, ggml_type_name(r->type));
    }
    int64_t n = 1;
    for (int i = 0; i < r->n_dim; i++) {
        if (__builtin_mul_overflow(n, r->ne[i], &n))
            return err_set(e, ERR_INPUT, "the product of its dimensions overflows");
    }
    size_t bytes;
    if (!checked_mul((size_t)(n / elems), (size_t)block, &bytes) || bytes > INT64_MAX)
        return err_set(e, ERR_INPUT, "its size in bytes overflows");
    r->bytes = bytes;
    return ERR_OK;
}

static enum err_code walk_record(struct cursor *c, struct record *r, struct err *e)
{
    char shown[80];
    uint32_t n_dim = 0, type = 0;
    memset(r, 0, sizeof *r);
    enum err_code rc = take_text(c, &r->name, "tensor name", e);
    if (rc != ERR_OK)
        return rc;
    if (r->name.len >= TENSOR_NAME_MAX)
        rc = err_set(e, ERR_INPUT, "name of %zu bytes, expected fewer than %d", r->name.len,
                     TENSOR_NAME_MAX);
    else if (memchr(r->name.text, 0, r->name.len))
        rc = err_set(e, ERR_INPUT, "a NUL in its name");
    if (rc == ERR_OK)
        rc = take_u32(c, &n_dim, "dimension count", e);
    if (rc == ERR_OK && n_dim > DIMS_MAX)
        rc = err_set(e, ERR_INPUT, "%u dimensions, expected at most %d", n_dim, DIMS_MAX);
    if (rc == ERR_OK)
        r->n_dim = (int)n_dim;
    for (int i = 0; rc == ERR_OK && i < r->n_dim; i++) {
        uint64_t ne = 0;
        rc = take_u64(c, &ne, "dimension", e);
        if (rc == ERR_OK && ne > INT64_MAX)
            rc = err_set(e, ERR_INPUT, "dimension %d is negative", i);
        if (rc == ERR_OK)
            r->ne[i] = (int64_t)ne;
    }
    if (rc == ERR_OK && (rc = take_u32(c, &type, "tensor type", e)) == ERR_OK) {
        r->type = (int)type;
        rc = take_u64(c, &r->off, "tensor offset", e);
    }
    if (rc == ERR_OK)
        rc = check_record(r, e);
    return err_wrap(e, rc, "tensor '%s'", show_text(shown, r->name));
}

static enum err_code read_alignment(const struct gguf_meta *m, size_t *align, struct err *e)
{
    *align = 32;
    const struct gguf_pair *p = gguf_find(m, "general.alignment");
    if (!p)
        return ERR_OK;
    if (p->type != GGUF_U32)
        return err_set(e, ERR_INPUT, "key 'general.alignment': found %s, expected u32",
                       gguf_type_name(p->type));
    uint32_t v = load_u32(p->data);
    if (v == 0 || (v & (v - 1)))
        return err_set(e, ERR_INPUT, "key 'general.alignment': found %u, expected a power of two",
                       v);
    *align = v;
    return ERR_OK;
}

static void fill_tensor(struct tensor *t, const struct record *r, const uint8_t *data)
{
    static const struct {
        int ggml;
        enum dtype dtype;
    } plain[] = {{GGML_F32, DT_F32}, {GGML_F16, DT_F16}, {GGML_BF16, DT_BF16}, {GGML_F64, DT_F64},
                 {GGML_I8, DT_I8},   {GGML_I16, DT_I16}, {GGML_I32, DT_I32},   {GGML_I64, DT_I64}};
    t->dtype = DT_UNKNOWN;
    t->ggml = r->type;
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        if (plain[i].ggml == r->type) {
            t->dtype = plain[i].dtype;
            t->ggml = GGML_NONE;
        }
    }
    t->n_dim = r->n_dim;
    for (int i = 0; i < r->n_dim; i++)
        t->dim[i] = r->ne[r->n_dim - 1 - i];
    t->data = data;
    t->bytes = (size_t)r->bytes;
}

/* Checks the offset of record r against the running sum and the file, and moves the sum on. */
static enum err_code place_record(const struct record *r, size_t align, uint64_t *sum, size_t room,
                                  struct err *e)
{
    char shown[80];
    show_text(shown, r->name);
    if (r->off != *sum) {
        return err_set(e, ERR_INPUT, "tensor '%s': data offset %llu, expected %llu", shown,
                       (unsigned long long)r->off, (unsigned long long)*sum);
    }
    if (r->bytes && (r->bytes > room || r->off > room - r->bytes)) {
        return err_set(e, ERR_INPUT,
                       "tensor '%s': data ends at %llu of a data section of %zu bytes", shown,
                       (unsigned long long)(r->off + r->bytes), room);
    }
    /* Both terms are below the file's size or the alignment, so nothing wraps. */
    *sum = r->off + align_up((size_t)r->bytes, align);
    return ERR_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static enum err_code read_tensors(struct container *c, struct arena *a, struct cursor *cur,
                                  uint64_t n_tensors, struct err *e)
{
    size_t align;
    struct record r;
    enum err_code rc = read_alignment(c->gguf, &align, e);
    struct cursor walk = *cur;
    for (uint64_t i = 0; rc == ERR_OK && i < n_tensors; i++) {
        rc = err_wrap(e, walk_record(&walk, &r, e), "tensor record %llu of %llu",
                      (unsigned long long)(i + 1), (unsigned long long)n_tensors);
    }
    if (rc != ERR_OK)
        return rc;
    size_t start = align_up(walk.at, align),
           room = start < c->file_bytes ? c->file_bytes - start : 0;
    size_t n = (size_t)n_tensors;
    uint64_t sum = 0;
    c->tensors = arena_array(a, n + 1, sizeof *c->tensors);
    if (!c->tensors)
        return arena_error(a, n * sizeof *c->tensors, e);
    for (size_t i = 0; i < n; i++) {
        rc = walk_record(cur, &r, e);
        if (rc == ERR_OK)
            rc = place_record(&r, align, &sum, room, e);
        if (rc != ERR_OK)
            return rc;
        fill_tensor(&c->tensors[i], &r, r.bytes ? c->file_data + start + r.off : c->file_data);
        c->tensors[i].name = arena_strndup(a, r.name.text, r.name.len);
        if (!c->tensors[i].name)
            return arena_error(a, r.name.len, e);
    }
    c->n_tensors = n;
    qsort(c->tensors, n, sizeof *c->tensors, compare_tensors);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0)
            return err_set(e, ERR_INPUT, "tensor '%s' occurs twice", c->tensors[i].name);
    }
    return ERR_OK;
}

enum err_code gguf_parse(struct container *c, struct arena *a, struct err *e)
{
    struct cursor cur = {c->file_data, c->file_bytes, 0};
    const uint8_t *magic = NULL;
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_pairs = 0;
    enum err_code rc = take(&cur, 4, &magic, "magic", e);
    if (rc != ERR_OK)
        return rc;
    if (memcmp(magic, "GGUF", 4) != 0) {
        return err_set(e, ERR_INPUT, "magic %02x %02x %02x %02x, expected 'GGUF'", magic[0],
                       magic[1], magic[2], magic[3]);
    }
    rc = take_u32(&cur, &version, "version", e);
    if (rc != ERR_OK)
        return rc;
    if ((version & 0xffff) == 0)
        return err_set(e, ERR_INPUT, "a big-endian GGUF, expected little-endian");
    if (version != 2 && version != 3)
        return err_set(e, ERR_INPUT, "GGUF version %u, expected 2 or 3", version);
    rc = take_u64(&cur, &n_tensors, "tensor count", e);
    if (rc == ERR_OK)
        rc = take_u64(&cur, &n_pairs, "pair count", e);
    if (rc != ERR_OK)
        return rc;
    /* The smallest pair takes 14 bytes, the smallest record 24. */
    if (n_pairs > c->file_bytes / 14 || n_tensors > c->file_bytes / 24) {
        return err_set(e, ERR_INPUT, "%llu pairs and %llu tensors in a file of %zu bytes",
                       (unsigned long long)n_pairs, (unsigned long long)n_tensors, c->file_bytes);
    }
    rc = read_pairs(c, a, &cur, n_pairs, e);
    if (rc == ERR_OK)
        rc = read_tensors(c, a, &cur, n_tensors, e);
    return rc;
}

size_t gguf_count(const struct gguf_meta *m)
{
    return m->n;
}

const struct gguf_pair *gguf_pair(const struct gguf_meta *m, size_t i)
{
    return &m->pairs[i];
}

const struct gguf_pair *gguf_find(const struct gguf_meta *m, const char *key)
{
    struct gguf_pair want = {.key = {key, strlen(key)}};
    return m->n ? bsearch(&want, m->pairs, m->n, sizeof want, compare_pairs) : NULL;
}

/* ---- typed getters ----------------------------------------------------------------------------
 */

bool gguf_number(const struct gguf_pair *p, uint64_t i, double *d, int64_t *whole)
{
    int type = p->type == GGUF_ARRAY ? p->elem : p->type;
    if (type == GGUF_STRING || type == GGUF_ARRAY || i >= p->n)
        return false;
    const uint8_t *at = p->data + i * types[type].bytes;
    uint64_t u = 0;
    memcpy(&u, at, types[type].bytes);
    switch (type) {
    case GGUF_I8:
        *whole = (int8_t)u;
        break;
    case GGUF_I16:
        *whole = (int16_t)u;
        break;
    case GGUF_I32:
        *whole = (int32_t)u;
        break;
    case GGUF_F32:
        *d = (double)load_f32(at);
        return true;
    case GGUF_F64:
        memcpy(d, at, sizeof *d);
        return true;
    case GGUF_U64:
        *whole = u > INT64_MAX ? INT64_MAX : (int64_t)u;
        break;
    default:
        *whole = (int64_t)u;
    }
    *d = (double)*whole;
    return true;
}

static bool is_whole(int type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type != GGUF_STRING && type != GGUF_ARRAY &&
           type != GGUF_BOOL;
}

static enum err_code find_key(const struct gguf_meta *m, const char *key, enum gguf_need need,
                              const struct gguf_pair **p, struct err *e)
{
    *p = gguf_find(m, key);
    if (!*p && need == GGUF_REQUIRED)
        return err_set(e, ERR_INPUT, "key '%s' is missing", key);
    return ERR_OK;
}

static enum err_code wrong_type(const struct gguf_pair *p, const char *key, const char *expected,
                                struct err *e)
{
    return err_set(e, ERR_INPUT, "key '%s': found %s%s%s, expected %s", key,
                   gguf_type_name(p->type), p->type == GGUF_ARRAY ? " of " : "",
                   p->type == GGUF_ARRAY ? gguf_type_name(p->elem) : "", expected);
}

enum err_code gguf_get_int(const struct gguf_meta *m, const char *key, enum gguf_need need,
                           int64_t lo, int64_t hi, int64_t *out, struct err *e)
{
    const struct gguf_pair *p;
    double d;
    int64_t v = 0;
    enum err_code rc = find_key(m, key, need, &p, e);
    if (rc != ERR_OK || !p)
        return rc;
    if (!is_whole(p->type) || !gguf_number(p, 0, &d, &v))
        return wrong_type(p, key, "an integer", e);
    if (v < lo || v > hi) {
        return err_set(e, ERR_INPUT, "key '%s': found %lld, expected %lld to %lld", key,
                       (long long)v, (long long)lo, (long long)hi);
    }
    *out = v;
    return ERR_OK;
}

enum err_code gguf_get_double(const struct gguf_meta *m, const char *key, enum gguf_need need,
                              double *out, struct err *e)
{
    const struct gguf_pair *p;
    double d = 0;
    int64_t v;
    enum err_code rc = find_key(m, key, need, &p, e);
    if (rc != ERR_OK || !p)
        return rc;
    if (p->type == GGUF_ARRAY || p->type == GGUF_BOOL || !gguf_number(p, 0, &d, &v))
        return wrong_type(p, key, "a number", e);
    if (!(d >= -1e300 && d <= 1e300))
        return err_set(e, ERR_INPUT, "key '%s': found %g, expected a finite number", key, d);
    *out = d;
    return ERR_OK;
}

enum err_code gguf_get_bool(const struct gguf_meta *m, const char *key, enum gguf_need need,
                            bool *out, struct err *e)
{
    const struct gguf_pair *p;
    enum err_code rc = find_key(m, key, need, &p, e);
    if (rc != ERR_OK || !p)
        return rc;
    if (p->type != GGUF_BOOL)
        return wrong_type(p, key, "bool", e);
    *out = *p->data != 0;
    return ERR_OK;
}

enum err_code gguf_get_text(const struct gguf_meta *m, const char *key, enum gguf_need need,
                            struct gguf_text *out, struct err *e)
{
    const struct gguf_pair *p;
    enum err_code rc = find_key(m, key, need, &p, e);
    if (rc != ERR_OK || !p)
        return rc;
    if (p->type != GGUF_STRING)
        return wrong_type(p, key, "string", e);
    *out = (struct gguf_text){(const char *)p->data + 8, (size_t)load_u64(p->data)};
    return ERR_OK;
}

enum err_code gguf_get_array(const struct gguf_meta *m, const char *key, int elem,
                             enum gguf_need need, const struct gguf_pair **out, struct err *e)
{
    enum err_code rc = find_key(m, key, need, out, e);
    if (rc != ERR_OK || !*out)
        return rc;
    bool same = (*out)->elem == elem || (elem == GGUF_I32 && (*out)->elem == GGUF_U32);
    if ((*out)->type != GGUF_ARRAY || !same) {
        char expected[32] = "array of ";
        memcpy(expected + 9, gguf_type_name(elem), strlen(gguf_type_name(elem)) + 1);
        return wrong_type(*out, key, expected, e);
    }
    return ERR_OK;
}

struct gguf_text gguf_next_text(const struct gguf_pair *p, const uint8_t **at)
{
    const uint8_t *s = *at ? *at : p->data;
    struct gguf_text t = {(const char *)s + 8, (size_t)load_u64(s)};
    *at = s + 8 + t.len;
    return t;
}
