/* report_junit.c: the comparison as test cases of a build server. A class a variant: does it repeat
 * itself, can it be compared, and then every gate, or, without gates, the tokens. What could not be
 * asked is skipped with the reason, never passed.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/junit.h"
#include "evals/report.h"

#define CASES_MAX (COMPARE_GATES + 3) /* of a pair */

struct cases {
    struct junit_case *list;
    char (*words)[640]; /* messages */
    size_t n;
};

static void add(struct cases *s, const struct pair *p, const char *name, enum junit_result result,
                const char *message)
{
    struct junit_case *k = &s->list[s->n];
    snprintf(s->words[s->n], sizeof s->words[0], "%s", message);
    *k = (struct junit_case){p->var->name, name, result, NULL, NULL};
    k->message = result == JUNIT_PASSED ? NULL : s->words[s->n];
    s->n++;
}

static void add_repeats(struct cases *s, const struct pair *p)
{
    bool asked = p->ref->checked || p->var->checked;
    if (p->verdict == VERDICT_NONDETERMINISTIC)
        add(s, p, "repeats", JUNIT_FAILED, p->evidence);
    else
        add(s, p, "repeats", asked ? JUNIT_PASSED : JUNIT_SKIPPED, "no repeat was run");
}

static void add_tokens(struct cases *s, const struct comparison *c, const struct pair *p)
{
    const char *name = c->exact ? "bits" : "tokens";
    bool same = p->same_ids && (!c->exact || p->same_bits);
    char text[640];
    if (!p->partings) {
        add(s, p, name, JUNIT_SKIPPED, "not comparable");
        return;
    }
    snprintf(text, sizeof text, "%s in %zu of %zu answers: %s (%.500s)",
             p->same_ids ? "other logits" : "other tokens",
             p->same_ids ? p->n_records : p->n_records - p->n_same, p->n_records,
             pair_verdict_name(p->verdict), p->evidence);
    add(s, p, name, same ? JUNIT_PASSED : JUNIT_FAILED, text);
}

static void add_gates(struct cases *s, const struct pair *p)
{
    char text[320];
    for (int i = 0; i < p->n_gates; i++) {
        const struct compare_gate_result *r = &p->gates[i];
        compare_gates_words(p, r, text, sizeof text);
        add(s, p, compare_gate_kinds[r->gate].option,
            !p->partings ? JUNIT_SKIPPED
            : r->passed  ? JUNIT_PASSED
                         : JUNIT_FAILED,
            p->partings ? text : "not comparable");
    }
}

enum err_code report_junit(const struct comparison *c, struct strbuf *out, struct err *e)
{
    size_t most = c->n_variants * CASES_MAX;
    struct cases s = {calloc(most, sizeof *s.list), calloc(most, sizeof *s.words), 0};
    if (!s.list || !s.words) {
        free(s.list);
        free(s.words);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        const struct pair *p = &c->pairs[i];
        bool comparable = p->verdict != VERDICT_NOT_COMPARABLE;
        add_repeats(&s, p);
        add(&s, p, "comparable", comparable ? JUNIT_PASSED : JUNIT_ERROR, p->not_comparable);
        if (c->has_gates)
            add_gates(&s, p);
        else
            add_tokens(&s, c, p);
    }
    junit_write(out, "assay compare", s.list, s.n);
    free(s.list);
    free(s.words);
    return ERR_OK;
}
