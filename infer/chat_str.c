/* chat_str.c: marked text: buffers, views, code points, search.
 *
 * Owns the rule that marks travel with bytes. Text is well-formed UTF-8 everywhere (checked where
 * it enters), so code point steps need no error.
 */
#include "infer/chat_private.h"

#include "common/str.h"

/* Python's white space: 29 code points. */
bool chat_is_space(uint32_t cp)
{
    if (cp < 128)
        return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

uint32_t chat_cp_at(const char *p, size_t left, size_t *width)
{
    const char *s = p;
    if ((unsigned char)*p < 0x80) {
        *width = 1;
        return (unsigned char)*p;
    }
    uint32_t cp = str_utf8_next(&s);
    *width = MIN2((size_t)(s - p), left);
    return cp;
}

size_t chat_cp_back(const char *start, const char *p)
{
    size_t n = 1;
    while (p - n > start && ((unsigned char)p[-(ptrdiff_t)n] & 0xC0) == 0x80)
        n++;
    return n;
}

size_t chat_cp_count(const struct chat_str *s)
{
    const char *p = chat_text(s);
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++)
        n += ((unsigned char)p[i] & 0xC0) != 0x80;
    return n;
}

size_t chat_cp_offset(const struct chat_str *s, size_t index)
{
    const char *p = chat_text(s);
    size_t i = 0;
    for (; i < s->len; i++) {
        if (((unsigned char)p[i] & 0xC0) != 0x80 && index-- == 0)
            break;
    }
    return i;
}

struct chat_str chat_sub(const struct chat_str *s, size_t from, size_t to)
{
    return (struct chat_str){s->buf, s->off + from, to > from ? to - from : 0};
}

bool chat_str_is(const struct chat_str *s, const char *text)
{
    return s->len == strlen(text) && memcmp(chat_text(s), text, s->len) == 0;
}

bool chat_str_same(const struct chat_str *a, const struct chat_str *b)
{
    return a->len == b->len && memcmp(chat_text(a), chat_text(b), a->len) == 0;
}

/* UTF-8 bytes order as code points do. */
int chat_str_order(const struct chat_str *a, const struct chat_str *b)
{
    int c = memcmp(chat_text(a), chat_text(b), MIN2(a->len, b->len));
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

size_t chat_find(const struct chat_str *s, const struct chat_str *what, size_t from)
{
    if (from > s->len || what->len > s->len - from)
        return SIZE_MAX;
    const char *text = chat_text(s);
    const char *hit = memmem(text + from, s->len - from, chat_text(what), what->len);
    return hit ? (size_t)(hit - text) : SIZE_MAX;
}

size_t chat_rfind(const struct chat_str *s, const struct chat_str *what, size_t end)
{
    if (what->len > end)
        return SIZE_MAX;
    const char *text = chat_text(s), *want = chat_text(what);
    for (size_t at = end - what->len + 1; at-- > 0;) {
        if (memcmp(text + at, want, what->len) == 0)
            return at;
    }
    return SIZE_MAX;
}

enum err_code chat_buf_new(struct chat_run *r, size_t cap, struct chat_buf **out)
{
    struct chat_buf *b = chat_alloc(r, sizeof *b);
    if (!b)
        return chat_nomem(r);
    b->data = chat_array(r, cap, 2);
    if (!b->data)
        return chat_nomem(r);
    b->marks = (uint8_t *)b->data + cap;
    b->cap = cap;
    *out = b;
    return ERR_OK;
}

/* Room for n more bytes. Views of the old buffer stay good: they keep it, a larger copy goes on. */
static enum err_code grow(struct chat_run *r, struct chat_buf **b, size_t n)
{
    struct chat_buf *old = *b;
    size_t used = old ? old->used : 0;
    CHAT_TRY(chat_step(r, n));
    if (old && n <= old->cap - used)
        return ERR_OK;
    if (n > CHAT_OUTPUT_MAX || used + n > CHAT_OUTPUT_MAX)
        return chat_fail(r, "text grows beyond %zu bytes", CHAT_OUTPUT_MAX);
    size_t cap = MAX2(old ? used * 2 : 0, used + n);
    CHAT_TRY(chat_buf_new(r, MAX2(cap, (size_t)32), b));
    if (used) {
        memcpy((*b)->data, old->data, used);
        memcpy((*b)->marks, old->marks, used);
    }
    (*b)->used = used;
    return ERR_OK;
}

enum err_code chat_put(struct chat_run *r, struct chat_buf **b, const char *text, size_t n,
                       uint8_t mark)
{
    CHAT_TRY(grow(r, b, n));
    if (n) {
        memcpy((*b)->data + (*b)->used, text, n);
        memset((*b)->marks + (*b)->used, mark, n);
    }
    (*b)->used += n;
    return ERR_OK;
}

enum err_code chat_puts(struct chat_run *r, struct chat_buf **b, const char *text)
{
    return chat_put(r, b, text, strlen(text), 0);
}

enum err_code chat_put_str(struct chat_run *r, struct chat_buf **b, const struct chat_str *s)
{
    CHAT_TRY(grow(r, b, s->len));
    if (s->len) {
        memcpy((*b)->data + (*b)->used, s->buf->data + s->off, s->len);
        memcpy((*b)->marks + (*b)->used, s->buf->marks + s->off, s->len);
    }
    (*b)->used += s->len;
    return ERR_OK;
}

enum err_code chat_put_cp(struct chat_run *r, struct chat_buf **b, uint32_t cp, uint8_t mark)
{
    char text[4];
    return chat_put(r, b, text, (size_t)str_utf8_put(text, cp), mark);
}

struct chat_value chat_str_value(struct chat_str s, bool safe)
{
    return (struct chat_value){.type = CHAT_STR, .safe = safe, .u.s = s};
}

struct chat_value chat_buf_value(struct chat_buf *b)
{
    return chat_str_value((struct chat_str){b, 0, b ? b->used : 0}, false);
}

enum err_code chat_str_new(struct chat_run *r, const char *text, size_t n, uint8_t mark,
                           struct chat_value *out)
{
    struct chat_buf *b = NULL;
    if (n) {
        CHAT_TRY(chat_buf_new(r, n, &b));
        CHAT_TRY(chat_put(r, &b, text, n, mark));
    }
    *out = chat_buf_value(b);
    return ERR_OK;
}

/* When a ends its buffer, b is appended in place: only one string can continue a buffer, because
 * `used` moves on with it. */
enum err_code chat_join2(struct chat_run *r, const struct chat_str *a, const struct chat_str *b,
                         struct chat_str *out)
{
    if (a->len == 0 || b->len == 0) {
        *out = a->len ? *a : *b;
        return ERR_OK;
    }
    struct chat_buf *buf = a->buf;
    size_t off = a->off;
    if (a->off + a->len != buf->used || buf->cap - buf->used < b->len) {
        if (a->len > CHAT_OUTPUT_MAX || b->len > CHAT_OUTPUT_MAX - a->len)
            return chat_fail(r, "text grows beyond %zu bytes", CHAT_OUTPUT_MAX);
        CHAT_TRY(chat_buf_new(r, (a->len + b->len) * 2, &buf));
        CHAT_TRY(chat_put_str(r, &buf, a));
        off = 0;
    }
    CHAT_TRY(chat_put_str(r, &buf, b));
    *out = (struct chat_str){buf, off, a->len + b->len};
    return ERR_OK;
}

/* HTML escaping of the printed form; what is marked safe stays. */
enum err_code chat_escape(struct chat_run *r, const struct chat_value *v, struct chat_value *out)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct chat_value text;
    struct chat_buf *b = NULL;
    if (chat_is_str(v) && v->safe) {
        *out = *v;
        return ERR_OK;
    }
    CHAT_TRY(chat_to_str(r, v, &text));
    const struct chat_str *s = &text.u.s;
    for (size_t i = 0; i < s->len; i++) {
        char c = chat_text(s)[i];
        const char *hit = c ? strchr(from, c) : NULL;
        uint8_t mark = s->buf->marks[s->off + i];
        if (hit)
            CHAT_TRY(chat_put(r, &b, to[hit - from], strlen(to[hit - from]), mark));
        else
            CHAT_TRY(chat_put(r, &b, &c, 1, mark));
    }
    *out = chat_buf_value(b);
    out->safe = true;
    return ERR_OK;
}

enum err_code chat_str_reverse(struct chat_run *r, const struct chat_str *s, struct chat_value *out)
{
    struct chat_buf *b = NULL;
    const char *text = chat_text(s);
    for (size_t at = s->len; at > 0;) {
        size_t w = chat_cp_back(text, text + at);
        struct chat_str one = chat_sub(s, at - w, at);
        CHAT_TRY(chat_put_str(r, &b, &one));
        at -= w;
    }
    *out = chat_buf_value(b);
    return ERR_OK;
}
