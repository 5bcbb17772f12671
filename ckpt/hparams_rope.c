/* hparams_rope.c: the rope keys of a config.json in both generations of spelling (rope_theta with
 * rope_scaling, or rope_parameters): the kinds of scaling and what each needs.
 */
#include "ckpt/hparams_rope.h"

#include <math.h>

/* The object that holds the rope parameters: the old key wins when both exist. */
static enum err_code find_rope(const struct hparams *hp, const json_t *o, const json_t **rope,
                               struct err *e)
{
    json_t *old = NULL, *new = NULL;
    enum err_code rc = json_get_object(o, "rope_scaling", JSON_OPTIONAL, &old, e);
    if (rc == ERR_OK)
        rc = json_get_object(o, "rope_parameters", JSON_OPTIONAL, &new, e);
    if (rc != ERR_OK)
        return rc;
    *rope = old && json_object_size(old) ? old : new;
    if (*rope &&
        (json_object_get(*rope, "full_attention") || json_object_get(*rope, "sliding_attention"))) {
        json_t *inner = NULL;
        rc = json_get_object(*rope, hp->window ? "sliding_attention" : "full_attention",
                             JSON_REQUIRED, &inner, e);
        *rope = inner;
    }
    return rc;
}

static enum err_code read_original_ctx(const struct hparams *hp, const json_t *o,
                                       const json_t *rope, double *out, struct err *e)
{
    static const char *const key = "original_max_position_embeddings";
    *out = (double)hp->ctx_max;
    enum err_code rc = json_get_double(rope, key, JSON_OPTIONAL, 1, 1e12, out, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, key, JSON_OPTIONAL, 1, 1e12, out, e);
    return rc;
}

static double yarn_scale(double mscale, double factor)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static enum err_code read_yarn(struct rope_params *r, const json_t *rope, struct err *e)
{
    double mscale = 0, mscale_all = 0;
    enum err_code rc = json_get_double(rope, "beta_fast", JSON_OPTIONAL, 0, 1e9, &r->beta_fast, e);
    if (rc == ERR_OK)
        rc = json_get_double(rope, "beta_slow", JSON_OPTIONAL, 0, 1e9, &r->beta_slow, e);
    if (rc == ERR_OK)
        rc = json_get_double(rope, "mscale", JSON_OPTIONAL, -1e9, 1e9, &mscale, e);
    if (rc == ERR_OK)
        rc = json_get_double(rope, "mscale_all_dim", JSON_OPTIONAL, -1e9, 1e9, &mscale_all, e);
    if (rc == ERR_OK)
        rc = json_get_double(rope, "attention_factor", JSON_OPTIONAL, 0, 1e9, &r->attention_factor,
                             e);
    r->truncate = true;
    if (rc == ERR_OK)
        rc = json_get_bool(rope, "truncate", JSON_OPTIONAL, &r->truncate, e);
    if (rc != ERR_OK)
        return rc;
    r->beta_fast = r->beta_fast > 0 ? r->beta_fast : 32;
    r->beta_slow = r->beta_slow > 0 ? r->beta_slow : 1;
    const json_t *given = json_object_get(rope, "attention_factor");
    if (!given || json_is_null(given)) {
        bool both = mscale != 0 && mscale_all != 0;
        r->attention_factor =
            both ? yarn_scale(mscale, r->factor) / yarn_scale(mscale_all, r->factor)
                 : yarn_scale(1, r->factor);
    }
    return ERR_OK;
}

static enum err_code read_kind(const struct hparams *hp, struct rope_params *r, const char *type,
                               const json_t *o, const json_t *rope, struct err *e)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"default", ROPE_DEFAULT},
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},
                 {"proportional", ROPE_PROPORTIONAL},
                 {"factors", ROPE_FACTORS}};
    size_t i = 0;
    while (i < ARRAY_LEN(kinds) && strcmp(kinds[i].name, type) != 0)
        i++;
    if (i == ARRAY_LEN(kinds)) {
        return err_set(e, ERR_INPUT,
                       "rope_type '%.64s' is not supported; supported: default, linear, llama3, "
                       "yarn, proportional",
                       type);
    }
    r->kind = kinds[i].kind;
    if (r->kind == ROPE_DEFAULT)
        return ERR_OK;
    if (r->kind == ROPE_PROPORTIONAL)
        return json_get_double(rope, "factor", JSON_OPTIONAL, 1e-6, 1e6, &r->factor, e);
    if (r->kind == ROPE_FACTORS) {
        json_t *list = NULL;
        enum err_code rc = json_get_array(rope, "factors", JSON_REQUIRED, &list, e);
        if (rc == ERR_OK && json_array_size(list) != (size_t)hp->head_dim / 2)
            rc = err_set(e, ERR_INPUT, "rope 'factors': %zu entries, expected %d",
                         json_array_size(list), hp->head_dim / 2);
        return rc;
    }
    enum err_code rc = json_get_double(rope, "factor", JSON_REQUIRED, 1e-6, 1e6, &r->factor, e);
    if (rc == ERR_OK && r->kind != ROPE_LINEAR)
        rc = read_original_ctx(hp, o, rope, &r->original_ctx, e);
    if (rc == ERR_OK && r->kind == ROPE_YARN)
        rc = read_yarn(r, rope, e);
    if (rc == ERR_OK && r->kind == ROPE_LLAMA3) {
        rc = json_get_double(rope, "low_freq_factor", JSON_REQUIRED, 1e-6, 1e6, &r->low_freq_factor,
                             e);
        if (rc == ERR_OK)
            rc = json_get_double(rope, "high_freq_factor", JSON_REQUIRED, 1e-6, 1e6,
                                 &r->high_freq_factor, e);
        if (rc == ERR_OK && r->high_freq_factor <= r->low_freq_factor)
            rc = err_set(e, ERR_INPUT, "high_freq_factor %g, expected more than low_freq_factor %g",
                         r->high_freq_factor, r->low_freq_factor);
    }
    return rc;
}

/* One set of parameters, for heads of head_dim: `rope` is its object or NULL, key_theta where its
 * base stands outside of that. */
static enum err_code read_rope_set(const struct hparams *hp, int head_dim, struct rope_params *r,
                                   const json_t *o, const json_t *rope, const char *key_theta,
                                   double theta, struct err *e)
{
    const char *type = NULL, *type_old = NULL;
    double partial = 1;
    *r = (struct rope_params){.kind = ROPE_DEFAULT, .theta = theta, .factor = 1};
    r->attention_factor = 1;
    enum err_code rc = json_get_double(o, key_theta, JSON_OPTIONAL, 1, 1e15, &r->theta, e);
    if (rc == ERR_OK)
        rc = json_get_double(o, "partial_rotary_factor", JSON_OPTIONAL, 0, 1, &partial, e);
    if (rc == ERR_OK && rope) {
        rc = json_get_double(rope, "rope_theta", JSON_OPTIONAL, 1, 1e15, &r->theta, e);
        if (rc == ERR_OK)
            rc = json_get_double(rope, "partial_rotary_factor", JSON_OPTIONAL, 0, 1, &partial, e);
        if (rc == ERR_OK)
            rc = json_get_string(rope, "type", JSON_OPTIONAL, &type_old, e);
        type = type_old ? type_old : "default";
        if (rc == ERR_OK)
            rc = json_get_string(rope, "rope_type", JSON_OPTIONAL, &type, e);
        if (rc == ERR_OK)
            rc = read_kind(hp, r, type, o, rope, e);
        rc = err_wrap(e, rc, "rope parameters");
    }
    if (r->kind == ROPE_PROPORTIONAL) {
        r->turning_pairs = (int)(partial * head_dim / 2);
        return rc;
    }
    int dims = (int)((double)head_dim * partial);
    r->partial_dims = dims < head_dim ? dims : 0;
    if (rc == ERR_OK && (dims < 2 || dims % 2))
        rc = err_set(e, ERR_INPUT, "partial_rotary_factor %g rotates %d dims of a head of %d",
                     partial, dims, head_dim);
    return rc;
}

/* Gemma 3's old keys speak of full layers, but for rope_local_base_freq; Gemma 4 has no old keys.
 */
static enum err_code read_two_ropes(struct hparams *hp, const json_t *o,
                                    const struct rope_defaults *d, struct err *e)
{
    const int full_dim = hparams_head_dim(hp, false);
    json_t *old = NULL, *new = NULL, *full = NULL, *sliding = NULL;
    enum err_code rc = json_get_object(o, "rope_scaling", JSON_OPTIONAL, &old, e);
    if (rc == ERR_OK)
        rc = json_get_object(o, "rope_parameters", JSON_OPTIONAL, &new, e);
    if (rc == ERR_OK && new)
        rc = json_get_object(new, "full_attention", JSON_REQUIRED, &full, e);
    if (rc == ERR_OK && new)
        rc = json_get_object(new, "sliding_attention", JSON_REQUIRED, &sliding, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "rope parameters");
    hp->two_ropes = true;
    full = old && json_object_size(old) ? old : full;
    rc = read_rope_set(hp, full_dim, &hp->rope, o, full, "rope_theta", 1e6, e);
    if (rc == ERR_OK)
        rc = read_rope_set(hp, hp->head_dim, &hp->rope_sliding, o, sliding, "rope_local_base_freq",
                           10000, e);
    if (rc == ERR_OK && d->proportional && !full) {
        hp->rope.kind = ROPE_PROPORTIONAL;
        hp->rope.turning_pairs = full_dim / 8;
    }
    return rc;
}

enum err_code hparams_read_rope(struct hparams *hp, const json_t *o, const struct rope_defaults *d,
                                struct err *e)
{
    const json_t *rope = NULL;
    if (d->two)
        return read_two_ropes(hp, o, d, e);
    enum err_code rc = find_rope(hp, o, &rope, e);
    const double theta = d->theta > 0 ? d->theta : 10000;
    if (rc == ERR_OK)
        rc = read_rope_set(hp, hp->head_dim, &hp->rope, o, rope, "rope_theta", theta, e);
    if (rc == ERR_OK && !rope && d->unsaid) {
        const double base = hp->rope.theta;
        hp->rope = *d->unsaid;
        hp->rope.theta = base;
        hp->rope.attention_factor = yarn_scale(1, hp->rope.factor);
    }
    return rc;
}
