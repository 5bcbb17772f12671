/* engine_plan.c: how much memory an engine takes, and the fingerprint of what decides its bits. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/ct_layout.h"
#include "common/hash.h"
#include "common/io.h"
#include "common/par.h"
#include "infer/engine_private.h"
#include "infer/kv.h"
#include "infer/sample.h"

#define BATCH_TOKENS_MAX 65536
#define LISTS_LEAST      65536 /* words of histories that one call of kern_sample takes */
#define CTX_DEFAULT      8192
#define KV_DEFAULT_BYTES ((uint64_t)1 << 30)

/* ---- what is there --------------------------------------------------------------------------- */

/* The number after `key` in a small text file, times unit; UINT64_MAX when it cannot be read. */
static uint64_t read_number(const char *path, const char *key, uint64_t unit)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return UINT64_MAX;
    char line[256];
    uint64_t v = UINT64_MAX, n;
    while (v == UINT64_MAX && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, &n) == 1)
            v = n * unit;
    }
    fclose(f);
    return v;
}

/* Memory that this process may still take: what the kernel calls available, within the control
 * group's limit. UINT64_MAX where neither is known. */
static uint64_t available_memory(void)
{
    uint64_t free_bytes = read_number("/proc/meminfo", "MemAvailable:", 1024);
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "", 1);
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "", 1);
    uint64_t cache = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ", 1);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return free_bytes;
    if (cache != UINT64_MAX)
        used -= MIN2(used, cache);
    return MIN2(free_bytes, limit - MIN2(limit, used));
}

/* ---- the plan -------------------------------------------------------------------------------- */

static enum err_code pick_int(int *out, int given, int otherwise, int lo, int hi, const char *name,
                              struct err *e)
{
    *out = given ? given : otherwise;
    if (*out < lo || *out > hi)
        return err_set(e, ERR_USAGE, "%s is %d, expected %d..%d", name, *out, lo, hi);
    return ERR_OK;
}

static enum err_code resolve_options(const struct hparams *hp, const struct engine_options *o,
                                     struct engine_plan *p, struct err *e)
{
    enum err_code rc =
        pick_int(&p->batch_tokens, o->batch_tokens, 512, 1, BATCH_TOKENS_MAX, "batch tokens", e);
    if (rc == ERR_OK)
        rc = pick_int(&p->batch_seqs, o->batch_seqs, MIN2(64, p->batch_tokens), 1, p->batch_tokens,
                      "batch sequences", e);
    if (rc == ERR_OK)
        rc = pick_int(&p->out_rows, o->out_rows, p->batch_seqs, 1, p->batch_tokens, "output rows",
                      e);
    if (rc == ERR_OK)
        rc = pick_int(&p->top_k, o->top_k == 1 ? 2 : o->top_k, 2, 2,
                      (int)MIN2(LOGITS_TOP_MAX, hp->n_vocab), "top k", e);
    if (rc != ERR_OK)
        return rc;
    p->ctx = o->ctx ? o->ctx : MIN2(hp->ctx_max, CTX_DEFAULT);
    if (p->ctx < 1 || p->ctx > hp->ctx_max || p->ctx > ROPE_POS_MAX)
        return err_set(e, ERR_USAGE, "context is %lld, expected 1..%lld (the model's)",
                       (long long)p->ctx, (long long)MIN2(hp->ctx_max, ROPE_POS_MAX));
    return ERR_OK;
}

static void size_buffers(struct model *m, const struct kern *k, const struct engine_plan *p,
                         struct engine_sizes *z)
{
    const struct hparams *hp = model_hparams(m);
    const size_t n = (size_t)p->batch_tokens, r = (size_t)p->out_rows, top = (size_t)p->top_k;
    const size_t pages = (size_t)kv_pages_for(p->ctx) * (size_t)p->batch_seqs;
    z->in.id = 0;
    z->in.pos = n;
    z->in.seq = 2 * n;
    z->in.out_row = 3 * n;
    z->in.pages = z->in.out_row + r;
    z->in.words = z->in.pages + pages;
    z->out.hash = 0;
    z->out.top_id = r * sizeof(uint64_t);
    z->out.top = z->out.top_id + r * top * sizeof(int32_t);
    z->out.lse = z->out.top + r * top * sizeof(float);
    z->out.id = z->out.lse + r * sizeof(float);
    z->out.logit = z->out.id + r * sizeof(int32_t);
    z->out.bytes = z->out.logit + r * sizeof(float);
    /* The CPU takes one row after the other. */
    z->draws.rows = strcmp(kern_device(k), "cpu") == 0 ? 1 : MIN2(p->out_rows, SAMPLE_ROWS_MAX);
    z->draws.lists = MAX2(p->ctx, LISTS_LEAST) + 2 * hp->n_vocab;
    z->draws.bytes = (size_t)z->draws.rows * sizeof(struct sample_row) +
                     (size_t)z->draws.lists * sizeof(int32_t);
    z->draws.room = kern_sample_room(z->draws.rows, hp->n_vocab);
    struct model_dims dims = {p->batch_tokens, p->out_rows, kern_act_bytes(k)};
    z->model_scratch = model_family(m)->plan(m, &dims);
    z->inputs = z->in.words * sizeof(int32_t);
    z->outputs = z->out.bytes;
    z->logits = r * (size_t)hp->n_vocab * sizeof(float);
    z->hashes = MAX2(n, r) * sizeof(uint64_t);
    for (int i = 0; i < engine_n_rope(hp); i++) {
        int rot = rope_dims(hparams_rope(hp, i > 0), hparams_head_dim(hp, i > 0));
        z->rope[i] = (size_t)p->ctx * (size_t)rot * sizeof(float);
    }
    z->rows = r * sizeof(struct step_row);
    z->limits = (struct kern_limits){.n_tok = p->batch_tokens, .n_seq = p->batch_seqs};
    z->limits.pages_max = (int)kv_pages_for(p->ctx);
    model_family(m)->limits(m, &z->limits);
    for (int i = 0; i < 2; i++)
        z->page_bytes[i] = kern_page_bytes(k, hparams_n_kv(hp, i), hparams_head_dim(hp, i));
}

/* Pages: what was asked for, else what a full batch needs, within the memory that is left. */
static enum err_code size_pages(const struct hparams *hp, const struct engine_options *o,
                                struct engine_plan *p, struct engine_sizes *z, struct err *e)
{
    uint64_t per_page = 0;
    for (int i = 0; i < hp->n_layer; i++)
        per_page += hparams_has_kv(hp, i) ? z->page_bytes[hp->sliding[i]] : 0;
    const uint64_t fixed = p->weights + p->scratch + p->host, avail = available_memory();
    const int64_t one = kv_pages_for(p->ctx);
    if (o->kv_tokens < 0)
        return err_set(e, ERR_USAGE, "KV tokens is %lld, expected a positive number",
                       (long long)o->kv_tokens);
    p->pages = o->kv_tokens ? kv_pages_for(o->kv_tokens) : one * p->batch_seqs;
    if (!o->kv_tokens) {
        uint64_t room = avail > fixed ? MIN2((avail - fixed) / 2, KV_DEFAULT_BYTES) : 0;
        p->pages = MAX2(MIN2(p->pages, (int64_t)(room / per_page)), one);
    }
    if (p->pages > INT32_MAX / 2)
        return err_set(e, ERR_USAGE, "%lld KV pages, expected at most %d", (long long)p->pages,
                       INT32_MAX / 2);
    p->kv = per_page * (uint64_t)p->pages;
    z->kv = p->kv;
    p->host += kv_bytes((int32_t)p->pages);
    uint64_t need = fixed + p->kv;
    if (need > avail)
        return err_set(e, ERR_NOMEM,
                       "does not fit by %.1f MB: weights %.1f, KV %.1f (%lld tokens), scratch and "
                       "host %.1f; %.1f MB are available",
                       (double)(need - avail) / 1e6, (double)p->weights / 1e6, (double)p->kv / 1e6,
                       (long long)p->pages * KERN_PAGE, (double)(p->scratch + p->host) / 1e6,
                       (double)avail / 1e6);
    return ERR_OK;
}

enum err_code engine_plan_sizes(struct model *m, const struct kern *k,
                                const struct engine_options *o, struct engine_plan *p,
                                struct engine_sizes *z, struct err *e)
{
    const struct hparams *hp = model_hparams(m);
    memset(p, 0, sizeof *p);
    memset(z, 0, sizeof *z);
    float freq[ROPE_DIMS_MAX / 2], scale;
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < engine_n_rope(hp); i++)
        rc = rope_freqs(hparams_rope(hp, i > 0), hparams_head_dim(hp, i > 0), freq, &scale, e);
    if (rc == ERR_OK)
        rc = resolve_options(hp, o, p, e);
    if (rc != ERR_OK)
        return rc;
    size_buffers(m, k, p, z);
    p->weights = model_weight_bytes(m, k);
    p->scratch = z->model_scratch + z->inputs + z->outputs + z->logits + z->hashes + z->rope[0] +
                 z->rope[1] + z->draws.bytes + z->draws.room + kern_scratch_bytes(k, &z->limits);
    p->host = z->inputs + z->outputs + z->logits + z->hashes + z->rows + z->draws.bytes +
              model_host_bytes(m);
    return size_pages(hp, o, p, z, e);
}

enum err_code engine_plan(const struct checkpoint *c, const struct engine_options *o,
                          struct engine_plan *plan, struct err *e)
{
    struct kern *k = NULL;
    struct model *m = NULL;
    struct engine_sizes z;
    enum err_code rc = model_bind(&m, c, e);
    if (rc == ERR_OK)
        rc = kern_open(&k, &o->kern, e);
    if (rc == ERR_OK)
        rc = engine_plan_sizes(m, k, o, plan, &z, e);
    model_free(m, NULL);
    if (k)
        kern_close(k);
    return rc;
}

/* ---- fingerprint ----------------------------------------------------------------------------- */

struct digests {
    const struct checkpoint *c;
    uint8_t (*digest)[32]; /* [n_weights]; zero where memory ran out */
    bool *done;
};

#define HASH_PIECE ((size_t)4 << 20)

/* Bytes of a weight; a mapped file's leave memory again as they are read. */
static void digest_bytes(const struct ckpt_weight *w, struct sha256 *s, const uint8_t *p,
                         size_t bytes)
{
    for (size_t n; bytes; p += n, bytes -= n) {
        n = MIN2(bytes, HASH_PIECE);
        sha256_update(s, p, n);
        if (w->mapped)
            io_map_drop(p, n);
    }
}

/* All data, then all scales, then all biases: the same whether experts lie together or not. */
static bool digest_blocks(const struct ckpt_weight *w, struct sha256 *s)
{
    const int64_t n_blocks = w->blocks ? w->dim[0] : 1;
    const int64_t rows = ckpt_weight_rows(w) / n_blocks;
    const struct ckpt_block whole = {w->data, w->scales, w->biases, w->globals};
    const struct ckpt_block *blocks = w->blocks ? w->blocks : &whole;
    size_t scales = (size_t)rows * ckpt_weight_scale_bytes(w), bytes = w->bytes / (size_t)n_blocks;
    if (ckpt_weight_packed(w))
        bytes = (size_t)rows * ckpt_weight_row_bytes(w);
    for (int64_t b = 0; b < n_blocks; b++)
        digest_bytes(w, s, blocks[b].data, bytes);
    for (int64_t b = 0; blocks[0].scales && b < n_blocks; b++)
        digest_bytes(w, s, blocks[b].scales, scales);
    for (int64_t b = 0; blocks[0].biases && b < n_blocks; b++)
        digest_bytes(w, s, blocks[b].biases, scales);
    for (int64_t m = 0; m < ckpt_weight_n_globals(w); m++) {
        int64_t r = m * (ckpt_weight_rows(w) / ckpt_weight_n_globals(w));
        sha256_update(s, ckpt_weight_stored_global(w, r), 4);
    }
    return true;
}

/* A part of a stored tensor, row by row: codes or elements, and scales. False: out of memory. */
static bool digest_rows(const struct ckpt_weight *w, struct sha256 *s)
{
    const size_t bytes = ckpt_weight_row_bytes(w), scales = ckpt_weight_scale_bytes(w);
    uint8_t *row = w->strides ? malloc(MAX2(bytes, 1)) : NULL;
    if (w->strides && !row)
        return false;
    for (int64_t r = 0; r < ckpt_weight_rows(w); r++) {
        struct ckpt_block at = {.data = row};
        if (row)
            ckpt_weight_stored_row(w, r, row);
        else
            ckpt_weight_at(w, r, &at);
        sha256_update(s, at.data, bytes);
        if (at.scales)
            sha256_update(s, at.scales, scales);
    }
    free(row);
    return true;
}

/* What compressed-tensors holds of a matrix. */
static bool digest_ct(const struct ct_packed *p, struct sha256 *s)
{
    char head[80];
    int n = snprintf(head, sizeof head, "%d %d %d %d %lld", p->bits, p->dense, p->symmetric,
                     (int)p->scale, (long long)p->group);
    sha256_update(s, head, (size_t)n);
    sha256_update(s, p->scales, p->scale_bytes);
    if (p->zeros)
        sha256_update(s, p->zeros, p->zero_bytes);
    sha256_update(s, p->data, p->data_bytes);
    return true;
}

/* Format, shape and stored bytes of one weight. */
static void digest_weight(void *ctx, int64_t i, int thread)
{
    (void)thread;
    struct digests *d = ctx;
    const struct ckpt_weight *w = &d->c->weights[i];
    struct sha256 *s = sha256_new();
    if (!s)
        return;
    char head[CKPT_NAME_MAX + 256];
    int n = snprintf(head, sizeof head, "%s %d %d %d %d %d %d %d", w->name, (int)w->enc,
                     (int)w->dtype, w->q.bits, w->q.group, (int)w->q.scale, w->ggml, w->rope_heads);
    sha256_update(s, head, (size_t)n);
    sha256_update(s, w->dim, (size_t)w->n_dim * sizeof *w->dim);
    if (w->enc == CKPT_CT)
        d->done[i] = digest_ct(w->ct, s);
    else
        d->done[i] = w->row_step || w->strides ? digest_rows(w, s) : digest_blocks(w, s);
    sha256_final(s, d->digest[i]);
}

static void put_rope(struct strbuf *b, const struct rope_params *r, int head_dim)
{
    strbuf_printf(b, "%d %.17g %.17g %.17g %.17g %.17g %.17g %.17g %.17g %d %d %d\n", (int)r->kind,
                  r->theta, r->factor, r->low_freq_factor, r->high_freq_factor, r->original_ctx,
                  r->beta_fast, r->beta_slow, r->attention_factor, r->truncate, r->partial_dims,
                  r->turning_pairs);
    for (int i = 0; r->kind == ROPE_FACTORS && r->factors && i < head_dim / 2; i++)
        strbuf_printf(b, "%.9g ", (double)r->factors[i]);
}

static void put_hparams(struct strbuf *b, const struct hparams *hp)
{
    strbuf_printf(b, "%s %d %d %d %d %" PRId64 " %" PRId64 " %" PRId64 " %.17g %d %d %d %d\n",
                  hp->family, hp->n_layer, hp->n_head, hp->n_kv, hp->head_dim, hp->d_model,
                  hp->d_ff, hp->n_vocab, hp->rms_eps, hp->tied, hp->attn_bias, hp->mlp_bias,
                  (int)hp->act);
    strbuf_printf(b, "%d %d %d %d %d %d %d %d %d\n", hp->o_bias, hp->qk_norm, hp->post_norms,
                  hp->norm_plus_one, hp->head_dim_full, hp->n_kv_full, hp->k_eq_v, hp->v_norm,
                  hp->layer_scalar);
    for (int i = 0; i < engine_n_rope(hp); i++)
        put_rope(b, hparams_rope(hp, i > 0), hparams_head_dim(hp, i > 0));
    for (int i = 0; i < hp->n_layer; i++)
        strbuf_putc(b, hp->sliding[i] ? 'w' : '.');
    strbuf_printf(b, "\n%d %d %d %" PRId64 " %.9g %.9g %.9g %.9g\n", hp->window, hp->n_expert,
                  hp->n_expert_used, hp->d_ff_expert, (double)hp->attn_softcap,
                  (double)hp->logit_softcap, (double)hp->embed_scale, (double)hp->attn_scale);
    for (int i = 0; hp->n_expert && i < hp->n_layer; i++)
        strbuf_putc(b, hp->sparse[i] ? 'e' : '.');
    if (hp->n_expert)
        strbuf_printf(b, "\n%d %d\n", hp->softmax_all, hp->norm_topk);
    if (hp->n_kv_shared || hp->d_input || hp->mlp_beside)
        strbuf_printf(b, "%d %" PRId64 " %" PRId64 " %" PRId64 " %.9g %d\n", hp->n_kv_shared,
                      hp->d_ff_shared, hp->d_input, hp->n_vocab_input, (double)hp->input_scale,
                      hp->mlp_beside);
}

enum err_code engine_hash_weights(const struct checkpoint *c, const struct hparams *hp,
                                  const struct kern *k, char hex[65], struct err *e)
{
    struct digests d = {.c = c};
    struct strbuf text = {0};
    enum err_code rc = ERR_OK;
    d.digest = calloc(c->n_weights + 1, sizeof *d.digest);
    d.done = calloc(c->n_weights + 1, sizeof *d.done);
    if (!d.digest || !d.done) {
        rc = err_set(e, ERR_NOMEM, "out of memory for %zu hashes", c->n_weights);
        goto out;
    }
    /* The threads of a CPU's kern are the user's choice; another device has none of its own. */
    const bool cpu = strcmp(kern_device(k), "cpu") == 0;
    par_for(cpu ? kern_threads(k) : par_default_threads(), (int64_t)c->n_weights, digest_weight,
            &d);
    strbuf_printf(&text, "assay bits 1 %s\n", kern_arith_name(kern_arith(k)));
    put_hparams(&text, hp);
    for (size_t i = 0; i < c->n_weights; i++) {
        if (!d.done[i]) {
            rc = err_set(e, ERR_NOMEM, "out of memory for a hash");
            goto out;
        }
        strbuf_append(&text, d.digest[i], sizeof d.digest[i]);
    }
    rc = strbuf_ok(&text, e);
    if (rc == ERR_OK) {
        uint8_t all[32];
        sha256_of(text.data, text.len, all);
        sha256_hex(all, hex);
    }
out:
    strbuf_free(&text);
    free(d.digest);
    free(d.done);
    return rc;
}
