/* fuzz_gguf.c: hostile GGUF files, their vocabularies included. */
#include "tests/fuzz/ckpt_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/m.gguf", input_folder());
    write_file(input_folder(), "m.gguf", data, bytes);
    open_input(path);
    return 0;
}

static void spm_seed(struct strbuf *out)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<0x0A>", "a", "b", "ab", "aba"};
    static const int32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, 0, -3, -4, -1, -2};
    struct gguf_maker m = {.rng = {1, 0}};
    tiny_gguf_keys(&m);
    gguf_string(&m, "tokenizer.ggml.model", "llama");
    gguf_strings(&m, "tokenizer.ggml.tokens", tokens, ARRAY_LEN(tokens));
    gguf_words(&m, "tokenizer.ggml.token_type", GGUF_I32, types, ARRAY_LEN(types));
    gguf_words(&m, "tokenizer.ggml.scores", GGUF_F32, scores, ARRAY_LEN(scores));
    gguf_bool(&m, "tokenizer.ggml.add_space_prefix", true);
    gguf_tensor(&m, "token_embd.weight", GGML_Q4_K, 8, 256, NULL);
    gguf_tensor(&m, "a.weight", GGML_Q6_K, 2, 256, NULL);
    gguf_finish(&m, out);
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    if (max < 2)
        return 0;
    tiny_gguf(&seeds[0]);
    spm_seed(&seeds[1]);
    return 2;
}
