/* engine.c: from a checkpoint to a loaded model with its buffers, and the step.
 *
 * Every buffer is taken in engine_new at the size of the plan: the family's scratch block, the
 * inputs of a step (one block, one upload), its outputs (one block, one download), logits, pages
 * and the rope tables. After that the arena is sealed and nothing allocates.
 */
#include "infer/engine.h"

#include <assert.h>
#include <stdlib.h>

#include "common/arena.h"
#include "common/hash.h"
#include "common/log.h"
#include "infer/engine_private.h"
#include "infer/kv.h"

struct engine {
    struct kern *k;
    struct model *m;
    struct engine_plan plan;
    struct arena *arena; /* host memory; sealed after engine_new */
    char fingerprint[SHA256_HEX];
    struct engine_times times;
    /* Device blocks. */
    uint8_t *scratch, *kv, *out_dev;
    int32_t *in_dev;
    float *cos_sin[2], *logits_dev; /* rope tables of full and of sliding layers */
    uint64_t *hash_dev;
    uint8_t *draws_dev, *room;
    size_t page_bytes[2]; /* of a full and of a sliding layer */
    uint8_t **kv_of;      /* [n_layer] where the pages are that each layer looks at */
    size_t scratch_bytes, logits_bytes, hash_bytes;
    struct model_rope rope[2];
    int pages_max;
    struct engine_inputs in;   /* offsets in words */
    struct engine_outputs out; /* offsets in bytes */
    struct engine_draws draws;
    /* Host staging. */
    int32_t *in_host;
    uint8_t *draws_host;
    uint8_t *out_host;
    float *logits_host;
    uint64_t *hash_host;
    struct step_row *rows;
    engine_tap tap;
    void *tap_ctx;
    engine_state state;
    void *state_ctx;
    bool mixed; /* a weight was put in: recordings hold addresses of the old one */
};

/* ---- making ---------------------------------------------------------------------------------- */

static enum err_code alloc_device(struct engine *en, const struct engine_sizes *z, struct err *e)
{
    const struct {
        void **p;
        size_t bytes;
        const char *what;
    } blocks[] = {
        {(void **)&en->scratch, z->model_scratch, "activations"},
        {(void **)&en->in_dev, z->inputs, "step inputs"},
        {(void **)&en->out_dev, z->outputs, "step outputs"},
        {(void **)&en->logits_dev, z->logits, "logits"},
        {(void **)&en->hash_dev, z->hashes, "hashes"},
        {(void **)&en->draws_dev, z->draws.bytes, "settings of sampling"},
        {(void **)&en->room, z->draws.room, "sampling"},
        {(void **)&en->cos_sin[0], z->rope[0], "the rope table"},
        {(void **)&en->cos_sin[1], z->rope[1], "the rope table of sliding layers"},
        {(void **)&en->kv, z->kv, "KV pages"},
    };
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        enum err_code rc =
            blocks[i].bytes ? kern_alloc(en->k, blocks[i].bytes, blocks[i].p, e) : ERR_OK;
        if (rc != ERR_OK)
            return err_wrap(e, rc, "%s", blocks[i].what);
    }
    return kern_reserve(en->k, &z->limits, e);
}

static enum err_code alloc_host(struct engine *en, const struct engine_sizes *z, struct err *e)
{
    const int n_layer = model_hparams(en->m)->n_layer;
    en->arena = arena_new(z->inputs + z->outputs + z->logits + z->hashes + z->rows +
                          z->draws.bytes + (size_t)n_layer * sizeof *en->kv_of + 4096);
    if (!en->arena)
        return err_set(e, ERR_NOMEM, "out of memory for host buffers");
    en->in_host = arena_alloc(en->arena, z->inputs);
    en->out_host = arena_alloc(en->arena, z->outputs);
    en->logits_host = arena_alloc(en->arena, z->logits);
    en->hash_host = arena_alloc(en->arena, z->hashes);
    en->rows = arena_alloc(en->arena, z->rows);
    en->draws_host = arena_alloc(en->arena, z->draws.bytes);
    en->kv_of = arena_array(en->arena, (size_t)n_layer, sizeof *en->kv_of);
    if (!en->in_host || !en->out_host || !en->logits_host || !en->hash_host || !en->rows ||
        !en->draws_host || !en->kv_of)
        return arena_error(en->arena, z->logits, e);
    return ERR_OK;
}

static enum err_code fill_rope(struct engine *en, int which, size_t bytes, struct err *e)
{
    const struct hparams *hp = model_hparams(en->m);
    const struct rope_params *p = hparams_rope(hp, which > 0);
    float freq[ROPE_DIMS_MAX / 2], scale;
    const int head_dim = hparams_head_dim(hp, which > 0);
    enum err_code rc = rope_freqs(p, head_dim, freq, &scale, e);
    if (rc != ERR_OK)
        return rc;
    float *table = malloc(bytes);
    if (!table)
        return err_set(e, ERR_NOMEM, "out of memory for a rope table of %zu bytes", bytes);
    en->rope[which] = (struct model_rope){en->cos_sin[which], rope_dims(p, head_dim)};
    rope_fill(freq, scale, en->rope[which].dims, en->plan.ctx, table);
    rc = kern_upload(en->k, en->cos_sin[which], table, bytes, e);
    free(table);
    return rc;
}

/* Both kinds of layers may have the same table. */
static enum err_code fill_ropes(struct engine *en, const struct engine_sizes *z, struct err *e)
{
    enum err_code rc = fill_rope(en, 0, z->rope[0], e);
    en->rope[1] = en->rope[0];
    return rc == ERR_OK && engine_n_rope(model_hparams(en->m)) > 1 ? fill_rope(en, 1, z->rope[1], e)
                                                                   : rc;
}

enum err_code engine_new(struct engine **out, const struct checkpoint *c,
                         const struct engine_options *o, struct err *e)
{
    *out = NULL;
    struct engine *en = calloc(1, sizeof *en);
    if (!en)
        return err_set(e, ERR_NOMEM, "out of memory for an engine");
    struct engine_sizes z;
    enum err_code rc = kern_open(&en->k, &o->kern, e);
    if (rc == ERR_OK)
        rc = model_bind(&en->m, c, e);
    if (rc == ERR_OK)
        rc = engine_plan_sizes(en->m, en->k, o, &en->plan, &z, e);
    if (rc == ERR_OK)
        rc = alloc_host(en, &z, e);
    if (rc != ERR_OK)
        goto out;
    en->scratch_bytes = z.model_scratch;
    en->logits_bytes = z.logits;
    en->hash_bytes = z.hashes;
    memcpy(en->page_bytes, z.page_bytes, sizeof en->page_bytes);
    en->pages_max = (int)kv_pages_for(en->plan.ctx);
    en->in = z.in;
    en->out = z.out;
    en->draws = z.draws;
    rc = alloc_device(en, &z, e);
    uint8_t *kv = en->kv;
    for (int i = 0; rc == ERR_OK && i < model_hparams(en->m)->n_layer; i++) {
        const int of = hparams_kv_layer(model_hparams(en->m), i);
        en->kv_of[i] = of < i ? en->kv_of[of] : kv;
        kv += engine_page_bytes(en, i) * (size_t)en->plan.pages;
    }
    if (rc == ERR_OK)
        rc = fill_ropes(en, &z, e);
    uint64_t began = clock_ns();
    if (rc == ERR_OK)
        rc = engine_hash_weights(c, model_hparams(en->m), en->k, en->fingerprint, e);
    uint64_t hashed = clock_ns();
    if (rc == ERR_OK)
        rc = model_load(en->m, en->k, e);
    en->times.hash = (double)(hashed - began) * 1e-9;
    en->times.weights = (double)(clock_ns() - hashed) * 1e-9;
out:
    if (rc != ERR_OK) {
        engine_free(en);
        return rc;
    }
    arena_seal(en->arena, "engine step");
    *out = en;
    return ERR_OK;
}

void engine_free(struct engine *en)
{
    if (!en)
        return;
    void *const blocks[] = {en->scratch,   en->in_dev, en->out_dev,    en->logits_dev, en->hash_dev,
                            en->draws_dev, en->room,   en->cos_sin[0], en->cos_sin[1], en->kv};
    model_free(en->m, en->k);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        if (blocks[i])
            kern_free(en->k, blocks[i]);
    }
    if (en->k)
        kern_close(en->k);
    arena_free(en->arena);
    free(en);
}

const struct engine_plan *engine_get_plan(const struct engine *en)
{
    return &en->plan;
}

const struct hparams *engine_hparams(const struct engine *en)
{
    return model_hparams(en->m);
}

const struct engine_times *engine_get_times(const struct engine *en)
{
    return &en->times;
}

struct kern *engine_kern(const struct engine *en)
{
    return en->k;
}

const char *engine_fingerprint(const struct engine *en)
{
    return en->fingerprint;
}

bool engine_op_of_output(int layer, const char *op)
{
    return layer < 0 && (strcmp(op, "final_norm") == 0 || strcmp(op, "logits") == 0);
}

void engine_set_tap(struct engine *en, engine_tap tap, void *ctx)
{
    en->tap = tap;
    en->tap_ctx = ctx;
}

void engine_set_state(struct engine *en, engine_state fn, void *ctx)
{
    en->state = fn;
    en->state_ctx = ctx;
}

enum err_code engine_put_weight(struct engine *en, const char *name, const struct ckpt_weight *w,
                                struct err *e)
{
    en->mixed = true;
    return model_put(en->m, en->k, name, w, e);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static enum err_code check_page(const struct engine *en, int layer, int32_t page, struct err *e)
{
    int n_layer = model_hparams(en->m)->n_layer;
    if (layer < 0 || layer >= n_layer || page < 0 || page >= en->plan.pages)
        return err_set(e, ERR_INTERNAL, "page %d of layer %d; expected below %lld and %d",
                       (int)page, layer, (long long)en->plan.pages, n_layer);
    return ERR_OK;
}

static uint8_t *page_at(const struct engine *en, int layer, int32_t page)
{
    return en->kv_of[layer] + (size_t)page * engine_page_bytes(en, layer);
}

enum err_code engine_read_page(struct engine *en, int layer, int32_t page, void *out, struct err *e)
{
    enum err_code rc = check_page(en, layer, page, e);
    if (rc != ERR_OK)
        return rc;
    return kern_download(en->k, out, page_at(en, layer, page), engine_page_bytes(en, layer), e);
}

size_t engine_page_bytes(const struct engine *en, int layer)
{
    const struct hparams *hp = model_hparams(en->m);
    return hparams_has_kv(hp, layer) ? en->page_bytes[hp->sliding[layer]] : 0;
}

static enum err_code fill_page(struct engine *en, int32_t page, uint8_t byte, struct err *e)
{
    enum err_code rc = check_page(en, 0, page, e);
    for (int i = 0; rc == ERR_OK && i < model_hparams(en->m)->n_layer; i++)
        rc = kern_fill(en->k, page_at(en, i, page), byte, engine_page_bytes(en, i), e);
    return rc;
}

enum err_code engine_zero_page(struct engine *en, int32_t page, struct err *e)
{
    return fill_page(en, page, 0, e);
}

enum err_code engine_poison_page(struct engine *en, int32_t page, struct err *e)
{
    return fill_page(en, page, 0xff, e);
}

enum err_code engine_poison(struct engine *en, struct err *e)
{
    const struct {
        void *p;
        size_t bytes;
    } blocks[] = {{en->scratch, en->scratch_bytes},
                  {en->out_dev, en->out.bytes},
                  {en->logits_dev, en->logits_bytes},
                  {en->room, en->draws.room},
                  {en->hash_dev, en->hash_bytes}};
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        enum err_code rc = kern_fill(en->k, blocks[i].p, 0xff, blocks[i].bytes, e);
        if (rc != ERR_OK)
            return rc;
    }
    return kern_poison(en->k, e);
}

/* ---- the step -------------------------------------------------------------------------------- */

static enum err_code check_piece(const struct engine *en, const struct step_piece *p, int i,
                                 struct err *e)
{
    const int64_t n_vocab = model_hparams(en->m)->n_vocab;
    if (p->n < 1 || p->pos < 0 || p->pos > en->plan.ctx - p->n)
        return err_set(e, ERR_INTERNAL, "piece %d: %d tokens at position %lld; the context is %lld",
                       i, p->n, (long long)p->pos, (long long)en->plan.ctx);
    int64_t need = kv_pages_for(p->pos + p->n);
    if (need > p->n_pages)
        return err_set(e, ERR_INTERNAL, "piece %d: %d pages, expected at least %lld", i, p->n_pages,
                       (long long)need);
    for (int64_t j = 0; j < need; j++) {
        if (p->pages[j] < 0 || p->pages[j] >= en->plan.pages)
            return err_set(e, ERR_INTERNAL, "piece %d: page number %d, expected below %lld", i,
                           (int)p->pages[j], (long long)en->plan.pages);
    }
    for (int j = 0; j < p->n; j++) {
        if (p->ids[j] < 0 || p->ids[j] >= n_vocab)
            return err_set(e, ERR_INPUT, "token id %d, expected 0..%lld", (int)p->ids[j],
                           (long long)n_vocab - 1);
    }
    return ERR_OK;
}

/* Checks the pieces and lays them out in the input block; counts rows. */
static enum err_code stage_inputs(struct engine *en, const struct step *s, int *n_tok, int *n_out,
                                  struct err *e)
{
    const struct engine_plan *plan = &en->plan;
    int32_t *id = en->in_host + en->in.id, *pos = en->in_host + en->in.pos;
    int32_t *seq = en->in_host + en->in.seq, *pages = en->in_host + en->in.pages;
    int32_t *out_row = en->in_host + en->in.out_row;
    if (s->n_pieces < 1 || s->n_pieces > plan->batch_seqs)
        return err_set(e, ERR_INTERNAL, "%d pieces in a step, expected 1..%d", s->n_pieces,
                       plan->batch_seqs);
    const int n_layer = model_hparams(en->m)->n_layer;
    if (s->from_layer < 0 || s->from_layer > n_layer ||
        (s->from_layer > 0) != (s->states != NULL) ||
        (s->from_layer > 0 && !hparams_layers_apart(model_hparams(en->m))))
        return err_set(e, ERR_INTERNAL, "a step from layer %d of %d %s states", s->from_layer,
                       n_layer, s->states ? "with" : "without");
    int t = 0, r = 0;
    for (int i = 0; i < s->n_pieces; i++) {
        const struct step_piece *p = &s->pieces[i];
        enum err_code rc = check_piece(en, p, i, e);
        if (rc != ERR_OK)
            return rc;
        int outs = p->n - MIN2(MAX2(p->out_from, 0), p->n);
        if (p->n > plan->batch_tokens - t || outs > plan->out_rows - r)
            return err_set(e, ERR_INTERNAL, "a step of more than %d tokens or %d output rows",
                           plan->batch_tokens, plan->out_rows);
        for (int j = 0; j < p->n; j++, t++) {
            id[t] = p->ids[j];
            pos[t] = (int32_t)(p->pos + j);
            seq[t] = i;
            if (j >= p->n - outs) {
                en->rows[r] = (struct step_row){.piece = i, .index = j};
                out_row[r++] = t;
            }
        }
        int64_t need = kv_pages_for(p->pos + p->n);
        memcpy(pages + (size_t)i * (size_t)en->pages_max, p->pages, (size_t)need * sizeof *pages);
    }
    *n_tok = t;
    *n_out = r;
    return ERR_OK;
}

#define RECORDED_TOKENS_MAX 256 /* longer steps hide their launches */
#define KEYS_STEP           256 /* steps whose longest sequences differ by less share a recording */

/* A bound of the keys of the step's rows, rounded so that a growing sequence does not make each
 * step one of its own: to an eighth of the power of two below it. */
static int64_t bound_keys(const struct engine *en, const struct step *s)
{
    int64_t keys = 0, unit = KEYS_STEP;
    for (int i = 0; i < s->n_pieces; i++)
        keys = MAX2(keys, s->pieces[i].pos + s->pieces[i].n);
    while (unit * 16 <= keys)
        unit *= 2;
    return MIN2((keys + unit - 1) / unit * unit, (int64_t)en->pages_max * KERN_PAGE);
}

static struct model_step view_step(const struct engine *en, const struct step *s, int n_tok,
                                   int n_out)
{
    struct model_step v = {.k = en->k, .n_out = n_out, .scratch = en->scratch, .kv = en->kv_of};
    v.rows.n_tok = n_tok;
    v.rows.id = en->in_dev + en->in.id;
    v.rows.pos = en->in_dev + en->in.pos;
    v.rows.seq = en->in_dev + en->in.seq;
    v.rows.pages = en->in_dev + en->in.pages;
    v.rows.n_seq = s->n_pieces;
    v.rows.pages_max = en->pages_max;
    v.rows.keys_max = bound_keys(en, s);
    v.out_row = n_out == n_tok ? NULL : en->in_dev + en->in.out_row; /* NULL: every row */
    v.rope[0] = en->rope[0];
    v.rope[1] = en->rope[1];
    v.logits = en->logits_dev;
    v.tap = en->tap;
    v.tap_ctx = en->tap_ctx;
    v.hash_dev = en->hash_dev;
    v.hash = en->hash_host;
    v.state = en->state;
    v.state_ctx = en->state_ctx;
    v.from_layer = s->from_layer;
    v.states = s->states;
    return v;
}

/* Top k, log-sum-exp and hash of each output row. */
static enum err_code reduce_logits(struct engine *en, int n_out, struct err *e)
{
    const struct hparams *hp = model_hparams(en->m);
    struct logits_args a = {.n = n_out, .n_vocab = hp->n_vocab, .k = en->plan.top_k};
    a.logits = en->logits_dev;
    a.softcap = hp->logit_softcap;
    a.hash = (uint64_t *)(void *)(en->out_dev + en->out.hash);
    a.top_id = (int32_t *)(void *)(en->out_dev + en->out.top_id);
    a.top = (float *)(void *)(en->out_dev + en->out.top);
    a.lse = (float *)(void *)(en->out_dev + en->out.lse);
    return kern_logits(en->k, &a, e);
}

/* All operations of a step, or their recording. A tap reads between them, so it has neither; nor
 * has a step that differs in more than its shape: states are copied in, weights have been replaced.
 */
static enum err_code run_step(struct engine *en, const struct step *s, int n_tok, int n_out,
                              struct err *e)
{
    struct model_step view = view_step(en, s, n_tok, n_out);
    struct kern_step shape = {n_tok, s->n_pieces, n_out, view.rows.keys_max};
    bool recorded =
        !en->tap && !en->state && !en->mixed && s->from_layer == 0 && n_tok <= RECORDED_TOKENS_MAX;
    bool replayed = false;
    enum err_code rc = recorded ? kern_step_begin(en->k, &shape, &replayed, e) : ERR_OK;
    if (rc != ERR_OK || replayed)
        return rc;
    rc = model_family(en->m)->forward(en->m, &view, e);
    if (rc == ERR_OK && n_out > 0)
        rc = reduce_logits(en, n_out, e);
    if (!recorded)
        return rc;
    enum err_code ended = kern_step_end(en->k, rc != ERR_OK, rc == ERR_OK ? e : NULL);
    return rc != ERR_OK ? rc : ended;
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Puts row r's settings and lists behind those of the piece of rows so far. False: no place. */
static bool stage_draw(struct engine *en, const struct step_piece *p, int r, int n, int64_t *used)
{
    const struct sampling *s = p->sampling;
    const int64_t n_history = s->repetition_penalty != 1 ? p->n_history : 0;
    if (n == en->draws.rows || *used + n_history + 2 * s->n_bias > en->draws.lists)
        return false;
    struct sample_row *row = (struct sample_row *)(void *)en->draws_host + n;
    int32_t *lists =
        (int32_t *)(void *)(en->draws_host + (size_t)en->draws.rows * sizeof(struct sample_row));
    *row = sampling_row(s, p->stream_key, p->n_history);
    row->row = r;
    row->at = (int32_t)*used;
    row->n_history = (int32_t)n_history;
    row->n_bias = s->n_bias;
    memcpy(lists + *used, p->history, (size_t)n_history * sizeof *lists);
    *used += n_history;
    for (int i = 0; i < s->n_bias; i++) {
        lists[(*used)++] = s->bias[i].id;
        lists[(*used)++] = (int32_t)f32_bits(s->bias[i].bias);
    }
    return true;
}

static enum err_code draw_rows(struct engine *en, int n, int64_t used, struct err *e)
{
    const size_t head = (size_t)en->draws.rows * sizeof(struct sample_row);
    struct sample_args a = {.n = n, .n_vocab = model_hparams(en->m)->n_vocab};
    a.logits = en->logits_dev;
    a.rows = (const struct sample_row *)(const void *)en->draws_dev;
    a.lists = (const int32_t *)(const void *)(en->draws_dev + head);
    a.room = en->room;
    a.id = (int32_t *)(void *)(en->out_dev + en->out.id);
    a.logit = (float *)(void *)(en->out_dev + en->out.logit);
    enum err_code rc = n ? kern_upload(en->k, en->draws_dev, en->draws_host,
                                       head + (size_t)used * sizeof(int32_t), e)
                         : ERR_OK;
    return rc == ERR_OK && n ? kern_sample(en->k, &a, e) : rc;
}

/* Tokens of the rows that are not plain, as many at once as there is place for. */
static enum err_code sample_rows(struct engine *en, const struct step *s, int n_out, struct err *e)
{
    enum err_code rc = ERR_OK;
    int64_t used = 0;
    int n = 0;
    for (int r = 0; r < n_out && rc == ERR_OK; r++) {
        const struct step_piece *p = &s->pieces[en->rows[r].piece];
        if (!p->sampling || en->rows[r].index != p->n - 1)
            continue;
        if (!stage_draw(en, p, r, n, &used)) {
            rc = draw_rows(en, n, used, e);
            used = n = 0;
            if (rc == ERR_OK && !stage_draw(en, p, r, n, &used))
                rc = err_set(e, ERR_INTERNAL, "a history of %lld tokens and %d biases",
                             (long long)p->n_history, p->sampling->n_bias);
        }
        n++;
    }
    return rc == ERR_OK ? draw_rows(en, n, used, e) : rc;
}

/* The output rows' way to the host. */
static enum err_code fetch_rows(struct engine *en, const struct step *s, int n_out, struct err *e)
{
    const int k = en->plan.top_k;
    const int64_t n_vocab = model_hparams(en->m)->n_vocab;
    enum err_code rc = kern_download(en->k, en->out_host, en->out_dev, en->out.bytes, e);
    if (rc == ERR_OK && s->want_logits)
        rc = kern_download(en->k, en->logits_host, en->logits_dev,
                           (size_t)n_out * (size_t)n_vocab * sizeof(float), e);
    if (rc != ERR_OK)
        return rc;
    const uint64_t *hash = (const uint64_t *)(const void *)(en->out_host + en->out.hash);
    const int32_t *top_id = (const int32_t *)(const void *)(en->out_host + en->out.top_id);
    const float *top = (const float *)(const void *)(en->out_host + en->out.top);
    const float *lse = (const float *)(const void *)(en->out_host + en->out.lse);
    const int32_t *id = (const int32_t *)(const void *)(en->out_host + en->out.id);
    const float *logit = (const float *)(const void *)(en->out_host + en->out.logit);
    for (int i = 0; i < n_out; i++) {
        struct step_row *row = &en->rows[i];
        row->logits = s->want_logits ? en->logits_host + (int64_t)i * n_vocab : NULL;
        row->top_id = top_id + (ptrdiff_t)i * k;
        row->top = top + (ptrdiff_t)i * k;
        const struct step_piece *p = &s->pieces[row->piece];
        const bool drawn = p->sampling && row->index == p->n - 1;
        row->id = drawn ? id[i] : row->top_id[0];
        row->logit = drawn ? logit[i] : row->top[0];
        row->lse = lse[i];
        row->hash = hash[i];
    }
    if (en->tap)
        en->tap(en->tap_ctx, -1, "logits", n_out, hash);
    return ERR_OK;
}

enum err_code engine_step(struct engine *en, struct step *s, struct err *e)
{
    int n_tok = 0, n_out = 0;
    s->rows = en->rows;
    s->n_rows = 0;
    enum err_code rc = stage_inputs(en, s, &n_tok, &n_out, e);
    if (rc == ERR_OK) { /* the page tables stand last, the step's own first */
        size_t words = en->in.pages + (size_t)s->n_pieces * (size_t)en->pages_max;
        rc = kern_upload(en->k, en->in_dev, en->in_host, words * sizeof(int32_t), e);
    }
    if (rc != ERR_OK)
        return rc;
    rc = run_step(en, s, n_tok, n_out, e);
    if (rc == ERR_OK)
        rc = sample_rows(en, s, n_out, e);
    if (rc == ERR_OK && n_out > 0)
        rc = fetch_rows(en, s, n_out, e);
    if (rc == ERR_OK)
        s->n_rows = n_out;
    return rc;
}
