/* chat_messages.c: what happens to messages before a template sees them.
 *
 * Follows apply_chat_template of transformers 5.x, whose renderings differ from the bare template's
 * where a message has nulls (`content: null` beside tool calls) or brings its reasoning under
 * another name.
 */
#include "infer/chat.h"

static const char *const reasoning_keys[] = {"reasoning_content", "thinking", "reasoning"};

static json_t *first_reasoning(const json_t *message)
{
    for (size_t i = 0; i < ARRAY_LEN(reasoning_keys); i++) {
        json_t *v = json_object_get(message, reasoning_keys[i]);
        if (v && !json_is_null(v))
            return v;
    }
    return NULL;
}

/* A new object; NULL: out of memory. Key order shows in printed messages: a thinking comes first,
 * a new reasoning_content last. */
static json_t *normalize_one(json_t *message)
{
    const char *key;
    json_t *value, *reasoning = first_reasoning(message), *out = json_object();
    bool ok = out != NULL;
    if (ok && reasoning)
        ok = json_object_set(out, "thinking", reasoning) == 0;
    json_object_foreach(message, key, value)
    {
        if (ok && !json_is_null(value))
            ok = json_object_set(out, key, value) == 0;
    }
    if (ok && reasoning)
        ok = json_object_set(out, "reasoning_content", reasoning) == 0;
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

enum err_code chat_messages_normalize(const json_t *messages, json_t **out, struct err *e)
{
    size_t n = json_array_size(messages);
    *out = NULL;
    if (!json_is_array(messages))
        return err_set(e, ERR_INPUT, "messages: expected an array");
    if (n == 0)
        return err_set(e, ERR_INPUT, "messages: an empty conversation, expected at least one");
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        json_t *message = json_array_get(messages, i);
        if (!json_is_object(message)) {
            json_decref(list);
            return err_set(e, ERR_INPUT, "messages[%zu]: expected an object", i);
        }
        if (json_array_append_new(list, normalize_one(message)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    if (!list)
        return err_set(e, ERR_NOMEM, "out of memory: %zu messages", n);
    *out = list;
    return ERR_OK;
}
