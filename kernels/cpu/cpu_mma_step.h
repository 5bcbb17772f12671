/* cpu_mma_step.h: the tensor core's step for sixteen outputs at once, in each instruction set.
 *
 * Owns the form in which weights and inputs are handed to the step, and the table of functions that
 * each variant gives. The result of every function is fixed to the bit by kernels/mma90.h; variants
 * differ in speed alone.
 *
 * Why it is cheap. A product of two bf16 is exact in f32. Its un-normalised exponent is the sum of
 * the operands' exponent fields, so E comes from 16-bit adds and maxima over pairs of k. After
 * multiplication by 2^(25-E) the float-to-int conversion that cuts toward zero does the cutting,
 * and the sixteen integers are below 2^27 each, so that their sum fits 32 bits.
 *
 * When it holds. Operands below 2^63 in magnitude and E in [-64, 120]. Then an operand that is zero
 * or subnormal, whose exponent field of 0 understates a subnormal by one, cannot have been the
 * maximum; the scale and the result are normal numbers; no product is an infinity. The sum of the
 * products must leave room for C. Lanes that break any of this go to mma90_step one by one.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_MMA_STEP_H
#define ASSAY_KERNELS_CPU_CPU_MMA_STEP_H

#include "ckpt/qformat.h"
#include "kernels/cpu/cpu_private.h"
#include "kernels/mma90.h"

#define CPU_MMA_LANES 16  /* outputs of a tile */
#define CPU_MMA_STRIP 128 /* k that are expanded at once: 12 KiB, so that a strip stays in L1 */

/* Exponent fields of bf16 pairs stay where they are in the 16 bits (shifted by 7); a product's is
 * the sum, biased by 254. */
#define CPU_MMA_EXPS    0x7f807f80u
#define CPU_MMA_WIDE    (190u << 7) /* an operand's field from here on is too large: 2^63 */
#define CPU_MMA_E_MIN   (190u << 7)
#define CPU_MMA_E_MAX   (374u << 7)
#define CPU_MMA_SUM_MAX (INT32_MAX - (1 << 26) - 256)
#define CPU_MMA_SCALE   (406u << 23) /* minus E's field: 2^(25-E) */
#define CPU_MMA_UNSCALE (152u << 23) /* E's field minus this: 2^(E-25) */

/* Before a short loop of a vector form: -O2 alone leaves it a loop over arrays in memory. */
#if defined(__clang__)
#define CPU_MMA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CPU_MMA_UNROLL _Pragma("GCC unroll 16")
#endif

/* Expanded weights of a tile: k major, sixteen lanes. Values are bf16 held in f32. */
struct cpu_mma_strip {
    _Alignas(64) float v[CPU_MMA_STRIP][CPU_MMA_LANES];
    _Alignas(64) uint32_t e[CPU_MMA_STRIP / 2][CPU_MMA_LANES]; /* fields of k and (high) k + 1 */
    bool wide; /* holds an operand of 2^63 or more, an infinity or a NaN */
};

/* A run of inputs, one for all lanes: values, exponent fields of pairs, and per step whether one is
 * too large. The arrays belong to the caller. */
struct cpu_mma_input {
    float *v;
    uint32_t *e;
    uint8_t *wide;
};

static inline struct cpu_mma_input cpu_mma_input_at(struct cpu_mma_input x, int64_t k)
{
    struct cpu_mma_input r = {x.v + k, x.e + k / 2, x.wide + k / MMA90_K};
    return r;
}

/* Packed rows of one tile, see cpu_mma_weight.c. */
struct cpu_mma_packed {
    const uint32_t *codes; /* [k / 32][bits][lane] */
    const uint8_t *scales; /* [k / group][scales, biases][lane] of q.scale; no biases in blocks */
    struct qformat q;
    /* Affine: fmaf(q, s, b) is exact (bf16 scales), normal or zero, and below 2^63. Block floats:
     * element * s is a bf16 below 2^63, and there are no global scales. */
    bool plain;
    const float *globals; /* [lane]; NULL: 1 */
};

struct cpu_mma_ops {
    /* n is a multiple of 16. */
    void (*prepare)(const uint16_t *x, int64_t n, struct cpu_mma_input out);
    /* pairs[i][lane] = bf16 of k = 2i in the low half, of 2i + 1 in the high one. */
    void (*expand_pairs)(const uint32_t *pairs, int n, struct cpu_mma_strip *out);
    /* k0 and n are multiples of 32. */
    void (*expand_packed)(const struct cpu_mma_packed *p, int64_t k0, int n,
                          struct cpu_mma_strip *out);
    /* acc[lane] after n_steps steps over strip and inputs, from what it holds. */
    void (*chain)(const struct cpu_mma_strip *w, struct cpu_mma_input x, int n_steps, float *acc);
};

const struct cpu_mma_ops *cpu_mma_ops_of(enum cpu_isa isa);

extern const struct cpu_mma_ops cpu_mma_ops_c;
extern const struct cpu_mma_ops cpu_mma_ops_avx2;
extern const struct cpu_mma_ops cpu_mma_ops_avx512;

/* One step by the definition for the lanes of `mask`: where the fast forms do not hold. */
void cpu_mma_step_lanes(const float (*w)[CPU_MMA_LANES], const float *x, uint32_t mask, float *acc);
/* Rule 1 by qformat.h for element i of a lane, as bf16. */
uint16_t cpu_mma_step_value(const struct cpu_mma_packed *p, int64_t i, int lane);
/* The same for all lanes: tiles that are not plain. */
void cpu_mma_step_expand(const struct cpu_mma_packed *p, int64_t k0, int n,
                         struct cpu_mma_strip *out);

#endif
