/* tool_tiny.c: tool_tiny DIR [key=value...]: writes a tiny random model (tests/tiny_model.h).
 *
 * Keys: tied, biases, window, vocab, bits, group, form (0 f32, 1 bf16, 2 packed, 3 and 4 expanded),
 * seed, ctx, wide (1: rows of 1536), rope_scaling (JSON), text (1: with a tokenizer and a chat
 * template, tests/tiny_text.h), experts (1: mixtral, 2: qwen3_moe; the first key, since it sets the
 * others anew).
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/str.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static bool set_key(struct tiny_model *m, bool *text, const char *arg)
{
    int64_t v = 0;
    const char *value = strchr(arg, '=');
    if (!value++)
        return false;
    if (str_starts(arg, "rope_scaling=")) {
        m->rope_scaling = value;
        return true;
    }
    if (!str_to_i64(value, 0, INT32_MAX, &v))
        return false;
    if (str_starts(arg, "experts=") && (v == 1 || v == 2))
        *m = tiny_model_experts(v == 2);
    else if (str_starts(arg, "tied="))
        m->tied = v;
    else if (str_starts(arg, "biases="))
        m->biases = v;
    else if (str_starts(arg, "window="))
        m->window = (int)v;
    else if (str_starts(arg, "bits="))
        m->bits = (int)v;
    else if (str_starts(arg, "group="))
        m->group = (int)v;
    else if (str_starts(arg, "form="))
        m->form = (enum tiny_form)v;
    else if (str_starts(arg, "ctx="))
        m->ctx = v;
    else if (str_starts(arg, "text="))
        *text = v;
    else if (str_starts(arg, "vocab="))
        m->n_vocab = (int)v;
    else if (str_starts(arg, "wide=")) { /* K of several chunks, heads of 64 */
        m->d_model = 1536;
        m->d_ff = 2048;
        m->n_head = 24;
        m->n_kv = 8;
        m->head_dim = 64;
    } else if (str_starts(arg, "seed="))
        m->seed = (uint64_t)v;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    bool text = false;
    for (int i = 2; i < argc; i++) {
        if (!set_key(&m, &text, argv[i])) {
            fprintf(stderr, "tool_tiny: bad argument '%s'\n", argv[i]);
            return 2;
        }
    }
    if (argc < 2) {
        fprintf(stderr, "usage: tool_tiny DIR [key=value...]\n");
        return 2;
    }
    enum err_code rc = tiny_model_write(argv[1], &m, &e);
    if (rc == ERR_OK && text)
        rc = tiny_text_write(argv[1], &e);
    if (rc != ERR_OK)
        fprintf(stderr, "tool_tiny: %s\n", e.text);
    return err_exit_code(rc);
}
