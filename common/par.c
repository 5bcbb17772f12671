/* par.c: thread counts and the static loop, over OpenMP. */
#include "common/par.h"

#include <omp.h>
#include <sched.h>

int par_allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return MAX2(CPU_COUNT(&set), 1);
    return MAX2(omp_get_num_procs(), 1); /* more processors than the set has room for */
}

int par_default_threads(void)
{
    /* OpenMP has read OMP_NUM_THREADS, or else counted the allowed processors. */
    return MAX2(omp_get_max_threads(), 1);
}

void par_for(int n_threads, int64_t n, void (*fn)(void *ctx, int64_t i, int thread), void *ctx)
{
    if (n_threads > n)
        n_threads = (int)n;
    if (n_threads <= 1) {
        for (int64_t i = 0; i < n; i++)
            fn(ctx, i, 0);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t i = 0; i < n; i++)
        fn(ctx, i, omp_get_thread_num());
}
