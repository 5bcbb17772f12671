/* qat_avx2.c: the loops of the grid search for processors with AVX2. Owns no arithmetic of its
 * own. */
#ifdef __x86_64__

#define TARGET __attribute__((target("avx2")))
#include "quant/qat_body.h"

const struct grid_ops grid_ops_avx2 = GRID_OPS;

#else
typedef int grid_avx2_is_empty;
#endif
