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
 *     vf_max_abs(a, m)  |a| > m ? |a| : m, for m >= 0
 *     vf_codes(v, p)   the lowest byte of every lane's bits
 *     vd_load vd_store vd_add_vf  double accumulators
 *     pack_codes(c, n, bits, out)  n codes to the bit stream
 * With AFFINE_ONE_BODY there is one body for all widths and groups.
 *
 * Adding 2^23 rounds to a whole number and leaves it in the lowest byte; subtracting gives it back.
 * By itself, without LANE, this header is empty. */
#include "quant/affine_private.h"

#ifdef LANE

#ifdef AFFINE_ONE_BODY
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

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

struct grid {
    vf s, b, inv;
};

/* Code of x on a grid plus 2^23: a float whose lowest byte is the code. */
LANE vf grid_code(vf x, struct grid g, vf top)
{
    vf q = vf_mul(vf_sub(x, g.b), g.inv);
    return vf_add(vf_min(vf_max(q, vf_set1(0.0f)), top), vf_set1(AFFINE_MAGIC));
}

/* x minus the grid's value at a code. */
LANE vf grid_error(vf x, vf code, struct grid g)
{
    return vf_sub(x, vf_fma(vf_sub(code, vf_set1(AFFINE_MAGIC)), g.s, g.b));
}

LANE struct grid load_grid(const struct affine_grids *g, int grid, int lane)
{
    return (struct grid){vf_set1(g->s[grid][lane]), vf_set1(g->b[grid][lane]),
                         vf_set1(g->inv[grid][lane])};
}

LANE vf add_error(vf x, struct grid g, vf top, vf sum)
{
    vf e = grid_error(x, grid_code(x, g, top), g);
    return vf_fma(e, e, sum);
}

struct sums {
    vd ww, we, ee;
    vf e_max;
};

/* Reads a batch of n groups: values, ends. False when a value is not finite. */
LANE bool load_batch(const struct affine_run *r, int64_t g0, int n, int n_vec,
                     struct affine_batch *t)
{
    const vf zero = vf_set1(0.0f);
    vf check = zero; /* NaN once a NaN or an infinity was there */
    for (int i = 0; i < n; i++) {
        float *w = t->w + 16 * n_vec * i;
        int64_t at = (g0 + i) * 16 * n_vec;
        affine_prefetch(r, at, 16 * n_vec);
        vf a = vf_source(r->source, r->data, at), z = a;
        vf_store(w, a);
        check = vf_fma(a, zero, check);
        UNROLL
        for (int v = 1; v < n_vec; v++) {
            vf x = vf_source(r->source, r->data, at + 16 * v);
            vf_store(w + 16 * v, x);
            a = vf_min(x, a);
            z = vf_max(x, z);
            check = vf_fma(x, zero, check);
        }
        t->lo[i] = vf_min_all(a);
        t->hi[i] = vf_max_all(z);
    }
    return !vf_any_nan(check);
}

/* Errors of a group on its three grids. They are written out: in a loop over an array of them gcc
 * keeps the sums in memory. */
LANE void measure(struct affine_batch *t, int i, int n_vec, vf top)
{
    const struct grid low = load_grid(&t->grids, 0, i), high = load_grid(&t->grids, 1, i);
    const struct grid full = load_grid(&t->grids, 2, i);
    const float *w = t->w + 16 * n_vec * i;
    vf a = vf_set1(0.0f), b = a, c = a;
    UNROLL
    for (int v = 0; v < n_vec; v++) {
        vf x = vf_load(w + 16 * v);
        a = add_error(x, low, top, a);
        b = add_error(x, high, top, b);
        c = add_error(x, full, top, c);
    }
    vf_sum3(a, b, c, t->err[i]);
}

LANE void emit(const struct affine_batch *t, int i, int n_vec, vf top, uint8_t *codes,
               struct sums *sum)
{
    const float *w = t->w + 16 * n_vec * i;
    const struct grid by = {vf_set1(t->s[i]), vf_set1(t->b[i]), vf_set1(t->inv[i])};
    vf ww = vf_set1(0.0f), we = ww, ee = ww;
    UNROLL
    for (int v = 0; v < n_vec; v++) {
        vf x = vf_load(w + 16 * v), code = grid_code(x, by, top);
        vf e = grid_error(x, code, by);
        vf_codes(code, codes + 16 * v);
        ww = vf_fma(x, x, ww);
        we = vf_fma(x, e, we);
        ee = vf_fma(e, e, ee);
        sum->e_max = vf_max_abs(e, sum->e_max);
    }
    sum->ww = vd_add_vf(sum->ww, ww);
    sum->we = vd_add_vf(sum->we, we);
    sum->ee = vd_add_vf(sum->ee, ee);
}

/* n_vec and bits are constants where this is called, so that the loops unroll. The steps go over
 * the whole batch one after another: the choice of a group's grid ends a long chain of
 * operations, and the other groups' chains run beside it. */
LANE int64_t encode_groups(const struct affine_run *r, struct errstat *st, int n_vec, int bits)
{
    struct affine_batch t;
    uint8_t codes[AFFINE_GROUP_MAX];
    const int group = 16 * n_vec;
    const float top_code = (float)((1 << bits) - 1);
    const vf top = vf_set1(top_code);
    struct sums sum = {vd_load(st->ww), vd_load(st->we), vd_load(st->ee), vf_load(st->e_max)};
    memset(t.lo, 0, sizeof t.lo);
    memset(t.hi, 0, sizeof t.hi);
    for (int64_t g0 = 0; g0 < r->n_groups; g0 += AFFINE_BATCH) {
        int n = (int)MIN2(AFFINE_BATCH, r->n_groups - g0);
        if (!load_batch(r, g0, n, n_vec, &t))
            return g0 + affine_not_finite(&t, n, group);
        make_grids(&t.grids, t.lo, t.hi, top_code, r->q.scale);
        for (int i = 0; i < n; i++)
            measure(&t, i, n_vec, top);
        int bad = affine_choose(&t, n);
        if (bad >= 0)
            return g0 + bad;
        for (int i = 0; i < n; i++) {
            emit(&t, i, n_vec, top, codes, &sum);
            pack_codes(codes, group, bits, r->codes + (g0 + i) * group / 8 * bits);
        }
        affine_store_scales(r->scales, r->q.scale, g0, t.s, n);
        affine_store_scales(r->biases, r->q.scale, g0, t.b, n);
    }
    vd_store(st->ww, sum.ww);
    vd_store(st->we, sum.we);
    vd_store(st->ee, sum.ee);
    vf_store(st->e_max, sum.e_max);
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
