/* linear_rig.h: linear layers on the CPU oracle and a CUDA device side by side (cuda_rig.h): one
 * weight, inputs of one kind, steps of several counts of rows, compared byte by byte.
 */
#ifndef ASSAY_TESTS_LINEAR_RIG_H
#define ASSAY_TESTS_LINEAR_RIG_H

#include "kernels/cuda/cuda_product.h"
#include "tests/cuda_rig.h"

#define KIND_BESIDE 4 /* of inputs: ordinary, but for one NaN or infinity in every third row */

/* Rows [n, rows] of the product on one side; K of x is w's. */
FIX_FN float *product(struct kern *k, struct kern_weight *w, const uint16_t *x, int n,
                      const float *bias)
{
    int64_t rows = kern_weight_rows(w), len = kern_weight_k(w);
    void *dx = rig_put(k, x, (size_t)(n * len) * 2);
    void *dbias = bias ? rig_put(k, bias, (size_t)rows * 4) : NULL;
    void *out = rig_put(k, NULL, (size_t)(n * rows) * 4);
    struct linear_args a = {.n_tok = n, .x = dx, .x_stride = len, .n_parts = 1};
    struct err e = {.text = ""};
    a.part[0] = (struct linear_part){w, dbias, out, rows};
    fix_ok(kern_linear(k, &a, &e), &e);
    float *host = rig_get(k, out, (size_t)(n * rows) * 4);
    kern_free(k, dx);
    kern_free(k, dbias);
    kern_free(k, out);
    return host;
}

FIX_FN void reserve(struct rig *r, int n_tok, int64_t k_max, int64_t rows_max)
{
    struct kern_limits l = {.n_tok = n_tok,
                            .n_seq = n_tok,
                            .pages_max = 1,
                            .n_head = 1,
                            .head_dim = 64,
                            .k_max = k_max,
                            .rows_max = rows_max};
    struct err e = {.text = ""};
    fix_ok(kern_reserve(r->side[1], &l, &e), &e);
}

FIX_FN void check_counts(struct rig *r, struct fix_weight *f, const int *counts, size_t n_counts,
                         int kind, bool with_bias, const char *what)
{
    struct rng draws = {.seed = 7 + (uint64_t)kind};
    struct kern_weight *w[2] = {fix_load(r->side[0], f), fix_load(r->side[1], f)};
    int64_t rows = kern_weight_rows(w[0]), k = kern_weight_k(w[0]);
    int most = counts[n_counts - 1];
    uint16_t *x = rig_inputs(&draws, (size_t)(most * k), kind == KIND_BESIDE ? 0 : kind);
    for (int64_t t = 1; kind == KIND_BESIDE && t < most; t += 3)
        x[t * k + t % k] = t % 2 ? 0x7fc0 : 0xff80;
    float *bias = with_bias ? fix_floats(&draws, (size_t)rows, -1, 1) : NULL;
    float *want = product(r->side[0], w[0], x, most, bias);
    reserve(r, most, k, rows);
    for (size_t i = 0; i < n_counts; i++) {
        float *got = product(r->side[1], w[1], x, counts[i], bias);
        int64_t at = rig_differ(want, got, (size_t)(counts[i] * rows), 4);
        ck_assert_msg(
            at < 0,
            "%s, %lld x %lld, %d rows, inputs %d: row %lld output %lld: %08x, expected %08x", what,
            (long long)rows, (long long)k, counts[i], kind, (long long)(at / rows),
            (long long)(at % rows), f32_bits(got[at]), f32_bits(want[at]));
        free(got);
    }
    free(x);
    free(bias);
    free(want);
    for (int i = 0; i < 2; i++)
        kern_weight_free(r->side[i], w[i]);
}

/* Scales of any size, both encodings of bf16 scales, values beyond the ordinary. */
FIX_FN void make_hostile(struct rng *r, struct fix_weight *f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = f->c.q.scale == DT_F32 ? 4 : 2;
        for (size_t j = 0; j < bytes && rng_below(r, 4) == 0; j++) {
            f->scales[(size_t)i * bytes + j] = (uint8_t)rng_below(r, 256);
            f->biases[(size_t)i * bytes + j] = (uint8_t)rng_below(r, 256);
        }
    }
}

#endif
