/* pack_one.c: the runs of one weight, over threads, into one block of memory. */
#include "quant/pack_one.h"

#include <stdlib.h>

#include "common/par.h"
#include "quant/pack_run.h"

struct runs {
    const struct plan_item *it;
    struct pack_dest dest;
    int64_t run_rows;
    enum affine_isa isa;
    struct run {
        enum err_code rc;
        struct err e;
    } * run;
};

static void encode_run(void *ctx, int64_t i, int thread)
{
    struct runs *r = ctx;
    struct pack_scratch s = {0};
    struct errstat st = {.ww = {0}}; /* not asked for */
    int64_t from = i * r->run_rows, n = MIN2(r->run_rows, r->it->rows - from);
    (void)thread;
    r->run[i].rc = pack_run(r->it, r->isa, from, n, &r->dest, &s, &st, &r->run[i].e);
    pack_scratch_free(&s);
}

/* The weight that the bytes are: in order, in one piece. */
static struct ckpt_weight view(const struct plan_item *it, const struct pack_dest *d)
{
    struct ckpt_weight w = {.name = it->w->name,
                            .stored = it->w->name,
                            .n_dim = it->w->n_dim,
                            .bytes = (size_t)plan_item_bytes(it),
                            .role = it->w->role,
                            .layer = it->w->layer,
                            .data = d->codes};
    memcpy(w.dim, it->w->dim, sizeof w.dim);
    if (!it->packed) {
        w.enc = CKPT_DENSE;
        w.dtype = it->dtype;
        return w;
    }
    w.enc = qformat_is_block(it->q) ? CKPT_MX : CKPT_AFFINE;
    w.q = it->q;
    w.scales = d->scales;
    w.biases = it->bias_bytes ? d->biases : NULL;
    return w;
}

enum err_code pack_one(struct pack_one *one, const struct plan_item *it, int threads, struct err *e)
{
    *one = (struct pack_one){.mem = NULL};
    if (it->action == PLAN_COPY) {
        one->w = *it->w;
        return ERR_OK;
    }
    struct runs r = {.it = it, .isa = affine_isa_best()};
    r.run_rows = errstat_run_rows(it->rows, it->k);
    int64_t n = (it->rows + r.run_rows - 1) / r.run_rows;
    /* A failed run, the lowest, gives the error. */
    one->mem = malloc((size_t)plan_item_bytes(it) + 1);
    r.run = calloc((size_t)n + 1, sizeof *r.run);
    enum err_code rc = one->mem && r.run ? ERR_OK
                                         : err_set(e, ERR_NOMEM, "out of memory: %llu bytes",
                                                   (unsigned long long)plan_item_bytes(it));
    r.dest.codes = one->mem;
    if (rc == ERR_OK) {
        r.dest.scales = one->mem + it->code_bytes;
        r.dest.biases = it->bias_bytes ? r.dest.scales + it->scale_bytes : NULL;
        par_for(threads ? threads : par_default_threads(), n, encode_run, &r);
        one->w = view(it, &r.dest);
    }
    for (int64_t i = 0; i < n && rc == ERR_OK; i++) {
        rc = r.run[i].rc;
        if (rc != ERR_OK && e)
            *e = r.run[i].e;
    }
    free(r.run);
    if (rc != ERR_OK)
        pack_one_free(one);
    return err_wrap(e, rc, "tensor %s", it->w->name);
}

void pack_one_free(struct pack_one *one)
{
    free(one->mem);
    *one = (struct pack_one){.mem = NULL};
}

bool pack_one_same(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    bool same = a->enc == b->enc && a->n_dim == b->n_dim && ckpt_weight_in_order(a) &&
                ckpt_weight_in_order(b) && a->minus_one == b->minus_one;
    for (int i = 0; same && i < a->n_dim; i++)
        same = a->dim[i] == b->dim[i];
    if (!same || (a->enc == CKPT_DENSE && a->dtype != b->dtype) ||
        (a->enc == CKPT_GGML && a->ggml != b->ggml) || a->enc == CKPT_CT)
        return false;
    if (!ckpt_weight_packed(a))
        return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
    if (!qformat_same(a->q, b->q) || ckpt_weight_n_globals(a) != ckpt_weight_n_globals(b) ||
        (a->biases != NULL) != (b->biases != NULL))
        return false;
    const size_t rows = (size_t)ckpt_weight_rows(a), scales = rows * ckpt_weight_scale_bytes(a);
    const size_t globals = 4 * (size_t)ckpt_weight_n_globals(a);
    return memcmp(a->data, b->data, rows * ckpt_weight_row_bytes(a)) == 0 &&
           memcmp(a->scales, b->scales, scales) == 0 &&
           (!a->biases || memcmp(a->biases, b->biases, scales) == 0) &&
           (!globals || memcmp(a->globals, b->globals, globals) == 0);
}
