/* sweep_file.c: the sweep file from YAML; defaults, paths, names. */
#include "jobs/sweep_file.h"

#include <math.h>
#include <stdlib.h>

#include "common/io.h"
#include "common/yaml.h"

/* ---- the text's own shape, as libcyaml fills it ------------------------------------------------
 */
struct text_model {
    char *name, *path, *hint;
};

struct text_path {
    char *name, *path;
};

struct text_setting {
    char *name, *arith, *device;
    int threads, max_batch, batch_tokens, max_tokens, max_ctx;
    bool chat;
};

struct text_limits {
    int seconds, total_seconds, memory_mb, *retries;
    double *pause;
};

struct text_repeat {
    int runs;
};

struct text_invariance {
    int *max_batch, *chunk;
    unsigned max_batch_count, chunk_count;
};

struct text_tokens {
    char *demand;
};

struct text_quality {
    double *kl, *agreement, *perplexity, *rise;
};

struct text_speed {
    int rounds;
};

struct text_gates {
    struct text_repeat *repeat;
    struct text_invariance *invariance;
    struct text_tokens *tokens;
    struct text_quality *quality;
    struct text_speed *speed;
};

struct text_sweep {
    char *why, *first_run, *out;
    struct text_model *models;
    struct text_path *recipes, *prompts;
    struct text_setting *settings;
    unsigned models_count, recipes_count, prompts_count, settings_count;
    char **variants;
    unsigned variants_count;
    struct text_limits *limits;
    struct text_gates *gates;
};

#define OPTIONAL     CYAML_FLAG_OPTIONAL
#define OPTIONAL_PTR (CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL)
#define PATH_BYTES   4000
#define LINE_BYTES   400

static const cyaml_schema_field_t model_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct text_model, name, 1, PATH_BYTES),
    CYAML_FIELD_STRING_PTR("path", CYAML_FLAG_POINTER, struct text_model, path, 1, PATH_BYTES),
    CYAML_FIELD_STRING_PTR("hint", OPTIONAL_PTR, struct text_model, hint, 1, LINE_BYTES),
    CYAML_FIELD_END,
};

/* A recipe without a path is the model as it is; prompt files need theirs (checked below). */
static const cyaml_schema_field_t path_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct text_path, name, 1, PATH_BYTES),
    CYAML_FIELD_STRING_PTR("path", OPTIONAL_PTR, struct text_path, path, 1, PATH_BYTES),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t setting_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct text_setting, name, 1, PATH_BYTES),
    CYAML_FIELD_STRING_PTR("arith", OPTIONAL_PTR, struct text_setting, arith, 1, 32),
    CYAML_FIELD_STRING_PTR("device", OPTIONAL_PTR, struct text_setting, device, 1, 32),
    CYAML_FIELD_INT("threads", OPTIONAL, struct text_setting, threads),
    CYAML_FIELD_INT("max_batch", OPTIONAL, struct text_setting, max_batch),
    CYAML_FIELD_INT("batch_tokens", OPTIONAL, struct text_setting, batch_tokens),
    CYAML_FIELD_INT("max_tokens", OPTIONAL, struct text_setting, max_tokens),
    CYAML_FIELD_INT("max_ctx", OPTIONAL, struct text_setting, max_ctx),
    CYAML_FIELD_BOOL("chat", OPTIONAL, struct text_setting, chat),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t limits_fields[] = {
    CYAML_FIELD_INT("seconds", OPTIONAL, struct text_limits, seconds),
    CYAML_FIELD_INT("total_seconds", OPTIONAL, struct text_limits, total_seconds),
    CYAML_FIELD_INT("memory_mb", OPTIONAL, struct text_limits, memory_mb),
    CYAML_FIELD_INT_PTR("retries", OPTIONAL_PTR, struct text_limits, retries),
    CYAML_FIELD_FLOAT_PTR("pause", OPTIONAL_PTR, struct text_limits, pause),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t number_schema = {
    CYAML_VALUE_INT(CYAML_FLAG_DEFAULT, int),
};

static const cyaml_schema_field_t repeat_fields[] = {
    CYAML_FIELD_INT("runs", CYAML_FLAG_DEFAULT, struct text_repeat, runs),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t invariance_fields[] = {
    CYAML_FIELD_SEQUENCE("max_batch", OPTIONAL_PTR, struct text_invariance, max_batch,
                         &number_schema, 1, SWEEP_PATHS_MAX),
    CYAML_FIELD_SEQUENCE("chunk", OPTIONAL_PTR, struct text_invariance, chunk, &number_schema, 1,
                         SWEEP_PATHS_MAX),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t tokens_fields[] = {
    CYAML_FIELD_STRING_PTR("demand", CYAML_FLAG_POINTER, struct text_tokens, demand, 1, 32),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t quality_fields[] = {
    CYAML_FIELD_FLOAT_PTR("kl", OPTIONAL_PTR, struct text_quality, kl),
    CYAML_FIELD_FLOAT_PTR("agreement", OPTIONAL_PTR, struct text_quality, agreement),
    CYAML_FIELD_FLOAT_PTR("perplexity", OPTIONAL_PTR, struct text_quality, perplexity),
    CYAML_FIELD_FLOAT_PTR("rise", OPTIONAL_PTR, struct text_quality, rise),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t speed_fields[] = {
    CYAML_FIELD_INT("rounds", CYAML_FLAG_DEFAULT, struct text_speed, rounds),
    CYAML_FIELD_END,
};

static const cyaml_schema_field_t gates_fields[] = {
    CYAML_FIELD_MAPPING_PTR("repeat", OPTIONAL_PTR, struct text_gates, repeat, repeat_fields),
    CYAML_FIELD_MAPPING_PTR("invariance", OPTIONAL_PTR, struct text_gates, invariance,
                            invariance_fields),
    CYAML_FIELD_MAPPING_PTR("tokens", OPTIONAL_PTR, struct text_gates, tokens, tokens_fields),
    CYAML_FIELD_MAPPING_PTR("quality", OPTIONAL_PTR, struct text_gates, quality, quality_fields),
    CYAML_FIELD_MAPPING_PTR("speed", OPTIONAL_PTR, struct text_gates, speed, speed_fields),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t model_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_model, model_fields),
};
static const cyaml_schema_value_t path_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_path, path_fields),
};
static const cyaml_schema_value_t setting_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_setting, setting_fields),
};
static const cyaml_schema_value_t folder_schema = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char *, 1, PATH_BYTES),
};

static const cyaml_schema_field_t sweep_fields[] = {
    CYAML_FIELD_STRING_PTR("why", CYAML_FLAG_POINTER, struct text_sweep, why, 1, LINE_BYTES),
    CYAML_FIELD_STRING_PTR("first_run", OPTIONAL_PTR, struct text_sweep, first_run, 1, 32),
    CYAML_FIELD_STRING_PTR("out", OPTIONAL_PTR, struct text_sweep, out, 1, PATH_BYTES),
    CYAML_FIELD_SEQUENCE("models", CYAML_FLAG_POINTER, struct text_sweep, models, &model_schema, 0,
                         SWEEP_AXIS_MAX),
    CYAML_FIELD_SEQUENCE("recipes", CYAML_FLAG_POINTER, struct text_sweep, recipes, &path_schema, 0,
                         SWEEP_AXIS_MAX),
    CYAML_FIELD_SEQUENCE("prompts", CYAML_FLAG_POINTER, struct text_sweep, prompts, &path_schema, 0,
                         SWEEP_AXIS_MAX),
    CYAML_FIELD_SEQUENCE("settings", CYAML_FLAG_POINTER, struct text_sweep, settings,
                         &setting_schema, 0, SWEEP_AXIS_MAX),
    CYAML_FIELD_SEQUENCE("variants", OPTIONAL_PTR, struct text_sweep, variants, &folder_schema, 1,
                         SWEEP_AXIS_MAX),
    CYAML_FIELD_MAPPING_PTR("limits", OPTIONAL_PTR, struct text_sweep, limits, limits_fields),
    CYAML_FIELD_MAPPING_PTR("gates", CYAML_FLAG_POINTER, struct text_sweep, gates, gates_fields),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t sweep_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct text_sweep, sweep_fields),
};

/* ---- values ------------------------------------------------------------------------------------
 */

static enum err_code in_range(const char *key, int64_t v, int64_t lo, int64_t hi, struct err *e)
{
    return v >= lo && v <= hi ? ERR_OK
                              : err_set(e, ERR_INPUT, "%s: found %lld, expected %lld to %lld", key,
                                        (long long)v, (long long)lo, (long long)hi);
}

/* Names become parts of cell names and of file names. */
static enum err_code check_name(const char *axis, const char *name, struct err *e)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-+.";
    size_t n = strlen(name);
    if (n <= SWEEP_NAME_MAX && name[0] != '.' && strspn(name, allowed) == n)
        return ERR_OK;
    return err_set(e, ERR_INPUT,
                   "%s: the name '%.80s': expected at most %d letters, digits, '_', '-', '+' and "
                   "'.', not first a '.'",
                   axis, name, SWEEP_NAME_MAX);
}

/* A path of the file: taken as it is when absolute, else below the file's folder. */
static char *resolve(const struct sweep_file *f, const char *path)
{
    return path[0] == '/' ? strdup(path) : io_join(f->dir, path);
}

static char *move_text(char **from)
{
    char *s = *from;
    *from = NULL;
    return s;
}

/* libcyaml's allocator is malloc's own, so that texts can change hands. */
static enum err_code take_models(struct sweep_file *f, struct text_sweep *t, struct err *e)
{
    f->models = calloc(t->models_count + 1, sizeof *f->models);
    f->recipes = calloc(t->recipes_count + 1, sizeof *f->recipes);
    f->prompts = calloc(t->prompts_count + 1, sizeof *f->prompts);
    f->settings = calloc(t->settings_count + 1, sizeof *f->settings);
    f->variants = calloc(t->variants_count + 1, sizeof *f->variants);
    if (!f->models || !f->recipes || !f->prompts || !f->settings || !f->variants)
        return err_set(e, ERR_NOMEM, "out of memory");
    bool failed = false;
    for (; f->n_models < t->models_count; f->n_models++) {
        struct text_model *m = &t->models[f->n_models];
        f->models[f->n_models] =
            (struct sweep_model){move_text(&m->name), resolve(f, m->path), move_text(&m->hint)};
        failed |= !f->models[f->n_models].path;
    }
    for (; f->n_recipes < t->recipes_count; f->n_recipes++) {
        struct text_path *r = &t->recipes[f->n_recipes];
        f->recipes[f->n_recipes] = (struct sweep_recipe){
            .name = move_text(&r->name), .path = r->path ? resolve(f, r->path) : NULL};
        failed |= r->path && !f->recipes[f->n_recipes].path;
    }
    for (; f->n_prompts < t->prompts_count; f->n_prompts++) {
        struct text_path *p = &t->prompts[f->n_prompts];
        if (!p->path)
            return err_set(e, ERR_INPUT, "prompts: '%.80s' has no path", p->name);
        f->prompts[f->n_prompts] =
            (struct sweep_prompts){.name = move_text(&p->name), .path = resolve(f, p->path)};
        failed |= !f->prompts[f->n_prompts].path;
    }
    for (; f->n_settings < t->settings_count; f->n_settings++) {
        struct text_setting *s = &t->settings[f->n_settings];
        f->settings[f->n_settings] =
            (struct sweep_setting){move_text(&s->name), move_text(&s->arith), move_text(&s->device),
                                   s->threads,          s->max_batch,         s->batch_tokens,
                                   s->max_tokens,       s->max_ctx,           s->chat};
    }
    for (; f->n_variants < t->variants_count; f->n_variants++) {
        f->variants[f->n_variants] = resolve(f, t->variants[f->n_variants]);
        failed |= !f->variants[f->n_variants];
    }
    return failed ? err_set(e, ERR_NOMEM, "out of memory") : ERR_OK;
}

static bool is_arith(const char *name)
{
    static const char *const names[] = {"f32",   "mma90",  "mma80", "mma86",
                                        "mma89", "mma100", "mma120"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static enum err_code check_axes(const struct sweep_file *f, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (unsigned i = 0; rc == ERR_OK && i < f->n_models; i++)
        rc = check_name("models", f->models[i].name, e);
    for (unsigned i = 0; rc == ERR_OK && i < f->n_recipes; i++)
        rc = check_name("recipes", f->recipes[i].name, e);
    for (unsigned i = 0; rc == ERR_OK && i < f->n_prompts; i++)
        rc = check_name("prompts", f->prompts[i].name, e);
    for (unsigned i = 0; rc == ERR_OK && i < f->n_settings; i++) {
        const struct sweep_setting *s = &f->settings[i];
        rc = check_name("settings", s->name, e);
        if (rc == ERR_OK && s->arith && !is_arith(s->arith))
            rc = err_set(e, ERR_INPUT,
                         "arith: found '%s', expected f32, mma90 or another card's (mma80, mma86, "
                         "mma89, mma100, mma120)",
                         s->arith);
        if (rc == ERR_OK)
            rc = in_range("threads", s->threads, 0, 4096, e);
        if (rc == ERR_OK)
            rc = in_range("max_batch", s->max_batch, 0, 4096, e);
        if (rc == ERR_OK)
            rc = in_range("batch_tokens", s->batch_tokens, 0, 1 << 20, e);
        if (rc == ERR_OK)
            rc = in_range("max_tokens", s->max_tokens, 0, INT32_MAX, e);
        if (rc == ERR_OK)
            rc = in_range("max_ctx", s->max_ctx, 0, 1 << 24, e);
        rc = err_wrap(e, rc, "settings: '%s'", s->name);
    }
    return rc;
}

static enum err_code take_limits(struct sweep_limits *l, const struct text_limits *t, struct err *e)
{
    *l = (struct sweep_limits){.retries = 1, .pause = 5};
    if (!t)
        return ERR_OK;
    *l = (struct sweep_limits){t->seconds, t->total_seconds, t->memory_mb,
                               t->retries ? *t->retries : 1, t->pause ? *t->pause : 5};
    enum err_code rc = in_range("seconds", l->seconds, 0, 10000000, e);
    if (rc == ERR_OK)
        rc = in_range("total_seconds", l->total_seconds, 0, 10000000, e);
    if (rc == ERR_OK)
        rc = in_range("memory_mb", l->memory_mb, 0, 1 << 30, e);
    if (rc == ERR_OK)
        rc = in_range("retries", l->retries, 0, 100, e);
    if (rc == ERR_OK && !(l->pause >= 0 && l->pause <= 86400))
        rc = err_set(e, ERR_INPUT, "pause: found %g, expected 0 to 86400", l->pause);
    return err_wrap(e, rc, "limits");
}

static enum err_code take_numbers(const char *key, const int *from, unsigned n, int lo, int hi,
                                  int *to, unsigned *n_to, struct err *e)
{
    for (unsigned i = 0; i < n; i++) {
        enum err_code rc = in_range(key, from[i], lo, hi, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "gates: invariance");
        to[i] = from[i];
    }
    *n_to = n;
    return ERR_OK;
}

static double number_or_nan(const double *v)
{
    return v ? *v : (double)NAN;
}

static enum err_code take_quality(struct sweep_quality *q, const struct text_quality *t,
                                  struct err *e)
{
    *q = (struct sweep_quality){true, number_or_nan(t->kl), number_or_nan(t->agreement),
                                number_or_nan(t->perplexity), t->rise ? *t->rise : 0};
    if (q->kl < 0 || (t->kl && !isfinite(q->kl)))
        return err_set(e, ERR_INPUT, "gates: quality: kl: found %g, expected 0 or more nats",
                       q->kl);
    if (t->agreement && !(q->agreement >= 0 && q->agreement <= 1))
        return err_set(e, ERR_INPUT, "gates: quality: agreement: found %g, expected 0 to 1",
                       q->agreement);
    if (t->perplexity && !(q->perplexity >= 1 && isfinite(q->perplexity)))
        return err_set(e, ERR_INPUT,
                       "gates: quality: perplexity: found %g, expected a ratio of 1 or more",
                       q->perplexity);
    if (!(q->rise >= 0 && q->rise <= 10))
        return err_set(e, ERR_INPUT, "gates: quality: rise: found %g, expected 0 to 10", q->rise);
    return ERR_OK;
}

static enum err_code take_gates(struct sweep_gates *g, const struct text_gates *t, struct err *e)
{
    enum err_code rc = ERR_OK;
    *g = (struct sweep_gates){.repeat_runs = 3};
    if (t->repeat) {
        g->repeat_runs = t->repeat->runs;
        rc = err_wrap(e, in_range("runs", g->repeat_runs, 2, 1000, e), "gates: repeat");
    }
    if (rc == ERR_OK && t->invariance) {
        g->invariance = true;
        if (!t->invariance->max_batch_count && !t->invariance->chunk_count)
            return err_set(e, ERR_INPUT, "gates: invariance: says neither max_batch nor chunk");
        rc = take_numbers("max_batch", t->invariance->max_batch, t->invariance->max_batch_count, 1,
                          4096, g->max_batch, &g->n_max_batch, e);
        if (rc == ERR_OK)
            rc = take_numbers("chunk", t->invariance->chunk, t->invariance->chunk_count, 1, 1 << 20,
                              g->chunk, &g->n_chunk, e);
    }
    if (rc == ERR_OK && t->tokens) {
        g->tokens = true;
        g->tokens_ids_only = strcmp(t->tokens->demand, "ids") == 0;
        if (!g->tokens_ids_only && strcmp(t->tokens->demand, "bits") != 0)
            rc = err_set(e, ERR_INPUT, "gates: tokens: demand: found '%s', expected bits or ids",
                         t->tokens->demand);
    }
    if (rc == ERR_OK && t->quality)
        rc = take_quality(&g->quality, t->quality, e);
    if (rc == ERR_OK && t->speed) {
        g->speed_rounds = t->speed->rounds;
        rc = err_wrap(e, in_range("rounds", g->speed_rounds, 3, 1000, e), "gates: speed");
    }
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static char *folder_of(const char *path)
{
    size_t n = (size_t)(io_base(path) - path);
    return n ? strndup(path, n > 1 ? n - 1 : n) : strdup(".");
}

/* nightly.yaml -> nightly.sweep, beside it. */
static char *default_out(const char *path)
{
    size_t n = strlen(path);
    static const char *const tails[] = {".yaml", ".yml"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++)
        if (str_ends(path, tails[i]) && n > strlen(tails[i])) {
            n -= strlen(tails[i]);
            break;
        }
    struct strbuf b = {0};
    strbuf_append(&b, path, n);
    strbuf_puts(&b, ".sweep");
    return strbuf_take(&b);
}

static enum err_code take(struct sweep_file *f, struct text_sweep *t, const char *path,
                          struct err *e)
{
    f->path = strdup(path);
    f->dir = folder_of(path);
    f->why = move_text(&t->why);
    f->out = t->out && f->dir ? resolve(f, t->out) : default_out(path);
    if (!f->path || !f->dir || !f->out)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (t->first_run && strcmp(t->first_run, "record") != 0 && strcmp(t->first_run, "fail") != 0)
        return err_set(e, ERR_INPUT, "first_run: found '%s', expected record or fail",
                       t->first_run);
    f->first_run_records = t->first_run && strcmp(t->first_run, "record") == 0;
    enum err_code rc = take_models(f, t, e);
    if (rc == ERR_OK)
        rc = check_axes(f, e);
    if (rc == ERR_OK)
        rc = take_limits(&f->limits, t->limits, e);
    if (rc == ERR_OK)
        rc = take_gates(&f->gates, t->gates, e);
    return rc;
}

enum err_code sweep_file_parse(struct sweep_file **out, const char *text, size_t len,
                               const char *path, struct err *e)
{
    void *loaded = NULL;
    uint8_t digest[32];
    *out = NULL;
    enum err_code rc = yaml_load(text, len, path, &sweep_schema, &loaded, e);
    if (rc != ERR_OK)
        return rc;
    struct sweep_file *f = calloc(1, sizeof *f);
    rc = f ? take(f, loaded, path, e) : err_set(e, ERR_NOMEM, "out of memory");
    yaml_release(&sweep_schema, loaded);
    if (rc != ERR_OK) {
        sweep_file_free(f);
        return err_wrap(e, rc, "%s", path);
    }
    sha256_of(text, len, digest);
    sha256_hex(digest, f->sha256);
    *out = f;
    return ERR_OK;
}

static enum err_code hash_named(const char *path, const char *axis, const char *name, char *sha256,
                                const struct sweep_file *f, struct err *e)
{
    enum err_code rc = io_is_dir(path) ? err_set(e, ERR_INPUT, "%s: is a folder", path)
                                       : sha256_file(path, sha256, e);
    return err_wrap(e, rc, "%s: %s: '%s'", f->path, axis, name);
}

enum err_code sweep_file_read(struct sweep_file **out, const char *path, struct err *e)
{
    struct strbuf text = {0};
    *out = NULL;
    enum err_code rc = io_read_all(path, YAML_BYTES_MAX, &text, e);
    if (rc == ERR_OK)
        rc = sweep_file_parse(out, text.data, text.len, path, e);
    strbuf_free(&text);
    if (rc != ERR_OK)
        return rc;
    struct sweep_file *f = *out;
    for (unsigned i = 0; rc == ERR_OK && i < f->n_recipes; i++)
        if (f->recipes[i].path)
            rc = hash_named(f->recipes[i].path, "recipes", f->recipes[i].name, f->recipes[i].sha256,
                            f, e);
    for (unsigned i = 0; rc == ERR_OK && i < f->n_prompts; i++)
        rc = hash_named(f->prompts[i].path, "prompts", f->prompts[i].name, f->prompts[i].sha256, f,
                        e);
    if (rc != ERR_OK) {
        sweep_file_free(f);
        *out = NULL;
    }
    return rc;
}

void sweep_file_free(struct sweep_file *f)
{
    if (!f)
        return;
    for (unsigned i = 0; i < f->n_models; i++) {
        free(f->models[i].name);
        free(f->models[i].path);
        free(f->models[i].hint);
    }
    for (unsigned i = 0; i < f->n_recipes; i++) {
        free(f->recipes[i].name);
        free(f->recipes[i].path);
    }
    for (unsigned i = 0; i < f->n_prompts; i++) {
        free(f->prompts[i].name);
        free(f->prompts[i].path);
    }
    for (unsigned i = 0; i < f->n_settings; i++) {
        free(f->settings[i].name);
        free(f->settings[i].arith);
        free(f->settings[i].device);
    }
    for (unsigned i = 0; i < f->n_variants; i++)
        free(f->variants[i]);
    free(f->models);
    free(f->recipes);
    free(f->prompts);
    free(f->settings);
    free(f->variants);
    free(f->path);
    free(f->dir);
    free(f->why);
    free(f->out);
    free(f);
}
