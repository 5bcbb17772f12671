/* census.c: counting, checksums and duplicate ids of a prompt file. Owns no request.
 *
 * Duplicates without a table of ids: the pass keeps 64 bits of each id's SHA-256 and sorts them in
 * place. Equal neighbours are rare and nearly always true duplicates; only when there are some, a
 * second pass looks at the ids that have them, by 128 bits, and finds the two lines.
 */
#include "infer/census.h"

#include <stdlib.h>
#include <zlib.h>

#include "common/hash.h"
#include "common/io.h"
#include "infer/prompts.h"

uint32_t census_sum(uint64_t number, const char *line, size_t len)
{
    uint8_t n[8];
    store_u64(n, number);
    return (uint32_t)crc32_z(crc32_z(0, n, sizeof n), (const uint8_t *)line, len);
}

void census_prefix(const struct census *c, uint64_t n, char hex[65])
{
    uint8_t digest[32];
    sha256_of(c->sums, (size_t)n * sizeof *c->sums, digest);
    sha256_hex(digest, hex);
}

void census_free(struct census *c)
{
    free(c->sums);
    *c = (struct census){.n_requests = 0};
}

/* ---- walking ----------------------------------------------------------------------------------
 */

struct line {
    const char *text;
    size_t len;
    bool too_long;
    uint64_t number;
};

typedef enum err_code (*visit)(void *ctx, const struct line *l, struct err *e);

/* Every request of the file; sha, when given, sees the blank lines too. */
static enum err_code walk(const char *path, struct sha256 *sha, visit each, void *ctx,
                          struct err *e)
{
    struct io_lines *lines;
    enum err_code rc = io_lines_open(&lines, path, e);
    if (rc != ERR_OK)
        return rc;
    for (;;) {
        struct line l;
        rc = io_lines_next(lines, PROMPT_LINE_MAX, &l.text, &l.len, &l.too_long, e);
        if (rc != ERR_OK || !l.text)
            break;
        if (sha) {
            sha256_update(sha, l.text, l.len);
            sha256_update(sha, "\n", 1);
        }
        l.number = io_lines_number(lines);
        if (prompts_blank(l.text, l.len) && !l.too_long)
            continue;
        rc = each(ctx, &l, e);
        if (rc != ERR_OK)
            break;
    }
    io_lines_close(lines);
    return rc;
}

/* SHA-256 of the line's id. */
static enum err_code digest_of(const struct line *l, uint8_t digest[32], struct err *e)
{
    char *id = prompts_custom_id(l->text, l->too_long ? 0 : l->len, l->number);
    if (!id)
        return err_set(e, ERR_NOMEM, "out of memory");
    sha256_of(id, strlen(id), digest);
    free(id);
    return ERR_OK;
}

/* ---- the pass ---------------------------------------------------------------------------------
 */

struct pass {
    struct census *c;
    uint64_t *ids; /* 64 bits of each id's digest */
    size_t cap;
};

static enum err_code count(void *ctx, const struct line *l, struct err *e)
{
    struct pass *p = ctx;
    struct census *c = p->c;
    uint8_t digest[32];
    enum err_code rc = digest_of(l, digest, e);
    if (rc != ERR_OK)
        return rc;
    if (c->n_requests == p->cap) {
        size_t cap = p->cap ? p->cap + p->cap / 4 : 4096;
        uint64_t *ids = realloc(p->ids, cap * sizeof *ids);
        p->ids = ids ? ids : p->ids;
        uint32_t *sums = realloc(c->sums, cap * sizeof *sums);
        c->sums = sums ? sums : c->sums;
        if (!ids || !sums)
            return err_set(e, ERR_NOMEM, "out of memory for %zu requests", cap);
        p->cap = cap;
    }
    p->ids[c->n_requests] = load_u64(digest);
    c->sums[c->n_requests++] = census_sum(l->number, l->text, l->len);
    return ERR_OK;
}

/* Sorts in place, bit by bit from the highest: no memory, at most 64 levels. */
static void sort_ids(uint64_t *a, size_t n, int bit)
{
    if (n < 24 || bit < 0) {
        for (size_t i = 1; i < n; i++) {
            uint64_t x = a[i];
            size_t j = i;
            for (; j && a[j - 1] > x; j--)
                a[j] = a[j - 1];
            a[j] = x;
        }
        return;
    }
    size_t ones = n;
    for (size_t i = 0; i < ones;) {
        if (a[i] >> bit & 1) {
            uint64_t x = a[--ones];
            a[ones] = a[i];
            a[i] = x;
        } else {
            i++;
        }
    }
    sort_ids(a, ones, bit - 1);
    sort_ids(a + ones, n - ones, bit - 1);
}

/* ---- ids that stand twice ---------------------------------------------------------------------
 */

struct suspect {
    uint64_t id, rest; /* the first and the next 64 bits of the digest */
    uint64_t line;     /* where it was seen first; 0: not yet */
};

struct hunt {
    struct suspect *s; /* sorted by id */
    size_t n;
};

static enum err_code compare_id(void *ctx, const struct line *l, struct err *e)
{
    struct hunt *h = ctx;
    uint8_t digest[32];
    enum err_code rc = digest_of(l, digest, e);
    if (rc != ERR_OK)
        return rc;
    uint64_t id = load_u64(digest), rest = load_u64(digest + 8);
    size_t lo = 0, hi = h->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (h->s[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == h->n || h->s[lo].id != id)
        return ERR_OK;
    struct suspect *s = &h->s[lo];
    if (s->line && s->rest == rest) {
        char *text = prompts_custom_id(l->text, l->too_long ? 0 : l->len, l->number);
        rc = err_set(e, ERR_INPUT, "custom_id '%s' stands on line %llu and again on line %llu",
                     text ? text : "", (unsigned long long)s->line, (unsigned long long)l->number);
        free(text);
        return rc;
    }
    if (!s->line) {
        s->line = l->number;
        s->rest = rest;
    }
    return ERR_OK;
}

static enum err_code refuse_twice(const char *path, uint64_t *ids, size_t n, struct err *e)
{
    struct hunt h = {.s = NULL};
    size_t n_twice = 0;
    sort_ids(ids, n, 63);
    for (size_t i = 1; i < n; i++)
        n_twice += ids[i] == ids[i - 1] && (i == 1 || ids[i] != ids[i - 2]);
    if (!n_twice)
        return ERR_OK;
    h.s = calloc(n_twice, sizeof *h.s);
    if (!h.s)
        return err_set(e, ERR_NOMEM, "out of memory for %zu ids", n_twice);
    for (size_t i = 1; i < n; i++)
        if (ids[i] == ids[i - 1] && (i == 1 || ids[i] != ids[i - 2]))
            h.s[h.n++].id = ids[i];
    enum err_code rc = walk(path, NULL, compare_id, &h, e);
    free(h.s);
    return rc;
}

enum err_code census_take(struct census *c, const char *path, struct err *e)
{
    *c = (struct census){.n_requests = 0};
    struct pass p = {.c = c};
    uint8_t digest[32];
    struct sha256 *sha = sha256_new();
    enum err_code rc = sha ? walk(path, sha, count, &p, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && c->n_requests == 0)
        rc = err_set(e, ERR_INPUT, "the prompt file is empty: expected at least one line");
    if (rc == ERR_OK)
        rc = refuse_twice(path, p.ids, c->n_requests, e);
    free(p.ids);
    if (sha) {
        sha256_final(sha, digest);
        sha256_hex(digest, c->sha256);
    }
    if (rc == ERR_OK && c->n_requests < p.cap) {
        uint32_t *fit = realloc(c->sums, c->n_requests * sizeof *fit);
        c->sums = fit ? fit : c->sums;
    }
    if (rc != ERR_OK)
        census_free(c);
    return err_wrap(e, rc, "%s", path);
}
