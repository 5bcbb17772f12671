/* qat_grid.h: is a float matrix an expanded quantized one, and if so, of which grid?
 *
 * The weights of a QAT checkpoint are code times scale, rounded to the type that they are stored
 * in. A form says which grid; a unit (group or whole row) lies on it when codes, scale and bias of
 * that form give EVERY one of its weights again, by rule 1 of docs/numerics.md and one rounding to
 * the source's type (-0 counts as 0). A matrix lies on a form when all its units do. Nothing here
 * is a fit: what is not equal is not on the grid.
 *
 *   symmetric   w = q * s, q in [-2^(bits-1), 2^(bits-1) - 1], s of either sign
 *   zero point  w = (u - z) * s, u in [0, 2^bits - 1], z among the codes, per unit
 *   offset      w = u * s + m, per unit; 4 and 5 bits (8 bits of offsets are as fine as bf16)
 *
 * docs/qat.md has the method. Owns the search; convert decides what is searched.
 */
#ifndef ASSAY_QUANT_QAT_GRID_H
#define ASSAY_QUANT_QAT_GRID_H

#include "ckpt/checkpoint.h"

enum grid_kind { GRID_NONE, GRID_SYMMETRIC, GRID_ZERO_POINT, GRID_OFFSET };

struct grid_form {
    enum grid_kind kind;
    int bits;         /* 4, 5 or 8 */
    int group;        /* 32, 64, 128; 0: one scale a row */
    enum dtype scale; /* that holds every unit's scale and bias */
};

struct grid_report {
    struct grid_form form; /* of `on`, the form with the largest share; GRID_NONE: no unit at all */
    int64_t units, on, zero; /* looked at; on the form; all zero, which lie on every form */
    bool whole;              /* every unit of the matrix was looked at, not a sample of rows */
};
/* The matrix lies on the form, and some of it is not zero. */
static inline bool grid_is_on(const struct grid_report *r)
{
    return r->form.kind != GRID_NONE && r->on == r->units && r->zero < r->units;
}

struct grid_options {
    int threads;
    bool sample;                     /* some rows only */
    const volatile int *interrupted; /* may be NULL */
    bool drop;                       /* pages of the weight's map are let go after use */
};

/* A dense float matrix in whole groups of 32. */
bool grid_can_look(const struct ckpt_weight *w);
/* ERR_NOMEM or ERR_INTERRUPTED; a matrix on no grid is no error. */
MUST_USE enum err_code grid_look(const struct ckpt_weight *w, const struct grid_options *o,
                                 struct grid_report *r, struct err *e);

/* The packed format that holds the form for rows of k: whole rows repeat their scale. */
struct qformat grid_format(const struct grid_form *f, int64_t k);
/* Rows [row0, row0 + n) in that format, each unit proven again. ERR_INPUT names the first that is
 * not on the form. */
MUST_USE enum err_code grid_encode(const struct ckpt_weight *w, const struct grid_form *f,
                                   int64_t row0, int64_t n, uint8_t *codes, uint8_t *scales,
                                   uint8_t *biases, struct err *e);

/* {"kind", "bits", "group" (0: whole rows), "scale", "units", "on", "zero", "share", "whole"}; kind
 * "none" has no form; a new reference or NULL. */
json_t *grid_report_json(const struct grid_report *r);
const char *grid_kind_name(enum grid_kind k); /* "symmetric", "zero point", "offset", "none" */
/* "symmetric, 4 bits, group 32, BF16 scales" */
const char *grid_form_text(const struct grid_form *f, char buf[80]);

#endif
