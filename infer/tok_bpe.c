/* tok_bpe.c: see tok_bpe.h. */
#include "infer/tok_bpe.h"

#include <stdlib.h>

#include "common/hash.h"

#define GONE (-1)

struct tok_symbol {
    int32_t id;         /* GONE once merged into its left neighbour */
    int32_t prev, next; /* -1 at the ends */
};

struct tok_pair {
    uint64_t key; /* rank << 32 | position: the order in which pairs are joined */
    int32_t id;   /* what the pair becomes; another value there says the entry is stale */
};

/* ---- reading the model ------------------------------------------------------------------ */

static uint32_t hash_pair(int32_t left, int32_t right)
{
    return (uint32_t)hash_mix64((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

static struct tok_merge *find_slot(const struct tok_bpe *b, int32_t left, int32_t right)
{
    uint32_t at = hash_pair(left, right) & b->mask;
    while (b->merges[at].left >= 0 && (b->merges[at].left != left || b->merges[at].right != right))
        at = (at + 1) & b->mask;
    return &b->merges[at];
}

/* Splits "a b" at its only space, or takes the two strings of an array. */
static enum err_code split_merge(const json_t *m, struct tok_text *a, struct tok_text *b,
                                 struct err *e)
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
        if (json_is_string(x) && json_is_string(y)) {
            *a = (struct tok_text){json_string_value(x), json_string_length(x)};
            *b = (struct tok_text){json_string_value(y), json_string_length(y)};
            return ERR_OK;
        }
    }
    if (!json_is_string(m))
        return err_set(e, ERR_INPUT, "found neither \"a b\" nor [\"a\", \"b\"]");
    const char *s = json_string_value(m);
    size_t len = json_string_length(m);
    const char *space = memchr(s, ' ', len);
    if (!space || memchr(space + 1, ' ', len - (size_t)(space + 1 - s)))
        return err_set(e, ERR_INPUT, "found '%.80s', expected two tokens and one space", s);
    *a = (struct tok_text){s, (size_t)(space - s)};
    *b = (struct tok_text){space + 1, len - a->len - 1};
    return ERR_OK;
}

static enum err_code find_token(const struct tok_bpe *b, struct tok_text t, int32_t *id,
                                struct err *e)
{
    *id = tok_vocab_find(&b->vocab, t.s, t.len);
    if (*id >= 0)
        return ERR_OK;
    return err_set(e, ERR_INPUT, "found token '%.*s', which is not in the vocabulary",
                   (int)MIN2(t.len, 80), t.s);
}

static enum err_code add_merge(struct tok_bpe *b, const json_t *m, uint32_t rank,
                               struct strbuf *join, struct err *e)
{
    struct tok_text l = {"", 0}, r = {"", 0};
    int32_t left, right, id;
    enum err_code rc = split_merge(m, &l, &r, e);
    if (rc != ERR_OK)
        return rc;
    strbuf_clear(join);
    strbuf_append(join, l.s, l.len);
    strbuf_append(join, r.s, r.len);
    rc = strbuf_ok(join, e);
    if (rc == ERR_OK)
        rc = find_token(b, l, &left, e);
    if (rc == ERR_OK)
        rc = find_token(b, r, &right, e);
    if (rc == ERR_OK)
        rc = find_token(b, (struct tok_text){join->data, join->len}, &id, e);
    if (rc != ERR_OK)
        return rc;
    /* A pair named twice keeps its last rank, as in the library. */
    *find_slot(b, left, right) = (struct tok_merge){left, right, rank, id};
    return ERR_OK;
}

static enum err_code read_merges(struct tok_bpe *b, const json_t *model, struct err *e)
{
    const json_t *list = json_object_get(model, "merges");
    if (!json_is_array(list))
        return err_set(e, ERR_INPUT,
                       "merges: found %s, expected an array: a BPE vocabulary "
                       "cannot be used without its merges",
                       list ? "another type" : "nothing");
    size_t n = json_array_size(list), slots = 16;
    if (n > UINT32_MAX / 4)
        return err_set(e, ERR_INPUT, "merges: found %zu entries, at most %u are allowed", n,
                       UINT32_MAX / 4);
    while (slots < 2 * n)
        slots *= 2;
    b->merges = malloc(slots * sizeof *b->merges);
    if (!b->merges)
        return err_set(e, ERR_NOMEM, "merges: out of memory for %zu slots", slots);
    memset(b->merges, 0xff, slots * sizeof *b->merges);
    b->mask = (uint32_t)(slots - 1);
    struct strbuf join = {0};
    enum err_code rc = ERR_OK;
    uint32_t rank = 0;
    bool strings = n > 0 && json_is_string(json_array_get(list, 0));
    for (size_t i = 0; i < n && rc == ERR_OK; i++) {
        const json_t *m = json_array_get(list, i);
        if (json_is_string(m) != strings)
            rc = err_set(e, ERR_INPUT, "found strings and arrays in one list");
        else if (!strings || !str_starts(json_string_value(m), "#version"))
            rc = add_merge(b, m, rank++, &join, e);
        if (rc != ERR_OK)
            err_wrap(e, rc, "merges[%zu]", i);
    }
    strbuf_free(&join);
    return rc;
}

static enum err_code refuse_text(const json_t *model, const char *key, struct err *e)
{
    const char *s = "";
    enum err_code rc = json_get_string(model, key, JSON_OPTIONAL, &s, e);
    if (rc == ERR_OK && s[0])
        return err_set(e, ERR_INPUT, "%s: found '%.80s', only null or \"\" is supported", key, s);
    return rc;
}

static enum err_code read_flags(struct tok_bpe *b, const json_t *model, struct err *e)
{
    enum err_code rc = json_get_bool(model, "fuse_unk", JSON_OPTIONAL, &b->fuse_unk, e);
    double dropout = 0;
    const char *unk = NULL;
    if (rc == ERR_OK)
        rc = json_get_bool(model, "byte_fallback", JSON_OPTIONAL, &b->byte_fallback, e);
    if (rc == ERR_OK)
        rc = json_get_bool(model, "ignore_merges", JSON_OPTIONAL, &b->ignore_merges, e);
    if (rc == ERR_OK)
        rc = json_get_double(model, "dropout", JSON_OPTIONAL, 0, 1, &dropout, e);
    if (rc == ERR_OK && dropout > 0)
        rc = err_set(e, ERR_INPUT, "dropout: found %g, expected null or 0", dropout);
    if (rc == ERR_OK)
        rc = refuse_text(model, "continuing_subword_prefix", e);
    if (rc == ERR_OK)
        rc = refuse_text(model, "end_of_word_suffix", e);
    if (rc == ERR_OK)
        rc = json_get_string(model, "unk_token", JSON_OPTIONAL, &unk, e);
    if (rc == ERR_OK && unk) {
        b->unk = tok_vocab_find(&b->vocab, unk, strlen(unk));
        if (b->unk < 0)
            rc = err_set(e, ERR_INPUT, "unk_token: found '%.80s', which is not in the vocabulary",
                         unk);
    }
    return rc;
}

enum err_code tok_bpe_init(struct tok_bpe *b, const json_t *model, struct err *e)
{
    memset(b, 0, sizeof *b);
    b->unk = -1;
    enum err_code rc = tok_vocab_init(&b->vocab, model, e);
    if (rc == ERR_OK)
        rc = read_flags(b, model, e);
    if (rc == ERR_OK)
        rc = read_merges(b, model, e);
    return rc;
}

void tok_bpe_free(struct tok_bpe *b)
{
    tok_vocab_free(&b->vocab);
    free(b->merges);
    free(b->banned);
    b->merges = NULL;
    b->banned = NULL;
}

/* A banned merge keeps its slot, so that searches run past it, under a pair that no text has. */
enum err_code tok_bpe_ban(struct tok_bpe *b, const bool *banned, struct err *e)
{
    size_t n = (size_t)b->vocab.n_ids;
    if (!b->banned)
        b->banned = calloc(n, sizeof *b->banned);
    if (!b->banned)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        b->banned[i] = b->banned[i] || banned[i];
    for (size_t i = 0; i <= b->mask; i++) {
        if (b->merges[i].left >= 0 && b->banned[b->merges[i].id])
            b->merges[i].right = GONE;
    }
    return ERR_OK;
}

/* ---- encoding ----------------------------------------------------------------------------- */

static bool push_symbol(struct tok_bpe_scratch *s, int32_t id)
{
    if (!tok_util_grow(&s->symbols, &s->symbols_cap, s->n_symbols + 1, sizeof *s->symbols))
        return false;
    int32_t at = (int32_t)s->n_symbols++;
    s->symbols[at] = (struct tok_symbol){id, at - 1, at + 1};
    return true;
}

/* The byte tokens of one code point; `done` says whether all of them exist. */
static bool push_bytes(const struct tok_bpe *b, struct tok_bpe_scratch *s, const char *c, size_t n,
                       bool *done)
{
    *done = false;
    if (!b->byte_fallback)
        return true;
    for (size_t i = 0; i < n; i++) {
        if (b->vocab.byte[(uint8_t)c[i]] < 0)
            return true;
    }
    *done = true;
    for (size_t i = 0; i < n; i++) {
        if (!push_symbol(s, b->vocab.byte[(uint8_t)c[i]]))
            return false;
    }
    return true;
}

/* One symbol a code point. A pending unknown token is put down before the next known one only:
 * byte tokens overtake it, which is what the library does. */
static bool start_symbols(const struct tok_bpe *b, const char *text, size_t len,
                          struct tok_bpe_scratch *s)
{
    bool unk = false, done;
    const char *end = text + len;
    for (const char *p = text; p < end;) {
        const char *c = p;
        uint32_t cp = str_utf8_next(&p);
        size_t n = (size_t)(p - c);
        int32_t id = cp < TOK_VOCAB_FAST ? b->vocab.fast[cp] : tok_vocab_find(&b->vocab, c, n);
        if (id >= 0) {
            if (unk && !push_symbol(s, b->unk))
                return false;
            unk = false;
            if (!push_symbol(s, id))
                return false;
            continue;
        }
        if (!push_bytes(b, s, c, n, &done))
            return false;
        if (done || b->unk < 0)
            continue;
        if (unk && !b->fuse_unk && !push_symbol(s, b->unk))
            return false;
        unk = true;
    }
    return !unk || push_symbol(s, b->unk);
}

static void sift_down(struct tok_pair *h, size_t n, size_t i)
{
    struct tok_pair x = h[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && h[c + 1].key < h[c].key)
            c++;
        if (h[c].key >= x.key)
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = x;
}

static void sift_up(struct tok_pair *h, size_t i)
{
    struct tok_pair x = h[i];
    while (i > 0 && h[(i - 1) / 2].key > x.key) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = x;
}

/* Appends the pair that starts at symbol `at` if it can be joined. */
static bool push_pair(const struct tok_bpe *b, struct tok_bpe_scratch *s, int32_t at)
{
    const struct tok_symbol *left = &s->symbols[at];
    if (left->next < 0)
        return true;
    const struct tok_merge *m = find_slot(b, left->id, s->symbols[left->next].id);
    if (m->left < 0)
        return true;
    if (!tok_util_grow(&s->heap, &s->heap_cap, s->n_heap + 1, sizeof *s->heap))
        return false;
    s->heap[s->n_heap++] = (struct tok_pair){(uint64_t)m->rank << 32 | (uint32_t)at, m->id};
    return true;
}

/* A pair leaves the heap at once when it is joined; entries for pairs that have changed since are
 * recognised by what they would become. At most two entries come per join, so the heap stays
 * within 3n. */
static bool join_pairs(const struct tok_bpe *b, struct tok_bpe_scratch *s)
{
    struct tok_symbol *sym = s->symbols;
    while (s->n_heap > 0) {
        struct tok_pair top = s->heap[0];
        s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap > 0)
            sift_down(s->heap, s->n_heap, 0);
        int32_t at = (int32_t)(uint32_t)top.key;
        int32_t next = sym[at].next;
        if (sym[at].id == GONE || next < 0)
            continue;
        const struct tok_merge *m = find_slot(b, sym[at].id, sym[next].id);
        if (m->left < 0 || m->id != top.id)
            continue;
        sym[at].id = top.id;
        sym[at].next = sym[next].next;
        sym[next].id = GONE;
        if (sym[at].next >= 0)
            sym[sym[at].next].prev = at;
        for (int side = 0; side < 2; side++) {
            int32_t from = side ? at : sym[at].prev;
            size_t before = s->n_heap;
            if (from >= 0 && !push_pair(b, s, from))
                return false;
            if (s->n_heap > before)
                sift_up(s->heap, before);
        }
    }
    return true;
}

enum err_code tok_bpe_encode(const struct tok_bpe *b, const char *text, size_t len,
                             struct tok_bpe_scratch *s, struct token_list *out, struct err *e)
{
    if (len == 0)
        return ERR_OK;
    if (len > INT32_MAX)
        return err_set(e, ERR_INPUT, "a piece of text has %zu bytes, at most %d are allowed", len,
                       INT32_MAX);
    if (b->ignore_merges) {
        int32_t id = tok_vocab_find(&b->vocab, text, len);
        if (id >= 0 && !(b->banned && b->banned[id])) {
            if (token_list_push(out, id))
                return ERR_OK;
            return err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    s->n_symbols = s->n_heap = 0;
    bool ok = start_symbols(b, text, len, s);
    if (ok && s->n_symbols > 0)
        s->symbols[s->n_symbols - 1].next = -1;
    for (size_t i = 0; ok && i + 1 < s->n_symbols; i++)
        ok = push_pair(b, s, (int32_t)i);
    for (size_t i = s->n_heap / 2; ok && i-- > 0;)
        sift_down(s->heap, s->n_heap, i);
    ok = ok && join_pairs(b, s);
    for (size_t i = 0; ok && i < s->n_symbols; i++)
        ok = s->symbols[i].id == GONE || token_list_push(out, s->symbols[i].id);
    if (!ok)
        return err_set(e, ERR_NOMEM, "out of memory: a piece of %zu bytes", len);
    return ERR_OK;
}

void tok_bpe_scratch_free(struct tok_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    memset(s, 0, sizeof *s);
}
