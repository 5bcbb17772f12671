/* compare_gates.c: the table of gates, their YAML, and a pair held against them. */
#include "evals/compare_gates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/yaml.h"
#include "evals/compare.h"

#define GATES_VARIANTS_MAX 1000

const struct compare_gate_kind compare_gate_kinds[COMPARE_GATES] = {
    [GATE_MAX_KL] = {"max-kl", "KL", "mean KL, nats", true, 1e9},
    [GATE_MAX_KL_P99] = {"max-kl-p99", "KL 99 %", "KL's 99 % quantile", true, 1e9},
    [GATE_MAX_KL_P999] = {"max-kl-p999", "KL 99.9 %", "KL's 99.9 % quantile", true, 1e9},
    [GATE_MAX_JS] = {"max-js", "Jensen-Shannon", "mean Jensen-Shannon divergence, nats", true, 1},
    [GATE_MAX_PPL_RATIO] = {"max-ppl-ratio", "perplexity ratio", "perplexity over the reference's",
                            true, 1e9},
    [GATE_MIN_AGREEMENT] = {"min-agreement", "agreement",
                            "share of positions with the same best token", false, 1},
    [GATE_MIN_DECIDED] = {"min-decided", "agreement where decided",
                          "the same, of decided positions", false, 1},
    [GATE_MIN_TOP] = {"min-top", "top-5 agreement",
                      "share of the reference's five best tokens among the variant's", false, 1},
    [GATE_MIN_EXACT] = {"min-exact", "exact match", "share of answers with the same tokens", false,
                        1},
    [GATE_MIN_COHERENT] = {"min-coherent", "coherent tokens",
                           "share of the variant's tokens before their first fault", false, 1},
};

const struct compare_bounds compare_bounds_none = {
    {(double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN, (double)NAN,
     (double)NAN, (double)NAN, (double)NAN}};

/* ---- the file ----------------------------------------------------------------------------------
 */

struct text_bounds {
    double *bound[COMPARE_GATES];
};

struct text_variant {
    char *name;
    struct text_bounds *gates;
};

struct text_gates {
    char *why;
    struct text_bounds *gates;
    struct text_variant *variants;
    unsigned variants_count;
};

#define OPTIONAL_PTR     (CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL)
#define BOUND(KEY, GATE) CYAML_FIELD_FLOAT_PTR(KEY, OPTIONAL_PTR, struct text_bounds, bound[GATE])

static const cyaml_schema_field_t bounds_fields[] = {
    BOUND("max_kl", GATE_MAX_KL),
    BOUND("max_kl_p99", GATE_MAX_KL_P99),
    BOUND("max_kl_p999", GATE_MAX_KL_P999),
    BOUND("max_js", GATE_MAX_JS),
    BOUND("max_ppl_ratio", GATE_MAX_PPL_RATIO),
    BOUND("min_agreement", GATE_MIN_AGREEMENT),
    BOUND("min_decided", GATE_MIN_DECIDED),
    BOUND("min_top", GATE_MIN_TOP),
    BOUND("min_exact", GATE_MIN_EXACT),
    BOUND("min_coherent", GATE_MIN_COHERENT),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t variant_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct text_variant, name, 1, 127),
    CYAML_FIELD_MAPPING_PTR("gates", CYAML_FLAG_POINTER, struct text_variant, gates, bounds_fields),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t variant_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_variant, variant_fields),
};

static const cyaml_schema_field_t file_fields[] = {
    CYAML_FIELD_STRING_PTR("why", OPTIONAL_PTR, struct text_gates, why, 1, 1000),
    CYAML_FIELD_MAPPING_PTR("gates", OPTIONAL_PTR, struct text_gates, gates, bounds_fields),
    CYAML_FIELD_SEQUENCE("variants", OPTIONAL_PTR, struct text_gates, variants, &variant_schema, 1,
                         GATES_VARIANTS_MAX),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t file_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct text_gates, file_fields),
};

static enum err_code take_bounds(const struct text_bounds *t, struct compare_bounds *b,
                                 struct err *e)
{
    *b = compare_bounds_none;
    for (int i = 0; t && i < COMPARE_GATES; i++) {
        if (!t->bound[i])
            continue;
        const struct compare_gate_kind *k = &compare_gate_kinds[i];
        b->bound[i] = *t->bound[i];
        if (!(b->bound[i] >= 0 && b->bound[i] <= k->limit))
            return err_set(e, ERR_INPUT, "the bound of %s is %g, expected 0 to %g", k->figure,
                           b->bound[i], k->limit);
    }
    return ERR_OK;
}

static enum err_code take_file(struct compare_gates *g, struct text_gates *t, struct err *e)
{
    enum err_code rc = take_bounds(t->gates, &g->all, e);
    g->of = calloc(t->variants_count + 1, sizeof *g->of);
    if (!g->of)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (unsigned i = 0; rc == ERR_OK && i < t->variants_count; i++) {
        for (size_t k = 0; k < g->n_of; k++)
            if (strcmp(g->of[k].variant, t->variants[i].name) == 0)
                return err_set(e, ERR_INPUT, "variant '%s' is there twice", g->of[k].variant);
        struct compare_gates_of *of = &g->of[g->n_of++];
        of->variant = t->variants[i].name; /* libcyaml's allocator is malloc's own */
        t->variants[i].name = NULL;
        rc = err_wrap(e, take_bounds(t->variants[i].gates, &of->bounds, e), "variant '%s'",
                      of->variant);
    }
    return rc;
}

enum err_code compare_gates_read(struct compare_gates *g, const char *path, struct err *e)
{
    struct text_gates *t = NULL;
    enum err_code rc = yaml_read(path, &file_schema, (void **)&t, e);
    if (rc != ERR_OK)
        return rc;
    rc = err_wrap(e, take_file(g, t, e), "%s", path);
    yaml_release(&file_schema, t);
    if (rc == ERR_OK && !compare_gates_any(g))
        rc = err_set(e, ERR_INPUT, "%s: no gate in it, expected gates or variants", path);
    return rc;
}

void compare_gates_free(struct compare_gates *g)
{
    for (size_t i = 0; i < g->n_of; i++)
        free(g->of[i].variant);
    free(g->of);
    g->of = NULL;
    g->n_of = 0;
}

/* ---- bounds on a pair --------------------------------------------------------------------------
 */

static bool any_bound(const struct compare_bounds *b)
{
    for (int i = 0; i < COMPARE_GATES; i++)
        if (!isnan(b->bound[i]))
            return true;
    return false;
}

bool compare_gates_any(const struct compare_gates *g)
{
    bool any = any_bound(&g->options) || any_bound(&g->all);
    for (size_t i = 0; i < g->n_of; i++)
        any |= any_bound(&g->of[i].bounds);
    return any;
}

static void lay_over(struct compare_bounds *b, const struct compare_bounds *over)
{
    for (int i = 0; i < COMPARE_GATES; i++)
        if (!isnan(over->bound[i]))
            b->bound[i] = over->bound[i];
}

struct compare_bounds compare_gates_for(const struct compare_gates *g, const char *variant)
{
    struct compare_bounds b = g->all;
    for (size_t i = 0; i < g->n_of; i++)
        if (strcmp(g->of[i].variant, variant) == 0)
            lay_over(&b, &g->of[i].bounds);
    lay_over(&b, &g->options);
    return b;
}

static double figure_of(const struct pair *p, enum compare_gate gate)
{
    const struct figures *f = &p->f;
    switch (gate) {
    case GATE_MIN_EXACT:
        return p->exact.value;
    case GATE_MIN_COHERENT:
        return p->has_census ? p->coherent.value : (double)NAN;
    default:
        break;
    }
    if (!p->forced)
        return (double)NAN;
    switch (gate) {
    case GATE_MAX_KL:
        return f->kl.value;
    case GATE_MAX_KL_P99:
        return f->kl_quantile[2].value;
    case GATE_MAX_KL_P999:
        return f->kl_quantile[3].value;
    case GATE_MAX_JS:
        return f->js.value;
    case GATE_MAX_PPL_RATIO:
        return f->var_ppl / f->ref_ppl;
    case GATE_MIN_AGREEMENT:
        return f->agreement.value;
    case GATE_MIN_DECIDED:
        return f->agreement_decided.value;
    case GATE_MIN_TOP:
        return f->top_shared.value;
    default:
        return (double)NAN;
    }
}

bool compare_gates_hold(const struct compare_bounds *b, struct pair *p)
{
    bool failed = false;
    p->n_gates = 0;
    for (int i = 0; i < COMPARE_GATES; i++) {
        if (isnan(b->bound[i]))
            continue;
        struct compare_gate_result *r = &p->gates[p->n_gates++];
        double v = figure_of(p, (enum compare_gate)i);
        *r = (struct compare_gate_result){
            .gate = (enum compare_gate)i, .value = v, .bound = b->bound[i]};
        r->passed = compare_gate_kinds[i].at_most ? v <= r->bound : v >= r->bound;
        failed |= !r->passed;
    }
    return failed;
}

void compare_gates_words(const struct pair *p, const struct compare_gate_result *r, char *text,
                         size_t size)
{
    const struct compare_gate_kind *k = &compare_gate_kinds[r->gate];
    snprintf(text, size, "%s: %s is %.6g, expected at %s %.6g", p->var->name, k->figure, r->value,
             k->at_most ? "most" : "least", r->bound);
}

enum err_code compare_gates_check(const struct compare_gates *g, const struct comparison *c,
                                  struct err *e)
{
    for (size_t i = 0; g && i < g->n_of; i++) {
        bool found = false;
        for (size_t k = 1; k < c->n_variants; k++)
            found |= strcmp(c->variants[k].name, g->of[i].variant) == 0;
        if (!found)
            return err_set(e, ERR_INPUT,
                           "gates: no variant is named '%s', expected the likes of '%s'",
                           g->of[i].variant, c->variants[1].name);
    }
    return ERR_OK;
}
