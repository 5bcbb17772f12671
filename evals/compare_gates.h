/* compare_gates.h: bounds on the figures of a pair, from options and from a YAML file.
 *
 * The file (docs/formats.md) has bounds for every pair and, over them, bounds for variants by name.
 * A bound from an option stands above both.
 */
#ifndef ASSAY_EVALS_COMPARE_GATES_H
#define ASSAY_EVALS_COMPARE_GATES_H

#include "common/err.h"

enum compare_gate {
    GATE_MAX_KL,
    GATE_MAX_KL_P99,
    GATE_MAX_KL_P999,
    GATE_MAX_JS,
    GATE_MAX_PPL_RATIO,
    GATE_MIN_AGREEMENT,
    GATE_MIN_DECIDED,
    GATE_MIN_TOP,
    GATE_MIN_EXACT,
    GATE_MIN_COHERENT,
    COMPARE_GATES
};

struct compare_gate_kind {
    const char *option; /* "max-kl"; the key of the file has '_' for '-' */
    const char *figure; /* "KL" */
    const char *help;
    bool at_most;
    double limit; /* a bound is from 0 to this */
};
extern const struct compare_gate_kind compare_gate_kinds[COMPARE_GATES];

struct compare_bounds {
    double bound[COMPARE_GATES]; /* NaN: none */
};
extern const struct compare_bounds compare_bounds_none;

struct compare_gates {
    struct compare_bounds options, all;
    struct compare_gates_of {
        char *variant;
        struct compare_bounds bounds;
    } * of;
    size_t n_of;
};

/* What a gate says of a pair. */
struct compare_gate_result {
    enum compare_gate gate;
    double value, bound; /* a value that is not there (NaN) has not passed */
    bool passed;
};

/* Adds the file's bounds to *g, whose options stay. Errors: ERR_INPUT with the file and the line.
 */
MUST_USE enum err_code compare_gates_read(struct compare_gates *g, const char *path, struct err *e);
void compare_gates_free(struct compare_gates *g); /* leaves the options */
/* A bound for a variant that is not compared would hold nothing: ERR_INPUT. g: may be NULL. */
struct comparison;
MUST_USE enum err_code compare_gates_check(const struct compare_gates *g,
                                           const struct comparison *c, struct err *e);
/* The bounds that hold for a variant. */
struct compare_bounds compare_gates_for(const struct compare_gates *g, const char *variant);
bool compare_gates_any(const struct compare_gates *g);

struct pair;
/* Fills p->gates; true when one failed. */
bool compare_gates_hold(const struct compare_bounds *b, struct pair *p);
/* "q4: KL is 0.3, expected at most 0.2" */
void compare_gates_words(const struct pair *p, const struct compare_gate_result *r, char *text,
                         size_t size);

#endif
