/* judge.c: comparable or not, and the decision between nondeterminism, path and quantization. */
#include "evals/judge.h"

#include <math.h>
#include <stdio.h>

/* ---- can the two be compared? -------------------------------------------------------------------
 */

static bool other_text(const char *what, const char *a, const char *b, char *why, size_t size)
{
    if (strcmp(a, b) == 0)
        return false;
    snprintf(why, size, "%s differs: %.16s... and %.16s...", what, a, b);
    return true;
}

static bool other_number(const char *what, double a, double b, char *why, size_t size)
{
    /* Containers round: a GGUF holds f32. */
    if (a == b || fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b)))
        return false;
    snprintf(why, size, "%s differs: %g and %g", what, a, b);
    return true;
}

void judge_fields(const struct checkpoint *ref, const struct checkpoint *var, char *why,
                  size_t size)
{
    const struct hparams *a = &ref->hp, *b = &var->hp;
    const double sliding_a = hparams_rope(a, true)->theta, sliding_b = hparams_rope(b, true)->theta;
    const struct {
        const char *name;
        double a, b;
    } fields[] = {{"the number of layers", a->n_layer, b->n_layer},
                  {"the width", (double)a->d_model, (double)b->d_model},
                  {"the number of heads", a->n_head, b->n_head},
                  {"the number of KV heads", a->n_kv, b->n_kv},
                  {"the head's width", a->head_dim, b->head_dim},
                  {"the KV heads of full layers", a->n_kv_full, b->n_kv_full},
                  {"the head's width in full layers", a->head_dim_full, b->head_dim_full},
                  {"the number of layers that share keys", a->n_kv_shared, b->n_kv_shared},
                  {"the width of layer inputs", (double)a->d_input, (double)b->d_input},
                  {"the vocabulary", (double)a->n_vocab, (double)b->n_vocab},
                  {"the number of experts", a->n_expert, b->n_expert},
                  {"the experts of a token", a->n_expert_used, b->n_expert_used},
                  {"rope base", a->rope.theta, b->rope.theta},
                  {"rope scaling", (double)a->rope.kind, (double)b->rope.kind},
                  {"rope factor", a->rope.factor, b->rope.factor},
                  {"rope base of sliding layers", sliding_a, sliding_b},
                  {"the window", a->window, b->window},
                  {"the norm's epsilon", a->rms_eps, b->rms_eps},
                  {"the softcap of attention", (double)a->attn_softcap, (double)b->attn_softcap},
                  {"the softcap of logits", (double)a->logit_softcap, (double)b->logit_softcap},
                  {"bos", (double)a->bos, (double)b->bos}};
    why[0] = 0;
    if (strcmp(a->family, b->family) != 0) {
        snprintf(why, size, "the family differs: %s and %s", a->family, b->family);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (other_number(fields[i].name, fields[i].a, fields[i].b, why, size))
            return;
}

/* One prompt is the other behind one more token: a bos of one side only. */
static bool behind_one(const struct trace_record *x, const struct trace_record *y)
{
    return x->n_prompt == y->n_prompt + 1 && x->prompt_ids && y->prompt_ids &&
           memcmp(x->prompt_ids + 1, y->prompt_ids, (size_t)y->n_prompt * sizeof *y->prompt_ids) ==
               0;
}

void judge_traces(const struct trace *a, const struct trace *b, char *why, size_t size)
{
    why[0] = 0;
    if (other_text("the tokenizer", a->head.tokenizer, b->head.tokenizer, why, size) ||
        other_text("the chat template", a->head.chat_template, b->head.chat_template, why, size) ||
        other_text("the prompt file", a->head.prompts, b->head.prompts, why, size))
        return;
    if (a->n != b->n) {
        snprintf(why, size, "%zu answers and %zu", a->n, b->n);
        return;
    }
    for (size_t i = 0; i < a->n; i++) {
        const struct trace_record *x = &a->records[i], *y = &b->records[i];
        if (strcmp(x->custom_id, y->custom_id) != 0 || x->turn != y->turn) {
            snprintf(why, size, "answer %zu is '%.64s' turn %d and '%.64s' turn %d", i + 1,
                     x->custom_id, x->turn, y->custom_id, y->turn);
            return;
        }
        /* Later turns of a conversation hold each side's own answers. */
        if (x->turn == 0 && strcmp(x->prompt, y->prompt) != 0) {
            bool bos = behind_one(x, y) || behind_one(y, x);
            snprintf(why, size,
                     bos ? "bos differs: prompt '%.64s' has one more token in front on one side"
                         : "the tokens of prompt '%.64s' differ",
                     x->custom_id);
            return;
        }
    }
}

/* ---- which fault is it?
 * -------------------------------------------------------------------------- */

static const struct self_cell *red_cell(const struct variant *v, bool repeats)
{
    for (int i = 0; v->checked && i < v->checks.n_cells; i++) {
        const struct self_cell *c = &v->checks.cell[i];
        bool is_repeat = strcmp(c->name, "repeat") == 0 || strcmp(c->name, "load") == 0;
        if (c->state == SELF_DIFFERS && is_repeat == repeats)
            return c;
    }
    return NULL;
}

/* The first side of the pair that has such a red cell. */
static const struct variant *red_side(const struct pair *p, bool repeats)
{
    return red_cell(p->ref, repeats) ? p->ref : red_cell(p->var, repeats) ? p->var : NULL;
}

static void say_cell(struct pair *p, const struct variant *v, const char *meaning)
{
    const struct self_cell *c = red_cell(v, p->verdict == VERDICT_NONDETERMINISTIC);
    char where[64] = "";
    if (c->at.narrowed && c->at.layer < 0)
        snprintf(where, sizeof where, "; first in %s", c->at.op);
    else if (c->at.narrowed)
        snprintf(where, sizeof where, "; first in layer %d, %s", c->at.layer, c->at.op);
    snprintf(p->evidence, sizeof p->evidence, "%s %s: %s (%s), '%s'%s", v->name, meaning, c->name,
             c->way, c->at.custom_id, where);
}

/* Equal in value, tensor by tensor, all of them. */
static bool same_weights(const struct pair *p)
{
    for (size_t i = 0; i < p->n_weights; i++)
        if (p->weights[i].relative_rms != 0)
            return false;
    return p->n_weights > 0 && p->whole_weights;
}

/* The first parting at the greatest margin of the reference: what cannot be called a toss-up. */
static void say_quantization(const struct comparison *c, struct pair *p)
{
    const struct weight_error *worst = NULL;
    size_t at = p->n_records;
    for (size_t i = 0; i < p->n_weights; i++)
        if (!worst || p->weights[i].relative_rms > worst->relative_rms)
            worst = &p->weights[i];
    for (size_t i = 0; i < p->n_records; i++) {
        const struct parting *q = &p->partings[i];
        bool greater = at == p->n_records || q->ref_margin > p->partings[at].ref_margin;
        if (!q->same_ids && isfinite(q->ref_margin) && greater)
            at = i;
    }
    size_t used = 0;
    if (at < p->n_records)
        used = (size_t)snprintf(
            p->evidence, sizeof p->evidence,
            "greatest margin overturned %.3g, %s the floor of %.3g; ",
            (double)p->partings[at].ref_margin,
            p->partings[at].ref_margin > c->decided ? "above" : "below: undecided, within",
            (double)c->decided);
    snprintf(p->evidence + used, sizeof p->evidence - used,
             "the weights differ, most in %.200s (relative RMS %.3g), and every path agrees",
             worst ? worst->name : "?", worst ? worst->relative_rms : (double)NAN);
}

static void say_unchecked(struct pair *p)
{
    const struct variant *sides[] = {p->ref, p->var};
    size_t used = 0;
    p->unchecked[0] = 0;
    for (size_t s = 0; s < ARRAY_LEN(sides); s++) {
        const struct variant *v = sides[s];
        if (!v->checked) {
            used += (size_t)snprintf(p->unchecked + used, sizeof p->unchecked - used,
                                     "%s%s: repeats and paths", used ? "; " : "", v->name);
            used = MIN2(used, sizeof p->unchecked - 1);
        }
        for (int i = 0; v->checked && i < v->checks.n_cells; i++) {
            if (v->checks.cell[i].state != SELF_NOT_RUN)
                continue;
            used += (size_t)snprintf(p->unchecked + used, sizeof p->unchecked - used,
                                     "%s%s: %s, %s", used ? "; " : "", v->name,
                                     v->checks.cell[i].name, v->checks.cell[i].why);
            used = MIN2(used, sizeof p->unchecked - 1);
        }
    }
}

/* What differs where the two were computed in other arithmetics; false: they were not. */
static bool say_path(struct pair *p, const char *differs, const char *more)
{
    const char *a = p->ref->trace->head.arith, *b = p->var->trace->head.arith;
    if (strcmp(a, b) == 0)
        return false;
    snprintf(p->evidence, sizeof p->evidence, "%s: another numeric path, %s and %s%s", differs, a,
             b, more);
    return true;
}

void judge_pair(const struct comparison *c, struct pair *p)
{
    const struct variant *side;
    p->evidence[0] = 0;
    say_unchecked(p);
    if ((side = red_side(p, true)) != NULL) {
        p->verdict = VERDICT_NONDETERMINISTIC;
        say_cell(p, side, "does not repeat itself");
        return;
    }
    if (p->not_comparable[0]) {
        p->verdict = p->forced_compare ? VERDICT_OTHER_MODEL : VERDICT_NOT_COMPARABLE;
        snprintf(p->evidence, sizeof p->evidence, "%s", p->not_comparable);
        return;
    }
    if (p->same_ids) {
        p->verdict = VERDICT_SAME;
        if (p->same_bits || !say_path(p, "other logits", ""))
            snprintf(p->evidence, sizeof p->evidence, "%s",
                     p->same_bits ? "same bits" : "other logits");
    } else if ((side = red_side(p, false)) != NULL) {
        p->verdict = VERDICT_PATH;
        say_cell(p, side, "depends on its path");
    } else if (strcmp(p->ref->trace->head.fingerprint, p->var->trace->head.fingerprint) == 0) {
        /* Whatever decides an answer is equal, but perhaps the settings of requests. */
        const char *a = p->ref->trace->head.settings, *b = p->var->trace->head.settings;
        bool here = p->ref->checked && p->var->checked, known = a[0] && b[0];
        p->verdict = here ? VERDICT_PATH : VERDICT_UNKNOWN;
        snprintf(p->evidence, sizeof p->evidence, "equal fingerprints, %s",
                 here     ? "both repeat themselves, and the tokens differ"
                 : !known ? "other tokens: the settings of the requests differ, or a run that is "
                            "not here does not repeat itself"
                 : strcmp(a, b) != 0
                     ? "other tokens: the settings that requests start from differ"
                     : "equal settings, other tokens: a run that is not here took another path "
                       "or does not repeat itself");
    } else if (same_weights(p)) {
        p->verdict = VERDICT_PATH;
        snprintf(p->evidence, sizeof p->evidence,
                 "all %zu tensors have equal values, and the tokens differ", p->n_weights);
    } else if (p->n_weights) {
        p->verdict = VERDICT_QUANTIZATION;
        say_quantization(c, p);
    } else {
        p->verdict = VERDICT_UNKNOWN;
        if (!say_path(p, "other tokens", "; whether the weights differ too is not known"))
            snprintf(p->evidence, sizeof p->evidence,
                     "other tokens; without both models nothing can be run to say why");
    }
}
