/* tok_decode.h: the decoders of a tokenizer.json, run token by token.
 *
 * A decoder is a row of stages. Stages before Fuse or ByteLevel see tokens, those behind see one
 * text that comes in chunks. The same code decodes a whole list and a stream: a stage holds back
 * what a later token could still change. Supported: Replace, ByteFallback, Strip and Metaspace on
 * tokens, then Fuse or ByteLevel, then Strip. Anything else is refused by name.
 */
#ifndef ASSAY_INFER_TOK_DECODE_H
#define ASSAY_INFER_TOK_DECODE_H

#include "infer/tok_regex.h"

struct tok_decoder {
    struct tok_decode_stage *stages;
    size_t n, cap;
    bool none; /* no decoder: tokens are joined by spaces */
};

/* One decoding under way. */
struct tok_decode;

MUST_USE enum err_code tok_decoder_init(struct tok_decoder *d, const json_t *spec, struct err *e);
void tok_decoder_free(struct tok_decoder *d);

struct tok_decode *tok_decode_new(const struct tok_decoder *d); /* NULL: out of memory */
void tok_decode_free(struct tok_decode *s);
/* Appends the text that is certain once this token is known. */
MUST_USE enum err_code tok_decode_push(const struct tok_decoder *d, struct tok_decode *s,
                                       struct tok_text token, struct strbuf *out, struct err *e);
/* Appends what was held back. */
MUST_USE enum err_code tok_decode_end(const struct tok_decoder *d, struct tok_decode *s,
                                      struct strbuf *out, struct err *e);
/* The bytes of one token as it stands inside a text, complete characters or not. */
MUST_USE enum err_code tok_decode_piece(const struct tok_decoder *d, struct tok_text token,
                                        struct strbuf *out, struct err *e);

#endif
