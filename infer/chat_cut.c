/* chat_cut.c: cutting text: strip, split, splitlines and partition.
 *
 * Pieces are views of the text they come from: nothing is copied, and a piece of a string marked
 * safe is marked safe.
 */
#include "infer/chat_private.h"

static bool in_set(const struct chat_str *chars, uint32_t cp)
{
    size_t w;
    for (size_t i = 0; i < chars->len; i += w) {
        if (chat_cp_at(chat_text(chars) + i, chars->len - i, &w) == cp)
            return true;
    }
    return false;
}

/* chars NULL: white space. */
struct chat_str chat_strip(const struct chat_str *s, const struct chat_str *chars,
                           enum chat_side side)
{
    const char *text = chat_text(s);
    size_t from = 0, to = s->len, w;
    while ((side & SIDE_LEFT) && from < to) {
        uint32_t cp = chat_cp_at(text + from, to - from, &w);
        if (chars ? !in_set(chars, cp) : !chat_is_space(cp))
            break;
        from += w;
    }
    while ((side & SIDE_RIGHT) && to > from) {
        size_t back = chat_cp_back(text + from, text + to);
        uint32_t cp = chat_cp_at(text + to - back, back, &w);
        if (chars ? !in_set(chars, cp) : !chat_is_space(cp))
            break;
        to -= back;
    }
    return chat_sub(s, from, to);
}

static enum err_code strip_side(struct chat_run *r, const struct chat_value *self,
                                const struct chat_args *args, enum chat_side side,
                                struct chat_value *out)
{
    struct chat_value v[1];
    struct chat_str chars;
    CHAT_TRY(chat_bind(r, args, "strip", "-", v));
    bool given = v[0].type != CHAT_MISSING && v[0].type != CHAT_NONE;
    if (given)
        CHAT_TRY(chat_arg_str(r, &v[0], "strip", &chars));
    CHAT_TRY(chat_step(r, self->u.s.len * (given ? MAX2(chars.len, (size_t)1) : 1)));
    *out = chat_str_value(chat_strip(&self->u.s, given ? &chars : NULL, side), self->safe);
    return ERR_OK;
}

enum err_code chat_str_strip(CHAT_METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_BOTH, out);
}

enum err_code chat_str_lstrip(CHAT_METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_LEFT, out);
}

enum err_code chat_str_rstrip(CHAT_METHOD_ARGS)
{
    return strip_side(r, self, args, SIDE_RIGHT, out);
}

static enum err_code push_piece(struct chat_run *r, const struct chat_value *self, size_t from,
                                size_t to, struct chat_value *list)
{
    return chat_list_push(r, list->u.list,
                          chat_str_value(chat_sub(&self->u.s, from, to), self->safe));
}

static enum err_code split_space(struct chat_run *r, const struct chat_value *self, int64_t max,
                                 struct chat_value *out)
{
    const struct chat_str *s = &self->u.s;
    const char *text = chat_text(s);
    size_t at = 0, w;
    for (;;) {
        while (at < s->len && chat_is_space(chat_cp_at(text + at, s->len - at, &w)))
            at += w;
        if (at >= s->len)
            return ERR_OK;
        if (max == 0)
            return push_piece(r, self, at, s->len, out);
        max -= max > 0;
        size_t from = at;
        while (at < s->len && !chat_is_space(chat_cp_at(text + at, s->len - at, &w)))
            at += w;
        CHAT_TRY(push_piece(r, self, from, at, out));
    }
}

static enum err_code rsplit_space(struct chat_run *r, const struct chat_value *self, int64_t max,
                                  struct chat_value *out)
{
    const struct chat_str *s = &self->u.s;
    const char *text = chat_text(s);
    size_t at = s->len, w;
    for (;;) {
        struct chat_str head = chat_sub(s, 0, at);
        at = chat_strip(&head, NULL, SIDE_RIGHT).len;
        if (at == 0)
            return ERR_OK;
        if (max == 0)
            return push_piece(r, self, 0, at, out);
        max -= max > 0;
        size_t to = at;
        while (at > 0) {
            size_t back = chat_cp_back(text, text + at);
            if (chat_is_space(chat_cp_at(text + at - back, back, &w)))
                break;
            at -= back;
        }
        CHAT_TRY(push_piece(r, self, at, to, out));
    }
}

static void turn_around(struct chat_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct chat_value v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static enum err_code split_at(struct chat_run *r, const struct chat_value *self,
                              const struct chat_str *sep, int64_t max, struct chat_value *out)
{
    size_t from = 0, hit;
    while (max != 0 && (hit = chat_find(&self->u.s, sep, from)) != SIZE_MAX) {
        CHAT_TRY(push_piece(r, self, from, hit, out));
        from = hit + sep->len;
        max -= max > 0;
    }
    return push_piece(r, self, from, self->u.s.len, out);
}

static enum err_code rsplit_at(struct chat_run *r, const struct chat_value *self,
                               const struct chat_str *sep, int64_t max, struct chat_value *out)
{
    size_t to = self->u.s.len, hit;
    while (max != 0 && (hit = chat_rfind(&self->u.s, sep, to)) != SIZE_MAX) {
        CHAT_TRY(push_piece(r, self, hit + sep->len, to, out));
        to = hit;
        max -= max > 0;
    }
    return push_piece(r, self, 0, to, out);
}

static enum err_code split(struct chat_run *r, const struct chat_value *self,
                           const struct chat_args *args, bool right, struct chat_value *out)
{
    struct chat_value v[2];
    struct chat_str sep;
    int64_t max;
    CHAT_TRY(chat_bind(r, args, "split", "sep maxsplit", v));
    CHAT_TRY(chat_arg_int(r, &v[1], "split", -1, &max));
    CHAT_TRY(chat_list_new(r, 0, out));
    CHAT_TRY(chat_step(r, self->u.s.len));
    if (v[0].type == CHAT_MISSING || v[0].type == CHAT_NONE) {
        CHAT_TRY(right ? rsplit_space(r, self, max, out) : split_space(r, self, max, out));
    } else {
        CHAT_TRY(chat_arg_str(r, &v[0], "split", &sep));
        if (sep.len == 0)
            return chat_fail(r, "split: empty separator");
        CHAT_TRY(right ? chat_step(r, self->u.s.len * sep.len) : ERR_OK);
        CHAT_TRY(right ? rsplit_at(r, self, &sep, max, out) : split_at(r, self, &sep, max, out));
    }
    if (right)
        turn_around(out->u.list);
    return ERR_OK;
}

enum err_code chat_str_split(CHAT_METHOD_ARGS)
{
    return split(r, self, args, false, out);
}

enum err_code chat_str_rsplit(CHAT_METHOD_ARGS)
{
    return split(r, self, args, true, out);
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

enum err_code chat_splitlines(struct chat_run *r, const struct chat_value *s, bool keep,
                              struct chat_value *out)
{
    const char *text = chat_text(&s->u.s);
    size_t len = s->u.s.len, from = 0, at = 0, w;
    CHAT_TRY(chat_step(r, len));
    CHAT_TRY(chat_list_new(r, 0, out));
    while (at < len) {
        uint32_t cp = chat_cp_at(text + at, len - at, &w);
        size_t end = at;
        at += w;
        if (!is_line_end(cp))
            continue;
        if (cp == '\r' && at < len && text[at] == '\n')
            at++;
        CHAT_TRY(push_piece(r, s, from, keep ? at : end, out));
        from = at;
    }
    return from < len ? push_piece(r, s, from, len, out) : ERR_OK;
}

enum err_code chat_str_splitlines(CHAT_METHOD_ARGS)
{
    struct chat_value v[1];
    bool keep = false;
    CHAT_TRY(chat_bind(r, args, "splitlines", "keepends", v));
    CHAT_TRY(chat_truth(r, &v[0], &keep));
    return chat_splitlines(r, self, keep, out);
}

static enum err_code partition(struct chat_run *r, const struct chat_value *self,
                               const struct chat_args *args, bool right, struct chat_value *out)
{
    struct chat_value v[1];
    struct chat_str sep;
    const struct chat_str *s = &self->u.s;
    CHAT_TRY(chat_bind(r, args, "partition", "-!", v));
    CHAT_TRY(chat_arg_str(r, &v[0], "partition", &sep));
    if (sep.len == 0)
        return chat_fail(r, "partition: empty separator");
    CHAT_TRY(chat_step(r, s->len * (right ? sep.len : 1)));
    size_t hit = right ? chat_rfind(s, &sep, s->len) : chat_find(s, &sep, 0);
    bool none = hit == SIZE_MAX;
    size_t a = none ? (right ? 0 : s->len) : hit, b = none ? a : hit + sep.len;
    CHAT_TRY(chat_list_new(r, 3, out));
    CHAT_TRY(push_piece(r, self, 0, a, out));
    CHAT_TRY(push_piece(r, self, a, b, out));
    CHAT_TRY(push_piece(r, self, b, s->len, out));
    out->type = CHAT_TUPLE;
    return ERR_OK;
}

enum err_code chat_str_partition(CHAT_METHOD_ARGS)
{
    return partition(r, self, args, false, out);
}

enum err_code chat_str_rpartition(CHAT_METHOD_ARGS)
{
    return partition(r, self, args, true, out);
}
