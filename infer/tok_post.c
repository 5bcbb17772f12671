/* tok_post.c: see tok_post.h. */
#include "infer/tok_post.h"

#include <stdlib.h>

#define POST_DEPTH_MAX 64

/* The ids that the template's special_tokens gives to a name. */
static enum err_code put_special(struct token_list *to, const json_t *spec, const char *name,
                                 const struct tok_vocab *v, struct err *e)
{
    const json_t *token = json_object_get(json_object_get(spec, "special_tokens"), name);
    const json_t *ids = json_object_get(token, "ids");
    if (!json_is_array(ids))
        return err_set(e, ERR_INPUT, "special_tokens: found no ids for '%.80s'", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (n < 0 || n >= v->n_ids || v->len[n] < 0)
            return err_set(e, ERR_INPUT,
                           "special_tokens['%.80s'].ids[%zu]: found %lld, no token "
                           "has this id",
                           name, i, (long long)n);
        if (!token_list_push(to, (int32_t)n))
            return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_OK;
}

static enum err_code append(struct token_list *to, const struct token_list *from, struct err *e)
{
    for (size_t i = 0; i < from->n; i++) {
        if (!token_list_push(to, from->ids[i]))
            return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_OK;
}

/* In a sequence a later template goes around what the earlier ones have made. */
static enum err_code read_template(struct tok_post *p, const json_t *spec,
                                   const struct tok_vocab *v, struct err *e)
{
    const json_t *single = json_object_get(spec, "single");
    struct token_list before = {0};
    enum err_code rc = ERR_OK;
    bool seen = false;
    if (!json_is_array(single))
        return err_set(e, ERR_INPUT, "key 'single': expected an array");
    for (size_t i = 0; i < json_array_size(single) && rc == ERR_OK; i++) {
        const json_t *item = json_array_get(single, i), *special, *text;
        const char *id = "";
        special = json_object_get(item, "SpecialToken");
        text = json_object_get(item, "Sequence");
        rc = json_get_string(special ? special : text, "id", JSON_REQUIRED, &id, e);
        if (rc == ERR_OK && special)
            rc = put_special(seen ? &p->after : &before, spec, id, v, e);
        else if (rc == ERR_OK && (seen || strcmp(id, "A") != 0))
            rc = err_set(e, ERR_INPUT, "found sequence '%.80s', expected A, once", id);
        else
            seen = seen || text;
        if (rc != ERR_OK)
            err_wrap(e, rc, "single[%zu]", i);
    }
    if (rc == ERR_OK && !seen)
        rc = err_set(e, ERR_INPUT, "single: found no sequence A");
    if (rc == ERR_OK)
        rc = append(&before, &p->before, e);
    token_list_free(&p->before);
    p->before = before;
    return rc;
}

static enum err_code read_post(struct tok_post *p, const json_t *spec, const struct tok_vocab *v,
                               int depth, struct err *e)
{
    const char *type;
    enum err_code rc = tok_util_type(spec, &type, e);
    if (rc != ERR_OK || strcmp(type, "ByteLevel") == 0)
        return rc;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(p, spec, v, e);
    const json_t *list = json_object_get(spec, "processors");
    if (strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth > POST_DEPTH_MAX)
        return err_set(e, ERR_INPUT,
                       "type: found '%.80s', expected TemplateProcessing, ByteLevel "
                       "or a Sequence of them",
                       type);
    for (size_t i = 0; i < json_array_size(list); i++) {
        rc = read_post(p, json_array_get(list, i), v, depth + 1, e);
        if (rc != ERR_OK)
            return err_wrap(e, rc, "processors[%zu]", i);
    }
    return ERR_OK;
}

enum err_code tok_post_init(struct tok_post *p, const json_t *spec, const struct tok_vocab *v,
                            struct err *e)
{
    memset(p, 0, sizeof *p);
    if (!spec || json_is_null(spec))
        return ERR_OK;
    return err_wrap(e, read_post(p, spec, v, 0, e), "post_processor");
}

void tok_post_free(struct tok_post *p)
{
    token_list_free(&p->before);
    token_list_free(&p->after);
}
