/* report_text.c: what all report writers share, JSON, Markdown and the speed file. */
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "evals/report.h"

void report_number(struct strbuf *out, double v, int digits)
{
    if (isfinite(v))
        strbuf_printf(out, "%.*g", digits, v);
    else
        strbuf_puts(out, "n/a");
}

void report_sentence(const struct pair *p, struct strbuf *out)
{
    strbuf_printf(out, "%s: ", p->var->name);
    if (p->verdict == VERDICT_NOT_COMPARABLE) {
        strbuf_printf(out, "NOT COMPARABLE, %s", p->not_comparable);
        return;
    }
    strbuf_printf(out, "%s (%s)", pair_verdict_name(p->verdict), p->evidence);
    if (!p->partings)
        return;
    strbuf_puts(out, ": ");
    if (p->same_ids)
        strbuf_printf(out, "the same tokens in all %zu answers, %s", p->n_records,
                      p->same_bits ? "the same bits" : "other logits");
    else
        strbuf_printf(out, "other tokens in %zu of %zu answers", p->n_records - p->n_same,
                      p->n_records);
    if (!p->forced)
        return;
    strbuf_puts(out, "; KL ");
    report_number(out, p->f.kl.value, 4);
    strbuf_puts(out, " nats, top-1 agreement ");
    report_number(out, p->f.agreement.value * 100, 4);
    strbuf_puts(out, " % (");
    report_number(out, p->f.agreement_decided.value * 100, 4);
    strbuf_puts(out, " % where decided), perplexity x");
    report_number(out, p->f.var_ppl / p->f.ref_ppl, 5);
}

struct worst_key {
    double share; /* of the reference's answer that is common */
    size_t record;
};

static int by_share(const void *a, const void *b)
{
    const struct worst_key *x = a, *y = b;
    if (x->share != y->share)
        return x->share < y->share ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

size_t *report_worst(const struct pair *p)
{
    struct worst_key *keys = calloc(p->n_records + 1, sizeof *keys);
    size_t *order = calloc(p->n_records + 1, sizeof *order);
    for (size_t i = 0; keys && order && i < p->n_records; i++) {
        const struct parting *q = &p->partings[i];
        size_t n = p->ref->trace->records[i].n;
        keys[i] = (struct worst_key){q->same_ids ? 2 : (double)q->common / (double)(n + 1), i};
    }
    if (keys && order) {
        qsort(keys, p->n_records, sizeof *keys, by_share);
        for (size_t i = 0; i < p->n_records; i++)
            order[i] = keys[i].record;
    } else {
        free(order);
        order = NULL;
    }
    free(keys);
    return order;
}

/* ---- JSON -------------------------------------------------------------------------------------
 */

static void put_key(struct strbuf *out, const char *key)
{
    strbuf_printf(out, ",\"%s\":", key);
}

static void put_string(struct strbuf *out, const char *key, const char *value)
{
    put_key(out, key);
    json_put_string(out, value, strlen(value));
}

void report_json_figure(struct strbuf *out, const char *key, double v)
{
    put_key(out, key);
    if (isfinite(v))
        strbuf_printf(out, "%.6g", v);
    else
        strbuf_puts(out, "null");
}

static void put_interval(struct strbuf *out, const char *key, struct stats_interval v)
{
    put_key(out, key);
    strbuf_putc(out, '{');
    const double x[] = {v.value, v.lo, v.hi};
    static const char *const names[] = {"value", "lo", "hi"};
    for (size_t i = 0; i < ARRAY_LEN(x); i++) {
        strbuf_printf(out, "%s\"%s\":", i ? "," : "", names[i]);
        if (isfinite(x[i]))
            strbuf_printf(out, "%.6g", x[i]);
        else
            strbuf_puts(out, "null");
    }
    strbuf_putc(out, '}');
}

/* What forced positions come to; the same keys for a pair and for the noise floor. */
static void put_figures(struct strbuf *out, const struct figures *f)
{
    strbuf_printf(out, "{\"positions\":%zu,\"decided\":%zu,\"not_finite\":%zu", f->n, f->n_decided,
                  f->n_not_finite);
    put_interval(out, "kl", f->kl);
    put_interval(out, "kl_reverse", f->kl_rev);
    put_interval(out, "js", f->js);
    put_interval(out, "kl_median", f->kl_quantile[0]);
    put_interval(out, "kl_p90", f->kl_quantile[1]);
    put_interval(out, "kl_p99", f->kl_quantile[2]);
    put_interval(out, "kl_p999", f->kl_quantile[3]);
    report_json_figure(out, "kl_max", f->kl_max);
    put_interval(out, "agreement", f->agreement);
    put_interval(out, "agreement_decided", f->agreement_decided);
    put_interval(out, "top_shared", f->top_shared);
    put_interval(out, "rank", f->rank);
    strbuf_printf(out, ",\"flips\":{\"lost\":%zu,\"gained\":%zu,\"moved\":%zu}", f->flips_lost,
                  f->flips_gained, f->flips_moved);
    report_json_figure(out, "ref_perplexity", f->ref_ppl);
    report_json_figure(out, "var_perplexity", f->var_ppl);
    put_interval(out, "ref_log_perplexity", f->ref_nll);
    put_interval(out, "var_log_perplexity", f->var_nll);
    put_interval(out, "log_perplexity_ratio", f->ppl_log_ratio);
    strbuf_puts(out, ",\"kl_by_position\":[");
    for (int i = 0; i < FIGURES_BINS; i++) {
        strbuf_printf(out, "%s{\"from\":%d", i ? "," : "", figures_bin[i]);
        put_interval(out, "kl", f->kl_bin[i]);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}");
}

static void put_census(struct strbuf *out, const char *key, const struct script_census_answer *a)
{
    put_key(out, key);
    strbuf_printf(out, "{\"coherent\":%lld,\"fault\":\"%s\",\"loop\":%lld,\"stray\":[",
                  (long long)a->coherent, a->fault, (long long)a->loop);
    bool first = true;
    for (int i = 0; i < SCRIPT_CENSUS_SCRIPTS; i++) {
        if (!(a->stray >> i & 1))
            continue;
        strbuf_printf(out, "%s\"%s\"", first ? "" : ",", script_census_name(i));
        first = false;
    }
    strbuf_puts(out, "]}");
}

/* What was forced, as 16 digits: the prompt with its earlier turns, then the reference's tokens.
 * Two reports can be held against each other answer by answer where this is equal. */
static void put_text_hash(struct strbuf *out, const char *prompt, const struct position *p,
                          size_t n)
{
    uint64_t hash = 0;
    uint64_t i = 0;
    for (; prompt[i]; i++)
        hash += hash_row_word(i, (unsigned char)prompt[i]);
    for (size_t k = 0; k < n; k++)
        hash += hash_row_word(i + k, (uint32_t)p[k].token);
    strbuf_printf(out, ",\"forced\":{\"text\":\"%016llx\"", (unsigned long long)hash);
}

struct report_losses report_losses(const struct pair *p, size_t record, size_t *at)
{
    struct report_losses l = {0};
    for (; *at < p->n_positions && (size_t)p->positions[*at].record == record; ++*at) {
        const struct position *q = &p->positions[*at];
        if (!q->finite)
            continue;
        l.n++;
        l.agree += q->ref_best == q->var_best;
        l.kl += q->kl;
        l.nll_diff += q->var_nll - q->ref_nll;
    }
    return l;
}

/* 9 digits: what is subtracted later must not be rounding. */
static void put_losses(struct strbuf *out, const struct pair *p, size_t record, size_t *at)
{
    const size_t first = *at;
    const struct report_losses l = report_losses(p, record, at);
    put_text_hash(out, p->ref->trace->records[record].prompt, p->positions + first, *at - first);
    strbuf_printf(out, ",\"positions\":%zu,\"agree\":%zu,\"kl\":%.9g,\"nll_diff\":%.9g}", l.n,
                  l.agree, l.kl, l.nll_diff);
}

static void put_parting(struct strbuf *out, const struct pair *p, size_t i, size_t *at)
{
    const struct parting *q = &p->partings[i];
    const struct trace_record *r = &p->ref->trace->records[i];
    strbuf_puts(out, "{\"custom_id\":");
    json_put_string(out, r->custom_id, strlen(r->custom_id));
    strbuf_printf(out, ",\"turn\":%d,\"same_ids\":%s,\"same_bits\":%s,\"common\":%lld", r->turn,
                  q->same_ids ? "true" : "false", q->same_bits ? "true" : "false",
                  (long long)q->common);
    strbuf_printf(out, ",\"ref_tokens\":%zu,\"var_tokens\":%zu,\"ref_token\":%d,\"var_token\":%d",
                  r->n, p->var->trace->records[i].n, q->ref_token, q->var_token);
    report_json_figure(out, "ref_margin", (double)q->ref_margin);
    report_json_figure(out, "var_margin", (double)q->var_margin);
    strbuf_printf(out, ",\"edits\":%lld", (long long)p->answers[i].edits);
    if (p->has_census) {
        put_census(out, "ref_text", &p->answers[i].ref);
        put_census(out, "var_text", &p->answers[i].var);
    }
    if (p->forced)
        put_losses(out, p, i, at);
    strbuf_putc(out, '}');
}

static void put_gates(struct strbuf *out, const struct pair *p)
{
    for (int i = 0; i < p->n_gates; i++) {
        const struct compare_gate_result *r = &p->gates[i];
        strbuf_printf(out, "%s{\"gate\":\"%s\"", i ? "," : ",\"gates\":[",
                      compare_gate_kinds[r->gate].option);
        report_json_figure(out, "value", r->value);
        report_json_figure(out, "bound", r->bound);
        strbuf_printf(out, ",\"passed\":%s}%s", r->passed ? "true" : "false",
                      i + 1 == p->n_gates ? "]" : "");
    }
}

static void put_pair(struct strbuf *out, const struct comparison *c, const struct pair *p)
{
    strbuf_puts(out, "{\"variant\":");
    json_put_string(out, p->var->name, strlen(p->var->name));
    put_string(out, "verdict", pair_verdict_name(p->verdict));
    put_string(out, "evidence", p->evidence);
    put_string(out, "unchecked", p->unchecked);
    if (p->not_comparable[0])
        put_string(out, "not_comparable", p->not_comparable);
    put_gates(out, p);
    if (!p->partings) {
        strbuf_putc(out, '}');
        return;
    }
    strbuf_printf(out, ",\"same_ids\":%s,\"same_bits\":%s,\"answers\":%zu,\"answers_same\":%zu",
                  p->same_ids ? "true" : "false", p->same_bits ? "true" : "false", p->n_records,
                  p->n_same);
    put_interval(out, "exact_match", p->exact);
    put_interval(out, "common_prefix", p->common);
    put_interval(out, "edits_per_token", p->edits);
    put_interval(out, "length_ratio", p->length);
    put_interval(out, "coherent", p->coherent);
    if (p->forced) {
        put_key(out, "forced");
        put_figures(out, &p->f);
    }
    static const char *const roles[] = {"answer", "user", "template"};
    for (int i = ROLE_OF_USER; p->has_roles && i < ROLE_OF_KINDS; i++) {
        strbuf_printf(out, "%s\"%s\":{\"positions\":%zu", i == ROLE_OF_USER ? ",\"roles\":{" : ",",
                      roles[i], p->by_role[i].n);
        put_interval(out, "kl", p->by_role[i].kl);
        put_interval(out, "agreement", p->by_role[i].agreement);
        strbuf_puts(out, i + 1 == ROLE_OF_KINDS ? "}}" : "}");
    }
    if (p->where) {
        put_key(out, "where");
        where_json(c, p, out);
    }
    strbuf_puts(out, ",\"weights\":[");
    for (size_t i = 0; i < p->n_weights; i++) {
        const struct weight_error *w = &p->weights[i];
        strbuf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        json_put_string(out, w->name, strlen(w->name));
        put_string(out, "role", ckpt_role_name(w->role));
        strbuf_printf(out, ",\"layer\":%d,\"bytes\":%llu", w->layer, (unsigned long long)w->bytes);
        report_json_figure(out, "relative_rms", w->relative_rms);
        report_json_figure(out, "sqnr", w->sqnr);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "],\"per_answer\":[");
    size_t at = 0;
    for (size_t i = 0; i < p->n_records; i++) {
        if (i)
            strbuf_putc(out, ',');
        put_parting(out, p, i, &at);
    }
    strbuf_puts(out, "]}");
}

void report_json(const struct comparison *c, struct strbuf *out)
{
    strbuf_printf(out, "{\"assay_report\":%d", REPORT_VERSION);
    put_string(out, "tool", "assay " ASSAY_VERSION);
    put_string(out, "verdict", compare_verdict_name(c->verdict));
    if (c->has_gates)
        put_string(out, "failed_gate", c->gate);
    put_string(out, "reference", c->variants[0].name);
    put_string(out, "arith", c->arith);
    put_string(out, "device", c->device);
    put_string(out, "prompts", c->variants[0].trace->head.prompts);
    put_string(out, "tokenizer", c->variants[0].trace->head.tokenizer);
    put_string(out, "template", c->variants[0].trace->head.chat_template);
    report_json_figure(out, "decided_margin", (double)c->decided);
    if (c->has_floor) {
        put_string(out, "noise_floor_path", c->floor_path);
        put_key(out, "noise_floor");
        put_figures(out, &c->floor);
    }
    strbuf_puts(out, ",\"variants\":[");
    for (size_t i = 0; i < c->n_variants; i++) {
        const struct variant *v = &c->variants[i];
        strbuf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        json_put_string(out, v->name, strlen(v->name));
        put_string(out, "kind", v->is_trace ? "trace" : "model");
        put_string(out, "arith", v->trace->head.arith);
        put_string(out, "fingerprint", v->trace->head.fingerprint);
        if (!v->is_trace)
            strbuf_printf(out, ",\"bytes\":%llu", (unsigned long long)v->bytes);
        report_json_figure(out, "bits_per_weight", v->bits_per_weight);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "],\"pairs\":[");
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        if (i)
            strbuf_putc(out, ',');
        put_pair(out, c, &c->pairs[i]);
    }
    strbuf_puts(out, "]}\n");
}

void report_speed(const struct comparison *c, struct strbuf *out)
{
    strbuf_puts(out, "{\"variants\":[");
    for (size_t i = 0; i < c->n_variants; i++) {
        const struct variant *v = &c->variants[i];
        strbuf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        json_put_string(out, v->name, strlen(v->name));
        if (!v->is_trace) {
            strbuf_printf(out, ",\"prompt_tokens\":%llu,\"new_tokens\":%llu",
                          (unsigned long long)v->run.prompt_tokens,
                          (unsigned long long)v->run.new_tokens);
            report_json_figure(out, "seconds", v->run_seconds);
            report_json_figure(out, "new_tokens_per_second",
                               (double)v->run.new_tokens / v->run_seconds);
        }
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]}\n");
}

/* ---- Markdown ----------------------------------------------------------------------------------
 */

static void put_mega(struct strbuf *out, const struct variant *v)
{
    if (v->is_trace)
        strbuf_puts(out, "n/a");
    else
        strbuf_printf(out, "%.1f", (double)v->bytes * 1e-6);
}

/* The reference against itself: what the figures above may be without any loss. */
static void put_floor(struct strbuf *out, const struct comparison *c)
{
    if (!c->has_floor)
        return;
    strbuf_printf(out, "\nNoise floor, %s of the reference itself: KL ", c->floor_path);
    report_number(out, c->floor.kl.value, 3);
    strbuf_puts(out, ", agreement ");
    report_number(out, c->floor.agreement.value * 100, 4);
    strbuf_puts(out, " %. A position is decided above a margin of ");
    report_number(out, (double)c->decided, 3);
    strbuf_puts(out, ".\n");
}

void report_markdown(const struct comparison *c, struct strbuf *out)
{
    strbuf_printf(out, "# Comparison: %s\n\n", compare_verdict_name(c->verdict));
    strbuf_printf(out, "Reference %s, arithmetic %s, %zu answers.\n\n", c->variants[0].name,
                  c->variants[0].trace->head.arith, c->variants[0].trace->n);
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        strbuf_puts(out, "- ");
        report_sentence(&c->pairs[i], out);
        strbuf_putc(out, '\n');
    }
    strbuf_puts(out, "\n| variant | MB | bits/weight | same answers | KL | 95 % | agreement % | "
                     "decided % | perplexity |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < c->n_variants; i++) {
        const struct variant *v = &c->variants[i];
        const struct pair *p = i ? &c->pairs[i - 1] : NULL;
        strbuf_printf(out, "| %s | ", v->name);
        put_mega(out, v);
        strbuf_puts(out, " | ");
        report_number(out, v->bits_per_weight, 4);
        if (!p) {
            strbuf_puts(out, " | (reference) | | | | | |\n");
            continue;
        }
        if (!p->partings) {
            strbuf_puts(out, " | NOT COMPARABLE | | | | | |\n");
            continue;
        }
        strbuf_printf(out, " | %zu of %zu | ", p->n_same, p->n_records);
        const double figures[] = {p->f.kl.value, p->f.kl.lo, p->f.kl.hi};
        report_number(out, p->forced ? figures[0] : NAN, 4);
        strbuf_puts(out, " | ");
        report_number(out, p->forced ? figures[1] : NAN, 3);
        strbuf_puts(out, " .. ");
        report_number(out, p->forced ? figures[2] : NAN, 3);
        strbuf_puts(out, " | ");
        report_number(out, p->forced ? p->f.agreement.value * 100 : NAN, 4);
        strbuf_puts(out, " | ");
        report_number(out, p->forced ? p->f.agreement_decided.value * 100 : NAN, 4);
        strbuf_puts(out, " | ");
        report_number(out, p->forced ? p->f.var_ppl : NAN, 5);
        strbuf_puts(out, " |\n");
    }
    put_floor(out, c);
    for (size_t i = 0; i + 1 < c->n_variants; i++)
        where_markdown(c, &c->pairs[i], out);
}
