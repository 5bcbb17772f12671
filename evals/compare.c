/* compare.c: runs or reads every variant, pairs each with the reference, and concludes. */
#include "evals/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/log.h"
#include "evals/forced.h"

#define ROUNDS 1000
#define SEED   20240229u

/* The comparison with what its users do not see. */
struct whole {
    struct comparison c;
    struct lm *ref; /* kept open: the forced pass, texts of reports; NULL for a trace */
};

const char *compare_verdict_name(enum compare_verdict v)
{
    static const char *const names[] = {"same", "differ", "not comparable"};
    return names[v];
}

const struct tokenizer *compare_tokenizer(const struct comparison *c)
{
    const struct whole *w = (const struct whole *)c;
    return w->ref ? w->ref->tok : NULL;
}

/* ---- variants ---------------------------------------------------------------------------------
 */

static void name_variant(struct comparison *c, size_t at)
{
    struct variant *v = &c->variants[at];
    char base[96];
    snprintf(base, sizeof base, "%s", io_base(v->path));
    size_t len = strlen(base);
    static const char *const tails[] = {".gz", ".jsonl", ".trace"};
    for (size_t i = 0; v->is_trace && i < ARRAY_LEN(tails); i++)
        if (str_ends(base, tails[i]))
            base[len = strlen(base) - strlen(tails[i])] = 0;
    snprintf(v->name, sizeof v->name, "%s", base);
    int copies = 1;
    for (size_t i = 0; i < at; i++)
        if (strcmp(c->variants[i].name, v->name) == 0) {
            snprintf(v->name, sizeof v->name, "%s#%d", base, ++copies);
            i = (size_t)-1; /* look again from the first */
        }
}

static bool looks_like_trace(const char *path)
{
    return !io_is_dir(path) && (str_ends(path, ".jsonl") || str_ends(path, ".jsonl.gz"));
}

static void weigh(struct variant *v, const struct checkpoint *c)
{
    double elems = 0;
    v->bytes = checkpoint_bytes(c);
    for (size_t i = 0; i < c->n_weights; i++)
        elems += (double)ckpt_weight_rows(&c->weights[i]) * (double)ckpt_weight_k(&c->weights[i]);
    v->bits_per_weight = elems > 0 ? (double)v->bytes * 8 / elems : NAN;
}

static void on_requests(void *ctx, uint64_t done, uint64_t tokens)
{
    const struct compare_options *o = ctx;
    (void)tokens;
    if (o->on_progress)
        o->on_progress(o->ctx, done);
}

/* Runs the prompts through an open model into a trace file and reads it back. */
static enum err_code run_variant(struct comparison *c, struct variant *v, struct lm *m,
                                 const struct compare_options *o, struct err *e)
{
    struct strbuf path = {0};
    strbuf_printf(&path, "%s/trace-%s.jsonl.gz", o->trace_dir, v->name);
    enum err_code rc = strbuf_ok(&path, e);
    if (rc != ERR_OK)
        return rc;
    struct batch_options b = {.prompts = o->prompts,
                              .defaults = o->defaults,
                              .special = o->special,
                              .trace = path.data,
                              .trace_level = TRACE_TOKENS,
                              .trace_top = 5,
                              .max_failures = -1,
                              .interrupted = o->interrupted,
                              .on_progress = on_requests,
                              .ctx = (void *)(uintptr_t)o};
    if (o->on_phase)
        o->on_phase(o->ctx, "run", v->name, c->census.n_requests);
    uint64_t start = clock_ns();
    rc = batch_run(m, &b, &c->census, &v->run, e);
    v->run_seconds = (double)(clock_ns() - start) * 1e-9;
    if (rc == ERR_PARTIAL)
        rc = err_set(e, ERR_INPUT, "%llu requests of %s failed: 'assay infer --batch' says why",
                     (unsigned long long)v->run.n_failed, o->prompts);
    if (rc == ERR_OK)
        rc = trace_read(&v->trace, path.data, e);
    strbuf_free(&path);
    weigh(v, m->ckpt);
    return rc;
}

/* ---- pairs ------------------------------------------------------------------------------------
 */

static bool differ(struct pair *p, const char *what, const char *a, const char *b)
{
    if (strcmp(a, b) == 0)
        return false;
    snprintf(p->not_comparable, sizeof p->not_comparable, "%s differs: %.16s... and %.16s...", what,
             a, b);
    return true;
}

/* Same questions? Prompts, tokenizer, template, and each record's own tokens. */
static bool comparable(struct pair *p)
{
    const struct trace *a = p->ref->trace, *b = p->var->trace;
    if (differ(p, "the tokenizer", a->head.tokenizer, b->head.tokenizer) ||
        differ(p, "the chat template", a->head.chat_template, b->head.chat_template) ||
        differ(p, "the prompt file", a->head.prompts, b->head.prompts))
        return false;
    if (a->n != b->n) {
        snprintf(p->not_comparable, sizeof p->not_comparable, "%zu answers and %zu", a->n, b->n);
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        const struct trace_record *x = &a->records[i], *y = &b->records[i];
        if (strcmp(x->custom_id, y->custom_id) != 0 || x->turn != y->turn) {
            snprintf(p->not_comparable, sizeof p->not_comparable,
                     "answer %zu is '%.64s' turn %d and '%.64s' turn %d", i + 1, x->custom_id,
                     x->turn, y->custom_id, y->turn);
            return false;
        }
        /* Later turns of a conversation hold each side's own answers. */
        if (x->turn == 0 && strcmp(x->prompt, y->prompt) != 0) {
            snprintf(p->not_comparable, sizeof p->not_comparable,
                     "the tokens of prompt '%.64s' differ", x->custom_id);
            return false;
        }
    }
    return true;
}

static enum err_code part(struct pair *p, struct err *e)
{
    const struct trace *a = p->ref->trace, *b = p->var->trace;
    p->n_records = a->n;
    p->partings = calloc(a->n + 1, sizeof *p->partings);
    if (!p->partings)
        return err_set(e, ERR_NOMEM, "out of memory");
    p->same_ids = p->same_bits = true;
    for (size_t i = 0; i < a->n; i++) {
        p->partings[i] = measure_parting(&a->records[i], &b->records[i]);
        p->same_ids &= p->partings[i].same_ids;
        p->same_bits &= p->partings[i].same_bits;
        p->n_same += p->partings[i].same_ids;
    }
    return ERR_OK;
}

/* What a position adds to a ratio of sums: its value and its weight (0: it does not count). */
typedef void (*position_value)(const struct position *p, double *value, double *weight);

static void value_kl(const struct position *p, double *value, double *weight)
{
    *value = p->kl;
    *weight = p->finite;
}

static void value_kl_rev(const struct position *p, double *value, double *weight)
{
    *value = p->kl_rev;
    *weight = p->finite;
}

static void value_agree(const struct position *p, double *value, double *weight)
{
    *value = p->ref_best == p->var_best;
    *weight = 1;
}

static void value_agree_decided(const struct position *p, double *value, double *weight)
{
    *weight = p->ref_margin >= COMPARE_DECIDED;
    *value = *weight > 0 && p->ref_best == p->var_best;
}

static void value_nll_diff(const struct position *p, double *value, double *weight)
{
    *value = p->finite ? p->var_nll - p->ref_nll : 0;
    *weight = p->finite;
}

/* Ratio over all positions with an interval clustered by record. */
static enum err_code interval(const struct pair *p, position_value f, struct stats_interval *out,
                              struct err *e)
{
    struct stats_cluster *c = calloc(p->n_records + 1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n_positions; i++) {
        double value, weight;
        f(&p->positions[i], &value, &weight);
        c[p->positions[i].record].sum += value;
        c[p->positions[i].record].weight += weight;
    }
    enum err_code rc = stats_bootstrap(c, p->n_records, 0.95, ROUNDS, SEED, out, e);
    free(c);
    return rc;
}

static enum err_code sum_up(struct pair *p, struct err *e)
{
    double *kl = calloc(p->n_positions + 1, sizeof *kl);
    if (!kl)
        return err_set(e, ERR_NOMEM, "out of memory");
    size_t n = 0;
    double ref = 0, var = 0;
    for (size_t i = 0; i < p->n_positions; i++) {
        const struct position *q = &p->positions[i];
        p->n_decided += q->ref_margin >= COMPARE_DECIDED;
        p->n_not_finite += !q->finite;
        if (!q->finite)
            continue;
        kl[n++] = q->kl;
        ref += q->ref_nll;
        var += q->var_nll;
    }
    stats_sort(kl, n);
    p->kl_median = stats_quantile(kl, n, 0.5);
    p->kl_p99 = stats_quantile(kl, n, 0.99);
    p->kl_max = n ? kl[n - 1] : NAN;
    p->ref_ppl = n ? exp(ref / (double)n) : NAN;
    p->var_ppl = n ? exp(var / (double)n) : NAN;
    free(kl);
    enum err_code rc = interval(p, value_kl, &p->kl, e);
    if (rc == ERR_OK)
        rc = interval(p, value_kl_rev, &p->kl_rev, e);
    if (rc == ERR_OK)
        rc = interval(p, value_agree, &p->agreement, e);
    if (rc == ERR_OK)
        rc = interval(p, value_agree_decided, &p->agreement_decided, e);
    if (rc == ERR_OK)
        rc = interval(p, value_nll_diff, &p->ppl_log_ratio, e);
    return rc;
}

static enum err_code force(struct whole *w, struct pair *p, struct lm *var,
                           const struct compare_options *o, struct err *e)
{
    struct forced_options f = {.max_per_record = o->forced_max,
                               .interrupted = o->interrupted,
                               .on_progress = o->on_progress,
                               .ctx = o->ctx};
    if (o->on_phase)
        o->on_phase(o->ctx, "force", p->var->name, p->n_records);
    enum err_code rc =
        forced_run(w->ref, var, p->ref->trace, &f, &p->positions, &p->n_positions, e);
    if (rc != ERR_OK)
        return rc;
    p->forced = true;
    return sum_up(p, e);
}

/* One variant after the reference: run or read it, then compare. */
static enum err_code take_variant(struct whole *w, size_t at, const struct compare_options *o,
                                  struct err *e)
{
    struct comparison *c = &w->c;
    struct variant *v = &c->variants[at];
    struct pair *p = &c->pairs[at - 1];
    struct lm *m = NULL;
    enum err_code rc;
    if (v->is_trace) {
        v->bits_per_weight = NAN;
        rc = trace_read(&v->trace, v->path, e);
    } else {
        rc = lm_open(&m, v->path, &o->engine, o->on_plan, o->ctx, e);
        if (rc == ERR_OK)
            rc = run_variant(c, v, m, o, e);
    }
    p->ref = &c->variants[0];
    p->var = v;
    if (rc == ERR_OK && comparable(p)) {
        rc = part(p, e);
        if (rc == ERR_OK && m && w->ref && !o->no_forced)
            rc = force(w, p, m, o, e);
    }
    lm_close(m);
    return rc;
}

static enum err_code take_reference(struct whole *w, const struct compare_options *o, struct err *e)
{
    struct variant *v = &w->c.variants[0];
    if (v->is_trace) {
        v->bits_per_weight = NAN;
        return trace_read(&v->trace, v->path, e);
    }
    enum err_code rc = lm_open(&w->ref, v->path, &o->engine, o->on_plan, o->ctx, e);
    if (rc != ERR_OK)
        return rc;
    snprintf(w->c.arith, sizeof w->c.arith, "%s",
             kern_arith_name(kern_arith(engine_kern(w->ref->engine))));
    snprintf(w->c.device, sizeof w->c.device, "%s", kern_device(engine_kern(w->ref->engine)));
    return run_variant(&w->c, v, w->ref, o, e);
}

static void conclude(struct comparison *c)
{
    c->verdict = COMPARE_SAME;
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        const struct pair *p = &c->pairs[i];
        if (p->not_comparable[0]) {
            c->verdict = COMPARE_NOT_COMPARABLE;
            return;
        }
        if (!p->same_ids || (c->exact && !p->same_bits))
            c->verdict = COMPARE_DIFFER;
    }
}

enum err_code compare_run(struct comparison **out, const struct compare_options *o, struct err *e)
{
    struct whole *w = calloc(1, sizeof *w);
    struct comparison *c = w ? &w->c : NULL;
    *out = NULL;
    if (!w)
        return err_set(e, ERR_NOMEM, "out of memory");
    c->n_variants = o->n_paths;
    c->exact = o->exact;
    c->variants = calloc(o->n_paths, sizeof *c->variants);
    c->pairs = calloc(o->n_paths, sizeof *c->pairs);
    enum err_code rc = ERR_OK;
    bool models = false;
    if (!c->variants || !c->pairs) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < o->n_paths; i++) {
        c->variants[i].path = o->paths[i];
        c->variants[i].is_trace = looks_like_trace(o->paths[i]);
        models |= !c->variants[i].is_trace;
        name_variant(c, i);
    }
    if (models && !o->prompts)
        rc = err_set(e, ERR_USAGE, "--prompts F is missing: models need prompts, traces do not");
    if (rc == ERR_OK && models)
        rc = census_take(&c->census, o->prompts, e);
    if (rc == ERR_OK)
        rc = take_reference(w, o, e);
    for (size_t i = 1; i < o->n_paths && rc == ERR_OK; i++)
        rc = take_variant(w, i, o, e);
    if (rc == ERR_OK)
        conclude(c);
out:
    if (rc != ERR_OK)
        compare_free(c);
    else
        *out = c;
    return rc;
}

void compare_free(struct comparison *c)
{
    if (!c)
        return;
    struct whole *w = (struct whole *)c;
    census_free(&c->census);
    for (size_t i = 0; c->variants && i < c->n_variants; i++)
        trace_free(c->variants[i].trace);
    for (size_t i = 0; c->pairs && i + 1 < c->n_variants; i++) {
        free(c->pairs[i].partings);
        free(c->pairs[i].positions);
    }
    free(c->variants);
    free(c->pairs);
    lm_close(w->ref);
    free(w);
}
