/* compare.c: runs or reads every variant, pairs each with the reference, and concludes. */
#include "evals/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/log.h"
#include "evals/forced.h"
#include "evals/judge.h"

#define FLOOR_RECORDS 20 /* answers on which the noise floor is measured */
#define JUDGED_LINES  20 /* lines on which a side is held against itself */
#define JUDGED_BATCH  8  /* least requests of its steps then */
#define REPEATS       2  /* more runs of these lines */
#define WAYS_OF_PATHS 11 /* a base run, the repeats, and the ways of batch, chunk and expand */

/* The comparison with what its users do not see. */
struct whole {
    struct comparison c;
    struct lm *ref; /* kept open: the forced pass, texts of reports; NULL for a trace */
};

const char *compare_verdict_name(enum compare_verdict v)
{
    static const char *const names[] = {"same", "differ", "not comparable", "nondeterministic"};
    return names[v];
}

const char *pair_verdict_name(enum pair_verdict v)
{
    static const char *const names[] = {
        "same",           "quantization",    "path", "unknown", "other model",
        "not comparable", "nondeterministic"};
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
    static const char *const tails[] = {".jsonl", ".jsonl.gz", ".trace", ".trace.gz"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++)
        if (str_ends(path, tails[i]))
            return !io_is_dir(path);
    return false;
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
    strbuf_printf(&path, "%s/trace-%s.trace.gz", o->trace_dir, v->name);
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
        o->on_phase(o->ctx, "run", v->name, "answers", c->census.n_requests);
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

/* One figure of each answer, as a ratio of sums by cluster. */
enum answer_figure { ANSWER_EXACT, ANSWER_COMMON, ANSWER_EDITS, ANSWER_LENGTH, ANSWER_COHERENT };

static enum err_code sum_answer(const struct whole *w, const struct pair *p, enum answer_figure f,
                                struct stats_interval *out, struct err *e)
{
    struct stats_cluster *sums = calloc(w->c.n_clusters + 1, sizeof *sums);
    if (!sums)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n_records; i++) {
        const struct pair_answer *a = &p->answers[i];
        const double ref = (double)p->ref->trace->records[i].n;
        const double var = (double)p->var->trace->records[i].n;
        const struct {
            double value, weight;
        } by[] = {[ANSWER_EXACT] = {p->partings[i].same_ids, 1},
                  [ANSWER_COMMON] = {(double)p->partings[i].common, ref},
                  [ANSWER_EDITS] = {a->edits < 0 ? 0 : (double)a->edits, a->edits < 0 ? 0 : ref},
                  [ANSWER_LENGTH] = {var, ref},
                  [ANSWER_COHERENT] = {(double)a->var.coherent, var}};
        sums[w->c.cluster[i]].sum += by[f].value;
        sums[w->c.cluster[i]].weight += by[f].weight;
    }
    enum err_code rc = stats_bootstrap(sums, w->c.n_clusters, 0.95, 1000, 20240229u, out, e);
    free(sums);
    return rc;
}

static enum err_code sum_answers(const struct whole *w, struct pair *p, struct err *e)
{
    struct stats_interval *const out[] = {[ANSWER_EXACT] = &p->exact,
                                          [ANSWER_COMMON] = &p->common,
                                          [ANSWER_EDITS] = &p->edits,
                                          [ANSWER_LENGTH] = &p->length,
                                          [ANSWER_COHERENT] = &p->coherent};
    for (size_t i = 0; i < ARRAY_LEN(out); i++) {
        if (i == ANSWER_COHERENT && !p->has_census) {
            *out[i] = (struct stats_interval){NAN, NAN, NAN};
            continue;
        }
        enum err_code rc = sum_answer(w, p, (enum answer_figure)i, out[i], e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* The scripts of a record's prompt and answer. */
static enum err_code scripts_of(const struct script_census *s, const struct tokenizer *t,
                                const struct trace_record *r, script_census_set *out, struct err *e)
{
    struct strbuf b = {0};
    size_t garbled;
    enum err_code rc = tokenizer_decode(t, r->prompt_ids, (size_t)r->n_prompt, true, &b, e);
    if (rc == ERR_OK)
        rc = strbuf_ok(&b, e);
    if (rc == ERR_OK) {
        *out = b.len ? script_census_text(s, b.data, b.len, &garbled) : 0;
        *out |= script_census_text(s, r->text, r->text_len, &garbled);
    }
    strbuf_free(&b);
    return rc;
}

/* Length, edits, scripts and loops of every answer. Both sides are held to the prompt's and the
 * reference's scripts. Without a model at hand there is no text of tokens: lengths and edits only.
 */
static enum err_code describe_answers(struct whole *w, struct pair *p, struct err *e)
{
    const struct tokenizer *t = compare_tokenizer(&w->c);
    struct script_census *s = NULL;
    p->answers = calloc(p->n_records + 1, sizeof *p->answers);
    enum err_code rc = p->answers ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && t)
        rc = script_census_new(&s, e);
    p->has_census = t != NULL;
    for (size_t i = 0; i < p->n_records && rc == ERR_OK; i++) {
        const struct trace_record *x = &p->ref->trace->records[i], *y = &p->var->trace->records[i];
        struct pair_answer *a = &p->answers[i];
        script_census_set allowed = 0;
        rc = measure_edits(x, y, &a->edits, e);
        if (rc == ERR_OK && t)
            rc = scripts_of(s, t, x, &allowed, e);
        if (rc == ERR_OK && t)
            rc = script_census_answer(s, t, x, allowed, &a->ref, e);
        if (rc == ERR_OK && t)
            rc = script_census_answer(s, t, y, allowed, &a->var, e);
    }
    script_census_free(s);
    return rc == ERR_OK ? sum_answers(w, p, e) : rc;
}

static enum err_code force(struct whole *w, struct pair *p, struct lm *var,
                           const struct compare_options *o, struct err *e)
{
    struct forced_options f = {.max_per_record = o->forced_max,
                               .interrupted = o->interrupted,
                               .on_progress = o->on_progress,
                               .ctx = o->ctx};
    if (o->on_phase)
        o->on_phase(o->ctx, "force", p->var->name, "answers", p->n_records);
    enum err_code rc =
        forced_run(w->ref, var, p->ref->trace, &f, &p->positions, &p->n_positions, e);
    if (rc != ERR_OK)
        return rc;
    p->forced = true;
    if (o->forced_prompts) {
        struct position *of_prompts = NULL;
        size_t n = 0;
        f.prompts = true;
        rc = forced_run(w->ref, var, p->ref->trace, &f, &of_prompts, &n, e);
        if (rc == ERR_OK)
            rc = figures_by_role(of_prompts, n, w->c.cluster, w->c.n_clusters, p->by_role, e);
        free(of_prompts);
        if (rc != ERR_OK)
            return rc;
        p->has_roles = true;
    }
    return figures_sum(p->positions, p->n_positions, w->c.cluster, w->c.n_clusters, w->c.decided,
                       &p->f, e);
}

/* ---- the reference itself -----------------------------------------------------------------------
 */

/* Records of one line of the prompt file, all its turns, are one cluster. */
static enum err_code cluster_records(struct comparison *c, struct err *e)
{
    const struct trace *t = c->variants[0].trace;
    c->cluster = calloc(t->n + 1, sizeof *c->cluster);
    if (!c->cluster)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < t->n; i++) {
        bool first = t->records[i].turn == 0 || i == 0 ||
                     strcmp(t->records[i].custom_id, t->records[i - 1].custom_id) != 0;
        c->n_clusters += first;
        c->cluster[i] = (int32_t)c->n_clusters - 1;
    }
    return ERR_OK;
}

/* The noise floor: the reference against itself in the other arithmetic, along its own answers.
 * Repeats, batches and chunks have the same bits (compare --self shows it), and add nothing. */
static enum err_code measure_floor(struct whole *w, const struct compare_options *o, struct err *e)
{
    struct comparison *c = &w->c;
    struct engine_options other = o->engine;
    struct trace few = *c->variants[0].trace;
    struct forced_options f = {.max_per_record = o->forced_max,
                               .interrupted = o->interrupted,
                               .on_progress = o->on_progress,
                               .ctx = o->ctx};
    struct position *positions = NULL;
    struct lm *m;
    size_t n = 0;
    bool was_f32 = kern_arith(engine_kern(w->ref->engine)) == KERN_F32;
    few.n = MIN2(few.n, (size_t)FLOOR_RECORDS);
    other.kern.device = "cpu"; /* both arithmetics run there */
    other.kern.arith = was_f32 ? KERN_MMA90 : KERN_F32;
    if (o->on_phase)
        o->on_phase(o->ctx, "noise floor", c->variants[0].name, "answers", few.n);
    enum err_code rc = lm_open(&m, c->variants[0].path, &other, NULL, NULL, e);
    if (rc != ERR_OK)
        return rc;
    rc = forced_run(w->ref, m, &few, &f, &positions, &n, e);
    if (rc == ERR_OK)
        rc = figures_margin_floor(positions, n, &c->decided, e);
    if (rc == ERR_OK)
        rc = figures_sum(positions, n, c->cluster, (size_t)c->cluster[few.n ? few.n - 1 : 0] + 1,
                         c->decided, &c->floor, e);
    c->has_floor = rc == ERR_OK;
    snprintf(c->floor_path, sizeof c->floor_path, "%s", kern_arith_name(other.kern.arith));
    free(positions);
    lm_close(m);
    return rc;
}

/* All figures of a pair. m: the variant's model, NULL for a trace. */
static enum err_code hold_pair(struct whole *w, struct pair *p, struct lm *m,
                               const struct compare_options *o, struct err *e)
{
    enum err_code rc = part(p, e);
    if (rc == ERR_OK)
        rc = describe_answers(w, p, e);
    if (rc != ERR_OK || !m || !w->ref)
        return rc;
    rc = weights_compare(w->ref->ckpt, m->ckpt, kern_threads(engine_kern(m->engine)), &p->weights,
                         &p->n_weights, e);
    p->whole_weights =
        p->n_weights == w->ref->ckpt->n_weights && p->n_weights == m->ckpt->n_weights;
    bool alike = engine_hparams(m->engine)->n_vocab == engine_hparams(w->ref->engine)->n_vocab;
    return rc == ERR_OK && alike && !o->no_forced ? force(w, p, m, o, e) : rc;
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
    if (o->before)
        o->before(o->ctx, at);
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
    if (o->before)
        o->before(o->ctx, 0);
    if (rc == ERR_OK && m && w->ref)
        judge_fields(w->ref->ckpt, m->ckpt, p->not_comparable, sizeof p->not_comparable);
    if (rc == ERR_OK && !p->not_comparable[0])
        judge_traces(p->ref->trace, v->trace, p->not_comparable, sizeof p->not_comparable);
    p->forced_compare = p->not_comparable[0] && o->force_compare && p->ref->trace->n == v->trace->n;
    if (rc == ERR_OK && (!p->not_comparable[0] || p->forced_compare))
        rc = hold_pair(w, p, m, o, e);
    lm_close(m);
    return rc;
}

static enum err_code take_reference(struct whole *w, const struct compare_options *o, struct err *e)
{
    struct variant *v = &w->c.variants[0];
    if (v->is_trace) {
        v->bits_per_weight = NAN;
        enum err_code rc = trace_read(&v->trace, v->path, e);
        return rc == ERR_OK ? cluster_records(&w->c, e) : rc;
    }
    enum err_code rc = lm_open(&w->ref, v->path, &o->engine, o->on_plan, o->ctx, e);
    if (rc != ERR_OK)
        return rc;
    snprintf(w->c.arith, sizeof w->c.arith, "%s",
             kern_arith_name(kern_arith(engine_kern(w->ref->engine))));
    snprintf(w->c.device, sizeof w->c.device, "%s", kern_device(engine_kern(w->ref->engine)));
    rc = run_variant(&w->c, v, w->ref, o, e);
    if (rc == ERR_OK)
        rc = cluster_records(&w->c, e);
    if (rc == ERR_OK && !o->no_forced && !o->no_floor && w->c.variants[0].trace->n)
        rc = measure_floor(w, o, e);
    return rc;
}

/* ---- the verdict --------------------------------------------------------------------------------
 */

struct ways {
    const struct compare_options *o;
    uint64_t n; /* begun */
};

static void on_way(void *ctx, const char *cell, const char *way)
{
    struct ways *w = ctx;
    (void)cell, (void)way;
    if (w->o->on_progress)
        w->o->on_progress(w->o->ctx, w->n);
    w->n++;
}

/* A side against itself: repeats always, its paths where a pair of it differs. */
static enum err_code check_side(struct comparison *c, size_t at, bool paths,
                                const struct compare_options *o, struct err *e)
{
    struct variant *v = &c->variants[at];
    struct ways ways = {o, 0};
    struct self_options s = {.path = v->path,
                             .prompts = o->prompts,
                             .max_lines = JUDGED_LINES,
                             .engine = o->engine,
                             .defaults = o->defaults,
                             .special = o->special,
                             .repeats = REPEATS,
                             .cells = !paths      ? "repeat"
                                      : o->oracle ? "repeat,batch,chunk,graph,expand,oracle"
                                                  : "repeat,batch,chunk,graph,expand",
                             .interrupted = o->interrupted,
                             .on_cell = on_way,
                             .ctx = &ways};
    /* The cells need a batch, whatever the runs had. */
    s.engine.batch_seqs = MAX2(s.engine.batch_seqs, JUDGED_BATCH);
    if (o->on_phase)
        o->on_phase(o->ctx, paths ? "repeats and paths" : "repeats", v->name, "ways",
                    paths ? WAYS_OF_PATHS : REPEATS + 1);
    if (o->before)
        o->before(o->ctx, at);
    enum err_code rc = self_run(&v->checks, &s, e);
    v->checked = rc == ERR_OK;
    if (o->before)
        o->before(o->ctx, 0);
    return err_wrap(e, rc, "%s against itself", v->name);
}

static enum err_code check_sides(struct comparison *c, const struct compare_options *o,
                                 struct err *e)
{
    enum err_code rc = ERR_OK;
    bool any = false;
    for (size_t i = 0; i + 1 < c->n_variants; i++)
        any |= !c->pairs[i].same_ids && !c->pairs[i].not_comparable[0];
    for (size_t i = 0; i < c->n_variants && rc == ERR_OK; i++) {
        const struct pair *p = i ? &c->pairs[i - 1] : NULL;
        bool paths = p ? !p->same_ids && !p->not_comparable[0] : any;
        if (!c->variants[i].is_trace)
            rc = check_side(c, i, paths, o, e);
    }
    return rc;
}

/* True when a gate of the pair failed; the first one's words are kept. */
static bool fails_gates(struct comparison *c, struct pair *p, const struct compare_gates *g)
{
    const struct compare_bounds b = compare_gates_for(g, p->var->name);
    if (!compare_gates_hold(&b, p))
        return false;
    for (int i = 0; i < p->n_gates && !c->gate[0]; i++)
        if (!p->gates[i].passed)
            compare_gates_words(p, &p->gates[i], c->gate, sizeof c->gate);
    return true;
}

static void conclude(struct comparison *c, const struct compare_options *o)
{
    c->has_gates = o->gates && compare_gates_any(o->gates);
    c->verdict = COMPARE_SAME;
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        struct pair *p = &c->pairs[i];
        enum compare_verdict v = COMPARE_SAME;
        judge_pair(c, p);
        bool fails = p->verdict != VERDICT_NOT_COMPARABLE && c->has_gates
                         ? fails_gates(c, p, o->gates)
                         : !p->same_ids || (c->exact && !p->same_bits);
        if (p->verdict == VERDICT_NONDETERMINISTIC)
            v = COMPARE_NONDETERMINISTIC;
        else if (p->verdict == VERDICT_NOT_COMPARABLE)
            v = COMPARE_NOT_COMPARABLE;
        else if (fails)
            v = COMPARE_DIFFER;
        c->verdict = MAX2(c->verdict, v);
    }
}

/* Where flips enter, of every pair whose weights are to blame. */
static enum err_code explain(struct whole *w, const struct compare_options *o, struct err *e)
{
    struct comparison *c = &w->c;
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i + 1 < c->n_variants && rc == ERR_OK && o->where && w->ref; i++) {
        struct pair *p = &c->pairs[i];
        if (p->verdict != VERDICT_QUANTIZATION || !p->forced)
            continue;
        if (o->on_phase)
            o->on_phase(o->ctx, "where it enters", p->var->name, "runs", 0);
        if (o->before)
            o->before(o->ctx, i + 1);
        rc = where_run(&p->where, c, p, w->ref, o, o->where > 0 ? (size_t)o->where : 1,
                       o->where > 0, e);
        if (o->before)
            o->before(o->ctx, 0);
    }
    return rc;
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
    c->decided = COMPARE_DECIDED;
    c->with_speed = o->with_speed;
    c->how = strdup(o->how ? o->how : "");
    c->how_self = strdup(o->how_self ? o->how_self : "");
    c->variants = calloc(o->n_paths, sizeof *c->variants);
    c->pairs = calloc(o->n_paths, sizeof *c->pairs);
    enum err_code rc = ERR_OK;
    bool models = false;
    if (!c->variants || !c->pairs || !c->how || !c->how_self) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
        goto out;
    }
    for (size_t i = 0; i < o->n_paths; i++) {
        c->variants[i].path = o->paths[i];
        c->variants[i].is_trace = looks_like_trace(o->paths[i]);
        models |= !c->variants[i].is_trace;
        name_variant(c, i);
    }
    rc = compare_gates_check(o->gates, c, e);
    if (rc == ERR_OK && models && !o->prompts)
        rc = err_set(e, ERR_USAGE, "--prompts F is missing: models need prompts, traces do not");
    if (rc == ERR_OK && models)
        rc = census_take(&c->census, o->prompts, e);
    if (rc == ERR_OK)
        rc = take_reference(w, o, e);
    for (size_t i = 1; i < o->n_paths && rc == ERR_OK; i++)
        rc = take_variant(w, i, o, e);
    if (rc == ERR_OK && models && !o->no_judge)
        rc = check_sides(c, o, e);
    if (rc == ERR_OK)
        conclude(c, o);
    if (rc == ERR_OK)
        rc = explain(w, o, e);
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
        free(c->pairs[i].answers);
        free(c->pairs[i].weights);
        where_free(c->pairs[i].where);
    }
    free(c->variants);
    free(c->pairs);
    free(c->cluster);
    free(c->how);
    free(c->how_self);
    lm_close(w->ref);
    free(w);
}
