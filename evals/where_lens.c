/* where_lens.c: states through the final norm and the head, on the host in double. It shares no
 * code with the engine, so the last layer's figure is a check of both. */
#include <math.h>
#include <stdlib.h>

#include "evals/where_private.h"

static enum err_code read_row(const struct ckpt_weight *w, int64_t row, int64_t n, double *out,
                              struct err *e)
{
    float *f = malloc((size_t)n * sizeof *f);
    if (!f)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = ckpt_weight_decode(w, row, 1, f, e);
    for (int64_t i = 0; i < n && rc == ERR_OK; i++)
        out[i] = (double)f[i];
    free(f);
    return rc;
}

enum err_code where_lens_open(struct where_lens *l, const struct checkpoint *c, int32_t good,
                              int32_t bad, struct err *e)
{
    const struct ckpt_weight *norm = checkpoint_find(c, "model.norm.weight");
    const struct ckpt_weight *head = c->hp.tied ? NULL : checkpoint_find(c, "lm_head.weight");
    if (!head)
        head = checkpoint_find(c, "model.embed_tokens.weight");
    *l = (struct where_lens){.d = c->hp.d_model,
                             .eps = (double)(float)c->hp.rms_eps,
                             .softcap = (double)c->hp.logit_softcap};
    if (!norm || !head)
        return err_set(e, ERR_INPUT, "%s: no final norm or no head", c->path);
    const size_t bytes = (size_t)l->d * sizeof(double);
    l->norm = malloc(bytes);
    l->good = malloc(bytes);
    l->bad = malloc(bytes);
    if (!l->norm || !l->good || !l->bad)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = read_row(norm, 0, l->d, l->norm, e);
    for (int64_t i = 0; i < l->d && c->hp.norm_plus_one; i++)
        l->norm[i] += 1;
    if (rc == ERR_OK)
        rc = read_row(head, good, l->d, l->good, e);
    return rc == ERR_OK ? read_row(head, bad, l->d, l->bad, e) : rc;
}

void where_lens_close(struct where_lens *l)
{
    free(l->norm);
    free(l->good);
    free(l->bad);
    *l = (struct where_lens){.norm = NULL};
}

static double capped(const struct where_lens *l, double x)
{
    return l->softcap > 0 ? l->softcap * tanh(x / l->softcap) : x;
}

double where_lens_margin(const struct where_lens *l, const float *state)
{
    double squares = 0, good = 0, bad = 0;
    for (int64_t i = 0; i < l->d; i++)
        squares += (double)state[i] * (double)state[i];
    double scale = 1 / sqrt(squares / (double)l->d + l->eps);
    for (int64_t i = 0; i < l->d; i++) {
        double x = (double)state[i] * scale * l->norm[i];
        good += x * l->good[i];
        bad += x * l->bad[i];
    }
    return capped(l, good) - capped(l, bad);
}

static double relative_error(const float *ref, const float *var, int64_t d)
{
    double far = 0, size = 0;
    for (int64_t i = 0; i < d; i++) {
        double x = (double)ref[i] - (double)var[i];
        far += x * x;
        size += (double)ref[i] * (double)ref[i];
    }
    return far == 0 ? 0 : sqrt(far / size);
}

void where_lens_layers(struct where_flip *f, const struct where_lens *ref_lens,
                       const struct where_lens *var_lens, const float *ref_states,
                       const float *var_states)
{
    const int64_t d = ref_lens->d;
    double fall = -(double)INFINITY;
    f->turn = f->n_layer - 1;
    f->enter = 0;
    for (int i = 0; i <= f->n_layer; i++) {
        struct where_layer *l = &f->layers[i];
        l->error = relative_error(ref_states + i * d, var_states + i * d, d);
        l->ref_lens = where_lens_margin(ref_lens, ref_states + i * d);
        l->var_lens = where_lens_margin(var_lens, var_states + i * d);
    }
    for (int i = 0; i < f->n_layer; i++) {
        const struct where_layer *l = f->layers + i;
        double more = (l[1].ref_lens - l[1].var_lens) - (l[0].ref_lens - l[0].var_lens);
        f->enter = more > fall ? i : f->enter;
        fall = fmax(fall, more);
    }
    /* The state behind layer i is entry i + 1. */
    while (f->turn >= 0 && f->layers[f->turn].var_lens < 0)
        f->turn--;
}
