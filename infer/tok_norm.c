/* tok_norm.c: see tok_norm.h.
 *
 * NFC follows the library's older table: 108 combining marks of later versions are starters there
 * and one pair is not composed. A text is cut around those, each part is normalized by utf8proc's
 * tables, and the parts are joined.
 */
#include "infer/tok_norm.h"

#include <stdlib.h>
#include <utf8proc.h>

enum norm_kind { NORM_NFC, NORM_REPLACE, NORM_PREPEND };

struct tok_norm_op {
    enum norm_kind kind;
    char *pattern; /* REPLACE, when it is plain text */
    size_t pattern_len;
    struct tok_regex *regex; /* REPLACE, when it is not */
    char *content;           /* REPLACE, PREPEND */
    size_t content_len;
};

#define NORM_OPS_MAX 64

/* Marks that the library's NFC takes as starters: first and last code point. */
static const uint32_t late_marks[][2] = {
    {0x07fd, 0x07fd},   {0x0898, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
    {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};

static bool is_late_mark(uint32_t cp)
{
    size_t lo = 0, hi = ARRAY_LEN(late_marks);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > late_marks[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < ARRAY_LEN(late_marks) && cp >= late_marks[lo][0];
}

/* ---- NFC ---------------------------------------------------------------------------------- */

static int mark_class(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Stable order of each run of marks by combining class. Counting keeps a text that is nothing but
 * marks linear, where utf8proc's own exchange of neighbours is quadratic. */
static bool order_marks(struct tok_norm_scratch *s)
{
    for (size_t i = 0; i < s->n_cps;) {
        size_t end = i;
        bool ordered = true;
        size_t count[257] = {0};
        for (int last = 0; end < s->n_cps; end++) {
            int c = mark_class(s->cps[end]);
            if (c == 0)
                break;
            ordered = ordered && last <= c;
            last = c;
            count[c + 1]++;
        }
        if (!ordered) {
            if (!tok_util_grow(&s->sorted, &s->sorted_cap, end - i, sizeof *s->sorted))
                return false;
            for (size_t c = 1; c < ARRAY_LEN(count); c++)
                count[c] += count[c - 1];
            for (size_t k = i; k < end; k++)
                s->sorted[count[mark_class(s->cps[k])]++] = s->cps[k];
            memcpy(s->cps + i, s->sorted, (end - i) * sizeof *s->cps);
        }
        i = end + (end == i);
    }
    return true;
}

/* Decomposes into s->cps, behind what is there. */
static bool decompose(struct tok_norm_scratch *s, uint32_t cp)
{
    int last = 0;
    if (!tok_util_grow(&s->cps, &s->cps_cap, s->n_cps + 8, sizeof *s->cps))
        return false;
    utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)cp, s->cps + s->n_cps, 8,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last);
    if (n < 0 || n > 8) /* no canonical decomposition is longer than 4 */
        return false;
    s->n_cps += (size_t)n;
    return true;
}

static bool compose(struct tok_norm_scratch *s, struct strbuf *out)
{
    if (s->n_cps == 0)
        return true;
    if (!order_marks(s))
        return false;
    utf8proc_ssize_t n = utf8proc_normalize_utf32(s->cps, (utf8proc_ssize_t)s->n_cps,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char c[4];
        strbuf_append(out, c, (size_t)str_utf8_put(c, (uint32_t)s->cps[i]));
    }
    s->n_cps = 0;
    return n >= 0;
}

static bool all_trusted(struct tok_trust t, size_t from, size_t n)
{
    return t.map ? !memchr(t.map + from, 0, n) : t.all;
}

/* Gives the bytes of out->text from `from` on their trust. */
static void put_trust(struct strbuf *trust, size_t n, bool value)
{
    for (size_t i = 0; i < n; i++)
        strbuf_putc(trust, value ? 1 : 0);
}

static void copy_trust(struct strbuf *out, struct tok_trust t, size_t from, size_t n)
{
    if (t.map)
        strbuf_append(out, t.map + from, n);
}

/* An ASCII character composes with nothing before it, so it begins a part; parts of one character
 * are copied. */
static bool run_nfc(struct tok_norm_scratch *s, struct tok_text in, struct tok_trust trust,
                    struct strbuf *text, struct strbuf *out_trust)
{
    for (size_t i = 0; i < in.len;) {
        size_t end = i + 1;
        while (end < in.len && (uint8_t)in.s[end] >= 0x80)
            end++;
        if (end == i + 1) {
            strbuf_putc(text, in.s[i]);
            copy_trust(out_trust, trust, i, 1);
            i = end;
            continue;
        }
        size_t before = text->len;
        uint32_t last = 0;
        for (const char *p = in.s + i; p < in.s + end;) {
            uint32_t cp = str_utf8_next(&p);
            bool cut = is_late_mark(cp) || is_late_mark(last) || (last == 0x11935 && cp == 0x11930);
            if ((cut && !compose(s, text)) || !decompose(s, cp))
                return false;
            last = cp;
        }
        if (!compose(s, text))
            return false;
        if (trust.map)
            put_trust(out_trust, text->len - before, all_trusted(trust, i, end - i));
        i = end;
    }
    return true;
}

/* ---- Replace and Prepend ------------------------------------------------------------------ */

static enum err_code next_match(const struct tok_norm_op *op, struct tok_search *s,
                                struct tok_text in, bool *found, struct err *e)
{
    if (op->regex)
        return tok_regex_next(op->regex, s, in.s, in.len, found, e);
    const char *hit = s->from < in.len
                          ? memmem(in.s + s->from, in.len - s->from, op->pattern, op->pattern_len)
                          : NULL;
    *found = hit != NULL;
    if (hit) {
        s->start = (size_t)(hit - in.s);
        s->end = s->from = s->start + op->pattern_len;
    }
    return ERR_OK;
}

static enum err_code run_replace(const struct tok_norm_op *op, struct tok_norm_scratch *s,
                                 struct tok_text in, struct tok_trust trust, int to, struct err *e)
{
    size_t done = 0;
    bool found;
    if (in.len == 0) /* has no match, not even an empty one */
        return ERR_OK;
    tok_regex_begin(&s->search);
    for (;;) {
        enum err_code rc = next_match(op, &s->search, in, &found, e);
        if (rc != ERR_OK)
            return rc;
        size_t stop = found ? s->search.start : in.len;
        strbuf_append(&s->text[to], in.s + done, stop - done);
        copy_trust(&s->trust[to], trust, done, stop - done);
        if (!found)
            return ERR_OK;
        done = s->search.end;
        strbuf_append(&s->text[to], op->content, op->content_len);
        if (trust.map)
            put_trust(&s->trust[to], op->content_len,
                      done > stop && all_trusted(trust, stop, done - stop));
        rc = tok_util_growth(s->n_in, s->text[to].len, e);
        if (rc != ERR_OK)
            return rc;
    }
}

enum err_code tok_norm_run(const struct tok_norm *n, struct tok_norm_scratch *s, struct tok_text in,
                           struct tok_trust trust, struct tok_text *out,
                           struct tok_trust *out_trust, struct err *e)
{
    enum err_code rc = ERR_OK;
    s->n_in = in.len;
    for (size_t i = 0; i < n->n && rc == ERR_OK; i++) {
        const struct tok_norm_op *op = &n->ops[i];
        int to = (int)(i & 1);
        struct strbuf *text = &s->text[to], *map = &s->trust[to];
        strbuf_clear(text);
        strbuf_clear(map);
        switch (op->kind) {
        case NORM_NFC:
            if (!run_nfc(s, in, trust, text, map))
                return err_set(e, ERR_NOMEM, "out of memory: normalizing %zu bytes", in.len);
            break;
        case NORM_REPLACE:
            rc = run_replace(op, s, in, trust, to, e);
            break;
        case NORM_PREPEND:
            if (in.len > 0) {
                strbuf_append(text, op->content, op->content_len);
                if (trust.map)
                    put_trust(map, op->content_len, all_trusted(trust, 0, 1));
            }
            strbuf_append(text, in.s, in.len);
            copy_trust(map, trust, 0, in.len);
            break;
        }
        if (rc == ERR_OK)
            rc = strbuf_ok(text, e);
        if (rc == ERR_OK)
            rc = strbuf_ok(map, e);
        in = (struct tok_text){text->len ? text->data : "", text->len};
        if (trust.map)
            trust.map = map->len ? map->data : "";
    }
    *out = in;
    *out_trust = trust;
    return rc;
}

void tok_norm_scratch_free(struct tok_norm_scratch *s)
{
    for (int i = 0; i < 2; i++) {
        strbuf_free(&s->text[i]);
        strbuf_free(&s->trust[i]);
    }
    free(s->cps);
    free(s->sorted);
    tok_regex_search_free(&s->search);
    memset(s, 0, sizeof *s);
}

/* ---- reading ------------------------------------------------------------------------------ */

static enum err_code read_replace(struct tok_norm_op *op, const json_t *spec, struct err *e)
{
    struct tok_text pattern, content;
    bool regex;
    enum err_code rc = tok_util_pattern(spec, &pattern, &regex, e);
    if (rc == ERR_OK)
        rc = tok_util_string(spec, "content", &content, e);
    if (rc != ERR_OK)
        return rc;
    if (regex || pattern.len == 0)
        rc = tok_regex_new(&op->regex, pattern, regex, e);
    op->pattern = tok_util_copy(pattern);
    op->pattern_len = pattern.len;
    op->content = tok_util_copy(content);
    op->content_len = content.len;
    if (rc == ERR_OK && (!op->pattern || !op->content))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

static enum err_code read_prepend(struct tok_norm_op *op, const json_t *spec, struct err *e)
{
    struct tok_text content;
    enum err_code rc = tok_util_string(spec, "prepend", &content, e);
    if (rc != ERR_OK)
        return rc;
    op->content = tok_util_copy(content);
    op->content_len = content.len;
    return op->content ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static enum err_code read_op(struct tok_norm *n, const json_t *spec, int depth, struct err *e);

static enum err_code read_sequence(struct tok_norm *n, const json_t *spec, int depth, struct err *e)
{
    const json_t *list = json_object_get(spec, "normalizers");
    if (!json_is_array(list))
        return err_set(e, ERR_INPUT, "key 'normalizers': expected an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum err_code rc = read_op(n, json_array_get(list, i), depth + 1, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "normalizers[%zu]", i);
    }
    return ERR_OK;
}

static enum err_code read_op(struct tok_norm *n, const json_t *spec, int depth, struct err *e)
{
    const char *type;
    enum err_code rc = tok_util_type(spec, &type, e);
    if (rc != ERR_OK)
        return rc;
    if (n->n >= NORM_OPS_MAX || depth > NORM_OPS_MAX)
        return err_set(e, ERR_INPUT, "found more than %d normalizers", NORM_OPS_MAX);
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(n, spec, depth, e);
    if (!tok_util_grow(&n->ops, &n->cap, n->n + 1, sizeof *n->ops))
        return err_set(e, ERR_NOMEM, "out of memory");
    struct tok_norm_op *op = &n->ops[n->n++];
    memset(op, 0, sizeof *op);
    if (strcmp(type, "NFC") == 0) {
        op->kind = NORM_NFC;
    } else if (strcmp(type, "Replace") == 0) {
        op->kind = NORM_REPLACE;
        rc = read_replace(op, spec, e);
    } else if (strcmp(type, "Prepend") == 0) {
        op->kind = NORM_PREPEND;
        rc = read_prepend(op, spec, e);
    } else {
        rc = err_set(e, ERR_INPUT,
                     "type: found '%.80s', expected NFC, Replace, Prepend or Sequence", type);
    }
    return rc;
}

enum err_code tok_norm_init(struct tok_norm *n, const json_t *spec, struct err *e)
{
    memset(n, 0, sizeof *n);
    if (!spec || json_is_null(spec))
        return ERR_OK;
    return err_wrap(e, read_op(n, spec, 0, e), "normalizer");
}

void tok_norm_free(struct tok_norm *n)
{
    for (size_t i = 0; i < n->n; i++) {
        free(n->ops[i].pattern);
        free(n->ops[i].content);
        tok_regex_free(n->ops[i].regex);
    }
    free(n->ops);
    memset(n, 0, sizeof *n);
}
