/* cpu_c.c: the bodies of the CPU kernels compiled for plain C; correct anywhere, and the form that
 * the others are held to.
 *
 * fmaf is the C library's, exact with or without the instruction.
 */
#include "kernels/cpu/cpu_ops.h"

#define CPU_VEC_C
#include "kernels/cpu/cpu_vec.h"

#include "kernels/cpu/cpu_body_elem.h"
#include "kernels/cpu/cpu_body_rows.h"

#include "kernels/cpu/cpu_body_linear.h"

#include "kernels/cpu/cpu_body_attention.h"

const struct cpu_isa_ops cpu_ops_c = CPU_BODY_OPS;
