/* inspect_config.c: the facts of a config.json alone: what a model of it would have.
 *
 * Every tensor of the family is listed by name and shape, as bf16, the type of published files, or
 * with experts in mxfp4 where the config says so (gpt-oss); nothing is there to be read.
 */
#include <stdlib.h>

#include "ckpt/family_check.h"
#include "ckpt/names.h"
#include "common/arena.h"
#include "common/io.h"
#include "convert/inspect.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

/* The list being made; the first pass counts. */
struct listing {
    struct arena *arena;
    struct ckpt_weight *weights; /* NULL: count */
    size_t n;
    bool mxfp4; /* experts' matrices are stored so */
    bool no_memory;
};

static void add_tensor(void *ctx, const char *name, int n_dim, const int64_t *dim)
{
    struct listing *l = ctx;
    const size_t i = l->n++;
    if (!l->weights)
        return;
    struct ckpt_weight *w = &l->weights[i];
    *w = (struct ckpt_weight){.enc = CKPT_DENSE, .dtype = DT_BF16, .ggml = GGML_NONE};
    w->name = arena_strdup(l->arena, name);
    w->stored = w->name;
    w->n_dim = n_dim;
    memcpy(w->dim, dim, (size_t)n_dim * sizeof *dim);
    w->bytes = 2 * (size_t)(ckpt_weight_rows(w) * ckpt_weight_k(w));
    w->role = names_role(name);
    w->layer = names_layer(name);
    if (l->mxfp4 && w->role == ROLE_EXPERT && n_dim == 3) {
        w->enc = CKPT_MX;
        w->q = QFORMAT_MXFP4;
        w->bytes = (size_t)ckpt_weight_rows(w) *
                   (qformat_row_bytes(w->q, ckpt_weight_k(w)) + ckpt_weight_scale_bytes(w));
    }
    l->no_memory |= !w->name;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_weight *)a)->name, ((const struct ckpt_weight *)b)->name);
}

static bool says_mxfp4(const json_t *config)
{
    const json_t *block = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(block, "quant_method"));
    return method && strcmp(method, "mxfp4") == 0;
}

static enum err_code list_weights(struct checkpoint *c, struct arena *arena, struct err *e)
{
    struct listing l = {.arena = arena};
    family_list(&c->hp, add_tensor, &l);
    const size_t n = l.n;
    l = (struct listing){.arena = arena, .mxfp4 = says_mxfp4(c->config)};
    l.weights = arena_array(arena, n + 1, sizeof *l.weights);
    if (!l.weights)
        return arena_error(arena, n, e);
    family_list(&c->hp, add_tensor, &l);
    if (l.no_memory)
        return arena_error(arena, n, e);
    qsort(l.weights, n, sizeof *l.weights, compare_names);
    c->weights = l.weights;
    c->n_weights = n;
    return ERR_OK;
}

enum err_code inspect_config(const char *path, json_t **out, struct err *e)
{
    struct strbuf text = {0};
    struct checkpoint c = {.path = (char *)(uintptr_t)path};
    struct arena *arena = NULL;
    const struct inspect_options nothing = {.hashes = false};
    *out = NULL;
    enum err_code rc = io_read_all(path, CONFIG_BYTES_MAX, &text, e);
    if (rc != ERR_OK)
        goto out;
    rc = json_parse(text.data, text.len, &c.config, e);
    if (rc == ERR_OK)
        rc = hparams_from_config(&c.hp, c.config, NULL, e);
    rc = err_wrap(e, rc, "%s", path);
    if (rc != ERR_OK)
        goto out;
    c.hp_ok = true;
    arena = arena_new(0);
    rc = arena ? list_weights(&c, arena, e) : err_set(e, ERR_NOMEM, "out of memory for an arena");
    if (rc == ERR_OK)
        rc = inspect_checkpoint(&c, &nothing, out, e);
    if (rc == ERR_OK)
        json_object_set_new(*out, "container", json_string("config"));
out:
    json_decref(c.config);
    strbuf_free(&text);
    arena_free(arena);
    return rc;
}
