/* tokenizer.h: text to tokens and back.
 *
 * Pure: built from the text of a tokenizer.json (a GGUF's vocabulary is turned into one by ckpt),
 * immutable after, safe to share between threads (each call brings its own scratch). Covers
 * byte-level BPE and SentencePiece-style BPE with byte fallback, with the normalizers,
 * pre-tokenizers, post-processors and decoders of docs/formats.md; anything else is refused by
 * name when it is opened. Ids and texts are those of the Python tokenizers library for the same
 * file, with two exceptions: 'truncation' and 'padding' of the file are not applied, and plain
 * text is never merged into a control token, even where the vocabulary would allow it.
 *
 * A tokenizer.json made from a GGUF needs nothing beyond the library's format: merges as pairs
 * (tokens may hold spaces), control tokens as special added tokens, user-defined ones as added
 * tokens that are not special, all with normalized, lstrip, rstrip and single_word false.
 */
#ifndef ASSAY_INFER_TOKENIZER_H
#define ASSAY_INFER_TOKENIZER_H

#include "common/err.h"
#include "common/json.h"
#include "common/str.h"

struct tokenizer;
struct tok_decode;

/* Growable list of ids; free ids with free(). */
struct token_list {
    int32_t *ids;
    size_t n, cap;
};
MUST_USE bool token_list_push(struct token_list *l, int32_t id);
void token_list_free(struct token_list *l);

/* config (tokenizer_config.json) may be NULL; it brings add_bos_token, bos_token and the like. */
MUST_USE enum err_code tokenizer_new(struct tokenizer **t, const char *json, size_t len,
                                     const json_t *config, struct err *e);
void tokenizer_free(struct tokenizer *t);
/* Makes control tokens of the added tokens that are not special, not blank, and occur in a chat
 * template's source: <tool_call> in a prompt is then text. Before the tokenizer is shared. */
MUST_USE enum err_code tokenizer_guard(struct tokenizer *t, const char *chat_template, size_t len,
                                       struct err *e);

enum tokenizer_flags {
    TOK_ADD_SPECIAL = 1,  /* what the post-processor adds: BOS, EOS */
    TOK_PARSE_SPECIAL = 2 /* control tokens written in the text become their ids; without it they
                             are encoded as ordinary text. Control tokens are the special added
                             tokens and those that tokenizer_guard has named; other added tokens
                             are always found. */
};

/* A piece of text for which special tokens may (trusted) or may not be formed. */
struct tok_span {
    const char *text;
    size_t len;
    bool trusted;
};

/* text must be well-formed UTF-8 (ERR_INPUT with the offset). Appends to out. */
MUST_USE enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                                        int flags, struct token_list *out, struct err *e);
/* The spans are one text (it is well-formed as a whole); control tokens are recognised only where
 * they lie wholly inside trusted spans, whatever TOK_PARSE_SPECIAL says. This is how rendered chat
 * templates are encoded: prompt text never becomes a control token. */
MUST_USE enum err_code tokenizer_encode_spans(const struct tokenizer *t,
                                              const struct tok_span *spans, size_t n, int flags,
                                              struct token_list *out, struct err *e);
/* As Python tokenizers decode(ids, skip_special_tokens): ids without a token are passed over. */
MUST_USE enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                        bool skip_special, struct strbuf *out, struct err *e);

/* Decoding one token at a time for streams and stop strings: gives the bytes that are certain.
 * What a stream gives, end included, is what tokenizer_decode gives for its ids. Zero it first. */
struct tok_stream {
    bool skip_special;        /* as in tokenizer_decode */
    struct tok_decode *state; /* made by the first push */
};
MUST_USE enum err_code tok_stream_push(const struct tokenizer *t, struct tok_stream *s, int32_t id,
                                       struct strbuf *out, struct err *e);
/* Gives what was held back, incomplete bytes as U+FFFD. The stream may then begin anew. */
MUST_USE enum err_code tok_stream_end(const struct tokenizer *t, struct tok_stream *s,
                                      struct strbuf *out, struct err *e);
void tok_stream_free(struct tok_stream *s);

int32_t tokenizer_n_vocab(const struct tokenizer *t);               /* largest id + 1 */
int32_t tokenizer_bos(const struct tokenizer *t);                   /* -1: none */
int32_t tokenizer_id(const struct tokenizer *t, const char *token); /* -1: none; added or normal */
/* The token's own text ("<|im_end|>", "Ġthe"); NULL: no such id. Borrowed. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Raw bytes that the id stands for in running text, for token views; none for an id that only the
 * model has. */
MUST_USE enum err_code tokenizer_piece(const struct tokenizer *t, int32_t id, struct strbuf *out,
                                       struct err *e);

#endif
