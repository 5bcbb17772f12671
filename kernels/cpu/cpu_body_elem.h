/* cpu_body_elem.h: the elementary functions of kernels/elem.h over vectors.
 *
 * Line by line the same operations in the same order; tests/test_elem.c compares every function of
 * every variant with elem.h bit by bit. What is explained there is not explained here. Included by
 * cpu_c.c, cpu_avx2.c and cpu_avx512.c behind cpu_vec.h.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_BODY_ELEM_H
#define ASSAY_KERNELS_CPU_CPU_BODY_ELEM_H

#include "kernels/elem.h"

VFN vf vec_scale2(vf p, vf rounded)
{
    vi n = vi_sub(vi_bits(rounded), vi_set(0x4b400000u));
    vi half = vi_sra(n, 1);
    p = v_mul(p, v_bits(vi_sll(vi_add(half, vi_set(127)), 23)));
    return v_mul(p, v_bits(vi_sll(vi_add(vi_sub(n, half), vi_set(127)), 23)));
}

VFN vf vec_exp2_full(vf x)
{
    vf round = v_set(ELEM_ROUND);
    x = v_min(v_set(192.0f), x);
    x = v_max(v_set(-192.0f), x);
    vf rounded = v_add(x, round);
    vf f = v_sub(x, v_sub(rounded, round));
    vf p = v_set(0x1.41fbbcp-13f);
    p = v_fma(p, f, v_set(0x1.5f3e54p-10f));
    p = v_fma(p, f, v_set(0x1.3b2d4cp-7f));
    p = v_fma(p, f, v_set(0x1.c6aee8p-5f));
    p = v_fma(p, f, v_set(0x1.ebfbdcp-3f));
    p = v_fma(p, f, v_set(0x1.62e43p-1f));
    p = v_fma(p, f, v_set(1.0f));
    return vec_scale2(p, rounded);
}

VFN vf vec_exp(vf x)
{
    vf round = v_set(ELEM_ROUND);
    x = v_min(v_set(100.0f), x);
    x = v_max(v_set(-120.0f), x);
    vf rounded = v_fma(x, v_set(ELEM_LOG2E), round);
    vf n = v_sub(rounded, round);
    vf f = v_fma(n, v_set(-ELEM_LN2), x);
    f = v_fma(n, v_set(-(ELEM_LN2_LO)), f);
    vf p = v_set(0x1.6a244cp-10f);
    p = v_fma(p, f, v_set(0x1.1239d4p-7f));
    p = v_fma(p, f, v_set(0x1.5558f2p-5f));
    p = v_fma(p, f, v_set(0x1.555492p-3f));
    p = v_fma(p, f, v_set(0x1.fffffcp-2f));
    p = v_fma(p, f, v_set(1.0f));
    p = v_fma(p, f, v_set(1.0f));
    return vec_scale2(p, rounded);
}

VFN vf vec_tanh(vf x)
{
    vf one = v_set(1.0f);
    vi sign = vi_and(vi_bits(x), vi_set(0x80000000u));
    vf a = v_bits(vi_and(vi_bits(x), vi_set(0x7fffffffu)));
    vf t = vec_exp(v_mul(v_set(-2.0f), a));
    vf big = v_div(v_sub(one, t), v_add(one, t));
    vf z = v_mul(x, x);
    vf p = v_set(-0x1.75e1c4p-8f);
    p = v_fma(p, z, v_set(0x1.52269ap-6f));
    p = v_fma(p, z, v_set(-0x1.b83c5ap-5f));
    p = v_fma(p, z, v_set(0x1.110726p-3f));
    p = v_fma(p, z, v_set(-0x1.555532p-2f));
    vf small = v_fma(v_mul(x, z), p, x);
    vf r = v_select(v_less(a, v_set(0.625f)), small, big);
    return v_bits(vi_or(vi_bits(r), sign));
}

/* x / (1 + e^-u). */
VFN vf vec_gate(vf x, vf u)
{
    vf minus_u = v_bits(vi_add(vi_bits(u), vi_set(0x80000000u))); /* the sign bit flipped */
    return v_div(x, v_add(v_set(1.0f), vec_exp(minus_u)));
}

VFN vf vec_silu(vf x)
{
    return vec_gate(x, x);
}

VFN vf vec_gelu_tanh(vf x)
{
    vf u = v_mul(x, v_fma(v_mul(x, x), v_set(0x1.2444f2p-4f), v_set(0x1.988454p+0f)));
    return vec_gate(x, u);
}

VFN vf vec_gptoss_mul(vf gate, vf up, float limit, float alpha)
{
    vf one = v_set(1.0f), most = v_set(limit);
    vf g = v_min(most, gate);
    vf u = v_max(v_set(-limit), v_min(most, up));
    vf e = vec_exp(v_mul(v_set(-alpha), g));
    return v_mul(v_div(g, v_add(one, e)), v_add(u, one));
}

VFN vf vec_softcap(vf x, vf cap)
{
    return v_mul(cap, vec_tanh(v_div(x, cap)));
}

VFN vf vec_act_mul(enum act_kind act, const struct act_mul_args *a, vf gate, vf up)
{
    if (act == ACT_GPTOSS)
        return vec_gptoss_mul(gate, up, a->limit, a->alpha);
    return v_mul(act == ACT_SILU ? vec_silu(gate) : vec_gelu_tanh(gate), up);
}

/* The same on one element, for the ends of rows. */
VFN float one_act_mul(const struct act_mul_args *a, float gate, float up)
{
    enum act_kind act = a->act;
    if (act == ACT_GPTOSS)
        return elem_gptoss_mul(gate, up, a->limit, a->alpha);
    return act == ACT_SILU ? elem_silu_mul(gate, up) : elem_gelu_tanh_mul(gate, up);
}

VFN vf vec_elem(enum cpu_elem f, vf x)
{
    switch (f) {
    case CPU_ELEM_EXP2_FULL:
        return vec_exp2_full(x);
    case CPU_ELEM_EXP:
        return vec_exp(x);
    case CPU_ELEM_TANH:
        return vec_tanh(x);
    case CPU_ELEM_SILU:
        return vec_silu(x);
    case CPU_ELEM_GELU_TANH:
        return vec_gelu_tanh(x);
    case CPU_ELEM_GPTOSS:
        return vec_gptoss_mul(x, v_set(1.0f), 7.0f, 1.702f);
    case CPU_ELEM_SOFTCAP:
        return vec_softcap(x, v_set(30.0f));
    default:
        return x;
    }
}

/* n is a multiple of 16. */
static void elem_run(enum cpu_elem f, const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += V_WIDTH) {
        if (f == CPU_ELEM_BF16) {
            uint16_t h[V_WIDTH];
            v_store_bf16(h, v_load(x + i));
            for (int j = 0; j < V_WIDTH; j++)
                y[i + j] = bf16_to_f32(h[j]);
        } else {
            v_store(y + i, vec_elem(f, v_load(x + i)));
        }
    }
}

#endif
