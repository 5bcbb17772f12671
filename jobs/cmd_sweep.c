/* cmd_sweep.c: `assay sweep`: run, accept, history, show. Quiet when all is well, since cron mails
 * what is said.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/log.h"
#include "jobs/child.h"
#include "jobs/sweep.h"
#include "jobs/sweep_report.h"

#define NOTIFY_SECONDS 60
#define HISTORY_MAX    1000

struct args {
    const char *out, *program, *prom, *notify, *why, *cell;
    bool json, verbose;
    int64_t last;
};

/* ---- running -----------------------------------------------------------------------------------
 */

static void on_cell(void *ctx, size_t done, size_t n, const char *name)
{
    (void)ctx;
    log_info("cell %zu of %zu: %s", done + 1, n, name);
}

/* sh -c COMMAND sh EXIT-CODE WORDS PAGE. What becomes of it does not change what the run says. */
static void notify(const char *command, int code, const char *words, const char *page)
{
    struct child_args a = {.n = 0};
    struct child_result r;
    struct child_limits limits = {.seconds = NOTIFY_SECONDS};
    struct strbuf ending = {0};
    struct err e = {.text = ""};
    child_arg(&a, "/bin/sh");
    child_arg(&a, "-c");
    child_arg(&a, "%s", command);
    child_arg(&a, "sh");
    child_arg(&a, "%d", code);
    child_arg(&a, "%s", words);
    child_arg(&a, "%s", page);
    if (child_run(&a, NULL, "/dev/null", &limits, NULL, &r, &e) != ERR_OK) {
        log_warn("--notify-cmd: %s", e.text);
    } else if (r.end != CHILD_EXITED || r.code != 0) {
        child_ending(&r, &limits, &ending);
        log_warn("--notify-cmd: %s", ending.data ? ending.data : "failed");
    }
    strbuf_free(&ending);
    child_args_free(&a);
}

/* report.json, which stands beside the page. */
static enum err_code print_report(const char *page, struct err *e)
{
    struct strbuf text = {0};
    size_t dir = (size_t)(io_base(page) - page);
    char *json = NULL;
    if (asprintf(&json, "%.*sreport.json", (int)dir, page) < 0)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = io_read_all(json, (size_t)1 << 30, &text, e);
    free(json);
    return rc == ERR_OK ? cmd_print(&text, e) : rc;
}

static enum err_code run(const struct args *a, const char *file, const struct cmd_env *env,
                         struct err *e)
{
    struct sweep_summary s;
    const struct sweep_options o = {.file = file,
                                    .program = a->program,
                                    .out = a->out,
                                    .prom = a->prom,
                                    .interrupted = env->interrupted,
                                    .on_cell = on_cell};
    if (!a->verbose && !isatty(STDERR_FILENO))
        log_set_level(LOG_WARN);
    enum err_code rc = sweep_run_file(&o, &s, e);
    for (size_t i = 0; i < s.n_worst; i++)
        log_warn("%s", s.worst[i]);
    if (s.n_cells && rc != ERR_OK)
        rc = err_set(e, rc, "%s: %s; %s", file, s.counts, s.report);
    if (a->json && s.report[0]) {
        enum err_code print = print_report(s.report, rc == ERR_OK ? e : NULL);
        rc = rc == ERR_OK ? print : rc;
    }
    if (rc == ERR_OK)
        log_info("%s: %s%s; %s", file, s.counts,
                 s.recorded ? ", recorded without a baseline ('assay sweep accept')" : "",
                 s.report);
    else if (a->notify && rc != ERR_BUSY)
        notify(a->notify, err_exit_code(rc), e->text, s.report);
    return rc;
}

/* ---- the other three ---------------------------------------------------------------------------
 */

/* The sweep's folder and store, to read or to change. */
static enum err_code open_store(const struct args *a, const char *file, enum sweep_dir_use use,
                                struct sweep_dir *dir, struct store **s, struct err *e)
{
    struct sweep_file *f = NULL;
    enum err_code rc = ERR_OK;
    if (!a->out)
        rc = sweep_file_read(&f, file, e);
    if (rc == ERR_OK)
        rc = sweep_dir_open(dir, a->out ? a->out : f->out, use, e);
    sweep_file_free(f);
    if (rc != ERR_OK)
        return rc;
    char *db = sweep_dir_path(dir, "sweep.db");
    rc = db ? store_open(s, db, false, e) : err_set(e, ERR_NOMEM, "out of memory");
    free(db);
    if (rc != ERR_OK)
        sweep_dir_close(dir);
    return rc;
}

static void print_change(void *ctx, const struct baseline_change *c)
{
    struct strbuf *out = ctx;
    strbuf_printf(out, "%s: %s: %.20s -> %.20s\n", c->cell, c->what, c->old[0] ? c->old : "-",
                  c->now[0] ? c->now : "-");
}

static enum err_code accept(const struct args *a, const char *file, struct err *e)
{
    struct sweep_dir dir;
    struct store *s = NULL;
    struct strbuf text = {0};
    if (!a->why || !a->why[strspn(a->why, " ")])
        return err_set(e, ERR_USAGE, "--why TEXT is missing: a baseline needs its reason");
    enum err_code rc = open_store(a, file, SWEEP_DIR_CHANGE, &dir, &s, e);
    if (rc != ERR_OK)
        return rc;
    rc = baseline_accept(s, a->cell, a->why, clock_unix(), print_change, &text, e);
    if (rc == ERR_OK && text.len == 0)
        strbuf_puts(&text, "nothing changed\n");
    if (rc == ERR_OK)
        rc = cmd_print(&text, e);
    strbuf_free(&text);
    store_close(s);
    sweep_dir_close(&dir);
    return rc;
}

static json_t *run_json(const struct store_run *r)
{
    return json_pack("{s:I,s:I,s:I,s:i,s:s,s:I,s:I,s:s,s:s}", "run", (json_int_t)r->id, "began",
                     (json_int_t)r->began, "ended", (json_int_t)r->ended, "exit_code", r->exit_code,
                     "verdict", r->verdict, "cells_passed", (json_int_t)r->n_passed, "cells_all",
                     (json_int_t)r->n_cells, "program_sha256", r->program, "sweep_sha256",
                     r->sweep);
}

static enum err_code history(const struct args *a, const char *file, struct err *e)
{
    struct sweep_dir dir;
    struct store *s = NULL;
    struct store_run *runs = calloc((size_t)a->last, sizeof *runs);
    struct strbuf text = {0};
    size_t n = 0;
    if (!runs)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = open_store(a, file, SWEEP_DIR_READ, &dir, &s, e);
    if (rc == ERR_OK) {
        rc = store_runs(s, runs, (size_t)a->last, &n, e);
        store_close(s);
        sweep_dir_close(&dir);
    }
    if (rc == ERR_OK && a->json) {
        json_t *all = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(all, run_json(&runs[i]));
        rc = cmd_print_json(all, e);
    } else if (rc == ERR_OK) {
        for (size_t i = 0; i < n; i++) {
            char began[32];
            strbuf_printf(&text, "%5lld  %s  %6lld s  exit %3d  %-16s  %lld of %lld passed\n",
                          (long long)runs[i].id, clock_utc(began, runs[i].began),
                          (long long)(runs[i].ended ? runs[i].ended - runs[i].began : 0),
                          runs[i].exit_code, runs[i].ended ? runs[i].verdict : "UNFINISHED",
                          (long long)runs[i].n_passed, (long long)runs[i].n_cells);
        }
        rc = cmd_print(&text, e);
    }
    free(runs);
    return rc;
}

static enum err_code show(const struct args *a, const char *file, const char *number, struct err *e)
{
    struct sweep_dir dir;
    struct store *s = NULL;
    struct sweep_report r;
    struct strbuf text = {0};
    int64_t id = 0;
    if (number && !str_to_i64(number, 1, INT64_MAX, &id))
        return err_set(e, ERR_USAGE, "'%s': expected the number of a run", number);
    enum err_code rc = open_store(a, file, SWEEP_DIR_READ, &dir, &s, e);
    if (rc != ERR_OK)
        return rc;
    rc = sweep_report_read(&r, s, id, file, e);
    if (rc == ERR_OK) {
        if (a->json)
            rc = sweep_report_json(&r, &text, e);
        else
            sweep_report_markdown(&r, &text);
        sweep_report_free(&r);
    }
    if (rc == ERR_OK)
        rc = cmd_print(&text, e);
    strbuf_free(&text);
    store_close(s);
    sweep_dir_close(&dir);
    return rc;
}

/* ---- the command -------------------------------------------------------------------------------
 */

enum verb { VERB_RUN, VERB_ACCEPT, VERB_HISTORY, VERB_SHOW };

static enum verb find_verb(const struct opt_list *words)
{
    static const char *const verbs[] = {"", "accept", "history", "show"};
    for (int v = VERB_ACCEPT; v <= VERB_SHOW; v++)
        if (words->n && strcmp(words->items[0], verbs[v]) == 0)
            return (enum verb)v;
    return VERB_RUN;
}

static enum err_code dispatch(const struct args *a, const struct opt_list *words,
                              const struct cmd_env *env, struct err *e)
{
    enum verb v = find_verb(words);
    size_t at = v == VERB_RUN ? 0 : 1, most = v == VERB_SHOW ? at + 2 : at + 1;
    if (words->n <= at)
        return err_set(e, ERR_USAGE, "the sweep file is missing");
    if (words->n > most)
        return err_set(e, ERR_USAGE, "'%s': one word too many", words->items[most]);
    if (v != VERB_ACCEPT && a->why)
        return err_set(e, ERR_USAGE, "--why goes with accept");
    if (v != VERB_RUN && (a->program || a->prom || a->notify))
        return err_set(e, ERR_USAGE, "--program, --prom and --notify-cmd go with a run");
    const char *file = words->items[at];
    switch (v) {
    case VERB_ACCEPT:
        return accept(a, file, e);
    case VERB_HISTORY:
        return history(a, file, e);
    case VERB_SHOW:
        return show(a, file, words->n > at + 1 ? words->items[at + 1] : NULL, e);
    default:
        return run(a, file, env, e);
    }
}

enum err_code cmd_sweep(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct args a = {.cell = "*", .last = 20};
    struct opt_list words = {0};
    bool help;
    const struct opt rows[] = {
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "A run"},
        {OPT_STRING, 'o', "out", &a.out, 0, 0, NULL, "DIR",
         "the sweep's folder (default: what the file says, else FILE without .yaml, with .sweep)"},
        {OPT_STRING, 0, "program", &a.program, 0, 0, NULL, "FILE",
         "the assay to judge (default: this one)"},
        {OPT_STRING, 0, "prom", &a.prom, 0, 0, NULL, "FILE",
         "where the Prometheus text goes (default: sweep.prom in the folder)"},
        {OPT_STRING, 0, "notify-cmd", &a.notify, 0, 0, NULL, "COMMAND",
         "run by sh when a run does not end with 0: $1 exit code, $2 words, $3 report page"},
        {OPT_FLAG, 'v', "verbose", &a.verbose, 0, 0, NULL, NULL,
         "say which cell runs (default: on a terminal only)"},
        {OPT_FLAG, 0, "json", &a.json, 0, 0, NULL, NULL, "JSON on standard output"},
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "accept, history"},
        {OPT_STRING, 0, "why", &a.why, 0, 0, NULL, "TEXT", "reason of a new baseline"},
        {OPT_STRING, 0, "cell", &a.cell, 0, 0, NULL, "GLOB",
         "accept these cells only (default: all)"},
        {OPT_INT, 0, "last", &a.last, 1, HISTORY_MAX, NULL, "N", "runs to list (default 20)"},
        {.type = OPT_END},
    };
    const struct opt_cmd cmd = {
        "sweep",
        "FILE | accept FILE --why TEXT | history FILE | show FILE [RUN]",
        "Runs a grid of models, recipes, prompt files and settings and judges every cell: does it "
        "repeat, does the path matter, and what changed against the accepted baseline in tokens, "
        "quality and speed. Made for cron: one lock, quiet when all is well (docs/cron.md). Exit "
        "code 0: nothing failed; 1: a gate failed; 6: a cell does not repeat; 3, 4, 5, 70: a cell "
        "is broken or missing; 75: another run is at work.",
        "  assay sweep recipes/sweeps/nightly.yaml\n"
        "  assay sweep accept recipes/sweeps/nightly.yaml --why 'new attention kernel, KL equal'\n"
        "  assay sweep show recipes/sweeps/nightly.yaml 12\n",
        rows,
        0,
        3};
    enum err_code rc = cmd_options(&cmd, argc, argv, &words, &help, e);
    if (rc == ERR_OK && !help)
        rc = dispatch(&a, &words, env, e);
    opt_list_free(&words);
    return rc;
}
