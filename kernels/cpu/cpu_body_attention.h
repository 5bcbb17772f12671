/* cpu_body_attention.h: rule 4 in the f32 arithmetic: up to four query heads of one row over the
 * pages of its sequence.
 *
 * A page of a layer is, per KV head, K as [head_dim][64 keys] and V as [64 keys][head_dim] in f32,
 * so that a score is a chain over head_dim in the lane of its key and an output a chain over keys
 * in the lane of its dimension; both are the multiply kernel of cpu_body_linear.h. Only keys that
 * the row may see take part: what stands in later slots of a page cannot reach it, not even as 0 *
 * NaN.
 *
 * Included by cpu_c.c, cpu_avx2.c and cpu_avx512.c after cpu_vec.h.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_BODY_ATTENTION_H
#define ASSAY_KERNELS_CPU_CPU_BODY_ATTENTION_H

#include "kernels/cpu/cpu_body_linear.h"
#include "kernels/cpu/cpu_body_rows.h"

#define HEAD_VECS_MAX (KERN_HEAD_MAX)

/* Online softmax of n_q heads: running maximum (of raw scores), row sum, weighted sum of V. */
struct att_state {
    float m[CPU_QUERIES], l[CPU_QUERIES];
    float o[CPU_QUERIES][HEAD_VECS_MAX] __attribute__((aligned(64)));
};

static void att_reset(struct att_state *s, int n_q, int hd)
{
    for (int q = 0; q < n_q; q++) {
        s->m[q] = -INFINITY;
        s->l[q] = 0.0f;
        memset(s->o[q], 0, (size_t)hd * sizeof(float));
    }
}

/* out[q][0..n) (+)= x[q] * m, n columns (a multiple of 8; any tail is done one by one). */
static void att_multiply(int n_q, const float *m, int ld, int n_i, const float *const *x,
                         float *out, int out_ld, int n, bool from_zero)
{
    int c = 0;
#define RUN(q, v) multiply(q, v, m + c, ld, n_i, x, out + c, out_ld, from_zero)
    for (; c + 4 * V_WIDTH <= n && n_q < 4; c += 4 * V_WIDTH) {
        if (n_q == 1)
            RUN(1, 4);
        else if (n_q == 2)
            RUN(2, 4);
        else
            RUN(3, 4);
    }
    for (; c + 2 * V_WIDTH <= n; c += 2 * V_WIDTH) {
        if (n_q == 4)
            RUN(4, 2);
        else if (n_q == 3)
            RUN(3, 2);
        else if (n_q == 2)
            RUN(2, 2);
        else
            RUN(1, 2);
    }
#undef RUN
    for (; c + V_WIDTH <= n; c += V_WIDTH)
        for (int q = 0; q < n_q; q++)
            multiply(1, 1, m + c, ld, n_i, x + q, out + q * out_ld + c, out_ld, from_zero);
    for (; c < n; c++)
        for (int q = 0; q < n_q; q++) {
            float s = from_zero ? 0.0f : out[q * out_ld + c];
            for (int i = 0; i < n_i; i++)
                s = fmaf(m[(int64_t)i * ld + c], x[q][i], s);
            out[q * out_ld + c] = s;
        }
}

/* Scores of one head, in place, to P for the keys [lo, hi) of the tile and +0 elsewhere; returns
 * the row sum over the 16 lanes of elem.h. */
static float att_powers(float *s, int lo, int hi, float m, float c)
{
    vf vm_ = v_set(-(m * c)), vc = v_set(c);
    for (int i = 0; i < KERN_TILE; i += V_WIDTH)
        v_store(s + i, vec_exp2_full(v_fma(v_load(s + i), vc, vm_)));
    for (int i = 0; i < lo; i++)
        s[i] = 0.0f;
    for (int i = hi; i < KERN_TILE; i++)
        s[i] = 0.0f;
    float lane[ELEM_TILE_LANES];
    for (int j = 0; j < ELEM_TILE_LANES; j += V_WIDTH) {
        vf a = v_load(s + j);
        for (int i = ELEM_TILE_LANES; i < KERN_TILE; i += ELEM_TILE_LANES)
            a = v_add(a, v_load(s + i + j));
        v_store(lane + j, a);
    }
    return tree_sum(lane, ELEM_TILE_LANES);
}

/* Keys [lo, hi) of one page, 0 <= lo < hi <= 64. */
static void att_tile(const struct cpu_attention_job *j, const float *k, const float *v, int lo,
                     int hi, struct att_state *st)
{
    const struct attention_args *a = j->a;
    int hd = a->head_dim;
    float c = elem_score_factor(a->scale, a->softcap);
    float s[CPU_QUERIES][KERN_TILE] __attribute__((aligned(64)));
    const float *x[CPU_QUERIES];
    for (int q = 0; q < j->n_q; q++)
        x[q] = (const float *)a->q + ((int64_t)j->t * a->n_head + j->head + q) * hd;
    att_multiply(j->n_q, k, KERN_TILE, hd, x, s[0], KERN_TILE, KERN_TILE, true);
    for (int q = 0; q < j->n_q; q++) {
        if (a->softcap > 0.0f)
            for (int i = 0; i < KERN_TILE; i += V_WIDTH)
                v_store(s[q] + i,
                        vec_softcap(v_mul(v_set(a->scale), v_load(s[q] + i)), v_set(a->softcap)));
        float m = st->m[q];
        for (int i = lo; i < hi; i++)
            m = elem_max(m, s[q][i]);
        float f = elem_rescale(st->m[q], m, c);
        st->l[q] = fmaf(st->l[q], f, att_powers(s[q], lo, hi, m, c));
        st->m[q] = m;
        if (f != 1.0f)
            for (int i = 0; i < hd; i++)
                st->o[q][i] *= f;
        x[q] = s[q] + lo;
    }
    att_multiply(j->n_q, v + (int64_t)lo * hd, hd, hi - lo, x, st->o[0], HEAD_VECS_MAX, hd, false);
}

/* The split joins the total. */
static void att_merge(struct att_state *to, const struct att_state *from, int n_q, int hd, float c)
{
    for (int q = 0; q < n_q; q++) {
        float m = elem_max(to->m[q], from->m[q]);
        float ft = elem_rescale(to->m[q], m, c), fs = elem_rescale(from->m[q], m, c);
        to->m[q] = m;
        to->l[q] = fmaf(from->l[q], fs, to->l[q] * ft);
        for (int i = 0; i < hd; i++)
            to->o[q][i] = fmaf(from->o[q][i], fs, to->o[q][i] * ft);
    }
}

static void att_finish(const struct cpu_attention_job *j, struct att_state *s, float c)
{
    const struct attention_args *a = j->a;
    int hd = a->head_dim;
    for (int q = 0; q < j->n_q; q++) {
        float scale = 1.0f;
        if (a->sinks) {
            float m2 = s->m[q] * c, s2 = a->sinks[j->head + q] * ELEM_LOG2E;
            scale = elem_sink_scale(m2, s2);
            s->l[q] = fmaf(s->l[q], scale, elem_sink_gain(m2, s2));
        }
        float r = 1.0f / s->l[q];
        float *out = (float *)a->out + ((int64_t)j->t * a->n_head + j->head + q) * hd;
        for (int i = 0; i < hd; i++)
            out[i] = (s->o[q][i] * scale) * r;
    }
}

static void attention_run(const struct cpu_attention_job *j)
{
    const struct attention_args *a = j->a;
    int hd = a->head_dim, pos = a->rows->pos[j->t];
    int kv = j->head / (a->n_head / a->n_kv);
    float c = elem_score_factor(a->scale, a->softcap);
    int first = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    size_t head_floats = (size_t)2 * KERN_PAGE * (size_t)hd;
    size_t page_floats = head_floats * (size_t)a->n_kv;
    struct att_state total, split;
    att_reset(&total, j->n_q, hd);
    bool open = false;
    for (int key = first / KERN_PAGE * KERN_PAGE; key <= pos; key += KERN_PAGE) {
        const float *page =
            (const float *)a->kv + (size_t)cpu_page(a->rows, j->t, key) * page_floats;
        const float *k = page + (size_t)kv * head_floats;
        if (!open || (key + j->edge) % KERN_SPLIT == 0) {
            if (open)
                att_merge(&total, &split, j->n_q, hd, c);
            att_reset(&split, j->n_q, hd);
            open = true;
        }
        att_tile(j, k, k + (size_t)KERN_PAGE * (size_t)hd, MAX2(first - key, 0),
                 MIN2(pos + 1 - key, KERN_PAGE), &split);
    }
    att_merge(&total, &split, j->n_q, hd, c);
    att_finish(j, &total, c);
}

#define CPU_BODY_OPS                                                                               \
    {                                                                                              \
        .linear_tile = linear_tile, .attention = attention_run, .norm_row = norm_row,              \
        .rope_head = rope_head, .act_mul = act_mul_run, .add = add_run,                            \
        .combine_row = combine_row, .softcap = softcap_run, .row_max = row_max,                    \
        .lse_lanes = lse_lanes, .elem = elem_run, .stream = stream_sum                             \
    }

#endif
