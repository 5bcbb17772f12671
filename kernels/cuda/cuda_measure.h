/* cuda_measure.h: figures of single kernels on the device, for bench.
 *
 * What is measured is recorded into a graph, as a step's launches are, in an arm of its own; arms
 * are replayed in turns, each after a fill of memory that is larger than the second-level cache,
 * and an arm's figure is the median of its rounds. The last arm is the first one once more (the
 * null arm): what the two differ by cannot be resolved.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_MEASURE_H
#define ASSAY_KERNELS_CUDA_CUDA_MEASURE_H

#include <jansson.h>
#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/json.h"
#include "kernels/kernels.h"

#define MEASURE_ARMS   3
#define MEASURE_BLOCKS 64

struct measure {
    struct kern *k;
    int rounds;
    const volatile int *interrupted;
    double stream; /* bytes a second that a kernel reads, at most */
    json_t *list;  /* borrowed */
    void *flush;
    void *block[MEASURE_BLOCKS]; /* measure_alloc; freed by measure_close */
    int n_blocks;
};

typedef enum err_code (*measure_fn)(void *ctx, struct kern *k, struct err *e);
struct measure_arm {
    measure_fn run;
    void *ctx;
    double seconds; /* out: median */
};

/* Takes the device's read limit too. */
MUST_USE enum err_code measure_open(struct measure *m, struct kern *k, int rounds,
                                    const volatile int *interrupted, struct err *e);
void measure_close(struct measure *m);
MUST_USE enum err_code measure_alloc(struct measure *m, size_t bytes, uint8_t byte, void **p,
                                     struct err *e);
/* Frees all blocks but the first n. */
void measure_keep(struct measure *m, int n);
/* n arms and a null arm of the first; *null: its seconds. */
MUST_USE enum err_code measure_arms(struct measure *m, struct measure_arm *arm, int n, double *null,
                                    struct err *e);
/* A matrix of random codes on the device, `copies` of it one behind the other; the first belongs to
 * the kern and the copies are blocks. 4 or 8 bits, groups of 64, bf16 scales. */
MUST_USE enum err_code measure_weights(struct measure *m, int64_t rows, int64_t k, int bits,
                                       int copies, struct kern_weight **w, struct err *e);
void measure_weights_free(struct kern *k, struct kern_weight **w, int copies);

/* Every kernel of a model: "stream_bytes_per_s" and "kernels" of out, as cpu_bench_run has them,
 * with "null_ratio". */
MUST_USE enum err_code cuda_bench_run(struct kern *k, int rounds, const volatile int *interrupted,
                                      json_t *out, struct err *e);
/* The linear layers of an 8B model, 4-bit, against cuBLAS with bf16 weights: "linear_pass" of out,
 * a list of rows, seconds, flop_per_s, blas_seconds, blas_flop_per_s, ratio, null_ratio. ERR_DEVICE
 * where there is no cuBLAS. */
MUST_USE enum err_code cuda_blas_run(struct kern *k, int rounds, const volatile int *interrupted,
                                     json_t *out, struct err *e);

#ifdef __cplusplus
}
#endif
#endif
