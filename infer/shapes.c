/* shapes.c: the table of shapes, and synthetic checkpoints. */
#include "infer/shapes.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/names.h"
#include "common/arena.h"
#include "common/io.h"
#include "common/rng.h"
#include "infer/model.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

/* clang-format off */
#define CONFIG(...) #__VA_ARGS__
static const struct {
    const char *name, *config;
} shapes[] = {
    {"llama3-8b", CONFIG({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        "tie_word_embeddings": false
    })},
    {"qwen3-4b", CONFIG({
        "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": true
    })},
    {"qwen3-30b-a3b", CONFIG({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "tie_word_embeddings": false
    })},
    {"mixtral-8x7b", CONFIG({
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": null, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "tie_word_embeddings": false
    })},
    {"gpt-oss-20b", CONFIG({
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4,
        "sliding_window": 128, "swiglu_limit": 7.0, "attention_bias": true,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": false},
        "tie_word_embeddings": false
    })},
    {"gemma4-31b", CONFIG({
        "model_type": "gemma4_text", "rms_norm_eps": 1e-06, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": true, "hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
        "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024,
        "hidden_size_per_layer_input": 0, "max_position_embeddings": 262144, "vocab_size": 262144
    })},
    {"gemma4-26b-a4b", CONFIG({
        "model_type": "gemma4_text", "rms_norm_eps": 1e-06, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": true, "hidden_size": 2816, "intermediate_size": 2112,
        "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_global_key_value_heads": 2, "attention_k_eq_v": true, "sliding_window": 1024,
        "hidden_size_per_layer_input": 0, "enable_moe_block": true, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704, "max_position_embeddings": 262144,
        "vocab_size": 262144
    })},
    {"gemma4-e4b", CONFIG({
        "model_type": "gemma4_text", "rms_norm_eps": 1e-06, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": true, "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 42, "num_attention_heads": 8, "num_key_value_heads": 2,
        "num_kv_shared_layers": 18, "sliding_window": 512, "hidden_size_per_layer_input": 256,
        "max_position_embeddings": 131072, "vocab_size": 262144
    })},
    {"smollm2-135m", CONFIG({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
        "rope_theta": 100000.0, "tie_word_embeddings": true
    })},
    {"tiny-llama", CONFIG({
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 640,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 512, "max_position_embeddings": 16384, "tie_word_embeddings": false,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0
    })},
    {"tiny-mixtral", CONFIG({
        "model_type": "mixtral", "hidden_size": 128, "intermediate_size": 192,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 512, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 16384, "tie_word_embeddings": false, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0
    })},
    {"tiny-gpt-oss", CONFIG({
        "model_type": "gpt_oss", "hidden_size": 320, "intermediate_size": 640,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": 512, "num_local_experts": 6, "num_experts_per_tok": 3,
        "sliding_window": 100, "max_position_embeddings": 16384, "tie_word_embeddings": false
    })},
    {"tiny-gemma4-a4b", CONFIG({
        "model_type": "gemma4_text", "rms_norm_eps": 1e-06, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": true, "hidden_size": 320, "intermediate_size": 640,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_global_key_value_heads": 1, "head_dim": 32, "global_head_dim": 64, "attention_k_eq_v":
        true, "sliding_window": 100, "hidden_size_per_layer_input": 0, "enable_moe_block": true,
        "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 64,
        "max_position_embeddings": 16384, "vocab_size": 512, "layer_types": ["sliding_attention",
        "full_attention"]
    })},
    {"tiny-gemma4-e", CONFIG({
        "model_type": "gemma4_text", "rms_norm_eps": 1e-06, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": true, "hidden_size": 320, "intermediate_size": 640,
        "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "global_head_dim": 64, "sliding_window": 100, "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": 512, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
        "max_position_embeddings": 16384, "vocab_size": 512, "layer_types": ["sliding_attention",
        "full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    })},
    {"tiny-qwen3-moe", CONFIG({
        "model_type": "qwen3_moe", "hidden_size": 128, "intermediate_size": 256,
        "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "num_experts": 8,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "mlp_only_layers": [0],
        "max_position_embeddings": 16384, "tie_word_embeddings": false, "decoder_sparse_step": 1,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0
    })},
};
/* clang-format on */

static enum err_code read_config(const char *path, json_t **config, struct err *e)
{
    struct strbuf text = {0};
    enum err_code rc = io_read_all(path, CONFIG_BYTES_MAX, &text, e);
    if (rc == ERR_OK)
        rc = err_wrap(e, json_parse(text.data, text.len, config, e), "%s", path);
    strbuf_free(&text);
    return rc;
}

enum err_code shapes_config(const char *name, json_t **config, struct err *e)
{
    struct strbuf known = {0};
    *config = NULL;
    if (str_ends(name, ".json"))
        return read_config(name, config, e);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            strbuf_free(&known);
            return json_parse(shapes[i].config, strlen(shapes[i].config), config, e);
        }
        strbuf_printf(&known, "%s%s", i ? ", " : "", shapes[i].name);
    }
    enum err_code rc = err_set(e, ERR_USAGE, "no shape '%.64s'; expected one of %s", name,
                               known.failed ? "?" : known.data);
    strbuf_free(&known);
    return rc;
}

/* ---- bytes that repeat ------------------------------------------------------------------------
 */
#define CODE_STRETCH  ((size_t)32 << 20)
#define SCALE_STRETCH ((size_t)1 << 20)

/* `bytes` of address space over one stretch of memory, mapped again and again. */
struct pool {
    uint8_t *data;
    size_t bytes;
};

static enum err_code pool_open(struct pool *p, size_t stretch, size_t bytes, struct err *e)
{
    const size_t n = MAX2((bytes + stretch - 1) / stretch, (size_t)1);
    *p = (struct pool){NULL, n * stretch};
    int fd = memfd_create("assay-shape", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)stretch) != 0) {
        enum err_code rc = err_errno(e, "memory for synthetic weights");
        if (fd >= 0)
            close(fd);
        return rc;
    }
    void *base =
        mmap(NULL, p->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool good = base != MAP_FAILED;
    for (size_t i = 0; good && i < n; i++)
        good = mmap((uint8_t *)base + i * stretch, stretch, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    close(fd);
    if (!good) {
        enum err_code rc = err_errno(e, "%zu bytes of address space", p->bytes);
        if (base != MAP_FAILED)
            munmap(base, p->bytes);
        return rc;
    }
    p->data = base;
    return ERR_OK;
}

static void pool_close(struct pool *p)
{
    if (p->data)
        munmap(p->data, p->bytes);
}

/* ---- weights ----------------------------------------------------------------------------------
 */
#define GROUP   64
#define K_KINDS 32 /* most row lengths of a model */

struct synthetic {
    struct checkpoint c; /* first: what the caller holds */
    struct arena *arena;
    struct pool codes;
    /* Scales and biases by row length and bits: they set the size of a product. */
    struct grid {
        int64_t k;
        struct qformat q;
        struct pool scales, biases; /* no biases for block floats */
    } grid[K_KINDS];
    int n_grids;
};

static size_t scale_bytes(const struct ckpt_weight *w)
{
    return (size_t)ckpt_weight_rows(w) * ckpt_weight_scale_bytes(w);
}

/* bf16 scales between 0.75 and 1.25 of a step that makes products of unit variance; biases centre
 * the codes. */
static void fill_grid(struct grid *g)
{
    struct rng r = {.seed = (uint64_t)g->k * 16 + (uint64_t)g->q.bits};
    /* e2m1 codes have a mean square of 8.6: two powers of two about the step. */
    int power = (int)floor(log2(1 / sqrt(8.6 * (double)g->k)));
    for (size_t i = 0; qformat_is_block(g->q) && i < SCALE_STRETCH; i++)
        g->scales.data[i] = (uint8_t)(127 + power + (int)rng_below(&r, 2));
    if (qformat_is_block(g->q))
        return;
    double codes = (double)(1 << g->q.bits) - 1, step = sqrt(12.0 / (double)g->k) / codes;
    for (size_t i = 0; i < SCALE_STRETCH / 2; i++) {
        uint16_t s = bf16_from_f32((float)(step * (0.75 + 0.5 * rng_double(&r))));
        store_u16(g->scales.data + 2 * i, s);
        store_u16(g->biases.data + 2 * i, bf16_from_f32((float)(-0.5 * codes) * bf16_to_f32(s)));
    }
}

static struct grid *find_grid(struct synthetic *s, int64_t k, struct qformat q)
{
    for (int i = 0; i < s->n_grids; i++) {
        if (s->grid[i].k == k && qformat_same(s->grid[i].q, q))
            return &s->grid[i];
    }
    return NULL;
}

/* A grid for the weight, long enough for its scales; `most` is that of the longest. */
static enum err_code want_grid(struct synthetic *s, const struct ckpt_weight *w, size_t most,
                               struct err *e)
{
    if (find_grid(s, ckpt_weight_k(w), w->q))
        return ERR_OK;
    if (s->n_grids == K_KINDS)
        return err_set(e, ERR_INTERNAL, "more than %d row lengths", K_KINDS);
    struct grid *g = &s->grid[s->n_grids++];
    g->k = ckpt_weight_k(w);
    g->q = w->q;
    enum err_code rc = pool_open(&g->scales, SCALE_STRETCH, most, e);
    if (rc == ERR_OK && !qformat_is_block(g->q))
        rc = pool_open(&g->biases, SCALE_STRETCH, most, e);
    if (rc == ERR_OK)
        fill_grid(g);
    return rc;
}

/* Names, shapes and formats; the bytes come when the pools are there. */
static enum err_code add_weight(struct synthetic *s, const struct model_tensor *t, struct err *e)
{
    struct ckpt_weight *w = &s->c.weights[s->c.n_weights++];
    *w = (struct ckpt_weight){.enc = CKPT_DENSE, .dtype = DT_BF16, .ggml = GGML_NONE};
    w->name = w->stored = arena_strdup(s->arena, t->name);
    if (!w->name)
        return arena_error(s->arena, sizeof t->name, e);
    w->n_dim = t->n_dim;
    memcpy(w->dim, t->dim, sizeof w->dim);
    w->role = names_role(t->name);
    w->layer = names_layer(t->name);
    const int64_t k = ckpt_weight_k(w), rows = ckpt_weight_rows(w);
    if (t->n_dim >= 2 && k % GROUP == 0 && str_ends(t->name, ".weight")) {
        bool gpt_oss = s->c.hp.act == ACT_GPTOSS, mx = gpt_oss && w->role == ROLE_EXPERT;
        w->enc = mx ? CKPT_MX : CKPT_AFFINE;
        w->q = (struct qformat){gpt_oss || w->role == ROLE_ROUTER ? 8 : 4, GROUP, DT_BF16};
        w->q = mx ? QFORMAT_MXFP4 : w->q;
        w->bytes = (size_t)rows * qformat_row_bytes(w->q, k) + (mx ? 1 : 2) * scale_bytes(w);
        return ERR_OK;
    }
    /* Vectors: one for norms and scales, zero for biases; a matrix whose rows no group divides is
     * zero. */
    w->bytes = (size_t)(rows * k) * sizeof(uint16_t);
    uint8_t *data = arena_array(s->arena, (size_t)(rows * k), sizeof(uint16_t));
    if (!data)
        return arena_error(s->arena, w->bytes, e);
    const bool ones =
        w->role == ROLE_NORM || str_ends(w->name, "scale") || str_ends(w->name, "layer_scalar");
    for (int64_t i = 0; ones && i < rows * k; i++)
        store_u16(data + 2 * i, bf16_from_f32(1));
    w->data = data;
    return ERR_OK;
}

static enum err_code fill_weights(struct synthetic *s, struct err *e)
{
    size_t codes = 0, scales = 0;
    for (size_t i = 0; i < s->c.n_weights; i++) {
        const struct ckpt_weight *w = &s->c.weights[i];
        if (ckpt_weight_packed(w)) {
            codes = MAX2(codes, w->bytes);
            scales = MAX2(scales, scale_bytes(w));
        }
    }
    enum err_code rc = pool_open(&s->codes, CODE_STRETCH, codes, e);
    struct rng r = {.seed = 1};
    for (size_t i = 0; rc == ERR_OK && i < CODE_STRETCH / 8; i++) {
        uint64_t v = rng_next(&r);
        memcpy(s->codes.data + 8 * i, &v, sizeof v);
    }
    for (size_t i = 0; rc == ERR_OK && i < s->c.n_weights; i++) {
        struct ckpt_weight *w = &s->c.weights[i];
        if (!ckpt_weight_packed(w))
            continue;
        rc = want_grid(s, w, scales, e);
        if (rc != ERR_OK)
            break;
        const struct grid *g = find_grid(s, ckpt_weight_k(w), w->q);
        w->data = s->codes.data;
        w->scales = g->scales.data;
        w->biases = g->biases.data;
    }
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_weight *)a)->name, ((const struct ckpt_weight *)b)->name);
}

static enum err_code build(struct synthetic *s, const char *name, struct err *e)
{
    struct model_tensor *list = NULL;
    size_t n = 0;
    s->c.path = strdup(name);
    s->c.format = CKPT_FORMAT_MLX;
    s->arena = arena_new(0);
    if (!s->c.path || !s->arena)
        return err_set(e, ERR_NOMEM, "out of memory for shape %s", name);
    enum err_code rc = shapes_config(name, &s->c.config, e);
    if (rc == ERR_OK)
        rc = err_wrap(e, hparams_from_config(&s->c.hp, s->c.config, NULL, e), "%s", name);
    if (rc == ERR_OK)
        rc = model_list_tensors(&s->c.hp, &list, &n, e);
    s->c.hp_ok = rc == ERR_OK;
    if (rc == ERR_OK) {
        s->c.weights = arena_array(s->arena, n + 1, sizeof *s->c.weights);
        if (!s->c.weights)
            rc = arena_error(s->arena, n, e);
    }
    for (size_t i = 0; rc == ERR_OK && i < n; i++)
        rc = add_weight(s, &list[i], e);
    free(list);
    if (rc == ERR_OK) {
        qsort(s->c.weights, n, sizeof *s->c.weights, compare_names);
        rc = fill_weights(s, e);
    }
    return rc;
}

enum err_code shapes_checkpoint(struct checkpoint **c, const char *name, struct err *e)
{
    struct synthetic *s = calloc(1, sizeof *s);
    *c = NULL;
    if (!s)
        return err_set(e, ERR_NOMEM, "out of memory for shape %s", name);
    enum err_code rc = build(s, name, e);
    if (rc != ERR_OK)
        shapes_free(&s->c);
    else
        *c = &s->c;
    return rc;
}

void shapes_free(struct checkpoint *c)
{
    struct synthetic *s = (struct synthetic *)c;
    if (!s)
        return;
    pool_close(&s->codes);
    for (int i = 0; i < s->n_grids; i++) {
        pool_close(&s->grid[i].scales);
        pool_close(&s->grid[i].biases);
    }
    json_decref(s->c.config);
    free(s->c.path);
    arena_free(s->arena);
    free(s);
}
