/* pack_pool.c: best fit over a short list. */
#include "quant/pack_pool.h"

#include <stdlib.h>

static struct pack_buffer remove_at(struct pack_pool *p, size_t i)
{
    struct pack_buffer b = p->spare[i];
    p->spare[i] = p->spare[--p->n];
    p->bytes -= b.bytes;
    return b;
}

struct pack_buffer pack_pool_take(struct pack_pool *p, uint64_t bytes, uint64_t room)
{
    size_t best = p->n;
    for (size_t i = 0; i < p->n; i++) {
        uint64_t has = p->spare[i].bytes;
        if (has >= bytes && has / 2 <= bytes && (best == p->n || has < p->spare[best].bytes))
            best = i;
    }
    if (best < p->n)
        return remove_at(p, best);
    while (p->n && (bytes > room || p->bytes > room - bytes))
        free(remove_at(p, 0).mem);
    return (struct pack_buffer){malloc(MAX2(bytes, 1)), bytes};
}

void pack_pool_give(struct pack_pool *p, struct pack_buffer b)
{
    if (p->n == PACK_POOL_MAX)
        free(remove_at(p, 0).mem);
    p->spare[p->n++] = b;
    p->bytes += b.bytes;
}

void pack_pool_free(struct pack_pool *p)
{
    while (p->n)
        free(remove_at(p, p->n - 1).mem);
}
