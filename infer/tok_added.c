/* tok_added.c: see tok_added.h. A set is a sorted list; a search at one place narrows the range of
 * entries byte by byte and keeps the longest one that is complete and allowed. */
#include "infer/tok_added.h"

#include <stdlib.h>

#include "infer/tok_classes.h"

struct tok_added_entry {
    const char *s;
    size_t len;
    size_t token; /* index in tokens */
};

/* ---- reading ------------------------------------------------------------------------------ */

static enum err_code read_token(struct tok_added_token *t, const json_t *spec,
                                struct tok_text *content, struct err *e)
{
    int64_t id = 0;
    const struct {
        const char *key;
        bool *to;
    } flags[] = {
        {"single_word", &t->single_word}, {"lstrip", &t->lstrip},   {"rstrip", &t->rstrip},
        {"normalized", &t->normalized},   {"special", &t->special},
    };
    if (!json_is_object(spec))
        return err_set(e, ERR_INPUT, "expected an object");
    enum err_code rc = json_get_int(spec, "id", JSON_REQUIRED, 0, TOK_ID_MAX - 1, &id, e);
    if (rc == ERR_OK)
        rc = tok_util_string(spec, "content", content, e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(flags); i++)
        rc = json_get_bool(spec, flags[i].key, JSON_REQUIRED, flags[i].to, e);
    if (rc == ERR_OK && content->len > TOK_ADDED_BYTES_MAX)
        rc = err_set(e, ERR_INPUT, "content: found %zu bytes, at most %d are allowed", content->len,
                     TOK_ADDED_BYTES_MAX);
    t->id = (int32_t)id;
    return rc;
}

/* The library goes by its own counting and ignores the file's id: a file in which the two differ
 * would mean different ids to different readers. */
static enum err_code check_id(struct tok_vocab *v, int32_t id, struct tok_text content,
                              int32_t *max_id, struct err *e)
{
    int32_t want = tok_vocab_find(v, content.s, content.len);
    bool in_model = want >= 0;
    if (!in_model)
        want = *max_id >= v->n_model ? *max_id + 1 : v->n_model;
    if (id != want)
        return err_set(e, ERR_INPUT, "id of '%.80s': found %d, expected %d, %s", content.s, id,
                       want,
                       in_model ? "its id in model.vocab" : "the next id after those before it");
    if (id > *max_id)
        *max_id = id;
    return in_model ? ERR_OK : tok_vocab_name(v, id, content, e);
}

static enum err_code add_token(struct tok_added *a, struct tok_added_token t,
                               struct tok_text content, const struct tok_norm *norm,
                               struct tok_norm_scratch *s, struct err *e)
{
    struct tok_trust trust = {NULL, true};
    if (t.normalized) {
        enum err_code rc = tok_norm_run(norm, s, content, trust, &content, &trust, e);
        if (rc != ERR_OK)
            return rc;
    }
    if (content.len == 0)
        return err_set(e, ERR_INPUT, "content: the normalizer leaves nothing of it");
    t.off = a->blob.len;
    t.len = content.len;
    strbuf_append(&a->blob, content.s, content.len);
    if (!tok_util_grow(&a->tokens, &a->cap, a->n + 1, sizeof *a->tokens))
        return err_set(e, ERR_NOMEM, "out of memory");
    a->tokens[a->n++] = t;
    return strbuf_ok(&a->blob, e);
}

static int compare_entries(const void *x, const void *y)
{
    const struct tok_added_entry *a = x, *b = y;
    int c = memcmp(a->s, b->s, MIN2(a->len, b->len));
    if (c != 0)
        return c;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

static enum err_code build_set(struct tok_added *a, struct tok_added_set *set, bool normalized,
                               struct err *e)
{
    set->v = calloc(a->n + 1, sizeof *set->v);
    if (!set->v)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < a->n; i++) {
        const struct tok_added_token *t = &a->tokens[i];
        if (t->normalized == normalized)
            set->v[set->n++] = (struct tok_added_entry){a->blob.data + t->off, t->len, i};
    }
    qsort(set->v, set->n, sizeof *set->v, compare_entries);
    /* The library takes either of two tokens that are normalized to one text, by chance. */
    for (size_t i = 1; i < set->n; i++) {
        const struct tok_added_entry *x = &set->v[i - 1], *y = &set->v[i];
        if (x->len == y->len && memcmp(x->s, y->s, x->len) == 0)
            return err_set(e, ERR_INPUT, "added_tokens: ids %d and %d have the same text '%.*s'",
                           a->tokens[x->token].id, a->tokens[y->token].id, (int)MIN2(x->len, 80),
                           x->s);
    }
    size_t at = 0;
    for (unsigned b = 0; b < 257; b++) {
        while (at < set->n && (uint8_t)set->v[at].s[0] < b)
            at++;
        set->first[b] = at;
    }
    return ERR_OK;
}

static enum err_code index_ids(struct tok_added *a, int32_t n_ids, struct err *e)
{
    a->by_id = malloc((size_t)n_ids * sizeof *a->by_id);
    if (!a->by_id)
        return err_set(e, ERR_NOMEM, "out of memory");
    a->n_ids = n_ids;
    memset(a->by_id, 0xff, (size_t)n_ids * sizeof *a->by_id);
    for (size_t i = 0; i < a->n; i++) {
        int32_t *slot = &a->by_id[a->tokens[i].id];
        if (*slot >= 0)
            return err_set(e, ERR_INPUT, "[%zu].id: found %d, which entry %d has too", i,
                           a->tokens[i].id, *slot);
        *slot = (int32_t)i;
    }
    return ERR_OK;
}

static enum err_code compile_word(struct tok_added *a, struct err *e)
{
    struct strbuf p = {0};
    bool needed = false;
    for (size_t i = 0; i < a->n; i++)
        needed = needed || a->tokens[i].single_word;
    if (!needed)
        return ERR_OK;
    strbuf_putc(&p, '[');
    tok_classes_put_word(&p);
    strbuf_putc(&p, ']');
    enum err_code rc = strbuf_ok(&p, e);
    if (rc == ERR_OK)
        rc = tok_regex_new_pcre(&a->word, p.data, e);
    strbuf_free(&p);
    return rc;
}

enum err_code tok_added_init(struct tok_added *a, const json_t *spec, struct tok_vocab *v,
                             const struct tok_norm *norm, struct err *e)
{
    struct tok_norm_scratch scratch = {0};
    enum err_code rc = ERR_OK;
    int32_t max_id = -1;
    memset(a, 0, sizeof *a);
    if (spec && !json_is_null(spec) && !json_is_array(spec))
        return err_set(e, ERR_INPUT, "added_tokens: expected an array");
    size_t n = json_is_array(spec) ? json_array_size(spec) : 0;
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        struct tok_added_token t = {0};
        struct tok_text content = {"", 0};
        rc = read_token(&t, json_array_get(spec, i), &content, e);
        if (rc == ERR_OK && content.len == 0)
            continue; /* the library passes over it */
        if (rc == ERR_OK)
            rc = check_id(v, t.id, content, &max_id, e);
        if (rc == ERR_OK)
            rc = add_token(a, t, content, norm, &scratch, e);
        if (rc != ERR_OK)
            err_wrap(e, rc, "added_tokens[%zu]", i);
    }
    if (rc == ERR_OK)
        rc = err_wrap(e, index_ids(a, v->n_ids, e), "added_tokens");
    if (rc == ERR_OK)
        rc = build_set(a, &a->raw, false, e);
    if (rc == ERR_OK)
        rc = build_set(a, &a->normalized, true, e);
    if (rc == ERR_OK)
        rc = compile_word(a, e);
    tok_norm_scratch_free(&scratch);
    return rc;
}

void tok_added_free(struct tok_added *a)
{
    free(a->tokens);
    free(a->raw.v);
    free(a->normalized.v);
    free(a->by_id);
    strbuf_free(&a->blob);
    tok_regex_free(a->word);
    memset(a, 0, sizeof *a);
}

/* ---- questions ---------------------------------------------------------------------------- */

static bool is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

static bool is_blank(struct tok_text t)
{
    for (const char *p = t.s; p < t.s + t.len;) {
        if (!is_space(str_utf8_next(&p)))
            return false;
    }
    return true;
}

void tok_added_guard(struct tok_added *a, const struct tok_vocab *v, struct tok_text text)
{
    for (size_t i = 0; i < a->n; i++) {
        struct tok_text content = tok_vocab_text(v, a->tokens[i].id);
        if (!is_blank(content) && memmem(text.s, text.len, content.s, content.len))
            a->tokens[i].guarded = true;
    }
}

bool tok_added_is_special(const struct tok_added *a, int32_t id)
{
    return id >= 0 && id < a->n_ids && a->by_id[id] >= 0 && a->tokens[a->by_id[id]].special;
}

bool tok_added_is_control(const struct tok_added *a, int32_t id)
{
    if (id < 0 || id >= a->n_ids || a->by_id[id] < 0)
        return false;
    return a->tokens[a->by_id[id]].special || a->tokens[a->by_id[id]].guarded;
}

struct tok_text tok_added_text(const struct tok_added *a, const struct tok_vocab *v, int32_t id)
{
    if (id >= 0 && id < a->n_ids && a->by_id[id] >= 0) {
        const struct tok_added_token *t = &a->tokens[a->by_id[id]];
        if (t->normalized)
            return (struct tok_text){a->blob.data + t->off, t->len};
    }
    return tok_vocab_text(v, id);
}

int32_t tok_added_find(const struct tok_added *a, const struct tok_vocab *v, const char *s,
                       size_t len)
{
    for (size_t i = 0; i < a->n; i++) {
        struct tok_text t = tok_vocab_text(v, a->tokens[i].id);
        if (t.len == len && memcmp(t.s, s, len) == 0)
            return a->tokens[i].id;
    }
    return -1;
}

/* ---- matching ----------------------------------------------------------------------------- */

enum leave { FORMED, AS_TEXT, NOT_THERE };

/* May this text form the token? A control token in text that nobody trusts is used up as plain
 * text, as the library's encode_special_tokens does. One that only begins or ends in trusted text
 * is not there at all, so that it cannot hide a trusted one beside it. */
static enum leave judge(const struct tok_added_token *t, struct tok_trust trust, size_t at)
{
    if (!t->special && !t->guarded)
        return FORMED;
    if (!trust.map)
        return trust.all ? FORMED : AS_TEXT;
    if (!memchr(trust.map + at, 0, t->len))
        return FORMED;
    return memchr(trust.map + at, 1, t->len) ? NOT_THERE : AS_TEXT;
}

/* First entry in [lo, hi) whose byte at `depth` is above, or not below, c. */
static size_t find_bound(const struct tok_added_set *set, size_t lo, size_t hi, size_t depth,
                         unsigned c)
{
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((uint8_t)set->v[mid].s[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that begins at `at`; NULL: none. */
static const struct tok_added_token *find_longest(const struct tok_added *a,
                                                  const struct tok_added_set *set,
                                                  const struct tok_added_walk *w, size_t at,
                                                  enum leave *leave)
{
    const struct tok_added_token *best = NULL;
    unsigned c = (uint8_t)w->text.s[at];
    size_t lo = set->first[c], hi = set->first[c + 1];
    for (size_t depth = 1; lo < hi; depth++) {
        if (set->v[lo].len == depth) {
            const struct tok_added_token *t = &a->tokens[set->v[lo].token];
            enum leave l = judge(t, w->trust, at);
            if (l != NOT_THERE) {
                best = t;
                *leave = l;
            }
            while (lo < hi && set->v[lo].len == depth)
                lo++;
        }
        if (at + depth >= w->text.len)
            break;
        c = (uint8_t)w->text.s[at + depth];
        lo = find_bound(set, lo, hi, depth, c);
        hi = find_bound(set, lo, hi, depth, c + 1);
    }
    return best;
}

static enum err_code is_word(const struct tok_added *a, struct tok_search *s, const char *c,
                             size_t n, bool *word, struct err *e)
{
    tok_regex_begin(s);
    return tok_regex_next(a->word, s, c, n, word, e);
}

/* Is there a word character right before `start` or right behind `end`? */
static enum err_code touches_word(const struct tok_added *a, struct tok_text t, size_t start,
                                  size_t end, struct tok_search *s, bool *touches, struct err *e)
{
    enum err_code rc = ERR_OK;
    *touches = false;
    if (start > 0) {
        size_t c = start - 1;
        while (c > 0 && ((uint8_t)t.s[c] & 0xc0) == 0x80)
            c--;
        rc = is_word(a, s, t.s + c, start - c, touches, e);
    }
    if (rc == ERR_OK && !*touches && end < t.len) {
        const char *p = t.s + end;
        (void)str_utf8_next(&p);
        rc = is_word(a, s, t.s + end, (size_t)(p - (t.s + end)), touches, e);
    }
    return rc;
}

/* A token may begin in white space that the last match has swallowed. It counts all the same, in
 * the library too, unless it strips its left side: then nothing is left of it. */
static void swallow_spaces(const struct tok_added_token *t, const struct tok_added_walk *w,
                           struct tok_added_match *m)
{
    while (t->lstrip && m->start > w->done) {
        size_t c = m->start - 1;
        while (c > w->done && ((uint8_t)w->text.s[c] & 0xc0) == 0x80)
            c--;
        const char *p = w->text.s + c;
        if (!is_space(str_utf8_next(&p)))
            break;
        m->start = c;
    }
    if (t->lstrip && m->start < w->done)
        m->start = w->done;
    while (t->rstrip && m->end < w->text.len) {
        const char *p = w->text.s + m->end;
        if (!is_space(str_utf8_next(&p)))
            break;
        m->end = (size_t)(p - w->text.s);
    }
}

enum err_code tok_added_next(const struct tok_added *a, const struct tok_added_set *set,
                             struct tok_added_walk *w, struct tok_search *search,
                             struct tok_added_match *m, bool *found, struct err *e)
{
    *found = false;
    if (set->n == 0)
        return ERR_OK;
    while (w->pos < w->text.len) {
        enum leave leave = FORMED;
        const struct tok_added_token *t = find_longest(a, set, w, w->pos, &leave);
        if (!t) {
            w->pos++;
            continue;
        }
        *m = (struct tok_added_match){w->pos, w->pos + t->len, t->id};
        w->pos = m->end;
        bool skip = leave == AS_TEXT;
        if (!skip && t->single_word) {
            enum err_code rc = touches_word(a, w->text, m->start, m->end, search, &skip, e);
            if (rc != ERR_OK)
                return rc;
        }
        if (skip)
            continue;
        swallow_spaces(t, w, m);
        if (m->start >= m->end)
            continue;
        *found = true;
        return ERR_OK;
    }
    return ERR_OK;
}
