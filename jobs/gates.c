/* gates.c: the five gates. */
#include "jobs/gates.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "jobs/paired.h"

/* A gate is as bad as the worst thing said about it; the words of the worst stand first. */
static void say(struct judgement *j, enum verdict v, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void say(struct judgement *j, enum verdict v, const char *fmt, ...)
{
    char words[sizeof j->words], old[sizeof j->words];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    snprintf(old, sizeof old, "%s", j->words);
    bool first = v > j->verdict || !old[0];
    snprintf(j->words, sizeof j->words, "%.199s%s%.197s", first ? words : old, old[0] ? "; " : "",
             !old[0] ? ""
             : first ? old
                     : words);
    if (v > j->verdict)
        j->verdict = v;
}

/* ---- repeat and invariance ---------------------------------------------------------------------
 */

void gate_repeat(const struct hash_run *runs, size_t n, struct judgement *j)
{
    size_t other = 0, distinct = 0;
    j->asked = true;
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strcmp(runs[i].hash, runs[k].hash) == 0;
        distinct += !seen;
        if (!other && strcmp(runs[i].hash, runs[0].hash) != 0)
            other = i;
    }
    if (n < 2)
        say(j, VERDICT_BROKEN, "%zu runs, expected 2 or more", n);
    else if (distinct == 1)
        say(j, VERDICT_PASS, "%zu runs, one output %.12s", n, runs[0].hash);
    else
        say(j, VERDICT_NONDETERMINISTIC, "%zu runs gave %zu outputs: %s %.12s, %s %.12s", n,
            distinct, runs[0].label, runs[0].hash, runs[other].label, runs[other].hash);
}

void gate_invariance(const struct hash_run *first, const struct hash_run *paths, size_t n,
                     struct judgement *j)
{
    j->asked = true;
    for (size_t i = 0; i < n; i++)
        if (strcmp(paths[i].hash, first->hash) != 0)
            say(j, VERDICT_NONDETERMINISTIC, "%s gave %.12s, %s %.12s", paths[i].label,
                paths[i].hash, first->label, first->hash);
    if (n == 0)
        say(j, VERDICT_BROKEN, "no other path was run");
    else if (!j->words[0])
        say(j, VERDICT_PASS, "%zu other paths, the same output", n);
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static enum err_code read_partings(struct tokens_diff *d, const json_t *pair, struct err *e)
{
    json_t *answers = NULL;
    enum err_code rc = json_get_array(pair, "per_answer", JSON_REQUIRED, &answers, e);
    bool found = false;
    for (size_t i = 0; rc == ERR_OK && i < json_array_size(answers); i++) {
        const json_t *a = json_array_get(answers, i);
        bool same = false;
        const char *id = NULL;
        int64_t common = 0;
        rc = json_get_bool(a, "same_ids", JSON_REQUIRED, &same, e);
        if (rc == ERR_OK)
            rc = json_get_string(a, "custom_id", JSON_REQUIRED, &id, e);
        if (rc == ERR_OK)
            rc = json_get_int(a, "common", JSON_REQUIRED, 0, INT64_MAX, &common, e);
        if (rc != ERR_OK || same || (found && common >= d->token))
            continue;
        found = true;
        d->token = common;
        snprintf(d->id, sizeof d->id, "%.120s", id);
        rc = json_get_double(a, "ref_margin", JSON_OPTIONAL, -1e30, 1e30, &d->base_margin, e);
        if (rc == ERR_OK)
            rc = json_get_double(a, "var_margin", JSON_OPTIONAL, -1e30, 1e30, &d->now_margin, e);
    }
    return rc;
}

enum err_code tokens_diff_read(struct tokens_diff *d, const char *report, struct err *e)
{
    json_t *root = NULL, *pairs = NULL;
    *d = (struct tokens_diff){.base_margin = NAN, .now_margin = NAN};
    enum err_code rc = json_read(report, &root, e);
    if (rc != ERR_OK)
        return rc;
    rc = json_get_array(root, "pairs", JSON_REQUIRED, &pairs, e);
    if (rc == ERR_OK && json_array_size(pairs) != 1)
        rc = err_set(e, ERR_INPUT, "%zu pairs, expected 1", json_array_size(pairs));
    const json_t *pair = json_array_get(pairs, 0);
    if (rc == ERR_OK)
        rc = json_get_bool(pair, "same_bits", JSON_REQUIRED, &d->same_bits, e);
    if (rc == ERR_OK)
        rc = json_get_bool(pair, "same_ids", JSON_REQUIRED, &d->same_ids, e);
    if (rc == ERR_OK)
        rc = json_get_int(pair, "answers", JSON_REQUIRED, 0, INT64_MAX, &d->answers, e);
    if (rc == ERR_OK)
        rc = json_get_int(pair, "answers_same", JSON_REQUIRED, 0, INT64_MAX, &d->answers_same, e);
    if (rc == ERR_OK)
        rc = read_partings(d, pair, e);
    json_decref(root);
    return err_wrap(e, rc, "%s", report);
}

void gate_tokens(const struct tokens_diff *d, bool ids_only, struct judgement *j)
{
    j->asked = true;
    if (!d) {
        say(j, VERDICT_NO_BASELINE, "nothing was accepted yet");
    } else if (d->same_bits && d->same_ids) {
        say(j, VERDICT_PASS, "every logit has the accepted bits");
    } else if (d->same_ids) {
        say(j, ids_only ? VERDICT_PASS : VERDICT_FAILED,
            "the accepted tokens in all %lld answers, other logits", (long long)d->answers);
    } else {
        char at[80] = "";
        if (isfinite(d->base_margin))
            snprintf(at, sizeof at, ", accepted margin %.3g logits, now %.3g", d->base_margin,
                     d->now_margin);
        say(j, VERDICT_FAILED, "other tokens in %lld of %lld answers; first '%s' at token %lld%s",
            (long long)(d->answers - d->answers_same), (long long)d->answers, d->id,
            (long long)d->token, at);
    }
}

/* ---- quality -----------------------------------------------------------------------------------
 */

/* A figure for which more is worse against its ceiling. */
static void hold(struct judgement *j, const char *what, struct stats_interval v, double ceiling)
{
    if (isnan(ceiling))
        return;
    if (!isfinite(v.lo) || !isfinite(v.hi))
        say(j, VERDICT_UNRESOLVED, "%s %.4g has no interval: more answers are needed", what,
            v.value);
    else if (v.lo > ceiling)
        say(j, VERDICT_FAILED, "%s %.4g (%.4g to %.4g), at most %.4g was allowed", what, v.value,
            v.lo, v.hi, ceiling);
    else if (v.value > ceiling)
        say(j, VERDICT_UNRESOLVED, "%s %.4g (%.4g to %.4g) about its limit of %.4g", what, v.value,
            v.lo, v.hi, ceiling);
}

static void hold_all(const struct sweep_quality *l, const struct quality *now, struct judgement *j)
{
    struct stats_interval disagree = {1 - now->agreement.value, 1 - now->agreement.hi,
                                      1 - now->agreement.lo};
    hold(j, "KL", now->kl, l->kl);
    hold(j, "disagreement", disagree, 1 - l->agreement);
    hold(j, "log perplexity ratio", now->log_ppl_ratio, log(l->perplexity));
}

/* One loss against the baseline's; `size` is the baseline's own, of which `rise` is a share. */
static enum err_code against(const struct quality *base, const struct quality *now,
                             enum paired_loss what, const char *name, double size, double rise,
                             struct judgement *j, struct err *e)
{
    struct stats_interval d;
    size_t n = 0;
    enum err_code rc = paired_quality(base, now, what, &d, &n, e);
    if (rc != ERR_OK)
        return rc;
    double allowed = isfinite(size) ? rise * fabs(size) : 0;
    if (n == 0)
        say(j, VERDICT_NOT_COMPARABLE, "%s: no answer in common with the baseline", name);
    else if (d.value == 0 && (n == 1 || (d.lo == 0 && d.hi == 0)))
        say(j, VERDICT_PASS, "%s unchanged", name);
    else if (!isfinite(d.lo) || !isfinite(d.hi))
        say(j, VERDICT_UNRESOLVED, "%s %+.3g: too few answers", name, d.value);
    else if (d.lo > allowed)
        say(j, VERDICT_FAILED, "%s %+.4g a token (%+.4g to %+.4g) over %zu answers", name, d.value,
            d.lo, d.hi, n);
    else if (d.hi < -allowed)
        say(j, VERDICT_IMPROVED, "%s %+.4g a token (%+.4g to %+.4g) over %zu answers", name,
            d.value, d.lo, d.hi, n);
    else if (d.hi <= allowed)
        say(j, VERDICT_PASS, "%s %+.3g, within %.3g", name, d.value, allowed);
    else
        say(j, VERDICT_UNRESOLVED, "%s %+.3g a token (%+.3g to %+.3g): no more than chance", name,
            d.value, d.lo, d.hi);
    return ERR_OK;
}

enum err_code gate_quality(const struct sweep_quality *limits, const struct quality *base,
                           const struct quality *now, struct judgement *j, struct err *e)
{
    j->asked = true;
    if (now->not_finite > 0)
        say(j, VERDICT_FAILED, "%.0f positions with NaN or Inf", now->not_finite);
    if (!isfinite(now->kl.value))
        say(j, VERDICT_FAILED, "no position has figures");
    else
        hold_all(limits, now, j);
    if (!base) {
        say(j, VERDICT_NO_BASELINE, "KL %.4g, agreement %.2f %%; nothing was accepted yet",
            now->kl.value, now->agreement.value * 100);
        return ERR_OK;
    }
    enum err_code rc = against(base, now, PAIRED_KL, "KL", base->kl.value, limits->rise, j, e);
    if (rc == ERR_OK)
        rc = against(base, now, PAIRED_DISAGREE, "disagreement", 1 - base->agreement.value,
                     limits->rise, j, e);
    if (rc == ERR_OK)
        rc = against(base, now, PAIRED_NLL, "log perplexity", base->log_ppl_ratio.value,
                     limits->rise, j, e);
    return rc;
}

/* ---- speed -------------------------------------------------------------------------------------
 */

enum err_code gate_speed(const struct speed_round *rounds, const size_t *n, size_t n_runs,
                         struct judgement *j, struct err *e)
{
    struct paired_speed p;
    j->asked = true;
    enum err_code rc = paired_speed(rounds, n, n_runs, &p, e);
    if (rc != ERR_OK)
        return rc;
    double percent = (exp(p.change) - 1) * 100, spread = (exp(p.spread) - 1) * 100;
    if (!isfinite(p.change) || !isfinite(p.spread))
        say(j, VERDICT_UNRESOLVED, "%zu rounds are too few", n[0]);
    else if (p.change > p.spread)
        say(j, VERDICT_FAILED, "%.1f %% slower than the accepted program (null spread %.1f %%)",
            percent, spread);
    else if (p.change < -p.spread)
        say(j, VERDICT_IMPROVED,
            "%.1f %% less time than the accepted program (null spread %.1f %%)", -percent, spread);
    else
        say(j, VERDICT_UNRESOLVED, "%+.1f %% time, inside the null spread of %.1f %%", percent,
            spread);
    return ERR_OK;
}
