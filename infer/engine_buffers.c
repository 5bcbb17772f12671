/* engine_buffers.c: the dry run, and from its accesses to values and their lifetimes. */
#include "infer/engine_buffers.h"

#include <stdio.h>
#include <stdlib.h>

#include "infer/engine_private.h"
#include "infer/kv.h"
#include "kernels/kernels_record.h"

/* Blocks of the device, far from each other; nothing is ever stored there. */
enum block { ACTIVATIONS, LOGITS, OUTPUTS, INPUTS, ROPE, KV, HASHES, N_BLOCKS };
static const char *const block_names[N_BLOCKS] = {
    "activations", "logits", "step outputs", "step inputs", "rope table", "KV pages", "hashes"};
#define BLOCK_STEP ((uintptr_t)1 << 44)

struct op {
    char name[32];
    int layer;
};

struct value {
    enum block block;
    size_t from, to;
    int write, read; /* operations by number; read -1: nobody yet */
    bool live;
};

struct dry_run {
    struct op *ops;
    struct value *values;
    size_t n_ops, cap_ops, n_values, cap_values;
    bool failed;    /* memory */
    struct err bad; /* a read of what is not there */
    bool is_bad;
};

static size_t planted_fold;

void engine_buffers_plant(size_t fold)
{
    planted_fold = fold;
}

static void *address(enum block b)
{
    return (void *)((uintptr_t)(b + 1) * BLOCK_STEP);
}

static enum block block_of(const void *p)
{
    return (enum block)((uintptr_t)p / BLOCK_STEP - 1);
}

static size_t offset_of(const void *p)
{
    size_t at = (size_t)((uintptr_t)p % BLOCK_STEP);
    return planted_fold && block_of(p) == ACTIVATIONS ? at % planted_fold : at;
}

static void *grow(void *list, size_t n, size_t *cap, size_t elem, bool *failed)
{
    if (n < *cap)
        return list;
    size_t more = *cap ? *cap * 2 : 256;
    void *p = realloc(list, more * elem);
    *failed |= !p;
    if (p)
        *cap = more;
    return p ? p : list;
}

static bool overlap(const struct value *v, enum block b, size_t from, size_t to)
{
    return v->live && v->block == b && v->from < to && from < v->to;
}

/* Does a span touch one of a list? */
static bool among(const struct kern_span *list, int n, const struct kern_span *s)
{
    for (int i = 0; i < n; i++)
        if ((uintptr_t)list[i].at < (uintptr_t)s->at + s->bytes &&
            (uintptr_t)s->at < (uintptr_t)list[i].at + list[i].bytes)
            return true;
    return false;
}

static void read_span(struct dry_run *d, const struct kern_span *s, int op)
{
    enum block b = block_of(s->at);
    size_t from = offset_of(s->at), to = from + s->bytes;
    if (b != ACTIVATIONS && b != LOGITS)
        return; /* the host's, or pages */
    for (size_t i = 0; i < d->n_values; i++) {
        struct value *v = &d->values[i];
        if (overlap(v, b, from, to) && v->from <= from && to <= v->to) {
            v->read = op;
            return;
        }
    }
    if (!d->is_bad)
        (void)err_set(&d->bad, ERR_INTERNAL, "operation %d reads %zu bytes at %zu of %s", op,
                      s->bytes, from, block_names[b]);
    d->is_bad = true;
}

static void write_span(struct dry_run *d, const struct kern_access *a, const struct kern_span *s,
                       int op)
{
    enum block b = block_of(s->at);
    size_t from = offset_of(s->at), to = from + s->bytes;
    if (b == KV || b == HASHES)
        return;
    if (among(a->read, a->n_read, s))
        return; /* changed in place: the value lives on */
    for (size_t i = 0; i < d->n_values; i++)
        if (overlap(&d->values[i], b, from, to))
            d->values[i].live = false;
    d->values = grow(d->values, d->n_values, &d->cap_values, sizeof *d->values, &d->failed);
    if (d->n_values < d->cap_values)
        d->values[d->n_values++] = (struct value){b, from, to, op, -1, true};
}

static void on_access(void *ctx, const struct kern_access *a)
{
    struct dry_run *d = ctx;
    if (strcmp(a->op, "row_hash") == 0)
        return;
    d->ops = grow(d->ops, d->n_ops, &d->cap_ops, sizeof *d->ops, &d->failed);
    if (d->n_ops == d->cap_ops)
        return;
    int op = (int)d->n_ops++;
    d->ops[op].layer = -1;
    snprintf(d->ops[op].name, sizeof d->ops[op].name, "%s", a->op);
    for (int i = 0; i < a->n_read; i++)
        read_span(d, &a->read[i], op);
    for (int i = 0; i < a->n_write; i++)
        write_span(d, a, &a->write[i], op);
}

/* The name of the operation that has just been seen; of two, the later one. */
static void on_tap(void *ctx, int layer, const char *name, int n_rows, const uint64_t *hash)
{
    struct dry_run *d = ctx;
    (void)n_rows, (void)hash;
    if (!d->n_ops)
        return;
    struct op *op = &d->ops[d->n_ops - 1];
    op->layer = layer;
    snprintf(op->name, sizeof op->name, "%s", name);
}

/* ---- the pass -----------------------------------------------------------------------------------
 */

static enum err_code run_pass(struct dry_run *d, struct model *m, const struct engine_plan *p,
                              const struct engine_sizes *z, enum kern_arith arith, struct err *e)
{
    struct kern *k;
    const struct hparams *hp = model_hparams(m);
    const int32_t *in = address(INPUTS);
    uint8_t *out = address(OUTPUTS);
    uint64_t none = 0;
    uint8_t **kv = calloc((size_t)hp->n_layer, sizeof *kv); /* pages of all layers in one place */
    if (!kv)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < hp->n_layer; i++)
        kv[i] = address(KV);
    enum err_code rc = kern_record_open(&k, arith, on_access, d, e);
    if (rc == ERR_OK)
        rc = model_load(m, k, e);
    struct model_step s = {.k = k, .n_out = p->out_rows, .scratch = address(ACTIVATIONS)};
    s.rows = (struct kern_rows){.n_tok = p->batch_tokens,
                                .id = in + z->in.id,
                                .pos = in + z->in.pos,
                                .seq = in + z->in.seq,
                                .pages = in + z->in.pages,
                                .n_seq = p->batch_seqs,
                                .pages_max = (int)kv_pages_for(p->ctx)};
    s.out_row = in + z->in.out_row;
    s.kv = kv;
    for (int i = 0; i < 2; i++) {
        const bool sliding = i > 0 && engine_n_rope(hp) > 1;
        s.rope[i] = (struct model_rope){
            address(ROPE), rope_dims(hparams_rope(hp, sliding), hparams_head_dim(hp, sliding))};
    }
    s.logits = address(LOGITS);
    s.tap = on_tap;
    s.tap_ctx = d;
    s.hash_dev = address(HASHES);
    s.hash = &none;
    if (rc == ERR_OK)
        rc = model_family(m)->forward(m, &s, e);
    /* The head's product is not tapped: its rows are hashed with the logits. */
    if (rc == ERR_OK && d->n_ops)
        on_tap(d, -1, "head", 0, NULL);
    struct logits_args a = {.n = p->out_rows, .n_vocab = hp->n_vocab, .logits = s.logits};
    a.k = p->top_k;
    a.hash = (uint64_t *)(void *)(out + z->out.hash);
    a.top_id = (int32_t *)(void *)(out + z->out.top_id);
    a.top = (float *)(void *)(out + z->out.top);
    a.lse = (float *)(void *)(out + z->out.lse);
    if (rc == ERR_OK)
        rc = kern_logits(k, &a, e);
    model_free(m, k);
    kern_record_close(k);
    free(kv);
    return rc;
}

static bool same_place(const struct engine_value *a, const struct engine_value *b)
{
    return strcmp(a->block, b->block) == 0 && a->offset == b->offset && a->bytes == b->bytes &&
           strcmp(a->write, b->write) == 0 && strcmp(a->last_read, b->last_read) == 0;
}

static void gather_value(const struct dry_run *d, const struct value *v, struct engine_buffers *b)
{
    struct engine_value x = {.block = block_names[v->block],
                             .offset = v->from,
                             .bytes = v->to - v->from,
                             .layer = d->ops[v->write].layer,
                             .times = 1};
    snprintf(x.write, sizeof x.write, "%s", d->ops[v->write].name);
    snprintf(x.last_read, sizeof x.last_read, "%s", v->read < 0 ? "host" : d->ops[v->read].name);
    for (size_t i = 0; i < b->n; i++) {
        if (same_place(&b->values[i], &x)) {
            b->values[i].times++;
            return;
        }
    }
    b->values[b->n++] = x;
}

static int block_number(const struct engine_value *v)
{
    int i = 0;
    while (strcmp(block_names[i], v->block) != 0)
        i++;
    return i;
}

/* Stable: insertion sort by block and offset; there are some dozens. */
static void sort_values(struct engine_buffers *b)
{
    for (size_t i = 1; i < b->n; i++) {
        struct engine_value x = b->values[i];
        size_t j = i;
        for (; j > 0; j--) {
            const struct engine_value *p = &b->values[j - 1];
            int order = block_number(p) - block_number(&x);
            if (order < 0 || (order == 0 && p->offset <= x.offset))
                break;
            b->values[j] = b->values[j - 1];
        }
        b->values[j] = x;
    }
}

enum err_code engine_buffers_find(struct engine_buffers *b, const struct checkpoint *c,
                                  const struct engine_options *o, struct err *e)
{
    struct dry_run d = {.n_ops = 0};
    struct kern *k = NULL;
    struct model *m = NULL;
    struct engine_plan plan;
    struct engine_sizes z;
    enum kern_arith arith = o->kern.arith;
    *b = (struct engine_buffers){.n = 0};
    enum err_code rc = model_bind(&m, c, e);
    if (rc == ERR_OK)
        rc = kern_open(&k, &o->kern, e);
    if (rc == ERR_OK)
        rc = engine_plan_sizes(m, k, o, &plan, &z, e);
    if (k)
        kern_close(k);
    if (rc != ERR_OK) {
        model_free(m, NULL);
        return rc;
    }
    rc = run_pass(&d, m, &plan, &z, arith, e);
    if (rc == ERR_OK && d.is_bad)
        rc = err_set(e, ERR_INTERNAL, "%s, which holds no value then", d.bad.text);
    b->values = calloc(d.n_values + 1, sizeof *b->values);
    if (rc == ERR_OK && (d.failed || !b->values))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < d.n_values; i++)
        gather_value(&d, &d.values[i], b);
    sort_values(b);
    free(d.ops);
    free(d.values);
    if (rc != ERR_OK)
        engine_buffers_free(b);
    return rc;
}

void engine_buffers_free(struct engine_buffers *b)
{
    free(b->values);
    *b = (struct engine_buffers){.n = 0};
}
