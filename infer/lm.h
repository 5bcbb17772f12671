/* lm.h: a model ready to talk: checkpoint, engine, tokenizer and chat template together.
 *
 * What `infer`, `compare` and `bench` open. Owns the four parts and the rules that join them:
 * which tokens a prompt becomes, which ids end an answer, what decides the bits.
 */
#ifndef ASSAY_INFER_LM_H
#define ASSAY_INFER_LM_H

#include "infer/chat.h"
#include "infer/engine.h"
#include "infer/tokenizer.h"

struct lm {
    struct checkpoint *ckpt;
    struct engine *engine;
    struct tokenizer *tok;
    struct chat_template *chat;               /* NULL: the model has none */
    char tokenizer_sha[65], template_sha[65]; /* hex; template: of an empty text when none */
    char fingerprint[65]; /* of all that decides an answer but its own request */
};

/* The plan is handed to on_plan (may be NULL) before anything is loaded. */
typedef void (*lm_on_plan)(void *ctx, const char *path, const struct engine_plan *plan);
MUST_USE enum err_code lm_open(struct lm **m, const char *path, const struct engine_options *o,
                               lm_on_plan on_plan, void *ctx, struct err *e);
/* The same model on a fresh engine under other options; on an error it has none, and may be
 * reloaded again or closed. */
MUST_USE enum err_code lm_reload(struct lm *m, const struct engine_options *o, struct err *e);
void lm_close(struct lm *m);

/* Raw text plus the tokenizer's own BOS. special: added tokens in the text are parsed. */
MUST_USE enum err_code lm_encode_text(const struct lm *m, const char *text, size_t len,
                                      bool special, struct token_list *out, struct err *e);
/* The date that templates are told, unless the request says another: there is no clock in data.
 * It is the day that Llama 3's own template falls back to. */
#define LM_TEMPLATE_DATE "2024-07-26"
/* messages rendered through the template with a generation prompt. extra: an object whose keys
 * join the template's variables (tools, documents, chat_template_kwargs, CHAT_NOW_KEY); may be
 * NULL. */
MUST_USE enum err_code lm_encode_chat(const struct lm *m, const json_t *messages,
                                      const json_t *extra, struct token_list *out, struct err *e);

#endif
