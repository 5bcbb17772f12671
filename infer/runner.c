/* runner.c: the life of a request.
 *
 * Requests stand in one array in order of submission: running ones first, then waiting ones, as the
 * scheduler wants them. A step plans, puts back whom the plan names, gives pages, runs the engine,
 * hands out rows and makes full prompt pages known. What a request has produced never depends on
 * when it ran: its draws are keyed by position and its text by its own tokens.
 */
#include "infer/runner.h"

#include <assert.h>
#include <stdlib.h>

#include "common/rng.h"
#include "infer/kv.h"
#include "infer/runner_private.h"
#include "infer/sched.h"

struct runner {
    struct engine *en;
    const struct tokenizer *tok;
    struct runner_options o;
    struct engine_plan plan;
    struct kv *kv;
    struct run_seq **seqs;
    int n_seqs, cap_seqs;
    struct sched_seq *view; /* [cap_seqs]: the scheduler's picture */
    struct sched_piece *planned;
    struct step_piece *pieces; /* [batch_seqs] */
    float *top_logprob;        /* [top_k] */
    struct run_trace trace;
    struct runner_stats stats;
    enum runner_fault fault;
};

/* ---- making ---------------------------------------------------------------------------------- */

enum err_code runner_new(struct runner **out, struct engine *en, const struct tokenizer *tok,
                         const struct runner_options *o, struct err *e)
{
    *out = NULL;
    struct runner *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "out of memory for a runner");
    r->en = en;
    r->tok = tok;
    r->o = *o;
    r->plan = *engine_get_plan(en);
    if (r->o.chunk <= 0 || r->o.chunk > r->plan.batch_tokens)
        r->o.chunk = r->plan.batch_tokens;
    const size_t n = (size_t)r->plan.batch_seqs;
    if (o->batch > 0)
        r->plan.batch_seqs = MIN2(o->batch, r->plan.batch_seqs);
    r->kv = kv_new((int32_t)r->plan.pages, !o->no_prefix);
    r->planned = calloc(n, sizeof *r->planned);
    r->pieces = calloc(n, sizeof *r->pieces);
    r->top_logprob = calloc((size_t)r->plan.top_k, sizeof *r->top_logprob);
    if (!r->kv || !r->planned || !r->pieces || !r->top_logprob) {
        runner_free(r);
        return err_set(e, ERR_NOMEM, "out of memory for a runner of %lld pages",
                       (long long)engine_get_plan(en)->pages);
    }
    *out = r;
    return ERR_OK;
}

void runner_free(struct runner *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_seqs; i++)
        run_seq_free(r->seqs[i]);
    engine_set_tap(r->en, NULL, NULL);
    run_trace_free(&r->trace);
    kv_free(r->kv);
    free(r->seqs);
    free(r->view);
    free(r->planned);
    free(r->pieces);
    free(r->top_logprob);
    free(r);
}

int runner_pending(const struct runner *r)
{
    return r->n_seqs;
}

struct runner_stats runner_get_stats(const struct runner *r)
{
    return r->stats;
}

void runner_plant(struct runner *r, enum runner_fault f)
{
    r->fault = f;
}

struct kv *runner_kv(struct runner *r)
{
    return r->kv;
}

/* ---- submitting ------------------------------------------------------------------------------ */

static bool grow(struct runner *r)
{
    if (r->n_seqs < r->cap_seqs)
        return true;
    int cap = r->cap_seqs ? r->cap_seqs * 2 : 16;
    struct run_seq **seqs = realloc(r->seqs, (size_t)cap * sizeof *seqs);
    if (seqs)
        r->seqs = seqs;
    struct sched_seq *view = realloc(r->view, (size_t)cap * sizeof *view);
    if (view)
        r->view = view;
    if (!seqs || !view)
        return false;
    r->cap_seqs = cap;
    return true;
}

static enum err_code check_request(const struct runner *r, const struct request *q, struct err *e)
{
    const bool score = q->score_from >= 0;
    const int64_t n_new = score ? 0 : q->max_tokens, n_vocab = engine_hparams(r->en)->n_vocab;
    if (q->n_prompt < 1)
        return err_set(e, ERR_INPUT, "the prompt has no tokens");
    if (n_new < 0 || q->n_prompt > r->plan.ctx || n_new > r->plan.ctx - q->n_prompt)
        return err_set(e, ERR_INPUT,
                       "a prompt of %lld tokens and an answer of %lld do not fit the context of "
                       "%lld",
                       (long long)q->n_prompt, (long long)n_new, (long long)r->plan.ctx);
    int64_t pages = kv_pages_for(q->n_prompt + n_new);
    if (pages > r->plan.pages)
        return err_set(e, ERR_INPUT,
                       "a prompt of %lld tokens and an answer of %lld need %lld KV pages, the pool "
                       "has %lld",
                       (long long)q->n_prompt, (long long)n_new, (long long)pages,
                       (long long)r->plan.pages);
    for (int64_t i = 0; i < q->n_prompt; i++) {
        if (q->prompt[i] < 0 || q->prompt[i] >= n_vocab)
            return err_set(e, ERR_INPUT, "prompt token %lld is id %d, expected 0..%lld",
                           (long long)i, (int)q->prompt[i], (long long)n_vocab - 1);
    }
    if (q->top_k < 0 || q->top_k > r->plan.top_k)
        return err_set(e, ERR_INPUT, "%d top log-probabilities asked for, expected at most %d",
                       q->top_k, r->plan.top_k);
    if (q->n_stop && !r->tok)
        return err_set(e, ERR_INPUT, "stop strings need a tokenizer");
    return ERR_OK;
}

enum err_code runner_submit(struct runner *r, const struct request *req, void *req_user,
                            struct err *e)
{
    enum err_code rc = check_request(r, req, e);
    if (rc != ERR_OK)
        return rc;
    struct run_seq *s = grow(r) ? run_seq_new(req, req_user) : NULL;
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory for a request of %lld tokens",
                       (long long)req->n_prompt);
    r->seqs[r->n_seqs++] = s;
    return ERR_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

static void view_seqs(struct runner *r)
{
    for (int i = 0; i < r->n_seqs; i++) {
        const struct run_seq *s = r->seqs[i];
        struct sched_seq *v = &r->view[i];
        *v = (struct sched_seq){.running = s->running, .n_tok = s->n_tok, .n_done = s->n_done};
        v->out_from = s->score_from >= 0 ? s->score_from : s->n_tok - 1;
        v->n_pages = s->kv.n_pages;
        /* Nobody beyond the batch can be admitted in this step: no need to look them up. */
        if (!s->running && i < r->plan.batch_seqs) {
            int32_t idle;
            v->n_done = kv_probe(r->kv, s->ids, run_seq_shareable(s), &idle);
            v->n_pages = v->n_done / KERN_PAGE;
            v->n_idle = idle;
        }
    }
}

static void put_back(struct runner *r, struct run_seq *s)
{
    kv_release(r->kv, &s->kv);
    s->running = false;
    if (r->fault != RUNNER_FAULT_STALE)
        s->n_done = 0;
    r->stats.preempted++;
}

/* Puts back whom the scheduler names until there is a plan. */
static enum err_code make_plan(struct runner *r, struct sched_plan *plan, struct err *e)
{
    struct sched_limits l = {r->plan.batch_tokens, r->plan.batch_seqs, r->plan.out_rows, r->o.chunk,
                             0};
    plan->piece = r->planned;
    for (;;) {
        view_seqs(r);
        l.free_pages = kv_free_pages(r->kv);
        sched_plan_step(r->view, r->n_seqs, &l, plan);
        if (plan->put_back == 0)
            return err_set(e, ERR_INTERNAL, "the only running request finds no page: %lld free",
                           (long long)l.free_pages);
        if (plan->put_back < 0)
            break;
        put_back(r, r->seqs[plan->put_back]);
    }
    if (plan->n_pieces == 0)
        return err_set(e, ERR_INTERNAL, "no progress: %d requests, %lld pages free", r->n_seqs,
                       (long long)l.free_pages);
    return ERR_OK;
}

/* Pages that are known are taken first: giving out new ones may drop idle ones. */
static void admit_seqs(struct runner *r, const struct sched_plan *plan)
{
    for (int i = 0; i < plan->n_pieces; i++) {
        struct run_seq *s = r->seqs[plan->piece[i].seq];
        if (s->running)
            continue;
        s->running = true;
        int64_t n = kv_attach(r->kv, &s->kv, s->ids, run_seq_shareable(s));
        if (r->fault != RUNNER_FAULT_STALE)
            s->n_done = n;
        r->stats.shared_tokens += (uint64_t)n;
    }
}

static enum err_code give_pages(struct runner *r, const struct sched_plan *plan, struct err *e)
{
    for (int i = 0; i < plan->n_pieces; i++) {
        struct run_seq *s = r->seqs[plan->piece[i].seq];
        int old = s->kv.n_pages;
        if (!kv_extend(r->kv, &s->kv, s->n_done + plan->piece[i].n))
            return err_set(e, ERR_INTERNAL, "the plan needs more pages than the %d that are free",
                           (int)kv_free_pages(r->kv));
        for (int j = old; j < s->kv.n_pages; j++) {
            enum err_code rc = engine_zero_page(r->en, s->kv.page[j], e);
            if (rc != ERR_OK)
                return rc;
        }
    }
    return ERR_OK;
}

/* Tests: another order of pieces, fixed by the number of the step. */
static void shuffle_pieces(const struct runner *r, struct sched_plan *plan)
{
    struct rng rng = {r->stats.steps, 0};
    for (int i = plan->n_pieces - 1; i > 0; i--) {
        int j = (int)rng_below(&rng, (uint64_t)i + 1);
        struct sched_piece t = plan->piece[i];
        plan->piece[i] = plan->piece[j];
        plan->piece[j] = t;
    }
}

static bool fill_pieces(struct runner *r, const struct sched_plan *plan)
{
    bool want_logits = false;
    for (int i = 0; i < plan->n_pieces; i++) {
        const struct run_seq *s = r->seqs[plan->piece[i].seq];
        const struct sched_seq *v = &r->view[plan->piece[i].seq];
        struct step_piece *p = &r->pieces[i];
        *p = (struct step_piece){.ids = s->ids + s->n_done, .n = plan->piece[i].n};
        p->pos = s->n_done;
        p->pages = s->kv.page;
        p->n_pages = s->kv.n_pages;
        p->out_from = (int)MIN2(MAX2(v->out_from - s->n_done, 0), p->n);
        want_logits |= p->out_from < p->n && run_seq_wants_logits(s);
        if (p->out_from < p->n && s->score_from < 0 && !sampling_is_plain(&s->sampling)) {
            p->sampling = &s->sampling;
            p->stream_key = s->stream_key;
            p->history = s->ids;
            p->n_history = s->n_tok;
        }
    }
    return want_logits;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void describe_row(struct runner *r, const struct run_seq *s, const struct step_row *row,
                         int32_t id, int64_t pos, struct row_info *info)
{
    *info = (struct row_info){.pos = pos, .id = id, .best = row->top_id[0], .hash = row->hash};
    info->logprob = (id == row->id ? row->logit : row->logits[id]) - row->lse;
    info->margin = row->top[0] - row->top[1];
    info->lse = row->lse;
    info->n_top = s->top_k;
    info->top_id = row->top_id;
    for (int i = 0; i < s->top_k; i++)
        r->top_logprob[i] = row->top[i] - row->lse;
    info->top_logprob = r->top_logprob;
    info->logits = s->want_logits ? row->logits : NULL;
}

static enum err_code take_token(struct runner *r, struct run_seq *s, const struct step_row *row,
                                struct err *e)
{
    int32_t id = row->id;
    struct row_info info;
    describe_row(r, s, row, id, s->n_tok, &info);
    s->ids[s->n_tok++] = id;
    r->stats.new_tokens++;
    enum err_code rc = run_seq_push_text(s, r->tok, id, e);
    if (rc != ERR_OK)
        return rc;
    if (s->why == FINISH_NONE && s->n_tok - s->n_prompt >= s->max_tokens)
        s->why = FINISH_LENGTH;
    size_t len;
    const char *text = run_seq_take_text(s, &len);
    if (r->o.events.on_token)
        r->o.events.on_token(r->o.user, s->user, &info, text, len);
    return ERR_OK;
}

static enum err_code take_rows(struct runner *r, const struct sched_plan *plan,
                               const struct step *step, struct err *e)
{
    for (int i = 0; i < step->n_rows; i++) {
        const struct step_row *row = &step->rows[i];
        struct run_seq *s = r->seqs[plan->piece[row->piece].seq];
        int64_t at = step->pieces[row->piece].pos + row->index;
        enum err_code rc = ERR_OK;
        if (s->score_from < 0) {
            rc = take_token(r, s, row, e);
        } else if (r->o.events.on_row) {
            struct row_info info;
            describe_row(r, s, row, s->ids[at + 1], at + 1, &info);
            r->o.events.on_row(r->o.user, s->user, &info);
        }
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* Moves every request of the step on; pages that are full now become known, the answer's too: the
 * next turn of a conversation begins with them. */
static void advance(struct runner *r, const struct sched_plan *plan)
{
    for (int i = 0; i < plan->n_pieces; i++) {
        struct run_seq *s = r->seqs[plan->piece[i].seq];
        int64_t before = s->n_done;
        s->n_done += plan->piece[i].n;
        int64_t prompt = MIN2(s->n_done, s->n_prompt);
        r->stats.prompt_tokens += (uint64_t)MAX2(prompt - before, 0);
        kv_commit(r->kv, &s->kv, s->ids, s->n_done);
        if (s->score_from >= 0 && s->n_done == s->n_tok)
            s->why = FINISH_LENGTH;
    }
}

static enum err_code finish_seq(struct runner *r, struct run_seq *s, struct err *e)
{
    size_t len = 0;
    const char *text = "";
    enum err_code rc = run_seq_end_text(s, r->tok, &text, &len, e);
    if (rc == ERR_OK && r->o.events.on_done)
        r->o.events.on_done(r->o.user, s->user, s->why, text, len);
    kv_release(r->kv, &s->kv);
    return rc;
}

/* Takes the finished ones out. Callbacks may submit: they append behind n_before. */
static enum err_code sweep_done(struct runner *r, struct err *e)
{
    enum err_code rc = ERR_OK;
    int n_before = r->n_seqs, kept = 0;
    for (int i = 0; i < n_before; i++) {
        struct run_seq *s = r->seqs[i];
        if (s->why != FINISH_NONE && rc == ERR_OK) {
            rc = finish_seq(r, s, e);
            run_seq_free(s);
        } else {
            r->seqs[kept++] = s;
        }
    }
    for (int i = n_before; i < r->n_seqs; i++)
        r->seqs[kept++] = r->seqs[i];
    r->n_seqs = kept;
    return rc;
}

static void trace_rows(const struct runner *r, const struct sched_plan *plan,
                       const struct step *step)
{
    int t = 0, out = 0;
    for (int i = 0; i < plan->n_pieces; i++) {
        struct run_seq *s = r->seqs[plan->piece[i].seq];
        const struct step_piece *p = &step->pieces[i];
        for (int j = 0; j < p->n; j++, t++) {
            int row = j >= p->out_from ? out++ : -1;
            if (p->pos + j < s->n_traced)
                continue; /* said before this request was put back */
            run_trace_emit(&r->trace, t, row, &r->o, s->user, p->pos + j);
            s->n_traced = p->pos + j + 1;
        }
    }
}

enum err_code runner_step(struct runner *r, bool *busy, struct err *e)
{
    enum err_code rc = sweep_done(r, e); /* requests that ask for nothing */
    *busy = r->n_seqs > 0;
    if (rc != ERR_OK || !*busy)
        return rc;
    struct sched_plan plan;
    rc = make_plan(r, &plan, e);
    if (rc != ERR_OK)
        return rc;
    admit_seqs(r, &plan);
    rc = give_pages(r, &plan, e);
    if (rc != ERR_OK)
        return rc;
    if (r->o.shuffle)
        shuffle_pieces(r, &plan);
    struct step step = {.pieces = r->pieces, .n_pieces = plan.n_pieces};
    step.want_logits = fill_pieces(r, &plan);
    if (r->o.events.on_layer) {
        run_trace_start(&r->trace);
        engine_set_tap(r->en, run_trace_tap, &r->trace);
    }
    rc = engine_step(r->en, &step, e);
    if (rc == ERR_OK && r->trace.failed)
        rc = err_set(e, ERR_NOMEM, "out of memory for the layers of a step");
    if (rc != ERR_OK)
        return rc;
    r->stats.steps++;
    if (r->o.events.on_layer)
        trace_rows(r, &plan, &step);
    advance(r, &plan);
    rc = take_rows(r, &plan, &step, e);
    if (rc == ERR_OK)
        rc = sweep_done(r, e);
    *busy = r->n_seqs > 0;
    return rc;
}
