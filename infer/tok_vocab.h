/* tok_vocab.h: token text to id and id to text.
 *
 * Two maps over one block of bytes. Only the model's own tokens are found by text (the merging
 * must not see added tokens); every id, added ones too, has a text. Ids are checked to be unique
 * and below TOK_ID_MAX, so that a hostile file cannot size an array by one number.
 */
#ifndef ASSAY_INFER_TOK_VOCAB_H
#define ASSAY_INFER_TOK_VOCAB_H

#include "infer/tok_util.h"

#define TOK_ID_MAX     (1 << 22)
#define TOK_VOCAB_FAST 0x180 /* code points below this are looked up by index */

struct tok_vocab {
    struct strbuf blob; /* texts, each with an end */
    uint32_t *off;      /* per id: offset in blob */
    int32_t *len;       /* per id: bytes, or -1 where the id has no token */
    size_t off_cap, len_cap;
    int32_t n_ids;   /* largest id + 1 */
    int32_t n_model; /* tokens of the model: the size of the map by text */
    int32_t *slots;  /* open addressing: id or -1; a power of two of them */
    uint32_t mask;
    int32_t fast[TOK_VOCAB_FAST]; /* id of the token that is this one code point, or -1 */
    int32_t byte[256];            /* id of "<0xHH>", or -1 */
};

/* model: the object with key 'vocab'. */
MUST_USE enum err_code tok_vocab_init(struct tok_vocab *v, const json_t *model, struct err *e);
void tok_vocab_free(struct tok_vocab *v);

/* Gives a text to an id that has none yet, without making it findable by text. */
MUST_USE enum err_code tok_vocab_name(struct tok_vocab *v, int32_t id, struct tok_text text,
                                      struct err *e);
/* Id of a model token, or -1. */
int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len);
/* Text of an id; s is NULL when there is no such id. */
struct tok_text tok_vocab_text(const struct tok_vocab *v, int32_t id);

#endif
