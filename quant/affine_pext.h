/* affine_pext.h: codes to the bit stream: 4 bits with vectors, the others with BMI2, eight codes an
 * instruction. Included by the vector variants after TARGET and LANE.
 * By itself, without LANE, this header is empty. */
#include "quant/affine_private.h"

#ifdef LANE

LANE uint64_t eight_codes(const uint8_t *c, int bits)
{
    return _pext_u64(load_u64(c), 0x0101010101010101u * ((1u << bits) - 1u));
}

/* Pairs of codes to bytes: c[2i] + 16 c[2i + 1]. */
LANE __m128i pair_codes(const uint8_t *c)
{
    return _mm_maddubs_epi16(_mm_loadu_si128((const void *)c), _mm_set1_epi16(0x1001));
}

/* Eight codes are `bits` bytes. Stores of 8 bytes would run into the next group, which may belong
 * to another thread, so narrower widths fill one word after another. n is a multiple of 32. */
LANE void pack_codes(const uint8_t *c, int n, int bits, uint8_t *out)
{
    uint64_t word = 0;
    int filled = 0; /* bits of word */
    if (bits == 8) {
        memcpy(out, c, (size_t)n);
        return;
    }
    if (bits == 4) {
        for (int i = 0; i < n; i += 32)
            _mm_storeu_si128((void *)(out + i / 2),
                             _mm_packus_epi16(pair_codes(c + i), pair_codes(c + i + 16)));
        return;
    }
    for (int i = 0; i < n; i += 8) {
        uint64_t v = eight_codes(c + i, bits);
        word |= v << filled;
        filled += 8 * bits;
        if (filled >= 64) {
            store_u64(out, word);
            out += 8;
            filled -= 64;
            word = filled ? v >> (8 * bits - filled) : 0;
        }
    }
    if (filled)
        memcpy(out, &word, 4); /* 32 codes are a whole number of 32-bit words */
}

#endif
