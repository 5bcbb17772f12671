/* prompts.c: lines of a prompt file. Owns the forms and the list of fields; runs nothing. */
#include "infer/prompts.h"

#include <stdlib.h>

#include "infer/chat.h"

void prompt_defaults_init(struct prompt_defaults *d)
{
    *d = (struct prompt_defaults){.set = {.sampling = sampling_default(), .max_tokens = 256}};
}

/* ---- fields -----------------------------------------------------------------------------------
 */

/* Fields that a request may carry. Neutral ones change nothing here, at the values that
 * is_neutral accepts; honoured ones are read by read_settings and read_form. */
static const char *const honoured[] = {
    "prompt",
    "messages",
    "prompt_token_ids",
    "turns",
    "system",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "ignore_eos",
    "tools",
    "documents",
    "chat_template_kwargs",
};
static const char *const neutral_any[] = {"model", "user",         "metadata",
                                          "store", "service_tier", "parallel_tool_calls"};
static const char *const line_keys[] = {"custom_id", "method", "url", "body"};

static bool listed(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static bool is_number(const json_t *v, double x)
{
    return json_is_number(v) && json_number_value(v) == x; /* exact on purpose */
}

static bool is_text(const json_t *v, const char *s)
{
    return json_is_string(v) && strcmp(json_string_value(v), s) == 0;
}

/* Is this field known, and does this value ask for nothing? */
static bool is_neutral(const char *key, const json_t *v)
{
    if (json_is_null(v) || listed(key, neutral_any, ARRAY_LEN(neutral_any)))
        return true;
    if (strcmp(key, "n") == 0 || strcmp(key, "best_of") == 0)
        return is_number(v, 1);
    if (strcmp(key, "presence_penalty") == 0 || strcmp(key, "frequency_penalty") == 0)
        return is_number(v, 0);
    if (strcmp(key, "stream") == 0 || strcmp(key, "echo") == 0)
        return json_is_false(v);
    if (strcmp(key, "tool_choice") == 0)
        return is_text(v, "auto") || is_text(v, "none");
    if (strcmp(key, "response_format") == 0)
        return is_text(json_object_get(v, "type"), "text");
    return false;
}

static enum err_code check_fields(const json_t *body, bool short_form, struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        if (listed(key, honoured, ARRAY_LEN(honoured)) || is_neutral(key, v))
            continue;
        if (short_form && strcmp(key, "custom_id") == 0)
            continue;
        const char *near = str_nearest(key, honoured, ARRAY_LEN(honoured));
        return err_set(e, ERR_INPUT, "field '%s' is not honoured%s%s%s (--ignore-fields allows it)",
                       key, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return ERR_OK;
}

static enum err_code read_stop(const json_t *body, struct prompt_settings *s, struct err *e)
{
    const json_t *v = json_object_get(body, "stop");
    if (!v || json_is_null(v))
        return ERR_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    free((void *)s->stop);
    s->n_stop = 0;
    s->stop = calloc(n + 1, sizeof *s->stop);
    if (!s->stop)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item) || json_string_length(item) == 0)
            return err_set(e, ERR_INPUT,
                           "field 'stop': expected a string or a list of strings, "
                           "none of them empty");
        s->stop[s->n_stop++] = json_string_value(item);
    }
    return ERR_OK;
}

static enum err_code read_ids(const json_t *list, const char *field, int32_t **ids, size_t *n,
                              struct err *e)
{
    if (!json_is_array(list))
        return err_set(e, ERR_INPUT, "field '%s': expected a list of token ids", field);
    free(*ids);
    *n = json_array_size(list);
    *ids = calloc(*n + 1, sizeof **ids);
    if (!*ids)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < *n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return err_set(e, ERR_INPUT, "field '%s'[%zu]: expected a token id", field, i);
        (*ids)[i] = (int32_t)id;
    }
    return ERR_OK;
}

static enum err_code read_bias(const json_t *body, struct prompt_request *r, struct err *e)
{
    json_t *map = NULL;
    enum err_code rc = json_get_object(body, "logit_bias", JSON_OPTIONAL, &map, e);
    if (rc != ERR_OK || !map || json_object_size(map) == 0)
        return rc;
    r->bias = calloc(json_object_size(map), sizeof *r->bias);
    if (!r->bias)
        return err_set(e, ERR_NOMEM, "out of memory");
    const char *key;
    json_t *v;
    int n = 0;
    json_object_foreach(map, key, v)
    {
        int64_t id;
        double bias = json_number_value(v);
        if (!str_to_i64(key, 0, INT32_MAX, &id))
            return err_set(e, ERR_INPUT, "field 'logit_bias': key '%s' is no token id", key);
        if (!json_is_number(v) || bias < -100 || bias > 100)
            return err_set(e, ERR_INPUT, "field 'logit_bias.%s': expected -100..100", key);
        r->bias[n++] = (struct logit_bias){(int32_t)id, (float)bias};
    }
    r->set.sampling.bias = r->bias;
    r->set.sampling.n_bias = n;
    return ERR_OK;
}

/* logprobs is a flag with top_logprobs beside it in chat, a count in completions. */
static enum err_code read_logprobs(const json_t *body, struct prompt_request *r, struct err *e)
{
    const json_t *v = json_object_get(body, "logprobs");
    enum err_code rc = ERR_OK;
    if (json_is_integer(v)) {
        rc = json_get_int(body, "logprobs", JSON_OPTIONAL, 0, PROMPT_TOP_MAX, &r->set.top_logprobs,
                          e);
        r->set.logprobs = true;
    } else {
        rc = json_get_bool(body, "logprobs", JSON_OPTIONAL, &r->set.logprobs, e);
    }
    if (rc != ERR_OK)
        return rc;
    const json_t *top = json_object_get(body, "top_logprobs");
    if (top && !json_is_null(top) && !r->set.logprobs)
        return err_set(e, ERR_INPUT, "field 'top_logprobs' needs 'logprobs': true");
    return json_get_int(body, "top_logprobs", JSON_OPTIONAL, 0, PROMPT_TOP_MAX,
                        &r->set.top_logprobs, e);
}

static enum err_code read_max_tokens(const json_t *body, struct prompt_settings *s, struct err *e)
{
    int64_t one = -1, other = -1;
    enum err_code rc = json_get_int(body, "max_tokens", JSON_OPTIONAL, 1, INT32_MAX, &one, e);
    if (rc == ERR_OK)
        rc = json_get_int(body, "max_completion_tokens", JSON_OPTIONAL, 1, INT32_MAX, &other, e);
    if (rc != ERR_OK)
        return rc;
    if (one >= 0 && other >= 0 && one != other)
        return err_set(e, ERR_INPUT, "max_tokens is %lld and max_completion_tokens is %lld",
                       (long long)one, (long long)other);
    if (one >= 0 || other >= 0)
        s->max_tokens = one >= 0 ? one : other;
    return ERR_OK;
}

static enum err_code read_settings(const json_t *body, struct prompt_request *r, struct err *e)
{
    struct sampling *s = &r->set.sampling;
    int64_t seed = (int64_t)s->seed;
    size_t n_ids = 0;
    const json_t *ids = json_object_get(body, "stop_token_ids");
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum err_code rc_ = (call);                                                                \
        if (rc_ != ERR_OK)                                                                         \
            return rc_;                                                                            \
    } while (0)
    TRY(read_max_tokens(body, &r->set, e));
    TRY(json_get_double(body, "temperature", JSON_OPTIONAL, 0, 100, &s->temperature, e));
    TRY(json_get_int(body, "top_k", JSON_OPTIONAL, -1, INT32_MAX, &s->top_k, e));
    TRY(json_get_double(body, "top_p", JSON_OPTIONAL, 0, 1, &s->top_p, e));
    TRY(json_get_double(body, "min_p", JSON_OPTIONAL, 0, 1, &s->min_p, e));
    TRY(json_get_double(body, "repetition_penalty", JSON_OPTIONAL, 0.01, 100,
                        &s->repetition_penalty, e));
    TRY(json_get_int(body, "seed", JSON_OPTIONAL, INT64_MIN, INT64_MAX, &seed, e));
    TRY(json_get_bool(body, "ignore_eos", JSON_OPTIONAL, &r->set.ignore_eos, e));
    TRY(read_stop(body, &r->set, e));
    TRY(read_logprobs(body, r, e));
    TRY(read_bias(body, r, e));
    if (ids && !json_is_null(ids)) {
        TRY(read_ids(ids, "stop_token_ids", &r->set.stop_ids, &n_ids, e));
        r->set.n_stop_ids = (int)n_ids;
    }
#undef TRY
    s->top_k = MAX2(s->top_k, 0); /* -1 is the common spelling of off */
    s->seed = (uint64_t)seed;
    return ERR_OK;
}

/* ---- forms ------------------------------------------------------------------------------------
 */

/* Keys of parts and messages that bring something other than text. */
static const char *const media[] = {"image",       "image_url", "images", "input_image", "audio",
                                    "input_audio", "audio_url", "video",  "video_url",   "videos"};

static const char *find_media(const json_t *object)
{
    for (size_t i = 0; i < ARRAY_LEN(media); i++) {
        const json_t *v = json_object_get(object, media[i]);
        if (v && !json_is_null(v))
            return media[i];
    }
    return NULL;
}

/* Content is a text, or a list of parts; images and sounds are parts of other types. */
static enum err_code check_content(const json_t *content, size_t message, struct err *e)
{
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)(uintptr_t)content, i, part)
    {
        const char *other = find_media(part);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && strcmp(type, "text") != 0)
            return err_set(
                e, ERR_INPUT,
                "field 'messages'[%zu].content[%zu]: found type '%.32s', expected 'text': "
                "models run on text only",
                message, i, type);
        if (other)
            return err_set(
                e, ERR_INPUT,
                "field 'messages'[%zu].content[%zu]: found '%s': models run on text only", message,
                i, other);
    }
    return ERR_OK;
}

static enum err_code check_messages(const json_t *list, struct err *e)
{
    if (!json_is_array(list) || json_array_size(list) == 0)
        return err_set(e, ERR_INPUT, "field 'messages': expected a list of at least one message");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role")))
            return err_set(e, ERR_INPUT, "field 'messages'[%zu]: expected an object with a role",
                           i);
        const char *other = find_media(m);
        if (other)
            return err_set(e, ERR_INPUT,
                           "field 'messages'[%zu]: found '%s': models run on text only", i, other);
        enum err_code rc = check_content(json_object_get(m, "content"), i, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* tools, documents and the keys of chat_template_kwargs become variables of the template. */
static enum err_code read_template_vars(const json_t *body, const struct prompt_defaults *d,
                                        struct prompt_request *r, struct err *e)
{
    static const char *const direct[] = {"tools", "documents"};
    json_t *kwargs = NULL;
    enum err_code rc = json_get_object(body, "chat_template_kwargs", JSON_OPTIONAL, &kwargs, e);
    if (rc != ERR_OK)
        return rc;
    r->template_vars = json_object();
    if (!r->template_vars || (kwargs && json_object_update(r->template_vars, kwargs) != 0))
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < ARRAY_LEN(direct); i++) {
        json_t *v = json_object_get(body, direct[i]);
        if (v)
            json_object_set(r->template_vars, direct[i], v);
    }
    static const char *const own[] = {"messages", "bos_token", "eos_token", "unk_token",
                                      "pad_token"};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (json_object_get(r->template_vars, own[i]))
            return err_set(e, ERR_INPUT, "field 'chat_template_kwargs' may not set '%s'", own[i]);
    if (d->date)
        json_object_set_new(r->template_vars, CHAT_NOW_KEY, json_string(d->date));
    return ERR_OK;
}

static enum err_code read_turns(json_t *body, struct prompt_request *r, struct err *e)
{
    r->kind = PROMPT_TURNS;
    r->turns = json_object_get(body, "turns");
    r->system = json_object_get(body, "system");
    size_t n = json_array_size(r->turns);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(r->turns, i)))
            return err_set(e, ERR_INPUT, "field 'turns'[%zu]: expected a string", i);
    if (n == 0)
        return err_set(e, ERR_INPUT, "field 'turns': expected a list of at least one user turn");
    if (json_is_null(r->system))
        r->system = NULL;
    if (r->system && !json_is_string(r->system))
        return err_set(e, ERR_INPUT, "field 'system': expected a string");
    return ERR_OK;
}

static enum err_code read_prompt(json_t *prompt, const struct prompt_defaults *d,
                                 struct prompt_request *r, struct err *e)
{
    if (json_is_array(prompt)) {
        r->kind = PROMPT_IDS;
        return read_ids(prompt, "prompt", &r->ids, &r->n_ids, e);
    }
    if (!json_is_string(prompt))
        return err_set(e, ERR_INPUT, "field 'prompt': expected a string or a list of token ids");
    if (d->chat && !r->completions) {
        r->kind = PROMPT_CHAT;
        r->messages = json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
        json_object_set_new(r->root, "messages", r->messages);
        return r->messages ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    }
    r->kind = PROMPT_TEXT;
    r->text = json_string_value(prompt);
    r->text_len = json_string_length(prompt);
    return ERR_OK;
}

/* Which of the four forms: exactly one of their fields is there. */
static enum err_code read_form(json_t *body, const struct prompt_defaults *d,
                               struct prompt_request *r, struct err *e)
{
    static const char *const forms[] = {"prompt", "messages", "prompt_token_ids", "turns"};
    const char *form = NULL;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        const json_t *v = json_object_get(body, forms[i]);
        if (!v || json_is_null(v))
            continue;
        if (form)
            return err_set(e, ERR_INPUT, "both '%s' and '%s': expected one", form, forms[i]);
        form = forms[i];
    }
    if (!form)
        return err_set(e, ERR_INPUT,
                       "expected one of 'prompt', 'messages', 'prompt_token_ids', 'turns'");
    enum err_code rc = read_template_vars(body, d, r, e);
    if (rc != ERR_OK)
        return rc;
    json_t *v = json_object_get(body, form);
    if (form == forms[0])
        return read_prompt(v, d, r, e);
    if (form == forms[1]) {
        r->kind = PROMPT_CHAT;
        r->messages = v;
        return check_messages(v, e);
    }
    if (form == forms[2]) {
        r->kind = PROMPT_IDS;
        return read_ids(v, form, &r->ids, &r->n_ids, e);
    }
    return read_turns(body, r, e);
}

static enum err_code read_envelope(struct prompt_request *r, json_t **body, struct err *e)
{
    const char *method = "POST", *url = NULL;
    enum err_code rc = json_only_keys(r->root, line_keys, ARRAY_LEN(line_keys), NULL, 0, e);
    if (rc == ERR_OK)
        rc = json_get_string(r->root, "method", JSON_OPTIONAL, &method, e);
    if (rc == ERR_OK)
        rc = json_get_string(r->root, "url", JSON_REQUIRED, &url, e);
    if (rc == ERR_OK)
        rc = json_get_object(r->root, "body", JSON_REQUIRED, body, e);
    if (rc != ERR_OK)
        return rc;
    if (strcmp(method, "POST") != 0)
        return err_set(e, ERR_INPUT, "method is '%s', expected 'POST'", method);
    if (strcmp(url, "/v1/completions") == 0)
        r->completions = true;
    else if (strcmp(url, "/v1/chat/completions") != 0)
        return err_set(e, ERR_INPUT,
                       "url is '%s', expected '/v1/chat/completions' or '/v1/completions'", url);
    const char *wants = r->completions ? "prompt" : "messages";
    if (!json_object_get(*body, wants))
        return err_set(e, ERR_INPUT, "body has no '%s', which %s needs", wants, url);
    return ERR_OK;
}

static enum err_code read_custom_id(const json_t *root, uint64_t number, char **id, struct err *e)
{
    const char *given = NULL;
    enum err_code rc = root ? json_get_string(root, "custom_id", JSON_OPTIONAL, &given, e) : ERR_OK;
    if (rc != ERR_OK)
        given = NULL;
    struct strbuf b = {0};
    if (given)
        strbuf_puts(&b, given);
    else
        strbuf_printf(&b, "line-%llu", (unsigned long long)number);
    free(*id);
    *id = strbuf_take(&b);
    return *id ? rc : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code read_line(const char *line, size_t len, const struct prompt_defaults *d,
                               struct prompt_request *r, struct err *e)
{
    size_t good = str_utf8_valid(line, len);
    if (good != len)
        return err_set(e, ERR_INPUT, "byte %zu is not UTF-8", good + 1);
    enum err_code rc = json_parse(line, len, &r->root, e);
    if (rc != ERR_OK)
        return rc;
    if (!json_is_object(r->root))
        return err_set(e, ERR_INPUT, "expected a JSON object");
    rc = read_custom_id(r->root, r->line, &r->custom_id, e);
    if (rc != ERR_OK)
        return rc;
    json_t *body = r->root;
    bool envelope = json_object_get(r->root, "body") || json_object_get(r->root, "url");
    if (envelope)
        rc = read_envelope(r, &body, e);
    if (rc == ERR_OK && !d->ignore_fields)
        rc = check_fields(body, !envelope, e);
    if (rc == ERR_OK)
        rc = read_settings(body, r, e);
    return rc == ERR_OK ? read_form(body, d, r, e) : rc;
}

/* The defaults' own lists are copied, so that a request owns all that it frees. */
static bool copy_defaults(struct prompt_settings *to, const struct prompt_settings *from)
{
    *to = *from;
    to->stop = calloc((size_t)from->n_stop + 1, sizeof *to->stop);
    to->stop_ids = calloc((size_t)from->n_stop_ids + 1, sizeof *to->stop_ids);
    if (!to->stop || !to->stop_ids)
        return false;
    for (int i = 0; i < from->n_stop; i++)
        to->stop[i] = from->stop[i];
    for (int i = 0; i < from->n_stop_ids; i++)
        to->stop_ids[i] = from->stop_ids[i];
    return true;
}

enum err_code prompts_parse(const char *line, size_t len, uint64_t number, bool too_long,
                            const struct prompt_defaults *d, struct prompt_request **out,
                            struct err *e)
{
    *out = NULL;
    struct prompt_request *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "out of memory");
    struct err why = {.text = ""};
    r->line = number;
    enum err_code rc = read_custom_id(NULL, number, &r->custom_id, e);
    if (rc == ERR_OK && !copy_defaults(&r->set, &d->set))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc != ERR_OK)
        goto out;
    if (too_long)
        r->code = err_set(&why, ERR_INPUT, "the line is longer than %zu bytes", PROMPT_LINE_MAX);
    else
        r->code = read_line(line, len, d, r, &why);
    if (r->code == ERR_NOMEM) {
        rc = err_set(e, ERR_NOMEM, "%s", why.text);
    } else if (r->code != ERR_OK) {
        r->error = strdup(why.text);
        if (!r->error)
            rc = err_set(e, ERR_NOMEM, "out of memory");
    }
out:
    if (rc != ERR_OK)
        prompt_request_free(r);
    else
        *out = r;
    return rc;
}

void prompt_request_free(struct prompt_request *r)
{
    if (!r)
        return;
    json_decref(r->root);
    json_decref(r->template_vars);
    free(r->custom_id);
    free(r->error);
    free(r->ids);
    free(r->bias);
    free((void *)r->set.stop);
    free(r->set.stop_ids);
    free(r);
}

bool prompts_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (line[i] != ' ' && line[i] != '\t')
            return false;
    return true;
}

char *prompts_custom_id(const char *line, size_t len, uint64_t number)
{
    json_t *root = NULL;
    char *id = NULL;
    /* Most lines without the word need no parse; an escape may spell it. */
    bool may_have = memmem(line, len, "custom_id", 9) || memchr(line, '\\', len);
    bool ok = may_have && str_utf8_valid(line, len) == len &&
              json_parse(line, len, &root, NULL) == ERR_OK && json_is_object(root);
    (void)read_custom_id(ok ? root : NULL, number, &id, NULL); /* a bad id is line-N */
    json_decref(root);
    return id;
}
