/* tok_pretok.c: see tok_pretok.h. */
#include "infer/tok_pretok.h"

#include <stdlib.h>

#include "infer/tok_bytes.h"
#include "infer/tok_classes.h"

#define PRETOK_OPS_MAX 64

#define GPT2_PATTERN                                                                               \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum behavior { REMOVED, ISOLATED, MERGED_PREVIOUS, MERGED_NEXT, CONTIGUOUS };

enum pretok_kind { PRETOK_SPLIT, PRETOK_BYTES, PRETOK_METASPACE };
enum scheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct tok_pretok_op {
    enum pretok_kind kind;
    struct tok_regex *regex; /* NULL: no cut */
    enum behavior behavior;
    bool invert;        /* SPLIT */
    bool prefix_space;  /* BYTES */
    enum scheme scheme; /* METASPACE */
    char mark[4];       /* METASPACE: what a space becomes */
    size_t mark_len;
};

struct tok_cut {
    size_t start, end;
    bool match, removed;
};

/* ---- cutting ------------------------------------------------------------------------------ */

static bool push_cut(struct tok_pretok_scratch *s, size_t start, size_t end, bool match)
{
    if (!tok_util_grow(&s->cuts, &s->cuts_cap, s->n_cuts + 1, sizeof *s->cuts))
        return false;
    s->cuts[s->n_cuts++] = (struct tok_cut){start, end, match, false};
    return true;
}

/* The matches and what lies between them, which cover the text. */
static enum err_code find_cuts(const struct tok_pretok_op *op, struct tok_pretok_scratch *s,
                               struct tok_text in, struct err *e)
{
    size_t done = 0;
    bool found = op->regex != NULL, ok = true;
    s->n_cuts = 0;
    tok_regex_begin(&s->search);
    while (found && ok) {
        enum err_code rc = tok_regex_next(op->regex, &s->search, in.s, in.len, &found, e);
        if (rc != ERR_OK)
            return rc;
        if (!found)
            break;
        if (s->search.start > done)
            ok = push_cut(s, done, s->search.start, op->invert);
        ok = ok && push_cut(s, s->search.start, s->search.end, !op->invert);
        done = s->search.end;
    }
    if (ok && done < in.len)
        ok = push_cut(s, done, in.len, op->invert);
    return ok ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory: cutting %zu bytes", in.len);
}

/* A match joins its neighbour on one side, unless that neighbour's place was taken by another
 * match: of two matches in a row the second stands alone. */
static void merge_previous(struct tok_pretok_scratch *s)
{
    size_t n = 0;
    bool last = false;
    for (size_t i = 0; i < s->n_cuts; i++) {
        struct tok_cut c = s->cuts[i];
        if (c.match && !last && n > 0)
            s->cuts[n - 1].end = c.end;
        else
            s->cuts[n++] = c;
        last = c.match;
    }
    s->n_cuts = n;
}

static void merge_next(struct tok_pretok_scratch *s)
{
    size_t n = s->n_cuts, to = s->n_cuts;
    bool last = false;
    for (size_t i = n; i-- > 0;) {
        struct tok_cut c = s->cuts[i];
        if (c.match && !last && to < n)
            s->cuts[to].start = c.start;
        else
            s->cuts[--to] = c;
        last = c.match;
    }
    memmove(s->cuts, s->cuts + to, (n - to) * sizeof *s->cuts);
    s->n_cuts = n - to;
}

static void merge_contiguous(struct tok_pretok_scratch *s)
{
    size_t n = 0;
    bool last = false;
    for (size_t i = 0; i < s->n_cuts; i++) {
        struct tok_cut c = s->cuts[i];
        if (c.match == last && n > 0)
            s->cuts[n - 1].end = c.end;
        else
            s->cuts[n++] = c;
        last = c.match;
    }
    s->n_cuts = n;
}

static void apply_behavior(enum behavior b, struct tok_pretok_scratch *s)
{
    switch (b) {
    case REMOVED:
        for (size_t i = 0; i < s->n_cuts; i++)
            s->cuts[i].removed = s->cuts[i].match;
        break;
    case ISOLATED:
        break;
    case MERGED_PREVIOUS:
        merge_previous(s);
        break;
    case MERGED_NEXT:
        merge_next(s);
        break;
    case CONTIGUOUS:
        merge_contiguous(s);
        break;
    }
}

/* ---- running ------------------------------------------------------------------------------ */

static bool push_piece(struct tok_pieces *p, size_t off, bool first)
{
    if (p->text.len == off)
        return true;
    if (!tok_util_grow(&p->v, &p->cap, p->n + 1, sizeof *p->v))
        return false;
    p->v[p->n++] = (struct tok_piece){off, p->text.len - off, first};
    return true;
}

/* What the operation makes out of a piece before it is cut. */
static struct tok_text prepare_piece(const struct tok_pretok_op *op, struct strbuf *b,
                                     struct tok_text in, bool first)
{
    if (op->kind == PRETOK_SPLIT || (op->kind == PRETOK_BYTES && !op->prefix_space))
        return in;
    strbuf_clear(b);
    if (op->kind == PRETOK_BYTES) {
        if (in.s[0] != ' ')
            strbuf_putc(b, ' ');
        strbuf_append(b, in.s, in.len);
        return (struct tok_text){b->data, b->len};
    }
    bool marked =
        in.s[0] == ' ' || (in.len >= op->mark_len && memcmp(in.s, op->mark, op->mark_len) == 0);
    if (!marked && (op->scheme == PREPEND_ALWAYS || (op->scheme == PREPEND_FIRST && first)))
        strbuf_append(b, op->mark, op->mark_len);
    for (size_t i = 0; i < in.len;) {
        const char *space = memchr(in.s + i, ' ', in.len - i);
        size_t n = space ? (size_t)(space - in.s) - i : in.len - i;
        strbuf_append(b, in.s + i, n);
        if (space)
            strbuf_append(b, op->mark, op->mark_len);
        i += n + (space != NULL);
    }
    return (struct tok_text){b->data, b->len};
}

static enum err_code run_op(const struct tok_pretok_op *op, struct tok_pretok_scratch *s,
                            const struct tok_pieces *from, struct tok_pieces *to, struct err *e)
{
    to->n = 0;
    strbuf_clear(&to->text);
    for (size_t i = 0; i < from->n; i++) {
        struct tok_text in = {from->text.data + from->v[i].off, from->v[i].len};
        in = prepare_piece(op, &s->text, in, from->v[i].first);
        enum err_code rc = strbuf_ok(&s->text, e);
        if (rc == ERR_OK)
            rc = find_cuts(op, s, in, e);
        if (rc != ERR_OK)
            return rc;
        apply_behavior(op->behavior, s);
        for (size_t k = 0; k < s->n_cuts; k++) {
            struct tok_cut c = s->cuts[k];
            size_t off = to->text.len;
            if (c.removed)
                continue;
            if (op->kind == PRETOK_BYTES)
                tok_bytes_put(&to->text, in.s + c.start, c.end - c.start);
            else
                strbuf_append(&to->text, in.s + c.start, c.end - c.start);
            if (!push_piece(to, off, from->v[i].first && c.start == 0))
                return err_set(e, ERR_NOMEM, "out of memory: %zu pieces", to->n);
        }
    }
    return strbuf_ok(&to->text, e);
}

enum err_code tok_pretok_run(const struct tok_pretok *p, struct tok_pretok_scratch *s,
                             struct tok_text in, bool first, const struct tok_pieces **out,
                             struct err *e)
{
    struct tok_pieces *from = &s->a, *to = &s->b;
    from->n = 0;
    strbuf_clear(&from->text);
    strbuf_append(&from->text, in.s, in.len);
    enum err_code rc = strbuf_ok(&from->text, e);
    if (rc == ERR_OK && !push_piece(from, 0, first))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < p->n && rc == ERR_OK; i++) {
        rc = run_op(&p->ops[i], s, from, to, e);
        if (rc == ERR_OK)
            rc = tok_util_growth(in.len, to->text.len, e);
        struct tok_pieces *t = from;
        from = to;
        to = t;
    }
    *out = from;
    return rc;
}

void tok_pretok_scratch_free(struct tok_pretok_scratch *s)
{
    strbuf_free(&s->a.text);
    strbuf_free(&s->b.text);
    strbuf_free(&s->text);
    free(s->a.v);
    free(s->b.v);
    free(s->cuts);
    tok_regex_search_free(&s->search);
    memset(s, 0, sizeof *s);
}

/* ---- reading ------------------------------------------------------------------------------ */

static enum err_code read_behavior(const json_t *spec, enum behavior *b, struct err *e)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *s = "Isolated";
    enum err_code rc = json_get_string(spec, "behavior", JSON_REQUIRED, &s, e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(names); i++) {
        if (strcmp(s, names[i]) == 0) {
            *b = (enum behavior)i;
            return ERR_OK;
        }
    }
    return rc != ERR_OK ? rc : err_set(e, ERR_INPUT, "behavior: found '%.80s', unknown", s);
}

static enum err_code read_split(struct tok_pretok_op *op, const json_t *spec, struct err *e)
{
    struct tok_text pattern = {"", 0};
    bool regex = false;
    enum err_code rc = tok_util_pattern(spec, &pattern, &regex, e);
    if (rc == ERR_OK)
        rc = read_behavior(spec, &op->behavior, e);
    if (rc == ERR_OK)
        rc = json_get_bool(spec, "invert", JSON_OPTIONAL, &op->invert, e);
    if (rc == ERR_OK)
        rc = tok_regex_new(&op->regex, pattern, regex, e);
    return rc;
}

static enum err_code read_bytes(struct tok_pretok_op *op, const json_t *spec, struct err *e)
{
    bool use_regex = true;
    op->kind = PRETOK_BYTES;
    op->prefix_space = true;
    enum err_code rc = json_get_bool(spec, "add_prefix_space", JSON_REQUIRED, &op->prefix_space, e);
    if (rc == ERR_OK)
        rc = json_get_bool(spec, "use_regex", JSON_OPTIONAL, &use_regex, e);
    if (rc == ERR_OK && use_regex)
        rc = tok_regex_new(&op->regex, (struct tok_text){GPT2_PATTERN, strlen(GPT2_PATTERN)}, true,
                           e);
    return rc;
}

static enum err_code read_scheme(struct tok_pretok_op *op, const json_t *spec, struct err *e)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *s = "always";
    bool prefix = true;
    enum err_code rc = json_get_string(spec, "prepend_scheme", JSON_OPTIONAL, &s, e);
    if (rc == ERR_OK)
        rc = json_get_bool(spec, "add_prefix_space", JSON_OPTIONAL, &prefix, e);
    if (rc != ERR_OK)
        return rc;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(s, names[i]) == 0) {
            op->scheme = (enum scheme)i;
            if (!prefix && op->scheme != PREPEND_NEVER)
                return err_set(e, ERR_INPUT,
                               "prepend_scheme: found '%s' with add_prefix_space "
                               "false, expected 'never'",
                               s);
            return ERR_OK;
        }
    }
    return err_set(e, ERR_INPUT, "prepend_scheme: found '%.80s', expected never, first or always",
                   s);
}

static enum err_code read_metaspace(struct tok_pretok_op *op, const json_t *spec, struct err *e)
{
    struct tok_text mark = {"", 0};
    bool split = true;
    op->kind = PRETOK_METASPACE;
    enum err_code rc = tok_util_string(spec, "replacement", &mark, e);
    if (rc == ERR_OK)
        rc = read_scheme(op, spec, e);
    if (rc == ERR_OK)
        rc = json_get_bool(spec, "split", JSON_OPTIONAL, &split, e);
    if (rc != ERR_OK)
        return rc;
    const char *p = mark.s;
    if (mark.len > 0)
        (void)str_utf8_next(&p);
    if (mark.len == 0 || p != mark.s + mark.len)
        return err_set(e, ERR_INPUT, "replacement: found '%.80s', expected one character", mark.s);
    memcpy(op->mark, mark.s, mark.len);
    op->mark_len = mark.len;
    op->behavior = MERGED_NEXT;
    return split ? tok_regex_new(&op->regex, mark, false, e) : ERR_OK;
}

/* Splits at single characters of a class, or at runs of them. */
static enum err_code read_class(struct tok_pretok_op *op, const char *type, const json_t *spec,
                                struct err *e)
{
    struct strbuf p = {0};
    bool single = false;
    enum err_code rc = ERR_OK;
    op->behavior = ISOLATED;
    if (strcmp(type, "Digits") == 0) {
        rc = json_get_bool(spec, "individual_digits", JSON_REQUIRED, &single, e);
        op->behavior = single ? ISOLATED : CONTIGUOUS;
        strbuf_putc(&p, '[');
        tok_classes_put_digits(&p);
        strbuf_putc(&p, ']');
    } else if (strcmp(type, "Punctuation") == 0) {
        if (json_object_get(spec, "behavior"))
            rc = read_behavior(spec, &op->behavior, e);
        tok_classes_put_punct(&p);
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        op->behavior = REMOVED;
        strbuf_putc(&p, '[');
        tok_classes_put_spaces(&p, false);
        strbuf_putc(&p, ']');
    } else {
        op->behavior = REMOVED;
        op->invert = true;
        strbuf_putc(&p, '[');
        tok_classes_put_word(&p);
        strbuf_puts(&p, "]+|[^");
        tok_classes_put_word(&p);
        tok_classes_put_spaces(&p, false);
        strbuf_puts(&p, "]+");
    }
    if (rc == ERR_OK)
        rc = strbuf_ok(&p, e);
    if (rc == ERR_OK)
        rc = tok_regex_new_pcre(&op->regex, p.data, e);
    strbuf_free(&p);
    return rc;
}

static enum err_code read_op(struct tok_pretok *p, const json_t *spec, int depth, struct err *e);

static enum err_code read_sequence(struct tok_pretok *p, const json_t *spec, int depth,
                                   struct err *e)
{
    const json_t *list = json_object_get(spec, "pretokenizers");
    if (!json_is_array(list))
        return err_set(e, ERR_INPUT, "key 'pretokenizers': expected an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum err_code rc = read_op(p, json_array_get(list, i), depth + 1, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "pretokenizers[%zu]", i);
    }
    return ERR_OK;
}

static enum err_code read_op(struct tok_pretok *p, const json_t *spec, int depth, struct err *e)
{
    static const char *const of_class[] = {"Digits", "Punctuation", "Whitespace",
                                           "WhitespaceSplit"};
    const char *type;
    enum err_code rc = tok_util_type(spec, &type, e);
    if (rc != ERR_OK)
        return rc;
    if (p->n >= PRETOK_OPS_MAX || depth > PRETOK_OPS_MAX)
        return err_set(e, ERR_INPUT, "found more than %d pre-tokenizers", PRETOK_OPS_MAX);
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(p, spec, depth, e);
    if (!tok_util_grow(&p->ops, &p->cap, p->n + 1, sizeof *p->ops))
        return err_set(e, ERR_NOMEM, "out of memory");
    struct tok_pretok_op *op = &p->ops[p->n++];
    memset(op, 0, sizeof *op);
    op->behavior = ISOLATED;
    if (strcmp(type, "Split") == 0)
        return read_split(op, spec, e);
    if (strcmp(type, "ByteLevel") == 0)
        return read_bytes(op, spec, e);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(op, spec, e);
    for (size_t i = 0; i < ARRAY_LEN(of_class); i++) {
        if (strcmp(type, of_class[i]) == 0)
            return read_class(op, type, spec, e);
    }
    return err_set(e, ERR_INPUT,
                   "type: found '%.80s', expected Split, ByteLevel, Metaspace, Digits, "
                   "Punctuation, Whitespace, WhitespaceSplit or Sequence",
                   type);
}

enum err_code tok_pretok_init(struct tok_pretok *p, const json_t *spec, struct err *e)
{
    memset(p, 0, sizeof *p);
    if (!spec || json_is_null(spec))
        return ERR_OK;
    return err_wrap(e, read_op(p, spec, 0, e), "pre_tokenizer");
}

void tok_pretok_free(struct tok_pretok *p)
{
    for (size_t i = 0; i < p->n; i++)
        tok_regex_free(p->ops[i].regex);
    free(p->ops);
    memset(p, 0, sizeof *p);
}
