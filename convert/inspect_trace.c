/* inspect_trace.c: a trace as JSON and as lines. */
#include "convert/inspect_trace.h"

#include <math.h>

static const char *const levels[] = {"tokens", "layers"};

/* A number, or null when it is none. */
static json_t *figure(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *facts_of(const struct trace_record *r)
{
    double sum = 0, least = (double)NAN;
    int64_t full = 0;
    for (size_t i = 0; i < r->n; i++) {
        sum += (double)r->tok[i].logprob;
        least = fmin(least, (double)r->tok[i].margin); /* of a number and NaN: the number */
        full += r->tok[i].full != NULL;
    }
    return json_pack("{s:s, s:i, s:I, s:I, s:s, s:o, s:o, s:I}", "custom_id", r->custom_id, "turn",
                     r->turn, "prompt_tokens", (json_int_t)r->n_prompt, "tokens", (json_int_t)r->n,
                     "finish", r->finish, "mean_logprob", figure(sum / (double)r->n),
                     "least_margin", figure(least), "full_rows", (json_int_t)full);
}

enum err_code inspect_trace(const struct trace *t, const char *name, json_t **out, struct err *e)
{
    const struct trace_header *h = &t->head;
    json_t *answers = json_array();
    json_int_t tokens = 0, prompt_tokens = 0;
    bool ok = answers != NULL;
    for (size_t i = 0; i < t->n && ok; i++) {
        tokens += (json_int_t)t->records[i].n;
        prompt_tokens += (json_int_t)t->records[i].n_prompt;
        ok = json_array_append_new(answers, facts_of(&t->records[i])) == 0;
    }
    *out = ok ? json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:i, s:I, "
                          "s:I, s:O}",
                          "path", name, "container", "trace", "model", h->model, "arith", h->arith,
                          "build", h->build, "fingerprint", h->fingerprint, "settings", h->settings,
                          "tokenizer", h->tokenizer, "template", h->chat_template, "prompts",
                          h->prompts, "level", levels[h->level], "n_vocab", (json_int_t)h->n_vocab,
                          "top_k", h->top_k, "prompt_tokens", prompt_tokens, "tokens", tokens,
                          "answers", answers)
              : NULL;
    json_decref(answers);
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static long long int_of(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static void put_figure(struct strbuf *out, const json_t *v)
{
    if (json_is_null(v))
        strbuf_printf(out, " %10s", "-");
    else
        strbuf_printf(out, " %10.4f", json_number_value(v));
}

void inspect_trace_text(const json_t *facts, struct strbuf *out)
{
    static const char *const hashes[] = {"fingerprint", "settings", "tokenizer", "template",
                                         "prompts"};
    const json_t *answers = json_object_get(facts, "answers");
    strbuf_printf(out, "%s: trace of %s in %s, by %s, level %s, %lld best tokens a row\n",
                  text_of(facts, "path"), text_of(facts, "model"), text_of(facts, "arith"),
                  text_of(facts, "build")[0] ? text_of(facts, "build") : "an unnamed program",
                  text_of(facts, "level"), int_of(facts, "top_k"));
    for (size_t i = 0; i < ARRAY_LEN(hashes); i++)
        strbuf_printf(out, "%-12s %s\n", hashes[i],
                      text_of(facts, hashes[i])[0] ? text_of(facts, hashes[i]) : "not said");
    strbuf_printf(out, "%zu answers, %lld prompt and %lld new tokens\n\n", json_array_size(answers),
                  int_of(facts, "prompt_tokens"), int_of(facts, "tokens"));
    strbuf_printf(out, "%-24s %4s %7s %7s %-7s %10s %10s %5s\n", "answer", "turn", "prompt",
                  "tokens", "finish", "logprob", "margin", "full");
    for (size_t i = 0; i < json_array_size(answers); i++) {
        const json_t *a = json_array_get(answers, i);
        strbuf_printf(out, "%-24.80s %4lld %7lld %7lld %-7s", text_of(a, "custom_id"),
                      int_of(a, "turn"), int_of(a, "prompt_tokens"), int_of(a, "tokens"),
                      text_of(a, "finish"));
        put_figure(out, json_object_get(a, "mean_logprob"));
        put_figure(out, json_object_get(a, "least_margin"));
        strbuf_printf(out, " %5lld\n", int_of(a, "full_rows"));
    }
}
