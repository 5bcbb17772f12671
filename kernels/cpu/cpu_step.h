/* cpu_step.h: the CPU's operations, as the tables of cpu.c name them. */
#ifndef ASSAY_KERNELS_CPU_CPU_STEP_H
#define ASSAY_KERNELS_CPU_CPU_STEP_H

#include "kernels/cpu/cpu_ops.h"

#define X(op) enum err_code cpu_##op(struct kern *k, const struct op##_args *a, struct err *e);
KERN_OPS(X)
#undef X

/* Threads worth starting for about `work` element operations: 1 when a parallel region would cost
 * more than it saves. */
static inline int cpu_threads_for(const struct kern *k, int64_t work)
{
    return work < 16384 ? 1 : k->threads;
}

/* KERN_FAULT_KV8, when it is planted. */
void cpu_plant_kv8(const struct rope_kv_args *a);

#endif
