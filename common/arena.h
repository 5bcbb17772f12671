/* arena.h: memory with one lifetime.
 *
 * An arena hands out zeroed, 64-byte aligned blocks and frees them together. Sealed, it refuses:
 * an allocation in a phase that promised none is a fault of the program, and the text names the
 * phase. Blocks belong to the arena; they are never freed one by one.
 */
#ifndef ASSAY_COMMON_ARENA_H
#define ASSAY_COMMON_ARENA_H

#include "common/err.h"

#define ARENA_ALIGN 64

struct arena;
struct arena_mark {
    void *chunk;
    size_t used;
};

struct arena *arena_new(size_t chunk_bytes); /* NULL: out of memory; 0: default chunk size */
void arena_free(struct arena *a);            /* NULL is fine */

/* NULL when memory is out or the arena is sealed. */
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_array(struct arena *a, size_t n, size_t elem_bytes); /* checked product */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);

struct arena_mark arena_mark(const struct arena *a);
void arena_reset(struct arena *a, struct arena_mark m); /* frees all that came after the mark */

/* While sealed (phase != NULL) every allocation fails. NULL opens the arena again. */
void arena_seal(struct arena *a, const char *phase);

/* ERR_NOMEM or, when sealed, ERR_INTERNAL with the phase: what to return after a NULL. */
enum err_code arena_error(const struct arena *a, size_t bytes, struct err *e);
size_t arena_bytes(const struct arena *a); /* reserved from the system */

#endif
