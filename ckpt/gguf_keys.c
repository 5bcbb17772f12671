/* gguf_keys.c: the keys that a GGUF of a family must have.
 *
 * A config.json leaves out what its class has as default. A GGUF's reader knows no classes: every
 * converter writes these keys, and a file without one would run with a number that nobody stated.
 * Values are checked where they are read.
 */
#include "ckpt/gguf_keys.h"

#include <stdio.h>

/* families: words with spaces between; NULL: every family. */
static const struct need {
    const char *key, *families;
} needs[] = {
    {"embedding_length", NULL},
    {"block_count", NULL},
    {"attention.head_count", NULL},
    {"context_length", NULL},
    {"attention.layer_norm_rms_epsilon", NULL},
    {"feed_forward_length", "llama mistral mixtral qwen2 qwen3 gemma2 gemma3_text gemma4_text"},
    /* Elsewhere a missing base is 10000 to every reader. */
    {"rope.freq_base", "qwen2 qwen3 qwen3_moe gemma3_text gemma4_text gpt_oss"},
    /* Gemma 2 is always 4096: files were written before there was a key. */
    {"attention.sliding_window", "gemma3_text gemma4_text gpt_oss"},
    {"expert_count", "mixtral qwen3_moe gpt_oss"},
    {"expert_used_count", "mixtral qwen3_moe gpt_oss"},
    {"expert_feed_forward_length", "qwen3_moe"},
};

static bool listed(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n) {
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    }
    return false;
}

enum err_code gguf_keys_need(const struct gguf_meta *m, const char *arch, const char *family,
                             struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(needs); i++) {
        char key[128];
        snprintf(key, sizeof key, "%.60s.%s", arch, needs[i].key);
        if ((!needs[i].families || listed(needs[i].families, family)) && !gguf_find(m, key))
            return err_set(e, ERR_INPUT, "key '%s' is missing", key);
    }
    return ERR_OK;
}
