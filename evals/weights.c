/* weights.c: tensors against tensors, row by row; sums in double in the order of rows. */
#include "evals/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/par.h"

struct job {
    const struct ckpt_weight *ref, *var;
    struct weight_error *out;
    enum err_code rc;
    struct err e;
};

static bool same_shape(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    bool same = a->n_dim == b->n_dim;
    for (int i = 0; same && i < a->n_dim; i++)
        same = a->dim[i] == b->dim[i];
    return same;
}

static void compare_one(void *ctx, int64_t i, int thread)
{
    struct job *j = (struct job *)ctx + i;
    int64_t k = ckpt_weight_k(j->ref), rows = ckpt_weight_rows(j->ref);
    /* A vector's rows may be permuted as a whole: it is decoded at once. */
    int64_t step = j->ref->n_dim < 2 ? rows : 1;
    float *a = malloc((size_t)(step * k) * sizeof *a), *b = malloc((size_t)(step * k) * sizeof *b);
    double far = 0, size = 0;
    (void)thread;
    j->rc = a && b ? ERR_OK
                   : err_set(&j->e, ERR_NOMEM, "out of memory for a row of %lld", (long long)k);
    for (int64_t r = 0; r < rows && j->rc == ERR_OK; r += step) {
        j->rc = ckpt_weight_decode(j->ref, r, step, a, &j->e);
        if (j->rc == ERR_OK)
            j->rc = ckpt_weight_decode(j->var, r, step, b, &j->e);
        for (int64_t x = 0; x < step * k && j->rc == ERR_OK; x++) {
            double d = (double)a[x] - (double)b[x];
            far += d * d;
            size += (double)a[x] * (double)a[x];
        }
    }
    free(a);
    free(b);
    j->out->relative_rms = far == 0 ? 0 : sqrt(far / size);
    j->out->sqnr = -20 * log10(j->out->relative_rms);
}

enum err_code weights_compare(const struct checkpoint *ref, const struct checkpoint *var,
                              int threads, struct weight_error **list, size_t *n, struct err *e)
{
    struct job *jobs = calloc(ref->n_weights + 1, sizeof *jobs);
    enum err_code rc = ERR_OK;
    *n = 0;
    *list = calloc(ref->n_weights + 1, sizeof **list);
    if (!jobs || !*list) {
        free(jobs);
        return err_set(e, ERR_NOMEM, "out of memory for %zu tensors", ref->n_weights);
    }
    for (size_t i = 0; i < ref->n_weights; i++) {
        const struct ckpt_weight *a = &ref->weights[i], *b = checkpoint_find(var, a->name);
        if (!b || !same_shape(a, b))
            continue;
        struct weight_error *w = &(*list)[*n];
        jobs[(*n)++] = (struct job){.ref = a, .var = b, .out = w};
        snprintf(w->name, sizeof w->name, "%s", a->name);
        w->role = a->role;
        w->layer = a->layer;
        w->bytes = b->bytes;
    }
    par_for(threads, (int64_t)*n, compare_one, jobs);
    for (size_t i = 0; i < *n && rc == ERR_OK; i++) {
        rc = jobs[i].rc;
        if (rc != ERR_OK && e)
            *e = jobs[i].e;
        rc = err_wrap(e, rc, "tensor %s", (*list)[i].name);
    }
    free(jobs);
    return rc;
}
