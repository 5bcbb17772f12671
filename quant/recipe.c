/* recipe.c: recipes from YAML, and matching. */
#include "quant/recipe.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/io.h"
#include "common/yaml.h"

/* ---- the text's own shape, as libcyaml fills it ------------------------------------------------
 */
struct text_rule {
    char *match, *role, *layers, *format, *scale, *why;
    int bits, group;
    bool keep;
};

struct text_recipe {
    char *why;
    struct text_rule *rules;
    unsigned rules_count;
};

#define OPT_STR (CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL)

static const cyaml_schema_field_t rule_fields[] = {
    CYAML_FIELD_STRING_PTR("match", OPT_STR, struct text_rule, match, 1, CKPT_NAME_MAX),
    CYAML_FIELD_STRING_PTR("role", OPT_STR, struct text_rule, role, 1, 200),
    CYAML_FIELD_STRING_PTR("layers", OPT_STR, struct text_rule, layers, 1, 400),
    CYAML_FIELD_STRING_PTR("format", OPT_STR, struct text_rule, format, 1, 16),
    CYAML_FIELD_INT("bits", CYAML_FLAG_OPTIONAL, struct text_rule, bits),
    CYAML_FIELD_INT("group", CYAML_FLAG_OPTIONAL, struct text_rule, group),
    CYAML_FIELD_STRING_PTR("scale", OPT_STR, struct text_rule, scale, 1, 16),
    CYAML_FIELD_BOOL("keep", CYAML_FLAG_OPTIONAL, struct text_rule, keep),
    CYAML_FIELD_STRING_PTR("why", OPT_STR, struct text_rule, why, 1, 400),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t rule_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct text_rule, rule_fields),
};

static const cyaml_schema_field_t recipe_fields[] = {
    CYAML_FIELD_STRING_PTR("why", CYAML_FLAG_POINTER, struct text_recipe, why, 1, 400),
    CYAML_FIELD_SEQUENCE("rules", CYAML_FLAG_POINTER, struct text_recipe, rules, &rule_schema, 1,
                         RECIPE_RULES_MAX),
    CYAML_FIELD_END,
};

static const cyaml_schema_value_t recipe_schema = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct text_recipe, recipe_fields),
};

/* ---- one rule ----------------------------------------------------------------------------------
 */

/* Cuts the next word of a comma-separated list into buf; false at its end. Words that do not fit
 * are cut, which no role and no range survives. */
static bool next_word(const char **s, char *buf, size_t size)
{
    while (**s == ' ' || **s == ',')
        (*s)++;
    if (!**s)
        return false;
    size_t n = strcspn(*s, ","), kept = n;
    while (kept && (*s)[kept - 1] == ' ')
        kept--;
    snprintf(buf, size, "%.*s", (int)kept, *s);
    *s += n;
    return true;
}

static enum err_code unknown_role(const char *word, struct err *e)
{
    const char *names[ROLE_COUNT];
    char list[200] = "";
    for (int r = 0; r < ROLE_COUNT; r++) {
        names[r] = ckpt_role_name((enum ckpt_role)r);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", r ? ", " : "", names[r]);
    }
    const char *near = str_nearest(word, names, ROLE_COUNT);
    return err_set(e, ERR_INPUT, "unknown role '%s'%s%s%s; the roles are %s", word,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", list);
}

static enum err_code read_roles(const char *text, unsigned *roles, struct err *e)
{
    char word[40];
    while (next_word(&text, word, sizeof word)) {
        enum ckpt_role r;
        if (!ckpt_role_find(word, &r))
            return unknown_role(word, e);
        *roles |= 1u << r;
    }
    return *roles ? ERR_OK : err_set(e, ERR_INPUT, "role: found no role in it");
}

/* "3", "-1", "0..7", "-4..-1". */
static bool read_range(const char *word, struct recipe_range *r)
{
    char from[40];
    const char *dots = strstr(word, "..");
    int64_t a, b;
    snprintf(from, sizeof from, "%.*s", dots ? (int)(dots - word) : 39, word);
    if (!str_to_i64(from, -HP_LAYERS_MAX, HP_LAYERS_MAX, &a) ||
        !str_to_i64(dots ? dots + 2 : from, -HP_LAYERS_MAX, HP_LAYERS_MAX, &b))
        return false;
    r->from = (int)a;
    r->to = (int)b;
    return a >= 0 && b >= 0 ? a <= b : a < 0 && b < 0 ? a <= b : true;
}

static enum err_code read_layers(const char *text, struct recipe_rule *rule, struct err *e)
{
    char word[40];
    while (next_word(&text, word, sizeof word)) {
        if (strcmp(word, "edges") == 0) {
            rule->edges = true;
            continue;
        }
        if (rule->n_ranges == RECIPE_RANGES_MAX)
            return err_set(e, ERR_INPUT, "layers: more than %d ranges", RECIPE_RANGES_MAX);
        if (!read_range(word, &rule->range[rule->n_ranges++]))
            return err_set(e, ERR_INPUT,
                           "layers: found '%s', expected a number, 'from..to' (negative numbers "
                           "count from the end) or 'edges'",
                           word);
    }
    if (!rule->n_ranges && !rule->edges)
        return err_set(e, ERR_INPUT, "layers: found no layer in it");
    return ERR_OK;
}

static enum err_code read_format(const struct text_rule *t, struct recipe_rule *rule, struct err *e)
{
    bool affine = t->bits || t->group || t->scale;
    if (t->keep && (affine || t->format))
        return err_set(e, ERR_INPUT, "keep: true excludes bits, group, scale and format");
    rule->keep = t->keep;
    if (t->keep)
        return ERR_OK;
    if (t->format && affine)
        return err_set(e, ERR_INPUT, "format: %s has its own bits, group and scale", t->format);
    if (t->format && !qformat_find_block(t->format, &rule->q))
        return err_set(e, ERR_INPUT, "format: found '%s', expected mxfp4, mxfp8 or nvfp4",
                       t->format);
    if (t->format)
        return ERR_OK;
    if (!t->bits)
        return err_set(e, ERR_INPUT, "says neither bits nor keep: true, and no format");
    rule->q.bits = t->bits;
    rule->q.group = t->group ? t->group : 64;
    rule->q.scale = t->scale ? dtype_find_short(t->scale) : DT_BF16;
    if (rule->q.scale == DT_UNKNOWN || !dtype_is_float(rule->q.scale))
        return err_set(e, ERR_INPUT, "scale: found '%s', expected bf16, f16 or f32", t->scale);
    struct qformat probe = rule->q;
    probe.group = 64;
    if (!qformat_valid(probe))
        return err_set(e, ERR_INPUT, "bits: found %d, expected 2, 3, 4, 5, 6 or 8", t->bits);
    if (!qformat_valid(rule->q))
        return err_set(e, ERR_INPUT, "group: found %d, expected 32, 64 or 128", t->group);
    return ERR_OK;
}

static bool copy_text(char **out, const char *s)
{
    *out = s ? strdup(s) : NULL;
    return !s || *out;
}

static enum err_code read_rule(const struct text_rule *t, struct recipe_rule *rule, struct err *e)
{
    if (!copy_text(&rule->match, t->match) || !copy_text(&rule->why, t->why))
        return err_set(e, ERR_NOMEM, "out of memory");
    rule->exact = rule->match && !strpbrk(rule->match, "*?[{");
    enum err_code rc = t->role ? read_roles(t->role, &rule->roles, e) : ERR_OK;
    if (rc == ERR_OK && t->layers)
        rc = read_layers(t->layers, rule, e);
    if (rc == ERR_OK)
        rc = read_format(t, rule, e);
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

const char *recipe_rule_place(const struct recipe *r, int rule, char buf[160])
{
    snprintf(buf, 160, "%.100s: rule %d (line %lld)", r->name, rule + 1,
             (long long)r->rules[rule].line);
    return buf;
}

static enum err_code read_rules(struct recipe *r, const struct text_recipe *t, struct err *e)
{
    int64_t lines[RECIPE_RULES_MAX] = {0};
    size_t n;
    r->rules = calloc(t->rules_count, sizeof *r->rules);
    if (!r->rules)
        return err_set(e, ERR_NOMEM, "out of memory: %u rules", t->rules_count);
    r->n_rules = (int)t->rules_count;
    enum err_code rc =
        yaml_item_lines(r->text, r->len, r->name, "rules", lines, RECIPE_RULES_MAX, &n, e);
    for (int i = 0; i < r->n_rules && rc == ERR_OK; i++) {
        char place[160];
        r->rules[i].line = lines[i];
        rc = read_rule(&t->rules[i], &r->rules[i], e);
        rc = err_wrap(e, rc, "%s", recipe_rule_place(r, i, place));
    }
    return rc;
}

enum err_code recipe_parse(struct recipe **out, const char *text, size_t len, const char *name,
                           struct err *e)
{
    struct recipe *r = calloc(1, sizeof *r);
    void *loaded = NULL;
    uint8_t digest[32];
    enum err_code rc = ERR_OK;
    *out = NULL;
    if (r) {
        r->name = strdup(name);
        r->text = malloc(len + 1);
    }
    if (!r || !r->name || !r->text) {
        rc = err_set(e, ERR_NOMEM, "out of memory: recipe of %zu bytes", len);
        goto out;
    }
    memcpy(r->text, text, len);
    r->text[len] = 0;
    r->len = len;
    sha256_of(text, len, digest);
    sha256_hex(digest, r->sha256);
    rc = yaml_load(r->text, len, name, &recipe_schema, &loaded, e);
    if (rc != ERR_OK)
        goto out;
    struct text_recipe *t = loaded;
    if (!copy_text(&r->why, t->why))
        rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK && strchr(r->why, '\n'))
        rc = err_set(e, ERR_INPUT, "%s: why: expected one line", name);
    if (rc == ERR_OK)
        rc = read_rules(r, t, e);
out:
    yaml_release(&recipe_schema, loaded);
    if (rc != ERR_OK)
        recipe_free(r);
    else
        *out = r;
    return rc;
}

enum err_code recipe_read(struct recipe **r, const char *path, struct err *e)
{
    struct strbuf text = {0};
    *r = NULL;
    enum err_code rc = io_read_all(path, YAML_BYTES_MAX, &text, e);
    if (rc == ERR_OK)
        rc = recipe_parse(r, text.data ? text.data : "", text.len, io_base(path), e);
    strbuf_free(&text);
    return rc;
}

void recipe_free(struct recipe *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_rules; i++) {
        free(r->rules[i].match);
        free(r->rules[i].why);
    }
    free(r->rules);
    free(r->why);
    free(r->text);
    free(r->name);
    free(r);
}

/* ---- matching ----------------------------------------------------------------------------------
 */

static bool in_range(const struct recipe_range *r, int layer, int n_layer)
{
    int from = r->from < 0 ? n_layer + r->from : r->from;
    int to = r->to < 0 ? n_layer + r->to : r->to;
    return layer >= from && layer <= to;
}

/* The layers that MLX's mixed recipes and llama.cpp's file types give more bits. */
static bool on_edge(int layer, int n_layer)
{
    int eighth = n_layer / 8;
    if (layer < eighth || layer >= 7 * n_layer / 8)
        return true;
    return (layer - eighth) % 3 == 2;
}

bool recipe_rule_matches(const struct recipe_rule *rule, const struct recipe_subject *s)
{
    if (rule->roles && !(rule->roles >> s->role & 1u))
        return false;
    if (rule->match && !str_glob(rule->match, s->name))
        return false;
    if (!rule->n_ranges && !rule->edges)
        return true;
    if (s->layer < 0)
        return false;
    if (rule->edges && on_edge(s->layer, s->n_layer))
        return true;
    for (int i = 0; i < rule->n_ranges; i++)
        if (in_range(&rule->range[i], s->layer, s->n_layer))
            return true;
    return false;
}

int recipe_decide(const struct recipe *r, const struct recipe_subject *s)
{
    for (int i = r->n_rules - 1; i >= 0; i--)
        if (recipe_rule_matches(&r->rules[i], s))
            return i;
    return -1;
}
