/* cpu.c: the CPU backend: features, opening, memory, and the two tables.
 *
 * Device memory is ordinary memory. The operations stand in cpu_step.c (all that is no mma90 of its
 * own) and in the cpu_mma files.
 */
#include <cpuid.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/par.h"
#include "kernels/cpu/cpu_mma_private.h"
#include "kernels/cpu/cpu_step.h"

const char *cpu_isa_name(enum cpu_isa isa)
{
    static const char *const names[CPU_ISA_COUNT] = {"c", "avx2", "avx512"};
    return names[isa];
}

/* Asked once: cpuid leaves the guest of a virtual machine each time. */
static bool has_avx2(void)
{
    static _Atomic int known; /* 0: not asked yet, 1: no, 2: yes */
    if (!known) {
        unsigned int a, b, c = 0, d;
        bool yes = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) &&
                   (c & bit_FMA) != 0 && (c & bit_F16C) != 0;
        known = yes ? 2 : 1;
    }
    return known == 2;
}

bool cpu_isa_runs(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_C:
        return true;
    case CPU_AVX2:
        return has_avx2();
    case CPU_AVX512:
        return has_avx2() && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    default:
        return false;
    }
}

const char *const *cpu_isa_list(void)
{
    static const char *const all[][CPU_ISA_COUNT + 1] = {
        {"c", NULL}, {"c", "avx2", NULL}, {"c", "avx2", "avx512", NULL}};
    return all[cpu_isa_runs(CPU_AVX512) ? 2 : cpu_isa_runs(CPU_AVX2) ? 1 : 0];
}

static enum err_code choose_isa(const char *name, enum cpu_isa *isa, struct err *e)
{
    bool best = !name || strcmp(name, "auto") == 0;
    for (int i = CPU_ISA_COUNT - 1; i >= 0; i--) {
        if (!best && strcmp(name, cpu_isa_name((enum cpu_isa)i)) != 0)
            continue;
        *isa = (enum cpu_isa)i;
        if (cpu_isa_runs(*isa))
            return ERR_OK;
        if (!best)
            return err_set(e, ERR_DEVICE, "this processor has no %s", name);
    }
    return err_set(e, ERR_USAGE, "unknown instruction set '%s': expected auto, c, avx2 or avx512",
                   name);
}

/* ---- memory -------------------------------------------------------------------------------------
 */
void *cpu_alloc_zeroed(size_t bytes)
{
    if (bytes > SIZE_MAX - 64)
        return NULL;
    void *p = aligned_alloc(64, align_up(MAX2(bytes, (size_t)1), 64));
    if (p)
        memset(p, 0, bytes);
    return p;
}

#define LARGE_PAGE ((size_t)2 << 20)

void *cpu_alloc_weight(size_t bytes)
{
    const size_t align = bytes >= 4 * LARGE_PAGE ? LARGE_PAGE : 64;
    if (bytes > SIZE_MAX - align)
        return NULL;
    bytes = align_up(MAX2(bytes, (size_t)1), align);
    void *p = aligned_alloc(align, bytes);
    if (p && align == LARGE_PAGE)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void cpu_close(struct kern *k)
{
    free(cpu_of(k)->scratch);
    free(k);
}

/* A gigabyte of KV pages must not be written before it is used: calloc gives pages that the system
 * zeroes on first touch. The block's own start stands in front of the aligned pointer. */
static enum err_code cpu_alloc(struct kern *k, size_t bytes, void **p, struct err *e)
{
    (void)k;
    size_t whole;
    char *raw = checked_add(bytes, 64 + sizeof raw, &whole) ? calloc(1, whole) : NULL;
    *p = NULL;
    if (!raw)
        return err_set(e, ERR_NOMEM, "out of memory: %zu bytes", bytes);
    char *at = raw + sizeof raw;
    at += -(uintptr_t)at & 63;
    memcpy(at - sizeof raw, &raw, sizeof raw);
    *p = at;
    return ERR_OK;
}

static void cpu_free(struct kern *k, void *p)
{
    char *raw;
    (void)k;
    if (!p)
        return;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    free(raw);
}

static enum err_code cpu_copy(struct kern *k, void *dst, const void *src, size_t bytes,
                              struct err *e)
{
    (void)k;
    (void)e;
    if (bytes)
        memcpy(dst, src, bytes);
    return ERR_OK;
}

static enum err_code cpu_fill(struct kern *k, void *dst, uint8_t byte, size_t bytes, struct err *e)
{
    (void)k;
    (void)e;
    memset(dst, byte, bytes);
    return ERR_OK;
}

static enum err_code cpu_poison(struct kern *k, struct err *e)
{
    (void)e;
    if (cpu_of(k)->scratch)
        memset(cpu_of(k)->scratch, 0xff, cpu_of(k)->scratch_bytes);
    return ERR_OK;
}

static size_t cpu_f32_page_bytes(const struct kern *k, int n_kv, int head_dim)
{
    (void)k;
    return (size_t)n_kv * 2 * KERN_PAGE * (size_t)head_dim * sizeof(float);
}

static size_t cpu_scratch_bytes(const struct kern *k, const struct kern_limits *l)
{
    (void)k;
    (void)l;
    return 0; /* tiles and attention items live on their thread's stack */
}

static enum err_code cpu_reserve(struct kern *k, const struct kern_limits *l, struct err *e)
{
    struct cpu_kern *c = cpu_of(k);
    size_t bytes = k->table->scratch_bytes(k, l);
    if (bytes > c->scratch_bytes) {
        uint8_t *p = cpu_alloc_zeroed(bytes);
        if (!p)
            return err_set(e, ERR_NOMEM, "scratch: out of memory: %zu bytes", bytes);
        free(c->scratch);
        c->scratch = p;
        c->scratch_bytes = bytes;
    }
    c->limits = *l;
    return ERR_OK;
}

/* ---- operations that hold another one
 * ------------------------------------------------------------ */
static enum err_code linear_and_gate(struct kern *k, const struct linear_args *a, struct err *e)
{
    struct act_mul_args gate = kern_gate_args(a);
    enum err_code rc = k->arith == KERN_F32 ? cpu_linear(k, a, e) : cpu_mma_linear(k, a, e);
    return rc == ERR_OK && gate.out ? cpu_act_mul(k, &gate, e) : rc;
}

static enum err_code heads_and_attention(struct kern *k, const struct attention_args *a,
                                         struct err *e)
{
    bool f32 = k->arith == KERN_F32;
    enum err_code rc = a->norm ? kern_heads_by_parts(k, a->norm, e) : ERR_OK;
    if (rc == ERR_OK && a->rope)
        rc = f32 ? cpu_rope_kv(k, a->rope, e) : cpu_mma_rope_kv(k, a->rope, e);
    if (rc != ERR_OK)
        return rc;
    return f32 ? cpu_attention(k, a, e) : cpu_mma_attention(k, a, e);
}

/* ---- tables
 * -------------------------------------------------------------------------------------- */
#define MEMORY                                                                                     \
    .close = cpu_close, .alloc = cpu_alloc, .free = cpu_free, .upload = cpu_copy,                  \
    .download = cpu_copy, .fill = cpu_fill, .poison = cpu_poison,                                  \
    .scratch_bytes = cpu_scratch_bytes, .reserve = cpu_reserve
#define SHARED                                                                                     \
    .rms_norm = cpu_rms_norm, .act_mul = cpu_act_mul, .add = cpu_add, .route = cpu_route,          \
    .route_scale = cpu_route_scale, .expert_gated = kern_gated_by_parts,                           \
    .norm_heads = kern_heads_by_parts, .residual = kern_residual_by_parts, .combine = cpu_combine, \
    .gather = cpu_gather, .logits = cpu_logits, .sample = cpu_sample, .row_hash = cpu_row_hash

static const struct kern_table tables[] = {
    [KERN_F32] = {MEMORY, SHARED, .weight_load = cpu_weight_load, .weight_free = cpu_weight_free,
                  .weight_bytes = cpu_weight_bytes, .page_bytes = cpu_f32_page_bytes,
                  .embed = cpu_embed, .linear = linear_and_gate, .expert_linear = cpu_expert_linear,
                  .rope_kv = cpu_rope_kv, .attention = heads_and_attention},
    [KERN_MMA90] = {MEMORY, SHARED, .weight_load = cpu_mma_weight_load,
                    .weight_free = cpu_mma_weight_free, .weight_bytes = cpu_mma_weight_bytes,
                    .page_bytes = cpu_mma_page_bytes, .embed = cpu_mma_embed,
                    .linear = linear_and_gate, .expert_linear = cpu_mma_expert_linear,
                    .rope_kv = cpu_mma_rope_kv, .attention = heads_and_attention}};

enum err_code cpu_open(struct kern **k, const struct kern_options *o, struct err *e)
{
    static const struct cpu_isa_ops *const ops[CPU_ISA_COUNT] = {&cpu_ops_c, &cpu_ops_avx2,
                                                                 &cpu_ops_avx512};
    enum cpu_isa isa = CPU_C;
    enum err_code rc = choose_isa(o->isa, &isa, e);
    if (rc != ERR_OK)
        return rc;
    if (o->threads < 0 || o->threads > 4096)
        return err_set(e, ERR_USAGE, "%d threads: expected 1..4096", o->threads);
    if (!kern_arith_measured(o->arith))
        return err_set(e, ERR_USAGE, "cpu: the oracle models mma90 only; %s was not measured",
                       kern_arith_name(o->arith));
    struct cpu_kern *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory: %zu bytes", sizeof *c);
    c->base = (struct kern){.table = &tables[o->arith],
                            .arith = o->arith,
                            .threads = o->threads ? o->threads : par_default_threads(),
                            .isa = cpu_isa_name(isa),
                            .device = "cpu"};
    c->isa = isa;
    c->ops = ops[isa];
    *k = &c->base;
    return ERR_OK;
}
