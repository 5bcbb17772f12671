/* cpu_mma_private.h: the mma90 operations of the CPU backend, as the function table takes them, and
 * their weights and pages.
 *
 * Results are fixed by docs/numerics-mma90.md; kernels.c has validated the arguments. No function
 * allocates but cpu_mma_weight_load, and none needs scratch beyond its threads' stacks (at most
 * 256 KiB each).
 */
#ifndef ASSAY_KERNELS_CPU_CPU_MMA_PRIVATE_H
#define ASSAY_KERNELS_CPU_CPU_MMA_PRIVATE_H

#include "kernels/cpu/cpu_mma_step.h"

/* Rows stand in tiles of sixteen, lanes (rows) fastest; the last tile repeats the last row, so that
 * its spare lanes are as ordinary as the others. One block: codes, scales, flags.
 *
 * Affine: the rows' bit streams in 32-bit words: [tile][k / 32][bits][lane]; scales of q.scale as
 * [tile][k / group][scales, biases][lane]; a flag a tile (cpu_mma_packed.plain).
 * Block floats: the same without biases; with global scales, sixteen f32 a tile behind the flags.
 * Dense: bf16 pairs [tile][k_pad / 2][lane], low half the even k; k is padded to 16 with zeros. */
struct cpu_mma_weight {
    struct kern_weight base;
    int64_t n_tiles, k_pad;
    size_t tile_words;       /* 32-bit words of a tile's codes or pairs */
    size_t tile_scale_bytes; /* packed */
    uint32_t *codes;
    uint8_t *scales, *plain;
    float *globals; /* or NULL */
};

static inline const struct cpu_mma_weight *cpu_mma_weight_of(const struct kern_weight *w)
{
    return (const struct cpu_mma_weight *)w;
}

enum err_code cpu_mma_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                                  struct kern_weight **w, struct err *e);
void cpu_mma_weight_free(struct kern *k, struct kern_weight *w);
size_t cpu_mma_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n);
/* out[0..n) = k in [k0, k0 + n) of row r by rule 1, as bf16. */
void cpu_mma_weight_row(const struct cpu_mma_weight *w, int64_t r, int64_t k0, int n,
                        uint16_t *out);
/* k in [k0, k0 + n) of a tile; n is a multiple of 16 (packed: k0 and n of 32). */
void cpu_mma_weight_expand(const struct cpu_mma_weight *w, const struct cpu_mma_ops *ops,
                           int64_t tile, int64_t k0, int n, struct cpu_mma_strip *out);

/* A page: per kv head, K then V, bf16, head_dim padded to 16 with zeros.
 * K: [key / 16][dim / 2][key % 16] pairs of dims. V: [dim / 16][key / 2][dim % 16] pairs of keys.
 * So both are tiles for the step: keys are the lanes of the scores, dims those of the output. */
size_t cpu_mma_page_bytes(const struct kern *k, int n_kv, int head_dim);

enum err_code cpu_mma_embed(struct kern *k, const struct embed_args *a, struct err *e);
enum err_code cpu_mma_linear(struct kern *k, const struct linear_args *a, struct err *e);
enum err_code cpu_mma_expert_linear(struct kern *k, const struct expert_linear_args *a,
                                    struct err *e);
enum err_code cpu_mma_rope_kv(struct kern *k, const struct rope_kv_args *a, struct err *e);
enum err_code cpu_mma_attention(struct kern *k, const struct attention_args *a, struct err *e);

#endif
