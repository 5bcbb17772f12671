/* cuda_paths.h: what the CUDA backend does on a card of a compute capability: the name of its
 * arithmetic, the hardware that kernels may use there, and which kernels may run.
 *
 * Decided here alone and for all operations. A kernel that not every card can run asks cuda_takes
 * before it takes a step; what it leaves goes to the next one of its operation, down to one that
 * needs nothing but mma.sync. Choices of time among the kernels that may run stand with the
 * operations. Seen by C and CUDA, and compiled without CUDA too.
 *
 * Bits follow the card: its tensor cores give the step, all else is fixed by docs/numerics.md.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_PATHS_H
#define ASSAY_KERNELS_CUDA_CUDA_PATHS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Hardware that not every card has. */
enum cuda_hardware {
    CUDA_WARPGROUPS = 1, /* wgmma and setmaxnreg: 9.0 alone */
    CUDA_BULK = 2,       /* bulk and tensor copies, barriers that count their bytes */
    CUDA_CLUSTERS = 4,   /* of blocks, and each other's shared memory */
    CUDA_EARLY = 8       /* programmatic dependent launch (cuda_launch.cuh) */
};

/* In the order in which an operation tries them. Shared memory: of a block, in KiB, where the
 * kernel takes a fixed amount, which it holds its own sizes against; 0: it plans by what the device
 * has (cuda_kern.shared_max), or needs no more than the 48 KiB of every device.
 *      kernel                operation    name      hardware                     KiB */
#define CUDA_KERNELS(X)                                                                            \
    X(LINEAR_STREAM, "linear", "stream", CUDA_BULK | CUDA_CLUSTERS, 0)                             \
    X(LINEAR_MANY, "linear", "many", CUDA_WARPGROUPS | CUDA_BULK, 227)                             \
    X(LINEAR_FEW, "linear", "few", 0, 0)                                                           \
    X(LINEAR_PLAIN, "linear", "plain", 0, 0)                                                       \
    X(EXPERTS_FEW, "experts", "few", 0, 0)                                                         \
    X(EXPERTS_MANY, "experts", "many", CUDA_WARPGROUPS | CUDA_BULK, 227)                           \
    X(EXPERTS_PLAIN, "experts", "plain", 0, 0)                                                     \
    X(ATTENTION_ROW_512, "attention of 512 dims", "row", CUDA_BULK, 207)                           \
    X(ATTENTION_ROW_256, "attention of 256 dims", "row", CUDA_BULK, 106)                           \
    X(ATTENTION_ROW, "attention", "row", CUDA_BULK | CUDA_CLUSTERS, 80)                            \
    X(ATTENTION_MANY, "attention", "many", CUDA_WARPGROUPS | CUDA_BULK, 227)                       \
    X(ATTENTION_ITEMS_512, "attention of 512 dims", "items", 0, 156)                               \
    X(ATTENTION_TURNS_512, "attention of 512 dims", "turns", 0, 92)                                \
    X(ATTENTION_ITEMS, "attention", "items", 0, 92)                                                \
    X(RESIDUAL_ROUTER, "residual", "router", CUDA_CLUSTERS, 0)                                     \
    X(RESIDUAL_ROWS, "residual", "rows", 0, 0)                                                     \
    X(OTHER, "all else", "one kernel", 0, 0)

enum cuda_kernel {
#define X(kernel, operation, name, hardware, kib) CUDA_KERNEL_##kernel,
    CUDA_KERNELS(X)
#undef X
        CUDA_KERNEL_COUNT
};

/* Shared memory of a block, in bytes, that the table has for a kernel. */
enum cuda_kernel_shared {
#define X(kernel, operation, name, hardware, kib) CUDA_SHARED_##kernel = (kib) << 10,
    CUDA_KERNELS(X)
#undef X
};

/* What is known of a card before it is asked. */
struct cuda_chip {
    int major, minor;
    enum kern_arith arith;
    unsigned hardware; /* bits of enum cuda_hardware */
    const char *isa;   /* "sm_90" */
    /* Shared memory of a block and of a multiprocessor: as published. What a device says of itself
     * counts; tests make a device smaller by these. */
    size_t block_shared, sm_shared;
};

/* NULL for a compute capability that is not known here: its arithmetic has no name. */
const struct cuda_chip *cuda_chip_find(int major, int minor);
/* Those that are known, NULL after the last. */
const struct cuda_chip *cuda_chip_number(int i);

/* Would machine code for `archs`, blank-separated as ASSAY_CUDA_ARCHS has them, run on the card?
 * Code runs on its own capability and on later minors of it; 90a on 9.0 alone, and 9.0 needs it. */
bool cuda_chip_runs(const struct cuda_chip *chip, const char *archs);
/* What this build has code for; empty: compiled by flags of other origin, which nobody knows. */
const char *cuda_build_archs(void);

/* The kernels that a card may run whose blocks have so much shared memory: bit of each. */
unsigned cuda_kernels_of(const struct cuda_chip *chip, size_t block_shared);

struct cuda_kernel_facts {
    const char *operation, *name;
    unsigned hardware;
    size_t shared;
};
const struct cuda_kernel_facts *cuda_kernel_facts(enum cuda_kernel kernel);

/* Tests: CUDA devices are opened as if they had no more hardware and shared memory than a card of
 * this capability, 80 for 8.0; the arithmetic stays their own. 0: as they are. */
void cuda_plant_capability(int capability);
int cuda_planted_capability(void);

#ifdef __cplusplus
}
#endif

#endif
