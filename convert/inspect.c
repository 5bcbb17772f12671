/* inspect.c: facts of a checkpoint as JSON, and that JSON as text. */
#include "convert/inspect.h"

#include <stdio.h>

#include "common/hash.h"
#include "quant/errstat.h"
#include "quant/plan.h"

static const char *const format_names[] = {
    [CKPT_FORMAT_HF] = "hf", [CKPT_FORMAT_MLX] = "mlx", [CKPT_FORMAT_GGUF] = "gguf"};

static json_t *bits(uint64_t bytes, int64_t elems)
{
    return json_real(elems ? errstat_round6(8.0 * (double)bytes / (double)elems) : 0.0);
}

/* Of a token over all layers that own pages. */
static int64_t kv_values(const struct hparams *hp)
{
    int64_t n = 0;
    for (int i = 0; i < hp->n_layer; i++) {
        const bool slides = hp->sliding[i];
        if (hparams_has_kv(hp, i))
            n += (int64_t)2 * hparams_n_kv(hp, slides) * hparams_head_dim(hp, slides);
    }
    return n;
}

static json_t *hparams(const struct hparams *hp)
{
    json_t *o = json_pack("{s:i,s:I,s:i,s:i,s:i,s:I,s:I,s:I,s:b,s:f}", "layers", hp->n_layer,
                          "d_model", (json_int_t)hp->d_model, "heads", hp->n_head, "kv_heads",
                          hp->n_kv, "head_dim", hp->head_dim, "d_ff", (json_int_t)hp->d_ff, "vocab",
                          (json_int_t)hp->n_vocab, "context", (json_int_t)hp->ctx_max, "tied",
                          hp->tied, "rope_theta", hp->rope.theta);
    json_object_set_new(o, "kv_values_per_token", json_integer(kv_values(hp)));
    if (hp->n_expert) {
        json_object_set_new(o, "experts", json_integer(hp->n_expert));
        json_object_set_new(o, "experts_used", json_integer(hp->n_expert_used));
        json_object_set_new(o, "d_ff_expert", json_integer(hp->d_ff_expert));
        json_object_set_new(o, "experts_beside_mlp", json_boolean(hp->mlp_beside));
    }
    if (hp->window) {
        char pattern[HP_LAYERS_MAX + 1] = "";
        for (int i = 0; i < hp->n_layer; i++)
            pattern[i] = hp->sliding[i] ? 'w' : 'F';
        json_object_set_new(o, "window", json_integer(hp->window));
        json_object_set_new(o, "layer_windows", json_string(pattern));
    }
    if (hp->n_kv_shared) {
        /* By layer, the one whose keys and values it looks at. */
        json_t *list = json_array();
        for (int i = 0; i < hp->n_layer; i++)
            json_array_append_new(list, json_integer(hparams_kv_layer(hp, i)));
        json_object_set_new(o, "layer_kv", list);
        json_object_set_new(o, "d_ff_sharing", json_integer(hparams_d_ff(hp, hp->n_layer - 1)));
    }
    if (hp->d_input) {
        json_object_set_new(o, "layer_input", json_integer(hp->d_input));
        json_object_set_new(o, "layer_input_vocab", json_integer(hp->n_vocab_input));
    }
    if (hp->two_ropes)
        json_object_set_new(o, "rope_theta_window", json_real(hp->rope_sliding.theta));
    if (hp->head_dim_full) {
        json_object_set_new(o, "kv_heads_full", json_integer(hp->n_kv_full));
        json_object_set_new(o, "head_dim_full", json_integer(hp->head_dim_full));
    }
    return o;
}

/* Parts that are listed and not run. */
static json_t *asides(const struct checkpoint *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_asides; i++)
        json_array_append_new(list, json_pack("{s:s,s:I,s:I}", "name", c->asides[i].name, "weights",
                                              (json_int_t)c->asides[i].elems, "bytes",
                                              (json_int_t)c->asides[i].bytes));
    return list;
}

static enum err_code files(const struct checkpoint *c, bool with_hashes, json_t **out,
                           struct err *e)
{
    *out = json_array();
    for (size_t i = 0; i < c->n_files; i++) {
        json_t *f = json_pack("{s:s,s:I,s:I}", "path", c->files[i]->path, "bytes",
                              (json_int_t)c->files[i]->file_bytes, "tensors",
                              (json_int_t)c->files[i]->n_tensors);
        json_array_append_new(*out, f);
        if (!with_hashes)
            continue;
        char hex[SHA256_HEX];
        enum err_code rc = checkpoint_file_sha256(c, i, hex, e);
        if (rc != ERR_OK) {
            json_decref(*out);
            return rc;
        }
        json_object_set_new(f, "sha256", json_string(hex));
    }
    return ERR_OK;
}

static int64_t elems_of(const struct ckpt_weight *w)
{
    return ckpt_weight_rows(w) * ckpt_weight_k(w);
}

/* Of a float matrix: the grid that it lies on, or the nearest one. */
static enum err_code put_grid(json_t *o, const struct ckpt_weight *w,
                              const struct inspect_options *opt, struct err *e)
{
    struct grid_options look = {.sample = !opt->grids, .interrupted = opt->interrupted};
    struct grid_report r;
    if (!plan_can_pack(w) || !grid_can_look(w))
        return ERR_OK;
    enum err_code rc = grid_look(w, &look, &r, e);
    if (rc != ERR_OK)
        return rc;
    json_t *g = grid_report_json(&r);
    char text[80];
    if (grid_is_on(&r))
        json_object_set_new(g, "form", json_string(grid_form_text(&r.form, text)));
    json_object_set_new(o, "grid", g);
    return ERR_OK;
}

static enum err_code tensors(const struct checkpoint *c, const struct inspect_options *opt,
                             json_t **out, struct err *e)
{
    json_t *list = *out = json_array();
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        char format[64];
        json_t *shape = json_array();
        for (int d = 0; d < w->n_dim; d++)
            json_array_append_new(shape, json_integer(w->dim[d]));
        json_t *o = json_pack("{s:s,s:s,s:s,s:o,s:s,s:I,s:o}", "name", w->name, "stored", w->stored,
                              "role", ckpt_role_name(w->role), "shape", shape, "format",
                              plan_weight_format(w, format), "bytes", (json_int_t)w->bytes,
                              "bits_per_weight", bits(w->bytes, elems_of(w)));
        json_array_append_new(list, o);
        /* Of a config alone there is nothing to look at. */
        enum err_code rc = c->n_files ? put_grid(o, w, opt, e) : ERR_OK;
        if (rc != ERR_OK) {
            json_decref(list);
            return rc;
        }
    }
    return ERR_OK;
}

/* Sums over the weights whose label is the same: by role and by format. */
static json_t *sums(const struct checkpoint *c, bool by_role)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_weights; i++) {
        char a[64], b[64];
        uint64_t bytes = 0;
        int64_t elems = 0, n = 0;
        bool first = true;
        const struct ckpt_weight *w = &c->weights[i];
        const char *label = by_role ? ckpt_role_name(w->role) : plan_weight_format(w, a);
        for (size_t j = 0; j < c->n_weights; j++) {
            const struct ckpt_weight *o = &c->weights[j];
            const char *other = by_role ? ckpt_role_name(o->role) : plan_weight_format(o, b);
            if (strcmp(label, other) != 0)
                continue;
            first &= j >= i;
            if (!first)
                break;
            bytes += o->bytes;
            elems += elems_of(o);
            n++;
        }
        if (first)
            json_array_append_new(
                list, json_pack("{s:s,s:I,s:I,s:I,s:o}", by_role ? "role" : "format", label,
                                "tensors", (json_int_t)n, "weights", (json_int_t)elems, "bytes",
                                (json_int_t)bytes, "bits_per_weight", bits(bytes, elems)));
    }
    return list;
}

static json_t *totals(const struct checkpoint *c)
{
    uint64_t bytes = 0, matrix_bytes = 0;
    int64_t elems = 0, matrix_elems = 0;
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        bytes += w->bytes;
        elems += elems_of(w);
        if (plan_can_pack(w)) {
            matrix_bytes += w->bytes;
            matrix_elems += elems_of(w);
        }
    }
    return json_pack("{s:I,s:I,s:I,s:o,s:o}", "tensors", (json_int_t)c->n_weights, "weights",
                     (json_int_t)elems, "bytes", (json_int_t)bytes, "bits_per_weight",
                     bits(bytes, elems), "matrix_bits_per_weight",
                     bits(matrix_bytes, matrix_elems));
}

/* What our manifest says of the making. */
static void put_origin(json_t *o, const json_t *manifest)
{
    static const char *const keys[] = {"assay", "command", "options", "sources", "origin"};
    json_t *made = json_object();
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (json_object_get(manifest, keys[i]))
            json_object_set(made, keys[i], json_object_get(manifest, keys[i]));
    const json_t *recipe = json_object_get(manifest, "recipe");
    if (recipe) {
        json_object_set(made, "recipe", json_object_get(recipe, "name"));
        json_object_set(made, "recipe_sha256", json_object_get(recipe, "sha256"));
    }
    json_object_set_new(o, "made_by_assay", made);
}

enum err_code inspect_checkpoint(const struct checkpoint *c, const struct inspect_options *opt,
                                 json_t **out, struct err *e)
{
    json_t *list = NULL, *weights = NULL;
    *out = NULL;
    enum err_code rc = files(c, opt->hashes, &list, e);
    if (rc != ERR_OK)
        return rc;
    rc = tensors(c, opt, &weights, e);
    if (rc != ERR_OK) {
        json_decref(list);
        return rc;
    }
    json_t *o = json_pack("{s:s,s:s}", "path", c->path, "container", format_names[c->format]);
    const char *type = json_string_value(json_object_get(c->config, "model_type"));
    if (type || c->hp_ok)
        json_object_set_new(o, "family", json_string(c->hp_ok ? c->hp.family : type));
    json_object_set_new(o, "runs", json_boolean(c->hp_ok));
    if (c->hp_ok)
        json_object_set_new(o, "hyperparameters", hparams(&c->hp));
    else
        json_object_set_new(o, "why_not", json_string(c->hp_err.text));
    json_object_set_new(o, "tokenizer", json_boolean(c->tokenizer_json != NULL));
    if (c->tokenizer_err.text[0])
        json_object_set_new(o, "tokenizer_error", json_string(c->tokenizer_err.text));
    json_object_set_new(o, "chat_template", json_boolean(c->chat_template != NULL));
    if (c->manifest)
        put_origin(o, c->manifest);
    json_object_set_new(o, "files", list);
    json_object_set_new(o, "totals", totals(c));
    json_object_set_new(o, "roles", sums(c, true));
    json_object_set_new(o, "formats", sums(c, false));
    json_object_set_new(o, "tensors", weights);
    if (c->n_asides)
        json_object_set_new(o, "set_aside", asides(c));
    *out = o;
    return o ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

static json_t *stored_tensor(const struct tensor *t)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dim; d++)
        json_array_append_new(shape, json_integer(t->dim[d]));
    const char *ggml = t->ggml != GGML_NONE ? ggml_type_name(t->ggml) : NULL;
    const char *dense = t->dtype < DT_COUNT ? dtype_name(t->dtype) : "unknown";
    return json_pack("{s:s,s:s,s:s,s:o,s:s,s:I,s:o}", "name", t->name, "stored", t->name, "role",
                     "other", "shape", shape, "format", ggml ? ggml : dense, "bytes",
                     (json_int_t)t->bytes, "bits_per_weight", bits(t->bytes, tensor_elems(t)));
}

enum err_code inspect_container(const struct container *c, const char *why, bool with_hashes,
                                json_t **out, struct err *e)
{
    uint64_t bytes = 0;
    int64_t elems = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_tensors; i++) {
        json_array_append_new(list, stored_tensor(&c->tensors[i]));
        bytes += c->tensors[i].bytes;
        elems += tensor_elems(&c->tensors[i]);
    }
    json_t *file = json_pack("{s:s,s:I,s:I}", "path", c->path, "bytes", (json_int_t)c->file_bytes,
                             "tensors", (json_int_t)c->n_tensors);
    if (with_hashes) {
        uint8_t digest[32];
        char hex[SHA256_HEX];
        sha256_of(c->file_data, c->file_bytes, digest);
        sha256_hex(digest, hex);
        json_object_set_new(file, "sha256", json_string(hex));
    }
    *out = json_pack("{s:s,s:s,s:b,s:s,s:b,s:b,s:[o],s:{s:I,s:I,s:I,s:o},s:o}", "path", c->path,
                     "container", c->kind == CONTAINER_GGUF ? "gguf" : "safetensors", "runs", 0,
                     "why_not", why, "tokenizer", 0, "chat_template", 0, "files", file, "totals",
                     "tensors", (json_int_t)c->n_tensors, "weights", (json_int_t)elems, "bytes",
                     (json_int_t)bytes, "bits_per_weight", bits(bytes, elems), "tensors", list);
    return *out ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

/* ---- text --------------------------------------------------------------------------------------
 */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static long long int_of(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

static void put_pairs(struct strbuf *out, const char *what, const json_t *o)
{
    const char *key;
    json_t *v;
    strbuf_printf(out, "%s:", what);
    json_object_foreach((json_t *)o, key, v)
    {
        strbuf_printf(out, " %s ", key);
        if (json_is_string(v))
            strbuf_puts(out, json_string_value(v));
        else
            json_put(out, v, 0);
        strbuf_putc(out, ',');
    }
    if (json_object_size(o))
        out->len -= out->len && !out->failed;
    strbuf_putc(out, '\n');
}

static void put_sums(struct strbuf *out, const char *label, const json_t *list)
{
    size_t i;
    json_t *o;
    strbuf_printf(out, "%-32s  %7s  %14s  %14s  %6s\n", label, "tensors", "weights", "bytes",
                  "bits");
    json_array_foreach(list, i, o)
        strbuf_printf(out, "%-32s  %7lld  %14lld  %14lld  %6.3f\n", text_of(o, label),
                      int_of(o, "tensors"), int_of(o, "weights"), int_of(o, "bytes"),
                      json_real_value(json_object_get(o, "bits_per_weight")));
    strbuf_putc(out, '\n');
}

static void put_files(struct strbuf *out, const json_t *list)
{
    size_t i;
    json_t *f;
    char bytes[24];
    json_array_foreach(list, i, f)
    {
        strbuf_printf(out, "file: %s, %s, %lld tensors", text_of(f, "path"),
                      str_bytes(bytes, (uint64_t)int_of(f, "bytes")), int_of(f, "tensors"));
        if (json_object_get(f, "sha256"))
            strbuf_printf(out, ", sha256 %s", text_of(f, "sha256"));
        strbuf_putc(out, '\n');
    }
}

/* Grids by form, each with how many matrices lie on it, and then those on none. */
static void put_grids(struct strbuf *out, const json_t *list)
{
    size_t i, j, looked = 0, on = 0;
    json_t *t, *o;
    json_array_foreach(list, i, t)
    {
        looked += json_object_get(t, "grid") != NULL;
        on += json_object_get(json_object_get(t, "grid"), "form") != NULL;
    }
    if (!looked)
        return;
    bool whole = true;
    json_array_foreach(list, i, t) whole &=
        !json_object_get(t, "grid") ||
        json_is_true(json_object_get(json_object_get(t, "grid"), "whole"));
    strbuf_printf(out, "grid: %zu of %zu float matrices lie on one%s\n", on, looked,
                  whole ? "" : ", by a sample of rows (--grid looks at all)");
    json_array_foreach(list, i, t)
    {
        const char *form = json_string_value(json_object_get(json_object_get(t, "grid"), "form"));
        size_t same = 0;
        bool first = true;
        json_array_foreach(list, j, o)
        {
            const char *other =
                json_string_value(json_object_get(json_object_get(o, "grid"), "form"));
            bool equal = form && other && strcmp(form, other) == 0;
            same += equal;
            first &= !equal || j >= i;
        }
        if (form && first)
            strbuf_printf(out, "  %zu: %s\n", same, form);
    }
    json_array_foreach(list, i, t)
    {
        const json_t *g = json_object_get(t, "grid");
        if (on && g && !json_object_get(g, "form"))
            strbuf_printf(out, "  on none: %s, %lld of %lld units\n", text_of(t, "name"),
                          int_of(g, "on"), int_of(g, "units"));
    }
    strbuf_putc(out, '\n');
}

static void put_tensors(struct strbuf *out, const json_t *list)
{
    size_t i, d;
    json_t *t, *n;
    strbuf_printf(out, "%-50s  %-10s  %-18s  %-30s  %12s\n", "tensor", "role", "shape", "format",
                  "bytes");
    json_array_foreach(list, i, t)
    {
        char shape[100] = "";
        json_array_foreach(json_object_get(t, "shape"), d, n)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", d ? "x" : "",
                     (long long)json_integer_value(n));
        strbuf_printf(out, "%-50s  %-10s  %-18s  %-30s  %12lld\n", text_of(t, "name"),
                      text_of(t, "role"), shape, text_of(t, "format"), int_of(t, "bytes"));
    }
}

static void put_asides(struct strbuf *out, const json_t *list)
{
    size_t i;
    json_t *t;
    json_array_foreach(list, i, t)
        strbuf_printf(out, "%-50s  set aside: not of the text model  %12lld\n", text_of(t, "name"),
                      int_of(t, "bytes"));
}

void inspect_text(const json_t *facts, struct strbuf *out)
{
    const json_t *t = json_object_get(facts, "totals");
    char bytes[24];
    strbuf_printf(out, "%s: %s, family %s%s\n", text_of(facts, "path"), text_of(facts, "container"),
                  text_of(facts, "family"),
                  json_is_true(json_object_get(facts, "runs")) ? "" : ", cannot be run");
    if (json_object_get(facts, "why_not"))
        strbuf_printf(out, "why not: %s\n", text_of(facts, "why_not"));
    if (json_object_get(facts, "hyperparameters"))
        put_pairs(out, "hyperparameters", json_object_get(facts, "hyperparameters"));
    if (json_object_get(facts, "made_by_assay"))
        put_pairs(out, "made by assay", json_object_get(facts, "made_by_assay"));
    strbuf_printf(out, "tokenizer: %s; chat template: %s\n",
                  json_is_true(json_object_get(facts, "tokenizer")) ? "yes" : "no",
                  json_is_true(json_object_get(facts, "chat_template")) ? "yes" : "no");
    put_files(out, json_object_get(facts, "files"));
    strbuf_printf(out, "total: %lld tensors, %lld weights, %s, %.3f bits per weight",
                  int_of(t, "tensors"), int_of(t, "weights"),
                  str_bytes(bytes, (uint64_t)int_of(t, "bytes")),
                  json_real_value(json_object_get(t, "bits_per_weight")));
    if (json_object_get(t, "matrix_bits_per_weight"))
        strbuf_printf(out, " (matrices %.3f)",
                      json_real_value(json_object_get(t, "matrix_bits_per_weight")));
    strbuf_puts(out, "\n\n");
    if (json_object_get(facts, "roles")) {
        put_sums(out, "role", json_object_get(facts, "roles"));
        put_sums(out, "format", json_object_get(facts, "formats"));
    }
    put_grids(out, json_object_get(facts, "tensors"));
    put_tensors(out, json_object_get(facts, "tensors"));
    put_asides(out, json_object_get(facts, "set_aside"));
}
