/* tok_vocab.c: see tok_vocab.h. The map is open addressing with linear probing, at most half full.
 */
#include "infer/tok_vocab.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"

static uint32_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = len * 0x9e3779b97f4a7c15ull;
    while (len >= 8) {
        h = hash_mix64(h ^ load_u64(s));
        s += 8;
        len -= 8;
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < len; i++)
        tail |= (uint64_t)(uint8_t)s[i] << (8 * i);
    return (uint32_t)hash_mix64(h ^ tail);
}

int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len)
{
    for (uint32_t at = hash_bytes(s, len) & v->mask;; at = (at + 1) & v->mask) {
        int32_t id = v->slots[at];
        if (id < 0)
            return -1;
        if ((size_t)v->len[id] == len && memcmp(v->blob.data + v->off[id], s, len) == 0)
            return id;
    }
}

struct tok_text tok_vocab_text(const struct tok_vocab *v, int32_t id)
{
    struct tok_text none = {NULL, 0};
    if (id < 0 || id >= v->n_ids || v->len[id] < 0)
        return none;
    return (struct tok_text){v->blob.data + v->off[id], (size_t)v->len[id]};
}

enum err_code tok_vocab_name(struct tok_vocab *v, int32_t id, struct tok_text text, struct err *e)
{
    size_t n = (size_t)id + 1;
    if (!tok_util_grow(&v->off, &v->off_cap, n, sizeof *v->off) ||
        !tok_util_grow(&v->len, &v->len_cap, n, sizeof *v->len))
        return err_set(e, ERR_NOMEM, "out of memory: a vocabulary of %zu ids", n);
    while (v->n_ids <= id) {
        v->off[v->n_ids] = 0;
        v->len[v->n_ids++] = -1;
    }
    if (v->len[id] >= 0)
        return err_set(e, ERR_INPUT, "id %d of '%.80s': found twice, it is also '%.80s'", id,
                       text.s, v->blob.data + v->off[id]);
    if (text.len > INT32_MAX || v->blob.len + text.len >= UINT32_MAX)
        return err_set(e, ERR_INPUT, "found more than 4 GiB of token text");
    v->off[id] = (uint32_t)v->blob.len;
    v->len[id] = (int32_t)text.len;
    strbuf_append(&v->blob, text.s, text.len);
    strbuf_putc(&v->blob, '\0');
    return strbuf_ok(&v->blob, e);
}

static enum err_code name_all(struct tok_vocab *v, const json_t *vocab, struct err *e)
{
    const char *key;
    json_t *value;
    enum err_code rc = ERR_OK;
    /* The iteration takes a non-const object though it changes nothing. */
    union {
        const json_t *in;
        json_t *out;
    } any = {vocab};
    json_object_foreach(any.out, key, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= TOK_ID_MAX)
            return err_set(e, ERR_INPUT, "'%.80s': found %s%lld, expected an id from 0 to %d", key,
                           json_is_integer(value) ? "" : "no integer, ", (long long)id,
                           TOK_ID_MAX - 1);
        rc = tok_vocab_name(v, (int32_t)id, (struct tok_text){key, strlen(key)}, e);
        if (rc != ERR_OK)
            return rc;
    }
    return rc;
}

/* Keys of one JSON object are distinct, so no two entries of the map are equal. */
static enum err_code index_texts(struct tok_vocab *v, struct err *e)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * (uint32_t)v->n_model)
        n_slots *= 2;
    v->slots = malloc(n_slots * sizeof *v->slots);
    if (!v->slots)
        return err_set(e, ERR_NOMEM, "out of memory: a map of %u tokens", n_slots);
    memset(v->slots, 0xff, n_slots * sizeof *v->slots);
    v->mask = n_slots - 1;
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (v->len[id] < 0)
            continue;
        uint32_t at = hash_bytes(v->blob.data + v->off[id], (size_t)v->len[id]) & v->mask;
        while (v->slots[at] >= 0)
            at = (at + 1) & v->mask;
        v->slots[at] = id;
    }
    return ERR_OK;
}

enum err_code tok_vocab_init(struct tok_vocab *v, const json_t *model, struct err *e)
{
    const json_t *vocab = json_object_get(model, "vocab");
    memset(v, 0, sizeof *v);
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return err_set(e, ERR_INPUT, "vocab: found %s, expected an object of token to id",
                       json_is_object(vocab) ? "no token" : "no object");
    if (json_object_size(vocab) > TOK_ID_MAX)
        return err_set(e, ERR_INPUT, "vocab: found %zu tokens, at most %d are allowed",
                       json_object_size(vocab), TOK_ID_MAX);
    v->n_model = (int32_t)json_object_size(vocab);
    enum err_code rc = name_all(v, vocab, e);
    if (rc == ERR_OK)
        rc = index_texts(v, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "vocab");
    for (uint32_t cp = 0; cp < TOK_VOCAB_FAST; cp++) {
        char s[4];
        v->fast[cp] = tok_vocab_find(v, s, (size_t)str_utf8_put(s, cp));
    }
    for (unsigned b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", b);
        v->byte[b] = tok_vocab_find(v, s, 6);
    }
    return ERR_OK;
}

void tok_vocab_free(struct tok_vocab *v)
{
    strbuf_free(&v->blob);
    free(v->off);
    free(v->len);
    free(v->slots);
    memset(v, 0, sizeof *v);
}
