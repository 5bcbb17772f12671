/* measure.c: divergences of rows and of answers. */
#include "evals/measure.h"

#include <math.h>
#include <stdlib.h>

/* Log-softmax of a row in double; false when a value is not finite. */
static bool log_softmax(const float *x, int64_t n, double *out)
{
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
        top = fmax(top, (double)x[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    double lse = top + log(sum);
    for (int64_t i = 0; i < n; i++)
        out[i] = (double)x[i] - lse;
    return true;
}

static int32_t argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

static float margin(const float *x, int64_t n, int32_t best)
{
    float second = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (i != best && x[i] > second)
            second = x[i];
    return x[best] - second;
}

/* The MEASURE_TOP best ids, greatest first, ties to the lower id; returns how many there are. */
static int top_ids(const float *x, int64_t n, int32_t *id)
{
    int count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i]) || (count == MEASURE_TOP && !(x[i] > x[id[count - 1]])))
            continue;
        int at = count < MEASURE_TOP ? count++ : count - 1;
        for (; at > 0 && x[i] > x[id[at - 1]]; at--)
            id[at] = id[at - 1];
        id[at] = (int32_t)i;
    }
    return count;
}

static int32_t shared_ids(const float *ref, const float *var, int64_t n)
{
    int32_t a[MEASURE_TOP], b[MEASURE_TOP], shared = 0;
    int na = top_ids(ref, n, a), nb = top_ids(var, n, b);
    for (int i = 0; i < na; i++)
        for (int j = 0; j < nb; j++)
            shared += a[i] == b[j];
    return shared;
}

void measure_position(const float *ref, const float *var, int64_t n, int32_t token, double *scratch,
                      struct position *p)
{
    double *a = scratch, *b = scratch + n;
    p->token = token;
    p->kl = p->kl_rev = p->js = p->ref_nll = p->var_nll = 0;
    p->ref_best = argmax(ref, n);
    p->var_best = argmax(var, n);
    p->ref_margin = margin(ref, n, p->ref_best);
    p->var_margin = margin(var, n, p->var_best);
    p->top_shared = shared_ids(ref, var, n);
    p->same_bits = memcmp(ref, var, (size_t)n * sizeof *ref) == 0;
    p->rank = 0;
    for (int64_t i = 0; i < n; i++)
        p->rank += var[i] > var[p->ref_best] || (var[i] == var[p->ref_best] && i < p->ref_best);
    p->finite = log_softmax(ref, n, a) && log_softmax(var, n, b);
    if (!p->finite)
        return;
    double forward = 0, reverse = 0, mixed = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = a[i] - b[i], x = exp(a[i]), y = exp(b[i]), m = (x + y) / 2;
        forward += x * d;
        reverse -= y * d;
        /* ln m from the greater of the two, so that it is finite where both underflow. */
        double ln_m = m > 0 ? log(m) : fmax(a[i], b[i]);
        mixed += (x * (a[i] - ln_m) + y * (b[i] - ln_m)) / 2;
    }
    /* Rounding can leave a last-digit negative where the truth is 0. */
    p->kl = fmax(forward, 0);
    p->kl_rev = fmax(reverse, 0);
    p->js = fmin(fmax(mixed, 0), 0x1.62e42fefa39efp-1); /* ln 2 */
    p->ref_nll = -a[token];
    p->var_nll = -b[token];
}

enum err_code measure_edits(const struct trace_record *ref, const struct trace_record *var,
                            int64_t *edits, struct err *e)
{
    size_t n = ref->n, m = var->n, same = 0;
    while (same < n && same < m && ref->tok[same].id == var->tok[same].id)
        same++;
    n -= same;
    m -= same;
    *edits = n == 0 ? (int64_t)m : m == 0 ? (int64_t)n : -1;
    if (*edits >= 0 || (n + 1) > ((size_t)1 << 28) / (m + 1))
        return ERR_OK;
    const struct trace_token *a = ref->tok + same, *b = var->tok + same;
    int64_t *row = malloc((m + 1) * sizeof *row);
    if (!row)
        return err_set(e, ERR_NOMEM, "out of memory for an edit distance of %zu by %zu", n, m);
    for (size_t j = 0; j <= m; j++)
        row[j] = (int64_t)j;
    for (size_t i = 1; i <= n; i++) {
        int64_t corner = row[0]; /* row i - 1, column j - 1 */
        row[0] = (int64_t)i;
        for (size_t j = 1; j <= m; j++) {
            int64_t above = row[j], best = corner + (a[i - 1].id != b[j - 1].id);
            best = MIN2(best, MIN2(above, row[j - 1]) + 1);
            row[j] = best;
            corner = above;
        }
    }
    *edits = row[m];
    free(row);
    return ERR_OK;
}

size_t measure_loop(const struct trace_record *r)
{
    size_t first = r->n;
    for (size_t period = 1; period <= 64 && period < r->n; period++) {
        size_t from = r->n - period; /* tok[i] = tok[i + period] from here on */
        while (from > 0 && r->tok[from - 1].id == r->tok[from - 1 + period].id)
            from--;
        size_t len = r->n - from;
        if (len >= 16 && len >= 3 * period)
            first = MIN2(first, from);
    }
    return first;
}

struct parting measure_parting(const struct trace_record *ref, const struct trace_record *var)
{
    size_t n = 0;
    bool bits = true;
    while (n < ref->n && n < var->n && ref->tok[n].id == var->tok[n].id) {
        bits &= ref->tok[n].hash == var->tok[n].hash;
        n++;
    }
    bool ref_goes = n < ref->n, var_goes = n < var->n;
    bool same = !ref_goes && !var_goes && strcmp(ref->finish, var->finish) == 0;
    return (struct parting){.common = (int64_t)n,
                            .same_ids = same,
                            .same_bits = same && bits,
                            .ref_token = ref_goes ? ref->tok[n].id : -1,
                            .var_token = var_goes ? var->tok[n].id : -1,
                            .ref_margin = ref_goes ? ref->tok[n].margin : NAN,
                            .var_margin = var_goes ? var->tok[n].margin : NAN};
}
