/* trace_block.c: the arrays of an answer as bytes and back. Pure. */
#include <math.h>
#include <stdlib.h>

#include "ckpt/trace_private.h"

struct trace_block_size trace_block_size_of(const struct trace_record *r)
{
    struct trace_block_size s = {.n_prompt = r->n_prompt, .n = (int64_t)r->n};
    for (size_t i = 0; i < r->n; i++) {
        s.tops += r->tok[i].n_top;
        s.full += r->tok[i].full != NULL;
    }
    return s;
}

bool trace_block_bytes(const struct trace_block_size *s, int64_t n_vocab, size_t *bytes)
{
    const struct {
        int64_t n;
        size_t each;
    } parts[] = {{s->n_prompt, 4}, {s->n, 4 + 12 + 8 + 1}, {s->tops, 8}, {s->full, 4}};
    size_t rows, part;
    if (!checked_mul((size_t)s->full, (size_t)n_vocab, &rows) || !checked_mul(rows, 2, bytes))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (!checked_mul((size_t)parts[i].n, parts[i].each, &part) ||
            !checked_add(*bytes, part, bytes))
            return false;
    return true;
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static void put_u32(struct strbuf *b, uint32_t v)
{
    uint8_t bytes[4];
    store_u32(bytes, v);
    strbuf_append(b, bytes, sizeof bytes);
}

static void put_f32(struct strbuf *b, float v)
{
    put_u32(b, f32_bits(isfinite(v) ? v : NAN));
}

void trace_block_put(struct strbuf *b, const struct trace_record *r, int64_t n_vocab)
{
    for (int64_t i = 0; i < r->n_prompt; i++)
        put_u32(b, (uint32_t)r->prompt_ids[i]);
    for (size_t i = 0; i < r->n; i++)
        put_u32(b, (uint32_t)r->tok[i].id);
    for (size_t i = 0; i < r->n; i++)
        put_f32(b, r->tok[i].logprob);
    for (size_t i = 0; i < r->n; i++)
        put_f32(b, r->tok[i].margin);
    for (size_t i = 0; i < r->n; i++)
        put_f32(b, r->tok[i].lse);
    for (size_t i = 0; i < r->n; i++) {
        put_u32(b, (uint32_t)r->tok[i].hash);
        put_u32(b, (uint32_t)(r->tok[i].hash >> 32));
    }
    for (size_t i = 0; i < r->n; i++)
        strbuf_putc(b, (char)r->tok[i].n_top);
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->tok[i].n_top; k++)
            put_u32(b, (uint32_t)r->tok[i].top_id[k]);
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->tok[i].n_top; k++)
            put_f32(b, r->tok[i].top_logprob[k]);
    for (size_t i = 0; i < r->n; i++)
        if (r->tok[i].full)
            put_u32(b, (uint32_t)i);
    for (size_t i = 0; i < r->n; i++)
        for (int64_t k = 0; r->tok[i].full && k < n_vocab; k++) {
            uint8_t bytes[2];
            store_u16(bytes, r->tok[i].full[k]);
            strbuf_append(b, bytes, sizeof bytes);
        }
}

/* ---- reading -----------------------------------------------------------------------------------
 */

static uint32_t take_u32(const uint8_t **p)
{
    uint32_t v = load_u32(*p);
    *p += 4;
    return v;
}

static float take_f32(const uint8_t **p)
{
    return f32_from_bits(take_u32(p));
}

static bool take_id(const uint8_t **p, int32_t *id)
{
    *id = (int32_t)take_u32(p);
    return *id >= 0;
}

/* The counts of best tokens add up to s->tops. */
static bool take_tops(const uint8_t **p, const struct trace_block_size *s, struct trace_record *r)
{
    int64_t tops = 0;
    bool ok = true;
    for (size_t i = 0; i < r->n; i++, ++*p) {
        r->tok[i].n_top = **p;
        tops += **p;
        ok &= **p <= TRACE_TOP_MAX;
    }
    if (!ok || tops != s->tops)
        return false;
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->tok[i].n_top; k++)
            ok &= take_id(p, &r->tok[i].top_id[k]);
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < r->tok[i].n_top; k++)
            r->tok[i].top_logprob[k] = take_f32(p);
    return ok;
}

static enum err_code take_full(const uint8_t *p, int64_t n, int64_t n_vocab, struct trace_record *r,
                               struct err *e)
{
    const uint8_t *rows = p + 4 * n;
    int64_t before = -1;
    for (int64_t f = 0; f < n; f++) {
        int64_t at = (int32_t)take_u32(&p);
        if (at <= before || at >= (int64_t)r->n)
            return err_set(e, ERR_INPUT, "full row %lld is of token %lld, expected %lld to %zu",
                           (long long)f, (long long)at, (long long)before + 1, r->n);
        before = at;
        uint16_t *full = malloc((size_t)n_vocab * sizeof *full);
        if (!full)
            return err_set(e, ERR_NOMEM, "out of memory");
        r->tok[at].full = full;
        for (int64_t k = 0; k < n_vocab; k++, rows += 2)
            full[k] = load_u16(rows);
    }
    return ERR_OK;
}

enum err_code trace_block_get(const uint8_t *p, const struct trace_block_size *s, int64_t n_vocab,
                              struct trace_record *r, struct err *e)
{
    bool ok = true;
    r->n_prompt = s->n_prompt;
    r->prompt_ids = calloc((size_t)s->n_prompt + 1, sizeof *r->prompt_ids);
    r->tok = calloc((size_t)s->n + 1, sizeof *r->tok);
    if (!r->prompt_ids || !r->tok)
        return err_set(e, ERR_NOMEM, "out of memory");
    r->n = (size_t)s->n;
    for (int64_t i = 0; i < s->n_prompt; i++)
        ok &= take_id(&p, &r->prompt_ids[i]);
    for (size_t i = 0; i < r->n; i++)
        ok &= take_id(&p, &r->tok[i].id);
    for (size_t i = 0; i < r->n; i++)
        r->tok[i].logprob = take_f32(&p);
    for (size_t i = 0; i < r->n; i++)
        r->tok[i].margin = take_f32(&p);
    for (size_t i = 0; i < r->n; i++)
        r->tok[i].lse = take_f32(&p);
    for (size_t i = 0; i < r->n; i++) {
        r->tok[i].hash = take_u32(&p);
        r->tok[i].hash |= (uint64_t)take_u32(&p) << 32;
    }
    if (!ok || !take_tops(&p, s, r))
        return err_set(e, ERR_INPUT, "the block holds no ids, or not %lld best tokens",
                       (long long)s->tops);
    return take_full(p, s->full, n_vocab, r, e);
}
