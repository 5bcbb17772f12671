/* batch_identity.c: the identity of a batch. Owns the names of its fields. */
#include "infer/batch_identity.h"

#include "common/hash.h"
#include "common/io.h"

/* Takes the text; *ok is false from the first failure on. */
static void set_text(json_t *o, bool *ok, const char *key, struct strbuf *b)
{
    json_t *v = b->failed ? NULL : json_stringn(b->data ? b->data : "", b->len);
    *ok = *ok && v && json_object_set(o, key, v) == 0;
    json_decref(v);
    strbuf_free(b);
}

static void set_string(json_t *o, bool *ok, const char *key, const char *s)
{
    struct strbuf b = {0};
    strbuf_puts(&b, s);
    set_text(o, ok, key, &b);
}

static void set_int(json_t *o, bool *ok, const char *key, int64_t v)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%lld", (long long)v);
    set_text(o, ok, key, &b);
}

static void set_double(json_t *o, bool *ok, const char *key, double v)
{
    struct strbuf b = {0};
    json_put_double(&b, v);
    set_text(o, ok, key, &b);
}

/* What a request starts from; one that sets a field itself is the prompt file's matter. */
static void set_defaults(json_t *id, bool *ok, const struct prompt_defaults *d)
{
    const struct prompt_settings *s = &d->set;
    struct strbuf stop = {0}, ids = {0}, bias = {0};
    set_int(id, ok, "max_tokens", s->max_tokens);
    set_double(id, ok, "temperature", s->sampling.temperature);
    set_int(id, ok, "top_k", s->sampling.top_k);
    set_double(id, ok, "top_p", s->sampling.top_p);
    set_double(id, ok, "min_p", s->sampling.min_p);
    set_double(id, ok, "repetition_penalty", s->sampling.repetition_penalty);
    set_int(id, ok, "seed", (int64_t)s->sampling.seed);
    set_int(id, ok, "logprobs", s->logprobs);
    set_int(id, ok, "top_logprobs", s->top_logprobs);
    set_int(id, ok, "ignore_eos", s->ignore_eos);
    set_int(id, ok, "chat", d->chat);
    set_int(id, ok, "ignore_fields", d->ignore_fields);
    set_string(id, ok, "date", d->date ? d->date : LM_TEMPLATE_DATE);
    for (int i = 0; i < s->n_stop; i++)
        json_put_string(&stop, s->stop[i], strlen(s->stop[i]));
    set_text(id, ok, "stop", &stop);
    for (int i = 0; i < s->n_stop_ids; i++)
        strbuf_printf(&ids, "%d ", s->stop_ids[i]);
    set_text(id, ok, "stop_ids", &ids);
    for (int i = 0; i < s->sampling.n_bias; i++) {
        strbuf_printf(&bias, "%d:", s->sampling.bias[i].id);
        json_put_double(&bias, (double)s->sampling.bias[i].bias);
        strbuf_putc(&bias, ' ');
    }
    set_text(id, ok, "logit_bias", &bias);
}

json_t *batch_identity(const struct lm *m, const struct batch_options *o)
{
    json_t *id = json_object();
    bool ok = id != NULL;
    set_string(id, &ok, "build", "assay " ASSAY_VERSION);
    set_string(id, &ok, "model", io_base(m->ckpt->path));
    set_string(id, &ok, "arith", kern_arith_name(kern_arith(engine_kern(m->engine))));
    set_string(id, &ok, "tokenizer", m->tokenizer_sha);
    set_string(id, &ok, "template", m->template_sha);
    set_int(id, &ok, "ctx", engine_get_plan(m->engine)->ctx);
    set_int(id, &ok, "score", o->score);
    set_int(id, &ok, "special", o->special);
    set_defaults(id, &ok, &o->defaults);
    set_string(id, &ok, "weights", engine_fingerprint(m->engine));
    if (!ok) {
        json_decref(id);
        return NULL;
    }
    return id;
}

enum err_code batch_identity_settings(const struct batch_options *o, char hex[65], struct err *e)
{
    json_t *id = json_object();
    bool ok = id != NULL;
    struct strbuf b = {0};
    uint8_t digest[32];
    set_int(id, &ok, "special", o->special);
    set_defaults(id, &ok, &o->defaults);
    json_put(&b, id, JSON_SORT_KEYS);
    json_decref(id);
    if (!ok || b.failed) {
        strbuf_free(&b);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    sha256_of(b.data, b.len, digest);
    sha256_hex(digest, hex);
    strbuf_free(&b);
    return ERR_OK;
}
