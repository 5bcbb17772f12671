/* qat_unit.c: the grid of one unit: which largest code, which scale, which bias.
 *
 * For every candidate of the largest code the loops of grid_ops give the codes and the interval of
 * scales that round to the very values; here a scale is chosen from it that the stored type holds,
 * and is checked. See docs/qat.md.
 */
#define TARGET
#include "quant/qat_body.h"

#include <stdlib.h>

const struct grid_ops grid_ops_c = GRID_OPS;

const struct grid_ops *grid_ops_best(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return &grid_ops_avx2;
#endif
    return &grid_ops_c;
}

enum err_code grid_unit_new(struct grid_unit *u, int64_t n, int64_t k, enum dtype source,
                            struct err *e)
{
    size_t count = (size_t)n;
    *u = (struct grid_unit){.n = n, .source = source};
    u->w = malloc((4 * count + 1) * sizeof *u->w);
    u->lo = malloc(2 * (count + 1) * sizeof *u->lo);
    u->row = malloc((size_t)k * (size_t)dtype_bits(source) / 8);
    if (!u->w || !u->lo || !u->row) {
        grid_unit_free(u);
        return err_set(e, ERR_NOMEM, "out of memory: %lld values of a grid", (long long)n);
    }
    u->x = u->w + count + 1;
    u->q = u->x + count;
    u->best = u->q + count;
    u->hi = u->lo + count + 1;
    u->w[n] = 1;
    u->lo[n] = -INFINITY;
    u->hi[n] = INFINITY;
    u->rel = source == DT_BF16 ? 0x1p-8f : source == DT_F16 ? 0x1p-11f : 0x1p-24f;
    u->abs = source == DT_F16 ? 0x1p-25f : 0.0f;
    return ERR_OK;
}

void grid_unit_free(struct grid_unit *u)
{
    free(u->w);
    free(u->lo);
    free(u->row);
    *u = (struct grid_unit){0};
}

/* ---- numbers of a type -------------------------------------------------------------------------
 */

static bool holds(enum dtype t, double v)
{
    float f = (float)v;
    if ((double)f != v)
        return false;
    return t == DT_F32 ||
           (t == DT_BF16 ? bf16_to_f32(bf16_from_f32(f)) : f16_to_f32(f16_from_f32(f))) == f;
}

/* The positive number of the type that is `step` places away from the nearest one to v. */
static float near_value(enum dtype t, double v, int step)
{
    float f = (float)v;
    uint32_t bits = t == DT_F32 ? f32_bits(f) : t == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
    bits += (uint32_t)step;
    return t == DT_F32    ? f32_from_bits(bits)
           : t == DT_BF16 ? bf16_to_f32((uint16_t)bits)
                          : f16_to_f32((uint16_t)bits);
}

/* The nearest number with 16 significant bits: its products with codes are exact in f32. */
static float short_value(double v)
{
    uint32_t u = f32_bits((float)v);
    return f32_from_bits((u + 0x80) & ~0xffu);
}

static const enum dtype type_of[] = {DT_BF16, DT_F16, DT_F32};

/* ---- symmetric and zero point -------------------------------------------------------------------
 */

struct scaled {
    int bits;
    bool symmetric;
    double lo, hi; /* of the scale, for the codes at hand */
    int zero;
    bool mirrored;
};

/* Places the codes in the window of the stored ones; false when they do not fit. */
static bool place(const struct grid_unit *u, const struct grid_ops *ops, int k, struct scaled *s)
{
    int half = 1 << (s->bits - 1), top = 2 * half - 1, pos, neg;
    s->zero = half;
    s->mirrored = false;
    if (s->symmetric && k < half)
        return true;
    ops->widest(u, &pos, &neg);
    if (s->symmetric) {
        s->mirrored = pos == half;
        return pos <= half && neg <= half && !(pos == half && neg == half);
    }
    s->zero = MIN2(MAX2(half, neg), top - pos);
    return pos + neg <= top;
}

static bool try_scale(const struct grid_unit *u, const struct grid_ops *ops, const struct scaled *s,
                      enum dtype t, float v, struct grid_found *f)
{
    double bias = -(double)s->zero * (double)v;
    if (!((double)v >= s->lo * (1.0 - FUZZ) && (double)v <= s->hi * (1.0 + FUZZ)))
        return false;
    if (!holds(t, (double)v) || !holds(t, bias) || !isfinite((float)bias) ||
        !ops->check_scaled(u, v))
        return false;
    float sign = s->mirrored ? -1.0f : 1.0f;
    *f = (struct grid_found){t, sign * v, sign * (float)bias, s->zero, s->mirrored};
    return true;
}

/* The number of the type that is nearest to the middle of the interval. */
static bool choose_scale(const struct grid_unit *u, const struct grid_ops *ops,
                         const struct scaled *s, enum dtype t, struct grid_found *f)
{
    static const int steps[] = {0, 1, -1};
    double middle = 0.5 * (s->lo + s->hi);
    if (t == DT_F32 && !s->symmetric && try_scale(u, ops, s, t, short_value(middle), f))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        if (try_scale(u, ops, s, t, near_value(t, middle, steps[i]), f))
            return true;
    return t == DT_F32 && (try_scale(u, ops, s, t, near_value(DT_F16, middle, 0), f) ||
                           try_scale(u, ops, s, t, near_value(DT_BF16, middle, 0), f));
}

/* Keeps the codes of a grid that was found in type number `at`. True: no better type is asked for.
 */
static bool keep_best(struct grid_unit *u, unsigned types, int at)
{
    memcpy(u->best, u->q, (size_t)u->n * sizeof *u->q);
    return (types & ((1u << at) - 1u)) == 0;
}

/* One candidate of the largest code. *rank: of the best type so far; true: none better is left. */
static bool try_scaled(struct grid_unit *u, const struct grid_ops *ops, struct scaled *s, int k,
                       double max_lo, double max_hi, unsigned types, int *rank,
                       struct grid_found *f)
{
    bool open = true;
    for (int choice = 0; open && choice < 3; choice++) {
        s->lo = max_lo / (double)k;
        s->hi = max_hi / (double)k;
        if (!ops->tighten(u, k, choice, &s->lo, &s->hi, &open) || !place(u, ops, k, s))
            continue;
        for (int t = 0; t < *rank; t++) {
            if (!(types >> t & 1u) || !choose_scale(u, ops, s, type_of[t], f))
                continue;
            *rank = t;
            if (keep_best(u, types, t))
                return true;
        }
    }
    return false;
}

static bool find_scaled(struct grid_unit *u, const struct grid_ops *ops, enum grid_kind kind,
                        int bits, unsigned types, struct grid_found *f)
{
    struct scaled s = {.bits = bits, .symmetric = kind == GRID_SYMMETRIC};
    int most = s.symmetric ? 1 << (bits - 1) : (1 << bits) - 1, rank = 3;
    double lo, hi;
    grid_preimage(u->source, u->max, &lo, &hi);
    /* The end of the range first: GGML's quantizers always use it, and where other codes would do
     * as well (a unit of one value), theirs come back. Then up from 1, the coarsest grid first;
     * with 8 bits down, since nearly all of them are close to the end. */
    bool down = bits == 8;
    int end = s.symmetric && !down ? most : 0;
    if (end && (ops->alive(u, false, end - 7) >> 7 & 1u) &&
        try_scaled(u, ops, &s, end, lo, hi, types, &rank, f))
        return true;
    for (int block = 0; block * 8 < most; block++) {
        int k0 = 1 + 8 * (down ? (most - 1) / 8 - block : block);
        unsigned alive = ops->alive(u, false, k0);
        for (int i = 0; alive && i < 8; i++) {
            int bit = down ? 7 - i : i;
            if ((alive >> bit & 1u) && k0 + bit <= most && k0 + bit != end &&
                try_scaled(u, ops, &s, k0 + bit, lo, hi, types, &rank, f))
                return true;
        }
    }
    return rank < 3;
}

/* ---- offset ------------------------------------------------------------------------------------
 */

struct offset {
    struct grid_codes codes;
    int top; /* of the form */
    double s_lo, s_hi;
};

static double choose_bits(uint64_t when, double a, double b)
{
    uint64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = (x & when) | (y & ~when);
    memcpy(&a, &x, sizeof a);
    return a;
}

/* Elements of one code have one value, so any of them stands for all; the check of the grid that is
 * found looks at each. Signs and unused codes come in no order that a processor foresees. */
static bool collect(struct grid_unit *u, const struct grid_ops *ops, int k, struct offset *o)
{
    struct grid_codes *g = &o->codes;
    int32_t where[GRID_CODES];
    ops->spread(u, k, where);
    g->largest = k;
    for (int c = 0; c <= k; c++) {
        int32_t i = where[c];
        /* Sums close to zero round to it, products do not. */
        double room = u->w[i] == 0 ? (double)u->abs : 0.0;
        uint64_t minus = 0 - (uint64_t)(f32_bits(u->w[i]) >> 31);
        double low = choose_bits(minus, -u->hi[i], u->lo[i]) - room;
        double high = choose_bits(minus, -u->lo[i], u->hi[i]) + room;
        g->low[c] = g->low_down[k - c] = low;
        g->high[c] = g->high_down[k - c] = high;
    }
    for (int c = k + 1; c < k + 4; c++) {
        g->low_down[c] = -INFINITY;
        g->high_down[c] = INFINITY;
    }
    ops->pairs(g, &o->s_lo, &o->s_hi);
    return o->s_lo <= o->s_hi;
}

/* The biases that go with a scale. */
static bool bias_range(const struct offset *o, double s, double *lo, double *hi)
{
    *lo = -INFINITY;
    *hi = INFINITY;
    for (int c = 0; c <= o->codes.largest; c++) {
        double cs = (double)c * s;
        *lo = o->codes.low[c] - cs > *lo ? o->codes.low[c] - cs : *lo;
        *hi = o->codes.high[c] - cs < *hi ? o->codes.high[c] - cs : *hi;
    }
    return *lo <= *hi;
}

/* In bf16 the value is one rounding of the exact sum, in the other types the f32 sum is rounded:
 * both must agree, so that a tensor's type can still be widened. */
static bool agrees(const struct grid_unit *u, float s, float m)
{
    for (int64_t i = 0; i < u->n; i++)
        if (u->source == DT_BF16 &&
            bf16_to_f32(qformat_bf16_exact((uint32_t)u->q[i], s, m)) != u->w[i])
            return false;
    return true;
}

static bool fused_check(const struct grid_unit *u, float s, float m)
{
    for (int64_t i = 0; i < u->n; i++) {
        float v = fmaf(u->q[i], s, m);
        v = u->source == DT_BF16  ? bf16_to_f32(bf16_from_f32(v))
            : u->source == DT_F16 ? f16_to_f32(f16_from_f32(v))
                                  : v;
        if (v != u->w[i])
            return false;
    }
    return true;
}

static float signed_value(enum dtype t, double v)
{
    return v < 0 ? -near_value(t, -v, 0) : near_value(t, v, 0);
}

/* A bias for the scale, with codes moved up by 0, 1, ... while they fit. */
static bool try_bias(struct grid_unit *u, const struct grid_ops *ops, const struct offset *o,
                     enum dtype t, float s, struct grid_found *f)
{
    double lo, hi;
    if (!bias_range(o, (double)s, &lo, &hi))
        return false;
    for (int up = 0; up <= o->top - o->codes.largest; up++) {
        double by = (double)up * (double)s;
        float m = signed_value(t, 0.5 * (lo + hi) - by);
        if (!isfinite(m) || !((double)m >= lo - by && (double)m <= hi - by))
            continue;
        for (int64_t i = 0; up && i < u->n; i++)
            u->q[i] += (float)up;
        bool exact = t != DT_F32 || short_value((double)s) == s;
        bool good = exact ? ops->check_offset(u, s, m) : fused_check(u, s, m);
        if (good && t == DT_BF16)
            good = agrees(u, s, m);
        if (good) {
            *f = (struct grid_found){t, s, m, 0, false};
            return true;
        }
        for (int64_t i = 0; up && i < u->n; i++)
            u->q[i] -= (float)up;
    }
    return false;
}

#define STEPS_MAX  64
#define SCALES_MAX 1024

static bool choose_pair(struct grid_unit *u, const struct grid_ops *ops, struct offset *o,
                        enum dtype t, struct grid_found *f)
{
    double middle = 0.5 * (o->s_lo + o->s_hi);
    if (t != DT_F32) {
        bool below = true, above = true;
        for (int step = 0; step < STEPS_MAX && (below || above); step++) {
            float up = near_value(t, middle, step);
            above &= (double)up <= o->s_hi && isfinite(up);
            if (above && (double)up >= o->s_lo && try_bias(u, ops, o, t, up, f))
                return true;
            float down = near_value(t, middle, -step);
            below &= (double)down >= o->s_lo && down > 0;
            if (step && below && (double)down <= o->s_hi && try_bias(u, ops, o, t, down, f))
                return true;
        }
        return false;
    }
    /* Every pair of codes has bounded the scale: what the bounds leave has a bias. */
    static const double places[] = {0.5, 0.25, 0.75, 0.0, 1.0};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        double v = o->s_lo + (o->s_hi - o->s_lo) * places[i];
        if (try_bias(u, ops, o, t, short_value(v), f) || try_bias(u, ops, o, t, (float)v, f) ||
            try_bias(u, ops, o, t, near_value(DT_F16, v, 0), f))
            return true;
    }
    /* A value close to zero leaves biases less than a step of f32 apart: with one scale in many
     * there is one among them. */
    for (int i = 1; i < SCALES_MAX; i++) {
        double v = o->s_lo + (o->s_hi - o->s_lo) * (double)i / SCALES_MAX;
        if (try_bias(u, ops, o, t, (float)v, f))
            return true;
    }
    return false;
}

static bool find_constant(struct grid_unit *u, unsigned types, struct grid_found *f)
{
    for (int t = 0; t < 3; t++) {
        if (!(types >> t & 1u) || !holds(type_of[t], (double)u->low))
            continue;
        memset(u->best, 0, (size_t)u->n * sizeof *u->best);
        *f = (struct grid_found){type_of[t], 0.0f, u->low, 0, false};
        return true;
    }
    return false;
}

static bool try_offset(struct grid_unit *u, const struct grid_ops *ops, struct offset *o, int k,
                       unsigned types, int *rank, struct grid_found *f)
{
    if (!collect(u, ops, k, o))
        return false;
    for (int t = 0; t < *rank; t++) {
        if (!(types >> t & 1u) || !choose_pair(u, ops, o, type_of[t], f))
            continue;
        *rank = t;
        return keep_best(u, types, t);
    }
    return false;
}

static bool find_offset(struct grid_unit *u, const struct grid_ops *ops, int bits, unsigned types,
                        struct grid_found *f)
{
    struct offset o; /* large: not cleared */
    int rank = 3;
    o.top = (1 << bits) - 1;
    if (u->low == u->high)
        return find_constant(u, types, f);
    if (!isfinite(u->high - u->low))
        return false;
    for (int k0 = o.top - 6; k0 > -7; k0 -= 8) { /* tops are 15 and 31: the last block is 1 to 7 */
        unsigned alive = ops->alive(u, true, k0);
        for (int bit = 7; alive && bit >= 0; bit--)
            if ((alive >> bit & 1u) && k0 + bit >= 1 && k0 + bit <= o.top &&
                try_offset(u, ops, &o, k0 + bit, types, &rank, f))
                return true;
    }
    return rank < 3;
}

bool grid_unit_find(struct grid_unit *u, const struct grid_ops *ops, enum grid_kind kind, int bits,
                    unsigned types, struct grid_found *f)
{
    if (!isfinite(u->high) || !isfinite(u->low))
        return false;
    if (u->max == 0) {
        int zero = kind == GRID_OFFSET ? 0 : 1 << (bits - 1);
        *f = (struct grid_found){type_of[0], 0.0f, 0.0f, zero, false};
        memset(u->best, 0, (size_t)u->n * sizeof *u->best);
        return true;
    }
    return kind == GRID_OFFSET ? find_offset(u, ops, bits, types, f)
                               : find_scaled(u, ops, kind, bits, types, f);
}
