/* sample_rule.h: the pieces of sampling (docs/numerics.md, section 8) that decide bits, compiled by
 * the C and the CUDA compiler.
 *
 * A candidate's weight is exp2_full of its distance to the best in octaves; its mass is the weight
 * cut to a multiple of 2^-SAMPLE_SHIFT, as an integer. Sums of masses are exact, so any order of
 * work gives the same sums.
 */
#ifndef ASSAY_KERNELS_SAMPLE_RULE_H
#define ASSAY_KERNELS_SAMPLE_RULE_H

#include "kernels/elem.h"

#define SAMPLE_SHIFT     43
#define SAMPLE_VOCAB_MAX (1 << 20) /* their masses sum to at most 2^63 */

/* Repetition penalty of one logit. */
ELEM_FN float sample_punish(float l, float f)
{
    return l < 0.0f ? l * f : l / f;
}

/* Distance to the best logit in octaves, 0 or less; not a number, or beyond all octaves: -inf. An
 * infinite best has its equals alone. */
ELEM_FN float sample_octaves(float l, float best, double temperature)
{
    double d = (double)l - (double)best;
    if (l == best)
        return 0.0f;
    if (!(d < 0 && d >= -0x1.fffffffffffffp+1023))
        return -elem_float(0x7f800000u);
    return (float)(d / temperature * 1.4426950408889634);
}

ELEM_FN uint64_t sample_mass(float weight)
{
    return (uint64_t)(weight * (float)(1ull << SAMPLE_SHIFT));
}

/* Candidates stay while the mass before them is below this share of all. */
ELEM_FN bool sample_within(uint64_t before, double top_p, uint64_t sum)
{
    return (double)before < top_p * (double)sum;
}

/* Floor of sum * u; u is a multiple of 2^-24 below 1. */
ELEM_FN uint64_t sample_mark(uint64_t sum, float u)
{
    uint64_t n = (uint64_t)(u * 0x1p24f);
    return (sum >> 24) * n + (((sum & 0xffffffu) * n) >> 24);
}

/* The order of candidates as a number: greater logit, then lower id. */
ELEM_FN uint64_t sample_rank(float l, uint32_t id)
{
    uint32_t key = (uint32_t)elem_order_key(l) ^ 0x80000000u;
    return (uint64_t)key << 32 | (0xffffffffu - id);
}

#endif
