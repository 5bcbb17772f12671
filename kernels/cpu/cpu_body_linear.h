/* cpu_body_linear.h: rule 2 in the f32 arithmetic: one tile of 32 weight rows against many rows of
 * x. Included by cpu_c.c, cpu_avx2.c and cpu_avx512.c behind cpu_vec.h.
 *
 * Every output is one ascending chain of fmaf per chunk, in its own lane; how many rows share a
 * pass changes nothing. Two paths give the same chains. One row: codes are turned into weights and
 * used at once, with the chunk's sums in registers. More rows: 64 k of the tile become f32 in a
 * buffer of 8 KiB that stays in the first-level cache and serves blocks of V_TOKENS rows.
 *
 * Codes are not shifted down in the first path: a piece at bits [b, b + p) of a byte, converted as
 * it stands, is q * 2^b, and fmaf(q * 2^b, s * 2^-b, bias) is fmaf(q, s, bias) whenever s * 2^-b is
 * exact (cpu_weight.shiftable; b <= 6). That saves one instruction in five.
 */
#ifndef ASSAY_KERNELS_CPU_CPU_BODY_LINEAR_H
#define ASSAY_KERNELS_CPU_CPU_BODY_LINEAR_H

#include "kernels/cpu/cpu_ops.h"

/* Bytes of codes that the one-row path asks for ahead: with one row a tile is read once, faster
 * than the hardware's prefetcher follows across pages. */
#define LIN_AHEAD  1536
#define LIN_KB     64 /* k of the weight buffer; a group of 128 spans two */
#define TILE_VECS  (CPU_TILE / V_WIDTH)
#define BLOCK_VECS 2 /* vectors of weights that the multiply kernel holds */

/* ---- multiply kernel ---------------------------------------------------------------------------
 */
/* acc[t][v] (+)= sum over i ascending of x[t][i] * m[i * ld + v]: n_t rows and n_v vectors of
 * columns, both constants. acc rows are acc_ld apart. */
VFN void multiply(int n_t, int n_v, const float *m, int ld, int n, const float *const *x,
                  float *acc, int acc_ld, bool from_zero)
{
    vf s[V_TOKENS][4];
    V_UNROLL
    for (int t = 0; t < n_t; t++) {
        V_UNROLL
        for (int v = 0; v < n_v; v++)
            s[t][v] = from_zero ? v_zero() : v_load(acc + t * acc_ld + v * V_WIDTH);
    }
    for (int i = 0; i < n; i++) {
        vf w[4];
        V_UNROLL
        for (int v = 0; v < n_v; v++)
            w[v] = v_load(m + (int64_t)i * ld + v * V_WIDTH);
        V_UNROLL
        for (int t = 0; t < n_t; t++) {
            vf b = v_set(x[t][i]);
            V_UNROLL
            for (int v = 0; v < n_v; v++)
                s[t][v] = v_fma(w[v], b, s[t][v]);
        }
    }
    V_UNROLL
    for (int t = 0; t < n_t; t++) {
        V_UNROLL
        for (int v = 0; v < n_v; v++)
            v_store(acc + t * acc_ld + v * V_WIDTH, s[t][v]);
    }
}

/* n_t rows of x at offset k against a buffer [n][32]. */
static void multiply_rows(int n_t, const float *m, int n, const float *const *x, int64_t k,
                          float *acc, bool from_zero)
{
    const float *at[V_TOKENS];
    for (int t = 0; t < n_t; t++)
        at[t] = x[t] + k;
    for (int v = 0; v < TILE_VECS; v += BLOCK_VECS) {
        const float *mv = m + v * V_WIDTH;
        float *av = acc + v * V_WIDTH;
        switch (n_t) {
#define CASE(c)                                                                                    \
    case c:                                                                                        \
        multiply(c, BLOCK_VECS, mv, CPU_TILE, n, at, av, CPU_TILE, from_zero);                     \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
#if V_TOKENS >= 6
            CASE(5)
            CASE(6)
#endif
#if V_TOKENS >= 12
            CASE(7)
            CASE(8)
            CASE(9)
            CASE(10)
            CASE(11)
            CASE(12)
#endif
#undef CASE
        default:
            break;
        }
    }
}

/* ---- codes to weights --------------------------------------------------------------------------
 */
/* Code of k (0..7) of a block of eight at p, for the lanes from `lane`, shifted down. */
VFN vi code_shifted(int bits, const uint8_t *p, int lane, int k)
{
    int low = bits == 8 ? 8 : bits >= 4 ? 4 : 2; /* width of the first plane */
    int per = 8 / low;
    vi q = vi_load_u8(p + (k / per) * CPU_TILE + lane);
    int shift = (k % per) * low;
    if (shift)
        q = vi_srl(q, shift);
    if (low < 8 && shift + low < 8)
        q = vi_and(q, vi_set((1u << low) - 1u));
    int high = bits - low;
    if (high) {
        int high_per = 8 / high;
        vi h = vi_load_u8(p + (low + k / high_per) * CPU_TILE + lane);
        int at = (k % high_per) * high;
        if (at > low)
            h = vi_srl(h, at - low);
        else if (at < low)
            h = vi_sll(h, low - at);
        q = vi_or(q, vi_and(h, vi_set(((1u << high) - 1u) << low)));
    }
    return q;
}

/* Scales or biases of 32 lanes as f32. */
VFN void scales_load(vf *out, const uint8_t *p, enum dtype t)
{
    V_UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
        if (t == DT_F32)
            out[v] = v_load((const float *)(const void *)p + v * V_WIDTH);
        else if (t == DT_BF16)
            out[v] = v_load_bf16(p + 2 * v * V_WIDTH);
        else
            out[v] = v_load_f16(p + 2 * v * V_WIDTH);
    }
}

/* Bytes of one group's scales (or biases) of a tile. */
VFN int scale_bytes(enum dtype t)
{
    return CPU_TILE * (t == DT_F32 ? 4 : 2);
}

/* The low 4 or 8 bits of each lane as the value of a block float's code. The bits of an e4m3, moved
 * to where an f32 has its exponent's and mantissa's, are that value times 2^-120. */
VFN vf element(int bits, vi code)
{
    if (bits == 4)
        return v_e2m1(code);
    vi sign = vi_sll(vi_and(code, vi_set(0x80)), 24);
    vi size = vi_sll(vi_and(code, vi_set(0x7f)), 20);
    return v_mul(v_bits(vi_or(sign, size)), v_set(0x1p120f));
}

/* Scales of a block float's group: 32 lanes as f32. */
VFN void block_scales_load(vf *out, const uint8_t *p, enum dtype t)
{
    V_UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
        if (t == DT_F32) {
            out[v] = v_load((const float *)(const void *)p + v * V_WIDTH);
        } else {
            vi c = vi_load_u8(p + v * V_WIDTH);
            /* 0 is 2^-127, a subnormal. */
            out[v] = t == DT_F8_E4M3 ? element(8, c)
                                     : v_max(v_bits(vi_sll(c, 23)), v_bits(vi_set(0x00400000)));
        }
    }
}

/* Eight k of a block float's tile times their scales into m[8][32]. */
VFN void block_eight(int bits, const uint8_t *p, const vf *s, float *m)
{
    int per = 8 / bits;
    V_UNROLL
    for (int row = 0; row < bits; row++) {
        V_UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vi c = vi_load_u8(p + row * CPU_TILE + v * V_WIDTH);
            V_UNROLL
            for (int i = 0; i < per; i++) {
                vi q = i ? vi_srl(c, 4) : c;
                v_store(m + (row * per + i) * CPU_TILE + v * V_WIDTH,
                        v_mul(element(bits, q), s[v]));
            }
        }
    }
}

/* n (a multiple of 8) weights of a block float from k0 of a tile into m[n][32]. */
static void dequantize_block(const struct cpu_weight *w, int64_t tile, int64_t k0, int n, float *m)
{
    const struct qformat q = w->base.q;
    const uint8_t *codes = w->codes + (size_t)tile * w->tile_bytes;
    const uint8_t *scales = w->scales + (size_t)tile * w->tile_scale_bytes;
    int step = CPU_TILE * qformat_scale_size(w->scale);
    for (int i = 0; i < n; i += 8, m += 8 * CPU_TILE) {
        int64_t k = k0 + i;
        vf s[TILE_VECS];
        block_scales_load(s, scales + k / q.group * step, w->scale);
        const uint8_t *p = codes + k / 8 * q.bits * CPU_TILE;
        if (q.bits == 4)
            block_eight(4, p, s, m);
        else
            block_eight(8, p, s, m);
    }
}

/* n (a multiple of 8) weights from k0 of a tile into m[n][32]; all inside one group. */
VFN void dequantize_bits(int bits, const uint8_t *codes, const vf *s, const vf *b, int n, float *m)
{
    for (int i = 0; i < n; i += 8) {
        for (int v = 0; v < TILE_VECS; v++) {
            V_UNROLL
            for (int k = 0; k < 8; k++) {
                vf q = v_convert(code_shifted(bits, codes, v * V_WIDTH, k));
                v_store(m + (i + k) * CPU_TILE + v * V_WIDTH, v_fma(q, s[v], b[v]));
            }
        }
        codes += bits * CPU_TILE;
    }
}

/* The same for 2, 4 and 8 bits of shiftable scales. */
VFN void dequantize_pieces(int bits, const uint8_t *codes, const vf *s, const vf *b, int n,
                           float *m)
{
    int per = 8 / bits;
    for (int v = 0; v < TILE_VECS; v++) {
        const uint8_t *p = codes + v * V_WIDTH;
        float *to = m + v * V_WIDTH;
        vf s_at[4] = {s[v], s[v], s[v], s[v]};
        V_UNROLL
        for (int i = 1; i < per; i++)
            s_at[i] = v_mul(s_at[i - 1], v_set(1.0f / (float)(1 << bits)));
        for (int row = 0; row < n / per; row++, p += CPU_TILE) {
            vi c = vi_load_u8(p);
            V_UNROLL
            for (int i = 0; i < per; i++, to += CPU_TILE) {
                vi q = bits == 8 ? c : vi_and(c, vi_set(((1u << bits) - 1u) << (i * bits)));
                v_store(to, v_fma(v_convert(q), s_at[i], b[v]));
            }
        }
    }
}

static void dequantize(const struct cpu_weight *w, int64_t tile, int64_t k0, int n, float *m)
{
    const struct qformat q = w->base.q;
    const uint8_t *codes = w->codes + (size_t)tile * w->tile_bytes;
    const uint8_t *scales = w->scales + (size_t)tile * w->tile_scale_bytes;
    int sb = scale_bytes(q.scale);
    for (int i = 0; i < n;) {
        int64_t k = k0 + i, group = k / q.group;
        int m_n = (int)MIN2((group + 1) * q.group - k, (int64_t)(n - i));
        vf s[TILE_VECS], b[TILE_VECS];
        scales_load(s, scales + group * 2 * sb, q.scale);
        scales_load(b, scales + group * 2 * sb + sb, q.scale);
        const uint8_t *c = codes + k / 8 * q.bits * CPU_TILE;
        float *out = m + (int64_t)i * CPU_TILE;
        switch (q.bits) {
#define CASE(bits)                                                                                 \
    case bits:                                                                                     \
        dequantize_bits(bits, c, s, b, m_n, out);                                                  \
        break;
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
            CASE(8)
#undef CASE
        default:
            break;
        }
        i += m_n;
    }
}

static void widen(const struct cpu_weight *w, int64_t tile, int64_t k0, int n, float *m)
{
    const uint8_t *p = w->codes + (size_t)tile * w->tile_bytes + (size_t)k0 * CPU_TILE * 2;
    for (int i = 0; i < n * CPU_TILE; i += V_WIDTH) {
        vf x = w->base.dtype == DT_BF16 ? v_load_bf16(p + 2 * i) : v_load_f16(p + 2 * i);
        v_store(m + i, x);
    }
}

/* ---- many rows
 * ----------------------------------------------------------------------------------- */
static void store_sums(const struct cpu_tile_job *j, const float *sum, float *out)
{
    int64_t first = j->tile * CPU_TILE;
    int64_t r0 = MAX2(j->row0, first), r1 = MIN2(j->row1, first + CPU_TILE);
    if (r1 - r0 == CPU_TILE) {
        float *to = out + (first - j->out_row0);
        const float *bias = j->bias ? j->bias + (first - j->out_row0) : NULL;
        for (int v = 0; v < CPU_TILE; v += V_WIDTH) {
            vf y = v_load(sum + v);
            v_store(to + v, bias ? v_add(y, v_load(bias + v)) : y);
        }
        return;
    }
    for (int64_t r = r0; r < r1; r++) {
        float y = sum[r - j->tile * CPU_TILE];
        out[r - j->out_row0] = j->bias ? y + j->bias[r - j->out_row0] : y;
    }
}

static void chunk_rows(const struct cpu_tile_job *j, int64_t k0, int64_t k1, float *acc)
{
    const struct cpu_weight *w = j->w;
    float buffer[LIN_KB * CPU_TILE] __attribute__((aligned(64)));
    int blocks = (j->n + V_TOKENS - 1) / V_TOKENS;
    for (int64_t k = k0; k < k1; k += LIN_KB) {
        int n = (int)MIN2((int64_t)LIN_KB, k1 - k);
        const float *m = buffer;
        if (w->base.packed && qformat_is_block(w->base.q))
            dequantize_block(w, j->tile, k, n, buffer);
        else if (w->base.packed)
            dequantize(w, j->tile, k, n, buffer);
        else if (w->base.dtype == DT_F32)
            m = (const float *)(const void *)(w->codes + (size_t)j->tile * w->tile_bytes) +
                k * CPU_TILE;
        else
            widen(w, j->tile, k, n, buffer);
        for (int b = 0; b < blocks; b++) {
            int t0 = j->n * b / blocks, t1 = j->n * (b + 1) / blocks;
            multiply_rows(t1 - t0, m, n, j->x + t0, k, acc + t0 * CPU_TILE, k == k0);
        }
    }
}

static void tile_rows(const struct cpu_tile_job *j)
{
    float acc[CPU_JOB_ROWS * CPU_TILE] __attribute__((aligned(64)));
    float sum[CPU_JOB_ROWS * CPU_TILE] __attribute__((aligned(64)));
    int64_t k = j->w->base.k, chunk = kern_chunk(k), n_chunks = (k + chunk - 1) / chunk;
    for (int64_t i = 0; i < n_chunks; i++) {
        int64_t c = j->descending ? n_chunks - 1 - i : i;
        chunk_rows(j, c * chunk, MIN2(k, (c + 1) * chunk), i == 0 ? sum : acc);
        for (int s = 0; i > 0 && s < j->n * CPU_TILE; s += V_WIDTH)
            v_store(sum + s, v_add(v_load(sum + s), v_load(acc + s)));
    }
    for (int t = 0; t < j->n; t++)
        store_sums(j, sum + t * CPU_TILE, j->out[t]);
}

/* ---- one row
 * --------------------------------------------------------------------------------------- */
/* Scales and biases of a group as f32, in memory: sixteen registers hold the four sums of AVX2 and
 * little else, and a compiler that keeps scales in registers puts the sums into memory, where each
 * step of a chain waits for a store. */
struct group_scales {
    float s[4][CPU_TILE] __attribute__((aligned(64))); /* [i]: times 2^-(i * bits) */
    float b[CPU_TILE] __attribute__((aligned(64)));
};

VFN void group_load(struct group_scales *g, int bits, const uint8_t *p, enum dtype t)
{
    vf s[TILE_VECS], b[TILE_VECS];
    scales_load(s, p, t);
    scales_load(b, p + scale_bytes(t), t);
    int pieces = bits == 8 || bits == 4 || bits == 2 ? 8 / bits : 1;
    V_UNROLL
    for (int v = 0; v < TILE_VECS; v++) {
        v_store(g->b + v * V_WIDTH, b[v]);
        V_UNROLL
        for (int i = 0; i < pieces; i++) {
            v_store(g->s[i] + v * V_WIDTH, s[v]);
            s[v] = v_mul(s[v], v_set(1.0f / (float)(1 << bits)));
        }
    }
}

/* Eight k of one tile; bits is 8, 4 or 2. */
VFN void one_block(int bits, const uint8_t *p, const float *x, const struct group_scales *g,
                   vf *acc)
{
    int per = 8 / bits;
    V_UNROLL
    for (int row = 0; row < bits; row++) {
        if (row % 2 == 0)
            __builtin_prefetch(p + row * CPU_TILE + LIN_AHEAD);
        if (TILE_VECS > 2)
            __asm__("" : "+r"(g)); /* scales are read again: see struct group_scales */
        V_UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vi c = vi_load_u8(p + row * CPU_TILE + v * V_WIDTH);
            V_UNROLL
            for (int i = 0; i < per; i++) {
                vi q = bits == 8 ? c : vi_and(c, vi_set(((1u << bits) - 1u) << (i * bits)));
                vf w =
                    v_fma(v_convert(q), v_load(g->s[i] + v * V_WIDTH), v_load(g->b + v * V_WIDTH));
                acc[v] = v_fma(w, v_set(x[row * per + i]), acc[v]);
            }
        }
    }
}

VFN void one_block_planes(int bits, const uint8_t *p, const float *x, const struct group_scales *g,
                          vf *acc)
{
    V_UNROLL
    for (int k = 0; k < 8; k++) {
        if (k % 2 == 0 && k < bits)
            __builtin_prefetch(p + k * CPU_TILE + LIN_AHEAD);
        if (TILE_VECS > 2)
            __asm__("" : "+r"(g), "+r"(p));
        V_UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            vf q = v_convert(code_shifted(bits, p, v * V_WIDTH, k));
            vf w = v_fma(q, v_load(g->s[0] + v * V_WIDTH), v_load(g->b + v * V_WIDTH));
            acc[v] = v_fma(w, v_set(x[k]), acc[v]);
        }
    }
}

/* The chunk [k0, k1) of an affine tile into acc, from +0. */
VFN void one_chunk(int bits, const struct cpu_tile_job *j, int64_t k0, int64_t k1, vf *acc)
{
    const struct qformat q = j->w->base.q;
    const float *x = j->x[0];
    const uint8_t *p =
        j->w->codes + (size_t)j->tile * j->w->tile_bytes + (size_t)(k0 / 8 * bits) * CPU_TILE;
    const uint8_t *scales = j->w->scales + (size_t)j->tile * j->w->tile_scale_bytes;
    int sb = scale_bytes(q.scale);
    struct group_scales g;
    for (int64_t k = k0; k < k1;) {
        group_load(&g, bits, scales + k / q.group * 2 * sb, q.scale);
        int64_t end = MIN2(k1, (k / q.group + 1) * q.group);
        for (; k < end; k += 8, p += bits * CPU_TILE) {
            if (bits == 8 || bits == 4 || bits == 2)
                one_block(bits, p, x + k, &g, acc);
            else
                one_block_planes(bits, p, x + k, &g, acc);
        }
    }
}

/* The same for a block float. */
VFN void one_chunk_block(int bits, const struct cpu_tile_job *j, int64_t k0, int64_t k1, vf *acc)
{
    const struct cpu_weight *w = j->w;
    const float *x = j->x[0];
    const int group = w->base.q.group, per = 8 / bits;
    const int step = CPU_TILE * qformat_scale_size(w->scale);
    const uint8_t *p =
        w->codes + (size_t)j->tile * w->tile_bytes + (size_t)(k0 / 8 * bits) * CPU_TILE;
    const uint8_t *scales = w->scales + (size_t)j->tile * w->tile_scale_bytes;
    for (int64_t k = k0; k < k1;) {
        vf s[TILE_VECS];
        block_scales_load(s, scales + k / group * step, w->scale);
        int64_t end = MIN2(k1, (k / group + 1) * group);
        for (; k < end; k += per, p += CPU_TILE) {
            __builtin_prefetch(p + LIN_AHEAD);
            V_UNROLL
            for (int v = 0; v < TILE_VECS; v++) {
                vi c = vi_load_u8(p + v * V_WIDTH);
                V_UNROLL
                for (int i = 0; i < per; i++) {
                    vf value = v_mul(element(bits, i ? vi_srl(c, 4) : c), s[v]);
                    acc[v] = v_fma(value, v_set(x[k + i]), acc[v]);
                }
            }
        }
    }
}

/* The chunk of any packed tile. */
static void one_chunk_packed(const struct cpu_tile_job *j, int64_t k0, int64_t k1, vf *acc)
{
    const struct qformat q = j->w->base.q;
    if (qformat_is_block(q)) {
        if (q.bits == 4)
            one_chunk_block(4, j, k0, k1, acc);
        else
            one_chunk_block(8, j, k0, k1, acc);
        return;
    }
    switch (q.bits) {
#define CASE(bits)                                                                                 \
    case bits:                                                                                     \
        one_chunk(bits, j, k0, k1, acc);                                                           \
        break;
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(8)
#undef CASE
    default:
        break;
    }
}

VFN void one_chunk_dense(const struct cpu_tile_job *j, int64_t k0, int64_t k1, vf *acc)
{
    const float *x = j->x[0];
    enum dtype t = j->w->base.dtype;
    int elem = t == DT_F32 ? 4 : 2;
    const uint8_t *p =
        j->w->codes + (size_t)j->tile * j->w->tile_bytes + (size_t)k0 * CPU_TILE * (size_t)elem;
    for (int64_t k = k0; k < k1; k++, p += CPU_TILE * elem) {
        vf w[TILE_VECS];
        __builtin_prefetch(p + LIN_AHEAD);
        scales_load(w, p, t);
        V_UNROLL
        for (int v = 0; v < TILE_VECS; v++)
            acc[v] = v_fma(w[v], v_set(x[k]), acc[v]);
    }
}

static void tile_one(const struct cpu_tile_job *j)
{
    vf sum[TILE_VECS] = {v_zero()};
    int64_t k = j->w->base.k, chunk = kern_chunk(k), n_chunks = (k + chunk - 1) / chunk;
    for (int64_t i = 0; i < n_chunks; i++) {
        int64_t c = j->descending ? n_chunks - 1 - i : i;
        int64_t k0 = c * chunk, k1 = MIN2(k, k0 + chunk);
        vf acc[TILE_VECS];
        for (int v = 0; v < TILE_VECS; v++)
            acc[v] = v_zero();
        if (j->w->base.packed)
            one_chunk_packed(j, k0, k1, acc);
        else
            one_chunk_dense(j, k0, k1, acc);
        for (int v = 0; v < TILE_VECS; v++)
            sum[v] = i == 0 ? acc[v] : v_add(sum[v], acc[v]);
    }
    float out[CPU_TILE];
    for (int v = 0; v < TILE_VECS; v++)
        v_store(out + v * V_WIDTH, sum[v]);
    store_sums(j, out, j->out[0]);
}

static void linear_tile(const struct cpu_tile_job *j)
{
    bool any = !j->w->base.packed || qformat_is_block(j->w->base.q);
    if (j->n == 1 && (j->w->shiftable || any))
        tile_one(j);
    else
        tile_rows(j);
}

#endif
