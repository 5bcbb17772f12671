/* sha256_ni.c: FIPS 180-4's compression of two messages side by side.
 *
 * One message leaves the SHA unit idle half of the time, since every step waits for the one before
 * it; two independent messages fill the gaps. libcrypto has no such call. The state is kept in the
 * order that the instructions want: words a b e f and c d g h.
 */
#include "common/sha256_ni.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>

#define TARGET  __attribute__((target("sha,sse4.1,ssse3")))
#define INLINE  TARGET static inline __attribute__((always_inline))
#define AHEAD   512 /* bytes that are asked for early: hardware prefetch stops at every page */
#define BIT_SHA (1u << 29)

static const _Alignas(16) uint32_t round_key[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool sha256_ni_here(void)
{
    static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
    if (!known) {
        unsigned int a, b, c = 0, d, leaf7_b = 0;
        bool yes = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3) &&
                   __get_cpuid_count(7, 0, &a, &leaf7_b, &c, &d) && (leaf7_b & BIT_SHA);
        known = yes ? 2 : 1;
    }
    return known == 2;
}

struct state {
    __m128i abef, cdgh;
};

INLINE struct state load_state(const uint32_t h[8])
{
    __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const void *)h), 0xb1);
    __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const void *)(h + 4)), 0x1b);
    return (struct state){_mm_alignr_epi8(badc, hgfe, 8), _mm_blend_epi16(hgfe, badc, 0xf0)};
}

INLINE void store_state(struct state s, uint32_t h[8])
{
    __m128i feba = _mm_shuffle_epi32(s.abef, 0x1b), dchg = _mm_shuffle_epi32(s.cdgh, 0xb1);
    _mm_storeu_si128((void *)h, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((void *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

INLINE void four_rounds(struct state *s, __m128i w, int i)
{
    __m128i x = _mm_add_epi32(w, _mm_load_si128((const void *)(round_key + 4 * i)));
    s->cdgh = _mm_sha256rnds2_epu32(s->cdgh, s->abef, x);
    s->abef = _mm_sha256rnds2_epu32(s->abef, s->cdgh, _mm_shuffle_epi32(x, 0x0e));
}

/* Words [4 i, 4 i + 4) of the message's schedule, whose last sixteen are in w. */
INLINE __m128i schedule(__m128i w[4], const uint8_t *data, int i)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    if (i < 4)
        return w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const void *)(data + 16 * i)), big_endian);
    __m128i w1 = w[(i + 1) % 4], w2 = w[(i + 2) % 4], w3 = w[(i + 3) % 4];
    __m128i x = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w1), _mm_alignr_epi8(w3, w2, 4));
    return w[i % 4] = _mm_sha256msg2_epu32(x, w3);
}

INLINE struct state add(struct state x, struct state y)
{
    return (struct state){_mm_add_epi32(x.abef, y.abef), _mm_add_epi32(x.cdgh, y.cdgh)};
}

TARGET void sha256_ni_pair(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8],
                           const uint8_t *b, size_t blocks)
{
    struct state s = load_state(state_a), t = load_state(state_b);
    for (; blocks; blocks--, a += 64, b += 64) {
        const struct state s0 = s, t0 = t;
        __m128i v[4], w[4];
        __builtin_prefetch((const void *)((uintptr_t)a + AHEAD)); /* may lie behind the end */
        __builtin_prefetch((const void *)((uintptr_t)b + AHEAD));
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++)
        {
            four_rounds(&s, schedule(v, a, i), i);
            four_rounds(&t, schedule(w, b, i), i);
        }
        s = add(s, s0);
        t = add(t, t0);
    }
    store_state(s, state_a);
    store_state(t, state_b);
}

#else

bool sha256_ni_here(void)
{
    return false;
}

void sha256_ni_pair(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8], const uint8_t *b,
                    size_t blocks)
{
    (void)state_a, (void)a, (void)state_b, (void)b, (void)blocks; /* never called */
}

#endif
