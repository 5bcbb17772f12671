/* prompts.h: the prompt file: one line becomes one request, or an error that names the line.
 *
 * Pure: no file is opened here. The forms: OpenAI batch lines (custom_id, method, url, body),
 * {"prompt"}, {"messages"}, {"prompt_token_ids"} and {"turns"} (docs/formats.md). A field that is
 * not honoured and not at its neutral value is an error, unless ignored on request: an answer
 * never silently means something else than was asked.
 */
#ifndef ASSAY_INFER_PROMPTS_H
#define ASSAY_INFER_PROMPTS_H

#include "common/json.h"
#include "infer/sample.h"

enum prompt_kind { PROMPT_TEXT, PROMPT_CHAT, PROMPT_IDS, PROMPT_TURNS };

/* What a request may set; options of the command give the values it starts from. */
struct prompt_settings {
    struct sampling sampling; /* bias points into the request */
    int64_t max_tokens;       /* default 256 */
    bool logprobs;
    int64_t top_logprobs; /* 0..20 */
    const char **stop;    /* borrowed strings, owned array */
    int n_stop;
    int32_t *stop_ids; /* added to the model's own */
    int n_stop_ids;
    bool ignore_eos;
};

#define PROMPT_TOP_MAX 20

struct prompt_request {
    uint64_t line;      /* from 1 */
    char *custom_id;    /* always set: line-N when the line has none */
    enum err_code code; /* ERR_OK, or why the line is no request: text in error */
    char *error;
    enum prompt_kind kind;
    bool completions;      /* answer in the form of /v1/completions */
    json_t *root;          /* owns what the others point to */
    json_t *messages;      /* PROMPT_CHAT */
    json_t *turns;         /* PROMPT_TURNS: array of strings */
    json_t *system;        /* PROMPT_TURNS: string or NULL */
    json_t *template_vars; /* tools, documents, chat_template_kwargs merged; or NULL */
    const char *text;      /* PROMPT_TEXT */
    size_t text_len;
    int32_t *ids; /* PROMPT_IDS */
    size_t n_ids;
    struct prompt_settings set;
    struct logit_bias *bias;
};

struct prompt_defaults {
    struct prompt_settings set;
    bool chat;          /* "prompt" strings are user messages, rendered */
    const char *date;   /* that templates are told, YYYY-MM-DD; NULL: lm.h's */
    bool ignore_fields; /* unknown and unhonoured fields are no error */
};

void prompt_defaults_init(struct prompt_defaults *d);

/* Never fails on bad content: the request then carries code and error. ERR_NOMEM otherwise. */
MUST_USE enum err_code prompts_parse(const char *line, size_t len, uint64_t number, bool too_long,
                                     const struct prompt_defaults *d, struct prompt_request **r,
                                     struct err *e);
void prompt_request_free(struct prompt_request *r);

#define PROMPT_LINE_MAX ((size_t)64 << 20)
/* Spaces and tabs only: such a line is no request. */
bool prompts_blank(const char *line, size_t len);

/* The id that the line's request has, whatever else is wrong with the line. Heap; NULL: out of
 * memory. */
char *prompts_custom_id(const char *line, size_t len, uint64_t number);

#endif
