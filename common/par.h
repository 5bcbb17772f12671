/* par.h: how many threads, and static loops over them.
 *
 * Work is cut by index alone, so results never depend on the number of threads. No reduction
 * clauses: partial results go to indexed slots and are added in index order.
 */
#ifndef ASSAY_COMMON_PAR_H
#define ASSAY_COMMON_PAR_H

#include "common/base.h"

/* OMP_NUM_THREADS as read by OpenMP at start, else the processors this process may use. */
int par_default_threads(void);
int par_allowed_cores(void); /* processors that this process may use */

/* Calls fn(ctx, i, thread) for i in [0, n), n_threads at once, each index exactly once. */
void par_for(int n_threads, int64_t n, void (*fn)(void *ctx, int64_t i, int thread), void *ctx);

#endif
