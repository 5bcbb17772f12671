/* report_csv.c: the figures as RFC 4180 tables: one line a variant, one line an answer. Six digits;
 * what is not known is an empty field.
 */
#include <math.h>

#include "evals/report.h"

static void put_field(struct strbuf *out, const char *s)
{
    bool quote = strpbrk(s, ",\"\r\n") != NULL;
    if (quote)
        strbuf_putc(out, '"');
    for (; *s; s++) {
        if (*s == '"')
            strbuf_putc(out, '"');
        strbuf_putc(out, *s);
    }
    if (quote)
        strbuf_putc(out, '"');
}

static void put_text(struct strbuf *out, const char *s)
{
    strbuf_putc(out, ',');
    put_field(out, s);
}

static void put_figure(struct strbuf *out, double v)
{
    strbuf_putc(out, ',');
    if (isfinite(v))
        strbuf_printf(out, "%.6g", v);
}

static void put_interval(struct strbuf *out, bool there, struct stats_interval v)
{
    put_figure(out, there ? v.value : (double)NAN);
    put_figure(out, there ? v.lo : (double)NAN);
    put_figure(out, there ? v.hi : (double)NAN);
}

static void put_head(struct strbuf *out, const char *const *plain, size_t n,
                     const char *const *intervals, size_t n_intervals)
{
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "%s%s", i ? "," : "", plain[i]);
    for (size_t i = 0; i < n_intervals; i++)
        strbuf_printf(out, ",%s,%s_lo,%s_hi", intervals[i], intervals[i], intervals[i]);
}

/* Forced figures, in the order of their heads. */
static void put_figures(struct strbuf *out, const struct figures *f)
{
    static const struct figures none = {.n = 0};
    bool there = f != NULL;
    f = there ? f : &none;
    const struct stats_interval all[] = {f->kl,
                                         f->kl_rev,
                                         f->js,
                                         f->kl_quantile[0],
                                         f->kl_quantile[1],
                                         f->kl_quantile[2],
                                         f->kl_quantile[3],
                                         f->agreement,
                                         f->agreement_decided,
                                         f->top_shared,
                                         f->rank,
                                         f->ref_nll,
                                         f->var_nll,
                                         f->ppl_log_ratio};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        put_interval(out, there, all[i]);
    const double counts[] = {(double)f->n,
                             (double)f->n_decided,
                             (double)f->flips_lost,
                             (double)f->flips_gained,
                             (double)f->flips_moved,
                             f->kl_max,
                             f->ref_ppl,
                             f->var_ppl};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        put_figure(out, there ? counts[i] : (double)NAN);
}

static void put_variant(struct strbuf *out, const struct variant *v, const struct pair *p)
{
    const struct stats_interval none = {(double)NAN, (double)NAN, (double)NAN};
    bool there = p && p->partings;
    put_field(out, v->name);
    put_text(out, v->is_trace ? "trace" : "model");
    put_text(out, v->trace->head.arith);
    put_text(out, p ? pair_verdict_name(p->verdict) : "reference");
    put_figure(out, v->is_trace ? (double)NAN : (double)v->bytes);
    put_figure(out, v->bits_per_weight);
    put_figure(out, there ? (double)p->n_records : (double)NAN);
    put_figure(out, there ? (double)p->n_same : (double)NAN);
    const struct stats_interval free_running[] = {there ? p->exact : none, there ? p->common : none,
                                                  there ? p->edits : none, there ? p->length : none,
                                                  there && p->has_census ? p->coherent : none};
    for (size_t i = 0; i < ARRAY_LEN(free_running); i++)
        put_interval(out, true, free_running[i]);
    put_figures(out, there && p->forced ? &p->f : NULL);
    strbuf_puts(out, "\r\n");
}

void report_csv(const struct comparison *c, struct strbuf *out)
{
    static const char *const plain[] = {"variant", "kind",        "arith",
                                        "verdict", "bytes",       "bits_per_weight",
                                        "answers", "answers_same"};
    static const char *const intervals[] = {"exact_match",
                                            "common_prefix",
                                            "edits_per_token",
                                            "length_ratio",
                                            "coherent",
                                            "kl",
                                            "kl_reverse",
                                            "js",
                                            "kl_median",
                                            "kl_p90",
                                            "kl_p99",
                                            "kl_p999",
                                            "agreement",
                                            "agreement_decided",
                                            "top_shared",
                                            "rank",
                                            "ref_log_perplexity",
                                            "var_log_perplexity",
                                            "log_perplexity_ratio"};
    put_head(out, plain, ARRAY_LEN(plain), intervals, ARRAY_LEN(intervals));
    strbuf_puts(out, ",positions,decided,flips_lost,flips_gained,flips_moved,kl_max,ref_perplexity,"
                     "var_perplexity\r\n");
    for (size_t i = 0; i < c->n_variants; i++)
        put_variant(out, &c->variants[i], i ? &c->pairs[i - 1] : NULL);
}

static void put_losses(struct strbuf *out, const struct pair *p, size_t record, size_t *at)
{
    const struct report_losses l = report_losses(p, record, at);
    const double n = (double)l.n;
    put_figure(out, p->forced ? n : (double)NAN);
    put_figure(out, l.kl / n);
    put_figure(out, (double)l.agree / n);
    put_figure(out, l.nll_diff / n);
}

void report_csv_answers(const struct comparison *c, struct strbuf *out)
{
    strbuf_puts(out, "variant,custom_id,turn,same_ids,same_bits,ref_tokens,var_tokens,common,"
                     "ref_token,var_token,ref_margin,var_margin,edits,ref_coherent,var_coherent,"
                     "var_fault,positions,kl,agreement,nll_difference\r\n");
    for (size_t k = 0; k + 1 < c->n_variants; k++) {
        const struct pair *p = &c->pairs[k];
        size_t at = 0;
        for (size_t i = 0; p->partings && i < p->n_records; i++) {
            const struct parting *q = &p->partings[i];
            const struct pair_answer *a = &p->answers[i];
            const struct trace_record *r = &p->ref->trace->records[i];
            put_field(out, p->var->name);
            put_text(out, r->custom_id);
            strbuf_printf(out, ",%d,%d,%d,%zu,%zu,%lld,%d,%d", r->turn, q->same_ids, q->same_bits,
                          r->n, p->var->trace->records[i].n, (long long)q->common, q->ref_token,
                          q->var_token);
            put_figure(out, (double)q->ref_margin);
            put_figure(out, (double)q->var_margin);
            put_figure(out, a->edits < 0 ? (double)NAN : (double)a->edits);
            put_figure(out, p->has_census ? (double)a->ref.coherent : (double)NAN);
            put_figure(out, p->has_census ? (double)a->var.coherent : (double)NAN);
            put_text(out, p->has_census ? a->var.fault : "");
            put_losses(out, p, i, &at);
            strbuf_puts(out, "\r\n");
        }
    }
}
