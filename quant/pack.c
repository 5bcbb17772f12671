/* pack.c: who does what when: the tasks of pack.h over worker threads.
 *
 * One lock guards all that is shared; tasks run outside of it. SHA-256 takes two messages at once
 * in the time of one (common/hash.h), and the source's hash is the longest serial work: so the hash
 * of a tensor or of the output takes the source's next bytes along, and while a source is free
 * those tasks come first. The source is hashed alone only when it lags behind the encoder. Then
 * come a run of the tensor at hand and the next tensor, if the window has room. Runs are given out
 * in order, so when one fails all before it were given out too: the error that is reported, that of
 * the lowest run, does not depend on the number of threads.
 */
#include "quant/pack.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/io.h"
#include "common/par.h"
#include "quant/pack_out.h"
#include "quant/pack_pool.h"
#include "quant/pack_run.h"

#define HASH_BYTES  ((size_t)4 << 20)
#define DROP_RUNS   8 /* the kernel is told of every eighth run only: each call stops all threads */
#define SHOW_BYTES  ((uint64_t)16 << 20) /* progress is shown in steps of that */
#define THREADS_MAX 256

struct unit {
    const struct plan_item *it;
    struct pack_buffer mem; /* biases, scales, codes; none for a plain copy */
    struct pack_dest dest;
    struct errstat *stats; /* one a run */
    int64_t run_rows, n_runs, given, done;
    int parts_left;
    bool finishing, ready;
};

struct source {
    const uint8_t *data;
    size_t bytes, off;
    struct sha256 *sha;
    bool busy, done;
    bool mapped; /* a file of its own; members of archives may be plain memory */
};

struct pack {
    const struct plan *plan;
    const struct pack_options *o;
    struct pack_result *r;
    struct pack_out out;
    struct pack_pool pool;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a task has ended: for workers */
    pthread_cond_t shown;   /* progress to show, or the end: for the caller's thread */
    struct unit *units;     /* one a plan item */
    size_t started;         /* of out.order */
    size_t next_part;
    bool writing;
    size_t next_finish; /* of out.order; those before it are given out */
    uint64_t in_memory;
    uint64_t progress, told, hashed; /* bytes of the source: encoded, those shown, hashed */
    struct source *sources;
    size_t n_sources, hashing, hashed_sources;
    int working; /* threads that have not ended */
    enum err_code rc;
    size_t failed_unit; /* place of the error in out.order, and its run */
    int64_t failed_run;
    struct err err;
};

enum task_kind { TASK_NONE, TASK_WRITE, TASK_RUN, TASK_FINISH, TASK_HASH };

struct task {
    enum task_kind kind;
    size_t at; /* order of the unit, part, or source */
    int64_t run;
};

/* ---- under the lock ----------------------------------------------------------------------------
 */

static void fail(struct pack *p, enum err_code rc, const struct err *e, size_t at, int64_t run)
{
    bool first =
        p->rc == ERR_OK || at < p->failed_unit || (at == p->failed_unit && run < p->failed_run);
    if (!first)
        return;
    p->rc = rc;
    p->err = *e;
    p->failed_unit = at;
    p->failed_run = run;
}

/* A source that has bytes left and that nobody hashes, made busy; or false. */
static bool take_source(struct pack *p, size_t *at)
{
    for (size_t i = 0; i < p->n_sources; i++) {
        if (p->sources[i].busy || p->sources[i].done)
            continue;
        p->sources[i].busy = true;
        p->hashing++;
        *at = i;
        return true;
    }
    return false;
}

static bool take_hash(struct pack *p, struct task *t)
{
    *t = (struct task){TASK_HASH, 0, 0};
    return take_source(p, &t->at);
}

static struct unit *unit_at(struct pack *p, size_t order)
{
    return &p->units[p->out.order[order]];
}

/* Global scales of a copied weight, one a matrix. */
static void copy_globals(const struct plan_item *it, uint8_t *out)
{
    int64_t n = (int64_t)(it->global_bytes / 4);
    for (int64_t m = 0; m < n; m++)
        memcpy(out + 4 * m, ckpt_weight_stored_global(it->w, m * (it->rows / n)), 4);
}

static enum err_code start_unit(struct pack *p, struct unit *u, struct err *e)
{
    const struct plan_item *it = u->it;
    u->parts_left = it->packed ? 2 + (it->bias_bytes > 0) + (it->global_bytes > 0) : 1;
    if (pack_run_is_plain_copy(it))
        return ERR_OK;
    u->run_rows = errstat_run_rows(it->rows, it->k);
    u->n_runs = (it->rows + u->run_rows - 1) / u->run_rows;
    uint64_t bytes = plan_item_bytes(it), room = PACK_WINDOW - MIN2(PACK_WINDOW, p->in_memory);
    u->mem = pack_pool_take(&p->pool, bytes, room);
    u->stats = calloc((size_t)MAX2(u->n_runs, 1), sizeof *u->stats);
    if (!u->mem.mem || !u->stats)
        return err_set(e, ERR_NOMEM, "tensor %s: out of memory: %llu bytes", it->w->name,
                       (unsigned long long)bytes);
    u->dest.biases = u->mem.mem;
    u->dest.scales = u->mem.mem + it->bias_bytes;
    u->dest.codes = u->mem.mem + it->bias_bytes + it->scale_bytes;
    copy_globals(it, u->dest.codes + it->code_bytes);
    p->in_memory += u->mem.bytes;
    return ERR_OK;
}

/* The next tensor, if it fits beside those that are not written yet or is the one that the writer
 * waits for. */
static bool take_unit(struct pack *p, struct task *t)
{
    if (p->started == p->out.n_items)
        return false;
    struct unit *u = unit_at(p, p->started);
    bool copy = pack_run_is_plain_copy(u->it);
    uint64_t bytes = copy ? 0 : plan_item_bytes(u->it);
    bool awaited = p->out.parts[p->next_part].item == p->out.order[p->started];
    if (!awaited && p->in_memory + bytes > PACK_WINDOW)
        return false;
    struct err e = {.text = ""};
    enum err_code rc = start_unit(p, u, &e);
    if (rc != ERR_OK) {
        fail(p, rc, &e, p->started, 0);
        return false;
    }
    u->given = u->n_runs ? 1 : 0;
    u->finishing = u->n_runs == 0;
    *t = (struct task){u->n_runs ? TASK_RUN : TASK_FINISH, p->started, 0};
    p->started++;
    return true;
}

static bool take_run(struct pack *p, struct task *t)
{
    if (p->started == 0)
        return false;
    struct unit *u = unit_at(p, p->started - 1);
    if (u->given == u->n_runs)
        return false;
    *t = (struct task){TASK_RUN, p->started - 1, u->given++};
    return true;
}

static bool all_done(const struct pack *p)
{
    for (size_t i = 0; i < p->n_sources; i++)
        if (!p->sources[i].done)
            return false;
    return p->next_part == p->out.n_parts && !p->writing;
}

static bool take_write(struct pack *p, struct task *t)
{
    if (p->next_part == p->out.n_parts || p->writing ||
        !p->units[p->out.parts[p->next_part].item].ready)
        return false;
    p->writing = true;
    *t = (struct task){TASK_WRITE, p->next_part, 0};
    return true;
}

/* The first tensor whose runs are all done. */
static bool take_finish(struct pack *p, struct task *t)
{
    while (p->next_finish < p->started && unit_at(p, p->next_finish)->finishing)
        p->next_finish++;
    for (size_t i = p->next_finish; i < p->started; i++) {
        struct unit *u = unit_at(p, i);
        if (u->finishing || u->done < u->n_runs)
            continue;
        u->finishing = true;
        *t = (struct task){TASK_FINISH, i, u->n_runs};
        return true;
    }
    return false;
}

static bool take(struct pack *p, struct task *t)
{
    size_t left = p->n_sources - p->hashed_sources;
    if ((left == 0 || p->hashing < left) && (take_write(p, t) || take_finish(p, t)))
        return true;
    if (p->hashing == 0 && p->hashed <= p->progress && take_hash(p, t))
        return true;
    if (take_run(p, t) || take_unit(p, t))
        return true;
    return p->rc == ERR_OK && (take_write(p, t) || take_finish(p, t) || take_hash(p, t));
}

/* ---- tasks, outside of the lock ----------------------------------------------------------------
 */

static const uint8_t *part_data(const struct unit *u, enum pack_part_kind kind)
{
    const struct ckpt_weight *w = u->it->w;
    switch (kind) {
    case PACK_BIASES:
        return u->mem.mem ? u->dest.biases : w->biases;
    case PACK_GLOBALS:
        return u->mem.mem ? u->dest.codes + u->it->code_bytes : w->globals;
    case PACK_SCALES:
        return u->mem.mem ? u->dest.scales : w->scales;
    default:
        return u->mem.mem ? u->dest.codes : w->data;
    }
}

/* Dropping a page that is no map of a file would lose its bytes. */
static void drop(const struct pack *p, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < p->n_sources; i++) {
        const struct source *s = &p->sources[i];
        if (s->mapped && data >= s->data && data + bytes <= s->data + s->bytes)
            io_map_drop(data, bytes);
    }
}

static void drop_source(const struct pack *p, const struct plan_item *it, int64_t row0, int64_t n)
{
    const struct ckpt_weight *w = it->w;
    const size_t row = ckpt_weight_row_bytes(w);
    if (w->rope_heads || w->row_step || w->strides || ckpt_weight_packed(w))
        return;
    for (int64_t some; n > 0; row0 += some, n -= some) {
        struct ckpt_block at;
        some = MIN2(n, ckpt_weight_at(w, row0, &at));
        drop(p, at.data, (size_t)some * row);
    }
}

static enum err_code do_run(struct pack *p, const struct task *t, struct pack_scratch *s,
                            struct err *e)
{
    struct unit *u = unit_at(p, t->at);
    int64_t row0 = t->run * u->run_rows, n = MIN2(u->run_rows, u->it->rows - row0);
    enum err_code rc = pack_run(u->it, p->o->isa, row0, n, &u->dest, s, &u->stats[t->run], e);
    if ((t->run + 1) % DROP_RUNS == 0 || t->run + 1 == u->n_runs) {
        int64_t first = t->run / DROP_RUNS * DROP_RUNS * u->run_rows;
        drop_source(p, u->it, first, row0 + n - first);
    }
    return err_wrap(e, rc, "tensor %s", u->it->w->name);
}

/* The next bytes of a busy source, at most `bytes` of them. */
static struct sha256_piece source_piece(const struct source *s, size_t bytes)
{
    return (struct sha256_piece){s->sha, s->data + s->off, MIN2(bytes, s->bytes - s->off)};
}

/* Books what was hashed of a busy source, and gives it back. */
static void settle_source(struct pack *p, size_t at, size_t bytes)
{
    struct source *s = &p->sources[at];
    uint8_t digest[32];
    if (s->mapped)
        io_map_drop(s->data + s->off, bytes);
    pthread_mutex_lock(&p->lock);
    s->off += bytes;
    s->busy = false;
    p->hashing--;
    p->hashed += bytes;
    if (s->off == s->bytes) {
        sha256_final(s->sha, digest);
        s->sha = NULL;
        sha256_hex(digest, p->r->source_sha256[at]);
        s->done = true;
        p->hashed_sources++;
    }
    pthread_mutex_unlock(&p->lock);
}

/* SHA-256 reads slowly enough that memory could keep up, but the processor's own prefetch stops at
 * every page: asking two pages ahead gives 1.5 GB/s instead of 1.1. */
static void hash_stream(struct sha256 *sha, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 4096) {
        size_t n = MIN2(4096, bytes - at);
        for (size_t line = 0; line < n && at + 8192 + line < bytes; line += 64)
            __builtin_prefetch(data + at + 8192 + line);
        sha256_update(sha, data + at, n);
    }
}

/* Hashes data, and beside it as much of a source that is free. */
static void hash_beside(struct pack *p, struct sha256 *sha, const uint8_t *data, size_t bytes)
{
    size_t at;
    pthread_mutex_lock(&p->lock);
    bool company = bytes && take_source(p, &at);
    pthread_mutex_unlock(&p->lock);
    if (!company) {
        hash_stream(sha, data, bytes);
        return;
    }
    struct sha256_piece piece = source_piece(&p->sources[at], bytes);
    size_t taken = piece.bytes;
    sha256_update_beside(sha, data, bytes, &piece);
    settle_source(p, at, taken);
}

/* The tensor's hash and figures. */
static enum err_code finish_unit(struct pack *p, const struct unit *u, struct err *e)
{
    struct pack_tensor *t = &p->r->tensors[u->it - p->plan->items];
    struct sha256 *sha = sha256_new();
    if (!sha)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (u->it->packed) {
        if (u->it->bias_bytes)
            hash_beside(p, sha, part_data(u, PACK_BIASES), (size_t)u->it->bias_bytes);
        if (u->it->global_bytes)
            hash_beside(p, sha, part_data(u, PACK_GLOBALS), (size_t)u->it->global_bytes);
        hash_beside(p, sha, part_data(u, PACK_SCALES), (size_t)u->it->scale_bytes);
    }
    hash_beside(p, sha, part_data(u, PACK_CODES), (size_t)u->it->code_bytes);
    uint8_t digest[32];
    sha256_final(sha, digest);
    sha256_hex(digest, t->sha256);
    struct errstat sum = {{0}, {0}, {0}, {0}};
    for (int64_t i = 0; i < u->n_runs; i++)
        errstat_merge(&sum, &u->stats[i]);
    errstat_figures(&sum, &t->figures);
    t->copied = u->it->action == PLAN_COPY;
    t->exact = t->figures.max == 0.0;
    return ERR_OK;
}

/* The source is given back before the write, so that others hash on meanwhile. */
static enum err_code do_write(struct pack *p, size_t part, struct err *e)
{
    const struct unit *u = &p->units[p->out.parts[part].item];
    const uint8_t *data = part_data(u, p->out.parts[part].kind);
    size_t bytes = (size_t)p->out.parts[part].bytes, at = 0;
    enum err_code rc = ERR_OK;
    pthread_mutex_lock(&p->lock);
    bool company = take_source(p, &at);
    pthread_mutex_unlock(&p->lock);
    if (company) {
        struct sha256_piece piece = source_piece(&p->sources[at], bytes);
        size_t had = piece.bytes;
        rc = pack_out_hash(&p->out, part, data, &piece, e);
        settle_source(p, at, had - piece.bytes);
    }
    if (rc == ERR_OK)
        rc = pack_out_write(&p->out, part, data, e);
    if (rc == ERR_OK && !u->mem.mem)
        drop(p, data, bytes);
    return rc;
}

static void do_hash(struct pack *p, size_t at)
{
    struct sha256_piece piece = source_piece(&p->sources[at], HASH_BYTES);
    hash_beside(p, piece.sha, piece.data, piece.bytes);
    settle_source(p, at, piece.bytes);
}

/* ---- workers -----------------------------------------------------------------------------------
 */

static enum err_code perform(struct pack *p, const struct task *t, struct pack_scratch *s,
                             struct err *e)
{
    switch (t->kind) {
    case TASK_WRITE:
        return do_write(p, t->at, e);
    case TASK_RUN:
        return do_run(p, t, s, e);
    case TASK_HASH:
        do_hash(p, t->at);
        return ERR_OK;
    default:
        return finish_unit(p, unit_at(p, t->at), e);
    }
}

static void settle_write(struct pack *p, size_t part)
{
    struct unit *u = &p->units[p->out.parts[part].item];
    p->writing = false;
    p->next_part++;
    if (--u->parts_left > 0)
        return;
    p->in_memory -= u->mem.bytes;
    if (u->mem.mem)
        pack_pool_give(&p->pool, u->mem);
    free(u->stats);
    u->mem = (struct pack_buffer){NULL, 0};
    u->stats = NULL;
}

/* Books a task that went well. */
static void settle(struct pack *p, const struct task *t)
{
    struct unit *u;
    switch (t->kind) {
    case TASK_WRITE:
        settle_write(p, t->at);
        break;
    case TASK_RUN:
        u = unit_at(p, t->at);
        p->progress += u->it->w->bytes / (uint64_t)u->n_runs;
        u->done++;
        break;
    case TASK_FINISH:
        unit_at(p, t->at)->ready = true;
        break;
    default:
        break;
    }
}

static void look_for_interrupt(struct pack *p)
{
    struct err e = {.text = ""};
    if (p->o->interrupted && *p->o->interrupted && p->rc == ERR_OK)
        fail(p, err_set(&e, ERR_INTERRUPTED, "interrupted; nothing was kept"), &e, 0, -1);
}

static void *work(void *ctx)
{
    struct pack *p = ctx;
    struct pack_scratch scratch = {0};
    pthread_mutex_lock(&p->lock);
    while (p->rc == ERR_OK && !all_done(p)) {
        struct task t = {TASK_NONE, 0, 0};
        if (!take(p, &t)) {
            if (p->rc == ERR_OK)
                pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        struct err e = {.text = ""};
        enum err_code rc = perform(p, &t, &scratch, &e);
        pthread_mutex_lock(&p->lock);
        if (rc != ERR_OK) {
            bool at_unit = t.kind == TASK_RUN || t.kind == TASK_FINISH;
            fail(p, rc, &e, at_unit ? t.at : p->out.n_items, t.run);
        } else {
            settle(p, &t);
        }
        look_for_interrupt(p);
        pthread_cond_broadcast(&p->changed);
        if (p->progress - p->told >= SHOW_BYTES)
            pthread_cond_signal(&p->shown);
    }
    p->working--;
    pthread_cond_broadcast(&p->changed);
    pthread_cond_signal(&p->shown);
    pthread_mutex_unlock(&p->lock);
    pack_scratch_free(&scratch);
    return NULL;
}

/* The caller's thread: shows progress until the workers have ended. */
static void watch(struct pack *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->working > 0) {
        pthread_cond_wait(&p->shown, &p->lock);
        uint64_t more = p->progress - p->told;
        p->told = p->progress;
        if (more && p->o->progress) {
            pthread_mutex_unlock(&p->lock);
            p->o->progress(p->o->progress_ctx, more);
            pthread_mutex_lock(&p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
}

static enum err_code run_workers(struct pack *p, struct err *e)
{
    pthread_t threads[THREADS_MAX];
    int wanted = p->o->threads > 0 ? p->o->threads : par_default_threads(), n = 0;
    wanted = MIN2(wanted, THREADS_MAX);
    p->working = wanted;
    while (n < wanted && pthread_create(&threads[n], NULL, work, p) == 0)
        n++;
    pthread_mutex_lock(&p->lock);
    p->working -= wanted - n; /* fewer threads give the same bytes */
    pthread_mutex_unlock(&p->lock);
    if (n == 0)
        return err_set(e, ERR_NOMEM, "no thread could be started");
    watch(p);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    if (p->rc != ERR_OK && e)
        *e = p->err;
    return p->rc;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static enum err_code prepare(struct pack *p, struct err *e)
{
    const struct checkpoint *c = p->plan->ckpt;
    p->units = calloc(MAX2(p->plan->n_items, 1), sizeof *p->units);
    p->sources = calloc(MAX2(c->n_files, 1), sizeof *p->sources);
    p->r->tensors = calloc(MAX2(p->plan->n_items, 1), sizeof *p->r->tensors);
    p->r->source_sha256 = calloc(MAX2(c->n_files, 1), sizeof *p->r->source_sha256);
    if (!p->units || !p->sources || !p->r->tensors || !p->r->source_sha256)
        return err_set(e, ERR_NOMEM, "out of memory: %zu tensors", p->plan->n_items);
    for (size_t i = 0; i < p->plan->n_items; i++)
        p->units[i].it = &p->plan->items[i];
    for (p->n_sources = 0; p->n_sources < c->n_files; p->n_sources++) {
        struct source *s = &p->sources[p->n_sources];
        s->data = c->files[p->n_sources]->file_data;
        s->bytes = c->files[p->n_sources]->file_bytes;
        uint64_t size;
        const char *path = c->files[p->n_sources]->path;
        s->mapped = io_exists(path) && io_size(path, &size, NULL) == ERR_OK && size == s->bytes;
        s->sha = sha256_new();
        if (!s->sha)
            return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_OK;
}

static void release(struct pack *p)
{
    for (size_t i = 0; p->units && i < p->plan->n_items; i++) {
        free(p->units[i].mem.mem);
        free(p->units[i].stats);
    }
    for (size_t i = 0; i < p->n_sources; i++) {
        uint8_t digest[32];
        if (p->sources[i].sha)
            sha256_final(p->sources[i].sha, digest);
    }
    pack_pool_free(&p->pool);
    free(p->units);
    free(p->sources);
    pack_out_close(&p->out);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    pthread_cond_destroy(&p->shown);
}

enum err_code pack_write(const struct plan *plan, const char *dir, const struct pack_options *o,
                         struct pack_result *r, struct err *e)
{
    struct pack p = {.plan = plan, .o = o, .r = r};
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    pthread_cond_init(&p.shown, NULL);
    enum err_code rc = prepare(&p, e);
    if (rc == ERR_OK)
        rc =
            pack_out_open(&p.out, plan, dir, o->shard_bytes ? o->shard_bytes : PACK_SHARD_BYTES, e);
    if (rc == ERR_OK)
        rc = run_workers(&p, e);
    if (rc == ERR_OK)
        rc = pack_out_finish(&p.out, r, e);
    release(&p);
    if (rc != ERR_OK)
        pack_result_free(r);
    return rc;
}

void pack_result_free(struct pack_result *r)
{
    free(r->tensors);
    free(r->files);
    free(r->source_sha256);
    memset(r, 0, sizeof *r);
}
