/* sweep_report.c: reading a run back, the texts for programs, writing all of it. */
#include "jobs/sweep_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/json.h"
#include "common/junit.h"

/* ---- reading -----------------------------------------------------------------------------------
 */

static int worst_first(const void *a, const void *b)
{
    const struct store_cell *x = a, *y = b;
    if (x->verdict != y->verdict)
        return x->verdict > y->verdict ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

enum err_code sweep_report_read(struct sweep_report *r, struct store *s, int64_t run,
                                const char *title, struct err *e)
{
    *r = (struct sweep_report){.store = s};
    snprintf(r->title, sizeof r->title, "%s", io_base(title));
    enum err_code rc = store_run_read(s, run, &r->run, e);
    if (rc == ERR_OK)
        rc = store_cells(s, r->run.id, &r->cells, &r->n, e);
    if (rc == ERR_OK)
        rc = baseline_read(s, &r->base, e);
    if (rc == ERR_OK)
        rc = store_last_success(s, &r->last_success, e);
    if (rc != ERR_OK)
        sweep_report_free(r);
    else if (r->n)
        qsort(r->cells, r->n, sizeof *r->cells, worst_first);
    return rc;
}

void sweep_report_free(struct sweep_report *r)
{
    free(r->cells);
    baseline_free(&r->base);
    *r = (struct sweep_report){.n = 0};
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

static json_t *figure_json(struct stats_interval v)
{
    json_t *o = json_object();
    const double x[] = {v.value, v.lo, v.hi};
    static const char *const names[] = {"value", "lo", "hi"};
    for (size_t i = 0; i < ARRAY_LEN(x); i++)
        json_object_set_new(o, names[i], isfinite(x[i]) ? json_real(x[i]) : json_null());
    return o;
}

static json_t *figures_json(const struct store_cell *c)
{
    json_t *o = json_object();
    const struct {
        const char *name;
        struct stats_interval v;
    } figures[] = {{"kl", c->kl},
                   {"agreement", c->agreement},
                   {"log_perplexity_ratio", c->log_ppl_ratio},
                   {"tokens_per_second", c->tokens_per_second}};
    for (size_t i = 0; i < ARRAY_LEN(figures); i++)
        if (isfinite(figures[i].v.value))
            json_object_set_new(o, figures[i].name, figure_json(figures[i].v));
    return o;
}

static json_t *gates_json(const struct store_cell *c)
{
    json_t *o = json_object();
    for (int g = 0; g < GATE_COUNT; g++)
        if (c->gate[g].asked)
            json_object_set_new(o, gate_name((enum gate)g),
                                json_pack("{s:s,s:s,s:s}", "verdict",
                                          verdict_name(c->gate[g].verdict), "words",
                                          c->gate[g].words, "more", c->gate[g].more));
    return o;
}

static json_t *cell_json(const struct sweep_report *r, const struct store_cell *c)
{
    const struct store_cell *base = baseline_find(&r->base, c->name);
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:o,s:o,s:o}", "name", c->name, "verdict",
                     verdict_name(c->verdict), "words", c->words, "definition", c->definition,
                     "model", c->model, "trace", c->trace, "report", c->report, "gates",
                     gates_json(c), "figures", figures_json(c), "accepted",
                     base ? figures_json(base) : json_null());
}

static void add_environment(void *ctx, const char *key, const char *value)
{
    json_object_set_new(ctx, key, json_string(value));
}

enum err_code sweep_report_json(const struct sweep_report *r, struct strbuf *out, struct err *e)
{
    const struct store_run *run = &r->run;
    json_t *environment = json_object(), *cells = json_array();
    enum err_code rc = store_environment_each(r->store, run->id, add_environment, environment, e);
    for (size_t i = 0; i < r->n; i++)
        json_array_append_new(cells, cell_json(r, &r->cells[i]));
    json_t *base = r->base.id ? json_pack("{s:I,s:I,s:I,s:s}", "id", (json_int_t)r->base.id, "run",
                                          (json_int_t)r->base.run, "accepted",
                                          (json_int_t)r->base.accepted, "why", r->base.why)
                              : json_null();
    json_t *all = json_pack(
        "{s:i,s:s,s:I,s:I,s:I,s:i,s:s,s:s,s:s,s:I,s:I,s:o,s:o,s:o}", "assay_sweep",
        SWEEP_REPORT_VERSION, "sweep", r->title, "run", (json_int_t)run->id, "began",
        (json_int_t)run->began, "ended", (json_int_t)run->ended, "exit_code", run->exit_code,
        "verdict", run->verdict, "sweep_sha256", run->sweep, "program_sha256", run->program,
        "cells_passed", (json_int_t)run->n_passed, "cells_all", (json_int_t)run->n_cells,
        "baseline", base, "environment", environment, "cells", cells);
    if (!all)
        return err_set(e, ERR_NOMEM, "out of memory");
    json_put(out, all, JSON_INDENT(1));
    strbuf_putc(out, '\n');
    json_decref(all);
    return rc;
}

/* ---- JUnit -------------------------------------------------------------------------------------
 */

static enum junit_result junit_of(enum verdict v)
{
    switch (v) {
    case VERDICT_PASS:
    case VERDICT_IMPROVED:
        return JUNIT_PASSED;
    case VERDICT_UNRESOLVED:
    case VERDICT_NO_BASELINE:
    case VERDICT_SKIPPED:
        return JUNIT_SKIPPED;
    case VERDICT_NOT_COMPARABLE:
    case VERDICT_MISSING:
    case VERDICT_BROKEN:
        return JUNIT_ERROR;
    default:
        return JUNIT_FAILED;
    }
}

/* A case for every gate that was asked; a cell whose gates were not reached is a case itself. */
enum err_code sweep_report_junit(const struct sweep_report *r, struct strbuf *out, struct err *e)
{
    struct junit_case *cases = calloc(r->n * (GATE_COUNT + 1) + 1, sizeof *cases);
    char(*messages)[512] = calloc(r->n * (GATE_COUNT + 1) + 1, sizeof *messages);
    size_t n = 0;
    for (size_t i = 0; cases && messages && i < r->n; i++) {
        const struct store_cell *c = &r->cells[i];
        if (c->verdict == VERDICT_MISSING || c->verdict == VERDICT_BROKEN ||
            c->verdict == VERDICT_SKIPPED) {
            snprintf(messages[n], sizeof messages[n], "%s: %s", verdict_name(c->verdict), c->words);
            cases[n] =
                (struct junit_case){c->name, "cell", junit_of(c->verdict), messages[n], c->words};
            n++;
        }
        for (int g = 0; g < GATE_COUNT; g++) {
            const struct judgement *j = &c->gate[g];
            if (!j->asked)
                continue;
            snprintf(messages[n], sizeof messages[n], "%s: %s", verdict_name(j->verdict), j->words);
            cases[n] = (struct junit_case){c->name, gate_name((enum gate)g), junit_of(j->verdict),
                                           messages[n], j->more[0] ? j->more : j->words};
            n++;
        }
    }
    enum err_code rc = cases && messages ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        junit_write(out, r->title, cases, n);
    free(cases);
    free(messages);
    return rc;
}

/* ---- Prometheus --------------------------------------------------------------------------------
 */

static void put_label(struct strbuf *out, const char *key, const char *value)
{
    strbuf_printf(out, "%s=\"", key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            strbuf_putc(out, '\\');
        if (*value == '\n')
            strbuf_puts(out, "\\n");
        else
            strbuf_putc(out, *value);
    }
    strbuf_putc(out, '"');
}

static void put_gauge(struct strbuf *out, const char *name, const char *help)
{
    strbuf_printf(out, "# HELP assay_sweep_%s %s\n# TYPE assay_sweep_%s gauge\n", name, help, name);
}

static void put_sample(const struct sweep_report *r, struct strbuf *out, const char *name,
                       const char *key, const char *label, double v)
{
    strbuf_printf(out, "assay_sweep_%s{", name);
    put_label(out, "sweep", r->title);
    if (key) {
        strbuf_putc(out, ',');
        put_label(out, key, label);
    }
    strbuf_puts(out, "} ");
    if (v == floor(v) && fabs(v) < 1e15)
        strbuf_printf(out, "%lld", (long long)v);
    else
        strbuf_put_number(out, v, 9);
    strbuf_putc(out, '\n');
}

static void put_cells(const struct sweep_report *r, struct strbuf *out, const char *name,
                      const char *help, struct stats_interval (*of)(const struct store_cell *c))
{
    put_gauge(out, name, help);
    for (size_t i = 0; i < r->n; i++)
        if (isfinite(of(&r->cells[i]).value))
            put_sample(r, out, name, "cell", r->cells[i].name, of(&r->cells[i]).value);
}

static struct stats_interval kl_of(const struct store_cell *c)
{
    return c->kl;
}

static struct stats_interval speed_of(const struct store_cell *c)
{
    return c->tokens_per_second;
}

void sweep_report_prometheus(const struct sweep_report *r, struct strbuf *out)
{
    put_gauge(out, "last_run_timestamp_seconds", "End of the last run, whatever became of it.");
    put_sample(r, out, "last_run_timestamp_seconds", NULL, NULL, (double)r->run.ended);
    put_gauge(out, "last_success_timestamp_seconds",
              "End of the last run that ended with exit code 0; 0: never.");
    put_sample(r, out, "last_success_timestamp_seconds", NULL, NULL, (double)r->last_success);
    put_gauge(out, "exit_code", "Exit code of the last run.");
    put_sample(r, out, "exit_code", NULL, NULL, r->run.exit_code);
    put_gauge(out, "cells", "Cells of the last run by verdict.");
    for (int v = 0; v < VERDICT_COUNT; v++) {
        size_t n = 0;
        for (size_t i = 0; i < r->n; i++)
            n += r->cells[i].verdict == (enum verdict)v;
        put_sample(r, out, "cells", "verdict", verdict_name((enum verdict)v), (double)n);
    }
    put_cells(r, out, "kl_nats", "Mean KL of a cell against its source.", kl_of);
    put_cells(r, out, "tokens_per_second", "Median over the repeats of a cell.", speed_of);
}

/* ---- files -------------------------------------------------------------------------------------
 */

static enum err_code write_one(const char *dir, const char *name, const struct strbuf *text,
                               struct err *e)
{
    char *path = io_join(dir, name);
    enum err_code rc = path ? strbuf_ok(text, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = io_write_all(path, text->data, text->len, true, e);
    free(path);
    return rc;
}

enum text_kind { TEXT_JSON, TEXT_MARKDOWN, TEXT_JUNIT, TEXT_HTML, TEXT_COUNT };

static enum err_code write_folder(const struct sweep_report *r, const char *dir, struct err *e)
{
    static const char *const names[TEXT_COUNT] = {"report.json", "report.md", "junit.xml",
                                                  "report.html"};
    enum err_code rc = ERR_OK;
    for (int kind = 0; rc == ERR_OK && kind < TEXT_COUNT; kind++) {
        struct strbuf text = {0};
        if (kind == TEXT_JSON)
            rc = sweep_report_json(r, &text, e);
        else if (kind == TEXT_MARKDOWN)
            sweep_report_markdown(r, &text);
        else if (kind == TEXT_JUNIT)
            rc = sweep_report_junit(r, &text, e);
        else
            rc = sweep_report_html(r, &text, e);
        if (rc == ERR_OK)
            rc = write_one(dir, names[kind], &text, e);
        strbuf_free(&text);
    }
    return rc;
}

static enum err_code write_all(const struct sweep_report *r, const char *folder, struct err *e)
{
    struct io_dir_out *out = NULL;
    enum err_code rc = io_dir_out_open(&out, folder, true, "report.json", e);
    if (rc != ERR_OK)
        return rc;
    rc = write_folder(r, io_dir_out_path(out), e);
    if (rc == ERR_OK)
        return io_dir_out_commit(out, e);
    io_dir_out_abort(out);
    return rc;
}

enum err_code sweep_report_write(struct store *s, const struct sweep_dir *dir, int64_t run,
                                 const char *title, const char *prom, char *page, size_t page_size,
                                 struct err *e)
{
    struct sweep_report r;
    struct strbuf text = {0};
    enum err_code rc = sweep_report_read(&r, s, run, title, e);
    if (rc != ERR_OK)
        return rc;
    char *folder = sweep_dir_path(dir, "report");
    rc = folder ? write_all(&r, folder, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK) {
        snprintf(page, page_size, "%s/report.html", folder);
        sweep_report_prometheus(&r, &text);
        rc = strbuf_ok(&text, e);
    }
    if (rc == ERR_OK)
        rc = prom ? io_write_all(prom, text.data, text.len, true, e)
                  : write_one(dir->path, "sweep.prom", &text, e);
    strbuf_free(&text);
    free(folder);
    sweep_report_free(&r);
    return rc;
}
