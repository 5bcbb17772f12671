/* sweep.c: a run from lock to report. */
#include "jobs/sweep.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/io.h"
#include "common/log.h"
#include "common/par.h"
#include "jobs/cell.h"
#include "jobs/sweep_report.h"

#define KEEP_RUNS 30 /* whose traces and reports stay */

/* ---- the verdict -------------------------------------------------------------------------------
 */

/* A worse one is larger. */
static int rank(enum err_code rc)
{
    static const enum err_code order[] = {ERR_OK,       ERR_INPUT,    ERR_MISMATCH,   ERR_PARTIAL,
                                          ERR_BUSY,     ERR_IO,       ERR_NOMEM,      ERR_DEVICE,
                                          ERR_INTERNAL, ERR_NEGATIVE, ERR_DETERMINISM};
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        if (order[i] == rc)
            return (int)i;
    return 8; /* as ERR_INTERNAL */
}

static enum err_code meaning(const struct cell_result *c, bool may_record)
{
    switch (c->verdict) {
    case VERDICT_PASS:
    case VERDICT_IMPROVED:
    case VERDICT_UNRESOLVED:
        return ERR_OK;
    case VERDICT_NO_BASELINE:
        return may_record ? ERR_OK : ERR_NEGATIVE;
    case VERDICT_NOT_COMPARABLE:
        return ERR_MISMATCH;
    case VERDICT_SKIPPED:
    case VERDICT_MISSING:
    case VERDICT_BROKEN:
        return c->error == ERR_OK ? ERR_INTERNAL : c->error;
    case VERDICT_NONDETERMINISTIC:
        return ERR_DETERMINISM;
    default:
        return ERR_NEGATIVE;
    }
}

enum err_code sweep_conclude(const struct cell_result *cells, size_t n, bool may_record)
{
    enum err_code worst = n ? ERR_OK : ERR_INPUT;
    for (size_t i = 0; i < n; i++) {
        enum err_code rc = meaning(&cells[i], may_record);
        if (rank(rc) > rank(worst))
            worst = rc;
    }
    return worst;
}

/* ---- a run -------------------------------------------------------------------------------------
 */

struct whole {
    const struct sweep_options *o;
    struct sweep_file *file;
    struct grid grid;
    struct sweep_dir dir;
    struct store *store;
    struct baseline base;
    struct sweep_run run;
    struct store_run row;
    struct cell_result *cells; /* of the grid, then those that the baseline has and it has not */
    size_t n;
    char *program;     /* the copy in objects/ that runs */
    uint64_t deadline; /* clock_ns; 0: none */
    struct err *e;
};

static enum err_code nomem(struct whole *w)
{
    return err_set(w->e, ERR_NOMEM, "out of memory");
}

/* The program is copied before anything runs, so that what is judged is what was hashed, even
 * when somebody builds it anew meanwhile. */
static enum err_code take_program(struct whole *w)
{
    char self[4096];
    const char *path = w->o->program;
    if (!path) {
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        if (n < 0)
            return err_errno(w->e, "/proc/self/exe");
        self[n] = 0;
        path = self;
    }
    enum err_code rc = sweep_dir_keep(&w->dir, path, ".bin", w->run.program_sha256, w->e);
    if (rc != ERR_OK)
        return rc;
    if (access(path, X_OK) != 0)
        return err_set(w->e, ERR_INPUT, "%s: is not executable", path);
    w->program = sweep_dir_object(&w->dir, w->run.program_sha256, ".bin");
    w->run.program = w->program;
    return w->program ? ERR_OK : nomem(w);
}

static void find_machine(char *out, size_t size)
{
    struct strbuf b = {0};
    const char *name = "unknown processor";
    size_t len = strlen(name);
    if (io_read_all("/proc/cpuinfo", (size_t)1 << 26, &b, NULL) == ERR_OK) {
        const char *at = strstr(b.data, "model name");
        at = at ? strchr(at, ':') : NULL;
        if (at) {
            name = at + 1 + strspn(at + 1, " ");
            len = strcspn(name, "\n");
        }
    }
    snprintf(out, size, "%.*s, %d cores", (int)MIN2(len, 200), name, par_allowed_cores());
    strbuf_free(&b);
}

static enum err_code note(struct whole *w, const char *key, const char *value)
{
    return store_environment(w->store, w->row.id, key, value, w->e);
}

static enum err_code note_environment(struct whole *w)
{
    struct utsname u;
    enum err_code rc = note(w, "machine", w->run.machine);
    if (rc == ERR_OK && uname(&u) == 0) {
        rc = note(w, "host", u.nodename);
        if (rc == ERR_OK)
            rc = note(w, "kernel", u.release);
    }
    if (rc == ERR_OK)
        rc = note(w, "version", ASSAY_VERSION);
    if (rc == ERR_OK)
        rc = note(w, "sweep_file", w->file->path);
    if (rc == ERR_OK)
        rc = note(w, "why", w->file->why);
    return rc;
}

static enum err_code open_all(struct whole *w)
{
    enum err_code rc =
        sweep_dir_open(&w->dir, w->o->out ? w->o->out : w->file->out, SWEEP_DIR_MAKE, w->e);
    if (rc != ERR_OK)
        return rc;
    char *db = sweep_dir_path(&w->dir, "sweep.db");
    rc = db ? store_open(&w->store, db, true, w->e) : nomem(w);
    free(db);
    if (rc == ERR_OK)
        rc = baseline_read(w->store, &w->base, w->e);
    if (rc == ERR_OK)
        rc = take_program(w);
    if (rc == ERR_OK)
        rc = sweep_dir_work(&w->dir, w->e);
    return rc;
}

/* Time left for a child: its own limit, or what is left of the run's. */
static bool set_limits(struct whole *w)
{
    const struct sweep_limits *l = &w->file->limits;
    w->run.limits = (struct child_limits){.seconds = l->seconds,
                                          .memory = (uint64_t)l->memory_mb * 1000000u,
                                          .retries = l->retries,
                                          .pause = l->pause};
    if (!w->deadline)
        return true;
    uint64_t now = clock_ns();
    if (now >= w->deadline)
        return false;
    double left = (double)(w->deadline - now) * 1e-9;
    if (w->run.limits.seconds == 0 || left < w->run.limits.seconds)
        w->run.limits.seconds = left;
    return true;
}

static enum err_code run_cell(struct whole *w, size_t i)
{
    struct cell_result *r = &w->cells[i];
    const struct grid_cell *c = &w->grid.cells[i];
    if (w->o->interrupted && *w->o->interrupted)
        return err_set(w->e, ERR_INTERRUPTED, "interrupted before %s", c->name);
    if (w->o->on_cell)
        w->o->on_cell(w->o->ctx, i, w->grid.n, c->name);
    if (set_limits(w))
        return cell_run(&w->run, c, i, r, w->e);
    *r = (struct cell_result){.name = c->name,
                              .definition = c->definition,
                              .verdict = VERDICT_SKIPPED,
                              .error = ERR_IO,
                              .now = {.tokens_per_second = NAN}};
    snprintf(r->words, sizeof r->words, "the run's %d s were over", w->file->limits.total_seconds);
    return ERR_OK;
}

static bool in_grid(const struct whole *w, const char *name)
{
    for (size_t i = 0; i < w->grid.n; i++)
        if (strcmp(w->grid.cells[i].name, name) == 0)
            return true;
    return false;
}

static void add_lost(struct whole *w)
{
    for (size_t i = 0; i < w->base.n; i++) {
        if (in_grid(w, w->base.cells[i].name))
            continue;
        struct cell_result *r = &w->cells[w->n++];
        *r = (struct cell_result){.name = w->base.cells[i].name,
                                  .definition = "",
                                  .verdict = VERDICT_MISSING,
                                  .error = ERR_NEGATIVE,
                                  .now = {.tokens_per_second = NAN}};
        snprintf(r->words, sizeof r->words, "accepted once, and no longer in the sweep");
    }
}

static enum err_code run_cells(struct whole *w)
{
    enum err_code rc = ERR_OK;
    w->cells = calloc(w->grid.n + w->base.n + 1, sizeof *w->cells);
    if (!w->cells)
        return nomem(w);
    if (w->file->limits.total_seconds)
        w->deadline = clock_ns() + (uint64_t)w->file->limits.total_seconds * 1000000000u;
    while (rc == ERR_OK && w->n < w->grid.n) {
        rc = run_cell(w, w->n);
        if (rc == ERR_OK)
            rc = store_cell(w->store, w->row.id, &w->cells[w->n++], w->e);
    }
    size_t judged = w->n;
    if (rc == ERR_OK)
        add_lost(w);
    for (size_t i = judged; rc == ERR_OK && i < w->n; i++)
        rc = store_cell(w->store, w->row.id, &w->cells[i], w->e);
    return rc;
}

static enum verdict worst_verdict(const struct whole *w)
{
    enum verdict v = VERDICT_PASS;
    for (size_t i = 0; i < w->n; i++)
        v = MAX2(v, w->cells[i].verdict);
    return v;
}

static void sum_up(const struct whole *w, struct sweep_summary *s)
{
    s->run = w->row.id;
    s->n_cells = w->n;
    s->verdict = worst_verdict(w);
    size_t counts[VERDICT_COUNT] = {0};
    for (size_t i = 0; i < w->n; i++)
        counts[w->cells[i].verdict]++;
    verdict_counts(counts, s->counts, sizeof s->counts);
    for (int v = VERDICT_COUNT - 1; v > VERDICT_UNRESOLVED; v--)
        for (size_t i = 0; i < w->n && s->n_worst < SWEEP_WORST; i++)
            if (w->cells[i].verdict == (enum verdict)v &&
                !(v == VERDICT_NO_BASELINE && s->recorded))
                snprintf(s->worst[s->n_worst++], sizeof s->worst[0], "%s: %s: %.380s",
                         w->cells[i].name, verdict_name((enum verdict)v), w->cells[i].words);
}

static bool used(void *ctx, const char *sha256)
{
    return store_uses(ctx, sha256, KEEP_RUNS);
}

/* The end of the run in the store, then the reports, which are made of the store. */
static enum err_code finish(struct whole *w, enum err_code rc, struct sweep_summary *s)
{
    bool may_record = w->file->first_run_records && !w->base.id;
    struct err why = {.text = ""};
    bool complete = rc == ERR_OK;
    if (complete) {
        rc = sweep_conclude(w->cells, w->n, may_record);
        s->recorded = may_record;
        sum_up(w, s);
    }
    w->row.ended = clock_unix();
    w->row.exit_code = err_exit_code(rc);
    snprintf(w->row.verdict, sizeof w->row.verdict, "%s",
             complete                ? verdict_name(s->verdict)
             : rc == ERR_INTERRUPTED ? "INTERRUPTED"
                                     : "BROKEN");
    enum err_code end = store_end(w->store, &w->row, &why);
    if (end == ERR_OK)
        end = sweep_report_write(w->store, &w->dir, w->row.id, w->file->path, w->o->prom, s->report,
                                 sizeof s->report, &why);
    if (end == ERR_OK)
        end = sweep_dir_prune(&w->dir, used, w->store, &why);
    /* Without its record a run is worth nothing, unless it already failed harder. */
    if (end != ERR_OK && complete)
        return err_set(w->e, end, "%s", why.text);
    return rc;
}

static enum err_code begin(struct whole *w)
{
    w->run.file = w->file;
    w->run.dir = &w->dir;
    w->run.store = w->store;
    w->run.base = &w->base;
    w->run.interrupted = w->o->interrupted;
    find_machine(w->run.machine, sizeof w->run.machine);
    w->row.began = clock_unix();
    memcpy(w->row.sweep, w->file->sha256, SHA256_HEX);
    memcpy(w->row.program, w->run.program_sha256, SHA256_HEX);
    enum err_code rc = store_begin(w->store, &w->row, w->e);
    return rc == ERR_OK ? note_environment(w) : rc;
}

enum err_code sweep_run_file(const struct sweep_options *o, struct sweep_summary *s, struct err *e)
{
    struct whole w = {.o = o, .dir = {.lock_fd = -1}, .e = e};
    *s = (struct sweep_summary){.verdict = VERDICT_BROKEN};
    enum err_code rc = sweep_file_read(&w.file, o->file, e);
    if (rc == ERR_OK)
        rc = grid_expand(&w.grid, w.file, e);
    if (rc == ERR_OK)
        rc = open_all(&w);
    if (rc == ERR_OK)
        rc = begin(&w);
    if (rc == ERR_OK)
        rc = finish(&w, run_cells(&w), s);
    for (size_t i = 0; w.cells && i < w.grid.n; i++)
        evidence_free(&w.cells[i].now);
    free(w.cells);
    free(w.program);
    baseline_free(&w.base);
    store_close(w.store);
    if (w.dir.path)
        sweep_dir_close(&w.dir);
    grid_free(&w.grid);
    sweep_file_free(w.file);
    return rc;
}
