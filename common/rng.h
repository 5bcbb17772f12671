/* rng.h: counter-based random numbers (Philox4x32-10, Salmon et al., SC 2011).
 *
 * A draw is a pure function of (key, counter), so it does not depend on who drew before.
 */
#ifndef ASSAY_COMMON_RNG_H
#define ASSAY_COMMON_RNG_H

#include "common/base.h"

void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Uniform in [0, 1) with 24 bits, for (seed, 128 bits of stream, position): rule 8 of
 * docs/numerics.md. B = philox(key = seed, counter = stream); then
 * D = philox(key = B[0..1], counter = position low, position high, B[2], B[3]); the top 24 bits of
 * D[0]. All words little-endian. */
float rng_uniform(uint64_t seed, const uint8_t stream[16], uint64_t position);

/* A plain sequential generator on top, for tests and bootstrap: same seed, same numbers. */
struct rng {
    uint64_t seed, n;
};
uint64_t rng_next(struct rng *r);
double rng_double(struct rng *r);                  /* [0, 1) */
uint64_t rng_below(struct rng *r, uint64_t bound); /* [0, bound), unbiased */
double rng_normal(struct rng *r);

#endif
