/* qat_grid.c: a matrix against the forms: a sample of rows for all of them, all rows for the one
 * that fits, and rows encoded.
 *
 * Forms are tried from the smallest packed size up, so that a grid of whole rows is not stored as
 * one of groups. Rows are cut into runs that are searched in parallel; counts are sums over runs,
 * and the scale's type is the least one that every run can use, so nothing depends on threads.
 */
#include "quant/qat_grid.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/par.h"
#include "quant/errstat.h"
#include "quant/qat_private.h"

#define SAMPLE_ROWS 16

/* Kinds and bits; each is tried with whole rows, 128, 64 and 32. */
static const struct {
    enum grid_kind kind;
    int bits;
} forms[] = {{GRID_SYMMETRIC, 4}, {GRID_ZERO_POINT, 4}, {GRID_OFFSET, 4},    {GRID_SYMMETRIC, 5},
             {GRID_OFFSET, 5},    {GRID_SYMMETRIC, 8},  {GRID_ZERO_POINT, 8}};
static const int groups[] = {0, 128, 64, 32};

static const char *const kind_names[] = {"none", "symmetric", "zero point", "offset"};

const char *grid_kind_name(enum grid_kind k)
{
    return kind_names[k];
}

const char *grid_form_text(const struct grid_form *f, char buf[80])
{
    char group[24] = "whole rows";
    if (f->group)
        snprintf(group, sizeof group, "group %d", f->group);
    snprintf(buf, 80, "%s, %d bits, %s, %s scales", kind_names[f->kind], f->bits, group,
             dtype_name(f->scale));
    return buf;
}

json_t *grid_report_json(const struct grid_report *r)
{
    const struct grid_form *f = &r->form;
    json_t *o = json_pack("{s:s}", "kind", kind_names[f->kind]);
    if (o && f->kind != GRID_NONE)
        json_object_update_new(o, json_pack("{s:i,s:i,s:s}", "bits", f->bits, "group", f->group,
                                            "scale", dtype_name(f->scale)));
    double share = r->units ? (double)r->on / (double)r->units : 0.0;
    if (o)
        json_object_update_new(o, json_pack("{s:I,s:I,s:I,s:f,s:b}", "units", (json_int_t)r->units,
                                            "on", (json_int_t)r->on, "zero", (json_int_t)r->zero,
                                            "share", errstat_round6(share), "whole", r->whole));
    return o;
}

bool grid_can_look(const struct ckpt_weight *w)
{
    return w->enc == CKPT_DENSE && dtype_is_float(w->dtype) && w->n_dim >= 2 && !w->minus_one &&
           ckpt_weight_k(w) % 32 == 0 && ckpt_weight_rows(w) > 0 && ckpt_weight_k(w) > 0;
}

struct qformat grid_format(const struct grid_form *f, int64_t k)
{
    int group = f->group ? f->group : k % 128 == 0 ? 128 : k % 64 == 0 ? 64 : 32;
    return (struct qformat){f->bits, group, f->scale};
}

/* ---- runs --------------------------------------------------------------------------------------
 */

struct tally {
    int64_t units, on, zero;
    bool bf16, f16; /* every unit so far has a scale and a bias of that type */
};

static void tally_add(struct tally *into, const struct tally *t)
{
    into->units += t->units;
    into->on += t->on;
    into->zero += t->zero;
    into->bf16 &= t->bf16;
    into->f16 &= t->f16;
}

/* A row's bytes where they lie; `room` takes those of a weight that lies across its tensor. */
static const uint8_t *row_data(const struct ckpt_weight *w, int64_t row, uint8_t *room)
{
    struct ckpt_block at;
    if (w->strides) {
        ckpt_weight_stored_row(w, row, room);
        return room;
    }
    ckpt_weight_at(w, ckpt_weight_row(w, row), &at);
    return at.data;
}

static bool fits(float v, enum dtype t)
{
    return (t == DT_F16 ? f16_to_f32(f16_from_f32(v)) : bf16_to_f32(bf16_from_f32(v))) == v;
}

/* The unit that was loaded, on the form with any scale type that the units before have left. */
static void count_unit(struct grid_unit *u, const struct grid_ops *ops, const struct grid_form *f,
                       struct tally *t)
{
    struct grid_found found;
    unsigned types = GRID_F32 | (t->f16 ? GRID_F16 : 0) | (t->bf16 ? GRID_BF16 : 0);
    t->units++;
    t->zero += u->max == 0;
    if (!grid_unit_find(u, ops, f->kind, f->bits, types, &found))
        return;
    t->on++;
    t->bf16 &= found.type == DT_BF16;
    t->f16 &= found.type == DT_F16 ||
              (found.type == DT_BF16 && fits(found.scale, DT_F16) && fits(found.bias, DT_F16));
}

static void count_row(const struct ckpt_weight *w, int64_t row, const struct grid_form *f,
                      struct grid_unit *u, const struct grid_ops *ops, struct tally *t)
{
    int64_t k = ckpt_weight_k(w);
    const uint8_t *data = row_data(w, row, u->row);
    for (int64_t i = 0; i < k; i += u->n) {
        ops->load(u, data + (size_t)i * (size_t)dtype_bits(w->dtype) / 8);
        count_unit(u, ops, f, t);
    }
}

struct scan {
    const struct ckpt_weight *w;
    const struct grid_options *o;
    struct grid_form form;
    int64_t run_rows;
    struct tally *tallies; /* one a run */
    enum err_code *rcs;
};

static void scan_run(void *ctx, int64_t i, int thread)
{
    struct scan *s = ctx;
    const struct ckpt_weight *w = s->w;
    int64_t k = ckpt_weight_k(w), row0 = i * s->run_rows;
    int64_t n = MIN2(s->run_rows, ckpt_weight_rows(w) - row0);
    struct grid_unit u;
    (void)thread;
    if (s->o->interrupted && *s->o->interrupted) {
        s->rcs[i] = ERR_INTERRUPTED;
        return;
    }
    s->tallies[i] = (struct tally){.bf16 = true, .f16 = true};
    s->rcs[i] = grid_unit_new(&u, s->form.group ? s->form.group : k, k, w->dtype, NULL);
    if (s->rcs[i] != ERR_OK)
        return;
    for (int64_t r = row0; r < row0 + n; r++)
        count_row(w, r, &s->form, &u, grid_ops_best(), &s->tallies[i]);
    grid_unit_free(&u);
    if (s->o->drop && ckpt_weight_in_order(w))
        io_map_drop(row_data(w, row0, NULL), (size_t)n * ckpt_weight_row_bytes(w));
}

/* Every row. */
static enum err_code scan_all(const struct ckpt_weight *w, const struct grid_options *o,
                              const struct grid_form *f, struct tally *t, struct err *e)
{
    struct scan s = {.w = w, .o = o, .form = *f};
    s.run_rows = errstat_run_rows(ckpt_weight_rows(w), ckpt_weight_k(w));
    int64_t n = (ckpt_weight_rows(w) + s.run_rows - 1) / s.run_rows;
    s.tallies = calloc((size_t)n, sizeof *s.tallies);
    s.rcs = calloc((size_t)n, sizeof *s.rcs);
    enum err_code rc = s.tallies && s.rcs ? ERR_OK : ERR_NOMEM;
    *t = (struct tally){.bf16 = true, .f16 = true};
    if (rc == ERR_OK)
        par_for(o->threads > 0 ? o->threads : par_default_threads(), n, scan_run, &s);
    for (int64_t i = 0; i < n && rc == ERR_OK; i++) {
        rc = s.rcs[i];
        tally_add(t, &s.tallies[i]);
    }
    free(s.tallies);
    free(s.rcs);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "tensor %s: out of memory", w->name);
    return rc == ERR_OK ? rc : err_set(e, rc, "interrupted; nothing was kept");
}

/* Rows that lie evenly over the matrix. */
static enum err_code scan_sample(const struct ckpt_weight *w, const struct grid_form *f,
                                 struct tally *t, struct err *e)
{
    struct grid_unit u;
    int64_t k = ckpt_weight_k(w), rows = ckpt_weight_rows(w), n = MIN2(rows, SAMPLE_ROWS);
    *t = (struct tally){.bf16 = true, .f16 = true};
    enum err_code rc = grid_unit_new(&u, f->group ? f->group : k, k, w->dtype, e);
    for (int64_t i = 0; i < n && rc == ERR_OK; i++)
        count_row(w, i * rows / n, f, &u, grid_ops_best(), t);
    grid_unit_free(&u);
    return rc;
}

static void put_report(struct grid_report *r, const struct grid_form *f, const struct tally *t,
                       bool whole)
{
    *r = (struct grid_report){*f, t->units, t->on, t->zero, whole};
    r->form.scale = t->bf16 ? DT_BF16 : t->f16 ? DT_F16 : DT_F32;
    if (t->on == t->zero)
        r->form.kind = GRID_NONE;
}

/* Larger share of the units that are not zero. */
static bool is_better(const struct tally *t, const struct grid_report *r)
{
    double a = (double)(t->on - t->zero) / (double)MAX2(t->units - t->zero, 1);
    double b = (double)(r->on - r->zero) / (double)MAX2(r->units - r->zero, 1);
    return a > b;
}

/* One form: a sample, and all rows when the sample lies on it. */
static enum err_code look_at(const struct ckpt_weight *w, const struct grid_options *o,
                             const struct grid_form *f, struct grid_report *best, struct err *e)
{
    struct tally t;
    bool whole = false;
    enum err_code rc = scan_sample(w, f, &t, e);
    if (rc == ERR_OK && !o->sample && t.on == t.units && t.on > t.zero) {
        rc = scan_all(w, o, f, &t, e);
        whole = true;
    }
    if (rc == ERR_OK && (best->units == 0 || is_better(&t, best)))
        put_report(best, f, &t, whole);
    return rc;
}

enum err_code grid_look(const struct ckpt_weight *w, const struct grid_options *o,
                        struct grid_report *r, struct err *e)
{
    int64_t k = ckpt_weight_k(w);
    enum err_code rc = ERR_OK;
    *r = (struct grid_report){.form = {.kind = GRID_NONE}};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        for (size_t g = 0; g < ARRAY_LEN(groups); g++) {
            struct grid_form f = {forms[i].kind, forms[i].bits, groups[g], DT_F32};
            if (groups[g] && (k % groups[g] != 0 || k == groups[g]))
                continue; /* a row of one group is a whole row */
            rc = look_at(w, o, &f, r, e);
            if (rc != ERR_OK || (grid_is_on(r) && (r->whole || o->sample)))
                return rc;
        }
    }
    /* On no form: the exact share of the one that came nearest. */
    if (!o->sample && r->form.kind != GRID_NONE && !r->whole) {
        struct tally t;
        struct grid_form f = r->form;
        rc = scan_all(w, o, &f, &t, e);
        put_report(r, &f, &t, true);
    }
    return rc;
}

/* ---- encoding ----------------------------------------------------------------------------------
 */

static void store_scale(uint8_t *p, enum dtype t, int64_t i, float v)
{
    if (t == DT_F32)
        store_u32(p + 4 * i, f32_bits(v));
    else
        store_u16(p + 2 * i, t == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v));
}

/* Eight codes, a byte each, move together in three steps to `bits` whole bytes. */
static void pack_codes(const uint8_t *c, int64_t n, int bits, uint8_t *out)
{
    for (int64_t i = 0; i < n; i += 8, out += bits) {
        uint64_t v = load_u64(c + i);
        v = (v & 0x00ff00ff00ff00ffull) | (v >> 8 & 0x00ff00ff00ff00ffull) << bits;
        v = (v & 0x0000ffff0000ffffull) | (v >> 16 & 0x0000ffff0000ffffull) << (2 * bits);
        v = (v & 0x00000000ffffffffull) | v >> 32 << (4 * bits);
        memcpy(out, &v, (size_t)bits);
    }
}

static unsigned type_bit(enum dtype t)
{
    return t == DT_BF16 ? GRID_BF16 : t == DT_F16 ? GRID_F16 : GRID_F32;
}

enum err_code grid_encode(const struct ckpt_weight *w, const struct grid_form *f, int64_t row0,
                          int64_t n, uint8_t *codes, uint8_t *scales, uint8_t *biases,
                          struct err *e)
{
    int64_t k = ckpt_weight_k(w);
    struct qformat q = grid_format(f, k);
    const struct grid_ops *ops = grid_ops_best();
    struct grid_unit u;
    struct grid_found found;
    enum err_code rc = grid_unit_new(&u, f->group ? f->group : k, k, w->dtype, e);
    uint8_t *row_codes = rc == ERR_OK ? malloc((size_t)k) : NULL;
    if (rc == ERR_OK && !row_codes)
        rc = err_set(e, ERR_NOMEM, "out of memory: a row of %lld codes", (long long)k);
    for (int64_t r = 0; r < n && rc == ERR_OK; r++) {
        const uint8_t *data = row_data(w, row0 + r, u.row);
        for (int64_t i = 0; i < k && rc == ERR_OK; i += u.n) {
            ops->load(&u, data + (size_t)i * (size_t)dtype_bits(w->dtype) / 8);
            if (!grid_unit_find(&u, ops, f->kind, f->bits, type_bit(f->scale), &found)) {
                char text[80];
                rc = err_set(e, ERR_INPUT,
                             "row %lld, columns from %lld: not on the grid that was found "
                             "before (%s); did the file change?",
                             (long long)(row0 + r), (long long)i, grid_form_text(f, text));
                break;
            }
            ops->codes(&u, found.zero, f->kind != GRID_OFFSET, found.mirrored, row_codes + i);
            for (int64_t g = i / q.group; g < (i + u.n) / q.group; g++) {
                store_scale(scales, q.scale, r * (k / q.group) + g, found.scale);
                store_scale(biases, q.scale, r * (k / q.group) + g, found.bias);
            }
        }
        if (rc == ERR_OK)
            pack_codes(row_codes, k, q.bits, codes + (size_t)r * qformat_row_bytes(q, k));
    }
    free(row_codes);
    grid_unit_free(&u);
    return rc;
}
