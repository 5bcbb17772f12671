/* cpu_bench.h: every kernel of the CPU against this machine's read bandwidth. */
#ifndef ASSAY_KERNELS_CPU_CPU_BENCH_H
#define ASSAY_KERNELS_CPU_CPU_BENCH_H

#include "common/json.h"
#include "kernels/kernels.h"

/* Puts "stream_bytes_per_s" and "kernels" (a list of kernel, shape, seconds, bytes_per_s,
 * flop_per_s, stream_share) into out; k is a CPU's. `seconds` for each figure. */
MUST_USE enum err_code cpu_bench_run(struct kern *k, double seconds,
                                     const volatile int *interrupted, json_t *out, struct err *e);

#endif
