/* recipe.h: quantization recipes: ordered rules, read from YAML (recipes/README.md).
 *
 * A rule says which weights it is for (glob, role, layers; what it leaves out matches all) and what
 * becomes of them (bits, group and scale type, or the name of a
 * block float, or keep). Of the rules that match a weight the LAST
 * one decides: general rules come first, exceptions after them. Owns parsing and matching; what a
 * decision means for a checkpoint is plan.h.
 */
#ifndef ASSAY_QUANT_RECIPE_H
#define ASSAY_QUANT_RECIPE_H

#include "ckpt/checkpoint.h"

#define RECIPE_RULES_MAX  256
#define RECIPE_RANGES_MAX 32

/* Layers a..b, both ends in; a negative number counts from the end (-1: the last). */
struct recipe_range {
    int from, to;
};

struct recipe_rule {
    int64_t line;   /* of the text */
    char *match;    /* glob over canonical names; NULL: every name */
    bool exact;     /* match has no wildcard: it names one weight */
    unsigned roles; /* bit r: enum ckpt_role r; 0: every role */
    int n_ranges;   /* 0 and !edges: every weight, with a layer or without */
    struct recipe_range range[RECIPE_RANGES_MAX];
    bool edges; /* `layers: edges`: the first and the last eighth, every third between */
    bool keep;
    struct qformat q; /* when not keep */
    char *why;        /* or NULL */
};

struct recipe {
    char *name; /* base name of the file */
    char *text; /* the very bytes */
    size_t len;
    char sha256[65];
    char *why;
    struct recipe_rule *rules;
    int n_rules;
};

/* What a rule is matched against. */
struct recipe_subject {
    const char *name;
    enum ckpt_role role;
    int layer, n_layer; /* layer -1: outside the layers */
};

MUST_USE enum err_code recipe_parse(struct recipe **r, const char *text, size_t len,
                                    const char *name, struct err *e);
MUST_USE enum err_code recipe_read(struct recipe **r, const char *path, struct err *e);
void recipe_free(struct recipe *r);

bool recipe_rule_matches(const struct recipe_rule *rule, const struct recipe_subject *s);
/* Index of the last rule that matches, or -1. */
int recipe_decide(const struct recipe *r, const struct recipe_subject *s);
/* "recipe.yaml: rule 2 (line 9)" into buf, for errors and lists. */
const char *recipe_rule_place(const struct recipe *r, int rule, char buf[160]);

#endif
