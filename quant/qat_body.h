/* qat_body.h: the loops of grid_ops in vectors of eight. A fragment, included by qat_unit.c and
 * qat_avx2.c, which define TARGET; owns all arithmetic of the search that runs over elements.
 */
#include <math.h>

#include "quant/qat_private.h"

/* Vectors live inside functions only: passing them would fix an ABI. */
typedef float vf8 __attribute__((vector_size(32)));
typedef int32_t vi8 __attribute__((vector_size(32)));
typedef uint32_t vu8 __attribute__((vector_size(32)));
typedef uint16_t vh8 __attribute__((vector_size(16)));
typedef float vf4 __attribute__((vector_size(16)));
typedef double vd4 __attribute__((vector_size(32)));
typedef int64_t vl4 __attribute__((vector_size(32)));

#define LOAD(v, p)  memcpy(&(v), (p), sizeof(v))
#define STORE(p, v) memcpy((p), &(v), sizeof(v))
#define RINT32      12582912.0f        /* 1.5 * 2^23: added and taken off again it rounds */
#define RINT64      6755399441055744.0 /* 1.5 * 2^52 */
#define FUZZ        0x1p-45            /* above the error of a product of doubles */
#define SLACK       1e-4f              /* above the error of a code in f32, at most 255 */

TARGET static void load_bf16(struct grid_unit *u, const uint8_t *data)
{
    for (int64_t i = 0; i < u->n; i += 8) {
        vh8 h;
        LOAD(h, data + 2 * i);
        vu8 w = __builtin_convertvector(h, vu8) << 16, x = w & 0x7fffffffu;
        vu8 some = (vu8)(x != 0);
        vu8 a = (x - 0x8000u) & some, b = (x + 0x8000u) & some;
        STORE(u->w + i, w);
        STORE(u->x + i, x);
        float ends[2][8];
        STORE(ends[0], a);
        STORE(ends[1], b);
        for (int j = 0; j < 8; j += 4) {
            vf4 from, to;
            LOAD(from, ends[0] + j);
            LOAD(to, ends[1] + j);
            vd4 lo = __builtin_convertvector(from, vd4);
            vd4 hi = __builtin_convertvector(to, vd4);
            STORE(u->lo + i + j, lo);
            STORE(u->hi + i + j, hi);
        }
    }
}

TARGET static void load_others(struct grid_unit *u, const uint8_t *data)
{
    for (int64_t i = 0; i < u->n; i++) {
        u->w[i] = qformat_scale(data, u->source, i);
        u->x[i] = fabsf(u->w[i]);
        grid_preimage(u->source, u->x[i], &u->lo[i], &u->hi[i]);
    }
}

/* Bits of floats are in the order of their magnitudes; of both signs after the flip. */
TARGET static void find_ends(struct grid_unit *u)
{
    vi8 top = {0}, least = {0}, most = {0};
    for (int64_t i = 0; i < u->n; i += 8) {
        vi8 x, w;
        LOAD(x, u->x + i);
        LOAD(w, u->w + i);
        vi8 key = w ^ (vi8)((vu8)(w >> 31) >> 1);
        if (i == 0)
            least = most = key;
        vi8 more = x > top, above = key > most, below = key < least;
        top = (more & x) | (~more & top);
        most = (above & key) | (~above & most);
        least = (below & key) | (~below & least);
    }
    int32_t t[8], a[8], b[8];
    STORE(t, top);
    STORE(a, least);
    STORE(b, most);
    for (int l = 1; l < 8; l++) {
        t[0] = MAX2(t[0], t[l]);
        a[0] = MIN2(a[0], a[l]);
        b[0] = MAX2(b[0], b[l]);
    }
    a[0] ^= (int32_t)((uint32_t)(a[0] >> 31) >> 1);
    b[0] ^= (int32_t)((uint32_t)(b[0] >> 31) >> 1);
    memcpy(&u->max, &t[0], sizeof u->max);
    memcpy(&u->low, &a[0], sizeof u->low);
    memcpy(&u->high, &b[0], sizeof u->high);
}

TARGET static void load(struct grid_unit *u, const uint8_t *data)
{
    if (u->source == DT_BF16)
        load_bf16(u, data);
    else
        load_others(u, data);
    find_ends(u);
}

#define ANY(v)                                                                                     \
    __extension__({                                                                                \
        uint64_t any_[sizeof(v) / 8], all_ = 0;                                                    \
        STORE(any_, v);                                                                            \
        for (size_t l_ = 0; l_ < sizeof(v) / 8; l_++)                                              \
            all_ |= any_[l_];                                                                      \
        all_ != 0;                                                                                 \
    })

/* Elements that are looked at: these refuse nearly every wrong k, the larger of which let more by.
 */
#define LOOKED_AT(k) ((k) < 32 ? 8 : 16)

/* Distances y (magnitudes, or values above the least) over span / k must lie near whole numbers:
 * w and the ends of the span are off by half a unit each. Eight k side by side. */
TARGET static unsigned alive(const struct grid_unit *u, bool offset, int k)
{
    const vf8 first = {0, 1, 2, 3, 4, 5, 6, 7};
    const vi8 bits = {1, 2, 4, 8, 16, 32, 64, 128};
    float span = offset ? u->high - u->low : u->max, low = offset ? u->low : 0.0f;
    float of_w = (offset ? 1.0f : 2.0f) * u->rel * 1.015625f;
    float fixed = (offset ? u->max * u->rel : 0.0f) * 1.015625f + 2.0f * u->abs;
    const float *from = offset ? u->w : u->x;
    vf8 inv = (first + (float)k) / span, slope = inv * of_w, slack = inv * fixed + SLACK;
    vi8 bad = {0};
    for (int i = 0; i < LOOKED_AT(k); i++) {
        vf8 r = inv * (from[i] - low), q = (r + RINT32) - RINT32, d = r - q;
        d = (vf8)((vi8)d & 0x7fffffff);
        bad |= d > slope * u->x[i] + slack;
    }
    int32_t good[8];
    unsigned mask = 0;
    bad = ~bad & bits;
    STORE(good, bad);
    for (int l = 0; l < 8; l++)
        mask |= (unsigned)good[l];
    return mask;
}

/* One look at all elements with scales in [*a, *b]: the codes that each could have, and the
 * interval that is left by those with a single one. With a scale `at` above 0 each takes the code
 * that is nearest at it. */
TARGET static bool narrow(struct grid_unit *u, int k, double *a, double *b, double at, bool *open)
{
    const vl4 one_bits = (vl4)((vd4){0} + 1.0), inf_bits = (vl4)((vd4){0} + (double)INFINITY);
    double down = (1.0 - FUZZ) / *b, up = (1.0 + FUZZ) / *a;
    double over_at = at > 0 ? 1.0 / at : 0.0;
    vd4 most = (vd4){0} + *a, least = (vd4){0} + *b;
    const vd4 largest = (vd4){0} + (double)k;
    vl4 many = {0}, none = {0};
    for (int64_t i = 0; i < u->n; i += 4) {
        vd4 lo, hi;
        LOAD(lo, u->lo + i);
        LOAD(hi, u->hi + i);
        vd4 p = lo * down, r = hi * up;
        vd4 first = (p + RINT64) - RINT64, last = (r + RINT64) - RINT64;
        first += (vd4)((vl4)(first < p) & one_bits);
        last -= (vd4)((vl4)(last > r) & one_bits);
        vl4 beyond = last > (double)k; /* k is the largest code there is */
        last = (vd4)((beyond & (vl4)largest) | (~beyond & (vl4)last));
        none |= first > last;
        if (at > 0) {
            vd4 code_at = 0.5 * (lo + hi) * over_at;
            code_at = (code_at + RINT64) - RINT64;
            vl4 under = code_at<first, over = code_at> last;
            code_at = (vd4)((under & (vl4)first) | (~under & (vl4)code_at));
            first = last = (vd4)((over & (vl4)last) | (~over & (vl4)code_at));
        }
        vl4 single = first == last, some = first > 0.0;
        many |= ~single;
        vl4 count = single & some;
        vd4 code = (vd4)((some & (vl4)first) | (~some & one_bits));
        vd4 inverse = 1.0 / code;
        vd4 from = (vd4)(count & (vl4)(lo * inverse));
        vd4 to = (vd4)((count & (vl4)(hi * inverse)) | (~count & inf_bits));
        vl4 more = from > most, less = to < least;
        most = (vd4)((more & (vl4)from) | (~more & (vl4)most));
        least = (vd4)((less & (vl4)to) | (~less & (vl4)least));
        vf4 q = __builtin_convertvector(first, vf4);
        STORE(u->q + i, q);
    }
    if (ANY(none))
        return false;
    double x[4], y[4];
    STORE(x, most);
    STORE(y, least);
    for (int l = 0; l < 4; l++) {
        *a = MAX2(*a, x[l]);
        *b = MIN2(*b, y[l]);
    }
    *open = ANY(many);
    return *a <= *b * (1.0 + FUZZ);
}

/* Small codes are known at once and narrow the scale; then the large ones, which it may have left
 * open at first, are too. What stays open is decided at the middle of the interval, or at an end:
 * there, on ties, two codes can round to one value. */
TARGET static bool tighten(struct grid_unit *u, int k, int place, double *a, double *b, bool *open)
{
    *open = true;
    for (int turn = 0; *open && turn < 12; turn++) {
        double was = *b - *a;
        if (!narrow(u, k, a, b, 0.0, open)) {
            *open = false;
            return false;
        }
        if (*open && *b - *a >= was)
            break;
    }
    bool closed;
    double at = place == 0 ? 0.5 * (*a + *b) : place == 1 ? *a : *b;
    return !*open || narrow(u, k, a, b, at, &closed);
}

TARGET static void widest(const struct grid_unit *u, int *pos, int *neg)
{
    vf8 most = {0}, least = {0};
    for (int64_t i = 0; i < u->n; i += 8) {
        vf8 w, q;
        LOAD(w, u->w + i);
        LOAD(q, u->q + i);
        q = (vf8)((vi8)q ^ ((vi8)w & (int32_t)0x80000000));
        vi8 more = q > most, less = q < least;
        most = (vf8)((more & (vi8)q) | (~more & (vi8)most));
        least = (vf8)((less & (vi8)q) | (~less & (vi8)least));
    }
    float a[8], b[8];
    STORE(a, most);
    STORE(b, least);
    for (int l = 1; l < 8; l++) {
        a[0] = MAX2(a[0], a[l]);
        b[0] = MIN2(b[0], b[l]);
    }
    *pos = (int)a[0];
    *neg = (int)-b[0];
}

TARGET static bool check_scaled(const struct grid_unit *u, float scale)
{
    if (u->source == DT_F16) {
        bool same = true;
        for (int64_t i = 0; i < u->n && same; i++)
            same = f16_to_f32(f16_from_f32(u->q[i] * scale)) == u->x[i];
        return same;
    }
    vi8 bad = {0};
    bool round = u->source == DT_BF16;
    for (int64_t i = 0; i < u->n; i += 8) {
        vf8 x, q;
        LOAD(x, u->x + i);
        LOAD(q, u->q + i);
        vf8 v = q * scale;
        if (round)
            v = (vf8)(((vu8)v + 0x7fffu + ((vu8)v >> 16 & 1u)) & 0xffff0000u);
        bad |= v != x;
    }
    return !ANY(bad);
}

TARGET static bool check_offset(const struct grid_unit *u, float scale, float bias)
{
    if (u->source == DT_F16) {
        bool same = true;
        for (int64_t i = 0; i < u->n && same; i++)
            same = f16_to_f32(f16_from_f32(u->q[i] * scale + bias)) == u->w[i];
        return same;
    }
    vi8 bad = {0};
    bool round = u->source == DT_BF16;
    for (int64_t i = 0; i < u->n; i += 8) {
        vf8 w, q;
        LOAD(w, u->w + i);
        LOAD(q, u->q + i);
        vf8 v = q * scale + bias;
        if (round)
            v = (vf8)(((vu8)v + 0x7fffu + ((vu8)v >> 16 & 1u)) & 0xffff0000u);
        bad |= v != w;
    }
    return !ANY(bad);
}

TARGET static void spread(struct grid_unit *u, int k, int32_t where[GRID_CODES])
{
    float inv = (float)k / (u->high - u->low);
    const vi8 largest = (vi8){0} + k;
    for (int c = 0; c <= k; c++)
        where[c] = (int32_t)u->n;
    for (int64_t i = 0; i < u->n; i += 8) {
        vf8 w;
        LOAD(w, u->w + i);
        vf8 r = (w - u->low) * inv;
        vi8 c = __builtin_convertvector((r + RINT32) - RINT32, vi8);
        vi8 over = c > largest;
        c = (over & largest) | (~over & c); /* no value is below the least */
        vf8 q = __builtin_convertvector(c, vf8);
        STORE(u->q + i, q);
        int32_t at[8];
        STORE(at, c);
        for (int l = 0; l < 8; l++)
            where[at[l]] = (int32_t)i + l;
    }
}

/* The bounds of pairs that lie d codes apart share their divisor: only the strictest is divided.
 * Lanes are distances; code i is paired with i - d out of the reversed constraints. */
TARGET static void pairs(const struct grid_codes *g, double *scale_lo, double *scale_hi)
{
    const vd4 four = {0, 1, 2, 3};
    const double *low = g->low, *high = g->high, *low_down = g->low_down, *high_down = g->high_down;
    const int k = g->largest;
    vd4 most = {0}, least = (vd4){0} + (double)INFINITY;
    for (int d = 0; d <= k; d += 4) {
        vd4 from = (vd4){0} - (double)INFINITY, to = (vd4){0} + (double)INFINITY, l, h;
        for (int i = MAX2(d, 1); i <= k; i++) {
            LOAD(l, low_down + k - i + d);
            LOAD(h, high_down + k - i + d);
            vd4 f = low[i] - h, t = high[i] - l;
            vl4 more = f > from, less = t < to;
            from = (vd4)((more & (vl4)f) | (~more & (vl4)from));
            to = (vd4)((less & (vl4)t) | (~less & (vl4)to));
        }
        vd4 by = four + (double)d;
        vl4 apart = by > 0.0; /* a code is not paired with itself */
        by = (vd4)((apart & (vl4)by) | (~apart & (vl4)((vd4){0} + 1.0)));
        from /= by;
        to /= by;
        vl4 more = apart & (from > most), less = apart & (to < least);
        most = (vd4)((more & (vl4)from) | (~more & (vl4)most));
        least = (vd4)((less & (vl4)to) | (~less & (vl4)least));
    }
    double a[4], b[4];
    STORE(a, most);
    STORE(b, least);
    *scale_lo = MAX2(MAX2(a[0], a[1]), MAX2(a[2], a[3]));
    *scale_hi = MIN2(MIN2(b[0], b[1]), MIN2(b[2], b[3]));
}

TARGET static void codes(const struct grid_unit *u, int zero, bool by_sign, bool mirrored,
                         uint8_t *out)
{
    typedef uint8_t vb8 __attribute__((vector_size(8)));
    vi8 turn = (vi8){0} - (mirrored ? 1 : 0), base = (vi8){0} + zero;
    for (int64_t i = 0; i < u->n; i += 8) {
        vf8 w, q;
        LOAD(w, u->w + i);
        LOAD(q, u->best + i);
        vi8 minus = by_sign ? (vi8)(w < 0.0f) ^ turn : (vi8){0};
        vi8 c = __builtin_convertvector(q, vi8);
        c = ((c ^ minus) - minus) + base;
        vb8 b = __builtin_convertvector(c, vb8);
        STORE(out + i, b);
    }
}

#define GRID_OPS                                                                                   \
    {                                                                                              \
        .load = load, .alive = alive, .tighten = tighten, .widest = widest,                        \
        .check_scaled = check_scaled, .check_offset = check_offset, .spread = spread,              \
        .pairs = pairs, .codes = codes                                                             \
    }
