/* cpu_mma_step_c.c: the step of sixteen outputs in plain C, by the definition, and the choice of a
 * variant. It is the slow one: what the others must equal. */
#include "kernels/cpu/cpu_mma_step.h"

void cpu_mma_step_lanes(const float (*w)[CPU_MMA_LANES], const float *x, uint32_t mask, float *acc)
{
    uint16_t a[MMA90_K], b[MMA90_K];
    for (int i = 0; i < MMA90_K; i++)
        b[i] = (uint16_t)(f32_bits(x[i]) >> 16);
    for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
        if (!(mask >> lane & 1))
            continue;
        for (int i = 0; i < MMA90_K; i++)
            a[i] = (uint16_t)(f32_bits(w[i][lane]) >> 16);
        acc[lane] = f32_from_bits(mma90_step(a, b, f32_bits(acc[lane])));
    }
}

/* Fills the strip's exponent fields and its flag from the values of its first n k. */
static void finish_strip(struct cpu_mma_strip *s, int n)
{
    s->wide = false;
    for (int i = 0; i < n; i += 2) {
        for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
            uint32_t lo = f32_bits(s->v[i][lane]) >> 16 & 0x7f80u;
            uint32_t hi = f32_bits(s->v[i + 1][lane]) >> 16 & 0x7f80u;
            s->e[i / 2][lane] = lo | hi << 16;
            s->wide = s->wide || lo >= CPU_MMA_WIDE || hi >= CPU_MMA_WIDE;
        }
    }
}

/* Code of element i of a tile's lane: the row's bit stream in words that lanes interleave. */
static uint32_t packed_code(const struct cpu_mma_packed *p, int64_t i, int lane)
{
    int bits = p->q.bits, bit = (int)(i % 32) * bits, word = bit >> 5, shift = bit & 31;
    const uint32_t *unit = p->codes + i / 32 * bits * CPU_MMA_LANES + lane;
    uint64_t v = unit[(ptrdiff_t)word * CPU_MMA_LANES];
    if (shift + bits > 32)
        v |= (uint64_t)unit[(ptrdiff_t)(word + 1) * CPU_MMA_LANES] << 32;
    return (uint32_t)(v >> shift) & ((1u << bits) - 1);
}

uint16_t cpu_mma_step_value(const struct cpu_mma_packed *p, int64_t i, int lane)
{
    if (qformat_is_block(p->q)) {
        float el = qformat_element(p->q.bits, packed_code(p, i, lane));
        float by = qformat_scale(p->scales, p->q.scale, i / p->q.group * CPU_MMA_LANES + lane);
        return qformat_block_bf16(el, by, p->globals ? p->globals[lane] : 1.0f);
    }
    int64_t at = i / p->q.group * 2 * CPU_MMA_LANES + lane;
    float s = qformat_scale(p->scales, p->q.scale, at);
    float b = qformat_scale(p->scales, p->q.scale, at + CPU_MMA_LANES);
    return qformat_bf16(packed_code(p, i, lane), s, b, p->q.scale);
}

void cpu_mma_step_expand(const struct cpu_mma_packed *p, int64_t k0, int n,
                         struct cpu_mma_strip *out)
{
    for (int i = 0; i < n; i++) {
        for (int lane = 0; lane < CPU_MMA_LANES; lane++)
            out->v[i][lane] = bf16_to_f32(cpu_mma_step_value(p, k0 + i, lane));
    }
    finish_strip(out, n);
}

static void prepare(const uint16_t *x, int64_t n, struct cpu_mma_input out)
{
    for (int64_t i = 0; i < n; i += 2) {
        out.v[i] = bf16_to_f32(x[i]);
        out.v[i + 1] = bf16_to_f32(x[i + 1]);
        out.e[i / 2] = ((uint32_t)x[i] | (uint32_t)x[i + 1] << 16) & CPU_MMA_EXPS;
    }
    for (int64_t s = 0; s < n / MMA90_K; s++) {
        out.wide[s] = 0;
        for (int i = 0; i < MMA90_K; i++)
            out.wide[s] |= (x[s * MMA90_K + i] & 0x7f80u) >= CPU_MMA_WIDE;
    }
}

static void expand_pairs(const uint32_t *pairs, int n, struct cpu_mma_strip *out)
{
    for (int i = 0; i < n; i += 2) {
        for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
            uint32_t pair = pairs[i / 2 * CPU_MMA_LANES + lane];
            out->v[i][lane] = f32_from_bits(pair << 16);
            out->v[i + 1][lane] = f32_from_bits(pair & 0xffff0000u);
        }
    }
    finish_strip(out, n);
}

static void chain(const struct cpu_mma_strip *w, struct cpu_mma_input x, int n_steps, float *acc)
{
    for (int s = 0; s < n_steps; s++)
        cpu_mma_step_lanes(w->v + s * MMA90_K, x.v + s * MMA90_K, 0xffff, acc);
}

const struct cpu_mma_ops cpu_mma_ops_c = {prepare, expand_pairs, cpu_mma_step_expand, chain};

const struct cpu_mma_ops *cpu_mma_ops_of(enum cpu_isa isa)
{
#if defined(__x86_64__)
    if (isa == CPU_AVX512)
        return &cpu_mma_ops_avx512;
    if (isa == CPU_AVX2)
        return &cpu_mma_ops_avx2;
#endif
    (void)isa;
    return &cpu_mma_ops_c;
}
