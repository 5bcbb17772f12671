/* affine.c: the encoder in plain C, the choice of a variant, and what is wrong with a value. */
#include "quant/affine.h"

#include <math.h>

#include "quant/affine_private.h"

#define TARGET
#define LANE static inline /* forced, sanitizers take minutes over it */

typedef struct {
    float x[16];
} vf;
typedef struct {
    double x[16];
} vd;

#define EACH(l) for (int l = 0; l < 16; l++)

LANE vf vf_set1(float x)
{
    vf r;
    EACH(l)
    r.x[l] = x;
    return r;
}

LANE vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

LANE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

LANE vf vf_add(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] + b.x[l];
    return a;
}

LANE vf vf_sub(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] - b.x[l];
    return a;
}

LANE vf vf_mul(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] * b.x[l];
    return a;
}

LANE vf vf_div(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] / b.x[l];
    return a;
}

LANE vf vf_fma(vf a, vf b, vf c)
{
    EACH(l)
    a.x[l] = fmaf(a.x[l], b.x[l], c.x[l]);
    return a;
}

LANE vf vf_abs(vf a)
{
    EACH(l)
    a.x[l] = fabsf(a.x[l]);
    return a;
}

LANE vf vf_min(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] < b.x[l] ? a.x[l] : b.x[l];
    return a;
}

LANE vf vf_max(vf a, vf b)
{
    EACH(l)
    a.x[l] = a.x[l] > b.x[l] ? a.x[l] : b.x[l];
    return a;
}

LANE vf vf_max_abs(vf a, vf m)
{
    return vf_max(vf_abs(a), m);
}

LANE vf vf_rint(vf a)
{
    EACH(l)
    a.x[l] = rintf(a.x[l]);
    return a;
}

LANE vf vf_where_lt(vf a, vf b, vf x, vf y)
{
    EACH(l)
    y.x[l] = a.x[l] < b.x[l] ? x.x[l] : y.x[l];
    return y;
}

LANE float vf_min_all(vf a)
{
    float m = a.x[0];
    EACH(l)
    m = a.x[l] < m ? a.x[l] : m;
    return m;
}

LANE float vf_max_all(vf a)
{
    float m = a.x[0];
    EACH(l)
    m = a.x[l] > m ? a.x[l] : m;
    return m;
}

LANE bool vf_any_nan(vf a)
{
    bool any = false;
    EACH(l)
    any |= isnan(a.x[l]);
    return any;
}

LANE vf vf_scale(vf v, enum dtype t)
{
    if (t == DT_F32)
        return v;
    EACH(l)
    v.x[l] = t == DT_BF16 ? bf16_to_f32(bf16_from_f32(v.x[l])) : f16_to_f32(f16_from_f32(v.x[l]));
    return v;
}

LANE float source_at(enum dtype t, const void *p, int64_t i)
{
    return qformat_scale(p, t, i); /* the same three types */
}

LANE vf vf_source(enum dtype t, const void *p, int64_t i)
{
    vf r;
    EACH(l)
    r.x[l] = source_at(t, p, i + l);
    return r;
}

LANE float sum_lanes(vf a)
{
    float h[8], q[4];
    for (int l = 0; l < 8; l++)
        h[l] = a.x[l] + a.x[l + 8];
    for (int l = 0; l < 4; l++)
        q[l] = h[l] + h[l + 4];
    return (q[0] + q[1]) + (q[2] + q[3]);
}

LANE void vf_sum3(vf a, vf b, vf c, float out[4])
{
    out[0] = sum_lanes(a);
    out[1] = sum_lanes(b);
    out[2] = sum_lanes(c);
}

LANE void vf_codes(vf v, uint8_t *p)
{
    EACH(l)
    p[l] = (uint8_t)f32_bits(v.x[l]);
}

LANE vd vd_load(const double *p)
{
    vd r;
    memcpy(&r, p, sizeof r);
    return r;
}

LANE void vd_store(double *p, vd v)
{
    memcpy(p, &v, sizeof v);
}

LANE vd vd_add_vf(vd t, vf v)
{
    EACH(l)
    t.x[l] += (double)v.x[l];
    return t;
}

/* Eight codes fill `bits` whole bytes. */
LANE void pack_codes(const uint8_t *c, int n, int bits, uint8_t *out)
{
    for (int i = 0; i < n; i += 8) {
        uint64_t v = 0;
        for (int j = 0; j < 8; j++)
            v |= (uint64_t)c[i + j] << (j * bits);
        memcpy(out, &v, (size_t)bits);
        out += bits;
    }
}

#define AFFINE_ONE_BODY
#include "quant/affine_body.h"

int64_t affine_encode_c(const struct affine_run *r, struct errstat *st)
{
    return encode_run(r, st);
}

static const char *const isa_names[AFFINE_ISA_COUNT] = {"c", "avx2", "avx512"};

const char *affine_isa_name(enum affine_isa isa)
{
    return isa_names[isa];
}

bool affine_isa_find(const char *name, enum affine_isa *isa)
{
    for (int i = 0; i < AFFINE_ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *isa = (enum affine_isa)i;
            return true;
        }
    }
    return false;
}

bool affine_isa_here(enum affine_isa isa)
{
    if (isa == AFFINE_C)
        return true;
#ifdef __x86_64__
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("bmi2"); /* F16C came before AVX2 */
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return isa == AFFINE_AVX2 ? avx2 : avx2 && avx512;
#else
    return false;
#endif
}

enum affine_isa affine_isa_best(void)
{
    int isa = AFFINE_ISA_COUNT - 1;
    while (!affine_isa_here((enum affine_isa)isa))
        isa--;
    return (enum affine_isa)isa;
}

/* Says why a group was refused: its first value that is not finite, else its grid. */
static enum err_code refuse(const struct affine_run *r, int64_t group, int64_t *bad, struct err *e)
{
    float lo = 0.0f, hi = 0.0f;
    for (int i = 0; i < r->q.group; i++) {
        float v = source_at(r->source, r->data, group * r->q.group + i);
        if (!isfinite(v)) {
            *bad = group * r->q.group + i;
            return err_set(e, ERR_INPUT, "found %s, expected a finite value",
                           isnan(v) ? "NaN"
                           : v > 0  ? "+Inf"
                                    : "-Inf");
        }
        lo = i == 0 || v < lo ? v : lo;
        hi = i == 0 || v > hi ? v : hi;
    }
    *bad = group * r->q.group;
    return err_set(e, ERR_INPUT,
                   "group of values from %g to %g: its scale and bias do not fit %s; a rule with "
                   "scale: f32 holds them",
                   (double)lo, (double)hi, dtype_name(r->q.scale));
}

enum err_code affine_encode(enum affine_isa isa, const struct affine_run *r, struct errstat *st,
                            int64_t *bad, struct err *e)
{
    int64_t group = -1;
#ifdef __x86_64__
    if (isa == AFFINE_AVX512)
        group = affine_encode_avx512(r, st);
    else if (isa == AFFINE_AVX2)
        group = affine_encode_avx2(r, st);
    else
        group = affine_encode_c(r, st);
#else
    (void)isa;
    group = affine_encode_c(r, st);
#endif
    if (group >= 0)
        return refuse(r, group, bad, e);
    return ERR_OK;
}
