/* batch_status.c: counts, pace and their file. */
#include "infer/batch_status.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/io.h"
#include "common/json.h"
#include "common/log.h"

#define EVERY_NS  ((uint64_t)1000 * 1000 * 1000)
#define HALF_LIFE 20.0

static const char head[] = "{\"assay_status\":1,";

struct batch_status {
    char *path, fingerprint[65];
    uint64_t start_ns, shown_ns;
    struct batch_counts last;
    struct batch_pace pace;
    bool warned;
};

static char *status_path(const char *out)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "%s.status.json", out);
    return strbuf_take(&b);
}

enum err_code batch_status_check(const char *out, bool *stale, struct err *e)
{
    *stale = false;
    struct strbuf text = {0};
    char *path = status_path(out);
    enum err_code rc = path ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && io_exists(path)) {
        rc = io_read_all(path, (size_t)1 << 20, &text, e);
        if (rc == ERR_OK && !(text.data && str_starts(text.data, head)))
            rc = err_set(e, ERR_USAGE, "%s: not a status of assay: it is left alone", path);
        *stale = rc == ERR_OK && !strstr(text.data, "\"state\":\"done\"");
    }
    strbuf_free(&text);
    free(path);
    return rc;
}

enum err_code batch_status_new(struct batch_status **out, const char *path, const char *fingerprint,
                               struct err *e)
{
    *out = NULL;
    struct batch_status *s = calloc(1, sizeof *s);
    if (s)
        s->path = status_path(path);
    if (!s || !s->path) {
        free(s);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    memcpy(s->fingerprint, fingerprint, sizeof s->fingerprint);
    s->start_ns = clock_ns();
    *out = s;
    return ERR_OK;
}

void batch_status_free(struct batch_status *s)
{
    if (!s)
        return;
    free(s->path);
    free(s);
}

void batch_pace_add(struct batch_pace *p, double seconds, uint64_t requests, uint64_t tokens)
{
    double old = exp2(-MAX2(seconds, 0) / HALF_LIFE);
    p->requests = old * p->requests + (double)requests;
    p->tokens = old * p->tokens + (double)tokens;
    p->seconds = old * p->seconds + MAX2(seconds, 0);
}

double batch_pace_left(const struct batch_pace *p, double tokens_per_request,
                       uint64_t requests_left)
{
    double tokens = (double)requests_left * tokens_per_request;
    if (requests_left == 0)
        return 0;
    return tokens > 0 && p->tokens > 0 ? tokens / p->tokens * p->seconds : -1;
}

static void put_rate(struct strbuf *b, double amount, double seconds)
{
    json_put_double(b, seconds > 0 ? floor(amount / seconds * 1e3) / 1e3 : 0);
}

static void put_text(struct batch_status *s, const char *state, const struct batch_counts *c,
                     double seconds, double left, struct strbuf *b)
{
    strbuf_printf(b,
                  "%s\"state\":\"%s\",\"pid\":%ld,\"fingerprint\":\"%s\",\"requests\":%llu,"
                  "\"done\":%llu,\"ok\":%llu,\"failed\":%llu,\"kept\":%llu,\"written\":%llu,"
                  "\"running\":%llu,\"prompt_tokens\":%llu,\"new_tokens\":%llu,\"seconds\":",
                  head, state, (long)getpid(), s->fingerprint, (unsigned long long)c->requests,
                  (unsigned long long)(c->ok + c->failed), (unsigned long long)c->ok,
                  (unsigned long long)c->failed, (unsigned long long)c->kept,
                  (unsigned long long)c->written, (unsigned long long)c->running,
                  (unsigned long long)c->prompt_tokens, (unsigned long long)c->new_tokens);
    json_put_double(b, floor(seconds * 1e3) / 1e3);
    strbuf_puts(b, ",\"requests_per_s\":");
    put_rate(b, s->pace.requests, s->pace.seconds);
    strbuf_puts(b, ",\"tokens_per_s\":");
    put_rate(b, s->pace.tokens, s->pace.seconds);
    strbuf_puts(b, ",\"seconds_left\":");
    json_put_double(b, left >= 0 ? ceil(left) : (double)NAN);
    strbuf_puts(b, "}\n");
}

void batch_status_set(struct batch_status *s, const char *state, const struct batch_counts *c)
{
    uint64_t now = clock_ns(), last = s->shown_ns ? s->shown_ns : s->start_ns;
    if (strcmp(state, "running") == 0 && s->shown_ns && now - s->shown_ns < EVERY_NS)
        return;
    struct strbuf b = {0};
    struct err e = {.text = ""};
    uint64_t tokens = c->prompt_tokens + c->new_tokens;
    uint64_t done = c->ok + c->failed, mine = done - c->kept;
    uint64_t before = s->last.ok + s->last.failed + (s->shown_ns ? 0 : c->kept);
    batch_pace_add(&s->pace, (double)(now - last) * 1e-9, done - before,
                   tokens - s->last.prompt_tokens - s->last.new_tokens);
    double left =
        batch_pace_left(&s->pace, mine ? (double)tokens / (double)mine : 0, c->requests - done);
    s->last = *c;
    s->shown_ns = now;
    put_text(s, state, c, (double)(now - s->start_ns) * 1e-9, left, &b);
    enum err_code rc = strbuf_ok(&b, &e);
    if (rc == ERR_OK)
        rc = io_write_all(s->path, b.data, b.len, true, &e);
    if (rc != ERR_OK && !s->warned)
        log_warn("the status is not written: %s", e.text);
    s->warned |= rc != ERR_OK;
    strbuf_free(&b);
}
