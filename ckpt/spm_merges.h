/* spm_merges.h: the tokens of a GGUF, and the merges that SentencePiece scores stand for. */
#ifndef ASSAY_CKPT_SPM_MERGES_H
#define ASSAY_CKPT_SPM_MERGES_H

#include "ckpt/gguf.h"
#include "common/str.h"

enum spm_type { SPM_NORMAL = 1, SPM_UNKNOWN, SPM_CONTROL, SPM_USER, SPM_UNUSED, SPM_BYTE };

struct spm_vocab {
    struct gguf_text *token; /* views of the file, except of renamed ones */
    uint8_t *type;           /* enum spm_type */
    float *score;            /* 0 where the file has none */
    size_t n;
    uint32_t *slot; /* hash table of ids + 1, by text */
    size_t n_slots;
    struct arena *arena;
};

/* tokens, types and scores, checked: well-formed UTF-8, no token twice, empty ones renamed. */
MUST_USE enum err_code spm_vocab_open(struct spm_vocab *v, const struct gguf_meta *m,
                                      struct err *e);
void spm_vocab_close(struct spm_vocab *v);
bool spm_vocab_find(const struct spm_vocab *v, const char *text, size_t len, uint32_t *id);

/* Appends "merges":[...]: every way to cut a token into two tokens, best score first. Of equal
 * scores the lower id, of the cuts of one token the left half of lower id comes first, as in HF's
 * own conversions. */
MUST_USE enum err_code spm_merges_put(const struct spm_vocab *v, struct strbuf *b, struct err *e);

#endif
