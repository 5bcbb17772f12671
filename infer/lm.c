/* lm.c: opening a model and turning prompts into tokens. Owns no step and no request. */
#include "infer/lm.h"

#include <stdlib.h>

#include "common/hash.h"

static void sha_text(const char *text, size_t len, char hex[65])
{
    uint8_t digest[32];
    sha256_of(text ? text : "", text ? len : 0, digest);
    sha256_hex(digest, hex);
}

static void set_fingerprint(struct lm *m)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "assay %s\nengine %s\ntokenizer %s\ntemplate %s\n", ASSAY_VERSION,
                  engine_fingerprint(m->engine), m->tokenizer_sha, m->template_sha);
    sha_text(b.data, b.len, m->fingerprint);
    strbuf_free(&b);
}

static enum err_code open_text_side(struct lm *m, struct err *e)
{
    const struct checkpoint *c = m->ckpt;
    if (!c->tokenizer_json)
        return err_set(e, ERR_INPUT, "%s",
                       c->tokenizer_err.text[0]
                           ? c->tokenizer_err.text
                           : "no tokenizer.json: expected one beside the weights");
    enum err_code rc =
        tokenizer_new(&m->tok, c->tokenizer_json, c->tokenizer_len, c->tokenizer_config, e);
    if (rc != ERR_OK)
        return rc;
    sha_text(c->tokenizer_json, c->tokenizer_len, m->tokenizer_sha);
    size_t len = c->chat_template ? strlen(c->chat_template) : 0;
    sha_text(c->chat_template, len, m->template_sha);
    if (!len)
        return ERR_OK;
    rc = tokenizer_guard(m->tok, c->chat_template, len, e);
    if (rc == ERR_OK)
        rc = chat_compile(&m->chat, c->chat_template, len, e);
    return err_wrap(e, rc, "chat template");
}

enum err_code lm_open(struct lm **out, const char *path, const struct engine_options *o,
                      lm_on_plan on_plan, void *ctx, struct err *e)
{
    *out = NULL;
    struct lm *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "out of memory");
    struct engine_plan plan;
    struct engine_options planned;
    enum err_code rc = checkpoint_open(&m->ckpt, path, e);
    if (rc != ERR_OK)
        goto out;
    rc = engine_plan(m->ckpt, o, &plan, e);
    if (rc != ERR_OK)
        goto wrap;
    if (on_plan)
        on_plan(ctx, path, &plan);
    rc = open_text_side(m, e);
    if (rc != ERR_OK)
        goto wrap;
    planned = *o;
    planned.kv_tokens = plan.pages * KERN_PAGE; /* what was printed, whatever is free by now */
    rc = engine_new(&m->engine, m->ckpt, &planned, e);
    if (rc != ERR_OK)
        goto wrap;
    set_fingerprint(m);
wrap:
    rc = err_wrap(e, rc, "%s", path);
out:
    if (rc != ERR_OK)
        lm_close(m);
    else
        *out = m;
    return rc;
}

enum err_code lm_reload(struct lm *m, const struct engine_options *o, struct err *e)
{
    engine_free(m->engine);
    m->engine = NULL;
    return err_wrap(e, engine_new(&m->engine, m->ckpt, o, e), "%s", m->ckpt->path);
}

void lm_close(struct lm *m)
{
    if (!m)
        return;
    engine_free(m->engine);
    chat_free(m->chat);
    tokenizer_free(m->tok);
    checkpoint_close(m->ckpt);
    free(m);
}

enum err_code lm_encode_text(const struct lm *m, const char *text, size_t len, bool special,
                             struct token_list *out, struct err *e)
{
    int flags = TOK_ADD_SPECIAL | (special ? TOK_PARSE_SPECIAL : 0);
    return tokenizer_encode(m->tok, text, len, flags, out, e);
}

/* The text of a special token that tokenizer_config.json names by string or by object. */
static json_t *special_token(const json_t *config, const char *key)
{
    json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? v : NULL;
}

/* Variables of a rendering: what transformers passes, and the request's own. */
static json_t *chat_vars(const struct lm *m, json_t *messages, const json_t *extra)
{
    static const char *const specials[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    json_t *vars = json_object();
    if (!vars)
        return NULL;
    json_object_set(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_true());
    json_object_set_new(vars, "tools", json_null());
    json_object_set_new(vars, "documents", json_null());
    json_object_set_new(vars, CHAT_NOW_KEY, json_string(LM_TEMPLATE_DATE));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)extra, key, value) json_object_set(vars, key, value);
    for (size_t i = 0; i < ARRAY_LEN(specials); i++) {
        json_t *v = special_token(m->ckpt->tokenizer_config, specials[i]);
        if (v)
            json_object_set(vars, specials[i], v);
        else
            json_object_del(vars, specials[i]);
    }
    return vars;
}

enum err_code lm_encode_chat(const struct lm *m, const json_t *messages, const json_t *extra,
                             struct token_list *out, struct err *e)
{
    static const char *const trusted[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    if (!m->chat)
        return err_set(e, ERR_INPUT, "the model has no chat template: give a prompt, not messages");
    json_t *normal;
    enum err_code rc = chat_messages_normalize(messages, &normal, e);
    if (rc != ERR_OK)
        return rc;
    json_t *vars = chat_vars(m, normal, extra);
    json_decref(normal);
    if (!vars)
        return err_set(e, ERR_NOMEM, "out of memory");
    struct chat_spans spans = {0};
    rc = chat_render(m->chat, vars, trusted, ARRAY_LEN(trusted), &spans, e);
    if (rc == ERR_OK)
        rc = tokenizer_encode_spans(m->tok, spans.spans, spans.n, TOK_PARSE_SPECIAL, out, e);
    chat_spans_free(&spans);
    json_decref(vars);
    return rc;
}
