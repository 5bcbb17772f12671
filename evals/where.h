/* where.h: where a decided flip enters, and the cheapest change of precision that brings its token
 * back (docs/compare.md).
 *
 * Both models are fed the same tokens up to the flip. The lens reads the state that enters each
 * layer through the final norm and the head; attribution gives the variant the reference's weights,
 * a role, a layer or a tensor at a time; the search looks for the fewest bytes of a recipe with
 * which the variant chooses the reference's token again, and runs what quantize would make of it.
 * Needs both models at hand.
 */
#ifndef ASSAY_EVALS_WHERE_H
#define ASSAY_EVALS_WHERE_H

#include "ckpt/checkpoint.h"
#include "common/str.h"

struct comparison;
struct compare_options;
struct lm;
struct pair;

/* The state that enters a layer; the last entry is what the final norm gets. */
struct where_layer {
    double error;              /* rms of the difference over the rms of the reference's state */
    double ref_lens, var_lens; /* logit of the reference's token minus the variant's */
};

enum where_kind { WHERE_ROLE, WHERE_LAYER, WHERE_CELL, WHERE_TENSOR };

/* A part of the variant whose weights differ from the reference's. */
struct where_unit {
    enum where_kind kind;
    enum ckpt_role role; /* ROLE, CELL, TENSOR; else ROLE_COUNT */
    int layer;           /* LAYER, CELL, TENSOR; else -1 */
    const char *name;    /* TENSOR: the reference's; else NULL */
    size_t n_weights;
    double margin;  /* of the reference's token, with these weights the reference's */
    double lead;    /* of that token over the best other one, likewise */
    uint64_t bytes; /* what 8 bits of it cost; UINT64_MAX: no recipe says it, or nothing changes */
};

#define WHERE_KEEP      64 /* the level of a weight that stays what the reference has */
#define WHERE_MOVES_MAX 64
struct where_move {
    size_t unit;
    int level; /* bits, or WHERE_KEEP */
};

struct where_remedy {
    bool found;
    char why_not[256]; /* or empty */
    struct where_move move[WHERE_MOVES_MAX];
    size_t n_moves;
    uint64_t bytes; /* that quantize writes more than for the base recipe */
    char *recipe;   /* YAML, heap */
    char base[160]; /* what the recipe goes on from, in words */
    /* Of the whole model that quantize makes of it: */
    bool verified;       /* the token is back, with the margin asked for */
    size_t n_refit;      /* other weights in which it is not the variant */
    double lead;         /* of the token over the best other one, logits */
    int64_t free_common; /* tokens of the answer, running free behind the reference's prompt */
    size_t n_runs;       /* of the tokens up to the flip, for all of this */
};

struct where_flip {
    size_t position;   /* in the pair's positions */
    int64_t n_prefix;  /* tokens before it */
    double ref_margin; /* logits: the reference's token minus the variant's, in the reference */
    double var_margin; /* in the variant: below 0 */
    double safety;     /* the lead that the token must have to be back */
    struct where_layer *layers; /* n_layer + 1 */
    int n_layer;
    int turn;  /* the layer behind which the variant prefers its own token to the end; -1: always */
    int enter; /* the layer in which its lens falls behind the reference's most */
    struct where_unit *units; /* roles, layers, cells, tensors; none: the lens alone */
    size_t n_units;
    size_t culprit; /* of the cells and tensors, the one with the greatest effect */
    struct where_remedy remedy;
};

struct where {
    struct where_flip *flips; /* the greatest margins of the reference first */
    size_t n_flips;
    size_t n_decided, n_all; /* flips of the pair: above the noise floor, and all of them */
};

/* Explains the n worst decided flips of a forced pair; with `remedy` attribution and search, else
 * the lens alone. ref: open. The variant is opened again. */
MUST_USE enum err_code where_run(struct where **out, const struct comparison *c,
                                 const struct pair *p, struct lm *ref,
                                 const struct compare_options *o, size_t n, bool remedy,
                                 struct err *e);
void where_free(struct where *w);

/* ---- report_where.c ---------------------------------------------------------------------------
 */

/* remedy-NAME.yaml, remedy-NAME-2.yaml, ... of flip 0, 1, ... */
void where_remedy_name(const struct pair *p, size_t flip, char out[192]);
/* One sentence a flip, each with a line end. */
void where_sentences(const struct comparison *c, const struct pair *p, struct strbuf *out);
void where_json(const struct comparison *c, const struct pair *p, struct strbuf *out); /* value */
void where_markdown(const struct comparison *c, const struct pair *p, struct strbuf *out);
void where_html(const struct comparison *c, const struct pair *p, struct strbuf *out);

/* Tests only: faults in the search. */
enum where_fault {
    WHERE_FAULT_NONE,
    WHERE_FAULT_NO_DROP,   /* what is not needed stays */
    WHERE_FAULT_COST,      /* bytes are not looked at */
    WHERE_FAULT_SAFETY,    /* any lead counts as back */
    WHERE_FAULT_SIGN,      /* effects are taken with the wrong sign */
    WHERE_FAULT_STALE_SWAP /* a weight that was replaced stays */
};
void where_plant(enum where_fault f);

#endif
