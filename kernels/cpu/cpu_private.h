/* cpu_private.h: the CPU backend's own view: its kern, the instruction-set variants, page
 * addresses and the tile form of f32 weights.
 *
 * Owns no arithmetic. One body of code (cpu_body_*.h) is compiled three times, by cpu_c.c,
 * cpu_avx2.c and cpu_avx512.c, over the vector operations of cpu_vec.h; each gives one struct
 * cpu_isa_ops. The mma90 operations stand in cpu_mma_private.h and choose by cpu_kern.isa.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_PRIVATE_H
#define ASSAY_KERNELS_CPU_CPU_PRIVATE_H

#include "kernels/kernels_private.h"

enum cpu_isa { CPU_C, CPU_AVX2, CPU_AVX512, CPU_ISA_COUNT };
const char *cpu_isa_name(enum cpu_isa isa); /* "c", "avx2", "avx512" */
bool cpu_isa_runs(enum cpu_isa isa);        /* on this machine */

struct cpu_isa_ops;

struct cpu_kern {
    struct kern base;
    enum cpu_isa isa;
    const struct cpu_isa_ops *ops;
    /* Scratch taken by kern_reserve; all of it belongs to the operation that runs. */
    uint8_t *scratch;
    size_t scratch_bytes;
    struct kern_limits limits; /* zero before kern_reserve */
};

static inline struct cpu_kern *cpu_of(struct kern *k)
{
    return (struct cpu_kern *)k;
}

/* The page that holds position pos of row t's sequence. */
static inline int32_t cpu_page(const struct kern_rows *r, int t, int32_t pos)
{
    return r->pages[(int64_t)r->seq[t] * r->pages_max + pos / KERN_PAGE];
}

/* ---- f32 weights -------------------------------------------------------------------------------
 */
/* Rows stand in tiles of 32; inside a tile the lane (row) is the fastest index, so that a vector
 * holds one k of neighbouring rows. The last tile is padded with zero codes, scales and biases.
 *
 * Affine: eight k of a tile are `bits` * 32 bytes, in planes of 8, 4, 2 or 1 bit (8: one plane;
 * 4; 2; 3 = 2 + 1; 5 = 4 + 1; 6 = 4 + 2, low plane first). A plane of p bits is p rows of 32
 * bytes; byte `lane` of its row j holds the p-bit pieces of k = j * 8/p ... ascending from bit 0.
 * Scales: per tile and group 32 scales, then 32 biases, of q.scale.
 * Block floats: planes as affine ones of their bits; per tile and group 32 scales of `scale`, which
 * is q.scale, or DT_F32 where a row has a global scale: then they are multiplied by it.
 * Dense: per tile and k 32 elements of dtype. */
#define CPU_TILE 32

struct cpu_weight {
    struct kern_weight base;
    int64_t n_tiles;
    size_t tile_bytes;       /* of codes or dense elements */
    size_t tile_scale_bytes; /* packed */
    enum dtype scale;        /* of the scales in memory */
    uint8_t *codes, *scales; /* one block of base.bytes; scales point into it */
    bool shiftable;          /* every scale times 2^-6 is exact */
};

static inline const struct cpu_weight *cpu_weight_of(const struct kern_weight *w)
{
    return (const struct cpu_weight *)w;
}

enum err_code cpu_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                              struct kern_weight **w, struct err *e);
void cpu_weight_free(struct kern *k, struct kern_weight *w);
size_t cpu_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n);
/* out[0..k) = the f32 values of row r. */
void cpu_weight_row(const struct cpu_weight *w, int64_t r, float *out);

/* Zeroed, 64-byte aligned; NULL when memory is out. Freed with free(). */
void *cpu_alloc_zeroed(size_t bytes);
/* The same, holding anything; long ones in large pages where the machine has them. */
void *cpu_alloc_weight(size_t bytes);

#endif
