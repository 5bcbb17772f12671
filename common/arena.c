/* arena.c: chained chunks, each block aligned and zeroed, the seal. */
#include "common/arena.h"

#include <stdlib.h>

#include "common/io.h"

#define CHUNK_DEFAULT ((size_t)1 << 20)

struct chunk {
    struct chunk *prev;
    size_t bytes, used; /* of data */
    uint8_t *data;
};

struct arena {
    struct chunk *top;
    size_t chunk_bytes, reserved;
    const char *sealed;
};

struct arena *arena_new(size_t chunk_bytes)
{
    if (io_fault_hit(IO_FAULT_ALLOC))
        return NULL;
    struct arena *a = calloc(1, sizeof *a);
    if (a)
        a->chunk_bytes = align_up(chunk_bytes ? chunk_bytes : CHUNK_DEFAULT, ARENA_ALIGN);
    return a;
}

static void pop(struct arena *a)
{
    struct chunk *c = a->top;
    a->top = c->prev;
    a->reserved -= c->bytes;
    free(c->data);
    free(c);
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    while (a->top)
        pop(a);
    free(a);
}

static bool push(struct arena *a, size_t bytes)
{
    if (io_fault_hit(IO_FAULT_ALLOC))
        return false;
    struct chunk *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    c->bytes = MAX2(bytes, a->chunk_bytes);
    c->data = aligned_alloc(ARENA_ALIGN, c->bytes);
    if (!c->data) {
        free(c);
        return false;
    }
    c->prev = a->top;
    a->top = c;
    a->reserved += c->bytes;
    return true;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (a->sealed || bytes > SIZE_MAX - ARENA_ALIGN)
        return NULL;
    size_t need = align_up(MAX2(bytes, 1), ARENA_ALIGN);
    if (!a->top || a->top->bytes - a->top->used < need) {
        if (!push(a, need))
            return NULL;
    }
    uint8_t *p = a->top->data + a->top->used;
    a->top->used += need;
    memset(p, 0, need);
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t elem_bytes)
{
    size_t bytes;
    return checked_mul(n, elem_bytes, &bytes) ? arena_alloc(a, bytes) : NULL;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (copy)
        memcpy(copy, s, n);
    return copy;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

struct arena_mark arena_mark(const struct arena *a)
{
    return (struct arena_mark){a->top, a->top ? a->top->used : 0};
}

void arena_reset(struct arena *a, struct arena_mark m)
{
    while (a->top && a->top != m.chunk)
        pop(a);
    if (a->top)
        a->top->used = m.used;
}

void arena_seal(struct arena *a, const char *phase)
{
    a->sealed = phase;
}

enum err_code arena_error(const struct arena *a, size_t bytes, struct err *e)
{
    if (a->sealed)
        return err_set(e, ERR_INTERNAL, "allocation of %zu bytes during %s", bytes, a->sealed);
    return err_set(e, ERR_NOMEM, "out of memory: %zu bytes", bytes);
}

size_t arena_bytes(const struct arena *a)
{
    return a->reserved;
}
