/* cpu_body_rows.h: the operations that go over one row at a time: norm, activation, add, combine,
 * softcap, log-sum-exp.
 *
 * Elements beyond the last full vector take the scalar functions of elem.h, which have the same
 * bits. Sums go through the lanes of elem.h, never through vectors of another width.
 *
 * Included by cpu_c.c, cpu_avx2.c and cpu_avx512.c after cpu_vec.h.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_BODY_ROWS_H
#define ASSAY_KERNELS_CPU_CPU_BODY_ROWS_H

#include "kernels/cpu/cpu_body_elem.h"

/* lane j takes lane j + n for n = lanes/2 ... 1; lanes is a power of two. */
VFN float tree_sum(float *lane, int lanes)
{
    int n = lanes / 2;
    for (; n >= V_WIDTH; n /= 2)
        for (int j = 0; j < n; j += V_WIDTH)
            v_store(lane + j, v_add(v_load(lane + j), v_load(lane + j + n)));
    for (; n >= 1; n /= 2)
        for (int j = 0; j < n; j++)
            lane[j] += lane[j + n];
    return lane[0];
}

static float sum_squares(const float *h, int64_t d)
{
    float lane[ELEM_NORM_LANES] = {0};
    for (int64_t i = 0; i < d; i += ELEM_NORM_LANES) {
        int n = (int)MIN2((int64_t)ELEM_NORM_LANES, d - i), j = 0;
        for (; j + V_WIDTH <= n; j += V_WIDTH) {
            vf x = v_load(h + i + j);
            v_store(lane + j, v_fma(x, x, v_load(lane + j)));
        }
        for (; j < n; j++)
            lane[j] = fmaf(h[i + j], h[i + j], lane[j]);
    }
    return tree_sum(lane, ELEM_NORM_LANES);
}

static void add_run(float *h, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH)
        v_store(h + i, v_add(v_load(h + i), v_load(x + i)));
    for (; i < n; i++)
        h[i] += x[i];
}

static void norm_row(const struct rms_norm_args *a, float *h, const float *add, void *out,
                     bool out_f32)
{
    if (add)
        add_run(h, add, a->d);
    float f = elem_norm_factor(sum_squares(h, a->d), (float)a->d, a->eps);
    float *of = out;
    uint16_t *oh = out;
    int64_t i = 0;
    for (; i + V_WIDTH <= a->d; i += V_WIDTH) {
        vf w = v_load(a->w + i);
        if (a->plus_one)
            w = v_add(v_set(1.0f), w);
        vf y = v_mul(v_mul(v_load(h + i), v_set(f)), w);
        if (out_f32)
            v_store(of + i, y);
        else
            v_store_bf16(oh + i, y);
    }
    for (; i < a->d; i++) {
        float y = elem_norm(h[i], f, a->w[i], a->plus_one);
        if (out_f32)
            of[i] = y;
        else
            oh[i] = bf16_from_f32(y);
    }
}

static void rope_head(const float *x, int head_dim, int rot_dim, const float *cos_sin, float *out)
{
    int half = rot_dim / 2, i = 0;
    const float *sine = cos_sin + half;
    for (; i + V_WIDTH <= half; i += V_WIDTH) {
        vf a = v_load(x + i), b = v_load(x + half + i);
        vf c = v_load(cos_sin + i), s = v_load(sine + i);
        vf minus = v_bits(vi_add(vi_bits(v_mul(b, s)), vi_set(0x80000000u)));
        v_store(out + i, v_fma(a, c, minus));
        v_store(out + half + i, v_fma(b, c, v_mul(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        out[i] = elem_rope_first(a, b, cos_sin[i], sine[i]);
        out[half + i] = elem_rope_second(a, b, cos_sin[i], sine[i]);
    }
    memcpy(out + rot_dim, x + rot_dim, (size_t)(head_dim - rot_dim) * sizeof *x);
}

VFN void act_mul_kind(enum act_kind act, const struct act_mul_args *a, const float *gate,
                      const float *up, int64_t n, void *out, bool out_f32)
{
    float *of = out;
    uint16_t *oh = out;
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH) {
        vf y = vec_act_mul(act, a, v_load(gate + i), v_load(up + i));
        if (out_f32)
            v_store(of + i, y);
        else
            v_store_bf16(oh + i, y);
    }
    for (; i < n; i++) {
        float y = one_act_mul(a, gate[i], up[i]);
        if (out_f32)
            of[i] = y;
        else
            oh[i] = bf16_from_f32(y);
    }
}

static void act_mul_run(const struct act_mul_args *a, const float *gate, const float *up, int64_t n,
                        void *out, bool out_f32)
{
    switch (a->act) {
    case ACT_SILU:
        act_mul_kind(ACT_SILU, a, gate, up, n, out, out_f32);
        break;
    case ACT_GELU_TANH:
        act_mul_kind(ACT_GELU_TANH, a, gate, up, n, out, out_f32);
        break;
    case ACT_GPTOSS:
        act_mul_kind(ACT_GPTOSS, a, gate, up, n, out, out_f32);
        break;
    }
}

static void combine_row(const float *y, const float *weight, int n_used, int64_t d, float *out)
{
    int64_t i = 0;
    for (; i + V_WIDTH <= d; i += V_WIDTH) {
        vf acc = v_mul(v_set(weight[0]), v_load(y + i));
        for (int s = 1; s < n_used; s++)
            acc = v_fma(v_set(weight[s]), v_load(y + s * d + i), acc);
        v_store(out + i, acc);
    }
    for (; i < d; i++) {
        float acc = weight[0] * y[i];
        for (int s = 1; s < n_used; s++)
            acc = fmaf(weight[s], y[s * d + i], acc);
        out[i] = acc;
    }
}

static void softcap_run(float *x, int64_t n, float cap)
{
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH)
        v_store(x + i, vec_softcap(v_load(x + i), v_set(cap)));
    for (; i < n; i++)
        x[i] = elem_softcap(x[i], cap);
}

/* Exact in any order. NaNs may or may not show; whatever they give, a NaN among x makes the sum
 * that follows a NaN. */
static float row_max(const float *x, int64_t n)
{
    float lane[V_WIDTH];
    vf m = v_set(-INFINITY);
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH)
        m = v_max(v_load(x + i), m);
    v_store(lane, m);
    float r = -INFINITY;
    for (int j = 0; j < V_WIDTH; j++)
        r = elem_max(lane[j], r);
    for (; i < n; i++)
        r = elem_max(x[i], r);
    return r;
}

static void lse_lanes(const float *x, int64_t n, float max, int lane0, float *lanes)
{
    memset(lanes, 0, 256 * sizeof *lanes);
    for (int64_t i = lane0; i < n; i += ELEM_LSE_LANES) {
        int m = (int)MIN2((int64_t)256, n - i), j = 0;
        for (; j + V_WIDTH <= m; j += V_WIDTH) {
            vf e = vec_exp(v_sub(v_load(x + i + j), v_set(max)));
            v_store(lanes + j, v_add(v_load(lanes + j), e));
        }
        for (; j < m; j++)
            lanes[j] += elem_exp(x[i + j] - max);
    }
}

static float stream_sum(const float *x, int64_t n)
{
    vf s[8];
    for (int j = 0; j < 8; j++)
        s[j] = v_zero();
    for (int64_t i = 0; i + 8 * V_WIDTH <= n; i += 8 * V_WIDTH) {
        V_UNROLL
        for (int j = 0; j < 8; j++)
            s[j] = v_add(s[j], v_load(x + i + j * V_WIDTH));
    }
    float lane[V_WIDTH], r = 0;
    for (int j = 1; j < 8; j++)
        s[0] = v_add(s[0], s[j]);
    v_store(lane, s[0]);
    for (int j = 0; j < V_WIDTH; j++)
        r += lane[j];
    return r;
}

#endif
