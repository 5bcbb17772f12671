/* chat.h: chat templates: the Jinja subset of docs/formats.md, with input marking.
 *
 * Pure. A template is compiled once and rendered against JSON; every string that comes from the
 * request stays marked through the template, so the result is a list of spans that are either the
 * template's own text (trusted) or the user's. Where Python's jinja2 with the hub's settings
 * refuses, so does this, with the template's line.
 */
#ifndef ASSAY_INFER_CHAT_H
#define ASSAY_INFER_CHAT_H

#include "common/err.h"
#include "common/json.h"
#include "common/str.h"
#include "infer/tokenizer.h"

struct chat_template;

/* The date that strftime_now shows: "YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS" under this key of vars.
 * Rendering reads no clock; a template that asks for the date without one ends in an error that
 * says so. Templates do not see the key. */
#define CHAT_NOW_KEY "__now"

MUST_USE enum err_code chat_compile(struct chat_template **t, const char *text, size_t len,
                                    struct err *e);
void chat_free(struct chat_template *t);

struct chat_spans {
    struct strbuf text;     /* the whole rendering */
    struct tok_span *spans; /* views into text, in order, adjacent ones of a kind merged */
    size_t n;
};

/* vars: an object with messages, add_generation_prompt, tools, documents (null when absent),
 * bos_token and so on; everything below vars is marked as the user's, except the keys of
 * `trusted` (bos_token, eos_token ...) and roles that the protocol names, which are the model's
 * own. Bounded in time and depth. */
MUST_USE enum err_code chat_render(const struct chat_template *t, const json_t *vars,
                                   const char *const *trusted, size_t n_trusted,
                                   struct chat_spans *out, struct err *e);
void chat_spans_free(struct chat_spans *s);

/* The messages as apply_chat_template of transformers 5.x hands them to a template: keys whose
 * value is null are dropped, and the first that is there of reasoning_content, thinking and
 * reasoning becomes the message's reasoning_content and, where it has none, its thinking. *out is
 * a new reference; messages is not changed. ERR_INPUT for what is no array of objects and for an
 * empty one. */
MUST_USE enum err_code chat_messages_normalize(const json_t *messages, json_t **out, struct err *e);

#endif
