/* base.h: attributes, checked arithmetic and little-endian access.
 *
 * Owns what every file needs and nothing that allocates, prints or fails. Numbers that come from a
 * file go through the checked helpers before they size anything. Seen by C and CUDA.
 */
#ifndef ASSAY_COMMON_BASE_H
#define ASSAY_COMMON_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MUST_USE          __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define ARRAY_LEN(a)      (sizeof(a) / sizeof((a)[0]))
#define MIN2(a, b)        ((a) < (b) ? (a) : (b))
#define MAX2(a, b)        ((a) > (b) ? (a) : (b))

/* Rounds n up to a multiple of `to` (a power of two). The caller knows that it does not wrap. */
static inline size_t align_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

/* a * b and a + b in size_t; false when the true result does not fit. */
static inline bool checked_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool checked_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Unaligned little-endian loads and stores. The project runs on little-endian machines only
 * (CMakeLists.txt refuses others), so these are plain copies. */
static inline uint16_t load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float load_f32(const void *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store_u16(void *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

static inline void store_u32(void *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
}

static inline void store_u64(void *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#endif
