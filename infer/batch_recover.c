/* batch_recover.c: taking up what an earlier run left. Owns the reading of OUT.run, OUT.journal and
 * OUT, and what happens to bytes that nothing vouches for.
 *
 * The table is filled from OUT.run (a finished run) and then from the journal (the one under way);
 * then OUT is compared with it, line by line. A torn end is cut off: that is what a killed process
 * leaves. Damage before the end is nothing that a run makes: those bytes are kept in OUT.damaged,
 * the requests run again, and lines behind the damage that are still whole wait in the journal for
 * their turn.
 */
#include <stdlib.h>

#include "common/log.h"
#include "infer/batch_crash.h"
#include "infer/batch_store_private.h"

#define DROP_BYTES ((size_t)16 << 20)

/* Byte ranges of a file. */
struct range {
    uint64_t from, to;
};
struct ranges {
    struct range *r;
    size_t n, cap;
};

static bool push_range(struct ranges *v, uint64_t from, uint64_t to)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 16;
        struct range *more = realloc(v->r, cap * sizeof *more);
        if (!more)
            return false;
        v->r = more;
        v->cap = cap;
    }
    v->r[v->n++] = (struct range){from, to};
    return true;
}

/* ---- keeping what is damaged ------------------------------------------------------------------
 */

static const char damaged_head[] = "# assay: damaged bytes";

static enum err_code set_aside(const struct batch_store *s, const char *file, const uint8_t *data,
                               const struct ranges *v, struct err *e)
{
    struct io_grow *g;
    char first[sizeof damaged_head - 1];
    if (!v->n)
        return ERR_OK;
    enum err_code rc = io_grow_open(&g, s->path.damaged, e);
    if (rc != ERR_OK)
        return rc;
    if (io_grow_bytes(g) && (io_grow_bytes(g) < sizeof first ||
                             io_grow_read(g, 0, first, sizeof first, NULL) != ERR_OK ||
                             memcmp(first, damaged_head, sizeof first) != 0))
        rc = err_set(e, ERR_USAGE, "%s: not a file of assay's batches: it is left alone",
                     s->path.damaged);
    for (size_t i = 0; i < v->n && rc == ERR_OK; i++) {
        struct strbuf head = {0};
        strbuf_printf(&head, "%s %llu..%llu of %s\n", damaged_head,
                      (unsigned long long)v->r[i].from, (unsigned long long)v->r[i].to,
                      io_base(file));
        rc = strbuf_ok(&head, e);
        if (rc == ERR_OK)
            rc = io_grow_put(g, head.data, head.len, e);
        if (rc == ERR_OK)
            rc = io_grow_put(g, data + v->r[i].from, (size_t)(v->r[i].to - v->r[i].from), e);
        if (rc == ERR_OK)
            rc = io_grow_put(g, "\n", 1, e);
        strbuf_free(&head);
    }
    if (rc == ERR_OK)
        rc = io_grow_sync(g, e);
    io_grow_close(g);
    return rc;
}

/* ---- reading records --------------------------------------------------------------------------
 */

struct scan {
    uint64_t generation;
    bool any, ended; /* a head was read; an END is the last record */
    struct ranges damaged;
    uint64_t whole; /* bytes up to the end of the last whole line */
    /* Of the last OPEN: how it ended is known, or what the machine said then. */
    bool in_session;
    char boot[64];
    int64_t oom_kills;
    /* A record speaks of another input; the scan goes on until it knows of which request. */
    bool changed, found_request;
    struct err why;
};

static enum err_code compare_identity(const json_t *was, const json_t *is, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)is, key, value)
    {
        const char *old = json_string_value(json_object_get(was, key));
        if (!old || strcmp(old, json_string_value(value)) != 0)
            return err_set(e, ERR_INPUT, "cannot resume: %s was '%s' and is '%s'", key,
                           old ? old : "(absent)", json_string_value(value));
    }
    json_object_foreach((json_t *)(uintptr_t)was, key, value)
    {
        if (!json_object_get(is, key))
            return err_set(e, ERR_INPUT, "cannot resume: %s was '%s' and is '(absent)'", key,
                           json_is_string(value) ? json_string_value(value) : "?");
    }
    return ERR_OK;
}

static enum err_code read_head(const struct batch_store *s, const char *line, size_t len,
                               struct scan *scan, struct err *e)
{
    struct batch_rec r;
    enum err_code rc = batch_rec_parse(&r, line, len, e);
    if (rc != ERR_OK)
        return rc;
    if (r.kind != BATCH_REC_HEAD)
        rc = err_set(e, ERR_INPUT, "is not the head of a run");
    if (rc == ERR_OK)
        rc = compare_identity(r.identity, s->identity, e);
    if (rc == ERR_OK && strcmp(r.run, s->run) != 0)
        rc = err_set(e, ERR_INPUT, "cannot resume: run was '%s' and is '%s'", r.run, s->run);
    scan->generation = r.generation;
    scan->any = rc == ERR_OK;
    batch_rec_free(&r);
    return rc;
}

/* One line after the head. ERR_INPUT: it is damage, or (changed) of another input. */
static enum err_code read_record(struct batch_store *s, const char *line, size_t len, uint64_t base,
                                 struct scan *scan, struct err *e)
{
    struct batch_rec r;
    enum err_code rc = batch_rec_parse(&r, line, len, e);
    if (rc != ERR_OK)
        return rc;
    if (strcmp(r.run, s->run) != 0 || r.kind == BATCH_REC_HEAD) {
        rc = err_set(e, ERR_INPUT, "is a record of another run");
    } else {
        struct err why = {.text = ""};
        rc = batch_table_apply(&s->table, &r, base, &why);
        if (rc == ERR_INPUT) {
            scan->changed = true;
            scan->found_request = r.kind == BATCH_REC_OUT || r.kind == BATCH_REC_DONE;
            scan->why = why;
            rc = ERR_OK;
        } else if (rc != ERR_OK && e) {
            *e = why;
        }
        scan->ended = r.kind == BATCH_REC_END;
        if (r.kind == BATCH_REC_OPEN) {
            memcpy(scan->boot, r.boot, sizeof scan->boot);
            scan->oom_kills = r.oom_kills;
        }
        if (r.kind == BATCH_REC_OPEN || r.kind == BATCH_REC_DIED || r.kind == BATCH_REC_STOP)
            scan->in_session = r.kind == BATCH_REC_OPEN;
    }
    batch_rec_free(&r);
    return rc;
}

static bool blank(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ')
            return false;
    return true;
}

/* Fills the table from one file. A file without a whole line has no head: scan->any is false. */
static enum err_code scan_file(struct batch_store *s, const char *path, const struct io_map *map,
                               struct scan *scan, struct err *e)
{
    uint64_t at = 0, dropped = 0, number = 0;
    enum err_code rc = ERR_OK;
    while (at < map->bytes && rc == ERR_OK) {
        const uint8_t *line = map->data + at;
        const uint8_t *end = memchr(line, '\n', map->bytes - at);
        if (!end)
            break;
        size_t len = (size_t)(end - line);
        number++;
        if (number == 1) {
            rc = read_head(s, (const char *)line, len, scan, e);
        } else if (!blank(line, len)) {
            rc = read_record(s, (const char *)line, len, at, scan, e);
            if (rc == ERR_INPUT) {
                log_warn("%s: line %llu: %s", path, (unsigned long long)number, e ? e->text : "");
                rc = push_range(&scan->damaged, at, at + len)
                         ? ERR_OK
                         : err_set(e, ERR_NOMEM, "out of memory");
            } else if (rc == ERR_OK && scan->found_request) {
                break;
            }
        }
        at += len + 1;
        if (at - dropped >= DROP_BYTES) {
            io_map_drop(map->data + dropped, (size_t)(at - dropped));
            dropped = at;
        }
    }
    scan->whole = at;
    if (rc == ERR_OK && scan->changed) {
        if (e)
            *e = scan->why;
        rc = ERR_INPUT;
    }
    return err_wrap(e, rc, "%s: line %llu", path, (unsigned long long)number);
}

/* OUT.run of a finished run, which may have been damaged since. */
static enum err_code take_run(struct batch_store *s, struct scan *scan, bool *damaged,
                              struct err *e)
{
    struct io_map map;
    if (!io_exists(s->path.run))
        return ERR_OK;
    enum err_code rc = io_map_open(&map, s->path.run, e);
    if (rc != ERR_OK)
        return rc;
    rc = scan_file(s, s->path.run, &map, scan, e);
    if (rc == ERR_OK && !scan->any)
        rc = err_set(e, ERR_INPUT, "%s: has no head: cut or altered", s->path.run);
    if (rc == ERR_OK && scan->whole < map.bytes &&
        !push_range(&scan->damaged, scan->whole, map.bytes))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    *damaged = scan->damaged.n > 0 || !scan->ended;
    if (rc == ERR_OK && *damaged)
        log_warn("%s: is damaged; what nothing vouches for runs again", s->path.run);
    if (rc == ERR_OK)
        rc = set_aside(s, s->path.run, map.data, &scan->damaged, e);
    io_map_close(&map);
    return rc;
}

/* Damaged lines are overwritten with blanks once they are kept elsewhere: no other byte moves. */
static enum err_code mend_journal(struct batch_store *s, const struct io_map *map,
                                  const struct scan *scan, struct err *e)
{
    enum err_code rc = set_aside(s, s->path.journal, map->data, &scan->damaged, e);
    for (size_t i = 0; i < scan->damaged.n && rc == ERR_OK; i++) {
        char fill[4096];
        memset(fill, ' ', sizeof fill);
        for (uint64_t at = scan->damaged.r[i].from; at < scan->damaged.r[i].to && rc == ERR_OK;) {
            size_t n = (size_t)MIN2((uint64_t)sizeof fill, scan->damaged.r[i].to - at);
            rc = io_grow_overwrite(s->journal, at, fill, n, e);
            at += n;
        }
    }
    if (rc == ERR_OK && scan->damaged.n)
        log_warn("%s: %zu damaged records are kept in %s; what they spoke of runs again",
                 s->path.journal, scan->damaged.n, s->path.damaged);
    if (rc == ERR_OK && scan->whole < map->bytes)
        rc = io_grow_cut(s->journal, scan->whole, e);
    return rc;
}

/* The journal under way, after OUT.run. */
static enum err_code take_journal(struct batch_store *s, const struct scan *base, struct scan *scan,
                                  struct err *e)
{
    struct io_map map;
    if (io_grow_bytes(s->journal) == 0)
        return ERR_OK;
    enum err_code rc = io_map_open(&map, s->path.journal, e);
    if (rc != ERR_OK)
        return rc;
    if (!memchr(map.data, '\n', map.bytes)) {
        /* A stop within the first write: nothing was begun. */
        rc = io_grow_cut(s->journal, 0, e);
        goto out;
    }
    struct scan head = {.any = false};
    rc = read_head(s, (const char *)map.data,
                   (size_t)((const uint8_t *)memchr(map.data, '\n', map.bytes) - map.data), &head,
                   e);
    rc = err_wrap(e, rc, "%s: line 1", s->path.journal);
    if (rc != ERR_OK)
        goto out;
    if (base->any && head.generation == base->generation) {
        rc = io_grow_cut(s->journal, 0, e); /* OUT.run holds all of it already */
        goto out;
    }
    if (head.generation != base->generation + 1) {
        rc = err_set(e, ERR_INPUT,
                     "%s: generation %llu does not follow %s, which has %llu: a journal of another "
                     "run",
                     s->path.journal, (unsigned long long)head.generation, s->path.run,
                     (unsigned long long)base->generation);
        goto out;
    }
    rc = scan_file(s, s->path.journal, &map, scan, e);
    if (rc == ERR_OK)
        rc = mend_journal(s, &map, scan, e);
out:
    io_map_close(&map);
    return rc;
}

/* ---- OUT against the table --------------------------------------------------------------------
 */

static bool is_whole(const struct io_map *map, const struct batch_line *l)
{
    return l->len <= map->bytes && l->at <= map->bytes - l->len &&
           map->data[l->at + l->len - 1] == '\n' &&
           batch_line_sum((const char *)map->data + l->at, l->len - 1) == l->sum;
}

/* Lines of OUT from its first byte on that are as the table says; one that is to run again ends
 * them. *bytes: where they end. */
static uint64_t good_lines(const struct batch_store *s, const struct io_map *map, bool retry,
                           uint64_t *bytes)
{
    uint64_t n = 0, off = 0, dropped = 0;
    for (; n < s->table.in->n_requests; n++) {
        const struct batch_line *l = &s->table.line[n];
        if (l->place != BATCH_IN_OUT || l->at != off || !is_whole(map, l) ||
            (retry && l->status != BATCH_OK))
            break;
        off += l->len;
        if (off - dropped >= DROP_BYTES) {
            io_map_drop(map->data + dropped, (size_t)(off - dropped));
            dropped = off;
        }
    }
    *bytes = off;
    return n;
}

/* Lines behind `from` bytes that are whole go to the journal; the others run again. Bytes that
 * belong to none of them, and are not lines to be retried, come into `lost`. */
static enum err_code salvage(struct batch_store *s, const struct io_map *map, uint64_t n,
                             uint64_t from, bool retry, struct ranges *lost, uint64_t *again,
                             struct err *e)
{
    batch_rec_cut(&s->text, s->run, n);
    enum err_code rc = batch_store_record(s, e);
    uint64_t at = from;
    for (; n < s->table.in->n_requests && rc == ERR_OK; n++) {
        struct batch_line *l = &s->table.line[n];
        if (l->place != BATCH_IN_OUT)
            continue;
        bool whole = l->at >= at && is_whole(map, l);
        l->place = BATCH_NOWHERE;
        *again += !whole;
        if (!whole)
            continue;
        if (l->at > at && !push_range(lost, at, l->at))
            return err_set(e, ERR_NOMEM, "out of memory");
        at = l->at + l->len;
        if (!retry || l->status == BATCH_OK)
            rc = batch_store_wait(s, n, (enum batch_outcome)l->status,
                                  (const char *)map->data + l->at, l->len, e);
    }
    if (rc == ERR_OK && at < map->bytes && !push_range(lost, at, map->bytes))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

static bool any_in_out(const struct batch_store *s, uint64_t from)
{
    for (uint64_t n = from; n < s->table.in->n_requests; n++)
        if (s->table.line[n].place == BATCH_IN_OUT)
            return true;
    return false;
}

/* finished: no run is under way, so nothing explains bytes that the table does not know. */
static enum err_code take_out(struct batch_store *s, bool finished, bool retry, struct err *e)
{
    struct io_map map;
    struct ranges lost = {.n = 0};
    uint64_t bytes, again = 0;
    enum err_code rc = io_grow_open(&s->out, s->path.out, e);
    if (rc == ERR_OK)
        rc = io_map_open(&map, s->path.out, e);
    if (rc != ERR_OK)
        return rc;
    s->n_out = good_lines(s, &map, retry, &bytes);
    bool behind = any_in_out(s, s->n_out);
    if (!behind && bytes == map.bytes)
        goto out;
    if (behind || finished)
        rc = batch_store_begin(s, retry, e);
    if (rc == ERR_OK && (behind || finished))
        rc = salvage(s, &map, s->n_out, bytes, retry, &lost, &again, e);
    if (rc == ERR_OK && (lost.n || again))
        log_warn("%s: damaged after request %llu: %llu of its lines run again; %s %s", s->path.out,
                 (unsigned long long)s->n_out, (unsigned long long)again,
                 lost.n ? "the bytes are kept in" : "it is shorter than its journal says in",
                 lost.n ? s->path.damaged : s->path.journal);
    else if (rc == ERR_OK && !behind)
        log_info("%s: %llu bytes of an unfinished write are cut off", s->path.out,
                 (unsigned long long)(map.bytes - bytes));
    if (rc == ERR_OK)
        rc = set_aside(s, s->path.out, map.data, &lost, e);
    if (rc == ERR_OK && s->in_session)
        rc = io_grow_sync(s->journal, e); /* what was in OUT is safe before OUT is cut */
out:
    io_map_close(&map);
    free(lost.r);
    if (rc == ERR_OK && bytes < io_grow_bytes(s->out))
        rc = io_grow_cut(s->out, bytes, e);
    return rc;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* The last process neither stopped in order nor marked a crash. Did the kernel end it for memory?
 * A kill by hand and a power cut are not held against what ran. */
static enum err_code judge_last(struct batch_store *s, const struct scan *scan, struct err *e)
{
    char boot[64];
    int64_t oom_kills;
    if (!scan->in_session)
        return ERR_OK;
    batch_crash_machine(boot, sizeof boot, &oom_kills);
    if (!boot[0] || strcmp(boot, scan->boot) != 0 || oom_kills <= scan->oom_kills)
        return ERR_OK;
    batch_rec_died(&s->text, s->run, "out of memory");
    struct batch_rec r = {.kind = BATCH_REC_DIED};
    enum err_code rc = batch_table_apply(&s->table, &r, 0, e);
    return rc == ERR_OK ? batch_store_record(s, e) : rc;
}

static bool anything_to_do(const struct batch_store *s)
{
    return s->n_out < s->table.in->n_requests || io_grow_bytes(s->journal) > 0;
}

static void forget_failures(struct batch_store *s)
{
    for (uint64_t n = 0; n < s->table.in->n_requests; n++) {
        struct batch_line *l = &s->table.line[n];
        l->deaths = 0;
        if (l->place == BATCH_EARLY && l->status != BATCH_OK)
            l->place = BATCH_NOWHERE;
    }
}

enum err_code batch_recover(struct batch_store *s, bool retry_failed, struct err *e)
{
    struct scan base = {.generation = 0}, scan = {.generation = 0};
    bool run_damaged = false;
    enum err_code rc = take_run(s, &base, &run_damaged, e);
    if (rc == ERR_OK)
        rc = take_journal(s, &base, &scan, e);
    if (rc == ERR_OK)
        rc = judge_last(s, &scan, e);
    s->generation = base.generation + 1;
    if (rc == ERR_OK && retry_failed)
        forget_failures(s);
    if (rc == ERR_OK)
        rc = take_out(s, !scan.any, retry_failed, e);
    if (rc == ERR_OK && (anything_to_do(s) || run_damaged))
        rc = batch_store_begin(s, retry_failed, e);
    free(base.damaged.r);
    free(scan.damaged.r);
    return rc;
}
