/* where_private.h: what the parts of the explanation of a flip share. Tests may include it for the
 * search. */
#ifndef ASSAY_EVALS_WHERE_PRIVATE_H
#define ASSAY_EVALS_WHERE_PRIVATE_H

#include "evals/where.h"
#include "infer/lm.h"
#include "quant/plan.h"

bool where_planted(enum where_fault f);

/* ---- where_swap.c: the variant with some of its weights replaced ------------------------------
 */
enum where_source { WHERE_OF_VARIANT, WHERE_OF_REFERENCE, WHERE_OF_PLAN };
struct where_form {
    enum where_source source;
    bool packed; /* OF_PLAN: as the plan's item */
    struct qformat q;
    enum dtype dtype;
};

struct where_result {
    double margin; /* logits: good minus bad */
    double lead;   /* good minus the best other token */
    int32_t best;
};

struct where_swap {
    struct lm *var;
    const struct checkpoint *ref;
    size_t n;                      /* weights of the reference */
    const struct ckpt_weight **of; /* [n] the variant's of that name; NULL: none to replace */
    bool *changed;                 /* [n] its values are others */
    struct where_form *base;       /* [n] what passes are measured from: the variant, or rebase */
    struct where_form *now;        /* [n] what the engine has */
    struct where_form *want;       /* [n] what the next run is to have */
    const int32_t *ids;            /* the tokens up to the flip */
    int64_t n_ids;
    int32_t good, bad;
    int32_t *pages;
    float *states; /* of the base, [n_kept][n_ids][d]; layers 0, stride, 2 stride, ... */
    int stride;
    size_t n_runs;
    const struct compare_options *o; /* for progress and signals; NULL: none */
};

/* One pass over ids of an engine's model. last: gets the state of the last token that enters each
 * layer, [n_layer + 1][d]; may be NULL. keep: gets states of all tokens, every stride layers. */
struct where_pass {
    struct engine *en;
    const int32_t *ids;
    int64_t n_ids;
    const int32_t *pages;
    int from_layer;
    const float *states; /* of all tokens, what enters from_layer */
    float *last, *keep;
    int stride;
};
/* logits: [n_vocab], of the last token. */
MUST_USE enum err_code where_pass(const struct where_pass *p, float *logits, struct err *e);
/* Greedy tokens behind ids, as long as they are the answer's: how many of n are. */
MUST_USE enum err_code where_follow(const struct where_pass *p, const int32_t *answer, int64_t n,
                                    int64_t *common, struct err *e);
/* Pages 0, 1, ... of the engine for so many tokens; heap. ERR_INPUT when they do not fit. */
MUST_USE enum err_code where_pages(struct engine *en, int64_t n_ids, int32_t **pages,
                                   struct err *e);
void where_measure(const float *logits, int64_t n_vocab, int32_t good, int32_t bad,
                   struct where_result *r);

/* changed: names come from the pair's list of tensors. */
MUST_USE enum err_code where_swap_open(struct where_swap *s, struct lm *var,
                                       const struct checkpoint *ref, const struct pair *p,
                                       struct err *e);
void where_swap_close(struct where_swap *s);
/* Takes the tokens up to a flip and runs the variant as it is, which keeps its states. last: as in
 * where_pass. */
MUST_USE enum err_code where_swap_start(struct where_swap *s, const int32_t *ids, int64_t n_ids,
                                        int32_t good, int32_t bad, float *last,
                                        struct where_result *r, struct err *e);
/* `want` is the base's again. */
void where_swap_reset(struct where_swap *s);
/* What `want` says becomes the base, and is run for its states. */
MUST_USE enum err_code where_swap_rebase(struct where_swap *s, const struct plan *plan, float *last,
                                         struct where_result *r, struct err *e);
/* Brings the engine from `now` to `want`. plan: of the reference, for OF_PLAN; else NULL. */
MUST_USE enum err_code where_swap_apply(struct where_swap *s, const struct plan *plan,
                                        struct err *e);
/* apply, then a run from the first layer that is not the base's. */
MUST_USE enum err_code where_swap_run(struct where_swap *s, const struct plan *plan,
                                      struct where_result *r, struct err *e);

/* ---- where_lens.c ------------------------------------------------------------------------------
 */

/* What turns a state into the difference of two logits, in double. */
struct where_lens {
    double *norm;       /* [d] the final norm's factors */
    double *good, *bad; /* [d] rows of the head */
    int64_t d;
    double eps, softcap;
};
MUST_USE enum err_code where_lens_open(struct where_lens *l, const struct checkpoint *c,
                                       int32_t good, int32_t bad, struct err *e);
void where_lens_close(struct where_lens *l);
double where_lens_margin(const struct where_lens *l, const float *state);
/* Fills layers, turn and enter of a flip from the states of both sides, [n_layer + 1][d]. */
void where_lens_layers(struct where_flip *f, const struct where_lens *ref_lens,
                       const struct where_lens *var_lens, const float *ref_states,
                       const float *var_states);

/* ---- where_recipe.c: moves as rules ------------------------------------------------------------
 */
struct where_recipe {
    struct recipe *base;
    struct plan *plan; /* of the base, over the reference */
    char from[160];    /* what the base is, in words */
    const struct checkpoint *ref;
    const bool *changed; /* [n weights] */
};
/* From the variant's manifest, else from the formats of its weights. ERR_INPUT with the reason when
 * neither says what quantize did or would do. */
MUST_USE enum err_code where_recipe_open(struct where_recipe *r, const struct checkpoint *ref,
                                         const struct checkpoint *var, const bool *changed,
                                         struct err *e);
void where_recipe_close(struct where_recipe *r);
bool where_unit_has(const struct where_unit *u, const struct ckpt_weight *w);
/* The recipe with the moves, parsed, and its plan over the reference; *added: bytes more than the
 * base's. why: its first line. ERR_INPUT when no recipe can say it. The caller frees both. */
MUST_USE enum err_code where_recipe_plan(const struct where_recipe *r,
                                         const struct where_unit *units,
                                         const struct where_move *moves, size_t n, const char *why,
                                         struct recipe **recipe, struct plan **plan,
                                         uint64_t *added, struct err *e);

/* ---- where_search.c ---------------------------------------------------------------------------
 */
struct where_problem {
    const struct where_unit *units; /* bytes: a unit's cost at 8 bits */
    size_t n_units;
    double margin, lead; /* of the variant itself */
    double safety;
    /* Bytes of a set of moves; UINT64_MAX: there is no such recipe. */
    enum err_code (*cost)(void *ctx, const struct where_move *m, size_t n, uint64_t *bytes,
                          struct err *e);
    /* The lead of the reference's token with them. */
    enum err_code (*run)(void *ctx, const struct where_move *m, size_t n, double *lead,
                         struct err *e);
    void *ctx;
};
/* The cheapest set found: found, move, n_moves, bytes, lead of r. Pure but for the callbacks. */
MUST_USE enum err_code where_search(const struct where_problem *p, struct where_remedy *r,
                                    struct err *e);

#endif
