/* evidence.c: names, and compare's report as numbers. */
#include "jobs/evidence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"

#define REPORT_VERSION_READ 2 /* of evals' report.json */

static const char *const gates[GATE_COUNT] = {"repeat", "invariance", "tokens", "quality", "speed"};

static const char *const verdicts[VERDICT_COUNT] = {
    "PASS",           "IMPROVED", "UNRESOLVED", "NO BASELINE", "SKIPPED",
    "NOT COMPARABLE", "MISSING",  "BROKEN",     "FAILED",      "NONDETERMINISTIC",
};

const char *gate_name(enum gate g)
{
    return gates[g];
}

bool gate_find(const char *name, enum gate *g)
{
    for (int i = 0; i < GATE_COUNT; i++)
        if (strcmp(gates[i], name) == 0) {
            *g = (enum gate)i;
            return true;
        }
    return false;
}

const char *verdict_name(enum verdict v)
{
    return verdicts[v];
}

bool verdict_find(const char *name, enum verdict *v)
{
    for (int i = 0; i < VERDICT_COUNT; i++)
        if (strcmp(verdicts[i], name) == 0) {
            *v = (enum verdict)i;
            return true;
        }
    return false;
}

bool verdict_passes(enum verdict v)
{
    return v == VERDICT_PASS || v == VERDICT_IMPROVED;
}

void verdict_counts(const size_t counts[VERDICT_COUNT], char *out, size_t size)
{
    size_t at = 0;
    snprintf(out, size, "no cells");
    for (int v = 0; v < VERDICT_COUNT; v++)
        if (counts[v] && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s%zu %s", at ? ", " : "", counts[v],
                                   verdicts[v]);
}

void quality_free(struct quality *q)
{
    free(q->answers);
    *q = (struct quality){.n = 0};
}

void evidence_free(struct evidence *ev)
{
    quality_free(&ev->quality);
    free(ev->rounds);
    *ev = (struct evidence){.n_rounds = 0};
}

void cell_result_conclude(struct cell_result *r)
{
    if (r->verdict != VERDICT_PASS)
        return;
    for (int g = 0; g < GATE_COUNT; g++)
        if (r->gate[g].asked && r->gate[g].verdict > r->verdict) {
            r->verdict = r->gate[g].verdict;
            snprintf(r->words, sizeof r->words, "%s: %.380s", gates[g], r->gate[g].words);
        }
}

/* ---- report.json -------------------------------------------------------------------------------
 */

static enum err_code read_interval(const json_t *forced, const char *key, struct stats_interval *v,
                                   struct err *e)
{
    json_t *o = NULL;
    *v = (struct stats_interval){(double)NAN, (double)NAN, (double)NAN};
    enum err_code rc = json_get_object(forced, key, JSON_REQUIRED, &o, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "value", JSON_OPTIONAL, -1e300, 1e300, &v->value, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "lo", JSON_OPTIONAL, -1e300, 1e300, &v->lo, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "hi", JSON_OPTIONAL, -1e300, 1e300, &v->hi, e);
    return rc;
}

static enum err_code read_answer(const json_t *o, struct answer_loss *a, struct err *e)
{
    const char *id = NULL, *text = NULL;
    int64_t turn = 0;
    json_t *forced = NULL;
    enum err_code rc = json_get_string(o, "custom_id", JSON_REQUIRED, &id, e);
    if (rc == ERR_OK)
        rc = json_get_int(o, "turn", JSON_REQUIRED, 0, INT32_MAX, &turn, e);
    if (rc == ERR_OK)
        rc = json_get_object(o, "forced", JSON_REQUIRED, &forced, e);
    if (rc == ERR_OK)
        rc = json_get_string(forced, "text", JSON_REQUIRED, &text, e);
    if (rc == ERR_OK)
        rc = json_get_double(forced, "positions", JSON_REQUIRED, 0, 1e15, &a->positions, e);
    if (rc == ERR_OK)
        rc = json_get_double(forced, "kl", JSON_REQUIRED, -1e300, 1e300, &a->kl, e);
    if (rc == ERR_OK)
        rc = json_get_double(forced, "agree", JSON_REQUIRED, 0, 1e15, &a->agree, e);
    if (rc == ERR_OK)
        rc = json_get_double(forced, "nll_diff", JSON_REQUIRED, -1e300, 1e300, &a->nll_diff, e);
    if (rc != ERR_OK)
        return rc;
    snprintf(a->text, sizeof a->text, "%s", text);
    if (turn)
        snprintf(a->id, sizeof a->id, "%.100s#%lld", id, (long long)turn);
    else
        snprintf(a->id, sizeof a->id, "%.110s", id);
    return ERR_OK;
}

static enum err_code read_pair(struct quality *q, const json_t *pair, struct err *e)
{
    json_t *forced = NULL, *answers = NULL;
    const char *why = NULL;
    enum err_code rc = json_get_string(pair, "not_comparable", JSON_OPTIONAL, &why, e);
    if (rc == ERR_OK && why)
        return err_set(e, ERR_MISMATCH, "NOT COMPARABLE: %s", why);
    if (rc == ERR_OK)
        rc = json_get_object(pair, "forced", JSON_REQUIRED, &forced, e);
    if (rc == ERR_OK)
        rc = json_get_double(forced, "not_finite", JSON_REQUIRED, 0, 1e15, &q->not_finite, e);
    if (rc == ERR_OK)
        rc = read_interval(forced, "kl", &q->kl, e);
    if (rc == ERR_OK)
        rc = read_interval(forced, "agreement", &q->agreement, e);
    if (rc == ERR_OK)
        rc = read_interval(forced, "log_perplexity_ratio", &q->log_ppl_ratio, e);
    if (rc == ERR_OK)
        rc = json_get_array(pair, "per_answer", JSON_REQUIRED, &answers, e);
    if (rc != ERR_OK)
        return rc;
    q->answers = calloc(json_array_size(answers) + 1, sizeof *q->answers);
    if (!q->answers)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (; q->n < json_array_size(answers); q->n++) {
        rc = read_answer(json_array_get(answers, q->n), &q->answers[q->n], e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "answer %zu", q->n + 1);
    }
    return ERR_OK;
}

enum err_code quality_read(struct quality *q, const char *path, struct err *e)
{
    json_t *root = NULL, *pairs = NULL;
    int64_t version = 0;
    *q = (struct quality){.n = 0};
    enum err_code rc = json_read(path, &root, e);
    if (rc != ERR_OK)
        return rc;
    rc = json_get_int(root, "assay_report", JSON_REQUIRED, INT64_MIN, INT64_MAX, &version, e);
    if (rc == ERR_OK && version != REPORT_VERSION_READ)
        rc = err_set(e, ERR_INPUT, "a report of version %lld, expected %d", (long long)version,
                     REPORT_VERSION_READ);
    if (rc == ERR_OK)
        rc = json_get_array(root, "pairs", JSON_REQUIRED, &pairs, e);
    if (rc == ERR_OK && json_array_size(pairs) != 1)
        rc = err_set(e, ERR_INPUT, "%zu pairs, expected 1", json_array_size(pairs));
    if (rc == ERR_OK)
        rc = read_pair(q, json_array_get(pairs, 0), e);
    json_decref(root);
    if (rc != ERR_OK)
        quality_free(q);
    return err_wrap(e, rc, "%s", path);
}
