/* plan.h: what becomes of every weight of a checkpoint, before a byte is written.
 *
 * A plan lists the weights by name with an action each. quantize makes it from a recipe, convert
 * from its options; pack.h writes it. Pure: reads no weight data but what ggml_affine_format looks
 * at. A plan borrows from its checkpoint and recipe.
 *
 * Decisions by a recipe:
 *   - the last rule that matches decides; a weight without a rule is kept;
 *   - norms, biases, one-dimensional weights and those that are no matrix named "*.weight" are kept
 *     whatever a rule says;
 *   - a tied matrix is decided as embedding and as head (under the name lm_head.weight); the one
 *     with more bits wins, kept counts as most; two formats with other groups or scale types are an
 *     error;
 *   - a router below 8 bits is raised to 8, unless its rule names the role router or its very name.
 */
#ifndef ASSAY_QUANT_PLAN_H
#define ASSAY_QUANT_PLAN_H

#include "quant/recipe.h"

enum plan_action {
    PLAN_COPY,   /* the stored bytes, dense or packed; a GGUF's rope rows in canonical order */
    PLAN_REPACK, /* GGML blocks to the affine form that holds them exactly */
    PLAN_DENSE,  /* decoded, then rounded once to `dtype` */
    PLAN_ENCODE  /* encoded to `q` */
};
const char *plan_action_name(enum plan_action a); /* "copy", "repack", "dense", "encode" */

struct plan_item {
    const struct ckpt_weight *w;
    enum plan_action action;
    bool packed; /* written as codes, scales and (affine) biases in q; else dense in dtype */
    struct qformat q;
    enum dtype dtype;
    int rule;       /* of the recipe; -1: none */
    char note[160]; /* why it is otherwise than its rule says, or "" */
    int64_t rows, k;
    /* Dense: code_bytes is all. scale_bytes of scales alone; block floats have no biases, and
     * global_bytes where the source has global scales and is copied. */
    uint64_t code_bytes, scale_bytes, bias_bytes, global_bytes;
};

struct plan {
    const struct checkpoint *ckpt;
    const struct recipe *recipe; /* NULL: convert */
    struct plan_item *items;     /* one a weight, in the order of their names */
    size_t n_items;
};

MUST_USE enum err_code plan_from_recipe(struct plan **p, const struct checkpoint *c,
                                        const struct recipe *r, struct err *e);
/* Every weight kept; the caller changes items with the two setters. */
MUST_USE enum err_code plan_keep_all(struct plan **p, const struct checkpoint *c, struct err *e);
void plan_free(struct plan *p);

void plan_set_dense(struct plan_item *it, enum dtype dtype);
void plan_set_packed(struct plan_item *it, enum plan_action action, struct qformat q);
/* A matrix that can be packed at all. */
bool plan_can_pack(const struct ckpt_weight *w);

uint64_t plan_item_bytes(const struct plan_item *it);
int64_t plan_item_elems(const struct plan_item *it);
/* "affine 4 bits, group 64, bf16", "mxfp4", "BF16", "Q4_1" */
const char *plan_item_format(const struct plan_item *it, char buf[64]);
const char *plan_weight_format(const struct ckpt_weight *w, char buf[64]);
const char *plan_qformat_text(struct qformat q, char buf[64]);

struct plan_totals {
    uint64_t bytes, packed_bytes;
    int64_t elems, packed_elems; /* of all; of the packed matrices */
    double bits, packed_bits;    /* per weight, scales and biases counted */
};
void plan_totals(const struct plan *p, struct plan_totals *t);
/* The packed format with the most elements; false: nothing is packed. */
bool plan_root_format(const struct plan *p, struct qformat *q);

#endif
