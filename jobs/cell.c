/* cell.c: the children of one cell, in the order of the gates.
 *
 * All files of a cell lie in work/<index>/. What a baseline or the history needs of them is kept as
 * an object before the cell ends. A gate that its children did not come to stays SKIPPED, so that
 * nothing that was not judged looks judged.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/io.h"
#include "jobs/cell_private.h"
#include "jobs/gates.h"

#define PAST_RUNS   10 /* of which the noise of the speed gate is learnt */
#define PAST_ROUNDS 200

void cell_broken(struct cell_result *r, enum verdict v, enum err_code code, const char *fmt, ...)
{
    if (r->verdict != VERDICT_PASS)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->words, sizeof r->words, fmt, ap);
    va_end(ap);
    r->verdict = v;
    r->error = code;
}

bool cell_child(const struct sweep_run *run, const struct child_args *argv, const char *out,
                const char *log, const char *allowed, struct cell_result *r, int *code,
                enum err_code *rc, struct err *e)
{
    struct child_result c;
    struct strbuf words = {0};
    *rc = child_run(argv, out, log, &run->limits, run->interrupted, &c, e);
    if (*rc != ERR_OK)
        return false;
    *code = c.code;
    if (c.end == CHILD_EXITED && c.code < 10 && strchr(allowed, '0' + c.code))
        return true;
    child_ending(&c, &run->limits, &words);
    enum err_code why = child_error(&c);
    cell_broken(r, why == ERR_DETERMINISM ? VERDICT_NONDETERMINISTIC : VERDICT_BROKEN, why,
                "%s: %.380s", argv->n > 1 ? argv->items[1] : "", words.data ? words.data : "");
    strbuf_free(&words);
    return false;
}

static bool broken(const struct work *w)
{
    return w->r->verdict != VERDICT_PASS; /* until the end, where the gates conclude */
}

/* The gate's children failed: it is broken, what comes after it is not reached. */
static void gate_broken(struct work *w, enum gate g)
{
    struct judgement *j = &w->r->gate[g];
    j->verdict = VERDICT_BROKEN;
    snprintf(j->words, sizeof j->words, "%.390s", w->r->words);
}

static struct judgement *fresh(struct work *w, enum gate g)
{
    w->r->gate[g] = (struct judgement){.asked = true};
    return &w->r->gate[g];
}

/* ---- repeat and invariance ---------------------------------------------------------------------
 */

static void take_speed(struct work *w, const struct shot *shots, size_t n)
{
    double tps[1000];
    n = MIN2(n, ARRAY_LEN(tps));
    for (size_t i = 0; i < n; i++)
        tps[i] = shots[i].seconds > 0 ? shots[i].tokens / shots[i].seconds : (double)NAN;
    stats_sort(tps, n);
    w->r->now.tokens_per_second = stats_quantile(tps, n, 0.5);
    w->r->now.tps_lo = tps[0];
    w->r->now.tps_hi = tps[n - 1];
}

static enum err_code keep(struct work *w, const char *file, const char *ending,
                          char sha256[SHA256_HEX])
{
    return file ? sweep_dir_keep(w->run->dir, file, ending, sha256, w->e) : work_nomem(w);
}

static enum err_code judge_repeat(struct work *w, struct shot *first)
{
    size_t n = (size_t)w->run->file->gates.repeat_runs;
    struct shot *shots = calloc(n, sizeof *shots);
    struct hash_run *hashes = calloc(n, sizeof *hashes);
    const struct path plain = {0};
    enum err_code rc = shots && hashes ? ERR_OK : work_nomem(w);
    for (size_t i = 0; rc == ERR_OK && !broken(w) && i < n; i++) {
        char label[32];
        snprintf(label, sizeof label, "run %zu", i + 1);
        rc = shot_run(w, w->run->program, &plain, label, &shots[i]);
        hashes[i] = shots[i].hash;
    }
    if (rc == ERR_OK && broken(w)) {
        gate_broken(w, GATE_REPEAT);
    } else if (rc == ERR_OK) {
        struct child_args a = {.n = 0};
        char *trace = work_file(w, "run 1", ".trace.jsonl.gz");
        gate_repeat(hashes, n, fresh(w, GATE_REPEAT));
        shot_args(w, w->run->program, &plain, "again.jsonl", "again.trace.jsonl.gz", &a);
        child_arg(&a, "--trace-level=layers");
        work_more(&w->r->gate[GATE_REPEAT], &a);
        child_args_free(&a);
        take_speed(w, shots, n);
        *first = shots[0];
        rc = keep(w, trace, ".jsonl.gz", w->r->now.trace);
        free(trace);
    }
    free(shots);
    free(hashes);
    return rc;
}

static enum err_code judge_invariance(struct work *w, const struct shot *first)
{
    const struct sweep_gates *g = &w->run->file->gates;
    struct hash_run hashes[2 * SWEEP_PATHS_MAX];
    struct path last = {0};
    struct shot s;
    size_t n = 0;
    enum err_code rc = ERR_OK;
    for (unsigned i = 0; rc == ERR_OK && !broken(w) && i < g->n_max_batch + g->n_chunk; i++) {
        char label[32];
        bool batch = i < g->n_max_batch;
        const struct path p = {.max_batch = batch ? g->max_batch[i] : 0,
                               .chunk = batch ? 0 : g->chunk[i - g->n_max_batch]};
        snprintf(label, sizeof label, "%s %d", batch ? "max-batch" : "chunk",
                 batch ? p.max_batch : p.chunk);
        rc = shot_run(w, w->run->program, &p, label, &s);
        hashes[n++] = s.hash;
        if (n == 1 || strcmp(s.hash.hash, first->hash.hash) != 0)
            last = p;
    }
    if (rc == ERR_OK && broken(w)) {
        gate_broken(w, GATE_INVARIANCE);
    } else if (rc == ERR_OK) {
        struct child_args a = {.n = 0};
        gate_invariance(&first->hash, hashes, n, fresh(w, GATE_INVARIANCE));
        shot_args(w, w->run->program, &last, "other.jsonl", "other.trace.jsonl.gz", &a);
        child_arg(&a, "--trace-level=layers");
        work_more(&w->r->gate[GATE_INVARIANCE], &a);
        child_args_free(&a);
    }
    return rc;
}

/* ---- against the baseline ----------------------------------------------------------------------
 */

static void set_verdict(struct judgement *j, enum verdict v, const char *words)
{
    j->asked = true;
    j->verdict = v;
    snprintf(j->words, sizeof j->words, "%s", words);
}

/* An object that a baseline refers to, as a path on the heap; NULL: it is not there (the cell is
 * broken) or memory is out (*rc). */
static char *base_object(struct work *w, const char *sha256, const char *ending, const char *what,
                         enum err_code *rc)
{
    char *path = sweep_dir_object(w->run->dir, sha256, ending);
    *rc = path ? ERR_OK : work_nomem(w);
    if (path && !io_exists(path)) {
        cell_broken(w->r, VERDICT_BROKEN, ERR_INPUT, "%s: the accepted %s is not there any more",
                    path, what);
        free(path);
        path = NULL;
    }
    return path;
}

static enum err_code compare_traces(struct work *w, const char *old, struct judgement *j)
{
    struct child_args a = {.n = 0};
    char *trace = work_file(w, "run 1", ".trace.jsonl.gz"), *out = work_file(w, "tokens", "");
    char *log = work_file(w, "tokens", ".log");
    char *report = out ? io_join(out, "report.json") : NULL;
    enum err_code rc = trace && out && log && report ? ERR_OK : work_nomem(w);
    int code = 0;
    if (rc == ERR_OK) {
        child_arg(&a, "%s", w->run->program);
        child_arg(&a, "compare");
        child_arg(&a, "%s", old);
        child_arg(&a, "%s", trace);
        child_arg(&a, "--exact");
        child_arg(&a, "--no-forced");
        child_arg(&a, "-o");
        child_arg(&a, "%s", out);
        bool ran = cell_child(w->run, &a, NULL, log, "013", w->r, &code, &rc, w->e);
        struct tokens_diff d;
        struct err why = {.text = ""};
        if (ran && code == 3) {
            set_verdict(j, VERDICT_NOT_COMPARABLE, "compare says NOT COMPARABLE: see its log");
        } else if (ran) {
            enum err_code bad = tokens_diff_read(&d, report, &why);
            if (bad == ERR_OK)
                gate_tokens(&d, w->run->file->gates.tokens_ids_only, j);
            else
                cell_broken(w->r, VERDICT_BROKEN, bad, "compare: %.380s", why.text);
        }
        work_more(j, &a);
    }
    free(trace);
    free(out);
    free(log);
    free(report);
    child_args_free(&a);
    return rc;
}

static enum err_code judge_tokens(struct work *w)
{
    struct judgement *j = fresh(w, GATE_TOKENS);
    enum err_code rc = ERR_OK;
    const struct tokens_diff equal = {.same_bits = true, .same_ids = true};
    if (!w->base) {
        gate_tokens(NULL, false, j);
    } else if (strcmp(w->base->definition, w->cell->definition) != 0) {
        set_verdict(j, VERDICT_NOT_COMPARABLE,
                    "the prompts or settings are not those of the baseline");
    } else if (strcmp(w->base->trace, w->r->now.trace) == 0) {
        gate_tokens(&equal, false, j);
    } else {
        char *old = base_object(w, w->base->trace, ".jsonl.gz", "trace", &rc);
        if (old)
            rc = compare_traces(w, old, j);
        free(old);
    }
    if (broken(w))
        gate_broken(w, GATE_TOKENS);
    return rc;
}

/* ---- quality -----------------------------------------------------------------------------------
 */

/* compare SOURCE VARIANT: fills now.quality and keeps the report. */
static enum err_code measure_quality(struct work *w, struct judgement *j)
{
    struct child_args a = {.n = 0};
    const struct path plain = {0};
    char *out = work_file(w, "quality", ""), *log = work_file(w, "quality", ".log");
    char *report = out ? io_join(out, "report.json") : NULL;
    enum err_code rc = out && log && report ? ERR_OK : work_nomem(w);
    int code;
    if (rc == ERR_OK) {
        child_arg(&a, "%s", w->run->program);
        child_arg(&a, "compare");
        child_arg(&a, "%s", w->cell->model->path);
        child_arg(&a, "%s", w->model.path);
        child_arg(&a, "--prompts");
        child_arg(&a, "%s", w->cell->prompts->path);
        child_arg(&a, "-o");
        child_arg(&a, "%s", out);
        child_arg(&a, "--no-floor"); /* the gates ask for the figures alone */
        child_arg(&a, "--no-judge");
        work_settings(&a, w->cell->setting, &plain);
        if (cell_child(w->run, &a, NULL, log, "01", w->r, &code, &rc, w->e)) {
            struct err why = {.text = ""};
            enum err_code bad = quality_read(&w->r->now.quality, report, &why);
            if (bad != ERR_OK)
                cell_broken(w->r, VERDICT_BROKEN, bad, "compare: %.380s", why.text);
            else
                rc = keep(w, report, ".json", w->r->now.report);
        }
        work_more(j, &a);
    }
    free(out);
    free(log);
    free(report);
    child_args_free(&a);
    return rc;
}

static enum err_code judge_quality(struct work *w)
{
    struct judgement *j = fresh(w, GATE_QUALITY);
    struct quality old = {.n = 0};
    struct err why = {.text = ""};
    const struct store_cell *base = w->base;
    bool usable = base && base->report[0] && strcmp(base->definition, w->cell->definition) == 0;
    char more[sizeof j->more];
    enum err_code rc = measure_quality(w, j);
    memcpy(more, j->more, sizeof more);
    if (rc == ERR_OK && !broken(w) && usable) {
        char *path = base_object(w, base->report, ".json", "report", &rc);
        if (path) {
            enum err_code bad = quality_read(&old, path, &why);
            if (bad != ERR_OK) {
                cell_broken(w->r, VERDICT_BROKEN, bad, "baseline: %.380s", why.text);
                usable = false;
            }
        }
        free(path);
    }
    if (rc == ERR_OK && !broken(w)) {
        rc = gate_quality(&w->run->file->gates.quality, usable ? &old : NULL, &w->r->now.quality, j,
                          w->e);
        if (base && !usable && j->verdict == VERDICT_NO_BASELINE)
            set_verdict(j, VERDICT_NOT_COMPARABLE,
                        "the prompts or settings are not those of the baseline");
    }
    memcpy(j->more, more, sizeof more);
    quality_free(&old);
    if (broken(w))
        gate_broken(w, GATE_QUALITY);
    return rc;
}

/* ---- speed -------------------------------------------------------------------------------------
 */

static enum err_code run_rounds(struct work *w, const char *accepted, const struct shot *first)
{
    size_t n = (size_t)w->run->file->gates.speed_rounds;
    const struct path plain = {0};
    enum err_code rc = ERR_OK;
    struct evidence *ev = &w->r->now;
    ev->rounds = calloc(n, sizeof *ev->rounds);
    if (!ev->rounds)
        return work_nomem(w);
    for (size_t i = 0; rc == ERR_OK && !broken(w) && i < n; i++) {
        struct shot arm[3];
        const char *const names[3] = {"base", "now", "again"};
        for (int k = 0; rc == ERR_OK && !broken(w) && k < 3; k++) {
            char label[32];
            snprintf(label, sizeof label, "round %zu %s", i + 1, names[k]);
            rc = shot_run(w, k == 1 ? w->run->program : accepted, &plain, label, &arm[k]);
        }
        if (rc != ERR_OK || broken(w))
            break;
        /* A run for time is a run: it has to give the cell's own output. */
        if (strcmp(arm[1].hash.hash, first->hash.hash) != 0) {
            const struct hash_run both[2] = {first->hash, arm[1].hash};
            gate_repeat(both, 2, fresh(w, GATE_REPEAT));
            break;
        }
        double
            cost[3]; /* seconds a token: the accepted program may have answered at other length */
        for (int k = 0; k < 3; k++)
            cost[k] = arm[k].seconds / arm[k].tokens;
        if (!(cost[0] > 0 && cost[1] > 0 && cost[2] > 0 && isfinite(cost[0] + cost[1] + cost[2]))) {
            cell_broken(w->r, VERDICT_BROKEN, ERR_INTERNAL, "infer: a run of no time or no token");
            break;
        }
        ev->rounds[ev->n_rounds++] = (struct speed_round){cost[0], cost[1], cost[2]};
    }
    return rc;
}

static enum err_code judge_rounds(struct work *w)
{
    const struct evidence *ev = &w->r->now;
    size_t n[PAST_RUNS + 1] = {ev->n_rounds}, n_runs = 1, n_rounds = ev->n_rounds;
    struct judgement *j = fresh(w, GATE_SPEED);
    struct speed_round *all = calloc(ev->n_rounds + PAST_ROUNDS, sizeof *all);
    if (!all)
        return work_nomem(w);
    memcpy(all, ev->rounds, ev->n_rounds * sizeof *all);
    enum err_code rc =
        store_past_rounds(w->run->store, w->r, w->run->machine, all, ev->n_rounds + PAST_ROUNDS,
                          &n_rounds, n, PAST_RUNS + 1, &n_runs, w->e);
    if (rc == ERR_OK)
        rc = gate_speed(all, n, n_runs, j, w->e);
    free(all);
    return rc;
}

static enum err_code judge_speed(struct work *w, const struct shot *first)
{
    struct judgement *j = fresh(w, GATE_SPEED);
    enum err_code rc = ERR_OK;
    if (!w->base) {
        set_verdict(j, VERDICT_NO_BASELINE, "nothing was accepted yet");
        return ERR_OK;
    }
    if (strcmp(w->base->definition, w->cell->definition) != 0) {
        set_verdict(j, VERDICT_NOT_COMPARABLE,
                    "the prompts or settings are not those of the baseline");
        return ERR_OK;
    }
    if (strcmp(w->base->program, w->run->program_sha256) == 0) {
        set_verdict(j, VERDICT_UNRESOLVED,
                    "this is the accepted program itself: there is nothing to compare");
        return ERR_OK;
    }
    set_verdict(j, VERDICT_SKIPPED, "not reached");
    char *accepted = base_object(w, w->base->program, ".bin", "program", &rc);
    if (accepted)
        rc = run_rounds(w, accepted, first);
    if (rc == ERR_OK && accepted && !broken(w) && w->r->gate[GATE_REPEAT].verdict == VERDICT_PASS)
        rc = judge_rounds(w);
    free(accepted);
    if (broken(w))
        gate_broken(w, GATE_SPEED);
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static void ask_gates(struct work *w)
{
    const struct sweep_gates *g = &w->run->file->gates;
    const bool asked[GATE_COUNT] = {
        [GATE_REPEAT] = true,
        [GATE_INVARIANCE] = g->invariance,
        [GATE_TOKENS] = g->tokens,
        [GATE_QUALITY] = g->quality.asked && w->cell->recipe->path,
        [GATE_SPEED] = g->speed_rounds > 0,
    };
    for (int i = 0; i < GATE_COUNT; i++)
        w->r->gate[i] = (struct judgement){
            .asked = asked[i], .verdict = VERDICT_SKIPPED, .words = "not reached"};
}

static enum err_code judge(struct work *w)
{
    struct shot first;
    enum err_code rc = judge_repeat(w, &first);
    /* What does not repeat itself cannot be held against anything. */
    if (rc != ERR_OK || broken(w) || w->r->gate[GATE_REPEAT].verdict != VERDICT_PASS)
        return rc;
    if (w->r->gate[GATE_INVARIANCE].asked)
        rc = judge_invariance(w, &first);
    if (rc == ERR_OK && !broken(w) && w->r->gate[GATE_TOKENS].asked)
        rc = judge_tokens(w);
    if (rc == ERR_OK && !broken(w) && w->r->gate[GATE_QUALITY].asked)
        rc = judge_quality(w);
    if (rc == ERR_OK && !broken(w) && w->r->gate[GATE_SPEED].asked)
        rc = judge_speed(w, &first);
    return rc;
}

enum err_code cell_run(const struct sweep_run *run, const struct grid_cell *cell, size_t index,
                       struct cell_result *r, struct err *e)
{
    struct work w = {.run = run, .cell = cell, .r = r, .e = e};
    char name[32];
    *r = (struct cell_result){.name = cell->name,
                              .definition = cell->definition,
                              .verdict = VERDICT_PASS,
                              .now = {.tokens_per_second = NAN}};
    w.base = baseline_find(run->base, cell->name);
    ask_gates(&w);
    snprintf(name, sizeof name, "work/%03zu", index);
    w.dir = sweep_dir_path(run->dir, name);
    enum err_code rc = w.dir ? ERR_OK : work_nomem(&w);
    if (rc == ERR_OK && mkdir(w.dir, 0777) != 0)
        rc = err_errno(e, "%s: create", w.dir);
    if (rc == ERR_OK)
        rc = variant_prepare(run, cell, &w.model, r, e);
    if (rc == ERR_OK && !broken(&w)) {
        memcpy(r->now.model, w.model.sha256, SHA256_HEX);
        rc = judge(&w);
    }
    if (rc == ERR_OK)
        cell_result_conclude(r);
    free(w.model.path);
    free(w.dir);
    return rc;
}
