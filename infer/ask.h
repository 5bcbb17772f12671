/* ask.h: from a line of a prompt file to a request of the runner: tokens, stop ids, stream key. */
#ifndef ASSAY_INFER_ASK_H
#define ASSAY_INFER_ASK_H

#include "infer/lm.h"
#include "infer/prompts.h"
#include "infer/runner.h"

/* Fills `out` with the prompt's tokens. history: the messages so far of a PROMPT_TURNS request.
 * ERR_INPUT when an id is not in the vocabulary or there is none. */
MUST_USE enum err_code ask_tokens(const struct lm *m, const struct prompt_request *r,
                                  json_t *history, bool special, struct token_list *out,
                                  struct err *e);

/* Submits it. top_k: tops to report beside what the request wants. score: every token of the
 * prompt but the first is scored, nothing is made. */
MUST_USE enum err_code ask_submit(const struct lm *m, struct runner *runner,
                                  const struct prompt_request *r, const struct token_list *prompt,
                                  int top_k, bool score, void *user, struct err *e);
/* The same; callbacks get whole rows of logits. */
MUST_USE enum err_code ask_submit_rows(const struct lm *m, struct runner *runner,
                                       const struct prompt_request *r,
                                       const struct token_list *prompt, int top_k, void *user,
                                       struct err *e);

#endif
