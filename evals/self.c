/* self.c: the cells of the self-comparison, one switch each, and the narrowing of what differs.
 *
 * Owns the order of cells and the engine they run on: it is opened again only for a switch that
 * belongs to the engine. Ways of running stand in self_run.c (the runner) and self_feed.c (by
 * hand). */
#include "evals/self.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "evals/self_private.h"
#include "infer/census.h"

#define TRIES 3 /* traced runs until a difference has come back; only those name an operation */

struct self {
    const struct self_options *o;
    struct self_report *r;
    struct lm *m;
    struct engine_options base, now;
    struct self_prompts p;
    struct self_log rows; /* of the base, with its operations */
    struct self_cell *cell;
    int batch; /* requests of the base's steps */
};

static bool on_cpu(const struct self *s)
{
    return strcmp(s->r->device, "cpu") == 0;
}

/* ---- running a way ----------------------------------------------------------------------------
 */

static bool same_engine(const struct kern_options *a, const struct kern_options *b)
{
    return strcmp(a->device, b->device) == 0 && strcmp(a->isa, b->isa) == 0 &&
           a->arith == b->arith && a->threads == b->threads && a->launch == b->launch &&
           a->path == b->path && a->expand == b->expand;
}

static enum err_code use_engine(struct self *s, const struct engine_options *want, struct err *e)
{
    if (s->m->engine && same_engine(&want->kern, &s->now.kern))
        return ERR_OK;
    s->now = *want;
    return lm_reload(s->m, want, e);
}

static enum err_code run_way(struct self *s, const char *cell, const struct self_way *w,
                             bool traced, struct self_log *log, struct self_run_result *res,
                             struct err *e)
{
    struct self_load *load = NULL;
    uint64_t rounds = 1;
    *log = (struct self_log){.n = 0};
    *res = (struct self_run_result){.shared_tokens = 0};
    if (s->o->before_way)
        s->o->before_way(s->o->ctx, cell);
    enum err_code rc = use_engine(s, &w->engine, e);
    if (rc == ERR_OK && w->poison)
        rc = engine_poison(s->m->engine, e);
    if (rc == ERR_OK && w->load)
        rc = self_load_start(&load, w->load_device, e);
    if (rc == ERR_OK && (w->width || w->nan))
        rc = self_run_feed(s->m, &s->p, w, s->o, &s->rows, traced, log, e);
    else if (rc == ERR_OK)
        rc = self_run_batch(s->m, &s->p, w, s->o, traced, log, res, e);
    enum err_code stopped = self_load_stop(load, &rounds, rc == ERR_OK ? e : NULL);
    rc = rc == ERR_OK ? stopped : rc;
    if (rc == ERR_OK && rounds == 0)
        rc = err_set(e, ERR_INTERNAL, "the competing load did nothing");
    if (rc != ERR_OK)
        self_log_free(log);
    return rc;
}

static struct self_way base_way(const struct self *s)
{
    return (struct self_way){.name = "base", .engine = s->base};
}

/* ---- comparing --------------------------------------------------------------------------------
 */

static void set_place(struct self_place *at, const struct self_prompt *q, int64_t token)
{
    snprintf(at->custom_id, sizeof at->custom_id, "%s", q->req->custom_id);
    at->turn = q->turn;
    at->token = token;
}

/* True when an operation of a traced run differs from the base's: the first one is the place. */
static bool narrow(struct self *s, struct self_log *log)
{
    struct self_place *at = &s->cell->at;
    for (size_t i = 0; i < s->p.n; i++) {
        const struct self_op *op;
        if (!self_log_narrow(&s->rows.record[i], &log->record[i], &op))
            continue;
        if (!at->custom_id[0] || strcmp(at->custom_id, s->p.list[i].req->custom_id) != 0 ||
            at->turn != s->p.list[i].turn)
            set_place(at, &s->p.list[i], -1);
        at->narrowed = true;
        at->pos = op->pos;
        at->layer = op->layer;
        snprintf(at->op, sizeof at->op, "%s", op->name);
        return true;
    }
    return false;
}

/* One run of a way, its rows and, when traced, its operations held against the base's. */
static enum err_code check_way(struct self *s, const struct self_way *w, bool traced,
                               struct self_run_result *res, bool *differs, struct err *e)
{
    struct self_log log;
    size_t record, row;
    enum err_code rc = run_way(s, s->cell->name, w, traced, &log, res, e);
    *differs = false;
    if (rc == ERR_OK && self_log_differ(&s->rows, &log, &record, &row)) {
        set_place(&s->cell->at, &s->p.list[record], (int64_t)row);
        *differs = true;
    }
    if (rc == ERR_OK && traced)
        *differs |= narrow(s, &log);
    self_log_free(&log);
    return rc;
}

/* ---- cells ------------------------------------------------------------------------------------
 */

static void skip(struct self *s, const char *why)
{
    s->cell->state = SELF_NOT_RUN;
    snprintf(s->cell->why, sizeof s->cell->why, "%s", why);
}

/* Runs one way of the cell; the first that differs ends it. Where operations wait for their hashes
 * the way also runs without them, first: a race may be seen in one and not in the other. */
static enum err_code try_way(struct self *s, const struct self_way *w, struct self_run_result *res,
                             struct err *e)
{
    struct self_run_result own;
    bool differs = false, plain = !on_cpu(s);
    enum err_code rc = ERR_OK;
    if (s->cell->state == SELF_DIFFERS)
        return ERR_OK;
    if (s->o->on_cell)
        s->o->on_cell(s->o->ctx, s->cell->name, w->name);
    if (plain)
        rc = check_way(s, w, false, res ? res : &own, &differs, e);
    int tries = differs ? TRIES : 1;
    for (int i = 0; i < tries && rc == ERR_OK && !s->cell->at.narrowed; i++) {
        bool again;
        rc = check_way(s, w, true, res ? res : &own, &again, e);
        differs |= again;
    }
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s, %s", s->cell->name, w->name);
    s->cell->state = differs ? SELF_DIFFERS : SELF_SAME;
    if (differs)
        snprintf(s->cell->way, sizeof s->cell->way, "%s", w->name);
    return ERR_OK;
}

/* The same way with another number each: NAME of `what`. */
typedef void (*set_number)(struct self_way *w, int n);

static enum err_code try_numbers(struct self *s, const int *n, int count, set_number set,
                                 const char *what, struct err *e)
{
    size_t used = 0;
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(s->cell->ways + used, sizeof s->cell->ways - used, "%s%d",
                                 i == 0           ? ""
                                 : i + 1 == count ? " and "
                                                  : ", ",
                                 n[i]);
    snprintf(s->cell->ways + used, sizeof s->cell->ways - used, " %s", what);
    enum err_code rc = ERR_OK;
    for (int i = 0; i < count && rc == ERR_OK; i++) {
        struct self_way w = base_way(s);
        snprintf(w.name, sizeof w.name, "%d", n[i]);
        set(&w, n[i]);
        rc = try_way(s, &w, NULL, e);
    }
    return rc;
}

static enum err_code cell_repeat(struct self *s, struct err *e)
{
    int n = s->o->repeats ? s->o->repeats : 3;
    enum err_code rc = ERR_OK;
    snprintf(s->cell->ways, sizeof s->cell->ways, "%d more runs", n);
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        struct self_way w = base_way(s);
        snprintf(w.name, sizeof w.name, "run %d", i + 2);
        rc = try_way(s, &w, NULL, e);
    }
    return rc;
}

static enum err_code cell_load(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    snprintf(w.name, sizeof w.name, "busy cores");
    snprintf(s->cell->ways, sizeof s->cell->ways, "beside a second kern on the CPU");
    w.load = true;
    w.load_device = "cpu";
    return try_way(s, &w, NULL, e);
}

static enum err_code cell_stream(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    if (on_cpu(s)) {
        skip(s, "the CPU has no streams of kernels");
        return ERR_OK;
    }
    snprintf(w.name, sizeof w.name, "second stream");
    snprintf(s->cell->ways, sizeof s->cell->ways, "beside a second stream of kernels");
    w.load = true;
    w.load_device = s->r->device;
    return try_way(s, &w, NULL, e);
}

static void set_batch(struct self_way *w, int n)
{
    w->batch = n;
}

static enum err_code cell_batch(struct self *s, struct err *e)
{
    static const int all[] = {1, 2, 5};
    int n = 0;
    while (n < (int)ARRAY_LEN(all) && all[n] < s->batch)
        n++;
    if (n == 0) {
        skip(s, "one request, or one at a time, makes no batch");
        return ERR_OK;
    }
    return try_numbers(s, all, n, set_batch, "requests a step", e);
}

static enum err_code cell_order(struct self *s, struct err *e)
{
    struct self_way reversed = base_way(s), shuffled = base_way(s);
    if (s->batch < 2) {
        skip(s, "one request, or one at a time, has no order");
        return ERR_OK;
    }
    snprintf(s->cell->ways, sizeof s->cell->ways, "requests reversed, rows of a step shuffled");
    snprintf(reversed.name, sizeof reversed.name, "reversed");
    snprintf(shuffled.name, sizeof shuffled.name, "shuffled");
    reversed.reverse = true;
    shuffled.shuffle = true;
    enum err_code rc = try_way(s, &reversed, NULL, e);
    return rc == ERR_OK ? try_way(s, &shuffled, NULL, e) : rc;
}

static enum err_code cell_neighbour(struct self *s, struct err *e)
{
    const struct engine_plan *plan = engine_get_plan(s->m->engine);
    struct self_way w = base_way(s);
    if (plan->batch_seqs < 3 || plan->batch_tokens < 8 || plan->ctx < KERN_PAGE + 2) {
        skip(s, "two neighbours need 3 sequences and 8 tokens a step, and a context of 66");
        return ERR_OK;
    }
    snprintf(w.name, sizeof w.name, "NaN neighbours");
    snprintf(s->cell->ways, sizeof s->cell->ways, "each answer alone, between rows of NaN");
    w.nan = true;
    return try_way(s, &w, NULL, e);
}

static void set_chunk(struct self_way *w, int n)
{
    w->chunk = n;
}

static enum err_code cell_chunk(struct self *s, struct err *e)
{
    static const int all[] = {1, 5, 64, 255};
    int n = 0;
    while (n < (int)ARRAY_LEN(all) && all[n] < s->p.longest)
        n++;
    if (n == 0) {
        skip(s, "a prompt of one token is not cut");
        return ERR_OK;
    }
    return try_numbers(s, all, n, set_chunk, "prompt tokens a step", e);
}

static void set_width(struct self_way *w, int n)
{
    w->width = n;
}

static enum err_code cell_verify(struct self *s, struct err *e)
{
    static const int all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const struct engine_plan *plan = engine_get_plan(s->m->engine);
    int n = MIN2(16, MIN2(plan->out_rows, plan->batch_tokens));
    enum err_code rc = try_numbers(s, all, n, set_width, "tokens a block", e);
    snprintf(s->cell->ways, sizeof s->cell->ways, "answers in blocks of 1 to %d tokens", n);
    return rc;
}

static enum err_code try_launch(struct self *s, enum kern_launch way, const char *name,
                                struct err *e)
{
    struct self_way w = base_way(s);
    w.engine.kern.launch = way;
    snprintf(w.name, sizeof w.name, "%s", name);
    return try_way(s, &w, NULL, e);
}

static enum err_code cell_graph(struct self *s, struct err *e)
{
    const struct kern *k = engine_kern(s->m->engine);
    if (!kern_launches(k, KERN_LAUNCH_GRAPH)) {
        skip(s, "this backend has no graphs");
        return ERR_OK;
    }
    snprintf(s->cell->ways, sizeof s->cell->ways, "eager, and replayed from graphs");
    enum err_code rc = try_launch(s, KERN_LAUNCH_EAGER, "eager", e);
    return rc == ERR_OK ? try_launch(s, KERN_LAUNCH_GRAPH, "graph", e) : rc;
}

static enum err_code cell_blocking(struct self *s, struct err *e)
{
    if (!kern_launches(engine_kern(s->m->engine), KERN_LAUNCH_BLOCKING)) {
        skip(s, "this backend launches nothing that could be waited for");
        return ERR_OK;
    }
    snprintf(s->cell->ways, sizeof s->cell->ways, "each operation ends before the next begins");
    return try_launch(s, KERN_LAUNCH_BLOCKING, "blocking", e);
}

static enum err_code cell_poison(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    snprintf(w.name, sizeof w.name, "NaN buffers");
    snprintf(s->cell->ways, sizeof s->cell->ways, "every buffer of a step is NaN before the run");
    w.poison = true;
    return try_way(s, &w, NULL, e);
}

static enum err_code cell_path(struct self *s, struct err *e)
{
    const struct kern *k = engine_kern(s->m->engine);
    const char *isa = kern_isa(k); /* static texts all */
    const char *const *names = on_cpu(s) ? kern_isa_list() : kern_paths(k);
    enum err_code rc = ERR_OK;
    size_t used = 0;
    for (int i = 0; names[i] && rc == ERR_OK; i++) {
        struct self_way w = base_way(s);
        if (on_cpu(s) && strcmp(names[i], isa) == 0)
            continue;
        if (on_cpu(s))
            w.engine.kern.isa = names[i];
        else
            w.engine.kern.path = i + 1;
        used += (size_t)snprintf(s->cell->ways + used, sizeof s->cell->ways - used, "%s%s",
                                 used ? ", " : "", names[i]);
        snprintf(w.name, sizeof w.name, "%s", names[i]);
        rc = try_way(s, &w, NULL, e);
    }
    if (rc == ERR_OK && used == 0)
        skip(s, "this machine has one kernel path");
    return rc;
}

static void set_threads(struct self_way *w, int n)
{
    w->engine.kern.threads = n;
}

static enum err_code cell_threads(struct self *s, struct err *e)
{
    static const int all[] = {1, 2, 3};
    int now = kern_threads(engine_kern(s->m->engine)), n[ARRAY_LEN(all)], count = 0;
    if (!on_cpu(s)) {
        skip(s, "the device's operations have no CPU threads");
        return ERR_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i] != now)
            n[count++] = all[i];
    return try_numbers(s, n, count, set_threads, "threads", e);
}

static bool has_packed(const struct checkpoint *c)
{
    struct qformat q;
    for (size_t i = 0; i < c->n_weights; i++)
        if (ckpt_weight_packed_format(&c->weights[i], &q))
            return true;
    return false;
}

static enum err_code cell_expand(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    if (!has_packed(s->m->ckpt)) {
        skip(s, "no weight is packed");
        return ERR_OK;
    }
    snprintf(w.name, sizeof w.name, "expanded");
    snprintf(s->cell->ways, sizeof s->cell->ways,
             "weights expanded by rule 1 when they are loaded");
    w.engine.kern.expand = true;
    return try_way(s, &w, NULL, e);
}

static enum err_code cell_prefix(struct self *s, struct err *e)
{
    struct self_way first = base_way(s), second = base_way(s);
    struct self_run_result res = {.shared_tokens = 0};
    snprintf(first.name, sizeof first.name, "sharing");
    snprintf(second.name, sizeof second.name, "found");
    first.share = second.share = true;
    second.passes = 2;
    enum err_code rc = try_way(s, &first, NULL, e);
    if (rc == ERR_OK)
        rc = try_way(s, &second, &res, e);
    snprintf(s->cell->ways, sizeof s->cell->ways, "shared pages, then the prompts once more");
    if (rc == ERR_OK && s->cell->state == SELF_SAME && res.shared_tokens == 0)
        skip(s, "no prompt is longer than a page: nothing is found in the cache");
    return rc;
}

static enum err_code cell_oracle(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    if (on_cpu(s)) {
        skip(s, "the CPU is the oracle: run with --device cuda:N");
        return ERR_OK;
    }
    if (!kern_arith_measured(s->base.kern.arith)) {
        char why[80];
        snprintf(why, sizeof why, "the oracle models mma90 only; %s was not measured", s->r->arith);
        skip(s, why);
        return ERR_OK;
    }
    snprintf(w.name, sizeof w.name, "CPU oracle");
    snprintf(s->cell->ways, sizeof s->cell->ways, "%s on the CPU", s->r->arith);
    w.engine.kern = (struct kern_options){
        .device = "cpu", .isa = "auto", .arith = s->base.kern.arith, .threads = 0};
    return try_way(s, &w, NULL, e);
}

/* Those that keep the base's engine come first. */
static const struct {
    const char *name;
    enum err_code (*run)(struct self *s, struct err *e);
} cells[] = {{"repeat", cell_repeat}, {"load", cell_load},       {"stream", cell_stream},
             {"batch", cell_batch},   {"order", cell_order},     {"neighbour", cell_neighbour},
             {"chunk", cell_chunk},   {"verify", cell_verify},   {"prefix", cell_prefix},
             {"poison", cell_poison}, {"graph", cell_graph},     {"blocking", cell_blocking},
             {"path", cell_path},     {"threads", cell_threads}, {"expand", cell_expand},
             {"oracle", cell_oracle}};
_Static_assert(ARRAY_LEN(cells) == SELF_CELLS, "one entry for each cell");

/* ---- the whole --------------------------------------------------------------------------------
 */

static enum err_code run_base(struct self *s, struct err *e)
{
    struct self_way w = base_way(s);
    struct self_run_result res;
    if (s->o->on_cell)
        s->o->on_cell(s->o->ctx, "base", "");
    enum err_code rc = run_way(s, "base", &w, true, &s->rows, &res, e);
    for (size_t i = 0; rc == ERR_OK && i < s->rows.n; i++)
        s->r->n_rows += s->rows.record[i].n_rows;
    s->r->n_ops = s->rows.n_ops;
    s->r->ops_cut = s->rows.n_ops == SELF_OPS_MAX;
    if (rc == ERR_OK && s->r->n_rows == 0)
        rc = err_set(e, ERR_INPUT, "%s: no token is to be made", s->o->prompts);
    return rc;
}

/* Is the name one of a list with commas? */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0))
            return true;
    return false;
}

static enum err_code check_list(const char *list, struct err *e)
{
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        int n = (int)strcspn(at, ",");
        bool found = false;
        for (size_t i = 0; i < ARRAY_LEN(cells) && !found; i++)
            found = (int)strlen(cells[i].name) == n && strncmp(at, cells[i].name, (size_t)n) == 0;
        if (!found)
            return err_set(e, ERR_USAGE, "--cells: there is no cell '%.*s'", n, at);
    }
    return ERR_OK;
}

static enum err_code run_cells(struct self *s, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(cells); i++) {
        if (s->o->cells && !listed(s->o->cells, cells[i].name))
            continue;
        s->cell = &s->r->cell[s->r->n_cells++];
        s->cell->name = cells[i].name;
        /* A cell looks at the base's engine to say what it can do. */
        enum err_code rc = use_engine(s, &s->base, e);
        if (rc == ERR_OK)
            rc = cells[i].run(s, e);
        if (rc != ERR_OK)
            return rc;
        s->r->n_same += s->cell->state == SELF_SAME;
        s->r->n_differ += s->cell->state == SELF_DIFFERS;
        s->r->n_not_run += s->cell->state == SELF_NOT_RUN;
    }
    return ERR_OK;
}

static enum err_code open_model(struct self *s, struct err *e)
{
    struct census census;
    s->base = s->o->engine;
    s->base.top_k = 2;
    s->base.kern.device = s->base.kern.device ? s->base.kern.device : "auto";
    s->base.kern.isa = s->base.kern.isa ? s->base.kern.isa : "auto";
    enum err_code rc = census_take(&census, s->o->prompts, e);
    if (rc != ERR_OK)
        return rc;
    memcpy(s->r->prompts, census.sha256, sizeof s->r->prompts);
    census_free(&census);
    rc = lm_open(&s->m, s->o->path, &s->base, s->o->on_plan, s->o->ctx, e);
    if (rc != ERR_OK)
        return rc;
    const struct kern *k = engine_kern(s->m->engine);
    const struct engine_plan *plan = engine_get_plan(s->m->engine);
    snprintf(s->r->model, sizeof s->r->model, "%s", io_base(s->o->path));
    snprintf(s->r->arith, sizeof s->r->arith, "%s", kern_arith_name(kern_arith(k)));
    snprintf(s->r->device, sizeof s->r->device, "%s", kern_device(k));
    memcpy(s->r->fingerprint, s->m->fingerprint, sizeof s->r->fingerprint);
    s->base.kv_tokens = plan->pages * KERN_PAGE;
    s->now = s->base;
    rc = self_prompts_read(&s->p, s->m, s->o, e);
    s->r->n_answers = s->p.n;
    s->batch = (int)MIN2((size_t)plan->batch_seqs, s->p.n);
    return rc;
}

enum err_code self_run(struct self_report *r, const struct self_options *o, struct err *e)
{
    struct self s = {.o = o, .r = r};
    memset(r, 0, sizeof *r);
    enum err_code rc = check_list(o->cells, e);
    if (rc == ERR_OK)
        rc = open_model(&s, e);
    if (rc == ERR_OK)
        rc = run_base(&s, e);
    if (rc == ERR_OK)
        rc = run_cells(&s, e);
    self_log_free(&s.rows);
    self_prompts_free(&s.p);
    lm_close(s.m);
    return rc;
}
