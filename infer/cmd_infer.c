/* cmd_infer.c: the command: one prompt, a prompt file, or a text to score. */
#include <stdio.h>
#include <stdlib.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/log.h"
#include "infer/batch.h"
#include "infer/engine_buffers.h"
#include "infer/model_opts.h"
#include "infer/once.h"
#include "infer/score.h"
#include "infer/shapes.h"

struct args {
    const char *model, *batch, *prompt, *out, *text, *trace, *trace_full;
    bool score, llama_windows, resume, retry_failed, force, json, plan, no_prefix;
    int64_t ctx, stride, chunk, trace_top, max_failures;
    double grace;
    int trace_level;
    struct model_opts how;
    struct request_opts ask;
};

#define FULL_MAX 64 /* rows of an answer in full */

static const char *const levels[] = {"tokens", "layers", NULL};

#define ROWS (28 + MODEL_OPTS_ROWS + REQUEST_OPTS_ROWS)

static void fill_rows(struct args *a, struct opt *rows)
{
    const struct opt own[] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "What to run"},
        {OPT_STRING, 'm', "model", &a->model, 0, 0, NULL, "MODEL",
         "checkpoint: a folder, a GGUF, archive:member"},
        {OPT_STRING, 0, "batch", &a->batch, 0, 0, NULL, "FILE",
         "prompt file: JSON lines, may be .gz"},
        {OPT_STRING, 'p', "prompt", &a->prompt, 0, 0, NULL, "TEXT",
         "one prompt; the answer streams to standard output"},
        {OPT_STRING, 'o', "out", &a->out, 0, 0, NULL, "OUT", "output lines of --batch"},
        {OPT_FLAG, 0, "resume", &a->resume, 0, 0, NULL, NULL, "go on with an OUT that is there"},
        {OPT_FLAG, 0, "retry-failed", &a->retry_failed, 0, 0, NULL, NULL,
         "--resume, and run the requests again that failed"},
        {OPT_INT, 0, "max-failures", &a->max_failures, 0, INT32_MAX, NULL, "N",
         "stop when more than N requests have failed (default: go on)"},
        {OPT_DOUBLE, 0, "grace", &a->grace, 0, 86400, NULL, "S",
         "seconds that running requests have after a signal (default 5)"},
        {OPT_FLAG, 0, "force", &a->force, 0, 0, NULL, NULL, "replace outputs that assay made"},
        {OPT_FLAG, 0, "json", &a->json, 0, 0, NULL, NULL, "JSON on standard output"},
        {OPT_FLAG, 0, "plan", &a->plan, 0, 0, NULL, NULL,
         "print the memory plan, with the lifetime of every buffer, and load nothing; MODEL may be "
         "a "
         "config.json alone, which is planned in 4 bits"},
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "Scoring"},
        {OPT_FLAG, 0, "score", &a->score, 0, 0, NULL, NULL,
         "teacher-forced log-probabilities of --batch prompts or of --text"},
        {OPT_STRING, 0, "text", &a->text, 0, 0, NULL, "FILE", "text to score: its perplexity"},
        {OPT_INT, 0, "ctx", &a->ctx, 2, 1 << 24, NULL, "N", "tokens of a window (default 512)"},
        {OPT_INT, 0, "stride", &a->stride, 1, 1 << 24, NULL, "N",
         "a window every N tokens (default: ctx)"},
        {OPT_FLAG, 0, "llama-windows", &a->llama_windows, 0, 0, NULL, NULL,
         "windows and scored halves as llama.cpp's perplexity cuts them"},
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "Evidence"},
        {OPT_STRING, 0, "trace", &a->trace, 0, 0, NULL, "FILE",
         "write what was chosen, token by token (.gz: compressed)"},
        {OPT_CHOICE, 0, "trace-level", &a->trace_level, 0, 0, levels, NULL,
         "tokens (default) or layers: a hash of every operation's output"},
        {OPT_INT, 0, "trace-top", &a->trace_top, 0, TRACE_TOP_MAX, NULL, "K",
         "best tokens of each row in the trace (default 5)"},
        {OPT_STRING, 0, "trace-full", &a->trace_full, 0, 0, NULL, "I,J",
         "tokens of each answer, from 0, whose logits are in the trace in full, as f16"},
        {OPT_INT, 0, "chunk", &a->chunk, 1, 1 << 20, NULL, "N",
         "most prompt tokens of a sequence in a step; the bits are the same"},
        {OPT_FLAG, 0, "no-prefix", &a->no_prefix, 0, 0, NULL, NULL,
         "do not share pages of equal prefixes; the bits are the same"},
    };
    size_t n = ARRAY_LEN(own);
    memcpy(rows, own, sizeof own);
    model_opts_rows(&a->how, rows, &n);
    request_opts_rows(&a->ask, rows, &n);
    rows[n] = (struct opt){.type = OPT_END};
}

static void print_plan(void *ctx, const char *path, const struct engine_plan *p)
{
    (void)ctx;
    char weights[24], kv[24], scratch[24], all[24];
    log_info("%s: weights %s, KV %s (%lld pages of %d tokens), scratch %s: %s", io_base(path),
             str_bytes(weights, p->weights), str_bytes(kv, p->kv), (long long)p->pages, KERN_PAGE,
             str_bytes(scratch, p->scratch),
             str_bytes(all, p->weights + p->kv + p->scratch + p->host));
}

/* What stands where while a step runs. */
static void put_values(const struct engine_buffers *v, struct strbuf *b)
{
    strbuf_printf(b, "\n%-12s %12s %12s  %-12s %-12s %s\n", "block", "offset", "bytes",
                  "written by", "last read by", "times");
    for (size_t i = 0; i < v->n; i++) {
        const struct engine_value *x = &v->values[i];
        strbuf_printf(b, "%-12s %12zu %12zu  %-12s %-12s %d\n", x->block, x->offset, x->bytes,
                      x->write, x->last_read, x->times);
    }
}

static void put_values_json(const struct engine_buffers *v, struct strbuf *b)
{
    strbuf_puts(b, ",\"buffers\":[");
    for (size_t i = 0; i < v->n; i++) {
        const struct engine_value *x = &v->values[i];
        strbuf_printf(b,
                      "%s{\"block\":\"%s\",\"offset\":%zu,\"bytes\":%zu,\"written_by\":\"%s\","
                      "\"layer\":%d,\"last_read_by\":\"%s\",\"times\":%d}",
                      i ? "," : "", x->block, x->offset, x->bytes, x->write, x->layer, x->last_read,
                      x->times);
    }
    strbuf_puts(b, "]}\n");
}

static enum err_code run_plan(const struct args *a, const struct engine_options *o, struct err *e)
{
    struct checkpoint *c;
    struct engine_plan p;
    struct engine_buffers v;
    const bool shape = str_ends(a->model, ".json") && !io_is_dir(a->model);
    enum err_code rc =
        shape ? shapes_checkpoint(&c, a->model, e) : checkpoint_open(&c, a->model, e);
    if (rc != ERR_OK)
        return rc;
    rc = engine_plan(c, o, &p, e);
    if (rc == ERR_OK)
        rc = engine_buffers_find(&v, c, o, e);
    if (shape)
        shapes_free(c);
    else
        checkpoint_close(c);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s", a->model);
    struct strbuf b = {0};
    const struct {
        const char *name;
        uint64_t value;
    } sums[] = {{"weights", p.weights},
                {"kv", p.kv},
                {"scratch", p.scratch},
                {"host", p.host},
                {"pages", (uint64_t)p.pages},
                {"ctx", (uint64_t)p.ctx},
                {"batch_tokens", (uint64_t)p.batch_tokens},
                {"batch_seqs", (uint64_t)p.batch_seqs}};
    for (size_t i = 0; i < ARRAY_LEN(sums); i++)
        strbuf_printf(&b, a->json ? "%s\"%s\":%llu" : "%s%s %llu\n",
                      !a->json ? ""
                      : i      ? ","
                               : "{",
                      sums[i].name, (unsigned long long)sums[i].value);
    (a->json ? put_values_json : put_values)(&v, &b);
    engine_buffers_free(&v);
    return cmd_print(&b, e);
}

/* ---- --batch ----------------------------------------------------------------------------------
 */

struct watch {
    struct progress p;
    uint64_t requests, all;
    const struct batch_result *res;
};

static void on_progress(void *ctx, uint64_t requests, uint64_t tokens)
{
    struct watch *w = ctx;
    (void)tokens;
    w->p.total = w->all - w->res->n_kept; /* what an earlier run answered tells nothing of pace */
    progress_add(&w->p, requests - w->requests);
    w->requests = requests;
}

/* What a batch came to, for programs: the one place of its figures in time. */
static enum err_code print_batch(const struct batch_result *r, double seconds, struct err *e)
{
    return cmd_print_json(json_pack("{s:I,s:I,s:I,s:I,s:I,s:f}", "answered", (json_int_t)r->n_ok,
                                    "failed", (json_int_t)r->n_failed, "kept",
                                    (json_int_t)r->n_kept, "prompt_tokens",
                                    (json_int_t)r->prompt_tokens, "new_tokens",
                                    (json_int_t)r->new_tokens, "seconds", seconds),
                          e);
}

/* "0,7,31" */
static enum err_code read_list(const char *text, int64_t *list, size_t *n, struct err *e)
{
    for (const char *at = text; at;) {
        const char *comma = strchr(at, ',');
        size_t len = comma ? (size_t)(comma - at) : strlen(at);
        char word[24] = "";
        memcpy(word, at, MIN2(len, sizeof word - 1));
        if (*n == FULL_MAX || len >= sizeof word || !str_to_i64(word, 0, INT32_MAX, &list[*n]))
            return err_set(e, ERR_USAGE, "--trace-full %s: expected at most %d token numbers", text,
                           FULL_MAX);
        ++*n;
        at = comma ? comma + 1 : NULL;
    }
    return ERR_OK;
}

static enum err_code run_batch(const struct args *a, const struct engine_options *eo,
                               const struct prompt_defaults *d, const struct cmd_env *env,
                               struct err *e)
{
    struct batch_result res;
    int64_t full[FULL_MAX];
    struct watch w = {.requests = 0, .res = &res};
    struct batch_options o = {.prompts = a->batch,
                              .out = a->out,
                              .defaults = *d,
                              .special = a->ask.special,
                              .score = a->score,
                              .resume = a->resume || a->retry_failed,
                              .force = a->force,
                              .retry_failed = a->retry_failed,
                              .max_failures = a->max_failures,
                              .grace_s = a->grace,
                              .no_prefix = a->no_prefix,
                              .chunk = (int)a->chunk,
                              .trace = a->trace,
                              .trace_level = (enum trace_level)a->trace_level,
                              .trace_top = (int)a->trace_top,
                              .trace_full = full,
                              .interrupted = env->interrupted,
                              .on_progress = on_progress,
                              .ctx = &w};
    struct census census;
    struct lm *m;
    if (!a->out)
        return err_set(e, ERR_USAGE, "--batch needs -o OUT");
    enum err_code rc = read_list(a->trace_full, full, &o.n_trace_full, e);
    if (rc != ERR_OK)
        return rc;
    rc = batch_check(&o, &census, e);
    if (rc == ERR_OK)
        rc = lm_open(&m, a->model, eo, print_plan, NULL, e);
    if (rc != ERR_OK) {
        census_free(&census);
        return rc;
    }
    uint64_t start = clock_ns();
    w.all = census.n_requests;
    progress_start(&w.p, "infer", "requests", w.all);
    rc = batch_run(m, &o, &census, &res, e);
    progress_end(&w.p);
    lm_close(m);
    census_free(&census);
    if (rc == ERR_OK || rc == ERR_PARTIAL || rc == ERR_INTERRUPTED) {
        double s = (double)(clock_ns() - start) * 1e-9;
        log_info("%llu answered, %llu failed, %llu kept; %llu prompt and %llu new tokens in %.2f s",
                 (unsigned long long)res.n_ok, (unsigned long long)res.n_failed,
                 (unsigned long long)res.n_kept, (unsigned long long)res.prompt_tokens,
                 (unsigned long long)res.new_tokens, s);
        enum err_code print = a->json ? print_batch(&res, s, rc == ERR_OK ? e : NULL) : ERR_OK;
        rc = rc == ERR_OK ? print : rc;
    }
    return rc;
}

/* ---- -p ----------------------------------------------------------------------------------------
 */

static void stream_text(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static enum err_code run_once(const struct args *a, const struct engine_options *eo,
                              const struct prompt_defaults *d, const struct cmd_env *env,
                              struct err *e)
{
    struct once_options o = {.special = a->ask.special,
                             .interrupted = env->interrupted,
                             .on_text = a->json ? NULL : stream_text};
    struct strbuf line = {0};
    struct prompt_request *r = NULL;
    struct answer answer = {.n = 0};
    struct lm *m = NULL;
    strbuf_puts(&line, "{\"custom_id\":\"prompt\",\"prompt\":");
    json_put_string(&line, a->prompt, strlen(a->prompt));
    strbuf_puts(&line, "}");
    enum err_code rc = str_utf8_valid(a->prompt, strlen(a->prompt)) == strlen(a->prompt)
                           ? strbuf_ok(&line, e)
                           : err_set(e, ERR_INPUT, "-p: the prompt is not UTF-8");
    if (rc == ERR_OK)
        rc = prompts_parse(line.data, line.len, 1, false, d, &r, e);
    if (rc == ERR_OK && r->code != ERR_OK)
        rc = err_set(e, r->code, "-p: %s", r->error);
    if (rc == ERR_OK)
        rc = lm_open(&m, a->model, eo, print_plan, NULL, e);
    if (rc == ERR_OK)
        rc = once_run(m, r, &o, &answer, e);
    strbuf_clear(&line);
    if (rc == ERR_OK && a->json) {
        struct reply_model model = {.name = io_base(m->ckpt->path),
                                    .fingerprint = m->fingerprint,
                                    .arith = kern_arith_name(kern_arith(engine_kern(m->engine))),
                                    .tok = m->tok};
        rc = reply_line(&line, &model, r, &answer, 1, e);
        if (rc == ERR_OK)
            fwrite(line.data, 1, line.len, stdout);
    } else if (rc == ERR_OK) {
        fputc('\n', stdout);
    }
    answer_reset(&answer);
    prompt_request_free(r);
    strbuf_free(&line);
    lm_close(m);
    return rc;
}

/* ---- --score --text ---------------------------------------------------------------------------
 */

static void on_window(void *ctx, int64_t done, int64_t all)
{
    struct progress *p = ctx;
    p->total = (uint64_t)all;
    progress_add(p, (uint64_t)done - p->done);
}

static void print_score(const struct args *a, const struct lm *m, const struct score_options *o,
                        const struct score_result *r)
{
    const char *arith = kern_arith_name(kern_arith(engine_kern(m->engine)));
    if (!a->json) {
        printf("perplexity %.6g over %lld tokens in %lld windows of %lld%s (%s, %s)\n",
               r->perplexity, (long long)r->n_scored, (long long)r->n_windows, (long long)o->ctx,
               o->llama_windows ? ", second halves" : "", io_base(a->model), arith);
        return;
    }
    struct strbuf b = {0};
    strbuf_printf(&b, "{\"perplexity\":");
    json_put_double(&b, r->perplexity);
    strbuf_puts(&b, ",\"nll\":");
    json_put_double(&b, r->nll);
    strbuf_printf(&b,
                  ",\"n_tokens\":%lld,\"n_scored\":%lld,\"ctx\":%lld,\"stride\":%lld,"
                  "\"llama_windows\":%s,\"arith\":\"%s\",\"fingerprint\":\"%s\",\"windows\":[",
                  (long long)r->n_tokens, (long long)r->n_scored, (long long)o->ctx,
                  (long long)(o->stride ? o->stride : o->ctx), o->llama_windows ? "true" : "false",
                  arith, m->fingerprint);
    for (int64_t i = 0; i < r->n_windows; i++) {
        const struct score_window *w = &r->windows[i];
        strbuf_printf(&b, "%s{\"start\":%lld,\"n\":%lld,\"n_scored\":%lld,\"nll\":", i ? "," : "",
                      (long long)w->start, (long long)w->n, (long long)w->n_scored);
        json_put_double(&b, w->nll);
        strbuf_putc(&b, '}');
    }
    strbuf_puts(&b, "]}\n");
    fputs(b.data ? b.data : "", stdout);
    strbuf_free(&b);
}

static enum err_code run_text(const struct args *a, const struct engine_options *eo,
                              const struct cmd_env *env, struct err *e)
{
    struct progress p;
    struct score_options o = {.ctx = a->ctx,
                              .stride = a->stride,
                              .llama_windows = a->llama_windows,
                              .interrupted = env->interrupted,
                              .on_window = on_window,
                              .ctx_user = &p};
    struct strbuf text = {0};
    struct token_list ids = {0};
    struct score_result res = {.windows = NULL};
    struct lm *m = NULL;
    enum err_code rc = io_read_all(a->text, (size_t)1 << 30, &text, e);
    if (rc == ERR_OK)
        rc = lm_open(&m, a->model, eo, print_plan, NULL, e);
    if (rc == ERR_OK) {
        rc = lm_encode_text(m, text.data, text.len, a->ask.special, &ids, e);
        rc = err_wrap(e, rc, "%s", a->text);
    }
    if (rc == ERR_OK) {
        progress_start(&p, "score", "windows", 0);
        rc = score_ids(m, ids.ids, (int64_t)ids.n, &o, &res, e);
        progress_end(&p);
    }
    if (rc == ERR_OK)
        print_score(a, m, &o, &res);
    score_free(&res);
    token_list_free(&ids);
    strbuf_free(&text);
    lm_close(m);
    return rc;
}

/* ---- the command ------------------------------------------------------------------------------
 */

static enum err_code check_args(const struct args *a, struct err *e)
{
    int jobs = (a->batch != NULL) + (a->prompt != NULL) + (a->text != NULL);
    if (!a->model)
        return err_set(e, ERR_USAGE, "-m MODEL is missing");
    if (a->plan)
        return ERR_OK;
    if (jobs != 1)
        return err_set(e, ERR_USAGE, "expected one of --batch FILE, -p TEXT, --score --text FILE");
    if (a->text && !a->score)
        return err_set(e, ERR_USAGE, "--text goes with --score");
    if (a->prompt && a->score)
        return err_set(e, ERR_USAGE, "--score goes with --batch or --text");
    if (!a->batch && (a->trace || a->resume || a->retry_failed || a->out))
        return err_set(e, ERR_USAGE, "-o, --trace, --resume and --retry-failed go with --batch");
    if (a->force && (a->resume || a->retry_failed))
        return err_set(e, ERR_USAGE, "--force starts anew and --resume goes on: expected one");
    if (a->trace && (a->resume || a->retry_failed))
        return err_set(e, ERR_USAGE,
                       "--trace does not go with --resume: a trace is of a whole "
                       "run");
    if (a->trace_full && !a->trace)
        return err_set(e, ERR_USAGE, "--trace-full goes with --trace");
    if (a->score && a->trace)
        return err_set(e, ERR_USAGE, "--trace does not go with --score");
    return ERR_OK;
}

enum err_code cmd_infer(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct args a = {.ctx = 512, .trace_top = 5, .max_failures = -1, .grace = 5};
    struct opt rows[ROWS];
    struct opt_list positional = {0};
    struct prompt_defaults d = {.chat = false};
    struct engine_options eo;
    bool help;
    model_opts_init(&a.how);
    request_opts_init(&a.ask);
    fill_rows(&a, rows);
    const struct opt_cmd cmd = {
        "infer",
        "-m MODEL (--batch FILE -o OUT | -p TEXT | --score --text FILE)",
        "Runs prompts offline. An answer depends on its own request alone: not on the batch, the "
        "chunks, the threads or a restart.",
        "  assay infer --batch prompts.jsonl -m q4 -o q4.jsonl\n"
        "  assay infer -m q4 --chat -p 'Why is the sky blue?'\n"
        "  assay infer -m q4 --score --text wiki.txt --ctx 512 --llama-windows\n",
        rows,
        0,
        0};
    enum err_code rc = cmd_options(&cmd, argc, argv, &positional, &help, e);
    if (rc != ERR_OK || help)
        goto out;
    rc = check_args(&a, e);
    if (rc == ERR_OK)
        rc = model_opts_engine(&a.how, &eo, e);
    if (rc == ERR_OK)
        rc = request_opts_defaults(&a.ask, &d, e);
    if (rc != ERR_OK)
        goto out;
    eo.top_k = MAX2(PROMPT_TOP_MAX, 2);
    if (a.plan)
        rc = run_plan(&a, &eo, e);
    else if (a.batch)
        rc = run_batch(&a, &eo, &d, env, e);
    else if (a.prompt)
        rc = run_once(&a, &eo, &d, env, e);
    else
        rc = run_text(&a, &eo, env, e);
out:
    opt_list_free(&positional);
    request_opts_free(&a.ask, &d);
    return rc;
}
