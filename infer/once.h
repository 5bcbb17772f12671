/* once.h: one request, answered while the caller listens. */
#ifndef ASSAY_INFER_ONCE_H
#define ASSAY_INFER_ONCE_H

#include "infer/lm.h"
#include "infer/prompts.h"
#include "infer/reply.h"

struct once_options {
    bool special;
    const volatile int *interrupted;                        /* or NULL */
    void (*on_text)(void *ctx, const char *text, size_t n); /* bytes as they become certain */
    void *ctx;
};

/* r: PROMPT_TEXT, PROMPT_CHAT or PROMPT_IDS. The answer is the caller's: answer_reset. */
MUST_USE enum err_code once_run(struct lm *m, const struct prompt_request *r,
                                const struct once_options *o, struct answer *a, struct err *e);

#endif
