/* affine_body.h: the encoder itself, once, on vectors of 16 lanes.
 *
 * affine.c, affine_avx2.c and affine_avx512.c include it after they have defined LANE (the
 * attributes of a function), vf (16 floats), vd (16 doubles) and these operations, each one IEEE
 * operation a lane:
 *
 *     vf_set1 vf_load vf_store vf_add vf_sub vf_mul vf_div vf_fma vf_abs
 *     vf_min(a, b)  a < b ? a : b      vf_max(a, b)  a > b ? a : b   (b when one is NaN)
 *     vf_rint       to nearest, ties to even
 *     vf_where_lt(a, b, x, y)  a < b ? x : y, lane by lane
 *     vf_scale(v, t)   rounded to dtype t and back
 *     vf_source(t, p, i)  elements [i, i + 16) of p in dtype t
 *     vf_min_all vf_max_all vf_any_nan  over lanes
 *     vf_sum3(a, b, c, out)  sums over lanes: halves are folded twice, then (0+1)+(2+3);
 *                   out has room for 4
 *     vf_codes(v, p)   whole numbers below 256 to bytes
 *     vd_load vd_store vd_add_vf  double accumulators
 *     pack_codes(c, n, bits, out)  n codes to the bit stream
 * With AFFINE_ONE_BODY there is one body for all widths and groups.
 *
 * Rounding to a whole number in [0, 255] is adding and subtracting 2^23.
 * By itself, without LANE, this header is empty. */
#include "quant/affine_private.h"

#ifdef LANE

/* One grid for 16 groups: rounded, bounded, checked. */
LANE void put_grid(struct affine_grids *g, int grid, vf s, vf b, enum dtype t)
{
    const vf zero = vf_set1(0.0f), limit = vf_set1(3.402823466e38f);
    s = vf_scale(s, t);
    b = vf_add(vf_scale(b, t), zero); /* no negative zero */
    vf size = vf_abs(s);
    s = vf_where_lt(size, vf_set1(1.17549435e-38f), zero, s);
    vf inv = vf_where_lt(zero, vf_abs(s), vf_div(vf_set1(1.0f), s), zero);
    vf none = vf_set1(__builtin_nanf(""));
    b = vf_where_lt(limit, size, none, b);
    b = vf_where_lt(limit, vf_abs(b), none, b);
    vf_store(g->s[grid], s);
    vf_store(g->b[grid], b);
    vf_store(g->inv[grid], inv);
}

/* Halved ends keep the range of the largest floats finite. lo and hi have no NaN. */
LANE void make_grids(struct affine_grids *g, const float *lo_of, const float *hi_of, float top,
                     enum dtype t)
{
    const vf zero = vf_set1(0.0f), half = vf_set1(0.5f);
    vf lo = vf_load(lo_of), hi = vf_load(hi_of);
    vf step = vf_div(vf_sub(vf_mul(hi, half), vf_mul(lo, half)), vf_set1(top * 0.5f));
    vf back = vf_sub(zero, step);
    vf some = vf_where_lt(zero, step, step, vf_set1(1.0f)); /* one value: no 0 / 0 */

    vf q = vf_rint(vf_div(lo, some));
    vf s = vf_where_lt(zero, vf_abs(q), vf_div(lo, q), step);
    vf b = vf_where_lt(zero, vf_abs(q), lo, zero);
    s = vf_where_lt(zero, step, s, zero);
    b = vf_where_lt(zero, step, b, lo);
    put_grid(g, 0, s, b, t);

    q = vf_rint(vf_div(hi, vf_sub(zero, some)));
    s = vf_where_lt(zero, vf_abs(q), vf_div(hi, q), back);
    b = vf_where_lt(zero, vf_abs(q), hi, zero);
    s = vf_where_lt(zero, step, s, zero);
    b = vf_where_lt(zero, step, b, lo);
    put_grid(g, 1, s, b, t);

    put_grid(g, 2, step, lo, t);
}

/* Code of w on a grid, as a float. */
LANE vf grid_code(vf w, vf b, vf inv, vf top)
{
    const vf magic = vf_set1(8388608.0f);
    vf x = vf_mul(vf_sub(w, b), inv);
    x = vf_min(vf_max(x, vf_set1(0.0f)), top);
    return vf_sub(vf_add(x, magic), magic);
}

struct grid {
    vf s, b, inv;
};

LANE struct grid load_grid(const struct affine_grids *g, int grid, int lane)
{
    return (struct grid){vf_set1(g->s[grid][lane]), vf_set1(g->b[grid][lane]),
                         vf_set1(g->inv[grid][lane])};
}

LANE vf add_error(vf x, struct grid g, vf top, vf sum)
{
    vf e = vf_sub(x, vf_fma(grid_code(x, g.b, g.inv, top), g.s, g.b));
    return vf_fma(e, e, sum);
}

/* The three grids are written out: in a loop over an array of them gcc keeps the sums in memory. */
LANE void measure(const float *w, int n_vec, vf top, const struct affine_grids *g, int lane,
                  float err[4])
{
    const struct grid low = load_grid(g, 0, lane), high = load_grid(g, 1, lane);
    const struct grid full = load_grid(g, 2, lane);
    vf a = vf_set1(0.0f), b = a, c = a;
    for (int v = 0; v < n_vec; v++) {
        vf x = vf_load(w + 16 * v);
        a = add_error(x, low, top, a);
        b = add_error(x, high, top, b);
        c = add_error(x, full, top, c);
    }
    vf_sum3(a, b, c, err);
}

struct sums {
    vd ww, we, ee;
    vf e_max;
};

LANE void emit(const float *w, int n_vec, vf top, const struct affine_grids *g, int grid, int lane,
               uint8_t *codes, struct sums *t)
{
    const struct grid by = load_grid(g, grid, lane);
    vf ww = vf_set1(0.0f), we = ww, ee = ww;
    for (int v = 0; v < n_vec; v++) {
        vf x = vf_load(w + 16 * v), q = grid_code(x, by.b, by.inv, top);
        vf e = vf_sub(x, vf_fma(q, by.s, by.b));
        vf_codes(q, codes + 16 * v);
        ww = vf_fma(x, x, ww);
        we = vf_fma(x, e, we);
        ee = vf_fma(e, e, ee);
        t->e_max = vf_max(vf_abs(e), t->e_max);
    }
    t->ww = vd_add_vf(t->ww, ww);
    t->we = vd_add_vf(t->we, we);
    t->ee = vd_add_vf(t->ee, ee);
}

/* n_vec and bits are constants where this is called, so that the loops unroll. */
LANE int64_t encode_groups(const struct affine_run *r, struct errstat *st, int n_vec, int bits)
{
    float w[AFFINE_BATCH * AFFINE_GROUP_MAX], lo[AFFINE_BATCH], hi[AFFINE_BATCH];
    uint8_t codes[AFFINE_GROUP_MAX];
    struct affine_grids g;
    const int group = 16 * n_vec;
    const float top_code = (float)((1 << bits) - 1);
    const vf top = vf_set1(top_code);
    struct sums t = {vd_load(st->ww), vd_load(st->we), vd_load(st->ee), vf_load(st->e_max)};
    memset(lo, 0, sizeof lo);
    memset(hi, 0, sizeof hi);
    for (int64_t g0 = 0; g0 < r->n_groups; g0 += AFFINE_BATCH) {
        int n = (int)MIN2(AFFINE_BATCH, r->n_groups - g0);
        for (int i = 0; i < n; i++) {
            int64_t at = (g0 + i) * group;
            vf a = vf_source(r->source, r->data, at), z = a, check = vf_mul(a, vf_set1(0.0f));
            vf_store(w + group * i, a);
            for (int v = 1; v < n_vec; v++) {
                vf x = vf_source(r->source, r->data, at + 16 * v);
                vf_store(w + group * i + 16 * v, x);
                a = vf_min(x, a);
                z = vf_max(x, z);
                check = vf_fma(x, vf_set1(0.0f), check); /* NaN for NaN and infinities */
            }
            lo[i] = vf_min_all(a);
            hi[i] = vf_max_all(z);
            if (vf_any_nan(check))
                return g0 + i;
        }
        make_grids(&g, lo, hi, top_code, r->q.scale);
        for (int i = 0; i < n; i++) {
            float err[4];
            measure(w + group * i, n_vec, top, &g, i, err);
            int grid = affine_pick(err);
            if (grid < 0)
                return g0 + i;
            emit(w + group * i, n_vec, top, &g, grid, i, codes, &t);
            pack_codes(codes, group, bits, r->codes + (g0 + i) * group / 8 * bits);
            affine_store_scale(r->scales, r->q.scale, g0 + i, g.s[grid][i]);
            affine_store_scale(r->biases, r->q.scale, g0 + i, g.b[grid][i]);
        }
    }
    vd_store(st->ww, t.ww);
    vd_store(st->we, t.we);
    vd_store(st->ee, t.ee);
    vf_store(st->e_max, t.e_max);
    return -1;
}

#ifdef AFFINE_ONE_BODY
/* Plain C gains nothing from constants, and its compile time grows with every copy. */
static int64_t encode_run(const struct affine_run *r, struct errstat *st)
{
    return encode_groups(r, st, r->q.group / 16, r->q.bits);
}
#else
/* One body a width and group. */
#define WIDTH(bits)                                                                                \
    TARGET static int64_t encode_##bits(const struct affine_run *r, struct errstat *st)            \
    {                                                                                              \
        switch (r->q.group) {                                                                      \
        case 32:                                                                                   \
            return encode_groups(r, st, 2, bits);                                                  \
        case 64:                                                                                   \
            return encode_groups(r, st, 4, bits);                                                  \
        default:                                                                                   \
            return encode_groups(r, st, 8, bits);                                                  \
        }                                                                                          \
    }
WIDTH(2)
WIDTH(3)
WIDTH(4)
WIDTH(5)
WIDTH(6)
WIDTH(8)

static int64_t encode_run(const struct affine_run *r, struct errstat *st)
{
    switch (r->q.bits) {
    case 2:
        return encode_2(r, st);
    case 3:
        return encode_3(r, st);
    case 4:
        return encode_4(r, st);
    case 5:
        return encode_5(r, st);
    case 6:
        return encode_6(r, st);
    default:
        return encode_8(r, st);
    }
}
#endif

#endif
