/* tiny_model.c: draws and writes the tensors of a tiny model. */
#include "tests/tiny_model.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/qformat.h"
#include "ckpt/st_writer.h"
#include "common/hash.h"
#include "common/io.h"
#include "common/str.h"

#define SPECS_MAX 512

/* One stored tensor. A matrix has up to three: weight, scales, biases. */
struct spec {
    char name[96];
    enum { PART_WEIGHT, PART_SCALES, PART_BIASES, PART_VECTOR } part;
    uint64_t id; /* the same for the parts of one matrix */
    int64_t rows, k;
    int64_t row0; /* of the matrix that is drawn: single experts are parts of one */
    int stack;    /* experts in one tensor, of rows / stack each; 0: two dimensions */
    bool embedding;
};

struct builder {
    const struct tiny_model *m;
    struct spec *specs;
    size_t n;
    uint64_t next_id;
    struct strbuf quantization; /* entries of config.json */
};

struct tiny_model tiny_model_default(void)
{
    return (struct tiny_model){.d_model = 128,
                               .d_ff = 640,
                               .n_layer = 2,
                               .n_head = 4,
                               .n_kv = 2,
                               .head_dim = 32,
                               .n_vocab = 320,
                               .ctx = 4096,
                               .bits = 4,
                               .group = 64,
                               .nan_token = -1,
                               .seed = 1};
}

struct tiny_model tiny_model_experts(bool qwen3_moe)
{
    struct tiny_model m = tiny_model_default();
    m.d_ff = m.d_ff_expert = 576;
    m.n_expert = 4;
    m.n_used = 2;
    m.qwen3_moe = qwen3_moe;
    return m;
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t draw_bits(const struct tiny_model *m, uint64_t id, uint64_t what, uint64_t i)
{
    return hash_mix64(hash_mix64(hash_mix64(m->seed * 7 + what) + id) + i);
}

/* Uniform in [-1, 1). */
static double draw_unit(const struct tiny_model *m, uint64_t id, uint64_t what, uint64_t i)
{
    return (double)(draw_bits(m, id, what, i) >> 11) * 0x1p-52 - 1;
}

static uint32_t code_at(const struct tiny_model *m, const struct spec *s, uint64_t i)
{
    return (uint32_t)(draw_bits(m, s->id, 1, i) >> 40) & ((1U << m->bits) - 1);
}

/* Scale and bias of a group, in bf16, about zero mean and 1.4 / sqrt(k) deep. */
static float scale_at(const struct tiny_model *m, const struct spec *s, uint64_t g)
{
    double step = 2.4 / sqrt((double)s->k) / ((1 << m->bits) - 1);
    return bf16_to_f32(bf16_from_f32((float)(step * (1.5 + 0.4 * draw_unit(m, s->id, 2, g)))));
}

static float bias_at(const struct tiny_model *m, const struct spec *s, uint64_t g)
{
    double mid = -0.5 * ((1 << m->bits) - 1) * (double)scale_at(m, s, g);
    return bf16_to_f32(bf16_from_f32((float)(mid * (1 + 0.1 * draw_unit(m, s->id, 3, g)))));
}

static float dense_at(const struct tiny_model *m, const struct spec *s, uint64_t i)
{
    if (s->part == PART_VECTOR)
        return (float)((s->embedding ? 0 : 1) + 0.2 * draw_unit(m, s->id, 4, i));
    if (s->embedding && m->nan_token >= 0 && i / (uint64_t)s->k == (uint64_t)m->nan_token)
        return NAN;
    return (float)(2.4 / sqrt((double)s->k) * draw_unit(m, s->id, 4, i));
}

static float value_at(const struct tiny_model *m, const struct spec *s, uint64_t i)
{
    if (s->part == PART_VECTOR || m->form == TINY_F32 || m->form == TINY_BF16)
        return dense_at(m, s, i);
    uint64_t g = i / (uint64_t)m->group;
    float q = (float)code_at(m, s, i), scale = scale_at(m, s, g), bias = bias_at(m, s, g);
    if (m->form == TINY_EXPANDED_BF16)
        return bf16_to_f32(qformat_bf16_exact((uint32_t)q, scale, bias));
    return fmaf(q, scale, bias);
}

/* ---- the list of tensors --------------------------------------------------------------------- */

static void add_spec(struct builder *b, const char *name, const char *suffix, struct spec s)
{
    if (b->n == SPECS_MAX)
        abort();
    snprintf(s.name, sizeof s.name, "%s.%s", name, suffix);
    b->specs[b->n++] = s;
}

static void add_matrix(struct builder *b, const char *name, int64_t rows, int64_t k, bool bias)
{
    struct spec s = {.part = PART_WEIGHT, .id = ++b->next_id, .rows = rows, .k = k};
    s.embedding = strstr(name, "embed") != NULL;
    add_spec(b, name, "weight", s);
    if (b->m->form == TINY_PACKED) {
        s.part = PART_SCALES;
        add_spec(b, name, "scales", s);
        s.part = PART_BIASES;
        add_spec(b, name, "biases", s);
        strbuf_printf(&b->quantization, ", \"%s\": {\"group_size\": %d, \"bits\": %d}", name,
                      b->m->group, b->m->bits);
    }
    if (bias) {
        struct spec v = {.part = PART_VECTOR, .id = ++b->next_id, .rows = 1, .k = rows};
        v.embedding = true; /* around zero, unlike a norm */
        add_spec(b, name, "bias", v);
    }
}

static void add_vector(struct builder *b, const char *name, int64_t n)
{
    struct spec s = {.part = PART_VECTOR, .id = ++b->next_id, .rows = 1, .k = n};
    add_spec(b, name, "weight", s);
}

static void add_norm(struct builder *b, const char *name)
{
    add_vector(b, name, b->m->d_model);
}

/* The matrices of all experts: one after the other, or, packed, as mlx-lm stacks them. */
static void add_stack(struct builder *b, const char *block, const char *single, const char *stacked,
                      int64_t rows, int64_t k)
{
    const struct tiny_model *m = b->m;
    char name[80];
    if (m->form == TINY_PACKED) {
        snprintf(name, sizeof name, "%s.switch_mlp.%s", block, stacked);
        size_t first = b->n;
        add_matrix(b, name, rows * m->n_expert, k, false);
        for (size_t i = first; i < b->n; i++)
            b->specs[i].stack = m->n_expert;
        return;
    }
    uint64_t id = ++b->next_id;
    for (int i = 0; i < m->n_expert; i++) {
        struct spec s = {.part = PART_WEIGHT, .id = id, .rows = rows, .k = k, .row0 = i * rows};
        snprintf(name, sizeof name, "%s.experts.%d.%s", block, i, single);
        add_spec(b, name, "weight", s);
    }
}

static void add_experts(struct builder *b, int layer)
{
    const struct tiny_model *m = b->m;
    const bool q = m->qwen3_moe;
    char block[64], router[80];
    snprintf(block, sizeof block, "model.layers.%d.%s", layer, q ? "mlp" : "block_sparse_moe");
    snprintf(router, sizeof router, "%s.gate", block);
    add_matrix(b, router, m->n_expert, m->d_model, false);
    add_stack(b, block, q ? "gate_proj" : "w1", "gate_proj", m->d_ff_expert, m->d_model);
    add_stack(b, block, q ? "up_proj" : "w3", "up_proj", m->d_ff_expert, m->d_model);
    add_stack(b, block, q ? "down_proj" : "w2", "down_proj", m->d_model, m->d_ff_expert);
}

static bool is_sparse(const struct tiny_model *m, int layer)
{
    return m->n_expert && !(m->qwen3_moe && layer == 0);
}

static void list_tensors(struct builder *b)
{
    const struct tiny_model *m = b->m;
    const int64_t q = (int64_t)m->n_head * m->head_dim, kv = (int64_t)m->n_kv * m->head_dim;
    char name[80];
    add_matrix(b, "model.embed_tokens", m->n_vocab, m->d_model, false);
    for (int i = 0; i < m->n_layer; i++) {
        const struct {
            const char *name;
            int64_t rows, k;
        } linears[] = {
            {"self_attn.q_proj", q, m->d_model},    {"self_attn.k_proj", kv, m->d_model},
            {"self_attn.v_proj", kv, m->d_model},   {"self_attn.o_proj", m->d_model, q},
            {"mlp.gate_proj", m->d_ff, m->d_model}, {"mlp.up_proj", m->d_ff, m->d_model},
            {"mlp.down_proj", m->d_model, m->d_ff},
        };
        const size_t n_linears = is_sparse(m, i) ? 4 : ARRAY_LEN(linears);
        for (size_t j = 0; j < n_linears; j++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, linears[j].name);
            add_matrix(b, name, linears[j].rows, linears[j].k, m->biases);
        }
        if (is_sparse(m, i))
            add_experts(b, i);
        if (m->qwen3_moe) {
            snprintf(name, sizeof name, "model.layers.%d.self_attn.q_norm", i);
            add_vector(b, name, m->head_dim);
            snprintf(name, sizeof name, "model.layers.%d.self_attn.k_norm", i);
            add_vector(b, name, m->head_dim);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm", i);
        add_norm(b, name);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm", i);
        add_norm(b, name);
    }
    add_norm(b, "model.norm");
    if (!m->tied)
        add_matrix(b, "lm_head", m->n_vocab, m->d_model, false);
}

/* ---- writing --------------------------------------------------------------------------------- */

static enum dtype stored_type(const struct tiny_model *m, const struct spec *s)
{
    if (s->part == PART_VECTOR)
        return DT_F32;
    if (m->form == TINY_PACKED)
        return s->part == PART_WEIGHT ? DT_U32 : DT_BF16;
    return m->form == TINY_BF16 || m->form == TINY_EXPANDED_BF16 ? DT_BF16 : DT_F32;
}

static int64_t stored_cols(const struct tiny_model *m, const struct spec *s)
{
    if (m->form != TINY_PACKED || s->part == PART_VECTOR)
        return s->k;
    return s->part == PART_WEIGHT ? s->k * m->bits / 32 : s->k / m->group;
}

static void fill_row(const struct tiny_model *m, const struct spec *s, int64_t r, uint8_t *out)
{
    const int64_t cols = stored_cols(m, s);
    r += s->row0;
    if (m->form == TINY_PACKED && s->part == PART_WEIGHT) {
        memset(out, 0, (size_t)cols * 4);
        for (int64_t i = 0; i < s->k; i++) {
            uint32_t q = code_at(m, s, (uint64_t)(r * s->k + i));
            for (int bit = 0; bit < m->bits; bit++) {
                int64_t at = i * m->bits + bit;
                out[at >> 3] = (uint8_t)(out[at >> 3] | (q >> bit & 1U) << (at & 7));
            }
        }
        return;
    }
    for (int64_t i = 0; i < cols; i++) {
        uint64_t at = (uint64_t)(r * cols + i);
        float v = s->part == PART_SCALES   ? scale_at(m, s, at)
                  : s->part == PART_BIASES ? bias_at(m, s, at)
                                           : value_at(m, s, at);
        if (stored_type(m, s) == DT_BF16)
            store_u16(out + 2 * i, bf16_from_f32(v));
        else
            memcpy(out + 4 * i, &v, sizeof v);
    }
}

static enum err_code write_tensor(struct st_writer *w, const struct builder *b, const char *name,
                                  struct err *e)
{
    const struct spec *s = b->specs;
    while (strcmp(s->name, name) != 0)
        s++;
    size_t row = (size_t)stored_cols(b->m, s) * (stored_type(b->m, s) == DT_BF16 ? 2 : 4);
    uint8_t *buf = malloc(row);
    enum err_code rc = buf ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
    for (int64_t r = 0; rc == ERR_OK && r < s->rows; r++) {
        fill_row(b->m, s, r, buf);
        rc = st_writer_data(w, name, buf, row, e);
    }
    free(buf);
    return rc;
}

static enum err_code write_weights(const char *dir, const struct builder *b, struct err *e)
{
    char *path = io_join(dir, "model.safetensors");
    struct st_writer *w = NULL;
    enum err_code rc = path ? st_writer_open(&w, path, e) : err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < b->n; i++) {
        const struct spec *s = &b->specs[i];
        const int64_t stack = MAX2(s->stack, 1);
        int64_t dim[3] = {stack, s->rows / stack, stored_cols(b->m, s)};
        int n_dim = s->part == PART_VECTOR ? 1 : s->stack ? 3 : 2;
        rc = st_writer_declare(w, s->name, stored_type(b->m, s), n_dim, dim + 3 - n_dim, e);
    }
    if (rc == ERR_OK)
        rc = st_writer_begin(w, e);
    for (const char *name; rc == ERR_OK && (name = st_writer_next(w)) != NULL;)
        rc = write_tensor(w, b, name, e);
    char hex[65];
    if (rc == ERR_OK)
        rc = st_writer_finish(w, hex, e);
    else if (w)
        st_writer_abort(w);
    free(path);
    return rc;
}

static enum err_code write_config(const char *dir, const struct builder *b, struct err *e)
{
    const struct tiny_model *m = b->m;
    struct strbuf t = {0};
    strbuf_printf(&t,
                  "{\"model_type\": \"%s\", \"hidden_size\": %d, \"intermediate_size\": %d,\n"
                  "\"num_hidden_layers\": %d, \"num_attention_heads\": %d,\n"
                  "\"num_key_value_heads\": %d, \"head_dim\": %d, \"vocab_size\": %d,\n"
                  "\"max_position_embeddings\": %lld, \"rms_norm_eps\": 1e-05,\n"
                  "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"eos_token_id\": 1,\n"
                  "\"bos_token_id\": 0, \"tie_word_embeddings\": %s",
                  m->n_expert ? (m->qwen3_moe ? "qwen3_moe" : "mixtral")
                  : m->window ? "mistral"
                              : "llama",
                  m->d_model, m->d_ff, m->n_layer, m->n_head, m->n_kv, m->head_dim, m->n_vocab,
                  (long long)m->ctx, m->tied ? "true" : "false");
    if (m->window)
        strbuf_printf(&t, ", \"sliding_window\": %d", m->window);
    if (m->n_expert)
        strbuf_printf(&t,
                      ", \"num_local_experts\": %d, \"num_experts_per_tok\": %d,\n"
                      "\"moe_intermediate_size\": %d, \"norm_topk_prob\": true,\n"
                      "\"mlp_only_layers\": [0]",
                      m->n_expert, m->n_used, m->d_ff_expert);
    if (m->rope_scaling)
        strbuf_printf(&t, ", \"rope_scaling\": %s", m->rope_scaling);
    if (m->biases)
        strbuf_puts(&t, ", \"attention_bias\": true, \"mlp_bias\": true");
    if (m->form == TINY_PACKED)
        strbuf_printf(&t, ",\n\"quantization\": {\"group_size\": %d, \"bits\": %d%s}", m->group,
                      m->bits, b->quantization.data);
    strbuf_puts(&t, "}\n");
    enum err_code rc = strbuf_ok(&t, e);
    char *path = io_join(dir, "config.json");
    if (rc == ERR_OK && !path)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = io_write_all(path, t.data, t.len, false, e);
    free(path);
    strbuf_free(&t);
    return rc;
}

enum err_code tiny_model_write(const char *dir, const struct tiny_model *m, struct err *e)
{
    struct builder b = {.m = m};
    b.specs = calloc(SPECS_MAX, sizeof *b.specs);
    if (!b.specs)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = mkdir(dir, 0700) == 0 ? ERR_OK : err_errno(e, "%s", dir);
    list_tensors(&b);
    if (rc == ERR_OK)
        rc = write_config(dir, &b, e);
    if (rc == ERR_OK)
        rc = write_weights(dir, &b, e);
    strbuf_free(&b.quantization);
    free(b.specs);
    return rc;
}

/* ---- folders --------------------------------------------------------------------------------- */

char *tiny_temp_dir(void)
{
    char *dir = strdup(P_tmpdir "/assay-tiny-XXXXXX");
    if (dir && !mkdtemp(dir)) {
        free(dir);
        return NULL;
    }
    return dir;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

void tiny_remove(const char *dir)
{
    nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
