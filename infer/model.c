/* model.c: the table of families, strict binding, loading. */
#include "infer/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/arena.h"
#include "common/str.h"

/* Adding a family touches this table and its own file. */
static const struct model_family *const FAMILIES[] = {
    &model_llama,   &model_mistral,   &model_qwen2,  &model_qwen3,
    &model_gemma2,  &model_gemma3,    &model_gemma4, &model_gemma4_unified,
    &model_mixtral, &model_qwen3_moe, &model_gpt_oss};

#define PROBLEMS_SAID 6

struct item {
    const struct ckpt_weight *src; /* NULL: n_zeros */
    struct kern_weight **matrix;   /* one of the three */
    float **vector;
    float *scalar; /* on the host */
    int64_t n_zeros;
    float factor; /* of a vector's values; 0: none */
};

struct model {
    const struct model_family *family;
    struct hparams hp;
    struct arena *arena;
    struct item *items;
    size_t n_items;
    void *priv;
};

struct model_binder {
    struct model *m;
    const struct checkpoint *c; /* NULL: only to list what is asked for */
    struct model_tensor *list;  /* heap; then */
    size_t n_list;
    bool *used;
    struct strbuf problems;
    int n_problems;
    bool no_memory;
};

/* ---- what is wrong --------------------------------------------------------------------------- */

static void put_shape(struct strbuf *b, int n_dim, const int64_t *dim)
{
    for (int i = 0; i < n_dim; i++)
        strbuf_printf(b, "%s%lld", i ? ", " : "[", (long long)dim[i]);
    strbuf_puts(b, n_dim ? "]" : "[]");
}

/* False when enough has been said. */
static bool begin_problem(struct model_binder *b, const char *what, const char *name)
{
    if (++b->n_problems > PROBLEMS_SAID)
        return false;
    strbuf_printf(&b->problems, "%s%s %s", b->n_problems > 1 ? "; " : "", what, name);
    return true;
}

static void report_missing(struct model_binder *b, const char *name, int n_dim, const int64_t *dim)
{
    if (!begin_problem(b, "missing tensor", name))
        return;
    strbuf_puts(&b->problems, ", expected ");
    put_shape(&b->problems, n_dim, dim);
}

static void report_shape(struct model_binder *b, const struct ckpt_weight *w, int n_dim,
                         const int64_t *dim)
{
    if (!begin_problem(b, "tensor", w->name))
        return;
    strbuf_puts(&b->problems, ": found ");
    put_shape(&b->problems, w->n_dim, w->dim);
    strbuf_puts(&b->problems, ", expected ");
    put_shape(&b->problems, n_dim, dim);
}

/* Tensors that old exports carry and that hold nothing the model needs: the frequencies are made
 * from the hyperparameters (a GGUF's factors are already in them). */
static bool is_derived(const char *name)
{
    return str_ends(name, ".rotary_emb.inv_freq") || strcmp(name, "rope_freqs.weight") == 0;
}

static void report_extra(struct model_binder *b)
{
    for (size_t i = 0; i < b->c->n_weights; i++) {
        const struct ckpt_weight *w = &b->c->weights[i];
        if (b->used[i] || is_derived(w->name))
            continue;
        if (begin_problem(b, "extra tensor", w->name)) {
            strbuf_putc(&b->problems, ' ');
            put_shape(&b->problems, w->n_dim, w->dim);
        }
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

void *model_alloc(struct model_binder *b, size_t n, size_t elem_bytes)
{
    void *p = arena_array(b->m->arena, n, elem_bytes);
    b->no_memory |= !p;
    return p;
}

static void list_tensor(struct model_binder *b, const char *name, int n_dim, const int64_t *dim)
{
    if ((b->n_list & (b->n_list - 1)) == 0) { /* doubles at powers of two */
        size_t room = b->n_list ? b->n_list * 2 : 1;
        struct model_tensor *more = realloc(b->list, room * sizeof *more);
        b->no_memory |= !more;
        if (!more)
            return;
        b->list = more;
    }
    struct model_tensor *t = &b->list[b->n_list++];
    *t = (struct model_tensor){.n_dim = n_dim};
    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->dim, dim, (size_t)n_dim * sizeof *dim);
}

static const struct ckpt_weight *find_shaped(struct model_binder *b, const char *name, int n_dim,
                                             const int64_t *dim)
{
    if (!b->c) {
        list_tensor(b, name, n_dim, dim);
        return NULL;
    }
    const struct ckpt_weight *w = checkpoint_find(b->c, name);
    if (!w) {
        report_missing(b, name, n_dim, dim);
        return NULL;
    }
    b->used[w - b->c->weights] = true;
    bool fits = w->n_dim == n_dim;
    for (int i = 0; fits && i < n_dim; i++)
        fits = w->dim[i] == dim[i];
    if (!fits) {
        report_shape(b, w, n_dim, dim);
        return NULL;
    }
    return w;
}

static void add_item(struct model_binder *b, struct item item)
{
    if (!item.src && !item.n_zeros)
        return;
    struct model *m = b->m;
    if ((m->n_items & (m->n_items - 1)) == 0) {
        /* Doubles at powers of two; the old array stays in the arena until the model ends. */
        struct item *more = model_alloc(b, m->n_items ? m->n_items * 2 : 1, sizeof *more);
        if (!more)
            return;
        if (m->n_items)
            memcpy(more, m->items, m->n_items * sizeof *more);
        m->items = more;
    }
    m->items[m->n_items++] = item;
}

void model_want_matrix(struct model_binder *b, struct kern_weight **w, int64_t rows, int64_t k,
                       const char *fmt, ...)
{
    char name[CKPT_NAME_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 2, (int64_t[]){rows, k}), .matrix = w});
}

void model_want_experts(struct model_binder *b, struct kern_weight **w, int n_expert, int64_t rows,
                        int64_t k, const char *fmt, ...)
{
    char name[CKPT_NAME_MAX];
    const int64_t dim[3] = {n_expert, rows, k};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 3, dim), .matrix = w});
}

void model_want_vector(struct model_binder *b, float **v, int64_t n, const char *fmt, ...)
{
    char name[CKPT_NAME_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 1, &n), .vector = v});
}

void model_want_scaled(struct model_binder *b, float **v, int64_t n, float factor, const char *fmt,
                       ...)
{
    char name[CKPT_NAME_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 1, &n), .vector = v, .factor = factor});
}

void model_want_scalar(struct model_binder *b, float *v, const char *fmt, ...)
{
    char name[CKPT_NAME_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 1, (int64_t[]){1}), .scalar = v});
}

void model_want_zeros(struct model_binder *b, float **v, int64_t n)
{
    add_item(b, (struct item){.vector = v, .n_zeros = n});
}

void model_want_vectors(struct model_binder *b, float **v, int n_vectors, int64_t n,
                        const char *fmt, ...)
{
    char name[CKPT_NAME_MAX];
    const int64_t dim[2] = {n_vectors, n};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    add_item(b, (struct item){.src = find_shaped(b, name, 2, dim), .vector = v});
}

static bool is_same_data(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    bool same = a->enc == b->enc && a->n_dim == b->n_dim && a->bytes == b->bytes;
    for (int i = 0; same && i < a->n_dim; i++)
        same = a->dim[i] == b->dim[i];
    if (!same || (a->enc == CKPT_DENSE && a->dtype != b->dtype) ||
        (a->enc == CKPT_GGML && a->ggml != b->ggml))
        return false;
    if (a->enc == CKPT_CT) /* two packed copies of one table: nobody writes that */
        return false;
    size_t data = a->bytes;
    if (ckpt_weight_packed(a)) {
        if (!qformat_same(a->q, b->q) || ckpt_weight_n_globals(a) != ckpt_weight_n_globals(b))
            return false;
        size_t n = (size_t)(ckpt_weight_rows(a) * (ckpt_weight_k(a) / a->q.group)) *
                   (size_t)qformat_scale_size(a->q.scale);
        size_t globals = 4 * (size_t)ckpt_weight_n_globals(a);
        data = (size_t)ckpt_weight_rows(a) * qformat_row_bytes(a->q, ckpt_weight_k(a));
        same = memcmp(a->scales, b->scales, n) == 0 &&
               (!a->biases || memcmp(a->biases, b->biases, n) == 0) &&
               (!globals || memcmp(a->globals, b->globals, globals) == 0);
    }
    return same && memcmp(a->data, b->data, data) == 0;
}

void model_want_tied_head(struct model_binder *b, const char *head, const char *embedding)
{
    if (!b->c)
        return;
    const struct ckpt_weight *h = checkpoint_find(b->c, head);
    const struct ckpt_weight *w = checkpoint_find(b->c, embedding);
    if (!h || !w)
        return;
    b->used[h - b->c->weights] = true;
    if (!is_same_data(h, w) && begin_problem(b, "tensor", head))
        strbuf_printf(&b->problems, ": differs from %s, but the config says that they are tied",
                      embedding);
}

/* ---- the model ------------------------------------------------------------------------------- */

static enum err_code find_family(const struct hparams *hp, const struct model_family **f,
                                 struct err *e)
{
    struct strbuf names = {0};
    for (size_t i = 0; i < ARRAY_LEN(FAMILIES); i++) {
        if (strcmp(FAMILIES[i]->name, hp->family) == 0) {
            *f = FAMILIES[i];
            strbuf_free(&names);
            return ERR_OK;
        }
        strbuf_printf(&names, "%s%s", i ? ", " : "", FAMILIES[i]->name);
    }
    enum err_code rc =
        err_set(e, ERR_INPUT, "model family '%s' is not supported; expected one of %s", hp->family,
                names.data ? names.data : "");
    strbuf_free(&names);
    return rc;
}

static enum err_code bind_all(struct model *m, const struct checkpoint *c, struct err *e)
{
    struct model_binder b = {.m = m, .c = c};
    enum err_code rc = ERR_NOMEM;
    b.used = calloc(c->n_weights + 1, sizeof *b.used);
    m->priv = arena_alloc(m->arena, m->family->priv_bytes);
    if (!b.used || !m->priv) {
        rc = err_set(e, ERR_NOMEM, "out of memory for %zu tensor names", c->n_weights);
        goto out;
    }
    rc = m->family->bind(m, &b, e);
    if (rc != ERR_OK)
        goto out;
    report_extra(&b);
    if (b.n_problems > PROBLEMS_SAID)
        strbuf_printf(&b.problems, "; and %d more", b.n_problems - PROBLEMS_SAID);
    if (b.no_memory || b.problems.failed)
        rc = err_set(e, ERR_NOMEM, "out of memory binding %zu tensors", c->n_weights);
    else if (b.n_problems)
        rc = err_set(e, ERR_INPUT, "%s model: %s", m->family->name, b.problems.data);
out:
    free(b.used);
    strbuf_free(&b.problems);
    return rc;
}

static enum err_code model_new(struct model **out, const struct hparams *hp, struct err *e)
{
    const struct model_family *family = NULL;
    *out = NULL;
    enum err_code rc = find_family(hp, &family, e);
    if (rc != ERR_OK)
        return rc;
    struct model *m = calloc(1, sizeof *m);
    if (m)
        m->arena = arena_new(0);
    if (!m || !m->arena) {
        free(m);
        return err_set(e, ERR_NOMEM, "out of memory for a model");
    }
    m->family = family;
    m->hp = *hp;
    *out = m;
    return ERR_OK;
}

enum err_code model_list_tensors(const struct hparams *hp, struct model_tensor **list, size_t *n,
                                 struct err *e)
{
    struct model *m = NULL;
    *list = NULL;
    enum err_code rc = model_new(&m, hp, e);
    if (rc != ERR_OK)
        return rc;
    struct model_binder b = {.m = m};
    m->priv = arena_alloc(m->arena, m->family->priv_bytes);
    if (m->priv)
        rc = m->family->bind(m, &b, e);
    if (rc == ERR_OK && (!m->priv || b.no_memory))
        rc = err_set(e, ERR_NOMEM, "out of memory listing %zu tensors", b.n_list);
    if (rc == ERR_OK)
        *list = b.list;
    else
        free(b.list);
    *n = b.n_list;
    model_free(m, NULL);
    return rc;
}

enum err_code model_bind(struct model **out, const struct checkpoint *c, struct err *e)
{
    struct model *m = NULL;
    *out = NULL;
    if (!c->hp_ok)
        return err_set(e, ERR_INPUT, "%s", c->hp_err.text);
    enum err_code rc = model_new(&m, &c->hp, e);
    if (rc != ERR_OK)
        return rc;
    rc = bind_all(m, c, e);
    if (rc != ERR_OK)
        model_free(m, NULL);
    else
        *out = m;
    return rc;
}

/* Values of a vector, or of several one behind another. */
static size_t vector_bytes(const struct item *item)
{
    size_t n = item->src ? (size_t)(ckpt_weight_rows(item->src) * ckpt_weight_k(item->src))
                         : (size_t)item->n_zeros;
    return item->scalar ? 0 : align_up(n * sizeof(float), ARENA_ALIGN);
}

uint64_t model_weight_bytes(const struct model *m, const struct kern *k)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_items; i++) {
        const struct item *item = &m->items[i];
        sum += item->matrix ? kern_weight_bytes(k, &item->src, 1) : vector_bytes(item);
    }
    return sum;
}

static enum err_code load_vector(const struct item *item, struct kern *k, struct err *e)
{
    void *zeros = NULL;
    if (item->scalar)
        return ckpt_weight_decode(item->src, 0, 1, item->scalar, e);
    if (!item->src) {
        enum err_code rc = kern_alloc(k, (size_t)item->n_zeros * sizeof(float), &zeros, e);
        *item->vector = zeros;
        return rc;
    }
    int64_t rows = ckpt_weight_rows(item->src), n = rows * ckpt_weight_k(item->src);
    float *host = malloc((size_t)n * sizeof *host);
    if (!host)
        return err_set(e, ERR_NOMEM, "out of memory for %lld values", (long long)n);
    void *dev = NULL;
    enum err_code rc = ckpt_weight_decode(item->src, 0, rows, host, e);
    for (int64_t i = 0; item->factor != 0 && rc == ERR_OK && i < n; i++)
        host[i] *= item->factor;
    if (rc == ERR_OK)
        rc = kern_alloc(k, (size_t)n * sizeof *host, &dev, e);
    if (rc == ERR_OK) {
        *item->vector = dev;
        rc = kern_upload(k, dev, host, (size_t)n * sizeof *host, e);
    }
    free(host);
    return rc;
}

/* The same bytes of the checkpoint in the same format: views of one matrix, as those of a synthetic
 * checkpoint are (infer/shapes.h). */
static bool is_same_view(const struct ckpt_weight *a, const struct ckpt_weight *b)
{
    bool same = ckpt_weight_packed(a) && a->enc == b->enc && a->data == b->data && a->data &&
                a->scales == b->scales && a->biases == b->biases && a->globals == b->globals &&
                qformat_same(a->q, b->q) && a->n_dim == b->n_dim && ckpt_weight_in_order(a) &&
                ckpt_weight_in_order(b);
    for (int i = 0; same && i < a->n_dim; i++)
        same = a->dim[i] == b->dim[i];
    return same;
}

/* A matrix that has been loaded already is copied where that is quicker. */
static enum err_code load_matrix(const struct model *m, size_t i, struct kern *k, struct err *e)
{
    const struct item *item = &m->items[i];
    enum err_code rc = ERR_OK;
    for (size_t j = 0; rc == ERR_OK && !*item->matrix && j < i; j++)
        if (m->items[j].matrix && is_same_view(m->items[j].src, item->src))
            rc = kern_weight_copy(k, *m->items[j].matrix, item->matrix, e);
    return rc == ERR_OK && !*item->matrix ? kern_weight_load(k, &item->src, 1, item->matrix, e)
                                          : rc;
}

enum err_code model_load(struct model *m, struct kern *k, struct err *e)
{
    for (size_t i = 0; i < m->n_items; i++) {
        const struct item *item = &m->items[i];
        enum err_code rc = item->matrix ? load_matrix(m, i, k, e) : load_vector(item, k, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "tensor %s", item->src ? item->src->name : "of zeros");
    }
    m->hp.rope.factors = m->hp.rope_sliding.factors = NULL; /* the checkpoint's */
    return ERR_OK;
}

enum err_code model_put(struct model *m, struct kern *k, const char *name,
                        const struct ckpt_weight *w, struct err *e)
{
    const struct item *item = NULL;
    for (size_t i = 0; i < m->n_items && !item; i++)
        if (m->items[i].matrix && strcmp(m->items[i].src->name, name) == 0)
            item = &m->items[i];
    if (!item)
        return err_set(e, ERR_INPUT, "the model has no matrix %s", name);
    bool fits = item->src->n_dim == w->n_dim;
    for (int i = 0; fits && i < w->n_dim; i++)
        fits = item->src->dim[i] == w->dim[i];
    if (!fits)
        return err_set(e, ERR_INPUT, "tensor %s: another shape than the one it replaces", name);
    struct kern_weight *loaded = NULL;
    enum err_code rc = kern_weight_load(k, &w, 1, &loaded, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "tensor %s", name);
    kern_weight_free(k, *item->matrix);
    *item->matrix = loaded;
    return ERR_OK;
}

void model_free(struct model *m, struct kern *k)
{
    if (!m)
        return;
    for (size_t i = 0; k && i < m->n_items; i++) {
        const struct item *item = &m->items[i];
        if (item->matrix && *item->matrix)
            kern_weight_free(k, *item->matrix);
        if (item->vector && *item->vector)
            kern_free(k, *item->vector);
    }
    arena_free(m->arena);
    free(m);
}

const struct hparams *model_hparams(const struct model *m)
{
    return &m->hp;
}

const struct model_family *model_family(const struct model *m)
{
    return m->family;
}

void *model_priv(const struct model *m)
{
    return m->priv;
}

size_t model_host_bytes(const struct model *m)
{
    return sizeof *m + arena_bytes(m->arena);
}

size_t model_take(size_t *used, size_t bytes)
{
    size_t off = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return off;
}

enum err_code model_tap(const struct model_step *s, int layer, const char *op, int64_t n_rows,
                        const void *x, int64_t d, int64_t stride, size_t word_bytes, struct err *e)
{
    if (!s->tap || n_rows == 0)
        return ERR_OK;
    struct row_hash_args a = {.n_rows = n_rows, .d = d, .stride = stride, .x = x};
    a.word_bytes = (int)word_bytes;
    a.hash = s->hash_dev;
    enum err_code rc = kern_row_hash(s->k, &a, e);
    if (rc == ERR_OK)
        rc = kern_download(s->k, s->hash, s->hash_dev, (size_t)n_rows * sizeof *s->hash, e);
    if (rc == ERR_OK)
        s->tap(s->tap_ctx, layer, op, (int)n_rows, s->hash);
    return rc;
}
