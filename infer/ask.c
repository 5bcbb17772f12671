/* ask.c: joins prompts, lm and runner. Owns nothing. */
#include "infer/ask.h"

#include "common/hash.h"

#define STOP_IDS_MAX 64

static enum err_code check_ids(const struct lm *m, const struct token_list *ids, struct err *e)
{
    int64_t n_vocab = engine_hparams(m->engine)->n_vocab;
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= n_vocab)
            return err_set(e, ERR_INPUT, "token %zu of the prompt is %d, the vocabulary has %lld",
                           i, ids->ids[i], (long long)n_vocab);
    return ids->n ? ERR_OK : err_set(e, ERR_INPUT, "the prompt has no tokens");
}

enum err_code ask_tokens(const struct lm *m, const struct prompt_request *r, json_t *history,
                         bool special, struct token_list *out, struct err *e)
{
    enum err_code rc = ERR_OK;
    out->n = 0;
    switch (r->kind) {
    case PROMPT_TEXT:
        rc = lm_encode_text(m, r->text, r->text_len, special, out, e);
        break;
    case PROMPT_CHAT:
        rc = lm_encode_chat(m, r->messages, r->template_vars, out, e);
        break;
    case PROMPT_TURNS:
        rc = lm_encode_chat(m, history, r->template_vars, out, e);
        break;
    case PROMPT_IDS:
        for (size_t i = 0; i < r->n_ids; i++)
            if (!token_list_push(out, r->ids[i]))
                return err_set(e, ERR_NOMEM, "out of memory");
        break;
    }
    return rc == ERR_OK ? check_ids(m, out, e) : rc;
}

/* Ids that a request names beside its prompt. */
static enum err_code check_named(const struct lm *m, const struct prompt_settings *s, struct err *e)
{
    const long long n_vocab = engine_hparams(m->engine)->n_vocab;
    for (int i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] < 0 || s->stop_ids[i] >= n_vocab)
            return err_set(e, ERR_INPUT, "stop_token_ids[%d] is %d, the vocabulary has %lld", i,
                           s->stop_ids[i], n_vocab);
    for (int i = 0; i < s->sampling.n_bias; i++)
        if (s->sampling.bias[i].id < 0 || s->sampling.bias[i].id >= n_vocab)
            return err_set(e, ERR_INPUT, "logit_bias names token %d, the vocabulary has %lld",
                           s->sampling.bias[i].id, n_vocab);
    return ERR_OK;
}

static enum err_code submit(const struct lm *m, struct runner *runner,
                            const struct prompt_request *r, const struct token_list *prompt,
                            int top_k, bool score, bool rows, void *user, struct err *e)
{
    const struct prompt_settings *s = &r->set;
    const struct hparams *hp = engine_hparams(m->engine);
    int32_t stop_ids[HP_EOS_MAX + STOP_IDS_MAX];
    int n_stop = 0;
    if (s->n_stop_ids > STOP_IDS_MAX)
        return err_set(e, ERR_INPUT, "%d stop_token_ids, at most %d", s->n_stop_ids, STOP_IDS_MAX);
    enum err_code rc = check_named(m, s, e);
    if (rc != ERR_OK)
        return rc;
    for (int i = 0; i < hp->n_eos && !s->ignore_eos; i++)
        stop_ids[n_stop++] = (int32_t)hp->eos[i];
    for (int i = 0; i < s->n_stop_ids; i++)
        stop_ids[n_stop++] = s->stop_ids[i];
    struct request q = {.prompt = prompt->ids,
                        .n_prompt = (int64_t)prompt->n,
                        .max_tokens = s->max_tokens,
                        .sampling = s->sampling,
                        .stop_ids = stop_ids,
                        .n_stop_ids = n_stop,
                        .stop = s->stop,
                        .n_stop = s->n_stop,
                        .top_k = MAX2(top_k, s->logprobs ? (int)s->top_logprobs : 0),
                        .want_logits = rows,
                        .score_from = score ? 0 : -1};
    sha256_of(r->custom_id, strlen(r->custom_id), q.stream_key);
    return runner_submit(runner, &q, user, e);
}

enum err_code ask_submit(const struct lm *m, struct runner *runner, const struct prompt_request *r,
                         const struct token_list *prompt, int top_k, bool score, void *user,
                         struct err *e)
{
    return submit(m, runner, r, prompt, top_k, score, false, user, e);
}

enum err_code ask_submit_rows(const struct lm *m, struct runner *runner,
                              const struct prompt_request *r, const struct token_list *prompt,
                              int top_k, void *user, struct err *e)
{
    return submit(m, runner, r, prompt, top_k, false, true, user, e);
}
