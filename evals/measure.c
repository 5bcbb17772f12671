/* measure.c: divergences of rows and of answers. */
#include "evals/measure.h"

#include <math.h>

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

void measure_position(const float *ref, const float *var, int64_t n, int32_t token, double *scratch,
                      struct position *p)
{
    double *a = scratch, *b = scratch + n;
    p->token = token;
    p->kl = p->kl_rev = p->ref_nll = p->var_nll = 0;
    p->ref_best = argmax(ref, n);
    p->var_best = argmax(var, n);
    p->ref_margin = margin(ref, n, p->ref_best);
    p->same_bits = memcmp(ref, var, (size_t)n * sizeof *ref) == 0;
    p->rank = 0;
    for (int64_t i = 0; i < n; i++)
        p->rank += var[i] > var[p->ref_best] || (var[i] == var[p->ref_best] && i < p->ref_best);
    p->finite = log_softmax(ref, n, a) && log_softmax(var, n, b);
    if (!p->finite)
        return;
    double forward = 0, reverse = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = a[i] - b[i];
        forward += exp(a[i]) * d;
        reverse -= exp(b[i]) * d;
    }
    /* Rounding can leave a last-digit negative where the truth is 0. */
    p->kl = fmax(forward, 0);
    p->kl_rev = fmax(reverse, 0);
    p->ref_nll = -a[token];
    p->var_nll = -b[token];
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
