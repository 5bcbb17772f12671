/* rope.h: the table of rotary angles, made on the host once for the planned context.
 *
 * A frequency is computed in double and rounded once to f32; an angle is RN_f32(pos * f), as the
 * models were trained; cosine and sine of that angle are computed in double and rounded once. All
 * of it uses own log2, exp2, sine and cosine made of IEEE additions, multiplications and divisions,
 * since a math library's last bits change with its version and vector variant: the same table on
 * every machine. Owns no memory.
 */
#ifndef ASSAY_INFER_ROPE_H
#define ASSAY_INFER_ROPE_H

#include "ckpt/hparams.h"

#define ROPE_DIMS_MAX 1024
/* Positions are exact in f32 and the argument reduction is exact below this. */
#define ROPE_POS_MAX ((int64_t)1 << 24)

/* Rotated dims of a head: all, or partial_dims. */
int rope_dims(const struct rope_params *p, int head_dim);

/* freq[rope_dims / 2] and the factor on cosines and sines (1 but for yarn). ERR_INPUT when the
 * parameters cannot make a table. */
MUST_USE enum err_code rope_freqs(const struct rope_params *p, int head_dim, float *freq,
                                  float *scale, struct err *e);

/* out[n_pos][n_dims]: n_dims / 2 cosines, then as many sines, of positions 0 .. n_pos - 1. */
void rope_fill(const float *freq, float scale, int n_dims, int64_t n_pos, float *out);

/* |x| <= 2^24. Error below 2^-50 of the larger of 2^-26 and the result. */
void rope_sincos(double x, double *sine, double *cosine);
double rope_log2(double x); /* x > 0, normal */
double rope_exp2(double x); /* |x| < 1000 */

#endif
