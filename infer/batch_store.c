/* batch_store.c: writing OUT and its journal, in an order that a stop at any point leaves legible.
 *
 * OUT's bytes are written before the record that vouches for them; bytes without a record are cut
 * off by the next run. Nothing is acknowledged to anybody, so what is lost with a process is work
 * and never truth.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/log.h"
#include "infer/batch_crash.h"
#include "infer/batch_store_private.h"

/* To the disk ten times a second or after a mebibyte, but for a tenth of the time at most: a slow
 * disk makes the steps longer, not the run. */
#define SYNC_NS    ((uint64_t)100 * 1000 * 1000)
#define SYNC_BYTES ((uint64_t)1 << 20)
#define SYNC_SHARE 10

/* ---- names ------------------------------------------------------------------------------------
 */

static char *with_suffix(const char *path, const char *suffix)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%s%s", path, suffix);
    return strbuf_take(&b);
}

enum err_code batch_paths_make(struct batch_paths *p, const char *out, struct err *e)
{
    *p = (struct batch_paths){.out = with_suffix(out, ""),
                              .journal = with_suffix(out, ".journal"),
                              .run = with_suffix(out, ".run"),
                              .damaged = with_suffix(out, ".damaged")};
    return p->out && p->journal && p->run && p->damaged ? ERR_OK
                                                        : err_set(e, ERR_NOMEM, "out of memory");
}

void batch_paths_free(struct batch_paths *p)
{
    free(p->out);
    free(p->journal);
    free(p->run);
    free(p->damaged);
}

enum err_code batch_owner_of(const char *path, enum batch_owner *who, struct err *e)
{
    struct io_lines *lines;
    const char *line = NULL;
    size_t len = 0;
    bool too_long;
    *who = BATCH_NOBODY;
    if (!io_exists(path))
        return ERR_OK;
    if (io_is_dir(path))
        return err_set(e, ERR_USAGE, "%s: is a folder, expected the name of a file", path);
    enum err_code rc = io_lines_open(&lines, path, e);
    if (rc != ERR_OK)
        return rc;
    if (io_lines_next(lines, 64, &line, &len, &too_long, NULL) != ERR_OK)
        *who = BATCH_FOREIGN; /* not even a line of text */
    else if (line)
        *who = str_starts(line, "{\"run\":\"") && strstr(line, "\",\"batch\":{") ? BATCH_OURS
                                                                                 : BATCH_FOREIGN;
    io_lines_close(lines);
    return ERR_OK;
}

/* ---- may it be made? ------------------------------------------------------------------------- */

static enum err_code check_names(const struct batch_paths *p, const struct batch_store_options *o,
                                 struct err *e)
{
    enum batch_owner run, journal;
    enum err_code rc = batch_owner_of(p->run, &run, e);
    if (rc == ERR_OK)
        rc = batch_owner_of(p->journal, &journal, e);
    if (rc != ERR_OK)
        return rc;
    if (run == BATCH_FOREIGN || journal == BATCH_FOREIGN)
        return err_set(e, ERR_USAGE, "%s: not a file of assay's batches: it is left alone",
                       run == BATCH_FOREIGN ? p->run : p->journal);
    if (io_is_dir(p->out))
        return err_set(e, ERR_USAGE, "%s: is a folder, expected the name of a file", p->out);
    bool there = io_exists(p->out), ours = run == BATCH_OURS || journal == BATCH_OURS;
    if ((there || journal == BATCH_OURS) && !o->resume && !o->force)
        return err_set(e, ERR_USAGE, "%s exists (--resume goes on, --force replaces it)",
                       there ? p->out : p->journal);
    if (there && !ours)
        return err_set(e, ERR_USAGE,
                       "%s exists and neither %s nor %s does: not an output of assay, it is left "
                       "alone",
                       p->out, p->run, p->journal);
    return ERR_OK;
}

enum err_code batch_store_check(const struct batch_store_options *o, struct err *e)
{
    struct batch_paths p;
    struct io_grow *lock = NULL;
    enum err_code rc = batch_paths_make(&p, o->out, e);
    if (rc == ERR_OK)
        rc = check_names(&p, o, e);
    if (rc == ERR_OK && io_exists(p.journal))
        rc = io_grow_open(&lock, p.journal, e);
    io_grow_close(lock);
    batch_paths_free(&p);
    return rc;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static void set_fingerprint(struct batch_store *s)
{
    struct strbuf b = {0};
    uint8_t digest[32];
    json_put(&b, s->identity, JSON_SORT_KEYS);
    sha256_of(b.data ? b.data : "", b.len, digest);
    sha256_hex(digest, s->fingerprint);
    snprintf(s->run, sizeof s->run, "%.16s", s->fingerprint);
    strbuf_free(&b);
}

enum err_code batch_store_record(struct batch_store *s, struct err *e)
{
    enum err_code rc = strbuf_ok(&s->text, e);
    if (rc == ERR_OK)
        rc = io_grow_put(s->journal, s->text.data, s->text.len, e);
    s->unsynced += s->text.len;
    strbuf_clear(&s->text);
    return rc;
}

static void input_of(const struct census *c, struct batch_rec_input *in)
{
    in->requests = c->n_requests;
    census_prefix(c, c->n_requests, in->sums);
    memcpy(in->sha256, c->sha256, sizeof in->sha256);
}

enum err_code batch_store_begin(struct batch_store *s, bool retry, struct err *e)
{
    if (s->in_session)
        return ERR_OK;
    struct batch_rec_input in;
    char boot[64];
    int64_t oom_kills;
    batch_crash_machine(boot, sizeof boot, &oom_kills);
    input_of(s->table.in, &in);
    if (io_grow_bytes(s->journal) == 0)
        batch_rec_head(&s->text, s->run, s->generation, s->fingerprint, s->identity);
    batch_rec_open(&s->text, s->run, &in, retry, boot, oom_kills);
    enum err_code rc = batch_store_record(s, e);
    if (rc == ERR_OK)
        rc = io_grow_sync(s->journal, e);
    s->in_session = rc == ERR_OK;
    return rc;
}

/* The old output goes first: without OUT, what is left of the others names no result. */
static enum err_code start_fresh(struct batch_store *s, struct err *e)
{
    enum err_code rc = io_remove(s->path.out, e);
    if (rc == ERR_OK)
        rc = io_remove(s->path.run, e);
    if (rc == ERR_OK)
        rc = io_grow_cut(s->journal, 0, e);
    s->generation = 1;
    if (rc == ERR_OK)
        rc = batch_store_begin(s, false, e);
    return rc == ERR_OK ? io_grow_open(&s->out, s->path.out, e) : rc;
}

static enum err_code open_files(struct batch_store *s, const struct batch_store_options *o,
                                struct err *e)
{
    enum err_code rc = check_names(&s->path, o, e);
    if (rc == ERR_OK)
        rc = io_grow_open(&s->journal, s->path.journal, e);
    if (rc == ERR_OK)
        rc = check_names(&s->path, o, e); /* again, now that nobody else can change it */
    if (rc != ERR_OK)
        return rc;
    bool there = io_exists(s->path.run) || io_grow_bytes(s->journal) > 0;
    if (o->force || !o->resume || !there)
        return start_fresh(s, e);
    rc = batch_recover(s, o->retry_failed, e);
    for (uint64_t n = 0; rc == ERR_OK && n < s->table.in->n_requests; n++) {
        const struct batch_line *l = &s->table.line[n];
        s->n_ok += l->place != BATCH_NOWHERE && l->status == BATCH_OK;
        s->n_failed += l->place != BATCH_NOWHERE && l->status != BATCH_OK;
    }
    return rc;
}

static void release(struct batch_store *s)
{
    /* A journal without a byte says nothing: it was only the lock. */
    if (s->journal && io_grow_bytes(s->journal) == 0)
        (void)!io_remove(s->path.journal, NULL);
    io_grow_close(s->out);
    io_grow_close(s->journal);
    batch_table_free(&s->table);
    batch_paths_free(&s->path);
    strbuf_free(&s->text);
    free(s);
}

enum err_code batch_store_open(struct batch_store **out, const struct batch_store_options *o,
                               struct err *e)
{
    *out = NULL;
    struct batch_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory");
    s->identity = o->identity;
    s->synced_ns = clock_ns();
    set_fingerprint(s);
    enum err_code rc = batch_paths_make(&s->path, o->out, e);
    if (rc == ERR_OK)
        rc = batch_table_new(&s->table, o->census, e);
    if (rc == ERR_OK)
        rc = open_files(s, o, e);
    s->identity = NULL;
    if (rc != ERR_OK)
        release(s);
    else
        *out = s;
    return rc;
}

/* ---- what is known ----------------------------------------------------------------------------
 */

enum batch_todo batch_store_todo(const struct batch_store *s, uint64_t n)
{
    const struct batch_line *l = &s->table.line[n];
    if (l->place != BATCH_NOWHERE)
        return BATCH_ANSWERED;
    return l->deaths == 0 ? BATCH_TO_RUN : l->deaths == 1 ? BATCH_TO_RUN_ALONE : BATCH_TO_SET_ASIDE;
}

void batch_store_kept(const struct batch_store *s, uint64_t *ok, uint64_t *failed)
{
    *ok = s->n_ok;
    *failed = s->n_failed;
}

bool batch_store_idle(const struct batch_store *s)
{
    return !s->in_session;
}

int batch_store_journal_fd(const struct batch_store *s)
{
    return io_grow_fd(s->journal);
}

const char *batch_store_run(const struct batch_store *s)
{
    return s->run;
}

const char *batch_store_fingerprint(const struct batch_store *s)
{
    return s->fingerprint;
}

/* ---- growing ----------------------------------------------------------------------------------
 */

static enum err_code record_start(struct batch_store *s, struct err *e)
{
    if (!s->start_count)
        return ERR_OK;
    batch_rec_start(&s->text, s->run, s->start_n, s->start_count);
    s->start_count = 0;
    return batch_store_record(s, e);
}

enum err_code batch_store_started(struct batch_store *s, uint64_t n, struct err *e)
{
    enum err_code rc = ERR_OK;
    if (s->start_count && n != s->start_n + s->start_count)
        rc = record_start(s, e);
    if (!s->start_count)
        s->start_n = n;
    s->start_count++;
    return rc;
}

/* OUT's gathered lines are written, then vouched for. */
static enum err_code record_group(struct batch_store *s, struct err *e)
{
    enum err_code rc = io_grow_write(s->out, e);
    if (rc != ERR_OK || !s->n_group)
        return rc;
    batch_rec_out(&s->text, s->run, s->n_out - s->n_group, s->group_at, s->group, s->n_group);
    s->n_group = 0;
    return batch_store_record(s, e);
}

enum err_code batch_store_wait(struct batch_store *s, uint64_t n, enum batch_outcome status,
                               const char *line, size_t len, struct err *e)
{
    struct batch_line *l = &s->table.line[n];
    uint64_t base = io_grow_bytes(s->journal);
    size_t reply_at =
        batch_rec_done(&s->text, s->run, n, s->table.in->sums[n], status, line, len - 1);
    l->place = BATCH_EARLY;
    l->status = status;
    l->at = (base + reply_at) & ((1ull << 48) - 1);
    l->len = (uint32_t)len;
    l->sum = batch_line_sum(line, len - 1);
    return batch_store_record(s, e);
}

/* The line of request n_out joins OUT. */
static enum err_code append(struct batch_store *s, enum batch_outcome status, const char *line,
                            size_t len, struct err *e)
{
    struct batch_line *l = &s->table.line[s->n_out];
    uint64_t at = io_grow_bytes(s->out);
    enum err_code rc = io_grow_put(s->out, line, len, e);
    if (rc != ERR_OK)
        return rc;
    if (!s->n_group)
        s->group_at = at;
    l->place = BATCH_IN_OUT;
    l->status = status;
    l->at = at & ((1ull << 48) - 1);
    l->len = (uint32_t)len;
    l->sum = batch_line_sum(line, len - 1);
    s->group[s->n_group++] = (struct batch_rec_line){
        .len = l->len, .sum = l->sum, .in = s->table.in->sums[s->n_out], .status = status};
    s->n_out++;
    s->unsynced += len;
    return s->n_group == BATCH_GROUP ? record_group(s, e) : ERR_OK;
}

/* Lines whose turn has come leave the journal. */
static enum err_code drain(struct batch_store *s, struct err *e)
{
    enum err_code rc = ERR_OK;
    while (rc == ERR_OK && s->n_out < s->table.in->n_requests) {
        const struct batch_line *l = &s->table.line[s->n_out];
        if (l->place != BATCH_EARLY)
            break;
        char *line = malloc(l->len);
        if (!line)
            return err_set(e, ERR_NOMEM, "out of memory for a line of %u bytes", l->len);
        uint32_t len = l->len, sum = l->sum;
        rc = io_grow_read(s->journal, l->at, line, len - 1, e);
        if (rc == ERR_OK && batch_line_sum(line, len - 1) != sum)
            rc = err_set(e, ERR_IO, "%s: the line of request %llu was changed under this run",
                         s->path.journal, (unsigned long long)s->n_out + 1);
        line[len - 1] = '\n';
        if (rc == ERR_OK)
            rc = append(s, (enum batch_outcome)l->status, line, len, e);
        free(line);
    }
    return rc;
}

enum err_code batch_store_put(struct batch_store *s, uint64_t n, enum batch_outcome status,
                              const char *line, size_t len, struct err *e)
{
    if (len < 1 || (int64_t)len > BATCH_LEN_MAX)
        return err_set(e, ERR_INTERNAL, "an output line of %zu bytes", len);
    s->n_ok += status == BATCH_OK;
    s->n_failed += status != BATCH_OK;
    if (n != s->n_out)
        return batch_store_wait(s, n, status, line, len, e);
    enum err_code rc = append(s, status, line, len, e);
    return rc == ERR_OK ? drain(s, e) : rc;
}

static enum err_code write_all(struct batch_store *s, struct err *e)
{
    enum err_code rc = record_start(s, e);
    if (rc == ERR_OK)
        rc = record_group(s, e);
    return rc == ERR_OK ? io_grow_write(s->journal, e) : rc;
}

static enum err_code sync_all(struct batch_store *s, struct err *e)
{
    uint64_t start = clock_ns();
    enum err_code rc = write_all(s, e);
    if (rc == ERR_OK)
        rc = io_grow_sync(s->out, e);
    if (rc == ERR_OK)
        rc = io_grow_sync(s->journal, e);
    s->synced_ns = clock_ns();
    s->pause_ns = (s->synced_ns - start) * SYNC_SHARE;
    s->unsynced = 0;
    return rc;
}

enum err_code batch_store_flush(struct batch_store *s, uint64_t *n_out, struct err *e)
{
    enum err_code rc = drain(s, e); /* lines that an earlier run left for their turn */
    *n_out = s->n_out;
    if (rc != ERR_OK)
        return rc;
    uint64_t since = clock_ns() - s->synced_ns;
    bool due = s->unsynced >= SYNC_BYTES || (s->unsynced && since >= SYNC_NS);
    return due && since >= s->pause_ns ? sync_all(s, e) : write_all(s, e);
}

/* ---- closing ----------------------------------------------------------------------------------
 */

static enum err_code put_text(struct batch_store *s, struct io_out *o, struct err *e)
{
    enum err_code rc = strbuf_ok(&s->text, e);
    if (rc == ERR_OK)
        rc = io_out_write(o, s->text.data, s->text.len, e);
    strbuf_clear(&s->text);
    return rc;
}

/* head: the first record of the journal, as it stands there. */
static enum err_code write_run(struct batch_store *s, struct io_out *o, struct err *e)
{
    struct batch_rec_input in;
    struct io_lines *journal;
    const char *head;
    size_t len;
    bool too_long;
    enum err_code rc = io_lines_open(&journal, s->path.journal, e);
    if (rc != ERR_OK)
        return rc;
    rc = io_lines_next(journal, SIZE_MAX / 2, &head, &len, &too_long, e);
    if (rc == ERR_OK && head) {
        strbuf_append(&s->text, head, len);
        strbuf_putc(&s->text, '\n');
        rc = put_text(s, o, e);
    }
    io_lines_close(journal);
    uint64_t at = 0;
    for (uint64_t n = 0; rc == ERR_OK && n < s->n_out;) {
        size_t count = (size_t)MIN2((uint64_t)BATCH_GROUP, s->n_out - n);
        uint64_t from = at;
        for (size_t i = 0; i < count; i++) {
            const struct batch_line *l = &s->table.line[n + i];
            s->group[i] = (struct batch_rec_line){.len = l->len,
                                                  .sum = l->sum,
                                                  .in = s->table.in->sums[n + i],
                                                  .status = (enum batch_outcome)l->status};
            at += l->len;
        }
        batch_rec_out(&s->text, s->run, n, from, s->group, count);
        rc = put_text(s, o, e);
        n += count;
    }
    input_of(s->table.in, &in);
    batch_rec_finish(&s->text, s->run, &in, at);
    return rc == ERR_OK ? put_text(s, o, e) : rc;
}

/* Every request stands in OUT: the journal becomes OUT.run. A stop between the rename and the
 * removal leaves a journal of the generation of OUT.run, which the next run removes. */
static enum err_code shrink(struct batch_store *s, struct err *e)
{
    struct io_out *o;
    enum err_code rc = sync_all(s, e);
    if (rc == ERR_OK)
        rc = io_out_open(&o, s->path.run, true, e);
    if (rc != ERR_OK)
        return rc;
    rc = write_run(s, o, e);
    if (rc != ERR_OK) {
        io_out_abort(o);
        return rc;
    }
    rc = io_out_commit(o, e);
    return rc == ERR_OK ? io_remove(s->path.journal, e) : rc;
}

enum err_code batch_store_close(struct batch_store *s, enum err_code how, uint64_t *n_out,
                                struct err *e)
{
    if (!s)
        return ERR_OK;
    enum err_code rc = ERR_OK;
    if (s->in_session && how == ERR_OK) {
        rc = drain(s, e);
        if (rc == ERR_OK && s->n_out != s->table.in->n_requests)
            rc = err_set(e, ERR_INTERNAL, "%llu of %llu requests are answered",
                         (unsigned long long)s->n_out, (unsigned long long)s->table.in->n_requests);
        if (rc == ERR_OK)
            rc = shrink(s, e);
    } else if (s->in_session && how != ERR_IO) {
        rc = drain(s, e);
        if (rc == ERR_OK)
            rc = write_all(s, e);
        if (how == ERR_INTERNAL || how == ERR_NOMEM)
            batch_rec_died(&s->text, s->run, err_meaning(how));
        else
            batch_rec_stop(&s->text, s->run);
        if (rc == ERR_OK)
            rc = batch_store_record(s, e);
        if (rc == ERR_OK)
            rc = sync_all(s, e);
    }
    *n_out = s->n_out;
    release(s);
    return rc;
}
