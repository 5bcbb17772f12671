/* hash.h: SHA-256 for identity, a 64-bit row hash for bits.
 *
 * The row hash is a sum of mixed (index, word) pairs, so that any split over threads or blocks
 * gives the same value; CPU and CUDA compile it from here. It finds differences, it is no
 * signature.
 */
#ifndef ASSAY_COMMON_HASH_H
#define ASSAY_COMMON_HASH_H

#include "common/err.h"

#ifdef __CUDACC__
#define HASH_FN static inline __host__ __device__
#else
#define HASH_FN static inline
#endif

/* splitmix64's finalizer: a bijection of 64-bit words. */
HASH_FN uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Contribution of 32-bit word `bits` at index i; a row's hash is the wrapping sum over i. */
HASH_FN uint64_t hash_row_word(uint64_t i, uint32_t bits)
{
    return hash_mix64((i + 1) * 0x9e3779b97f4a7c15ull ^ bits);
}

#define SHA256_HEX 65 /* 64 digits and the end */

struct sha256;
struct sha256 *sha256_new(void); /* NULL: out of memory */
void sha256_update(struct sha256 *s, const void *data, size_t bytes);
/* One update of each of two messages. Where the processor has SHA instructions, what both have in
 * length takes the time of one of them. */
void sha256_update2(struct sha256 *a, const void *data_a, size_t bytes_a, struct sha256 *b,
                    const void *data_b, size_t bytes_b);
/* The next bytes of a message, to be hashed beside those of another. */
struct sha256_piece {
    struct sha256 *sha;
    const uint8_t *data;
    size_t bytes;
};
/* Updates s with data, and p with as many of its bytes, which are then taken off it. */
void sha256_update_beside(struct sha256 *s, const void *data, size_t bytes, struct sha256_piece *p);
void sha256_final(struct sha256 *s, uint8_t out[32]); /* frees s */
void sha256_of(const void *data, size_t bytes, uint8_t out[32]);
void sha256_hex(const uint8_t digest[32], char hex[SHA256_HEX]);
MUST_USE enum err_code sha256_file(const char *path, char hex[SHA256_HEX], struct err *e);

#endif
