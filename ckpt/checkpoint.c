/* checkpoint.c: opens a folder, a GGUF or an archive as one checkpoint.
 *
 * Order: files, configuration, hyperparameters, weights, family check, tokenizer. What makes a
 * checkpoint unreadable fails the open; what only keeps it from being run (an unknown family, a
 * missing weight) is kept in hp_err, so that it can still be listed.
 */
#include "ckpt/checkpoint.h"

#include <math.h>
#include <stdlib.h>

#include "ckpt/checkpoint_priv.h"
#include "ckpt/family_check.h"
#include "ckpt/gguf.h"
#include "ckpt/gguf_config.h"
#include "ckpt/gguf_tokenizer.h"
#include "ckpt/mlx_layout.h"
#include "ckpt/shards.h"
#include "common/hash.h"

#define TEXT_MAX ((size_t)1 << 30)

static const char *const roles[ROLE_COUNT] = {
#define X(name, text) [name] = text,
    CKPT_ROLES(X)
#undef X
};

const char *ckpt_role_name(enum ckpt_role r)
{
    return r < ROLE_COUNT ? roles[r] : "?";
}

bool ckpt_role_find(const char *text, enum ckpt_role *r)
{
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (strcmp(roles[i], text) == 0) {
            *r = (enum ckpt_role)i;
            return true;
        }
    }
    return false;
}

/* ---- files ------------------------------------------------------------------------------------
 */

static enum err_code open_entry(struct checkpoint *c, size_t entry, struct container **out,
                                struct err *e)
{
    const uint8_t *data;
    size_t bytes;
    const char *path = source_path(c->priv->source, entry);
    enum err_code rc = source_data(c->priv->source, entry, &data, &bytes, e);
    return rc != ERR_OK ? rc : container_view(out, path, data, bytes, e);
}

static enum err_code open_folder_files(struct checkpoint *c, struct err *e)
{
    struct shard_list l;
    enum err_code rc = shards_of_folder(c->priv->source, &l, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s", c->path);
    c->files = calloc(l.n, sizeof *c->files);
    if (!c->files)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    for (size_t i = 0; rc == ERR_OK && i < l.n; i++) {
        rc = open_entry(c, l.entries[i], &c->files[i], e);
        if (rc == ERR_OK)
            c->n_files++;
    }
    if (rc == ERR_OK)
        rc = shards_check_map(&l, c->priv->source, c->files, e);
    shards_free(&l);
    return rc;
}

/* Takes over `first`, the container of that entry. */
static enum err_code open_gguf_files(struct checkpoint *c, size_t entry, struct container *first,
                                     struct err *e)
{
    struct shard_list l;
    enum err_code rc = shards_of_gguf(c->priv->source, entry, first, &l, e);
    if (rc == ERR_OK && !(c->files = calloc(l.n, sizeof *c->files)))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc != ERR_OK) {
        container_close(first);
        shards_free(&l);
        return rc;
    }
    c->files[c->n_files++] = first;
    for (size_t i = 1; rc == ERR_OK && i < l.n; i++) {
        rc = open_entry(c, l.entries[i], &c->files[i], e);
        if (rc == ERR_OK)
            c->n_files++;
        if (rc == ERR_OK && !c->files[i]->gguf)
            rc = err_set(e, ERR_INPUT, "%s: not a GGUF", c->files[i]->path);
        if (rc == ERR_OK)
            rc = shards_check_gguf(c->files[i], i, l.n, e);
    }
    int64_t said = -1, found = 0;
    for (size_t i = 0; i < c->n_files; i++)
        found += (int64_t)c->files[i]->n_tensors;
    if (rc == ERR_OK)
        rc =
            gguf_get_int(first->gguf, "split.tensors.count", GGUF_OPTIONAL, 0, INT32_MAX, &said, e);
    if (rc == ERR_OK && said >= 0 && said != found)
        rc = err_set(e, ERR_INPUT, "%s: %lld tensors in its parts, expected %lld", c->path,
                     (long long)found, (long long)said);
    shards_free(&l);
    return rc;
}

/* ---- texts of a folder --------------------------------------------------------------------------
 */

static enum err_code read_json(struct checkpoint *c, const char *name, json_t **out, struct err *e)
{
    size_t i, bytes;
    const uint8_t *data;
    if (!source_find(c->priv->source, name, &i))
        return ERR_OK;
    enum err_code rc = source_data(c->priv->source, i, &data, &bytes, e);
    if (rc != ERR_OK)
        return rc;
    rc = bytes > TEXT_MAX ? err_set(e, ERR_INPUT, "%zu bytes of JSON", bytes)
                          : json_parse((const char *)data, bytes, out, e);
    if (rc == ERR_OK && !json_is_object(*out))
        rc = err_set(e, ERR_INPUT, "expected an object");
    return err_wrap(e, rc, "%s", source_path(c->priv->source, i));
}

static enum err_code read_text(struct checkpoint *c, const char *name, char **out, size_t *len,
                               struct err *e)
{
    size_t i, bytes;
    const uint8_t *data;
    if (!source_find(c->priv->source, name, &i))
        return ERR_OK;
    enum err_code rc = source_data(c->priv->source, i, &data, &bytes, e);
    if (rc != ERR_OK)
        return rc;
    *out = bytes > TEXT_MAX ? NULL : malloc(bytes + 1);
    if (!*out)
        return err_set(e, ERR_NOMEM, "%s: out of memory for %zu bytes", name, bytes);
    if (bytes)
        memcpy(*out, data, bytes);
    (*out)[bytes] = 0;
    if (len)
        *len = bytes;
    size_t bad = str_utf8_valid(*out, bytes);
    if (bad != bytes)
        return err_set(e, ERR_INPUT, "%s: not well-formed UTF-8 at byte %zu",
                       source_path(c->priv->source, i), bad);
    return ERR_OK;
}

/* The inline template: a string, or the one called "default" in a list. */
static enum err_code inline_template(struct checkpoint *c, struct err *e)
{
    const json_t *v = json_object_get(c->tokenizer_config, "chat_template");
    const char *text = json_string_value(v);
    for (size_t i = 0; !text && i < json_array_size(v); i++) {
        const json_t *item = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            text = json_string_value(json_object_get(item, "template"));
    }
    if (text && !(c->chat_template = strdup(text)))
        return err_set(e, ERR_NOMEM, "out of memory");
    return ERR_OK;
}

static enum err_code read_folder_texts(struct checkpoint *c, struct err *e)
{
    enum err_code rc = read_json(c, "config.json", &c->config, e);
    if (rc == ERR_OK)
        rc = read_json(c, "generation_config.json", &c->generation, e);
    if (rc == ERR_OK)
        rc = read_json(c, "tokenizer_config.json", &c->tokenizer_config, e);
    if (rc == ERR_OK)
        rc = read_json(c, "assay.json", &c->manifest, e);
    if (rc == ERR_OK)
        rc = read_text(c, "tokenizer.json", &c->tokenizer_json, &c->tokenizer_len, e);
    if (rc == ERR_OK)
        rc = read_text(c, "chat_template.jinja", &c->chat_template, NULL, e);
    if (rc == ERR_OK && !c->chat_template && c->tokenizer_config)
        rc = inline_template(c, e);
    return rc;
}

/* ---- texts of a GGUF ---------------------------------------------------------------------------
 */

static enum err_code make_gguf_texts(struct checkpoint *c, struct err *e)
{
    struct strbuf b = {0};
    struct gguf_text text = {NULL, 0};
    const struct gguf_meta *m = c->files[0]->gguf;
    enum err_code rc = gguf_config_make(c->files, c->n_files, &c->config, &c->hp_err);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s: out of memory", c->path);
    rc = gguf_get_text(m, "tokenizer.chat_template", GGUF_OPTIONAL, &text, e);
    if (rc == ERR_OK && text.text) {
        size_t bad = str_utf8_valid(text.text, text.len);
        if (bad != text.len || memchr(text.text, 0, text.len))
            rc = err_set(e, ERR_INPUT, "key 'tokenizer.chat_template': byte %zu is not UTF-8 text",
                         bad);
        else if (!(c->chat_template = strndup(text.text, text.len)))
            rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (rc != ERR_OK)
        return err_wrap(e, rc, "%s", c->path);
    rc = gguf_tokenizer_make(m, &b, &c->tokenizer_config, &c->tokenizer_err);
    if (rc == ERR_NOMEM) {
        strbuf_free(&b);
        return err_set(e, rc, "%s: out of memory", c->path);
    }
    if (rc == ERR_OK && b.len) {
        c->tokenizer_len = b.len;
        c->tokenizer_json = strbuf_take(&b);
    }
    strbuf_free(&b);
    return ERR_OK;
}

/* ---- hyperparameters ----------------------------------------------------------------------------
 */

/* Rope divisors of a GGUF, which the hyperparameters point to. */
static enum err_code keep_factors(struct checkpoint *c, struct err *e)
{
    size_t n = (size_t)c->hp.head_dim / 2;
    const json_t *rope = json_object_get(c->config, "rope_scaling");
    if (!rope)
        rope = json_object_get(c->config, "rope_parameters");
    const json_t *list = json_object_get(rope, "factors");
    float *f = arena_array(c->priv->arena, n + 1, sizeof *f);
    if (!f)
        return arena_error(c->priv->arena, n, e);
    for (size_t i = 0; i < n; i++) {
        double v = json_number_value(json_array_get(list, i));
        if (!(v > 0 && v <= 3e38)) {
            c->hp_ok = false;
            err_set(&c->hp_err, ERR_INPUT, "rope 'factors': entry %zu is %g, expected above 0", i,
                    v);
            return ERR_OK;
        }
        f[i] = (float)v;
    }
    c->hp.rope.factors = f;
    return ERR_OK;
}

static enum err_code read_hparams(struct checkpoint *c, struct err *e)
{
    const char *place = c->format == CKPT_FORMAT_GGUF ? "" : "/config.json";
    if (!c->config) {
        if (c->format == CKPT_FORMAT_GGUF)
            err_wrap(&c->hp_err, ERR_INPUT, "%s", c->path);
        else
            err_set(&c->hp_err, ERR_INPUT, "%s: no config.json", c->path);
        return ERR_OK;
    }
    const char *method = mlx_layout_foreign(c->config);
    enum err_code rc;
    if (method)
        rc = err_set(&c->hp_err, ERR_INPUT, "quantization method '%.64s' is not supported", method);
    else
        rc = hparams_from_config(&c->hp, c->config, c->generation, &c->hp_err);
    c->hp_ok = rc == ERR_OK;
    if (!c->hp_ok)
        err_wrap(&c->hp_err, rc, "%s%s", c->path, place);
    if (c->hp_ok && c->hp.rope.kind == ROPE_FACTORS)
        return keep_factors(c, e);
    return ERR_OK;
}

/* ---- opening
 * ------------------------------------------------------------------------------------- */

static enum err_code open_single(struct checkpoint *c, size_t entry, struct err *e)
{
    struct container *first;
    enum err_code rc = open_entry(c, entry, &first, e);
    if (rc != ERR_OK)
        return rc;
    if (first->kind == CONTAINER_GGUF) {
        c->format = CKPT_FORMAT_GGUF;
        rc = open_gguf_files(c, entry, first, e);
        return rc != ERR_OK ? rc : make_gguf_texts(c, e);
    }
    c->files = calloc(1, sizeof *c->files);
    if (!c->files) {
        container_close(first);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    c->files[c->n_files++] = first;
    return ERR_OK;
}

/* The one GGUF of a folder without safetensors; false when there is none or more than one. */
static bool find_gguf(struct source *s, size_t *entry)
{
    size_t n = 0;
    for (size_t i = 0; i < source_count(s); i++) {
        const char *name = source_name(s, i);
        bool later = str_glob("*-[0-9][0-9][0-9][0-9][0-9]-of-*.gguf", name) &&
                     !str_glob("*-00001-of-*.gguf", name);
        if (str_ends(name, ".safetensors"))
            return false;
        if (str_ends(name, ".gguf") && !later) {
            *entry = i;
            n++;
        }
    }
    return n == 1;
}

static enum err_code open_all(struct checkpoint *c, struct err *e)
{
    size_t entry = 0;
    enum err_code rc = source_open(&c->priv->source, c->path, e);
    if (rc != ERR_OK)
        return rc;
    struct source *s = c->priv->source;
    if (source_kind(s) == SOURCE_FILE || find_gguf(s, &entry)) {
        rc = open_single(c, entry, e);
    } else {
        rc = read_folder_texts(c, e);
        if (rc == ERR_OK)
            rc = open_folder_files(c, e);
        const json_t *block = mlx_layout_block(c->config);
        if (rc == ERR_OK && block && !json_object_get(block, "quant_method"))
            c->format = CKPT_FORMAT_MLX;
    }
    if (rc == ERR_OK)
        rc = read_hparams(c, e);
    if (rc == ERR_OK)
        rc = weight_list_build(c, e);
    if (rc == ERR_OK && c->hp_ok) {
        enum err_code fits = family_check_weights(c, &c->hp_err);
        c->hp_ok = fits == ERR_OK;
        err_wrap(&c->hp_err, fits, "%s", c->path);
    }
    if (rc == ERR_OK && !(c->priv->hex = calloc(c->n_files + 1, sizeof *c->priv->hex)))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

enum err_code checkpoint_open(struct checkpoint **out, const char *path, struct err *e)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    enum err_code rc;
    *out = NULL;
    if (!c)
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    c->priv = calloc(1, sizeof *c->priv);
    if (!c->priv) {
        free(c);
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    pthread_mutex_init(&c->priv->lock, NULL);
    c->path = strdup(path);
    c->priv->arena = arena_new(0);
    if (!c->path || !c->priv->arena)
        rc = err_set(e, ERR_NOMEM, "%s: out of memory", path);
    else
        rc = open_all(c, e);
    if (rc != ERR_OK)
        checkpoint_close(c);
    else
        *out = c;
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_files; i++)
        container_close(c->files[i]);
    free(c->files);
    json_decref(c->config);
    json_decref(c->generation);
    json_decref(c->tokenizer_config);
    json_decref(c->manifest);
    free(c->tokenizer_json);
    free(c->chat_template);
    source_close(c->priv->source);
    arena_free(c->priv->arena);
    free(c->priv->hex);
    pthread_mutex_destroy(&c->priv->lock);
    free(c->priv);
    free(c->path);
    free(c);
}

static int compare_name(const void *key, const void *w)
{
    return strcmp(key, ((const struct ckpt_weight *)w)->name);
}

const struct ckpt_weight *checkpoint_find(const struct checkpoint *c, const char *name)
{
    if (c->n_weights == 0)
        return NULL;
    return bsearch(name, c->weights, c->n_weights, sizeof *c->weights, compare_name);
}

enum err_code checkpoint_file_sha256(const struct checkpoint *c, size_t file, char hex[65],
                                     struct err *e)
{
    if (file >= c->n_files)
        return err_set(e, ERR_INTERNAL, "file %zu of %zu", file, c->n_files);
    pthread_mutex_lock(&c->priv->lock);
    char *kept = c->priv->hex[file];
    if (!*kept) {
        uint8_t digest[32];
        sha256_of(c->files[file]->file_data, c->files[file]->file_bytes, digest);
        sha256_hex(digest, kept);
    }
    memcpy(hex, kept, 65);
    pthread_mutex_unlock(&c->priv->lock);
    return ERR_OK;
}

uint64_t checkpoint_bytes(const struct checkpoint *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->n_weights; i++)
        n += c->weights[i].bytes;
    return n;
}
