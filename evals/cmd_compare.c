/* cmd_compare.c: the command: runs or reads the variants, writes the report, says the verdict. */
#include <stdio.h>
#include <stdlib.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/log.h"
#include "evals/report.h"
#include "evals/self.h"
#include "infer/model_opts.h"

struct args {
    const char *prompts, *out, *cells, *gates_file;
    bool exact, json, force, no_forced, forced_prompts, no_floor, no_judge, force_compare, oracle,
        self, with_speed;
    struct compare_gates gates;
    int64_t forced_max, repeats, where;
    struct model_opts how;
    struct request_opts ask;
};

#define KV_TOKENS 8192 /* of a model on the CPU, or its context; unless --kv-tokens is given */

#define ROWS (22 + COMPARE_GATES + MODEL_OPTS_ROWS + REQUEST_OPTS_ROWS)

static void fill_rows(struct args *a, struct opt *rows)
{
    const struct opt own[] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "What to compare"},
        {OPT_STRING, 0, "prompts", &a->prompts, 0, 0, NULL, "FILE",
         "prompt file: JSON lines, may be .gz"},
        {OPT_STRING, 'o', "out", &a->out, 0, 0, NULL, "DIR",
         "the report's folder: report.html, .json, .md, .csv, junit.xml, a trace of each run"},
        {OPT_FLAG, 0, "exact", &a->exact, 0, 0, NULL, NULL,
         "demand the same bits of every logit, not the same tokens only"},
        {OPT_FLAG, 0, "no-forced", &a->no_forced, 0, 0, NULL, NULL,
         "answers only: no KL, no perplexity"},
        {OPT_FLAG, 0, "forced-prompts", &a->forced_prompts, 0, 0, NULL, NULL,
         "force the tokens of the prompts too: KL and agreement by role of token"},
        {OPT_FLAG, 0, "no-floor", &a->no_floor, 0, 0, NULL, NULL,
         "do not measure the reference's own noise in the other arithmetic"},
        {OPT_FLAG, 0, "no-judge", &a->no_judge, 0, 0, NULL, NULL,
         "run no repeats and no other paths: the verdict rests on tokens and weights"},
        {OPT_FLAG, 0, "oracle", &a->oracle, 0, 0, NULL, NULL,
         "hold a device against the CPU's oracle too"},
        {OPT_INT, 0, "where", &a->where, 0, 100, NULL, "N",
         "of the verdict quantization: attribute the N worst decided flips to layers and tensors "
         "and search for the cheapest recipe without them (default: layers of the worst one; 0: "
         "nothing)"},
        {OPT_FLAG, 0, "force-compare", &a->force_compare, 0, 0, NULL, NULL,
         "compare what is NOT COMPARABLE: the verdict is then 'other model'"},
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL,
         "Gates: with any, exit code 0 means that all hold, even if tokens differ"},
        {OPT_STRING, 0, "gates", &a->gates_file, 0, 0, NULL, "FILE",
         "gates from YAML, for all variants and by name; an option stands above them"},
    };
    const struct opt more[] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "More"},
        {OPT_INT, 0, "forced-max", &a->forced_max, 0, 1 << 24, NULL, "N",
         "force at most N tokens of an answer (default: all)"},
        {OPT_FLAG, 0, "with-speed", &a->with_speed, 0, 0, NULL, NULL,
         "measured times in the page too, not only in speed.json"},
        {OPT_FLAG, 0, "force", &a->force, 0, 0, NULL, NULL, "replace a report that assay made"},
        {OPT_FLAG, 0, "self", &a->self, 0, 0, NULL, NULL,
         "one model against itself, switch by switch: batch, chunk, threads, ..."},
        {OPT_STRING, 0, "cells", &a->cells, 0, 0, NULL, "LIST",
         "of --self: these alone, with commas (default: all)"},
        {OPT_INT, 0, "repeats", &a->repeats, 1, 1000, NULL, "N",
         "runs of --self's cell repeat (default 3)"},
        {OPT_FLAG, 0, "json", &a->json, 0, 0, NULL, NULL, "the JSON report on standard output"},
    };
    size_t n = ARRAY_LEN(own);
    memcpy(rows, own, sizeof own);
    for (int i = 0; i < COMPARE_GATES; i++) {
        const struct compare_gate_kind *k = &compare_gate_kinds[i];
        rows[n++] = (struct opt){OPT_DOUBLE, 0,        k->option, &a->gates.options.bound[i],
                                 0,          k->limit, NULL,      k->limit > 1 ? "X" : "P",
                                 k->help};
    }
    memcpy(rows + n, more, sizeof more);
    n += ARRAY_LEN(more);
    model_opts_rows(&a->how, rows, &n);
    request_opts_rows(&a->ask, rows, &n);
    rows[n] = (struct opt){.type = OPT_END};
}

static void init_args(struct args *a)
{
    *a = (struct args){.gates = {compare_bounds_none, compare_bounds_none, NULL, 0}, .where = -1};
    model_opts_init(&a->how);
    request_opts_init(&a->ask);
}

/* The command's options for the report: what decides its bytes, in no order but the table's. */
static void put_how(struct args *a, bool self, struct strbuf *out)
{
    static const char *const skip[] = {
        "out",     "json", "with-speed", "force",        "self",  "cells",     "repeats", "device",
        "threads", "isa",  "max-batch",  "batch-tokens", "arith", "kv-tokens", NULL};
    struct args plain;
    struct opt rows[ROWS], from[ROWS];
    init_args(&plain);
    fill_rows(a, rows);
    fill_rows(&plain, from);
    if (self) {
        size_t n = 1, m = 1;
        rows[0] = (struct opt){OPT_STRING, 0, "prompts", &a->prompts, 0, 0, NULL, "FILE", ""};
        from[0] = (struct opt){OPT_STRING, 0, "prompts", &plain.prompts, 0, 0, NULL, "FILE", ""};
        model_opts_rows(&a->how, rows, &n);
        request_opts_rows(&a->ask, rows, &n);
        model_opts_rows(&plain.how, from, &m);
        request_opts_rows(&plain.ask, from, &m);
        rows[n] = from[m] = (struct opt){.type = OPT_END};
    }
    opt_words(rows, from, skip, out);
}

struct watch {
    struct progress p;
    bool open;
};

static void on_phase(void *ctx, const char *what, const char *name, const char *unit,
                     uint64_t total)
{
    struct watch *w = ctx;
    if (w->open)
        progress_end(&w->p);
    log_info("%s %s", what, name);
    progress_start(&w->p, what, unit, total);
    w->open = true;
}

static void on_progress(void *ctx, uint64_t done)
{
    struct watch *w = ctx;
    progress_add(&w->p, done - w->p.done);
}

static void on_plan(void *ctx, const char *path, const struct engine_plan *p)
{
    (void)ctx;
    char weights[24], kv[24];
    log_debug("%s: weights %s, KV %s", io_base(path), str_bytes(weights, p->weights),
              str_bytes(kv, p->kv));
}

static enum err_code write_one(const char *dir, const char *name, const struct strbuf *text,
                               struct err *e)
{
    char *path = io_join(dir, name);
    enum err_code rc = path ? strbuf_ok(text, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = io_write_all(path, text->data, text->len, false, e);
    free(path);
    return rc;
}

static enum err_code write_remedies(const struct comparison *c, const char *dir, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        const struct where *w = c->pairs[i].where;
        for (size_t k = 0; w && k < w->n_flips && rc == ERR_OK; k++) {
            char name[192];
            struct strbuf text = {0};
            if (!w->flips[k].remedy.found)
                continue;
            where_remedy_name(&c->pairs[i], k, name);
            strbuf_puts(&text, w->flips[k].remedy.recipe);
            rc = write_one(dir, name, &text, e);
            strbuf_free(&text);
        }
    }
    return rc;
}

static enum err_code write_report(const struct comparison *c, const char *dir, struct err *e)
{
    static const char *const names[] = {"report.html", "report.md",  "report.csv", "answers.csv",
                                        "junit.xml",   "speed.json", "report.json"};
    struct strbuf text[ARRAY_LEN(names)] = {{0}};
    enum err_code rc = report_html(c, &text[0], e);
    report_markdown(c, &text[1]);
    report_csv(c, &text[2]);
    report_csv_answers(c, &text[3]);
    if (rc == ERR_OK)
        rc = report_junit(c, &text[4], e);
    report_speed(c, &text[5]);
    report_json(c, &text[6]);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (rc == ERR_OK)
            rc = write_one(dir, names[i], &text[i], e);
        strbuf_free(&text[i]);
    }
    if (rc == ERR_OK)
        rc = write_remedies(c, dir, e);
    return rc;
}

static enum err_code verdict_code(const struct comparison *c, struct err *e)
{
    if (c->verdict == COMPARE_SAME)
        return ERR_OK;
    if (c->verdict == COMPARE_DIFFER && c->gate[0])
        return err_set(e, ERR_NEGATIVE, "%s", c->gate);
    if (c->verdict == COMPARE_DIFFER)
        return ERR_NEGATIVE;
    bool race = c->verdict == COMPARE_NONDETERMINISTIC;
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        const struct pair *p = &c->pairs[i];
        if (race && p->verdict == VERDICT_NONDETERMINISTIC)
            return err_set(e, ERR_DETERMINISM, "%s", p->evidence);
        if (!race && p->verdict == VERDICT_NOT_COMPARABLE)
            return err_set(e, ERR_MISMATCH, "NOT COMPARABLE: %s and %s: %s", c->variants[0].name,
                           p->var->name, p->not_comparable);
    }
    return err_set(e, ERR_INTERNAL, "a verdict without a pair");
}

static enum err_code say(const struct args *a, const struct comparison *c, struct err *e)
{
    struct strbuf text = {0};
    if (a->json)
        report_json(c, &text);
    else
        report_summary(c, a->out, &text);
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        fputs(text.data, stdout);
    strbuf_free(&text);
    return rc == ERR_OK ? verdict_code(c, e) : rc;
}

static enum err_code run(struct args *a, const struct opt_list *paths,
                         const struct prompt_defaults *d, const struct cmd_env *env, struct err *e)
{
    struct io_dir_out *dir = NULL;
    struct comparison *c = NULL;
    struct strbuf how = {0}, how_self = {0};
    struct watch w = {.open = false};
    struct compare_options o = {.paths = paths->items,
                                .n_paths = paths->n,
                                .prompts = a->prompts,
                                .defaults = *d,
                                .special = a->ask.special,
                                .exact = a->exact,
                                .no_forced = a->no_forced,
                                .forced_prompts = a->forced_prompts,
                                .no_floor = a->no_floor,
                                .no_judge = a->no_judge,
                                .force_compare = a->force_compare,
                                .oracle = a->oracle,
                                .gates = &a->gates,
                                .with_speed = a->with_speed,
                                .where = a->where,
                                .forced_max = a->forced_max,
                                .interrupted = env->interrupted,
                                .on_plan = on_plan,
                                .on_phase = on_phase,
                                .on_progress = on_progress,
                                .ctx = &w};
    enum err_code rc = model_opts_engine(&a->how, &o.engine, e);
    if (rc != ERR_OK)
        return rc;
    o.engine.top_k = PROMPT_TOP_MAX;
    /* Two or three models are open at a time, and their pages all get used. */
    if (!o.engine.kv_tokens && (o.engine.kern.arith == KERN_F32 || !strcmp(a->how.device, "cpu")))
        o.engine.kv_tokens = MAX2(o.engine.ctx, KV_TOKENS);
    if (a->gates_file)
        rc = compare_gates_read(&a->gates, a->gates_file, e);
    if (rc != ERR_OK)
        return rc;
    put_how(a, false, &how);
    put_how(a, true, &how_self);
    o.how = how.data;
    o.how_self = how_self.data;
    rc = io_dir_out_open(&dir, a->out, a->force, "report.json", e);
    if (rc != ERR_OK)
        goto out;
    o.trace_dir = io_dir_out_path(dir);
    rc = compare_run(&c, &o, e);
    if (w.open)
        progress_end(&w.p);
    if (rc == ERR_OK)
        rc = write_report(c, io_dir_out_path(dir), e);
    if (rc == ERR_OK) {
        rc = io_dir_out_commit(dir, e);
        dir = NULL;
    }
    if (rc == ERR_OK)
        rc = say(a, c, e);
    io_dir_out_abort(dir);
    compare_free(c);
out:
    strbuf_free(&how);
    strbuf_free(&how_self);
    return rc;
}

/* ---- --self ------------------------------------------------------------------------------------
 */

static void on_cell(void *ctx, const char *cell, const char *way)
{
    (void)ctx;
    log_info("%s%s%s", cell, way[0] ? ": " : "", way);
}

static enum err_code run_self(const struct args *a, const struct opt_list *paths,
                              const struct prompt_defaults *d, const struct cmd_env *env,
                              struct err *e)
{
    struct self_options o = {.path = paths->items[0],
                             .prompts = a->prompts,
                             .defaults = *d,
                             .special = a->ask.special,
                             .repeats = (int)a->repeats,
                             .cells = a->cells,
                             .interrupted = env->interrupted,
                             .on_plan = on_plan,
                             .on_cell = on_cell};
    struct self_report *r = NULL;
    struct strbuf text = {0};
    if (paths->n != 1)
        return err_set(e, ERR_USAGE, "--self takes one model, %zu are given", paths->n);
    if (!a->prompts || a->out || a->exact)
        return err_set(e, ERR_USAGE,
                       "--self needs --prompts FILE, and neither -o nor --exact: it demands the "
                       "bits, and its table goes to standard output");
    enum err_code rc = model_opts_engine(&a->how, &o.engine, e);
    if (rc != ERR_OK)
        return rc;
    r = calloc(1, sizeof *r);
    rc = r ? self_run(r, &o, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK) {
        if (a->json)
            self_json(r, &text);
        else
            self_table(r, &text);
        rc = cmd_print(&text, e);
    }
    if (rc == ERR_OK && r->n_differ)
        rc = err_set(e, ERR_DETERMINISM, "%s: %d of %d cells differ from the base run", r->model,
                     r->n_differ, r->n_cells);
    free(r);
    return rc;
}

enum err_code cmd_compare(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct args a;
    struct opt rows[ROWS];
    struct opt_list paths = {0};
    struct prompt_defaults d = {.chat = false};
    bool help;
    init_args(&a);
    fill_rows(&a, rows);
    const struct opt_cmd cmd = {
        "compare",
        "(REF VARIANT... -o DIR | MODEL --self) --prompts FILE",
        "Holds variants against a reference, token by token: where the answers part and at what "
        "margin, then KL, agreement and perplexity along the reference's own answers. A variant "
        "is a checkpoint or a trace of 'infer --trace'. Exit code 0: the same tokens; 1: they "
        "differ (or a gate failed); 3: NOT COMPARABLE; 6: a side does not repeat itself. --self "
        "runs one model in every way that must give the same "
        "bits; "
        "exit code 6: one did not.",
        "  assay compare model q8 q4 --prompts prompts.jsonl -o report\n"
        "  assay compare model model-bf16 --arith mma90 --exact --prompts prompts.jsonl -o same\n"
        "  assay compare q4 --self --prompts prompts.jsonl\n",
        rows,
        1,
        -1};
    enum err_code rc = cmd_options(&cmd, argc, argv, &paths, &help, e);
    if (rc != ERR_OK || help)
        goto out;
    if (!a.self && paths.n < 2)
        rc = err_set(e, ERR_USAGE, "a variant is missing: compare takes REF and VARIANT");
    else if (!a.self && !a.out)
        rc = err_set(e, ERR_USAGE, "-o DIR is missing");
    if (rc == ERR_OK)
        rc = request_opts_defaults(&a.ask, &d, e);
    if (rc == ERR_OK)
        rc = a.self ? run_self(&a, &paths, &d, env, e) : run(&a, &paths, &d, env, e);
out:
    compare_gates_free(&a.gates);
    opt_list_free(&paths);
    request_opts_free(&a.ask, &d);
    return rc;
}
