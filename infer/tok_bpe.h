/* tok_bpe.h: byte-pair encoding of one piece of text.
 *
 * Starts from one symbol a code point and joins the adjacent pair of lowest rank, leftmost first,
 * until none is left; a heap over a linked list makes it O(n log n), since a piece may be a whole
 * document. A code point that is no token becomes its byte tokens (byte_fallback), else the unknown
 * token, else nothing, as the tokenizers library has it.
 */
#ifndef ASSAY_INFER_TOK_BPE_H
#define ASSAY_INFER_TOK_BPE_H

#include "infer/tok_vocab.h"
#include "infer/tokenizer.h"

struct tok_merge {
    int32_t left, right; /* left is -1 in an empty slot */
    uint32_t rank;
    int32_t id;
};

struct tok_bpe {
    struct tok_vocab vocab;
    struct tok_merge *merges; /* open addressing, a power of two of slots, at most half full */
    uint32_t mask;
    bool *banned; /* per id, or NULL: none */
    int32_t unk;  /* or -1 */
    bool fuse_unk, byte_fallback, ignore_merges;
};

/* Work space of one caller; zero it before the first use. */
struct tok_bpe_scratch {
    struct tok_symbol *symbols;
    struct tok_pair *heap;
    size_t n_symbols, symbols_cap, n_heap, heap_cap;
};

MUST_USE enum err_code tok_bpe_init(struct tok_bpe *b, const json_t *model, struct err *e);
void tok_bpe_free(struct tok_bpe *b);
/* Text is never merged into, or looked up as, an id for which banned[id] is set: this keeps control
 * tokens out of plain text even where they stand in the vocabulary. banned has n_ids elements. */
MUST_USE enum err_code tok_bpe_ban(struct tok_bpe *b, const bool *banned, struct err *e);
/* text: well-formed UTF-8. Appends to out. */
MUST_USE enum err_code tok_bpe_encode(const struct tok_bpe *b, const char *text, size_t len,
                                      struct tok_bpe_scratch *s, struct token_list *out,
                                      struct err *e);
void tok_bpe_scratch_free(struct tok_bpe_scratch *s);

#endif
