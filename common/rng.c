/* rng.c: Philox4x32-10 and what is drawn from it.
 *
 * Everything here is integer arithmetic and exact or correctly rounded operations on doubles, so
 * the numbers are the same on every machine; no function of the maths library is called.
 */
#include "common/rng.h"

void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0;
        uint64_t p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

float rng_uniform(uint64_t seed, const uint8_t stream[16], uint64_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4], block[4];
    for (int i = 0; i < 4; i++)
        counter[i] = load_u32(stream + 4 * i);
    rng_philox(key, counter, block);
    counter[0] = (uint32_t)position;
    counter[1] = (uint32_t)(position >> 32);
    counter[2] = block[2];
    counter[3] = block[3];
    rng_philox(block, counter, block);
    return (float)(block[0] >> 8) * 0x1p-24f;
}

uint64_t rng_next(struct rng *r)
{
    uint32_t key[2] = {(uint32_t)r->seed, (uint32_t)(r->seed >> 32)};
    uint32_t counter[4] = {(uint32_t)r->n, (uint32_t)(r->n >> 32), 0, 0}, out[4];
    r->n++;
    rng_philox(key, counter, out);
    return (uint64_t)out[1] << 32 | out[0];
}

double rng_double(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
    if (bound < 2)
        return 0;
    /* The lowest 2^64 mod bound numbers would make small results more frequent: drawn again. */
    uint64_t skip = (0 - bound) % bound, v;
    do {
        v = rng_next(r);
    } while (v < skip);
    return v % bound;
}

/* True with probability exp(-p), p in [0, 1]: a run of falling uniforms below p has even length
 * (von Neumann). Longer p are taken in pieces of 1. */
static bool happens(struct rng *r, double p)
{
    for (;; p -= 1) {
        double last = MIN2(p, 1.0);
        bool even = true;
        for (double u = rng_double(r); u < last; u = rng_double(r)) {
            last = u;
            even = !even;
        }
        if (!even)
            return false;
        if (p <= 1)
            return true;
    }
}

/* Rejection from a discretised exponential (Karney 2016): comparisons only, no logarithm and no
 * cosine, whose last bits differ between C libraries. */
double rng_normal(struct rng *r)
{
    for (;;) {
        int k = 0;
        while (happens(r, 0.5))
            k++;
        if (!happens(r, 0.5 * k * (k - 1)))
            continue;
        double x = rng_double(r);
        if (!happens(r, 0.5 * x * (2 * k + x)))
            continue;
        double v = k + x;
        return rng_next(r) >> 63 ? -v : v;
    }
}
