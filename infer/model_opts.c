/* model_opts.c: rows of option tables and what they come to. */
#include "infer/model_opts.h"

#include <stdlib.h>

#include "common/log.h"
#include "infer/lm.h"

/* "auto", then in the order of enum kern_arith. */
static const char *const ariths[] = {"auto",  "f32",    "mma90",  "mma80", "mma86",
                                     "mma89", "mma100", "mma120", NULL};
_Static_assert(ARRAY_LEN(ariths) == KERN_ARITHS + 2, "a name for each arithmetic");

void model_opts_init(struct model_opts *m)
{
    *m = (struct model_opts){.device = "auto", .isa = "auto"};
}

void model_opts_rows(struct model_opts *m, struct opt *rows, size_t *n)
{
    const struct opt own[MODEL_OPTS_ROWS] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "How it runs"},
        {OPT_STRING, 0, "device", &m->device, 0, 0, NULL, "D", "cpu, cuda:N or auto (default)"},
        {OPT_CHOICE, 0, "arith", &m->arith, 0, 0, ariths, NULL,
         "arithmetic: f32 (default on the CPU), mma90 (on the CPU and compute capability 9.0) or "
         "another card's own, not measured; auto (default): on CUDA the card's"},
        {OPT_INT, 0, "threads", &m->threads, 0, 4096, NULL, "N",
         "CPU threads (default: OMP_NUM_THREADS, else the allowed cores)"},
        {OPT_STRING, 0, "isa", &m->isa, 0, 0, NULL, "NAME",
         "CPU instructions: c, avx2, avx512 or auto (default); the bits are the same"},
        {OPT_INT, 0, "max-batch", &m->batch_seqs, 0, 4096, NULL, "N",
         "most sequences of a step (default 64)"},
        {OPT_INT, 0, "batch-tokens", &m->batch_tokens, 0, 1 << 20, NULL, "N",
         "most tokens of a step (default 512)"},
        {OPT_INT, 0, "kv-tokens", &m->kv_tokens, 0, (double)(1ll << 40), NULL, "N",
         "tokens that the KV pages hold in all (default: by batch and context)"},
        {OPT_INT, 0, "max-ctx", &m->ctx, 0, 1 << 24, NULL, "N",
         "longest sequence (default: the model's own, at most 8192)"},
    };
    memcpy(rows + *n, own, sizeof own);
    *n += MODEL_OPTS_ROWS;
}

/* Is there a GPU that this build can use, and what does it compute? Asked only when neither device
 * nor arithmetic is said. */
static bool cuda_answers(enum kern_arith *arith)
{
    struct kern_options o = {.device = "cuda:0"};
    struct kern *k = NULL;
    if (kern_device_arith(o.device, &o.arith, NULL) != ERR_OK || kern_open(&k, &o, NULL) != ERR_OK)
        return false;
    kern_close(k);
    *arith = o.arith;
    return true;
}

enum err_code model_opts_engine(const struct model_opts *m, struct engine_options *o, struct err *e)
{
    const bool cuda = str_starts(m->device, "cuda"), given = m->arith != 0;
    enum kern_arith arith = given ? (enum kern_arith)(m->arith - 1) : KERN_F32;
    enum err_code rc = ERR_OK;
    if (cuda && given && arith == KERN_F32)
        return err_set(e, ERR_USAGE,
                       "--arith f32 runs on the CPU only; CUDA computes what its tensor cores do "
                       "(mma90 on compute capability 9.0)");
    if (cuda && !given)
        rc = kern_device_arith(m->device, &arith, e);
    else if (!given && strcmp(m->device, "auto") == 0)
        (void)cuda_answers(&arith);
    if (rc != ERR_OK)
        return rc;
    if (!kern_arith_measured(arith) && strcmp(m->device, "cpu") != 0)
        log_warn("%s was not measured: no oracle says what this card must answer",
                 kern_arith_name(arith));
    *o = (struct engine_options){
        .kern = {.device = m->device, .arith = arith, .threads = (int)m->threads, .isa = m->isa},
        .batch_tokens = (int)m->batch_tokens,
        .batch_seqs = (int)m->batch_seqs,
        .kv_tokens = m->kv_tokens,
        .ctx = m->ctx};
    return ERR_OK;
}

void request_opts_init(struct request_opts *r)
{
    *r = (struct request_opts){.max_tokens = 256, .top_p = 1, .repetition_penalty = 1};
}

void request_opts_rows(struct request_opts *r, struct opt *rows, size_t *n)
{
    const double big = 9007199254740992.0; /* 2^53 */
    const struct opt own[REQUEST_OPTS_ROWS] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL,
         "What a request asks for, unless its own line says otherwise"},
        {OPT_INT, 'n', "max-tokens", &r->max_tokens, 1, 2147483647, NULL, "N",
         "most new tokens (default 256)"},
        {OPT_DOUBLE, 0, "temperature", &r->temperature, 0, 100, NULL, "T", "0 is greedy (default)"},
        {OPT_INT, 0, "top-k", &r->top_k, 0, 2147483647, NULL, "K", "0 is off (default)"},
        {OPT_DOUBLE, 0, "top-p", &r->top_p, 0, 1, NULL, "P", "1 is off (default)"},
        {OPT_DOUBLE, 0, "min-p", &r->min_p, 0, 1, NULL, "P", "0 is off (default)"},
        {OPT_DOUBLE, 0, "repetition-penalty", &r->repetition_penalty, 0.01, 100, NULL, "X",
         "1 is off (default)"},
        {OPT_INT, 0, "seed", &r->seed, -big, big, NULL, "N", "seed of the draws (default 0)"},
        {OPT_LIST, 0, "stop", &r->stop, 0, 0, NULL, "TEXT", "ends the answer; may be repeated"},
        {OPT_LIST, 0, "stop-token-id", &r->stop_ids, 0, 0, NULL, "ID",
         "ends the answer, beside the model's own; may be repeated"},
        {OPT_LIST, 0, "logit-bias", &r->bias, 0, 0, NULL, "ID=X",
         "added to the logit of a token; may be repeated"},
        {OPT_FLAG, 0, "ignore-eos", &r->ignore_eos, 0, 0, NULL, NULL,
         "the model's own stop ids do not end the answer"},
        {OPT_FLAG, 0, "logprobs", &r->logprobs, 0, 0, NULL, NULL, "report log-probabilities"},
        {OPT_INT, 0, "top-logprobs", &r->top_logprobs, 0, PROMPT_TOP_MAX, NULL, "K",
         "and those of the K best tokens (default 0)"},
        {OPT_FLAG, 0, "chat", &r->chat, 0, 0, NULL, NULL,
         "a prompt is a user message: render the chat template"},
        {OPT_STRING, 0, "date", &r->date, 0, 0, NULL, "YYYY-MM-DD",
         "the day that chat templates are told (default " LM_TEMPLATE_DATE ": no clock in data)"},
        {OPT_FLAG, 0, "special", &r->special, 0, 0, NULL, NULL,
         "special tokens written in raw text are parsed"},
        {OPT_FLAG, 0, "ignore-fields", &r->ignore_fields, 0, 0, NULL, NULL,
         "request fields that are not honoured are no error"},
    };
    memcpy(rows + *n, own, sizeof own);
    *n += REQUEST_OPTS_ROWS;
}

static enum err_code parse_bias(const char *text, struct logit_bias *b, struct err *e)
{
    const char *eq = strchr(text, '=');
    char id[24];
    int64_t number;
    double bias;
    size_t len = eq ? (size_t)(eq - text) : sizeof id;
    if (len < sizeof id) {
        memcpy(id, text, len);
        id[len] = 0;
        if (str_to_i64(id, 0, INT32_MAX, &number) && str_to_double(eq + 1, &bias) && bias >= -100 &&
            bias <= 100) {
            *b = (struct logit_bias){(int32_t)number, (float)bias};
            return ERR_OK;
        }
    }
    return err_set(e, ERR_USAGE, "--logit-bias '%s': expected ID=X with X in -100..100", text);
}

static enum err_code fill_lists(const struct request_opts *r, struct prompt_settings *s,
                                struct logit_bias *bias, struct err *e)
{
    for (size_t i = 0; i < r->stop.n; i++) {
        if (!r->stop.items[i][0])
            return err_set(e, ERR_USAGE, "--stop: the text is empty");
        s->stop[s->n_stop++] = r->stop.items[i];
    }
    for (size_t i = 0; i < r->stop_ids.n; i++) {
        int64_t id;
        if (!str_to_i64(r->stop_ids.items[i], 0, INT32_MAX, &id))
            return err_set(e, ERR_USAGE, "--stop-token-id '%s': expected a token id",
                           r->stop_ids.items[i]);
        s->stop_ids[s->n_stop_ids++] = (int32_t)id;
    }
    for (size_t i = 0; i < r->bias.n; i++) {
        enum err_code rc = parse_bias(r->bias.items[i], &bias[i], e);
        if (rc != ERR_OK)
            return rc;
    }
    s->sampling.n_bias = (int)r->bias.n;
    return ERR_OK;
}

enum err_code request_opts_defaults(const struct request_opts *r, struct prompt_defaults *d,
                                    struct err *e)
{
    prompt_defaults_init(d);
    struct prompt_settings *s = &d->set;
    struct logit_bias *bias = calloc(r->bias.n + 1, sizeof *bias);
    s->stop = calloc(r->stop.n + 1, sizeof *s->stop);
    s->stop_ids = calloc(r->stop_ids.n + 1, sizeof *s->stop_ids);
    s->sampling.bias = bias;
    if (!bias || !s->stop || !s->stop_ids)
        return err_set(e, ERR_NOMEM, "out of memory");
    s->sampling.temperature = r->temperature;
    s->sampling.top_k = r->top_k;
    s->sampling.top_p = r->top_p;
    s->sampling.min_p = r->min_p;
    s->sampling.repetition_penalty = r->repetition_penalty;
    s->sampling.seed = (uint64_t)r->seed;
    s->max_tokens = r->max_tokens;
    s->logprobs = r->logprobs || r->top_logprobs;
    s->top_logprobs = r->top_logprobs;
    s->ignore_eos = r->ignore_eos;
    d->chat = r->chat;
    d->date = r->date;
    d->ignore_fields = r->ignore_fields;
    return fill_lists(r, s, bias, e);
}

void request_opts_free(struct request_opts *r, struct prompt_defaults *d)
{
    free((void *)(uintptr_t)d->set.sampling.bias);
    free((void *)d->set.stop);
    free(d->set.stop_ids);
    opt_list_free(&r->stop);
    opt_list_free(&r->stop_ids);
    opt_list_free(&r->bias);
}
