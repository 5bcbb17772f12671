/* tok_post.h: the post-processor of a tokenizer.json: the ids that go before and after a text.
 *
 * TemplateProcessing for a single text, ByteLevel (which changes no ids) and sequences of them.
 */
#ifndef ASSAY_INFER_TOK_POST_H
#define ASSAY_INFER_TOK_POST_H

#include "infer/tok_vocab.h"
#include "infer/tokenizer.h"

struct tok_post {
    struct token_list before, after;
};

/* spec: the value of 'post_processor', null allowed. */
MUST_USE enum err_code tok_post_init(struct tok_post *p, const json_t *spec,
                                     const struct tok_vocab *v, struct err *e);
void tok_post_free(struct tok_post *p);

#endif
